"""The ladder's convolutions in fp32, on LeNet-5's C3: what each reads, writes and computes, counted on the emulator;
from that a time; and the time that was measured (conv_cuda.json).

    python benchmarks/ladder.py --json benchmarks/results/ladder_counted.json      # no GPU, g++

Counted are y's kernels on a few images. A multiprocessor delivers, per clock, 128 bytes from its first-level cache or
from shared memory, which are one memory, and 128 multiply-adds. So a kernel's sectors, in fours, and its wavefronts are
a time, its FLOP are another, and what it writes, over the bandwidth of the memory, a third; the largest is the
prediction. Reads that miss the cache, waiting, and launches are not in it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import machine
import results
from conv import SHAPES, Case
from conv_report import done, number
from results import Result

IMAGES, SECTOR = 2, 32
PER_CLOCK = 128, 256                                           # bytes, FLOP: of a multiprocessor
COUNTS = "loads", "stores", "wavefronts", "flop"
C3 = next(case for case in SHAPES["lenet"] if case.label == "lenet C3 n=4096")

STEPS = {                                                      # algorithm -> the one thing that it changes
    "direct": "a thread per output reads all from global memory",
    "tiled": "a block's pixels and its filter lie in shared memory",
    "tiled_constant": "the filters lie in constant memory",
    "krizhevsky": "a block is 32 outputs wide and goes down the image; a thread keeps four sums",
    "unroll": "a column of a matrix for each output: the convolution is a product, one per image",
    "gemm_tiled": "one product for many images",
    "implicit_gemm": "the matrix is read out of the images; a thread keeps a tile of outputs in registers",
    "whole_image": "whole images and all filters lie in shared memory; a pixel in a register serves several taps"}


def count(case: Case, algorithms: Sequence[str]) -> list[Result]:
    """Of each kernel of y: sectors of global memory, wavefronts of shared memory, FLOP."""
    from minidl.lab.emulator import own
    from minidl.ops.cuda.conv import ALGORITHMS

    rows = []
    for algorithm in algorithms:
        with own.counting() as tables:
            x, w, _ = map(own.cupy.asarray, case.random(1))
            compute = ALGORITHMS[algorithm].y
            assert compute is not None
            compute(x, w, None, case.geometry(algorithm))
        for name, table in tables.items():
            if not table.complete:
                raise ArithmeticError(f"{algorithm} is not counted whole; use fewer images")
            total = table.total
            rows.append({"algorithm": algorithm, "kernel": name, "images": case.n, "loads": total.loads.sectors,
                         "stores": total.stores.sectors, "flop": total.flop, "wavefronts":
                         total.shared_loads.wavefronts + total.shared_stores.wavefronts})
    return rows


def predicted(row: Result, limits: dict[str, Any]) -> float:
    """Microseconds per image of a kernel."""
    per_clock, flop_per_clock = PER_CLOCK
    served = (row["loads"] + row["stores"]) * SECTOR / per_clock + row["wavefronts"]           # clocks
    return 1e6 / row["images"] * max(served * flop_per_clock / limits["fp32"], row["flop"] / limits["fp32"],
                                     row["stores"] * SECTOR / limits["bytes"])


class Steps:
    """What was counted beside what was measured: of each step its kernels together, per image."""

    def __init__(self, counted: Result, measured: Result):
        self.limits, self.names = measured["limits"], list(STEPS)
        of = {name: [row for row in counted["rows"] if row["algorithm"] == name] for name in STEPS}
        entries = {row["algorithm"]: row for row in done(measured["rows"], label=C3.label, direction="y")
                   if row["precision"] == "fp32"}
        self.each = {name: {each: sum(row[each] / row["images"] for row in of[name]) for each in COUNTS} for name in of}
        self.predicted = [C3.n * sum(predicted(row, self.limits) for row in of[name]) for name in of]
        self.us = [entries[name]["us"] for name in STEPS]
        self.flop = next(entries[name]["flop"] for name in STEPS)

    def moved(self, name: str) -> tuple[float, float]:
        """KB per image that a step reads and writes."""
        return self.each[name]["loads"] * SECTOR / 1000, self.each[name]["stores"] * SECTOR / 1000


def table(counted: Result, measured: Result) -> list[str]:
    steps, body = Steps(counted, measured), []
    for i, name in enumerate(steps.names):
        read, written = steps.moved(name)
        body.append([str(i + 1), f"`{name}`", STEPS[name], *map(number, (read, written)),
                     f"{steps.flop / C3.n / (read + written) / 1000:.2f}",
                     f"{steps.each[name]['wavefronts']:,.0f}", *map(number, (steps.predicted[i], steps.us[i])),
                     f"{steps.us[i] / steps.predicted[i]:.2f}"])
    return results.table("step, algorithm, what it changes, KB read per image, KB written per image, FLOP per byte, "
                         "wavefronts of shared memory per image, predicted us, measured us, measured / predicted", body,
                         3)


def report(several: Sequence[Result]) -> list[str]:
    counted, measured = several
    return [*table(counted, measured), *results.facts([measured])]


# ---------------------------------------------------------------- pictures
def pictures(counted: Result, measured: Result) -> dict[str, str]:
    """By the names of their files."""
    from minidl.tools.plot.svg import chart, roofline, series

    steps = Steps(counted, measured)
    at = [i + 1 for i in range(len(steps.names))]
    moved = [steps.moved(name) for name in steps.names]
    points = [(str(i), steps.flop / C3.n / sum(both) / 1000, steps.flop / us * 1e6)
              for i, both, us in zip(at, moved, steps.us)]
    return {"ladder_time.svg": alone(chart([series("measured", "train", at, steps.us), series(
                "predicted", "test", at, steps.predicted)], "step", "us", log=True)),
            "ladder_bytes.svg": alone(chart([series("read", "train", at, [read for read, _ in moved]), series(
                "written", "test", at, [written for _, written in moved])], "step", "KB per image", log=True)),
            "ladder_roofline.svg": alone(roofline(steps.limits["fp32"], steps.limits["bytes"], points))}


def alone(figure: str) -> str:
    """A figure of a page as a file of its own, with its colours and its legend."""
    from minidl.tools.plot import figures, page
    from minidl.tools.plot.svg import RIGHT, TOP

    drawn = re.sub(r'<g class="at">.*?</g></g>', "", re.findall(r"<svg[^>]*>(.*)</svg>", figure, re.DOTALL)[0])
    names = re.findall(r'<span class="(\w+)[^"]*"><i></i>(.*?)</span>', figure)
    key = "".join(f'<text class="{colour} key" x="{RIGHT - 4}" y="{TOP + 16 * (i + 1)}" text-anchor="end">{name}</text>'
                  for i, (colour, name) in enumerate(names))
    (rules,) = re.findall(r"\.grid, \.axis.*?(?=\.raw)", page.PAGE.template, re.DOTALL)
    colours = " ".join(f".{name} {{ stroke: var(--{name}) }}" for name in ("train", "test", "own"))
    style = (f":root {{ {page.variables(figures.LIGHT, 0)} }} @media (prefers-color-scheme: dark) {{ :root {{ "
             f"{page.variables(figures.DARK, 1)} }} }} rect {{ fill: var(--paper) }} text {{ font: 12px system-ui, "
             f"sans-serif; fill: var(--ink) }} {colours} {rules} text.mark {{ fill: var(--faint) }} "
             ".dots { stroke-width: 5; stroke-linecap: round } .key { stroke: none; font-weight: 600 } "
             ".train.key { fill: var(--train) } .test.key { fill: var(--test) }")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 230" width="600"><style>{style}</style>'
            f'<rect width="400" height="230"/>{drawn}{key}</svg>\n')


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--images", type=int, default=IMAGES, help="to count (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was counted, for render.py")
    args = parser.parse_args(argv)
    machine.set_threads(1)
    result = results.about("ladder", ["minidl"], "cpu", 1, counted=args.images)
    result["rows"] = count(C3._replace(n=args.images), list(STEPS))
    if args.json:
        results.save(result, args.json)
    print("\n".join(table(result, results.load("conv_cuda"))))


if __name__ == "__main__":
    main()
