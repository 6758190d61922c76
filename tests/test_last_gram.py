"""Gram matrices formed from the last one: against the product itself, to the last digits."""

import numpy as np
import pytest

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


@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("rows", [slice(None), slice(7, 8)])
def test_weights_of_no_use_spoil_no_later_matrix(bad, rows):
    X = np.random.default_rng(3).standard_normal((60, 25))
    last, h = LastGram(), np.ones(60)
    last.of(h, Counted(X))
    h[rows] = bad
    with np.errstate(invalid="ignore"):
        found, expected = last.of(h, Counted(X)), (X.T * h) @ X
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
        if bad == 0.0:
            np.testing.assert_allclose(found, expected, atol=1e-12)
        np.testing.assert_allclose(last.of(np.ones(60), Counted(X)), X.T @ X, atol=1e-12)
