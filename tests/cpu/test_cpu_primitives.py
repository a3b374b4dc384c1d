"""The fast forms of the CPU primitives against the reference ones, on every path that sizes choose between."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest

from minidl import Tensor, ops
from minidl.core.rng import generator
from minidl.ops import cpu as k
from minidl.ops.common import choice, primitives, shared
from minidl.ops.common.conv.parts import as_one
from minidl.ops.common.geometry import conv_geometry, pool_geometry
from minidl.ops.cpu import conv, draws, parallel
from minidl.ops.cpu.layers import attention, norm, recurrent
from minidl.ops.cpu.reduce import along
from minidl.ops.layers.norm import batch_geometry, group_geometry, layer_geometry

Array = np.ndarray
# Their names in the package are the functions'.
linear_module, lookup_module, matmul_module = (
    sys.modules[f"minidl.ops.cpu.layers.{name}"] for name in ("linear", "lookup", "matmul"))

# n c h w, m kh kw, stride, padding: odd sizes, gaps at the far edges, strides beyond the window, one-sided borders
SHAPES: list[Any] = [
    ((5, 1, 9, 20), (3, 4, 5), 1, 0),
    ((7, 3, 8, 7), (4, 3, 3), 1, ((2, 1), (0, 3))),
    ((3, 2, 11, 23), (5, 3, 2), (2, 1), 1),
    ((4, 2, 7, 9), (2, 2, 3), (3, 4), ((1, 0), (2, 1))),
    ((3, 2, 5, 4), (6, 5, 4), 1, 0),
    ((2, 1, 6, 18), (9, 1, 1), 1, 0),
    ((1, 2, 4, 4), (1, 4, 1), 2, (0, 2)),
    ((4, 5, 8, 7), (3, 3, 4), 1, ((2, 0), (1, 3))),           # with few filters dx is a convolution, too
    ((3, 4, 5, 20), (4, 2, 2), 1, 0),
    ((2, 3, 4, 5), (2, 2, 3), 1, (2, 1)),                     # maps as wide as the images, here and below: shifted.py
    ((0, 2, 6, 6), (3, 3, 3), 1, 1),
]

# Constants of conv/gemm.py, so that small shapes take the paths of large ones.
SETTINGS: list[dict[str, int]] = [
    {},
    {"MAX_IMAGES": 2},                                        # several chunks, the last one smaller
    {"MIN_PRODUCTS_PER_IMAGE": 1},                                             # chunks of one image, written in place
    {"MIN_WIDE_COLUMNS": 1}, {"MIN_WIDE_COLUMNS": 10**9},      # images outside rows, images innermost
    {"MAX_SMALL_PRODUCT": 200, "MIN_ROWS": 1, "MIN_UNLOCKED": 1},           # products in blocks of filters and of lines
    {"MAX_SMALL_RESULT": 12, "MIN_ROWS": 1},
    {"MIN_UNLOCKED": 1},                                           # all output rows in one product, where stride allows
    {"MAX_SMALL_PRODUCT": 1, "MAX_SMALL_RESULT": 1},                   # no block is small enough: undivided
    {"MAX_SMALL_PRODUCT": 1, "MAX_SMALL_RESULT": 1, "MAX_TURNED": 0, "MIN_UNLOCKED": 1},    # dw as it is wanted
    {"BUFFER_BYTES": 1}, {"MIN_TERMS": 1},                     # chunks by the size of dw; of one image at a stride
]


def close(got: Array, expected: Array) -> None:
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)


def problem(shape: Any, algorithm: str, dtype: Any = np.float64) -> tuple[Array, Array, Array, Array, Any]:
    x, (m, kh, kw), stride, padding = shape
    g = conv_geometry(x, (m, x[1], kh, kw), (m,), stride, padding, algorithm)
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype(dtype) for s in (x, (m, x[1], kh, kw), (m,), (g.n, m, g.oh, g.ow))]
    return arrays[0], arrays[1], arrays[2], arrays[3], g


def directions(shape: Any, algorithm: str, dtype: Any = np.float64) -> list[Array]:
    x, w, b, gy, g = problem(shape, algorithm, dtype)
    return [k.conv2d(x, w, b, g), k.conv2d(x, w, None, g), k.conv2d_grad_x(gy, w, g), k.conv2d_grad_w(gy, x, g)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gemm_equals_the_formula_whatever_the_sizes_choose(
        shape: Any, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setattr(conv.gemm, name, value)
    for got, expected in zip(directions(shape, "gemm"), directions(shape, "direct"), strict=True):
        close(got, expected)


# Images whose maps are as wide, by conv/shifted.py; and its constants, and those that it has of conv/gemm.py.
SHIFTED: list[Any] = [
    ((5, 9, 8, 8), (9, 3, 3), 1, 1),
    ((3, 2, 9, 12), (10, 3, 5), 1, ((1, 1), (2, 2))),         # fewer rows to copy than results to add up
    ((3, 8, 9, 10), (2, 5, 4), 1, ((0, 3), (3, 0))),          # one-sided borders
    ((2, 9, 4, 40), (3, 1, 1), 1, 0),
    ((2, 2, 9, 9), (3, 3, 3), 1, 1),                          # few channels
    ((3, 9, 5, 5), (4, 3, 3), 1, 1),                          # small maps
    ((2, 9, 8, 9), (3, 2, 3), 1, ((3, 2), (1, 1))),           # where windows of dx do not meet the image
    ((0, 9, 8, 8), (9, 3, 3), 1, 1),
]
SHIFTED_SETTINGS: list[tuple[dict[str, int], dict[str, int]]] = [
    ({}, {}), ({"BUFFER_BYTES": 1}, {}), ({"MAX_IMAGES": 2}, {}), ({"MIN_COLUMNS": 1}, {"MAX_SMALL_PRODUCT": 5_000})]


@pytest.mark.parametrize("shape", SHIFTED)
@pytest.mark.parametrize("settings", SHIFTED_SETTINGS, ids=str)
def test_shifted_maps_equal_the_formula(shape: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in zip((conv.shifted, conv.gemm), settings, strict=True):
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    for before in SHIFTED:
        directions(before, "gemm")                            # and nothing is left of what buffers held
    asked = Asked(monkeypatch, conv.shifted, "_windows")
    for got, expected in zip(directions(shape, "gemm"), directions(shape, "direct"), strict=True):
        close(got, expected)
    assert bool(asked.calls) == (shape[0][0] > 0 and shape[0][2] * shape[0][3] >= conv.shifted.MIN_MAP)


@pytest.mark.parametrize("shape", SHAPES)
def test_unroll_equals_the_formula(shape: Any) -> None:
    for got, expected in zip(directions(shape, "unroll"), directions(shape, "direct"), strict=True):
        close(got, expected)


def test_scratch_of_one_shape_leaves_nothing_for_the_next() -> None:
    expected = [directions(shape, "gemm") for shape in SHAPES]
    for i, j in itertools.permutations(range(len(SHAPES)), 2):
        directions(SHAPES[i], "gemm")
        for got, want in zip(directions(SHAPES[j], "gemm"), expected[j], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (1, (2, 3)), (2, 1)])
@pytest.mark.parametrize("padding", [0, 1, ((1, 2), (0, 3)), ((4, 0), (5, 2))], ids=str)
@pytest.mark.parametrize(("n", "maps", "channels"), [(0, 1, 1), (3, 1, 1), (70, 1, 1), (3, 2, 1), (3, 1, 2), (5, 3, 2)])
@pytest.mark.parametrize("budget", [1, 1 << 21], ids=["chunks", "at once"])
def test_thin_groups_equal_the_formula(n: int, maps: int, channels: int, padding: Any, stride: int, dilation: Any,
                                       budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images that are channels of larger arrays, in one chunk and in several."""
    monkeypatch.setattr(conv.grouped, "BUFFER_BYTES", budget)
    rng = np.random.default_rng(10)
    x, w, b = (rng.standard_normal((n, 9, 40, 9))[:, 1:1 + 3 * channels],
               rng.standard_normal((3 * maps, channels, 3, 2)), rng.standard_normal(3 * maps))
    g = conv_geometry(x.shape, w.shape, b.shape, stride, padding, "grouped", 3, dilation)
    gy = rng.standard_normal((n, 4 * maps, g.oh, g.ow))[:, :3 * maps]
    made = [k.conv2d(x, w, b, g), k.conv2d_grad_x(gy, w, g), k.conv2d_grad_w(gy, x, g)]
    one = g._replace(c=channels, m=maps, groups=1)
    for group in range(3):
        c, m = slice(group * channels, group * channels + channels), slice(group * maps, group * maps + maps)
        close(made[0][:, m], conv.direct.y(x[:, c], w[m], b[m], one))
        close(made[1][:, c], conv.direct.dx(gy[:, m], w[m], one))
        close(made[2][m], conv.direct.dw(gy[:, m], x[:, c], one))


