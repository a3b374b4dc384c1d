"""What a net is made of: its layers in the order they run, with shapes, parameters and multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from ..core.contexts import replaced
from ..core.device import owner
from ..core.mode import Listener, mode, no_grad
from ..core.tensor import Tensor
from .module import Module, switched

T = TypeVar("T")

MULTIPLY_ADDS: dict[str, Callable[..., int]] = {       # of an op, from the shapes of its result and its inputs
    "conv2d": lambda y, x, w, *_: math.prod(y) * math.prod(w[1:]),
    "conv_transpose2d": lambda y, x, w, *_: math.prod(x) * math.prod(w[1:]),
    "linear": lambda y, x, w, *_: math.prod(y) * x[-1],
    "recurrence": lambda y, gx, w, *_: math.prod(gx) * w[1],
    "matmul": lambda y, a, b: math.prod(y) * a[-1],
    "scaled_dot_product_attention": lambda y, q, k, *_: math.prod(y[:-1]) * k[-2] * (q[-1] + y[-1]),
}
_NAME_WIDTH = 26                           # characters of a layer's path and of its kind: a longer one is cut


@dataclass(frozen=True)
class Row:
    """One call of a Module: its path and depth, its kind with its facts, the shapes of its result, the numbers that it
    holds itself (not its children, and no row before), and the multiply-adds of ops that it calls itself, for one
    image."""

    path: str
    depth: int
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    buffers: int
    multiply_adds: int
    again: bool                            # all that it holds was in rows before: it ran, or its parameters are tied


@dataclass(frozen=True, repr=False)
class Summary:
    """What `summary` found; printed as a table. Bytes and multiply-adds are those of one image."""

    rows: tuple[Row, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    parameters: int                        # that require a gradient
    buffers: int                           # numbers that require none: running means, frozen parameters
    multiply_adds: int
    parameter_bytes: int
    value_bytes: int                       # of all results of ops that are not views

    @property
    def neurons(self) -> int:
        """The outputs of layers that multiply by weights, as papers count them. Of several results of a layer the first
        is its output: the others are states, or weights of attention. What a layer computes on the way, such as the
        projections of MultiheadAttention's inputs, does not count."""
        return sum(math.prod(row.shapes[0]) for row in self.rows if row.multiply_adds and row.shapes)

    def __repr__(self) -> str:
        lines = [("layer", "kind", "output", "parameters", "multiply-adds")]
        for row in self.rows:
            own = [f"{row.parameters:,}"] * (row.parameters > 0) + [f"({row.buffers:,} fixed)"] * (row.buffers > 0)
            lines.append(("  " * row.depth + (row.path.rpartition(".")[2] or "net"), row.kind,
                          ", ".join(map(_shape, row.shapes)), "as above" if row.again else " ".join(own),
                          f"{row.multiply_adds:,}" if row.multiply_adds else ""))
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        widths[0] = min(widths[0], _NAME_WIDTH)
        widths[1] = min(widths[1], _NAME_WIDTH)
        table = ["  ".join([_cut(line[0], widths[0]), _cut(line[1], widths[1]), line[2].ljust(widths[2]),
                            line[3].rjust(widths[3]), line[4].rjust(widths[4])]).rstrip() for line in lines]
        rule = "-" * max(map(len, table))
        return "\n".join([
            table[0], rule, *table[1:], rule,
            f"input           {', '.join(map(_shape, self.input_shapes))}, n images",
            f"parameters      {self.parameters:,}" + (f" and {self.buffers:,} fixed" if self.buffers else ""),
            f"multiply-adds   {self.multiply_adds:,} per image",
            f"neurons         {self.neurons:,} per image, outputs of layers that multiply",
            f"memory          {_size(self.parameter_bytes)} for parameters, as much again for gradients, and for "
            "velocities",
            f"                {_size(self.value_bytes)} per image for results of layers, and training as much for "
            "their gradients"])


