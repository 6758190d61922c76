"""Text from files, made fit to be shown on a terminal."""

from __future__ import annotations

import re

__all__ = ["printable"]

# Letters that move the cursor, colour the screen, or turn the direction of what follows.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: object) -> str:
    r"""The text with its control characters as escapes: they are shown, not obeyed.

    Parameters
    ----------
    text : object
        Anything with a text; line breaks count as control characters.

    Examples
    --------
    >>> from sorel._lib.text import printable
    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), str(text))
