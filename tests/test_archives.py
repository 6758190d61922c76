"""Limits of archives and texts hold to the byte, and say their numbers."""

from __future__ import annotations

import io
import zipfile

import pytest

from sorel.files import archives as _archives
from sorel.files.archives import ArchiveError, TooLargeError, bounded_json, unpacked


def archive(*members, kind=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as file:
        for name, size in members:
            file.writestr(name, bytes(size))
    return stream


def test_members_may_be_as_large_as_the_limit():
    stream = archive(("a", 1_500_000), ("b", 500_000))
    assert unpacked(stream, 2_000_000) == {"a": bytes(1_500_000), "b": bytes(500_000)}
    assert unpacked(stream, 500_000, only="b") == {"b": bytes(500_000)}
    assert unpacked(stream, 0, only="c") == {}
    with pytest.raises(TooLargeError, match=r"^it unfolds to 2 MB, and may take 1\.9 MB$"):
        unpacked(stream, 1_900_000)


def test_members_are_few_and_have_names_of_their_own(monkeypatch):
    monkeypatch.setattr(_archives, "_MAX_MEMBERS", 2)
    assert len(unpacked(archive(("a", 1), ("b", 1)), 10)) == 2
    with pytest.raises(ArchiveError, match="it has 3 members, more than 2"):
        unpacked(archive(("a", 1), ("b", 1), ("c", 1)), 10)
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive(("a", 1), ("a", 2))
    with pytest.raises(ArchiveError, match="same name"):
        unpacked(twice, 10)


def test_members_are_stored_or_deflated_and_not_encrypted():
    assert unpacked(archive(("a", 5), kind=zipfile.ZIP_STORED), 5) == {"a": bytes(5)}
    with pytest.raises(ArchiveError, match="member 'a' is packed in an unusual way"):
        unpacked(archive(("a", 5), kind=zipfile.ZIP_BZIP2), 5)
    content = bytearray(archive(("a", 5)).getvalue())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the directory at the end
    with pytest.raises(RuntimeError, match="encrypted"):
        unpacked(io.BytesIO(bytes(content)), 5)


def test_texts_may_have_as_many_bytes_and_lists_as_is_said():
    text = b'{"a": [1, [2, 3]]}'
    assert bounded_json(text, 270) == {"a": [1, [2, 3]]}
    with pytest.raises(TooLargeError, match="its text has 3 lists, more than 2"):
        bounded_json(text, 269)
    long = b" " * 2_500_000 + b"0"
    assert bounded_json(long, len(long)) == 0
    with pytest.raises(TooLargeError, match=r"takes 2\.5 MB, and may take 2\.25 MB"):
        bounded_json(long, 2_250_000)
