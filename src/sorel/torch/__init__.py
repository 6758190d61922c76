"""Spectral risks for torch: losses of networks, and training without the bias of mini-batches."""

from sorel.torch.risk import SpectralRisk, spectral_risk
from sorel.torch.training import IndexedDataset, SpectralObjective, SpectralSampler

__all__ = [
    "IndexedDataset",
    "SpectralObjective",
    "SpectralRisk",
    "SpectralSampler",
    "spectral_risk",
]
