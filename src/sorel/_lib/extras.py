"""Packages that an extra brings, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str, purpose: str, extra: str = "cli") -> Any:
    """Import a module, or say how to install its package.

    Parameters
    ----------
    module : str
        The module.
    purpose : str
        Begins the message where the package is missing: "saved models need".
    extra : str, default="cli"
        The extra of sorel that brings the package.

    Raises
    ------
    ModuleNotFoundError
        If the package is missing.

    Examples
    --------
    >>> from sorel._lib.extras import import_extra
    >>> import_extra("no_such_package", "nothing needs")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: nothing needs no_such_package: pip install "sorel[cli]"
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # What the package itself misses is not ours to explain.
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f'{purpose} {package}: pip install "sorel[{extra}]"', name=package
        ) from None
