"""One question about each of some values: hqdl beside BlendSQL, LOTUS and openaivec.

    python benches/peers/compare.py [--hqdl WHEEL] [--environments DIRECTORY] [VALUES …]

Makes a virtual environment for each tool, since their dependencies contradict each other (kept
in DIRECTORY, a temporary one by default; LOTUS brings torch: 6 GB). hqdl is installed from
`python/` as a release build, or from a wheel. All ask the same stub endpoint, which takes 50 ms a
request and runs in this process; tokens are a quarter of the characters of the messages that it
gets and says, for all.

Each run is a process of its own, with the tool's imports before the clock starts. Each tool has
its own settings but for hqdl's 20 values a request, and the caches of BlendSQL and of LOTUS, which
are off by default and on here: the second run is the same values again. openaivec keeps nothing
beyond its process. Its tokenizer's table is a download; litellm's package has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from stub import CompletionHandler, start_server

QUESTION = "Is it even?"
DELAY = 0.05


class Stub:
    """Answers all of them rightly, in the form that each asks for."""

    def __init__(self) -> None:
        self.requests = self.characters = 0
        lock, stub = threading.Lock(), self

        class Handler(CompletionHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                time.sleep(DELAY)
                responses = self.path.endswith("/responses")
                if responses:
                    text, said = body["instructions"] + body["input"], enveloped(body["input"])
                else:
                    text = "".join(words(m["content"]) for m in body["messages"])
                    said = answer(text)
                with lock:
                    stub.requests += 1
                    stub.characters += len(text) + len(said)
                usage = {"prompt_tokens": len(text) // 4, "completion_tokens": len(said) // 4,
                         "total_tokens": (len(text) + len(said)) // 4}
                if responses:
                    self.send_text(200, "application/json", response(body["model"], said, usage))
                else:
                    message = {"role": "assistant", "content": said}
                    self.send_completion(body, message, usage)

        self.url = start_server(Handler) + "/v1"


def answer(text: str) -> str:
    head, found, rows = text.rpartition("## Rows\n")
    if not found:
        # One value a request; it stands last.
        return str(int(re.findall(r"number (\d+)", text)[-1]) % 2 == 0)
    columns = [json.loads(line)["column"] for line in head.partition("## Columns\n")[2].splitlines()
               if line.startswith("{")]
    _, *rows = [json.loads(line) for line in rows.splitlines() if line.startswith("[")]
    said = [{"row": row[0], "cells": {c: str(row[1]).endswith(tuple("02468")) for c in columns}}
            for row in rows]
    return json.dumps({"rows": said})


def words(content: object) -> str:
    """The text of a message, which may come in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def enveloped(text: str) -> str:
    """openaivec's envelope of messages, answered one by one."""
    asked = json.loads(text)["user_messages"]
    said = [{"id": m["id"], "body": m["body"].endswith(tuple("02468"))} for m in asked]
    return json.dumps({"assistant_messages": said})


def response(model: str, said: str, usage: dict[str, int]) -> str:
    """A response of the API of that name."""
    content = {"type": "output_text", "text": said, "annotations": []}
    message = {"type": "message", "id": "x", "status": "completed", "role": "assistant",
               "content": [content]}
    counts = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"],
              "total_tokens": usage["total_tokens"], "input_tokens_details": {"cached_tokens": 0},
              "output_tokens_details": {"reasoning_tokens": 0}}
    return json.dumps({"id": "x", "object": "response", "created_at": 0, "status": "completed",
                       "model": model, "output": [message], "usage": counts, "tools": [],
                       "tool_choice": "auto", "parallel_tool_calls": True})


def hqdl_map(values: list[str], url: str, work: Path) -> Callable[[], int]:
    import hqdl

    model = hqdl.Model("m", base_url=url, rows_per_request=20)

    def run() -> int:
        found = hqdl.map(QUESTION, values, return_type=bool, model=model, cache=work / "cache",
                         progress=False)
        hqdl.close()
        return sum(found.to_pylist())

    return run


def blendsql(values: list[str], url: str, work: Path) -> Callable[[], int]:
    from blendsql import BlendSQL
    from blendsql.models import OpenAI

    path = work / "values.sqlite"
    if not path.exists():
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE t (v TEXT)")
            db.executemany("INSERT INTO t VALUES (?)", [(v,) for v in values])

    def run() -> int:
        model = OpenAI("m", api_key="x", base_url=url, caching=True)
        query = f"SELECT v FROM t WHERE {{{{LLMMap('{QUESTION}', t.v, return_type='bool')}}}}"
        return len(BlendSQL(str(path), model=model).execute(query).df())

    return run


