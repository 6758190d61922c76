"""What a relative gap is relative to, and that results do not depend on the units of the data."""

import warnings

import numpy as np
import pytest
from scipy.optimize import linprog

import sorel
from sorel.certificate import noise, vanishes
from sorel.certificate.rounding import CertificateError
from sorel.engines import DenseEngine
from sorel.losses import Huber
from sorel.permutahedron import Projector

RISKS = ["mean", "cvar:0.1", "esrm:2", "extremile:3", "max"]
SCALES = [1e-9, 1e-3, 1e3, 1e9]


def regression(seed, n=200, d=4, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + noise * rng.standard_t(4, size=n)


def returns(seed, n=150, d=6):
    rng = np.random.default_rng(seed)
    return 0.01 * rng.standard_t(4, size=(n, d)) * rng.uniform(0.3, 2.0, d) + 5e-4


def least_cvar(R, alpha):
    """The optimum over long-only portfolios, as a linear program of Rockafellar and Uryasev."""
    n, d = R.shape
    cost = np.r_[np.zeros(d), 1.0, np.full(n, 1.0 / (n * alpha))]
    rows = np.hstack([-R, -np.ones((n, 1)), -np.eye(n)])
    budget = np.r_[np.ones(d), np.zeros(n + 1)][None]
    bounds = [(0, None)] * d + [(None, None)] + [(0, None)] * n
    return linprog(cost, rows, np.zeros(n), budget, [1.0], bounds).fun


def test_the_gap_of_affine_losses_is_relative_to_their_spread_where_they_cancel():
    R = returns(1)
    R -= R.mean(axis=0)
    problem = sorel.Problem(R, np.zeros(len(R)), risk="mean", loss="linear", penalty=sorel.L2(1.0))
    w, lam = np.full(R.shape[1], 0.1), np.full(len(R), 1.0 / len(R))
    losses = problem.losses(w)
    certificate = problem.certificate(w, lam)
    spread = np.mean(np.abs(losses - losses.mean()))
    assert abs(certificate.primal) > spread  # the penalty
    assert certificate.relative_gap == pytest.approx(certificate.gap / abs(certificate.primal))
    small = problem.with_penalty(sorel.L2(1e-6))
    certificate = small.certificate(w, lam)
    assert certificate.relative_gap == pytest.approx(certificate.gap / spread)


@pytest.mark.parametrize("offset", [1e3, -1e6, 1e9])
@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_an_offset_of_y_is_one_of_the_intercept(offset, risk, loss):
    X, y = regression(2)
    y = (y + offset) - offset  # what is left of y beside the offset
    problem = sorel.Problem(X, y, risk=risk, loss=loss, fit_intercept=True)
    far = sorel.Problem(X, y + offset, risk=risk, loss=loss, fit_intercept=True)
    result, moved = sorel.solve(problem), sorel.solve(far)
    assert result.converged
    assert moved.converged
    assert moved.relative_gap == moved.gap / moved.objective
    assert moved.objective == pytest.approx(result.objective, rel=2e-6)
    # What is claimed is claimed of the parameters that are returned.
    w = np.append(moved.w[:-1], moved.w[-1] - offset)
    assert problem.objective(w) == pytest.approx(moved.objective, rel=1e-9)
    assert far.objective(moved.w) == pytest.approx(moved.objective, rel=1e-12)
    assert far.certificate(moved.w, moved.weights).gap <= 1.01e-6 * moved.objective


def test_an_intercept_that_rounding_moves_is_certified_where_it_is():
    X, y = regression(2)
    problem = sorel.Problem(X, y + 1e12, risk="max", fit_intercept=True)
    with pytest.warns(sorel.ConvergenceWarning, match="rounding errors alone"):
        result = sorel.solve(problem)  # digits of y and of the intercept end at 1e-4
    assert not result.converged
    assert result.status.startswith("stopped by rounding")
    assert 1e-6 < result.relative_gap < 1e-3
    assert problem.objective(result.w) == pytest.approx(result.objective, rel=1e-12)


def test_targets_that_are_all_alike_are_fitted_exactly():
    X, _ = regression(4)
    for value in (0.1, 1e9, -3.7e-9):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = sorel.SpectralRiskRegressor(risk="cvar:0.1").fit(X, np.full(len(X), value))
        assert model.relative_gap_ == 0.0
        assert model.intercept_ == value
        assert not np.any(model.coef_)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("loss", ["squared", "huber", "linear"])
def test_the_unit_of_y_does_not_matter(scale, risk, loss):
    X, y = regression(5)

    def solve(unit):
        forms = {"huber": (Huber(1.345 * unit), 0.01), "linear": ("linear", 0.01 / unit)}
        form, l2 = forms.get(loss, (loss, 0.01))
        options = {"risk": risk, "loss": form, "fit_intercept": loss != "linear"}
        return sorel.solve(sorel.Problem(X, unit * y, penalty=sorel.L2(l2), **options))

    one, other = solve(1.0), solve(scale)
    power = 1 if loss == "linear" else 2
    assert one.converged
    assert other.converged
    assert other.relative_gap <= 1e-6
    assert other.objective / scale**power == pytest.approx(one.objective, rel=2e-6, abs=2e-6)
    assert abs(other.passes - one.passes) <= 0.5 * one.passes


@pytest.mark.parametrize("scale", [*SCALES, 1e12])
def test_the_unit_of_columns_within_bounds_does_not_matter(scale):
    X, y = regression(8)

    def solve(unit):
        penalty = sorel.Box(0.0, -0.3 / unit, 0.5 / unit)
        return sorel.solve(sorel.Problem(unit * X, y, risk="cvar:0.1", penalty=penalty))

    one, other = solve(1.0), solve(scale)
    assert other.converged
    np.testing.assert_allclose(scale * other.w, one.w, rtol=1e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_the_unit_of_returns_does_not_matter(scale, alpha):
    R = returns(6)
    best = least_cvar(R, alpha)
    model = sorel.SpectralRiskPortfolio(risk=sorel.CVaR(alpha)).fit(scale * R)
    assert model.relative_gap_ <= 1e-6
    assert model.objective_ == pytest.approx(scale * best, rel=1e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("make", [sorel.QuantileRegressor, sorel.RankRegressor])
def test_units_and_offsets_of_linear_losses(scale, offset, make):
    X, y = regression(7)
    options = {} if make is sorel.RankRegressor else {"quantile": 0.3, "alpha": 0.0}
    expected, model = make(**options).fit(X, y), make(**options).fit(X, scale * (y + offset))
    assert model.relative_gap_ <= 1e-6
    np.testing.assert_allclose(model.coef_ / scale, expected.coef_, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("penalty", [sorel.Simplex(0.0), sorel.Box(0.0, 0.0, 1.0)], ids=repr)
def test_a_perfect_fit_is_converged_though_no_gap_is_relative_to_it(penalty):
    X = np.random.default_rng(10).uniform(1.0, 2.0, size=(50, 6))
    X[:, 4], X[:, 5] = 0.0, 1.0
    y = X[:, :4] @ [0.1, 0.2, 0.3, 0.4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sorel.solve(sorel.Problem(X, y, risk="esrm:2", penalty=penalty))
    assert result.converged
    assert result.gap <= 1e-12 * np.mean((y - y.mean()) ** 2) / 2
    assert result.relative_gap <= 1e-6 or "perfect fit" in result.status


@pytest.mark.parametrize("scale", SCALES)
def test_an_optimum_of_0_is_a_perfect_fit_in_any_unit_where_losses_have_no_spread(scale):
    X, simplex = scale * np.array([[0.0, -7.0, -0.3]]), sorel.Simplex(0.0)
    problem = sorel.Problem(X, [0.0], risk="extremile:2.5", loss="linear", penalty=simplex)
    assert sorel.solve(problem).converged
    # Equal returns, whose spread is rounding.
    more = {"risk": sorel.Deviation(sorel.Max(), 0.5), "sample_weight": [0.1, 0.7, 0.3, 0.9, 0.2]}
    X, penalty = np.full((5, 1), scale), sorel.ElasticNet(1e-4, 0.7 * scale)
    problem = sorel.Problem(X, np.zeros(5), loss="linear", penalty=penalty, **more)
    assert sorel.solve(problem).converged


@pytest.mark.parametrize("scale", SCALES)
def test_a_deviation_of_nothing_but_rounding_is_a_perfect_fit(scale):
    R = np.tile(scale * returns(11, n=1), (3, 1))
    risk, penalty = sorel.Deviation(sorel.CVaR(0.3)), sorel.Simplex(1e-12 * scale)
    problem = sorel.Problem(R, np.zeros(3), risk=risk, loss="linear", penalty=penalty)
    assert "perfect fit" in sorel.solve(problem).status


@pytest.mark.parametrize(("spread", "mass"), [(1.5, 1.0), (1.0, 1.07)])
@pytest.mark.parametrize("solver", ["auto", "newton", "sorel", "pdhg"])
@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2"])
def test_a_negative_gap_is_an_error_that_names_the_engine(spread, mass, solver, risk):
    """Weights further from 1 than the risk allows, or with a sum above 1."""

    class Wrong(Projector):
        def project(self, zeta, out, block=None):
            count = super().project(zeta, out, block)
            out[:] = mass * (1.0 + spread * (out - 1.0))
            return count

    class WrongEngine(DenseEngine):
        def _make_projector(self, risk):
            return Wrong(risk, self.n_samples, self.spec.sample_weight)

    X, y = regression(12)
    problem = sorel.Problem(X, y, risk=risk, engine=WrongEngine)
    with pytest.raises(CertificateError, match="WrongEngine gave"):
        sorel.solve(problem, solver, max_passes=200)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize(("risk", "loss", "penalty", "least"), [
    ("cvar:0.3", "squared", sorel.L2(1.0), 0.0),
    ("cvar:0.3", "squared", sorel.Box(2.0, 3.0, 4.0), 36.0),
    ("cvar:0.3", "linear", sorel.L2(1.0), -np.inf),
    ("deviation:cvar:0.3", "linear", sorel.L2(1.0), 0.0),
    (sorel.Deviation(sorel.CVaR(0.3), 0.5), "linear", sorel.L2(1.0), -np.inf),
    ("deviation:mix:mean=0.5,max=0.5", "linear", sorel.L2(1.0), -np.inf),
])  # fmt: skip
def test_a_bound_for_free_is_least_losses_and_the_least_penalty(risk, loss, penalty, least, scale):
    X, y = regression(5)
    problem = sorel.Problem(X, scale * y, risk=risk, loss=loss, penalty=penalty)
    found = problem.certificate(np.full(X.shape[1], 1e200), np.full(len(y), 1.0 / len(y)))
    assert found.gap == np.inf
    size = problem.zero_loss if loss == "linear" else least
    assert found.dual == least or least - 1e-14 * size < found.dual <= least - 1e-16 * size


def test_a_fit_is_perfect_where_the_risk_and_its_gap_are_next_to_nothing():
    X, y = regression(6)
    fitted, alike = sorel.Problem(X, y), sorel.Problem(X, np.zeros(len(y)))
    risks = sorel.Deviation(sorel.CVaR(0.3)), sorel.Deviation(sorel.CVaR(0.3), 0.5)
    whole, part = (sorel.Problem(X, y, risk=risk, loss="linear") for risk in risks)
    unit, largest, deviation = fitted.constant_loss, alike.largest_loss, whole.largest_loss
    for problem, loss, gap, rounding, expected in (
        (fitted, 1e-9, 1e-9, 1e-9, True), (fitted, 2e-9, 1e-9, 1e-9, False),
        (fitted, 1e-9, 3e-9, 1e-9, False), (fitted, 0.0, 2e-6 * unit, unit, False),
        (alike, 1e-9, 1e-9, 1e-9, True), (alike, 1.0, 0.5e-24 * largest, 0.0, True),
        (alike, 1.0, 2e-24 * largest, 0.0, False),
        (whole, 1e-9, 0.5e-12 * deviation, 1e-9, True), (part, 0.0, 0.0, 1.0, False),
        (whole, 2e-9, 0.0, 1e-9, False), (whole, 0.0, 2e-12 * deviation, 1.0, False),
    ):  # fmt: skip
        assert vanishes(problem, loss, 0.0, gap, rounding) == expected


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_size_of_losses_and_their_noise_have_their_units(scale):
    X, y = regression(7)
    problem, other = sorel.Problem(X, y), sorel.Problem(scale * X, scale * y)
    assert other.zero_loss == pytest.approx(scale**2 * problem.zero_loss)
    for share in (1e-20, 1.0, 1e3):
        unit = share * problem.zero_loss
        assert noise(other, scale**2 * unit) == pytest.approx(scale**2 * noise(problem, unit))
        assert 4.0 <= noise(problem, unit) / (2.0**-53 * max(unit, 1e-10 * problem.zero_loss)) <= 16
    # Those of the targets as they were given, before their mean is taken off.
    far = sorel.Problem(X, y + scale, fit_intercept=True)
    assert far.largest_loss == pytest.approx(0.5 * np.mean((y + scale) ** 2))
    # The unit of a step of the weights is the spread of the losses, or their size where all tie.
    engine, labels = problem.engine, sorel.Problem(X, np.sign(y), loss="logistic")
    for w in (np.zeros(X.shape[1]), np.ones(X.shape[1])):
        losses = problem.losses(w)
        spread = np.abs(losses - losses.mean()).mean()
        assert problem.loss_scale(engine.point(w)) == pytest.approx(spread)
    assert labels.loss_scale(labels.engine.point(np.zeros(X.shape[1]))) == pytest.approx(np.log(2))
    # Where losses vanish at zero margins, those beside it tell.
    beside = [sorel.Problem(c * X, 0.0 * y).zero_loss for c in (1.0, scale)]
    assert beside[1] == pytest.approx(scale**2 * beside[0])
    inside = sorel.Problem(X, 0.0 * y, penalty=sorel.Box(1.0, 5.0, 6.0)).zero_loss
    assert inside > 25.0 * beside[0]
    assert sorel.Problem(X, np.ones_like(y), loss="poisson").zero_loss == 1.0
