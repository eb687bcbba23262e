"""Where rows outgrow one machine: Spark runs the relational part, a PostgreSQL keeps the facts.

``register`` gives Spark's SQL the functions ``llm_map('question', value)``; ``expand`` gives a
DataFrame the columns of a spec. Keys are asked on the executors, each once, whichever of them
comes to it first: they share the cache, its claims, its limits and the budget of the day.
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

#: What Spark calls the types of a spec's columns.
TYPES = {"integer": "bigint", "real": "double", "boolean": "boolean"}
#: The place of a row in its batch.
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

    place = _shared(spark, cache)
    for name, (returned, read_as) in FUNCTIONS.items():
        call = _Call(name, read_as, model, place)
        # Without types of its own, which Spark would read.
        answer = arrow_udf(lambda *columns, call=call: call(*columns), _sql(returned))
        spark.udf.register(name, answer)


def _sql(returned: str) -> str:
    of_duckdb = {"VARCHAR": "string", "VARCHAR[]": "array<string>"}
    return of_duckdb.get(returned, returned)


@dataclasses.dataclass(frozen=True)
class _Call:
    """A function of SQL, as it travels to the executors."""

    name: str
    read_as: str
    model: str | Model
    cache: str
    version: str = _native.__version__

    def __call__(self, *columns: pyarrow.Array) -> pyarrow.Array:
        import pyarrow

        _same(self.version)
        if not 2 <= len(columns) <= 3:
            raise InputError(
                f"{self.name} takes a question, a value and, maybe, an array of options"
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
    _ask(df, job, partitions)
    found = _answers(df, job, partitions)
    if path is not None:
        found.write.mode("overwrite").parquet(path)
        found = df.sparkSession.read.parquet(path)
    # NULL is a key, too; the names of the key stand once, as they do in the rows.
    theirs = found.select(
        *[found[_tick(k)].alias(f"hqdl_key_{n}") for n, k in enumerate(job.key)],
        *[found[_tick(name)] for name, _ in job.columns],
    )
    equal: Column | None = None
    for n, k in enumerate(job.key):
        same = df[_tick(k)].eqNullSafe(theirs[f"hqdl_key_{n}"])
        equal = same if equal is None else equal & same
    joined = df.join(theirs, equal, "left")
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
    return _ask(df, _Job.of(df, spec, **options), partitions)


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
    return _answers(df, _Job.of(df, spec, **options), partitions)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A spec, as it travels to the executors: they have none of the driver's files."""

    spec: str
    overrides: bytes | None
    table: str
    key: list[str]
    context: list[str]
    #: Name and type of each column, as Spark has them, and the one-to-many table of some.
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

        place = _shared(df.sparkSession, cache)
        if len({c.lower() for c in df.columns}) < len(df.columns):
            raise InputError("two columns have the same name", "name them apart first")
        expansions = _native.sources(spec)
        if len(expansions) != 1:
            raise InputError(
                f"{os.fspath(spec)} has {len(expansions)} expansions, and Spark expands one",
                "give each a spec of its own",
            )
        name, table = expansions[0]
        if table is None or re.match(r"\s*(select|with|values)\W", table, re.IGNORECASE):
            raise InputError(
                f"`{name}` has several sources, or a SELECT, and Spark expands one table",
                "write source = \"NAME\", and make the SELECT in Spark",
            )
        beside = [(n, _arrow(pyarrow, t)) for n, t in (tables or {}).items()]
        with tempfile.TemporaryDirectory(prefix="hqdl-") as directory:
            # A database with the tables and none of the rows: the whole spec is checked here.
            database = os.path.join(directory, "empty.sqlite")
            _native.load(database, table, _empty(df))
            for other, rows in beside:
                _native.load(database, other, rows)
            session = Session(spec, database=database, output=database + ".out", model=model,
                              cache=False)
            told = json.loads(session._project.outline())
        expansion = told["expansions"][0]
        if told["budget_tokens"] is not None:
            raise InputError(
                "budget_tokens is of one process, and Spark has several",
                "write budget_usd or budget_usd_per_day",
            )
        all_columns, many = [], {}
        for column in expansion["columns"]:
            kind = TYPES.get(column["type"], "string")
            if column["many"] is not None:
                kind = f"array<{kind}>"
                many[column["name"]] = (column["many"]["table"], column["many"]["column"])
            all_columns.append((column["name"], kind))
        # The names that the rows have, of which SQL takes any case.
        names = {c.lower(): c for c in df.columns}
        key = [names[k.lower()] for k in expansion["key"]]
        context = [names[c.lower()] for c in expansion["context"] if names[c.lower()] not in key]
        with open(spec, encoding="utf-8") as file:
            text = file.read()
        said = None
        if os.path.exists(told["overrides"]):
            with open(told["overrides"], "rb") as file:
                said = file.read()
        select = {"columns": columns if columns is None else list(columns),
                  "retry_failed": retry_failed}
        return cls(text, said, table, key, context, all_columns, many, beside, model, place,
                   select, told["budget_usd"] if budget is None else budget)


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _arrow(pyarrow: Any, table: Any) -> Any:
    if isinstance(table, Mapping):
        return pyarrow.table(dict(table))
    if type(table).__module__.startswith("pyspark"):
        return table.toArrow()
    if type(table).__module__.startswith("pandas"):
        return pyarrow.Table.from_pandas(table, preserve_index=False)
    return pyarrow.table(table)


