"""Small problems whose optimum lies at many kinks at once, and samples of next to no weight."""

import numpy as np
import pytest
import scipy.sparse

import sorel


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_deviations(share):
    risk = sorel.Deviation(sorel.Mixture([sorel.CVaR(0.2), sorel.Max()], [0.7, 0.3]), share)
    rng = np.random.default_rng(0)
    X, y, weight = rng.standard_normal((12, 4)), rng.standard_normal(12), rng.uniform(1, 9, 12)
    more = {"penalty": sorel.ElasticNet(1e-3, 1e-2), "sample_weight": weight}
    problem = sorel.Problem(X, y, loss="linear", risk=risk, **more)
    assert sorel.solve(problem, tol=1e-9).converged


@pytest.mark.parametrize("seed", range(3))
def test_hinges_of_separable_labels(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((19, 14)) * (rng.random((19, 14)) < 0.4)
    y = np.sign(X @ rng.standard_normal(14) + 1e-9)
    problem = sorel.Problem(X, y, loss="squared_hinge", risk="mean", penalty=sorel.L2(1e-8))
    assert sorel.solve(problem).converged


HALF = sorel.Mixture([sorel.Max(), sorel.ESRM(2.0)], [0.5, 0.5])


@pytest.mark.parametrize(("loss", "n", "d", "seed", "penalty"), [
    ("multinomial", 120, 12, 0, sorel.L2(0.01)),
    ("multinomial", 200, 30, 1, sorel.L2(0.01)),
    ("multinomial", 120, 12, 0, sorel.NonNegative(0.01)),
    ("multinomial", 120, 12, 0, sorel.ElasticNet(0.01, 0.001)),
    ("gamma", 200, 30, 2, sorel.L2(0.01)),
])  # fmt: skip
@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_samples_that_weigh_next_to_nothing(loss, n, d, seed, penalty, form):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) / np.sqrt(d)
    noisy = {
        "gamma": np.exp(z) * rng.gamma(2.0, size=n),
        "multinomial": np.digitize(z + rng.standard_normal(n), [-0.5, 0.5]),
    }
    y, weight = noisy[loss], 10.0 ** rng.uniform(-3, 3, n)
    problem = sorel.Problem(form(X), y, risk=HALF, loss=loss, penalty=penalty, sample_weight=weight)
    result = sorel.solve(problem, max_passes=5000)
    assert result.converged
    certificate = problem.certificate(result.w, result.weights)
    assert certificate.gap <= 2e-6 * problem.objective(result.w)
