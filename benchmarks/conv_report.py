"""What benchmarks/conv.py measured, as Markdown tables and as a roofline."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import machine
import results
from results import Result, digits

DIRECTIONS, PRECISIONS = ("y", "dx", "dw"), ("fp32", "tf32", "3xtf32", "bf16")
PEERS = {"cudnn": ("fp32", "tf32")}                            # and the precisions that they are measured in

LADDER = ("krizhevsky", "modern")                              # shapes: the report's, and a modern one

Row = dict[str, Any]


# ---------------------------------------------------------------- a row
def tflops(row: Row) -> float:
    return float(row["flop"] / row["us"] / 1e6)


def share(result: Result, row: Row) -> float | None:
    return machine.share(result["limits"], row["precision"], row["flop"], row["bytes"], row["us"] / 1e6)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def method(row: Row) -> str:
    """How a row was timed: replays x calls per replay, recorded or not, and sets of inputs."""
    return f"{row['repeats']} x {row['calls']}{'' if row['graph'] else ' launched'}, {row['sets']} sets"


def number(us: float | None) -> str:
    return "-" if us is None else digits(us)


# ---------------------------------------------------------------- tables
def done(rows: Sequence[Row], **of: str) -> list[Row]:
    return [row for row in rows if row.get("us") and all(row[key] == value for key, value in of.items())]


def ours(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["algorithm"] not in PEERS]


def fastest(rows: Sequence[Row]) -> Row | None:
    return min(rows, key=lambda row: row["us"], default=None)


def labels(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["label"] for row in rows))


BESIDE_CUDNN = ", ".join(f"{p}: fastest us, {p}: cuDNN us, {p}: speed / cuDNN" for p in PEERS["cudnn"])


def beside(best: Row | None, peer: Row | None) -> list[str]:
    """Ours, a peer's, and the speed of ours by that of the peer."""
    return [f"`{best['algorithm']}` {number(best['us'])}" if best else "-", number(peer["us"]) if peer else "-",
            f"{peer['us'] / best['us']:.2f}" if best and peer else "-"]


def best_table(result: Result) -> list[str]:
    """Our fastest beside cuDNN, in fp32 and in tf32."""
    rows, body = result["rows"], []
    for label in labels(rows):
        for direction in DIRECTIONS:
            line = [label, direction]
            for precision in PEERS["cudnn"]:
                of = done(rows, label=label, direction=direction, precision=precision)
                line += beside(fastest(ours(of)), fastest(done(of, algorithm="cudnn")))
            body.append(line)
    return results.table(f"shape, direction, {BESIDE_CUDNN}", body, 2)


def table_of_3x3(result: Result) -> list[str]:
    """Winograd by products of matrices; and our fastest beside cuDNN, which in tf32 may be one that stays in fp32."""
    rows, body = result["rows"], []
    for label, direction in ((label, direction) for label in labels(rows) for direction in DIRECTIONS):
        of = {precision: done(rows, label=label, direction=direction, precision=precision) for precision in PRECISIONS}
        tiles = (fastest(done(of["fp32"], algorithm=name)) for name in ("winograd_2x2", "winograd_4x4"))
        able = {"fp32": of["fp32"], "tf32": [*of["fp32"], *of["tf32"]]}
        body.append([label, direction, *(number(row["us"] if row else None) for row in tiles), *(
            text for precision in able
            for text in beside(fastest(ours(able[precision])), fastest(done(of[precision], algorithm="cudnn"))))])
    return results.table(f"shape, direction, `winograd_2x2` us, `winograd_4x4` us, {BESIDE_CUDNN}", body, 2)


def errors_of_3x3(result: Result) -> list[str]:
    """How far results of fp32 are from float64's, of the plain sum, of Winograd's and of cuDNN's."""
    names, body = ("implicit_gemm", "winograd_2x2", "winograd_4x4", "cudnn"), []
    for label, direction in ((label, direction) for label in labels(result["rows"]) for direction in DIRECTIONS):
        of = {row["algorithm"]: row for row in done(result["rows"], label=label, direction=direction, precision="fp32")}
        body.append([label, direction, *(f"{of[name]['error']:.1e}" if name in of else "-" for name in names)])
    return results.table(f"shape, direction, {', '.join(f'`{name}`' for name in names)}", body, 2)


