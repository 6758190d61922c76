"""Run the command line as ``python -m sorel``."""

import sys

from sorel.cli import main

if __name__ == "__main__":
    sys.exit(main())
