"""The four kernels of the 2009 report at its own sizes: their times, how far they are from the CPU's results, what of a
multiprocessor they take, and how many times as fast they are as one CPU core. And what the report tried beside them.

    python benchmarks/report2009.py --json benchmarks/results/report2009.json

A batch is 128 images of 3x32x32 and 64 filters of 8x8, as in its sections 6.2 to 6.6. On the GPU a kernel is timed as
in conv.py: calls recorded in a CUDA graph, on several copies of the operands where these would stay in the cache. Its
registers, shared and local memory are those of the compiled kernel; from them follow the blocks that a multiprocessor
holds at once. The filters' gradient is timed with the sum over the images (section 6.7). The CPU's times are those of
plain loops in C (report2009.c, compiled with -O3 when this runs) and of minidl's NumPy backend, both on one thread.
Without a GPU, or without a C compiler, the columns that need it are empty, and a line says so.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import machine
import results
from conv import measure_ours, repeated
from results import Result, digits, source, time_of
from train_step import positive

from minidl.lab.gpus import held, occupancy

SOURCE = Path(__file__).with_suffix(".c")
MAX_DIFFERENCE = 1e-3                      # of a result's largest value: more is an error, no rounding

# Step -> (section, what sources.json calls it, the kernel)
STEPS = {"forward": ("6.2", "y", "conv2d_krizhevsky_y"), "averages": ("6.3", "pooling", "avg_pool2d_tiled"),
         "supersampling": ("6.5", "supersampling", "avg_pool2d_tiled_grad_x"),
         "gradient": ("6.6", "dw", "conv2d_krizhevsky_dw")}


# ---------------------------------------------------------------- what a multiprocessor holds
def launched(call: Callable[[], object]) -> list[tuple[Any, int, int]]:
    """Of each kernel that a call launches: its handle, threads of a block, and bytes of shared memory asked for."""
    from minidl.ops.cuda.launch import kernels

    found: list[tuple[Any, int, int]] = []
    start = kernels._launch

    def launch(handle: Any, *numbers: Any) -> None:
        found.append((handle, numbers[3] * numbers[4] * numbers[5], numbers[6]))
        start(handle, *numbers)
    with mock.patch.object(kernels, "_launch", launch):
        call()
    return found


def resources(call: Callable[[], object]) -> dict[str, Any]:
    """Of the first kernel that a call launches: threads and bytes of shared memory of a block, registers and bytes of
    local memory of a thread; and the blocks per multiprocessor, on a Hopper."""
    from cupy.cuda import driver

    from minidl.ops.cuda import launch

    handle, threads, dynamic = launched(call)[0]
    registers, local, static = (driver.funcGetAttribute(getattr(driver, f"CU_FUNC_ATTRIBUTE_{name}"), handle)
                                for name in ("NUM_REGS", "LOCAL_SIZE_BYTES", "SHARED_SIZE_BYTES"))
    shared = static + dynamic
    blocks = min(held(90, threads, registers, shared).values()) if launch.compute_capability() == 90 else None
    return {"threads": threads, "registers": registers, "local_bytes": local, "shared_bytes": shared,
            "blocks": blocks}


# ---------------------------------------------------------------- the steps
class Batch(NamedTuple):
    """Operands of the steps: images in [0, 1], filters and gradients of the net's scale."""

    x: Any                                 # (n,3,32,32)
    w: Any                                 # (m,3,8,8)
    hidden: Any                            # (n,m,32,32), what the logistic function gives
    small: Any                             # (n,m,8,8), gradients of the averages
    gy: Any                                # (n,m,32,32)


def batch(n: int, m: int) -> Batch:
    import numpy as np

    rng = np.random.default_rng(2009)
    scale = np.float32(0.01)
    return Batch(rng.random((n, 3, 32, 32), np.float32), scale * rng.standard_normal((m, 3, 8, 8), np.float32),
                 rng.random((n, m, 32, 32), np.float32), scale * rng.standard_normal((n, m, 8, 8), np.float32),
                 scale * rng.standard_normal((n, m, 32, 32), np.float32))


def taken(step: str, of: Batch) -> tuple[Any, ...]:
    """The operands of a step."""
    return {"forward": (of.x, of.w), "averages": (of.hidden,), "supersampling": (of.small,),
            "gradient": (of.gy, of.x)}[step]


def geometries(n: int, m: int) -> tuple[Any, Any]:
    """Of the convolution and of the averages."""
    from minidl.ops.common.geometry import conv_geometry, pool_geometry

    return (conv_geometry((n, 3, 32, 32), (m, 3, 8, 8), None, 1, ((4, 3), (4, 3)), "auto"),
            pool_geometry("avg_pool2d", (n, m, 32, 32), 4, None, 0))


