"""Steps from gradients alone: the recursion against matrices, the answers against Newton's."""

from __future__ import annotations

import numpy as np
import pytest

import sorel
from sorel.certificate import certify
from sorel.kernels import vectors
from sorel.solvers import auto as auto_module
from sorel.solvers.augmented import CostlyError
from sorel.solvers.base import Run
from sorel.solvers.quasi_newton import QuasiNewton


def updated(inverse, step, change):
    """The BFGS update of an inverse Hessian, as the textbook has it."""
    bend = step @ change
    left = np.eye(len(step)) - np.outer(step, change) / bend
    return left @ inverse @ left.T + np.outer(step, step) / bend


@pytest.mark.parametrize("count", [0, 1, 3, 4])
@pytest.mark.parametrize("first", [0, 2])
def test_the_recursion_is_that_of_bfgs_from_a_scaled_diagonal(count, first):
    rng = np.random.default_rng(count)
    room, size = 4, 6
    A = rng.standard_normal((size, size))
    hessian = A @ A.T + np.eye(size)
    steps, diagonal = rng.standard_normal((room, size)), rng.uniform(1.0, 2.0, size)
    changes = steps @ hessian
    bends = np.einsum("ij,ij->i", steps, changes)
    order = [(first + k) % room for k in range(count)]
    inverse = np.diag(1.0 / diagonal)
    if count:
        last = order[-1]
        inverse *= bends[last] / (changes[last] ** 2 / diagonal).sum()
    for k in order:
        inverse = updated(inverse, steps[k], changes[k])
    v = rng.standard_normal(size)
    out = v.copy()
    vectors.quasi_newton_product(steps, changes, bends, first, count, diagonal, out)
    np.testing.assert_allclose(out, inverse @ v, rtol=1e-11)


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
@pytest.mark.parametrize("risk", ["mean", "esrm:2", "extremile:2"])
def test_certified_answers_are_those_of_newton(loss, risk):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 10)) * np.logspace(0, 1, 10)
    z = X @ rng.standard_normal(10) / 20.0
    y = z + rng.standard_normal(400)
    if loss != "squared":
        y = rng.poisson(np.exp(z)) if loss == "poisson" else np.where(y > 0.0, 1.0, -1.0)
    problem = sorel.Problem(X, y, risk=risk, loss=loss, fit_intercept=True)
    quick, newton = sorel.solve(problem, QuasiNewton()), sorel.solve(problem, "newton", tol=1e-9)
    assert quick.converged, quick.status
    assert newton.dual <= quick.objective <= newton.objective * (1.0 + 1.1e-6)
    assert problem.certificate(quick.w, quick.weights).relative_gap <= 1e-6


def test_several_classes_have_gradients_too():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 5)), rng.integers(0, 3, 300)
    problem = sorel.Problem(X, y, risk="esrm:1", loss="multinomial", fit_intercept=True)
    assert sorel.solve(problem, QuasiNewton()).converged


def test_other_penalties_are_refused_by_name():
    problem = sorel.Problem(np.eye(3), [1.0, 2.0, 3.0], penalty=sorel.NonNegative(0.1))
    with pytest.raises(sorel.solvers.UnsupportedProblemError, match="L2, got NonNegative"):
        sorel.solve(problem, QuasiNewton())


class Impatient(QuasiNewton):
    def most_steps(self, problem):
        return 30.0


def test_a_slow_pace_is_noticed_before_the_steps_are_spent():
    """Directions of the same size in all columns and a condition of 1e6: gradients tell little."""
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((60, 60)))
    X = rng.standard_normal((500, 60)) @ (rotation * np.logspace(0, -3, 60)) @ rotation.T
    y = X @ rng.standard_normal(60) + 0.1 * rng.standard_normal(500)
    problem = sorel.Problem(X, y, risk="esrm:2", penalty=sorel.L2(1e-8)).for_run()
    run = Run(problem.start(), None, 1e-6, 1000, np.inf, 0)
    with pytest.raises(CostlyError):
        for _ in Impatient().iterates(problem, run):
            pass
    assert run.passes <= 32.0


def wide(n, d, condition, seed=0):
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
    scale = np.logspace(0.0, -0.5 * np.log10(condition), d)
    X = rng.standard_normal((n, d)) @ (rotation * scale) @ rotation.T
    return X, X @ rng.standard_normal(d) + rng.standard_normal(n)


