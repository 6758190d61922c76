"""Random problems, a brute-force objective and a conic solver, shared by several test files."""

import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.optimize import linprog
from scipy.special import xlogy

import sorel
from sorel.losses import Huber

RISKS = {
    "mean": sorel.Mean(),
    "cvar": sorel.CVaR(0.3),
    "esrm": sorel.ESRM(2.0),
    "extremile": sorel.Extremile(2.5),
    "max": sorel.Max(),
    "mixture": sorel.Mixture([sorel.Mean(), sorel.CVaR(0.15)], [0.4, 0.6]),
    "custom": sorel.CustomSpectrum([0.0, 1.0, 1.0, 4.0]),
}
# All losses of the package that have a minimum, and those with a conic form below.
SERVED = [name for name, loss in sorel.losses.LOSSES.items() if not loss.affine]
LOSSES = ["squared", "huber", "logistic", "squared_hinge", "multinomial"]
PENALTIES = {
    "l2": sorel.L2(0.05),
    "elastic": sorel.ElasticNet(0.05, 0.1),
    "nonnegative": sorel.NonNegative(0.05),
    "box": sorel.Box(0.05, -0.2, [0.3, 0.1, 0.5]),
    "simplex": sorel.Simplex(0.05),
}
N, D, CLASSES = 13, 3, 3
HUBER_DELTA = 0.7
PAGES = Path(__file__).resolve().parents[1] / "docs" / "extending"


@cache
def run_page(name: str) -> dict[str, Any]:
    """Run the code of a page under docs/extending, from top to bottom; the names it defines."""
    page = PAGES / f"{name}.md"
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M))
    names: dict[str, Any] = {"__name__": f"{name}_page"}
    exec(compile(code, str(page), "exec"), names)
    return names


def make_loss(name: str) -> Any:
    return Huber(HUBER_DELTA) if name == "huber" else name


def make_data(loss: str, n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets: noisy enough that no class is separable, heavy tails for regression."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d)
    if loss == "poisson":
        return X, rng.poisson(np.exp(0.5 + 0.5 * z)).astype(float)
    if loss == "gamma":
        return X, np.exp(0.5 * z) * rng.gamma(2.0, size=n)
    if loss == "multinomial":
        y = np.argmax(rng.gumbel(size=(n, CLASSES)) + X @ rng.standard_normal((d, CLASSES)), axis=1)
        y[:CLASSES] = np.arange(CLASSES)
        return X, y
    if not sorel.losses.LOSSES[loss].is_classifier:
        return X, z + 0.3 + 0.5 * rng.standard_t(3, n)
    y = np.where(z + rng.logistic(size=n) > 0, 1, -1)
    y[:2] = [-1, 1]
    return X, y


def quietly(problem: sorel.Problem, *args: Any, **options: Any) -> sorel.Result:
    """Solve, whether the tolerance is reached or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        return sorel.solve(problem, *args, **options)


def certified(
    problem: sorel.Problem, solver: Any = "newton", tol: float = 1e-9, **options: Any
) -> sorel.Result:
    """Solve without a warning, and check the proof from outside the run."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sorel.solve(problem, solver, tol=tol, **options)
    gap = problem.certificate(result.w, result.weights).relative_gap
    assert gap <= 1.0001 * tol or "perfect fit" in result.status
    return result


class Case(NamedTuple):
    """One small problem, by the names of its parts."""

    risk: str
    loss: str
    penalty: str
    intercept: bool
    weighted: bool
    seed: int

    def __str__(self) -> str:
        extras = "-b" * self.intercept + "-omega" * self.weighted
        return f"{self.risk}-{self.loss}-{self.penalty}{extras}"

    def arguments(self) -> dict[str, Any]:
        X, y = make_data(self.loss, N, D, self.seed)
        weight = np.random.default_rng(self.seed).integers(1, 4, N).astype(float)
        return {
            "X": X, "y": y, "risk": RISKS[self.risk], "loss": make_loss(self.loss),
            "penalty": PENALTIES[self.penalty], "fit_intercept": self.intercept,
            "sample_weight": weight if self.weighted else None,
        }  # fmt: skip

    def problem(self) -> sorel.Problem:
        return sorel.Problem(**self.arguments())


# Every risk with every loss and penalty; intercept and sample weights alternate.
CASES = [
    Case(risk, loss, penalty, (j + k) % 2 == 1, (i + j + k) % 3 == 0, (5 * i + j) * len(RISKS) + k)
    for i, loss in enumerate(LOSSES)
    for j, penalty in enumerate(PENALTIES)
    for k, risk in enumerate(RISKS)
]


def brute_losses(loss: str, X: Any, y: Any, w: Any, fit_intercept: bool) -> np.ndarray:
    """Losses from their textbook formulas; labels are -1 and 1, or 0 .. K-1."""
    X = np.asarray(X, dtype=float)
    z = X @ w[: X.shape[1]] + (w[-1] if fit_intercept else 0.0)
    if loss == "squared":
        return 0.5 * (z - y) ** 2
    if loss == "huber":
        r = np.abs(z - y)
        return np.where(r <= HUBER_DELTA, 0.5 * r**2, HUBER_DELTA * (r - 0.5 * HUBER_DELTA))
    if loss == "logistic":
        return np.logaddexp(0.0, -y * z)
    if loss == "squared_hinge":
        return np.maximum(0.0, 1.0 - y * z) ** 2
    if loss == "poisson":
        return xlogy(y, y) - y * z - y + np.exp(z)
    if loss == "gamma":
        return y * np.exp(-z) - 1.0 + z - np.log(y)
    return np.logaddexp.reduce(z, axis=1) - z[np.arange(len(z)), y]


def brute_objective(case: Case, w: np.ndarray) -> float:
    """F(w) from a sort; whole-number weights are rows repeated."""
    given = case.arguments()
    losses = brute_losses(case.loss, given["X"], given["y"], w, case.intercept)
    if case.weighted:
        losses = np.repeat(losses, given["sample_weight"].astype(int))
    g = 0.5 * PENALTIES[case.penalty].l2 * np.sum(w[:D] ** 2)
    if case.penalty == "elastic":
        g += 0.1 * np.sum(np.abs(w[:D]))
    return given["risk"].weights(len(losses)) @ np.sort(losses) + g


class Reference(NamedTuple):
    """Optimum of a conic solver: parameters, multipliers of the losses, F there."""

    w: np.ndarray
    lam: np.ndarray
    value: float


def conic_losses(loss: str, Z: Any, y: Any) -> Any:
    import cvxpy as cp

    z = Z[:, 0]
    if loss == "squared":
        return 0.5 * cp.square(z - y)
    if loss == "huber":
        return 0.5 * cp.huber(z - y, HUBER_DELTA)
    if loss == "logistic":
        return cp.logistic(cp.multiply(-y, z))
    if loss == "squared_hinge":
        return cp.square(cp.pos(1.0 - cp.multiply(y, z)))
    return cp.log_sum_exp(Z, axis=1) - cp.sum(cp.multiply(np.eye(Z.shape[1])[y], Z), axis=1)


def conic_risk(risk: Any, losses: Any) -> Any:
    """A nonnegative combination of sums of the k largest losses, less a share of the mean."""
    import cvxpy as cp

    n = losses.shape[0]
    if isinstance(risk, sorel.Deviation):
        return conic_risk(risk.risk, losses) - risk.share * cp.sum(losses) / n
    rises = enumerate(np.diff(risk.weights(n), prepend=0.0))
    return sum(
        rise * (cp.sum(losses) if k == 0 else cp.sum_largest(losses, n - k))
        for k, rise in rises
        if rise > 1e-15
    )


def conic_solve(objective: Any, constraints: list[Any]) -> float:
    import cvxpy as cp

    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last digits may be out of reach
        return cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL, **tight)


