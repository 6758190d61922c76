"""Steps on sparse rows against plain steps on all coefficients."""

import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sorel._core as _core
from sorel._core import LOSS_CODES, PURE_L2, SEPARABLE

STEP = 0.1


def plain_steps(X, y, indices, w, drift, shrink, threshold, scale, bounds):
    """w <- clip(soft(shrink w + drift - step (x.w - y) x) scale), and the sum of the iterates."""
    w, total = w.copy(), np.zeros_like(w)
    for i in indices:
        x = X[i]
        v = shrink * w + drift - STEP * (x @ w - y[i]) * x
        w = np.clip(np.copysign(np.maximum(np.abs(v) - threshold, 0.0), v) * scale, *bounds)
        total += w
    return w, total


def sparse_run(X, y, indices, w, drift, shrink, threshold, scale, bounds, proximal):
    rows, d = scipy.sparse.csr_array(X), len(w)
    W, total = w[None].copy(), np.zeros((1, d))
    l2, l1 = (1.0 / scale - 1.0) / STEP, threshold / STEP
    _core.svrg_steps(
        (rows.indptr, rows.indices, rows.data), y, LOSS_CODES["squared"], 1.0,
        np.zeros((len(y), 1)), np.ones(len(indices)), indices, 1, W, total, True, drift[None],
        (shrink, STEP, 1.0, STEP, proximal, STEP, SEPARABLE if proximal else PURE_L2, l2, l1,
         np.full(d, bounds[0]), np.full(d, bounds[1])),
    )  # fmt: skip
    return W[0], total[0]


def check(u, drift, shrink, threshold, scale, bounds, length, proximal=True):
    """Row 0 touches the first coefficient alone; row 1, at the end, all that have waited."""
    d = 4
    X = np.zeros((2, d))
    X[0, 0] = 1.0
    X[1] = [0.5, -1.0, 0.25, 0.75]
    y, w = np.array([0.3, -0.2]), np.array([0.1, u, -u, 0.0])
    push = drift * np.array([0.1, 1.0, 1.0, -1.0])
    indices = np.array([*[0] * length, 1, 0])
    arguments = (X, y, indices, w, push, shrink, threshold, scale, bounds)
    found, expected = sparse_run(*arguments, proximal), plain_steps(*arguments)
    for got, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-8, atol=1e-7)


numbers = st.floats(-3.0, 3.0)
BOUNDS = [(-math.inf, math.inf), (0.0, math.inf), (-0.5, 1.0), (0.2, 0.7), (-2.0, -1.0)]


@settings(max_examples=100, deadline=None)
@given(
    numbers, st.floats(-0.3, 0.3), st.floats(0.9, 1.0), st.floats(0.0, 0.05), st.floats(0.9, 1.0),
    st.sampled_from(BOUNDS), st.integers(0, 500),
)  # fmt: skip
@example(0.5, 0.02, 0.99, 0.01, 0.98, (-1.0, 1.0), 4095)  # the longest run of the table
@example(0.5, 0.02, 0.99, 0.01, 0.98, (-1.0, 1.0), 4096)
@example(0.5, 1e-4, 0.9999, 0.0, 1.0, (-math.inf, math.inf), 13_000)
@example(2.0, -0.01, 0.999, 0.002, 1.0, (-1.0, 5.0), 3000)  # across 0 down to the lower bound
def test_coefficients_catch_up_with_the_steps_they_missed(
    u, drift, shrink, threshold, scale, bounds, length
):
    check(u, drift, shrink, threshold, scale, bounds, length)


@pytest.mark.parametrize("length", [0, 3, 200, 9000])
@pytest.mark.parametrize("shrink", [1.0, 1.0 - 1e-6, 0.999, 0.5, -0.5])
def test_steps_without_a_proximal_map(shrink, length):
    """As scalars times vectors where the shrinkage is slow, and lazily where it is not."""
    check(0.7, 0.01, shrink, 0.0, 1.0, (-math.inf, math.inf), length, proximal=False)
