"""Mixtures with the maximum under sample weights, which Newton's method takes apart."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel import ESRM, CVaR, Extremile, Max, Mean, Mixture
from sorel.engines import BlocksEngine
from sorel.permutahedron.apart import Apart, ApartProjector
from sorel.solvers.augmented import State

HALF = Mixture([Max(), ESRM(2.0)], [0.5, 0.5])
RISKS = [
    HALF,
    Mixture([CVaR(0.3), Max()], [0.7, 0.3]),
    Mixture([Mixture([Max(), Mean()], [0.2, 0.8]), Extremile(2.5), Max()], [0.5, 0.3, 0.2]),
]


def data(loss, n, d, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) / np.sqrt(d)
    y = {
        "squared": z + rng.standard_normal(n),
        "gamma": np.exp(z) * rng.gamma(2.0, size=n),
        "multinomial": np.digitize(z + rng.standard_normal(n), [-0.5, 0.5]),
    }[loss]
    return X, y, 10.0 ** rng.uniform(-3, 3, n)


def make(loss="squared", n=30, d=4, seed=0, risk=HALF, kind="dense", **options):
    X, y, weight = data(loss, n, d, seed)
    if kind == "sparse":
        X = scipy.sparse.csr_array(X)
    options = {"penalty": sorel.L2(0.01), "sample_weight": weight, **options}
    return sorel.Problem(X, y, risk=risk, loss=loss, **options)


@pytest.mark.parametrize(
    ("loss", "n", "d", "seed", "penalty"),
    [
        ("multinomial", 120, 12, 0, sorel.L2(0.01)),
        ("multinomial", 200, 30, 1, sorel.L2(0.01)),
        ("multinomial", 120, 12, 0, sorel.NonNegative(0.01)),
        ("multinomial", 120, 12, 0, sorel.ElasticNet(0.01, 0.001)),
        ("gamma", 200, 30, 2, sorel.L2(0.01)),
    ],
)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_samples_that_weigh_next_to_nothing_are_served_in_the_default_passes(
    loss, n, d, seed, penalty, kind
):
    problem = make(loss, n, d, seed, penalty=penalty, kind=kind)
    result = sorel.solve(problem)
    assert result.converged
    certificate = problem.certificate(result.w, result.weights)
    assert certificate.gap <= 2e-6 * problem.objective(result.w)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("loss", ["squared", "gamma", "multinomial"])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_problem_apart_is_the_same_problem(risk, loss, intercept):
    problem = make(loss, risk=risk, fit_intercept=intercept)
    apart, rng = problem.apart(), np.random.default_rng(1)
    for _ in range(3):
        w = rng.standard_normal(problem.engine.shape)
        point, other = problem.engine.point(w), apart.engine.point(w)
        value = problem.engine.risk(point)
        assert apart.engine.risk(other) == pytest.approx(value, rel=1e-13)
        dual = apart.engine.ascend(apart.engine.uniform(), other, 3.0 / value)
        folded = problem.engine.fold(apart.engine, dual)
        assert problem.engine.weights(folded) == pytest.approx(
            np.sum(apart.engine.weights(dual).reshape(2, -1), axis=0), abs=1e-14
        )
        # Weightings of either are as good as those of the other.
        assert apart.engine.expected(other, dual) == pytest.approx(
            problem.engine.expected(point, folded), rel=1e-12
        )
        assert apart.engine.shortfall(other, dual) == pytest.approx(
            problem.engine.shortfall(point, folded), rel=1e-9, abs=1e-12 * value
        )
        assert apart.engine.gradient(other, dual) == pytest.approx(
            problem.engine.gradient(point, folded), rel=1e-9, abs=1e-12
        )
        worst = problem.engine.fold(apart.engine, apart.engine.worst_case(other))
        assert problem.engine.expected(point, worst) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse", "many columns"])
@pytest.mark.parametrize("loss", ["squared", "gamma", "multinomial"])
def test_hessians_are_derivatives_of_gradients(kind, loss):
    d = 30 if kind == "many columns" else 4
    problem = make(loss, d=d, kind=kind, fit_intercept=True).apart()
    engine, rng = problem.engine, np.random.default_rng(2)
    w = 0.1 * rng.standard_normal(engine.shape)
    eta = 3.0 / engine.risk(engine.point(w))
    center, step = engine.uniform(), 1e-8
    state = State(problem, engine.point(w), center, eta)
    hessian = engine.hessian(state.point, state.dual, eta)
    curvature = engine.curvature(state.point, state.dual, eta)
    assert state.dual.n_blocks >= 2
    for _ in range(3):
        delta = rng.standard_normal(engine.shape)
        ends = [
            State(problem, engine.point(w + sign * step * delta), center, eta).gradient
            for sign in (-1.0, 1.0)
        ]
        slope = (ends[1] - ends[0]) / (2.0 * step)
        size = np.abs(slope).max()
        product = (hessian @ delta.ravel()).reshape(delta.shape)
        assert product == pytest.approx(slope, abs=1e-4 * size)
        assert curvature.product(delta) == pytest.approx(slope, abs=1e-4 * size)
    columns = np.array([0, 2])
    rows = np.r_[columns, d]
    part = engine.columns(columns).hessian(state.point, state.dual, eta)
    shape = (*engine.shape, *engine.shape)
    chosen = hessian.reshape(shape).take(rows, axis=0).take(rows, axis=len(engine.shape))
    assert part == pytest.approx(chosen.reshape(part.shape), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_each_half_is_projected_onto_its_own_set(risk):
    """No point of the product of both sets is nearer in the metric of the halves."""
    rng, n = np.random.default_rng(3), 6
    omega = 10.0 ** rng.uniform(-2, 2, n)
    omega[1] = 0.0
    omega /= omega.sum()
    parts = Apart.of(risk)
    stacked = parts.stacked_weight(omega)
    assert stacked.sum() == pytest.approx(1.0, abs=1e-15)
    projector = ApartProjector(parts, 2 * n, stacked)
    zeta, out, block = 3.0 * rng.standard_normal(2 * n), np.empty(2 * n), np.empty(2 * n, np.int32)
    count = projector.project(zeta, out, block)
    assert set(block[block >= 0]) == set(range(count))
    assert not set(block[:n][block[:n] >= 0]) & set(block[n:][block[n:] >= 0])
    assert stacked[:n] @ out[:n] == pytest.approx(parts.share, abs=1e-14)
    vertex = np.empty(2 * n)
    for _ in range(200):
        projector.worst_case(rng.standard_normal(2 * n), vertex)
        assert np.sum(stacked * (zeta - out) * (vertex - out)) <= 1e-12
    again = np.empty(2 * n)
    assert projector.fork().project(zeta, again) == count
    assert again == pytest.approx(out, abs=0.0)


def test_models_of_nearly_equal_columns_in_a_box():
    """They ask for the rows themselves, which are there twice."""
    problem = make("multinomial", risk=RISKS[0], penalty=sorel.Box(0.0, -1.0, 1.0))
    rows = problem.apart().engine.stored()[0].toarray()
    once = problem.engine.stored()[0]
    np.testing.assert_array_equal(rows, np.concatenate([once, once]))
    faint = sorel.Problem(
        once[:, :1] + 1e-9 * once, problem.engine.y, risk=problem.risk, loss="multinomial",
        penalty=problem.penalty, sample_weight=problem.engine.spec.sample_weight,
    )  # fmt: skip
    assert np.isfinite(sorel.solve(faint, max_passes=30).objective)


def test_other_problems_are_left_whole():
    assert make(risk=HALF, sample_weight=None).apart() is None
    for risk in (Max(), ESRM(2.0), Mixture([Mean(), CVaR(0.3)], [0.5, 0.5])):
        assert make(risk=risk).apart() is None
    assert Apart.of(Mixture([Max(), Mean()], [1.0, 0.0])) is None
    assert Apart.of(Mixture([Max(), Mean()], [0.0, 1.0])) is None


def test_rows_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("sorel.rows.source.SPAN_BYTES", 1)
    monkeypatch.setattr("sorel.rows.source.MIN_SPAN_ROWS", 7)
    monkeypatch.setattr("sorel.problem.WORTH_STREAMING", 0)
    X, y, weight = data("gamma", 60, 5, 4)
    np.save(tmp_path / "X.npy", X)
    options = {"risk": HALF, "loss": "gamma", "sample_weight": weight}
    disk = sorel.Problem(np.load(tmp_path / "X.npy", mmap_mode="r"), y, **options)
    assert isinstance(disk.engine, BlocksEngine)
    results = [sorel.solve(p, tol=1e-8) for p in (disk, sorel.Problem(X, y, **options))]
    assert all(result.converged for result in results)
    assert results[0].objective == pytest.approx(results[1].objective, rel=2e-8)


def test_more_columns_than_rows_and_rows_without_weight():
    X, y, weight = data("squared", 20, 80, 5)
    weight[:4] = 0.0
    problem = sorel.Problem(X, y, risk=HALF, sample_weight=weight, penalty=sorel.L2(0.1))
    result = sorel.solve(problem, "newton", tol=1e-9)
    assert result.converged
    assert not result.weights[:4].any()
    kept = sorel.Problem(X[4:], y[4:], risk=HALF, sample_weight=weight[4:], penalty=sorel.L2(0.1))
    assert result.objective == pytest.approx(sorel.solve(kept, tol=1e-9).objective, rel=2e-9)


def test_a_warm_start_is_used_and_passes_are_kept():
    problem = make("multinomial", 120, 12)
    cold = sorel.solve(problem, "newton", tol=1e-6)
    warm = sorel.solve(problem, "newton", tol=1e-6, warm_start=cold)
    assert warm.converged
    assert warm.passes < 0.75 * cold.passes
    with pytest.warns(sorel.ConvergenceWarning, match="max_passes"):
        few = sorel.solve(problem, "newton", max_passes=20)
    assert not few.converged
    assert 20 <= few.passes <= 24
    again = problem.certificate(few.w, few.weights).relative_gap
    assert few.relative_gap == pytest.approx(again, rel=1e-10)
