"""Preconditioned conjugate gradients for the quadratic models of problems with many parameters.

The matrix is only ever multiplied by a vector, through a handle of the engine, and the penalty is
the smooth one: a multiple of the identity on the penalised parameters. The method is that of
Hestenes and Stiefel (1952), stopped early as in truncated Newton methods (Dembo and Steihaug 1983).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sorel.engines.base import Curvature, FloatArray


class ConjugateSolution(NamedTuple):
    """An approximate minimiser s of s.H s / 2 + gradient.s, and what it took.

    Attributes
    ----------
    step : array
        s.
    decrease : float
        By how much the model falls.
    products : int
        Products with the matrix.
    passes : float
        What they and the preconditioner cost.
    reached : bool
        Whether that was enough.
    """

    step: FloatArray
    decrease: float
    products: int
    passes: float
    reached: bool


def minimize_model(
    curvature: Curvature,
    modulus: FloatArray,
    gradient: FloatArray,
    *,
    enough: Callable[[float, float, FloatArray], bool],
    max_products: int,
    precondition: Callable[[FloatArray], FloatArray] | None = None,
) -> ConjugateSolution:
    """Minimise the model of matrix H = curvature + diag(modulus), from s = 0.

    Parameters
    ----------
    enough : callable
        Told the part of the squared residual that is left, in the norm of the preconditioner, the
        decrease of the model so far, and the residual; says when to stop.
    precondition : callable, optional
        Solves a system with a matrix near H; by default the one of `curvature`.
    """
    extra = 0.0
    if precondition is None:
        precondition, extra = curvature.preconditioner(modulus), curvature.share
    step, residual = np.zeros_like(gradient), -gradient
    scaled = precondition(residual)
    conjugate = scaled.copy()
    size = first = float(np.vdot(residual, scaled))
    decrease, products = 0.0, 0
    limit = min(max_products, 10 + 2 * gradient.size)
    while not (reached := size <= 0.0 or enough(size / first, decrease, residual)):
        if products == limit:
            break
        image = curvature.product(conjugate)
        image += modulus * conjugate
        products += 1
        bend = float(np.vdot(conjugate, image))
        if not bend > 0.0:
            break
        length = size / bend
        step += length * conjugate
        residual -= length * image
        decrease += 0.5 * length * size
        scaled = precondition(residual)
        last, size = size, float(np.vdot(residual, scaled))
        conjugate *= size / last
        conjugate += scaled
    return ConjugateSolution(step, decrease, products, products * curvature.share + extra, reached)
