"""``sorel reproduce``: run the paper's experiments again, against certified optima.

Run the experiments of the paper on its five datasets, and write figures, tables, curves and one
HTML report. The datasets travel with the package; files in --data or in $SOREL_DATA take their
place. A run that was stopped goes on where it was.

examples:
  sorel reproduce --quick --out report      five minutes on two cores
  sorel reproduce --out report              everything
  sorel reproduce --figure 2 --datasets yacht energy --risks cvar:0.5
  sorel reproduce --datasets diabetes generated    other datasets
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sorel.cli.arguments import Options, positive


def add(options: Options) -> None:
    """Declare the arguments."""
    words = "1: trajectories; 2: without mini-batches; 3: with them (default: %(default)s)"
    options.choice("--figure", ("1", "2", "3", "all"), words, "all")
    words = "yacht, energy, concrete, kin8nm, power (default: these); diabetes, generated"
    options.add("--datasets", nargs="+", metavar="NAME", help=words)
    words = "risks (default: esrm:2 extremile:2.5 cvar:0.5)"
    options.add("--risks", nargs="+", metavar="RISK", help=words)
    options.switch("--quick", "fewer seeds and passes")
    options.number("--jobs", positive, "processes (default: one per core)", name="N")
    words = "folder for everything, created if missing (default: %(default)s)"
    options.add("--out", type=Path, default=Path("sorel-reproduction"), metavar="DIR", help=words)
    options.add("--data", type=Path, metavar="DIR", help="folder of the datasets")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel.research import reproduce

    return reproduce.run(
        arguments.out,
        figure=arguments.figure,
        datasets=arguments.datasets,
        risks=arguments.risks,
        quick=arguments.quick,
        jobs=arguments.jobs,
        data=arguments.data,
    )