@pytest.mark.parametrize(
    ("risk", "loss", "smooth"),
    [
        ("mean", "logistic", True),
        ("esrm:2", "squared", True),
        ("extremile:2", "huber", True),
        ("extremile:2", "logistic", True),
        ("cvar:0.5", "squared", False),
        ("esrm:10", "logistic", False),
    ],
)
def test_auto_begins_with_gradients_where_the_risk_is_smooth(risk, loss, smooth):
    X, y = wide(900, 300, 1.0)
    y = np.where(y > 0.0, 1.0, -1.0) if loss == "logistic" else y
    result = sorel.solve(sorel.Problem(X, y, risk=risk, loss=loss))
    assert result.converged
    assert ("quasi_newton" in result.status) == smooth


def test_auto_turns_to_a_matrix_where_gradients_lead_nowhere():
    X, y = wide(900, 300, 1e4)
    result = sorel.solve(sorel.Problem(X, y, risk="esrm:2"))
    assert result.converged
    assert "auto (quasi_newton then newton)" in result.status


def test_affine_losses_have_nothing_but_kinks():
    X, y = wide(900, 300, 1.0)
    problem = sorel.Problem(X, y, risk="esrm:2", loss="linear", penalty=sorel.L2(0.1))
    result = sorel.solve(problem)
    assert result.converged
    assert "quasi_newton" not in result.status


