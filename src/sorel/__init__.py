"""Spectral risk minimization for linear models, with a certified answer."""

import importlib
from typing import TYPE_CHECKING, Any

from sorel import losses, penalties, risks, solvers
from sorel.certificate import Certificate
from sorel.checkpoints import Checkpoint, CheckpointError
from sorel.penalties import L2, Box, Budget, ElasticNet, NonNegative, Simplex
from sorel.permutahedron import project_permutahedron
from sorel.problem import Problem
from sorel.risks import (
    ESRM,
    CustomSpectrum,
    CVaR,
    Deviation,
    Extremile,
    Max,
    Mean,
    Mixture,
    parse_risk,
)
from sorel.solve import ConvergenceWarning, PrecisionWarning, Record, Result, solve

if TYPE_CHECKING:
    from sorel import metrics, plots
    from sorel.estimators import (
        ConstantModelWarning,
        QuantileRegressor,
        RankRegressor,
        SpectralRiskClassifier,
        SpectralRiskPortfolio,
        SpectralRiskRegressor,
    )
    from sorel.model_selection import SpectralRiskClassifierCV, SpectralRiskRegressorCV
    from sorel.paths import PathResult, path
    from sorel.saving import load_model, save_model

__version__ = "0.2.0"

__all__ = [
    "ESRM",
    "L2",
    "Box",
    "Budget",
    "CVaR",
    "Certificate",
    "Checkpoint",
    "CheckpointError",
    "ConstantModelWarning",
    "ConvergenceWarning",
    "PrecisionWarning",
    "CustomSpectrum",
    "Deviation",
    "ElasticNet",
    "Extremile",
    "Max",
    "Mean",
    "Mixture",
    "NonNegative",
    "PathResult",
    "Problem",
    "QuantileRegressor",
    "RankRegressor",
    "Record",
    "Result",
    "Simplex",
    "SpectralRiskClassifier",
    "SpectralRiskClassifierCV",
    "SpectralRiskPortfolio",
    "SpectralRiskRegressor",
    "SpectralRiskRegressorCV",
    "load_model",
    "losses",
    "metrics",
    "parse_risk",
    "path",
    "penalties",
    "plots",
    "project_permutahedron",
    "risks",
    "save_model",
    "solve",
    "solvers",
]

# Loaded when first asked for: scikit-learn takes longer to import than the rest together.
_LAZY = {
    "ConstantModelWarning": "sorel.estimators",
    "PathResult": "sorel.paths",
    "SpectralRiskClassifier": "sorel.estimators",
    "SpectralRiskClassifierCV": "sorel.model_selection",
    "QuantileRegressor": "sorel.estimators",
    "SpectralRiskPortfolio": "sorel.estimators",
    "RankRegressor": "sorel.estimators",
    "SpectralRiskRegressor": "sorel.estimators",
    "SpectralRiskRegressorCV": "sorel.model_selection",
    "load_model": "sorel.saving",
    "metrics": "sorel.metrics",
    "path": "sorel.paths",
    "plots": "sorel.plots",
    "save_model": "sorel.saving",
    "torch": "sorel.torch",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sorel' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    value = module if _LAZY[name] == f"sorel.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
