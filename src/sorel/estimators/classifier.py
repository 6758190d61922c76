"""Linear classification, binary and multinomial, that minimises a spectral risk of the losses."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import metaestimators
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from sorel._lib.defaults import FIT_INTERCEPT, MAX_PASSES, MODEL_TOL
from sorel._lib.devices import is_tensor, like, to_numpy
from sorel.estimators.base import SpectralFit, SpectralModel
from sorel.estimators.constant_model import MARGIN_SPREAD, margin_spread
from sorel.estimators.default_risks import CLASSIFIER_RISK
from sorel.estimators.fit_warnings import warn_of_shifted_probabilities
from sorel.estimators.plain_models import ToSklearn
from sorel.files.checkpoints import Checkpoint
from sorel.problem.losses import LOSSES, Logistic, Loss, Multinomial, parse_loss
from sorel.problem.penalties import Penalty
from sorel.problem.risks import Risk
from sorel.solvers import Solver

FloatArray = NDArray[np.float64]
Method = TypeVar("Method", bound=Callable[..., Any])


def _gives_probabilities(model: ClassifierFace) -> bool:
    loss = LOSSES.get(model.loss, model.loss) if isinstance(model.loss, str) else model.loss
    # A name that means nothing is for fit to refuse.
    if getattr(loss, "link", "logit") == "logit":
        return True
    raise AttributeError(
        f"loss={getattr(loss, 'name', loss)!r} gives no probabilities; use loss='logistic', or "
        "sklearn.calibration.CalibratedClassifierCV"
    )


def _available_if(check: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """scikit-learn's decorator of methods that some models lack; the types stay."""
    return cast(Callable[[Method], Method], metaestimators.available_if(check))


def _tensors() -> Any:
    # Torch takes longer to import than all the rest.
    from sorel.estimators import tensor_data

    return tensor_data


class ClassifierFace(ClassifierMixin, ToSklearn, SpectralModel):  # type: ignore[misc] # untyped base
    """Predictions of a linear classifier."""

    loss: str | Loss
    classes_: NDArray[Any]
    intercept_: FloatArray

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = _has_multinomial_form(self.loss)
        return tags

    def decision_function(self, X: Any) -> FloatArray:
        """Margins of the samples.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples; what is returned for a tensor is one on the same device.

        Returns
        -------
        ndarray of shape (n,) or (n, n_classes)
            With two classes, positive values speak for ``classes_[1]``.
        """
        scores = self._margins(X)
        return like(scores, X) if is_tensor(X) else scores

    def _margins(self, X: Any) -> Any:
        """The same, before a tensor becomes an array of another library."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the label.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples; what is returned for a tensor is one on the same device.

        Returns
        -------
        ndarray of shape (n,)
            The label with the largest margin.
        """
        scores = self._margins(X)
        if is_tensor(X):
            return _tensors().predict_labels(self.classes_, scores, X)
        codes = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.intp)
        return self.classes_[codes]

    @_available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of the classes; not available for ``loss="squared_hinge"``.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples; what is returned for a tensor is one on the same device.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``; rows sum to 1.
        """
        return self._class_probabilities(X, logarithms=False)

    @_available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of the probabilities, exact where those underflow.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples; what is returned for a tensor is one on the same device.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``.
        """
        return self._class_probabilities(X, logarithms=True)

    def _class_probabilities(self, X: Any, *, logarithms: bool) -> Any:
        scores = self._margins(X)
        if is_tensor(X):
            return _tensors().probabilities(scores, X, logarithms=logarithms)
        several, single = (log_softmax, log_expit) if logarithms else (softmax, expit)
        if scores.ndim == 2:
            return np.asarray(several(scores, axis=1))
        return np.column_stack([single(-scores), single(scores)])

    def _plain(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC

        return LogisticRegression() if parse_loss(self.loss).link == "logit" else LinearSVC()

    def _varies(self, scores: FloatArray, y: NDArray[Any]) -> bool:
        return margin_spread(scores) >= MARGIN_SPREAD

    def _warn_of_shift(
        self, risk: Risk, scores: FloatArray, y: NDArray[Any], weight: FloatArray | None
    ) -> None:
        loss, labels = parse_loss(self.loss), self.classes_.tolist()
        warn_of_shifted_probabilities(risk, loss, scores, y, labels, weight)

    def _encode(self, y: Any) -> tuple[Any, Loss]:
        """Set classes_; return the codes of the labels and the loss for that many classes."""
        if isinstance(self.fit_intercept, str):
            raise ValueError(
                f"fit_intercept must be True or False for labels, got {self.fit_intercept!r}"
            )
        if is_tensor(y):
            labels, codes = _tensors().distinct(y)
            # So many of each that nobody takes them for numbers.
            return codes, self._encode(np.repeat(labels, 3))[1]
        try:
            check_classification_targets(y)
        except ValueError as error:
            other = type(self).__name__.replace("Classifier", "Regressor")
            raise ValueError(f"{error} For numbers, use {other}.") from None
        self.classes_, codes = np.unique(y, return_inverse=True)
        loss = _classification_loss(self.loss)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds only one class, {self.classes_.tolist()}, among the samples with a "
                "positive weight; a classifier needs at least two classes"
            )
        if len(self.classes_) > 2:
            if not _has_multinomial_form(loss):
                raise ValueError(
                    "Only binary classification is supported. The type of the target is "
                    f"{type_of_target(y)}. With loss={loss.name!r}, {len(self.classes_)} classes "
                    "need sklearn.multiclass.OneVsRestClassifier around this estimator; "
                    "loss='logistic' takes any number of classes."
                )
            loss = Multinomial()
        return codes.astype(np.int64), loss


