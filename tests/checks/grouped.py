"""Convolution in thin groups and with dilation, in both layouts and all types, beside float64 of the same numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from checks.problems import DIRECTIONS
from minidl.lab.check import product_bound, used
from minidl.ops import cpu
from minidl.ops.common.geometry import conv_geometry
from minidl.ops.common.geometry.nhwc import AXES, BACK, bf16, widened

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops.cuda.conv import grouped  # noqa: E402

# kind -> layout, and the type in which images are stored
KINDS = {"float32": (grouped.NCHW, np.float32), "float64": (grouped.NCHW, np.float64),
         "nhwc": (grouped.NHWC, np.float32), "bf16": (grouped.NHWC, np.uint16)}
# x, filters, groups, window, stride, padding, dilation: runs of channels and leftover ones; columns and rows left over
CASES: list[tuple[Any, ...]] = [
    ((2, 16, 9, 7), 16, 16, (3, 3), 1, 1, 1), ((3, 24, 10, 6), 24, 24, (3, 3), 2, 1, 1),
    ((2, 16, 11, 8), 16, 16, (7, 7), 1, 3, 1), ((1, 7, 9, 9), 7, 7, (5, 3), (1, 2), ((2, 1), (0, 1)), 1),
    ((2, 8, 13, 12), 8, 8, (3, 3), 1, 2, 2), ((2, 6, 8, 9), 12, 3, (3, 3), 1, 1, 1),
    ((2, 12, 7, 7), 4, 4, (2, 3), 2, 1, 1), ((1, 4, 14, 13), 6, 1, (3, 2), (2, 3), 2, (3, 2)),
    ((2, 136, 5, 4), 136, 136, (3, 3), 1, 1, 1), ((1, 3, 9, 8), 6, 3, (3, 3), 3, 0, 1),
    ((2, 32, 4, 4), 32, 32, (4, 4), 1, 0, 1), ((5, 8, 1, 3), 8, 8, (1, 3), 1, (0, 1), 1),
    ((2, 38, 9, 10), 38, 38, (7, 7), 1, 3, 1), ((1, 12, 13, 14), 12, 12, (5, 5), 2, ((1, 2), (2, 1)), 1),
    ((1, 6, 12, 11), 6, 6, (4, 4), 1, 3, 2), ((1, 4, 40, 6), 4, 4, (32, 1), 1, 0, 1)]


def drawn(seed: int, most: int = 40) -> tuple[Any, ...]:
    rng = random.Random(seed)
    groups = rng.choice((1, 2, 3, 8, 16, 24, 64, 100))
    channels, maps = rng.choice(((1, 1), (1, 1), (1, 1), (1, 2), (2, 1), (4, 3)))
    window = rng.choice(((3, 3), (3, 3), (5, 5), (1, 3), (7, 7)))
    stride, dilation = rng.choice((1, 1, 1, 2, (2, 1), 3)), rng.choice((1, 1, 1, 2, (1, 3)))
    down, across = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    high, wide = (rng.randint((size - 1) * d + 1, (size - 1) * d + most) for size, d in zip(window, (down, across),
                                                                                         strict=True))
    padding = rng.choice((0, (window[0] // 2, window[1] // 2), ((0, 1), (2, 0))))
    return (rng.randint(1, 9), groups * channels, high, wide), groups * maps, groups, window, stride, padding, dilation


def is_right(kind: str, x: Any, m: int, groups: int, window: Any, stride: Any, padding: Any, dilation: Any,
             directions: tuple[str, ...] = DIRECTIONS, act: str | None = None) -> None:
    """Each direction within rounding of its sums, twice to the same bits; y also behind an activation."""
    layout, stored = KINDS[kind]
    g = conv_geometry(x, (m, x[1] // groups, *window), (m,), stride, padding, "auto", groups, dilation)
    rng, real = np.random.default_rng(1), np.float64 if kind == "float64" else np.float32
    arrays = {name: rng.standard_normal(shape).astype(real) for name, shape in (
        ("x", x), ("gy", (g.n, g.m, g.oh, g.ow)), ("w", (m, x[1] // groups, *window)), ("b", (m,)))}
    if stored == np.uint16:
        arrays |= {name: widened(bf16(arrays[name])) for name in ("x", "gy")}

    def given(name: str) -> Any:
        image = arrays[name]
        if layout == grouped.NHWC:
            image = np.ascontiguousarray(image.transpose(AXES))
        return cupy.asarray(bf16(image) if stored == np.uint16 else image)

    w, b = cupy.asarray(arrays["w"]), cupy.asarray(arrays["b"])
    for direction in directions:
        wide = {name: a.astype(float) for name, a in arrays.items()}
        squares = {name: a * a for name, a in wide.items()}

        def computed(by: dict[str, np.ndarray], direction: str = direction) -> np.ndarray:
            return {"y": lambda: cpu.conv2d(by["x"], by["w"], by["b"], g),
                    "dx": lambda: cpu.conv2d_grad_x(by["gy"], by["w"], g),
                    "dw": lambda: cpu.conv2d_grad_w(by["gy"], by["x"], g)}[direction]()

        def run(direction: str = direction) -> np.ndarray:
            return {"y": lambda: grouped.y(given("x"), w, b, g, layout, act),
                    "dx": lambda: grouped.dx(given("gy"), w, g, layout),
                    "dw": lambda: grouped.dw(given("gy"), given("x"), g, layout)}[direction]().get()
        first, second, exact = run(), run(), computed(wide)
        assert first.tobytes() == second.tobytes(), f"{direction} {kind} {g}: two runs differ"
        length = {"y": g.c // g.groups * g.kh * g.kw + 1, "dx": g.m // g.groups * g.kh * g.kw,
                  "dw": g.n * g.oh * g.ow}[direction]
        most = product_bound("fp32", length, computed(squares), exact, real)
        if direction == "y" and act:
            exact = getattr(cpu, act)(exact)
        if direction != "dw" and layout == grouped.NHWC:
            first = np.ascontiguousarray(widened(first).transpose(BACK))
        assert first.shape == exact.shape
        if stored == np.uint16 and direction != "dw":
            most = most + abs(exact) * 2.0**-8
        share = used(first, exact, most + 1e-30)
        assert share <= 1, f"{direction} {kind} {g}: used {share:.3g} of its tolerance"

