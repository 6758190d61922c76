"""Portfolios against a conic solver, their certificates in plain NumPy, and bad input."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from helpers import conic_risk, conic_solve
from sklearn.base import clone

import sorel
from sorel import ESRM, CVaR, Deviation, Extremile, Max, Mean, Mixture
from sorel import SpectralRiskPortfolio as Portfolio

RISKS = [
    CVaR(0.2), CVaR(0.03), ESRM(5.0), Extremile(3.0), Max(), Mean(),
    Mixture([CVaR(0.2), Mean()], [0.7, 0.3]),
    Deviation(Extremile(2.0)), Deviation(CVaR(0.25)), Deviation(ESRM(3.0), 0.5),
]  # fmt: skip


def returns(n=120, d=4, seed=0):
    rng = np.random.default_rng(seed)
    market = rng.standard_t(4, size=(n, 1))
    scale = rng.uniform(0.005, 0.03, d)
    return 0.001 * rng.normal(size=d) + scale * (0.6 * market + rng.standard_t(4, size=(n, d)))


def random_case(seed):
    """Settings of every kind, on returns with repeated rows and columns."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 15)), int(rng.integers(1, 6))
    R = returns(n, d, seed)
    if seed % 3 == 0:
        R = R[rng.integers(0, n, n)]
    if seed % 4 == 0 and d > 1:
        R[:, -1] = R[:, 0]
    if seed % 7 == 0:
        R = np.round(R, 2)
    settings = {"reward": float(rng.choice([0.0, 0.0, 0.3, 2.0])), "l2": 0.0}
    if seed % 2:
        settings["l2"] = float(rng.choice([1e-4, 1e-2]))
    if seed % 5 in (1, 2, 3):
        settings["lower"] = rng.choice([0.0, -0.3, 0.05], d)
        settings["upper"] = settings["lower"] + rng.choice([0.4, 0.9, 2.0], d)
        middle = rng.uniform(0.1, 0.9)
        low, high = settings["lower"].sum(), settings["upper"].sum()
        settings["budget"] = float(low + middle * (high - low))
    if seed % 5 in (2, 3, 4):
        settings["transaction_cost"] = rng.choice([0.0, 1e-3, 1e-2], d)
        settings["previous_weights"] = rng.choice([0.0, 0.2, 0.5], d)
    weight = rng.integers(1, 4, n).astype(float) if seed % 6 == 5 else None
    return R, RISKS[seed % len(RISKS)], settings, weight


def conic_optimum(R, risk, settings, weight, target=None):
    """The optimal value, from the sums of the largest losses, with weights as repeated rows."""
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    rows = R if weight is None else np.repeat(R, weight.astype(int), axis=0)
    n, d = rows.shape
    w = cp.Variable(d)
    u = -rows @ w
    value = conic_risk(risk, u) + settings.get("reward", 0.0) * cp.sum(u) / n
    value += 0.5 * settings.get("l2", 0.0) * cp.sum_squares(w)
    cost = settings.get("transaction_cost", np.zeros(d))
    value += cost @ cp.abs(w - settings.get("previous_weights", np.zeros(d)))
    limits = [w >= settings.get("lower", 0.0), cp.sum(w) == settings.get("budget", 1.0)]
    if "upper" in settings:
        limits.append(w <= settings["upper"])
    if target is not None:
        limits.append(rows.mean(axis=0) @ w >= target)
    return conic_solve(100 * value, limits) / 100


def objective_by_hand(R, risk, settings, weight, w):
    omega = np.full(len(R), 1.0) if weight is None else weight
    u = -R @ w
    value = risk(u, weight) + settings.get("reward", 0.0) * np.average(u, weights=omega)
    cost = settings.get("transaction_cost", np.zeros(len(w)))
    value += cost @ np.abs(w - settings.get("previous_weights", np.zeros(len(w))))
    return value + 0.5 * settings.get("l2", 0.0) * w @ w


