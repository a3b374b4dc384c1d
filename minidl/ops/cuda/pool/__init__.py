"""Pooling on CuPy arrays: x (n,c,h,w), y (n,c,oh,ow); g is an ops.window.PoolGeometry."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from .. import launch

Array = Any

THREADS = 256
BAND = 1024                                # columns of windows that a block of a tiled kernel should own
SHARED = 48 * 1024                         # bytes of shared memory that every device gives a block

ACTS = [(("ACT", act),) for act in ("tanh", "sigmoid", "relu")]

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *[("pool/pool.cu", (launch.real(dtype), *act)) for dtype in launch.C_NAME for act in ((), *ACTS)],
    *[("pool/krizhevsky.cu", (launch.real(dtype), ("KH", kh), ("KW", kw), *act))
      for dtype in launch.C_NAME for kh, kw in ((2, 2), (4, 4), (3, 5), (28, 28)) for act in ((), *ACTS)],
]


class Tiling(NamedTuple):
    """How krizhevsky.cu walks over a pooling: `band` rows of windows a block, columns of a window `pitch` apart."""

    constants: tuple[launch.Constant, ...]
    blocks: int
    rows: int
    band: int
    pitch: int


def _tiles(g: Any) -> bool:
    """Whether each element of the image is in one window."""
    return ((g.oh * g.kh, g.ow * g.kw, g.sh, g.sw) == (g.h, g.w, g.kh, g.kw)
            and not any((g.top, g.bottom, g.left, g.right)))


def in_squares(g: Any) -> bool:
    """Whether windows are squares of 2 or 4 that tile the image: those that convolutions can be fused with."""
    return g.kh == g.kw and g.kh in (2, 4) and _tiles(g)


@functools.lru_cache(maxsize=4096)
def _tiling(g: Any) -> Tiling | None:
    """For windows that tile the image and whose rows fit shared memory; None for all others."""
    if not _tiles(g):
        return None
    rows, band = g.n * g.c * g.oh, max(1, BAND // g.w)
    pitch = 32 * launch.blocks(band * g.ow, 32) + 32 // g.kw
    if g.kw * pitch * np.dtype(np.float64).itemsize > SHARED:
        return None
    return Tiling((("KH", g.kh), ("KW", g.kw)), launch.blocks(rows, band), rows, band, pitch)


def _run(name: str, g: Any, y: Array, *arrays: Array, constants: tuple[launch.Constant, ...] = ()) -> None:
    """A kernel of pool.cu; the first result's elements are spread over the grid."""
    grid = min(launch.blocks(y.size, THREADS), 16 * launch.multiprocessors())
    run = launch.kernel("pool/pool.cu", name, launch.real(y.dtype), *constants)
    run((grid,), (THREADS,), *arrays, launch.by_value("Window", g))


def avg_pool2d(x: Array, g: Any) -> Array:
    y, tiling = launch.empty((g.n, g.c, g.oh, g.ow), x.dtype), _tiling(g)
    if tiling is None:
        _run("avg_pool2d", g, y, x, y)
        return y
    run = launch.kernel("pool/krizhevsky.cu", "avg_pool2d_tiled", launch.real(x.dtype), *tiling.constants)
    run((tiling.blocks,), (THREADS,), x, y, tiling.rows, tiling.band, g.w, g.ow, tiling.pitch,
        shared=g.kw * tiling.pitch * x.itemsize)
    return y


def avg_pool2d_grad_x(gy: Array, g: Any) -> Array:
    dx, tiling = launch.empty((g.n, g.c, g.h, g.w), gy.dtype), _tiling(g)
    if tiling is None:
        _run("avg_pool2d_grad_x", g, dx, gy, dx)
        return dx
    run = launch.kernel("pool/krizhevsky.cu", "avg_pool2d_tiled_grad_x", launch.real(gy.dtype), *tiling.constants)
    run((tiling.blocks,), (THREADS,), gy, dx, tiling.rows, tiling.band, g.w, g.ow,
        shared=tiling.band * g.ow * gy.itemsize)
    return dx


def avg_pool2d_grad_act(gy: Array, y: Array, g: Any, act: str) -> Array:
    """The gradient of avg_pool2d(act(x)) by x, from y = act(x)."""
    dx, tiling, constant = launch.empty((g.n, g.c, g.h, g.w), gy.dtype), _tiling(g), ("ACT", act)
    if tiling is None:
        _run("avg_pool2d_grad_act", g, dx, gy, y, dx, constants=(constant,))
        return dx
    run = launch.kernel("pool/krizhevsky.cu", "avg_pool2d_tiled_grad_act", launch.real(gy.dtype), *tiling.constants,
                        constant)
    run((tiling.blocks,), (THREADS,), gy, y, dx, tiling.rows, tiling.band, g.w, g.ow,
        shared=tiling.band * g.ow * gy.itemsize)
    return dx


def max_pool2d(x: Array, g: Any) -> tuple[Array, Array]:
    """(y, index): index p*kw + q says which element of the window won."""
    y, index = launch.empty((g.n, g.c, g.oh, g.ow), x.dtype), launch.empty((g.n, g.c, g.oh, g.ow), np.int32)
    _run("max_pool2d", g, y, x, y, index)
    return y, index


def max_pool2d_grad_x(gy: Array, index: Array, g: Any) -> Array:
    dx = launch.empty((g.n, g.c, g.h, g.w), gy.dtype)
    _run("max_pool2d_grad_x", g, dx, gy, index, dx)
    return dx
