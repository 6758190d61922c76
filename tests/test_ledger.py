"""What a run keeps of its certificates, when it looks again, and what it says in the end."""

from __future__ import annotations

import importlib
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import make_data

import sorel
from sorel.problem import Certificate, Problem
from sorel.solvers import Iterate, Run

# The function of that name hides the module.
solving = importlib.import_module("sorel.solve")
EPS = np.finfo(float).eps


def certificate(primal, dual, rounding=0.0, primal_rounding=0.0, passes=0.0):
    gap = primal - dual
    return Certificate(primal, dual, gap, gap / abs(primal), rounding, primal_rounding, passes)


class Stub:
    """A problem of which the certificates are known beforehand."""

    def __init__(self, certificates=(), closer=None):
        self.certificates, self.closer = list(certificates), closer
        self.refined, self.looks = [], 0
        self.engine = SimpleNamespace(
            point=lambda w: SimpleNamespace(w=w),
            worst_case=lambda point: "worst case",
            weights=lambda dual: np.array([0.25, 0.75]),
        )

    unit = staticmethod(abs)

    def is_negligible(self, gap, rounding):
        return False

    def certify(self, point, dual, refine=0.0, **more):
        self.refined.append(refine)
        return self.certificates.pop(0)

    def look_closer(self, point, dual):
        self.looks += 1
        return self.closer


def make_run(passes=0.0, tol=1e-6, **options):
    return Run(np.zeros(1), None, tol, 1000, math.inf, 0, passes=passes, **options)


def ledger_of(*certificates, run=None, closer=None):
    run = make_run() if run is None else run
    return solving._Ledger(Stub(certificates, closer), run, [])


def enter(ledger, *certificates):
    for found in certificates:
        name = len(ledger.history)
        ledger._enter(np.array([float(name)]), f"weights {name}", found)


def test_the_lowest_objective_and_the_highest_bound_belong_together():
    ledger = ledger_of()
    enter(ledger, certificate(10.0, 4.0), certificate(9.0, 2.0), certificate(12.0, 5.0))
    assert ledger.w == [1.0]
    assert ledger.dual == "weights 2"
    assert ledger.objective == 9.0
    assert ledger.gap == pytest.approx(4.0)
    assert ledger.bound == pytest.approx(5.0)
    assert ledger.relative_gap == pytest.approx(4.0 / 9.0)
    assert [record.best_gap for record in ledger.history] == pytest.approx([6.0, 5.0, 4.0])
    assert [record.best_dual for record in ledger.history] == pytest.approx([4.0, 4.0, 5.0])
    assert [record.gap for record in ledger.history] == [6.0, 7.0, 7.0]
    # Worse in both respects: nothing changes.
    enter(ledger, certificate(9.5, 4.5))
    assert (ledger.w, ledger.dual) == ([1.0], "weights 2")


def test_the_gap_of_one_certificate_is_taken_as_it_is():
    """Its difference was computed without cancellation, unlike that of two."""
    ledger = ledger_of()
    exact = Certificate(1.0, 1.0 - 1e-17, 1e-17, 1e-17)
    enter(ledger, certificate(2.0, 0.5), exact)
    assert ledger.gap == 1e-17
    assert ledger.bound == 1.0 - 1e-17


def test_rounding_errors_of_objective_and_bound():
    """An objective is one with its error added; a bound need not pay for its objective's error."""
    ledger = ledger_of()
    enter(ledger, certificate(10.0, 8.0, rounding=0.5, primal_rounding=0.25))
    assert ledger.rounding == pytest.approx(0.5)
    lower = solving._lower_bound(certificate(10.0, 8.0, 0.5, 0.25))
    assert lower == pytest.approx(8.25)
    assert 8.25 - 8 * EPS * 12.25 <= lower < 8.25
    assert solving._lower_bound(certificate(10.0, 8.0)) == 8.0
    # Lower, but not for certain: its error is too large.
    enter(ledger, certificate(9.9, 1.0, rounding=0.7, primal_rounding=0.6))
    assert ledger.objective == 10.0
    enter(ledger, certificate(9.9, 1.0, rounding=0.3, primal_rounding=0.1))
    assert ledger.objective == 9.9
    assert ledger.gap == pytest.approx(10.0 - 8.25)
    assert ledger.bound == pytest.approx(9.9 - (10.0 - 8.25))
    # What the bound lacks beside the objective's error, and the error of the new objective.
    assert ledger.rounding == pytest.approx(0.25 + 0.1)


