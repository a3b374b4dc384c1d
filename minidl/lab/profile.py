"""Where the time of a training step goes: each call of its program, with its bytes, FLOP and limit.

A step is recorded, and the calls of its program are made one after the other, each between two readings of the clock.
On a GPU these are events, behind a kernel that holds the stream until the host has queued all calls. A program is
profiled as it is replayed, or as it was before the passes, where each op is a call of its own.

Bytes are those of the arrays that a call reads and makes, each once, and once more what it changes in place; views move
none. FLOP are two for each multiply-add of convolutions and products, and one for each element of any other call's
largest array, or of all that it changes. Both follow from shapes alone: caches, workspaces and the FLOP of an
exponential are not in them. The limit of a call is the least time for its bytes or its FLOP.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..compiler import compile
from ..compiler.program import Call, Program, Slot, leaves
from ..compiler.replay import ByCalls, arrays_of
from ..core.mode import no_grad
from ..core.tensor import Tensor
from ..ops.common.geometry import ConvGeometry
from ..ops.common.primitives import known
from ..ops.common.region import Region, Value

KINDS = {"convolution": ("conv2d",), "pooling": ("avg_pool2d", "max_pool2d"),
         "full connection": ("linear", "matmul"), "activation": ("sigmoid", "tanh", "relu"),
         "update": ("sgd", "adam", "rmsprop", "ema", "square_sum", "scaled"), "region": ("region_step",),
         "loss": ("cross_entropy", "check_labels", "softmax", "log_softmax")}      # by how a primitive's name starts
HOLD = """
extern "C" __global__ void hold(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles;) {}
}"""
CYCLES = 20_000_000                        # that a GPU is held for: some ms, in which the host queues hundreds of calls

Shape = Sequence[int]


# ---------------------------------------------------------------- what a call has to do, by its shapes
def kind(name: str) -> str:
    """The kind of a primitive, among KINDS; else "other".

    >>> kind("conv2d_grad_w"), kind("copy")
    ('convolution', 'other')
    """
    return next((each for each, starts in KINDS.items() if name.startswith(starts)), "other")


# Of primitives that are products: their multiply-adds, by the shapes of what they are given and make
PRODUCTS: dict[str, Callable[[Sequence[Shape], Sequence[Shape]], int]] = {
    "matmul": lambda given, made: math.prod(made[0]) * given[0][-1],
    "matmul_grad_x": lambda given, made: math.prod(made[0]) * given[0][-1],
    "matmul_grad_y": lambda given, made: math.prod(made[0]) * given[0][-2],
    "attention": lambda given, made: 2 * math.prod(given[0]) * given[1][-2],       # scores, and sums of values
    "attention_grad": lambda given, made: 5 * math.prod(given[1]) * given[2][-2],  # scores again, four gradients
    "recurrence": lambda given, made: math.prod(given[0]) * given[1][-1],
    "recurrence_grad": lambda given, made: math.prod(given[1]) * given[2][-1]}


def flop_of(name: str, arguments: Iterable[Any], shapes: Sequence[Shape], made: Sequence[Shape]) -> int:
    """The FLOP of a primitive. shapes: of the arrays that it is given, in order; made: of those that it makes."""
    for g in arguments:
        if isinstance(g, ConvGeometry):
            return 2 * g.n * g.m * g.c * g.oh * g.ow * g.kh * g.kw
    if name.startswith("linear") and name != "linear_grad_b":  # a x b, b x c and a x c: the root of all is a x b x c
        return 2 * math.isqrt(math.prod(map(math.prod, (*shapes[:2], made[0]))))
    if name in PRODUCTS:
        return 2 * PRODUCTS[name](shapes, made)
    return max(map(math.prod, (*shapes, *made)), default=0)


def flop(call: Call) -> int:
    """Those of a program's call, also of a region; none if it only looks at its argument in another shape."""
    region = next(iter(call.arguments), None)
    if isinstance(region, Region):
        def shapes(values: Iterable[Any]) -> list[Shape]:
            return [region.shapes[value.number] for value in values if isinstance(value, Value)]
        return sum(flop_of(step.primitive, step.arguments, shapes(step.arguments), shapes(step.results))
                   for step in region.steps if not known(step.primitive).shares)
    if call.known.shares:
        return 0
    return max(sum(math.prod(slot.shape) for slot in changed(call)), flop_of(
        call.name, call.arguments, [slot.shape for slot in call.reads], [slot.shape for slot in call.results]))


def changed(call: Call) -> list[Slot]:
    """The values that a call changes in place."""
    return [slot for i in call.known.changes for slot in leaves(call.arguments[i]) if isinstance(slot, Slot)]


def moved(call: Call) -> int:
    """The bytes that a call moves."""
    return 0 if call.known.shares else sum(
        math.prod(slot.shape) * slot.dtype.itemsize
        for slot in (*dict.fromkeys((*call.reads, *call.results)), *changed(call)))


