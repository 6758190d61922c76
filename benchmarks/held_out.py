"""What minimising a tail does to held-out losses, on real sets and with l2 chosen for each risk.

Every set of ``benchmarks.real_sets`` is split at random many times, and the models of
``benchmarks.held_out_models`` are compared on the held-out rows. Differences are paired over the
splits; their intervals are those of Nadeau and Bengio, *Inference for the generalization error*,
Machine Learning 52 (2003), section 3: the corrected resampled t, which charges for training parts
that overlap.

Run as ``python -m benchmarks.held_out [--quick] [--splits 20] [--jobs 2] [--update-docs]``.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from benchmarks.common import markdown, replace_between
from benchmarks.held_out_models import (
    BOOSTER,
    BOOSTER_SHIFTED,
    CENTRED,
    COLUMNS,
    FAR_TAIL,
    FOLDS,
    L2S,
    LOGISTIC,
    LOGISTIC_TUNED,
    PLAIN,
    RISKS,
    TAIL,
    TEST_SHARE,
    TOL,
    Results,
    at_default,
    centred,
    constant_for,
    measure,
    on_booster,
    recalibrated_for,
)
from benchmarks.real_sets import CLASSIFICATION, REGRESSION, SETS, Kind, load

DOCS = Path(__file__).resolve().parents[1] / "docs"
CONFIDENCE = 0.95
QUICK_SETS = ("yacht", "wages", "breast cancer", "churn")
QUICK_SPLITS = 3


class Change(NamedTuple):
    """A difference of two models in shares of the second one's mean, and half its interval."""

    relative: float
    half: float

    @classmethod
    def between(cls, model: np.ndarray, reference: np.ndarray, column: str) -> Change:
        at = COLUMNS.index(column)
        differences, scale = model[:, at] - reference[:, at], np.mean(reference[:, at])
        splits = len(differences)
        # Nadeau and Bengio (2003): the variance of the mean of overlapping splits is taken as
        # (1 / splits + test rows / training rows) times that of one difference.
        variance = (1.0 / splits + TEST_SHARE / (1.0 - TEST_SHARE)) * np.var(differences, ddof=1)
        quantile = student.ppf(0.5 + 0.5 * CONFIDENCE, splits - 1)
        return cls(np.mean(differences) / scale, quantile * np.sqrt(variance) / scale)

    @property
    def is_gain(self) -> bool:
        return self.relative + self.half < 0.0

    @property
    def is_harm(self) -> bool:
        return self.relative - self.half > 0.0

    def __str__(self) -> str:
        text = f"{100 * self.relative:+.1f} ± {100 * self.half:.1f}"
        return f"**{text}**" if self.is_gain else text


def cell(models: dict[str, np.ndarray], label: str, reference: str, column: str) -> str:
    """The change of a column in percent, a gain in bold, "c" for models that are constant."""
    if label not in models:
        return "-"
    change = Change.between(models[label], models[reference], column)
    constant = np.mean(models[label][:, COLUMNS.index("constant")]) >= 0.5
    return f"{change}{' c' if constant else ''}"


def changes(results: Results, label: str, reference: str, column: str) -> list[Change]:
    """The change of a column on each set that has the model."""
    return [
        Change.between(models[label], models[reference], column)
        for models in results.values()
        if label in models
    ]


def middle(found: list[Change]) -> str:
    return f"{100 * np.median([change.relative for change in found]):+.1f}"


def worst(found: list[Change]) -> str:
    return f"{100 * max(change.relative for change in found):+.1f}"


def verdicts(found: list[Change]) -> str:
    """On how many sets the change is a gain, and on how many a harm, beyond the interval."""
    return f"{sum(c.is_gain for c in found)} / {sum(c.is_harm for c in found)}"


