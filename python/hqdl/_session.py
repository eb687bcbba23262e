"""A project: a spec or a database, whom to ask, and what is known."""

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
from ._progress import Progress
from ._results import Answers, Plan, Result, _has_pyarrow
from .errors import InputError

Path = str | os.PathLike[str]
Params = Mapping[str, Any] | Sequence[Any]
OnEvent = Callable[[dict[str, Any]], object]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Model:
    """Whom to ask: an OpenAI-compatible endpoint, or recordings.

    What is None is as the spec says, or as the command's default. A key is only ever read
    from the environment: ``OPENAI_API_KEY``, or the variable that ``api_key_env`` names.
    """

    #: The model's name.
    name: str | None = None
    #: The endpoint's URL, up to ``/v1``.
    base_url: str | None = None
    #: The variable that holds its key.
    api_key_env: str | None = None
    #: USD per million input and output tokens.
    price: tuple[float, float] | None = None
    #: Files of recorded answers, which are asked instead of an endpoint.
    recordings: tuple[Path, ...] = ()
    #: ``openai`` or ``replay``; recordings mean the latter.
    provider: str | None = None
    #: Requests in flight at once.
    concurrency: int | None = None
    #: Values that share a request.
    rows_per_request: int | None = None

    def _said(self) -> dict[str, Any]:
        said = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return said | {"recordings": [os.fspath(path) for path in self.recordings]}


