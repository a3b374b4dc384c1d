"""Average pooling: by the report's kernel if windows tile the image (Krizhevsky 2009, section 6.3), except for large
windows and for images with gaps."""

from __future__ import annotations

import functools
from typing import NamedTuple

import cupy
import numpy as np

from ....common.geometry import PoolGeometry
from ....common.primitives import ACTIVATIONS, Array
from ... import launch
from .adaptive import adaptive_avg_pool2d
from .windows import shape_x, shape_y, spread

__all__ = ["avg_pool2d", "avg_pool2d_grad_act", "avg_pool2d_grad_x"]

BAND = 1024                                # columns of windows that a block of a tiled kernel should own
MIN_SHARED = 48 * 1024                     # bytes of shared memory that every device gives a block
MAX_AREA = 4096                            # of a window, whose columns a thread each sums

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("layers/pool/krizhevsky.cu", (launch.real(dtype), ("KH", kh), ("KW", kw), *act))
    for dtype in launch.C_NAME for kh, kw in ((2, 2), (4, 4), (3, 5), (28, 28))
    for act in ((), *((("ACT", act), ("AFTER", 1)) for act in ACTIVATIONS))]


class Tiling(NamedTuple):
    """How krizhevsky.cu walks over a pooling: `band` rows of windows per block, columns of a window `pitch` apart."""

    constants: tuple[launch.Constant, ...]
    blocks: int
    rows: int
    band: int
    pitch: int


def _tiles(g: PoolGeometry) -> bool:
    """Whether each element of the image is in one window."""
    return ((g.oh * g.kh, g.ow * g.kw, g.sh, g.sw) == (g.h, g.w, g.kh, g.kw)
            and not any((g.top, g.bottom, g.left, g.right)))


def in_squares(g: PoolGeometry) -> bool:
    """Whether windows are squares of 2 or 4 that tile the image: those that convolutions can be fused with."""
    return g.kh == g.kw and g.kh in (2, 4) and _tiles(g)


@functools.lru_cache(maxsize=4096)
def _tiling(g: PoolGeometry) -> Tiling | None:
    """For windows that tile the image and whose rows fit shared memory; None for all others."""
    if not _tiles(g):
        return None
    rows, band = g.n * g.c * g.oh, max(1, BAND // g.w)
    pitch = 32 * launch.blocks(band * g.ow, 32) + 32 // g.kw
    if g.kw * pitch * np.dtype(np.float64).itemsize > MIN_SHARED:
        return None
    return Tiling((("KH", g.kh), ("KW", g.kw)), launch.blocks(rows, band), rows, band, pitch)


@functools.lru_cache(maxsize=4096)
def _average(name: str, g: PoolGeometry, dtype: np.dtype,
             act: str | None = None) -> tuple[launch.Plan, tuple[int | bytes, ...]]:
    """The launch of avg_pool2d or avg_pool2d_grad_x, and the numbers it takes last."""
    grad = name.endswith("_grad_x")
    tiling = _tiling(g) if g.layout == "NCHW" else None
    if tiling is None or (g.kh * g.kw > MAX_AREA and tiling.blocks < launch.multiprocessors()):
        plan = spread(name, g, dtype, g.h * g.w if grad else g.oh * g.ow, act)
        return plan, (plan.struct,)
    columns, pitch = (tiling.band * g.ow, ()) if grad else (g.kw * tiling.pitch, (tiling.pitch,))
    after: tuple[launch.Constant, ...] = (("ACT", act), ("AFTER", 1)) if act else ()
    plan = launch.Plan("layers/pool/krizhevsky.cu", name.replace("2d", "2d_tiled"),
                       (launch.real(dtype), *tiling.constants, *after), (tiling.blocks,), launch.THREADS,
                       columns * dtype.itemsize)
    return plan, (tiling.rows, tiling.band, g.w, g.ow, *pitch)


def avg_pool2d(x: cupy.ndarray, g: PoolGeometry) -> Array:
    if g.layout == "NCHW" and (g.kh * g.kw > MAX_AREA or not x._c_contiguous) and _tiles(g):
        return adaptive_avg_pool2d(x, (g.oh, g.ow))
    y = launch.empty(shape_y(g), x.dtype)
    plan, numbers = _average("avg_pool2d", g, x.dtype)
    plan.start(x, y, *numbers)
    return y


def avg_pool2d_grad_x(gy: Array, g: PoolGeometry) -> Array:
    return avg_pool2d_grad_act(gy, None, g, None)


def avg_pool2d_grad_act(gy: Array, y: Array | None, g: PoolGeometry, act: str | None) -> Array:
    """The gradient of avg_pool2d(act(x)) by x, from y = act(x). Without act, that of avg_pool2d(x)."""
    dx = launch.empty(shape_x(g), gy.dtype)
    plan, numbers = _average("avg_pool2d_grad_x", g, gy.dtype, act)
    plan.start(gy, y, dx, *numbers)
    return dx
