"""The pages of the site: their sessions run, and the API reference leaves nothing public out."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if "_build" not in path.parts and "extending" not in path.parts and ">>> " in path.read_text()
)

# Optional packages that the reference describes, and what must be there to import them.
EXTRAS = {"sorel.dask": "dask", "sorel.torch": "torch", "sorel.skfolio": "skfolio"}

# Public in their modules for those who build on them, and described with what they serve.
NOT_LISTED = {
    "sorel.datasets": {"BUNDLED_DATASETS", "PAPER_DATASETS"},
    "sorel.losses": {"LOSSES"},
    "sorel.metrics": {
        "SCORERS", "neg_cvar_01", "neg_cvar_05", "neg_cvar_10", "neg_cvar_50", "neg_worst",
    },
    "sorel.rows": {"backed_by_file", "is_parquet"},
    "sorel.solvers": {"SOLVERS"},
}  # fmt: skip


def reference() -> list[tuple[str, str]]:
    """Module and name of every entry."""
    text, found = (DOCS / "api" / "index.md").read_text(), []
    for block in re.findall(r"```{eval-rst}\n(.*?)```", text, re.S):
        module = re.search(r"currentmodule:: (\S+)", block)[1]
        found += [(module, name) for name in re.findall(r"^   (\w[\w.]*)$", block, re.M)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_sessions_print_what_they_show(page):
    for package in ("pandas", "matplotlib"):
        pytest.importorskip(package, reason=f"{package} is an extra")
    if page.stem in ("gpu", "networks"):
        pytest.importorskip("torch", reason="torch has an environment of its own")
    if page.stem == "cluster":
        pytest.importorskip("dask", reason="dask is an extra")
    failed, tried = doctest.testfile(
        str(page),
        module_relative=False,
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
    )
    assert tried
    assert not failed


@pytest.mark.parametrize(("module", "name"), reference())
def test_every_name_of_the_reference_has_an_example(module, name):
    if module in EXTRAS:
        pytest.importorskip(EXTRAS[module], reason=f"{EXTRAS[module]} is an extra")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    text = inspect.getdoc(found)
    assert text
    if not (inspect.isclass(found) and issubclass(found, (Exception, Warning))):
        assert "Examples\n--------" in text


@pytest.mark.parametrize("module", sorted({module for module, _ in reference()}))
def test_every_public_name_is_in_the_reference(module):
    if module in EXTRAS:
        pytest.importorskip(EXTRAS[module], reason=f"{EXTRAS[module]} is an extra")
    listed = {(m, name.rpartition(".")[2]) for m, name in reference()}
    public = importlib.import_module(module)
    names = {
        name
        for name in public.__all__
        if not isinstance(getattr(public, name), ModuleType)
        and name not in NOT_LISTED.get(module, ())
    }
    assert {name for name in names if (module, name) not in listed} == set()


def test_links_between_pages_lead_somewhere():
    for page in DOCS.rglob("*.md"):
        if "_build" in page.parts:
            continue
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if not re.match(r"https?:", target) and target.endswith((".md", ".png", ".py")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
