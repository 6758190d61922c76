"""cvxpy with Clarabel on the epigraph form of CVaR.

The multipliers of the epigraph are the weighting that certifies the answer. Building and compiling
the model is counted in each run: a user pays it too.
"""

import warnings

import cvxpy as cp
import numpy as np
from benchmark_utils import next_tolerance
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

# A conic solver factors a matrix with a few rows per sample; beyond this it is out of its range.
MAX_ROWS = 10_000
# Clarabel ends with an error rather than an answer when asked for much more.
LEAST_TOLERANCE = 1e-11


class Solver(BaseSolver):
    name = "cvxpy-clarabel"
    requirements = ["pip::cvxpy", "pip::clarabel"]
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(strategy="tolerance", patience=6)

    def skip(self, X, y, loss, risk, sigma, mu):
        if not risk.startswith("cvar:"):
            return True, "the epigraph form with n variables is that of CVaR"
        if len(y) > MAX_ROWS:
            return True, f"more than {MAX_ROWS} rows are out of its range"
        return False, None

    def set_objective(self, X, y, loss, risk, sigma, mu):
        self.X, self.y, self.loss, self.mu = X, y, loss, mu
        self.alpha = float(risk.partition(":")[2])
        self.w, self.weights = np.zeros(X.shape[1]), None

    def get_next(self, stop_val):
        return next_tolerance(stop_val)

    def run(self, tol):
        n, d = self.X.shape
        w, threshold, excess = cp.Variable(d), cp.Variable(), cp.Variable(n, nonneg=True)
        if self.loss == "squared":
            losses = 0.5 * cp.square(self.X @ w - self.y)
        else:
            losses = cp.logistic(-cp.multiply(self.y, self.X @ w))
        above = losses - threshold <= excess
        value = threshold + cp.sum(excess) / (n * self.alpha) + 0.5 * self.mu * cp.sum_squares(w)
        problem = cp.Problem(cp.Minimize(value), [above])
        tolerance = min(max(tol, LEAST_TOLERANCE), 1.0)
        options = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an inaccurate answer is judged anyway
            try:
                problem.solve(solver=cp.CLARABEL, **options)
            except cp.error.SolverError:
                return
        if w.value is not None:
            self.w, self.weights = w.value, above.dual_value

    def get_result(self):
        return {"w": self.w, "weights": self.weights}
