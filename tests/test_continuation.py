"""Newton's method by way of easier problems: the worst of losses that grow like exponentials."""

from __future__ import annotations

import numpy as np
import pytest

import sorel


def worst_of_exponentials(seed, loss, risk=None, weight=None, shape=(40, 5), factor=1e6):
    rng = np.random.default_rng(seed)
    X = factor * rng.standard_normal(shape)
    y = 1.0 + rng.poisson(3.0, shape[0])
    return sorel.Problem(
        X,
        y,
        risk=risk or sorel.Max(),
        loss=loss,
        penalty=sorel.Simplex(1e-3),
        fit_intercept=True,
        sample_weight=weight,
    )


@pytest.mark.parametrize("loss", ["gamma", "poisson"])
@pytest.mark.parametrize("risk", [sorel.Max(), sorel.CVaR(0.01)], ids=repr)
def test_weights_of_one_and_of_a_millionth(loss, risk):
    """Samples far up the exponential balance others whose losses are all but linear."""
    for seed in range(2):
        problem = worst_of_exponentials(seed, loss, risk)
        result = sorel.solve(problem)
        assert result.converged, result.status
        smallest = result.weights[result.weights > 0.0].min()
        assert smallest < 1e-4, "the problem is not the one meant"


def test_the_measure_changes_steps_and_nothing_else():
    weight = np.r_[np.zeros(3), np.ones(37)]
    problem = worst_of_exponentials(0, "gamma", weight=weight)
    w = problem.start()
    evened = problem.evened(w)
    assert evened is not None
    measure = evened.sample_weight
    assert np.array_equal(measure > 0.0, weight > 0.0)
    # Amounts above the prediction are on the steep side.
    steep = (problem.engine.stored()[0] @ w[:-1] < 0.0) & (weight > 0.0)
    assert 0 < steep.sum() < 37
    assert np.ptp(measure[steep]) == 0.0 < measure[steep].max() < 1e-3 * measure.max()
    lam = np.where(steep, 1e-7, 0.0)
    lam[np.argmax(measure)] = 1.0 - lam.sum()
    u = w + np.r_[np.zeros(5), 3e6]
    own, other = (p.certificate(u, lam) for p in (problem, evened))
    assert other.primal == pytest.approx(own.primal, rel=1e-12)
    assert other.dual == pytest.approx(own.dual, rel=1e-9)


def test_where_measures_would_not_help():
    w = np.r_[np.full(5, 0.2), 0.0]
    assert worst_of_exponentials(0, "gamma").evened(w) is not None
    assert worst_of_exponentials(0, "gamma", sorel.CVaR(0.5)).evened(w) is None
    assert worst_of_exponentials(0, "squared").evened(w) is None
    # No loss is steep, or all are.
    assert worst_of_exponentials(0, "gamma").evened(w + np.r_[np.zeros(5), 1e9]) is None
    assert worst_of_exponentials(0, "poisson").evened(w + np.r_[np.zeros(5), 1e9]) is None
    # The problem has the data of somebody else's engine.
    problem = worst_of_exponentials(0, "gamma")
    assert sorel.Problem.from_engine(problem.engine, problem.penalty).evened(w) is None
