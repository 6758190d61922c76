"""Sparse X: every operation against the dense engine, every form of input, every solver."""

import numpy as np
import pytest
import scipy.sparse
from helpers import LOSSES, make_data, make_loss
from stochastic import plan, snapshot

import sorel
from sorel.engines.csr import checked_csr

N, D = 40, 9
PENALTIES = {
    "l2": sorel.L2(0.1),
    "elastic": sorel.ElasticNet(0.1, 0.02),
    "strong l1": sorel.ElasticNet(0.1, 0.3),
    "box": sorel.Box(0.1, -0.1, 0.05),
    "box away from 0": sorel.Box(0.1, 0.02, 0.1),
    "simplex": sorel.Simplex(0.1),
}


def make_matrix(n=N, d=D, share=0.3, seed=3):
    """Dense values of a sparse matrix with an empty row and an empty column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < share)
    X[3] = 0.0
    X[:, min(4, d - 1)] = 0.0
    return X


def make_pair(X, loss="squared", penalty="l2", sparse=None, **options):
    """The same problem with X dense and sparse."""
    y = make_data(loss, len(X), 3, 0)[1]
    penalty = PENALTIES[penalty] if isinstance(penalty, str) else penalty
    options = {"risk": sorel.ESRM(2.0), "loss": make_loss(loss), "penalty": penalty, **options}
    sparse = scipy.sparse.csr_array(X) if sparse is None else sparse
    return [sorel.Problem(M, y, **options) for M in (X, sparse)]


def both(problems, operate):
    """What an operation gives on the dense and on the sparse problem must be the same."""
    dense, sparse = ([np.asarray(a) for a in operate(problem)] for problem in problems)
    for expected, found in zip(dense, sparse, strict=True):
        size = np.max(np.abs(expected))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11 * size)


def run_epoch(problem, step=0.02, steps=300, **more):
    total, (point, dual, gradient) = np.ones(problem.engine.shape), snapshot(problem)
    start, setting = point.w.copy(), plan(problem, step, steps, **more)
    steps, rng = problem.engine.stochastic(), np.random.default_rng(1)
    w = steps.epoch(point, dual, gradient, setting, rng, start, total)
    np.testing.assert_array_equal(start, point.w)
    return w, total


# Stochastic epochs.


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("intercept", [False, True])
def test_epochs_equal_dense_ones(loss, penalty, intercept):
    omega = np.random.default_rng(0).uniform(0.2, 2.0, N) if intercept else None
    problems = make_pair(make_matrix(), loss, penalty, fit_intercept=intercept, sample_weight=omega)
    more = {"center": np.full(problems[0].engine.shape, 0.1), "tau": 2.0, "sampling": "importance"}
    for batch in (1, 3):
        both(problems, lambda p, b=batch: run_epoch(p, batch=b))
        both(problems, lambda p, b=batch: run_epoch(p, batch=b, **more))

    def minibatches(problem):
        setting, rng = plan(problem, 0.02, 50, batch=7), np.random.default_rng(2)
        return [problem.engine.stochastic().minibatch_epoch(snapshot(problem)[0].w, setting, rng)]

    both(problems, minibatches)


@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("intercept", [False, True])
def test_table_methods_equal_dense_ones(loss, penalty, intercept):
    def operate(problem):
        steps, (point, dual, _) = problem.engine.stochastic(), snapshot(problem)
        for batch, nu in ((1, 0.0), (1, 0.3), (3, 0.0), (3, 0.3)):
            setting = plan(problem, 0.02, 80, batch=batch)
            rng = np.random.default_rng(batch)
            table, saddle = steps.table(point, dual), steps.table(point, dual)
            # Twice, so that the second epoch starts from the tables that the first one left.
            w = steps.prospect_epoch(table, point.w, setting, nu, rng)
            yield steps.prospect_epoch(table, w, setting, nu, rng)
            w = steps.saddle_epoch(saddle, point.w, setting, 0.01, nu, rng)
            yield steps.saddle_epoch(saddle, w, setting, 0.01, nu, rng)
            for t in (table, saddle):
                yield from (t.mean, t.slopes, t.key, problem.engine.weights(steps.table_dual(t)))

    both(make_pair(make_matrix(), loss, penalty, fit_intercept=intercept), operate)


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("proximal", [False, True])
@pytest.mark.parametrize("strength", [3.0, 30.0])
def test_strong_penalties_lose_no_digits(loss, proximal, strength):
    # Wide X and a shrinking factor far from 1, which may be negative without a proximal map: the
    # scale of the iterate is renewed often, or coefficients are brought up to date one by one.
    for d in (9, 200):
        problems = make_pair(make_matrix(d=d, share=2.0 / d), loss, sorel.L2(strength))
        both(problems, lambda p: run_epoch(p, step=0.05, proximal=proximal, steps=700))


@pytest.mark.parametrize("penalty", ["l2", "elastic"])
def test_a_diverging_epoch_is_not_hidden(penalty):
    for problem in make_pair(make_matrix(), penalty=penalty):
        with np.errstate(all="ignore"):
            w, _ = run_epoch(problem, step=1e3, steps=2000, proximal=penalty != "l2")
        assert not np.all(np.abs(w) < 1e6)


# Input.


def forms():
    X = np.round(3 * make_matrix())
    for kind in ("matrix", "array"):
        for name in ("csr", "csc", "coo", "bsr", "lil", "dok", "dia"):
            yield f"{name}_{kind}", getattr(scipy.sparse, f"{name}_{kind}")(X)
    csr = scipy.sparse.csr_array(X)
    yield "float32", csr.astype(np.float32)
    yield "int8", csr.astype(np.int8)
    wide = csr.copy()
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    yield "wide indices", wide
    backwards = csr.copy()
    for start, stop in zip(csr.indptr[:-1], csr.indptr[1:], strict=True):
        backwards.indices[start:stop] = csr.indices[start:stop][::-1]
        backwards.data[start:stop] = csr.data[start:stop][::-1]
    backwards.has_sorted_indices = False
    yield "unsorted", backwards
    twice = (np.repeat(csr.data / 2, 2), np.repeat(csr.indices, 2), 2 * csr.indptr)
    yield "repeated", scipy.sparse.csr_array(twice, shape=csr.shape)
    zeros = scipy.sparse.csr_array(np.ones_like(X))
    zeros.data[:] = X.ravel()
    yield "explicit zeros", zeros
    roomy = csr.copy()
    roomy.data = np.append(roomy.data, [np.nan, 7.0])
    roomy.indices = np.append(roomy.indices, [0, 1]).astype(roomy.indices.dtype)
    yield "spare room", roomy
    fixed = csr.copy()
    for part in (fixed.data, fixed.indices, fixed.indptr):
        part.flags.writeable = False
    yield "read-only", fixed


FORMS = dict(forms())


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_and_is_left_alone(name):
    X, given = np.round(3 * make_matrix()), FORMS[name]
    parts = ("data", "indices", "indptr") if given.format == "csr" else ()
    before, copies = given.toarray(), [getattr(given, part).copy() for part in parts]
    problems = make_pair(X, sparse=given, risk="cvar:0.3", fit_intercept=True)
    both(problems, run_epoch)
    both(problems, lambda p: [p.engine.curvature(*snapshot(p)[:2], 0.0).matrix(), snapshot(p)[2]])
    np.testing.assert_array_equal(given.toarray(), before)
    for part, copy in zip(parts, copies, strict=True):
        np.testing.assert_array_equal(getattr(given, part), copy)


def test_an_empty_matrix_leaves_the_intercept():
    y = np.arange(5.0)
    problem = sorel.Problem(scipy.sparse.csr_array((5, 3)), y, risk="mean", fit_intercept=True)
    result = sorel.solve(problem, "sorel", tol=1e-6)
    np.testing.assert_allclose(result.w, [0.0, 0.0, 0.0, 2.0], atol=1e-2)


# Arrays that do not fit each other.


def whole_matrix(form="csr"):
    return getattr(scipy.sparse, f"{form}_array")(make_matrix())


# What is wrong with CSR and CSC, as new arrays.
BREAKS = {
    "short data": lambda X: {"data": X.data[:-3]},
    "short indices": lambda X: {"indices": X.indices[:-3]},
    "late start": lambda X: {"indptr": np.append(2, X.indptr[1:])},
    "large index": lambda X: {"indices": np.append(X.indices[:-1], np.int32(2**31 - 1))},
    "negative index": lambda X: {"indices": np.append(np.int32(-(2**31)), X.indices[1:])},
    "falling indptr": lambda X: {"indptr": np.insert(X.indptr[:-1], 3, X.indptr[-1])},
    "beyond the end": lambda X: {"indptr": np.append(X.indptr[:-1], np.int32(2**30))},
    "short indptr": lambda X: {"indptr": X.indptr[:-1]},
    "float indices": lambda X: {"indices": X.indices.astype(float)},
    "flat indptr": lambda X: {"indptr": X.indptr[:, None]},
    "square data": lambda X: {"data": X.data[None]},
}


def broken():
    """Matrices of all formats, each with one thing wrong, by a name for it."""
    blocks = scipy.sparse.bsr_array(np.ones((N, 6)), blocksize=(2, 3))
    cases = {f"{form}, {what}": (whole_matrix(form), BREAKS[what])
             for form in ("csr", "csc") for what in BREAKS}  # fmt: skip
    cases["coo, row"] = (whole_matrix("coo"), lambda X: {"row": X.row + 1000})
    cases["coo, col"] = (whole_matrix("coo"), lambda X: {"col": X.col + 1000})
    cases["coo, short data"] = (whole_matrix("coo"), lambda X: {"data": X.data[:4]})
    cases["bsr, large index"] = (blocks.copy(), lambda X: {"indices": X.indices + 9})
    cases["bsr, short data"] = (blocks.copy(), BREAKS["short data"])
    cases["dia, short offsets"] = (whole_matrix("dia"), lambda X: {"offsets": X.offsets[:2]})
    for name, (X, change) in cases.items():
        for part, array in change(X).items():
            setattr(X, part, array)
        yield pytest.param(X, id=name)


@pytest.mark.parametrize("X", list(broken()))
def test_arrays_that_do_not_fit_are_refused_everywhere(X):
    y = np.linspace(0.0, 1.0, N)
    other = np.random.default_rng(1).normal(size=(N, X.shape[1]))
    fitted = sorel.SpectralRiskRegressor().fit(other, y)
    for use in (
        lambda: sorel.Problem(X, y),
        lambda: sorel.SpectralRiskRegressor().fit(X, y),
        lambda: sorel.SpectralRiskClassifier().fit(X, y > 0.5),
        lambda: sorel.SpectralRiskPortfolio().fit(X),
        lambda: fitted.predict(X),
    ):
        with pytest.raises(ValueError, match="not a valid"):
            use()


def test_what_is_wrong_is_said_in_numbers():
    X = whole_matrix()
    assert checked_csr(X) is X
    X.indptr = X.indptr[:-1]
    with pytest.raises(ValueError, match=f"its indptr has {N} values, not {N + 1}"):
        checked_csr(X)
    X = scipy.sparse.coo_array((np.ones(2), ([0, N - 1], [0, D - 1])), shape=(N, D))
    assert checked_csr(X).shape == (N, D)
    X.coords = np.array([0, N]), np.array([0, D - 1])
    with pytest.raises(ValueError, match=rf"row has an index outside 0\.\.{N - 1};"):
        checked_csr(X)
    X = whole_matrix("bsr")
    for shape in ((4, 0, 1), (4, 1, 2), (4,)):
        X.data = np.zeros(shape)
        with pytest.raises(ValueError, match="do not fill the shape"):
            checked_csr(X)
