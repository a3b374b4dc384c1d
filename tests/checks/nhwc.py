"""Forms in NHWC, as data: each beside the plain primitive, on any backend, with images in float32 and in bfloat16."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from checks.agrees import backend, called
from checks.fused import normal
from minidl.ops import cpu
from minidl.ops.common.geometry import ConvGeometry, conv_geometry, pool_geometry
from minidl.ops.common.geometry.nhwc import AXES, BACK, FORMS, FULL, STORES, bf16, in_nhwc, widened
from minidl.ops.common.primitives import ALL, OF_X
from minidl.ops.layers.norm import batch_geometry, layer_geometry

Shape = tuple[int, int, int, int]
SHAPES: list[Shape] = [(2, 8, 5, 6), (3, 24, 4, 4), (2, 5, 7, 3), (1, 64, 9, 8), (9, 16, 12, 12), (2, 264, 3, 2)]
WINDOWS: list[tuple[Any, Any, Any]] = [(2, None, 0), (3, 2, 1), ((3, 2), (1, 2), ((1, 0), (0, 1))), ((2, 3), None, 0)]
FILTERS: list[tuple[Any, ...]] = [(16, 3, 1, 1), (9, 3, 2, 1), (8, (1, 2), (2, 1), 0)]
# of results, as a part of their largest: bfloat16 has 8 bits, and results near the middle between two may go either way
ROUNDING = {"float32": 4e-6, "bf16": 2.0 ** -7}
# Of a convolution's sums, as `lost` has it: filters are rounded, and images of float32 cut, by the hardware
PRODUCT = {"fp32": 2e-6, "3xtf32": 4e-6, "tf32": 2.0 ** -10, "bf16": 2.0 ** -9}


def examples(name: str, shape: Shape, at: int) -> list[tuple[Any, ...]]:
    """Arguments of a plain primitive that has a form, for images (n,c,h,w)."""
    n, c = shape[:2]
    x, gy = normal(*shape, dtype=np.float32), normal(*shape, dtype=np.float32, seed=1)
    weight, bias, mean, var = (normal(c, dtype=np.float32, seed=seed) for seed in range(2, 6))
    var = np.abs(var) + 1
    values = 3 + x * (1 + np.arange(c, dtype=np.float32).reshape(c, 1, 1) % 3)
    if name.startswith("conv2d"):
        if name == "conv2d_grad_b":
            return [(gy,)]
        m, size, stride, padding = FILTERS[at % len(FILTERS)]
        kh, kw = size if isinstance(size, tuple) else (size, size)
        filters = normal(m, c, kh, kw, dtype=np.float32, seed=6)
        g = conv_geometry(shape, filters.shape, None, stride, padding, "auto")
        out, b = normal(n, m, g.oh, g.ow, dtype=np.float32, seed=7), normal(m, dtype=np.float32, seed=8)
        norm = (*(normal(m, dtype=np.float32, seed=seed) for seed in range(9, 13)), 1e-5,
                batch_geometry(out.shape, (m,), (m,), None, None, True))
        norm = norm[0], np.abs(norm[1]) + 1, *norm[2:]
        return {"conv2d_norm": [(x, filters, b, g, *norm)], "conv2d_norm_act": [(x, filters, None, g, *norm, "relu")],
                "conv2d": [(x, filters, b, g), (x, filters, None, g)],
                "conv2d_act": [(x, filters, b, g, "relu"), (x, filters, None, g, "tanh")],
                "conv2d_grad_x": [(out, filters, g)], "conv2d_grad_w": [(out, x, g)]}[name]
    if "_pool2d" in name:
        size, stride, padding = WINDOWS[at % len(WINDOWS)]
        g = pool_geometry("max_pool2d", shape, size, stride, padding)
        out = normal(n, c, g.oh, g.ow, dtype=np.float32, seed=1)
        if name == "max_pool2d_grad_x":
            return [(out, cpu.max_pool2d(x, g)[1], g)]
        return [{"avg_pool2d_grad_x": (out, g), "avg_pool2d_grad_act": (out, x, g, "relu")}.get(name, (x, g))]
    if "norm" in name:
        g = batch_geometry(shape, (c,), (c,), None, None, True)
        rstd = np.float32(1) / np.sqrt(var)
        return {"batch_norm": [(values, weight, bias, mean, var, 0.3, 1e-5, g),
                               (values, None, None, mean, var, 0.1, 1e-5, g)],
                "normalize_by": [(values, mean, var, weight, bias, 1e-5, g), (values, mean, var, None, None, 0.1, g)],
                "batch_norm_act": [(values, gy, weight, bias, mean, var, 0.3, 1e-5, g, "relu"),
                                   (values, None, weight, bias, mean, var, 0.3, 1e-5, g, "tanh")],
                "normalize_act_grad": [(gy, x, values - 3, values, weight, mean, rstd, g, "relu"),
                                       (gy, None, np.tanh(values), values, None, mean, rstd, g, "tanh")],
                "normalize_grad": [(gy, values, weight, mean, rstd, g), (gy, values, None, mean, rstd, g)]}[name]
    every, half = slice(None), slice(None, None, 2)
    if name == "getitem":
        some = slice(0, c if c % FULL else c // 2)      # of channels that fill no 16 bytes, all: see _sliced
        return [(x, (every, every, half, half)), (x, (slice(0, n), some, every, every))]
    if name == "getitem_grad_x":
        return [(x[:, :, ::2, ::2].copy(), (every, every, half, half), shape, True)]
    if name == "pad":
        return [(x, ((0, 0), (0, 3), (1, 0), (0, 0)), 0.0)]
    if name == "add_act":
        return [(x, gy, "relu"), (x, gy, "gelu")]
    if name == "add_grad_act":
        return [(gy, values, x, "relu"), (gy, values, x, "gelu")]
    return [(x, gy)] if name == "add" or name.endswith("_grad_x") else [(x,)]


def as_stored(value: np.ndarray, role: str, store: str) -> np.ndarray:
    """An argument in NHWC: an image, or winners of windows."""
    turned = np.ascontiguousarray(value.transpose(AXES))
    return turned.astype(np.uint8) if role == "x" else bf16(turned) if store == "bf16" else turned


def back(value: np.ndarray, role: str) -> np.ndarray:
    """A result of a form, as the plain primitive's."""
    return value if role == "-" else widened(value).transpose(BACK)


