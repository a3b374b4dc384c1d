"""Layers of minidl.ops.layers.resample: sequences, volumes, transposed convolution, and images of other sizes."""

from __future__ import annotations

from ... import ops
from ...core.tensor import Tensor
from ...ops.common.geometry import Padding, Pair, Triple, edges, pair, plain
from ...ops.layers.resample import VOLUME, Size
from ..module import Module
from .basic import Conv, OfOp, _parameter, _positive

__all__ = ["AdaptiveAvgPool2d", "Conv1d", "Conv3d", "ConvTranspose2d", "PixelShuffle", "Upsample"]


class Conv1d(Conv, op=ops.conv1d, axes=("length",)):
    """`ops.conv1d` with weight (out_channels, in_channels/groups, size) and bias (out_channels,).

    Parameters start uniform in +-1/sqrt(in_channels/groups*size). Raises ValueError for sizes below 1 and groups that
    do not divide the channels.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1,
                 padding: int | tuple[int, int] | str = 0, dilation: int = 1, groups: int = 1, bias: bool = True):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)


class Conv3d(Conv, op=ops.conv3d, axes=VOLUME):
    """`ops.conv3d` with weight (out_channels, in_channels/groups, kd, kh, kw) and bias (out_channels,).

    Parameters start uniform in +-1/sqrt(in_channels/groups*kd*kh*kw). Errors as `Conv1d`.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Triple, stride: Triple = 1,
                 padding: Triple | str = 0, dilation: Triple = 1, groups: int = 1, bias: bool = True):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)


class ConvTranspose2d(Module):
    """`ops.conv_transpose2d` with weight (in_channels, out_channels, kh, kw) and bias (out_channels,).

    Parameters start uniform in +-1/sqrt(out_channels*kh*kw), as in PyTorch. Raises ValueError for sizes below 1.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = 1, padding: Padding = 0,
                 output_padding: Pair = 0, *, bias: bool = True):
        super().__init__()
        in_channels, out_channels = _positive("ConvTranspose2d", in_channels=in_channels, out_channels=out_channels)
        kh, kw = pair("ConvTranspose2d", "kernel_size", kernel_size, 1)
        pair("ConvTranspose2d", "stride", stride, 1)
        edges("ConvTranspose2d", padding)
        self.stride, self.padding, self.output_padding = plain((stride, padding, output_padding))
        self.weight = _parameter((in_channels, out_channels, kh, kw), out_channels * kh * kw)
        self.bias = _parameter((out_channels,), out_channels * kh * kw) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv_transpose2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding,
                                    output_padding=self.output_padding)

    def extra_repr(self) -> str:
        c, m, kh, kw = self.weight.shape
        return (f"{c}, {m}, kernel_size=({kh}, {kw}), stride={self.stride}, padding={self.padding}"
                + f", output_padding={self.output_padding}" * (self.output_padding not in (0, (0, 0)))
                + ", bias=False" * (self.bias is None))


class Upsample(OfOp, op=ops.interpolate, options=("size", "scale_factor")):
    """`ops.interpolate` as a layer: it repeats each pixel several times."""

    def __init__(self, size: Pair | None = None, scale_factor: Pair | None = None, mode: str = "nearest"):
        super().__init__()
        if mode != "nearest":
            raise ValueError(f"Upsample: mode {mode!r} is not 'nearest', the only one")
        self.size, self.scale_factor = plain((size, scale_factor))

    def extra_repr(self) -> str:
        return f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"


class PixelShuffle(OfOp, op=ops.pixel_shuffle, options=("upscale_factor",)):
    """`ops.pixel_shuffle` as a layer."""

    def __init__(self, upscale_factor: int):
        super().__init__()
        (self.upscale_factor,) = _positive("PixelShuffle", upscale_factor=upscale_factor)

    def extra_repr(self) -> str:
        return f"{self.upscale_factor}"


class AdaptiveAvgPool2d(OfOp, op=ops.adaptive_avg_pool2d, options=("output_size",)):
    """`ops.adaptive_avg_pool2d` as a layer: output_size is an int or (oh, ow); a None in it keeps x's size.

    >>> AdaptiveAvgPool2d(1)(Tensor([[[[1.0, 2.0, 6.0]]]])).item()
    3.0
    """

    def __init__(self, output_size: Size):
        super().__init__()
        self.output_size = plain(output_size)
