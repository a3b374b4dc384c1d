"""A step's images one by one: which calls become a region, what a region computes, and its generated kernel."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from checks.regions import NETS, krizhevsky, lenet, outputs_are_those_of_the_steps, recorded, small, with_backend
from tiers import tiered

import minidl
from minidl import Tensor, nn, ops, optim
from minidl.compiler.passes import dead_code, optimised
from minidl.compiler.passes.fusion import fuse
from minidl.compiler.passes.regions import REGIONAL, join_regions
from minidl.compiler.program import Program
from minidl.compiler.record import record
from minidl.compiler.replay import ByCalls
from minidl.ops import cpu
from minidl.ops.common.primitives import PRIMITIVES
from minidl.ops.common.region import Region, by_steps

SHARED = 232448                            # bytes of shared memory that a block of an H200 may have


def region_of(program: Program, monkeypatch: pytest.MonkeyPatch, takes: Any = lambda region: True) -> Region | None:
    monkeypatch.setattr(cpu, "can_region_step", takes)
    found = [call for call in join_regions(program).calls if call.name == "region_step"]
    return found[0].arguments[0] if found else None


def only_linear(region: Region) -> bool:
    """A backend to which convolutions are too much."""
    return not any(step.primitive.startswith("conv2d") for step in region.steps)


# ---------------------------------------------------------------- the pass
def test_a_whole_step_is_one_call_and_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = recorded(lenet(), 5, (1, 32, 32))
    monkeypatch.setattr(cpu, "can_region_step", lambda region: True)
    names = [call.name for call in join_regions(program).calls]
    assert [name for name in names if name not in ("copy", "check_labels")] == ["region_step", "sgd"]
    assert join_regions(program).notes[-1] == f"regions: {len(program.calls) - len(names)} calls fewer"


def test_where_convolutions_are_too_much_the_linear_layers_are_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = recorded(krizhevsky(), 3, (3, 32, 32))
    region = region_of(program, monkeypatch, only_linear)
    assert region is not None
    assert [step.primitive for step in region.steps] == [
        "linear", "cross_entropy_with_grad", "linear_grad_x", "linear_grad_w", "linear_grad_b", "reshape"]


@pytest.mark.parametrize("takes", [lambda region: True, only_linear])
@pytest.mark.parametrize(("net", "shape"), [(lenet, (1, 32, 32)), (krizhevsky, (3, 32, 32))])
def test_the_program_computes_the_same(net: Any, shape: tuple[int, ...], takes: Any,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU a region is its steps: the same bits."""
    program, arrays = recorded(net(), 4, shape)
    monkeypatch.setattr(cpu, "can_region_step", takes)
    changed = join_regions(program)
    assert len(changed.calls) < len(program.calls)
    start = [leaf.data.copy() for leaf in program.changed]
    results = []
    for each in (program, changed):
        for leaf, first in zip(program.changed, start, strict=True):
            leaf.data[...] = first
        loss = ByCalls(each).run(arrays)
        results.append([loss.numpy(), *(leaf.data.copy() for leaf in program.changed)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_program_that_no_backend_takes_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = recorded(lenet(), 2, (1, 32, 32))
    assert region_of(program, monkeypatch, lambda region: False) is None
    assert join_regions(program) is program


def test_no_region_is_built_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no kernel for one; a backend that has is asked."""
    program, _ = recorded(lenet(), 2, (1, 32, 32))
    assert "region_step" not in {call.name for call in optimised(program).calls}
    monkeypatch.setattr(cpu, "can_region_step", lambda region: True)
    assert "region_step" in {call.name for call in optimised(program).calls}


def test_without_a_loss_there_is_no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.ones((4, 3), np.float32))
    program, _ = record(lambda x: ops.tanh(x).sum(), (x,), {})
    assert region_of(fuse(program), monkeypatch) is None


def test_nothing_moves_across_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a second forward reads was changed by the first one's update."""
    layer, rng = nn.Linear(6, 3), np.random.default_rng(0)
    sgd = optim.SGD(layer.parameters(), lr=0.1)
    x, labels = Tensor(rng.standard_normal((4, 6)).astype(np.float32)), Tensor(np.arange(4) % 3)

    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        ops.cross_entropy(layer(x), labels).backward()
        sgd.step()
        return ops.tanh(layer(x))
    program, _ = record(step, (x, labels), {})
    monkeypatch.setattr(cpu, "can_region_step", lambda region: True)
    names = [call.name for call in join_regions(fuse(program)).calls if call.name != "check_labels"]
    assert names[:2] == ["region_step", "sgd"]
    assert names[2:] == ["linear_act"]


def test_what_waits_for_a_stranger_is_not_of_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Max pooling is no primitive of regions: the region starts behind it, and ends where its gradient is wanted."""
    net = small(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 10))
    program, _ = recorded(net, 3, (1, 8, 8))
    monkeypatch.setattr(cpu, "can_region_step", only_linear)
    calls = [call.name for call in join_regions(program).calls]
    assert calls.index("max_pool2d") < calls.index("region_step") < calls.index("max_pool2d_grad_x")
    assert calls[-1] == "sgd"


def test_a_parameter_that_the_step_makes_is_not_of_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it has as many rows as there are images: a block would find one of them, and read all."""
    w, rng = Tensor(np.ones((3, 4), np.float32), requires_grad=True), np.random.default_rng(0)
    x, labels = Tensor(rng.standard_normal((3, 4)).astype(np.float32)), Tensor(np.arange(3))

    def step(x: Tensor, labels: Tensor) -> Tensor:
        loss = ops.cross_entropy(ops.linear(x, ops.tanh(w)), labels)
        loss.backward()
        return loss
    program, _ = record(step, (x, labels), {})
    region = region_of(fuse(program), monkeypatch)
    assert region is not None
    assert [step.primitive for step in region.steps] == ["linear", "cross_entropy_with_grad", "linear_grad_w"]


def test_what_reads_a_gradient_of_parameters_is_not_of_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a sum over all images, even where it has as many rows."""
    layer, rng = nn.Linear(6, 4), np.random.default_rng(0)
    x, labels = Tensor(rng.standard_normal((4, 6)).astype(np.float32)), Tensor(np.arange(4))

    def step(x: Tensor, labels: Tensor) -> Tensor:
        ops.cross_entropy(layer(x), labels).backward()
        return ops.tanh(layer.weight.grad)
    program, _ = record(step, (x, labels), {})
    program = dead_code(fuse(program))
    region = region_of(program, monkeypatch)
    assert region is not None
    assert "linear_grad_w" in [step.primitive for step in region.steps]
    assert [call.name for call in join_regions(program).calls if call.name != "check_labels"] == ["region_step", "tanh"]


def test_equal_steps_are_equal_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they are compiled once."""
    one, same, other = (region_of(recorded(lenet(), n, (1, 32, 32))[0], monkeypatch) for n in (3, 3, 4))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert repr(one).startswith("Region(conv2d_act_pool, conv2d_act_pool, conv2d_act, reshape, linear_act, linear, ")


# ---------------------------------------------------------------- the kernel
def test_every_primitive_of_regions_is_in_a_net(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = [region_of(recorded(net(), 3, shape, **options)[0], monkeypatch) for net, shape, options in NETS.values()]
    assert {step.primitive for region in regions if region for step in region.steps} == set(REGIONAL)


def test_every_primitive_of_regions_has_its_lines() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the generator cannot be imported")
    from minidl.ops.cuda.region import lines

    for name, known in PRIMITIVES.items():
        assert bool(known.line) == bool(known.takes) == bool(known.gives), name
        assert not known.line or inspect.signature(getattr(lines, known.line)), name


REFUSED: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "doubles": (lenet, (1, 32, 32), {"dtype": "float64"}),
    "a stride": (lambda: small(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 10)), (1, 8, 8), {}),
    "a stride that leaves one output, behind padding": (
        lambda: small(nn.Conv2d(2, 3, 4, stride=2, padding=((1, 0), (0, 0))), nn.Tanh(), nn.Flatten(),
                      nn.Linear(3, 10)), (2, 4, 4), {}),
    "filters of many taps": (lambda: small(nn.Conv2d(1, 2, 7), nn.Flatten(), nn.Linear(18, 10)), (1, 9, 9), {}),
    "windows that overlap": (lambda: small(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2, stride=1), nn.Flatten(),
                                           nn.Linear(50, 10)), (1, 8, 8), {}),
    "an algorithm that was asked for": (lambda: small(nn.Conv2d(1, 2, 3, algorithm="direct"), nn.Flatten(),
                                                      nn.Linear(72, 10)), (1, 8, 8), {}),
    "more weights than a block should read": (lambda: small(nn.Flatten(), nn.Linear(1024, 100)), (1, 32, 32), {}),
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_has_a_kernel_of_one_block_to_an_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the generator cannot be imported")
    from minidl.ops.cuda.region.emit import emit

    net, shape, options = NETS[name]

    def takes(region: Region) -> bool:
        return emit(region, 3, 640, 1, SHARED // 4) is not None

    region = region_of(recorded(net(), 3, shape, **options)[0], monkeypatch, takes)
    assert region is not None
    assert any(step.primitive.startswith("conv2d") for step in region.steps) == (name not in (
        "linear", "linear, gelu", "krizhevsky2009's end"))


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the generator cannot be imported")
    from minidl.ops.cuda.region.emit import emit

    net, shape, options = REFUSED[name]
    region = region_of(recorded(net(), 3, shape, **options)[0], monkeypatch)
    assert region is not None
    assert emit(region, 3, 640, 1, SHARED // 4) is None


# A net, the size of its blocks, and how many registers may be stored and loaded: one or two of the 96 that are left to
# each of 640 threads, or of the 80 to each of 768.
REGISTERS = [("lenet5", "SHARING", 0), ("lenet5", "ONE", 0), ("lenet5", "TWO", 0), ("padded, odd sizes", "ONE", 8),
             ("krizhevsky2009's end", "ONE", 0)]


@pytest.mark.parametrize(("architecture", "name", "size", "most"), tiered(
    [(architecture, *kernel) for architecture in (90, 75, 80, 86, 100, 120) for kernel in REGISTERS], slow=1,
    several=True))
def test_generated_kernels_compile_and_keep_to_registers(architecture: int, name: str, size: str, most: int,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the generator cannot be imported")
    pytest.importorskip("cuda.core", reason="cuda.core is not installed: nothing compiles CUDA without a GPU")
    from checks.sources import compiled, spilled

    from minidl.ops.cuda import launch
    from minidl.ops.cuda import region as regions
    from minidl.ops.cuda.region.emit import emit

    share = getattr(regions, size)
    net, shape, options = NETS[name]
    takes = only_linear if name.endswith("end") else lambda region: True
    region = region_of(recorded(net(), 3, shape, **options)[0], monkeypatch, takes)
    assert region is not None
    emitted = emit(region, 3, share.shares, share.images, SHARED // 4)
    assert emitted is not None
    text = launch.pasted("region_step.cu", emitted.text, set())
    spills = spilled(compiled(text, regions.constants(share.threads), architecture))
    assert (spills["region_step"] <= most, spills["sums"]) == (True, 0)


@pytest.mark.parametrize("name", NETS)
def test_values_that_are_needed_at_one_time_are_in_different_places(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line's own, those that an earlier one wrote and a later one reads, and those with zeros beside them. Where
    values share a place, there is a barrier between their lines."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the generator cannot be imported")
    from minidl.ops.cuda.region import lines
    from minidl.ops.cuda.region.emit import emit, ordered, placed, with_stores

    net, shape, options = NETS[name]
    takes = only_linear if name.endswith("end") else lambda region: True
    region = region_of(recorded(net(), 3, shape, **options)[0], monkeypatch, takes)
    assert region is not None
    source = lines.Source(region, 640)
    for step in region.steps:
        getattr(lines, PRIMITIVES[step.primitive].line)(source, step)
    source.lines = ordered(with_stores(source))
    places = placed(source)
    written: dict[Any, int] = {}
    used: dict[Any, int] = {}
    for i, line in enumerate(source.lines):
        for value in line.writes:
            written.setdefault(value, i)
        for value in (*line.writes, *line.reads):
            used[value] = i
    whole = {value for value in written if source.layouts[value].room or source.layouts[value].partly}
    for i, line in enumerate(source.lines):
        needed = {value for value in written if written[value] <= i <= used[value]} | whole
        for one, other in itertools.combinations(sorted(needed), 2):
            same = source.root(one) == source.root(other)
            a, b = places[source.root(one)], places[source.root(other)]
            assert same or a.stop <= b.start or b.stop <= a.start, (line, one, other)
    text = emit(region, 3, 640, 1, SHARED // 4).text
    read, wrote = set[int](), set[int]()                   # numbers of shared memory, since the last barrier
    for line in source.lines:
        reads, writes = ({k for value in values for k in places[source.root(value)]}
                         for values in (line.reads, line.writes))
        found = re.search(re.escape(line.text(-1)).replace(re.escape("<-1, "), r"<\d+, "), text)
        if not found:                                      # a reshape without a copy
            assert line.function == "copy"
            continue
        if "__syncthreads();" in text[:found.start()]:
            read, wrote = set(), set()
        text = text[found.end():]
        assert wrote.isdisjoint(reads | writes), line
        assert read.isdisjoint(writes), line
        read, wrote = read | reads, wrote | writes
    for value, root in source.alias.items():               # a reshape, or written over what nothing reads any more
        assert value in source.reshaped or used[root] == written[value]
        assert value not in whole
        assert root not in whole
    if name == "lenet5":                                   # two images fit a multiprocessor
        assert max(place.stop for place in places.values()) < SHARED // 8 < sum(map(len, places.values()))


def emitted_lenet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """LeNet-5's kernels, with a block per multiprocessor."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the generator cannot be imported")
    from minidl.ops.cuda.region.emit import emit

    region = region_of(recorded(lenet(), 3, (1, 32, 32))[0], monkeypatch)
    assert region is not None
    emitted = emit(region, 3, 640, 1, SHARED // 4)
    assert emitted is not None
    return emitted


def test_barriers_stand_between_what_writes_and_what_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nowhere else: gradients of one layer's filters, bias and input share one."""
    emitted = emitted_lenet(monkeypatch)
    lines = [line.strip() for line in emitted.text.splitlines() if "unwritten" not in line]
    at = {name: int(begin) for name, begin in re.findall(r"(\w+) = [{(].*shared \+ (\d+)", emitted.text)}
    rows = {name: math.prod(map(int, sizes)) for *sizes, name in re.findall(r"Rows<(\d+), (\d+)> (\w+)", emitted.text)}
    staged = [name for name, size in rows.items() if size]
    assert f"start_rows<{len(staged)}>(arrived);" in lines                 # behind all rows, and of the block
    assert at["arrived"] == max(at[name] + rows[name] for name in staged) == emitted.shared - 4
    assert at["arrived"] % 4 == 0
    of = {line.partition("<")[0]: i for i, line in reversed([*enumerate(lines)])}
    mirrored = next(i for i, line in enumerate(lines) if "true, 1, 14, 2" in line)
    assert [line.partition("<")[0] for line in lines[mirrored - 1:mirrored + 5]] == [
        "__syncthreads();", "conv", "conv_grad_w", "conv_grad_b", "__syncthreads();", "conv_total"]
    first = next(i for i, line in enumerate(lines) if line.startswith("load_images"))
    assert lines[first - 1] == "__syncthreads();"
    assert lines[first + 1:first + 8] == [
        "end_copies();", "if (first) {", "load_rows(w9, arrived);", "load_rows(w13, arrived);", "end_copies();", "}",
        "first ? await_copies<1>() : await_copies<0>();"]
    assert lines[first + 8] == "__syncthreads();"
    assert of["conv"] == first + 9
    assert not any(a == b == "__syncthreads();" for a, b in itertools.pairwise(lines))


def test_a_net_that_fits_in_the_steps_own_order_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few barriers more values are needed at one time."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the generator cannot be imported")
    from minidl.ops.cuda.region import lines
    from minidl.ops.cuda.region.emit import emit, ordered, placed, with_stores

    net = small(nn.Conv2d(1, 1, (2, 6), padding=1), nn.Conv2d(1, 16, (6, 3), padding=((2, 0), (0, 0))), nn.Sigmoid(),
                nn.Conv2d(16, 2, (5, 4), padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(442, 10))
    region = region_of(recorded(net, 3, (1, 21, 19))[0], monkeypatch)
    assert region is not None
    needed = []                                            # numbers of values, in both orders
    for order in (ordered, list):
        source = lines.Source(region, 384)
        for step in region.steps:
            getattr(lines, PRIMITIVES[step.primitive].line)(source, step)
        source.lines = order(with_stores(source))
        needed.append(max(place.stop for place in placed(source).values()))
    assert needed[0] > needed[1]
    assert emit(region, 3, 384, 1, needed[1]) is None      # no room for filters
    found = emit(region, 3, 384, 1, needed[0])
    assert found is not None
    assert found.shared <= needed[0]


def test_lines_between_barriers_begin_with_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that the lines before them leave idle, a warp being the least."""
    emitted = emitted_lenet(monkeypatch)
    found = re.findall(r"(conv(?:_grad_[wb])?)<(\d+), ", emitted.text)
    assert found == [("conv", "0"), ("conv", "0"), ("conv", "0"), ("conv_grad_w", "256"), ("conv_grad_b", "512"),
                     ("conv_grad_w", "0"), ("conv_grad_b", "224")]


# ---------------------------------------------------------------- on a GPU
@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 3, 130, 703])       # 300: checks/launches.py, for the sanitizers, too
@pytest.mark.parametrize("name", NETS)
def test_gpu_outputs_are_those_of_the_steps(name: str, n: int) -> None:
    """In float32, against the steps in float64 on the CPU; the sums over more images than blocks, too; the same bits
    twice, and every number written."""
    outputs_are_those_of_the_steps(name, n)


@pytest.mark.gpu
def test_gpu_an_input_with_gaps_in_memory() -> None:
    """Sums read inputs where they lie."""
    import cupy

    from minidl.ops import cuda

    program, (x, labels) = recorded(small(nn.Linear(35, 10)), 4, (35,))
    region, *slots = next(call for call in join_regions(with_backend(program, cuda)).calls
                          if call.name == "region_step").arguments
    given = dict(zip(program.inputs, (x, labels), strict=True))
    arrays = [slot.array if slot.array is not None else given[slot] for slot in slots]
    expected = by_steps(region, cpu, tuple(a.astype("d") if a.dtype == np.float32 else a for a in arrays))
    wide = [cupy.asarray(np.repeat(a, 2, axis=-1))[..., ::2] for a in arrays]
    assert not all(a.flags.c_contiguous for a in wide)
    for found, exact in zip(cuda.region_step(region, *wide), expected, strict=True):
        np.testing.assert_allclose(found.get(), exact, rtol=0, atol=1e-5 * max(np.abs(exact).max(), 1e-30))


@pytest.mark.gpu
def test_gpu_a_compiled_step_is_two_launches_and_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    from minidl.ops.cuda import launch

    launched: list[str] = []
    call = launch.Kernel.__call__

    def counted(self: Any, *arguments: Any, **options: Any) -> None:
        if not launch.is_dry():
            launched.append(self.name)
        call(self, *arguments, **options)

    net = lenet().to("cuda")
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @minidl.compile
    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        return loss
    x, labels = Tensor(np.zeros((8, 1, 32, 32), "f"), device="cuda"), Tensor(np.arange(8), device="cuda")
    for _ in range(2):
        step(x, labels)
    monkeypatch.setattr(launch.Kernel, "__call__", counted)
    step(x, labels)                                                        # the capture
    assert [name for name in launched if name != "poison"] == [
        "read_given", "copy_given", "region_step", "sums", "sgd", "copy_given"]    # a rate that is given, and the loss
