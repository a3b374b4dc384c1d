"""Convolution of images in NHWC, and the gradient of its image, beside float64 of what the products are given."""

from __future__ import annotations

import unittest.mock
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

import cupy

from checks.nhwc import drawn
from checks.sources import counted
from minidl.ops import cpu
from minidl.ops.common.geometry import ConvGeometry, conv_geometry, pool_geometry
from minidl.ops.common.geometry.nhwc import AXES, BACK, bf16, in_nhwc, widened
from minidl.ops.cuda.layers.pool.windows import max_pool2d
from minidl.ops.cuda.nhwc.conv import conv, conv_images, conv_tma
from minidl.ops.cuda.nhwc.elementwise import act_grad_b_nhwc
from minidl.ops.cuda.nhwc.norm.batch import normalize_act_grad_nhwc, normalize_grad_by

KINDS = {"tf32": ("float32", "tf32"), "3xtf32": ("float32", "3xtf32"), "bf16": ("bf16", "bf16")}
DIRECTIONS = ("y", "dx")
PRODUCTS = "conv_nhwc", "conv_nhwc_tma", "conv_nhwc_images", "conv_nhwc_few"
TILES = {kind: (*conv.TILES[mode], *(() if kind == "3xtf32" else (*conv_images.TILES, *conv_tma.TILES)))
         for kind, mode in (("tf32", "TF32"), ("3xtf32", "TF32X3"), ("bf16", "BF16"))}
# Of an error, per sum of the magnitudes of its terms: what 3xtf32 loses, and what float32 does each time tensor cores
# add some terms; of a result in bf16
SPLIT, CUT, HALF = 2.0**-20, 2.0**-23, 2.0**-8
ULP = 2.0**-10                             # of tf32, at most, relative to the number


def rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest tf32."""
    return ((x.view(np.uint32) + 0x1000) & 0xffffe000).view(np.float32)


def half_way(x: np.ndarray) -> np.ndarray:
    """Which numbers are as near to one tf32 as to the next."""
    return (x.view(np.uint32) & 0x1fff) == 0x1000


def filters_of(w: np.ndarray, kind: str) -> np.ndarray:
    """As products take them."""
    if kind == "bf16":
        return widened(bf16(w))
    return rounded(w) if kind == "tf32" else w


def images_of(x: np.ndarray, kind: str, on_the_way: bool) -> np.ndarray:
    """As products take them: in tf32 rounded on the way, or else cut off."""
    if kind != "tf32":
        return x
    return rounded(x) if on_the_way else (x.view(np.uint32) & 0xffffe000).view(np.float32)


def computed(direction: str, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, g: ConvGeometry) -> np.ndarray:
    """In float64, of images in NHWC; x and w are dy and x where the gradient of the filters is asked for."""
    image = np.ascontiguousarray(x.transpose(BACK), np.float64)
    if direction == "dw":
        return cpu.conv2d_grad_w(image, np.ascontiguousarray(w.transpose(BACK), np.float64), g)
    found = (cpu.conv2d(image, w.astype(np.float64), None, g) if direction == "y" else
             cpu.conv2d_grad_x(image, w.astype(np.float64), g)).transpose(AXES)
    return found if b is None else found + b


def error(direction: str, kind: str, g: ConvGeometry, seed: int, act: str | None = None,
          tile: conv_tma.Tile | None = None) -> float:
    """The largest error of an element, relative to its bound; two runs must give the same bits."""
    rng = np.random.default_rng(seed)
    shape = (g.n, g.h, g.w, g.c) if direction == "y" else (g.n, g.oh, g.ow, g.m)
    x, w = (rng.standard_normal(each, np.float32) for each in (shape, (g.m, g.c, g.kh, g.kw)))
    b = None                               # of dx, with an activation: as transposed convolutions have it
    if seed % 2 if direction == "y" else act:
        b = rng.standard_normal(g.m if direction == "y" else g.c, np.float32)
    image, precision = KINDS[kind]
    given = cupy.asarray(bf16(x) if image == "bf16" else x)

    def run() -> np.ndarray:
        bias = None if b is None else cupy.asarray(b)
        if direction == "dx":
            return conv.grad_x(given, cupy.asarray(w), g, bias, act, precision=precision, tile=tile).get()
        return conv.y(given, cupy.asarray(w), bias, g, act, precision=precision, tile=tile).get()

    conv._plan.cache_clear()                   # its launches would not be counted
    with counted() as launched:
        first, second = run(), run()
    assert first.tobytes() == second.tobytes(), f"{direction} {kind} {g}: two runs differ"
    assert first.dtype == given.dtype
    by_copies = kind == "tf32" and launched["conv_nhwc_tma"] + launched["conv_nhwc_images"]
    ties = half_way(widened(given.get())) if by_copies else None
    x, w = images_of(widened(given.get()), kind, not launched["conv_nhwc"]), filters_of(w, kind)
    exact = computed(direction, x, w, b, g)
    magnitudes = computed(direction, abs(x), abs(w), None if b is None else abs(b), g)
    length = g.kh * g.kw * (g.c if direction == "y" else g.m)
    bound = magnitudes * (SPLIT * (kind == "3xtf32") + CUT * (3 + length / 8)) + 1e-30
    if ties is not None:                   # which way the hardware rounds these is not documented
        bound = bound + computed(direction, abs(x) * ties * ULP, abs(w), None, g)
    if act == "relu":
        exact = np.maximum(exact, 0)
    if kind == "bf16":
        bound = bound + abs(exact) * HALF
    assert first.shape == exact.shape
    return float((abs(widened(first) - exact) / bound).max(initial=0))


def is_right(direction: str, kind: str, x: Any, w: Any, stride: Any, padding: Any, tile: int | None = None,
             act: str | None = None) -> None:
    """tile: which of the precision's, in place of the one that the launcher finds cheapest."""
    g = conv_geometry(x, w, None, stride, padding, "gemm")
    found = error(direction, kind, g, 1, act, None if tile is None else TILES[kind][tile % len(TILES[kind])])
    assert found < 1, f"{direction} {kind} {g}: the error is {found:.3g} of its bound"


def is_right_by(way: str, kind: str, x: Any, w: Any, stride: Any, padding: Any, act: str | None = None) -> None:
    """dx by phases or by zeros, whatever the launcher finds cheapest."""
    def plan(back: bool, *of: Any) -> conv.Way:
        g, dtype, mode, aligned, given, _, then, zeros = of
        found = (conv._by_phases(g, dtype, mode, aligned, given, then, zeros) if way == "phases" else
                 conv._by_zeros(g, dtype, mode, given, then))
        assert found
        return found
    plan.cache_clear = lambda: None  # type: ignore[attr-defined]
    with unittest.mock.patch.object(conv, "_plan", plan):
        is_right("dx", kind, x, w, stride, padding, None, act)


def sparse(rng: np.random.Generator, terms: int, *shape: int) -> np.ndarray:
    """Whole numbers, so many of them not 0 that sums of such a product, of that many terms, are small."""
    numbers = rng.integers(-1, 2, shape).astype(np.float32)
    numbers[rng.random(shape) * terms > 100] = 0
    return numbers


def stored_as(kind: str, x: np.ndarray) -> Any:
    return cupy.asarray(bf16(x) if KINDS[kind][0] == "bf16" else x)


def same_bits(kind: str, g: ConvGeometry, got: Any, want: Any) -> None:
    for mine, its in zip(got, want, strict=True):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        assert mine.get().tobytes() == its.get().tobytes(), f"{kind} {g}: other bits than in two steps"


