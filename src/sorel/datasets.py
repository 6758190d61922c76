"""Data for the demo, the benchmarks and the tests.

One bundled set (diabetes), one generated set with two populations, and a reader for the five
regression sets of the paper, which are not shipped: it looks for their CSV files in a folder.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PAPER_DATASETS",
    "Split",
    "load_diabetes",
    "load_paper_dataset",
    "make_two_populations",
    "split_standardized",
]

FloatArray = NDArray[np.float64]


class _PaperDataset(NamedTuple):
    rows: int
    target: str
    not_features: tuple[str, ...] = ()
    skipped_rows: int = 0


# The reference experiments read yacht's first two rows as a header, hence n = 244 there.
_PAPER_DATASETS = {
    "yacht": _PaperDataset(308, "residuary_resistance", skipped_rows=2),
    "energy": _PaperDataset(768, "cooling_load", not_features=("heating_load",)),
    "concrete": _PaperDataset(1030, "compressive_strength"),
    "kin8nm": _PaperDataset(8192, "y"),
    "power": _PaperDataset(9568, "net_hourly_electrical_energy"),
}

PAPER_DATASETS: tuple[str, ...] = tuple(_PAPER_DATASETS)
"""Names that :func:`load_paper_dataset` knows."""


class Split(NamedTuple):
    """Training and held-out data, standardised by the training part."""

    X_train: FloatArray
    X_test: FloatArray
    y_train: FloatArray
    y_test: FloatArray


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
    from sklearn.datasets import load_diabetes as load

    X, y = load(return_X_y=True)
    return np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)


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
    name: str, folder: str | os.PathLike[str] | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the training part of one of the paper's five regression sets.

    The preparation is that of the experiments: 80% of the rows (seed 42), X standardised, y
    centred and divided by its sample standard deviation, both by the training part.

    Parameters
    ----------
    name : {"yacht", "energy", "concrete", "kin8nm", "power"}
    folder : path, optional
        Where ``<name>.csv`` is. Defaults to the environment variable ``SOREL_DATA``.

    Returns
    -------
    X_train : ndarray of shape (n, d)
    y_train : ndarray of shape (n,)

    Raises
    ------
    FileNotFoundError
        If no folder is given or it does not hold the file.
    ValueError
        If the name is unknown or the file is not the expected one.

    Examples
    --------
    >>> from sorel.datasets import load_paper_dataset
    >>> X, y = load_paper_dataset("yacht", "data")  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (244, 6)
    """
    if name not in _PAPER_DATASETS:
        known = ", ".join(PAPER_DATASETS)
        raise ValueError(f"unknown dataset {name!r}; known: {known}")
    expected = _PAPER_DATASETS[name]
    header, table = _read_csv(_locate(f"{name}.csv", folder))
    if len(table) != expected.rows or header[-1] != expected.target:
        raise ValueError(
            f"{name}.csv should have {expected.rows} rows and the target {expected.target!r} last; "
            f"it has {len(table)} rows and {header[-1]!r} last"
        )
    features = [j for j, column in enumerate(header[:-1]) if column not in expected.not_features]
    table = table[expected.skipped_rows :]
    data = split_standardized(table[:, features], table[:, -1])
    return data.X_train, data.y_train


def _locate(filename: str, folder: str | os.PathLike[str] | None) -> Path:
    if folder is None:
        folder = os.environ.get("SOREL_DATA")
        if not folder:
            raise FileNotFoundError(
                f"{filename} is not shipped with sorel: pass the folder that holds it, "
                "or set the environment variable SOREL_DATA to it"
            )
    path = Path(folder) / filename
    if not path.is_file():
        raise FileNotFoundError(
            f"no file {str(path)!r}: pass the folder that holds {filename}, or set SOREL_DATA to it"
        )
    return path


def _read_csv(path: Path) -> tuple[list[str], FloatArray]:
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = [column.strip() for column in next(reader, [])]
        if not header:
            raise ValueError(f"{str(path)!r} is empty")
        try:
            table = np.array([row for row in reader if row], dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"{str(path)!r} is not a table of numbers: {error}") from None
    if table.ndim != 2 or table.shape[1] != len(header):
        raise ValueError(f"{str(path)!r} has rows that do not match its {len(header)} columns")
    return header, table
