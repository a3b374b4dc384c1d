"""The CUDA kernels without a GPU: emulated on the CPU (tests/emulator), by the checks of the tests for a GPU.

Shapes are small, and such that tiles have edges, blocks take several turns and sums several parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

import test_cuda_conv as conv_checks
import test_cuda_ops as checks
import test_fuse as fused_checks
import test_region as image_checks
from emulator import COMPILER, Emulator, cupy

from minidl import device
from minidl.ops import cpu, cuda
from minidl.ops.cuda.linear import gemm
from minidl.ops.geometry import conv_geometry

if COMPILER is None:
    pytest.skip("the emulator needs Linux and a C++ compiler, g++ or c++", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("fp32")
FLOAT, DOUBLE = np.float32, np.float64
ACTS = ("tanh", "sigmoid", "relu")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


RAN: set[str] = set()                      # names of this file's tests


@pytest.fixture(autouse=True)
def _noted(request: pytest.FixtureRequest) -> None:
    RAN.add(request.node.name)


@pytest.fixture
def emulated(compiler: Emulator) -> Iterator[Emulator]:
    with compiler.running() as running:
        yield running


# ---------------------------------------------------------------- elementwise, along an axis, pooling
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("act", ACTS)
def test_activations(act: str) -> None:
    checks.test_activations_of_special_values(act, FLOAT)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", [(5, 7), (3, 1500), (2, 33, 3)])
def test_softmax(shape: tuple[int, ...]) -> None:
    """A row by one thread, by some of a warp, and by a whole block."""
    rng = np.random.default_rng(0)
    x, gy = rng.standard_normal(shape), rng.standard_normal(shape)
    for name in ("softmax", "log_softmax"):
        def both_ways(k: Any, x: Any, gy: Any, name: str = name) -> Any:
            y = getattr(k, name)(x, 1)
            return y, getattr(k, f"{name}_grad_x")(gy, y, 1)
        for got, want in checks.both(both_ways, x, gy):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", [(), (3,), (5, 131)])
def test_dropout(shape: tuple[int, ...]) -> None:
    for got, want in checks.both(lambda k, x: k.dropout(x, 0.3, (7, 2**63)), np.ones(shape, FLOAT)):
        np.testing.assert_array_equal(got == 0, want == 0)
        np.testing.assert_allclose(got, want, rtol=2 * np.finfo(FLOAT).eps)


POOLINGS = [((3, 2, 12, 8), 4, 4, 0), ((2, 3, 28, 28), 2, 2, 0), ((2, 3, 9, 7), 3, 2, 1),
            ((1, 1, 15, 10), (3, 5), (3, 5), 0), ((1, 2, 5, 6), (2, 3), 1, ((1, 0), (0, 2)))]


@pytest.mark.parametrize("shape", POOLINGS, ids=str)
def test_pooling(shape: tuple[Any, ...], emulated: Emulator) -> None:
    checks.test_pooling_of_larger_images(*shape, FLOAT, emulated.memory)
    fused_checks.test_avg_pool2d_grad_act(*shape, "relu", FLOAT, emulated.memory)


@pytest.mark.usefixtures("emulated")
def test_gradient_of_indexing() -> None:
    """Some elements are taken twice."""
    index, shape = (np.array([3, 0, 3, 3]), slice(None, None, 2)), (5, 4)
    for got, want in checks.both(lambda k, gy: k.getitem_grad_x(gy, index, shape, False), np.ones((4, 2), FLOAT)):
        np.testing.assert_array_equal(got, want)


# ---------------------------------------------------------------- loss, update, batches
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("n", "classes"), [(1, 1), (5, 10), (130, 10), (3, 1500), (1100, 20)])
def test_loss(n: int, classes: int) -> None:
    checks.test_cross_entropy_of_any_size(n, classes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("n", "classes"), [(37, 10), (1030, 3)])
def test_loss_with_its_gradient(n: int, classes: int, emulated: Emulator) -> None:
    for reduction in ("mean", "none"):
        fused_checks.test_cross_entropy_with_grad(n, classes, reduction, FLOAT, emulated.memory)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("count", [1, 66])
def test_sgd(count: int) -> None:
    """One launch, and two."""
    checks.test_sgd_is_the_cpus(count if count == 1 else 201, 0.9, 1e-2, True, FLOAT)
    checks.test_sgd_changes_only_what_it_was_given()


@pytest.mark.parametrize("padding", [0, 2])
def test_gather(padding: int, emulated: Emulator) -> None:
    checks.test_gather_is_the_cpus((20, 3, 8, 9), 7, padding, FLOAT, emulated.memory)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("stored", "batch", "padding"), [
    ((23, 1, 12, 9), 8, 2), ((7, 3, 4, 5), 7, 0), ((3, 2, 1, 1), 1, 1)])
def test_next_batch(stored: tuple[int, ...], batch: int, padding: int) -> None:
    """Two epochs; beyond the end the pixels are NaN."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, stored).astype(np.uint8), rng.integers(0, 10, stored[0])
    affine = tuple(rng.uniform(0.001, 0.1, stored[1])), tuple(rng.standard_normal(stored[1]))
    for _ in range(2):
        kept = [images, labels, rng.permutation(stored[0]), np.zeros(1, np.int64)]
        there = [cupy.asarray(array) for array in kept]
        for taken, first in enumerate(range(0, stored[0], batch)):
            kept[3][0], there[3] = taken, cupy.asarray(np.array([taken]))
            n = min(batch, stored[0] - first)
            how = batch, n, *affine, padding, np.dtype(FLOAT)
            for got, want in zip(cuda.next_batch(*there, *how), cpu.next_batch(*kept, *how), strict=True):
                np.testing.assert_array_equal(got.get(), want, strict=True)
        there[3] = cupy.asarray(np.array([taken + 1]))
        pixels, picked = cuda.next_batch(*there, batch, 3, *affine, padding, np.dtype(FLOAT))
        assert np.isnan(pixels).all()
        assert (picked == -1).all()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("n", "classes"), [(1, 1), (130, 3), (1500, 20), (0, 4)])
