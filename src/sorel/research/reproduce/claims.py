"""The paper's claims, what was measured, and a verdict computed from the numbers.

Each claim has a function of the results, and its words in ``texts.toml``. The table says "not
measured" where the run does not cover it. A run that is shorter than the full one can show that a
method arrives, and not that it never will: where the verdict rests on that, it is "not enough
passes".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from sorel.problem.risks import CVaR
from sorel.research.reproduce.plan import FIXED_RUNS, INSTABILITY, LATE_RUNS, Results
from sorel.research.reproduce.result_tables import (
    Table,
    knob_free,
    late_levels,
    make_table,
    reached,
)
from sorel.research.reproduce.settings import (
    ALL_METHODS,
    FULL_METHODS,
    LABELS,
    PAPER_METHODS,
    TARGETS,
    TEXTS,
    Settings,
    risk_label,
)

HOLDS, IN_PART, HOLDS_NOT = "holds", "holds in part", "does not hold"
NOT_MEASURED = "not measured"
NOT_ENOUGH = "not enough passes"

# Suboptimality that counts as the optimum: the paper's plots end between 1e-6 and 1e-9.
_LEVEL = TARGETS[1]

# The paper's methods but SOREL.
_RIVALS = ["sgd", "lsvrg", "prospect"]

# Sentence and verdict; None where the run does not cover the claim.
Finding = tuple[str, str] | None


@dataclass(frozen=True)
class Claim:
    """One row of the claims table."""

    source: str
    claim: str
    measured: str
    verdict: str


@lru_cache(maxsize=1)
def claims(results: Results) -> list[Claim]:
    """Every claim with its verdict."""
    rows = []
    sizes = results.settings.batch_sizes
    for name, (figures, dataset, measure) in _CLAIMS.items():
        ran = [figure for figure in results.settings.figures if figure in figures]
        finding = None
        if (ran or not figures) and (not dataset or dataset in results.settings.datasets):
            finding = measure(_Curves(results, next((sizes[f] for f in ran if f in sizes), 1)))
        source, claim = TEXTS["claims"][name]
        rows.append(Claim(source, claim, *(finding or ("-", NOT_MEASURED))))
    return rows


def claims_table(results: Results) -> Table:
    """The claims as a table of the report."""
    frame = pd.DataFrame([vars(claim) for claim in claims(results)])
    found = frame["verdict"].value_counts()
    verdicts = (HOLDS, IN_PART, HOLDS_NOT, NOT_ENOUGH, NOT_MEASURED)
    counts = ", ".join(f"{found[verdict]} {verdict}" for verdict in verdicts if verdict in found)
    return make_table("claims", frame, counts=counts)


class _Curves:
    """The curves of one batch size: a row per problem, a column per method."""

    def __init__(self, results: Results, batch: int) -> None:
        self.results, self.batch = results, batch
        self.budget = results.settings.budget(batch)

    def __getitem__(self, column: str) -> pd.DataFrame:
        table = reached(self.results)
        return table[table["batch"] == self.batch].pivot_table(
            index=["dataset", "risk"], columns="method", values=column, sort=False, aggfunc="first"
        )

    def judged(self, share: float, enough: float, some: float, certain: str = HOLDS) -> str:
        """The verdict on a share of problems; `certain` is the one that more passes leave alone."""
        verdict = _graded(share, enough, some)
        return verdict if verdict == certain else self.unless_short(verdict)

    def unless_short(self, verdict: str, pending: Any = True) -> str:
        """A verdict that only a run of the full length can give while problems are `pending`."""
        short = self.budget < Settings().budget(self.batch)
        return NOT_ENOUGH if short and np.any(pending) else verdict


def _graded(share: float, enough: float = 1.0, some: float = 0.0) -> str:
    if share >= enough:
        return HOLDS
    return IN_PART if share > some else HOLDS_NOT


def _say(sentence: str, **facts: Any) -> str:
    return str(TEXTS["measured"][sentence]).format(**facts)


def _count(which: Any) -> int:
    return int(np.sum(which))


def _passes(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "never"


def _problem(key: Any) -> str:
    name, risk = key
    return f"{name}, {risk_label(risk)}"


def _median_ratio(sentence: str, first: pd.Series, second: pd.Series) -> str:
    """The ratio of two methods' work where both arrive; empty where they never do."""
    both = np.isfinite(first) & np.isfinite(second)
    if not both.any():
        return ""
    return _say(sentence, both=_count(both), ratio=(first[both] / second[both]).median())


