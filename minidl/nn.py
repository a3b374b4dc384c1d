"""Modules: Tensors and other Modules held as attributes, and a `forward` that uses them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import numpy as np

from . import init, ops
from .device import DType, to_device
from .mode import Watched, mode, note_change
from .ops.geometry import Padding, Pair, edges, pair
from .tensor import Tensor, mark_changed

_MOST = 20                                 # of what does not fit, as many are named in a message
_FLOATING = (np.dtype(np.float32), np.dtype(np.float64))


class Module(Watched):
    """Base class of all layers and nets.

    A Module holds every Tensor and every other Module (its child) among its attributes, in lists, tuples and dicts
    too; a name is the path to it: "c1.weight", "layers.0.bias", "heads.left.weight". A Tensor that requires a gradient
    is a parameter, any other a buffer: a running mean, a counter, a frozen parameter. Both are the Module's state, that
    `state_dict`, `minidl.save`, `load_state_dict` and `to` take whole. A result that is still on the tape is neither,
    and is refused as soon as state is asked for: assign its `.detach()` to keep it as a buffer, its `.numpy()` to look
    at it. Define `forward`; call the Module itself.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = Tensor([2.0], requires_grad=True)
    ...         self.mean = Tensor([0.5])
    ...     def forward(self, x):
    ...         return (x - self.mean) * self.factor
    >>> [name for name, _ in Scale().named_parameters()], list(Scale().state_dict())
    (['factor'], ['factor', 'mean'])
    """

    model_name: str                        # the zoo writes both on what it builds, for the weights file
    model_args: dict[str, Any]
    _once: frozenset[str] = frozenset()    # names of own Tensors that have been parameters, frozen since or not
    restless = frozenset({"_once"})

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__}: forward is not defined; a Module defines forward(self, ...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mode.recorder.module(self)
        return self.forward(*args, **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, _HOLDERS) and self._remember(_held(name, value)):
            _require_name(f"{type(self).__name__}: the attribute", name)
        super().__setattr__(name, value)

    # ------------------------------------------------------------------ what it holds
    def _entries(self) -> Iterable[tuple[str, Any]]:
        """What may hold Tensors and Modules, by name: the attributes."""
        return list(vars(self).items())

    def _found(self) -> Iterator[tuple[str, Tensor | Module]]:
        return (found for name, value in self._entries() if isinstance(value, _HOLDERS) for found in _held(name, value))

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """Its own Tensors, not its children's, by name."""
        return self._remember((name, value) for name, value in self._found() if isinstance(value, Tensor))

    def _remember(self, found: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Note which of its own Tensors are parameters, for the day they are frozen."""
        found = list(found)
        now = {name for name, value in found if isinstance(value, Tensor) and value.requires_grad and value.is_leaf}
        if not now <= self._once:
            vars(self)["_once"] = self._once | now
        return found

    def _walk(self, path: str) -> Iterator[tuple[str, Module, bool]]:
        """(path, Module, whether it is met for the first time) depth first; below a Module only that once."""
        seen: set[int] = set()
        waiting: list[tuple[str, Module]] = [(path, self)]
        while waiting:
            path, module = waiting.pop()
            first = id(module) not in seen
            yield path, module, first
            if first:
                seen.add(id(module))
                waiting += [(_join(path, name), child) for name, child in reversed(list(module.named_children()))]

    def _named(self) -> dict[str, Tensor]:
        """All Tensors by all their paths: one that is held twice (tied) is there twice, the first path first."""
        named: dict[str, Tensor] = {}
        paths: dict[int, str] = {}
        for path, module, first in self._walk(""):
            if first:
                paths[id(module)] = path
                new = [(_join(path, name), t) for name, t in module._tensors()]
            else:                          # what its first path has is here too, unless this is a way back up
                known = _join(paths[id(module)], "")
                new = [] if _join(path, "").startswith(known) else [
                    (_join(path, name[len(known):]), t) for name, t in named.items() if name.startswith(known)]
            for name, t in new:
                if t.node is not None:
                    raise ValueError(f"{type(self).__name__}: {name} was made by {t.node.name!r} and is still on the "
                                     "tape, so it is neither a parameter nor a buffer; assign its .detach() to keep it "
                                     "as a buffer, or its .numpy() to look at it")
                if name in named:
                    raise ValueError(f"{type(self).__name__}: two Tensors are named {name}; rename one")
                named[name] = t
        return named

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct child Modules by name, in order of assignment; one that is held twice is named twice."""
        return ((name, value) for name, value in self._found() if isinstance(value, Module))

    def named_modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """This Module (path "") and all below it, depth first, each once."""
        return ((path, module) for path, module, first in self._walk(path) if first)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters and buffers with their paths; one that is held twice is named once.

        Raises ValueError for a Tensor that is still on the tape.
        """
        named = self._named()
        first = {id(t): name for name, t in reversed(named.items())}
        return ((name, t) for name, t in named.items() if first[id(t)] == name)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All Tensors that require a gradient, with their paths; one that is held twice is named once."""
        return ((name, t) for name, t in self.named_tensors() if t.requires_grad)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """All Tensors that require no gradient (frozen parameters among them), with their paths, each once."""
        return ((name, t) for name, t in self.named_tensors() if not t.requires_grad)

    def parameters(self) -> Iterator[Tensor]:
        """All parameters."""
        return (parameter for _, parameter in self.named_parameters())

    def buffers(self) -> Iterator[Tensor]:
        """All buffers."""
        return (buffer for _, buffer in self.named_buffers())

    # ------------------------------------------------------------------ state
    def train(self, training: bool = True) -> Module:
        """Switch this Module and all below to training (dropout on), or with False to evaluation."""
        for _, module in self.named_modules():
            module.training = training
        return self

    def eval(self) -> Module:
        """Switch this Module and all below to evaluation (dropout off)."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Freeze all parameters (False), or unfreeze them (True); those that change lose their gradients.

        A frozen parameter is told from other buffers by its name: a Module remembers under which of its names it has
        seen a Tensor that requires a gradient. So parameters frozen one by one are found too, and a running mean
        stays a buffer. Raises TypeError where one is no float32 or float64 now; then nothing has changed.
        """
        _refuse_recording("freezes or unfreezes parameters with .requires_grad_()")
        self._named()                      # refuses what is on the tape
        found = [(_join(path, name), t) for path, module in self.named_modules()
                 for name, t in module._tensors() if name in module._once]
        for name, t in found:
            if t.dtype not in _FLOATING:
                raise TypeError(f"requires_grad_: {name} is {t.dtype} and cannot require a gradient, only float32 and "
                                "float64 can; convert it with .to(dtype='float32')")
        for _, t in found:
            if t.requires_grad != requires_grad:
                t.requires_grad, t.grad = requires_grad, None
        note_change()
        return self

    def to(self, device: str | None = None, dtype: DType = None) -> Module:
        """Move all Tensors to a device; a dtype (float32 or float64) converts the floating ones.

        They stay the same Tensors and lose their gradients. Raises ValueError or TypeError for a device or dtype that
        cannot be; then nothing has changed.
        """
        _refuse_recording("moves or converts a Module with .to()")
        if dtype is not None and np.dtype(dtype) not in _FLOATING:
            raise TypeError(f"to: dtype {np.dtype(dtype)} cannot require a gradient, only float32 and float64 can; "
                            "choose one of these")
        tensors = [t for _, t in self.named_tensors()]
        moved = [t.to(device, dtype if t.dtype.kind == "f" else None).data for t in tensors]
        for t, array in zip(tensors, moved, strict=True):
            t.data, t.grad = array, None
        mark_changed(tensors)
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, in host memory, by path.

        A Tensor that is held twice (tied) is there by all its paths, as one array.
        """
        named = self._named()
        copies = {id(t): np.array(t.numpy()) for t in named.values()}
        return {name: copies[id(t)] for name, t in named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters and buffers from arrays or Tensors by path.

        Names, shapes and dtypes must be exactly the model's; of a Tensor with several paths one is enough, and if more
        are given their values must be equal. Parameters change in place; a buffer gets a new array, since its old one
        may be somebody else's.

        Raises ValueError that lists what does not fit, at most 20 entries; then nothing has changed.
        """
        _refuse_recording("loads a state with .load_state_dict()")
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: the state is a {type(state).__name__} but must map names to arrays; a "
                            "file is loaded by minidl.load(model, path)")
        own = self._named()
        given = {name: np.asarray(value) for name, value in state.items()}
        source: dict[int, str] = {}        # of each Tensor, the first of its names in the state
        wrong = {name: f"{name} is not in the model" for name in given.keys() - own.keys()}
        for name in (name for name in own if name in given):
            mine, theirs = own[name], given[name]
            first = source.setdefault(id(mine), name)
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                wrong[name] = (f"{name} is {mine.shape} {mine.dtype} in the model but {theirs.shape} {theirs.dtype} in "
                               "the state")
            elif first not in wrong and theirs.tobytes() != given[first].tobytes():
                wrong[name] = f"{name} and {first} are one Tensor in the model but differ in the state"
        wrong |= {name: f"{name} is missing" for name, t in own.items() if id(t) not in source}
        if wrong:
            told = [wrong[name] for name in sorted(wrong)[:_MOST]]
            told += [f"{len(wrong) - _MOST} more"] if len(wrong) > _MOST else []
            raise ValueError(f"load_state_dict: {len(wrong)} of {len(own.keys() | given.keys())} entries do not "
                             f"fit: {'; '.join(told)}; build the model that the state was saved from")
        tensors = {id(t): t for t in own.values()}
        mark_changed(tensors.values())     # before the first write: an interrupted load is a change, too
        arrays = {key: to_device(np.array(given[name]), tensors[key].device) for key, name in source.items()}
        for key, t in tensors.items():
            if t.requires_grad:
                t.data[...] = arrays[key]
            else:
                t.data = arrays[key]

    # ------------------------------------------------------------------ how it looks
    def extra_repr(self) -> str:
        """What `repr` shows between a layer's parentheses."""
        return ""

    @reprlib.recursive_repr("...")
    def __repr__(self) -> str:
        frozen = [name for name, t in self._tensors() if name in self._once and not t.requires_grad]
        facts = ", ".join(filter(None, [self.extra_repr(), f"frozen: {' '.join(frozen)}" if frozen else ""]))
        children = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        inside = "\n  " + "\n  ".join([facts] * bool(facts) + children) + "\n" if children else facts
        return f"{type(self).__name__}({inside})"


