"""Sessions: a spec or a database, with a model and a cache."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from . import _native
from ._ingredients import _describe_all
from ._progress import Progress
from ._results import Answers, Plan, Result, _has_pyarrow
from .errors import InputError

Path = str | os.PathLike[str]
Params = Mapping[str, Any] | Sequence[Any]
OnEvent = Callable[[dict[str, Any]], object]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Model:
    """A model: an OpenAI-compatible endpoint, or recordings.

    A field that is None has the spec's value, or the command's default. A key is only ever read
    from the environment: ``OPENAI_API_KEY``, or the variable that ``api_key_env`` names.
    """

    #: The model's name.
    name: str | None = None
    #: The endpoint's URL, up to ``/v1``.
    base_url: str | None = None
    #: The environment variable with the endpoint's key.
    api_key_env: str | None = None
    #: USD per million input and output tokens.
    price: tuple[float, float] | None = None
    #: Files of recorded answers to replay instead of sending requests.
    recordings: tuple[Path, ...] = ()
    #: ``openai`` or ``replay``; with recordings, the default is ``replay``.
    provider: str | None = None
    #: Maximum number of concurrent requests.
    concurrency: int | None = None
    #: Values per request.
    rows_per_request: int | None = None

    def _fields(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"recordings": [os.fspath(path) for path in self.recordings]}


def _model(model: str | Model | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return (model if isinstance(model, Model) else Model(model))._fields()


def _cache(cache: Path | bool | None) -> tuple[str | None, bool]:
    """Returns the directory of the facts, and whether they are kept."""
    if cache is False:
        return None, False
    if cache is None or cache is True:
        return os.environ.get("HQDL_CACHE") or None, True
    return os.fspath(cache), True


def _json_listener(on_event: OnEvent | None) -> Callable[[str], object] | None:
    if on_event is None:
        return None
    return lambda event: on_event(json.loads(event))


async def _run_in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Runs a call on another thread. Cancelling the task interrupts the run."""
    interrupt = _native.Interrupt()
    work = functools.partial(call, *args, **kwargs, _interrupt=interrupt)
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        interrupt.set()
        # Wait until the answers of requests in flight are kept.
        await asyncio.wait([running])
        running.exception()
        raise


