"""Text from files and from other libraries, made fit to be shown in a message."""

from __future__ import annotations

import re

# Letters of somebody else's text that a message shows.
_SHOWN = 200

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


def one_line(text: object) -> str:
    """The words of a text, without its line breaks."""
    return " ".join(str(text).split())


def shorten(text: object) -> str:
    """The start of a text, on one line."""
    words = one_line(text)
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."
