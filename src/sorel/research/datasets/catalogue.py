"""The list of all sets, by name."""

from __future__ import annotations

from typing import NamedTuple

from sorel.research.datasets.generated import BUNDLED
from sorel.research.datasets.published import PAPER


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

    Examples
    --------
    >>> from sorel.datasets import list_datasets
    >>> list_datasets("paper")[0].task
    'regression'
    """

    name: str
    kind: str
    task: str
    rows: int | None
    features: int | None
    source: str


def list_datasets(kind: str | None = None) -> list[DatasetInfo]:
    """List the datasets by name.

    Parameters
    ----------
    kind : {"paper", "bundled", "generated"}, optional
        Only those.

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
    infos = []
    for name, paper in PAPER.items():
        features = len(paper.columns) - len(paper.not_features) - 1
        infos.append(DatasetInfo(name, "paper", "regression", paper.rows, features, paper.source))
    for name, (_, task, rows, features) in BUNDLED.items():
        infos.append(DatasetInfo(name, "bundled", task, rows, features, "scikit-learn"))
    for name in ("two_populations", "heavy_tailed", "imbalanced"):
        task = "classification" if name == "imbalanced" else "regression"
        infos.append(DatasetInfo(name, "generated", task, None, None, f"make_{name}"))
    return [info for info in infos if kind in (None, info.kind)]
