"""The loadable extension, in Python's SQLite and in SQLite's shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hqdl
import pytest
from endpoint import Endpoint

try:
    # Python's SQLite often cannot load extensions.
    import pysqlite3 as sqlite3
except ImportError:
    import sqlite3

EXTENSION = os.environ.get("TEST_SQLITE_EXTENSION", "")
if not EXTENSION:
    pytest.skip("the extension was not built", allow_module_level=True)


def opened(path: object) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    if not hasattr(db, "enable_load_extension"):
        pytest.skip("this Python's SQLite loads no extensions")
    db.enable_load_extension(True)
    db.load_extension(EXTENSION.removesuffix(".so"))
    return db


@pytest.fixture
def flags(alone: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    program = alone / "hqdl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hqdl "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HQDL", str(program))
    cache = os.environ["HQDL_CACHE"]
    monkeypatch.setenv(
        "HQDL_FLAGS", f"--model m --base-url {endpoint.url} --price 1,2 --cache {cache}"
    )


@pytest.fixture
def db(alone: Path, flags: None) -> Iterator[sqlite3.Connection]:
    db = opened(alone / "t.sqlite")
    db.execute("CREATE TABLE t (i INTEGER, s TEXT)")
    db.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"v{n % 50}") for n in range(1, 1001)])
    db.commit()
    yield db
    db.close()


def one(db: sqlite3.Connection, sql: str, *values: object) -> object:
    return db.execute(sql, values).fetchone()[0]


def test_functions_look_up_and_ask_if_allowed(
    db: sqlite3.Connection, endpoint: Endpoint
) -> None:
    sql = "SELECT count(*) FROM t WHERE i <= 500 AND llm_map('upper', s) = 'V7'"
    assert (one(db, sql), endpoint.requests) == (0, 0)
    assert one(db, "SELECT hqdl_ask(1)") == 50
    asked = endpoint.requests
    assert 0 < asked <= 5 and set(endpoint.cells.values()) == {1}
    assert one(db, sql) == 10
    assert (one(db, "SELECT hqdl_ask(1)"), endpoint.requests) == (0, asked)
    # Another connection and the Python module read the same answers.
    again = opened(":memory:")
    assert one(again, "SELECT llm_map('upper', ?)", "v49") == "V49"
    again.close()
    model = hqdl.Model("m", base_url=endpoint.url)
    assert hqdl.map("upper", ["v1"], model=model).meta["values_asked"] == 0
    assert endpoint.requests == asked


def test_answers_have_the_type_in_the_function_name(db: sqlite3.Connection) -> None:
    sql = """SELECT llm_map_int('length', 'ant'), llm_map_real('length', 'ant'),
        llm_map_bool('has:a', 'ant'), llm_map_list('letters', 'bob'), llm_map('upper', NULL),
        llm_map('upper', 7), llm_map('upper', 'ant', json_array('ANT', 'BEE')),
        llm_map('upper', 'cat', json_array('ANT')), llm_map(NULL, 'a')"""
    assert set(db.execute(sql).fetchone()) == {None}
    assert one(db, "SELECT hqdl_ask(1)") == 7
    row = db.execute(sql).fetchone()
    assert row == (3, 3.0, 1, '["b","o"]', None, "7", "ANT", None, None)
    assert [type(value) for value in row[:3]] == [int, float, int]


def test_the_table_of_facts(db: sqlite3.Connection) -> None:
    assert db.execute("SELECT * FROM hqdl_fact").fetchall() == []
    db.execute("SELECT llm_map('upper', s) FROM t LIMIT 3").fetchall()
    assert one(db, "SELECT hqdl_ask(1)") == 3
    assert db.execute("SELECT * FROM hqdl_fact ORDER BY entity LIMIT 1").fetchall() == [
        ('{"value":"v1"}', "answer", "ok", "V1", "m")
    ]
    assert one(db, "SELECT count(*) FROM hqdl_fact WHERE state = 'ok'") == 3
    assert one(db, "SELECT value FROM hqdl_fact('v2')") == "V2"
    joined = "SELECT count(*) FROM t JOIN hqdl_fact AS f ON f.entity ->> 'value' = t.s"
    assert one(db, joined) == 60


def test_errors_are_reported(
    db: sqlite3.Connection, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, alone: Path
) -> None:
    for sql, said in [
        ("SELECT llm_map('upper', x'00')", "BLOB"),
        ("SELECT llm_map('upper', CAST(x'ff' AS TEXT))", "UTF-8"),
        ("SELECT llm_map('upper', 9e999)", "infinity"),
        ("SELECT llm_map('upper', 'a', 'red')", "options are not a list"),
        ("SELECT llm_map('upper')", "wrong number of arguments"),
        ("SELECT hqdl_ask(2)", "pass 1 to ask"),
    ]:
        with pytest.raises(sqlite3.OperationalError, match=said):
            db.execute(sql).fetchall()
    # A view in another person's database must not spend anything.
    db.execute("CREATE TABLE u (x)")
    db.execute("CREATE VIEW v AS SELECT hqdl_ask(1) AS n")
    with pytest.raises(sqlite3.OperationalError, match="unsafe use"):
        db.execute("SELECT * FROM v").fetchall()

    db.execute("SELECT llm_map('upper', s) FROM t LIMIT 20").fetchall()
    # With a budget that is too small for a request, nothing is asked.
    with pytest.raises(sqlite3.OperationalError, match="budget"):
        one(db, "SELECT hqdl_ask(1, 0.0000001)")
    assert endpoint.requests == 0
    endpoint.status = 401
    with pytest.raises(sqlite3.OperationalError, match="401"):
        one(db, "SELECT hqdl_ask(1)")
    endpoint.status = 200
    monkeypatch.setenv("HQDL_ASK", "never")
    with pytest.raises(sqlite3.OperationalError, match="never"):
        one(db, "SELECT hqdl_ask(1)")
    monkeypatch.delenv("HQDL_ASK")
    assert one(db, "SELECT hqdl_ask(1)") == 20
    assert one(db, "SELECT llm_map('upper', 'v1')") == "V1"
    assert set(endpoint.cells.values()) == {1}
    db.execute("SELECT llm_map('upper', 'new')").fetchall()
    assert one(db, "SELECT hqdl_ask(0)") == 1 and one(db, "SELECT hqdl_ask(1)") == 0


def test_a_missing_program_is_an_error(
    alone: Path, flags: None, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    db = opened(":memory:")
    monkeypatch.setenv("HQDL", str(alone / "nowhere"))
    for sql in ["SELECT llm_map('upper', 'a')", "SELECT * FROM hqdl_fact"]:
        with pytest.raises(sqlite3.OperationalError, match="cannot start"):
            db.execute(sql).fetchall()
    # A process that ended is started again.
    monkeypatch.setenv("HQDL", "true")
    with pytest.raises(sqlite3.OperationalError, match="has ended"):
        db.execute("SELECT llm_map('upper', 'a')").fetchall()
    monkeypatch.setenv("HQDL", str(alone / "hqdl"))
    assert one(db, "SELECT llm_map('upper', 'a')") is None
    assert one(db, "SELECT hqdl_ask(1)") == 1 and one(db, "SELECT llm_map('upper', 'a')") == "A"
    db.close()


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="there is no sqlite3")
def test_the_shell_of_sqlite(alone: Path, flags: None, endpoint: Endpoint) -> None:
    script = f""".load {EXTENSION.removesuffix(".so")}
CREATE TABLE t AS SELECT 'a' AS s UNION ALL SELECT 'b';
SELECT llm_map('upper', s) FROM t;
SELECT hqdl_ask(1);
SELECT s, llm_map('upper', s) FROM t;
"""
    run = subprocess.run(
        ["sqlite3", ":memory:"], input=script, capture_output=True, text=True, timeout=120
    )
    assert (run.stdout, run.stderr) == ("\n\n2\na|A\nb|B\n", "")
    # The process that the extension started has closed the cache.
    assert hqdl.map("upper", ["a"], model=hqdl.Model("m", base_url=endpoint.url)).to_pylist() == [
        "A"
    ]
