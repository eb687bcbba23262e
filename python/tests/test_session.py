"""A session plans, fills, queries and explains cells."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import hqdl
import pytest
from endpoint import Endpoint


def test_a_plan_asks_nothing(heroes: Path, endpoint: Endpoint) -> None:
    plan = hqdl.open(heroes).plan()
    assert (plan.cells, endpoint.requests) == (6, 0)
    assert plan.columns[0] == {
        "expansion": "llm_hero",
        "column": "loud",
        "known": 0,
        "cells": 3,
        "reasons": {"new_row": 3},
    }
    usd = plan.cost_usd
    assert 0 < usd["low"] <= usd["likely"] <= usd["most"]
    assert "new row 3" in plan._repr_html_() and "6 cells" in repr(plan)
    assert len(plan.df()) == 2


def test_a_run_fills_once_and_publishes(heroes: Path, endpoint: Endpoint) -> None:
    session = hqdl.open(heroes)
    heard: list[str] = []
    part = session.materialize(limit=1, on_event=lambda e: heard.append(e["event"]))
    assert part["cells"]["ok"] == 2 and part["complete"]
    assert heard[0] == "begin" and "kept" in heard
    done = session.materialize()
    assert done["cells"]["ok"] == 6 and done["complete"]
    assert set(endpoint.cells.values()) == {1}
    asked = endpoint.requests
    assert session.materialize()["cells_reused"] == 6
    assert endpoint.requests == asked
    with sqlite3.connect("expanded.sqlite") as db:
        assert db.execute("SELECT loud, size FROM llm_hero ORDER BY name").fetchall() == [
            ("ANN", 3),
            ("BO", 2),
            ("CYD", 3),
        ]
    rows = session.query("SELECT loud FROM hero_expanded WHERE height > :h", {"h": 185}).rows
    assert sorted(rows) == [("BO",), ("CYD",)]


def test_tables_are_published_as_parquet_files(heroes: Path, endpoint: Endpoint) -> None:
    duckdb = pytest.importorskip("duckdb")
    pandas = pytest.importorskip("pandas")
    session = hqdl.open(heroes, output="files/")
    assert session.materialize()["complete"]
    rows = duckdb.sql("SELECT loud, size FROM 'files/llm_hero.parquet' ORDER BY name").fetchall()
    assert rows == [("ANN", 3), ("BO", 2), ("CYD", 3)]
    joined = pandas.read_parquet("files/hero_expanded.parquet")
    assert joined["size"].dtype == "int64" and "height" in joined.columns
    cells = pandas.read_parquet("files/hqdl_cell.parquet")
    assert len(cells) == 6 and set(cells["state"]) == {"ok"}


def test_a_query_asks_only_for_missing_values(heroes: Path, endpoint: Endpoint) -> None:
    session = hqdl.open(heroes)
    sql = "SELECT name, {{LLMMap('length', hero.name)}} AS n FROM hero WHERE height > 185"
    told = session.explain(sql)
    assert (told["values_asked"], told["unbounded"], endpoint.requests) == (2, [], 0)
    assert session.query(sql).meta["values_asked"] == 2
    assert session.query(sql).meta["values_asked"] == 0
    assert session.explain(sql)["values_asked"] == 0
    assert session.suggest()["questions"] == [] or session.suggest()["questions"]


def test_why_and_override(heroes: Path, endpoint: Endpoint) -> None:
    session = hqdl.open(heroes)
    with pytest.raises(hqdl.InputError, match="no published tables|cannot"):
        session.why("llm_hero", "Bo", "loud")
    session.materialize()
    (cell,) = session.why("llm_hero", "Bo", "loud")
    assert (cell["state"], cell["value"], cell["model"]) == ("ok", "BO", "m")
    with pytest.raises(hqdl.InputError, match="no column") as raised:
        session.why("llm_hero", "Bo", "lod")
    assert "loud" in raised.value.hint
    session.override("llm_hero", "Bo", "size", 7, note="measured")
    session.materialize()
    (cell,) = session.why("llm_hero", "Bo", "size")
    assert (cell["state"], cell["value"]) == ("overridden", 7)
    with pytest.raises(hqdl.InputError):
        session.override("llm_hero", "Bo", "size", "tall")


def test_live_questions_are_suggested(heroes: Path, endpoint: Endpoint) -> None:
    session = hqdl.open(heroes)
    session.map("has:o", ["Bo"], return_type=bool)
    (question,) = session.suggest()["questions"]
    assert (question["question"], question["values"]) == ("has:o", 1)


def test_a_run_over_budget_reports_its_work(heroes: Path, endpoint: Endpoint) -> None:
    session = hqdl.open(heroes)
    with pytest.raises(hqdl.BudgetError) as raised:
        session.materialize(budget=1e-9)
    report = raised.value.report
    assert report is not None and report["requests"] == 0 and not report["complete"]
    endpoint.status = 403
    with pytest.raises(hqdl.EndpointError, match="403"):
        session.materialize()
    endpoint.status = 200
    assert session.materialize()["complete"]


def test_all_problems_of_a_spec_are_reported_at_once(heroes: Path) -> None:
    heroes.write_text(heroes.read_text().replace("hero\"\nkey", "hro\"\nkey").replace("type", "tpe"))
    with pytest.raises(hqdl.InputError) as raised:
        hqdl.open(heroes)
    assert "tpe" in raised.value.text and raised.value.exit == 2
    with pytest.raises(hqdl.InputError, match="nowhere"):
        hqdl.open("nowhere.toml")
    with pytest.raises(hqdl.InputError, match="nowhere"):
        hqdl.open(database="nowhere.sqlite")


def test_the_command_prints_the_same(heroes: Path, endpoint: Endpoint) -> None:
    session = hqdl.open(heroes)
    plan = session.plan()
    session.query("SELECT {{LLMMap('upper', hero.name)}} FROM hero")
    # The command can use the cache while this process has it open.
    run = subprocess.run(
        [sys.executable, "-m", "hqdl", "plan", str(heroes), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout)["expansions"][0]["keys"] == plan.json["expansions"][0]["keys"]
    asked = endpoint.requests
    sql = "SELECT {{LLMMap('upper', hero.name)}} FROM hero"
    command = [sys.executable, "-m", "hqdl", "query", "--spec", str(heroes), "--json", sql]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["rows"] == [["ANN"], ["BO"], ["CYD"]]
    assert endpoint.requests == asked
    wrong = subprocess.run(
        [sys.executable, "-m", "hqdl", "check", str(heroes.parent / "nowhere.toml")],
        capture_output=True,
        text=True,
    )
    with pytest.raises(hqdl.InputError) as raised:
        hqdl.open("nowhere.toml")
    assert wrong.returncode == raised.value.exit == 2
    assert raised.value.message in wrong.stderr and raised.value.hint in wrong.stderr


def test_threads_share_a_session_and_ask_once(heroes: Path, endpoint: Endpoint) -> None:
    session = hqdl.open(heroes)
    values = [f"v{n}" for n in range(40)]
    found: list[list[object]] = []

    def ask() -> None:
        found.append(session.map("upper", values).to_pylist())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[v.upper() for v in values]] * 4
    assert set(endpoint.cells.values()) == {1}


def test_async_variants(heroes: Path) -> None:
    async def all_of_it() -> tuple[object, ...]:
        session = hqdl.open(heroes)
        plan = await session.plan_async()
        done = await session.materialize_async(limit=2)
        rows = await session.query_async("SELECT count(*) FROM llm_hero")
        return plan.cells, done["complete"], rows.rows

    cells, complete, rows = asyncio.run(all_of_it())
    assert (cells, complete) == (6, True) and rows


def test_a_session_can_have_no_cache(endpoint: Endpoint, model: hqdl.Model) -> None:
    one, other = (hqdl.open(model=model, cache=False) for _ in range(2))
    assert one.map("upper", ["ant"]).to_pylist() == other.map("upper", ["ant"]).to_pylist()
    assert endpoint.cells[("upper", "ant")] == 2
    assert one.map("upper", ["ant"]).meta["values_asked"] == 0


def test_the_notebook_magic(heroes: Path) -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "hqdl")
    shell.user_ns.update(session=hqdl.open(heroes), tall=185)
    cell = "SELECT {{LLMMap('upper', hero.name)}} FROM hero WHERE height > :tall"
    result = shell.run_cell_magic("hqdl", "session found", cell)
    assert sorted(result.rows) == [("BO",), ("CYD",)]
    assert shell.user_ns["found"] is result
