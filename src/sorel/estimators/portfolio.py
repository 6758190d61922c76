"""Portfolios of least tail risk, from a table of returns: scenarios by assets.

The losses of weights w are ``u = -R w``; the estimator minimises ``risk(u) - reward * mean return``
over weights with bounds and a budget, to a certified relative gap (CVaR: Rockafellar and Uryasev
2000; spectral risks: Acerbi 2002). Contributions of assets are weights times derivatives of the
risk (Tasche 1999).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from sorel._lib.frames import as_table
from sorel._lib.inputs import check_numbers, is_real
from sorel._lib.warnings import warn
from sorel.engines.csr import check_indices
from sorel.estimators.base import SpectralModel, check_weights, spread, validated, weighted_rows
from sorel.estimators.paths import Points
from sorel.estimators.portfolio_problems import Portfolio, Portfolios, portfolio_penalty
from sorel.estimators.quantile import check_nonnegative
from sorel.problem.risks import CVaR, Deviation, Mixture, Risk, parse_risk
from sorel.solvers import Solver
from sorel.solvers.solve import convergence_warning

__all__ = ["Frontier", "SpectralRiskPortfolio"]

FloatArray = NDArray[np.float64]

DEFAULT_RISK = CVaR(0.05)


@dataclass(frozen=True, repr=False)
class Frontier(Points):
    """Portfolios of least risk for rising mean returns; one entry per point.

    Attributes
    ----------
    target_return : ndarray of shape (m,)
        The least mean return asked for.
    risk, expected_return : ndarray of shape (m,)
        Risk and mean return of each portfolio.
    reward : ndarray of shape (m,)
        How much more risk a unit of mean return costs there.
    weights : ndarray of shape (m, d)
        Weights.
    gap, relative_gap : ndarray of shape (m,)
        Certified distance of risk plus penalty to its optimum.
    passes : ndarray of shape (m,)
        What each point cost, from what was known before.
    converged : ndarray of shape (m,)
        Whether the tolerance was reached.
    asset_risk, asset_return : ndarray of shape (d,)
        Risk and mean return of the whole budget in each asset alone.
    names : list of str
        Names of the assets, or x0, x1, ...
    risk_measure : Risk
        The risk.
    """

    _kind = "portfolios"

    target_return: FloatArray
    risk: FloatArray
    expected_return: FloatArray
    reward: FloatArray
    weights: FloatArray
    gap: FloatArray
    relative_gap: FloatArray
    passes: FloatArray
    converged: NDArray[np.bool_]
    asset_risk: FloatArray
    asset_return: FloatArray
    names: list[str]
    risk_measure: Risk

    def to_frame(self) -> Any:
        """One row per portfolio: target, risk, return, certificate, weights by the assets' names.

        Returns
        -------
        DataFrame or table
            A pandas DataFrame where pandas is installed, else a dictionary of its columns.
        """
        names = ("target_return", "risk", "expected_return", "reward", "relative_gap", "converged")
        columns: dict[str, Any] = {name: getattr(self, name) for name in names}
        columns.update(zip(self.names, self.weights.T, strict=True))
        return as_table(columns)


class SpectralRiskPortfolio(SpectralModel):
    """Portfolio of least tail risk, with a certified optimum.

    By default long-only, fully invested, and without a penalty. Limits on groups of assets are not
    served: every constraint across assets besides the budget would need a multiplier of its own,
    and the exact steps of the solver rest on there being one.

    Parameters
    ----------
    risk : Risk or str, default=CVaR(0.05)
        Risk of the losses, which are minus the returns. A :class:`~sorel.Deviation` measures the
        spread alone: ``Deviation(Extremile(2))`` is half of Gini's mean difference.
    reward : float, default=0.0
        How much risk a unit of mean return is worth: minimise ``risk - reward * mean return``.
    target_return : float, optional
        Least mean return instead of a reward.
    budget : float, default=1.0
        What the weights add up to.
    lower, upper : float, array, mapping or None, default 0 and None
        Bounds of the weights, for all assets or one each. A mapping goes by the assets' names;
        those it does not name keep the default. None is no bound.
    l2 : float, default=0.0
        Weight of half the squared norm of the weights: more of it spreads them.
    previous_weights : array or mapping, optional
        The weights held now; 0 when not given.
    transaction_cost : float, array or mapping, default=0.0
        Cost of changing a weight by 1, in units of the risk.
    tol : float, default=1e-6
        Relative duality gap to reach.
    max_passes : float, default=1000
        Budget in passes over the scenarios; with a target, for each reward that is tried.
    solver : str or Solver, default="auto"
        A name or an instance from :mod:`sorel.solvers`.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores.

    Attributes
    ----------
    weights_ : ndarray of shape (d,)
        Weights of the assets; ``coef_`` is the same.
    risk_, expected_return_ : float
        Risk and mean return in the scenarios of the fit.
    reward_ : float
        The reward: as given, or the one that leads to the target.
    objective_, gap_, relative_gap_ : float
        Objective, its certified distance to the optimum, and that in the unit of the problem. With
        a target, the objective is risk plus penalty.
    risk_weights_ : ndarray of shape (n,)
        The weighting of the scenarios that certifies the weights.
    risk_contributions_ : ndarray of shape (d,)
        The part of the risk that each asset brings. They add up to ``risk_`` where the fit has
        converged, and else to as little as ``risk_ - gap_``.
    worst_scenarios_ : DataFrame or table
        The scenarios that carry the risk, the largest loss first: their weight, and the return.
    n_iter_, n_passes_ : int, float
        Outer iterations, and passes over the scenarios.
    converged_ : bool
        Whether ``relative_gap_ <= tol``.
    status_ : str
        One sentence on how the fit ended.
    n_features_in_ : int
        Assets seen in fit.
    feature_names_in_ : ndarray of shape (d,)
        Their names, where the table has names that are all strings.

    See Also
    --------
    sorel.skfolio.SpectralRiskOptimization : The same for skfolio's model selection.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import SpectralRiskPortfolio
    >>> rng = np.random.default_rng(0)
    >>> R = rng.normal([0.01, 0.02, 0.03], [0.01, 0.04, 0.09], size=(500, 3))
    >>> model = SpectralRiskPortfolio("cvar:0.05").fit(R)
    >>> model.converged_, round(float(model.weights_.sum()), 12)
    (True, 1.0)
    >>> richer = SpectralRiskPortfolio("cvar:0.05", target_return=0.02).fit(R)
    >>> round(richer.expected_return_, 6), richer.risk_ > model.risk_
    (0.02, True)
    """

    # Pickles and model files know the class by this name, wherever in the package it is written.
    __module__ = "sorel.estimators"

    def __init__(
        self,
        risk: Risk | str = DEFAULT_RISK,
        *,
        reward: float = 0.0,
        target_return: float | None = None,
        budget: float = 1.0,
        lower: Any = 0.0,
        upper: Any = None,
        l2: float = 0.0,
        previous_weights: Any = None,
        transaction_cost: Any = 0.0,
        tol: float = 1e-6,
        max_passes: float = 1000,
        solver: str | Solver = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self._keep_settings(locals())

    def fit(
        self, R: Any, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> SpectralRiskPortfolio:
        """Find the weights.

        Parameters
        ----------
        R : array-like, DataFrame or sparse matrix of shape (n, d)
            Returns: scenarios by assets.
        y : None
            Not used; scikit-learn's model selection passes it.
        sample_weight : array-like of shape (n,), optional
            Weights of the scenarios; 2 is the scenario twice.

        Returns
        -------
        SpectralRiskPortfolio
            The fitted estimator.

        Warns
        -----
        ConvergenceWarning
            If `tol` was not reached within `max_passes`.
        UserWarning
            If `R` looks like prices, or the tail of a :class:`~sorel.CVaR` holds less than one
            scenario.
        """
        labels = getattr(R, "index", None)
        check_nonnegative("reward", self.reward)
        if self.target_return is not None and self.reward != 0.0:
            raise ValueError(
                f"reward={self.reward!r} and target_return={self.target_return!r} are both "
                "given: a target finds its own reward; drop one"
            )
        target = None if self.target_return is None else _target(self.target_return)
        family, kept = self._family(R, sample_weight)
        if target is None:
            found = family.with_reward(float(self.reward))
        else:
            found = family.with_target(target)
        self._keep(family, found, kept, labels)
        if not found.converged:
            warn(
                f"relative gap {found.relative_gap:.3g} is above tol={self.tol:g}, and "
                f"risk_contributions_ add up to {self.risk_contributions_.sum():.6g} of the risk "
                f"{found.risk:.6g}; raise max_passes, give a small l2, or accept a larger tol",
                convergence_warning(),
            )
        return self

    def frontier(
        self,
        R: Any,
        n_points: int = 20,
        *,
        targets: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Frontier:
        """The efficient frontier: portfolios of least risk for rising mean returns.

        Every point starts from what is known of its neighbours. `reward` and `target_return` are
        not used, and the estimator is not fitted.

        Parameters
        ----------
        R : array-like, DataFrame or sparse matrix of shape (n, d)
            Returns: scenarios by assets.
        n_points : int, default=20
            Portfolios from the one of least risk to the one of the largest mean return, evenly
            spaced in the mean return.
        targets : array-like, optional
            The mean returns, instead of `n_points`.
        sample_weight : array-like of shape (n,), optional
            Weights of the scenarios.

        Returns
        -------
        Frontier
            Risk, return and weights of each point; :func:`sorel.plots.plot_frontier` draws it.

        Examples
        --------
        >>> import numpy as np
        >>> from sorel import SpectralRiskPortfolio
        >>> R = np.random.default_rng(0).normal([0.01, 0.02], [0.01, 0.04], size=(200, 2))
        >>> frontier = SpectralRiskPortfolio().frontier(R, n_points=3)
        >>> frontier.weights.shape, bool(np.all(np.diff(frontier.risk) > 0.0))
        ((3, 2), True)
        """
        family, _ = self._family(R, sample_weight)
        if targets is None:
            if not (is_real(n_points) and n_points >= 1 and n_points % 1 == 0):
                raise ValueError(f"n_points must be a whole number above 0, got {n_points!r}")
            highest = family.highest_mean()
            if not math.isfinite(highest):
                raise ValueError(
                    "the mean return has no upper limit within these bounds: give targets, or "
                    "finite bounds"
                )
            least = family.with_reward(0.0)
            values = np.linspace(least.mean, max(highest, least.mean), int(n_points))
            points = [least, *(family.with_target(float(value)) for value in values[1:])]
        else:
            values = np.sort([_target(value) for value in np.ravel(targets).tolist()])
            points = [family.with_target(value) for value in values.tolist()]
        missed = [p for p in points if not p.converged]
        if missed:
            warn(
                f"{len(missed)} of {len(points)} points miss tol={self.tol:g}, the worst with a "
                f"relative gap of {max(p.relative_gap for p in missed):.3g}; raise max_passes, or "
                "give a small l2",
                convergence_warning(),
            )
        dense = family.R.toarray() if scipy.sparse.issparse(family.R) else np.asarray(family.R)
        singles = [family.risk(-self.budget * column, family.sample_weight) for column in dense.T]

        def each(name: str) -> Any:
            return np.array([getattr(point, name) for point in points])

        same = ("risk", "reward", "gap", "relative_gap", "passes", "converged")
        return Frontier(
            target_return=values,
            expected_return=each("mean"),
            weights=each("w"),
            asset_risk=np.array(singles),
            asset_return=self.budget * family.means,
            names=self._names(),
            risk_measure=family.risk,
            **{name: each(name) for name in same},
        )

    def predict(self, R: Any) -> FloatArray:
        """Returns of the portfolio.

        Parameters
        ----------
        R : array-like, DataFrame or sparse matrix of shape (n, d)
            Returns of the assets.

        Returns
        -------
        ndarray of shape (n,)
            The return in each scenario.
        """
        check_is_fitted(self, "weights_")
        _refuse_gaps(R)
        return self._scores(R)

    def score(self, R: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Minus ``CVaR(0.05)`` of the portfolio's losses: larger is better.

        It is the same measure whatever `risk` is, so that a search over risks compares like with
        like. For another measure give the search a function as `scoring`, such as
        ``lambda model, R, y=None: -ESRM(10)(-model.predict(R))``.

        Parameters
        ----------
        R : array-like, DataFrame or sparse matrix of shape (n, d)
            Returns of the assets.
        y : None
            Not used.
        sample_weight : array-like of shape (n,), optional
            Weights of the scenarios.

        Returns
        -------
        float
        """
        return -float(DEFAULT_RISK(-self.predict(R), sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags

    def _family(
        self, R: Any, sample_weight: ArrayLike | None
    ) -> tuple[Portfolios, NDArray[np.bool_] | None]:
        """The problems of these returns, and which scenarios have a weight."""
        risk = parse_risk(self.risk)
        check_nonnegative("l2", self.l2)
        check_numbers(R, "R")
        _refuse_same_names(R)
        _refuse_gaps(R)
        R = validated(self, R)
        rows = weighted_rows(R, np.zeros(R.shape[0]), check_weights(sample_weight, R))
        names = self._names()
        lower = -math.inf if self.lower is None else self.lower
        given = {
            "lower": _per_asset(lower, "lower", names, 0.0),
            "upper": _per_asset(self.upper, "upper", names, math.inf),
            "cost": _per_asset(self.transaction_cost, "transaction_cost", names, 0.0),
            "previous": _per_asset(self.previous_weights, "previous_weights", names, 0.0),
        }
        if not is_real(self.budget):
            raise ValueError(f"budget must be a number, got {self.budget!r}")
        if self.budget == 0.0 and np.all(np.asarray(given["lower"]) >= 0.0):
            raise ValueError(
                "budget=0 leaves nothing to invest where no weight may be negative; give a budget, "
                "or a negative lower bound for a portfolio of long and short positions"
            )
        penalty = portfolio_penalty(len(names), float(self.l2), float(self.budget), **given)
        family = Portfolios(
            rows.X, risk, penalty, sample_weight=rows.sample_weight, tol=self.tol,
            max_passes=self.max_passes, solver=self.solver, n_jobs=self.n_jobs,
        )  # fmt: skip
        _warn_of_prices(family)
        _warn_of_thin_tails(risk, family.omega)
        return family, rows.kept

    def _names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        return [f"x{j}" for j in range(self.n_features_in_)]

    def _keep(
        self, family: Portfolios, found: Portfolio, kept: NDArray[np.bool_] | None, labels: Any
    ) -> None:
        self._keep_outcome(found)
        self.n_iter_ = max(1, found.n_iter)
        self.weights_ = self.coef_ = found.w
        self.intercept_ = 0.0
        self.risk_, self.expected_return_, self.reward_ = found.risk, found.mean, found.reward
        share = family.risk.share if isinstance(family.risk, Deviation) else 0.0
        signed = found.weights - share * family.omega
        parts = -found.w * np.asarray(family.R.T @ signed, dtype=np.float64)
        sizes = np.abs(found.w)
        if found.converged and sizes.any():
            # The weighting is the worst one up to the gap, which is shared out by these sizes.
            parts += (found.risk - parts.sum()) * sizes / sizes.sum()
        self.risk_contributions_ = parts
        self.risk_weights_ = spread(found.weights, kept)
        n = len(self.risk_weights_)
        at = np.arange(n) if kept is None else np.flatnonzero(kept)
        # Weights that are rounding errors beside the largest carry nothing.
        least = np.sqrt(np.finfo(np.float64).eps) * found.weights.max()
        carry = np.flatnonzero(found.weights > least)
        returns = np.asarray(family.R @ found.w, dtype=np.float64)
        carry = carry[np.argsort(returns[carry], kind="stable")]
        # Plain arrays, which every way of saving a model takes.
        names = np.arange(n) if labels is None else np.asarray(labels)
        names = names.astype(str) if names.dtype.kind == "O" else names
        self._worst = names[at[carry]], found.weights[carry], returns[carry]

    @property
    def worst_scenarios_(self) -> Any:
        """The scenarios that carry the risk, the largest loss first: their weight, and the return.

        A pandas DataFrame where pandas is installed, else a dictionary of its columns.
        """
        if "_worst" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} has no scenarios: fit it first")
        names, weights, values = self._worst
        columns: dict[str, Any] = {"weight": weights, "return": values}
        return as_table(columns, list(names), "scenario")

    objective_: float
    gap_: float
    relative_gap_: float


def _target(value: Any) -> float:
    if not (is_real(value) and math.isfinite(value)):
        raise ValueError(f"target_return must be a finite number, got {value!r}")
    return float(value)


def _per_asset(value: Any, name: str, names: list[str], default: float) -> float | FloatArray:
    """A setting as a number for all assets or an array with one for each.

    `default` is for assets that a mapping does not name, and for None.
    """
    if value is None:
        return default
    if isinstance(value, Mapping) or hasattr(value, "reindex"):
        given = {str(key): number for key, number in value.items()}
        unknown = [key for key in given if key not in names]
        if unknown:
            raise ValueError(
                f"{name} names {unknown[0]!r}, which is no column of the returns: {names[:5]}"
                f"{' ...' if len(names) > 5 else ''}"
            )
        return np.array([given.get(asset, default) for asset in names], dtype=np.float64)
    if np.ndim(value) == 0:
        if isinstance(value, (bool, np.bool_, str)):
            raise TypeError(f"{name} must be a number, an array or a mapping, got {value!r}")
        return float(value)
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (len(names),):
        raise ValueError(
            f"{name} must have one value for each of the {len(names)} assets, got shape "
            f"{array.shape}"
        )
    return array


def _refuse_same_names(R: Any) -> None:
    for name, count in Counter(getattr(R, "columns", ())).items():
        if count > 1:
            raise ValueError(f"the returns have {count} columns called {name!r}; rename them")


def _warn_of_prices(family: Portfolios) -> None:
    # A return of 1 doubles the money. No market does so on average without a single loss.
    if family.R.min() > 0.0 and family.means.mean() > 1.0:
        warn(
            f"all returns are positive, with a mean of {family.means.mean():.3g} (1 is a gain of "
            "100 %), and look like prices; give relative changes, as from prices.pct_change()"
        )


def _warn_of_thin_tails(risk: Risk, omega: FloatArray) -> None:
    """Warn where a CVaR is the largest loss only because there are too few scenarios."""
    if isinstance(risk, Deviation):
        _warn_of_thin_tails(risk.risk, omega)
    elif isinstance(risk, Mixture):
        for component in risk.components:
            _warn_of_thin_tails(component, omega)
    elif isinstance(risk, CVaR) and risk.alpha < omega.min():
        warn(
            f"{risk!r} of {len(omega)} scenarios is the largest loss: its tail holds less than one "
            f"scenario, of which each has a share of {omega.min():.3g} or more; use a larger "
            "alpha, more scenarios, or the risk 'max' if that is meant"
        )


def _refuse_gaps(R: Any) -> None:
    """Refuse returns that are missing or not finite, by asset and scenario."""
    if scipy.sparse.issparse(R):
        check_indices(R)
        entries = R.tocoo()
        bad = ~np.isfinite(entries.data)
        rows, columns, values = entries.row[bad], entries.col[bad], entries.data[bad]
    else:
        try:
            table = np.asarray(R, dtype=np.float64)
        except (TypeError, ValueError):
            # What is no number at all is told by the checks that follow.
            return
        if table.ndim != 2:
            return
        rows, columns = np.nonzero(~np.isfinite(table))
        values = table[rows, columns]
    if not len(values):
        return
    names, index = getattr(R, "columns", None), getattr(R, "index", None)
    asset = int(columns[0]) if names is None else repr(str(names[columns[0]]))
    scenario = int(rows[0]) if index is None or callable(index) else index[rows[0]]
    more = f" ({len(values)} such values in all)" if len(values) > 1 else ""
    raise ValueError(
        f"the return of asset {asset} in scenario {scenario} is {values[0]}{more}; drop or fill in "
        "such values. NaN and infinity are not returns"
    )
