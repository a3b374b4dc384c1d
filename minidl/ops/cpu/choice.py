"""Choices, bounds, powers and the order of elements, on NumPy arrays."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable

import numpy as np

from ..common import choice, curves
from ..common.curves import choose
from ..common.primitives import Array, Flag
from .parallel import REUSED_BYTES, TEMPORARY_BYTES, elementwise, images_per_chunk, parallel_for, scratch, straight

__all__ = ["argsort", "clip", "clip_grad_x", "copy", "erf", "floor_divide", "maximum", "minimum",
           "pow", "remainder", "reshape", "rsqrt", "rsqrt_grad_x", "tril", "triu", "where"]

MIN_SIZE = 4096                            # smaller ones are in a cache, and one call of NumPy takes the least time
MAX_QUOTIENT = 1 << 21                     # up to here NumPy's quotients of float32 err by less than 0.5, so are exact
MIN_SHARE = 4                              # if more than a line's size divided by this is wanted, all of it is sorted


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    """A view or a copy. A transposed matrix whose lines are joined is copied some columns at a time."""
    if x.ndim == 2 and x.nbytes >= REUSED_BYTES and x.flags.f_contiguous:
        wild = x.size // max(1, abs(math.prod(shape)))
        if len(x) not in itertools.accumulate((wild if n == -1 else n for n in shape), operator.mul):
            x = straight(x)
    return x.reshape(shape)


def tril(m: Array, k: int = 0) -> Array:
    """Line by line. NumPy's own uses a mask and takes up to ten times as long."""
    if m.strides[-2] < m.strides[-1]:
        return triu(m.swapaxes(-1, -2), -k).swapaxes(-1, -2)
    y, (rows, columns) = np.zeros_like(m), m.shape[-2:]
    whole = min(rows, max(0, columns - 1 - k))      # the first row that is kept whole
    y[..., whole:, :] = m[..., whole:, :]
    for i in range(max(0, -k), whole):
        y[..., i, :i + 1 + k] = m[..., i, :i + 1 + k]
    return y


def triu(m: Array, k: int = 0) -> Array:
    if m.strides[-2] < m.strides[-1]:
        return tril(m.swapaxes(-1, -2), -k).swapaxes(-1, -2)
    y, (rows, columns) = np.zeros_like(m), m.shape[-2:]
    whole = min(rows, max(0, 1 - k))                # the first row that is not kept whole
    y[..., :whole, :] = m[..., :whole, :]
    for i in range(whole, min(rows, columns - k)):
        y[..., i, i + k:] = m[..., i, i + k:]
    return y


def _number_beside(x: object, y: object, size: int = MIN_SIZE) -> bool:
    """Whether y is a number, plain or in an array of x's dtype, and x has at least `size` floating ones."""
    if not (isinstance(x, np.ndarray) and x.size >= size and x.dtype.char in "fd"):
        return False
    return type(y) in (int, float) or (isinstance(y, np.ndarray) and y.size == 1 and y.ndim <= x.ndim
                                       and y.dtype == x.dtype)


def maximum(x: Array | float, y: Array | float, out: Array | None = None) -> Array:
    """The larger; if y is a number, clip takes half as long."""
    return np.clip(x, y, np.inf, out=out) if _number_beside(x, y) else np.maximum(x, y, out=out)


def minimum(x: Array | float, y: Array | float, out: Array | None = None) -> Array:
    return np.clip(x, -np.inf, y, out=out) if _number_beside(x, y) else np.minimum(x, y, out=out)


def _by_float64(plain: Callable[..., Array], fill: Callable[..., object], x: Array | float, y: Array | float) -> Array:
    """plain(x, y), a function of floor(x / y). For many float32: fill(result, y, then x, y and that floor in float64).

    NumPy's loops call fmod for each element. In float64 a quotient of float32 is not rounded to another integer. x
    minus floor(x / y) divisors is rounded once there, and then to float32 as if it were rounded once in all. So the
    bits are NumPy's.
    """
    if np.broadcast(x, y).size < MIN_SIZE or np.result_type(x, y) != np.float32:
        return plain(x, y)
    others: list[bool] = []                # chunks that are not usual: then NumPy computes all, and warns here

    def work(z: Array, y: Array, x: Array) -> None:
        wide, divisor, q = scratch("wide", (3, *x.shape), np.float64)
        np.copyto(wide, x)
        np.copyto(divisor, y)
        size = np.abs(y, out=z)
        usual = np.min(size) > 0 and np.max(size) < np.inf                     # not NaN
        if usual and np.min(np.divide(wide, divisor, out=q)) > -MAX_QUOTIENT and np.max(q) < MAX_QUOTIENT:
            fill(z, y, wide, divisor, np.floor(q, out=q))
        else:
            others.append(True)
    z = elementwise(work, *np.broadcast_arrays(*(np.asarray(each, np.float32) for each in (y, x))))
    return plain(x, y) if others else z


def _remainder(z: Array, y: Array, wide: Array, divisor: Array, q: Array) -> None:
    q *= divisor
    np.copyto(z, np.subtract(wide, q, out=q), casting="same_kind")
    bits, sign = z.view(np.int32), scratch("sign", z.shape, np.int32)
    bits |= np.bitwise_and(y.view(np.int32), -1 << 31, out=sign)       # a 0 has the divisor's sign too


