"""What the solvers that call sorel share."""

import warnings

from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import sorel


def next_tolerance(tolerance):
    """One digit more; the first tolerance of a run is benchopt's infinity."""
    return min(1.0, max(tolerance / 10.0, 1e-15))


class SorelSolver(BaseSolver):
    """Runs one of sorel's solvers on a fresh problem; building it is not timed."""

    requirements = ["pip::sorel"]

    def set_objective(self, X, y, loss, risk, sigma, mu):
        self.arguments = {
            "X": X,
            "y": y,
            "loss": loss,
            "risk": risk,
            "penalty": sorel.L2(mu),
        }

    def pre_run_hook(self, stop_val):
        self.problem = sorel.Problem(**self.arguments)

    def warm_up(self):
        # The first run loads or compiles the loops.
        self.run_once(1e-2 if self._solver_strategy == "tolerance" else 1)

    def solve(self, solver, **budget):
        with warnings.catch_warnings():
            # A target that is out of reach ends the curve; it is no news here.
            warnings.simplefilter("ignore", sorel.ConvergenceWarning)
            self.result = sorel.solve(self.problem, solver, **budget)

    def get_result(self):
        return {"w": self.result.w, "weights": self.result.weights}


class ToTolerance(SorelSolver):
    """Solved anew for each relative gap: no demand at all, 1, 0.1, 0.01, ..."""

    sampling_strategy = "tolerance"
    # One step may gain so many digits that several tolerances in a row give the same answer.
    stopping_criterion = SufficientProgressCriterion(strategy="tolerance", patience=6)

    def get_next(self, stop_val):
        return next_tolerance(stop_val)


class ForEpochs(SorelSolver):
    """Run anew for each number of epochs: one pass to start and two for each."""

    sampling_strategy = "iteration"
    stopping_criterion = SufficientProgressCriterion(strategy="iteration", patience=5)

    def set_objective(self, **objective):
        super().set_objective(**objective)
        self.seed = self.get_seed(use_repetition=True)

    def solve_epochs(self, solver, epochs):
        self.solve(solver, tol=0.0, max_passes=1 + 2 * epochs, random_state=self.seed)
