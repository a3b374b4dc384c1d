"""Ops that fall off a cliff: every public op over a grid of shapes, forward and gradients, beside PyTorch's.

    python benchmarks/cliffs.py --device cpu --json benchmarks/results/cliffs_cpu.json       # one thread; 20 minutes
    python benchmarks/cliffs.py --device cuda --json benchmarks/results/cliffs_cuda.json     # ten minutes
    python benchmarks/cliffs.py --only conv2d,sum                                            # of these ops alone
    python benchmarks/cliffs.py --quick                                                      # the first shapes alone

cliff_cases.py has the ops and their shapes. Both libraries compute on the same memory, float32, one op per call; fp32
on a GPU, without TF32. A gradient is backward() from a kept graph, so its forward is not in it. Both results are
compared before they are timed. The two take turns. On a CPU a turn is as many calls as take two milliseconds. On a GPU
it is up to twenty, between two events, behind a kernel that holds the stream until the host has queued them: so it is
the device's time, unless an op waits for the device itself. What a call costs the host is in overhead.py.

The limit is the least time for the FLOP of a product, or for the bytes: each input read and each result written once,
at the rates that this machine reaches in this run, of PyTorch's copy and product. Below MIN_LIMIT_US a call is too
short for its share to mean anything. A share of the limit can be above 1 where arrays stay in a cache.

A case for which there is too little memory, or no time left of the run's SECONDS, is left out, and its row says so.
Time is given out by the number of cases, so no op takes that of the others; what one leaves over, the next may use.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import machine
import results
from cliff_cases import SWEEPS, Case, Spec
from results import Result, digits

SECONDS = {"cpu": 1080, "cuda": 480}                           # of a whole run, at most
QUICK, QUICK_CASES = 4, 2                                      # a run's time is divided by so much; cases of a grid
MANY = {"cpu": 1, "cuda": 16}                                  # how much larger arrays are that have to fill the device
TURN = {"cpu": 2e-3, "cuda": 1e-3}                             # seconds of calls between two readings of the clock
MAX_CALLS = {"cpu": 1000, "cuda": 20}                          # of a turn
ROUNDS, BUDGET, SLOW = (3, 9), 0.25, 1.0                       # turns of each; seconds for all; of a call made once
CYCLES, MAX_HOLD = 2e9, 0.02                                   # of a GPU's clock per second; seconds that it is held
WORKSPACE = 10                                                 # times the inputs' bytes that a case may need
TOLERANCE = 2e-3                                               # of the largest value: sums of a million float32
MIN_LIMIT_US = {"cpu": 50, "cuda": 5}
CLIFF, SHORT_US = 0.5, {"cpu": 20, "cuda": 5}                  # of PyTorch's speed; calls that cost little either way

# Forwards that read no more of their first input than they write
PICKS = {"index_select", "embedding", "gather", "getitem", "masked_select", "nll_loss", "setitem", "split"}

# FLOP of a forward by the shapes of inputs, and of the result
PRODUCTS: dict[str, Callable[[Mapping[str, Sequence[int]], Sequence[int], Mapping[str, Any]], int]] = {
    "matmul": lambda of, y, _: 2 * math.prod(y) * of["x"][-1],
    "linear": lambda of, y, _: 2 * math.prod(y) * of["x"][-1],
    "einsum": lambda of, y, options: 2 * math.prod(letters(options["equation"], of).values()),
    "conv1d": lambda of, y, _: 2 * math.prod(y) * math.prod(of["w"][1:]),
    "conv2d": lambda of, y, _: 2 * math.prod(y) * math.prod(of["w"][1:]),
    "conv_transpose2d": lambda of, y, _: 2 * math.prod(of["x"]) * math.prod(of["w"][1:]),
}

# How x lies in memory: how much larger it is stored, and the view of it, by the number of its axes
LAYOUTS: dict[str, tuple[Callable[[Sequence[int]], Sequence[int]], Callable[[Any], Any]]] = {
    "contiguous": (lambda shape: shape, lambda x: x),
    "transposed": (lambda shape: (*shape[:-2], shape[-1], shape[-2]), lambda x: x.mT),
    "sliced": (lambda shape: (*shape[:-1], 2 * shape[-1]), lambda x: x[..., ::2]),
    "channels last": (lambda shape: (shape[0], *shape[2:], shape[1]), lambda x: x.movedim(-1, 1)),
}

Call = Callable[[], Any]


def letters(equation: str, of: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes by their letters.

    >>> letters("ij,jk->ik", {"x": (2, 3), "y": (3, 4)})
    {'i': 2, 'j': 3, 'k': 4}
    """
    terms = equation.partition("->")[0].split(",")
    return {letter: n for term, shape in zip(terms, of.values(), strict=True)
            for letter, n in zip(term, shape, strict=True)}


