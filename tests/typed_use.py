"""What type checkers see of the estimators; mypy reads this file with the package."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import sorel
from sorel import Result, SpectralRiskClassifier, SpectralRiskClassifierCV, SpectralRiskRegressor
from sorel.losses import Loss, Squared

Floats = NDArray[np.float64]


def use(X: Floats, y: Floats) -> None:
    regressor = SpectralRiskRegressor(risk="cvar:0.1")
    assert_type(regressor.fit(X, y), SpectralRiskRegressor)
    assert_type(regressor.predict(X), Floats)
    assert_type(regressor.coef_, Floats)
    assert_type(regressor.intercept_, float)
    assert_type(regressor.risk_weights_, Floats)
    assert_type(regressor.relative_gap_, float)
    assert_type(regressor.status_, str)
    classifier = SpectralRiskClassifier()
    assert_type(classifier.fit(X, y > 0, sample_weight=np.abs(y)), SpectralRiskClassifier)
    assert_type(classifier.predict(X), NDArray[Any])
    assert_type(classifier.predict_proba(X), Floats)
    assert_type(classifier.decision_function(X), Floats)
    assert_type(classifier.coef_, Floats)
    assert_type(classifier.intercept_, Floats)
    assert_type(classifier.classes_, NDArray[Any])
    search = SpectralRiskClassifierCV(l2s=[0.1], cv=2)
    assert_type(search.fit(X, y > 0), SpectralRiskClassifierCV)
    assert_type(search.predict_proba(X), Floats)
    loss: Loss = Squared()
    assert_type(loss.value(y, y), Floats)
    result = sorel.solve(sorel.Problem(X, y))
    assert_type(result, Result)
    assert_type(result.w, Floats)
    assert_type(sorel.path(X, y).coefs, Floats)
