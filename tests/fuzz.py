"""Random problems of all kinds, solved with default settings and checked from outside.

What a result claims is compared with formulas in plain NumPy and extended precision that share
nothing with the package: the objective, the dual bound against every parameter vector at hand, the
weights against the risk. Run as ``python tests/fuzz.py --count 10000 --seed 3``. A run that was
broken off goes on where it stopped when it is started again with its seed. Each failure is printed
with a line that makes its problem again, and as the smallest problem found that fails as well. A
new loss, penalty or risk is one more entry of ``LOSSES``, ``PENALTIES`` or ``RISKS``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.sparse

import sorel
from sorel.losses import Huber, Loss

Rng = np.random.Generator
Long = np.longdouble
EPS = float(np.finfo(Long).eps)

# A gap below this share of the loss of the best constant model is that of a perfect fit.
PERFECT = 1e-12

# In units of the loss at zero margins or of squared entries of X and y, what rounding the margins
# leaves of a gap where F is 0, and losses bend.
VANISHING = 1e-24

# What the weights of a thousand samples may miss their set by: sums of them are rounded.
FEASIBLE = 1e-13

# A relative gap above this after the default passes is a miss; so many may be among 10000 problems.
MISS, ALLOWED_MISSES = 1e-5, 20

# Values beyond this are as good as infinite: the package computes with doubles.
OVERFLOW = 1e300


def log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(10.0 ** rng.uniform(np.log10(low), np.log10(high)))


# Losses: what the package gets, which targets it takes, and phi(y, z) from the textbook. Margins
# have one column per output.


class LossPart(NamedTuple):
    argument: Any
    targets: str
    value: Callable[[Any, Any], Any]
    affine: bool = False


def _huber(rng: Rng) -> LossPart:
    delta = log_uniform(rng, 1e-3, 1e3)

    def value(y: Any, z: Any) -> Any:
        r = np.abs(z[:, 0] - y)
        return np.where(r <= delta, r * r / 2, Long(delta) * (r - Long(delta) / 2))

    return LossPart(Huber(delta), "numbers", value)


def _softmax(y: Any, z: Any) -> Any:
    # The other classes are added to the own one, of exponent 0: no digits are lost where it wins.
    own = np.arange(len(y)), y
    rest = z - z[own][:, None]
    rest[own] = -np.inf
    return np.logaddexp.reduce(rest, axis=1, initial=Long(0))


def _exp_excess(t: Any) -> Any:
    """exp(t) - 1 - t, by its series where the difference would lose digits."""
    small = np.where(np.abs(t) < 0.1, t, 0)
    series, term = np.zeros_like(small), np.ones_like(small)
    for k in range(1, 20):
        term = term * small / k
        series = series + (term if k > 1 else 0)
    return np.where(np.abs(t) < 0.1, series, np.expm1(t) - t)


def _poisson(y: Any, z: Any) -> Any:
    log_y = np.log(np.where(y > 0, y, 1).astype(Long))
    return np.where(y > 0, y * _exp_excess(z[:, 0] - log_y), np.exp(z[:, 0]))


class PseudoHuber(Loss):
    """sqrt(1 + r^2) - 1: a loss that the package does not know."""

    name = "pseudo_huber"

    def __repr__(self) -> str:
        return "PseudoHuber()"

    lower_bound, curvature_bound, lipschitz = 0.0, 1.0, 1.0
    translates = True

    def value(self, y: Any, z: Any) -> Any:
        r = z - y
        return r * r / (np.sqrt(1 + r * r) + 1)

    def derivative(self, y: Any, z: Any) -> Any:
        return (z - y) / np.sqrt(1 + (z - y) ** 2)

    def curvature(self, y: Any, z: Any) -> Any:
        return (1 + (z - y) ** 2) ** -1.5


LOSSES: dict[str, Callable[[Rng], LossPart]] = {
    "squared": lambda rng: LossPart("squared", "numbers", lambda y, z: (z[:, 0] - y) ** 2 / 2),
    "huber": _huber,
    "logistic": lambda rng: LossPart(
        "logistic", "signs", lambda y, z: np.logaddexp(Long(0), -y * z[:, 0])
    ),
    "squared_hinge": lambda rng: LossPart(
        "squared_hinge", "signs", lambda y, z: np.maximum(0, 1 - y * z[:, 0]) ** 2
    ),
    "multinomial": lambda rng: LossPart("multinomial", "classes", _softmax),
    "linear": lambda rng: LossPart("linear", "numbers", lambda y, z: y - z[:, 0], affine=True),
    "own": lambda rng: LossPart(
        PseudoHuber(), "numbers", lambda y, z: PseudoHuber().value(y.astype(Long), z[:, 0])
    ),
    "poisson": lambda rng: LossPart("poisson", "counts", _poisson),
    "gamma": lambda rng: LossPart(
        "gamma", "amounts", lambda y, z: _exp_excess(np.log(y.astype(Long)) - z[:, 0])
    ),
}


# Penalties: what the package gets, g on its domain, and the way from rounded coefficients to exact
# ones in the domain.


class PenaltyPart(NamedTuple):
    argument: Any
    value: Callable[[Any], Any]
    inside: Callable[[Any], Any]


def _modulus(rng: Rng, least: float = 1e-9) -> float:
    if least == 0.0 and rng.random() < 0.3:
        return 0.0
    return log_uniform(rng, 1e-9, 10.0) if rng.random() < 0.7 else log_uniform(rng, 1e-2, 1.0)


def _elastic(rng: Rng, size: np.ndarray) -> PenaltyPart:
    l2, l1 = _modulus(rng), log_uniform(rng, 1e-6, 1.0)
    return PenaltyPart(
        sorel.ElasticNet(l2, l1),
        lambda w: Long(l2) / 2 * np.sum(w * w) + Long(l1) * np.sum(np.abs(w)),
        lambda w: w,
    )


def _ridge(make: Callable[..., Any], inside: Callable[[Any], Any], least: float = 1e-9) -> Any:
    def draw(rng: Rng, size: np.ndarray) -> PenaltyPart:
        l2 = _modulus(rng, least)
        return PenaltyPart(make(l2), lambda w: Long(l2) / 2 * np.sum(w * w), inside)

    return draw


def _box(rng: Rng, size: np.ndarray) -> PenaltyPart:
    l2, reach = _modulus(rng, 0.0), size * log_uniform(rng, 1e-2, 1e2)
    lower, upper = -reach * rng.random(len(size)), reach * rng.random(len(size))
    if rng.random() < 0.5:
        # One bound for all, as wide as the column of the largest numbers suggests.
        lower, upper = float(lower.max()), float(upper.min())
    low, high = (np.reshape(bound, (-1, 1)).astype(Long) for bound in (lower, upper))
    return PenaltyPart(
        sorel.Box(l2, lower, upper),
        lambda w: Long(l2) / 2 * np.sum(w * w),
        lambda w: np.clip(w, low, high),
    )


def _on_simplex(w: Any) -> Any:
    w = np.maximum(w, 0)
    return w / w.sum(axis=0)


# The sizes are those of the coefficients of the model behind the targets.
PENALTIES: dict[str, Callable[[Rng, np.ndarray], PenaltyPart]] = {
    "l2": _ridge(sorel.L2, lambda w: w),
    "elastic": _elastic,
    "nonnegative": _ridge(sorel.NonNegative, lambda w: np.maximum(w, 0)),
    "box": _box,
    "simplex": _ridge(sorel.Simplex, _on_simplex, least=0.0),
}


# Risks: what the package gets, and S(u).


class RiskPart(NamedTuple):
    argument: Any
    cumulative: Callable[[Any], Any]
    share: Any = 0  # of the mean that is taken off


def _cvar(rng: Rng) -> RiskPart:
    alpha = float(rng.choice([0.5, 0.1, 1.0, rng.uniform(0.01, 1.0), log_uniform(rng, 1e-4, 1.0)]))
    return RiskPart(sorel.CVaR(alpha), lambda u: np.maximum(0, 1 - (1 - u) / Long(alpha)))


def _esrm(rng: Rng) -> RiskPart:
    rho = float(rng.choice([2.0, log_uniform(rng, 1e-4, 100.0)]))
    return RiskPart(sorel.ESRM(rho), lambda u: np.expm1(Long(rho) * u) / np.expm1(Long(rho)))


def _extremile(rng: Rng) -> RiskPart:
    r = float(rng.choice([2.5, 1.0 + log_uniform(rng, 1e-3, 50.0)]))
    return RiskPart(sorel.Extremile(r), lambda u: u ** Long(r))


def _mixture(rng: Rng) -> RiskPart:
    names = rng.choice(["mean", "cvar", "esrm", "extremile", "max"], size=2)
    parts = [RISKS[name](rng) for name in names]
    share = float(rng.uniform(0.05, 0.95))
    risk = sorel.Mixture([part.argument for part in parts], [share, 1.0 - share])
    first, second = (part.cumulative for part in parts)
    return RiskPart(risk, lambda u: Long(share) * first(u) + Long(1.0 - share) * second(u))


def _steps(rng: Rng) -> RiskPart:
    heights = np.sort(rng.integers(0, 5, size=int(rng.integers(1, 6)))).astype(float)
    heights[-1] += 1.0
    knots = np.concatenate([[Long(0)], np.cumsum(heights.astype(Long))])
    knots /= knots[-1]

    def cumulative(u: Any) -> Any:
        place = np.minimum((u * len(heights)).astype(int), len(heights) - 1)
        return knots[place] + (u * len(heights) - place) * (knots[place + 1] - knots[place])

    return RiskPart(sorel.CustomSpectrum(heights), cumulative)


def _deviation(rng: Rng, risk: RiskPart) -> RiskPart:
    share = float(rng.choice([1.0, 0.5]))
    return RiskPart(sorel.Deviation(risk.argument, share), risk.cumulative, Long(share))


RISKS: dict[str, Callable[[Rng], RiskPart]] = {
    "mean": lambda rng: RiskPart(sorel.Mean(), lambda u: u),
    "cvar": _cvar,
    "esrm": _esrm,
    "extremile": _extremile,
    "max": lambda rng: RiskPart(sorel.Max(), lambda u: (u >= 1).astype(Long)),
    "mixture": _mixture,
    "custom": _steps,
}


# Rows of X, and targets from the margins of a model.


def _rows(rng: Rng, n: int, d: int) -> tuple[np.ndarray, str]:
    """A matrix, and in a word what is special about it."""
    X = rng.standard_normal((n, d))
    style = str(rng.choice(["normal", "whole", "tails", "scales", "size", "offset", "collinear",
                            "equal rows", "equal columns", "zeros", "groups"]))  # fmt: skip
    if style == "whole":
        X = np.round(X)
    elif style == "tails":
        X = rng.standard_t(1.5, (n, d))
    elif style == "scales":
        X *= 10.0 ** rng.uniform(-4, 4, d)
    elif style == "size":
        X *= log_uniform(rng, 1e-8, 1e8)
    elif style == "offset":
        X += 10.0 ** rng.uniform(0, 3, d)
    elif style == "collinear" and d > 1:
        X[:, 1:] = X[:, :1] + log_uniform(rng, 1e-12, 1e-2) * X[:, 1:]
    elif style == "equal rows":
        X = X[rng.integers(0, max(1, n // 3), n)]
    elif style == "equal columns":
        X = X[:, rng.integers(0, max(1, d // 2), d)]
    elif style == "zeros":
        X[rng.random((n, d)) < 0.7] = 0.0
    elif style == "groups":
        X = np.eye(d)[rng.integers(0, d, n)]
    return X, style


def _numbers(rng: Rng, z: np.ndarray) -> tuple[np.ndarray, str]:
    styles = ["noise", "noise", "tails", "perfect", "constant", "zero", "ties", "offset"]
    style, n = str(rng.choice(styles)), len(z)
    size = float(np.abs(z).mean()) or 1.0
    y = z[:, 0]
    if style == "noise":
        y = y + size * log_uniform(rng, 1e-4, 10.0) * rng.standard_normal(n)
    elif style == "tails":
        y = y + size * rng.standard_t(1.5, n)
    elif style == "constant":
        y = np.full(n, size)
    elif style == "zero":
        y = np.zeros(n)
    elif style == "ties":
        y = size * np.round(y / size + rng.standard_normal(n))
    elif style == "offset":
        y = y + size * (log_uniform(rng, 1.0, 1e9) + rng.standard_normal(n))
    return y, style


def _signs(rng: Rng, z: np.ndarray) -> tuple[np.ndarray, str]:
    style, n = str(rng.choice(["noise", "separable", "random"])), len(z)
    margin = z[:, 0] / (np.abs(z).mean() or 1.0)
    if style == "noise":
        margin = margin + rng.logistic(size=n)
    elif style == "random":
        margin = rng.standard_normal(n)
    y = np.where(margin > 0, 1, -1)
    y[:2] = [-1, 1]
    return y, style


def _classes(rng: Rng, z: np.ndarray) -> tuple[np.ndarray, str]:
    style, k = str(rng.choice(["noise", "separable"])), z.shape[1]
    scores = z / (np.abs(z).mean() or 1.0)
    if style == "noise":
        scores = scores + rng.gumbel(size=z.shape)
    y = np.argmax(scores, axis=1)
    y[:k] = np.arange(k)
    return y, style


def _means(rng: Rng, z: np.ndarray) -> np.ndarray:
    """Positive numbers of all sizes whose logarithms follow the margins."""
    return np.exp(z[:, 0] / (np.abs(z).max() or 1.0)) * log_uniform(rng, 1e-3, 1e3)


def _counts(rng: Rng, z: np.ndarray) -> tuple[np.ndarray, str]:
    style, mean = str(rng.choice(["noise", "perfect", "few"])), _means(rng, z)
    if style == "perfect":
        return mean, style
    y = rng.poisson(mean if style == "noise" else 0.1, len(z)).astype(float)
    y[int(rng.integers(len(y)))] += 1.0
    return y, style


def _amounts(rng: Rng, z: np.ndarray) -> tuple[np.ndarray, str]:
    style, mean = str(rng.choice(["noise", "perfect"])), _means(rng, z)
    return mean * rng.gamma(2.0, size=len(z)) if style == "noise" else mean, style


TARGETS: dict[str, Callable[[Rng, np.ndarray], tuple[np.ndarray, str]]] = {
    "numbers": _numbers,
    "signs": _signs,
    "classes": _classes,
    "counts": _counts,
    "amounts": _amounts,
}


def _sample_weights(rng: Rng, n: int) -> tuple[np.ndarray | None, str]:
    style = str(rng.choice(["none", "none", "whole", "uniform", "wide", "some zero"]))
    if style == "whole":
        return rng.integers(1, 4, n).astype(float), style
    if style == "uniform":
        return rng.uniform(0.1, 1.0, n), style
    if style == "wide":
        return 10.0 ** rng.uniform(-3, 3, n), style
    if style == "some zero":
        weight = rng.integers(0, 3, n).astype(float)
        weight[int(rng.integers(n))] = 1.0
        return weight, style
    return None, style


@dataclass(frozen=True)
class Case:
    """The problem of one number in the sequence of a seed, of all losses or of those named."""

    seed: int
    number: int
    losses: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict, compare=False)

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Everything that was drawn, with the changes."""
        return self._drawn() | self.changes

    def changed(self, **changes: Any) -> Case:
        """The same case with some parts replaced."""
        return replace(self, changes=self.changes | changes)

    def _drawn(self) -> dict[str, Any]:
        rng = np.random.default_rng([self.seed, self.number])
        sizes = [rng.integers(*ends) for ends in ((3, 12), (10, 60), (60, 300))]
        n = int(rng.choice([1, 2, *sizes]))
        d = int(rng.choice([1, rng.integers(2, 6), rng.integers(2, 12), rng.integers(10, 40)]))
        if rng.random() < 0.002:
            # Enough for several threads to share the work.
            n, d = int(rng.integers(10_000, 40_000)), min(d, 6)
        name = str(rng.choice(self.losses or tuple(LOSSES)))
        loss = LOSSES[name](rng)
        outputs = int(rng.integers(3, 5)) if loss.targets == "classes" else 1
        n = max(n, {"numbers": 1, "signs": 2, "classes": outputs}.get(loss.targets, 1))
        X, rows = _rows(rng, n, d)
        stores = ["C", "F", "float32", "sparse", "integers", "sparse float32", "disk"]
        storage = str(rng.choice(stores))
        if storage == "integers" and rows != "whole":
            storage = "C"
        if "float32" in storage:
            X = X.astype(np.float32).astype(np.float64)
        model = rng.standard_normal((d, outputs)) * log_uniform(rng, 1e-6, 1e6)
        model /= np.sqrt(np.mean(X * X, axis=0))[:, None] + (np.abs(X).max(axis=0) == 0)[:, None]
        if rng.random() < 0.3:
            model = np.abs(model)
        y, targets = TARGETS[loss.targets](rng, X @ model)
        weight, weights = _sample_weights(rng, n)
        if loss.targets in ("signs", "classes", "counts") and weight is not None:
            weight = np.maximum(weight, 1e-3)  # a class without weight is another problem
        penalty_name = str(rng.choice(tuple(PENALTIES)))
        if loss.affine and rng.random() < 0.3:
            # A portfolio, of returns in any unit.
            X, rows, storage = X * log_uniform(rng, 1e-6, 1e6), f"{rows} returns", "C"
            y, targets, penalty_name = np.zeros(n), "zero", "simplex"
        risk_name = str(rng.choice(tuple(RISKS)))
        risk = RISKS[risk_name](rng)
        if loss.affine and rng.random() < 0.5:
            risk = _deviation(rng, risk)
        return {
            "loss_name": name, "loss": loss, "outputs": outputs, "X": X, "rows": rows,
            "storage": storage, "y": y, "targets": targets, "weight": weight, "weights": weights,
            "penalty_name": penalty_name,
            "penalty": PENALTIES[penalty_name](rng, np.abs(model).mean(axis=1) + 1e-300),
            "risk_name": risk_name, "risk": risk,
            "intercept": bool(rng.random() < 0.5) and not loss.affine,
            "threads": int(rng.choice([1, 1, 2])),
        }  # fmt: skip

    def __str__(self) -> str:
        p = self.parts
        n, d = p["X"].shape
        return (
            f"{n} x {d} ({p['rows']}, {p['storage']}), y {p['targets']}, {p['risk'].argument!r}, "
            f"{p['loss'].argument!r}, {p['penalty'].argument!r}, "
            f"intercept {p['intercept']}, weights {p['weights']}"
        )

    @property
    def snippet(self) -> str:
        """A line that makes the problem again; after changes, one that spells it out."""
        if self.changes:
            return self._spelled_out()
        kinds = f", losses={self.losses!r}" if self.losses else ""
        return f"from fuzz import Case; case = Case({self.seed}, {self.number}{kinds}); print(case)"

    def _spelled_out(self) -> str:
        p = self.parts
        with np.printoptions(threshold=sys.maxsize, floatmode="unique", linewidth=10_000):
            X, y, weight = (
                "None" if a is None else f"np.{a!r}" for a in (p["X"], p["y"], p["weight"])
            )
            penalty = repr(p["penalty"].argument).replace("array(", "np.array(")
        return (
            f"import numpy as np; from fuzz import PseudoHuber; from sorel import *; "
            f"from sorel.losses import *; X = {X}; y = {y}; weight = {weight}; "
            f"problem = Problem(X, y, risk={p['risk'].argument!r}, loss={p['loss'].argument!r}, "
            f"penalty={penalty}, fit_intercept={p['intercept']}, sample_weight=weight)"
        )

    def problem(self) -> sorel.Problem:
        p = self.parts
        X, storage = p["X"], p["storage"]
        if "float32" in storage:
            X = X.astype(np.float32)
        if "sparse" in storage:
            X = scipy.sparse.csr_array(X)
        elif storage == "F":
            X = np.asfortranarray(X)
        elif storage == "integers":
            X = X.astype(np.int64)
        elif storage == "disk":
            # A file that goes when nobody needs it any more.
            with tempfile.NamedTemporaryFile(suffix=".npy") as file:
                np.save(file, X)
                file.flush()
                X = np.load(file.name, mmap_mode="r")
        return sorel.Problem(
            X, p["y"], risk=p["risk"].argument, loss=p["loss"].argument,
            penalty=p["penalty"].argument, fit_intercept=p["intercept"], sample_weight=p["weight"],
            n_jobs=p["threads"],
        )  # fmt: skip

    # The oracle.

    @cached_property
    def omega(self) -> Any:
        weight = self.parts["weight"]
        weight = (np.ones(len(self.parts["y"])) if weight is None else weight).astype(Long)
        return weight / weight.sum()

    def _margins(self, w: Any) -> tuple[Any, Any]:
        """Margins at exact parameters of shape (p, K), and how far rounding may take them."""
        X = self.parts["X"].astype(Long)
        d = X.shape[1]
        z, size = X @ w[:d], np.abs(X) @ np.abs(w[:d])
        if self.parts["intercept"]:
            z, size = z + w[d], size + np.abs(w[d])
        return z, (d + 2) * EPS * size

    def exact(self, w: Any) -> Any:
        """Parameters in the domain and in extended precision, of shape (p, K)."""
        d = self.parts["X"].shape[1]
        w = np.array(w, dtype=Long).reshape(-1, self.parts["outputs"])
        w[:d] = self.parts["penalty"].inside(w[:d])
        return w

    def risk_of(self, losses: Any, error: Any) -> tuple[Any, Any]:
        """sum_i sigma_i l_[i], and an upper bound where losses are known up to an error."""
        used = self.omega > 0
        losses, error, omega = losses[used], error[used], self.omega[used]
        share = self.parts["risk"].share
        mean = np.sum(omega * losses)
        upper = self._spectral(losses + error, omega) - share * (mean - np.sum(omega * error))
        size = self._spectral(np.abs(losses), omega) + share * np.sum(omega * np.abs(losses))
        summed = len(losses) * EPS * np.max(np.abs(losses))  # by running sums of the weights
        return self._spectral(losses, omega) - share * mean, upper + 64 * EPS * size + summed

    def _spectral(self, losses: Any, omega: Any) -> Any:
        order = np.argsort(losses, kind="stable")
        # Summed from above, since the errors of a long running sum end up in its last item: from
        # below that is the largest loss, which has the largest density.
        reach = 1 - np.append(np.cumsum(omega[order][:0:-1])[::-1], Long(0))
        if self.parts["weight"] is None:
            reach = np.arange(1, len(order) + 1) / Long(len(order))
        reach[-1] = 1
        S = self.parts["risk"].cumulative(np.concatenate([[Long(0)], reach]))
        return np.sum(np.diff(S) * losses[order])

    @np.errstate(over="ignore", invalid="ignore")
    def objective(self, w: Any) -> tuple[Any, Any]:
        """F at exact parameters: the value, and one that rounding keeps above the true one."""
        z, error = self._margins(w)
        y, phi = self.parts["y"], self.parts["loss"].value
        value = phi(y, z)
        if self.parts["loss"].targets == "classes":
            worse = z + error
            own = np.arange(len(y)), y
            worse[own] -= 2 * error[own]
            upper = phi(y, worse)
        else:
            upper = np.maximum(phi(y, z - error), phi(y, z + error))
        g = self.parts["penalty"].value(w[: self.parts["X"].shape[1]])
        # A loss that overflows is infinite, and known to be.
        risk, above = self.risk_of(value, np.where(upper > value, upper - value, 0))
        return risk + g, above + g * (1 + 64 * EPS)

    def unit(self, w: Any, value: Any) -> float:
        """What a gap is divided by: |F|, and not less than the spread of affine losses."""
        if not self.parts["loss"].affine:
            return float(abs(value))
        losses, omega = self.parts["loss"].value(self.parts["y"], self._margins(w)[0]), self.omega
        if isinstance(self.parts["risk"].argument, sorel.Max):  # which knows of no weight but 0
            omega = (omega > 0.0) / np.count_nonzero(omega)
        spread = np.sum(omega * np.abs(losses - np.sum(omega * losses)))
        return float(max(abs(value), spread))

    def zero_loss(self) -> float:
        """Mean loss at zero margins."""
        y = self.parts["y"]
        margins = np.zeros((len(y), self.parts["outputs"]), dtype=Long)
        return float(np.sum(self.omega * np.abs(self.parts["loss"].value(y, margins))))

    def loss_of_rounding(self) -> float:
        """What is left of an objective of 0 by rounding the margins."""
        size = float(np.abs(self.parts["X"]).max())
        if self.parts["loss"].affine:
            return PERFECT * max(self.zero_loss(), size)
        # However flat losses are at margins of that size, they bend by about 1 at their minimum.
        if self.parts["loss"].targets == "numbers":
            size = max(size, float(np.abs(self.parts["y"]).max()))
        return VANISHING * max(self.zero_loss(), size**2)

    def constant_loss(self) -> float:
        """Mean loss of the best constant model; the spread of affine losses at w = 0 or beside.

        On a simplex, targets that are all alike are compared with the margins of equal weights.
        """
        y, phi = self.parts["y"], self.parts["loss"].value
        used = self.omega > 0
        if self.parts["loss"].affine:
            w = np.zeros((self.parts["X"].shape[1], 1), dtype=Long)
            return self.unit(w, 0) or self.unit(w + 1, 0) / len(w)
        if self.parts["outputs"] > 1:
            shares = np.bincount(y, self.omega.astype(float))
            shares = shares[shares > 0]
            return float(-np.sum(shares * np.log(shares)))

        numbers, z = self.parts["loss"].targets == "numbers", np.zeros(len(y), dtype=Long)
        if numbers and np.ptp(y[used]) == 0 and self.parts["penalty_name"] == "simplex":
            z = self.parts["X"].mean(axis=1, dtype=Long)

        def mean(b: float) -> float:
            return float(np.sum(self.omega[used] * phi(y[used], (z + b)[used, None])))

        if z.any() and not self.parts["intercept"]:
            return mean(0.0)
        middle, reach = (0.0, 60.0)
        if numbers:
            left = (y - z)[used]
            middle, reach = float(np.mean(left)), float(np.ptp(left)) + 1e-300
        ends = (middle - reach, middle + reach)
        return float(scipy.optimize.minimize_scalar(mean, bounds=ends, method="bounded").fun)

    def overflows(self, problem: sorel.Problem) -> bool:
        """Whether the objective is beyond all doubles at parameters of all kinds in the domain."""
        rng, shape = np.random.default_rng(0), problem.engine.shape
        sizes = (0.0, 1.0, *10.0 ** rng.uniform(-8, 8, 20))
        points = (self.exact(size * rng.standard_normal(shape) + 1e-300) for size in sizes)
        return not any(self.objective(w)[0] < OVERFLOW for w in points)

    def infeasibility(self, lam: Any) -> float:
        """By how much a weighting leaves the dual set: the mass of some samples beyond theirs."""
        lam = lam.astype(Long)
        used = self.omega > 0
        if np.any(lam[~used] != 0):
            return float(np.abs(lam[~used]).max())
        density = lam[used] / self.omega[used]
        order = np.argsort(-density, kind="stable")
        left = 1 - np.cumsum(self.omega[used][order])
        left[-1] = 0
        due = 1 - self.parts["risk"].cumulative(np.maximum(left, 0))
        excess = np.cumsum(lam[used][order]) - due
        return float(max(excess.max(), -lam.min(), abs(lam.sum() - 1)))


