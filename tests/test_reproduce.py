"""The reproduction: cells that survive a kill, numbers that do not depend on --jobs, tables."""

from __future__ import annotations

import html.parser
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sorel
from sorel.cli import main
from sorel.reproduce import Settings, reproduce
from sorel.reproduce.cells import Dataset, Progress, Work, cell
from sorel.reproduce.claims import HOLDS, HOLDS_NOT, NOT_ENOUGH, NOT_MEASURED, claims
from sorel.reproduce.experiments import late, plane, toy, trace, trace_lbfgs
from sorel.reproduce.plan import FIXED_RUNS, collect, load_data
from sorel.reproduce.result_tables import knob_free, late_levels, number, reached, to_markdown
from sorel.reproduce.settings import ALL_METHODS, APPENDIX_METHODS, make_settings, risk_label

TINY = Settings(
    datasets=("generated",),
    risks=("esrm:2", "cvar:0.5"),
    seeds=2,
    tuning_seeds=2,
    passes=30,
    batch_passes=30,
    late_iterations=10,
    step_sizes=(0.003, 0.01),
    dual_steps=(0.1,),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduction")
    return reproduce(TINY, folder), folder


def computed(folder, jobs=1):
    """The same run without its pictures."""
    return collect(TINY, load_data(TINY, None), folder / "cells", jobs)


def without_times(frame):
    return frame.drop(columns=[name for name in frame if "seconds" in name or " ms" in name])


def numbers(results):
    """Everything but times, as frames that can be compared."""
    frames = (results.optima, results.tuning, results.curves, results.late, results.constants)
    return [without_times(frame) for frame in frames]


def same(first, second):
    # To rounding: while the cache of compiled code fills, two processes may compile the same loop
    # with sums in another order.
    for ours, theirs in zip(numbers(first), numbers(second), strict=True):
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-7, atol=1e-13)
    for name in ("without", "with"):
        paths = (results.plane["paths"][name]["w"] for results in (first, second))
        np.testing.assert_allclose(*paths, rtol=1e-7, atol=1e-13)


# What is written.


def test_everything_lands_in_one_folder(tiny):
    _, folder = tiny
    names = ["figure1", "figure2", "figure3", "appendix2", "appendix3", "knob_free", "toy"]
    for name in names:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in ("curves", "grid", "late_curves"):
        table = pd.read_csv(folder / f"{name}.csv")
        assert len(table) == len(pd.read_parquet(folder / f"{name}.parquet")) > 0
    tables = ["claims", "datasets", "settings", "reached", "reached_batch", "knob_free"]
    for name in (*tables, "appendix", "appendix_batch"):
        assert len(pd.read_csv(folder / "tables" / f"{name}.csv")) > 0
    assert not list(folder.rglob("*.tmp"))


def test_report_needs_no_network(tiny):
    _, folder = tiny
    text = (folder / "report.html").read_text(encoding="utf-8")
    sources = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            sources.extend(value for key, value in attributes if key in ("src", "href"))

    Reader().feed(text)
    assert sources
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert "default-src 'none'" in text


def test_curves_have_all_methods_and_no_negative_suboptimality(tiny):
    results, _ = tiny
    methods = {*ALL_METHODS, *APPENDIX_METHODS}
    for _, part in results.curves.groupby(["risk", "batch"]):
        assert set(part["method"]) == methods
    assert (results.optima["relative_gap"] <= 1e-12).all()
    assert results.curves["suboptimality"].min() >= 0.0
    assert results.least >= -1e-13
    first = results.curves[results.curves["iteration"] == 0]["suboptimality"]
    np.testing.assert_allclose(first, 1.0)


def test_choice_is_the_least_mean_score(tiny):
    results, _ = tiny
    for _, part in results.tuning.groupby(["risk", "batch", "method"]):
        assert part["chosen"].sum() == 1
        chosen = part[part["chosen"]].iloc[0]
        assert chosen["score"] <= part["score"].min() + 1e-12