def maxima_are_right(kind: str, x: Any, w: Any, padding: Any, tile: int | None = None, act: str | None = None,
                     stored: bool | None = None) -> None:
    """max_pooled gives the bits of max_pool2d of y. In y are whole numbers that bf16 can hold, many of them equal,
    and NaNs. stored: whether y must be, for max_pool2d to read it."""
    g = conv_geometry(x, w, None, 1, padding, "gemm")
    pooling = in_nhwc(pool_geometry("max_pool2d", (g.n, g.m, g.oh, g.ow), 2, None, 0))
    rng = np.random.default_rng(1)
    image, filters = sparse(rng, g.c * g.kh * g.kw, g.n, g.h, g.w, g.c), rng.integers(-1, 2, w).astype(np.float32)
    image[rng.random(image.shape) < 1e-3] = np.nan
    given, precision = stored_as(kind, image), KINDS[kind][1]
    weights, b = cupy.asarray(filters), cupy.asarray(rng.integers(-2, 3, g.m).astype(np.float32))
    one = None if tile is None else TILES[kind][tile % len(TILES[kind])]
    conv._plan.cache_clear()                   # its launches would not be counted
    with counted() as launched:
        got = conv.max_pooled(given, weights, b, g, act, pooling, precision=precision, tile=one)
    if stored is not None:
        assert launched["max_pool2d"] == stored
    same_bits(kind, g, got, max_pool2d(
        conv.y(given, weights, b, g, act, precision=precision, tile=one), pooling))


def gradients_are_right(kind: str, x: Any, w: Any, padding: Any, tile: int | None = None, act: str = "relu",
                        added: bool = False, normalized: bool = False, stored: bool | None = None,
                        stride: Any = 1) -> None:
    """grad_x_act gives the bits of act_grad_b_nhwc, or of normalize_act_grad_nhwc, of grad_x; of numbers whose sums
    bf16 and float32 hold. stored: whether the gradient by x must be, for those to read it."""
    g = conv_geometry(x, w, None, stride, padding, "gemm")
    rng = np.random.default_rng(1)
    shape = g.n, g.h, g.w, g.c
    gy, filters = sparse(rng, g.m * g.kh * g.kw, g.n, g.oh, g.ow, g.m), rng.integers(-1, 2, w).astype(np.float32)
    gy, other, known, values = (stored_as(kind, each.astype(np.float32)) for each in (
        gy, rng.integers(-9, 10, shape), rng.integers(-1, 2, shape) / 2, rng.integers(-9, 10, shape)))
    mean, rstd = (cupy.asarray((rng.integers(1, 3, g.c) / 2).astype(np.float32)) for _ in range(2))
    given = conv_tma.Beside(other if added else None, known, *((values, mean, rstd) if normalized else ()))
    weights, precision = cupy.asarray(filters), KINDS[kind][1]
    one = None if tile is None else TILES[kind][tile % len(TILES[kind])]
    conv._plan.cache_clear()                   # its launches would not be counted
    with counted() as launched:
        gz, sums = conv.grad_x_act(gy, weights, g, act, given, precision=precision, tile=one)
    dx = conv.grad_x(gy, weights, g, precision=precision, tile=one)
    assert stored is None or stored == (sums is None)
    assert launched["conv_nhwc_tma"] or sums is None
    assert launched["conv_nhwc_spread"] <= 1
    if sums is None:
        same_bits(kind, g, [gz], [dx])
    elif normalized:
        more = values, None, mean, rstd
        want = normalize_act_grad_nhwc(dx, given.added, known, values, None, mean, rstd, None, act)  # type: ignore[arg-type]
        same_bits(kind, g, (gz, *normalize_grad_by(gz, *more, sums)), want)
    else:
        same_bits(kind, g, (gz, sums[0]), act_grad_b_nhwc(dx, given.added, known, act))


