"""Data for the demo, the experiments, the benchmarks and the tests.

Three sources, all by name (:func:`list_datasets`): the five regression sets of the paper, which are
not shipped; scikit-learn's bundled sets; and generated ones. The last two always work offline. A
set of the paper is looked for as ``<name>.csv`` in a folder given, then in ``$SOREL_DATA``, then in
the user's cache, and is then downloaded from UCI or OpenML.

A download is judged by its content, not by its name or format: whatever table it holds must have
the numbers that the experiments used, by a checksum of the numbers themselves. What passes is kept
as canonical CSV; nothing else ever reaches the disk.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import time
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._files import write_atomically

__all__ = [
    "BUNDLED_DATASETS",
    "PAPER_DATASETS",
    "DatasetInfo",
    "Split",
    "dataset_fingerprint",
    "list_datasets",
    "load_bundled",
    "load_diabetes",
    "load_paper_dataset",
    "load_paper_split",
    "make_heavy_tailed",
    "make_imbalanced",
    "make_two_populations",
    "split_standardized",
]

FloatArray = NDArray[np.float64]

# Where the sources are; a mirror or a test sets the environment variable instead.
_SOURCES = {
    "UCI": ("SOREL_UCI_URL", "https://archive.ics.uci.edu"),
    "OpenML": ("SOREL_OPENML_URL", "https://www.openml.org"),
}

# Attempts at each address, the first pause between them (doubled each time), the timeouts for
# connecting and for a silent server, and the limits of one download, in seconds and bytes.
_ATTEMPTS = 3
_PAUSE = 0.5
_TIMEOUT = (10.0, 30.0)
_MAX_SECONDS = 300.0
_MAX_BYTES = 50_000_000


class _PaperDataset(NamedTuple):
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
_PAPER_DATASETS = {
    "yacht": _PaperDataset(
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
    "energy": _PaperDataset(
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
    "concrete": _PaperDataset(
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
    "kin8nm": _PaperDataset(
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
    "power": _PaperDataset(
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

PAPER_DATASETS: tuple[str, ...] = tuple(_PAPER_DATASETS)
"""Names that :func:`load_paper_dataset` knows."""


class _BundledDataset(NamedTuple):
    loader: str
    task: str
    rows: int
    features: int


_BUNDLED_DATASETS = {
    "diabetes": _BundledDataset("load_diabetes", "regression", 442, 10),
    "breast_cancer": _BundledDataset("load_breast_cancer", "classification", 569, 30),
    "digits": _BundledDataset("load_digits", "classification", 1797, 64),
    "iris": _BundledDataset("load_iris", "classification", 150, 4),
    "wine": _BundledDataset("load_wine", "classification", 178, 13),
}

BUNDLED_DATASETS: tuple[str, ...] = tuple(_BUNDLED_DATASETS)
"""Names that :func:`load_bundled` knows."""


class DatasetInfo(NamedTuple):
    """One entry of :func:`list_datasets`.

    Attributes
    ----------
    name : str
        What the loader or generator is called with, or its name.
    kind : {"paper", "bundled", "generated"}
    task : {"regression", "classification"}
    rows, features : int or None
        Size of the whole set; None for a generated one.
    source : str
        Who publishes it, or the function that makes it.
    """

    name: str
    kind: str
    task: str
    rows: int | None
    features: int | None
    source: str


class Split(NamedTuple):
    """Training and held-out data, standardised by the training part."""

    X_train: FloatArray
    X_test: FloatArray
    y_train: FloatArray
    y_test: FloatArray


def list_datasets(kind: str | None = None) -> list[DatasetInfo]:
    """List the datasets by name.

    Parameters
    ----------
    kind : {"paper", "bundled", "generated"}, optional
        Only those. The last two need no network.

    Returns
    -------
    list of DatasetInfo

    Examples
    --------
    >>> from sorel.datasets import list_datasets
    >>> [info.name for info in list_datasets("paper")]
    ['yacht', 'energy', 'concrete', 'kin8nm', 'power']
    >>> list_datasets("bundled")[0].rows
    442
    """
    kinds = ("paper", "bundled", "generated")
    if kind is not None and kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {kind!r}")
    infos = [
        DatasetInfo(
            name,
            "paper",
            "regression",
            entry.rows,
            len(entry.columns) - len(entry.not_features) - 1,
            entry.source,
        )
        for name, entry in _PAPER_DATASETS.items()
    ]
    infos += [
        DatasetInfo(name, "bundled", entry.task, entry.rows, entry.features, "scikit-learn")
        for name, entry in _BUNDLED_DATASETS.items()
    ]
    infos += [
        DatasetInfo(name, "generated", task, None, None, f"make_{name}")
        for name, task in (
            ("two_populations", "regression"),
            ("heavy_tailed", "regression"),
            ("imbalanced", "classification"),
        )
    ]
    return [info for info in infos if kind in (None, info.kind)]


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


def load_bundled(name: str) -> tuple[FloatArray, NDArray[Any]]:
    """Return one of scikit-learn's bundled sets.

    Parameters
    ----------
    name : {"diabetes", "breast_cancer", "digits", "iris", "wine"}

    Returns
    -------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
        Numbers for regression, whole-number labels 0, 1, ... for classification.

    Examples
    --------
    >>> from sorel.datasets import load_bundled
    >>> X, y = load_bundled("breast_cancer")
    >>> X.shape, sorted(set(y.tolist()))
    ((569, 30), [0, 1])
    """
    if name not in _BUNDLED_DATASETS:
        known = ", ".join(BUNDLED_DATASETS)
        raise ValueError(f"unknown bundled dataset {name!r}; known: {known}")
    import sklearn.datasets

    entry = _BUNDLED_DATASETS[name]
    X, y = getattr(sklearn.datasets, entry.loader)(return_X_y=True)
    dtype = np.float64 if entry.task == "regression" else np.int64
    return np.asarray(X, dtype=np.float64), np.asarray(y, dtype=dtype)


def load_diabetes() -> tuple[FloatArray, FloatArray]:
    """Return scikit-learn's bundled diabetes set.

    Returns
    -------
    X : ndarray of shape (442, 10)
        Age, sex, body mass index, blood pressure and six blood serum measurements.
    y : ndarray of shape (442,)
        A measure of disease progression one year later.

    Examples
    --------
    >>> from sorel.datasets import load_diabetes
    >>> X, y = load_diabetes()
    >>> X.shape, y.shape
    ((442, 10), (442,))
    """
    return load_bundled("diabetes")


def make_two_populations(
    n: int = 2000, d: int = 5, *, fraction: float = 0.1, noise: float = 0.3, seed: int = 0
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Generate a regression set in which a minority follows another law than the rest.

    The data are generated, not measured. Features are standard normal. The majority has
    ``y = x.a + noise`` with ``|a| = 1``; each sample belongs to the minority with probability
    `fraction`, and then ``y = 2 x.b + noise`` with ``|b| = 1`` and b orthogonal to a. The first
    feature of the minority is shifted by 2, so that a linear model can tell the two apart in part.

    Parameters
    ----------
    n, d : int
        Number of samples and of features; d is at least 2.
    fraction : float, default=0.1
        Probability that a sample belongs to the minority, in [0, 1].
    noise : float, default=0.3
        Standard deviation of the noise.
    seed : int, default=0
        Seed of the generator.

    Returns
    -------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
    minority : ndarray of shape (n,), bool
        Which samples follow the other law. No method sees it.

    Examples
    --------
    >>> from sorel.datasets import make_two_populations
    >>> X, y, minority = make_two_populations(n=500, d=5, seed=0)
    >>> X.shape, y.shape, bool(0.05 < minority.mean() < 0.15)
    ((500, 5), (500,), True)
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if d < 2:
        raise ValueError(f"d must be at least 2 to hold two orthogonal laws, got {d}")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    if not noise >= 0.0:
        raise ValueError(f"noise must be nonnegative, got {noise}")
    rng = np.random.default_rng(seed)
    laws, _ = np.linalg.qr(rng.standard_normal((d, 2)))
    minority = rng.random(n) < fraction
    X = rng.standard_normal((n, d))
    X[minority, 0] += 2.0
    y = np.where(minority, X @ (2.0 * laws[:, 1]), X @ laws[:, 0])
    y += noise * rng.standard_normal(n)
    return X, y, minority


def make_heavy_tailed(
    n: int = 2000, d: int = 10, df: float = 2.1, condition: float = 1.0, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Generate a linear regression set with Student-t noise.

    The data are generated, not measured. ``y = x.a + noise`` with ``|a| = 1``; the features are
    normal with a covariance whose eigenvalues fall geometrically from 1 to ``1 / condition``.

    Parameters
    ----------
    n, d : int
        Number of samples and of features.
    df : float, default=2.1
        Degrees of freedom of the noise. Its variance exists above 2, and the variance of the
        squared loss above 4 only.
    condition : float, default=1.0
        Condition number of the covariance of the features, at least 1.
    seed : int, default=0
        Seed of the generator.

    Returns
    -------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)

    Examples
    --------
    >>> from sorel.datasets import make_heavy_tailed
    >>> X, y = make_heavy_tailed(n=300, d=4, df=2.5, condition=100.0, seed=0)
    >>> X.shape, y.shape
    ((300, 4), (300,))
    """
    _check_size(n, d)
    if not 0.0 < df < np.inf:
        raise ValueError(f"df must be a positive number, got {df}")
    if not 1.0 <= condition < np.inf:
        raise ValueError(f"condition must be a number of at least 1, got {condition}")
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if condition > 1.0:
        rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
        X = X @ (rotation * np.geomspace(1.0, condition**-0.5, d)) @ rotation.T
    law = rng.standard_normal(d)
    y = X @ (law / np.linalg.norm(law)) + rng.standard_t(df, size=n)
    return X, y