def _converges(curves: _Curves) -> Finding:
    arrived = np.isfinite(curves["passes_1e-06"]["sorel"])
    ends, total = curves["end"]["sorel"], len(arrived)
    text = _say(
        "converges",
        six=_count(arrived),
        nine=_count(np.isfinite(curves["passes_1e-09"]["sorel"])),
        total=total,
        budget=curves.budget,
        end=ends.max(),
        worst=_problem(ends.idxmax()),
    )
    return text, curves.judged(arrived.mean(), 1.0, 0.25)


def _best(unit: str, competitive: bool = False) -> Callable[[_Curves], Finding]:
    def measure(curves: _Curves) -> Finding:
        table = curves[f"{unit}_1e-06"]
        own, rivals = table["sorel"], table[_RIVALS].min(axis=1)
        arrived = np.isfinite(own)
        wins = _count((own <= rivals) & arrived)
        close = _count((own <= 1.5 * rivals) & arrived)
        text = _say("best", unit=unit, wins=wins, total=len(own), close=close)
        text += _median_ratio("best_ratio", own, rivals)
        good = close if competitive else wins
        return text, curves.judged(good / len(own), 0.5, 0.2)

    return measure


def _stalling(curves: _Curves) -> Finding:
    ends, parts = curves["end"], []
    for level in (_LEVEL, 1e-9):
        stuck = ends[["lsvrg", "prospect"]] > level
        both = stuck.all(axis=1)
        counts = {
            "lsvrg": _count(stuck["lsvrg"]),
            "prospect": _count(stuck["prospect"]),
            "both": _count(both),
            "tuned": _count(both & (ends["sorel"] <= level)),
            "free": _count(both & (ends["sorel-auto"] <= level)),
        }
        parts.append(_say("stalling", level=level, total=len(ends), **counts))
    share = (ends[["lsvrg", "prospect"]] > _LEVEL).mean().min()
    return "; ".join(parts), curves.judged(share, 1 / 3, 0.1, certain=HOLDS_NOT)


def _sgd_biased(curves: _Curves) -> Finding:
    ends, arrived = curves["end"]["sgd"], np.isfinite(curves["passes_1e-09"]["sgd"])
    text = _say("sgd_biased", reach=_count(arrived), **_end_levels(ends))
    return text, curves.judged((~arrived).mean(), 1.0, 0.5, certain=HOLDS_NOT)


def _smoothing(curves: _Curves) -> Finding:
    ends = curves["end"]["drago"]
    verdict = curves.judged((ends > _LEVEL).mean(), 0.9, 0.1, certain=HOLDS_NOT)
    return _say("smoothing", **_end_levels(ends)), verdict


def _end_levels(ends: pd.Series) -> dict[str, Any]:
    facts = {"median": ends.median(), "low": ends.min(), "high": ends.max()}
    return {"above": _count(ends > _LEVEL), "total": len(ends), **facts}


def _deterministic(curves: _Curves) -> Finding:
    seconds, passes = curves["seconds_1e-06"], curves["passes_1e-06"]
    stochastic = seconds[[name for name in ALL_METHODS if name not in FULL_METHODS]].min(axis=1)
    text = _say(
        "deterministic",
        wins=_count(seconds["lbfgs"] <= stochastic),
        total=len(seconds),
        above=_count(curves["lowest"]["lbfgs"] > 1e-9),
        counts=", ".join(
            f"{LABELS[name]} in {_count(passes[name] <= passes['sorel'])}"
            for name in FULL_METHODS
            if name != "lbfgs"
        ),
    )
    # The claim is judged by the best of them.
    best = seconds[list(FULL_METHODS)].min(axis=1)
    return text, _graded(1.0 - _count(best <= stochastic) / len(seconds), 0.9, 0.5)


