"""Fitted estimators of scikit-learn that predict as ours do, for use where sorel is not installed.

A fitted model is linear: coefficients and intercepts are all that its predictions need.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted


class ToSklearn:
    """The method `to_sklearn` of linear estimators; `_plain` names scikit-learn's."""

    coef_: NDArray[np.float64]
    fit_intercept: bool | str

    def to_sklearn(self) -> Any:
        """A fitted estimator of scikit-learn with the same predictions.

        It needs no sorel where it is unpickled, and tools that know scikit-learn's own models
        such as skl2onnx and SHAP serve it.

        Returns
        -------
        estimator
            LinearRegression; PoissonRegressor or GammaRegressor where predictions are exponentials
            of the scores; LogisticRegression for labels, and LinearSVC where the loss gives no
            probabilities. A copy: a later fit of either leaves the other alone.

        Raises
        ------
        NotFittedError
            If there are no coefficients: before `fit`, or after a search with ``refit=False``.
        ValueError
            If no estimator of scikit-learn predicts the same: with ``noncrossing=True`` for several
            quantiles, or a loss of your own with its own `predict`.

        Notes
        -----
        ``fit`` of the estimator returned is scikit-learn's: it minimises the mean loss, with
        scikit-learn's default penalty. Offsets are no part of it: it predicts for an exposure of 1.

        Examples
        --------
        >>> import numpy as np
        >>> from sorel import SpectralRiskRegressor
        >>> X, y = np.arange(6.0)[:, None], np.array([0.0, 1.0, 2.0, 3.0, 4.0, 9.0])
        >>> model = SpectralRiskRegressor(risk="cvar:0.5").fit(X, y)
        >>> plain = model.to_sklearn()
        >>> plain, np.allclose(plain.predict(X), model.predict(X))
        (LinearRegression(), True)
        """
        check_is_fitted(self, "coef_")
        plain = self._plain().set_params(fit_intercept=bool(self.fit_intercept))
        # A fit to rows of zeros sets what scikit-learn keeps beside the coefficients. Three of each
        # label, since it warns of labels that are nearly all different.
        targets = np.repeat(getattr(self, "classes_", np.ones(1)), 3)
        plain.fit(scipy.sparse.csr_array((len(targets), self.coef_.shape[-1])), targets)
        for name in ("coef_", "intercept_", "feature_names_in_"):
            if hasattr(self, name):
                # A float becomes NumPy's, as scikit-learn's intercepts are.
                setattr(plain, name, np.array(getattr(self, name))[()])
        return plain

    def _plain(self) -> Any:
        """The estimator of scikit-learn, not yet fitted."""
        raise NotImplementedError
