"""What minimising the tail does to held-out losses, on scikit-learn's bundled sets.

Each set is split many times; the same linear model is fitted to the mean, to ESRM(2) and to
CVaR(0.1) of the training losses, and the held-out losses are compared. Where a minority or a margin
is misfitted, the tail improves; where errors are pure noise, or the tail holds a handful of
samples, it does not, and the table says so.
Run as ``python -m benchmarks.held_out [--splits 20]``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sorel
from benchmarks.common import replace_between
from sorel import ESRM, CVaR, Mean, SpectralRiskClassifier, SpectralRiskRegressor
from sorel.datasets import make_two_populations
from sorel.metrics import TailScorer

RISKS = (Mean(), ESRM(2.0), CVaR(0.1))
TAIL = CVaR(0.1)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "choosing-a-risk.md"
MARKERS = ("<!-- held-out:start -->", "<!-- held-out:end -->")
# A penalty at which the plain fit itself generalises, so that overfitting is not the story.
L2 = 0.1


def two_populations() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_two_populations(2000, seed=0)[:2]
    return X, (y - y.mean()) / y.std()


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return X, (y - y.mean()) / y.std()


SETS = {
    "two populations (generated)": (two_populations, SpectralRiskRegressor),
    "diabetes": (diabetes, SpectralRiskRegressor),
    "breast cancer": (lambda: load_breast_cancer(return_X_y=True), SpectralRiskClassifier),
    "wine": (lambda: load_wine(return_X_y=True), SpectralRiskClassifier),
    "digits": (lambda: load_digits(return_X_y=True), SpectralRiskClassifier),
}


def held_out(name: str, splits: int) -> np.ndarray:
    """Mean and CVaR(0.1) of held-out losses for each risk, averaged over the splits."""
    load, estimator = SETS[name]
    X, y = load()
    out = np.zeros((len(RISKS), 2))
    for seed in range(splits):
        stratify = y if estimator is SpectralRiskClassifier else None
        parts = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=stratify)
        X_train, X_test, y_train, y_test = parts
        for row, risk in zip(out, RISKS, strict=True):
            model = make_pipeline(StandardScaler(), estimator(risk, l2=L2))
            model.fit(X_train, y_train)
            losses = TailScorer(Mean()).losses(model, X_test, y_test)
            row += np.mean(losses), TAIL(losses)
    return out / splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=20, help="random splits per set")
    parser.add_argument(
        "--update-docs", action="store_true", help="put the table into docs/choosing-a-risk.md"
    )
    options = parser.parse_args()
    warnings.simplefilter("error", sorel.ConvergenceWarning)
    lines = [
        "| set | mean: plain | ESRM(2) | CVaR(0.1) | worst tenth: plain | ESRM(2) | CVaR(0.1) |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for name in SETS:
        table = held_out(name, options.splits)
        cells = []
        for column in table.T:
            cells.append(f"{column[0]:.3f}")
            cells += [f"{value:.3f} ({value / column[0] - 1:+.0%})" for value in column[1:]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if options.update_docs:
        replace_between(PAGE, MARKERS, "\n".join(lines))


if __name__ == "__main__":
    main()