@pytest.mark.filterwarnings("ignore::sorel.ConvergenceWarning")  # 1e-9 may be rounding
@pytest.mark.parametrize("block", range(10))
def test_optima_of_a_conic_solver(block):
    for seed in range(20 * block, 20 * block + 20):
        R, risk, settings, weight = random_case(seed)
        model = Portfolio(risk, tol=1e-9, **settings).fit(R, sample_weight=weight)
        value = objective_by_hand(R, risk, settings, weight, model.weights_)
        best = conic_optimum(R, risk, settings, weight)
        spread = np.ptp(R @ model.weights_) + np.abs(R).max()
        assert value == pytest.approx(best, abs=1e-7 * spread), (seed, risk, settings)
        assert model.objective_ == pytest.approx(value, abs=1e-12 * spread)
        assert best >= model.objective_ - model.gap_ - 1e-9 * spread
        assert 0.0 <= model.gap_ <= 1e-7 * spread, (seed, model.status_)
        w, lower, upper = model.weights_, settings.get("lower", 0.0), settings.get("upper", np.inf)
        assert np.all(w >= lower - 1e-12)
        assert np.all(w <= upper + 1e-12)
        assert w.sum() == pytest.approx(settings.get("budget", 1.0), abs=1e-12)
        assert model.risk_ == pytest.approx(risk(-R @ w, weight), abs=1e-15)
        assert model.risk_contributions_.sum() == pytest.approx(model.risk_, abs=1e-14)
        # The weights of scenarios lie in P(sigma): no k exceed the k largest of the risk.
        if weight is None:
            lam, sigma = model.risk_weights_, getattr(risk, "risk", risk).weights(len(R))
            assert np.all(np.cumsum(np.sort(lam)[::-1]) <= np.cumsum(sigma[::-1]) + 1e-12)
            assert lam.sum() == pytest.approx(1.0)
            assert lam.min() >= 0.0


@pytest.mark.filterwarnings("ignore::sorel.ConvergenceWarning")  # 1e-9 may be rounding
@pytest.mark.parametrize("seed", range(12))
def test_a_least_mean_return(seed):
    R, risk, settings, _ = random_case(seed)
    settings["reward"] = 0.0
    base = Portfolio(risk, **settings)
    ends = base.frontier(R, 2)
    target = float(ends.target_return.mean())
    model = clone(base).set_params(target_return=target, tol=1e-7).fit(R)
    spread = np.ptp(R @ model.weights_) + np.abs(R).max()
    assert model.expected_return_ >= target - 1e-12
    best = conic_optimum(R, risk, settings, None, target)
    assert model.objective_ == pytest.approx(best, abs=1e-6 * spread), (seed, risk, settings)
    assert model.objective_ - model.gap_ <= best + 1e-8 * spread


def test_targets_at_the_ends():
    R = returns()
    free = Portfolio().fit(R)
    easy = Portfolio(target_return=free.expected_return_ - 0.01).fit(R)
    np.testing.assert_array_equal(easy.weights_, free.weights_)
    top = R.mean(axis=0).max()
    richest = Portfolio(target_return=top).fit(R)
    assert richest.weights_[R.mean(axis=0).argmax()] == pytest.approx(1.0)
    with pytest.raises(ValueError, match=rf"out of reach.*is {top:.8g}"):
        Portfolio(target_return=1.01 * top).fit(R)
    capped = np.sort(R.mean(axis=0))[-2:].mean()
    with pytest.raises(ValueError, match=rf"is {capped:.8g}"):
        Portfolio(target_return=top, upper=0.5).fit(R)
    # Where weights have no bounds, any return can be had.
    free = {"lower": None, "l2": 0.01, "risk": CVaR(0.2)}
    model = Portfolio(**free, target_return=5.0 * top).fit(R)
    best = conic_optimum(R, CVaR(0.2), {"lower": -np.inf, "l2": 0.01}, None, 5.0 * top)
    assert model.objective_ == pytest.approx(best, rel=1e-5)
    with pytest.raises(ValueError, match="no upper limit within these bounds: give targets"):
        Portfolio(**free).frontier(R)


def test_the_frontier():
    R = returns(200, 6, 1)
    model = Portfolio(CVaR(0.1), upper=1.2, budget=2.0)
    frontier = model.frontier(R, 8)
    np.testing.assert_allclose(frontier.asset_return, 2.0 * R.mean(axis=0))
    np.testing.assert_allclose(frontier.asset_risk, [CVaR(0.1)(-2.0 * each) for each in R.T])
    assert len(frontier) == 8
    assert frontier.converged.all()
    np.testing.assert_allclose(frontier.expected_return, frontier.target_return, atol=1e-12)
    # It rises, and is convex.
    slopes = np.diff(frontier.risk) / np.diff(frontier.expected_return)
    assert np.all(slopes >= 0.0)
    assert np.all(np.diff(slopes) >= -1e-5 * slopes.max())
    for k in (0, 3, 7):
        target = frontier.target_return[k]
        best = conic_optimum(R, CVaR(0.1), {"upper": 1.2, "budget": 2.0}, None, target - 1e-15)
        assert frontier.risk[k] == pytest.approx(best, rel=2e-6)
    given = model.frontier(R, targets=[0.0, frontier.target_return[3]])
    assert given.expected_return[1] == pytest.approx(frontier.target_return[3])
    for wrong in (2.5, 0, "3"):
        with pytest.raises(ValueError, match=f"n_points must be a whole number.*got {wrong!r}"):
            model.frontier(R, wrong)


