"""Ask a language model about the rows of your data: each value once, ever.

The module is the engine of the command ``hqdl``: the facts that one of them keeps, the
other finds. ``open`` opens a project, ``map`` asks one question about each of some values,
``query`` runs SQL with questions in it over plain tables.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native, errors
from ._native import __version__
from ._results import Answers, Array, Plan, Result
from ._session import Model, OnEvent, Params, Path, Session, _beside, _Tables, session_of
from .errors import BudgetError, EndpointError, Error, InputError, Interrupted

__all__ = [
    "Answers",
    "Array",
    "BudgetError",
    "EndpointError",
    "Error",
    "InputError",
    "Interrupted",
    "Model",
    "Plan",
    "Result",
    "Session",
    "__version__",
    "close",
    "errors",
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
        database: The database; without a spec, one to query as it is.
        output: Where expanded tables go, if not where the spec says.
        model: Whom to ask, if not whom the spec names: a name, or a ``Model``.
        cache: The directory of the facts; by default ``HQDL_CACHE`` or the user's data
            directory, as the command's. False keeps them no longer than the session.

    Raises:
        InputError: All problems of the spec at once, each with its place.
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
    """One question about each of some values: ``hqdl.map("Is it a city?", names, ...)``.

    Each distinct value is asked once, ever: what is known (from an earlier call, from another
    process, with ``kind`` from a query's ``LLMMap`` over that column) is not asked again. Keys
    are compared as the engine compares them: ``1``, ``1.0`` and ``" 1 "`` are one value.

    Args:
        question: The question; ``{}`` stands for the value.
        values: An Arrow array or stream, a series of pandas or polars, or any iterable of
            None, bool, int, float, str, dates and times. NaN and NULL are NULL; times with
            a zone are instants, in UTC.
        return_type: ``bool``, ``int``, ``float``, ``str``, ``"date"``, or ``"list[str]"``
            and so on; text by default.
        options: What an answer is chosen from.
        kind: What the values are, such as ``"city.name"``: the model is shown it, and answers
            are kept for values of this kind, as a query keeps those about this column.
        model: Whom to ask: a name, a ``Model``, or a ``Session``, whose model and cache
            count.
        cache: As of ``open``.
        budget: USD that this call may spend; it is never overshot.
        on_event: Called, on this thread, with each event of the run.
        progress: Whether a bar shows how far it is (with tqdm, where it is installed).

    Returns:
        As many answers as values, in their order: NULL where the value is NULL, and where
        there is no answer (``states`` tells why).

    Raises:
        InputError: A value or a type cannot be used, or no model is named.
        BudgetError: The budget is reached; what was answered is kept.
        EndpointError: The endpoint refuses or is gone.
        Interrupted: Ctrl-C; what was in flight is kept.
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
    """``map`` beside an event loop; a cancelled task ends it cleanly."""
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
        sql: As of ``Session.query``.
        params: As of ``Session.query``.
        tables: Name and table: a frame of pandas or polars, an Arrow table or reader, or a
            mapping of names to columns. They are copied for SQLite: integers, doubles, text,
            bytes; booleans are 0 and 1, NaN is NULL, dates and times are ISO 8601 text,
            those with a zone in UTC.
        model: Whom to ask.
        cache: As of ``open``.
        options: As of ``Session.query``.

    Raises:
        InputError: A column is of a type that SQL does not have (``message`` names it), or
            the query is wrong.
        BudgetError, EndpointError, Interrupted: As of ``Session.query``.
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
    """``query`` beside an event loop; a cancelled task ends it cleanly."""

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

    return await _beside(run)


def close() -> None:
    """Ends all runs of this process, keeps what is in flight, and closes its caches.

    Sessions open them again when they need them. Python does this when it exits.
    """
    _native.close()


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext hqdl`` makes ``%%hqdl`` a magic."""
    from ._magic import register

    register(shell)


def _forked() -> None:
    """Lets go of the files of the caches that the parent has open: a lock that two processes
    hold is free only when both have ended."""
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
