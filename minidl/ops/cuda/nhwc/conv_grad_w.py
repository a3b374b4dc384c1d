"""Launcher of conv_grad_w.cu: the gradient of the filters of a convolution of images in NHWC."""

from __future__ import annotations

import functools
from typing import NamedTuple

import cupy
import numpy as np

from ...common.geometry import ConvGeometry
from .. import launch

FILE = "nhwc/conv_grad_w.cu"
IMAGES = {np.dtype(np.float32): "float", np.dtype(np.uint16): "unsigned short"}        # uint16: the bits of bf16
MODES = {"tf32": "TF32", "3xtf32": "TF32X3", "bf16": "TF32"}       # PRECISION of float32 images; BF16 is bf16's
MIN_COMPILER = 12, 9                       # NVRTC: older ones refuse the architecture that has wgmma
MOST_SPLITS = 512
SIDE = 32                                  # as in conv_grad_w.cu
SUM_THREADS = 1 << 18                      # that add parts up, at least: enough to wait for memory together


class Form(NamedTuple):
    """Tiles of a block: groups x tiles x 64 rows (tap, channel) by so many filters; pixels of a chunk, and how many
    chunks shared memory holds; blocks of a multiprocessor; and what a product costs, relative to the best form's."""

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


# By PRECISION; BF16 is for images of bf16. The first are the best where they are filled
FORMS = {
    "BF16": (Form(2, 3, 128, 64, 4, 1, 1.0), Form(2, 2, 128, 64, 4, 1, 1.1), Form(3, 3, 64, 64, 4, 1, 1.15),
             Form(2, 3, 64, 64, 4, 1, 1.2), Form(2, 1, 128, 64, 4, 1, 1.4), Form(2, 1, 64, 64, 4, 2, 1.6),
             Form(1, 1, 64, 64, 4, 3, 2.0)),
    "TF32": (Form(2, 3, 128, 32, 4, 1, 1.0), Form(2, 2, 128, 32, 4, 1, 1.1), Form(2, 3, 64, 32, 4, 1, 1.2),
             Form(2, 1, 128, 32, 4, 1, 1.4), Form(2, 1, 64, 32, 4, 1, 1.6), Form(1, 1, 64, 32, 4, 3, 2.0)),
    "TF32X3": (Form(2, 2, 64, 32, 3, 1, 1.0), Form(2, 1, 64, 32, 3, 1, 1.4), Form(1, 1, 64, 32, 3, 2, 2.0)),
}
# What a block costs beside its chunks, and a split's sums of a block, in chunks of one
START, SUMS = 6, 0.05


class Tiles(NamedTuple):
    """How rows (tap, channel) are shared out: blocks, channels of a slab, taps of a block, runs of taps."""

    blocks: int
    slab: int
    taps: int
    runs: int


class Rows(NamedTuple):
    """How a chunk's rows of the image lie in shared memory, in elements: as in struct GradW. copy: bytes at once."""

    whole: bool
    copy: int
    pitch: int
    line: int
    before: int


class Plan(NamedTuple):
    """A launch."""

    constants: tuple[launch.Constant, ...]
    tiles: int
    splits: int
    threads: int
    shared: int
    struct: bytes


def round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def _constants(form: Form, mode: str, whole: bool, copies: tuple[int, int],
               hopper: bool) -> tuple[launch.Constant, ...]:
    image = IMAGES[np.dtype(np.uint16 if mode == "BF16" else np.float32)]
    return (*[launch.HOPPER][:hopper], ("IMAGE", image), ("PRECISION", mode), ("GROUPS", form.groups),
            ("TILES", form.tiles), ("FILTERS", form.filters), ("PIXELS", form.pixels), ("STAGES", form.stages),
            ("BLOCKS", form.blocks), ("WHOLE_ROWS", int(whole)), ("X_COPY", copies[0]), ("DY_COPY", copies[1]))


def _widest(size: int, aligned: int) -> int:
    """The largest of 16, 8, 4 and 2 bytes that divides a size and an alignment."""
    return next(b for b in (16, 8, 4, 2) if size % b == 0 and aligned % b == 0)