def test_names_forms_scenarios_and_files(tmp_path):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    R = returns(80, 4, 3)
    # Assets that a mapping does not name keep the default of the bound.
    listed = {"lower": [0, 0, -0.3, 0], "upper": [0.5, 0.5, np.inf, np.inf]}
    model = Portfolio(CVaR(0.1), l2=1e-3, transaction_cost=[0.01, 0, 0, 0], **listed)
    by_place = model.fit(R).weights_
    np.testing.assert_allclose(model.fit(scipy.sparse.csr_array(R)).weights_, by_place, atol=1e-6)
    model.set_params(lower={"c": -0.3}, upper={"a": 0.5, "b": 0.5}, transaction_cost={"a": 0.01})
    for index in (pd.date_range("2024-01-01", periods=80), [f"day {i}" for i in range(80)]):
        frame = pd.DataFrame(R, columns=list("abcd"), index=index)
        np.testing.assert_allclose(model.fit(frame).weights_, by_place, atol=1e-12)
        np.testing.assert_allclose(model.predict(frame), R @ model.weights_, atol=1e-15)
        # The largest loss first.
        worst = model.worst_scenarios_
        assert worst.index.name == "scenario"
        assert set(worst.index) <= set(index)
        lowest = np.sort(model.predict(frame))[: len(worst)]
        np.testing.assert_allclose(worst["return"], lowest, atol=1e-6)
        pytest.importorskip("skops", reason="skops is an extra")
        sorel.save_model(model, tmp_path / "model.skops")
        loaded = sorel.load_model(tmp_path / "model.skops")
        np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
        pd.testing.assert_frame_equal(loaded.worst_scenarios_, worst)
    assert list(model.frontier(frame, 3).to_frame().columns[-4:]) == list("abcd")


def test_more_assets_than_scenarios_and_one_asset():
    R = returns(20, 60, 5)
    model = Portfolio(CVaR(0.2)).fit(R)
    assert model.gap_ <= 1e-6 * np.ptp(R)
    best = conic_optimum(R, CVaR(0.2), {}, None)
    assert model.objective_ == pytest.approx(best, abs=1e-6 * np.ptp(R))
    R = returns(20, 1, 6)
    for settings in ({}, {"upper": 2.0}, {"transaction_cost": 0.1}, {"target_return": R.mean()}):
        model = Portfolio(CVaR(0.2), **settings).fit(R)
        np.testing.assert_allclose(model.weights_, [1.0])
        assert model.risk_ == pytest.approx(CVaR(0.2)(-R[:, 0]))


