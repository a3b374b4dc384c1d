"""Every CUDA convolution algorithm, measured beside the machine's limit, cuDNN and one CPU core.

    python benchmarks/conv.py --json benchmarks/results/conv_cuda.json
    python benchmarks/conv.py --plugin my_conv.py              # beside them one of your own (docs/your-own-kernel.md)

An entry is one algorithm, direction (y, dx, dw) and precision on one shape. After warm-up its calls are recorded in
a CUDA graph, so that Python is not measured, and the graph is replayed between two events; what cannot be recorded
is called between them instead. Error and workspace are those of a recorded call as well, which may take other kernels
than an eager one: cuBLAS cannot be recorded, so `gemm` takes our own products there. Where inputs and output together
are smaller than twice the second-level cache, the calls take turns on several sets of them, so that no call finds its
input there.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import conv_report as tables
import machine
import results
from conv_report import DIRECTIONS, PEERS, PRECISIONS, Row
from train_step import names

BUDGET = 0.1                                                   # seconds per entry
MIN_REPLAYS, MAX_REPLAYS = 3, 20


class Case(NamedTuple):
    """A convolution to measure: n images of c x h x w, m filters of k x k."""

    label: str
    n: int
    c: int
    h: int
    w: int
    m: int
    k: int
    stride: int = 1
    pad: Any = 0                                               # as ops.conv2d takes it

    def geometry(self, algorithm: str = "auto") -> Any:
        from minidl.ops.common.geometry import conv_geometry

        return conv_geometry((self.n, self.c, self.h, self.w), (self.m, self.c, self.k, self.k), None, self.stride,
                             self.pad, algorithm)

    def random(self, seed: int) -> list[Any]:
        """x, w and gy as float32 in host memory."""
        import numpy as np

        g, rng = self.geometry(), np.random.default_rng(seed)
        return [rng.standard_normal(shape, dtype=np.float32)
                for shape in (g[:4], (g.m, g.c, g.kh, g.kw), (g.n, g.m, g.oh, g.ow))]


SHAPES = {
    "krizhevsky": [Case("krizhevsky", 128, 3, 39, 39, 64, 8)],
    "lenet": [case for n in (128, 4096)
              for case in (Case(f"lenet C1 n={n}", n, 1, 32, 32, 6, 5), Case(f"lenet C3 n={n}", n, 6, 14, 14, 16, 5))],
    "pmpp": [Case("pmpp", 5000, 4, 40, 40, 16, 7)],
    "modern": [Case("modern", 128, 128, 28, 28, 128, 3, 1, 1)],
    "3x3": [Case(f"{c} channels, {n} of {size}x{size}", n, c, size, size, c, 3, 1, 1) for n, c, size in (
        (128, 64, 56), (128, 64, 32), (128, 128, 28), (512, 128, 16), (128, 256, 14), (128, 256, 16), (2000, 256, 7))],
    "fft": [Case(f"{k}x{k}", 64, 32, 64, 64, 32, k, 1, k // 2) for k in (3, 5, 7, 9, 11, 15, 19, 23, 27, 31)],
}
BY_DEFAULT = [name for name in SHAPES if name != "fft"]        # where filters are usual ones


# ---------------------------------------------------------------- timing
class Timing(NamedTuple):
    us: float                                                  # of a call, the median of the replays
    least_us: float
    largest_us: float
    graph: bool                                                # recorded, or called between the events
    sets: int                                                  # of inputs and outputs, in turn
    calls: int                                                 # per replay
    repeats: int                                               # replays


def milliseconds(work: Callable[[], Any]) -> float:
    """Time on the current stream from before the work to after it."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end)


