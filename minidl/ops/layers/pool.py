"""Pooling (subsampling): PMPP Fig. 16.5, Krizhevsky 2009 sections 6.3 and 6.5."""

from __future__ import annotations

from ...core.tensor import Tensor
from ..common.conv.own import users
from ..common.geometry import Padding, Pair, pool_geometry
from ..common.op import op

__all__ = ["avg_pool2d", "max_pool2d"]


@op(floating=True, by_place=3)
def avg_pool2d(k, x: Tensor, *, size: Pair, stride: Pair | None = None, padding: Padding = 0,
               algorithm: str = "auto"):
    """Mean over windows: x (n,c,h,w) -> (n,c,oh,ow). Padding counts as zeros: the divisor is kh*kw.

    size: an int or (kh, kw). stride: the same, by default the window's size (no overlap). padding: p,
    (ph, pw) or ((top, bottom), (left, right)), less than the window. algorithm: "auto", or one of your own
    (`minidl.register_pool`).

    Raises ValueError if shape, size, stride or padding do not fit, and for an algorithm that is not known.

    >>> from minidl import Tensor
    >>> avg_pool2d(Tensor([[[[1.0, 3.0], [5.0, 7.0]]]]), size=2).item()
    4.0
    """
    g = pool_geometry("avg_pool2d", x.shape, size, stride, padding)
    if algorithm != "auto":
        return users(k, kind="avg_pool2d", algorithm=algorithm, g=g, x=x)
    return k.avg_pool2d(x, g), lambda gy, need: (k.avg_pool2d_grad_x(gy, g),)


@op(floating=True, by_place=3)
def max_pool2d(k, x: Tensor, *, size: Pair, stride: Pair | None = None, padding: Padding = 0,
               algorithm: str = "auto"):
    """Largest value in each window: x (n,c,h,w) -> (n,c,oh,ow). Padding never wins.

    Of equal values the first in row-major order gets the gradient. NaN counts as largest, so it is passed
    on; of several NaNs the last gets the gradient, as in PyTorch. Arguments and errors as in `avg_pool2d`.

    >>> from minidl import Tensor
    >>> max_pool2d(Tensor([[[[1.0, 3.0], [5.0, 7.0]]]]), size=2).item()
    7.0
    """
    g = pool_geometry("max_pool2d", x.shape, size, stride, padding)
    if algorithm != "auto":
        return users(k, kind="max_pool2d", algorithm=algorithm, g=g, x=x)
    y, index = k.max_pool2d(x, g)
    return y, lambda gy, need: (k.max_pool2d_grad_x(gy, index, g),)
