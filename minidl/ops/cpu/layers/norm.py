"""Normalisation on NumPy arrays: chunks of images that stay in cache, and sums of differences from the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...common.geometry.sets import NormGeometry
from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for, scratch, straight
from ..reduce import sum
from ..reduce.along import dots

__all__ = ["batch_norm", "normalize", "normalize_by", "normalize_by_grad", "normalize_by_grad_x", "normalize_grad",
           "normalize_grad_x"]

MAX_BESIDE = 1 << 16                       # numbers
WIDE = 1 << 13                             # elements of a loop: a loop costs as much as 100 elements and more
MAX_ROWS = 1 << 7                          # that a product of matrices adds up
LARGE = 1e15                               # a mean whose square float32 may not hold
MAX_MEAN = 2.0                             # in deviations: beyond, a sum of squares minus that of the mean loses digits

Beside = Callable[[np.ufunc, Array, int, Array], Any]


def _chunk(x: Array, g: NormGeometry) -> int:
    return images_per_chunk(x.nbytes // max(1, g.n))


def _beside(each: Array, g: NormGeometry) -> Beside:
    """f(x, each, out=y) of some images from the i-th on; each (groups,) across images, else (n, groups or channels)."""
    if g.across and g.groups * g.inner <= MAX_BESIDE:
        return _by_row(np.repeat(each, g.inner), g.n)
    columns = (np.broadcast_to(each, (g.n, g.groups)) if g.across else each)[..., None]

    def by_column(f: np.ufunc, x: Array, i: int, y: Array) -> None:
        lines = len(x), columns.shape[1], -1
        f(x.reshape(lines), columns[i:i + len(x)], out=y.reshape(lines))
    return by_column


def _by_row(row: Array, n: int) -> Beside:
    """f(x, row, out=y) of some images. NumPy's loops take twice as long with one number for many values as with one
    each, and short loops several times as long: so each value has its number, for several images if they are small."""
    rows = np.empty((max(1, min(n, WIDE // row.size)), row.size), row.dtype)
    rows[...] = row

    def by_row(f: np.ufunc, x: Array, i: int, y: Array) -> None:
        x, y, lines = x.reshape(-1, row.size), y.reshape(-1, row.size), (-1, *rows.shape)
        whole = len(x) // len(rows) * len(rows)
        f(x[:whole].reshape(lines), rows, out=y[:whole].reshape(lines))
        if whole < len(x):
            f(x[whole:], rows[:len(x) - whole], out=y[whole:])
    return by_row


def _columns(x: Array, y: Array | None = None) -> Array:
    """The sum of x * y, or of x, over the images."""
    return sum(x if y is None else x * y, (0,))


def _of_sets(x: Array, count: int, add: Callable[..., Array], axis: int) -> tuple[Array, Array]:
    """The mean of sets of `count` values along an axis, over which `add` sums, and the sum of squared differences.

    A sum of squares minus that of the mean loses digits if the mean is large. Then differences from it are added up,
    and correct the mean too: near 1e6 a mean of float32 is off by more than its terms may differ.
    """
    mean = add(x) / count
    if (np.abs(mean) >= LARGE).any():
        squares, far = mean, np.ones_like(mean, np.bool_)
    else:
        squares = add(x, x) - count * mean * mean
        far = ~(count * mean * mean <= MAX_MEAN ** 2 * squares)
    if far.any():
        d = np.subtract(x, np.expand_dims(mean, axis), out=scratch("norm", x.shape, x.dtype))
        off = add(d) / count
        squares = np.where(far, np.maximum(add(d, d) - count * off * off, 0), squares)
        mean = np.where(far, mean + off, mean)
    return mean, squares


def _moments(x: Array, g: NormGeometry) -> tuple[Array, Array]:
    """The mean of each set, and the sum of squared differences from it; zeros if there are no values."""
    images = x.reshape(g.n, g.groups, g.inner)
    if g.across and g.inner == 1 and g.n:
        return _of_sets(images[..., 0], g.n, _columns, 0)
    mean, squares = (np.zeros((g.n, g.groups), x.dtype) for _ in range(2))

    def of_images(i: int, j: int) -> None:
        mean[i:j], squares[i:j] = _of_sets(images[i:j], g.inner, dots, -1)

    parallel_for(g.n, _chunk(x, g), of_images)
    if not g.across:
        return mean, squares
    if g.n == 0:
        return np.zeros(g.groups, x.dtype), np.zeros(g.groups, x.dtype)
    whole = mean[0] + sum(mean - mean[0], (0,)) / g.n
    return whole, sum(squares + g.inner * (mean - whole) ** 2, (0,))


def _rstd(var: Array, eps: float) -> Array:
    return 1 / np.sqrt(var + eps)


def normalize(x: Array, w: Array | None, b: Array | None, eps: float,
              g: NormGeometry) -> tuple[Array, Array, Array]:
    """(y, mean, rstd): y = (x - mean) * rstd * w + b, with rstd = 1 / root of (variance + eps), both once per set."""
    x = straight(x)
    mean, squares = _moments(x, g)
    rstd = _rstd(squares / max(1, g.size), eps)
    return normalized(x, mean, rstd, w, b, g), mean, rstd


def batch_norm(x: Array, w: Array | None, b: Array | None, running_mean: Array, running_var: Array, momentum: float,
               eps: float, g: NormGeometry) -> tuple[Array, Array, Array]:
    """As normalize; the running values move by `momentum` of their way to the mean and the unbiased variance.

    They do not move if there are no values.
    """
    x = straight(x)
    mean, squares = _moments(x, g)
    rstd = _rstd(squares / max(1, g.size), eps)
    if g.size:
        running_mean += momentum * (mean - running_mean)
        running_var += momentum * (squares / (g.size - 1) - running_var)
    return normalized(x, mean, rstd, w, b, g), mean, rstd


def normalize_by(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                 g: NormGeometry) -> Array:
    """(x - mean) / root of (var + eps) * w + b, by what is known of each set."""
    return normalized(straight(x), mean, _rstd(var, eps), w, b, g)


def normalize_by_grad_x(gy: Array, var: Array, w: Array | None, eps: float, g: NormGeometry) -> Array:
    """gy / root of (var + eps) * w"""
    gy, gx, rstd = straight(gy), empty(gy.shape, gy.dtype), _rstd(var, eps)
    gys, gxs = (each.reshape(g.n, g.groups, g.inner) for each in (gy, gx))
    scale = _beside(rstd if w is None else rstd * w, g)
    parallel_for(g.n, _chunk(gy, g), lambda i, j: scale(np.multiply, gys[i:j], i, gxs[i:j]))
    return gx


def normalize_by_grad(gy: Array, x: Array, mean: Array, var: Array, w: Array | None, eps: float,
                      g: NormGeometry) -> tuple[Array, Array, Array]:
    """The gradients by x, weight (the sum of gy * z over each channel, z without weight) and bias (the sum of gy)."""
    rstd = _rstd(var, eps)
    gy = straight(gy)
    sums, products = _channel_sums(gy, *_centered(straight(x), mean, rstd, g), rstd, g)
    return normalize_by_grad_x(gy, var, w, eps, g), products, sums


def _by_channel(each: Array, g: NormGeometry) -> Array:
    """(n, groups) as (n, channels); of sets across images (groups,) as it is."""
    return each if g.across or g.channels == g.groups else np.repeat(each, g.channels // g.groups, 1)


def _centered(x: Array, mean: Array, rstd: Array, g: NormGeometry) -> tuple[Array, Callable[..., Array]]:
    """(what is left of the means, d of some images): d is x minus its mean if that is far from 0, else x itself; it
    may be stored in `out`."""
    far, images = np.abs(mean * rstd) > MAX_MEAN, x.reshape(g.n, g.groups, g.inner)
    if not far.any():
        return mean, lambda i, j, out=None: images[i:j]
    center = np.where(far, mean, 0)
    subtract = _beside(center, g)

    def of_images(i: int, j: int, out: Array | None = None) -> Array:
        d = scratch("norm", images[i:j].shape, x.dtype) if out is None else out
        subtract(np.subtract, images[i:j], i, d)
        return d
    return mean - center, of_images


def _weights_by_value(g: NormGeometry) -> bool:
    """Whether each value of a row has its own weight, as in layer_norm. Together with a number for each row, that would
    be as many numbers as x has."""
    return not g.across and g.groups == g.spread == 1


def normalized(x: Array, mean: Array, rstd: Array, w: Array | None, b: Array | None, g: NormGeometry) -> Array:
    """(x - mean) * rstd * w + b, as d * scale + shift"""
    y, (left, centered) = empty(x.shape, x.dtype), _centered(x, mean, rstd, g)
    normal = y.reshape(g.n, g.groups, g.inner)
    if _weights_by_value(g):
        scale_rows, shift_rows = (np.zeros((g.n, 2), x.dtype) for _ in range(2))
        scale_rows[:, :1], shift_rows[:, :1], shift_rows[:, 1] = rstd, -left * rstd, 1
        weights, shifts = (np.zeros((2, g.inner), x.dtype) for _ in range(2))      # 0 times an infinite bias is NaN
        weights[0] = shifts[0] = 1 if w is None else w.reshape(-1)
        shifts[1] = 0 if b is None else b.reshape(-1)

        def of_rows(i: int, j: int) -> None:           # a product of matrices repeats faster than NumPy's loops
            each = scratch("norm each", (j - i, g.inner), x.dtype)
            part = normal[i:j, 0]
            np.multiply(centered(i, j, normal[i:j])[:, 0], np.matmul(scale_rows[i:j], weights, out=each), out=part)
            part += np.matmul(shift_rows[i:j], shifts, out=each)
    else:
        scales = _by_channel(rstd, g)
        scales = scales if w is None else scales * w
        shifts = _by_channel(left, g) * -scales
        scale, shift = _beside(scales, g), _beside(shifts if b is None else shifts + b, g)

        def of_rows(i: int, j: int) -> None:
            scale(np.multiply, centered(i, j, normal[i:j]), i, normal[i:j])
            shift(np.add, normal[i:j], i, normal[i:j])

    parallel_for(g.n, _chunk(x, g), of_rows)
    return y


def normalize_grad_x(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry) -> Array:
    """rstd * (gz - mean of gz - z * mean of (gz * z)) over each set, with gz = gy * w, z = (x - mean) * rstd."""
    return _gradients(gy, x, w, mean, rstd, g, False)[0]


def normalize_grad(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                   g: NormGeometry) -> tuple[Array, Array, Array]:
    """The gradients by x, weight (the sum of gy * z over each channel) and bias (the sum of gy)."""
    return _gradients(gy, x, w, mean, rstd, g, True)


def _channel_sums(gy: Array, left: Array, centered: Callable[[int, int], Array], rstd: Array,
                  g: NormGeometry) -> tuple[Array, Array]:
    """The sums of gy and of gy * z over each channel: of each image, or across all."""
    gys, lines = gy.reshape(g.n, g.channels, g.spread), (-1, g.channels, g.spread)

    def add_up(i: int, j: int) -> list[Array]:
        found = [dots(gys[i:j]), dots(gys[i:j], centered(i, j).reshape(lines))]
        return [sum(each, (0,))[None] for each in found] if g.across else found

    parts = parallel_for(g.n, _chunk(gy, g), add_up) or [np.zeros((2, 0, g.channels), gy.dtype)]
    sums, products = parts[0] if len(parts) == 1 else (np.concatenate(each) for each in zip(*parts))
    if g.across:
        sums, products = sum(sums, (0,)), sum(products, (0,))
    products -= _by_channel(left, g) * sums
    products *= _by_channel(rstd, g)
    return sums, products


def _gradients(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry,
               affine: bool) -> tuple[Array, Array, Array]:
    """affine: whether the gradients by weight and bias are wanted; if not, they may be anything."""
    gy, x = straight(gy), straight(x)
    if _weights_by_value(g):
        return _gradients_of_rows(gy, x, w, mean, rstd, g, affine)
    gx, (left, centered) = empty(x.shape, x.dtype), _centered(x, mean, rstd, g)
    gys, gxs = gy.reshape(g.n, g.groups, g.inner), gx.reshape(g.n, g.groups, g.inner)
    sums, products = _channel_sums(gy, left, centered, rstd, g)
    of_gz, of_gz_z = (each if w is None else each * w for each in (sums, products))
    if not g.across:
        of_gz, of_gz_z = (sum(each.reshape(g.n, g.groups, g.channels // g.groups), (2,)) for each in (of_gz, of_gz_z))
    share = rstd / -max(1, g.size)
    factors = of_gz_z * share * rstd
    shifts = of_gz * share - factors * left
    scales = _by_channel(rstd, g) if w is None else _by_channel(rstd, g) * w
    scale, factor, shift = (_beside(each, g) for each in (scales, factors, shifts))

    def apply(i: int, j: int) -> None:     # gx = gy * scale + d * factor + shift
        part, more = gxs[i:j], scratch("norm each", (j - i, g.groups, g.inner), x.dtype)
        scale(np.multiply, gys[i:j], i, part)
        factor(np.multiply, centered(i, j), i, more)
        part += more
        shift(np.add, part, i, part)

    parallel_for(g.n, _chunk(x, g), apply)
    return (gx, products, sums) if g.across else (gx, sum(products, (0,)), sum(sums, (0,)))


def _gradients_of_rows(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry,
                       affine: bool) -> tuple[Array, Array, Array]:
    """The same if each value of a row has a weight: by rows, while they are in the cache."""
    gx, (left, centered) = empty(x.shape, x.dtype), _centered(x, mean, rstd, g)
    gys, gxs = gy.reshape(g.n, g.inner), gx.reshape(g.n, g.inner)
    weigh = None if w is None else _by_row(w.reshape(-1), g.n)

    factors = np.concatenate([-left * rstd, np.ones_like(rstd)], 1)

    def of_rows(i: int, j: int) -> Array:
        d, part, more = centered(i, j)[:, 0], gxs[i:j], scratch("norm each", (j - i, g.inner), x.dtype)
        affine_parts = np.zeros((0, g.inner), x.dtype)
        if affine:                         # the sums over rows of gy * z and of gy
            np.multiply(gys[i:j], d, out=more)
            affine_parts = _sums_of_rows(factors[i:j], gys[i:j])
            affine_parts[0] += _sums_of_rows(rstd[i:j], more)[0]
        if weigh is None:
            np.copyto(part, gys[i:j])
        else:
            weigh(np.multiply, gys[i:j], i, part)
        of_gz = dots(part)[:, None]
        of_gz_z = (dots(part, d)[:, None] - left[i:j] * of_gz) * rstd[i:j]
        factor = of_gz_z * rstd[i:j] / -g.inner * rstd[i:j]
        part *= rstd[i:j]
        part += np.multiply(d, factor, out=more)
        part += of_gz * rstd[i:j] / -g.inner - factor * left[i:j]
        return affine_parts

    parts = parallel_for(g.n, _chunk(x, g), of_rows)
    if not affine:
        return gx, mean, mean
    gw, gb = sum(np.array(parts, x.dtype).reshape(-1, 2, *g.affine), (0,))
    return gx, gw, gb


def _sums_of_rows(factors: Array, x: Array) -> Array:
    """(rows, m).T @ x (rows, l), in blocks of rows: one sum of many terms loses digits."""
    if len(x) == 1:                        # for which matmul has no BLAS
        return factors.T * x
    whole = len(x) // MAX_ROWS * MAX_ROWS
    blocks = factors[:whole].reshape(-1, MAX_ROWS, factors.shape[1]).transpose(0, 2, 1)
    sums = np.sum(np.matmul(blocks, x[:whole].reshape(-1, MAX_ROWS, x.shape[1])), axis=0)
    return sums if whole == len(x) else sums + factors[whole:].T @ x[whole:]
