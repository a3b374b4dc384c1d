"""Launchers of implicit_gemm.cu, with fused multiply-adds (`implicit_gemm`) or on tensor cores (`tensor_core`)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import cupy
import numpy as np

from .....device import precision
from ....geometry import ConvGeometry
from ....primitives import Array
from ... import launch
from ...linear.tile import BK, BN, MIN_SLABS_PER_SPLIT, MODES, TILES, rows_per_block, tensor_cores_refuse
from ...reduce import sum_first

FILE = "conv/product/implicit_gemm.cu"
OUTSIDE = -(1 << 24)                       # as in implicit_gemm.cu
MAX_SPLITS = 512                           # of the depth

CONFIGURATIONS = [(FILE, (launch.real(np.dtype(dtype)), ("BM", bm), ("PRECISION", how), ("NEIGHBOURS", neighbours)))
                  for dtype, how, bm in TILES for neighbours in (0, 1)]


class Launch(NamedTuple):
    """One launch: the grid, the constants but for PRECISION, the struct and the table of taps."""

    grid: tuple[int, int, int]
    constants: tuple[launch.Constant, ...]
    pixels: bytes
    taps: Array
    packed: int                            # elements of w as the product reads it
    splits: int


# ---------------------------------------------------------------- what each direction sums over
def _taps(rows: np.ndarray) -> Array:
    """On the device, in whole slabs: {offset in the source, row, column, offset in w}; the rest meets nothing."""
    table = np.full((launch.blocks(len(rows), BK) * BK, 4), (0, 2 * OUTSIDE, 0, 0), np.int32)
    table[:len(rows)] = np.reshape(rows, (-1, 4))
    return cupy.asarray(table.view(launch.TYPES["int4"]).reshape(-1))


def _grid(a: int, b: int, c: int) -> np.ndarray:
    """All index triples below (a, b, c), in C order: (3, a*b*c)."""
    return np.indices((a, b, c)).reshape(3, -1)


def _forward_taps(g: ConvGeometry) -> np.ndarray:
    c, p, q = _grid(g.c, g.kh, g.kw)
    return np.stack([(c * g.h + p) * g.w + q, p, q, np.arange(c.size)], 1)


def _splits(tiles: int, slabs: int) -> int:
    """Shares of the depth, so that about two blocks per multiprocessor have work."""
    wanted = 2 * launch.multiprocessors() // max(1, tiles)
    return max(1, min(wanted, slabs // MIN_SLABS_PER_SPLIT, MAX_SPLITS))


def _launch(rows: int, columns: int, taps: np.ndarray, fields: dict[str, int], dtype: np.dtype, neighbours: bool,
            splits: int | None = None) -> Launch:
    bm = rows_per_block(rows)
    tiles = launch.blocks(columns, BN), launch.blocks(rows, bm)
    if splits is None:
        splits = _splits(tiles[0] * tiles[1], -(-len(taps) // BK))
    table = _taps(taps)
    pixels = launch.by_value("Pixels", rows=rows, depth=len(taps), w_packed=tiles[1] * bm, splits=splits, **fields)
    return Launch((*tiles, splits), (launch.real(dtype), ("BM", bm), ("NEIGHBOURS", int(neighbours))), pixels,
                  table, len(table) * tiles[1] * bm, splits)


@functools.lru_cache(maxsize=1024)
def _forward(g: ConvGeometry, dtype: np.dtype) -> Launch:
    plane = g.oh * g.ow
    fields = {"w_row": g.c * g.kh * g.kw, "images": g.n, "gh": g.oh, "gw": g.ow, "h": g.h, "w": g.w,
              "image": g.c * g.h * g.w, "sr": g.sh, "sc": g.sw, "r0": -g.top, "c0": -g.left, "y_image": g.m * plane,
              "y_row": plane, "y_r": g.ow, "y_c": 1, "y_first": 0, "size": g.n * g.m * plane, "bias_size": g.m}
    return _launch(g.m, g.n * plane, _forward_taps(g), fields, dtype, plane % 4 == 0)


@functools.lru_cache(maxsize=1024)
def _input_gradient(g: ConvGeometry, dtype: np.dtype) -> tuple[Launch, ...]:
    """A launch for each residue of row + top and column + left modulo the stride: its pixels meet the same taps."""
    launches = []
    phases = [(i, j) for i in range(g.sh) for j in range(g.sw)]
    firsts = [((i - g.top) % g.sh, (j - g.left) % g.sw) for i, j in phases]      # the first row and column of each
    whole = g.sh == g.sw == 1
    for (i, j), (row, column) in zip(phases, firsts, strict=True):
        gh, gw = -(-(g.h - row) // g.sh), -(-(g.w - column) // g.sw)
        if gh <= 0 or gw <= 0:
            continue
        m, p, q = _grid(g.m, g.kh, g.kw)
        meets = (p % g.sh == i) & (q % g.sw == j)
        m, p, q = m[meets], p[meets], q[meets]
        dp, dq = (row + g.top - p) // g.sh, (column + g.left - q) // g.sw
        taps = np.stack([(m * g.oh + dp) * g.ow + dq, dp, dq, (m * g.c * g.kh + p) * g.kw + q], 1)
        fields = {"w_row": g.kh * g.kw, "images": g.n, "gh": gh, "gw": gw, "h": g.oh, "w": g.ow,
                  "image": g.m * g.oh * g.ow, "sr": 1, "sc": 1, "r0": 0, "c0": 0, "y_image": g.c * g.h * g.w,
                  "y_row": g.h * g.w, "y_r": g.sh * g.w, "y_c": g.sw, "y_first": row * g.w + column,
                  "size": g.n * g.c * g.h * g.w, "bias_size": g.c}
        launches.append(_launch(g.c, g.n * gh * gw, taps, fields, dtype, whole and g.h * g.w % 4 == 0,
                                None if whole else 1))
    return tuple(launches)


@functools.lru_cache(maxsize=1024)
def _filter_gradient(g: ConvGeometry, dtype: np.dtype) -> Launch:
    taps = _forward_taps(g)
    fields = {"w_row": 0, "images": g.n, "gh": g.oh, "gw": g.ow, "h": g.h, "w": g.w, "image": g.c * g.h * g.w,
              "sr": g.sh, "sc": g.sw, "r0": -g.top, "c0": -g.left, "y_image": 0, "y_row": 0, "y_r": 0, "y_c": 0,
              "y_first": 0, "size": 0, "bias_size": g.m}
    tiles = launch.blocks(g.m, rows_per_block(g.m)) * launch.blocks(len(taps), BN)
    return _launch(g.m, len(taps), taps, fields, dtype, False, _splits(tiles, -(-g.n * g.oh * g.ow // BK)))


# ---------------------------------------------------------------- the directions
def _product(source: Array, w: Array, b: Array | None, out: Array, planned: Launch, mode: str) -> None:
    constants = (*planned.constants, ("PRECISION", mode))
    packed = launch.empty((planned.packed,), w.dtype)
    launch.kernel(FILE, "conv2d_implicit_gemm_pack", *constants)(
        (launch.blocks(planned.packed, 256),), (256,), w, packed, planned.taps, planned.packed, planned.pixels)
    conv = launch.kernel(FILE, "conv2d_implicit_gemm", *constants)
    if planned.splits == 1:
        conv(planned.grid, (256,), source, packed, b, out, planned.taps, planned.pixels)
        return
    parts = launch.empty((planned.splits, *out.shape), out.dtype)
    conv(planned.grid, (256,), source, packed, None, parts, planned.taps, planned.pixels)
    finish = launch.kernel(FILE, "conv2d_implicit_gemm_finish", *constants)
    finish((launch.blocks(out.size, 256),), (256,), parts, b, out, out.shape[2] * out.shape[3], planned.pixels)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, mode: str = "FP32") -> Array:
    out = launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)
    if out.size:
        _product(x, w, b, out, _forward(g, x.dtype), mode)
    return out


def dx(gy: Array, w: Array, g: ConvGeometry, mode: str = "FP32") -> Array:
    out = launch.empty((g.n, g.c, g.h, g.w), gy.dtype)
    if out.size:
        for planned in _input_gradient(g, gy.dtype):
            _product(gy, w, None, out, planned, mode)
    return out


def dw(gy: Array, x: Array, g: ConvGeometry, mode: str = "FP32") -> Array:
    planned = _filter_gradient(g, x.dtype)
    kernel = launch.kernel(FILE, "conv2d_implicit_gemm_dw", *planned.constants, ("PRECISION", mode))
    shape = g.m, g.c, g.kh, g.kw
    parts = launch.empty((planned.splits, *shape) if planned.splits > 1 else shape, x.dtype)
    kernel(planned.grid, (256,), gy, x, parts, planned.taps, planned.pixels)
    return sum_first(parts) if planned.splits > 1 else parts


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
