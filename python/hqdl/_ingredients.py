"""Ingredients that Python functions compute: ``@hqdl.ingredient``."""

from __future__ import annotations

import ast
import datetime
import hashlib
import inspect
import json
import math
import textwrap
import threading
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from .errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

#: Names of the types in queries, by the names that Python's users write.
_TYPES = {
    "text": "str",
    "str": "str",
    "integer": "int",
    "int": "int",
    "real": "float",
    "float": "float",
    "boolean": "bool",
    "bool": "bool",
    "date": "date",
}
_KINDS = ("map", "qa", "join", "alias")
#: Argument that receives the options of a call.
_OPTIONS = "options"
#: Ingredients by name, in lower case.
_registry: dict[str, Ingredient[..., Any]] = {}
_local = threading.local()
#: The answer of a call as JSON, and the error message.
_Result = tuple[Any, str | None]


class SQL(str):
    """SQL of an argument that is not a string or a number: what a function of the kind ``alias``
    receives for a column, an expression or a query."""


class Ingredient(Generic[P, R]):
    """A Python function that queries of this process can call: ``{{name(…)}}``.

    The function itself can still be called. Made by ``hqdl.ingredient``.
    """

    def __init__(
        self,
        function: Callable[P, R],
        kind: str,
        name: str | None,
        returns: Any,
        values: Iterable[Any] | None,
        version: str | None,
        batch: int | None,
        threads: int,
    ) -> None:
        self.function = function
        #: The function without its types, because hqdl checks the arguments.
        self._call: Callable[..., Any] = function
        self.kind = kind
        self.name: str = function.__name__ if name is None else name
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        _check_settings(self.name, function, kind, batch, threads)
        self._required, self._arguments = _read_arguments(self.name, function, kind)
        self._takes_options = (
            kind in ("map", "qa") and _OPTIONS in inspect.signature(function).parameters
        )
        self.returns: str | None = _read_type(self.name, function, kind, returns)
        if batch is not None and returns is None and self.returns is not None:
            # The annotation is the type of the list of results.
            self.returns = self.returns.removeprefix("list[").removesuffix("]")
        self.values = None if values is None else list(values)
        if self.values is not None:
            if kind in ("join", "alias"):
                raise InputError(f"`{self.name}` cannot have `values`", f"its kind is {kind}")
            if not self.values:
                raise InputError(f"`{self.name}` has no values to choose from", "list them")
        if version is None:
            # The SQL of an alias is not stored.
            version = "" if kind == "alias" else _find_version(self.name, function)
        self.version = str(version)
        self.batch = batch
        self.threads = threads

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<hqdl ingredient {self.name}({', '.join(self._arguments)}), {self.kind}>"

    def _describe(self, chain: tuple[str, ...]) -> _Description:
        """Describes the ingredient to the engine, for a query that the functions ``chain`` run."""
        compute = self._write_sql if self.kind == "alias" else self._compute
        return _Description(
            name=self.name,
            kind=self.kind,
            arguments=list(self._arguments),
            required=self._required,
            takes_options=self._takes_options,
            return_type=self.returns,
            values=self.values,
            version=_identity(self),
            batch=self.batch or 1,
            threads=self.threads,
            call=lambda calls: _guard(self.name, chain, compute, calls),
        )

    def _compute(self, text: str) -> str:
        """Returns the answer and the error of each call."""
        calls = json.loads(text)
        if self.kind == "join":
            return json.dumps([self._try(self._match, call) for call in calls])
        inputs = [self._bind(call) for call in calls]
        if self.batch is not None:
            return json.dumps(self._compute_batch(inputs))
        return json.dumps([self._try(self._compute_one, arguments) for arguments in inputs])

    def _compute_one(self, arguments: dict[str, Any]) -> Any:
        return self._to_json(self._call(**arguments))

    def _try(self, compute: Callable[[Any], Any], given: Any) -> _Result:
        """Returns the answer of one call, or None and the error."""
        try:
            return compute(given), None
        except BaseException as error:
            return None, _error_message(self.name, error)

    def _bind(self, call: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by name."""
        arguments = dict(call["arguments"])
        if self.kind == "qa":
            arguments = {name: _to_rows(value) for name, value in arguments.items()}
        if self._takes_options:
            arguments[_OPTIONS] = call["options"]
        return arguments

    def _compute_batch(self, inputs: list[dict[str, Any]]) -> list[_Result]:
        """Calls the function once for the calls with the same arguments."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, arguments in enumerate(inputs):
            groups.setdefault(tuple(arguments), []).append(number)
        results: list[_Result] = [(None, None)] * len(inputs)
        for numbers in groups.values():
            found = self._compute_group([inputs[n] for n in numbers])
            for number, result in zip(numbers, found, strict=True):
                results[number] = result
        return results

    def _compute_group(self, inputs: list[dict[str, Any]]) -> list[_Result]:
        """Calls the function once. If it fails, calls it with each half, because the exception does
        not say which call is to blame."""
        try:
            columns = {name: [arguments[name] for arguments in inputs] for name in inputs[0]}
            returned = self._call(**columns)
            if isinstance(returned, str) or not isinstance(returned, Iterable):
                raise TypeError(f"returned {_type_name(returned)}, not one value for each call")
            # A series of pandas and an array of pyarrow convert themselves.
            to_list = getattr(returned, "to_list", None) or getattr(returned, "tolist", None)
            found: list[Any] = to_list() if to_list is not None else list(returned)
            if len(found) != len(inputs):
                raise ValueError(f"returned {len(found)} values for {len(inputs)} calls")
        except BaseException as error:
            if len(inputs) == 1:
                return [(None, _error_message(self.name, error))]
            half = len(inputs) // 2
            return self._compute_group(inputs[:half]) + self._compute_group(inputs[half:])
        return [self._try(self._to_json, answer) for answer in found]

    def _match(self, call: dict[str, Any]) -> list[str]:
        """Returns the options that go with the left value."""
        left, options = call["values"][0], call["options"]
        matched = self._call(left, list(options))
        if matched is None:
            return []
        if isinstance(matched, str) or not isinstance(matched, Iterable):
            raise TypeError(f"returned {_type_name(matched)}, not a list of right values")
        matches = [str(match) for match in matched]
        unknown = [match for match in matches if match not in options]
        if unknown:
            raise ValueError(f"returned {unknown[0]!r}, which is not one of the right values")
        return matches

    def _write_sql(self, text: str) -> str:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for keyword, written, *literal in json.loads(text):
            value = literal[0] if literal else SQL(written)
            if keyword is None:
                positional.append(value)
            else:
                named[keyword] = value
        try:
            inspect.signature(self.function).bind(*positional, **named)
        except TypeError as error:
            raise TypeError(f"cannot be called with these arguments: {error}") from None
        sql = self._call(*positional, **named)
        if not isinstance(sql, str) or not sql.strip():
            raise TypeError(f"returned {_type_name(sql)}, not SQL")
        return sql

    def _to_json(self, answer: Any) -> Any:
        kind = self.returns or "str"
        if answer is None:
            return None
        if not kind.startswith("list["):
            return _scalar_to_json(answer, kind)
        if isinstance(answer, (str, bytes, dict)) or not isinstance(answer, Iterable):
            raise TypeError(f"returned {_type_name(answer)}, not a list")
        return [None if item is None else _scalar_to_json(item, kind[5:-1]) for item in answer]


class _Description(types.SimpleNamespace):
    """What the engine reads of an ingredient."""


@overload
def ingredient(function: Callable[P, R], /) -> Ingredient[P, R]: ...


@overload
def ingredient(
    *,
    kind: str = "map",
    name: str | None = None,
    returns: Any = None,
    values: Iterable[Any] | None = None,
    version: str | None = None,
    batch: int | None = None,
    threads: int = 1,
) -> Callable[[Callable[P, R]], Ingredient[P, R]]: ...


def ingredient(
    function: Callable[P, R] | None = None,
    /,
    *,
    kind: str = "map",
    name: str | None = None,
    returns: Any = None,
    values: Iterable[Any] | None = None,
    version: str | None = None,
    batch: int | None = None,
    threads: int = 1,
) -> Ingredient[P, R] | Callable[[Callable[P, R]], Ingredient[P, R]]:
    """Makes a Python function an ingredient that queries of this process can call by name.

    ``@hqdl.ingredient`` above ``def size(text: str) -> int`` allows ``{{size(t.name)}}``. hqdl calls
    the function once for each distinct combination of arguments and stores the results as facts,
    like the answers of a model. If the function raises an exception or returns a value of another
    type, the result of this call is NULL.

    Args:
        kind: ``map``: the function receives the arguments of one row. ``qa``: it receives the rows
            of a query as a list of dicts. ``join``: ``{{f(t.a, u.b)}}`` after ON; it receives a left
            value and a list of right values, and returns those that match. ``alias``: it receives
            literals and ``hqdl.SQL``, and returns the SQL that replaces the call. If a function of
            the kind ``map`` or ``qa`` has an argument ``options``, it receives the values that the
            call may choose from as a list of texts: those of ``options=`` in the query, of
            ``values``, or, for ``qa``, of the column that the query compares the call with.
        name: Name in queries; by default the function's.
        returns: ``text``, ``integer``, ``real``, ``boolean``, ``date``, ``list[text]`` and so on, or
            Python's types; by default the annotation of the function's result, or ``text``.
        values: The values that the function may return; any other value is not stored.
        version: Version of the function. hqdl reuses results of the same version only. By default,
            a hash of the function's own code, without comments. Required for methods, and for
            functions that wrap another one.
        batch: Number of calls that the function receives at once. Each argument is then a list with
            one item per call (``options`` is a list of lists), and the function returns a list with
            one result per call.
        threads: Maximum number of threads of a query that run the function at once.

    Raises:
        InputError: The function or a setting cannot be used, such as an ``async`` function.
    """

    def decorate(decorated: Callable[P, R]) -> Ingredient[P, R]:
        made = Ingredient(decorated, kind, name, returns, values, version, batch, threads)
        _registry[made.name.lower()] = made
        return made

    return decorate if function is None else decorate(function)


def _describe_all() -> list[_Description]:
    """Describes all ingredients for a query that runs on this thread."""
    chain: tuple[str, ...] = getattr(_local, "chain", ())
    return [made._describe(chain) for made in list(_registry.values())]


def _guard(
    name: str, chain: tuple[str, ...], compute: Callable[[str], str], calls: str
) -> tuple[str | None, str | None]:
    """Computes on a thread of the engine. Returns the result, or None and the error."""
    if name in chain:
        return None, f"`{name}` runs a query that calls `{name}` again"
    before: tuple[str, ...] = getattr(_local, "chain", ())
    _local.chain = (*chain, name)
    try:
        return compute(calls), None
    except BaseException as error:
        return None, _error_message(name, error)
    finally:
        _local.chain = before


def _error_message(name: str, error: BaseException) -> str:
    text = str(error)
    return f"`{name}`: {type(error).__name__}{': ' if text else ''}{text}"


def _check_settings(
    name: str, function: Any, kind: str, batch: int | None, threads: int
) -> None:
    if kind not in _KINDS:
        raise InputError(f"`{kind}` is not a kind of ingredient", f"expected {', '.join(_KINDS)}")
    if not (name.isascii() and name.isidentifier()):
        raise InputError(f"`{name}` is not a name for SQL", "expected letters, digits and _")
    if not callable(function):
        raise InputError(f"`{name}` is not a function", "decorate a function")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        hint = "write a plain function, and set `threads` to run several calls at once"
        raise InputError(f"`{name}` is an async function", hint)
    if inspect.isgeneratorfunction(function):
        raise InputError(f"`{name}` is a generator", "return the value, or a list of values")
    if batch is not None and (kind != "map" or isinstance(batch, bool) or batch < 1):
        raise InputError(f"batch={batch} is not possible", "1 or more, with the kind `map`")
    if isinstance(threads, bool) or threads < 1:
        raise InputError(f"threads={threads} is not possible", "pass 1 or more")


def _read_arguments(name: str, function: Any, kind: str) -> tuple[int, list[str]]:
    """Returns the number of arguments that a call must have, and the names of all arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InputError(f"`{name}` has no signature", "wrap it in a Python function") from None
    if kind == "join":
        if len(parameters) != 2:
            hint = "it receives a left value and a list of right values"
            raise InputError(f"`{name}` needs two arguments", hint)
        return 2, [parameter.name for parameter in parameters]
    if kind == "alias":
        return 0, []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            hint = "name each argument: hqdl passes them by keyword"
            raise InputError(f"`{name}` cannot have the argument `{parameter}`", hint)
    parameters = [parameter for parameter in parameters if parameter.name != _OPTIONS]
    required = [p.default is p.empty for p in parameters]
    if sorted(required, reverse=True) != required:
        hint = "list the arguments with a default last"
        raise InputError(f"`{name}` has a required argument after one with a default", hint)
    return sum(required), [parameter.name for parameter in parameters]


def _read_type(name: str, function: Any, kind: str, returns: Any) -> str | None:
    """Returns the type of the results, as a call would name it."""
    if kind in ("join", "alias"):
        return None
    if returns is None:
        try:
            returns = typing.get_type_hints(function).get("return")
        except Exception:
            returns = None
        if returns in (None, Any, type(None)):
            return "str"
    found = _type_of(returns)
    if found is None:
        hint = "expected text, integer, real, boolean, date, or a list such as list[text]"
        raise InputError(f"`{name}` returns {returns!r}, which is not a type of SQL", hint)
    return found


def _type_of(returns: Any) -> str | None:
    if isinstance(returns, str):
        text = returns.strip().lower()
        inner = text.removeprefix("list[").removesuffix("]")
        found = _TYPES.get(inner if text.startswith("list[") else text)
        return f"list[{found}]" if found and text.startswith("list[") else found
    origin, arguments = typing.get_origin(returns), typing.get_args(returns)
    if origin in (typing.Union, types.UnionType):
        inside = [a for a in arguments if a is not type(None)]
        return _type_of(inside[0]) if len(inside) == 1 else None
    if origin in (list, tuple, Sequence, Iterable) and arguments:
        item = _type_of(arguments[0])
        return f"list[{item}]" if item else None
    if returns is datetime.date:
        return "date"
    return _TYPES.get(returns.__name__) if isinstance(returns, type) else None


def _find_version(name: str, function: Any) -> str:
    """Returns a hash of the function's code without its decorators and comments.

    Raises:
        InputError: The code does not decide the results, because the function is a method, wraps
            another function, or has no code in Python.
    """
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        raise InputError(f"the code of `{name}` does not decide its results", "set `version`")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        code = getattr(function, "__code__", None)
        if code is None:
            raise InputError(f"`{name}` has no source code", "set `version`") from None
        text = repr((code.co_code, code.co_consts, code.co_names))
        if " at 0x" in text:
            raise InputError(f"the source code of `{name}` is unknown", "set `version`") from None
    else:
        if isinstance(tree, ast.FunctionDef):
            tree.decorator_list = []
        text = ast.unparse(tree)
    # The source has only the names of enclosing variables and of defaults.
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    defaults = getattr(function, "__defaults__", None) or ()
    named = getattr(function, "__kwdefaults__", None) or {}
    constants = [*cells, *defaults, *(value for _, value in sorted(named.items()))]
    text += repr([value for value in constants if _is_constant(value)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_constant(item) for item in value)
    return value is None or isinstance(value, (str, bytes, int, float))


def _identity(made: Ingredient[..., Any]) -> str:
    """Returns the version as one word, because the question of the facts contains it."""
    version = "".join(c if c.isalnum() or c in "._-" else "_" for c in made.version)
    if version == made.version:
        return version
    return f"{version}-{hashlib.sha256(made.version.encode()).hexdigest()[:8]}"


def _to_rows(value: Any) -> Any:
    """Returns the rows of a table as dicts, and any other value unchanged."""
    try:
        table = json.loads(value)
        columns, rows = table["columns"], table["rows"]
    except (TypeError, ValueError, KeyError):
        return value
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _type_name(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


def _scalar_to_json(value: Any, kind: str) -> Any:
    """Returns a result as JSON.

    Raises:
        TypeError: It has another type.
        ValueError: It cannot be represented in SQL.
    """
    if hasattr(value, "item") and type(value).__module__ == "numpy":
        value = value.item()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not math.isfinite(value):
        raise ValueError(f"returned {value}, which SQL does not have")
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "int" and is_number and value == int(value):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"returned {value}, which has more than 64 bits")
        return int(value)
    if kind == "float" and is_number:
        return float(value)
    if kind == "date" and isinstance(value, datetime.date):
        return value.isoformat()[:10]
    if kind == "date" and isinstance(value, str):
        return datetime.date.fromisoformat(value).isoformat()
    names = {new: old for old, new in reversed(_TYPES.items())}
    raise TypeError(f"returned {_type_name(value)}, not {names[kind]}")
