"""Every CUDA convolution algorithm on thousands of random shapes, against the CPU's float64.

A shape is drawn once, and its exact results and tolerances computed once, for all algorithms and directions. Results
lie in memory full of NaN whose edges must stay (`canaries`), and a second run must give the same bits.
"""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checks.problems import DIRECTIONS, Problem, drawn, solved

from minidl.core import device
from minidl.lab.check import LAYERS, ROUNDING, product_bound, random_shapes
from minidl.ops import ACTIVATIONS, cpu
from minidl.ops.common.geometry import ConvGeometry, conv_geometry, pool_geometry

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.convolutions import (  # noqa: E402
    DONE,
    FP32,
    FUSABLE,
    ON_HOPPER,
    REFUSED,
    TENSOR_CORES,
    WORST,
    assert_none,
    failures_of,
    fused_with_activation_and_pooling,
    left_to_auto,
    whole_images_on_tensor_cores,
)
from emulator import forget  # noqa: E402

from minidl.ops import cuda  # noqa: E402
from minidl.ops.cuda import conv, launch  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fp32")]

CHUNKS, SHAPES_A_CHUNK = 20, 105

EVEN = [(2, 2, 1, 1), (4, 4, 1, 1), (2, 6, 1, 1), (8, 4, 1, 1), (6, 8, 1, 1)]        # which winograd takes


# ---------------------------------------------------------------- the check
def assert_right(problem: Problem, canaries: Any) -> None:
    """Every algorithm is right, in the problem's dtype."""
    assert_none(list(failures_of(problem, FP32, canaries)))