@dataclass
class Report:
    """What came of one case."""

    case: Case
    failures: list[str] = field(default_factory=list)
    outcome: str = ""
    missed: str = ""  # why a gap above MISS is left
    seconds: float = 0.0


def check(case: Case) -> Report:
    """Solve a case with default settings, and look for whatever is wrong with the answer."""
    report = Report(case)
    begin = time.perf_counter()
    try:
        _check(case, report)
    except Exception:
        report.failures.append("exception: " + traceback.format_exc(limit=-3).strip())
        report.outcome = "exception"
    report.seconds = time.perf_counter() - begin
    return report


def _check(case: Case, report: Report) -> None:
    problem = case.problem()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = sorel.solve(problem)
        except ValueError as error:
            if "overflow" in str(error) and case.overflows(problem):
                report.outcome = "overflow"
                return
            raise
    complaints = [w for w in caught if not issubclass(w.category, sorel.ConvergenceWarning)]
    fail = report.failures.append
    for complaint in complaints:
        fail(f"warning: {complaint.category.__name__}: {complaint.message}")
    missed = len(caught) > len(complaints)
    report.outcome = "missed" if missed else "solved" if result.relative_gap <= 1e-6 else "perfect"
    if missed and result.relative_gap > MISS:
        why = "rounding" if "rounding errors alone" in str(caught[-1].message) else "passes"
        report.missed = f"{why}, {result.relative_gap:.1e}"
    if case.number % _BESIDE == 0:
        _solve_beside(problem, result, fail)
    if missed == result.converged:
        fail(f"converged={result.converged}, and a warning: {missed}")
    last = result.history[-1]
    told = (last.best_objective, last.best_dual, last.best_gap, last.best_relative_gap)
    if told != (result.objective, result.dual, result.gap, result.relative_gap):
        fail(f"the last record tells {told}, the result {result}")
    away = case.infeasibility(result.weights)
    if not away <= FEASIBLE * (1.0 + len(result.weights) / 1000.0):
        fail(f"the weights leave their set by {away:.3g}")
    candidates = _candidates(case, problem, result)
    values = [case.objective(w) for w in candidates]
    unit = case.unit(candidates[0], values[0][0])
    if result.converged and result.gap > 1.0001e-6 * unit:
        perfect = max(1.0001 * PERFECT * case.constant_loss(), case.loss_of_rounding(), 1e-290)
        if result.gap > perfect:
            fail(f"converged with a gap of {result.gap:.3g} and an objective of {unit:.3g}")
    lowest = min(upper for _, upper in values)
    claims = {"result": (result.objective, result.dual, result.gap, values[0])}
    rng = np.random.default_rng(case.number)
    claims |= _claims(case, problem, result, candidates, rng)
    for name, (primal, dual, gap, (value, upper)) in claims.items():
        if not np.isfinite(primal) and not np.isfinite(gap):
            continue  # the losses overflow, and nothing is claimed
        if dual > lowest:
            share = float((dual - lowest) / max(abs(lowest), Long(1e-300)))
            fail(f"{name}: the dual {dual!r} is above an attained value, by {share:.3g} of it")
        if gap < 2 * value - upper - lowest:
            fail(f"{name}: the gap {gap!r} is below F(w) - F(w') = {float(value - lowest)!r}")
        if abs(primal - value) > gap + 1e-9 * abs(value):
            fail(f"{name}: the objective is {primal!r}, and {float(value)!r} by the formulas")


