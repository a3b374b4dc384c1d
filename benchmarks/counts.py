"""What accesses to memory cost, counted without a GPU, beside what ncu counts on one.

    python benchmarks/counts.py            # needs a GPU, Nsight Compute's ncu, and g++; about a minute

Each kernel below is launched twice on the same shapes: on the emulator (minidl.emulator), which counts requests,
sectors and wavefronts; and on the GPU in a second process, under ncu. One table: kernel, what, counted, ncu, and the
difference: of conflicts as a share of the wavefronts, which they are part of, since a GPU has a few that no address
explains. --only-counted leaves the GPU out. The exit status is 1 where a difference is above 2 % in a kernel that is
not named in APART, with the reason why the compiler makes other accesses of it than its source says.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))                                  # minidl as it lies here, installed or not

import numpy as np  # noqa: E402
import results  # noqa: E402

from minidl.core import device  # noqa: E402
from minidl.lab.emulator import COMPILER, own  # noqa: E402
from minidl.lab.emulator.counts import Counts  # noqa: E402
from minidl.lab.emulator.watch import Kernel  # noqa: E402

MOST = 0.02                                                    # of a difference, as a part of ncu's number

# minidl's kernels: shapes of inputs, and options of minidl.lab.emulator.own.start. Each launch counts by its kernel's
# name, also of the kernels that a launcher needs beside.
OWN: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("conv2d_direct_y", [(4, 6, 28, 28), (16, 6, 5, 5)], {}),
    ("conv2d_direct_dx", [(2, 6, 28, 28), (8, 6, 5, 5)], {}),
    ("conv2d_tiled_y", [(4, 6, 28, 28), (16, 6, 5, 5)], {}),
    ("conv2d_tiled_dx", [(2, 6, 28, 28), (8, 6, 5, 5)], {}),
    ("conv2d_tiled_dw", [(4, 6, 28, 28), (8, 6, 5, 5)], {}),
    ("conv2d_krizhevsky_y", [(4, 3, 32, 32), (16, 3, 5, 5)], {}),
    ("unroll", [(4, 6, 28, 28), (16, 6, 5, 5)], {}),
    ("avg_pool2d", [(8, 6, 27, 27)], {"window": 3, "stride": 2}),
    ("avg_pool2d_tiled", [(8, 6, 28, 28)], {"window": 2}),
    ("max_pool2d", [(8, 6, 28, 28)], {"window": 2}),
    ("map_sets", [(64, 10)], {}),
    ("activation", [(10_000,)], {}),
    ("gemm_tiled", [(70, 130), (40, 130)], {})]

# Kernels of x and y, whose answers are known (tests/cli/test_counts.py): one block of 32 x 8 threads
THREAD = "int i = threadIdx.y * 32 + threadIdx.x;"
TRANSPOSE = """
    __shared__ float s[32][WIDTH];
    for (int r = threadIdx.y; r < 32; r += 8) s[r][threadIdx.x] = x[r * 32 + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += 8) y[r * 32 + threadIdx.x] = s[threadIdx.x][r];"""
SHARED = """
    __shared__ TYPE s[1024];
    for (int k = i; k < 1024; k += 256) s[k] = ((const TYPE*)x)[k];
    __syncthreads();
    ((TYPE*)y)[i] = s[AT];"""
KNOWN: dict[str, str] = {
    "neighbours": "y[i] = x[i];",
    "every_second": "y[i] = x[2 * i];",
    "columns": "y[i] = x[32 * threadIdx.x + threadIdx.y];",
    "off_by_one": "y[i] = x[i + 1];",
    "four_at_once": "float4 v = ((const float4*)x)[i]; v.x += v.w; ((float4*)y)[i] = v;",
    "transpose": TRANSPOSE.replace("WIDTH", "32"),
    "transpose_padded": TRANSPOSE.replace("WIDTH", "33"),
    "doubles": SHARED.replace("TYPE", "double").replace("AT", "i"),
    "doubles_two_apart": SHARED.replace("TYPE", "double").replace("AT", "2 * i"),
    "fours": SHARED.replace("TYPE", "float4").replace("AT", "i"),
    "fours_in_pairs": SHARED.replace("TYPE", "float4").replace("AT", "i / 2"),
    "fours_all_the_same": SHARED.replace("TYPE", "float4").replace("AT", "threadIdx.y"),
    "lanes_that_load_more": """
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k <= threadIdx.x; ++k) sum += x[k * 32 + i];
    y[i] = sum;""",
    "half_a_warp": "if (threadIdx.x < 16) y[i] = x[i]; else y[i] = x[i] + 1;"}
ELEMENTS = 16_384                                              # of x and y

UNROLLED = "its loops are unrolled, and lanes leave them at different times"
APART = {"conv2d_direct_dx": UNROLLED, "conv2d_tiled_dx": UNROLLED,
         "half_a_warp": "its two branches become one load and one store"}

# What -> ncu's metric, and the count
METRICS: dict[str, tuple[str, Callable[[Counts], int]]] = {
    "global loads, requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", lambda c: c.loads.requests),
    "global loads, sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", lambda c: c.loads.sectors),
    "global stores, requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", lambda c: c.stores.requests),
    "global stores, sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", lambda c: c.stores.sectors),
    "shared loads, wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
                                 lambda c: c.shared_loads.wavefronts),
    "shared loads, conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
                                lambda c: c.shared_loads.conflicts),
    "shared stores, wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
                                  lambda c: c.shared_stores.wavefronts),
    "shared stores, conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
                                 lambda c: c.shared_stores.conflicts)}


def source() -> str:
    return "\n".join(f'extern "C" __global__ void {name}(const float* x, float* y) {{\n    {THREAD}{body}\n}}'
                     for name, body in KNOWN.items())


def counted(multiprocessors: int) -> dict[str, Counts]:
    """By kernel, on the emulator."""
    with own.counting(multiprocessors) as tables:
        for name, shapes, options in OWN:
            own.start(name, shapes, **options)
    found = {name: tables[name].total for name, _, _ in OWN}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "known.cu"
        file.write_text(source(), encoding="utf-8")
        x = np.zeros(ELEMENTS, np.float32)
        for name in KNOWN:
            run = Kernel(file, name).run(1, (32, 8), {"x": x, "y": x}, orders=1)
            assert not run.faults, run.faults
            found[name] = run.counts.total
    return found


def launch() -> None:
    """All of them on the GPU: what ncu looks at."""
    import cupy

    device.resolve("cuda")
    for name, shapes, options in OWN:
        own.start(name, shapes, **options)
    x, y = cupy.asarray(np.zeros((2, ELEMENTS), np.float32))
    module = cupy.RawModule(code=source(), options=("--std=c++17",))
    for name in KNOWN:
        module.get_function(name)((1,), (32, 8), (x, y))
    cupy.cuda.Device().synchronize()


def measured(ncu: str) -> dict[str, dict[str, int]]:
    """By kernel and metric, summed over launches, by ncu. Raises RuntimeError with what it says."""
    names = [*(name for name, _, _ in OWN), *KNOWN]
    command = [ncu, "--csv", "--target-processes", "all", "--print-units", "base",
               "--metrics", ",".join(metric for metric, _ in METRICS.values()),
               "--kernel-name", f"regex:^({'|'.join(names)})$", sys.executable, __file__, "--launch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or not lines:
        raise RuntimeError(f"ncu ended with status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    found: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        kernel = found.setdefault(row["Kernel Name"].partition("(")[0], {})
        metric, value = row["Metric Name"], row["Metric Value"].replace(",", "")
        if value.replace(".", "").isdigit():                   # n/a: this GPU does not count it
            kernel[metric] = kernel.get(metric, 0) + round(float(value))
    return found


def difference(what: str, count: int, ncu: dict[str, int]) -> float:
    """Between a count and ncu's."""
    metric, whole = (METRICS[name][0] for name in (what, what.replace("conflicts", "wavefronts")))
    return abs(count - ncu[metric]) / max(ncu.get(whole, 0), 1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-counted", action="store_true", help="without a GPU")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.launch:
        launch()
        return 0
    multiprocessors, by_ncu = own.FACTS["multiprocessors"], dict[str, dict[str, int]]()
    if COMPILER is None:
        parser.error("there is no C++ compiler, which this needs, and it needs Linux; install g++")
    if not args.only_counted:
        ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
        if ncu is None:
            parser.error("there is no ncu, of the CUDA toolkit, which this needs; or give --only-counted")
        multiprocessors, by_ncu = own.launch.multiprocessors(), measured(ncu)
    body, worst = list[list[str]](), dict[str, float]()
    for name, counts in counted(multiprocessors).items():
        ncu_counts = by_ncu.get(name, {})
        for what, (metric, of) in METRICS.items():
            count, ncu_says = of(counts), ncu_counts.get(metric)
            if count or ncu_says:
                apart = None if ncu_says is None else difference(what, count, ncu_counts)
                worst[name] = max(worst.get(name, 0.0), apart or 0.0)
                body.append([name, what, f"{count:,}", "-" if ncu_says is None else f"{ncu_says:,}",
                             "-" if apart is None else f"{apart:.1%}"])
    print("\n".join(results.table("kernel, what, counted, ncu, difference", body, 2)))
    if by_ncu:
        beyond = {name: apart for name, apart in worst.items() if apart > MOST}
        print(f"{len(worst) - len(beyond)} of {len(worst)} kernels are within {MOST:.0%} of ncu in each count. Not: " +
              ("; ".join(f"{name}, {apart:.1%} ({APART.get(name, 'not foreseen')})" for name, apart in beyond.items())
               or "none"))
        return int(not beyond.keys() <= APART.keys())
    return 0


if __name__ == "__main__":
    sys.exit(main())
