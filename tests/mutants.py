"""Would the tests notice? Operators of the package are changed, one at a time.

    python tests/mutants.py --count 100 --seed 3

A change turns a comparison round, takes + for -, * for /, or `and` for `or`, or drops a `not`. The
examples of the module and the tests that belong to it run on a copy of the source with that change,
and where they notice nothing, all tests. What lives is printed: those are tests that are missing,
or code that nothing needs.

Drawn are the Python modules that the environment can run. Left out are those of tensors without
torch, `engines/tensors/cuda.py` unless SOREL_TEST_DEVICE names a CUDA device, and the loops of
`src/core`.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sorel"

# Modules that nothing runs without torch, and the one that needs a CUDA device.
_TORCH = ("_lib/devices.py", "engines/tensors/", "estimators/tensor_data.py", "torch/")
_CUDA = "engines/tensors/cuda.py"

# The tests of each module or folder, the sharpest for its time first; the first name that fits a
# module counts.
TESTS = {
    **{f"{module}.py": [f"test_{module.rpartition('/')[2]}.py"] for module in (
        "_lib/threads", "cli/streams", "engines/last_gram", "engines/splitting",
        "estimators/baselines", "estimators/fit_warnings", "estimators/metrics",
        "estimators/model_selection", "estimators/plots",
        "estimators/rank", "models/conjugate", "models/costs",
        "models/working_sets", "problem/risks", "research/demo", "solvers/auto",
        "solvers/schedule", "solvers/sorel", "solvers/tails",
    )},
    **{f"solvers/{name}.py": ["test_rival_steps.py", "test_rivals.py"]
       for name in ("admm", "apd", "drago", "pdhg", "stochastic_pd", "subgradient")},
    **{name: ["tensors"] for name in _TORCH},
    "__": ["test_docs.py", "test_streams.py"],
    "_lib/names.py": ["test_tables.py"],
    "_lib/": ["test_inputs.py", "test_own_losses.py", "test_docs.py", "test_plots.py",
              "test_metrics.py", "test_estimators.py"],
    "certificate/": ["test_units.py", "test_rounding.py", "test_classes.py", "test_epochs.py",
                     "test_solve.py", "test_linear.py", "test_newton.py", "test_problem.py"],
    "cli/fit_on_cluster.py": ["test_dask_cli.py"],
    "cli/signals.py": ["test_signals.py"],
    "cli/info.py": ["test_cli.py", "test_hostile.py"],
    "cli/reproduce.py": ["test_reproduce.py"],
    "cli/": ["test_cli_linear.py", "test_cli.py", "test_checkpoints.py", "test_deviances.py"],
    "dask/bins.py": ["test_bins.py", "test_engine_contract.py", "test_dask_cluster.py"],
    "dask/": ["test_engine_contract.py", "test_dask_cli.py", "test_dask_estimators.py",
              "test_dask_cluster.py"],
    "engines/batches.py": ["test_epochs.py", "test_first_order.py", "test_rival_steps.py"],
    "engines/blocks.py": ["test_blocks.py", "test_engine_contract.py"],
    "engines/stochastic.py": ["test_epochs.py", "test_first_order.py", "test_sparse_steps.py"],
    "engines/intercepts.py": ["test_intercepts.py", "test_classes.py", "test_engines.py"],
    "engines/rotated.py": ["test_row_space.py"],
    "engines/rows/": ["test_rows.py", "test_blocks.py", "test_cli.py"],
    "engines/vectorised.py": ["test_own_losses.py", "test_deviances.py"],
    "engines/": ["test_engines.py", "test_deviances.py", "test_engine_contract.py",
                 "test_rounding.py", "test_classes.py", "test_epochs.py", "test_auto.py",
                 "test_first_order.py", "test_sparse.py", "test_blocks.py", "test_linear.py",
                 "test_threads.py", "test_problem.py", "test_row_space.py"],
    "estimators/constant_model.py": ["test_constant.py"],
    "estimators/paths.py": ["test_paths.py", "test_tails.py"],
    "estimators/portfolio": ["test_portfolio.py"],
    "estimators/quantile.py": ["test_quantile.py", "test_interop.py"],
    "estimators/search_report.py": ["test_model_selection.py"],
    "estimators/": ["test_interop.py", "test_metrics.py", "test_estimators.py", "test_extending.py",
                    "test_baselines.py", "test_model_selection.py", "test_checkpoints.py",
                    "test_deviances.py", "test_portfolio.py"],
    "files/checkpoints.py": ["test_checkpoints.py", "test_hostile.py"],
    "files/archives.py": ["test_saving.py", "test_hostile.py"],
    "files/atomic.py": ["test_streams.py", "test_saving.py", "test_checkpoints.py", "test_cli.py"],
    "files/fingerprints.py": ["test_checkpoints.py", "test_rows.py", "test_engines.py"],
    "files/leftovers.py": ["test_signals.py", "test_saving.py"],
    "files/tables.py": ["test_tables.py", "test_cli.py", "test_hostile.py", "test_saving.py"],
    "files/unfolding.py": ["test_hostile.py", "test_tables.py"],
    "files/": ["test_saving.py", "test_tables.py", "test_checkpoints.py", "test_hostile.py",
               "test_cli.py"],
    "models/": ["test_quadratic.py", "test_budget.py", "test_row_space.py", "test_own_penalty.py"],
    "problem/losses.py": ["test_losses.py", "test_deviances.py", "test_bounded_domains.py"],
    "problem/penalties/": ["test_penalties.py", "test_penalty_settings.py", "test_quadratic.py",
                           "test_budget.py", "test_own_penalty.py"],
    "problem/": ["test_units.py", "test_inputs.py", "test_engines.py", "test_augmented.py",
                 "test_problem.py", "test_deviances.py", "test_blocks.py"],
    "projection/": ["test_permutahedron.py", "test_threads.py", "test_engines.py"],
    "research/datasets/": ["test_datasets.py"],
    "research/reproduce/": ["test_reproduce.py"],
    "solvers/continuation.py": ["test_own_losses.py", "test_bounded_domains.py"],
    "solvers/deviations.py": ["test_deviations.py", "test_linear.py", "test_quantile.py"],
    "solvers/linear_programs.py": ["test_deviations.py", "test_quantile.py"],
    "solvers/row_space.py": ["test_row_space.py", "test_auto.py"],
    "solvers/solve.py": ["test_solve.py", "test_checkpoints.py", "test_first_order.py"],
    "solvers/": ["test_line_search.py", "test_augmented.py", "test_epochs.py",
                 "test_quasi_newton.py", "test_first_order.py", "test_constant.py",
                 "test_auto.py", "test_newton.py", "test_solve.py"],
}  # fmt: skip


# What takes the place of what.
_PAIRS = [
    (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or),
]  # fmt: skip
_NODES = (ast.BinOp, ast.BoolOp, ast.UnaryOp)
_SWAPPED = {**dict(_PAIRS), **{new: old for old, new in _PAIRS}}

# Seconds for the tests of one change, many times what they take: one that never ends is noticed,
# and one that a busy machine slows down is not.
_PATIENCE = 900.0

# All tests: those that `make test` runs, which need neither a browser, nor torch, nor the site.
_ALL = [
    "-n", "auto", "--dist", "loadfile",
    *(f"--ignore={ROOT / 'tests' / name}" for name in ("browser", "tensors", "site", "gallery")),
    str(ROOT / "tests"),
]  # fmt: skip

# What every process of a test runs first, workers too: an editable install comes before any path.
_TAKE_THE_COPY = """\
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""