def _single_loop(curves: _Curves) -> Finding:
    table = curves["passes_1e-06"]
    own, other = table["sorel"], table["stochastic_pd"]
    slower = _count((other > own) & np.isfinite(own))
    text = _say("single_loop", slower=slower, total=len(own), never=_count(~np.isfinite(other)))
    text += _median_ratio("single_loop_ratio", other, own)
    return text, curves.judged(slower / len(own), 0.8, 0.2)


def _power_passes(curves: _Curves) -> Finding:
    table = curves["passes_1e-06"].loc["power"]
    ours, theirs = table["sorel"], table["prospect"]
    neither = ~np.isfinite(theirs) & ~np.isfinite(ours)
    verdict = curves.unless_short(_graded((theirs < ours).mean()), neither)
    return _say("power_passes", pairs=_pairs(theirs, ours)), verdict


def _kin8nm(curves: _Curves) -> Finding:
    table = curves["passes_1e-06"].loc["kin8nm"]
    own, rivals = table["sorel"], table[_RIVALS].min(axis=1)
    arrived = np.isfinite(own)
    verdict = curves.unless_short(_graded(((own <= 2.0 * rivals) & arrived).mean()), ~arrived)
    return _say("kin8nm", pairs=_pairs(own, rivals)), verdict


def _pairs(first: pd.Series, second: pd.Series) -> str:
    return ", ".join(
        f"{risk_label(str(risk))} {_passes(first[risk])} against {_passes(second[risk])}"
        for risk in first.index
    )


def _power_time(curves: _Curves) -> Finding:
    results = curves.results
    largest = results.datasets.loc[results.datasets["n"].idxmax()]
    costs = results.costs[results.costs["dataset"] == largest["dataset"]]
    cost = costs.set_index("method")["seconds_per_pass"]
    fast, slow = cost["prospect"] / cost["sorel"], cost["prospect-projecting"] / cost["sorel"]
    text = _say("power_time", name=largest["dataset"], n=largest["n"], fast=fast, slow=slow)
    table = curves["seconds_1e-06"].loc[largest["dataset"]]
    arrived = np.isfinite(table["prospect"]) & np.isfinite(table["sorel"])
    ratio = (table["prospect"] / table["sorel"])[arrived]
    if len(ratio):
        risks = ", ".join(risk_label(str(risk)) for risk in ratio.index)
        ratios = ", ".join(f"{value:.2g}" for value in ratio)
        text += _say("power_time_ratio", ratios=ratios, risks=risks)
    if slow < 3.0:
        return text, HOLDS_NOT
    return f"{text}. The cost is a matter of implementation", HOLDS if fast >= 3.0 else IN_PART


def _batches_gain(curves: _Curves) -> Finding:
    results, large = curves.results, curves.batch
    if "2" not in results.settings.figures:
        return None
    runs = results.curves.groupby(["dataset", "risk", "batch", "method", "seed"])
    longest = runs[["passes", "seconds"]].max()
    per_pass = (longest["seconds"] / longest["passes"]).groupby(["batch", "method"]).median()
    parts, gains = [], []
    for method in ("lsvrg", "prospect", "sorel"):
        grid = results.tuning[results.tuning["method"] == method]
        best = grid.groupby(["batch", "dataset", "risk"])["passes_1e-06"].min()
        plain, batched = best[1], best[large]
        both = np.isfinite(plain) & np.isfinite(batched)
        if not both.any():
            text = _say("batches_gain_never", method=LABELS[method])
            return text, curves.unless_short(NOT_MEASURED)
        gain = (plain[both] / batched[both]).median()
        time = gain / (per_pass[large, method] / per_pass[1, method])
        gains += [gain, time]
        parts.append(_say("batches_gain_of", method=LABELS[method], gain=gain, time=time))
    verdict = _graded(sum(gain > 1.1 for gain in gains) / len(gains))
    return _say("batches_gain", parts="; ".join(parts)), verdict