def summary(net: Module, *inputs: tuple[int, ...] | Tensor, **named: tuple[int, ...] | Tensor) -> Summary:
    """Run a net on one image of zeros and say what ran: a table of its layers.

    inputs, named: the shape of one input without the axis of images, (c,h,w), one for each argument of forward, by
    position or by name; or Tensors that hold exactly one image. That axis is the first, or the second if a layer over
    sequences has the axis of steps first (batch_first=False); inputs that differ in this are given as Tensors. The
    zeros are floating; if the net refuses these, as nets of token ids do, they are integers. The net runs in
    evaluation, off the tape, on its own device; it is left as it was.

    Raises TypeError for what is neither a shape nor a Tensor, ValueError if there is no input, and whatever the net
    raises for a shape that does not fit.

    >>> from minidl import nn
    >>> nn.summary(nn.Sequential(hidden=nn.Linear(3, 4), act=nn.Tanh(), output=nn.Linear(4, 2)), (3,))
    layer     kind          output  parameters  multiply-adds
    ---------------------------------------------------------
    net       Sequential    (n, 2)
      hidden  Linear (4,3)  (n, 4)          16             12
      act     Tanh          (n, 4)
      output  Linear (2,4)  (n, 2)          10              8
    ---------------------------------------------------------
    input           (n, 3), n images
    parameters      26
    multiply-adds   20 per image
    neurons         6 per image, outputs of layers that multiply
    memory          104 B for parameters, as much again for gradients, and for velocities
                    40 B per image for results of layers, and training as much for their gradients
    """
    if not inputs and not named:
        raise ValueError("summary: got no input but needs the shape of one, without the axis of images: "
                         "summary(net, (3, 32, 32))")
    tensors = list(net.named_tensors())
    watcher, examples = _watched(net, inputs, named)
    trained = [t for _, t in tensors if t.requires_grad]
    parameters = sum(t.size for t in trained)
    return Summary(tuple(_rows(net, watcher.calls)), tuple(example.shape for example in examples), parameters,
                   sum(t.size for _, t in tensors) - parameters, sum(call.multiply_adds for call in watcher.calls),
                   sum(t.size * t.dtype.itemsize for t in trained), watcher.value_bytes)


def _watched(net: Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Watcher, list[Tensor]]:
    """What ran for one image, and the net's inputs."""
    like = next((t for _, t in net.named_tensors()), None)

    def run(axis: int, ids: bool) -> tuple[Watcher, list[Tensor]]:
        example = partial(_example, like=like, axis=axis, ids=ids)
        given, by_name, watcher = [*map(example, inputs)], {name: example(named[name]) for name in named}, Watcher(net)
        with watching(net, watcher):
            net(*given, **by_name)
        for call in watcher.calls:
            if _steps_first(call.module) and call.given[1:2] not in ((), (1,)):
                raise _Several(f"summary: {_kind(call.module)} has the axis of steps first, and got {call.given[1]} "
                               "sequences of one image; build it with batch_first=True")
        return watcher, [*given, *by_name.values()]

    refused = ""
    for axis in (0, 1) if any(map(_steps_first, net.modules())) else (0,):
        try:
            return floats_or_ids(partial(run, axis))
        except _Several as error:          # or the axis of images is the other one
            refused = str(error)
    raise ValueError(refused)


def _rows(net: Module, calls: list[_Call]) -> Iterator[Row]:
    """What each call of a Module is in the table; a Tensor counts where it is first held."""
    paths, seen = {id(module): path for path, module in net.named_modules()}, set[int]()
    for call in calls:
        held = _own_tensors(call.module)
        new = [t for t in held if id(t) not in seen]
        trained = sum(t.size for t in new if t.requires_grad)
        yield Row(paths[id(call.module)], call.depth, _kind(call.module), call.shapes, trained,
                  sum(t.size for t in new) - trained, call.multiply_adds, bool(held) and not new)
        seen |= {*map(id, held)}


def floats_or_ids(run: Callable[[bool], T]) -> T:
    """run(False), with floating inputs; if these are refused, run(True), with integers, as nets of token ids need
    them. If these are refused, too, raises the first error."""
    try:
        return run(False)
    except (TypeError, ValueError, IndexError) as refused:
        with suppress(Exception):
            return run(True)
        raise refused


@contextmanager
def watching(net: Module, watcher: Watcher) -> Iterator[None]:
    """Within this, a watcher is told of the ops and modules of each run of the net. The net is in evaluation, off the
    tape, and afterwards as before."""
    modules = dict(net.named_modules())
    own = {path: vars(module).get("forward") for path, module in modules.items()}
    try:
        for module in modules.values():
            vars(module)["forward"] = watcher.watched(module, module.forward)      # unseen by compiled steps
        with replaced(mode, "recorder", watcher), switched([net], False), no_grad():
            yield
    finally:
        for path, module in modules.items():
            if own[path] is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = own[path]


class _Several(ValueError):
    """There is more than one image."""


def _steps_first(module: Module) -> bool:
    """Whether a layer's inputs have the axis of steps first, and then that of images."""
    return getattr(module, "batch_first", True) is False


