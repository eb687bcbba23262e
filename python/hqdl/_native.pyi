"""The engine. This module is internal; use ``hqdl``."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

__version__: str

class Interrupt:
    """Flag that interrupts runs. Answers of requests in flight are kept."""
    def __init__(self) -> None: ...
    def set(self) -> None: ...

class Table:
    """Rows of a query."""
    @property
    def columns(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def rows(self, start: int, max: int, /) -> list[tuple[Any, ...]]: ...
    def table(self) -> Any: ...

class Project:
    """A spec or a database, a model and a cache."""
    def __init__(
        self,
        spec: str | PathLike[str] | None = None,
        database: str | PathLike[str] | None = None,
        output: str | PathLike[str] | None = None,
        model: dict[str, Any] | None = None,
        cache: str | PathLike[str] | None = None,
        keep: bool = True,
    ) -> None: ...
    def outline(self) -> str: ...
    def database(self) -> Path: ...
    def plan(
        self, select: dict[str, Any], batch: bool = False, interrupt: Interrupt | None = None
    ) -> tuple[str, list[str]]: ...
    def materialize(
        self,
        select: dict[str, Any],
        budget: float | None = None,
        batch: bool = False,
        on_event: Callable[[str], object] | None = None,
        interrupt: Interrupt | None = None,
    ) -> str: ...
    def query(
        self,
        sql: str,
        params: dict[str, Any] | Sequence[Any] | None = None,
        options: dict[str, Any] | None = None,
        on_event: Callable[[str], object] | None = None,
        interrupt: Interrupt | None = None,
    ) -> tuple[Table, str]: ...
    def explain(
        self,
        sql: str,
        params: dict[str, Any] | Sequence[Any] | None = None,
        options: dict[str, Any] | None = None,
        interrupt: Interrupt | None = None,
    ) -> str: ...
    def why(self, table: str, key: list[str], column: str) -> str: ...
    def override(
        self, table: str, key: list[str], column: str, value: str, note: str, force: bool
    ) -> None: ...
    def suggest(self) -> str: ...
    def map(
        self,
        question: str,
        values: Any,
        return_type: str | None = None,
        options: Iterable[Any] | None = None,
        value_kind: str | None = None,
        budget: float | None = None,
        on_event: Callable[[str], object] | None = None,
        interrupt: Interrupt | None = None,
    ) -> tuple[Any, Any, str]: ...

def main(args: list[str], /) -> int: ...
def forked() -> list[Path]: ...
def close() -> None: ...
def sources(spec: str | PathLike[str]) -> list[tuple[str, str | None]]: ...
def load(path: str, table: str, data: Any) -> None: ...
def load_rows(path: str, table: str, columns: list[str], rows: Iterable[Iterable[Any]]) -> None: ...