def of_form(name: str, on: str, given: Sequence[Any]) -> list[np.ndarray]:
    """What a backend's primitive computes of images in NHWC."""
    if on == "cpu" and name in cpu.IN_NHWC:
        return called(lambda _, *of: cpu.IN_NHWC[name](*of), *backend(on), given)
    return called(name, *backend(on), given)


def form_agrees(name: str, shape: Shape, at: int, store: str, on: str = "cpu", precision: str = "tf32") -> None:
    """A form gives what the plain primitive gives for the same values, which bfloat16 can hold where that is asked
    for; and the same bits twice."""
    form = FORMS[name]
    precision = "bf16" if store == "bf16" else precision
    for plain in examples(name, shape, at):
        if store == "bf16":
            plain = tuple(widened(bf16(a)) if getattr(a, "ndim", 0) == 4 and role != "x" else a for a, role in zip(
                plain, form.takes, strict=True))   # filters, too, which products round
        images = {id(a): role for a, role in zip(plain, form.takes, strict=True) if role != "-"}
        given = form.arguments(plain, precision)
        assert given is not None
        stored = [as_stored(a, images[id(a)], store) if id(a) in images and a is not None else a for a in given]
        got, again = (of_form(form.name, on, stored) for _ in range(2))
        product = PRODUCT[precision] * lost(name, plain)
        for mine, same, its, role in zip(got, again, called(name, *backend("cpu"), plain), form.gives, strict=True):
            assert mine.tobytes() == same.tobytes()
            assert mine.dtype == (np.dtype(np.uint8) if role == "x" else STORES[store] if role == "i" else np.float32)
            near(back(mine, role), its, ROUNDING[store], product)


def lost(name: str, plain: tuple[Any, ...]) -> Any:
    """What products lose, in units of an operand's rounding, before an activation, whose slope is 1 at most: what each
    loses adds up as chance has it, to four deviations, and cutting shortens the sum itself."""
    if not name.startswith("conv2d") or name == "conv2d_grad_b":
        return 0.0
    a, b, *_ = plain
    if "grad" in name:
        sums = getattr(cpu, name)
        return 4 * np.sqrt(sums(a * a, b * b, plain[2])) + np.abs(sums(*plain))
    deviation = np.sqrt(cpu.conv2d(a * a, b * b, None, plain[3]))
    if "norm" in name:
        deviation *= np.abs(plain[6] / np.sqrt(plain[5] + plain[8])).reshape(-1, 1, 1)
    without = [value for value in plain if not isinstance(value, str)]
    return 4 * deviation + np.abs(getattr(cpu, name.removesuffix("_act"))(*without))


def near(got: np.ndarray, want: np.ndarray, rounding: float, product: Any = 0.0) -> None:
    """Within a part of the largest, and what products have lost."""
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    share = np.abs(got.astype(np.float64) - want) / (rounding * scale + product)
    assert (share <= 1).all(), f"used {share.max():.3g} of its tolerance"


# ---------------------------------------------------------------- rows
# (rows, channels): a team of few threads, of as many as there are runs, of a warp with one run each and with many; rows
# that fill no team's turn
NORMALISED = [(1, 8), (70, 24), (300, 96), (37, 192), (19, 768), (5, 1024), (1100, 40)]


