"""The store of compiled code: it may help, and must never hurt."""

from __future__ import annotations

import errno
import gc
import importlib.util
import os
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
import scipy.sparse
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.dispatcher import Dispatcher

import sorel
from sorel import _compiled

pytestmark = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"
)

CALLER = """
from sorel._compiled import compiled
from {callee} import SCALE, scaled

@compiled
def caller(x):
    return scaled(x) + SCALE
"""

CALLEE = """
from sorel._compiled import compiled

SCALE = {scale}

@compiled
def scaled(x):
    return {factor} * x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, and a path on which modules are found."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def load(path: Path):
    """Run a file as a fresh module, as a new process would."""
    _compiled._file_hash.cache_clear()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder: Path, scale: float = 10.0, factor: float = 2.0):
    (folder / "callee_of_test.py").write_text(CALLEE.format(scale=scale, factor=factor))
    (folder / "caller_of_test.py").write_text(CALLER.format(callee="callee_of_test"))


def fresh_caller(folder: Path, monkeypatch):
    monkeypatch.delitem(sys.modules, "callee_of_test", raising=False)
    importlib.invalidate_caches()
    return load(folder / "caller_of_test.py").caller


def hits(dispatcher) -> int:
    return sum(dispatcher.stats.cache_hits.values())


def test_code_is_stored_and_found_again(folder, monkeypatch):
    write(folder)
    first = fresh_caller(folder, monkeypatch)
    assert first(3.0) == 16.0
    assert hits(first) == 0
    again = fresh_caller(folder, monkeypatch)
    assert again(3.0) == 16.0
    assert hits(again) == 1
    assert again.stats.cache_path.startswith(str(folder))


@pytest.mark.parametrize(("change", "want"), [({"factor": 3.0}, 19.0), ({"scale": 20.0}, 26.0)])
def test_an_edit_in_another_file_is_noticed(folder, monkeypatch, change, want):
    write(folder)
    assert fresh_caller(folder, monkeypatch)(3.0) == 16.0
    write(folder, **change)
    edited = fresh_caller(folder, monkeypatch)
    assert edited(3.0) == want
    assert hits(edited) == 0


@pytest.mark.parametrize("damage", [b"", b"\0" * 1000, None])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_damaged_files_cost_time_and_are_replaced(folder, monkeypatch, kind, damage):
    write(folder)
    assert fresh_caller(folder, monkeypatch)(3.0) == 16.0
    files = list((folder / "cache").rglob(f"*.{kind}"))
    assert files
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    broken = fresh_caller(folder, monkeypatch)
    assert broken(3.0) == 16.0
    assert hits(broken) == 0
    mended = fresh_caller(folder, monkeypatch)
    assert mended(3.0) == 16.0
    assert hits(mended) == 1


def test_code_for_other_types_is_not_run(folder, monkeypatch):
    write(folder)
    whole, broken = 2**53 + 1, 0.5
    first = fresh_caller(folder, monkeypatch)
    want = first(np.int64(whole)), first(broken)
    one, two = sorted((folder / "cache").rglob("caller_of_test*.nbc"))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    swapped = fresh_caller(folder, monkeypatch)
    assert (swapped(np.int64(whole)), swapped(broken)) == want


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_failure_to_store_costs_time_only(folder, monkeypatch, code):
    def fail(self, signature, result):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(FunctionCache, "save_overload", fail)
    monkeypatch.setattr(_compiled, "_trouble", None)
    write(folder)
    assert fresh_caller(folder, monkeypatch)(3.0) == 16.0
    assert _compiled.trouble().errno == code


def test_a_failure_to_read_costs_time_only(folder, monkeypatch):
    write(folder)
    assert fresh_caller(folder, monkeypatch)(3.0) == 16.0
    stored = {file: file.read_bytes() for file in (folder / "cache").rglob("*.nbi")}

    def fail(self, signature, context):
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patch:
        patch.setattr(FunctionCache, "load_overload", fail)
        patch.setattr(FunctionCache, "save_overload", lambda *_: None)
        assert fresh_caller(folder, monkeypatch)(3.0) == 16.0
    # What could not be read may be whole: it is left alone.
    assert stored == {file: file.read_bytes() for file in (folder / "cache").rglob("*.nbi")}


def test_without_any_folder_the_code_is_compiled_and_forgotten(folder, monkeypatch):
    def nowhere(self, function):
        raise RuntimeError("cannot cache function: no locator available for file")

    monkeypatch.setattr(FunctionCache, "__init__", nowhere)
    write(folder)
    caller = fresh_caller(folder, monkeypatch)
    assert caller(3.0) == 16.0
    assert caller.stats.cache_path is None
    assert _compiled.cache_folder() is None


def test_a_folder_that_was_filled_before_serves_where_it_cannot_be_written(folder, monkeypatch):
    write(folder)
    assert fresh_caller(folder, monkeypatch)(3.0) == 16.0
    # Permissions do not stop every user: numba's own test of the folder is what fails here.
    with monkeypatch.context() as patch:
        patch.setattr(FunctionCache, "_impl_class", Nowhere)
        caller = fresh_caller(folder, monkeypatch)
        assert caller(3.0) == 16.0
        assert hits(caller) == 1
        assert caller(3) == 16
        assert caller.stats.cache_path is None


class Nowhere(CompileResultCacheImpl):
    _locator_classes = ()


def test_a_cache_folder_that_is_a_file(folder, monkeypatch):
    write(folder)
    (folder / "cache").write_text("not a folder")
    caller = fresh_caller(folder, monkeypatch)
    assert caller(3.0) == 16.0
    assert caller.stats.cache_path != str(folder / "cache")


@pytest.mark.parametrize("wanted", [True, False])
def test_the_garbage_collector_is_left_as_it_was(folder, monkeypatch, wanted):
    write(folder)
    caller = fresh_caller(folder, monkeypatch)
    enabled = gc.isenabled()
    (gc.enable if wanted else gc.disable)()
    try:
        assert caller(3.0) == 16.0
        assert gc.isenabled() == wanted
        with pytest.raises(numba.TypingError):
            caller("three")
        assert gc.isenabled() == wanted
    finally:
        (gc.enable if enabled else gc.disable)()


def test_inlined_functions_are_called_from_python_as_well(folder):
    (folder / "inlined_of_test.py").write_text(
        "from sorel._compiled import compiled\n"
        "@compiled(fastmath=False, inline=True)\n"
        "def half(x, y):\n"
        "    if y is None:\n"
        "        return 0.5 * x\n"
        "    return 0.5 * x + y\n"
        "@compiled(fastmath=False)\n"
        "def quarter(x):\n"
        "    return half(half(x, None), 1.0)\n"
    )
    module = load(folder / "inlined_of_test.py")
    assert module.quarter(8.0) == 3.0
    assert module.half(8.0, None) == 4.0


def signatures() -> set[tuple[str, str]]:
    """All that the package has compiled or loaded so far."""
    return {
        (name, str(types))
        for module in [m for m in sys.modules if m.startswith("sorel.")]
        for name, value in vars(sys.modules[module]).items()
        if isinstance(value, Dispatcher)
        for types in value.overloads
    }


@pytest.mark.parametrize("solver", ["auto", "sorel"])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("sparse", [False, True])
def test_read_only_and_strided_data_need_no_code_of_their_own(loss, solver, sparse):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = X[:, 0] + rng.normal(size=40)
    if loss == "multinomial":
        y = np.digitize(y, [-0.5, 0.5])
    weight = rng.random(40)
    matrix = scipy.sparse.csr_array(X) if sparse else X

    def solve():
        problem = sorel.Problem(matrix, y, loss=loss, sample_weight=weight, fit_intercept=True)
        sorel.solve(problem, solver, tol=1e-3)

    solve()
    parts = (matrix.data, matrix.indices, matrix.indptr) if sparse else (matrix,)
    for part in (*parts, y, weight):
        part.flags.writeable = False
    before = signatures()
    solve()
    y, weight = np.repeat(y, 2)[::2], np.repeat(weight, 2)[::2]
    solve()
    assert signatures() - before == set()


def test_the_garbage_collector_goes_on_after_compiling_in_many_threads():
    def pause():
        for _ in range(200):
            with _compiled._pause, _compiled._pause:
                pass

    threads = [threading.Thread(target=pause) for _ in range(8)]
    assert gc.isenabled()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        pause()
        assert not gc.isenabled()
    finally:
        gc.enable()
