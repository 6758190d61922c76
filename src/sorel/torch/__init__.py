"""Tensors: data on a device for every problem, with torch.

``sorel.Problem`` and the estimators take torch tensors, and arrays of other libraries that live on
a device, as they take NumPy arrays: see :class:`TensorEngine`.
"""

from sorel.engines.tensors import DeviceMemoryError, TensorEngine

__all__ = ["DeviceMemoryError", "TensorEngine"]
