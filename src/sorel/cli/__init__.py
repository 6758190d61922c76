"""The command ``sorel``: one file per command, and one that calls them.

Results go to standard output or to a file, everything else to standard error. The exit code is 0
only if the command did its job; the others are listed in ``sorel --help``. Commands import what
they need when they run, so that help and errors in the arguments appear at once.
"""

from sorel.cli.entry import main

__all__ = ["main"]
