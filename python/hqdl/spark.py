"""Runs hqdl on Spark: Spark distributes the rows, and a PostgreSQL server stores the facts.

``register`` adds the functions ``llm_map('question', value)`` to Spark's SQL; ``expand`` adds the
columns of a spec to a DataFrame. The executors ask about each key once, because they share the
cache, its claims, its rate limits and the daily budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import socket
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _native, errors
from ._session import Model, Path, Session, _cache, _load, session_of
from .duckdb import FUNCTIONS, _answer
from .errors import BudgetError, Error, InputError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["answers", "ask", "expand", "register"]

#: Spark's names of the types of a spec's columns.
TYPES = {"integer": "bigint", "real": "double", "boolean": "boolean"}
#: Column with the position of a row in its batch.
ROW = "hqdl_row"


def register(
    spark: SparkSession, model: str | Model, *, cache: Path | None = None
) -> None:
    """Adds ``llm_map('question', value)`` and its variants to Spark's SQL.

    ``llm_map`` returns text; ``llm_map_bool``, ``llm_map_int``, ``llm_map_real`` and
    ``llm_map_list`` return the type in their name. The optional third argument, an array of
    text, contains the options. The result is NULL if the value is NULL or if there is no answer.
    hqdl asks about an Arrow batch at a time, once about each distinct value. Spark evaluates
    plain conditions first.

    Args:
        spark: The session. PySpark 4.1 or later.
        model: A model's name or a ``Model``. Its key is read from the environment of the
            executors (``spark.executorEnv.OPENAI_API_KEY``).
        cache: URL of a PostgreSQL server that all executors can reach; by default
            ``HQDL_CACHE``. If the executors are processes of this machine (``local[*]``), the
            cache can be a directory.

    Raises:
        InputError: The executors cannot share the cache.
    """
    from pyspark.sql.functions import arrow_udf

    location = _find_shared_cache(spark, cache)
    for name, (returned, read_as) in FUNCTIONS.items():
        call = _Call(name, read_as, model, location)
        # A lambda has no type hints, which Spark would read.
        answer = arrow_udf(lambda *columns, call=call: call(*columns), _sql(returned))
        spark.udf.register(name, answer)


def _sql(returned: str) -> str:
    of_duckdb = {"VARCHAR": "string", "VARCHAR[]": "array<string>"}
    return of_duckdb.get(returned, returned)


@dataclasses.dataclass(frozen=True)
class _Call:
    """An SQL function that Spark sends to the executors."""

    name: str
    read_as: str
    model: str | Model
    cache: str
    version: str = _native.__version__

    def __call__(self, *columns: pyarrow.Array) -> pyarrow.Array:
        import pyarrow

        _check_version(self.version)
        if not 2 <= len(columns) <= 3:
            raise InputError(
                f"{self.name} takes a question, a value and, optionally, an array of options"
            )
        session = session_of(self.model, self.cache)
        return _answer(pyarrow, session, self.read_as, None, *columns)


def expand(
    df: DataFrame,
    spec: Path,
    *,
    path: str | None = None,
    partitions: int | None = None,
    **options: Any,
) -> DataFrame:
    """Adds the columns of a spec's expansion to a DataFrame.

    Spark finds the distinct keys. The executors look up the stored answers, a thousand per round
    trip, and ask the model for the others (``ask``). Spark then joins the answers (``answers``)
    to the rows. A cell without an answer is NULL.

    Args:
        df: The rows of the table that the spec's expansion names as its source.
        spec: Path of a spec with one expansion, on the driver; executors need no files.
        path: Where to store the answers as Parquet, one row per key, for later joins in plain
            Spark SQL. Without it, Spark looks them up in the cache whenever it computes the
            result.
        partitions: Number of tasks that ask at once; by default, Spark decides. Each task uses
            the spec's ``concurrency``.
        options: ``model``, ``cache``, ``budget``, ``tables``, ``columns`` and
            ``retry_failed``; the same as for ``ask``.

    Returns:
        The columns of ``df``, then those of the expansion: text, ``bigint``, ``double``,
        ``boolean``, or arrays of these. Dates are ISO 8601 text.

    Raises:
        BudgetError, EndpointError, InputError: The same as for ``ask``. All answers received
            before are kept.
    """
    job = _Job.of(df, spec, **options)
    _ask_missing(df, job, partitions)
    found = _look_up(df, job, partitions)
    if path is not None:
        found.write.mode("overwrite").parquet(path)
        found = df.sparkSession.read.parquet(path)
    # A key can be NULL. The result has the key columns of the rows only.
    found_rows = found.select(
        *[found[_quote_name(k)].alias(f"hqdl_key_{n}") for n, k in enumerate(job.key)],
        *[found[_quote_name(name)] for name, _ in job.columns],
    )
    equal: Column | None = None
    for n, k in enumerate(job.key):
        same = df[_quote_name(k)].eqNullSafe(found_rows[f"hqdl_key_{n}"])
        equal = same if equal is None else equal & same
    joined = df.join(found_rows, equal, "left")
    return joined.drop(*[f"hqdl_key_{n}" for n in range(len(job.key))])


def ask(
    df: DataFrame,
    spec: Path,
    *,
    partitions: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Asks for the missing cells of the rows' keys, on the executors, and stores the answers.

    Args:
        df: The same as for ``expand``; so are ``spec`` and ``partitions``.
        options: ``model``: a model to use instead of the spec's. ``cache``: URL of a PostgreSQL
            server; by default ``HQDL_CACHE``. ``budget``: maximum cost in USD of all executors
            together, instead of the spec's ``budget_usd``; never exceeded. If an executor is
            lost, its reservation counts as spent. ``tables``: other tables that the spec's value
            lists read, by name. ``columns``: the columns to ask for; by default all.
            ``retry_failed``: the same as for ``Session.materialize``.

    Returns:
        A report, summed over the executors: ``cells`` by state, ``requests``, ``input_tokens``,
        ``output_tokens``, ``cost_usd`` (USD), ``keys``, and ``tasks``: the report of each task,
        with its total ``seconds`` and those spent ``asking``.

    Raises:
        BudgetError: The budget is exhausted; ``report`` describes the work done before.
        EndpointError: The endpoint rejects requests or is unreachable.
        InputError: The spec or the rows cannot be used. If an executor fails, all others finish
            their requests before this is raised.
    """
    return _ask_missing(df, _Job.of(df, spec, **options), partitions)


