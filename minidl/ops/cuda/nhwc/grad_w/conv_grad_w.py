"""Launcher of conv_grad_w.cu: the gradient of the filters of a convolution of images in NHWC."""

from __future__ import annotations

import functools
from typing import NamedTuple

import cupy
import numpy as np

from ....common.geometry import ConvGeometry
from ... import launch
from ...layers.linear.tile import MODES
from ...pixels import has_wgmma
from . import conv_few_grad_w, conv_grad_w_tma, rows_grad_w
from .conv_few_grad_w import Product

FILE, SUM_FILE = "nhwc/grad_w/conv_grad_w.cu", "nhwc/grad_w/conv_grad_w_sum.cu"
IMAGES = {np.dtype(np.float32): "float", np.dtype(np.uint16): "unsigned short"}        # uint16: the bits of bf16
SUM_TILE, SUM_LINES = 32, 16               # filters, and lines of them, of a block of conv2d_nhwc_dw_sum
PARTS_IN_TURN = 24                         # that one of its threads adds, if others can take the rest
MOST_SPLITS = 1024
# Each is for some shapes, as its `can` says: the first that can, and has a plan, computes the parts
OWN = conv_few_grad_w, rows_grad_w, conv_grad_w_tma


class Tile(NamedTuple):
    """What a block owns: groups x tiles x 64 rows (tap, channel) by `filters` filters; pixels of a chunk, and how many
    chunks shared memory holds; blocks of a multiprocessor; and what a product costs, relative to the best tile's."""

    groups: int
    tiles: int
    filters: int
    pixels: int
    stages: int
    blocks: int
    cost: float

    @property
    def rows(self) -> int:
        return self.groups * self.tiles * 64

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.tiles * self.filters // 2


# For images of bf16, and of float32 by precision. The first are the best if they are filled
TILES = {
    "half": (Tile(2, 3, 128, 64, 4, 1, 1.0), Tile(2, 2, 128, 64, 4, 1, 1.1), Tile(3, 3, 64, 64, 4, 1, 1.15),
             Tile(2, 3, 64, 64, 4, 1, 1.2), Tile(2, 1, 128, 64, 4, 1, 1.4), Tile(2, 1, 64, 64, 4, 2, 1.6),
             Tile(1, 1, 64, 64, 4, 5, 2.0)),
    "TF32": (Tile(2, 3, 128, 32, 4, 1, 1.0), Tile(2, 2, 128, 32, 4, 1, 1.1), Tile(2, 3, 64, 32, 4, 1, 1.2),
             Tile(2, 1, 128, 32, 4, 1, 1.4), Tile(2, 1, 64, 32, 4, 1, 1.6), Tile(1, 1, 64, 32, 4, 3, 2.0)),
    "BF16": (Tile(2, 3, 64, 32, 4, 1, 1.0), Tile(2, 1, 64, 32, 4, 1, 1.4), Tile(1, 1, 64, 32, 4, 2, 2.0)),
    "TF32X3": (Tile(2, 3, 64, 32, 4, 1, 1.0), Tile(2, 2, 64, 32, 4, 1, 1.1), Tile(2, 1, 64, 32, 4, 1, 1.4),
               Tile(1, 1, 64, 32, 4, 2, 2.0)),
}
SUMS_OF_MMA = 128                          # of a thread, at most, with mma, which leaves it fewer registers than wgmma
# What a block costs in addition to its chunks, and to write and add one of its sums; both in chunks of it
START, SUMS = 6, 0.08 / (384 * 128)


