"""Normalisation on CuPy arrays: two launches each way, or one where a team of threads owns a set of values."""

from __future__ import annotations

import functools
from typing import Any

import cupy

from ...common.primitives import Array
from ...common.sets import NormGeometry
from .. import launch
from ..reduce import sum_first

__all__ = ["batch_norm", "normalize", "normalize_by", "normalize_grad", "normalize_grad_x"]

FILE, THREADS = "norm/norm.cu", launch.THREADS
ELEMENTS_PER_THREAD = 16                   # up to which a set's values have more teams,
MAX_SPLITS = 64                            # and so many teams at most

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype), *fused)) for dtype in launch.C_NAME
    for fused in ((), *((("FUSED", 1), ("ACT", act)) for act in ("relu", "tanh", "softplus")))]


@functools.lru_cache(maxsize=4096)
def _plan(outer: int, sets: int, inner: int, g: NormGeometry) -> tuple[int, int, bytes]:
    """(blocks, teams per set, the struct Norm) for an array (outer, sets, inner). The sizes alone decide."""
    size = outer * inner
    lanes = launch.lanes_per_row(size, inner=1 if inner > 1 or sets == 1 else 2)       # 1: neighbours are other sets'
    splits = min(MAX_SPLITS, launch.blocks(size, ELEMENTS_PER_THREAD * lanes)) if lanes in (1, THREADS) else 1
    chunk = launch.blocks(size, splits)
    splits = launch.blocks(size, chunk)
    return launch.blocks(sets * splits * lanes, THREADS), splits, launch.by_value(
        "Norm", outer=outer, sets=sets, inner=inner, channels=g.channels, spread=g.spread, own=int(g.across),
        splits=splits, chunk=chunk, lanes=lanes)


def of_sets(g: NormGeometry) -> tuple[int, int, bytes]:
    return _plan(g.n, g.groups, g.inner, g) if g.across else _plan(1, g.n * g.groups, g.inner, g)


def run(name: str, grid: int, x: Array, *arguments: Any, fused: tuple[launch.Constant, ...] = ()) -> None:
    launch.kernel(FILE, name, launch.real(x.dtype), *fused)((grid,), (THREADS,), *arguments)


def normalized(x: Array, w: Array | None, b: Array | None, running: tuple[Array | None, Array | None],
               momentum: float, eps: float, g: NormGeometry, other: Array | None = None,
               fused: tuple[launch.Constant, ...] = ()) -> tuple[Array, Array, Array]:
    """(y, mean, rstd), with what is fused to y."""
    running = running if g.size else (None, None)      # without values there is nowhere to move
    grid, splits, struct = of_sets(g)
    y, mean, rstd = (launch.empty(shape, x.dtype) for shape in (x.shape, g.sets, g.sets))
    parts = launch.empty((2, splits, mean.size), x.dtype) if splits > 1 else None
    if parts is not None:
        run("norm_moments", grid, x, x, parts, struct)
    run("normalize", grid, x, x, other, w, b, parts, y, mean, rstd, *running, momentum, eps, struct, fused=fused)
    return y, mean, rstd


def normalize(x: Array, w: Array | None, b: Array | None, eps: float,
              g: NormGeometry) -> tuple[Array, Array, Array]:
    """(y, mean, rstd): y = (x - mean) * rstd * w + b, with rstd = 1 / root of (variance + eps), both once per set."""
    return normalized(x, w, b, (None, None), 0.0, eps, g)


def batch_norm(x: Array, w: Array | None, b: Array | None, running_mean: Array, running_var: Array, momentum: float,
               eps: float, g: NormGeometry) -> tuple[Array, Array, Array]:
    """As normalize; the running values move by `momentum` of their way to the mean and the unbiased variance.

    There is no way where there are no values.
    """
    return normalized(x, w, b, (running_mean, running_var), momentum, eps, g)


def normalize_by(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                 g: NormGeometry) -> Array:
    """(x - mean) / root of (var + eps) * w + b, by what is known of each set."""
    grid, _, struct = of_sets(g)
    y = launch.empty(x.shape, x.dtype)
    run("normalize_by", grid, x, x, mean, var, w, b, y, eps, struct)
    return y


def normalize_grad_x(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry) -> Array:
    """rstd * (gz - mean of gz - z * mean of (gz * z)) over each set, with gz = gy * w, z = (x - mean) * rstd."""
    return gradient(gy, x, w, mean, rstd, g, None, None)


def normalize_grad(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                   g: NormGeometry) -> tuple[Array, Array, Array]:
    """The gradients by x, weight (the sum of gy * z over each channel) and bias (the sum of gy)."""
    gw, gb = launch.empty(g.affine, x.dtype), launch.empty(g.affine, x.dtype)
    if g.across:                           # channels are the sets
        return gradient(gy, x, w, mean, rstd, g, gw, gb), gw, gb
    gx = gradient(gy, x, w, mean, rstd, g, None, None)
    grid, splits, struct = _plan(gx.size // (g.channels * g.spread), g.channels, g.spread, g)
    sums, totals = parts_of(splits, g.channels, x) if splits > 1 else (gb, gw)
    run("norm_products", grid, x, gy, x, None, mean, rstd, sums, totals, g.inner, struct)
    if splits > 1:
        sum_first(sums, gb)
        sum_first(totals, gw)
    return gx, gw, gb


def parts_of(splits: int, sets: int, x: Array) -> tuple[cupy.ndarray, cupy.ndarray]:
    return launch.empty((splits, sets), x.dtype), launch.empty((splits, sets), x.dtype)


def gradient(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry, gw: Array | None,
             gb: Array | None, sums: Array | None = None, totals: Array | None = None) -> Array:
    """By x. gw, gb: where they are given, they are filled. sums, totals: as norm_products leaves them, if it has."""
    grid, splits, struct = of_sets(g)
    gx = launch.empty(x.shape, x.dtype)
    if splits > 1 and sums is None:
        sums, totals = parts_of(splits, mean.size, x)
        run("norm_products", grid, x, gy, x, None if g.across else w, mean, rstd, sums, totals, 0, struct)
    run("normalize_grad", grid, x, gy, x, w, mean, rstd, sums, totals, gx, gw, gb, struct)
    return gx
