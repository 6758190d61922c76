"""SOREL's schedules: what they promise, and how they fail."""

from __future__ import annotations

import numpy as np
import pytest
from stochastic import D, make, optimum, quietly

import sorel
from sorel.solvers import (
    LSVRG,
    SOREL,
    Prospect,
    SaddleSAGA,
    UnsupportedProblemError,
)


def test_theory_is_safe_and_counts_its_passes():
    problem = make(penalty=sorel.L2(2.0))
    best = optimum(problem).objective
    result = quietly(problem, SOREL("theory"), tol=1e-4, max_passes=1500)
    start = problem.objective(np.zeros(D))
    assert result.objective - best <= 1e-2 * (start - best)
    gaps = [record.gap for record in result.history]
    assert gaps[-1] < gaps[0]
    # Pieces of a pass keep an epoch of many passes within the budget.
    short = quietly(make(penalty=sorel.L2(1e-3)), SOREL("theory"), tol=1e-9, max_passes=20)
    assert 20 <= short.passes <= 23


def test_paper_diverges_readably():
    problem = make()
    with pytest.warns(sorel.ConvergenceWarning, match="diverged at pass"):
        result = sorel.solve(problem, SOREL("paper", step_size=5.0), max_passes=500)
    assert "lower step_size=5" in result.status
    assert not result.converged
    assert np.all(np.isfinite(result.w))
    assert result.objective <= problem.objective(np.zeros(D)) * (1 + 1e-12)


def test_two_passes_for_each_outer_iteration():
    problem = make()
    for solver in (SOREL("paper"), LSVRG(), Prospect(), SaddleSAGA()):
        result = quietly(problem, solver, tol=0.0, max_passes=21)
        assert result.passes == pytest.approx(1 + 2 * result.n_iter)
        assert result.n_iter == 10
    batched = quietly(problem, SOREL("paper", batch_size=16), tol=0.0, max_passes=18)
    # 40 samples hold two whole batches of 16.
    assert batched.passes == pytest.approx(1 + 1.8 * batched.n_iter)


def test_theory_refuses_an_intercept():
    with pytest.raises(UnsupportedProblemError, match="strongly convex"):
        sorel.solve(make(fit_intercept=True), SOREL("theory"))
