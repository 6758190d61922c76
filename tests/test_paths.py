import sys

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data
from test_estimators import Interrupted

import sorel
from sorel import CVaR
from sorel.certificate import KnownCurvature, certify
from sorel.paths import snake_order

STRENGTHS = [1.0, 0.1, 0.01]


def test_warm_starts_save_passes():
    X, y = make_data("squared", 1000, 8, 2)
    risks = [f"esrm:{rho}" for rho in (0.5, 1, 1.5, 2, 3, 4, 5)]
    path = sorel.path(X, y, risks=risks, tol=1e-4)
    problems = [sorel.Problem(X, y, risk=risk, fit_intercept=True) for risk in risks]
    cold = [sorel.solve(problem, tol=1e-4).passes for problem in problems]
    assert path.passes[0] == cold[0]
    assert path.passes.sum() < sum(cold)


def test_steps_of_a_grid_go_to_neighbours():
    steps = list(snake_order(4, 3))
    assert sorted(steps) == [(i, j) for i in range(4) for j in range(3)]
    assert np.all(np.abs(np.diff(steps, axis=0)).sum(axis=1) == 1)


def test_several_classes():
    X, y = make_data("multinomial", 60, 3, 0)
    y = np.array(["a", "b", "c"])[y]
    path = sorel.path(X, y, risks=["mean", "cvar:0.5"], loss="logistic", l2=[0.1])
    model = sorel.SpectralRiskClassifier("mean", l2=0.1, tol=1e-6).fit(X, y)
    np.testing.assert_allclose(path.coefs[0], model.coef_, atol=1e-2)
    np.testing.assert_allclose(path.intercepts[0], model.intercept_, atol=1e-2)
    assert {"a:x0", "c:x2", "b:intercept"} <= set(path.to_frame())


def test_sample_weights_sparse_rows_and_l1():
    X, y = make_data("squared", 40, 3, 0)
    weight = np.random.default_rng(0).integers(1, 4, 40)
    rows = np.repeat(np.arange(40), weight)
    settings = {"risks": ["mean", "cvar:0.3"], "l1": 0.05, "tol": 1e-9}
    weighted = sorel.path(scipy.sparse.csr_array(X), y, sample_weight=weight, **settings)
    repeated = sorel.path(X[rows], y[rows], **settings)
    np.testing.assert_allclose(weighted.l2, repeated.l2)
    np.testing.assert_allclose(weighted.objective, repeated.objective, rtol=1e-8)


