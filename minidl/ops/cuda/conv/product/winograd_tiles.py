"""Launchers of winograd_tiles.cu and winograd_product.cu: filters of 3x3 by F(2x2,3x3) or F(4x4,3x3) of Lavin & Gray,
any number of channels.

A product of F(2x2) replaces 2.25 of the plain sum, one of F(4x4) four. Images go through in as few equal shares as the
workspace limit allows. It computes in fp32 whatever `minidl.set_precision` says, in a graph as outside of one.

Rounding. What is summed are products of sums of pixels and sums of weights, and outputs are differences of such sums.
For operands of random signs F(2x2) rounds less than the plain sum (root of the mean square 0.8 of it at 64 channels).
F(4x4) rounds about three times as much, and more at a square's last row and column: `rounding` of its row in ALGORITHMS
is what tests allow it over the plain sum's bound. Sums of few products may be small compared with what cancels. Fewer
than MIN_PRODUCTS are refused, and so are gradients of filters if a tap meets far fewer pixels than the others. An
infinite pixel or weight makes outputs NaN that would be infinite.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import cupy
import numpy as np

from .....core import device
from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch
from ...layers.linear.tile import BK, BN, MIN_SLABS_PER_SPLIT, rows_per_block

FILE, PRODUCT = "conv/product/winograd_tiles.cu", "conv/product/winograd_product.cu"
MIN_PRODUCTS = 192                         # of an output
CHANNELS = 32                              # of a block whose threads write neighbouring channels, as in the source
FEW_SLABS, MAX_LONGER = 8, 1 / 4           # runs end with a tile if that has few slabs and they get no longer than that
RESIDENT = {16: 4, 32: 4, 64: 2, 128: 2}   # blocks of a multiprocessor, by the rows of their tiles, as in the source

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype), ("TILE", tile))) for dtype in launch.C_NAME for tile in (2, 4)] + [
    (PRODUCT, (launch.real(dtype), ("BM", bm), ("WIDE", wide)))
    for dtype in launch.C_NAME for bm in (16, 32, 64, 128) for wide in (0, 1)]


class Runs(NamedTuple):
    """How products of (rows,depth) by (depth,cols) are shared out: fields of the struct in include/runs.cuh."""

    rows: int
    cols: int
    depth: int
    high: int
    wide: int
    down: int
    across: int
    slabs: int
    each: int
    all: int

    @property
    def blocks(self) -> int:
        return launch.blocks(self.all, self.each)

    @property
    def of_tiles(self) -> bool:
        """Each tile is one part."""
        return self.each % self.slabs == 0

    @property
    def size(self) -> int:
        """Elements of all parts."""
        return (self.blocks + self.all // self.slabs) * self.high * self.wide


@functools.lru_cache(maxsize=4096)
def _runs(products: int, rows: int, cols: int, depth: int, itemsize: int) -> Runs:
    """Every multiprocessor has all its blocks; if there is too little work for that, tiles are made lower. With few
    slabs per tile, outputs take as long as products do, and are faster if each tile is one part."""
    high, across = rows_per_block(rows), launch.blocks(cols, BN)
    while True:
        slabs = launch.blocks(depth, BK if itemsize == 4 or high <= 32 else BK // 2)
        down, at_a_time = launch.blocks(rows, high), RESIDENT[high] * launch.multiprocessors()
        total = products * down * across * slabs
        each = max(-(-total // at_a_time), min(slabs, MIN_SLABS_PER_SPLIT))
        whole = -(-each // slabs) * slabs
        runs = Runs(rows, cols, depth, high, BN, down, across, slabs,
                    whole if slabs <= FEW_SLABS and whole <= each * (1 + MAX_LONGER) else each, total)
        if high == 16 or runs.blocks >= launch.multiprocessors():
            return runs
        high //= 2


def _multiply(a: cupy.ndarray, b: cupy.ndarray, parts: Array, runs: Runs, accumulate: bool = False) -> bytes:
    """The parts of the products of a (e,depth,rows), transposed, and b (e,depth,cols); returns their struct."""
    line = 16 // a.itemsize
    wide = not (runs.rows % line or runs.cols % line or (a.data.ptr | b.data.ptr) % 16)
    struct = launch.by_value("Runs", runs, accumulate=int(accumulate))
    launch.kernel(PRODUCT, "winograd_product", launch.real(a.dtype), ("BM", runs.high), ("WIDE", int(wide)))(
        (runs.blocks,), (launch.THREADS,), a, b, parts, struct)
    return struct


class Winograd(NamedTuple):
    """The algorithm with squares of tile x tile outputs."""

    tile: int

    def _run(self, name: str, threads: int, *arguments: Array | bytes | int | None) -> None:
        dtype = arguments[0].dtype         # type: ignore[union-attr]
        launch.kernel(FILE, name, launch.real(dtype), ("TILE", self.tile))(
            (launch.blocks(threads, launch.THREADS),), (launch.THREADS,), *arguments)

    def _squares(self, g: ConvGeometry) -> int:
        """Of an image."""
        return -(-g.oh // self.tile) * -(-g.ow // self.tile)

    def _channels_last(self, name: str, images: Array, v: Array, g: ConvGeometry) -> None:
        """The squares of some images, or of their gradients, into v (sides, columns, channels)."""
        blocks = launch.blocks(v.shape[2], CHANNELS) * launch.blocks(len(images) * self._squares(g),
                                                                     launch.THREADS // CHANNELS)
        self._run(name, blocks * launch.THREADS, images, v, launch.by_value("Geometry", g), len(images))

    def _share(self, g: ConvGeometry, itemsize: int, of_image: int, beside: int) -> int:
        """How many images go through at a time. of_image, beside: elements in the workspace of one image, and of all
        else."""
        most = max(1, (device.workspace_limit() // itemsize - beside) // of_image)
        return -(-g.n // -(-g.n // most))

    def _sum(self, x: Array, w: Array, b: Array | None, g: ConvGeometry, mirrored: bool) -> Array:
        """y of a convolution; with mirrored filters of (c,m,3,3), dx as one of gy."""
        out = launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)
        if not out.size:
            return out
        sides, squares, high = (self.tile + 2) ** 2, self._squares(g), rows_per_block(g.m)
        maps = launch.blocks(g.m, high) * high
        share = self._share(g, x.itemsize, sides * (g.c + maps) * squares, sides * (g.c * g.m + maps * BN)
                            + RESIDENT[high] * launch.multiprocessors() * high * BN)
        runs = _runs(sides, g.m, share * squares, g.c, x.itemsize)
        u, v = launch.empty((sides, g.c, g.m), x.dtype), launch.empty((sides, g.c, share * squares), x.dtype)
        parts, geometry = launch.empty((runs.size,), x.dtype), launch.by_value("Geometry", g)
        self._run("winograd_filters", g.m * g.c, w, u, g.m, g.c, int(mirrored))
        for i in range(0, g.n, share):
            images = min(share, g.n - i)
            these = runs._replace(cols=images * squares)
            self._run("winograd_pixels", g.c * these.cols, x[i:i + share], v, geometry, images)
            struct = _multiply(u, v, parts, these)
            self._run("winograd_outputs_whole" if runs.of_tiles else "winograd_outputs", g.m * these.cols,
                      parts, struct, b, out[i:i + share], geometry, images)
        return out

    def y(self, x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
        return self._sum(x, w, b, g, False)

    def dx(self, gy: Array, w: Array, g: ConvGeometry) -> Array:
        return self._sum(gy, w, None, _of_gradients(g), True)

    def dw(self, gy: Array, x: Array, g: ConvGeometry) -> Array:
        out = launch.empty((g.m, g.c, 3, 3), x.dtype)
        sides, squares = (self.tile + 2) ** 2, self._squares(g)
        share = self._share(g, x.itemsize, sides * (g.c + g.m) * squares,
                            _runs(sides, g.m, g.c, g.n * squares, x.itemsize).size)
        runs = _runs(sides, g.m, g.c, share * squares, x.itemsize)
        of_gy, of_x = (launch.empty((sides, share * squares, channels), x.dtype) for channels in (g.m, g.c))
        parts = launch.empty((runs.size,), x.dtype)
        for i in range(0, g.n, share):
            self._channels_last("winograd_gradients", gy[i:i + share], of_gy, g)
            self._channels_last("winograd_pixels_channels_last", x[i:i + share], of_x, g)
            struct = _multiply(of_gy, of_x, parts, runs._replace(depth=min(share, g.n - i) * squares), i > 0)
        self._run("winograd_taps", g.m * g.c, parts, struct, out)
        return out

    def refuses(self, direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
        if (g.kh, g.kw, g.sh, g.sw) != (3, 3, 1, 1):
            return f"it needs filters of 3x3 and stride 1 but they are {g.kh}x{g.kw} and {g.sh}x{g.sw}"
        if direction != "dx" and max(g.top, g.bottom, g.left, g.right) > 2:
            return "an output whose window meets no pixel would be rounded, and is zero"
        met, outputs = g.n * _met(g.oh, g.h, g.top) * _met(g.ow, g.w, g.left), g.n * g.oh * g.ow
        if direction == "dw" and 4 * met < outputs:
            return f"a tap meets {met} of {outputs} outputs and would round as those that meet all"
        products = {"y": 9 * g.c, "dx": 9 * g.m, "dw": met}[direction]
        if products < MIN_PRODUCTS:
            return f"a sum of {products} products may round badly (it takes {MIN_PRODUCTS})"
        size = (self.tile + 2) ** 2 * max(g.c, g.m) * self._squares(_of_gradients(g) if direction == "dx" else g)
        if size > launch.MAX_ELEMENTS:
            return f"one transformed image has {size} elements but kernels count to {launch.MAX_ELEMENTS}"
        return None


F2, F4 = Winograd(2), Winograd(4)


def _met(outputs: int, pixels: int, before: int) -> int:
    """The outputs along an axis whose pixel under a tap exists, for the tap that meets the fewest."""
    return min(max(0, min(outputs, pixels + before - tap) - max(0, before - tap)) for tap in range(3))


def _of_gradients(g: ConvGeometry) -> ConvGeometry:
    """The convolution of gy with mirrored filters that dx is."""
    return g._replace(c=g.m, h=g.oh, w=g.ow, m=g.c, oh=g.h, ow=g.w, top=2 - g.top, left=2 - g.left)