@pytest.mark.parametrize(("settings", "words"), [
    ({"lower": 0.3}, "lower bounds of 4 weights add up to 1.2, above the budget of 1"),
    ({"upper": 0.2}, "upper bounds of 4 weights add up to 0.8, below the budget of 1"),
    ({"lower": [0, 0, 0.5, 0], "upper": 0.4}, "lower=0.5 and upper=0.4 at index 2"),
    ({"budget": 0.0}, "budget=0 leaves nothing to invest"),
    ({"budget": np.inf}, "budget must be a finite number"),
    ({"lower": None}, "unbounded"),
    ({"upper": [0.5, 0.5]}, "one value for each of the 4 assets"),
    ({"reward": -1.0}, "reward must be a finite number >= 0, got -1"),
    ({"reward": 1.0, "target_return": 0.0}, "drop one"),
    ({"target_return": np.nan}, "target_return must be a finite number, got nan"),
    ({"l2": -1.0}, "l2 must be a finite number >= 0"),
    ({"transaction_cost": -0.1}, "cost must be at least 0, got -0.1"),
    ({"upper": {"z": 0.1}}, r"upper names 'z', which is no column .*'x2', 'x3'\]$"),
    ({"solver": "simplex"}, "unknown solver"),
])  # fmt: skip
def test_settings_that_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Portfolio(**settings).fit(returns())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_returns_that_are_missing_and_columns_of_one_name(value):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    R = returns()
    R[17, 2] = value
    frame = pd.DataFrame(R, columns=list("abcd"), index=pd.date_range("2024-01-01", periods=120))
    for given, words in (
        (R, f"return of asset 2 in scenario 17 is {value}; drop"),
        (scipy.sparse.csr_array(R), "asset 2 in scenario 17"),
        (frame, "return of asset 'c' in scenario 2024-01-18"),
        (frame.set_axis(list("abcb"), axis=1), "2 columns called 'b'; rename them"),
    ):
        with pytest.raises(ValueError, match=words):
            Portfolio().fit(given)


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_prices_are_no_returns(form):
    R = returns()
    prices = 40.0 * np.cumprod(1.0 + R, axis=0)
    for find in (Portfolio().fit, Portfolio().frontier):
        with pytest.warns(UserWarning, match=r"look like prices.*pct_change"):
            find(form(prices))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Portfolio().fit(form(R))
        Portfolio().fit(form(R + 0.5))  # nobody loses, by a bonus
        Portfolio().fit(form(500.0 * R))


@pytest.mark.parametrize(
    "risk", [CVaR(0.02), Deviation(CVaR(0.02)), Mixture([CVaR(0.02), Mean()], [0.7, 0.3])]
)
def test_tails_of_less_than_one_scenario(risk):
    R = 50.0 * returns(50, 3, 10)
    words = r"CVaR\(alpha=0\.02\) .* 49 scenarios.*less than one scenario.* 0\.0204 "
    with pytest.warns(UserWarning, match=words):
        Portfolio(risk).fit(R[:49])
    # Of 50 equal scenarios the tail holds one, also where two of them are one row of weight 2.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Portfolio(risk).fit(R)
        Portfolio(risk).fit(R[:49], sample_weight=np.r_[2.0, np.ones(48)])
        Portfolio(Max()).fit(R[:49])


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_contributions_of_a_fit_that_was_cut_short(share):
    R = returns(300, 8, 12)
    risk = Deviation(CVaR(0.05), share) if share else CVaR(0.05)
    model = Portfolio(risk, tol=1e-12, max_passes=6)
    with pytest.warns(sorel.ConvergenceWarning, match="risk_contributions_ add up to"):
        model.fit(R)
    # The parts of the weighting that is known, and nothing on top.
    parts = -model.weights_ * (R.T @ (model.risk_weights_ - share / 300))
    np.testing.assert_allclose(model.risk_contributions_, parts, rtol=1e-12)
    assert model.risk_ - model.gap_ <= parts.sum() < model.risk_


def test_scores_compare_risks():
    """All are measured by one, CVaR(0.05): by itself a level of 1 would always win."""
    R = returns(400, 4, 14)
    for risk in (CVaR(0.5), Deviation(Extremile(2.0))):
        model = Portfolio(risk).fit(R[:300])
        expected = -CVaR(0.05)(-R[300:] @ model.weights_)
        assert model.score(R[300:]) == pytest.approx(expected, rel=1e-12)


def test_model_selection_of_skfolio():
    pytest.importorskip("skfolio", reason="skfolio is an extra")
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    from skfolio.model_selection import WalkForward, cross_val_predict

    from sorel.skfolio import SpectralRiskOptimization

    days = pd.date_range("2024-01-01", periods=150)
    frame = pd.DataFrame(returns(150, 4, 9), columns=list("abcd"), index=days)
    walk = WalkForward(train_size=60, test_size=30)
    for settings in ({}, {"transaction_cost": 0.001}):
        model = SpectralRiskOptimization(Portfolio(CVaR(0.1), **settings))
        path = cross_val_predict(model, frame, cv=walk)
        assert len(path.portfolios) == 3
        first = Portfolio(CVaR(0.1), **settings).fit(frame[:60])
        np.testing.assert_allclose(path.portfolios[0].weights, first.weights_, atol=1e-6)
    # With costs, each fold starts from the weights of the one before.
    second = Portfolio(CVaR(0.1), previous_weights=first.weights_, **settings).fit(frame[30:90])
    np.testing.assert_allclose(path.portfolios[1].weights, second.weights_, atol=1e-5)
