"""Runs that stop and go on: what is saved, what is refused, and what survives a failed write."""

import errno
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from helpers import quietly
from sklearn.base import clone

import sorel
from sorel import L2, Checkpoint, CheckpointError, CVaR, Problem, cli, solve
from sorel.checkpoints import read_passes
from sorel.files.fingerprints import describe
from sorel.losses import Huber
from sorel.solvers import SOLVERS, Iterate, Solver

N, D = 400, 8


def make_arguments(seed=0, **changes):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)) * np.geomspace(1.0, 0.1, D)
    y = X @ rng.normal(size=D) + rng.standard_t(3, size=N)
    given = {"X": X, "y": y, "risk": CVaR(0.1), "penalty": L2(1 / N), "fit_intercept": True}
    return {**given, **changes}


def make_problem(seed=0, **changes):
    return Problem(**make_arguments(seed, **changes))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.ckpt"


@pytest.fixture
def begun(path):
    """A run of a few passes has left its state here."""
    quietly(make_problem(), max_passes=3, checkpoint=path)
    return path


def alone(path):
    """No temporary file stays behind."""
    return [file.name for file in path.parent.iterdir()] == [path.name]


def contents(path):
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def header_of(path):
    return json.loads(contents(path)["header"].tobytes())


def npz(path, **arrays):
    with open(path, "wb") as stream:
        np.savez(stream, **arrays)


# Going on.


class Failing(Solver):
    """Leaves an optimum that is not checked yet."""

    name = "failing"

    def iterates(self, problem, run):
        best = solve(problem, tol=1e-10)
        dual, _ = problem.engine.nearest_dual(best.weights)
        run.latest = Iterate(problem.engine.point(best.w), dual)
        raise MemoryError("of the test")
        yield


def test_a_run_that_fails_keeps_the_best_that_it_knew(path):
    problem = make_problem(fit_intercept=False)
    with pytest.raises(MemoryError, match="of the test"):
        solve(problem, Failing(), checkpoint=path)
    assert header_of(path)["relative_gap"] <= 1e-10


@pytest.mark.parametrize(
    ("solver", "tol"), [("auto", 1e-9), ("newton", 1e-9), ("newton_cg", 1e-8), ("sorel", 1e-4)]
)
@pytest.mark.parametrize("how", ["ctrl-c", "max_passes"])
def test_a_resumed_run_reaches_the_tolerance_in_fewer_passes(path, solver, tol, how):
    problem = make_problem()
    whole = solve(problem, solver, tol=tol)
    half = whole.passes / 2

    def interrupt(record):
        if record.passes >= half:
            raise KeyboardInterrupt

    options = {"callback": interrupt} if how == "ctrl-c" else {"max_passes": half}
    first = quietly(problem, solver, tol=tol, checkpoint=path, **options)
    assert first.status.startswith("interrupted") == (how == "ctrl-c")
    assert not first.converged
    assert alone(path)
    again = solve(make_problem(), solver, tol=tol, checkpoint=path)
    assert again.converged
    assert again.passes - first.passes < whole.passes
    assert problem.certificate(again.w, again.weights).relative_gap <= tol
    assert again.objective == pytest.approx(whole.objective, rel=2 * tol)
    assert f"resumed at pass {first.passes:.4g}" in again.status
    # A run that has ended returns at once.
    done = solve(problem, solver, tol=tol, checkpoint=path)
    assert done.converged
    assert (done.passes, done.n_iter) == (again.passes + 1, again.n_iter)
    np.testing.assert_array_equal(done.w, again.w)


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_counters_and_history_continue(path, solver):
    problem, begin = make_problem(risk=sorel.ESRM(2.0), penalty=L2(0.1)), time.perf_counter()
    first = quietly(problem, solver, tol=1e-13, max_passes=6, checkpoint=path)
    spent = header_of(path)["seconds"]
    assert spent <= time.perf_counter() - begin
    second = quietly(problem, solver, tol=1e-13, max_passes=14, checkpoint=path)
    assert second.history[: len(first.history)] == first.history
    assert len(second.history) > len(first.history)
    assert second.passes > first.passes
    assert second.seconds > spent > 0.0
    seconds = [record.seconds for record in second.history]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= second.seconds <= time.perf_counter() - begin
    assert second.objective <= first.objective * (1 + 1e-12)
    # The passes of all runs count.
    third = quietly(problem, solver, tol=1e-13, max_passes=14, checkpoint=path)
    assert third.passes <= second.passes + 1
    assert third.n_iter == second.n_iter


