"""Kernels of users, as `minidl.register_conv` and its like keep them, and what their launchers launch kernels with.

A launcher is the same on a GPU (ops/cuda/conv/own.py) and on the emulated one (lab/emulator/conv.py): each has its own
Launch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ....core.device import Array
from ..geometry import ConvGeometry, PoolGeometry

Launcher = Callable[..., None]
Refuses = Callable[..., str | None]
Size = int | tuple[int, ...]
Sizes = ConvGeometry | PoolGeometry | None     # of an op, if its arrays do not say all

MAX_THREADS, MAX_GRID = 1024, 65535        # per block; blocks along a grid's second and third axis, on every GPU
STRUCTS = {ConvGeometry: "Geometry", PoolGeometry: "Window"}           # of common.cuh, as which kernels take g


class Direction(NamedTuple):
    """What one launcher computes: the names of its arguments and of the array that it writes, that array's shape, and
    the same by the primitives of a backend k."""

    takes: str
    out: str
    shape: Callable[..., tuple[int, ...]]
    auto: Callable[..., Any]


def _elementwise(name: str) -> dict[str, Direction]:
    return {"y": Direction("x", "y", lambda x: x.shape, lambda k, x: getattr(k, name)(x)),
            "dx": Direction("gy y", "dx", lambda gy, y: gy.shape, lambda k, gy, y: getattr(k, f"{name}_grad_x")(gy, y))}


# What kernels of users may compute, by the op: directions
KINDS: dict[str, dict[str, Direction]] = {
    "conv2d": {
        "y": Direction("x w b g", "y", lambda x, w, b, g: (g.n, g.m, g.oh, g.ow), lambda k, *a: k.conv2d(*a)),
        "dx": Direction("gy w g", "dx", lambda gy, w, g: (g.n, g.c, g.h, g.w), lambda k, *a: k.conv2d_grad_x(*a)),
        "dw": Direction("gy x g", "dw", lambda gy, x, g: (g.m, g.c, g.kh, g.kw), lambda k, *a: k.conv2d_grad_w(*a))},
    "linear": {
        "y": Direction("x w b", "y", lambda x, w, b: (len(x), len(w)), lambda k, *a: k.linear(*a)),
        "dx": Direction("gy w", "dx", lambda gy, w: (len(gy), w.shape[1]), lambda k, *a: k.linear_grad_x(*a)),
        "dw": Direction("gy x", "dw", lambda gy, x: (gy.shape[1], x.shape[1]), lambda k, *a: k.linear_grad_w(*a))},
    "avg_pool2d": {
        "y": Direction("x g", "y", lambda x, g: (g.n, g.c, g.oh, g.ow), lambda k, *a: k.avg_pool2d(*a)),
        "dx": Direction("gy g", "dx", lambda gy, g: (g.n, g.c, g.h, g.w), lambda k, *a: k.avg_pool2d_grad_x(*a))},
    "max_pool2d": {
        "y": Direction("x g", "y", lambda x, g: (g.n, g.c, g.oh, g.ow), lambda k, x, g: k.max_pool2d(x, g)[0]),
        "dx": Direction("gy x y g", "dx", lambda gy, x, y, g: x.shape,
                        lambda k, gy, x, y, g: k.max_pool2d_grad_x(gy, k.max_pool2d(x, g)[1], g))},
    **{name: _elementwise(name) for name in ("relu", "sigmoid", "tanh")}}


def by_users(kind: str, algorithm: str, direction: str) -> str:
    """The name of the primitive that computes a direction by a user's kernels."""
    return f"{kind}_{direction}_by_{algorithm}"


def by(k: ModuleType, *, kind: str, algorithm: str, direction: str, values: dict[str, Array]) -> Array:
    """What a user's kernels compute in a direction of an op, of arrays and sizes by their names."""
    return getattr(k, by_users(kind, algorithm, direction))(
        *(values[name] for name in KINDS[kind][direction].takes.split()))


def users(k: ModuleType, *, kind: str, algorithm: str, g: Sizes = None, **inputs: Array) -> tuple[Any, Any]:
    """What the body of an op returns that is computed by a user's kernels; inputs: x, and of linear w and b.

    Raises ValueError for an algorithm that was not registered.
    """
    if algorithm not in REGISTERED[kind]:
        raise ValueError(f"{kind}: algorithm {algorithm!r} is not one of {', '.join(['auto', *REGISTERED[kind]])}; "
                         "your own is registered by minidl.register_linear, register_pool or register_activation")
    values = {**inputs, "g": g}
    result = by(k, kind=kind, algorithm=algorithm, direction="y", values=values)

    def backward(gy: Array, need: tuple[bool, ...]) -> tuple[Array, ...]:
        return tuple(None if not needed else k.linear_grad_b(gy) if name == "b" else
                     by(k, kind=kind, algorithm=algorithm, direction=f"d{name}",
                        values={**values, "gy": gy, "y": result}) for name, needed in zip(inputs, need))
    return result, backward


