"""The CUDA kernels without a GPU: emulated on the CPU (tests/emulator), by the launches that compute-sanitizer sees.

The table of both is tests/checks/launches.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

import random_nets
from cases import CASES
from checks import convolutions, nhwc_conv, nhwc_grad_w, primitives, regions
from checks.agrees import step_agrees
from checks.compiler import needs_compiler
from checks.fused import STEPS, recorded
from checks.launches import (
    CONVOLUTIONS,
    FUSED,
    LAUNCHES,
    NORMS,
    POOLINGS,
    convolve,
    in_layouts,
    in_shares_and_runs,
    precision_of,
)
from checks.sources import FILES, kernels
from checks.steps import averaged_step
from emulator import Emulator, cupy
from tiers import marks, tiered

import minidl
from minidl import Tensor, nn, ops, optim, zoo
from minidl.compiler.buckets import Buckets
from minidl.compiler.graph import Dry
from minidl.compiler.passes import optimised
from minidl.compiler.record import record
from minidl.compiler.replay import ByCalls, arrays_of
from minidl.core import device
from minidl.core.tensor import wrap
from minidl.data import Augment
from minidl.distributed import World
from minidl.lab.emulator import Memory, own, translated
from minidl.ops import cuda
from minidl.ops.common.geometry import conv_geometry
from minidl.ops.common.region import Region
from minidl.ops.cuda import launch
from minidl.ops.cuda import region as generated
from minidl.ops.cuda.reduce import teams
from minidl.ops.cuda.region import lines
from minidl.ops.cuda.region.emit import Barriers

pytestmark = [pytest.mark.usefixtures("fp32"), needs_compiler]
FLOAT = np.float32
EMULATED = {f"{family}: {each}": each for family, rows in LAUNCHES.items() for each in rows if each.emulated}
OPS = sorted(CASES.keys() - {"conv2d", "cross_entropy", "nll_loss", "batch_norm", "unique"})
FUSED_STEPS = [name for name, (primitive, *_) in STEPS.items() if "conv2d" not in primitive]
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def emulated(compiler: Emulator) -> Iterator[Emulator]:
    with compiler.running() as running:
        yield running


# ---------------------------------------------------------------- every op, and every fused primitive
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_ops(op: str, emulated: Emulator) -> None:
    """Some of its cases. What OPS leaves out, because it is given more than its Tensors, is launched below, and so are
    the algorithms of conv2d; unique is CuPy's own."""
    for case in CASES[op][::len(CASES[op]) // 3]:
        for got, want in zip(primitives.computed(case, cupy.asarray), primitives.computed(case, np.asarray),
                             strict=True):
            atol = primitives.bound(want, case.arrays(), FLOAT)
            np.testing.assert_allclose(got, want, rtol=0, atol=atol, strict=True)


@pytest.mark.parametrize("name", tiered(FUSED_STEPS, slow=12))
def test_fused_steps(name: str, emulated: Emulator) -> None:
    """Convolutions, of which `auto` would try each algorithm, are launched below."""
    step_agrees(*recorded(name, FLOAT, lambda a: wrap(cupy.asarray(a))), STEPS[name][0], atol=64)


@pytest.mark.parametrize("number", tiered(range(12), slow=1))
def test_random_nets(number: int, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets of all layers in training, as near to the CPU's float64 as float32's rounding explains. Convolutions are
    `direct`: nothing is measured here."""
    monkeypatch.setattr(cuda.conv, "fastest", lambda _, g, *__: "direct" if g.dense else "grouped")
    net = random_nets.net(number)
    reference = random_nets.notes(net)
    share, where = random_nets.worst(net, "cuda", False, reference, random_nets.allowed(net, reference))
    assert share < 0.1, f"{share:.3g} of its limit: {where}\n{net}"
    assert emulated.launched


@pytest.mark.parametrize("precision", tiered(["tf32", "bf16"], slow=0))
def test_a_step_in_nhwc(precision: str, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled step's program, with normalisation, a residual, a depthwise convolution and maxima, call by call;
    beside the CPU in fp32. The nearest bfloat16s decide otherwise at some maxima."""
    monkeypatch.setattr(cuda.conv, "fastest", lambda _, g, *__: "direct" if g.dense else "grouped")
    rng, results = np.random.default_rng(0), []
    x, labels = rng.standard_normal((3, 3, 7, 6), np.float32), np.array([1, 0, 2])
    for there in (np.asarray, cupy.asarray):
        device.set_precision("fp32" if there is np.asarray else precision)
        minidl.manual_seed(0)
        first, second, norm = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        apart, apart_norm = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16)
        third, output = nn.Conv2d(16, 8, 3, stride=2), nn.Linear(8, 3)
        layers = (first, apart, apart_norm, second, norm, third, output)
        for t in (t for layer in layers for _, t in layer.named_tensors()):
            t._data = there(t._data)

        def step(x: Tensor, labels: Tensor, layers: Any = layers) -> Tensor:
            first, apart, apart_norm, second, norm, third, output = layers
            y = ops.tanh(first(x))
            y = ops.tanh(apart_norm(apart(y)))
            y = ops.max_pool2d(ops.relu(norm(second(y)) + y), size=2, stride=1)
            y = ops.tanh(third(y))
            loss = ops.cross_entropy(output(ops.avg_pool2d(y, size=y.shape[2:]).flatten(1)), labels)
            loss.backward()
            return loss
        given = [wrap(there(x)), wrap(there(labels))]
        program, _ = record(step, tuple(given), {})
        found = optimised(program)
        assert any(call.name == "conv2d_nhwc" for call in found.calls) == (there is not np.asarray)
        held = [t._data for layer in layers for _, t in layer.named_tensors()]
        before = [np.array(array) for array in held]
        emulated.launched.clear()
        with launch.dry():
            ByCalls(found).values(arrays_of(found, given), [], Dry(found))
        assert not emulated.launched
        assert all(map(np.array_equal, before, held))              # running statistics, too
        loss = ByCalls(found).run(given)
        results.append([np.asarray(loss._data), *(np.asarray(p.grad._data) for layer in layers
                                                  for _, p in layer.named_parameters())])
    rounding = {"tf32": 4 * 2 ** -10, "bf16": 2 ** -4}[precision]
    for want, got in zip(*results, strict=True):
        if np.linalg.norm(want) > 1e-5:                # a bias before normalisation has none
            assert np.linalg.norm(got - want) <= rounding * np.linalg.norm(want)


class Allocator:
    """In place of CuPy's, which whoever asks for memory asks first."""

    def __init__(self, memory: Any):
        self.memory, self.take, self.flats = memory, lambda size: None, list[Any]()

    def flat(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self.flats.append(self.memory.empty(shape, dtype))
        return self.flats[-1]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        at = self.take(size)
        return (self.memory.empty(shape, dtype) if at is None else
                np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(at.ptr)).view(Memory))

    @contextlib.contextmanager
    def using(self, take: Any) -> Iterator[None]:
        before, self.take = self.take, take
        yield
        self.take = before


@pytest.mark.parametrize(("name", "images", "calls"), tiered([
    ("lenet5", 3, ["region_step"]), ("lenet5", 10, ["region_step"]),       # an output has a gradient's size
    ("krizhevsky2009", 3, ["region_step", "conv2d_act_pool_grad_wb"])], slow=0, several=True))
def test_launchers_make_gradients_where_the_mean_is_formed(
        name: str, images: int, calls: list[str], emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled step's program, call by call, with all gradients in one array, and without; to the same bits."""
    class Two(World):
        size, flats = 2, list[Any]()

        def mean(self, flat: Any) -> None:
            self.flats.append(flat)
            flat *= 3
    monkeypatch.setattr(cuda.conv, "fastest", lambda direction, g, dtype, arguments, able: next(
        algorithm for algorithm in ("whole_image", "gemm") if algorithm in able(direction, g, dtype)))
    minidl.manual_seed(0)
    net, world, rng = zoo.build(name), Two(), np.random.default_rng(0)
    for _, t in net.named_tensors():
        t._data = cupy.asarray(t._data)
    params = list(net.parameters())
    sgd, start = optim.SGD(params, 0.1), [np.array(p._data) for p in params]

    step = averaged_step(net, params, sgd, world)
    x = rng.standard_normal((images, *zoo.MODELS[name].shape)).astype(FLOAT)
    given = [wrap(cupy.asarray(x)), wrap(cupy.asarray(rng.integers(0, 10, images)))]
    program = optimised(record(step, tuple(given), {})[0])
    assert set(calls) <= {call.name for call in program.calls}
    allocator, results, streams = Allocator(emulated.memory), [], mock.Mock()
    streams.run = lambda number, waiting, primitive, arguments, options: primitive(*arguments, **options)
    with contextlib.ExitStack() as replaced:
        for where, what, value in (
                (launch, "empty", allocator.empty), (cupy, "empty", allocator.flat),
                (cupy.cuda, "using_allocator", allocator.using), (cupy.cuda, "get_allocator", lambda: allocator.take),
                (Memory, "data", property(lambda self: SimpleNamespace(ptr=self.ctypes.data, device_id=0, mem=None)))):
            replaced.enter_context(mock.patch.object(where, what, value, create=True))
        for in_one in (False, True):
            for p, value in zip(params, start, strict=True):
                p._data[...] = value
            ByCalls(program).values([t._data for t in given], [0.1], Buckets(program, streams) if in_one else None)
            results.append([np.array(p._data) for p in params])
    assert world.flats[-1] is allocator.flats[0]
    for plain, got, before in zip(*results, start, strict=True):
        np.testing.assert_array_equal(got, plain)
        assert not np.array_equal(got, before)


# precision, direction, x, w, stride -> what few_channels says
NOT_FEW = {
    ("tf32", "y", (1, 3, 9, 9), (2, 3, 3, 3), 1): "the precision is tf32 but it computes in bf16",
    ("bf16", "y", (1, 5, 9, 9), (2, 5, 3, 3), 1): "images have 5 channels but it takes 4 at most",
    ("bf16", "y", (1, 3, 9, 9), (2, 3, 3, 3), 2): "it needs stride 1 but it is 2x2",
    ("bf16", "dw", (1, 3, 9, 9), (2, 3, 3, 9), 1): "a filter of 3x9 taps does not fit the sums of a group, 8x8",
    ("bf16", "y", (1, 3, 400, 400), (2, 3, 3, 3), 1): "an image and the filters do not fit a block's 227 KB"}


@pytest.mark.parametrize("case", NOT_FEW, ids=str)
def test_what_few_channels_refuses(case: tuple[Any, ...], emulated: Emulator) -> None:
    precision, direction, x, w, stride = case
    g = conv_geometry(x, w, None, stride, 0, "few_channels")
    with precision_of(precision), pytest.raises(ValueError, match=rf"'few_channels' cannot compute {direction} of .*"
                                                                   rf"{NOT_FEW[case]}.*; use algorithm 'auto'"):
        cuda.conv._asked(direction, g, np.dtype(FLOAT), precision)


# ---------------------------------------------------------------- products of matrices in any order of memory
def _lying(rng: np.random.Generator, shape: tuple[int, ...]) -> Callable[[Callable[..., Any]], Any]:
    """What makes an array of small integers, so that sums are exact, with axes in any order, of which some have gaps or
    go backwards or have one element for all."""
    order, gaps = rng.permutation(len(shape)), rng.choice([1, 1, 2, -1], len(shape))
    one = rng.random(len(shape)) < 0.1
    stored = np.where(one, 1, np.array(shape, int) * np.abs(gaps)) if shape else ()
    values = rng.integers(-3, 4, tuple(stored[a] for a in order)).astype(FLOAT)

    def made(to: Callable[..., Any]) -> Any:
        x = to(values).transpose(np.argsort(order).tolist())[(..., *(slice(None, None, int(gap)) for gap in gaps))]
        return np.broadcast_to(x, shape)
    return made


@pytest.mark.parametrize("seed", tiered(range(24), slow=4))
def test_products_of_arrays_that_lie_in_any_way(seed: int, emulated: Emulator) -> None:
    """matmul with batches that broadcast, and einsum, both with gradients, to the last bit as NumPy's."""
    rng = np.random.default_rng(seed)
    for at in range(8):
        sizes = dict(zip("abcde", map(int, rng.choice([0, 1, 2, 3, 5, 18, 40], 5, p=[.04, .2, .16, .2, .2, .1, .1]))))
        if at % 2:
            equation = ""
            batches = [["a", "b"][2 - n:] for n in rng.integers(0, 3, 2)]
            shapes = [tuple(1 if letter in "ab" and rng.random() < 0.3 else sizes[letter] for letter in (*batch, *term))
                      for batch, term in zip(batches, ("cd", "de"), strict=True)]
        else:
            terms = ["".join(rng.permutation(list("abcde"))[:n]) for n in rng.integers(0, 5, 2)]
            left = [letter for letter in "abcde" if letter in terms[0] + terms[1] and rng.random() < 0.6]
            equation = f"{','.join(terms)}->{''.join(rng.permutation(left))}"
            shapes = [tuple(sizes[letter] for letter in term) for term in terms]
        made = [_lying(rng, shape) for shape in shapes]
        found = []
        for to in (np.asarray, cupy.asarray):
            tensors = [wrap(each(to)) for each in made]
            for t in tensors:
                t.requires_grad = True
            y = ops.einsum(equation, *tensors) if equation else ops.matmul(*tensors)
            gy = np.random.default_rng(at).integers(-3, 4, y.shape).astype(FLOAT)
            y.backward(wrap(to(gy)))
            found.append([np.asarray(a) for a in (y._data, *(t.grad._data for t in tensors))])
        arrays = [each(np.asarray) for each in made]
        want = np.einsum(equation, *arrays) if equation else np.matmul(*arrays)
        np.testing.assert_array_equal(found[0][0], want, err_msg=f"{equation} {shapes}")
        for got, want in zip(*found[::-1], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{equation} {shapes}")


# ---------------------------------------------------------------- the launches
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("what", [
    pytest.param(name, id=name, marks=marks(row.tier)) for name, row in EMULATED.items()])
def test_launches(what: str, emulated: Emulator) -> None:
    """Each launches a kernel of its file, and no algorithm refuses to compute y."""
    each, refused = EMULATED[what], convolutions.REFUSED.copy()
    emulated.launched.clear()
    each.run()
    its_own = {name for file in FILES if file.startswith(each.file) for name in kernels(file)}
    assert emulated.launched & (its_own or {Path(each.file).stem})              # a generated one is named as its file
    assert not [key for key in convolutions.REFUSED - refused if key[1] == "y"]


@pytest.mark.parametrize("name", [name for name, row in cuda.conv.ALGORITHMS.items() if None in (row.dx, row.dw)])
def test_a_direction_without_a_kernel_is_left_to_auto(name: str, emulated: Emulator,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Which measures nothing here."""
    monkeypatch.setattr(cuda.conv, "fastest", lambda direction, g, dtype, arguments, able: "implicit_gemm")
    convolutions.left_to_auto(name, emulated.memory)


@pytest.mark.parametrize(("name", "settings"), [
    ("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {}), ("AdamW", {}), ("RMSprop", {"centered": True}),
    ("Muon", {"lr": 0.1}), ("Muon", {"lr": 0.1, "ns_steps": 2, "normalized": True})])
def test_optimizers_clip_step_and_average(name: str, settings: dict[str, Any], emulated: Emulator) -> None:
    """Three steps with gradients clipped by their norm, and averaged weights, beside the CPU's."""
    found = []
    for to in (np.asarray, cupy.asarray):
        rng = np.random.default_rng(0)
        params = [wrap(to(rng.standard_normal(shape))) for shape in ((3, 4), (5, 2, 1, 2), (3, 4))]
        for p in params:
            p.requires_grad = True
        optimizer, ema = getattr(optim, name)(params, **settings), optim.EMA(params, 0.9)
        for _ in range(3):
            for p in params:
                p.grad = wrap(to(rng.standard_normal(p.shape)))
            norm = optim.clip_grad_norm(params, 1.0)
            optimizer.step()
            ema.update()
        arrays = [norm, *params, *map(wrap, ema._where_parameters_are())]
        found.append([np.asarray(t._data) for t in arrays])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_updates_refuse_what_does_not_fit(emulated: Emulator) -> None:
    primitives.refused_updates()


@pytest.mark.slow
def test_gemm_tiled_multiplies_without_register_tiles(emulated: Emulator) -> None:
    emulated.launched.clear()
    convolve(*CONVOLUTIONS[2][:4], ("gemm_tiled",))
    assert {name for name in emulated.launched if name.startswith("gemm_")} <= {"gemm_tiled", "gemm_finish"}
    assert "gemm_tiled" in emulated.launched


def test_tiled_constant_trains(emulated: Emulator) -> None:
    """Its gradient of the filters is that of `tiled`: they are no operand of it, so constant memory has no part."""
    problem = convolutions.drawn(conv_geometry(*CONVOLUTIONS[0][:2], None, 1, 0, "gemm"), 1, FLOAT)
    dw, tiled = (cuda.conv.ALGORITHMS[name].dw for name in ("tiled_constant", "tiled"))
    arrays = problem.on_cuda("dw")
    assert dw(*arrays, problem.g).tobytes() == tiled(*arrays, problem.g).tobytes()
    large = problem.g._replace(c=400, m=400)               # its filters exceed constant memory
    assert cuda.conv.refusal("tiled_constant", "y", large, np.dtype(FLOAT))
    assert cuda.conv.refusal("tiled_constant", "dw", large, np.dtype(FLOAT)) is None


@pytest.mark.slow
def test_gradients_of_lenet5_as_in_1998(emulated: Emulator) -> None:
    """A whole step of an image, beside the CPU's."""
    def step(to: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        minidl.manual_seed(0)
        net: Any = zoo.build("lenet5", original=True)
        for layer in (net.c1, net.c3, net.c5):
            layer.algorithm = "direct"
        for _, t in net.named_tensors():
            t._data = to(t._data)
        x = np.random.default_rng(0).standard_normal((1, 1, 32, 32), dtype=np.float32)
        net.loss(net(wrap(to(x))), wrap(to(np.array([3])))).backward()
        return {name: p.grad._data for name, p in net.named_parameters()}

    expected, found = step(np.asarray), step(cupy.asarray)
    assert len(expected) == 12
    for name, want in expected.items():
        np.testing.assert_allclose(found[name], want, rtol=0, atol=1e-5 * np.abs(want).max(), err_msg=name)


@pytest.mark.slow
def test_two_steps_of_a_residual_net(emulated: Emulator) -> None:
    """Beside the CPU's: parameters, running values, and evaluation by them."""
    def steps(to: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        minidl.manual_seed(0)
        net = zoo.build("resnet", depth=8, width=2)
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                layer.algorithm = "direct"
        for _, t in net.named_tensors():
            t._data = to(t._data)
        for seed in range(2):
            rng = np.random.default_rng(seed)
            net.zero_grad()
            x = wrap(to(rng.standard_normal((3, 3, 8, 8), np.float32)))
            ops.cross_entropy(net(x), wrap(to(np.array([3, 0, 9])))).backward()
            for p in net.parameters():         # by hand: NumPy's own functions give no array of the emulator's
                p._data = to(np.asarray(p._data) - np.float32(0.05) * np.asarray(p.grad._data))
        return {name: t._data for name, t in net.named_tensors()} | {"y": net.eval()(x)._data}

    expected, found = steps(np.asarray), steps(cupy.asarray)
    assert len(expected) == 38
    for name, want in expected.items():
        np.testing.assert_allclose(found[name], want, rtol=0, atol=2e-5 * max(1, np.abs(want).max()), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("over", "seen"), [(True, "[Nn]ot equal"), (False, "nan")])
def test_a_gradient_that_is_not_written_whole_is_seen(over: bool, seen: str, emulated: Emulator,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """What the windows leave must be cleared: memory that nobody wrote is NaN here, and on a GPU whatever lay there.
    Written over what the windows saw, that stays."""
    monkeypatch.setattr(lines.Layout, "partly", property(lambda layout: False, lambda layout, value: None))
    if not over:
        never = property(lambda source: {}, lambda source, value: None)
        monkeypatch.setattr(lines.Source, "over", never, raising=False)
    with pytest.raises(AssertionError, match=seen):
        regions.outputs_are_those_of_the_steps("windows that leave a column", 6)


@pytest.fixture
def unpoisoned(emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Generated kernels as a GPU has them: filling values with NaN takes barriers, behind which none is missed."""
    made = generated.constants
    monkeypatch.setattr(generated, "constants", lambda threads: (*made(threads), ("UNPOISONED", 1)))
    generated._generated.cache_clear()
    yield
    generated._generated.cache_clear()


@pytest.mark.parametrize("name", tiered(regions.NETS, slow=3))
def test_regions_with_the_barriers_of_a_gpu(name: str, unpoisoned: None) -> None:
    """Of more images than blocks."""
    regions.outputs_are_those_of_the_steps(name, 11)


@pytest.mark.parametrize("function", tiered(["conv", "avg_pool", "conv_total"], slow=3))
def test_a_barrier_that_the_generator_leaves_out_is_seen(function: str, unpoisoned: None,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a function's lines."""
    before = Barriers.before

    def without(self: Barriers, line: lines.Line, needed: bool = False) -> list[str]:
        return before(self, line, needed)[-1 if line.function == function and not needed else 0:]
    monkeypatch.setattr(Barriers, "before", without)
    with pytest.raises(AssertionError, match=r"[Nn]ot equal"):
        regions.outputs_are_those_of_the_steps("lenet5", 10)


def test_later_images_are_awaited(unpoisoned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's second image is copied as its first one is."""
    emit = sys.modules[Barriers.__module__]
    arrived = emit._arrived
    monkeypatch.setattr(emit, "_arrived", lambda rows: [
        text.replace(": await_copies<0>()", ": end_copies()") for text in arrived(rows)])
    with pytest.raises(AssertionError, match=r"[Nn]ot equal"):
        regions.outputs_are_those_of_the_steps("lenet5", 10)


@pytest.mark.slow
def test_one_image_is_taken_at_a_time_if_two_do_not_fit(emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of images, and beside other processes."""
    tried, emit = [], generated.emit

    def noted(region: Region, blocks: int, shares: int, images: int, most: int) -> Any:
        found = emit(region, blocks, shares, images, most)
        tried.append((region.n, images, found is not None))
        return found
    monkeypatch.setattr(generated, "emit", noted)
    monkeypatch.setitem(regions.NETS, "large", (lambda: regions.small(
        nn.Conv2d(1, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(16, 8, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(8 * 9 * 9, 10)), (1, 44, 44), {}))
    for n in (9, 3):
        regions.outputs_are_those_of_the_steps("large", n, beside=True)
    assert tried == [*[(9, 2, False), (9, 1, True)] * 2, (3, 1, True), (3, 2, False), (3, 1, True)]


def test_launches_are_told_apart() -> None:
    assert len(EMULATED) == sum(each.emulated for rows in LAUNCHES.values() for each in rows)


@pytest.mark.slow
def test_every_kernel_is_launched() -> None:
    """By the slow rows, ops and fused steps; so launch_all.py, which runs the same and more, leaves none out."""
    done = subprocess.run([sys.executable, "-O", str(TESTS / "launched.py")], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert {name for file in FILES for name in kernels(file)} - set(done.stdout.split()) == set()


# ---------------------------------------------------------------- the emulator's own eyes
BARRIER = "__syncthreads();"
Check = Callable[[], None]


def convolution(at: int, *names: str) -> Check:
    return lambda: convolve(*CONVOLUTIONS[at][:4], names)


def region_step(name: str, n: int = 10) -> Check:
    return lambda: regions.outputs_are_those_of_the_steps(name, n)


def sums_in_parts() -> None:
    """Of more images than a product takes at once."""
    with mock.patch.object(launch, "multiprocessors", return_value=132):
        regions.outputs_are_those_of_the_steps("linear", 300)


def linear() -> None:
    primitives.linear((7, 130, 19), FLOAT)


def copied_by_hardware() -> None:
    """One block takes three patches in turn, of a slab each; filters go round their buffers."""
    nhwc_conv.conv._plan.cache_clear()
    with mock.patch.object(launch, "multiprocessors", return_value=1):
        nhwc_conv.is_right("y", "bf16", (5, 64, 7, 9), (64, 64, 3, 3), 1, 1, -5)


def few_channels() -> None:
    """Three blocks take some patches each, of two slabs of filters."""
    nhwc_conv.conv._plan.cache_clear()
    with mock.patch.object(launch, "multiprocessors", return_value=1):
        nhwc_conv.is_right("y", "bf16", (20, 3, 16, 8), (8, 3, 3, 3), 1, 1)


def few_channels_in_rows() -> None:
    """And each third one of five in a row."""
    nhwc_conv.conv._plan.cache_clear()
    with mock.patch.object(launch, "multiprocessors", return_value=1):
        nhwc_conv.is_right("y", "tf32", (3, 3, 8, 70), (36, 3, 3, 3), 1, 1)


def gradient_of_filters(kind: str) -> Check:
    """Two blocks take some patches each, more than there are buffers."""
    return lambda: nhwc_grad_w.is_right((14, 40, 17, 10), (8, 40, 2, 3), 1, 0, kind, None, 2)


def gradient_of_rows(kind: str, filters: int = 80) -> Check:
    """Two blocks take some chunks each, more than there are buffers."""
    return lambda: nhwc_grad_w.is_right((8, 16, 17, 10), (filters, 16, 1, 1), 1, 0, kind, None, 2)


BY_HARDWARE: dict[str, Check] = {
    "convolution": copied_by_hardware,
    "gradient of filters in bf16": gradient_of_filters("bf16 images"),
    "gradient of filters in tf32": gradient_of_filters("tf32"),
    "gradient of rows in bf16": gradient_of_rows("bf16 images"),
    "gradient of rows in tf32": gradient_of_rows("tf32")}


def pooling(at: int) -> Check:
    def check() -> None:
        primitives.pooling(*POOLINGS[at], FLOAT)
        primitives.avg_pool2d_grad_act(*POOLINGS[at], "relu", FLOAT)
    return check


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HARDWARE)
@pytest.mark.usefixtures("emulated")
def test_copies_by_hardware(name: str) -> None:
    """What is mutated below, as it is."""
    BY_HARDWARE[name]()


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
def test_sums_over_images_in_parts() -> None:
    """What is mutated below, as it is."""
    sums_in_parts()


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
        f"row.v[i] * column.v[i];\n        }}\n        {BARRIER}", "row.v[i] * column.v[i];\n        }", linear,
        "tolerance"),
    "no barrier between uses of one array": (
        f"    {BARRIER}  // whoever reads the values of an earlier call is done", "",
        lambda: primitives.cross_entropy_of_any_size(3, 1500), "[Nn]ot equal"),
    "no barrier between steps of an image": (
        f"    {BARRIER}\n    each_of_all<IN>(", "    each_of_all<IN>(",
        region_step("lenet5"), "[Nn]ot equal"),
    "two images in one place": (
        "{start + image * IMAGE_STRIDE}", "{start}", region_step("lenet5"), "[Nn]ot equal"),
    "an image that is not there": (
        "if (image >= count) return;\n        REAL total", "REAL total", region_step("lenet5", 11), "[Nn]ot equal"),
    "sums: images that are not there yet": (
        f"await_copies<STAGES - 1>();\n        {BARRIER}\n        const REAL *left", "const REAL *left", sums_in_parts,
        "tolerance"),
    "sums: images of the next part too soon": (
        f"await_copies<STAGES - 1>();\n        {BARRIER}\n        const REAL *left",
        f"await_copies<STAGES>();\n        {BARRIER}\n        const REAL *left", sums_in_parts, "tolerance"),
    "sums: images that are copied over": (
        f"* y.v[e % 4];\n        }}\n        {BARRIER}", "* y.v[e % 4];\n        }", sums_in_parts, "[Nn]ot equal"),
    "sums: a warp's that nobody adds": (
        "for (int k = 1; k < WARPS; ++k) total", "for (int k = 2; k < WARPS; ++k) total", sums_in_parts, "tolerance"),
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
        "step /= 2) mine.merge(", "step /= 2) if (threadIdx.x % 2) break; else mine.merge(",
        lambda: primitives.softmax((5, 7), 1, np.float64), "for ever"),
    "an element that nobody set to zero": (
        "fetched[i * SLOT + SLOT - 1] = 0;", "", lambda: primitives.conv2d_act_pool_grad_wb(*FUSED[0], "tanh", FLOAT),
        "tolerance"),
    "shared memory that nobody cleared": (
        "*(Pack<4>*)&memory[i] = Pack<4>();", ";", region_step("padded, odd sizes", 1), "[Nn]ot equal"),
    "shared memory behind its end": (
        "columns[s % KW * pitch", "columns[(s % KW + 1) * pitch", pooling(0), "behind its end"),
    "results behind their end": (
        "if (row >= p.rows || column >= p.cols) return;", "", linear, "behind an array"),
    "a filter row too few": ("r < KH + TH - 1", "r < KH + TH - 2", region_step("lenet5", 1), "[Nn]ot equal"),
    "a sum without its last part": (
        "s < p.splits;", "s < p.splits - 1;",
        lambda: primitives.product(70, 5, 300, (False, False), FLOAT), "tolerance"),
    "a part of a tile that nobody adds": (
        "if (k * p.each < slabs[j])", "if (k * p.each < slabs[j] - p.slabs)", convolution(-1, "winograd_4x4"),
        "tolerance"),
    "a run that begins with another tile": (
        "across = tile / p.down - product * p.across;", "across = 0;",
        lambda: in_shares_and_runs((7, 40, 30, 30), (24, 40, 3, 3), ("winograd_4x4",), FLOAT), "tolerance"),
    "a wrong stride": ("(at.high * p.h + r) * p.w + s", "(at.high * p.h + r) * p.pw + s", convolution(0, "whole_image"),
                       "tolerance"),
    "a pixel's neighbour in another layout": (
        "LAYOUT == CHWN ? n : 1", "LAYOUT == CHWN ? c : 1", lambda: in_layouts("direct", FLOAT, 0), "tolerance"),
    "a map of another thread": (
        "m = m0 + lane % MAPS", "m = m0 + (lane ^ 1) % MAPS", lambda: in_layouts("tiled", FLOAT, 0), "tolerance"),
    "a window beyond the image": ("imin(g.kw, g.w - s)", "g.kw", pooling(2), "[Nn]ot equal"),
    "an update of each second element": (
        "k < ELEMENTS_PER_THREAD", "k < ELEMENTS_PER_THREAD / 2", primitives.sgd_changes_only_what_it_was_given,
        "[Nn]ot equal"),
    "an image that another bit mirrors": (
        "flip && word[1] & 1", "flip && word[1] & 2",
        lambda: primitives.augmented_gather((5, 2, 9, 11), Augment(flip=True), 0, FLOAT), "[Nn]ot equal"),
    "an image that is moved further the more channels there are": (
        "row + down, s", "row + down + channel, s",
        lambda: primitives.augmented_gather((5, 2, 9, 11), Augment(4), 0, FLOAT), "[Nn]ot equal"),
    "a mirror that shows the outermost pixel twice": (
        "2 * last - i", "2 * last + 1 - i",
        lambda: primitives.augmented_gather((5, 2, 9, 11), Augment(4, reflect=True), 0, FLOAT), "[Nn]ot equal"),
    "an image that another word brightens": (
        "word[3] >> 32", "word[2] >> 32",
        lambda: primitives.augmented_gather((5, 2, 9, 11), Augment(brightness=0.5), 0, FLOAT), "[Nn]ot equal"),
    "an epoch without its last row": (
        "at < count ?", "at < count - 1 ?", lambda: primitives.next_rows((7, 3), 7, FLOAT), "[Nn]ot equal"),
    "parts of a set that count alike": (
        "return imin(g.chunk, size - split * g.chunk);", "return g.chunk;",
        lambda: primitives.normalization(*NORMS[4], True, FLOAT), "[Nn]ot equal"),
    "a channel's neighbour's weight": (
        "(base + i) / g.spread;", "(base + i) / g.spread ^ 1;",
        lambda: primitives.normalization(*NORMS[-3], True, FLOAT), "[Nn]ot equal"),
    "a turn that nobody gives": (
        "if (group == 1) give_turn(0);", "", lambda: tensor_cores("wgmma"), "for ever"),
    "a matrix's halves too near each other": (
        "(unsigned long long)COLUMNS << 16", "(unsigned long long)(COLUMNS / 2) << 16",
        lambda: tensor_cores("wgmma"), "tolerance"),
    "an operand that is not rounded to tf32": (
        "part ? lost_of(x, tf32(x)) : tf32(x)", "__float_as_uint(x)",
        lambda: tensor_cores(), "not rounded to tf32"),
    "an odd column that is the even one": (
        "at.low * 2 + at.middle;", "at.low * 2;", lambda: tensor_cores("few_channels", "bf16"), "tolerance"),
    "a row of taps that begins too early": (
        "2 * p.line - s;", "p.line - s;", lambda: tensor_cores("few_channels", "bf16"), "tolerance"),
    "gradients that are read before they are there": (
        "await_copies<STAGES - 1>();", "await_copies<STAGES>();", lambda: tensor_cores("few_channels", "bf16"),
        "tolerance"),
    "gradients that another step has copied over": (
        "stage ? stage - 1 : STAGES - 1", "stage", lambda: tensor_cores("few_channels", "bf16"), "tolerance"),
    "a patch whose lines are too near each other": (
        "line += patch.line * 128;", "line += patch.w * 128;", copied_by_hardware, "of its bound"),
    **{f"{name}: what is read before it is there": (
        "await(full + stage.at, stage.parity);", "", check, "of its bound|for ever|not rounded to tf32")
        for name, check in BY_HARDWARE.items()},
    **{f"{name}: what is copied over": (
        "await(empty + stage.at, stage.parity ^ 1);", "", check, "of its bound|for ever")
        for name, check in BY_HARDWARE.items()},
    **{f"{name}: phases that count alike": ("parity ^= 1;", "", check, "of its bound|for ever")
        for name, check in BY_HARDWARE.items()},
    "a patch that the last of its products does not give back": (
        "arrive(empty + used);\n                arrive(empty_patch + (buffer.at ^ 1));", "arrive(empty + used);",
        copied_by_hardware, "for ever"),
    "few channels: a second tap that is the next pixel": (
        "(unsigned)(second - first) << 16", "1u << 16", few_channels, "of its bound"),
    "few channels: filters of the first slab": (
        "pair / 4 * (SLAB / 16) + pair % 4 * 2)", "pair % 4 * 2)", few_channels, "of its bound"),
    "few channels: filters in another order": (
        "first + filter_of_row<ORDER>(row)", "first + row", few_channels, "of its bound"),
    "few channels: a square that is written while it is copied": (
        "if (copies) await_stores();\n        __syncthreads();", "__syncthreads();", few_channels, "of its bound"),
    "few channels: a square that is copied while it is written": (
        "publish();\n        __syncthreads();", "publish();", few_channels, "of its bound|two runs differ"),
    "few channels: a patch in the row before": (
        "w >= patch.wide * patch.w", "w > patch.wide * patch.w", few_channels_in_rows, "of its bound"),
    "few channels: pixels of another image": (
        "(unsigned)row < (unsigned)g.h &&", "row < g.h &&", few_channels, "of its bound|outside"),
    **{f"gradients that the products of {kind} do not give back": (
        "if (lane == 0) arrive(empty + stage.at);", "", gradient_of_filters(kind), "for ever")
        for kind in ("bf16 images", "tf32")},
    "taps of a gradient whose lines are too near each other": (
        "r * patch.line + at", "r * patch.w + at", gradient_of_filters("bf16 images"), "of its bound"),
    "eights of pixels that are too near each other": (
        "pixels_of(meets + shift[t] * 128, x_down)", "pixels_of(meets + shift[t] * 128, 1024)",
        gradient_of_filters("bf16 images"), "of its bound"),
    "gradients that are not where they were put": (
        "((warp * 2 + lane / 8 % 2) ^ row) * 16", "(warp * 2 + lane / 8 % 2) * 16",
        gradient_of_filters("bf16 images"), "of its bound"),
    "numbers that are not where they were put": (
        "(piece ^ (q & 7)) * 16", "piece * 16", gradient_of_filters("tf32"), "of its bound"),
    "a block that leaves out its last patch": (
        "((int)blockIdx.y < g.more);", "((int)blockIdx.y < g.more) - 1;",
        gradient_of_filters("tf32"), "of its bound"),
    **{f"rows that the products of {kind} do not give back": (
        "if (threadIdx.x % 32 == 0 && free >= 0) arrive(empty + free);", "", gradient_of_rows(kind), "for ever")
        for kind in ("bf16 images", "tf32")},
    "slabs of filters that are too near each other": (
        "transposed_factor(dy + row * 128, SLAB)", "transposed_factor(dy + row * 128, SLAB / 2)",
        gradient_of_rows("bf16 images", 136), "of its bound"),
    "rows that are not where they were put": (
        "(own / 4 ^ 2 * within) * 16", "own / 4 * 16", gradient_of_rows("tf32"), "of its bound"),
    "a block that leaves out its last rows": (
        "g.each + ((int)blockIdx.y < g.more);", "g.each + ((int)blockIdx.y < g.more) - 1;", gradient_of_rows("tf32"),
        "of its bound"),
}


def tensor_cores(name: str = "tensor_core_image", precision: str = "tf32") -> None:
    with precision_of(precision):
        convolution(1, name)()


def test_what_is_mutated_stands_in_a_source() -> None:
    """Most mutations run deep: a source that changes must not leave one without anything to mutate."""
    files = Path(minidl.__file__).parent.rglob("*")
    sources = [file.read_text("utf-8") for file in files if file.suffix in {".cu", ".cuh", ".py"}]
    assert [what for what, (old, *_) in MUTATIONS.items() if not any(old in text for text in sources)] == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("what", tiered(MUTATIONS, slow=8))
def test_a_mutation_is_caught(what: str, compiler: Emulator) -> None:
    old, new, check, message = MUTATIONS[what]
    changed = []

    def mutated(text: str, name: str) -> str:
        changed.extend([name] * (old in text))
        return translated(text.replace(old, new), name)
    with (mock.patch.object(own, "translated", mutated), compiler.running(),
          pytest.raises(AssertionError, match=message)):
        check()
    assert changed, f"no source that was compiled holds {old!r}: correct the mutation"


# ---------------------------------------------------------------- how work is shared
@pytest.mark.parametrize(("shape", "axis", "blocks", "launches"), [
    ((1 << 22, 4), (0,), 512, 2), ((4, 1 << 22), (1,), 512, 2), ((2048, 1 << 15), (0, 1), 512, 2),
    ((1021, 997), (0,), 128, 2), ((128, 1, 28, 28), (0, 2, 3), 16, 2), ((2048, 1 << 15), (1,), 512, 1),
    ((2048, 1 << 15), (0,), 512, 1), ((1021, 997), (1,), 512, 1), ((4, 1 << 22), (0,), 512, 1),
    ((128, 1000), (0,), 32, 1), ((128, 1000), (1,), 128, 1), ((64, 256, 64), (1,), 128, 1), ((16, 16), (1,), 1, 1)])
def test_long_sets_have_several_blocks(shape: tuple[int, ...], axis: tuple[int, ...], blocks: int,
                                       launches: int) -> None:
    """As many at least as keep a GPU busy, and one launch where that is enough."""
    steps = tuple(math.prod(shape[a + 1:]) for a in range(len(shape)))
    plan = teams.shared_out(shape, steps, axis)
    assert plan is not None
    assert plan.grid >= blocks
    assert (2 if plan.splits > 1 else 1) == launches
    assert plan.splits * plan.chunk >= plan.size


def test_teams_are_parts_of_a_warp_or_blocks() -> None:
    """What kernels require of them (teams.cuh, rows.cuh): two teams of 128 threads would share one sum."""
    sizes = sorted({max(1, (1 << i) + more) for i in range(21) for more in (-1, 0, 1, 6)})
    for rows, size, neighbours, tiled in itertools.product(sizes, sizes, (1, 2, 33, 5000), (False, True)):
        lanes, across, splits, chunk = teams.teams_of(rows, size, neighbours, tiled=tiled)
        assert lanes * across in (1, 2, 4, 8, 16, 32, 256), (rows, size, neighbours, tiled)
        assert splits * chunk >= size
