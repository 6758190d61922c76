"""Ctrl-C while ``python -m sorel`` loads the package: a word and exit code 130, no traceback.

Python loads a package before any code of its ``__main__`` runs, so this is the first module that
the package imports. It does nothing for whoever imports sorel.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

__all__ = ["loaded"]

_INTERRUPTED = 130


def _starts_the_command(arguments: list[str]) -> bool:
    """Whether a command line of Python runs this package as a program."""
    place = arguments.index("-m") if "-m" in arguments else len(arguments)
    return arguments[place + 1 : place + 2] == ["sorel"]


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    os.write(2, b"interrupted\n")
    # Python itself would end as if killed by the signal.
    os._exit(_INTERRUPTED)


def loaded() -> None:
    """From here on the command hears Ctrl-C itself."""
    if sys.excepthook is _say:
        sys.excepthook = sys.__excepthook__


# While the module to run is looked for, which loads its package, this is the program's name.
if sys.argv[:1] == ["-m"] and _starts_the_command(sys.orig_argv):
    sys.excepthook = _say
