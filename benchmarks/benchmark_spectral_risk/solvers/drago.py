"""Drago of Mehta et al. (2024), with its smoothing, as implemented in sorel."""

from benchmark_utils import ForEpochs

from sorel.solvers import Drago


class Solver(ForEpochs):
    name = "drago"
    parameters = {"rate": [None], "nu": [None], "block_size": [None]}

    def run(self, n_iter):
        self.solve_epochs(Drago(self.rate, self.nu, self.block_size), n_iter)
