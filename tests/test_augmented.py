"""The outer loop of the second-order methods."""

import numpy as np
import pytest

import sorel
from sorel import L2, CVaR, Extremile
from sorel.losses import Huber
from sorel.solvers.constant_optimum import losses_are_equal
from sorel.solvers.state import State


def far_problem(kind, seed=0):
    """Problems whose first steps lead far, or whose derivatives say little of where to."""
    rng = np.random.default_rng(seed)
    if kind == "losses of 1e17 after the first step, 1e3 at the end":
        rng = np.random.default_rng(3)
        X = rng.standard_normal((28, 8)) * 10.0 ** np.linspace(-6, 6, 8)
        return {"X": X, "y": np.full(28, 1e3), "loss": "linear", "penalty": L2(1e-7)}
    if kind.startswith("far targets"):
        X = np.c_[rng.standard_normal((40, 2)), np.ones(40)]
        y = 1e5 + 1e4 * (X[:, 0] + rng.standard_normal(40))
        return {"X": X, "y": y, "loss": Huber(0.03), "penalty": L2(1e-6)}
    if kind.startswith("foot"):
        # The intercept alone decides, and the derivatives beside its best value are 1 and 1e8.
        X, y = 1e7 * rng.standard_normal((20, 1)), 1.0 + rng.poisson(3.0, 20)
        options = {"loss": kind.split()[-1], "penalty": sorel.Simplex(1e-3)}
        return {"X": X, "y": y, "fit_intercept": True, **options}
    if kind.startswith("columns of 100"):
        X = np.c_[rng.standard_normal(40), 100.0 + rng.standard_normal(40), np.ones(40)]
        return {"X": X, "y": np.exp(X[:, 0]), "loss": kind.split()[-1], "penalty": L2(1e-6)}
    # Margins of about 30 balance l2; most steps lead far beyond.
    X = 1e7 * rng.standard_normal((2, 8))
    return {"X": X, "y": [-1, 1], "loss": "logistic", "penalty": sorel.Simplex(1e-3)}


@pytest.mark.parametrize("kind", [
    "losses of 1e17 after the first step, 1e3 at the end",
    "far targets of a loss that is all but linear",
    "columns of 100 under poisson",
    "columns of 100 under gamma",
    "foot of an exponential of poisson",
    "foot of an exponential of gamma",
    "separable labels, margins of thousands",
])  # fmt: skip
@pytest.mark.parametrize("risk", [sorel.Max(), CVaR(0.1), CVaR(0.3)], ids=repr)
def test_steps_reach_far_and_end(kind, risk):
    if "1e17" in kind and risk != CVaR(0.1):
        return  # rounding may leave more than the tolerance
    for seed in range(3):
        problem = sorel.Problem(**far_problem(kind, seed), risk=risk)
        result = sorel.solve(problem, "newton", max_passes=300)
        assert result.converged, result.status


@pytest.mark.parametrize(
    "penalty", [sorel.ElasticNet(1e-6, 0.01), sorel.Box(1e-6, -5.0, 1e6), sorel.NonNegative(1e-6)]
)
def test_long_steps_stay_in_the_domain(penalty):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((30, 4))
    y = 1e5 * (X[:, 0] - X[:, 1]) + 1e3 * rng.standard_normal(30)
    result = sorel.solve(sorel.Problem(X, y, risk="esrm:2", loss=Huber(0.1), penalty=penalty))
    assert result.converged, result.status
    assert np.isfinite(penalty.value(result.w))


@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_the_state_is_the_envelope_and_its_gradient(eta):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    problem = sorel.Problem(X, X @ np.ones(3) + rng.normal(size=30), risk=sorel.ESRM(2.0)).for_run()
    engine, w, h = problem.engine, rng.normal(size=3), 1e-6
    center = engine.worst_case(engine.point(np.zeros(3)))

    def value(u):
        return State(problem, engine.point(u), center, eta).value

    state = State(problem, engine.point(w), center, eta)
    gradient = state.slope
    for j in range(3):
        move = h * np.eye(3)[j]
        assert gradient[j] == pytest.approx((value(w + move) - value(w - move)) / (2 * h), rel=1e-6)
    assert state.gained >= 0.0


def noisy_labels(n, d, classes=2, seed=0):
    """Labels of which X tells little: for the tail of the losses, no model is better than none."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    scores = 0.3 * X @ rng.standard_normal((d, classes)) + rng.gumbel(size=(n, classes))
    return X, np.argmax(scores, axis=1)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", ["newton", "newton_cg", "auto"])
@pytest.mark.parametrize(("penalty", "loss", "risk", "weight"), [
    (L2(0.005), "logistic", CVaR(0.1), None),
    (L2(0.005), "logistic", CVaR(0.1), np.linspace(0.5, 2.0, 200)),
    (L2(0.005), "logistic", Extremile(2.5), None),
    (L2(0.005), "squared_hinge", CVaR(0.1), None),
    (L2(0.005), "multinomial", CVaR(0.1), None),
    (sorel.NonNegative(0.005), "logistic", CVaR(0.1), None),
    (sorel.Box(0.005, -0.2, 0.2), "multinomial", CVaR(0.1), None),
    (sorel.ElasticNet(0.005, 0.01), "logistic", CVaR(0.1), None),
], ids=lambda value: "weighted" if isinstance(value, np.ndarray) else str(value))  # fmt: skip
def test_the_start_is_seen_to_be_the_solution(solver, penalty, loss, risk, weight, intercept):
    if solver == "newton_cg" and not penalty.quadratic:
        return
    X, y = noisy_labels(200, 6, classes=3 if loss == "multinomial" else 2)
    options = {"fit_intercept": intercept, "sample_weight": weight}
    problem = sorel.Problem(X, y, risk=risk, loss=loss, penalty=penalty, **options)
    result = sorel.solve(problem, solver, tol=1e-8)
    assert not np.any(result.w)
    # All losses are equal there, and the weights balance their slopes: the proof, from outside.
    assert problem.certificate(result.w, result.weights).relative_gap <= 1e-8


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
@pytest.mark.parametrize("solver", ["newton", "newton_cg", "auto"])
def test_equal_losses_are_left_where_a_model_is_better(loss, solver):
    X, y = noisy_labels(200, 40, classes=3 if loss == "multinomial" else 2)
    for alpha in np.linspace(0.25, 0.45, 5):
        problem = sorel.Problem(X, y, risk=CVaR(alpha), loss=loss)
        result = sorel.solve(problem, solver, tol=1e-8)
        assert result.objective <= problem.objective(np.zeros_like(result.w)) * (1.0 + 1e-12)
        assert problem.certificate(result.w, result.weights).relative_gap <= 1e-8


def equal(problem, w):
    engine = problem.engine
    return losses_are_equal(State(problem, engine.point(np.array(w)), engine.uniform(), 0.0))


def test_losses_are_equal_at_zero_alone():
    problem = sorel.Problem(np.eye(3), [1, 1, 0], risk=CVaR(0.5), loss="squared_hinge")
    assert equal(problem, [0.0, 0.0, 0.0])
    assert not equal(problem, [0.1, 0.0, 0.0])
    # Weights that stay put have nothing to balance, and other targets are equal by chance.
    assert not equal(problem.with_risk("mean"), [0.0, 0.0, 0.0])
    assert not equal(sorel.Problem(np.ones((3, 1)), np.ones(3), risk=CVaR(0.5)), [0.0])
