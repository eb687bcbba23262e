"""The command ``hqdl``, run in this process."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> None:
    """Runs the command line of this process and exits with its exit code."""
    # The command handles Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.main(["hqdl", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
