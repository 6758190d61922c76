"""Shapes, scaling and errors of the data helpers."""

import os

import numpy as np
import pytest

from sorel import datasets

PAPER_SHAPES = {
    "yacht": (244, 6),
    "energy": (614, 8),
    "concrete": (824, 8),
    "kin8nm": (6553, 8),
    "power": (7654, 4),
}

needs_data = pytest.mark.skipif(
    not os.environ.get("SOREL_DATA"),
    reason="SOREL_DATA does not name the folder of the paper's sets",
)


def test_two_populations_follow_their_laws():
    X, y, minority = datasets.make_two_populations(n=20_000, d=4, noise=0.0, seed=3)
    assert abs(minority.mean() - 0.1) < 0.01
    laws = []
    for group in (minority, ~minority):
        law, residual, *_ = np.linalg.lstsq(X[group], y[group], rcond=None)
        assert residual.item() < 1e-18 * group.sum()
        laws.append(law)
    np.testing.assert_allclose([np.linalg.norm(law) for law in laws], [2.0, 1.0], rtol=1e-12)
    assert abs(laws[0] @ laws[1]) < 1e-12
    assert abs(X[minority, 0].mean() - 2.0) < 0.1
    assert abs(X[~minority, 0].mean()) < 0.05


def test_two_populations_depend_on_the_seed_only():
    first = datasets.make_two_populations(n=50, seed=1)
    for a, b in zip(first, datasets.make_two_populations(n=50, seed=1), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[1], datasets.make_two_populations(n=50, seed=2)[1])


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_two_populations_allow_one_population(fraction):
    minority = datasets.make_two_populations(n=30, fraction=fraction)[2]
    assert minority.mean() == fraction


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"d": 1}, "d must be at least 2"),
        ({"fraction": 1.5}, r"fraction must be in \[0, 1\], got 1.5"),
        ({"noise": -1.0}, "noise must be nonnegative, got -1.0"),
    ],
)
def test_two_populations_refuse_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        datasets.make_two_populations(**arguments)


def test_split_standardizes_by_the_training_part():
    X, y = datasets.load_diabetes()
    data = datasets.split_standardized(X, y, test_size=0.25, seed=1)
    assert len(data.y_test) == round(0.25 * len(y) + 0.5)
    np.testing.assert_allclose(data.X_train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(data.X_train.std(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose([data.y_train.mean(), data.y_train.std(ddof=1)], [0, 1], atol=1e-12)
    assert abs(data.y_test.mean()) > 1e-6


def test_split_keeps_constant_columns_and_targets_finite():
    X = np.column_stack([np.full(20, 0.1), np.arange(20.0)])
    data = datasets.split_standardized(X, np.ones(20))
    assert np.all(np.isfinite(np.concatenate([data.X_train, data.X_test])))
    np.testing.assert_allclose(data.X_train[:, 0], 0.0, atol=1e-14)
    np.testing.assert_array_equal(data.y_train, 0.0)


@needs_data
@pytest.mark.parametrize("name", datasets.PAPER_DATASETS)
def test_paper_dataset_shapes(name):
    X, y = datasets.load_paper_dataset(name)
    assert X.shape == PAPER_SHAPES[name]
    assert y.shape == X.shape[:1]
    np.testing.assert_allclose(X.std(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose(y.std(ddof=1), 1.0, rtol=1e-12)


def write_csv(folder, name, header, rows):
    lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def test_energy_drops_the_other_response(tmp_path):
    rng = np.random.default_rng(0)
    header = ["a", "b", "heating_load", "cooling_load"]
    write_csv(tmp_path, "energy", header, rng.standard_normal((768, 4)).tolist())
    X, y = datasets.load_paper_dataset("energy", tmp_path)
    assert X.shape == (614, 2)
    assert y.shape == (614,)


def test_folder_comes_from_the_environment(tmp_path, monkeypatch):
    header = ["a", "residuary_resistance"]
    write_csv(tmp_path, "yacht", header, np.random.default_rng(0).random((308, 2)).tolist())
    monkeypatch.setenv("SOREL_DATA", str(tmp_path))
    assert datasets.load_paper_dataset("yacht")[0].shape == (244, 1)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown dataset 'boston'; known: yacht, energy"):
        datasets.load_paper_dataset("boston")


def test_missing_folder_and_file_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("SOREL_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="SOREL_DATA"):
        datasets.load_paper_dataset("yacht")
    with pytest.raises(FileNotFoundError, match=r"yacht\.csv"):
        datasets.load_paper_dataset("yacht", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,residuary_resistance\n1,x\n", "not a table of numbers"),
        ("a,residuary_resistance\n1,2,3\n", "do not match its 2 columns"),
        ("a,residuary_resistance\n1,2\n", "should have 308 rows"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    (tmp_path / "yacht.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        datasets.load_paper_dataset("yacht", tmp_path)
