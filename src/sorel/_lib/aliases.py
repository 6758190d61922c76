"""Public modules under the names that users import, wherever their files lie.

``sorel.losses`` is :mod:`sorel.problem.losses`, and so on. Model files and pickles name classes by
either, and both names give the same module. ``src/sorel-stubs`` tells type checkers the same.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PUBLIC = {
    "sorel.checkpoints": "sorel.files.checkpoints",
    "sorel.datasets": "sorel.research.datasets",
    "sorel.losses": "sorel.problem.losses",
    "sorel.metrics": "sorel.estimators.metrics",
    "sorel.model_selection": "sorel.estimators.model_selection",
    "sorel.paths": "sorel.estimators.paths",
    "sorel.penalties": "sorel.problem.penalties",
    "sorel.permutahedron": "sorel.projection",
    "sorel.plots": "sorel.estimators.plots",
    "sorel.reproduce": "sorel.research.reproduce",
    "sorel.risks": "sorel.problem.risks",
    "sorel.rows": "sorel.engines.rows",
    "sorel.saving": "sorel.files.saving",
    "sorel.skfolio": "sorel.estimators.skfolio",
    "sorel.tables": "sorel.files.tables",
}


def real_name(name: str) -> str | None:
    """The module behind a public name, its submodules included; None for other names."""
    for public, real in PUBLIC.items():
        if f"{name}.".startswith(f"{public}."):
            return real + name.removeprefix(public)
    return None


def public_name(name: str) -> str:
    """The public name of a module; its own where it has no other."""
    for public, real in PUBLIC.items():
        if f"{name}.".startswith(f"{real}."):
            return public + name.removeprefix(real)
    return name


class _Aliases(MetaPathFinder, Loader):
    """Finds modules under their public names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if real_name(name) is None else ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        real = real_name(spec.name)
        assert real is not None
        module = importlib.import_module(real)
        # The import system is about to give the module the spec of its other name.
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own


def install() -> None:
    """Let the public names be imported."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aliases())