def test_of_equal_bounds_the_smaller_gap_has_the_weights():
    ledger = ledger_of()
    enter(ledger, certificate(10.0, 0.0), certificate(12.0, 0.0), certificate(5.0, 0.0))
    assert ledger.dual == "weights 2"
    enter(ledger, certificate(7.0, 0.0))
    assert ledger.dual == "weights 2"


def test_an_error_that_overflows_leaves_an_objective():
    ledger = ledger_of()
    enter(ledger, certificate(1e308, 0.0, rounding=1e308, primal_rounding=1e308))
    assert ledger.objective == 1e308
    assert ledger._upper == sys.float_info.max


def test_what_is_not_finite_is_noted_and_not_kept():
    ledger = ledger_of()
    enter(ledger, Certificate(math.inf, 3.0, math.inf, math.inf, passes=2.0))
    assert ledger.w is None
    assert ledger.state("newton", 0.0) is None
    assert ledger.relative_gap == math.inf
    record = ledger.history[-1]
    assert (record.objective, record.best_dual, record.passes) == (math.inf, 3.0, 2.0)
    ledger.w = np.zeros(1)
    assert ledger.state("newton", 0.0) is None
    ledger.w = None
    enter(ledger, certificate(2.0, 1.0))
    assert ledger.history[-1].best_dual == 1.0
    ledger.dual, ledger.w = "weights", None
    assert ledger.state("newton", 0.0) is None


def test_half_of_the_gap_gone_is_progress():
    run = make_run()
    ledger = ledger_of(run=run)
    for passes, gap in ((1.0, 8.0), (2.0, 4.1), (3.0, 4.0), (4.0, 2.1), (5.0, 2.0)):
        run.passes = passes
        enter(ledger, certificate(100.0, 100.0 - gap))
    assert ledger._halved == (5.0, pytest.approx(2.0))


def test_a_gap_that_no_longer_falls_is_looked_at_more_closely():
    """After some passes, and each time in vain later than before."""
    patience, run = solving._PATIENCE, make_run()
    ledger = ledger_of(*[certificate(2.0, 1.0, 1.1 / solving._RESOLVED)] * 20, run=run)
    iterate = Iterate(SimpleNamespace(w=np.zeros(1)), "weights")
    looks = []
    for passes in (0.0, patience, patience + 1, 2 * patience + 2, 2 * patience + 4, 6 * patience):
        run.passes = passes
        ledger.check(iterate)
        looks.append(ledger.problem.looks)
    # Twice what has gone by then: 51 and 102.
    assert looks == [0, 0, 1, 1, 2, 3]
    ledger.problem.closer = certificate(2.0, 2.0 - 1e-9)
    run.passes = 100 * patience
    ledger.check(iterate)
    assert ledger.gap == pytest.approx(1e-9)
    assert ledger._wait == patience
    # A run that is finished has no need of it.
    run.passes = 1000 * patience
    ledger.check(iterate)
    assert ledger.problem.looks == 4


def test_a_gap_far_above_rounding_is_not():
    run = make_run()
    ledger = ledger_of(*[certificate(2.0, 1.0, 0.9 / solving._RESOLVED)] * 2, run=run)
    for run.passes in (0.0, 1000.0):
        ledger.check(Iterate(SimpleNamespace(w=np.zeros(1)), "weights"))
    assert ledger.problem.looks == 0


