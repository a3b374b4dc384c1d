"""Convolution as the formula: PMPP Figs. 16.4, 16.8 and 16.9 (with their corrections), a filter element at a time."""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array


def pad(x: Array, g: ConvGeometry) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (g.top, g.bottom), (g.left, g.right)))


def crop(xp: Array, g: ConvGeometry) -> Array:
    return np.ascontiguousarray(xp[:, :, g.top:g.top + g.h, g.left:g.left + g.w])


def under(xp: Array, p: int, q: int, g: ConvGeometry) -> Array:
    """The elements of padded images that filter element (p, q) meets, one per output: (n,c,oh,ow)."""
    return xp[:, :, p * g.dh:p * g.dh + g.sh * g.oh:g.sh, q * g.dw:q * g.dw + g.sw * g.ow:g.sw]


def padded_zeros(n: int, dtype: np.dtype, g: ConvGeometry) -> Array:
    return np.zeros((n, g.c, g.h + g.top + g.bottom, g.w + g.left + g.right), dtype)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    """y[n,m,i,j] = b[m] + sum over c,p,q of x[n, c, i*sh + p, j*sw + q] * w[m,c,p,q]"""
    xp = pad(x, g)
    y = np.zeros((g.n, g.m, g.oh, g.ow), x.dtype)
    if b is not None:
        y += b[:, None, None]
    for p in range(g.kh):
        for q in range(g.kw):
            y += np.einsum("ncij,mc->nmij", under(xp, p, q, g), w[:, :, p, q])
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    """dx[n, c, i*sh + p, j*sw + q] = sum over m,p,q of gy[n,m,i,j] * w[m,c,p,q]"""
    dxp = padded_zeros(g.n, gy.dtype, g)
    for p in range(g.kh):
        for q in range(g.kw):
            under(dxp, p, q, g)[...] += np.einsum("nmij,mc->ncij", gy, w[:, :, p, q])
    return crop(dxp, g)


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    """dw[m,c,p,q] = sum over n,i,j of gy[n,m,i,j] * x[n, c, i*sh + p, j*sw + q]"""
    xp = pad(x, g)
    dw = np.empty((g.m, g.c, g.kh, g.kw), gy.dtype)
    for p in range(g.kh):
        for q in range(g.kw):
            dw[:, :, p, q] = np.einsum("nmij,ncij->mc", gy, under(xp, p, q, g))
    return dw
