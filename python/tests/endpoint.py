"""A local OpenAI-compatible endpoint that computes its answers and records the requests."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Question, value (or key) and the row as the prompt shows it.
Truth = Callable[[str, str], Any]


def compute(question: str, value: str) -> Any:
    """Computes the answer from the value."""
    function, _, parameter = question.partition(":")
    if function == "upper":
        return value.upper()
    if function == "length":
        return len(value)
    if function == "has":
        return parameter in value
    if function == "letters":
        return sorted(set(value))
    if function == "none":
        return None
    return f"{question} of {value}"


def read_single(user: str) -> tuple[str, str]:
    """Returns the question and the value of a prompt about one value or one text."""
    said, _, question = user.rpartition("\nQuestion: ")
    lines = said.splitlines()
    if lines[0].startswith("Column: "):
        lines = lines[1:]
    if lines[0].startswith("Text"):
        return question, str(json.loads(lines[1]))
    return question, str(json.loads(lines[0].partition(": ")[2]))


class Endpoint:
    def __init__(self, truth: Truth = compute) -> None:
        self.truth = truth
        self.cells: Counter[tuple[str, str]] = Counter()
        self.requests = 0
        #: Billed tokens.
        self.input_tokens = 0
        self.output_tokens = 0
        #: Delay of an answer in seconds.
        self.delay = 0.0
        #: HTTP status to send instead of an answer.
        self.status = 200
        #: Set when a request arrives.
        self.asked = threading.Event()
        #: Answers wait while this is not set.
        self.go = threading.Event()
        self.go.set()
        #: Number of requests that wait for it.
        self.waiting = 0
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, answer = endpoint.answer(body)
                out = json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(out)))
                    self.end_headers()
                    self.wfile.write(out)
                except OSError:
                    pass

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.asked.set()
        with self._lock:
            self.waiting += 1
        self.go.wait()
        with self._lock:
            self.waiting -= 1
        if self.delay:
            time.sleep(self.delay)
        if self.status != 200:
            return self.status, {"error": {"message": "no"}}
        system, user = (m["content"] for m in body["messages"])
        if "## Rows\n" in user:
            content = self.answer_table(system, user)
        elif user.startswith("Row:\n"):
            content = self.answer_row(system, user)
        elif "\n\nQuestions:\n" in user or "about each value." in system:
            content = self.answer_values(system, user)
        else:
            question, value = read_single(user)
            content = json.dumps({"answer": self.cell(question, value)})
        input_tokens, output_tokens = len(json.dumps(body)) // 4, len(content) // 4 + 1
        with self._lock:
            self.requests += 1
            self.input_tokens += input_tokens
            self.output_tokens += output_tokens
        return 200, {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": content},
                }
            ],
            "usage": {
                "prompt_tokens": input_tokens,
                "completion_tokens": output_tokens,
                "total_tokens": input_tokens + output_tokens,
            },
        }

    def answer_table(self, system: str, user: str) -> str:
        """Answers a question about the rows of a table."""
        columns = [
            json.loads(line)
            for line in system.partition("## Columns\n")[2].splitlines()
            if line.startswith("{")
        ]
        lines = user.partition("## Rows\n")[2].splitlines()
        _head, *rows = (json.loads(line) for line in lines if line.startswith("["))
        answered = []
        for row in rows:
            cells = {c["column"]: self.cell(c["about"], str(row[1])) for c in columns}
            answered.append({"row": row[0], "cells": cells})
        return json.dumps({"rows": answered})

    def answer_row(self, system: str, user: str) -> str:
        """Answers a request for the columns of one row."""
        key = user.splitlines()[1]
        _, end = json.JSONDecoder().raw_decode(key)
        value = str(json.loads(key[end + 2 :]))
        cells = {}
        for line in system.partition("\nColumns:\n")[2].splitlines():
            if line.startswith('"'):
                name, _ = json.JSONDecoder().raw_decode(line)
                cells[name] = self.cell(line.partition("): ")[2], value)
        return json.dumps(cells)

    def answer_values(self, system: str, user: str) -> str:
        """Answers one or several questions about one or several values."""
        said, _, asked = user.rpartition("\n\nQuestion")
        if asked.startswith(": "):
            questions = {"answer": asked[2:]}
        else:
            lines = (line.partition(": ") for line in asked.splitlines()[1:])
            questions = {json.loads(name): question for name, _, question in lines}
        lines = said.splitlines()
        if lines[0].startswith("Column: "):
            lines = lines[1:]
        if "about each value." not in system:
            value = lines[1] if lines[0].startswith("Text") else lines[0].partition(": ")[2]
            value = str(json.loads(value))
            return json.dumps({name: self.cell(q, value) for name, q in questions.items()})
        answered: list[Any] = []
        for line in lines:
            label, _, value = line.partition(": ")
            cells = [self.cell(q, str(json.loads(value))) for q in questions.values()]
            if '{"rows": [[' in system:
                answered.append([label, *cells])
            else:
                texts = ["?" if c is None else json.dumps(c).strip('"') for c in cells]
                answered.append(",".join([label, *texts]))
        return json.dumps({"rows": answered})

    def cell(self, question: str, value: str) -> Any:
        """Answers a question about a value, and counts it."""
        with self._lock:
            self.cells[(question, value)] += 1
        return self.truth(question, value)