def test_the_seconds_leave_out_what_checks_take(monkeypatch):
    time = [100.0]
    monkeypatch.setattr(solving, "now", lambda: time[0])
    before = solving.Record(*[5.0] * 10)
    stub, run = Stub(), make_run()
    ledger = solving._Ledger(stub, run, [before])

    def certify(seconds, passes):
        def check(point, dual, **more):
            time[0] += seconds
            return certificate(2.0, 1.0, rounding=0.1, passes=passes)

        stub.certify = check
        ledger.check(Iterate(SimpleNamespace(w=np.zeros(1)), "weights"))
        return ledger.history[-1]

    time[0] += 3.0
    assert certify(10.0, 0.0).seconds == pytest.approx(5.0 + 3.0)
    # A check that spent passes did the work of the solver.
    record = certify(1.0, 4.0)
    assert record.seconds == pytest.approx(8.0 + 1.0)
    assert record.passes == 4.0
    assert solving._Ledger(stub, run, [])._begin == time[0]

    def look(point, dual):
        time[0] += 20.0

    stub.look_closer, run.passes = look, 1e6
    certify(0.0, 0.0)
    assert certify(0.0, 0.0).seconds == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("gap", "stopped", "tries"), [(1.0, False, True), (1.0, True, False), (1e-9, False, False)]
)
def test_a_last_attempt_at_a_gap_that_is_left(gap, stopped, tries):
    for bound, better in ((2.0 - 0.5 * gap, True), (2.0 - 1.5 * gap, False)):
        ledger = ledger_of(certificate(2.0, bound, passes=3.0))
        enter(ledger, certificate(2.0, 2.0 - gap))
        w, dual = ledger.close(stopped=stopped)
        assert (w, dual) == ([0.0], "weights 0")
        assert ledger.problem.refined == ([math.inf] if tries else [])
        assert ledger.run.passes == (3.0 if tries else 0.0)
        assert len(ledger.history) == (2 if tries and better else 1)
        assert ledger.gap == pytest.approx(0.5 * gap if tries and better else gap)


@pytest.mark.parametrize(("w", "dual"), [(None, None), (None, "weights"), (np.ones(1), None)])
def test_a_run_without_a_finite_check_has_its_start(w, dual):
    ledger = ledger_of(certificate(2.0, 1.0))
    ledger.w, ledger.dual = w, dual
    assert ledger.close(stopped=False) == (ledger.run.w, "worst case")
    assert len(ledger.history) == 1


def test_the_state_for_a_checkpoint():
    run = make_run(passes=7.0)
    run.n_iter = 3
    ledger = ledger_of(run=run)
    enter(ledger, certificate(2.0, 1.0))
    state = ledger.state("sgd", 12.0)
    assert (state.solver, state.passes, state.seconds, state.n_iter) == ("sgd", 7.0, 12.0, 3)
    assert (state.objective, state.relative_gap, state.generator) == (2.0, 0.5, None)
    assert "rng" not in vars(run)
    run.rng.random()
    assert ledger.state("sgd", 12.0).generator is not None


def test_a_checkpoint_is_written_when_its_time_has_come(monkeypatch):
    time, saved = [100.0], []
    monkeypatch.setattr(solving, "now", lambda: time[0])
    keeper = SimpleNamespace(next=160.0, save=lambda state, last: saved.append((state, last)))
    ledger = ledger_of()
    saver = solving._Saver(keeper, ledger, "newton", 90.0)
    assert ledger.run.save_at == 160.0
    saver.save(last=True)
    assert not saved
    enter(ledger, certificate(2.0, 1.0))
    time[0] = 159.0
    saver.save_if_due()
    assert not saved
    time[0], keeper.next = 160.0, 160.0
    saver.save_if_due()
    assert [(state.seconds, last) for state, last in saved] == [(70.0, False)]
    keeper.next = 220.0
    saver.save(last=True)
    assert ledger.run.save_at == 220.0
    assert saved[-1][1]


METHOD = SimpleNamespace(name="newton")


@pytest.mark.parametrize(
    ("gap", "converged", "ending", "note", "saved", "words"),
    [
        (1e-7, True, "converged", "", None, "converged: newton reached a certified relative gap "
         "1e-07 in 12 passes"),
        (1e-6, True, "converged", "by rows", None, "converged: newton (by rows) reached a "
         "certified relative gap 1e-06 in 12 passes"),
        (1e-3, True, "converged", "", None, "solved to rounding: newton has a certified relative "
         "gap 0.001 in 12 passes, and the gap itself, 5e-14, is below 1e-12 of the losses at the "
         "start"),
        (1e-3, False, "stuck", "stuck", None, "not converged: stuck; newton has a certified "
         "relative gap 0.001, above tol=1e-06, after 12 passes"),
        (1e-3, False, "interrupted", "by rows", 5.0, "interrupted: newton (by rows) had a "
         "certified relative gap 0.001 after 12 passes, resumed at pass 5"),
    ],
)  # fmt: skip
def test_the_status_line(gap, converged, ending, note, saved, words):
    run = make_run(passes=12.0, note=note)
    last = SimpleNamespace(best_relative_gap=gap, best_gap=5e-14)
    state = None if saved is None else SimpleNamespace(passes=saved)
    assert solving._status(METHOD, run, last, converged, ending, state) == words


