"""The command ``hqdl``: the engine's own, in this process."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> None:
    """Runs the command line of this process and exits as it does."""
    # The command has its own way with Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.main(["hqdl", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
