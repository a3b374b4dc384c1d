"""The gradient of the filters of images in NHWC (ops/cuda/nhwc/conv_grad_w.py) against float64, on random shapes.

Operands are rounded as tensor cores take them; what is left is the rounding of sums, and bounds follow from their
length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from minidl.ops.common.geometry import ConvGeometry, conv_geometry
from minidl.ops.common.nhwc import bf16, widened

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops.cuda.nhwc import conv_grad_w  # noqa: E402

# What a product in a precision errs by, as a part of the sum of its terms' magnitudes; and images -> precisions
OPERANDS = {"tf32": 2.0**-10.5, "3xtf32": 2.0**-20, "bf16": 2.0**-10.5}
KINDS = [("float32", "tf32"), ("float32", "3xtf32"), ("float32", "bf16"), ("bf16", "bf16")]


class Problem(NamedTuple):
    """Arrays in NHWC as grad_w takes them, and what they are in float64."""

    g: ConvGeometry
    dy: np.ndarray
    x: np.ndarray
    wide: tuple[np.ndarray, np.ndarray]


def random_geometry(number: int, most: int = 40_000_000) -> ConvGeometry:
    """A shape of at most so many products: channels odd and even, stride 1-3, padding 0-2, filters of 1-5."""
    rng = np.random.default_rng(number)
    while True:
        kh, kw = rng.integers(1, 6, 2)
        c, m = (int(rng.choice([rng.integers(1, 20), 8 * rng.integers(1, 18), rng.integers(20, 150)])) for _ in "cm")
        n, h, w = int(rng.integers(1, 9)), *(int(v) for v in rng.integers(1, 24, 2))
        stride = tuple(int(v) for v in rng.choice([1, 1, 2, 3], 2))
        padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (2, 2)))
        if h + sum(padding[0]) < kh or w + sum(padding[1]) < kw:
            continue
        g = conv_geometry((n, c, h, w), (m, c, int(kh), int(kw)), None, stride, padding, "auto")
        if n * g.oh * g.ow * m * c * kh * kw <= most:
            return g


def drawn(g: ConvGeometry, kind: str, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    dy, x = (rng.standard_normal(shape, np.float32) for shape in ((g.n, g.oh, g.ow, g.m), (g.n, g.h, g.w, g.c)))
    if kind == "bf16":
        dy, x = bf16(dy), bf16(x)
        return Problem(g, dy, x, (widened(dy).astype(float), widened(x).astype(float)))
    return Problem(g, dy, x, (dy.astype(float), x.astype(float)))


def gradient(g: ConvGeometry, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(m,c,kh,kw) in the arrays' precision."""
    padded = np.pad(x, ((0, 0), (g.top, g.bottom), (g.left, g.right), (0, 0)))
    dw = np.empty((g.m, g.c, g.kh, g.kw), x.dtype)
    flat = dy.reshape(-1, g.m).T
    for p in range(g.kh):
        for q in range(g.kw):
            rows = padded[:, p:p + g.sh * (g.oh - 1) + 1:g.sh, q:q + g.sw * (g.ow - 1) + 1:g.sw]
            dw[:, :, p, q] = flat @ rows.reshape(-1, g.c)
    return dw


def bound(problem: Problem, kind: str, precision: str) -> np.ndarray:
    """Rounding of operands errs at random, and so do sums: in both, by the root of the sum of squared terms."""
    g = problem.g
    dy, x = problem.wide
    length = g.n * g.oh * g.ow
    operands = 0.0 if kind == "bf16" else OPERANDS[precision]
    squares = np.sqrt(gradient(g, dy * dy, x * x))
    return 6 * operands * squares + 2.0**-22 * (8 + np.sqrt(length)) * squares + 1e-30


def failure(g: ConvGeometry, kind: str, precision: str, seed: int, **options: Any) -> str | None:
    """How far dw is outside of its bound, if it is; that of two runs with other bits, if they have."""
    problem = drawn(g, kind, seed)
    dy, x = cupy.asarray(problem.dy), cupy.asarray(problem.x)
    got = conv_grad_w.grad_w(dy, x, g, precision=precision, **options).get()
    assert got.shape == (g.m, g.c, g.kh, g.kw)
    assert got.dtype == np.float32
    want = gradient(g, *problem.wide)
    share = np.abs(got - want) / bound(problem, kind, precision)
    if not share.max() <= 1:
        where = np.unravel_index(int(np.nan_to_num(share, nan=np.inf).argmax()), share.shape)
        return f"{tuple(g)} {kind} {precision}: {share.max():.3g} of the bound at {tuple(map(int, where))}"
    again = conv_grad_w.grad_w(dy, x, g, precision=precision, **options).get()
    return None if again.tobytes() == got.tobytes() else f"{tuple(g)} {kind} {precision}: two runs differ"