def answers(
    df: DataFrame, spec: Path, *, partitions: int | None = None, **options: Any
) -> DataFrame:
    """Returns the stored answers about the rows' keys: one row per key, with the columns of the
    key, then those of the expansion. Sends no request, however often Spark computes it.

    Args:
        df: The same as for ``expand``; so are ``spec`` and ``partitions``.
        options: The same as for ``ask``.

    Raises:
        InputError: The spec or the rows cannot be used.
    """
    return _look_up(df, _Job.of(df, spec, **options), partitions)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A spec with its tables. The executors cannot read the driver's files."""

    spec: str
    overrides: bytes | None
    table: str
    key: list[str]
    context: list[str]
    #: Name and Spark type of each column; table and column of each one-to-many column.
    columns: list[tuple[str, str]]
    many: dict[str, tuple[str, str]]
    tables: list[tuple[str, Any]]
    model: str | Model | None
    cache: str
    select: dict[str, Any]
    budget: float | None
    version: str = _native.__version__

    @classmethod
    def of(
        cls,
        df: DataFrame,
        spec: Path,
        *,
        model: str | Model | None = None,
        cache: Path | None = None,
        tables: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        retry_failed: bool = False,
        budget: float | None = None,
    ) -> _Job:
        import pyarrow

        location = _find_shared_cache(df.sparkSession, cache)
        if len({c.lower() for c in df.columns}) < len(df.columns):
            raise InputError("two columns have the same name", "rename one of them")
        expansions = _native.sources(spec)
        if len(expansions) != 1:
            raise InputError(
                f"{os.fspath(spec)} has {len(expansions)} expansions, but Spark supports only one",
                "write each expansion into its own spec",
            )
        name, table = expansions[0]
        if table is None or re.match(r"\s*(select|with|values)\W", table, re.IGNORECASE):
            raise InputError(
                f"the source of `{name}` is not a single table, which Spark requires",
                "write source = \"NAME\", and run a SELECT in Spark",
            )
        other_tables = [(n, _to_arrow(pyarrow, t)) for n, t in (tables or {}).items()]
        with tempfile.TemporaryDirectory(prefix="hqdl-") as directory:
            # Check the whole spec on a database that has the tables but no rows.
            database = os.path.join(directory, "empty.sqlite")
            _native.load(database, table, _without_rows(df))
            for other, rows in other_tables:
                _native.load(database, other, rows)
            session = Session(spec, database=database, output=database + ".out", model=model,
                              cache=False)
            outline = json.loads(session._project.outline())
        expansion = outline["expansions"][0]
        if outline["budget_tokens"] is not None:
            raise InputError(
                "budget_tokens limits a single process, but Spark runs several",
                "use budget_usd or budget_usd_per_day",
            )
        all_columns, many = [], {}
        for column in expansion["columns"]:
            kind = TYPES.get(column["type"], "string")
            if column["many"] is not None:
                kind = f"array<{kind}>"
                many[column["name"]] = (column["many"]["table"], column["many"]["column"])
            all_columns.append((column["name"], kind))
        # The spec may write a column's name in another case.
        names = {c.lower(): c for c in df.columns}
        key = [names[k.lower()] for k in expansion["key"]]
        context = [names[c.lower()] for c in expansion["context"] if names[c.lower()] not in key]
        with open(spec, encoding="utf-8") as file:
            text = file.read()
        overrides = None
        if os.path.exists(outline["overrides"]):
            with open(outline["overrides"], "rb") as file:
                overrides = file.read()
        select = {"columns": columns if columns is None else list(columns),
                  "retry_failed": retry_failed}
        budget = outline["budget_usd"] if budget is None else budget
        return cls(text, overrides, table, key, context, all_columns, many, other_tables, model,
                   location, select, budget)


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _to_arrow(pyarrow: Any, table: Any) -> Any:
    if isinstance(table, Mapping):
        return pyarrow.table(dict(table))
    if type(table).__module__.startswith("pyspark"):
        return table.toArrow()
    if type(table).__module__.startswith("pandas"):
        return pyarrow.Table.from_pandas(table, preserve_index=False)
    return pyarrow.table(table)