def test_a_sample_of_the_rows_does_not_move_a_start_that_is_as_good():
    """Labels that no column explains: the answer for some of the rows is chance."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((90_000, 2)), rng.integers(0, 2, 90_000)
    problem = sorel.Problem(X, y, risk="cvar:0.2", loss="logistic").for_run()
    run = Run(problem.start(), None, 1e-6, 1000, np.inf, 0)
    sorel.solvers.Auto()._start_from_part(problem, run, sorel.solvers.Newton())
    assert run.passes > 0.0
    assert not np.any(run.w)
    assert not run.near


def test_newton_shares_a_matrix_from_a_warm_start_too(monkeypatch):
    X, y = wide(900, 200, 1e3)
    problem = sorel.Problem(X, y, risk="esrm:2")
    rough = sorel.solve(problem, "lbfgs", tol=1e-2)
    count = 0
    original = type(problem.engine).hessian

    def counted(self, *args, **kwargs):
        nonlocal count
        count += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(problem.engine), "hessian", counted)
    result = sorel.solve(problem, "newton", warm_start=rough)
    assert result.converged
    assert count <= 2


def test_certificates_use_the_pairs_and_leave_none_behind(monkeypatch):
    monkeypatch.setattr("sorel.certificate.Certifier._matrix_cost", lambda self: np.inf)
    X, y = wide(900, 200, 1e2)
    problem = sorel.Problem(X, y, risk="esrm:2").for_run()
    run = Run(problem.start(), None, 1e-6, 1000, np.inf, 0)
    iterates = QuasiNewton().iterates(problem, run)
    iterate = next(iterates)
    while not iterate.refine > 0.0:
        iterate = iterates.send(certify(problem, iterate.point, iterate.dual))
    inverse = run.known.approximate_inverse
    assert inverse is not None
    vector = np.random.default_rng(1).standard_normal(200)
    assert vector @ inverse(vector) > 0.0
    options = {"gradient": iterate.gradient, "refine": iterate.refine, "path": iterate.path}
    helped = certify(problem, iterate.point, iterate.dual, known=run.known, **options)
    iterates.close()
    assert run.known.approximate_inverse is None
    alone = certify(problem, iterate.point, iterate.dual, **options)
    optimum = sorel.solve(problem, "newton", tol=1e-10).objective
    # How far they come before they see that they will not do depends on the last digits.
    assert 0.0 < helped.passes < alone.passes
    assert max(helped.dual, alone.dual) <= optimum * (1.0 + 1e-12)
    assert helped.relative_gap <= 1e-3


@pytest.mark.parametrize(("risk", "afresh"), [("esrm:2", True), ("mean", False)])
def test_products_start_afresh_where_weights_move(risk, afresh, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 300)) * np.geomspace(1.0, 1e-2, 300)
    y = X @ rng.standard_normal(300) + rng.standard_t(4, 200)
    problem = sorel.Problem(X, y, risk=risk)
    starts = []
    original = sorel.solvers.NewtonCG.iterates

    def noted(self, problem, run):
        starts.append(run.w)
        return original(self, problem, run)

    def refuse(self, state, run, caution):
        if state.value < first:
            raise CostlyError
        return direction(self, state, run, caution)

    first, direction = problem.objective(np.zeros(300)), QuasiNewton.direction
    monkeypatch.setattr(sorel.solvers.NewtonCG, "iterates", noted)
    monkeypatch.setattr(QuasiNewton, "direction", refuse)
    auto = sorel.solvers.Auto()
    order = [auto_module._Quick, sorel.solvers.NewtonCG]
    monkeypatch.setattr(auto, "_order", lambda problem: order)
    result = sorel.solve(problem, auto)
    assert result.converged
    assert "quasi_newton then newton_cg" in result.status
    assert bool(np.any(starts[0])) != afresh


@pytest.mark.parametrize(("loss", "first"), [("huber", "_Thrifty"), ("squared", "Newton")])
def test_rows_that_tie_count_in_the_choice_of_products(loss, first):
    """The tail is 80 rows, and its risk is least where about as many tie as there are columns."""
    X, y = wide(400, 300, 1e2)
    problem = sorel.Problem(X, y, risk="cvar:0.2", loss=loss)
    assert auto_module.Auto()._order(problem)[0].__name__ == first
    smooth = problem.with_risk("esrm:2")
    few = auto_module.carrying_rows(smooth.engine)
    plain = auto_module.StepCosts(smooth.engine, few).products()
    assert auto_module._products_of_matrix(smooth) == plain
    assert sorel.solve(problem).converged


def long_enough(loss, seed=0):
    """Data of more than four megabytes."""
    X, y = wide(1100, 500, 1.0, seed)
    return X, np.where(y > 0.0, 1.0, -1.0) if loss == "logistic" else y


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_steps_from_gradients_lead_to_a_certificate_on_long_data(loss, order):
    X, y = long_enough(loss)
    problem = sorel.Problem(np.asarray(X, order=order), y, risk="esrm:2", loss=loss)
    result = sorel.solve(problem)
    assert "auto (quasi_newton)" in result.status
    certificate = problem.certificate(result.w, result.weights)
    best = sorel.solve(problem, "newton", tol=1e-9)
    assert result.dual <= best.objective * (1.0 + 1e-12)
    assert result.objective == pytest.approx(certificate.primal, rel=1e-12)
    assert result.objective - best.dual <= 1e-6 * best.objective


def test_every_check_bounds_the_optimum_on_long_data():
    X, y = long_enough("squared", seed=1)
    problem = sorel.Problem(X, y, risk="esrm:2")
    seen = []
    result = sorel.solve(problem, callback=lambda record: seen.append(record) and False)
    assert result.converged
    assert len(seen) > 5
    best = sorel.solve(problem, "newton", tol=1e-9)
    assert all(record.dual <= best.objective * (1.0 + 1e-12) for record in seen)
    assert all(record.objective >= best.dual for record in seen)


def test_columns_that_agree_in_five_digits_on_long_data():
    """Margins are differences of numbers that agree in five digits."""
    X, y = long_enough("squared", seed=2)
    X[:, 1:] += 1e5 * np.abs(X[:, :1])
    problem = sorel.Problem(X, y, risk="esrm:2", penalty=sorel.L2(1e-3))
    result = sorel.solve(problem, tol=1e-5)
    assert result.converged
    assert result.objective <= problem.objective(np.zeros(500))


def test_a_solution_at_rest_stays_at_rest_on_long_data():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((600, 900)) * 1e-9
    y = np.where(rng.random(600) < 0.5, 1.0, -1.0)
    problem = sorel.Problem(X, y, risk="esrm:2", loss="logistic", penalty=sorel.L2(1.0))
    result = sorel.solve(problem)
    assert result.converged
    assert not result.w.any()


def test_gradients_that_lead_nowhere_are_found_out_on_long_data():
    X, y = wide(1800, 300, 1e4)
    result = sorel.solve(sorel.Problem(X, y, risk="esrm:2"))
    assert result.converged
    assert "auto (quasi_newton then newton)" in result.status


@pytest.mark.parametrize(("n", "d", "by_products"), [(247, 824, True), (900, 188, False)])
def test_rows_of_little_weight_count_in_a_system_of_the_rows(n, d, by_products):
    """An extremile gives some weight to every row, and every row then has a curvature."""
    X, y = wide(n, d, 10.0)
    # So small that none has left the middle of the loss at the start.
    problem = sorel.Problem(X, 1e-3 * y, risk="extremile:2.5", loss="huber")
    curvature = problem.engine.curvature(
        problem.engine.point(np.zeros(d)), problem.engine.worst_case(problem.engine.point(X[0]))
    )
    assert curvature.share == 1.0
    assert auto_module.carrying_rows(problem.engine) < 0.8 * n
    order = [solver.__name__ for solver in auto_module.Auto()._order(problem)]
    assert ("_Thrifty" in order) == by_products
    assert sorel.solve(problem).converged
