"""The orders of images and filters in memory, for launchers of convolutions that take `layout`.

The kernels' side is ops/cuda/include/layout.cuh.
"""

from __future__ import annotations

from typing import Any

# Layout -> for each axis in memory order, which axis of (n,c,h,w) it is; and which of (m,c,kh,kw)
IMAGES = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1), "CHWN": (1, 2, 3, 0)}
FILTERS = {"NCHW": (0, 1, 2, 3), "NHWC": (2, 3, 1, 0), "CHWN": (0, 1, 2, 3)}

LANES = 16                                 # neighbours in memory that a block takes: maps in NHWC, images in CHWN
CHANNELS = 8                               # of its input, at most, that a block takes at a time in NHWC


def known(function: str, layout: str) -> str:
    """The layout. Raises ValueError for a name that is not a layout."""
    if layout not in IMAGES:
        raise ValueError(f"{function}: layout is {layout!r} but must be one of {', '.join(IMAGES)}; write it so")
    return layout


def ordered(axes: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes in the order of a layout.

    >>> ordered(IMAGES["CHWN"], (128, 3, 32, 32))
    (3, 32, 32, 128)
    """
    return tuple([sizes[axis] for axis in axes])


def restored(axes: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes in the order of a layout as (n,c,h,w), or (m,c,kh,kw): the way back.

    >>> restored(IMAGES["CHWN"], (3, 32, 32, 128))
    (128, 3, 32, 32)
    """
    return tuple(sizes[axes.index(axis)] for axis in range(4))


def constants(layout: str, channels: int = 0) -> tuple[tuple[str, Any], ...]:
    """What kernels are compiled with: nothing for NCHW. channels: of the input, of kernels that use shared memory.

    >>> constants("NHWC", 3)
    (('LAYOUT', 'NHWC'), ('LANES', 16), ('CHANNELS', 3))
    """
    order: tuple[tuple[str, Any], ...] = () if layout == "NCHW" else (("LAYOUT", layout),)
    if not order or not channels:
        return order
    lanes = (*order, ("LANES", LANES))
    return (*lanes, ("CHANNELS", min(channels, CHANNELS))) if layout == "NHWC" else lanes


def lanes(layout: str) -> tuple[int, int, int]:
    """Maps and images of a block that uses shared memory, and threads side by side for them."""
    return {"NCHW": (1, 1, 1), "NHWC": (LANES, 1, LANES), "CHWN": (1, LANES, LANES)}[layout]


def deep(layout: str, channels: int) -> int:
    """Elements of a pixel in a block's shared memory."""
    return {"NCHW": 1, "NHWC": min(channels, CHANNELS), "CHWN": LANES}[layout]
