"""The estimators on a Dask cluster: rows stay on their workers, answers are certified all the same.

Needs ``pip install "sorel[dask]"``.
"""

from __future__ import annotations

try:
    import dask.array  # noqa: F401 (whether it is there)
    import distributed  # noqa: F401 (whether it is there)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'sorel.dask needs dask and distributed ({error}); pip install "sorel[dask]"', name="dask"
    ) from None

from sorel.dask.cluster import ClusterError
from sorel.dask.engine import DaskEngine
from sorel.dask.estimators import DaskSpectralRiskClassifier, DaskSpectralRiskRegressor
from sorel.dask.problems import open_problem

__all__ = [
    "ClusterError",
    "DaskEngine",
    "DaskSpectralRiskClassifier",
    "DaskSpectralRiskRegressor",
    "open_problem",
]
