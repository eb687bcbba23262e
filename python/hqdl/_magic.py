"""``%load_ext hqdl``, then ``%%hqdl`` for queries."""

from __future__ import annotations

from typing import Any

from ._results import Result


def register(shell: Any) -> None:
    """Makes ``%%hqdl`` a magic of a shell."""

    def hqdl(line: str, cell: str) -> Result:
        """Runs the cell as a query.

        ``%%hqdl SESSION [NAME]``: the session, by the name of its variable, and the variable
        that is to hold the result. ``{}`` of Python is not read: parameters are not needed,
        ``:name`` is the variable of that name.
        """
        words = line.split()
        if not words or words[0] not in shell.user_ns:
            raise ValueError("%%hqdl SESSION [NAME]: the name of a variable that hqdl.open() gave")
        session = shell.user_ns[words[0]]
        named = {
            name: value
            for name, value in shell.user_ns.items()
            if f":{name}" in cell and isinstance(value, (str, int, float))
        }
        result: Result = session.query(cell, named or None)
        if len(words) > 1:
            shell.user_ns[words[1]] = result
        return result

    shell.register_magic_function(hqdl, "cell", "hqdl")
