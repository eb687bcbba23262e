"""Questions in DuckDB's SQL: ``hqdl.duckdb.register(con, session)``.

DuckDB runs the query and prunes rows. The model is asked about each distinct value that reaches
``llm_map`` once, ever.
"""

from __future__ import annotations

import collections
import contextlib
import os
import warnings
from typing import TYPE_CHECKING, Any

from ._session import Model, Path, Session, session_of
from .errors import InputError

if TYPE_CHECKING:
    import duckdb

__all__ = ["register"]

#: Functions by name, with the type of their result in DuckDB and their return type in hqdl.
FUNCTIONS = {
    "llm_map": ("VARCHAR", "str"),
    "llm_map_bool": ("BOOLEAN", "bool"),
    "llm_map_int": ("BIGINT", "int"),
    "llm_map_real": ("DOUBLE", "float"),
    "llm_map_list": ("VARCHAR[]", "list[str]"),
}


def register(
    con: duckdb.DuckDBPyConnection,
    session: str | Model | Session,
    *,
    cache: Path | bool | None = None,
    attach: str | None = None,
    kind: str | None = None,
) -> None:
    """Registers ``llm_map('question', value)`` and its variants in a connection.

    ``llm_map`` returns text; ``llm_map_bool``, ``llm_map_int``, ``llm_map_real`` and
    ``llm_map_list`` return the type in their name. The optional third argument, a list of text,
    contains the possible answers: ``llm_map('Which colour?', fruit, ['red', 'green'])``. The
    value is text, a number, a date or a time. The result is NULL if the value is NULL or if
    there is no answer. A ``RuntimeWarning`` counts the missing answers by reason, because
    aggregates ignore NULL. A second ``register`` on the same connection replaces the functions of
    the first.

    The values of one DuckDB vector (2048 rows) are asked about together. DuckDB evaluates plain
    comparisons with constants first, regardless of their position in an AND. It orders other
    conditions by its own cost estimate. ``CASE WHEN condition THEN llm_map_bool(…) END`` or a
    ``MATERIALIZED`` CTE guarantees that a condition is evaluated before the call.

    Args:
        con: The connection.
        session: A ``Session``, a model's name or a ``Model``.
        cache: The same as for ``hqdl.open``, if ``session`` is not a ``Session``.
        attach: A name for attaching the session's published database, through DuckDB's extension
            ``sqlite``. If the extension is not available, a copy of the current tables and views
            is attached. None attaches nothing.
        kind: The same as for ``hqdl.map``, for all values of these functions.

    Raises:
        hqdl.Error: In a query, DuckDB raises its own error with the same text.
    """
    session = session_of(session, cache)
    for name, (duckdb_type, return_type) in FUNCTIONS.items():
        _create(con, session, name, duckdb_type, return_type, kind)
    if attach is not None:
        _attach(con, session, attach)


def _attach(con: duckdb.DuckDBPyConnection, session: Session, name: str) -> None:
    import duckdb

    path = os.fspath(session._project.database()).replace("'", "''")
    name = _quoted(name)
    try:
        con.execute(f"ATTACH '{path}' AS {name} (TYPE sqlite, READ_ONLY)")
        return
    except (duckdb.IOException, duckdb.HTTPException):
        # The extension is neither installed nor downloadable.
        con.execute(f"ATTACH ':memory:' AS {name}")
    try:
        visible = """SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')
            AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\'"""
        for (table,) in session.query(visible):
            rows = session.query(f"SELECT * FROM {_quoted(table)}").arrow()
            con.register("hqdl_rows", rows)
            con.execute(f"CREATE TABLE {name}.{_quoted(table)} AS SELECT * FROM hqdl_rows")
            con.unregister("hqdl_rows")
    except BaseException:
        con.execute(f"DETACH {name}")
        raise


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _create(
    con: Any, session: Session, name: str, duckdb_type: str, return_type: str, kind: str | None
) -> None:
    import duckdb
    import pyarrow

    # Without declared parameters, DuckDB accepts any number of arguments of any type.
    def answer(*columns: Any) -> Any:
        if not 2 <= len(columns) <= 3:
            raise InputError(f"{name} takes a question, a value and, maybe, a list of options")
        return _answer(pyarrow, session, return_type, kind, *columns)

    # Replace the function of an earlier call; a new connection has none.
    with contextlib.suppress(duckdb.InvalidInputException):
        con.remove_function(name)
    con.create_function(
        name,
        answer,
        None,
        duckdb_type,
        type="arrow",
        null_handling="special",
        # Keeps DuckDB from folding calls and from moving them before other conditions.
        side_effects=True,
    )


def _answer(
    pa: Any,
    session: Session,
    return_type: str,
    kind: str | None,
    questions: Any,
    values: Any,
    options: Any = None,
) -> Any:
    groups: dict[tuple[str, tuple[str, ...] | None], list[int]] = {}
    choices = [None] * len(questions) if options is None else options.to_pylist()
    for row, (question, chosen) in enumerate(zip(questions.to_pylist(), choices)):
        if question is not None:
            key = (str(question), None if chosen is None else tuple(map(str, chosen)))
            groups.setdefault(key, []).append(row)
    results: list[Any] = [None] * len(questions)
    for (question, chosen_from), rows in groups.items():
        group_values = values.take(pa.array(rows)) if len(rows) < len(questions) else values
        answers = session.map(
            question,
            group_values,
            return_type=return_type,
            options=chosen_from,
            kind=kind,
            progress=False,
        )
        for row, answer in zip(rows, answers.to_pylist()):
            results[row] = answer
        _warn(question, answers.states.to_pylist())
    types = {
        "str": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "list[str]": pa.list_(pa.string()),
    }
    return pa.array(results, types[return_type])


def _warn(question: str, states: list[str | None]) -> None:
    """Warns about missing answers. ``unknown`` is an answer."""
    failed = collections.Counter(
        state for state in states if state not in {None, "ok", "unknown"}
    )
    if failed:
        reasons = ", ".join(f"{state}: {count}" for state, count in sorted(failed.items()))
        warnings.warn(
            f"{sum(failed.values())} of {len(states)} answers to {question!r} could not be had and "
            f"are NULL ({reasons})",
            RuntimeWarning,
            stacklevel=2,
        )
