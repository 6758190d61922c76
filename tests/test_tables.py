"""Reading and checking tables: what comes in, and what is refused with a place and a reason."""

import datetime
import decimal
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="pandas is an extra")

from sorel import tables
from sorel.tables import TableError, column_kinds, read_table, refuse_misread, select_columns


def csv(tmp_path, text, name="t.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def refused(path, **options):
    with pytest.raises(TableError) as info:
        read_table(path, **options)
    message = str(info.value)
    assert "\n" not in message
    return message


def test_numbers_come_back_to_the_last_bit(tmp_path, capsys, monkeypatch):
    x = np.random.default_rng(0).normal(size=2000) * 10.0 ** np.arange(-300, 300, 0.3)
    for name in ("t.csv", "t.parquet"):
        tables.write_table(pd.DataFrame({"x": x}), tmp_path / name)
        np.testing.assert_array_equal(read_table(tmp_path / name)["x"], x)
    frame = pd.DataFrame({"p": [0.1 + 0.2], "t": ["\x1b"]})
    tables.write_table(frame, "-")
    assert capsys.readouterr().out == "p,t\n0.30000000000000004,\x1b\n"
    # A terminal is shown control characters, and does not obey them.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tables.write_table(frame, "-")
    assert capsys.readouterr().out == "p,t\n0.30000000000000004,\\x1b\n"


def test_byte_order_mark_quotes_blank_lines_and_separators(tmp_path):
    frame = read_table(csv(tmp_path, '\ufeffa,"b, c"\r\n1,"x\ny"\r\n\r\n2,z\r\n'))
    assert list(frame.columns) == ["a", "b, c"]
    assert frame["b, c"].tolist() == ["x\ny", "z"]
    assert read_table(csv(tmp_path, "a\tb\n1\t2\n", "t.tsv")).shape == (1, 2)
    assert read_table(csv(tmp_path, "a;b\n1;2\n"), sep=";").shape == (1, 2)
    thousands = csv(tmp_path, 'a,b\n"1,234",x\n"5",y\n')
    assert read_table(thousands)["a"].tolist() == ["1,234", "5"]
    assert read_table(thousands, thousands=",")["a"].tolist() == [1234, 5]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_pipes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\n2\n",))
    writer.start()
    assert read_table(tmp_path / "pipe")["a"].tolist() == [2]
    writer.join()


def test_parquet_is_known_by_its_first_bytes(tmp_path):
    frame = pd.DataFrame({"a": [1.5], "b": ["x"]}, index=[7])
    frame.to_parquet(tmp_path / "t.dat")
    assert read_table(tmp_path / "t.dat").index.tolist() == [0]
    (tmp_path / "t.dat").write_bytes((tmp_path / "t.dat").read_bytes()[:-9])
    assert "cannot be read as Parquet" in refused(tmp_path / "t.dat")
    assert "cannot be read as Parquet" in refused(csv(tmp_path, "a\n1\n"), format="parquet")


@pytest.mark.parametrize(("text", "words"), [
    ("", "is empty; it should have a header"),
    ("a,b\n", "has a header but no rows"),
    ("\n1,2\n", "has no header"),
    ("a,b,a\n1,2,3\n", "two columns called 'a' (1 and 3)"),
    (",a\n0,1\n", "column 1 of"),
    ("a,b\n1,2\n4,5,6\n", "row 2 of"),
    ('a,b\n1,"2\n', "not a well-formed CSV file"),
    ("a;b\n1;2\n", "--sep ';'"),
    ("a,b\né,2\n", "not text in UTF-8 (byte 0xe9"),
])  # fmt: skip
def test_files_that_are_no_tables(tmp_path, text, words):
    message = refused(csv(tmp_path, text, encoding="latin-1"))
    assert words in message
    assert "t.csv" in message


def test_text_columns_keep_their_zeros(tmp_path):
    path = csv(tmp_path, "zip,x\n0150,1\n5003,2\n,3\n")
    frame = read_table(path, text_columns=["zip"])
    assert frame["zip"].tolist()[:2] == ["0150", "5003"]
    assert frame["zip"].isna().tolist() == [False, False, True]


def test_kinds_of_columns():
    frame = pd.DataFrame({
        "int": [1, 2],
        "nullable": pd.array([1, None], dtype="Int64"),
        "decimal": [decimal.Decimal("1.5"), decimal.Decimal("2")],
        "text": ["a", None],
        "category": pd.Categorical(["a", "b"]),
        "codes": pd.Categorical([1, 2]),
        "bool and missing": [True, None],
    })  # fmt: skip
    kinds = column_kinds(frame)
    assert list(kinds.values()) == [*["numeric"] * 3, *["text"] * 3, "boolean"]
    chosen = select_columns(frame, kinds, allow_missing=True)
    assert chosen["decimal"].tolist() == [1.5, 2.0]
    assert chosen["codes"].tolist() == ["1", "2"]
    np.testing.assert_array_equal(chosen["nullable"], [1.0, np.nan])


LIMITED = """
import resource, sys
import pandas
from sorel.tables import read_table
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for megabytes in (0, 2, 5, 8, 12, 20, 40):
    limit = held + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        print(len(read_table("long.csv")))
    except MemoryError as error:
        print("MemoryError:", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits and their sizes are those of Linux")
def test_too_little_memory_is_not_the_fault_of_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(4).random((30_000, 12))
    pd.DataFrame(numbers, columns=list("abcdefghijkl")).to_csv("long.csv", index=False)
    found = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "memory ran out while 'long.csv' was read" in found.stdout
    assert "30000" in found.stdout


@pytest.mark.parametrize(("values", "words"), [
    ([None, None], "has no values at all"),
    ([datetime.datetime(2020, 1, 1)] * 2, "holds dates or times"),
    ([1.0, "a"], "holds values of other types"),
    ([1j, 2j], r"holds values of other types \(complex\)"),
])  # fmt: skip
def test_kinds_that_are_refused(values, words):
    with pytest.raises(TableError, match=f"column 'x' {words}"):
        column_kinds(pd.DataFrame({"x": values}))


DATES = r"should hold dates such as 2024-01-31 or 2024-01-31 18:30, but row"


@pytest.mark.parametrize(("values", "kind", "words"), [
    ([1.0, None], "numeric", "has no value in row 2; do this"),
    ([1.0, np.inf], "numeric", "is inf in row 2"),
    ([1.0, -1e200], "numeric", "is -1e.200 in row 2, too large to compute with"),
    ([1, -(3**700)], "numeric", "is -9.66e.333 in row 2, too large to compute with"),
    (["1", "one"], "numeric", "should hold numbers, but row 2 holds 'one'"),
    ([True, False], "numeric", "should hold numbers, but row 1 holds True"),
    (["yes", "no"], "boolean", "should hold true or false, but row 1 holds 'yes'"),
    (["2024-01-05", "03/04/2024"], "date", f"{DATES} 2 holds '03/04/2024'"),
    # Numbers are neither years nor seconds, in a column of numbers or among texts.
    (["2024-01-05", 20240206], "date", f"{DATES} 2 holds 20240206"),
    ([5, 6], "date", f"{DATES} 1 holds 5"),
])  # fmt: skip
def test_values_that_are_refused(values, kind, words):
    with pytest.raises(TableError, match=f"column 'x' {words}"):
        select_columns(pd.DataFrame({"x": values}), {"x": kind}, hint="do this")


def test_rows_are_counted_as_in_the_file():
    frame = pd.DataFrame({"a": [1.0, 2.0, None, 4.0]})
    for part in (frame[1:], frame.set_index(pd.Index(list("wxyz")))):
        with pytest.raises(TableError, match="no value in row 3"):
            select_columns(part, {"a": "numeric"})


def test_unknown_categories_are_found_once():
    frame = pd.DataFrame({"c": ["a", "z", np.nan, "z", "y"], "d": [True, True, True, True, False]})
    found = tables.unknown_categories(frame, {"c": ["a", "b"], "d": [True]})
    assert found == [("c", "z", 2), ("c", "y", 5), ("d", False, 5)]


def test_pipeline_imputes_with_training_values():
    from sklearn.linear_model import Ridge

    frame = pd.DataFrame(
        {"x": [1.0, 2.0, 9.0, np.nan], "c": ["a", "b", "b", np.nan], "t": [True, True, False, None]}
    )
    kinds = column_kinds(frame)
    X = select_columns(frame, kinds, allow_missing=True)
    pipeline = tables.make_pipeline(kinds, Ridge(), impute=True).fit(X, [1.0, 2.0, 3.0, 4.0])
    filled = X.fillna({"x": 2.0, "c": "b"})
    filled.loc[3, "t"] = True
    np.testing.assert_array_equal(pipeline.predict(X), pipeline.predict(filled))
    restored = tables.restore_pipeline(kinds, pipeline, impute=True)
    np.testing.assert_array_equal(restored.predict(X), pipeline.predict(X))


@pytest.mark.parametrize("module", ["pandas", "pyarrow"])
def test_missing_packages_name_the_extra(module, tmp_path, monkeypatch):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "sorel\[cli\]"'):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize(("values", "what"), [
    (["2024-01-05", "2024-02-11", "2023-12-31"], "dates"),
    (["31/12/2024", "1/2/2023"], "dates"),
    (["1,234", "56", "7,890,123.5"], "numbers with separators for thousands"),
    (["1,5", "2,75"], "numbers with a decimal comma"),
    (["$1,200.50", "$3"], "numbers with a sign"),
    (["0150", "5003"], None),
    (["10 Downing St", "2024-01-05", "x"], None),
    (["1,234"], None),
])  # fmt: skip
def test_texts_in_disguise(values, what):
    frame = pd.DataFrame({"x": [*values, None]}, dtype=object)
    if what is None:
        refuse_misread(frame, ["x"])
        return
    with pytest.raises(TableError, match=f"'x' holds {what}, .* would become {len(values)} indic"):
        refuse_misread(frame, ["x"])
    refuse_misread(frame, [])


@pytest.mark.parametrize(("values", "days"), [
    (["1970-01-01", "1970-01-02 12:00", None, "20240301"], [0.0, 1.5, np.nan, 19783.0]),
    (["1970-01-02T00:00:00+06:00", "1970-01-01T18:00:00Z"], [0.75, 0.75]),
    ([datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1)], [2932896.0, -719162.0]),
], ids=["texts", "zones", "far"])  # fmt: skip
def test_dates_become_days(values, days):
    frame = pd.DataFrame({"when": values})
    assert column_kinds(frame, ["when"]) == {"when": "date"}
    found = select_columns(frame, {"when": "date"}, allow_missing=True)["when"]
    np.testing.assert_array_equal(found, days)


@pytest.mark.parametrize(("name", "words"), [
    ("delay", "did you mean 'arr_delay' or 'dep_delay'?"),
    ("xyz", "there is no column 'xyz'; the columns are 'arr_delay'"),
    ("xyz", "'c15' and 14 more"),
])  # fmt: skip
def test_suggestions_look_at_parts_of_names(name, words):
    columns = ["arr_delay", "dep_delay", "carrier", "origin", *(f"c{i}" for i in range(30))]
    with pytest.raises(TableError) as info:
        tables.require_columns(columns, [name])
    assert words in str(info.value)