def test_which_groups_are_convolved_as_one() -> None:
    """Thin ones, if the filters are not taller than CUDA's kernels take; and those that are asked for."""
    one = conv_geometry((1, 16, 40, 40), (16, 1, 3, 3), None, 1, 0, "auto", 16)
    assert as_one(one)
    assert as_one(one._replace(groups=2, dh=2))
    assert not as_one(one._replace(groups=1, dh=2))
    assert not as_one(one._replace(kh=33))
    assert not as_one(one._replace(algorithm="gemm"))
    assert as_one(one._replace(groups=1, dh=2, algorithm="grouped"))


@pytest.mark.parametrize("algorithm", ["unroll", "gemm"])
def test_convolution_of_arrays_in_any_layout(algorithm: str) -> None:
    x, w, b, gy, g = problem(SHAPES[1], algorithm)
    expected = directions(SHAPES[1], algorithm)
    x, w, gy = (np.ascontiguousarray(a.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0) for a in (x, w, gy))
    assert not x.flags.c_contiguous
    for got, want in zip([k.conv2d(x, w, b, g), k.conv2d(x, w, None, g), k.conv2d_grad_x(gy, w, g),
                          k.conv2d_grad_w(gy, x, g)], expected, strict=True):
        close(got, want)


def test_bits_of_a_convolution_do_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conv.gemm, conv.shifted):
        monkeypatch.setattr(module, "MAX_IMAGES", 2)
    results = []
    for count in (1, 2, 5):
        monkeypatch.setattr(parallel, "threads", lambda count=count: count)
        results.append([directions(shape, "gemm", np.float32) for shape in (*SHAPES, *SHIFTED)])
    for shape in range(len(results[0])):
        for one, two, five in zip(*(result[shape] for result in results), strict=True):
            np.testing.assert_array_equal(one, two)
            np.testing.assert_array_equal(one, five)


# ---------------------------------------------------------------- how the work is split
class Asked:
    """Notes what a function is asked for, and lets it do it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.calls: list[Any] = []
        function = getattr(module, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            self.calls.append(arguments)
            return function(*arguments, **options)
        monkeypatch.setattr(module, name, noted)


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_a_chunk_of_images_fills_its_buffer_and_no_more(shape: Any) -> None:
    *_, g = problem(shape, "gemm")
    for copies in (1, 50, 3000, 10**6):                        # of each channel
        wide = g._replace(c=g.c * copies)
        count = conv.gemm._chunk(wide, 4)
        bytes_per_image = (g.h + g.top + g.bottom) * wide.c * g.kw * g.ow * 4
        enough = wide.m * wide.c * g.kh * g.kw * g.ow >= conv.gemm.MIN_PRODUCTS_PER_IMAGE
        if (enough and g.ow >= conv.gemm.MIN_WIDE_COLUMNS) or bytes_per_image > conv.gemm.BUFFER_BYTES:
            assert count == 1                                  # one has enough to do, or to hold
        else:
            assert count == conv.gemm.MAX_IMAGES or count * bytes_per_image <= conv.gemm.BUFFER_BYTES < (
                (count + 1) * bytes_per_image)


def test_a_chunk_of_one_image_is_multiplied_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs and their gradient are not copied to scratch; those of several images are."""
    x, w, b, gy, g = problem(SHAPES[1], "gemm")
    for most in (1, 2):
        monkeypatch.setattr(conv.gemm, "MAX_IMAGES", most)
        for run in (lambda: k.conv2d(x, w, b, g), lambda: k.conv2d_grad_w(gy, x, g)):
            with monkeypatch.context() as patch:
                asked = Asked(patch, conv.gemm, "scratch")
                run()
                assert any(name == "maps" for name, *_ in asked.calls) == (most > 1)


def test_scratch_for_dx_is_gy_between_rows_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    _, w, _, gy, g = problem(SHAPES[1], "gemm")
    asked = Asked(monkeypatch, conv.gemm, "scratch")
    k.conv2d_grad_x(gy, w, g)
    rows = {shape[0] for name, shape, _ in asked.calls if name == "maps"}
    assert rows == {(g.kh - 1) + g.oh + (g.kh - 1)}


@pytest.mark.parametrize(("columns", "innermost"), [(2, -1), (200, -2)])
def test_scratch_has_long_runs(columns: int, innermost: int) -> None:
    """Wide rows lie image by image; of narrow ones the images lie side by side."""
    flat, lines = conv.gemm._lines("test", (3, 2), columns, 30, np.float32)
    assert (flat.shape, lines.shape) == ((3, 2, columns * 30), (3, 2, columns, 30))
    assert lines.strides[innermost] == 4
    assert np.shares_memory(flat, lines)


def test_products_of_dw_are_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many filters as make no more than MAX_SMALL_RESULT elements."""
    monkeypatch.setattr(conv.gemm, "MAX_SMALL_RESULT", 12)
    monkeypatch.setattr(conv.gemm, "MIN_ROWS", 1)
    x, _, _, gy, g = problem(((5, 1, 9, 20), (12, 4, 3), 1, 0), "gemm")          # each filter row gives 3 elements
    asked = Asked(monkeypatch, np, "matmul")
    k.conv2d_grad_w(gy, x, g)
    assert {(under.shape[-2], over.shape[-1]) for under, over in asked.calls} == {(3, 4)}


LARGE = linear_module.MIN_SHARED           # multiplications


@pytest.mark.parametrize(("i", "j", "k_", "chunks"), [
    (256, 1 << 10, 8, 1), (256, 8, 1 << 13, 4), (1 << 10, LARGE >> 16, 64, 1), (1 << 10, (LARGE >> 16) + 1, 64, 16),
    (1 << 9, 1 << 3, 1 << 3, 1)])
def test_large_products_are_shared_and_small_ones_are_not(i: int, j: int, k_: int, chunks: int,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """As the number of multiplications says, the same for a layer and for one matrix of several."""
    x, w = np.zeros((i, j), np.float32), np.zeros((k_, j), np.float32)
    layer, product = (Asked(monkeypatch, module, "parallel_for") for module in (linear_module, matmul_module))
    k.linear(x, w, None)
    k.matmul(x[None], w.T[None])
    (rows, some, _), (matrices, parts, _) = *layer.calls, *product.calls
    assert -(-rows // some) == chunks
    assert (-(-matrices // parts) > 1) == (chunks > 1)


@pytest.mark.parametrize(("m", "n"), [
    (0, 5), (5, 0), (1, 1), (1, 9000), (9000, 1), (300, 100), (3, 9000), (5000, 5)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_depth_1_are_those_of_the_elements(m: int, n: int, dtype: Any) -> None:
    """As layers, as gradients and as matrices, with what is not finite and with gaps in memory."""
    rng = np.random.default_rng(4)
    x, y, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, 2), (2 * n, 1), (n,)))
    x, y = x[:, :1], y[::2]
    x[m // 2:m // 2 + 1], y[:1] = np.nan, np.inf
    with np.errstate(all="raise"):
        for got in (k.linear(x, y, None), k.linear_grad_w(x.T, y.T), k.linear_grad_x(x, y.T), k.matmul(x, y.T),
                    k.matmul(x[None, None], y.T[None])[0, 0], k.matmul(np.stack((x, x)), y.T)[1],
                    k.matmul(np.stack((x, x)), np.stack((y.T, y.T)))[1]):
            np.testing.assert_array_equal(got, x * y.T)
            assert (got.shape, got.dtype) == ((m, n), dtype)
        np.testing.assert_allclose(k.linear(x, y, b), x * y.T + b, rtol=1e-5)


@pytest.mark.parametrize(("m", "n"), [
    *itertools.product((0, 1, 29), (0, 1, 7, 300, 8191, 9000)), (3000, 7), (3000, 300)])
def test_a_row_is_added_to_all(m: int, n: int) -> None:
    rng = np.random.default_rng(5)
    y, b = rng.standard_normal((m, n), np.float32), rng.standard_normal(2 * n, np.float32)[::2]
    want = y + b
    linear_module.add_row(y, b)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("most", [120, 240, 360, 840, 12000])
def test_products_of_y_and_dx_are_small_ones(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many filters as make no more than MAX_SMALL_PRODUCT multiplications with one block; undivided where that
    would be too few."""
    monkeypatch.setattr(conv.gemm, "MAX_SMALL_PRODUCT", most)
    monkeypatch.setattr(conv.gemm, "MIN_ROWS", 2)
    a, b = (np.random.default_rng(7).standard_normal(shape) for shape in ((12, 6), (3, 6, 20)))
    out = np.full((3, 12, 20), np.nan)
    asked = Asked(monkeypatch, np, "matmul")
    conv.gemm._product(a, b, out)
    close(out, a @ b)
    assert [len(some) for some, _ in asked.calls] == {
        120: [12], 240: [2] * 6, 360: [3] * 4, 840: [7, 5], 12000: [12]}[most]