def test_metrics(n: int, classes: int) -> None:
    """Also of equal logits, and of those that are not finite."""
    rng = np.random.default_rng(0)
    labels, loss = rng.integers(0, classes, n), np.asarray(1.25, FLOAT)
    for change in (lambda x: x, np.round, lambda x: np.where(x > 1, np.nan, np.where(x < -1, np.inf, x))):
        x = change(rng.standard_normal((n, classes)).astype(FLOAT)).astype(FLOAT)
        found, want = cupy.asarray(np.array([1.5, 3.0])), np.array([1.5, 3.0])
        for _ in range(2):
            cuda.update_metrics(found, cupy.asarray(loss), cupy.asarray(x), cupy.asarray(labels))
            cpu.update_metrics(want, loss, x, labels)
        np.testing.assert_array_equal(found, want)


@pytest.mark.usefixtures("emulated")
def test_metrics_count_beyond_what_a_float_counts() -> None:
    n, found = 2**24 + 3, cupy.asarray(np.zeros(2))
    cuda.update_metrics(found, cupy.asarray(np.asarray(0, FLOAT)), cupy.asarray(np.zeros((n, 1), FLOAT)),
                        cupy.asarray(np.zeros(n, np.int64)))
    assert found.tolist() == [0, n]


# ---------------------------------------------------------------- products
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
@pytest.mark.parametrize("sizes", [(33, 65, 1), (7, 130, 19), (2, 700, 3), (0, 5, 4), (5, 0, 3)])
def test_linear(sizes: tuple[int, int, int], dtype: type, emulated: Emulator) -> None:
    checks.test_linear_of_any_size(sizes, dtype, emulated.memory)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("act", ACTS)
def test_linear_with_an_activation(act: str) -> None:
    """As one after the other."""
    rng = np.random.default_rng(0)
    x, w, b, gy = (cupy.asarray(rng.standard_normal(s, FLOAT)) for s in ((19, 70), (21, 70), (21,), (19, 21)))
    y = getattr(cuda, act)(cupy.asarray(rng.standard_normal((19, 70), FLOAT)))
    fused_checks.close(cuda.linear_act(x, w, b, act), getattr(cuda, act)(cuda.linear(x, w, b)), FLOAT)
    fused_checks.close(cuda.linear_grad_act(gy, w, y, act),
                       getattr(cuda, f"{act}_grad_x")(cuda.linear_grad_x(gy, w), y), FLOAT)


