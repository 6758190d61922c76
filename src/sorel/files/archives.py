"""Archives and texts from strangers: how much they hold is known and limited before it is read.

A zip archive of a few megabytes may unfold to many gigabytes, and its directory may lie about it.
Members are counted, their declared sizes are added up, and what is read is cut off at what was
declared, a piece at a time, whatever the packed bytes would give.
"""

from __future__ import annotations

import json
import zipfile
from typing import Any, BinaryIO

# zipfile's own kinds that unpack a piece at a time.
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Bytes of a JSON text that describes a model or a run.
MAX_TEXT = 8 << 20
# Bytes of JSON for each list or dictionary, at least: an empty one takes three bytes, eighty in
# memory, and a kilobyte where skops makes an object of it.
_BYTES_PER_LIST = 90
# Members that an archive may have: its directory is a text like others.
_MAX_MEMBERS = MAX_TEXT // _BYTES_PER_LIST


class ArchiveError(ValueError):
    """The archive holds something that does not belong there."""


class TooLargeError(ArchiveError):
    """The archive unfolds to more than it may."""


def unpacked(stream: BinaryIO, limit: int, only: str | None = None) -> dict[str, bytes]:
    """The members of a zip archive by their names, in no more bytes than a limit.

    Parameters
    ----------
    stream : binary stream
        The archive.
    limit : int
        Bytes that the members may take together.
    only : str, optional
        The one member to read, if there is one of that name.

    Raises
    ------
    TooLargeError
        If the members take more.
    ArchiveError
        If they are too many, have the same name, or are packed in an unusual way.
    zipfile.BadZipFile
        If it is no archive, or the content of a member is not what its checksum says.
    RuntimeError
        If a member is encrypted.

    Examples
    --------
    >>> import io, zipfile
    >>> from sorel.files.archives import unpacked
    >>> stream = io.BytesIO()
    >>> with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
    ...     archive.writestr("zeros", bytes(1_000_000))
    >>> len(stream.getvalue()) < 2000
    True
    >>> unpacked(stream, limit=10_000)
    Traceback (most recent call last):
    ...
    sorel.files.archives.TooLargeError: it unfolds to 1 MB, and may take 0.01 MB
    """
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if len(members) > _MAX_MEMBERS:
            raise ArchiveError(f"it has {len(members)} members, more than {_MAX_MEMBERS}")
        if len(set(archive.namelist())) < len(members):
            raise ArchiveError("two of its members have the same name")
        wanted = [member for member in members if only in (None, member.filename)]
        total = sum(member.file_size for member in wanted)
        if total > limit:
            raise TooLargeError(
                f"it unfolds to {total / 1e6:g} MB, and may take {limit / 1e6:g} MB"
            )
        return {member.filename: _content(archive, member) for member in wanted}


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Read as much of a member as is declared: zipfile unpacks all of it unless told the size."""
    if member.compress_type not in _KINDS:
        raise ArchiveError(f"its member {member.filename!r} is packed in an unusual way")
    with archive.open(member) as stream:
        content = stream.read(member.file_size)
    if len(content) != member.file_size:
        raise zipfile.BadZipFile(f"{member.filename!r} is shorter than declared")
    return content


def bounded_json(text: bytes, limit: int = MAX_TEXT) -> Any:
    """The value of a JSON text that takes no more memory than some times a limit.

    Parameters
    ----------
    text : bytes
        JSON in UTF-8, UTF-16 or UTF-32.
    limit : int
        Bytes that it may have. For each 90 of them there may be one list or dictionary.

    Raises
    ------
    TooLargeError
        If it has or holds more.
    ValueError, RecursionError
        If it is no JSON, or nested too deeply.

    Examples
    --------
    >>> from sorel.files.archives import bounded_json
    >>> bounded_json(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> bounded_json(b"[" + b"[]," * 1_000_000 + b"0]", 10**7)
    Traceback (most recent call last):
    ...
    sorel.files.archives.TooLargeError: its text has 1000001 lists, more than 111111
    """
    if len(text) > limit:
        raise TooLargeError(
            f"its text takes {len(text) / 1e6:g} MB, and may take {limit / 1e6:g} MB"
        )
    most = limit // _BYTES_PER_LIST
    lists = text.count(b"[") + text.count(b"{")
    if lists > most:
        raise TooLargeError(f"its text has {lists} lists, more than {most}")
    return json.loads(text)
