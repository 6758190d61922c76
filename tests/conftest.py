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


@pytest.fixture(scope="session")
def table_and_model(tmp_path_factory):
    """A folder with table.csv, and model.skops that the command fitted to it."""
    import numpy as np

    from sorel import cli

    folder = tmp_path_factory.mktemp("saved")
    X = np.random.default_rng(0).normal(size=(40, 2))
    rows = "".join(f"{a:.3f},{b:.3f},{2 * a - b:.3f}\n" for a, b in X)
    (folder / "table.csv").write_text("a,b,y\n" + rows)
    arguments = ["fit", f"{folder}/table.csv", "--target", "y", "-o", f"{folder}/model.skops"]
    assert cli.main([*arguments, "--quiet"]) == 0
    return folder
