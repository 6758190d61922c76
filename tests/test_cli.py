"""Arguments, exit codes and messages of the command, and its way from a table to predictions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import sorel
import sorel.rows
from sorel import cli
from sorel.saving import read_summary
from sorel.tables import read_table

pd = pytest.importorskip("pandas", reason="pandas is an extra")
pytest.importorskip("skops", reason="skops is an extra")

PROGRAM = [sys.executable, "-m", "sorel"]
# The package that is tested, also from another folder.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sorel.__file__).resolve().parents[1])}
FEATURES = ["age", "income", "city", "member", "zip"]


def run(*arguments):
    try:
        return cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def fit(table, target, *arguments):
    """Fit and save to m.skops; the exit code."""
    return run("fit", table, "--target", target, *arguments, "-o", "m.skops")


def predictions(model, table, *arguments):
    assert run("predict", model, table, *arguments, "-o", "out.csv") == 0
    return read_table("out.csv")["prediction"]


def report(model, table, *arguments):
    """What evaluate writes, by group."""
    assert run("evaluate", model, table, *arguments, "-o", "r.csv") == 0
    return read_table("r.csv").set_index("group")


def refused(capsys, *arguments, code=4):
    """What the command says when it fails, which is one line and no traceback."""
    before = sorted(os.listdir())
    capsys.readouterr()
    assert run(*arguments) == code
    assert sorted(os.listdir()) == before
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith(("note", "warning"))]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def people(n=120, seed=0):
    """Numbers, texts and truth values, and targets of both kinds that depend on them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "age": rng.integers(18, 80, n),
        "income": rng.normal(50.0, 10.0, n),
        "city": rng.choice(["Oslo", "Bergen", "Ås, nord"], n),
        "member": rng.random(n) < 0.4,
        "zip": rng.choice(["0150", "5003"], n),
    })  # fmt: skip
    level = 0.03 * frame["age"] + 0.1 * frame["income"] + (frame["city"] == "Oslo")
    frame["price"] = level + rng.standard_t(3, n)
    frame["churn"] = np.where(level + rng.normal(size=n) > np.median(level), "yes", "no")
    return frame


def cell(column, rows, value):
    """A change of a table: other values in some rows of a column."""

    def change(frame):
        frame = frame.astype({column: object})
        frame.loc[rows, column] = value
        return frame

    return change


def column(**values):
    """A change of a table: other columns, or None for those that go."""

    def change(frame):
        frame = frame.assign(**values)
        return frame.drop(columns=[name for name in values if values[name] is None])

    return change


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with training and test tables, and the current one."""
    monkeypatch.chdir(tmp_path)
    people().to_csv("train.csv", index=False)
    people(60, seed=1).to_csv("test.csv", index=False)
    return tmp_path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A regression and a classification, fitted once."""
    place = tmp_path_factory.mktemp("models")
    table = place / "train.csv"
    people().to_csv(table, index=False)
    common = ["-q", "--categorical", "zip", "--risk", "cvar:0.2"]
    price, churn = place / "price.skops", place / "churn.skops"
    assert run("fit", table, "--target", "price", "--drop", "churn", *common, "-o", price) == 0
    assert run("fit", table, "--target", "churn", "--drop", "price", *common, "-o", churn) == 0
    return {"price": price, "churn": churn}


def python_pipeline(model, target):
    """The pipeline of ``sorel fit``, written out and fitted."""
    columns = ColumnTransformer([
        ("numeric", StandardScaler(), ["age", "income"]),
        ("categorical", OneHotEncoder(), ["city", "member", "zip"]),
    ])  # fmt: skip
    train = people()
    kind = object if target == "churn" else float
    return Pipeline([("columns", columns), ("model", model)]).fit(
        train[FEATURES], train[target].to_numpy(dtype=kind)
    )


