"""The certificate against a conic solver and brute force; what a problem accepts and refuses."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from helpers import CASES, PENALTIES, RISKS, brute_losses, brute_objective, conic_optimum, make_data

import sorel
from sorel import L2, CVaR, Problem
from sorel.certificate import Certifier, certify

by_case = pytest.mark.parametrize("case", CASES, ids=str)
X = np.random.default_rng(0).normal(size=(6, 2))
Y = np.array([1.0, -0.5, 0.3, 2.0, 0.0, -1.0])
LABELS = np.array([0, 1, 1, 0, 1, 0])


def weightings(problem, w, rng):
    """Weightings of all kinds in the dual set: plain, worst case, random, and mixtures."""
    engine, n = problem.engine, problem.n_samples
    omega = np.full(n, 1.0 / n) if problem.sample_weight is None else problem.sample_weight
    worst = engine.weights(engine.worst_case(engine.point(w)))
    z = rng.normal(size=n) / n
    random = sorel.project_permutahedron(z, problem.risk, problem.sample_weight)
    return [omega, worst, random, 0.5 * (worst + random)]


def random_feasible(problem, rng, size):
    w = size * rng.normal(size=problem.engine.shape)
    w[: problem.n_features] = problem.penalty.project(w[: problem.n_features])
    return w


# The objective and the certificate.


@by_case
def test_objective_by_sorting(case):
    problem, rng = case.problem(), np.random.default_rng(1)
    given = case.arguments()
    for size in (0.0, 1.0, 30.0):
        w = random_feasible(problem, rng, size)
        losses = brute_losses(case.loss, given["X"], given["y"], w, case.intercept)
        np.testing.assert_allclose(problem.losses(w), losses, rtol=1e-10, atol=1e-12)
        assert problem.objective(w) == pytest.approx(brute_objective(case, w), rel=1e-11)


@by_case
def test_certificate_is_rigorous_and_tight_at_the_optimum(case):
    problem, rng = case.problem(), np.random.default_rng(2)
    engine, optimum = problem.engine, conic_optimum(case)
    starts = [random_feasible(problem, rng, size) for size in (0.0, 0.1, 1.0, 20.0)]
    # On the way to the optimum, and next to it, where the brackets are small.
    starts += [optimum.w + t * (starts[2] - optimum.w) for t in (0.1, 1e-3, 1e-6)]
    for w in starts:
        for lam in weightings(problem, w, rng):
            found = problem.certificate(w, lam)
            rounding = 1e-12 * max(1.0, found.primal)
            assert found.primal == pytest.approx(problem.objective(w), rel=1e-13)
            assert found.gap >= max(found.primal - optimum.value - rounding, -1e-14 * found.primal)
            assert found.dual == pytest.approx(found.primal - found.gap, abs=1e-12 * found.primal)
            assert found.relative_gap == pytest.approx(found.gap / found.primal, rel=1e-12)
            # The plain sum of the two brackets, without the Newton step that tightens it.
            point, dual = engine.point(w), engine.nearest_dual(lam)[0]
            plain = certify(problem, point, dual)
            assert plain.gap >= plain.primal - optimum.value - rounding
            refined = certify(problem, point, dual, refine=np.inf)
            assert refined.gap <= plain.gap * (1 + 1e-12)
    lam = sorel.project_permutahedron(optimum.lam, problem.risk, problem.sample_weight)
    np.testing.assert_allclose(lam, optimum.lam, atol=1e-6)
    assert problem.certificate(optimum.w, lam).relative_gap <= 1e-6


@pytest.mark.parametrize("case", [case for case in CASES if case.penalty == "l2"], ids=str)
def test_certificate_by_conjugate_gradients(case, monkeypatch):
    problem, rng = case.problem(), np.random.default_rng(4)
    optimum = conic_optimum(case)
    for size in (1.0, 0.1, 1e-3):
        w = optimum.w + size * rng.normal(size=problem.engine.shape)
        for lam in weightings(problem, w, rng):
            by_matrix = problem.certificate(w, lam)
            assert by_matrix.passes == 0.0
            with monkeypatch.context() as patch:
                patch.setattr(Certifier, "_matrix_cost", lambda self: np.inf)
                found = problem.certificate(w, lam)
            assert found.primal == pytest.approx(by_matrix.primal, rel=1e-13)
            assert found.gap >= found.primal - optimum.value * (1 + 1e-8) - 1e-9
            # Where the Newton steps from the matrix bound the optimum well, these do as well.
            if by_matrix.relative_gap < 0.4:
                assert found.gap <= 1.01 * by_matrix.gap + 1e-9


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "multinomial"])
@pytest.mark.parametrize("risk", ["max", "cvar"])
def test_intercept_is_certified_when_one_class_holds_all_weight(loss, risk):
    problem = Problem(X, LABELS, risk=RISKS[risk], loss=loss, penalty=L2(0.1), fit_intercept=True)
    best = sorel.solve(problem, solver="newton", tol=1e-10).objective
    rng = np.random.default_rng(0)
    for label in (0, 1):
        lam = sorel.project_permutahedron(np.where(label == LABELS, 1 / 3, 0.0), problem.risk)
        assert lam[label != LABELS].sum() == 0.0
        for _ in range(4):
            found = problem.certificate(rng.normal(size=problem.engine.shape), lam)
            assert np.isfinite(found.gap)
            assert found.dual <= best * (1 + 1e-12)
            assert found.dual >= 0.0  # losses and penalty are nonnegative: a bound for free


@pytest.mark.parametrize("seed", [0, 1, 2, 5, 7])
@pytest.mark.filterwarnings("ignore::sorel.ConvergenceWarning")  # cut short on purpose
def test_certificate_where_the_curvature_almost_vanishes(seed):
    """Huber's linear part leaves the intercept next to no curvature: a Newton step goes far."""
    data, y = make_data("squared", 60, 3, seed)
    options = {"loss": "huber", "penalty": sorel.Box(1.0, -0.1, 0.1), "fit_intercept": True}
    problem = Problem(data, 3.0 * y, risk=sorel.ESRM(100.0), **options)
    result = sorel.solve(problem, solver="newton", tol=1e-9, max_passes=300)
    for shift in (0.0, 1e-3, 0.1, 1.0):
        w = result.w + np.array([0.0, 0.0, 0.0, shift])
        for lam in (result.weights, *weightings(problem, w, np.random.default_rng(seed))):
            found = problem.certificate(w, lam)
            excess = max(0.0, found.primal - result.objective)
            assert found.gap >= excess - 1e-12 * found.primal