def by_numpy(step: str, of: Batch) -> Any:
    """A step by the NumPy backend."""
    from minidl.ops import cpu

    conv, pool = geometries(*of.hidden.shape[:2])
    steps: dict[str, Callable[..., Any]] = {
        "forward": lambda x, w: cpu.conv2d(x, w, None, conv), "averages": lambda y: cpu.avg_pool2d(y, pool),
        "supersampling": lambda gy: cpu.avg_pool2d_grad_x(gy, pool),
        "gradient": lambda gy, x: cpu.conv2d_grad_w(gy, x, conv)}
    return steps[step](*taken(step, of))


def by_kernel(step: str, of: Batch, variant: str = "") -> Any:
    """A step by the report's kernel on CuPy arrays, or by one of its variants, or without some of its loads."""
    import krizhevsky_variants

    from minidl.ops import cuda
    from minidl.ops.cuda.conv.papers import krizhevsky

    conv, pool = geometries(*of.hidden.shape[:2])
    if variant in krizhevsky_variants.VARIANTS:
        return krizhevsky_variants.y(of.x, of.w, None, conv, variant)
    left_out = krizhevsky_variants.ABLATIONS.get(variant, ())
    steps: dict[str, Callable[..., Any]] = {
        "forward": lambda x, w: krizhevsky.y(x, w, None, conv, left_out=left_out),
        "averages": lambda y: cuda.avg_pool2d(y, pool), "supersampling": lambda gy: cuda.avg_pool2d_grad_x(gy, pool),
        "gradient": lambda gy, x: krizhevsky.dw(gy, x, conv, left_out=left_out)}
    return steps[step](*taken(step, of))