FIT_PRICE = ["fit", "train.csv", "--target", "price", "--drop", "churn", "-o", "m.skops"]
FIT = ["fit", "t.csv", "--target", "y", "-o", "m"]


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "required: COMMAND"),
    (["dance"], "invalid choice: 'dance'"),
    (["demo", "--splits", "two"], "at least 1, got 'two'"),
    (FIT[:4], "required: -o/--output"),
    ([*FIT, "--risk", "cvar:7"], "(0, 1], got 7"),
    ([*FIT, "--l2", "0"], "above 0, got '0'; use auto"),
    (["quantile", "t.csv", "--target", "y", "--quantiles", "2"], "between 0 and 1, got '2'"),
    ([*FIT, "--l1", "-1"], "at least 0, got '-1'"),
    ([*FIT, "--mean-slack", "3%5"], "a share such as 3% or 0.03, got '3%5'"),
    ([*FIT, "--sep", "ab"], "one character, got 'ab'"),
])  # fmt: skip
def test_bad_arguments_exit_with_two(arguments, message, capsys):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--version", "--help"])
def test_help_waits_for_no_library(words):
    timed = [sys.executable, "-X", "importtime", "-m", "sorel", words]
    done = subprocess.run(timed, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert "numpy" not in done.stderr


# The way from a table to predictions.


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_regression_equals_python_to_the_last_digit(folder, capsys, ending):
    test = people(60, seed=1)
    if ending == "parquet":
        people().to_parquet("train.parquet")
        test.to_parquet("test.parquet")
    options = ["--risk", "cvar:0.1", "--drop", "churn", "--categorical", "zip"]
    assert fit(f"train.{ending}", "price", *options) == 0
    assert "saved to m.skops" in capsys.readouterr().err
    assert run("predict", "m.skops", f"test.{ending}", "-o", f"out.{ending}") == 0
    model = sorel.SpectralRiskRegressor(risk="cvar:0.1", random_state=0)
    expected = python_pipeline(model, "price").predict(test)
    np.testing.assert_array_equal(read_table(f"out.{ending}")["prediction"], expected)
    np.testing.assert_array_equal(sorel.load_model("m.skops").predict(test[FEATURES]), expected)


def test_classification_equals_python_to_the_last_digit(folder, models):
    test = people(60, seed=1)
    code = run("predict", models["churn"], "test.csv", "--proba", "--keep", "zip", "-o", "out.csv")
    assert code == 0
    out = read_table("out.csv", text_columns=["zip"])
    assert list(out) == ["zip", "prediction", "probability_no", "probability_yes"]
    model = sorel.SpectralRiskClassifier(risk="cvar:0.2", random_state=0)
    model = python_pipeline(model, "churn")
    np.testing.assert_array_equal(out["prediction"], model.predict(test))
    np.testing.assert_array_equal(out.iloc[:, 2:], model.predict_proba(test))
    assert out["zip"].tolist() == test["zip"].tolist()
    # Other columns, and their order, do not matter.
    test.assign(note="new")[["note", *FEATURES[::-1]]].to_csv("turned.csv", index=False)
    assert predictions(models["churn"], "turned.csv").tolist() == out["prediction"].tolist()


def test_standard_input_and_output(folder):
    def piped(*arguments):
        streams = {"input": Path("train.csv").read_bytes(), "capture_output": True}
        ended = subprocess.run([*PROGRAM, *arguments], check=True, env=ENVIRONMENT, **streams)
        assert ended.stderr == b""
        return ended.stdout

    Path("m.skops").write_bytes(piped("fit", "-", "--target", "price", "-q", "-o", "-"))
    Path("out.csv").write_bytes(piped("predict", "m.skops", "-"))
    expected = sorel.load_model("m.skops").predict(read_table("train.csv"))
    np.testing.assert_array_equal(read_table("out.csv")["prediction"], expected)


def test_reader_that_stops_early_gets_no_traceback(folder, models):
    pd.concat([people(60, seed=1)] * 300).to_csv("long.csv", index=False)
    command = [*PROGRAM, "predict", str(models["price"]), "long.csv"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRONMENT, **streams) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (1, b"")


def test_evaluate_reports_the_model_s_own_losses(folder, models, capsys):
    test = people(60, seed=1)
    errors = sorel.load_model(models["price"]).predict(test) - test["price"]
    losses, oslo = 0.5 * errors**2, test["city"] == "Oslo"
    found = report(models["price"], "test.csv", "--groups", "city")
    assert found.loc["all", "mean"] == pytest.approx(losses.mean())
    assert found.loc["all", "cvar_0.1"] == pytest.approx(sorel.CVaR(0.1)(losses))
    assert found.loc["Oslo", "worst"] == pytest.approx(losses[oslo].max())
    assert found.loc["Oslo", "bias"] == pytest.approx(errors[oslo].mean())
    assert found["n"].tolist()[1:4] == test.groupby("city").size().tolist()
    test.assign(region=["north", None] * 30).to_csv("test.csv", index=False)
    assert run("evaluate", models["price"], "test.csv", "--groups", "city") == 0
    assert "Ås, nord" in capsys.readouterr().out
    found = report(models["price"], "test.csv", "--groups", "region")
    assert found.loc[["all", "(missing)", "north"], "n"].tolist() == [60, 30, 30]


@pytest.mark.parametrize("name", ["price", "churn"])
def test_evaluate_compares_with_the_constant_and_the_plain_model(folder, models, name):
    test, train = people(60, seed=1), people()["price"].to_numpy()
    found = report(models[name], "test.csv")
    model = clone(sorel.load_model(models[name])[-1]).set_params(risk="mean")
    plain = python_pipeline(model, name)
    constant, row = found.loc["(constant model)"], found.loc["(plain fit)"]
    assert {"(plain fit + constant)", "(plain fit, recalibrated)"} < set(found.index)
    if name == "price":
        bias = (plain.predict(test) - test["price"]).mean()
        assert row["bias"] == pytest.approx(bias, rel=1e-6)
        # One number for everybody: the best for the risk of the model, cvar:0.2.
        grid = np.linspace(train.min(), train.max(), 20_001)
        best = min(grid, key=lambda value: sorel.CVaR(0.2)(0.5 * (train - value) ** 2))
        losses = 0.5 * (test["price"] - best) ** 2
        assert constant["mean"] == pytest.approx(losses.mean(), rel=1e-2)
    else:
        assert row["accuracy"] == pytest.approx(plain.score(test, test["churn"]))
        auc = roc_auc_score(test["churn"] == "yes", plain.decision_function(test))
        assert row["auc"] == pytest.approx(auc)
        assert row["mean_p"] == pytest.approx(plain.predict_proba(test)[:, 1].mean())
        assert row["rate"] == (test["churn"] == "yes").mean()
        assert constant["auc"] == 0.5
        assert constant["cvar_0.1"] == pytest.approx(np.log(2), rel=1e-3)


def test_pictures_of_held_out_losses_and_of_tails_by_group(folder, capsys, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    assert fit("train.csv", "price", "--drop", "churn", "--plot", "fit.svg") == 0
    assert "<!-- plain fit" in Path("fit.svg").read_text(encoding="utf-8")
    assert run("evaluate", "m.skops", "test.csv", "--groups", "city", "--plot", "tails.svg") == 0
    words = Path("tails.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name}" in words for name in ("plain fit", "cvar:0.5", "Bergen", "Oslo"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused(capsys, "evaluate", "m.skops", "test.csv", "--plot", "x.png", code=1)
    assert '--plot needs matplotlib: pip install "sorel[plot]"' in message


def test_messages_name_options_and_no_parameters(folder, capsys):
    message = refused(capsys, *FIT_PRICE, "--risk", "deviation:cvar:0.1")
    assert "deviation:cvar:0.1 needs an affine loss" in message
    assert "use --loss linear, or the risk cvar:0.1" in message
    assert run(*FIT_PRICE, "--tol", "1e-30") == 3
    warned = capsys.readouterr().err
    assert warned.count("--tol 1e-30 is below the rounding of the table") == 1
    assert "tol=" not in warned


def test_evaluate_of_several_labels(folder):
    people().to_csv("t.csv", index=False)
    assert fit("t.csv", "city", "--risk", "esrm:1") == 0
    found = report("m.skops", "t.csv").loc["all"]
    shares = sorel.load_model("m.skops").predict_proba(people())
    assert found["mean_p"] == pytest.approx(shares.max(axis=1).mean())
    assert "rate" not in found


def test_constant_models_are_reported_wherever_they_are_met(folder, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    frame["y"] = np.where(frame["a"] + 2 * rng.logistic(size=400) > 0, "yes", "no")
    frame.to_csv("t.csv", index=False)
    assert fit("t.csv", "y", "--risk", "cvar:0.1") == 0
    assert "warning: the fitted model is (nearly) constant" in capsys.readouterr().err
    assert run("info", "m.skops") == 0
    assert "the model is constant" in capsys.readouterr().out
    assert run("evaluate", "m.skops", "t.csv") == 0
    assert "(nearly) constant" in capsys.readouterr().err
    assert fit("t.csv", "y", "--risk", "mean") == 0
    assert run("evaluate", "m.skops", "t.csv") == 0
    assert "constant" not in capsys.readouterr().err


def test_fit_says_what_a_tail_risk_gives_up(folder, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=list("ab"))
    frame["y"] = frame["a"] + rng.exponential(size=300)
    frame["late"] = np.where(2 * frame["a"] + frame["y"] > 2, "yes", "no")
    frame.to_csv("t.csv", index=False)
    assert fit("t.csv", "y", "--risk", "cvar:0.02", "--drop", "late") == 0
    said = capsys.readouterr().err
    assert "the tail of cvar:0.02 holds 6 of 300 rows, fewer than 10" in said
    assert "above the targets on average" in said
    assert "use --intercept mean, a milder risk" in said
    assert fit("t.csv", "y", "--risk", "cvar:0.1", "--drop", "late", "--intercept", "mean") == 0
    assert "on average" not in capsys.readouterr().err
    assert fit("t.csv", "late", "--risk", "cvar:0.3", "--drop", "y", "--l2", "0.1") == 0
    assert "use a milder risk, or --cv --mean-slack 3%" in capsys.readouterr().err


def test_info_shows_the_summary(models, folder, capsys):
    assert run("info", models["price"]) == 0
    printed = capsys.readouterr().out
    assert "zip (text)" in printed
    assert "member (boolean)" in printed
    odd = {"rows": 3, "name": "a\x1b\x7f\x9b\u202e"}
    sorel.save_model(sorel.load_model(models["price"]), "odd.skops", summary=odd)
    assert run("info", "odd.skops", "--json") == 0
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "\x7f" not in printed
    assert json.loads(printed) == read_summary("odd.skops")


@pytest.mark.parametrize(("values", "options", "task", "note"), [
    (["a", "b", "c"], [], "classification", ""),
    ([True, False], [], "classification", ""),
    ([0, 1], [], "classification", "the two values 0 and 1, taken as labels"),
    ([1, 2, 3], [], "regression", "3 different whole numbers, taken as numbers"),
    # Some labels look like numbers.
    (["1", "2", "2b"], ["--task", "classification"], "classification", ""),
])  # fmt: skip
def test_task_follows_the_target(folder, capsys, values, options, task, note):
    frame = people()[["age", "income"]]
    frame["y"] = np.resize(np.array(values, dtype=object), len(frame))
    frame.to_csv("t.csv", index=False)
    assert fit("t.csv", "y", "--tol", "1e-3", *options) == 0
    errors = capsys.readouterr().err
    risk = "esrm:1.0" if task == "classification" else "cvar:0.5"
    assert f"{task} with {risk}" in errors
    assert ("note:" in errors) == bool(note)
    assert note in errors
    predictions("m.skops", "t.csv")
    assert run("evaluate", "m.skops", "t.csv") == 0
    if task == "classification":
        assert sorel.load_model("m.skops").classes_.tolist() == sorted(values)


def test_missed_tolerance_has_its_own_code(folder, capsys):
    assert fit("train.csv", "price", "--tol", "1e-12", "--max-passes", "2") == 3
    errors = capsys.readouterr().err
    assert "is above --tol 1e-12; raise --max-passes" in errors
    assert "saved to m.skops" in errors
    predictions("m.skops", "test.csv")


def test_terminals_get_progress_and_no_model(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert fit("train.csv", "price") == 0
    assert "\r" in capsys.readouterr().err
    assert sorel.load_model("m.skops")[-1].verbose == 0
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    given = ["fit", "train.csv", "--target", "price", "-o", "-"]
    assert "not for a terminal" in refused(capsys, *given, code=2)


# Tables and arguments that are refused.


@pytest.mark.parametrize(("arguments", "message"), [
    (["price", "--loss", "logistic"], "--loss logistic does not suit regression"),
    (["price", "--drop", "price"], "'price' is the target"),
    (["price", "--class-weight", "balanced"], "--class-weight is for labels"),
    (["price", "--risk", "mean", "--l2", "1", "--cv"], "nothing to choose"),
    (["price", "--cv", "121"], "--cv 121 is more than the 120 rows; give fewer folds"),
    (["price", "--tail", "cvar:0.05"], "--tail says what --cv chooses by; add --cv"),
    (["price", "--mean-slack", "3%"], "--mean-slack says what --cv chooses by; add --cv"),
    (["churn", "--intercept", "mean"], "--intercept mean is for targets that are numbers"),
    (["price", "--intercept", "mean", "--loss", "gamma"], "and --loss gamma predicts by an"),
    (["city", "--loss", "squared_hinge"], "--loss squared_hinge takes two labels"),
    (["price", "--plot", "p.txt"], "--plot p.txt has no ending of a picture; use .png"),
])  # fmt: skip
def test_arguments_that_do_not_go_together(folder, capsys, arguments, message):
    people().assign(price=1.0 + np.arange(120.0)).to_csv("train.csv", index=False)
    given = ["fit", "train.csv", "--target", *arguments, "-o", "m.skops"]
    assert message in refused(capsys, *given, code=2)


def same(frame):
    return frame


@pytest.mark.parametrize(("change", "arguments", "message"), [
    (column(Price=1.0, price=None), [], "no column 'price'; did you mean 'Price'"),
    (column(price=1.0), [], "'price' has one value only, 1.0"),
    (lambda frame: frame[["price"]], [], "no columns to learn from"),
    (cell("income", 4, None), [], "column 'income' has no value in row 5; remove such rows"),
    (cell("price", 2, None), ["--impute"], "column 'price' has no value in row 3; remove"),
    (cell("price", 2, None), [], "--skip-missing-target"),
    # A text among numbers is no label.
    (cell("price", 86, "n/k"), [], "row 87 (the header not counted) holds 'n/k'; correct it"),
    (cell("price", [5, 9], "l"), [], "row 6 (the header not counted) holds 'l' (and 1 more"),
    # What is not known may be the most frequent value, and the others are numbers.
    (cell("price", range(80), "unknown"), [], "holds 'unknown' (and 79 more"),
    (cell("price", [3, 7], [None, "?"]), ["--skip-missing-target"], "row 8"),
    (column(age=-1), ["--sample-weight", "age"], "is -1 in row 1; weights are at least 0"),
    (column(age=0), ["--sample-weight", "age"], "holds weights, and all of them are 0"),
    (cell("price", 2, -1), ["--loss", "poisson"], "is -1.0 in row 3, and the poisson loss"),
])  # fmt: skip
def test_fit_names_what_is_wrong_with_the_table(folder, capsys, change, arguments, message):
    change(people()).to_csv("bad.csv", index=False)
    Path("m.skops").write_bytes(b"old")
    said = refused(capsys, "fit", "bad.csv", "--target", "price", *arguments, "-o", "m.skops")
    assert message in said
    assert Path("m.skops").read_bytes() == b"old"


@pytest.mark.parametrize(("command", "change", "message"), [
    ("predict price", column(age=None, city=None), "there are no columns 'age', 'city'; the"),
    ("predict price", cell("city", [3, 5], ["Roma", "Paris"]), "'Roma' in row 4, which was"),
    ("predict price", cell("age", 1, None), "no value in row 2; remove such rows, or fit the"),
    ("predict price --keep prediction", column(prediction=0), "name of a prediction"),
    ("predict price --proba", same, "this model gives none"),
    ("evaluate churn", cell("churn", 8, "maybe"), "'maybe' in row 9, which the model does not"),
    # Rows are counted as in the file.
    ("evaluate churn --skip-missing-target", cell("churn", [3, 8], [None, "m"]), "in row 9"),
])  # fmt: skip
def test_tables_that_do_not_suit_a_model(folder, models, capsys, command, change, message):
    change(people(60, seed=1)).to_csv("bad.csv", index=False)
    Path("out.csv").write_text("old")
    command, model, *options = command.split()
    given = [command, models[model], "bad.csv", *options, "-o", "out.csv"]
    assert message in refused(capsys, *given, code=2 if "--proba" in options else 4)
    assert Path("out.csv").read_text() == "old"


def test_predictions_that_are_not_finite_are_no_result(folder, capsys):
    frame = pd.DataFrame({"x": np.arange(80.0), "y": np.arange(80)})
    frame.to_csv("t.csv", index=False)
    assert fit("t.csv", "y", "--task", "regression", "--loss", "poisson", "-q") == 0
    frame.loc[4, "x"] = 1e9
    frame.to_csv("far.csv", index=False)
    message = refused(capsys, "predict", "m.skops", "far.csv", "-o", "out.csv")
    assert "the prediction for row 5 is not finite (inf)" in message


def test_classes_of_equal_weight_without_baselines(folder):
    options = ["--drop", "price", "--class-weight", "balanced", "--positive", "-q"]
    assert fit("train.csv", "churn", *options, "--no-baselines") == 0
    model = sorel.load_model("m.skops")[-1]
    assert (model.class_weight, model.coef_.min()) == ("balanced", 0.0)
    assert read_summary("m.skops")["positive"] is True
    assert list(report("m.skops", "test.csv").index) == ["all"]


def test_unknown_texts_may_be_ignored(folder, models):
    frame = people(60, seed=1)
    frame.assign(city="Roma").to_csv("new.csv", index=False)
    found = predictions(models["price"], "new.csv", "--unknown", "ignore")
    model = sorel.load_model(models["price"])
    step = model[:-1].get_feature_names_out().tolist().index("categorical__city_Oslo")
    difference = model.predict(frame.assign(city="Oslo")) - found
    np.testing.assert_allclose(difference, model[-1].coef_[step])


@pytest.mark.parametrize("place", ["none/out", ".", "train.csv/out"])
def test_unwritable_outputs_are_noticed_first(folder, models, capsys, place):
    refused(capsys, "fit", "train.csv", "--target", "price", "-o", place, code=1)
    refused(capsys, "predict", models["price"], "test.csv", "-o", place, code=1)
    missing = refused(capsys, "predict", "none.skops", "test.csv", code=1)
    assert "none.skops: No such file" in missing


def test_models_saved_from_python_serve_too(folder, capsys):
    frame = people()[["age", "income", "price"]]
    X, y = frame[["age", "income"]], frame["price"]
    frame.to_csv("t.csv", index=False)
    X.to_csv("x.csv", index=False)
    model = sorel.SpectralRiskRegressor().fit(X, y)
    sorel.save_model(model, "named.skops")
    sorel.save_model(sorel.SpectralRiskRegressor().fit(X.to_numpy(), y), "plain.skops")
    np.testing.assert_array_equal(predictions("named.skops", "t.csv"), model.predict(X))
    np.testing.assert_array_equal(predictions("plain.skops", "x.csv"), model.predict(X))
    assert "cvar_0.1" in report("named.skops", "t.csv", "--target", "price")
    assert "give it with --target" in refused(capsys, "evaluate", "named.skops", "t.csv", code=2)
    assert "is expecting 2 features" in refused(capsys, "predict", "plain.skops", "t.csv")


# Rows on disk.


@pytest.fixture
def numbers(folder):
    """The numbers among the people: as a Parquet file, as a folder of them, and as blocks."""
    frame = people()[["age", "income", "price", "churn"]]
    frame.to_parquet("all.parquet", index=False)
    os.mkdir("parts")
    frame[:50].to_parquet("parts/1.parquet", index=False)
    frame[50:].to_parquet("parts/2.parquet", index=False)
    sorel.rows.write_blocks("blocks", frame[["age", "income"]].to_numpy(), frame["price"])
    people().to_parquet("people.parquet", index=False)
    gaps = frame.drop(columns="churn").astype({"age": "Int64"})
    gaps.loc[7, "age"] = pd.NA
    gaps.to_parquet("gaps.parquet", index=False)
    np.save("short.npy", np.arange(3.0))
    for name, width in (("empty", 0), ("wide", 3), ("bare", 2)):
        os.mkdir(name)
        if width:
            np.save(f"{name}/a.npy", np.ones((5, width)))
    return folder


def test_rows_on_disk_give_the_model_of_the_table(numbers, capsys):
    common = ["--risk", "cvar:0.2", "--tol", "1e-8", "-q"]
    train = ["price", "--drop", "churn", *common]
    frame = pd.read_csv("test.csv")
    frame.rename(columns={"age": "x0", "income": "x1"}).to_csv("plain.csv", index=False)
    assert fit("all.parquet", *train) == 0
    expected = predictions("m.skops", "test.csv")
    for table, *given in (
        ("all.parquet", *train, "--out-of-core"),
        ("parts", *train, "--scratch", "."),
        ("blocks", "y.npy", *common),
    ):
        assert fit(table, *given) == 0
        assert capsys.readouterr() == ("", "")
        # Nothing of the scratch copy stays.
        assert not [name for name in os.listdir() if name.startswith(("sorel-", "."))]
        found = predictions("m.skops", "plain.csv" if table == "blocks" else "test.csv")
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_file_that_fills_the_memory_stays_on_disk(numbers, monkeypatch, capsys):
    monkeypatch.setattr("sorel.cli.fit._SHARE_OF_MEMORY", 1e-9)
    assert fit("all.parquet", "price", "--drop", "churn") == 0
    assert "note: all.parquet would fill the memory" in capsys.readouterr().err
    # With texts among the columns there is no other way than memory.
    assert fit("all.parquet", "price") == 0
    assert "would fill" not in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["people.parquet", "price", "--out-of-core"], 4,
     "column 'city' of people.parquet holds text; rows on disk must be numbers: encode it, or "
     "leave it out with --drop 'city'"),
    (["gaps.parquet", "price", "--out-of-core"], 4,
     "column 'age' of gaps.parquet has no value in row 8"),
    (["-", "price", "--out-of-core"], 2, "not standard input"),
    (["train.csv", "price", "--out-of-core"], 2, "convert it to Parquet first"),
    (["parts", "price", "--impute", "--cv"], 2, "--impute and --cv need a table in memory"),
    (["blocks", "y.npy", "--drop", "x0"], 2, "--drop leaves out columns"),
    (["blocks", "z.npy"], 1, "there is no file or folder 'z.npy' with targets"),
    (["blocks", "short.npy"], 4, "has 120 rows, but short.npy has 3 values"),
    (["empty", "y"], 4, "has neither .npy nor .parquet files"),
])  # fmt: skip
def test_wrong_rows_on_disk(numbers, capsys, arguments, code, message):
    table, target, *options = arguments
    given = ["fit", table, "--target", target, *options, "-o", "m.skops"]
    assert message in refused(capsys, *given, code=code)


def test_predictions_for_folders_are_those_for_tables(numbers):
    assert fit("parts", "churn", "--drop", "price", "-q") == 0
    tables = ("parts", "all.parquet")
    for name in tables:
        assert run("predict", "m.skops", name, "--proba", "-o", f"{name}.csv") == 0
    pd.testing.assert_frame_equal(*(pd.read_csv(f"{name}.csv") for name in tables))
    reports = [report("m.skops", name, "--groups", "churn") for name in tables]
    pd.testing.assert_frame_equal(*reports)
    assert fit("blocks", "y.npy", "-q") == 0
    errors = np.load("blocks/y.npy") - predictions("m.skops", "blocks")
    mean = report("m.skops", "blocks").loc["all", "mean"]
    assert mean == pytest.approx(0.5 * np.mean(errors**2))


@pytest.mark.parametrize(("command", "code", "message"), [
    (["predict", "price", "parts"], 4, "column 'city' is no number"),
    (["predict", "m.skops", "blocks", "--keep", "x0"], 2, "--keep copies columns"),
    (["predict", "m.skops", "wide"], 4, "columns of wide are unnamed, and the model was"),
    (["evaluate", "m.skops", "bare"], 1, "'y.npy' with targets"),
])  # fmt: skip
def test_folders_that_do_not_suit_a_model(numbers, models, capsys, command, code, message):
    assert fit("blocks", "y.npy", "-q") == 0
    assert message in refused(capsys, *(models.get(word, word) for word in command), code=code)


# Dates, weights, missing targets, cross-validation and intercepts.


def flights(n=200, seed=0):
    rng = np.random.default_rng(seed)
    day = rng.integers(0, 365, n)
    frame = pd.DataFrame({
        "day": (pd.Timestamp("2023-01-01") + pd.to_timedelta(day, "D")).strftime("%Y-%m-%d"),
        "miles": [f"{miles:,}" for miles in rng.integers(500, 5000, n)],
        "wind": rng.normal(size=n),
        "weight": rng.integers(1, 4, n),
        "tail": [f"N{number}" for number in rng.permutation(n)],
    })  # fmt: skip
    frame["delay"] = 0.1 * day + 5 * frame["wind"] + rng.exponential(5.0, n)
    return frame


def standardised(*columns):
    X = np.column_stack(columns).astype(float)
    return (X - X.mean(axis=0)) / X.std(axis=0)


@pytest.fixture
def flown(tmp_path, monkeypatch):
    """The flights, as they are and as numbers alone."""
    monkeypatch.chdir(tmp_path)
    frame = flights()
    frame.to_csv("f.csv", index=False)
    frame = frame[["wind", "weight", "delay"]]
    frame.to_csv("numbers.csv", index=False)
    frame.to_parquet("numbers.parquet")
    return frame


def test_dates_and_thousands_are_refused_with_a_remedy(flown, capsys):
    command = ["fit", "f.csv", "--target", "delay", "-o", "m.skops", "-q"]
    message = refused(capsys, *command)
    assert "'day' holds dates, such as '2023-" in message
    assert "--dates 'day'" in message
    message = refused(capsys, *command, "--dates", "day")
    assert "--thousands ," in message
    # Whoever wants names gets names.
    assert run(*command, "--categorical", "day", "--categorical", "miles") == 0
    said = capsys.readouterr().err
    assert "'tail' has 200 different texts in 200 rows, each of which becomes an indicator" in said


def test_dates_and_thousands_are_read_the_same_way_again(flown, capsys):
    options = ["--dates", "day", "--thousands", ",", "--drop", "tail", "--drop", "weight"]
    assert fit("f.csv", "delay", *options, "-q") == 0
    frame = flights()
    days = (pd.to_datetime(frame["day"]) - pd.Timestamp("1970-01-01")).dt.days
    miles = frame["miles"].str.replace(",", "").astype(int)
    X = standardised(days, miles, frame["wind"])
    model = sorel.SpectralRiskRegressor(random_state=0).fit(X, frame["delay"])
    np.testing.assert_allclose(predictions("m.skops", "f.csv"), model.predict(X), rtol=1e-9)
    frame.assign(day="yesterday").to_csv("g.csv", index=False)
    assert "'day' should hold dates such as" in refused(capsys, "predict", "m.skops", "g.csv")


def test_weights_count_rows(flown):
    options = ["delay", "--sample-weight", "weight", "--tol", "1e-8", "-q"]
    assert fit("numbers.csv", *options) == 0
    twice = np.repeat(np.arange(200), flown["weight"])
    X = standardised(flown["wind"])
    model = sorel.SpectralRiskRegressor(tol=1e-8).fit(X[twice], flown["delay"][twice])
    found = predictions("m.skops", "numbers.csv")
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-4)
    row = report("m.skops", "numbers.csv", "--sample-weight", "weight").loc["all"]
    errors = (found - flown["delay"]).to_numpy()[twice]
    assert row["mean"] == pytest.approx(0.5 * np.mean(errors**2))
    assert row["cvar_0.1"] == pytest.approx(sorel.CVaR(0.1)(0.5 * errors**2))
    assert row["bias"] == pytest.approx(errors.mean())
    assert fit("numbers.parquet", *options, "--out-of-core") == 0
    np.testing.assert_allclose(predictions("m.skops", "numbers.csv"), found, rtol=1e-4)
    assert list(sorel.load_model("m.skops")["columns"].feature_names_in_) == ["wind"]


def test_rows_without_a_target_on_request(flown, capsys):
    cell("delay", [3, 7, 11], None)(flown).to_csv("numbers.csv", index=False)
    assert fit("numbers.csv", "delay", "--skip-missing-target") == 0
    assert "note: 3 of 200 rows have no target and are left out" in capsys.readouterr().err
    assert (report("m.skops", "numbers.csv", "--skip-missing-target")["n"] == 197).all()


GOAL = ["--tail", "cvar:0.05", "--mean-slack", "3%"]


@pytest.mark.parametrize(("fixed", "grid"), [
    (["--risk", "cvar:0.2"], {"risks": ["cvar:0.2"]}),
    (["--l2", "0.01"], {"l2s": [0.01]}),
    (GOAL, {"tail": "cvar:0.05", "mean_slack": 0.03}),
])  # fmt: skip
def test_levels_and_penalties_by_cross_validation(flown, capsys, fixed, grid):
    assert fit("numbers.csv", "delay", "--drop", "weight", *fixed, "--cv", "3") == 0
    said = capsys.readouterr().err
    X = standardised(flown["wind"])
    search = sorel.SpectralRiskRegressorCV(**grid, cv=3, random_state=0).fit(X, flown["delay"])
    assert f"cross-validation chose {search.best_risk_.spec}" in said
    assert str(search.search_report_) in said
    saved = sorel.load_model("m.skops")[-1]
    assert sorel.parse_risk(saved.risk) == search.best_risk_
    assert saved.l2 == search.best_l2_
    np.testing.assert_allclose(saved.coef_, search.coef_)


def test_intercepts(flown, capsys):
    assert fit("numbers.csv", "delay", "--intercept", "none", "-q") == 0
    assert sorel.load_model("m.skops")[-1].intercept_ == 0.0
    # Indicators of many texts are sparse.
    flown.assign(code=[f"code {k % 90}" for k in range(200)]).to_csv("codes.csv", index=False)
    for table, *more in (["numbers.csv"], ["codes.csv"], ["numbers.parquet", "--out-of-core"]):
        assert fit(table, "delay", "--risk", "cvar:0.1", "--intercept", "mean", "-q", *more) == 0
        bias = report("m.skops", "codes.csv").loc["all", "bias"]
        assert bias == pytest.approx(0.0, abs=1e-10)


def test_many_columns_of_texts_have_too_many_together(folder, capsys):
    rows = [f"a{k},b{k % 30_000},{k}\n" for k in range(40_000)]
    Path("table.csv").write_text("s,t,y\n" + "".join(rows))
    message = refused(capsys, "fit", "table.csv", "--target", "y", "-o", "m.skops")
    assert "the columns have 70000 different texts, more than 65536" in message
    assert "--drop 's'" in message


def test_long_tables_are_predicted_and_measured_in_parts(folder, models, monkeypatch):
    written = []
    for count in (1 << 21, 14):
        monkeypatch.setattr("sorel.cli.saved_models._CELLS", count)
        assert run("predict", models["churn"], "test.csv", "--proba", "-o", "out.csv") == 0
        written.append([read_table("out.csv"), report(models["churn"], "test.csv")])
    for whole, parts in zip(*written, strict=True):
        # Products of few rows may differ in the last digit.
        pd.testing.assert_frame_equal(whole, parts, rtol=1e-12)
