"""SOREL's schedules: what they promise, and how they fail."""

from __future__ import annotations

import numpy as np
import pytest
from stochastic import D, make, optimum, quietly

import sorel
from sorel.certificate import certify
from sorel.datasets import load_paper_dataset
from sorel.engines.stochastic import MemoryStochastic
from sorel.solvers import (
    LSVRG,
    SOREL,
    Prospect,
    SaddleSAGA,
    UnsupportedProblemError,
)
from sorel.solvers import sorel as methods
from sorel.solvers.base import Run
from sorel.solvers.sorel import Brake


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


def test_two_passes_for_each_outer_iteration():
    problem = make()
    for solver in (SOREL("paper"), LSVRG(), Prospect(), SaddleSAGA()):
        result = quietly(problem, solver, tol=0.0, max_passes=21)
        assert result.passes == pytest.approx(1 + 2 * result.n_iter)
        assert result.n_iter == 10
    batched = quietly(problem, SOREL("paper", batch_size=16), tol=0.0, max_passes=18)
    # 40 samples hold two whole batches of 16.
    assert batched.passes == pytest.approx(1 + 1.8 * batched.n_iter)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"'auto', 'paper', 'stable', 'theory'.*'odd'"):
        SOREL("odd")
    with pytest.raises(ValueError, match=r"dual_step.*-2"):
        SOREL("paper", dual_step=-2)


@pytest.mark.parametrize("step", ["step_size", "dual_step"])
def test_theory_takes_no_step_from_outside(step):
    with pytest.raises(ValueError, match=rf"theorem.*{step}=0\.1"):
        SOREL("theory", **{step: 0.1})


def test_theory_refuses_an_intercept():
    with pytest.raises(UnsupportedProblemError, match="strongly convex"):
        sorel.solve(make(fit_intercept=True), SOREL("theory"))


def suboptimality(problem, solver, iterations):
    """(F - F*) / (F(0) - F*) at every outer iteration, with a certified F*."""
    best = quietly(problem, "newton", tol=1e-13)
    values = []
    quietly(
        problem, solver, tol=0.0, max_passes=2 * iterations + 1,
        callback=lambda record: values.append(record.objective),
    )  # fmt: skip
    return (np.array(values) - best.dual) / (values[0] - best.dual)


def gaussian(seed, n=100, d=4):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X @ np.ones(d) + rng.standard_normal(n)


def test_stable_keeps_what_the_published_schedule_loses():
    X, y = load_paper_dataset("yacht")
    problem = sorel.Problem(X, y, risk=sorel.ESRM(2.0))
    published = suboptimality(problem, SOREL("paper", 0.03, 0.1), 800)
    assert published[:450].min() < 1e-11
    assert published[600:].min() > 1e-3
    stable = suboptimality(problem, SOREL("stable", 0.03, 0.1), 800)
    # The brake does nothing as long as nothing is wrong.
    np.testing.assert_array_equal(stable[:300], published[:300])
    assert stable[100:].max() < 1e-9
    assert stable[600:].max() < 1e-12


@pytest.mark.parametrize("dual_step", [0.4, 1.0])
def test_stable_needs_no_fitting_dual_step(dual_step):
    problem = sorel.Problem(*gaussian(0), risk=sorel.CVaR(0.5))
    published = suboptimality(problem, SOREL("paper", dual_step=dual_step), 800)
    stable = suboptimality(problem, SOREL("stable", dual_step=dual_step), 800)
    assert published.min() < 1e-11
    assert published[-100:].min() > 1e-5
    assert stable[-100:].max() < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "logistic", "fit_intercept": True},
        {"penalty": sorel.ElasticNet(0.1, 0.2)},
        {"risk": sorel.CVaR(0.3), "sample_weight": np.arange(1.0, 41.0)},
    ],
    ids=["intercept", "elastic net", "weights"],
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_stable_serves_what_the_published_schedule_serves(options, batch_size):
    solver = SOREL("stable", batch_size=batch_size)
    assert sorel.solve(make(**options), solver, tol=1e-7, max_passes=10_000).converged


