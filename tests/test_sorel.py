"""SOREL's schedules: what they promise, and how they fail."""

from __future__ import annotations

import numpy as np
import pytest
from stochastic import PENALTIES, WEIGHTS, D, N, X, Y, make, optimum, quietly

import sorel
from sorel.datasets import load_paper_dataset
from sorel.solvers import LSVRG, SOREL, Prospect, SaddleSAGA, UnsupportedProblemError
from sorel.solvers.sorel import Brake


def history(problem, solver, max_passes):
    """The objective at every check."""
    values = []
    quietly(
        problem, solver, tol=0.0, max_passes=max_passes, random_state=0,
        callback=lambda record: values.append(record.objective),
    )  # fmt: skip
    return np.array(values)


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge", "multinomial"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_auto_is_certified_for_every_loss(loss, batch_size):
    problem = make(loss, fit_intercept=True, sample_weight=WEIGHTS)
    result = sorel.solve(problem, SOREL(batch_size=batch_size), tol=1e-6, random_state=0)
    assert result.objective <= optimum(problem).objective * (1.0 + 2e-6)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
def test_auto_is_certified_for_every_penalty(penalty):
    problem = make(risk=sorel.CVaR(0.3), penalty=penalty)
    result = sorel.solve(problem, SOREL(), tol=1e-5, random_state=0)
    assert result.objective <= optimum(problem).objective * (1.0 + 2e-5)


class Formulas:
    """The published algorithm in plain NumPy, for the squared loss and l2/2 |w|^2."""

    def __init__(self, l2, batch=1):
        self.l2, self.batch, self.rng = l2, batch, np.random.default_rng(0)
        self.sigma = sorel.ESRM(2.0).weights(N)
        self.w = self.before = np.zeros(D)
        self.lam = np.empty(N)
        self.lam[np.argsort(self.losses(self.w))] = self.sigma

    def losses(self, w):
        return 0.5 * (X @ w - Y) ** 2

    def objective(self, w):
        return np.sort(self.losses(w)) @ self.sigma + 0.5 * self.l2 * w @ w

    def dual_step(self, eta, theta):
        ahead = (1.0 + theta) * self.losses(self.w) - theta * self.losses(self.before)
        self.lam = sorel.project_permutahedron(self.lam + eta * ahead, self.sigma)

    def curvature(self):
        """max_i n lam_i L_i"""
        return N * np.max(self.lam * np.sum(X**2, axis=1))

    def inner_loop(self, start, count, alpha, center, tau, proximal):
        """Variance-reduced steps around the snapshot w; every iterate."""
        full = X.T @ (self.lam * (X @ self.w - Y))
        w, iterates = start, []
        for rows in self.rng.integers(N, size=count * self.batch).reshape(count, self.batch):
            change = N * self.lam[rows] * (X[rows] @ (w - self.w))
            direction = full + X[rows].T @ change / self.batch
            if proximal:
                pulled = w - alpha * direction + alpha / tau * center
                w = pulled / (1.0 + alpha / tau + alpha * self.l2)
            else:
                w = w - alpha * (direction + self.l2 * w + (w - center) / tau)
            iterates.append(w)
        return iterates

    def paper(self, C, step_size):
        for k in range(8):
            yield self.objective(self.w)
            self.dual_step(C * (k + 1) / N, k / (k + 1))
            tau = 20.0 * N / (k + 1)
            alpha = step_size or 1.0 / (3.0 * self.curvature() + self.l2 + 1.0 / tau)
            last = self.inner_loop(self.w, N // self.batch, alpha, self.w, tau, False)[-1]
            self.before, self.w = self.w, last

    def theory(self):
        highest = 0.0
        for k in range(2):
            highest = max(highest, self.objective(self.w))
            # |phi'|^2 <= 2 phi for the squared loss; in lam a step is 1/n of one in densities.
            bound = 2.0 * highest * np.max(np.sum(X**2, axis=1))
            self.dual_step(self.l2 * (k + 1) / (8.0 * bound) / N, k / (k + 1))
            self.before, center, tau = self.w, self.w, 4.0 / (self.l2 * (k + 1))
            L, strong = self.curvature(), self.l2 + 1.0 / tau
            count = int(np.ceil(96.0 * L / strong)) + 2
            gradient = X.T @ (self.lam * (X @ self.w - Y)) + self.l2 * self.w
            delta = min(self.l2 / (8.0 * (k + 5)), self.l2 / (k + 1.0) ** 6)
            ratio = gradient @ gradient / (2.0 * self.l2) / delta
            # Theorem 3.1 of Xiao and Zhang (2014) with steps of 1 / (12 L).
            contraction = 12.0 * L / (strong * (2.0 / 3.0) * count) + (count + 1) / (2.0 * count)
            for _ in range(max(1, int(np.ceil(np.log(ratio) / -np.log(contraction))))):
                yield self.objective(self.w)
                iterates = [self.w]
                while len(iterates) <= count:
                    # In pieces of a pass, as the samples are drawn.
                    piece = min(count + 1 - len(iterates), N)
                    iterates += self.inner_loop(
                        iterates[-1], piece, 1.0 / (12.0 * L), center, tau, True
                    )
                self.w = np.mean(iterates[1:], axis=0)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("step_size", [None, 1e-3])
def test_paper_takes_the_published_steps(step_size, batch):
    expected = list(Formulas(0.1, batch).paper(0.02, step_size))
    solver = SOREL("paper", step_size, dual_step=0.02, batch_size=batch)
    np.testing.assert_allclose(history(make(), solver, 18)[:8], expected, rtol=1e-9)


def test_theory_takes_the_published_steps():
    expected = list(Formulas(2.0).theory())
    found = history(make(penalty=sorel.L2(2.0)), SOREL("theory"), max_passes=1500)
    np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-8)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "odd"}, r"'auto', 'paper', 'stable', 'theory'.*'odd'"),
        ({"schedule": "paper", "dual_step": -2}, r"dual_step.*-2"),
        ({"schedule": "theory", "step_size": 0.1}, r"theorem.*step_size=0\.1"),
        ({"schedule": "theory", "dual_step": 0.1}, r"theorem.*dual_step=0\.1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SOREL(**settings)


def test_theory_refuses_what_is_not_strongly_convex():
    with pytest.raises(UnsupportedProblemError, match="strongly convex"):
        sorel.solve(make(fit_intercept=True), SOREL("theory"))
    with pytest.raises(UnsupportedProblemError, match=r"which is 0 for Simplex\(l2=0.0\)"):
        sorel.solve(make(penalty=sorel.Simplex(0.0)), SOREL("theory"))


def suboptimality(problem, solver, iterations):
    """(F - F*) / (F(0) - F*) at every outer iteration, with a certified F*."""
    best = quietly(problem, "newton", tol=1e-13)
    values = history(problem, solver, max_passes=2 * iterations + 1)
    return (values - best.dual) / (values[0] - best.dual)


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


def test_what_a_schedule_needs_of_an_engine():
    for schedule in ("paper", "stable"):
        assert SOREL(schedule, step_size=0.1).needs() != SOREL(schedule).needs()
    assert SOREL("auto", step_size=0.1).needs() == SOREL("auto").needs() == SOREL.operations
