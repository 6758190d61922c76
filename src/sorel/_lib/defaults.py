"""Defaults that several doors share, in one place, and why some doors have others.

``sorel.solve`` and ``sorel.path`` are for those who want the optimum, estimators and the command
line for those who want a model: a relative gap of 1e-4 is far below the noise of any data, and
costs fewer passes. ``sorel.Problem`` is the mathematical problem as written, without an intercept
unless it is asked for; everything that takes a user's data fits one. The risks that estimators
minimise by default are in ``sorel.estimators.default_risks``.
"""

from __future__ import annotations

TOL = 1e-6
MODEL_TOL = 1e-4
MAX_PASSES = 1000.0
FIT_INTERCEPT = True

# What stands for standard input or output where a file is named.
STANDARD = "-"
