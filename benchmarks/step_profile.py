"""Where the time of a training step goes: each call of its program, for `train_step.py --profile`.

A step is recorded, and the calls of its program are made one after the other, each between two readings of the clock.
On a GPU these are events, behind a kernel that holds the stream until the host has queued all calls. A program is
profiled as it is replayed, `compiled`, or as it was before the passes, `recorded`, where each op is a call of its own.

Bytes are those of the arrays that a call reads and makes, each once, and once more what it changes in place; views move
none. FLOP are two for each multiply-add of convolutions and products, and one for each element of any other call's
largest array, or of all that it changes. Both follow from shapes alone: caches, workspaces and the FLOP of an
exponential are not in them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import machine
import results
from results import Result, digits
from train_step import LR, MOMENTUM, random_batches, set_precision

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
    """Of a primitive, among KINDS; else "other".

    >>> kind("conv2d_grad_w"), kind("copy")
    ('convolution', 'other')
    """
    return next((each for each, starts in KINDS.items() if name.startswith(starts)), "other")


def flop_of(name: str, arguments: Iterable[Any], shapes: Sequence[Shape], made: Sequence[Shape]) -> int:
    """The FLOP of a primitive. shapes: of the arrays that it is given, in order; made: of those that it makes."""
    from minidl.ops.common.geometry import ConvGeometry

    for g in arguments:
        if isinstance(g, ConvGeometry):
            return 2 * g.n * g.m * g.c * g.oh * g.ow * g.kh * g.kw
    if name.startswith("linear") and name != "linear_grad_b":  # a x b, b x c and a x c: the root of all is a x b x c
        return 2 * math.isqrt(math.prod(map(math.prod, (*shapes[:2], made[0]))))
    return max(map(math.prod, (*shapes, *made)), default=0)


def flop(call: Any) -> int:
    """Of a call of a program, a region's too; none where it only looks at its argument in another shape."""
    from minidl.ops.common.primitives import known
    from minidl.ops.common.region import Region, Value

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


def changed(call: Any) -> list[Any]:
    """The values that a call changes in place."""
    from minidl.compiler.program import Slot, leaves

    return [slot for i in call.known.changes for slot in leaves(call.arguments[i]) if isinstance(slot, Slot)]


def moved(call: Any) -> int:
    """Bytes."""
    return 0 if call.known.shares else sum(
        math.prod(slot.shape) * slot.dtype.itemsize
        for slot in (*dict.fromkeys((*call.reads, *call.results)), *changed(call)))


# ---------------------------------------------------------------- measuring
class Clock:
    """Makes the calls of a program, as ByCalls asks whoever takes them to other streams, and notes their times."""

    def __init__(self, device: str):
        self.device, self.marks = device, list[tuple[Any, Any]]()

    def _now(self) -> Any:
        if self.device == "cpu":
            return time.perf_counter()
        import cupy

        event = cupy.cuda.Event()
        event.record()
        return event

    def run(self, number: int, waiting: int | None, primitive: Any, arguments: list[Any],
            options: dict[str, Any]) -> Any:
        begin = self._now()
        result = primitive(*arguments, **options)
        self.marks.append((begin, self._now()))
        return result

    def seconds(self) -> list[float]:
        """Of each call since the last time that this was asked."""
        marks, self.marks = self.marks, []
        if self.device == "cpu":
            return [end - begin for begin, end in marks]
        import cupy

        machine.finish(self.device)
        return [cupy.cuda.get_elapsed_time(begin, end) / 1e3 for begin, end in marks]


def times(program: Any, given: list[Any], device: str, warmup: int, repeats: int) -> list[list[float]]:
    """Seconds of each call of a program, as often as `repeats` says."""
    import numpy as np

    from minidl.compiler.replay import ByCalls, arrays_of

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


def rows(model: str, size: int, precision: str, args: argparse.Namespace) -> list[Result]:
    """A row for each call of a model's step, in their order."""
    import measured_nets

    import minidl
    from minidl import Tensor, ops, optim

    set_precision(precision, ["minidl"])
    net = measured_nets.build(model).to(args.device)
    sgd = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)

    @minidl.compile
    def step(x: Tensor, labels: Tensor) -> None:
        sgd.zero_grad()
        ops.cross_entropy(net(x), labels).backward()
        sgd.step()
    for images, labels in random_batches(model, size)[:2]:
        given = [Tensor(images, device=args.device), Tensor(labels, device=args.device)]
        step(*given)
    program: Any = getattr(step, {"compiled": "program", "recorded": "recorded"}[args.profile])
    taken = times(program, given, args.device, args.warmup, args.steps * args.repeats)
    return [{"net": model, "batch": size, "precision": precision, "program": args.profile, "primitive": call.name,
             "result": [list(slot.shape) for slot in call.results], "kind": kind(call.name),
             "median_s": statistics.median(of), "least_s": min(of), "largest_s": max(of), "bytes": moved(call),
             "flop": flop(call)} for call, of in zip(program.calls, taken, strict=True)]


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    result = results.about("step_profile", peers, args.device, args.threads, warmup=args.warmup,
                           repeats=args.steps * args.repeats)
    result["rows"] = [row for model in args.models for size in args.batch_size for precision in args.precision
                      for row in rows(model, size, precision, args)]
    return result


# ---------------------------------------------------------------- the report
def calls_table(of: Sequence[Result]) -> list[str]:
    """The calls of one program, the longest first."""
    whole = sum(row["median_s"] for row in of)
    body = [[f"`{row['primitive']}`", " ".join("x".join(map(str, shape)) or "1" for shape in row["result"]),
             digits(1e6 * row["median_s"]), f"{row['median_s'] / whole:.1%}", digits(row["bytes"] / 1e6),
             digits(row["flop"] / 1e6)] for row in sorted(of, key=lambda row: -row["median_s"])]
    return results.table("primitive, makes, us, share, MB, MFLOP", body, 2)


def kinds_table(of: Sequence[Result]) -> list[str]:
    """The same by kinds."""
    whole, body = sum(row["median_s"] for row in of), []
    for each in dict.fromkeys(row["kind"] for row in sorted(of, key=lambda row: -row["median_s"])):
        mine = [row for row in of if row["kind"] == each]
        seconds = sum(row["median_s"] for row in mine)
        body.append((seconds, [each, str(len(mine)), digits(1e6 * seconds), f"{seconds / whole:.1%}",
                               digits(sum(row["bytes"] for row in mine) / 1e6),
                               digits(sum(row["flop"] for row in mine) / 1e6)]))
    return results.table("kind, calls, us, share, MB, MFLOP", [line for _, line in sorted(body, reverse=True)], 1)


def report(several: Sequence[Result]) -> list[str]:
    lines = []
    for result in several:
        names = [(row["net"], row["batch"], row["precision"], row["program"]) for row in result["rows"]]
        for name in dict.fromkeys(names):
            of = [row for row, each in zip(result["rows"], names) if each == name]
            net, size, precision, program = name
            lines += [f"`{net}`, batch {size}, {precision}, the {program} program: {len(of)} calls, together "
                      f"{results.time_of(sum(row['median_s'] for row in of))}.", "", *kinds_table(of), *calls_table(of)]
        lines += [f"Medians of {result['method']['repeats']} runs, after {result['method']['warmup']}.", ""]
    return [*lines, *results.facts(several)]
