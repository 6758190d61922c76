"""The site in a real browser: no page sticks out, and search finds pages first."""

import functools
import http.server
import threading

import pytest
from test_pages import SITE

pytest.importorskip("selenium", reason="selenium is an extra")

PAGES = [
    "index", "quickstart", "choosing-a-risk", "coming-from", "held-out", "linear", "reproduction",
    "certificate", "cluster", "gpu", "networks", "api/index", "gallery/index",
    "api/generated/sorel.dask.DaskSpectralRiskClassifier",
]  # fmt: skip


@pytest.fixture(scope="session")
def address():
    """The site, served as a host would."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    handler.log_message = lambda *arguments: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_sticks_out(browser, address, name, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"{address}/{name}.html")
    titles = "[...document.querySelectorAll('.bd-article :is(h1, h2, h3)')]"
    clipped = f"return {titles}.filter(t => t.scrollWidth > t.clientWidth).map(t => t.innerText)"
    assert browser.execute_script(clipped) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert all(entry["level"] != "SEVERE" for entry in browser.get_log("browser"))


@pytest.mark.parametrize("word", ["slow", "memory", "quantile"])
def test_search_finds_pages_before_names(browser, address, word):
    browser.get(f"{address}/search.html?q={word}")
    browser.implicitly_wait(20)
    links = browser.find_elements("css selector", "#search-results li a")[:2]
    assert "api/generated" not in "".join(link.get_attribute("href") for link in links)
