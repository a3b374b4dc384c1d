"""What Python costs: recording an op on the tape, running a long chain of them, and importing minidl.

    python benchmarks/overhead.py

An op on tiny arrays is called as the bare primitive on arrays, unrecorded (in no_grad) and recorded (an input
requires a gradient); the three take turns. Imports are timed inside fresh interpreters, which take turns too.
"""

from __future__ import annotations

import argparse
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

import numpy as np  # noqa: E402
import results  # noqa: E402
from results import Result  # noqa: E402
from train_step import positive  # noqa: E402

from minidl import Tensor, no_grad, ops  # noqa: E402
from minidl.ops import cpu  # noqa: E402
from minidl.ops.common.geometry import conv_geometry, pool_geometry  # noqa: E402

CHAIN = 20_000
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
    return {**results.about("overhead", ["minidl"], "cpu", 1, number=args.number, repeats=args.repeats),
            "rows": recording(args.number, args.repeats), "chain": chain(args.repeats),
            "imports": imports(args.repeats)}


def report(several: Sequence[Result]) -> list[str]:
    (result,) = several
    ops = [[of["op"], *(f"{of[name]:.2f}" for name in ("primitive_us", "unrecorded_us", "recorded_us")),
            f"{of['recorded_us'] - of['primitive_us']:.2f}"] for of in result["rows"]]
    long, loads = result["chain"], result["imports"]
    both = (long["forward_ms"] + long["backward_ms"]) / long["ops"] * 1e3
    return [*results.table("op, primitive us, unrecorded us, recorded us, recorded - primitive us", ops, 1),
            *results.table("chain, forward ms, backward ms, us per op (both)", [
                [f"{long['ops']:,} multiplications", f"{long['forward_ms']:.1f}", f"{long['backward_ms']:.1f}",
                 f"{both:.2f}"]], 1),
            *results.table("heavy modules loaded with minidl, import numpy ms, import minidl ms, of it beyond NumPy", [
                [", ".join(loads["heavy"]) or "none", f"{loads['numpy_ms']:.0f}", f"{loads['minidl_ms']:.0f}",
                 f"{loads['minidl_ms'] - loads['numpy_ms']:.0f}"]], 1),
            f"Medians of {result['method']['repeats']} turns; an op's turn is {result['method']['number']} calls on "
            "tiny float32 arrays.", "", *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--number", type=positive, default=2000, help="calls in a turn")
    parser.add_argument("--repeats", type=positive, default=15, help="turns, chains and imports of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv)
    result = measure(args)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
