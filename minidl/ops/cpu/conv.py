"""Convolution on NumPy arrays: x (n,c,h,w), w (m,c,kh,kw), y (n,m,oh,ow); g is an ops.window.ConvGeometry.

Three algorithms, each in the directions y (forward), dx and dw:
- direct: PMPP Figs. 16.4, 16.10, 16.11 as they stand (with their corrections), a filter element at a time;
- unroll: PMPP Figs. 16.15 and 16.18, an image at a time through one unrolled buffer, then a matrix product;
- gemm: the same with several images side by side in a cache-sized buffer, chunk by chunk on all cores.

The unrolled buffer is (c*kh*kw, oh*ow*nb) with the nb images of a chunk innermost: rows of it are copied, and in
dx added, in runs of ow*nb elements, and one product serves the whole chunk. It is rebuilt for dw, because that
costs less than keeping it: a buffer for all images would leave the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .linear import linear, linear_grad_w, linear_grad_x
from .parallel import images_a_chunk, one_blas_thread, parallel_for, scratch

Array = np.ndarray

UNROLLED_BYTES = 1 << 21                   # of a chunk's unrolled buffer: larger leaves the cache, smaller means
                                           # calls so short that threads wait for each other's interpreter lock
MOST_IMAGES = 32                           # in a chunk, so that a batch of 128 keeps four cores busy
FEWEST_IMAGES = 4                          # side by side, for which bringing the images innermost pays
SMALL_PRODUCT = 1_000_000                  # multiplications up to which OpenBLAS takes its small-matrix path
SMALL_MATRIX = 4096                        # filter elements up to which that path was measured to win


# ---------------------------------------------------------------- direct: the formula
def _pad(x: Array, g: Any) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (g.top, g.bottom), (g.left, g.right)))


def _crop(xp: Array, g: Any) -> Array:
    return np.ascontiguousarray(xp[:, :, g.top:g.top + g.h, g.left:g.left + g.w])


def _under(xp: Array, p: int, q: int, g: Any) -> Array:
    """The elements of padded images that filter element (p, q) meets, one an output: (n,c,oh,ow)."""
    return xp[:, :, p:p + g.sh * g.oh:g.sh, q:q + g.sw * g.ow:g.sw]


def _direct_y(x: Array, w: Array, b: Array | None, g: Any) -> Array:
    """y[n,m,i,j] = b[m] + sum over c,p,q of x[n, c, i*sh + p, j*sw + q] * w[m,c,p,q]"""
    xp = _pad(x, g)
    y = np.zeros((g.n, g.m, g.oh, g.ow), x.dtype)
    if b is not None:
        y += b[:, None, None]
    for p in range(g.kh):
        for q in range(g.kw):
            y += np.einsum("ncij,mc->nmij", _under(xp, p, q, g), w[:, :, p, q])
    return y


def _direct_dx(gy: Array, w: Array, g: Any) -> Array:
    """dx[n, c, i*sh + p, j*sw + q] = sum over m,p,q of gy[n,m,i,j] * w[m,c,p,q]"""
    dxp = np.zeros((g.n, g.c, g.h + g.top + g.bottom, g.w + g.left + g.right), gy.dtype)
    for p in range(g.kh):
        for q in range(g.kw):
            _under(dxp, p, q, g)[...] += np.einsum("nmij,mc->ncij", gy, w[:, :, p, q])
    return _crop(dxp, g)


def _direct_dw(gy: Array, x: Array, g: Any) -> Array:
    """dw[m,c,p,q] = sum over n,i,j of gy[n,m,i,j] * x[n, c, i*sh + p, j*sw + q]"""
    xp = _pad(x, g)
    dw = np.empty((g.m, g.c, g.kh, g.kw), gy.dtype)
    for p in range(g.kh):
        for q in range(g.kw):
            dw[:, :, p, q] = np.einsum("nmij,ncij->mc", gy, _under(xp, p, q, g))
    return dw


# ---------------------------------------------------------------- unrolled: chunks of images, images innermost
def _windows(xt: Array, g: Any) -> Array:
    """A view (c,kh,kw,oh,ow,nb) of padded images (c,hp,wp,nb): the unrolled matrix without its copies."""
    c, h, w, b = xt.strides
    return np.lib.stride_tricks.as_strided(
        xt, (g.c, g.kh, g.kw, g.oh, g.ow, xt.shape[3]), (c, h, w, h * g.sh, w * g.sw, b))


def _padded(nb: int, dtype: Any, g: Any) -> tuple[Array, Array]:
    """Scratch for nb padded images (c,hp,wp,nb), all zeros, and the view (c,h,w,nb) of their inside."""
    xt = scratch("padded", (g.c, g.h + g.top + g.bottom, g.w + g.left + g.right, nb), dtype)
    xt[...] = 0
    return xt, xt[:, g.top:g.top + g.h, g.left:g.left + g.w]


def _unrolled(x: Array, g: Any) -> Array:
    """Images (nb,c,h,w) -> (c*kh*kw, oh*ow*nb), in scratch."""
    nb = len(x)
    xt, inside = _padded(nb, x.dtype, g)
    inside[...] = x.transpose(1, 2, 3, 0)
    u = scratch("unrolled", (g.c * g.kh * g.kw, g.oh * g.ow * nb), x.dtype)
    u.reshape(g.c, g.kh, g.kw, g.oh, g.ow, nb)[...] = _windows(xt, g)
    return u


def _maps_first(gy: Array) -> Array:
    """(nb,m,oh,ow) -> (m, oh*ow*nb), the images innermost; a copy in scratch for several images."""
    nb, m = gy.shape[:2]
    if nb == 1:
        return gy.reshape(m, -1)
    flat = scratch("maps", (m, gy[0, 0].size, nb), gy.dtype)
    flat[...] = gy.reshape(nb, m, -1).transpose(1, 2, 0)
    return flat.reshape(m, -1)


def _runs(a: Array, filters: int) -> Array:
    """A view (s, rows, columns / s) of a long thin matrix, in s runs of columns that OpenBLAS holds for small.

    One product of such stacks is up to twice as fast as that of the whole, and as exact.
    """
    rows, columns = a.shape
    s = 1
    if filters <= SMALL_MATRIX:
        s = -(-columns * filters // SMALL_PRODUCT)
        while columns % s:
            s += 1
    return a.reshape(rows, s, columns // s).transpose(1, 0, 2)


def _product(a: Array, b: Array, out: Array) -> None:
    """out = a @ b"""
    np.matmul(a, _runs(b, a.size), out=_runs(out, a.size))


def _unrolled_y(x: Array, w: Array, b: Array | None, y: Array, g: Any) -> None:
    """(m, c*kh*kw) @ (c*kh*kw, oh*ow*nb) + b -> y (nb,m,oh,ow)"""
    nb = len(x)
    product = y.reshape(g.m, -1) if nb == 1 else scratch("product", (g.m, g.oh * g.ow * nb), x.dtype)
    _product(w.reshape(g.m, -1), _unrolled(x, g), product)
    if b is not None:
        product += b[:, None]
    if nb > 1:
        y.reshape(nb, g.m, -1)[...] = product.reshape(g.m, -1, nb).transpose(2, 0, 1)


def _unrolled_dx(gy: Array, w: Array, dx: Array, g: Any) -> None:
    """(c*kh, m*kw) @ (m*kw, oh*wp*nb), then kh rows added -> dx (nb,c,h,w)

    gy is unrolled along the width only, spread over the padded width wp, and the product's rows are added along the
    height: kw copies and kh additions where unrolling the whole window would take kh*kw additions.
    """
    nb, wp = len(gy), g.left + g.w + g.right
    maps = _maps_first(gy).reshape(g.m, g.oh, g.ow, nb)
    u = scratch("unrolled", (g.m, g.kw, g.oh, wp, nb), gy.dtype)
    u[...] = 0
    for q in range(g.kw):
        u[:, q, :, q:q + g.sw * g.ow:g.sw] = maps
    rows = scratch("product", (g.c, g.kh, g.oh, wp, nb), gy.dtype)
    _product(w.transpose(1, 2, 0, 3).reshape(g.c * g.kh, -1), u.reshape(g.m * g.kw, -1), rows.reshape(g.c * g.kh, -1))
    dxt, inside = _padded(nb, gy.dtype, g)
    for p in range(g.kh):
        dxt[:, p:p + g.sh * g.oh:g.sh] += rows[:, p]
    dx[...] = inside.transpose(3, 0, 1, 2)


def _unrolled_dw(gy: Array, x: Array, g: Any) -> Array:
    """(c*kh*kw, oh*ow*nb) @ (oh*ow*nb, m) -> (c*kh*kw, m), the sum over these nb images"""
    u, maps = _unrolled(x, g), _maps_first(gy)
    filters = len(u) * len(maps)
    return np.matmul(_runs(u, filters), _runs(maps, filters).transpose(0, 2, 1)).sum(axis=0)


# ---------------------------------------------------------------- which images make a chunk
def _one_by_one(g: Any, itemsize: int, work: Callable[[int, int], Any]) -> list[Any]:
    """unroll: an image at a time, on this thread."""
    with one_blas_thread():
        return [work(i, i + 1) for i in range(g.n)]


def _in_chunks(g: Any, itemsize: int, work: Callable[[int, int], Any]) -> list[Any]:
    """gemm: as many images as keep the unrolled buffer in the cache, on all threads; one where that is too few."""
    nb = images_a_chunk(g.c * g.kh * g.kw * g.oh * g.ow * itemsize, UNROLLED_BYTES)
    return parallel_for(g.n, 1 if nb < FEWEST_IMAGES else min(nb, MOST_IMAGES), work)


def _is_linear(g: Any) -> bool:
    """The window is the whole image: each output is one product with it, a linear layer's."""
    return (g.kh, g.kw, g.oh, g.ow) == (g.h, g.w, 1, 1) and not (g.top or g.left)


