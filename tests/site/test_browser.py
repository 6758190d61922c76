"""The site in a real browser: navigation, search, copy buttons, and a phone's width."""

from __future__ import annotations

import functools
import http.server
import threading

import pytest
from test_pages import SITE

pytest.importorskip("selenium", reason="selenium is an extra")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

PHONE, DESK = (400, 900), (1300, 900)
PAGES = ["index", "certificate", "choosing-a-risk", "guide/solvers", "benchmarks", "reproduction"]


@pytest.fixture(scope="session")
def address():
    """The site, served as a host would."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    handler.log_message = lambda *arguments: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def wait(browser, condition):
    return WebDriverWait(browser, 20).until(lambda _: condition())


def test_navigation(browser, address):
    browser.set_window_size(*DESK)
    browser.get(f"{address}/index.html")
    browser.find_element(By.LINK_TEXT, "User guide").click()
    wait(browser, lambda: "guide/index.html" in browser.current_url)
    browser.find_element(By.LINK_TEXT, "Solvers").click()
    wait(browser, lambda: "guide/solvers.html" in browser.current_url)
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("Solvers")


def test_search(browser, address):
    browser.get(f"{address}/search.html?q=extremile")
    results = wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    assert any("Extremile" in link.text or "Risks" in link.text for link in results)


def test_copy_buttons_leave_prompts_out(browser, address):
    browser.get(f"{address}/quickstart.html")
    buttons = wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "button.copybtn"))
    assert len(buttons) >= 5
    block = browser.find_element(By.CSS_SELECTOR, buttons[0].get_attribute("data-clipboard-target"))
    assert ">>> import numpy" in block.text
    # What goes to the clipboard stands in a hidden text field for a moment.
    browser.execute_script(
        "document.addEventListener('copy', () => {"
        " window.copied = document.activeElement.value || String(getSelection()) })"
    )
    ActionChains(browser).move_to_element(block).move_to_element(buttons[0]).click().perform()
    copied = wait(browser, lambda: browser.execute_script("return window.copied"))
    assert copied.startswith("import numpy")
    assert ">>>" not in copied


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_sticks_out(browser, address, name, size):
    browser.set_window_size(*size)
    browser.get(f"{address}/{name}.html")
    width = "return document.documentElement.scrollWidth"
    # A headless window may be wider than was asked for: the page is measured against it.
    assert browser.execute_script(width) <= browser.execute_script("return window.innerWidth") + 1
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def test_the_phone_has_a_menu(browser, address):
    browser.set_window_size(*PHONE)
    browser.get(f"{address}/index.html")
    browser.find_element(By.CSS_SELECTOR, "button.primary-toggle").click()
    link = wait(
        browser,
        lambda: [
            found
            for found in browser.find_elements(By.LINK_TEXT, "API reference")
            if found.is_displayed()
        ],
    )[0]
    link.send_keys(Keys.ENTER)
    wait(browser, lambda: "api/index.html" in browser.current_url)