def _empty(df: DataFrame) -> Any:
    """The columns that SQL can have, without rows."""
    from pyspark.sql import types

    nested = (types.ArrayType, types.MapType, types.StructType)
    flat = [f.name for f in df.schema.fields if not isinstance(f.dataType, nested)]
    return df.select(*[df[_tick(name)] for name in flat]).limit(0).toArrow()


def _is_server(cache: str) -> bool:
    return cache.startswith(("postgres://", "postgresql://"))


def _shared(spark: SparkSession, cache: Path | None) -> str:
    """The cache of all executors."""
    place, _ = _cache(cache)
    if place is not None and _is_server(place):
        return place
    try:
        master = spark.sparkContext.master
    except Exception:
        master = "that of another process"
    if master != "local" and not master.startswith("local["):
        raise InputError(
            f"the executors of {master} share no directory",
            "name a PostgreSQL: cache=\"postgres://…\", or HQDL_CACHE",
        )
    if place is None:
        raise InputError("no cache is named", "pass cache=, or set HQDL_CACHE")
    return os.path.abspath(place)


def _same(version: str) -> None:
    if version != _native.__version__:
        raise InputError(
            f"the driver has hqdl {version}, this executor {_native.__version__}",
            "install the same version on both",
        )


def _keys(df: DataFrame, job: _Job, partitions: int | None) -> DataFrame:
    """A row a key, spread over the tasks. Of several rows with a key the same one is shown to
    the model whenever this is computed: the least."""
    from pyspark.sql import functions as f

    key = [f.col(_tick(name)) for name in job.key]
    if job.context:
        least = f.min(f.struct(*[f.col(_tick(name)) for name in job.context])).alias("hqdl_least")
        shown = [f.col("hqdl_least").getField(name).alias(name) for name in job.context]
        keys = df.groupBy(*key).agg(least).select(*key, *shown)
    else:
        keys = df.select(*key).distinct()
    # By a hash of the key: what is spread by the key itself Spark would leave as it is, in as
    # few tasks as it sees fit for so few bytes.
    return keys.repartition(_tasks(df, partitions), f.xxhash64(*key))


def _tasks(df: DataFrame, partitions: int | None) -> int:
    return partitions or int(df.sparkSession.sparkContext.defaultParallelism)


def _answers(df: DataFrame, job: _Job, partitions: int | None) -> DataFrame:
    from pyspark.sql import types

    simple = {"bigint": types.LongType(), "double": types.DoubleType(),
              "boolean": types.BooleanType(), "string": types.StringType()}
    keys = _keys(df, job, partitions)
    schema = types.StructType([keys.schema[name] for name in job.key])
    for name, kind in job.columns:
        one = simple[_item(kind)]
        schema = schema.add(name, types.ArrayType(one) if name in job.many else one)
    return keys.mapInArrow(_Answering(job), schema)