def sets_table(results: Results) -> str:
    rows = []
    for name, models in results.items():
        X, y, kind = load(name)
        mean = np.mean(models[PLAIN][:, COLUMNS.index(PLAIN)])
        score = f"R² {1.0 - 2.0 * mean:.2f}" if kind == "regression" else f"log loss {mean:.3f}"
        chosen = SETS[name]
        source = f"{chosen.package}: {chosen.item}"
        rows.append([name, str(len(y)), str(X.shape[1]), chosen.note, source, score])
    return markdown(["set", "rows", "columns", "target", "source", "plain fit, held out"], rows)


def changes_table(results: Results, labels: dict[str, str], column: str) -> str:
    rows = [
        [name, *(cell(models, label, PLAIN, column) for label in labels.values())]
        for name, models in results.items()
    ]
    return markdown(["set", *labels], rows)


def goals_table(results: Results) -> str:
    """How much of a risk's own goal a constant or a recalibration reaches."""
    rows = []
    for risk in list(RISKS)[1:]:
        slopes = changes(results, risk, recalibrated_for(risk), risk)
        rows.append(
            [
                risk,
                middle(changes(results, constant_for(risk), PLAIN, risk)),
                middle(changes(results, recalibrated_for(risk), PLAIN, risk)),
                middle(changes(results, risk, PLAIN, risk)),
                verdicts(slopes),
            ]
        )
    header = ["risk = goal", "plain + constant", "plain recalibrated", "fitted to the risk"]
    return markdown([*header, "fitted against recalibrated: better / worse"], rows)


def boosters_table(results: Results) -> str:
    tail_model, plain_model = on_booster(TAIL), on_booster(PLAIN)
    pairs = {
        "booster, mean": (BOOSTER, PLAIN, PLAIN),
        "booster, tail": (BOOSTER, PLAIN, TAIL),
        "+ constant, tail": (BOOSTER_SHIFTED, BOOSTER, TAIL),
        "plain on booster, mean": (plain_model, BOOSTER, PLAIN),
        "plain on booster, tail": (plain_model, BOOSTER, TAIL),
        "tail on booster, mean": (tail_model, BOOSTER, PLAIN),
        "tail on booster, tail": (tail_model, BOOSTER, TAIL),
    }
    rows = [[name, *(cell(m, *pair) for pair in pairs.values())] for name, m in results.items()]
    return markdown(["set", *pairs], rows)


def bias_of(results: Results, label: str) -> list[float]:
    """Mean prediction minus mean target, averaged over the splits; of sets that have one."""
    at = COLUMNS.index("bias")
    found = (abs(float(np.mean(models[label][:, at]))) for models in results.values())
    return [bias for bias in found if np.isfinite(bias)]


def defaults_table(
    results: Results, labels: dict[str, str], columns: dict[str, tuple[str, str]]
) -> str:
    """Candidates for a default, at the default l2, in columns that are each a score and a rival."""
    rows = []
    for name, label in labels.items():
        row = [name]
        for column, reference in columns.values():
            found = changes(results, label, reference, column)
            row += [f"{middle(found)} ({worst(found)})", verdicts(found)]
        bias = bias_of(results, label)
        rows.append([*row, f"{np.median(bias):.3f} ({max(bias):.3f})"])
    header = [title for column in columns for title in (column, "better / worse")]
    return markdown(["risk", *header, "bias"], rows)


def summary_table(results: dict[Kind, Results]) -> str:
    rows = []
    for risk in list(RISKS)[1:]:
        row = [risk]
        for found in results.values():
            mean, tail = (changes(found, risk, PLAIN, column) for column in (PLAIN, TAIL))
            row += [f"{middle(mean)} ({worst(mean)})", middle(tail), verdicts(tail)]
        rows.append(row)
    each = ["mean, median (worst)", f"{TAIL}, median", "better / worse"]
    header = [f"{kind}: {title}" for kind in results for title in each]
    return markdown(["risk", *header], rows)


