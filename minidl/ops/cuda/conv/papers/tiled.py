"""Convolution through tiles in shared memory (PMPP Fig. 16.13, corrected), and with filters in constant memory."""

from __future__ import annotations

import numpy as np

from ....common.geometry import ConvGeometry, layouts
from ....common.primitives import Array
from ... import launch
from ...reduce import sum_first

TILE = 16                                  # outputs of a block along each axis
TILE_OF_LANES = 4                          # the same in NHWC and CHWN, of LANES maps or images each
CONSTANT_BYTES = 65536                     # of constant memory, as in tiled.cu
BLOCKS = 1024                              # that dw splits its images for: a number of its own, not the device's, so
                                           # that the order of a sum depends on sizes alone

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("conv/papers/tiled.cu", (launch.real(dtype), ("TILE", TILE), ("CONSTANT", constant)))
    for dtype in launch.C_NAME for constant in (0, 1)] + [
    ("conv/papers/tiled.cu", (launch.real(dtype), ("TILE", TILE_OF_LANES), ("CONSTANT", 0),
                              *layouts.constants(layout, channels)))
    for dtype in launch.C_NAME for layout, channels in (("NHWC", 3), ("NHWC", layouts.CHANNELS), ("CHWN", 1))]


def _tile(layout: str) -> int:
    return TILE if layout == "NCHW" else TILE_OF_LANES


def _elements(direction: str, g: ConvGeometry, layout: str = "NCHW") -> int:
    """Elements of a block's shared memory, not counting the filter."""
    tile = _tile(layout)
    if direction == "dx":
        return ((tile + g.kh - 2) // g.sh + 1) * ((tile + g.kw - 2) // g.sw + 1) * layouts.deep(layout, g.m)
    under = ((tile - 1) * g.sh + g.kh) * ((tile - 1) * g.sw + g.kw) * layouts.deep(layout, g.c)
    return under + tile * tile if direction == "dw" else under


def _taps(direction: str, g: ConvGeometry, layout: str = "NCHW") -> int:
    """Elements of the filters in it."""
    together = layouts.deep(layout, g.m if direction == "dx" else g.c) if layout == "NHWC" else 1
    return 0 if direction == "dw" else g.kh * g.kw * together * layouts.lanes(layout)[0]


def _too_large(direction: str, elements: int, g: ConvGeometry, dtype: np.dtype) -> str | None:
    wanted, most = elements * dtype.itemsize, launch.most_shared()
    if wanted > most:
        return (f"its tile for {direction} with a {g.kh}x{g.kw} filter and stride {g.sh}x{g.sw} takes {wanted} bytes "
                f"of shared memory but a block has {most}")
    return None


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype, layout: str = "NCHW") -> str | None:
    """Why this algorithm cannot do a case, or None."""
    return _too_large(direction, _elements(direction, g, layout) + _taps(direction, g, layout), g, dtype)


def constant_refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    """Why the variant with filters in constant memory cannot do a case, or None; its dw is that of `tiled`."""
    if direction == "dw":
        return refuses(direction, g, dtype)
    filters = g.m * g.c * g.kh * g.kw * dtype.itemsize
    if filters > CONSTANT_BYTES:
        return f"the filters take {filters} bytes but constant memory has {CONSTANT_BYTES}"
    return _too_large(direction, _elements(direction, g), g, dtype)


def _kernel(name: str, dtype: np.dtype, constant: int, layout: str = "NCHW", channels: int = 1) -> launch.Kernel:
    return launch.kernel("conv/papers/tiled.cu", name, launch.real(dtype), ("TILE", _tile(layout)),
                         ("CONSTANT", constant), *layouts.constants(layout, channels))


def _constant_kernel(name: str, w: Array) -> launch.Kernel:
    """A kernel after its FILTERS were filled, both on the current stream: the next call there may refill them."""
    kernel, w = _kernel(name, w.dtype, 1), launch.dense(w)
    kernel.module.get_global("FILTERS").copy_from_device_async(w.data, w.nbytes)
    return kernel


def _grid(layout: str, n: int, maps: int, h: int, w: int) -> tuple[int]:
    tile, (together, images, _) = _tile(layout), layouts.lanes(layout)
    return (max(1, -(-n // images) * -(-maps // together) * -(-h // tile) * -(-w // tile)),)


def _block(layout: str) -> tuple[int, int]:
    return _tile(layout) * layouts.lanes(layout)[2], _tile(layout)


def _y(kernel: launch.Kernel, x: Array, w: Array, b: Array | None, g: ConvGeometry, elements: int,
       layout: str = "NCHW") -> Array:
    out = launch.empty(layouts.ordered(layouts.IMAGES[layout], (g.n, g.m, g.oh, g.ow)), x.dtype)
    kernel(_grid(layout, g.n, g.m, g.oh, g.ow), _block(layout), x, w, b, out, launch.by_value("Geometry", g),
           shared=elements * x.itemsize)
    return out


def _dx(kernel: launch.Kernel, gy: Array, w: Array, g: ConvGeometry, elements: int, layout: str = "NCHW") -> Array:
    out = launch.empty(layouts.ordered(layouts.IMAGES[layout], (g.n, g.c, g.h, g.w)), gy.dtype)
    kernel(_grid(layout, g.n, g.c, g.h, g.w), _block(layout), gy, w, out, launch.by_value("Geometry", g),
           shared=elements * gy.itemsize)
    return out


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, layout: str = "NCHW") -> Array:
    return _y(_kernel("conv2d_tiled_y", x.dtype, 0, layout, g.c), x, w, b, g,
              _elements("y", g, layout) + _taps("y", g, layout), layout)


def dx(gy: Array, w: Array, g: ConvGeometry, layout: str = "NCHW") -> Array:
    return _dx(_kernel("conv2d_tiled_dx", gy.dtype, 0, layout, g.m), gy, w, g,
               _elements("dx", g, layout) + _taps("dx", g, layout), layout)


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    pairs = g.m * g.c * -(-g.kh * g.kw // (TILE * TILE))
    images = max(1, -(-g.n // -(-BLOCKS // pairs)))
    chunks = launch.blocks(g.n, images)
    parts = launch.empty((chunks, g.m, g.c, g.kh, g.kw), gy.dtype)
    _kernel("conv2d_tiled_dw", gy.dtype, 0)(
        (chunks * pairs,), (TILE * TILE,), gy, x, parts, launch.by_value("Geometry", g), images,
        shared=_elements("dw", g) * gy.itemsize)
    return parts[0] if chunks == 1 else sum_first(parts)


def constant_y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    return _y(_constant_kernel("conv2d_tiled_y", w), x, w, b, g, _elements("y", g))


def constant_dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return _dx(_constant_kernel("conv2d_tiled_dx", w), gy, w, g, _elements("dx", g))
