"""Questions in DuckDB's SQL: ``hqdl.duckdb.register(con, session)``.

DuckDB runs the query and prunes; what reaches ``llm_map`` is asked, each distinct value
once, ever.
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

#: Name of a function, what DuckDB says it returns, and what answers are read as.
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
    """Gives a connection ``llm_map('question', value)`` and its kin.

    ``llm_map`` yields text, ``llm_map_bool``, ``llm_map_int``, ``llm_map_real`` and
    ``llm_map_list`` what their names say. A third argument, a list of text, is what the
    answer is chosen from: ``llm_map('Which colour?', fruit, ['red', 'green'])``. The value
    is text, a number, a date or a time. NULL is NULL; so is an answer that could not be had,
    which aggregates leave out: a ``RuntimeWarning`` says how many there were, and why.
    A second ``register`` on the same connection replaces the functions of the first.

    A vector of DuckDB (2048 rows) is asked together, each distinct value once. DuckDB checks
    plain comparisons with constants first, wherever they stand in an AND; other conditions it
    orders by its own guess of their cost. ``CASE WHEN condition THEN llm_map_bool(…) END``, or
    a CTE that is ``MATERIALIZED``, puts them before the call for certain.

    Args:
        con: The connection.
        session: Whom to ask: a ``Session``, a model's name or a ``Model``.
        cache: As of ``hqdl.open``, where no session is given.
        attach: The name under which the session's expanded database is attached, to be read
            with DuckDB's extension ``sqlite``; where that cannot be had, a copy of its tables
            and views as they are now. None attaches nothing.
        kind: As of ``hqdl.map``, for all values that these functions are asked about.

    Raises:
        hqdl.Error: From a query, as DuckDB's own error, with the text of ours.
    """
    session = session_of(session, cache)
    for name, (returned, read_as) in FUNCTIONS.items():
        _create(con, session, name, returned, read_as, kind)
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
        # The extension is neither here nor to be had.
        con.execute(f"ATTACH ':memory:' AS {name}")
    try:
        shown = """SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')
            AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\'"""
        for (table,) in session.query(shown):
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
    con: Any, session: Session, name: str, returned: str, read_as: str, kind: str | None
) -> None:
    import duckdb
    import pyarrow

    # DuckDB takes as many arguments as it is given, of any type.
    def answer(*columns: Any) -> Any:
        if not 2 <= len(columns) <= 3:
            raise InputError(f"{name} takes a question, a value and, maybe, a list of options")
        return _answer(pyarrow, session, read_as, kind, *columns)

    # Those of an earlier call make way; a connection that is new has none.
    with contextlib.suppress(duckdb.InvalidInputException):
        con.remove_function(name)
    con.create_function(
        name,
        answer,
        None,
        returned,
        type="arrow",
        null_handling="special",
        # Not folded, and not moved before other conditions.
        side_effects=True,
    )


def _answer(
    pa: Any,
    session: Session,
    read_as: str,
    kind: str | None,
    questions: Any,
    values: Any,
    options: Any = None,
) -> Any:
    asked: dict[tuple[str, tuple[str, ...] | None], list[int]] = {}
    choices = [None] * len(questions) if options is None else options.to_pylist()
    for at, (question, chosen) in enumerate(zip(questions.to_pylist(), choices)):
        if question is not None:
            key = (str(question), None if chosen is None else tuple(map(str, chosen)))
            asked.setdefault(key, []).append(at)
    found: list[Any] = [None] * len(questions)
    for (question, chosen_from), places in asked.items():
        some = values.take(pa.array(places)) if len(places) < len(questions) else values
        answers = session.map(
            question,
            some,
            return_type=read_as,
            options=chosen_from,
            kind=kind,
            progress=False,
        )
        for at, found_here in zip(places, answers.to_pylist()):
            found[at] = found_here
        _warn(question, answers.states.to_pylist())
    types = {
        "str": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "list[str]": pa.list_(pa.string()),
    }
    return pa.array(found, types[read_as])


def _warn(question: str, states: list[str | None]) -> None:
    """Warns of values whose answer could not be had; one that is not known is an answer."""
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