def beside(name: str, given: Sequence[Any], on: str, rounding: Callable[[np.ndarray], float]) -> None:
    """A primitive of images in NHWC, beside the CPU's."""
    for mine, its in zip(of_form(name, on, given), of_form(name, "cpu", given), strict=True):
        assert mine.dtype == its.dtype
        near(widened(mine), widened(its), rounding(its))


def layer_norm_agrees(rows: int, channels: int, store: str, on: str = "cpu") -> None:
    """Of rows far from zero, beside the reference on NumPy arrays; with and without parameters and what is added."""
    x, gy, other = (as_stored(normal(rows, channels, 1, 1, dtype=np.float32, seed=seed) + 3 * (seed == 0), "i", store)
                    for seed in range(3))
    g = layer_geometry((rows, channels), channels, None, None)
    weight, bias = (normal(channels, dtype=np.float32, seed=seed) for seed in (3, 4))
    for w, b, added in ((None, None, None), (weight, bias, other)):
        _, mean, rstd = cpu.layer_norm_nhwc(x, w, b, 1e-5, g)
        for name, given in (("layer_norm_nhwc", (x, w, b, 1e-5, g)),
                            ("layer_norm_grad_nhwc", (gy, x, w, mean, rstd, g, added))):
            beside(name, given, on, lambda its: ROUNDING["bf16" if its.dtype == np.uint16 else "float32"])
# ---------------------------------------------------------------- what has no plain primitive
def joined_agree(shape: Shape, at: int, store: str, on: str = "cpu") -> None:
    """What rules and activations join, beside the reference on NumPy arrays."""
    n, c = shape[:2]
    size, stride, padding = WINDOWS[at % len(WINDOWS)]
    g = pool_geometry("max_pool2d", shape, size, stride, padding)
    x, gy, y = (as_stored(normal(*shape, dtype=np.float32, seed=seed), "i", store) for seed in range(3))
    positive = cpu.act_nhwc(x, "relu")
    there = in_nhwc(g)
    pooled, index = cpu.IN_NHWC["max_pool2d"](positive, there)
    gp = as_stored(normal(n, c, g.oh, g.ow, dtype=np.float32, seed=3), "i", store)
    act, of_x = list(ALL)[at % len(ALL)], list(OF_X)[at % len(OF_X)]
    weight, bias, mean, rstd = (normal(c, dtype=np.float32, seed=seed) for seed in range(4, 8))
    sets = batch_geometry(shape, (c,), (c,), None, None, True)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("to_nhwc", (normal(*shape, dtype=np.float32), store)), ("to_nchw", (x,)),
        ("to_nhwc", (normal(n, c, 1, 1, dtype=np.float32), store)), ("to_nchw", (x[:, :1, :1],)),
        ("add_bias_nhwc", (x, normal(1, c, 1, 1, dtype=np.float32, seed=9), None)),
        ("add_bias_nhwc", (x, normal(1, c, 1, 1, dtype=np.float32, seed=9), "gelu")),
        ("act_grad_b_nhwc", (gy, None, y, act)), ("act_grad_b_nhwc", (gy, x, y, "relu")),
        *[("normalize_again_act_grad_nhwc", (gy, other, x, *affine, mean, rstd, sets, of_x))
          for other, affine in ((None, (weight, bias)), (y, (None, None)))],
        ("max_pool2d_grad_relu", (gp, index, pooled, there)),
        ("max_pool2d_grad_relu_b", (gp, index, pooled, there))]
    for name, given in calls:
        # sums are of what was not rounded yet
        beside(name, given, on, lambda its: ROUNDING[store] * (2 if its.ndim == 1 else 1))


# ---------------------------------------------------------------- convolutions at random
def drawn(seed: int, most_pixels: int, most_channels: int, wide: bool = False) -> ConvGeometry:
    """A random shape: channels odd and even, wider than a tile too, kernels to 5, stride to 3, padding to 2. So many
    pixels at most has the image, or with wide, where its rows have up to 80, the output alone."""
    draw = random.Random(seed)
    while True:
        channels = [draw.choice((draw.randint(1, 9), 8 * draw.randint(1, most_channels // 8),
                                 draw.randint(1, most_channels))) for _ in range(2)]
        kernel, stride, padding = ([draw.randint(*ends) for _ in range(2)] for ends in ((1, 5), (1, 3), (0, 2)))
        image = [draw.randint(1, 20), draw.randint(1, 20)]
        if wide:
            image[1] = draw.choice((image[1], draw.randint(1, 80)))
        room = [image[i] + 2 * padding[i] - kernel[i] for i in range(2)]
        out = [room[i] // stride[i] + 1 for i in range(2)]
        pixels = max(out[0] * out[1], 0 if wide else image[0] * image[1])
        n = draw.randint(1, 6)
        if min(room) >= 0 and n * pixels <= most_pixels:
            return conv_geometry((n, channels[0], *image), (channels[1], channels[0], *kernel), None, tuple(stride),
                                 tuple(padding), "gemm")
