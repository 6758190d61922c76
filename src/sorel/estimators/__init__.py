"""Linear models with scikit-learn's face: spectral risks in ``fit``, plain scores in ``predict``.

The estimators minimise ``sum_i sigma_i l_[i](w) + l2/2 ||w||^2 + l1 ||w||_1`` to a certified
relative gap of `tol`. They read what scikit-learn's users give (data frames, labels, sample
weights, callbacks), hand a :class:`sorel.Problem` to :func:`sorel.solve`, and keep the result.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sorel.estimators.classifier import SpectralRiskClassifier
    from sorel.estimators.constant_model import ConstantModelWarning as ConstantModelWarning
    from sorel.estimators.fit_warnings import MeanShiftWarning as MeanShiftWarning
    from sorel.estimators.fit_warnings import TailSizeWarning as TailSizeWarning
    from sorel.estimators.portfolio import SpectralRiskPortfolio
    from sorel.estimators.quantile import QuantileRegressor
    from sorel.estimators.rank import RankRegressor
    from sorel.estimators.regressor import SpectralRiskRegressor

__all__ = [
    "QuantileRegressor",
    "RankRegressor",
    "SpectralRiskClassifier",
    "SpectralRiskPortfolio",
    "SpectralRiskRegressor",
]

# Loaded when first asked for: metrics and paths are of use without scikit-learn's import.
_HOMES = {
    "ConstantModelWarning": "constant_model",
    "MeanShiftWarning": "fit_warnings",
    "QuantileRegressor": "quantile",
    "RankRegressor": "rank",
    "SpectralRiskClassifier": "classifier",
    "SpectralRiskPortfolio": "portfolio",
    "SpectralRiskRegressor": "regressor",
    "TailSizeWarning": "fit_warnings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