def test_large_arrays_are_walked_over_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, parallel, "parallel_for")
    for act, size in ((k.relu, parallel.CHUNK_BYTES), (k.gelu, parallel.TEMPORARY_BYTES)):
        for count, chunks in ((size // 8, 0), (size // 8 + 1, 2), (size // 2, 4)):
            asked.calls.clear()
            x = np.arange(40.0, 40.0 + count)                # beyond 40 both are x
            np.testing.assert_array_equal(act(x), x)
            assert [-(-each // chunk) for each, chunk, _ in asked.calls] == ([chunks] if chunks else [])


@pytest.mark.parametrize("act", sorted(primitives.ALL))
@pytest.mark.parametrize("shape", [(3, 4, 5), (40, 30, 60)], ids=["small", "in chunks"])
def test_an_activation_keeps_the_order_of_its_input_in_memory(act: str, shape: tuple[int, ...]) -> None:
    """As NumPy's functions do; the values are those of the same numbers in C order."""
    x = np.random.default_rng(3).standard_normal(shape)
    value, grad = getattr(k, act), getattr(k, f"{act}_grad_x")
    for turn in ((0, 2, 1), (2, 1, 0), (1, 2, 0)):
        turned = np.ascontiguousarray(x.transpose(turn)).transpose(np.argsort(turn))
        gy = x[::-1]
        for got, expected in ((value(turned), value(x)), (grad(gy, turned), grad(gy, x))):
            np.testing.assert_array_equal(got, expected)
            assert got.strides == turned.strides
    for strided in (np.broadcast_to(x[:, :1], shape), x[:, ::-1, ::2]):
        np.testing.assert_array_equal(value(strided), value(strided.copy()))


@pytest.mark.parametrize(("shape", "to"), [
    ((4,), (7, 4)), ((5, 1), (5, 6)), ((1, 3, 1), (9, 3, 2)), ((), (3, 4)), ((2,), (0, 2)), ((0,), (3, 0)),
    ((1, 1, 40), (3, 5, 40))], ids=str)
def test_a_copy_of_what_repeats_is_in_c_order(shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    x = np.broadcast_to(np.random.default_rng(2).random(shape), to)
    got = k.copy(x)
    np.testing.assert_array_equal(got, x)
    assert got.flags.c_contiguous
    assert got.flags.writeable


@pytest.mark.parametrize("act", sorted(primitives.ALL))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_activations_are_as_few(act: str, dtype: Any) -> None:
    """Infinity, NaN and zeros among them, as gradients too."""
    x, gy = np.random.default_rng(3).standard_normal((2, 6000)).astype(dtype)
    x[:6] = gy[1:7] = np.nan, np.inf, -np.inf, 0.0, 30.0, -30.0
    with np.errstate(invalid="ignore"):
        for got, few in ((getattr(k, act)(x), getattr(k, act)(x[:99])),
                         (getattr(k, f"{act}_grad_x")(gy, x), getattr(k, f"{act}_grad_x")(gy[:99], x[:99]))):
            np.testing.assert_allclose(got[:99], few, rtol=1e-5)


def test_huber_loss_by_its_definition() -> None:
    x = np.array([0.0, 0.5, -1.5, 1.5, 2.0, -9.0, 1e30, np.inf, -np.inf, np.nan], np.float32)
    got, size = k.pair_loss(x, np.zeros_like(x), "huber", 1.5, "none"), np.abs(x)
    with np.errstate(over="ignore"):
        want = np.where(size <= 1.5, x * x / 2, (size - np.float32(0.75)) * np.float32(1.5))
    np.testing.assert_array_equal(got, want)
    got = k.pair_loss(x[-3:], np.zeros(3, np.float32), "huber", math.inf, "none")
    np.testing.assert_array_equal(got, [np.inf, np.inf, np.nan])


@pytest.mark.parametrize("shape", [
    (-1,), (70, 512), (-1, 512), (70, -1), (7, 10, 512), (512, 70), (64, -1, 8), (1, 70, 512), (35840,), (14, 5, 2, -1),
    (14, 5, 512)], ids=str)
def test_a_transposed_matrix_is_reshaped_as_numpy_does_it(shape: tuple[int, ...]) -> None:
    """To the same values, and to a view wherever NumPy finds one."""
    x = np.arange(512 * 70.0).reshape(512, 70).T
    got, want = k.reshape(x, shape), x.reshape(shape)
    np.testing.assert_array_equal(got, want)
    assert np.shares_memory(got, x) == np.shares_memory(want, x)


@pytest.mark.parametrize("turn", [(0, 1, 2), (2, 1, 0), (0, 2, 1)], ids=str)
def test_operands_in_place_are_read_in_the_order_of_the_result(turn: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    turned = rng.standard_normal((40, 50, 64)).transpose(turn)
    y = rng.standard_normal(turned.shape)
    rows = rng.standard_normal(turned.shape[2])
    for other in (y, np.broadcast_to(rows, turned.shape), rows, rows[:1]):
        near = parallel.in_order_of(other, turned)
        np.testing.assert_array_equal(near, other)
        want = turned + other
        t, u = Tensor(turned.copy(order="K")), Tensor(other)
        t += u
        np.testing.assert_array_equal(t.numpy(), want)
    assert turn[2] == 2 or parallel.in_order_of(y, turned).strides == turned.strides


@pytest.mark.parametrize("factors", [(1, 1), (2, 3), (1, 4), (3, 1)])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 5, 1), (1, 1, 1, 9), (2, 0, 3, 4), (0, 2, 3, 4), (2, 3, 0, 4)])
def test_pixels_several_times_in_any_order_of_memory(shape: tuple[int, ...], factors: tuple[int, int]) -> None:
    (n, c, h, w), (fh, fw) = shape, factors
    rng = np.random.default_rng(2)
    x, gy = rng.standard_normal(shape), rng.standard_normal((n, c, h * fh, w * fw))
    for turn in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
        turned, other = (np.ascontiguousarray(a.transpose(turn)).transpose(np.argsort(turn)) for a in (x, gy))
        y = k.interpolate(turned, factors)
        np.testing.assert_array_equal(y, x.repeat(fh, 2).repeat(fw, 3))
        close(k.interpolate_grad_x(other, factors), gy.reshape(n, c, h, fh, w, fw).sum((3, 5)))
        assert turn != (0, 2, 3, 1) or 1 in shape or 0 in shape or y.transpose(turn).flags.c_contiguous


@pytest.mark.parametrize("turn", [(0, 1, 2), (2, 1, 0), (0, 2, 1)], ids=str)
def test_a_copy_by_columns_is_numpys(turn: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "CHUNK_BYTES", 1 << 8)
    for shape in ((6, 70, 90), (2, 40, 512)):          # numbers 4 KiB apart
        x = np.arange(float(np.prod(shape))).reshape(shape).transpose(turn)
        np.testing.assert_array_equal(parallel.straight(x), x)
        assert parallel.straight(x).flags.c_contiguous


@pytest.mark.parametrize("shape", [(4,), (70, 80), (300, 1000)], ids=str)
@pytest.mark.parametrize("name", ["maximum", "minimum", "pow"])
@pytest.mark.parametrize("value", [2, 3, 0.5, -1.0, np.inf, np.nan])
def test_elements_beside_a_number_are_numpys(name: str, value: float, shape: tuple[int, ...]) -> None:
    """Zeros of both signs and NaN among them; in any layout, and of other dtypes."""
    function = {"pow": np.power}.get(name) or getattr(np, name)
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    x.flat[:4] = np.nan, np.inf, -0.0, 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        for each in (x, x.T, x[::2], x.astype(np.float64), np.abs(np.nan_to_num(x, posinf=9)).astype(np.int64) + 1):
            if each.dtype.kind == "i" and isinstance(value, int) and value < 0:
                continue
            want = function(each, value)
            got, into = getattr(k, name)(each, value), np.empty_like(want)
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-6)
            np.testing.assert_allclose(getattr(k, name)(each, value, out=into), want, rtol=1e-6)
            if each.dtype.kind == "f":
                beside = each.copy()
                getattr(k, name)(beside, value, out=beside)
                np.testing.assert_array_equal(beside, got)


def same_bits(got: Array, want: Array) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_quotients_of_many_are_numpys_to_the_bit(name: str) -> None:
    """Of multiples of divisors of all sizes and of their neighbours, in any layout; and beside zeros, what is not
    finite, and quotients that are too large for all digits."""
    rng = np.random.default_rng(7)

    def check(x: Array | float, y: Array | float) -> None:
        want = getattr(np, name)(x, y)     # before ours, which must leave x and y as they are
        same_bits(getattr(k, name)(x, y), want)
    y = np.ldexp(rng.uniform(1, 2, (300, 400)), rng.integers(-149, 100, (300, 1))).astype(np.float32)
    y *= rng.choice([-1, 1], y.shape).astype(np.float32)
    x = y * np.trunc(np.ldexp(rng.uniform(-1, 1, y.shape), rng.integers(0, 21, y.shape))).astype(np.float32)
    tiny, largest = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    hostile = np.array([0, 1, 3, 1 / 3, tiny, 7 * tiny, largest, 1 << 21, 1 << 22, 1e9, np.inf, np.nan], np.float32)
    hostile = np.concatenate([hostile, -hostile])
    with np.errstate(all="ignore"):
        for near in (x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf)), x * 0, x * 8):
            check(near, y)
        for a, b in [(x.T, y.T), (x[:, ::2], y[:, ::2]), (x, y[0]), (x[0], y[:, :1]), (x, 0.7), (5, y),
                     (x, np.float64(2)), (x, np.float32(3)), (x, y.astype("d")), (x[:9], y[:9]), (x[0, 0], y),
                     (x, np.ones(400, np.int8))]:
            check(a, b)
        for a, b in itertools.product(hostile, hostile):
            many, divisors = np.full(5000, a), np.full(5000, b)
            check(many, divisors)
            many[1:], divisors[1:] = 7, -2
            check(many, divisors)