def test_bounds_with_a_closed_form():
    # The coefficients are right; only the intercept is off, and no penalty sees it.
    options = {"risk": sorel.Mean(), "penalty": L2(1.0), "fit_intercept": True}
    problem = Problem(np.zeros((4, 1)), [1.0, 1.0, 3.0, 3.0], **options)
    found = problem.certificate([0.0, 7.0], np.full(4, 0.25))
    assert (found.primal, found.gap, found.dual) == pytest.approx((13.0, 12.5, 0.5), rel=1e-12)
    # For the squared loss the bound of a weighting is its weighted ridge solution.
    rng = np.random.default_rng(4)
    for d, rel in ((3, 1e-11), (400, 1e-6)):
        data, y = rng.normal(size=(20, d)), rng.normal(size=20)
        problem = Problem(data, y, risk=sorel.ESRM(2.0), penalty=L2(0.05))
        lam = sorel.project_permutahedron(rng.uniform(0, 0.1, 20), problem.risk)
        A = data.T @ (lam[:, None] * data) + 0.05 * np.eye(d)
        u = np.linalg.solve(A, data.T @ (lam * y))
        exact = lam @ (0.5 * (data @ u - y) ** 2) + 0.025 * u @ u
        assert problem.certificate(rng.normal(size=d), lam).dual == pytest.approx(exact, rel=rel)


# Sample weights.


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("intercept", [False, True])
def test_weight_two_is_the_row_twice(risk, loss, intercept):
    n, (data, y) = 9, make_data(loss, 9, 2, 5)
    repeats = np.array([1, 2, 1, 3, 0, 1, 2, 1, 1])
    rows = np.repeat(np.arange(n), repeats)
    options = {"risk": RISKS[risk], "loss": loss, "penalty": L2(0.1), "fit_intercept": intercept}
    weighted = Problem(data, y, sample_weight=2.5 * repeats, **options)
    twice = Problem(data[rows], y[rows], **options)
    rng = np.random.default_rng(5)
    w = rng.normal(size=weighted.engine.shape)
    assert weighted.objective(w) == pytest.approx(twice.objective(w), rel=1e-12)
    spread = sorel.project_permutahedron(rng.normal(size=n)[rows] / n, RISKS[risk])
    found = weighted.certificate(w, np.bincount(rows, spread, minlength=n))
    assert found.gap == pytest.approx(twice.certificate(w, spread).gap, rel=1e-9)
    first, second = (sorel.solve(p, solver="newton", tol=1e-11) for p in (weighted, twice))
    assert first.objective == pytest.approx(second.objective, rel=2e-11)
    assert first.weights[4] == 0.0