def drive(run, certificates, callback=None, saver=None, iterates=None):
    ledger = ledger_of(*certificates, run=run)

    def endless():
        while True:
            run.passes += 1.0
            yield Iterate(SimpleNamespace(w=np.zeros(1)), "weights")

    ended = solving._drive((iterates or endless)(), run, ledger, callback, saver)
    return ended, len(ledger.history)


def test_what_ends_a_run(monkeypatch):
    good, bad = certificate(2.0, 2.0 - 1e-8), certificate(2.0, 1.0)
    assert drive(make_run(), [bad, bad, good]) == ("converged", 3)
    run = make_run()
    run.max_passes = 2.0
    assert drive(run, [bad, bad, good]) == ("max_passes=2 reached", 2)
    monkeypatch.setattr(solving, "now", lambda: 50.0)
    run = make_run()
    run.deadline = 50.0
    assert drive(run, [bad, good]) == ("max_seconds reached", 1)
    calls = []
    stop = drive(make_run(), [bad, bad], lambda record: calls.append(record) or len(calls) > 1)
    assert stop == ("stopped by the callback", 2)
    saves = []
    saver = SimpleNamespace(save_if_due=lambda: saves.append(1))
    assert drive(make_run(), [bad, bad, good], saver=saver) == ("converged", 3)
    assert len(saves) == 2

    def nothing():
        yield from ()

    assert drive(make_run(), [], iterates=nothing)[0] == "the solver has nothing left to try"
    assert drive(make_run(note="stuck"), [], iterates=nothing)[0] == "stuck"


def test_interruptions_inside_compiled_code():
    """They come out as a SystemError; one of another cause is not for the run to hide."""

    def failing(error, cause, run):
        def iterates():
            run.latest = Iterate(SimpleNamespace(w=np.zeros(1)), "weights")
            raise error from cause
            yield

        return iterates

    bad = certificate(2.0, 1.0)
    for error, cause in ((KeyboardInterrupt(), None), (SystemError(), KeyboardInterrupt())):
        run = make_run()
        assert drive(run, [bad], iterates=failing(error, cause, run)) == ("interrupted", 1)
    for cause in (None, ValueError()):
        run = make_run()
        with pytest.raises(SystemError):
            drive(run, [bad], iterates=failing(SystemError(), cause, run))


@pytest.mark.parametrize(
    ("kind", "words"), [("float32", "pass the original numbers as float64, or set tol=2.4e-07"),
                        ("float64", "numbers; set tol=2.4e-07 or more")],
)  # fmt: skip
def test_a_tolerance_below_the_rounding_of_the_data(kind, words):
    problem = SimpleNamespace(data_precision=1.2e-7, data_type=np.dtype(kind))
    with pytest.warns(sorel.PrecisionWarning, match=words):
        solving._warn_of_precision(problem, 1e-9)


@pytest.mark.parametrize("value", [True, "3", None, -0.5, math.nan, [1.0, 2.0]])
def test_what_is_no_number_of_the_least_size(value):
    with pytest.raises(ValueError, match="tol must be a number of at least 0, got"):
        solving._check_number("tol", value, least=0.0)


def test_numbers_of_the_least_size():
    for value in (0.0, 0, np.float32(1.0), math.inf):
        solving._check_number("tol", value, least=0.0)


def test_what_a_warm_start_brings():
    """Curvature if it fits, weights if the samples are as many, and parameters in the domain."""
    X, y = make_data("squared", 20, 3, seed=0)
    problem = Problem(X, y, penalty=sorel.NonNegative(0.1))
    before = sorel.solve(Problem(X, y))
    run = make_run()
    solving._apply_warm_start(problem, run, before)
    np.testing.assert_array_equal(run.w, np.maximum(before.w, 0.0))
    np.testing.assert_allclose(problem.engine.weights(run.dual), before.weights, atol=1e-12)
    assert problem.curvature is None
    assert not run.resembles
    for size, kept in ((3, True), (2, False)):
        problem, run = Problem(X[:10], y[:10]), make_run()
        found = solving.replace(before, curvature=np.eye(size))
        solving._apply_warm_start(problem, run, found)
        assert run.resembles is kept
        assert (problem.curvature is not None) is kept
        assert run.dual is None


