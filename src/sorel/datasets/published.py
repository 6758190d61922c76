"""What the sets of the paper hold: columns, checksums, and where they are published."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

# Where the sources are; a mirror or a test sets the environment variable instead.
_SOURCES = {
    "UCI": ("SOREL_UCI_URL", "https://archive.ics.uci.edu"),
    "OpenML": ("SOREL_OPENML_URL", "https://www.openml.org"),
}


class PaperDataset(NamedTuple):
    """What a set of the paper holds and where it comes from.

    `sha256` is that of the canonical CSV, `fingerprint` that of its numbers
    (:func:`dataset_fingerprint` of all columns before the target and the target).
    """

    rows: int
    columns: tuple[str, ...]
    source: str
    addresses: tuple[str, ...]
    sha256: str
    fingerprint: str
    whole: tuple[str, ...] = ()
    not_features: tuple[str, ...] = ()
    skipped_rows: int = 0

    @property
    def target(self) -> str:
        return self.columns[-1]

    @property
    def urls(self) -> list[str]:
        variable, address = _SOURCES[self.source]
        base = os.environ.get(variable) or address
        return [f"{base.rstrip('/')}/{path}" for path in self.addresses]

    def verified(self, table: FloatArray) -> bool:
        """Whether the numbers are the published ones."""
        shape = (self.rows, len(self.columns))
        return table.shape == shape and (
            dataset_fingerprint(table[:, :-1], table[:, -1]) == self.fingerprint
        )

    def to_csv(self, table: FloatArray) -> bytes:
        """The canonical file: shortest decimals that read back exactly, whole numbers without."""
        styles = [str if column not in self.whole else _whole for column in self.columns]
        lines = [",".join(self.columns)]
        for row in table.tolist():
            lines.append(",".join(style(value) for style, value in zip(styles, row, strict=True)))
        return ("\n".join(lines) + "\n").encode()


def _whole(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


# The reference experiments read yacht's first two rows as a header, hence n = 244 there.
PAPER = {
    "yacht": PaperDataset(
        308,
        (
            "longitudinal_position", "prismatic_coefficient", "length_displacement_ratio",
            "beam_draught_ratio", "length_beam_ratio", "froude_number", "residuary_resistance",
        ),
        "UCI",
        (
            "static/public/243/yacht+hydrodynamics.zip",
            "ml/machine-learning-databases/00243/yacht_hydrodynamics.data",
        ),
        sha256="7ab905e069cbb935254c9c8be544ee7fac9c451e554e82b7133ade01d606e2f7",
        fingerprint="8dfdd25057118fd462e17f1aa5164f4512ac0352744a7cd31a3a7eca18402c9d",
        skipped_rows=2,
    ),
    "energy": PaperDataset(
        768,
        (
            "relative_compactness", "surface_area", "wall_area", "roof_area", "overall_height",
            "orientation", "glazing_area", "glazing_area_distribution", "heating_load",
            "cooling_load",
        ),
        "UCI",
        (
            "static/public/242/energy+efficiency.zip",
            "ml/machine-learning-databases/00242/ENB2012_data.xlsx",
        ),
        sha256="7045e1eaa092883d00ec2fee6a4579bcd61919b7ae909ff801779d79a54d089a",
        fingerprint="d38044fc25d794a29eb87611769df21f6bafa67b0e282460d2e097d80be1c51a",
        whole=("orientation", "glazing_area_distribution"),
        not_features=("heating_load",),
    ),
    "concrete": PaperDataset(
        1030,
        (
            "cement", "blast_furnace_slag", "fly_ash", "water", "superplasticizer",
            "coarse_aggregate", "fine_aggregate", "age", "compressive_strength",
        ),
        "UCI",
        (
            "static/public/165/concrete+compressive+strength.zip",
            "ml/machine-learning-databases/concrete/compressive/Concrete_Data.xls",
        ),
        sha256="7b920f10746d13a278913ac393501ef05aa74689e4bf227863d7b85b8f2c4165",
        fingerprint="5d5212fbfcb087d5b8fe0d8d497f0f3da58169b62d001bf61e0a036a640a63c5",
        whole=("age",),
    ),
    "kin8nm": PaperDataset(
        8192,
        ("theta1", "theta2", "theta3", "theta4", "theta5", "theta6", "theta7", "theta8", "y"),
        "OpenML",
        (
            "data/v1/download/3626/kin8nm.arff",
            "data/get_csv/3626/dataset_2175_kin8nm.arff",
        ),
        sha256="e74acfb93744b300a8bca76890a2a4a2f3dedf0ea6a76a7fb353da44ee91c773",
        fingerprint="db1c99244340c5cc5f98eff3666b8cef5d157b273c23ed9001c0159bb39259d1",
    ),
    "power": PaperDataset(
        9568,
        (
            "ambient_temperature", "exhaust_vacuum", "ambient_pressure", "relative_humidity",
            "net_hourly_electrical_energy",
        ),
        "UCI",
        (
            "static/public/294/combined+cycle+power+plant.zip",
            "ml/machine-learning-databases/00294/CCPP.zip",
        ),
        sha256="f3813422c8e60cb2029c6f8d157a1efdf6c60b67e1f14e4ad393596e5de26019",
        fingerprint="eac324cf050b5bfd5e652ccaf09b7f15a4bf3407fcf21523ddcddaacde28ea88",
    ),
}  # fmt: skip


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
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
        header = [column.strip() for column in next(reader, [])]
        if not header:
            raise ValueError("it is empty")
        table = np.array([row for row in reader if row], dtype=np.float64)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{label!r} is not a table of numbers: {error}") from None
    if table.ndim != 2 or table.shape[1] != len(header):
        raise ValueError(f"{label!r} has rows that do not match its {len(header)} columns")
    return header, table
