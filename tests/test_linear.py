"""The linear loss and deviations in Problem: certificates, forms of X, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from helpers import RISKS, conic_risk

import sorel
from sorel import CVaR, Deviation, Extremile
from sorel.solvers.base import UnsupportedProblemError

SPECTRA = ["cvar", "esrm", "extremile", "max", "mixture", "custom"]


def make_rows(n=40, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return 0.01 * rng.standard_t(3, size=(n, d)) + 0.002, 0.01 * rng.normal(size=n)


@pytest.mark.parametrize("risk", SPECTRA)
@pytest.mark.parametrize("deviation", [False, True])
@pytest.mark.parametrize("g", [sorel.L2(1e-2), sorel.Simplex(1e-4), sorel.Box(1e-4, -0.5, 0.5)])
@pytest.mark.parametrize("seed", range(2))
def test_optima_of_a_conic_solver(risk, deviation, g, seed):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    X, y = make_rows(seed=seed)
    if seed == 1:
        X, y = X[np.r_[:20, :20]], y[np.r_[:20, :20]]  # every row twice: ties everywhere
    spectrum = Deviation(RISKS[risk]) if deviation else RISKS[risk]
    problem = sorel.Problem(X, y, risk=spectrum, loss="linear", penalty=g)
    result = sorel.solve(problem, tol=1e-8)
    assert result.converged, result.status
    w = cp.Variable(4)
    objective = conic_risk(spectrum, y - X @ w) + 0.5 * g.l2 * cp.sum_squares(w)
    sets = {sorel.L2: [], sorel.Simplex: [w >= 0, cp.sum(w) == 1], sorel.Box: [cp.abs(w) <= 0.5]}
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    program = cp.Problem(cp.Minimize(100 * objective), sets[type(g)])
    program.solve(solver=cp.CLARABEL, **tight)
    size = 0.01
    assert result.objective == pytest.approx(program.value / 100, abs=1e-7 * size)
    assert result.dual <= program.value / 100 + 1e-8 * size
    assert result.gap >= 0.0


@pytest.mark.parametrize(("share", "least"), [(1.0, 0.0), (0.5, -np.inf)])
def test_the_certificate_of_a_deviation_by_hand(share, least):
    X, y = make_rows()
    risk = Deviation(CVaR(0.25), share)
    problem = sorel.Problem(X, y, risk=risk, loss="linear", penalty=sorel.L2(0.01))
    rng = np.random.default_rng(1)
    for _ in range(5):
        w = rng.normal(size=4)
        lam = sorel.project_permutahedron(rng.exponential(size=40) / 40, CVaR(0.25))
        proof = problem.certificate(w, lam)
        u = y - X @ w
        primal = CVaR(0.25)(u) - share * u.mean() + 0.005 * w @ w
        s = lam - share / 40
        # min_w s.(y - X w) + l2/2 |w|^2, in closed form.
        dual = s @ y - (X.T @ s) @ (X.T @ s) / 0.02
        assert proof.primal == pytest.approx(primal, rel=1e-12)
        # No risk of the losses is below their mean.
        assert proof.dual == pytest.approx(max(dual, least), rel=1e-9)


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("risk", [CVaR(0.2), Deviation(Extremile(2.0))])
def test_a_weight_is_a_number_of_rows(form, risk):
    rng = np.random.default_rng(0)
    X, y, weight = rng.normal(size=(60, 3)), rng.normal(size=60), rng.integers(1, 4, 60)
    options = {"risk": risk, "loss": "linear", "penalty": sorel.L2(0.05)}
    rows = np.repeat(np.arange(60), weight)
    reference = sorel.solve(sorel.Problem(X[rows], y[rows], **options), tol=1e-9)
    found = sorel.solve(sorel.Problem(form(X), y, sample_weight=weight, **options), tol=1e-9)
    assert found.converged
    assert found.objective == pytest.approx(reference.objective, rel=1e-8)
    np.testing.assert_allclose(found.w, reference.w, rtol=1e-4, atol=1e-6)


def test_a_deviation_is_the_risk_of_centred_losses():
    rng = np.random.default_rng(0)
    losses, weight = rng.normal(size=50), rng.uniform(size=50)
    for risk in (RISKS[name] for name in SPECTRA):
        for omega in (None, weight):
            mean = np.average(losses, weights=omega)
            expected = risk(losses - mean, omega)
            assert Deviation(risk)(losses, omega) == pytest.approx(expected, abs=1e-13)
        sigma = Deviation(risk).weights(50)
        assert sigma.sum() == pytest.approx(0.0, abs=1e-14)
        np.testing.assert_allclose(sigma, risk.weights(50) - 0.02, atol=1e-16)


def test_a_deviation_is_a_value():
    risk = Deviation(CVaR(0.1))
    assert risk == sorel.parse_risk("deviation:cvar:0.1") == sorel.parse_risk(risk.spec)
    assert risk != Deviation(CVaR(0.1), 0.5)
    assert eval(repr(risk), {"Deviation": Deviation, "CVaR": CVaR}) == risk
    assert hash(risk) == hash(Deviation(CVaR(0.1)))
    with pytest.raises(TypeError, match="must be a spectral risk"):
        Deviation(risk)
    with pytest.raises(ValueError, match="share"):
        Deviation(CVaR(0.1), -1.0)


@pytest.mark.parametrize(("risk", "loss", "intercept", "message"), [
    (Deviation(CVaR(0.1)), "squared", False, "affine loss.*squared loss it is not convex"),
    (Deviation(CVaR(0.1)), "logistic", False, "affine loss.*logistic loss it is not convex"),
    (CVaR(0.1), "linear", True, "has no minimum in an intercept"),
    (Deviation(CVaR(0.1)), "linear", True, "does not depend on an intercept"),
])  # fmt: skip
def test_what_is_refused_with_the_reason(risk, loss, intercept, message):
    X, y = make_rows()
    y = y > 0 if loss == "logistic" else y
    with pytest.raises(ValueError, match=message):
        sorel.Problem(X, y, risk=risk, loss=loss, fit_intercept=intercept)


@pytest.mark.parametrize("solver", ["sorel", "lsvrg", "sgd", "prospect", "saddle_saga"])
@pytest.mark.parametrize(("risk", "penalty", "words"), [
    (Deviation(CVaR(0.3)), sorel.L2(0.1), "takes weights .* deviation"),
    (CVaR(0.3), sorel.Simplex(0.0), "curvature of losses and penalty"),
])  # fmt: skip
def test_what_stochastic_solvers_refuse(solver, risk, penalty, words):
    X, y = make_rows()
    problem = sorel.Problem(X, y, risk=risk, loss="linear", penalty=penalty)
    with pytest.raises(UnsupportedProblemError, match=f"'{solver}' .*{words}"):
        sorel.solve(problem, solver)


@pytest.mark.parametrize("solver", ["auto", "newton", "newton_cg", "continuation", "subgradient"])
def test_solvers_of_full_passes(solver):
    X, y = make_rows()
    problem = sorel.Problem(X, y, risk=Deviation(CVaR(0.3)), loss="linear", penalty=sorel.L2(0.05))
    tol = 1e-3 if solver == "subgradient" else 1e-7
    result = sorel.solve(problem, solver, tol=tol, max_passes=3000)
    assert result.converged, result.status


@pytest.mark.parametrize("penalty", [sorel.L2(1e-8), sorel.NonNegative(1e-8)], ids=repr)
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("home", [np.asarray, scipy.sparse.csr_array])
def test_bounds_of_large_columns_hold_in_exact_arithmetic(penalty, share, home):
    rng = np.random.default_rng(1)
    X = 3e6 * rng.standard_normal((250, 2))
    y = 0.01 * (X @ [1.0, 2.0] / 3e6 + rng.standard_normal(250))
    risk = Deviation(CVaR(0.5), share) if share else CVaR(0.5)
    problem = sorel.Problem(home(X), y, risk=risk, loss="linear", penalty=penalty)
    # Rounding leaves 3e-6 of CVaR.
    result = sorel.solve(problem, tol=1e-6 if share else 1e-5)
    assert result.converged
    # The objective without any rounding: half of the losses count twice, less a share of the mean.
    w = [Fraction(c) for c in result.w]
    losses = sorted(
        Fraction(t) - sum(Fraction(x) * c for x, c in zip(row, w, strict=True))
        for row, t in zip(X, y, strict=True)
    )
    value = sum(losses[125:]) / 125 - Fraction(share) * sum(losses) / 250
    value += Fraction(1e-8) / 2 * sum(c * c for c in w)
    assert Fraction(result.dual) <= value
    assert abs(value - Fraction(result.objective)) <= Fraction(result.gap)


def test_shares_that_add_up_to_less_than_one_leave_less_than_nothing():
    """A deviation of one sample is 0 but for the rounding of the shares, and so is the bound."""
    shares = 0.21211430947764048, 0.7878856905223595
    total = Fraction(shares[0]) + Fraction(shares[1])
    assert total < 1
    risk = sorel.Mixture([sorel.ESRM(0.5), sorel.Extremile(3.0)], shares)
    problem = sorel.Problem(
        [[3.0]], [0.024], risk=sorel.Deviation(risk), loss="linear", penalty=sorel.NonNegative(0.03)
    )
    result = sorel.solve(problem)
    assert result.converged
    assert Fraction(result.dual) <= (total - 1) * Fraction(0.024)


@pytest.mark.parametrize("seed", range(12))
def test_a_run_goes_on_where_margins_that_were_moved_look_like_a_perfect_fit(seed):
    """Moved step by step they have rounding errors above all losses; computed afresh, none such."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((8, 2))[rng.integers(0, 8, 24)]
    penalty = sorel.NonNegative(1.5e-6)
    problem = sorel.Problem(X, np.zeros(24), risk="max", loss="linear", penalty=penalty)
    assert sorel.solve(problem).converged
