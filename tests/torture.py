"""Commands under torture: killed, starved of disk, and fed damaged files.

    python tests/torture.py --seed 3 --rounds 10

Every trial runs commands as processes of their own, as their users do, and looks from outside at
exit codes, at what was printed, at the files that are left and at the memory that was taken. What
it finds is printed as a line each, with the seed that makes it happen again. `make torture` runs
it; the tests run one small round with a fresh seed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hostile
import numpy as np

# What a command may take for a hostile file of ten megabytes, of which the libraries alone are
# 300 MB, and seconds until it is given up.
MAX_BYTES = 800 << 20
PATIENCE = 300

# Damaged files that one process reads.
_AT_ONCE = 40

# What commands took for hostile files, and which.
LARGEST: list[tuple[int, str]] = []

# Exit codes that a command may end with when nobody kills it.
KNOWN = (0, 1, 2, 3, 4, 130)


@dataclass
class Outcome:
    """What became of a command."""

    code: int
    said: str
    peak: int


@dataclass
class Place:
    """A folder with a table, a model and a checkpoint, and the random numbers of one trial."""

    folder: Path
    rng: random.Random

    @property
    def model(self) -> Path:
        return self.folder / "model.skops"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "fit.ckpt"

    @property
    def table(self) -> Path:
        return self.folder / "table.csv"

    def run(self, *arguments: Any, **options: Any) -> Outcome:
        """Run a command to its end; the memory it took is that of its process."""
        return finish(start(self.folder, *arguments, **options))


def start(folder: Path, *arguments: Any, **options: Any) -> Any:
    """A running command, whose output is kept in files."""
    return launch(folder, [sys.executable, "-m", "sorel", *map(str, arguments)], **options)


def launch(folder: Path, command: list[str], **options: Any) -> Any:
    said = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said}
    process: Any = subprocess.Popen(command, cwd=folder, **{**streams, **options})
    process.said = said
    return process


def finish(process: Any) -> Outcome:
    limit, peak = time.monotonic() + PATIENCE, 0
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        if time.monotonic() > limit:
            process.kill()
        time.sleep(0.01)
    with process.said as file:
        file.seek(0)
        return Outcome(process.returncode, file.read().decode(errors="replace"), peak)


def high_water(process: int) -> int:
    """The most memory that a process has had; the usage that a parent is told of includes its own.

    0 where nobody says.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def complaints(outcome: Outcome, *, codes: tuple[int, ...] = KNOWN) -> Iterator[str]:
    """What no command may do, whatever was done to it."""
    if outcome.code not in codes:
        yield f"exit code {outcome.code}: {outcome.said[-200:]!r}"
    if "Traceback" in outcome.said or "Exception ignored" in outcome.said:
        yield f"a traceback: {outcome.said[-400:]!r}"
    if set(outcome.said) & set("\x1b\x07\x9b"):
        yield f"control characters: {outcome.said[-200:]!r}"


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders, hidden ones included."""
    return [path.name for path in folder.iterdir() if "sorel-" in path.name or ".tmp" in path.name]


def kill(place: Place) -> Iterator[str]:
    """A fit that is killed at any moment leaves whole files, and the next one clears up."""
    scratch = place.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    blocks = place.folder / "blocks"
    if not blocks.exists():
        blocks.mkdir()
        rng = np.random.default_rng(0)
        X = rng.normal(size=(20_000, 20))
        np.save(blocks / "block_0.npy", X)
        np.save(blocks / "y.npy", X[:, 0] + rng.standard_t(3, size=len(X)))
    arguments = [
        "fit", "blocks", "--target", "y.npy", "-o", "killed.skops", "--scratch", "scratch",
        "--checkpoint", "killed.ckpt", "--tol", "1e-9", "--quiet",
    ]  # fmt: skip
    gentle = place.rng.random() < 0.5
    process = start(place.folder, *arguments)
    time.sleep(place.rng.uniform(0.5, 5.0))
    process.send_signal(signal.SIGTERM if gentle else signal.SIGKILL)
    outcome = finish(process)
    # Before the command has taken over, a signal does what it does to any process.
    yield from complaints(outcome, codes=(0, 3, 143, -15) if gentle else (0, 3, -9))
    if gentle and outcome.code == 143 and os.listdir(scratch):
        yield f"scratch stayed after SIGTERM: {os.listdir(scratch)}"
    again = place.run(*arguments)
    yield from complaints(again, codes=(0, 3))
    if os.listdir(scratch) or leftovers(place.folder):
        yield f"left behind: {os.listdir(scratch)}, {leftovers(place.folder)}"
    for name in ("killed.skops", "killed.ckpt"):
        (place.folder / name).unlink(missing_ok=True)


def full_disk(place: Place) -> Iterator[str]:
    """A file that may not grow: the old one stays, and the error names it."""
    target = place.folder / "limited.skops"
    target.write_bytes(b"the old content")
    size = place.rng.choice([0, 10, 1000])

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    outcome = place.run(
        "fit", place.table, "--target", "y", "-o", target,
        preexec_fn=limit, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if outcome.code != 1:
        yield f"exit code {outcome.code} where the model could not be written"
    if target.read_bytes() != b"the old content" or leftovers(place.folder):
        yield f"the old file changed, or {leftovers(place.folder)} stayed"
    if os.path.exists("/dev/full"):
        outcome = place.run("predict", place.model, place.table, "-o", "/dev/full")
        yield from complaints(outcome, codes=(1,))
        if "/dev/full" not in outcome.said:
            yield f"the file is not named: {outcome.said!r}"


def damage(content: bytes, rng: random.Random) -> bytes:
    """The same bytes, cut off, with bits flipped, with a part repeated, or with noise in it."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 20])):
        if not data:
            break
        at = rng.randrange(len(data))
        way = rng.random()
        if way < 0.2:
            del data[at:]
        elif way < 0.6:
            data[at] ^= 1 << rng.randrange(8)
        elif way < 0.8:
            data[at:at] = data[at : at + rng.randrange(1, 200)]
        else:
            data[at : at + 8] = rng.randbytes(8)
    return bytes(data)