@pytest.mark.parametrize("transposed", [(False, True), (False, False), (True, False)])
@pytest.mark.parametrize(("rows", "cols", "depth"), [(17, 130, 37), (70, 5, 300)])
def test_products_in_register_tiles(rows: int, cols: int, depth: int, transposed: tuple[bool, bool],
                                    emulated: Emulator) -> None:
    """Which launchers choose for larger ones; also split along the depth."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((1, rows, depth), FLOAT), rng.standard_normal((1, depth, cols), FLOAT)
    stored = [cupy.asarray(np.ascontiguousarray(x.swapaxes(1, 2) if t else x)) for x, t in zip((a, b), transposed)]
    out = gemm(*stored, cupy.zeros((1, rows, cols), FLOAT), transpose_a=transposed[0], transpose_b=transposed[1],
               tiled=False)
    checks.assert_product(out.get(), "fp32", depth, np.matmul, [a, b])


# ---------------------------------------------------------------- convolutions
# x, w, stride, padding; and which algorithms: few of them, because each compiles kernels of its own for a shape
CONVOLUTIONS: list[tuple[Any, Any, Any, Any, list[str]]] = [
    ((5, 2, 9, 11), (9, 2, 5, 5), 1, 0, ["whole_image", "implicit_gemm", "direct", "tiled", "krizhevsky"]),
    ((3, 3, 12, 12), (6, 3, 3, 5), 1, ((1, 2), (4, 0)), ["whole_image", "implicit_gemm"]),
    ((2, 2, 11, 9), (3, 2, 3, 3), 2, 1, ["implicit_gemm", "direct", "krizhevsky", "gemm"]),
    ((1, 32, 4, 4), (3, 32, 3, 3), 1, 1, ["implicit_gemm"]),
    ((1, 45, 5, 12), (13, 45, 2, 6), 1, 0, ["winograd"]),
    ((9, 3, 16, 16), (10, 3, 8, 8), 1, ((4, 3), (4, 3)), ["winograd", "whole_image"]),
    ((3, 5, 6, 7), (9, 5, 1, 1), 1, 0, [])]


def convolve(x: Any, w: Any, stride: Any, padding: Any, names: list[str], emulated: Emulator,
             dtype: type = FLOAT) -> None:
    """All directions that an algorithm has for a shape; each has y."""
    g, before = conv_geometry(x, w, None, stride, padding, "gemm"), conv_checks.DONE.copy()
    conv_checks.assert_none(list(conv_checks.failures_of(conv_checks.drawn(g, 1, dtype), names, emulated.memory)))
    assert {name for name, direction in conv_checks.DONE - before if direction == "y"} == set(names)


@pytest.mark.parametrize("shape", [shape for shape in CONVOLUTIONS if shape[-1]], ids=str)
def test_convolution(shape: tuple[Any, ...], emulated: Emulator) -> None:
    convolve(*shape, emulated)


@pytest.mark.parametrize("name", cuda.conv.ALGORITHMS)
def test_each_algorithm_of_the_table(name: str, emulated: Emulator) -> None:
    """In each direction that it has, on the first shape above that it can do, in a precision that it computes in."""
    row, dtype = cuda.conv.ALGORITHMS[name], np.dtype(FLOAT)
    device.set_precision("3xtf32" if row.tensor_cores else "fp32")
    for direction in conv_checks.DIRECTIONS:
        if getattr(row, direction) is None:
            continue
        shapes = (conv_geometry(*shape[:2], None, *shape[2:4], "gemm") for shape in CONVOLUTIONS)
        g = next((g for g in shapes if row.refuses(direction, g, dtype) is None), None)
        assert g, f"{name} {direction}: it can do none of CONVOLUTIONS; add a shape that it can do"
        before, problem = conv_checks.DONE[name, direction], conv_checks.drawn(g, 1, FLOAT)
        conv_checks.assert_none(list(conv_checks.failures_of(problem, [name], emulated.memory, (direction,))))
        assert conv_checks.DONE[name, direction] == before + 1


@pytest.mark.parametrize("name", [name for name, row in cuda.conv.ALGORITHMS.items() if None in (row.dx, row.dw)])
def test_a_direction_without_a_kernel_is_left_to_auto(name: str, emulated: Emulator,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Which measures nothing here."""
    monkeypatch.setattr(cuda.conv, "fastest", lambda direction, g, dtype, arguments, able: "implicit_gemm")
    conv_checks.test_a_direction_without_a_kernel_is_left_to_auto(name, emulated.memory)


