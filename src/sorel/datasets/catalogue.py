"""The list of all sets, by name."""

from __future__ import annotations

from typing import NamedTuple

from sorel.datasets.generated import BUNDLED
from sorel.datasets.published import PAPER


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
    infos = [
        DatasetInfo(
            name,
            "paper",
            "regression",
            entry.rows,
            len(entry.columns) - len(entry.not_features) - 1,
            entry.source,
        )
        for name, entry in PAPER.items()
    ]
    infos += [
        DatasetInfo(name, "bundled", entry.task, entry.rows, entry.features, "scikit-learn")
        for name, entry in BUNDLED.items()
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