def timed(call: Callable[[int], Any], sets: int, capture: Callable[[Callable[[], None]], Callable[[], Any]]) -> Timing:
    """Time call(i), i the set it works on, which was called once before; capture records work and gives its replay."""
    seconds = milliseconds(lambda: call(0)) / 1e3
    runs = max(MIN_REPLAYS, int(BUDGET / seconds))
    sets = sets if sets * MIN_REPLAYS <= runs else 1
    calls = sets * max(1, min(MAX_REPLAYS, runs // MAX_REPLAYS) // sets)
    repeats = min(MAX_REPLAYS, max(MIN_REPLAYS, runs // calls))

    def work() -> None:
        kept: collections.deque[Any] = collections.deque(maxlen=sets)      # so that outputs take turns as well
        for i in range(calls):
            kept.append(call(i % sets))

    if seconds < BUDGET / MAX_REPLAYS:
        work()
    try:
        replay, graph = capture(work), True
    except RuntimeError:
        replay, graph = work, False
    replay()
    times = [milliseconds(replay) / calls * 1e3 for _ in range(repeats)]
    return Timing(statistics.median(times), min(times), max(times), graph, sets, calls, repeats)


def once(call: Callable[[int], Any], capture: Callable[[Callable[[], None]], Callable[[], Any]]) -> Any:
    """The result of call(0) as it is timed: by the kernels of a graph, or, where it cannot be recorded, called."""
    kept: list[Any] = []
    try:
        replay = capture(lambda: kept.append(call(0)))
    except RuntimeError:
        return call(0)
    replay()
    return kept[0]


def capture_cupy(work: Callable[[], None]) -> Callable[[], Any]:
    import cupy

    stream = cupy.cuda.get_current_stream()
    stream.begin_capture()
    try:
        work()
    finally:
        graph = stream.end_capture()
    return graph.launch


def measure_ours(call: Callable[[int], Any], sets: int) -> tuple[Timing, int, Any]:
    """Timing, bytes of workspace and the result of a CuPy launcher, on a stream and in a pool of its own."""
    import cupy

    from minidl.core.pools import GraphMemory

    class Watch(cupy.cuda.MemoryHook):
        held = most = 0

        def malloc_postprocess(self, **of: int) -> None:
            self.held += of["mem_size"]
            self.most = max(self.most, self.held)

        def free_postprocess(self, **of: int) -> None:
            self.held -= of["mem_size"]

    memory = GraphMemory()
    with memory.as_allocator(), cupy.cuda.Stream(non_blocking=True) as stream:
        call(0)                                                # here kernels are compiled
        stream.synchronize()
        with Watch() as watch:
            result = once(call, capture_cupy)
            stream.synchronize()
        timing = timed(call, sets, capture_cupy)
    return timing, max(0, watch.most - -(-result.nbytes // 512) * 512), result     # the pool deals in 512 bytes


def measure_torch(call: Callable[[int], Any], sets: int) -> tuple[Timing, int, Any]:
    """The same of a call to torch."""
    import cupy
    import torch

    def capture(work: Callable[[], None]) -> Callable[[], Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        call(0)                                                # here cuDNN tries its own algorithms
        torch.cuda.reset_peak_memory_stats()
        result = call(0)
        stream.synchronize()
        workspace = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        return timed(call, sets, capture), workspace, cupy.asarray(result)


# ---------------------------------------------------------------- one shape
def arguments(direction: str, x: Any, w: Any, gy: Any) -> tuple[Any, ...]:
    """What a launcher takes before the geometry."""
    return {"y": (x, w, None), "dx": (gy, w), "dw": (gy, x)}[direction]


class Operands:
    """Random x, w and gy of a case, in several sets."""

    def __init__(self, case: Case):
        import cupy

        g = case.geometry()
        self.case, self.flop = case, 2 * g.n * g.m * g.c * g.oh * g.ow * g.kh * g.kw
        shapes = g[:4], (g.m, g.c, g.kh, g.kw), (g.n, g.m, g.oh, g.ow)
        self.bytes = 4 * sum(math.prod(shape) for shape in shapes)
        cache = 2 * cupy.cuda.Device().attributes["L2CacheSize"]
        self.count = max(1, min(64, cache // self.bytes + 1)) if self.bytes < cache else 1
        self.sets = [[cupy.asarray(a) for a in case.random(seed)] for seed in range(self.count)]

    def our_call(self, direction: str, algorithm: str) -> Callable[[int], Any]:
        """The call of a launcher on set i."""
        from minidl.ops.cuda.conv import ALGORITHMS

        launcher, g = getattr(ALGORITHMS[algorithm], direction), self.case.geometry(algorithm)
        taken = [arguments(direction, *operands) for operands in self.sets]
        return lambda i: launcher(*taken[i], g)

    def torch_call(self, direction: str, precision: str) -> Callable[[int], Any]:
        """cuDNN's convolution on set i, by way of torch."""
        import torch

        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        sets = [[torch.from_dlpack(a) for a in operands] for operands in self.sets]
        stride, pad = [self.case.stride] * 2, [self.case.pad] * 2
        mask = [direction == "dx", direction == "dw", False]

        def forward(i: int) -> Any:
            x, w, _ = sets[i]
            return torch.nn.functional.conv2d(x, w, None, stride, pad)

        def backward(i: int) -> Any:
            x, w, gy = sets[i]
            return torch.ops.aten.convolution_backward(gy, x, w, None, stride, pad, [1, 1], False, [0, 0], 1,
                                                       mask)[mask.index(True)]
        return forward if direction == "y" else backward

    def float64(self, direction: str) -> Any:
        """The result of set 0 by our own kernels in float64, which are held against the CPU's on a few images."""
        from minidl.ops.cpu.conv import ALGORITHMS as ON_CPU
        from minidl.ops.cuda.conv import ALGORITHMS, refusal

        x, w, gy = (a.astype("float64") for a in self.sets[0])
        name = next(name for name in ("implicit_gemm", "gemm")
                    if refusal(name, direction, self.case.geometry(name), x.dtype) is None)
        launcher, few = getattr(ALGORITHMS[name], direction), self.case._replace(n=min(4, self.case.n))
        some = x[:few.n], w, gy[:few.n]
        expected = ON_CPU["gemm"][DIRECTIONS.index(direction)](
            *arguments(direction, *(a.get() for a in some)), few.geometry("gemm"))
        error = abs(launcher(*arguments(direction, *some), few.geometry(name)).get() - expected).max()
        if not error < 1e-12 * abs(expected).max():
            raise ArithmeticError(f"{self.case.label} {direction}: float64 by {name!r} differs from the CPU's by "
                                  f"{error:.1e}, and serves as reference; correct the kernel before measuring")
        return launcher(*arguments(direction, x, w, gy), self.case.geometry(name))


def entries(args: argparse.Namespace, peers: Sequence[str],
            exact: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """(algorithm, precision) of every entry: what computes in fp32 does so whatever the precision is, the others in
    those of tensor cores."""
    for algorithm in args.algorithms:
        fp32 = exact(algorithm)
        yield from ((algorithm, precision) for precision in args.precisions if (precision == "fp32") == fp32)
    for peer in peers:
        yield from ((peer, precision) for precision in args.precisions if precision in PEERS[peer])


def is_exact(algorithm: str, direction: str, g: Any, dtype: Any) -> bool:
    """Whether it computes in fp32: then it has nothing against fp32, or no more than against tf32."""
    from minidl.core.device import set_precision
    from minidl.ops.cuda.conv import refusal

    reasons = []
    for precision in ("fp32", "tf32"):
        set_precision(precision)
        reasons.append(refusal(algorithm, direction, g, dtype))
    return reasons[0] in (None, reasons[1])


def measure(case: Case, args: argparse.Namespace, peers: Sequence[str]) -> Iterator[Row]:
    """A row for each entry of a case, also for those that are refused or fail: they say why."""
    from minidl.core.device import set_precision
    from minidl.core.pools import free_all_blocks
    from minidl.ops.cuda.conv import refusal

    operands = Operands(case)
    for direction in args.directions:
        expected = operands.float64(direction)
        largest = float(abs(expected).max())
        exact = functools.partial(is_exact, direction=direction, g=case.geometry(), dtype=operands.sets[0][0].dtype)
        for algorithm, precision in entries(args, peers, exact):
            row: Row = {"label": case.label, "shape": case[1:], "direction": direction, "algorithm": algorithm,
                        "precision": precision, "flop": operands.flop, "bytes": operands.bytes}
            set_precision(precision)
            try:
                if algorithm in peers:
                    call, measured = operands.torch_call(direction, precision), measure_torch
                else:
                    row["why"] = refusal(algorithm, direction, case.geometry(algorithm), operands.sets[0][0].dtype)
                    if row["why"]:
                        yield row
                        continue
                    call, measured = operands.our_call(direction, algorithm), measure_ours
                timing, workspace, result = measured(call, operands.count)
                error = float(abs(result - expected).max()) / largest
                del result
            except Exception as failure:                       # one broken entry must not cost the others
                yield {**row, "why": f"failed: {type(failure).__name__}: {failure}", "failed": True}
                continue
            row |= {**timing._asdict(), "workspace_mib": round(workspace / 2**20, 1), "error": error}
            yield row if error < 0.02 else {**row, "us": None, "why": f"wrong by {error:.1e}", "failed": True}
        del expected
    free_all_blocks()


def repeated(call: Callable[[], Any]) -> list[float]:
    """Seconds of each of enough calls."""
    call()
    times: list[float] = []
    while len(times) < MIN_REPLAYS or (sum(times) < 1 and len(times) < MAX_REPLAYS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def one_core(case: Case) -> Iterator[Row]:
    """The CPU's algorithms on one thread, the whole batch."""
    from minidl.ops.cpu.conv import ALGORITHMS
    from minidl.ops.cpu.parallel import on_one_blas_thread

    operands = case.random(0)
    for algorithm in ("direct", "gemm"):
        for direction in ("y", "dw"):
            call = functools.partial(ALGORITHMS[algorithm][DIRECTIONS.index(direction)],
                                     *arguments(direction, *operands), case.geometry(algorithm))
            times = on_one_blas_thread(functools.partial(repeated, call))
            yield {"label": case.label, "direction": direction, "algorithm": algorithm,
                   "ms": statistics.median(times) * 1e3, "repeats": len(times)}


# ---------------------------------------------------------------- a run
def available(peers: Sequence[str]) -> list[str]:
    """The peers that can be measured here; the others are named."""
    try:
        usable = importlib.import_module("torch").cuda.is_available() if peers else False
    except ImportError:
        usable = False
    if peers and not usable:
        print(f"{', '.join(peers)}: left out, torch with CUDA is not installed")
    return list(peers) if usable else []


def run(cases: Sequence[Case], args: argparse.Namespace) -> results.Result:
    """Measure everything; what was measured is in args.json even if something breaks."""
    peers = available(args.peers)
    result = results.about("conv", ["minidl", *(["torch"] if peers else [])], "cuda", 1, budget_s=BUDGET,
                           replays=[MIN_REPLAYS, MAX_REPLAYS])
    result |= {"rows": [], "cpu": []}
    try:
        for case in cases:
            for row in measure(case, args, peers):
                result["rows"].append(row)
                print(f"{case.label:16} {row['direction']:2} {row['algorithm']:14} {row['precision']:6} ", end="")
                print(row["why"] if row.get("why") else f"{row['us']:10.1f} us {tables.tflops(row):7.2f} TFLOP/s  "
                      f"{tables.percent(tables.share(result, row)):>6}  error {row['error']:.1e}  "
                      f"{tables.method(row)}", flush=True)
            if case in SHAPES["krizhevsky"]:
                result["cpu"] += one_core(case)
    finally:
        if args.json:
            results.save(result, args.json)
    return result


# ---------------------------------------------------------------- the command line
def custom(text: str) -> Case:
    """An argument type: n,c,h,w,m,k[,stride,pad]."""
    numbers = [int(v) if v.isdigit() else -1 for v in text.split(",")]
    if len(numbers) not in (6, 7, 8) or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not n,c,h,w,m,k[,stride,pad]")
    return Case(text, *numbers)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shapes", type=names(SHAPES), help=f"sets of shapes, of {','.join(SHAPES)}; all but fft "
                        "by default")
    parser.add_argument("--shape", type=custom, action="append", help="n,c,h,w,m,k[,stride,pad]; may be repeated")
    parser.add_argument("--algorithms", type=lambda text: text.split(","), help="separated by commas; all by default")
    for flag, known in (("--directions", DIRECTIONS), ("--precisions", PRECISIONS), ("--peers", PEERS)):
        parser.add_argument(flag, type=names(dict.fromkeys(known)), default=",".join(known),
                            help="separated by commas; %(default)s by default")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py", help="import this file first: it "
                        "registers an algorithm of your own (minidl.register_conv); may be given several times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv)
    machine.set_threads(1)
    machine.require([], "cuda")
    from minidl.ops.cuda.conv import ALGORITHMS
    from minidl.zoo.own import import_file

    for file in args.plugin:
        import_file(file)
    args.algorithms = args.algorithms or list(ALGORITHMS)
    for name in args.algorithms:
        if name not in ALGORITHMS:
            parser.error(f"argument --algorithms: {name!r} is not one of {', '.join(ALGORITHMS)}")
    sets = BY_DEFAULT if args.shapes is None and not args.shape else args.shapes or []
    result = run([case for name in sets for case in SHAPES[name]] + (args.shape or []), args)
    ladder = tables.ladder_table(result, (*tables.LADDER, *(case.label for case in args.shape or ())))
    print("\n".join(["", *ladder, *tables.best_table(result), *tables.core_table(result), *results.facts([result])]))
    failed = [row for row in result["rows"] if row.get("failed")]
    if failed:
        sys.exit("\n".join(f"{row['label']} {row['direction']} {row['algorithm']}: {row['why']}" for row in failed))


if __name__ == "__main__":
    main()
