"""Convolution in groups (KSH 2012, section 3.2): a filter reads the channels of its own group alone."""

from __future__ import annotations

from typing import Any

from ...tensor import Tensor
from .geometry import Padding, Pair, conv_geometry


def grouped(k: Any, x: Tensor, w: Tensor, b: Tensor | None, *, groups: int, stride: Pair, padding: Padding,
            algorithm: str) -> tuple[Tensor, Any]:
    """The body of conv2d for several groups: a convolution per group, whose maps are joined.

    Raises ValueError where groups divides the channels or the filters with a rest, or w has not a group's channels.
    """
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"conv2d: groups is {groups!r} but must be an int of at least 1")
    if len(x.shape) != 4 or len(w.shape) != 4:
        conv_geometry(x.shape, w.shape, None, stride, padding, algorithm)      # which refuses them
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
