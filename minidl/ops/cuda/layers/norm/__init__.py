"""Normalisation on CuPy arrays: two launches each way, or one if a team of threads owns a set of values.

An array with gaps is copied once, and not by each launch.
"""

from __future__ import annotations

import functools

import cupy
import numpy as np

from ....common.geometry.sets import NormGeometry
from ....common.primitives import Array
from ... import launch
from ...reduce import sum_first

__all__ = ["batch_norm", "normalize", "normalize_by", "normalize_by_grad", "normalize_by_grad_x", "normalize_grad",
           "normalize_grad_x"]

FILE, THREADS = "layers/norm/norm.cu", launch.THREADS
ELEMENTS_PER_THREAD = 16                   # a set's values get more teams until a thread has this many,
MAX_SPLITS, MAX_BLOCKS = 64, 1024          # and at most MAX_SPLITS teams; more if sets are few (MAX_BLOCKS)
NEIGHBOURS = 32                            # sets with neighbouring values that threads share, at most
LINE = 16                                  # bytes that a thread reads at once, if a channel's values are contiguous

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype), ("WIDE", wide), *fused)) for dtype in launch.C_NAME
    for wide in (1, LINE // dtype.itemsize)
    for fused in ((), *((("FUSED", 1), ("ACT", act)) for act in ("relu", "tanh", "gelu", "softplus")))]


Sizes = tuple[int, int, int, NormGeometry, np.dtype, bool]     # see sizes_of


def sizes_of(g: NormGeometry, *arrays: Array | None) -> Sizes:
    """What plans for arrays of a geometry depend on: (outer, sets, inner), as which a kernel takes them, the geometry,
    the dtype, and whether all start on multiples of 16 bytes."""
    pointers = [a.data.ptr for a in arrays if a is not None]           # type: ignore[attr-defined]
    outer, sets = (g.n, g.groups) if g.across else (1, g.n * g.groups)
    return (outer, sets, g.inner, g, arrays[0].dtype,                  # type: ignore[union-attr]
            not any(pointer % LINE for pointer in pointers))


