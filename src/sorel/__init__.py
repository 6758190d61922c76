"""Spectral risk minimization for linear models, with a certified answer."""

import importlib
from typing import TYPE_CHECKING, Any

from sorel import solvers
from sorel._lib import aliases
from sorel.certificate import Certificate
from sorel.files.checkpoints import Checkpoint, CheckpointError
from sorel.problem import losses, penalties, risks
from sorel.problem.penalties import L2, Box, Budget, ElasticNet, NonNegative, Simplex
from sorel.problem.problem import Problem
from sorel.problem.risks import (
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
from sorel.projection import project_permutahedron
from sorel.solvers.solve import ConvergenceWarning, PrecisionWarning, Record, Result, solve

if TYPE_CHECKING:
    from sorel.estimators import (
        ConstantModelWarning,
        QuantileRegressor,
        RankRegressor,
        SpectralRiskClassifier,
        SpectralRiskPortfolio,
        SpectralRiskRegressor,
        metrics,
        plots,
    )
    from sorel.estimators.model_selection import SpectralRiskClassifierCV, SpectralRiskRegressorCV
    from sorel.estimators.paths import PathResult, path
    from sorel.files.saving import load_model, save_model

# `import sorel.losses` works, wherever the file lies.
aliases.install()

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
    "PathResult": "sorel.estimators.paths",
    "SpectralRiskClassifier": "sorel.estimators",
    "SpectralRiskClassifierCV": "sorel.estimators.model_selection",
    "QuantileRegressor": "sorel.estimators",
    "SpectralRiskPortfolio": "sorel.estimators",
    "RankRegressor": "sorel.estimators",
    "SpectralRiskRegressor": "sorel.estimators",
    "SpectralRiskRegressorCV": "sorel.estimators.model_selection",
    "load_model": "sorel.files.saving",
    "path": "sorel.estimators.paths",
    "save_model": "sorel.files.saving",
}


def __getattr__(name: str) -> Any:
    if f"sorel.{name}" in aliases.PUBLIC or name == "torch":
        value: Any = importlib.import_module(f"sorel.{name}")
    elif name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module 'sorel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
