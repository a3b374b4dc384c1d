"""The width of `tiled`'s tiles, swept: what PMPP's formula promises, and what it gives beside `direct`.

    python benchmarks/tiles.py --json benchmarks/results/tiles.json

The layers have 3 channels, 64 filters of K x K and 96 x 96 outputs, which all widths divide; the last one is that of
the 2009 report. Forward, fp32; an entry is measured as in conv.py.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import machine
import results
from conv import SHAPES, Case, Operands, measure_ours
from conv_report import number
from results import Result

WIDTHS = (8, 16, 24, 32)
LAYERS = [*(Case(f"K = {k}", 16, 3, 95 + k, 95 + k, 64, k) for k in range(3, 9)), *SHAPES["krizhevsky"]]


def reuse(tile: int, k: int) -> float:
    """How often an element of an input tile is read: K^2 T^2 / (T + K - 1)^2."""
    return (k * tile / (tile + k - 1)) ** 2


@contextlib.contextmanager
def width(tile: int | None) -> Iterator[None]:
    """TILE of tiled.py, which its launchers look up at each call; None leaves it."""
    from minidl.ops.cuda.conv.papers import tiled

    before = tiled.TILE
    tiled.TILE = tile or before
    try:
        yield
    finally:
        tiled.TILE = before


def measure(layers: Sequence[Case], widths: Sequence[int]) -> Result:
    result = results.about("tiles", ["minidl"], "cuda", 1)
    result["rows"] = []
    for case in layers:
        operands = Operands(case)
        expected = operands.float64("y")
        largest = float(abs(expected).max())
        for algorithm, tile in [("direct", None), *((name, tile) for tile in widths
                                                    for name in ("tiled", "tiled_constant"))]:
            with width(tile):
                timing, _, y = measure_ours(operands.our_call("y", algorithm), operands.count)
            error = float(abs(y - expected).max()) / largest
            if not error < 1e-5:
                raise ArithmeticError(f"{case.label}: y by {algorithm!r} with TILE {tile} is wrong by {error:.1e}; "
                                      "correct the kernel before measuring")
            result["rows"].append({"label": case.label, "shape": case[1:], "algorithm": algorithm, "tile": tile,
                                   "flop": operands.flop, "bytes": operands.bytes, **timing._asdict(), "error": error})
            print(f"{case.label:10} {algorithm:14} {tile or '':2} {timing.us:10.1f} us", flush=True)
    return result


def report(several: Sequence[Result]) -> list[str]:
    (result,) = several
    us = {(row["label"], row["algorithm"], row["tile"]): row["us"] for row in result["rows"]}
    body = []
    for row in (row for row in result["rows"] if row["algorithm"] == "tiled"):
        label, tile = row["label"], row["tile"]
        direct, constant = us[label, "direct", None], us[label, "tiled_constant", tile]
        body.append([label, str(tile), f"{reuse(tile, row['shape'][5]):.1f}", number(direct), number(row["us"]),
                     number(constant), f"{direct / row['us']:.2f}"])
    return [*results.table("layer, T, reuse, `direct` us, `tiled` us, `tiled_constant` us, speed of `tiled` / `direct`",
                           body, 1), *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv)
    machine.set_threads(1)
    machine.require([], "cuda")
    result = measure(LAYERS, WIDTHS)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
