"""Modules: Tensors and other Modules held as attributes, and a `forward` that uses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from . import init, ops
from .device import to_device
from .ops.window import Padding, Pair, edges, pair
from .tensor import Tensor, Watched, mode


class Module(Watched):
    """Base class of all layers and nets.

    A Tensor attribute with requires_grad that no operation made is a parameter, a Module attribute a
    child; a name is the path of attributes to it ("c1.weight"). Define `forward`; call the Module itself.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = Tensor([2.0], requires_grad=True)
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> [name for name, _ in Scale().named_parameters()]
    ['factor']
    """

    model_name: str                        # the zoo writes both on what it builds, for the weights file
    model_args: dict[str, Any]

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__}: forward is not defined; a Module defines forward(self, ...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if mode.recorder is not None:
            mode.recorder.module(self)
        return self.forward(*args, **kwargs)

    # ------------------------------------------------------------------ what it holds
    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct child Modules by attribute, in order of assignment."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def named_modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """This Module (path "") and all below it, depth first."""
        yield path, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{path}.{name}" if path else name)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters with their paths; one that is held twice is named once."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.requires_grad and value.is_leaf and id(value) not in seen:
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def parameters(self) -> Iterator[Tensor]:
        """All parameters."""
        return (parameter for _, parameter in self.named_parameters())

    # ------------------------------------------------------------------ state
    def train(self, training: bool = True) -> Module:
        """Switch this Module and all below to training (dropout on), or with False to evaluation."""
        for _, module in self.named_modules():
            module.training = training
        return self

    def eval(self) -> Module:
        """Switch this Module and all below to evaluation (dropout off)."""
        return self.train(False)

    def to(self, device: str | None = None, dtype: Any = None) -> Module:
        """Move all parameters to a device or dtype; they stay the same Tensors and lose their gradients."""
        for parameter in self.parameters():
            parameter.data = parameter.to(device, dtype).data
            parameter.grad = None
            parameter.mark_changed()
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters, in host memory, by path."""
        return {name: np.array(parameter.numpy()) for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters from arrays by path; names, shapes and dtypes must be exactly the model's.

        Raises ValueError that lists every mismatch; then nothing has changed.
        """
        own = dict(self.named_parameters())
        given = {name: np.asarray(value) for name, value in state.items()}
        wrong = [f"{name} is missing" for name in own.keys() - given.keys()]
        wrong += [f"{name} is not in the model" for name in given.keys() - own.keys()]
        for name in own.keys() & given.keys():
            mine, theirs = own[name], given[name]
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                wrong.append(f"{name} is {mine.shape} {mine.dtype} in the model but {theirs.shape} {theirs.dtype} "
                             "in the state")
        if wrong:
            raise ValueError(f"load_state_dict: {len(wrong)} of {len(own.keys() | given.keys())} entries do not "
                             f"fit: {'; '.join(sorted(wrong))}; build the model that the state was saved from")
        for name, parameter in own.items():
            parameter.data[...] = to_device(given[name], parameter.device)
            parameter.mark_changed()

    # ------------------------------------------------------------------ how it looks
    def extra_repr(self) -> str:
        """What `repr` shows between a layer's parentheses."""
        return ""

    def __repr__(self) -> str:
        children = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        inside = "\n  " + "\n  ".join(children) + "\n" if children else self.extra_repr()
        return f"{type(self).__name__}({inside})"


class Sequential(Module):
    """Modules one after the other, named "0", "1", ... or by keyword.

    Raises TypeError for a layer that is no Module; ValueError for a name with a dot or one that is taken.

    >>> net = Sequential(c1=Conv2d(1, 6, 5), act1=Tanh())
    >>> [name for name, _ in net.named_parameters()]
    ['c1.weight', 'c1.bias']
    """

    def __init__(self, *layers: Module, **named: Module):
        super().__init__()
        for name, layer in [*((str(i), layer) for i, layer in enumerate(layers)), *named.items()]:
            if not isinstance(layer, Module):
                raise TypeError(f"Sequential: layer {name} is a {type(layer).__name__} but must be a Module; "
                                "put functions into a Module's forward")
            if "." in name or hasattr(self, name):
                raise ValueError(f"Sequential: the layer name {name!r} has a dot or is taken; choose another")
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x

    def __iter__(self) -> Iterator[Module]:
        return (child for _, child in self.named_children())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, i: int) -> Module:
        return list(self)[i]


