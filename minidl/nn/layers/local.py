"""Local connections that share no weights."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...core.tensor import Tensor
from ...ops.common.geometry import Padding, Pair, conv_geometry, pair, plain
from ..module import Module
from .basic import _parameter, _positive


class LocallyConnected2d(Module):
    """A convolution whose outputs do not share their weights: each pixel of each map has a filter of its own.

    x (n,in_channels,h,w) -> (n,out_channels,oh,ow), where (h,w) is `size`. weight is (out_channels,
    in_channels*kh*kw,oh,ow), with the elements of a filter in the order of those of `Conv2d`, and bias
    (out_channels,oh,ow). They start uniform in +-1/sqrt(in_channels*kh*kw). With the same filter everywhere it is
    `Conv2d`. Raises ValueError for what `Conv2d` would refuse, and for an x of another size.

    >>> layer = LocallyConnected2d(3, 4, (8, 8), 3)
    >>> layer.weight.shape, layer(Tensor(np.zeros((2, 3, 8, 8), np.float32))).shape
    ((4, 27, 6, 6), (2, 4, 6, 6))
    """

    def __init__(self, in_channels: int, out_channels: int, size: Pair, kernel_size: Pair, stride: Pair = 1,
                 padding: Padding = 0, *, bias: bool = True):
        super().__init__()
        in_channels, out_channels = _positive("LocallyConnected2d", in_channels=in_channels, out_channels=out_channels)
        kh, kw = pair("LocallyConnected2d", "kernel_size", kernel_size, 1)
        self.stride, self.padding = plain(stride), plain(padding)
        self.shape = in_channels, *pair("LocallyConnected2d", "size", size, 1)
        taps = in_channels * kh * kw
        g = conv_geometry((1, *self.shape), (taps, in_channels, kh, kw), None, stride, padding, "auto")
        self.weight = _parameter((out_channels, taps, g.oh, g.ow), taps)
        self.bias = _parameter((out_channels, g.oh, g.ow), taps) if bias else None
        ones = np.eye(kh * kw, dtype=np.float32).reshape(kh * kw, 1, kh, kw)       # filters that each copy one pixel
        self.windows = Tensor(np.tile(ones, (in_channels, 1, 1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.shape:
            raise ValueError(f"LocallyConnected2d: x has shape {x.shape} but must be "
                             f"(n,{','.join(map(str, self.shape))}); build the layer with x's channels and size")
        windows = ops.conv2d(x, self.windows, stride=self.stride, padding=self.padding, groups=self.shape[0])
        y = ops.einsum("nkij,mkij->nmij", windows, self.weight)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        m, _, oh, ow = self.weight.shape
        kh, kw = self.windows.shape[2:]
        return (f"{self.shape[0]}, {m}, size={self.shape[1:]}, kernel_size=({kh}, {kw}), stride={self.stride}, "
                f"padding={self.padding}, outputs=({oh}, {ow})" + ", bias=False" * (self.bias is None))