# ---------------------------------------------------------------- what there is to do
def selected(only: Sequence[str], quick: bool, many: int) -> list[tuple[str, Case, str]]:
    """(row of SWEEPS, case, part) of each measurement. only: ops, or rows; none for all."""
    return [(name, case, part) for name, sweep in SWEEPS.items()
            if not only or name in only or name.split()[0] in only
            for case in list(sweep.grid(many))[:QUICK_CASES if quick else None] for part in sweep.parts]


def work(name: str, case: Case, part: str, y: Sequence[int], size: int) -> tuple[int, int]:
    """(FLOP, bytes) at least of one call; y: the result's shape, size: bytes of its values."""
    op, shapes = name.split()[0], {key: spec.shape for key, spec in case.inputs.items()}
    flop = PRODUCTS[op](shapes, y, case.options) if op in PRODUCTS else 0
    result, learning = math.prod(y) * size, [spec for spec in case.inputs.values() if spec.learns]
    if part == "gradients":
        return flop * len([spec for spec in learning if len(spec.shape) > 1 or op in ("matmul", "einsum")]), (
            result + 4 * sum(math.prod(spec.shape) for spec in learning))
    return flop, result + (min(case.bytes, result) if op in PICKS else case.bytes)


# ---------------------------------------------------------------- both libraries, on the same memory
class Functions:
    """PyTorch's, by the names that minidl.ops has."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.nn.functional, name, None) or getattr(torch, name)


def drawn(spec: Spec, layout: str, device: str) -> Any:
    """PyTorch's tensor of an input."""
    import torch

    stored, view = LAYOUTS[layout]
    shape = tuple(stored(spec.shape))
    draw: dict[str, Call] = {
        "normal": lambda: torch.randn(shape, device=device),
        "positive": lambda: torch.rand(shape, device=device) + 0.5,
        "fixed": lambda: torch.rand(shape, device=device) + 0.5,
        "near one": lambda: 1 + 0.001 * torch.randn(shape, device=device),
        "ints": lambda: torch.randint(0, spec.below, shape, device=device),
        "bools": lambda: torch.rand(shape, device=device) < 0.5}
    return view(draw[spec.kind]())


def shared(t: Any) -> Any:
    """Our Tensor of a tensor's memory, in its layout."""
    from minidl.core.tensor import wrap

    if t.device.type == "cpu":
        return wrap(t.detach().numpy())
    import cupy

    storage, size = t.untyped_storage(), t.element_size()
    memory = cupy.cuda.UnownedMemory(storage.data_ptr(), storage.nbytes(), t)
    pointer = cupy.cuda.MemoryPointer(memory, t.storage_offset() * size)
    return wrap(cupy.ndarray(tuple(t.shape), str(t.dtype).removeprefix("torch."), pointer,
                             tuple(n * size for n in t.stride())))


def array_of(t: Any) -> Any:
    """A tensor of the values of ours, which may lie in memory as PyTorch's cannot."""
    import torch

    return torch.as_tensor(t.detach().data.copy(), device=t.device)