def test_tables_agree_with_the_curves(tiny):
    results, _ = tiny
    row = reached(results).set_index(["risk", "batch", "method"]).loc["esrm:2", 1, "lbfgs"]
    runs = results.curves[
        (results.curves["risk"] == "esrm:2")
        & (results.curves["batch"] == 1)
        & (results.curves["method"] == "lbfgs")
    ]
    run = runs[runs["seed"] == 1]
    assert row["passes_1e-03"] == run[run["suboptimality"] <= 1e-3]["passes"].iloc[0]
    table = knob_free(results)
    assert list(table["dataset"]) == ["generated", "generated"]
    assert (table["grid 1e-06"] > 0).all()


def test_claims_are_computed(tiny):
    results, _ = tiny
    verdicts = {claim.claim: claim for claim in claims(results)}
    swing = verdicts["Recomputed weights make the iterates swing between -1 and 1 for ever."]
    assert swing.verdict == HOLDS
    assert verdicts["The printed weights of CVaR are a spectrum."].verdict == HOLDS_NOT
    assert verdicts["On kin8nm SOREL is comparable to its rivals."].verdict == NOT_MEASURED
    assert all(claim.measured for claim in verdicts.values())


# Restart and parallel work.


def test_second_run_computes_nothing(tiny):
    results, folder = tiny
    times = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    again = computed(folder)
    assert again.kept == again.cells == results.cells
    assert times == {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    same(results, again)
    # Times come from the files as well, so that even they are the same.
    pd.testing.assert_frame_equal(results.curves, again.curves)


def test_jobs_do_not_change_the_numbers(tiny, tmp_path):
    results, _ = tiny
    same(results, computed(tmp_path, jobs=2))


_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_reproduce import TINY
from sorel.reproduce import reproduce
reproduce(TINY, Path({out!r}))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_killed_run_continues_and_ends_with_the_same_tables(tiny, tmp_path, monkeypatch):
    results, folder = tiny
    total = len(list((folder / "cells").iterdir()))
    code = _CHILD.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
    cells, deadline = tmp_path / "cells", time.monotonic() + 300
    while len(list(cells.glob("*.json"))) < 5:
        assert child.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = {path.name: path.read_bytes() for path in cells.glob("*.json")}
    assert 5 <= len(before) < total
    assert not (tmp_path / "report.html").exists()
    monkeypatch.setattr("sorel.reproduce.figures.draw_all", lambda *_: {})
    again = reproduce(TINY, tmp_path)
    assert again.kept >= len(before)
    assert all((cells / name).read_bytes() == content for name, content in before.items())
    same(results, again)
    for name in ("settings", "knob_free", "knob_free_batch", "late"):
        ours, theirs = (f / "tables" / f"{name}.csv" for f in (folder, tmp_path))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_unreadable_cell_is_computed_again(tmp_path):
    piece = cell("toy", start=0.5, alpha=0.5, steps=60, iterations=3)
    work = Work(tmp_path, {})
    first = work.run("toy", {"a": piece})
    work.path(piece).write_text('{"paths": {"wi')
    assert work.load(piece) is None
    assert work.run("toy", {"b": piece}) == {"b": first["a"]}
    assert work.load(piece) == first["a"]


def test_key_depends_on_settings_data_and_code(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(5, 2)), rng.normal(size=5)

    def path(target, risk):
        data = {"a": Dataset("a", X, target)}
        return Work(tmp_path, data).path(cell("optimum", "a", risk=risk))

    known = path(y, "esrm:2")
    assert path(y.copy(), "esrm:2") == known
    assert known not in (path(y + 1e-15, "esrm:2"), path(y, "max"))
    monkeypatch.setattr("sorel.reproduce.cells.code_version", lambda: "other")
    assert path(y, "esrm:2") != known


def test_interruption_keeps_finished_cells(tmp_path, monkeypatch):
    from sorel.reproduce import experiments

    calls = []

    def interrupted(data, **arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {"value": 1.0}

    monkeypatch.setitem(experiments.EXPERIMENTS, "toy", interrupted)
    pieces, work = {k: cell("toy", k=k) for k in range(3)}, Work(tmp_path, {})
    with pytest.raises(KeyboardInterrupt):
        work.run("toy", pieces)
    assert [work.load(piece) is not None for piece in pieces.values()] == [True, False, False]
    assert len(work.run("toy", pieces)) == 3
    assert len(calls) == 4


def test_progress_shows_the_time_left(capsys):
    progress = Progress(shown=True)
    progress.start("tuning", [1.0] * 4, known=3)
    progress.advance(1.0)
    progress.advance(1.0)
    progress.close()
    text = capsys.readouterr().err
    assert "tuning: 2/4 cells (3 kept from before), 50%, about 0 s left" in text
    Progress(shown=False).close()
    assert capsys.readouterr().err == ""


# The experiments.


def test_toy_example_swings_between_minus_one_and_one():
    for start in (-3.0, 0.0, 0.5):
        for alpha in (0.3, 1.0, 1.7):
            result = toy(None, start=start, alpha=alpha, steps=100, iterations=20)
            path = np.array(result["paths"]["without"][1:])
            np.testing.assert_allclose(np.abs(path), 1.0, atol=1e-9)
            assert (path[1:] * path[:-1] < 0).all()
            assert abs(result["paths"]["with"][-1]) < 1e-3


def test_figure_1_oscillates_without_the_proximal_term_only():
    rng = np.random.default_rng(0)
    data = Dataset("noise", rng.normal(size=(80, 3)), rng.standard_t(3, size=80))
    arguments = {"iterations": 200, "eta": 1.0, "tolerance": 1e-12, "resolution": 5}
    result = plane(data, risk="cvar:0.2", **arguments)
    above = {
        name: np.array(path["objective"][-50:]) - result["optimum"]
        for name, path in result["paths"].items()
    }
    assert result["relative_gap"] <= 1e-12
    assert above["without"].min() > 1e-2
    assert 0.0 <= above["with"].max() < 1e-2 * above["without"].min()
    assert min(map(min, result["levels"])) >= result["optimum"]


@pytest.fixture
def problem():
    X, y, _ = sorel.datasets.make_two_populations(n=120, d=3, seed=1)
    return sorel.Problem(X, y, risk=sorel.ESRM(2.0))


def test_traces_are_those_of_solve(problem):
    solver = sorel.solvers.SOREL("paper", 0.01, 0.1)
    run = trace(problem, solver, 21, seed=3)
    history = []
    with pytest.warns(sorel.ConvergenceWarning):
        sorel.solve(problem, solver, 0.0, 21, random_state=3, callback=history.append)
    assert run.passes == [record.passes for record in history]
    np.testing.assert_allclose(run.objective, [record.objective for record in history], rtol=1e-14)
    assert all(a <= b for a, b in zip(run.seconds, run.seconds[1:], strict=False))


def test_diverging_run_scores_infinity(problem):
    run = trace(problem, sorel.solvers.LSVRG(10.0), 40, seed=1)
    assert run.score() == np.inf
    assert json.loads(json.dumps(run._asdict()))["objective"][-1] == np.inf


def test_lbfgs_trace_is_monotone_and_keeps_to_its_budget(problem):
    run = trace_lbfgs(problem, 40)
    assert run.passes[-1] == len(run.passes) <= 40
    assert all(a >= b for a, b in zip(run.objective, run.objective[1:], strict=False))


def test_published_schedule_loses_what_it_reached_on_yacht():
    data = load_data(Settings(figures=("1",), datasets=("yacht",)), None)["yacht"]
    problem = sorel.Problem(data.X, data.y, risk=sorel.ESRM(2.0))
    best = sorel.solve(problem, "newton", tol=1e-12, max_passes=5000).dual
    for inner in FIXED_RUNS.values():
        setting = {} if inner == "auto" else {"alpha": 0.03, "C": 0.1}
        run = late(data, risk="esrm:2", setting=setting, seed=1, iterations=1000, inner=inner)
        above = np.array(run["objective"]) - best
        assert above[400] < 1e-9
        if "paper" in inner:
            assert above[600:].min() > 1e-3
        else:
            assert above[500:].max() < 1e-9


# Small things.


def test_settings_and_labels():
    assert risk_label("cvar:0.5") == "CVaR(0.5)"
    assert make_settings("3").batches == (64,)
    assert make_settings("1").batches == ()
    assert len(Settings().grid("sorel")) == 72
    assert make_settings(quick=True).seeds < Settings().seeds
    with pytest.raises(ValueError, match="unknown dataset 'nothing'"):
        make_settings(datasets=["nothing"])
    with pytest.raises(ValueError, match="unknown risk"):
        make_settings(risks=["nothing:1"])


def test_late_levels_notice_a_loss(tiny):
    results, _ = tiny
    level = [1.0, 1e-3, 1e-8, *[1e-2] * 20]
    frame = pd.DataFrame({"iteration": range(len(level)), "suboptimality": level})
    frame = frame.assign(dataset="generated", risk="esrm:2", run="tuned")
    table = late_levels(replace(results, late=frame))
    assert table.loc[0, "lost"]
    assert table.loc[0, "at iteration"] == 2


def test_numbers_and_markdown():
    shown = [number(x) for x in (0.0, 0.5, 12.0, 12.34, 1e-7, np.nan, "a", True)]
    assert shown == ["0.00", "0.50", "12", "12.3", "1.0e-07", "-", "a", "yes"]
    text = to_markdown(pd.DataFrame({"a": ["x|y"], "b": [1.0]}))
    assert text == "| a | b |\n|---|---|\n| x\\|y | 1.00 |"


def test_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sorel.reproduce.make_settings", lambda *_: replace(TINY, figures=("1",)))
    assert main(["reproduce", "--figure", "1", "--out", str(tmp_path / "a"), "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "holds" in out
    assert "report.html" in out


def test_missing_data_name_the_variable(tmp_path, capsys, monkeypatch):
    def missing(name, folder):
        raise FileNotFoundError(f"{name}.csv was not found")

    monkeypatch.setattr("sorel.reproduce.plan.load_paper_dataset", missing)
    code = main(["reproduce", "--datasets", "yacht", "--out", str(tmp_path)])
    assert code != 0
    said = capsys.readouterr().err
    assert "yacht.csv was not found" in said
    assert "SOREL_DATA" in said
    assert "--datasets diabetes generated" in said


def test_wrong_names_are_refused(tmp_path, capsys):
    assert main(["reproduce", "--datasets", "nothing", "--out", str(tmp_path)]) == 2
    assert "known: yacht" in capsys.readouterr().err


def falling_curve(rate, checks=60):
    passes = np.arange(checks, dtype=float)
    return passes, np.exp(-rate * passes)


@pytest.mark.parametrize(
    ("rate", "passes", "verdict"),
    [
        (0.5, 300, HOLDS),  # arrives
        (0.05, 150, NOT_ENOUGH),  # on its way when the short budget ends
        (0.05, 300, HOLDS_NOT),  # the full budget was its chance
        (0.0, 150, HOLDS_NOT),  # more passes would not help
    ],
)
def test_a_short_budget_decides_nothing(tiny, rate, passes, verdict):
    results, _ = tiny
    frames = []
    for method in (*ALL_METHODS, *APPENDIX_METHODS):
        x, level = falling_curve(rate if method == "sorel" else 0.0)
        frames.append(
            pd.DataFrame(
                {
                    "dataset": "generated", "risk": "cvar:0.5", "batch": 1, "method": method,
                    "seed": 1, "iteration": np.arange(len(x)), "passes": x, "seconds": x,
                    "objective": level, "suboptimality": level,
                }
            )
        )  # fmt: skip
    settings = replace(results.settings, passes=passes, risks=("cvar:0.5",), figures=("2",))
    changed = replace(results, settings=settings, curves=pd.concat(frames))
    verdicts = {claim.claim: claim.verdict for claim in claims(changed)}
    assert verdicts["SOREL converges to the true optimum in every setting."] == verdict
    assert verdicts["LSVRG and Prospect often fail to reach the true optimum."] == HOLDS
