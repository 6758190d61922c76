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
import time
from pathlib import Path

from sorel._lib.extras import import_extra
from sorel.cli.arguments import Options, positive, risk_spec
from sorel.cli.shared import DONE, say


def add(options: Options) -> None:
    """Declare the arguments."""
    from sorel.research.reproduce.settings import DATASETS

    words = "1: trajectories; 2: without mini-batches; 3: with them (default: %(default)s)"
    options.choice("--figure", ("1", "2", "3", "all"), words, "all")
    words = "yacht, energy, concrete, kin8nm, power (default: these); diabetes, generated"
    options.add("--datasets", nargs="+", choices=DATASETS, metavar="NAME", help=words)
    words = "risks (default: esrm:2 extremile:2.5 cvar:0.5)"
    options.add("--risks", type=risk_spec, nargs="+", metavar="RISK", help=words)
    options.switch("--quick", "fewer seeds and passes")
    options.number("--jobs", positive, "processes (default: one per core)", name="N")
    words = "folder for everything, created if missing (default: %(default)s)"
    options.add("--out", type=Path, default=Path("sorel-reproduction"), metavar="DIR", help=words)
    options.add("--data", type=Path, metavar="DIR", help="folder of the datasets")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    for package in ("matplotlib", "pandas", "pyarrow"):
        import_extra(package, "sorel reproduce needs", "bench")
    from joblib import cpu_count

    from sorel.research.reproduce import make_settings, reproduce
    from sorel.research.reproduce.cells import Progress
    from sorel.research.reproduce.claims import claims

    settings = make_settings(arguments.figure, arguments.datasets, arguments.risks, arguments.quick)
    out, jobs = arguments.out, arguments.jobs or cpu_count()
    progress, begin = Progress(), time.monotonic()
    try:
        results = reproduce(settings, out, data=arguments.data, jobs=jobs, progress=progress)
    except KeyboardInterrupt:
        progress.close()
        say(f"stopped; the same command goes on from {out / 'cells'}, where finished work is kept")
        raise
    finally:
        progress.close()
    rows = claims(results)
    width = max(len(row.verdict) for row in rows)
    for row in rows:
        print(f"{row.verdict:<{width}}  {row.claim}")
    kept = f", {results.kept} of them kept from before" if results.kept else ""
    print(f"\n{results.cells} cells{kept}, {time.monotonic() - begin:.0f} s")
    print(f"report: {out / 'report.html'}")
    return DONE
