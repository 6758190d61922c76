"""Solutions along a grid of risks and of l2, each started from its neighbour.

For every risk sigma and every mu of the grid, min_w ``sum_i sigma_i l_[i](w) + mu/2 ||w||^2 + l1
||w||_1``. The grid is visited in snake order, so that the next problem is always next to the last
and a warm start is a good one (Friedman, Hastie and Tibshirani, 2010, section 2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._lib.defaults import FIT_INTERCEPT, MAX_PASSES, TOL
from sorel._lib.frames import as_table
from sorel._lib.inputs import check_meaning, check_numbers
from sorel.estimators.default_risks import RISK
from sorel.problem.losses import Logistic, Loss, parse_loss
from sorel.problem.penalties import Penalty, choose_penalty, resolve_l2
from sorel.problem.problem import Problem
from sorel.problem.risks import Risk, parse_risk, spelled
from sorel.solvers import Solver
from sorel.solvers.solve import Result, solve
from sorel.solvers.tails import Tails

__all__ = ["PathResult", "path"]

FloatArray = NDArray[np.float64]


class Points:
    """Certified solutions of several problems, one entry per point."""

    _kind: ClassVar[str]
    relative_gap: FloatArray
    passes: FloatArray

    def __len__(self) -> int:
        return len(self.relative_gap)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} {self._kind}, worst relative gap "
            f"{self.relative_gap.max():.2g}, {self.passes.sum():.4g} passes)"
        )


@dataclass(frozen=True, repr=False)
class PathResult(Points):
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

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X, y = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 5.0])
    >>> found = sorel.path(X, y, risks=["mean", "cvar:0.5"], l2=[1.0, 0.1])
    >>> len(found), found.coefs.shape
    (4, (4, 1))
    """

    _kind = "points"

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

    def to_frame(self) -> Any:
        """One row per point: risk, l2, certificate, cost, intercept and coefficients.

        Returns
        -------
        DataFrame or table
            A pandas DataFrame where pandas is installed, else a dictionary of its columns.
            With more than two classes, coefficients are named ``<label>:<feature>``.
        """
        numbers = ("l2", "objective", "gap", "relative_gap", "passes", "seconds", "converged")
        columns: dict[str, Any] = {"risk": [spelled(risk) for risk in self.risks]}
        columns.update({name: getattr(self, name) for name in numbers})
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


def path(
    X: Any,
    y: ArrayLike | None = None,
    *,
    risks: Risk | str | Sequence[Risk | str] | None = None,
    l2: float | str | Sequence[float | str] | None = None,
    loss: str | Loss = "squared",
    l1: float = 0.0,
    penalty: Penalty | None = None,
    positive: bool = False,
    fit_intercept: bool = FIT_INTERCEPT,
    sample_weight: ArrayLike | None = None,
    solver: str | Solver = "auto",
    tol: float = TOL,
    max_passes: float = MAX_PASSES,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
    callback: Callable[[Risk, float, Result], Any] | None = None,
) -> PathResult:
    """Solve along a grid of risks, of l2, or of both, from warm starts.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n, d), or Problem
        Samples. Or a :class:`sorel.Problem`, whose data, loss, weights, intercept and kind of
        penalty then hold for every point: give neither `y` nor any of those beside it.
    y : array-like of shape (n,)
        Targets, or labels for a classification loss.
    risks : Risk, str, or sequence of them, optional
        Risks such as ``[CVaR(0.5), CVaR(0.1)]`` or ``["mean", "cvar:0.1"]``; that of the problem,
        or CVaR(0.5), when not given. Put neighbours side by side: each warm start is then a good
        one.
    l2 : float, "auto", or sequence of them, optional
        Weights of ``||w||^2 / 2``; "auto" is 1 / n, or 1 over the sum of the sample weights. When
        not given, that of the penalty or of the problem, or else "auto".
    loss : str or Loss, default="squared"
        As in :class:`sorel.Problem`. "logistic" becomes "multinomial" for more than two classes.
    l1 : float, default=0.0
        Weight of ``||w||_1``.
    penalty : Penalty, optional
        The penalty of every point, but for its l2, such as ``NonNegative(1.0)``; without one, the
        ridge or, with l1, the elastic net.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    sample_weight : array-like of shape (n,), optional
        Weights; 2 is the row twice.
    solver, tol, max_passes, random_state
        As in :func:`sorel.solve`, for each point.
    callback : callable, optional
        Called with risk, l2 and :class:`sorel.Result` of each point when it is solved; a true
        return value ends the path, and the points so far are the answer.

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
    >>> problem = sorel.Problem(X, y, risk="cvar:0.5", penalty=sorel.NonNegative(1.0))
    >>> sorel.path(problem, l2=[1.0, 0.1, 0.01]).coefs.min() >= 0
    np.True_
    """
    if isinstance(X, Problem):
        _refuse_beside(y, loss, l1, penalty, positive, sample_weight)
        problem, names = X, None
    else:
        if y is None:
            raise TypeError("path needs y beside X, or a sorel.Problem in the place of both")
        kind = choose_penalty(penalty, 1.0 if penalty is None else "auto", l1, positive, 1.0)
        problem, names = _problem(X, y, loss, kind, fit_intercept, sample_weight), _names(X)
    problem = problem.with_engine(problem.engine.for_run(sequence=True))
    if risks is None:
        risks = RISK if not isinstance(X, Problem) else problem.risk
    grid_risks = [parse_risk(risk) for risk in as_list("risks", risks, (Risk, str))]
    total = float(problem.n_samples if sample_weight is None else np.sum(sample_weight))
    if l2 is None and (isinstance(X, Problem) or penalty is not None):
        penalties = [problem.penalty]
    else:
        given = as_list("l2", "auto" if l2 is None else l2, (float, int, str, np.number))
        penalties = [_with_l2(problem.penalty, value, total) for value in given]
    found: dict[tuple[int, int], Result] = {}
    previous: Result | None = None
    tails = Tails(tol, max_passes, random_state) if solver == "auto" else None
    with problem.engine.working():
        for i, j in snake_order(len(grid_risks), len(penalties)):
            if problem.risk != grid_risks[i]:
                problem = problem.with_risk(grid_risks[i])
            point = problem.with_penalty(penalties[j])
            result = None if tails is None or previous is None else tails.solve(point, previous)
            if result is None or not (result.converged or _was_interrupted(result)):
                passes, seconds = (0.0, 0.0) if result is None else (result.passes, result.seconds)
                left = max(max_passes - passes, 0.0)
                start = previous if result is None else result
                result = solve(
                    point, solver, tol, left, random_state=random_state, warm_start=start
                )
                passes, seconds = result.passes + passes, result.seconds + seconds
                result = replace(result, passes=passes, seconds=seconds)
            if _was_interrupted(result):
                at = f"{grid_risks[i]!r}, l2={penalties[j].l2:g}"
                raise KeyboardInterrupt(f"path was interrupted at {at}")
            previous = result
            # The weightings of all points together may be far larger than X.
            found[i, j] = replace(result, weights=np.empty(0), history=[], curvature=None)
            if callback is not None and callback(grid_risks[i], penalties[j].l2, result):
                break
    points = sorted(found)
    results = [found[point] for point in points]
    fitted = problem.fit_intercept
    d = len(results[0].w) - bool(fitted)
    names = names or [f"x{k}" for k in range(d)]
    same = ("objective", "gap", "relative_gap", "passes", "seconds", "converged")
    return PathResult(
        risks=[grid_risks[i] for i, _ in points],
        l2=np.array([penalties[j].l2 for _, j in points]),
        coefs=np.array([r.w[:d].T for r in results]),
        intercepts=np.array([r.w[d] if fitted else np.zeros(r.w.shape[1:]) for r in results]),
        classes=problem.classes,
        feature_names=names,
        **{name: np.array([getattr(r, name) for r in results]) for name in same},
    )


