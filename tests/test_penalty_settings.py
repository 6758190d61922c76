"""The settings penalty, positive, l1 and l2 of estimators, searches, paths and the command line."""

import numpy as np
import pytest
from own_penalties import OwnElasticNet
from sklearn.base import clone

import sorel
from sorel import Box, ElasticNet, NonNegative, Simplex, SpectralRiskRegressorCV

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = X @ [1.0, -0.5, 0.2, 0.0] + RNG.standard_t(3, size=120)
LABELS = np.digitize(Y, [-0.5, 0.5])


def optimum(penalty, y=Y, loss="squared"):
    problem = sorel.Problem(X, y, loss=loss, penalty=penalty, fit_intercept=True)
    return sorel.solve(problem, tol=1e-9).objective


@pytest.mark.parametrize(("settings", "penalty"), [
    ({}, sorel.L2(1 / 120)),
    ({"l2": 0.1, "l1": 0.2}, ElasticNet(0.1, 0.2)),
    ({"positive": True}, NonNegative(1 / 120)),
    ({"positive": True, "l2": 0.1, "l1": 0.2}, NonNegative(0.1, 0.2)),
    ({"penalty": Simplex(0.0)}, Simplex(0.0)),
    ({"penalty": Box(0.0, -0.1, [0.5, 0.4, 0.3, 0.2])}, Box(0.0, -0.1, [0.5, 0.4, 0.3, 0.2])),
    ({"penalty": OwnElasticNet(0.1, 0.2)}, ElasticNet(0.1, 0.2)),
], ids=lambda value: value.name if isinstance(value, sorel.penalties.Penalty) else "-".join(value)
)  # fmt: skip
def test_settings_name_a_penalty(settings, penalty):
    for estimator, y, loss in (
        (sorel.SpectralRiskRegressor, Y, "squared"),
        (sorel.SpectralRiskClassifier, LABELS, "multinomial"),
    ):
        model = clone(estimator("cvar:0.5", tol=1e-8, **settings)).fit(X, y)
        assert model.objective_ == pytest.approx(optimum(penalty, y, loss), rel=2e-8)
        assert model.l2_ == penalty.l2
        assert penalty.value(model.coef_.T) < np.inf


@pytest.mark.parametrize("estimator", [sorel.SpectralRiskRegressor, sorel.SpectralRiskClassifier])
def test_contradictions_name_what_to_drop(estimator):
    for name, value in {"l2": 0.5, "l1": 0.5, "positive": True}.items():
        model = estimator(penalty=Simplex(0.0), **{name: value})
        with pytest.raises(ValueError, match=rf"Simplex.* and {name}={value} .*: drop {name}"):
            model.fit(X, LABELS)
    with pytest.raises(TypeError, match=r"penalty must be None, a penalty such as .*, got 'l2'"):
        estimator(penalty="l2").fit(X, LABELS)
    with pytest.raises(TypeError, match="positive must be True or False, got 1"):
        estimator(positive=1).fit(X, LABELS)


def test_searches_choose_among_risks_alone_under_a_penalty():
    search = SpectralRiskRegressorCV(["mean", "cvar:0.5"], penalty=Simplex(0.0), cv=3).fit(X, Y)
    assert search.best_l2_ == search.l2_ == 0.0
    assert list(search.cv_results_["param_l2"]) == [0.0, 0.0]
    assert search.coef_.sum() == pytest.approx(1.0, abs=1e-12)
    with pytest.raises(ValueError, match=r"l2s=.* are both given: drop l2s"):
        SpectralRiskRegressorCV(l2s=[0.1], penalty=Simplex(0.0)).fit(X, Y)
    with pytest.raises(ValueError, match="drop positive"):
        SpectralRiskRegressorCV(penalty=Simplex(0.0), positive=True).fit(X, Y)
    search = sorel.SpectralRiskClassifierCV(["mean"], l2s=[0.1, "auto"], positive=True, cv=3)
    search.fit(X, LABELS)
    assert list(search.cv_results_["param_l2"]) == [0.1, "auto"]
    assert search.coef_.min() == 0.0


def test_paths():
    along = sorel.path(X, Y, risks=["mean", "cvar:0.1"], penalty=Simplex(0.0))
    np.testing.assert_allclose(along.coefs.sum(axis=1), 1.0)
    np.testing.assert_array_equal(along.l2, [0.0, 0.0])
    positive = sorel.path(X, Y, l2=[0.1, 1.0], l1=0.1, positive=True, tol=1e-9)
    expected = [optimum(NonNegative(l2, 0.1)) for l2 in (0.1, 1.0)]
    np.testing.assert_allclose(positive.objective, expected, rtol=2e-9)
    stronger = sorel.path(X, Y, l2=[0.1, 1.0], penalty=Simplex(0.0), tol=1e-9)
    expected = [optimum(Simplex(l2)) for l2 in (0.1, 1.0)]
    np.testing.assert_allclose(stronger.objective, expected, rtol=2e-9)
    own = sorel.path(X, Y, risks=["mean", "cvar:0.5"], penalty=OwnElasticNet(0.1, 0.2))
    np.testing.assert_array_equal(own.l2, [0.1, 0.1])
    with pytest.raises((TypeError, ValueError), match="leave l2 out"):
        sorel.path(X, Y, l2=[0.1, 1.0], penalty=OwnElasticNet(0.1, 0.2))
