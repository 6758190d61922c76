"""One thread for linear algebra and compiled loops: to be imported before NumPy is.

Where NumPy is there already, as in the tests, nothing is changed.
"""

from __future__ import annotations

import os
import sys

if "numpy" not in sys.modules:
    for variable in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "RAYON_NUM_THREADS",
    ):
        os.environ[variable] = "1"
