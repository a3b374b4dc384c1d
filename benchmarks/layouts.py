"""NCHW, NHWC and CHWN: the same kernels on images that lie in memory in another order (the 2009 report's section 8).

    python benchmarks/layouts.py --count --json benchmarks/results/layouts_counted.json     # no GPU, g++; long
    python benchmarks/layouts.py --json benchmarks/results/layouts.json                     # a GPU

Counted are, on the emulator, the requests of warps to global memory, the sectors of 32 bytes that they touch and the
bytes that they ask for, of all kernels of a launch, for so many of the images as `counted` says: bytes per image are
those of all. Measured as in conv.py are the same launches, dx and dw too, and apart from them turning x from NCHW and y
back. Layers: the 2009 report's, and one of many channels. fp32.
"""

from __future__ import annotations

import argparse
import functools
import operator
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import machine
import results
from conv import Operands, arguments, measure_ours
from conv_report import DIRECTIONS, number
from results import Result

from minidl.layouts import LAYOUTS, turned

ALGORITHMS = ("direct", "tiled", "krizhevsky", "implicit_gemm")
COUNTED = 16                                                   # images

# label -> x, w, padding
LAYERS: dict[str, tuple[Any, ...]] = {
    "2009 report": ((128, 3, 32, 32), (64, 3, 8, 8), ((4, 3), (4, 3))),
    "64 channels": ((128, 64, 14, 14), (64, 64, 3, 3), 1)}


class Layer:
    """What Operands asks of a case."""

    def __init__(self, label: str, n: int | None = None):
        x, w, self.pad = LAYERS[label]
        self.label, self.x, self.w = label, (n or x[0], *x[1:]), w

    def geometry(self, algorithm: str = "auto") -> Any:
        from minidl.ops.geometry import conv_geometry

        return conv_geometry(self.x, self.w, None, 1, self.pad, algorithm)

    @property
    def n(self) -> int:
        return self.x[0]

    def _replace(self, n: int) -> Layer:
        return Layer(self.label, n)

    def random(self, seed: int) -> list[Any]:
        """x, w and gy as float32 in host memory."""
        import numpy as np

        g, rng = self.geometry(), np.random.default_rng(seed)
        return [rng.standard_normal(shape, dtype=np.float32) for shape in (self.x, self.w, (g.n, g.m, g.oh, g.ow))]


def in_layout(layout: str, x: Any, w: Any, gy: Any) -> tuple[Any, Any, Any]:
    return turned(x, layout), turned(w, layout, filters=True), turned(gy, layout)


def count(labels: Sequence[str], algorithms: Sequence[str], images: int) -> Result:
    """On the emulator: y."""
    from minidl.emulator import own

    result = results.about("layouts", ["minidl"], "cpu", 1, counted=images)
    result["rows"] = []
    for label in labels:
        layer = Layer(label, images)
        for algorithm in algorithms:
            for layout in LAYOUTS:
                with own.counting() as tables:
                    x, w, _ = in_layout(layout, *layer.random(1))
                    from minidl.ops.cuda.conv import layouts

                    layouts.run(algorithm, "y", layout, layer.geometry(), own.cupy.asarray(x), own.cupy.asarray(w),
                                None)
                if not all(table.complete for table in tables.values()):
                    raise ArithmeticError(f"{label}: {algorithm} in {layout} is not counted whole; use fewer images")
                total = functools.reduce(operator.add, (table.total for table in tables.values()))
                row = {"label": label, "algorithm": algorithm, "direction": "y", "layout": layout, "images": images}
                for way in ("loads", "stores"):
                    each = getattr(total, way)
                    row |= {f"{way}_requests": each.requests, f"{way}_sectors": each.sectors,
                            f"{way}_asked": each.asked}
                result["rows"].append(row)
                print(f"{label:12} {algorithm:14} {layout} {total.loads.per_request:6.2f} sectors per load", flush=True)
    return result


def measure(labels: Sequence[str]) -> Result:
    """On a GPU."""
    from minidl.ops.cuda.conv import layouts

    result = results.about("layouts", ["minidl"], "cuda", 1)
    result["rows"] = []
    for label in labels:
        operands: Any = Operands(Layer(label))                 # type: ignore[arg-type]
        g, sets = operands.case.geometry(), operands.count
        expected = {direction: operands.float64(direction) for direction in DIRECTIONS}
        for layout in LAYOUTS:
            given = [in_layout(layout, *each) for each in operands.sets]
            for algorithm in ALGORITHMS:
                for direction in layouts.LAUNCHERS[algorithm]:
                    taken = [arguments(direction, *each) for each in given]

                    def call(i: int, name: str = algorithm, what: str = direction, order: str = layout,
                             taken: list[Any] = taken) -> Any:
                        return layouts.run(name, what, order, g, *taken[i])
                    timing, workspace, got = measure_ours(call, sets)
                    exact = expected[direction]
                    error = float(abs(turned(got, "NCHW", of=layout, filters=direction == "dw") - exact).max()
                                  / abs(exact).max())
                    if not error < 1e-4:
                        raise ArithmeticError(f"{label}: {direction} by {algorithm!r} in {layout} is wrong by "
                                              f"{error:.1e}; correct the kernel before measuring")
                    result["rows"].append({"label": label, "algorithm": algorithm, "direction": direction,
                                           "layout": layout, "flop": operands.flop, "bytes": operands.bytes,
                                           "workspace": workspace, **timing._asdict(), "error": error})
                    print(f"{label:12} {algorithm:14} {direction:2} {layout} {timing.us:10.1f} us", flush=True)
            if layout != "NCHW":
                for what, call in (("x", lambda i, order=layout: turned(operands.sets[i][0], order)),
                                   ("y", lambda i, order=layout, given=given: turned(given[i][2], "NCHW", of=order))):
                    timing, _, _ = measure_ours(call, sets)
                    result["rows"].append({"label": label, "algorithm": "turned", "direction": what, "layout": layout,
                                           "bytes": 8 * operands.sets[0][0 if what == "x" else 2].size,
                                           **timing._asdict()})
                    print(f"{label:12} turned         {what:2} {layout} {timing.us:10.1f} us", flush=True)
    return result


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
        result = count(list(LAYERS), ALGORITHMS, args.images)
    else:
        machine.require([], "cuda")
        result = measure(list(LAYERS))
    if args.json:
        results.save(result, args.json)
    print("\n".join(counted_table(result, None) if args.count else measured_tables(result)))


if __name__ == "__main__":
    main()