class SpectralRiskClassifier(ClassifierFace, SpectralFit):
    """Linear classification that minimises a spectral risk of the losses.

    With the logistic loss it is logistic regression, binary or multinomial, with more weight on the
    samples that fare worst.

    Parameters
    ----------
    risk : Risk or str, default=ESRM(1.0)
        Weights of the ordered losses, such as ``CVaR(0.1)``, ``ESRM(2.0)`` or ``"cvar:0.1"``.
        Its parameters can be searched as ``risk__alpha`` and the like.
    loss : {"logistic", "squared_hinge"} or Loss, default="logistic"
        Loss of one margin. "logistic" becomes the multinomial cross-entropy where there are more
        than two classes. "squared_hinge", ``max(0, 1 - y z)**2`` without a half, takes two classes
        and gives no probabilities; for more classes put ``sklearn.multiclass.OneVsRestClassifier``
        around the estimator.
    l2 : float or "auto", default="auto"
        Weight of ``||w||^2 / 2``, above 0. "auto" is 1 / n, with n the number of rows or, where
        sample weights are given, their sum.
    l1 : float, default=0.0
        Weight of ``||w||_1``; above 0, coefficients become sparse.
    penalty : Penalty, optional
        A penalty such as ``Simplex(0.0)``, ``Box(0.1, 0.0, 1.0)`` or one of your own, in place of
        what `l2`, `l1` and `positive` say, which must then be left alone.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    class_weight : dict or "balanced", optional
        Weights of the classes, which multiply those of the samples; "balanced" gives all classes
        the same total. A tail risk looks after rare classes by itself: compare before you do both.
    solver : str or Solver, default="auto"
        A name or an instance from :mod:`sorel.solvers`. "auto" suits every problem.
    tol : float, default=1e-4
        Relative duality gap to reach: the objective is then certified to lie within that factor
        of the optimum.
    max_passes : float, default=1000
        Budget, in passes over the data.
    batch_size : int, default=1
        Samples per stochastic step of ``solver="sorel"``; the others have no use for it.
    warm_start : bool, default=False
        Start from the last fit where that has the same features and number of classes.
    random_state : int, Generator, RandomState or None, default=None
        Randomness of the stochastic solvers; "auto" and "newton" on dense data use none.
    verbose : int, default=0
        1 keeps a line with passes and certified gap on standard error, 2 prints every check. The
        logger ``sorel`` hears of every check (DEBUG), of the outcome (INFO) and of all warnings.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores. None follows the settings of
        of the linear algebra library, threadpoolctl's limits included.
    checkpoint : path or Checkpoint, optional
        A file that keeps the state of a long fit. If it exists, ``fit`` goes on from it, or refuses
        it if the data or the parameters are others; see :func:`sorel.solve`. It serves one fit, not
        a search over many.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    coef_ : ndarray of shape (1, d) or (n_classes, d)
        Coefficients; one row where there are two classes.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    risk_weights_ : ndarray of shape (n,)
        The worst-case weighting of the training samples that certifies the fit. Predictions do not
        need it: ``del model.risk_weights_`` makes a pickle small.
    objective_, gap_, relative_gap_ : float
        Objective, its certified distance to the optimum, and that relative to the objective.
    n_passes_ : float
        Passes over the data.
    n_iter_ : int
        Outer iterations.
    converged_ : bool
        Whether ``relative_gap_ <= tol``.
    status_ : str
        One sentence on how the fit ended.
    constant_ : bool
        Whether the optimum is (nearly) the constant model: predictions hardly depend on X.
    history_ : DataFrame or table
        One row per check.
    l2_ : float
        The l2 used; that of the penalty where one is given.
    n_features_in_ : int
        Features seen in fit.
    feature_names_in_ : ndarray of shape (d,)
        Their names, where X has names that are all strings.

    See Also
    --------
    SpectralRiskClassifierCV : Chooses risk and l2 by cross-validation.

    Notes
    -----
    A sample weight of 2 is the row twice, and 0 is the row left out. Ctrl-C ends a fit early: the
    estimator then holds the best iterate found, a warning says so, and ``status_`` begins with
    "interrupted". In a search over many fits, press it twice to end the search.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sorel import SpectralRiskClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SpectralRiskClassifier(risk="cvar:0.2").fit(X, y)
    >>> model.coef_.shape, model.predict_proba(X[:2]).sum(axis=1)
    ((3, 4), array([1., 1.]))
    """

    # Pickles and model files know the class by this name, wherever in the package it is written.
    __module__ = "sorel.estimators"

    def __init__(
        self,
        risk: Risk | str = CLASSIFIER_RISK,
        *,
        loss: str | Loss = "logistic",
        l2: float | str = "auto",
        l1: float = 0.0,
        penalty: Penalty | None = None,
        positive: bool = False,
        fit_intercept: bool = FIT_INTERCEPT,
        class_weight: dict[Any, float] | str | None = None,
        solver: str | Solver = "auto",
        tol: float = MODEL_TOL,
        max_passes: float = MAX_PASSES,
        batch_size: int = 1,
        warm_start: bool = False,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> None:
        self._keep_settings(locals())

    def _row_weights(self, y: Any, sample_weight: FloatArray | None) -> FloatArray | None:
        if self.class_weight is None:
            return sample_weight
        weight: FloatArray = compute_sample_weight(self.class_weight, to_numpy(y))
        return weight if sample_weight is None else weight * sample_weight

    def _parameters_of(self, w: FloatArray, d: int) -> dict[str, Any]:
        table = w.reshape(len(w), -1).T
        intercept = table[:, d].copy() if self.fit_intercept else np.zeros(len(table))
        if len(table) > 1:
            # Adding one number to all of them changes no probability: take those that sum to 0.
            intercept -= intercept.mean()
        return {"coef_": np.ascontiguousarray(table[:, :d]), "intercept_": intercept}


def _classification_loss(loss: str | Loss) -> Loss:
    parsed = parse_loss(loss)
    if not parsed.is_classifier:
        raise ValueError(
            f"loss={loss!r} is not for classification; a classifier takes 'logistic' or "
            "'squared_hinge'"
        )
    # Two classes need one margin, not two.
    return Logistic() if _has_multinomial_form(parsed) else parsed


def _has_multinomial_form(loss: str | Loss) -> bool:
    """Whether the loss is the package's logistic one, which goes on for more than two classes."""
    return loss in ("logistic", "multinomial") or type(loss) in (Logistic, Multinomial)
