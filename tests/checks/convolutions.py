"""Checks of the CUDA convolutions against the CPU's float64: every algorithm and direction, alone and fused.

`canaries` is memory whose edges must stay: its `check()` is called behind each launch.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.problems import DIRECTIONS, Problem, drawn
from minidl.core import device
from minidl.lab.check import product_bound, used
from minidl.ops import ACTIVATIONS, cpu
from minidl.ops.common.geometry import ConvGeometry, conv_geometry, pool_geometry
from minidl.ops.common.geometry.nhwc import bf16, widened

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops import cuda  # noqa: E402
from minidl.ops.cuda import conv, launch  # noqa: E402
from minidl.ops.cuda.conv.papers import krizhevsky  # noqa: E402
from minidl.ops.cuda.conv.resident import few_channels  # noqa: E402

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import krizhevsky_variants  # noqa: E402

TENSOR_CORES = [name for name, row in conv.ALGORITHMS.items() if row.tensor_cores]
FP32 = [name for name in conv.ALGORITHMS if name not in TENSOR_CORES]
ON_HOPPER = "wgmma", "few_channels"        # on compute capability 9.0 alone


def most_exact(name: str) -> str:
    """The precision in which an algorithm is compared."""
    precisions = conv.ALGORITHMS[name].tensor_cores
    return "3xtf32" if "3xtf32" in precisions else (*precisions, "fp32")[0]


# ---------------------------------------------------------------- the check
DONE: Counter[tuple[str, str]] = Counter()         # (algorithm, direction) -> cases computed
REFUSED: Counter[tuple[str, str]] = Counter()      # (algorithm, direction) -> cases it cannot do
WORST: dict[tuple[str, str], float] = {}


def failures_of(problem: Problem, names: list[str], canaries: Any,
                directions: tuple[str, ...] = DIRECTIONS) -> Iterator[str]:
    """Run algorithms on a problem, twice each, in the current precision; one line for each wrong result."""
    dtype = problem.x.dtype
    for direction in directions:
        arrays = problem.on_cuda(direction)
        for name in names:
            g = problem.g._replace(algorithm=name)
            if conv.refusal(name, direction, g, dtype):
                REFUSED[name, direction] += 1
                continue
            what = f"{name} {direction} {dtype} {g[:-1]}"
            launcher = getattr(conv.ALGORITHMS[name], direction)
            try:
                first, second = launcher(*arrays, g).get(), launcher(*arrays, g).get()
                canaries.check()
            except Exception as error:
                yield f"{what}: {type(error).__name__}: {error}"
                if "CUDARuntimeError" in type(error).__name__ or "CUDADriverError" in type(error).__name__:
                    raise                  # the context is lost: nothing after this means anything
                continue
            DONE[name, direction] += 1
            if (first.shape, first.dtype) != (problem.exact[direction].shape, dtype):
                yield f"{what}: shape {first.shape} {first.dtype} for {problem.exact[direction].shape}"
                continue
            rounding = conv.ALGORITHMS[name].rounding
            if math.isinf(rounding):
                most = problem.bound(direction, device.precision(), spread=True)
            else:
                most = problem.bound(direction, device.precision()) * rounding
            share = used(first, problem.exact[direction], most)
            WORST[name, direction] = max(share, WORST.get((name, direction), 0.0))
            if share > 1:
                yield f"{what}: used {share:.3g} of its tolerance"
            if first.tobytes() != second.tobytes():
                yield f"{what}: two runs differ"


def assert_none(failures: list[str]) -> None:
    assert not failures, f"{len(failures)} failed:\n" + "\n".join(failures[:60])


def each_direction(name: str, shapes: list[ConvGeometry], canaries: Any) -> None:
    """Each direction that an algorithm has, on the first of some shapes that it can do there."""
    for direction in DIRECTIONS:
        row, before = conv.ALGORITHMS[name], DONE[name, direction]
        if getattr(row, direction) is None:
            continue
        g = next((g for g in shapes if row.refuses(direction, g, np.dtype(np.float32)) is None), None)
        assert g, f"{name} {direction}: it can do none of the shapes; add one that it can do"
        assert_none(list(failures_of(drawn(g, 1, np.float32), [name], canaries, (direction,))))
        assert DONE[name, direction] == before + 1


def left_to_auto(name: str, canaries: Any) -> None:
    """Directions for which an algorithm has no kernel: it trains, and says so once."""
    device.set_precision(most_exact(name))
    problem = drawn(conv_geometry((5, 12, 14, 14), (9, 12, 4, 4), None, 1, 0, "gemm"), 1, np.float32)
    directions = [direction for direction in ("dx", "dw") if getattr(conv.ALGORITHMS[name], direction) is None]
    g = problem.g._replace(algorithm=name)
    conv._warn.cache_clear()
    conv._asked.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for direction in [*directions, *directions]:
            got = getattr(conv, f"conv2d_grad_{direction[1]}")(*problem.on_cuda(direction), g).get()
            most = problem.bound(direction, device.precision())
            assert used(got, problem.exact[direction], most) <= 1
    assert [str(warning.message) for warning in said] == [
        f"conv2d: algorithm {name!r} has no kernel for {' and '.join(directions)}; 'auto' is used there"]
    canaries.check()


def variants_of_krizhevskys(g: ConvGeometry, seed: int, dtype: type, canaries: Any) -> int:
    """Each has the bits of the kernel itself, which other checks compare; how many were compared."""
    arrays = drawn(g, seed, dtype).on_cuda("y")
    want = krizhevsky.y(*arrays, g).get()
    for name in krizhevsky_variants.VARIANTS:
        got = krizhevsky_variants.y(*arrays, g, name).get()
        canaries.check()
        assert got.tobytes() == want.tobytes(), f"{name}, {dtype}, {g[:-1]}: {np.abs(got - want).max()}"
    return len(krizhevsky_variants.VARIANTS)


def loads_left_out(g: ConvGeometry, dtype: type, canaries: Any) -> None:
    """The report's kernels without loads give something."""
    problem = drawn(g, 1, dtype)
    for left_out in krizhevsky_variants.ABLATIONS.values():
        for direction, launcher in (("y", krizhevsky.y), ("dw", krizhevsky.dw)):
            assert launcher(*problem.on_cuda(direction), g, left_out=left_out).shape == problem.exact[direction].shape
            canaries.check()


