"""The instruments of the benchmarks: what they measure must be what they say."""

import json
import warnings

import numpy as np
import pytest

import sorel

# The benchmarks are a folder of the repository, not part of the installed package.
cases = pytest.importorskip("benchmarks.scaling_cases", reason="not installed")
common = pytest.importorskip("benchmarks.common", reason="not installed")
elastic_net = pytest.importorskip("benchmarks.elastic_net", reason="not installed")
first_use = pytest.importorskip("benchmarks.first_use", reason="not installed")
scaling = pytest.importorskip("benchmarks.scaling", reason="not installed")

BUDGET = common.Budget(repeats=1, seconds=5.0)


def test_exponent_of_a_power_law():
    sizes = [1e3, 1e4, 1e6]
    seconds = [2e-7 * n**1.3 for n in sizes]
    assert scaling.exponent(sizes, seconds) == pytest.approx(1.3)
    assert scaling.steepest(sizes, [1.0, 10.0, 10.0]) == pytest.approx(1.0)


def test_peak_memory_sees_what_was_freed_since_the_reset():
    size = 1 << 26
    np.ones(4 * size, dtype=np.uint8)
    memory = cases.PeakMemory()
    if memory.method != "VmHWM":
        pytest.skip("this system does not reset the peak of a process")
    assert memory.peak() - memory.base < size // 4
    np.ones(size, dtype=np.uint8)
    assert 0.9 * size < memory.peak() - memory.base < 1.5 * size


def test_sparse_data_has_distinct_columns_and_both_labels():
    X, y = cases.sparse_data(300, 40, 12)
    assert X.shape == (300, 40)
    assert all(len(set(row)) == 12 for row in X.indices.reshape(300, 12))
    assert set(y) == {-1.0, 1.0}
    # Column k is drawn in proportion to k^-0.8.
    assert X.getnnz(axis=0)[:5].sum() > 2 * X.getnnz(axis=0)[-5:].sum()


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_rival_minimises_the_same_objective(loss):
    X, y = cases.dense_data(200, 3) if loss == "squared" else cases.sparse_data(200, 12, 5)
    objective = common.SortedObjective(X, y, sorel.CVaR(0.3), loss)
    problem = cases.build(X, y, "cvar:0.3", loss=loss)
    w = np.linspace(-1.0, 1.0, X.shape[1])
    value, gradient = objective(w)
    assert value == pytest.approx(problem.objective(w), rel=1e-12)
    for j, step in enumerate(1e-6 * np.eye(len(w))):
        slope = (objective(w + step)[0] - objective(w - step)[0]) / 2e-6
        assert gradient[j] == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_files_hold_the_generated_data(tmp_path):
    cases.write_files(str(tmp_path), 1000, 4)
    X, y = cases.dense_data(1000, 4, "float32")
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), X)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), y)


def test_lbfgs_reports_a_target_it_cannot_reach():
    X, y = cases.sparse_data(300, 100, 10)
    # Losses are positive, so no objective is below the optimum by the optimum itself.
    record = cases.time_lbfgs(X, y, "cvar:0.1", "logistic", -1.0, 1e-6, BUDGET)
    assert not record["converged"]
    assert record["suboptimality"] > -1.0
    assert scaling.show_time(record).startswith("never")


def test_outer_iterations_are_timed_between_runs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        record = cases.outer_iteration(2000, 3, "cvar:0.5", BUDGET, passes=(4, 12))
    first, last = record["n_iter"]
    # Two passes each.
    assert last - first == 4


def test_a_section_runs_in_its_own_process(tmp_path, capsys):
    sizes = scaling.Sizes(disk=(3000, 4))
    out, raw = tmp_path / "out.md", tmp_path / "raw.json"
    arguments = ["--quick", "--repeats", "1", "--only", "disk", "--scratch", str(tmp_path)]
    picture = tmp_path / "picture.png"
    arguments += ["--out", str(out), "--json", str(raw), "--picture", str(picture)]
    assert scaling.main(arguments, sizes) == 0
    records = json.loads(raw.read_text())
    assert [record["measure"] for record in records] == ["write_files", "from_file", "from_file"]
    assert all(record["converged"] for record in records[1:])
    assert "| mapped" in out.read_text()
    assert "| mapped" in capsys.readouterr().out
    # The section of the picture did not run, and the data is gone.
    assert sorted(tmp_path.iterdir()) == [out, raw]


def test_a_case_that_fails_is_an_entry_of_the_report():
    run = scaling.Runner(scaling.QUICK, BUDGET)
    record = run("dense", n=100, d=2, risk="no such risk")
    assert "no such risk" in record["failed"]
    assert scaling.show_time(record) == "failed"


@pytest.mark.parametrize("kind", first_use.KINDS)
def test_kinds_of_first_use_are_fitted(kind):
    assert first_use.fit(kind).relative_gap_ <= 1e-4


def test_kinds_of_first_use_come_after_the_default_fit_of_their_estimator():
    for estimator, form, options in first_use.KINDS.values():
        assert first_use.KINDS[estimator] == (estimator, "", {})
        assert isinstance(form, str)
        assert isinstance(options, dict)


def test_first_use_counts_functions_and_lays_out_a_row():
    found = {
        "empty": (1.0, 0.5),
        "filled": (0.5, 0.25),
        "again": 0.002,
        "functions": {"sorel.kernels.a": 0.1, "numba.np.b": 0.2, "sorel.quadratic.c": 0.3},
    }
    row = first_use.row("ESRM", found)
    assert row == ["ESRM", "1.00", "0.50", "0.50", "0.25", "2 + 1", "2.00"]
    assert len(row) == 1 + len(first_use.HEADER)


def test_elastic_net_compares_equal_objectives():
    X, y = elastic_net.make_data(60, 30, 0.3)
    assert X.nnz == 540
    alpha = elastic_net.strength(X, y, 0.2)
    l1, l2 = 0.9 * alpha, 0.1 * alpha
    problem = sorel.Problem(X, y, risk="mean", penalty=sorel.ElasticNet(l2, l1), fit_intercept=True)
    bound = sorel.solve(problem, tol=1e-9).dual
    model = elastic_net.loosest_fit(problem, bound, alpha, X, y)
    coef = model.coef_
    value = 0.5 * np.mean((y - X @ coef - model.intercept_) ** 2)
    value += l1 * np.abs(coef).sum() + 0.5 * l2 * coef @ coef
    assert bound <= value <= bound + 1.1e-6 * value
    # No coefficient is left from the value on that shares refer to.
    assert not model.set_params(alpha=elastic_net.strength(X, y, 1.001)).fit(X, y).coef_.any()


def test_elastic_net_lays_out_its_tables(monkeypatch):
    rows = elastic_net.against_sklearn([(40, 6, 1.0), (40, 12, 0.5)], [0.3], 1)
    assert [row[0] for row in rows] == ["40 x 6", "40 x 12, 50% full"]
    assert all(float(row[5]) > 0.0 and float(row[6]) <= 1e-6 for row in rows)
    monkeypatch.setattr(elastic_net, "RISKS", ["cvar:0.5"])
    others = elastic_net.other_risks(40, 6, 1)
    assert len(others) == 8
    assert all(float(row[-1]) <= 1e-6 for row in others)
