"""Progress bar with tqdm, in notebooks and on terminals."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

OnEvent = Callable[[dict[str, Any]], object]


class Progress:
    """Shows the events of a run in a progress bar and passes them to the caller's callback."""

    def __init__(self, wanted: bool | None, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self._bar: Any = None
        self._tqdm: Any = _tqdm() if wanted or (wanted is None and _is_interactive()) else None

    def __enter__(self) -> OnEvent:
        if self._tqdm is not None:
            return self._on_progress
        return _log_warning if self._on_event is None else self._on_event

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _on_progress(self, event: dict[str, Any]) -> None:
        if event["event"] == "begin":
            if self._bar is None:
                self._bar = self._tqdm(total=0, unit=" cells", leave=False)
            self._bar.total += event["cells"]
            self._bar.refresh()
        elif event["event"] == "kept" and self._bar is not None:
            self._bar.set_postfix_str(f"${event['cost_usd']:.4f}", refresh=False)
            self._bar.update(sum(event["cells"].values()))
        (self._on_event or _log_warning)(event)


def _log_warning(event: dict[str, Any]) -> None:
    """Logs why a run waits, among other warnings, if nobody listens to its events."""
    if event["event"] == "warning":
        logging.getLogger("hqdl").warning(event["message"])


def _is_interactive() -> bool:
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def _tqdm() -> Any:
    try:
        with warnings.catch_warnings():
            # tqdm warns if ipywidgets is missing and shows a text bar instead.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm
