"""Write the tables of the documents from results/*.json, or say which figure does not come from there.

    python benchmarks/render.py             write every block, and docs/*.svg
    python benchmarks/render.py --plot      and docs/roofline.png
    python benchmarks/render.py --check     write nothing; exit with 1 where a document and the results differ

A block is what stands between <!-- results: NAME --> and <!-- end -->, in README.md, in docs/, in the ladder of
convolutions or beside the book's kernels; BLOCKS says what each name holds. Where the first marker ends its line the
block is paragraphs and tables, otherwise a few words within a sentence: `source NAME` is a paper's figure out of
sources.json.

The check fails on a block that is not what its files give, and on a figure of measurement outside the blocks. Such a
figure is a number with a unit of time, speed or share: us, ms, s, seconds, minutes, hours, cycles, TFLOP/s or anything
else per s, %, times, x. It is one wherever it stands, in code too, and in the cell of a table whose column head has the
unit. Sizes in bytes and numbers without a unit are none. What is set and not measured, a time limit or a mark, is
written in words or comes from the code by a block. docs/notebook/ is history and is not looked at.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))                                  # minidl and zoo as they lie here, installed or not

import accuracy  # noqa: E402
import cliffs  # noqa: E402
import cold_start  # noqa: E402
import conv_report  # noqa: E402
import distributed  # noqa: E402
import fft  # noqa: E402
import ladder as counted_ladder  # noqa: E402
import layouts  # noqa: E402
import machine  # noqa: E402
import nhwc  # noqa: E402
import overhead  # noqa: E402
import report2009  # noqa: E402
import results  # noqa: E402
import step_profile  # noqa: E402
import tiles  # noqa: E402
import time_to_accuracy  # noqa: E402
import train_step  # noqa: E402
import untuned  # noqa: E402
from results import load, source, time_of  # noqa: E402

LADDER, BOOK = "minidl/ops/cuda/conv/README.md", "examples/book/README.md"
BLOCK = re.compile(r"<!-- results: (?P<name>[^\n>]*) -->(?P<text>(?:(?!<!-- results:).)*?)<!-- end -->", re.DOTALL)
MARKER = re.compile(r"<!-- (results:.*?|end) -->")
UNITS = r"us|µs|ms|s|secs?|seconds?|min|minutes?|hours?|cycles|[\w-]+/s|%|percent|times"
FIGURE = re.compile(rf"(?<![\w.])\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?[ -]?(?:{UNITS}|fold|x(?! ?\d))(?![\w/])")
UNIT_IN_HEAD = re.compile(rf"(?<!\w)(?:{UNITS}|speed)(?![\w/])")
KEPT_TOGETHER = re.compile(rf"(?<=\d) (?=(?:{UNITS})(?!\w))")

CPU_STEPS = ("step_cpu_1", "step_cpu_2", "step_cpu_3")
COMPILED_STEPS = ("step_cuda_lenet5", "step_cuda_krizhevsky2009")
MODELS = {"lenet5": "MNIST", "krizhevsky2009": "CIFAR-10"}


# ---------------------------------------------------------------- blocks of a sentence or two
def sentence() -> list[str]:
    """The README's result in one line."""
    result = load("accuracy_cpu")
    row = next(row for row in result["rows"] if row["model"] == "lenet5")
    return [f"LeNet-5 on MNIST: **{100 * row['accuracy']:.2f} % test accuracy** after {row['epochs']} epochs, "
            f"{row['seconds_s']:.1f} s on {result['machine']['threads']} CPU cores, by one command."]


def headline() -> list[str]:
    """The README's table: a compiled step beside its peers, and what it is good for."""
    body = []
    several = [load(name) for name in COMPILED_STEPS]
    for result in several:
        for row in (row for row in result["rows"] if row["peer"] == "minidl-compiled"):
            speeds = [train_step.speed(result, row, peer) or 0 for peer in ("torch-graph", "jax")]
            body.append([f"`{row['net']}`", row["precision"],
                         *(time_of(speed * row["median_s"]) for speed in (1, *speeds)),
                         *(f"{speed:.2f}" for speed in speeds)])
    table = results.table("model, precision, minidl, PyTorch, JAX, speed / PyTorch, speed / JAX", body, 2)
    gpu, batch = several[0]["machine"]["gpu"], several[0]["rows"][0]["batch"]
    minidl, torch = (several[0]["versions"][name].split("+")[0] for name in ("minidl", "torch"))
    return [*table, f"One training step, batch {batch}, on one {gpu}: minidl {minidl} compiled, PyTorch {torch} as one "
            "CUDA graph, JAX as a jitted `lax.scan`. The peers do not have 3xtf32; theirs is fp32 there. "
            f"{several[0]['date']}.", "", *accuracies(), *marks(), *on_the_cpu()]


