"""Double precision (IEEE 754, binary64)."""

from __future__ import annotations

import sys

# Distance from 1 to the next number: twice the relative error of one rounding.
EPS = sys.float_info.epsilon

# Numbers that differ by this share of their size, after a few operations, differ by rounding.
ROUNDED = 8.0 * EPS

# The least positive number that has all its digits.
TINY = sys.float_info.min
