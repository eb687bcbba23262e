"""The daemon's page beside Datasette, on the same data.

    python benches/peers/page.py [--hqdl PROGRAM] [--rows N] [--times N] [--keep DIRECTORY]

Needs Datasette in this environment (`pip install datasette`), and Chromium. hqdl is a release build
of this repository, or PROGRAM. Both tools serve the file that hqdl has published: the demo, and a
table of N rows (1,000,000) that a stub endpoint has filled. DIRECTORY keeps the files of the table
for the next time.

Prints the tables of docs/peers.md. HTTP: milliseconds from the request to the last byte, over a
connection that is open. Chromium: milliseconds to the first contentful paint, from the start of the
navigation or from the click on a link or button. Each figure is the median of five, after one
request that is not counted; the tools take turns. Both show 50 rows per page. Datasette's
time limits are raised so that no page is cut short.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

from stub import CompletionHandler, start_server

ROOT = Path(__file__).parents[2]
ROWS_PER_REQUEST = 500
COLORS = ["amber", "black", "blue", "brown", "green", "grey", "hazel", "red", "violet", "white"]
DATASETTE = {"sql_time_limit_ms": 30_000, "facet_time_limit_ms": 30_000, "max_returned_rows": 1000}
SPEC = """
[database]
path = "../items.sqlite"
output = "../expanded.sqlite"
[model]
name = "stub"
base_url = "{url}"
api_key_env = "HQDL_BENCH_KEY"
price = {{ input = 0, output = 0 }}
[limits]
concurrency = 16
[[expansion]]
name = "llm"
source = "item"
key = ["name"]
rows_per_request = {rows}
[[expansion.column]]
name = "color"
about = "color of the item"
values = {colors}
[[expansion.column]]
name = "made"
type = "integer"
about = "year in which it was made"
[[expansion.column]]
name = "maker"
about = "name of the maker"
[[expansion.column]]
name = "motto"
about = "motto of the maker"
"""

ALL_COLUMNS = "name || color || coalesce(made, '') || maker || motto"

#: A page's path of hqdl and of Datasette.
Paths = tuple[str, str]


class Answers(CompletionHandler):
    """Fills the columns of the large table."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = "\n".join(message["content"] for message in body["messages"])
        message = {"role": "assistant", "content": fill_rows(text)}
        self.send_completion(body, message, {"prompt_tokens": 1, "completion_tokens": 1})


def fill_rows(prompt: str) -> str:
    head, _, rows = prompt.rpartition("## Rows\n")
    names = [json.loads(line)["column"] for line in head.splitlines() if line.startswith('{"column"')]
    filled = []
    for row in [json.loads(line) for line in rows.splitlines() if line.startswith("[")][1:]:
        number = int(row[1].split()[-1])
        cells = {
            "color": COLORS[number * 7919 % 97 % 10],
            "made": None if number % 50 == 0 else 1700 + number * 31 % 324,
            "maker": f"Maker {number * 7 % 5003}",
            "motto": f"We make what lasts, and number {number} lasts longest.",
        }
        filled.append({"row": row[0], "cells": {name: cells[name] for name in names}})
    return json.dumps({"rows": filled})


def make_large_table(hqdl: str, folder: Path, rows: int) -> None:
    """Publishes a table of so many rows, unless the folder contains it."""
    spec = SPEC.format(url=start_server(Answers) + "/v1", rows=ROWS_PER_REQUEST, colors=json.dumps(COLORS))
    (folder / "specs").mkdir(parents=True, exist_ok=True)
    (folder / "specs/items.toml").write_text(spec)
    if (folder / "expanded.sqlite").exists():
        return
    database = sqlite3.connect(folder / "items.sqlite")
    database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)")
    names = ((f"item {n:07}",) for n in range(rows))
    database.executemany("INSERT INTO item (name) VALUES (?)", names)
    database.commit()
    database.close()
    run_materialize(hqdl, folder, "specs/items.toml")


def make_demo(hqdl: str, folder: Path) -> None:
    shutil.copytree(ROOT / "specs", folder / "specs")
    shutil.copytree(ROOT / "examples/superhero", folder / "examples/superhero",
                    ignore=shutil.ignore_patterns("expanded.*"))
    run_materialize(hqdl, folder, "specs/superhero.toml")


def run_materialize(hqdl: str, folder: Path, spec: str) -> None:
    command = [hqdl, "materialize", spec, "--cache", "cache", "--quiet"]
    subprocess.run(command, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)


def environment() -> dict[str, str]:
    return os.environ | {"HQDL_BENCH_KEY": "none"}