def damaged_files(place: Place) -> Iterator[str]:
    """Damaged models, checkpoints, tables and arrays, many of each in one process.

    A process for each would spend its time on imports.
    """
    seed = place.rng.randrange(2**32)
    command = [sys.executable, __file__, "damaged", str(seed), str(place.folder), str(_AT_ONCE)]
    outcome = finish(launch(place.folder, command))
    if outcome.code != 0:
        yield f"seed {seed}: {outcome.said[-600:]}"
    if outcome.peak > MAX_BYTES:
        yield f"seed {seed}: {outcome.peak >> 20} MB"


def read_damaged(seed: int, folder: Path, count: int) -> None:
    """Read damaged files with everything that reads such files; only named errors may come."""
    import pandas as pd

    import sorel
    from sorel import cli
    from sorel.rows import open_rows

    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    X = np.random.default_rng(0).normal(size=(30, 2))
    problem = sorel.Problem(X, X[:, 0] + 1.0)
    model, table = folder / "model.skops", folder / "table.csv"

    def command(*arguments: Any) -> None:
        code = cli.main([str(argument) for argument in arguments])
        assert code in (0, 4), f"exit code {code}"

    def read_model(path: Path) -> None:
        command("predict", path, table)
        command("info", path)

    def read_table(path: Path) -> None:
        command("predict", model, path)

    def read_checkpoint(path: Path) -> None:
        with contextlib.suppress(sorel.CheckpointError):
            sorel.solve(problem, checkpoint=path)

    def read_array(path: Path) -> None:
        with contextlib.suppress(ValueError, FileNotFoundError):
            rows = open_rows(path)
            assert rows is not None
            rows.read(0, min(5, rows.n_samples))

    place = folder / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    sorel.solve(problem, checkpoint=place / "fit.ckpt")
    np.save(place / "X.npy", X)
    pd.read_csv(table).to_parquet(place / "table.parquet")
    readers = {
        model: read_model,
        table: read_table,
        place / "table.parquet": read_table,
        place / "fit.ckpt": read_checkpoint,
        place / "X.npy": read_array,
    }
    contents = {path: path.read_bytes() for path in readers}
    for number in range(count):
        whole = rng.choice(list(contents))
        path = place / whole.name
        path.write_bytes(damage(contents[whole], rng))
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                readers[whole](path)
            assert not set(said.getvalue()) & set("\x1b\x07\x9b"), "control characters"
        except BaseException as error:
            raise SystemExit(f"{path.name}, number {number} of seed {seed}: {error!r}") from error


def hostile_files(place: Place) -> Iterator[str]:
    """One file that asks for gigabytes, given to the commands that read such files."""
    yield from place.rng.choice(all_hostile())(place)


def all_hostile() -> list[Callable[[Place], Iterator[str]]]:
    """A trial for every hostile file."""
    return [
        *(partial(hostile_model, name=name) for name in hostile.MODELS),
        *(partial(hostile_checkpoint, name=name) for name in hostile.CHECKPOINTS),
        *(partial(hostile_table, name=name) for name in hostile.TABLES),
        *(partial(hostile_array, name=name) for name in hostile.NPY_HEADS),
    ]


