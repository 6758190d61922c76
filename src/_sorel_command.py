"""The start of the command ``sorel``, outside the package: Ctrl-C is heard while that loads."""

from __future__ import annotations

import sys


def main() -> int:
    """Load the command line and run it; the exit code is 130 where Ctrl-C came before."""
    try:
        from sorel.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run()
