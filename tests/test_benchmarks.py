"""The instruments of the benchmarks: what they measure must be what they say."""

import json

import numpy as np
import pytest

import sorel

# The benchmarks are a folder of the repository, not part of the installed package.
pytest.importorskip("benchmarks", reason="benchmarks are not part of an installed package")

from benchmarks import classes, common, elastic_net, first_use, rival_codes, rivals, scaling
from benchmarks import scaling_cases as cases

BUDGET = common.Budget(repeats=1, seconds=5.0)


# Clocks, memory, pages.


def test_exponent_of_a_power_law():
    sizes = [1e3, 1e4, 1e6]
    assert scaling.exponent(sizes, [2e-7 * n**1.3 for n in sizes]) == pytest.approx(1.3)
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


def test_first_use_is_measured_in_a_process_of_its_own():
    assert all(seconds > 0.0 for seconds in first_use.measure("portfolio"))


# Rivals minimise the objective of the package.


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "huber", "linear"])
def test_plain_objectives_are_those_of_the_problem(loss):
    X, y = rivals.generated(30, 3, loss)
    risk = sorel.CVaR(0.35) if loss != "poisson" else sorel.Mean()
    intercept = loss not in ("logistic", "linear")
    task = rival_codes.Task("", X, y, risk, loss, l2=1 / 30, intercept=intercept)
    objectives = [rival_codes.Plain(task)]
    if loss == "logistic":
        objectives.append(common.SortedObjective(X, y, risk, loss))
    w = np.linspace(-0.5, 0.7, task.size)
    for objective in objectives:
        value, gradient = objective(w)
        assert value == pytest.approx(task.problem.objective(w), rel=1e-12)
        for j, step in enumerate(1e-6 * np.eye(task.size)):
            slope = (objective(w + step)[0] - objective(w - step)[0]) / 2e-6
            assert gradient[j] == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("count", [2, 3])
def test_the_classifiers_are_compared_on_one_objective(count):
    X, y = classes.Case(60, 3, count).data()
    optimum = sorel.solve(classes.build(X, y), tol=1e-9)
    # It arrives, though not at the first tolerance: the objectives are the same to six digits.
    assert classes.rival_of(X, y, "lbfgs", optimum.dual).tol < max(classes.TOLERANCES)
    assert classes.rival_of(X, y, "lbfgs", 0.9 * optimum.dual) is None


def test_elastic_net_compares_equal_objectives():
    X, y = elastic_net.make_data(60, 30, 0.3)
    assert X.nnz == 540
    alpha = elastic_net.strength(X, y, 0.2)
    penalty = sorel.ElasticNet(0.1 * alpha, 0.9 * alpha)
    problem = sorel.Problem(X, y, risk="mean", penalty=penalty, fit_intercept=True)
    bound = sorel.solve(problem, tol=1e-9).dual
    model = elastic_net.loosest_fit(problem, bound, alpha, X, y)
    value = problem.objective(np.append(model.coef_, model.intercept_))
    assert bound <= value <= bound + 1.1e-6 * value
    # No coefficient is left from the value on that shares refer to.
    assert not model.set_params(alpha=elastic_net.strength(X, y, 1.001)).fit(X, y).coef_.any()


BY_NAME = {code.name: code for code in rival_codes.CODES}
TASKS = [task for group in rivals.questions().values() for task in group]


@pytest.mark.parametrize(
    "name", ["sorel (auto)", "cvxpy + Clarabel", "scipy trust-constr", "scikit-learn Ridge",
             "scikit-learn LogisticRegression", "scikit-learn ElasticNet",
             "scikit-learn PoissonRegressor"],
)  # fmt: skip
def test_codes_that_can_state_a_problem_solve_it(name):
    """Each states the problem in terms of its own: a wrong factor would show."""
    code = BY_NAME[name]
    if code.missing():
        pytest.skip(f"needs {code.missing()}")
    stated = [task for task in TASKS if code.states(task) and task.l2 >= 0.01]
    assert stated
    for task in stated[-3:]:
        outcome = rivals.measure(code, rivals.Reference.of(task), 20.0)
        assert outcome.error <= 1e-4, task
        assert not outcome.failure


def test_errors_are_those_of_our_objective():
    task = next(task for task in TASKS if task.mean)
    reference = rivals.Reference.of(task)
    assert 0.0 < reference.error(np.zeros(task.size)) < np.inf
    for wrong in (np.full(task.size, np.nan), np.zeros(task.size + 1)):
        assert reference.error(wrong) == np.inf
    broken = rival_codes.Code("broken", (), (1, 2), lambda task: True, lambda task: 1 / 0)
    outcome = rivals.measure(broken, reference, 1.0)
    assert outcome.show(1e-3) == "fails"
    assert "ZeroDivisionError" in outcome.failure


# Scaling.


def test_a_section_runs_in_its_own_process(tmp_path, capsys):
    out, raw, picture = (tmp_path / name for name in ("out.md", "raw.json", "picture.png"))
    arguments = ["--quick", "--repeats", "1", "--only", "disk", "--scratch", str(tmp_path)]
    arguments += ["--out", str(out), "--json", str(raw), "--picture", str(picture)]
    assert scaling.main(arguments, scaling.Sizes(disk=(3000, 4))) == 0
    records = json.loads(raw.read_text())
    assert [record["measure"] for record in records] == ["write_files", "from_file", "from_file"]
    assert all(record["converged"] for record in records[1:])
    assert "| mapped" in out.read_text()
    assert "| mapped" in capsys.readouterr().out
    # The section of the picture did not run, and the data is gone.
    assert sorted(tmp_path.iterdir()) == [out, raw]
    failed = scaling.Runner(scaling.QUICK, BUDGET)("dense", n=100, d=2, risk="no such risk")
    assert "no such risk" in failed["failed"]
    assert scaling.show_time(failed) == "failed"
