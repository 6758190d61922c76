"""Laws, scaling and errors of the data helpers; downloads in the formats of the sources."""

import gzip
import io
import socket
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from sorel import datasets
from sorel.datasets import dataset_fingerprint
from sorel.datasets.published import PAPER, read_csv

FILES = Path(datasets.__file__).parent / "files"
TRAINING_ROWS = {"yacht": 244, "energy": 614, "concrete": 824, "kin8nm": 6553, "power": 7654}


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


def test_heavy_tails_follow_their_law():
    X, y = datasets.make_heavy_tailed(50_000, 6, 3.0, 1e4, 5)
    spectrum = np.linalg.eigvalsh(X.T @ X / len(y))
    np.testing.assert_allclose(spectrum[-1] / spectrum[0], 1e4, rtol=0.1)
    X, y = datasets.make_heavy_tailed(50_000, 3, 3.0, seed=5)
    law = np.linalg.lstsq(X, y, rcond=None)[0]
    assert abs(np.linalg.norm(law) - 1.0) < 0.05
    assert scipy.stats.kstest(y - X @ law, scipy.stats.t(3.0).cdf).pvalue > 1e-3


def test_imbalanced_classes_follow_their_laws():
    X, y = datasets.make_imbalanced(40_000, 4, 0.1, 2, separation=1.5)
    assert Counter(y.tolist()) == {1: 4000, -1: 36_000}
    means = [X[y == label].mean(axis=0) for label in (1, -1)]
    assert abs(np.linalg.norm(means[0] - means[1]) - 1.5) < 0.05
    np.testing.assert_allclose(np.cov(X[y == 1].T), np.eye(4), atol=0.1)
    assert set(datasets.make_imbalanced(2, 1, 0.01)[1].tolist()) == {-1, 1}


@pytest.mark.parametrize("info", datasets.list_datasets("generated"), ids=lambda info: info.name)
def test_generated_sets_depend_on_the_seed_only(info):
    make = getattr(datasets, info.source)
    first = make(50, 3, seed=1)
    for a, b in zip(first, make(50, 3, seed=1), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], make(50, 3, seed=2)[0])


@pytest.mark.parametrize(("function", "arguments", "message"), [
    ("make_two_populations", {"n": 0}, "n must be at least 1, got 0"),
    ("make_two_populations", {"d": 1}, "d must be at least 2"),
    ("make_two_populations", {"fraction": 1.5}, r"fraction must be in \[0, 1\], got 1.5"),
    ("make_two_populations", {"noise": -1.0}, "noise must be nonnegative, got -1.0"),
    ("make_heavy_tailed", {"n": 0}, "n must be at least 1, got 0"),
    ("make_heavy_tailed", {"d": 0}, "d must be at least 1, got 0"),
    ("make_heavy_tailed", {"df": 0.0}, "df must be a positive number, got 0.0"),
    ("make_heavy_tailed", {"condition": 0.5}, "condition must be .*, got 0.5"),
    ("make_imbalanced", {"n": 1}, "n must be at least 2"),
    ("make_imbalanced", {"fraction": 0.0}, r"fraction must be in \(0, 1\), got 0.0"),
    ("make_imbalanced", {"separation": -1.0}, "separation must be .*, got -1.0"),
    ("load_bundled", {"name": "mnist"}, "unknown bundled dataset 'mnist'; known: diab"),
    ("load_paper_table", {"name": "boston"}, "unknown dataset 'boston'; known: yacht"),
    ("list_datasets", {"kind": "local"}, "kind must be one of paper, bundled, generated"),
    ("dataset_fingerprint", {"X": [[1.0], [2.0]], "y": [3.0]}, r"shapes \(2, 1\) and \(1,\)"),
])  # fmt: skip
def test_bad_arguments_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(datasets, function)(**arguments)


def test_sets_are_as_listed():
    infos = datasets.list_datasets()
    assert len({info.name for info in infos}) == len(infos)
    for info in infos:
        if info.kind == "generated":
            continue
        load = datasets.load_bundled if info.kind == "bundled" else datasets.load_paper_table
        X, y = load(info.name)
        assert X.shape == (info.rows, info.features)
        assert X.dtype == np.float64
        assert y.dtype == (np.float64 if info.task == "regression" else np.int64)


