"""``sorel reproduce``: the paper's experiments, run again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sorel.cli.arguments import add_command, positive


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = add_command(
        commands,
        "reproduce",
        run,
        help="run the paper's experiments again, against certified optima",
        description=(
            "Run the experiments of the paper on its five datasets, and write figures, tables, "
            "curves and one HTML report. The datasets travel with the package; files in --data "
            "or in $SOREL_DATA take their place. A run that was stopped goes on where it was."
        ),
        epilog=(
            "examples:\n"
            "  sorel reproduce --quick --out report      five minutes on two cores\n"
            "  sorel reproduce --out report              everything\n"
            "  sorel reproduce --figure 2 --datasets yacht energy --risks cvar:0.5\n"
            "  sorel reproduce --datasets diabetes generated    other datasets"
        ),
    )
    parser.add_argument(
        "--figure",
        choices=("1", "2", "3", "all"),
        default="all",
        help="1: trajectories; 2: without mini-batches; 3: with them (default: %(default)s)",
    )
    parser.add_argument(
        "--datasets",
        nargs="+",
        metavar="NAME",
        help="yacht, energy, concrete, kin8nm, power (default: these); diabetes, generated",
    )
    parser.add_argument(
        "--risks",
        nargs="+",
        metavar="RISK",
        help="risks (default: esrm:2 extremile:2.5 cvar:0.5)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer seeds and passes")
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="processes (default: one per core)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("sorel-reproduction"),
        metavar="DIR",
        help="folder for everything, created if missing (default: %(default)s)",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the datasets")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel import reproduce

    return reproduce.run(
        arguments.out,
        figure=arguments.figure,
        datasets=arguments.datasets,
        risks=arguments.risks,
        quick=arguments.quick,
        jobs=arguments.jobs,
        data=arguments.data,
    )
