"""Laws, scaling and errors of the data helpers; downloads from a server that misbehaves."""

import gzip
import hashlib
import http.server
import io
import re
import shutil
import socket
import sys
import threading
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from sorel import datasets
from sorel.datasets import dataset_fingerprint, download, paper
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


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
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
    ],
)
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
    assert hashlib.sha256(data).hexdigest() == entry.sha256
    header, table = read_csv(data, name)
    assert tuple(header) == entry.columns
    assert entry.to_csv(table) == data
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


# Downloads: small tables in the formats of the sources, from a server of our own.

ROWS = 40


def small_table(name):
    """Generated numbers with the columns of one of the sets, and decimals like theirs."""
    entry = PAPER[name]
    rng = np.random.default_rng(len(entry.columns))
    table = rng.normal(50.0, 20.0, (ROWS, len(entry.columns))).round(3)
    for column in entry.whole:
        table[:, entry.columns.index(column)] = rng.integers(1, 9, ROWS)
    return table


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
        return zipped({"CCPP/Folds5x2_pp.ods": b"PK", "CCPP/Folds5x2_pp.xlsx": book}), nested
    return as_arff(table), PAPER[name].to_csv(table)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each request by the next of the replies to its path; the last one stays."""

    def do_GET(self):
        self.server.requests.append(self.path)
        replies = self.server.replies.get(self.path, [body(code=404)])
        (replies.pop(0) if len(replies) > 1 else replies[0])(self)

    def log_message(self, *arguments):
        pass


def body(data=b"", *, code=200, length=None, announced=True, times=1, pause=0.0):
    """A reply that sends `data` so many times, after a pause each."""

    def reply(handler):
        handler.send_response(code)
        if announced:
            handler.send_header("Content-Length", str(len(data) if length is None else length))
        handler.end_headers()
        for _ in range(times):
            time.sleep(pause)
            handler.wfile.write(data)

    return reply


@pytest.fixture
def server(monkeypatch):
    instance = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    instance.replies, instance.requests = {}, []
    # A client that hangs up is part of the tests.
    instance.handle_error = lambda request, address: None
    thread = threading.Thread(target=instance.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for variable in ("SOREL_UCI_URL", "SOREL_OPENML_URL"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{instance.server_address[1]}/")
    yield instance
    instance.shutdown()
    thread.join()
    instance.server_close()


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """An empty cache, no folder, and no patience."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(paper, "_cache_folder", lambda: folder)
    monkeypatch.delenv("SOREL_DATA", raising=False)
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")
    monkeypatch.setattr(download, "_PAUSE", 0.01)
    monkeypatch.setattr(download, "_TIMEOUT", (2.0, 0.3))
    return folder


@pytest.fixture
def cache(empty_cache, monkeypatch):
    """Small sets in the place of the published ones, too."""
    for name, entry in PAPER.items():
        table = small_table(name)
        small = entry._replace(
            rows=ROWS,
            fingerprint=dataset_fingerprint(table[:, :-1], table[:, -1]),
            sha256=hashlib.sha256(entry.to_csv(table)).hexdigest(),
        )
        monkeypatch.setitem(PAPER, name, small)
    return empty_cache


def address(name, number=0):
    return "/" + PAPER[name].addresses[number]


def kept(folder):
    """Everything below a folder; temporary files would show."""
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def fails(name="yacht", match=""):
    """The message of a load that fails with everything a user needs to know."""
    with pytest.raises(FileNotFoundError, match=match) as caught:
        datasets.load_paper_dataset(name)
    message = str(caught.value)
    assert f"Put {name}.csv in a folder and set the environment variable SOREL_DATA" in message
    return message


