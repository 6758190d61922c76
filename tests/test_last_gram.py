"""Gram matrices formed from the last one: against the product itself, to the last digits."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel.engines.last_gram import _FEW, _IN_VAIN, _LEFT, _MANY_TIMES, LastGram, _typical


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
    assert 3 <= len(whole) <= 6


def test_rows_that_outweigh_all_others_leave_no_rounding_behind():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 25))
    X[0] *= 1e9
    gram, last = Counted(X), LastGram()
    h = np.ones(300)
    last.of(h, gram)
    h[0] = 0.0
    np.testing.assert_allclose(last.of(h, gram), (X.T * h) @ X, rtol=1e-12, atol=1e-11)


def test_weights_that_all_change_are_not_compared_for_long():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((100, 25))
    gram, last = Counted(X), LastGram()
    for _ in range(12):
        h = rng.random(100)
        np.testing.assert_array_equal(last.of(h, gram), (X.T * h) @ X)
    assert gram.rows == [100] * 12
    assert last._h is None


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
    engine, rows = type(problem.engine), []
    original = engine._gram

    def counted(self, h):
        rows.append(np.count_nonzero(h))
        return original(self, h)

    monkeypatch.setattr(engine, "_gram", counted)
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


@pytest.mark.parametrize("used", [100, 200])
@pytest.mark.parametrize("scaled", [False, True])
def test_how_many_rows_are_few(used, scaled):
    """Of the rows that have weight; a level that all of them change alike counts for nothing."""
    X = np.random.default_rng(7).standard_normal((200, 3))
    few = int(_FEW * used)
    for extra in (0, 1):
        gram, last, h = Counted(X), LastGram(), np.where(np.arange(200) < used, 1.0, 0.0)
        last.of(h, gram)
        h = 3.0 * h if scaled else h.copy()
        h[: few + extra] *= 1.5
        np.testing.assert_allclose(last.of(h, gram), (X.T * h) @ X, rtol=1e-12, atol=1e-12)
        assert gram.rows == ([used, few, 0] if extra == 0 else [used, used])


def test_matrices_are_compared_until_so_many_in_a_row_were_in_vain():
    rng = np.random.default_rng(8)
    X = rng.standard_normal((100, 3))
    gram, last = Counted(X), LastGram()
    last.of(rng.random(100), gram)
    for rounds in (_IN_VAIN - 1, _IN_VAIN):
        for _ in range(rounds):
            h = rng.random(100)
            last.of(h, gram)
        if rounds < _IN_VAIN:
            h[0] += 1.0
            last.of(h, gram)
            assert gram.rows[-2:] == [1, 0]
    assert last._h is None
    before = len(gram.rows)
    last.of(h, gram)
    assert gram.rows[before:] == [100]


def test_the_whole_product_is_taken_again_after_many_changes_or_a_large_loss():
    X = np.ones((100, 1))
    gram, last, h = Counted(X), LastGram(), np.ones(100)
    last.of(h, gram)
    for step in range(_MANY_TIMES + 1):
        h[step % 3] += 1.0
        before = len(gram.rows)
        last.of(h, gram)
        assert len(gram.rows) - before == (2 if step < _MANY_TIMES else 1)
    # A row that outweighs the others goes: what it leaves has lost digits, or not so many.
    for left, whole in ((0.5 * _LEFT, True), (2.0 * _LEFT, False)):
        gram, last, h = Counted(X), LastGram(), np.ones(100)
        h[0] = 99.0 * (1.0 - left) / left
        last.of(h, gram)
        h[0] = 0.0
        assert last.of(h, gram)[0, 0] == pytest.approx(99.0, rel=1e-6)
        assert gram.rows == ([100, 0, 1, 99] if whole else [100, 0, 1])

    # What there once was is scaled along with the rows.
    gram, last, h = Counted(X), LastGram(), np.full(100, 0.3)
    for level, first, whole in ((0.3, 970.3, True), (0.3, 270.3, False), (0.9, 60.9, True)):
        h[:] = level
        h[0] = first
        before = len(gram.rows)
        assert last.of(h, gram)[0, 0] == pytest.approx(h.sum())
        assert (100 in gram.rows[before:]) is whole


def test_the_weight_that_most_rows_have():
    h = np.zeros(1000)
    assert _typical(h) == 0.0
    h[::2] = 2.0
    h[:20:2] = 7.0
    assert _typical(h) == 2.0
    # Every sixth of 500 rows tells.
    h[::2] = np.arange(500.0) + 1.0
    assert _typical(h) == np.median(np.arange(1.0, 501.0)[::6])