def _through(split: Callable[..., list[Any]]) -> tuple[Callable[..., Array], ...]:
    """The three directions of an unrolling algorithm from its way of splitting the batch."""
    def y(x: Array, w: Array, b: Array | None, g: Any) -> Array:
        if _is_linear(g):
            return linear(x.reshape(g.n, g.c * g.h * g.w), w.reshape(g.m, -1), b)[:, :, None, None]
        out = np.empty((g.n, g.m, g.oh, g.ow), x.dtype)
        split(g, x.itemsize, lambda i, j: _unrolled_y(x[i:j], w, b, out[i:j], g))
        return out

    def dx(gy: Array, w: Array, g: Any) -> Array:
        if _is_linear(g):
            return linear_grad_x(gy.reshape(g.n, g.m), w.reshape(g.m, -1)).reshape(g.n, g.c, g.h, g.w)
        out = np.empty((g.n, g.c, g.h, g.w), gy.dtype)
        split(g, gy.itemsize, lambda i, j: _unrolled_dx(gy[i:j], w, out[i:j], g))
        return out

    def dw(gy: Array, x: Array, g: Any) -> Array:
        if _is_linear(g):
            flat = linear_grad_w(gy.reshape(g.n, g.m), x.reshape(g.n, g.c * g.h * g.w))
            return flat.reshape(g.m, g.c, g.kh, g.kw)
        total = np.zeros((g.c * g.kh * g.kw, g.m), gy.dtype)
        for part in split(g, gy.itemsize, lambda i, j: _unrolled_dw(gy[i:j], x[i:j], g)):
            total += part                  # in the order of the images, whoever was first
        return total.T.reshape(g.m, g.c, g.kh, g.kw)

    return y, dx, dw


