"""A million rows over 50,000 distinct keys through Spark: where the time goes.

    python benches/spark.py [ROWS [KEYS]]

Needs the module `hqdl` and PySpark in this Python, Java, and PostgreSQL's programs. Two workers
of a local cluster, a stub endpoint that answers at once, a PostgreSQL of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))

import hqdl.spark  # noqa: E402
from endpoint import Endpoint  # noqa: E402
from postgres import Postgres  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

SPEC = """
[database]
path = "nowhere.sqlite"
[model]
name = "m"
base_url = "{url}"
price = {{ input = 0.0, output = 0.0 }}
[limits]
concurrency = 8
[[expansion]]
name = "llm_city"
source = "city"
key = ["name"]
rows_per_request = 25
  [[expansion.column]]
  name = "loud"
  about = "upper"
"""


class Timed(Endpoint):
    """Counts the seconds that requests were under way here, in all."""

    seconds = 0.0

    def answer(self, body: dict) -> tuple[int, object]:
        began = time.perf_counter()
        try:
            return super().answer(body)
        finally:
            self.seconds += time.perf_counter() - began


def main(rows: int = 1_000_000, keys: int = 50_000) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    endpoint, postgres = Timed(), Postgres()
    directory = Path(tempfile.mkdtemp(prefix="hqdl-spark-"))
    spec = directory / "city.toml"
    spec.write_text(SPEC.format(url=endpoint.url))
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        cache = postgres.database()
        city = f.concat(f.lit("city "), f.col("id") % keys).alias("name")
        df = spark.range(rows).select("id", city)
        df.write.parquet(str(directory / "rows"))
        df = spark.read.parquet(str(directory / "rows"))

        def clock(what: str, work: object) -> object:
            began = time.perf_counter()
            done = work()  # type: ignore[operator]
            print(f"{what:44}{time.perf_counter() - began:8.1f} s", flush=True)
            return done

        print(f"{rows:,} rows, {keys:,} distinct keys, two executors of one core")
        clock("Spark alone: the distinct keys", lambda: df.select("name").distinct().count())
        report = clock("ask: nothing is known", lambda: hqdl.spark.ask(df, spec, cache=cache))
        tasks = report["tasks"]
        print(f"  executors, the longest                    {max(t['seconds'] for t in tasks):8.1f} s")
        print(f"  of it hqdl with the endpoint              {max(t['asking'] for t in tasks):8.1f} s")
        print(f"  the endpoint at work, all requests        {endpoint.seconds:8.1f} s")
        print(f"  requests {report['requests']:,}; cells {report['cells']}")
        assert set(endpoint.cells.values()) == {1} and len(endpoint.cells) == keys
        report = clock("ask: all is known", lambda: hqdl.spark.ask(df, spec, cache=cache))
        print(f"  of it hqdl                                {max(t['asking'] for t in report['tasks']):8.1f} s")
        assert report["requests"] == 0
        out = str(directory / "answers")
        found = clock("answers written as Parquet", lambda: hqdl.spark.answers(
            df, spec, cache=cache).write.parquet(out))
        answers = spark.read.parquet(out)
        found = clock("Spark alone: rows joined with answers",
                      lambda: df.join(answers, "name").where("loud = upper(name)").count())
        assert found == rows, found
    finally:
        spark.stop()
        postgres.close()
        endpoint.close()


if __name__ == "__main__":
    main(*(int(word.replace("_", "")) for word in sys.argv[1:]))