@pytest.mark.parametrize("shape", [(4,), (5000,), (70, 80), (300, 1000)], ids=str)
def test_a_choice_by_bits_is_numpys(shape: tuple[int, ...]) -> None:
    """Small and large, of arrays and numbers of the same and of other dtypes, NaN among them, and in any layout."""
    rng = np.random.default_rng(6)
    mask, double = rng.random(shape) < 0.5, rng.standard_normal(shape)
    single, whole = double.astype(np.float32), rng.integers(-3, 3, shape)
    double[mask] = np.nan
    for x, y in [(double, -double), (single, 0), (0, single), (0.5, whole), (whole, 3), (single, double), (True, ~mask),
                 (np.nan, single.astype(np.float16)), (np.float64(2), single), (np.float32(2), single), (1.0, 2.0),
                 (np.array(3.0, np.float32), single), (single[..., :1], single)]:
        for first, second, third in ((mask, x, y), [np.asarray(a).T if np.ndim(a) else a for a in (mask, x, y)]):
            expected, got = choice.where(first, second, third), k.where(first, second, third)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(), (0, 3), (13,), (130, 1000, 3)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dropout_draws_the_numbers_of_one_generator(shape: tuple[int, ...], dtype: Any) -> None:
    """However many chunks there are."""
    x = np.random.default_rng(7).standard_normal(shape).astype(dtype)
    philox = np.random.Philox(key=np.array((5, 9), np.uint64))
    kept = np.random.Generator(philox).random(shape, np.float32) >= 0.25
    np.testing.assert_array_equal(k.dropout(x, 0.25, (5, 9)), np.where(kept, x / dtype(0.75), 0))
    by_kept_mask = k.dropout_grad_x(x, 0.25, (5, 9))
    draws._masks.clear()
    for gx in (by_kept_mask, k.dropout_grad_x(x, 0.25, (5, 9))):
        np.testing.assert_array_equal(gx, np.where(kept, x / dtype(0.75), 0))


def test_masks_of_dropout_are_kept_up_to_a_number() -> None:
    for counter in range(draws.MAX_MASKS + 3):
        k.dropout(np.ones(9, np.float32), 0.5, (1, counter))
    assert [key[1] for key, *_ in draws._masks] == list(range(3, draws.MAX_MASKS + 3))