def test_convolution_of_doubles(emulated: Emulator) -> None:
    convolve(*CONVOLUTIONS[0][:4], ["whole_image", "implicit_gemm"], emulated, DOUBLE)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_convolution_on_tensor_cores(precision: str, emulated: Emulator) -> None:
    device.set_precision(precision)
    convolve(*CONVOLUTIONS[1][:4], ["tensor_core", "tensor_core_image", "wgmma"], emulated)


@pytest.mark.parametrize(("name", "precision"), [
    (name, "tf32" if row.tensor_cores else "fp32") for name, row in cuda.conv.ALGORITHMS.items() if row.y_act_pool])
def test_convolution_with_activation_and_pooling(name: str, precision: str, emulated: Emulator,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_checks, "FUSABLE", [((3, 2, 12, 16), (5, 2, 5, 5), 0), ((2, 3, 15, 15), (9, 3, 8, 8), 0),
                                                 ((1, 3, 9, 9), (3, 3, 8, 8), 1)])
    conv_checks.test_fused_with_activation_and_pooling(name, precision, FLOAT, emulated.memory)


FUSED = [((9, 3, 16, 16), (10, 3, 8, 8), ((4, 3), (4, 3)), 4), ((2, 1, 12, 12), (7, 1, 5, 5), 0, 4)]


@pytest.mark.parametrize("shape", FUSED, ids=str)
def test_first_layers_gradients(shape: tuple[Any, ...], emulated: Emulator) -> None:
    fused_checks.test_conv2d_act_pool_grad_wb(*shape, "tanh", FLOAT, emulated.memory)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("name", ["tensor_core_image", "wgmma"])
def test_whole_images_on_tensor_cores(name: str, precision: str, emulated: Emulator,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_checks, "FUSED", [
        ((2, 6, 14, 14), 34, 5, 0, 2), ((3, 2, 9, 16), 37, (3, 4), ((1, 0), (2, 3)), 2)])
    conv_checks.test_whole_images_on_tensor_cores_fused(name, precision, "tanh", emulated.memory)


# ---------------------------------------------------------------- generated kernels, and all
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", image_checks.NETS)
def test_regions(name: str) -> None:
    """More images than blocks, too."""
    for n in (1, 6):
        image_checks.test_gpu_outputs_are_those_of_the_steps(name, n)


# ---------------------------------------------------------------- the emulator's own eyes
BARRIER = "__syncthreads();"
Check = Callable[[Emulator], None]


def convolution(at: int, *names: str) -> Check:
    return lambda emulated: convolve(*CONVOLUTIONS[at][:4], list(names), emulated)


def region_step(name: str, n: int = 6) -> Check:
    return lambda emulated: image_checks.test_gpu_outputs_are_those_of_the_steps(name, n)


def linear(emulated: Emulator) -> None:
    test_linear((7, 130, 19), FLOAT, emulated)


def pooling(at: int) -> Check:
    return lambda emulated: test_pooling(POOLINGS[at], emulated)