class Session:
    """An opened project.

    Each call reads the spec and the database again. Several threads may use a session at once. All
    sessions of a cache share its answers, in this process and in any other.
    """

    def __init__(
        self,
        spec: Path | None = None,
        *,
        database: Path | None = None,
        output: Path | None = None,
        model: str | Model | None = None,
        cache: Path | bool | None = None,
    ) -> None:
        """Opens a project and checks it; see ``hqdl.open``."""
        directory, keep = _cache(cache)
        self._project = _native.Project(spec, database, output, _model(model), directory, keep)

    def plan(
        self,
        *,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        refresh: Sequence[str] = (),
        retry_failed: bool = False,
        batch: bool = False,
        _interrupt: _native.Interrupt | None = None,
    ) -> Plan:
        """Plans the requests of ``materialize`` and their cost. Sends nothing and needs no key.

        Args:
            limit: Maximum number of keys per expansion, counting keys with missing cells only.
            columns: The columns to ask for; by default all.
            where: SQL condition over the columns of the source; selects the keys of matching rows.
            refresh: Columns to ask for again, even if their values are known.
            retry_failed: Whether to ask again for cells that were answered without a value.
            batch: Whether to plan for the Batch API.

        Raises:
            InputError: The spec, the selection or the database cannot be used.
        """
        select = _select(limit, columns, where, refresh, retry_failed)
        plan, remarks = self._project.plan(select, batch, _interrupt)
        return Plan(json.loads(plan), remarks)

    def materialize(
        self,
        *,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        refresh: Sequence[str] = (),
        retry_failed: bool = False,
        budget: float | None = None,
        batch: bool = False,
        on_event: OnEvent | None = None,
        progress: bool | None = None,
        _interrupt: _native.Interrupt | None = None,
    ) -> dict[str, Any]:
        """Asks for the missing cells, stores them and publishes the tables.

        Args:
            limit: The same as for ``plan``; so are ``columns``, ``where``, ``refresh`` and
                ``retry_failed``.
            budget: Maximum cost of this run in USD; never exceeded.
            batch: Whether to use the Batch API, which answers within a day, at half the price.
            on_event: Called, on this thread, with each event of
                ``hqdl materialize --json`` except the last. An exception interrupts the run.
            progress: Whether to show a progress bar (requires tqdm); by default in a notebook and
                on a terminal.

        Returns:
            The event ``done`` of ``hqdl materialize --json`` (cells by state, requests,
            tokens, ``cost_usd`` in USD, ``seconds``), and ``complete``: whether every
            selected cell has a value.

        Raises:
            BudgetError: The budget is exhausted; ``report`` describes the work done before.
            EndpointError: The endpoint rejects the request or is unreachable.
            InputError: The spec, the selection or the database cannot be used.
            Interrupted: Ctrl-C was pressed; answers of requests in flight are kept.
        """
        select = _select(limit, columns, where, refresh, retry_failed)
        with Progress(progress, on_event) as listener:
            done = self._project.materialize(
                select, budget, batch, _json_listener(listener), _interrupt
            )
        report: dict[str, Any] = json.loads(done)
        return report

    def query(
        self,
        sql: str,
        params: Params | None = None,
        *,
        dialect: str = "sqlite",
        classify: bool = False,
        truncate: bool = False,
        retry_failed: bool = False,
        refresh: bool = False,
        timeout: float | None = None,
        budget: float | None = None,
        interval: float | None = None,
        simultaneous: bool = False,
        on_event: OnEvent | None = None,
        progress: bool | None = None,
        _interrupt: _native.Interrupt | None = None,
    ) -> Result:
        """Runs a query and asks for the values that its calls need and that are not known.

        Args:
            sql: SQLite's SQL, with calls such as ``{{LLMMap('Is it red?', t.name)}}``.
            params: The values of its parameters: by name (``:name``, ``@name``,
                ``$name``) in a mapping, or by position in a sequence.
            dialect: ``sqlite``, or ``suql`` for SUQL, which accepts PostgreSQL syntax.
            classify: Whether to map literals that a column with few values does not contain to
                the values that mean the same.
            truncate: Whether to truncate a context that is too long instead of failing.
            retry_failed: Whether to ask again for answers without a value.
            refresh: Whether to ask again for everything that the query needs.
            timeout: Maximum time of one pass of SQLite, in seconds.
            budget: Maximum cost of this query in USD.
            interval: Confidence, such as 0.95: adds ``x_low``, ``x_high`` and ``x_estimate`` to
                each aggregate ``x``, judged by the spec's audit (``hqdl audit``).
            simultaneous: Whether the confidence is that of all groups together.
            on_event: Called, on this thread, with each event of the run.
            progress: The same as for ``materialize``.

        Returns:
            The rows. Values that could not be determined are NULL, and
            ``meta["values_missing"]`` is their number.

        Raises:
            InputError: The query is wrong (``text`` shows the position), or no model is named.
            BudgetError: The budget is exhausted.
            EndpointError: The endpoint rejects the request or is unreachable.
            Interrupted: Ctrl-C was pressed; answers of requests in flight are kept.
        """
        options = {
            "dialect": dialect,
            "classify": classify,
            "truncate": truncate,
            "retry_failed": retry_failed,
            "refresh": refresh,
            "timeout": timeout,
            "budget": budget,
            "interval": interval,
            "simultaneous": simultaneous,
            "ingredients": _describe_all(),
        }
        with Progress(progress, on_event) as listener:
            table, meta = self._project.query(
                sql, _params(params), options, _json_listener(listener), _interrupt
            )
        return Result(table, json.loads(meta))

    def explain(
        self,
        sql: str,
        params: Params | None = None,
        *,
        dialect: str = "sqlite",
        _interrupt: _native.Interrupt | None = None,
    ) -> dict[str, Any]:
        """Explains how a query would run, with upper bounds of its cost. Sends nothing.

        Returns:
            The object that ``hqdl explain --json`` prints: ``values_asked``, ``requests``,
            tokens and ``cost_usd`` (USD) as upper bounds, ``unbounded`` (calls whose values cannot
            be counted in advance), ``routes``, ``plan``.

        Raises:
            InputError: The query is wrong.
        """
        options = {"dialect": dialect, "ingredients": _describe_all()}
        explained: dict[str, Any] = json.loads(
            self._project.explain(sql, _params(params), options, _interrupt)
        )
        return explained

    def why(self, table: str, *key_and_column: Any) -> list[dict[str, Any]]:
        """Returns the provenance of cells: ``why("llm", "Hulk", "Bruce Banner", "race")``.

        Args:
            table: An expansion's table, or the table of a one-to-many column.
            key_and_column: The values of the key in its order (None for NULL; the last ones may
                be omitted), then the column.

        Returns:
            At most 20 cells as ``hqdl why --json`` prints them: state, value, raw answer, model,
            time, run, and their share of tokens and cost.

        Raises:
            InputError: There is no such cell.
        """
        if not key_and_column:
            raise InputError("no column", "why(TABLE, KEY…, COLUMN)")
        *key, column = key_and_column
        cells: list[dict[str, Any]] = json.loads(
            self._project.why(table, [_to_text(k) for k in key], column)
        )
        return cells

    def override(
        self, table: str, *key_column_value: Any, note: str = "", force: bool = False
    ) -> None:
        """Sets the value of a cell, regardless of the model's answer. The next ``materialize``
        publishes it: ``override("llm", "Hulk", "Bruce Banner", "race", "Mutant")``.

        Args:
            table: An expansion's table.
            key_column_value: The values of the key in its order, the column, the value
                (``|`` between the values of a list).
            note: The reason for the override.
            force: Whether to accept a key that no source contains, or a value that is not in the
                column's list.

        Raises:
            InputError: There is no such cell, or the column cannot have the value.
        """
        if len(key_column_value) < 3:
            raise InputError("no column", "override(TABLE, KEY…, COLUMN, VALUE)")
        *key, column, value = key_column_value
        self._project.override(
            table, [_to_text(k) for k in key], column, _to_text(value), note, force
        )

    def suggest(self) -> dict[str, Any]:
        """Proposes columns for questions that queries asked, with their cost (USD) and TOML: the
        object that ``hqdl suggest --json`` prints."""
        suggestions: dict[str, Any] = json.loads(self._project.suggest())
        return suggestions

    def map(
        self,
        question: str,
        values: Iterable[Any],
        *,
        return_type: str | type | None = None,
        options: Iterable[Any] | None = None,
        kind: str | None = None,
        budget: float | None = None,
        on_event: OnEvent | None = None,
        progress: bool | None = None,
        _interrupt: _native.Interrupt | None = None,
    ) -> Answers:
        """Asks one question about each of some values; see ``hqdl.map``."""
        index = _index(values)
        values, options = _to_column(values), None if options is None else list(options)
        with Progress(progress, on_event) as listener:
            call = functools.partial(
                self._project.map,
                question,
                return_type=_return_type_name(return_type),
                options=options,
                value_kind=kind,
                budget=budget,
                on_event=_json_listener(listener),
                interrupt=_interrupt,
            )
            try:
                answers, states, meta = call(values)
            except Exception as error:
                # A column of Python objects that Arrow cannot represent is passed as a list.
                if not type(error).__module__.startswith("pyarrow") or not hasattr(
                    values, "tolist"
                ):
                    raise
                answers, states, meta = call(values.tolist())
        return Answers(answers, states, json.loads(meta), index)

    def plan_async(self, **options: Any) -> Awaitable[Plan]:
        """``plan`` for an event loop."""
        return _run_in_thread(self.plan, **options)

    def materialize_async(self, **options: Any) -> Awaitable[dict[str, Any]]:
        """``materialize`` for an event loop. Cancelling the task interrupts the run.

        ``on_event`` is called on another thread.
        """
        return _run_in_thread(self.materialize, **options)

    def query_async(
        self, sql: str, params: Params | None = None, **options: Any
    ) -> Awaitable[Result]:
        """``query`` for an event loop. Cancelling the task interrupts the run."""
        return _run_in_thread(self.query, sql, params, **options)

    def explain_async(
        self, sql: str, params: Params | None = None, **options: Any
    ) -> Awaitable[dict[str, Any]]:
        """``explain`` for an event loop."""
        return _run_in_thread(self.explain, sql, params, **options)

    def map_async(
        self, question: str, values: Iterable[Any], **options: Any
    ) -> Awaitable[Answers]:
        """``map`` for an event loop. Cancelling the task interrupts the run."""
        return _run_in_thread(self.map, question, values, **options)