def _ask(df: DataFrame, job: _Job, partitions: int | None) -> dict[str, Any]:
    keys = _keys(df, job, partitions)
    with _Purse(df.sparkSession, job.budget) as purse:
        share = (job.budget or 0.0) / 2 / _tasks(df, partitions)
        asking = _Asking(job, purse.address, purse.word, share)
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
        # What more money would not mend comes first.
        worst = min(failed, key=lambda f: (f["exit"] == 3, f["exit"]))
        error = errors._of(worst["message"], worst["hint"], worst["exit"], worst["text"])
        error.report = total
        raise error
    return total


class _Purse:
    """The budget of a run on many executors, kept by the driver. A task sets the worst case of
    its next keys aside, and gives back what it did not spend; what a task that is lost had set
    aside counts as spent."""

    def __init__(self, spark: SparkSession, usd: float | None) -> None:
        self._kept = usd is not None
        self._left = usd or 0.0
        self._holders = 0
        self._changed = threading.Condition()
        self.address: tuple[str, int] | None = None
        self.word = secrets.token_hex(16)
        self._host = spark.conf.get("spark.driver.host", "127.0.0.1")

    def __enter__(self) -> _Purse:
        if not self._kept:
            return self
        purse = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline(1000).split()
                if len(line) == 2 and secrets.compare_digest(line[0], purse.word.encode()):
                    purse._serve(float(line[1]), self)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = (str(self._host), self._server.server_address[1])
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept:
            self._server.shutdown()
            self._server.server_close()

    def _serve(self, wanted: float, holder: socketserver.StreamRequestHandler) -> None:
        with self._changed:
            # Less than is wanted only where nobody will give back more.
            self._changed.wait_for(lambda: self._left >= wanted or not self._holders)
            usd = min(wanted, self._left)
            self._left -= usd
            self._holders += 1
        back = 0.0
        try:
            holder.wfile.write(f"{usd!r}\n".encode())
            back = min(usd, max(0.0, float(holder.rfile.readline(1000) or 0)))
        except (OSError, ValueError):
            pass
        with self._changed:
            self._left += back
            self._holders -= 1
            self._changed.notify_all()


@contextlib.contextmanager
def _set_aside(
    address: tuple[str, int] | None, word: str, most: float
) -> Iterator[tuple[float | None, list[float]]]:
    """USD that may be spent until the end of this, and a list to tell what was."""
    spent: list[float] = []
    if address is None:
        yield None, spent
        return
    with socket.create_connection(address) as purse, purse.makefile("rw") as talk:
        talk.write(f"{word} {most!r}\n")
        talk.flush()
        usd = float(talk.readline())
        yield usd, spent
        # Only whoever comes to here knows what was spent.
        talk.write(f"{max(0.0, usd - sum(spent))!r}\n")


@dataclasses.dataclass(frozen=True)
class _Work:
    """What an executor does with batches of keys."""

    job: _Job

    def sessions(
        self, batches: Iterable[pyarrow.RecordBatch]
    ) -> Iterator[tuple[pyarrow.RecordBatch, Session]]:
        """A project of the spec over each batch."""
        import pyarrow

        job = self.job
        _same(job.version)
        with tempfile.TemporaryDirectory(prefix="hqdl-") as directory:
            spec = os.path.join(directory, "spec.toml")
            with open(spec, "w", encoding="utf-8") as file:
                file.write(job.spec)
            if job.overrides is not None:
                with open(os.path.join(directory, "spec.overrides.csv"), "wb") as said:
                    said.write(job.overrides)
            for n, batch in enumerate(batches):
                if batch.num_rows == 0:
                    continue
                place = os.path.join(directory, str(n))
                os.mkdir(place)
                database = os.path.join(place, "keys.sqlite")
                rows = pyarrow.table(batch).append_column(ROW, pyarrow.array(range(len(batch))))
                _native.load(database, job.table, rows)
                for name, table in job.tables:
                    _native.load(database, name, table)
                yield batch, Session(spec, database=database, output=database + ".expanded",
                                     model=job.model, cache=job.cache)
                shutil.rmtree(place)


