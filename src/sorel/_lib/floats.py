"""Double precision (IEEE 754, binary64)."""

from __future__ import annotations

import sys

__all__ = ["EPS", "TINY"]

# Distance from 1 to the next number: twice the relative error of one rounding.
EPS = sys.float_info.epsilon

# The least positive number that has all its digits.
TINY = sys.float_info.min
