"""Losses that users write: served as written, refused by name, never computed as another loss."""

import math

import numpy as np
import pytest
import scipy.sparse
from helpers import RISKS, conic_risk

import sorel
import sorel._core as _core
from sorel.engines import BlocksEngine
from sorel.engines.base import UnsupportedOperationError
from sorel.losses import LOSSES, Loss, Squared
from sorel.rows import open_rows, write_blocks
from sorel.solvers.base import UnsupportedProblemError

FULL_PASSES = ["auto", "newton", "newton_cg", "continuation", "lbfgs", "subgradient"]
STOCHASTIC = ["sorel", "prospect", "lsvrg", "sgd", "saddle_saga"]


def written_again(name):
    """The formulas and facts of a built-in loss, in a class that the package does not know."""
    known = LOSSES[name]()
    facts = (
        "lower_bound", "curvature_bound", "lipschitz", "link", "is_classifier", "translates",
        "value", "derivative", "curvature", "majorant",
    )  # fmt: skip
    members = {"name": f"own {name}", **{fact: getattr(known, fact) for fact in facts}}
    return type(f"Own{type(known).__name__}", (Loss,), members)


OwnSquared, OwnLogistic = written_again("squared"), written_again("logistic")


class Doubled(Squared):
    """A subclass of a built-in loss with other formulas."""

    curvature_bound = 2.0

    def value(self, y, z):
        return (z - y) ** 2

    def derivative(self, y, z):
        return 2 * (z - y)

    def curvature(self, y, z):
        return np.full_like(z, 2.0)


class Tilted(Loss):
    """log(1 + exp(r)) - 4: below zero, and it says so or not."""

    name = "tilted"
    curvature_bound, lipschitz = 0.25, 1.0

    def __init__(self, lower_bound=-4.0):
        self.lower_bound = lower_bound

    def value(self, y, z):
        return np.logaddexp(0.0, y - z) - 4.0

    def derivative(self, y, z):
        return -1.0 / (1.0 + np.exp(z - y))

    def curvature(self, y, z):
        p = 1.0 / (1.0 + np.exp(z - y))
        return p * (1.0 - p)


