"""Spectral risk minimization for linear models, with a certified answer."""

import importlib
from typing import TYPE_CHECKING, Any

from sorel._lib import aliases

if TYPE_CHECKING:
    from sorel import solvers
    from sorel.certificate import Certificate
    from sorel.estimators import (
        ConstantModelWarning,
        MeanShiftWarning,
        QuantileRegressor,
        RankRegressor,
        SpectralRiskClassifier,
        SpectralRiskPortfolio,
        SpectralRiskRegressor,
        TailSizeWarning,
        metrics,
        plots,
    )
    from sorel.estimators.model_selection import SpectralRiskClassifierCV, SpectralRiskRegressorCV
    from sorel.estimators.paths import PathResult, path
    from sorel.files.checkpoints import Checkpoint, CheckpointError
    from sorel.files.saving import load_model, save_model
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

# `import sorel.losses` works, wherever the file lies.
aliases.install()

__version__ = "0.4.0.dev0"

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
    "MeanShiftWarning",
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
    "TailSizeWarning",
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

# A name is loaded when it is first asked for: `sorel --help` needs none of them, and scikit-learn
# takes longer to import than the rest together.
_HOMES = {
    "sorel.certificate": ("Certificate",),
    "sorel.estimators": (
        "ConstantModelWarning",
        "MeanShiftWarning",
        "QuantileRegressor",
        "RankRegressor",
        "SpectralRiskClassifier",
        "SpectralRiskPortfolio",
        "SpectralRiskRegressor",
        "TailSizeWarning",
    ),
    "sorel.estimators.model_selection": ("SpectralRiskClassifierCV", "SpectralRiskRegressorCV"),
    "sorel.estimators.paths": ("PathResult", "path"),
    "sorel.files.checkpoints": ("Checkpoint", "CheckpointError"),
    "sorel.files.saving": ("load_model", "save_model"),
    "sorel.problem.penalties": ("L2", "Box", "Budget", "ElasticNet", "NonNegative", "Simplex"),
    "sorel.problem.problem": ("Problem",),
    "sorel.problem.risks": (
        "ESRM",
        "CVaR",
        "CustomSpectrum",
        "Deviation",
        "Extremile",
        "Max",
        "Mean",
        "Mixture",
        "parse_risk",
    ),
    "sorel.projection": ("project_permutahedron",),
    "sorel.solvers.solve": ("ConvergenceWarning", "PrecisionWarning", "Record", "Result", "solve"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if f"sorel.{name}" in aliases.PUBLIC or name in ("solvers", "torch"):
        value: Any = importlib.import_module(f"sorel.{name}")
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'sorel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