def _solve_beside(
    problem: sorel.Problem, result: sorel.Result, fail: Callable[[str], None]
) -> None:
    """Two threads that solve the same problem at once find what one found alone."""

    def solve() -> sorel.Result:
        with np.errstate(all="ignore"):
            return sorel.solve(problem)

    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore")  # misses are counted by gaps
        for other in [pool.submit(solve) for _ in range(2)]:
            found = other.result()
            same = np.array_equal(found.w, result.w) and found.dual == result.dual
            if not same or not np.array_equal(found.weights, result.weights):
                fail(f"two threads: another result than alone, {found.status}")


def reduced(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A smaller case that still fails: rows and columns left out, oddities made plain."""
    deadline = time.perf_counter() + _REDUCING_SECONDS

    def still_fails(smaller: Case) -> bool:
        try:
            return time.perf_counter() <= deadline and fails(smaller)
        except Exception:
            return False  # a part that cannot be left out

    while smaller := next(filter(still_fails, _smaller(case)), None):
        case = smaller
    return case


def _smaller(case: Case) -> Iterator[Case]:
    p = case.parts
    X, y, weight = p["X"], p["y"], p["weight"]
    if weight is not None:
        yield case.changed(weight=None)
    for name, plain in (("storage", "C"), ("threads", 1), ("intercept", False)):
        if p[name] != plain:
            yield case.changed(**{name: plain})
    for rows in _parts_left(len(X)):
        if p["loss"].targets != "classes" or len(np.unique(y[rows])) == p["outputs"]:
            kept = None if weight is None else weight[rows]
            yield case.changed(X=X[rows], y=y[rows], weight=kept)
    if p["penalty_name"] != "box":
        for columns in _parts_left(X.shape[1]):
            yield case.changed(X=X[:, columns])
    rounded = np.array([[float(f"{x:.3g}") for x in row] for row in X])
    if not np.array_equal(rounded, X):
        yield case.changed(X=rounded)


def _parts_left(size: int) -> Iterator[np.ndarray]:
    """What is left without one half, one quarter, ..., one item."""
    width = size // 2
    while width >= 1:
        for start in range(0, size, width):
            yield np.r_[0:start, start + width : size]
        width //= 2


def _candidates(case: Case, problem: sorel.Problem, result: sorel.Result) -> list[Any]:
    """Parameters in the domain, that of the result first, good ones after it."""
    found = [result.w]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1e-14 is out of reach
        found.append(sorel.solve(problem, "newton", 1e-14, 300, warm_start=result).w)
        with contextlib.suppress(ValueError):  # where the losses overflow on the way
            found.append(sorel.solve(problem, "newton", 1e-14, 100).w)
    return [case.exact(w) for w in found] + [sum(map(case.exact, found)) / len(found)]


def _claims(
    case: Case, problem: sorel.Problem, result: sorel.Result, candidates: list[Any], rng: Rng
) -> dict[str, tuple[float, float, float, Any]]:
    """What certificates say of parameters and weights of all kinds."""
    n, shape = len(case.parts["y"]), problem.engine.shape
    noise = rng.standard_normal(shape) * (np.abs(result.w).mean() or 1.0)
    d = case.parts["X"].shape[1]
    points = {"w": result.w, "near w": result.w + 1e-6 * noise, "far": noise}
    if not np.any(result.w):
        points["tiny"] = 1e-6 * noise
    random = rng.standard_normal(n) * log_uniform(rng, 1e-3, 1e3) / n
    risk = getattr(problem.risk, "risk", problem.risk)  # that of a deviation
    weights = {
        "lam": result.weights,
        "random": sorel.project_permutahedron(random, risk, problem.sample_weight),
    }
    claims = {}
    for name, w in points.items():
        w = np.array(w)
        w[:d] = problem.penalty.project(w[:d])
        for kind, lam in weights.items():
            found = problem.certificate(w, lam)
            value = case.objective(case.exact(w))
            claims[f"certificate({name}, {kind})"] = (found.primal, found.dual, found.gap, value)
    return claims


# Every so many problems are solved by two threads at once.
_BESIDE = 20

# Time to spend on making a failing case smaller.
_REDUCING_SECONDS = 60.0


class Line(NamedTuple):
    """What a run notes of a problem, so that it can go on from there."""

    number: int
    outcome: str
    failures: list[str]
    missed: str
    seconds: float
    words: str


def _line(seed: int, losses: tuple[str, ...], number: int) -> Line:
    case = Case(seed, number, losses)
    report = check(case)
    failures = list(report.failures)
    if failures:
        kind = _kind(failures[0])
        small = reduced(case, lambda c: any(_kind(f) == kind for f in check(c).failures))
        failures += [case.snippet, f"reduced: {small.snippet}" if small.changes else ""]
    words = str(case) if failures or report.missed else ""
    return Line(number, report.outcome, failures, report.missed, report.seconds, words)


def _kind(failure: str) -> str:
    """What two failures have in common: the claim that is wrong, or the words of an error."""
    if failure.startswith("exception"):
        return failure.splitlines()[-1][:40]
    return failure.split(":")[0]


def _finished(path: Path) -> list[Line]:
    """The problems that an earlier run has noted; a line cut short is none."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, TypeError):
            lines.append(Line(*json.loads(text)))
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="any number; a new one where none is given")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--losses", nargs="+", choices=tuple(LOSSES), default=())
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--max-seconds", type=float, default=math.inf)
    parser.add_argument("--out", type=Path, default=Path("fuzz-output"), help="folder of the notes")
    options = parser.parse_args(argv)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    kinds = "-".join(["", *options.losses])
    notes = options.out / f"seed-{seed}{kinds}.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = range(options.first, options.first + options.count)
    lines = [line for line in _finished(notes) if line.number in wanted]
    print(f"seed {seed}: {options.count} problems, {len(lines)} of them done before", flush=True)
    begin, left = time.perf_counter(), sorted(set(wanted) - {line.number for line in lines})
    for line in lines:
        _tell(line)
    solve = partial(_line, seed, tuple(options.losses))
    with notes.open("a") as file:
        if file.tell() > 0:
            file.write("\n")  # the last run may have been cut off in the middle of a line
        for line in _solved(solve, left, min(options.jobs, len(left))):
            file.write(json.dumps(line) + "\n")
            file.flush()
            lines.append(line)
            _tell(line)
            if time.perf_counter() - begin > options.max_seconds:
                break
    return _summary(lines, time.perf_counter() - begin)


def _solved(solve: Callable[[int], Line], numbers: list[int], jobs: int) -> Iterator[Line]:
    if jobs <= 1:
        yield from map(solve, numbers)
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(solve, numbers, chunksize=4)


def _tell(line: Line) -> None:
    if line.failures:
        print(f"FAILED {line.number}: {line.words}")
        for failure in line.failures:
            print(f"  {failure}")
    elif line.missed:
        print(f"missed {line.number} ({line.missed}): {line.words}")
    sys.stdout.flush()


def _summary(lines: list[Line], seconds: float) -> int:
    total, outcomes = len(lines), collections.Counter(line.outcome for line in lines)
    failed = sum(bool(line.failures) for line in lines)
    missed = sum(bool(line.missed) for line in lines)
    words = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"{total} problems in {seconds:.0f} s: {words}; {failed} failed, {missed} above {MISS:g}")
    allowed = max(ALLOWED_MISSES, ALLOWED_MISSES * total / 10_000)
    return 1 if failed or missed > allowed else 0


if __name__ == "__main__":
    sys.exit(main())
