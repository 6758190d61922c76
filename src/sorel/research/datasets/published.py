"""What the sets of the paper hold: columns, checksums, and where they are published."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sorel.engines.base import FloatArray


class PaperDataset(NamedTuple):
    """What a set of the paper holds and where it comes from.

    `fingerprint` is :func:`dataset_fingerprint` of all columns before the target and the target.
    """

    rows: int
    columns: list[str]
    source: str
    address: str
    fingerprint: str
    not_features: Sequence[str] = ()
    skipped_rows: int = 0

    def verified(self, table: FloatArray) -> bool:
        """Whether the numbers are the published ones."""
        shape = (self.rows, len(self.columns))
        return table.shape == shape and (
            dataset_fingerprint(table[:, :-1], table[:, -1]) == self.fingerprint
        )


_ENTRIES = resources.files("sorel.research.datasets") / "files" / "published.toml"
PAPER = {
    name: PaperDataset(**entry)
    for name, entry in tomllib.loads(_ENTRIES.read_text(encoding="utf-8")).items()
}


def dataset_fingerprint(X: ArrayLike, y: ArrayLike) -> str:
    """Return a checksum of the numbers in a dataset, whatever file they came from.

    It is the SHA-256 of the shape and of all values, row by row with the target last, rounded to 12
    significant digits: the same for a text file and a spreadsheet that differ in the last bits.

    Parameters
    ----------
    X : array of shape (n, d)
    y : array of shape (n,)
        Numbers; labels that are text have no fingerprint.

    Returns
    -------
    str
        64 hexadecimal digits.

    Examples
    --------
    >>> from sorel.datasets import dataset_fingerprint
    >>> dataset_fingerprint([[1.0], [2.0]], [3.0, 4.0])[:16]
    '9e656c85e8443c70'
    >>> dataset_fingerprint([[1.0], [2.0 + 1e-15]], [3, 4])[:16]
    '9e656c85e8443c70'
    """
    matrix, target = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if matrix.ndim != 2 or target.shape != matrix.shape[:1]:
        raise ValueError(
            f"X must be two-dimensional with one row per value of y, got shapes {matrix.shape} "
            f"and {target.shape}"
        )
    digest = hashlib.sha256(f"{matrix.shape[0]} {matrix.shape[1]}\n".encode())
    for first in range(0, len(target), 4096):
        rows = slice(first, first + 4096)
        # Adding zero turns -0.0 into 0.0.
        block = np.column_stack([matrix[rows], target[rows]]) + 0.0
        digest.update("\n".join(map("{:.11e}".format, block.ravel().tolist())).encode() + b"\n")
    return digest.hexdigest()


def read_csv(data: bytes, label: str) -> tuple[list[str], FloatArray]:
    """Header and numbers of a CSV file; `label` is its name in messages."""
    try:
        first, *lines = data.decode("utf-8-sig").splitlines() or [""]
        if not lines:
            raise ValueError("it has no rows")
        header = [column.strip(' "') for column in first.split(",")]
        table = (
            np.loadtxt(lines, delimiter=",", ndmin=2, quotechar='"') if lines else np.empty((0, 0))
        )
    except ValueError as error:
        raise ValueError(f"{label!r} is not a table of numbers: {error}") from None
    if table.shape[1] != len(header):
        raise ValueError(f"{label!r} has rows that do not match its {len(header)} columns")
    return header, table
