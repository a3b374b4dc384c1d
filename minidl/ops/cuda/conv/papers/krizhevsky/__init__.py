"""The kernels of Krizhevsky 2009: outputs (section 6.2) and filter gradients (sections 6.6 and 6.7)."""

from __future__ import annotations

import numpy as np

from ......core import device
from .....common.geometry import ConvGeometry, layouts
from .....common.primitives import Array
from .... import launch
from ....reduce import sum_first

LeftOut = tuple[launch.Constant, ...]

OUT = 32                                   # outputs of a block of dw along each axis
# Layout -> rows and columns of outputs of a block of y, and rows of them between two windows
BLOCK = {"NCHW": (32, 32, 8), "NHWC": (16, 4, 4), "CHWN": (16, 4, 4)}
CHUNK, HALF = 4, 16                        # rows and columns of gy in shared memory
PAIRS = 8                                  # of filters in a block of dw, if its threads allow
MAX_THREADS = 1024                        # in a block

_EXAMPLES = ((8, 8, 1, 1), (5, 5, 1, 1), (3, 3, 1, 1), (3, 3, 2, 2), (1, 1, 1, 1), (11, 11, 4, 4), (1, 7, 1, 2),
             (32, 32, 1, 1))               # filters and strides to try the compiler with: any others come the same way


def _constants(dtype: np.dtype, kh: int, kw: int, sh: int, sw: int, layout: str = "NCHW",
               channels: int = 1) -> tuple[launch.Constant, ...]:
    pairs = min(PAIRS, MAX_THREADS // (kh * kw))
    return (launch.real(dtype), ("KH", kh), ("KW", kw), ("SH", sh), ("SW", sw), ("Z", pairs),
            *layouts.constants(layout, channels))


FILE = "conv/papers/krizhevsky/krizhevsky.cu"

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, _constants(dtype, *example)) for dtype in launch.C_NAME for example in _EXAMPLES] + [
    (FILE, _constants(dtype, *example, *order)) for dtype in launch.C_NAME
    for example in (_EXAMPLES[0], _EXAMPLES[3]) for order in (("NHWC", 3), ("NHWC", layouts.CHANNELS), ("CHWN", 1))]


def _elements(direction: str, g: ConvGeometry, layout: str = "NCHW") -> int:
    """Elements of a block's shared memory."""
    if direction == "y":
        _, columns, rows = BLOCK[layout]
        window = ((rows - 1) * g.sh + g.kh) * ((columns - 1) * g.sw + g.kw)
        return layouts.lanes(layout)[0] * g.c * g.kh * g.kw + layouts.deep(layout, g.c) * window
    pairs = min(PAIRS, MAX_THREADS // (g.kh * g.kw))
    return ((CHUNK - 1) * g.sh + g.kh) * ((OUT - 1) * g.sw + g.kw + 1) + 2 * pairs * CHUNK * HALF


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype, layout: str = "NCHW") -> str | None:
    """Why this algorithm cannot do a case, or None."""
    if g.kh * g.kw > MAX_THREADS:
        return f"a {g.kh}x{g.kw} filter needs {g.kh * g.kw} threads but a block has {MAX_THREADS}"
    wanted, most = _elements(direction, g, layout) * dtype.itemsize, launch.most_shared()
    if wanted > most:
        return (f"{direction} with {g.c} channels, a {g.kh}x{g.kw} filter and stride {g.sh}x{g.sw} takes {wanted} "
                f"bytes of shared memory but a block has {most}")
    return None


def _kernel(name: str, dtype: np.dtype, g: ConvGeometry, layout: str, left_out: LeftOut) -> launch.Kernel:
    return launch.kernel(FILE, name,
                         *_constants(dtype, g.kh, g.kw, g.sh, g.sw, layout, g.c), *left_out)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, layout: str = "NCHW", left_out: LeftOut = ()) -> Array:
    """left_out: constants for loads that are left out, here and in dw: wrong results, for measurements."""
    out = launch.empty(layouts.ordered(layouts.IMAGES[layout], (g.n, g.m, g.oh, g.ow)), x.dtype)
    (rows, columns, step), (maps, images, side) = BLOCK[layout], layouts.lanes(layout)
    grid = max(1, -(-g.n // images) * -(-g.m // maps) * -(-g.oh // rows) * -(-g.ow // columns))
    _kernel("conv2d_krizhevsky_y", x.dtype, g, layout, left_out)(
        (grid,), (columns * side, step), x, w, b, out, launch.by_value("Geometry", g),
        shared=_elements("y", g, layout) * x.itemsize)
    return out


def dw(gy: Array, x: Array, g: ConvGeometry, left_out: LeftOut = ()) -> Array:
    """The gradient of each image, for as many images at a time as the workspace holds, then their sum in order."""
    shape, size = (g.m, g.c, g.kh, g.kw), g.m * g.c * g.kh * g.kw
    images = max(1, min(g.n, device.workspace_limit() // (size * gy.itemsize), launch.MAX_ELEMENTS // size))
    pairs = min(PAIRS, MAX_THREADS // (g.kh * g.kw))
    kernel = _kernel("conv2d_krizhevsky_dw", gy.dtype, g, "NCHW", left_out)
    geometry = launch.by_value("Geometry", g)
    groups, shared = -(-g.m // (2 * pairs)), _elements("dw", g) * gy.itemsize
    parts = launch.empty((min(images, g.n), *shape), gy.dtype)
    sums = launch.empty((-(-g.n // images), *shape), gy.dtype)
    for i, first in enumerate(range(0, g.n, images)):
        count = min(images, g.n - first)
        kernel((count * groups,), (g.kw, g.kh, pairs), gy, x, parts, geometry, first, shared=shared)
        sum_first(parts[:count], out=sums[i])
    return sums[0] if len(sums) == 1 else sum_first(sums)
