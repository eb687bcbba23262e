"""Calls in DuckDB's SQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import hqdl
import hqdl.duckdb
import pytest
from endpoint import Endpoint

duckdb = pytest.importorskip("duckdb")


@pytest.fixture
def con(model: hqdl.Model) -> "duckdb.DuckDBPyConnection":
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT i, 'v' || (i % 50) AS s FROM range(5000) r(i)")
    hqdl.duckdb.register(con, model)
    return con


def test_each_distinct_value_is_asked_once(con: object, endpoint: Endpoint) -> None:
    sql = "SELECT count(*) FROM t WHERE llm_map('upper', s) = 'V7'"
    assert con.execute(sql).fetchall() == [(100,)]
    assert set(endpoint.cells.values()) == {1} and len(endpoint.cells) == 50
    asked = endpoint.requests
    assert con.execute(sql).fetchall() == [(100,)]
    assert endpoint.requests == asked


def test_the_last_registration_counts(con: object, endpoint: Endpoint) -> None:
    other = Endpoint(lambda question, value: f"other {value}")
    hqdl.duckdb.register(con, hqdl.Model("other", base_url=other.url, price=(0, 0)), cache=False)
    assert con.execute("SELECT llm_map('upper', 'ant')").fetchall() == [("other ant",)]
    assert endpoint.requests == 0 and other.requests == 1


def test_missing_answers_are_warned_of(con: object) -> None:
    other = Endpoint(lambda question, value: "seven" if value == "v1" else 1)
    hqdl.duckdb.register(con, hqdl.Model("other", base_url=other.url, price=(0, 0)), cache=False)
    with pytest.warns(RuntimeWarning, match=r"could not be had and are NULL \(invalid: "):
        sql = "SELECT sum(llm_map_int('count', s)) FROM (SELECT DISTINCT s FROM t)"
        assert con.execute(sql).fetchall() == [(49,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT s FROM t WHERE i < 10 AND {}",
        "SELECT s FROM t WHERE {} AND i < 10",
        "SELECT s FROM t WHERE s < 'v2' AND {}",
        # DuckDB orders conditions that are not comparisons by their estimated cost.
        "SELECT s FROM t WHERE CASE WHEN length(s || i) = 3 THEN {} END",
        "WITH few AS MATERIALIZED (SELECT s FROM t WHERE length(s || i) = 3) "
        "SELECT s FROM few WHERE {}",
    ],
)
def test_only_rows_that_pass_plain_conditions_are_asked(
    con: object, endpoint: Endpoint, sql: str
) -> None:
    plain = con.execute(sql.format("true")).fetchall()
    con.execute(sql.format("llm_map_bool($$has:1$$, s)")).fetchall()
    assert {value for _, value in endpoint.cells} == {value for (value,) in plain}


def test_answers_have_the_type_in_the_function_name(con: object, endpoint: Endpoint) -> None:
    row = con.execute(
        """SELECT llm_map('upper', 'ant'), llm_map_int('length', 'ant'),
                  llm_map_real('length', 'ant'), llm_map_bool('has:a', 'ant'),
                  llm_map_list('letters', 'bob'), llm_map('upper', NULL), llm_map('upper', 7),
                  llm_map('upper', 'ant', ['ANT', 'BEE']), llm_map('upper', 'cat', ['ANT'])"""
    ).fetchone()
    assert row == ("ANT", 3, 3.0, True, ["b", "o"], None, "7", "ANT", None)


def test_a_column_of_questions(con: object, endpoint: Endpoint) -> None:
    sql = "SELECT llm_map(q, v) FROM (VALUES ('upper', 'a'), ('length', 'a'), (NULL, 'a')) r(q, v)"
    assert con.execute(sql).fetchall() == [("A",), ("1",), (None,)]


def test_errors_are_reported(con: object, endpoint: Endpoint) -> None:
    endpoint.status = 401
    with pytest.raises(duckdb.Error, match="answers 401"):
        con.execute("SELECT llm_map('upper', 'new')").fetchall()


def test_the_expanded_tables_are_attached(heroes: object, endpoint: Endpoint) -> None:
    """Uses DuckDB's extension, or a copy if the extension cannot be installed."""
    session = hqdl.open(str(heroes))
    session.materialize()
    con = duckdb.connect()
    hqdl.duckdb.register(con, session, attach="my heroes")
    loud = con.execute('SELECT loud FROM "my heroes".llm_hero ORDER BY 1').fetchall()
    assert loud == [("ANN",), ("BO",), ("CYD",)]
    # A query can join them with DuckDB's own tables.
    con.execute("CREATE TABLE seen AS SELECT 'Ann' AS name")
    sql = """SELECT height, size, llm_map('upper', name) FROM seen
        JOIN "my heroes".hero_expanded USING (name)"""
    assert con.execute(sql).fetchall() == [(180, 3, "ANN")]


def test_a_database_that_cannot_be_attached(heroes: object, alone: Path) -> None:
    with sqlite3.connect(alone / "heroes.sqlite") as db:
        db.execute("CREATE TABLE mixed (a)")
        db.executemany("INSERT INTO mixed VALUES (?)", [(1,), ("x",)])
    con = duckdb.connect()
    try:
        hqdl.duckdb.register(con, hqdl.open(str(heroes)), attach="h")
    except hqdl.InputError as error:
        # A copy needs one type per column. A failed copy leaves nothing behind.
        assert "has one type" in str(error)
        assert con.execute("SELECT 1 FROM duckdb_databases() WHERE database_name = 'h'").fetchall() == []
