"""Results: rows, answers and plans, with their display in notebooks."""

from __future__ import annotations

import functools
import html
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

from . import _native

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

#: Maximum number of rows in a notebook.
MAX_DISPLAYED = 20


@functools.lru_cache(maxsize=1)
def _has_pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def _cell(value: object) -> str:
    if value is None:
        return "<td style='color:#999'>NULL</td>"
    text = str(value)
    text = text if len(text) <= 200 else text[:199] + "…"
    align = " style='text-align:right'" if isinstance(value, (int, float)) else ""
    return f"<td{align}>{html.escape(text)}</td>"


def _html(columns: list[str], rows: list[tuple[Any, ...]], caption: str) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p><small>{html.escape(caption)}</small></p>"
    )


class Result:
    """The rows of a query.

    It implements Arrow's C stream, so ``pyarrow.table(result)``, ``polars.DataFrame(result)`` and
    other libraries with Arrow support read it without a copy.
    """

    def __init__(self, table: _native.Table, meta: dict[str, Any]) -> None:
        self._table = table
        #: Statistics of the query: requests, values asked and reused, tokens, ``cost_usd``
        #: (USD), ``seconds``, the route of each call, the SQL that was run. The object
        #: ``meta`` of ``hqdl query --json``, with ``notes``.
        self.meta: dict[str, Any] = meta

    @property
    def columns(self) -> list[str]:
        """The names of the columns, not necessarily unique."""
        return self._table.columns

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples of None, int, float, str or bytes, like in SQLite."""
        return self._table.rows(0, len(self._table))

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(self._table), 1000):
            yield from self._table.rows(start, 1000)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.table().__arrow_c_stream__(requested_schema)

    def arrow(self) -> pyarrow.Table:
        """The rows as a pyarrow table (``pip install hqdl[arrow]``).

        Raises ``InputError`` if a column contains values of several types, because an Arrow
        column has one type. ``rows`` works in that case, too.
        """
        import pyarrow

        return pyarrow.table(self._table.table())

    def df(self) -> pandas.DataFrame:
        """The rows as a pandas frame (``pip install pandas``)."""
        import pandas

        if not _has_pyarrow():
            return pandas.DataFrame(self.rows, columns=self.columns)
        return self.arrow().to_pandas()

    def pl(self) -> polars.DataFrame:
        """The rows as a polars frame (``pip install hqdl[polars]``)."""
        import polars

        return polars.DataFrame(self._table.table())

    def __repr__(self) -> str:
        return f"<hqdl.Result: {len(self)} rows of {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        more = f"{MAX_DISPLAYED} of " if len(self) > MAX_DISPLAYED else ""
        asked = self.meta.get("values_asked", 0)
        caption = f"{more}{len(self)} rows; {asked} values asked, ${self.meta['cost_usd']:.4f}"
        if missing := self.meta.get("values_missing"):
            caption += f"; {missing} values are not known, and NULL"
        return _html(self.columns, self._table.rows(0, MAX_DISPLAYED), caption)


class Array:
    """An Arrow array. It implements Arrow's C array, so ``pyarrow.array(x)``,
    ``polars.Series(x)`` and other libraries with Arrow support read it without a copy."""

    def __init__(self, array: Any, index: Any = None) -> None:
        self._array = array
        #: The index of the pandas series that the values came from; None for other values.
        self.index: Any = index

    def __len__(self) -> int:
        return len(self._array)

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return self._array.__arrow_c_array__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._array.__arrow_c_schema__()

    def arrow(self) -> pyarrow.Array:
        """Returns a pyarrow array (``pip install hqdl[arrow]``)."""
        import pyarrow

        return pyarrow.array(self._array)

    def series(self) -> pandas.Series:
        """Returns a pandas series (``pip install pandas``).

        It has the index of the series that the values came from, so that it aligns with
        that series and its frame.
        """
        import pandas

        if _has_pyarrow():
            series = self.arrow().to_pandas()
        else:
            series = pandas.Series(self.to_pylist(), dtype=None if len(self) else object)
        if self.index is not None:
            series.index = self.index
        return series

    def pl(self) -> polars.Series:
        """Returns a polars series (``pip install hqdl[polars]``)."""
        import polars

        return polars.Series(self._array)

    def to_pylist(self) -> list[Any]:
        """Returns a list of None, bool, int, float, str, or lists of them."""
        return list(self._array.to_pylist())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_pylist())

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        return self._array[at].as_py()

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[n]) for n in range(min(len(self), 5)))
        more = ", …" if len(self) > 5 else ""
        return f"<hqdl.{type(self).__name__}: {len(self)}: {shown}{more}>"


class Answers(Array):
    """One answer per value, in the order of the values: an Arrow array of booleans, 64-bit
    integers, doubles, text, or lists of them."""

    def __init__(
        self, values: Any, states: Any, meta: dict[str, Any], index: Any = None
    ) -> None:
        super().__init__(values, index)
        #: The state of each answer: ``ok``, ``unknown``, ``not_in_list``, ``invalid``,
        #: ``refused`` or ``error``; NULL if the value is NULL. Answers in any state except
        #: ``ok`` are NULL.
        self.states: Array = Array(states, index)
        #: Requests, values asked and reused, tokens, ``cost_usd`` (USD), ``seconds``.
        self.meta: dict[str, Any] = meta


class Plan:
    """The planned requests of a run and their cost."""

    def __init__(self, plan: dict[str, Any], remarks: list[str]) -> None:
        #: The object that ``hqdl plan --json`` prints.
        self.json: dict[str, Any] = plan
        #: Notes about the plan.
        self.remarks: list[str] = remarks

    @property
    def cells(self) -> int:
        """Number of cells to ask for."""
        return int(self.json["totals"]["cells"])

    @property
    def requests(self) -> int:
        """Number of requests."""
        return int(self.json["totals"]["requests"])

    @property
    def cost_usd(self) -> dict[str, float]:
        """The cost in USD: ``low``, ``likely`` and ``most``; zeros if the model has no price."""
        return dict(self.json["totals"]["cost_usd"])

    @property
    def columns(self) -> list[dict[str, Any]]:
        """One dictionary per column: expansion, column, known, cells to ask, reasons."""
        return [
            {
                "expansion": expansion["expansion"],
                "column": column["column"],
                "known": column["known"],
                "cells": column["cells"],
                "reasons": {r: n for r, n in column["reasons"].items() if n},
            }
            for expansion in self.json["expansions"]
            for column in expansion["columns"]
        ]

    def df(self) -> pandas.DataFrame:
        """The columns as a pandas frame (``pip install hqdl[pandas]``)."""
        import pandas

        return pandas.DataFrame(self.columns)

    def _summary(self) -> str:
        totals, usd = self.json["totals"], self.cost_usd
        price = f"${usd['likely']:.4f} (${usd['low']:.4f} to ${usd['most']:.4f})"
        return (
            f"{self.cells} cells in {self.requests} requests, {totals['input_tokens']} tokens in, "
            f"{totals['output_tokens']} out, {price}"
        )

    def __repr__(self) -> str:
        return f"<hqdl.Plan: {self._summary()}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                c["expansion"],
                c["column"],
                c["known"],
                c["cells"],
                ", ".join(f"{r.replace('_', ' ')} {n}" for r, n in c["reasons"].items()),
            )
            for c in self.columns
        ]
        head = ["expansion", "column", "known", "to ask", "why"]
        return _html(head, rows, "; ".join([self._summary(), *self.remarks]))
