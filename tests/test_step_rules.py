"""The steps that methods take where the user gives none, and the rules that end them.

Step lengths, passes and limits are compared with the formulas that the documentation of each method
has for them: a method that is off by a factor still converges, and is another method.
"""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import make_data

import sorel
from sorel.certificate import certify
from sorel.models.conjugate import minimize_model
from sorel.models.constrained import RIDGE
from sorel.problem.problem import Problem
from sorel.solvers import (
    LSVRG,
    SGD,
    SOREL,
    Continuation,
    Prospect,
    Run,
    SaddleSAGA,
    Subgradient,
    common,
)
from sorel.solvers.base import make_generator
from sorel.solvers.common import Watch

# The package of that name hides the module.
sorel_method = importlib.import_module("sorel.solvers.sorel")

N, D, L2 = 31, 3, 0.3
EPOCHS = {LSVRG: "epoch", Prospect: "prospect_epoch", SaddleSAGA: "saddle_epoch",
          SGD: "minibatch_epoch"}  # fmt: skip


def make_problem(loss="squared", penalty=None, risk="esrm:2", n=N, **options):
    X, y = make_data(loss, n, D, seed=8)
    return Problem(X, y, risk=risk, loss=loss, penalty=penalty or sorel.L2(L2), **options)


def make_run(problem, max_passes=1e6, tol=1e-9):
    return Run(problem.start(), None, tol, max_passes, math.inf, 0)


