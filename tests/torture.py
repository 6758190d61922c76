"""Commands under torture: killed, starved of disk, and fed damaged files.

    python tests/torture.py --seed 3 --rounds 10

Every trial runs commands as processes of their own, as their users do, and looks from outside at
exit codes, at what was printed, at the files that are left and at the memory that was taken. What
it finds is printed as a line each, with the seed that makes it happen again. `make torture` runs
it; the tests run one small round with a fresh seed.
"""

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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import hostile
import numpy as np

# What a command may take for a hostile file of ten megabytes, of which the libraries alone are
# 300 MB, and seconds until it is given up.
MAX_BYTES = 800 << 20
PATIENCE = 300

# Damaged files that one process reads.
_AT_ONCE = 40

# Exit codes that a command may end with when nobody kills it.
KNOWN = (0, 1, 2, 3, 4, 130)


class Outcome(NamedTuple):
    """What became of a command: its exit code, its words and the most memory that it had."""

    code: int
    said: str
    peak: int


class Place(NamedTuple):
    """A folder with table.csv, model.skops and fit.ckpt, and the random numbers of one trial."""

    folder: Path
    rng: random.Random

    def start(self, *arguments, program=("-m", "sorel"), **options):
        """A running command, whose errors are kept in a file."""
        said = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said}
        command = [sys.executable, *program, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=self.folder, **{**streams, **options})
        process.said = said
        return process

    def run(self, *arguments, **options):
        """Run a command to its end."""
        return finish(self.start(*arguments, **options))


def finish(process):
    limit, peak = time.monotonic() + PATIENCE, 0
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        if time.monotonic() > limit:
            process.kill()
        time.sleep(0.01)
    with process.said as file:
        file.seek(0)
        return Outcome(process.returncode, file.read().decode(errors="replace"), peak)


