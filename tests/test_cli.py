"""Arguments, exit codes and messages of the command, and its way from a table to predictions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

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
COMMANDS = ["fit", "predict", "evaluate", "info", "demo", "warmup"]


def exit_code(arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    return stop.value.code


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


def people(n=120, seed=0):
    """Numbers, texts and truth values, and targets of both kinds that depend on them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "income": rng.normal(50.0, 10.0, n),
            "city": rng.choice(["Oslo", "Bergen", "Ås, nord"], n),
            "member": rng.random(n) < 0.4,
            "zip": rng.choice(["0150", "5003"], n),
        }
    )
    level = 0.03 * frame["age"] + 0.1 * frame["income"] + (frame["city"] == "Oslo")
    frame["price"] = level + rng.standard_t(3, n)
    frame["churn"] = np.where(level + rng.normal(size=n) > np.median(level), "yes", "no")
    return frame


FEATURES = ["age", "income", "city", "member", "zip"]


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


def python_pipeline(model):
    """The pipeline of ``sorel fit``, written out."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns = ColumnTransformer(
        [
            ("numeric", StandardScaler(), ["age", "income"]),
            ("categorical", OneHotEncoder(), ["city", "member", "zip"]),
        ]
    )
    return Pipeline([("columns", columns), ("model", model)])


def test_help_lists_commands_and_exit_codes(capsys):
    assert exit_code(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "sorel demo --splits" in printed
    assert "the tolerance was not reached" in printed
    for command in COMMANDS:
        assert f"\n    {command} " in printed
        assert exit_code([command, "--help"]) == 0
        assert f"\n  sorel {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["demo", "--splits", "0"], "at least 1, got '0'"),
        (["demo", "--splits", "two"], "at least 1, got 'two'"),
        (["fit", "t.csv", "-o", "m"], "required: --target"),
        (["fit", "t.csv", "--target", "y"], "required: -o/--output"),
        (["fit", "t.csv", "--target", "y", "-o", "m", "--risk", "cvar:7"], "(0, 1], got 7"),
        (["fit", "t.csv", "--target", "y", "-o", "m", "--risk", "var"], "unknown risk 'var'"),
        (["fit", "t.csv", "--target", "y", "-o", "m", "--l2", "0"], "above 0, got '0'; use auto"),
        (
            ["fit", "t.csv", "--target", "y", "-o", "m", "--tol", "nan"],
            "above 0, got 'nan'",
        ),
        (["fit", "t.csv", "--target", "y", "-o", "m", "--l1", "-1"], "at least 0, got '-1'"),
        (["fit", "t.csv", "--target", "y", "-o", "m", "--seed", "x"], "at least 0, got 'x'"),
        (["fit", "t.csv", "--target", "y", "-o", "m", "--sep", "ab"], "one character, got 'ab'"),
    ],
)
def test_bad_arguments_exit_with_two(arguments, message, capsys):
    assert exit_code(arguments) == 2
    assert message in capsys.readouterr().err


# The way from a table to predictions.


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_regression_equals_python_to_the_last_digit(folder, capsys, ending):
    train, test = people(), people(60, seed=1)
    if ending == "parquet":
        train.to_parquet("train.parquet")
        test.to_parquet("test.parquet")
    code = run(
        "fit", f"train.{ending}", "--target", "price", "--risk", "cvar:0.1", "--drop", "churn",
        "--categorical", "zip", "-o", "model.skops",
    )  # fmt: skip
    assert code == 0
    assert "saved to model.skops" in capsys.readouterr().err
    assert run("predict", "model.skops", f"test.{ending}", "-o", f"out.{ending}") == 0
    model = sorel.SpectralRiskRegressor(risk="cvar:0.1", random_state=0)
    expected = python_pipeline(model).fit(train[FEATURES], train["price"]).predict(test[FEATURES])
    np.testing.assert_array_equal(read_table(f"out.{ending}")["prediction"], expected)
    loaded = sorel.load_model("model.skops")
    np.testing.assert_array_equal(loaded.predict(test[FEATURES]), expected)


def test_classification_equals_python_to_the_last_digit(folder, models):
    train, test = people(), people(60, seed=1)
    code = run("predict", models["churn"], "test.csv", "--proba", "--keep", "zip", "-o", "out.csv")
    assert code == 0
    out = read_table("out.csv", text_columns=["zip"])
    assert list(out) == ["zip", "prediction", "probability_no", "probability_yes"]
    model = python_pipeline(sorel.SpectralRiskClassifier(risk="cvar:0.2", random_state=0))
    model.fit(train[FEATURES], train["churn"].to_numpy(dtype=object))
    np.testing.assert_array_equal(out["prediction"], model.predict(test[FEATURES]))
    np.testing.assert_array_equal(out.iloc[:, 2:], model.predict_proba(test[FEATURES]))
    assert out["zip"].tolist() == test["zip"].tolist()
    # Other columns, and their order, do not matter.
    test.assign(note="new")[["note", *FEATURES[::-1]]].to_csv("turned.csv", index=False)
    assert run("predict", models["churn"], "turned.csv", "--proba", "-o", "again.csv") == 0
    pd.testing.assert_frame_equal(read_table("again.csv"), out.drop(columns="zip"))


def test_standard_input_and_output(folder):
    table = Path("train.csv").read_bytes()
    fit = subprocess.run(
        [*PROGRAM, "fit", "-", "--target", "price", "-q", "-o", "-"],
        input=table,
        capture_output=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert fit.stderr == b""
    Path("model.skops").write_bytes(fit.stdout)
    predict = subprocess.run(
        [*PROGRAM, "predict", "model.skops", "-"],
        input=table,
        capture_output=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert predict.stderr == b""
    expected = sorel.load_model("model.skops").predict(read_table("train.csv"))
    Path("out.csv").write_bytes(predict.stdout)
    out = read_table("out.csv")
    np.testing.assert_array_equal(out["prediction"], expected)


def test_reader_that_stops_early_gets_no_traceback(folder, models):
    pd.concat([people(60, seed=1)] * 300).to_csv("long.csv", index=False)
    process = subprocess.Popen(
        [*PROGRAM, "predict", str(models["price"]), "long.csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert errors == b""


def test_evaluate_reports_the_model_s_own_losses(folder, models, capsys):
    assert run("evaluate", models["price"], "test.csv", "--groups", "city", "-o", "r.csv") == 0
    report = read_table("r.csv").set_index("group")
    test = people(60, seed=1)
    losses = 0.5 * (sorel.load_model(models["price"]).predict(test) - test["price"]) ** 2
    assert report.loc["all", "mean"] == pytest.approx(losses.mean())
    assert report.loc["all", "cvar_0.1"] == pytest.approx(sorel.CVaR(0.1)(losses))
    assert report.loc["Oslo", "worst"] == pytest.approx(losses[test["city"] == "Oslo"].max())
    assert report["n"].tolist()[1:4] == test.groupby("city").size().tolist()
    test.assign(region=["north", None] * 30).to_csv("test.csv", index=False)
    assert run("evaluate", models["price"], "test.csv", "--groups", "region", "-o", "r.csv") == 0
    report = read_table("r.csv").set_index("group")
    assert report.loc[["all", "(missing)", "north"], "n"].tolist() == [60, 30, 30]
    assert run("evaluate", models["churn"], "test.csv", "--groups", "city") == 0
    printed = capsys.readouterr().out
    assert "minus the logarithm of the probability" in printed
    assert "Ås, nord" in printed


def test_evaluate_compares_with_the_constant_and_the_plain_model(folder, models, capsys):
    test = people(60, seed=1)
    for name in ("price", "churn"):
        assert run("evaluate", models[name], "test.csv", "--groups", "city", "-o", "r.csv") == 0
        report = read_table("r.csv").set_index("group")
        model = sorel.load_model(models[name])
        plain = python_pipeline(clone(model[-1]).set_params(risk="mean"))
        train = people()
        target = train[name].to_numpy(dtype=object if name == "churn" else float)
        plain.fit(train[FEATURES], target)
        row = report.loc["(plain fit)"]
        if name == "price":
            errors = {"all": model.predict(test), "(plain fit)": plain.predict(test)}
            for label, predicted in errors.items():
                bias = (predicted - test["price"]).mean()
                assert report.loc[label, "bias"] == pytest.approx(bias, rel=1e-6)
            oslo = test["city"] == "Oslo"
            bias = (model.predict(test) - test["price"])[oslo].mean()
            assert report.loc["Oslo", "bias"] == pytest.approx(bias)
            # One number for everybody: the best for the risk of the model, cvar:0.2.
            constant = min(
                (sorel.CVaR(0.2)(0.5 * (train["price"].to_numpy() - c) ** 2), c)
                for c in np.linspace(train["price"].min(), train["price"].max(), 20_001)
            )[1]
            losses = 0.5 * (test["price"] - constant) ** 2
            assert report.loc["(constant model)", "mean"] == pytest.approx(losses.mean(), rel=1e-2)
        else:
            assert row["accuracy"] == pytest.approx(plain.score(test, test["churn"]))
            auc = roc_auc_score(test["churn"] == "yes", plain.decision_function(test))
            assert row["auc"] == pytest.approx(auc)
            assert report.loc["(constant model)", "auc"] == 0.5
            assert report.loc["(constant model)", "cvar_0.1"] == pytest.approx(np.log(2), rel=1e-3)
    capsys.readouterr()
    assert run("evaluate", models["price"], "test.csv") == 0
    assert "bias: mean of prediction minus truth" in capsys.readouterr().out


def test_constant_models_are_reported_wherever_they_are_met(folder, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    frame["y"] = np.where(frame["a"] + 2 * rng.logistic(size=400) > 0, "yes", "no")
    frame.to_csv("t.csv", index=False)
    assert run("fit", "t.csv", "--target", "y", "--risk", "cvar:0.1", "-o", "m.skops") == 0
    said = capsys.readouterr().err
    assert "warning: the fitted model is (nearly) constant" in said
    assert "starts to learn at about cvar:" in said
    assert run("info", "m.skops") == 0
    assert "the model is constant" in capsys.readouterr().out
    assert run("evaluate", "m.skops", "t.csv") == 0
    said = capsys.readouterr()
    assert "(nearly) constant" in said.err
    assert "(plain fit)" in said.out
    assert run("fit", "t.csv", "--target", "y", "--risk", "mean", "-o", "m.skops") == 0
    assert "constant" not in capsys.readouterr().err
    assert run("evaluate", "m.skops", "t.csv") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "(plain fit)" not in said.out


def test_info_shows_the_summary(models, folder, capsys):
    assert run("info", models["price"]) == 0
    printed = capsys.readouterr().out
    for words in (sorel.__version__, "cvar:0.2", "price", "120", "zip (text)", "member (boolean)"):
        assert words in printed
    assert run("info", models["price"], "--json") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out) == read_summary(models["price"])
    odd = {"rows": 3, "name": "a\x1b\x7f\x9b\u202e"}
    sorel.save_model(sorel.load_model(models["price"]), "odd.skops", summary=odd)
    assert run("info", "odd.skops", "--json") == 0
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "\x7f" not in printed
    assert odd.items() <= json.loads(printed).items()


# Tasks.


@pytest.mark.parametrize(
    ("values", "task", "note"),
    [
        (["a", "b"], "classification", ""),
        (["a", "b", "c"], "classification", ""),
        ([True, False], "classification", ""),
        ([0, 1], "classification", "the two values 0 and 1, taken as labels"),
        ([1, 2, 3], "regression", "3 different whole numbers, taken as numbers"),
        ([0.5, 1.5, 2.5], "regression", ""),
    ],
)
def test_task_follows_the_target(folder, capsys, values, task, note):
    frame = people()[["age", "income"]]
    frame["y"] = np.resize(np.array(values, dtype=object), len(frame))
    frame.to_csv("t.csv", index=False)
    assert run("fit", "t.csv", "--target", "y", "--tol", "1e-3", "-o", "m.skops") == 0
    errors = capsys.readouterr().err
    assert f"{task} with cvar:0.5" in errors
    assert ("note:" in errors) == bool(note)
    assert note in errors
    assert run("predict", "m.skops", "t.csv", "-o", "out.csv") == 0
    assert run("evaluate", "m.skops", "t.csv") == 0
    if task == "classification":
        assert set(read_table("out.csv")["prediction"]) <= set(values)


def test_class_weights_are_for_labels(folder, capsys):
    common = ["--class-weight", "balanced", "--risk", "mean", "-q", "-o", "m.skops"]
    assert run("fit", "train.csv", "--target", "churn", "--drop", "price", *common) == 0
    assert sorel.load_model("m.skops")[-1].class_weight == "balanced"
    message = refused(capsys, "fit", "train.csv", "--target", "price", *common, code=2)
    assert "--class-weight is for labels" in message


def test_labels_may_be_numbers_on_request(folder, capsys):
    frame = people()[["age", "income"]]
    frame["y"] = np.resize([3, 5, 7], len(frame))
    frame.to_csv("t.csv", index=False)
    task = ["--task", "classification", "--tol", "1e-3", "-q"]
    assert run("fit", "t.csv", "--target", "y", *task, "-o", "m.skops") == 0
    # The labels have nothing to do with the columns.
    assert "constant" in capsys.readouterr().err
    assert sorel.load_model("m.skops").classes_.tolist() == [3, 5, 7]
    assert run("predict", "m.skops", "t.csv", "--proba") == 0
    assert capsys.readouterr().out.startswith(
        "prediction,probability_3,probability_5,probability_7\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "price", "--loss", "logistic"], "--loss logistic does not suit regression"),
        (["--target", "churn", "--loss", "huber"], "--loss huber does not suit classification"),
        (["--target", "price", "--drop", "price"], "'price' is the target"),
    ],
)
def test_arguments_that_do_not_go_together(folder, capsys, arguments, message):
    assert run("fit", "train.csv", *arguments, "-o", "m.skops") == 2
    assert message in capsys.readouterr().err
    assert not Path("m.skops").exists()


def test_missed_tolerance_has_its_own_code(folder, capsys):
    budget = ["--tol", "1e-12", "--max-passes", "2"]
    assert run("fit", "train.csv", "--target", "price", *budget, "-o", "m.skops") == 3
    errors = capsys.readouterr().err
    assert "is above --tol 1e-12; raise --max-passes" in errors
    assert "saved to m.skops" in errors
    assert run("predict", "m.skops", "test.csv", "-o", "out.csv") == 0


def test_progress_on_a_terminal_only(folder, capsys, monkeypatch):
    assert run("fit", "train.csv", "--target", "price", "-o", "m.skops") == 0
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("fit", "train.csv", "--target", "price", "-o", "n.skops") == 0
    assert "\r" in capsys.readouterr().err
    models = [sorel.load_model(name) for name in ("m.skops", "n.skops")]
    assert [model[-1].verbose for model in models] == [0, 0]
    np.testing.assert_array_equal(models[0][-1].coef_, models[1][-1].coef_)


def test_a_model_is_not_written_to_a_terminal(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("fit", "train.csv", "--target", "price", "-o", "-") == 2
    assert "not for a terminal" in capsys.readouterr().err


# Bad tables.


def refused(capsys, *arguments, code=4):
    """What the command says when it fails, which is one line and no traceback."""
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith(("note", "warning"))]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def refused_fit(capsys, frame, *arguments):
    frame.to_csv("bad.csv", index=False)
    message = refused(capsys, "fit", "bad.csv", "--target", "price", *arguments, "-o", "m.skops")
    assert not Path("m.skops").exists()
    return message


def test_fit_names_what_is_wrong_with_the_table(folder, capsys):
    frame = people()
    assert "no column 'price'; did you mean 'Price'" in refused_fit(
        capsys, frame.rename(columns={"price": "Price"})
    )
    assert "no column 'id'" in refused_fit(capsys, frame, "--drop", "id")
    assert "'price' has one value only, 1.0" in refused_fit(capsys, frame.assign(price=1.0))
    assert "no columns to learn from" in refused_fit(capsys, frame[["price"]])
    frame.loc[4, "income"] = np.nan
    assert "column 'income' has no value in row 5; remove such rows, or" in refused_fit(
        capsys, frame
    )
    frame = people()
    frame.loc[6, "city"] = None
    assert "column 'city' has no value in row 7" in refused_fit(capsys, frame)
    frame = people()
    frame.loc[2, "price"] = np.nan
    message = refused_fit(capsys, frame, "--impute")
    assert "column 'price' has no value in row 3; remove" in message
    assert "--skip-missing-target" in message
    assert "column 'age' has no values at all" in refused_fit(
        capsys, people().assign(age=np.nan), "--impute"
    )
    assert "column 'age' is inf in row 1" in refused_fit(capsys, people().assign(age=np.inf))


@pytest.mark.parametrize("text", ["n/k", "1.2.3", "x" * 1000])
@pytest.mark.parametrize("task", ["auto", "regression"])
def test_a_stray_text_among_numbers_is_no_label(folder, capsys, text, task):
    Path("m.skops").write_bytes(b"old")
    frame = people()
    frame["price"] = frame["price"].astype(object)
    frame.loc[86, "price"] = text
    frame.to_csv("bad.csv", index=False)
    fit = ["fit", "bad.csv", "--target", "price", "--task", task, "-o", "m.skops"]
    message = refused(capsys, *fit)
    assert "'price'" in message
    assert "row 87" in message
    assert repr(text[:50])[1:-1] in message
    assert len(message) < 500
    assert Path("m.skops").read_bytes() == b"old"


def test_stray_texts_are_counted_and_few_labels_are_numbers_too(folder, capsys):
    frame = people().assign(price=np.arange(120) % 2)
    frame["price"] = frame["price"].astype(object)
    frame.loc[[5, 9], "price"] = ["l", "O"]
    message = refused_fit(capsys, frame)
    assert "row 6 (the header not counted) holds 'l' (and 1 more such cells)" in message
    # A text for what is not known is the most frequent value, and the others are numbers.
    frame = people().astype({"price": object})
    frame.loc[:79, "price"] = "unknown"
    assert "row 1 (the header not counted) holds 'unknown'" in refused_fit(capsys, frame)
    assert "and 79 more" in refused_fit(capsys, frame)
    # Rows that are left out count as the file counts.
    frame = people().astype({"price": object})
    frame.loc[3, "price"], frame.loc[7, "price"] = None, "?"
    assert "row 8" in refused_fit(capsys, frame, "--skip-missing-target")


def test_a_task_that_is_given_decides(folder):
    frame = people().assign(price=np.resize(["1", "2", "2b"], 120))
    frame.to_csv("t.csv", index=False)
    fit = ["fit", "t.csv", "--target", "price", "-q", "-o", "m.skops"]
    assert run(*fit) == 4
    assert run(*fit, "--task", "classification") in (0, 3)
    assert sorel.load_model("m.skops").classes_.tolist() == ["1", "2", "2b"]
    # Some labels look like numbers, and most do not.
    frame.assign(price=np.resize(["1", "b", "c"], 120)).to_csv("t.csv", index=False)
    assert run(*fit) in (0, 3)
    assert sorel.load_model("m.skops").classes_.tolist() == ["1", "b", "c"]


def test_predictions_that_are_not_finite_are_no_result(folder, capsys):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.normal(size=80)})
    frame["y"] = rng.poisson(np.exp(frame["x"]))
    frame.to_csv("t.csv", index=False)
    options = ["--target", "y", "--task", "regression", "--loss", "poisson", "-q", "-o", "m.skops"]
    assert run("fit", "t.csv", *options) == 0
    frame.assign(y=frame["y"].where(frame.index != 2, -1)).to_csv("negative.csv", index=False)
    message = refused(capsys, "fit", "negative.csv", *options)
    assert "column 'y' is -1 in row 3, and the poisson loss takes counts or rates >= 0" in message
    assert "another --loss" in message
    frame.loc[4, "x"] = 1e9
    frame.to_csv("far.csv", index=False)
    for command in ("predict", "evaluate"):
        message = refused(capsys, command, "m.skops", "far.csv", "-o", "out.csv")
        assert "the prediction for row 5 is not finite (inf)" in message
    assert not Path("out.csv").exists()


def test_missing_values_are_imputed_on_request(folder, capsys):
    frame = people()
    frame.loc[::7, "income"] = np.nan
    frame.loc[::9, "city"] = None
    frame["member"] = frame["member"].astype(object)
    frame.loc[::11, "member"] = None
    frame.to_csv("gaps.csv", index=False)
    assert run("fit", "gaps.csv", "--target", "price", "--impute", "-q", "-o", "m.skops") == 0
    frame.assign(age=np.nan, city=None).to_csv("more.csv", index=False)
    assert run("predict", "m.skops", "more.csv", "-o", "out.csv") == 0
    assert np.isfinite(read_table("out.csv")["prediction"]).all()


def refused_predict(capsys, model, frame, *arguments, command="predict"):
    frame.to_csv("bad.csv", index=False)
    Path("out.csv").write_text("old")
    message = refused(capsys, command, model, "bad.csv", *arguments, "-o", "out.csv")
    assert Path("out.csv").read_text() == "old"
    return message


def test_predict_names_what_is_wrong_with_the_table(folder, models, capsys):
    frame, model = people(60, seed=1), models["price"]
    assert "there are no columns 'age', 'city'; the columns are 'income'" in refused_predict(
        capsys, model, frame.drop(columns=["age", "city"])
    )
    frame.loc[3, "city"] = "Roma"
    frame.loc[5, "city"] = "Paris"
    message = refused_predict(capsys, model, frame)
    assert "column 'city' holds 'Roma' in row 4, which was not seen in training" in message
    assert "and 1 more such values" in message
    frame = people(60, seed=1)
    frame["age"] = frame["age"].astype(object)
    frame.loc[1, "age"] = "old"
    assert "column 'age' should hold numbers, but row 2 holds 'old'" in refused_predict(
        capsys, model, frame
    )
    frame.loc[1, "age"] = None
    assert "column 'age' has no value in row 2; remove such rows, or fit the model with" in (
        refused_predict(capsys, model, frame)
    )
    frame = people(60, seed=1)
    assert "no column 'id'" in refused_predict(capsys, model, frame, "--keep", "id")
    named = frame.assign(prediction=0)
    assert "name of a prediction" in refused_predict(capsys, model, named, "--keep", "prediction")
    assert "this model gives none" in refused(
        capsys, "predict", model, "test.csv", "--proba", code=2
    )


def test_baselines_can_be_left_out(folder, capsys):
    options = ["--target", "price", "--drop", "churn", "-q", "-o", "m.skops", "--no-baselines"]
    assert run("fit", "train.csv", *options) == 0
    assert run("evaluate", "m.skops", "test.csv") == 0
    assert "constant model" not in capsys.readouterr().out


def test_unknown_texts_may_be_ignored(folder, models):
    frame = people(60, seed=1)
    frame["city"] = "Roma"
    frame.to_csv("new.csv", index=False)
    code = run("predict", models["price"], "new.csv", "--unknown", "ignore", "-o", "out.csv")
    assert code == 0
    model = sorel.load_model(models["price"])
    known = model.predict(frame.assign(city="Oslo"))
    step = model[:-1].get_feature_names_out().tolist().index("categorical__city_Oslo")
    difference = known - read_table("out.csv")["prediction"]
    np.testing.assert_allclose(difference, model[-1].coef_[step])


def test_evaluate_names_what_is_wrong_with_the_table(folder, models, capsys):
    frame = people(60, seed=1)
    message = refused_predict(
        capsys, models["price"], frame.drop(columns="price"), command="evaluate"
    )
    assert "there is no column 'price'" in message
    message = refused_predict(capsys, models["price"], frame, "--groups", "x", command="evaluate")
    assert "there is no column 'x'" in message
    frame.loc[8, "churn"] = "maybe"
    message = refused_predict(capsys, models["churn"], frame, command="evaluate")
    assert "target 'churn' is 'maybe' in row 9, which the model does not know" in message


# Bad models and outputs.


def test_bad_models_are_refused_with_a_sentence(folder, models, capsys):
    good = models["price"].read_bytes()
    Path("half.skops").write_bytes(good[: len(good) // 2])
    for name, code, words in (
        ("half.skops", 4, "not a model of sorel, or it is damaged"),
        ("none.skops", 1, "none.skops: No such file"),
    ):
        assert words in refused(capsys, "predict", name, "test.csv", code=code)
        assert words in refused(capsys, "evaluate", name, "test.csv", code=code)
        assert words in refused(capsys, "info", name, code=code)


@pytest.mark.parametrize("place", ["none/out", ".", "train.csv/out"])
def test_unwritable_outputs_are_noticed_first(folder, models, capsys, place):
    before = sorted(os.listdir())
    refused(capsys, "fit", "train.csv", "--target", "price", "-o", place, code=1)
    refused(capsys, "predict", models["price"], "test.csv", "-o", place, code=1)
    refused(capsys, "evaluate", models["price"], "test.csv", "-o", place, code=1)
    assert sorted(os.listdir()) == before


def test_models_saved_from_python_serve_too(folder, capsys):
    frame = people()[["age", "income", "price"]]
    X, y = frame[["age", "income"]], frame["price"]
    frame.to_csv("t.csv", index=False)
    model = sorel.SpectralRiskRegressor().fit(X, y)
    sorel.save_model(model, "named.skops")
    assert run("predict", "named.skops", "t.csv", "-o", "out.csv") == 0
    np.testing.assert_array_equal(read_table("out.csv")["prediction"], model.predict(X))
    assert run("evaluate", "named.skops", "t.csv", "--target", "price") == 0
    assert "cvar_0.1" in capsys.readouterr().out
    assert "give it with --target" in refused(capsys, "evaluate", "named.skops", "t.csv", code=2)
    X.to_csv("x.csv", index=False)
    sorel.save_model(sorel.SpectralRiskRegressor().fit(X.to_numpy(), y), "plain.skops")
    assert run("predict", "plain.skops", "x.csv", "-o", "out.csv") == 0
    np.testing.assert_array_equal(read_table("out.csv")["prediction"], model.predict(X))
    assert "fitted to 2 columns" in refused(capsys, "predict", "plain.skops", "t.csv")


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
    return folder


def test_rows_on_disk_give_the_model_of_the_table(numbers, capsys):
    common = ["--risk", "cvar:0.2", "--tol", "1e-8", "-q"]
    train = ["--target", "price", "--drop", "churn", *common]
    assert run("fit", "all.parquet", *train, "-o", "table.skops") == 0
    assert run("fit", "all.parquet", *train, "--out-of-core", "-o", "file.skops") == 0
    assert run("fit", "parts", *train, "--scratch", ".", "-o", "parts.skops") == 0
    assert run("fit", "blocks", "--target", "y.npy", *common, "-o", "blocks.skops") == 0
    assert capsys.readouterr() == ("", "")
    # Nothing of the scratch copy stays.
    assert not [name for name in os.listdir() if name.startswith(("sorel-", "."))]
    frame = pd.read_csv("test.csv")
    frame.rename(columns={"age": "x0", "income": "x1"}).to_csv("plain.csv", index=False)
    expected = None
    for model in ("table", "file", "parts", "blocks"):
        table = "plain.csv" if model == "blocks" else "test.csv"
        assert run("predict", f"{model}.skops", table, "-o", "out.csv") == 0
        found = pd.read_csv("out.csv")["prediction"]
        expected = found if expected is None else expected
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert run("info", "file.skops") == 0
    assert "age (numeric), income (numeric)" in capsys.readouterr().out
    assert run("evaluate", "file.skops", "test.csv") == 0


def test_a_file_that_fills_the_memory_stays_on_disk(numbers, monkeypatch, capsys):
    monkeypatch.setattr("sorel.cli.fit._SHARE_OF_MEMORY", 1e-9)
    options = ["--target", "price", "-o", "model.skops"]
    assert run("fit", "all.parquet", "--drop", "churn", *options) == 0
    assert "note: all.parquet would fill the memory" in capsys.readouterr().err
    # With texts among the columns there is no other way than memory.
    assert run("fit", "all.parquet", *options) == 0
    assert run("fit", "train.csv", *options) == 0
    assert "would fill" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["people.parquet", "--target", "price", "--out-of-core"], 4,
         "column 'city' of people.parquet holds text; rows on disk must be numbers: encode it, or "
         "leave it out with --drop 'city'"),
        (["people.parquet", "--target", "price", "--out-of-core", "--drop", "city", "--drop",
          "zip", "--drop", "churn"], 4, "column 'member' of people.parquet holds truth values"),
        (["all.parquet", "--target", "cost", "--out-of-core"], 4, "there is no column 'cost'"),
        (["gaps.parquet", "--target", "price", "--out-of-core"], 4,
         "column 'age' of gaps.parquet has no value in row 8"),
        (["train.csv", "--target", "price", "--out-of-core"], 2, "convert it to Parquet first"),
        (["-", "--target", "price", "--out-of-core"], 2, "not standard input"),
        (["parts", "--target", "price", "--impute", "--cv"], 2,
         "--impute and --cv need a table in memory"),
        (["blocks", "--target", "y.npy", "--drop", "x0"], 2, "--drop leaves out columns"),
        (["blocks", "--target", "z.npy"], 1, "there is no file or folder 'z.npy' with targets"),
        (["blocks", "--target", "short.npy"], 4, "has 120 rows, but short.npy has 3 values"),
        (["uneven", "--target", "short.npy"], 4, "uneven/a.npy has 3, uneven/b.npy has 2"),
        (["cut.npy", "--target", "short.npy"], 4, "cut.npy is truncated"),
        (["blocks", "--target", "y.npy", "--scratch", "nowhere"], 1, "nowhere"),
        (["empty", "--target", "y"], 4, "has neither .npy nor .parquet files"),
    ],
)  # fmt: skip
def test_wrong_rows_on_disk(numbers, capsys, arguments, code, message):
    gaps = people()[["age", "income", "price"]].astype({"age": "Int64"})
    gaps.loc[7, "age"] = pd.NA
    gaps.to_parquet("gaps.parquet", index=False)
    np.save("short.npy", np.arange(3.0))
    os.mkdir("empty")
    os.mkdir("uneven")
    np.save("uneven/a.npy", np.ones((5, 3)))
    np.save("uneven/b.npy", np.ones((5, 2)))
    np.save("cut.npy", np.ones((100, 2)))
    os.truncate("cut.npy", 1000)
    before = sorted(os.listdir())
    assert run("fit", *arguments, "-o", "model.skops") == code
    assert message in capsys.readouterr().err
    assert sorted(os.listdir()) == before


def test_predictions_for_folders_are_those_for_tables(numbers, capsys):
    options = ["--target", "churn", "--drop", "price", "-q", "-o", "churn.skops"]
    assert run("fit", "parts", *options) == 0
    for table in ("parts", "all.parquet"):
        assert run("predict", "churn.skops", table, "--proba", "-o", f"{table}.csv") == 0
    pd.testing.assert_frame_equal(pd.read_csv("parts.csv"), pd.read_csv("all.parquet.csv"))
    reports = []
    for table in ("parts", "all.parquet"):
        capsys.readouterr()
        assert run("evaluate", "churn.skops", table, "--groups", "churn") == 0
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1]

    assert run("fit", "blocks", "--target", "y.npy", "-q", "-o", "price.skops") == 0
    assert run("predict", "price.skops", "blocks", "-o", "price.csv") == 0
    assert len(pd.read_csv("price.csv")) == 120
    capsys.readouterr()
    assert run("evaluate", "price.skops", "blocks", "-o", "report.csv") == 0
    error = np.load("blocks/y.npy") - pd.read_csv("price.csv")["prediction"]
    assert pd.read_csv("report.csv")["mean"].iloc[0] == pytest.approx(0.5 * np.mean(error**2))


def test_folders_that_do_not_suit_a_model(numbers, models, capsys):
    assert run("fit", "blocks", "--target", "y.npy", "-q", "-o", "price.skops") == 0
    for arguments, code, message in [
        (["predict", models["price"], "parts"], 4, "column 'city' is no number"),
        (["predict", "price.skops", "parts"], 4, "there is no column 'x0'"),
        (["predict", "price.skops", "blocks", "--keep", "x0"], 2, "--keep copies columns"),
        (["predict", "price.skops", "wide"], 4, "fitted to 2 columns, and wide has 3"),
        (["evaluate", "price.skops", "wide2"], 1, "'y.npy' with targets"),
        (["evaluate", "price.skops", "blocks", "--target", "short.npy"], 4,
         "120 rows, but short.npy has 3 values"),
    ]:  # fmt: skip
        for name, width in (("wide", 3), ("wide2", 2)):
            if not os.path.exists(name):
                sorel.rows.write_blocks(name, np.ones((5, width)))
        np.save("short.npy", np.arange(3.0))
        capsys.readouterr()
        assert run(*arguments) == code
        assert message in capsys.readouterr().err


def flights(n=200, seed=0):
    rng = np.random.default_rng(seed)
    day = rng.integers(0, 365, n)
    frame = pd.DataFrame(
        {
            "day": (pd.Timestamp("2023-01-01") + pd.to_timedelta(day, "D")).strftime("%Y-%m-%d"),
            "miles": [f"{miles:,}" for miles in rng.integers(500, 5000, n)],
            "wind": rng.normal(size=n),
            "weight": rng.integers(1, 4, n),
            "tail": [f"N{number}" for number in rng.permutation(n)],
        }
    )
    frame["arr_delay"] = 0.1 * day + 5 * frame["wind"] + rng.exponential(5.0, n)
    return frame


@pytest.fixture
def flown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flights().to_csv("f.csv", index=False)
    return tmp_path


def test_dates_and_thousands_are_refused_with_a_remedy(flown, capsys):
    fit = ["fit", "f.csv", "--target", "arr_delay", "-o", "m.skops", "-q"]
    message = refused(capsys, *fit)
    for words in ("'day' holds dates, such as '2023-", "indicator columns", "--dates 'day'",
                  "--drop 'day'", "--categorical 'day'"):  # fmt: skip
        assert words in message
    message = refused(capsys, *fit, "--dates", "day")
    assert "'miles' holds numbers with separators for thousands, such as '" in message
    assert "--thousands ," in message
    assert not os.path.exists("m.skops")
    assert run(*fit, "--dates", "day", "--thousands", ",") == 0
    said = capsys.readouterr().err
    assert "'tail' has 200 different texts in 200 rows, each of which becomes an indicator" in said
    # Whoever wants names gets names.
    assert run(*fit, "--categorical", "day", "--categorical", "miles", "--drop", "tail") == 0


def test_dates_and_thousands_are_read_the_same_way_again(flown, capsys):
    options = ["--dates", "day", "--thousands", ",", "--drop", "tail", "--drop", "weight"]
    assert run("fit", "f.csv", "--target", "arr_delay", *options, "-q", "-o", "m.skops") == 0
    assert run("predict", "m.skops", "f.csv", "-o", "p.csv") == 0
    frame = flights()
    days = (pd.to_datetime(frame["day"]) - pd.Timestamp("1970-01-01")).dt.days
    X = pd.DataFrame(
        {"day": days, "miles": frame["miles"].str.replace(",", "").astype(int), "w": frame["wind"]}
    ).to_numpy(float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = sorel.SpectralRiskRegressor(random_state=0).fit(X, frame["arr_delay"])
    np.testing.assert_allclose(read_table("p.csv")["prediction"], model.predict(X), rtol=1e-9)
    frame.assign(day="yesterday").to_csv("g.csv", index=False)
    assert "'day' should hold dates such as" in refused(capsys, "predict", "m.skops", "g.csv")
    assert run("info", "m.skops") == 0
    assert "day (date)" in capsys.readouterr().out


def test_weights_of_rows(flown, capsys):
    options = ["--drop", "tail", "--drop", "day", "--drop", "miles", "--tol", "1e-8"]
    fit = ["fit", "f.csv", "--target", "arr_delay", *options, "-q", "-o", "m.skops"]
    assert run(*fit, "--sample-weight", "weight") == 0
    frame = flights()
    X = frame[["wind"]].to_numpy()
    X = (X - X.mean()) / X.std()
    twice = np.repeat(np.arange(200), frame["weight"])
    model = sorel.SpectralRiskRegressor(tol=1e-8).fit(X[twice], frame["arr_delay"][twice])
    saved = sorel.load_model("m.skops")
    np.testing.assert_allclose(saved.predict(frame), model.predict(X), rtol=1e-4)
    assert run("evaluate", "m.skops", "f.csv", "--sample-weight", "weight", "-o", "r.csv") == 0
    report = read_table("r.csv").set_index("group").loc["all"]
    errors = (saved.predict(frame) - frame["arr_delay"]).to_numpy()[twice]
    assert report["mean"] == pytest.approx(0.5 * np.mean(errors**2))
    assert report["cvar_0.1"] == pytest.approx(sorel.CVaR(0.1)(0.5 * errors**2))
    assert report["bias"] == pytest.approx(errors.mean())
    flights().assign(weight=-1).to_csv("f.csv", index=False)
    assert "weights are at least 0" in refused(capsys, *fit, "--sample-weight", "weight")
    flights().assign(weight=0).to_csv("f.csv", index=False)
    assert "'weight' holds weights, and all of them" in refused(
        capsys, *fit, "--sample-weight", "weight"
    )
    message = refused(capsys, *fit, "--sample-weight", "arr_delay", code=2)
    assert "'arr_delay' is the target" in message


def test_rows_without_a_target_on_request(flown, capsys):
    frame = flights()
    frame.loc[[3, 7, 11], "arr_delay"] = np.nan
    frame.to_csv("f.csv", index=False)
    options = ["--drop", "tail", "--drop", "day", "--drop", "miles"]
    fit = ["fit", "f.csv", "--target", "arr_delay", *options, "-o", "m.skops"]
    assert "has no value in row 4" in refused(capsys, *fit)
    assert run(*fit, "--skip-missing-target") == 0
    said = capsys.readouterr().err
    assert "note: 3 of 200 rows have no target and are left out" in said
    assert "on 197 rows" in said
    evaluate = ["evaluate", "m.skops", "f.csv", "-o", "r.csv"]
    message = refused(capsys, *evaluate)
    assert "row 4" in message
    assert "--skip-missing-target" in message
    assert run(*evaluate, "--skip-missing-target") == 0
    assert read_table("r.csv")["n"].tolist() == [197] * 3


@pytest.mark.parametrize("fixed", [[], ["--risk", "cvar:0.2"], ["--l2", "0.01"]])
def test_levels_and_penalties_by_cross_validation(flown, capsys, fixed):
    options = ["--drop", "tail", "--drop", "day", "--drop", "miles", "--drop", "weight"]
    fit = ["fit", "f.csv", "--target", "arr_delay", *options, *fixed, "-o", "m.skops"]
    assert run(*fit, "--cv", "3") == 0
    assert "cross-validation chose" in capsys.readouterr().err
    frame = flights()
    X = frame[["wind"]].to_numpy()
    X = (X - X.mean()) / X.std()
    grid = {"risks": fixed[1:]} if "--risk" in fixed else {"l2s": [0.01]} if fixed else {}
    search = sorel.SpectralRiskRegressorCV(**grid, cv=3, random_state=0).fit(X, frame["arr_delay"])
    saved = sorel.load_model("m.skops")[-1]
    assert sorel.parse_risk(saved.risk) == search.best_risk_
    assert saved.l2 == search.best_l2_
    np.testing.assert_allclose(saved.coef_, search.coef_)
    message = refused(capsys, *fit, "--risk", "mean", "--l2", "1", "--cv", code=2)
    assert "nothing to choose" in message
    message = refused(capsys, *fit, "--cv", "201", code=2)
    assert "--cv 201 is more than the 200 rows; give fewer folds" in message


def test_an_intercept_that_keeps_the_mean(flown, capsys):
    options = ["--drop", "tail", "--drop", "day", "--drop", "miles", "--risk", "cvar:0.1"]
    fit = ["fit", "f.csv", "--target", "arr_delay", *options, "-q", "-o", "m.skops"]
    assert run(*fit, "--intercept", "mean") == 0
    assert run("evaluate", "m.skops", "f.csv", "-o", "r.csv") == 0
    assert read_table("r.csv")["bias"][0] == pytest.approx(0.0, abs=1e-10)
    assert run(*fit, "--intercept", "none") == 0
    assert sorel.load_model("m.skops")[-1].intercept_ == 0.0
    # Indicators of many texts are sparse; no word of Python's.
    rng = np.random.default_rng(11)
    codes = [f"code {k}" for k in rng.integers(0, 90, 300)]
    table = pd.DataFrame({"code": codes, "a": rng.normal(size=300), "y": rng.gamma(2.0, size=300)})
    table.to_csv("codes.csv", index=False)
    fit = ["fit", "codes.csv", "--target", "y", "--intercept", "mean", "-q", "-o", "m.skops"]
    gamma = ["--drop", "code", "--loss", "gamma"]
    for more, reason in (([], "sparse"), (["--cv", "2"], "sparse"), (gamma, "--loss gamma")):
        message = refused(capsys, *fit, *more, code=2)
        assert "--intercept mean" in message
        assert reason in message
        assert "--intercept free" in message
        assert "fit_intercept" not in message


def test_weights_of_rows_on_disk(flown, capsys):
    flights().drop(columns=["day", "miles", "tail"]).to_parquet("f.parquet")
    fit = ["fit", "f.parquet", "--target", "arr_delay", "-q", "--sample-weight", "weight"]
    assert run(*fit, "--out-of-core", "-o", "disk.skops") == 0
    assert run(*fit, "-o", "m.skops") == 0
    on_disk, table = sorel.load_model("disk.skops"), sorel.load_model("m.skops")
    np.testing.assert_allclose(on_disk[-1].coef_, table[-1].coef_, rtol=1e-2)
    assert list(on_disk["columns"].feature_names_in_) == ["wind"]


def test_many_columns_of_texts_have_too_many_together(folder, capsys):
    rows = [f"a{k},b{k % 30_000},{k}\n" for k in range(40_000)]
    Path("table.csv").write_text("s,t,y\n" + "".join(rows))
    message = refused(capsys, "fit", "table.csv", "--target", "y", "-o", "m.skops")
    assert "columns up to 't' have more than 65536 different texts" in message
    assert "--drop 't'" in message


def test_long_tables_are_predicted_and_measured_in_parts(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    table = tmp_path / "table.csv"
    rows = "".join(f"{a},{b},{'uv'[int(a + b > 0)]}\n" for a, b in X)
    table.write_text("a,b,y\n" + rows)
    model = str(tmp_path / "m.skops")
    assert cli.main(["fit", str(table), "--target", "y", "-o", model, "--quiet"]) == 0
    written = []
    for count in (1 << 21, 14):
        monkeypatch.setattr("sorel.cli.saved_models._CELLS", count)
        for command in (["predict", "--proba"], ["evaluate"]):
            path = tmp_path / f"{command[0]}{count}.csv"
            assert cli.main([*command, model, str(table), "-o", str(path)]) == 0
            written.append(read_table(path))
    for whole, parts in zip(written[:2], written[2:], strict=True):
        # Products of few rows may differ in the last digit.
        pd.testing.assert_frame_equal(whole, parts, rtol=1e-12)