def ladder_table(result: Result, of: Sequence[str] = LADDER) -> list[str]:
    """One step of the ladder per line: microseconds of some shapes."""
    rows = result["rows"]
    columns = [(label, direction) for label in of if label in labels(rows)
               for direction in DIRECTIONS if done(rows, label=label, direction=direction)]
    body = []
    for algorithm, precision in dict.fromkeys((row["algorithm"], row["precision"]) for row in done(rows)):
        found = [fastest(done(rows, algorithm=algorithm, precision=precision, label=label, direction=direction))
                 for label, direction in columns]
        name = "cuDNN" if algorithm == "cudnn" else f"`{algorithm}`"
        body.append([name, precision, *(number(row["us"] if row else None) for row in found)])
    return results.table(", ".join(["algorithm", "precision", *(f"{label} {d} us" for label, d in columns)]), body, 2)


def tiled_table(result: Result) -> list[str]:
    """What tiles in shared memory give to y: `tiled` beside `direct`."""
    body = []
    for label in labels(result["rows"]):
        of = {row["algorithm"]: row for row in done(result["rows"], label=label, direction="y")}
        direct, tiled = (of.get(name) for name in ("direct", "tiled"))
        if direct and tiled:
            constant = of.get("tiled_constant", {}).get("us")
            body.append([label, *(number(us) for us in (direct["us"], tiled["us"], constant)),
                         f"{direct['us'] / tiled['us']:.2f}", percent(share(result, direct)),
                         percent(share(result, tiled))])
    return results.table("shape, `direct` us, `tiled` us, `tiled_constant` us, speed of `tiled` / `direct`, "
                         "`direct` of the limit, `tiled` of the limit", body, 1)


def share_table(result: Result) -> list[str]:
    """What the report's layer takes of the arithmetic in fp32, algorithm by algorithm."""
    rows = done(result["rows"], label="krizhevsky", direction="y", precision="fp32")
    return results.table("algorithm, us, of the limit", [
        [f"`{row['algorithm']}`", number(row["us"]), percent(share(result, row))] for row in rows
        if row["algorithm"] in ("direct", "tiled", "krizhevsky", "implicit_gemm", "whole_image")], 1)


def slower_table(result: Result) -> list[str]:
    """Where a step of the ladder, in its fastest precision, is slower than the step before it that does the case."""
    rows, body = done(ours(result["rows"])), []
    for label, direction in ((label, direction) for label in LADDER for direction in DIRECTIONS):
        of = [row for row in rows if (row["label"], row["direction"]) == (label, direction)]
        steps = [fastest(done(of, algorithm=name)) for name in dict.fromkeys(row["algorithm"] for row in of)]
        for before, step in itertools.pairwise(filter(None, steps)):
            if step["us"] > before["us"]:
                body.append([f"{label} {direction}", f"`{step['algorithm']}`", number(step["us"]),
                             f"`{before['algorithm']}`", number(before["us"]), f"{step['us'] / before['us']:.2f}"])
    return results.table("case, step, us, the step before, us, times as long", body, 2)


def core_table(result: Result) -> list[str]:
    """The report's layer over one CPU core, and what the report says of its own."""
    body = []
    for direction in ("y", "dw"):
        of = done(ours(result["rows"]), label="krizhevsky", direction=direction, precision="fp32")
        slow = {row["algorithm"]: row["ms"] for row in result["cpu"] if row["direction"] == direction}
        for row in filter(None, (fastest(done(of, algorithm="krizhevsky")), fastest(of)) if slow else ()):
            body.append([direction, f"`{row['algorithm']}`", number(row["us"]),
                         *(text for name in ("direct", "gemm")
                           for text in (digits(slow[name]), f"{slow[name] * 1e3 / row['us']:,.0f}")),
                         results.source(f"report {direction} times")])
    return results.table("direction, algorithm, CUDA us, CPU `direct` ms, times as fast, CPU `gemm` ms, "
                         "times as fast, the report's", [list(line) for line in dict.fromkeys(map(tuple, body))],
                         2) if body else []


