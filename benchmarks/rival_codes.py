"""Other people's codes behind one small interface, for `benchmarks.rivals`.

A code takes a `Task`, says whether it can state it, and gives back a function from one of its own
settings to parameters (the intercept last). What it returns is judged by sorel's objective of the
task, never by its own. Everything is imported when it is first asked for.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, NonlinearConstraint, minimize
from scipy.special import expit

import sorel
from sorel.losses import Huber

Fit = Callable[[Any], np.ndarray]

# A conic solver, and an interior-point method in Python, are out of their range beyond these rows.
CONIC_ROWS, SORTED_CONIC_ROWS, EPIGRAPH_ROWS = 10_000, 250, 500
# Codes that step through single samples in Python take minutes beyond this.
INTERPRETED_ROWS = 900
DELTA = 1.35


@dataclass(frozen=True, eq=False)
class Task:
    """One problem: risk of the losses + l2/2 |w|^2 + l1 |w|_1, or over the simplex."""

    name: str
    X: np.ndarray
    y: np.ndarray
    risk: sorel.risks.Risk
    loss: str = "squared"
    l2: float = 0.0
    l1: float = 0.0
    intercept: bool = False
    simplex: bool = False

    @cached_property
    def problem(self) -> sorel.Problem:
        penalty: Any = sorel.L2(self.l2)
        if self.simplex:
            penalty = sorel.Simplex(self.l2)
        elif self.l1 > 0.0:
            penalty = sorel.ElasticNet(self.l2, self.l1)
        loss = Huber(DELTA) if self.loss == "huber" else self.loss
        return sorel.Problem(
            self.X, self.y, risk=self.risk, loss=loss, penalty=penalty, fit_intercept=self.intercept
        )

    @property
    def mean(self) -> bool:
        return isinstance(self.risk, sorel.Mean)

    @property
    def cvar(self) -> bool:
        return isinstance(self.risk, sorel.CVaR)

    @property
    def smooth(self) -> bool:
        """Whether the penalty is l2 alone."""
        return self.l1 == 0.0 and not self.simplex

    @property
    def level(self) -> float:
        """alpha of CVaR; 1 for the mean."""
        return self.risk.alpha if isinstance(self.risk, sorel.CVaR) else 1.0

    def split(self, w: np.ndarray) -> tuple[np.ndarray, float]:
        """Coefficients and intercept."""
        return (w[:-1], float(w[-1])) if self.intercept else (w, 0.0)

    def join(self, coef: Any, intercept: Any = 0.0) -> np.ndarray:
        coef = np.ravel(np.asarray(coef, dtype=float))
        return np.append(coef, np.ravel(intercept)[0]) if self.intercept else coef

    @property
    def size(self) -> int:
        return self.X.shape[1] + self.intercept


@dataclass(frozen=True)
class Code:
    """Somebody's code.

    Attributes
    ----------
    name : str
    modules : tuple of str
        What must be importable.
    settings : sequence
        Its own settings, the cheapest first; one of them is the best for each accuracy.
    states : callable
        Whether it can state a task.
    prepare : callable
        From a task to the function that fits with a setting; what is built here is not timed.
    note : str
        What a reader should know.
    """

    name: str
    modules: tuple[str, ...]
    settings: Sequence[Any]
    states: Callable[[Task], bool]
    prepare: Callable[[Task], Fit]
    note: str = ""
    outside: str = field(default="")

    def missing(self) -> list[str]:
        """Modules that are not there."""
        return [name for name in self.modules if not _found(name)]


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class Plain:
    """The objective in NumPy as a user writes it: sort, weigh, differentiate."""

    def __init__(self, task: Task) -> None:
        self.task, self.n = task, len(task.y)
        self.sigma = np.full(self.n, 1.0 / self.n) if task.mean else task.risk.weights(self.n)
        y = task.y
        if task.loss == "logistic":
            y = np.where(y == np.max(y), 1.0, -1.0)
        self.y = y

    def losses(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Losses, first and second derivatives in the margin."""
        coef, b = self.task.split(w)
        z, y = self.task.X @ coef + b, self.y
        if self.task.loss == "squared":
            return 0.5 * (z - y) ** 2, z - y, np.ones_like(z)
        if self.task.loss == "logistic":
            p = expit(-y * z)
            return np.logaddexp(0.0, -y * z), -y * p, p * (1.0 - p)
        if self.task.loss == "huber":
            r = np.clip(z - y, -DELTA, DELTA)
            return r * (z - y) - 0.5 * r * r, r, (np.abs(z - y) <= DELTA).astype(float)
        if self.task.loss == "poisson":
            mean = np.exp(z)
            constant = np.where(y > 0.0, y * np.log(np.where(y > 0.0, y, 1.0)), 0.0) - y
            return mean - y * z + constant, mean - y, mean
        return y - z, -np.ones_like(z), np.zeros_like(z)

    def __call__(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        losses, slopes, _ = self.losses(w)
        lam = self.sigma
        if not self.task.mean:
            lam = np.empty(self.n)
            lam[np.argsort(losses, kind="stable")] = self.sigma
        coef, _ = self.task.split(w)
        value = float(lam @ losses + 0.5 * self.task.l2 * (coef @ coef))
        weighted = lam * slopes
        gradient = self.task.X.T @ weighted + self.task.l2 * coef
        return value, self.task.join(gradient, weighted.sum())

    def design(self) -> np.ndarray:
        ones = np.ones((self.n, 1))
        return np.hstack([self.task.X, ones]) if self.task.intercept else self.task.X

    def ridge(self) -> np.ndarray:
        return np.diag(self.task.join(np.full(self.task.X.shape[1], self.task.l2)))


def _sorel(task: Task) -> Fit:
    def fit(tol: float) -> np.ndarray:
        return sorel.solve(task.problem, tol=tol, max_passes=10**6, max_seconds=60.0).w

    return fit


def _lbfgs(task: Task) -> Fit:
    objective = Plain(task)

    def fit(evaluations: int) -> np.ndarray:
        options = {"maxiter": evaluations, "maxfun": evaluations, "ftol": 1e-16, "gtol": 1e-14}
        start = np.zeros(task.size)
        return minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x

    return fit


def _trust_constr(task: Task) -> Fit:
    return _trust_mean(task) if task.mean else _trust_epigraph(task)


def _trust_mean(task: Task) -> Fit:
    objective = Plain(task)
    A, ridge = objective.design(), objective.ridge()

    def hessian(w: np.ndarray) -> np.ndarray:
        return (A.T * (objective.losses(w)[2] / objective.n)) @ A + ridge

    def fit(accuracy: float) -> np.ndarray:
        return minimize(
            objective, np.zeros(task.size), jac=True, hess=hessian, method="trust-constr",
            options={"gtol": accuracy, "xtol": 1e-14, "maxiter": 1000},
        ).x  # fmt: skip

    return fit


def _trust_epigraph(task: Task) -> Fit:
    """CVaR as min t + sum u / (n alpha) + penalty with u >= losses - t and u >= 0."""
    from scipy.sparse import csr_array, eye_array, hstack, vstack

    objective = Plain(task)
    A, ridge, n, p = objective.design(), objective.ridge(), objective.n, task.size
    weight = 1.0 / (n * task.level)

    def in_corner(block: np.ndarray) -> Any:
        top = hstack([csr_array(block), csr_array((p, n + 1))])
        return vstack([top, csr_array((n + 1, p + n + 1))])

    slope = np.concatenate([np.zeros(p), [1.0], np.full(n, weight)])
    corner = in_corner(ridge)
    tail = hstack([csr_array(np.ones((n, 1))), eye_array(n)])

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        pull = np.concatenate([ridge @ x[:p], np.zeros(n + 1)])
        return float(slope @ x + 0.5 * x @ pull), slope + pull

    def curvature(x: np.ndarray, v: np.ndarray) -> Any:
        block = -(A.T * (v * objective.losses(x[:p])[2])) @ A
        return in_corner(block)

    constraint = NonlinearConstraint(
        lambda x: x[p] + x[p + 1 :] - objective.losses(x[:p])[0],
        0.0, np.inf,
        jac=lambda x: hstack([csr_array(-objective.losses(x[:p])[1][:, None] * A), tail]).tocsr(),
        hess=curvature,
    )  # fmt: skip
    bounds = Bounds(np.concatenate([np.full(p + 1, -np.inf), np.zeros(n)]), np.inf)
    losses = objective.losses(np.zeros(p))[0]
    start = np.concatenate([np.zeros(p + 1), losses + 1.0])

    def fit(accuracy: float) -> np.ndarray:
        options = {
            "gtol": accuracy, "xtol": 1e-14, "barrier_tol": accuracy, "maxiter": 500,
            "sparse_jacobian": True,
        }  # fmt: skip
        result = minimize(
            value, start, jac=True, hess=lambda x: corner, method="trust-constr",
            constraints=[constraint], bounds=bounds, options=options,
        )  # fmt: skip
        return np.asarray(result.x[:p])

    return fit


def _clarabel(task: Task) -> Fit:
    import cvxpy as cp

    n, d = task.X.shape
    w, b = cp.Variable(d), cp.Variable()
    z = task.X @ w + (b if task.intercept else 0.0)
    y = Plain(task).y
    if task.loss == "squared":
        losses = 0.5 * cp.square(z - y)
    elif task.loss == "logistic":
        losses = cp.logistic(-cp.multiply(y, z))
    elif task.loss == "huber":
        losses = 0.5 * cp.huber(z - y, DELTA)
    elif task.loss == "poisson":
        losses = cp.exp(z) - cp.multiply(y, z)
    else:
        losses = y - z
    if task.mean:
        risk = cp.sum(losses) / n
    elif task.cvar:
        t = cp.Variable()
        risk = t + cp.sum(cp.pos(losses - t)) / (n * task.level)
    else:
        risk = cp.dotsort(losses, task.risk.weights(n))
    penalty = 0.5 * task.l2 * cp.sum_squares(w) + task.l1 * cp.norm1(w)
    limits = [w >= 0.0, cp.sum(w) == 1.0] if task.simplex else []
    problem = cp.Problem(cp.Minimize(risk + penalty), limits)

    def fit(accuracy: float) -> np.ndarray:
        options = {"tol_gap_abs": accuracy, "tol_gap_rel": accuracy, "tol_feas": accuracy}
        problem.solve(solver=cp.CLARABEL, time_limit=60.0, **options)
        if w.value is None:
            raise ArithmeticError(f"Clarabel: {problem.status}")
        coef = np.asarray(w.value)
        if task.simplex:
            coef = np.maximum(coef, 0.0)
            coef = coef / coef.sum()
        return task.join(coef, b.value if task.intercept else 0.0)

    return fit


def _cvqp(task: Task) -> Fit:
    """CVaR <= kappa is its form: t joins the variables, and CVaR(-R w - t) <= 0."""
    import cvqp
    from scipy.sparse import csc_array

    n, d = task.X.shape
    A = np.hstack([-task.X, -np.ones((n, 1))])
    # One unit of t is the size of a loss, so that the residuals of all variables are comparable.
    unit = float(np.abs(task.X).mean())
    A[:, -1] *= unit
    P = np.diag(np.append(np.full(d, task.l2), 0.0))
    q = np.append(np.zeros(d), unit)
    B = np.vstack([np.append(np.ones(d), 0.0), np.hstack([np.eye(d), np.zeros((d, 1))])])
    low, high = np.append(1.0, np.zeros(d)), np.append(1.0, np.full(d, np.inf))

    def fit(accuracy: float) -> np.ndarray:
        settings = cvqp.Settings(abstol=accuracy, reltol=accuracy, time_limit=60.0)
        result = cvqp.solve(
            P, q, A, csc_array(B), low, high, 1.0 - task.level, 0.0, settings=settings
        )
        coef = np.maximum(result.x[:d], 0.0)
        return np.asarray(coef / coef.sum())

    return fit


def _ridge(task: Task) -> Fit:
    from sklearn.linear_model import Ridge

    def fit(solver: str) -> np.ndarray:
        model = Ridge(
            alpha=len(task.y) * task.l2, fit_intercept=task.intercept, solver=solver, tol=1e-12
        ).fit(task.X, task.y)
        return task.join(model.coef_, model.intercept_)

    return fit


def _logistic(task: Task) -> Fit:
    from sklearn.linear_model import LogisticRegression

    def fit(setting: tuple[str, float]) -> np.ndarray:
        model = LogisticRegression(
            C=1.0 / (len(task.y) * task.l2), fit_intercept=task.intercept, solver=setting[0],
            tol=setting[1], max_iter=10_000,
        ).fit(task.X, task.y)  # fmt: skip
        return task.join(model.coef_, model.intercept_)

    return fit


def _elastic_net(task: Task) -> Fit:
    from sklearn.linear_model import ElasticNet

    def fit(tol: float) -> np.ndarray:
        model = ElasticNet(
            alpha=task.l1 + task.l2, l1_ratio=task.l1 / (task.l1 + task.l2), tol=tol,
            fit_intercept=task.intercept, max_iter=10**6,
        ).fit(task.X, task.y)  # fmt: skip
        return task.join(model.coef_, model.intercept_)

    return fit


def _poisson(task: Task) -> Fit:
    from sklearn.linear_model import PoissonRegressor

    def fit(setting: tuple[str, float]) -> np.ndarray:
        model = PoissonRegressor(
            alpha=task.l2, fit_intercept=task.intercept, solver=setting[0], tol=setting[1],
            max_iter=10_000,
        ).fit(task.X, task.y)  # fmt: skip
        return task.join(model.coef_, model.intercept_)

    return fit


def _huber(task: Task) -> Fit:
    from sklearn.linear_model import HuberRegressor

    def fit(tol: float) -> np.ndarray:
        # Its loss is twice ours at scale 1, and its sum is not divided by n.
        model = HuberRegressor(
            epsilon=DELTA, alpha=len(task.y) * task.l2, fit_intercept=task.intercept, tol=tol,
            max_iter=10_000,
        ).fit(task.X, task.y)  # fmt: skip
        return task.join(model.coef_, model.intercept_)

    return fit


def _skglm(task: Task) -> Fit:
    if task.loss == "huber":
        return _skglm_huber(task)
    from skglm import ElasticNet

    def fit(tol: float) -> np.ndarray:
        model = ElasticNet(
            alpha=task.l1 + task.l2, l1_ratio=task.l1 / (task.l1 + task.l2), tol=tol,
            fit_intercept=task.intercept, max_iter=10_000,
        ).fit(task.X, task.y)  # fmt: skip
        return task.join(model.coef_, model.intercept_)

    return fit


def _skglm_huber(task: Task) -> Fit:
    from skglm import GeneralizedLinearEstimator
    from skglm.datafits import Huber as Datafit
    from skglm.penalties import L1_plus_L2
    from skglm.solvers import AndersonCD

    X = np.asfortranarray(task.X)

    def fit(tol: float) -> np.ndarray:
        solver = AndersonCD(max_iter=10_000, tol=tol, fit_intercept=task.intercept)
        model = GeneralizedLinearEstimator(Datafit(DELTA), L1_plus_L2(task.l2, 0.0), solver)
        model.fit(X, task.y)
        return task.join(model.coef_, model.intercept_)

    return fit


def _drlearn(optim: str) -> Callable[[Task], Fit]:
    def prepare(task: Task) -> Fit:
        from drlearn import make_esrm_spectrum, make_extremile_spectrum, make_superquantile_spectrum
        from drlearn.optim import minimize_lsvrg, minimize_prospect
        from drlearn.spectral_risk import make_spectral_risk_measure_oracle

        n = len(task.y)
        if task.cvar:
            spectrum = make_superquantile_spectrum(n, 1.0 - task.level)
        elif isinstance(task.risk, sorel.ESRM):
            spectrum = make_esrm_spectrum(n, task.risk.rho)
        else:
            spectrum = make_extremile_spectrum(n, task.risk.r)
        X, y = Plain(task).design()[:, ::-1].copy(), Plain(task).y
        loss = "squared_error"
        if task.loss == "logistic":
            loss, y = "binary_cross_entropy", (y > 0.0).astype(int)
        run = {"prospect": minimize_prospect, "lsvrg": minimize_lsvrg}[optim]

        def fit(setting: tuple[int, float]) -> np.ndarray:
            epochs, shift = setting
            oracle = make_spectral_risk_measure_oracle(spectrum, "chi2", shift)
            result = run(
                loss, oracle, X, y, fit_intercept=task.intercept, weight_decay=task.l2,
                max_iter=epochs * n, eval_interval=5 * n, stopping_tol=1e-12, shift_cost=shift,
            )  # fmt: skip
            # Its intercept comes first, and the columns were turned round to put ours there.
            return np.asarray(result["primal_solution"])[::-1].copy()

        return fit

    return prepare


def _prospect_repository(optim: str) -> Callable[[Task], Fit]:
    def prepare(task: Task) -> Fit:
        import torch
        from src.optim import baselines, objectives, prospect

        torch.set_num_threads(1)
        n = len(task.y)
        weights = {
            "CVaR": lambda m: objectives.get_superquantile_weights(m, 1.0 - task.level),
            "ESRM": lambda m: objectives.get_esrm_weights(m, task.risk.rho),
            "Extremile": lambda m: objectives.get_extremile_weights(m, task.risk.r),
        }[type(task.risk).__name__]
        X, y = torch.tensor(task.X), torch.tensor(np.asarray(task.y, dtype=float))
        loss = "squared_error"
        if task.loss == "logistic":
            loss, y = "binary_cross_entropy", torch.tensor((Plain(task).y > 0.0).astype(float))

        def fit(setting: tuple[float, int]) -> np.ndarray:
            step, epochs = setting
            objective = objectives.Objective(
                X, y, weights, loss=loss, l2_reg=n * task.l2, shift_cost=0.0, penalty="l2",
                autodiff=False,
            )  # fmt: skip
            if optim == "prospect":
                method = prospect.Prospect(objective, lrp=step, shift_cost=0.0, penalty="l2")
            else:
                method = baselines.SmoothedLSVRG(
                    objective, lr=step, uniform=True, smooth_coef=0.0, smoothing="l2"
                )
            for _ in range(epochs):
                method.start_epoch()
                for _ in range(method.get_epoch_len()):
                    method.step()
                method.end_epoch()
            return np.asarray(method.weights.detach().numpy())

        return fit

    return prepare


def _spqr(task: Task) -> Fit:
    from spqr import DRLinearRegression

    def fit(smoothing: float) -> np.ndarray:
        # Its squared loss has no half.
        model = DRLinearRegression(
            p=1.0 - task.level, mu=smoothing, lmbda=2.0 * task.l2, fit_intercept=task.intercept
        )
        model.fit(task.X, task.y)
        return task.join(model.coef_, model.intercept_)

    return fit


def _sqwash(task: Task) -> Fit:
    import torch
    from sqwash import reduce_superquantile

    torch.set_num_threads(1)
    A = torch.tensor(Plain(task).design())
    y = torch.tensor(np.asarray(Plain(task).y, dtype=float))
    penalised = torch.tensor(task.join(np.ones(task.X.shape[1])))

    def fit(iterations: int) -> np.ndarray:
        w = torch.zeros(task.size, dtype=torch.float64, requires_grad=True)
        steps = torch.optim.LBFGS(
            [w], max_iter=iterations, max_eval=2 * iterations, line_search_fn="strong_wolfe",
            tolerance_grad=1e-14, tolerance_change=1e-16,
        )  # fmt: skip

        def closure() -> Any:
            steps.zero_grad()
            z = A @ w
            if task.loss == "squared":
                losses = 0.5 * (z - y) ** 2
            else:
                losses = torch.nn.functional.softplus(-y * z)
            value = reduce_superquantile(losses, superquantile_tail_fraction=task.level)
            value = value + 0.5 * task.l2 * ((w * penalised) ** 2).sum()
            value.backward()
            return value

        steps.step(closure)
        return np.asarray(w.detach().numpy())

    return fit


def _dro(task: Task) -> Fit:
    from dro.linear_model.cvar_dro import CVaRDRO

    kind = {"squared": "ols", "logistic": "logistic"}[task.loss]

    def fit(solver: str) -> np.ndarray:
        model = CVaRDRO(
            task.X.shape[1], model_type=kind, fit_intercept=task.intercept, solver=solver,
            alpha=task.level,
        )  # fmt: skip
        found = model.fit(task.X, Plain(task).y)
        return task.join(found["theta"], found["b"] if task.intercept else 0.0)

    return fit


def _mean(*losses: str) -> Callable[[Task], bool]:
    return lambda task: task.mean and task.smooth and task.loss in losses


def _spectral(task: Task) -> bool:
    """What the stochastic codes take, at sizes where a Python loop over samples ends."""
    return (
        not task.mean
        and task.smooth
        and task.loss in ("squared", "logistic")
        and len(task.y) <= INTERPRETED_ROWS
    )


def _conic(task: Task) -> bool:
    rows = CONIC_ROWS if task.mean or task.cvar else SORTED_CONIC_ROWS
    return len(task.y) <= rows


EVALUATIONS = tuple(dict.fromkeys(round(4 * 1.2**k) for k in range(39)))
STEPS_AND_EPOCHS = tuple(
    (step, epochs) for epochs in (10, 50, 200, 1000) for step in (1e-3, 3e-3, 1e-2, 3e-2)
)
ACCURACIES = (1e-4, 1e-8, 1e-10, 1e-12)
CODES = (
    Code("sorel (auto)", (), (1e-3, 1e-6, 1e-9), lambda task: True, _sorel,
         "stops at a certified relative gap; the others do not know their error"),
    Code("scipy L-BFGS-B", (), EVALUATIONS, lambda task: task.smooth, _lbfgs,
         "on the nonsmooth objective, cut at 4, 5, 6, 7, 8, 10, ..., 4083 evaluations"),
    Code("scipy trust-constr", (), (1e-4, 1e-8, 1e-12),
         lambda task: task.smooth and (task.mean or (task.cvar and len(task.y) <= EPIGRAPH_ROWS)),
         _trust_constr, "exact Hessians; CVaR in its epigraph form"),
    Code("cvxpy + Clarabel", ("cvxpy", "clarabel"), ACCURACIES, _conic, _clarabel,
         "epigraph form of CVaR, `dotsort` for other spectra; the model is built before the clock"),
    Code("CVQP", ("cvqp",), (1e-3, 1e-5, 1e-7, 1e-9),
         lambda task: task.simplex and task.cvar and task.loss == "linear", _cvqp,
         "CVaR is its constraint: minimised by one more variable"),
    Code("scikit-learn Ridge", ("sklearn",), ("cholesky", "svd", "lsqr"), _mean("squared"), _ridge),
    Code("scikit-learn LogisticRegression", ("sklearn",),
         (("newton-cholesky", 1e-4), ("lbfgs", 1e-4), ("newton-cholesky", 1e-10), ("lbfgs", 1e-10)),
         _mean("logistic"), _logistic),
    Code("scikit-learn ElasticNet", ("sklearn",), (1e-4, 1e-8, 1e-12),
         lambda task: task.mean and task.loss == "squared" and task.l1 > 0.0, _elastic_net),
    Code("scikit-learn PoissonRegressor", ("sklearn",),
         (("newton-cholesky", 1e-4), ("lbfgs", 1e-4), ("newton-cholesky", 1e-10), ("lbfgs", 1e-10)),
         _mean("poisson"), _poisson),
    Code("scikit-learn HuberRegressor", ("sklearn",), (1e-5, 1e-10), _mean("huber"), _huber,
         "fits a scale along with the coefficients: another objective"),
    Code("skglm", ("skglm",), (1e-4, 1e-8, 1e-12),
         lambda task: task.mean and (
             (task.loss == "squared" and task.l1 > 0.0)
             or (task.loss == "huber" and task.smooth)
         ), _skglm),
    Code("drlearn (Prospect)", ("drlearn", "absl"),
         ((20, 1e-6), (100, 1e-7), (400, 1e-8)), _spectral, _drlearn("prospect"),
         "chooses its step itself; its smoothing is set low, since 0 fails", "drlearn"),
    Code("drlearn (LSVRG)", ("drlearn", "absl"),
         ((20, 1e-6), (100, 1e-7), (400, 1e-8)), _spectral, _drlearn("lsvrg"),
         "chooses its step itself; its smoothing is set low, since 0 fails", "drlearn"),
    Code("Prospect (authors')", ("src.optim.prospect", "torch"), STEPS_AND_EPOCHS,
         lambda task: _spectral(task) and not task.intercept, _prospect_repository("prospect"),
         "the best of four steps and four lengths", "prospect"),
    Code("LSVRG (authors')", ("src.optim.baselines", "torch"), STEPS_AND_EPOCHS,
         lambda task: _spectral(task) and not task.intercept, _prospect_repository("lsvrg"),
         "the best of four steps and four lengths", "prospect"),
    Code("SPQR", ("spqr",), (1.0, 1e-2, 1e-4, 1e-6),
         lambda task: task.cvar and task.smooth and task.loss == "squared"
         and len(task.y) <= INTERPRETED_ROWS, _spqr,
         "smoothed, the smaller the better, with L-BFGS; penalises the intercept", "spqr"),
    Code("sqwash + torch L-BFGS", ("sqwash", "torch"), EVALUATIONS[::4],
         lambda task: task.cvar and task.smooth and task.loss in ("squared", "logistic"), _sqwash),
    Code("dro", ("dro", "torch", "torchattacks", "xgboost", "lightgbm", "cvxpy"), ("CLARABEL",),
         lambda task: task.cvar and task.smooth and task.l2 <= 1e-8
         and task.loss in ("squared", "logistic"), _dro,
         "has no penalty: it is given problems whose penalty is 1e-9"),
)  # fmt: skip


def add_checkout(argument: str) -> str:
    """Make the code of a checkout importable, from "name=folder"; return its name."""
    name, _, folder = argument.partition("=")
    path = Path(folder).expanduser().resolve()
    known = sorted({code.outside for code in CODES if code.outside})
    if name not in known:
        raise SystemExit(f"--with takes one of {', '.join(known)} and =FOLDER, got {argument!r}")
    if not path.is_dir():
        raise SystemExit(f"--with {name}: there is no folder {path}")
    sys.path.append(str(path / "src" if name == "drlearn" else path))
    return name


def quiet(action: Callable[[], Any]) -> Any:
    """The result, without what other people's codes warn of."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return action()