# What is wrong -> (a piece of some source, what stands there instead, a check that runs it, what the failure says)
MUTATIONS: dict[str, tuple[str, str, Check, str]] = {
    "packs in shared memory at odd offsets": (
        "ceil_div(groups * filters_size, 4) * 4", "groups * filters_size", convolution(4, "winograd"), "no multiple"),
    "packs in global memory at odd offsets": (
        "p.w_packed + r], true", "p.w_packed + r + 1], true", convolution(0, "implicit_gemm"), "no multiple"),
    "no barrier between loading and reading": (
        f"await_copies<0>();\n        {BARRIER}\n        int items", "await_copies<0>();\n        int items",
        convolution(0, "whole_image"), "tolerance"),
    "no barrier between reading and loading again": (
        f"bs[k][threadIdx.x % TILE];\n        {BARRIER}", "bs[k][threadIdx.x % TILE];", linear, "tolerance"),
    "no barrier between uses of one array": (
        f"    {BARRIER}  // whoever reads the values of an earlier call is done", "",
        lambda emulated: test_softmax((3, 1500)), "[Nn]ot equal"),
    "no barrier between steps of an image": (
        f"if (TEAMS == 1) return;\n    {BARRIER}", "if (TEAMS == 1) return;", region_step("lenet5"), "[Nn]ot equal"),
    "copies that nobody awaits": (
        f"await_copies<0>();\n        {BARRIER}\n        int items", f"{BARRIER}\n        int items",
        convolution(0, "whole_image"), "tolerance"),
    "one group of copies too few awaited": (
        f"await_copies<0>();\n        {BARRIER}  //", f"await_copies<1>();\n        {BARRIER}  //",
        convolution(0, "implicit_gemm"), "tolerance"),
    "a barrier that some threads pass by": (
        f"{BARRIER}\n    for (int i = threadIdx.x; i < live * ow", f"if (threadIdx.x < 99) {BARRIER}\n"
        "    for (int i = threadIdx.x; i < live * ow", pooling(0), "some threads of the block have ended"),
    "an exchange without half of a warp": (
        "REAL other = __shfl_xor_sync(~0u", "if (threadIdx.x % 2) break;\n        REAL other = __shfl_xor_sync(~0u",
        lambda emulated: test_softmax((5, 7)), "for ever"),
    "an element that nobody set to zero": (
        "fetched[i * SLOT + SLOT - 1] = 0;", "", lambda emulated: test_first_layers_gradients(FUSED[0], emulated),
        "winograd"),
    "shared memory that nobody cleared": (
        "*(Pack<4>*)&memory[i] = Pack<4>();", ";", region_step("padded, odd sizes", 1), "[Nn]ot equal"),
    "shared memory behind its end": (
        "columns[s % KW * pitch", "columns[(s % KW + 1) * pitch", pooling(0), "behind its end"),
    "results behind their end": (
        "if (row >= p.rows || column >= p.cols) return;", "", linear, "behind an array"),
    "a filter row too few": ("r <= KH", "r < KH", region_step("lenet5", 1), "[Nn]ot equal"),
    "a sum without its last part": (
        "s < p.splits;", "s < p.splits - 1;",
        lambda emulated: test_products_in_register_tiles(70, 5, 300, (False, False), emulated), "tolerance"),
    "a wrong stride": ("(at.high * p.h + r) * p.w + s", "(at.high * p.h + r) * p.pw + s", convolution(0, "whole_image"),
                       "tolerance"),
    "a window beyond the image": ("imin(g.kw, g.w - s)", "g.kw", pooling(2), "[Nn]ot equal"),
    "an update of each second element": (
        "k < ELEMENTS_PER_THREAD", "k < ELEMENTS_PER_THREAD / 2", lambda emulated: test_sgd(1), "[Nn]ot equal"),
    "a turn that nobody gives": (
        "if (group == 1) give_turn(0);", "", lambda emulated: tensor_cores(emulated, "wgmma"), "for ever"),
    "a matrix's halves too near each other": (
        "(unsigned long long)COLUMNS << 16", "(unsigned long long)(COLUMNS / 2) << 16",
        lambda emulated: tensor_cores(emulated, "wgmma"), "tolerance"),
    "an operand that is not rounded to tf32": (
        "part ? lost_of(x, tf32(x)) : tf32(x)", "__float_as_uint(x)", lambda emulated: tensor_cores(emulated),
        "not rounded to tf32"),
}


def tensor_cores(emulated: Emulator, name: str = "tensor_core_image") -> None:
    device.set_precision("tf32")
    convolution(1, name)(emulated)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("what", MUTATIONS)
def test_a_mutation_is_caught(what: str, compiler: Emulator) -> None:
    old, new, check, message = MUTATIONS[what]
    with compiler.running(old, new) as emulated, pytest.raises(AssertionError, match=message):
        check(emulated)


# ---------------------------------------------------------------- how much was seen
def test_every_kernel_was_emulated(compiler: Emulator, request: pytest.FixtureRequest) -> None:
    from test_cuda_compile import FILES, kernels

    chosen = [item for item in request.session.items if item.path == request.node.path]
    all_tests = {name for name in globals() if name.startswith("test_")}
    if all_tests - {getattr(item, "originalname", "") for item in chosen} or {item.name for item in chosen} - RAN:
        pytest.skip("only some of this file's tests ran in this process")
    assert {name for file in FILES for name in kernels(file)} - compiler.launched == set()
