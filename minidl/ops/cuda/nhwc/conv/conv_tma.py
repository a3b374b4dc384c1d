"""Launcher of conv_tma.cu: convolution of images in NHWC for strides of 1; the hardware copies (TMA)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import cupy
import numpy as np

from ....common.geometry.nhwc import C_TYPES
from ... import launch
from ...launch.tensor_maps import BYTES, MAX_BOX, tensor_map

FILE = "nhwc/conv/conv_tma.cu"
PATCHES, MIN_STAGES, THREADS_PER_BLOCK = 2, 3, 384
ROW = 128                                  # bytes of a slab, of a pixel or a filter


class Tile(NamedTuple):
    """What a block of a kernel owns: tall * 128 pixels (in conv_images.cu, images) by `filters` filters; stages of
    shared memory, at most; blocks of a multiprocessor; what a product costs, relative to the best tile's of conv.cu;
    and taps of a stage, at most."""

    file: str
    tall: int
    filters: int
    stages: int
    blocks: int
    cost: float
    at_once: int = 1

    @property
    def stage(self) -> int:
        """Bytes of its filters."""
        return self.at_once * self.filters * ROW


class Beside(NamedTuple):
    """What tiles take for a gradient, in the kernel's order: images like y and statistics, or None."""

    added: cupy.ndarray | None
    known: cupy.ndarray
    normalized: cupy.ndarray | None = None
    mean: cupy.ndarray | None = None
    rstd: cupy.ndarray | None = None


TILES = (Tile(FILE, 2, 128, 8, 1, 0.78), Tile(FILE, 1, 256, 5, 1, 0.8), Tile(FILE, 2, 64, 8, 1, 0.95),
         Tile(FILE, 2, 32, 6, 2, 1.0), Tile(FILE, 2, 8, 3, 2, 2.6, at_once=9))
# What a tile's sums become, and the constants for it
THEN: dict[str, tuple[launch.Constant, ...]] = {
    "y": (), "maxima": (("POOLED", 1),), "gradient": (("GRADIENT", 1),), "normalized": (("GRADIENT", 2),)}


class Patch(NamedTuple):
    """What a block owns of y: n images, h rows by w columns of each, which meet lines x line pixels of x. It consists
    of squares: eight neighbours in a row, times eight rows, or times eight images if `images` says so."""

    n: int
    h: int
    w: int
    lines: int
    line: int
    images: bool

    def shared(self, pixel: int = ROW) -> int:
        """Bytes of shared memory, with `pixel` bytes of a pixel."""
        return launch.blocks(self.n * self.lines * self.line * pixel, 1024) * 1024

    def struct(self, h: int, w: int, size: int) -> bytes:
        """As kernels take it. h, w: of y; size: bytes."""
        return launch.by_value("Patch", self, bytes=size, high=launch.blocks(h, self.h), wide=launch.blocks(w, self.w),
                               images=int(self.images))

    def number(self, *of: int) -> int:
        """How many patches cover the given numbers of images, rows and columns."""
        return math.prod(map(launch.blocks, of, (self.n, self.h, self.w)))