def conic_reference(
    X: Any, y: Any, risk: Any, loss: str, intercept: bool, penalize: Any, repeats: Any = 1
) -> Reference:
    """The optimum by cvxpy and Clarabel; `penalize` turns coefficients into g and constraints."""
    import cvxpy as cp

    n, outputs = len(X), CLASSES if loss == "multinomial" else 1
    coef, free = cp.Variable((X.shape[1], outputs)), cp.Variable((1, outputs))
    bound = cp.Variable(n)
    Z = X @ coef + (np.ones((n, 1)) @ free if intercept else 0.0)
    g, constraints = penalize(coef)
    below = conic_losses(loss, Z, y) <= bound
    spread = np.repeat(np.eye(n), repeats, axis=0) @ bound
    value = conic_solve(conic_risk(risk, spread) + g, [below, *constraints])
    w = np.vstack([coef.value, free.value]) if intercept else coef.value
    lam = np.maximum(below.dual_value, 0.0)
    return Reference(w if outputs > 1 else w[:, 0], lam / lam.sum(), value)


def conic_penalty(name: str, coef: Any) -> Any:
    """A penalty of the table above: its value, and constraints."""
    import cvxpy as cp

    g = 0.5 * PENALTIES[name].l2 * cp.sum_squares(coef)
    if name == "elastic":
        return g + 0.1 * cp.sum(cp.abs(coef)), []
    if name == "box":
        upper = np.repeat([[0.3], [0.1], [0.5]], coef.shape[1], axis=1)
        return g, [coef >= -0.2, coef <= upper]
    constraints = [coef >= 0] if name in ("nonnegative", "simplex") else []
    return g, constraints + [cp.sum(coef, axis=0) == 1] * (name == "simplex")


@cache
def conic_optimum(case: Case) -> Reference:
    """The optimum of a case. Its value is F at a feasible point: not below the true optimum."""
    given = case.arguments()
    repeats = given["sample_weight"].astype(int) if case.weighted else 1
    found = conic_reference(
        given["X"], given["y"], given["risk"], case.loss, case.intercept,
        lambda coef: conic_penalty(case.penalty, coef), repeats,
    )  # fmt: skip
    w = found.w.copy()
    w[:D] = PENALTIES[case.penalty].project(w[:D])
    return Reference(w, found.lam, brute_objective(case, w))


def pinball_optimum(X: Any, y: Any, q: float, alpha: float, weight: Any, intercept: bool) -> float:
    """The least mean pinball loss with its l1 penalty, from the textbook program of n rows."""
    n, d = X.shape
    omega = np.full(n, 1.0 / n) if weight is None else weight / weight.sum()
    eye = scipy.sparse.eye_array(n)
    # w = a - c, a free intercept, residual = u - v
    A = scipy.sparse.hstack([X, -X, np.full((n, 1), float(intercept)), eye, -eye], format="csc")
    cost = np.concatenate([np.full(2 * d, alpha), [0.0], q * omega, (1.0 - q) * omega])
    bounds = [(0, None)] * (2 * d) + [(None, None)] + [(0, None)] * (2 * n)
    return linprog(cost, A_eq=A, b_eq=y, bounds=bounds, method="highs").fun
