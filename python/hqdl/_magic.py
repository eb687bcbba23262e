"""``%load_ext hqdl``, then ``%%hqdl`` for queries."""

from __future__ import annotations

from typing import Any

from ._results import Result


def register(shell: Any) -> None:
    """Registers the magic ``%%hqdl`` in a shell."""

    def hqdl(line: str, cell: str) -> Result:
        """Runs the cell as a query.

        ``%%hqdl SESSION [NAME]``: names the variable of the session, and optionally a variable
        for the result. ``:name`` in the query is the value of the variable ``name``. IPython's
        ``{}`` is not expanded.
        """
        arguments = line.split()
        if not arguments or arguments[0] not in shell.user_ns:
            raise ValueError(
                "%%hqdl SESSION [NAME]: SESSION must be a variable with a session of hqdl.open()"
            )
        session = shell.user_ns[arguments[0]]
        params = {
            name: value
            for name, value in shell.user_ns.items()
            if f":{name}" in cell and isinstance(value, (str, int, float))
        }
        result: Result = session.query(cell, params or None)
        if len(arguments) > 1:
            shell.user_ns[arguments[1]] = result
        return result

    shell.register_magic_function(hqdl, "cell", "hqdl")
