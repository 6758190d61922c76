"""Generated sets, and those that scikit-learn bundles: they need neither files nor a network."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel.engines.base import FloatArray

# The loader in sklearn.datasets, what the set is for, rows and features.
BUNDLED = {
    "diabetes": ("load_diabetes", "regression", 442, 10),
    "breast_cancer": ("load_breast_cancer", "classification", 569, 30),
    "digits": ("load_digits", "classification", 1797, 64),
    "iris": ("load_iris", "classification", 150, 4),
    "wine": ("load_wine", "classification", 178, 13),
}

BUNDLED_DATASETS: tuple[str, ...] = tuple(BUNDLED)
"""Names that :func:`load_bundled` knows."""


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
    if name not in BUNDLED:
        known = ", ".join(BUNDLED_DATASETS)
        raise ValueError(f"unknown bundled dataset {name!r}; known: {known}")
    import sklearn.datasets

    loader, task, _, _ = BUNDLED[name]
    X, y = getattr(sklearn.datasets, loader)(return_X_y=True)
    dtype = np.float64 if task == "regression" else np.int64
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
        Seed of the two laws, the minority, the features and the noise.

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
    _check("n must be at least 1", n, n >= 1)
    _check("d must be at least 2 to hold two orthogonal laws", d, d >= 2)
    _check("fraction must be in [0, 1]", fraction, 0.0 <= fraction <= 1.0)
    _check("noise must be nonnegative", noise, noise >= 0.0)
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
        Seed of the law, the features and the noise.

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
    _check("n must be at least 1", n, n >= 1)
    _check("d must be at least 1", d, d >= 1)
    _check("df must be a positive number", df, 0.0 < df < np.inf)
    _check("condition must be a number of at least 1", condition, 1.0 <= condition < np.inf)
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
    _check("n must be at least 2 to hold both classes", n, n >= 2)
    _check("d must be at least 1", d, d >= 1)
    _check("fraction must be in (0, 1)", fraction, 0.0 < fraction < 1.0)
    _check("separation must be a nonnegative number", separation, 0.0 <= separation < np.inf)
    rng = np.random.default_rng(seed)
    rare = min(max(round(fraction * n), 1), n - 1)
    y = np.full(n, -1, dtype=np.int64)
    y[rng.permutation(n)[:rare]] = 1
    direction = rng.standard_normal(d)
    direction /= np.linalg.norm(direction)
    X = rng.standard_normal((n, d))
    X[y == 1] += separation * direction
    return X, y


def _check(rule: str, value: float, kept: bool) -> None:
    if not kept:
        raise ValueError(f"{rule}, got {value}")
