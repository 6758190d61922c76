"""A report and a headless browser to look at it with."""

from __future__ import annotations

import pytest
from headless import browser

__all__ = ["browser"]


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The report of a small run on generated data."""
    from sorel.reproduce import Settings, reproduce

    settings = Settings(
        datasets=("generated", "diabetes"),
        risks=("esrm:2", "cvar:0.5"),
        seeds=2,
        tuning_seeds=2,
        passes=40,
        batch_passes=40,
        late_iterations=20,
        step_sizes=(0.003, 0.01),
        dual_steps=(0.1,),
    )
    folder = tmp_path_factory.mktemp("report")
    reproduce(settings, folder)
    return folder / "report.html"
