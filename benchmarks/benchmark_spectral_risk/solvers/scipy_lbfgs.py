"""SciPy's L-BFGS-B on the nonsmooth objective, with the gradient through the sorted weights."""

import numpy as np
from benchopt import BaseSolver
from scipy.optimize import minimize
from scipy.special import expit


class Solver(BaseSolver):
    name = "scipy-lbfgs"
    requirements = ["scipy"]
    sampling_strategy = "callback"

    def set_objective(self, X, y, loss, risk, sigma, mu):
        self.X, self.y, self.loss, self.sigma, self.mu = X, y, loss, sigma, mu

    def run(self, cb):
        self.w = np.zeros(self.X.shape[1])

        def advance(intermediate_result):
            self.w = intermediate_result.x
            if not cb():
                raise StopIteration

        if cb():
            options = {"maxiter": 10**6, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-14}
            minimize(
                self.evaluate, self.w, jac=True, method="L-BFGS-B", callback=advance,
                options=options,
            )  # fmt: skip

    def evaluate(self, w):
        margins = self.X @ w
        if self.loss == "squared":
            slopes = margins - self.y
            losses = 0.5 * slopes**2
        else:
            losses = np.logaddexp(0.0, -self.y * margins)
            slopes = -self.y * expit(-self.y * margins)
        lam = np.empty_like(losses)
        lam[np.argsort(losses)] = self.sigma
        value = lam @ losses + 0.5 * self.mu * (w @ w)
        return value, self.X.T @ (lam * slopes) + self.mu * w

    def get_result(self):
        return {"w": self.w}