class Problem:
    """One part of a case for both libraries: `calls`, ours and PyTorch's, and what they return."""

    def __init__(self, name: str, case: Case, part: str, device: str):
        import torch

        from minidl import ops

        sweep, self.part = SWEEPS[name], part
        theirs = {key: drawn(spec, case.layout if key == "x" else "contiguous", device)
                  for key, spec in case.inputs.items()}
        ours = {key: shared(t) for key, t in theirs.items()}
        self.leaves = [[of[key] for key, spec in case.inputs.items() if spec.learns] for of in (ours, theirs)]
        texts = sweep.code, sweep.theirs or sweep.code
        self.forwards: list[Call] = [
            functools.partial(eval, compile(text, f"<{name}>", "eval"), {"F": library, **case.options, **of})
            for text, library, of in zip(texts, (ops, Functions()), (ours, theirs), strict=True)]
        if part == "gradients":
            for leaf in (*self.leaves[0], *self.leaves[1]):
                leaf.requires_grad = True
            made = [forward() for forward in self.forwards]
            gy = torch.randn(made[1].shape, device=device)
            self.calls: list[Call] = [functools.partial(gradients, y, seed, leaves)
                                      for y, seed, leaves in zip(made, (shared(gy), gy), self.leaves, strict=True)]
        else:
            self.calls = self.forwards

    def check(self) -> str:
        """What is wrong with our results, or ""."""
        found, expected = (call() for call in self.calls)
        if self.part == "gradients":
            pairs = list(zip((t.grad for t in self.leaves[0]), (t.grad for t in self.leaves[1]), strict=True))
        else:
            pairs = [(found, expected)]
        for mine, want in pairs:
            got = array_of(mine)
            if got.shape != want.shape:
                return f"shape {tuple(got.shape)} where PyTorch has {tuple(want.shape)}"
            off = float((got.float() - want.float()).abs().max())
            if not off <= TOLERANCE * max(1.0, float(want.float().abs().max())):
                return f"differs from PyTorch's by {off:.1e}"
        return ""


def gradients(y: Any, gy: Any, leaves: Sequence[Any]) -> None:
    """Of either library."""
    for leaf in leaves:
        leaf.grad = None
    y.backward(gy, retain_graph=True)


# ---------------------------------------------------------------- clocks
def on_cpu(call: Call, number: int, _: float) -> float:
    """Seconds of so many calls."""
    begin = time.perf_counter()
    for _i in range(number):
        call()
    return time.perf_counter() - begin


def on_cuda(call: Call, number: int, hold: float) -> float:
    """The same on the device, which is held for some seconds while the host queues them."""
    import cupy
    import numpy as np

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    holder()((1,), (1,), (np.int64(hold * CYCLES),))
    begin.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end) / 1e3


@functools.cache
def holder() -> Any:
    import cupy

    from minidl.lab.profile import HOLD

    return cupy.RawKernel(HOLD, "hold")


def once(call: Call, device: str) -> float:
    """Seconds of one call until the device has done it, the host's among them."""
    machine.finish(device)
    begin = time.perf_counter()
    call()
    machine.finish(device)
    return time.perf_counter() - begin


def timed(calls: Sequence[Call], device: str, rounds: tuple[int, int] = ROUNDS) -> list[list[float]]:
    """Seconds per call in each round of each of the calls, which take turns and have been made before."""
    clock = on_cuda if device == "cuda" else on_cpu
    first = [once(call, device) for call in calls]
    if max(first) > SLOW:
        return [[seconds] for seconds in first]
    numbers = [max(1, min(MAX_CALLS[device], int(TURN[device] / seconds))) for seconds in first]
    whole = sum(number * seconds for number, seconds in zip(numbers, first, strict=True))
    count, times = max(rounds[0], min(rounds[1], int(BUDGET / whole))), [list[float]() for _ in calls]
    for turn in range(count):
        for i in sorted(range(len(calls)), reverse=turn % 2 == 1):
            hold = min(MAX_HOLD, 1.5 * numbers[i] * first[i])
            times[i].append(clock(calls[i], numbers[i], hold) / numbers[i])
    return times


def rates(device: str) -> dict[str, Any]:
    """Bytes and fp32 operations per second that PyTorch's copy and product reach."""
    import torch

    n, size = (1 << 28, 8192) if device == "cuda" else (1 << 25, 1024)
    x, y = torch.zeros(n, device=device), torch.ones(n, device=device)
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    calls: list[Call] = [lambda: x.copy_(y), lambda: torch.mm(a, b)]
    for call in calls:
        call()
    copied, multiplied = (min(times) for times in timed(calls, device, (15, 15)))
    return {"bytes": 8 * n / copied, "fp32": 2 * size ** 3 / multiplied, "source": "reached by PyTorch in this run"}