def test_the_pair_of_a_checkpoint_comes_first():
    X, y = make_data("squared", 20, 3, seed=0)
    problem = Problem(X, y)
    run = make_run(passes=5.0, tol=1e-4)
    run.w, run.dual = np.zeros(3), problem.engine.uniform()
    for gap, worth in ((1e-2, 1e-2), (1e-6, 1e-4)):
        saved = SimpleNamespace(relative_gap=gap, objective=3.0)
        iterates = solving._from_checkpoint(problem, run, saved, iter(["next"]))
        first = next(iterates)
        assert first.refine == pytest.approx(worth * problem.unit(3.0))
        assert first.dual is run.dual
        assert next(iterates) == "next"
    assert run.passes == 7.0


def unfinished(monkeypatch, extends, tol=1e-15, passes=2):
    """What a run is told to have lost to rounding for certain, and its result."""
    X, y = make_data("squared", 30, 3, seed=0)
    problem = Problem(X, 100.0 * y, risk="cvar:0.3", penalty=sorel.L2(0.01))
    told, ledgers = [], []
    own = solving._Ledger.close

    def close(self, *, stopped):
        ledgers.append(self)
        return own(self, stopped=stopped)

    monkeypatch.setattr(solving._Ledger, "close", close)
    monkeypatch.setattr(solving, "_complaint", lambda result, run, ending, lost: told.append(lost))
    monkeypatch.setattr(Problem, "least_gap", lambda self, w, dual: 7.0)
    monkeypatch.setattr(Problem, "extends", extends)
    result = sorel.solve(problem, "subgradient", tol=tol, max_passes=passes)
    return told, result, problem.unit(result.objective), ledgers[0]


def test_what_rounding_leaves_for_certain(monkeypatch):
    """In the unit of the problem; in long doubles a share of it, or what certificates had."""
    told, result, unit, _ = unfinished(monkeypatch, extends=False)
    assert not result.converged
    assert unit > 10.0
    assert told == [pytest.approx(7.0 / unit)]
    told, _, unit, ledger = unfinished(monkeypatch, extends=True)
    assert told == [pytest.approx(max(ledger.rounding, solving.LEAST_SHARE * 7.0) / unit)]
    monkeypatch.setattr(solving, "LEAST_SHARE", 0.0)
    told, _, unit, ledger = unfinished(monkeypatch, extends=True)
    assert told == [pytest.approx(ledger.rounding / unit)]
    # A run that has converged is told nothing.
    told, result, *_ = unfinished(monkeypatch, extends=False, tol=0.5, passes=200)
    assert result.converged
    assert told == []


def test_the_seconds_of_a_run_are_its_own(monkeypatch):
    X, y = make_data("squared", 30, 3, seed=0)
    time = [1e6]

    def now():
        time[0] += 1.0
        return time[0]

    monkeypatch.setattr(solving, "now", now)
    result = sorel.solve(Problem(X, y), "newton")
    assert 0.0 < result.seconds <= time[0] - 1e6


def test_a_callback_may_stop_where_losses_overflow():
    X = np.array([[1e4], [2e4]])
    problem = Problem(X, [1.0, 2.0], loss="poisson", penalty=sorel.L2(1e-3))
    result = sorel.solve(problem, "newton", w0=[1.0], callback=lambda record: True)
    assert result.objective == math.inf
    assert not result.converged


def test_a_start_is_looked_for_where_losses_may_overflow(monkeypatch):
    """Only where they grow without bound, and only from a start that is not 0."""
    asked = []
    monkeypatch.setattr(Problem, "is_moderate", lambda self, start: asked.append(1) or True)
    for loss, w, looks in (("poisson", 1.0, 1), ("poisson", 0.0, 0), ("squared", 1.0, 0)):
        asked.clear()
        problem = Problem(np.array([[0.1], [0.2]]), [1.0, 2.0], loss=loss)
        run = make_run()
        run.w = np.array([w])
        solving._start_where_finite(problem, run)
        assert len(asked) == looks
        assert run.w == [w]