# ---------------------------------------------------------------- measuring
class Clock:
    """Makes the calls of a program and notes their times. ByCalls uses it like what takes calls to other streams."""

    def __init__(self, device: str):
        self.device, self.marks = device, list[tuple[Any, Any]]()

    def _now(self) -> Any:
        if self.device == "cpu":
            return time.perf_counter()
        import cupy

        event = cupy.cuda.Event()
        event.record()
        return event

    def run(self, number: int, waiting: int | None, primitive: Callable[..., object], arguments: list[Any],
            options: dict[str, Any]) -> Any:
        begin = self._now()
        result = primitive(*arguments, **options)
        self.marks.append((begin, self._now()))
        return result

    def seconds(self) -> list[float]:
        """Those of each call since this was last called."""
        marks, self.marks = self.marks, []
        if self.device == "cpu":
            return [end - begin for begin, end in marks]
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
        return [cupy.cuda.get_elapsed_time(begin, end) / 1e3 for begin, end in marks]


def times(program: Program, given: list[Any], device: str, warmup: int, repeats: int) -> list[list[float]]:
    """Seconds of each call of a program, as often as `repeats` says."""
    calls, clock, hold = ByCalls(program), Clock(device), None
    if device == "cuda":
        import cupy

        hold = cupy.RawKernel(HOLD, "hold")
    found = []
    for _ in range(warmup + repeats):
        if hold is not None:
            hold((1,), (1,), (np.int64(CYCLES),))
        numbers = [dynamic.read() for dynamic in program.dynamics]
        calls.values(arrays_of(program, given), numbers, clock)  # type: ignore[arg-type]  # it makes calls as well
        found.append(clock.seconds())
    return [list(of) for of in zip(*found[warmup:], strict=True)]


# ---------------------------------------------------------------- a step's calls
def limits(device: str) -> dict[str, float]:
    """{"bytes", "flop"} per second that a copy and a product of matrices reach here, at the precision in use."""
    n, size = (1 << 26, 4096) if device == "cuda" else (1 << 24, 1024)
    a, x, y = (Tensor(np.ones(shape, np.float32), device=device) for shape in ((size, size), n, n))
    clock = Clock(device)

    def copy() -> None:
        y.data[...] = x.data

    def product() -> None:
        ops.matmul(a, a)

    found = []
    with no_grad():
        for call in (copy, product):
            for _ in range(6):
                clock.run(0, None, call, [], {})
            found.append(min(clock.seconds()[1:]))
    return {"bytes": 8 * n / found[0], "flop": 2 * size ** 3 / found[1]}


def profile(step: Callable[..., Any], *given: Tensor, passes: bool = True, warmup: int = 3,
            repeats: int = 20) -> list[dict[str, Any]]:
    """A row for each call of a step, in their order: what it makes, the median of its seconds, its bytes and FLOP.

    step: a function of Tensors, as for `minidl.compile`. passes: whether calls are those that a replay makes, or those
    of the ops. Raises CompileError for a step that cannot be compiled.

    >>> from minidl import nn
    >>> net, x = nn.Linear(3, 2), Tensor(np.ones((4, 3), np.float32))
    >>> [(row["primitive"], row["result"], row["bytes"], row["flop"]) for row in profile(net, x, repeats=1)]
    [('linear', [[4, 2]], 112, 48)]
    """
    compiled: Any = step if hasattr(step, "recorded") else compile(step)
    for _ in range(2):
        compiled(*given)
    program = compiled.program if passes else compiled.recorded
    taken = times(program, list(given), given[0].device, warmup, repeats)
    return [{"primitive": call.name, "result": [list(slot.shape) for slot in call.results], "kind": kind(call.name),
             "median_s": statistics.median(of), "least_s": min(of), "largest_s": max(of), "bytes": moved(call),
             "flop": flop(call)} for call, of in zip(program.calls, taken, strict=True)]


HEAD = ("call", "makes", "us", "share (%)", "MB", "MFLOP", "limit (us)", "of the limit (%)")


def cells(rows: Sequence[dict[str, Any]], limit: dict[str, float] | None = None) -> list[list[str]]:
    """What is printed of rows under HEAD, the longest first, with their sum last. limit: as `limits` finds it."""
    whole = sum(row["median_s"] for row in rows) or 1.0
    all_ = {"primitive": "all", "result": [], "median_s": whole, **{name: sum(row[name] for row in rows)
                                                                   for name in ("bytes", "flop")}}
    lines, total = [], 0.0
    for row in (*sorted(rows, key=lambda row: -row["median_s"]), all_):
        seconds = row["median_s"]
        least = 0.0 if limit is None else max(row["bytes"] / limit["bytes"], row["flop"] / limit["flop"])
        total, least = total + least, total if row is all_ else least
        lines.append([row["primitive"], " ".join("x".join(map(str, shape)) or "1" for shape in row["result"]),
                      _digits(1e6 * seconds), f"{100 * seconds / whole:.1f}", _digits(row["bytes"] / 1e6),
                      _digits(row["flop"] / 1e6), *([_digits(1e6 * least), f"{100 * least / seconds:.0f}"] if least
                                                    and seconds else ["", ""])])
    return lines


def _digits(value: float) -> str:
    """A number of a table, with three digits.

    >>> _digits(0.012345), _digits(12345.6), _digits(0)
    ('0.0123', '12,346', '0')
    """
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:.3g}"