# ---------------------------------------------------------------- measuring
def free(device: str) -> int:
    """Bytes of memory."""
    if device == "cuda":
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def forget(device: str) -> None:
    """Give back what both libraries keep of a GPU's memory."""
    if device == "cuda":
        import torch

        from minidl.core.pools import free_all_blocks

        torch.cuda.empty_cache()
        free_all_blocks()


def row_of(name: str, case: Case, part: str, device: str, limits: Mapping[str, Any]) -> Result:
    """One measurement; a row without `us` says why."""
    row: Result = {"op": name, "case": case.label, "part": part, "of": str(case), "layout": case.layout}
    if WORKSPACE * case.bytes > free(device):
        forget(device)
        if WORKSPACE * case.bytes > free(device):
            return {**row, "why": "too little memory"}
    try:
        problem = Problem(name, case, part, device)
        y = problem.forwards[1]()
        wrong = problem.check() if SWEEPS[name].checked else [call() for call in problem.calls] and ""
        if wrong:
            return {**row, "why": f"failed: {wrong}"}
        flop, moved = work(name, case, part, tuple(y.shape), y.element_size()) if y is not None else (0, case.bytes)
        ours, theirs = timed(problem.calls, device)
    except Exception as failure:                               # one broken op must not cost the others
        return {**row, "why": f"failed: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"}
    limit = 1e6 * max(flop / limits["fp32"], moved / limits["bytes"])
    return {**row, "us": round(1e6 * statistics.median(ours), 2), "least_us": round(1e6 * min(ours), 2),
            "torch_us": round(1e6 * statistics.median(theirs), 2), "torch_least_us": round(1e6 * min(theirs), 2),
            "limit_us": round(limit, 3), "rounds": len(ours)}


def measure(args: argparse.Namespace) -> Result:
    import torch

    import minidl

    minidl.set_precision("fp32")
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    seconds = SECONDS[args.device] / (QUICK if args.quick else 1)
    result = results.about("cliffs", ["minidl", "torch"], args.device, args.threads, seconds=seconds,
                           rounds=ROUNDS, tolerance=TOLERANCE)
    result["limits"] = rates(args.device)
    result["rows"] = list(swept(selected(args.only, args.quick, MANY[args.device]), args.device, result["limits"],
                                seconds))
    return result


def swept(todo: Sequence[tuple[str, Case, str]], device: str, limits: Mapping[str, Any], seconds: float,
          now: Callable[[], float] = time.monotonic) -> Iterator[Result]:
    """Rows of all measurements, as long as there is time for their op. The first one, which starts a device and its
    libraries, does not count."""
    names = [name for name, _, _ in todo]
    begin, last = math.inf, {name: i for i, name in enumerate(names, 1)}
    for name, case, part in todo:
        if now() - begin > seconds * last[name] / len(todo):
            row: Result = {"op": name, "case": case.label, "part": part, "of": str(case), "layout": case.layout,
                           "why": "no time left"}
        else:
            row = row_of(name, case, part, device, limits)
        begin = min(begin, now())
        print(f"{name:34} {part:9} {case.label:24} " + (
            f"{row['us']:12.1f} us {row['torch_us'] / row['us']:6.2f}" if "us" in row else row["why"]), flush=True)
        yield row


# ---------------------------------------------------------------- the report
def speed(row: Result) -> float:
    """Of PyTorch's."""
    return row["torch_us"] / max(row["us"], 1e-3)


def share(value: float) -> str:
    """Two digits at least.

    >>> share(1.333), share(0.00412)
    ('1.33', '0.0041')
    """
    return f"{value:.2f}" if value >= 0.1 else digits(float(f"{value:.2g}"))


def place(row: Result) -> str:
    """Which measurement of its op a row is."""
    return f"{row['part']}, {row['case']}"


