"""A small share of the torture, with a fresh seed; and that it would notice."""

import os

import pytest
import torture

pytest.importorskip("skops", reason="skops is an extra")
pytest.importorskip("pandas", reason="pandas is an extra")

pytestmark = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="the torture uses what Linux has"
)


def test_a_round_with_a_fresh_seed(fresh_seed):
    found = torture.torture(fresh_seed, 1, ["damaged_files"])
    assert not found, "\n".join(found)


def test_complaints():
    good = torture.Outcome(0, "warning: something", 0)
    assert list(torture.complaints(good)) == []
    for code, said in ((-11, ""), (120, ""), (1, "Traceback (most recent"), (0, "\x1b[31m")):
        assert list(torture.complaints(torture.Outcome(code, said, 0)))