def test_table(monkeypatch):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    X, y = make_data("squared", 40, 2, 0)
    path = sorel.path(pd.DataFrame(X, columns=["age", "dose"]), y, risks=["mean", "esrm:2"])
    frame = path.to_frame()
    assert list(frame.columns) == [
        "risk", "l2", "objective", "gap", "relative_gap", "passes", "seconds", "converged",
        "intercept", "age", "dose",
    ]  # fmt: skip
    assert frame["risk"].tolist() == ["mean", "esrm:2.0"]
    np.testing.assert_array_equal(frame[["age", "dose"]], path.coefs)
    assert "2 points" in repr(path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert path.to_frame()["risk"] == ["mean", "esrm:2.0"]


def test_bad_grids_and_interrupts():
    X, y = make_data("squared", 40, 2, 0)
    for wrong, words in (
        ({"risks": []}, "risks is empty"),
        ({"l2": [0.1, 0.0]}, "l2 must"),
        ({"l2": "big"}, "l2 must"),
        ({"penalty": sorel.L2(1.0), "l1": 0.1}, "penalty=L2.* and l1=0.1 are both given"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            sorel.path(X, y, **wrong)
    with pytest.raises(KeyboardInterrupt):
        sorel.path(X, y, risks=["mean", "cvar:0.1"], solver=Interrupted(1), tol=0.0)


def test_a_problem_has_everything_but_the_grid():
    X, y = make_data("logistic", 80, 3, 0)
    weight = np.random.default_rng(0).integers(1, 4, 80)
    settings = {"loss": "logistic", "sample_weight": weight, "fit_intercept": True}
    problem = sorel.Problem(X, y, risk="cvar:0.5", penalty=sorel.ElasticNet(0.1, 0.01), **settings)
    grid = {"risks": ["mean", "cvar:0.5"], "l2": [1.0, 0.1], "tol": 1e-9}
    by_problem = sorel.path(problem, **grid)
    by_data = sorel.path(X, y, l1=0.01, **grid, **settings)
    np.testing.assert_allclose(by_problem.objective, by_data.objective, rtol=1e-8)
    np.testing.assert_allclose(by_problem.intercepts, by_data.intercepts, atol=1e-4)
    assert by_problem.classes.tolist() == by_data.classes.tolist()
    # Without a grid it is the problem itself, which stays as it was.
    alone = sorel.path(problem, tol=1e-9)
    assert len(alone) == 1
    assert alone.objective[0] == pytest.approx(sorel.solve(problem, tol=1e-9).objective, rel=1e-8)
    assert problem.risk == CVaR(0.5)
    assert problem.penalty == sorel.ElasticNet(0.1, 0.01)
    for extra in ({"y": y}, {"loss": "huber"}, {"l1": 0.1}, {"penalty": sorel.L2(1.0)},
                  {"sample_weight": weight}):  # fmt: skip
        with pytest.raises(TypeError, match=f"its own {next(iter(extra))}"):
            sorel.path(problem, **extra)
    with pytest.raises(TypeError, match="needs y beside X"):
        sorel.path(X)


def test_callbacks_see_every_point_and_may_end_the_path():
    X, y = make_data("squared", 80, 3, 0)
    seen = []

    def note(risk, l2, result):
        seen.append((risk, l2, result.converged, len(result.weights)))

    grid = {"risks": ["mean", "cvar:0.5"], "l2": STRENGTHS}
    whole = sorel.path(X, y, **grid, callback=note)
    assert len(seen) == len(whole) == 6
    assert all(converged and n == 80 for _, _, converged, n in seen)
    assert seen[3][:2] == (CVaR(0.5), STRENGTHS[-1])
    part = sorel.path(X, y, **grid, callback=lambda risk, l2, _: l2 < 0.5)
    np.testing.assert_array_equal(part.l2, STRENGTHS[:2])
    np.testing.assert_allclose(part.coefs, whole.coefs[:2])


def wide_data(loss="squared", n=400, d=40):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(n, d))
    y = X @ rng.normal(size=d) + rng.standard_t(3, size=n)
    return X, y if loss == "squared" else np.where(y > 0.0, 1.0, -1.0)


@pytest.mark.parametrize("risk", ["mean", "esrm:2", "cvar:0.3"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_every_point_is_the_optimum(loss, risk):
    X, y = wide_data(loss)
    found = sorel.path(X, y, risks=[risk, "extremile:2"], l2=STRENGTHS, loss=loss)
    assert found.converged.all()
    assert found.risks[::3] == [sorel.parse_risk(risk), sorel.Extremile(2.0)]
    np.testing.assert_array_equal(found.l2, STRENGTHS * 2)
    for k in range(len(found)):
        given = {"risk": found.risks[k], "loss": loss, "penalty": sorel.L2(found.l2[k])}
        problem = sorel.Problem(X, y, fit_intercept=True, **given)
        best = sorel.solve(problem, tol=1e-10)
        assert best.dual <= found.objective[k] * (1 + 1e-14)
        assert found.objective[k] - best.objective <= 1e-6 * best.objective
        w = np.append(found.coefs[k], found.intercepts[k])
        assert problem.objective(w) == pytest.approx(found.objective[k], rel=1e-12)
    again = sorel.path(X, y, risks=[risk, "extremile:2"], l2=STRENGTHS, loss=loss)
    np.testing.assert_array_equal(found.coefs, again.coefs)


@pytest.mark.parametrize("kept", ["near", "far", "singular"])
def test_certificates_hold_whatever_hessian_is_kept(kept):
    X, y = wide_data()
    problem = sorel.Problem(X, y, risk="cvar:0.4", penalty=sorel.L2(1e-3), fit_intercept=True)
    best = sorel.solve(problem, tol=1e-11)
    w_best = problem.from_user(best.w)
    rng = np.random.default_rng(12)
    noise = rng.normal(size=(41, 41))
    run = problem.for_run()
    at_best, dual = run.engine.point(w_best), run.engine.nearest_dual(best.weights)[0]
    near = 1.01 * run.engine.curvature(at_best, dual).matrix()
    matrix = {"near": near, "far": noise @ noise.T, "singular": np.zeros((41, 41))}[kept]
    for scale in (1e-1, 1e-3, 1e-6):
        point = run.engine.point(w_best + scale * rng.normal(size=41))
        for weighting in (run.engine.worst_case(point), dual):
            for refine in (np.inf, 1e-3, 1e-6):
                known = KnownCurvature(matrix)
                certificate = certify(run, point, weighting, refine=refine, known=known)
                assert certificate.dual <= best.objective
                assert certificate.gap >= certificate.primal - best.objective
    # A bound from products is about as good as one from the matrix.
    by_products = certify(run, at_best, dual, refine=1e-9, known=KnownCurvature(near))
    formed = certify(run, run.engine.point(w_best), dual, refine=1e-9)
    assert by_products.gap <= max(1.5 * formed.gap, 1e-9)
