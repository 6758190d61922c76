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


@pytest.mark.parametrize("noticed", [True, False])
def test_what_fails_is_noticed(tmp_path, noticed):
    laboratory = mutants.Laboratory(tmp_path / "laboratory")
    # The examples of a module are tests as well, and this one has none.
    change = mutants.draw(1, 0, "certificate/rounding.py")[0]
    path = laboratory.source / "sorel" / change.file
    before, test = path.read_text(), tmp_path / "test_it.py"
    same = f"open({str(path)!r}).read() == {before!r}" if noticed else "True"
    test.write_text(f"def test_it():\n    assert {same}\n")
    assert laboratory.notices(change, [str(test)]) is noticed
    assert path.read_text() == before
