"""How a model fares in the tail: risks of held-out losses, reports by group, scorers.

Everything starts from one loss per sample, ``l_i = phi(y_i, prediction_i)``; a score is then
``sum_i sigma_i l_[i]``, the same risk that training minimises, without the penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._lib.frames import as_table
from sorel._lib.inputs import check_meaning, check_numbers, is_real
from sorel._lib.warnings import warn
from sorel.estimators.baselines import baselines
from sorel.estimators.fit_warnings import MIN_ERROR_ROWS, MIN_TAIL_ROWS, TailSizeWarning, tail_rows
from sorel.estimators.resampling import Resamples, resample
from sorel.problem.losses import LOSSES, Logistic, Loss, Multinomial, parse_loss
from sorel.problem.risks import CVaR, Max, Mean, Risk, normalised_sample_weight, parse_risk, spelled
from sorel.solvers.base import make_generator

__all__ = [
    "SCORERS",
    "TailDifference",
    "TailScorer",
    "baselines",
    "cvar_loss",
    "gamma_deviance",
    "get_scorer",
    "make_tail_scorer",
    "neg_cvar_01",
    "neg_cvar_05",
    "neg_cvar_10",
    "neg_cvar_50",
    "neg_worst",
    "poisson_deviance",
    "sample_losses",
    "spectral_risk_score",
    "tail_difference",
    "tail_report",
]

FloatArray = NDArray[np.float64]
LossLike = str | Loss | Callable[[Any, Any], ArrayLike]

# Losses beside those of sorel.losses.
_OTHER_LOSSES = ("log_loss", "absolute", "zero_one")

# Resamples of an interval: its half-width is then known to about 3 %.
_RESAMPLES = 1000

# A label that a model gives no probability at all is charged this many nats, not infinitely many.
_LEAST_LOG_PROBABILITY = math.log(np.finfo(np.float64).tiny)


def sample_losses(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    loss: LossLike | None = None,
    labels: ArrayLike | None = None,
) -> FloatArray:
    """Loss of each sample.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Targets or labels.
    y_pred : array-like of shape (n,) or (n, n_classes)
        What the loss compares them with; see `loss`.
    loss : str, Loss or callable, optional
        - "squared", "huber", "absolute": predictions of a regressor. As in
          training, the squared loss is *half* the squared residual: double it for scikit-learn's
          mean squared error;
        - "poisson", "gamma": predicted means, above 0. As in training, half the deviance;
        - "logistic", "squared_hinge", "multinomial": margins, as from ``decision_function``; the
          squared hinge is not halved;
        - "log_loss": probabilities, as from ``predict_proba``;
        - "zero_one": predicted labels;
        - an instance from :mod:`sorel.losses`, or a function of (y_true, y_pred) that returns one
          loss per sample.

        When not given it is "squared", for targets that are numbers; labels need to be told how
        they were predicted.
    labels : array-like, optional
        All labels in the order of the columns of `y_pred`; the sorted labels of `y_true` when not
        given.

    Returns
    -------
    ndarray of shape (n,)
        The losses.

    Raises
    ------
    ValueError
        If `y_pred` is not what the loss takes: probabilities or labels where it takes margins, or
        labels in `y_true` without a loss.

    Warns
    -----
    UserWarning
        If margins all lie between 0 and 1, as probabilities do.

    Examples
    --------
    >>> from sorel.metrics import sample_losses
    >>> sample_losses([1.0, 2.0], [1.0, 4.0])
    array([0., 2.])
    >>> sample_losses(["no", "yes"], [-1.0, -1.0], loss="squared_hinge")
    array([0., 4.])
    """
    check_meaning(y_true, "y_true")
    check_meaning(y_pred, "y_pred")
    truth, prediction = (
        array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        for array in (np.asarray(y_true), np.asarray(y_pred))
    )
    if truth.ndim != 1 or len(truth) == 0:
        raise ValueError(f"y_true must be a non-empty vector, got shape {truth.shape}")
    if prediction.ndim not in (1, 2) or len(prediction) != len(truth):
        raise ValueError(
            f"y_true has {len(truth)} values, but y_pred has shape {prediction.shape}; they must "
            "agree in the first dimension"
        )
    if loss is None:
        _refuse_labels(truth, prediction)
        loss = "squared"
    values = _evaluate(truth, prediction, loss, labels)
    if values.shape != truth.shape:
        raise ValueError(f"the loss must give one value per sample, got shape {values.shape}")
    if np.isnan(values).any():
        row = int(np.flatnonzero(np.isnan(values))[0])
        raise ValueError(f"the loss of sample {row} is NaN; y_pred there is {prediction[row]}")
    return values


def _evaluate(
    truth: NDArray[Any], prediction: NDArray[Any], loss: LossLike, labels: ArrayLike | None
) -> FloatArray:
    if loss == "log_loss":
        return _log_losses(truth, prediction, labels)
    if not isinstance(loss, (str, Loss)):
        if not callable(loss):
            raise TypeError(f"loss must be a name, a Loss or a function, got {loss!r}")
        return np.asarray(loss(truth, prediction), dtype=np.float64)
    parsed = None if loss in ("absolute", "zero_one") else _parse_loss(loss)
    if parsed is not None and parsed.is_classifier:
        _refuse_other_than_margins(truth, prediction, parsed.name)
        return _margin_losses(truth, prediction, parsed, labels)
    name = loss if parsed is None else parsed.name
    if prediction.ndim > 1:
        raise ValueError(
            f"loss={name!r} takes one prediction per sample, got y_pred of shape {prediction.shape}"
        )
    if loss == "zero_one":
        return np.asarray(truth != prediction, dtype=np.float64)
    check_numbers(truth, "y_true")
    if parsed is None:
        return np.abs(np.asarray(truth, dtype=np.float64) - prediction)
    if parsed.link == "log" and not (prediction > 0.0).all():
        row = int(np.flatnonzero(~(prediction > 0.0))[0])
        raise ValueError(
            f"loss={name!r} takes predicted means above 0, as from predict, got "
            f"y_pred[{row}] = {prediction[row]}"
        )
    return parsed.value(parsed.encode(truth)[0], parsed.margins(prediction))


def _parse_loss(loss: str | Loss) -> Loss:
    if isinstance(loss, str) and loss not in LOSSES:
        known = ", ".join([*LOSSES, *_OTHER_LOSSES])
        raise ValueError(f"unknown loss {loss!r}; known losses: {known}")
    return parse_loss(loss)


def _log_losses(
    truth: NDArray[Any], probabilities: NDArray[Any], labels: ArrayLike | None
) -> FloatArray:
    low, high = probabilities.min(), probabilities.max()
    if low < 0.0 or high > 1.0:
        raise ValueError(
            f"loss='log_loss' takes probabilities between 0 and 1, got values from {low:g} to "
            f"{high:g}; margins go with loss='logistic'"
        )
    if probabilities.ndim == 1:
        probabilities = np.column_stack([1.0 - probabilities, probabilities])
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    return _negative_log_likelihood(_codes(truth, probabilities, labels), logs)


def _margin_losses(
    truth: NDArray[Any], margins: NDArray[Any], loss: Loss, labels: ArrayLike | None
) -> FloatArray:
    codes = _codes(truth, margins, labels)
    if margins.ndim == 1:
        loss = Logistic() if isinstance(loss, Multinomial) else loss
        return loss.value(np.where(codes == 1, 1.0, -1.0), margins)
    if type(loss) not in (Logistic, Multinomial):
        raise ValueError(
            f"loss={loss.name!r} takes one margin per sample, got y_pred of shape {margins.shape}"
        )
    return Multinomial().value(codes, margins)


_HOW_PREDICTED = (
    "say how they were predicted: loss='log_loss' for predict_proba, loss='logistic' for "
    "decision_function, loss='zero_one' for predict"
)


def _refuse_labels(truth: NDArray[Any], prediction: NDArray[Any]) -> None:
    """Half the squared error is for numbers; it would be computed for labels without a word."""
    whole = _is_whole(truth)
    # pandas may give numbers as objects.
    if truth.dtype.kind not in "iuf" and not all(map(is_real, truth)):
        raise ValueError(
            f"y_true holds labels such as {truth[:1].tolist()[0]!r}, and the default loss is for "
            f"numbers; {_HOW_PREDICTED}"
        )
    if prediction.ndim > 1:
        raise ValueError(
            "the default loss takes one prediction per sample, got y_pred of shape "
            f"{prediction.shape}; if y_true holds labels, {_HOW_PREDICTED}"
        )
    values = np.unique(truth).tolist()
    found = None
    if values in ([0, 1], [-1, 1]) or (len(values) == 2 and whole):
        found = f"y_true holds {values[0]:g} and {values[1]:g} only"
    elif len(values) > 1 and whole and _is_whole(prediction) and np.isin(prediction, values).all():
        found = "y_true and y_pred hold the same whole numbers"
    if found is not None:
        raise ValueError(
            f"{found}, which look like labels, and the default loss is for numbers; "
            f"{_HOW_PREDICTED}; loss='squared' if they are numbers after all"
        )


def _is_whole(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iu"


def _refuse_other_than_margins(truth: NDArray[Any], prediction: NDArray[Any], loss: str) -> None:
    takes = f"loss={loss!r} takes margins, as from decision_function,"
    if prediction.dtype.kind not in "iuf":
        first = prediction.ravel()[0]
        raise ValueError(f"{takes} got y_pred with values such as {first!r}; {_HOW_PREDICTED}")
    if prediction.ndim == 1 and _is_whole(prediction) and np.isin(prediction, truth).all():
        raise ValueError(
            f"{takes} and y_pred holds labels; labels from predict go with loss='zero_one'"
        )
    low, high = prediction.min(), prediction.max()
    if not (low >= 0.0 and high <= 1.0):
        return
    if prediction.ndim == 2 and np.allclose(prediction.sum(axis=1), 1.0, rtol=0.0, atol=1e-6):
        raise ValueError(
            f"{takes} and the rows of y_pred are probabilities: they lie between 0 and 1 and add "
            "up to 1; probabilities from predict_proba go with loss='log_loss'"
        )
    if prediction.ndim == 1:
        # Margins of a model that always favours one label may look the same.
        warn(
            f"loss={loss!r} takes margins, and y_pred lies between {low:g} and {high:g}; if these "
            "are probabilities, use loss='log_loss'"
        )


def _codes(
    truth: NDArray[Any], prediction: NDArray[Any], labels: ArrayLike | None
) -> NDArray[np.int64]:
    """Column of each label."""
    known = np.unique(truth) if labels is None else np.asarray(labels)
    columns = 2 if prediction.ndim == 1 else prediction.shape[1]
    if len(known) != columns:
        raise ValueError(
            f"y_pred tells {columns} classes apart, but there are {len(known)} labels: "
            f"{known[:5].tolist()}; give all labels, in the order of the columns, as labels="
        )
    codes = _positions(truth, known)
    if (codes < 0).any():
        stranger = truth[codes < 0][:1].tolist()[0]
        raise ValueError(f"y_true has the label {stranger!r}, which is not among {known.tolist()}")
    return codes


def _positions(truth: NDArray[Any], known: NDArray[Any]) -> NDArray[np.int64]:
    """Position of each label among the known ones, -1 where it is not."""
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known, truth, sorter=order), len(known) - 1)
    codes = order[place]
    return np.where(known[codes] == truth, codes, -1).astype(np.int64)


def _negative_log_likelihood(codes: NDArray[np.int64], logs: NDArray[Any]) -> FloatArray:
    """-log p of each sample's label; a code of -1 is a label the model does not know."""
    chosen = np.where(codes >= 0, logs[np.arange(len(codes)), codes], -np.inf)
    return -np.maximum(chosen, _LEAST_LOG_PROBABILITY)


