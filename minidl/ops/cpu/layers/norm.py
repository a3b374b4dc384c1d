"""Normalisation on NumPy arrays: chunks of images that stay in cache, and sums of differences from the mean."""

from __future__ import annotations

import numpy as np

from ...common.geometry.sets import NormGeometry
from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for, scratch
from ..reduce import sum
from ..reduce.along import dots

__all__ = ["batch_norm", "normalize", "normalize_by", "normalize_by_grad", "normalize_by_grad_x", "normalize_grad",
           "normalize_grad_x"]

MAX_BESIDE = 1 << 16                       # numbers


def _chunk(x: Array, g: NormGeometry) -> int:
    return images_per_chunk(x.nbytes // max(1, g.n))


def _beside(each: Array, g: NormGeometry) -> Array:
    """What there is once per set as (n, groups, inner or 1), beside the values.

    One number for many values takes NumPy's loops twice as long as a number each, so channels get those.
    """
    each = np.repeat(each[:, None], g.inner, 1) if g.across and each.size * g.inner <= MAX_BESIDE else each[..., None]
    return np.broadcast_to(each, (g.n, *each.shape[-2:]))


def _affine(y: Array, w: Array | None, b: Array | None, g: NormGeometry) -> None:
    """y * w + b in place, by channels."""
    channels = y.reshape(-1, g.channels, g.spread)
    if w is not None:
        channels *= w.reshape(g.channels, 1)
    if b is not None:
        channels += b.reshape(g.channels, 1)


def _moments(x: Array, g: NormGeometry) -> tuple[Array, Array]:
    """The mean of each set, and the sum of squared differences from it; zeros where there are no values.

    Near 1e6 a mean of float32 is off by more than its terms may differ: so their differences from it are added up, too.
    """
    images = x.reshape(g.n, g.groups, g.inner)
    mean, squares, ones = *(np.zeros((g.n, g.groups), x.dtype) for _ in range(2)), np.ones(g.inner, x.dtype)

    def of_images(i: int, j: int) -> None:
        part = images[i:j]
        near = dots(part, ones) / g.inner
        d = np.subtract(part, near[..., None], out=scratch("norm", part.shape, x.dtype))
        off = dots(d, ones) / g.inner
        mean[i:j] = near + off
        squares[i:j] = np.maximum(dots(d, d) - g.inner * off * off, 0)

    if g.inner == 1:
        mean[...] = images[..., 0]
    else:
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
    mean, squares = _moments(x, g)
    rstd = _rstd(squares / max(1, g.size), eps)
    return normalized(x, mean, rstd, w, b, g), mean, rstd


def batch_norm(x: Array, w: Array | None, b: Array | None, running_mean: Array, running_var: Array, momentum: float,
               eps: float, g: NormGeometry) -> tuple[Array, Array, Array]:
    """As normalize; the running values move by `momentum` of their way to the mean and the unbiased variance.

    There is no way where there are no values.
    """
    mean, squares = _moments(x, g)
    rstd = _rstd(squares / max(1, g.size), eps)
    if g.size:
        running_mean += momentum * (mean - running_mean)
        running_var += momentum * (squares / (g.size - 1) - running_var)
    return normalized(x, mean, rstd, w, b, g), mean, rstd


def normalize_by(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                 g: NormGeometry) -> Array:
    """(x - mean) / root of (var + eps) * w + b, by what is known of each set."""
    return normalized(x, mean, _rstd(var, eps), w, b, g)


def normalize_by_grad_x(gy: Array, var: Array, w: Array | None, eps: float, g: NormGeometry) -> Array:
    """gy / root of (var + eps) * w"""
    return normalize_by(gy, np.zeros_like(var), var, w, None, eps, g)


def normalize_by_grad(gy: Array, x: Array, mean: Array, var: Array, w: Array | None, eps: float,
                      g: NormGeometry) -> tuple[Array, Array, Array]:
    """The gradients by x, weight (the sum of gy * z over each channel, z without weight) and bias (the sum of gy)."""
    z, channels = normalize_by(x, mean, var, None, None, eps, g), (g.n, g.groups, g.inner)
    gw, gb = (sum(np.reshape(each, channels), (0, 2)) for each in (gy * z, gy))
    return normalize_by_grad_x(gy, var, w, eps, g), gw, gb


def normalized(x: Array, mean: Array, rstd: Array, w: Array | None, b: Array | None, g: NormGeometry) -> Array:
    """(x - mean) * rstd * w + b"""
    y = empty(x.shape, x.dtype)
    images, normal = x.reshape(g.n, g.groups, g.inner), y.reshape(g.n, g.groups, g.inner)
    if g.across and w is not None:         # a set has one weight
        rstd, w = rstd * w, None
    means, rstds = _beside(mean, g), _beside(rstd, g)

    def of_images(i: int, j: int) -> None:
        part = np.subtract(images[i:j], means[i:j], out=normal[i:j])
        part *= rstds[i:j]
        _affine(part, w, b, g)

    parallel_for(g.n, _chunk(x, g), of_images)
    return y


def normalize_grad_x(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry) -> Array:
    """rstd * (gz - mean of gz - z * mean of (gz * z)) over each set, with gz = gy * w, z = (x - mean) * rstd."""
    return _gradients(gy, x, w, mean, rstd, g, False)[0]


def normalize_grad(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                   g: NormGeometry) -> tuple[Array, Array, Array]:
    """The gradients by x, weight (the sum of gy * z over each channel) and bias (the sum of gy)."""
    return _gradients(gy, x, w, mean, rstd, g, True)


def _gradients(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry,
               affine: bool) -> tuple[Array, Array, Array]:
    """affine: whether the gradients by weight and bias are wanted; in their place are sums of sets else."""
    gx = empty(x.shape, x.dtype)
    values, gys, gxs = (a.reshape(g.n, g.groups, g.inner) for a in (x, gy, gx))
    sums, products = np.zeros((g.n, g.groups), x.dtype), np.zeros((g.n, g.groups), x.dtype)     # of gz, and of gz * z
    means, ones = _beside(mean, g), np.ones(g.inner, x.dtype)

    def gz_of(i: int, j: int) -> Array:
        if w is None or g.across:
            return gys[i:j]
        gz = scratch("norm gz", (j - i, g.groups, g.inner), x.dtype)
        np.copyto(gz, gys[i:j])
        _affine(gz, w, None, g)
        return gz

    def add_up(i: int, j: int) -> list[Array]:
        d = np.subtract(values[i:j], means[i:j], out=scratch("norm", (j - i, g.groups, g.inner), x.dtype))
        gz = gz_of(i, j)
        sums[i:j], products[i:j] = dots(gz, ones), dots(gz, d)
        if g.across or not affine:
            return []
        d *= rstd[i:j, :, None]
        d *= gys[i:j]
        return [sum(each.reshape(-1, g.channels, g.spread), (0, 2)) for each in (d, gys[i:j])]

    of_channels = parallel_for(g.n, _chunk(x, g), add_up)
    if g.across:
        sums, products = sum(sums, (0,)), sum(products, (0,))
    products *= rstd
    scale = rstd if w is None or not g.across else rstd * w
    mean_gz, factors, scales = (_beside(each, g) for each in (
        sums / max(1, g.size), products / -max(1, g.size) * rstd, scale))

    def apply(i: int, j: int) -> None:
        part = np.subtract(values[i:j], means[i:j], out=gxs[i:j])
        part *= factors[i:j]
        part += gz_of(i, j)
        part -= mean_gz[i:j]
        part *= scales[i:j]

    parallel_for(g.n, _chunk(x, g), apply)
    if g.across or not affine:             # channels are the sets, or are not wanted
        return gx, products, sums
    gw, gb = sum(np.array(of_channels, x.dtype).reshape(-1, 2, *g.affine), (0,))
    return gx, gw, gb
