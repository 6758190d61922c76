"""The tests on every Python at hand, and on the oldest dependencies that are named.

    python tests/matrix.py                         # everything
    python tests/matrix.py --only 3.12 oldest -- -k risks

An environment for each is made in a folder that goes with the run, with the versions of
constraints.txt except for the oldest. Interpreters that are not there are named and left out; the
exit code is 1 if the tests fail on one that is, or if --only names one that is not.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

OLDEST = "oldest"

# What the tests need beside the package. skfolio, dask and benchopt want newer dependencies than
# the oldest ones, and their tests skip where they are missing.
_TOOLS = [
    "pytest>=8.0", "pytest-xdist>=3.5", "hypothesis>=6.100", "mpmath>=1.3",
    "cvxpy>=1.5", "clarabel>=0.9", "xlwt>=1.3",
]  # fmt: skip
_PINNED_EXTRAS = ("plot", "cli", "data")


def versions() -> list[str]:
    """The Pythons that the package names, such as 3.11."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = (re.fullmatch(r".*:: (3\.\d+)", line) for line in facts["classifiers"])
    return [match[1] for match in found if match]


def oldest() -> list[str]:
    """The dependencies, and those of some extras, each at the oldest version that is named."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = facts["optional-dependencies"]
    lines = [*facts["dependencies"], *(line for name in _PINNED_EXTRAS for line in extras[name])]
    return [line.replace(">=", "==") for line in lines]


def interpreter(version: str) -> str | None:
    """A program that runs this version of Python, on the path or among pyenv's."""
    folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"), reverse=True)
    candidates = [shutil.which(f"python{version}"), *(str(f / "python") for f in folders)]
    question = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for program in candidates:
        if program is None:
            continue
        answer = subprocess.run([program, "-c", question], capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return program
    return None


def cases(only: list[str], constraints: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, Python and requirements of each environment."""
    names = versions()
    pinned = ["--constraint", str(ROOT / constraints)] if constraints else []
    plan = [(name, name, [*pinned, f"{ROOT}[test,dask]"]) for name in names]
    plan.append((OLDEST, names[0], [*oldest(), *_TOOLS, str(ROOT)]))
    return (case for case in plan if not only or case[0] in only)


def run(name: str, program: str, requirements: list[str], arguments: list[str]) -> str:
    """Make the environment and run the tests in it: how it ended, in words."""
    with tempfile.TemporaryDirectory(prefix=f"sorel-{name}-") as folder:
        python = str(Path(folder) / "venv" / "bin" / "python")
        subprocess.run([program, "-m", "venv", Path(folder) / "venv"], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, *requirements]).returncode:
            return "cannot be installed"
        # The tests are those of the checkout, the package is the one that was installed.
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)
        tests = [python, "-m", "pytest", "-n", "auto", "--dist", "loadfile"]
        ignored = ["--ignore", "tests/browser", "--ignore", "tests/tensors"]
        ignored += ["--ignore", "tests/gallery", "--ignore", "tests/site"]
        command = [*tests, *ignored, "-p", "no:cacheprovider", "tests", *arguments]
        ended = subprocess.run(command, cwd=ROOT, env=environment)
    return "passes" if ended.returncode == 0 else f"FAILS (exit code {ended.returncode})"


def main() -> int:
    """Go through the environments, and print how each ended."""
    own = sys.argv[1:]
    split = own.index("--") if "--" in own else len(own)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], choices=[*versions(), OLDEST])
    parser.add_argument("--constraints", default="constraints.txt", help="'' for the newest")
    options = parser.parse_args(own[:split])
    rows = []
    for name, version, requirements in cases(options.only, options.constraints):
        begin = time.monotonic()
        program = interpreter(version)
        if program is None:
            outcome = f"{'FAILS' if options.only else 'LEFT OUT'}: there is no python{version}"
        else:
            print(f"{name}: {program}", flush=True)
            outcome = run(name, program, requirements, own[split + 1 :])
        rows.append((name, outcome, time.monotonic() - begin))
    for name, outcome, seconds in rows:
        print(f"{name:8} {outcome} ({seconds:.0f} s)")
    return 1 if any("FAILS" in row[1] or "cannot" in row[1] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
