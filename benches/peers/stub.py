"""An endpoint that answers the prompts of every tool of `operators.py` from the truth.

The URL names the tool and the operator, as in `/lotus/filter/v1`, and the answer has the form that
the tool asks for: lines of JSON for hqdl, a function call for DocETL, JSON for Palimpzest's map, and
one word or one line for the others.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from reviews import GENRES, NUMBER, PEOPLE, Truth

DELAY = 0.05
#: With faults, the first of every 20 requests fails, in one of these ways in turn.
FAULTS = ("500", "reset", "page", "prose")


class CompletionHandler(BaseHTTPRequestHandler):
    """Sends chat completions, streamed if the request asks for it."""

    protocol_version = "HTTP/1.1"

    def send_completion(self, body: dict, message: dict, usage: dict) -> None:
        head = {"id": "x", "created": 0, "model": body["model"]}
        if body.get("stream"):
            delta = {"index": 0, "delta": message, "finish_reason": "stop"}
            kind = {"object": "chat.completion.chunk"}
            lines = [head | kind | {"choices": [delta]},
                     head | kind | {"choices": [], "usage": usage}]
            text = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
            self.send_text(200, "text/event-stream", text + "data: [DONE]\n\n")
        else:
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "finish_reason": reason, "message": message}
            kind = {"object": "chat.completion", "choices": [choice], "usage": usage}
            self.send_text(200, "application/json", json.dumps(head | kind))

    def send_text(self, status: int, kind: str, text: str) -> None:
        out = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_: object) -> None:
        pass  # A killed tool resets its connections.


def start_server(handler: type[BaseHTTPRequestHandler]) -> str:
    """Serves on a free port, in a thread of its own. Returns the URL."""
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class Stub:
    def __init__(self, truths: list[Truth]) -> None:
        self.truths = truths
        self._lock = threading.Lock()
        self.last_reply = 0.0
        self.reset()
        stub = self

        class Handler(CompletionHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                fault = stub.count_request()
                time.sleep(DELAY)
                tool, operator = self.path.split("/")[1:3]
                try:
                    self.answer(fault, tool, operator, body)
                except OSError:
                    pass  # The tool was killed.
                finally:
                    stub.last_reply = time.monotonic()

            def answer(self, fault: str | None, tool: str, operator: str, body: dict) -> None:
                if fault == "reset":
                    # Zero seconds to linger: the connection is reset, not closed.
                    self.connection.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    self.close_connection = True
                elif fault == "500":
                    self.send_text(500, "application/json", '{"error": {"message": "overloaded"}}')
                elif fault == "page":
                    self.send_text(200, "text/html", "<html><h1>Back soon</h1></html>")
                elif fault == "prose":
                    message = {"role": "assistant", "content": "Sorry, I cannot help with that."}
                    self.send_message(stub, tool, body, message)
                else:
                    message = stub.find_answer(tool, operator, body)
                    self.send_message(stub, tool, body, message)
                    stub.record_units(tool, operator, body)

            def send_message(self, stub: Stub, tool: str, body: dict, message: dict) -> None:
                used = stub.record_texts(body, message)
                usage = {"prompt_tokens": used[0] // 4, "completion_tokens": used[1] // 4,
                         "total_tokens": sum(used) // 4}
                self.send_completion(body, message, usage)

        self.url = start_server(Handler)

    def reset(self, with_faults: bool = False) -> None:
        """Starts the counts of a run. `units` stay: a value asked again after a kill counts."""
        with self._lock:
            self.requests = self.answers = 0
            self.with_faults = with_faults
            self.kill_at, self.kill = 0, None
            self.inputs: list[str] = []
            self.outputs: list[str] = []

    def wait_until_idle(self) -> None:
        """Waits for the requests that a killed tool left behind."""
        while time.monotonic() - self.last_reply < 1:
            time.sleep(0.1)

    def forget_units(self) -> None:
        #: Answers per value: a review, a pair of a join, or a review in one prompt of a tree.
        self.units: Counter = Counter()

    def kill_on(self, answer: int, kill: Callable[[], None]) -> None:
        """Calls `kill` when so many answers have been sent."""
        self.kill_at, self.kill = answer, kill

    def count_request(self) -> str | None:
        with self._lock:
            self.requests += 1
            if self.with_faults and self.requests % 20 == 1:
                return FAULTS[self.requests // 20 % len(FAULTS)]
        return None

    def record_texts(self, body: dict, message: dict) -> tuple[int, int]:
        """Keeps the texts, whose tokens are counted after the run; returns their lengths."""
        asked = [message_text(m["content"]) for m in body["messages"]]
        asked += [json.dumps(body[part]) for part in ("tools", "response_format") if body.get(part)]
        calls = message.get("tool_calls") or []
        said = message["content"] or "".join(c["function"]["arguments"] for c in calls)
        asked = "\n".join(asked)
        with self._lock:
            self.inputs.append(asked)
            self.outputs.append(said)
        return len(asked), len(said)

    def record_units(self, tool: str, operator: str, body: dict) -> None:
        text = prompt_text(body)
        _, _, asked = text.rpartition("rate the following documents:")
        numbers = set(NUMBER.findall(asked))
        if operator in ("filter", "map") or (tool == "hqdl" and operator == "top-k"):
            units = {(n,) for n in numbers}
        elif operator == "join":
            genres = GENRES if tool in ("hqdl", "blendsql") else [last_genre(text)]
            units = {(n, genre) for n in numbers for genre in genres}
        else:
            digest = hashlib.sha256(text.encode()).hexdigest()
            units = {(digest, n) for n in numbers or {None}}
        with self._lock:
            self.units.update(units)
            self.answers += 1
            if self.answers == self.kill_at:
                self.kill()

    def asked_twice(self) -> int:
        return sum(count - 1 for count in self.units.values())

    def find_answer(self, tool: str, operator: str, body: dict) -> dict:
        text = prompt_text(body)
        if tool == "hqdl":
            said = self.answer_schema(operator, body, text)
        elif body.get("tools"):
            properties = body["tools"][0]["function"]["parameters"]["properties"]
            arguments = self.fill_properties(operator, properties, text)
            call = {"id": "c", "type": "function",
                    "function": {"name": "send_output", "arguments": json.dumps(arguments)}}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        else:
            said = self.answer_plainly(tool, operator, text)
        return {"role": "assistant", "content": said}

    def find_truth(self, number: str) -> Truth:
        return self.truths[int(number)]

    def answer_plainly(self, tool: str, operator: str, text: str) -> str:
        numbers = NUMBER.findall(text)
        if operator == "reduce":
            people = list_people(text)
            return json.dumps({"people": people}) if tool == "palimpzest" else people
        if operator == "top-k":
            first, second = (self.find_truth(n).applause for n in numbers[-2:])
            return "Document 1" if first > second else "Document 2"
        truth = self.find_truth(numbers[-1])
        if operator == "filter":
            return str(truth.stars >= 4)
        if operator == "map":
            return json.dumps({"stars": truth.stars}) if tool == "palimpzest" else str(truth.stars)
        if tool == "blendsql":
            return truth.genre
        return str(truth.genre == last_genre(text))

    def fill_properties(self, operator: str, properties: dict, text: str) -> dict:
        """Arguments of DocETL's function."""
        name = next(iter(properties))
        truths = [self.find_truth(n) for n in NUMBER.findall(text)]
        if name == "ratings":
            *_, asked = text.rpartition("rate the following documents:")
            truths = [self.find_truth(n) for n in NUMBER.findall(asked)]
            return {name: [1 + 7 * (t.applause - 1) // len(self.truths) for t in truths]}
        if name.endswith("_picks"):
            wanted = int(re.search(r"Select the (\d+) documents", text)[1])
            best = sorted(range(len(truths)), key=lambda i: -truths[i].applause)
            return {name: best[:wanted]}
        if name == "results":
            field = next(iter(properties[name]["items"]["properties"]))
            return {name: [{field: t.stars >= 4 if operator == "filter" else t.stars} for t in truths]}
        if operator == "join":
            return {name: truths[-1].genre == last_genre(text)}
        if operator == "reduce":
            return {name: list_people(text)}
        return {name: truths[-1].stars >= 4 if operator == "filter" else truths[-1].stars}

    def answer_schema(self, operator: str, body: dict, text: str) -> str:
        """hqdl asks for one answer, for lines, or for cells of a table."""
        schema = body["response_format"]["json_schema"]["schema"]["properties"]
        if "answer" in schema:
            return json.dumps({"answer": self.fill_cell(operator, text)})
        if schema["rows"]["items"]["type"] == "string":
            lines = re.findall(r'^(\d+ \S+): (".*")$', text, re.MULTILINE)
            said = [f"{row},{json.dumps(self.fill_cell(operator, value))}" for row, value in lines]
            return json.dumps({"rows": said})
        head, _, rows = text.rpartition("## Rows\n")
        columns = [json.loads(line)["column"] for line in head.partition("## Columns\n")[2].splitlines()
                   if line.startswith("{")]
        said = []
        for row in [json.loads(line) for line in rows.splitlines() if line.startswith("[")][1:]:
            cell = self.fill_cell(operator, json.dumps(row))
            said.append({"row": row[0], "cells": {column: cell for column in columns}})
        return json.dumps({"rows": said})

    def fill_cell(self, operator: str, shown: str) -> object:
        if operator == "reduce":
            return list_people(shown)
        truth = self.find_truth(NUMBER.findall(shown)[-1])
        return {"filter": truth.stars >= 4, "map": truth.stars, "join": [truth.genre],
                "top-k": truth.applause / 100}[operator]


def message_text(content: object) -> str:
    """The text of a message, which may come in parts."""
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content or [])


def prompt_text(body: dict) -> str:
    return "\n".join(message_text(m["content"]) for m in body["messages"])


def last_genre(text: str) -> str:
    return max(GENRES, key=text.rfind)


def list_people(text: str) -> str:
    return "; ".join(person for person in PEOPLE if person in text) or "nobody"
