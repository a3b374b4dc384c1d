"""Convolutions of images whose memory order is not NCHW: `layout="NHWC"` or `"CHWN"`, on CUDA.

It is separate from `ops.conv2d`, whose images are NCHW: to measure what the order costs and saves.

    import cupy
    from minidl import layouts

    x, w = cupy.ones((128, 3, 32, 32), "float32"), cupy.ones((64, 3, 8, 8), "float32")
    images = layouts.turned(x, "CHWN")                                  # (3, 32, 32, 128)
    y = layouts.conv2d(images, layouts.turned(w, "CHWN", filters=True), layout="CHWN", algorithm="tiled")
    y = layouts.turned(y, "NCHW", of="CHWN")                            # (128, 64, 25, 25)
"""

from __future__ import annotations

from ..core import device
from ..core.device import Array
from ..core.tensor import Tensor
from ..ops.common.geometry import Padding, Pair, conv_geometry
from ..ops.common.geometry import layouts as orders

__all__ = ["LAYOUTS", "conv2d", "turned"]

LAYOUTS = tuple(orders.IMAGES)


def turned(array: Array, to: str, of: str = "NCHW", filters: bool = False) -> Array:
    """A dense array with the same elements in another layout: a NumPy or CuPy array of 4 axes, in the order `of`.

    filters: it holds filters, (m,c,kh,kw) in NCHW and in CHWN; in NHWC (kh,kw,c,m), where neighbouring threads have
    neighbouring filters.

    Raises ValueError for a name that `LAYOUTS` does not have, and for an array that does not have 4 axes; TypeError for
    what is not an array.

    >>> import numpy as np
    >>> x = np.arange(12).reshape(1, 3, 2, 2)            # (n,c,h,w): red 0 to 3, green 4 to 7, blue 8 to 11
    >>> turned(x, "NHWC").ravel()
    array([ 0,  4,  8,  1,  5,  9,  2,  6, 10,  3,  7, 11])
    >>> turned(turned(x, "CHWN"), "NCHW", of="CHWN").shape
    (1, 3, 2, 2)
    """
    axes = orders.FILTERS if filters else orders.IMAGES
    there, here = (axes[orders.known("turned", name)] for name in (to, of))
    _require_arrays("turned", array)
    if array.ndim != 4:
        raise ValueError(f"turned: the array has shape {array.shape} but must have 4 axes, those of {of}; see reshape")
    return array.transpose(*(here.index(axis) for axis in there)).copy()


def conv2d(x: Array, w: Array, b: Array | None = None, *, layout: str, algorithm: str = "implicit_gemm",
           stride: Pair = 1, padding: Padding = 0) -> Array:
    """`ops.conv2d` of CuPy arrays in a layout, without gradients: y, in the layout too.

    x: NCHW (n,c,h,w), NHWC (n,h,w,c) or CHWN (c,h,w,n). w: (m,c,kh,kw), in NHWC (kh,kw,c,m); see `turned`. b: (m,).
    algorithm: direct, tiled, krizhevsky or implicit_gemm. Their gradients are in minidl.ops.cuda.conv.layouts.

    Raises ValueError if the algorithm cannot do it, for sizes that do not fit each other, and without a GPU; TypeError
    for what is not an array.
    """
    orders.known("conv2d", layout)
    _require_arrays("conv2d", x, w, *(() if b is None else (b,)))
    sizes, filters = (orders.restored(axes[layout], array.shape) if array.ndim == 4 else array.shape
                      for axes, array in ((orders.IMAGES, x), (orders.FILTERS, w)))
    g = conv_geometry(sizes, filters, None if b is None else b.shape, stride, padding, algorithm)
    device.resolve("cuda")                 # says what is missing
    from ..ops.cuda.conv import layouts as launchers

    return launchers.run(algorithm, "y", layout, g, x, w, b)


def _require_arrays(function: str, *given: object) -> None:
    for array in given:
        if isinstance(array, Tensor) or not hasattr(array, "transpose"):
            raise TypeError(f"{function}: got a {type(array).__name__} but it must be a NumPy or CuPy array; of a "
                            "Tensor pass .data")
