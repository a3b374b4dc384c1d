"""Geometry of sliding windows: stride and padding as users write them, output sizes, and their errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Integral, Number
from typing import Any, NamedTuple, TypeVar

Geometry = TypeVar("Geometry")
Pair = int | tuple[int, int]
Triple = int | tuple[int, int, int]
TALL = 32                                  # rows of a filter that kernels for thin groups have in a thread's registers
Padding = int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]
Windows = Padding | str                    # of convolutions: "same" and "valid" too


def cached(geometry: Callable[..., Geometry]) -> Callable[..., Geometry]:
    """Compute each geometry once; arguments that cannot be looked up (a list) go to the function, which judges."""
    fast = functools.lru_cache(maxsize=4096, typed=True)(geometry)

    @functools.wraps(geometry)
    def call(*arguments: object) -> Geometry:
        try:
            return fast(*arguments)
        except TypeError:
            return geometry(*arguments)
    return call


class PoolGeometry(NamedTuple):
    """Sizes of a pooling: images n, channels c, input h w, window kh kw, output oh ow, stride, padding; and how images
    are in memory."""

    n: int
    c: int
    h: int
    w: int
    kh: int
    kw: int
    oh: int
    ow: int
    sh: int
    sw: int
    top: int
    bottom: int
    left: int
    right: int
    layout: str = "NCHW"


class ConvGeometry(NamedTuple):
    """Sizes of a convolution: as PoolGeometry, with m filters; each reads the c / groups channels of its group, at
    pixels in steps of dh and dw. And the algorithm that was requested."""

    n: int
    c: int
    h: int
    w: int
    m: int
    kh: int
    kw: int
    oh: int
    ow: int
    sh: int
    sw: int
    top: int
    bottom: int
    left: int
    right: int
    groups: int
    dh: int
    dw: int
    algorithm: str

    @property
    def dense(self) -> bool:
        """Whether a filter reads all channels, and neighbouring pixels."""
        return (self.groups, self.dh, self.dw) == (1, 1, 1)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's, also within tuples: NumPy's small ones overflow, and they print differently."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, Number) and hasattr(value, "item") else value


def is_int(value: object, least: float) -> bool:
    """Whether a value is an int of at least `least`, NumPy's too. True and False are not: other options take them."""
    return (value.__class__ is int or (isinstance(value, Integral) and not isinstance(value, bool))) and (
        int(value) >= least)


