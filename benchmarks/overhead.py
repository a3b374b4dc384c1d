"""What Python costs: recording an op on the tape, running a long chain of them, replaying a compiled step, an import.

    python benchmarks/overhead.py [--device cuda [--parts]]

An op on tiny arrays is called as the bare primitive on arrays, unrecorded (in no_grad) and recorded (an input
requires a gradient); the three take turns. Imports are timed inside fresh interpreters, which take turns too.

A replay is that of LeNet-5's step (128 images, SGD with momentum) on the device, from the call to the return: the host
does not wait for a GPU, which is given time, with the clock stopped, before its queue is full. On the CPU the program's
primitives do nothing. Checks are all that comes before the replay: the arguments, and what the step read. With --parts
each part of a replay on a GPU is timed alone, and so are the calls of CuPy that it may consist of; nothing else is.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))                                  # minidl as it lies here, installed or not

import machine  # noqa: E402
import numpy as np  # noqa: E402
import results  # noqa: E402
from results import Result  # noqa: E402
from train_step import LR, MOMENTUM, positive, random_batches  # noqa: E402

import minidl  # noqa: E402
from minidl import Tensor, no_grad, ops, optim, zoo  # noqa: E402
from minidl.compiler.replay import arrays_of  # noqa: E402
from minidl.core.tensor import mark_changed, wrap  # noqa: E402
from minidl.ops import cpu  # noqa: E402
from minidl.ops.common.geometry import conv_geometry, pool_geometry  # noqa: E402

CHAIN = 20_000
BATCH = 128                                                    # of the replayed step
QUEUED = 100                                                   # replays that a GPU may be behind
HEAVY = ("cupy", "matplotlib", "h5py", "tqdm")                 # what `import minidl` should leave alone


def tiny(*shape: int) -> Tensor:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return Tensor(values, requires_grad=True)


k: Any = cpu
V, M, X, W = tiny(2), tiny(2, 2), tiny(1, 1, 2, 2), tiny(1, 1, 2, 2)
LABELS = Tensor(np.array([0, 1]))
CONV = conv_geometry(X.shape, W.shape, None, 1, 0, "auto")
POOL = pool_geometry("avg_pool2d", X.shape, 2, None, 0)

# op: (it on Tensors, the same primitive on their arrays)
CALLS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "add": (lambda: ops.add(V, V), lambda: k.add(V.data, V.data)),
    "mul": (lambda: ops.mul(V, V), lambda: k.mul(V.data, V.data)),
    "mul by a number": (lambda: V * 2.0, lambda: k.mul(V.data, 2.0)),
    "relu": (lambda: ops.relu(V), lambda: k.relu(V.data)),
    "tanh": (lambda: ops.tanh(V), lambda: k.tanh(V.data)),
    "sum": (lambda: ops.sum(M, axis=0), lambda: k.sum(M.data, (0,))),
    "reshape": (lambda: ops.reshape(M, shape=(4,)), lambda: k.reshape(M.data, (4,))),
    "matmul": (lambda: ops.matmul(M, M), lambda: k.matmul(M.data, M.data)),
    "linear": (lambda: ops.linear(M, M, V), lambda: k.linear(M.data, M.data, V.data)),
    "conv2d": (lambda: ops.conv2d(X, W), lambda: k.conv2d(X.data, W.data, None, CONV)),
    "avg_pool2d": (lambda: ops.avg_pool2d(X, size=2), lambda: k.avg_pool2d(X.data, POOL)),
    "cross_entropy": (lambda: ops.cross_entropy(M, LABELS),
                      lambda: k.cross_entropy(M.data, LABELS.data, "mean", 0.0)),
}


# ---------------------------------------------------------------- one op
def timed(call: Callable[[], Any], number: int) -> float:
    """Microseconds per call, the garbage collector on as in real life."""
    return timeit.Timer(call, "import gc; gc.enable()").timeit(number) / number * 1e6


def recording(number: int, repeats: int) -> list[Result]:
    """Medians for each op of CALLS."""
    rows = []
    for name, (op, primitive) in CALLS.items():
        turns = [(timed(primitive, number), no_grad()(timed)(op, number), timed(op, number))
                 for _ in range(repeats)]
        bare, unrecorded, recorded = (statistics.median(times) for times in zip(*turns, strict=True))
        rows.append({"op": name, "primitive_us": bare, "unrecorded_us": unrecorded, "recorded_us": recorded})
    return rows


# ---------------------------------------------------------------- a long chain
def chain(repeats: int) -> Result:
    """Forward and backward of CHAIN multiplications, one after the other."""
    turns = []
    for _ in range(repeats):
        begin, y = time.perf_counter(), V
        for _ in range(CHAIN):
            y = y * 1.0
        middle, loss = time.perf_counter(), y.sum()
        loss.backward()
        turns.append((middle - begin, time.perf_counter() - middle))
    forward, backward = (statistics.median(times) for times in zip(*turns, strict=True))
    return {"ops": CHAIN, "forward_ms": forward * 1e3, "backward_ms": backward * 1e3}


# ---------------------------------------------------------------- a replay
class Nothing:
    """In place of a replay."""

    def run(self, given: list[Any]) -> None:
        pass


def replays(device: str, number: int, repeats: int) -> list[Result]:
    """Medians of the host's time for a replay by its parts: with the same arguments each time, and with others."""
    return [replayed(arguments, count, device, number, repeats)
            for arguments, count in (("the same each time", 1), ("others each time", 4))]


