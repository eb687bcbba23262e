"""Queries of BlendSQL's tests with their own ingredients, written with ``@hqdl.ingredient``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hqdl
import pytest
from hqdl import _ingredients

CASES = Path(__file__).parents[3] / "shared/blendsql"


@pytest.fixture(autouse=True)
def ingredients() -> Iterator[None]:
    """Defines the ingredients of BlendSQL's tests."""

    @hqdl.ingredient
    def test_starts_with(prefix: str, value: str) -> bool:
        return value.startswith(prefix)

    @hqdl.ingredient
    def get_length(value: str) -> int:
        return len(value)

    @hqdl.ingredient
    def return_true() -> bool:
        return True

    @hqdl.ingredient
    def return_aapl() -> str:
        return "AAPL"

    @hqdl.ingredient(kind="qa")
    def get_table_size(context: list[dict[str, Any]]) -> int:
        return len(context)

    @hqdl.ingredient(kind="qa")
    def select_first_sorted(options: list[str]) -> str:
        return min(options)

    @hqdl.ingredient(kind="qa")
    def select_first_option(
        context: list[dict[str, Any]] | None = None, options: list[str] | None = None
    ) -> str:
        return min(options or [])

    @hqdl.ingredient(kind="join")
    def do_join(left: str, right: list[str]) -> list[str]:
        return [value for value in right if value == left]

    yield
    _ingredients._registry.clear()


def read_cases() -> list[dict[str, Any]]:
    if not CASES.exists():
        return []
    lines = (CASES / "cases.jsonl").read_text().splitlines()
    cases = (json.loads(line) for line in lines)
    return [case for case in cases if case.get("ingredients") and case.get("blendsql")]


def to_comparable(rows: list[tuple[Any, ...]], ordered: bool) -> list[str]:
    """Returns the rows as texts, in which ``TRUE`` is 1, 2.0 is 2, and sums are rounded."""
    texts = [
        repr([round(float(cell), 6) if isinstance(cell, (int, float)) else cell for cell in row])
        for row in rows
    ]
    return texts if ordered else sorted(texts)


def run(case: dict[str, Any]) -> None:
    database = CASES / case["db"]
    result = hqdl.open(database=database).query(case["blendsql"])
    kept = [n for n, name in enumerate(result.columns) if name not in case["drop_columns"]]
    rows = [tuple(row[n] for n in kept) for row in result]
    with sqlite3.connect(f"file:{database}?immutable=1", uri=True) as connection:
        expected = connection.execute(case["sql"]).fetchall() if case["sql"] else []
    # LIMIT without ORDER BY returns any of the rows.
    has_any_rows = case["sql"] and "LIMIT" in case["sql"] and "ORDER BY" not in case["sql"]
    if has_any_rows:
        assert len(rows) == len(expected)
    elif case["compare"] in ("ordered", "unordered"):
        ordered = case["compare"] == "ordered"
        assert to_comparable(rows, ordered) == to_comparable(expected, ordered)
    elif case["compare"] == "any_valid_row":
        assert len(rows) == len(expected)


@pytest.mark.skipif(not read_cases(), reason="the queries are not here")
def test_published_queries_run_as_they_are_written() -> None:
    failed: dict[str, str] = {}
    count = 0
    for case in read_cases():
        try:
            run(case)
            count += 1
        except Exception as error:  # noqa: BLE001
            failed[case["id"]] = f"{type(error).__name__}: {error}"
    print(count, "run,", len(failed), "failed")
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
