"""Accelerated primal-dual method of Hamedani and Aybat (2021), as implemented in sorel."""

from benchmark_utils import ForEpochs

from sorel.solvers import APD


class Solver(ForEpochs):
    name = "apd"

    def run(self, n_iter):
        self.solve_epochs(APD(), n_iter)