def lotus(values: list[str], url: str, work: Path) -> Callable[[], int]:
    import lotus as tool
    import pandas as pd
    from lotus.cache import CacheConfig, CacheFactory, CacheType
    from lotus.models import LM

    frame = pd.DataFrame({"v": values})

    def run() -> int:
        kept = CacheConfig(CacheType.SQLITE, 10 * len(values), cache_dir=str(work / "lotus"))
        model = LM(model="openai/m", api_base=url, api_key="x", cache=CacheFactory.create_cache(kept))
        tool.settings.configure(lm=model, enable_cache=True)
        return len(frame.sem_filter("{v} is even"))

    return run


def openaivec(values: list[str], url: str, work: Path) -> Callable[[], int]:
    tables = Path(sysconfig.get_path("purelib"), "litellm", "litellm_core_utils", "tokenizers")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(tables)
    import openaivec as tool
    import pandas as pd
    from openai import AsyncOpenAI
    from openaivec import pandas_ext as _  # noqa: F401

    column = pd.Series(values)

    def run() -> int:
        tool.set_async_client(AsyncOpenAI(base_url=url, api_key="x"))
        tool.set_responses_model("m")
        return int(asyncio.run(column.aio.responses(QUESTION, response_format=bool)).sum())

    return run


TOOLS = {"hqdl": hqdl_map, "blendsql": blendsql, "lotus-ai": lotus, "openaivec": openaivec}
#: What `pip install` is told for each.
PACKAGES = {
    "blendsql": ["blendsql==0.1.28", "polars<2"],
    "lotus-ai": ["lotus-ai==1.2.4"],
    "openaivec": ["openaivec==2.9.3"],
    "palimpzest": ["palimpzest==0.9.0"],
    "docetl": ["docetl==0.3.0"],
    "tokens": ["tiktoken"],
}


def worker(name: str, size: int, url: str, work: Path) -> None:
    """One run, in an environment of the tool; prints its version, seconds and rows."""
    prepared = TOOLS[name]([f"number {n}" for n in range(size)], url, work)
    began = time.perf_counter()
    found = prepared()
    took = time.perf_counter() - began
    (work / "said.json").write_text(json.dumps([version(name), took, found]))


def environment(at: Path, name: str, packages: list[str]) -> Path:
    """The Python of a virtual environment that has the tool; it is made where it is not."""
    python = at / name / "bin" / "python"
    made = at / name / "made"
    if not made.exists():
        # Palimpzest imports a name of typing that Python has since 3.12.
        newer = shutil.which("python3.12") if name == "palimpzest" else None
        subprocess.run([newer or sys.executable, "-m", "venv", "--clear", at / name], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *packages], check=True)
        if name in ("openaivec", "tokens"):
            subprocess.run([*pip, "--no-deps", "litellm"], check=True)
        made.touch()
    return python


def measure(name: str, python: Path, size: int, stub: Stub, work: Path) -> None:
    for run in (1, 2):
        stub.requests = stub.characters = 0
        command = [python, __file__, "--worker", name, "--url", stub.url, "--work", work, str(size)]
        ended = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {
                "OPENAI_API_KEY": "x", "XDG_CACHE_HOME": str(work / "xdg"),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        if ended.returncode != 0:
            why = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            print(f"{name:22}{size:8,}{run:5}     {why[:120]}", flush=True)
            return
        release, took, found = json.loads((work / "said.json").read_text())
        wrong = "" if found == (size + 1) // 2 else f"   {found} rows are true"
        print(f"{name + ' ' + release:22}{size:8,}{run:5}{took:10.2f}{stub.requests:10,}"
              f"{stub.characters // 4:12,}{wrong}", flush=True)


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    said.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000], metavar="VALUES")
    said.add_argument("--hqdl", default=str(Path(__file__).parents[2] / "python"), metavar="WHEEL")
    said.add_argument("--environments", type=Path, metavar="DIRECTORY")
    said.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    said.add_argument("--worker", help=argparse.SUPPRESS)
    said.add_argument("--url", help=argparse.SUPPRESS)
    said.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    told = said.parse_args()
    if told.worker:
        return worker(told.worker, told.sizes[0], told.url, told.work)
    at = told.environments or Path(tempfile.mkdtemp(prefix="hqdl-peers-"))
    stub = Stub()
    try:
        pythons = {}
        for name in told.tools:
            try:
                pythons[name] = environment(at, name, PACKAGES.get(name) or [told.hqdl])
            except subprocess.CalledProcessError as error:
                print(f"{name:22}cannot be installed here: {error}")
        print(f"{'tool':22}{'values':>8}{'run':>5}{'seconds':>10}{'requests':>10}{'tokens':>12}")
        for name, python in pythons.items():
            for size in told.sizes:
                with tempfile.TemporaryDirectory(prefix="hqdl-peers-") as work:
                    measure(name, python, size, stub, Path(work))
    finally:
        if not told.environments:
            shutil.rmtree(at, ignore_errors=True)


if __name__ == "__main__":
    main()