@pytest.mark.parametrize("count", [0, 1, 3, 10, 100_003])
def test_random_numbers_are_those_of_one_generator(count: int) -> None:
    """Each by its formula, however many chunks there are; whatever low and high are, no integer is out of range."""
    key = (2**64 - 1, 9)
    for dtype in (np.float32, np.float64):
        np.testing.assert_array_equal(k.uniform((count,), np.dtype(dtype).name, key),
                                      generator(key).random(count, dtype), strict=True)
    u, v = generator(key).random((count + 1, 2))[:(count + 1) // 2].T
    pairs = np.sqrt(-2 * np.log(1 - u)) * np.array([np.cos(2 * np.pi * v), np.sin(2 * np.pi * v)])
    normal = k.normal((count,), "float64", key)
    np.testing.assert_allclose(normal, pairs.T.reshape(-1)[:count], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(k.normal((count, 1), "float32", key)[:, 0], normal.astype(np.float32), strict=True)
    words = generator(key).bit_generator.random_raw(count).tolist()
    for low, high in ((0, 1), (-7, 5), (0, 2**63 - 1), (-2**63, 2**63 - 1), (-2**63, -2**63 + 3)):
        expected = [low + word % (high - low) for word in words]
        assert k.integers((count,), low, high, key).tolist() == expected


def test_random_numbers_are_distributed_as_they_say() -> None:
    """By their moments, each within five deviations of the mean; and neighbours are independent."""
    n = 400_000
    x = k.normal((n,), "float32", (1, 2)).astype(float)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 5 * (variance / n)**0.5
    assert abs((x[::2] * x[1::2]).mean()) < 5 * (2 / n)**0.5
    assert abs((x[:-2] * x[2:]).mean()) < 5 * (1 / n)**0.5
    np.testing.assert_allclose([np.mean(x > at) for at in (1, 2, 3)], [0.158655, 0.02275, 0.00135], rtol=0.2)
    counts = np.bincount(k.integers((n,), 0, 10, (1, 3)))
    assert ((counts - n / 10)**2 / (n / 10)).sum() < 40            # chi-square, of 9 degrees of freedom


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_grad_x", "log_softmax_grad_x"])
@pytest.mark.parametrize("shape", [(2, 3, 70000), (900, 7, 50), (70000, 3)], ids=str)
def test_rows_in_several_chunks_are_those_of_one(name: str, shape: tuple[int, ...],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    given = [rng.random(shape) for _ in range(2 if name.endswith("grad_x") else 1)]
    asked = Asked(monkeypatch, sys.modules["minidl.ops.cpu.layers.activation"], "parallel_for")
    got = getattr(k, name)(*given, len(shape) - 1)
    assert len(asked.calls) == 1
    monkeypatch.setattr("minidl.ops.cpu.layers.activation.CHUNK_BYTES", 1 << 40)
    np.testing.assert_allclose(got, getattr(k, name)(*given, len(shape) - 1), rtol=1e-13)
    assert len(asked.calls) == 1


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [axes for n in range(1, 6) for axes in itertools.combinations(range(5), n)], ids=str)
def test_reductions_over_any_axes(axes: tuple[int, ...], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks, halves and columns from the first terms on, in any order in memory, and as in NumPy with NaN."""
    for constant, value in (("MAX_PLAIN_TERMS", 0), ("BLOCK", 2), ("WIDE", 30), ("MAX_SHORT", 3), ("MAX_HALVED", 8),
                            ("MAX_DOT_TERMS", 4), ("LONG", 70)):
        monkeypatch.setattr(along, constant, value)
    x = np.random.default_rng(4).standard_normal((3, 5, 1, 4, 7))
    holes = np.where(x > 2, np.nan, x)
    for each in (x, holes, np.asfortranarray(x), holes[::-1, :, :, ::2], x.transpose(3, 0, 4, 2, 1)):
        for keepdims in (False, True):
            want = getattr(np, name)(each, axis=axes, keepdims=keepdims)
            got = getattr(k, name)(each, axes, keepdims)
            assert got.shape == want.shape
            close(got, want)


@pytest.mark.parametrize("shape", [(1 << 20,), (3, 40_001), (9, 8192)], ids=str)
def test_products_of_many_numbers_near_1(shape: tuple[int, ...]) -> None:
    """Half of the products of two neighbours are ties, which float32 rounds to the same side."""
    near = np.exp2(np.random.default_rng(0).standard_normal(shape) / shape[-1]).astype(np.float32)
    np.testing.assert_allclose(k.prod(near, (len(shape) - 1,)), np.prod(near.astype(float), axis=-1), rtol=3e-4)
    if shape[-1] > along.LONG:
        np.testing.assert_allclose(k.prod(near, (len(shape) - 1,)), np.prod(near.astype(float), axis=-1), rtol=2e-7)


@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8])
def test_reductions_of_other_dtypes_are_numpys(dtype: type) -> None:
    x = np.random.default_rng(4).integers(0, 2, (40, 50, 3)).astype(dtype)
    for name in ("sum", "max", "min", "prod"):
        for axes in ((0,), (2,), (0, 1), (0, 1, 2)):
            want = getattr(np, name)(x, axis=axes)
            assert getattr(k, name)(x, axes).dtype == want.dtype
            np.testing.assert_array_equal(getattr(k, name)(x, axes), want)


@pytest.mark.parametrize("axis", [(0,), (1,), (0, 2), (0, 1, 2), ()], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_gradients_of_products_and_maxima_are_the_shared_ones(axis: tuple[int, ...], keepdims: bool) -> None:
    """With zeros, equal values, infinities and NaN among them, in any layout; infinite gradients in their place."""
    x = np.random.default_rng(4).standard_normal((5, 6, 7))
    zeros, equal, holes, huge = x.copy(), np.round(x), x.copy(), x * 1e300
    zeros[1, 2, 3] = zeros[2, 2, 3] = 0
    holes[1, 2, 3], holes[2, 3, 4] = np.nan, np.inf
    for each in (x, zeros, equal, holes, huge, x.T, x[:, ::2], np.zeros((5, 0, 7)), x.astype(np.float32)):
        with np.errstate(all="ignore"):
            y = np.max(each, axis, keepdims=keepdims, initial=-np.inf)
            gy = np.where(np.arange(y.size).reshape(y.shape) == 1, np.inf, y + 1).astype(each.dtype)
            np.testing.assert_array_equal(k.max_grad_x(gy, each, y, axis, keepdims),
                                          shared.max_grad_x(gy, each, y, axis, keepdims))
            got, want = (of.prod_grad_x(gy, each, axis, keepdims) for of in (k, choice))
            np.testing.assert_allclose(got, want, rtol=1e-4 if each.dtype == np.float32 else 1e-12)


def test_a_reduced_axis_of_size_1_is_copied() -> None:
    x = np.ones((70, 1, 60))
    for axes in ((1,), (1, 2)):
        assert not np.shares_memory(k.max(x, axes, True), x)


def test_neighbouring_axes_are_summed_as_one() -> None:
    assert [along._runs(axes) for axes in ([], [1], [0, 1, 2], [0, 2, 3], [0, 1, 3, 4, 6], [0, 2, 4])] == [
        [], [(1, 1)], [(0, 2)], [(2, 3), (0, 0)], [(6, 6), (3, 4), (0, 1)], [(4, 4), (2, 2), (0, 0)]]


def test_a_bias_gradient_reads_chunks_of_a_few_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, conv, "parallel_for")
    k.conv2d_grad_b(np.zeros((300, 4, 30, 30), np.float32))
    (_, images, _), = asked.calls
    assert images * 4 * 30 * 30 * 4 <= conv.MIN_READ_BYTES < (images + 1) * 4 * 30 * 30 * 4


X, Y = (np.random.default_rng(5).standard_normal(shape) for shape in ((3, 4, 50), (3, 50, 2)))
GZ = X @ Y                                 # as a gradient of it


@pytest.mark.parametrize(("name", "arguments"), [
    ("matmul", (X, Y)), ("matmul_grad_x", (GZ, Y)), ("matmul_grad_y", (GZ, X)), ("sum", (X, (0, 2))),
    ("sum", (X, (0, 2), True)), ("mean", (X, (0, 2))), ("mean", (X, (0, 2), True)), ("sum_to", (X, (4, 1))),
    ("sum_to", (X, X.shape))])
def test_where_the_cpu_has_a_form_of_its_own_it_computes_the_shared_one(name: str, arguments: tuple[Any, ...]) -> None:
    """That is the one for CuPy's arrays."""
    assert getattr(k, name) is not getattr(shared, name)
    close(getattr(shared, name)(*arguments), getattr(k, name)(*arguments))


@pytest.mark.parametrize("module", [k, shared], ids=["cpu", "shared"])
@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_a_reduced_axis_is_gone_unless_told(name: str, module: Any) -> None:
    assert getattr(module, name)(X, (0, 2)).shape == (4,)
    assert getattr(module, name)(X, (0, 2), True).shape == (1, 4, 1)


def test_what_is_stored_is_copied_only_where_it_lies_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, np, "copy")
    x = np.arange(6.0)
    shared.setitem(x, slice(0, 2), np.array([7.0, 8.0]))
    shared.setitem(x, 5, 9.0)
    assert asked.calls == []
    shared.setitem(x, slice(1, 6), x[:5])
    assert len(asked.calls) == 1
    np.testing.assert_array_equal(x, [7, 7, 8, 2, 3, 4])


def test_the_first_of_several_positions_counts() -> None:
    """Of a schedule's rates, and of an epoch's batches."""
    p, place = np.array([1.0]), np.array([1, 2])
    k.sgd([p], [np.array([1.0])], None, (np.array([0.5, 0.25, 0.125]), place), 0.0, 0.0, False)
    assert p[0] == 0.75
    images = np.arange(12, dtype=np.uint8).reshape(12, 1, 1, 1)
    _, labels = k.next_batch(images, np.arange(12), np.arange(12), place, 3, 3, (1.0,), (0.0,), 0, np.float32)
    assert labels.tolist() == [6, 7, 8]
    k.advance(place)
    assert place.tolist() == [2, 3]


def test_bias_gradient_of_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "MIN_READ_BYTES", 1)
    gy = np.random.default_rng(0).standard_normal((5, 3, 4, 7))
    close(k.conv2d_grad_b(gy), gy.sum((0, 2, 3)))


@pytest.mark.parametrize(("x", "size", "stride", "padding"), [
    ((5, 3, 9, 7), (3, 2), None, 0), ((4, 2, 8, 8), 2, None, 0), ((3, 1, 9, 11), 3, 2, ((1, 0), (2, 1))),
    ((2, 2, 7, 7), (1, 2), (3, 3), 0), ((2, 1, 6, 6), (3, 1), 1, ((2, 1), (0, 0)))])
def test_average_pooling_and_its_gradient_are_one_matrix(x: Any, size: Any, stride: Any, padding: Any) -> None:
    """<gy, pool(x)> = <grad(gy), x>, and the pooling itself by its formula."""
    g = pool_geometry("avg_pool2d", x, size, stride, padding)
    rng = np.random.default_rng(1)
    image, gy = rng.standard_normal(x), rng.standard_normal((g.n, g.c, g.oh, g.ow))
    xp = np.pad(image, ((0, 0), (0, 0), (g.top, g.bottom), (g.left, g.right)))
    expected = np.stack([np.stack([xp[:, :, i * g.sh:i * g.sh + g.kh, j * g.sw:j * g.sw + g.kw].mean((2, 3))
                                   for j in range(g.ow)], -1) for i in range(g.oh)], -2)
    close(k.avg_pool2d(image, g), expected)
    assert np.vdot(gy, expected) == pytest.approx(np.vdot(k.avg_pool2d_grad_x(gy, g), image), rel=1e-11)


def winner(window: Array, inside: Array) -> int:
    """Of the elements inside the image: the last NaN, or else the first of the largest."""
    places = np.flatnonzero(inside)
    nans = [place for place in places if np.isnan(window[place])]
    return int(nans[-1] if nans else max(places, key=lambda place: window[place]))


@pytest.mark.parametrize("seed", range(4))
def test_maxima_and_their_places_by_the_definition(seed: int) -> None:
    """Equal values, NaNs, infinities, borders, windows that overlap or leave gaps, and with more than 128 elements."""
    rng, compared = np.random.default_rng(seed), 0
    for case in range(60):
        kh, kw = map(int, rng.integers(8, 14, 2) if case % 20 == 0 else rng.integers(1, 5, 2))
        borders = [[int(v) for v in rng.integers(0, k_, 2)] for k_ in (kh, kw)]
        shape = (2, 1, *(int(v) for v in rng.integers((kh, kw), (kh + 8, kw + 8))))
        g = pool_geometry("max_pool2d", shape, (kh, kw), tuple(map(int, rng.integers(1, 6, 2))),
                          (tuple(borders[0]), tuple(borders[1])))
        x = rng.choice([-1.0, 0.0, 2.0, -np.inf, *[np.inf, np.nan][:case % 3]], shape).astype(rng.choice(["f4", "f8"]))
        if case % 7 == 0:
            x[...] = -np.inf
        around = [(0, 0), (0, 0), *borders]
        padded, image = np.pad(x, around), np.pad(np.ones(shape, bool), around)
        y, index = k.max_pool2d(x, g)
        gy, dx = rng.choice([-3.0, 1.0, np.inf, np.nan], y.shape).astype(x.dtype), np.zeros(padded.shape, x.dtype)
        for n, i, j in np.ndindex(g.n, g.oh, g.ow):
            window = (n, 0, slice(i * g.sh, i * g.sh + kh), slice(j * g.sw, j * g.sw + kw))
            won = winner(padded[window].ravel(), image[window].ravel())
            assert index[n, 0, i, j] == won
            np.testing.assert_equal(y[n, 0, i, j], padded[window].ravel()[won])
            with np.errstate(invalid="ignore"):
                dx[window][won // kw, won % kw] += gy[n, 0, i, j]
            compared += 1
        with np.errstate(invalid="ignore"):
            got = k.max_pool2d_grad_x(gy, index, g)
        np.testing.assert_equal(got, dx[:, :, g.top:g.top + g.h, g.left:g.left + g.w])
    assert compared > 1000


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, None, 0), (3, 2, ((1, 0), (2, 1)))])
def test_pooling_in_several_chunks(size: Any, stride: Any, padding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as in one."""
    rng, results = np.random.default_rng(6), []
    x = rng.standard_normal((5, 2, 8, 8))
    average, largest = (pool_geometry(name, x.shape, size, stride, padding) for name in ("avg_pool2d", "max_pool2d"))
    gy = rng.standard_normal((5, 2, average.oh, average.ow))
    for images in (5, 2, 1):
        monkeypatch.setattr(sys.modules["minidl.ops.cpu.layers.pool"], "images_per_chunk",
                            lambda size, images=images: images)
        y, index = k.max_pool2d(x, largest)
        results.append([y, index, k.max_pool2d_grad_x(gy, index, largest), k.avg_pool2d(x, average),
                        k.avg_pool2d_grad_x(gy, average)])
    for one, two, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)


def test_linear_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "MIN_SHARED", 0)
    monkeypatch.setattr(linear_module, "ROWS", 3)
    rng = np.random.default_rng(2)
    x, w, b, gy = (rng.standard_normal(s) for s in ((7, 5), (4, 5), (4,), (7, 4)))
    close(k.linear(x, w, b), x @ w.T + b)
    close(k.linear_grad_x(gy, w), gy @ w)
    close(k.linear_grad_w(gy, x), gy.T @ x)


def test_sigmoid_far_from_zero() -> None:
    x = np.array([-1e4, -100, -50, 0, 50, 1e4, np.nan], np.float32)
    with np.errstate(all="raise", under="ignore"):
        y = k.sigmoid(x)
    np.testing.assert_allclose(y, [0, 0, np.exp(-50), 0.5, 1, 1, np.nan], rtol=1e-5, atol=1e-42)


# ---------------------------------------------------------------- sums up to each value
@pytest.mark.parametrize(("shape", "axis"), [
    ((100_001,), 0), ((3, 70_000), 1), ((70_000, 3), 0), ((300, 4, 50), 1), ((2, 3), 0), ((3, 0), 1), ((0, 3), 1),
    ((600, 4), 1), ((5, 1000), 1), ((40, 600), 0)])
def test_sums_by_blocks_are_those_at_once(shape: tuple[int, ...], axis: int) -> None:
    """Also behind infinity and NaN, before which nothing changes."""
    x = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    holes = np.where(x > 3, np.inf, np.where(x < -3, np.nan, x))
    for values in (x, np.flip(x, axis), x.astype(np.float64), (x * 9).astype(np.int32), holes, x[..., ::2]):
        got, expected = k.cumsum(values, axis), choice.cumsum(values, axis)
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype


# ---------------------------------------------------------------- rows by number
@pytest.mark.parametrize(("rows", "count", "d"), [
    (5, 0, 3), (5, 7, 3), (70_000, 300, 2), (1, 17, 2), (3, 1000, 4), (300, 9, 0), (300, 5000, 1), (16, 65, 3),
    (17, 1200, 3), (4, 10_000, 2)])
@pytest.mark.parametrize("few", [0, 1 << 17])
def test_rows_are_added_up_as_numpy_does_it(rows: int, count: int, d: int, few: int,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers with more than 16 bits too, from the end, of few bits and in any shape."""
    monkeypatch.setattr(lookup_module, "FEW_VALUES", few)
    rng = np.random.default_rng(8)
    ids, gy, want = rng.integers(0, rows, count), rng.standard_normal((count, d)), np.zeros((rows, d))
    np.add.at(want, ids, gy)
    close(k.embedding_grad_w(gy, ids, rows), want)
    small = np.uint8 if rows <= 255 else np.uint32
    for index in (ids, ids - rows, ids.astype(small), ids.reshape(1, -1)):
        close(k.getitem_grad_x(gy.reshape(*index.shape, d), index, (rows, d), False), want)


@pytest.mark.parametrize("times", [1, 7, 8, 9, 16, 17, 64, 65, 72, 73])
def test_a_row_is_the_sum_of_as_many_gradients_as_it_was_taken(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight are added at a time, and then their sums."""
    monkeypatch.setattr(lookup_module, "FEW_VALUES", 0)
    ids = np.repeat([3, 0, 1], [times, 1, 2])
    gw = k.embedding_grad_w(np.ones((len(ids), 2), np.float32), ids, 5)
    np.testing.assert_array_equal(gw, np.array([[1], [2], [0], [times], [0]]) * np.ones(2))


@pytest.mark.parametrize(("rows", "d"), [(2, 1), (2, 2), (40, 2)])
def test_a_row_that_is_taken_often_sums_without_much_rounding(rows: int, d: int) -> None:
    gw = k.embedding_grad_w(np.full((1 << 20, d), 0.1, np.float32), np.zeros(1 << 20, np.int64), rows)
    assert abs(gw[0, 0] / np.float32(0.1) / (1 << 20) - 1) < 1e-6


@pytest.mark.parametrize("rows", [4, 40])
def test_what_is_not_finite_stays_in_its_row(rows: int) -> None:
    gy = np.ones((1 << 15, 5), np.float32)
    gy[(1 << 14) + 5, 2] = np.inf
    with np.errstate(all="raise"):
        gw = k.embedding_grad_w(gy, np.arange(1 << 15) % rows, rows)
    assert np.isinf(gw[((1 << 14) + 5) % rows, 2])
    assert np.isfinite(gw).sum() == gw.size - 1


# ---------------------------------------------------------------- values by their numbers
TAKEN: list[Any] = [                       # shapes of x and of the numbers, and the axis
    ((6, 5), (6, 9), 1), ((6, 5), (9, 5), 0), ((3, 4, 5), (2, 3, 7), 2), ((3, 4, 5), (3, 6, 2), 1),
    ((3, 4, 5), (8, 1, 5), 0), ((7,), (40,), 0), ((1, 3), (1, 4), 1), ((3, 1), (3, 5), 1), ((2, 3), (0, 4), 1),
    ((2, 3), (2, 0), 1), ((0, 3), (0, 2), 1)]


@pytest.mark.parametrize(("shape", "numbers", "axis"), TAKEN, ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_values_by_places_are_those_by_numbers(shape: Any, numbers: Any, axis: int, dtype: Any,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end too, in any layout, of several chunks, to the bit."""
    rng = np.random.default_rng(12)
    index = rng.integers(0 if dtype == np.uint8 else -shape[axis], shape[axis], (*numbers[:-1], 2 * numbers[-1]))
    index = index.astype(dtype)[..., ::2]
    x = rng.standard_normal(shape[::-1]).astype(np.float32).T
    gy = rng.standard_normal((2, *numbers)).astype(np.float32)[1]
    order = np.argsort(x, axis)
    want = (k.take_along(x, index, axis), k.take_along_grad_x(gy, index, shape, axis, False),
            k.take_along_grad_x(x, order, shape, axis, True))
    monkeypatch.setattr(lookup_module, "MIN_PLACES", 0)
    for chunk in (1, 100, 1 << 18):
        monkeypatch.setattr(lookup_module, "TEMPORARY_BYTES", chunk)
        got = (k.take_along(x, index, axis), k.take_along_grad_x(gy, index, shape, axis, False),
               k.take_along_grad_x(x, order, shape, axis, True))
        for each, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(each, expected)
            assert each.dtype == expected.dtype


@pytest.mark.parametrize("wrong", [5, -6])
@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_that_have_no_place_are_refused(wrong: int, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    index = np.zeros((5, 5), np.int64)
    index[3, 2] = wrong
    for least in (1 << 11, 0):
        monkeypatch.setattr(lookup_module, "MIN_PLACES", least)
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for axis {axis} with size 5"):
            k.take_along(np.zeros((5, 5)), index, axis)


@pytest.mark.parametrize("index", [
    np.s_[:, [1, 0, 1, -1]], np.s_[:, :, [[2, 2], [0, -2]]], np.s_[[0, 2, 0],], np.s_[:, [True, False, True, True]],
    np.s_[[1, 1, -1], [0, 0, 2]], np.s_[[1, 1], :, [0, 0]], np.s_[..., [1, 1]], np.s_[1, [2, 2]], np.s_[:, [], ::2],
    np.s_[:, None, [1, 1]], np.s_[[[0], [0]], [1, 1, 1]], np.s_[:0, [1, 1]]], ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.int8])
def test_gradients_go_back_to_where_an_index_took_them(index: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where NumPy copies columns one by one."""
    index = tuple(np.array(i, bool if i and isinstance(i[0], bool) else dtype) if isinstance(i, list) else i
                  for i in index)
    rng = np.random.default_rng(13)
    monkeypatch.setattr(lookup_module, "MIN_TAKEN", 1)
    monkeypatch.setattr(lookup_module, "MIN_PLACES", 0)
    for copies in (1, 30):                 # of x that are taken from at once: more numbers than values, or fewer
        x = rng.standard_normal((3, 4, 5 * copies))
        np.testing.assert_array_equal(k.getitem(x, index), x[index])
        gy = rng.standard_normal(x[index].shape)
        close(k.getitem_grad_x(gy, index, x.shape, False), shared.getitem_grad_x(gy, index, x.shape, False))


@pytest.mark.parametrize("index", [np.s_[::-1], np.s_[..., ::-1, None], np.s_[:, 1::-1], np.s_[:0]], ids=str)
def test_gradients_of_all_elements_are_stored_where_others_lay(index: Any) -> None:
    """Each has one, so that nothing is left of what the memory held; or only some have."""
    x = np.random.default_rng(15).standard_normal((400, 500))
    parallel.empty(x.shape, x.dtype).fill(np.nan)
    gy = x[index].copy()
    np.testing.assert_array_equal(k.getitem_grad_x(gy, index, x.shape, True),
                                  shared.getitem_grad_x(gy, index, x.shape, True))


# ---------------------------------------------------------------- labels
@pytest.mark.parametrize("shape", [(), (7,), (2, 0), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64])
def test_ones_at_labels_are_those_by_comparing(shape: tuple[int, ...], dtype: Any) -> None:
    labels = np.random.default_rng(16).integers(0, 4, shape).astype(dtype)
    same_bits(k.one_hot(labels, 4), choice.one_hot(labels, 4))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64])
def test_losses_are_of_each_row_at_its_label_in_any_order_of_memory(dtype: Any) -> None:
    rng = np.random.default_rng(17)
    log_p, labels, rows = rng.standard_normal((30, 7)), rng.integers(0, 7, 30).astype(dtype), np.arange(30)
    for x in (log_p, np.asfortranarray(log_p), np.repeat(log_p, 2, 1)[:, ::2]):
        loss, total = k.nll(x, labels, None, "none", 0.0, None)
        np.testing.assert_array_equal(loss, -log_p[rows, labels])
        assert total == 30
        gx = k.cross_entropy_grad_x(np.array(1.0), x, labels, "sum", 0.0)
        np.testing.assert_array_equal(gx, np.exp(log_p) - choice.one_hot(labels, 7))


# ---------------------------------------------------------------- memory for large results
@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """No memory kept so far, and arrays worth keeping from one byte on."""
    fresh: list[Array] = []
    monkeypatch.setattr(parallel, "_kept", fresh)
    monkeypatch.setattr(parallel, "REUSED_BYTES", 1)
    return fresh


def address(x: Array) -> int:
    return x.__array_interface__["data"][0]


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="references are counted by CPython alone")
def test_memory_is_reused_once_nobody_refers_to_it(kept: list[Array]) -> None:
    first = parallel.empty((4, 5), np.float32)
    place = address(first)
    del first
    again = parallel.empty((10,), np.float64)                  # another shape and dtype of as many bytes
    assert (address(again), again.shape, again.dtype, len(kept)) == (place, (10,), np.float64, 1)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="references are counted by CPython alone")
def test_large_results_lie_where_earlier_ones_lay() -> None:
    """With the limits as they are: a few megabytes are kept, a few kilobytes are not."""
    for size, reused in ((5 << 20, True), (5 << 10, False)):
        count = len(parallel._kept)
        first = parallel.empty((size,), np.uint8)
        place = address(first)
        del first
        assert any(address(buffer) == place for buffer in parallel._kept) == reused
        assert len(parallel._kept) <= count + reused


def test_memory_begins_with_a_line_of_the_cache(kept: list[Array]) -> None:
    assert parallel.scratch("nothing", (0, 3), np.float32).shape == (0, 3)
    for shape in ((1,), (4, 5), (300, 7)):
        for x in (parallel.empty(shape, np.float32), parallel.scratch("aligned", shape, np.float32)):
            assert (x.shape, address(x) % parallel.ALIGNMENT) == (shape, 0)
            x[...] = 1                     # it can be written to


@pytest.mark.parametrize("hold", [lambda x: x, lambda x: x[1:2, ::2], lambda x: x.reshape(-1).view(np.int32),
                                  memoryview, lambda x: np.frombuffer(x, np.uint8)])
def test_memory_that_any_view_refers_to_is_left_alone(kept: list[Array], hold: Any) -> None:
    first = parallel.empty((4, 5), np.float32)
    place, held = address(first), hold(first)
    del first
    assert address(parallel.empty((4, 5), np.float32)) != place
    del held


def test_a_gradient_in_memory_of_its_own_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `empty` gave belongs to whom it was given, until somebody looks at it, or at a part."""
    first = parallel.empty((200, 200), np.float32)
    assert parallel.owns(first)
    part = first[:3]
    assert not parallel.owns(first)
    assert not parallel.owns(part)
    del first
    assert not parallel.owns(part)         # all of the memory would be held for it
    small = np.zeros(3)
    assert parallel.owns(small)
    assert not parallel.owns(small[:])

    asked = Asked(monkeypatch, k, "copy")
    x = Tensor(np.ones((200, 200), np.float32), requires_grad=True)
    ops.sigmoid(x).backward(Tensor(np.ones((200, 200), np.float32)))
    assert asked.calls == []
    both = [Tensor(np.ones((200, 200), np.float32), requires_grad=True) for _ in range(2)]
    ops.sigmoid(both[0] + both[1]).backward(Tensor(np.ones((200, 200), np.float32)))
    assert len(asked.calls) == 1
    assert not np.shares_memory(both[0].grad.numpy(), both[1].grad.numpy())


def test_memory_kept_has_a_limit(kept: list[Array], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "KEPT_BYTES", 80)
    held = [parallel.empty((40,), np.uint8) for _ in range(5)]
    assert len({address(x) for x in held}) == 5
    assert len(kept) == 2
    del held
    parallel.empty((80,), np.uint8)
    assert [buffer.nbytes for buffer in kept] == [80]          # the unused ones made room
    for size in (30, 50):
        parallel.empty((size,), np.uint8)
    assert [buffer.nbytes for buffer in kept] == [30, 50]      # and where there is room, they stay


def test_a_maximum_is_never_in_the_border() -> None:
    """Where all of a window's image is -inf, its first element in the image wins."""
    x = np.full((1, 1, 2, 2), -np.inf)
    g = pool_geometry("max_pool2d", x.shape, 2, 2, 1)          # four windows, each with one element of the image
    y, index = k.max_pool2d(x, g)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(k.max_pool2d_grad_x(np.arange(1.0, 5).reshape(1, 1, 2, 2), index, g)[0, 0],
                                  [[1, 2], [3, 4]])


@pytest.mark.parametrize(("shape", "size"), [
    ((3, 2, 16, 16), 16), ((2, 1, 16, 8), (16, 8)), ((1, 2, 64, 1), (64, 1)), ((2, 2, 3, 192), (3, 64)),
    ((2, 1, 16, 32), (8, 8)), ((2, 2, 64, 3), (64, 1))])
def test_large_windows_that_tile_an_image_are_its_parts(shape: tuple[int, ...], size: Any) -> None:
    """Of one column of windows and of several; an infinity stays in its own."""
    x, g = np.random.default_rng(0).standard_normal(shape), pool_geometry("avg_pool2d", shape, size, None, 0)
    x[0, 0, 0, 0] = np.inf
    parts = x.reshape(g.n, g.c, g.oh, g.kh, g.ow, g.kw)
    close(k.avg_pool2d(x, g), parts.mean((3, 5)))
    gy = np.random.default_rng(1).standard_normal((g.n, g.c, g.oh, g.ow))
    want = np.broadcast_to(gy[:, :, :, None, :, None] / (g.kh * g.kw), parts.shape)
    close(k.avg_pool2d_grad_x(gy, g), want.reshape(shape))


# ---------------------------------------------------------------- order, norms, moments
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("shape", "axis", "first"), [
    ((4, 2000), 1, 7), ((3000, 3), 0, 1), ((2, 1000, 3), 1, 250), ((5000,), 0, 40), ((4, 2000), 1, 1999)])
def test_the_first_of_long_lines_are_those_of_a_whole_sort(shape: tuple[int, ...], axis: int, first: int,
                                                           descending: bool) -> None:
    """Equal values, zeros of both signs among them, in their order; beside infinities, and where NaN is the largest."""
    rng = np.random.default_rng(0)
    few = rng.choice(np.array([-np.inf, -1, -0.0, 0.0, 1, np.inf], np.float32), shape)
    with_nan = few.copy()
    with_nan.reshape(-1)[::7] = np.nan
    for x in (few, with_nan, rng.standard_normal(shape), rng.integers(0, 9, shape)):
        np.testing.assert_array_equal(k.argsort(x, axis, descending, first), choice.argsort(x, axis, descending, first))


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-19, 1.0, 1e19, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("axis", [(1,), (0,), (0, 1)])
@pytest.mark.filterwarnings("error")
def test_a_norm_is_right_for_all_sizes_of_numbers(axis: tuple[int, ...], value: float) -> None:
    """Whose squares overflow or vanish in float32, without a word about that."""
    x = np.full((3, 1300), value, np.float32)
    want = np.sqrt(np.sum(x.astype(float) ** 2, axis=axis))
    np.testing.assert_allclose(k.norm(x, axis, False), want, rtol=1e-5)


def test_moments_of_sets_of_one_value_are_in_memory_of_their_own() -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, 1))
    y, mean, _ = k.normalize(x, None, None, 1e-5, group_geometry(x.shape, 3, None, None))
    np.testing.assert_array_equal(mean, x[..., 0])
    assert not np.shares_memory(mean, x)
    assert not y.any()


