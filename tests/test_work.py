"""Runs of every kind take about the work that the table has for them; see `work.py`."""

from __future__ import annotations

import json

import pytest
import work

TABLE = json.loads(work.TABLE.read_text())
REMEDY = "if the change is meant, write the table anew: python tests/work.py --write"


@pytest.mark.parametrize("kind", sorted({name.split("-")[0] for name in work.RUNS}))
def test_work(kind):
    complaints = []
    for name, row in TABLE.items():
        if name.startswith(f"{kind}-"):
            complaints += [f"{name}: {what}" for what in work.outside(row, work.measure(name))]
    assert not complaints, "\n".join([*complaints, REMEDY])


def test_most_runs_have_a_place_in_the_table():
    assert set(TABLE) <= set(work.RUNS)
    assert len(TABLE) > 0.8 * len(work.RUNS)


def test_bounds_are_a_quarter_above_and_two_fifths_below():
    assert not work.outside({"passes": 20.0}, {"passes": 26.0})
    assert not work.outside({"passes": 20.0}, {"passes": 11.0})
    assert work.outside({"passes": 20.0}, {"passes": 26.5}) == ["passes: 26.5, recorded 20"]
    assert work.outside({"passes": 20.0}, {"passes": 10.5}) == ["passes: 10.5, recorded 20"]
    assert work.outside({}, {"points": 2.0}) == ["points: 2, recorded 0"]
    assert work.outside({"points": 3.0}, {}) == ["points: 0, recorded 3"]