def _example(given: object, like: Tensor | None, axis: int, ids: bool) -> Tensor:
    """One image of zeros, of the net's dtype and on its device; integers, if they are ids. axis: that of images."""
    if isinstance(given, Tensor):
        if 1 not in given.shape[:axis + 1]:            # beside sequences there may be inputs of another order
            raise _Several(f"summary: the input has shape {given.shape} but must hold one image, "
                           f"({'n, ' * axis}1, ...); pass x[{':, ' * axis}:1]")
        return given
    shape = tuple(given) if isinstance(given, (tuple, list)) else None
    if shape is None or not all(isinstance(n, (int, np.integer)) and n > 0 for n in shape):
        raise TypeError(f"summary: the input is {given!r} but must be a shape without the axis of images, such as "
                        "(3, 32, 32), or a Tensor of one image")
    dtype = like.dtype if like is not None and like.dtype.kind == "f" else np.dtype(np.float32)
    zeros = np.zeros((*shape[:axis], 1, *shape[axis:]), np.int64 if ids else dtype)
    return Tensor(zeros, device=like.device if like is not None else "cpu")


@dataclass
class _Call:
    module: Module
    depth: int
    given: tuple[int, ...]                 # the shape of the first input
    shapes: tuple[tuple[int, ...], ...] = ()
    multiply_adds: int = 0


class Watcher(Listener):
    """Is told of each op, and of each call of a Module by its `watched` forward."""

    recording = True

    def __init__(self, net: Module) -> None:
        # What the net holds, and what is computed of this alone, once for all images; kept, so that ids stay theirs.
        self.fixed: dict[int, object] = {id(each): each for _, t in net.named_tensors() for each in [owner(t._data)]}
        self.calls: list[_Call] = []
        self.open: list[_Call] = []
        self.value_bytes = 0

    def watched(self, module: Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A Module's forward, with a note before and after it."""
        def call(*args: object, **kwargs: object) -> Any:
            noted = _Call(module, len(self.open), next(iter(_tensor_shapes(args)), ()))
            self.calls.append(noted)
            self.open.append(noted)
            try:
                result = forward(*args, **kwargs)
            finally:
                self.open.pop()
            noted.shapes = tuple(_tensor_shapes(result))
            return result
        return call

    def run(self, name: str, body: Callable[..., Any], k: ModuleType, arrays: list[Any],
            options: dict[str, Any]) -> Any:
        y, backward = body(k, *arrays, **options)
        if all(a is None or id(owner(a)) in self.fixed for a in arrays):
            self.fixed[id(owner(y))] = owner(y)
            return y, backward
        if name in MULTIPLY_ADDS:
            self.open[-1].multiply_adds += MULTIPLY_ADDS[name](
                y.shape, *(None if a is None else a.shape for a in arrays))
        if not any(owner(y) is owner(a) for a in arrays):
            self.value_bytes += y.nbytes
        return y, backward


def _tensor_shapes(result: object) -> list[tuple[int, ...]]:
    """The shapes of all Tensors in a result."""
    if isinstance(result, Tensor):
        return [result.shape]
    values = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    return [shape for each in values for shape in _tensor_shapes(each)]


def _kind(module: Module) -> str:
    """A Module's class, and the shapes of the Tensors that it holds itself, except vectors: filters, weights."""
    held = [t.shape for t in _own_tensors(module) if t.ndim > 1]
    return " ".join([type(module).__name__, *(f"({','.join(map(str, shape))})" for shape in held)])


def _own_tensors(module: Module) -> list[Tensor]:
    """The Tensors that no child holds."""
    below = {id(t) for _, child in module.named_children() for _, t in child.named_tensors()}
    return [t for _, t in module.named_tensors() if id(t) not in below]


def _shape(shape: tuple[int, ...]) -> str:
    """With n for the axis of images: the first, or the one after steps, or after the layers of a state."""
    axis = int(len(shape) > 1 and shape[0] != 1 == shape[1])
    return f"({', '.join([*map(str, shape[:axis]), 'n', *map(str, shape[axis + 1:])])})" if shape else "()"


def _cut(text: str, width: int) -> str:
    return (text if len(text) <= width else text[:width - 3] + "...").ljust(width)


def _size(count: int) -> str:
    """Bytes, in a unit that leaves few digits.

    >>> _size(640), _size(58_408), _size(3 * 2**30)
    ('640 B', '57.0 KiB', '3.0 GiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