def ops_table(rows: Sequence[Result], device: str) -> list[str]:
    """A line for each op."""
    body = []
    for name in dict.fromkeys(row["op"] for row in rows):
        mine = [row for row in rows if row["op"] == name]
        worst = min(mine, key=speed)
        long = [row for row in mine if row["limit_us"] >= MIN_LIMIT_US[device]]
        least = min(long, key=lambda row: row["limit_us"] / row["us"], default=None)
        body.append([f"`{name}`", place(worst), place(least) if least else "",
                     str(len({(row["case"], row["of"]) for row in mine})), share(statistics.median(map(speed, mine))),
                     share(speed(worst)), share(least["limit_us"] / least["us"]) if least else ""])
    return results.table("op, slowest beside PyTorch, farthest from the limit, shapes, median speed / PyTorch, least "
                         "speed / PyTorch, least share of limit", body, 3)


def cliffs_table(below: Sequence[Result], rows: Sequence[Result]) -> list[str]:
    """A line for each part of an op, with its cases below, the slowest first; those of one label, once."""
    body = []
    for name, part in dict.fromkeys((row["op"], row["part"]) for row in sorted(below, key=speed)):
        mine, every = ([row for row in of if (row["op"], row["part"]) == (name, part)] for of in (below, rows))
        cases = [f"{len(mine)} of {len(every)}"]
        least = {row["case"]: row for row in sorted(mine, key=speed, reverse=True)}
        cases.append("; ".join(f"{row['case']} {share(speed(row))}" for row in sorted(least.values(), key=speed)))
        body.append([f"`{name}`", part, *cases])
    return results.table("op, part, measurements, cases and their speeds / PyTorch", body, 4)


def report(several: Sequence[Result]) -> list[str]:
    (result,) = several
    device, limits = result["machine"]["device"], result["limits"]
    rows = [row for row in result["rows"] if "us" in row]
    below = [row for row in rows if speed(row) < CLIFF]
    long = [row for row in below if row["us"] >= SHORT_US[device]]
    short = list(dict.fromkeys(f"`{row['op']}`" for row in below if row["us"] < SHORT_US[device]))
    why = {reason: [row for row in result["rows"] if row.get("why") == reason]
           for reason in ("too little memory", "no time left")}
    broken = [f"- `{row['op']}`, {place(row)} ({row['of']}): {row['why']}" for row in result["rows"]
              if row.get("why", "").startswith("failed")]
    return [
        *ops_table(rows, device),
        f"Speeds are PyTorch's time over minidl's, of {len(rows)} measurements. A share of the limit is of calls that "
        f"take at least {MIN_LIMIT_US[device]} us at {limits['bytes'] / 1e9:,.1f} GB/s and "
        f"{limits['fp32'] / 1e9:,.0f} GFLOP/s, which PyTorch's copy and product reach here. Medians of "
        f"{result['method']['rounds'][0]} to {result['method']['rounds'][1]} turns.", "",
        f"Below {CLIFF} of PyTorch's speed are {len(below)} measurements. {len(long)} of them take at least "
        f"{SHORT_US[device]} us. Here they are by op; shapes and times are in the results file:", "",
        *cliffs_table(long, rows),
        f"Shorter calls below {CLIFF}: {', '.join(short) or 'none'}.", "",
        *(f"Left out, {reason}: " + "; ".join(f"`{row['op']}`, {place(row)}" for row in of) + ".\n"
          for reason, of in why.items() if of),
        *(["Not measured, since the results differ or an error was raised:", "", *broken, ""] if broken else []),
        *results.facts(several)]


def names(text: str) -> list[str]:
    """--only: rows of SWEEPS, or ops."""
    known = {*SWEEPS, *(name.split()[0] for name in SWEEPS)}
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not measured; choose from {', '.join(sorted(known))}")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="%(default)s by default")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,...", help="ops; all by default")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_CASES} shapes of each op")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv, argparse.Namespace(threads=1))
    sys.stderr.write(machine.let_openblas_choose())
    machine.set_threads(args.threads)
    machine.require(["minidl", "torch"], args.device)
    result = measure(args)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
