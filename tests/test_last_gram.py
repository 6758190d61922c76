"""Gram matrices formed from the last one: against the product itself, to the last digits."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel.engines.last_gram import LastGram


class Counted:
    """Forms Gram matrices, and counts the rows that they take."""

    def __init__(self, X):
        self.X, self.rows = X, []

    def __call__(self, h):
        self.rows.append(np.count_nonzero(h))
        return (self.X.T * h) @ self.X


def weights(rng, n, top, level):
    """A tail risk's: none, or all that a row may have, but for a few rows."""
    h = np.where(np.arange(n) < top, level, 0.0)
    h[rng.choice(n, 10, replace=False)] = rng.uniform(0.0, level, 10)
    return h


@pytest.mark.parametrize("level", [1.0, 1.07])
def test_few_changes_cost_their_rows_and_no_digits(level):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 30))
    gram, last = Counted(X), LastGram()
    for step in range(100):
        h = weights(rng, 500, 200 - step, level**step)
        found = last.of(h, gram)
        exact = (X.T * h) @ X
        scale = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
        np.testing.assert_array_less(np.abs(found - exact), 1e-13 * scale)
        found.fill(np.nan)  # the caller's own
    whole = [rows for rows in gram.rows if rows > 60]
    assert len(whole) <= 6


def test_rows_that_outweigh_all_others_leave_no_rounding_behind():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 25))
    X[0] *= 1e9
    gram, last = Counted(X), LastGram()
    h = np.ones(300)
    last.of(h, gram)
    h[0] = 0.0
    np.testing.assert_allclose(last.of(h, gram), (X.T * h) @ X, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("h", [np.zeros(60), np.full(60, np.inf), np.full(60, np.nan)])
def test_weights_of_no_use_are_left_to_the_product(h):
    X = np.random.default_rng(3).standard_normal((60, 25))
    last = LastGram()
    with np.errstate(invalid="ignore"):
        last.of(np.ones(60), Counted(X))
        np.testing.assert_array_equal(last.of(h, Counted(X)), (X.T * h) @ X)
        np.testing.assert_allclose(last.of(np.ones(60), Counted(X)), X.T @ X, atol=1e-12)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_row_that_overflows_spoils_no_later_matrix(bad):
    X = np.random.default_rng(6).standard_normal((60, 25))
    last, h = LastGram(), np.ones(60)
    last.of(h, Counted(X))
    h[7] = bad
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(last.of(h, Counted(X))).any()
        h[7] = 1.0
        np.testing.assert_allclose(last.of(h, Counted(X)), X.T @ X, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_points_of_a_path_hand_their_matrix_on(kind, monkeypatch):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((1500, 30))
    y = X @ rng.standard_normal(30) + rng.standard_t(3, 1500)
    data = X if kind == "dense" else scipy.sparse.csr_array(X)
    problem = sorel.Problem(data, y)
    matrix, rows = type(problem.engine._rows), []
    original = matrix.gram

    def counted(self, h):
        rows.append(np.count_nonzero(h))
        return original(self, h)

    monkeypatch.setattr(matrix, "gram", counted)
    risks = [sorel.CVaR(alpha) for alpha in np.linspace(0.5, 0.4, 6)]
    found = sorel.path(problem, risks=risks, tol=1e-8)
    assert found.converged.all()
    assert sum(count > 300 for count in rows) <= 10 < len(rows)
    assert problem.engine._handed_on is None
    for risk, w in zip(risks, found.coefs, strict=True):
        best = sorel.solve(problem.with_risk(risk), tol=1e-10)
        assert problem.with_risk(risk).objective(w) <= best.objective * (1.0 + 1e-7)


def test_some_of_the_columns_have_a_matrix_of_their_own():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((400, 60))
    y = X[:, :30] @ rng.standard_normal(30) + rng.standard_t(3, 400)
    found = sorel.path(
        X, y, risks=[sorel.CVaR(0.5), sorel.CVaR(0.45)], l1=0.01, l2=[0.1, 0.05], tol=1e-8
    )
    assert found.converged.all()
