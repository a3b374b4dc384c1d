"""Layers: Modules that compute with an op, and Sequential, which runs Modules one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

import numpy as np

from ... import ops
from ...core.tensor import Tensor
from ...ops.common.geometry import Padding, Pair, Triple, Windows, around, edges, is_int, pair, plain, several, whole
from .. import init
from ..module import Module, require_module

__all__ = [
    "AvgPool2d", "Conv2d", "Embedding", "Flatten", "Linear", "MaxPool2d", "ReLU", "Sequential", "Sigmoid", "Tanh",
]


class Sequential(Module):
    """Modules one after the other, named "0", "1", ... or by keyword. It can be changed like a list; a layer that is
    named by its number then gets its new number.

    Raises TypeError for a layer that is not a Module; ValueError for a name with a dot or one that is taken.

    >>> net = Sequential(c1=Conv2d(1, 6, 5), act1=Tanh())
    >>> [name for name, _ in net.named_parameters()]
    ['c1.weight', 'c1.bias']
    """

    def __init__(self, *layers: Module, **named: Module):
        super().__init__()
        self._become([*((str(i), layer) for i, layer in enumerate(layers)), *named.items()])

    def _named_layers(self) -> list[tuple[str, Module]]:
        return [(name, layer) for name, layer in vars(self).items() if isinstance(layer, Module)]

    def _become(self, layers: list[tuple[str, Module]]) -> None:
        """Hold these, or raise and change nothing."""
        before, seen = dict(self._named_layers()), set()
        for name, layer in layers:
            require_module(self, name, layer)
            if "." in name or name in seen or (name not in before and hasattr(self, name)):
                raise ValueError(f"Sequential: the layer name {name!r} has a dot or is taken; choose another" + (
                    ", or make nn.Sequential(*layers) of part of a net, which numbers them anew" if name.isdigit()
                    else ""))
            seen.add(name)
        for name in before:
            delattr(self, name)
        for name, layer in layers:
            setattr(self, name, layer)

    def _edited(self, edit: Callable[[list[tuple[str | None, Module]]], object]) -> None:
        """Change the list of (name, layer); a name of None becomes the layer's number."""
        layers: list[tuple[str | None, Module]] = [
            (None if name == str(i) else name, layer) for i, (name, layer) in enumerate(self._named_layers())]
        edit(layers)
        self._become([(str(i) if name is None else name, layer) for i, (name, layer) in enumerate(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x

    def __iter__(self) -> Iterator[Module]:
        return iter([layer for layer in vars(self).values() if isinstance(layer, Module)])

    def __len__(self) -> int:
        return len(self._named_layers())

    def __getitem__(self, i: SupportsIndex | slice) -> Any:
        """A layer; for a slice, a Sequential of these layers with their names."""
        return Sequential(**dict(self._named_layers()[i])) if isinstance(i, slice) else list(self)[i]

    def __setitem__(self, i: SupportsIndex, layer: Module) -> None:
        if isinstance(i, slice):
            raise TypeError(f"Sequential: {i} is several places but a layer takes one; set them one by one, net[0] = "
                            "nn.ReLU()")
        name = self._named_layers()[i][0]
        require_module(self, name, layer)
        setattr(self, name, layer)

    def __delitem__(self, i: SupportsIndex | slice) -> None:
        self._edited(lambda layers: layers.__delitem__(i))

    def append(self, layer: Module) -> Sequential:
        """Add a layer after the others; returns the Sequential."""
        return self.insert(len(self), layer)

    def extend(self, layers: Iterable[Module]) -> Sequential:
        """Add several layers after the others; returns the Sequential."""
        self._edited(lambda own: own.extend((None, layer) for layer in layers))
        return self

    def insert(self, i: int, layer: Module) -> Sequential:
        """Add a layer before the i-th; returns the Sequential."""
        self._edited(lambda layers: layers.insert(i, (None, layer)))
        return self

    def pop(self, i: int = -1) -> Module:
        """Remove a layer and return it."""
        layer = list(self)[i]
        del self[i]
        return layer


def _parameter(shape: tuple[int, ...], fan_in: int) -> Tensor:
    """A parameter drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), the default of layers with weights."""
    bound = 1 / math.sqrt(fan_in)
    return init.uniform_(init.parameter(shape), -bound, bound)


def _positive(name: str, **sizes: int) -> list[int]:
    """The sizes as Python ints; NumPy's are converted. Raises ValueError for one that is not a size."""
    return [whole(name, what, size, 1) for what, size in sizes.items()]


class Conv(Module):
    """What convolutions share: `class Conv1d(Conv, op=ops.conv1d, axes=("length",))`.

    weight is (out_channels, in_channels/groups, *kernel_size), bias (out_channels,). Raises ValueError for sizes below
    1, and for groups that do not divide the channels.
    """

    _op: Callable[..., Tensor]
    _axes: tuple[str, ...]
    _name: str

    def __init_subclass__(cls, op: Callable[..., Tensor] | None = None, axes: tuple[str, ...] = ()):
        super().__init_subclass__()
        if op is not None:                 # else a class that changes one of these layers
            cls._op, cls._axes, cls._name = staticmethod(op), axes, cls.__name__

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Pair | Triple, stride: Pair | Triple,
                 padding: Windows | Triple, dilation: Pair | Triple, groups: int, bias: bool, algorithm: str = "auto"):
        super().__init__()
        in_channels, out_channels, groups = _positive(self._name, in_channels=in_channels, out_channels=out_channels,
                                                      groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{self._name}: groups is {groups} but must divide in_channels {in_channels} and "
                             f"out_channels {out_channels}")
        window, strides, dilations = (several(self._name, what, each, 1, self._axes) for what, each in (
            ("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)))
        edge = around(self._name, plain(padding), window, strides, dilations)
        if len(self._axes) == 2:
            edges(self._name, edge)
        self.stride, self.padding, self.dilation, self.algorithm, self.groups = (
            plain(stride), plain(padding), plain(dilation), algorithm, groups)
        fan_in = in_channels // groups * math.prod(window)
        self.weight = _parameter((out_channels, in_channels // groups, *window), fan_in)
        self.bias = _parameter((out_channels,), fan_in) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._op(x, self.weight, self.bias, stride=self.stride, padding=self.padding,
                              algorithm=self.algorithm, groups=self.groups, dilation=self.dilation)

    def extra_repr(self) -> str:
        m, c, *window = self.weight.shape
        return (f"{c * self.groups}, {m}, kernel_size={tuple(window) if len(window) > 1 else window[0]}, "
                f"stride={self.stride}, padding={self.padding!r}" + f", dilation={self.dilation}" * (self.dilation != 1)
                + f", groups={self.groups}" * (self.groups > 1) + ", bias=False" * (self.bias is None))


class Conv2d(Conv, op=ops.conv2d, axes=("height", "width")):
    """`ops.conv2d` with weight (out_channels, in_channels/groups, kh, kw) and bias (out_channels,).

    Parameters start uniform in +-1/sqrt(in_channels/groups*kh*kw). Raises ValueError for sizes below 1, groups that do
    not divide the channels, and for a stride or padding that `ops.conv2d` would refuse.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = 1,
                 padding: Windows = 0, *, bias: bool = True, algorithm: str = "auto", groups: int = 1,
                 dilation: Pair = 1):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, algorithm)


class Linear(Module):
    """`ops.linear` with weight (out_features, in_features) and bias (out_features,).

    Parameters start uniform in +-1/sqrt(in_features). algorithm: one of your own (`minidl.register_linear`). Raises
    ValueError for sizes below 1.

    >>> Linear(3, 2)(Tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, algorithm: str = "auto"):
        super().__init__()
        if bias not in (False, True):      # elsewhere an activation's name comes third, and would count as True
            raise ValueError(f"Linear: bias is {bias!r} but must be True or False; an activation is the next layer, "
                             "such as nn.ReLU()")
        self.algorithm = algorithm
        in_features, out_features = _positive("Linear", in_features=in_features, out_features=out_features)
        self.weight = _parameter((out_features, in_features), in_features)
        self.bias = _parameter((out_features,), in_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.algorithm == "auto":
            return ops.linear(x, self.weight, self.bias)
        return ops.linear(x, self.weight, self.bias, algorithm=self.algorithm)

    def extra_repr(self) -> str:
        out, in_ = self.weight.shape
        return f"{in_}, {out}" + ", bias=False" * (self.bias is None)


class Embedding(Module):
    """`ops.embedding` with weight (num_embeddings, embedding_dim), which starts normal with deviation 1.

    padding_idx: a row that starts at 0 and gets no gradient. Raises ValueError for sizes below 1, and for a padding_idx
    that is not a row.

    >>> Embedding(5, 3)([4, 0]).shape
    (2, 3)
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None):
        super().__init__()
        num_embeddings, embedding_dim = _positive("Embedding", num_embeddings=num_embeddings,
                                                  embedding_dim=embedding_dim)
        padding_idx = plain(padding_idx)
        if padding_idx is not None and not (is_int(padding_idx, 0) and padding_idx < num_embeddings):
            raise ValueError(f"Embedding: padding_idx is {padding_idx!r} but must be a row, 0 to {num_embeddings - 1}")
        self.padding_idx = padding_idx
        self.weight = init.normal_(init.parameter((num_embeddings, embedding_dim)), 0.0, 1.0)
        if padding_idx is not None:
            self.weight.data[padding_idx] = 0

    def forward(self, ids: Tensor | np.ndarray | list[int]) -> Tensor:
        return ops.embedding(ids, self.weight, padding_idx=self.padding_idx)

    def extra_repr(self) -> str:
        rows, d = self.weight.shape
        return f"{rows}, {d}" + (f", padding_idx={self.padding_idx}" if self.padding_idx is not None else "")


class OfOp(Module):
    """A layer that computes an op: `class ELU(OfOp, op=ops.elu, options=("alpha",))`.

    The op's options are attributes of the layer, of the same names; its repr has all of them.
    """

    _op: Callable[..., Tensor]
    _options: tuple[str, ...]

    def __init_subclass__(cls, op: Callable[..., Tensor] | None = None, options: tuple[str, ...] = ()):
        super().__init_subclass__()
        if op is not None:                 # else a class that changes one of these layers
            cls._op, cls._options = staticmethod(op), options

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._op(x, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)


class _Pool2d(OfOp):
    """What both poolings share: a window, which their ops call size, stride (by default as large) and padding."""

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0, *,
                 algorithm: str = "auto"):
        super().__init__()
        self.algorithm = algorithm
        name = type(self).__name__
        pair(name, "kernel_size", kernel_size, 1)
        if stride is not None:
            pair(name, "stride", stride, 1)
        edges(name, padding)
        self.kernel_size, self.stride, self.padding = plain((kernel_size, stride, padding))

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._op(x, size=self.kernel_size, stride=self.stride, padding=self.padding,
                              algorithm=self.algorithm)


class AvgPool2d(_Pool2d, op=ops.avg_pool2d, options=("kernel_size", "stride", "padding")):
    """`ops.avg_pool2d` as a layer."""


class MaxPool2d(_Pool2d, op=ops.max_pool2d, options=("kernel_size", "stride", "padding")):
    """`ops.max_pool2d` as a layer."""


class _Unit(OfOp):
    """An activation that a user's own kernels may compute."""

    def __init__(self, *, algorithm: str = "auto"):
        super().__init__()
        self.algorithm = algorithm

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._op(x) if self.algorithm == "auto" else type(self)._op(x, algorithm=self.algorithm)


class Sigmoid(_Unit, op=ops.sigmoid):
    """`ops.sigmoid` as a layer."""


class Tanh(_Unit, op=ops.tanh):
    """`ops.tanh` as a layer."""


class ReLU(_Unit, op=ops.relu):
    """`ops.relu` as a layer."""


class Flatten(Module):
    """(n, ...) -> (n, all the rest); all axes from `start` on become one."""

    def __init__(self, start: int = 1):
        super().__init__()
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        return ops.flatten(x, self.start)