def accuracies() -> list[str]:
    """Test accuracies of the recipes."""
    found = []
    for model, data in MODELS.items():
        of = [row for row in load("accuracy_cuda")["rows"] if row["model"] == model]
        found.append(f"`{model}` {accuracy.mean_accuracy(of):.2f} % on {data} after {of[0]['epochs']} epochs (mean of "
                     f"{len(of)} seeds)")
    return [f"Test accuracy: {', '.join(found)}.", ""]


def marks() -> list[str]:
    """Seconds until the marks."""
    found = []
    for row in (row for row in load("time_to_accuracy_cuda")["rows"] if row["peer"] == "minidl"):
        mark = 100 * time_to_accuracy.RECIPES[row["net"]].mark
        found.append(f"{mark:g} % of {MODELS[row['net']]} by `{row['net']}` after {row['mean_s']:.3f} s")
    return [f"Training time to an accuracy: {', '.join(found)} (means of {row['seeds']} seeds).", ""]


def on_the_cpu() -> list[str]:
    """Speed of an eager step beside PyTorch's, over all runs on the CPU."""
    several = [load(name) for name in CPU_STEPS]
    found = []
    for model in MODELS:
        speeds = [speed for result in several for row in result["rows"]
                  if (row["net"], row["peer"]) == (model, "minidl")
                  for speed in [train_step.speed(result, row, "torch")] if speed]
        found.append(f"{min(speeds):.2f} to {max(speeds):.2f} times as fast as PyTorch's for `{model}`")
    facts = several[0]["machine"]
    return [f"On {facts['cores']} cores of an {facts['cpu']} an eager step is {' and '.join(found)} "
            f"({len(several)} runs).", ""]


# ---------------------------------------------------------------- tables
def runs(report: Callable[[list[results.Result]], list[str]], *names: str) -> Callable[[], list[str]]:
    """A block of one script's results: how they were made, then the script's own report of them."""
    def block() -> list[str]:
        several = [load(name) for name in names]
        return [*results.commands(several), *report(several)]
    return block


def convolutions(tables: Callable[[results.Result], Sequence[str]], name: str = "conv_cuda") -> Callable[[], list[str]]:
    return lambda: list(tables(load(name)))


def conv_facts(result: results.Result) -> list[str]:
    return [*results.commands([result]), *results.facts([result]), *machine.limits_line(result["limits"])]


def ladder(result: results.Result) -> list[str]:
    return [*conv_report.ladder_table(result), *results.facts([result])]


def ladder_of_the_book(result: results.Result) -> list[str]:
    """y alone: the book has no other kernels."""
    outputs = {**result, "rows": [row for row in result["rows"] if row["direction"] == "y"]}
    return [*results.commands([result]), *conv_report.ladder_table(outputs, conv_report.labels(outputs["rows"])),
            *results.facts([result])]


def balance() -> list[str]:
    """FLOP per byte from which on a GPU's arithmetic is the limit, and no longer its memory."""
    limits = machine.PUBLISHED["NVIDIA H200"]
    return [f"{limits['fp32'] / limits['bytes']:.0f}"]


