"""Solutions along a grid of risks and of l2, each started from its neighbour.

For every risk sigma and every mu of the grid, min_w ``sum_i sigma_i l_[i](w) + mu/2 ||w||^2 + l1
||w||_1``. The grid is walked like a plough, so that the next problem is always next to the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._frames import as_table
from sorel.losses import Logistic, Loss, parse_loss
from sorel.penalties import Penalty, choose_penalty
from sorel.problem import Problem
from sorel.risks import CVaR, Risk, parse_risk
from sorel.solve import Result, solve
from sorel.solvers import Solver

__all__ = ["PathResult", "path"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class PathResult:
    """Solutions along a grid; one entry per point of it, the l2 of a risk side by side.

    Attributes
    ----------
    risks : list of Risk
        Risk of each point.
    l2 : ndarray of shape (m,)
        l2 of each point.
    coefs : ndarray of shape (m, d) or (m, n_classes, d)
        Coefficients.
    intercepts : ndarray of shape (m,) or (m, n_classes)
        Intercepts, 0 where none was fitted.
    objective, gap, relative_gap : ndarray of shape (m,)
        Objective and its certificate.
    passes, seconds : ndarray of shape (m,)
        What each point cost, from its warm start.
    converged : ndarray of shape (m,)
        Whether the tolerance was reached.
    classes : ndarray or None
        Labels, for a classification loss.
    feature_names : list of str
        Names of the columns of X, or x0, x1, ...
    """

    risks: list[Risk]
    l2: FloatArray
    coefs: FloatArray
    intercepts: FloatArray
    objective: FloatArray
    gap: FloatArray
    relative_gap: FloatArray
    passes: FloatArray
    seconds: FloatArray
    converged: NDArray[np.bool_]
    classes: NDArray[Any] | None
    feature_names: list[str]

    def __len__(self) -> int:
        return len(self.risks)

    def to_frame(self) -> Any:
        """One row per point: risk, l2, certificate, cost, intercept and coefficients.

        Returns
        -------
        DataFrame or table
            A pandas DataFrame where pandas is installed, else a plain table with the same columns.
            With more than two classes, coefficients are named ``<label>:<feature>``.
        """
        columns: dict[str, Any] = {
            "risk": [risk.spec or repr(risk) for risk in self.risks],
            "l2": self.l2,
            "objective": self.objective,
            "gap": self.gap,
            "relative_gap": self.relative_gap,
            "passes": self.passes,
            "seconds": self.seconds,
            "converged": self.converged,
        }
        if self.coefs.ndim == 2:
            columns["intercept"] = self.intercepts
            columns.update(zip(self.feature_names, self.coefs.T, strict=True))
        else:
            assert self.classes is not None
            for k, label in enumerate(self.classes.tolist()):
                columns[f"{label}:intercept"] = self.intercepts[:, k]
                names = [f"{label}:{name}" for name in self.feature_names]
                columns.update(zip(names, self.coefs[:, k].T, strict=True))
        return as_table(columns)

    def __repr__(self) -> str:
        return (
            f"PathResult({len(self)} points, worst relative gap {self.relative_gap.max():.2g}, "
            f"{self.passes.sum():.4g} passes)"
        )


def path(
    X: Any,
    y: ArrayLike,
    *,
    risks: Risk | str | Sequence[Risk | str] = CVaR(0.5),  # noqa: B008 (never changed here)
    l2: float | str | Sequence[float | str] = "auto",
    loss: str | Loss = "squared",
    l1: float = 0.0,
    penalty: Penalty | None = None,
    positive: bool = False,
    fit_intercept: bool = True,
    sample_weight: ArrayLike | None = None,
    solver: str | Solver = "auto",
    tol: float = 1e-6,
    max_passes: float = 1000,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
) -> PathResult:
    """Solve along a grid of risks, of l2, or of both, from warm starts.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n, d)
        Samples.
    y : array-like of shape (n,)
        Targets, or labels for a classification loss.
    risks : Risk, str, or sequence of them, default=CVaR(0.5)
        Risks such as ``[CVaR(0.5), CVaR(0.1)]`` or ``["mean", "cvar:0.1"]``. Put neighbours side by
        side: each warm start is then a good one.
    l2 : float, "auto", or sequence of them, default="auto"
        Weights of ``||w||^2 / 2``; "auto" is 1 / n, or 1 over the sum of the sample weights.
    loss : str or Loss, default="squared"
        As in :class:`sorel.Problem`. "logistic" becomes "multinomial" for more than two classes.
    l1 : float, default=0.0
        Weight of ``||w||_1``.
    penalty : Penalty, optional
        A penalty for all points, in place of `l2`, `l1` and `positive`, which must then be left
        alone.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    sample_weight : array-like of shape (n,), optional
        Weights; 2 is the row twice.
    solver, tol, max_passes, random_state
        As in :func:`sorel.solve`, for each point.

    Returns
    -------
    PathResult
        The solutions, with ``to_frame()`` for a table. The l2 of the first risk come first, in the
        order given.

    Warns
    -----
    ConvergenceWarning
        For each point that missed the tolerance.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = X @ [1.0, 2.0] + rng.standard_t(3, size=100)
    >>> solutions = sorel.path(X, y, risks=["mean", "cvar:0.5", "cvar:0.1"])
    >>> solutions.coefs.shape
    (3, 2)
    >>> list(solutions.to_frame()["risk"])
    ['mean', 'cvar:0.5', 'cvar:0.1']
    """
    grid_risks = [parse_risk(risk) for risk in _as_list("risks", risks, (Risk, str))]
    total = float(np.shape(y)[0] if sample_weight is None else np.sum(sample_weight))
    penalties = [
        choose_penalty(penalty, value, l1, positive, total if total > 0.0 else math.nan)
        for value in _as_list("l2", l2, (float, int, str, np.number))
    ]
    names = _names(X)
    if not hasattr(X, "tocsr"):
        X = np.asarray(X)
    parsed = parse_loss(loss)
    if type(parsed) is Logistic and len(np.unique(np.asarray(y))) > 2:
        parsed = parse_loss("multinomial")
    found: dict[tuple[int, int], Result] = {}
    classes, previous = None, None
    for i, j in plough(len(grid_risks), len(penalties)):
        problem = Problem(
            X,
            y,
            risk=grid_risks[i],
            loss=parsed,
            penalty=penalties[j],
            fit_intercept=fit_intercept,
            sample_weight=sample_weight,
        )
        classes = problem.classes
        result = solve(
            problem, solver, tol, max_passes, random_state=random_state, warm_start=previous
        )
        if result.status.startswith("interrupted"):
            at = f"{grid_risks[i]!r}, l2={penalties[j].l2:g}"
            raise KeyboardInterrupt(f"path was interrupted at {at}")
        previous = result
        # The weightings of all points together may be far larger than X.
        found[i, j] = replace(result, weights=np.empty(0), history=[])
    points = [(i, j) for i in range(len(grid_risks)) for j in range(len(penalties))]
    results = [found[point] for point in points]
    d = len(results[0].w) - bool(fit_intercept)
    intercepts = [r.w[d] if fit_intercept else np.zeros(r.w.shape[1:]) for r in results]
    return PathResult(
        risks=[grid_risks[i] for i, _ in points],
        l2=np.array([penalties[j].l2 for _, j in points]),
        coefs=np.array([r.w[:d].T for r in results]),
        intercepts=np.array(intercepts),
        objective=np.array([r.objective for r in results]),
        gap=np.array([r.gap for r in results]),
        relative_gap=np.array([r.relative_gap for r in results]),
        passes=np.array([r.passes for r in results]),
        seconds=np.array([r.seconds for r in results]),
        converged=np.array([r.converged for r in results]),
        classes=classes,
        feature_names=names or [f"x{k}" for k in range(d)],
    )


def plough(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Walk a grid row by row, every other row backwards: all steps go to a neighbour.

    Examples
    --------
    >>> from sorel.paths import plough
    >>> list(plough(2, 2))
    [(0, 0), (0, 1), (1, 1), (1, 0)]
    """
    for i in range(rows):
        row = range(columns) if i % 2 == 0 else reversed(range(columns))
        yield from ((i, j) for j in row)


def _as_list(name: str, values: Any, kinds: tuple[type, ...]) -> list[Any]:
    items = [values] if isinstance(values, kinds) else list(values)
    if not items:
        raise ValueError(f"{name} is empty: give at least one value")
    return items


def _names(X: Any) -> list[str] | None:
    columns = getattr(X, "columns", None)
    return None if columns is None else [str(name) for name in columns]
