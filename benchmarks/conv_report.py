"""What benchmarks/conv.py measured, as Markdown tables and as a roofline."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIRECTIONS, PRECISIONS = ("y", "dx", "dw"), ("fp32", "tf32", "3xtf32", "bf16")
LADDER = ("direct", "tiled", "tiled_constant", "krizhevsky", "unroll", "gemm", "implicit_gemm", "whole_image",
          "winograd", "tensor_core", "tensor_core_image", "wgmma")
ON_TENSOR_CORES = ("tensor_core", "tensor_core_image", "wgmma")        # not in fp32, and the others in fp32 alone
PEERS = {"cudnn": ("fp32", "tf32")}                            # and the precisions that they are measured in
REPORT = {"y": 125, "dw": 156}                                 # times a CPU: Krizhevsky 2009, sections 6.2 and 6.6

Row = dict[str, Any]


# ---------------------------------------------------------------- tables
def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def method(row: Row) -> str:
    """How a row was timed: replays x calls in each, recorded or not, and sets of inputs."""
    return f"{row['repeats']} x {row['calls']}{'' if row['graph'] else ' launched'}, {row['sets']} sets"


def number(us: float | None) -> str:
    return "-" if us is None else f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"


def table(head: str, body: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table; the first columns are words, the others numbers."""
    columns = head.split(", ")
    return [f"| {' | '.join(columns)} |", "|" + "---|" * left + "---:|" * (len(columns) - left),
            *(f"| {' | '.join(line)} |" for line in body), ""]


def done(rows: Sequence[Row], **of: str) -> list[Row]:
    return [row for row in rows if row.get("us") and all(row[key] == value for key, value in of.items())]


def ours(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["algorithm"] in LADDER]


def fastest(rows: Sequence[Row]) -> Row | None:
    return min(rows, key=lambda row: row["us"], default=None)


def labels(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["label"] for row in rows))


def best_table(rows: Sequence[Row]) -> list[str]:
    """Our fastest beside cuDNN, in fp32 and in tf32."""
    body = []
    for label in labels(rows):
        for direction in DIRECTIONS:
            line = [label, direction]
            for precision in PEERS["cudnn"]:
                of = done(rows, label=label, direction=direction, precision=precision)
                best, peer = fastest(ours(of)), fastest(done(of, algorithm="cudnn"))
                line += [f"`{best['algorithm']}` {number(best['us'])}" if best else "-",
                         number(peer["us"]) if peer else "-",
                         f"{peer['us'] / best['us']:.2f}" if best and peer else "-"]
            body.append(line)
    head = ", ".join(f"{p}: fastest us, {p}: cuDNN us, {p}: speed / cuDNN" for p in PEERS["cudnn"])
    return table(f"shape, direction, {head}", body, 2)


def ladder_table(rows: Sequence[Row]) -> list[str]:
    """A step of the ladder a line: microseconds of the report's shape and of a modern one."""
    columns = [(label, direction) for label in ("krizhevsky", "modern") if label in labels(rows)
               for direction in DIRECTIONS]
    body = []
    for algorithm, precision in dict.fromkeys((row["algorithm"], row["precision"]) for row in done(rows)):
        found = [fastest(done(rows, algorithm=algorithm, precision=precision, label=label, direction=direction))
                 for label, direction in columns]
        name = f"`{algorithm}`" if algorithm in LADDER else "cuDNN"
        body.append([name, precision, *(number(row["us"] if row else None) for row in found)])
    return table(", ".join(["algorithm", "precision", *(f"{label} {d} us" for label, d in columns)]), body, 2)


def core_table(rows: Sequence[Row], cpu: Sequence[Row]) -> list[str]:
    """The report's layer over one CPU core."""
    body = []
    for direction, report in REPORT.items():
        of = done(ours(rows), label="krizhevsky", direction=direction, precision="fp32")
        slow = {row["algorithm"]: row["ms"] for row in cpu if row["direction"] == direction}
        for row in filter(None, (fastest(done(of, algorithm="krizhevsky")), fastest(of))):
            body.append([direction, f"`{row['algorithm']}`", number(row["us"]),
                         *(text for name in ("direct", "gemm")
                           for text in (f"{slow[name]:,.1f}", f"{slow[name] * 1e3 / row['us']:,.0f}")), str(report)])
    return table("direction, algorithm, CUDA us, CPU `direct` ms, times as fast, CPU `gemm` ms, times as fast, "
                 "the report's", [list(line) for line in dict.fromkeys(map(tuple, body))], 2) if cpu else []


