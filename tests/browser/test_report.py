"""The HTML report in a real browser: sorting, a phone's width, a silent console."""

import json

import pytest
from selenium.webdriver.common.by import By


@pytest.fixture
def page(browser, report):
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(report.as_uri())
    return browser


def column(page, table, index):
    cells = page.find_elements(By.CSS_SELECTOR, f"#{table} tbody td:nth-child({index + 1})")
    return [cell.get_attribute("data-value") or cell.text for cell in cells]


def head(page, table, index):
    return page.find_elements(By.CSS_SELECTOR, f"#{table} thead th")[index]


def test_nothing_is_fetched(page):
    requests = []
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            requests.append(message["params"]["request"]["url"])
    # The browser asks for pages of its own (chrome:) when it opens.
    assert any(url.startswith("file:") for url in requests)
    assert not [url for url in requests if url.startswith(("http", "ws", "ftp"))]


def test_a_click_sorts_and_a_second_one_turns_it_round(page):
    names = [each.text for each in page.find_elements(By.CSS_SELECTOR, "#reached thead th")]
    index = names.index("passes to 1e-03")
    button = head(page, "reached", index).find_element(By.TAG_NAME, "button")
    before = sorted(column(page, "reached", index))
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    up = [float(value) for value in column(page, "reached", index)]
    assert up == sorted(up)
    assert head(page, "reached", index).get_attribute("aria-sort") == "ascending"
    button.click()
    down = [float(value) for value in column(page, "reached", index)]
    assert down == sorted(down, reverse=True)
    assert head(page, "reached", index).get_attribute("aria-sort") == "descending"
    assert sorted(column(page, "reached", index)) == before


def test_every_table_can_be_sorted_with_the_keyboard(page):
    tables = page.find_elements(By.CSS_SELECTOR, "table.sortable")
    assert len(tables) > 6
    for table in tables:
        for each in table.find_elements(By.CSS_SELECTOR, "thead th"):
            page.execute_script("arguments[0].querySelector('button').click()", each)
            assert each.get_attribute("aria-sort") == "ascending"
    assert page.get_log("browser") == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_is_never_wider_than_the_screen(page, width):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": width < 768},
    )
    page.refresh()
    script = "return [document.documentElement.scrollWidth, window.innerWidth]"
    content, screen = page.execute_script(script)
    assert screen == width
    assert content <= width
    size = "return parseFloat(getComputedStyle(document.body).fontSize)"
    assert page.execute_script(size) >= 16
    assert page.get_log("browser") == []