# ---------------------------------------------------------------- the primitives
ALGORITHMS: dict[str, tuple[Callable[..., Array], ...]] = {       # name -> (y, dx, dw)
    "direct": (_direct_y, _direct_dx, _direct_dw),
    "unroll": _through(_one_by_one),
    "gemm": _through(_in_chunks),
}
ALGORITHMS["auto"] = ALGORITHMS["gemm"]


def _algorithm(g: Any) -> tuple[Callable[..., Array], ...]:
    if g.algorithm not in ALGORITHMS:
        raise ValueError(f"conv2d: algorithm {g.algorithm!r} is not one of {', '.join(ALGORITHMS)} on the cpu")
    return ALGORITHMS[g.algorithm]


def conv2d(x: Array, w: Array, b: Array | None, g: Any) -> Array:
    return _algorithm(g)[0](x, w, b, g)


def conv2d_grad_x(gy: Array, w: Array, g: Any) -> Array:
    return _algorithm(g)[1](gy, w, g)


def conv2d_grad_w(gy: Array, x: Array, g: Any) -> Array:
    return _algorithm(g)[2](gy, x, g)


def conv2d_grad_b(gy: Array) -> Array:
    n, m, oh, ow = gy.shape
    sums = np.empty((n, m), gy.dtype)
    maps = gy.reshape(n, m, oh * ow)
    parallel_for(n, images_a_chunk(m * oh * ow * gy.itemsize), lambda i, j: np.sum(maps[i:j], axis=2, out=sums[i:j]))
    return sums.sum(axis=0)
