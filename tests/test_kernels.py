"""Compiled loops against NumPy one-liners."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from helpers import SERVED, make_loss
from scipy.special import expit

import sorel._core as _core
from sorel.losses import Multinomial, Squared, compiled_form, parse_loss

LOSSES = [parse_loss(make_loss(name)) for name in SERVED if name in _core.LOSS_CODES]
by_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
by_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
by_weighting = pytest.mark.parametrize("weighted", [False, True])
by_intercept = pytest.mark.parametrize("intercept", [False, True])
# Around four rows, four and sixteen columns, and the rows that are taken together by columns.
SIZES = [(1, 1), (3, 2), (4, 5), (9, 3), (31, 7), (6, 67), (2053, 18)]
by_size = pytest.mark.parametrize(("n", "d"), SIZES)
CLOSE = {"rtol": 1e-13, "atol": 1e-13}
NO_BLOCKS = np.full(1, -1, np.int32)


def matrix(n, d, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def blocks(numbers):
    return np.asarray(numbers, np.int32)


def random_vectors(n, count, seed=1):
    return list(np.random.default_rng(seed).normal(size=(count, n)))


def sample_weights(n, weighted, seed=2):
    """omega as the loops take it, and as the formulas want it."""
    if not weighted:
        return np.full(1, 1.0 / n), np.full(n, 1.0 / n)
    omega = np.random.default_rng(seed).uniform(0.1, 1.0, n)
    omega /= omega.sum()
    return omega, omega


def targets(loss, n, seed=3):
    y = np.random.default_rng(seed).normal(size=n)
    return np.where(y > 0, 1.0, -1.0) if loss.is_classifier else y


def extended(X):
    """[X 1] in double precision."""
    return np.column_stack([X.astype(np.float64), np.ones(len(X))])


# Products with X.


@by_size
@by_dtype
def test_products(n, d, dtype):
    X = matrix(n, d, dtype)
    (w,) = random_vectors(d, 1)
    w[d // 2] = 0.0
    expected = X.astype(np.float64) @ w - 0.3
    out = np.full(n, np.nan)
    _core.product_rows(X, w, -0.3, out)
    np.testing.assert_allclose(out, expected, **CLOSE)
    out.fill(np.nan)
    _core.product_columns(np.ascontiguousarray(X.T), w, -0.3, 0, n // 2, out)
    _core.product_columns(np.ascontiguousarray(X.T), w, -0.3, n // 2, n, out)
    np.testing.assert_allclose(out, expected, **CLOSE)


@by_size
@by_dtype
@by_intercept
def test_products_with_a_gram_matrix(n, d, dtype, intercept):
    """Rows by fours, and what is left of them; added to what is there."""
    X, (v,), (h,) = matrix(n, d, dtype), random_vectors(d, 1), random_vectors(n, 1)
    shift = 0.7 if intercept else 0.0
    expected = (extended(X).T @ (h * (X.astype(np.float64) @ v + shift)))[: d + intercept]
    out = np.full(d + intercept, 0.5)
    _core.gram_product_rows(X, h, v, shift, out)
    np.testing.assert_allclose(out - 0.5, expected, **CLOSE)


@by_size
@by_dtype
@by_intercept
@pytest.mark.parametrize("zeros", [False, True])
def test_adjoints(n, d, dtype, intercept, zeros):
    X, (c,) = matrix(n, d, dtype), random_vectors(n, 1)
    if zeros:
        c[: 2 * n // 3] = 0.0
    expected = (extended(X).T @ c)[: d + intercept]
    out = np.full(d + intercept, 0.5)
    _core.adjoint_rows(X, c, out)
    np.testing.assert_allclose(out - 0.5, expected, **CLOSE)
    out.fill(0.5)
    _core.adjoint_columns(np.ascontiguousarray(X.T), c, 0, n // 2, out)
    _core.adjoint_columns(np.ascontiguousarray(X.T), c, n // 2, n, out)
    np.testing.assert_allclose(out - 0.5, expected, **CLOSE)


@by_size
def test_a_row_is_added_to_all(n, d):
    margins, row = matrix(n, d), matrix(1, d, seed=4)[0]
    expected = margins + row
    _core.add_row(margins, row)
    np.testing.assert_allclose(margins, expected, **CLOSE)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("n", [1, 20, 136, 300])
@by_intercept
@by_dtype
@pytest.mark.parametrize("order", ["C", "F"])
def test_gram_of_few_columns(n, d, intercept, dtype, order):
    X, (h,) = np.asarray(matrix(n, d, dtype), order=order), random_vectors(n, 1)
    h[::3] = 0.0
    full = extended(X)[:, : d + intercept]
    out = np.ones((d + intercept, d + intercept))
    _core.gram_few(X, h, out)
    np.testing.assert_allclose(out - 1.0, full.T @ (h[:, None] * full), **CLOSE)
    np.testing.assert_array_equal(out, out.T)


@by_intercept
def test_gram_diagonal(intercept):
    X, (h,) = matrix(9, 3), random_vectors(9, 1)
    h[2] = 0.0
    out = np.zeros(3 + intercept)
    _core.gram_diagonal(X, h, out)
    full = extended(X)[:, : 3 + intercept]
    np.testing.assert_allclose(out, np.diag(full.T @ (h[:, None] * full)), **CLOSE)


@by_intercept
def test_scaled_rows(intercept):
    X, (scale,) = matrix(9, 3), random_vectors(9, 1)
    rows, out = np.array([8, 1, 4, 5, 0]), np.full((4, 3 + intercept), np.nan)
    _core.scaled_rows(X, scale[rows[1:4]], rows, 1, 4, out)
    expected = (scale[:, None] * extended(X))[rows[1:4], : 3 + intercept]
    np.testing.assert_allclose(out[:3], expected, **CLOSE)
    assert np.isnan(out[3]).all()


@by_weighting
@pytest.mark.parametrize("intercept", [False, True])
def test_subtract_block_means(weighted, intercept):
    n, d, eta = 12, 4, 2.5
    omega, full = sample_weights(n, weighted)
    X, (y, z) = matrix(n, d), random_vectors(n, 2)
    slopes = Squared().derivative(y, z)
    block = blocks(np.arange(n) % 4 - 1)
    rows = np.column_stack([X, np.ones(n)]) if intercept else X
    expected = np.eye(rows.shape[1])
    out = expected.copy()
    for b in range(3):
        u = (full * slopes * (block == b)) @ rows
        expected -= eta * np.outer(u, u) / full[block == b].sum()
    sums = np.zeros((3, rows.shape[1] + 1))
    _core.subtract_block_means(
        X, _core.LOSS_CODES["squared"], 0.0, y, z, block, sums, eta, omega, weighted, out
    )
    np.testing.assert_allclose(out, expected, **CLOSE)


# Blocks and samples of rows.


@by_intercept
@by_dtype
def test_block_sums(intercept, dtype):
    X, (c,) = matrix(12, 3, dtype), random_vectors(12, 1)
    c[3] = 0.0
    block = blocks(np.array([0, 1, -1, 2, 3, 3, 1, -1, 0, 2, 2, 1]))
    member = block[:, None] == np.arange(4)
    expected = (member * c[:, None]).T @ extended(X)[:, : 3 + intercept]
    for start, stop in [(0, 4), (1, 3), (3, 4)]:
        out = np.zeros((stop - start, 3 + intercept))
        _core.block_sums(X, c, block, start, out)
        np.testing.assert_allclose(out, expected[start:stop], **CLOSE)


@by_weighting
@pytest.mark.parametrize("sampled", [False, True])
def test_block_totals_and_means(weighted, sampled):
    block = blocks(np.array([0, 1, -1, 2, 1, 0, -1, 2]))
    omega, full = sample_weights(8, weighted)
    (values,) = random_vectors(8, 1)
    factor = np.array([0.0, 1.0, 2.0, 3.0, 1.5, 0.0, 1.0, 1.0])
    totals = np.full(3, np.nan)
    _core.block_totals(block, factor, sampled, omega, weighted, totals)
    used = full * factor if sampled else full
    np.testing.assert_allclose(totals, [used[block == b].sum() for b in range(3)], **CLOSE)
    totals, means = np.full(3, np.nan), np.full(3, np.nan)
    _core.block_means(block, values, omega, weighted, totals, means)
    expected = [np.average(values[block == b], weights=full[block == b]) for b in range(3)]
    np.testing.assert_allclose(means, expected, **CLOSE)


def test_sampled_rows_keep_the_sum_and_their_share():
    rng = np.random.default_rng(0)
    full = rng.exponential(size=400) ** 2
    full[::7] = 0.0
    block = NO_BLOCKS
    unit = full.sum() / 50
    h, factor = full.copy(), np.full(400, np.nan)
    _core.sample_rows(h, block, False, unit, factor)
    np.testing.assert_allclose(h, factor * full, rtol=1e-15)
    kept = full > unit
    np.testing.assert_array_equal(h[kept], full[kept])
    assert np.all((factor == 0.0) | (factor >= 1.0))
    # A light row that is taken stands for exactly one unit, and the sum is off by one at most.
    light = (factor > 1.0) & (full > 0)
    np.testing.assert_allclose(h[light], unit, rtol=1e-14)
    assert abs(h.sum() - full.sum()) <= unit
    assert 20 <= np.count_nonzero(h) <= 51


def test_sampling_is_fair_over_all_orders():
    rng = np.random.default_rng(1)
    full = rng.uniform(0.0, 1.0, 12)
    total, trials = np.zeros(12), 4000
    for _ in range(trials):
        order = rng.permutation(12)
        h, factor = full[order], np.empty(12)
        _core.sample_rows(h, NO_BLOCKS, False, full.sum() / 4, factor)
        total[order] += h
    np.testing.assert_allclose(total / trials, full, rtol=0.15, atol=0.02)


def test_rows_in_blocks_are_kept_on_request():
    full = np.full(30, 0.1)
    block = blocks(np.where(np.arange(30) < 10, 0, -1))
    h, factor = full.copy(), np.empty(30)
    _core.sample_rows(h, block, True, 1.0, factor)
    np.testing.assert_array_equal(factor[:10], 1.0)
    np.testing.assert_array_equal(h[:10], full[:10])
    assert np.count_nonzero(h[10:]) == 2


# Losses and weightings.


@by_loss
def test_moved_margins(loss):
    z, direction = random_vectors(9, 2)
    y = targets(loss, 9)
    margins, losses = np.full((2, 9), np.nan)
    _core.move_margins(z, direction, 0.7, *compiled_form(loss), y, margins, losses)
    moved = z + 0.7 * direction
    np.testing.assert_allclose(margins, moved, **CLOSE)
    np.testing.assert_allclose(losses, loss.value(y, moved), **CLOSE)


@by_loss
def test_curvature_bound_holds(loss):
    z = np.linspace(-20, 20, 401)
    bound = loss.curvature_bound
    curvature = np.concatenate([loss.curvature(y, z) for y in (-1.0, 1.0)])
    assert curvature.max() == pytest.approx(bound, rel=1e-12)


def test_logistic_loops_keep_all_digits():
    z = np.r_[
        np.linspace(-40.0, 40.0, 4001), 10.0 ** np.arange(-300, 3), -(10.0 ** np.arange(-9, 3))
    ]
    y, losses, slopes = np.ones(len(z)), np.empty(len(z)), np.empty(len(z))
    _core.losses_at(2, 1.0, y, z, losses)
    _core.slopes_at(2, 1.0, y, z, slopes)
    wide = z.astype(np.longdouble)
    e = np.exp(-np.abs(wide))
    expected = np.maximum(-wide, 0.0) + np.log1p(e)
    np.testing.assert_allclose(losses, expected.astype(np.float64), rtol=8e-16)
    expected = -np.where(wide >= 0.0, e, 1.0) / (1.0 + e)
    np.testing.assert_allclose(slopes, expected.astype(np.float64), rtol=8e-16)


def test_logistic_loops_far_out():
    z = np.array([700.0, 745.0, 800.0, 1e300, np.inf, np.nan])
    z = np.r_[z, -z]
    y, losses, slopes = np.ones(len(z)), np.empty(len(z)), np.empty(len(z))
    _core.losses_at(2, 1.0, y, z, losses)
    _core.slopes_at(2, 1.0, y, z, slopes)
    expected = np.maximum(-z, 0.0) + np.log1p(np.exp(-np.abs(z)))
    np.testing.assert_allclose(losses, expected, rtol=1e-12, atol=1e-320)
    np.testing.assert_allclose(slopes, -expit(-z), rtol=1e-12, atol=1e-320)
    assert np.isnan(losses).sum() == np.isnan(slopes).sum() == 2


@by_weighting
def test_weighted_sums(weighted):
    omega, full = sample_weights(14, weighted)
    q, values = random_vectors(14, 2)
    args = (omega, weighted)
    close = {"rel": 1e-12, "abs": 1e-14}
    assert _core.weighted_sum(q, values, *args) == pytest.approx(full @ (q * values), **close)
    assert _core.weighted_square_distance(q, values, *args) == pytest.approx(
        full @ (q - values) ** 2, **close
    )


@by_weighting
@by_loss
def test_weighted_slopes(weighted, loss):
    omega, full = sample_weights(10, weighted)
    q, z, direction, factor = random_vectors(10, 4)
    q[::3] = factor[1::3] = 0.0
    y = targets(loss, 10)
    slopes = loss.derivative(y, z)
    args, out = (*compiled_form(loss), y, z), np.full(10, np.nan)
    _core.weighted_slopes(*args, q, omega, weighted, out)
    np.testing.assert_allclose(out, full * q * slopes, **CLOSE)
    slope = _core.directional_slope(*args, q, direction, omega, weighted)
    assert slope == pytest.approx(full @ (q * slopes * direction), rel=1e-12, abs=1e-14)
    block = blocks(np.arange(10) % 3 - 1)
    _core.block_slopes(*args, block, factor, False, omega, weighted, out)
    np.testing.assert_allclose(out, full * slopes * (block >= 0), **CLOSE)
    _core.block_slopes(*args, block, factor, True, omega, weighted, out)
    np.testing.assert_allclose(out, full * slopes * (block >= 0) * factor, **CLOSE)


@pytest.mark.parametrize("theta", [0.0, 0.4])
def test_ascent_target(theta):
    q, losses, previous = random_vectors(10, 3)
    out = np.full(10, np.nan)
    _core.ascent_target(q, losses, previous, 2.5, theta, out)
    np.testing.assert_allclose(out, q + 2.5 * ((1 + theta) * losses - theta * previous), **CLOSE)


def curvatures(loss, y, z, caution):
    """Between the second derivative (caution 0) and the majorant (1)."""
    out, one = np.empty(len(z)), np.ones(len(z))
    _core.augmented_curvature(
        *compiled_form(loss), y, z, one, NO_BLOCKS, 0.0, caution, np.ones(1), False, out
    )
    return out


@by_loss
def test_majorant_lies_above_the_loss_and_touches_it(loss):
    y, far = targets(loss, 9)[:, None], np.linspace(-30.0, 30.0, 4001)[None, :]
    z = np.array([-9.0, -2.0, -0.5, -1e-6, 0.0, 0.3, 1.0, 4.0, 12.0])[:, None]
    curvature = curvatures(loss, y.ravel(), z.ravel(), 1.0)[:, None]
    value = loss.value(y.ravel(), z.ravel())[:, None]
    slope = loss.derivative(y.ravel(), z.ravel())[:, None]
    parabola = value + slope * (far - z) + 0.5 * curvature * (far - z) ** 2
    losses = np.array([loss.value(target, far[0]) for target in y.ravel()])
    assert np.all(parabola >= losses - 1e-9 * (1.0 + losses))
    assert np.all(curvature.ravel() >= loss.curvature(y.ravel(), z.ravel()) - 1e-12)
    assert np.all(curvature > 0)


@by_loss
@by_weighting
@pytest.mark.parametrize("eta", [0.0, 3.0])
@pytest.mark.parametrize("caution", [0.0, 0.4])
def test_augmented_curvature(loss, weighted, eta, caution):
    omega, full = sample_weights(12, weighted)
    z, q = random_vectors(12, 2)
    q = np.maximum(q, 0.0)
    y = targets(loss, 12)
    slopes = loss.derivative(y, z)
    block = blocks(np.arange(12) % 3 - 1)
    out = np.full(12, np.nan)
    _core.augmented_curvature(
        *compiled_form(loss), y, z, q, block, eta, caution, omega, weighted, out
    )
    inside = eta * slopes**2 * (block >= 0)
    curvature = (1.0 - caution) * loss.curvature(y, z) + caution * curvatures(loss, y, z, 1.0)
    np.testing.assert_allclose(out, full * (q * curvature + inside), **CLOSE)


@by_loss
@by_weighting
@pytest.mark.parametrize("eta", [0.0, 3.0])
@pytest.mark.parametrize("caution", [0.0, 0.4])
def test_curvature_applied_to_a_change_of_margins(loss, weighted, eta, caution):
    omega, full = sample_weights(12, weighted)
    z, q, change = random_vectors(12, 3)
    q = np.maximum(q, 0.0)
    y = targets(loss, 12)
    slopes = loss.derivative(y, z)
    block = blocks(np.arange(12) % 3 - 1)
    dl = slopes * change
    means = np.array([np.average(dl[block == b], weights=full[block == b]) for b in (0, 1)])
    dq = np.where(block >= 0, eta * (dl - means[block]), 0.0)
    curvature = (1.0 - caution) * loss.curvature(y, z) + caution * curvatures(loss, y, z, 1.0)
    expected = full * (q * curvature * change + dq * slopes)
    h = np.empty(12)
    _core.augmented_curvature(
        *compiled_form(loss), y, z, q, block, eta, caution, omega, weighted, h
    )
    totals = np.array([full[block == b].sum() for b in (0, 1)])
    _core.apply_curvature(h, full * slopes, block, eta / totals, change)
    np.testing.assert_allclose(change, expected, **CLOSE)


@by_dtype
def test_diagonal_of_a_sparse_gram_matrix(dtype):
    X = matrix(9, 5, dtype) * (matrix(9, 5, seed=4) > 0)
    (h,) = random_vectors(9, 1)
    h[2] = 0.0
    sparse = scipy.sparse.csr_array(X)
    out = np.zeros(5)
    _core.gram_diagonal_csr(sparse.indptr, sparse.indices, sparse.data, h, out)
    np.testing.assert_allclose(out, (X.astype(np.float64) ** 2).T @ h, rtol=1e-6, atol=1e-13)


@by_dtype
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_selected_sparse_rows(dtype, index):
    X = matrix(9, 5, dtype) * (matrix(9, 5, seed=4) > 0)
    X[3] = 0.0
    sparse = scipy.sparse.csr_array(X)
    indptr, indices = sparse.indptr.astype(index), sparse.indices.astype(index)
    rows = np.array([1, 3, 3, 8])
    wanted = scipy.sparse.csr_array(X[rows])
    out = np.zeros(wanted.nnz, index), np.zeros(wanted.nnz, dtype)
    _core.select_csr(indptr, indices, sparse.data, rows, wanted.indptr.astype(index), *out)
    np.testing.assert_array_equal(out[0], wanted.indices)
    np.testing.assert_array_equal(out[1], wanted.data)


@by_loss
@by_weighting
def test_derivatives_in_a_shift(loss, weighted):
    omega, full = sample_weights(12, weighted)
    z, q = random_vectors(12, 2)
    q = np.maximum(q, 0.0)
    y, shift = targets(loss, 12), 0.35
    first, second, rounding = _core.shift_statistics(
        *compiled_form(loss), y, z, shift, q, omega, weighted
    )
    slopes = full * q * loss.derivative(y, z + shift)
    assert first == pytest.approx(slopes.sum(), rel=1e-12, abs=1e-15)
    curvature = full * q * loss.curvature(y, z + shift)
    assert second == pytest.approx(curvature.sum(), rel=1e-12, abs=1e-15)
    size = np.abs(slopes).sum() + curvature @ (np.abs(z) + abs(shift))
    assert rounding == pytest.approx(size, rel=1e-12)


# The multinomial loss.


@by_weighting
@pytest.mark.parametrize("eta", [0.0, 3.0])
def test_softmax_pairs_make_up_the_hessian_of_a_sample(weighted, eta):
    n, k = 8, 3
    omega, full = sample_weights(n, weighted)
    z, y = matrix(n, k, seed=8), np.arange(n) % k
    q = np.maximum(random_vectors(n, 1)[0], 0.0)
    loss = Multinomial()
    slopes, curvature = loss.derivative(y, z), loss.curvature(y, z)
    block = blocks(np.arange(n) % 3 - 1)
    inside = eta * (block >= 0)
    for a in range(k):
        for b in range(k):
            out = np.full(n, np.nan)
            _core.softmax_pair_curvature(y, slopes, q, block, eta, omega, weighted, a, b, out)
            expected = full * (q * curvature[:, a, b] + inside * slopes[:, a] * slopes[:, b])
            np.testing.assert_allclose(out, expected, **CLOSE)


@by_weighting
@pytest.mark.parametrize("eta", [0.0, 3.0])
def test_softmax_curvature_applied_to_a_change_of_margins(weighted, eta):
    n, k = 9, 3
    omega, full = sample_weights(n, weighted)
    z, change, y = matrix(n, k, seed=8), matrix(n, k, seed=9), np.arange(n) % k
    q = np.maximum(random_vectors(n, 1)[0], 0.0)
    loss = Multinomial()
    slopes, curvature = loss.derivative(y, z), loss.curvature(y, z)
    block = blocks(np.arange(n) % 3 - 1)
    dl = np.sum(slopes * change, axis=1)
    means = np.array([np.average(dl[block == b], weights=full[block == b]) for b in (0, 1)])
    dq = np.where(block >= 0, eta * (dl - means[block]), 0.0)
    expected = q[:, None] * np.einsum("iab,ib->ia", curvature, change) + dq[:, None] * slopes
    _core.apply_softmax_curvature(y, slopes, q, block, means, eta, omega, weighted, change)
    np.testing.assert_allclose(change, full[:, None] * expected, **CLOSE)


@by_weighting
def test_sums_of_softmax_slopes_and_probabilities(weighted):
    n, k = 9, 3
    omega, full = sample_weights(n, weighted)
    z, y = matrix(n, k, seed=8), np.arange(n) % k
    q = np.maximum(random_vectors(n, 1)[0], 0.0)
    slopes, own = Multinomial().derivative(y, z), np.eye(k)[y]
    out = np.full((n, k), np.nan)
    for share in (0.0, 1.0):
        _core.weigh_softmax(y, slopes, share, q, omega, weighted, out)
        np.testing.assert_allclose(out, (full * q)[:, None] * (slopes + share * own), **CLOSE)
    totals, sums, others = np.ones(k), np.ones((k, k)), out * (1 - own)
    _core.add_other_classes(y, out, totals, sums)
    np.testing.assert_allclose(totals - 1.0, others.sum(axis=0), **CLOSE)
    np.testing.assert_allclose(sums - 1.0, own.T @ others, **CLOSE)


def test_confident_samples_keep_their_curvature():
    z, y = np.array([[40.0, 0.0]]), np.array([0])
    losses, slopes, out = np.empty(1), np.empty((1, 2)), np.empty(1)
    _core.softmax_losses(y, z, losses, slopes)
    p = np.exp(-40.0) / (1 + np.exp(-40.0))
    for a, b, sign in [(0, 0, 1), (0, 1, -1), (1, 1, 1)]:
        _core.softmax_pair_curvature(
            y, slopes, np.ones(1), NO_BLOCKS, 0.0, np.ones(1), False, a, b, out
        )
        np.testing.assert_allclose(out, sign * p, rtol=1e-14)


# Orders that are kept and repaired.


def is_order_of(values, key, order):
    np.testing.assert_array_equal(order, np.lexsort((np.arange(len(values)), values)))
    np.testing.assert_array_equal(key, values[order])


@by_weighting
def test_sums_over_bins(weighted):
    rng = np.random.default_rng(0)
    n, m = 1300, 40  # more keys than are taken together
    keys = np.concatenate([rng.exponential(size=n - 100), 50.0 + rng.exponential(size=100)])
    rng.shuffle(keys)
    edges = np.sort(rng.choice(keys, m, replace=False))  # a key at an edge is above it
    omega = rng.uniform(0.5, 2.0, n) if weighted else np.array([1.0 / n])
    weights = np.broadcast_to(omega, n)
    least, scale, shift = keys.min(), 1.0 / np.median(keys), 46
    cells = np.empty(n, np.int64)
    _core.find_cells(keys, least, scale, shift, cells)
    order = np.argsort(keys)
    assert np.all(np.diff(cells[order]) >= 0)
    assert cells.min() == 0
    # The first bin of each cell is that of its least key, or any before it.
    known = np.empty(m, np.int64)
    _core.find_cells(edges, least, scale, shift, known)
    guide = np.searchsorted(known, np.arange(cells.max() + 1)).astype(np.int32)
    places, sums = np.empty(n, np.int32), np.zeros((m + 1, 3))
    _core.fill_bins(keys, least, edges, guide, least, scale, shift, omega, weighted, places, sums)
    np.testing.assert_array_equal(places, np.searchsorted(edges, keys, side="right"))
    low = np.concatenate([[least], edges])
    np.testing.assert_array_equal(sums[:, 0], np.bincount(places, minlength=m + 1))
    np.testing.assert_allclose(sums[:, 1], np.bincount(places, weights, m + 1), rtol=1e-13)
    moments = np.bincount(places, weights * (keys - low[places]), m + 1)
    np.testing.assert_allclose(sums[:, 2], moments, rtol=1e-12, atol=1e-14)

    density, held, moment = rng.uniform(size=n), np.zeros(m + 1), np.zeros(m + 1)
    _core.held_by_bins(keys, places, density, omega, weighted, low, held, moment)
    np.testing.assert_allclose(held, np.bincount(places, density * weights, m + 1), rtol=1e-13)
    expected = np.bincount(places, density * weights * (keys - low[places]), m + 1)
    np.testing.assert_allclose(moment, expected, rtol=1e-12, atol=1e-14)

    levels, blocks = rng.uniform(size=m + 1), rng.integers(-1, 5, m + 1).astype(np.int32)
    block = np.empty(n, np.int32)
    _core.spread_bins(places, levels, blocks, density, block)
    np.testing.assert_array_equal(density, levels[places])
    np.testing.assert_array_equal(block, blocks[places])