def settings(splits: int) -> str:
    grid = ", ".join("1/n" if l2 == "auto" else f"{l2:g}" for l2 in reversed(L2S))
    return (
        f"Settings: {splits} random splits, {TEST_SHARE:.0%} of the rows held out; columns, and "
        f"targets of regression, standardised by the training part; l2 of {grid}, chosen for each "
        f"risk by {FOLDS}-fold cross-validation on that risk of the pooled losses out of fold; "
        f"solutions certified to a relative gap of {TOL:g}; changes in percent, paired over the "
        f"splits, with {CONFIDENCE:.0%} intervals by the corrected resampled t (Nadeau and Bengio, "
        "2003); boosters are scikit-learn's HistGradientBoosting with its default settings."
    )


SHOWN = {
    "plain + constant": constant_for(TAIL),
    "plain recalibrated": recalibrated_for(TAIL),
    "ESRM(2)": "ESRM(2)",
    "CVaR(0.5)": "CVaR(0.5)",
    "10% CVaR(0.1)": "10% CVaR(0.1)",
    "30% CVaR(0.1)": "30% CVaR(0.1)",
    TAIL: TAIL,
    FAR_TAIL: FAR_TAIL,
}


def report(results: Results, splits: int) -> dict[str, str]:
    """The blocks of the pages, by name."""
    by_kind: dict[Kind, Results] = {
        "regression": {name: found for name, found in results.items() if name in REGRESSION},
        "classification": {n: found for n, found in results.items() if n in CLASSIFICATION},
    }
    blocks = {"settings": settings(splits)}
    blocks["summary"] = f"{summary_table(by_kind)}\n\n{blocks['settings']}"
    blocks["sets"] = sets_table(results)
    for kind, found in by_kind.items():
        for title, column in (("mean", PLAIN), ("tail", TAIL), ("far-tail", FAR_TAIL)):
            blocks[f"{kind}-{title}"] = changes_table(found, SHOWN, column)
        blocks[f"{kind}-goals"] = goals_table(found)
        blocks[f"{kind}-boosters"] = boosters_table(found)
    candidates = {risk: at_default(risk) for risk in RISKS}
    least_squares = at_default(PLAIN)
    blocks["regression-defaults"] = defaults_table(
        by_kind["regression"],
        candidates | {centred(risk): at_default(centred(risk)) for risk in CENTRED},
        {
            "mean loss": (PLAIN, least_squares),
            TAIL: (TAIL, least_squares),
            FAR_TAIL: (FAR_TAIL, least_squares),
        },
    )
    blocks["classification-defaults"] = defaults_table(
        by_kind["classification"],
        {LOGISTIC_TUNED: LOGISTIC_TUNED, **candidates},
        {
            "mean loss": (PLAIN, LOGISTIC),
            "mean loss, against C tuned": (PLAIN, LOGISTIC_TUNED),
            TAIL: (TAIL, LOGISTIC),
            "wrong labels": ("error", LOGISTIC),
        },
    )
    return blocks


def update_docs(blocks: dict[str, str]) -> None:
    for name, text in blocks.items():
        page = "choosing-a-risk.md" if name == "summary" else "held-out.md"
        markers = f"<!-- held-out:{name}:start -->", f"<!-- held-out:{name}:end -->"
        replace_between(DOCS / page, markers, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four sets, three splits: a minute")
    parser.add_argument("--splits", type=int, default=20, help="random splits of each set")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--update-docs", action="store_true", help="put the tables into docs/")
    options = parser.parse_args()
    if options.quick and options.update_docs:
        parser.error("--update-docs needs all sets and splits: leave --quick out")
    names = QUICK_SETS if options.quick else tuple(SETS)
    splits = QUICK_SPLITS if options.quick else options.splits
    blocks = report(measure(names, splits, options.jobs), splits)
    for name, text in blocks.items():
        print(f"\n{name}\n\n{text}")
    if options.update_docs:
        update_docs(blocks)


if __name__ == "__main__":
    main()
