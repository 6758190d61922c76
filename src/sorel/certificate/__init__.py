"""The proof of how well a problem is solved: bounds on the optimum, and their rounding errors."""

from sorel.certificate.bounds import MANY_PRODUCTS, Certificate, Certifier, certify
from sorel.certificate.criteria import constant_loss, gap_wanted, noise, relative, unit, vanishes
from sorel.certificate.known import KnownCurvature
from sorel.certificate.rounding import CertificateError, Path, Rounding

__all__ = [
    "MANY_PRODUCTS",
    "Certificate",
    "CertificateError",
    "Certifier",
    "KnownCurvature",
    "Path",
    "Rounding",
    "certify",
    "constant_loss",
    "gap_wanted",
    "noise",
    "relative",
    "unit",
    "vanishes",
]