def shape_tables(result: Result) -> Iterator[str]:
    """Everything measured, a table for each shape."""
    for label in labels(result["rows"]):
        of = [row for row in result["rows"] if row["label"] == label]
        n, c, h, w, m, k, stride, pad = of[0]["shape"]
        yield from [f"### {label}: {n}x{c}x{h}x{w} * {m}x{c}x{k}x{k}, stride {stride}, padding {pad}", "",
                    f"{of[0]['flop'] / 1e9:.3g} GFLOP, {of[0]['bytes'] / 1e6:.3g} MB.", ""]
        yield from results.table(
            "direction, algorithm, precision, us, TFLOP/s, of the limit, workspace MiB, largest error, repeats",
            [[row["direction"], f"`{row['algorithm']}`", row["precision"], number(row["us"]), f"{tflops(row):.2f}",
              percent(share(result, row)), *(f"{text}{' (cuBLAS)' * ('eager' in row)}" for text in (
                  f"{row['workspace_mib']:.1f}", f"{row['error']:.1e}")), method(row)] for row in done(of)], 3)
        missing: dict[str, list[str]] = {}
        for row in of:
            if row.get("why"):
                missing.setdefault(f"`{row['algorithm']}`: {row['why']}", []).append(row["direction"])
        yield from (f"- {text} ({', '.join(dict.fromkeys(where))})" for text, where in missing.items())
        yield ""


# ---------------------------------------------------------------- roofline
def roofline(result: Result, file: Path) -> None:
    """Arithmetic per byte against TFLOP/s, below the machine's ceilings; the fastest of each shape has its name."""
    plt = importlib.import_module("matplotlib.pyplot")
    plt.switch_backend("Agg")
    rows, limits = done(result["rows"]), result["limits"]
    figure, axes = plt.subplots(figsize=(12, 7.5), dpi=100, layout="constrained")
    low, high = 2.0, 1000.0
    for unit, style in (("fp32", "-"), ("tf32", "--")):
        if limits[unit]:
            ridge, top = limits[unit] / limits["bytes"], limits[unit] / 1e12
            axes.plot([low, ridge, high], [low * limits["bytes"] / 1e12, top, top], style, color="0.3", lw=1.4)
            axes.text(high * 0.97, top * 1.06, f"{unit} {top:.1f} TFLOP/s", ha="right", size=11)
    axes.text(low * 1.08, low * 1.6 * limits["bytes"] / 1e12, f"{limits['bytes'] / 1e12:.1f} TB/s", size=11)
    places: dict[str, float] = {}
    for row in sorted(rows, key=lambda row: row["flop"] / row["bytes"]):       # shapes side by side, not on each other
        if row["label"] not in places:
            places[row["label"]] = max([row["flop"] / row["bytes"], *(1.32 * x for x in places.values())])
    names = dict.fromkeys(row["algorithm"] for row in ours(rows))
    colors = {**dict(zip(names, plt.get_cmap("tab20").colors, strict=False)), "cudnn": (0, 0, 0)}
    shift, marks = {"y": 0.92, "dx": 1.0, "dw": 1.08}, {"y": "o", "dx": "s", "dw": "^"}
    for row in rows:
        full = row["precision"] == "fp32"
        axes.plot(places[row["label"]] * shift[row["direction"]], tflops(row), marks[row["direction"]], ms=6.5,
                  color=colors[row["algorithm"]], mfc=colors[row["algorithm"]] if full else "none", mew=1.3, alpha=0.85)
    for label, x in places.items():
        axes.axvline(x, color="0.9", lw=14, zorder=0)
        axes.text(x, 0.006, label, rotation=90, ha="center", va="bottom", size=10, color="0.25")
        of = ours(done(rows, label=label))
        for full in (True, False):
            best = fastest([row for row in of if (row["precision"] == "fp32") == full])
            if best:
                axes.annotate(best["algorithm"] if full else best["precision"],
                              (x * shift[best["direction"]], tflops(best)), (9, 5), textcoords="offset points",
                              size=9, color=colors[best["algorithm"]],
                              bbox={"fc": "white", "ec": "none", "alpha": 0.75, "pad": 0.5})
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        axes.plot([], [], "o", color=colors[name], label=name)
    for direction, mark in marks.items():
        axes.plot([], [], mark, color="0.4", label=direction)
    axes.plot([], [], "o", color="0.4", mfc="none", label="tf32, 3xtf32, bf16")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(0.005, 2 * (limits["tf32"] or limits["fp32"]) / 1e12),
             xlabel="FLOP per byte of inputs and output (shapes of like intensity are set side by side)",
             ylabel="TFLOP/s", title=f"Convolutions on {result['machine']['gpu']}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=10)
    figure.savefig(file)
