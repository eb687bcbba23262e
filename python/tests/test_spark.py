"""Spark on a cluster of two workers, which share a cache on a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hqdl
import pytest
from endpoint import Endpoint
from postgres import Postgres

pyspark = pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("there is no Java", allow_module_level=True)

import hqdl.spark  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

SPEC = """
[database]
path = "nowhere.sqlite"
output = "elsewhere.sqlite"
[model]
name = "m"
base_url = "{url}"
price = {{ input = 1.0, output = 2.0 }}
[limits]
concurrency = 2
[[expansion]]
name = "llm_hero"
source = "hero"
key = ["Name"]
context = ["height"]
rows_per_request = 5
  [[expansion.column]]
  name = "loud"
  about = "upper"
  [[expansion.column]]
  name = "size"
  type = "integer"
  about = "length"
  [[expansion.column]]
  name = "has_a"
  type = "boolean"
  about = "has:a"
  [[expansion.column]]
  name = "letter"
  about = "letters"
  many = {{ table = "hero_letter", column = "letter" }}
  [[expansion.column]]
  name = "side"
  about = "side"
  values = {{ sql = "SELECT side FROM side" }}
"""
COLUMNS = 5
#: Seconds until other executors may ask for a killed executor's cells.
LEASE = "20"


def truth(question: str, value: str) -> Any:
    """Computes the answers of the endpoint."""
    value = value.strip()
    if question == "upper":
        return value.upper()
    if question == "length":
        return len(value)
    if question.startswith("has:"):
        return question[4:] in value
    if question == "letters":
        return sorted(set(value.replace(" ", "")) - set("0123456789"))
    return "Good" if value.endswith("7") else "?"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The machine's host name may resolve to another address.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.executorEnv.HQDL_LEASE", LEASE)
        .config("spark.sql.shuffle.partitions", "2")
        # Small batches, so that a task has several.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint(truth)
    yield endpoint
    endpoint.close()


@pytest.fixture
def spec(alone: Path, endpoint: Endpoint) -> Path:
    spec = alone / "hero.toml"
    spec.write_text(SPEC.format(url=endpoint.url))
    return spec


SIDES = {"side": {"side": ["Good", "Bad"]}}


def heroes(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    return spark.range(rows).select(
        "id",
        f.concat(f.lit("va"), f.col("id") % keys).alias("name"),
        (f.col("id") % 3).cast("double").alias("height"),
        f.array("id").alias("nested"),
    )


def test_rows_have_the_columns_of_a_spec(
    spark: SparkSession, spec: Path, server: str, endpoint: Endpoint, alone: Path
) -> None:
    rows = heroes(spark, 4000, 200).unionByName(
        spark.sql(
            """SELECT * FROM VALUES (-1L, NULL, 1D, array(1L)), (-2L, ' va1 ', 1D, array(1L)),
               (-3L, 'va1', CAST('NaN' AS DOUBLE), NULL) AS t(id, name, height, nested)"""
        )
    )
    path = str(alone / "answers.parquet")
    found = hqdl.spark.expand(rows, spec, cache=server, tables=SIDES, path=path)
    assert [(name, kind) for name, kind in found.dtypes if name not in rows.columns] == [
        ("loud", "string"),
        ("size", "bigint"),
        ("has_a", "boolean"),
        ("letter", "array<string>"),
        ("side", "string"),
    ]
    rows_found = found.collect()
    assert len(rows_found) == 4003
    for row in rows_found:
        if row["id"] >= 0:
            side = "Good" if row["name"].endswith("7") else None
            assert row[4:] == (row["name"].upper(), len(row["name"]), True, ["a", "v"], side)
    # Surrounding spaces do not change a key. hqdl does not ask about a NULL key.
    odd = {row["id"]: row["loud"] for row in rows_found if row["id"] < 0}
    assert odd == {-1: None, -2: "VA1", -3: "VA1"}
    # Each executor asked for some cells, and none was asked twice.
    assert set(endpoint.cells.values()) == {1} and len(endpoint.cells) == 200 * COLUMNS
    # Plain Spark can join the written answers.
    joined = rows.join(spark.read.parquet(path), "name").where("size = 5")
    assert joined.count() == 100 * 20

    asked = endpoint.requests
    report = hqdl.spark.ask(rows, spec, cache=server, tables=SIDES, partitions=3)
    assert (report["requests"], report["cost_usd"], report["keys"]) == (0, 0, 202)
    assert len(report["tasks"]) == 3
    again = hqdl.spark.expand(rows, spec, cache=server, tables=SIDES)
    assert again.where("side = 'Good'").count() == 400
    assert endpoint.requests == asked


def test_executors_share_one_budget(
    spark: SparkSession, spec: Path, server: str, endpoint: Endpoint
) -> None:
    rows = heroes(spark, 400, 400)
    most = 0.003
    with pytest.raises(hqdl.BudgetError, match="budget") as error:
        hqdl.spark.ask(rows, spec, cache=server, tables=SIDES, budget=most)
    report = error.value.report
    assert report is not None and len(report["tasks"]) == 2
    spent = (endpoint.input_tokens + 2 * endpoint.output_tokens) / 1e6
    assert report["cost_usd"] == pytest.approx(spent) and 0 < spent <= most
    assert set(endpoint.cells.values()) == {1}
    found = hqdl.spark.answers(rows, spec, cache=server, tables=SIDES)
    assert found.where("size IS NOT NULL").count() * COLUMNS == len(endpoint.cells)

    report = hqdl.spark.ask(rows, spec, cache=server, tables=SIDES, budget=1.0)
    assert report["cells"]["ok"] + report["cells"]["unknown"] == 400 * COLUMNS
    assert set(endpoint.cells.values()) == {1}
    # No cell is missing.
    hqdl.spark.ask(rows, spec, cache=server, tables=SIDES, budget=0.0)


def executors(spark: SparkSession) -> list[int]:
    """Returns the process ids of the executors."""
    driver = f":{spark.conf.get('spark.driver.port')}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        if b"java" in words and b"CoarseGrainedScheduler@" in words and driver in words:
            found.append(int(name))
    return found


def until(what: str, holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError(f"not in five minutes: {what}")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds executors in /proc")
def test_after_a_killed_executor_only_requests_in_flight_are_repeated(
    spark: SparkSession, spec: Path, server: str, endpoint: Endpoint
) -> None:
    rows = heroes(spark, 200, 200)
    told: list[Any] = []
    # The first request is sent alone.
    hqdl.spark.ask(heroes(spark, 5, 5), spec, cache=server, tables=SIDES)
    endpoint.go.clear()
    ask = threading.Thread(
        target=lambda: told.append(
            hqdl.spark.ask(rows, spec, cache=server, tables=SIDES, budget=1.0)
        )
    )
    ask.start()
    # Two requests of each executor.
    until("both executors ask", lambda: endpoint.waiting == 4)
    os.kill(executors(spark)[0], signal.SIGKILL)
    endpoint.go.set()
    ask.join(600)
    assert told and told[0]["keys"] == 200
    twice = [cell for cell, times in endpoint.cells.items() if times > 1]
    assert len(twice) <= 2 * 5 * COLUMNS and max(endpoint.cells.values()) <= 2
    assert len(endpoint.cells) == 200 * COLUMNS
    found = hqdl.spark.answers(rows, spec, cache=server, tables=SIDES)
    assert found.where("loud = upper(name)").count() == 200


def test_questions_in_spark_s_sql(
    spark: SparkSession, server: str, endpoint: Endpoint, model: hqdl.Model
) -> None:
    hqdl.spark.register(spark, model, cache=server)
    heroes(spark, 4000, 50).createOrReplaceTempView("hero")
    sql = "SELECT count(*) FROM hero WHERE llm_map('upper', name) = 'VA7' AND name < 'va8'"
    assert spark.sql(sql).collect()[0][0] == 80
    # Spark evaluates the plain condition first, in any order.
    assert {value for _, value in endpoint.cells} == {f"va{n}" for n in range(50)} - {"va8", "va9"}
    assert set(endpoint.cells.values()) == {1}
    asked = endpoint.requests
    assert spark.sql(sql).collect()[0][0] == 80 and endpoint.requests == asked
    row = spark.sql(
        """SELECT llm_map_int('length', 'ant'), llm_map_real('length', 'ant'),
             llm_map_bool('has:a', 'ant'), llm_map_list('letters', 'bob'), llm_map('upper', NULL),
             llm_map('upper', 'ant', array('ANT', 'BEE')), llm_map('upper', 'cat', array('ANT')),
             llm_map('upper', 9007199254740993)"""
    ).collect()[0]
    assert tuple(row) == (3, 3.0, True, ["b", "o"], None, "ANT", None, "9007199254740993")
    with pytest.raises(Exception, match="takes a question, a value"):
        spark.sql("SELECT llm_map('upper')").collect()


def test_errors_are_reported(
    spark: SparkSession, spec: Path, server: str, endpoint: Endpoint, alone: Path
) -> None:
    rows = heroes(spark, 10, 10)
    options: dict[str, Any] = {"cache": server, "tables": SIDES}
    with pytest.raises(hqdl.InputError, match="cannot share a directory"):
        hqdl.spark.ask(rows, spec, tables=SIDES)
    with pytest.raises(hqdl.InputError, match="cannot share a directory"):
        hqdl.spark.register(spark, "m")
    with pytest.raises(hqdl.InputError, match="side"):
        hqdl.spark.ask(rows, spec, cache=server)
    with pytest.raises(hqdl.InputError, match="(?i)name"):
        hqdl.spark.ask(rows.drop("name"), spec, **options)
    with pytest.raises(hqdl.InputError, match="same name"):
        hqdl.spark.ask(rows.select("*", f.lit(1).alias("NAME")), spec, **options)
    with pytest.raises(hqdl.InputError, match="is not an SQL value|no column|unknown column"):
        hqdl.spark.ask(rows.drop("name").withColumn("name", f.array("id")), spec, **options)
    decimal = rows.withColumn("height", f.lit("0.1234567890123456789").cast("decimal(30,20)"))
    with pytest.raises(hqdl.InputError, match="is not a double"):
        hqdl.spark.ask(decimal, spec, **options)
    text = spec.read_text()
    for wrong, said in [
        (text.replace('"hero"', '"SELECT * FROM hero"', 1), "not a single table"),
        (text + text[text.index("[[expansion]]"):].replace("llm_hero", "b"), "2 expansions"),
        (text.replace("concurrency = 2", "budget_tokens = 100"), "budget_tokens"),
        (text.replace("concurrency", "concurency"), "concurency"),
    ]:
        other = alone / "other.toml"
        other.write_text(wrong)
        with pytest.raises(hqdl.InputError, match=said):
            hqdl.spark.ask(rows, other, **options)
    with pytest.raises(hqdl.InputError, match="hqdl 0.0.0"):
        hqdl.spark._check_version("0.0.0")
    empty = hqdl.spark.expand(rows.where("false"), spec, **options)
    assert empty.count() == 0 and "loud" in empty.columns
    assert endpoint.requests == 0
    endpoint.status = 401
    with pytest.raises(hqdl.EndpointError, match="401"):
        hqdl.spark.ask(rows, spec, **options)


def test_overrides_apply_on_executors(
    spark: SparkSession, spec: Path, server: str, endpoint: Endpoint
) -> None:
    spec.with_suffix(".overrides.csv").write_text("Name,column,value,note\nva0,side,Bad,so\n")
    found = hqdl.spark.expand(heroes(spark, 10, 2), spec, cache=server, tables=SIDES)
    assert {row["side"] for row in found.where("name = 'va0'").collect()} == {"Bad"}
    assert ("side", "va0") not in endpoint.cells