# What a problem accepts.


def test_default_penalty_and_risk():
    problem = Problem(X, Y)
    assert problem.penalty == L2(1 / 6)
    assert problem.risk == CVaR(0.5)
    assert Problem(X, Y, risk="esrm:2").risk == sorel.ESRM(2.0)
    assert (problem.n_samples, problem.n_features) == (6, 2)


def test_pandas_is_accepted():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}, index=list("uvwxyz"))
    weight = pd.Series(np.arange(1.0, 7.0), index=frame.index)
    w = [0.2, 0.7]
    found = Problem(frame, pd.Series(Y, index=frame.index), sample_weight=weight).objective(w)
    assert found == pytest.approx(Problem(X, Y, sample_weight=np.arange(1, 7)).objective(w))
    labels = pd.Series(["yes" if label else "no" for label in LABELS], index=frame.index)
    expected = Problem(X, LABELS, loss="logistic").objective(w)
    for y in (labels, labels.astype("category"), labels.astype(object)):
        problem = Problem(frame, y, loss="logistic")
        assert list(problem.classes) == ["no", "yes"]
        assert problem.objective(w) == pytest.approx(expected)


def test_inputs_are_never_changed():
    weight = np.arange(6.0)
    lam = sorel.project_permutahedron(np.full(6, 1 / 6), CVaR(0.9), weight)
    arrays = [X.copy(), Y.copy(), weight, np.array([0.1, 0.2]), lam]
    kept = [array.copy() for array in arrays]
    for writeable in (True, False):
        for array in arrays:
            array.flags.writeable = writeable
        data, y, weight, w, lam = arrays
        problem = Problem(data, y, sample_weight=weight, risk=CVaR(0.9))
        problem.losses(w)[:] = -1.0  # belongs to the caller
        np.testing.assert_allclose(problem.losses(w), 0.5 * (X @ w - Y) ** 2)
        problem.certificate(w, lam)
        result = sorel.solve(problem, solver="newton")
        sorel.solve(problem, solver="newton", warm_start=result)
        for array, before in zip(arrays, kept, strict=True):
            np.testing.assert_array_equal(array, before)


# Bad input.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_of_X_that_are_not_finite_are_named(bad, order, dtype):
    data = np.full((6, 2), 0.9 * np.finfo(dtype).max, dtype=dtype, order=order)
    Problem(data, Y)
    data[3, 1] = bad
    with pytest.raises(ValueError, match=r"X\[3, 1\] = -?(nan|inf)"):
        Problem(data, Y)


