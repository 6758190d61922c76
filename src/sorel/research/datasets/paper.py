"""The five regression sets of the paper, and their preparation for the experiments.

They travel with the package; a folder given, or ``$SOREL_DATA``, goes first, and the sources can be
asked again. Whatever file a set comes from, its numbers are known by a checksum.
"""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from sorel.engines.base import FloatArray
from sorel.research.datasets.download import fetch_table
from sorel.research.datasets.preparation import Split, split_standardized
from sorel.research.datasets.published import PAPER, PaperDataset, dataset_fingerprint, read_csv

PAPER_DATASETS: tuple[str, ...] = tuple(PAPER)
"""Names that :func:`load_paper_dataset` knows."""


def load_paper_dataset(
    name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return the training part of one of the paper's five regression sets.

    The preparation is that of the experiments: 80% of the rows (seed 42), X standardised, y
    centred and divided by its sample standard deviation, both by the training part. See
    :func:`load_paper_split` for the held-out part, and :func:`load_paper_table` for the numbers
    as published, their sources and where they are looked for.

    Parameters
    ----------
    name, folder, download
        As of :func:`load_paper_table`, which names the errors and warnings, too.

    Returns
    -------
    X_train : ndarray of shape (n, d)
    y_train : ndarray of shape (n,)

    Examples
    --------
    >>> from sorel.datasets import load_paper_dataset
    >>> X, y = load_paper_dataset("yacht")
    >>> X.shape
    (244, 6)
    """
    data = load_paper_split(name, folder, download=download)
    return data.X_train, data.y_train


def load_paper_split(
    name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = False
) -> Split:
    """Return both parts of one of the paper's five regression sets.

    The arguments, errors and warnings are those of :func:`load_paper_table`.

    Returns
    -------
    Split
        80% for training, 20% held out (seed 42). The first two rows of yacht are left out, as in
        the experiments, which read them as a header: n = 244.

    Examples
    --------
    >>> from sorel.datasets import load_paper_split
    >>> data = load_paper_split("yacht")
    >>> data.X_train.shape, data.X_test.shape
    ((244, 6), (62, 6))
    """
    X, y = load_paper_table(name, folder, download=download)
    skipped = PAPER[name].skipped_rows
    return split_standardized(X[skipped:], y[skipped:])


def load_paper_table(
    name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return one of the paper's five regression sets as it was published, in its own units.

    The sets travel with the package. ``<name>.csv`` (a header, the target last) in `folder`, or in
    the folder that the environment variable ``SOREL_DATA`` names, takes their place.

    Parameters
    ----------
    name : {"yacht", "energy", "concrete", "kin8nm", "power"}
    folder : path, optional
        Where ``<name>.csv`` is looked for first.
    download : bool, default=False
        Whether to fetch the set from its source instead of taking the copy in the package, as a
        check that the two agree: another table is refused. Spreadsheets need the extra
        ``sorel[data]``.

    Returns
    -------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)

    Raises
    ------
    FileNotFoundError
        If the set could not be downloaded, or its source has another table.
    ValueError
        If the name is unknown or a file found is not the expected one.

    Warns
    -----
    UserWarning
        If a file in `folder` or ``SOREL_DATA`` has the right shape but not the published numbers.

    Notes
    -----
    Four of the sets come from the UCI Machine Learning Repository and are licensed under CC BY 4.0:

    - yacht: J. Gerritsma, R. Onnink, A. Versluis, *Yacht Hydrodynamics*, 1981,
      doi:10.24432/C5XG7R. 308 rows, 6 features.
    - energy: A. Tsanas, A. Xifara, *Energy Efficiency*, 2012, doi:10.24432/C51307. 768 rows, 8
      features; the target is the cooling load, and the heating load is left out.
    - concrete: I-C. Yeh, *Concrete Compressive Strength*, 1998, doi:10.24432/C5PK67. 1030 rows, 8
      features.
    - power: P. Tüfekci, H. Kaya, *Combined Cycle Power Plant*, 2014, doi:10.24432/C5002N. 9568
      rows, 4 features.

    kin8nm is Delve's (Z. Ghahramani, University of Toronto, 1996; OpenML 189): 8192 rows, 8
    features.

    The sources publish archives, spreadsheets, ARFF and plain text. Formats are recognised and
    checked by content: each table found is read as numbers and accepted only if their fingerprint
    is the known one.

    Examples
    --------
    >>> from sorel.datasets import load_paper_table
    >>> X, y = load_paper_table("yacht")
    >>> X.shape, y.max()
    ((308, 6), np.float64(62.42))
    """
    if name not in PAPER:
        raise ValueError(f"unknown dataset {name!r}; known: {', '.join(PAPER)}")
    entry = PAPER[name]
    header, table = _find(f"{name}.csv", entry, folder, download)
    features = [j for j, column in enumerate(header[:-1]) if column not in entry.not_features]
    return table[:, features], table[:, -1]


def _find(
    filename: str, entry: PaperDataset, folder: str | os.PathLike[str] | None, download: bool
) -> tuple[Sequence[str], FloatArray]:
    """Header and whole table, from the first place that has them."""
    for place in (folder, os.environ.get("SOREL_DATA")):
        if place and (path := Path(place) / filename).is_file():
            return _read_given(path, entry)
    if download:
        return entry.columns, fetch_table(entry)
    file = resources.files("sorel.research.datasets") / "files" / f"{filename}.gz"
    return read_csv(gzip.decompress(file.read_bytes()), filename)


def _read_given(path: Path, entry: PaperDataset) -> tuple[list[str], FloatArray]:
    """A file that the user provides: the shape must be right, other numbers are their affair."""
    header, table = read_csv(path.read_bytes(), str(path))
    target = entry.columns[-1]
    if len(table) != entry.rows or header[-1] != target:
        raise ValueError(
            f"{str(path)!r} should have {entry.rows} rows and the target {target!r} last; "
            f"it has {len(table)} rows and {header[-1]!r} last"
        )
    if not entry.verified(table):
        warnings.warn(
            f"{str(path)!r} does not hold the numbers of the paper's experiments (checksum "
            f"{dataset_fingerprint(table[:, :-1], table[:, -1])[:12]}..., expected "
            f"{entry.fingerprint[:12]}...); results will differ",
            stacklevel=5,
        )
    return header, table