class OwnConv(NamedTuple):
    """An algorithm of a user's, of a convolution or of another of KINDS: the text of its .cu file, includes pasted in,
    and its launchers by direction. bias: whether that of y takes b; if not, b is added after it."""

    name: str
    file: str                              # what messages call the source
    text: str
    real: bool                             # it takes float64 arrays too: its numbers are REAL
    launchers: dict[str, Launcher]
    own_refuses: Refuses | None
    module: str                            # which registered it
    kind: str = "conv2d"
    bias: bool = True

    def takes(self, direction: str) -> tuple[str, ...]:
        """What a launcher is called with."""
        row = KINDS[self.kind][direction]
        *names, last = (name for name in row.takes.split() if name != "b" or self.bias)
        return ("launch", *names, *((row.out, last) if last == "g" else (last, row.out)))

    def refuses(self, direction: str, g: Sizes, dtype: np.dtype) -> str | None:
        """Why it cannot do a case, or None."""
        if dtype != np.float32 and not self.real:
            return f"its source has no REAL, so it takes float32, but the dtype is {dtype}"
        return self.own_refuses(direction, g, dtype) if self.own_refuses else None

    def run(self, direction: str, launch: Launch, *arguments: Array) -> Array:
        """The result of a direction for its arguments; if it takes g, that is the last one."""
        row = KINDS[self.kind][direction]
        given = dict(zip(row.takes.split(), arguments))
        out = launch.empty(row.shape(*arguments))
        bias = None if self.bias else given.pop("b", None)
        if all(a is None or a.size for a in arguments if not isinstance(a, tuple)):
            values = {"launch": launch, **given, row.out: out}
            self.launchers[direction](*(values[name] for name in self.takes(direction)))
        else:
            out.fill(0)                    # sums over no images
        if bias is not None:
            out += bias.reshape(-1, *[1] * (out.ndim - 2))
        return out


class Launch:
    """`launch(kernel, grid, block, *arguments)`, which a user's launcher takes as its first argument."""

    def __init__(self, own: OwnConv, dtype: np.dtype):
        self.own, self.dtype = own, dtype
        self.symbols: dict[str, Any] = {}  # what fills the memory that the file declares

    def __call__(self, kernel: str, grid: Size, block: Size, *arguments: object, shared: int = 0,
                 **constants: object) -> None:
        """Launch a kernel of the .cu file. arguments: arrays, None, numbers, and g for a `Geometry`.

        grid, block: ints, or up to three of them. shared: bytes of dynamic shared memory. constants: become -D.
        """
        grid, block = (size if isinstance(size, tuple) else (size,) for size in (grid, block))
        for what, sizes in (("grid", grid), ("block", block)):
            if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and n > 0 for n in sizes):
                raise ValueError(f"{self.own.name}: the {what} of {kernel} is {sizes} but must be 1 to 3 ints of at "
                                 "least 1; -(-count // threads) rounds up")
        if math.prod(block) > MAX_THREADS or max(grid[1:], default=1) > MAX_GRID:
            raise ValueError(f"{self.own.name}: {kernel} has the grid {grid} and the block {block}, but a block has at "
                             f"most {MAX_THREADS} threads, and a grid's second and third axis {MAX_GRID} blocks; "
                             "spread the work otherwise")
        self._start(kernel, grid, block, arguments, shared, constants)

    def copy_to_symbol(self, symbol: str, array: Array) -> None:
        """Fill __constant__ or __device__ memory of the file, as cudaMemcpyToSymbol does, for the launches that follow.

        Raises ValueError for a name that the file does not declare so.
        """
        if not re.search(rf"__(?:constant|device)__[^;{{(]*\b{symbol}\b", self.own.text):
            raise ValueError(f"{self.own.name}: {self.own.file} declares no __constant__ and no __device__ memory "
                             f"{symbol!r}; correct the name")
        self.symbols[symbol] = array

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An array of the inputs' dtype, not initialised, for partial sums and the like."""
        raise NotImplementedError

    def _start(self, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...],
               shared: int, constants: dict[str, Any]) -> None:
        raise NotImplementedError


REGISTERED: dict[str, dict[str, OwnConv]] = {kind: {} for kind in KINDS}     # by kind and name
OWN = REGISTERED["conv2d"]
