"""What engines inherit: a part of the rows, small defaults, and the rows that a Gram matrix has."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sorel
from sorel.engines import DenseEngine, Engine, Spec, row_gram
from sorel.engines.base import Curvature
from sorel.engines.row_gram import RowGram
from sorel.engines.views import writable_view
from sorel.losses import Multinomial, Squared


def test_a_part_of_the_rows_has_weights_of_its_own():
    weight, rows = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1, 3])
    spec = Spec(np.arange(4.0), Squared(), sorel.Mean(), sample_weight=weight)
    part = spec.for_rows(rows)
    np.testing.assert_array_equal(part.targets, [1.0, 3.0])
    np.testing.assert_allclose(part.sample_weight, [1.0 / 3.0, 2.0 / 3.0])
    plain = Spec(np.arange(4.0), Squared(), sorel.Mean()).for_rows(rows)
    assert plain.sample_weight is None


@pytest.mark.parametrize("intercept", [False, True])
def test_shapes_of_parameters(intercept):
    X, labels = np.ones((6, 4)), np.arange(6) % 3
    one = DenseEngine(X, Spec(np.zeros(6), Squared(), sorel.Mean(), fit_intercept=intercept))
    assert (one.shape, one.size, one.entries) == ((4 + intercept,), 4 + intercept, 24)
    spec = Spec(labels, Multinomial(), sorel.Mean(), np.arange(3), fit_intercept=intercept)
    several = DenseEngine(X, spec)
    assert (several.shape, several.size) == ((4 + intercept, 3), 3 * (4 + intercept))


def test_a_diagonal_preconditions_where_there_is_one():
    class Plain(Curvature):
        def product(self, v):
            return v

        def diagonal(self):
            return np.array([3.0, 0.0, 1.0])

    solve = Plain().preconditioner(np.array([1.0, 0.0, 1.0]))
    np.testing.assert_allclose(solve(np.array([8.0, 5.0, 6.0])), [2.0, 5.0, 3.0])


def test_the_slack_of_an_intercept_from_its_curvature():
    """Twice what a parabola falls, which is residual^2 / (2 curvature), is left for certain."""

    def slack(curvature, residual):
        bends = SimpleNamespace(diagonal=lambda: np.array([7.0, curvature]))
        engine = SimpleNamespace(curvature=lambda point, dual: bends, n_features=1)
        return Engine.intercept_slack(engine, None, None, residual)

    assert slack(4.0, 0.5) == pytest.approx(2.0 * 0.25 / 4.0)
    assert slack(0.0, 0.0) == 0.0
    assert slack(0.0, 1e-9) == np.inf


def test_inner_products_of_rows_are_asked_for_once(monkeypatch):
    monkeypatch.setattr(row_gram, "MAX_ROWS", 7)
    X = np.random.default_rng(0).standard_normal((12, 5))
    asked = []

    def products(rows, others):
        asked.append((len(rows), len(others)))
        return X[rows] @ X[others].T

    gram = RowGram(12, products)
    for rows, calls in (([3, 1], True), ([1, 3], False), ([1, 5, 8], True), ([8, 5, 3], False),
                        ([0, 2, 4], True), ([0, 2, 4, 1, 3, 5, 8], False)):  # fmt: skip
        before, chosen = len(asked), np.array(rows)
        np.testing.assert_allclose(gram.of(chosen), X[chosen] @ X[chosen].T, rtol=1e-12)
        assert (len(asked) > before) is calls
    # One more than it may know: it begins anew with those.
    chosen = np.array([9, 1])
    np.testing.assert_allclose(gram.of(chosen), X[chosen] @ X[chosen].T, rtol=1e-12)
    assert asked[-1][0] == 2


def test_arrays_that_can_be_written_to_are_taken_as_they_are():
    X = np.ones((3, 2))
    assert writable_view(X) is X
    X.flags.writeable = False
    view = writable_view(X)
    assert view.flags.writeable
    assert view.ctypes.data == X.ctypes.data

    class Named(np.ndarray):
        pass

    assert type(writable_view(np.ones(3).view(Named))) is np.ndarray
