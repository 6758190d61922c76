"""Estimators that choose risk and l2 by cross-validation.

Every fold solves the grid of risks and l2 from warm starts, in its own joblib task; the pair that
fares best on the held-out rows is fitted again on all of them. The tail alone is no judge of that:
on noisy labels the constant model has the best tail of all. So a pair must also keep its mean loss
near that of the plain fit, and its model must not be constant. ``search_report_`` says what that
gained and what it cost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from time import perf_counter as now
from typing import Any, ClassVar, NamedTuple, Self

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
from sorel.estimators.baselines import PLAIN, baselines
from sorel.estimators.classifier import ClassifierFace, SpectralRiskClassifier
from sorel.estimators.constant_model import ConstantModelWarning
from sorel.estimators.metrics import get_scorer, make_tail_scorer
from sorel.estimators.paths import as_list, snake_order
from sorel.estimators.regressor import RegressorFace, SpectralRiskRegressor
from sorel.estimators.search_report import Comparison, Fold, SearchReport
from sorel.problem.losses import Loss, parse_loss
from sorel.problem.penalties import Penalty, choose_penalty
from sorel.problem.risks import CVaR, Deviation, Mean, Mixture, Risk, parse_risk, spelled
from sorel.problem.validation import check_offset
from sorel.solvers import Solver

__all__ = ["SearchReport", "SpectralRiskClassifierCV", "SpectralRiskRegressorCV"]

_L2S = ("auto", 1e-4, 1e-2, 1.0)
_TAIL = "cvar:0.1"
# By what share the mean held-out loss may exceed that of the plain fit.
_MEAN_SLACK = 0.25
# Shares of the tail in the mixtures with the mean that are tried. 0.03 serves a slack of 3 % on
# labels, where 0.1 costs more (benchmarks.goal, churn).
_TAIL_SHARES = (0.03, 0.1, 0.3, 0.6)
# Levels of CVaR that are tried where the tail is a smaller one.
_MILDER_LEVELS = (0.5, 0.2)
# Losses on which the share that carries a tail is looked at.
_ROWS_OF_A_TAIL = 1000


class SpectralSearch(SpectralModel):
    """The search that both estimators share."""

    _kind: type[SpectralFit]
    # Groups are for the splitter, and are routed here without a call of set_fit_request.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}

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
        return self._search(X, y, sample_weight, groups)

    def _search(self, X: Any, y: Any, sample_weight: Any, groups: Any, offset: Any = None) -> Self:
        X, y, weight = self._read(X, y, sample_weight)
        self._encode(y if weight is None else y[weight > 0.0])
        tail = _parse_tail(self.tail)
        risks = _risks_towards(tail)
        if self.risks is not None:
            risks = [parse_risk(risk) for risk in as_list("risks", self.risks, (Risk, str))]
        l2s = as_list("l2s", self.l2s, (float, int, str, np.number))
        if self.penalty is not None:
            if tuple(l2s) != _L2S:
                raise ValueError(
                    f"penalty={self.penalty!r} and l2s={self.l2s!r} are both given: drop l2s, "
                    "since the penalty has its own l2, or drop penalty"
                )
            l2s = ["auto"]
        for l2 in l2s:
            choose_penalty(self.penalty, l2, self.l1, self.positive, 1.0)
        _check_slack(self.mean_slack)
        scorer = _Scorer(self.scoring, tail, self.loss)
        if offset is not None:
            offset = check_offset(offset, parse_loss(self.loss), len(y))
            if self.scoring is not None:
                raise ValueError(
                    f"scoring={self.scoring!r} would see predictions without the offset; leave it "
                    "out: the search judges by the losses, to which the offset belongs"
                )
        X, y, groups = indexable(X, y, groups)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self))
        model = self._model()
        # The plain fit is always searched: it is what the others are compared with.
        searched = risks if Mean() in risks else [Mean(), *risks]
        splits = list(splitter.split(X, y, groups))

        def on_folds(function: Callable[..., Any], *arguments: Any) -> list[Any]:
            parallel = Parallel(n_jobs=self.n_jobs, verbose=max(0, self.verbose - 1))
            data = _Rows(X, y, weight, offset)
            return list(parallel(delayed(function)(*arguments, data, *split) for split in splits))

        found = on_folds(_score_fold, model, searched, l2s, scorer)
        tables, folds = zip(*found, strict=True)
        named: list[float | str] = l2s if self.penalty is None else [self.penalty.l2]
        self.cv_results_ = _tabulate(searched, named, np.array(tables))
        self.n_splits_ = len(tables)
        choice = _Choice(self.cv_results_, folds, risks, self.mean_slack)
        self.best_index_ = choice.best
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        self.best_risk_ = searched[self.best_index_ // len(l2s)]
        at = self.best_index_ % len(l2s)
        self.best_l2_ = named[at]
        model.set_params(risk=tail, l2=l2s[choice.reference % len(l2s)])
        self.search_report_ = choice.report(tail, on_folds(_score_baselines, model, scorer))
        if self.best_risk_ not in risks:
            warn(
                "no risk of the grid keeps the mean held-out loss within mean_slack="
                f"{self.mean_slack!r} of the plain fit's, so the plain fit was chosen; add milder "
                "risks to the grid, or raise mean_slack"
            )
        if not self.refit:
            if self.cv_results_["constant_share"][self.best_index_] >= 0.5:
                warn(
                    "the chosen model is (nearly) constant on most folds, as are all others that "
                    "were admitted; add milder risks to the grid, a smaller l2, or other features",
                    ConstantModelWarning,
                )
            return self
        model.set_params(risk=self.best_risk_, l2=l2s[at], verbose=self.verbose)
        model.fit(**_Rows(X, y, weight, offset).given)
        for name, value in model._fitted().items():
            setattr(self, name, value)
        return self

    def _model(self) -> SpectralFit:
        """An estimator with the settings of the search; threads and progress are their own."""
        own = self.get_params(deep=False)
        shared = own.keys() & self._kind().get_params(deep=False).keys() - {"n_jobs", "verbose"}
        return self._kind(**{name: own[name] for name in shared})


def _parse_tail(given: Risk | str) -> Risk:
    try:
        tail = parse_risk(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"tail={given!r}: {error}") from None
    if isinstance(tail, Deviation):
        raise ValueError(
            f"tail={given!r} is a deviation, the same for small losses as for large ones; give a "
            "risk such as 'cvar:0.1'"
        )
    return tail


def _risks_towards(tail: Risk) -> list[Risk]:
    """From the mean to the tail: mixtures of both, with milder tails between them."""
    parts, weights = [tail], [1.0]
    if isinstance(tail, Mixture):
        parts, weights = list(tail.components), list(tail.get_params()["weights"])
    risks: list[tuple[float, Risk]] = [(1.0, Mean()), (0.0, tail)]
    for share in _TAIL_SHARES:
        shares = [1.0 - share, *(share * weight / sum(weights) for weight in weights)]
        risks.append((1.0 - share, Mixture([Mean(), *parts], shares)))
    reach = tail.effective_share(_ROWS_OF_A_TAIL)
    risks += [(level, CVaR(level)) for level in _MILDER_LEVELS if level > reach]
    return [risk for _, risk in sorted(risks, key=lambda pair: -pair[0])]


def _check_slack(mean_slack: float | None) -> None:
    if mean_slack is not None and not (is_real(mean_slack) and mean_slack >= 0.0):
        raise ValueError(
            "mean_slack must be None or a number of at least 0, such as 0.03 for 3%, got "
            f"{mean_slack!r}"
        )


class _Rows(NamedTuple):
    """Rows with their targets, weights and offsets."""

    X: Any
    y: Any
    weight: NDArray[np.float64] | None
    offset: NDArray[np.float64] | None

    def at(self, rows: NDArray[np.intp]) -> _Rows:
        return _Rows(*(None if values is None else values[rows] for values in self))

    @property
    def given(self) -> dict[str, Any]:
        """What a fit is given; a classifier knows no offset."""
        added = {} if self.offset is None else {"offset": self.offset}
        return {"X": self.X, "y": self.y, "sample_weight": self.weight, **added}


def _score_fold(
    model: SpectralFit,
    risks: list[Risk],
    l2s: list[float | str],
    scorer: _Scorer,
    data: _Rows,
    train: NDArray[np.intp],
    test: NDArray[np.intp],
) -> tuple[NDArray[np.float64], Fold]:
    """What is known of every grid point on one fold (_FACTS), in the order of the grid."""
    model = clone(model)
    # The search deals with constant models itself; the last fit speaks of its own.
    model._warns_of_model = False
    fitted, held_out = data.at(train), data.at(test)
    out = np.empty((len(risks), len(l2s), len(_FACTS)))
    losses = np.empty((len(risks), len(l2s), len(held_out.y)))
    grid = list(snake_order(len(risks), len(l2s)))
    begin = now()
    task = model._task(**fitted.given)
    fits = model._fits_along(*task, [(risks[i], l2s[j]) for i, j in grid])
    for (i, j), _ in zip(grid, fits, strict=True):
        seconds = now() - begin
        if model.status_.startswith("interrupted"):
            raise KeyboardInterrupt("the search was interrupted")
        losses[i, j] = scorer.losses(model, held_out)
        scores = scorer(model, held_out, losses[i, j])
        out[i, j] = (*scores, model.constant_, model.n_passes_, seconds)
        begin = now()
    rows = np.arange(len(data.y))[test]
    fold = Fold(rows, losses.reshape(-1, len(rows)), held_out.weight, len(fitted.y))
    return out.reshape(-1, len(_FACTS)), fold


def _score_baselines(
    model: SpectralFit,
    scorer: _Scorer,
    data: _Rows,
    train: NDArray[np.intp],
    test: NDArray[np.intp],
) -> dict[str, NDArray[np.float64]]:
    """Held-out losses of the plain fit plus a constant, and recalibrated, on one fold."""
    models = baselines(model, **data.at(train).given)
    held_out = data.at(test)
    return {name: scorer.losses(m, held_out) for name, m in models.items() if name != PLAIN}


_FACTS = ("score", "tail", "mean_loss", "constant", "passes", "seconds")


class _Scorer:
    """What the search knows of a model on held-out rows."""

    def __init__(self, scoring: Any, tail: Risk, loss: str | Loss) -> None:
        self._given = None if scoring is None else get_scorer(scoring)
        self._tail, self._loss = make_tail_scorer(tail, loss), parse_loss(loss)

    def losses(self, model: Any, rows: _Rows) -> NDArray[np.float64]:
        """The losses of a model on these rows."""
        loss = self._loss
        if loss.is_classifier:
            return self._tail.losses(model, rows.X, rows.y)
        # The rows need not be checked again for every model, which takes a third of a search on
        # 2000 rows.
        margins = product(rows.X, model.coef_) + model.intercept_
        if rows.offset is not None:
            margins = margins + rows.offset
        return np.asarray(loss.value(loss.encode(rows.y)[0], margins))

    def __call__(
        self, model: Any, rows: _Rows, losses: NDArray[np.float64]
    ) -> tuple[float, float, float]:
        """The score of a model on these rows, and the tail and the mean of its losses there."""
        tail, mean = self._tail.risk(losses, rows.weight), Mean()(losses, rows.weight)
        if self._given is None:
            return -tail, tail, mean
        weighted = rows.weight is not None and _takes_sample_weight(self._given)
        arguments = {"sample_weight": rows.weight} if weighted else {}
        return float(self._given(model, rows.X, rows.y, **arguments)), tail, mean


class _Choice:
    """Which grid point is best, and what it is compared with.

    Parameters
    ----------
    results : dict
        ``cv_results_``, which learns who was admitted.
    folds : sequence of Fold
        Held-out losses of every grid point.
    risks : list of Risk
        The risks that may be chosen. The mean is searched even if it is none of them.
    mean_slack : float or None
        By what share the mean loss may exceed that of the plain fit.
    """

    def __init__(
        self,
        results: dict[str, Any],
        folds: Sequence[Fold],
        risks: list[Risk],
        mean_slack: float | None,
    ) -> None:
        self._results, self._folds, self._slack = results, folds, mean_slack
        score, mean = results["mean_test_score"], results["mean_test_mean_loss"]
        self._score = np.where(np.isnan(score), -np.inf, score)
        self._mean = np.where(np.isnan(mean), np.inf, mean)
        self._risks = list(dict.fromkeys(risks))
        self.reference = self._least_mean(Mean())
        self._admitted = np.array([risk in risks for risk in results["param_risk"]])
        self._tried = int(self._admitted.sum())
        if mean_slack is not None:
            comparison = Comparison(folds, self.reference)
            within = [self._is_within(comparison, point) for point in range(len(score))]
            learnt = results["constant_share"] < 0.5
            self._admitted &= np.array(within) & (learnt | (not learnt.any()))
            self._admitted[self.reference] = Mean() in risks
        results["admitted"] = self._admitted
        self.best = self._best_of(self._admitted) if self._admitted.any() else self.reference

    def _points(self, risk: Risk) -> NDArray[np.bool_]:
        return np.array([other == risk for other in self._results["param_risk"]])

    def _least_mean(self, risk: Risk) -> int:
        points = np.flatnonzero(self._points(risk))
        return int(points[np.argmin(self._mean[points])])

    def _is_within(self, comparison: Comparison, point: int) -> bool:
        """Whether the mean loss is within the slack, one standard error included."""
        if self._slack is None or point == self.reference:
            return True
        _, change, error = comparison.change(Mean(), point)
        return change + error <= self._slack

    def _best_of(self, points: NDArray[np.bool_]) -> int:
        """The best score, and of equals the plain fit."""
        score = np.where(points, self._score, -np.inf)
        if points[self.reference] and score[self.reference] == score.max():
            return self.reference
        return int(np.flatnonzero(points)[np.argmax(score[points])])

    def report(self, tail: Risk, others: list[dict[str, NDArray[np.float64]]]) -> SearchReport:
        """Every risk at its best l2 beside the plain fit, and below them what is no candidate.

        `others` are held-out losses of models by name, for every fold.
        """
        points = {PLAIN: self.reference}
        for risk in self._risks:
            admitted = self._points(risk) & self._admitted
            point = self._best_of(admitted) if admitted.any() else self._least_mean(risk)
            if point != self.reference:
                points[spelled(risk)] = point
        l2s = dict(enumerate(self._results["param_l2"]))
        for position, name in enumerate(others[0], len(l2s)):
            points[name], l2s[position] = position, l2s[self.reference]
        folds = [
            fold._replace(losses=np.vstack([fold.losses, *losses.values()]))
            for fold, losses in zip(self._folds, others, strict=True)
        ]
        comparison = Comparison(folds, self.reference)
        rows: dict[str, dict[str, Any]] = {}
        for name, point in points.items():
            row: dict[str, Any] = {"l2": l2s[point]}
            for what, risk in (("mean", Mean()), ("tail", tail)):
                row |= comparison.interval(what, risk, point, self._tried)
            within = self._is_within(comparison, point)
            rows[name] = row | {"within_slack": within, "chosen": point == self.best}
        return SearchReport(tail, self._slack, rows)


def _takes_sample_weight(scorer: Callable[..., Any]) -> bool:
    # scikit-learn's scorers take any argument and hand it to their metric, which may not.
    function = getattr(scorer, "_score_func", scorer)
    return "sample_weight" in inspect.signature(function).parameters


def _tabulate(
    risks: list[Risk], l2s: list[float | str], tables: NDArray[np.float64]
) -> dict[str, Any]:
    """Tables of shape (folds, grid points, facts) in the form of GridSearchCV's results."""
    scores, tails, mean_losses, constant, passes, seconds = np.moveaxis(tables, 2, 0)
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
    results["mean_test_tail"] = tails.mean(axis=0)
    results["mean_test_mean_loss"] = mean_losses.mean(axis=0)
    results["constant_share"] = constant.mean(axis=0)
    results["mean_passes"] = passes.mean(axis=0)
    results["mean_fit_time"] = seconds.mean(axis=0)
    return results