def shape_tables(rows: Sequence[Row]) -> Iterator[str]:
    """Everything measured, a table for each shape."""
    for label in labels(rows):
        of = [row for row in rows if row["label"] == label]
        n, c, h, w, m, k, stride, pad = of[0]["shape"]
        yield from [f"### {label}: {n}x{c}x{h}x{w} * {m}x{c}x{k}x{k}, stride {stride}, padding {pad}", "",
                    f"{of[0]['flop'] / 1e9:.3g} GFLOP, {of[0]['bytes'] / 1e6:.3g} MB.", ""]
        yield from table(
            "direction, algorithm, precision, us, TFLOP/s, of the limit, workspace MiB, largest error, repeats",
            [[row["direction"], f"`{row['algorithm']}`", row["precision"], number(row["us"]), f"{row['tflops']:.2f}",
              percent(row["share"]), f"{row['workspace'] / 2**20:.1f}", f"{row['error']:.1e}", method(row)]
             for row in done(of)], 3)
        missing: dict[str, list[str]] = {}
        for row in of:
            if row.get("why"):
                missing.setdefault(f"`{row['algorithm']}`: {row['why']}", []).append(row["direction"])
        yield from (f"- {text} ({', '.join(dict.fromkeys(where))})" for text, where in missing.items())
        yield ""


def facts(result: dict[str, Any]) -> list[str]:
    about, limits = result["about"], result["about"]["limits"]
    units = ", ".join(f"{unit} {limits[unit] / 1e12:.1f} TFLOP/s" for unit in ("fp32", "tf32", "bf16") if limits[unit])
    return [f"Device: {about['device']}; CPU: {about['cpu']}, one thread. {about['date']}.",
            f"Versions: {about['versions']}.",
            f"Limits ({limits['source']}): {units}, {limits['bytes'] / 1e12:.2f} TB/s.", ""]


def report(result: dict[str, Any]) -> str:
    rows, cpu = result["rows"], result["cpu"]
    return "\n".join([*facts(result), "## Beside cuDNN", "", *best_table(rows),
                      *(["## Beside one CPU core", "", *core_table(rows, cpu)] if cpu else []),
                      "## Every entry", "", *shape_tables(rows)]).rstrip() + "\n"


def between_markers(file: Path, name: str, text: str) -> None:
    """Replace what stands in a file between <!-- name --> and <!-- /name -->."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = file.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{file.name}: there is no {begin} ... {end}; put the markers where the table belongs")
    file.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")


# ---------------------------------------------------------------- roofline
def roofline(result: dict[str, Any], file: Path) -> None:
    """Arithmetic a byte against TFLOP/s, below the machine's ceilings; the fastest of each shape has its name."""
    plt = importlib.import_module("matplotlib.pyplot")
    plt.switch_backend("Agg")
    rows, limits = done(result["rows"]), result["about"]["limits"]
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
    colors = dict(zip((*LADDER, "cudnn"), [*plt.get_cmap("tab20").colors[:len(LADDER)], (0, 0, 0)], strict=True))
    shift, marks = {"y": 0.92, "dx": 1.0, "dw": 1.08}, {"y": "o", "dx": "s", "dw": "^"}
    for row in rows:
        full = row["precision"] == "fp32"
        axes.plot(places[row["label"]] * shift[row["direction"]], row["tflops"], marks[row["direction"]], ms=6.5,
                  color=colors[row["algorithm"]], mfc=colors[row["algorithm"]] if full else "none", mew=1.3, alpha=0.85)
    for label, x in places.items():
        axes.axvline(x, color="0.9", lw=14, zorder=0)
        axes.text(x, 0.006, label, rotation=90, ha="center", va="bottom", size=10, color="0.25")
        of = ours(done(rows, label=label))
        for full in (True, False):
            best = fastest([row for row in of if (row["precision"] == "fp32") == full])
            if best:
                axes.annotate(best["algorithm"] if full else best["precision"],
                              (x * shift[best["direction"]], best["tflops"]), (9, 5), textcoords="offset points",
                              size=9, color=colors[best["algorithm"]],
                              bbox={"fc": "white", "ec": "none", "alpha": 0.75, "pad": 0.5})
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        axes.plot([], [], "o", color=colors[name], label=name)
    for direction, mark in marks.items():
        axes.plot([], [], mark, color="0.4", label=direction)
    axes.plot([], [], "o", color="0.4", mfc="none", label="tf32, 3xtf32, bf16")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(0.005, 2 * (limits["tf32"] or limits["fp32"]) / 1e12),
             xlabel="FLOP a byte of inputs and output (shapes of like intensity are set side by side)",
             ylabel="TFLOP/s", title=f"Convolutions on {result['about']['device']}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=10)
    figure.savefig(file)


def write(result: dict[str, Any]) -> None:
    """The ladder's table, the full tables and the roofline, where the documents want them."""
    ladder = [*ladder_table(result["rows"]), *facts(result)[:2]]
    between_markers(ROOT / "minidl/ops/cuda/conv/README.md", "ladder", "\n".join(ladder))
    between_markers(ROOT / "docs/convolutions.md", "tables", report(result))
    roofline(result, ROOT / "docs/roofline.png")