def _without_rows(df: DataFrame) -> Any:
    """Returns the columns with types that SQL supports, without rows."""
    from pyspark.sql import types

    nested = (types.ArrayType, types.MapType, types.StructType)
    flat = [f.name for f in df.schema.fields if not isinstance(f.dataType, nested)]
    return df.select(*[df[_quote_name(name)] for name in flat]).limit(0).toArrow()


def _is_server(cache: str) -> bool:
    return cache.startswith(("postgres://", "postgresql://"))


def _find_shared_cache(spark: SparkSession, cache: Path | None) -> str:
    """Returns the location of the cache that all executors can open."""
    location, _ = _cache(cache)
    if location is not None and _is_server(location):
        return location
    try:
        master = spark.sparkContext.master
    except Exception:
        master = "another process"
    if master != "local" and not master.startswith("local["):
        raise InputError(
            f"the executors of {master} cannot share a directory",
            "pass the URL of a PostgreSQL server: cache=\"postgres://…\", or HQDL_CACHE",
        )
    if location is None:
        raise InputError("the executors need a cache", "pass cache=, or set HQDL_CACHE")
    return os.path.abspath(location)


def _check_version(version: str) -> None:
    if version != _native.__version__:
        raise InputError(
            f"the driver has hqdl {version}, but this executor has {_native.__version__}",
            "install the same version on both",
        )


def _distinct_keys(df: DataFrame, job: _Job, partitions: int | None) -> DataFrame:
    """Returns one row per key, distributed over the tasks. If several rows have the same key, the
    model always sees the smallest one, so that a repeated computation asks the same question."""
    from pyspark.sql import functions as f

    key = [f.col(_quote_name(name)) for name in job.key]
    if job.context:
        context = [f.col(_quote_name(name)) for name in job.context]
        least = f.min(f.struct(*context)).alias("hqdl_least")
        shown = [f.col("hqdl_least").getField(name).alias(name) for name in job.context]
        keys = df.groupBy(*key).agg(least).select(*key, *shown)
    else:
        keys = df.select(*key).distinct()
    # Partition by a hash: Spark would merge partitions by the key itself into few tasks, because
    # they have few bytes.
    return keys.repartition(_task_count(df, partitions), f.xxhash64(*key))


def _task_count(df: DataFrame, partitions: int | None) -> int:
    return partitions or int(df.sparkSession.sparkContext.defaultParallelism)


def _look_up(df: DataFrame, job: _Job, partitions: int | None) -> DataFrame:
    from pyspark.sql import types

    simple = {"bigint": types.LongType(), "double": types.DoubleType(),
              "boolean": types.BooleanType(), "string": types.StringType()}
    keys = _distinct_keys(df, job, partitions)
    schema = types.StructType([keys.schema[name] for name in job.key])
    for name, kind in job.columns:
        one = simple[_item_type(kind)]
        schema = schema.add(name, types.ArrayType(one) if name in job.many else one)
    return keys.mapInArrow(_LookUpTask(job), schema)


