"""One neutral judge: F(w), its distance to a certified optimum, and a duality gap.

The value is computed here from the definition, with NumPy alone. The optimum is certified to a
relative gap of 1e-12 before any solver runs, and the suboptimality is measured against its lower
bound: it cannot be negative beyond rounding.
"""

import numpy as np
from benchopt import BaseObjective

import sorel

CERTIFIED = 1e-12


class Objective(BaseObjective):
    name = "Spectral risk minimization"
    min_benchopt_version = "1.7"
    requirements = ["pip::sorel"]
    parameters = {
        # sorel's names, with an underscore: benchopt's selectors cannot hold a colon.
        "risk": ["cvar_0.5", "esrm_2", "extremile_2.5"],
        # The penalty is strength / n * |w|^2 / 2.
        "strength": [1.0],
    }

    def set_data(self, X, y, loss):
        self.X, self.y, self.loss = X, y, loss
        n = len(y)
        self.mu = self.strength / n
        risk = sorel.parse_risk(self.risk.replace("_", ":"))
        self.sigma = risk.weights(n)
        self.problem = sorel.Problem(X, y, risk=risk, loss=loss, penalty=sorel.L2(self.mu))
        optimum = sorel.solve(self.problem, tol=CERTIFIED, max_passes=1e6)
        if not optimum.relative_gap <= CERTIFIED:
            raise RuntimeError(
                f"no optimum certified to {CERTIFIED:g}, so nothing to measure against: "
                f"{optimum.status}"
            )
        self.lower_bound = optimum.dual

    def get_objective(self):
        return {
            "X": self.X,
            "y": self.y,
            "loss": self.loss,
            "risk": self.risk.replace("_", ":"),
            "sigma": self.sigma,
            "mu": self.mu,
        }

    def evaluate_result(self, w, weights=None):
        """Score `w`, with the weighting of the samples that the solver offers as proof, if any."""
        w = np.asarray(w, dtype=np.float64)
        losses = self._losses(w)
        value = self.sigma @ np.sort(losses) + 0.5 * self.mu * (w @ w)
        if not np.isfinite(value):
            return {"value": np.inf, "suboptimality": np.inf, "duality_gap": np.inf}
        return {
            "value": float(value),
            "suboptimality": float(value - self.lower_bound),
            "duality_gap": self._gap(w, losses, weights),
        }

    def _losses(self, w):
        with np.errstate(over="ignore", invalid="ignore"):
            margins = self.X @ w
            if self.loss == "squared":
                return 0.5 * (margins - self.y) ** 2
            return np.logaddexp(0.0, -self.y * margins)

    def _gap(self, w, losses, weights):
        """The smallest gap that proves something: by the order of the losses, or by `weights`."""
        by_rank = np.empty_like(losses)
        by_rank[np.argsort(losses, kind="stable")] = self.sigma
        offers = [by_rank]
        if weights is not None and np.all(np.isfinite(weights)):
            offers.append(sorel.project_permutahedron(weights, self.sigma))
        return min(self.problem.certificate(w, lam).gap for lam in offers)

    def get_one_result(self):
        return {"w": np.zeros(self.X.shape[1])}