def exact_run(problem, X, y, dual_step, iterations, brake):
    """The outer iteration with exact inner solves; the objectives, and the times of the clock."""
    engine, n, d = problem.engine, *X.shape
    point = previous = engine.point(np.zeros(d))
    dual, before = engine.worst_case(point), 0.0
    values, times = [], []
    for k in range(iterations):
        time = brake.time(k)
        center, theta = dual, min(before / time, 1.0)
        dual = engine.dual_step(center, point, dual_step * time, previous, theta)
        if k:
            steps = dual_step * before, 20.0 * n / before
            brake.look(engine, time, steps, (dual, center), (point, previous))
        lam, tau = engine.weights(dual), 20.0 * n / time
        hessian = X.T @ (lam[:, None] * X) + (problem.penalty.l2 + 1.0 / tau) * np.eye(d)
        w = np.linalg.solve(hessian, X.T @ (lam * y) + point.w / tau)
        previous, point, before = point, engine.point(w), time
        values.append(problem.objective(w))
        times.append(time)
    return np.array(values), np.array(times)


@pytest.mark.parametrize("dual_step", [0.1, 3.0, 100.0])
def test_the_clock_is_set_back_as_rarely_as_the_proof_says(dual_step):
    X, y = gaussian(2)
    n = len(y)
    problem = sorel.Problem(X, y, risk=sorel.ESRM(2.0))
    start = problem.objective(np.zeros(4))
    values, times = exact_run(problem, X, y, dual_step, 1500, Brake())
    # Iterates stay in the ball of the proof. G bounds the Jacobian there, in the norm of densities.
    radius = np.sqrt(2.0 * start / problem.penalty.l2)
    norms = np.linalg.norm(X, axis=1)
    square = np.sum((norms * (np.abs(y) + radius * norms)) ** 2) / n
    safe = n * problem.penalty.l2 / (32.0 * dual_step * square)
    setbacks = int(np.sum(np.diff(times) < 0.0))
    assert 1 <= setbacks <= 2 + np.log2(times.max() / safe)
    assert times[-1] >= safe / 2.0
    best = quietly(problem, "newton", tol=1e-13).dual
    gaps = (values - best) / (start - best)
    assert gaps[-100:].max() < 1e-6
    assert gaps[-100:].max() <= gaps[:200].max()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.98])
def test_the_brake_in_the_model_that_can_be_solved(share):
    """One direction with h = j = 1: stable if and only if s < 2 (1 + a) / 3, a = 1 / (1 + tau)."""
    tau = (1.0 - share) / share

    def limit(s):
        eta, brake = s * (1.0 + 1.0 / tau), Brake()
        w, last = 1.0, 0.9
        for k in range(400):
            step = eta * (2.0 * w - last)
            moved = w - last
            brake.enter(k + 1.0, eta * moved * step, step**2 + eta / tau * moved**2)
            if np.isfinite(brake.limit) or max(abs(w), abs(last)) < 1e-100:
                break
            w, last = (1.0 + share - 2.0 * s) * w - (share - s) * last, w
        return brake.limit

    bound = 2.0 * (1.0 + share) / 3.0
    for s in np.geomspace(1e-4, 1.0 / 32.0, 8):
        assert limit(s) == np.inf
    for s in bound * np.array([1.0 + 1e-6, 1.01, 1.2, 3.0]):
        assert limit(s) < np.inf


# The parts, one by one.


