"""ADMM for rank-based losses after Xiao et al. (2023), as implemented in sorel."""

from benchmark_utils import ForEpochs

from sorel.solvers import ADMM


class Solver(ForEpochs):
    name = "admm"

    def run(self, n_iter):
        self.solve_epochs(ADMM(), n_iter)
