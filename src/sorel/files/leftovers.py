"""Temporary files that killed processes left behind: known by their names, removed by the next run.

The name of a temporary file or folder says who made it: the machine and the process. What a living
process made is never touched, nor what came from another machine or container, whose processes
cannot be seen from here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
from functools import cache

_NAME = re.compile(r"(?:^|\.)sorel-([0-9a-f]{8})-(\d+)-[0-9a-f]{12}(?:$|\.tmp$|-)")


def owned_name() -> str:
    """A new name that says whose it is.

    Examples
    --------
    >>> from sorel.files.leftovers import owned_name
    >>> owned_name() != owned_name()
    True
    """
    return f"sorel-{_machine()}-{os.getpid()}-{secrets.token_hex(6)}"


@cache
def remove_leftovers(folder: str) -> None:
    """Remove what processes that are no more have left in a folder, once in this process.

    Parameters
    ----------
    folder : str
        An absolute path. Looked at itself, not what is below it. What cannot be removed stays.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _NAME.search(entry.name)
            if found is None or found[1] != _machine() or _is_alive(int(found[2])):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _is_alive(process: int) -> bool:
    # Elsewhere the question would end the process.
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


@cache
def _machine() -> str:
    """A name for what shares one numbering of processes: a machine, or a container on it."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
