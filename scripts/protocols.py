"""Checks hqdl's protocols against the packages anthropic and openai. See scripts/protocols."""

import collections.abc
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anthropic
import openai
import pydantic
from anthropic.types import Message, RawMessageStreamEvent, message_create_params
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse, batch_create_params
from openai.types.chat import ChatCompletion, ChatCompletionChunk, completion_create_params
from openai.types.responses import Response, ResponseStreamEvent, response_create_params

hqdl, stub = sys.argv[1:3]


class Stub:
    """The tests' endpoint. It writes its URL and all requests to standard output."""

    def __enter__(self):
        self.process = subprocess.Popen([stub], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        return self

    def __exit__(self, *_):
        self.requests()

    def requests(self):
        """Stops the endpoint and returns the requests."""
        if self.process.poll() is None:
            time.sleep(0.3)
            self.process.stdin.close()
            self.lines = [json.loads(line) for line in self.process.stdout.read().splitlines()]
            self.process.wait()
        return self.lines


SPEC = """
[database]
path = "data.sqlite"
[model]
provider = "{provider}"
name = "{model}"
base_url = "{url}"
api_key_env = "PROTOCOLS_KEY"
price = {{ input = 1.0, output = 2.0, cached_input = 0.1, cache_write = 1.25 }}
{parameters}
[limits]
batch_poll_seconds = 0.05
[[expansion]]
name = "llm"
about = "Heroes of comics."
source = "hero"
key = ["name", "full_name"]
format = "json"
[[expansion.column]]
name = "eye_color"
type = "text"
about = "Color of the eyes."
"""


def run_hqdl(url, provider, model, parameters="", *flags):
    """Fills a table through a provider and returns its rows."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        with sqlite3.connect(folder / "data.sqlite") as database:
            database.execute("CREATE TABLE hero (name, full_name)")
            names = [(f"Hero {n}", f"Name {n}") for n in range(8)]
            database.executemany("INSERT INTO hero VALUES (?, ?)", names)
        spec = SPEC.format(provider=provider, model=model, url=url, parameters=parameters)
        (folder / "x.toml").write_text(spec)
        command = [hqdl, "materialize", "x.toml", "--cache", "cache", *flags]
        environment = {**os.environ, "PROTOCOLS_KEY": "k"}
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        with sqlite3.connect(folder / "data.sqlite") as database:
            return database.execute("SELECT name, eye_color FROM llm WHERE eye_color IS NOT NULL").fetchall()


def plain(value):
    """Returns a validated value with its lazy iterables as lists."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, collections.abc.Iterable) and not isinstance(value, (str, bytes)):
        return [plain(part) for part in value]
    return value


def check_request(kind, body):
    """Validates a request; a field that the type does not have is an error, too."""
    adapter = pydantic.TypeAdapter(kind, config=None)
    known = plain(adapter.validate_python(body))
    assert known == body, f"unknown fields: {json.dumps(body)}\nknown: {json.dumps(known)}"


def check_reply(kind, data):
    """Validates a reply strictly: missing fields and wrong types are errors."""
    return pydantic.TypeAdapter(kind).validate_json(data if isinstance(data, (str, bytes)) else json.dumps(data))


def check_events(kind, lines):
    """Validates the events of a stream and returns their number."""
    events = [line[5:].strip() for line in lines if line.startswith("data:")]
    events = [event for event in events if event != "[DONE]" and '"type":"ping"' not in event]
    for event in events:
        check_reply(kind, event)
    return len(events)


CASES = [
    # provider, model, parameters, type of a request, type of a reply, type of an event
    ("openai", "gpt-5.6", "parameters = { reasoning_effort = 'low' }",
     completion_create_params.CompletionCreateParamsNonStreaming, ChatCompletion, ChatCompletionChunk),
    ("openai-responses", "gpt-5.6", "parameters = { reasoning = { effort = 'low' }, text = { verbosity = 'low' } }",
     response_create_params.ResponseCreateParamsNonStreaming, Response, ResponseStreamEvent),
    ("anthropic", "claude-haiku-4-5", "",
     message_create_params.MessageCreateParamsNonStreaming, Message, RawMessageStreamEvent),
    ("anthropic", "claude-opus-5", "parameters = { thinking = { type = 'adaptive' }, output_config = { effort = 'low' } }",
     message_create_params.MessageCreateParamsNonStreaming, Message, RawMessageStreamEvent),
]

for provider, model, parameters, request_type, reply_type, event_type in CASES:
    with Stub() as endpoint:
        rows = run_hqdl(endpoint.url, provider, model, parameters)
        assert len(rows) == 8, rows
        rows = run_hqdl(endpoint.url, provider, model, parameters, "--batch")
        assert len(rows) == 8, rows
        requests = endpoint.requests()
    bodies = [request["body"] for request in requests]
    assert len(bodies) >= 2
    for body in bodies:
        stream_fields = {"stream", "stream_options"}
        check_request(request_type, {name: part for name, part in body.items() if name not in stream_fields})
    body = {name: part for name, part in bodies[0].items() if name not in stream_fields}

    # The package's own client sends hqdl's request to the endpoint.
    with Stub() as endpoint:
        if provider == "anthropic":
            client = anthropic.Anthropic(api_key="k", base_url=endpoint.url.removesuffix("/v1"), max_retries=0)
            create, raw = client.messages.create, client.messages.with_raw_response.create
            streamed = client.messages.with_streaming_response.create
            text = lambda reply: next(block.text for block in reply.content if block.type == "text")
        else:
            client = openai.OpenAI(api_key="k", base_url=endpoint.url, max_retries=0)
            api = client.responses if provider == "openai-responses" else client.chat.completions
            create, raw = api.create, api.with_raw_response.create
            streamed = api.with_streaming_response.create
            text = lambda reply: reply.output_text if provider == "openai-responses" else reply.choices[0].message.content
        reply = check_reply(reply_type, raw(**body).http_response.text)
        answer = text(reply)
        assert "rows" in json.loads(answer), answer
        with streamed(**body, stream=True) as response:
            count = check_events(event_type, response.iter_lines())
        assert count > 3
        assert text(create(**body)) == answer
        if provider == "anthropic":
            with client.messages.stream(**body) as stream:
                assert text(stream.get_final_message()) == answer
            batch_requests = [{"custom_id": "one", "params": body}]
            check_request(batch_create_params.BatchCreateParams, {"requests": batch_requests})
            batch = client.messages.batches.create(requests=batch_requests)
            while batch.processing_status != "ended":
                raw_batch = client.messages.batches.with_raw_response.retrieve(batch.id)
                check_reply(MessageBatch, raw_batch.http_response.text)
                batch = raw_batch.parse()
            results = client.get(
                f"/v1/messages/batches/{batch.id}/results", cast_to=str, options={"headers": {"accept": "*/*"}})
            for line in results.splitlines():
                check_reply(MessageBatchIndividualResponse, line)
                assert json.loads(line)["result"]["type"] == "succeeded"
            assert [b.id for b in client.messages.batches.list()] == [batch.id]
    print(f"{provider}: hqdl's {len(bodies)} requests, a reply, {count} events and the client agree ({model})")