def _was_interrupted(result: Result) -> bool:
    return result.status.startswith("interrupted")


def _problem(
    X: Any,
    y: ArrayLike,
    loss: str | Loss,
    penalty: Penalty,
    fit_intercept: bool,
    sample_weight: ArrayLike | None,
) -> Problem:
    """The problem of the data; risk and l2 of the grid take the place of its own."""
    if not hasattr(X, "tocsr"):
        check_numbers(X, "X")
        X = np.asarray(X)
    check_meaning(y, "y")
    parsed = parse_loss(loss)
    if type(parsed) is Logistic and len(np.unique(np.asarray(y))) > 2:
        parsed = parse_loss("multinomial")
    options: dict[str, Any] = {"fit_intercept": fit_intercept, "sample_weight": sample_weight}
    return Problem(X, y, loss=parsed, penalty=penalty, **options)


def _refuse_beside(*given: Any) -> None:
    """Refuse what a problem has already."""
    names = ("y", "loss", "l1", "penalty", "positive", "sample_weight")
    defaults = (None, "squared", 0.0, None, False, None)
    for name, value, default in zip(names, given, defaults, strict=True):
        if value is not None and not (isinstance(value, type(default)) and value == default):
            raise TypeError(f"a Problem has its own {name}: do not give it to path too")


def snake_order(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """The points of a grid row by row, every other row backwards: all steps go to a neighbour.

    Examples
    --------
    >>> from sorel.paths import snake_order
    >>> list(snake_order(2, 2))
    [(0, 0), (0, 1), (1, 1), (1, 0)]
    """
    for i in range(rows):
        row = range(columns) if i % 2 == 0 else reversed(range(columns))
        yield from ((i, j) for j in row)


def as_list(name: str, values: Any, kinds: tuple[type, ...]) -> list[Any]:
    """One value of these kinds, or several, as a list that is not empty."""
    items = [values] if isinstance(values, kinds) else list(values)
    if not items:
        raise ValueError(f"{name} is empty: give at least one value")
    return items


def _with_l2(penalty: Penalty, l2: float | str, total: float) -> Penalty:
    """The same kind of penalty with another l2."""
    if not is_dataclass(penalty):
        raise TypeError(
            f"a path over l2 needs one of the package's penalties, got {penalty!r}; leave l2 out"
        )
    number = resolve_l2(l2, total) if isinstance(l2, str) else l2
    return replace(penalty, l2=number)


def _names(X: Any) -> list[str] | None:
    columns = getattr(X, "columns", None)
    return None if columns is None else [str(name) for name in columns]