def spectral_risk_score(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    risk: Risk | str,
    loss: LossLike | None = None,
    sample_weight: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> float:
    """Spectral risk of the losses of predictions; lower is better.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Targets or labels.
    y_pred : array-like of shape (n,) or (n, n_classes)
        Predictions, margins or probabilities, whichever the loss takes.
    risk : Risk or str
        Weights of the ordered losses, such as ``CVaR(0.1)`` or ``"cvar:0.1"``.
    loss : str, Loss or callable, optional
        See :func:`sample_losses`; half the squared error when not given.
    sample_weight : array-like of shape (n,), optional
        Weights; 2 is the sample twice.
    labels : array-like, optional
        See :func:`sample_losses`.

    Returns
    -------
    float
        The risk.

    Examples
    --------
    >>> from sorel.metrics import spectral_risk_score
    >>> spectral_risk_score([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 3.0], "cvar:0.5")
    2.5
    """
    return parse_risk(risk)(sample_losses(y_true, y_pred, loss, labels), sample_weight)


def cvar_loss(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    alpha: float = 0.1,
    *,
    loss: LossLike | None = None,
    sample_weight: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> float:
    """Mean loss of the worst fraction alpha of the samples; lower is better.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Targets or labels.
    y_pred : array-like of shape (n,) or (n, n_classes)
        Predictions, margins or probabilities, whichever the loss takes.
    alpha : float, default=0.1
        The fraction, in (0, 1]. 1 is the mean.
    loss : str, Loss or callable, optional
        See :func:`sample_losses`; half the squared error when not given.
    sample_weight : array-like of shape (n,), optional
        Weights; 2 is the sample twice.
    labels : array-like, optional
        See :func:`sample_losses`.

    Returns
    -------
    float
        The conditional value at risk of the losses.

    Examples
    --------
    >>> from sorel.metrics import cvar_loss
    >>> cvar_loss([0.0, 0.0], [1.0, 3.0], alpha=0.5, loss="absolute")
    3.0
    """
    return spectral_risk_score(y_true, y_pred, CVaR(alpha), loss, sample_weight, labels)


def poisson_deviance(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    risk: Risk | str = "mean",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Spectral risk of the Poisson deviances of predicted means; lower is better.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Counts or rates, at least 0.
    y_pred : array-like of shape (n,)
        Predicted means, above 0.
    risk : Risk or str, default="mean"
        Weights of the ordered deviances. Under the mean this is scikit-learn's
        ``mean_poisson_deviance``.
    sample_weight : array-like of shape (n,), optional
        Weights, such as exposures.

    Returns
    -------
    float
        Twice the risk of the loss "poisson", which is half the deviance.

    Examples
    --------
    >>> from sorel.metrics import poisson_deviance
    >>> poisson_deviance([0.0, 1.0], [1.0, 1.0])
    1.0
    """
    return 2.0 * spectral_risk_score(y_true, y_pred, risk, "poisson", sample_weight)


def gamma_deviance(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    risk: Risk | str = "mean",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Spectral risk of the gamma deviances of predicted means; lower is better.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Amounts, above 0.
    y_pred : array-like of shape (n,)
        Predicted means, above 0.
    risk : Risk or str, default="mean"
        Weights of the ordered deviances. Under the mean this is scikit-learn's
        ``mean_gamma_deviance``.
    sample_weight : array-like of shape (n,), optional
        Weights.

    Returns
    -------
    float
        Twice the risk of the loss "gamma", which is half the deviance.

    Examples
    --------
    >>> from sorel.metrics import gamma_deviance
    >>> round(gamma_deviance([1.0, 2.0], [1.0, 1.0], risk="cvar:0.5"), 3)
    0.614
    """
    return 2.0 * spectral_risk_score(y_true, y_pred, risk, "gamma", sample_weight)


class TailDifference(NamedTuple):
    """What :func:`tail_difference` returns.

    Attributes
    ----------
    difference : float
        The risk of the losses under the first predictions less that under the second: below 0, the
        first are better.
    interval : tuple of float
        Its confidence interval, `low` and `high`.
    p_value : float
        Two-sided, of the hypothesis that the two risks are equal.
    risk_a, risk_b : float
        The two risks.
    standard_error : float
        That of the difference, from the influence function of the risk.

    Examples
    --------
    >>> from sorel.metrics import tail_difference
    >>> y, same = [0.5 * k for k in range(20)], [3.0] * 20
    >>> found = tail_difference(y, same, same, "cvar:0.5")
    >>> found.difference, found.interval, found.p_value
    (0.0, (0.0, 0.0), 1.0)
    """

    difference: float
    interval: tuple[float, float]
    p_value: float
    risk_a: float
    risk_b: float
    standard_error: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.interval[1]


def tail_difference(
    y: ArrayLike,
    prediction_a: ArrayLike,
    prediction_b: ArrayLike,
    risk: Risk | str = "cvar:0.1",
    *,
    loss: LossLike | None = None,
    sample_weight: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = _RESAMPLES,
    random_state: Any = 0,
) -> TailDifference:
    """Compare the risks of two models' losses on the same held-out rows, with an interval.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets or labels of rows that neither model was fitted to.
    prediction_a, prediction_b : array-like of shape (n,) or (n, n_classes)
        Predictions, margins or probabilities of the two models, whichever the loss takes.
    risk : Risk or str, default="cvar:0.1"
        Weights of the ordered losses.
    loss : str, Loss or callable, optional
        See :func:`sample_losses`; half the squared error when not given.
    sample_weight : array-like of shape (n,), optional
        Weights in the risks. Rows are what is drawn, each with its weight: a weight of 2 does not
        make two rows that are known apart.
    labels : array-like, optional
        See :func:`sample_losses`.
    level : float, default=0.95
        Confidence level of the interval.
    n_resamples : int, default=1000
        Bootstrap resamples. The time grows with their number times n: 1000 of 2000 rows take about
        0.1 s, of 100 000 rows about 4 s.
    random_state : int, Generator, RandomState or None, default=0
        Draws the resamples.

    Returns
    -------
    TailDifference
        Difference, interval, p value, and the two risks.

    Warns
    -----
    TailSizeWarning
        If the tail holds fewer than ten rows.

    Notes
    -----
    The interval is a symmetric bootstrap-t interval: rows are drawn with replacement, with their
    losses under both models; the difference of every resample is divided by its standard error,
    which the influence function of the risk gives. Of the intervals that were tried (normal,
    percentile, basic, equal-tailed and symmetric bootstrap-t) it falls short of its level least.

    How often 95 % intervals held the true difference, for CVaR(0.1) and CVaR(0.05), normal, t(3)
    and lognormal errors, and models that differ or do not (``python -m benchmarks.tail_coverage``):
    90 to 100 % at n = 100, 92 to 99 % at 300, 91 to 97 % at 1000, 93 to 97 % at 2000. Below 93 %
    are squares of lognormal errors alone, under models that differ; above 97 % are small tails,
    where intervals are wide. The percentile interval had 77 to 96 % at n = 100.

    The interval is one for these two models on other rows of the same kind. It does not tell how
    models of the same kind, fitted to other rows, would differ.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.metrics import tail_difference
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=500)
    >>> found = tail_difference(y, np.zeros(500), np.full(500, 0.8))
    >>> found.difference < 0, found.high < 0, found.p_value < 0.05
    (True, True, True)
    """
    parsed = parse_risk(risk)
    losses = np.array(
        [sample_losses(y, given, loss, labels) for given in (prediction_a, prediction_b)]
    )
    weight = None
    if sample_weight is not None:
        weight = normalised_sample_weight(sample_weight, losses.shape[1])
        losses, weight = losses[:, weight > 0.0], weight[weight > 0.0]
    _check_level("level", level)
    if not (is_real(n_resamples) and n_resamples >= 1 and n_resamples % 1 == 0):
        raise ValueError(f"n_resamples must be a whole number above 0, got {n_resamples!r}")
    _warn_of_small_tail([(parsed, losses.shape[1], "")])
    rng = make_generator(random_state)
    found = _resample(parsed, losses, np.array([1.0, -1.0]), weight, int(n_resamples), rng)
    risk_a, risk_b = (parsed(part, weight) for part in losses)
    return TailDifference(
        risk_a - risk_b, found.interval(level), found.p_value(), risk_a, risk_b, found.error
    )


def _resample(risk: Risk, losses: FloatArray, *more: Any) -> Resamples:
    if not np.isfinite(losses).all():
        row = int(np.flatnonzero(~np.isfinite(losses).all(axis=0))[0])
        raise ValueError(f"the loss of sample {row} is infinite: it has no standard error")
    return resample(risk, losses, *more)


def _check_level(name: str, level: Any) -> None:
    if not (is_real(level) and 0.0 < level < 1.0):
        raise ValueError(f"{name} must lie between 0 and 1, such as 0.95, got {level!r}")


def _warn_of_small_tail(cells: list[tuple[Risk, int, str]]) -> None:
    """Warn of the smallest tail that an interval was made from, where it is too small."""
    sizes = [tail_rows(risk, n) if n else math.inf for risk, n, _ in cells]
    rows = min(sizes, default=math.inf)
    if rows < MIN_TAIL_ROWS:
        risk, n, where = cells[sizes.index(rows)]
        warn(
            f"the tail of {spelled(risk)} holds {rows:.3g} of {n} rows{where}: intervals "
            f"from fewer than {MIN_TAIL_ROWS} are rough, and from fewer than {MIN_ERROR_ROWS} "
            "there are none; take a milder risk, or more rows",
            TailSizeWarning,
        )


def tail_report(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    groups: ArrayLike | None = None,
    levels: float | Sequence[float] = (0.5, 0.1, 0.05, 0.01),
    loss: LossLike | None = None,
    sample_weight: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    against: Mapping[str, ArrayLike] | None = None,
    interval: float | None = None,
    random_state: Any = 0,
) -> Any:
    """Mean, conditional values at risk and worst loss, for all samples and for each group.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Targets or labels.
    y_pred : array-like of shape (n,) or (n, n_classes)
        Predictions, margins or probabilities, whichever the loss takes.
    groups : array-like of shape (n,), optional
        A value per sample; samples with the same value are reported together.
    levels : float or sequence of float, default=(0.5, 0.1, 0.05, 0.01)
        Fractions whose mean loss is shown, as columns ``cvar_0.5`` and so on. A fraction of less
        than one sample is the worst sample.
    loss : str, Loss or callable, optional
        See :func:`sample_losses`; half the squared error when not given.
    sample_weight : array-like of shape (n,), optional
        Weights; 2 is the sample twice.
    labels : array-like, optional
        See :func:`sample_losses`.
    against : mapping of str to array-like, optional
        Predictions of other models for the same samples, such as those of :func:`baselines`: each
        has a row ``(name)`` below "all".
    interval : float, optional
        A confidence level such as 0.95: the ends of the bootstrap intervals of all columns but
        ``worst``, which has none, are columns ``<name>_low`` and ``<name>_high``. Whether two
        models differ is for :func:`tail_difference` to say, which knows that they share rows.
    random_state : int, Generator, RandomState or None, default=0
        Draws the resamples of the intervals.

    Returns
    -------
    DataFrame or table
        Columns ``n``, ``mean``, the levels and ``worst``, and where predictions are numbers, or
        probabilities of two labels, ``bias``: mean predicted minus observed. A row "all", those
        of `against`, and one per group, sorted. A pandas DataFrame where pandas is installed, else
        a dictionary of its columns.

    Warns
    -----
    TailSizeWarning
        If an interval was made from a tail of fewer than ten rows.

    Examples
    --------
    >>> from sorel.metrics import tail_report
    >>> report = tail_report([0, 0, 0, 0], [1, 2, 3, 5], groups=list("aabb"), levels=[0.5])
    >>> list(report.index), list(report["cvar_0.5"]), list(report["bias"])
    (['all', 'a', 'b'], [8.5, 2.0, 12.5], [2.75, 1.5, 4.0])
    >>> report = tail_report([0, 0], [1, 2], levels=[0.5], against={"zero": [0, 0]})
    >>> list(report.index), list(report["mean"])
    (['all', '(zero)'], [1.25, 0.0])
    """
    if not (against is None or isinstance(against, Mapping)):
        raise TypeError(
            "against must map names to predictions, such as {'plain': y_pred}, got "
            f"{type(against).__name__}"
        )
    models = {"all": y_pred} | {f"({name})": given for name, given in (against or {}).items()}
    parts: list[tuple[Any, Any, _Columns]] = []
    for name, given in models.items():
        losses = sample_losses(y_true, given, loss, labels)
        parts.append((name, slice(None), (losses, _deviations(y_true, given, loss, labels))))
    n = len(losses)
    if groups is not None:
        values, codes = group_codes(groups, n)
        parts += [
            (value, np.flatnonzero(codes == code), parts[0][2]) for code, value in enumerate(values)
        ]
    weight = None if sample_weight is None else normalised_sample_weight(sample_weight, n)
    measures: dict[str, tuple[Risk, int]] = {"mean": (Mean(), 0)}
    measures |= {f"cvar_{level:g}": (CVaR(level), 0) for level in np.ravel(levels).tolist()}
    measures["worst"] = (Max(), 0)
    if parts[0][2][1] is not None:
        measures["bias"] = (Mean(), 1)
    if interval is not None:
        _check_level("interval", interval)
    rng = make_generator(random_state)
    columns: dict[str, list[Any]] = {"n": [len(np.arange(n)[rows]) for _, rows, _ in parts]}
    tails = []
    for column, (risk, which) in measures.items():
        cells = [_counted(table[which], rows, weight) for _, rows, table in parts]
        columns[column] = [risk(*cell) if len(cell[0]) else math.nan for cell in cells]
        if interval is None or column == "worst":
            continue
        ends = [_ends(risk, *cell, interval, rng) for cell in cells]
        columns[f"{column}_low"], columns[f"{column}_high"] = map(list, zip(*ends, strict=True))
        tails += [
            (risk, len(cell[0]), f" in {name!r}")
            for cell, (name, *_) in zip(cells, parts, strict=True)
        ]
    _warn_of_small_tail(tails)
    return as_table(columns, index=[name for name, *_ in parts], index_name="group")


# Losses of samples, and where there are such, deviations of predictions from targets.
_Columns = tuple[FloatArray, FloatArray | None]


def _counted(
    values: FloatArray | None, rows: Any, weight: FloatArray | None
) -> tuple[FloatArray, FloatArray | None]:
    """The values of some samples, and their weights; those of weight 0 are left out."""
    assert values is not None
    if weight is None:
        return values[rows], None
    own = weight[rows]
    return values[rows][own > 0.0], own[own > 0.0]


def _ends(
    risk: Risk,
    losses: FloatArray,
    weight: FloatArray | None,
    level: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """The ends of the interval of a risk; NaN for fewer than two losses."""
    if len(losses) < 2:
        return math.nan, math.nan
    return _resample(risk, losses[None], np.ones(1), weight, _RESAMPLES, rng).interval(level)


def _deviations(
    y_true: ArrayLike, y_pred: ArrayLike, loss: LossLike | None, labels: ArrayLike | None
) -> FloatArray | None:
    """Predicted minus observed for each sample: numbers, or probabilities of the second label."""
    truth, prediction = np.asarray(y_true).ravel(), np.asarray(y_pred)
    if loss == "log_loss":
        known = np.unique(truth) if labels is None else np.asarray(labels)
        if len(known) != 2:
            return None
        p = prediction[:, 1] if prediction.ndim == 2 else prediction
        return np.asarray(p - (truth == known[1]), dtype=np.float64)
    if loss == "zero_one" or callable(loss):
        return None
    if loss not in (None, "absolute"):
        parsed = _parse_loss(loss)
        if parsed.is_classifier or parsed.affine:
            return None
    return np.asarray(prediction.ravel() - truth.astype(np.float64), dtype=np.float64)


def group_codes(groups: ArrayLike, n: int) -> tuple[list[Any], NDArray[np.intp]]:
    """The different values of `groups` in the order of a report, and which of them each row has."""
    array = np.asarray(groups)
    if array.shape != (n,):
        raise ValueError(f"groups must have one value per sample, shape ({n},), got {array.shape}")
    try:
        values, codes = np.unique(array, return_inverse=True)
    except TypeError:  # mixed types and missing values have an order only as text
        values, codes = np.unique(array.astype(str), return_inverse=True)
    return values.tolist(), codes


class TailScorer:
    """A scorer for scikit-learn: the negative spectral risk of a model's losses.

    Works with any fitted regressor or classifier, inside a pipeline or not.

    Parameters
    ----------
    risk : Risk or str
        Weights of the ordered losses, such as ``CVaR(0.1)`` or ``"cvar:0.1"``.
    loss : str, Loss or callable, optional
        See :func:`sample_losses`. The logistic losses are read from ``predict_log_proba`` or
        ``predict_proba`` where the classifier has them, and from ``decision_function`` elsewhere;
        the squared hinge always from ``decision_function``; all others from ``predict``. When not
        given it is "squared" for regressors and "logistic" for classifiers.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.model_selection import cross_val_score
    >>> from sorel.metrics import TailScorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> cross_val_score(Ridge(), X, y, scoring=TailScorer("cvar:0.1")).shape
    (5,)
    """

    def __init__(self, risk: Risk | str, loss: LossLike | None = None) -> None:
        self.risk = parse_risk(risk)
        self.loss = loss
        self._requests: dict[str, bool | str | None] = {"sample_weight": None, "offset": None}
        if isinstance(loss, str) and loss not in _OTHER_LOSSES:
            parse_loss(loss)

    def __call__(
        self,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Score of a fitted model; higher is better.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor or classifier.
        X : array-like of shape (n, d)
            Samples.
        y : array-like of shape (n,)
            Targets or labels.
        sample_weight : array-like of shape (n,), optional
            Weights; 2 is the sample twice.
        offset : array-like of shape (n,), optional
            Handed to ``estimator.predict``.

        Returns
        -------
        float
            Minus the risk of the losses.
        """
        return -self.risk(self.losses(estimator, X, y, offset), sample_weight)

    def losses(
        self, estimator: Any, X: Any, y: ArrayLike, offset: ArrayLike | None = None
    ) -> FloatArray:
        """Loss of each sample.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor or classifier.
        X : array-like of shape (n, d)
            Samples.
        y : array-like of shape (n,)
            Targets or labels.
        offset : array-like of shape (n,), optional
            Handed to ``estimator.predict``.

        Returns
        -------
        ndarray of shape (n,)
            The losses.
        """
        loss: LossLike | None = self.loss
        if offset is not None:
            return sample_losses(y, estimator.predict(X, offset=offset), loss)
        if loss is None:
            from sklearn.base import is_classifier

            loss = "logistic" if is_classifier(estimator) else "squared"
        if isinstance(loss, str) and loss in LOSSES:
            loss = parse_loss(loss)
        if loss == "log_loss" or type(loss) in (Logistic, Multinomial):
            codes = _positions(np.asarray(y), np.asarray(estimator.classes_))
            with np.errstate(divide="ignore"):
                if hasattr(estimator, "predict_log_proba"):
                    logs = np.asarray(estimator.predict_log_proba(X))
                    return _negative_log_likelihood(codes, logs)
                if hasattr(estimator, "predict_proba"):
                    return _negative_log_likelihood(codes, np.log(estimator.predict_proba(X)))
            if loss == "log_loss":
                raise TypeError(
                    f"{type(estimator).__name__} gives no probabilities; use loss='logistic', "
                    "which reads margins"
                )
        if isinstance(loss, Loss) and loss.is_classifier:
            margins = np.asarray(estimator.decision_function(X))
            return _margin_losses(np.asarray(y), margins, loss, estimator.classes_)
        return sample_losses(y, estimator.predict(X), loss)

    def set_score_request(
        self, *, sample_weight: bool | str | None = True, offset: bool | str | None = None
    ) -> TailScorer:
        """A copy of the scorer that asks scikit-learn's metadata routing for sample weights.

        Parameters
        ----------
        sample_weight : bool, str or None, default=True
            True asks for ``sample_weight``, False for none; a string asks for it under that name.
        offset : bool, str or None, default=None
            The same for ``offset``; with None, offsets that are passed are an error.

        Returns
        -------
        TailScorer
            The copy.
        """
        copy = TailScorer(self.risk, self.loss)
        copy._requests = {"sample_weight": sample_weight, "offset": offset}
        return copy

    def get_metadata_routing(self) -> Any:
        """What the scorer asks scikit-learn's metadata routing for.

        Returns
        -------
        MetadataRequest
            The request.
        """
        from sklearn.utils.metadata_routing import MetadataRequest

        request = MetadataRequest(owner=self)
        for name, alias in self._requests.items():
            request.score.add_request(param=name, alias=alias)
        return request

    def __repr__(self) -> str:
        shown = "" if self.loss is None else f", loss={self.loss!r}"
        return f"TailScorer({self.risk!r}{shown})"


def make_tail_scorer(risk: Risk | str, loss: LossLike | None = None) -> TailScorer:
    """Make a scorer for ``GridSearchCV``, ``cross_val_score`` and their like.

    Parameters
    ----------
    risk : Risk or str
        Weights of the ordered losses, such as ``CVaR(0.1)`` or ``"cvar:0.1"``.
    loss : str, Loss or callable, optional
        See :class:`TailScorer`.

    Returns
    -------
    TailScorer
        A function of (estimator, X, y) that returns minus the risk: higher is better.

    Examples
    --------
    >>> from sorel.metrics import make_tail_scorer
    >>> make_tail_scorer("cvar:0.2", loss="absolute")
    TailScorer(CVaR(alpha=0.2), loss='absolute')
    """
    return TailScorer(risk, loss)


SCORERS = {
    "neg_cvar_50": TailScorer(CVaR(0.5)),
    "neg_cvar_10": TailScorer(CVaR(0.1)),
    "neg_cvar_05": TailScorer(CVaR(0.05)),
    "neg_cvar_01": TailScorer(CVaR(0.01)),
    "neg_worst": TailScorer(Max()),
}
neg_cvar_50, neg_cvar_10, neg_cvar_05, neg_cvar_01, neg_worst = SCORERS.values()


def get_scorer(scoring: Any) -> Any:
    """The scorer of that name, sorel's or scikit-learn's; a scorer is passed through.

    Parameters
    ----------
    scoring : str or callable
        A key of ``SCORERS`` such as "neg_cvar_10", one of scikit-learn's names, or a function of
        (estimator, X, y).

    Returns
    -------
    callable
        The scorer.

    Examples
    --------
    >>> from sorel.metrics import get_scorer
    >>> get_scorer("neg_cvar_10")
    TailScorer(CVaR(alpha=0.1))
    """
    if isinstance(scoring, str) and scoring in SCORERS:
        return SCORERS[scoring]
    if callable(scoring):
        return scoring
    import sklearn.metrics

    try:
        return sklearn.metrics.get_scorer(scoring)
    except ValueError:
        raise ValueError(
            f"unknown scoring {scoring!r}; sorel's are {', '.join(SCORERS)}, scikit-learn's are "
            "listed by sklearn.metrics.get_scorer_names()"
        ) from None