def _parameter(shape: tuple[int, ...], fan_in: int) -> Tensor:
    """A parameter drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), the default of layers with weights."""
    bound = 1 / math.sqrt(fan_in)
    return init.uniform_(Tensor(np.zeros(shape, np.float32), requires_grad=True), -bound, bound)


def _positive(name: str, **sizes: int) -> None:
    for what, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}: {what} is {size!r} but must be an int of at least 1")


class Conv2d(Module):
    """`ops.conv2d` with weight (out_channels, in_channels, kh, kw) and bias (out_channels,).

    Parameters start uniform in +-1/sqrt(in_channels*kh*kw). Raises ValueError for sizes below 1 and for a
    stride or padding that `ops.conv2d` would refuse.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = 1,
                 padding: Padding = 0, bias: bool = True, algorithm: str = "auto"):
        super().__init__()
        _positive("Conv2d", in_channels=in_channels, out_channels=out_channels)
        kh, kw = pair("Conv2d", "kernel_size", kernel_size, 1)
        pair("Conv2d", "stride", stride, 1)
        edges("Conv2d", padding)
        self.stride, self.padding, self.algorithm = stride, padding, algorithm
        fan_in = in_channels * kh * kw
        self.weight = _parameter((out_channels, in_channels, kh, kw), fan_in)
        self.bias = _parameter((out_channels,), fan_in) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding,
                          algorithm=self.algorithm)

    def extra_repr(self) -> str:
        m, c, kh, kw = self.weight.shape
        return f"{c}, {m}, kernel_size=({kh}, {kw}), stride={self.stride}, padding={self.padding}"


class Linear(Module):
    """`ops.linear` with weight (out_features, in_features) and bias (out_features,).

    Parameters start uniform in +-1/sqrt(in_features). Raises ValueError for sizes below 1.

    >>> Linear(3, 2)(Tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__()
        _positive("Linear", in_features=in_features, out_features=out_features)
        self.weight = _parameter((out_features, in_features), in_features)
        self.bias = _parameter((out_features,), in_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        out, in_ = self.weight.shape
        return f"{in_}, {out}"


class _Pool2d(Module):
    """What both poolings share: window, stride (the window's size by default) and padding."""

    op: Callable[..., Tensor]

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0):
        super().__init__()
        name = type(self).__name__
        pair(name, "kernel_size", kernel_size, 1)
        if stride is not None:
            pair(name, "stride", stride, 1)
        edges(name, padding)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return type(self).op(x, size=self.kernel_size, stride=self.stride, padding=self.padding)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_Pool2d):
    """`ops.avg_pool2d` as a layer."""

    op = staticmethod(ops.avg_pool2d)


class MaxPool2d(_Pool2d):
    """`ops.max_pool2d` as a layer."""

    op = staticmethod(ops.max_pool2d)


class Sigmoid(Module):
    """`ops.sigmoid` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


class Tanh(Module):
    """`ops.tanh` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class ReLU(Module):
    """`ops.relu` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class Softmax(Module):
    """`ops.softmax` along an axis as a layer."""

    def __init__(self, axis: int = -1):
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x, axis=self.axis)


class Flatten(Module):
    """(n, ...) -> (n, all the rest)."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.flatten(x, 1)


class Dropout(Module):
    """`ops.dropout` while training, nothing in evaluation. Raises ValueError where p is not in [0, 1)."""

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: p is {p!r} but must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
