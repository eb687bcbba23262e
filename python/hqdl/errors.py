"""Exceptions with the messages of the command.

Every error has the command's ``message``, ``hint`` (a suggestion, may be empty), ``text`` (both,
with the position in the query or the spec), ``exit`` (the command's exit code) and, if a run
ended early, its ``report`` (a dictionary like that of ``materialize``).
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["BudgetError", "EndpointError", "Error", "InputError", "Interrupted"]


class _Failure:
    message: str
    hint: str
    text: str
    exit: int
    report: dict[str, Any] | None

    def _set_fields(self, message: str, hint: str, exit: int, text: str) -> None:
        self.message, self.hint, self.exit, self.text = message, hint, exit, text
        self.report = None

    def __str__(self) -> str:
        return self.text


class Error(_Failure, Exception):
    """An operation failed; all answers received before are kept."""

    def __init__(self, message: str, hint: str = "", exit: int = 2, text: str = "") -> None:
        super().__init__(message, hint, exit, text)
        text = text or (f"{message}\nhelp: {hint}" if hint else message)
        self._set_fields(message, hint, exit, text)


class InputError(Error):
    """Wrong input: a spec, a query, a value, a file (exit code 2)."""


class BudgetError(Error):
    """The budget is exhausted (exit code 3). With a larger one, a run resumes."""


class EndpointError(Error):
    """The endpoint rejects requests, is unreachable, or has no key (exit code 4)."""


class Interrupted(_Failure, KeyboardInterrupt):
    """Ctrl-C interrupted a run; answers of requests in flight are kept (exit code 130).

    A ``KeyboardInterrupt``, so that ``except Exception`` does not swallow it.
    """

    def __init__(self, message: str, hint: str = "", exit: int = 130, text: str = "") -> None:
        super().__init__(message, hint, exit, text)
        self._set_fields(message, hint, exit, text or message)


_BY_EXIT: dict[int, type[Error] | type[Interrupted]] = {
    2: InputError,
    3: BudgetError,
    4: EndpointError,
    130: Interrupted,
}


#: Python arguments for the command's flags. Flags of the model are fields of ``Model``.
_ARGUMENTS = {
    "db": "database=",
    "param": "params={name: value}",
    "batch": "batch=True",
    "classify": "classify=True",
    "truncate": "truncate=True",
    "retry-failed": "retry_failed=True",
    "price": "hqdl.Model(price=(IN, OUT))",
    **{
        name: f"hqdl.Model({name.replace('-', '_')}=…)"
        for name in [
            "api-key-env",
            "base-url",
            "concurrency",
            "provider",
            "recordings",
            "rows-per-request",
        ]
    },
    **{
        name: f"{name}="
        for name in [
            "budget",
            "cache",
            "dialect",
            "limit",
            "model",
            "output",
            "refresh",
            "spec",
            "timeout",
            "where",
        ]
    },
}

_FLAG = re.compile(r"--([a-z][a-z-]*[a-z])(?:[ =](?:[A-Z]+(?:,[A-Z]+)*\b|name=value))?")


def _in_python(hint: str) -> str:
    """Replaces the command's flags in a hint by Python arguments."""

    def argument(flag: re.Match[str]) -> str:
        name = _ARGUMENTS.get(flag[1])
        return flag[0] if name is None else f"`{name}`"

    return _FLAG.sub(argument, hint)


def _of(
    message: str, hint: str, exit: int, text: str, report: str | None = None
) -> Error | Interrupted:
    """Returns the exception for a failure of the engine."""
    python_hint = _in_python(hint)
    text = text.removeprefix("error: ")
    text = text.replace(hint, python_hint) if hint else text
    error = _BY_EXIT.get(exit, Error)(message, python_hint, exit, text)
    error.report = None if report is None else json.loads(report)
    return error
