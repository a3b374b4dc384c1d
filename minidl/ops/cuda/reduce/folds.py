"""Reductions, softmax and their gradients on CuPy arrays: one launch, or two if a set has several teams."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from ...common import choice, shared
from ...common.primitives import Array, Flag
from ...common.shared import _grown
from .. import launch
from .teams import Teams, planned, shared_out

__all__ = [
    "argmax", "argmin", "log_softmax", "log_softmax_grad_x", "max", "max_grad_x", "mean", "min", "prod", "prod_grad_x",
    "softmax", "softmax_grad_x", "sum", "sum_to",
]

FILE, THREADS = "reduce/folds.cu", launch.THREADS
BOOL, DOUBLE, PLACES = np.dtype(np.bool_), np.dtype(np.float64), np.dtype(np.int64)

# How many numbers a state has: FOLDS of folds.cu give a result for each set, MAPS a value for each element
FOLDS = {"Total": 1, "Product": 1, "Largest": 1, "Smallest": 1, "PlaceOfLargest": 2, "PlaceOfSmallest": 2}
MAPS = {"Softmax": 2, "LogSoftmax": 2, "SoftmaxGrad": 1, "LogSoftmaxGrad": 1, "ExtremeGrad": 1, "ProductGrad": 2}


def _constants(fold: str, dtype: np.dtype) -> tuple[launch.Constant, ...]:
    """Booleans are bytes; places are 64-bit integers."""
    value = launch.C_NAME.get(dtype, "unsigned char")
    return (("REAL", launch.C_NAME.get(dtype, "float")), ("VALUE", value),
            ("OUT", "long long" if fold.startswith("Place") else value), ("FOLD", fold), *[("MAP", 1)][fold in FOLDS:])


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _constants(fold, dtype)) for fold in (*FOLDS, *MAPS) for dtype in launch.C_NAME),
    *((FILE, _constants(fold, BOOL)) for fold in ("Largest", "Smallest"))]


@functools.lru_cache(maxsize=4096)
def _launches(fold: str, dtype: np.dtype, teams: Teams, mean: bool = False) -> tuple[Callable[..., None], ...]:
    """Launches, to be called with arrays: one for parts if a set has several teams, then one for results or values."""
    constants, struct = _constants(fold, dtype), teams.struct
    divisor = float(teams.size) if mean else 1.0

    def sized(kernel: str, grid: int) -> Callable[..., None]:
        return launch.kernel(FILE, kernel, *constants).sized((grid,), (THREADS,))
    split = teams.splits > 1
    in_parts = (functools.partial(_call, sized("fold_in_parts", teams.grid), (struct,)),) if split else ()
    if fold in MAPS:
        return *in_parts, functools.partial(_call, sized("map_sets", teams.grid), (struct,))
    if split:
        grid, struct = teams.whole
        return *in_parts, functools.partial(_call, sized("fold_parts", grid), (divisor, teams.splits, struct))
    return functools.partial(_call, sized("fold_sets", teams.grid), (divisor, struct)),


def _call(start: Callable[..., None], last: tuple[Any, ...], *arrays: Array | None) -> None:
    start(*arrays, *last)


@functools.lru_cache(maxsize=4096)
def _reduction(fold: str, shape: tuple[int, ...], dtype: np.dtype, axis: tuple[int, ...], keepdims: bool, mean: bool,
               teams: Teams | None) -> Any:
    """(the result's shape, its dtype, the shape of parts, *launches). teams: those of an array that is not in C order,
    or None for one that is; if such an array has no teams, the result is None."""
    teams = teams or shared_out(shape, None, axis)
    kept = tuple(1 if a in axis else n for a, n in enumerate(shape))
    return teams and (
        kept if keepdims else tuple(n for a, n in enumerate(shape) if a not in axis),
        PLACES if fold.startswith("Place") else dtype, (FOLDS[fold], teams.splits, teams.sets),
        *_launches(fold, dtype, teams, mean))


def reduced(fold: str, x: cupy.ndarray, axis: tuple[int, ...], keepdims: Flag = False, mean: bool = False,
            out: Array | None = None) -> Array:
    """One of FOLDS over these axes; written to `out` if it is given."""
    if x.dtype == BOOL:
        return reduced(fold, x.view(np.uint8), axis, keepdims).view(BOOL)
    found = _reduction(fold, x.shape, x.dtype, axis, keepdims, mean, None) if x._c_contiguous else None
    if found is None:
        shape = x.shape
        x, teams = planned(x, axis)
        found = _reduction(fold, shape, x.dtype, axis, keepdims, mean, teams)
        x = launch.memory_of(x)
    shape, dtype, of_parts, *in_parts, finish = found
    if out is None:
        out = launch.empty(shape, dtype)
    if in_parts:
        parts = launch.empty(of_parts, DOUBLE)
        in_parts[0](x, None, None, None, parts)
        x = parts
    finish(x, out)
    return out


def _mapped(fold: str, axis: tuple[int, ...], x: Array, other: Array | None = None, gy: Array | None = None,
            y: Array | None = None) -> Array:
    """One of MAPS, a value for each of x's: other has the shape of x, gy and y have a value for each set."""
    x = launch.dense(x)
    teams = shared_out(x.shape, tuple(step // x.itemsize for step in x.strides), axis)
    if teams is None:                      # axes on both sides of others
        order = *(a for a in range(x.ndim) if a not in axis), *axis
        turned = _mapped(fold, tuple(range(x.ndim - len(axis), x.ndim)), x.transpose(order),
                         None if other is None else other.transpose(order), gy, y)
        return turned.transpose(np.argsort(order).tolist())
    out, parts = launch.empty(x.shape, x.dtype), None
    *in_parts, finish = _launches(fold, x.dtype, teams)
    if in_parts:
        parts = launch.empty((MAPS[fold], teams.splits, teams.sets), DOUBLE)
        in_parts[0](x, other, gy, y, parts)
    finish(x, other, gy, y, parts, out)
    return out


# ---------------------------------------------------------------- sums and products
def sum(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    """Our kernels sum float32 and float64; CuPy's sum integers."""
    return reduced("Total", x, axis, keepdims) if x.dtype in launch.C_NAME else shared.sum(x, axis, keepdims)


def mean(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return (reduced("Total", x, axis, keepdims, mean=True) if x.dtype in launch.C_NAME else
            shared.mean(x, axis, keepdims))


def sum_to(gy: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient back to the shape that broadcasting grew from."""
    return gy if gy.shape == shape else sum(gy, _grown(gy.shape, shape)).reshape(shape)


def prod(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced("Product", x, axis, keepdims) if x.dtype in launch.C_NAME else choice.prod(x, axis, keepdims)


def prod_grad_x(gy: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """gy times the product of the others: that of all over x if none is 0, in float64 for float32."""
    return _mapped("ProductGrad", axis, x, None, gy)


# ---------------------------------------------------------------- largest and smallest
def _has_order(x: Array) -> bool:
    return x.dtype in launch.C_NAME or x.dtype == BOOL


def max(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced("Largest", x, axis, keepdims) if _has_order(x) else shared.max(x, axis, keepdims)


def min(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced("Smallest", x, axis, keepdims) if _has_order(x) else choice.min(x, axis, keepdims)


def max_grad_x(gy: Array, x: Array, y: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """As ops.common.shared.max_grad_x."""
    return (_mapped("ExtremeGrad", axis, x, None, gy, y) if x.dtype in launch.C_NAME and gy.dtype == x.dtype else
            shared.max_grad_x(gy, x, y, axis, keepdims))


def _place(fold: str, x: Array, axis: int | None) -> Array:
    return reduced(fold, x.ravel(), (0,), False) if axis is None else reduced(fold, x, (axis,), False)


def argmax(x: Array, axis: int | None) -> Array | np.integer:
    return _place("PlaceOfLargest", x, axis) if x.dtype in launch.C_NAME else shared.argmax(x, axis)


def argmin(x: Array, axis: int | None) -> Array | np.integer:
    return _place("PlaceOfSmallest", x, axis) if x.dtype in launch.C_NAME else choice.argmin(x, axis)


# ---------------------------------------------------------------- softmax
def softmax(x: Array, axis: int) -> Array:
    return _mapped("Softmax", (axis,), x)


def softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """y * (gy - sum of gy * y)"""
    return _mapped("SoftmaxGrad", (axis,), y, gy)


def log_softmax(x: Array, axis: int) -> Array:
    return _mapped("LogSoftmax", (axis,), x)


def log_softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """gy - softmax * sum of gy"""
    return _mapped("LogSoftmaxGrad", (axis,), gy, y)