def test_split_standardizes_by_the_training_part():
    X, y = datasets.load_diabetes()
    data = datasets.split_standardized(X, y, test_size=0.25, seed=1)
    assert len(data.y_test) == round(0.25 * len(y) + 0.5)
    np.testing.assert_allclose(data.X_train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(data.X_train.std(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose([data.y_train.mean(), data.y_train.std(ddof=1)], [0, 1], atol=1e-12)
    assert abs(data.y_test.mean()) > 1e-6
    # The test part has the same units.
    for given, parts in ((X[:, 0], (data.X_train[:, 0], data.X_test[:, 0])),
                         (y, (data.y_train, data.y_test))):  # fmt: skip
        steps = np.diff(np.sort(np.concatenate(parts)))
        expected = np.diff(np.sort(given)) / np.ptp(given)
        np.testing.assert_allclose(steps / steps.sum(), expected, atol=1e-14)
    # What is constant becomes 0.
    X = np.column_stack([np.full(20, 0.1), np.arange(20.0)])
    data = datasets.split_standardized(X, np.ones(20))
    assert np.all(np.isfinite(data.X_test))
    np.testing.assert_allclose(data.X_train[:, 0], 0.0, atol=1e-14)
    np.testing.assert_array_equal(data.y_train, 0.0)


# The sets of the paper, without a network.


def shipped(name):
    """The bytes of a set as it travels with the package."""
    return gzip.decompress((FILES / f"{name}.csv.gz").read_bytes())


@pytest.mark.parametrize("name", datasets.PAPER_DATASETS)
def test_paper_sets_hold_the_published_numbers(name, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the network was asked")

    monkeypatch.delenv("SOREL_DATA", raising=False)
    monkeypatch.setattr(socket, "create_connection", refuse)
    entry, data = PAPER[name], shipped(name)
    header, table = read_csv(data, name)
    assert header == entry.columns
    X, y = datasets.load_paper_table(name)
    np.testing.assert_array_equal(y, table[:, -1])
    np.testing.assert_array_equal(X, table[:, : X.shape[1]])
    X, y = datasets.load_paper_dataset(name)
    assert len(X) == TRAINING_ROWS[name]
    np.testing.assert_allclose(X.std(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose(y.std(ddof=1), 1.0, rtol=1e-12)
    # A spreadsheet may round the last bits of a number differently.
    shaken = table * (1 + np.random.default_rng(0).integers(-2, 3, table.shape) * 2.0**-52)
    assert entry.verified(shaken)
    table[7, 1] += 1e-6
    assert not entry.verified(table)
    # Every set is attributed.
    assert f"{name}.csv.gz" in (FILES / "README.md").read_text(encoding="utf-8")
    assert name in datasets.load_paper_table.__doc__


@pytest.mark.parametrize(("text", "message"), [
    ("", "it has no rows"),
    ("a,residuary_resistance\n1,x\n", "not a table of numbers"),
    ("a,residuary_resistance\n1,2,3\n", "do not match its 2 columns"),
    ("a,residuary_resistance\n1,2\n1,2,3\n", "not a table of numbers"),
    ("a,residuary_resistance\n1,2\n", "should have 308 rows"),
])  # fmt: skip
def test_wrong_files_are_refused(tmp_path, text, message):
    (tmp_path / "yacht.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        datasets.load_paper_dataset("yacht", tmp_path)


# Downloads: small tables in the formats of the sources, from a folder in the place of a server.

ROWS = 40


def small_table(name):
    """Generated numbers with the columns of one of the sets, and decimals like theirs."""
    entry = PAPER[name]
    rng = np.random.default_rng(len(entry.columns))
    return rng.normal(50.0, 20.0, (ROWS, len(entry.columns))).round(3)


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return stream.getvalue()


def as_data(table):
    lines = ["  ".join(f"{value:g}" for value in row) + " " for row in table]
    return ("\r\n".join(lines) + "\r\n \r\n").encode()


def as_xlsx(*tables):
    stream = io.BytesIO()
    with pd.ExcelWriter(stream) as book:
        for number, table in enumerate(tables):
            # Spreadsheets of this source have empty columns and rows on their edges.
            frame = pd.DataFrame(table).assign(empty=None, blank=" ")
            frame.loc[len(frame)] = None
            frame.to_excel(book, sheet_name=f"Sheet{number}", index=False)
    return stream.getvalue()


def as_xls(table):
    import xlwt

    book = xlwt.Workbook()
    sheet = book.add_sheet("Sheet1")
    book.add_sheet("Sheet2")
    for i, row in enumerate([["X"] * table.shape[1], *table.tolist()]):
        for j, cell in enumerate(row):
            sheet.write(i, j, cell)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def as_arff(table):
    head = ["% a comment", "@RELATION kin8nm", "", "@ATTRIBUTE x REAL", "", "@DATA", "% another"]
    rows = [",".join(map(str, row)) for row in table.tolist()]
    return ("\n".join([*head, *rows]) + "\n\n").encode()


def as_csv(name, table):
    return pd.DataFrame(table, columns=PAPER[name].columns).to_csv(index=False).encode()


def published(name, table):
    """Bytes in the format that the source uses, and in another one."""
    if name == "yacht":
        data = as_data(table)
        return zipped({"yacht_hydrodynamics.data": data, "readme.txt": b"1 2 3\nsee"}), data
    if name == "energy":
        book = as_xlsx(table)
        return zipped({"ENB2012_data.xlsx": book}), book
    if name == "concrete":
        book = as_xls(table)
        return zipped({"Concrete_Readme.txt": b"8 inputs", "Concrete_Data.xls": book}), book
    if name == "power":
        # The experiments' order of the rows is that of the first sheet.
        rng = np.random.default_rng(0)
        book = as_xlsx(table, *(rng.permutation(table) for _ in range(4)))
        nested = zipped({"data.zip": zipped({"power.csv": as_data(table)})})
        other = zipped({"content.xml": b"<xml>"})
        return zipped({"CCPP/Folds5x2_pp.ods": other, "CCPP/Folds5x2_pp.xlsx": book}), nested
    return as_arff(table), as_csv(name, table)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Small sets in the place of the published ones, and a function that publishes one."""
    monkeypatch.delenv("SOREL_DATA", raising=False)

    def publish(name, data):
        table, path = small_table(name), tmp_path / f"{name}.published"
        path.write_bytes(data)
        fingerprint = dataset_fingerprint(table[:, :-1], table[:, -1])
        changes = {"rows": ROWS, "fingerprint": fingerprint, "address": path.as_uri()}
        monkeypatch.setitem(PAPER, name, PAPER[name]._replace(**changes))

    return publish


@pytest.mark.parametrize("name", datasets.PAPER_DATASETS)
def test_downloads_in_every_format(name, source):
    table, entry = small_table(name), PAPER[name]
    rows = table[entry.skipped_rows :]
    features = len(entry.columns) - len(entry.not_features) - 1
    expected = datasets.split_standardized(rows[:, :features], rows[:, -1])
    for data in published(name, table):
        source(name, data)
        X, y = datasets.load_paper_dataset(name, download=True)
        np.testing.assert_array_equal(X, expected.X_train)
        np.testing.assert_array_equal(y, expected.y_train)


YACHT = small_table("yacht")
ARCHIVE = published("yacht", YACHT)[0]


@pytest.mark.parametrize(("data", "message"), [
    (ARCHIVE[: len(ARCHIVE) // 2], "not a zip file"),
    (b"<html>Service unavailable</html>", "but 0 rows of 7 numbers"),
    (zipped({"a.xls": b"\xd0\xcf\x11\xe0 cut short"}), "corrupt file"),
    (as_data(YACHT + 0.001), "but 40 rows of 7 numbers"),
    (as_data(YACHT[::-1]), "but 40 rows of 7 numbers"),
])  # fmt: skip
def test_bad_downloads_are_refused(data, message, source):
    source("yacht", data)
    with pytest.raises(FileNotFoundError, match=f"yacht.published failed.*{message}"):
        datasets.load_paper_dataset("yacht", download=True)


def test_order_of_the_places(source, tmp_path, monkeypatch):
    table = small_table("power")
    source("power", b"")
    places = {"folder": tmp_path / "folder", "variable": tmp_path / "variable"}
    for place in places.values():
        place.mkdir()
    monkeypatch.setenv("SOREL_DATA", str(places["variable"]))
    expected = datasets.load_paper_dataset("power", places["folder"])
    # A file that the user provides is used as it is, with a word if it is another one.
    for number, place in enumerate(("variable", "folder")):
        other = table + 10.0**number * np.arange(ROWS)[:, None] ** 2
        (places[place] / "power.csv").write_bytes(as_csv("power", other))
        with pytest.warns(UserWarning, match=f"{place}.power.csv.*does not hold the numbers"):
            X, _ = datasets.load_paper_dataset("power", places["folder"])
        assert not np.array_equal(X, expected[0])


def test_missing_packages_are_named(source, monkeypatch):
    source("concrete", published("concrete", small_table("concrete"))[0])
    monkeypatch.setitem(sys.modules, "xlrd", None)
    with pytest.raises(FileNotFoundError, match=r'needs xlrd: pip install "sorel\[data\]"'):
        datasets.load_paper_table("concrete", download=True)