@dataclasses.dataclass(frozen=True)
class _Asking(_Work):
    """Asks for what is missing of batches of keys; tells what it did in one row. It never
    fails: Spark would kill the other tasks, and with them what they are asking."""

    purse: tuple[str, int] | None
    word: str
    #: USD that a task sets aside at least.
    share: float

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        began = time.monotonic()
        told: dict[str, Any] = {"keys": 0, "requests": 0, "input_tokens": 0, "output_tokens": 0,
                                "cost_usd": 0.0, "cells": {}, "failed": None, "asking": 0.0}
        try:
            for batch, session in self.sessions(batches):
                told["keys"] += len(batch)
                asking = time.monotonic()
                try:
                    self.ask(session, told)
                finally:
                    told["asking"] += time.monotonic() - asking
        except Error as error:
            told["failed"] = {"message": error.message, "hint": error.hint, "exit": error.exit,
                              "text": error.text}
            # What the stream still has is Spark's to throw away.
            for _ in batches:
                pass
        told["seconds"] = time.monotonic() - began
        yield pyarrow.record_batch({"report": [json.dumps(told)]})

    def ask(self, session: Session, told: dict[str, Any]) -> None:
        select = self.job.select
        wanted = self.share
        while True:
            if self.purse:
                wanted = max(wanted, session.plan(**select).cost_usd["most"])
            with _set_aside(self.purse, self.word, wanted) as (budget, spent):
                try:
                    done = session.materialize(**select, budget=budget, progress=False)
                    failed = None
                except Error as error:
                    done, failed = error.report or {}, error
                for name in ("requests", "input_tokens", "output_tokens", "cost_usd"):
                    told[name] += done.get(name, 0)
                spent.append(done.get("cost_usd", 0.0))
                spent.append(done.get("in_doubt", {}).get("cost_usd", 0.0))
            # Where all that was left was not enough for a single request, nothing will be.
            if isinstance(failed, BudgetError) and budget is not None:
                if sum(spent) or budget >= wanted > 0:
                    wanted *= 2
                    continue
            for state, count in done.get("cells", {}).items():
                told["cells"][state] = told["cells"].get(state, 0) + count
            if failed is not None:
                raise failed
            return


class _Answering(_Work):
    """What is known of batches of keys."""

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        types = {"bigint": pyarrow.int64(), "double": pyarrow.float64(),
                 "boolean": pyarrow.bool_(), "string": pyarrow.string()}
        job = self.job
        for batch, session in self.sessions(batches):
            session.materialize(limit=0, progress=False)
            columns = [batch.column(name) for name in job.key]
            for name, kind in job.columns:
                many, kind = name in job.many, _item(kind)
                found = self.lists(session, name) if many else self.ones(session, name)
                type_ = pyarrow.list_(types[kind]) if many else types[kind]
                if kind == "boolean":
                    found = [_truth(value) for value in found]
                columns.append(pyarrow.array(found, type_))
            yield pyarrow.record_batch(columns, [*job.key, *[name for name, _ in job.columns]])

    def ones(self, session: Session, column: str) -> list[Any]:
        view = _name(self.job.table + "_expanded")
        found = session.query(f"SELECT {_name(column)} FROM {view} ORDER BY {ROW}")
        return [value for (value,) in found]

    def lists(self, session: Session, column: str) -> list[Any]:
        """None where it is not known whether there is any."""
        table, value = map(_name, self.job.many[column])
        key = [_name(name) for name in self.job.key]
        same = " AND ".join(f"m.{name} IS s.{name}" for name in key)
        cell = ", ".join(f"s.{name}" for name in key)
        found = session.query(
            f"""SELECT s.{ROW}, m.{value},
                  (SELECT c.state IN ('ok', 'overridden') FROM hqdl_cell AS c
                   WHERE c."column" = ? AND c.key = json_array({cell}))
                FROM {_name(self.job.table)} AS s LEFT JOIN {table} AS m ON {same}
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


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _item(kind: str) -> str:
    return kind.removeprefix("array<").removesuffix(">")


def _truth(value: Any) -> Any:
    if isinstance(value, list):
        return [bool(one) for one in value]
    return None if value is None else bool(value)
