"""SQL with calls, over plain tables."""

from __future__ import annotations

import asyncio
import datetime
import decimal
from typing import Any

import hqdl
import pyarrow as pa
import pytest
from endpoint import Endpoint

CALL = "{{LLMMap('upper', t.name)}}"


def test_a_query_over_frames(endpoint: Endpoint, model: hqdl.Model) -> None:
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    columns = {"name": ["ant", "bee", None], "legs": [6, 6, None]}
    forms: list[Any] = [
        columns,
        pa.table(columns),
        pd.DataFrame(columns),
        pl.DataFrame(columns),
        pa.table(columns).to_reader(),
    ]
    sql = f"SELECT {CALL} AS loud, legs FROM t ORDER BY rowid"
    for table in forms:
        result = hqdl.query(sql, tables={"t": table}, model=model)
        assert result.rows == [("ANT", 6), ("BEE", 6), (None, None)], type(table)
        assert result.columns == ["loud", "legs"]
    assert set(endpoint.cells.values()) == {1}
    table = result.arrow()
    assert table.schema.types == [pa.large_string(), pa.int64()]
    assert result.pl()["legs"].to_list() == [6, 6, None]
    assert result.df()["loud"].tolist()[:2] == ["ANT", "BEE"]
    assert pa.table(result).equals(table)
    assert len(result) == 3 and list(result) == result.rows
    assert "BEE" in result._repr_html_() and "NULL" in result._repr_html_()


def test_tables_are_joined(endpoint: Endpoint, model: hqdl.Model) -> None:
    result = hqdl.query(
        f"SELECT t.name, u.n FROM t JOIN u ON u.id = t.id WHERE {CALL} = :loud",
        {"loud": "ANT"},
        tables={"t": {"id": [1, 2], "name": ["ant", "bee"]}, "u": {"id": [1, 2], "n": [10, 20]}},
        model=model,
    )
    assert result.rows == [("ant", 10)]
    assert hqdl.query("SELECT ? + ?", [1, 2], tables={}).rows == [(3,)]


def test_types_are_those_of_sqlite() -> None:
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.timezone.utc)
    table = pa.table(
        {
            "truth": pa.array([True, None]),
            "small": pa.array([1, 2], pa.uint8()),
            "half": pa.array([0.5, float("nan")], pa.float32()),
            "day": pa.array([datetime.date(2026, 1, 2), None]),
            "zoned": pa.array([noon, None], pa.timestamp("s", tz="Asia/Tokyo")),
            "price": pa.array([decimal.Decimal("1.50"), None]),
            "bytes": pa.array([b"\x00\xff", None]),
            "word": pa.array(["a", None]).dictionary_encode(),
            "nothing": pa.nulls(2),
            'odd "name"': pa.array(["x", "y"]),
        }
    )
    result = hqdl.query("SELECT * FROM t", tables={"t": table})
    assert result.rows == [
        (1, 1, 0.5, "2026-01-02", "2026-01-02T12:00:00Z", 1.5, b"\x00\xff", "a", None, "x"),
        (None, 2, None, None, None, None, None, None, None, "y"),
    ]
    assert result.columns == table.column_names


def test_pandas_objects_can_be_any_sql_value(model: hqdl.Model) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": pd.Series([1, "x", None, 2.5, pd.NaT], dtype=object)})
    frame.index = [9, 8, 7, 6, 5]
    result = hqdl.query("SELECT * FROM t", tables={"t": frame})
    assert result.rows == [(1,), ("x",), (None,), (2.5,), (None,)]
    with pytest.raises(hqdl.InputError, match="contains integers, text, reals"):
        result.arrow()
    nested = pd.DataFrame({"a": pd.Series([[1], "x"], dtype=object)})
    with pytest.raises(hqdl.InputError, match="t.a"):
        hqdl.query("SELECT * FROM t", tables={"t": nested})


@pytest.mark.parametrize(
    "column",
    [pa.array([[1]]), pa.array([{"a": 1}]), pa.array([2**63], pa.uint64())],
    ids=["list", "struct", "big"],
)
def test_a_column_of_an_unsupported_type_is_named(column: pa.Array) -> None:
    with pytest.raises(hqdl.InputError, match="`odd` of `t`"):
        hqdl.query("SELECT 1", tables={"t": pa.table({"odd": column})})
    with pytest.raises(hqdl.InputError, match="not a table"):
        hqdl.query("SELECT 1", tables={"t": 7})
    with pytest.raises(hqdl.InputError, match="one length"):
        hqdl.query("SELECT 1", tables={"t": {"a": [1], "b": []}})
    for scalar in (1, None, "text"):
        with pytest.raises(hqdl.InputError, match="the column `a` of `t`"):
            hqdl.query("SELECT 1", tables={"t": {"a": scalar}})


def test_empty_frames_and_empty_results(endpoint: Endpoint) -> None:
    pd = pytest.importorskip("pandas")
    empty = pd.DataFrame({"name": pd.Series([], dtype=str)})
    result = hqdl.query(f"SELECT {CALL} AS x, name FROM t", tables={"t": empty}, model="m")
    assert result.rows == [] and result.columns == ["x", "name"]
    assert result.arrow().num_rows == 0 and result.df().empty and result.pl().is_empty()
    assert endpoint.requests == 0


def test_integers_and_reals_are_numbers() -> None:
    result = hqdl.query("VALUES (1), (2.5), (NULL)", tables={})
    assert result.arrow().schema.types == [pa.float64()]
    big = hqdl.query("VALUES (9007199254740993), (2.5)", tables={})
    assert big.rows == [(9007199254740993,), (2.5,)]
    with pytest.raises(hqdl.InputError, match="CAST"):
        big.arrow()


def test_errors_have_their_position() -> None:
    with pytest.raises(hqdl.InputError) as raised:
        hqdl.query("SELECT nme FROM t", tables={"t": {"name": ["a"]}})
    error = raised.value
    assert error.exit == 2 and "nme" in error.message
    assert "SELECT nme FROM t" in error.text and "^" in error.text
    with pytest.raises(hqdl.InputError, match="no value"):
        hqdl.query("SELECT :x", tables={})
    with pytest.raises(hqdl.InputError, match="none is named"):
        hqdl.query(f"SELECT {CALL} FROM t", tables={"t": {"name": ["a"]}})
    with pytest.raises(hqdl.Error):
        hqdl.query("DROP TABLE t", tables={"t": {"name": ["a"]}})


def test_the_async_variant(model: hqdl.Model) -> None:
    sql = f"SELECT {CALL} FROM t"
    result = asyncio.run(hqdl.query_async(sql, tables={"t": {"name": ["ant"]}}, model=model))
    assert result.rows == [("ANT",)]