def or_how(name: str, command: str, block: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """A block of a results file, or where there is none the command that makes it."""
    def lines() -> list[str]:
        if (results.FOLDER / f"{name}.json").exists():
            return block()
        return ["Nobody has measured it yet. On a GPU this does:", "",
                f"    {command} --json benchmarks/results/{name}.json", ""]
    return lines


def filters_of_3x3(result: results.Result) -> list[str]:
    return [*results.commands([result]), *results.facts([result]), *conv_report.table_of_3x3(result)]


def in_layouts() -> list[str]:
    """What is counted in each layout, beside times where there are some."""
    times = load("layouts") if (results.FOLDER / "layouts.json").exists() else None
    return layouts.report(load("layouts_counted"), times)


def report2009_net() -> list[str]:
    """Section 7.2: what the report's nets reach, beside what they do here."""
    of = [row for row in load("accuracy_cuda")["rows"] if row["model"] == "krizhevsky2009"]
    mark = next(row for row in load("time_to_accuracy_cuda")["rows"]
                if (row["net"], row["peer"]) == ("krizhevsky2009", "minidl"))
    body = [["test accuracy with one convolution", source("report accuracy"),
             f"{accuracy.mean_accuracy(of):.2f} % (mean of {len(of)} seeds)"],
            [f"training to {source('report accuracy')}", source("report training time"), time_of(mark["mean_s"])]]
    return results.table("what, the report, here", body, 1)


def checks() -> list[str]:
    result = load("checks")
    body = [[row["check"], f"`{row['command']}`", ", ".join(text_of(*item) for item in row["result"].items()),
             row["machine"], row["date"]] for row in result["rows"]]
    return [*results.table("check, command, result, machine, date", body, 5), result["note"], ""]


def text_of(name: str, value: float) -> str:
    """A count or a time of a check."""
    return f"{value:,} s" if name == "seconds" else f"{value:,} {name}"


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "sentence": sentence,
    "headline": headline,
    "accuracies": accuracies,
    "accuracy cpu": runs(accuracy.report, "accuracy_cpu", "accuracy_cpu_krizhevsky2009", "accuracy_cpu_perceptron"),
    "accuracy cuda": runs(accuracy.report, "accuracy_cuda"),
    "accuracy cuda nets": runs(accuracy.report, "accuracy_cuda_nets", "accuracy_cuda_tensor_cores"),
    "step cpu": runs(train_step.report, *CPU_STEPS),
    "step cpu nets": runs(train_step.report, "step_cpu_nets"),
    "step cuda compiled": runs(train_step.report, *COMPILED_STEPS),
    "step cuda nets": runs(train_step.report, "step_cuda_resnet", "step_cuda_cifar10", "step_cuda_alexnet"),
    "step cuda tensor cores": runs(train_step.report, *(f"step_cuda_tensor_cores{net}" for net in (
        "", "_resnet", "_resnet-56", "_krizhevsky2009"))),
    "step cuda large": runs(train_step.report, "step_cuda_1024", "step_cuda_4096"),
    "untuned": runs(untuned.report, "untuned_gpt", "untuned_mobile", "untuned_convnext", "untuned_unet",
                    "untuned_autoencoder", "untuned_resnet18", "untuned_recurrent"),
    "recipes": lambda: time_to_accuracy.recipes(list(time_to_accuracy.RECIPES)),
    "time to accuracy": runs(time_to_accuracy.report, "time_to_accuracy_cuda"),
    "speed run": runs(time_to_accuracy.report, *(f"time_to_accuracy_airbench{epochs}" for epochs in ("_8", ""))),
    "distributed cuda": runs(distributed.report, "distributed_cuda"),
    "cold start": runs(cold_start.report, "cold_start_cuda"),
    "overhead": runs(overhead.report, "overhead_cpu"),
    "report 2009": or_how("report2009", "python benchmarks/report2009.py", runs(report2009.report, "report2009")),
    "report 2009 net": report2009_net,
    "report 2009 mlp": or_how(
        "accuracy_cuda_mlp", "python benchmarks/accuracy.py --device cuda --models mlp --seeds 5 --data-dir <folder>",
        runs(accuracy.report, "accuracy_cuda_mlp")),
    "profile cpu": runs(step_profile.report, "profile_cpu"),
    "profile cuda": or_how(
        "profile_cuda", "python benchmarks/train_step.py --device cuda --models krizhevsky2009 --profile recorded",
        runs(step_profile.report, "profile_cuda")),
    "checks": checks,
    "conv facts": convolutions(conv_facts),
    "conv beside cuDNN": convolutions(conv_report.best_table),
    "conv beside one core": convolutions(conv_report.core_table),
    "tiled beside direct": convolutions(conv_report.tiled_table),
    "registers": convolutions(conv_report.share_table),
    "tile widths": or_how("tiles", "python benchmarks/tiles.py", runs(tiles.report, "tiles")),
    "cliffs cpu": runs(cliffs.report, "cliffs_cpu"),
    "cliffs cuda": or_how("cliffs_cuda", "python benchmarks/cliffs.py --device cuda",
                          runs(cliffs.report, "cliffs_cuda")),
    "fft cpu": runs(fft.report, "fft_cpu"),
    "fft cuda": or_how("fft_cuda", "python benchmarks/fft.py --device cuda", runs(fft.report, "fft_cuda")),
    "layouts": in_layouts,
    "nhwc": runs(nhwc.report, "nhwc_cuda"),
    "balance": balance,
    "conv 3x3": or_how("conv_3x3_cuda", "python benchmarks/conv.py --shapes 3x3",
                       convolutions(filters_of_3x3, "conv_3x3_cuda")),
    "conv 3x3 errors": or_how("conv_3x3_cuda", "python benchmarks/conv.py --shapes 3x3",
                              convolutions(conv_report.errors_of_3x3, "conv_3x3_cuda")),
    "conv entries": convolutions(lambda result: list(conv_report.shape_tables(result))),
    "ladder": convolutions(ladder),
    "ladder book": convolutions(ladder_of_the_book, "conv_book"),
    "ladder counted": runs(counted_ladder.report, "ladder_counted", "conv_cuda"),
    "ladder slower": convolutions(conv_report.slower_table),
}