def _select(
    limit: int | None,
    columns: Sequence[str] | None,
    where: str | None,
    refresh: Sequence[str],
    retry_failed: bool,
) -> dict[str, Any]:
    return {
        "limit": limit,
        "columns": None if columns is None else list(columns),
        "where": where,
        "refresh": list(refresh),
        "retry_failed": retry_failed,
    }


def _params(params: Params | None) -> dict[str, Any] | Sequence[Any] | None:
    if isinstance(params, (str, bytes)):
        raise InputError("params are a mapping or a sequence", "write params=[…]")
    return dict(params) if isinstance(params, Mapping) else params


def _to_text(value: Any) -> str:
    return "NULL" if value is None else str(value)


def _return_type_name(return_type: str | type | None) -> str | None:
    """Returns BlendSQL's name of a return type, which is the name of Python's type."""
    if isinstance(return_type, type) and not hasattr(return_type, "__args__"):
        return return_type.__name__
    return None if return_type is None else str(return_type)


def _to_column(values: Any) -> Any:
    """Converts values to an Arrow array or an iterable."""
    if isinstance(values, (str, bytes)):
        raise InputError("the values are one text", "pass a list, a series or an Arrow array")
    if isinstance(values, Answers) or hasattr(values, "__arrow_c_array__"):
        return values
    # The Arrow interface of pandas requires pyarrow and pandas 3.
    if _is_pandas(values) and (not hasattr(values, "__arrow_c_stream__") or not _has_pyarrow()):
        return _pandas_to_arrow(values)
    if hasattr(values, "tolist") and not hasattr(values, "__arrow_c_stream__"):
        values = values.tolist()
    if not (isinstance(values, Iterable) or hasattr(values, "__arrow_c_stream__")):
        raise InputError(
            f"the values are {values!r:.50}", "pass a list, a series or an Arrow array"
        )
    return values