def _power_batch(curves: _Curves) -> Finding:
    table = reached(curves.results)
    rows = table[(table["batch"] == curves.batch) & (table["dataset"] == "power")]
    rows = rows[rows["risk"].str.startswith("cvar") & rows["method"].isin(PAPER_METHODS)]
    if rows.empty:
        return None
    passes = rows.set_index("method")["passes_1e-06"]
    if not np.isfinite(passes).any():
        return _say("power_batch_never"), curves.unless_short(NOT_MEASURED)
    best, own = str(passes.idxmin()), passes["sorel"]
    text = _say("power_batch", own=_passes(own), best=LABELS[best], passes=_passes(passes[best]))
    if best == "sorel":
        return text, HOLDS_NOT
    return text, HOLDS if own <= 2.0 * passes[best] else IN_PART


def _proximal_term(curves: _Curves) -> Finding:
    plane = curves.results.plane
    assert plane is not None
    without, damped = (
        (np.asarray(plane["paths"][name]["objective"]) - plane["optimum"])[-50:]
        for name in ("without", "with")
    )
    text = _say(
        "proximal_term",
        count=len(plane["paths"]["with"]["w"]) - 1,
        low=without.min(),
        high=without.max(),
        end=max(damped.max(), 1e-16),
    )
    return text, HOLDS if without.min() > 1e-3 and damped.max() < _LEVEL else HOLDS_NOT


def _toy(curves: _Curves) -> Finding:
    toy = curves.results.toy
    assert toy is not None
    path = np.asarray(toy["paths"]["without"][1:])
    swings = np.all(np.abs(np.abs(path) - 1.0) < 1e-9) and np.all(path[1:] * path[:-1] < 0)
    end = abs(toy["paths"]["with"][-1])
    text = _say("toy", count=len(path), low=path.min(), high=path.max(), end=end)
    return text, HOLDS if swings else HOLDS_NOT


def _negative(curves: _Curves) -> Finding:
    results = curves.results
    sizes = results.settings.batches
    ends = pd.concat([_Curves(results, batch)["lowest"] for batch in sizes])["lbfgs"]
    error, least = ends.max(), results.least
    worst = _problem(ends.idxmax())
    text = _say("negative", error=error, worst=worst, count=len(results.curves), least=least)
    if least < -1e-12:
        return text, HOLDS_NOT
    return f"{text}, which is rounding", HOLDS if error > 1e-12 else HOLDS_NOT


def _stability(curves: _Curves) -> Finding:
    results = curves.results
    if results.late.empty:
        return None
    table = late_levels(results)
    tuned, stable, default = (table[table["run"] == run] for run in LATE_RUNS)
    lost, parts = _count(tuned["lost"]), []
    if len(tuned):
        mended = {"stable": _count(stable["lost"]), "default": _count(default["lost"])}
        facts = {"total": len(tuned), "iterations": tuned["iterations"].max(), **mended}
        parts.append(_say("stability", tuned=lost, **facts))
    fixed = table[table["run"].isin(FIXED_RUNS)].set_index("run")
    if len(fixed):
        name, risk, setting = INSTABILITY
        runs = fixed.rename(columns={"at iteration": "at"}).loc[:, ["lowest", "at", "end"]]
        labels = {"fixed paper": "stochastic", "fixed exact paper": "exact inner solves"}
        words = (_say("stability_run", label=labels[run], **runs.loc[run]) for run in labels)
        facts = {"runs": ", ".join(words), "auto": fixed.loc["fixed auto", "end"], **setting}
        parts.append(_say("stability_fixed", problem=_problem((name, risk)), **facts))
        lost += _count(fixed.loc["fixed paper", "lost"])
    if lost:
        return "; ".join(parts), HOLDS_NOT
    # What is not lost yet may be lost later: only the full length tells.
    whole = results.settings.late_iterations >= Settings().late_iterations
    return "; ".join(parts), HOLDS if whole else NOT_ENOUGH


def _knob_free(curves: _Curves) -> Finding:
    table, seconds = knob_free(curves.results, curves.batch), curves["seconds_1e-06"]
    ratio = table["ratio 1e-06"]
    text = _say(
        "knob_free",
        median=ratio.median(),
        low=ratio.min(),
        high=ratio.max(),
        grid=table["grid ratio 1e-06"].median(),
        time=(seconds["sorel-auto"] / seconds["sorel"]).median(),
        arrives=_count(np.isfinite(table["auto 1e-06"])),
        total=len(table),
        tuned=_count(np.isfinite(table["tuned 1e-06"])),
    )
    return text, HOLDS if ratio.median() > 1.0 else HOLDS_NOT


