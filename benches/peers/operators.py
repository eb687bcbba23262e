"""Filter, map, join, top-k and reduce over 1,000 movie reviews: hqdl beside its peers.

    python benches/peers/operators.py [--hqdl PROGRAM] [--environments DIRECTORY]
        [--tools NAME …] [--operators NAME …] [--reviews N]

Makes a virtual environment for each peer (kept in DIRECTORY, a temporary one by default; LOTUS and
Palimpzest bring torch: 12 GB together) and prints the table of docs/peers.md. hqdl is a release
build of this repository, or PROGRAM. All tools ask the same stub endpoint (`stub.py`), which takes
50 ms per request, knows the truth of each review (`reviews.py`) and never errs.

Each tool runs each operator five times, each time in a new process (a peer's is forked from one that
has the imports done):

1. with an empty cache: the figures of the first table,
2. again with the cache that the tool has by now,
3. with an empty cache, and an endpoint that fails one request in twenty,
4. with an empty cache, until the endpoint has sent half of the answers of run 1: then SIGKILL,
5. again, with what the killed run left.

The peers' clock starts after their imports, hqdl's with its process. Peak memory is the kernel's
figure for the process. Tokens are counted by one tokenizer, cl100k_base, over all messages,
schemas and answers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from compare import PACKAGES, environment
from reviews import GENRES, make_reviews
from stub import Stub, list_people

OPERATORS = ("filter", "map", "join", "top-k", "reduce")
MODEL = "gpt-4o-mini"
K = 10
IS_POSITIVE = "Is the review positive?"
STARS = "How many stars, from 1 to 5, does the reviewer give?"
SAME_GENRE = "The film that the review is about is of the genre."
APPLAUSE = "How long did the audience applaud?"
PEOPLE_NAMED = "List the full names of all people who sat next to a reviewer"

#: A query of hqdl and of BlendSQL for each operator.
HQDL = {
    "filter": f"SELECT r.id FROM reviews AS r WHERE {{{{LLMMap('{IS_POSITIVE}', r.text)}}}}",
    "map": f"SELECT r.id, {{{{LLMMap('{STARS}', r.text, return_type='int')}}}} AS stars FROM reviews AS r",
    "join": "SELECT r.id, g.name FROM reviews AS r JOIN genres AS g "
            f"ON {{{{LLMJoin(r.text, g.name, join_criteria='{SAME_GENRE}')}}}}",
    "top-k": "SELECT r.id FROM reviews AS r JOIN "
             f"json_each({{{{LLMTopK('{APPLAUSE}', (SELECT text FROM reviews), {K})}}}}) AS best "
             "ON r.text = best.value",
    "reduce": f"SELECT {{{{LLMReduce('{PEOPLE_NAMED}', r.text)}}}} AS people FROM reviews AS r",
}
BLENDSQL = {
    "filter": f"SELECT id FROM reviews WHERE {{{{LLMMap('{IS_POSITIVE}', reviews.text, return_type='bool')}}}}",
    "map": f"SELECT id, {{{{LLMMap('{STARS}', reviews.text, return_type='int')}}}} AS stars FROM reviews",
    "join": "SELECT reviews.id, genres.name FROM reviews JOIN genres "
            f"ON {{{{LLMJoin(reviews.text, genres.name, join_criteria='{SAME_GENRE}')}}}}",
    "reduce": f"SELECT {{{{LLMQA('{PEOPLE_NAMED}', (SELECT text FROM reviews))}}}} AS people",
}

Run = Callable[[], object]
#: A process's id, and a function that waits for its exit code and peak memory in MB.
Started = tuple[int, Callable[[], tuple[int, int]]]


def make_database(path: Path, texts: list[str]) -> None:
    if path.exists():
        return
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE reviews (id INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO reviews VALUES (?, ?)", enumerate(texts))
        db.execute("CREATE TABLE genres (name TEXT PRIMARY KEY)")
        db.executemany("INSERT INTO genres VALUES (?)", [(g,) for g in GENRES])


def prepare_blendsql(operator: str, texts: list[str], url: str, work: Path) -> Run:
    from blendsql import BlendSQL
    from blendsql.models import OpenAI

    make_database(work / "reviews.sqlite", texts)

    def run() -> object:
        # With its cache, the join of 0.1.28 fails: "no attribute 'make_cache_key'".
        model = OpenAI(MODEL, api_key="x", base_url=url, caching=operator != "join")
        frame = BlendSQL(str(work / "reviews.sqlite"), model=model).execute(BLENDSQL[operator]).df()
        rows = frame.rows() if hasattr(frame, "rows") else frame.values.tolist()
        return rows_found(operator, [list(row) for row in rows])

    return run


def prepare_lotus(operator: str, texts: list[str], url: str, work: Path) -> Run:
    import lotus as tool
    import pandas as pd
    from lotus.cache import CacheConfig, CacheFactory, CacheType
    from lotus.models import LM

    frame = pd.DataFrame({"id": range(len(texts)), "text": texts})
    genres = pd.DataFrame({"genre": list(GENRES)})

    def run() -> object:
        kept = CacheConfig(CacheType.SQLITE, 100 * len(texts), cache_dir=str(work / "lotus"))
        model = LM(f"openai/{MODEL}", api_base=url, api_key="x", cache=CacheFactory.create_cache(kept))
        tool.settings.configure(lm=model, enable_cache=True)
        if operator == "filter":
            return frame.sem_filter("The {text} is positive.")["id"].tolist()
        if operator == "map":
            found = frame.sem_map(f"{{text}} {STARS} Answer with the number only.", suffix="stars")
            return found[["id", "stars"]].values.tolist()
        if operator == "join":
            found = frame.sem_join(genres, "The film that {text:left} is about is of the genre {genre:right}.")
            return found[["id", "genre"]].values.tolist()
        if operator == "top-k":
            return frame.sem_topk("In which {text} did the audience applaud longest?", K=K)["id"].tolist()
        return frame.sem_agg(f"{PEOPLE_NAMED} in {{text}}", suffix="people")["people"][0]

    return run


def prepare_palimpzest(operator: str, texts: list[str], url: str, work: Path) -> Run:
    import palimpzest as pz

    reviews = pz.MemoryDataset("reviews", [{"id": n, "text": text} for n, text in enumerate(texts)])
    genres = pz.MemoryDataset("genres", [{"genre": genre} for genre in GENRES])
    # One call per record with one model: no critique, mixture of models or retrieval.
    config = pz.QueryProcessorConfig(
        policy=pz.MaxQuality(), available_models=[pz.Model.GPT_4o_MINI], progress=False,
        allow_critic=False, allow_mixtures=False, allow_rag_reduction=False)

    def run() -> object:
        if operator == "filter":
            found = reviews.sem_filter("The review is positive.", depends_on=["text"])
            return found.run(config).to_df()["id"].tolist()
        if operator == "map":
            column = {"name": "stars", "type": int, "desc": STARS}
            found = reviews.sem_map([column], depends_on=["text"]).run(config).to_df()
            return found[["id", "stars"]].values.tolist()
        if operator == "join":
            found = reviews.sem_join(genres, SAME_GENRE, depends_on=["text", "genre"]).run(config).to_df()
            return found[["id", "genre"]].values.tolist()
        column = {"name": "people", "type": str, "desc": PEOPLE_NAMED}
        return reviews.sem_agg(column, PEOPLE_NAMED, depends_on=["text"]).run(config).to_df()["people"][0]

    return run


def prepare_docetl(operator: str, texts: list[str], url: str, work: Path) -> Run:
    import docetl as tool

    tool.default_model = f"openai/{MODEL}"
    reviews = tool.from_list([{"id": n, "text": text} for n, text in enumerate(texts)])
    genres = tool.from_list([{"genre": genre} for genre in GENRES])
    review, every = "{{ input.text }}", "{% for r in inputs %}{{ r.text }}\n{% endfor %}"

    def run() -> object:
        if operator == "filter":
            frame = reviews.filter(prompt=f"{IS_POSITIVE}\n{review}",
                                   output={"schema": {"positive": "bool"}}, skip_on_error=True)
        elif operator == "map":
            # By default, the first request that fails for good ends the run without a result.
            frame = reviews.map(prompt=f"{STARS}\n{review}", output={"schema": {"stars": "int"}},
                                skip_on_error=True)
        elif operator == "join":
            # All pairs are compared; otherwise, embeddings choose the pairs.
            frame = reviews.equijoin(
                genres, comparison_prompt=f"{SAME_GENRE}\n{{{{ left.text }}}}\n{{{{ right.genre }}}}",
                blocking_conditions=["True"])
        elif operator == "top-k":
            frame = reviews._append_op(
                "rank", None, {"prompt": APPLAUSE, "input_keys": ["text"], "direction": "desc",
                                "k": K, "initial_ordering_method": "likert"})
        else:
            frame = reviews.reduce(reduce_key="_all", prompt=f"{PEOPLE_NAMED}:\n{every}",
                                   output={"schema": {"people": "string"}})
        rows = frame.collect(max_threads=64)
        columns = {"map": ["id", "stars"], "join": ["id", "genre"], "reduce": ["people"]}
        rows = rows[:K] if operator == "top-k" else rows
        return rows_found(operator, [[row[c] for c in columns.get(operator, ["id"])] for row in rows])

    return run


def can_run(name: str, operator: str) -> bool:
    """BlendSQL and Palimpzest have no operator for the best k by a criterion."""
    return operator != "top-k" or name not in ("blendsql", "palimpzest")


def rows_found(operator: str, rows: list[list]) -> object:
    """The result of an operator from the rows of a table."""
    if operator == "reduce":
        return rows[0][0]
    return rows if operator in ("map", "join") else [row[0] for row in rows]


#: What a server imports before it forks: all but what reads its cache's place on import.
PRELOADED = {
    "blendsql": ["polars", "pandas", "openai", "guidance"],
    "lotus-ai": ["lotus", "lotus.models", "lotus.cache", "pandas"],
    "palimpzest": ["palimpzest"],
    "docetl": ["litellm", "pandas", "sklearn.metrics.pairwise", "rich"],
}
PEERS = {"blendsql": prepare_blendsql, "lotus-ai": prepare_lotus,
         "palimpzest": prepare_palimpzest, "docetl": prepare_docetl}


def serve_runs(name: str) -> None:
    """Runs what each line of stdin describes in a fork, since the imports take seconds.

    Prints the process's id at its start, and its exit code and peak memory in MB at its end.
    """
    use_packaged_vocabularies()
    for module in PRELOADED[name]:
        importlib.import_module(module)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run_worker(name, **order)
        print(pid, flush=True)
        _, status, usage = os.wait4(pid, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss // 1024]), flush=True)


def run_worker(name: str, operator: str, size: int, url: str, work: str, env: dict) -> NoReturn:
    """One run; writes its seconds and what it found."""
    os.setsid()
    os.chdir(work)
    os.environ.update(env)
    for descriptor, file in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    try:
        prepared = PEERS[name](operator, make_reviews(size)[0], url, Path(work))
        began = time.perf_counter()
        found = prepared()
        took = time.perf_counter() - began
        Path("said.json").write_text(json.dumps([took, found], default=lambda value: value.item()))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # Not by way of sys.exit: the parent's exit handlers are not this process's.
    os._exit(0)


def judge(operator: str, found: object, truths: list) -> tuple[int, int]:
    """Values lost, and values that are wrong."""
    if operator == "reduce":
        wanted = {t.person for t in truths if t.person}
        return len(wanted - set(list_people(str(found)).split("; "))), 0
    if operator == "map":
        said = {int(n): stars for n, stars in found or []}
        values = [(as_number(said.get(n)), t.stars) for n, t in enumerate(truths)]
        return (sum(v is None for v, _ in values),
                sum(v is not None and v != stars for v, stars in values))
    if operator == "join":
        wanted, said = {(n, t.genre) for n, t in enumerate(truths)}, {(int(n), g) for n, g in found or []}
    else:
        numbers = range(len(truths))
        best = sorted(numbers, key=lambda n: -truths[n].applause)[:K]
        wanted = set(best) if operator == "top-k" else {n for n in numbers if truths[n].stars >= 4}
        said = {int(n) for n in found or []}
    return len(wanted - said), len(said - wanted)


def as_number(value: object) -> float | None:
    """A number, None for no value, or -1 for a value that is not a number."""
    try:
        number = float("nan") if value is None else float(value)
    except (TypeError, ValueError):
        return -1
    return None if math.isnan(number) else number


class Bench:
    def __init__(self, size: int, program: Path, pythons: dict[str, Path]) -> None:
        self.size, self.program, self.pythons = size, program, pythons
        self.texts, self.truths = make_reviews(size)
        self.stub = Stub(self.truths)
        self.servers: dict[str, subprocess.Popen] = {}

    def run(self, name: str, operator: str, work: Path, faults: bool = False, kill_on: int = 0) -> dict:
        url = f"{self.stub.url}/{name.removesuffix('-ai')}/{operator}/v1"
        self.stub.reset(faults)
        (work / "said.json").unlink(missing_ok=True)
        began = time.perf_counter()
        pid, wait = (self.start_hqdl if name == "hqdl" else self.start_peer)(name, operator, url, work)
        if kill_on:
            self.stub.kill_on(kill_on, lambda: os.killpg(pid, signal.SIGKILL))
        code, megabytes = wait()
        took = time.perf_counter() - began
        measured = {"requests": self.stub.requests, "seconds": took, "mb": megabytes, "code": code,
                    "found": None, "why": ""}
        self.read_result(name, operator, work, measured)
        measured["lost"], measured["wrong"] = judge(operator, measured["found"], self.truths)
        return measured

    def start_hqdl(self, name: str, operator: str, url: str, work: Path) -> Started:
        make_database(work / "reviews.sqlite", self.texts)
        command = [self.program, "query", "--db", work / "reviews.sqlite", "--cache", work / "cache",
                   "--model", MODEL, "--base-url", url, "--format", "json", HQDL[operator]]
        with open(work / "stdout", "wb") as out, open(work / "stderr", "wb") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       start_new_session=True, env=os.environ | {"OPENAI_API_KEY": "x"})

        def wait() -> tuple[int, int]:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_maxrss // 1024

        return process.pid, wait

    def start_peer(self, name: str, operator: str, url: str, work: Path) -> Started:
        if name not in self.servers:
            self.servers[name] = subprocess.Popen(
                [self.pythons[name], __file__, "--serve", name], text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=os.environ | {"OPENAI_API_KEY": "x", "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        server = self.servers[name]
        env = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "XDG_CACHE_HOME": str(work / "xdg"),
               "DOCETL_HOME_DIR": str(work / "docetl")}
        order = {"operator": operator, "size": len(self.texts), "url": url, "work": str(work), "env": env}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline()), lambda: json.loads(server.stdout.readline())

    def read_result(self, name: str, operator: str, work: Path, measured: dict) -> None:
        lines = (work / "stderr").read_text(errors="replace").strip().splitlines() or [""]
        measured["why"] = lines[-1].strip()
        if name == "hqdl":
            try:
                result = json.loads((work / "stdout").read_text())
                measured["found"] = rows_found(operator, result["rows"])
            except (ValueError, KeyError, IndexError):
                pass
        elif (work / "said.json").exists() and measured["code"] == 0:
            measured["seconds"], measured["found"] = json.loads((work / "said.json").read_text())

    def measure(self, name: str, operator: str) -> dict:
        """All runs of an operator."""
        results = {}
        with tempfile.TemporaryDirectory(prefix="hqdl-peers-") as work:
            self.stub.forget_units()
            first = self.run(name, operator, Path(work))
            first["in"], first["out"] = self.count_tokens()
            results["first"] = first
            results["second"] = self.run(name, operator, Path(work))
        with tempfile.TemporaryDirectory(prefix="hqdl-peers-") as work:
            self.stub.forget_units()
            results["faults"] = self.run(name, operator, Path(work), faults=True)
            results["faults"]["twice"] = self.stub.asked_twice()
        with tempfile.TemporaryDirectory(prefix="hqdl-peers-") as work:
            self.stub.forget_units()
            self.run(name, operator, Path(work), kill_on=max(first["requests"] // 2, 1))
            self.stub.wait_until_idle()
            results["resumed"] = self.run(name, operator, Path(work))
            results["resumed"]["twice"] = self.stub.asked_twice()
        return results

    def count_tokens(self) -> tuple[int, int]:
        """Tokens of the texts that the stub got and sent."""
        ended = subprocess.run(
            [self.pythons["tokens"], __file__, "--count"], input=json.dumps([self.stub.inputs, self.stub.outputs]),
            capture_output=True, text=True, check=True)
        return tuple(json.loads(ended.stdout))


def use_packaged_vocabularies() -> None:
    """Lets tiktoken read the vocabularies of litellm's package instead of downloading them."""
    tables = Path(sysconfig.get_path("purelib"), "litellm", "litellm_core_utils", "tokenizers")
    if tables.exists():
        os.environ["TIKTOKEN_CACHE_DIR"] = str(tables)