@dataclass(frozen=True)
class Change:
    """One operator of one file: its place in the tree, its line, and what it is."""

    file: str
    number: int
    line: int
    operator: str

    def apply(self, source: str) -> str:
        """The source with the change, without its comments."""
        tree = ast.parse(source)
        node, position = list(_operators(tree))[self.number]
        if isinstance(node, ast.Compare):
            node.ops[position] = _SWAPPED[type(node.ops[position])]()
        elif isinstance(node, ast.UnaryOp):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        else:
            node.op = _SWAPPED[type(node.op)]()
        return ast.unparse(ast.fix_missing_locations(tree))


def _operators(tree: ast.Module) -> Iterator[tuple[Any, int]]:
    """Nodes with an operator that can be changed, and its position in a chain of comparisons."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
            skipped.update(map(id, ast.walk(node.annotation)))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare):
            yield from ((node, position) for position in range(len(node.ops)))
        elif isinstance(node, _NODES) and type(node.op) in (ast.Not, *_SWAPPED):
            yield node, 0


def changes(file: str, source: str) -> list[Change]:
    """All changes that a file allows."""
    found = []
    for number, (node, position) in enumerate(_operators(ast.parse(source))):
        operator = node.ops[position] if isinstance(node, ast.Compare) else node.op
        found.append(Change(file, number, node.lineno, type(operator).__name__))
    return found


def tests_of(file: str) -> list[str]:
    """The tests of a module."""
    tests = next(tests for name, tests in TESTS.items() if file.startswith(name))
    return [str(ROOT / "tests" / test) for test in tests]


def _can_run(file: str) -> bool:
    if file == _CUDA and not os.environ.get("SOREL_TEST_DEVICE", "cpu").startswith("cuda"):
        return False
    return not file.startswith(_TORCH) or find_spec("torch") is not None


def draw(count: int, seed: int, only: str = "") -> list[Change]:
    """A sample of changes; each module is as likely as it has operators."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(only) and _can_run(file):
            found.extend(changes(file, path.read_text()))
    return random.Random(seed).sample(found, min(count, len(found)))


