"""Convolution in groups (KSH 2012, section 3.2), where a filter reads the channels of its own group alone, and with
dilation (Yu and Koltun 2016), where it reads pixels at a distance. Thin groups have algorithms of their own; others are
plain convolutions of parts."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ....core.tensor import Tensor
from ..geometry import TALL, ConvGeometry

Body = tuple[Tensor, Any]

THIN = 8                                   # channels, and filters, of a group up to which products in parts do not pay


def as_one(g: ConvGeometry) -> bool:
    """Whether the primitives take a convolution that is not dense as a whole."""
    thin = max(g.c, g.m) <= THIN * g.groups and g.kh <= TALL
    return g.algorithm == "grouped" or (g.algorithm == "auto" and thin)


def in_parts(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, *, g: ConvGeometry) -> Body:
    """The body of conv2d by plain convolutions of parts."""
    if (g.dh, g.dw) != (1, 1):
        return dilated(k, x, w, b, g=g)
    return grouped(k, x, w, b, g=g)


def grouped(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, *, g: ConvGeometry) -> Body:
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


def dilated(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, *, g: ConvGeometry) -> Body:
    """Along an axis, output i reads the pixels i s + p d.

    With q = gcd(s, d), outputs whose i has the same remainder r by d / q read every d-th pixel from r * s on. So they
    are a convolution without dilation, of stride s / q, of these pixels and of every d-th of the padding. The images
    of all remainders are one batch.
    """
    rows = _Way(g.h, g.top, g.oh, g.kh, g.sh, g.dh)
    cols = _Way(g.w, g.left, g.ow, g.kw, g.sw, g.dw)
    picks = [(slice(None), slice(None), i, j) for i in rows.picks for j in cols.picks]
    framed = x
    if (rows.framed, cols.framed) != (g.h, g.w):
        framed = k.pad(x, ((0, 0), (0, 0), *((way.front, way.framed - way.size - way.front) for way in (rows, cols))),
                       0)
    whole, inside = framed.shape, (slice(None), slice(None), *(
        slice(way.front, way.front + way.size) for way in (rows, cols)))
    tiled, tiles = rows.tiled and cols.tiled, (g.n, g.c, rows.taken, rows.rests, cols.taken, cols.rests)
    if tiled:
        parts = k.reshape(k.transpose(k.reshape(framed, tiles), (3, 5, 0, 1, 2, 4)),
                          (len(picks) * g.n, g.c, rows.taken, cols.taken))
    else:
        parts = k.concatenate(tuple(k.getitem(framed, pick) for pick in picks), 0)
    y, plain_backward = plain(k, parts, w, b, g=g._replace(
        n=len(picks) * g.n, h=rows.taken, w=cols.taken, oh=rows.each, ow=cols.each, sh=rows.stride, sw=cols.stride,
        top=rows.padding[0], bottom=rows.padding[1], left=cols.padding[0], right=cols.padding[1], dh=1, dw=1))
    apart = (rows.rests, cols.rests, g.n, g.m, rows.each, cols.each)
    joined = (g.n, g.m, rows.each * rows.rests, cols.each * cols.rests)
    kept = (slice(None), slice(None), slice(g.oh), slice(g.ow))

    def backward(gy: Tensor, need: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        gz = gy
        if joined != gy.shape:
            gz = k.pad(gy, ((0, 0), (0, 0), (0, joined[2] - g.oh), (0, joined[3] - g.ow)), 0)
        gz = k.transpose(k.reshape(gz, (g.n, g.m, rows.each, rows.rests, cols.each, cols.rests)), (3, 5, 0, 1, 2, 4))
        gx, gw, _ = plain_backward(k.reshape(gz, (len(picks) * g.n, *apart[3:])), (*need[:2], False))
        if need[0] and tiled:
            gx = k.reshape(gx, (rows.rests, cols.rests, g.n, g.c, rows.taken, cols.taken))
            gx = k.getitem(k.reshape(k.transpose(gx, (2, 3, 4, 0, 5, 1)), whole), inside)
        elif need[0]:
            total = None
            for at, pick in enumerate(picks):                        # each pixel is in one part at most
                one = k.getitem_grad_x(k.getitem(gx, slice(at * g.n, at * g.n + g.n)), pick, whole, True)
                total = one if total is None else k.add(total, one)
            gx = k.getitem(total, inside)
        return gx, gw, k.conv2d_grad_b(gy) if need[2] else None
    return k.getitem(k.reshape(k.transpose(k.reshape(y, apart), (2, 3, 4, 0, 5, 1)), joined), kept), backward


def plain(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, *, g: ConvGeometry) -> Body:
    """Without dilation."""
    if not g.dense:
        return grouped(k, x, w, b, g=g)
    return k.conv2d(x, w, b, g), lambda gy, need: (
        k.conv2d_grad_x(gy, w, g) if need[0] else None, k.conv2d_grad_w(gy, x, g) if need[1] else None, None)


class _Way:
    """One axis of a dilated convolution: which of its pixels are a part's."""

    def __init__(self, size: int, before: int, out: int, window: int, stride: int, dilation: int):
        common = math.gcd(stride, dilation)
        self.size, self.rests, self.stride = size, dilation // common, stride // common
        self.each = -(-out // self.rests)              # outputs of a part, some of them beyond the last
        length = (self.each - 1) * self.stride + window
        starts = range(0, self.rests * stride, stride)
        lead = min(before // dilation, length - 1) if starts[-1] < dilation else 0         # padding that all parts have
        self.front = before - lead * dilation
        self.taken = min(length - lead, -(-(size + self.front) // dilation))
        self.padding = lead, length - lead - self.taken
        self.picks = [slice(first, first + (self.taken - 1) * dilation + 1, dilation) for first in starts]
        self.framed = max(size + self.front, self.picks[-1].stop)
        self.tiled = stride == 1 and self.framed == self.taken * dilation      # the parts are all pixels