def high_water(process):
    """The most memory that a process has had; 0 where nobody says.

    The usage that a parent is told of includes its own.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def complaints(outcome, *, codes=KNOWN):
    """What no command may do, whatever was done to it."""
    if outcome.code not in codes:
        yield f"exit code {outcome.code}: {outcome.said[-200:]!r}"
    if "Traceback" in outcome.said or "Exception ignored" in outcome.said:
        yield f"a traceback: {outcome.said[-400:]!r}"
    if set(outcome.said) & set("\x1b\x07\x9b"):
        yield f"control characters: {outcome.said[-200:]!r}"


def leftovers(folder):
    """Temporary files and folders, hidden ones included."""
    return [path.name for path in folder.iterdir() if "sorel-" in path.name or ".tmp" in path.name]


def kill(place):
    """A fit that is killed at any moment leaves whole files, and the next one clears up."""
    scratch, blocks = place.folder / "scratch", place.folder / "blocks"
    scratch.mkdir(exist_ok=True)
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
    process = place.start(*arguments)
    time.sleep(place.rng.uniform(0.5, 5.0))
    process.send_signal(signal.SIGTERM if gentle else signal.SIGKILL)
    outcome = finish(process)
    # Before the command has taken over, a signal does what it does to any process.
    yield from complaints(outcome, codes=(0, 3, 143, -15) if gentle else (0, 3, -9))
    if gentle and outcome.code == 143 and os.listdir(scratch):
        yield f"scratch stayed after SIGTERM: {os.listdir(scratch)}"
    yield from complaints(place.run(*arguments), codes=(0, 3))
    if os.listdir(scratch) or leftovers(place.folder):
        yield f"left behind: {os.listdir(scratch)}, {leftovers(place.folder)}"
    for name in ("killed.skops", "killed.ckpt"):
        (place.folder / name).unlink(missing_ok=True)


def full_disk(place):
    """A file that may not grow: the old one stays, and the error names it."""
    target = place.folder / "limited.skops"
    target.write_bytes(b"the old content")
    size = place.rng.choice([0, 10, 1000])

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    fit = ["fit", "table.csv", "--target", "y", "-o", target]
    outcome = place.run(*fit, preexec_fn=limit, stderr=subprocess.DEVNULL)
    if outcome.code != 1:
        yield f"exit code {outcome.code} where the model could not be written"
    if target.read_bytes() != b"the old content" or leftovers(place.folder):
        yield f"the old file changed, or {leftovers(place.folder)} stayed"


def damage(content, rng):
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


def damaged_files(place):
    """Damaged models, checkpoints, tables and arrays, many of each in one process.

    A process for each would spend its time on imports.
    """
    seed = place.rng.randrange(2**32)
    outcome = place.run("damaged", seed, place.folder, _AT_ONCE, program=[__file__])
    if outcome.code != 0:
        yield f"seed {seed}: {outcome.said[-600:]}"
    if outcome.peak > MAX_BYTES:
        yield f"seed {seed}: {outcome.peak >> 20} MB"


def read_damaged(seed, folder, count):
    """Read damaged files with everything that reads such files; only named errors may come."""
    import pandas as pd

    import sorel
    from sorel import cli
    from sorel.rows import open_rows

    warnings.simplefilter("ignore")  # what counts is how a command ends
    rng = random.Random(seed)
    X = np.random.default_rng(0).normal(size=(30, 2))
    problem = sorel.Problem(X, X[:, 0] + 1.0)
    model, table = folder / "model.skops", folder / "table.csv"

    def command(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        assert code in (0, 4), f"exit code {code}"

    def read_model(path):
        command("predict", path, table)
        command("info", path)

    def read_table(path):
        command("predict", model, path)

    def read_checkpoint(path):
        with contextlib.suppress(sorel.CheckpointError):
            sorel.solve(problem, checkpoint=path)

    def read_array(path):
        with contextlib.suppress(ValueError, FileNotFoundError):
            rows = open_rows(path)
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


def hostile_files(place):
    """One file that asks for gigabytes, given to the commands that read such files."""
    yield from place.rng.choice(all_hostile())(place)


def all_hostile():
    """A trial for every hostile file."""
    fit = ["fit", "FILE", "--target", "y", "-o", "other.skops"]
    predict = [["predict", name, "FILE", "-o", "out.csv"] for name in ("model.skops", fit[-1])]
    others = [["evaluate", fit[-1], "FILE"], ["info", fit[-1]], ["portfolio", "FILE"]]
    quantile = ["quantile", "FILE", "--target", "y"]
    resume = ["fit", "table.csv", *fit[2:], "--checkpoint", "FILE"]
    of_models = [["info", "FILE"], ["predict", "FILE", "table.csv"]]
    of_arrays = [["fit", "FILE", "--target", "targets.npy", *fit[4:]]]
    found = {
        ("hostile.skops", "model.skops"): (hostile.MODELS, of_models),
        ("hostile.ckpt", "fit.ckpt"): (hostile.CHECKPOINTS, [resume]),
        ("hostile.csv",): (hostile.TABLES, [fit, *predict, *others, quantile]),
        ("hostile.npy",): (hostile.NPY_HEADS, of_arrays),
    }
    return [
        partial(judge, name=name, make=make, files=files, commands=commands)
        for files, (makers, commands) in found.items()
        for name, make in makers.items()
    ]


def judge(place, name, make, files, commands):
    """Give a hostile file to commands, and complain about what they say and take."""
    path, *whole = (place.folder / file for file in files)
    (place.folder / "other.skops").unlink(missing_ok=True)
    np.save(place.folder / "targets.npy", np.zeros(4))
    if callable(make):
        make(*whole, path)
    else:
        path.write_bytes(make)
    for arguments in commands:
        outcome = place.run(*(path if word == "FILE" else word for word in arguments))
        for complaint in complaints(outcome, codes=(0, 1, 3, 4)):
            yield f"{name}, {arguments[0]}: {complaint}"
        if outcome.peak > MAX_BYTES:
            yield f"{name}, {arguments[0]}: {outcome.peak >> 20} MB"
    path.unlink()


TRIALS = (kill, full_disk, damaged_files, hostile_files)


@contextlib.contextmanager
def prepared():
    """A folder with a table, a model that was fitted to it, and the checkpoint of that fit."""
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        X = np.random.default_rng(0).normal(size=(60, 3))
        rows = "".join(f"{a:.4f},{b:.4f},{a - b + c:.4f}\n" for a, b, c in X)
        (folder / "table.csv").write_text("a,b,y\n" + rows)
        command = ["fit", "table.csv", "--target", "y", "-o", "model.skops", "--quiet"]
        command += ["--checkpoint", "fit.ckpt"]
        subprocess.run([sys.executable, "-m", "sorel", *command], cwd=folder, check=True)
        yield folder


def torture(seed, rounds, names):
    """Run the trials in turn; the complaints, each with what makes it happen again."""
    trials = [trial for trial in TRIALS if not names or trial.__name__ in names]
    found = []
    with prepared() as folder:
        for number in range(rounds):
            for trial in trials:
                # A trial of its own seed can be repeated alone.
                rng = random.Random(f"{seed}-{number}-{trial.__name__}")
                for complaint in trial(Place(folder, rng)):
                    found.append(f"seed {seed}, round {number}, {trial.__name__}: {complaint}")
                    print(found[-1], flush=True)
    return found


def main():
    """Run what the command line asks for; 1 if anything was found."""
    if sys.argv[1:2] == ["damaged"]:
        read_damaged(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one")
    parser.add_argument("--rounds", type=int, default=10, help="of all trials (default: 10)")
    parser.add_argument("--hostile", action="store_true", help="also every hostile file once")
    choices = [[], *(trial.__name__ for trial in TRIALS)]
    parser.add_argument("trials", nargs="*", choices=choices, help="only these (default: all)")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, {arguments.rounds} rounds", flush=True)
    begin = time.monotonic()
    found = torture(seed, arguments.rounds, arguments.trials)
    if arguments.hostile:
        with prepared() as folder:
            for trial in all_hostile():
                for line in trial(Place(folder, random.Random(0))):
                    found.append(line)
                    print(line, flush=True)
    print(f"{len(found)} complaints in {time.monotonic() - begin:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
