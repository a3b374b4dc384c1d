"""The gradient of the filters of images in NHWC, beside sums in float64 of what the products are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

import cupy

from checks.nhwc import drawn
from checks.nhwc_conv import ULP, computed, filters_of, half_way
from checks.sources import counted
from minidl.ops.common.geometry import ConvGeometry, conv_geometry
from minidl.ops.common.geometry.nhwc import bf16
from minidl.ops.cuda.nhwc.grad_w import conv_grad_w

BY_HARDWARE = "conv2d_nhwc_dw_tma"
OF_FEW = "conv2d_nhwc_dw_few"
OF_ROWS = "conv2d_nhwc_dw_rows"
PRODUCTS = "conv2d_nhwc_dw", BY_HARDWARE, OF_FEW, OF_ROWS
# How images lie in memory, and the precision of products
KINDS = {"tf32": ("float32", "tf32"), "3xtf32": ("float32", "3xtf32"), "bf16": ("float32", "bf16"),
         "bf16 images": ("bf16", "bf16")}
# Error of a sum, per sum of the magnitudes of its terms: those of products in 3xtf32, and of sums in float32, which
# tensor cores cut off: at most 2^-23 each time they add some terms, and as much each time parts are added
SPLIT, CUT = 2.0**-21, 2.0**-23


def error(kind: str, g: ConvGeometry, seed: int, kernel: str = "", **how: Any) -> float:
    """The largest error of an element, relative to its bound; two runs must give the same bits. kernel: the one of
    PRODUCTS that must be launched."""
    images, precision = KINDS[kind]
    rng = np.random.default_rng(seed)
    dy, x = (rng.standard_normal(shape, np.float32) for shape in ((g.n, g.oh, g.ow, g.m), (g.n, g.h, g.w, g.c)))
    of_dy, of_x = (cupy.asarray(bf16(a) if images == "bf16" else a) for a in (dy, x))
    with counted() as launched:
        first, second = (conv_grad_w.grad_w(of_dy, of_x, g, precision=precision, **how).get() for _ in range(2))
    products = {name: launched[name] for name in PRODUCTS if launched[name]}
    assert products == {kernel or max(products): 2}, f"{kind} {g}: {products} were launched, in place of {kernel}"
    assert first.tobytes() == second.tobytes(), f"{kind} {g}: two runs differ"
    assert first.dtype == np.float32
    ties = [half_way(a) for a in (dy, x)]
    dy, x = filters_of(dy, precision), filters_of(x, precision)
    magnitudes = computed("dw", abs(dy), abs(x), None, g)
    # Cut-off errors of a sum add up like a random walk's steps, and its sum is smaller than that of its magnitudes
    # Products of eight pixels are added at once; where the hardware copies they are neighbours of a row
    added = g.n * g.oh * (-(-g.ow // 8) if BY_HARDWARE in products else g.ow / 8)
    bound = magnitudes * (SPLIT * (precision == "3xtf32") + CUT * (2 + np.sqrt(added))) + 1e-30
    if precision == "tf32" and products.keys() & {BY_HARDWARE, OF_ROWS}:
        # Which way the hardware rounds these is not documented
        bound += ULP * (computed("dw", abs(dy) * ties[0], abs(x), None, g) + computed(
            "dw", abs(dy), abs(x) * ties[1], None, g))
    return float((abs(first - computed("dw", dy, x, None, g)) / bound).max(initial=0))


def drawn_is_right(kind: str, seed: int, most_pixels: int, most_channels: int, splits: int | None = None,
                   kernel: str = BY_HARDWARE) -> float:
    """The error, relative to its bound, of a random shape that a kernel takes, in steps of 1: one that the hardware
    copies, of channels that fill 16 bytes, more than four in float32, and of more than one tap, or of one for rows; or
    of up to four channels, with filters up to 8x8."""
    g, each = drawn(seed, most_pixels, most_channels, wide=True), 8 if kind == "bf16 images" else 4
    c, m, more = max(8, -(-g.c // each) * each), -(-g.m // each) * each, (0, int(g.kh * g.kw == 1))
    if kernel == OF_FEW:
        c, more = 1 + g.c % 4, (seed % 4, seed // 4 % 4)
    kh, kw = (1, 1) if kernel == OF_ROWS else (g.kh + more[0], g.kw + more[1])
    padding = 0 if kernel == OF_ROWS else ((g.top, g.bottom), (g.left, g.right))
    g = conv_geometry((g.n, c, g.h + more[0], g.w + more[1]), (m, c, kh, kw), None, 1, padding, "gemm")
    found = error(kind, g, seed, kernel, splits=splits)
    assert found < 1, f"{kind}, seed {seed}, {g}: the error is {found:.3g} of its bound"
    return found


def is_right(x: Any, w: Any, stride: Any, padding: Any, kind: str, tile: int | None = None,
             splits: int | None = None) -> None:
    """tile: which of the precision's, in place of the one that the launcher finds best."""
    g = conv_geometry(x, w, None, stride, padding, "gemm")
    tiles = conv_grad_w.TILES[conv_grad_w.tiles_of(*arguments_of(kind))]
    found = error(kind, g, 1, tile=None if tile is None else tiles[tile % len(tiles)], splits=splits)
    assert found < 1, f"{kind} {g}: the error is {found:.3g} of its bound"


def arguments_of(kind: str) -> tuple[np.dtype, str]:
    images, precision = KINDS[kind]
    return np.dtype(np.uint16 if images == "bf16" else np.float32), precision