# ---------------------------------------------------------------- fused with what follows
FUSABLE = [(name, precision, dtype) for name, row in conv.ALGORITHMS.items() if row.y_act_pool
           for precision, dtype in ([(precision, np.float32) for precision in row.tensor_cores[:2]] or
                                    [("fp32", np.float32), ("fp32", np.float64)])]


def fused_with_activation_and_pooling(name: str, precision: str, dtype: type, shapes: list[Any],
                                      canaries: Any) -> None:
    """As one after the other, of all but one of some shapes, in a precision that the algorithm computes in."""
    device.set_precision(precision)
    if name in ON_HOPPER and launch.compute_capability() != 90:
        pytest.skip("this GPU's compute capability is not 9.0")
    compared = 0
    for x_shape, filters, padding in shapes:
        g = conv_geometry(x_shape, filters, (filters[0],), 1, padding, name)
        if conv.refusal(name, "y", g, np.dtype(dtype)):
            continue
        compared += 1
        arrays = drawn(g._replace(algorithm="gemm"), 1, dtype).on_cuda("y")
        y = conv.conv2d(*arrays, g).get()
        tolerance = {"rtol": 0, "atol": 8 * np.finfo(dtype).eps}
        for act in ACTIVATIONS:
            want = getattr(cpu, act)(y.astype(float))
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(cuda.conv2d_act(*arrays, g, act).get() / scale, want / scale, **tolerance)
            for size in (2, 4):
                pooling = pool_geometry("avg_pool2d", y.shape, size, None, 0)
                can_pool = conv.ALGORITHMS[name].can_pool
                assert can_pool is not None
                assert can_pool(g, pooling, np.dtype(dtype))
                both = cuda.conv2d_act_pool(*arrays, g, act, pooling)
                for got, exact in zip(both, (want, cpu.avg_pool2d(want, pooling)), strict=True):
                    np.testing.assert_allclose(got.get() / scale, exact / scale, **tolerance)
        canaries.check()
    assert compared >= max(1, len(shapes) - 1)