def make_rows(labels=False, n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    z = X @ [1.0, -0.5, 0.3] + 0.4 * rng.standard_t(3, size=n)
    return X, np.where(z > 0, 1.0, -1.0) * rng.choice([1, -1], n, p=[0.9, 0.1]) if labels else z


@pytest.mark.parametrize("pair", [(OwnSquared(), "squared"), (OwnLogistic(), "logistic")])
@pytest.mark.parametrize("home", ["dense", "sparse", "disk"])
@pytest.mark.parametrize("solver", FULL_PASSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_written_again_gives_the_same_certificate(pair, home, solver, weighted, tmp_path):
    own, name = pair
    X, y = make_rows(own.is_classifier)
    weight = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else None
    # L-BFGS is stopped by the kinks of a risk.
    risk = sorel.Mean() if solver == "lbfgs" else sorel.ESRM(2.0)
    options = {"risk": risk, "fit_intercept": True, "sample_weight": weight, "y": y}
    if home == "disk":
        write_blocks(tmp_path / "X", X, rows_per_block=50)
        options |= {"X": open_rows(tmp_path / "X"), "engine": BlocksEngine}
    else:
        options["X"] = scipy.sparse.csr_array(X) if home == "sparse" else X
    mine, theirs = (sorel.Problem(**options, loss=loss) for loss in (own, name))
    tol = 1e-3 if solver in ("subgradient", "lbfgs") else 1e-8
    results = [sorel.solve(p, solver, tol=tol, max_passes=3000) for p in (mine, theirs)]
    assert results[0].converged, results[0].status
    assert results[0].objective == pytest.approx(results[1].objective, rel=tol)
    # The same pair is certified by either, but for rounding.
    proofs = [p.certificate(results[1].w, results[1].weights) for p in (mine, theirs)]
    assert proofs[0].primal == pytest.approx(proofs[1].primal, rel=1e-13)
    assert proofs[0].dual == pytest.approx(proofs[1].dual, rel=1e-11)


@pytest.mark.parametrize("solver", [*STOCHASTIC, "pdhg", "admm"])
@pytest.mark.parametrize("loss", [OwnSquared(), Doubled()], ids=["own", "derived"])
def test_solvers_without_the_formulas_refuse_by_name(solver, loss):
    problem = sorel.Problem(*make_rows(), loss=loss)
    with pytest.raises(UnsupportedProblemError, match=f"'{solver}' .*{loss.name}.*'newton'"):
        sorel.solve(problem, solver)
    with pytest.raises(UnsupportedOperationError, match=f"proximal map.*{loss.name}"):
        problem.engine.splitting()


def test_a_loss_of_the_table_without_compiled_formulas_is_refused(monkeypatch):
    added = type("Added", (Squared,), {"name": "added"})
    monkeypatch.setitem(sorel.losses.LOSSES, "added", added)
    with pytest.raises(ValueError, match=r"Added.*'added'.*losses.hpp"):
        sorel.Problem(*make_rows(), loss="added")
    code, one = max(_core.LOSS_CODES.values()) + 1, np.ones(1)
    table = np.zeros(1, np.int64), np.ones((4, 1))
    with pytest.raises(ValueError, match=f"code {code}"):
        _core.pool_losses(code, 1.0, 1.0, one, one, one, *table, one)


def test_a_derived_class_is_never_its_base():
    X, y = make_rows()
    problem = sorel.Problem(X, y, loss=Doubled(), penalty=sorel.L2(0.2))
    np.testing.assert_allclose(problem.losses(np.zeros(3)), y**2)
    result = sorel.solve(problem, tol=1e-10)
    half = sorel.Problem(X, y, loss="squared", penalty=sorel.L2(0.1))
    assert result.objective == pytest.approx(2 * sorel.solve(half, tol=1e-10).objective, rel=1e-9)


@pytest.mark.parametrize("risk", ["mean", "cvar", "esrm", "max"])
@pytest.mark.parametrize("bound", [-4.0, -math.inf])
def test_a_loss_below_zero_is_certified_from_outside(risk, bound):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    X, y = make_rows(n=40)
    problem = sorel.Problem(X, y, risk=RISKS[risk], loss=Tilted(bound), penalty=sorel.L2(0.05))
    result = sorel.solve(problem, tol=1e-8)
    assert result.converged, result.status
    assert result.objective < 0.0
    w, t = cp.Variable(3), cp.Variable(40)
    objective = conic_risk(RISKS[risk], t) + 0.025 * cp.sum_squares(w)
    constraints = [cp.logistic(y - X @ w) - 4.0 <= t]
    value = cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)
    assert result.objective == pytest.approx(value, rel=1e-6)
    assert result.dual <= value + 1e-7


def altered(**changes):
    return type("Odd", (OwnSquared,), changes)()


@pytest.mark.parametrize(("loss", "message"), [
    (Tilted(lower_bound=0.0), r"declares lower_bound=0, but its value is -.*mend"),
    (altered(curvature=lambda self, y, z: -np.ones_like(z)), r"Odd.curvature is -1 .*negative"),
    (altered(value=lambda self, y, z: np.sum(z)), r"Odd.value\(y, margins\) must return one"),
    (altered(name=None), "needs a `name`"),
    (altered(lower_bound="0"), "lower_bound must be a number"),
    (altered(lower_bound=math.inf), "lower_bound must be finite or -inf"),
    (altered(curvature_bound=-1.0), "curvature_bound must be a number >= 0"),
    (altered(lipschitz=math.nan), "lipschitz must be a number >= 0"),
    (altered(link="probit"), "link must be 'identity', 'log' or 'logit'"),
])  # fmt: skip
def test_declarations_and_formulas_that_make_no_sense_are_refused(loss, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sorel.solve(sorel.Problem(*make_rows(), loss=loss))


def test_values_may_be_below_their_bound_by_what_rounding_makes_of_large_ones():
    rounded = altered(value=lambda self, y, z: 1e9 * (0.5 * (z - y) ** 2 - 1e-20))
    problem = sorel.Problem(np.eye(3), [0.0, 0.0, 1.0], loss=rounded)
    assert problem.losses(np.zeros(3)).min() == -1e-11


def test_estimators_take_a_loss_of_the_user():
    X, labels = make_rows(True)
    model = sorel.SpectralRiskClassifier("cvar:0.9", loss=OwnLogistic(), tol=1e-9).fit(X, labels)
    same = sorel.SpectralRiskClassifier("cvar:0.9", tol=1e-9).fit(X, labels)
    np.testing.assert_allclose(model.predict_proba(X), same.predict_proba(X), atol=1e-5)
    with pytest.raises(ValueError, match="Only binary"):
        model.fit(X, np.arange(len(X)) % 3)
