"""Ask a language model about the rows of your data, once about each distinct value.

The module contains the engine of the command ``hqdl`` and shares its cache. ``open`` opens a
project, ``map`` asks one question about each of some values, and ``query`` runs SQL that contains
questions over plain tables.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native, errors
from ._ingredients import SQL, Ingredient, ingredient
from ._native import __version__
from ._results import Answers, Array, Plan, Result
from ._session import Model, OnEvent, Params, Path, Session, _run_in_thread, _Tables, session_of
from .errors import BudgetError, EndpointError, Error, InputError, Interrupted

__all__ = [
    "Answers",
    "Array",
    "BudgetError",
    "EndpointError",
    "Error",
    "Ingredient",
    "InputError",
    "Interrupted",
    "Model",
    "Plan",
    "Result",
    "SQL",
    "Session",
    "__version__",
    "close",
    "errors",
    "ingredient",
    "map",
    "map_async",
    "open",
    "query",
    "query_async",
]


def open(
    spec: Path | None = None,
    *,
    database: Path | None = None,
    output: Path | None = None,
    model: str | Model | None = None,
    cache: Path | bool | None = None,
) -> Session:
    """Opens a project and checks it.

    Args:
        spec: The spec that expands the database.
        database: The database; it overrides the spec's, or is queried without a spec.
        output: Path of the database for the published tables, or a text that ends with a slash:
            a folder for Parquet files; it overrides the spec's.
        model: A model's name or a ``Model``; it overrides the spec's.
        cache: The directory of the facts; by default ``HQDL_CACHE`` or the user's data
            directory, like the command's. False deletes the facts with the session.

    Raises:
        InputError: The spec has problems; the error lists all of them with their positions.
    """
    return Session(spec, database=database, output=output, model=model, cache=cache)


def map(
    question: str,
    values: Iterable[Any],
    *,
    return_type: str | type | None = None,
    options: Iterable[Any] | None = None,
    kind: str | None = None,
    model: str | Model | Session | None = None,
    cache: Path | bool | None = None,
    budget: float | None = None,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
) -> Answers:
    """Asks one question about each of some values: ``hqdl.map("Is it a city?", names, ...)``.

    hqdl asks the model only once about each distinct value. It reuses answers from an earlier
    call or from another process; with ``kind``, also those of a query's ``LLMMap`` over that column.
    Values are compared like keys: ``1``, ``1.0`` and ``" 1 "`` are one value.

    Args:
        question: The question; ``{}`` refers to the value.
        values: An Arrow array or stream, a series of pandas or polars, or any iterable of
            None, bool, int, float, str, dates and times. NaN and NULL are NULL; times with
            a zone are instants, in UTC.
        return_type: ``bool``, ``int``, ``float``, ``str``, ``"date"``, or ``"list[str]"``
            and so on; text by default.
        options: The values to choose an answer from.
        kind: The kind of the values, such as ``"city.name"``. The prompt contains it, and the
            answers apply to values of this kind only, like those of a query about this column.
        model: A model's name, a ``Model``, or a ``Session``, whose model and cache are used.
        cache: The same as for ``open``.
        budget: Maximum cost of this call in USD; never exceeded.
        on_event: Called, on this thread, with each event of the run.
        progress: Whether to show a progress bar (requires tqdm).

    Returns:
        One answer per value, in the same order. It is NULL if the value is NULL, or if there is
        no answer; ``states`` contains the reason.

    Raises:
        InputError: A value or a type cannot be used, or no model is named.
        BudgetError: The budget is exhausted; all answers received before are kept.
        EndpointError: The endpoint rejects the request or is unreachable.
        Interrupted: Ctrl-C was pressed; answers of requests in flight are kept.
    """
    return session_of(model, cache).map(
        question,
        values,
        return_type=return_type,
        options=options,
        kind=kind,
        budget=budget,
        on_event=on_event,
        progress=progress,
    )


async def map_async(
    question: str,
    values: Iterable[Any],
    *,
    model: str | Model | Session | None = None,
    cache: Path | bool | None = None,
    **options: Any,
) -> Answers:
    """``map`` for an event loop. Cancelling the task interrupts the run."""
    return await session_of(model, cache).map_async(question, values, **options)


def query(
    sql: str,
    params: Params | None = None,
    *,
    tables: Mapping[str, Any],
    model: str | Model | None = None,
    cache: Path | bool | None = None,
    **options: Any,
) -> Result:
    """Runs a query over plain tables: ``hqdl.query("SELECT …", tables={"city": df}, ...)``.

    Args:
        sql: The same as for ``Session.query``.
        params: The same as for ``Session.query``.
        tables: The tables by name: a frame of pandas or polars, an Arrow table or reader, or a
            mapping of names to columns. They are copied to SQLite as integers, doubles, text or
            bytes. Booleans become 0 and 1, NaN becomes NULL, and dates and times become ISO 8601
            text, in UTC if they have a time zone.
        model: A model's name or a ``Model``.
        cache: The same as for ``open``.
        options: The same as for ``Session.query``.

    Raises:
        InputError: A column has a type without an equivalent in SQL (``message`` names it), or
            the query is wrong.
        BudgetError, EndpointError, Interrupted: The same as for ``Session.query``.
    """
    with _Tables(tables) as path:
        return Session(database=path, model=model, cache=cache).query(sql, params, **options)


async def query_async(
    sql: str,
    params: Params | None = None,
    *,
    tables: Mapping[str, Any],
    model: str | Model | None = None,
    cache: Path | bool | None = None,
    **options: Any,
) -> Result:
    """``query`` for an event loop. Cancelling the task interrupts the run."""

    def run(_interrupt: _native.Interrupt) -> Result:
        return query(
            sql,
            params,
            tables=tables,
            model=model,
            cache=cache,
            _interrupt=_interrupt,
            **options,
        )

    return await _run_in_thread(run)


def close() -> None:
    """Interrupts all runs of this process, keeps the answers of requests in flight, and closes its
    caches.

    Sessions reopen the caches when they need them. Called automatically when Python exits.
    """
    _native.close()


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic ``%%hqdl`` for ``%load_ext hqdl``."""
    from ._magic import register

    register(shell)


def _forked() -> None:
    """Closes the files of the caches that the parent process has open. Otherwise a lock of the
    parent would be held until this process ends, too."""
    directories = [os.path.join(os.path.realpath(d), "") for d in _native.forked()]
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")] if directories else []
    except OSError:
        return
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(tuple(directories)):
                os.close(descriptor)
        except OSError:
            pass


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
