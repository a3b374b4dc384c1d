"""Convolutions of random numbers: what is right in each direction, by the formula in float64, and how nearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minidl.lab.check import product_bound
from minidl.ops import cpu
from minidl.ops.common.geometry import ConvGeometry

DIRECTIONS = ("y", "dx", "dw")


class Problem(NamedTuple):
    """A shape's arrays; the exact result of each direction, and the sum of the squares of its products."""

    g: ConvGeometry
    x: np.ndarray
    w: np.ndarray
    b: np.ndarray | None
    gy: np.ndarray
    exact: dict[str, np.ndarray]
    squares: dict[str, np.ndarray]

    def length(self, direction: str) -> int:
        """The number of products in one sum."""
        g = self.g
        return {"y": g.c * g.kh * g.kw + 1, "dx": g.m * g.kh * g.kw, "dw": g.n * g.oh * g.ow}[direction]

    def inputs(self, direction: str) -> tuple[np.ndarray | None, ...]:
        """What a direction takes before g."""
        return {"y": (self.x, self.w, self.b), "dx": (self.gy, self.w), "dw": (self.gy, self.x)}[direction]

    def on_cuda(self, direction: str) -> list[Any]:
        """The same on the GPU."""
        import cupy

        return [None if a is None else cupy.asarray(a) for a in self.inputs(direction)]

    def bound(self, direction: str, precision: str = "fp32", spread: bool = False) -> np.ndarray:
        """How far each element of a result may be from the exact one. spread: if errors do not come from an element's
        own products alone, see `spread_bound`."""
        most = product_bound(precision, self.length(direction), self.squares[direction], self.exact[direction],
                             self.x.dtype.type)
        return most + spread_bound(direction, self.x, self.w, self.gy) if spread else most


def solved(g: ConvGeometry, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, gy: np.ndarray) -> Problem:
    """The Problem of these arrays; g names an algorithm of the CPU."""
    problem = Problem(g, x, w, b, gy, {}, {})
    calls: dict[str, Callable[..., np.ndarray]] = {"y": cpu.conv2d, "dx": cpu.conv2d_grad_x, "dw": cpu.conv2d_grad_w}
    for direction, call in calls.items():
        inputs = [None if a is None else a.astype(float) for a in problem.inputs(direction)]
        problem.exact[direction] = call(*inputs, g)
        problem.squares[direction] = call(*[None if a is None else a * a for a in inputs], g)
    return problem


def drawn(g: ConvGeometry, seed: int, dtype: type[np.float32 | np.float64]) -> Problem:
    """A Problem of normal numbers, with a bias if the seed is odd."""
    rng = np.random.default_rng(seed)
    x, w, b, gy = (rng.standard_normal(shape, dtype) for shape in
                   ((g.n, g.c, g.h, g.w), (g.m, g.c, g.kh, g.kw), (g.m,), (g.n, g.m, g.oh, g.ow)))
    return solved(g, x, w, b if seed % 2 else None, gy)


def spread_bound(direction: str, x: np.ndarray, w: np.ndarray, gy: np.ndarray) -> np.ndarray:
    """How far an element may be from the exact one because of its neighbours, if they are transformed together.

    Each of the three transforms has an error of about eps/2 of the norm of what it transforms, spread evenly (their
    sizes count by the root of a logarithm). So an element errs by a share of S = root of the sum, over channels (for
    dw: images), of |x|^2 |w|^2, whole maps and filters. Of 5,400 results of random shapes the largest share was 10 eps;
    16 are allowed. S is some ten thousands at most if a product is about 1: a missing product still shows.
    """
    of_x, of_w, of_gy = (np.square(a.astype(float)).sum((2, 3)) for a in (x, w, gy))        # (n,c), (m,c), (n,m)
    squares = {"y": lambda: of_x @ of_w.T, "dx": lambda: of_gy @ of_w, "dw": lambda: of_gy.T @ of_x}[direction]()
    return 16 * float(np.finfo(x.dtype).eps) * np.sqrt(squares)[:, :, None, None]
