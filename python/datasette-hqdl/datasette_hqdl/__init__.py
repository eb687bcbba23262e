"""Datasette plugin that shows the state and provenance of each cell of a published table."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import hqdl
from datasette import NotFound, Response, hookimpl
from datasette.database import QueryInterrupted
from datasette.utils.sqlite import sqlite3
from markupsafe import Markup, escape

#: Expansions that a published table shows: name, key columns, and the table of each column.
EXPANSIONS = """SELECT e.name, e.key, e.columns, o.name AS shown, o.type
  FROM hqdl_object AS e JOIN hqdl_object AS o ON o.expansion = e.name OR o.type = 'view'
  WHERE e.spec IS NOT NULL AND o.name = ?"""
CELL = "SELECT cells FROM hqdl_record WHERE expansion = ? AND key = ?"
COVERAGE = """SELECT "column", state, count(*) AS cells FROM hqdl_cell WHERE expansion = ?
  GROUP BY 1, 2 ORDER BY 1, 3 DESC"""


async def _rows(datasette: Any, database: str, sql: str, *values: Any) -> list[Any]:
    """Returns no rows if hqdl did not publish into the database, or if the query takes too long."""
    try:
        found = datasette.get_database(database).execute(sql, list(values), log_sql_errors=False)
        return (await found).rows
    except (sqlite3.DatabaseError, QueryInterrupted):
        return []


async def _expansions(datasette: Any, database: str, table: str | None) -> list[Any]:
    if table is None:
        return []
    rows = await _rows(datasette, database, EXPANSIONS, table)
    return [(name, json.loads(key), json.loads(columns)) for name, key, columns, *_ in rows]


@hookimpl
def render_cell(
    row: Any, value: Any, column: str, table: str | None, database: str, datasette: Any
) -> Any:
    async def render() -> Markup | None:
        for name, key, columns in await _expansions(datasette, database, table):
            shown = next((c for c in columns if c == column or columns[c] == table != name), None)
            if shown is None or column in key or not set(key) <= set(row.keys()):
                continue
            # Datasette passes a foreign key together with its label.
            parts = [row[part] for part in key]
            values = [p["value"] if isinstance(p, dict) else p for p in parts]
            said = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
            found = await _rows(datasette, database, CELL, name, said)
            state = (json.loads(found[0][0]).get(shown) or [None])[0] if found else None
            if state is None:
                return None
            asked = urlencode({"table": columns[shown], "key": said, "column": column})
            href = datasette.urls.path(f"/-/hqdl/{database}?{asked}")
            mark = "" if state == "ok" else f"<em>{escape(state)}</em> "
            text = "" if value is None else escape(value)
            return Markup(f'{text} <small>{mark}<a href="{escape(href)}">why</a></small>')
        return None

    # Datasette renders all other tables.
    return render if table is not None and not table.startswith("hqdl_") else None


@hookimpl
def extra_template_vars(database: str | None, table: str | None, datasette: Any) -> Any:
    async def coverage() -> dict[str, Any]:
        found = []
        for name, _, _ in await _expansions(datasette, database or "", table):
            cells: dict[str, list[str]] = {}
            for column, state, count in await _rows(datasette, database or "", COVERAGE, name):
                cells.setdefault(column, []).append(f"{state} {count:,}")
            found.append((name, cells))
        return {"hqdl_coverage": [(name, cells) for name, cells in found if cells]}

    return coverage


async def why(datasette: Any, request: Any) -> Response:
    """Returns the provenance of a cell, as ``hqdl why --json`` prints it."""
    database = request.url_vars["database"]
    try:
        path = datasette.get_database(database).path
    except KeyError:
        raise NotFound(f"there is no database {database}") from None
    table, column = request.args.get("table") or "", request.args.get("column") or ""
    await datasette.ensure_permissions(
        request.actor,
        [("view-table", (database, table)), ("view-database", database), "view-instance"],
    )
    if path is None:
        raise NotFound(f"{database} is not a file")
    try:
        key = [None if part is None else str(part) for part in json.loads(request.args["key"])]
        session = hqdl.open(database=path, cache=False)
        cells = await asyncio.to_thread(session.why, table, *key, column)
    except (hqdl.Error, KeyError, TypeError, ValueError) as error:
        raise NotFound(str(error)) from None
    return Response.json(cells)


@hookimpl
def register_routes() -> list[Any]:
    return [(r"^/-/hqdl/(?P<database>[^/]+)$", why)]
