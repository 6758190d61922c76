"""The sequence of stronger penalties that continuation goes through."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import make_data

import sorel
from sorel.models.constrained import RIDGE
from sorel.solvers import Continuation, Run


def make_problem(penalty=None):
    X, y = make_data("squared", 31, 3, seed=8)
    return sorel.Problem(X, y, risk="esrm:2", penalty=penalty or sorel.L2(0.3))


def make_run(problem):
    return Run(problem.start(), None, 1e-9, 1e6, math.inf, 0)


def test_moduli_of_a_penalty():
    """From the mean curvature of the losses down to its own, by a factor of ten at most."""
    X, _ = make_data("squared", 31, 3, seed=8)
    for l2 in (1e-4, 0.0):
        penalty = sorel.L2(l2) if l2 else sorel.Box(0.0, -1.0, 1.0)
        problem, run = make_problem(penalty=penalty), make_run(make_problem())
        moduli = Continuation()._moduli(problem, run)
        strongest = np.mean(X**2)
        weakest = l2 or RIDGE * strongest
        assert moduli[0] == pytest.approx(strongest)
        assert len(moduli) == math.ceil(math.log10(strongest / weakest) - 1e-9)
        ratios = np.array([*moduli[1:], weakest]) / moduli
        assert ratios == pytest.approx(np.full(len(moduli), ratios[0]))
        assert ratios[0] >= 0.1 - 1e-9
        assert run.passes == 1.0
    strong = make_problem(penalty=sorel.L2(strongest))
    assert Continuation()._moduli(strong, make_run(strong)) == []
    run = make_run(problem)
    run.w = np.ones(3)
    Continuation()._moduli(problem, run)
    assert run.passes == 2.0