YACHT = small_table("yacht")
ARCHIVE = published("yacht", YACHT)[0]
HALF = ARCHIVE[: len(ARCHIVE) // 2]
LINES, ENDLESS = b"1 2\n" * 999, {"announced": False, "times": 400}


@pytest.mark.parametrize("name", datasets.PAPER_DATASETS)
def test_downloads_in_every_format(name, server, cache):
    table, entry = small_table(name), PAPER[name]
    rows = table[entry.skipped_rows :]
    features = len(entry.columns) - len(entry.not_features) - 1
    expected = datasets.split_standardized(rows[:, :features], rows[:, -1])
    for number, data in enumerate(published(name, table)):
        server.replies = {address(name, number): [body(data)]}
        server.requests.clear()
        shutil.rmtree(cache, ignore_errors=True)
        X, y = datasets.load_paper_dataset(name)
        np.testing.assert_array_equal(X, expected.X_train)
        np.testing.assert_array_equal(y, expected.y_train)
        assert kept(cache) == [f"{name}.csv"]
        assert (cache / f"{name}.csv").read_bytes() == entry.to_csv(table)
        np.testing.assert_array_equal(datasets.load_paper_split(name).X_train, X)
        # A set in the cache is not asked for.
        assert server.requests == [address(name, k) for k in range(number + 1)]


@pytest.mark.parametrize(
    ("reply", "message", "limits"),
    [
        (body(HALF, length=len(ARCHIVE)), "the download broke off", {}),
        (body(HALF, announced=False), "bytes were received and are damaged", {}),
        (body(b"<html>Service unavailable</html>"), "hold other tables .*: 0 x 7", {}),
        (body(), "0 bytes were received", {}),
        (body(b"PK\x03\x04 is no archive"), "are damaged: BadZipFile", {}),
        (body(zipped({"a.pdf": b"text"})), "hold no table", {}),
        (body(zipped({"a.xls": b"\xd0\xcf\x11\xe0 cut short"})), "are damaged", {}),
        (body(as_data(YACHT + 0.001)), "hold other tables .*: 40 x 7", {}),
        (body(as_data(YACHT[::-1])), "hold other tables .*: 40 x 7", {}),
        (body(ARCHIVE, pause=1.0), "the server timed out", {"_ATTEMPTS": 1}),
        (body(LINES, **ENDLESS, pause=0.02), r"took more than 0\.1 s", {"_MAX_SECONDS": 0.1}),
        (body(LINES, **ENDLESS), "has more than 20000 bytes", {"_MAX_BYTES": 20_000}),
    ],
)
def test_bad_downloads_are_refused(reply, message, limits, server, cache, monkeypatch):
    for name, value in limits.items():
        monkeypatch.setattr(download, name, value)
    server.replies[address("yacht")] = [reply]
    said = fails(match=message)
    assert address("yacht", 0) in said
    assert re.search(f"HTTP status 404 .*{address('yacht', 1)}", said)
    # An address that has no such file is not asked again.
    asked = {address("yacht"): download._ATTEMPTS, address("yacht", 1): 1}
    assert Counter(server.requests) == asked
    assert kept(cache) == []


def test_offline(cache, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SOREL_UCI_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        message = fails(match="SOREL_DATA is not set.*no connection to the server")
    assert str(cache) in message
    assert len(message) < 700
    assert kept(cache) == []


def test_the_source_is_asked_when_wanted(server, empty_cache):
    """The package has the numbers; a download is a check, and a source that changed is refused."""
    table = read_csv(shipped("yacht"), "yacht")[1]
    X, y = datasets.load_paper_table("yacht")
    assert server.requests == []
    server.replies[address("yacht")] = [body(as_data(table + 1.0))]
    with pytest.raises(FileNotFoundError, match="hold other tables than the published one"):
        datasets.load_paper_table("yacht", download=True)
    server.replies[address("yacht")] = [body(as_data(table))]
    fetched, target = datasets.load_paper_table("yacht", download=True)
    np.testing.assert_array_equal(fetched, X)
    np.testing.assert_array_equal(target, y)
    assert kept(empty_cache) == ["yacht.csv"]


def test_order_of_the_places(server, cache, tmp_path, monkeypatch):
    table = small_table("power")
    server.replies[address("power")] = [body(published("power", table)[0])]
    places = {"folder": tmp_path / "folder", "variable": tmp_path / "variable"}
    for place in places.values():
        place.mkdir()
    monkeypatch.setenv("SOREL_DATA", str(places["variable"]))
    expected = datasets.load_paper_dataset("power", places["folder"])
    assert kept(cache) == ["power.csv"]
    # A file that the user provides is used as it is, with a word if it is another one.
    for number, place in enumerate(("variable", "folder")):
        other = table + 10.0**number * np.arange(ROWS)[:, None] ** 2
        (places[place] / "power.csv").write_bytes(PAPER["power"].to_csv(other))
        with pytest.warns(UserWarning, match=f"{place}.power.csv.*does not hold the numbers"):
            X, _ = datasets.load_paper_dataset("power", places["folder"])
        assert not np.array_equal(X, expected[0])
    assert len(server.requests) == 1


def test_damaged_cache_is_renewed(server, cache):
    whole = PAPER["yacht"].to_csv(YACHT)
    cache.mkdir()
    for damaged in (b"", b"a,b\n1,2\n", whole[:500]):
        (cache / "yacht.csv").write_bytes(damaged)
        server.replies.clear()
        fails(match="has no intact copy")
        server.replies[address("yacht")] = [body(ARCHIVE)]
        datasets.load_paper_dataset("yacht")
        assert (cache / "yacht.csv").read_bytes() == whole


def test_missing_packages_are_named(server, cache, monkeypatch):
    server.replies[address("concrete")] = [body(published("concrete", small_table("concrete"))[0])]
    monkeypatch.setitem(sys.modules, "xlrd", None)
    fails("concrete", match=r'reading it needs xlrd: pip install "sorel\[data\]"')
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setattr(paper, "_read_shipped", lambda *_: None)
    fails(match=r'to download it, pip install "sorel\[data\]"')


def test_downloads_that_are_forbidden_or_cannot_be_kept(server, cache):
    with pytest.raises(FileNotFoundError, match="download=False"):
        datasets.load_paper_dataset("yacht", download=False)
    assert server.requests == []
    server.replies[address("yacht")] = [body(ARCHIVE)]
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be kept in the cache"):
        assert datasets.load_paper_dataset("yacht")[0].shape == (30, 6)
