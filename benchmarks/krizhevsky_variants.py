"""What Krizhevsky 2009 tried beside his kernels: other forms of section 6.2's, and both without their loads.

For the measurements of report2009.py, and the counts in docs/report2009.md. None of them is an algorithm of `conv2d`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from minidl.ops.common.geometry import ConvGeometry
from minidl.ops.common.primitives import Array
from minidl.ops.cuda import launch
from minidl.ops.cuda.conv.papers import krizhevsky
from minidl.ops.cuda.conv.papers.krizhevsky import OUT

FILE = str(Path(__file__).with_suffix(".cu"))
# name -> filters per thread, rows of threads in a block, rows of outputs that are loaded for at once
VARIANTS: dict[str, tuple[int, int, int]] = {
    "2 filters per thread": (2, 8, 8), "4 filters per thread": (4, 8, 8),
    "512 threads, half an image": (1, 16, 16), "512 threads, the whole image": (1, 16, 32)}
# what is left out -> the constant of krizhevsky.cu that does it
ABLATIONS: dict[str, tuple[launch.Constant, ...]] = {
    "without the loads of images": (("LOAD_IMAGES", 0),), "without the loads of filters": (("LOAD_FILTERS", 0),),
    "without any loads": (("LOAD_IMAGES", 0), ("LOAD_FILTERS", 0))}


def _constants(dtype: np.dtype, kh: int, kw: int, sh: int, sw: int, variant: str) -> tuple[launch.Constant, ...]:
    return launch.real(dtype), ("KH", kh), ("KW", kw), ("SH", sh), ("SW", sw), *zip(("EACH", "STEP", "WINDOW"),
                                                                                    VARIANTS[variant])


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _constants(dtype, 8, 8, 1, 1, name)) for dtype in launch.C_NAME for name in VARIANTS),
    *((FILE, _constants(np.dtype(np.float32), 3, 3, 2, 2, name)) for name in VARIANTS),
    *((krizhevsky.FILE, (*krizhevsky._constants(np.dtype(np.float32), 8, 8, 1, 1), *left_out))
      for left_out in ABLATIONS.values())]


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, variant: str) -> Array:
    """As krizhevsky.y, bit for bit, by one of VARIANTS."""
    each, step, window = VARIANTS[variant]
    out = launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)
    blocks = g.n * -(-g.m // each) * -(-g.oh // OUT) * -(-g.ow // OUT)
    shared = each * g.c * g.kh * g.kw + ((window - 1) * g.sh + g.kh) * ((OUT - 1) * g.sw + g.kw)
    kernel = launch.kernel(FILE, "conv2d_krizhevsky_variant_y", *_constants(x.dtype, g.kh, g.kw, g.sh, g.sw, variant))
    kernel((max(1, blocks),), (OUT, step), x, w, b, out, launch.by_value("Geometry", g), shared=shared * x.itemsize)
    return out
