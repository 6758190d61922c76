"""Linear models with scikit-learn's face: spectral risks in ``fit``, plain scores in ``predict``.

The estimators minimise ``sum_i sigma_i l_[i](w) + l2/2 ||w||^2 + l1 ||w||_1`` to a certified
relative gap of `tol`. They read what scikit-learn's users give (data frames, labels, sample
weights, callbacks), hand a :class:`sorel.Problem` to :func:`sorel.solve`, and keep the result.
"""

from sorel.estimators.classifier import SpectralRiskClassifier
from sorel.estimators.constant import ConstantModelWarning as ConstantModelWarning
from sorel.estimators.portfolio import Frontier as Frontier
from sorel.estimators.portfolio import SpectralRiskPortfolio
from sorel.estimators.progress import ProgressLine as ProgressLine
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
