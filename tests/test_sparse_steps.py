"""Steps on sparse rows: runs against exact powers, and how much work the shortcuts save."""

from __future__ import annotations

import decimal
import math
from unittest import mock

import numpy as np
import pytest

from sorel.kernels import sparse_steps
from sorel.kernels.prox import PURE_L2, SEPARABLE
from sorel.kernels.sparse_steps import _RUN, _SMALL_SCALE, affine_run, affine_runs, shrunk


def plain(function):
    """The function as Python runs it, so that calls inside it can be counted."""
    return getattr(function, "py_func", function)


@pytest.mark.parametrize("ratio", [1.0, 1.0 - 1e-7, 0.9999, 0.75, 0.0])
def test_the_table_of_runs_holds_powers_and_their_sums(ratio):
    runs = affine_runs(ratio)
    with decimal.localcontext(prec=60):
        exact = decimal.Decimal(ratio)
        for row in (0, 1, 2, 3, 100, _RUN - 1, *range(_RUN, _RUN + 12)):
            k = row if row < _RUN else _RUN << (row - _RUN)
            if ratio == 1.0:
                expected = [1, k, k, k * (k + 1) // 2]
            else:
                power = exact**k if k else decimal.Decimal(1)
                gathered = (1 - power) / (1 - exact)
                expected = [power, gathered, exact * gathered, (k - exact * gathered) / (1 - exact)]
            np.testing.assert_allclose(
                runs[row], [float(e) for e in expected], rtol=1e-8, atol=1e-300
            )


@pytest.mark.parametrize(
    "length", [_RUN - 1, _RUN, _RUN + 1, 3 * _RUN + 5, 6 * _RUN, 11 * _RUN - 1]
)
def test_long_runs_are_put_together_from_the_table(length):
    ratio, u, m = 1.0 - 1e-4, 2.0, 3e-4
    values = np.empty(length)
    for k in range(length):
        u = ratio * u + m
        values[k] = u
    end, total = affine_run(length, 2.0, m, affine_runs(ratio))
    assert end == pytest.approx(values[-1], rel=1e-11)
    assert total == pytest.approx(values.sum(), rel=1e-11)


def test_one_coefficient_is_thresholded_scaled_and_clipped():
    for v in (-3.0, -0.5, -0.2, 0.0, 0.2, 0.5, 3.0):
        for lower, upper in ((-math.inf, math.inf), (-0.1, 0.2), (0.3, 0.4), (-0.4, -0.3)):
            soft = math.copysign(max(abs(v) - 0.2, 0.0), v)
            assert shrunk(v, 0.2, 0.5, lower, upper) == min(max(0.5 * soft, lower), upper)


def test_a_run_over_several_pieces_takes_few_of_them_apart():
    """From far above down to the lower bound, across the flat piece at 0: a bisection for each."""
    length, runs = 3000, affine_runs(0.999)
    with (
        mock.patch.object(sparse_steps, "affine_run", wraps=affine_run) as run,
        mock.patch.object(sparse_steps, "shrunk", wraps=shrunk) as single,
    ):
        end, _ = plain(sparse_steps.separable_run)(
            length, 2.0, -0.01, 0.999, 0.002, 1.0, -1.0, 5.0, runs
        )
    assert end == -1.0
    # Each piece, and the step from one to the next.
    pieces = 3
    assert single.call_count <= 2 * pieces
    assert run.call_count <= pieces * (2 + math.log2(length))


MOVES = {"shrink": 0.99, "threshold": 0.01, "scale": 0.98}
# A line of the state (steps seen, value, drift), and whether the short way must do; at time 5000
# with bounds -1 and 1.
NOW = 5000.0
LINES = {
    "a few steps in a linear piece": (4990.0, 0.5, 0.001, True),
    "the same below 0": (4990.0, -0.5, 0.001, True),
    "the longest run of the table": (NOW - _RUN + 1, 0.5, 0.02, True),
    "one step longer": (NOW - _RUN, 0.5, 0.02, False),
    "no step": (NOW, 0.5, 0.02, True),
    "at rest at 0": (100.0, 0.0, 0.005, True),
    "at rest at the upper bound": (100.0, 1.0, 0.5, True),
    "at rest at the lower bound": (4990.0, -1.0, -0.5, True),
    "across 0": (4990.0, 0.05, -0.03, False),
    "from 0 upwards": (4990.0, 0.0, 0.05, False),
    "to 0": (4990.0, 0.02, 0.0, False),
    "beyond the upper bound": (4990.0, 0.9, 0.3, False),
    "beyond the lower bound": (4990.0, -0.9, -0.3, False),
    "from beyond the upper bound": (4990.0, 1.02, 0.0, False),
    "from beyond the lower bound": (4990.0, -1.02, 0.0, False),
}


@pytest.mark.parametrize("kind", [PURE_L2, SEPARABLE])
def test_only_uncommon_runs_are_left_to_the_general_one(kind):
    p = len(LINES)
    l1, l2, step = 0.1, (1.0 / 0.98 - 1.0) / 0.1, 0.1
    proximal = True if kind == SEPARABLE else None
    moves = sparse_steps.coordinate_moves(
        1.0, 1.0, MOVES["shrink"], step, 1.0, step, proximal, step, kind, l2, l1
    )
    if kind == SEPARABLE:
        assert moves[7:9] == pytest.approx((MOVES["threshold"], MOVES["scale"]))
    runs = affine_runs(MOVES["shrink"] * moves[8])
    state = np.zeros((p, 4))
    state[:, :3] = [line[:3] for line in LINES.values()]
    lower, upper = np.full(p, -1.0), np.full(p, 1.0)
    x = np.random.default_rng(0).standard_normal(p)
    X = (np.array([0, p]), np.arange(p), x)
    expected = state.copy()
    for j in range(p):
        sparse_steps.catch_up(expected, j, NOW, 1, moves, lower, upper, runs)
    z = np.empty(1)
    with mock.patch.object(sparse_steps, "catch_up", wraps=sparse_steps.catch_up) as general:
        plain(sparse_steps.sparse_margins)(X, 0, state, p, NOW, moves, lower, upper, runs, z)
    np.testing.assert_allclose(state, expected, rtol=1e-11, atol=1e-13)
    assert z[0] == pytest.approx(float(x @ expected[:, 1]), rel=1e-11)
    names = list(LINES)
    taken = [names[call.args[1]] for call in general.call_args_list]
    uncommon = [
        name
        for name, (seen, _, _, short) in LINES.items()
        if (not short if kind == SEPARABLE else NOW - seen >= _RUN)
    ]
    assert taken == uncommon


def svrg_arguments(shrink, proximal, steps=0, d=50, n=10, nonzeros=30, batch=2):
    rng = np.random.default_rng(0)
    columns = rng.integers(0, d, nonzeros)
    X = (np.arange(n + 1) * nonzeros // n, columns, rng.standard_normal(nonzeros))
    bounds = np.full(d, -np.inf), np.full(d, np.inf)
    common = {
        "X": X, "y": rng.standard_normal(n), "code": 0, "delta": 1.0, "slopes": np.zeros((n, 1)),
        "scale": np.ones(steps * batch), "indices": rng.integers(0, n, steps * batch),
        "batch": batch, "W": np.ones((1, d)), "total": np.zeros((1, d)), "summed": True,
        "drift": 0.01 * np.ones((1, d)), "shrink": shrink, "step": 0.01, "free_shrink": 1.0,
        "free_step": 0.01,
    }  # fmt: skip
    if proximal == "scaled":
        return {**common, "d": d}
    return {
        **common, "proximal": proximal, "prox_step": 0.01, "penalty": PURE_L2, "l2": 0.1, "l1": 0.0,
        "lower": bounds[0], "upper": bounds[1],
    }  # fmt: skip


def test_the_scaled_form_is_taken_where_sweeps_are_cheaper_than_rows():
    """A sweep over 50 coefficients is due each log(1e4) / -log(shrink) steps of 6 entries."""
    edge = math.exp(math.log(_SMALL_SCALE) * 6.0 / 50.0)
    cases = [
        (1.0, None, True), (1.01 * edge, None, True), (0.99 * edge, None, False),
        (1.01 * edge, True, False), (0.0, None, False), (-0.9, None, False),
        (1.0 + 1e-12, None, False),
    ]  # fmt: skip
    for shrink, proximal, scaled in cases:
        with mock.patch.object(sparse_steps, "svrg_steps_scaled") as steps:
            plain(sparse_steps.svrg_steps_csr)(**svrg_arguments(shrink, proximal))
        assert steps.called is scaled, (shrink, proximal)


@pytest.mark.parametrize(("steps", "sweeps"), [(13, 1), (14, 2), (27, 2), (28, 3)])
def test_a_sweep_is_due_when_the_scale_is_small(steps, sweeps):
    """Halved at each step, the scale falls below 1e-4 at the fourteenth; the last sweep ends."""
    arguments = svrg_arguments(0.5, "scaled", steps, d=100)
    with mock.patch.object(sparse_steps, "fold_scaled", wraps=sparse_steps.fold_scaled) as fold:
        plain(sparse_steps.svrg_steps_scaled)(**arguments)
    assert fold.call_count == sweeps
    lazy = svrg_arguments(0.5, None, steps, d=100)
    with mock.patch.object(sparse_steps, "svrg_steps_scaled") as scaled:
        plain(sparse_steps.svrg_steps_csr)(**lazy)
    assert not scaled.called
    np.testing.assert_allclose(arguments["W"], lazy["W"], rtol=1e-10)
    np.testing.assert_allclose(arguments["total"], lazy["total"], rtol=1e-10)
