"""Launchers of implicit_gemm.cu, with fused multiply-adds (`implicit_gemm`) or on tensor cores (`tensor_core`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import cupy
import numpy as np

from .....core.device import precision
from ....common.geometry import ConvGeometry, layouts
from ....common.primitives import Array
from ... import launch
from ...layers.linear.tile import BK, BN, MIN_SLABS_PER_SPLIT, MODES, TILES, rows_per_block, tensor_cores_refuse
from ...reduce import sum_first

FILE, KERNEL = "conv/product/implicit_gemm.cu", "conv2d_implicit_gemm"
OUTSIDE = -(1 << 24)                       # as in implicit_gemm.cu
MAX_SPLITS = 512                           # of the depth

CONFIGURATIONS = [(FILE, (launch.real(np.dtype(dtype)), ("BM", bm), ("PRECISION", how), ("NEIGHBOURS", neighbours)))
                  for dtype, how, bm in TILES for neighbours in (0, 1)] + [
    (FILE, (launch.real(np.dtype(dtype)), ("BM", bm), ("NEIGHBOURS", neighbours), *layouts.constants(layout),
            ("PRECISION", how)))
    for dtype, how, bm in TILES if how == "FP32" and (dtype == "float32" or bm in (16, 128))
    for neighbours in (0, 1) for layout in ("NHWC", "CHWN")]


class Product(NamedTuple):
    """The launch of a product, the one before it, which packs w, and the table of taps that both read. Constants lack
    PRECISION."""

    plan: launch.Plan                      # splits: shares of the depth
    pack: launch.Plan
    taps: Array
    packed: int                            # elements of w as the product reads it


# ---------------------------------------------------------------- what each direction sums over
def _taps(rows: np.ndarray) -> Array:
    """On the device, in whole slabs: {offset in the source, row, column, offset in w}; the rest meets nothing."""
    table = np.full((launch.blocks(len(rows), BK) * BK, 4), (0, 2 * OUTSIDE, 0, 0), np.int32)
    table[:len(rows)] = np.reshape(rows, (-1, 4))
    with launch.for_all_streams():
        return cupy.asarray(table.view(launch.TYPES["int4"]).reshape(-1))


def _grid(a: int, b: int, c: int) -> np.ndarray:
    """All index triples below (a, b, c), in C order: (3, a*b*c)."""
    return np.indices((a, b, c)).reshape(3, -1)


def _depths(layout: str, maps: int, kh: int, kw: int) -> np.ndarray:
    """Maps and taps (map, p, q) of the source in the order of the depth: (3, maps*kh*kw)."""
    return np.roll(_grid(kh, kw, maps), 1, 0) if layout == "NHWC" else _grid(maps, kh, kw)


class Steps(NamedTuple):
    """From an image to the next in memory, a map, a row, a column."""

    image: int
    map: int
    row: int
    column: int


def _steps(layout: str, n: int, maps: int, h: int, w: int) -> Steps:
    if layout == "CHWN":
        return Steps(1, h * w * n, w * n, n)
    return Steps(h * w * maps, 1, w * maps, maps) if layout == "NHWC" else Steps(maps * h * w, h * w, w, 1)


def _filter_steps(layout: str, g: ConvGeometry) -> tuple[int, int, int]:
    """From a filter to the next in memory, a channel, a tap."""
    taps = g.kh * g.kw
    return (1, g.m, g.c * g.m) if layout == "NHWC" else (g.c * taps, taps, 1)


def _forward_taps(g: ConvGeometry, layout: str) -> np.ndarray:
    c, p, q = _depths(layout, g.c, g.kh, g.kw)
    x, (_, channel, tap) = _steps(layout, g.n, g.c, g.h, g.w), _filter_steps(layout, g)
    return np.stack([c * x.map + p * x.row + q * x.column, p, q, c * channel + (p * g.kw + q) * tap], 1)


def _splits(tiles: int, slabs: int) -> int:
    """Shares of the depth, so that about two blocks per multiprocessor have work."""
    wanted = 2 * launch.multiprocessors() // max(1, tiles)
    return max(1, min(wanted, slabs // MIN_SLABS_PER_SPLIT, MAX_SPLITS))


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    return launch.blocks(columns, BN), launch.blocks(rows, rows_per_block(rows))


def _planned(kernel: str, rows: int, columns: int, taps: np.ndarray, fields: dict[str, int], dtype: np.dtype,
             layout: str, neighbours: bool, splits: int | None = None) -> Product:
    bm, tiles = rows_per_block(rows), _tiles(rows, columns)
    if splits is None:
        splits = _splits(math.prod(tiles), -(-len(taps) // BK))
    table = _taps(taps)
    packed = len(table) * tiles[1] * bm
    constants = launch.real(dtype), ("BM", bm), ("NEIGHBOURS", int(neighbours)), *layouts.constants(layout)
    pixels = launch.by_value("Pixels", rows=rows, depth=len(taps), w_packed=tiles[1] * bm, splits=splits, **fields)
    return Product(
        launch.Plan(FILE, kernel, constants, (*tiles, splits), 256, 0, pixels, splits=splits),
        launch.Plan(FILE, KERNEL + "_pack", constants, (launch.blocks(packed, 256),), 256, 0, pixels),
        table, packed)


def _neighbours(layout: str, plane: int, g: ConvGeometry, maps: int) -> bool:
    """Whether what a thread stores at once are neighbours in memory: pixels of a plane, maps of a pixel, or images."""
    return {"NCHW": plane, "NHWC": maps, "CHWN": g.n}[layout] % 4 == 0


def _source(x: Steps, y: Steps, g: ConvGeometry) -> dict[str, int]:
    """Fields of Pixels for the pixels of y in x."""
    return {"images": g.n, "gh": g.oh, "gw": g.ow, "h": g.h, "w": g.w, "image": x.image, "step": x.column,
            "sr": g.sh, "sc": g.sw, "r0": -g.top, "c0": -g.left, "y_image": y.image, "y_row": y.map, "y_r": y.row,
            "y_c": y.column, "y_first": 0, "size": g.n * g.m * g.oh * g.ow, "bias_size": g.m}


@functools.lru_cache(maxsize=1024)
def _forward(g: ConvGeometry, dtype: np.dtype, layout: str) -> tuple[Product, ...]:
    x, y = _steps(layout, g.n, g.c, g.h, g.w), _steps(layout, g.n, g.m, g.oh, g.ow)
    fields = {"w_row": _filter_steps(layout, g)[0], **_source(x, y, g)}
    return _planned(KERNEL, g.m, g.n * g.oh * g.ow, _forward_taps(g, layout), fields, dtype, layout,
                    _neighbours(layout, g.oh * g.ow, g, g.m)),


@functools.lru_cache(maxsize=1024)
def _input_gradient(g: ConvGeometry, dtype: np.dtype, layout: str) -> tuple[Product, ...]:
    """A product for each residue of row + top and column + left modulo the stride: its pixels meet the same taps. All
    have the same number of shares of the depth, so that their parts are added up together."""
    phases_of: list[tuple[int, np.ndarray, dict[str, int]]] = []       # pixels, taps and fields of each
    phases = [(i, j) for i in range(g.sh) for j in range(g.sw)]
    firsts = [((i - g.top) % g.sh, (j - g.left) % g.sw) for i, j in phases]      # the first row and column of each
    whole = g.sh == g.sw == 1
    x, y = _steps(layout, g.n, g.c, g.h, g.w), _steps(layout, g.n, g.m, g.oh, g.ow)
    filter_step, channel_step, tap_step = _filter_steps(layout, g)
    for (i, j), (row, column) in zip(phases, firsts, strict=True):
        gh, gw = -(-(g.h - row) // g.sh), -(-(g.w - column) // g.sw)
        if gh <= 0 or gw <= 0:
            continue
        m, p, q = _depths(layout, g.m, g.kh, g.kw)
        meets = (p % g.sh == i) & (q % g.sw == j)
        m, p, q = m[meets], p[meets], q[meets]
        dp, dq = (row + g.top - p) // g.sh, (column + g.left - q) // g.sw
        taps = np.stack([m * y.map + dp * y.row + dq * y.column, dp, dq,
                         m * filter_step + (p * g.kw + q) * tap_step], 1)
        fields = {"w_row": channel_step, "images": g.n, "gh": gh, "gw": gw, "h": g.oh, "w": g.ow, "image": y.image,
                  "step": y.column, "sr": 1, "sc": 1, "r0": 0, "c0": 0, "y_image": x.image, "y_row": x.map,
                  "y_r": g.sh * x.row, "y_c": g.sw * x.column, "y_first": row * x.row + column * x.column,
                  "size": g.n * g.c * g.h * g.w, "bias_size": g.c}
        phases_of.append((g.n * gh * gw, taps, fields))
    neighbours = _neighbours(layout, g.h * g.w, g, g.c) and (whole or layout != "NCHW")
    splits = min(_splits(math.prod(_tiles(g.c, pixels)), -(-len(taps) // BK)) for pixels, taps, _ in phases_of)
    return tuple(_planned(KERNEL, g.c, pixels, taps, fields, dtype, layout, neighbours, splits)
                 for pixels, taps, fields in phases_of)


@functools.lru_cache(maxsize=1024)
def _filter_gradient(g: ConvGeometry, dtype: np.dtype, layout: str) -> tuple[Product, ...]:
    taps = _forward_taps(g, layout)
    fields = {"w_row": 0, **_source(_steps(layout, g.n, g.c, g.h, g.w), Steps(0, 0, 0, 0), g), "size": 0}
    tiles = launch.blocks(g.m, rows_per_block(g.m)) * launch.blocks(len(taps), BN)
    return _planned(KERNEL + "_dw", g.m, len(taps), taps, fields, dtype, layout, False,
                    _splits(tiles, -(-g.n * g.oh * g.ow // BK))),


@functools.lru_cache(maxsize=4096)
def _products(of: Callable[[ConvGeometry, np.dtype, str], tuple[Product, ...]], g: ConvGeometry, dtype: np.dtype,
              layout: str, mode: str) -> tuple[Product, ...]:
    """Of one of the directions above, in a precision; the tables are the same in each."""
    return tuple(each._replace(plan=each.plan.of(("PRECISION", mode)), pack=each.pack.of(("PRECISION", mode)))
                 for each in of(g, dtype, layout))


# ---------------------------------------------------------------- the directions
def _product(source: Array, w: Array, b: Array | None, out: Array, products: tuple[Product, ...],
             map_step: int) -> None:
    """map_step: from a map of the result to the next."""
    last = products[-1].plan               # constants of all are alike, and so are splits
    parts = launch.empty((last.splits, *out.shape), out.dtype) if last.splits > 1 else out
    for plan, pack, taps, size in products:
        packed = launch.empty((size,), w.dtype)
        pack.start(w, packed, taps, size, pack.struct)
        plan.start(source, packed, b if parts is out else None, parts, taps, plan.struct)
    if parts is not out:
        launch.kernel(FILE, KERNEL + "_finish", *last.constants)(
            (launch.blocks(out.size, 256),), (256,), parts, b, out, map_step, last.struct)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, mode: str = "FP32", layout: str = "NCHW") -> Array:
    out = launch.empty(layouts.ordered(layouts.IMAGES[layout], (g.n, g.m, g.oh, g.ow)), x.dtype)
    if out.size:
        _product(x, w, b, out, _products(_forward, g, x.dtype, layout, mode),
                 _steps(layout, g.n, g.m, g.oh, g.ow).map)
    return out


def dx(gy: Array, w: Array, g: ConvGeometry, mode: str = "FP32", layout: str = "NCHW") -> Array:
    out = launch.empty(layouts.ordered(layouts.IMAGES[layout], (g.n, g.c, g.h, g.w)), gy.dtype)
    if out.size:
        _product(gy, w, None, out, _products(_input_gradient, g, gy.dtype, layout, mode),
                 _steps(layout, g.n, g.c, g.h, g.w).map)
    return out


def dw(gy: Array, x: Array, g: ConvGeometry, mode: str = "FP32", layout: str = "NCHW") -> Array:
    (plan, _, taps, _), = _products(_filter_gradient, g, x.dtype, layout, mode)
    shape = layouts.ordered(layouts.FILTERS[layout], (g.m, g.c, g.kh, g.kw))
    parts = launch.empty((plan.splits, *shape) if plan.splits > 1 else shape, x.dtype)
    plan.start(gy, x, parts, taps, plan.struct)
    return sum_first(parts) if plan.splits > 1 else parts


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    return None


def tensor_core_y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    return y(x, w, b, g, MODES[precision()])


def tensor_core_dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return dx(gy, w, g, MODES[precision()])


def tensor_core_dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    return dw(gy, x, g, MODES[precision()])


def tensor_core_refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    return tensor_cores_refuse(dtype)