def rendered(name: str, before: str) -> str:
    """What belongs between the markers; the text that stands there now tells whether it is paragraphs or words."""
    known = BLOCKS | {f"source {key}": lambda text=text: [text] for key, text in results.sources().items()}
    if name not in known:
        raise ValueError(f"there is no block {name!r}; there are {', '.join(known)}")
    lines = known[name]()
    if not before.startswith("\n"):
        return " ".join(" ".join(lines).split())
    return "\n" + "\n".join(map(wrapped, lines)).strip("\n") + "\n"


def wrapped(line: str) -> str:
    """Paragraphs in lines of 120, a figure and its unit on one."""
    if line.startswith(("|", "    ", "#")):
        return line
    return textwrap.fill(KEPT_TOGETHER.sub("\0", line), 120, subsequent_indent="  " * line.startswith("- "),
                         break_long_words=False, break_on_hyphens=False).replace("\0", " ")


# ---------------------------------------------------------------- documents
def documents(root: Path) -> Iterator[Path]:
    """Those that hold blocks and no other figures."""
    yield from (root / "README.md", root / LADDER, root / BOOK)
    yield from (path for path in sorted((root / "docs").rglob("*.md")) if "notebook" not in path.parts)


def stale(file: Path, text: str) -> Iterator[str]:
    """Blocks that are not what their files give, and markers without their other half."""
    for match in BLOCK.finditer(text):
        where, name = f"{file}:{line_of(text, match.start())}", match["name"]
        try:
            now = rendered(name, match["text"])
        except ValueError as error:
            yield f"{where}: {error}"
            continue
        if now != match["text"]:
            yield f"{where}: block {name!r} is not what benchmarks/results gives; run python benchmarks/render.py"
    for match in MARKER.finditer(BLOCK.sub(blank, text)):
        yield f"{file}:{line_of(BLOCK.sub(blank, text), match.start())}: {match[0]} lacks its other half"


def untraced(file: Path, text: str) -> Iterator[str]:
    """Figures outside of the blocks."""
    measured: list[int] = []                                   # columns of the present table that have a unit
    lines = BLOCK.sub(blank, text).splitlines()
    for number, line in enumerate(lines, 1):
        found = [match[0] for match in FIGURE.finditer(line)]
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and lines[number:number + 1] and re.match(r"\|[\s:|-]+\|$", lines[number]):
            measured = [column for column, cell in enumerate(cells) if UNIT_IN_HEAD.search(cell)]
        elif not cells:
            measured = []
        else:
            found += [cells[column] for column in measured if column < len(cells)
                      and re.search(r"\d", cells[column]) and not FIGURE.search(cells[column])]
        for figure in found:
            yield (f"{file}:{number}: {figure!r} comes from no results file; take it from a block (BLOCKS in "
                   "benchmarks/render.py), or from docs/notebook by a link")


def blank(match: re.Match[str]) -> str:
    """As many lines, with nothing on them."""
    return "\n" * match[0].count("\n")


def line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def check(root: Path) -> list[str]:
    """One line for each thing that is wrong."""
    wrong = []
    for path in documents(root):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root)
        wrong += [*stale(name, text), *untraced(name, text)]
    wrong += [f"docs/{name}: is not what benchmarks/results gives; run python benchmarks/render.py"
              for name, text in pictures().items() if (root / "docs" / name).read_text(encoding="utf-8") != text]
    return wrong


def pictures() -> dict[str, str]:
    """Those that are text, by their names in docs/."""
    return counted_ladder.pictures(load("ladder_counted"), load("conv_cuda"))


def write(root: Path) -> None:
    """Every block of every document, and the pictures that are text."""
    def block(match: re.Match[str]) -> str:
        return f"<!-- results: {match['name']} -->{rendered(match['name'], match['text'])}<!-- end -->"
    for path in documents(root):
        try:
            text = BLOCK.sub(block, path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.relative_to(root)}: {error}") from None
        path.write_text(text, encoding="utf-8")
    for name, text in pictures().items():
        (root / "docs" / name).write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something is wrong")
    parser.add_argument("--plot", action="store_true", help="draw docs/roofline.png, too")
    args = parser.parse_args(argv)
    if args.check:
        wrong = check(ROOT)
        print(*wrong or ["every figure comes from a results file, and every block is what its files give"], sep="\n")
        sys.exit(bool(wrong))
    write(ROOT)
    if args.plot:
        conv_report.roofline(load("conv_cuda"), ROOT / "docs/roofline.png")


if __name__ == "__main__":
    main()
