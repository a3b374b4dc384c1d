"""Normalisation on NumPy arrays: chunks of images that stay in cache, and sums of differences from the mean.

NumPy's loops take two to three times as long where an operand repeats: a number per set, or a weight per value of each
image. So what repeats is written out first, chunk by chunk, by a product of matrices, which takes as long as one pass.
"""

from __future__ import annotations

import numpy as np

from ...common.geometry.sets import NormGeometry
from ...common.primitives import Array
from ..parallel import TEMPORARY_BYTES, empty, images_per_chunk, parallel_for, scratch
from ..reduce import MAX_DOT_TERMS, dots, sum

__all__ = ["batch_norm", "normalize", "normalize_by", "normalize_grad", "normalize_grad_x"]


def _chunk(x: Array, g: NormGeometry) -> int:
    return images_per_chunk(x.nbytes // max(1, g.n), TEMPORARY_BYTES)


def _by_image(each: Array, g: NormGeometry) -> Array:
    """What there is once per set as (n, groups)."""
    return np.broadcast_to(each, (g.n, g.groups))


def _columns(each: Array | None, g: NormGeometry, dtype: np.dtype) -> Array:
    """A number per channel beside an image's values, and zeros: (groups or 1, 2, inner), for `_written_out`.

    Ones where there is none, and across images, where it is a set's number.
    """
    weights = np.ones((1, g.inner)) if each is None or g.across else np.repeat(each.reshape(-1), g.spread)
    columns = np.zeros((weights.size // g.inner, 2, g.inner), dtype)
    columns[:, 0] = weights.reshape(-1, g.inner)
    return columns


def _written_out(numbers: Array, columns: Array, others: Array | float = 0) -> Array:
    """numbers * columns[:, 0] + others * columns[:, 1], for (n, groups) and (groups or 1, inner), as (n, groups, inner)
    in a buffer of this thread. NumPy asks BLAS for products of two terms and more, not for those of one."""
    kinds, _, inner = columns.shape
    pairs = np.empty((*numbers.shape, 2), columns.dtype)
    pairs[..., 0], pairs[..., 1] = numbers, others
    out = scratch("norm written out", (*numbers.shape, inner), columns.dtype)
    np.matmul(pairs.reshape(-1, kinds, 2).swapaxes(0, 1), columns, out=out.reshape(-1, kinds, inner).swapaxes(0, 1))
    return out


def _over_rows(weights: Array, x: Array) -> Array:
    """The sum over k of weights[..., k] * x[..., k, l]: a product of each of up to 512 rows, as `dots` has them."""
    parts = [np.matmul(weights[..., None, i:i + MAX_DOT_TERMS], x[..., i:i + MAX_DOT_TERMS, :])
             for i in range(0, weights.shape[-1], MAX_DOT_TERMS)]
    return (parts[0] if len(parts) == 1 else np.sum(parts, axis=0))[..., 0, :]


def _differences(part: Array, ones: Array, d: Array) -> tuple[Array, Array, Array]:
    """Fills d with the differences of each set's values from about their mean; (that, what the mean is beside it, the
    sum of squared differences from the mean).

    Near 1e6 a mean of float32 is off by more than its terms may differ: so their differences from it are added up, too.
    """
    inner = part.shape[-1]
    near = dots(part, ones[0, 0]) / inner
    np.subtract(part, _written_out(near, ones), out=d)
    off = dots(d, ones[0, 0]) / inner
    return near, off, np.maximum(dots(d, d) - inner * off * off, 0)


def _moments(x: Array, g: NormGeometry) -> tuple[Array, Array]:
    """The mean of each channel, and the sum of squared differences from it; zeros where there are no values."""
    images = x.reshape(g.n, g.groups, g.inner)
    mean, squares, ones = *(np.zeros((g.n, g.groups), x.dtype) for _ in range(2)), _columns(None, g, x.dtype)

    def of_images(i: int, j: int) -> None:
        near, off, squares[i:j] = _differences(images[i:j], ones, scratch("norm", images[i:j].shape, x.dtype))
        mean[i:j] = near + off

    parallel_for(g.n, _chunk(x, g), of_images)
    if g.n == 0:
        return np.zeros(g.groups, x.dtype), np.zeros(g.groups, x.dtype)
    whole = mean[0] + sum(mean - mean[0], (0,)) / g.n
    return whole, sum(squares + g.inner * (mean - whole) ** 2, (0,))


def _rstd(var: Array, eps: float) -> Array:
    return 1 / np.sqrt(var + eps)


def normalize(x: Array, w: Array | None, b: Array | None, eps: float,
              g: NormGeometry) -> tuple[Array, Array, Array]:
    """(y, mean, rstd): y = (x - mean) * rstd * w + b, with rstd = 1 / root of (variance + eps), both once per set."""
    if g.across:
        mean, squares = _moments(x, g)
        rstd = _rstd(squares / max(1, g.size), eps)
        return normalized(x, mean, rstd, w, b, g), mean, rstd
    y, mean, rstd = empty(x.shape, x.dtype), np.zeros(g.sets, x.dtype), np.zeros(g.sets, x.dtype)
    images, normal = x.reshape(g.n, g.groups, g.inner), y.reshape(g.n, g.groups, g.inner)
    ones, weights, biases = (_columns(each, g, x.dtype) for each in (None, w, b))
    shifts = np.concatenate(np.broadcast_arrays(weights[:, :1], biases[:, :1] if b is not None else 0), 1)

    def of_images(i: int, j: int) -> None:
        part = normal[i:j]
        near, off, squares = _differences(images[i:j], ones, part)
        mean[i:j] = near + off
        rstd[i:j] = scale = _rstd(squares / g.size, eps)
        part *= _written_out(scale, weights)
        part += _written_out(-off * scale, shifts, 1)

    parallel_for(g.n, _chunk(x, g), of_images)
    return y, mean, rstd


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


def normalized(x: Array, mean: Array, rstd: Array, w: Array | None, b: Array | None, g: NormGeometry) -> Array:
    """(x - mean) * rstd * w + b"""
    y = empty(x.shape, x.dtype)
    images, normal = x.reshape(g.n, g.groups, g.inner), y.reshape(g.n, g.groups, g.inner)
    scale = rstd if w is None or not g.across else rstd * w            # across images a set has one weight
    shift = b if g.across and b is not None else np.ones((), x.dtype)
    means, scales, shifts = (_by_image(each, g) for each in (mean, scale, shift))
    ones, weights, biases = (_columns(each, g, x.dtype) for each in (None, w, b))

    def of_images(i: int, j: int) -> None:
        part = np.subtract(images[i:j], _written_out(means[i:j], ones), out=normal[i:j])
        part *= _written_out(scales[i:j], weights)
        if b is not None:
            part += _written_out(shifts[i:j], biases)

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
    ones, weights = (_columns(each, g, x.dtype) for each in (None, w))
    weight = weights[0, 0] if len(weights) == 1 else weights[:, 0]
    means, rstds = _by_image(mean, g), _by_image(rstd, g)
    sums, products = np.zeros((g.n, g.groups), x.dtype), np.zeros((g.n, g.groups), x.dtype)     # of gz, and of gz * d

    def centred(i: int, j: int) -> Array:
        return np.subtract(values[i:j], _written_out(means[i:j], ones),
                           out=scratch("norm", (j - i, g.groups, g.inner), x.dtype))

    def add_up(i: int, j: int, d: Array) -> tuple[Array, Array] | None:
        product = np.multiply(gys[i:j], d, out=gxs[i:j])
        sums[i:j], products[i:j] = dots(gys[i:j], weight), dots(product, weight)
        if g.across or not affine:
            return None
        return (_over_rows(rstds[i:j].T, product.swapaxes(0, 1)),
                _over_rows(np.ones((g.groups, j - i), x.dtype), gys[i:j].swapaxes(0, 1)))

    def apply(i: int, j: int, d: Array, sums: Array, products: Array, scales: Array) -> None:
        """gx = scale * (gz - mean of gz - z * mean of (gz * z)), by gy and d"""
        z = rstds[i:j]
        d *= _written_out(products * z / -max(1, g.size) * z * scales, ones)
        part = np.multiply(gys[i:j], _written_out(scales, weights), out=gxs[i:j])
        part += d
        part -= _written_out(sums / max(1, g.size) * scales, ones)

    if g.across:                           # channels are the sets, each of one weight
        parallel_for(g.n, _chunk(x, g), lambda i, j: add_up(i, j, centred(i, j)))
        of_sets = sum(sums, (0,)), sum(products, (0,)), rstd if w is None else rstd * w
        whole = [_by_image(each, g) for each in of_sets]
        parallel_for(g.n, _chunk(x, g), lambda i, j: apply(i, j, centred(i, j), *(each[i:j] for each in whole)))
        return gx, of_sets[1] * rstd, of_sets[0]

    def at_once(i: int, j: int) -> tuple[Array, Array] | None:
        d = centred(i, j)
        parts = add_up(i, j, d)
        apply(i, j, d, sums[i:j], products[i:j], rstds[i:j])
        return parts

    parts = parallel_for(g.n, _chunk(x, g), at_once)
    if not affine:
        return gx, np.zeros(0, x.dtype), np.zeros(0, x.dtype)
    gw, gb = (sum(sum(np.reshape(each, (-1, g.channels, g.spread)), (2,)), (0,)).reshape(g.affine)
              for each in zip(*parts)) if parts else (np.zeros(g.affine, x.dtype) for _ in range(2))
    return gx, gw, gb