def _follows_theorem(curves: _Curves) -> Finding:
    tuning = curves.results.tuning
    chosen = tuning[tuning["chosen"] & (tuning["method"] == "sorel")]
    known = curves.results.optima.set_index(["dataset", "risk"])["G_vector"]
    # The theorem has eta_k tau_k = 1 / (2 G^2), the experiments 20 C.
    ratio = [40.0 * row.C * float(known[row.dataset, row.risk]) ** 2 for row in chosen.itertuples()]
    text = _say("follows_theorem", low=min(ratio), high=max(ratio))
    return text, HOLDS if max(ratio) <= 1.0 else IN_PART


def _cvar_weights(_: _Curves) -> Finding:
    n, alpha = 6553, 0.5
    i, x = np.arange(1, n + 1), n * (1.0 - alpha)
    printed = np.where(i > np.ceil(x), 1.0 / (n * alpha), 0.0)
    middle = (np.floor(x) < i) & (i < np.ceil(x))
    printed[middle] = 1.0 - np.floor(n * alpha) / (n * alpha)
    missing, ours = 1.0 - printed.sum(), abs(1.0 - float(CVaR(alpha).weights(n).sum()))
    text = _say("cvar_weights", middle=_count(middle), n=n, missing=missing, ours=ours)
    return text, HOLDS_NOT if abs(missing) > 1e-9 else HOLDS


def _lipschitz(curves: _Curves) -> Finding:
    constants = curves.results.optima
    ratio = constants["G_vector"] / constants["G_one"]
    text = _say("lipschitz", low=ratio.min(), high=ratio.max())
    return text, HOLDS_NOT if ratio.max() > 1.0 else HOLDS


def _smoothness(curves: _Curves) -> Finding:
    constants = curves.results.optima
    factor = constants.groupby("risk", sort=False)["n_sigma_n"].max()
    words = ", ".join(f"{risk_label(str(risk))} {value:.3g}" for risk, value in factor.items())
    return _say("smoothness", factors=words), HOLDS_NOT if factor.max() > 1.0 else HOLDS


def _sublevel(curves: _Curves) -> Finding:
    constants = curves.results.optima
    ratio = constants["G_sublevel"] / constants["G_one"]
    return _say("sublevel", low=ratio.min(), high=ratio.max()), IN_PART


# The figures, of which one must have been run, the set that must be there, and what is measured.
_CLAIMS: dict[str, tuple[str, str, Callable[[_Curves], Finding]]] = {
    "proximal_term": ("1", "", _proximal_term),
    "toy": ("1", "", _toy),
    "converges": ("2", "", _converges),
    "fewest_passes": ("2", "", _best("passes")),
    "least_time": ("2", "", _best("seconds")),
    "stalling": ("2", "", _stalling),
    "sgd_biased": ("23", "", _sgd_biased),
    "deterministic": ("23", "", _deterministic),
    "smoothing": ("23", "", _smoothing),
    "single_loop": ("23", "", _single_loop),
    "power_passes": ("2", "power", _power_passes),
    "power_time": ("2", "", _power_time),
    "kin8nm": ("2", "kin8nm", _kin8nm),
    "converges_batch": ("3", "", _converges),
    "competitive_batch": ("3", "", _best("passes", competitive=True)),
    "stalling_batch": ("3", "", _stalling),
    "power_batch": ("3", "power", _power_batch),
    "batches_gain": ("3", "", _batches_gain),
    "negative": ("23", "", _negative),
    "knob_free": ("23", "", _knob_free),
    "follows_theorem": ("23", "", _follows_theorem),
    "stability": ("23", "", _stability),
    "cvar_weights": ("", "", _cvar_weights),
    "lipschitz": ("23", "", _lipschitz),
    "smoothness": ("23", "", _smoothness),
    "sublevel": ("23", "", _sublevel),
}
