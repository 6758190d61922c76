"""``sorel info``: show what is known about a saved model.

Show the training summary inside a saved model, without loading the model.

examples:
  sorel info model.skops
  sorel info model.skops --json | jq .relative_gap
"""

from __future__ import annotations

import argparse
import json

from sorel._lib.text import printable
from sorel.cli.arguments import Options
from sorel.cli.shared import DONE, show

# Letters that the column of names may take; a file may have any.
_WIDEST = 40


def add(options: Options) -> None:
    """Declare the arguments."""
    options.model()
    options.switch("--json", "print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel.files.saving import read_summary

    facts = read_summary(arguments.model)
    if arguments.json:
        # JSON in ASCII escapes all control characters but this one.
        print(json.dumps(facts, indent=2, allow_nan=False).replace("\x7f", "\\u007f"))
        return DONE
    width = min(_WIDEST, max(len(printable(key)) for key in facts))
    for key, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} ({kind})" for name, kind in value.items())
        elif isinstance(value, list):
            value = ", ".join(str(item) for item in value)
        show(f"{printable(key):{width}}  {printable(value)}")
    return DONE
