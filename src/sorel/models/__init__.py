"""The small quadratic models of second-order steps under a penalty; nothing here knows X.

    min_u  gradient.(u - w) + 1/2 (u - w)^T H (u - w) + g(u[:n_penalized])

An L2 penalty takes one Cholesky solve (`smooth.py`). Bounds, kinks and sums are one model with an
active set (`constrained.py`). Of a penalty that is not one of the package's own only the proximal
map is known, and `sorel.proximal` serves it.
"""

from sorel.models.quadratic import minimize_quadratic
from sorel.models.smooth import FEW, QuadraticInfo, step_of_few

__all__ = ["FEW", "QuadraticInfo", "minimize_quadratic", "step_of_few"]
