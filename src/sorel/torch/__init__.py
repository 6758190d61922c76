"""Spectral risks for torch: data on a device, losses of networks, training without a batch's bias.

``sorel.Problem`` and the estimators take torch tensors, and arrays of other libraries that live on
a device, as they take NumPy arrays: see :class:`TensorEngine`. Networks are trained on the exact
risk of a batch (:class:`SpectralRisk`) or on that of all samples (:class:`SpectralObjective`).

Needs ``pip install "sorel[torch]"``.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401 (whether it is there)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'sorel.torch needs torch ({error}); pip install "sorel[torch]"', name="torch"
    ) from None

from sorel.engines.tensors import DeviceMemoryError, TensorEngine
from sorel.torch.risk import SpectralRisk, spectral_risk
from sorel.torch.training import IndexedDataset, SpectralObjective, SpectralSampler

__all__ = [
    "DeviceMemoryError",
    "IndexedDataset",
    "SpectralObjective",
    "SpectralRisk",
    "SpectralSampler",
    "TensorEngine",
    "spectral_risk",
]
