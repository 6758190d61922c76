"""Stochastic primal-dual method after Hamedani and Jalilzadeh (2023), as implemented in sorel."""

from benchmark_utils import ForEpochs

from sorel.solvers import StochasticPD


class Solver(ForEpochs):
    name = "stochastic-pd"
    parameters = {"batch_size": [None]}

    def run(self, n_iter):
        self.solve_epochs(StochasticPD(batch_size=self.batch_size), n_iter)