def hostile_model(place: Place, name: str) -> Iterator[str]:
    path = hostile.MODELS[name](place.model, place.folder / "hostile.skops")
    yield from judge(place, name, path, ["info", path], ["predict", path, place.table])


def hostile_checkpoint(place: Place, name: str) -> Iterator[str]:
    path = hostile.CHECKPOINTS[name](place.checkpoint, place.folder / "hostile.ckpt")
    fit = ["fit", place.table, "--target", "y", "-o", "other.skops", "--checkpoint", path]
    yield from judge(place, name, path, fit)


def hostile_table(place: Place, name: str) -> Iterator[str]:
    path = hostile.TABLES[name](place.folder / "hostile.csv")
    model = place.folder / "other.skops"
    model.unlink(missing_ok=True)
    fit = ["fit", path, "--target", "y", "-o", model]
    others: list[list[Any]] = [
        ["predict", place.model, path, "-o", "out.csv"],
        ["predict", model, path, "-o", "out.csv"],
        ["evaluate", model, path],
        ["info", model],
        ["quantile", path, "--target", "y"],
        ["portfolio", path],
    ]
    yield from judge(place, name, path, fit, *others)


def hostile_array(place: Place, name: str) -> Iterator[str]:
    path = place.folder / "hostile.npy"
    path.write_bytes(hostile.NPY_HEADS[name])
    np.save(place.folder / "targets.npy", np.zeros(4))
    fit = ["fit", path, "--target", "targets.npy", "-o", "other.skops"]
    yield from judge(place, name, path, fit)


def judge(place: Place, name: str, path: Path, *commands: list[Any]) -> Iterator[str]:
    """Give a hostile file to commands, and complain about what they say and take."""
    for arguments in commands:
        outcome = place.run(*arguments)
        for complaint in complaints(outcome, codes=(0, 1, 3, 4)):
            yield f"{name}, {arguments[0]}: {complaint}"
        if outcome.peak > MAX_BYTES:
            yield f"{name}, {arguments[0]}: {outcome.peak >> 20} MB"
        LARGEST.append((outcome.peak, f"{name}, {arguments[0]}"))
    path.unlink()


TRIALS = (kill, full_disk, damaged_files, hostile_files)


def prepare(folder: Path) -> None:
    """A table, a model that was fitted to it, and the checkpoint of that fit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    rows = "".join(f"{a:.4f},{b:.4f},{a - b + c:.4f}\n" for a, b, c in X)
    (folder / "table.csv").write_text("a,b,y\n" + rows)
    command = ["fit", "table.csv", "--target", "y", "-o", "model.skops", "--quiet"]
    command += ["--checkpoint", "fit.ckpt"]
    subprocess.run([sys.executable, "-m", "sorel", *command], cwd=folder, check=True)


def torture(
    seed: int, rounds: int, names: list[str], tell: Callable[[str], None] = print
) -> list[str]:
    """Run the trials in turn; the complaints, each with what makes it happen again."""
    trials = [trial for trial in TRIALS if not names or trial.__name__ in names]
    found = []
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    try:
        prepare(folder)
        for number in range(rounds):
            for trial in trials:
                # A trial of its own seed can be repeated alone.
                rng = random.Random(f"{seed}-{number}-{trial.__name__}")
                for complaint in trial(Place(folder, rng)):
                    line = f"seed {seed}, round {number}, {trial.__name__}: {complaint}"
                    found.append(line)
                    tell(line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> int:
    """Run what the command line asks for; 1 if anything was found."""
    if sys.argv[1:2] == ["damaged"]:
        read_damaged(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one")
    parser.add_argument("--rounds", type=int, default=10, help="of all trials (default: 10)")
    parser.add_argument("--hostile", action="store_true", help="also every hostile file once")
    parser.add_argument(
        "trials", nargs="*", choices=[[], *(trial.__name__ for trial in TRIALS)],
        help="only these (default: all)",
    )  # fmt: skip
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, {arguments.rounds} rounds", flush=True)
    begin = time.monotonic()
    found = torture(seed, arguments.rounds, arguments.trials, lambda line: print(line, flush=True))
    if arguments.hostile:
        with tempfile.TemporaryDirectory(prefix="torture-") as name:
            prepare(Path(name))
            for trial in all_hostile():
                for line in trial(Place(Path(name), random.Random(0))):
                    found.append(line)
                    print(line, flush=True)
        peak, what = max(LARGEST)
        print(f"the most that a hostile file took: {peak >> 20} MB ({what})")
    print(f"{len(found)} complaints in {time.monotonic() - begin:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
