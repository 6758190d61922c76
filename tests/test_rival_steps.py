"""The solvers of the related work, step by step: each against its formulas in plain NumPy.

A wrong step length or sign seldom keeps such a method from converging, since every answer is
certified; it makes it another method than the one that is named.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from helpers import make_data
from sklearn.isotonic import isotonic_regression

import sorel
from sorel.certificate import certify
from sorel.solvers import ADMM, APD, PDHG, Drago, Run, StochasticPD, Subgradient

N, D, L2, L1 = 31, 3, 0.3, 0.04


class Plain:
    """A problem of the squared loss in plain NumPy; densities q stand for n lam."""

    def __init__(self, intercept=False, penalty="l2"):
        X, y = make_data("squared", N, D, seed=8)
        self.l2, self.l1 = L2, L1 if penalty == "elastic" else 0.0
        used = sorel.ElasticNet(L2, L1) if penalty == "elastic" else sorel.L2(L2)
        self.problem = sorel.Problem(X, y, risk="esrm:2", fit_intercept=intercept, penalty=used)
        self.X = np.column_stack([X, np.ones(N)]) if intercept else X
        self.y = y - self.problem.engine.spec.offset
        self.sigma = self.problem.risk.weights(N)
        self.engine = self.problem.engine

    def losses(self, w):
        return self.problem.loss.value(self.y, self.X @ w)

    def slopes(self, w):
        return self.problem.loss.derivative(self.y, self.X @ w)

    def gradient(self, w, q):
        return self.X.T @ (q * self.slopes(w)) / N

    def project(self, v):
        """The nearest point of the permutahedron of n sigma, by isotonic regression."""
        order = np.argsort(-v)
        q = np.empty(N)
        top = v[order]
        q[order] = top - isotonic_regression(top - N * np.sort(self.sigma)[::-1], increasing=False)
        return q

    def worst_case(self, w):
        q = np.empty(N)
        q[np.argsort(self.losses(w))] = N * np.sort(self.sigma)
        return q

    def prox(self, w, tau):
        w = w.copy()
        coef = w[:D]
        w[:D] = np.sign(coef) * np.maximum(np.abs(coef) - tau * self.l1, 0.0) / (1 + tau * self.l2)
        return w

    def spread(self, w):
        return self.problem.loss_scale(self.engine.point(w))


both_models = pytest.mark.parametrize(
    "plain", [Plain(penalty="elastic"), Plain(intercept=True)], ids=["elastic", "intercept"]
)


def follow(plain, solver, steps, checks, reply="gap", gaps=None):
    """Compare the iterates of a solver, and the passes it counts, with those of the formulas."""
    run = Run(plain.problem.start(), None, 1e-9, math.inf, math.inf, 0)
    iterates = solver.iterates(plain.problem, run)
    mine, theirs = next(iterates), next(steps)
    for k in range(checks):
        w, q, passes = theirs
        np.testing.assert_allclose(mine.point.w, w, rtol=1e-6, atol=1e-9, err_msg=f"check {k}")
        found = N * plain.engine.weights(mine.dual)
        np.testing.assert_allclose(found, q, rtol=1e-6, atol=1e-7, err_msg=f"check {k}")
        assert run.passes == pytest.approx(passes), k
        certificate = certify(plain.problem, mine.point, mine.dual)
        if gaps is not None:
            certificate = dataclasses.replace(certificate, gap=gaps(k))
        mine, theirs = iterates.send(certificate), steps.send(getattr(certificate, reply))
    iterates.close()


def apd_steps(plain):
    w = before = np.zeros(plain.X.shape[1])
    q, passes = plain.worst_case(w), 0
    yield w, q, passes
    tau = 1.0 / (np.sum(q[:, None] * plain.X**2) / N + plain.l2)
    passes += 2
    gamma = 1.0 / (plain.spread(w) * tau)
    last = gamma * tau
    k = 0
    while True:
        while True:
            sigma = gamma * tau
            theta = last / sigma
            ahead = (1 + theta) * plain.losses(w) - theta * plain.losses(before)
            new_q = plain.project(q + sigma * ahead)
            gradient = plain.gradient(w, new_q)
            new = plain.prox(w - tau * gradient, tau)
            passes += 1
            step, change = new - w, plain.losses(new) - plain.losses(w)
            bend = np.mean(new_q * change) - gradient @ step
            price = max(bend, 0.0) + sigma * np.mean(change**2) / 2
            if price <= step @ step / (2 * tau):
                break
            tau *= 0.5
        before, w, q, last, k = w, new, new_q, sigma, k + 1
        growth = 1.0 + plain.l2 * tau
        gamma, tau = gamma * growth, tau / math.sqrt(growth)
        if k % 10 == 0:
            yield w, q, passes


@both_models
def test_steps_of_apd(plain):
    follow(plain, APD(adaptive=False), apd_steps(plain), 9)


def pdhg_steps(plain, balance):
    given, problem, A = balance, plain.problem, plain.X
    split = plain.engine.splitting()

    def prox_risk(v, rho):
        z = split.prox(split.combine((1.0, v)), rho)
        return np.array(z), N * plain.engine.weights(split.weighting())

    w = np.zeros(A.shape[1])
    q, passes = plain.worst_case(w), 2
    yield w, q, passes
    u = plain.gradient(w, q)
    norm = np.linalg.norm(A @ u) / math.sqrt(N) / np.linalg.norm(u)
    if balance is None:
        balance = (problem.loss.curvature_bound * norm) ** 2
    s = plain.slopes(w) * q
    first_w, first_s, k, total, first, last = w, s, 0, 0, math.inf, math.inf
    while True:
        tau, sigma = 1 / (norm * math.sqrt(balance)), math.sqrt(balance) / norm
        new = plain.prox(w - tau * (A.T @ s) / N, tau)
        v = s / sigma + A @ (2 * new - w)
        z, q = prox_risk(v, sigma)
        new_s = sigma * (v - z)
        passes, total = passes + 1, total + 1
        way = new - w
        norm = max(norm, np.linalg.norm(A @ way) / math.sqrt(N) / np.linalg.norm(way))
        root = math.sqrt(balance)
        residual = math.sqrt(root * way @ way + np.mean((new_s - s) ** 2) / root)
        if total % 10 == 0:
            passes += 1
            yield new, q, passes
        first = residual if k == 0 else first
        done = residual <= 0.2 * first or last < residual <= 0.8 * first
        if k > 0 and (done or k >= 0.36 * total):
            if given is None:
                ratio = np.mean((new_s - first_s) ** 2) / np.sum((new - first_w) ** 2)
                balance = math.sqrt(ratio * balance)
            w = first_w = new
            s = first_s = new_s
            k, last = 0, math.inf
            continue
        last = residual
        w = (k + 1) / (k + 2) * (2 * new - w) + first_w / (k + 2)
        s = (k + 1) / (k + 2) * (2 * new_s - s) + first_s / (k + 2)
        k += 1


@pytest.mark.parametrize("balance", [None, 0.4])
@both_models
def test_steps_of_pdhg(balance, plain):
    follow(plain, PDHG(balance=balance), pdhg_steps(plain, balance), 6)


def admm_steps(plain, rho):
    given, A, problem = rho, plain.X, plain.problem
    split = plain.engine.splitting()
    modulus = np.where(np.arange(A.shape[1]) < D, plain.l2, 0.0)
    w = np.zeros(A.shape[1])
    q, passes = plain.worst_case(w), 2
    yield w, q, passes
    rho = problem.loss.curvature_bound if rho is None else rho
    z, s, k = A @ w, plain.slopes(w) * q, 0
    before = z, s
    while True:
        k += 1
        # argmin over w of l2/2 |w|^2 + rho/2 |X w - z + s/rho|^2, where norms have weights 1/n.
        w = np.linalg.solve(A.T @ A * rho / N + np.diag(modulus), A.T @ (rho * z - s) / N)
        v = 1.6 * A @ w - 0.6 * z + s / rho
        z = split.prox(split.combine((1.0, v)), rho)
        q, z = N * plain.engine.weights(split.weighting()), np.array(z)
        s = rho * (v - z)
        passes += 1
        if k % 10 == 0:
            passes += 1
            yield w, q, passes
            if given is None and k // 10 in (1, 2, 4, 8, 16):
                ways = np.linalg.norm(s - before[1]) / np.linalg.norm(z - before[0])
                rho, before = math.sqrt(rho * ways), (z, s)


@pytest.mark.parametrize("rho", [None, 2.5])
@pytest.mark.parametrize("intercept", [False, True])
def test_steps_of_admm(rho, intercept):
    plain = Plain(intercept=intercept)
    follow(plain, ADMM(rho=rho), admm_steps(plain, rho), 8)


def blocks_of(n_blocks, rng):
    order = rng.permutation(N)
    edges = np.linspace(0, N, n_blocks + 1).astype(int)
    return [order[a:b] for a, b in itertools.pairwise(edges)]


def drago_rate(plain, nu, blocks):
    """The least of what curvature, coupling and number of blocks suggest."""
    smooth, w = plain.engine.stochastic().smoothness(), np.zeros(plain.X.shape[1])
    curvature = smooth.average + smooth.component * blocks / N
    step = plain.gradient(w, plain.worst_case(w)) / (curvature + plain.l2)
    change = plain.losses(w - step) - plain.losses(w)
    coupling = np.mean(change**2) / (step @ step)
    return min(1 / blocks, plain.l2 / curvature, math.sqrt(plain.l2 * nu / (blocks * coupling)))


def drago_steps(plain, rate, nu, size):
    rng, given = np.random.default_rng(0), rate
    w, q, passes = np.zeros(plain.X.shape[1]), np.ones(N), 1
    n_blocks = math.ceil(N / size)
    blocks = blocks_of(n_blocks, rng)
    if rate is None:
        rate, passes = drago_rate(plain, nu, n_blocks), passes + 1
    best, idle = ((yield w, q, passes), w, q), 0

    def tables():
        slopes = q * plain.slopes(w) / N
        return plain.losses(w), slopes, slopes

    L, G, G_before = tables()
    while True:
        b = 1.0 / (rate * (1 + rate))
        for k, (i, j) in enumerate(rng.integers(n_blocks, size=(n_blocks, 2))):
            rows_i, rows_j, rows_k = blocks[i], blocks[j], blocks[k]
            change = plain.X[rows_i].T @ (q * plain.slopes(w) / N - G_before)[rows_i]
            gradient = plain.X.T @ G + n_blocks / (1 + rate) * change
            # g(w) + gradient.w + l2 b/2 |w - w_prev|^2 is least at a proximal step.
            w = plain.prox(w - gradient / (plain.l2 * b), 1 / (plain.l2 * b))
            now, renewed = plain.losses(w), L.copy()
            renewed[rows_k] = now[rows_k]
            target = renewed.copy()
            target[rows_j] += n_blocks / (1 + rate) * (now - L)[rows_j]
            # target.q - nu/2 |q - 1|^2 - nu b/2 |q - q_prev|^2 is largest at a projection.
            q = plain.project((target / nu + 1.0 + b * q) / (1 + b))
            L, G_before, G = renewed, G, G.copy()
            G[rows_k] = (q * plain.slopes(w) / N)[rows_k]
            passes += 3.0 / n_blocks
        gap = yield w, q, passes
        idle = 0 if gap < best[0] else idle + 1
        best = min(best, (gap, w, q), key=lambda found: found[0])
        if given is None and idle > 100:
            rate, idle = rate / 2, 0
            _, w, q = best
            L, G, G_before = tables()
            passes += 1


@pytest.mark.parametrize("rate", [None, 0.05])
@both_models
def test_steps_of_drago(rate, plain):
    steps = drago_steps(plain, rate, 0.5, 6)
    follow(plain, Drago(rate=rate, nu=0.5, block_size=6), steps, 12)


def test_a_rate_that_fails_is_halved():
    """After a hundred cycles without a lower gap, from the best iterate."""
    plain = Plain()
    nu = 1e-3 * plain.spread(np.zeros(D))
    steps = drago_steps(plain, None, nu, N // D)
    follow(plain, Drago(), steps, 120, gaps=lambda k: 1.0 if k == 3 else 2.1)


def test_a_rate_that_was_given_and_diverges_ends_the_run():
    with np.errstate(all="ignore"), pytest.warns(sorel.ConvergenceWarning):
        result = sorel.solve(Plain().problem, Drago(rate=1e9, nu=0.5), tol=1e-9, random_state=0)
    assert "lower rate=1e+09" in result.status


def stochastic_steps(plain, size):
    """Steps of constant length, and the means of all rounds."""
    rng, n_blocks = np.random.default_rng(0), math.ceil(N / size)
    smooth = plain.engine.stochastic().smoothness()
    w = before = np.zeros(plain.X.shape[1])
    q, passes = plain.worst_case(w), 1
    yield w, q, passes
    blocks = blocks_of(n_blocks, rng)
    curvature = smooth.average + n_blocks / N * smooth.component + plain.l2
    gamma = curvature / plain.spread(w)
    value = np.sort(plain.losses(w)) @ np.sort(plain.sigma)
    coupling = gamma * n_blocks * plain.engine.stochastic().jacobian_bound(value)
    tau = max(np.roots([coupling, curvature, -1.0]))
    ws, qs = [], []
    while True:
        l_snap, g_snap = plain.losses(w), q * plain.slopes(w)
        full = plain.X.T @ g_snap / N
        for i, j in rng.integers(n_blocks, size=(n_blocks, 2)):
            rows_i, rows_j = blocks[i], blocks[j]
            target = l_snap.copy()
            ahead = 2 * plain.losses(w) - plain.losses(before)
            target[rows_j] += n_blocks * (ahead - l_snap)[rows_j]
            q = plain.project(q + gamma * tau * target)
            change = plain.X[rows_i].T @ (q * plain.slopes(w) - g_snap)[rows_i] / N
            before, w = w, plain.prox(w - tau * (full + n_blocks * change), tau)
        ws.append(w)
        qs.append(q)
        passes += 4
        yield np.mean(ws, axis=0), np.mean(qs, axis=0), passes


@both_models
def test_steps_of_stochastic_pd(plain):
    solver = StochasticPD(adaptive=False, batch_size=7)
    follow(plain, solver, stochastic_steps(plain, 7), 12)


def subgradient_steps(plain, step_size=None):
    """Polyak's step for a value a little below the best one."""
    w, best, bound, delta = np.zeros(D), math.inf, -math.inf, math.inf
    mean, stuck, promised, lowest = None, 0, math.inf, None
    for k in itertools.count():
        q = plain.worst_case(w)
        value = np.mean(q * plain.losses(w)) + 0.5 * plain.l2 * w @ w
        mean = q if mean is None else mean + max(0.1, 2 / (k + 2)) * (q - mean)
        if value < best:
            best, lowest = value, w
        if k % 5 == 0:
            bound = max(bound, (yield lowest, mean, k + 1))
            delta = min(delta, best - bound)
        if k == 0:
            promised = best
        elif best <= promised - 0.5 * delta:
            promised, stuck, delta = best, 0, min(2 * delta, best - bound)
        elif stuck == 4:
            promised, stuck, delta = best, 0, delta / 2
        else:
            stuck += 1
        slope = plain.gradient(w, q) + plain.l2 * w
        step = (value - best + delta) / (slope @ slope) if step_size is None else step_size
        w = w - step * slope


@pytest.mark.parametrize("step_size", [None, 0.05])
def test_steps_of_the_subgradient_method(step_size):
    plain = Plain()
    # Its steps go by the bound, not by the gap.
    follow(plain, Subgradient(step_size), subgradient_steps(plain, step_size), 9, reply="dual")


@pytest.mark.parametrize("solver", ["apd", "pdhg", "admm", "drago", "stochastic_pd"])
def test_an_x_of_zeros_has_some_norm(solver):
    problem = sorel.Problem(np.zeros((4, 2)), np.arange(4.0), risk="cvar:0.5")
    assert sorel.solve(problem, solver, random_state=0).converged
