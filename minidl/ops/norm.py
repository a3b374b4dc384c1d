"""Normalisation: across maps, as in KSH 2012."""

from __future__ import annotations

import math

from ..tensor import Tensor
from .common.op import also
from .pool import avg_pool2d
from .shapes import reshape

__all__ = ["local_response_norm"]


@also
def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Each value over what its neighbours in the other maps are: x (n,c,...) -> the same shape.

    y[n,c] = x[n,c] / (k + alpha * s)^beta, s the mean of x[n,i]^2 over `size` maps i around c; maps beyond the first
    and the last count as 0. KSH 2012, section 3.3, has the sum in place of the mean: its 1e-4 for 5 maps is 5e-4 here,
    and in PyTorch.

    Raises ValueError for an x of fewer than 3 axes and a size below 1.

    >>> local_response_norm(Tensor([[[1.0], [2.0]]]), 1, alpha=1.0, beta=1.0).tolist()
    [[[0.5], [0.4000000059604645]]]
    """
    if x.ndim < 3:
        raise ValueError(f"local_response_norm: x has shape {x.shape} but must be (n,c,...), 3 axes or more; see "
                         ".reshape()")
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"local_response_norm: size is {size!r} but must be an int of at least 1, a number of maps")
    n, c = x.shape[:2]
    squares = reshape(x * x, shape=(n, 1, c, math.prod(x.shape[2:])))
    means = avg_pool2d(squares, size=(size, 1), stride=1, padding=((size // 2, (size - 1) // 2), (0, 0)))
    return x / (reshape(means, shape=x.shape) * alpha + k) ** beta
