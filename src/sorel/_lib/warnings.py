"""Warnings that point at the user's line, and are logged as well.

The logger is called ``sorel``. It stays silent until the user configures logging.
"""

from __future__ import annotations

import logging
import sys
import warnings

logger = logging.getLogger("sorel")
logger.addHandler(logging.NullHandler())

# Callers that are no users: this package, and what calls its estimators.
_MACHINERY = {"sorel", "sklearn", "joblib"}


def outside() -> int:
    """The ``stacklevel`` that makes a warning of the calling function point at the user's code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _MACHINERY:
            break
        frame, level = frame.f_back, level + 1
    return level


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn the user, and log the same words."""
    logger.warning(message)
    # One more for this function.
    warnings.warn(message, category, stacklevel=outside())
