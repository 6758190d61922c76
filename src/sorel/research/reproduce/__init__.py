"""Reproduction of the paper's experiments (Ge and Jiang 2024): ``sorel reproduce``.

Data flow one way: settings -> cells (work, kept as files) -> results -> tables, claims, figures ->
report. Needs ``pip install "sorel[bench]"``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sorel.files.atomic import write_atomically
from sorel.research.reproduce.settings import Settings, make_settings

if TYPE_CHECKING:
    from sorel.research.reproduce.cells import Progress
    from sorel.research.reproduce.plan import Results

__all__ = ["Settings", "make_settings", "reproduce"]


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
