"""Spectral risks for torch: losses of networks, and training without the bias of mini-batches."""

from sorel.torch.risk import SpectralRisk, spectral_risk

__all__ = ["SpectralRisk", "spectral_risk"]
