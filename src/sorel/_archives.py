"""Archives and texts from strangers: how much they hold is known and limited before it is read.

A zip archive of a few megabytes may unfold to many gigabytes, and its directory may lie about it.
Members are counted, their declared sizes are added up, and what is read is cut off at what was
declared, a piece at a time, whatever the packed bytes would give.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Collection
from typing import Any, BinaryIO

__all__ = ["ArchiveError", "TooLargeError", "bounded_json", "read_member", "repacked", "size_of"]

# zipfile's own kinds that unpack a piece at a time.
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_MEMBERS = 1 << 16
_PIECE = 1 << 20
_ENCRYPTED = 0x1


class ArchiveError(ValueError):
    """The archive holds something that does not belong there."""


class TooLargeError(ArchiveError):
    """The archive unfolds to more than it may."""


def size_of(stream: BinaryIO) -> int:
    """Bytes of a stream that can be read more than once; it is left at its beginning."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size


def read_member(stream: BinaryIO, name: str, limit: int) -> bytes | None:
    """One member of a zip archive, or None where there is none of that name.

    Parameters
    ----------
    stream : binary stream
        The archive.
    name : str
        The member.
    limit : int
        Bytes that it may take when it is unpacked.

    Raises
    ------
    TooLargeError
        If it takes more.
    ArchiveError
        If it is encrypted or packed in an unusual way.
    zipfile.BadZipFile
        If it is no archive, or the content is not what its checksum says.

    Examples
    --------
    >>> import io, zipfile
    >>> from sorel._archives import read_member
    >>> stream = io.BytesIO()
    >>> with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
    ...     archive.writestr("zeros", bytes(1_000_000))
    >>> len(stream.getvalue()) < 2000
    True
    >>> read_member(stream, "zeros", limit=10_000)
    Traceback (most recent call last):
    ...
    sorel._archives.TooLargeError: it unfolds to 1 MB, and may take 0.01 MB
    """
    with zipfile.ZipFile(stream) as archive:
        members = _members(archive)
        if name not in members:
            return None
        _check([members[name]], limit)
        content = io.BytesIO()
        _copy(archive, members[name], content)
        return content.getvalue()


def repacked(stream: BinaryIO, limit: int) -> tuple[io.BytesIO, dict[str, int]]:
    """A copy of a zip archive that takes no more when it is read: nothing in it is packed.

    Parameters
    ----------
    stream : binary stream
        The archive.
    limit : int
        Bytes that its members may take together.

    Returns
    -------
    stream : binary stream
        The copy.
    sizes : dict
        Bytes of each member.

    Raises
    ------
    TooLargeError
        If the members take more.
    ArchiveError
        If they are too many, have the same name, or are encrypted or packed in
        an unusual way.
    zipfile.BadZipFile
        If it is no archive, or the content of a member is not what its checksum says.

    Examples
    --------
    >>> import io, zipfile
    >>> from sorel._archives import repacked
    >>> stream = io.BytesIO()
    >>> with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
    ...     archive.writestr("zeros", bytes(1000))
    >>> repacked(stream, 10_000)[1]
    {'zeros': 1000}
    """
    copy = io.BytesIO()
    sizes = {}
    with zipfile.ZipFile(stream) as archive, zipfile.ZipFile(copy, "w") as new:
        members = _members(archive)
        _check(members.values(), limit)
        for name, member in members.items():
            content = io.BytesIO()
            _copy(archive, member, content)
            sizes[name] = member.file_size
            new.writestr(name, content.getbuffer())
    return copy, sizes


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members = archive.infolist()
    if len(members) > _MAX_MEMBERS:
        raise ArchiveError(f"it has {len(members)} members, more than {_MAX_MEMBERS}")
    found = {member.filename: member for member in members}
    if len(found) < len(members):
        raise ArchiveError("two of its members have the same name")
    return found


def _check(members: Collection[zipfile.ZipInfo], limit: int) -> None:
    total = sum(member.file_size for member in members)
    if total > limit:
        raise TooLargeError(f"it unfolds to {total / 1e6:g} MB, and may take {limit / 1e6:g} MB")
    for member in members:
        if member.compress_type not in _KINDS or member.flag_bits & _ENCRYPTED:
            raise ArchiveError(
                f"its member {member.filename!r} is encrypted, or packed in an unusual way"
            )


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, out: io.BytesIO) -> None:
    """Read a member in pieces: asked for all at once, zipfile unpacks all before it cuts off."""
    with archive.open(member) as stream:
        while piece := stream.read(_PIECE):
            out.write(piece)
    if out.tell() != member.file_size:
        raise zipfile.BadZipFile(f"{member.filename!r} is shorter than declared")


def bounded_json(text: bytes, limit: int, max_lists: int = 90_000) -> Any:
    """The value of a JSON text of at most `limit` bytes, and with so many lists and no more.

    An empty list takes three letters and eighty bytes of memory, a short text four and sixty.

    Parameters
    ----------
    text : bytes
        JSON in UTF-8, UTF-16 or UTF-32.
    limit : int
        Bytes that it may have.
    max_lists : int, default=90_000
        Lists and dictionaries that it may hold; of values, ten times as many.

    Raises
    ------
    TooLargeError
        If it has or holds more.
    ValueError, RecursionError
        If it is no JSON, or nested too deeply.

    Examples
    --------
    >>> from sorel._archives import bounded_json
    >>> bounded_json(b'{"a": [1, 2]}', 100)
    {'a': [1, 2]}
    >>> bounded_json(b"[" + b"[]," * 1_000_000 + b"0]", 10**7)
    Traceback (most recent call last):
    ...
    sorel._archives.TooLargeError: its text has 1000001 lists, more than 90000
    """
    if len(text) > limit:
        raise TooLargeError(
            f"its text takes {len(text) / 1e6:g} MB, and may take {limit / 1e6:g} MB"
        )
    lists = text.count(b"[") + text.count(b"{")
    if lists > max_lists:
        raise TooLargeError(f"its text has {lists} lists, more than {max_lists}")
    values = text.count(b",")
    if values > 10 * max_lists:
        raise TooLargeError(f"its text has {values} values, more than {10 * max_lists}")
    return json.loads(text)