def patches(squares: int, kh: int, kw: int) -> list[Patch]:
    """All patches of `squares` squares, 2 or 4."""
    shapes = [(squares // (down * across), down, across) for down in (1, 2, 4) for across in (1, 2, 4)
              if down * across <= squares]
    return [Patch(n * (8 if images else 1), h, 8 * across, h + kh - 1, 8 * across + kw - 1, images)
            for images in (False, True) for n, down, across in shapes for h in [down * (1 if images else 8)]]


class Tiles(NamedTuple):
    """How a tile takes images: in patches, or in conv_images.cu, in an order of y's pixels: those that meet the most
    taps come first. blocks: how many there are."""

    tile: Tile
    patch: Patch | None
    order: tuple[int, ...]
    blocks: int
    stages: int
    cost: float


def _stages(tile: Tile, patch: Patch) -> int:
    """Stages of filters that fit into shared memory in addition to the patches and the barriers."""
    room = launch.most_shared() // tile.blocks - (tile.blocks - 1) * launch.RESERVED
    return min(tile.stages, (room - PATCHES * patch.shared() - 16 * (tile.stages + PATCHES)) // tile.stage)


def tiles(tile: Tile, n: int, h: int, w: int, m: int, kh: int, kw: int, *, images: bool = True) -> Tiles | None:
    """By the patch that covers all n x h x w pixels with the fewest patches, and of such the smallest. None if none
    fits, or if images are one pixel: then seven in eight of a square would be outside. images: whether squares may be
    eight images high."""
    patch = None if h == w == 1 else launch.best(
        (patch for patch in patches(2 * tile.tall, kh, kw) if _stages(tile, patch) >= MIN_STAGES
         and max(patch.lines, patch.line) <= MAX_BOX and images >= patch.images),
        lambda patch: (patch.number(n, h, w), patch.shared()))
    if patch is None:
        return None
    blocks = patch.number(n, h, w) * launch.blocks(m, tile.filters)
    turns = launch.blocks(blocks, launch.multiprocessors() * tile.blocks)
    return Tiles(tile, patch, (), blocks, _stages(tile, patch),
                 turns * tile.blocks * tile.tall * tile.filters * tile.cost)


def can(then: str, of: Tiles, m: int) -> bool:
    """Whether a tile's sums can become `then`: a lane has neighbours that fill 16 bytes; for maxima, both rows of a
    window of 2x2; for a gradient, each block can keep to the filters of one tile."""
    if then == "y" or of.patch is None or of.tile.filters < 32:
        return then == "y"
    if then == "maxima":
        return not of.patch.images
    return launch.blocks(m, of.tile.filters) <= launch.multiprocessors() * of.tile.blocks


def steps_of_slab(c: int, dtype: np.dtype) -> int:
    """How many of the 4 products of 32 bytes that a slab takes c channels need: all, or fewer if they fill no slab."""
    return min(4, launch.blocks(c * dtype.itemsize, 32))


def constants(tile: Tile, stages: int, dtype: np.dtype, mode: str, wide_y: bool, act: str | None, then: str,
              steps: int = 4) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", tile.filters),
            ("TALL", tile.tall), ("STAGES", stages), ("AT_ONCE", tile.at_once), ("BLOCKS", tile.blocks),
            ("STEPS_OF_SLAB", steps), ("WIDE_Y", int(wide_y)), *((("ACT", act),) if act else ()),
            *((("AFTER", 1),) if act and then in ("y", "maxima") else ()), *THEN[then])


def product(of: Tiles, dtype: np.dtype, mode: str, c: int, h: int, w: int, m: int, wide_y: bool, act: str | None,
            then: str) -> tuple[launch.Plan, Callable[..., cupy.ndarray | None]]:
    """The launch, and what starts it on images, packed filters, biases, y and the struct of sizes. c: of images; h, w,
    m: of y.

    then: "y"; "maxima": y gets the maxima over windows of 2x2, and the winners follow; "gradient" or "normalized": y is
    multiplied by the derivative of act, Beside follows, and sums by parts are returned, (parts, 1 or 2, m).
    """
    tile, patch, depth = of.tile, of.patch, ROW // dtype.itemsize
    assert patch
    blocks, across = min(of.blocks, launch.multiprocessors() * tile.blocks), launch.blocks(m, tile.filters)
    sums = dict(THEN[then]).get("GRADIENT", 0)
    if sums:
        blocks -= blocks % across
    plan = launch.Plan(
        FILE, "conv_nhwc_tma", constants(tile, of.stages, dtype, mode, wide_y, act, then, steps_of_slab(c, dtype)),
        (blocks,), THREADS_PER_BLOCK, PATCHES * patch.shared() + of.stages * tile.stage + 16 * (of.stages + PATCHES),
        patch.struct(h, w, patch.shared()))

    def map_of(image: cupy.ndarray | None) -> bytes:
        return bytes(BYTES) if image is None else tensor_map(image, (patch.n, patch.h, patch.w, depth), rounded=False)

    def run(x: cupy.ndarray, packed: cupy.ndarray, b: cupy.ndarray | None, y: cupy.ndarray, struct: bytes,
            winners: cupy.ndarray | None = None, beside: Beside | None = None) -> cupy.ndarray | None:
        images, mean, rstd = (beside[:3], beside.mean, beside.rstd) if beside else ((None,) * 3, None, None)
        parts = launch.empty((blocks // across, sums, m), np.dtype(np.float32)) if sums else None
        plan.start(tensor_map(x, (patch.n, patch.lines, patch.line, depth)),
                   tensor_map(packed[0], (tile.filters, depth)), b"".join(map(map_of, images)), b, mean, rstd, y,
                   winners, parts, struct, plan.struct, int(images[0] is not None))
        return parts
    return plan, run


CONFIGURATIONS = [
    (FILE, constants(tile, stages, dtype, mode, wide_y, act, then))
    for dtype, mode in ((np.dtype(np.uint16), "BF16"), (np.dtype(np.float32), "TF32")) for tile in TILES
    for stages, wide_y, act, then in (
        (tile.stages, True, "relu", "y"), (tile.stages, True, None, "y"), (MIN_STAGES, False, None, "y"),
        (tile.stages, True, "relu", "maxima"), (tile.stages, True, None, "maxima"),
        *((tile.stages, True, act, then) for act in ("relu", "gelu") for then in ("gradient", "normalized")))
    if then == "y" or tile.filters >= 32]
CONFIGURATIONS += [(FILE, constants(TILES[3], TILES[3].stages, dtype, mode, True, None, "y", steps))
                   for dtype, mode in ((np.dtype(np.uint16), "BF16"), (np.dtype(np.float32), "TF32"))
                   for steps in (1, 2, 3)]
