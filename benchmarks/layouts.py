"""NCHW, NHWC and CHWN: the same kernels on images that lie in memory in another order (the 2009 report's section 8).

    python benchmarks/layouts.py --count --json benchmarks/results/layouts_counted.json     # no GPU, g++; long
    python benchmarks/layouts.py --json benchmarks/results/layouts.json                     # a GPU

Counted are, on the emulator, the requests of warps to global memory, the sectors of 32 bytes that they touch and the
bytes that they ask for, of all kernels of a launch, for so many of the images as `counted` says, on as much smaller a
GPU: bytes per image are those of all images. Measured as in conv.py are the same launches, dx and dw too, and apart
from them turning x from NCHW and y back. Layers: the 2009 report's, and one of many channels. fp32.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import operator
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import machine
import results
from conv import Case, Operands, arguments, measure_ours
from conv_report import DIRECTIONS, number
from results import Result

from minidl.lab.layouts import LAYOUTS, turned

ALGORITHMS = ("direct", "tiled", "krizhevsky", "implicit_gemm")
COUNTED = 16                                                   # images

LAYERS = [
    Case("2009 report", 128, 3, 32, 32, 64, 8, 1, ((4, 3), (4, 3))),
    Case("64 channels", 128, 64, 14, 14, 64, 3, 1, 1)]


def in_layout(layout: str, x: Any, w: Any, gy: Any) -> tuple[Any, Any, Any]:
    return turned(x, layout), turned(w, layout, filters=True), turned(gy, layout)


def count(layers: Sequence[Case], algorithms: Sequence[str], images: int) -> Result:
    """y, on the emulator."""
    from minidl.lab.emulator import own
    from minidl.ops.cuda.conv import layouts

    result = results.about("layouts", ["minidl"], "cpu", 1, counted=images)
    result["rows"] = []
    for case, algorithm, layout in itertools.product(layers, algorithms, LAYOUTS):
        few = case._replace(n=images)
        with own.counting(own.FACTS["multiprocessors"] * images // case.n) as tables:
            x, w, _ = map(own.cupy.asarray, in_layout(layout, *few.random(1)))
            layouts.run(algorithm, "y", layout, few.geometry(), x, w, None)
        if not all(table.complete for table in tables.values()):
            raise ArithmeticError(f"{case.label}: {algorithm} in {layout} is not counted whole; use fewer images")
        total = functools.reduce(operator.add, (table.total for table in tables.values()))
        row = {"label": case.label, "algorithm": algorithm, "direction": "y", "layout": layout, "images": images}
        for way in ("loads", "stores"):
            each = getattr(total, way)
            row |= {f"{way}_requests": each.requests, f"{way}_sectors": each.sectors, f"{way}_asked": each.asked}
        result["rows"].append(row)
        print(f"{case.label:12} {algorithm:14} {layout} {total.loads.per_request:6.2f} sectors per load", flush=True)
    return result


def measure(layers: Sequence[Case]) -> Result:
    """On a GPU."""
    result = results.about("layouts", ["minidl"], "cuda", 1)
    result["rows"] = []
    for case in layers:
        operands = Operands(case)
        expected = {direction: operands.float64(direction) for direction in DIRECTIONS}
        for layout in LAYOUTS:
            for row in measured(operands, expected, layout):
                result["rows"].append({"label": case.label, "layout": layout, **row})
                print(f"{case.label:12} {row['algorithm']:14} {row['direction']:2} {layout} {row['us']:10.1f} us",
                      flush=True)
    return result


def measured(operands: Operands, expected: dict[str, Any], layout: str) -> Iterator[Result]:
    """Rows of a layout: each algorithm and direction, and turning x to it and y back."""
    from minidl.ops.cuda.conv import layouts

    g, given = operands.case.geometry(), [in_layout(layout, *each) for each in operands.sets]
    for algorithm, directions in layouts.LAUNCHERS.items():
        for direction in directions:
            taken = [arguments(direction, *each) for each in given]
            call = functools.partial(_run, algorithm, direction, layout, g, taken)
            timing, workspace, got = measure_ours(call, operands.count)
            exact = expected[direction]
            off = turned(got, "NCHW", of=layout, filters=direction == "dw") - exact
            error = float(abs(off).max() / abs(exact).max())
            if not error < 1e-4:
                raise ArithmeticError(f"{operands.case.label}: {direction} by {algorithm!r} in {layout} is wrong by "
                                      f"{error:.1e}; correct the kernel before measuring")
            yield {"algorithm": algorithm, "direction": direction, "flop": operands.flop, "bytes": operands.bytes,
                   "workspace": workspace, **timing._asdict(), "error": error}
    if layout != "NCHW":
        for what, there, to, of in (("x", [x for x, _, _ in operands.sets], layout, "NCHW"),
                                    ("y", [gy for _, _, gy in given], "NCHW", layout)):
            timing, _, _ = measure_ours(functools.partial(_turn, there, to, of), operands.count)
            yield {"algorithm": "turned", "direction": what, "bytes": 2 * there[0].nbytes, **timing._asdict()}


def _run(algorithm: str, direction: str, layout: str, g: Any, taken: list[Any], i: int) -> Any:
    from minidl.ops.cuda.conv import layouts

    return layouts.run(algorithm, direction, layout, g, *taken[i])


def _turn(arrays: list[Any], to: str, of: str, i: int) -> Any:
    return turned(arrays[i], to, of=of)


# ---------------------------------------------------------------- text
def counted_table(counted: Result, measured: Result | None) -> list[str]:
    """y: what is counted, beside the time where it was measured."""
    us = {(row["label"], row["algorithm"], row["layout"]): row["us"]
          for row in (measured["rows"] if measured else []) if row["direction"] == "y" and row["algorithm"] != "turned"}
    body = []
    for row in counted["rows"]:
        time = us.get((row["label"], row["algorithm"], row["layout"]))
        per_image = [32 * row[f"{way}_sectors"] / row["images"] / 1024 for way in ("loads", "stores")]
        body.append([row["label"], f"`{row['algorithm']}`", row["layout"],
                     *(f"{row[f'{way}_sectors'] / row[f'{way}_requests']:.2f}" for way in ("loads", "stores")),
                     f"{row['loads_requests'] / row['images']:,.0f}", *(f"{kib:,.0f}" for kib in per_image),
                     number(time) if time else "not measured yet"])
    return results.table("layer, kernel, layout, sectors per load, sectors per store, loads per image, KiB loaded per "
                         "image, KiB stored per image, us", body, 3)


def measured_tables(measured: Result) -> list[str]:
    """dx and dw, and turning."""
    of = {(row["label"], row["algorithm"], row["direction"], row["layout"]): row["us"] for row in measured["rows"]}
    body = []
    for label, algorithm, direction in dict.fromkeys(key[:3] for key in of if key[2] != "y" or key[1] == "turned"):
        times = [of.get((label, algorithm, direction, layout)) for layout in LAYOUTS]
        body.append([label, "turning" if algorithm == "turned" else f"`{algorithm}`", direction,
                     *(number(time) if time else "" for time in times)])
    return results.table("layer, kernel, of, NCHW us, NHWC us, CHWN us", body, 3)


def report(counted: Result, measured: Result | None) -> list[str]:
    commands = results.commands([each for each in (counted, measured) if each])
    if measured is None:
        return [*commands, *counted_table(counted, None), "Nobody has measured the times yet. On a GPU this does:", "",
                "    python benchmarks/layouts.py --json benchmarks/results/layouts.json", ""]
    return [*commands, *counted_table(counted, measured), *measured_tables(measured), *results.facts([measured])]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", action="store_true", help="count on the emulator instead of measuring")
    parser.add_argument("--images", type=int, default=COUNTED, help="to count (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was found, for render.py")
    args = parser.parse_args(argv)
    machine.set_threads(1)
    if args.count:
        result = count(LAYERS, ALGORITHMS, args.images)
    else:
        machine.require([], "cuda")
        result = measure(LAYERS)
    if args.json:
        results.save(result, args.json)
    print("\n".join(counted_table(result, None) if args.count else measured_tables(result)))


if __name__ == "__main__":
    main()
