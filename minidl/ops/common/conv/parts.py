"""Convolution in groups (KSH 2012, section 3.2), where a filter reads the channels of its own group alone, and with
dilation (Yu and Koltun 2016), where it reads pixels apart. Thin groups have algorithms of their own; others are plain
convolutions of parts."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ....core.tensor import Tensor
from ..geometry import ConvGeometry

Body = tuple[Tensor, Any]

THIN = 8                                   # channels, and filters, of a group up to which products in parts do not pay


def as_one(g: ConvGeometry) -> bool:
    """Whether the primitives are given a convolution whole."""
    return g.dense or g.algorithm == "grouped" or (g.algorithm == "auto" and max(g.c, g.m) <= THIN * g.groups)


def in_parts(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, g: ConvGeometry) -> Body:
    """The body of conv2d by plain convolutions of parts."""
    if (g.dh, g.dw) != (1, 1):
        return _dilated(k, x, w, b, g)
    return _grouped(k, x, w, b, g)


def _grouped(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, g: ConvGeometry) -> Body:
    """A convolution per group, whose maps are joined."""
    one = g._replace(c=g.c // g.groups, m=g.m // g.groups, groups=1)
    channels, maps = [(slice(None), part) for part in _parts(g.c, g.groups)], _parts(g.m, g.groups)
    xs, ws = [k.getitem(x, part) for part in channels], [k.getitem(w, part) for part in maps]
    bs = [None if b is None else k.getitem(b, part) for part in maps]

    def backward(gy: Tensor, need: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        gys = [k.getitem(gy, (slice(None), part)) for part in maps]
        return (k.concatenate(tuple(k.conv2d_grad_x(*both, one) for both in zip(gys, ws, strict=True)), 1)
                if need[0] else None,
                k.concatenate(tuple(k.conv2d_grad_w(*both, one) for both in zip(gys, xs, strict=True)), 0)
                if need[1] else None,
                k.conv2d_grad_b(gy) if need[2] else None)
    return k.concatenate(tuple(k.conv2d(*three, one) for three in zip(xs, ws, bs, strict=True)), 1), backward


def _parts(size: int, groups: int) -> list[slice]:
    return [slice(i * size // groups, (i + 1) * size // groups) for i in range(groups)]


def _dilated(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, g: ConvGeometry) -> Body:
    """Along an axis, output i reads the pixels i s + p d.

    With q = gcd(s, d), outputs whose i leaves the same rest by d / q read every d-th pixel from rest * s on: so they
    are a convolution without dilation, of stride s / q, of these pixels. The images of all rests are one batch.
    """
    rows = _Way(g.h + g.top + g.bottom, g.oh, g.kh, g.sh, g.dh)
    cols = _Way(g.w + g.left + g.right, g.ow, g.kw, g.sw, g.dw)
    picks = [(slice(None), slice(None), i, j) for i in rows.picks for j in cols.picks]
    framed = k.pad(x, ((0, 0), (0, 0), (g.top, rows.padded - g.h - g.top), (g.left, cols.padded - g.w - g.left)), 0)
    whole, inside = framed.shape, (slice(None), slice(None), slice(g.top, g.top + g.h), slice(g.left, g.left + g.w))
    parts = k.concatenate(tuple(k.getitem(framed, pick) for pick in picks), 0)
    y, plain_backward = _plain(k, parts, w, b, g._replace(
        n=len(picks) * g.n, h=parts.shape[2], w=parts.shape[3], oh=rows.each, ow=cols.each, sh=rows.stride,
        sw=cols.stride, top=0, bottom=0, left=0, right=0, dh=1, dw=1))
    apart = (rows.rests, cols.rests, g.n, g.m, rows.each, cols.each)
    joined = (g.n, g.m, rows.each * rows.rests, cols.each * cols.rests)
    kept = (slice(None), slice(None), slice(g.oh), slice(g.ow))

    def backward(gy: Tensor, need: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        gz = k.pad(gy, ((0, 0), (0, 0), (0, joined[2] - g.oh), (0, joined[3] - g.ow)), 0)
        gz = k.transpose(k.reshape(gz, (g.n, g.m, rows.each, rows.rests, cols.each, cols.rests)), (3, 5, 0, 1, 2, 4))
        gx, gw, _ = plain_backward(k.reshape(gz, (rows.rests * cols.rests * g.n, *apart[3:])), (*need[:2], False))
        if need[0]:
            total = None
            for at, pick in enumerate(picks):                        # each pixel is in one part at most
                one = k.getitem_grad_x(k.getitem(gx, slice(at * g.n, at * g.n + g.n)), pick, whole, True)
                total = one if total is None else k.add(total, one)
            gx = k.getitem(total, inside)
        return gx, gw, k.conv2d_grad_b(gy) if need[2] else None
    return k.getitem(k.reshape(k.transpose(k.reshape(y, apart), (2, 3, 4, 0, 5, 1)), joined), kept), backward


def _plain(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, g: ConvGeometry) -> Body:
    """Without dilation."""
    if not g.dense:
        return _grouped(k, x, w, b, g)
    return k.conv2d(x, w, b, g), lambda gy, need: (
        k.conv2d_grad_x(gy, w, g) if need[0] else None, k.conv2d_grad_w(gy, x, g) if need[1] else None, None)


class _Way:
    """One axis of a dilated convolution: which of its pixels are a part's."""

    def __init__(self, padded: int, out: int, window: int, stride: int, dilation: int):
        common = math.gcd(stride, dilation)
        self.rests, self.stride = dilation // common, stride // common
        self.each = -(-out // self.rests)              # outputs of a part, some of them beyond the last
        length = (self.each - 1) * self.stride + window
        self.picks = [slice(first, first + (length - 1) * dilation + 1, dilation)
                      for first in range(0, self.rests * stride, stride)]
        self.padded = max(padded, self.picks[-1].stop)
