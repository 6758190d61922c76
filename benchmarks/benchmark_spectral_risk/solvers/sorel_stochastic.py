"""SOREL: stochastic primal-dual method, without settings."""

from benchmark_utils import ForEpochs

from sorel.solvers import SOREL


class Solver(ForEpochs):
    name = "sorel-stochastic"

    def run(self, n_iter):
        self.solve_epochs(SOREL(), n_iter)