class Server:
    """A server process. Its address appears in its output."""

    def __init__(self, command: list[str], folder: Path, announcement: str) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if found := re.search(announcement, line):
                self.address = found[1]
                return
        sys.exit(f"{command[0]} did not start")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def start_hqdl(hqdl: str, folder: Path) -> Server:
    limits = ["--client-requests=0", "--client-streams=0", "--client-megabytes=0"]
    command = [hqdl, "daemon", "--listen", "127.0.0.1:0", "--cache", "cache", "--no-spend", *limits]
    return Server(command, folder, r"listening on http://(\S+)")


def start_datasette(folder: Path, database: str) -> Server:
    settings = [part for name, value in DATASETTE.items() for part in ("--setting", name, str(value))]
    datasette = str(Path(sys.executable).with_name("datasette"))
    command = [datasette, "serve", "--port", "0", *settings, database]
    return Server(command, folder, r"running on http://(\S+)")


class Client:
    """Reads pages over one connection."""

    def __init__(self, address: str) -> None:
        self.connection = http.client.HTTPConnection(address, timeout=120)

    def read(self, path: str) -> str:
        self.connection.request("GET", path, headers={"accept": "text/html"})
        response = self.connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            sys.exit(f"{path}: {response.status} {text[:500]}")
        return text

    def measure(self, path: str) -> float:
        began = time.perf_counter()
        self.read(path)
        return (time.perf_counter() - began) * 1000


def compare(times: int, measures: list[Callable[[], float]]) -> list[float]:
    """Returns the medians of some measures, which take turns."""
    for measure in measures:
        measure()
    rounds = [[measure() for measure in measures] for _ in range(times)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


class Browser:
    """Chromium with one page, controlled through a pipe."""

    def __init__(self, home: Path) -> None:
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if program is None:
            sys.exit("Chromium is not installed")
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', program,
             "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             "--window-size=1280,800", f"--user-data-dir={home}", "about:blank"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number, self.session = 0, None
        self.buffer = b""
        page = self.send("Target.createTarget", url="about:blank")
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: object) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        number = self.number
        answer = self.wait(lambda message: message.get("id") == number)
        if "error" in answer:
            sys.exit(f"{method}: {answer['error']}")
        return answer["result"]

    def wait(self, is_wanted: Callable[[dict], bool]) -> dict:
        while True:
            while b"\0" not in self.buffer:
                self.buffer += os.read(self.process.stdout.fileno(), 1 << 20)
            text, _, self.buffer = self.buffer.partition(b"\0")
            message = json.loads(text)
            if is_wanted(message):
                return message

    def run(self, script: str) -> object:
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait(lambda message: message.get("method") == "Page.loadEventFired")

    def read_paint(self) -> float:
        """Milliseconds since 1970 of the first contentful paint."""
        return self.run(FIRST_PAINT)

    def measure_open(self, url: str) -> float:
        """Opens a page with an empty cache."""
        self.open("about:blank")
        self.send("Network.setCacheDisabled", cacheDisabled=True)
        self.open(url)
        took = self.read_paint() - self.run("performance.timeOrigin")
        self.send("Network.setCacheDisabled", cacheDisabled=False)
        return took

    def measure_step(self, url: str, script: str) -> float:
        """Opens a page, does something that leads to another page, and waits for that one's paint."""
        self.open(url)
        self.read_paint()
        began = self.run(f"(() => {{ const at = performance.timeOrigin + performance.now(); {script}; return at; }})()")
        self.wait(lambda message: message.get("method") == "Page.loadEventFired")
        return self.read_paint() - began

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


FIRST_PAINT = """new Promise((found) => new PerformanceObserver((list) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) found(performance.timeOrigin + paint.startTime);
}).observe({ type: "paint", buffered: true }))"""


def print_table(title: str, rows: list[tuple[str, list[float]]]) -> None:
    print(f"\n| {title} | hqdl | Datasette |\n|---|---:|---:|")
    for name, figures in rows:
        print(f"| {name} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")
    print(f"load {os.getloadavg()[0]:.2f}", flush=True)


def datasette_path(database: str, **query: str) -> str:
    return f"/{database}/llm?" + urlencode({"_size": "50"} | query)


def large_pages(rows: int) -> list[tuple[str, Paths]]:
    """Pages of the large table."""
    table = "/specs/items/tables/llm"
    number = f"{rows // 2 - 1:07}"
    after = quote(json.dumps([f"item {number}"]))

    def both(title: str, own: str, **query: str) -> tuple[str, Paths]:
        return title, (table + own, datasette_path("expanded", **query))

    return [
        both("first page, by key", ""),
        both("page in the middle, by key", f"?after={after}", _next=f"item~20{number}"),
        both("sorted by a number", "?sort=made", _sort="made"),
        both("sorted by a text", "?sort=-maker", _sort_desc="maker"),
        both("filter: equal", "?f=color%7Cis%7Cblue", color="blue"),
        both("filter: at least", "?f=made%7Cmin%7C2000", made__gte="2000"),
        both("filter: few rows", "?f=maker%7Cis%7CMaker%20777", maker="Maker 777"),
        both("search in a column", "?f=motto%7Chas%7C777777", motto__contains="777777"),
        both("search in all columns", "?q=777777", _where=f"{ALL_COLUMNS} LIKE '%777777%'"),
        both("facet of one column", "?facet=color", _facet="color"),
    ]


