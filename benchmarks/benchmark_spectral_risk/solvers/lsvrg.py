"""LSVRG of Mehta et al. (2023), as implemented in sorel."""

from benchmark_utils import ForEpochs

from sorel.solvers import LSVRG


class Solver(ForEpochs):
    name = "lsvrg"
    parameters = {"step_size": [None], "nu": [0.0]}

    def run(self, n_iter):
        self.solve_epochs(LSVRG(self.step_size, self.nu), n_iter)
