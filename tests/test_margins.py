"""Bounds from margins that are those of no parameters, where rows are all but met."""

from fractions import Fraction

import numpy as np
import pytest

import sorel
from sorel.losses import Huber

PENALTIES = (
    sorel.L2(1e-7),
    sorel.ElasticNet(1e-7, 1e-5),
    sorel.NonNegative(1e-7),
    sorel.Box(1e-7, -1.0, 1.0),
    sorel.Simplex(1e-5),
)


CASES = [
    (loss, penalty)
    for loss in ("squared", Huber(0.1), "poisson", "gamma")
    for penalty in PENALTIES
    # Poisson's losses overflow on most of a simplex of this size.
    if not (loss == "poisson" and isinstance(penalty, sorel.Simplex))
]


@pytest.mark.parametrize(("loss", "penalty"), CASES, ids=repr)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_are_all_but_met(rows, loss, penalty):
    """What is left of the losses is far below the rounding of a margin."""
    rng = np.random.default_rng(rows)
    X = 1e6 * rng.standard_normal((rows, 12))
    y = np.exp(X @ (rng.random(12) / 1e7)) if loss in ("poisson", "gamma") else rng.random(rows)
    result = sorel.solve(sorel.Problem(X, y, risk="esrm:2", loss=loss, penalty=penalty))
    assert result.converged
    assert result.relative_gap <= 1e-4  # less where the fit counts as perfect before


@pytest.mark.parametrize("mu", [1e-9, 1e-3])
@pytest.mark.parametrize("size", [1e3, 1e7])
def test_the_bound_of_one_row_holds_in_exact_arithmetic(size, mu):
    x, y = size * np.random.default_rng(0).standard_normal(9), 1.87
    result = sorel.solve(sorel.Problem(x[None], [y], risk="mean", penalty=sorel.L2(mu)))

    def exact(w):
        residual = sum(Fraction(a) * b for a, b in zip(x, w, strict=True)) - Fraction(y)
        return (residual**2 + Fraction(mu) * sum(c * c for c in w)) / 2

    share = Fraction(y) / (Fraction(mu) + sum(Fraction(c) ** 2 for c in x))
    optimum = exact([share * Fraction(c) for c in x])
    assert Fraction(result.dual) <= optimum
    assert exact([Fraction(c) for c in result.w]) - optimum <= Fraction(result.gap)
    assert result.gap <= 1e-4 * optimum


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_one_target_is_met_up_to_the_rounding_of_the_intercept(offset):
    X = np.random.default_rng(0).standard_normal((1, 5))
    penalty = sorel.Simplex(0.0)
    assert sorel.solve(sorel.Problem(X, [offset], penalty=penalty, fit_intercept=True)).converged
