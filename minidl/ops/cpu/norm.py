"""Normalisation on NumPy arrays: chunks of images that stay in cache, and sums of differences from one value."""

from __future__ import annotations

import numpy as np

from ..common.primitives import Array
from ..common.sets import NormGeometry
from .parallel import empty, images_per_chunk, parallel_for, scratch
from .reduce import sum

__all__ = ["batch_norm", "normalize", "normalize_by", "normalize_grad", "normalize_grad_x"]


def _chunk(x: Array, g: NormGeometry) -> int:
    return images_per_chunk(x.nbytes // max(1, g.n))


def _of(each: Array, g: NormGeometry, i: int, j: int) -> Array:
    """What there is once per set, beside the values of images i to j."""
    return (each if g.across else each[i:j])[..., None]


def _affine(y: Array, w: Array | None, b: Array | None, g: NormGeometry) -> None:
    """y * w + b in place, by channels."""
    channels = y.reshape(-1, g.channels, g.spread)
    if w is not None:
        channels *= w.reshape(g.channels, 1)
    if b is not None:
        channels += b.reshape(g.channels, 1)


def _moments(x: Array, g: NormGeometry) -> tuple[Array, Array]:
    """The mean of each set, and the sum of squared differences from it; zeros where there are no values.

    Near 1e6 a sum of float32 is off by more than its terms may differ: what is added up is their difference from one.
    """
    images = x.reshape(g.n, g.groups, g.inner)
    mean, squares = np.zeros((g.n, g.groups), x.dtype), np.zeros((g.n, g.groups), x.dtype)

    def of_images(i: int, j: int) -> None:
        part = images[i:j]
        d = scratch("norm", part.shape, x.dtype)
        np.subtract(part, part[..., :1], out=d)
        mean[i:j] = part[..., 0] + np.sum(d, axis=-1) / g.inner
        np.subtract(part, mean[i:j, :, None], out=d)
        d *= d
        np.sum(d, axis=-1, out=squares[i:j])

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
    return _normalized(x, mean, rstd, w, b, g), mean, rstd


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
    return _normalized(x, mean, rstd, w, b, g), mean, rstd


def normalize_by(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                 g: NormGeometry) -> Array:
    """(x - mean) / root of (var + eps) * w + b, by what is known of each set."""
    return _normalized(x, mean, _rstd(var, eps), w, b, g)


def _normalized(x: Array, mean: Array, rstd: Array, w: Array | None, b: Array | None, g: NormGeometry) -> Array:
    y = empty(x.shape, x.dtype)
    images, normal = x.reshape(g.n, g.groups, g.inner), y.reshape(g.n, g.groups, g.inner)
    if g.across and w is not None:         # a set has one weight
        rstd, w = rstd * w, None

    def of_images(i: int, j: int) -> None:
        part = normal[i:j]
        np.subtract(images[i:j], _of(mean, g, i, j), out=part)
        part *= _of(rstd, g, i, j)
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
    """affine: whether the gradients by weight and bias are wanted; they are without values else."""
    gx = empty(x.shape, x.dtype)
    values, gys, gxs = (a.reshape(g.n, g.groups, g.inner) for a in (x, gy, gx))
    sums, products = np.zeros((g.n, g.groups), x.dtype), np.zeros((g.n, g.groups), x.dtype)     # of gz, and of gz * z
    gws, gbs = (np.zeros((g.n if affine and not g.across else 0, g.channels), x.dtype) for _ in range(2))

    def gz_of(i: int, j: int) -> Array:
        if w is None or g.across:
            return gys[i:j]
        gz = scratch("norm gz", (j - i, g.groups, g.inner), x.dtype)
        np.copyto(gz, gys[i:j])
        _affine(gz, w, None, g)
        return gz

    def z_of(i: int, j: int, out: Array) -> Array:
        np.subtract(values[i:j], _of(mean, g, i, j), out=out)
        out *= _of(rstd, g, i, j)
        return out

    def add_up(i: int, j: int) -> None:
        z = z_of(i, j, scratch("norm", (j - i, g.groups, g.inner), x.dtype))
        if len(gbs):
            product = gys[i:j] * z
            np.sum(gys[i:j].reshape(-1, g.channels, g.spread), axis=-1, out=gbs[i:j])
            np.sum(product.reshape(-1, g.channels, g.spread), axis=-1, out=gws[i:j])
        gz = gz_of(i, j)
        np.sum(gz, axis=-1, out=sums[i:j])
        z *= gz
        np.sum(z, axis=-1, out=products[i:j])

    parallel_for(g.n, _chunk(x, g), add_up)
    if g.across:
        sums, products = sum(sums, (0,)), sum(products, (0,))
    scale = rstd if w is None or not g.across else rstd * w
    mean_gz, mean_product = sums / max(1, g.size), products / max(1, g.size)

    def apply(i: int, j: int) -> None:
        part = z_of(i, j, gxs[i:j])
        part *= _of(-mean_product, g, i, j)
        part += gz_of(i, j)
        part -= _of(mean_gz, g, i, j)
        part *= _of(scale, g, i, j)

    parallel_for(g.n, _chunk(x, g), apply)
    if g.across:                           # channels are the sets
        return gx, products, sums
    return gx, sum(gws, (0,)).reshape(g.affine), sum(gbs, (0,)).reshape(g.affine)