_HOLDERS = (Tensor, Module, list, tuple, dict)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _held(path: str, value: Any, within: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The Tensors and Modules that a value is or holds, with their paths. Raises ValueError for a name with a dot."""
    if isinstance(value, (Tensor, Module)):
        yield path, value
    elif id(value) not in within:          # a list may hold itself
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(each, _HOLDERS):
                for name, held in _held(f"{path}.{key}", each, (*within, id(value))):
                    if isinstance(value, dict):
                        _require_name(f"{path}: the key", key)
                    yield name, held


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name or "." in name:
        raise ValueError(f"{what} {name!r} names a Tensor or Module but must be a text without dots; rename it")


def _require_module(owner: Module, name: object, value: object) -> None:
    if not isinstance(value, Module):
        raise TypeError(f"{type(owner).__name__}: layer {name} is a {type(value).__name__} but must be a Module; put "
                        "functions into a Module's forward")


def _refuse_recording(what: str) -> None:
    mode.recorder.refuse(what, "do it outside the step")


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
            _require_module(self, name, layer)
            if "." in name or hasattr(self, name):
                raise ValueError(f"Sequential: the layer name {name!r} has a dot or is taken; choose another")
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x

    def __iter__(self) -> Iterator[Module]:
        return (layer for layer in list(vars(self).values()) if isinstance(layer, Module))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, i: int) -> Module:
        return list(self)[i]


class ModuleList(Module, MutableSequence):
    """Modules in a list, named "0", "1", ...; it does all that a list does, and has no forward of its own.

    Raises TypeError for an entry that is no Module.

    >>> layers = ModuleList([Linear(3, 2), ReLU()])
    >>> layers.append(Linear(2, 1))
    >>> len(layers), list(layers.state_dict())
    (3, ['0.weight', '0.bias', '2.weight', '2.bias'])
    """

    def __init__(self, modules: Iterable[Module] = ()):
        super().__init__()
        self._items: list[Module] = []
        self.extend(modules)

    def _entries(self) -> Iterable[tuple[str, Any]]:
        return [*((str(i), module) for i, module in enumerate(self._items)),
                *((name, value) for name, value in super()._entries() if name != "_items")]

    def _become(self, items: list[Any]) -> None:
        for i, module in enumerate(items):
            _require_module(self, i, module)
        self._items = items                # a new list each time, so that the change is seen

    def insert(self, i: int, module: Module) -> None:
        items = list(self._items)
        items.insert(i, module)
        self._become(items)

    def __getitem__(self, i: Any) -> Any:
        return ModuleList(self._items[i]) if isinstance(i, slice) else self._items[i]

    def __setitem__(self, i: Any, module: Any) -> None:
        items = list(self._items)
        items[i] = module
        self._become(items)

    def __delitem__(self, i: Any) -> None:
        items = list(self._items)
        del items[i]
        self._become(items)

    def __len__(self) -> int:
        return len(self._items)


class ModuleDict(Module, MutableMapping):
    """Modules by name; it does all that a dict does, and has no forward of its own.

    Raises TypeError for an entry that is no Module, ValueError for a key that is no text or has a dot.

    >>> heads = ModuleDict({"left": Linear(3, 2)})
    >>> heads["right"] = Linear(3, 1, bias=False)
    >>> list(heads), list(heads.state_dict())
    (['left', 'right'], ['left.weight', 'left.bias', 'right.weight'])
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()):
        super().__init__()
        self._items: dict[str, Module] = {}
        self.update(modules)

    __eq__ = object.__eq__                 # as every Module: it is equal to itself alone
    __hash__ = object.__hash__

    def _entries(self) -> Iterable[tuple[str, Any]]:
        return [*self._items.items(), *((name, value) for name, value in super()._entries() if name != "_items")]

    def __getitem__(self, name: str) -> Module:
        return self._items[name]

    def __setitem__(self, name: str, module: Module) -> None:
        _require_name("ModuleDict: the key", name)
        _require_module(self, name, module)
        self._items = {**self._items, name: module}

    def __delitem__(self, name: str) -> None:
        items = dict(self._items)
        del items[name]
        self._items = items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


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
        return (f"{c}, {m}, kernel_size=({kh}, {kw}), stride={self.stride}, padding={self.padding}"
                + ", bias=False" * (self.bias is None))


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
        return f"{in_}, {out}" + ", bias=False" * (self.bias is None)


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
