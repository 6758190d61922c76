"""The stochastic solvers, the baselines, and the engine operations behind them."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import sorel
from sorel.engines.base import Engine, Plan, UnsupportedOperationError
from sorel.solvers import (
    LBFGS,
    LSVRG,
    SGD,
    SOREL,
    Prospect,
    SaddleSAGA,
    Subgradient,
    UnsupportedProblemError,
)

RNG = np.random.default_rng(7)
N, D = 40, 3
X = RNG.standard_normal((N, D))
Y = X @ [1.0, -2.0, 0.5] + RNG.standard_t(3, N)
LABELS = np.where(0.3 * RNG.standard_normal(N) < Y, 1, 0)
THREE = np.digitize(Y + 0.5 * RNG.standard_normal(N), [-1.0, 1.0])
WEIGHTS = RNG.integers(1, 4, N).astype(float)
PENALTIES = [
    sorel.L2(0.1),
    sorel.ElasticNet(0.1, 0.2),
    sorel.NonNegative(0.1),
    sorel.Box(0.1, -0.3, [0.2, 0.5, 0.4]),
    sorel.Simplex(0.1),
]


def make(loss="squared", risk=None, penalty=None, data=None, **options):
    targets = {"logistic": LABELS, "squared_hinge": LABELS, "multinomial": THREE}.get(loss, Y)
    matrix = X if data is None else data
    return sorel.Problem(
        matrix,
        targets,
        risk=sorel.ESRM(2.0) if risk is None else risk,
        loss=loss,
        penalty=sorel.L2(0.1) if penalty is None else penalty,
        **options,
    )


def quietly(problem, solver, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        return sorel.solve(problem, solver, **options)


def snapshot(problem, seed=0):
    engine = problem.engine
    w = problem.start()
    w[: problem.n_features] = problem.penalty.project(
        0.3 * np.random.default_rng(seed).standard_normal(w[: problem.n_features].shape)
    )
    point = engine.point(w)
    dual = engine.worst_case(point)
    return point, dual, engine.gradient(point, dual)


def plan(problem, step, steps=60, **more):
    return Plan(step, steps, problem.penalty.kernel(problem.n_features), **more)


def optimum(problem):
    return sorel.solve(problem, "newton", tol=1e-10)


# Engine operations.


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge", "multinomial"])
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("batch", [1, 4])
def test_first_step_is_the_full_gradient_step(loss, sampling, batch):
    # At the snapshot the correction vanishes, whatever is drawn: the direction is the gradient.
    problem = make(loss, fit_intercept=True)
    point, dual, gradient = snapshot(problem)
    center = point.w + 1.0
    options = {"batch": batch, "sampling": sampling, "center": center, "tau": 0.7}
    coef = slice(0, problem.n_features)
    for proximal in (True, False):
        setting = plan(problem, 0.05, 1, proximal=proximal, **options)
        moved = problem.engine.epoch(point, dual, gradient, setting, np.random.default_rng(0))
        if proximal:
            pulled = (point.w - 0.05 * gradient + 0.05 / 0.7 * center) / (1 + 0.05 / 0.7)
            expected = pulled.copy()
            expected[coef] = problem.penalty.prox_centered(
                (point.w - 0.05 * gradient)[coef], 0.05, center[coef], 0.7
            )
        else:
            direction = gradient + (point.w - center) / 0.7
            direction[coef] += problem.penalty.l2 * point.w[coef]
            expected = point.w - 0.05 * direction
        np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
@pytest.mark.parametrize("loss", ["huber", "multinomial"])
def test_epoch_equals_the_formula_step_by_step(penalty, loss):
    problem = make(loss, penalty=penalty, fit_intercept=True, sample_weight=WEIGHTS)
    engine = problem.engine
    point, dual, gradient = snapshot(problem)
    center = point.w.copy()
    total = np.zeros(engine.shape)
    setting = plan(problem, 0.02, 12, batch=3, center=center, tau=2.0)
    moved = engine.epoch(
        point, dual, gradient, setting, np.random.default_rng(3), start=point.w + 0.0, total=total
    )
    indices = np.random.default_rng(3).integers(N, size=36).reshape(12, 3)
    w, sums = point.w.copy(), np.zeros(engine.shape)
    scale = N * engine.weights(dual)
    rows = np.column_stack([X, np.ones(N)])
    for chosen in indices:
        slopes = engine.point(w).slopes
        change = (scale[chosen] * (slopes - point.slopes)[chosen].T).T / 3
        v = w - 0.02 * (rows[chosen].T @ change + gradient)
        w = (v + 0.01 * center) / 1.01
        w[:D] = penalty.prox_centered(v[:D], 0.02, center[:D], 2.0)
        sums += w
    np.testing.assert_allclose(moved, w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(total, sums, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_direction_is_unbiased(sampling, weights):
    # One step from a start away from the snapshot: its mean over many draws is the full gradient
    # step at the start.
    problem = make(sample_weight=weights)
    engine = problem.engine
    point, dual, gradient = snapshot(problem)
    start = point.w + 0.5
    draws = 2000
    rng = np.random.default_rng(0)
    setting = plan(problem, 1e-3, 1, proximal=False, sampling=sampling)
    steps = np.array(
        [engine.epoch(point, dual, gradient, setting, rng, start=start) for _ in range(draws)]
    )
    exact = start - 1e-3 * (engine.gradient(engine.point(start), dual) + problem.penalty.l2 * start)
    error = np.abs(steps.mean(0) - exact)
    assert np.all(error <= 5 * steps.std(0) / math.sqrt(draws) + 1e-15)


def test_importance_sampling_is_more_accurate():
    data = X * np.where(np.arange(N) % 10 == 0, 8.0, 1.0)[:, None]
    problem = make(data=data)
    point, dual, gradient = snapshot(problem)
    spread = {}
    for sampling in ("uniform", "importance"):
        setting = plan(problem, 1e-3, 1, sampling=sampling)
        rng = np.random.default_rng(0)
        steps = [
            problem.engine.epoch(point, dual, gradient, setting, rng, start=point.w + 1.0)
            for _ in range(300)
        ]
        spread[sampling] = np.std(steps, axis=0).sum()
    assert spread["importance"] < 0.8 * spread["uniform"]


@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
def test_epoch_decreases_the_lagrangian(loss, penalty):
    problem = make(loss, penalty=penalty)
    engine = problem.engine
    point, dual, gradient = snapshot(problem)
    step = 1 / (3 * engine.smoothness(dual).component)
    moved = engine.point(
        engine.epoch(point, dual, gradient, plan(problem, step, N), np.random.default_rng(0))
    )
    before, after = (engine.expected(p, dual) + problem.penalty_value(p.w) for p in (point, moved))
    assert after < before


def run_all(problem, seed=0):
    """What each stochastic operation makes of the same start."""
    engine = problem.engine
    point, dual, gradient = snapshot(problem)
    rng = np.random.default_rng(seed)
    setting = plan(problem, 0.01, 30, batch=2)
    table, saddle = engine.table(point, dual), engine.table(point, dual)
    return [
        engine.epoch(point, dual, gradient, setting, rng),
        engine.epoch(point, dual, gradient, setting._replace(sampling="importance"), rng),
        engine.minibatch_epoch(point.w, setting._replace(batch=8), rng),
        engine.prospect_epoch(table, point.w, setting, 0.0, rng),
        engine.prospect_epoch(engine.table(point, dual), point.w, setting, 0.3, rng),
        engine.saddle_epoch(saddle, point.w, setting, 0.01, 0.0, rng),
    ]


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_layouts_and_precisions_agree(loss, fit_intercept):
    single = X.astype(np.float32)
    reference = run_all(make(loss, fit_intercept=fit_intercept))
    columns = run_all(make(loss, data=np.asfortranarray(X), fit_intercept=fit_intercept))
    for a, b in zip(reference, columns, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    for data in (single, np.asfortranarray(single)):
        rounded = run_all(make(loss, data=data, fit_intercept=fit_intercept))
        for a, b in zip(reference, rounded, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_multinomial_with_two_classes_is_logistic():
    # With W = (-w/2, w/2) the softmax loss is the logistic one, and the symmetry is kept by steps
    # of the same length on half the margin.
    binary = sorel.Problem(X, LABELS, loss="logistic", risk=sorel.ESRM(2.0), penalty=sorel.L2(0.1))
    double = sorel.Problem(
        X, LABELS, loss="multinomial", risk=sorel.ESRM(2.0), penalty=sorel.L2(0.1)
    )
    one, two = binary.engine, double.engine
    w = np.array([0.3, -0.2, 0.1])
    W = np.column_stack([-w / 2, w / 2])
    a, b = one.point(w), two.point(W)
    np.testing.assert_allclose(a.losses, b.losses, rtol=1e-12)
    p, q = one.worst_case(a), two.worst_case(b)
    operations = {
        "epoch": lambda e, point, dual, s: e.epoch(
            point, dual, e.gradient(point, dual), s, np.random.default_rng(5)
        ),
        "minibatch": lambda e, point, dual, s: e.minibatch_epoch(
            point.w, s._replace(batch=5), np.random.default_rng(5)
        ),
        "prospect": lambda e, point, dual, s: e.prospect_epoch(
            e.table(point, dual), point.w, s, 0.0, np.random.default_rng(5)
        ),
        "saddle": lambda e, point, dual, s: e.saddle_epoch(
            e.table(point, dual), point.w, s, 0.01, 0.0, np.random.default_rng(5)
        ),
    }
    for name, operate in operations.items():
        # A gradient in W moves w = W[:, 1] - W[:, 0] twice as far: halve its penalty and step so
        # that both problems take the same path.
        kernel = binary.penalty.kernel(D)
        single = operate(one, a, p, Plan(0.1, 40, kernel))
        halves = operate(two, b, q, Plan(0.05, 40, kernel._replace(l2=2 * kernel.l2)))
        np.testing.assert_allclose(halves[:, 1] - halves[:, 0], single, rtol=1e-8, err_msg=name)
        np.testing.assert_allclose(halves[:, 1], -halves[:, 0], rtol=1e-8)


def test_smoothness_bounds_the_hessian_for_any_weighting():
    rng = np.random.default_rng(0)
    for loss in ("squared", "huber", "logistic", "squared_hinge", "multinomial"):
        for weights in (None, WEIGHTS):
            problem = make(loss, sample_weight=weights, fit_intercept=True)
            engine = problem.engine
            worst = engine.smoothness()
            for _ in range(5):
                point = engine.point(rng.standard_normal(engine.shape))
                dual = engine.worst_case(point)
                bound = engine.smoothness(dual)
                top = np.linalg.eigvalsh(engine.hessian(point, dual))[-1]
                assert top <= bound.average * (1 + 1e-12)
                assert bound.average <= worst.average * (1 + 1e-12)
                assert bound.component <= worst.component * (1 + 1e-12)
                assert bound.average <= bound.component * (1 + 1e-12)


def test_jacobian_bound_holds():
    rng = np.random.default_rng(0)
    for loss in ("squared", "huber", "logistic", "squared_hinge", "multinomial"):
        problem = make(loss)
        engine = problem.engine
        for scale in (0.1, 1.0, 10.0):
            point = engine.point(scale * rng.standard_normal(engine.shape))
            slopes = point.slopes.reshape(N, -1)
            jacobian = (X[:, :, None] * slopes[:, None, :]).reshape(N, -1)
            norm = np.linalg.norm(jacobian / math.sqrt(N), 2) ** 2
            assert norm <= engine.jacobian_bound(point.losses.mean()) * (1 + 1e-12)


def test_systematic_sample_follows_the_probabilities():
    probability = np.array([0.0, 0.5, 0.3, 0.0, 0.2])
    out = np.empty(100, np.int64)
    for offset in (0.0, 0.37, 0.999999):
        sorel.kernels.vectors.systematic_sample(probability, 100, offset, out)
        counts = np.bincount(out, minlength=5)
        assert np.all(np.abs(counts - 100 * probability) <= 1)
        assert counts[0] == counts[3] == 0


def test_plain_steps_need_a_smooth_penalty():
    problem = make(penalty=sorel.ElasticNet(0.1, 0.1))
    point, dual, gradient = snapshot(problem)
    with pytest.raises(ValueError, match="smooth"):
        problem.engine.epoch(
            point, dual, gradient, plan(problem, 0.1, proximal=False), np.random.default_rng(0)
        )
    with pytest.raises(ValueError, match="sampling"):
        problem.engine.epoch(
            point, dual, gradient, plan(problem, 0.1, sampling="odd"), np.random.default_rng(0)
        )


# Tables.


@pytest.mark.parametrize("nu", [0.0, 0.2])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_prospect_tables_are_what_a_full_sort_gives(nu, loss):
    # Integer data make ties, which the order settles by position as a stable sort does.
    data = np.round(X)
    problem = make(loss, data=data, fit_intercept=True)
    engine = problem.engine
    point, dual, _ = snapshot(problem)
    if nu > 0:
        dual = engine.ascend(engine.uniform(), point, 1 / nu)
    table = engine.table(point, dual)
    w, rng = point.w, np.random.default_rng(1)
    for _ in range(3):
        w = engine.prospect_epoch(table, w, plan(problem, 0.01, N), nu, rng)
        keys = np.empty(N)
        keys[table.order] = table.key
        np.testing.assert_array_equal(table.order, np.argsort(keys, kind="stable"))
        np.testing.assert_array_equal(table.order[table.position], np.arange(N))
        mean = np.column_stack([data, np.ones(N)]).T @ table.slopes / N
        np.testing.assert_allclose(table.mean, mean.T, rtol=1e-10, atol=1e-12)
        lam = np.empty(N)
        if nu > 0:
            lam[:] = sorel.project_permutahedron(keys / N, problem.risk.weights(N))
        else:
            lam[table.order] = problem.risk.weights(N)
        np.testing.assert_allclose(engine.weights(engine.table_dual(table)), lam, atol=1e-14)


def test_prospect_step_uses_the_projected_weights():
    problem = make()
    engine, nu = problem.engine, 0.2
    point, _, _ = snapshot(problem)
    dual = engine.ascend(engine.uniform(), point, 1 / nu)
    table = engine.table(point, dual)
    w = point.w + 0.1
    moved = engine.prospect_epoch(
        table, w, plan(problem, 0.01, 1, proximal=False), nu, np.random.default_rng(0)
    )
    row, _ = np.random.default_rng(0).integers(N, size=(2, 1))
    i = row[0]
    change = dual.density[i] * (engine.point(w).slopes[i] - point.slopes[i]) * X[i]
    direction = change + engine.gradient(point, dual) + 0.1 * w
    np.testing.assert_allclose(moved, w - 0.01 * direction, rtol=1e-12)


@pytest.mark.parametrize("nu", [0.0, 0.5])
def test_saddle_saga_equals_the_formula(nu):
    problem = make(fit_intercept=True)
    engine = problem.engine
    point, dual, _ = snapshot(problem)
    table = engine.table(point, dual)
    setting = plan(problem, 0.02, 10, batch=2)
    moved = engine.saddle_epoch(table, point.w, setting, 0.05, nu, np.random.default_rng(2))
    rows, probes = np.random.default_rng(2).integers(N, size=(2, 20)).reshape(2, 10, 2)
    padded = np.column_stack([X, np.ones(N)])
    w, q = point.w.copy(), dual.density.copy()
    losses, slopes = point.losses.copy(), q * point.slopes
    sigma = problem.risk.weights(N)
    for i, j in zip(rows, probes, strict=True):
        now = engine.point(w)
        fresh = q[i] * now.slopes[i]
        direction = padded[i].T @ (fresh - slopes[i]) / 2 + padded.T @ slopes / N
        target = q + 0.05 * (losses + nu)
        np.add.at(target, j, 0.05 * N * (now.losses[j] - losses[j]) / 2)
        q = N * sorel.project_permutahedron(target / (1 + 0.05 * nu) / N, sigma)
        slopes[i], losses[j] = fresh, now.losses[j]
        w = w - 0.02 * direction
        w[:D] /= 1 + 0.02 * 0.1
    np.testing.assert_allclose(moved, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(engine.table_dual(table).density, q, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(table.losses, losses[table.order], rtol=1e-12)


def test_minibatch_epoch_equals_the_formula():
    problem = make()
    engine = problem.engine
    w = np.array([0.2, -0.1, 0.3])
    moved = engine.minibatch_epoch(w, plan(problem, 0.05, 5, batch=8), np.random.default_rng(4))
    order = np.random.default_rng(4).permutation(N)
    sigma = problem.risk.weights(8)
    for batch in order.reshape(5, 8):
        point = engine.point(w)
        ranked = batch[np.argsort(point.losses[batch])]
        w = (w - 0.05 * X[ranked].T @ (sigma * point.slopes[ranked])) / (1 + 0.05 * 0.1)
    np.testing.assert_allclose(moved, w, rtol=1e-12)


# Solvers.


def solvers():
    return [
        SOREL("paper", dual_step=0.1),
        LSVRG(nu=0.05),
        LSVRG(batch_size=4),
        Prospect(),
        Prospect(nu=0.05, batch_size=4),
        SaddleSAGA(),
        SaddleSAGA(nu=0.05),
        Subgradient(),
        LBFGS(),
    ]


@pytest.mark.parametrize("solver", solvers(), ids=lambda s: f"{s.name}")
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
def test_solvers_come_close_to_the_optimum(solver, loss):
    problem = make(loss)
    best = optimum(problem)
    result = quietly(problem, solver, tol=1e-5, max_passes=250)
    start = problem.objective(problem.start())
    # nu = 0.05 moves the optimum a little; the others have only their budget to blame.
    slack = 2e-2 if getattr(solver, "nu", 0.0) > 0 else 2e-3
    assert result.objective - best.objective <= slack * (start - best.objective)
    assert result.gap >= result.objective - best.objective - 1e-12
    assert result.passes <= 300
    assert result.solver == solver.name
    passes = [record.passes for record in result.history]
    assert passes == sorted(passes)


@pytest.mark.parametrize(
    "solver",
    [SOREL("paper"), LSVRG(), Prospect(), SaddleSAGA(), Subgradient(), LBFGS(), SGD(batch_size=N)],
    ids=lambda s: s.name,
)
def test_mean_is_solved_to_the_tolerance(solver):
    # Without ties to break, every method is an ordinary one for a smooth strongly convex problem.
    problem = make(risk=sorel.Mean(), penalty=sorel.L2(0.5), fit_intercept=True)
    assert sorel.solve(problem, solver, tol=1e-6, max_passes=2000).converged


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
@pytest.mark.parametrize(
    "cls", [SOREL, LSVRG, Prospect, SaddleSAGA, SGD, Subgradient], ids=lambda c: c.name
)
def test_every_penalty_is_taken(cls, penalty):
    problem = make(penalty=penalty, fit_intercept=True)
    solver = cls("paper") if cls is SOREL else cls()
    result = quietly(problem, solver, tol=1e-6, max_passes=80)
    assert math.isfinite(penalty.value(result.w[:D]))
    best = optimum(problem)
    start = problem.objective(problem.start())
    # One batch of all samples where there are fewer than 64: sgd has no bias here.
    assert result.objective - best.objective <= 0.1 * (start - best.objective) + 1e-12


def last_iterate(solver, problem, max_passes):
    """The last iterate of a run; solve() returns the one of lowest unsmoothed risk."""
    seen = []

    class Spy(type(solver)):
        def iterates(self, problem, run):
            inner, reply = super().iterates(problem, run), None
            while True:
                seen[:] = [inner.send(reply)]
                reply = yield seen[0]

    spy = Spy.__new__(Spy)
    spy.__dict__.update(solver.__dict__)
    quietly(problem, spy, tol=0.0, max_passes=max_passes)
    return seen[0]


@pytest.mark.parametrize("cls", [LSVRG, Prospect, SaddleSAGA], ids=lambda c: c.name)
def test_smoothing_leads_to_the_smoothed_optimum(cls):
    # There the gradient under the smoothed weights vanishes, ties or not.
    problem = make(risk=sorel.CVaR(0.3))
    engine, nu = problem.engine, 1.0
    iterate = last_iterate(cls(nu=nu), problem, 400)
    dual = engine.ascend(engine.uniform(), iterate.point, 1 / nu)
    gradient = engine.gradient(iterate.point, dual) + 0.1 * iterate.point.w
    assert np.linalg.norm(gradient) <= 1e-5 * np.linalg.norm(snapshot(problem)[2])
    np.testing.assert_allclose(iterate.dual.density, dual.density, atol=1e-4)


def test_sgd_is_biased():
    problem = make(risk=sorel.CVaR(0.1))
    best = optimum(problem).objective
    start = problem.objective(problem.start())
    small = quietly(problem, SGD(batch_size=2), tol=1e-8, max_passes=200)
    whole = quietly(problem, SGD(batch_size=N), tol=1e-8, max_passes=200)
    # Batches of two cannot see a tail of one in ten: they minimise something nearer to the mean.
    assert small.history[-1].objective - best > 1e-3 * (start - best)
    assert whole.objective <= small.history[-1].objective


def test_sgd_takes_sample_weights():
    problem = make(risk=sorel.Mean(), sample_weight=WEIGHTS)
    best = optimum(problem).objective
    result = quietly(problem, SGD(step_size=0.01, batch_size=4), tol=1e-8, max_passes=100)
    assert result.objective - best <= 1e-2 * (problem.objective(np.zeros(D)) - best)


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


@pytest.mark.parametrize(
    "solver",
    [LSVRG(50.0), Prospect(50.0), SaddleSAGA(50.0), SGD(50.0), Prospect(50.0, nu=0.1)],
    ids=lambda s: s.name,
)
def test_other_solvers_diverge_readably(solver):
    with np.errstate(all="ignore"):
        result = quietly(make(), solver, max_passes=500)
    assert "diverged" in result.status
    assert np.all(np.isfinite(result.w))


@pytest.mark.parametrize(
    "cls", [SOREL, LSVRG, Prospect, SaddleSAGA, SGD, Subgradient], ids=lambda c: c.name
)
def test_same_seed_same_result_and_no_global_state(cls):
    solver = cls("paper") if cls is SOREL else cls()
    state = np.random.get_state()[1].copy()  # noqa: NPY002 (it is the global state we look at)
    runs = [
        quietly(make(risk=sorel.CVaR(0.3)), solver, tol=1e-12, max_passes=9, random_state=seed)
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].w, runs[1].w)
    # One batch of everything, like the full subgradient, leaves nothing to chance.
    if cls not in (Subgradient, SGD):
        assert np.any(runs[0].w != runs[2].w)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002 (as above)


def test_two_passes_for_each_outer_iteration():
    problem = make()
    for solver in (SOREL("paper"), LSVRG(), Prospect(), SaddleSAGA()):
        result = quietly(problem, solver, tol=0.0, max_passes=21)
        assert result.passes == pytest.approx(1 + 2 * result.n_iter)
        assert result.n_iter == 10
    batched = quietly(problem, SOREL("paper", batch_size=16), tol=0.0, max_passes=18)
    # 40 samples hold two whole batches of 16.
    assert batched.passes == pytest.approx(1 + 1.8 * batched.n_iter)


def test_lbfgs_keeps_bounds_and_says_when_it_stalls():
    box = make(penalty=sorel.Box(0.1, -0.3, [0.2, 0.5, 0.4]), fit_intercept=True)
    result = quietly(box, LBFGS(), tol=1e-6, max_passes=200)
    best = optimum(box)
    assert result.objective - best.objective <= 1e-3 * best.objective
    assert math.isfinite(box.penalty.value(result.w[:D]))
    several = make("multinomial", penalty=sorel.NonNegative(0.1), fit_intercept=True)
    assert quietly(several, LBFGS(), tol=1e-3, max_passes=200).w[:D].min() >= 0.0
    # The larger of w^2/2 and (w - 4)^2/2 has its minimum at a kink, where one weighting proves
    # nothing.
    kink = sorel.Problem([[1.0], [1.0]], [0.0, 4.0], risk=sorel.Max(), penalty=sorel.L2(1e-3))
    stalled = quietly(kink, LBFGS(), tol=0.0)
    assert stalled.w == pytest.approx([2.0], abs=1e-3)
    assert "no descent" in stalled.status


def test_interrupt_inside_lbfgs_returns_the_best():
    problem = make()

    def interrupt(record):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(record)

    calls: list = []
    result = quietly(problem, LBFGS(), tol=0.0, callback=interrupt)
    assert result.status.startswith("interrupted")


@pytest.mark.parametrize("penalty", [sorel.ElasticNet(0.1, 0.2), sorel.Simplex(0.1)])
def test_lbfgs_refuses_and_names_who_can(penalty):
    with pytest.raises(UnsupportedProblemError, match="smooth penalties") as error:
        sorel.solve(make(penalty=penalty), "lbfgs")
    message = str(error.value)
    for name in ("newton", "sorel", "lsvrg", "prospect", "saddle_saga", "sgd", "subgradient"):
        assert repr(name) in message
    assert message.count("'lbfgs'") == 1


@pytest.mark.parametrize("cls", [Prospect, SaddleSAGA])
def test_rank_tables_refuse_sample_weights(cls):
    with pytest.raises(UnsupportedProblemError, match="sample weights") as error:
        sorel.solve(make(sample_weight=WEIGHTS), cls())
    assert "'lsvrg'" in str(error.value)
    assert "'saddle_saga'" not in str(error.value).split("use")[-1]


def test_theory_refuses_an_intercept():
    with pytest.raises(UnsupportedProblemError, match="strongly convex"):
        sorel.solve(make(fit_intercept=True), SOREL("theory"))


def test_engines_without_single_samples_are_refused(monkeypatch):
    problem = make()
    engine = problem.engine
    for operation in ("epoch", "minibatch_epoch", "table", "prospect_epoch", "saddle_epoch"):
        monkeypatch.setattr(type(engine), operation, getattr(Engine, operation))
    with pytest.raises(UnsupportedOperationError, match="minibatch_epoch"):
        engine.minibatch_epoch(np.zeros(D), None, np.random.default_rng(0))
    with pytest.raises(
        UnsupportedProblemError, match="needs the operation 'minibatch_epoch'"
    ) as error:
        sorel.solve(problem, "sgd")
    assert "'subgradient'" in str(error.value)
    assert quietly(problem, "subgradient", tol=1e-3).converged


@pytest.mark.parametrize("cls", [SOREL, LSVRG, Prospect, SaddleSAGA, SGD, Subgradient])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "big", True])
def test_bad_step_sizes_are_refused(cls, value):
    with pytest.raises(ValueError, match=r"step_size.*" + str(value)[:3]):
        cls(step_size=value)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"'auto', 'paper', 'theory'.*'odd'"):
        SOREL("odd")
    with pytest.raises(ValueError, match=r"dual_step.*-2"):
        SOREL("paper", dual_step=-2)
    with pytest.raises(ValueError, match="theorem"):
        SOREL("theory", step_size=0.1)
    for value in (0, 1.5, True, "4"):
        with pytest.raises(ValueError, match="batch_size"):
            SGD(batch_size=value)
    for value in (-1.0, math.nan, None):
        with pytest.raises(ValueError, match="nu"):
            LSVRG(nu=value)
    with pytest.raises(ValueError, match="memory"):
        LBFGS(memory=0)


def test_warm_start_continues():
    problem = make()
    first = quietly(problem, SOREL("paper"), tol=1e-4, max_passes=400)
    again = quietly(problem, SOREL("paper"), tol=1e-3, warm_start=first)
    assert again.n_iter == 0
    assert again.converged