class Laboratory:
    """A copy of the source, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.source, self._cache = folder / "src", folder / "cache"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))
        (self.source / "sitecustomize.py").write_text(_TAKE_THE_COPY)

    def notices(self, change: Change, *suites: list[str]) -> bool:
        """Whether one of the suites, in turn, fails or does not end with the change.

        Raises a RuntimeError if what fails does so without the change, too.
        """
        path = self.source / "sorel" / change.file
        before = path.read_text()
        shutil.rmtree(self._cache, ignore_errors=True)
        path.write_text(change.apply(before))
        try:
            failing = next(
                (suite for suite in suites if not self._passes([str(path), *suite])), None
            )
        finally:
            path.write_text(before)
        if failing is None:
            return False
        if not self._passes(["--last-failed", str(path), *failing]):
            raise RuntimeError(f"tests of {change.file} fail without a change, or take too long")
        return True

    def _passes(self, arguments: list[str]) -> bool:
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-o", f"cache_dir={self._cache}",
            "--doctest-modules", *arguments,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=_PATIENCE, **quiet)
        except subprocess.TimeoutExpired:
            return False
        return ended.returncode == 0


def main() -> int:
    """Draw, test, and print what lives; 1 if too much of it does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="changes (default: 100)")
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one")
    parser.add_argument("--only", default="", help="files whose path below sorel starts with this")
    parser.add_argument("--least", type=float, default=0.92, help="share that must be noticed")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    chosen = draw(arguments.count, seed, arguments.only)
    print(f"seed {seed}, {len(chosen)} changes", flush=True)
    begin, alive = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        laboratory = Laboratory(Path(folder))
        for number, change in enumerate(sorted(chosen, key=lambda c: (c.file, c.line)), start=1):
            noticed = laboratory.notices(change, tests_of(change.file), _ALL)
            alive += not noticed
            word = "noticed" if noticed else "LIVES  "
            line = (PACKAGE / change.file).read_text().split("\n")[change.line - 1].strip()
            where = f"{change.file}:{change.line}: {change.operator}"
            print(f"{number:4} {word} {where}  in  {line}", flush=True)
    noticed_share = 1.0 - alive / max(1, len(chosen))
    seconds = time.monotonic() - begin
    print(f"{len(chosen) - alive} of {len(chosen)} noticed ({noticed_share:.0%}), {seconds:.0f} s")
    return 0 if noticed_share >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
