"""Poisson and gamma regression: optima against scikit-learn and a conic solver, in every form."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from helpers import RISKS, conic_risk
from partitioned import PartitionedEngine
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.metrics import mean_gamma_deviance, mean_poisson_deviance

import sorel
from sorel.cli import main
from sorel.metrics import gamma_deviance, make_tail_scorer, poisson_deviance, sample_losses
from sorel.solvers.base import UnsupportedProblemError

PEERS = {"poisson": PoissonRegressor, "gamma": GammaRegressor}
DEVIANCES = {
    "poisson": (poisson_deviance, mean_poisson_deviance),
    "gamma": (gamma_deviance, mean_gamma_deviance),
}
by_loss = pytest.mark.parametrize("loss", PEERS)


def make_rows(loss, n=200, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    mean = np.exp(0.7 + X @ rng.normal(scale=0.4, size=d))
    return X, rng.poisson(mean).astype(float) if loss == "poisson" else mean * rng.gamma(2, 0.5, n)


@by_loss
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_the_mean_is_scikit_learn_s_regressor(loss, weighted, form):
    X, y = make_rows(loss)
    weight = np.random.default_rng(1).uniform(0.2, 3.0, len(y)) if weighted else None
    ours = sorel.SpectralRiskRegressor("mean", loss=loss, l2=0.1, tol=1e-10)
    ours.fit(form(X), y, sample_weight=weight)
    theirs = PEERS[loss](alpha=0.1, tol=1e-10, max_iter=10_000).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4, atol=1e-6)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-4)
    np.testing.assert_allclose(ours.predict(form(X)), theirs.predict(X), rtol=1e-4)


@by_loss
@pytest.mark.parametrize("risk", ["cvar", "esrm", "max", "mixture"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("exposed", [False, True])
def test_optima_of_a_conic_solver(loss, risk, intercept, exposed):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    n, d = 40, 3
    X, y = make_rows(loss, n, d, seed=3)
    offset = np.linspace(-1.0, 2.0, n) if exposed else None
    settings = {"penalty": sorel.L2(0.05), "fit_intercept": intercept, "offset": offset}
    result = sorel.solve(sorel.Problem(X, y, risk=RISKS[risk], loss=loss, **settings), tol=1e-8)
    assert result.converged, result.status
    w, b, t = cp.Variable(d), cp.Variable(), cp.Variable(n)
    z = X @ w + (b if intercept else 0.0) + (offset if exposed else 0.0)
    if loss == "poisson":
        own = np.where(y > 0, y * np.log(np.maximum(y, 1.0)), 0.0)
        losses = cp.exp(z) - cp.multiply(y, z) + (own - y)
    else:
        losses = cp.exp(np.log(y) - z) + z - (1.0 + np.log(y))
    objective = cp.Minimize(conic_risk(RISKS[risk], t) + 0.025 * cp.sum_squares(w))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cvxpy on its accuracy
        value = cp.Problem(objective, [losses <= t]).solve(solver=cp.CLARABEL)
    assert result.objective == pytest.approx(value, rel=1e-6)
    assert result.dual <= value * (1 + 1e-7)


def test_counts_over_exposures(tmp_path, monkeypatch):
    """Under the mean as good as rates with weights, under a tail another target."""
    monkeypatch.setattr("sorel.problem.validation.WORTH_STREAMING", 0)
    X, rate = make_rows("poisson")
    exposure = np.random.default_rng(1).uniform(0.2, 9.0, len(X))
    y, kept = np.floor(rate * exposure), np.arange(len(X)) % 7 > 0
    given = {"offset": np.log(exposure), "sample_weight": kept.astype(float)}
    found = {}
    for risk in ("mean", "cvar:0.2"):
        model = sorel.SpectralRiskRegressor(risk, loss="poisson", l2=0.1, tol=1e-10)
        homes = X, scipy.sparse.csr_array(X), sorel.rows.write_blocks(tmp_path / risk[:4], X)
        coefs = [model.fit(home, y, **given).coef_ for home in homes]
        np.testing.assert_allclose(coefs[1:], coefs[:1] * 2, atol=1e-7)
        means = model.predict(homes[2], offset=np.log(exposure))
        np.testing.assert_allclose(means, exposure * model.predict(X))
        losses = sample_losses(y, means, "poisson")[kept]
        penalty = 0.05 * model.coef_ @ model.coef_
        assert model.objective_ == pytest.approx(sorel.parse_risk(risk)(losses) + penalty)
        l2 = 0.1 / exposure[kept].mean()
        rates = sorel.SpectralRiskRegressor(risk, loss="poisson", l2=l2, tol=1e-10)
        rates.fit(X, y / exposure, sample_weight=kept * exposure)
        found[risk] = np.abs(rates.coef_ - model.coef_).max()
    assert found["mean"] < 1e-6
    assert found["cvar:0.2"] > 1e-2


def test_parts_of_a_problem_keep_the_offset():
    X, y = make_rows("gamma")
    offset, w, rows = np.linspace(-2.0, 3.0, len(y)), np.full(4, 0.1), np.arange(3, 90, 4)
    problem = sorel.Problem(X, y, loss="gamma", offset=offset)
    # Amounts over exposures are the same problem.
    plain = sorel.Problem(X, y * np.exp(-offset), loss="gamma")
    np.testing.assert_allclose(problem.losses(w), plain.losses(w), rtol=1e-12)
    part, chosen = problem.engine.on_rows(rows), problem.engine.columns(np.arange(2))
    np.testing.assert_array_equal(part.losses(part.point(w)), problem.losses(w)[rows])
    np.testing.assert_array_equal(chosen.point(w[:2]).losses, problem.losses([0.1, 0.1, 0.0, 0.0]))
    other = sorel.Problem(X, y, loss="gamma", offset=2.0 * offset)
    assert problem.fingerprint()["targets"] != other.fingerprint()["targets"]
    assert problem.with_risk("max").objective(w) == plain.with_risk("max").objective(w)
    assert "has an offset" in problem.engine.obstacle("batches")
    assert problem.engine.obstacle("smoothness") == plain.engine.obstacle("smoothness")


@pytest.mark.parametrize(("settings", "offset", "message"), [
    ({"loss": "squared"}, np.zeros(200), r"a log link.*loss='squared'; subtract it from y"),
    ({"loss": "logistic"}, np.zeros(200), r"got loss='logistic'; leave it out"),
    ({}, np.full(200, np.nan), r"offset\[0\] = nan; as the logarithm of an exposure it needs"),
    ({}, np.zeros(3), r"X has 200 rows but offset has shape \(3,\)"),
    ({"engine": PartitionedEngine}, np.zeros(200), r"PartitionedEngine does not serve an off"),
])  # fmt: skip
def test_offsets_that_are_refused(settings, offset, message):
    X, y = make_rows("poisson")
    with pytest.raises(ValueError, match=message):
        sorel.Problem(X, y > 1, offset=offset, **({"loss": "poisson"} | settings))


@by_loss
@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e6, None])
def test_targets_of_any_size_and_steps_that_overflow(loss, scale):
    X, y = make_rows(loss)
    if scale is None:
        # A Newton step from zero margins leads to margins of thousands.
        X[0] *= 500.0
        y[1] = 1e5
    else:
        y = scale * y
    problem = sorel.Problem(X, y, risk="cvar:0.2", loss=loss, fit_intercept=True)
    assert sorel.solve(problem, tol=1e-8 if scale else 1e-6).converged
    engine = problem.engine
    best = engine.best_intercept(engine.point(np.zeros(engine.shape)), engine.uniform())
    assert best.w[-1] == pytest.approx(np.log(y.mean()), rel=1e-9)


@by_loss
def test_stochastic_solvers_refuse_by_name(loss):
    X, y = make_rows(loss)
    problem = sorel.Problem(X, y, loss=loss)
    for solver in ("sorel", "prospect", "lsvrg", "sgd", "saddle_saga"):
        with pytest.raises(UnsupportedProblemError, match=f"'{solver}' .*{loss} loss; use 'auto'"):
            sorel.solve(problem, solver)
    for bound in ("smoothness", "jacobian_bound"):
        reason = problem.engine.obstacle(bound)
        assert reason == f"needs a bound on the curvature, and the {loss} loss declares none"


@by_loss
def test_deviances_and_losses_of_predicted_means(loss):
    X, y = make_rows(loss)
    model = sorel.SpectralRiskRegressor("cvar:0.3", loss=loss).fit(X, y)
    mean = model.predict(X)
    assert np.all(mean > 0)
    ours, theirs = DEVIANCES[loss]
    weight = np.random.default_rng(1).uniform(size=len(y))
    for omega in (None, weight):
        expected = theirs(y, mean, sample_weight=omega)
        assert ours(y, mean, sample_weight=omega) == pytest.approx(expected, rel=1e-12)
    assert ours(y, mean, "cvar:0.1") >= ours(y, mean)
    problem = sorel.Problem(X, y, loss=loss, fit_intercept=True)
    losses = problem.losses(np.append(model.coef_, model.intercept_))
    np.testing.assert_allclose(sample_losses(y, mean, loss), losses, rtol=1e-9, atol=1e-14)
    scorer = make_tail_scorer("mean", loss)
    assert -scorer(model, X, y) == pytest.approx(losses.mean(), rel=1e-9)
    with pytest.raises(ValueError, match=r"means above 0.*y_pred\[0\] = -1"):
        sample_losses(y, np.full(len(y), -1.0), loss)


@by_loss
def test_cross_validation_and_the_command_line(loss, tmp_path, capsys):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    pytest.importorskip("skops", reason="skops is an extra")
    X, y = make_rows(loss)
    model = sorel.SpectralRiskRegressorCV(loss=loss, risks=["mean", "cvar:0.5"], cv=3).fit(X, y)
    assert np.all(model.predict(X) > 0)
    table, out = tmp_path / "data.csv", tmp_path / "model.skops"
    pd.DataFrame(X, columns=list("abcd")).assign(y=y).to_csv(table, index=False)
    assert main(["fit", str(table), "--target", "y", "--loss", loss, "-o", str(out)]) == 0
    assert main(["predict", str(out), str(table), "-o", str(tmp_path / "p.csv")]) == 0
    assert (pd.read_csv(tmp_path / "p.csv").iloc[:, -1] > 0).all()
    capsys.readouterr()
    assert main(["evaluate", str(out), str(table)]) == 0
    assert "deviance" in capsys.readouterr().out


def test_searches_take_the_offset_in_fits_and_in_held_out_losses():
    rng = np.random.default_rng(3)
    X, exposure = rng.standard_normal((300, 2)), rng.uniform(0.1, 5.0, 300)
    y, offset = rng.poisson(exposure * np.exp(X @ [0.3, -0.2])), np.log(exposure)
    search = sorel.SpectralRiskRegressorCV(["mean", "cvar:0.5"], loss="poisson", l2s=[0.1], cv=3)
    search.fit(X, y, offset=offset)
    model = sorel.SpectralRiskRegressor("mean", loss="poisson", l2=0.1)
    model.fit(X[100:], y[100:], offset=offset[100:])
    z = X[:100] @ model.coef_ + model.intercept_ + offset[:100]
    losses = sorel.losses.Poisson().value(y[:100].astype(float), z)
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(-sorel.CVaR(0.1)(losses))
    with pytest.raises(ValueError, match="scoring='r2' would see predictions without the offset"):
        search.set_params(scoring="r2").fit(X, y, offset=offset)