def compare_large(hqdl: str, folder: Path, rows: int, times: int) -> None:
    make_large_table(hqdl, folder, rows)
    servers = [start_hqdl(hqdl, folder), start_datasette(folder, "expanded.sqlite")]
    clients = [Client(server.address) for server in servers]
    wait_until_shown(clients[0], "/specs/items/tables/llm")
    results = []
    for title, paths in large_pages(rows):
        measures = [lambda c=c, p=p: c.measure(p) for c, p in zip(clients, paths, strict=True)]
        results.append((title, compare(times, measures)))
    print_table(f"{rows:,} rows, ms over HTTP", results)
    for server in servers:
        server.stop()


def wait_until_shown(client: Client, path: str) -> None:
    for _ in range(600):
        client.connection.request("GET", path, headers={"accept": "text/html"})
        response = client.connection.getresponse()
        response.read()
        if response.status == 200:
            break
        time.sleep(0.1)
    time.sleep(2)


#: Steps on the demo: the two paths over HTTP, and the two scripts in Chromium.
DEMO_STEPS = [
    ("sort", ("?sort=publisher_name", {"_sort": "publisher_name"}),
     ("document.querySelector('th[data-column=publisher_name] a').click()",
      "document.querySelector('th[data-column=publisher_name] a').click()")),
    ("filter", ("?f=gender%7Cis%7CFemale", {"gender": "Female"}),
     ("[...document.querySelectorAll('.facet a')].find(a => a.textContent.startsWith('Marvel')).click()",
      "[...document.querySelectorAll('.facet-info a')].find(a => a.textContent.startsWith('Marvel')).click()")),
    ("facet", ("?facet=race", {"_facet": "race"}),
     ("[...document.querySelectorAll('.facets p a')].find(a => a.textContent == 'race').click()",
      "[...document.querySelectorAll('.suggested-facets a')].find(a => a.textContent == 'race').click()")),
    ("search", ("?q=woman", {"superhero_name__contains": "woman"}),
     ("document.querySelector('input[name=q]').value = 'woman'; "
      "document.querySelector('form.filters button').click()",
      "document.querySelector('select[name=_filter_column]').value = 'superhero_name'; "
      "document.querySelector('select[name=_filter_op]').value = 'contains'; "
      "document.querySelector('input[name=_filter_value]').value = 'woman'; "
      "document.querySelector('form.filters input[type=submit]').click()")),
]


def compare_demo(hqdl: str, folder: Path, times: int) -> None:
    make_demo(hqdl, folder)
    servers = [start_hqdl(hqdl, folder), start_datasette(folder / "examples/superhero", "expanded.sqlite")]
    clients = [Client(server.address) for server in servers]
    table = "/specs/superhero/tables/llm"
    wait_until_shown(clients[0], table)
    paths = [("first page", (table, datasette_path("expanded")))]
    for title, (own, query), _ in DEMO_STEPS:
        paths.append((title, (table + own, datasette_path("expanded", **query))))
    results = []
    for title, both in paths:
        measures = [lambda c=c, p=p: c.measure(p) for c, p in zip(clients, both, strict=True)]
        results.append((title, compare(times, measures)))
    print_table("demo, ms over HTTP", results)
    browser = Browser(folder / "profile")
    # The same three facets on both pages.
    facets = ("?facet=publisher_name&facet=gender&facet=eye_color",
              "&_facet=publisher_name&_facet=gender&_facet=eye_color")
    start = [f"http://{servers[0].address}{table}{facets[0]}",
             f"http://{servers[1].address}{datasette_path('expanded')}{facets[1]}"]
    measures = [lambda u=u: browser.measure_open(u) for u in start]
    results = [("first paint", compare(times, measures))]
    for title, _, scripts in DEMO_STEPS:
        measures = [lambda u=u, s=s: browser.measure_step(u, s) for u, s in zip(start, scripts, strict=True)]
        results.append((title, compare(times, measures)))
    print_table("demo, ms in Chromium", results)
    browser.stop()
    for server in servers:
        server.stop()


def build() -> str:
    subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)
    return str(ROOT / "target/release/hqdl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hqdl")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    hqdl = str(Path(given.hqdl).resolve()) if given.hqdl else build()
    with tempfile.TemporaryDirectory(prefix="hqdl-page-") as work:
        compare_demo(hqdl, Path(work) / "demo", given.times)
        large = given.keep.resolve() if given.keep else Path(work) / "large"
        compare_large(hqdl, large, given.rows, given.times)


if __name__ == "__main__":
    main()
