"""Spectral risk minimization for linear models, with a certified answer."""

from sorel import losses, penalties, risks, solvers
from sorel.penalties import L2, Box, ElasticNet, NonNegative, Simplex
from sorel.permutahedron import project_permutahedron
from sorel.problem import Certificate, Problem
from sorel.risks import (
    ESRM,
    CustomSpectrum,
    CVaR,
    Extremile,
    Max,
    Mean,
    Mixture,
    parse_risk,
)
from sorel.solve import ConvergenceWarning, Record, Result, solve

__version__ = "0.1.0"

__all__ = [
    "ESRM",
    "L2",
    "Box",
    "CVaR",
    "Certificate",
    "ConvergenceWarning",
    "CustomSpectrum",
    "ElasticNet",
    "Extremile",
    "Max",
    "Mean",
    "Mixture",
    "NonNegative",
    "Problem",
    "Record",
    "Result",
    "Simplex",
    "losses",
    "parse_risk",
    "penalties",
    "project_permutahedron",
    "risks",
    "solve",
    "solvers",
]