def _model(model: str | Model | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return (model if isinstance(model, Model) else Model(model))._said()


def _cache(cache: Path | bool | None) -> tuple[str | None, bool]:
    """The directory of the facts, and whether they are kept."""
    if cache is False:
        return None, False
    if cache is None or cache is True:
        return os.environ.get("HQDL_CACHE") or None, True
    return os.fspath(cache), True


def _heard(on_event: OnEvent | None) -> Callable[[str], object] | None:
    if on_event is None:
        return None
    return lambda event: on_event(json.loads(event))


async def _beside(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Runs what takes long on another thread; a cancelled task ends it cleanly."""
    interrupt = _native.Interrupt()
    work = functools.partial(call, *args, **kwargs, _interrupt=interrupt)
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        interrupt.set()
        # What is in flight is kept before this ends.
        await asyncio.wait([running])
        running.exception()
        raise


class Session:
    """An opened project.

    Each call reads the spec and the database as they are then. A session may be used by
    several threads at once, and is shared with all other sessions of the same cache: what
    one asks is known to the others, in this process and in any other.
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
        """What would be asked, why, and what it costs. Asks nothing and needs no key.

        Args:
            limit: The first so many keys of an expansion that lack something.
            columns: These columns only.
            where: SQL over the columns of the source; only keys of rows for which it holds.
            refresh: Columns that are asked again, whatever is known.
            retry_failed: Whether cells that were answered without a value are asked again.
            batch: What it takes through the Batch API.

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
        """Asks for the missing cells, keeps them and publishes the expanded tables.

        Args:
            limit: As of ``plan``; so are ``columns``, ``where``, ``refresh`` and
                ``retry_failed``.
            budget: USD that this run may spend; it is never overshot.
            batch: Whether the Batch API is used: answered within a day, at half the price.
            on_event: Called, on this thread, with each event of
                ``hqdl materialize --json`` but the last. What it raises ends the run.
            progress: Whether a bar shows how far it is (with tqdm, where it is installed);
                by default in a notebook and on a terminal.

        Returns:
            The event ``done`` of ``hqdl materialize --json`` (cells by state, requests,
            tokens, ``cost_usd`` in USD, ``seconds``), and ``complete``: whether every
            selected cell has a value.

        Raises:
            BudgetError: The budget is reached; ``report`` says what was done.
            EndpointError: The endpoint refuses or is gone.
            InputError: The spec, the selection or the database cannot be used.
            Interrupted: Ctrl-C; what was in flight is kept.
        """
        select = _select(limit, columns, where, refresh, retry_failed)
        with Progress(progress, on_event) as heard:
            done = self._project.materialize(
                select, budget, batch, _heard(heard), _interrupt
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
        on_event: OnEvent | None = None,
        progress: bool | None = None,
        _interrupt: _native.Interrupt | None = None,
    ) -> Result:
        """Runs a query; what its calls lack is asked, once.

        Args:
            sql: SQLite's SQL, with calls such as ``{{LLMMap('Is it red?', t.name)}}``.
            params: The values of its parameters: by name (``:name``, ``@name``,
                ``$name``) in a mapping, or by position in a sequence.
            dialect: ``sqlite``, or ``suql`` for SUQL's spellings.
            classify: Whether words that a column with few values does not have mean the
                values that mean the same.
            truncate: Whether a context that is too long is cut, instead of an error.
            retry_failed: Whether what has no value is asked again.
            refresh: Whether all that the query needs is asked again.
            timeout: Seconds that SQLite may take over a pass.
            budget: USD that this query may spend.
            on_event: Called, on this thread, with each event of the run.
            progress: As of ``materialize``.

        Returns:
            The rows. Values that could not be had are NULL, and counted in
            ``meta["values_missing"]``.

        Raises:
            InputError: The query is wrong (``text`` shows the place), or no model is named.
            BudgetError: The budget is reached.
            EndpointError: The endpoint refuses or is gone.
            Interrupted: Ctrl-C; what was in flight is kept.
        """
        options = {
            "dialect": dialect,
            "classify": classify,
            "truncate": truncate,
            "retry_failed": retry_failed,
            "refresh": refresh,
            "timeout": timeout,
            "budget": budget,
        }
        with Progress(progress, on_event) as heard:
            table, meta = self._project.query(
                sql, _params(params), options, _heard(heard), _interrupt
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
        """How a query would be run, and the most it asks and costs. Asks nothing.

        Returns:
            The object that ``hqdl explain --json`` prints: ``values_asked``, ``requests``,
            tokens and ``cost_usd`` (USD) at most, ``unbounded`` (calls that cannot be
            counted beforehand), ``routes``, ``plan``.

        Raises:
            InputError: The query could not be run.
        """
        options = {"dialect": dialect}
        told: dict[str, Any] = json.loads(
            self._project.explain(sql, _params(params), options, _interrupt)
        )
        return told

    def why(self, table: str, *key_and_column: Any) -> list[dict[str, Any]]:
        """Where published cells came from: ``why("llm", "Hulk", "Bruce Banner", "race")``.

        Args:
            table: An expansion's table, or one of a one-to-many column.
            key_and_column: The values of the key in its order (None for NULL; the last may
                be left out), then the column.

        Returns:
            At most 20 cells as ``hqdl why --json`` prints them: state, value, what was said,
            model, time, run, their share of tokens and price.

        Raises:
            InputError: There is no such cell.
        """
        if not key_and_column:
            raise InputError("no column", "why(TABLE, KEY…, COLUMN)")
        *key, column = key_and_column
        cells: list[dict[str, Any]] = json.loads(
            self._project.why(table, [_word(k) for k in key], column)
        )
        return cells

    def override(
        self, table: str, *key_column_value: Any, note: str = "", force: bool = False
    ) -> None:
        """Says what a cell is, whatever the model says; it shows with the next
        ``materialize``: ``override("llm", "Hulk", "Bruce Banner", "race", "Mutant")``.

        Args:
            table: An expansion's table.
            key_column_value: The values of the key in its order, the column, the value
                (``|`` between the values of a list).
            note: Why.
            force: Whether to say it even of a key that no source has, or beyond the list.

        Raises:
            InputError: There is no such cell, or the value is not one of its column.
        """
        if len(key_column_value) < 3:
            raise InputError("no column", "override(TABLE, KEY…, COLUMN, VALUE)")
        *key, column, value = key_column_value
        self._project.override(
            table, [_word(k) for k in key], column, _word(value), note, force
        )

    def suggest(self) -> dict[str, Any]:
        """The questions that were asked live, what they cost (USD), and the TOML that would
        make them columns: the object that ``hqdl suggest --json`` prints."""
        told: dict[str, Any] = json.loads(self._project.suggest())
        return told

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
        """One question about each of some values; see ``hqdl.map``."""
        index = _index(values)
        values, options = _column(values), None if options is None else list(options)
        with Progress(progress, on_event) as heard:
            call = functools.partial(
                self._project.map,
                question,
                return_type=_type(return_type),
                options=options,
                value_kind=kind,
                budget=budget,
                on_event=_heard(heard),
                interrupt=_interrupt,
            )
            try:
                answers, states, meta = call(values)
            except Exception as error:
                # A column of Python's objects that is no Arrow array is a list all the same.
                if not type(error).__module__.startswith("pyarrow") or not hasattr(
                    values, "tolist"
                ):
                    raise
                answers, states, meta = call(values.tolist())
        return Answers(answers, states, json.loads(meta), index)

    def plan_async(self, **options: Any) -> Awaitable[Plan]:
        """``plan`` beside an event loop."""
        return _beside(self.plan, **options)

    def materialize_async(self, **options: Any) -> Awaitable[dict[str, Any]]:
        """``materialize`` beside an event loop; a cancelled task ends the run cleanly.

        ``on_event`` is called on another thread.
        """
        return _beside(self.materialize, **options)

    def query_async(
        self, sql: str, params: Params | None = None, **options: Any
    ) -> Awaitable[Result]:
        """``query`` beside an event loop; a cancelled task ends it cleanly."""
        return _beside(self.query, sql, params, **options)

    def explain_async(
        self, sql: str, params: Params | None = None, **options: Any
    ) -> Awaitable[dict[str, Any]]:
        """``explain`` beside an event loop."""
        return _beside(self.explain, sql, params, **options)

    def map_async(
        self, question: str, values: Iterable[Any], **options: Any
    ) -> Awaitable[Answers]:
        """``map`` beside an event loop; a cancelled task ends it cleanly."""
        return _beside(self.map, question, values, **options)


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


def _word(value: Any) -> str:
    return "NULL" if value is None else str(value)


def _type(said: str | type | None) -> str | None:
    """A return type by BlendSQL's name; Python's types have theirs."""
    if isinstance(said, type) and not hasattr(said, "__args__"):
        return said.__name__
    return None if said is None else str(said)


def _column(values: Any) -> Any:
    """Values that the engine takes: Arrow's, or an iterable."""
    if isinstance(values, (str, bytes)):
        raise InputError("the values are one text", "pass a list, a series or an Arrow array")
    if isinstance(values, Answers) or hasattr(values, "__arrow_c_array__"):
        return values
    # The Arrow interface of pandas needs pyarrow, and pandas before 3 has none.
    if _is_of_pandas(values) and (not hasattr(values, "__arrow_c_stream__") or not _has_pyarrow()):
        return _of_pandas(values)
    if hasattr(values, "tolist") and not hasattr(values, "__arrow_c_stream__"):
        values = values.tolist()
    if not (isinstance(values, Iterable) or hasattr(values, "__arrow_c_stream__")):
        raise InputError(
            f"the values are {values!r:.50}", "pass a list, a series or an Arrow array"
        )
    return values


def _is_of_pandas(values: Any) -> bool:
    """Whether a value is of pandas, or of a class derived from one of pandas."""
    return any(kind.__module__.split(".")[0] == "pandas" for kind in type(values).__mro__)


def _index(values: Any) -> Any:
    """The index of a pandas series, which its answers keep; None for anything else."""
    if isinstance(values, Answers):
        return values.index
    return getattr(values, "index", None) if _is_of_pandas(values) else None


def _of_pandas(values: Any) -> Any:
    try:
        import pyarrow
    except ImportError:
        return values.tolist()
    try:
        return pyarrow.Array.from_pandas(values)
    except (pyarrow.ArrowException, TypeError, ValueError):
        return values.tolist()


@functools.lru_cache(maxsize=64)
def _of_model(model: str | Model | None, directory: str | None, keep: bool) -> Session:
    return Session(model=model, cache=directory if keep else False)


def session_of(model: str | Model | Session | None, cache: Path | bool | None) -> Session:
    """The session of a model, one for all who ask it with the same cache."""
    if isinstance(model, Session):
        return model
    return _of_model(model, *_cache(cache))


class _Tables:
    """Plain tables in a database of their own, gone at the end."""

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


def _arrow_of_pandas(table: Any) -> Any:
    """A frame of pandas as an Arrow table; None where pyarrow is missing or cannot make one."""
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
        for column, said in zip(columns, table.values()):
            if isinstance(said, (str, bytes)) or not isinstance(said, Iterable):
                raise InputError(
                    f"the column `{column}` of `{name}` is {said!r:.50}",
                    "pass a list, a series or an Arrow array for each column",
                )
        values = [list(column) for column in table.values()]
        if len({len(column) for column in values}) > 1:
            raise InputError(f"the columns of `{name}` are not of one length")
        _native.load_rows(path, name, columns, zip(*values))
        return
    if _is_of_pandas(table) and hasattr(table, "itertuples"):
        # Its index is no column, and its objects may be anything.
        arrow = _arrow_of_pandas(table)
        if arrow is None:
            rows = table.itertuples(index=False, name=None)
            _native.load_rows(path, name, [str(c) for c in table.columns], rows)
            return
        table = arrow
    if hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
        _native.load(path, name, table)
        return
    raise InputError(
        f"`{name}` is a {type(table).__name__}, which is no table",
        "pass a frame of pandas or polars, an Arrow table, or a mapping of names to columns",
    )
