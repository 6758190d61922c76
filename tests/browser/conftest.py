"""A report and a headless browser to look at it with."""

from __future__ import annotations

import shutil

import pytest


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


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium without a sandbox (it runs in containers) and without background traffic."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    assert program, "chromium is missing: apt-get install chromium chromium-driver"
    assert driver, "chromedriver is missing: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-extensions",
        "--disable-sync",
        "--no-first-run",
        "--no-default-browser-check",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    yield window
    window.quit()