FAMILIES: list[tuple[str, Any]] = [
    ("batch", lambda shape: (batch_geometry(shape, None, None, None, None, True), (0, *range(2, len(shape))))),
    ("layer", lambda shape: (layer_geometry(shape, shape[1:], None, None), tuple(range(1, len(shape))))),
    ("instance", lambda shape: (group_geometry(shape, shape[1], None, None), tuple(range(2, len(shape)))))]


@pytest.mark.parametrize("shape", [(7, 3, 5, 2), (9, 6), (1, 4, 6), (8, 2, 40), (33, 5, 1)], ids=str)
@pytest.mark.parametrize(("family", "of"), FAMILIES, ids=[name for name, _ in FAMILIES])
@pytest.mark.parametrize("weighted", [False, True])
def test_normalisation_near_and_far_from_zero(shape: tuple[int, ...], family: str, of: Any, weighted: bool,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """By the formula, in several chunks, whatever the mean of a set and of its neighbours; in any order in memory."""
    g, axes = of(shape)
    if math.prod(shape[a] for a in axes) == 1:
        return
    for constant, value in (("_chunk", lambda x, g: 3), ("WIDE", 20), ("MAX_ROWS", 2)):
        monkeypatch.setattr(norm, constant, value)
    rng = np.random.default_rng(1)
    gy, kept = rng.standard_normal(shape), [1 if a in axes else n for a, n in enumerate(shape)]
    x = rng.standard_normal(shape) + rng.choice([0, 1, -30, 1e4], kept)
    w, b = rng.standard_normal((2, *g.affine))
    weights = [each.reshape((1, *shape[1:]) if family == "layer" else (1, -1, *[1] * (len(shape) - 2)))
               for each in ((w, b) if weighted else (np.ones_like(w), np.zeros_like(w)))]
    w, b = (w, b) if weighted else (None, None)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    rstd = 1 / np.sqrt(var + 1e-5)
    z, gz = (x - mean) * rstd, gy * weights[0]
    gx = rstd * (gz - gz.mean(axes, keepdims=True) - z * (gz * z).mean(axes, keepdims=True))
    rest = 0 if family == "layer" else (0, *range(2, len(shape)))
    sums = [np.sum(each, rest) for each in (gy * z, gy)]
    for turned in (x, np.asfortranarray(x)):
        y, got_mean, got_rstd = k.normalize(turned, w, b, 1e-5, g)
        back = gy, turned, w, got_mean, got_rstd, g
        found = [y, got_mean.reshape(kept), got_rstd.reshape(kept), *k.normalize_grad(*back), k.normalize_grad_x(*back)]
        for got, want in zip(found, [z * weights[0] + weights[1], mean, rstd, gx, *sums, gx], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)
        if family == "batch":
            given = got_mean, var.reshape(-1)
            close(k.normalize_by(turned, *given, w, b, 1e-5, g), y)
            for got, want in zip(k.normalize_by_grad(gy, turned, *given, w, 1e-5, g), [gz * rstd, *sums], strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e3, 1e20])
