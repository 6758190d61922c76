"""Estimators that choose risk and l2 by cross-validation.

Every fold solves the grid of risks and l2 from warm starts, in its own joblib task; the pair that
fares best on the held-out rows is fitted again on all of them. The tail alone is no judge of that:
on noisy labels the constant model has the best tail of all. So by default a pair must also keep its
mean loss near the best one, and its model must not be constant.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from time import perf_counter as now
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata
from sklearn.base import clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils import indexable
from sklearn.utils.parallel import Parallel, delayed

from sorel._lib.defaults import FIT_INTERCEPT, MAX_PASSES, MODEL_TOL
from sorel._lib.inputs import is_real
from sorel._lib.warnings import warn
from sorel.estimators.base import SpectralFit, SpectralModel, product
from sorel.estimators.classifier import ClassifierFace, SpectralRiskClassifier
from sorel.estimators.constant_model import ConstantModelWarning
from sorel.estimators.metrics import get_scorer, make_tail_scorer
from sorel.estimators.paths import snake_order
from sorel.estimators.regressor import RegressorFace, SpectralRiskRegressor
from sorel.problem.losses import Loss, parse_loss
from sorel.problem.penalties import Penalty, choose_penalty
from sorel.problem.risks import Mean, Risk, parse_risk
from sorel.solvers import Solver

__all__ = ["SpectralRiskClassifierCV", "SpectralRiskRegressorCV"]

_RISKS = ("mean", "cvar:0.5", "cvar:0.2", "cvar:0.1")
_L2S = ("auto", 1e-4, 1e-2, 1.0)
# The score of the search when none is given: the mean loss of the worst tenth. It decides among
# the pairs whose mean loss exceeds the best one by no more than this share.
_DEFAULT_TAIL = "cvar:0.1"
_MEAN_SLACK = 0.25


class SpectralSearch(SpectralModel):
    """The search that both estimators share."""

    _kind: type[SpectralFit]

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Search the grid, then fit the best pair on all rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.
        y : array-like of shape (n,)
            Targets, or labels of any kind, two or more.
        sample_weight : array-like of shape (n,), optional
            Weights, for fitting and, where the scorer takes them, for scoring.
        groups : array-like of shape (n,), optional
            Groups, for splitters that need them.

        Returns
        -------
        self
            The fitted estimator.
        """
        X, y, weight = self._read(X, y, sample_weight)
        self._encode(y if weight is None else y[weight > 0.0])
        risks = [parse_risk(risk) for risk in self.risks]
        l2s = list(self.l2s)
        if not risks or not l2s:
            raise ValueError(f"risks and l2s must not be empty, got {self.risks!r}, {self.l2s!r}")
        if self.penalty is not None:
            if tuple(l2s) != _L2S:
                raise ValueError(
                    f"penalty={self.penalty!r} and l2s={self.l2s!r} are both given: drop l2s, "
                    "since the penalty has its own l2, or drop penalty"
                )
            l2s = ["auto"]
        for l2 in l2s:
            choose_penalty(self.penalty, l2, self.l1, self.positive, 1.0)
        scorer = _Scorer(self.scoring, self.mean_slack, self.loss)
        X, y, groups = indexable(X, y, groups)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self))
        model = self._model()
        tables = Parallel(n_jobs=self.n_jobs, verbose=max(0, self.verbose - 1))(
            delayed(_score_fold)(model, risks, l2s, X, y, weight, train, test, scorer)
            for train, test in splitter.split(X, y, groups)
        )
        named: list[float | str] = l2s if self.penalty is None else [self.penalty.l2]
        self.cv_results_ = _tabulate(risks, named, np.array(tables))
        self.n_splits_ = len(tables)
        self.best_index_ = scorer.choose(self.cv_results_)
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        self.best_risk_ = risks[self.best_index_ // len(l2s)]
        at = self.best_index_ % len(l2s)
        self.best_l2_ = named[at]
        if not self.refit:
            if self.cv_results_["constant_share"][self.best_index_] >= 0.5:
                warn(
                    "the chosen model is (nearly) constant on most folds, as are all others that "
                    "were admitted; add milder risks to the grid, a smaller l2, or other features",
                    ConstantModelWarning,
                )
            return self
        model.set_params(risk=self.best_risk_, l2=l2s[at], verbose=self.verbose)
        model.fit(X, y, sample_weight=weight)
        for name, value in model._fitted().items():
            setattr(self, name, value)
        return self

    def _model(self) -> SpectralFit:
        """An estimator with the settings of the search; threads and progress are their own."""
        own = self.get_params(deep=False)
        shared = own.keys() & self._kind().get_params(deep=False).keys() - {"n_jobs", "verbose"}
        return self._kind(**{name: own[name] for name in shared})


def _score_fold(
    model: SpectralFit,
    risks: list[Risk],
    l2s: list[float | str],
    X: Any,
    y: NDArray[Any],
    sample_weight: NDArray[np.float64] | None,
    train: NDArray[np.intp],
    test: NDArray[np.intp],
    scorer: _Scorer,
) -> NDArray[np.float64]:
    """What is known of every grid point on one fold (_FACTS), in the order of the grid."""
    model = clone(model)
    # The search deals with constant models itself; the last fit speaks of its own.
    model._speaks_of_constant = False
    X_train, X_test, y_train, y_test = X[train], X[test], y[train], y[test]
    weight = weight_test = None
    if sample_weight is not None:
        weight, weight_test = sample_weight[train], sample_weight[test]
    out = np.empty((len(risks), len(l2s), len(_FACTS)))
    grid = list(snake_order(len(risks), len(l2s)))
    begin = now()
    task = model._task(X_train, y_train, weight)
    fits = model._fits_along(task, [(risks[i], l2s[j]) for i, j in grid])
    for (i, j), _ in zip(grid, fits, strict=True):
        seconds = now() - begin
        if model.status_.startswith("interrupted"):
            raise KeyboardInterrupt("the search was interrupted")
        out[i, j] = (
            *scorer(model, X_test, y_test, weight_test),
            model.constant_,
            model.n_passes_,
            seconds,
        )
        begin = now()
    return out.reshape(-1, len(_FACTS))


_FACTS = ("score", "mean_loss", "constant", "passes", "seconds")


class _Scorer:
    """What the search knows of a model on held-out rows, and how it chooses by that."""

    def __init__(self, scoring: Any, mean_slack: float | None, loss: str | Loss) -> None:
        self._plain = None if scoring is None else get_scorer(scoring)
        self._tail, self._loss = make_tail_scorer(_DEFAULT_TAIL, loss), parse_loss(loss)
        if mean_slack is not None and not (is_real(mean_slack) and mean_slack >= 0.0):
            raise ValueError(
                "mean_slack must be None or a number of at least 0, such as 0.03 for 3%, got "
                f"{mean_slack!r}"
            )
        self._slack = mean_slack if scoring is None else None

    def __call__(self, model: Any, X: Any, y: Any, weight: Any) -> tuple[float, float]:
        """The score of a model on these rows, and its mean loss where the choice needs it."""
        if self._plain is not None:
            weighted = weight is not None and _takes_sample_weight(self._plain)
            arguments = {"sample_weight": weight} if weighted else {}
            return float(self._plain(model, X, y, **arguments)), math.nan
        loss = self._loss
        if loss.is_classifier or loss.link != "identity":
            losses = self._tail.losses(model, X, y)
        else:
            # Margins are predictions: the rows need not be checked again for every model, which
            # takes a third of a search on 2000 rows.
            losses = loss.value(loss.encode(y)[0], product(X, model.coef_) + model.intercept_)
        return -self._tail.risk(losses, weight), Mean()(losses, weight)

    def choose(self, results: dict[str, Any]) -> int:
        """The row of the best grid point."""
        score = np.where(np.isnan(results["mean_test_score"]), -np.inf, results["mean_test_score"])
        if self._slack is None:
            return int(np.argmax(score))
        learnt = results["constant_share"] < 0.5
        if not learnt.any():
            learnt[:] = True
        mean = results["mean_test_mean_loss"]
        best = np.min(mean[learnt & np.isfinite(mean)], initial=np.inf)
        admitted = learnt & (mean <= best + self._slack * abs(best))
        if not admitted.any():  # no grid point could be scored
            return int(np.argmax(score))
        return int(np.argmax(np.where(admitted, score, -np.inf)))


def _takes_sample_weight(scorer: Callable[..., Any]) -> bool:
    # scikit-learn's scorers take any argument and hand it to their metric, which may not.
    function = getattr(scorer, "_score_func", scorer)
    return "sample_weight" in inspect.signature(function).parameters


def _tabulate(
    risks: list[Risk], l2s: list[float | str], tables: NDArray[np.float64]
) -> dict[str, Any]:
    """Tables of shape (folds, grid points, facts) in the form of GridSearchCV's results."""
    scores, mean_losses, constant, passes, seconds = np.moveaxis(tables, 2, 0)
    mean = scores.mean(axis=0)
    results: dict[str, Any] = {
        "param_risk": np.array([risk for risk in risks for _ in l2s], dtype=object),
        "param_l2": np.array([l2 for _ in risks for l2 in l2s], dtype=object),
    }
    results.update({f"split{k}_test_score": column for k, column in enumerate(scores)})
    results["mean_test_score"] = mean
    results["std_test_score"] = scores.std(axis=0)
    # A grid point that could not be scored comes last.
    results["rank_test_score"] = rankdata(
        -np.where(np.isnan(mean), -np.inf, mean), method="min"
    ).astype(np.int32)
    if not np.isnan(mean_losses).all():
        results["mean_test_mean_loss"] = mean_losses.mean(axis=0)
    results["constant_share"] = constant.mean(axis=0)
    results["mean_passes"] = passes.mean(axis=0)
    results["mean_fit_time"] = seconds.mean(axis=0)
    return results


class SpectralRiskRegressorCV(RegressorFace, SpectralSearch):
    """Spectral risk regression with risk and l2 chosen by cross-validation.

    Parameters
    ----------
    risks : sequence of Risk or str, default=("mean", "cvar:0.5", "cvar:0.2", "cvar:0.1")
        Risks to choose from. Put neighbours side by side: each fit starts from the last one.
    l2s : sequence of float or "auto", default=("auto", 1e-4, 1e-2, 1.0)
        Weights of ``||w||^2 / 2`` to choose from; "auto" is 1 / n of the rows fitted.
    cv : int, cross-validation generator or iterable, default=None
        Folds, as in ``sklearn.model_selection.GridSearchCV``; None is 5-fold.
    scoring : str or callable, default=None
        None chooses the least mean of the worst tenth of the held-out losses among the pairs that
        `mean_slack` admits. Otherwise what to maximise, and nothing else: a scorer's name
        ("neg_cvar_10" and the others of ``sorel.metrics.SCORERS``, or scikit-learn's), or a
        function of (estimator, X, y). The tail alone is a treacherous one: where noise makes up
        the tail, the constant model has the best tail of all.
    mean_slack : float or None, default=0.25
        With ``scoring=None``, how far the mean held-out loss of a pair may exceed the best one of
        the grid: 0.25 admits a quarter more. Pairs whose model is (nearly) constant on most folds
        are not admitted, unless all are. None admits all pairs.
    n_jobs : int, default=None
        Folds in parallel, through joblib.
    refit : bool, default=True
        Fit the best pair on all rows. Without it there are ``best_risk_``, ``best_l2_`` and
        ``cv_results_`` only.
    loss : {"squared", "huber", "poisson", "gamma"} or Loss, default="squared"
        Loss of one residual.
    l1 : float, default=0.0
        Weight of ``||w||_1``.
    penalty : Penalty, optional
        A penalty in place of l2, l1 and positive: risks alone are chosen then, and `l2s` must be
        left alone.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool or "mean", default=True
        Whether to fit an intercept, which is not penalised; see :class:`SpectralRiskRegressor`.
    solver : str or Solver, default="auto"
        A name or an instance from :mod:`sorel.solvers`.
    tol : float, default=1e-4
        Relative duality gap to reach in every fit.
    max_passes : float, default=1000
        Budget of every fit, in passes over its data.
    batch_size : int, default=1
        Samples per stochastic step of ``solver="sorel"``.
    random_state : int, Generator, RandomState or None, default=None
        Randomness of the stochastic solvers.
    verbose : int, default=0
        1 shows the progress of the last fit, 2 that of joblib too.

    Attributes
    ----------
    best_risk_ : Risk
        The risk chosen.
    best_l2_ : float or "auto"
        The l2 chosen, as given; ``l2_`` is its value in the last fit.
    best_score_ : float
        Mean score of the pair on the held-out rows: with ``scoring=None``, minus the mean of the
        worst tenth of the losses.
    best_index_ : int
        Its row in ``cv_results_``.
    cv_results_ : dict of arrays
        ``param_risk``, ``param_l2``, ``mean_test_score``, ``std_test_score``, ``rank_test_score``,
        ``split<k>_test_score``, ``mean_test_mean_loss`` (with ``scoring=None``),
        ``constant_share`` (of the folds, on which the model was constant), ``mean_passes``,
        ``mean_fit_time``; ``pandas.DataFrame`` reads it. The rank is that of the score alone.
    n_splits_ : int
        Number of folds.
    coef_, intercept_, risk_weights_, objective_, gap_, relative_gap_, n_passes_, n_iter_, \
converged_, status_, constant_, history_, l2_, n_features_in_, feature_names_in_
        As in :class:`SpectralRiskRegressor`, of the fit on all rows.

    See Also
    --------
    SpectralRiskRegressor : One fit with a given risk and l2.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import SpectralRiskRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = X @ [1.0, 2.0, 3.0] + rng.standard_t(3, size=200)
    >>> search = SpectralRiskRegressorCV(risks=["mean", "cvar:0.5"], l2s=[0.01, 0.1]).fit(X, y)
    >>> len(search.cv_results_["mean_test_score"]), search.coef_.shape
    (4, (3,))
    """

    _kind = SpectralRiskRegressor

    def __init__(
        self,
        risks: Sequence[Risk | str] = _RISKS,
        *,
        l2s: Sequence[float | str] = _L2S,
        cv: Any = None,
        scoring: str | Callable[..., float] | None = None,
        mean_slack: float | None = _MEAN_SLACK,
        n_jobs: int | None = None,
        refit: bool = True,
        loss: str | Loss = "squared",
        l1: float = 0.0,
        penalty: Penalty | None = None,
        positive: bool = False,
        fit_intercept: bool | str = FIT_INTERCEPT,
        solver: str | Solver = "auto",
        tol: float = MODEL_TOL,
        max_passes: float = MAX_PASSES,
        batch_size: int = 1,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self._keep_settings(locals())


class SpectralRiskClassifierCV(ClassifierFace, SpectralSearch):
    """Spectral risk classification with risk and l2 chosen by cross-validation.

    Parameters
    ----------
    risks : sequence of Risk or str, default=("mean", "cvar:0.5", "cvar:0.2", "cvar:0.1")
        Risks to choose from. Put neighbours side by side: each fit starts from the last one.
    l2s : sequence of float or "auto", default=("auto", 1e-4, 1e-2, 1.0)
        Weights of ``||w||^2 / 2`` to choose from; "auto" is 1 / n of the rows fitted.
    cv : int, cross-validation generator or iterable, default=None
        Folds, as in ``sklearn.model_selection.GridSearchCV``; None is stratified 5-fold.
    scoring : str or callable, default=None
        None chooses the least mean of the worst tenth of the held-out losses among the pairs that
        `mean_slack` admits. Otherwise what to maximise, and nothing else: a scorer's name
        ("neg_cvar_10" and the others of ``sorel.metrics.SCORERS``, or scikit-learn's), or a
        function of (estimator, X, y). The tail alone is a treacherous one: where noise makes up
        the tail, the constant model has the best tail of all.
    mean_slack : float or None, default=0.25
        With ``scoring=None``, how far the mean held-out loss of a pair may exceed the best one of
        the grid: 0.25 admits a quarter more. Pairs whose model is (nearly) constant on most folds
        are not admitted, unless all are. None admits all pairs.
    n_jobs : int, default=None
        Folds in parallel, through joblib.
    refit : bool, default=True
        Fit the best pair on all rows. Without it there are ``best_risk_``, ``best_l2_`` and
        ``cv_results_`` only.
    loss : {"logistic", "squared_hinge"} or Loss, default="logistic"
        Loss of one margin, as in :class:`SpectralRiskClassifier`.
    l1 : float, default=0.0
        Weight of ``||w||_1``.
    penalty : Penalty, optional
        A penalty in place of l2, l1 and positive: risks alone are chosen then, and `l2s` must be
        left alone.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    class_weight : dict or "balanced", optional
        Weights of the classes in every fit, as in :class:`SpectralRiskClassifier`; scores are not
        weighted by them.
    solver : str or Solver, default="auto"
        A name or an instance from :mod:`sorel.solvers`.
    tol : float, default=1e-4
        Relative duality gap to reach in every fit.
    max_passes : float, default=1000
        Budget of every fit, in passes over its data.
    batch_size : int, default=1
        Samples per stochastic step of ``solver="sorel"``.
    random_state : int, Generator, RandomState or None, default=None
        Randomness of the stochastic solvers.
    verbose : int, default=0
        1 shows the progress of the last fit, 2 that of joblib too.

    Attributes
    ----------
    best_risk_ : Risk
        The risk chosen.
    best_l2_ : float or "auto"
        The l2 chosen, as given; ``l2_`` is its value in the last fit.
    best_score_ : float
        Mean score of the pair on the held-out rows: with ``scoring=None``, minus the mean of the
        worst tenth of the losses.
    best_index_ : int
        Its row in ``cv_results_``.
    cv_results_ : dict of arrays
        ``param_risk``, ``param_l2``, ``mean_test_score``, ``std_test_score``, ``rank_test_score``,
        ``split<k>_test_score``, ``mean_test_mean_loss`` (with ``scoring=None``),
        ``constant_share`` (of the folds, on which the model was constant), ``mean_passes``,
        ``mean_fit_time``; ``pandas.DataFrame`` reads it. The rank is that of the score alone.
    n_splits_ : int
        Number of folds.
    classes_, coef_, intercept_, risk_weights_, objective_, gap_, relative_gap_, n_passes_, \
n_iter_, converged_, status_, constant_, history_, l2_, n_features_in_, feature_names_in_
        As in :class:`SpectralRiskClassifier`, of the fit on all rows.

    See Also
    --------
    SpectralRiskClassifier : One fit with a given risk and l2.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sorel import SpectralRiskClassifierCV
    >>> X, y = load_iris(return_X_y=True)
    >>> search = SpectralRiskClassifierCV(risks=["mean", "cvar:0.5"], l2s=[0.01], cv=3).fit(X, y)
    >>> search.score(X, y) > 0.9
    True
    """

    _kind = SpectralRiskClassifier

    def __init__(
        self,
        risks: Sequence[Risk | str] = _RISKS,
        *,
        l2s: Sequence[float | str] = _L2S,
        cv: Any = None,
        scoring: str | Callable[..., float] | None = None,
        mean_slack: float | None = _MEAN_SLACK,
        n_jobs: int | None = None,
        refit: bool = True,
        loss: str | Loss = "logistic",
        l1: float = 0.0,
        penalty: Penalty | None = None,
        positive: bool = False,
        fit_intercept: bool = FIT_INTERCEPT,
        class_weight: dict[Any, float] | str | None = None,
        solver: str | Solver = "auto",
        tol: float = MODEL_TOL,
        max_passes: float = MAX_PASSES,
        batch_size: int = 1,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self._keep_settings(locals())