def print_token_counts() -> None:
    """Prints the numbers of tokens of two lists of texts, with the vocabulary in litellm's package."""
    use_packaged_vocabularies()
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    lists = json.load(sys.stdin)
    print(json.dumps([sum(len(encoding.encode(t, disallowed_special=())) for t in l) for l in lists]))


def build_hqdl() -> Path:
    root = Path(__file__).parents[2]
    subprocess.run(["cargo", "build", "--locked", "--release"], cwd=root, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return target / "release" / "hqdl"


def describe_end(measured: dict) -> str:
    """Losses of a run, or how it ended without a result."""
    if measured["found"] is None:
        return f"fails (exit {measured['code']})"
    return ", ".join(f"{measured[what]:,} {what}" for what in ("lost", "wrong") if measured[what]) or "–"


def print_tables(results: dict[tuple[str, str], dict]) -> None:
    print("\n| operator | tool | requests | tokens in | tokens out | seconds | MB | lost or wrong "
          "| second run |\n|---|---|---|---|---|---|---|---|---|")
    for (operator, name), runs in results.items():
        first, second = runs["first"], runs["second"]
        again = f"{second['requests']:,} requests" if second["requests"] else "no request"
        again += f", {second['seconds']:.1f} s"
        if (end := describe_end(second)) != "–":
            again += f", {end}"
        print(f"| {operator} | {name} | {first['requests']:,} | {first['in']:,} | {first['out']:,} "
              f"| {first['seconds']:.1f} | {first['mb']:,} | {describe_end(first)} "
              f"| {again} |")
    print("\n| operator | tool | faults: requests | lost or wrong | asked twice "
          "| resumed: requests | lost or wrong | asked twice |\n|---|---|---|---|---|---|---|---|")
    for (operator, name), runs in results.items():
        cells = [f"{runs[r]['requests']:,} | {describe_end(runs[r])} | {runs[r]['twice']:,}"
                 for r in ("faults", "resumed")]
        print(f"| {operator} | {name} | {cells[0]} | {cells[1]} |")


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    said.add_argument("--hqdl", type=Path, metavar="PROGRAM")
    said.add_argument("--environments", type=Path, metavar="DIRECTORY")
    said.add_argument("--tools", nargs="+", choices=["hqdl", *PEERS], default=["hqdl", *PEERS])
    said.add_argument("--operators", nargs="+", choices=OPERATORS, default=OPERATORS)
    said.add_argument("--reviews", type=int, default=1_000)
    said.add_argument("--serve", help=argparse.SUPPRESS)
    said.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    told = said.parse_args()
    if told.count:
        return print_token_counts()
    if told.serve:
        return serve_runs(told.serve)
    at = told.environments or Path(tempfile.mkdtemp(prefix="hqdl-peers-"))
    pythons = {}
    for name in ["tokens", *PEERS]:
        if name in ["tokens", *told.tools]:
            try:
                pythons[name] = environment(at, name, PACKAGES[name])
            except subprocess.CalledProcessError as error:
                print(f"{name} cannot be installed here: {error}")
    program = told.hqdl or build_hqdl() if "hqdl" in told.tools else Path()
    bench = Bench(told.reviews, program.absolute(), pythons)
    results = {}
    try:
        for operator in told.operators:
            for name in told.tools:
                if can_run(name, operator) and (name == "hqdl" or name in pythons):
                    runs = bench.measure(name, operator)
                    results[operator, name] = runs
                    print(json.dumps([operator, name, {k: v | {"found": None} for k, v in runs.items()}]),
                          file=sys.stderr, flush=True)
        print_tables(results)
    finally:
        for server in bench.servers.values():
            server.stdin.close()
            server.wait()
        if not told.environments:
            shutil.rmtree(at, ignore_errors=True)


if __name__ == "__main__":
    main()