@pytest.mark.parametrize("solver", ["auto", "newton_cg", "sorel", "lbfgs"])
def test_a_checkpoint_does_not_change_the_answer(path, solver):
    problem = make_problem(risk=sorel.ESRM(1.0), penalty=L2(0.1))
    plain = solve(problem, solver, tol=1e-6)
    kept = solve(problem, solver, tol=1e-6, checkpoint=path)
    np.testing.assert_array_equal(kept.w, plain.w)
    assert kept.passes == plain.passes


def test_the_current_folder_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep = Checkpoint("fit.ckpt", every=0.0)
    result = solve(make_problem(), callback=lambda _: os.chdir("/"), checkpoint=keep)
    assert read_passes(tmp_path / "fit.ckpt") == result.passes


def test_classification(path):
    given = make_arguments(loss="multinomial")
    ranks = np.argsort(np.argsort(given["y"]))
    given["y"] = np.array(["a", "b", "c"])[ranks * 3 // N]
    assert not quietly(Problem(**given), tol=1e-8, max_passes=6, checkpoint=path).converged
    assert solve(Problem(**given), tol=1e-8, checkpoint=path).converged


def test_the_generator_goes_on_where_it_was(path):
    problem, theirs = make_problem(), np.random.default_rng(5)
    quietly(problem, "sorel", tol=1e-12, max_passes=9, checkpoint=path, random_state=theirs)
    kept = header_of(path)["generator"]
    assert json.dumps(kept) == json.dumps(theirs.bit_generator.state, default=lambda x: x.tolist())
    begun, spare = path.read_bytes(), np.random.default_rng(99)
    untouched = str(spare.bit_generator.state)
    found = []
    for seed in (spare, 1):
        path.write_bytes(begun)
        options = {"tol": 1e-12, "max_passes": 20, "checkpoint": path, "random_state": seed}
        found.append(quietly(problem, "sorel", **options).w)
    # The seed of the resumed call is not used, and the caller's generator is left alone.
    np.testing.assert_array_equal(*found)
    assert str(spare.bit_generator.state) == untouched


def test_a_killed_process_leaves_its_last_write(path):
    # No handler runs: what is found is what was written during the run.
    code = f"""
import os, sorel
from test_checkpoints import make_problem
def callback(record):
    if record.passes > 20:
        os._exit(9)
keep = sorel.Checkpoint({str(path)!r}, every=0.0)
sorel.solve(make_problem(), "sorel", tol=1e-10, checkpoint=keep, callback=callback)
"""
    places = [Path(__file__).parent, Path(sorel.__file__).resolve().parents[1]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 9
    assert alone(path)
    saved = read_passes(path)
    assert saved <= 20
    again = solve(make_problem(), "sorel", tol=1e-4, checkpoint=path)
    assert again.converged
    assert f"resumed at pass {saved:.4g}" in again.status


# Other problems.


def changed(array, index, value):
    copy = array.copy()
    copy[index] = value
    return copy


BASE = make_arguments()
BUMPED = changed(BASE["X"], (17, 3), np.nextafter(BASE["X"][17, 3], 9.0))
THEN = "the values of X differ (dense float64 then"
OTHERS = [
    ({"X": BUMPED}, "the values of X differ"),
    ({"X": scipy.sparse.csr_array(BASE["X"])}, f"{THEN}, sparse float64 now)"),
    ({"y": changed(BASE["y"], 5, 0.0)}, "the targets y differ"),
    ({"X": BASE["X"][:-1], "y": BASE["y"][:-1]}, f"the shape was {N} x {D} and is {N - 1} x {D}"),
    ({"sample_weight": np.linspace(1.0, 2.0, N)}, "the sample weights differ"),
    ({"risk": CVaR(0.2)}, "the risk was CVaR(alpha=0.1) and is CVaR(alpha=0.2)"),
    ({"loss": Huber(2.0)}, "the loss was Squared() and is Huber(delta=2.0)"),
    ({"fit_intercept": False}, "the intercept was fitted and is none"),
]


@pytest.mark.parametrize(("changes", "message"), OTHERS, ids=range(len(OTHERS)))
def test_another_problem_is_refused_and_the_part_named(begun, changes, message):
    before = begun.read_bytes()
    with pytest.raises(CheckpointError) as raised:
        solve(Problem(**{**BASE, **changes}), checkpoint=begun)
    assert str(raised.value) == (
        f"the checkpoint {str(begun)!r} belongs to another problem: {message}; "
        "give another path, or delete the file to start afresh"
    )
    assert begun.read_bytes() == before


def test_the_home_of_the_same_numbers_does_not_matter(begun):
    assert solve(make_problem(X=np.asfortranarray(BASE["X"])), checkpoint=begun).converged
    begun.unlink()
    X = scipy.sparse.random(N, D, density=0.4, random_state=1, format="csr")
    quietly(make_problem(X=X), tol=1e-8, max_passes=6, checkpoint=begun)
    moved, wide = X.copy(), X.copy()
    moved.indices = (moved.indices + 1) % D
    with pytest.raises(CheckpointError, match="another problem: the values of X differ; give"):
        solve(make_problem(X=moved), checkpoint=begun)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert solve(make_problem(X=wide), tol=1e-8, checkpoint=begun).converged


def test_settings_are_described_by_their_values():
    settings = [None, True, 1, 2.5, "a", "b", (1, 2), (2, 1), [*range(9)], [*range(9)][::-1]]
    settings += [np.arange(8.0), np.arange(9.0), np.arange(9.0)[::-1]]
    assert len(set(map(describe, settings))) == len(settings)
    lower = np.linspace(-1.0, 0.0, 2000)
    other = changed(lower, 1000, -0.9)  # between the ends that NumPy prints
    assert describe(sorel.Box(0.1, lower, 1.0)) == describe(sorel.Box(0.1, lower.copy(), 1.0))
    assert describe(sorel.Box(0.1, lower, 1.0)) != describe(sorel.Box(0.1, other, 1.0))
    mixture = sorel.Mixture([sorel.Mean(), CVaR(0.1)], [0.5, 0.5])
    assert "CVaR(alpha=0.1)" in describe(mixture)
    # Functions go by their values, not by their place in memory.
    double = describe(sorel.CustomSpectrum(lambda u: 2 * u))
    assert double == describe(sorel.CustomSpectrum(lambda u: u + u))
    assert double != describe(sorel.CustomSpectrum(lambda u: 3 * u**2))


# Damaged and foreign files.


def flipped(name):
    def change(path):
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(name)
        whole = bytearray(path.read_bytes())
        whole[info.header_offset + 200 + (info.file_size - 200) // 2] ^= 16
        path.write_bytes(whole)

    return change


def header(**changes):
    """The same checkpoint with another header."""

    def change(path):
        text = json.dumps({**header_of(path), **changes}).encode()
        npz(path, **{**contents(path), "header": np.frombuffer(text, dtype=np.uint8)})

    return change


def array(name, change):
    return lambda path: npz(path, **{**contents(path), name: change(contents(path)[name])})


DAMAGES = {
    "half": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "other npz": lambda path: npz(path, X=np.zeros(3)),
    "no format": lambda path: npz(path, header=np.frombuffer(b"{}", dtype=np.uint8)),
    "a bit of w": flipped("w.npy"),
    "negative passes": header(passes=-1.0),
    "no objective": header(objective=float("nan")),
    "no fingerprint": header(fingerprint=None),
    "generator that is not kept": header(generator={"bit_generator": "Philox"}),
    "generator without a state": header(generator={"bit_generator": "PCG64"}),
    "short w": array("w", lambda w: np.zeros(3)),
    "NaN in w": array("w", lambda w: w * np.nan),
    "narrow history": array("history", lambda history: np.zeros((2, 5))),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_and_foreign_files_are_refused_and_kept(begun, kind):
    DAMAGES[kind](begun)
    before = begun.read_bytes()
    with pytest.raises(CheckpointError, match="damaged, or not a checkpoint of sorel; give") as got:
        solve(make_problem(), checkpoint=begun)
    assert str(begun) in str(got.value)
    assert "\n" not in str(got.value)
    assert begun.read_bytes() == before


@pytest.mark.parametrize(("change", "age"), [(-1, "older"), (1, "newer")])
def test_other_formats_are_refused(begun, change, age):
    here = header_of(begun)["format"]
    header(format=here + change, sorel="9.1")(begun)
    message = rf"by sorel 9\.1 in format {here + change}, {age} than format {here}"
    with pytest.raises(CheckpointError, match=f"ckpt' was written {message}"):
        solve(make_problem(), checkpoint=begun)


# Places that cannot be written.


def test_the_place_is_checked_before_the_first_step(tmp_path, monkeypatch):
    def fails(error, words, checkpoint):
        with pytest.raises(error, match=words):
            solve(make_problem(), callback=lambda record: 1 / 0, checkpoint=checkpoint)

    fails(FileNotFoundError, r"there is no folder .*missing", tmp_path / "missing" / "fit.ckpt")
    fails(IsADirectoryError, "is a folder; give the name of a file", tmp_path)
    fails(OSError, "is not a regular file", os.devnull)
    fails(TypeError, "checkpoint must be a path, got 3", 3)
    fails(ValueError, "checkpoint must be the path of a file", "")
    monkeypatch.setattr(os, "access", lambda *args: False)
    fails(PermissionError, "permission denied", tmp_path / "fit.ckpt")
    with pytest.raises(ValueError, match="every must be a number of seconds"):
        Checkpoint("fit.ckpt", every=-1)


def test_a_write_that_fails_warns_and_leaves_the_old_file(begun, monkeypatch):
    before = begun.read_bytes()

    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.warns(RuntimeWarning, match="not be written: No space left on device; the one bef"):
        assert solve(make_problem(), checkpoint=begun).converged
    assert begun.read_bytes() == before
    assert alone(begun)


# Estimators and the command.


def test_estimators_resume(path):
    X, y = BASE["X"], BASE["y"]
    model = sorel.SpectralRiskRegressor("cvar:0.1", tol=1e-8, checkpoint=path, max_passes=8)
    with pytest.warns(sorel.ConvergenceWarning):
        model.fit(X, y)
    assert read_passes(path) == model.n_passes_
    again = clone(model).set_params(max_passes=1000).fit(X, y)
    assert again.converged_
    assert "resumed at pass" in again.status_
    with pytest.raises(CheckpointError, match="the penalty was"):
        clone(again).set_params(l2=0.5).fit(X, y)


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """The command with a checkpoint, for a table in this folder: its exit code and its words."""
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    pytest.importorskip("skops", reason="skops is an extra")
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(BASE["X"], columns=[f"x{j}" for j in range(D)])
    frame.assign(y=BASE["y"]).to_csv("train.csv", index=False)

    def run(*more):
        fixed = ["fit", "train.csv", "--target", "y", "--risk", "cvar:0.1", "-o", "m.skops"]
        code = cli.main([*fixed, "--checkpoint", "fit.ckpt", *more])
        return code, capsys.readouterr().err

    return run


def test_the_command_resumes(fit):
    code, said = fit("--tol", "1e-9", "--max-passes", "8")
    assert code == 3
    assert "resuming" not in said
    assert "with more passes the fit goes on from fit.ckpt" in said
    passes = read_passes("fit.ckpt")
    code, said = fit("--tol", "1e-9")
    assert code == 0
    assert said.startswith(f"resuming from fit.ckpt at pass {passes:.4g}\n")
    assert sorel.load_model("m.skops")[-1].checkpoint is None
    assert fit("--tol", "1e-9", "-q") == (0, "")


def test_an_interrupted_command_says_how_to_go_on(fit, monkeypatch):
    from sorel.engines import DenseEngine

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DenseEngine, "curvature", interrupted)
        code, said = fit("--tol", "1e-9")
    assert code == 130
    words = "the state of the fit is in fit.ckpt; the same command goes on from there"
    assert said.splitlines() == [words, "interrupted"]
    assert not Path("m.skops").exists()
    assert read_passes("fit.ckpt") > 0


def test_the_command_refuses_in_one_line(fit):
    def refused(code, words, *more):
        ended, said = fit("-q", *more)
        assert ended == code
        assert said.startswith(f"error: {words}")
        assert said.count("\n") == 1

    assert fit("-q") == (0, "")
    words = "the checkpoint 'fit.ckpt' belongs to another problem: the penalty"
    refused(4, words, "--l2", "0.5")
    Path("fit.ckpt").write_bytes(b"no")
    refused(4, "'fit.ckpt' is damaged, or not a checkpoint")
    refused(1, "there is no folder", "--checkpoint", "none/fit.ckpt")
    refused(2, "--checkpoint train.csv is the table", "--checkpoint", "train.csv")
