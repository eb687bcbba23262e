"""What `hqdl.map` takes, in this environment, with recorded answers (an instant model).

    python benches/peers/map.py [VALUES [DISTINCT]]

Prints a table: the time beyond Arrow's own dictionary encoding for a column whose values
are all known, the first run beside the command's over the same values, and one call on one
value. The module should be a release build (HQDL_PYTHON_PROFILE=release scripts/python).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import hqdl
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))

from endpoint import Endpoint

QUESTION = "Is it even?"


def best(work: Callable[[], object], times: int = 5) -> float:
    """Seconds of the quickest of some runs."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def main() -> None:
    values = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    distinct = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    work = Path(tempfile.mkdtemp(prefix="hqdl-bench-"))
    try:
        report(work, values, distinct)
    finally:
        hqdl.close()
        shutil.rmtree(work, ignore_errors=True)


def report(work: Path, values: int, distinct: int) -> None:
    names = [f"number {n}" for n in range(distinct)]
    recording = work / "recorded.jsonl"
    recording.write_text(
        "".join(
            json.dumps({"question": QUESTION, "value": name, "answer": n % 2 == 0}) + "\n"
            for n, name in enumerate(names)
        )
    )
    model = hqdl.Model("instant", recordings=(recording,))
    column = pa.array([names[n * 7919 % distinct] for n in range(values)])

    def ask(some: object, model: hqdl.Model) -> hqdl.Answers:
        return hqdl.map(
            QUESTION, some, return_type=bool, model=model, cache=work / "cache", progress=False
        )

    print(f"hqdl {hqdl.__version__}, Python {platform.python_version()}, pyarrow {pa.__version__},")
    print(f"{platform.machine()}, {os.cpu_count()} cores; {values:,} values, {distinct:,} distinct")
    began = time.perf_counter()
    first = ask(pa.array(names), model)
    asked = time.perf_counter() - began
    assert first.meta["values_asked"] == distinct, first.meta
    command = by_command(work, names, recording)
    print(f"first run, {distinct:,} unknown       {asked:8.3f} s")
    print(f"the command, the same          {command:8.3f} s  ({asked / command:.2f} of it)")

    # What is known of an endpoint's model needs no endpoint; recordings are read each time.
    endpoint = Endpoint(lambda question, value: value[-1] in "02468")
    model = hqdl.Model("stub", base_url=endpoint.url, rows_per_request=200, concurrency=8)
    ask(pa.array(names), model)
    encode = best(lambda: column.dictionary_encode())
    known = best(lambda: ask(column, model))
    print(f"Arrow's dictionary encoding    {encode:8.3f} s")
    print(f"all known                      {known:8.3f} s  (+{known - encode:.3f} s)")

    one = ["number 1"]
    took = []
    for _ in range(300):
        began = time.perf_counter()
        ask(one, model)
        took.append(time.perf_counter() - began)
    print(f"one call on one known value    {statistics.median(took) * 1000:8.3f} ms (median of 300)")


def by_command(work: Path, names: list[str], recording: Path) -> float:
    database = work / "numbers.sqlite"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE t (name TEXT)")
        db.executemany("INSERT INTO t VALUES (?)", [(name,) for name in names])
    sql = f"SELECT {{{{LLMMap('{QUESTION}', t.name, return_type='bool')}}}} FROM t"
    command = [shutil.which("hqdl") or "hqdl", "query", "--db", str(database), "--json"]
    command += ["--cache", str(work / "other"), "--model", "instant"]
    command += ["--recordings", str(recording), "--", sql]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