class Copies(NamedTuple):
    """Bytes that can be copied at once of a pixel of dy, of one of x, and of a whole row of x."""

    of_dy: int
    of_x: int
    of_line: int

    def grain(self, g: ConvGeometry, dtype: np.dtype) -> int:
        """What slabs of channels are multiples of, if there are several."""
        return max(self.of_x // dtype.itemsize, min(8, g.c))


def round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def _constants(tile: Tile, image: str, mode: str, copies: tuple[int, int], wide: bool,
               hopper: bool) -> tuple[launch.Constant, ...]:
    return (*[launch.HOPPER][:hopper], ("IMAGE", image), ("PRECISION", mode), ("GROUPS", tile.groups),
            ("TILES", tile.tiles), ("FILTERS", tile.filters), ("PIXELS", tile.pixels), ("STAGES", tile.stages),
            ("BLOCKS", tile.blocks), ("X_COPY", copies[0]), ("DY_COPY", copies[1]),
            ("WIDE", int(wide)))


def _slab(tile: Tile, g: ConvGeometry, each: int) -> tuple[int, int, int, int]:
    """(blocks, channels of a slab, taps of a block, runs of taps) such that rows fill the fewest blocks."""
    found, taps = [], g.kh * g.kw
    for slabs in range(1, g.c + 1):
        slab = min(g.c, round_up(-(-g.c // slabs), each))
        if slab > tile.rows:
            continue
        of_block = min(taps, tile.rows // slab)
        if of_block > g.kw:
            of_block -= of_block % g.kw
        runs = -(-taps // of_block)
        found.append((-(-g.c // slab) * runs, slab, of_block, runs))
        if slab <= each or len(found) > 8:
            break
    return min(found, key=lambda row: (row[0], -row[1]))


def _cost(tile: Tile, g: ConvGeometry, grain: int) -> float:
    """The cost of a pixel's products, including idle ones."""
    return _slab(tile, g, grain)[0] * -(-g.m // tile.filters) * tile.rows * tile.filters * tile.cost


def _split(tile: Tile, tiles: int, chunks: int, shared: int) -> int:
    """How many parts the chunks are split into: turns of blocks that take the least time."""
    fit = (launch.most_shared() + launch.RESERVED) // (shared + launch.RESERVED)
    at_once = launch.multiprocessors() * min(tile.blocks, fit)

    def cost(splits: int) -> float:
        return -(-tiles * splits // at_once) * (-(-chunks // splits) + START) \
            + SUMS * tile.rows * tile.filters * splits * tiles
    return min(range(1, max(1, min(chunks, MOST_SPLITS)) + 1), key=cost)


def _shared(tile: Tile, half: bool, mode: str, lines: int, slots: int, line: int) -> int:
    """Bytes, as the kernel lays them out."""
    parts = 2 if mode == "TF32X3" else 1
    size = 2 if half else 4
    gradients = tile.filters // 8 * (tile.pixels * 16 + 16) if half else tile.pixels * tile.filters * 4
    b = 0 if half else 3 * parts * tile.pixels * tile.filters * (2 if mode == "BF16" else 4)
    images = round_up(lines * line * size, 128)
    return b + tile.stages * (gradients + images) + 4 * (
        tile.pixels + 3 * slots * lines + 2 * lines + tile.groups * 128)


def _laid_out(tile: Tile, g: ConvGeometry, dtype: np.dtype, mode: str, copies: Copies) -> tuple[int, dict[str, int]]:
    """Bytes of shared memory, and fields of GradW: a chunk as large as fits, or else of one pixel."""
    half, size = dtype == np.uint16, dtype.itemsize
    _, slab, taps, runs = _slab(tile, g, copies.grain(g, dtype))
    filter_rows = max((min(t + taps, g.kh * g.kw) - 1) // g.kw - t // g.kw + 1 for t in range(0, g.kh * g.kw, taps))
    pitch = round_up(slab, copies.of_x // size)
    if pitch >= 8:
        pitch = round_up(pitch, 8)
        pitch += 8 if pitch % 16 == 0 else 0               # neighbouring pixels in other banks
    segments = -(-g.ow // tile.pixels)
    rows = max(1, min(tile.pixels // g.ow, g.n * g.oh))
    while True:
        across = -(-g.ow // segments)
        width = (across - 1) * g.sw + g.kw
        whole = segments == 1 and pitch == g.c and copies.of_line > copies.of_x
        lead = -g.left * g.c % (16 // size) if whole else 0               # column 0 is on a multiple of 16 bytes
        line = round_up(lead + max(width, g.left + g.w) * g.c, 16 // size) if whole else width * pitch
        shared = _shared(tile, half, mode, rows * filter_rows, 1 if whole else width, line)
        if shared <= launch.most_shared() or rows == across == 1:
            break
        rows, segments = (rows // 2, segments) if rows > 1 else (1, min(g.ow, segments * 2))
    segments, threads = -(-g.ow // across), tile.groups * 128
    per_slot = -(-(g.w * g.c if whole else slab) * size // (copies.of_line if whole else copies.of_x))
    return shared, {
        "slab": slab, "slabs": -(-g.c // slab), "taps": taps, "runs": runs, "rows": rows, "filter_rows": filter_rows,
        "across": across, "width": width, "segments": segments, "chunks": -(-g.n * g.oh // rows) * segments,
        "pitch": pitch, "line": line, "lead": lead, "whole": int(whole), "slots": 1 if whole else width,
        "column": g.left if whole else 0, "slot": line if whole else pitch,
        "offset": lead + g.left * g.c if whole else 0, "copies": per_slot, "step_slot": threads // per_slot,
        "step_number": threads % per_slot}


@functools.lru_cache(maxsize=1024)
def product(g: ConvGeometry, dtype: np.dtype, mode: str, copies: Copies, tile: Tile | None = None,
            splits: int | None = None) -> Product:
    """In the cheapest tile that fits shared memory, or a given one."""
    half, hopper, grain = dtype == np.uint16, has_wgmma(), copies.grain(g, dtype)
    tiles = [tile] if tile else [one for one in TILES["half" if half else mode] if hopper or one.sums <= SUMS_OF_MMA]
    laid_out = {one: _laid_out(one, g, dtype, mode, copies) for one in tiles}
    tile = launch.best((one for one in tiles if laid_out[one][0] <= launch.most_shared()),
                       lambda one: _cost(one, g, grain))
    if tile is None:
        raise ValueError(f"conv2d_nhwc_dw: images of {g.c} channels and filters of {g.kh}x{g.kw} take "
                         f"{min(shared for shared, _ in laid_out.values())} bytes of shared memory but a block has "
                         f"{launch.most_shared()}; use another algorithm")
    shared, fields = laid_out[tile]
    blocks = fields["slabs"] * fields["runs"] * -(-g.m // tile.filters)
    splits = splits or _split(tile, blocks, fields["chunks"], shared)
    constants = _constants(tile, IMAGES[dtype], mode, (copies.of_line if fields["whole"] else copies.of_x,
                                                       copies.of_dy), half and copies.of_x == 16, hopper)
    plan = launch.Plan(FILE, "conv2d_nhwc_dw", constants, (blocks, splits), tile.groups * 128, shared,
                       launch.by_value("GradW", g, splits=splits, **fields), splits=splits)
    return plan, lambda dy, x, out: plan.start(dy, x, out, plan.struct)


def tiles_of(dtype: np.dtype, precision: str) -> str:
    """The row of TILES."""
    return "half" if dtype == np.uint16 else MODES[precision]


def _at_once(array: cupy.ndarray, elements: int) -> int:
    """The largest of 16, 8, 4 and 2 bytes in which runs of `elements` elements can be copied."""
    return next(b for b in (16, 8, 4, 2) if elements * array.itemsize % b == 0 and array.data.ptr % b == 0)


def grad_w(dy: cupy.ndarray, x: cupy.ndarray, g: ConvGeometry, *, precision: str, tile: Tile | None = None,
           splits: int | None = None) -> cupy.ndarray:
    """dw (m,c,kh,kw) in float32 from dy (n,oh,ow,m) and x (n,h,w,c), both float32, or both bf16 as bits in uint16.

    precision: "tf32", "3xtf32" or "bf16", of the products; sums are in float32. tile, splits: in place of what the
    launcher finds best.
    """
    if dy.dtype != x.dtype or x.dtype not in IMAGES:
        raise TypeError(f"conv2d_nhwc_dw: dy is {dy.dtype} and x is {x.dtype} but both must be float32, or bf16 as "
                        "uint16; convert them")
    if x.shape != (g.n, g.h, g.w, g.c) or dy.shape != (g.n, g.oh, g.ow, g.m):
        raise ValueError(f"conv2d_nhwc_dw: x has shape {x.shape} and dy {dy.shape} but the geometry says "
                         f"{(g.n, g.h, g.w, g.c)} and {(g.n, g.oh, g.ow, g.m)}; pass images in NHWC")
    if precision not in MODES or precision == "fp32" or (x.dtype == np.uint16 and precision != "bf16"):
        raise ValueError(f"conv2d_nhwc_dw: the precision is {precision!r} but it must be tf32, 3xtf32 or bf16 for "
                         "images of float32, and bf16 for those of bf16; set another")
    if launch.compute_capability() < 80:
        raise ValueError(f"conv2d_nhwc_dw: the GPU's compute capability is {launch.compute_capability() / 10} but "
                         "tf32 and bf16 need 8.0; use precision fp32 and another algorithm")
    dy, x = launch.dense(dy), launch.dense(x)
    mode = MODES[precision]
    own = next((each for each in OWN if not tile and each.can(g, dy, x, mode)), None)
    plan, run = (own and own.product(g, mode, splits)) or product(
        g, x.dtype, mode, Copies(_at_once(dy, g.m), _at_once(x, g.c), _at_once(x, g.w * g.c)), tile, splits)
    splits, dw = plan.splits, launch.empty((g.m, g.c, g.kh, g.kw), np.float32)
    parts = launch.empty((splits, g.kh * g.kw * g.c, g.m), np.float32)
    run(dy, x, parts)
    share = 1 << min(5, (max(0, splits - 1) // PARTS_IN_TURN).bit_length())
    launch.kernel(SUM_FILE, "conv2d_nhwc_dw_sum")(
        (launch.blocks(g.c * g.kh * g.kw, SUM_TILE // share), launch.blocks(g.m, SUM_TILE)), (SUM_LINES * SUM_TILE,),
        parts, dw, splits, share, g.m, g.c, g.kh * g.kw)
    return dw


# Each tile with the widest copies, and the last with others; with wgmma and with mma. (dy's bytes, x's bytes, WIDE)
CONFIGURATIONS = [
    (SUM_FILE, ()),
    *[(FILE, _constants(tile, IMAGES[np.dtype(np.uint16 if kind == "half" else np.float32)],
                        "BF16" if kind == "half" else kind, (x, dy), wide and kind == "half", hopper))
      for kind, tiles in TILES.items() for tile in tiles for hopper in (True, False)
      for dy, x, wide in [(16, 16, True), *[(16, 16, False), (2, 2, False), (4, 8, False)][:3 * (tile is tiles[-1])]]
      if (min(x, dy) > 2 or kind == "half") and (hopper or tile.sums <= SUMS_OF_MMA)]]
