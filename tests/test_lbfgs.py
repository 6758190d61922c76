"""L-BFGS on the nonsmooth objective: bounds, kinks, refusals."""

from __future__ import annotations

import math

import pytest
from stochastic import D, make, optimum, quietly

import sorel
from sorel.solvers import (
    LBFGS,
    UnsupportedProblemError,
)


def test_lbfgs_keeps_bounds_and_says_when_it_stalls():
    box = make(penalty=sorel.Box(0.1, -0.3, [0.2, 0.5, 0.4]), fit_intercept=True)
    result = quietly(box, LBFGS(), tol=1e-6, max_passes=200)
    best = optimum(box)
    assert result.objective - best.objective <= 1e-3 * best.objective
    assert math.isfinite(box.penalty.value(result.w[:D]))
    several = make("multinomial", penalty=sorel.NonNegative(0.1), fit_intercept=True)
    assert quietly(several, LBFGS(), tol=1e-3, max_passes=200).w[:D].min() >= 0.0
    # The larger of w^2/2 and (w - 4)^2/2 has its minimum at a kink, where one weighting proves
    # nothing.
    kink = sorel.Problem([[1.0], [1.0]], [0.0, 4.0], risk=sorel.Max(), penalty=sorel.L2(1e-3))
    stalled = quietly(kink, LBFGS(), tol=0.0)
    assert stalled.w == pytest.approx([2.0], abs=1e-3)
    assert "no descent" in stalled.status


def test_interrupt_inside_lbfgs_returns_the_best():
    problem = make()

    def interrupt(record):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(record)

    calls: list = []
    result = quietly(problem, LBFGS(), tol=0.0, callback=interrupt)
    assert result.status.startswith("interrupted")


@pytest.mark.parametrize("penalty", [sorel.ElasticNet(0.1, 0.2), sorel.Simplex(0.1)])
def test_lbfgs_refuses_and_names_who_can(penalty):
    with pytest.raises(UnsupportedProblemError, match="smooth penalties") as error:
        sorel.solve(make(penalty=penalty), "lbfgs")
    message = str(error.value)
    for name in ("newton", "sorel", "lsvrg", "prospect", "saddle_saga", "sgd", "subgradient"):
        assert repr(name) in message
    assert message.count("'lbfgs'") == 1