@functools.cache
def compilers() -> Any:
    """Processes that compile into CuPy's cache on disk: the compiler takes one thread of a process at a time.

    Each holds memory of the GPU, so where pytest itself runs in several processes, these share the cores out.
    """
    cores, beside = os.cpu_count() or 1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    pool = multiprocessing.get_context("spawn").Pool(max(1, cores // beside))
    atexit.register(pool.terminate)
    return pool


def compile_one(asked: tuple[str, str, tuple[launch.Constant, ...]]) -> None:
    file, name, constants = asked
    launch.kernels._module(file, launch.source(file), constants, name)()


def compile_for(shapes: Iterable[ConvGeometry], names: list[str], dtype: type) -> None:
    """Compile what the launchers will ask for, on all cores: some have kernels of their own for many shapes.

    The launchers run with a `kernel` that notes what it is asked for and launches nothing. Not `fft`'s: it has no
    kernel of its own, and would make hundreds of cuFFT's plans, at some 20 ms each.
    """
    wanted: dict[tuple[Any, ...], None] = {}

    def note(file: str, name: str, *constants: Any) -> mock.MagicMock:
        wanted[file, name, constants] = None
        return mock.MagicMock()

    with mock.patch.object(launch, "kernel", note):
        for g in shapes:
            x, w, gy = (cupy.zeros(shape, dtype) for shape in
                        ((g.n, g.c, g.h, g.w), (g.m, g.c, g.kh, g.kw), (g.n, g.m, g.oh, g.ow)))
            for direction, arrays in (("y", (x, w, None)), ("dx", (gy, w)), ("dw", (gy, x))):
                for name in names:
                    asked = g._replace(algorithm=name)
                    if name != "fft" and not conv.refusal(name, direction, asked, np.dtype(dtype)):
                        getattr(conv.ALGORITHMS[name], direction)(*arrays, asked)
    forget()                               # launches are kept, and these were none
    compilers().map(compile_one, wanted, chunksize=1)


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a run share: what each chunk has seen."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "chunks"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_shapes(chunk: int, canaries: Any, seen: Path) -> None:
    """Each shape in float32, every eighth in float64 as well."""
    failures: list[str] = []
    before = DONE.copy(), REFUSED.copy()
    shapes = list(random_shapes(chunk, SHAPES_A_CHUNK))
    compile_for(shapes, FP32, np.float32)
    compile_for(shapes[::8], FP32, np.float64)
    for at, g in enumerate(shapes):
        for dtype in (np.float32, np.float64)[:2 if at % 8 == 0 else 1]:
            failures += failures_of(drawn(g, at, dtype), FP32, canaries)
    keep(seen, chunk, {"shapes": [g[:-1] for g in shapes], **{
        what: [[*key, count] for key, count in (now - then).items()]
        for what, now, then in zip(("done", "refused"), (DONE, REFUSED), before)},
        "worst": [[*key, share] for key, share in WORST.items()]})
    assert_none(failures)


def test_no_images(canaries: Any) -> None:
    """y and dx are empty, dw is 0."""
    for (c, h, w), m, (kh, kw), padding in LAYERS:
        g = conv_geometry((0, c, h, w), (m, c, kh, kw), None, 1, padding, "gemm")
        for dtype in (np.float32, np.float64):
            assert_right(drawn(g, 1, dtype), canaries)


LARGE = [((128, 3, 32, 32), (64, 3, 8, 8), 1, ((4, 3), (4, 3))),          # the 2009 report's layer, whole
         ((2, 3, 227, 227), (16, 3, 11, 11), 4, 0), ((1, 1, 500, 700), (2, 1, 3, 3), 1, 1),
         ((3, 70, 9, 9), (130, 70, 3, 3), 1, 1), ((70_000, 1, 3, 3), (2, 1, 2, 2), 1, 0),
         ((1, 300, 4, 4), (300, 300, 1, 1), 1, 0), ((2, 1, 40, 1), (3, 1, 40, 1), 1, 0),
         ((1, 2, 3, 3), (2, 2, 3, 3), (7, 5), 0), ((1, 1, 1, 1), (1, 1, 1, 1), 1, 9)]


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_shapes_beyond_the_usual(shape: tuple[Any, ...], canaries: Any) -> None:
    """Many images, wide ones, filters as large as the image, strides larger than it, padding larger than the filter."""
    x, w, stride, padding = shape
    g = conv_geometry(x, w, None, stride, padding, "gemm")
    assert_right(drawn(g, 1, np.float32), canaries)


def test_filter_gradients_are_views_of_nothing() -> None:
    """So that the tape need not copy them for a leaf, of whatever algorithm `auto` chooses."""
    seen = set()
    for (c, h, w), m, (kh, kw), padding in LAYERS:
        g = conv_geometry((17, c, h, w), (m, c, kh, kw), None, 1, padding, "gemm")
        arrays = drawn(g, 1, np.float32).on_cuda("dw")
        for name, row in conv.ALGORITHMS.items():
            if row.tried and conv.refusal(name, "dw", g, np.dtype(np.float32)) is None:
                assert row.dw(*arrays, g).base is None, name
                seen.add(name)
    assert seen >= {"gemm", "implicit_gemm", "whole_image", "winograd"}


@pytest.mark.parametrize("limit", [2**20, 2**28])
def test_results_do_not_depend_on_the_workspace_by_more_than_rounding(limit: int, canaries: Any) -> None:
    """1 MiB: what is unrolled, or summed in parts, goes through in pieces."""
    before = device.workspace_limit()
    device.set_workspace_limit(limit)
    try:
        for layer in ((128, 3, 32, 32), (64, 3, 8, 8), ((4, 3), (4, 3))), ((129, 17, 20, 20), (33, 17, 3, 3), 1):
            assert_right(drawn(conv_geometry(layer[0], layer[1], None, 1, layer[2], "gemm"), 1, np.float32), canaries)
    finally:
        device.set_workspace_limit(before)


# ---------------------------------------------------------------- tensor cores
@pytest.fixture
def tensor_cores() -> None:
    if int(cupy.cuda.Device().compute_capability) < 80:
        pytest.skip("this GPU has no tensor cores for tf32 and bf16")


@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("precision", sorted(set(ROUNDING) - {"fp32"}))
def test_tensor_cores(precision: str, canaries: Any) -> None:
    device.set_precision(precision)
    before, failures, shapes = DONE.copy(), [], list(random_shapes(1000, 120))
    compile_for(shapes, TENSOR_CORES, np.float32)
    for at, g in enumerate(shapes):
        failures += failures_of(drawn(g, at, np.float32), TENSOR_CORES, canaries)
    assert_none(failures)
    for name in TENSOR_CORES:
        if precision not in conv.ALGORITHMS[name].tensor_cores or (
                name in ON_HOPPER and launch.compute_capability() != 90):
            continue                       # in, or on, which it cannot compute
        for direction, least in least_of(name).items():
            assert DONE[name, direction] - before[name, direction] >= least, f"{name} {direction}"


FUSED = [((7, 3, 32, 32), 64, 8, ((4, 3), (4, 3)), 4), ((300, 1, 28, 28), 6, 5, 2, 2), ((2, 6, 14, 14), 130, 5, 0, 2),
         ((3, 2, 9, 16), 37, (3, 4), ((1, 0), (2, 3)), 2)]


@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize(("name", "precision"), [
    (name, precision) for name in TENSOR_CORES if conv.ALGORITHMS[name].y_act_pool
    for precision in conv.ALGORITHMS[name].tensor_cores])
def test_whole_images_on_tensor_cores_fused(name: str, precision: str, act: str, canaries: Any) -> None:
    """With activation and pooling, and the gradients through both: as the kernels one after another, but for rounding.

    An activation's slope is at most 1, so what it makes of an error is no larger. The bias's gradient meets no tensor
    core: it is a sum in fp32.
    """
    whole_images_on_tensor_cores(name, precision, act, FUSED, canaries)


# what -> (precision, x, w, stride, direction, what it says)
CANNOT = {
    "fp32": ("fp32", (1, 3, 9, 9), (2, 3, 3, 3), 1, "y", "the precision is fp32 but tensor cores compute in"),
    "stride": ("tf32", (1, 3, 9, 9), (2, 3, 3, 3), (1, 2), "dw", "it needs stride 1 but it is 1x2"),
    "wide": ("tf32", (1, 3, 9, 9), (2, 3, 3, 9), 1, "y", "a filter row of 9 taps does not fit one step of a product"),
    "tall": ("tf32", (1, 3, 40, 9), (2, 3, 25, 3), 1, "dw", r"25 rows of taps do not fit the sums of a warp \(24 do\)"),
    "deep": ("3xtf32", (1, 600, 9, 9), (600, 600, 3, 3), 1, "y", r"do not fit a block's \d+ KB of shared memory")}


@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("what", CANNOT)
def test_what_whole_images_on_tensor_cores_cannot_do(what: str) -> None:
    precision, x, w, stride, direction, reason = CANNOT[what]
    device.set_precision(precision)
    g = conv_geometry(x, w, None, stride, 0, "tensor_core_image")
    x_array, w_array, gy = (cupy.zeros(shape, np.float32) for shape in (x, w, (g.n, g.m, g.oh, g.ow)))
    call = {"y": lambda: cuda.conv2d(x_array, w_array, None, g), "dx": lambda: cuda.conv2d_grad_x(gy, w_array, g),
            "dw": lambda: cuda.conv2d_grad_w(gy, x_array, g)}[direction]
    with pytest.raises(ValueError, match=f"'tensor_core_image' cannot compute {direction} of .*{reason}"):
        call()


@pytest.mark.parametrize("name", [name for name, row in conv.ALGORITHMS.items() if None in (row.dx, row.dw)])
def test_a_direction_without_a_kernel_is_left_to_auto(name: str, canaries: Any) -> None:
    left_to_auto(name, canaries)


def test_an_algorithm_of_one_architecture_is_refused_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    device.set_precision("tf32")
    monkeypatch.setattr(launch, "compute_capability", lambda: 80)
    g = conv_geometry((1, 3, 9, 9), (2, 3, 3, 3), None, 1, 0, "wgmma")
    reason = "it needs compute capability 9.0 but the device has 8.0; use algorithm 'auto'"
    with pytest.raises(ValueError, match=f"'wgmma' cannot compute y of .*{reason}"):
        cuda.conv2d(cupy.zeros((1, 3, 9, 9), np.float32), cupy.zeros((2, 3, 3, 3), np.float32), None, g)
    conv._asked.cache_clear()
    monkeypatch.setattr(launch, "compute_capability", lambda: 90)
    monkeypatch.setattr(launch, "compiler_version", lambda: (12, 8))
    with pytest.raises(ValueError, match=r"'wgmma' .*: it needs NVRTC 12\.9 but the installed one is 12\.8; use"):
        cuda.conv2d(cupy.zeros((1, 3, 9, 9), np.float32), cupy.zeros((2, 3, 3, 3), np.float32), None, g)
    conv._asked.cache_clear()


def test_arrays_that_start_anywhere(canaries: Any) -> None:
    """Kernels copy by 16 bytes where rows are multiples of them; a view may start in between."""
    g = conv_geometry((5, 3, 12, 16), (9, 3, 4, 4), None, 1, 0, "gemm")
    problem = drawn(g, 1, np.float32)
    for precision in ("fp32", "3xtf32", "bf16"):
        device.set_precision(precision)
        for name, row in conv.ALGORITHMS.items():
            for direction in DIRECTIONS:
                if conv.refusal(name, direction, g, np.dtype(np.float32)) is None:
                    arrays = problem.on_cuda(direction)
                    shifted = [a if a is None else cupy.concatenate([a.ravel()[:1], a.ravel()])[1:].reshape(a.shape)
                               for a in arrays]
                    assert shifted[0].data.ptr % 16
                    run = getattr(row, direction)
                    assert (run(*shifted, g) == run(*arrays, g)).all(), f"{name} {direction}"
    canaries.check()


# ---------------------------------------------------------------- filters of even height and width
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_even_filters(dtype: type, canaries: Any) -> None:
    """Few of the shapes above are ones that winograd takes."""
    taken = [g for g in random_shapes(2000, 1000, EVEN) if not conv.refusal("winograd", "y", g, np.dtype(dtype))]
    assert len(taken) >= 60
    compile_for(taken, ["winograd"], dtype)
    assert_none([failure for at, g in enumerate(taken)
                 for failure in failures_of(drawn(g, at, dtype), ["winograd"], canaries)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["winograd_2x2", "winograd_4x4"])
def test_filters_of_3x3(name: str, dtype: type, canaries: Any) -> None:
    """Few of the shapes above have so many channels."""
    shapes = [g for g in random_shapes(1200, 500, [(3, 3, 1, 1)])
              if any(conv.refusal(name, direction, g, np.dtype(dtype)) is None for direction in DIRECTIONS)]
    before = DONE.copy()
    assert_none([failure for at, g in enumerate(shapes)
                 for failure in failures_of(drawn(g, at, dtype), [name], canaries)])
    for direction in DIRECTIONS:
        assert DONE[name, direction] - before[name, direction] >= 100


REFUSED_BY_WINOGRAD = [(((2, 3, 8, 8), (4, 3, 8, 8), 2, 0), "it needs stride 1 but it is 2x2"),
                       (((2, 3, 8, 8), (4, 3, 8, 7), 1, 0),
                        "it needs filters of even height and width but they are 8x7"),
                       (((2, 2, 8, 8), (4, 2, 8, 8), 1, 0),
                        "an output sums 128 products but it is exact enough from 192"),
                       (((2, 3, 8, 8), (4, 3, 8, 8), 1, 5),
                        "an output meets 3 of a filter's 8 rows and 3 of its 8 columns"),
                       (((2, 48, 8, 8), (4, 48, 2, 2), 1, 1), "an output meets 1 of a filter's 2 rows"),
                       (((2, 3, 400, 400), (4, 3, 8, 8), 1, 0), "nine kinds of the images and filters do not fit")]


@pytest.mark.parametrize(("shape", "reason"), REFUSED_BY_WINOGRAD, ids=str)
def test_what_winograd_refuses(shape: tuple[Any, ...], reason: str) -> None:
    x, w, stride, padding = shape
    g = conv_geometry(x, w, None, stride, padding, "winograd")
    with pytest.raises(ValueError, match=f"conv2d: algorithm 'winograd' cannot compute y .*{reason}.*; use algorithm"):
        conv.conv2d(cupy.zeros(x, np.float32), cupy.zeros(w, np.float32), None, g)


# ---------------------------------------------------------------- fused with what follows
@pytest.mark.parametrize(("name", "precision", "dtype"), FUSABLE)
def test_fused_with_activation_and_pooling(name: str, precision: str, dtype: type, canaries: Any) -> None:
    fused_with_activation_and_pooling(name, precision, dtype, [
        ((3, 3, 32, 32), (64, 3, 8, 8), ((4, 3), (4, 3))), ((2, 4, 11, 11), (9, 4, 8, 8), 0),
        ((5, 12, 12, 12), (5, 12, 4, 4), ((1, 2), (2, 1)))], canaries)


# ---------------------------------------------------------------- how much was seen
# algorithm -> the least number of cases in y, dx and dw; 0 where there is no kernel
LEAST: dict[str, tuple[int, int, int]] = {
    "direct": (2048, 2048, 2048), "tiled": (2300, 2300, 2300), "tiled_constant": (2000, 2000, 2300),
    "krizhevsky": (2300, 0, 2300), "unroll": (2048, 2048, 2048),
    "gemm_tiled": (2048, 2048, 2048), "gemm": (2048, 2048, 2048),
    "implicit_gemm": (2048, 2048, 2048), "whole_image": (1500, 700, 1500),
    "winograd": (80, 0, 80), "winograd_2x2": (30, 40, 80), "winograd_4x4": (30, 40, 80), "fft": (2048, 2048, 2048),
    "tensor_core": (100, 100, 100), "tensor_core_image": (30, 0, 30), "wgmma": (30, 0, 0), "few_channels": (20, 0, 20),
}


def least_of(name: str) -> dict[str, int]:
    """By direction. One that is new in the table has to do with 100 cases, or 30 on tensor cores."""
    row = conv.ALGORITHMS[name]
    few = 30 if row.tensor_cores else 100
    return dict(zip(DIRECTIONS, LEAST.get(name, [few if getattr(row, d) else 0 for d in DIRECTIONS]), strict=True))


def keep(folder: Path, chunk: int, found: dict[str, Any]) -> None:
    """Write it in one step: another process may be waiting for the file."""
    part = folder / f"{chunk}.part"
    part.write_text(json.dumps(found), encoding="utf-8")
    part.rename(folder / f"{chunk}.json")


def kept(folder: Path, chunks: int, seconds: float) -> list[dict[str, Any]]:
    """What all chunks have seen, those in other processes too; they have so long to come to their end."""
    end = time.monotonic() + seconds
    while len(files := list(folder.glob("*.json"))) < chunks and time.monotonic() < end:
        time.sleep(0.1)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def test_enough_was_seen(seen: Path, request: pytest.FixtureRequest,
                         record_property: Callable[[str, object], None]) -> None:
    """Refusals must not have emptied the chunks."""
    chosen = [item for item in request.session.items if getattr(item, "originalname", "") == "test_random_shapes"]
    if len(chosen) < CHUNKS:
        pytest.skip(f"only {len(chosen)} of the {CHUNKS} chunks were asked for")
    chunks = kept(seen, CHUNKS, 900)
    assert len(chunks) == CHUNKS, "some chunks did not end"
    assert len({tuple(shape) for chunk in chunks for shape in chunk["shapes"]}) >= 2000
    done, refused, worst = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for chunk in chunks:
        done.update({(name, direction): count for name, direction, count in chunk["done"]})
        refused.update({(name, direction): count for name, direction, count in chunk["refused"]})
        worst |= Counter({(name, direction): share for name, direction, share in chunk["worst"]})
    for name in FP32:
        for direction, least in least_of(name).items():
            case = name, direction
            record_property(" ".join(case), f"{done[case]} done, {refused[case]} refused, {worst[case]:.3f} of the "
                                            "tolerance used")
            print(f"{name:15} {direction:2} {done[case]:5} done {refused[case]:5} refused, used {worst[case]:.3f} of "
                  "the tolerance")
            assert done[case] >= least, f"{case}: {done[case]} cases of at least {least}, {refused[case]} refused"
    assert set(LEAST) <= set(conv.ALGORITHMS)


# ---------------------------------------------------------------- the 2009 report's own check (section 7.1)
@functools.cache
def report_layer() -> Problem:
    """Its layer: 128 images of 3x32x32 in [0, 1], 64 filters 8x8 at its nets' scale, gradients of that scale too."""
    rng = np.random.default_rng(2009)
    g = conv_geometry((128, 3, 32, 32), (64, 3, 8, 8), None, 1, ((4, 3), (4, 3)), "gemm")
    x = rng.random((128, 3, 32, 32), np.float32)
    w, gy = (np.float32(0.01) * rng.standard_normal(shape, np.float32) for shape in ((64, 3, 8, 8), (128, 64, 32, 32)))
    return solved(g, x, w, None, gy)


@pytest.mark.parametrize(("name", "direction"), [
    (name, direction) for name in FP32 for direction in DIRECTIONS if getattr(conv.ALGORITHMS[name], direction)])
def test_the_2009_reports_largest_difference(name: str, direction: str,
                                             record_property: Callable[[str, object], None]) -> None:
    """It "was something like 1e-5" there; dw sums 131,072 products, y 192."""
    problem = report_layer()
    g = problem.g._replace(algorithm=name)
    reason = conv.refusal(name, direction, g, np.dtype(np.float32))
    if reason:
        pytest.skip(f"{name} {direction}: {reason}")
    exact = problem.exact[direction]
    error = np.abs(getattr(conv.ALGORITHMS[name], direction)(*problem.on_cuda(direction), g).get() - exact)
    record_property("largest difference", float(error.max()))
    print(f"{name} {direction}: largest difference {error.max():.2e}, largest value {np.abs(exact).max():.2e}")
    assert (error <= product_bound("fp32", problem.length(direction), problem.squares[direction], exact)).all()
    assert error.max() < 1e-4 or direction != "y"


def test_the_2009_reports_difference_in_pooling(record_property: Callable[[str, object], None]) -> None:
    """Averages of 4x4 and, backward, supersampling, on what the logistic function gives."""
    rng = np.random.default_rng(2009)
    g = pool_geometry("avg_pool2d", (128, 64, 32, 32), 4, None, 0)
    x, gy = rng.random((128, 64, 32, 32), np.float32), rng.standard_normal((128, 64, 8, 8), np.float32)
    for what, call, given in (("averages", "avg_pool2d", x), ("supersampling", "avg_pool2d_grad_x", gy)):
        got = getattr(cuda, call)(cupy.asarray(given), g).get()
        largest = float(np.abs(got - getattr(cpu, call)(given.astype(float), g)).max())
        record_property(f"largest difference of {what}", largest)
        print(f"{what}: largest difference {largest:.2e}")
        assert largest < 1e-5