def trusted(count: int, device: str) -> tuple[Any, list[tuple[Tensor, ...]]]:
    """A step that replays, and this many different arguments for it."""
    net = zoo.build("lenet5").to(device)
    sgd = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)

    @minidl.compile
    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        return loss
    batches = [tuple(Tensor(array, device=device) for array in batch)
               for batch in random_batches("lenet5", BATCH)[:count]]
    turn = itertools.cycle(batches)
    while step._last is None or step._last.replay is None:
        step(*next(turn))
    return step, batches


def replayed(arguments: str, count: int, device: str, number: int, repeats: int) -> Result:
    step, batches = trusted(count, device)
    turn = itertools.cycle(batches)

    def call() -> None:
        step(*next(turn))
    call()
    entry: Any = step._last
    replay = entry.replay
    launch: Callable[[], Any] = bool
    if device == "cpu":
        values = replay.values(arrays_of(replay.program, list(batches[0])), [LR])
        replay.values = lambda *_: values
    else:
        launch = launching(replay, list(batches[0]))
    turns = []
    for _ in range(repeats):
        whole, launched = host_time(call, number, device), host_time(launch, number, device)
        entry.replay = Nothing()
        checks = host_time(call, number, device)
        entry.replay = replay
        turns.append((checks, launched, whole - checks - launched, whole))
    assert step.recordings == 2
    medians = (statistics.median(times) for times in zip(*turns, strict=True))
    return {"arguments": arguments, **dict(zip(("checks_us", "launch_us", "rest_us", "call_us"), medians, strict=True))}


def launching(replay: Any, given: list[Any]) -> Callable[[], None]:
    """The launch of a replay's graph, with what it reads: alone it would read the row of another replay."""
    arrays = arrays_of(replay.program, given)
    held = [*(arrays[i] for i in replay.copied), *(each.take() for each in replay.results)]
    row = [*(array.data.ptr for array in held), *(replay.program.dynamics[i].read() for i in replay.read)]

    def launch(held: Any = held) -> None:              # the row has the addresses of arrays that must not end
        replay.addresses.start(*row)
    return launch


def parts(number: int, repeats: int) -> list[Result]:
    """Medians of the host's time for each part of a replay on a GPU, alone, of arguments that it copies, and for calls
    of CuPy alone."""
    step, batches = trusted(4, "cuda")
    step(*batches[0])
    entry, given = step._last, list(batches[0])
    replay = entry.replay
    tensors, results = replay.calls.changed.of(given), [each.take() for each in replay.results]
    alone: dict[str, Callable[[], Any]] = {
        "the look at arguments and facts": lambda: entry.look((), batches[0]),
        "marks of change": lambda: mark_changed(tensors),
        "arrays for the results": lambda: [each.take() for each in replay.results],
        "Tensors around results": lambda: list(map(wrap, results)),
        "addresses and the graph's launch": launching(replay, given),
        "the replay": lambda: replay.run(given),
        "the call": lambda: step(*batches[0]),
        **calls_of_cupy(),
    }
    times = [[host_time(call, number, "cuda") for call in alone.values()] for _ in range(repeats)]
    return [{"part": name, "us": statistics.median(of)}
            for name, of in zip(alone, zip(*times, strict=True), strict=True)]


