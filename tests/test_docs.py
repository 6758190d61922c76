"""README and site: what they show runs, and the API reference leaves nothing public out."""

import doctest
import importlib
import inspect
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import sorel
from sorel._lib.aliases import PUBLIC
from sorel.cli import main

ROOT = Path(__file__).resolve().parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
PAGES = [README, *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]
# The pages on extending have a test of their own.
SESSIONS = [path for path in PAGES if "extending" not in path.parts and ">>> " in path.read_text()]

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
    text, found = "\n".join(page.read_text() for page in PAGES if page.parent.name == "api"), []
    for block in re.findall(r"```{eval-rst}\n(.*?)```", text, re.S):
        module = re.search(r"currentmodule:: (\S+)", block)[1]
        found += [(module, name) for name in re.findall(r"^   (\w[\w.]*)$", block, re.M)]
    return found


@pytest.mark.parametrize("page", SESSIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_sessions_print_what_they_show(page):
    for package in ("pandas", "matplotlib"):
        pytest.importorskip(package, reason=f"{package} is an extra")
    # The README is read as a newcomer would, without help from ellipses.
    ellipsis = 0 if page == README else doctest.ELLIPSIS
    flags = doctest.NORMALIZE_WHITESPACE | ellipsis
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    assert tried
    assert not failed


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", [README, DOCS / "index.md"], ids=["README.md", "index.md"])
def test_the_first_lines_run_as_they_are(page, capsys):
    code = re.search(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)[1]
    exec(compile(code, str(page), "exec"), {})
    assert capsys.readouterr().out.startswith("converged")


def test_commands_of_the_readme_do_what_they_say(tmp_path, monkeypatch, capsys):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    pytest.importorskip("skops", reason="skops is an extra")
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for name in ("train.csv", "test.csv", "new.csv"):
        area, region = rng.uniform(20, 200, 80), rng.choice(["north", "south"], 80)
        table = pd.DataFrame({"area": area, "region": region})
        table["price"] = 3 * table.area + 40 * (table.region == "north") + rng.normal(0, 5, 80)
        table.drop(columns="price" if name == "new.csv" else []).to_csv(name, index=False)
    lines = "".join(blocks("console")).splitlines()
    commands = [line.removeprefix("$ sorel ") for line in lines if line.startswith("$ ")]
    assert len(commands) == 4
    for command in commands:
        assert main(shlex.split(command)) == 0, command
    assert len(pd.read_csv("predictions.csv")) == 80
    assert "cvar" in capsys.readouterr().out.lower()


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


def test_type_checkers_find_modules_under_their_public_names():
    stubs = {path.stem: path.read_text() for path in (ROOT / "src/sorel-stubs").glob("*.pyi")}
    expected = {name: f"from {real} import *\n" for name, real in PUBLIC.items()}
    assert {f"sorel.{name}": text for name, text in stubs.items()} == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not re.match(r"https?:", target) and target.endswith((".md", ".png", ".py")):
            assert (page.parent / target).exists(), target


def test_version_and_dependencies_are_the_same_wherever_they_are_named():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "recipe" / "recipe.yaml").read_text()
    assert f'version: "{sorel.__version__}"' in recipe
    assert f"license: {project['license']}" in recipe
    for dependency in project["dependencies"]:
        assert f"- {dependency.replace('>=', ' >=')}\n" in recipe
    released = re.findall(r"^## \[(\d.*)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r'version: (\S+)\ndate-released: "(\S+)"', citation).groups() == released
    assert sorel.__version__ == released[0] or sorel.__version__.endswith(".dev0")
