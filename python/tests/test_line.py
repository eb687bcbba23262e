"""``hqdl map``: each line of JSON is a request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import hqdl
import pytest
from endpoint import Endpoint


class Line:
    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hqdl", "map", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        #: Expected exit code: that of the last line that failed.
        self.exit_code = 0

    def put(self, line: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask(self, question: str, values: list[Any], **more: Any) -> Any:
        return self.put(json.dumps({"question": question, "values": values, **more}))

    def close(self) -> int:
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def line(endpoint: Endpoint) -> Iterator[Line]:
    line = Line("--model", "m", "--base-url", endpoint.url, "--price", "1,2")
    yield line
    assert line.close() == line.exit_code


def test_each_line_is_a_request(line: Line, endpoint: Endpoint) -> None:
    values = ["a", None, 1, 1.0, True, "a"]
    looked = line.ask("upper", values, ask=False)
    assert (looked["answers"], looked["states"]) == ([None] * 6, [None] * 6)
    assert endpoint.requests == 0
    asked = line.ask("upper", values)
    assert asked["answers"] == ["A", None, "1", "1", "1", "A"]
    assert asked["states"] == ["ok", None, "ok", "ok", "ok", "ok"]
    assert asked["meta"]["values_asked"] == 2 and set(endpoint.cells.values()) == {1}
    assert line.ask("upper", ["a", "b"], ask=False)["states"] == ["ok", None]
    assert line.ask("letters", ["bob"], type="list[str]")["answers"] == [["b", "o"]]
    assert line.ask("none", ["x"])["states"] == ["unknown"]
    assert line.ask("upper", ["c"], options=["C", "D"])["answers"] == ["C"]
    # Another process uses the cache at the same time.
    model = hqdl.Model("m", base_url=endpoint.url)
    assert hqdl.map("upper", ["a"], model=model).meta["values_asked"] == 0


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("no JSON", "not JSON"),
        ('{"question": "q"}', "values"),
        ('{"question": "q", "values": [1], "more": 1}', "more"),
        ('{"question": "q", "values": [[1]]}', "not a value"),
        ('{"question": "q", "values": [18446744073709551615]}', "64 bits"),
        ('{"question": "q", "values": ["x"], "type": "nix"}', "return type"),
        ('{"question": "q", "values": ["x"], "budget": 0.0000001}', "budget"),
    ],
)
def test_a_failed_request_is_reported_and_the_next_one_is_answered(
    line: Line, endpoint: Endpoint, said: str, message: str
) -> None:
    told = line.put(said)
    assert told["event"] == "error" and message in json.dumps(told)
    line.exit_code = told["exit"]
    assert endpoint.requests == 0
    assert line.ask("upper", ["a"])["answers"] == ["A"]


def test_without_a_model_only_known_answers_are_returned() -> None:
    line = Line("--no-cache")
    assert line.ask("upper", ["a"], ask=False)["states"] == [None]
    failure = line.ask("upper", ["a"])
    assert "none is named" in failure["message"]
    assert line.close() == failure["exit"]
    assert Line("--db", "x.sqlite").close() == 2