def make_imbalanced(
    n: int = 2000, d: int = 10, fraction: float = 0.05, seed: int = 0, *, separation: float = 2.0
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Generate a binary classification set with a rare class.

    The data are generated, not measured. Both classes are normal with unit covariance; the means
    are `separation` apart, so that the classes overlap and no linear rule is free of errors.

    Parameters
    ----------
    n, d : int
        Number of samples and of features.
    fraction : float, default=0.05
        Share of the rare class, in (0, 1); at least one sample of either class is made.
    seed : int, default=0
        Seed of the generator.
    separation : float, default=2.0
        Distance of the means.

    Returns
    -------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
        1 for the rare class and -1 for the other.

    Examples
    --------
    >>> from sorel.datasets import make_imbalanced
    >>> X, y = make_imbalanced(n=400, d=3, fraction=0.1, seed=0)
    >>> X.shape, int((y == 1).sum())
    ((400, 3), 40)
    """
    _check_size(n, d)
    if n < 2:
        raise ValueError(f"n must be at least 2 to hold both classes, got {n}")
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"fraction must be in (0, 1), got {fraction}")
    if not 0.0 <= separation < np.inf:
        raise ValueError(f"separation must be a nonnegative number, got {separation}")
    rng = np.random.default_rng(seed)
    rare = min(max(round(fraction * n), 1), n - 1)
    y = np.full(n, -1, dtype=np.int64)
    y[rng.permutation(n)[:rare]] = 1
    direction = rng.standard_normal(d)
    direction /= np.linalg.norm(direction)
    X = rng.standard_normal((n, d))
    X[y == 1] += separation * direction
    return X, y


def _check_size(n: int, d: int) -> None:
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if d < 1:
        raise ValueError(f"d must be at least 1, got {d}")


def split_standardized(
    X: FloatArray, y: FloatArray, *, test_size: float = 0.2, seed: int = 42
) -> Split:
    """Split at random, then standardise by the training part alone.

    Columns of X get mean 0 and variance 1 (a constant column becomes 0); y is centred and divided
    by its sample standard deviation (ddof=1).

    Parameters
    ----------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
    test_size : float, default=0.2
        Share of the samples held out.
    seed : int, default=42
        Seed of the split.

    Returns
    -------
    Split
        ``(X_train, X_test, y_train, y_test)``.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.datasets import split_standardized
    >>> data = split_standardized(np.arange(20.0).reshape(10, 2), np.arange(10.0))
    >>> data.X_train.shape, data.X_test.shape
    ((8, 2), (2, 2))
    >>> bool(abs(data.y_train.mean()) < 1e-12)
    True
    """
    from sklearn.model_selection import train_test_split

    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=test_size, random_state=seed
    )
    mean, scale = X_train.mean(axis=0), X_train.std(axis=0)
    # Rounding may leave a constant column with a deviation of a few ulps.
    scale[scale <= 1e-14 * np.abs(mean)] = 1.0
    scale[scale == 0.0] = 1.0
    y_mean, y_scale = y_train.mean(), y_train.std(ddof=1)
    if not y_scale > 0.0:
        y_scale = 1.0
    return Split(
        (X_train - mean) / scale,
        (X_test - mean) / scale,
        (y_train - y_mean) / y_scale,
        (y_test - y_mean) / y_scale,
    )


def load_paper_dataset(
    name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Return the training part of one of the paper's five regression sets.

    The preparation is that of the experiments: 80% of the rows (seed 42), X standardised, y
    centred and divided by its sample standard deviation, both by the training part. See
    :func:`load_paper_split` for where the file is looked for, and for the held-out part.

    Parameters
    ----------
    name : {"yacht", "energy", "concrete", "kin8nm", "power"}
    folder : path, optional
        Where ``<name>.csv`` is looked for first.
    download : bool, default=True
        Whether to fetch a set that is on no disk here.

    Returns
    -------
    X_train : ndarray of shape (n, d)
    y_train : ndarray of shape (n,)

    Raises
    ------
    FileNotFoundError
        If the set was found nowhere and could not be downloaded.
    ValueError
        If the name is unknown or a file found is not the expected one.

    Examples
    --------
    >>> from sorel.datasets import load_paper_dataset
    >>> X, y = load_paper_dataset("yacht", "data")  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (244, 6)
    """
    data = load_paper_split(name, folder, download=download)
    return data.X_train, data.y_train


def load_paper_split(
    name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = True
) -> Split:
    """Return both parts of one of the paper's five regression sets.

    ``<name>.csv`` (a header, the target last) is looked for in `folder`, in the folder that the
    environment variable ``SOREL_DATA`` names, and in the user's cache, in this order. Failing
    these, the set is downloaded from the UCI Machine Learning Repository or from OpenML and kept in
    the cache; this needs the extra ``sorel[data]``.

    Parameters
    ----------
    name : {"yacht", "energy", "concrete", "kin8nm", "power"}
    folder : path, optional
        Where ``<name>.csv`` is looked for first.
    download : bool, default=True
        Whether to fetch a set that is on no disk here.

    Returns
    -------
    Split
        80% for training, 20% held out (seed 42). The first two rows of yacht are left out, as in
        the experiments, which read them as a header: n = 244.

    Raises
    ------
    FileNotFoundError
        If the set was found nowhere and could not be downloaded.
    ValueError
        If the name is unknown or a file found is not the expected one.

    Warns
    -----
    UserWarning
        If a file in `folder` or ``SOREL_DATA`` has the right shape but not the published numbers.

    Notes
    -----
    The sources publish archives, spreadsheets, ARFF and plain text. Formats are recognised and
    checked by content: each table found is read as numbers and accepted only if their fingerprint
    is the known one. A download is tried several times; a truncated or altered one is never kept.
    The environment variables ``SOREL_UCI_URL`` and ``SOREL_OPENML_URL`` replace the addresses of
    the two sources, for instance by a mirror.

    Examples
    --------
    >>> from sorel.datasets import load_paper_split
    >>> data = load_paper_split("yacht")  # doctest: +SKIP
    >>> data.X_train.shape, data.X_test.shape  # doctest: +SKIP
    ((244, 6), (62, 6))
    """
    if name not in _PAPER_DATASETS:
        known = ", ".join(PAPER_DATASETS)
        raise ValueError(f"unknown dataset {name!r}; known: {known}")
    entry = _PAPER_DATASETS[name]
    header, table = _find(name, entry, folder, download)
    features = [j for j, column in enumerate(header[:-1]) if column not in entry.not_features]
    table = table[entry.skipped_rows :]
    return split_standardized(table[:, features], table[:, -1])


def _find(
    name: str, entry: _PaperDataset, folder: str | os.PathLike[str] | None, download: bool
) -> tuple[Sequence[str], FloatArray]:
    """Header and whole table, from the first place that has them."""
    filename = f"{name}.csv"
    missed = []
    for label, place in (("folder", folder), ("SOREL_DATA", os.environ.get("SOREL_DATA"))):
        if not place:
            if label == "SOREL_DATA":
                missed.append("SOREL_DATA is not set")
            continue
        path = Path(place) / filename
        if path.is_file():
            return _read_given(path, entry)
        missed.append(f"{label} {str(place)!r} does not hold it")
    cache = _cache_folder()
    if cache is not None:
        found = _read_cached(cache / filename, entry)
        if found is not None:
            return entry.columns, found
        missed.append(f"the cache {str(cache)!r} has no intact copy")
    if not download:
        reason = "download=False forbids to fetch it"
    elif cache is None:
        reason = 'to download it, pip install "sorel[data]"'
    else:
        try:
            table = _download(name, entry)
        except _DownloadError as error:
            reason = f"the download failed: {error}"
        else:
            _keep(cache / filename, entry.to_csv(table))
            return entry.columns, table
    raise FileNotFoundError(
        f"{filename} is not shipped with sorel and was found nowhere: {'; '.join(missed)}; "
        f"{reason}. Put {filename} in a folder and set the environment variable SOREL_DATA to it, "
        "or try again with a network connection"
    )


def _cache_folder() -> Path | None:
    """The user's cache folder, or None without pooch, which knows where it is."""
    try:
        import pooch
    except ModuleNotFoundError:
        return None
    return Path(pooch.os_cache("sorel"))


def _read_given(path: Path, entry: _PaperDataset) -> tuple[list[str], FloatArray]:
    """A file that the user provides: the shape must be right, other numbers are their affair."""
    data = path.read_bytes()
    header, table = _read_csv(data, str(path))
    if len(table) != entry.rows or header[-1] != entry.target:
        raise ValueError(
            f"{str(path)!r} should have {entry.rows} rows and the target {entry.target!r} last; "
            f"it has {len(table)} rows and {header[-1]!r} last"
        )
    if hashlib.sha256(data).hexdigest() != entry.sha256 and not entry.verified(table):
        warnings.warn(
            f"{str(path)!r} does not hold the numbers of the paper's experiments (checksum "
            f"{dataset_fingerprint(table[:, :-1], table[:, -1])[:12]}..., expected "
            f"{entry.fingerprint[:12]}...); results will differ",
            stacklevel=5,
        )
    return header, table


def _read_cached(path: Path, entry: _PaperDataset) -> FloatArray | None:
    """The table of a cached file, or None if it is missing or not intact."""
    try:
        header, table = _read_csv(path.read_bytes(), str(path))
    except (OSError, ValueError):
        return None
    return table if tuple(header) == entry.columns and entry.verified(table) else None


def _keep(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        warnings.warn(
            f"{path.name} was downloaded but could not be kept in the cache, and will be "
            f"downloaded again next time: {error}",
            stacklevel=5,
        )


def _read_csv(data: bytes, label: str) -> tuple[list[str], FloatArray]:
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


class _DownloadError(Exception):
    """No address gave the set; the message says what each of them did."""


def _download(name: str, entry: _PaperDataset) -> FloatArray:
    """The verified table from the first address that gives it.

    Every address has its turn before the first is tried again, after a pause. One that refuses the
    request for good (404 and the like) is not asked again.
    """
    addresses = entry.urls
    failures: dict[str, str] = {}
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        for url in list(addresses):
            try:
                return _extract(_get(url), entry)
            except ModuleNotFoundError as error:
                failures[url] = f'reading it needs {error.name}: pip install "sorel[data]"'
                addresses.remove(url)
            except OSError as error:
                # All errors of requests are OSErrors; those with a status come from the server.
                status = getattr(getattr(error, "response", None), "status_code", None)
                failures[url] = f"HTTP status {status}" if status else _network_trouble(error)
                if status is not None and 400 <= status < 500 and status not in (408, 429):
                    addresses.remove(url)
            except ValueError as error:
                failures[url] = str(error)
        if not addresses:
            break
    raise _DownloadError("; ".join(f"{reason} ({url})" for url, reason in failures.items()))


def _get(url: str) -> bytes:
    """The body of one response, in memory: a download that breaks off leaves nothing behind."""
    import pooch

    body = io.BytesIO()
    fetch = pooch.HTTPDownloader(timeout=_TIMEOUT, progressbar=_Limits(body))
    fetch(url, body, None)
    return body.getvalue()


class _Limits:
    """Ends a download that takes too long or has no end, in the place of a progress bar."""

    total = 0

    def __init__(self, body: io.BytesIO) -> None:
        self._body = body
        self._deadline = time.monotonic() + _MAX_SECONDS

    def update(self, count: int) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError(f"the download took more than {_MAX_SECONDS:g} s")
        if self._body.tell() > _MAX_BYTES:
            raise OSError(f"the download has more than {_MAX_BYTES:g} bytes")

    def reset(self) -> None:
        """Nothing is drawn, so nothing is to be undone."""

    def close(self) -> None:
        """Nothing is drawn, so nothing is to be cleared."""


def _network_trouble(error: OSError) -> str:
    """What went wrong between here and the server, without the words of four layers of software."""
    from requests import exceptions

    text = " ".join(str(error).split())
    if isinstance(error, TimeoutError) or not isinstance(error, exceptions.RequestException):
        return text
    if isinstance(error, exceptions.Timeout) or "timed out" in text:
        return "the server timed out"
    if isinstance(error, exceptions.SSLError):
        return "the server's certificate was refused"
    if isinstance(error, exceptions.ChunkedEncodingError) or "IncompleteRead" in text:
        return "the download broke off"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection to the server"
    return text[:200]


# Cells are text, numbers or None.
_Rows = Iterable[Sequence[Any]]
_TABLE_SUFFIXES = (".xlsx", ".xls", ".data", ".csv", ".txt", ".arff", ".zip")


def _extract(data: bytes, entry: _PaperDataset) -> FloatArray:
    """The table in a download whose numbers are the published ones."""
    seen = []
    try:
        for label, rows in _tables(data, "the file"):
            table = _numbers(rows, len(entry.columns))
            if entry.verified(table):
                return table
            seen.append(f"{label}: {table.shape[0]} x {table.shape[1]}")
    except ModuleNotFoundError:
        raise
    except Exception as error:
        # Readers of archives and spreadsheets fail in many ways on a damaged file.
        raise ValueError(f"{len(data)} bytes were received and are damaged: {error!r}") from None
    found = f"other tables than the published one ({', '.join(seen)})" if seen else "no table"
    raise ValueError(f"{len(data)} bytes were received and hold {found}")


def _tables(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    """Every table in a file, told by its first bytes: spreadsheet, archive, ARFF or plain text."""
    if data.startswith(b"PK"):
        yield from _unzipped(data, label)
    elif data.startswith(b"\xd0\xcf\x11\xe0"):
        yield from _xls(data, label)
    else:
        yield label, _text_rows(data.decode("utf-8-sig", errors="replace"))


def _unzipped(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if "xl/workbook.xml" in archive.namelist():
            yield from _xlsx(data, label)
            return
        members = [
            member
            for member in archive.infolist()
            if PurePosixPath(member.filename).suffix.lower() in _TABLE_SUFFIXES
            and member.file_size <= _MAX_BYTES
        ]
        # Text beside a spreadsheet is a description more often than data.
        members.sort(key=lambda member: member.filename.lower().endswith((".txt", ".csv")))
        for member in members:
            yield from _tables(archive.read(member), PurePosixPath(member.filename).name)


def _xlsx(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    import openpyxl

    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    for sheet in book.worksheets:
        # The size that a file claims for a sheet may be wrong.
        sheet.reset_dimensions()
        yield f"{label} ({sheet.title})", sheet.iter_rows(values_only=True)


def _xls(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    import xlrd

    book = xlrd.open_workbook(file_contents=data, logfile=io.StringIO())
    for sheet in book.sheets():
        yield f"{label} ({sheet.name})", map(sheet.row_values, range(sheet.nrows))


def _text_rows(text: str) -> Iterator[Sequence[str]]:
    """Cells of ARFF, or of lines separated by commas, semicolons or white space."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.strip().lower() == "@data"]
    if starts:
        lines = [line for line in lines[starts[0] + 1 :] if not line.lstrip().startswith("%")]
    for line in lines:
        separator = next((mark for mark in ",;" if mark in line), None)
        yield line.split(separator)


def _numbers(rows: _Rows, columns: int) -> FloatArray:
    """The block of numbers below whatever header a table has; empty rows and columns go."""
    table: list[list[float]] = []
    for row in rows:
        cells = list(row)
        while cells and _blank(cells[-1]):
            cells.pop()
        if not cells:
            continue
        try:
            numbers = [
                float(cell.strip(" \t'\"") if isinstance(cell, str) else cell) for cell in cells
            ]
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) == columns:
            table.append(numbers)
        elif table:
            # Something else below the numbers: not the table that was looked for.
            break
    return np.array(table, dtype=np.float64).reshape(len(table), columns)


def _blank(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())
