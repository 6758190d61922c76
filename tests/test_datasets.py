"""Shapes, scaling and errors of the data helpers; downloads from a server that misbehaves."""

import contextlib
import gzip
import hashlib
import http.server
import io
import socket
import sys
import threading
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from sorel import datasets
from sorel.datasets import download, paper
from sorel.datasets.published import PAPER, read_csv

FILES = Path(datasets.__file__).parent / "files"

PAPER_SHAPES = {
    "yacht": (244, 6),
    "energy": (614, 8),
    "concrete": (824, 8),
    "kin8nm": (6553, 8),
    "power": (7654, 4),
}


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


@pytest.mark.parametrize(
    "make", [datasets.make_two_populations, datasets.make_heavy_tailed, datasets.make_imbalanced]
)
def test_generated_sets_depend_on_the_seed_only(make):
    first = make(50, 3, seed=1)
    for a, b in zip(first, make(50, 3, seed=1), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], make(50, 3, seed=2)[0])


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (datasets.make_two_populations, {"n": 0}, "n must be at least 1, got 0"),
        (datasets.make_two_populations, {"d": 1}, "d must be at least 2"),
        (
            datasets.make_two_populations,
            {"fraction": 1.5},
            r"fraction must be in \[0, 1\], got 1.5",
        ),
        (datasets.make_two_populations, {"noise": -1.0}, "noise must be nonnegative, got -1.0"),
        (datasets.make_heavy_tailed, {"n": 0}, "n must be at least 1, got 0"),
        (datasets.make_heavy_tailed, {"d": 0}, "d must be at least 1, got 0"),
        (datasets.make_heavy_tailed, {"df": 0.0}, "df must be a positive number, got 0.0"),
        (datasets.make_heavy_tailed, {"condition": 0.5}, "condition must be .*, got 0.5"),
        (datasets.make_imbalanced, {"n": 1}, "n must be at least 2"),
        (datasets.make_imbalanced, {"fraction": 0.0}, r"fraction must be in \(0, 1\), got 0.0"),
        (datasets.make_imbalanced, {"separation": -1.0}, "separation must be .*, got -1.0"),
        (datasets.load_bundled, {"name": "mnist"}, "unknown bundled dataset 'mnist'; known: diab"),
        (datasets.load_paper_table, {"name": "boston"}, "unknown dataset 'boston'; known: yacht"),
    ],
)
def test_generators_refuse_bad_arguments(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.parametrize("info", datasets.list_datasets("bundled"), ids=lambda info: info.name)
def test_bundled_sets_are_as_listed(info):
    X, y = datasets.load_bundled(info.name)
    assert X.shape == (info.rows, info.features)
    assert X.dtype == np.float64
    assert y.dtype == (np.float64 if info.task == "regression" else np.int64)


def test_list_of_datasets():
    infos = datasets.list_datasets()
    names = [info.name for info in infos]
    assert len(set(names)) == len(names)
    assert [info.name for info in infos if info.kind == "paper"] == list(datasets.PAPER_DATASETS)
    assert {info.features for info in infos if info.name in ("energy", "concrete")} == {8}
    for info in datasets.list_datasets("generated"):
        assert callable(getattr(datasets, info.source))
    with pytest.raises(ValueError, match="kind must be one of paper, bundled, generated"):
        datasets.list_datasets("local")


def test_fingerprint_sees_every_number_and_the_shape_only():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((5000, 2)), rng.standard_normal(5000)
    expected = datasets.dataset_fingerprint(X, y)
    assert expected == datasets.dataset_fingerprint(np.asfortranarray(X), y.tolist())
    # Decimals of few digits keep their fingerprint when the last bits change.
    short = np.round(X, 6)
    assert datasets.dataset_fingerprint(np.nextafter(short, np.inf), np.round(y, 6)) == (
        datasets.dataset_fingerprint(short, np.round(y, 6))
    )
    assert datasets.dataset_fingerprint([[-0.0]], [0.0]) == (
        datasets.dataset_fingerprint([[0.0]], [-0.0])
    )
    for change in (lambda: X.__setitem__((4999, 1), 9.0), lambda: y.__setitem__(0, 9.0)):
        change()
        changed = datasets.dataset_fingerprint(X, y)
        assert changed != expected
        expected = changed
    assert datasets.dataset_fingerprint([[1.0, 2.0]], [3.0]) != (
        datasets.dataset_fingerprint([[1.0], [2.0]], [3.0, 3.0])
    )
    with pytest.raises(ValueError, match=r"got shapes \(2, 1\) and \(1,\)"):
        datasets.dataset_fingerprint([[1.0], [2.0]], [3.0])


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


def shipped(name):
    """The bytes of a set as it travels with the package."""
    return gzip.decompress((FILES / f"{name}.csv.gz").read_bytes())


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.delenv("SOREL_DATA", raising=False)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(paper, "fetch_table", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.parametrize("name", datasets.PAPER_DATASETS)
def test_paper_dataset_shapes(name, no_folder, no_network):
    X, y = datasets.load_paper_dataset(name)
    whole, target = datasets.load_paper_table(name)
    _, table = read_csv(shipped(name), name)
    np.testing.assert_array_equal(target, table[:, -1])
    np.testing.assert_array_equal(whole, table[:, : whole.shape[1]])
    assert X.shape == PAPER_SHAPES[name]
    assert y.shape == X.shape[:1]
    np.testing.assert_allclose(X.std(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose(y.std(ddof=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("name", datasets.PAPER_DATASETS)
def test_paper_dataset_checksums(name):
    entry = PAPER[name]
    data = shipped(name)
    assert hashlib.sha256(data).hexdigest() == entry.sha256
    header, table = read_csv(data, name)
    assert tuple(header) == entry.columns
    assert entry.verified(table)
    assert entry.to_csv(table) == data
    # A spreadsheet may round the last bits of a number differently.
    shaken = table * (1 + np.random.default_rng(0).integers(-2, 3, table.shape) * 2.0**-52)
    assert entry.verified(shaken)
    table[7, 1] += 1e-6
    assert not entry.verified(table)


def test_every_set_is_attributed():
    words = (FILES / "README.md").read_text(encoding="utf-8")
    for name in datasets.PAPER_DATASETS:
        assert f"{name}.csv.gz" in words
        assert name in datasets.load_paper_table.__doc__
    assert words.count("CC BY 4.0 |") == 4
    assert "Delve" in words


def write_csv(folder, name, header, rows):
    lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def test_energy_drops_the_other_response(tmp_path):
    rng = np.random.default_rng(0)
    header = ["a", "b", "heating_load", "cooling_load"]
    write_csv(tmp_path, "energy", header, rng.standard_normal((768, 4)).tolist())
    with pytest.warns(UserWarning, match="does not hold the numbers of the paper's experiments"):
        X, y = datasets.load_paper_dataset("energy", tmp_path)
    assert X.shape == (614, 2)
    assert y.shape == (614,)


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


ROWS = 40


def small_table(name):
    """Generated numbers with the columns of one of the sets, and decimals like theirs."""
    entry = PAPER[name]
    rng = np.random.default_rng(len(entry.columns))
    table = rng.normal(50.0, 20.0, (ROWS, len(entry.columns))).round(3)
    for column in entry.whole:
        table[:, entry.columns.index(column)] = rng.integers(1, 9, ROWS)
    return table


def zipped(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member.replace("__", "/").replace("_dot_", "."), data)
    return stream.getvalue()


def as_data(table):
    lines = ["  ".join(f"{value:g}" for value in row) + " " for row in table]
    return ("\r\n".join(lines) + "\r\n \r\n").encode()


def as_xlsx(*sheets, header):
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, table in enumerate(sheets):
        sheet = book.create_sheet(f"Sheet{number + 1}")
        # Spreadsheets of this source have empty columns and rows on their edges.
        sheet.append([*header, None, " "])
        for row in table.tolist():
            sheet.append([*row, None, ""])
        sheet.append([None] * 3)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def as_xls(table, header):
    import xlwt

    book = xlwt.Workbook()
    sheet = book.add_sheet("Sheet1")
    book.add_sheet("Sheet2")
    for i, row in enumerate([header, *table.tolist()]):
        for j, cell in enumerate(row):
            sheet.write(i, j, cell)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def as_arff(table, header):
    lines = ["% a comment", "@RELATION kin8nm", ""]
    lines += [f"@ATTRIBUTE {column} REAL" for column in header]
    lines += ["", "@DATA", "% another"]
    lines += [",".join(map(str, row)) for row in table.tolist()]
    return ("\n".join(lines) + "\n\n").encode()


def published(name, table):
    """Bytes in the format that the source uses."""
    header = [f"X{j}" for j in range(table.shape[1])]
    if name == "yacht":
        return zipped(yacht_hydrodynamics_dot_data=as_data(table), readme_dot_txt=b"1 2 3\nsee")
    if name == "energy":
        return zipped(ENB2012_data_dot_xlsx=as_xlsx(table, header=header))
    if name == "concrete":
        data = as_xls(table, header)
        return zipped(Concrete_Readme_dot_txt=b"8 inputs", Concrete_Data_dot_xls=data)
    if name == "power":
        # The experiments' order of the rows is that of the first sheet.
        rng = np.random.default_rng(0)
        book = as_xlsx(table, *(rng.permutation(table) for _ in range(4)), header=header)
        return zipped(CCPP__Folds5x2_pp_dot_ods=b"PK", CCPP__Folds5x2_pp_dot_xlsx=book)
    return as_arff(table, header)


class Server(http.server.ThreadingHTTPServer):
    """Answers each request by the next of its replies, and the last one for ever."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies = {}
        self.requests = []
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_reply(self, path):
        with self.lock:
            self.requests.append(path)
            replies = self.replies.get(path, [status(404)])
            return replies.pop(0) if len(replies) > 1 else replies[0]

    def handle_error(self, request, client_address):
        """A client that hangs up is part of the tests."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.next_reply(self.path)(self)

    def log_message(self, *arguments):
        pass

    def begin(self, code, length=None):
        self.send_response(code)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()


def status(code):
    return lambda handler: handler.begin(code, 0)


def body(data, length=None, code=200):
    def reply(handler):
        handler.begin(code, len(data) if length is None else length)
        handler.wfile.write(data)

    return reply


def unannounced(data):
    def reply(handler):
        handler.begin(200)
        handler.wfile.write(data)

    return reply


def endless(pause=0.0):
    def reply(handler):
        handler.begin(200)
        with contextlib.suppress(OSError):
            for _ in range(400):
                handler.wfile.write(b"1 2 3 4\n" * 256)
                time.sleep(pause)

    return reply


@pytest.fixture
def server(monkeypatch):
    instance = Server()
    thread = threading.Thread(target=instance.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for variable in ("SOREL_UCI_URL", "SOREL_OPENML_URL"):
        monkeypatch.setenv(variable, instance.url + "/")
    yield instance
    instance.shutdown()
    thread.join()
    instance.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no folder, small sets in place of the published ones, and no patience."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(paper, "_cache_folder", lambda: folder)
    monkeypatch.delenv("SOREL_DATA", raising=False)
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")
    monkeypatch.setattr(download, "_PAUSE", 0.01)
    monkeypatch.setattr(download, "_TIMEOUT", (2.0, 0.3))
    for name, entry in PAPER.items():
        table = small_table(name)
        small = entry._replace(
            rows=ROWS,
            fingerprint=datasets.dataset_fingerprint(table[:, :-1], table[:, -1]),
            sha256=hashlib.sha256(entry.to_csv(table)).hexdigest(),
        )
        monkeypatch.setitem(PAPER, name, small)
    return folder


def address(name, number=0):
    return "/" + PAPER[name].addresses[number]


def kept(folder):
    """Everything below a folder; temporary files would show."""
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


@pytest.mark.parametrize("name", datasets.PAPER_DATASETS)
def test_downloads_in_every_format(name, server, cache):
    table = small_table(name)
    server.replies[address(name)] = [body(published(name, table))]
    X, y = datasets.load_paper_dataset(name)
    entry = PAPER[name]
    assert kept(cache) == [f"{name}.csv"]
    assert (cache / f"{name}.csv").read_bytes() == entry.to_csv(table)
    features = table[entry.skipped_rows :, : X.shape[1]]
    expected = datasets.split_standardized(features, table[entry.skipped_rows :, -1])
    np.testing.assert_array_equal(X, expected.X_train)
    np.testing.assert_array_equal(y, expected.y_train)

    again = datasets.load_paper_split(name)
    np.testing.assert_array_equal(again.X_train, X)
    assert server.requests == [address(name)]


def test_bare_files_are_read_like_archives(server, cache):
    for name, data in {
        "energy": as_xlsx(small_table("energy"), header=["X"] * 10),
        "concrete": as_xls(small_table("concrete"), ["X"] * 9),
        "yacht": as_data(small_table("yacht")),
        "kin8nm": PAPER["kin8nm"].to_csv(small_table("kin8nm")),
        "power": zipped(data_dot_zip=zipped(power_dot_csv=as_data(small_table("power")))),
    }.items():
        server.replies[address(name, 1)] = [body(data)]
        datasets.load_paper_dataset(name)
        # The first address was tried, and not again once it said that it has no such file.
        assert server.requests[-2:] == [address(name, 0), address(name, 1)]


def fails(name="yacht", match=""):
    """The message of a load that fails with everything a user needs to know."""
    with pytest.raises(FileNotFoundError, match=match) as caught:
        datasets.load_paper_dataset(name)
    message = str(caught.value)
    assert f"Put {name}.csv in a folder and set the environment variable SOREL_DATA" in message
    return message


def test_missing_file_on_the_server(server, cache):
    message = fails(match="HTTP status 404")
    assert address("yacht", 0) in message
    assert address("yacht", 1) in message
    assert len(server.requests) == 2
    assert kept(cache) == []


@pytest.mark.parametrize("announced", [True, False])
def test_truncated_body(announced, server, cache):
    data = published("yacht", small_table("yacht"))
    half = data[: len(data) // 2]
    reply = body(half, len(data)) if announced else unannounced(half)
    server.replies[address("yacht")] = [reply]
    fails(match="the download broke off" if announced else "bytes were received and are damaged")
    assert server.requests.count(address("yacht")) == download._ATTEMPTS
    assert kept(cache) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html><body>Service unavailable</body></html>", "hold other tables .*: 0 x 7"),
        (b"", "0 bytes were received"),
        (b"PK\x03\x04 is no archive", "are damaged: BadZipFile"),
        (zipped(a_dot_pdf=b"text"), "hold no table"),
        (zipped(a_dot_xls=b"\xd0\xcf\x11\xe0 cut short"), "are damaged"),
        (published("yacht", small_table("yacht") + 0.001), "hold other tables .*: 40 x 7"),
        (published("yacht", small_table("yacht")[:-1]), "hold other tables .*: 39 x 7"),
        (published("yacht", small_table("yacht")[::-1]), "hold other tables .*: 40 x 7"),
    ],
)
def test_wrong_bytes(data, message, server, cache):
    server.replies[address("yacht")] = [body(data)]
    fails(match=message)
    assert kept(cache) == []


def test_trickling_and_endless_downloads_are_cut(server, cache, monkeypatch):
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    monkeypatch.setattr(download, "_MAX_SECONDS", 0.2)
    server.replies[address("yacht")] = [endless(0.02)]
    fails(match=r"took more than 0\.2 s")
    monkeypatch.setattr(download, "_MAX_SECONDS", 300.0)
    monkeypatch.setattr(download, "_MAX_BYTES", 20_000)
    server.replies[address("yacht")] = [endless()]
    fails(match="has more than 20000 bytes")
    assert kept(cache) == []


def test_flaky_server_then_fine(server, cache):
    data = published("yacht", small_table("yacht"))
    server.replies[address("yacht")] = [status(503), body(data[:100], len(data)), body(data)]
    assert datasets.load_paper_dataset("yacht")[0].shape == (30, 6)
    assert server.requests.count(address("yacht")) == 3
    assert kept(cache) == ["yacht.csv"]


def test_offline(cache, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SOREL_UCI_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        message = fails(match="SOREL_DATA is not set.*no connection to the server")
    assert str(cache) in message
    assert len(message) < 700
    assert kept(cache) == []


def test_the_source_is_asked_when_wanted(server, tmp_path, monkeypatch, no_folder):
    """The package has the numbers; a download is a check, and a source that changed is refused."""
    monkeypatch.setattr(paper, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(download, "_PAUSE", 0.01)
    table = read_csv(shipped("yacht"), "yacht")[1]
    X, y = datasets.load_paper_table("yacht")
    assert server.requests == []
    server.replies[address("yacht")] = [body(published("yacht", table + 1.0))]
    with pytest.raises(FileNotFoundError, match="hold other tables than the published one"):
        datasets.load_paper_table("yacht", download=True)
    server.replies[address("yacht")] = [body(published("yacht", table))]
    fetched, target = datasets.load_paper_table("yacht", download=True)
    np.testing.assert_array_equal(fetched, X)
    np.testing.assert_array_equal(target, y)
    assert kept(tmp_path) == ["yacht.csv"]


def test_order_of_the_places(server, cache, tmp_path, monkeypatch):
    table = small_table("power")
    entry = PAPER["power"]
    server.replies[address("power")] = [body(published("power", table))]
    places = {"folder": tmp_path / "folder", "variable": tmp_path / "variable", "cache": cache}
    for place in places.values():
        place.mkdir()
    monkeypatch.setenv("SOREL_DATA", str(places["variable"]))
    expected = datasets.load_paper_dataset("power", places["folder"])
    assert kept(cache) == ["power.csv"]
    assert len(server.requests) == 1

    # A file that the user provides is used as it is, with a word if it is another one.
    for number, place in enumerate(("variable", "folder")):
        other = table + 10.0**number * np.arange(ROWS)[:, None] ** 2
        (places[place] / "power.csv").write_bytes(entry.to_csv(other))
        with pytest.warns(UserWarning, match=f"{place}.power.csv.*does not hold the numbers"):
            X, _ = datasets.load_paper_dataset("power", places["folder"])
        assert not np.array_equal(X, expected[0])
    assert len(server.requests) == 1


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", None])
def test_damaged_cache_is_renewed(text, server, cache):
    table = small_table("yacht")
    whole = PAPER["yacht"].to_csv(table)
    cache.mkdir()
    (cache / "yacht.csv").write_bytes(whole[:500] if text is None else text.encode())
    fails(match="has no intact copy")
    server.replies[address("yacht")] = [body(published("yacht", table))]
    datasets.load_paper_dataset("yacht")
    assert (cache / "yacht.csv").read_bytes() == whole


def test_without_pooch_the_message_names_the_extra(monkeypatch):
    monkeypatch.delenv("SOREL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setattr(paper, "_read_shipped", lambda *_: None)
    fails(match=r'pip install "sorel\[data\]"')


def test_sources_have_their_own_addresses(monkeypatch):
    for variable in ("SOREL_UCI_URL", "SOREL_OPENML_URL"):
        monkeypatch.delenv(variable, raising=False)
    urls = {name: entry.urls for name, entry in PAPER.items()}
    assert all(url.startswith("https://") for each in urls.values() for url in each)
    assert urls["kin8nm"][0].startswith("https://www.openml.org/")
    monkeypatch.setenv("SOREL_OPENML_URL", "http://localhost:1/mirror/")
    assert PAPER["kin8nm"].urls[0] == (
        "http://localhost:1/mirror/data/v1/download/3626/kin8nm.arff"
    )
    assert PAPER["yacht"].urls == urls["yacht"]


def test_downloads_that_are_forbidden_slow_or_cannot_be_kept(server, cache, monkeypatch):
    with pytest.raises(FileNotFoundError, match="download=False"):
        datasets.load_paper_dataset("yacht", download=False)
    assert server.requests == []
    data = body(published("yacht", small_table("yacht")))
    server.replies[address("yacht")] = [lambda handler: (time.sleep(1.0), data(handler))]
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    fails(match="the server timed out")
    server.replies[address("yacht")] = [data]
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be kept in the cache"):
        assert datasets.load_paper_dataset("yacht")[0].shape == (30, 6)
    monkeypatch.setitem(sys.modules, "xlrd", None)
    server.replies[address("concrete")] = [body(published("concrete", small_table("concrete")))]
    fails("concrete", match=r'reading it needs xlrd: pip install "sorel\[data\]"')
