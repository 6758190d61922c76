"""Mixtures of the maximum and another risk under sample weights of many sizes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel import ESRM, Max, Mixture

HALF = Mixture([Max(), ESRM(2.0)], [0.5, 0.5])


def data(loss, n, d, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) / np.sqrt(d)
    y = {
        "squared": z + rng.standard_normal(n),
        "gamma": np.exp(z) * rng.gamma(2.0, size=n),
        "multinomial": np.digitize(z + rng.standard_normal(n), [-0.5, 0.5]),
    }[loss]
    return X, y, 10.0 ** rng.uniform(-3, 3, n)


def make(loss="squared", n=30, d=4, seed=0, risk=HALF, kind="dense", **options):
    X, y, weight = data(loss, n, d, seed)
    if kind == "sparse":
        X = scipy.sparse.csr_array(X)
    options = {"penalty": sorel.L2(0.01), "sample_weight": weight, **options}
    return sorel.Problem(X, y, risk=risk, loss=loss, **options)


@pytest.mark.parametrize(
    ("loss", "n", "d", "seed", "penalty"),
    [
        ("multinomial", 120, 12, 0, sorel.L2(0.01)),
        ("multinomial", 200, 30, 1, sorel.L2(0.01)),
        ("multinomial", 120, 12, 0, sorel.NonNegative(0.01)),
        ("multinomial", 120, 12, 0, sorel.ElasticNet(0.01, 0.001)),
        ("gamma", 200, 30, 2, sorel.L2(0.01)),
    ],
)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_samples_that_weigh_next_to_nothing(loss, n, d, seed, penalty, kind):
    problem = make(loss, n, d, seed, penalty=penalty, kind=kind)
    result = sorel.solve(problem, max_passes=5000)
    assert result.converged
    certificate = problem.certificate(result.w, result.weights)
    assert certificate.gap <= 2e-6 * problem.objective(result.w)


def test_more_columns_than_rows_and_rows_without_weight():
    X, y, weight = data("squared", 20, 80, 5)
    weight[:4] = 0.0
    problem = sorel.Problem(X, y, risk=HALF, sample_weight=weight, penalty=sorel.L2(0.1))
    result = sorel.solve(problem, "newton", tol=1e-9)
    assert result.converged
    assert not result.weights[:4].any()
    kept = sorel.Problem(X[4:], y[4:], risk=HALF, sample_weight=weight[4:], penalty=sorel.L2(0.1))
    assert result.objective == pytest.approx(sorel.solve(kept, tol=1e-9).objective, rel=2e-9)
