"""What the pictures say: the data of their lines, their labels and their scales."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is an extra")
matplotlib.use("Agg")

from matplotlib import pyplot as plt
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sorel
from sorel.plots import (
    ConvergenceDisplay,
    FrontierDisplay,
    LossTailDisplay,
    PathDisplay,
    SpectrumDisplay,
    plot_convergence,
    plot_frontier,
    plot_loss_tails,
    plot_path,
    plot_spectrum,
)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3))
Y = X @ [1.0, 2.0, 3.0] + RNG.standard_t(3, size=80)


@pytest.fixture(scope="module")
def models():
    tail = make_pipeline(StandardScaler(), sorel.SpectralRiskRegressor("cvar:0.1"))
    return {"ridge": Ridge().fit(X, Y), "tail": tail.fit(X, Y)}


@pytest.fixture(scope="module")
def results():
    problem = sorel.Problem(X, Y, risk="cvar:0.2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: sorel.solve(problem, name, max_passes=40) for name in ("auto", "sorel")}


@pytest.fixture(scope="module")
def frontier():
    R = np.random.default_rng(0).normal([0.01, 0.02, 0.0], [0.01, 0.04, 0.02], size=(100, 3))
    return sorel.SpectralRiskPortfolio(sorel.CVaR(0.1)).frontier(R, 5)


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_tail_is_the_share_of_losses_at_least_as_large():
    display = LossTailDisplay({"a": [3.0, 1.0, 2.0, 4.0]}, level=0.5).plot()
    (line,) = display.lines_
    np.testing.assert_array_equal(line.get_xydata().T, [[1, 2, 3, 4], [1, 0.75, 0.5, 0.25]])
    look = line.get_drawstyle(), line.get_marker(), display.ax_.get_yscale()
    assert look == ("steps-pre", "None", "log")
    assert legend(display.ax_) == ["a: CVaR(0.5) = 3.5"]
    assert "worst 50%" in texts(display.ax_)
    # Half of the smallest share and of the level are in the picture.
    assert (display.ax_.get_xlim()[0], display.ax_.get_ylim()[0]) == (0.0, 0.125)
    assert display.ax_.yaxis.get_major_formatter()(0.25) == "25%"
    few = LossTailDisplay({"a": [-1.0, 2.0]}, level=0.1).plot().ax_
    assert (few.get_ylim()[0], few.get_xlim()[0] < 0.0) == (0.05, True)
    (line,) = display.plot(kind="quantile", show_cvar=False).lines_
    assert display.ax_.texts[0].xy == (0.5, 1.0)
    np.testing.assert_array_equal(line.get_xydata().T, [[0, 0.25, 0.5, 0.75, 1], [1, 2, 3, 4, 4]])
    assert legend(display.ax_) == ["a"]


def test_loss_tails_of_models(models):
    ax = plot_loss_tails(models, X, Y)
    for line, (name, model) in zip(ax.get_lines(), models.items(), strict=True):
        losses = 0.5 * (model.predict(X) - Y) ** 2
        np.testing.assert_allclose(line.get_xdata(), np.sort(losses))
        assert line.get_label() == f"{name}: CVaR(0.1) = {sorel.CVaR(0.1)(losses):.3g}"
    assert ax.get_xlabel() == "loss (half the squared error)"
    # Without names they are called by risk or class, and numbered.
    other = sorel.SpectralRiskRegressor(sorel.CVaR(0.1)).fit(X, Y)
    ax = plot_loss_tails([*models.values(), other], X, Y, level=0.2)
    names = [text.partition(": CVaR")[0] for text in legend(ax)]
    assert names == ["Ridge", "cvar:0.1 (1)", "cvar:0.1 (2)"]


def test_losses_of_other_kinds(models):
    labels = np.where(Y > 0, "up", "down")
    model = LogisticRegression().fit(X, labels)
    display = LossTailDisplay.from_estimator(model, X, labels, name="plain")
    chosen = model.predict_proba(X)[np.arange(len(Y)), (labels == "up").astype(int)]
    np.testing.assert_allclose(display.losses["plain"], np.sort(-np.log(chosen)))
    absolute = LossTailDisplay.from_estimators(models, X, Y, loss="absolute")
    own = LossTailDisplay.from_estimators(models, X, Y, loss=lambda a, b: np.abs(a - b))
    np.testing.assert_allclose(absolute.losses["ridge"], own.losses["ridge"])
    display = LossTailDisplay.from_predictions(Y, models["ridge"].predict(X))
    np.testing.assert_allclose(display.losses["predictions"], 0.5 * own.losses["ridge"] ** 2)
    with pytest.raises(ValueError, match="no loss in common"):
        plot_loss_tails([models["ridge"], model], X, Y)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: LossTailDisplay({}), "no losses to draw"),
    (lambda: LossTailDisplay({"a": [1.0]}, level=1.5), "between 0 and 1, got 1.5"),
    (lambda: LossTailDisplay({"a": [np.inf]}), "a has losses that are not finite"),
    (lambda: LossTailDisplay({"a": [[1.0]]}), "one loss per sample"),
    (lambda: LossTailDisplay({"a": [1.0]}).plot(kind="bars"), "got 'bars'"),
    (lambda: ConvergenceDisplay({}), "at least one run"),
    (lambda: ConvergenceDisplay({"a": ([1.0], [np.inf])}), "no certified gap"),
    (lambda: ConvergenceDisplay({"a": ([1.0], [1.0, 2.0])}), "work of shape"),
    (lambda: ConvergenceDisplay({"a": ([1.0], [1.0])}, against="years"), "got 'years'"),
    (lambda: ConvergenceDisplay({"a": ([1.0], [1.0])}, optimum=0.0), "number other than 0"),
    (lambda: SpectrumDisplay({}), "no weights to draw"),
    (lambda: plot_spectrum("cvar:2"), "alpha must lie in"),
    (lambda: PathDisplay({}, []), "no coefficients"),
    (lambda: PathDisplay({"a": [1.0]}, [1.0, 2.0]), "one value for each of the 2"),
    (lambda: FrontierDisplay([1.0, 2.0], [0.0]), "one value per portfolio"),
])  # fmt: skip
def test_bad_values_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_convergence_shows_the_best_so_far(results):
    def descent(values):
        return np.maximum(np.minimum.accumulate(values), np.finfo(float).eps)

    ax = plot_convergence(results, tol=1e-6)
    for line, (name, result) in zip(ax.get_lines(), results.items(), strict=False):
        gaps = [record.best_relative_gap for record in result.history]
        assert line.get_label() == name
        np.testing.assert_array_equal(line.get_xdata(), [r.passes for r in result.history])
        np.testing.assert_array_equal(line.get_ydata(), descent(gaps))
    assert (ax.get_yscale(), ax.get_xlabel()) == ("log", "passes over the data")
    assert "tolerance 1e-06" in texts(ax)
    # Checks without a certificate are left out.
    display = ConvergenceDisplay({"a": ([0, 1, 2, 3], [np.inf, 1.0, np.nan, 0.0])}).plot()
    np.testing.assert_array_equal(display.lines_[0].get_xdata(), [1.0, 3.0])
    np.testing.assert_array_equal(display.lines_[0].get_ydata(), descent([1.0, 0.0]))
    # Or the distance to a known optimum.
    best, result = results["auto"].dual, results["sorel"]
    display = ConvergenceDisplay.from_result(result, optimum=best)
    assert display.ax_.get_ylabel() == "relative suboptimality"
    objectives = np.array([record.objective for record in result.history])
    drawn = display.lines_[0].get_ydata()
    np.testing.assert_allclose(drawn, descent((objectives - best) / abs(best)))


def test_convergence_of_estimators_knows_the_tolerance(models):
    model = sorel.SpectralRiskRegressor("cvar:0.1", tol=1e-3).fit(X, Y)
    display = ConvergenceDisplay.from_estimator(model)
    assert display.tol == 1e-3
    assert legend(display.ax_) == ["cvar:0.1"]
    assert legend(ConvergenceDisplay.from_estimator(model, name="mine").ax_) == ["mine"]
    both = plot_convergence({"a": model, "b": models["tail"]}, against="seconds")
    assert both.get_xlabel() == "seconds"
    assert not both.texts  # two tolerances, and none is drawn
    with pytest.raises(TypeError, match="Ridge has no history"):
        plot_convergence(Ridge())


def test_spectrum_is_the_weights_times_n():
    ax = plot_spectrum({"plain": sorel.Mean(), "tail": "cvar:0.3"}, n=5)
    lines = ax.get_lines()
    assert legend(ax) == ["plain", "tail"]
    np.testing.assert_allclose(lines[0].get_ydata(), 1.0)
    np.testing.assert_allclose(lines[1].get_ydata()[:-1], 5 * sorel.CVaR(0.3).weights(5))
    np.testing.assert_allclose(lines[1].get_xdata(), np.arange(6) / 5)
    mixture = sorel.Mixture([sorel.Mean(), sorel.CVaR(0.5)], [0.25, 0.75])
    ax = plot_spectrum([sorel.CVaR(0.1), mixture, sorel.CustomSpectrum([1.0, 2.0])])
    assert legend(ax) == ["cvar:0.1", "0.25 mean + 0.75 cvar:0.5", "CustomSpectrum((1.0, 2.0))"]
    assert plot_spectrum(["cvar:0.25", "cvar:0.1"]).get_ylim()[1] > 10.0
    # A risk that towers above the others leaves them room.
    ax = plot_spectrum(["mean", "cvar:0.25", "max"], n=100)
    assert ax.get_ylim()[1] == pytest.approx(6.0)
    assert "max: up to 100" in texts(ax)


def test_path_over_l2_or_risks():
    solutions = sorel.path(X, Y, l2=[1.0, 0.01, 0.1])
    ax = plot_path(solutions)
    assert (ax.get_xlabel(), ax.get_xscale(), ax.get_ylabel()) == ("l2", "log", "coefficient")
    lines = {line.get_label(): line for line in ax.get_lines()}
    order = np.argsort(solutions.l2)
    for k, name in enumerate(["x0", "x1", "x2"]):
        np.testing.assert_array_equal(lines[name].get_xdata(), [0.01, 0.1, 1.0])
        np.testing.assert_array_equal(lines[name].get_ydata(), solutions.coefs[order, k])
    ax = plot_path(sorel.path(X, Y, risks=["mean", "cvar:0.5"]))
    assert ax.get_xlabel() == "risk"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["mean", "cvar:0.5"]
    levels = PathDisplay.from_path(sorel.path(X, Y, risks=["cvar:0.5", "cvar:0.1"]))
    assert levels.ax_.get_xlabel().startswith("CVaR level")
    np.testing.assert_array_equal(levels.lines_[0].get_xdata(), [0.1, 0.5])


def test_path_over_a_grid_needs_a_choice():
    solutions = sorel.path(X, Y, risks=["mean", "cvar:0.5"], l2=[0.1, 1.0])
    with pytest.raises(ValueError, match=r"2 risks and 2 l2; choose one"):
        plot_path(solutions)
    assert plot_path(solutions, risk="cvar:0.5").get_xlabel() == "l2"
    display = PathDisplay.from_path(solutions, l2=0.1)
    np.testing.assert_array_equal(display.lines_[0].get_ydata(), solutions.coefs[[0, 2], 0])
    with pytest.raises(ValueError, match="no point with this risk and l2"):
        plot_path(solutions, l2=7.0)


def test_paths_of_several_classes_and_of_many_coefficients():
    labels = np.digitize(Y, [-1.0, 1.0])
    solutions = sorel.path(X, labels, loss="logistic", l2=[0.1, 1.0], tol=1e-3)
    display = PathDisplay.from_path(solutions)
    assert display.lines_[5].get_label() == "1: x2"
    np.testing.assert_array_equal(display.lines_[5].get_ydata(), solutions.coefs[:, 1, 2])
    coefficients = {f"c{k}": [0.1 * k, 0.2 * k] for k in range(14)}
    display = PathDisplay(coefficients, [1.0, 2.0], converged=[True, False]).plot()
    largest = [f"c{k}" for k in range(13, 3, -1)]
    assert legend(display.ax_) == [*largest, "4 others", "tolerance missed"]
    assert PathDisplay({"a": [1.0, 2.0]}, [0.0, 1.0]).plot().ax_.get_xscale() == "linear"


def test_frontier(frontier):
    display = FrontierDisplay.from_frontier(frontier)
    points = np.column_stack([frontier.risk, frontier.expected_return])
    np.testing.assert_array_equal(display.line_.get_xydata(), points)
    assert set(texts(display.ax_)) == {"x0", "x1", "x2"}
    missed = FrontierDisplay([1.0, 2.0], [0.0, 1.0], converged=[True, False]).plot()
    assert "tolerance missed" in legend(missed.ax_)


def test_given_axes_are_used(models, results, frontier):
    solutions = sorel.path(X, Y, risks=["mean", "cvar:0.5", "esrm:2"])
    _, axes = plt.subplots(5)
    assert plot_convergence(results, ax=axes[0]) is axes[0]
    assert plot_loss_tails(models, X, Y, ax=axes[1]) is axes[1]
    assert plot_spectrum(["mean", "cvar:0.25", "esrm:2", "max"], ax=axes[2]) is axes[2]
    assert plot_path(solutions, ax=axes[3]) is axes[3]
    assert plot_frontier(frontier, ax=axes[4]) is axes[4]
    assert len(plt.get_fignums()) == 1


def test_matplotlib_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "sorel\[plot\]"'):
        plot_spectrum("mean")
    code = "import sys, sorel.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("work", "scale"), [((1.0, 31.0), "log"), ((1.0, 29.0), "linear"), ((0.0, 90.0), "linear")]
)
def test_long_runs_are_drawn_over_logarithms_of_their_work(work, scale):
    curves = {"a": (np.array(work), np.array([1.0, 1e-3])), "b": ([1.0, 2.0], [1.0, 0.1])}
    assert ConvergenceDisplay(curves).plot().ax_.get_xscale() == scale
