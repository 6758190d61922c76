"""Small problems and helpers for the tests of the first-order solvers."""

import numpy as np
from helpers import quietly

import sorel
from sorel.engines.base import Plan

RNG = np.random.default_rng(7)
N, D = 40, 3
X = RNG.standard_normal((N, D))
Y = X @ [1.0, -2.0, 0.5] + RNG.standard_t(3, N)
LABELS = np.where(0.3 * RNG.standard_normal(N) < Y, 1, 0)
THREE = np.digitize(Y + 0.5 * RNG.standard_normal(N), [-1.0, 1.0])
WEIGHTS = RNG.integers(1, 4, N).astype(float)
PENALTIES = [
    sorel.L2(0.1), sorel.ElasticNet(0.1, 0.2), sorel.NonNegative(0.1),
    sorel.Box(0.1, -0.3, [0.2, 0.5, 0.4]), sorel.Simplex(0.1),
]  # fmt: skip


def make(loss="squared", risk=None, penalty=None, data=None, **options):
    targets = {"logistic": LABELS, "squared_hinge": LABELS, "multinomial": THREE}.get(loss, Y)
    matrix = X if data is None else data
    return sorel.Problem(
        matrix, targets, risk=sorel.ESRM(2.0) if risk is None else risk, loss=loss,
        penalty=sorel.L2(0.1) if penalty is None else penalty, **options,
    )  # fmt: skip


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