@pytest.mark.parametrize(("argument", "value", "message"), [
    ("y", Y[:5], "X has 6 rows but y has 5"),
    ("y", 1.0, "X has 6 rows but y has 0"),
    ("y", np.column_stack([Y, Y]), "y must be one-dimensional"),
    ("y", list("ababab"), "texts such as 'a'.*loss='logistic'"),
    ("X", Y, r"X must be two-dimensional, got shape \(6,\); reshape"),
    ("X", X[None], r"X must be two-dimensional, got shape \(1, 6, 2\)"),
    ("X", 3.0, r"X must be two-dimensional"),
    ("X", np.empty((6, 0)), "X is empty"),
    ("X", np.full((6, 2), "a"), "X holds texts such as 'a'"),
    ("X", np.full((6, 2), "a", dtype=object), "X holds texts such as 'a'"),
    ("X", X + 1j, "X holds complex numbers"),
    ("sample_weight", [1, 1, -0.5, 1, 1, 1], r"must not be negative: sample_weight\[2\] = -0.5"),
    ("sample_weight", np.zeros(6), "zero everywhere"),
    ("sample_weight", 0.0, "zero everywhere"),
    ("sample_weight", [1, 1, np.nan, 1, 1, 1], "not finite"),
    ("sample_weight", np.ones(5), r"shape \(6,\), got \(5,\)"),
    ("sample_weight", np.ones((6, 1)), r"shape \(6,\), got \(6, 1\)"),
    ("penalty", sorel.Box(0.1, -1.0, [1.0, 2.0, 3.0]), "upper has 3 entries, but there are 2"),
    ("penalty", 0.1, "such as L2.*, got 0.1"),
    ("penalty", L2, "penalty must be one of sorel's penalties, such as L2"),
    ("loss", "hinge", "unknown loss 'hinge'; known losses: squared, huber"),
    ("risk", 0.5, "risk"),
    ("risk", "nothing:0.5", "cvar"),
    ("risk", sorel.Deviation(CVaR(0.5)), "needs an affine loss"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_data_and_settings_that_do_not_fit_are_refused(argument, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Problem(**{"X": X, "y": Y, argument: value})
    if argument == "risk":
        with pytest.raises((TypeError, ValueError), match=message):
            Problem(X, Y).with_risk(value)


@pytest.mark.parametrize(("lam", "message"), [
    (np.full(5, 0.2), r"shape \(6,\), got \(5,\)"),
    (np.full((6, 1), 1 / 6), r"shape \(6,\), got \(6, 1\)"),
    ([1.0, 0, 0, 0, 0, 0], "not a weighting that CVaR"),
    (np.zeros(6), "not a weighting"),
    ([-0.1, 0.3, 0.2, 0.2, 0.2, 0.2], "not a weighting"),
    (np.full(6, np.nan), "not finite"),
])  # fmt: skip
def test_certificate_refuses_what_is_no_weighting(lam, message):
    with pytest.raises(ValueError, match=message):
        Problem(X, Y, risk=CVaR(0.5)).certificate([0.0, 0.0], np.array(lam))


@pytest.mark.parametrize("method", ["losses", "objective"])
@pytest.mark.parametrize("intercept", [False, True])
def test_parameters_of_another_shape_are_refused(method, intercept):
    problem = Problem(X, Y, fit_intercept=intercept)
    size = 2 + intercept
    for w in (np.zeros(size + 1), np.zeros(size - 1), 0.0, np.zeros((2, 2))):
        with pytest.raises(ValueError, match=rf"w must have shape \({size},\)"):
            getattr(problem, method)(w)
    with pytest.raises(ValueError, match="not finite"):
        getattr(problem, method)(np.full(size, np.nan))


def test_certificate_forgives_rounding():
    problem = Problem(X, Y, risk=CVaR(0.5))
    lam = np.array([1, 1, 1, 0, 0, 0]) / 3
    exact = problem.certificate([0.1, 0.2], lam)
    nearly = problem.certificate([0.1, 0.2], lam + 1e-9 * np.array([1, -1, 0, 1, 0, -1]))
    assert nearly.gap == pytest.approx(exact.gap, rel=1e-6)


@pytest.mark.parametrize("name", ["nonnegative", "box", "simplex"])
def test_points_outside_the_domain_have_no_finite_objective(name):
    problem = Problem(np.random.default_rng(0).normal(size=(6, 3)), Y, penalty=PENALTIES[name])
    outside = np.array([-5.0, 2.0, 2.0])
    assert problem.objective(outside) == np.inf
    found = problem.certificate(outside, np.full(6, 1 / 6))
    assert found.primal == found.gap == found.relative_gap == np.inf
    assert not found.dual > problem.objective(problem.start())  # a bound, or nothing: never nan
    assert not np.isnan(found.dual)


# The same data under another risk.


@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_another_risk_is_that_of_a_new_problem(kind):
    data, y = make_data("squared", 60, 3, 7)
    weight = np.linspace(0.5, 2.0, 60) if kind == "weighted" else None
    matrix = scipy.sparse.csr_array(data) if kind == "sparse" else data
    options = {"fit_intercept": True, "sample_weight": weight}
    problem = Problem(matrix, y, risk="mean", **options)
    sorel.solve(problem)  # what it finds out about the data is shared
    for risk in (sorel.ESRM(2.0), CVaR(0.3), sorel.Max()):
        changed = problem.with_risk(risk)
        assert changed.risk == changed.engine.spec.risk == risk
        ours = sorel.solve(changed, tol=1e-9)
        theirs = sorel.solve(Problem(matrix, y, risk=risk, **options), tol=1e-9)
        assert ours.objective == theirs.objective
        np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert problem.risk == sorel.Mean()


# Extreme numbers.


def test_the_maximum_knows_no_sample_weights_but_zero():
    # Steps of the weighting would be measured against weights that nothing depends on.
    rng = np.random.default_rng(0)
    X, y = np.round(rng.normal(size=(100, 20))), rng.integers(0, 3, 100)
    weight = 10.0 ** rng.uniform(-3, 3, 100)
    weight[:5] = 0.0
    options = {"loss": "multinomial", "penalty": L2(0.02), "fit_intercept": True}
    weighted = sorel.solve(Problem(X, y, risk="max", sample_weight=weight, **options))
    plain = sorel.solve(Problem(X[5:], y[5:], risk="max", **options))
    assert weighted.objective == pytest.approx(plain.objective, rel=1e-6)
    assert weighted.passes <= 2 * plain.passes
    assert not weighted.weights[:5].any()


def test_weights_come_back_with_another_risk():
    rng = np.random.default_rng(1)
    X, y, weight = rng.normal(size=(20, 3)), rng.normal(size=20), rng.uniform(0.1, 10.0, 20)
    w = rng.normal(size=3)
    problem = Problem(X, y, risk="esrm:2", sample_weight=weight)
    there = problem.with_risk(sorel.Max())
    assert there.sample_weight is None
    for other in (sorel.Max(), sorel.Mean()):
        mixture = sorel.Mixture([sorel.Max(), other], [0.3, 0.7])
        without = problem.with_risk(mixture).sample_weight is None
        assert without is (other == sorel.Max())
    assert there.objective(w) == pytest.approx(problem.losses(w).max() + problem.penalty.value(w))
    back = there.with_risk("esrm:2")
    assert back.objective(w) == pytest.approx(problem.objective(w), rel=1e-14)
    np.testing.assert_array_equal(back.sample_weight, problem.sample_weight)


def test_rare_samples_do_not_blur_the_risk():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(60, 5)) + 100.0, np.exp(rng.normal(size=60))
    risk = sorel.Mixture([sorel.Max(), sorel.ESRM(2.0)], [0.5, 0.5])
    problem = Problem(
        X, y, risk=risk, loss="gamma", penalty=sorel.L2(1e-3), fit_intercept=True,
        sample_weight=10.0 ** rng.uniform(-6, 3, 60),
    )  # fmt: skip
    w = np.full(6, 0.1)
    lam = problem.engine.weights(problem.engine.worst_case(problem.engine.point(w)))
    found = problem.certificate(w, lam)
    assert found.primal_rounding <= 1e-10 * found.primal


@pytest.mark.parametrize("row", [[0.1, 0.2, -0.3], [1.0, -2.0, 1.0]], ids=["rounding", "zero"])
def test_margins_that_cancel_at_the_start(row):
    problem = Problem([row], [0.0], penalty=sorel.Simplex(0.0))
    assert problem.losses(problem.start())[0] < 1e-30
    assert sorel.solve(problem).converged


@pytest.mark.parametrize("kind", [np.asarray, np.asfortranarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("loss", ["gamma", "poisson"])
def test_exponentials_of_samples_without_weight_may_overflow(loss, kind):
    """0 times infinity is not a number, and a sample without weight is nobody's concern."""
    X = np.array([[-28500.0, 24800.0], [-722000.0, 105000.0], [20000.0, -30000.0]])
    X, y, weight = -X if loss == "poisson" else X, [14.9, 4.5, 2.0], [1.0, 0.0, 0.0]
    more = {"risk": "esrm:2", "loss": loss, "penalty": sorel.Simplex(2e-4)}
    problem = Problem(kind(X), y, sample_weight=weight, **more)
    result = sorel.solve(problem)
    alone = sorel.solve(Problem(kind(X[:1]), y[:1], **more))
    assert result.converged
    assert result.objective == pytest.approx(alone.objective, rel=1e-5)
    np.testing.assert_array_equal(result.weights, [1.0, 0.0, 0.0])
    # Who asks for the losses gets those of all samples.
    with np.errstate(over="ignore"):
        expected = problem.loss.value(np.array(y), X @ result.w)
    np.testing.assert_allclose(problem.losses(result.w), expected, rtol=1e-6, atol=1e-9)
    assert np.isinf(problem.losses(result.w)).any()


def test_what_margins_cannot_resolve_is_stopped_by_rounding():
    # On the simplex margins of 1e8 have to cancel, to targets of 1e-6.
    rng = np.random.default_rng(0)
    X = 1e8 * rng.normal(size=(2, 4))
    problem = Problem(X, [1e-6, -1e-6], risk=sorel.Max(), penalty=sorel.Simplex(0.0))
    with pytest.warns(sorel.ConvergenceWarning, match="rounding errors alone"):
        result = sorel.solve(problem)
    assert result.status.startswith("stopped by rounding")
    assert result.objective < 1e-12
