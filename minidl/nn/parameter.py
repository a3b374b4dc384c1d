"""Parameter: a Tensor that requires a gradient, by PyTorch's name for it."""

from __future__ import annotations

from ..core.tensor import Tensor
from ..ops.create import tensor


def Parameter(data: object, requires_grad: bool = True) -> Tensor:
    """A leaf with a copy of the data, or of a Tensor's; a Module's attributes that require a gradient are parameters.

    >>> Parameter(Tensor([1.0, 2.0])).requires_grad
    True
    """
    return tensor(data.detach()._data if isinstance(data, Tensor) else data, requires_grad=requires_grad)
