"""Convolution in groups (KSH 2012, section 3.2), where a filter reads the channels of its own group alone, and with
dilation (Yu and Koltun 2016), where it reads every so manieth pixel. Both are plain convolutions of parts."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ....core.tensor import Tensor
from ..geometry import Padding, Pair, conv_geometry, edges, pair

Body = tuple[Tensor, Any]


def grouped(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, *, groups: int, dilation: Pair, stride: Pair,
            padding: Padding, algorithm: str) -> Body:
    """The body of conv2d for several groups: a convolution per group, whose maps are joined.

    Raises ValueError where groups divides the channels or the filters with a rest, or w has not a group's channels.
    """
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"conv2d: groups is {groups!r} but must be an int of at least 1")
    if len(x.shape) != 4 or len(w.shape) != 4:
        conv_geometry(x.shape, w.shape, None, stride, padding, algorithm)      # which refuses them
    if pair("conv2d", "dilation", dilation, 1) != (1, 1):
        return dilated(k, x, w, b, groups=groups, dilation=dilation, stride=stride, padding=padding,
                       algorithm=algorithm)
    if x.shape[1] % groups or w.shape[0] % groups or x.shape[1] != groups * w.shape[1]:
        raise ValueError(f"conv2d: groups is {groups} but x {x.shape} has {x.shape[1]} channels and w {w.shape} has "
                         f"{w.shape[0]} filters of {w.shape[1]}; groups must divide channels and filters, and w must "
                         "have the channels of one group")

    g = conv_geometry(x.shape, (w.shape[0], x.shape[1], *w.shape[2:]), None if b is None else b.shape, stride, padding,
                      algorithm)._replace(c=w.shape[1], m=w.shape[0] // groups)
    channels, maps = [(slice(None), part) for part in _parts(x.shape[1], groups)], _parts(w.shape[0], groups)
    xs, ws = [k.getitem(x, part) for part in channels], [k.getitem(w, part) for part in maps]
    bs = [None if b is None else k.getitem(b, part) for part in maps]

    def backward(gy: Tensor, need: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        gys = [k.getitem(gy, (slice(None), part)) for part in maps]
        return (k.concatenate(tuple(k.conv2d_grad_x(*both, g) for both in zip(gys, ws, strict=True)), 1)
                if need[0] else None,
                k.concatenate(tuple(k.conv2d_grad_w(*both, g) for both in zip(gys, xs, strict=True)), 0)
                if need[1] else None,
                k.conv2d_grad_b(gy) if need[2] else None)
    return k.concatenate(tuple(k.conv2d(*three, g) for three in zip(xs, ws, bs, strict=True)), 1), backward


def _parts(size: int, groups: int) -> list[slice]:
    return [slice(i * size // groups, (i + 1) * size // groups) for i in range(groups)]


def dilated(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, *, groups: int, dilation: Pair, stride: Pair,
            padding: Padding, algorithm: str) -> Body:
    """The body of conv2d with dilation, by any algorithm: along an axis, output i reads the pixels i s + p d.

    With q = gcd(s, d), outputs whose i leaves the same rest by d / q read every d-th pixel from rest * s on: so they
    are a plain convolution, of stride s / q, of these pixels, and of d-th of the padding. The images of all rests are
    one batch.

    Raises ValueError for a dilated window that is larger than the padded images.
    """
    n, c, m = *x.shape[:2], w.shape[0]
    edge = edges("conv2d", padding)
    ways = [_Way(size, before, after, window, s, d) for size, before, after, window, s, d in zip(
        x.shape[2:], edge[::2], edge[1::2], w.shape[2:], pair("conv2d", "stride", stride, 1),
        pair("conv2d", "dilation", dilation, 1), strict=True)]
    rows, cols = ways
    picks = [(slice(None), slice(None), i, j) for i in rows.picks for j in cols.picks]
    tiled = all(way.tiled for way in ways)
    tiles = (n, c, rows.taken, rows.rests, cols.taken, cols.rests)
    framed = x
    if any(way.framed != way.size for way in ways):
        framed = k.pad(x, ((0, 0), (0, 0), *((way.front, way.framed - way.size - way.front) for way in ways)), 0)
    whole, inside = framed.shape, (slice(None), slice(None), *(
        slice(way.front, way.front + way.size) for way in ways))
    if tiled:
        parts = k.reshape(k.transpose(k.reshape(framed, tiles), (3, 5, 0, 1, 2, 4)),
                          (rows.rests * cols.rests * n, c, rows.taken, cols.taken))
    else:
        parts = k.concatenate(tuple(k.getitem(framed, pick) for pick in picks), 0)
    y, plain_backward = plain(k, parts, w, b, groups=groups, stride=(rows.stride, cols.stride),
                              padding=(rows.padding, cols.padding), algorithm=algorithm)
    apart = (rows.rests, cols.rests, n, m, rows.each, cols.each)
    joined = (n, m, rows.each * rows.rests, cols.each * cols.rests)
    kept = (slice(None), slice(None), slice(rows.out), slice(cols.out))

    def backward(gy: Tensor, need: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        gz = gy
        if joined != gy.shape:
            gz = k.pad(gy, ((0, 0), (0, 0), (0, joined[2] - rows.out), (0, joined[3] - cols.out)), 0)
        gz = k.transpose(k.reshape(gz, (n, m, rows.each, rows.rests, cols.each, cols.rests)), (3, 5, 0, 1, 2, 4))
        gx, gw, _ = plain_backward(k.reshape(gz, (rows.rests * cols.rests * n, *apart[3:])), (*need[:2], False))
        if need[0] and tiled:
            gx = k.reshape(gx, (rows.rests, cols.rests, n, c, rows.taken, cols.taken))
            gx = k.getitem(k.reshape(k.transpose(gx, (2, 3, 4, 0, 5, 1)), whole), inside)
        elif need[0]:
            total = None
            for at, pick in enumerate(picks):                        # each pixel is in one part at most
                one = k.getitem_grad_x(k.getitem(gx, slice(at * n, at * n + n)), pick, whole, True)
                total = one if total is None else k.add(total, one)
            gx = k.getitem(total, inside)
        return gx, gw, k.conv2d_grad_b(gy) if need[2] else None
    return k.getitem(k.reshape(k.transpose(k.reshape(y, apart), (2, 3, 4, 0, 5, 1)), joined), kept), backward


def plain(k: ModuleType, x: Tensor, w: Tensor, b: Tensor | None, *, groups: int, stride: Pair, padding: Padding,
          algorithm: str) -> Body:
    """The body of conv2d without dilation; its backward gives no gradient by b."""
    if groups != 1:
        return grouped(k, x, w, b, groups=groups, dilation=1, stride=stride, padding=padding, algorithm=algorithm)
    g = conv_geometry(x.shape, w.shape, None if b is None else b.shape, stride, padding, algorithm)
    return k.conv2d(x, w, b, g), lambda gy, need: (
        k.conv2d_grad_x(gy, w, g) if need[0] else None, k.conv2d_grad_w(gy, x, g) if need[1] else None, None)


class _Way:
    """One axis of a dilated convolution: how many pixels it has, and which of them are a part's."""

    def __init__(self, size: int, before: int, after: int, window: int, stride: int, dilation: int):
        wide = (window - 1) * dilation + 1
        if wide > size + before + after:
            raise ValueError(f"conv2d: the window of {window} with dilation {dilation} is {wide} wide, larger than the "
                             f"padded input {size + before + after}; use a smaller dilation or more padding")
        common = math.gcd(stride, dilation)
        self.size, self.out = size, (size + before + after - wide) // stride + 1
        self.rests, self.stride = dilation // common, stride // common
        self.each = -(-self.out // self.rests)         # outputs of a part, some of them beyond the last
        length = (self.each - 1) * self.stride + window
        starts = range(0, self.rests * stride, stride)
        lead = min(before // dilation, length - 1) if starts[-1] < dilation else 0         # padding that all parts have
        self.front = before - lead * dilation
        self.taken = min(length - lead, -(-(size + self.front) // dilation))
        self.padding = lead, length - lead - self.taken
        self.picks = [slice(first, first + (self.taken - 1) * dilation + 1, dilation)
                      for first in starts]
        self.framed = max(size + self.front, self.picks[-1].stop)
        self.tiled = stride == 1 and self.framed == self.taken * dilation      # the parts are all pixels
