"""Changes of operators: that they are found and applied, and that a test notices one."""

from __future__ import annotations

import ast

import mutants
import pytest

SOURCE = """\
def f(a: int | None, b):
    if a is not None and not b < 2:
        return a + b * 3 - 1
    return "é" in b or a == b
"""


def test_every_operator_is_found_and_changed():
    found = mutants.changes("x.py", SOURCE)
    operators = ["Add", "And", "Eq", "In", "IsNot", "Lt", "Mult", "Not", "Or", "Sub"]
    assert sorted(change.operator for change in found) == operators
    changed = {ast.dump(ast.parse(change.apply(SOURCE))) for change in found}
    assert len(changed - {ast.dump(ast.parse(SOURCE))}) == len(found)


def test_all_tests_that_are_named_exist():
    for tests in mutants.TESTS.values():
        for test in tests:
            assert (mutants.ROOT / "tests" / test).exists(), test


@pytest.mark.parametrize(("text", "noticed"), [("assert 1 + 1 == 2", False), ("1 / 0", True)])
def test_what_fails_is_noticed(tmp_path, text, noticed):
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {text}\n")
    laboratory = mutants.Laboratory(tmp_path / "laboratory")
    # The examples of a module are tests as well, and this one has none.
    change = mutants.draw(1, 0, "certificate/rounding.py")[0]
    assert laboratory.passes_unchanged([str(tmp_path / "test_it.py")]) is not noticed
    before = (laboratory.source / "sorel" / change.file).read_text()
    assert laboratory.notices(change, [str(tmp_path / "test_it.py")]) is noticed
    assert (laboratory.source / "sorel" / change.file).read_text() == before
