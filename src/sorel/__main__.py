"""Run the command line as ``python -m sorel``."""

import sys

from sorel._loading import loaded
from sorel.cli import main

if __name__ == "__main__":
    loaded()
    sys.exit(main())