def _tiles(form: Form, g: ConvGeometry, grain: int) -> Tiles:
    """Such that rows fill the fewest blocks. grain: channels that slabs are multiples of."""
    found, taps = [], g.kh * g.kw
    for slabs in range(1, g.c + 1):
        slab = min(g.c, round_up(-(-g.c // slabs), grain))
        if slab > form.rows:
            continue
        of_block = min(taps, form.rows // slab)
        if of_block > g.kw:
            of_block -= of_block % g.kw
        runs = -(-taps // of_block)
        found.append(Tiles(-(-g.c // slab) * runs, slab, of_block, runs))
        if slab <= grain or len(found) > 8:
            break
    return min(found, key=lambda tiles: (tiles.blocks, -tiles.slab))


def _rows(g: ConvGeometry, slab: int, width: int, size: int, aligned: int) -> tuple[Rows, ...]:
    """The ways for images of numbers of so many bytes, the first the best."""
    each = 16 // size
    copy = _widest(g.c * size, aligned)
    pitch = round_up(slab, copy // size)
    if pitch >= 8:
        pitch = round_up(pitch, 8)
        pitch += 8 if pitch % 16 == 0 else 0               # neighbouring pixels in other banks
    ways = (Rows(False, copy, pitch, width * pitch, 0),)
    row = _widest(g.w * g.c * size, aligned)
    if slab == g.c and row > copy:
        before = -g.left * g.c % each                      # so that the image's first pixel can be copied to
        line = round_up(before + max(width, g.left + g.w) * g.c, each)
        return Rows(True, row, g.c, line, before), *ways
    return ways


def _shared(form: Form, mode: str, lines: int, width: int, rows: Rows) -> int:
    """Bytes, as the kernel lays them out."""
    half = mode == "BF16"
    gradients = form.filters // 8 * (form.pixels * 16 + 16) if half else form.pixels * form.filters * 4
    b = 0 if half else 3 * form.pixels * form.filters * (8 if mode == "TF32X3" else 4)
    images = round_up(lines * rows.line * (2 if half else 4), 128)
    return b + form.stages * (gradients + images) + 4 * (form.pixels + 2 * lines + (0 if rows.whole else lines * width))


class Chunk(NamedTuple):
    """Pixels of a chunk: rows of outputs, or of one row one of so many segments, `across` outputs, which read `width`
    pixels of a row of the image."""

    rows: int
    segments: int
    across: int
    width: int
    way: Rows
    shared: int


def _chunk(form: Form, mode: str, g: ConvGeometry, slab: int, filter_rows: int, aligned: int) -> Chunk:
    """As many pixels as a form has room for, or where they do not fit shared memory, as fit."""
    segments, rows = -(-g.ow // form.pixels), max(1, min(form.pixels // g.ow, g.n * g.oh))
    while True:
        across = -(-g.ow // segments)
        width = (across - 1) * g.sw + g.kw
        for way in _rows(g, slab, width, 2 if mode == "BF16" else 4, aligned):
            shared = _shared(form, mode, rows * filter_rows, width, way)
            if shared <= launch.most_shared() and not (way.whole and segments > 1):
                return Chunk(rows, -(-g.ow // across), across, width, way, shared)
        if rows == 1 and across == 1:
            raise ValueError(f"conv2d_nhwc_dw: images of {g.c} channels and filters of {g.kh}x{g.kw} take {shared} "
                             f"bytes of shared memory but a block has {launch.most_shared()}; use another algorithm")
        rows, segments = (rows // 2, segments) if rows > 1 else (1, min(g.ow, segments * 2))


def _split(tiles: int, chunks: int, at_once: int) -> int:
    """How many parts the chunks are split into: turns of blocks that take the least time."""
    def cost(splits: int) -> float:
        return -(-tiles * splits // at_once) * (-(-chunks // splits) + START) + SUMS * splits * tiles
    return min(range(1, max(1, min(chunks, MOST_SPLITS)) + 1), key=cost)


@functools.lru_cache(maxsize=1024)
def plan(g: ConvGeometry, mode: str, aligned: tuple[int, int], form: Form | None = None,
         splits: int | None = None) -> Plan:
    """The launch of a shape, in the cheapest form or a given one. aligned: what the addresses of x and dy divide by, up
    to 16 bytes."""
    size = 2 if mode == "BF16" else 4
    grain = max(_widest(g.c * size, aligned[0]) // size, min(8, g.c))
    form = form or min(FORMS[mode], key=lambda form: (
        _tiles(form, g, grain).blocks * -(-g.m // form.filters) * form.rows * form.filters * form.cost))
    tiles = _tiles(form, g, grain)
    taps = g.kh * g.kw
    filter_rows = max((min(t + tiles.taps, taps) - 1) // g.kw - t // g.kw + 1 for t in range(0, taps, tiles.taps))
    rows, segments, across, width, way, shared = _chunk(form, mode, g, tiles.slab, filter_rows, aligned[0])
    chunks = -(-g.n * g.oh // rows) * segments
    blocks = tiles.blocks * -(-g.m // form.filters)
    splits = splits or _split(blocks, chunks, launch.multiprocessors() * form.blocks)
    hopper = launch.compute_capability() == 90 and launch.compiler_version() >= MIN_COMPILER
    struct = launch.by_value(
        "GradW", g, slab=tiles.slab, taps=tiles.taps, runs=tiles.runs, rows=rows, filter_rows=filter_rows,
        across=across, width=width, segments=segments, chunks=chunks, splits=splits, pitch=way.pitch, line=way.line,
        before=way.before)
    constants = _constants(form, mode, way.whole, (way.copy, _widest(g.m * size, aligned[1])), hopper)
    return Plan(constants, blocks, splits, form.groups * 128, shared, struct)


def _teams(splits: int, numbers: int) -> int:
    """Of threads that add up a number's parts: a power of 2."""
    teams = 1
    while teams < SIDE and 2 * teams <= splits and teams * numbers < SUM_THREADS:
        teams *= 2
    return teams


def grad_w(dy: cupy.ndarray, x: cupy.ndarray, g: ConvGeometry, *, precision: str, form: Form | None = None,
           splits: int | None = None) -> cupy.ndarray:
    """dw (m,c,kh,kw) in float32 from dy (n,oh,ow,m) and x (n,h,w,c), both float32, or both bf16 as bits in uint16.

    precision: "tf32", "3xtf32" or "bf16", of the products; bf16 for images of bf16 alone, others have tf32 there. Sums
    are float32's. form, splits: in place of what the launcher finds best.
    """
    if dy.dtype != x.dtype or x.dtype not in IMAGES:
        raise TypeError(f"conv2d_nhwc_dw: dy is {dy.dtype} and x is {x.dtype} but both must be float32, or bf16 as "
                        "uint16; convert them")
    if x.shape != (g.n, g.h, g.w, g.c) or dy.shape != (g.n, g.oh, g.ow, g.m):
        raise ValueError(f"conv2d_nhwc_dw: x has shape {x.shape} and dy {dy.shape} but the geometry says "
                         f"{(g.n, g.h, g.w, g.c)} and {(g.n, g.oh, g.ow, g.m)}; pass images in NHWC")
    half = x.dtype == np.uint16
    if precision not in MODES or (half and precision != "bf16"):
        raise ValueError(f"conv2d_nhwc_dw: the precision is {precision!r} but it must be tf32, 3xtf32 or bf16 for "
                         "images of float32, and bf16 for those of bf16; set another")
    if launch.compute_capability() < 80:
        raise ValueError(f"conv2d_nhwc_dw: the GPU's compute capability is {launch.compute_capability() / 10} but "
                         "tf32 and bf16 need 8.0; use precision fp32 and another algorithm")
    dy, x = cupy.ascontiguousarray(dy), cupy.ascontiguousarray(x)
    aligned = _widest(x.data.ptr, 16), _widest(dy.data.ptr, 16)
    found = plan(g, "BF16" if half else MODES[precision], aligned, form, splits)
    dw = launch.empty((g.m, g.c, g.kh, g.kw), np.dtype(np.float32))
    size = g.kh * g.kw * g.c
    parts = launch.empty((found.splits, size, g.m), np.dtype(np.float32))
    launch.kernel(FILE, "conv2d_nhwc_dw", *found.constants)(
        (found.tiles, found.splits), (found.threads,), dy, x, parts, found.struct, shared=found.shared)
    teams = _teams(found.splits, size * g.m)
    launch.kernel(FILE, "conv2d_nhwc_dw_sum", *found.constants)(
        (launch.blocks(size * teams, SIDE), launch.blocks(g.m, SIDE)), (SIDE * SIDE,), parts, dw, found.splits, g.m,
        g.c, g.kh * g.kw, teams, shared=SIDE * (SIDE + 1) * 4)
    return dw


# Each form with the widest copies, the last also with whole rows and narrow ones; with wgmma and with mma
CONFIGURATIONS = [
    (FILE, _constants(form, mode, whole, copies, hopper))
    for mode, forms in FORMS.items() for form in forms for hopper in (True, False)
    for whole, copies in ((False, (16, 16)), *[(True, (16, 16)), (False, (8, 4)), (False, (2, 2))][
        :(3 if mode == "BF16" else 2) * (form is forms[-1])])]