def calls_of_cupy() -> dict[str, Callable[[], Any]]:
    """Calls that a replay may consist of, on arrays of one number."""
    import cupy
    from cupy.cuda import runtime

    one, other, plain = cupy.zeros((), np.float32), cupy.zeros((), np.float32), cupy.ndarray
    memory, take, stream = one.data, cupy.cuda.get_allocator(), cupy.cuda.get_current_stream()
    event, at, to = cupy.cuda.Event(disable_timing=True), other.data.ptr, one.data.ptr
    kernel = cupy.RawKernel("extern \"C\" __global__ void nothing(float* x) {}", "nothing")
    return {
        "memory of CuPy's pool": lambda: take(4),
        "cupy.ndarray": lambda: plain((), np.float32),
        "cupy.ndarray in memory that there is": lambda: plain((), np.float32, memory),
        "cupy.empty": lambda: cupy.empty((), np.float32),
        "a copy by copy_from_device_async": lambda: memory.copy_from_device_async(other.data, 4),
        "a copy by runtime.memcpyAsync": lambda: runtime.memcpyAsync(to, at, 4, runtime.memcpyDeviceToDevice, 0),
        "array.fill": lambda: one.fill(1.0),
        "array[...] = array": lambda: one.__setitem__(..., other),
        "a RawKernel": lambda: kernel((1,), (1,), (one,)),
        "the current stream": cupy.cuda.get_current_stream,
        "an event's record": lambda: event.record(stream),
        "a wait for an event": lambda: stream.wait_event(event),
        "an event's query": lambda: event.done,
    }


def host_time(call: Callable[[], Any], number: int, device: str) -> float:
    """Microseconds of the host per call."""
    seconds = 0.0
    for first in range(0, number, QUEUED):
        count, begin = min(QUEUED, number - first), time.perf_counter()
        for _ in range(count):
            call()
        seconds += time.perf_counter() - begin
        machine.finish(device)
    return seconds / number * 1e6


# ---------------------------------------------------------------- import
def inside(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def imports(repeats: int) -> Result:
    """Medians of the time an import statement takes in a fresh interpreter."""
    code = "import time; begin = time.perf_counter(); import {}; print(time.perf_counter() - begin)"
    turns = [[float(inside(code.format(module))) for module in ("numpy", "minidl")] for _ in range(repeats)]
    numpy_s, minidl_s = (statistics.median(times) for times in zip(*turns, strict=True))
    loaded = inside(f"import minidl, sys; print(*(m for m in {HEAVY} if m in sys.modules))").split()
    return {"numpy_ms": numpy_s * 1e3, "minidl_ms": minidl_s * 1e3, "heavy": loaded}


# ---------------------------------------------------------------- the report
def measure(args: argparse.Namespace) -> Result:
    return {**results.about("overhead", ["minidl"], args.device, 1, number=args.number, repeats=args.repeats),
            "rows": recording(args.number, args.repeats), "chain": chain(args.repeats),
            "replays": replays(args.device, args.number, args.repeats), "imports": imports(args.repeats)}


def report(several: Sequence[Result]) -> list[str]:
    (result,) = several
    ops = [[of["op"], *(f"{of[name]:.2f}" for name in ("primitive_us", "unrecorded_us", "recorded_us")),
            f"{of['recorded_us'] - of['primitive_us']:.2f}"] for of in result["rows"]]
    long, loads = result["chain"], result["imports"]
    both = (long["forward_ms"] + long["backward_ms"]) / long["ops"] * 1e3
    replays = [[of["arguments"], *(f"{of[name]:.2f}" for name in ("checks_us", "launch_us", "rest_us", "call_us"))]
               for of in result.get("replays", ())]            # older results have none
    return [*results.table("op, primitive us, unrecorded us, recorded us, recorded - primitive us", ops, 1),
            *results.table("chain, forward ms, backward ms, us per op (both)", [
                [f"{long['ops']:,} multiplications", f"{long['forward_ms']:.1f}", f"{long['backward_ms']:.1f}",
                 f"{both:.2f}"]], 1),
            *(results.table("replay: arguments, checks us, addresses and launch us, results and grads us, together us",
                            replays, 1) if replays else ()),
            *results.table("heavy modules loaded with minidl, import numpy ms, import minidl ms, of it beyond NumPy", [
                [", ".join(loads["heavy"]) or "none", f"{loads['numpy_ms']:.0f}", f"{loads['minidl_ms']:.0f}",
                 f"{loads['minidl_ms'] - loads['numpy_ms']:.0f}"]], 1),
            f"Medians of {result['method']['repeats']} turns; an op's turn is {result['method']['number']} calls on "
            "tiny float32 arrays.", "", *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the replayed step")
    parser.add_argument("--parts", action="store_true", help="time the parts of a replay on a GPU, and nothing else")
    parser.add_argument("--number", type=positive, default=2000, help="calls in a turn")
    parser.add_argument("--repeats", type=positive, default=15, help="turns, chains and imports of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv)
    if args.parts:
        if args.device != "cuda":
            parser.error("--parts: a replay has these parts on a GPU only; add --device cuda")
        rows = [[of["part"], f"{of['us']:.2f}"] for of in parts(args.number, args.repeats)]
        print("\n".join(results.table("part of a replay, us", rows, 1)))
        return
    result = measure(args)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
