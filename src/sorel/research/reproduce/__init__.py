"""Reproduction of the paper's experiments (Ge and Jiang 2024): ``sorel reproduce``.

Data flow one way: settings -> cells (work, kept as files) -> results -> tables, claims, figures ->
report. Needs ``pip install "sorel[bench]"``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sorel.files.atomic import write_atomically
from sorel.research.reproduce.settings import Settings, make_settings

if TYPE_CHECKING:
    from sorel.research.reproduce.cells import Progress
    from sorel.research.reproduce.plan import Results

__all__ = ["Settings", "make_settings", "reproduce", "run"]


def reproduce(
    settings: Settings,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Results:
    """Run the experiments and write figures, tables, curves and the report to a folder.

    Parameters
    ----------
    settings : Settings
        What to run.
    out : path
        Folder, created if missing. Finished pieces of work are kept in its subfolder ``cells``; a
        run that was stopped, however, continues there.
    data : path, optional
        Folder of the paper's CSV files; by default where :mod:`sorel.datasets` looks.
    jobs : int, default=1
        Processes. The numbers do not depend on it, times apart.
    progress : Progress, optional
        Told about every finished piece.

    Returns
    -------
    Results
        All numbers.

    Examples
    --------
    >>> from sorel.reproduce import Settings, reproduce
    >>> settings = Settings(figures=("1",), datasets=("generated",))
    >>> results = reproduce(settings, "folder")  # doctest: +SKIP
    """
    from sorel.research.reproduce import plan

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    datasets = plan.load_data(settings, data)
    results = plan.collect(settings, datasets, folder / "cells", jobs, progress)
    _write(results, folder)
    return results


def _write(results: Results, folder: Path) -> None:
    from sorel.research.reproduce import claims, figures, report, result_tables

    everything = [claims.claims_table(results), *result_tables.all_tables(results)]
    drawn = figures.draw_all(results, folder / "figures")
    files = {"report.html": report.render(results, everything, drawn).encode()}
    frames = {"curves": results.curves, "late_curves": results.late, "grid": results.tuning}
    for name, frame in frames.items():
        if not frame.empty:
            files[f"{name}.parquet"] = frame.to_parquet(index=False)
            files[f"{name}.csv"] = frame.to_csv(index=False).encode()
    (folder / "tables").mkdir(exist_ok=True)
    for table in everything:
        files[f"tables/{table.name}.csv"] = table.frame.to_csv(index=False).encode()
    parts = (
        f"## {t.title}\n\n{t.note}\n\n{result_tables.to_markdown(t.frame)}\n" for t in everything
    )
    files["tables.md"] = "\n".join(parts).encode()
    for name, content in files.items():
        write_atomically(folder / name, content)


def run(
    out: Path,
    *,
    figure: str = "all",
    datasets: Sequence[str] | None = None,
    risks: Sequence[str] | None = None,
    quick: bool = False,
    jobs: int | None = None,
    data: Path | None = None,
) -> int:
    """Carry out ``sorel reproduce``; return its exit code."""
    try:
        import joblib
        import matplotlib  # noqa: F401 (asked for here so that its absence shows at once)
        import pandas  # noqa: F401 (likewise)
        import pyarrow  # noqa: F401 (likewise)
    except ImportError as error:
        print(f'sorel reproduce needs {error.name}: pip install "sorel[bench]"', file=sys.stderr)
        return 1
    from sorel.research.reproduce.cells import Progress
    from sorel.research.reproduce.claims import claims

    try:
        settings = make_settings(figure, datasets, risks, quick)
    except (TypeError, ValueError) as error:
        print(f"sorel reproduce: {error}", file=sys.stderr)
        return 2
    progress = Progress()
    begin = time.monotonic()
    try:
        jobs = joblib.cpu_count() if jobs is None else jobs
        results = reproduce(settings, out, data=data, jobs=jobs, progress=progress)
    except KeyboardInterrupt:
        progress.close()
        kept = f"stopped; finished work is kept in {out / 'cells'}"
        print(f"{kept}: the same command goes on from there", file=sys.stderr)
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
    return 0