def in_patches(kernel: str, direction: str, kind: str, g: ConvGeometry, seed: int) -> ConvGeometry:
    """A shape that a kernel takes: conv_nhwc_tma, of channels that fill 16 bytes; conv_nhwc_few, of channels that 16
    bytes hold, with filters up to 8x8; both in steps of 1. conv_nhwc_images, of channels that fill slabs and up to
    16x16 pixels."""
    stride: int | tuple[int, int] = 1
    n, c, h, w, kh, kw = g.n, g.c if direction == "y" else g.m, g.h, g.w, g.kh, g.kw
    if kernel == "conv_nhwc_few":
        each, (h, w), (kh, kw) = 8 if kind == "bf16" else 4, (h + 3, w + 3), (kh + seed % 4, kw + seed // 4 % 4)
        c = 1 + c % each
    else:
        fill = 64 if kernel == "conv_nhwc_images" or seed % 2 else 8
        c = max(16, -(-c // fill) * fill)            # of fewer conv_few.cu would be asked
        if kernel == "conv_nhwc_images":
            h, w = min(h, 16, 15 - g.top - g.bottom + kh), min(w, 16, 15 - g.left - g.right + kw)
            n, stride = n + seed % 3 * 64, (g.sh, g.sw)
    c, m = (c, g.m) if direction == "y" else (g.c, c)
    return conv_geometry((n, c, h, w), (m, c, kh, kw), None, stride, ((g.top, g.bottom), (g.left, g.right)), "gemm")


def tiles_of(kernel: str, direction: str, kind: str, g: ConvGeometry) -> list[conv_tma.Tile]:
    """Those of a kernel that can take a shape."""
    module = {"conv_nhwc_tma": conv_tma, "conv_nhwc_images": conv_images}[kernel]
    sizes = conv._sizes(direction == "dx", g)
    return [tile for tile in module.TILES if conv._copied(tile, sizes, 64 if kind == "bf16" else 32)]


def drawn_is_right(direction: str, kind: str, seed: int, most_pixels: int = 4000, most_channels: int = 300,
                   kernel: str = "") -> None:
    """kernel: which of those whose images the hardware copies, or that take few channels, must be launched, in each of
    its tiles that can."""
    g, tile = drawn(seed, most_pixels, most_channels), None
    if kernel:
        g = in_patches(kernel, direction, kind, g, seed)
    if kernel in ("conv_nhwc_tma", "conv_nhwc_images"):
        fit = tiles_of(kernel, direction, kind, g)
        tile = fit[seed % len(fit)]
    with counted() as launched:
        found = error(direction, kind, g, seed, tile=tile)
    assert found < 1, f"{direction} {kind} {g}: the error is {found:.3g} of its bound"
    products = {name: launched[name] for name in PRODUCTS if launched[name]}
    assert sum(products.values()) == 2         # as often as it was run
    assert not kernel or kernel in products, f"{direction} {kind} {g}: {kernel} was not launched but {products}"


def drawn_maxima_are_right(kind: str, seed: int, most_pixels: int = 4000, most_channels: int = 300) -> None:
    """In a tile of conv_nhwc_tma that can find them, unless others are so much cheaper that y is stored."""
    g = in_patches("conv_nhwc_tma", "y", kind, drawn(seed, most_pixels, most_channels), seed)
    maxima_are_right(kind, (g.n, g.c, g.h + 1, g.w + 1), (-(-g.m // 8) * 8, g.c, g.kh, g.kw),
                     ((g.top, g.bottom), (g.left, g.right)), -2 - seed % 4, "relu" if seed // 3 % 2 else None)


def drawn_gradients_are_right(kind: str, seed: int, most_pixels: int = 4000, most_channels: int = 300) -> None:
    """In a tile of conv_nhwc_tma that can do it."""
    g = in_patches("conv_nhwc_tma", "dx", kind, drawn(seed, most_pixels, most_channels), seed)
    c = -(-g.c // 8) * 8
    gradients_are_right(kind, (g.n, c, g.h, g.w), (g.m, c, g.kh, g.kw), ((g.top, g.bottom), (g.left, g.right)),
                        -2 - seed % 4, ("relu", "tanh")[seed // 3 % 2], bool(seed // 6 % 2), bool(seed // 2 % 2),
                        stored=False)
