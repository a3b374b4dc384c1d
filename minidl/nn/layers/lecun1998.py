"""Layers that later nets gave up: those of LeCun, Bottou, Bengio, Haffner 1998, section II, and local connections that
share no weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ... import ops
from ...core.tensor import Tensor
from ...ops.common.geometry import Padding, Pair, conv_geometry, pair, plain
from ..module import Module
from .basic import Conv2d, _parameter, _positive

__all__ = ["RBF", "LocallyConnected2d", "ScaledTanh", "Subsample2d", "TableConv2d"]


class ScaledTanh(Module):
    """1.7159 tanh(2x/3): 1 at 1 and -1 at -1, where its second derivative is largest (LeCun et al. 1998, appendix A).

    >>> ScaledTanh()(Tensor([-1.0, 0.0, 1.0])).numpy().round(4).tolist()
    [-1.0, 0.0, 1.0]
    """

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x * (2 / 3)) * 1.7159


class Subsample2d(Module):
    """The sum of each window times a weight per map, plus a bias per map: x (n,c,h,w) -> (n,c,oh,ow).

    weight and bias have shape (channels,) and start uniform in +-1/sqrt(kh*kw). Windows do not overlap. Put the
    squashing function after it. Raises ValueError for sizes below 1, and for an x with another number of channels.

    >>> layer = Subsample2d(1)
    >>> sum(p.size for p in layer.parameters()), layer(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).shape
    (2, (1, 1, 1, 1))
    """

    def __init__(self, channels: int, kernel_size: Pair = 2):
        super().__init__()
        (channels,) = _positive("Subsample2d", channels=channels)
        self.kernel_size = pair("Subsample2d", "kernel_size", kernel_size, 1)
        self.area = math.prod(self.kernel_size)
        self.weight, self.bias = _parameter((channels,), self.area), _parameter((channels,), self.area)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.weight.size:      # one map's weight would broadcast to any number
            raise ValueError(f"Subsample2d: x has shape {x.shape} but must be (n,{self.weight.size},h,w); build "
                             "the layer with x's channels")
        mean = ops.avg_pool2d(x, size=self.kernel_size)
        return mean * (self.weight * self.area).reshape(-1, 1, 1) + self.bias.reshape(-1, 1, 1)

    def extra_repr(self) -> str:
        return f"{self.weight.size}, kernel_size={self.kernel_size}"


class TableConv2d(Conv2d):
    """A convolution whose maps read some of its input's channels, as a table says (LeCun et al. 1998, Table I).

    table: for each map the channels that it reads; in_channels: how many there are. A connection that is not in the
    table has no weight: weight is (connections, 1, kh, kw), in the table's order, and bias (maps,). They start uniform
    in +-1/sqrt(fan_in), with the fan_in of each map. Raises ValueError for a map that reads nothing, a channel that
    does not exist, and a channel that is named twice; other errors as `Conv2d`.

    >>> layer = TableConv2d(3, [(0, 1), (1, 2)], 5)
    >>> layer.weight.shape, layer(Tensor(np.zeros((1, 3, 5, 5), np.float32))).shape
    ((4, 1, 5, 5), (1, 2, 1, 1))
    """

    def __init__(self, in_channels: int, table: Sequence[Sequence[int]], kernel_size: Pair, stride: Pair = 1,
                 padding: Padding = 0, algorithm: str = "auto"):
        in_channels, _ = _positive("TableConv2d", in_channels=in_channels, maps=len(table))
        for m, channels in enumerate(table):
            if not channels or len(set(channels)) < len(channels) or not set(channels) <= set(range(in_channels)):
                raise ValueError(f"TableConv2d: map {m} reads the channels {tuple(channels)} but must read at least 1 "
                                 f"of 0 to {in_channels - 1}, each once")
        super().__init__(1, sum(map(len, table)), kernel_size, stride, padding, bias=False, algorithm=algorithm)
        self.in_channels, self._table = in_channels, tuple(map(tuple, table))
        self.bias = _parameter((len(table),), math.prod(self.weight.shape[2:]))
        fans = np.sqrt([len(channels) for channels in table])          # values were drawn for one channel each
        self.bias.data[...] /= fans
        self.weight.data[...] /= np.repeat(fans, list(map(len, table))).reshape(-1, 1, 1, 1)
        places = [m * in_channels + c for m, channels in enumerate(table) for c in channels]
        self.places = Tensor(np.eye(len(table) * in_channels, dtype=np.float32)[:, places])

    @property
    def table(self) -> tuple[tuple[int, ...], ...]:
        """The channels that each map reads; another table needs another layer."""
        return self._table

    def filters(self) -> Tensor:
        """The weights at their places among zeros: (maps,in_channels,kh,kw)."""
        connections, _, kh, kw = self.weight.shape
        placed = ops.matmul(self.places, self.weight.reshape(connections, kh * kw))
        return placed.reshape(len(self.table), self.in_channels, kh, kw)

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv2d(x, self.filters(), self.bias, stride=self.stride, padding=self.padding,
                          algorithm=self.algorithm)

    def extra_repr(self) -> str:
        connections, _, kh, kw = self.weight.shape
        return (f"{self.in_channels}, {len(self.table)}, connections={connections}, kernel_size=({kh}, {kw}), "
                f"stride={self.stride}, padding={self.padding}")


class RBF(Module):
    """Minus the squared distance of x (n,features) to each class's code: (n,classes). So the nearest is largest.

    The outputs are the log densities, up to a constant, of Gaussians of variance 1/2 around the codes. The codes are
    fixed, in a buffer (classes,features). j: the squared distance beyond which an input is more likely none of the
    classes; in `loss` it is the constant of the competing term. Raises ValueError for codes or x of another shape and a
    j that is not positive.

    >>> layer = RBF([[1.0, 1.0], [-1.0, 1.0]], j=2.0)
    >>> outputs = layer(Tensor([[1.0, 0.5], [0.0, 9.0]])); outputs.tolist()
    [[-0.25, -4.25], [-65.0, -65.0]]
    >>> layer.or_none(outputs).argmax(axis=1).tolist()
    [0, 2]
    """

    def __init__(self, codes: np.ndarray | Sequence[Sequence[float]], j: float):
        super().__init__()
        codes = np.array(codes, np.float32)
        if codes.ndim != 2 or 0 in codes.shape:
            raise ValueError(f"RBF: codes have shape {codes.shape} but must be (classes,features), none of them 0")
        if not 0 < j < math.inf:
            raise ValueError(f"RBF: j is {j!r} but must be a positive number, a squared distance")
        self.codes, self.j = Tensor(codes), float(j)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.codes.shape[1]:
            raise ValueError(f"RBF: x has shape {x.shape} but must be (n,{self.codes.shape[1]}), as long as the codes "
                             f"{self.codes.shape}")
        apart = ops.unsqueeze(x, 1) - self.codes
        return -(apart * apart).sum(axis=2)

    def or_none(self, outputs: Tensor) -> Tensor:
        """Outputs (n,classes) with a last column, -j, for none of them: logits (n,classes+1), whose softmax gives the
        probability of each, and whose argmax rejects an image by answering `classes`."""
        return ops.pad(outputs, widths=(0, 1), value=-self.j)

    def loss(self, outputs: Tensor, labels: Tensor | np.ndarray | list[int]) -> Tensor:
        """The mean of y_label + log(e^-j + sum over i of e^-y_i), where y are the squared distances: equation 9 of
        LeCun et al. 1998, which is the cross entropy of `or_none`. A label of `classes` means none of them."""
        return ops.cross_entropy(self.or_none(outputs), labels)

    def extra_repr(self) -> str:
        classes, features = self.codes.shape
        return f"{features}, {classes}, j={self.j:g}"


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
        self.stride, self.padding, self.kernel_size = plain(stride), plain(padding), (kh, kw)
        self.shape = in_channels, *pair("LocallyConnected2d", "size", size, 1)
        taps = in_channels * kh * kw
        g = conv_geometry((1, *self.shape), (taps, in_channels, kh, kw), None, stride, padding, "auto")
        self.weight = _parameter((out_channels, taps, g.oh, g.ow), taps)
        self.bias = _parameter((out_channels, g.oh, g.ow), taps) if bias else None
        bottom, right = (g.oh - 1) * g.sh + 1, (g.ow - 1) * g.sw + 1
        self._edges = g.left, g.right, g.top, g.bottom
        self._places = [(slice(None), slice(None), slice(i, i + bottom, g.sh), slice(j, j + right, g.sw))
                        for i in range(kh) for j in range(kw)]         # what each weight of a filter reads

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.shape:
            raise ValueError(f"LocallyConnected2d: x has shape {x.shape} but must be "
                             f"(n,{','.join(map(str, self.shape))}); build the layer with x's channels and size")
        x = ops.pad(x, widths=self._edges)
        windows = ops.stack([x[place] for place in self._places], axis=2)
        y = ops.einsum("nkij,mkij->nmij", windows.reshape(len(x), *self.weight.shape[1:]), self.weight)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        m, _, oh, ow = self.weight.shape
        return (f"{self.shape[0]}, {m}, size={self.shape[1:]}, kernel_size={self.kernel_size}, stride={self.stride}, "
                f"padding={self.padding}, outputs=({oh}, {ow})" + ", bias=False" * (self.bias is None))
