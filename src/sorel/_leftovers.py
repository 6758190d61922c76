"""Temporary files that killed processes left behind: known by their names, removed by the next run.

The name of a temporary file or folder says who made it: the machine, the process, and when that
process was started, since numbers of processes are used again. What a living process made is never
touched, nor what came from another machine or container, whose processes cannot be seen from here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import threading
from functools import cache

__all__ = ["owned_name", "remove_leftovers"]

_NAME = re.compile(r"(?:^|\.)sorel-([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{12}(?:$|\.tmp$|-)")

_searched: set[str] = set()
_lock = threading.Lock()


def owned_name() -> str:
    """A new name that says whose it is.

    Examples
    --------
    >>> from sorel._leftovers import owned_name
    >>> owned_name() != owned_name()
    True
    """
    process = os.getpid()
    return f"sorel-{_machine()}-{process}-{_started(process) or 0}-{secrets.token_hex(6)}"


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove what processes that are no more have left in a folder, once in this process.

    Parameters
    ----------
    folder : path
        Looked at itself, not what is below it. Whatever cannot be removed stays.
    """
    place = os.path.abspath(folder)
    with _lock:
        if place in _searched:
            return
        _searched.add(place)
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _is_orphan(entry.name):
                _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    with contextlib.suppress(OSError):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def _is_orphan(name: str) -> bool:
    found = _NAME.search(name)
    if found is None or found[1] != _machine():
        return False
    process, started = int(found[2]), int(found[3])
    if not _is_alive(process):
        return True
    now = _started(process)
    # Without a time nobody knows whether it is still the same process.
    return now is not None and started != 0 and now != started


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _started(process: int) -> int | None:
    """When a process was started, in ticks of the kernel; -1 if it is over; None if nobody says."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The second field is a name in brackets, and may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        # One that is dead and only waits to be counted has no use for its files.
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


@cache
def _machine() -> str:
    """A name for what shares one numbering of processes: a machine since it was started."""
    parts = [platform.node()]
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            parts.append(file.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
