"""Compiled loops against NumPy one-liners."""

import numpy as np
import pytest
from helpers import SERVED, make_loss

import sorel._core as _core
from sorel.losses import compiled_form, parse_loss

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


def random_vectors(n, count, seed=1):
    return list(np.random.default_rng(seed).normal(size=(count, n)))


def targets(loss, n, seed=3):
    y = np.random.default_rng(seed).normal(size=n)
    return np.where(y > 0, 1.0, -1.0) if loss.is_classifier else y


def extended(X):
    """[X 1] in double precision."""
    return np.column_stack([X.astype(np.float64), np.ones(len(X))])


@by_size
@by_dtype
@by_intercept
def test_products_and_adjoints(n, d, dtype, intercept):
    """By rows, by columns in two ranges, and both at once; adjoints are added to what is there."""
    X, (v,), (c,) = matrix(n, d, dtype), random_vectors(d, 1), random_vectors(n, 1)
    v[d // 2] = 0.0
    shift, columns = 0.7 if intercept else 0.0, np.ascontiguousarray(X.T)
    expected, out = X.astype(np.float64) @ v + shift, np.full((2, n), np.nan)
    _core.product_rows(X, v, shift, out[0])
    for start, stop in ((0, n // 2), (n // 2, n)):
        _core.product_columns(columns, v, shift, start, stop, out[1])
    np.testing.assert_allclose(out, [expected, expected], **CLOSE)
    sums = np.full(d + intercept, 0.5)
    _core.gram_product_rows(X, c, v, shift, sums)
    full = extended(X)[:, : d + intercept]
    np.testing.assert_allclose(sums - 0.5, full.T @ (c * expected), **CLOSE)
    for zeros in (0, 2 * n // 3):
        c[:zeros] = 0.0
        sums = np.full((2, d + intercept), 0.5)
        _core.adjoint_rows(X, c, sums[0])
        for start, stop in ((0, n // 2), (n // 2, n)):
            _core.adjoint_columns(columns, c, start, stop, sums[1])
        np.testing.assert_allclose(sums - 0.5, [full.T @ c] * 2, **CLOSE)


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
@by_dtype
def test_block_sums(intercept, dtype):
    X, (c,) = matrix(12, 3, dtype), random_vectors(12, 1)
    c[3] = 0.0
    block = np.array([0, 1, -1, 2, 3, 3, 1, -1, 0, 2, 2, 1], np.int32)
    member = block[:, None] == np.arange(4)
    expected = (member * c[:, None]).T @ extended(X)[:, : 3 + intercept]
    for start, stop in [(0, 4), (1, 3), (3, 4)]:
        out = np.zeros((stop - start, 3 + intercept))
        _core.block_sums(X, c, block, start, out)
        np.testing.assert_allclose(out, expected[start:stop], **CLOSE)


def test_sampled_rows_keep_the_sum_and_their_share():
    full = np.random.default_rng(0).exponential(size=400) ** 2
    full[::7] = 0.0
    unit = full.sum() / 50
    h, factor = np.full((2, 400), np.nan)
    _core.sample_rows(full, NO_BLOCKS, False, unit, h, factor)
    np.testing.assert_allclose(h, factor * full, rtol=1e-15)
    np.testing.assert_array_equal(h[full > unit], full[full > unit])
    assert np.all((factor == 0.0) | (factor >= 1.0))
    # A light row that is taken stands for exactly one unit, and the sum is off by one at most.
    np.testing.assert_allclose(h[(factor > 1.0) & (full > 0)], unit, rtol=1e-14)
    assert abs(h.sum() - full.sum()) <= unit
    assert 20 <= np.count_nonzero(h) <= 51
    # Rows in blocks are kept on request.
    block = np.where(np.arange(400) < 10, 0, -1).astype(np.int32)
    _core.sample_rows(full, block, True, unit, h, factor)
    np.testing.assert_array_equal(h[:10], full[:10])
    assert np.count_nonzero(h[10:]) <= 51


@by_loss
def test_curvature_bound_holds(loss):
    z = np.linspace(-20, 20, 401)
    curvature = np.concatenate([loss.curvature(y, z) for y in (-1.0, 1.0)])
    assert curvature.max() == pytest.approx(loss.curvature_bound, rel=1e-12)


def test_logistic_loops_keep_all_digits():
    z = np.r_[
        np.linspace(-40.0, 40.0, 4001), 10.0 ** np.arange(-300, 3), -(10.0 ** np.arange(-9, 3)),
        700.0, 745.0, 800.0, 1e300, np.inf, -700.0, -745.0, -800.0, -1e300, -np.inf, np.nan,
    ]  # fmt: skip
    y, losses, slopes = np.ones(len(z)), np.empty(len(z)), np.empty(len(z))
    _core.losses_at(2, 1.0, y, z, losses)
    _core.slopes_at(2, 1.0, y, z, slopes)
    wide = z.astype(np.longdouble)
    e = np.exp(-np.abs(wide))
    expected = np.maximum(-wide, 0.0) + np.log1p(e)
    np.testing.assert_allclose(losses, expected.astype(np.float64), rtol=8e-16, atol=1e-305)
    expected = -np.where(wide >= 0.0, e, 1.0) / (1.0 + e)
    np.testing.assert_allclose(slopes, expected.astype(np.float64), rtol=8e-16, atol=1e-305)


@by_loss
def test_majorant_lies_above_the_loss_and_touches_it(loss):
    y, far = targets(loss, 9)[:, None], np.linspace(-30.0, 30.0, 4001)[None, :]
    z = np.array([-9.0, -2.0, -0.5, -1e-6, 0.0, 0.3, 1.0, 4.0, 12.0])[:, None]
    curvature, one = np.empty(9), np.ones(9)
    _core.augmented_curvature(
        *compiled_form(loss), y.ravel(), z.ravel(), one, NO_BLOCKS, 0.0, 1.0, one[:1], False,
        curvature, np.empty(0),
    )  # fmt: skip
    curvature = curvature[:, None]
    value = loss.value(y.ravel(), z.ravel())[:, None]
    slope = loss.derivative(y.ravel(), z.ravel())[:, None]
    parabola = value + slope * (far - z) + 0.5 * curvature * (far - z) ** 2
    losses = np.array([loss.value(target, far[0]) for target in y.ravel()])
    assert np.all(parabola >= losses - 1e-9 * (1.0 + losses))
    assert np.all(curvature.ravel() >= loss.curvature(y.ravel(), z.ravel()) - 1e-12)
    assert np.all(curvature > 0)


def test_confident_samples_keep_their_curvature():
    z, y = np.array([[40.0, 0.0]]), np.array([0])
    losses, slopes, out = np.empty(1), np.empty((1, 2)), np.empty(1)
    _core.softmax_losses(y, z, losses, slopes)
    p = np.exp(-40.0) / (1 + np.exp(-40.0))
    for a, b, sign in [(0, 0, 1), (0, 1, -1), (1, 1, 1)]:
        given = (y, slopes, np.ones(1), NO_BLOCKS, 0.0, np.ones(1), False)
        _core.softmax_pair_curvature(*given, a, b, out)
        np.testing.assert_allclose(out, sign * p, rtol=1e-14)


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
