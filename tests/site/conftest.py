"""A browser for the site."""

from __future__ import annotations

from headless import browser

__all__ = ["browser"]
