"""The built site: no dead link, and nothing from elsewhere. `make docs` first."""

import os
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(os.environ.get("SOREL_SITE", Path(__file__).resolve().parents[2] / "docs/_build/html"))


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.anchors.update(facts[key] for key in ("id", "name") if facts.get(key))
        for key in ("href", "src"):
            if facts.get(key) and not (tag == "link" and facts.get("rel") == "canonical"):
                self.links.append(facts[key])


@cache
def page(path: Path) -> _Page:
    return _Page(path.read_text())


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    found = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
    assert len(found) > 100, f"there is no site at {SITE}: run make docs first"
    return found


def test_no_link_is_dead(pages):
    dead = []
    for path in pages:
        for link in page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                parts.fragment
                and target.suffix == ".html"
                and unquote(parts.fragment) not in page(target).anchors
            ):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert dead == []


def test_pages_need_nothing_from_elsewhere(pages):
    """Styles, scripts, fonts and pictures come with the site."""
    outside = {
        link
        for path in pages
        for link in page(path).links
        if urlsplit(link).scheme in ("http", "https")
        and link.endswith((".js", ".css", ".woff2", ".png", ".svg"))
    }
    assert outside == set()
