"""Sparse matrices whose arrays do not fit are refused wherever one can be given."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel.engines import DenseEngine, SparseEngine, Spec, make_engine
from sorel.engines.csr import check_indices, checked_csr
from sorel.losses import Multinomial, Squared

N, D = 30, 7


def make_matrix(form="csr"):
    values = np.random.default_rng(0).normal(size=(N, D))
    values[np.abs(values) < 0.8] = 0.0
    return getattr(scipy.sparse, f"{form}_array")(values)


def broken():
    """Matrices of all formats, each with one thing wrong, by a name for it."""
    for form in ("csr", "csc"):
        for what in (
            "short data", "short indices", "late start", "no entries", "large index",
            "negative index", "falling indptr", "beyond the end", "short indptr", "long indptr",
            "float indices", "float indptr", "flat indptr", "square data",
        ):  # fmt: skip
            X = make_matrix(form)
            if what == "short data":
                X.data = X.data[:-3]
            elif what == "short indices":
                X.indices = X.indices[:-3]
            elif what == "late start":
                X.indptr[0] = 2
            elif what == "no entries":
                X.data, X.indices = X.data[:0], X.indices[:0]
            elif what == "large index":
                X.indices[-1] = 2**31 - 1
            elif what == "negative index":
                X.indices[0] = -(2**31)
            elif what == "falling indptr":
                X.indptr[3] = X.indptr[5] + 1
            elif what == "beyond the end":
                X.indptr[-1] = 2**30
            elif what == "short indptr":
                X.indptr = X.indptr[:-1]
            elif what == "long indptr":
                X.indptr = np.append(X.indptr, X.indptr[-1])
            elif what == "float indices":
                X.indices = X.indices.astype(float)
            elif what == "float indptr":
                X.indptr = X.indptr.astype(float)
            elif what == "flat indptr":
                X.indptr = X.indptr[:, None]
            else:
                X.data = X.data[None]
            yield pytest.param(X, id=f"{form}, {what}")
    for what in ("row", "col"):
        X = make_matrix("coo")
        getattr(X, what)[2] = 1000
        yield pytest.param(X, id=f"coo, {what}")
    X = make_matrix("coo")
    X.data = X.data[:4]
    yield pytest.param(X, id="coo, short data")
    X = scipy.sparse.bsr_array(np.ones((N, 6)), blocksize=(2, 3))
    X.indices[1] = 9
    yield pytest.param(X, id="bsr, large index")
    X = scipy.sparse.bsr_array(np.ones((N, 6)), blocksize=(2, 3))
    X.data = X.data[:3]
    yield pytest.param(X, id="bsr, short data")
    X = make_matrix("dia")
    X.offsets = X.offsets[:2]
    yield pytest.param(X, id="dia, short offsets")


@pytest.mark.parametrize("X", list(broken()))
def test_arrays_that_do_not_fit_are_refused_everywhere(X):
    y = np.linspace(0.0, 1.0, N)
    d = X.shape[1]
    fitted = sorel.SpectralRiskRegressor().fit(np.random.default_rng(1).normal(size=(N, d)), y)
    with pytest.raises(ValueError, match="not a valid"):
        check_indices(X)
    with pytest.raises(ValueError, match="not a valid"):
        sorel.Problem(X, y)
    with pytest.raises(ValueError, match="not a valid"):
        sorel.Problem(X, y, engine=SparseEngine)
    with pytest.raises(ValueError, match="not a valid"):
        make_engine(X, Spec(y, Squared(), sorel.Mean()))
    for model in (sorel.SpectralRiskRegressor(), sorel.QuantileRegressor(), sorel.RankRegressor()):
        with pytest.raises(ValueError, match="not a valid"):
            model.fit(X, y)
    with pytest.raises(ValueError, match="not a valid"):
        sorel.SpectralRiskClassifier().fit(X, y > 0.5)
    with pytest.raises(ValueError, match="not a valid"):
        sorel.SpectralRiskPortfolio().fit(X)
    with pytest.raises(ValueError, match="not a valid"):
        fitted.predict(X)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
def test_whole_matrices_pass_and_are_left_alone(form):
    X = make_matrix(form)
    before = X.toarray()
    check_indices(X)
    assert (checked_csr(X).toarray() == before).all()
    assert (X.toarray() == before).all()


def test_a_whole_matrix_is_used_in_place():
    X = make_matrix()
    assert checked_csr(X) is X


@pytest.mark.parametrize(("values", "indices"), [(2, 1), (2, 0), (0, 1)])
def test_spare_room_holds_no_values(values, indices):
    X = make_matrix()
    stored = X.indptr[-1]
    # Room for values or for indices beyond what indptr covers.
    X.data = np.append(X.data, np.full(values, np.nan))
    X.indices = np.append(X.indices, np.full(indices, 2**31 - 1, X.indices.dtype))
    clean = checked_csr(X)
    assert len(clean.data) == len(clean.indices) == stored
    assert np.isfinite(sorel.Problem(X, np.zeros(N)).objective(np.ones(D)))


def test_engines_refuse_targets_and_weights_of_another_length():
    X = np.ones((N, D))
    for targets, weight in ((np.zeros(N - 1), None), (np.zeros(N), np.full(N + 1, 1 / N))):
        spec = Spec(targets, Squared(), sorel.Mean(), sample_weight=weight)
        with pytest.raises(ValueError, match=f"X has {N} rows"):
            DenseEngine(X, spec)
        with pytest.raises(ValueError, match=f"X has {N} rows"):
            SparseEngine(scipy.sparse.csr_array(X), spec)


def test_engines_refuse_numbers_of_classes_that_do_not_exist():
    labels = np.zeros(N, dtype=np.int64)
    for wrong in (3, -1):
        labels[5] = wrong
        spec = Spec(labels, Multinomial(), sorel.Mean(), classes=np.arange(3))
        with pytest.raises(ValueError, match="0 to 2"):
            DenseEngine(np.ones((N, D)), spec)


def test_what_is_wrong_is_said_in_numbers():
    X = make_matrix()
    X.indptr = X.indptr[:-1]
    with pytest.raises(ValueError, match=f"its indptr has {N} values, not {N + 1}"):
        checked_csr(X)
    X = scipy.sparse.coo_array((np.ones(2), ([0, 1], [0, 1])), shape=(N, D))
    X.coords = (np.array([0, 1]), np.array([0, D]))
    with pytest.raises(ValueError, match=rf"col has an index outside 0\.\.{D - 1};"):
        checked_csr(X)
    X.coords = (np.array([0, N]), np.array([0, D - 1]))
    with pytest.raises(ValueError, match=rf"row has an index outside 0\.\.{N - 1};"):
        checked_csr(X)
    X.coords = (np.array([0, N - 1]), np.array([0, D - 1]))
    assert checked_csr(X).shape == (N, D)


@pytest.mark.parametrize("shape", [(4, 0, 1), (4, 1, 0), (4, 4, 1), (4, 1, 2), (4,)])
def test_blocks_that_do_not_tile_the_matrix_are_refused(shape):
    X = make_matrix("bsr")
    X.data = np.zeros(shape)
    with pytest.raises(ValueError, match="do not fill the shape"):
        checked_csr(X)