def _ask_missing(df: DataFrame, job: _Job, partitions: int | None) -> dict[str, Any]:
    keys = _distinct_keys(df, job, partitions)
    with _SharedBudget(df.sparkSession, job.budget) as shared_budget:
        share = (job.budget or 0.0) / 2 / _task_count(df, partitions)
        asking = _AskTask(job, shared_budget.address, shared_budget.token, share)
        tasks = [json.loads(row[0]) for row in keys.mapInArrow(asking, "report string").collect()]
    total: dict[str, Any] = {"keys": 0, "requests": 0, "input_tokens": 0, "output_tokens": 0,
                             "cost_usd": 0.0, "cells": {}, "tasks": tasks}
    for task in tasks:
        for name in ("keys", "requests", "input_tokens", "output_tokens", "cost_usd"):
            total[name] += task[name]
        for state, count in task["cells"].items():
            total["cells"][state] = total["cells"].get(state, 0) + count
    failed = [task["failed"] for task in tasks if task["failed"]]
    if failed:
        # Prefer an error that a larger budget would not prevent.
        worst = min(failed, key=lambda f: (f["exit"] == 3, f["exit"]))
        error = errors._of(worst["message"], worst["hint"], worst["exit"], worst["text"])
        error.report = total
        raise error
    return total


class _SharedBudget:
    """Serves the budget of a run to its executors. A task reserves the worst-case cost of its next
    keys, and returns the part that it did not spend. The reservation of a lost task counts as
    spent."""

    def __init__(self, spark: SparkSession, usd: float | None) -> None:
        self._is_limited = usd is not None
        self._left = usd or 0.0
        self._holder_count = 0
        self._changed = threading.Condition()
        self.address: tuple[str, int] | None = None
        self.token = secrets.token_hex(16)
        self._host = spark.conf.get("spark.driver.host", "127.0.0.1")

    def __enter__(self) -> _SharedBudget:
        if not self._is_limited:
            return self
        shared_budget = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline(1000).split()
                if len(line) == 2 and secrets.compare_digest(line[0], shared_budget.token.encode()):
                    shared_budget._serve(float(line[1]), self)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = (str(self._host), self._server.server_address[1])
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_limited:
            self._server.shutdown()
            self._server.server_close()

    def _serve(self, wanted: float, holder: socketserver.StreamRequestHandler) -> None:
        with self._changed:
            # Grant less than requested only if no task can return an amount.
            self._changed.wait_for(lambda: self._left >= wanted or not self._holder_count)
            usd = min(wanted, self._left)
            self._left -= usd
            self._holder_count += 1
        back = 0.0
        try:
            holder.wfile.write(f"{usd!r}\n".encode())
            back = min(usd, max(0.0, float(holder.rfile.readline(1000) or 0)))
        except (OSError, ValueError):
            pass
        with self._changed:
            self._left += back
            self._holder_count -= 1
            self._changed.notify_all()


@contextlib.contextmanager
def _reserve(
    address: tuple[str, int] | None, token: str, most: float
) -> Iterator[tuple[float | None, list[float]]]:
    """Yields the amount in USD that may be spent, and a list for the amounts that were spent."""
    spent: list[float] = []
    if address is None:
        yield None, spent
        return
    with socket.create_connection(address) as connection, connection.makefile("rw") as stream:
        stream.write(f"{token} {most!r}\n")
        stream.flush()
        usd = float(stream.readline())
        yield usd, spent
        # After an exception, the connection closes and the whole reservation counts as spent.
        stream.write(f"{max(0.0, usd - sum(spent))!r}\n")


@dataclasses.dataclass(frozen=True)
class _BatchTask:
    """Opens a project over each batch of keys, on an executor."""

    job: _Job

    def sessions(
        self, batches: Iterable[pyarrow.RecordBatch]
    ) -> Iterator[tuple[pyarrow.RecordBatch, Session]]:
        """Yields each batch with a session of the spec over it."""
        import pyarrow

        job = self.job
        _check_version(job.version)
        with tempfile.TemporaryDirectory(prefix="hqdl-") as directory:
            spec = os.path.join(directory, "spec.toml")
            with open(spec, "w", encoding="utf-8") as file:
                file.write(job.spec)
            if job.overrides is not None:
                with open(os.path.join(directory, "spec.overrides.csv"), "wb") as overrides:
                    overrides.write(job.overrides)
            for n, batch in enumerate(batches):
                if batch.num_rows == 0:
                    continue
                location = os.path.join(directory, str(n))
                os.mkdir(location)
                database = os.path.join(location, "keys.sqlite")
                rows = pyarrow.table(batch).append_column(ROW, pyarrow.array(range(len(batch))))
                _native.load(database, job.table, rows)
                for name, table in job.tables:
                    _native.load(database, name, table)
                yield batch, Session(spec, database=database, output=database + ".expanded",
                                     model=job.model, cache=job.cache)
                shutil.rmtree(location)


