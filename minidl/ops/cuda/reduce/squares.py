"""Variances and norms on CuPy arrays: one launch, or two if a set of values has several teams of threads."""

from __future__ import annotations

import numpy as np

from ...common.primitives import Array, Flag
from .. import launch
from .teams import in_memory, planned

__all__ = ["norm", "norm_grad_x", "variance", "variance_grad_x"]

FILE, THREADS = "reduce/squares.cu", launch.THREADS

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (("REAL", "double"), ("VALUE", name))) for name in launch.C_NAME.values()]


def _constants(x: Array) -> tuple[launch.Constant, ...]:
    return ("REAL", "double"), ("VALUE", launch.C_NAME[x.dtype])


def _squares(x: Array, axis: tuple[int, ...], keepdims: bool, centered: bool, root: bool,
             divisor: float) -> tuple[Array, Array | None]:
    kept = tuple(1 if a in axis else n for a, n in enumerate(x.shape))
    y = launch.empty(kept if keepdims else tuple(n for a, n in enumerate(x.shape) if a not in axis), x.dtype)
    center = launch.empty((2, *kept), x.dtype) if centered else None
    constants, (x, teams) = _constants(x), planned(x, axis)
    x = launch.memory_of(x)
    if teams.splits == 1:
        launch.kernel(FILE, "squares", *constants)(
            (teams.grid,), (THREADS,), x, y, center, int(root), divisor, teams.struct)
        return y, center
    parts = launch.empty((2 if x.dtype == np.float32 else 4, teams.splits, teams.sets), np.dtype(np.float64))
    launch.kernel(FILE, "squares_in_parts", *constants)(
        (teams.grid,), (THREADS,), x, parts, int(centered), teams.struct)
    grid, struct = teams.whole
    launch.kernel(FILE, "squares_of_parts", *constants)(
        (grid,), (THREADS,), x, parts, y, center, int(root), divisor, teams.splits, teams.chunk, struct)
    return y, center


def _squares_grad_x(gy: Array, x: Array, y: Array, center: Array | None, axis: tuple[int, ...], root: bool,
                    divisor: float) -> Array:
    x, teams = planned(x, axis, dense=True)
    order = in_memory(x)
    gx = launch.empty(tuple(x.shape[a] for a in order), x.dtype)
    launch.kernel(FILE, "squares_grad_x", *_constants(x))(
        (teams.grid,), (THREADS,), gy, launch.memory_of(x), y, center, gx, int(root), divisor, teams.struct)
    return gx.transpose(np.argsort(order).tolist())


def variance(x: Array, axis: tuple[int, ...], keepdims: Flag, root: bool, divisor: float) -> tuple[Array, Array]:
    """(y, center). y: the sum of squared differences from the mean over the axes, over divisor; or the root of that.
    center: (2, ...) with axes of size 1, the first value of each set, and its mean minus that value."""
    y, center = _squares(x, axis, keepdims, True, root, divisor)
    assert center is not None
    return y, center


def variance_grad_x(gy: Array, x: Array, y: Array, center: Array, axis: tuple[int, ...], root: bool,
                    divisor: float) -> Array:
    """If y is a root, the gradient is 0 where y is 0."""
    return _squares_grad_x(gy, x, y, center, axis, root, divisor)


def norm(x: Array, axis: tuple[int, ...], keepdims: Flag) -> Array:
    """The root of the sum of squares over the axes."""
    return _squares(x, axis, keepdims, False, True, 1.0)[0]


def norm_grad_x(gy: Array, x: Array, y: Array, axis: tuple[int, ...]) -> Array:
    """gy x / y, and 0 where y is 0."""
    return _squares_grad_x(gy, x, y, None, axis, True, 1.0)
