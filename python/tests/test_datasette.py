"""Datasette plugin: states and reasons next to cells, coverage on the table's page."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from html import unescape
from pathlib import Path
from typing import Any

import hqdl
import pytest
from endpoint import Endpoint

datasette = pytest.importorskip("datasette.app")
pytest.importorskip("datasette_hqdl")


@pytest.fixture
def get(heroes: Path, alone: Path, endpoint: Endpoint) -> Any:
    """Opens a page of the expanded heroes and returns its status and text."""
    endpoint.truth = lambda question, value: (
        None if value == "Bo" and question == "length" else {"upper": value.upper()}.get(
            question, len(value)
        )
    )
    hqdl.open(heroes).materialize()
    hqdl.close()
    shown = datasette.Datasette([str(alone / "expanded.sqlite")])

    def get(path: str) -> tuple[int, str]:
        response = asyncio.run(shown.client.get(path))
        return response.status_code, response.text

    return get


def test_cells_show_their_provenance(get: Any) -> None:
    status, page = get("/expanded/llm_hero")
    assert status == 200
    links = [unescape(href) for href in re.findall(r'href="([^"]*/-/hqdl/[^"]*)"', page)]
    assert len(links) == 6
    # A cell without a value shows its state.
    assert page.count("<em>unknown</em>") == 1
    told = [get(link) for link in links]
    assert {status for status, _ in told} == {200}
    assert any('"value": "ANN"' in text and '"model": "m"' in text for _, text in told)
    assert any('"state": "unknown"' in text for _, text in told)
    status, page = get("/expanded/hero_expanded")
    assert (status, page.count("/-/hqdl/")) == (200, 6)


def test_the_page_of_a_table_shows_its_coverage(get: Any) -> None:
    for table in ["llm_hero", "hero_expanded"]:
        text = re.sub(r"\s+", " ", get(f"/expanded/{table}")[1])
        assert "<th>loud</th><td>ok 3</td>" in text and "<th>size</th><td>ok 2, unknown 1" in text


@pytest.mark.parametrize(
    "asked",
    [
        "nowhere?table=llm_hero&key=[]&column=x",
        "expanded?table=llm_hero&key=[%22Ann%22]&column=nix",
        "expanded?table=nix&key=[%22Ann%22]&column=loud",
        "expanded?table=llm_hero&key=no&column=loud",
        "expanded?table=llm_hero&key=7&column=loud",
        "expanded",
    ],
)
def test_missing_cells_are_not_found(get: Any, asked: str) -> None:
    assert get(f"/-/hqdl/{asked}")[0] == 404


def test_other_tables_are_not_changed(alone: Path) -> None:
    with sqlite3.connect(alone / "plain.sqlite") as db:
        db.execute("CREATE TABLE t (a)")
        db.execute("INSERT INTO t VALUES ('<b>')")
    shown = datasette.Datasette([str(alone / "plain.sqlite")])
    page = asyncio.run(shown.client.get("/plain/t"))
    assert page.status_code == 200 and "hqdl" not in page.text and "&lt;b&gt;" in page.text
