"""One question about each of several values."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import subprocess
import sys

import hqdl
import pyarrow as pa
import pytest
from endpoint import Endpoint
from hqdl import _results
from hqdl._progress import Progress


def test_each_distinct_value_is_asked_only_once(endpoint: Endpoint, model: hqdl.Model) -> None:
    values = ["ant", "bee", None, "ant", " bee "] * 100
    answers = hqdl.map("upper", values, model=model)
    assert answers.to_pylist() == ["ANT", "BEE", None, "ANT", "BEE"] * 100
    assert len(answers) == 500
    assert answers.states.to_pylist() == ["ok", "ok", None, "ok", "ok"] * 100
    assert set(endpoint.cells.values()) == {1}
    asked = endpoint.requests
    hqdl.close()
    again = hqdl.map("upper", ["bee", "ant"], model=model)
    assert again.to_pylist() == ["BEE", "ANT"]
    assert (endpoint.requests, again.meta["values_reused"]) == (asked, 2)


@pytest.mark.parametrize(
    ("said", "expected", "arrow"),
    [
        (bool, [True, False], pa.bool_()),
        ("bool", [True, False], pa.bool_()),
        (int, [None, None], pa.int64()),
        (None, ["true", "false"], pa.large_string()),
    ],
)
def test_answers_have_the_requested_type(
    model: hqdl.Model, said: object, expected: list[object], arrow: pa.DataType
) -> None:
    answers = hqdl.map("has:n", ["ant", "bee"], return_type=said, model=model)
    assert answers.arrow().type == arrow
    shown = [str(a).lower() if arrow == pa.large_string() else a for a in answers]
    if said is int:
        # The engine may read true as another type, but not as text.
        assert all(a is None or isinstance(a, int) for a in shown)
    else:
        assert shown == expected


def test_numbers_lists_and_options(endpoint: Endpoint, model: hqdl.Model) -> None:
    assert hqdl.map("length", ["ant"], return_type="float", model=model).to_pylist() == [3.0]
    lists = hqdl.map("letters", ["bob", None], return_type="list[str]", model=model)
    assert lists.arrow().type == pa.large_list(pa.large_string())
    assert lists.to_pylist() == [["b", "o"], None]
    chosen = hqdl.map("upper", ["ant", "bee"], options=["ANT", "CAT"], model=model)
    assert chosen.to_pylist() == ["ANT", None]
    assert chosen.states.to_pylist() == ["ok", "not_in_list"]
    unknown = hqdl.map("none", ["ant"], model=model)
    assert (unknown.to_pylist(), unknown.states[0]) == ([None], "unknown")


def test_map_asks_the_same_question_as_a_query(endpoint: Endpoint, model: hqdl.Model) -> None:
    sql = "SELECT {{LLMMap('length', t.c, return_type='int')}} AS n FROM t ORDER BY rowid"
    rows = hqdl.query(sql, tables={"t": {"c": ["ant", "ox"]}}, model=model)
    assert rows.rows == [(3,), (2,)]
    asked = endpoint.requests
    found = hqdl.map("length", ["ox"], return_type=int, kind="t.c", model=model)
    assert found.to_pylist() == [2]
    assert endpoint.requests == asked
    # Without a kind, the value is another entity, whose answer is valid for any column.
    assert hqdl.map("length", ["ox"], return_type=int, model=model).to_pylist() == [2]
    assert endpoint.requests == asked + 1
    assert hqdl.map("length", ["ox"], return_type=int, kind="u.d", model=model)[0] == 2
    assert endpoint.requests == asked + 1


INPUTS = {
    "list": lambda v: v,
    "tuple": tuple,
    "generator": lambda v: (x for x in v),
    "arrow": lambda v: pa.array(v),
    "chunked": lambda v: pa.chunked_array([pa.array(v[:1]), pa.array(v[1:], pa.string())]),
    "large": lambda v: pa.array(v, pa.large_string()),
    "view": lambda v: pa.array(v, pa.string_view()),
    "dictionary": lambda v: pa.array(v).dictionary_encode(),
    "runs": lambda v: pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array(v)),
}


@pytest.mark.parametrize("form", INPUTS)
def test_values_can_have_any_form(form: str, model: hqdl.Model) -> None:
    values = INPUTS[form](["ant", None, "bee"])
    assert hqdl.map("upper", values, model=model).to_pylist() == ["ANT", None, "BEE"]


def test_values_of_pandas_polars_and_numpy(endpoint: Endpoint, model: hqdl.Model) -> None:
    np = pytest.importorskip("numpy")
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    expected = ["ANT", None, "BEE"]
    forms = [
        pd.Series(["ant", None, "bee"]),
        pd.Series(["ant", pd.NA, "bee"], dtype="string"),
        pd.Series(["ant", None, "bee"], dtype="category"),
        pd.Series(["ant", float("nan"), "bee"], dtype=object),
        pl.Series(["ant", None, "bee"]),
        pl.Series(["ant", None, "bee"], dtype=pl.Categorical),
        np.array(["ant", None, "bee"], dtype=object),
    ]
    for values in forms:
        assert hqdl.map("upper", values, model=model).to_pylist() == expected, type(values)
    answers = hqdl.map("upper", forms[0], model=model)
    assert answers.series().dropna().tolist() == ["ANT", "BEE"]
    assert answers.pl().to_list() == expected
    assert pl.Series(answers).to_list() == expected
    assert pa.array(answers).to_pylist() == expected
    assert set(endpoint.cells.values()) == {1}


@pytest.mark.parametrize("pyarrow", [True, False])
def test_answers_align_with_a_filtered_frame(
    pyarrow: bool, model: hqdl.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    pd = pytest.importorskip("pandas")
    if not pyarrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    _results._has_pyarrow.cache_clear()
    try:
        shop = pd.DataFrame({"name": ["ant", "bee", None, "cat"], "price": [99, 1, 2, 3]})
        df = shop[shop.price < 10]
        answers = hqdl.map("upper", df["name"], model=model)
        df = df.assign(upper=answers.series(), why=answers.states.series())
        found = [None if pd.isna(one) else one for one in df["upper"]]
        assert found == ["BEE", None, "CAT"]
        assert [None if pd.isna(one) else one for one in df["why"]] == ["ok", None, "ok"]
        assert list(df.index) == [1, 2, 3]
        again = hqdl.map("upper", answers, model=model)
        assert list(again.series().index) == [1, 2, 3]
        rows = hqdl.query("SELECT name FROM t WHERE price > 2", tables={"t": df}, model=model)
        assert rows.df()["name"].tolist() == ["cat"]
    finally:
        _results._has_pyarrow.cache_clear()


def test_values_of_mixed_types_are_different_values(endpoint: Endpoint, model: hqdl.Model) -> None:
    pd = pytest.importorskip("pandas")
    mixed = ["a", 1, 1.0, 2.5, True, None, float("nan")]
    expected = ["A", "1", "1", "2.5", "1", None, None]
    assert hqdl.map("upper", mixed, model=model).to_pylist() == expected
    series = pd.Series(mixed, dtype=object)
    assert hqdl.map("upper", series, model=model).to_pylist() == expected
    assert endpoint.cells.total() == 3


def test_instants_are_equal_in_all_time_zones(endpoint: Endpoint, model: hqdl.Model) -> None:
    pd = pytest.importorskip("pandas")
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.timezone.utc)
    east = noon.astimezone(datetime.timezone(datetime.timedelta(hours=3)))
    expected = ["2026-01-02T12:00:00Z"] * 2
    assert hqdl.map("upper", [noon, east], model=model).to_pylist() == expected
    zoned = pa.array([noon, noon], pa.timestamp("us", tz="America/New_York"))
    assert hqdl.map("upper", zoned, model=model).to_pylist() == expected
    series = pd.Series([noon, noon]).dt.tz_convert("Asia/Tokyo")
    assert hqdl.map("upper", series, model=model).to_pylist() == expected
    days = pa.array([datetime.date(2026, 1, 2)])
    assert hqdl.map("upper", days, model=model).to_pylist() == ["2026-01-02"]
    local = pa.array([datetime.datetime(2026, 1, 2, 12)])
    assert hqdl.map("upper", local, model=model).to_pylist()[0].startswith("2026-01-02T12:00:00")


@pytest.mark.parametrize(
    "values",
    [
        [{"a": 1}],
        [["a"]],
        [b"ant"],
        [2**70],
        ["\ud800"],
        [object()],
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([b"ant"]),
        pa.array([2**63], pa.uint64()),
        pa.array([decimal.Decimal("0.12345678901234567890")]),
        "ant",
        5,
        None,
    ],
    ids=str,
)
def test_an_unsupported_value_is_an_error_before_any_request(
    values: object, endpoint: Endpoint, model: hqdl.Model
) -> None:
    with pytest.raises(hqdl.InputError) as raised:
        hqdl.map("upper", values, model=model)
    assert raised.value.exit == 2
    assert endpoint.requests == 0


def test_text_that_is_not_utf8_is_an_error(endpoint: Endpoint, model: hqdl.Model) -> None:
    offsets = pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0]))
    broken = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff\xfe"))
    with pytest.raises(hqdl.InputError, match="UTF-8|utf-8"):
        hqdl.map("upper", broken, model=model)
    assert endpoint.requests == 0


def test_decimals_without_loss_are_numbers(model: hqdl.Model) -> None:
    prices = pa.array([decimal.Decimal("1.50"), None])
    assert hqdl.map("upper", prices, model=model).to_pylist() == ["1.5", None]


def test_no_values_have_no_answers(endpoint: Endpoint) -> None:
    assert hqdl.map("upper", []).to_pylist() == []
    assert hqdl.map("upper", [None, float("nan")]).to_pylist() == [None, None]
    assert len(hqdl.map("upper", pa.array([], pa.string())).arrow()) == 0
    assert endpoint.requests == 0


def test_a_missing_model_is_an_error(endpoint: Endpoint) -> None:
    with pytest.raises(hqdl.InputError, match="none is named") as raised:
        hqdl.map("upper", ["ant"])
    assert "model=" in raised.value.hint
    with pytest.raises(hqdl.EndpointError, match="OPENAI_API_KEY"):
        hqdl.map("upper", ["ant"], model="gpt-4o-mini")
    with pytest.raises(hqdl.InputError, match="not a return type"):
        hqdl.map("upper", ["ant"], return_type=dict, model="m")


def test_a_budget_is_not_exceeded(endpoint: Endpoint, model: hqdl.Model) -> None:
    with pytest.raises(hqdl.BudgetError) as raised:
        hqdl.map("upper", [f"v{n}" for n in range(100)], model=model, budget=1e-9)
    assert (raised.value.exit, endpoint.requests) == (3, 0)


@pytest.mark.parametrize("budget", [-1, float("nan"), float("inf")])
def test_a_budget_that_is_not_an_amount_is_an_error(endpoint: Endpoint, model: hqdl.Model, budget: float) -> None:
    with pytest.raises(hqdl.InputError, match="is not a valid amount"):
        hqdl.map("upper", ["ant"], model=model, budget=budget)
    assert endpoint.requests == 0


def test_a_rejected_request_is_an_error(endpoint: Endpoint, model: hqdl.Model) -> None:
    endpoint.status = 401
    with pytest.raises(hqdl.EndpointError, match="401") as raised:
        hqdl.map("upper", ["ant"], model=model)
    assert raised.value.exit == 4
    assert "kept" in raised.value.hint


def test_events_arrive_on_the_calling_thread(model: hqdl.Model) -> None:
    import threading

    heard: list[tuple[str, int]] = []
    hqdl.map(
        "upper",
        [f"v{n}" for n in range(25)],
        model=model,
        on_event=lambda e: heard.append((e["event"], threading.get_ident())),
    )
    assert heard[0][0] == "begin"
    assert {thread for _, thread in heard} == {threading.get_ident()}

    def fails(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hqdl.map("upper", [f"w{n}" for n in range(25)], model=model, on_event=fails)


def test_warnings_are_logged_without_a_callback(caplog: pytest.LogCaptureFixture) -> None:
    with Progress(False, None) as listener:
        listener({"event": "warning", "message": "requests wait"})
        listener({"event": "begin", "cells": 1})
    assert caplog.messages == ["requests wait"]


def test_the_async_variant(endpoint: Endpoint, model: hqdl.Model) -> None:
    async def both() -> list[list[object]]:
        questions = ["upper", "length"]
        asked = [hqdl.map_async(q, ["ant", "bee"], model=model) for q in questions]
        return [answers.to_pylist() for answers in await asyncio.gather(*asked)]

    assert asyncio.run(both()) == [["ANT", "BEE"], ["3", "3"]]


def test_a_cancelled_task_keeps_answers_in_flight(endpoint: Endpoint, model: hqdl.Model) -> None:
    endpoint.go.clear()

    async def cancelled() -> None:
        values = [f"v{n}" for n in range(500)]
        task = asyncio.ensure_future(hqdl.map_async("upper", values, model=model))
        while not endpoint.asked.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.05)
        endpoint.go.set()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert 0 < endpoint.cells.total() < 500
    before = dict(endpoint.cells)
    values = [value for _, value in before]
    assert hqdl.map("upper", values, model=model).meta["values_asked"] == 0


def test_recordings_answer_questions(alone: object, tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "recorded.jsonl"
    path.write_text('{"question": "Is it red?", "value": "apple", "answer": true}\n')
    model = hqdl.Model("m", recordings=(path,))
    answers = hqdl.map("Is it red?", ["apple"], return_type=bool, model=model)
    assert answers.to_pylist() == [True]


def test_pyarrow_is_optional(endpoint: Endpoint) -> None:
    script = f"""
import sys
sys.modules["pyarrow"] = None
import hqdl
answers = hqdl.map("upper", ["ant", None], model=hqdl.Model("m", base_url={endpoint.url!r}))
assert answers.to_pylist() == ["ANT", None], answers
assert list(answers.states) == ["ok", None]
rows = hqdl.query("SELECT * FROM t", tables={{"t": {{"a": [1, "x"]}}}}).rows
assert rows == [(1,), ("x",)], rows
"""
    subprocess.run([sys.executable, "-c", script], check=True)
