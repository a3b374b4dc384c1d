"""Variances and norms on CuPy arrays: one launch, or two where a set of values has several teams of threads."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ...common.primitives import Array, Flag
from .. import launch
from .teams import shared_out

__all__ = ["norm", "norm_grad_x", "variance", "variance_grad_x"]

FILE, THREADS = "reduce/squares.cu", launch.THREADS
MAX_SPLITS = 1 << 12

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (("REAL", "double"), ("VALUE", name))) for name in launch.C_NAME.values()]


class Plan(NamedTuple):
    """How sets are shared out among teams, and how the parts of each are added up."""

    grid: int
    struct: bytes                          # the struct Sets
    sets: int
    splits: int                            # teams of a set
    chunk: int                             # elements of a team
    second: tuple[int, bytes]              # grid and struct of the launch that adds up parts


Runs = list[tuple[int, int]]               # (size, step of an element) of axes that are one, from the last


def _runs(shape: tuple[int, ...], steps: tuple[int, ...], axes: list[int]) -> Runs:
    found: Runs = []
    for a in reversed(axes):
        if found and steps[a] == found[-1][0] * found[-1][1]:
            found[-1] = found[-1][0] * shape[a], found[-1][1]
        elif shape[a] != 1:
            found.append((shape[a], steps[a]))
    return found


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], steps: tuple[int, ...], axis: tuple[int, ...]) -> Plan | None:
    """None where axes are more than two of a kind. steps: strides, in elements."""
    sets = _runs(shape, steps, [a for a in range(len(shape)) if a not in axis])
    elements = _runs(shape, steps, sorted(axis, key=lambda a: -steps[a]))
    if max(len(elements), len(sets)) > 2:
        return None
    (low, low_step), (high, high_step) = (*elements, (1, 0), (1, 0))[:2]
    (near, near_step), (far, far_step) = (*sets, (1, 0), (1, 0))[:2]
    count, size = near * far, low * high
    lanes, splits, chunk = shared_out(count, size, near if near_step == 1 else 1, MAX_SPLITS)

    def grid_and_struct(lanes: int, splits: int, chunk: int) -> tuple[int, bytes]:
        return launch.blocks(count * splits * lanes, THREADS), launch.by_value(
            "Sets", sets=count, near=max(1, near), far_step=far_step, near_step=near_step, size=size, low=max(1, low),
            high_step=high_step, low_step=low_step, splits=splits, chunk=chunk, lanes=lanes)
    return Plan(*grid_and_struct(lanes, splits, chunk), count, splits, chunk,
                grid_and_struct(launch.lanes_per_row(splits, rows=count), 1, max(1, size)))


def _in_memory(x: Array) -> tuple[int, ...]:
    """The order of axes in which x lies in memory."""
    return tuple(sorted(range(x.ndim), key=lambda a: -x.strides[a]))


def _planned(x: Array, axis: tuple[int, ...]) -> tuple[Array, Plan]:
    """x, or a copy whose sets are walked in two steps, and how they are shared out."""
    if not x.flags.c_contiguous and not x.transpose(_in_memory(x)).flags.c_contiguous:
        x = launch.dense(x)
    plan = _plan(x.shape, tuple(step // x.itemsize for step in x.strides), axis)
    if plan is not None:
        return x, plan
    order = *(a for a in range(x.ndim) if a not in axis), *axis
    return _planned(launch.dense(x.transpose(order)).transpose(np.argsort(order).tolist()), axis)


def _constants(x: Array) -> tuple[launch.Constant, ...]:
    return ("REAL", "double"), ("VALUE", launch.C_NAME[x.dtype])


def _squares(x: Array, axis: tuple[int, ...], keepdims: bool, centered: bool, root: bool,
             divisor: float) -> tuple[Array, Array | None]:
    x, plan = _planned(x, axis)
    constants, kept = _constants(x), tuple(1 if a in axis else n for a, n in enumerate(x.shape))
    y = launch.empty(kept if keepdims else tuple(n for a, n in enumerate(x.shape) if a not in axis), x.dtype)
    center = launch.empty((2, *kept), x.dtype) if centered else None
    if not x.flags.c_contiguous:
        x = x.transpose(_in_memory(x))
    if plan.splits == 1:
        launch.kernel(FILE, "squares", *constants)(
            (plan.grid,), (THREADS,), x, y, center, int(root), divisor, plan.struct)
        return y, center
    parts = launch.empty((2 if x.dtype == np.float32 else 4, plan.splits, plan.sets), np.dtype(np.float64))
    launch.kernel(FILE, "squares_in_parts", *constants)(
        (plan.grid,), (THREADS,), x, parts, int(centered), plan.struct)
    grid, struct = plan.second
    launch.kernel(FILE, "squares_of_parts", *constants)(
        (grid,), (THREADS,), x, parts, y, center, int(root), divisor, plan.splits, plan.chunk, struct)
    return y, center


def _squares_grad_x(gy: Array, x: Array, y: Array, center: Array | None, axis: tuple[int, ...], root: bool,
                    divisor: float) -> Array:
    x, plan = _planned(x, axis)
    order = None if x.flags.c_contiguous else _in_memory(x)
    if order:
        x = x.transpose(order)
    gx = launch.empty(x.shape, x.dtype)
    launch.kernel(FILE, "squares_grad_x", *_constants(x))(
        (plan.grid,), (THREADS,), gy, x, y, center, gx, int(root), divisor, plan.struct)
    return gx.transpose(np.argsort(order).tolist()) if order else gx


def variance(x: Array, axis: tuple[int, ...], keepdims: Flag, root: bool, divisor: float) -> tuple[Array, Array]:
    """(y, center): squared differences from the mean over the axes, summed, over divisor; or the root of that. center:
    (2, ...) with axes of size 1, the first value of
    each set, and its mean less that."""
    y, center = _squares(x, axis, keepdims, True, root, divisor)
    assert center is not None
    return y, center


def variance_grad_x(gy: Array, x: Array, y: Array, center: Array, axis: tuple[int, ...], root: bool,
                    divisor: float) -> Array:
    """Of a root y, 0 where it is 0."""
    return _squares_grad_x(gy, x, y, center, axis, root, divisor)


def norm(x: Array, axis: tuple[int, ...], keepdims: Flag) -> Array:
    """The root of the sum of squares over the axes."""
    return _squares(x, axis, keepdims, False, True, 1.0)[0]


def norm_grad_x(gy: Array, x: Array, y: Array, axis: tuple[int, ...]) -> Array:
    """gy x / y, and 0 where y is 0."""
    return _squares_grad_x(gy, x, y, None, axis, True, 1.0)
