"""Signals end a command as Ctrl-C does, and what a killed process leaves is cleared away."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sorel
from sorel import cli
from sorel.cli.signals import stopped_by_signals
from sorel.files.atomic import scratch_folder, write_atomically, write_folder_atomically
from sorel.files.leftovers import owned_name, remove_leftovers
from sorel.rows import write_blocks

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")


@pytest.fixture
def endless(monkeypatch):
    """Fits that never reach their tolerance, in a process that was not interrupted just now."""
    from sorel.estimators import base, progress

    monkeypatch.setattr(progress, "_last_interrupt", -1e9)

    def solve(problem, solver, **options):
        options.update(tol=0.0, max_passes=1e12, max_seconds=30)
        return sorel.solve(problem, "sgd", **options)

    monkeypatch.setattr(base, "solve", solve)


def send_when_filled(number, folder):
    """Send this process a signal when a folder has a file, and while somebody handles it."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if os.listdir(folder) and signal.getsignal(number) is not signal.SIG_DFL:
            os.kill(os.getpid(), number)
            return
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_leaves_a_checkpoint_and_no_scratch(tmp_path, endless, capsys, number, code):
    pytest.importorskip("pandas", reason="pandas is an extra")
    rng = np.random.default_rng(0)
    write_blocks(tmp_path / "blocks", rng.normal(size=(300, 3)), rng.normal(size=300))
    (tmp_path / "scratch").mkdir()
    # Whoever runs the tests in the background may have it ignored, and the command respects that.
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)
    try:
        waiting = {"args": (number, tmp_path / "scratch"), "daemon": True}
        threading.Thread(target=send_when_filled, **waiting).start()
        ended = cli.main([
            "fit", f"{tmp_path}/blocks", "--target", "y.npy", "-o", f"{tmp_path}/model.skops",
            "--checkpoint", f"{tmp_path}/fit.ckpt", "--scratch", f"{tmp_path}/scratch",
        ])  # fmt: skip
    finally:
        signal.signal(number, before)
    assert ended == code
    assert os.listdir(tmp_path / "scratch") == []
    assert not (tmp_path / "model.skops").exists()
    # The signal may have come before the first check, when there is nothing to keep yet.
    assert {file.name for file in tmp_path.iterdir()} <= {"blocks", "scratch", "fit.ckpt"}
    assert "Traceback" not in capsys.readouterr().err


def test_handlers_come_back_and_others_are_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    for own in (signal.SIG_IGN, lambda number, frame: None):
        signal.signal(signal.SIGTERM, own)
        try:
            with stopped_by_signals():
                assert signal.getsignal(signal.SIGTERM) is own
        finally:
            signal.signal(signal.SIGTERM, before)


def test_threads_run_commands_without_handlers(capsys):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cli.main, ["info", "no such file"]).result() == 1


def test_interruption_while_the_package_loads(tmp_path):
    (tmp_path / "sorel").mkdir()
    (tmp_path / "sorel" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    source = os.path.dirname(os.path.dirname(sorel.__file__))
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {source!r}]\n"
    # An editable install would come before any path.
    code += "sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
    code += "import _sorel_command; sys.exit(_sorel_command.main())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "interrupted\n")


class Finalised:
    """Python loses what a signal raises while this goes."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)


# Python's own note on the signal that it loses.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_loses_ends_the_next_step():
    class Losing(sorel.solvers.Newton):
        def iterates(self, problem, run):
            run.watched = True  # a check at every step
            steps = super().iterates(problem, run)
            yield next(steps)
            Finalised()
            yield from steps

    X = np.random.default_rng(0).normal(size=(50, 2))
    problem = sorel.Problem(X, X[:, 0] ** 2, risk=sorel.CVaR(0.3))
    with stopped_by_signals():
        result = sorel.solve(problem, Losing(), tol=1e-12)
        assert result.status.startswith("interrupted")
        with pytest.raises(KeyboardInterrupt):
            sorel.solve(problem)


def output(code):
    """A process that runs code, with the package on its path."""
    source = os.path.dirname(os.path.dirname(sorel.__file__))
    command = [sys.executable, "-c", code]
    paths = {**os.environ, "PYTHONPATH": source}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=paths)


@pytest.fixture
def leftover():
    """The name that a process gave a temporary file before it was killed."""
    code = "from sorel.files.leftovers import owned_name; print(owned_name())"
    return output(code).communicate()[0].strip()


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path, leftover):
    elsewhere = leftover.replace(leftover.split("-")[1], "00000000")
    kept = [owned_name(), elsewhere, "sorel-of-somebody-else", "notes.tmp"]
    for name in (leftover, *kept):
        (tmp_path / f".model.skops.{name}.tmp").write_text("half")
        (tmp_path / name).mkdir()
        (tmp_path / name / "block_0.npy").write_text("half")
    (tmp_path / f"{leftover}-scratch").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / f".link.{leftover}.tmp").symlink_to(tmp_path / "target")
    remove_leftovers(str(tmp_path))
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"target", *kept, *(f".model.skops.{name}.tmp" for name in kept)}


@pytest.mark.parametrize("how", ["file", "folder", "scratch"])
def test_every_writer_clears_the_folder_first(tmp_path, leftover, how):
    old = tmp_path / f".old.{leftover}.tmp"
    old.write_text("half")
    if how == "file":
        write_atomically(tmp_path / "new", b"content")
    else:
        writer = write_folder_atomically if how == "folder" else scratch_folder
        with writer(tmp_path / "new" if how == "folder" else tmp_path):
            pass
    assert not old.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_children_end_with_their_parent():
    child = "import os, time; from sorel.reproduce.cells import end_with; end_with(os.getppid())\n"
    child += "print(os.getpid(), flush=True); time.sleep(120)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with output(code) as parent:
        number = int(parent.stdout.readline())
        parent.kill()
    limit = time.monotonic() + 30
    while os.path.exists(f"/proc/{number}") and time.monotonic() < limit:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{number}")