@dataclasses.dataclass(frozen=True)
class _AskTask(_BatchTask):
    """Asks for the missing cells of batches of keys, and yields one row with a report. It never
    raises, because Spark would then kill the other tasks with their requests in flight."""

    budget_address: tuple[str, int] | None
    token: str
    #: Smallest reservation of a task, in USD.
    share: float

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        began = time.monotonic()
        report: dict[str, Any] = {"keys": 0, "requests": 0, "input_tokens": 0, "output_tokens": 0,
                                "cost_usd": 0.0, "cells": {}, "failed": None, "asking": 0.0}
        try:
            for batch, session in self.sessions(batches):
                report["keys"] += len(batch)
                asking = time.monotonic()
                try:
                    self.ask(session, report)
                finally:
                    report["asking"] += time.monotonic() - asking
        except Error as error:
            report["failed"] = {"message": error.message, "hint": error.hint, "exit": error.exit,
                              "text": error.text}
            # Spark expects that a task reads all its batches.
            for _ in batches:
                pass
        report["seconds"] = time.monotonic() - began
        yield pyarrow.record_batch({"report": [json.dumps(report)]})

    def ask(self, session: Session, report: dict[str, Any]) -> None:
        select = self.job.select
        wanted = self.share
        while True:
            if self.budget_address:
                wanted = max(wanted, session.plan(**select).cost_usd["most"])
            with _reserve(self.budget_address, self.token, wanted) as (budget, spent):
                try:
                    done = session.materialize(**select, budget=budget, progress=False)
                    failed = None
                except Error as error:
                    done, failed = error.report or {}, error
                for name in ("requests", "input_tokens", "output_tokens", "cost_usd"):
                    report[name] += done.get(name, 0)
                spent.append(done.get("cost_usd", 0.0))
                spent.append(done.get("in_doubt", {}).get("cost_usd", 0.0))
            # Try again with a larger reservation, unless the rest of the budget allowed no request.
            if isinstance(failed, BudgetError) and budget is not None:
                if sum(spent) or budget >= wanted > 0:
                    wanted *= 2
                    continue
            for state, count in done.get("cells", {}).items():
                report["cells"][state] = report["cells"].get(state, 0) + count
            if failed is not None:
                raise failed
            return


class _LookUpTask(_BatchTask):
    """Returns the stored answers about batches of keys."""

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        types = {"bigint": pyarrow.int64(), "double": pyarrow.float64(),
                 "boolean": pyarrow.bool_(), "string": pyarrow.string()}
        job = self.job
        for batch, session in self.sessions(batches):
            session.materialize(limit=0, progress=False)
            columns = [batch.column(name) for name in job.key]
            for name, kind in job.columns:
                many, kind = name in job.many, _item_type(kind)
                found = self.lists(session, name) if many else self.ones(session, name)
                type_ = pyarrow.list_(types[kind]) if many else types[kind]
                if kind == "boolean":
                    found = [_to_boolean(value) for value in found]
                columns.append(pyarrow.array(found, type_))
            yield pyarrow.record_batch(columns, [*job.key, *[name for name, _ in job.columns]])

    def ones(self, session: Session, column: str) -> list[Any]:
        view = _quote_sql_name(self.job.table + "_expanded")
        found = session.query(f"SELECT {_quote_sql_name(column)} FROM {view} ORDER BY {ROW}")
        return [value for (value,) in found]

    def lists(self, session: Session, column: str) -> list[Any]:
        """Returns the list of each row; None if the cell has no answer."""
        table, value = map(_quote_sql_name, self.job.many[column])
        key = [_quote_sql_name(name) for name in self.job.key]
        same = " AND ".join(f"m.{name} IS s.{name}" for name in key)
        cell = ", ".join(f"s.{name}" for name in key)
        found = session.query(
            f"""SELECT s.{ROW}, m.{value},
                  (SELECT c.state IN ('ok', 'overridden') FROM hqdl_cell AS c
                   WHERE c."column" = ? AND c.key = json_array({cell}))
                FROM {_quote_sql_name(self.job.table)} AS s LEFT JOIN {table} AS m ON {same}
                ORDER BY 1, 2""",
            [column],
        )
        lists: dict[int, list[Any] | None] = {}
        for row, one, known in found:
            if one is not None:
                lists[row] = [*(lists.get(row) or []), one]
            else:
                lists[row] = [] if known else None
        return [lists[row] for row in range(len(lists))]


def _quote_sql_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _item_type(kind: str) -> str:
    return kind.removeprefix("array<").removesuffix(">")


def _to_boolean(value: Any) -> Any:
    if isinstance(value, list):
        return [bool(one) for one in value]
    return None if value is None else bool(value)
