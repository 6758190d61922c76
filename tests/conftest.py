"""One seed for all that the tests draw at random: fresh in every run, and printed."""

from __future__ import annotations

import os
import random

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Choose the seed before the plugin of hypothesis reads it; workers inherit the variable."""
    if config.getoption("hypothesis_seed", "no hypothesis") is None:
        seed = os.environ.setdefault("SOREL_TEST_SEED", str(random.SystemRandom().randrange(10**6)))
        config.option.hypothesis_seed = seed


def pytest_report_header(config):
    seed = config.getoption("hypothesis_seed", None)
    return f"random draws: the same again with --hypothesis-seed={seed}" if seed else None


@pytest.fixture
def fresh_seed(request) -> int:
    """The seed of this run."""
    return int(request.config.getoption("hypothesis_seed"))
