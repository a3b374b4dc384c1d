"""Launchers of winograd_tiles.cu: filters of 3x3 by F(2x2,3x3) or F(4x4,3x3) of Lavin & Gray, any number of channels.

A product of F(2x2) replaces 2.25 of the plain sum, one of F(4x4) four. As many images go through at a time as the
workspace limit allows. It computes in fp32 whatever `minidl.set_precision` says.

Rounding. What is summed are products of sums of pixels and sums of weights, and outputs are differences of such sums.
For operands of random signs F(2x2) rounds less than the plain sum (root of the mean square 0.8 of it at 64 channels).
F(4x4) rounds about three times as much, at a square's last row and column more: `rounding` of its row in ALGORITHMS is
what tests allow it over the plain sum's bound. Sums of few products may be small beside what cancels: fewer than
MIN_PRODUCTS are refused, and so are gradients of filters of which a tap meets far fewer pixels than the others. An
infinite pixel or weight makes outputs NaN that would be infinite.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..... import device
from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch
from ...linear import gemm

FILE = "conv/product/winograd_tiles.cu"
MIN_PRODUCTS = 192                         # of an output
CHANNELS = 32                              # of a block whose threads write neighbouring channels, as in the source

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype), ("TILE", tile))) for dtype in launch.C_NAME for tile in (2, 4)]


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

    def _part(self, g: ConvGeometry, dtype: np.dtype) -> int:
        """How many images go through at a time; at least one."""
        size = (self.tile + 2) ** 2 * (g.c + g.m) * self._squares(g)
        limit = device.workspace_limit() // dtype.itemsize
        return max(1, min(g.n, limit // size))

    def _transformed(self, name: str, images: Array, g: ConvGeometry) -> Array:
        """The squares of some images: (sides, channels, columns)."""
        channels, columns = images.shape[1], len(images) * self._squares(g)
        v = launch.empty(((self.tile + 2) ** 2, channels, columns), images.dtype)
        self._run(name, channels * columns, images, v, launch.by_value("Geometry", g), len(images))
        return v

    def _channels_last(self, name: str, images: Array, g: ConvGeometry) -> Array:
        """The squares of some images, or of their gradients: (sides, columns, channels)."""
        channels, columns = images.shape[1], len(images) * self._squares(g)
        v = launch.empty(((self.tile + 2) ** 2, columns, channels), images.dtype)
        blocks = launch.blocks(channels, CHANNELS) * launch.blocks(columns, launch.THREADS // CHANNELS)
        self._run(name, blocks * launch.THREADS, images, v, launch.by_value("Geometry", g), len(images))
        return v

    def _sum(self, x: Array, w: Array, b: Array | None, g: ConvGeometry, mirrored: bool) -> Array:
        """y of a convolution; with mirrored filters of (c,m,3,3), dx as one of gy."""
        out = launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)
        if not out.size:
            return out
        u = launch.empty(((self.tile + 2) ** 2, g.c, g.m), x.dtype)
        self._run("winograd_filters", g.m * g.c, w, u, g.m, g.c, int(mirrored))
        part = self._part(g, x.dtype)
        for i in range(0, g.n, part):
            v = self._transformed("winograd_pixels", x[i:i + part], g)
            sums = gemm(u, v, launch.empty((len(u), g.m, v.shape[2]), x.dtype), transpose_a=True,
                        exact=True)
            maps = out[i:i + part]
            self._run("winograd_outputs", sums[0].size, sums, b, maps, launch.by_value("Geometry", g), len(maps))
        return out

    def y(self, x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
        return self._sum(x, w, b, g, False)

    def dx(self, gy: Array, w: Array, g: ConvGeometry) -> Array:
        return self._sum(gy, w, None, _of_gradients(g), True)

    def dw(self, gy: Array, x: Array, g: ConvGeometry) -> Array:
        out = launch.empty((g.m, g.c, 3, 3), x.dtype)
        sums, part = launch.empty(((self.tile + 2) ** 2, g.m, g.c), x.dtype), self._part(g, x.dtype)
        for i in range(0, g.n, part):
            gemm(self._channels_last("winograd_gradients", gy[i:i + part], g),
                 self._channels_last("winograd_pixels_channels_last", x[i:i + part], g), sums, transpose_a=True,
                 accumulate=i > 0, exact=True)
        self._run("winograd_taps", g.m * g.c, sums, out, g.m * g.c)
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
