"""Restarted Halpern primal-dual hybrid gradient on margins, as implemented in sorel."""

from benchmark_utils import ForEpochs

from sorel.solvers import PDHG


class Solver(ForEpochs):
    name = "pdhg"

    def run(self, n_iter):
        self.solve_epochs(PDHG(), n_iter)