def test_the_memory_is_the_inverse_of_bfgs():
    """Against the update of a dense inverse Hessian, pair by pair."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 5))
    A = A @ A.T + np.eye(5)
    memory = methods._Memory()
    gradient = rng.normal(size=5)
    np.testing.assert_array_equal(memory.apply(gradient), np.zeros(5))
    pairs = []
    for count in range(1, methods._MEMORY + 4):
        step = rng.normal(size=5)
        memory.store(step, A @ step)
        # What has no curvature to tell of is left out.
        memory.store(step, -step)
        memory.store(np.array([1.0, 0, 0, 0, 0]), np.array([1e-13, 1, 0, 0, 0]))
        pairs = [*pairs, (step, A @ step)][-methods._MEMORY :]
        assert len(memory.pairs) == min(count, methods._MEMORY)
        s, y = pairs[-1]
        H = (s @ y) / (y @ y) * np.eye(5)
        for s, y in pairs:
            V = np.eye(5) - np.outer(s, y) / (s @ y)
            H = V @ H @ V.T + np.outer(s, s) / (s @ y)
        np.testing.assert_allclose(memory.apply(gradient), H @ gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("ratio", [0.5, 10.0, 1e6])
def test_epochs_of_theory_are_enough_and_no_more(ratio):
    """The contraction of proximal SVRG with step 1 / (12 L), by Theorem 3.1 of its authors."""
    strong, smooth = 0.3, 5.0
    steps = int(np.ceil(96.0 * smooth / strong)) + 2
    step = 1.0 / (12.0 * smooth)
    spoiled = 1.0 - 4.0 * smooth * step
    contraction = 1.0 / (strong * step * spoiled * steps)
    contraction += 4.0 * smooth * step * (steps + 1) / (spoiled * steps)
    epochs = methods._epochs(ratio, strong, smooth, steps)
    assert epochs >= 1
    assert ratio * contraction**epochs <= 1.0
    assert epochs == 1 or ratio * contraction ** (epochs - 1) > 1.0


def test_the_first_inner_loop_takes_a_share_of_the_rows():
    assert methods._inner_steps(10) == 10
    assert methods._inner_steps(10**7) == int(methods._SHARE * 10**7)
    assert methods._inner_steps(methods._FEW_SAMPLES + 1) == max(
        methods._FEW_SAMPLES, int(methods._SHARE * (methods._FEW_SAMPLES + 1))
    )


def recorded(problem, solver, monkeypatch, count):
    """Dual steps, extrapolations and plans of the first outer iterations."""
    kind = type(problem.engine)
    ascend, epoch = kind.dual_step, MemoryStochastic.epoch
    duals, plans = [], []

    def ascending(self, dual, point, eta, previous=None, theta=0.0):
        duals.append((eta, theta))
        return ascend(self, dual, point, eta, previous, theta)

    def stepping(self, point, dual, gradient, plan, *args, **options):
        plans.append((plan, self.smoothness(dual).component))
        return epoch(self, point, dual, gradient, plan, *args, **options)

    monkeypatch.setattr(kind, "dual_step", ascending)
    monkeypatch.setattr(MemoryStochastic, "epoch", stepping)
    n = problem.n_samples
    quietly(problem, solver, tol=1e-15, max_passes=(2.0 + n // solver.batch_size / n) * count)
    return duals, plans


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("step_size", [None, 1e-3])
def test_the_published_schedule_is_the_published_one(step_size, batch, monkeypatch):
    problem = make()
    n = problem.n_samples
    solver = SOREL(schedule="paper", dual_step=0.02, step_size=step_size, batch_size=batch)
    duals, plans = recorded(problem, solver, monkeypatch, 6)
    assert len(plans) >= 4
    for k, (eta, theta) in enumerate(duals):
        # eta_k = C (k + 1) / n in lam, theta_k = k / (k + 1).
        assert eta == pytest.approx(0.02 * (k + 1))
        assert theta == pytest.approx(k / (k + 1))
    for k, (plan, component) in enumerate(plans):
        tau = 20.0 * n / (k + 1)
        assert plan.tau == pytest.approx(tau)
        assert (plan.steps, plan.batch) == (n // batch, batch)
        safe = 1.0 / (3.0 * component + problem.penalty.l2 + 1.0 / tau)
        assert plan.step == pytest.approx(safe if step_size is None else step_size)


def test_theory_has_the_constants_of_the_proof(monkeypatch):
    problem = make()
    mu = problem.penalty.l2
    duals, plans = recorded(problem, SOREL(schedule="theory"), monkeypatch, 400)
    engine = problem.engine
    start = engine.point(problem.start())
    level = engine.risk(start) + problem.penalty_value(start.w)
    assert duals[0] == pytest.approx((mu / (8.0 * engine.stochastic().jacobian_bound(level)), 0.0))
    for k, (_, theta) in enumerate(duals):
        assert theta == pytest.approx(k / (k + 1))
    plan, smooth = plans[0]
    assert plan.step == pytest.approx(1.0 / (12.0 * smooth))
    assert plan.tau == pytest.approx(4.0 / mu)
    assert plan.proximal


def test_dual_ascent_takes_the_length_of_its_last_step():
    """Barzilai and Borwein: |dq|^2 / -(dq . dl), no more than ten times the last one."""
    problem = make()
    engine = problem.engine
    rng = np.random.default_rng(0)
    points = [engine.point(0.3 * rng.normal(size=engine.shape)) for _ in range(3)]
    ascent = methods._DualAscent()
    first = engine.uniform()
    second = ascent.step(problem, points[0], first, 1.0, 0.2)
    assert ascent.eta == pytest.approx(1.0 / engine.sizes(points[0]).deviation)
    assert list(ascent.window) == pytest.approx([1.0 - 1.5 * 0.2])
    expected = engine.dual_step(first, points[0], ascent.eta)
    np.testing.assert_allclose(second.density, expected.density, rtol=1e-12)
    for point in points[1:]:
        before = ascent.eta
        length, product, _ = engine.differences(
            second, ascent.accepted[0], point, ascent.accepted[1]
        )
        second = ascent.step(problem, point, second, 1.0, 0.0)
        if product > 0.0:
            assert ascent.eta == pytest.approx(np.clip(length / product, before / 10, before * 10))
        else:
            assert ascent.eta == before


def test_dual_ascent_goes_back_where_the_value_drops_and_not_for_ever():
    problem = make()
    engine = problem.engine
    point, dual = engine.point(problem.start()), engine.uniform()
    ascent = methods._DualAscent()
    for _ in range(methods._WINDOW):
        dual = ascent.step(problem, point, dual, 1.0, 0.0)
    kept, eta = ascent.accepted[0], ascent.eta
    for count in range(1, methods._MAX_REJECTIONS + 1):
        back = ascent.step(problem, point, dual, 0.5, 0.0)
        assert ascent.rejections == count
        assert ascent.eta == pytest.approx(eta * 0.25**count)
        np.testing.assert_allclose(back.density, 0.75 * kept.density + 0.25 * dual.density)
    ascent.step(problem, point, dual, 0.5, 0.0)
    assert (ascent.rejections, list(ascent.window)) == (0, [0.5])
    # A value as good as the window's is no drop, and a short window tells nothing.
    ascent.step(problem, point, dual, 0.4, 0.0)
    assert ascent.rejections == 0


def test_theory_at_every_outer_iteration(monkeypatch):
    """The level that G holds for never falls; tau, the epochs and their lengths follow k."""
    problem = make().for_run()
    engine, mu = problem.engine, problem.penalty.l2
    ends = [np.full(engine.shape, c) for c in (3.0, -0.1, 0.2, 0.0)]
    epochs, asked, duals = [], [], []
    ascend = type(engine).dual_step

    def averaged(problem, run, point, dual, gradient, plan):
        epochs.append((plan, point, dual))
        return ends[len(epochs) - 1]

    def ascending(self, dual, point, eta, previous=None, theta=0.0):
        duals.append((eta, theta, point, previous))
        return ascend(self, dual, point, eta, previous, theta)

    monkeypatch.setattr(methods, "_averaged_epoch", averaged)
    monkeypatch.setattr(methods, "_epochs", lambda *arguments: asked.append(arguments) or 1)
    monkeypatch.setattr(type(engine), "dual_step", ascending)
    run = Run(problem.start(), None, 1e-15, 1e6, np.inf, 0)
    iterates = SOREL(schedule="theory").iterates(problem, run)
    iterate = next(iterates)
    for _ in range(3):
        iterate = iterates.send(certify(problem, iterate.point, iterate.dual))
    assert run.n_iter == 3
    assert run.passes >= 4.0
    monkeypatch.undo()
    level = 0.0
    for k, (plan, point, dual) in enumerate(epochs):
        level = max(level, problem.objective(point.w))
        eta, theta, now, before = duals[k]
        assert eta == pytest.approx(
            mu * (k + 1) / (8.0 * engine.stochastic().jacobian_bound(level))
        )
        assert theta == pytest.approx(k / (k + 1))
        assert now is point
        assert before is (epochs[k - 1][1] if k else point)
        smooth, tau = engine.stochastic().smoothness(dual).component, 4.0 / (mu * (k + 1))
        steps = int(np.ceil(96.0 * smooth / (mu + 1.0 / tau))) + 2
        assert (plan.step, plan.tau) == pytest.approx((1.0 / (12.0 * smooth), tau))
        assert plan.steps == steps
        np.testing.assert_array_equal(plan.center, point.w)
        error = problem.penalty.fenchel_young(point.w, -engine.gradient(point, dual))
        delta = min(mu / (8.0 * (k + 5)), mu / (k + 1.0) ** 6)
        assert asked[k] == pytest.approx((error / delta, mu + 1.0 / tau, smooth, steps))


def test_the_brake_sees_the_steps_that_led_to_a_point(monkeypatch):
    problem, rate = make(), 0.03
    n, seen = problem.n_samples, []
    monkeypatch.setattr(
        Brake, "look", lambda self, engine, time, steps, *others: seen.append((time, *steps))
    )
    solver = SOREL(schedule="stable", dual_step=rate, step_size=1e-3)
    quietly(problem, solver, tol=1e-15, max_passes=9)
    assert len(seen) >= 3
    for k, entry in enumerate(seen, start=1):
        assert entry == pytest.approx((k + 1.0, rate * k, 20.0 * n / k))


def test_what_a_schedule_needs_of_an_engine():
    for schedule in ("paper", "stable"):
        assert SOREL(schedule, step_size=0.1).needs() != SOREL(schedule).needs()
    assert SOREL("auto", step_size=0.1).needs() == SOREL("auto").needs() == SOREL.operations


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_pairs_without_curvature_are_not_remembered(size):
    memory = methods._Memory()
    step, across = size * np.array([1.0, 0.0]), size * np.array([0.0, 1.0])
    memory.store(step, 0.9e-12 * step + across)
    memory.store(step, -step)
    assert not memory.pairs
    memory.store(step, 1.1e-12 * step + across)
    assert len(memory.pairs) == 1


@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e200])
@pytest.mark.parametrize(("strong", "smooth", "steps"), [(1.0, 0.5, 20), (0.1, 3.0, 4000)])
def test_epochs_by_the_rate_of_proximal_svrg(ratio, strong, smooth, steps):
    """With steps of 1 / (12 L) the error falls by this factor in each epoch."""
    step = 1.0 / (12.0 * smooth)
    share = 4.0 * smooth * step
    rate = 1.0 / (strong * step * (1.0 - share) * steps)
    rate += share * (steps + 1) / ((1.0 - share) * steps)
    assert rate < 1.0
    expected = max(1, int(np.ceil(np.log(ratio) / -np.log(rate))))
    assert methods._epochs(ratio, strong, smooth, steps) == expected


def test_without_l2_the_theorem_has_nothing_to_divide_by():
    X, y = np.eye(3), np.ones(3)
    flat = sorel.Problem(X, y, penalty=sorel.Simplex(0.0))
    assert "which is 0 for Simplex(l2=0.0)" in SOREL("theory").obstacle(flat)
    bent = sorel.Problem(X, y, penalty=sorel.Simplex(0.1))
    for schedule, problem in (("paper", flat), ("auto", flat), ("theory", bent)):
        assert SOREL(schedule).obstacle(problem) is None