def plans_of(problem, solver, monkeypatch):
    """The plans and other arguments of the first epochs, and the passes of a run by then."""
    seen = []
    name = EPOCHS[type(solver)]
    kind = type(problem.engine.stochastic())
    own = getattr(kind, name)

    def epoch(self, *arguments):
        seen.append(arguments)
        return own(self, *arguments)

    monkeypatch.setattr(kind, name, epoch)
    run = make_run(problem)
    iterates = solver.iterates(problem, run)
    iterate, passes = next(iterates), [run.passes]
    for _ in range(3):
        reply = certify(problem, iterate.point, iterate.dual)
        iterate = iterates.send(reply)
        passes.append(run.passes)
    assert run.n_iter == 3
    return seen, np.diff(passes), passes[0], iterate


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("method", list(EPOCHS))
def test_step_lengths_and_passes(method, batch, monkeypatch):
    problem = make_problem()
    engine = problem.engine
    seen, spent, first, _ = plans_of(problem, method(batch_size=batch), monkeypatch)
    plan = next(value for value in seen[0] if hasattr(value, "steps"))
    assert (plan.steps, plan.batch) == (N // batch, batch)
    # A pass is n gradients; the steps of two samples count twice, a snapshot is one more.
    steps = (N // batch) * batch / N
    cost = {LSVRG: 1 + steps, SGD: steps}.get(method, 2 * steps)
    assert spent == pytest.approx(np.full(3, cost))
    assert first == (0.0 if method is SGD else 1.0)
    start = engine.point(np.zeros(D))
    smooth = (
        engine.stochastic().smoothness(engine.worst_case(start))
        if method is LSVRG
        else engine.stochastic().smoothness()
    )
    bound = smooth.largest if method is SGD else 3.0 * smooth.component
    assert plan.step == pytest.approx(1.0 / (bound + L2))
    if method is SaddleSAGA:
        norm = engine.stochastic().jacobian_bound(np.mean(engine.losses(start)))
        assert seen[0][3] == pytest.approx(1.0 / (3.0 * N * plan.step * norm))


@pytest.mark.parametrize("method", [LSVRG, Prospect])
def test_smoothed_weights(method):
    """With nu they maximise lam . l less nu/2 of their distance from the uniform ones."""
    problem = make_problem()
    engine, nu = problem.engine, 0.7
    run = make_run(problem)
    first = next(method(nu=nu).iterates(problem, run))
    expected = engine.dual_step(engine.uniform(), engine.point(np.zeros(D)), 1.0 / nu)
    np.testing.assert_allclose(engine.weights(first.dual), engine.weights(expected))
    plain = next(method().iterates(problem, run))
    sigma = np.sort(problem.risk.weights(N))
    np.testing.assert_allclose(np.sort(engine.weights(plain.dual)), sigma)


def auto_run(problem, monkeypatch, means, checks=6):
    """Inner loops of SOREL's own schedule that end where `means` says; their plans and starts."""
    loops, shown = [], []

    def tail_average(problem, run, point, dual, gradient, plan, start):
        loops.append((plan, start, point.w, dual))
        return means(len(loops) - 1, point.w)

    monkeypatch.setattr(sorel_method, "_tail_average", tail_average)
    run = make_run(problem)
    iterates = SOREL().iterates(problem, run)
    iterate = next(iterates)
    for _ in range(checks):
        shown.append(iterate)
        iterate = iterates.send(certify(problem, iterate.point, iterate.dual))
    return loops, shown, run


def test_an_inner_loop_that_fails_is_undone(monkeypatch):
    """Its start is to blame first, its step second, which becomes shorter up to a limit."""
    problem = make_problem()
    good = -0.05 * problem.engine.gradient(
        problem.engine.point(np.zeros(D)), problem.engine.uniform()
    )

    def means(k, w):
        return good if k == 0 else w + 100.0

    loops, shown, run = auto_run(problem, monkeypatch, means, checks=12)
    assert run.passes == 1.0 + len(loops)
    assert run.n_iter == len(loops)
    smooth = [problem.engine.stochastic().smoothness(dual).average + L2 for _, _, _, dual in loops]
    safety = [1.0 / (plan.step * bound) for (plan, *_), bound in zip(loops, smooth, strict=True)]
    # One loop that is good, one with a start of its own, and then shorter and shorter steps.
    expected = [1.5, 1.5, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 48.0, 48.0]
    assert safety[:10] == pytest.approx(expected)
    moved = [not np.array_equal(start, w) for _, start, w, _ in loops]
    assert moved[:4] == [False, True, False, False]
    for iterate in shown[2:]:
        np.testing.assert_array_equal(iterate.point.w, good)


@pytest.mark.parametrize("value", [-1e4, 1e-4, 1e4])
def test_an_inner_loop_may_rise_by_rounding(monkeypatch, value):
    """In the units of the objective."""
    slack = sorel_method._INNER_SLACK * abs(value)
    values = iter([value, value + 0.9 * slack, value, value + 1.1 * slack] + [value] * 40)
    monkeypatch.setattr(sorel_method, "_lagrangian", lambda problem, point, dual: next(values))
    loops, *_ = auto_run(make_problem(), monkeypatch, lambda k, w: np.full(D, k + 1.0), checks=4)
    starts = [w for _, _, w, _ in loops]
    np.testing.assert_array_equal(starts[:3], [np.zeros(D), np.ones(D), np.ones(D)])


def test_what_is_not_finite_is_undone(monkeypatch):
    problem = make_problem()
    loops, shown, _ = auto_run(problem, monkeypatch, lambda k, w: w + math.nan, checks=4)
    assert all(not np.any(iterate.point.w) for iterate in shown)
    assert len({plan.step for plan, *_ in loops}) > 1


@pytest.mark.parametrize(("share", "doubles"), [(0.9, False), (0.05, True)])
def test_inner_loops_grow_where_they_leave_much_undone(monkeypatch, share, doubles):
    monkeypatch.setattr(sorel_method, "_FEW_SAMPLES", 4)
    problem = make_problem(risk="mean", n=400)
    best = sorel.solve(problem, "newton", tol=1e-10).w
    steps, _, _ = auto_run(problem, monkeypatch, lambda k, w: w + share * (best - w), checks=5)
    counts = [plan.steps for plan, *_ in steps[:5]]
    assert counts[0] == 50
    assert counts[1:4] == ([100, 200, 200] if doubles else [50] * 3)


@pytest.mark.parametrize("rounding", [0.1, sorel_method._ROUNDING])
def test_a_step_and_what_it_forgets_is_entered_in_the_account(monkeypatch, rounding):
    monkeypatch.setattr(sorel_method, "_ROUNDING", rounding)
    problem = make_problem()
    engine, brake = problem.engine, sorel_method.Brake()
    entered = []
    brake.enter = lambda *arguments: entered.append(arguments)
    points = engine.point(np.ones(D)), engine.point(np.array([0.5, -1.0, 0.0]))
    duals = engine.worst_case(points[0]), engine.uniform()
    brake.look(engine, 7.0, (0.3, 2.0), duals, points)
    (time, cross, squares), losses = entered[0], [engine.losses(point) for point in points]
    change = N * (engine.weights(duals[0]) - engine.weights(duals[1]))
    product = np.mean(change * (losses[0] - losses[1]))
    assert time == 7.0
    slack = rounding * 0.3 * np.mean(np.abs(losses[0]))
    assert cross == pytest.approx(0.3 * product - slack)
    way = np.sum((points[0].w - points[1].w) ** 2)
    assert squares == pytest.approx(np.mean(change**2) + 0.3 / 2.0 * way)


def test_means_of_epochs():
    """Of the last half for `auto`, of all for `theory`, in pieces of a pass while they last."""
    problem = make_problem()
    engine = problem.engine
    point, dual = engine.point(np.zeros(D)), engine.uniform()
    gradient = engine.gradient(point, dual)
    plan = SOREL().plan(problem, 0.01)._replace(steps=9)
    iterates = []
    # Epochs of so many steps, with generators that hand out the same samples.
    for steps in range(1, 10):
        one = engine.stochastic().epoch(point, dual, gradient, plan._replace(steps=steps),
                           np.random.default_rng(0))  # fmt: skip
        iterates.append(one)
    run = make_run(problem)
    run.random_state = 0
    found = sorel_method._tail_average(problem, run, point, dual, gradient, plan, point.w)
    np.testing.assert_allclose(found, np.mean(iterates[5:], axis=0), rtol=1e-9)
    assert run.passes == pytest.approx(9 / N)
    long = plan._replace(steps=2 * N + 5)
    run = make_run(problem)
    sorel_method._averaged_epoch(problem, run, point, dual, gradient, long)
    assert run.passes == pytest.approx(2 + 5 / N)
    run = make_run(problem, max_passes=0.5)
    sorel_method._averaged_epoch(problem, run, point, dual, gradient, long)
    assert run.passes == pytest.approx(1.0)


def subgradient_steps(problem, step_size=None):
    """The rule in plain NumPy: Polyak's step for a value a little below the best one."""
    X, y = make_data("squared", N, D, seed=8)
    sigma = np.sort(problem.risk.weights(N))
    w, best, bound, delta = np.zeros(D), math.inf, -math.inf, math.inf
    mean, stuck, promised, lowest = None, 0, math.inf, None
    k = 0
    while True:
        losses = problem.loss.value(y, X @ w)
        lam = np.empty(N)
        lam[np.argsort(losses)] = sigma
        value = lam @ losses + 0.5 * L2 * w @ w
        mean = lam if mean is None else mean + max(0.1, 2 / (k + 2)) * (lam - mean)
        if value < best:
            best, lowest = value, w
        if k % 5 == 0:
            dual = yield lowest, mean, k + 1
            bound = max(bound, dual)
            delta = min(delta, best - bound)
        if k == 0:
            promised = best
        elif best <= promised - 0.5 * delta:
            promised, stuck, delta = best, 0, min(2 * delta, best - bound)
        elif stuck == 5:
            promised, stuck, delta = best, 0, delta / 2
        else:
            stuck += 1
        slope = X.T @ (lam * problem.loss.derivative(y, X @ w)) + L2 * w
        step = (value - best + delta) / (slope @ slope) if step_size is None else step_size
        w, k = w - step * slope, k + 1


@pytest.mark.parametrize("step_size", [None, 0.05])
def test_steps_of_the_subgradient_method(step_size):
    problem = make_problem()
    run, steps = make_run(problem), subgradient_steps(problem, step_size)
    iterates = Subgradient(step_size=step_size).iterates(problem, run)
    mine, theirs = next(iterates), next(steps)
    assert mine.refine == math.inf
    for _ in range(9):
        np.testing.assert_allclose(mine.point.w, theirs[0], rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(problem.engine.weights(mine.dual), theirs[1], atol=1e-9)
        assert run.passes == theirs[2]
        reply = certify(problem, mine.point, mine.dual, refine=1.0)
        mine, theirs = iterates.send(reply), steps.send(reply.dual)


def test_moduli_of_a_penalty():
    """From the mean curvature of the losses down to its own, by a factor of ten at most."""
    X, _ = make_data("squared", N, D, seed=8)
    for l2 in (1e-4, 0.0):
        penalty = sorel.L2(l2) if l2 else sorel.Box(0.0, -1.0, 1.0)
        problem, run = make_problem(penalty=penalty), make_run(make_problem())
        moduli = Continuation()._moduli(problem, run)
        strongest = np.mean(X**2)
        weakest = l2 or RIDGE * strongest
        assert moduli[0] == pytest.approx(strongest)
        assert len(moduli) == math.ceil(math.log10(strongest / weakest) - 1e-9)
        ratios = np.array([*moduli[1:], weakest]) / moduli
        assert ratios == pytest.approx(np.full(len(moduli), ratios[0]))
        assert ratios[0] >= 0.1 - 1e-9
        assert run.passes == 1.0
    strong = make_problem(penalty=sorel.L2(strongest))
    assert Continuation()._moduli(strong, make_run(strong)) == []
    run = make_run(problem)
    run.w = np.ones(D)
    Continuation()._moduli(problem, run)
    assert run.passes == 2.0


def curvature_of(H, share=1.0):
    return SimpleNamespace(
        share=share,
        product=lambda v: H @ v,
        preconditioner=lambda modulus: lambda v: v / (np.diag(H) + modulus),
    )


def test_conjugate_gradients():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((12, 6))
    H, modulus, gradient = A.T @ A, np.array([0.5] * 5 + [0.0]), rng.standard_normal(6)
    full = H + np.diag(modulus)
    scale = 1.0 / np.diag(full)
    seen = []

    def enough(left, decrease, residual):
        seen.append((left, decrease, residual.copy()))
        return len(seen) > 3

    found = minimize_model(curvature_of(H, 0.25), modulus, gradient, enough=enough, max_products=50)
    assert (found.products, found.reached) == (3, True)
    # Three products of a quarter of the rows, and as much for the preconditioner.
    assert found.passes == pytest.approx(1.0)
    step = found.step
    assert found.decrease == pytest.approx(-(0.5 * step @ full @ step + gradient @ step))
    left, decrease, residual = seen[-1]
    np.testing.assert_allclose(residual, -gradient - full @ step)
    assert decrease == found.decrease
    assert left == pytest.approx((residual**2 @ scale) / (gradient**2 @ scale))
    # The best of all steps in the space of three products.
    basis = [scale * gradient]
    for _ in range(2):
        basis.append(scale * (full @ basis[-1]))
    B = np.array(basis).T
    best = -B @ np.linalg.solve(B.T @ full @ B, B.T @ gradient)
    np.testing.assert_allclose(step, best, rtol=1e-8)


def test_where_conjugate_gradients_end():
    H, none = np.eye(2), np.zeros(2)

    def never(left, decrease, residual):
        return False

    found = minimize_model(curvature_of(H), none, none, enough=never, max_products=9)
    assert (found.products, found.reached, found.decrease) == (0, True, 0.0)
    rng = np.random.default_rng(1)
    A = rng.standard_normal((40, 40))
    H, gradient = A @ A.T + 1e-6 * np.eye(40), rng.standard_normal(40)
    for most, products in ((7, 7), (1000, 90)):
        found = minimize_model(
            curvature_of(H), np.zeros(40), gradient, enough=never, max_products=most
        )
        assert (found.products, found.reached) == (products, False)
    # A matrix without curvature along the gradient has no minimum to go to.
    flat = SimpleNamespace(share=0.5, product=lambda v: 0.0 * v)
    found = minimize_model(flat, none, np.ones(2), enough=never, max_products=9,
                           precondition=lambda v: v)  # fmt: skip
    assert (found.products, found.reached, found.passes) == (1, False, 0.5)
    np.testing.assert_array_equal(found.step, none)


def test_a_penalty_may_blow_up_alone():
    """What counts is the objective, of which the losses may know nothing."""
    problem = Problem(np.zeros((4, 2)), np.ones(4), penalty=sorel.L2(0.1))
    run = Run(np.zeros(2), None, 1e-9, 1e6, math.inf, 0)
    watch = Watch(problem, run)
    watch.start()
    # A mean loss of 1/2 at the start, and l2/2 |w|^2 a million times that at about 3162.
    limit = math.sqrt(common._BLOW_UP * 0.5 / 0.05)
    assert watch.point(np.array([0.99 * limit, 0.0]), "") is not None
    assert watch.point(np.array([1.01 * limit, 0.0]), "") is None


def test_sources_of_randomness_are_checked():
    with pytest.raises(ValueError, match="nonnegative int"):
        make_generator(-1)
