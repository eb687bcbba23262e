"""What can go wrong: one family, told as the command tells it.

Every error has the command's ``message`` (what happened), ``hint`` (what to do next,
may be empty), ``text`` (both, with the place in the query or the spec), ``exit`` (the
command's exit code) and, of a run that ended before its end, its ``report`` (a
dictionary as ``materialize`` returns).
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["BudgetError", "EndpointError", "Error", "InputError", "Interrupted"]


class _Told:
    message: str
    hint: str
    text: str
    exit: int
    report: dict[str, Any] | None

    def _tell(self, message: str, hint: str, exit: int, text: str) -> None:
        self.message, self.hint, self.exit, self.text = message, hint, exit, text
        self.report = None

    def __str__(self) -> str:
        return self.text


class Error(_Told, Exception):
    """Something could not be done; everything that was answered is kept."""

    def __init__(self, message: str, hint: str = "", exit: int = 2, text: str = "") -> None:
        super().__init__(message, hint, exit, text)
        self._tell(message, hint, exit, text or (f"{message}\nhelp: {hint}" if hint else message))


class InputError(Error):
    """Wrong input: a spec, a query, a value, a file (exit code 2)."""


class BudgetError(Error):
    """The budget is reached (exit code 3); a greater one goes on where this ended."""


class EndpointError(Error):
    """The endpoint refuses, is gone, or has no key (exit code 4)."""


class Interrupted(_Told, KeyboardInterrupt):
    """Ctrl-C ended a run; what was in flight is finished and kept (exit code 130).

    A ``KeyboardInterrupt``, so that ``except Exception`` does not swallow it.
    """

    def __init__(self, message: str, hint: str = "", exit: int = 130, text: str = "") -> None:
        super().__init__(message, hint, exit, text)
        self._tell(message, hint, exit, text or message)


_BY_EXIT: dict[int, type[Error] | type[Interrupted]] = {
    2: InputError,
    3: BudgetError,
    4: EndpointError,
    130: Interrupted,
}


#: What the command's flags are called here; the others of a model are ``Model``'s.
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
    """A hint of the command with arguments in the place of its flags."""

    def argument(flag: re.Match[str]) -> str:
        known = _ARGUMENTS.get(flag[1])
        return flag[0] if known is None else f"`{known}`"

    return _FLAG.sub(argument, hint)


def _of(
    message: str, hint: str, exit: int, text: str, report: str | None = None
) -> Error | Interrupted:
    """The exception for a failure of the engine."""
    told = _in_python(hint)
    text = text.removeprefix("error: ")
    text = text.replace(hint, told) if hint else text
    hint = told
    error = _BY_EXIT.get(exit, Error)(message, hint, exit, text)
    error.report = None if report is None else json.loads(report)
    return error
