"""From which filter size on Fourier transforms pay: convolutions with filters of 3x3 to 31x31.

    python benchmarks/fft.py --json benchmarks/results/fft_cpu.json
    python benchmarks/fft.py --device cuda --json benchmarks/results/fft_cuda.json

32 channels of 64x64 pixels, and as many filters; fp32. On the CPU `gemm`, which is what `auto` is there, and `fft`,
beside PyTorch's; they take turns, so that whatever else the machine does meets all alike. On a GPU the algorithms that
may be the fastest for some of them, beside cuDNN: conv.py measures its shapes called fft.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import conv
import machine
import results
from conv import SHAPES, Case, arguments
from conv_report import DIRECTIONS, done, fastest, labels, number
from results import Result

ROUNDS = 5
ON_CUDA = "gemm,implicit_gemm,winograd_2x2,winograd_4x4,fft"
IMAGES = 4                                                     # conv.py's shapes with fewer of them


def calls(case: Case, direction: str, torch: bool) -> dict[str, Callable[[], Any]]:
    """By algorithm; what they return is an array of the same numbers."""
    from minidl.ops.cpu.conv import ALGORITHMS

    operands = case.random(1)
    found: dict[str, Callable[[], Any]] = {
        name: functools.partial(ALGORITHMS[name][DIRECTIONS.index(direction)], *arguments(direction, *operands),
                                case.geometry(name)) for name in ("gemm", "fft")}
    return {**found, "torch": functools.partial(torch_call, case, direction, *operands)} if torch else found


def torch_call(case: Case, direction: str, *operands: Any) -> Any:
    import torch

    x, w, gy = map(torch.from_numpy, operands)
    padding = [case.pad] * 2
    if direction == "y":
        return torch.nn.functional.conv2d(x, w, None, 1, padding).numpy()
    mask = [direction == "dx", direction == "dw", False]
    return torch.ops.aten.convolution_backward(gy, x, w, None, [1, 1], padding, [1, 1], False, [0, 0], 1,
                                               mask)[mask.index(True)].numpy()


def measure(cases: Sequence[Case], peers: Sequence[str], threads: int, rounds: int = ROUNDS) -> Result:
    result = results.about("fft", ["minidl", *peers], "cpu", threads, rounds=rounds)
    result["rows"] = []
    for case in cases:
        for direction in DIRECTIONS:
            run = calls(case, direction, "torch" in peers)
            first = {name: call() for name, call in run.items()}
            largest = float(abs(first["gemm"]).max())
            times: dict[str, list[float]] = {name: [] for name in run}
            for _ in range(rounds):
                for name, call in run.items():
                    begin = time.perf_counter()
                    call()
                    times[name].append((time.perf_counter() - begin) * 1e6)
            for name, each in times.items():
                error = float(abs(first[name] - first["gemm"]).max()) / largest
                if not error < 1e-4:
                    raise ArithmeticError(f"{case.label} {direction}: {name!r} differs from 'gemm' by {error:.1e}; "
                                          "correct it before measuring")
                result["rows"].append({
                    "label": case.label, "shape": case[1:], "direction": direction, "algorithm": name,
                    "precision": "fp32", "us": statistics.median(each), "least_us": min(each), "largest_us": max(each),
                    "repeats": rounds, "difference": error})
                print(f"{case.label:6} {direction:2} {name:6} {statistics.median(each) / 1e3:10.1f} ms", flush=True)
    return result


def report(several: Sequence[Result]) -> list[str]:
    """Microseconds by filter size, of this script's run or of conv.py's, and what fft is beside the fastest other."""
    (result,) = several
    rows = done(result["rows"], precision="fp32")
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    body = []
    for label in labels(rows):
        for direction in DIRECTIONS:
            of = done(rows, label=label, direction=direction)
            if not of:
                continue
            us = {row["algorithm"]: row["us"] for row in of}
            other = fastest([row for row in of if row["algorithm"] != "fft"])
            speed = f"{other['us'] / us['fft']:.2f}" if other and "fft" in us else "-"
            body.append([label, direction, *(number(us.get(name)) for name in names), speed])
    head = ", ".join(f"`{name}` us" for name in names)
    broken = [f"- `{row['algorithm']}`, {row['label']} {row['direction']}: {row['why']}" for row in result["rows"]
              if row.get("failed")]
    return [*results.table(f"filters, direction, {head}, speed of `fft` / fastest other", body, 2), *broken,
            *([""] if broken else []), *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="%(default)s by default")
    parser.add_argument("--peers", default="torch", choices=("torch", ""),
                        help="on the CPU; %(default)s by default, '' for none")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU; %(default)s by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv)
    if args.device == "cuda":
        conv.main(["--shapes", "fft", "--algorithms", ON_CUDA, "--precisions", "fp32",
                   *(["--json", str(args.json)] if args.json else [])])
        return
    peers = [args.peers] if args.peers else []
    machine.set_threads(args.threads)
    machine.require(peers, "cpu")
    result = measure([case._replace(n=IMAGES) for case in SHAPES["fft"]], peers, args.threads)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
