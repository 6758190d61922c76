"""SOREL: stochastic primal-dual method, without settings or with the published schedule mended."""

from benchmark_utils import ForEpochs

from sorel.solvers import SOREL


class Solver(ForEpochs):
    name = "sorel-stochastic"
    parameters = {"schedule": ["auto"]}

    def run(self, n_iter):
        self.solve_epochs(SOREL(self.schedule), n_iter)
