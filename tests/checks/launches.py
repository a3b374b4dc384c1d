"""The launches that show every CUDA kernel at work, each checked: one table for two.

tests/cuda/test_emulated.py runs it without a GPU, and sees that every kernel of every .cu file is launched;
tests/launch_all.py runs it on a device, under compute-sanitizer. Shapes are small, and such that tiles have edges,
blocks take several turns and sums several parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from cases import CASES
from tiers import tiers

import minidl
from checks import attention, convolutions, layouts, nhwc, nhwc_conv, nhwc_grad_w, primitives, regions
from checks.fused import STEPS, normal
from minidl import Tensor, ops, optim, zoo
from minidl.core import device
from minidl.data import Augment
from minidl.ops import ACTIVATIONS
from minidl.ops.common.curves import LOSSES
from minidl.ops.common.geometry import conv_geometry
from minidl.ops.common.geometry import recurrent as recurrences
from minidl.ops.common.geometry.nhwc import FORMS, STORES
from minidl.ops.common.primitives import ALL
from minidl.ops.layers.norm import batch_geometry, group_geometry, layer_geometry

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops import cpu, cuda  # noqa: E402
from minidl.ops.cuda import conv, launch  # noqa: E402
from minidl.ops.cuda.conv.product import winograd_tiles  # noqa: E402

FLOAT, DOUBLE = np.float32, np.float64
UNSEEN = SimpleNamespace(check=lambda: None)       # the emulator, or compute-sanitizer, watches memory itself


class Launch(NamedTuple):
    """A check that launches kernels of a file, with these arguments, in a precision.

    file: below minidl/ops/cuda; or what the paths of several start with.
    """

    file: str
    check: Callable[..., None]
    arguments: tuple[Any, ...]
    precision: str = "fp32"
    emulated: bool = True                  # False: on a device alone, because it is slow or takes a graph
    tier: str = "slow"                     # of the emulated test: the slow ones together launch every kernel

    def __str__(self) -> str:
        words = [self.check.__name__, *map(str, self.arguments), *[self.precision][:self.precision != "fp32"]]
        return " ".join(words).replace("<class 'numpy.", "").replace("'>", "")

    def run(self) -> None:
        with precision_of(self.precision):
            self.check(*self.arguments)


@contextmanager
def precision_of(name: str) -> Iterator[None]:
    device.set_precision(name)
    try:
        yield
    finally:
        device.set_precision("fp32")


def each(file: str, check: Callable[..., None], *arguments: tuple[Any, ...], slow: int = 1,
         **options: Any) -> list[Launch]:
    """A launch for each of the arguments; the emulated tests of all but `slow` of them are deep."""
    return [Launch(file, check, given, tier=tier, **options)
            for given, tier in zip(arguments, tiers(len(arguments), slow=slow), strict=True)]


def on_device(file: str, check: Callable[..., None], *arguments: tuple[Any, ...], **options: Any) -> list[Launch]:
    return each(file, check, *arguments, **options, emulated=False)


def with_dtype(rows: Iterable[tuple[Any, ...]], dtype: type) -> list[tuple[Any, ...]]:
    return [(*row, dtype) for row in rows]


# ---------------------------------------------------------------- images in NHWC
# By files, forms with kernels that the emulator runs: those of convolutions have families of their own
OWN_FORMS = {
    "nhwc/": ["conv2d_grad_b", *(name for name in FORMS if "norm" in name and not name.startswith("conv2d"))],
    "layers/pool/": [name for name in FORMS if "pool2d" in name],
    "layers/activation/activation.cu": ["relu", "gelu", "relu_grad_x", "gelu_grad_x", "add", "add_act", "add_grad_act"]}


def nhwc_form(name: str, store: str, at: int, precision: str = "tf32") -> None:
    nhwc.form_agrees(name, nhwc.SHAPES[at], at, store, "cuda", precision)


def nhwc_joined(store: str, at: int) -> None:
    nhwc.joined_agree(nhwc.SHAPES[at], at, store, "cuda")


def rows_normalised(rows: int, channels: int, store: str) -> None:
    nhwc.layer_norm_agrees(rows, channels, store, "cuda")


def shared_memory_is_filled() -> None:
    """What it leaves is seen on a device alone: tests/cuda/test_poison.py."""
    launch.kernel("launch/poison.cu", "poison")((2,), (64,), 512, shared=2048)


def given_arrays_are_copied(dtype: type, *sizes: int) -> None:
    """To arrays of a graph and back, for more replays than the table has rows; here it lies on the device."""
    rows, blocks, copies = 3, 2, range(len(sizes))
    mine, turn_of_row = [cupy.zeros(size, dtype) for size in sizes], cupy.zeros(1, np.int32)
    given = [[cupy.asarray((np.arange(size) % 90 + row).astype(dtype)) for size in sizes] for row in range(rows)]
    back = [[cupy.zeros(size, dtype) for size in sizes] for _ in range(rows)]
    table = cupy.asarray(np.array([[array.data.ptr for array in (*given[row], *back[row])] for row in range(rows)],
                                  np.uint64))
    own = cupy.asarray(np.array([[array.data.ptr, array.nbytes] for array in mine], np.uint64))
    row = cupy.zeros(2 * len(sizes), np.uint64)
    read, copy = (launch.kernel("launch/addresses.cu", name) for name in ("read_given", "copy_given"))
    for turn in range(5):
        read((1,), (64,), table, row, turn_of_row, rows, row.size)
        for way in range(2):
            copy((blocks, len(sizes)), (64,), row, own, way * len(sizes), way)
        for i in copies:
            np.testing.assert_array_equal(back[turn % rows][i].get(), given[turn % rows][i].get())
            back[turn % rows][i][...] = 0


# ---------------------------------------------------------------- convolutions
# x, w, stride, padding; and which algorithms the emulator runs: few, because each compiles kernels for a shape
CONVOLUTIONS: list[tuple[Any, Any, Any, Any, tuple[str, ...]]] = [
    ((5, 2, 9, 11), (9, 2, 5, 5), 1, 0, ("whole_image", "implicit_gemm", "direct", "tiled", "krizhevsky")),
    ((3, 3, 12, 12), (6, 3, 3, 5), 1, ((1, 2), (4, 0)), ("whole_image", "implicit_gemm")),
    ((2, 2, 11, 9), (3, 2, 3, 3), 2, 1, ("implicit_gemm", "direct", "krizhevsky", "gemm", "fft")),
    ((1, 32, 4, 4), (3, 32, 3, 3), 1, 1, ("implicit_gemm",)),
    ((1, 45, 5, 12), (13, 45, 2, 6), 1, 0, ("winograd",)),
    ((9, 3, 16, 16), (10, 3, 8, 8), 1, ((4, 3), (4, 3)), ("winograd", "whole_image")),
    ((3, 5, 6, 7), (9, 5, 1, 1), 1, 0, ()),
    ((5, 22, 7, 8), (39, 22, 3, 3), 1, 1, ("winograd_2x2", "winograd_4x4"))]
MORE_CONVOLUTIONS: list[tuple[Any, ...]] = [               # one image, many maps, a window as large as the image, none
    ((2, 3, 9, 20), (17, 3, 3, 2), (2, 1), ((1, 0), (0, 1))), ((1, 3, 32, 32), (16, 3, 8, 8), 1, ((4, 3), (4, 3))),
    ((33, 1, 6, 6), (2, 1, 6, 6), 1, 0), ((2, 2, 5, 5), (3, 2, 1, 1), 2, 0), ((0, 2, 5, 5), (3, 2, 3, 3), 1, 1)]
SPLITTING = [((64, 1, 20, 20), (2, 1, 3, 3), 1, 0), ((2, 300, 3, 3), (4, 300, 3, 3), 1, 0),
             ((2, 5, 9, 8), (300, 5, 4, 5), (2, 3), 1),
             ((20, 30, 19, 18), (40, 30, 3, 3), 1, 2)]
ON_TENSOR_CORES = tuple(convolutions.TENSOR_CORES)
# Tiles of 16 and one that is the image; filters wider than a tile; padding wider than filters; a stride; one channel
BY_FFT: list[tuple[Any, ...]] = [
    ((2, 2, 40, 18), (3, 2, 3, 5), 1, ((1, 2), (0, 1))), ((2, 3, 9, 30), (2, 3, 5, 20), 1, 2),
    ((3, 2, 5, 4), (2, 2, 2, 3), 1, ((4, 3), (5, 6))), ((2, 2, 19, 21), (4, 2, 4, 3), (3, 2), 1),
    ((5, 1, 12, 12), (1, 1, 5, 5), 1, 0), ((3, 2, 7, 6), (5, 2, 7, 6), (7, 5), 0)]
# More images than blocks, more filters than a product has rows, odd widths, edges within tiles, too many taps for dw
FEW_CHANNELS: list[tuple[Any, ...]] = [
    ((9, 3, 6, 40), (10, 3, 6, 3), 2), ((5, 1, 9, 11), (70, 1, 3, 4), ((1, 2), (3, 0))),
    ((2, 4, 17, 18), (130, 4, 2, 7), 1), ((2, 2, 12, 12), (5, 2, 11, 9), 4), ((2, 2, 5, 5), (3, 2, 1, 1), 0)]
FUSED = [((9, 3, 16, 16), (10, 3, 8, 8), ((4, 3), (4, 3)), 4), ((2, 1, 12, 12), (7, 1, 5, 5), 0, 4)]
MORE_FUSED: list[tuple[Any, ...]] = [
    *FUSED, ((128, 3, 32, 32), (64, 3, 8, 8), ((4, 3), (4, 3)), 4), ((64, 1, 32, 32), (6, 1, 5, 5), 0, 2),
    ((3, 2, 24, 18), (5, 2, 8, 8), ((7, 6), (0, 3)), 2), ((2, 3, 11, 15), (9, 3, 8, 8), 0, 4),
    ((5, 1, 13, 11), (3, 1, 2, 4), 1, 2), ((4, 2, 12, 12), (5, 2, 4, 4), 0, 3), ((3, 20, 12, 12), (5, 20, 5, 5), 0, 2),
    ((0, 2, 12, 12), (5, 2, 5, 5), 0, 2)]
FUSED_ON_TENSOR_CORES = [((2, 6, 14, 14), 34, 5, 0, 2), ((3, 2, 9, 16), 37, (3, 4), ((1, 0), (2, 3)), 2)]


def convolve(x: Any, w: Any, stride: Any, padding: Any, names: tuple[str, ...], dtype: type = FLOAT) -> None:
    """All directions that each of these algorithms has for a shape, where the device has what it needs."""
    problem = convolutions.drawn(conv_geometry(x, w, None, stride, padding, "gemm"), 1, dtype)
    convolutions.assert_none(list(convolutions.failures_of(problem, list(names), UNSEEN)))


def convolve_by_all(x: Any, w: Any, stride: Any, padding: Any, dtype: type) -> None:
    """Every algorithm that takes the shape and computes in the current precision, with a bias and without."""
    names = conv.ALGORITHMS if device.precision() == "fp32" else ("gemm", *ON_TENSOR_CORES)
    for seed in (1, 2):
        problem = convolutions.drawn(conv_geometry(x, w, None, stride, padding, "gemm"), seed, dtype)
        convolutions.assert_none(list(convolutions.failures_of(problem, list(names), UNSEEN)))


def the_same_in_all_precisions(x: Any, w: Any, stride: Any, padding: Any, names: tuple[str, ...]) -> None:
    """What computes in fp32 gives the same bits whatever the precision is; products too large for `gemm_tiled`."""
    problem = convolutions.drawn(conv_geometry(x, w, None, stride, padding, "gemm"), 1, FLOAT)
    for name, direction in itertools.product(names, convolutions.DIRECTIONS):
        found = set()
        for precision in ("fp32", "tf32", "3xtf32", "bf16"):
            with precision_of(precision):
                assert conv.refusal(name, direction, problem.g, np.dtype(FLOAT)) is None
                run = getattr(conv.ALGORITHMS[name], direction)
                found.add(run(*problem.on_cuda(direction), problem.g).get().tobytes())
        assert len(found) == 1, f"{name} {direction}"


def dilated(at: int) -> None:
    """One of the cases with dilation, by its algorithm, as on the CPU."""
    case = [case for case in CASES["conv2d"] if "dilation" in case.options
            and case.options["algorithm"] in ("direct", "unroll", "gemm")][at]
    for got, want in zip(primitives.computed(case, cupy.asarray), primitives.computed(case, np.asarray), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=primitives.bound(want, case.arrays(), FLOAT), strict=True)


def bias_gradient(x: Any, w: Any, stride: Any, padding: Any, dtype: type) -> None:
    g = conv_geometry(x, w, None, stride, padding, "gemm")
    gy = normal(g.n, g.m, g.oh, g.ow, dtype=dtype)
    got, want = cuda.conv2d_grad_b(cupy.asarray(gy)).get(), cpu.conv2d_grad_b(gy.astype(float))
    most = primitives.product_bound("fp32", g.n * g.oh * g.ow, cpu.conv2d_grad_b(gy.astype(float) ** 2), want, dtype)
    assert (np.abs(got - want) <= most).all()


def convolve_in_pieces(x: Any, w: Any, stride: Any, padding: Any, dtype: type) -> None:
    """Few results of many products each: these sums are done in parts, and with little workspace in pieces.

    Not by fft: 3,000 pieces, in which it launches one kernel, which BY_FFT shows too.
    """
    limit = device.workspace_limit()
    device.set_workspace_limit(2**20)
    try:
        convolve(x, w, stride, padding, tuple(name for name in conv.ALGORITHMS if name != "fft"), dtype)
    finally:
        device.set_workspace_limit(limit)


def in_shares_and_runs(x: Any, w: Any, names: tuple[str, ...], dtype: type) -> None:
    """With little workspace images go through in shares, the last one smaller; on many multiprocessors, and on few, a
    run ends within a tile, a tile has three parts, and a run several tiles."""
    limit = device.workspace_limit()
    multiply = mock.Mock(side_effect=winograd_tiles._multiply)
    for multiprocessors, mib in ((132, 5), (7, 4)):
        with mock.patch.object(launch, "multiprocessors", return_value=multiprocessors), \
                mock.patch.object(winograd_tiles, "_multiply", multiply):
            winograd_tiles._runs.cache_clear()
            device.set_workspace_limit(mib * 2**18 * np.dtype(dtype).itemsize)
            try:
                convolve(x, w, 1, 1, names, dtype)
            finally:
                device.set_workspace_limit(limit)
                winograd_tiles._runs.cache_clear()
    seen = [call.args[3] for call in multiply.call_args_list]
    assert any(runs.slabs - 1 > runs.each for runs in seen), "no tile has three parts"
    assert any(runs.each > runs.slabs and runs.each % runs.slabs for runs in seen), "no run has several tiles"
    assert any(runs.cols != seen[0].cols and runs.across == seen[0].across for runs in seen), "all shares are equal"
    assert any(len(call.args) > 4 and call.args[4] for call in multiply.call_args_list), "no share is added to another"


def each_direction(name: str) -> None:
    shapes = [conv_geometry(*row[:2], None, *row[2:4], "gemm") for row in CONVOLUTIONS]
    convolutions.each_direction(name, shapes, UNSEEN)


def fused_with_activation_and_pooling(name: str, dtype: type, *shapes: Any) -> None:
    convolutions.fused_with_activation_and_pooling(name, device.precision(), dtype, list(shapes), UNSEEN)


def krizhevskys_variants(x: Any, w: Any, stride: Any, padding: Any, dtype: type) -> None:
    convolutions.variants_of_krizhevskys(conv_geometry(x, w, None, stride, padding, "gemm"), 1, dtype, UNSEEN)


def krizhevsky_without_loads(x: Any, w: Any, stride: Any, padding: Any, dtype: type) -> None:
    convolutions.loads_left_out(conv_geometry(x, w, None, stride, padding, "gemm"), dtype, UNSEEN)


def whole_images_on_tensor_cores(name: str, precision: str, act: str = "tanh",
                                 shapes: Any = FUSED_ON_TENSOR_CORES) -> None:
    convolutions.whole_images_on_tensor_cores(name, precision, act, shapes, UNSEEN)


def in_layouts(name: str, dtype: type, random: int) -> None:
    layouts.agree(name, dtype, random, UNSEEN)


# ---------------------------------------------------------------- ops and compiled steps
def op(name: str, dtype: type) -> None:
    """Some of its cases, forward and backward."""
    for case in CASES[name][::-(-len(CASES[name]) // 8)]:
        y = case.call(*(Tensor(x.astype(dtype), device="cuda", requires_grad=case.differentiable)
                        for x in case.arrays()), **case.options)
        if case.differentiable:
            y.backward(Tensor(np.ones(y.shape, dtype), device="cuda"))


def step(name: str, dtype: type) -> None:
    """With a fused primitive; replayed as a graph from the third run on."""
    _, run, given = STEPS[name]
    tensors = [Tensor(a.astype(dtype) if a.dtype.kind == "f" else a, device="cuda") for a in given()]
    tensors[0].requires_grad = True
    compiled = minidl.compile(run)
    for _ in range(3):
        compiled(*tensors)


def captured_updates(name: str, dtype: type) -> None:
    """A compiled step with clipped gradients, an optimizer and averaged weights, replayed as a graph."""
    net = zoo.build("mlp", in_channels=1, hidden=20).to("cuda", dtype)
    optimizer = getattr(optim, name)([p for p in net.parameters() if p.ndim > 1])
    ema = optim.EMA(net)

    @minidl.compile
    def step(x: Tensor, labels: Tensor) -> Tensor:
        net.zero_grad()
        ops.cross_entropy(net(x), labels).backward()
        norm = optim.clip_grad_norm(net.parameters(), 0.1)
        optimizer.step()
        ema.update()
        return norm
    x = Tensor(cupy.asarray(normal(3, 1, 32, 32, dtype=dtype)))
    labels = Tensor(cupy.asarray(np.array([1, 0, 9])))
    assert all(np.isfinite(step(x, labels).item()) for _ in range(4))
    assert not any("call by call" in note for note in step.program.notes)


def captured(name: str, channels: int, dtype: type) -> None:
    """A compiled step of a net, replayed as a graph."""
    net = zoo.build(name).to("cuda", dtype)
    sgd = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    @minidl.compile
    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        return loss
    x = Tensor(cupy.asarray(normal(3, channels, 32, 32, dtype=dtype)))
    labels = Tensor(cupy.asarray(np.array([1, 0, 9])))
    assert all(np.isfinite(step(x, labels).item()) for _ in range(3))


# ---------------------------------------------------------------- the table
POOLINGS: list[tuple[Any, ...]] = [        # x, window, stride, padding
    ((3, 2, 12, 8), 4, 4, 0), ((2, 3, 28, 28), 2, 2, 0), ((2, 3, 9, 7), 3, 2, 1),
    ((1, 1, 15, 10), (3, 5), (3, 5), 0), ((1, 2, 5, 6), (2, 3), 1, ((1, 0), (0, 2))),
    ((1, 2, 70, 62), (70, 62), None, 0)]
MORE_POOLINGS: list[tuple[Any, ...]] = [
    *POOLINGS, ((0, 2, 4, 4), 2, None, 0), ((3, 2, 1, 66_000), (1, 66_000), None, 0), ((128, 64, 32, 32), 4, 4, 0),
    ((127, 6, 28, 28), 2, 2, 0), ((3, 16, 10, 10), 2, 2, 0), ((2, 3, 33, 31), 3, 2, 1), ((1, 1, 1, 1), 1, None, 0),
    ((5, 3, 9, 35), (3, 5), None, 0), ((5, 1, 1, 300), (1, 7), (1, 2), (0, 3)), ((0, 2, 5, 5), 3, 1, 0),
    ((1, 70, 65, 3), (5, 2), (2, 1), ((4, 0), (0, 1))), ((5, 1, 7, 300), (2, 7), (1, 2), (0, 3)),
    ((3, 2, 11, 9), 2, None, 0), ((2, 2, 40, 40), 40, 40, 0), ((70_000, 1, 2, 2), 2, 2, 0)]
# Windows of a block, of some threads, of a thread, more than elements, and of several blocks
UNEVEN: list[tuple[Any, ...]] = [
    ((1, 2, 3, 5100), (2, 2), FLOAT), ((2, 3, 7, 5), (3, 4), DOUBLE), ((1, 1, 4, 4), (7, 7), FLOAT),
    ((1, 1, 1, 33_000), (1, 50), FLOAT), ((1, 3, 9001, 1), (2, 1), FLOAT), ((0, 3, 4, 5), (3, 3), FLOAT)]
SOFTMAXES: list[tuple[Any, ...]] = [       # by some of a warp, a block, several; columns, by one block and by several
    ((5, 7), 1), ((3, 1500), 1), ((2, 20_000), 1), ((2, 33, 3), 1), ((3000, 3), 0), ((2, 5), 0)]
DROPOUTS: list[tuple[Any, ...]] = [((),), ((3,),), ((5, 131),)]
COUNTED = [(1, 1), (130, 3), (1500, 20), (0, 4)]                           # images, classes
BATCHES = [((23, 1, 12, 9), 8, 2), ((7, 3, 4, 5), 7, 0), ((3, 2, 1, 1), 1, 1)]     # stored, batch, padding
VIEWS: list[tuple[Any, ...]] = [           # images, how they are seen, padding
    ((5, 2, 9, 11), Augment(4, True, 5), 0), ((4, 3, 6, 5), Augment(0, True), 2), ((3, 1, 4, 4), Augment(1), 1),
    ((4, 1, 5, 7), Augment(cutout=4), 0), ((2, 1, 3, 3), Augment(9, True, 9), 0),
    ((6, 1, 1, 1), Augment(0, True, 1), 0), ((3, 2, 4, 4), Augment(color=0.5), 0),
    ((4, 3, 5, 6), Augment(1, "alternate", 2, 0.4, 0.3, 0.2), 1), ((4, 2, 3, 5), Augment(2, True, reflect=True), 0),
    ((3, 1, 2, 4), Augment(3, reflect=True), 1)]
ROWS: list[tuple[Any, ...]] = [            # stored, batch, dtype
    ((23, 3), 8, np.float32), ((7,), 7, np.int64), ((5, 2, 3), 2, np.uint8), ((9, 5), 4, bool), ((6, 3), 4, np.float16),
    ((4, 1100), 3, np.float64), ((3, 0), 2, np.float32)]
LABELLED = [(37, 10), (1030, 3)]           # images, classes
PRODUCTS = [(r, c, k, t) for r, c, k in ((17, 130, 37), (70, 5, 300))
            for t in ((False, True), (False, False), (True, False))]
MORE_PRODUCTS = [(r, c, k, t, dtype, tiled, 2, summed) for r, c, k in ((5, 3, 7), (40, 130, 33), (3, 5, 900))
                 for t in ((False, True), (False, False), (True, False)) for dtype in (FLOAT, DOUBLE)
                 for tiled in (False, True) for summed in (False, True)]
TABLES: list[tuple[Any, ...]] = [(11, 5, (4, 9)), (3, 300, (70,)), (9, 129, ()), (20, 1, (33,)), (4, 3, (0,))]
MORE_TABLES: list[tuple[Any, ...]] = [      # of which rows are named once, often, and all the time; few of many
    (100_000, 1, (100_000,)), (50_000, 8, (3, 999)), (2, 1, (9_000_001,)), (70_000, 6, (5000,)), (500_000, 64, (64,))]
BATCHED: list[tuple[Any, ...]] = [         # each of its own, one of a side for all, some of both
    ((3, 17, 40), (3, 40, 9)), ((2, 3, 5, 47), (47, 6)), ((5, 60), (4, 60, 6)), ((2, 1, 17, 18), (3, 18, 19)),
    ((17, 99), (99, 16)), ((1, 13, 24), (5, 24, 12))]
# As dot products: of lines in several runs of a block and of a thread, tiny, with a batch of three axes, outer, of none
THIN: list[tuple[Any, ...]] = [
    ((1, 5000), (5000, 1)), ((1, 1500), (1500, 40)), ((40, 33), (33, 1)), ((2, 3, 4, 5), (3, 5, 2)),
    ((2, 3, 2, 3, 4), (2, 1, 2, 4, 1)), ((70, 1), (1, 90)), ((5, 0), (0, 3)), ((3, 1, 64), (3, 64, 1))]
MORE_THIN: list[tuple[Any, ...]] = [       # large enough for several results of a thread, of which some have fewer
    ((1025, 1), (1, 257)), ((65537, 16), (16, 16)), ((16, 16), (16, 65537)), ((1, 262_145), (262_145, 1)),
    ((4099, 4, 4), (4099, 4, 4)), ((1027, 1, 64), (1027, 64, 1)), ((1, 1024), (1024, 1030)), ((1030, 1024), (1024, 1)),
    ((520, 513, 1), (520, 1, 1)), ((1030, 1, 1024), (1030, 1024, 1))]
SUMMED = [(2, 17, 20, 37), (3, 9, 12, 600), (1, 70, 300, 5)]               # matrices, rows, columns, depth
MORE_SUMMED = [(3, 256, 256, 2304), (3, 256, 2304, 256), (1, 64, 216, 64), (2, 5, 7, 3000)]
SIZES = [(33, 65, 1), (7, 130, 19), (2, 700, 3), (0, 5, 4), (5, 0, 3)]     # images, inputs, outputs
MORE_SIZES = [(3, 5, 2), (33, 70, 130), (2, 3000, 3), (600, 9, 600), (0, 3, 2), (4, 0, 3), (1, 1, 1), (127, 400, 120),
              (128, 4096, 10), (1, 3072, 1000), (129, 1, 65), (1000, 17, 3), (257, 259, 130), (64, 256, 512)]
MORE_LABELLED = [(1, 1), (5, 10), (128, 10), (127, 10), (130, 10), (1000, 10), (4096, 10), (1024, 16), (1100, 20),
                 (700, 31), (5, 33), (3, 1500), (1, 17_000), (0, 3)]
# A channel by one team and by several; rows by some threads of a warp, by a block and by several; columns by a thread
NORMS: list[tuple[Any, ...]] = [
    (batch_geometry(shape, None, None, None, None, True), shape) for shape in (
        (6, 3, 41, 37), (3, 5, 4, 3), (70, 2, 9, 9), (50, 7), (1100, 7), (2, 1, 3), (7, 3, 40, 38))]
NORMS += [(layer_geometry(shape, last, None, None), shape) for shape, last in (
    ((5, 7), 7), ((40, 3), 3), ((3, 2, 5, 270), (5, 270)), ((2, 5000), 5000), ((700, 2), 2))]
NORMS += [(group_geometry(shape, groups, None, None), shape) for shape, groups in (
    ((3, 6, 5), 3), ((5, 4, 40, 40), 2), ((2, 3), 1), ((1, 4, 33, 31), 4))]
MORE_NORMS: list[tuple[Any, ...]] = [      # large ones, with as many teams as there may be, and none
    *((batch_geometry(shape, None, None, None, None, True), shape) for shape in (
        (0, 3, 4, 4), (128, 16, 32, 32), (100, 3, 63, 65), (4097, 33), (1, 2, 600, 600))),
    *((layer_geometry(shape, last, None, None), shape) for shape, last in (
        ((0, 4), 4), ((1030, 130), 130), ((2, 300_000), 300_000))),
    (group_geometry((0, 4, 3), 2, None, None), (0, 4, 3)), (group_geometry((17, 12, 31, 33), 3, None, None),
                                                            (17, 12, 31, 33))]
# Sets of a thread each, of some of a warp, of a block and of several; between elements, and axes that change places
SQUARES: list[tuple[Any, ...]] = [
    ((20_000,), (0,)), ((9000, 33), (0,)), ((3, 9, 4), (0, 2)), ((7, 1000), (1,)), ((2, 9000, 3), (1,)),
    ((300, 40), (0,)), ((2, 3, 4, 5, 3), (0, 2, 4)), ((), ()), ((0, 3), (1,)), ((3, 0), (1,))]
MORE_SQUARES: list[tuple[Any, ...]] = [
    ((1 << 22,), (0,)), ((1 << 18, 4), (0,)), ((1 << 18, 4), (1,)), ((1100, 999), (0,)), ((64, 256, 64), (1,)),
    ((32, 64, 16, 16), (0, 2, 3)), ((70_000, 40), (0,)), ((3, 40_000, 33), (0, 1))]
# Sets by a thread, some of a warp, a block and several blocks; columns; axes on both sides of another, and of two
FOLDED: list[tuple[Any, ...]] = [
    ((20_001,), (0,)), ((2, 20_000), (1,)), ((7, 1000), (1,)), ((5, 40), (0,)), ((3, 9, 4), (0, 2)), ((300, 40), (0,)),
    ((40, 6), (1,)), ((2, 3, 4, 5, 3), (0, 2, 4)), ((2, 9000, 3), (1,)), ((70, 19, 3), (1,)), ((0, 3), (1,)),
    ((20_000, 3), (0,)), ((900, 40), (0,)), ((), ()), ((3, 4), ())]
MORE_FOLDED: list[tuple[Any, ...]] = [
    *FOLDED, ((1 << 22,), (0,)), ((1 << 18, 4), (0,)), ((1 << 18, 4), (1,)), ((4, 1 << 18), (0,)), ((4, 1 << 18), (1,)),
    ((1021, 997), (0,)), ((1021, 997), (1,)), ((1030, 1024), (1,)), ((64, 256, 64), (1,)),
    ((32, 64, 16, 16), (0, 2, 3)), ((128, 1, 28, 28), (0, 2, 3)), ((3, 40_000, 33), (0, 1)), ((300_000, 33), (1,))]
RUNNING: list[tuple[Any, ...]] = [         # by a thread, some of a warp, a block and several; and columns
    ((20_001,), 0), ((16, 16), 1), ((600, 300), 1), ((7, 1000), 1), ((300, 40), 0), ((3, 5000, 2), 1), ((5, 9, 33), 1),
    ((3, 0, 2), 1), ((1,), 0)]
MORE_RUNNING: list[tuple[Any, ...]] = [
    ((1 << 22,), 0), ((1 << 18, 4), 0), ((1 << 18, 4), 1), ((4, 1 << 18), 1), ((1100, 999), 0), ((1021, 997), 1),
    ((64, 256, 64), 1), ((70_000, 40), 0)]
# Sizes along an axis; and parts of an array: all of it, in any order, or a part, and more than one launch takes
JOINED: list[tuple[Any, ...]] = [
    ((3, 1, 4), 1, FLOAT), ((2, 2), 0, DOUBLE), ((1, 0, 5, 2), 2, FLOAT), ((8, 4), 2, np.uint16), ((3, 2), 1, np.bool_),
    ((1, 2) * 10, 1, FLOAT), ((8, 8), 1, np.int64)]
PARTS: list[tuple[Any, ...]] = [
    ((slice(3, None), slice(3)), (5, 8)), ((1, 0, -1), (3, 4, 2)),
    (((..., slice(0, 2)), (..., slice(4, 7))), (3, 5, 8)),
    (((slice(None), 1), (slice(None), slice(2, 4)), (slice(None), 0)), (3, 4, 8)),
    (tuple(range(20)), (20, 3))]
ADDED: list[tuple[Any, ...]] = [
    ((slice(3), slice(2, None)), (5, 8)), (((0, 1), (1, slice(None))), (3, 4)), ((slice(None, None, 2), 1), (5, 2)),
    (((None, 1), 1), (3, 4)), ((True, 0), (3, 4))]
# A copy: the source's shape, what of it is read, in which order of axes, and where and at which step it is written
WHOLE = slice(None)
COPIED: list[tuple[Any, ...]] = [
    ((70, 45), (1, 0), (WHOLE, WHOLE), (slice(0, None, 1), slice(0, None, 1)), FLOAT),
    ((33, 3), (1, 0), (WHOLE, WHOLE), (slice(0, None, 1), slice(0, None, 1)), DOUBLE),
    ((2, 3, 40, 5), (0, 3, 1, 2), (WHOLE, slice(None, None, -1), WHOLE, WHOLE),
     (slice(1, None, 1), slice(0, None, 1), slice(0, None, 1), slice(0, None, 2)), np.uint16),
    ((5, 8), (0, 1), (slice(None, None, -1), WHOLE), (slice(1, None, 1), slice(4, None, 1)), FLOAT),
    ((5, 8), (0, 1), (WHOLE, slice(None, None, -1)), (slice(0, None, 2), slice(1, None, -1)), np.bool_),
    ((3, 600), (1, 0), (WHOLE, WHOLE), (slice(1, None, 1), slice(0, None, 1)), FLOAT),
    ((600, 2), (1, 0), (WHOLE, WHOLE), (slice(1, None, 1), slice(0, None, 1)), FLOAT),
    ((2, 3, 2, 3, 2), (4, 1, 2, 3, 0), (WHOLE,) * 5, (slice(1, None, 2),) * 5, FLOAT),
    ((2, 3, 2, 3, 2, 2, 2), (6, 1, 2, 3, 4, 5, 0), (WHOLE,) * 7, (slice(1, None, 2),) * 7, FLOAT)]
PLACED: list[tuple[Any, ...]] = [
    ((9, 5), FLOAT), ((2, 7, 7), DOUBLE), ((3, 40, 31), np.bool_), ((4, 6), np.uint16)]
FRAMED: list[tuple[Any, ...]] = [
    ((5, 7), (0, 1), ((3, 4), (1, 2)), 0.0, FLOAT), ((5, 8), (0, 1), ((1, 0), (4, 4)), -0.5, FLOAT),
    ((3, 4, 5), (2, 0, 1), ((0, 0), (1, 1), (0, 2)), 2.5, DOUBLE), ((6,), (0,), ((0, 0),), 1.0, FLOAT),
    ((0, 3), (0, 1), ((1, 2), (0, 1)), 3.0, FLOAT), ((3, 4), (0, 1), ((1, 1), (1, 1)), 7, np.uint8)]
PUT_BACK: list[tuple[Any, ...]] = [
    ((slice(None, None, -1), slice(None, None, -1)), (5, 7)), ((slice(1, -1), slice(None, None, 2)), (6, 9)),
    ((2, None, slice(3)), (4, 5)), ((..., 1), (3, 4)), ((0, 1), (3, 4))]
# Shape, values that are taken, axis, and whether none is taken twice
ALONG: list[tuple[Any, ...]] = [
    ((5, 7), 3, 1, False), ((6, 4, 3), 9, 0, False), ((5, 4), 4, 1, True), ((9, 40), 40, 1, True),
    ((4, 50, 3), 20, 1, True), ((3, 20, 5), 70, 1, False), ((2, 1030), 600, 1, False)]
LINES: list[tuple[Any, ...]] = [((5, 16), 1), ((3, 70, 4), 1), ((2, 1030), 1), ((7, 1), 1), ((33, 3), 0)]
# Of lines that are sorted by digits, in several tiles, and whose first few are selected in several rounds
FEW = {"MAX_SORTED": 16, "MAX_FIRSTS": 5, "SHARE": 20}
LONG_LINES: list[tuple[Any, ...]] = [((2, 60), 1, FLOAT, FEW), ((1, 45, 2), 1, DOUBLE, FEW), ((1, 7000), 1, FLOAT),
                                     ((5000, 1), 0, DOUBLE)]
MASKED: list[tuple[Any, ...]] = [((5, 7), 2), ((300, 3), 1), ((70, 9, 2), 2), ((700, 1000), 1), ((3,), 0)]
PAIRS: list[tuple[Any, ...]] = [((5, 7), (9,), FLOAT), ((5, 7, 3), (2, 4), np.bool_), ((4, 3), (300,), np.int64),
                                ((4, 3, 2), (5,), np.int16), ((5, 3, 32), (7,), np.uint8), ((4, 2, 6), (3,), DOUBLE)]
INDICES = [(np.array([3, 0, 3, 3]), slice(None, None, 2)), (slice(None), np.array([1, 1])), np.array([3, 0, -2, 3]),
           (np.array([3, 0, 3, -1]), np.array([1, 1, 1, -4])), (None, np.array([[1, 1], [4, -1]])),
           (slice(None), 2, None), (..., np.array([[0, 3], [-1, 0]])), (np.array([1]), ...)]

LAUNCHES: dict[str, list[Launch]] = {
    "cases": on_device("", op, *[(name, dtype) for name in CASES for dtype in (FLOAT, DOUBLE)]),
    "steps": [
        *on_device("", step, *[(name, dtype) for name in STEPS for dtype in (FLOAT, DOUBLE)])],
    "activations": [
        *each("layers/activation/formulas.cu", primitives.formulas, ((5, 7), FLOAT), ((9, 4, 6), DOUBLE)),
        *on_device("layers/activation/formulas.cu", primitives.formulas, ((1000, 1001), FLOAT),
                   ((130, 30, 20), DOUBLE)),
        *each("layers/activation/formulas.cu", primitives.written_in_place, (FLOAT,), (DOUBLE,)),
        *each("layers/activation/activation.cu", primitives.activations_of_special_values,
              *[(act, dtype) for dtype in (FLOAT, DOUBLE) for act in ALL], slow=len(ALL)),
        *on_device("layers/activation/activation.cu", primitives.activation, *[
            (act, shape, dtype) for act in ALL for shape in ((), (0,), (7,), (3, 1001))
            for dtype in (FLOAT, DOUBLE)]),
        *each("layers/activation/activation.cu", primitives.sum_with_an_activation, ("relu", (3, 1001), FLOAT)),
        *on_device("layers/activation/activation.cu", primitives.sum_with_an_activation, *[
            (act, shape, dtype) for act in ALL for shape in ((1,), (3, 1001)) for dtype in (FLOAT, DOUBLE)]),
        *each("layers/activation/dropout.cu", primitives.dropout, *with_dtype(DROPOUTS, FLOAT)),
        *on_device("layers/activation/dropout.cu", primitives.dropout, *[
            (shape, dtype, p, key) for p in (0.0, 0.1, 0.5, 1 / 3, 0.999, 2.0**-24)
            for key in ((0, 0), (7, 1), (2**64 - 1, 2**63), (123_456_789_012, 4)) for dtype in (FLOAT, DOUBLE)
            for shape in ((1_000_003,), (7, 11, 13), (0, 3), (9,))])],
    "recurrences": [
        *each("layers/recurrent/recurrence.cu", primitives.recurrence, *[
            (kind, sizes, reverse, dtype, held, processors)
            for kind, others in (("lstm", 200), ("gru", 216), ("relu", 224)) for reverse in (False, True)
            for sizes, dtype, held, processors in (
                ((3, 5, 8), FLOAT, None, 132), ((3, 9, 20), FLOAT, others, 2), ((2, 3, 5), FLOAT, None, 132),
                ((2, 3, 8), DOUBLE, None, 132))], slow=4),
        *on_device("layers/recurrent/recurrence.cu", primitives.recurrence, *[
            (kind, sizes, reverse, FLOAT) for kind in recurrences.SIZES for reverse in (False, True)
            for sizes in ((28, 64, 128), (50, 300, 64), (9, 700, 100), (5, 33, 148), (7, 3, 256), (1, 1, 4),
                          (6, 40, 192), (5, 70, 256), (4, 37, 384), (3, 9, 320), (2, 5, 640), (3, 260, 200),
                          (2, 300, 128))])],
    "draws": [
        *each("data/draws.cu", primitives.draws, ((5, 131), (7, 2**63)), ((), (0, 0)), ((1023,), (2**64 - 1, 3))),
        *on_device("data/draws.cu", primitives.draws, *[(shape, key) for key in ((0, 0), (2**64 - 1, 2**63))
                                                        for shape in ((1_000_003,), (0, 3), (9,))])],
    "launches": [
        *each("launch/poison.cu", shared_memory_is_filled, ()),
        *each("launch/addresses.cu", given_arrays_are_copied, (np.float32, 1, 515), (np.uint8, 7, 4096, 0),
              (np.int64, 1, 300))],
    "indexing": [
        *each("indexing/scatter.cu", primitives.gradient_of_indexing, *[(index, (5, 4), FLOAT) for index in INDICES]),
        *on_device("indexing/scatter.cu", primitives.gradient_of_indexing, *[
            (index, (5, 4), DOUBLE) for index in INDICES]),
        *each("indexing/copies.cu", primitives.joined, *JOINED, slow=3),
        *each("indexing/copies.cu", primitives.parts_added, *with_dtype(PARTS, FLOAT), slow=2),
        *on_device("indexing/copies.cu", primitives.parts_added, *with_dtype(PARTS, DOUBLE), *with_dtype(ADDED, FLOAT)),
        *each("indexing/copies.cu", primitives.copied, *COPIED, slow=len(COPIED)),
        *each("indexing/copies.cu", primitives.framed, *FRAMED, slow=len(FRAMED)),
        *each("indexing/copies.cu", primitives.put_back, *with_dtype(PUT_BACK, FLOAT), slow=len(PUT_BACK)),
        *on_device("indexing/copies.cu", primitives.put_back, *with_dtype(PUT_BACK, DOUBLE)),
        *each("indexing/take.cu", primitives.by_pairs, *PAIRS),
        *on_device("indexing/take.cu", primitives.by_pairs, ((4, 3), (0,), FLOAT),
                   ((6, 3, 100), (70_001,), FLOAT)),
        *each("indexing/take.cu", primitives.along_an_axis, *with_dtype(ALONG, FLOAT), slow=len(ALONG)),
        *on_device("indexing/take.cu", primitives.along_an_axis, *with_dtype(ALONG, DOUBLE),
                   ((3, 5000), 5000, 1, False, FLOAT), ((3, 5000), 4500, 1, True, FLOAT),
                   ((3, 4, 2), 0, 2, False, FLOAT), ((0, 30), 20, 1, False, FLOAT),
                   ((2, 70_000), 50_000, 1, False, FLOAT), ((9000, 3), 9000, 0, False, DOUBLE)),
        *each("indexing/order/sort.cu", primitives.in_order, *with_dtype(LINES, FLOAT), *with_dtype(LINES, DOUBLE),
              slow=4),
        *each("indexing/order/radix.cu", primitives.in_order, *LONG_LINES, slow=1),
        *on_device("indexing/order/radix.cu", primitives.in_order, ((3, 100_003), 1, FLOAT), ((70_000, 5), 0, DOUBLE)),
        *on_device("indexing/order/sort.cu", primitives.in_order, *[
            (*row, dtype) for row in (((3, 4096), 1), ((2, 4097), 1), ((1000, 1000), 0), ((70_000, 4), 1))
            for dtype in (FLOAT, DOUBLE)]),
        *each("indexing/places.cu", primitives.by_place, *PLACED, slow=2),
        *on_device("indexing/places.cu", primitives.by_place, ((3, 1021, 997), FLOAT), ((2, 70_001, 9), np.int64),
                   ((0, 3), FLOAT)),
        *each("indexing/mask.cu", primitives.of_a_mask, *with_dtype(MASKED, FLOAT), slow=2),
        *on_device("indexing/mask.cu", primitives.of_a_mask, *with_dtype(MASKED, DOUBLE), ((3000, 1001), 2, FLOAT)),
        *each("indexing/embedding.cu", primitives.gradient_of_embedding, *with_dtype(TABLES, FLOAT)),
        *on_device("indexing/embedding.cu", primitives.gradient_of_embedding, *with_dtype(TABLES, DOUBLE)),
        *on_device("indexing/scatter.cu", primitives.gradient_of_embedding, *[
            (*row, dtype) for row in MORE_TABLES for dtype in (FLOAT, DOUBLE)])],
    "reductions": [
        *each("reduce/folds.cu", primitives.reductions, *with_dtype(FOLDED, FLOAT), slow=3),
        *each("reduce/folds.cu", primitives.reductions, *with_dtype(FOLDED, DOUBLE), slow=0),
        *on_device("reduce/folds.cu", primitives.reductions, *[
            (*row, dtype) for row in MORE_FOLDED for dtype in (FLOAT, DOUBLE)]),
        *each("reduce/folds.cu", primitives.gradients_of_reductions, *with_dtype(FOLDED, FLOAT), slow=3),
        *each("reduce/folds.cu", primitives.gradients_of_reductions, *with_dtype(FOLDED, DOUBLE), slow=0),
        *on_device("reduce/folds.cu", primitives.gradients_of_reductions, *[
            (*row, dtype) for row in MORE_FOLDED for dtype in (FLOAT, DOUBLE)]),
        *each("reduce/folds.cu", primitives.softmax, *with_dtype(SOFTMAXES, DOUBLE), slow=2),
        *on_device("reduce/folds.cu", primitives.softmax, *with_dtype([
            *SOFTMAXES, ((130, 1), 1), ((0, 4), 1), ((4, 1 << 18), 1), ((1 << 18, 4), 0), ((128, 1000), 0),
            ((64, 256, 64), 1), ((1 << 18, 4), 1), ((2048, 4096), 1)], FLOAT)),
        *each("reduce/squares.cu", primitives.squares, *with_dtype(SQUARES, FLOAT), slow=2),
        *each("reduce/squares.cu", primitives.squares, *with_dtype(SQUARES, DOUBLE), slow=0),
        *on_device("reduce/squares.cu", primitives.squares, *[
            (*row, dtype) for row in MORE_SQUARES for dtype in (FLOAT, DOUBLE)]),
        *each("reduce/running.cu", primitives.running_sums, *with_dtype(RUNNING, FLOAT)),
        *each("reduce/running.cu", primitives.running_sums, *with_dtype(RUNNING, DOUBLE), slow=0),
        *on_device("reduce/running.cu", primitives.running_sums, *[
            (*row, dtype) for row in MORE_RUNNING for dtype in (FLOAT, DOUBLE)])],
    "norms": [
        *each("layers/norm/norm.cu", primitives.normalization, *[(*row, True, FLOAT) for row in NORMS],
              *[(*row, False, DOUBLE) for row in NORMS[::3]], slow=4),
        *on_device("layers/norm/norm.cu", primitives.normalization, *[
            (*row, affine, dtype) for row in (*NORMS, *MORE_NORMS) for affine in (False, True)
            for dtype in (FLOAT, DOUBLE)]),
        *each("layers/norm/norm.cu", primitives.normalization_with_an_activation,
              *[(*row, "relu", FLOAT) for row in NORMS[:7]], (*NORMS[0], "tanh", DOUBLE)),
        *on_device("layers/norm/norm.cu", primitives.normalization_with_an_activation, *[
            (*row, act, dtype) for row in (*NORMS[:7], *MORE_NORMS[:5]) for act in ACTIVATIONS
            for dtype in (FLOAT, DOUBLE)]),
        *each("layers/norm/fold.cu", primitives.convolution_with_normalization,
              ("relu", False, FLOAT), ("tanh", True, FLOAT)),
        *on_device("layers/norm/fold.cu", primitives.convolution_with_normalization, *[
            (act, affine, dtype) for act in ACTIVATIONS for affine in (False, True) for dtype in (FLOAT, DOUBLE)])],
    "losses": [
        *each("layers/loss/cross_entropy.cu", primitives.cross_entropy_of_any_size,
              (1100, 20), (1, 1), (5, 10), (3, 20_000), (130, 10), (3, 1500), slow=2),
        *each("layers/loss/cross_entropy.cu", primitives.cross_entropy_with_grad, *[
            (*sizes, reduction, FLOAT) for sizes in LABELLED for reduction in ("mean", "none")]),
        *on_device("layers/loss/cross_entropy.cu", primitives.cross_entropy_with_grad, *[
            (*sizes, reduction, dtype) for sizes in MORE_LABELLED for reduction in ("mean", "sum", "none")
            for dtype in (FLOAT, DOUBLE)]),
        *on_device("layers/loss/cross_entropy.cu", primitives.cross_entropy_of_any_size, *[
            (n, classes) for n in (1, 3, 128, 1000)
            for classes in (1, 2, 31, 32, 33, 255, 256, 257, 1000, 1025, 4097)]),
        *each("layers/loss/pairs.cu", primitives.pair_loss, *[(loss, (3, 1001), FLOAT) for loss in LOSSES],
              *[(loss, shape, DOUBLE) for loss in LOSSES for shape in ((), (0,), (7,))]),
        *on_device("layers/loss/pairs.cu", primitives.pair_loss, *[
            (loss, shape, dtype) for loss in LOSSES for shape in ((7,), (3, 1001), (32, 64, 16, 16), (1 << 22,))
            for dtype in (FLOAT, DOUBLE)]),
        *each("layers/loss/pairs.cu", primitives.binary_cross_entropy_of_what_is_sure, (FLOAT,), (DOUBLE,)),
        *each("layers/loss/nll.cu", primitives.negative_log_likelihood,
              (1100, 3, FLOAT), (5, 10, DOUBLE), (0, 3, FLOAT)),
        *on_device("layers/loss/nll.cu", primitives.negative_log_likelihood, *[
            (*sizes, dtype) for sizes in ((1, 1), (128, 1000), (1021, 997), (300_000, 4), (3, 5000))
            for dtype in (FLOAT, DOUBLE)]),
        *each("layers/loss/metrics.cu", primitives.metrics, *with_dtype(COUNTED, FLOAT)),
        *on_device("layers/loss/metrics.cu", primitives.metrics, *with_dtype(COUNTED, DOUBLE)),
        *each("layers/loss/metrics.cu", primitives.metrics_count_beyond_what_a_float_counts, ())],
    "poolings": [
        *each("layers/pool/", primitives.pooling, *with_dtype(POOLINGS, FLOAT)),
        *each("layers/pool/adaptive.cu", primitives.uneven_windows, *UNEVEN),
        *each("layers/pool/", primitives.avg_pool2d_grad_act, *[(*row, "relu", FLOAT) for row in POOLINGS]),
        *on_device("layers/pool/", primitives.pooling, *with_dtype(MORE_POOLINGS, DOUBLE),
                   *with_dtype(MORE_POOLINGS, FLOAT)),
        *on_device("layers/pool/", primitives.avg_pool2d_grad_act, *[
            (*row, act, dtype) for row in MORE_POOLINGS for act in ACTIVATIONS for dtype in (FLOAT, DOUBLE)])],
    "products": [
        *each("layers/linear/", primitives.linear, *[
            (sizes, dtype) for sizes in SIZES for dtype in (FLOAT, DOUBLE)]),
        *on_device("layers/linear/", primitives.linear, *[
            (sizes, dtype) for sizes in MORE_SIZES for dtype in (FLOAT, DOUBLE)]),
        *each("layers/linear/gemm.cu", primitives.batched_product, *with_dtype(BATCHED, FLOAT)),
        *on_device("layers/linear/gemm.cu", primitives.batched_product, *with_dtype(BATCHED, DOUBLE),
                   ((3, 70, 300), (3, 300, 130), FLOAT), ((40, 30), (5, 30, 20), FLOAT)),
        *each("layers/linear/dots.cu", primitives.batched_product, *with_dtype(THIN, FLOAT), slow=8),
        *on_device("layers/linear/dots.cu", primitives.batched_product, *with_dtype(THIN, DOUBLE), *[
            (*row, dtype) for row in MORE_THIN for dtype in (FLOAT, DOUBLE)]),
        *each("layers/linear/gemm.cu", primitives.product_sum, *[(sizes, FLOAT) for sizes in SUMMED]),
        *on_device("layers/linear/gemm.cu", primitives.product_sum, *[(sizes, DOUBLE) for sizes in SUMMED]),
        *each("layers/linear/gemm.cu", primitives.product, *[(*row, FLOAT) for row in PRODUCTS]),
        *on_device("layers/linear/gemm.cu", primitives.product, *MORE_PRODUCTS),
        *[launch for precision in device.PRECISIONS for check, rows in (
            (primitives.linear, MORE_SIZES), (primitives.product_sum, MORE_SUMMED)) for launch in on_device(
            "layers/linear/gemm.cu", check, *[(sizes, FLOAT) for sizes in rows], precision=precision)],
        *each("layers/linear/gemm.cu", primitives.linear_with_an_activation, *[
            (act, (19, 70, 21), FLOAT) for act in ALL]),
        *on_device("layers/linear/gemm.cu", primitives.linear_with_an_activation, *[
            (act, sizes, dtype) for act in ALL for sizes in MORE_SIZES[:3] for dtype in (FLOAT, DOUBLE)])],
    "attention": [
        *each("layers/attention/", attention.is_right, *[(kind, attention.CASES[0]) for kind in attention.KINDS]),
        *on_device("layers/attention/", attention.is_right, *[
            (kind, case) for kind in attention.KINDS for case in attention.CASES[1:]])],
    "training": [
        *each("optim/sgd.cu", primitives.sgd, (1, 0.9, 1e-2, True, FLOAT), (201, 0.9, 1e-2, True, FLOAT)),
        *each("optim/sgd.cu", primitives.sgd_changes_only_what_it_was_given, ()),
        *on_device("optim/sgd.cu", primitives.sgd, *[
            (count, *how, dtype) for count in (1, 8, 201) for dtype in (FLOAT, DOUBLE) for how in (
                (0.0, 0.0, False), (0.0, 0.1, False), (0.9, 0.0, False), (0.9, 0.1, False), (0.9, 0.0, True),
                (0.9, 0.1, True))]),
        *each("optim/updates.cu", primitives.updates, *[
            (name, 3 + i % 3, kept, numbers, FLOAT) for i, (name, kept, numbers) in enumerate(primitives.UPDATES)],
              slow=len(primitives.UPDATES)),
        *each("optim/clip.cu", primitives.clipped, (4, FLOAT), (130, FLOAT)),
        *each("optim/clip.cu", primitives.mean_of_ranks, (4, FLOAT), (130, DOUBLE)),
        *on_device("optim/clip.cu", primitives.clipped, (6, FLOAT), (4, DOUBLE), (6, DOUBLE), (130, DOUBLE)),
        *each("layers/linear/gemm.cu", primitives.orthogonalized, *with_dtype(primitives.MATRICES, FLOAT)),
        *on_device("layers/linear/gemm.cu", primitives.orthogonalized, *with_dtype(primitives.MATRICES, DOUBLE)),
        *each("optim/updates.cu", primitives.rates_of_updates, (FLOAT,), (DOUBLE,)),
        *on_device("optim/updates.cu", primitives.updates, *[
            (name, count, kept, numbers, dtype) for name, kept, numbers in primitives.UPDATES for count in (1, 8, 201)
            for dtype in (FLOAT, DOUBLE)]),
        *each("data/gather.cu", primitives.gather, *[((20, 3, 8, 9), 7, padding, FLOAT) for padding in (0, 2)]),
        *on_device("data/gather.cu", primitives.gather, *[
            (*row, padding, dtype) for row in (((50, 1, 28, 28), 32), ((20, 3, 32, 32), 128), ((7, 2, 5, 3), 1),
                                               ((7, 2, 5, 3), 0), ((3, 4, 1, 1), 1000))
            for padding in (0, 2) for dtype in (FLOAT, DOUBLE)]),
        *each("data/gather.cu", primitives.next_batch, *with_dtype(BATCHES, FLOAT)),
        *on_device("data/gather.cu", primitives.next_batch, *with_dtype(BATCHES, DOUBLE)),
        *each("data/gather.cu", primitives.augmented_gather, *with_dtype(VIEWS, FLOAT)),
        *on_device("data/gather.cu", primitives.augmented_gather, *with_dtype(VIEWS, DOUBLE)),
        *each("data/gather.cu", primitives.next_batch, *[(*row, FLOAT, Augment(3, True, 4)) for row in BATCHES]),
        *on_device("data/gather.cu", primitives.next_batch, *[(*row, DOUBLE, Augment(3, True, 4)) for row in BATCHES]),
        *each("data/rows.cu", primitives.next_rows, *ROWS[:5]),
        *on_device("data/rows.cu", primitives.next_rows, *ROWS[5:])],
    "fused": [
        *[Launch("conv/", fused_with_activation_and_pooling, (name, dtype, *shapes), precision, dtype is FLOAT,
                 "deep")
          for name, precision, dtype in convolutions.FUSABLE
          for shapes in [[((3, 2, 12, 16), (5, 2, 5, 5), 0), ((2, 3, 15, 15), (9, 3, 8, 8), 0)]]],
        *[Launch("conv/", fused_with_activation_and_pooling, (name, dtype, *shapes), precision, False)
          for name, precision, dtype in convolutions.FUSABLE
          for shapes in [[((2, 4, 11, 11), (9, 4, 8, 8), 0), ((5, 12, 12, 12), (5, 12, 4, 4), ((1, 2), (2, 1)))]]],
        *each("conv/bias/bias.cu", primitives.conv2d_act_pool_grad_wb, *[(*row, "tanh", FLOAT) for row in FUSED]),
        *on_device("conv/bias/bias.cu", primitives.conv2d_act_pool_grad_wb, *[
            (*row, act, dtype) for row in MORE_FUSED for act in ACTIVATIONS for dtype in (FLOAT, DOUBLE)])],
    "fused_on_tensor_cores": [
        Launch("conv/", whole_images_on_tensor_cores, (name, precision),
               tier="deep" if precision == "3xtf32" else "slow")
        for name, precision, _ in convolutions.FUSABLE if precision != "fp32"],
    "few_channels": [
        *each("conv/resident/few_channels.cu", convolve, *[
            (x, w, 1, padding, ("few_channels",)) for x, w, padding in FEW_CHANNELS], precision="bf16"),
        *each("conv/resident/few_channels.cu", whole_images_on_tensor_cores,
              ("few_channels", "bf16", "sigmoid", [((5, 3, 16, 32), 66, 8, ((4, 3), (4, 3)), 4)]), precision="bf16",
              slow=0),
        *each("conv/resident/few_channels.cu", whole_images_on_tensor_cores,
              ("few_channels", "bf16", "tanh", [((2, 1, 12, 12), 7, 5, 2, 2)]), precision="bf16")],
    "nhwc_grad_w": [
        *each("nhwc/grad_w/conv_grad_w.cu", nhwc_grad_w.is_right, *[
            ((2, 5, 6, 7), (9, 5, 3, 3), (1, 2), 1, kind) for kind in nhwc_grad_w.KINDS]),
        *on_device("nhwc/grad_w/conv_grad_w.cu", nhwc_grad_w.is_right, *[
            (*shape, kind, form, splits) for kind in nhwc_grad_w.KINDS for form in range(7) for splits in (None, 3)
            for shape in (((3, 40, 9, 70), (70, 40, 3, 3), 1, 1), ((5, 136, 7, 7), (130, 136, 2, 3), 2, (0, 1)))])],
    "nhwc_grad_w_few": [
        *each("nhwc/grad_w/conv_few_grad_w.cu", nhwc_grad_w.is_right, *[
            (x, w, 1, padding, "tf32", None, splits) for splits in (None, 3)
            for x, w, padding in (((5, 3, 7, 9), (72, 3, 3, 3), 1), ((2, 1, 20, 40), (8, 1, 5, 5), 2))],
              # Steps: neighbours that are one pixel, and none; taps in halves; steps of one axis; no tap at some steps
              *[((3, c, 21, 38), (m, c, *taps), steps, padding, kind, None, 3) for c, m, taps, steps, padding, kind in (
                  (3, 72, (7, 7), 2, 3, "bf16 images"), (3, 20, (7, 7), 2, 3, "tf32"),
                  (1, 8, (3, 5), (1, 4), 2, "bf16 images"), (8, 24, (3, 3), (3, 2), (0, 1), "bf16 images"),
                  (2, 16, (2, 1), 3, 0, "bf16 images"), (2, 12, (3, 4), (2, 3), 1, "tf32"))]),
        *on_device("nhwc/grad_w/conv_few_grad_w.cu", nhwc_grad_w.is_right, *[
            ((9, c, 65, 70), (136, c, *taps), steps, 3, kind, None, splits) for splits in (None, 3)
            for kind in ("tf32", "bf16 images") for c, taps, steps in (
                (3, (7, 7), 2), (4, (3, 3), (1, 2)), (1, (5, 6), 4), (2, (8, 8), (3, 4)))]),
        *on_device("nhwc/grad_w/conv_few_grad_w.cu", nhwc_grad_w.is_right, *[
            (x, w, 1, padding, "tf32", None, splits) for splits in (None, 3)
            for x, w, padding in (((40, 3, 32, 32), (136, 3, 8, 8), 3), ((9, 4, 33, 70), (64, 4, 3, 2), 1),
                                  ((70, 2, 7, 7), (12, 2, 1, 1), 0))])],
    "nhwc_grad_w_tma": [
        *each("nhwc/grad_w/conv_grad_w_tma.cu", nhwc_grad_w.is_right, *[
            ((3, 64, 7, 9), (72, 64, 3, 3), 1, 1, kind, None, splits)
            for kind, splits in (("tf32", 1), ("tf32", 3), ("bf16 images", 1), ("bf16 images", 3))],
              ((9, 8, 5, 5), (16, 8, 5, 5), 1, 2, "bf16 images"), ((2, 68, 9, 9), (12, 68, 4, 3), 1, 2, "tf32"),
              *[((9, c, 9, 9), (m, c, 3, 3), 1, 1, kind, None, splits) for kind, c, m, splits in (
                  ("tf32", 16, 40, 1), ("tf32", 24, 16, 2), ("tf32", 40, 24, 1), ("bf16 images", 16, 16, 1),
                  ("bf16 images", 24, 72, 2))]),
        *on_device("nhwc/grad_w/conv_grad_w_tma.cu", nhwc_grad_w.is_right, *[
            (*shape, kind, None, splits) for kind in ("tf32", "bf16 images") for splits in (None, 3)
            for shape in (((9, 64, 19, 40), (136, 64, 3, 3), 1, 1), ((70, 136, 7, 7), (64, 136, 2, 5), 1, (0, 1)))])],
    "nhwc_grad_w_rows": [
        *each("nhwc/grad_w/rows_grad_w.cu", nhwc_grad_w.is_right, *[
            ((3, c, 7, 9), (m, c, 1, 1), 1, 0, kind, None, splits) for kind in ("tf32", "bf16 images")
            for c, m, splits in ((40, 72, 1), (136, 24, 2))], slow=2),
        *on_device("nhwc/grad_w/rows_grad_w.cu", nhwc_grad_w.is_right, *[
            ((9, c, 64, 65), (m, c, 1, 1), 1, 0, kind, None, splits) for kind in ("tf32", "bf16 images")
            for splits in (None, 3) for c, m in ((32, 64), (192, 576), (384, 96), (1000, 1032))])],
    "regions": [
        *each("region_step.cu", regions.outputs_are_those_of_the_steps, *[
            (name, n, *[True] * (n == 3 and name in ("lenet5", "padded, odd sizes")))
            for n in (11, 3) for name in regions.NETS]),
        *on_device("region_step.cu", regions.outputs_are_those_of_the_steps, *[(name, 300) for name in regions.NETS])],
    "captured": [
        *on_device("optim/updates.cu", captured_updates, *[
            (name, dtype) for name in ("Adam", "AdamW", "RMSprop", "Muon") for dtype in (FLOAT, DOUBLE)]),
        *on_device("optim/sgd.cu", captured, *[
            (*net, dtype) for net in (("lenet5", 1), ("krizhevsky2009", 3)) for dtype in (FLOAT, DOUBLE)])],
    "nhwc": [
        *[launch for file, names in OWN_FORMS.items() for launch in (
            *each(file, nhwc_form, *[(name, store, 1) for name in names for store in STORES], slow=len(names)),
            *each(file, nhwc_form, *[(name, store, 2) for name in names for store in STORES], slow=0))],
        *each("nhwc/", nhwc_joined, *[(store, at) for at in (0, 2, 3) for store in STORES], slow=3),
        *each("nhwc/norm/layer.cu", rows_normalised, *[(*shape, store) for shape in nhwc.NORMALISED[:-1]
                                                       for store in STORES], slow=4),
        *on_device("nhwc/norm/layer.cu", rows_normalised, *[(*shape, store) for shape in nhwc.NORMALISED
                                                            for store in STORES]),
        *on_device("nhwc/", nhwc_form, *[
            (name, store, at) for name in FORMS for store in STORES for at in range(len(nhwc.SHAPES))]),
        *on_device("nhwc/", nhwc_form, *[
            (name, "float32", at, "3xtf32") for name in FORMS if name.startswith("conv2d") for at in (0, 2, 3)]),
        *on_device("nhwc/", nhwc_joined, *[(store, at) for store in STORES for at in range(len(nhwc.SHAPES))])],
    "nhwc_conv": [
        *each("nhwc/conv/conv.cu", nhwc_conv.is_right, *[
            (direction, kind, (2, 9, 6, 7), (9, 9, 3, 3), (1, 2), 1)
            for direction in nhwc_conv.DIRECTIONS for kind in nhwc_conv.KINDS]),
        *each("nhwc/conv/conv.cu", nhwc_conv.is_right,
              ("y", "bf16", (3, 16, 9, 9), (72, 16, 3, 3), 1, 1, 0, "relu"),
              ("dx", "bf16", (3, 16, 9, 9), (120, 16, 3, 3), 1, 1, 0),
              ("dx", "bf16", (3, 16, 10, 10), (24, 16, 4, 4), 2, 1, 0, "relu"),     # a transposed convolution
              ("y", "3xtf32", (1, 64, 9, 9), (6, 64, 3, 2), 2, 1),
              # A form of two stages, one of whose blocks has a multiprocessor
              ("dx", "tf32", (4, 4, 18, 9), (1, 4, 5, 4), 3, 1)),
        *each("nhwc/conv/conv_tma.cu", nhwc_conv.is_right, *[
            (direction, kind, (5, 64, 7, 9), (64, 64, 3, 3), 1, 1, form)
            for direction, kind, form in (("y", "tf32", -5), ("dx", "tf32", -4), ("dx", "bf16", -5),
                                          ("y", "bf16", -3), ("dx", "tf32", -2), ("y", "bf16", -2))],
              ("dx", "bf16", (2, 5, 7, 9), (62, 5, 3, 3), 1, 1, -1),            # and images that are padded by channels
              ("dx", "bf16", (3, 24, 17, 33), (16, 24, 3, 2), (1, 3), (1, 0)),
              # Channels that do not fill a slab: 3 of its 4 steps; nor the second slab
              ("y", "tf32", (2, 24, 7, 9), (64, 24, 3, 3), 1, 1, -3),
              ("dx", "bf16", (2, 72, 7, 9), (40, 72, 3, 2), 1, 1, -3),
              ("y", "bf16", (2, 80, 9, 9), (64, 80, 3, 3), 1, 1, -5)),
        *each("nhwc/conv/conv_tma.cu", nhwc_conv.is_right,
              ("dx", "tf32", (5, 16, 31, 32), (40, 16, 3, 3), 2, 1)),           # images spread for steps of 1
        *each("nhwc/conv/conv_pack.cu", nhwc_conv.is_right_by, *[
            ("phases", *row) for row in (
                ("bf16", (3, 16, 9, 8), (24, 16, 3, 3), 2, 1),
                ("tf32", (2, 8, 7, 11), (5, 8, 4, 3), (2, 3), (1, 0), "relu"),
                ("3xtf32", (2, 4, 9, 9), (6, 4, 5, 5), (3, 2), 2), ("bf16", (2, 24, 10, 9), (16, 24, 1, 1), 2, 0),
                ("tf32", (2, 4, 8, 8), (8, 4, 2, 1), (2, 3), 0),
                ("bf16", (5, 64, 6, 6), (64, 64, 2, 2), 2, 0, "relu"))]),
        *each("nhwc/conv/conv_pack.cu", nhwc_conv.is_right_by,
              ("zeros", "bf16", (3, 16, 9, 8), (24, 16, 3, 3), 2, 1),
              ("zeros", "tf32", (2, 8, 7, 11), (8, 8, 4, 2), (2, 3), (1, 0), "relu")),
        *each("nhwc/conv/conv_tma.cu", nhwc_conv.maxima_are_right, *[
            (kind, (3, 64, *size), (72, 64, 3, 3), 1, form, act, False)
            for kind, form in (("tf32", -5), ("tf32", -4), ("tf32", -2), ("bf16", -5), ("bf16", -3), ("bf16", -2))
            for size, act in (((11, 18), "relu"), ((8, 9), None))],
              ("tf32", (2, 64, 8, 8), (6, 64, 3, 3), 1, -3, None, True)),   # filters that fill no 16 bytes
        *each("nhwc/conv/conv_images.cu", nhwc_conv.maxima_are_right,
              ("bf16", (130, 64, 3, 4), (64, 64, 3, 3), 1, 4, "relu", True), slow=0),
        *each("nhwc/conv/conv_tma.cu", nhwc_conv.gradients_are_right, *[
            (kind, (3, 72, *size), (64, 72, 3, 3), 1, form, act, added, normalized, False)
            for kind, form in (("tf32", -5), ("tf32", -4), ("tf32", -2), ("bf16", -5), ("bf16", -3), ("bf16", -2))
            for size, act, added, normalized in (
                ((11, 18), "relu", True, True), ((7, 9), "tanh", False, True), ((8, 8), "relu", True, False))],
              ("tf32", (3, 136, 8, 8), (32, 136, 1, 1), 0, -3, "relu", True, True, False),  # three tiles of filters
              ("bf16", (2, 16, 9, 8), (24, 16, 3, 3), 1, -2, "relu", True, True, False),    # slabs that are not filled
              ("tf32", (2, 6, 8, 8), (64, 6, 3, 3), 1, -3, "relu", True, False, True),      # that fill no 16 bytes
              # at steps: by images that are spread, or by phases, whichever fills the GPU sooner
              ("tf32", (5, 16, 31, 32), (64, 16, 3, 3), 1, None, "relu", True, True, None, 2),
              ("bf16", (40, 32, 15, 16), (64, 32, 3, 3), 1, None, "relu", True, True, None, 2)),
        *each("nhwc/conv/conv_images.cu", nhwc_conv.gradients_are_right,
              ("bf16", (130, 64, 3, 4), (64, 64, 3, 3), 1, 4, "relu", True, True, True)),
        *each("nhwc/conv/conv_images.cu", nhwc_conv.is_right, *[
            (direction, kind, (130, 64, 3, 4), (64, 64, 3, 3), stride, 1, form)
            for direction, kind, stride, form in (("y", "tf32", 1, 4), ("dx", "tf32", 2, 5), ("dx", "bf16", 1, 7),
                                                  ("y", "bf16", (1, 2), 6))],
              ("y", "bf16", (3, 64, 7, 7), (9, 64, 3, 3), 1, 1, 4, "relu"), slow=0),    # filters that fill no 16 bytes
        *each("nhwc/conv/conv_few.cu", nhwc_conv.is_right,
              ("y", "bf16", (9, 3, 17, 10), (72, 3, 3, 3), 1, 1, None, "relu"),
              ("y", "tf32", (9, 4, 7, 7), (7, 4, 2, 5), 1, (0, 2)), ("y", "bf16", (3, 8, 5, 4), (9, 8, 1, 1), 1, 0),
              ("dx", "bf16", (3, 20, 9, 9), (8, 20, 5, 4), 1, 2), ("dx", "tf32", (2, 9, 7, 9), (1, 9, 2, 2), 1, 1),
              # Two boxes of a square, both cut off; and filters that leave no room for squares
              ("y", "tf32", (3, 3, 19, 21), (44, 3, 3, 3), 1, 1, None, "relu"),
              ("y", "tf32", (2, 1, 15, 12), (8, 1, 10, 9), 1, 4),
              # Steps: neighbours that are one pixel of a patch, all or some of a step's, and none
              ("y", "bf16", (2, 3, 35, 38), (16, 3, 7, 7), 2, 3, None, "relu"),
              ("y", "tf32", (2, 3, 35, 38), (16, 3, 7, 7), 2, 3),
              ("y", "tf32", (9, 2, 9, 11), (12, 2, 3, 3), (2, 3), 1),
              ("y", "bf16", (3, 1, 11, 23), (9, 1, 3, 5), (1, 4), 2),
              ("y", "bf16", (9, 8, 9, 7), (8, 8, 3, 4), 2, 1),
              ("y", "bf16", (3, 3, 12, 23), (8, 3, 4, 5), (3, 4), (0, 1))),
        *on_device("nhwc/conv/conv_few.cu", nhwc_conv.is_right, *[
            ("y", kind, (5, c, 63, 70), (64, c, *taps), step, 3) for kind in ("tf32", "bf16") for c, taps, step in (
                (3, (7, 7), 2), (1, (5, 6), (2, 4)), (4, (3, 4), (1, 3)), (2, (11, 11), 4))]),
        *on_device("nhwc/conv/conv_few.cu", nhwc_conv.is_right, *[
            (direction, kind, (5, c, 40, 37), (m, c, 8, 8), 1, 3) for direction, c, m in (("y", 3, 136), ("dx", 68, 2))
            for kind in ("tf32", "bf16")]),
        *on_device("nhwc/conv/conv.cu", nhwc_conv.is_right, *[
            (direction, kind, *shape, form) for direction in nhwc_conv.DIRECTIONS for kind in nhwc_conv.KINDS
            for form in range(12) for shape in (((5, 64, 19, 18), (192, 64, 3, 3), 1, 1),
                                               ((9, 128, 7, 7), (64, 128, 3, 3), 1, 1),
                                               ((2, 8, 30, 31), (136, 8, 5, 4), (2, 3), 2))])],
    "splitting_convolutions": [
        *on_device("conv/product/implicit_gemm.cu", convolve_in_pieces, *[
            row for dtype in (FLOAT, DOUBLE) for row in with_dtype(SPLITTING, dtype)])],
    "layouts": [
        *each("conv/", in_layouts, *[(name, FLOAT, 6) for name in layouts.layouts.LAUNCHERS], slow=0),
        *each("conv/", in_layouts, *[(name, FLOAT, 0) for name in layouts.layouts.LAUNCHERS], ("direct", DOUBLE, 0)),
        *on_device("conv/", in_layouts, *[(name, DOUBLE, 6) for name in layouts.layouts.LAUNCHERS])],
    "convolutions": [
        *[Launch("layers/linear/gemm.cu" if name == "fft" else "conv/",      # it has no other kernel
                 each_direction, (name,), convolutions.most_exact(name)) for name in conv.ALGORITHMS],
        *each("", dilated, *[(at,) for at in range(0, 24, 4)]),
        *each("layers/linear/gemm.cu", convolve, *[
            (*row, ("fft",), dtype) for row, dtype in zip(BY_FFT, (FLOAT, DOUBLE) * 3, strict=True)]),
        *each("conv/bias/bias.cu", bias_gradient, (*CONVOLUTIONS[0][:4], FLOAT)),
        *on_device("conv/bias/bias.cu", bias_gradient, *[
            (*row, dtype) for row in MORE_CONVOLUTIONS for dtype in (FLOAT, DOUBLE)]),
        *each("conv/product/implicit_gemm.cu", convolve, *CONVOLUTIONS[:4],
              (*CONVOLUTIONS[0][:4], ("whole_image", "implicit_gemm"), DOUBLE),
              # a gradient at steps whose depth has shares, which all residues leave in the same parts
              ((1, 3, 9, 8), (260, 3, 4, 4), 2, 1, ("implicit_gemm",)), slow=6),
        *each("conv/resident/winograd.cu", convolve, *CONVOLUTIONS[4:6]),
        *each("conv/product/winograd_tiles.cu", convolve, CONVOLUTIONS[-1],  # and a product that copies 16 bytes
              ((4, 36, 14, 14), (36, 36, 3, 3), 1, 1, ("winograd_4x4",)), *[
            (*CONVOLUTIONS[-1][:4], (name,), DOUBLE) for name in CONVOLUTIONS[-1][4]]),
        *each("conv/product/winograd_product.cu", in_shares_and_runs,
              ((7, 40, 30, 30), (24, 40, 3, 3), ("winograd_4x4",), FLOAT), slow=0),
        *on_device("conv/product/winograd_product.cu", in_shares_and_runs, *[
            ((7, 40, 30, 30), (24, 40, 3, 3), CONVOLUTIONS[-1][4], dtype) for dtype in (FLOAT, DOUBLE)]),
        *each("conv/papers/krizhevsky/krizhevsky.cu", krizhevskys_variants,
              ((2, 2, 37, 40), (5, 2, 5, 5), 1, 0, FLOAT), (*CONVOLUTIONS[2][:4], DOUBLE)),
        *each("conv/papers/krizhevsky/krizhevsky.cu", krizhevsky_without_loads, (*CONVOLUTIONS[0][:4], FLOAT)),
        *each("conv/product/winograd_tiles.cu", the_same_in_all_precisions,
              ((9, 22, 15, 16), (23, 22, 3, 3), 1, 1, CONVOLUTIONS[-1][4]), slow=0),
        *[Launch("conv/product/implicit_gemm.cu", convolve, (*CONVOLUTIONS[1][:4], tuple(
            name for name in ON_TENSOR_CORES if precision in conv.ALGORITHMS[name].tensor_cores)), precision, tier=tier)
          for precision, tier in (("tf32", "slow"), ("3xtf32", "deep"))],
        *[launch for precision, dtype in [("fp32", DOUBLE), *[(name, FLOAT) for name in device.PRECISIONS]]
          for launch in on_device("conv/papers/direct.cu", convolve_by_all, *with_dtype(
              [*[row[:4] for row in CONVOLUTIONS], *MORE_CONVOLUTIONS], dtype), precision=precision)]],
}