# ---------------------------------------------------------------- plain C
def compiler() -> str | None:
    """The system's C compiler: $CC, or cc, gcc or clang."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)


def loops(folder: Path) -> Callable[[str, Batch], Any] | None:
    """What computes a step by the plain loops, compiled into a folder; None where there is no compiler."""
    import numpy as np

    program = compiler()
    if program is None:
        return None
    library = folder / "loops.so"
    subprocess.run([program, "-O3", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    loaded = ctypes.CDLL(str(library))

    def compute(step: str, of: Batch) -> Any:
        first, *more = taken(step, of)
        like = {"forward": of.hidden, "averages": of.small, "supersampling": of.hidden, "gradient": of.w}[step]
        out = np.empty_like(like)
        getattr(loaded, step)(*(ctypes.c_void_p(a.ctypes.data) for a in (first, *more, *[first][len(more):], out)),
                              *of.hidden.shape[:2])
        return out
    return compute


# ---------------------------------------------------------------- measuring
def on_the_gpu(step: str, of: Batch, variant: str = "") -> tuple[Result, Any]:
    """Times and resources of a kernel, and its result."""
    import cupy

    operands = taken(step, of)
    held = sum(a.nbytes for a in operands) + of.hidden.nbytes
    cache = 2 * cupy.cuda.Device().attributes["L2CacheSize"]
    copies = [Batch(*map(cupy.asarray, of)) for _ in range(max(1, min(64, cache // held + 1)))]

    def call(i: int) -> Any:
        return by_kernel(step, copies[i], variant)
    needs = resources(lambda: call(0))
    timing, _, result = measure_ours(call, len(copies))
    return {**timing._asdict(), **needs}, result.get()


def rows_of(step: str, of: Batch, plain: Callable[[str, Batch], Any] | None, gpu: bool) -> list[Result]:
    """The row of a step; on a GPU, of its variants and ablations, too."""
    import numpy as np

    from minidl.ops.cpu.parallel import on_one_blas_thread

    expected = by_numpy(step, of)
    largest = float(np.abs(expected).max())

    def difference(what: str, result: Any) -> float:
        found = float(np.abs(result - expected).max())
        if not found < MAX_DIFFERENCE * largest:
            raise ArithmeticError(f"{step} by {what} differs from NumPy's by {found:.1e} where values go up to "
                                  f"{largest:.1e}; correct it before measuring")
        return found
    row: Result = {"step": step, "variant": "", "largest": largest}
    row["numpy_s"] = statistics.median(on_one_blas_thread(lambda: repeated(lambda: by_numpy(step, of))))
    if plain is not None:
        difference("plain C", plain(step, of))
        row["c_s"] = statistics.median(repeated(lambda: plain(step, of)))
    if not gpu:
        return [row]
    from krizhevsky_variants import ABLATIONS, VARIANTS

    needs, result = on_the_gpu(step, of)
    found = [{**row, **needs, "difference": difference("its kernel", result)}]
    names = {"forward": (*VARIANTS, *ABLATIONS), "gradient": tuple(ABLATIONS)}.get(step, ())
    for variant in names:
        needs, result = on_the_gpu(step, of, variant)
        found.append({"step": step, "variant": variant, **needs})
        if variant in VARIANTS:
            found[-1]["difference"] = difference(variant, result)
    return found


def lacking() -> str | None:
    """Why there is no GPU, or None."""
    from minidl.core.device import resolve

    try:
        resolve("cuda")
    except ValueError as error:
        return str(error)
    return None


def measure(n: int, m: int) -> Result:
    reason = lacking()
    result = results.about("report2009", ["minidl"], "cpu" if reason else "cuda", 1, images=n, filters=m)
    if reason:
        print(f"report2009.py: only the CPU's columns, since there is no GPU: {reason}")
    of = batch(n, m)
    with tempfile.TemporaryDirectory() as folder:
        plain = loops(Path(folder))
        if plain is None:
            print("report2009.py: no column of plain C, since there is no C compiler (cc, gcc or clang); install one")
        result["rows"] = [row for step in STEPS for row in rows_of(step, of, plain, not reason)]
    return result


# ---------------------------------------------------------------- the report
def cell(row: Result, name: str, show: Callable[[Any], str]) -> str:
    return "-" if row.get(name) is None else show(row[name])


def said(step: str, what: str) -> str:
    """A figure of the report, where it names one."""
    return results.sources().get(f"report {STEPS[step][1]} {what}", "")


def times_table(result: Result) -> list[str]:
    """The steps, beside what the report says of its own."""
    body = []
    for step, row in whole_rows(result).items():
        us = row.get("us")

        def over(name: str, us: float | None = us, row: Result = row) -> str:
            return f"{1e6 * row[name] / us:,.0f}" if us and row.get(name) else "-"
        body.append([step, STEPS[step][0], f"`{STEPS[step][2]}`", said(step, "time"),
                     cell(row, "us", lambda us: time_of(us / 1e6)), cell(row, "difference", "{:.1e}".format),
                     cell(row, "c_s", time_of), cell(row, "numpy_s", time_of), said(step, "times"), over("c_s"),
                     over("numpy_s")])
    return results.table("step, section, kernel, the report: time, time, largest difference, plain C, NumPy, "
                         "the report: speed / CPU, speed / plain C, speed / NumPy", body, 3)


def resources_table(result: Result) -> list[str]:
    """What of a multiprocessor they take."""
    body = []
    for step, row in whole_rows(result).items():
        if row.get("us"):
            body.append([step, f"`{STEPS[step][2]}`", str(row["threads"]), said(step, "registers"),
                         str(row["registers"]), said(step, "shared"), str(row["shared_bytes"]),
                         str(row["local_bytes"]), said(step, "occupancy"), *fitting(row)])
    return results.table("step, kernel, threads, the report: registers, registers, the report: shared bytes, "
                         "shared bytes, local bytes, the report: occupancy, blocks per multiprocessor, occupancy",
                         body, 2) if body else []


def fitting(row: Result) -> list[str]:
    """Blocks per multiprocessor, and occupancy."""
    blocks = row.get("blocks")
    return ["-", "-"] if blocks is None else [str(blocks), f"{occupancy(90, row['threads'], blocks):.0%}"]


def variants_table(result: Result) -> list[str]:
    """The variants and the kernels without their loads, beside the kernels themselves."""
    body, whole = [], whole_rows(result)
    for row in (row for row in result["rows"] if row["variant"]):
        says = said(row["step"], "loads") if row["variant"] == "without any loads" else ""
        body.append([row["step"], row["variant"], digits(row["us"]), says,
                     f"{faster(row, whole[row['step']]):.0f} %", str(row["registers"]), str(row["shared_bytes"]),
                     *fitting(row)])
    return results.table("step, variant, us, the report: faster by, faster by, registers, shared bytes, "
                         "blocks per multiprocessor, occupancy", body, 2) if body else []


def whole_rows(result: Result) -> dict[str, Result]:
    """The rows of the kernels themselves, by their steps."""
    return {row["step"]: row for row in result["rows"] if not row["variant"]}


def faster(row: Result, other: Result) -> float:
    """By how many percent a row is faster than another."""
    return 100 * (float(other["us"]) / float(row["us"]) - 1)


def report(several: Sequence[Result]) -> list[str]:
    (result,) = several
    of, whole, apart = result["method"], whole_rows(result), list[str]()
    if whole["forward"].get("us"):
        by = faster(whole["gradient"], whole["forward"])
        apart = [f"The gradient is faster than the forward convolution by {by:.0f} %; the report's by "
                 f"{source('report dw over y')}.", ""]
    return [*times_table(result), *apart, *resources_table(result), *variants_table(result),
            f"{of['images']} images, {of['filters']} filters.", "", *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--images", type=positive, default=128, help="of a batch")
    parser.add_argument("--filters", type=positive, default=64)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv)
    machine.set_threads(1)
    result = measure(args.images, args.filters)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
