"""Whether a fit ended at the constant model, and at which level it would start to learn.

Where labels are noisy, the worst share of the losses is made of rows that no model can predict. If
that share is small enough, the best that can be done about it is to give every row the same
prediction: p = 1/2 everywhere has the loss log 2 everywhere, and no tail. Such an optimum is right
and useless, so a fit that ends there says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel._lib.defaults import MAX_PASSES, MODEL_TOL
from sorel._lib.devices import is_tensor, to_numpy
from sorel.engines.rows import RowSource
from sorel.problem.problem import Problem
from sorel.problem.risks import CVaR, Mean, Risk, spelled
from sorel.solvers.solve import solve_quietly

FloatArray = NDArray[np.float64]

# Standard deviation of margins below which predictions count as constant: 0.1 moves a probability
# by at most 2.5%.
MARGIN_SPREAD = 0.1
# The same of predicted numbers, as a share of the standard deviation of the targets.
TARGET_SPREAD = 0.02

# Rows that are looked at.
_SAMPLE = 10_000
# Fits that search for a level at which the model learns, after the one to the mean.
_BISECTIONS = 6
# Features from which on the search is no longer cheap.
_MAX_FEATURES = 500


class ConstantModelWarning(UserWarning):
    """The optimum is (nearly) the constant model: predictions hardly depend on X."""


class Sample(NamedTuple):
    """Some rows, in memory, with their targets and weights."""

    X: Any
    y: NDArray[Any]
    sample_weight: FloatArray | None


class Level(NamedTuple):
    """Where a model starts to learn: a risk, where one was found, and whether the mean does."""

    risk: Risk | None
    mean_learns: bool | None


def sample_rows(X: Any, y: NDArray[Any], sample_weight: FloatArray | None) -> Sample:
    """Up to 10 000 random rows; of rows on disk, runs of neighbours."""
    n = X.shape[0]
    if isinstance(X, RowSource):
        run = min(n, 1000)
        starts = np.linspace(0, n - run, max(1, min(_SAMPLE, n) // run)).astype(np.int64)
        part: Any = np.concatenate([X.read(start, start + run) for start in starts.tolist()])
        rows = np.concatenate([np.arange(start, start + run) for start in starts])
    elif n <= _SAMPLE and not is_tensor(X):
        return Sample(X, y, sample_weight)
    else:
        rows = np.sort(np.random.default_rng(0).choice(n, min(n, _SAMPLE), replace=False))
        if is_tensor(X):
            # Torch takes longer to import than all the rest.
            from sorel.estimators.tensor_data import host_rows

            part = host_rows(X, rows)
        else:
            part = X[rows]
    return Sample(part, to_numpy(y[rows]), None if sample_weight is None else sample_weight[rows])


def margin_spread(scores: FloatArray) -> float:
    """Deviation of the margins from their mean."""
    return float(np.sqrt(np.mean((scores - scores.mean(axis=0)) ** 2)))


def first_level(problem: Problem, sample: Sample, learns: Callable[[FloatArray], bool]) -> Level:
    """The smallest share of worst losses whose mean a fit to the sample learns from, roughly.

    Parameters
    ----------
    problem : Problem
        One whose optimum is constant.
    sample : Sample
        Some of its rows, to fit to.
    learns : callable
        Tells from fitted parameters whether predictions vary.

    Returns
    -------
    Level
        Without a risk where not even the mean learns, or where finding out would not be cheap.
    """
    risk = problem.risk
    if isinstance(risk, Mean):
        return Level(None, False)
    if sample.X.shape[1] > _MAX_FEATURES:
        return Level(None, None)
    settings: dict[str, Any] = {"loss": problem.loss, "penalty": problem.penalty}
    settings |= {"fit_intercept": problem.fit_intercept, "sample_weight": sample.sample_weight}

    def tried(candidate: Risk) -> bool:
        part = Problem(sample.X, sample.y, risk=candidate, **settings)
        return learns(solve_quietly(part, "auto", MODEL_TOL, MAX_PASSES)[0].w)

    try:
        if not tried(Mean()):
            return Level(None, False)
        low, high = risk.effective_share(len(sample.y)), 1.0
        for _ in range(_BISECTIONS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if tried(CVaR(middle)) else (middle, high)
    except ValueError:  # such as a sample with one class only
        return Level(None, None)
    share = math.ceil(100.0 * high) / 100.0
    return Level(Mean() if share == 1.0 else CVaR(share), True)


def advice(risk: Risk, level: Level) -> str:
    """What happened, and what to do about it, in words that serve Python and the command line."""
    happened = (
        "the fitted model is (nearly) constant: its predictions hardly depend on X. For "
        f"{spelled(risk)} that is the optimum"
    )
    if level.mean_learns is False:
        return (
            f"{happened}. Not even the mean of the losses gains from X: lower l2 or l1, scale the "
            "columns of X, or look for features that tell more"
        )
    reason = (
        ", as happens where noise makes up the tail; use a milder risk that weighs more of the rows"
    )
    if level.risk is None:
        return f"{happened}{reason}, such as mean, or a CVaR of a larger share"
    if isinstance(level.risk, Mean):
        return f"{happened}{reason}: here only the mean, or hardly anything beyond it, learns"
    return f"{happened}{reason}: it starts to learn at about {level.risk.spec}"
