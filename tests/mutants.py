"""Would the tests notice? Operators of the numerical modules are changed, one at a time.

    python tests/mutants.py --count 100 --seed 3

A change turns a comparison round, takes + for -, * for /, or `and` for `or`, or drops a `not`. The
examples of the module and the tests that belong to it run on a copy of the source with that change;
what they do not notice is printed. Those are tests that are missing, or code that nothing needs.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sorel"

# The tests of each module or folder; the first name that fits a module counts.
TESTS = {
    "problem/risks.py": ["test_risks.py"],
    "problem/losses.py": ["test_losses.py", "test_deviances.py"],
    "problem/penalties/": ["test_penalties.py", "test_own_penalty.py", "test_penalty_settings.py",
                           "test_budget.py"],
    "problem/": ["test_problem.py", "test_inputs.py"],
    "certificate/": ["test_problem.py", "test_rounding.py", "test_units.py"],
    "projection/": ["test_permutahedron.py", "test_threads.py"],
    "models/working_sets.py": ["test_working_sets.py"],
    "models/conjugate.py": ["test_conjugate.py"],
    "models/costs.py": ["test_costs.py", "test_row_space.py"],
    "models/": ["test_quadratic.py", "test_budget.py", "test_own_penalty.py",
                "test_row_space.py"],
    "engines/vectorised.py": ["test_own_losses.py", "test_deviances.py"],
    "engines/rows/": ["test_rows.py"],
    "engines/": ["test_engines.py", "test_engine_contract.py",
                 "test_problem.py", "test_classes.py", "test_sparse.py", "test_blocks.py"],
    **{f"solvers/{name}.py": ["test_rival_steps.py", "test_rivals.py"]
       for name in ("admm", "apd", "drago", "pdhg", "stochastic_pd")},
    "solvers/deviations.py": ["test_deviations.py", "test_linear.py", "test_quantile.py"],
    "solvers/linear_programs.py": ["test_deviations.py", "test_quantile.py"],
    "solvers/tails.py": ["test_tails.py"],
    "solvers/solve.py": ["test_solve.py", "test_checkpoints.py"],
    "solvers/schedule.py": ["test_schedule.py"],
    "solvers/auto.py": ["test_auto.py"],
    "solvers/sorel.py": ["test_sorel.py"],
    "solvers/": ["test_augmented.py", "test_newton.py", "test_quasi_newton.py",
                 "test_first_order.py"],
    "estimators/metrics.py": ["test_metrics.py"],
    "estimators/paths.py": ["test_paths.py"],
    "estimators/model_selection.py": ["test_model_selection.py"],
    "estimators/portfolio_problems.py": ["test_portfolio.py"],
    "files/checkpoints.py": ["test_checkpoints.py", "test_hostile.py"],
    "files/": ["test_saving.py", "test_hostile.py", "test_tables.py"],
    "_lib/threads.py": ["test_threads.py"],
}  # fmt: skip

# What takes the place of what.
_PAIRS = [
    (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or),
]  # fmt: skip
_NODES = (ast.BinOp, ast.BoolOp, ast.UnaryOp)
_SWAPPED = {**dict(_PAIRS), **{new: old for old, new in _PAIRS}}

# Seconds for the tests of one change, and how many times what they take without it: one that never
# ends is noticed too, and one that a busy machine slows down is not.
_PATIENCE, _SLOWER = 300.0, 4.0


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
    """The tests of a module, those that bear its name first; none if it takes no part."""
    for name, tests in TESTS.items():
        if file == name or (file.startswith(name) and not name.endswith(".py")):
            own = f"test_{Path(file).stem}.py"
            if tests and own not in tests and (ROOT / "tests" / own).exists():
                tests = [own, *tests]
            return [str(ROOT / "tests" / test) for test in tests]
    return []


def draw(count: int, seed: int, only: str = "") -> list[Change]:
    """A sample of changes; each module is as likely as it has operators."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if tests_of(file) and file.startswith(only):
            found.extend(changes(file, path.read_text()))
    return random.Random(seed).sample(found, min(count, len(found)))


class Laboratory:
    """A copy of the source, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        # Seconds of tests that pass without a change; None for those that do not.
        self._seconds: dict[tuple[str, ...], float | None] = {}
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))

    def notices(self, change: Change, tests: list[str]) -> bool:
        """Whether the tests fail, or do not end, with the change."""
        path = self.source / "sorel" / change.file
        before = path.read_text()
        path.write_text(change.apply(before))
        patience = max(_PATIENCE, _SLOWER * (self._seconds.get(tuple(tests)) or 0.0))
        try:
            return not self._passes([str(path), *tests], patience)
        finally:
            path.write_text(before)

    def passes_unchanged(self, tests: list[str]) -> bool:
        """Whether the tests pass as things are; asked once."""
        key = tuple(tests)
        if key not in self._seconds:
            begin = time.monotonic()
            passed = self._passes(tests, _SLOWER * _PATIENCE)
            self._seconds[key] = time.monotonic() - begin if passed else None
        return self._seconds[key] is not None

    def _passes(self, tests: list[str], patience: float) -> bool:
        command = [
            sys.executable, str(ROOT / "tests" / "run_on.py"), str(self.source), "-x", "-q",
            "-p", "no:cacheprovider", "--doctest-modules", *tests,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=patience, **quiet)
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
            tests = tests_of(change.file)
            if not laboratory.passes_unchanged(tests):
                print(f"the tests of {change.file} fail without any change, or take too long")
                return 2
            noticed = laboratory.notices(change, tests)
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
