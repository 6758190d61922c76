"""The loops of :mod:`sorel.kernels.losses`, which serve the logistic loss like all others."""

from __future__ import annotations

from sorel.kernels.losses import *  # noqa: F403
