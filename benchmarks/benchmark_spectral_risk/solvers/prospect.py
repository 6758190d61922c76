"""Prospect of Mehta et al. (2024), as implemented in sorel."""

from benchmark_utils import ForEpochs

from sorel.solvers import Prospect


class Solver(ForEpochs):
    name = "prospect"
    parameters = {"step_size": [None], "nu": [0.0]}

    def run(self, n_iter):
        self.solve_epochs(Prospect(self.step_size, self.nu), n_iter)
