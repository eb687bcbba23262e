"""A cache on a PostgreSQL server, which processes share, and its errors."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import hqdl
import pytest
from endpoint import Endpoint
from postgres import Postgres


def test_answers_on_a_server_are_not_asked_again(
    server: str, endpoint: Endpoint, model: hqdl.Model
) -> None:
    assert hqdl.map("upper", ["a", None, "b", "a"], model=model, cache=server).to_pylist() == [
        "A", None, "B", "A",
    ]
    hqdl.close()
    again = hqdl.map("upper", ["b", "a"], model=model, cache=server)
    assert (again.to_pylist(), again.meta["values_asked"]) == (["B", "A"], 0)
    assert set(endpoint.cells.values()) == {1}
    # The answer is on the server and in no directory.
    assert hqdl.map("upper", ["a"], model=model).meta["values_asked"] == 1


def test_the_environment_variable_names_the_cache(
    server: str, heroes: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HQDL_CACHE", server)
    report = hqdl.open(heroes).materialize()
    assert report["complete"] and report["cells"]["ok"] == 6
    asked = endpoint.requests
    command = [sys.executable, "-m", "hqdl", "materialize", str(heroes), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(told.splitlines()[-1])["requests"] == 0 and endpoint.requests == asked


def ask(values: list[str], url: str, cache: str) -> list[object]:
    model = hqdl.Model("m", base_url=url, rows_per_request=3)
    return hqdl.map("upper", values, model=model, cache=cache).to_pylist()


@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_processes_ask_each_value_once(server: str, endpoint: Endpoint, way: str) -> None:
    if way == "fork":
        if os.name != "posix":
            pytest.skip("forks")
        # The child opens its own connections, even if its parent has some.
        ask(["v0"], endpoint.url, server)
    values = [f"v{n}" for n in range(40)]
    with multiprocessing.get_context(way).Pool(3) as pool:
        found = pool.starmap(ask, [(values, endpoint.url, server)] * 3)
    assert found == [[v.upper() for v in values]] * 3
    assert set(endpoint.cells.values()) == {1} and len(endpoint.cells) == 40


def test_all_processes_share_the_daily_budget(
    server: str, heroes: Path, endpoint: Endpoint
) -> None:
    text = heroes.read_text().replace("[[expansion]]", "[limits]\nbudget_usd_per_day = 0.00001\n"
                                      "[[expansion]]", 1)
    heroes.write_text(text)
    with pytest.raises(hqdl.BudgetError):
        hqdl.open(heroes, cache=server).materialize()
    assert endpoint.requests == 0


def test_a_url_with_a_password_is_rejected(model: hqdl.Model) -> None:
    with pytest.raises(hqdl.InputError, match="password") as error:
        hqdl.map("upper", ["a"], model=model, cache="postgres://owner:secret@127.0.0.1:1/x")
    assert "secret" not in str(error.value)


def test_an_unreachable_server_is_an_error(
    model: hqdl.Model, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HQDL_LEASE", "1")
    with pytest.raises(hqdl.Error, match="cannot be reached") as error:
        hqdl.map("upper", ["a"], model=model, cache="postgres://owner@127.0.0.1:1/x")
    assert error.value.exit == 5 and endpoint.requests == 0


def test_a_missing_database_is_an_error(
    postgres: Postgres, model: hqdl.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HQDL_LEASE", "1")
    with pytest.raises(hqdl.Error, match="nowhere"):
        hqdl.map("upper", ["a"], model=model, cache=postgres.url("nowhere"))
