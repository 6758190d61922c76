"""The preparation of all experiments: a random split, standardised by its training part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sorel.engines.base import FloatArray


class Split(NamedTuple):
    """Training and held-out data, standardised by the training part.

    Examples
    --------
    >>> from sorel.datasets import load_paper_split
    >>> split = load_paper_split("yacht")
    >>> split.X_train.shape, split.X_test.shape
    ((244, 6), (62, 6))
    """

    X_train: FloatArray
    X_test: FloatArray
    y_train: FloatArray
    y_test: FloatArray


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
    y_mean, y_scale = y_train.mean(), y_train.std(ddof=1)
    if not y_scale > 0.0:
        y_scale = 1.0
    return Split(
        (X_train - mean) / scale,
        (X_test - mean) / scale,
        (y_train - y_mean) / y_scale,
        (y_test - y_mean) / y_scale,
    )
