"""Ingredients that Python functions compute."""

from __future__ import annotations

import datetime
import functools
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hqdl
import pytest
from hqdl import _ingredients

TABLES = {"t": {"a": ["apple", "fig", None, "apple", "plum"], "n": [1, 2, 3, 4, 5]}}


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Forgets the ingredients of the test."""
    yield
    _ingredients._registry.clear()


def column(sql: str, **options: Any) -> list[Any]:
    """Returns the first column of a query over ``TABLES``, without a model."""
    result = hqdl.query(sql, tables=options.pop("tables", TABLES), **options)
    return [row[0] for row in result]


def test_each_distinct_argument_is_computed_once_and_kept() -> None:
    calls: Counter[str] = Counter()

    @hqdl.ingredient(returns="integer", version="1")
    def size(text: str) -> int:
        calls[text] += 1
        return len(text)

    assert column("SELECT {{size(t.a)}} FROM t") == [5, 3, None, 5, 4]
    assert calls == {"apple": 1, "fig": 1, "plum": 1}
    assert column("SELECT n FROM t WHERE {{size(t.a)}} > 3") == [1, 4, 5]
    # Another column with the same values, and the order of the cache's copies.
    assert column("SELECT {{size(s.b)}} FROM s", tables={"s": {"b": ["fig"]}}) == [3]
    assert sum(calls.values()) == 3
    assert size("pear") == 4


def test_another_version_or_body_is_another_ingredient() -> None:
    seen: list[str] = []

    def define(version: str | None) -> None:
        @hqdl.ingredient(version=version)
        def loud(text: str) -> str:
            seen.append(text)
            return text.upper()

    for version in ["1", "1", "2", "a b", "a_b", None, None]:
        define(version)
        assert column("SELECT {{loud('x')}}") == ["X"]
    assert len(seen) == 5

    @hqdl.ingredient
    def loud(text: str) -> str:
        seen.append(text)
        return text.upper() + "!"

    assert column("SELECT {{loud('x')}}") == ["X!"]


def test_arguments_are_literals_values_defaults_and_keywords() -> None:
    @hqdl.ingredient
    def show(a: Any, b: Any = "d", c: Any = None) -> str:
        return repr((a, b, c))

    assert column("SELECT {{show('x')}}") == ["('x', 'd', None)"]
    assert column("SELECT {{show(1, c=2.5)}}") == ["(1, 'd', 2.5)"]
    assert column("SELECT {{show(c=t.n, a='{}', b=NULL)}} FROM t WHERE n = 2") == [
        "('{}', None, 2)"
    ]
    assert column("SELECT {{show(t.a || '!', t.n)}} FROM t WHERE n = 1") == ["('apple!', 1, None)"]
    with pytest.raises(hqdl.InputError, match="needs `a`"):
        column("SELECT {{show(b=1)}}")
    with pytest.raises(hqdl.InputError, match="no argument `model`"):
        column("SELECT {{show(1, model='x')}}")
    with pytest.raises(hqdl.InputError, match="no arguments after"):
        column("SELECT {{show(1, 2, 3, 4)}}")


def test_no_argument() -> None:
    @hqdl.ingredient
    def yes() -> bool:
        return True

    assert column("SELECT n FROM t WHERE {{yes()}} LIMIT 1") == [1]


@pytest.mark.parametrize(
    ("returns", "value", "expected"),
    [
        ("text", " n/a ", "n/a"),
        ("text", "unknown", "unknown"),
        ("text", 'a "b"\n{c}, é', 'a "b"\n{c}, é'),
        ("text", 1, None),
        ("integer", 7, 7),
        ("integer", 7.0, 7),
        ("integer", 7.5, None),
        ("integer", True, None),
        ("integer", 2**63, None),
        ("real", 2, 2.0),
        ("real", float("nan"), None),
        ("real", "2", None),
        ("boolean", True, 1),
        ("boolean", 1, None),
        ("date", datetime.date(2024, 2, 29), "2024-02-29"),
        ("date", "2024-02-29", "2024-02-29"),
        ("date", "soon", None),
        ("list[text]", ["b", "a"], '["b","a"]'),
        ("list[text]", "ba", None),
        ("list[integer]", [1, "x"], None),
        ("text", None, None),
        ("text", (c for c in "ab"), None),
    ],
)
def test_types(returns: str, value: Any, expected: Any) -> None:
    @hqdl.ingredient(returns=returns, version=repr((returns, value)))
    def give(text: str) -> Any:
        return value

    assert column("SELECT {{give('x')}}") == [expected]


def test_an_exception_is_an_error_of_its_cell() -> None:
    calls: Counter[str] = Counter()

    @hqdl.ingredient
    def strict(text: str) -> str:
        calls[text] += 1
        if text == "fig":
            raise ValueError("no figs")
        return text.upper()

    events: list[dict[str, Any]] = []
    sql = "SELECT {{strict(t.a)}} FROM t"
    result = hqdl.query(sql, tables=TABLES, on_event=events.append)
    assert [row[0] for row in result] == ["APPLE", None, None, "APPLE", "PLUM"]
    assert any("`strict`: ValueError: no figs" in str(event) for event in events)
    assert result.meta["values_missing"] == 1
    # Failed cells are not called again unless the query says so.
    before = calls["fig"]
    column(sql, retry_failed=True)
    assert calls["fig"] > before and calls["apple"] == 1


def test_batches() -> None:
    sizes: list[int] = []

    @hqdl.ingredient(batch=3)
    def loud(text: list[str], mark: list[str]) -> list[str]:
        sizes.append(len(text))
        if "bad" in text:
            raise ValueError("bad")
        return [a + b for a, b in zip(text, mark)]

    values = [f"v{n}" for n in range(7)] + ["bad"]
    got = column("SELECT {{loud(t.a, '!')}} FROM t", tables={"t": {"a": values}})
    assert got == [f"v{n}!" for n in range(7)] + [None]
    assert max(sizes) == 3

    @hqdl.ingredient(batch=10)
    def short(text: list[str]) -> list[str]:
        return text[:1]

    # A list of another length fails, and the halves are tried.
    assert column("SELECT {{short(t.a)}} FROM t", tables={"t": {"a": ["x", "y"]}}) == ["x", "y"]


def test_a_value_of_a_batch_fails_alone() -> None:
    sizes: list[int] = []

    @hqdl.ingredient(batch=64, returns="text")
    def loud(text: list[str]) -> list[Any]:
        sizes.append(len(text))
        return [None if a == "v0" else 1 if a == "v9" else a.upper() for a in text]

    values = [f"v{n}" for n in range(64)]
    got = column("SELECT {{loud(t.a)}} FROM t", tables={"t": {"a": values}})
    assert [n for n, a in enumerate(got) if a is None] == [0, 9]
    assert sum(sizes) == 64


def test_each_call_of_a_row_fails_alone() -> None:
    @hqdl.ingredient
    def div(x: int, n: int) -> int:
        return 100 // n

    @hqdl.ingredient(batch=8)
    def divs(x: list[int], n: list[int]) -> list[int]:
        return [100 // b for b in n]

    for name in ["div", "divs"]:
        sql = f"SELECT {{{{{name}(t.n, 5)}}}}, {{{{{name}(t.n, 0)}}}} FROM t WHERE n < 3"
        assert list(hqdl.query(sql, tables=TABLES)) == [(20, None), (20, None)]


def test_a_function_with_state_needs_a_version() -> None:
    class Model:
        def __init__(self, weight: int) -> None:
            self.weight = weight

        def score(self, text: str) -> int:
            return self.weight

        def __call__(self, text: str) -> int:
            return self.weight

    @functools.lru_cache
    def cached(text: str) -> int:
        return 1

    for function in [Model(5).score, Model(5), cached]:
        with pytest.raises(hqdl.InputError, match="does not decide"):
            hqdl.ingredient(name="score")(function)  # type: ignore[call-overload]
    for weight in [5, 7]:
        hqdl.ingredient(version=str(weight))(Model(weight).score)
        assert column("SELECT {{score('x')}}") == [weight]


def test_an_argument_may_be_called_model(heroes: Path, endpoint: Any) -> None:
    @hqdl.ingredient
    def opt(value: str, examples: str = "p", model: str = "m") -> str:
        return f"{value} {examples} {model}"

    sql = "SELECT {{opt(hero.name, model='z', examples='o')}} FROM hero ORDER BY 1"
    assert all(str(row[0]).endswith(" o z") for row in hqdl.open(heroes).query(sql))
    assert endpoint.requests == 0


def test_values() -> None:
    @hqdl.ingredient(values=["low", "high"])
    def level(n: int) -> str:
        return ["low", "middle", "high"][n]

    sql = "SELECT {{level(t.n)}} FROM t"
    assert column(sql, tables={"t": {"n": [0, 1, 2]}}) == ["low", None, "high"]

    @hqdl.ingredient(values=["Germany", "France"])
    def country(text: str) -> str:
        return "Germny"

    assert column("SELECT {{country('x')}}") == [None]


def test_rows() -> None:
    @hqdl.ingredient(kind="qa")
    def count(rows: list[dict[str, Any]], at_least: int = 0) -> int:
        return sum(1 for row in rows if row["n"] >= at_least)

    assert column("SELECT {{count((SELECT * FROM t))}}") == [5]
    assert column("SELECT {{count((SELECT a, n FROM t WHERE n > 1), 4)}}") == [2]
    assert column("SELECT {{count(rows=(SELECT n FROM t WHERE 0))}}") == [0]


def test_join() -> None:
    @hqdl.ingredient(kind="join")
    def initial(left: str, right: list[str]) -> list[str]:
        return [r for r in right if r[0] == left[0]]

    tables = {"t": {"a": ["apple", "fig"]}, "u": {"b": ["almond", "acorn", "date"]}}
    sql = "SELECT t.a || u.b FROM t JOIN u ON {{initial(t.a, u.b)}} ORDER BY 1"
    assert column(sql, tables=tables) == ["appleacorn", "applealmond"]
    sql = "SELECT t.a || u.b FROM t JOIN u ON {{initial(right=u.b, left=t.a)}} ORDER BY 1"
    assert column(sql, tables=tables) == ["appleacorn", "applealmond"]
    sql = "SELECT t.a || u.b FROM t JOIN u ON {{initial(t.a, u.b, block='trigrams')}} ORDER BY 1"
    assert column(sql, tables=tables) == []


def test_alias() -> None:
    @hqdl.ingredient
    def size(text: str) -> int:
        return len(text)

    @hqdl.ingredient(kind="alias")
    def long(value: str, least: int = 3) -> str:
        assert isinstance(value, hqdl.SQL) and not isinstance(least, hqdl.SQL)
        return f"{{{{size({value})}}}} > {least}"

    assert column("SELECT n FROM t WHERE {{long(t.a)}}") == [1, 4, 5]
    assert column("SELECT n FROM t WHERE {{long(t.a, least=4)}}") == [1, 4]

    @hqdl.ingredient(kind="alias")
    def endless() -> str:
        return "{{endless()}}"

    with pytest.raises(hqdl.InputError, match="without an end"):
        column("SELECT {{endless()}}")

    @hqdl.ingredient(kind="alias")
    def broken(a: int) -> str:
        raise KeyError("x")

    for call, message in [("broken(1)", "KeyError"), ("broken()", "missing a required argument")]:
        with pytest.raises(hqdl.InputError, match=message):
            column(f"SELECT {{{{{call}}}}}")


def test_explain_bounds_the_calls_and_calls_nothing() -> None:
    calls: list[str] = []

    @hqdl.ingredient
    def loud(text: str) -> str:
        calls.append(text)
        return text

    with sqlite3.connect("plain.sqlite") as db:
        db.execute("CREATE TABLE hero (name TEXT)")
        db.executemany("INSERT INTO hero VALUES (?)", [("Ann",), ("Bo",), ("Cyd",)])
    session = hqdl.open(database="plain.sqlite")
    explained = session.explain("SELECT {{loud(hero.name)}} FROM hero")
    assert (explained["values_asked"], explained["cost_usd"], calls) == (3, 0, [])
    session.query("SELECT {{loud(hero.name)}} FROM hero")
    assert sorted(calls) == ["Ann", "Bo", "Cyd"]


def test_functions_need_no_price() -> None:
    @hqdl.ingredient
    def size(text: str) -> int:
        return len(text)

    assert column("SELECT {{size('x')}}", budget=1.0) == [1]
    with pytest.raises(hqdl.Error, match="needs a model"):
        column("SELECT {{LLMMap('upper', t.a)}} FROM t", budget=1.0)


def test_a_budget_needs_the_prices_of_the_spec(heroes: Path, endpoint: Any) -> None:
    price = "price = { input = 1.0, output = 2.0 }\n"
    text = heroes.read_text()
    assert price in text
    calls: list[str] = []

    @hqdl.ingredient(version="1")
    def size(text: str) -> int:
        calls.append(text)
        return len(text)

    sql = "SELECT {{size(hero.name)}} FROM hero ORDER BY name"
    heroes.write_text(text.replace(price, ""))
    # As for other queries: without a price, hqdl could not keep the budget.
    with pytest.raises(hqdl.Error, match="has no price"):
        hqdl.open(heroes).query(sql, budget=1.0)
    assert not calls
    assert [row[0] for row in hqdl.open(heroes).query(sql)] == [3, 2, 3]
    heroes.write_text(text)
    assert [row[0] for row in hqdl.open(heroes).query(sql, budget=0.0)] == [3, 2, 3]
    assert endpoint.requests == 0


def test_a_function_may_run_a_query_but_not_itself(heroes: Path) -> None:
    session = hqdl.open(heroes)

    @hqdl.ingredient
    def size(text: str) -> int:
        return len(text)

    @hqdl.ingredient
    def outer(text: str) -> int:
        rows = list(session.query("SELECT {{size(:x)}}", {"x": text}))
        return int(rows[0][0]) * 10

    @hqdl.ingredient
    def recursive(text: str) -> str:
        return str(list(session.query("SELECT {{recursive(:x)}}", {"x": text})))

    rows = session.query("SELECT {{outer(hero.name)}} FROM hero ORDER BY name")
    assert [row[0] for row in rows] == [30, 20, 30]
    assert list(session.query("SELECT {{recursive('x')}}")) == [("[(None,)]",)]


def test_beside_a_model(heroes: Path, endpoint: Any) -> None:
    @hqdl.ingredient
    def size(text: str) -> int:
        return len(text)

    sql = "SELECT {{size({{LLMMap('upper', hero.name)}})}} FROM hero WHERE {{size(hero.name)}} > 2"
    assert [r[0] for r in hqdl.open(heroes).query(sql)] == [3, 3]
    assert endpoint.requests >= 1
    with pytest.raises(hqdl.Error, match="needs a model"):
        column("SELECT {{LLMMap('upper', t.a)}}, {{size('x')}} FROM t")


def test_threads() -> None:
    running, most = [0], [0]
    lock, together = threading.Lock(), threading.Barrier(2)

    @hqdl.ingredient
    def alone(text: str) -> str:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1
        return text

    @hqdl.ingredient(threads=2)
    def paired(text: str) -> str:
        together.wait(20)
        return text

    tables = {"t": {"a": ["w", "x", "y", "z"]}}
    assert column("SELECT {{alone(t.a)}} FROM t", tables=tables) == ["w", "x", "y", "z"]
    assert most[0] == 1
    assert column("SELECT {{paired(t.a)}} FROM t", tables=tables) == ["w", "x", "y", "z"]


def test_functions_that_cannot_be_ingredients() -> None:
    async def later(text: str) -> str:
        return text

    def many(text: str) -> Iterator[str]:
        yield text

    def star(*texts: str) -> str:
        return ""

    def one(text: str) -> str:
        return text

    def wrong(text: str) -> dict[str, int]:
        return {}

    for function, settings, message in [
        (later, {}, "async function"),
        (many, {}, "is a generator"),
        (star, {}, "cannot have the argument"),
        (wrong, {}, "not a type of SQL"),
        (one, {"kind": "reduce"}, "not a kind"),
        (one, {"kind": "join"}, "needs two arguments"),
        (one, {"batch": 0}, "batch=0"),
        (one, {"threads": 0}, "threads=0"),
        (one, {"returns": "vector"}, "not a type of SQL"),
        (one, {"values": []}, "no values"),
        (eval("lambda text: text"), {"version": None, "name": "f"}, None),
    ]:
        if message is None:
            hqdl.ingredient(**settings)(function)  # type: ignore[call-overload]
            continue
        with pytest.raises(hqdl.InputError, match=message):
            hqdl.ingredient(**settings)(function)  # type: ignore[call-overload]
    with pytest.raises(hqdl.InputError, match="not a name"):
        hqdl.ingredient(name="a b")(one)
    hqdl.ingredient(name="llmmap")(one)
    with pytest.raises(hqdl.InputError, match="exists already"):
        column("SELECT {{LLMMap('x', t.a)}} FROM t")



def test_a_function_receives_the_options_of_a_call() -> None:
    seen: list[list[str]] = []

    @hqdl.ingredient
    def last(text: str, options: list[str]) -> str:
        seen.append(options)
        return max(options, default="none")

    assert column("SELECT {{last('x', options=('a', 'b'))}}") == ["b"]
    assert column("SELECT {{last(t.a, options=t.a)}} FROM t WHERE n < 3") == ["plum", "plum"]
    assert column("SELECT {{last('x')}}") == ["none"]
    assert seen == [["a", "b"], ["apple", "fig", "plum"], ["apple", "fig", "plum"], []]

    @hqdl.ingredient(kind="qa")
    def first(options: list[str]) -> str:
        return min(options)

    assert column("SELECT n FROM t WHERE a = {{first()}}") == [1, 4]
    with pytest.raises(hqdl.InputError, match="no argument `option`"):
        column("SELECT {{first(option=('a', 'b'))}}")

    @hqdl.ingredient(batch=50)
    def nth(text: list[str], options: list[list[str]]) -> list[str]:
        assert len(text) == len(options)
        return [max(listed, default="none") for listed in options]

    sql = "SELECT {{nth(t.a, options=('a', 'b'))}} || {{nth(t.a)}} FROM t WHERE n < 3"
    assert column(sql) == ["bnone", "bnone"]


def test_options_are_passed_by_keyword() -> None:
    def positional(text: str, options: list[str], /) -> str:
        return text

    def several(text: str, *options: str) -> str:
        return text

    def named(text: str, **options: str) -> str:
        return text

    cases: list[tuple[Any, str]] = [
        (positional, "text"), (several, "options"), (named, "options"),
    ]
    for function, argument in cases:
        with pytest.raises(hqdl.InputError, match=f"cannot have the argument .*{argument}"):
            hqdl.ingredient(version="1")(function)
