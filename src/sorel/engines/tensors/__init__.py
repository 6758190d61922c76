"""Tensors as a home of the data; see :mod:`sorel.torch`."""

from sorel.engines.tensors.engine import DeviceMemoryError, TensorEngine
from sorel.engines.tensors.inputs import read_data

__all__ = ["DeviceMemoryError", "TensorEngine", "read_data"]
