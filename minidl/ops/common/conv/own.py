"""Convolution algorithms of users, as `minidl.register_conv` keeps them, and what their launchers launch kernels with.

A launcher is the same on a GPU (ops/cuda/conv/own.py) and on the emulated one (lab/emulator/conv.py): each has its own
Launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..geometry import ConvGeometry

Launcher = Callable[..., None]
Refuses = Callable[[str, ConvGeometry, np.dtype], str | None]
Size = int | tuple[int, ...]

MAX_THREADS, MAX_GRID = 1024, 65535        # per block; blocks along a grid's second and third axis, on every GPU

# What a launcher is called with, by direction; the array before g is the one to be written
TAKES = {"y": ("launch", "x", "w", "b", "y", "g"), "dx": ("launch", "gy", "w", "dx", "g"),
         "dw": ("launch", "gy", "x", "dw", "g")}


class OwnConv(NamedTuple):
    """An algorithm: the text of its .cu file, includes pasted in, and its launchers by direction."""

    name: str
    file: str                              # what messages call the source
    text: str
    real: bool                             # it takes float64 arrays too: its numbers are REAL
    launchers: dict[str, Launcher]
    own_refuses: Refuses | None
    module: str                            # which registered it

    def refuses(self, direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
        """Why it cannot do a case, or None."""
        if dtype != np.float32 and not self.real:
            return f"its source has no REAL, so it takes float32, but the dtype is {dtype}"
        return self.own_refuses(direction, g, dtype) if self.own_refuses else None

    def run(self, direction: str, launch: Launch, *arguments: Any) -> Any:
        """The result of a direction for its arguments, of which the last is g."""
        g = arguments[-1]
        shape = {"y": (g.n, g.m, g.oh, g.ow), "dx": (g.n, g.c, g.h, g.w), "dw": (g.m, g.c, g.kh, g.kw)}[direction]
        out = launch.empty(shape)
        if g.n:
            self.launchers[direction](launch, *arguments[:-1], out, g)
        else:
            out.fill(0)                    # sums over no images
        return out


class Launch:
    """`launch(kernel, grid, block, *arguments)`: what a launcher of a convolution of one's own is given first."""

    def __init__(self, own: OwnConv, dtype: np.dtype):
        self.own, self.dtype = own, dtype

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

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An array of the convolution's dtype for sums in parts and the like, which is not set."""
        raise NotImplementedError

    def _start(self, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...],
               shared: int, constants: dict[str, Any]) -> None:
        raise NotImplementedError


OWN: dict[str, OwnConv] = {}