def _is_pandas(values: Any) -> bool:
    """Returns whether the type of a value is a pandas class or derived from one."""
    return any(cls.__module__.split(".")[0] == "pandas" for cls in type(values).__mro__)


def _index(values: Any) -> Any:
    """Returns the index of a pandas series, which its answers keep; None for other values."""
    if isinstance(values, Answers):
        return values.index
    return getattr(values, "index", None) if _is_pandas(values) else None


def _pandas_to_arrow(values: Any) -> Any:
    try:
        import pyarrow
    except ImportError:
        return values.tolist()
    try:
        return pyarrow.Array.from_pandas(values)
    except (pyarrow.ArrowException, TypeError, ValueError):
        return values.tolist()


@functools.lru_cache(maxsize=64)
def _model_session(model: str | Model | None, directory: str | None, keep: bool) -> Session:
    return Session(model=model, cache=directory if keep else False)


def session_of(model: str | Model | Session | None, cache: Path | bool | None) -> Session:
    """Returns the session of a model. Calls with the same model and cache share one."""
    if isinstance(model, Session):
        return model
    return _model_session(model, *_cache(cache))


class _Tables:
    """Plain tables in a temporary database."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = tables

    def __enter__(self) -> str:
        self._directory = tempfile.mkdtemp(prefix="hqdl-")
        path = os.path.join(self._directory, "tables.sqlite")
        open(path, "wb").close()
        try:
            for name, table in self._tables.items():
                _load(path, name, table)
        except BaseException:
            self.__exit__()
            raise
        return path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _pandas_table(table: Any) -> Any:
    """Converts a pandas frame to an Arrow table; None if pyarrow is missing or fails."""
    try:
        import pyarrow
    except ImportError:
        return None
    try:
        return pyarrow.Table.from_pandas(table, preserve_index=False)
    except (pyarrow.ArrowException, TypeError, ValueError):
        return None


def _load(path: str, name: str, table: Any) -> None:
    if isinstance(table, Mapping):
        columns = [str(column) for column in table]
        for column, values in zip(columns, table.values()):
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise InputError(
                    f"the column `{column}` of `{name}` is {values!r:.50}",
                    "pass a list, a series or an Arrow array for each column",
                )
        lists = [list(column) for column in table.values()]
        if len({len(column) for column in lists}) > 1:
            raise InputError(f"the columns of `{name}` are not of one length")
        _native.load_rows(path, name, columns, zip(*lists))
        return
    if _is_pandas(table) and hasattr(table, "itertuples"):
        # The index is not a column, and the objects may have any type.
        arrow = _pandas_table(table)
        if arrow is None:
            rows = table.itertuples(index=False, name=None)
            _native.load_rows(path, name, [str(c) for c in table.columns], rows)
            return
        table = arrow
    if hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
        _native.load(path, name, table)
        return
    raise InputError(
        f"`{name}` is a {type(table).__name__}, which is not a table",
        "pass a frame of pandas or polars, an Arrow table, or a mapping of names to columns",
    )
