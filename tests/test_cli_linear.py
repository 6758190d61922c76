"""The commands portfolio and quantile: from a table to a table, and what they refuse."""

import numpy as np
import pytest

import sorel
from sorel import cli

pd = pytest.importorskip("pandas", reason="pandas is an extra")


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture
def returns(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(0.001 + 0.01 * rng.standard_t(4, size=(80, 3)), columns=["a", "b", "c"])
    dated = frame.copy()
    dated.insert(0, "date", pd.date_range("2024-01-01", periods=80).strftime("%Y-%m-%d"))
    dated.to_csv(tmp_path / "returns.csv", index=False)
    return tmp_path / "returns.csv", frame


def test_portfolio(returns, tmp_path, capsys):
    path, frame = returns
    out = tmp_path / "weights.csv"
    assert run("portfolio", path, "--risk", "cvar:0.1", "--upper", 0.6, "-o", out) == 0
    table = pd.read_csv(out)
    model = sorel.SpectralRiskPortfolio(sorel.CVaR(0.1), upper=0.6).fit(frame)
    assert table["asset"].tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(table["weight"], model.weights_, atol=1e-12)
    assert table["risk_contribution"].sum() == pytest.approx(model.risk_)
    assert "certified gap" in capsys.readouterr().err
    # Without dates the first column is an asset, too.
    frame.to_csv(path, index=False)
    assert run("portfolio", path, "-o", out) == 0
    assert pd.read_csv(out)["asset"].tolist() == ["a", "b", "c"]


def test_portfolio_with_a_target_and_a_picture(returns, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    path, frame = returns
    target = float(frame.mean().sort_values().iloc[1:].mean())
    picture, out = tmp_path / "frontier.png", tmp_path / "weights.csv"
    plot = ["--plot", picture, "-o", out]
    assert run("portfolio", path, "--target-return", target, *plot) == 0
    assert picture.stat().st_size > 5000
    assert pd.read_csv(out)["weight"] @ frame.mean().to_numpy() == pytest.approx(target)
    capsys.readouterr()
    short = ["--risk", "esrm:2", "--l2", "0.1", "--tol", "1e-17", "--max-passes", "2", "-q"]
    assert run("portfolio", path, *plot, *short) == 3
    portfolio, frontier = capsys.readouterr().err.splitlines()
    assert "is above --tol 1e-17, and the contributions add up to" in portfolio
    assert "of the 20 points of the frontier miss --tol 1e-17, the worst with a rel" in frontier
    (25.0 * (1.0 + frame).cumprod()).to_csv(path, index=False)
    run("portfolio", path, *plot)
    assert capsys.readouterr().err.count("look like prices") == 1


def refusal(capsys, code, *arguments):
    """What a command says when it ends with a code, in one line."""
    assert run(*arguments) == code
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--target-return", "1"], 4, "out of reach: the largest mean return"),
    (["--upper", "0.2"], 4, "upper bounds of 3 weights add up to 0.6"),
    (["--budget", "0"], 2, "--budget 0 leaves nothing to invest"),
    (["--lower", "0.5", "--upper", "0.4"], 2, "--lower 0.5 is above --upper 0.4"),
    (["--reward", "1", "--target-return", "0"], 2, "exclude each other"),
])  # fmt: skip
def test_what_portfolio_refuses(returns, capsys, arguments, code, words):
    assert words in refusal(capsys, code, "portfolio", returns[0], *arguments)


def test_portfolio_names_what_is_no_return(returns, capsys):
    path, frame = returns
    frame.assign(note="p").to_csv(path, index=False)
    assert "column 'note' holds texts" in refusal(capsys, 4, "portfolio", path)
    frame.loc[7, "b"] = np.nan
    frame.to_csv(path, index=False)
    assert "return of asset 'b' in scenario " in refusal(capsys, 4, "portfolio", path)


@pytest.fixture
def people(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=150), "kind": rng.choice(["p", "q"], 150)})
    frame["y"] = 2.0 * frame["x"] + (frame["kind"] == "q") + rng.standard_t(3, size=150)
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv", frame


def test_quantile(people, tmp_path):
    path, frame = people
    out = tmp_path / "coefficients.csv"
    levels = ["0.9", "0.1", "0.5"]
    arguments = ["--target", "y", "--quantiles", *levels, "--noncrossing", "-o", out]
    assert run("quantile", path, *arguments) == 0
    table = pd.read_csv(out)
    assert table["quantile"].tolist() == [0.1, 0.5, 0.9]
    assert list(table.columns[-3:]) == ["intercept", "x", "kind_q"]
    X = np.column_stack([frame["x"], frame["kind"] == "q"])
    model = sorel.QuantileRegressor(quantile=0.5, alpha=0.0).fit(X, frame["y"])
    np.testing.assert_allclose(table.loc[1, ["x", "kind_q"]].astype(float), model.coef_, atol=1e-5)
    np.testing.assert_allclose(table["coverage"], table["quantile"], atol=0.03)
    assert (table["relative_gap"] <= 1e-6).all()
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    assert run("quantile", path, "--target", "y", "--plot", tmp_path / "q.png", "-q") == 0
    assert (tmp_path / "q.png").stat().st_size > 5000


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--target", "kind"], 4, "'kind' should hold numbers, but row 1"),
    (["--target", "y", "--quantiles", "0.5", "0.5"], 2, "names a level twice"),
    (["--target", "y", "--drop", "x", "--drop", "kind"], 4, "no columns to learn from"),
])  # fmt: skip
def test_what_quantile_refuses(people, capsys, arguments, code, words):
    assert words in refusal(capsys, code, "quantile", people[0], *arguments)


@pytest.mark.parametrize("risk", ["cvar:0.2", "deviation:cvar:0.2"])
def test_fit_with_the_linear_loss(risk, tmp_path, capsys):
    pytest.importorskip("skops", reason="skops is an extra")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
    frame["y"] = frame.sum(axis=1) + rng.normal(size=200)
    frame.to_csv(tmp_path / "data.csv", index=False)
    given = ("fit", tmp_path / "data.csv", "--target", "y", "--risk", risk, "--loss", "linear")
    out = tmp_path / "model.skops"
    assert run(*given, "--l2", 0.1, "-o", out) == 0
    model = sorel.load_model(out)[-1]
    assert model.intercept_ == 0.0
    assert model.converged_
    X = frame[["a", "b", "c"]].to_numpy()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    problem = sorel.Problem(X, frame["y"], risk=risk, loss="linear", penalty=sorel.L2(0.1))
    best = sorel.solve(problem, tol=1e-8).objective
    assert problem.objective(model.coef_) == pytest.approx(best, rel=1e-3)
    capsys.readouterr()
    assert run(*given, "--intercept", "free", "-o", out) == 2
    assert "--loss linear has no best intercept" in capsys.readouterr().err
    assert run("evaluate", out, tmp_path / "data.csv") == 0
