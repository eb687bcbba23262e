"""Many rows in little memory, and caches of later versions."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import hqdl
import pytest
from endpoint import Endpoint
from postgres import Postgres

#: Maximum memory of a stream in bytes per row: the index of each row's answer, once in the engine
#: and once in Arrow, and the list of the texts.
ROWS, A_ROW = 1_000_000, 128

STREAM = """
import hqdl, pyarrow, resource, sys
ROWS = {rows}
model = hqdl.Model("m", base_url={url!r}, rows_per_request=100)
class Stream:
    # The column is computed while it is read.
    def __arrow_c_stream__(self, requested_schema=None):
        kind = pyarrow.struct([("v", pyarrow.string())])
        text = pyarrow.array([f"value {{n % 200}}" for n in range(10_000)])
        one = pyarrow.RecordBatch.from_arrays([text], ["v"])
        all = (one for _ in range(ROWS // 10_000))
        return pyarrow.RecordBatchReader.from_batches(one.schema, all).__arrow_c_stream__()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
few = [f"value {{n}}" for n in range(200)]
hqdl.map("upper", few, model=model)
"""


def stream(endpoint: Endpoint, script: str) -> None:
    text = STREAM.format(url=endpoint.url, rows=ROWS) + script
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="measures as Linux does")
def test_a_million_answers_take_little_memory(endpoint: Endpoint) -> None:
    stream(
        endpoint,
        f"""
values = pyarrow.chunked_array([pyarrow.array(few * 50)] * (ROWS // 10_000))
before = peak()
answers = hqdl.map("upper", values, model=model)
assert len(answers) == ROWS and answers[ROWS - 1] == "VALUE 199"
assert answers.meta["values_asked"] == 0
assert peak() - before < ROWS * {A_ROW}, (peak() - before) / ROWS
""",
    )
    assert set(endpoint.cells.values()) == {1}


@pytest.mark.skipif(sys.platform != "linux", reason="measures as Linux does")
def test_a_streamed_table_is_never_entirely_in_memory(endpoint: Endpoint) -> None:
    stream(
        endpoint,
        """
def count():
    return hqdl.query("SELECT count(*) FROM t", tables={"t": Stream()}, model=model).rows
all, ROWS = ROWS, 10_000
assert count() == [(ROWS,)]
before, ROWS = peak(), all
assert count() == [(ROWS,)]
# The texts have 9 MB.
assert peak() - before < 4 << 20, peak() - before
""",
    )


def test_a_cache_of_a_later_version_is_not_changed(
    endpoint: Endpoint, model: hqdl.Model, alone: Path
) -> None:
    hqdl.map("upper", ["a"], model=model)
    hqdl.close()
    journal = alone / "cache" / "journal.sqlite"
    with sqlite3.connect(journal) as db:
        db.execute("INSERT INTO hqdl_migration VALUES (999, 'later')")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    before = journal.read_bytes()
    with pytest.raises(hqdl.InputError, match="newer"):
        hqdl.map("upper", ["a"], model=model)
    assert journal.read_bytes() == before and endpoint.requests == 1
    with sqlite3.connect(journal) as db:
        db.execute("DELETE FROM hqdl_migration WHERE version = 999")
    db.close()
    assert hqdl.map("upper", ["a"], model=model).meta["values_asked"] == 0


def test_a_server_of_a_later_version_is_not_changed(
    endpoint: Endpoint, model: hqdl.Model, postgres: Postgres
) -> None:
    url = postgres.database()
    hqdl.map("upper", ["a"], model=model, cache=url)
    hqdl.close()
    name = url.rpartition("/")[2]
    postgres.sql(name, "INSERT INTO hqdl.migration (version) VALUES (999)")
    with pytest.raises(hqdl.InputError, match="newer"):
        hqdl.map("upper", ["a"], model=model, cache=url)
    postgres.sql(name, "DELETE FROM hqdl.migration WHERE version = 999")
    assert hqdl.map("upper", ["a"], model=model, cache=url).meta["values_asked"] == 0
    assert endpoint.requests == 1
