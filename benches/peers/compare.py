"""One question about each of some values: hqdl beside BlendSQL, LOTUS and openaivec.

    python benches/peers/compare.py [VALUES …]

Run it in an environment that has the tools to compare (`pip install ./python "blendsql==0.1.28"
"polars<2"`); one that is missing is said, and left out. All ask the same stub endpoint, which
takes 50 ms a request; tokens are a quarter of the characters that it gets and says, for all.
Each tool has its own settings but for hqdl's 20 values a request; the second run is a new
session of the tool over the same values.

LOTUS and openaivec are asked as their documentation has it. openaivec fetches its tokenizer's
table from the net when it is first used.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

QUESTION = "Is it even?"
DELAY = 0.05


class Stub:
    """Answers hqdl's rows, and anything else with one word; streams where that is asked."""

    def __init__(self) -> None:
        self.requests = self.characters = 0
        lock, stub = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                time.sleep(DELAY)
                text = "".join(m["content"] for m in body["messages"])
                said = answer(text)
                with lock:
                    stub.requests += 1
                    stub.characters += len(text) + len(said)
                usage = {"prompt_tokens": len(text) // 4, "completion_tokens": len(said) // 4,
                         "total_tokens": (len(text) + len(said)) // 4}
                head = {"id": "x", "created": 0, "model": body["model"]}
                if body.get("stream"):
                    delta = {"index": 0, "delta": {"role": "assistant", "content": said},
                             "finish_reason": "stop"}
                    kind = {"object": "chat.completion.chunk"}
                    lines = [head | kind | {"choices": [delta]},
                             head | kind | {"choices": [], "usage": usage}]
                    out = "".join(f"data: {json.dumps(l)}\n\n" for l in lines) + "data: [DONE]\n\n"
                    self.reply("text/event-stream", out)
                else:
                    choice = {"index": 0, "finish_reason": "stop",
                              "message": {"role": "assistant", "content": said}}
                    kind = {"object": "chat.completion", "choices": [choice], "usage": usage}
                    self.reply("application/json", json.dumps(head | kind))

            def reply(self, kind: str, text: str) -> None:
                out = text.encode()
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(out)))
                self.end_headers()
                self.wfile.write(out)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1024

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}/v1"


def answer(text: str) -> str:
    head, found, rows = text.rpartition("## Rows\n")
    if not found:
        return "True"
    columns = [json.loads(line)["column"] for line in head.partition("## Columns\n")[2].splitlines()
               if line.startswith("{")]
    _, *rows = [json.loads(line) for line in rows.splitlines() if line.startswith("[")]
    said = [{"row": row[0], "cells": {c: str(row[1]).endswith(tuple("02468")) for c in columns}}
            for row in rows]
    return json.dumps({"rows": said})


def hqdl_map(values: list[str], url: str, work: Path) -> Callable[[], object]:
    import hqdl

    model = hqdl.Model("m", base_url=url, rows_per_request=20)

    def run() -> object:
        found = hqdl.map(QUESTION, values, return_type=bool, model=model, cache=work / "cache",
                         progress=False)
        hqdl.close()
        return found

    return run


def blendsql(values: list[str], url: str, work: Path) -> Callable[[], object]:
    from blendsql import BlendSQL
    from blendsql.models import OpenAI

    path = work / "values.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (v TEXT)")
        db.executemany("INSERT INTO t VALUES (?)", [(v,) for v in values])

    def run() -> object:
        model = OpenAI("m", api_key="x", base_url=url)
        query = f"SELECT v FROM t WHERE {{{{LLMMap('{QUESTION}', t.v, return_type='bool')}}}}"
        return BlendSQL(str(path), model=model).execute(query).df

    return run


def lotus(values: list[str], url: str, work: Path) -> Callable[[], object]:
    import lotus as tool
    import pandas as pd
    from lotus.models import LM

    frame = pd.DataFrame({"v": values})

    def run() -> object:
        tool.settings.configure(lm=LM(model="openai/m", api_base=url, api_key="x"))
        return frame.sem_filter("{v} is even")

    return run


def openaivec(values: list[str], url: str, work: Path) -> Callable[[], object]:
    import openaivec as tool
    import pandas as pd
    from openai import OpenAI
    from openaivec import pandas_ext as _  # noqa: F401

    column = pd.Series(values)

    def run() -> object:
        tool.set_client(OpenAI(base_url=url, api_key="x"))
        tool.set_responses_model("m")
        return column.ai.responses(QUESTION, response_format=bool)

    return run


TOOLS = {"hqdl": hqdl_map, "blendsql": blendsql, "lotus-ai": lotus, "openaivec": openaivec}


def main() -> None:
    sizes = [int(word.replace("_", "")) for word in sys.argv[1:]] or [1_000, 10_000]
    os.environ.setdefault("OPENAI_API_KEY", "x")
    stub = Stub()
    print(f"{'tool':22}{'values':>8}{'run':>5}{'seconds':>10}{'requests':>10}{'tokens':>12}")
    for name, tool in TOOLS.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name:22}is not installed here")
            continue
        for size in sizes:
            work = Path(tempfile.mkdtemp(prefix="hqdl-peers-"))
            try:
                prepared = tool([f"number {n}" for n in range(size)], stub.url, work)
                for run in (1, 2):
                    stub.requests = stub.characters = 0
                    began = time.perf_counter()
                    prepared()
                    took = time.perf_counter() - began
                    print(f"{name + ' ' + version:22}{size:8,}{run:5}{took:10.2f}"
                          f"{stub.requests:10,}{stub.characters // 4:12,}", flush=True)
            except Exception as error:
                print(f"{name + ' ' + version:22}{size:8,}     {type(error).__name__}: "
                      f"{str(error)[:100]}", flush=True)
            finally:
                shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