class SpectralRiskRegressorCV(RegressorFace, SpectralSearch):
    """Spectral risk regression with risk and l2 chosen by cross-validation.

    Parameters
    ----------
    risks : sequence of Risk or str, optional
        Risks to choose from. Put neighbours side by side: each fit starts from the last one. By
        default from the mean to `tail`: mixtures of both with shares of 0.03, 0.1, 0.3 and 0.6 for
        the tail, CVaR(0.5) and CVaR(0.2) where the tail is smaller, and the tail.
    l2s : sequence of float or "auto", default=("auto", 1e-4, 1e-2, 1.0)
        Weights of ``||w||^2 / 2`` to choose from; "auto" is 1 / n of the rows fitted.
    cv : int, cross-validation generator or iterable, default=None
        Folds, as in ``sklearn.model_selection.GridSearchCV``; None is 5-fold.
    tail : Risk or str, default="cvar:0.1"
        The risk of the held-out losses that is to be small: by default the mean of the worst tenth.
    mean_slack : float or None, default=0.25
        By what share the mean held-out loss may exceed that of the plain fit (the risk mean at the
        l2 that has the least mean loss): a pair of risk and l2 is admitted where its mean loss and
        one standard error of the difference are within 1 + mean_slack times the plain fit's. Pairs
        whose model is (nearly) constant on most folds are not admitted, unless all are. The plain
        fit is, if `risks` has the mean; if not, it is chosen where no pair is admitted. None admits
        all pairs: where noise makes up the tail, the constant model has the best tail of all.
    scoring : str or callable, default=None
        What to maximise among the pairs admitted; None is minus `tail`. A scorer's name
        ("neg_cvar_10" and the others of ``sorel.metrics.SCORERS``, or scikit-learn's), or a
        function of (estimator, X, y).
    n_jobs : int, default=None
        Folds in parallel, through joblib.
    refit : bool, default=True
        Fit the best pair on all rows. Without it there are ``best_risk_``, ``best_l2_`` and
        ``cv_results_`` only.
    loss : {"squared", "huber", "poisson", "gamma"} or Loss, default="squared"
        Loss of one sample, as in :class:`SpectralRiskRegressor`: "squared" is half the square.
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
        Mean score of the pair on the held-out rows: with ``scoring=None``, minus `tail` of their
        losses.
    best_index_ : int
        Its row in ``cv_results_``.
    cv_results_ : dict of arrays
        ``param_risk``, ``param_l2``, ``mean_test_score``, ``std_test_score``, ``rank_test_score``,
        ``split<k>_test_score``, ``mean_test_tail``, ``mean_test_mean_loss``, ``constant_share`` (of
        the folds, on which the model was constant), ``mean_passes``, ``mean_fit_time``,
        ``admitted``; ``pandas.DataFrame`` reads it. The mean comes first where `risks` does not
        have it. The rank is that of the score alone.
    search_report_ : SearchReport
        What each risk, at its best l2, gains and costs against the plain fit on the held-out rows,
        with 95% intervals: ``print(search.search_report_)``, ``.table``, and ``.verdict`` in a
        sentence, which claims a gain only where the interval of the tail's change lies below 0. The
        intervals hold for all pairs together, and allow for folds that share training rows.
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
        risks: Sequence[Risk | str] | None = None,
        *,
        l2s: Sequence[float | str] = _L2S,
        cv: Any = None,
        tail: Risk | str = _TAIL,
        mean_slack: float | None = _MEAN_SLACK,
        scoring: str | Callable[..., float] | None = None,
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

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """Search the grid, then fit the best pair on all rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.
        y : array-like of shape (n,)
            Targets.
        sample_weight : array-like of shape (n,), optional
            Weights, for fitting and, where the scorer takes them, for scoring.
        groups : array-like of shape (n,), optional
            Groups, for splitters that need them.
        offset : array-like of shape (n,), optional
            Added to the linear scores, for "poisson" and "gamma", in fits and in held-out losses;
            see :class:`SpectralRiskRegressor`.

        Returns
        -------
        self
            The fitted estimator.
        """
        return self._search(X, y, sample_weight, groups, offset)


class SpectralRiskClassifierCV(ClassifierFace, SpectralSearch):
    """Spectral risk classification with risk and l2 chosen by cross-validation.

    Parameters
    ----------
    risks : sequence of Risk or str, optional
        Risks to choose from. Put neighbours side by side: each fit starts from the last one. By
        default from the mean to `tail`: mixtures of both with shares of 0.03, 0.1, 0.3 and 0.6 for
        the tail, CVaR(0.5) and CVaR(0.2) where the tail is smaller, and the tail.
    l2s : sequence of float or "auto", default=("auto", 1e-4, 1e-2, 1.0)
        Weights of ``||w||^2 / 2`` to choose from; "auto" is 1 / n of the rows fitted.
    cv : int, cross-validation generator or iterable, default=None
        Folds, as in ``sklearn.model_selection.GridSearchCV``; None is stratified 5-fold.
    tail : Risk or str, default="cvar:0.1"
        The risk of the held-out losses that is to be small: by default the mean of the worst tenth.
    mean_slack : float or None, default=0.25
        By what share the mean held-out loss may exceed that of the plain fit (the risk mean at the
        l2 that has the least mean loss): a pair of risk and l2 is admitted where its mean loss and
        one standard error of the difference are within 1 + mean_slack times the plain fit's. Pairs
        whose model is (nearly) constant on most folds are not admitted, unless all are. The plain
        fit is, if `risks` has the mean; if not, it is chosen where no pair is admitted. None admits
        all pairs: where noise makes up the tail, the constant model has the best tail of all.
    scoring : str or callable, default=None
        What to maximise among the pairs admitted; None is minus `tail`. A scorer's name
        ("neg_cvar_10" and the others of ``sorel.metrics.SCORERS``, or scikit-learn's), or a
        function of (estimator, X, y).
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
        Mean score of the pair on the held-out rows: with ``scoring=None``, minus `tail` of their
        losses.
    best_index_ : int
        Its row in ``cv_results_``.
    cv_results_ : dict of arrays
        ``param_risk``, ``param_l2``, ``mean_test_score``, ``std_test_score``, ``rank_test_score``,
        ``split<k>_test_score``, ``mean_test_tail``, ``mean_test_mean_loss``, ``constant_share`` (of
        the folds, on which the model was constant), ``mean_passes``, ``mean_fit_time``,
        ``admitted``; ``pandas.DataFrame`` reads it. The mean comes first where `risks` does not
        have it. The rank is that of the score alone.
    search_report_ : SearchReport
        What each risk, at its best l2, gains and costs against the plain fit on the held-out rows,
        with 95% intervals: ``print(search.search_report_)``, ``.table``, and ``.verdict`` in a
        sentence, which claims a gain only where the interval of the tail's change lies below 0. The
        intervals hold for all pairs together, and allow for folds that share training rows.
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
        risks: Sequence[Risk | str] | None = None,
        *,
        l2s: Sequence[float | str] = _L2S,
        cv: Any = None,
        tail: Risk | str = _TAIL,
        mean_slack: float | None = _MEAN_SLACK,
        scoring: str | Callable[..., float] | None = None,
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
