"""SOREL's schedules: what they promise, and how they fail."""

import numpy as np
import pytest
from stochastic import PENALTIES, WEIGHTS, D, N, X, Y, make, optimum, quietly

import sorel
from sorel.datasets import load_paper_dataset
from sorel.solvers import SOREL, UnsupportedProblemError
from sorel.solvers.sorel import Brake


def history(problem, solver, max_passes):
    """The objective at every check."""
    values = []
    quietly(
        problem, solver, tol=0.0, max_passes=max_passes, random_state=0,
        callback=lambda record: values.append(record.objective),
    )  # fmt: skip
    return np.array(values)


def certified_cases():
    for loss in ("squared", "huber", "logistic", "squared_hinge", "multinomial"):
        yield {"loss": loss, "fit_intercept": True, "sample_weight": WEIGHTS}
    for penalty in PENALTIES[1:]:
        yield {"risk": sorel.CVaR(0.3), "penalty": penalty}


@pytest.mark.parametrize("options", list(certified_cases()))
@pytest.mark.parametrize(("schedule", "batch_size"), [("auto", 1), ("auto", 8), ("stable", 4)])
def test_schedules_are_certified(options, schedule, batch_size):
    problem, solver = make(**options), SOREL(schedule, batch_size=batch_size)
    result = sorel.solve(problem, solver, tol=1e-5, max_passes=10_000, random_state=0)
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
                    step = 1.0 / (12.0 * L)
                    iterates += self.inner_loop(iterates[-1], piece, step, center, tau, True)
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


def test_an_epoch_of_many_passes_keeps_to_the_budget():
    short = quietly(make(penalty=sorel.L2(1e-3)), SOREL("theory"), tol=1e-9, max_passes=20)
    assert 20 <= short.passes <= 23


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
