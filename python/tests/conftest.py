from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import hqdl
import pytest

sys.path.insert(0, os.path.dirname(__file__))

from endpoint import Endpoint
from postgres import Postgres, programs

SPEC = """
[database]
path = "heroes.sqlite"
output = "expanded.sqlite"

[model]
name = "m"
provider = "openai"
base_url = "{url}"
price = {{ input = 1.0, output = 2.0 }}

[[expansion]]
name = "llm_hero"
source = "hero"
key = ["name"]
  [[expansion.column]]
  name = "loud"
  about = "upper"
  [[expansion.column]]
  name = "size"
  type = "integer"
  about = "length"
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runs the test in its own directory with its own cache."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("HQDL_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HQDL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    hqdl.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Returns a server that all tests share."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    postgres = Postgres()
    yield postgres
    postgres.close()


@pytest.fixture
def server(postgres: Postgres) -> str:
    """Returns the URL of a cache on the server."""
    return postgres.database()


@pytest.fixture
def model(endpoint: Endpoint) -> hqdl.Model:
    return hqdl.Model("m", base_url=endpoint.url, price=(1.0, 2.0))


@pytest.fixture
def heroes(alone: Path, endpoint: Endpoint) -> Path:
    """Writes a spec over a database of three heroes."""
    with sqlite3.connect(alone / "heroes.sqlite") as db:
        db.execute("CREATE TABLE hero (name TEXT PRIMARY KEY, height INTEGER)")
        db.executemany("INSERT INTO hero VALUES (?, ?)", [("Ann", 180), ("Bo", 190), ("Cyd", 200)])
    spec = alone / "spec.toml"
    spec.write_text(SPEC.format(url=endpoint.url))
    return spec
