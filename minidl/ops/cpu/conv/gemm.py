"""Convolution as a matrix product over many images: a buffer unrolled along the columns only, chunks of images on all
cores.

Why only columns must be unrolled: the buffer holds, for each row r of the padded images, the c*kw rows
"channel c shifted by q" one below the other. The kh*c*kw rows that output row i needs are then those of the image
rows i*sh, i*sh + 1, ...: one block of the buffer, and the next output row's block overlaps it. np.matmul reads such
blocks in place, so there are kh times fewer copies than in the full unrolling, and one call does all rows.
The images of a chunk are innermost if rows are narrow: then runs are ow*nb elements long. Buffers are rebuilt in each
direction, which costs less than keeping them: for all images they would not fit the cache.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..layers.linear import linear, linear_grad_w, linear_grad_x
from ..parallel import empty, parallel_for, scratch, straight

# ---------------------------------------------------------------- sizes
MAX_IMAGES = 32                            # in a chunk, so that a batch of 128 keeps four cores busy
BUFFER_BYTES = 1 << 21                     # of an unrolled buffer: more leaves the cache, and less means calls so short
                                           # that threads wait for each other's interpreter lock
MIN_PRODUCTS_PER_IMAGE = 1 << 18           # for one wide output row of one image: then chunks are of one image
MIN_PIXELS_PER_IMAGE = 64                  # of its output, too: the calls for fewer take longer than their products
MIN_WIDE_COLUMNS = 16                      # columns that are a run worth copying, and multiplying, on their own

# OpenBLAS multiplies small matrices in place, without packing them first: up to twice as fast.
MAX_SMALL_PRODUCT = 1_000_000              # multiplications up to which it does
MAX_SMALL_RESULT = 1_200                   # elements of a @ b.T up to which it does
MIN_ROWS = 8                               # rows of a: splitting into fewer to get there costs more than it gains
MAX_TURNED = 1 << 15                       # elements of a product of dw that is transposed afterwards
MIN_TERMS = 128                            # of a sum of dw
MIN_UNLOCKED = 512                         # elements: for a smaller result NumPy keeps the interpreter locked


# ---------------------------------------------------------------- the pieces
def _chunk(g: ConvGeometry, itemsize: int, results: int = 0) -> int:
    """How many images go through a buffer. It holds at least `results` numbers, as many as its products are added to.

    It depends on sizes alone, so that results do not depend on the cores."""
    if (g.ow >= MIN_WIDE_COLUMNS and g.oh * g.ow >= MIN_PIXELS_PER_IMAGE
            and g.m * g.c * g.kh * g.kw * g.ow >= MIN_PRODUCTS_PER_IMAGE):
        return 1
    most = max(BUFFER_BYTES // itemsize, results) // ((g.h + g.top + g.bottom) * g.c * g.kw * g.ow)
    return max(1, min(MAX_IMAGES, most))


@cache
def _part(count: int, most: int) -> int:
    """The largest divisor of count that is at most `most`, or 1."""
    return max(i for i in range(1, count + 1) if count % i == 0 and i <= max(1, most))


def _lines(name: str, shape: tuple[int, ...], columns: int, images: int, dtype: np.dtype) -> tuple[Array, Array]:
    """Scratch of lines, a row of each image: as (*shape, columns*images) and as (*shape, columns, images).

    In memory the images are innermost for narrow rows, so that copies and additions go over long runs all the same;
    wide rows are stored image by image, so they need no transposing.
    """
    flat = scratch(name, (*shape, columns * images), dtype)
    if columns < MIN_WIDE_COLUMNS:
        return flat, flat.reshape(*shape, columns, images)
    return flat, flat.reshape(*shape, images, columns).swapaxes(-1, -2)


def _columns(x: Array, g: ConvGeometry) -> Array:
    """A view (hp,c,kw,ow,nb) of padded images (nb,c,h,w): element [r,c,q,j,b] is [b, c, r, j*sw + q] of them."""
    hp, wp = g.h + g.top + g.bottom, g.w + g.left + g.right
    flat, xp = _lines("padded", (hp, g.c), wp, len(x), x.dtype)
    if (hp, wp) != (g.h, g.w):
        flat[...] = 0
    xp[g.top:g.top + g.h, :, g.left:g.left + g.w] = x.transpose(2, 1, 3, 0)
    r, c, j, b = xp.strides
    return np.ndarray((hp, g.c, g.kw, g.ow, len(x)), x.dtype, flat, 0, (r, c, j, j * g.sw, b))


def _windows(rows: Array, first: int, count: int, step: int, size: int) -> Array:
    """A view (count, size*k, l) of rows (r,k,l): `size` rows joined, from row `first` on, each `step` later."""
    r, k, length = rows.strides
    return np.ndarray((count, size * rows.shape[1], rows.shape[2]), rows.dtype, rows, first * r, (step * r, k, length))


def _product(a: Array, b: Array, out: Array) -> None:
    """out (r,m,l) = a (m,k) @ b (r,k,l)"""
    most = MAX_SMALL_PRODUCT // max(1, b.shape[1] * b.shape[2])
    step = most if most >= MIN_ROWS else len(a)
    for i in range(0, len(a), step):
        np.matmul(a[i:i + step], b, out=out[:, i:i + step])


def _chunk_y(x: Array, w: Array, b: Array | None, y: Array, g: ConvGeometry) -> None:
    """For each output row: (m, kh*c*kw) @ (kh*c*kw, ow*nb) + b -> y (nb,m,oh,ow)"""
    nb, columns = len(x), _columns(x, g)
    rows, unrolled = _lines("rows", (len(columns), g.c, g.kw), g.ow, nb, x.dtype)
    unrolled[...] = columns
    if nb == 1:
        product, maps = y[0].transpose(1, 0, 2), None
    else:
        product, maps = _lines("maps", (g.oh, g.m), g.ow, nb, x.dtype)
    _product(w, _windows(rows.reshape(len(rows), g.c * g.kw, -1), 0, g.oh, g.sh, g.kh), product)
    if b is not None:
        product += b[:, None]
    if maps is not None:
        y[...] = maps.transpose(3, 1, 0, 2)


def _phase(phase: int, before: int, size: int, stride: int) -> tuple[slice, int, int]:
    """Pixels i with (i + before) % stride == phase: (their slice, the first one's (i + before) // stride, how many)."""
    first = (phase - before) % stride
    return slice(first, None, stride), (first + before) // stride, len(range(first, size, stride))


def _chunk_dx(gy: Array, w: list[Array], dx: Array, g: ConvGeometry) -> None:
    """For each image row: (c*kw, kh*m) @ (kh*m, ow*nb), its kw shifts added up -> dx (nb,c,h,w)

    An image row meets only every sh-th row of the filters, by its phase: w is a matrix per phase. The output rows that
    it takes part in are neighbours, and the lowest p belongs to the last of them: so w has its rows reversed, and gy is
    between rows of zeros. Image columns are separated by their phases too, so that whole runs are added up.
    """
    nb, front = len(gy), -(-g.kh // g.sh) - 1
    flat, maps = _lines("maps", (front - (-(g.h + g.top + g.bottom) // g.sh), g.m), g.ow, nb, gy.dtype)
    flat[...] = 0
    maps[front:front + g.oh] = gy.transpose(2, 1, 3, 0)
    rows, unrolled = _lines("rows", (g.h, g.c, g.kw), g.ow, nb, gy.dtype)
    products = rows.reshape(g.h, g.c * g.kw, -1)
    for phase, filters in enumerate(w):
        pixels, first, count = _phase(phase, g.top, g.h, g.sh)
        size = filters.shape[1] // g.m     # may be 0 if the stride is larger than the filter: a product of no terms
        if count:
            _product(filters, _windows(flat, front + first - size + 1, count, 1, size), products[pixels])
    flat, dxp = _lines("padded", (g.h, g.c, g.sw), -(-(g.w + g.left + g.right) // g.sw), nb, gy.dtype)
    flat[...] = 0
    for q in range(g.kw):
        dxp[:, :, q % g.sw, q // g.sw:q // g.sw + g.ow] += unrolled[:, :, q]
    for phase in range(g.sw):
        pixels, first, count = _phase(phase, g.left, g.w, g.sw)
        dx[..., pixels] = dxp[:, :, phase, first:first + count].transpose(3, 1, 0, 2)


def _chunk_dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    """For each filter row p: (c*kw, oh*ow*nb) @ (oh*ow*nb, m) -> (kh,m,c*kw), the sum over these nb images

    Here each of the c*kw rows of the buffer runs through all image rows. So what `lines` output rows meet is one long
    piece of it, from image row p on (a stride leaves gaps: then a piece is for one output row).
    """
    nb, columns, k = len(x), _columns(x, g), g.c * g.kw
    rows, unrolled = _lines("rows", (g.c, g.kw, g.h + g.top + g.bottom), g.ow, nb, x.dtype)
    unrolled[...] = columns.transpose(1, 2, 0, 3, 4)
    if nb == 1:
        flat = gy[0]
    else:
        flat, maps = _lines("maps", (g.m, g.oh), g.ow, nb, gy.dtype)
        maps[...] = gy.transpose(1, 2, 3, 0)
    filters = _part(g.m, MAX_SMALL_RESULT // k) if MAX_SMALL_RESULT // k >= MIN_ROWS else g.m
    small = MAX_SMALL_PRODUCT // (filters * k * g.ow * nb) or g.oh        # if 0: the fewer sums, the better
    lines = _part(g.oh, min(small, g.oh * g.kh * g.m * k // MIN_UNLOCKED)) if g.sh == 1 else 1
    (q, r, item), shape = rows.strides[1:], (g.oh // lines, g.kh, k, lines * g.ow * nb)
    under: Array = np.ndarray(shape, x.dtype, rows, 0, (lines * g.sh * r, r, q, item))
    if (filters, lines) == (g.m, g.oh) and g.m * k > MAX_TURNED:
        return np.matmul(flat.reshape(g.m, -1), under[0].swapaxes(-1, -2))
    over = flat.reshape(g.m // filters, filters, g.oh // lines, 1, -1).transpose(0, 2, 3, 4, 1)
    dw = np.matmul(under, over).sum(axis=1)                               # (m/filters, kh, k, filters)
    return dw.transpose(1, 0, 3, 2).reshape(g.kh, g.m, k)


# ---------------------------------------------------------------- the three directions
def _is_linear(g: ConvGeometry) -> bool:
    """The window is the whole image: each output is one product with it, a linear layer's."""
    return (g.kh, g.kw, g.oh, g.ow) == (g.h, g.w, 1, 1) and not (g.top or g.left)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    if _is_linear(g):
        return linear(x.reshape(g.n, g.c * g.h * g.w), w.reshape(g.m, -1), b)[:, :, None, None]
    y = empty((g.n, g.m, g.oh, g.ow), x.dtype)
    w = w.transpose(0, 2, 1, 3).reshape(g.m, -1)                          # (m, kh*c*kw)
    parallel_for(g.n, _chunk(g, x.itemsize), lambda i, j: _chunk_y(x[i:j], w, b, y[i:j], g))
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    if _is_linear(g):
        return linear_grad_x(gy.reshape(g.n, g.m), w.reshape(g.m, -1)).reshape(g.n, g.c, g.h, g.w)
    ends = g.kh - 1 - g.top, g.kh - 1 - g.bottom, g.kw - 1 - g.left, g.kw - 1 - g.right
    if (g.sh, g.sw) == (1, 1) and g.m <= g.c and min(ends) >= 0:          # less to unroll than there would be to add up
        back = ConvGeometry(g.n, g.m, g.oh, g.ow, g.c, g.kh, g.kw, g.h, g.w, 1, 1, *ends, 1, 1, 1, g.algorithm)
        return y(gy, w[:, :, ::-1, ::-1].swapaxes(0, 1), None, back)
    dx = empty((g.n, g.c, g.h, g.w), gy.dtype)
    filters = [straight(w[:, :, phase::g.sh][:, :, ::-1].transpose(1, 3, 2, 0)).reshape(g.c * g.kw, -1)
               for phase in range(g.sh)]                                  # (c*kw, kh/sh*m)
    parallel_for(g.n, _chunk(g, gy.itemsize), lambda i, j: _chunk_dx(gy[i:j], filters, dx[i:j], g))
    return dx


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    if _is_linear(g):
        flat = linear_grad_w(gy.reshape(g.n, g.m), x.reshape(g.n, g.c * g.h * g.w))
        return flat.reshape(g.m, g.c, g.kh, g.kw)
    images = _chunk(g, x.itemsize, g.kh * g.m * g.c * g.kw)
    if g.sh > 1:                           # its sums run over one output row of these
        images = max(images, MIN_TERMS // g.ow)
    parts = parallel_for(g.n, images, lambda i, j: _chunk_dw(gy[i:j], x[i:j], g))
    dw = parts[0] if parts else np.zeros((g.kh, g.m, g.c * g.kw), gy.dtype)
    for part in parts[1:]:                 # in the order of the images, whichever was done first
        dw += part
    return np.ascontiguousarray(dw.reshape(g.kh, g.m, g.c, g.kw).transpose(1, 2, 0, 3))