def several(name: str, what: str, value: Any, least: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    """An int, or an int of each axis, each at least `least`; of one axis an int alone."""
    value, count = plain(value), len(axes)
    found = value if isinstance(value, tuple) and count > 1 else (value,) * count
    if len(found) != count or not all(is_int(v, least) for v in found):
        word = "pair" if count == 2 else "triple"
        form = f" or a {word} of ints ({', '.join(axes)}), each at least" if count > 1 else " of at least"
        raise ValueError(f"{name}: {what} is {value!r} but must be an int{form} {least}")
    return found


def whole(name: str, what: str, value: object, least: int) -> int:
    """An int of at least `least`, as Python's."""
    return several(name, what, value, least, ("",))[0]


def pair(name: str, what: str, value: Pair, least: int) -> tuple[int, int]:
    """An int, or a pair of ints (height, width), each at least `least`."""
    height, width = several(name, what, value, least, ("height", "width"))
    return height, width


def edges(name: str, padding: Padding) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) from p, (ph, pw) or ((top, bottom), (left, right))."""
    padding = plain(padding)
    sides = padding if isinstance(padding, tuple) else (padding, padding)
    flat = [s for side in sides for s in (side if isinstance(side, tuple) else (side, side))]
    if len(sides) != 2 or len(flat) != 4 or not all(is_int(s, 0) for s in flat):
        raise ValueError(f"{name}: padding is {padding!r} but must be p, (ph, pw) or ((top, bottom), "
                         "(left, right)), ints of at least 0")
    return flat[0], flat[1], flat[2], flat[3]


def around(name: str, padding: Windows | Triple, window: tuple[int, ...], stride: tuple[int, ...],
           dilation: tuple[int, ...]) -> Any:
    """A convolution's padding in numbers: "same" makes the output as large as the input (for an even window, with
    one more after than before), "valid" is 0."""
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return 0
    if padding != "same":
        raise ValueError(f"{name}: padding {padding!r} is not 'same' or 'valid'; write it in numbers")
    if max(stride) > 1:
        raise ValueError(f"{name}: padding is 'same' but stride is {stride}, by which the output is smaller; use "
                         "stride 1, or padding in numbers")
    total = [d * (size - 1) for size, d in zip(window, dilation, strict=True)]
    return tuple((n // 2, n - n // 2) for n in total)


def _slide(name: str, size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int],
           edge: tuple[int, int, int, int]) -> tuple[int, int]:
    """Output size: floor((size + padding - window) / stride) + 1 along each axis."""
    h, w = size[0] + edge[0] + edge[1], size[1] + edge[2] + edge[3]
    if window[0] > h or window[1] > w:
        raise ValueError(f"{name}: the window {window[0]}x{window[1]} is larger than the padded input {h}x{w} "
                         f"(input {size[0]}x{size[1]}); use a smaller window or more padding")
    return (h - window[0]) // stride[0] + 1, (w - window[1]) // stride[1] + 1


@cached
def conv_geometry(x: tuple[int, ...], w: tuple[int, ...], b: tuple[int, ...] | None, stride: Pair,
                  padding: Windows, algorithm: str, groups: int = 1, dilation: Pair = 1) -> ConvGeometry:
    """The geometry of conv2d from shapes x (n,c,h,w), w (m,c/groups,kh,kw), b (m,); cached per shape."""
    if len(x) != 4 or len(w) != 4:
        raise ValueError(f"conv2d: x has shape {x} and w has shape {w} but both must have 4 axes, x (n,c,h,w) "
                         "and w (m,c,kh,kw); see .reshape()")
    if not is_int(groups, 1):
        raise ValueError(f"conv2d: groups is {groups!r} but must be an int of at least 1")
    if groups == 1 and x[1] != w[1]:
        raise ValueError(f"conv2d: x has {x[1]} channels but w expects {w[1]} (x {x}, w {w}); make them equal")
    if x[1] % groups or w[0] % groups or x[1] != groups * w[1]:
        raise ValueError(f"conv2d: groups is {groups} but x {x} has {x[1]} channels and w {w} has {w[0]} filters of "
                         f"{w[1]}; groups must divide channels and filters, and w must have the channels of one group")
    if min(x[1:]) < 1 or min(w) < 1:
        raise ValueError(f"conv2d: x {x} and w {w} must have at least 1 channel, row, column and filter; "
                         "only the number of images may be 0")
    if b is not None and b != (w[0],):
        raise ValueError(f"conv2d: b has shape {b} but w has {w[0]} filters; b must have shape ({w[0]},)")
    sh, sw = pair("conv2d", "stride", stride, 1)
    dh, dw = pair("conv2d", "dilation", dilation, 1)
    edge = edges("conv2d", around("conv2d", padding, w[2:], (sh, sw), (dh, dw)))
    wide = (w[2] - 1) * dh + 1, (w[3] - 1) * dw + 1
    for size, window, reach, d in zip((x[2] + edge[0] + edge[1], x[3] + edge[2] + edge[3]), w[2:], wide, (dh, dw),
                                      strict=True):
        if d > 1 and reach > size:
            raise ValueError(f"conv2d: the window of {window} with dilation {d} is {reach} wide, larger than the "
                             f"padded input {size}; use a smaller dilation or more padding")
    oh, ow = _slide("conv2d", x[2:], wide, (sh, sw), edge)
    return ConvGeometry(*x, w[0], w[2], w[3], oh, ow, sh, sw, *edge, groups, dh, dw, algorithm)


@cached
def pool_geometry(name: str, x: tuple[int, ...], size: Pair, stride: Pair | None,
                  padding: Padding) -> PoolGeometry:
    """The geometry of a pooling from x (n,c,h,w); the stride is the window's size if it is None."""
    if len(x) != 4:
        raise ValueError(f"{name}: x has shape {x} but must have 4 axes (n,c,h,w); see .reshape()")
    kh, kw = pair(name, "size", size, 1)
    sh, sw = (kh, kw) if stride is None else pair(name, "stride", stride, 1)
    edge = edges(name, padding)
    if max(edge[:2]) >= kh or max(edge[2:]) >= kw:
        raise ValueError(f"{name}: padding {padding!r} is not smaller than the window {kh}x{kw}, so a window "
                         "could hold padding alone; use less padding")
    oh, ow = _slide(name, x[2:], (kh, kw), (sh, sw), edge)
    return PoolGeometry(*x, kh, kw, oh, ow, sh, sw, *edge)
