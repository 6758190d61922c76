"""Portfolios of least tail risk as an optimization of skfolio, for its model selection.

skfolio's ``WalkForward``, ``cross_val_predict`` and populations ask for a class of theirs, whose
``predict`` gives a ``skfolio.Portfolio``. This is that class around a
:class:`sorel.SpectralRiskPortfolio`; it needs skfolio, which sorel itself does not.
"""

from __future__ import annotations

from typing import Any

from skfolio.optimization import BaseOptimization
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from sorel.estimators.portfolio import SpectralRiskPortfolio

__all__ = ["SpectralRiskOptimization"]


class SpectralRiskOptimization(BaseOptimization):  # type: ignore[misc] # untyped base
    """A :class:`sorel.SpectralRiskPortfolio` in skfolio's form.

    Parameters
    ----------
    estimator : SpectralRiskPortfolio, optional
        What finds the weights; one with its defaults when not given.
    portfolio_params, fallback, previous_weights, raise_on_failure
        As all optimizations of skfolio have them. Previous weights go to the estimator.

    Attributes
    ----------
    weights_ : ndarray of shape (d,)
        Weights of the assets.
    estimator_ : SpectralRiskPortfolio
        The fitted estimator, with its certificate.

    Examples
    --------
    >>> from sorel import CVaR, SpectralRiskPortfolio
    >>> from sorel.skfolio import SpectralRiskOptimization  # doctest: +SKIP
    >>> SpectralRiskOptimization(SpectralRiskPortfolio(CVaR(0.1))).fit(R)  # doctest: +SKIP
    """

    def __init__(
        self,
        estimator: SpectralRiskPortfolio | None = None,
        *,
        portfolio_params: dict[str, Any] | None = None,
        fallback: Any = None,
        previous_weights: Any = None,
        raise_on_failure: bool = True,
    ) -> None:
        super().__init__(
            portfolio_params=portfolio_params,
            fallback=fallback,
            previous_weights=previous_weights,
            raise_on_failure=raise_on_failure,
        )
        self.estimator = estimator

    @property
    def transaction_costs(self) -> Any:
        """The costs of the estimator, under skfolio's name."""
        return 0.0 if self.estimator is None else self.estimator.transaction_cost

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> SpectralRiskOptimization:
        """Find the weights.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Returns: scenarios by assets.
        y : None
            Not used.
        **fit_params
            Passed on to the estimator, such as `sample_weight`.

        Returns
        -------
        SpectralRiskOptimization
            The fitted optimization.
        """
        validate_data(self, X, skip_check_array=True)
        given = SpectralRiskPortfolio() if self.estimator is None else self.estimator
        self.estimator_ = clone(given)
        if self.previous_weights is not None:
            self.estimator_.set_params(previous_weights=self.previous_weights)
        self.estimator_.fit(X, **fit_params)
        self.weights_ = self.estimator_.weights_
        return self