@functools.lru_cache(maxsize=4096)
def plan_of(name: str, sizes: Sizes, fused: tuple[launch.Constant, ...] = ()) -> launch.Plan:
    """The plan of a kernel of that name; its sets have as many teams as the plan has splits. The sizes alone decide."""
    outer, sets, inner, g, dtype, aligned = sizes
    size = outer * inner
    wide = LINE // dtype.itemsize if g.across and inner % (LINE // dtype.itemsize) == 0 else 1
    near = 1 if inner > 1 else min(NEIGHBOURS, 1 << max(0, sets - 1).bit_length())
    tiles, lanes = launch.blocks(sets, near), launch.lanes_per_row(size)
    if near > 1:                           # a block, or a warp if that leaves a thread up to 16 values
        lanes = (THREADS if size > ELEMENTS_PER_THREAD * (32 // near) else 32) // near
    splits = 1
    if near * lanes == THREADS:
        splits = min(max(MAX_SPLITS, MAX_BLOCKS // tiles), launch.blocks(size, ELEMENTS_PER_THREAD * lanes))
    chunk = launch.blocks(launch.blocks(size, splits), wide) * wide
    splits = launch.blocks(size, chunk)
    struct = launch.by_value(
        "Norm", outer=outer, sets=sets, inner=inner, channels=g.channels, spread=g.spread, own=int(g.across),
        splits=splits, chunk=chunk, lanes=lanes, near=near)
    return launch.Plan(FILE, name, (launch.real(dtype), ("WIDE", wide if aligned else 1), *fused),
                       (launch.blocks(tiles * splits * near * lanes, THREADS),), THREADS, 0, struct, splits=splits)


def normalized(x: Array, w: Array | None, b: Array | None, running: tuple[Array | None, Array | None],
               momentum: float, eps: float, g: NormGeometry, other: Array | None = None,
               fused: tuple[launch.Constant, ...] = ()) -> tuple[Array, Array, Array]:
    """(y, mean, rstd), with what is fused to y."""
    running = running if g.size else (None, None)      # without values there is nowhere to move
    x = launch.dense(x)
    y, mean, rstd = (launch.empty(shape, x.dtype) for shape in (x.shape, g.sets, g.sets))
    sizes = sizes_of(g, x, other, y)
    plan, parts = plan_of("normalize", sizes, fused), None
    if plan.splits > 1:
        parts = launch.empty((2, plan.splits, mean.size), x.dtype)
        plan_of("norm_moments", sizes).start(x, parts, plan.struct)
    plan.start(x, other, w, b, parts, y, mean, rstd, *running, momentum, eps, plan.struct)
    return y, mean, rstd


def normalize(x: Array, w: Array | None, b: Array | None, eps: float,
              g: NormGeometry) -> tuple[Array, Array, Array]:
    """(y, mean, rstd): y = (x - mean) * rstd * w + b, with rstd = 1 / root of (variance + eps), both once per set."""
    return normalized(x, w, b, (None, None), 0.0, eps, g)


def batch_norm(x: Array, w: Array | None, b: Array | None, running_mean: Array, running_var: Array, momentum: float,
               eps: float, g: NormGeometry) -> tuple[Array, Array, Array]:
    """As normalize; the running values move by `momentum` of their way to the mean and the unbiased variance.

    If there are no values, they do not move.
    """
    return normalized(x, w, b, (running_mean, running_var), momentum, eps, g)


def normalize_by(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                 g: NormGeometry) -> Array:
    """(x - mean) / root of (var + eps) * w + b, by what is known of each set."""
    y = launch.empty(x.shape, x.dtype)
    plan = plan_of("normalize_by", sizes_of(g, x, y))
    plan.start(x, mean, var, w, b, y, eps, plan.struct)
    return y


def normalize_by_grad_x(gy: Array, var: Array, w: Array | None, eps: float, g: NormGeometry) -> Array:
    """gy / root of (var + eps) * w"""
    gx = launch.empty(gy.shape, gy.dtype)
    plan = plan_of("normalize_by_grad", sizes_of(g, gy, gx))
    plan.start(gy, None, None, var, w, gx, None, eps, plan.struct)
    return gx


def normalize_by_grad(gy: Array, x: Array, mean: Array, var: Array, w: Array | None, eps: float,
                      g: NormGeometry) -> tuple[Array, Array, Array]:
    """The gradients by x, weight (the sum of gy * z over each channel, z without weight) and bias (the sum of gy)."""
    gx = launch.empty(gy.shape, gy.dtype)
    plan = plan_of("normalize_by_grad", sizes_of(g, gy, x, gx))
    sums = launch.empty((plan.splits, 2, *g.sets), gy.dtype)
    plan.start(gy, x, mean, var, w, gx, sums, eps, plan.struct)
    gw, gb = added_up(sums)
    return gx, gw, gb


def normalize_grad_x(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry) -> Array:
    """rstd * (gz - mean of gz - z * mean of (gz * z)) over each set, with gz = gy * w, z = (x - mean) * rstd."""
    return gradient(gy, x, w, mean, rstd, g, None, None)


def normalize_grad(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                   g: NormGeometry) -> tuple[Array, Array, Array]:
    """The gradients by x, weight (the sum of gy * z over each channel) and bias (the sum of gy)."""
    if g.across:                           # channels are the sets
        gw, gb = launch.empty(g.affine, x.dtype), launch.empty(g.affine, x.dtype)
        return gradient(gy, x, w, mean, rstd, g, gw, gb), gw, gb
    gy, x = launch.dense(gy), launch.dense(x)
    gx = gradient(gy, x, w, mean, rstd, g, None, None)
    sizes = gx.size // (g.channels * g.spread), g.channels, g.spread, g, x.dtype, False
    plan = plan_of("norm_products", sizes)
    sums = launch.empty((plan.splits, 2, *g.affine), x.dtype)
    plan.start(gy, x, None, mean, rstd, sums, g.inner, plan.struct)
    gw, gb = added_up(sums)
    return gx, gw, gb


def added_up(sums: cupy.ndarray) -> cupy.ndarray:
    """(splits, ...) -> (...)"""
    return sums[0] if len(sums) == 1 else sum_first(sums)


def gradient(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry, gw: Array | None,
             gb: Array | None, sums: Array | None = None) -> Array:
    """The gradient by x. gw, gb: if they are given, they are filled. sums: as norm_products leaves them, if it has
    run."""
    gy, x, gx = launch.dense(gy), launch.dense(x), launch.empty(x.shape, x.dtype)
    sizes = sizes_of(g, x, gy, gx)
    plan = plan_of("normalize_grad", sizes)
    if plan.splits > 1 and sums is None:
        sums = launch.empty((plan.splits, 2, *g.sets), x.dtype)
        plan_of("norm_products", sizes).start(gy, x, None if g.across else w, mean, rstd, sums, 0, plan.struct)
    plan.start(gy, x, w, mean, rstd, sums, gx, gw, gb, plan.struct)
    return gx
