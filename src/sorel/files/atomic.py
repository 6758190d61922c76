"""Writing files and folders so that a failure leaves what was there: all of the new, or the old."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sorel.files.leftovers import owned_name, remove_leftovers

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that writing to `path` would end in, as far as it can be known before.

    Parameters
    ----------
    path : path
        A file that is to be written later, after work that should not be in vain.
    """
    if _is_special(path):
        return
    target = _target(path)
    if target.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder; give the name of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(target.parent)!r}; create it first")
    # A new file takes the place of the old one, which needs the folder as well.
    if not all(os.access(place, os.W_OK) for place in (target, target.parent) if place.exists()):
        raise PermissionError(f"{str(path)!r} cannot be written: permission denied")


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to a temporary file in the same folder, and put it in place in one step.

    Whatever goes wrong, an existing file keeps its content and no temporary file stays behind. A
    symbolic link is followed, an existing file keeps its permissions, and what is not a regular
    file (a device, a pipe) is written directly.

    Parameters
    ----------
    path : path
        The file to write.
    data : bytes
        Its content.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sorel.files.atomic import write_atomically
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new.txt", b"content")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('new.txt', b'content')]
    """
    with open_atomically(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file for writing, and put it in the place of `path` if all goes well.

    For what is too large to be put together in memory first; see :func:`write_atomically`.

    Parameters
    ----------
    path : path
        The file to write.
    """
    check_writable(path)
    if _is_special(path):
        with _naming(path), open(path, "wb") as stream:
            yield stream
        return
    target = _target(path)
    remove_leftovers(str(target.parent))
    temporary = target.with_name(f".{owned_name()}.tmp")
    try:
        # Opened with the usual mode, so that the user's umask decides who may read the result.
        with _naming(path), open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def write_folder_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder to fill, which takes its place as `path` when all has gone well.

    Whatever goes wrong, nothing of it stays behind.

    Parameters
    ----------
    path : path
        The folder; it must not exist yet, and the folder that it goes into must.

    Yields
    ------
    Path
        A temporary folder beside it.

    Examples
    --------
    >>> import os, tempfile
    >>> from sorel.files.atomic import write_folder_atomically
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with write_folder_atomically(os.path.join(place, "new")) as folder:
    ...         _ = (folder / "a.txt").write_text("content")
    ...     os.listdir(os.path.join(place, "new"))
    ['a.txt']
    """
    target = Path(path)
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{str(path)!r} exists already; remove it, or choose another name")
    check_writable(target)
    parent = target.absolute().parent
    remove_leftovers(str(parent))
    temporary = parent / f".{owned_name()}.tmp"
    temporary.mkdir()
    try:
        with _naming(path):
            yield temporary
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextlib.contextmanager
def scratch_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """A folder for the time of the context; one that a killed process left is removed first.

    Parameters
    ----------
    parent : path, optional
        Where; the system's folder for temporary files when not given.

    Examples
    --------
    >>> from sorel.files.atomic import scratch_folder
    >>> with scratch_folder() as folder:
    ...     folder.is_dir()
    True
    >>> folder.exists()
    False
    """
    place = os.path.abspath(parent or tempfile.gettempdir())
    remove_leftovers(place)
    with tempfile.TemporaryDirectory(prefix=f"{owned_name()}-", dir=place) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file to an error that does not name one: a write does not know where it writes."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _WRITE_ERRORS:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _is_special(path: str | os.PathLike[str]) -> bool:
    # Asked of the name as given: /dev/stdout may lead to a pipe, which has no name of its own.
    given = Path(path)
    return given.exists() and not given.is_file() and not given.is_dir()


def _target(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path))