def test_sets_of_equal_values_have_no_variance(value: float) -> None:
    """Whatever their square is, without a word about that."""
    x = np.full((4, 8, 30), value, np.float32)
    for g in (batch_geometry(x.shape, None, None, None, None, True), layer_geometry(x.shape, (8, 30), None, None),
              group_geometry(x.shape, 2, None, None)):
        y, _, _ = k.normalize(x, None, None, 1e-5, g)
        assert not y.any()


# ---------------------------------------------------------------- attention
@pytest.mark.parametrize("masked", ["not", "causal", "all heads", "each head", "keys"])
@pytest.mark.parametrize("budget", [1, 1 << 7, 1 << 9, 1 << 20])
def test_attention_in_chunks_is_attention(budget: int, masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query at a time, some queries of a head, some heads, all at once."""
    rng, causal = np.random.default_rng(0), masked == "causal"
    q, k_, v, go = (rng.standard_normal(shape) for shape in ((3, 1, 7, 4), (2, 5, 4), (3, 2, 5, 6), (3, 2, 7, 6)))
    shapes = {"all heads": (7, 5), "each head": (3, 2, 7, 5), "keys": (1, 5)}
    mask = rng.standard_normal(shapes[masked]) if masked in shapes else None
    want_o, want_sums = attention.WRITTEN.forward(q, k_, v, mask, causal, 0.5)
    want = attention.WRITTEN.grad(go, q, k_, v, mask, want_o, want_sums, causal, 0.5)
    monkeypatch.setattr(attention, "CHUNK_BYTES", budget)
    o, sums = k.attention(q, k_, v, mask, causal, 0.5)
    got = k.attention_grad(go, q, k_, v, mask, o, sums, causal, 0.5)
    close(o, want_o)
    close(sums, np.broadcast_to(want_sums, sums.shape))
    for each, expected in zip(got, want, strict=True):
        close(each, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "uint64"])
def test_many_numbers_along_an_axis_of_any_dtype(dtype: str) -> None:
    """Also those from the end, of an axis that is longer than the dtype can count."""
    x = np.random.default_rng(0).standard_normal((40, 600))
    index = np.tile(np.array([0, 5, 7, 100] if dtype[0] == "u" else [0, -1, -100, 100]).astype(dtype), (40, 20))
    np.testing.assert_array_equal(k.take_along(x, index, 1), np.take_along_axis(x, index.astype(np.int64), 1))
    np.testing.assert_array_equal(k.take_along_grad_x(np.ones(index.shape), index, x.shape, 1, False)[0].nonzero()[0],
                                  sorted({int(i) % 600 for i in index[0].astype(np.int64)}))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (5, 3), (0, 3), (3, 0), (2, 4, 4), (2, 3, 9, 3)])
def test_triangles_are_numpys_in_any_order_of_memory(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for given in (x, np.asfortranarray(x), x[..., ::-1], np.broadcast_to(x[:1], shape), x > 0, x.astype(np.int64)):
        for diagonal in range(-6, 10):
            for mine, other in ((k.tril, np.tril), (k.triu, np.triu)):
                found = mine(given, diagonal)
                np.testing.assert_array_equal(found, other(given, diagonal), strict=True)
                assert found.flags.writeable


# ---------------------------------------------------------------- recurrences
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "gates", "states"), [
    ("lstm", 4, 2), ("gru", 3, 1), ("tanh", 1, 1), ("relu", 1, 1)])
def test_a_recurrence_in_chunks_is_the_recurrence(kind: str, gates: int, states: int, reverse: bool, dtype: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the gates are: 1 / (1 + e^-x) of -1,000 is 0, without a warning."""
    rng = np.random.default_rng(0)
    gx, w, b, state, gy = (rng.standard_normal(shape).astype(dtype) for shape in (
        (3, 7, gates * 4), (gates * 4, 4), (gates * 4,), (states, 7, 4), (states, 3, 7, 4)))
    gx[1] *= 1000

    def run() -> list[np.ndarray]:
        found, kept = k.recurrence(gx, w, b, state, kind, reverse)
        return [found, kept, *k.recurrence_grad(gy, gx, w, b, state, found, kept, kind, reverse)]
    want = run()
    monkeypatch.setattr(recurrent, "MIN_CHUNK", 1)
    monkeypatch.setattr(recurrent, "MIN_ROWS", 2)
    for got, whole in zip(run(), want, strict=True):
        assert got.dtype == dtype
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-5)