def whole_images_on_tensor_cores(name: str, precision: str, act: str, shapes: list[Any], canaries: Any) -> None:
    """With activation and pooling, and the gradients through both: as the kernels one after another, but for rounding.

    An activation's slope is at most 1, so what it makes of an error is no larger. The bias's gradient meets no tensor
    core: it is a sum in fp32.
    """
    device.set_precision(precision)
    image: Any = conv.ALGORITHMS[name]
    if name in ON_HOPPER and launch.compute_capability() != 90:
        pytest.skip("this GPU's compute capability is not 9.0")
    rng, dtype, compared = np.random.default_rng(0), np.dtype(np.float32), 0
    for x_shape, m, k, padding, size in shapes:
        kh, kw = k if isinstance(k, tuple) else (k, k)
        g = conv_geometry(x_shape, (m, x_shape[1], kh, kw), None, 1, padding, "gemm")
        pooling = pool_geometry("avg_pool2d", (g.n, g.m, g.oh, g.ow), size, None, 0)
        if precision == "3xtf32" and m == 130:             # its filters' two parts do not fit shared memory
            assert not image.can_pool(g, pooling, dtype)
            continue
        if name == "few_channels" and g.c > few_channels.CHANNELS:
            assert image.refuses("y", g, dtype)
            continue
        compared += 1
        assert image.can_pool(g, pooling, dtype)
        x, w, b, gp = (rng.standard_normal(shape, np.float32) for shape in (
            x_shape, (m, g.c, kh, kw), (m,), (g.n, m, pooling.oh, pooling.ow)))
        z = cpu.conv2d(x.astype(float), w.astype(float), b.astype(float), g)
        squares = cpu.conv2d(x.astype(float) ** 2, w.astype(float) ** 2, b.astype(float) ** 2, g)
        y = getattr(cpu, act)(z)
        most = product_bound(precision, g.c * kh * kw + 1, squares, z) + 4 * np.finfo(dtype).eps * (1 + np.abs(y))
        on_cuda = [cupy.asarray(a) for a in (x, w, b)]
        alone, (got, means) = image.y_act(*on_cuda, g, act), image.y_act_pool(*on_cuda, g, act, pooling)
        assert used(got.get(), y, most) <= 1
        assert alone.get().tobytes() == got.get().tobytes()
        assert used(means.get(), cpu.avg_pool2d(y, pooling), cpu.avg_pool2d(most, pooling) + 1e-6) <= 1

        if image.grad_wb is None:
            continue
        assert image.refuses("dw", g, dtype) is None
        gz = cpu.avg_pool2d_grad_act(gp.astype(float), got.get().astype(float), pooling, act)
        wide, given = x.astype(float), (cupy.asarray(gp), got, on_cuda[0], g, act, pooling)
        dw, db = image.grad_wb(*given)
        exact, length = cpu.conv2d_grad_w(gz, wide, g), g.n * g.oh * g.ow
        most = product_bound(precision, length, cpu.conv2d_grad_w(gz ** 2, wide ** 2, g), exact)
        most += 4 * np.finfo(dtype).eps * np.sqrt(cpu.conv2d_grad_w(gz ** 2, wide ** 2, g))      # of gz itself
        assert used(dw.get(), exact, most) <= 1
        most = product_bound("fp32", length, (gz ** 2).sum((0, 2, 3)), gz.sum((0, 2, 3)))
        assert used(db.get(), gz.sum((0, 2, 3)), most) <= 1
        assert [a.get().tobytes() for a in image.grad_wb(*given)] == [dw.get().tobytes(), db.get().tobytes()]
        if name == "few_channels" and g.ow % 4 == 0:
            stored_in_half(on_cuda, got, means, given)
        canaries.check()
    assert compared


def stored_in_half(arrays: list[Any], y: Any, means: Any, given: tuple[Any, ...]) -> None:
    """y in bf16 is y rounded; the gradients from it are those from what it stands for, to the same bits."""
    gp, _, x, g, act, pooling = given
    half, also = cuda.conv2d_act_pool_half(*arrays, g, act, pooling)
    np.testing.assert_array_equal(half.get(), bf16(y.get()), strict=True)
    assert also.get().tobytes() == means.get().tobytes()
    found = cuda.conv2d_act_pool_half_grad_wb(gp, half, x, g, act, pooling)
    wanted = conv.ALGORITHMS["few_channels"].grad_wb
    assert wanted
    for mine, its in zip(found, wanted(gp, cupy.asarray(widened(half.get())), x, g, act, pooling), strict=True):
        assert mine.get().tobytes() == its.get().tobytes()