def floor_divide(x: Array | float, y: Array | float) -> Array:
    return _by_float64(np.floor_divide, lambda z, y, wide, divisor, q: np.copyto(z, q, casting="same_kind"), x, y)


def remainder(x: Array | float, y: Array | float) -> Array:
    return _by_float64(np.remainder, _remainder, x, y)


def pow(x: Array, p: Array | float, out: Array | None = None) -> Array:
    """x ** p; squares and cubes are products, as PyTorch has them, and take a tenth of the time."""
    if not (_number_beside(x, p, 1) and p in (2, 3)):
        return np.power(x, p, out=out)

    def work(y: Array, x: Array) -> None:
        np.square(x, out=y)
        if p == 3:
            np.multiply(y, x, out=y)
    if out is None:
        return elementwise(work, x)
    return np.multiply(x, x if p == 2 else np.square(x), out=out)


def clip(x: Array, low: float | None, high: float | None, out: Array | None = None) -> Array:
    return np.clip(x, low, high, out=out) if x.size >= MIN_SIZE else choice.clip(x, low, high, out)


def clip_grad_x(gy: Array, x: Array, low: float | None, high: float | None) -> Array:
    gx = gy if low is None else where(np.greater_equal(x, low), gy, 0)
    return gx if high is None else where(np.less_equal(x, high), gx, 0)


def copy(x: Array) -> Array:
    """A copy in x's memory order; in C order if x repeats elements: else the repeats would be next to each other.

    A few elements that repeat along the first axes are copied once; then each copy takes twice as much as before."""
    if 0 not in x.strides:
        return np.copy(x)
    lead = next((axis for axis, stride in enumerate(x.strides) if stride), 0)
    width = math.prod(x.shape[lead:])
    if lead == 0 or x.size == 0 or width >= MIN_SIZE:
        return np.copy(x, order="C")
    y = np.empty(x.shape, x.dtype)
    parts, done = y.reshape(math.prod(x.shape[:lead]), width), 1
    parts[:1] = x[(slice(1),) * lead].reshape(-1, width)
    while done < len(parts):
        parts[done:2 * done] = parts[:len(parts) - done][:done]
        done *= 2
    return y


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x) of floating numbers."""
    def work(y: Array, x: Array) -> None:
        np.sqrt(x, out=y)
        np.divide(1, y, out=y)
    return elementwise(work, x)


def erf(x: Array) -> Array:
    return elementwise(curves.erf, x, chunk=TEMPORARY_BYTES // 2)      # it needs nine arrays


def rsqrt_grad_x(gy: Array, y: Array) -> Array:
    """-y^3 gy / 2"""
    def work(gx: Array, gy: Array, y: Array) -> None:
        np.multiply(y, y, out=gx)
        gx *= y
        gx *= gy
        gx *= -0.5
    return elementwise(work, gy, y)


def where(condition: Array, x: Array | float, y: Array | float) -> Array:
    """As ops.common.choice.where."""
    arrays = [each for each in (x, y) if isinstance(each, np.ndarray) and each.ndim]
    dtypes = {each.dtype for each in (x, y) if isinstance(each, (np.ndarray, np.generic))}
    alike = (condition.size >= MIN_SIZE and condition.dtype == np.bool_ and len(arrays) > 0
             and all(each.shape == condition.shape for each in arrays)
             and dtypes == {np.result_type(x, y)} and arrays[0].itemsize <= 8)
    if not alike:
        return choice.where(condition, x, y)

    def work(out: Array, *parts: Array) -> None:
        *given, mask = parts
        first, second = given if len(given) == 2 else (given[0], y) if arrays[0] is x else (x, given[0])
        choose(mask, first, second, out)
    return elementwise(work, *arrays, condition)


def argsort(x: Array, axis: int, descending: Flag = False, first: int | None = None) -> Array:
    """As ops.common.choice.argsort. If few values of a long line are wanted, these are selected and then sorted."""
    n = x.shape[axis] if x.ndim else 0
    if not first or first * MIN_SHARE > n or x.size < MIN_SIZE or x.dtype.char not in "fd" or np.isnan(np.max(x)):
        return choice.argsort(x, axis, descending, first)
    lines = np.ascontiguousarray(np.moveaxis(x, axis, -1)).reshape(-1, n)
    order = np.empty((len(lines), first), np.int64)

    def select(i: int, j: int) -> None:
        values = -lines[i:j] if descending else lines[i:j]
        least = values                     # the smallest of 2, 4, 8, ... each: at least `first` of a line are <= limit
        while (half := least.shape[1] // 2) >= MIN_SHARE * first:
            least = np.minimum(least[:, :half], least[:, half:2 * half])
        limit = np.partition(least, first - 1, axis=1)[:, first - 1:first]
        found = np.flatnonzero(values <= limit)
        line = found // n
        counts = np.bincount(line, minlength=j - i)
        begins = np.cumsum(counts) - counts
        few = np.full((j - i, np.max(counts)), np.inf, x.dtype)
        few[line, np.arange(len(found)) - begins[line]] = values.reshape(-1)[found]
        order[i:j] = found[np.argsort(few, axis=1, kind="stable")[:, :first] + begins[:, None]] % n

    parallel_for(len(lines), images_per_chunk(n * x.itemsize), select)
    return np.moveaxis(order.reshape(*np.moveaxis(x, axis, -1).shape[:-1], first), -1, axis)
