"""Draw README's pictures: docs/run.svg, the curves of a run's report, and docs/race.svg, what `minidl emulate` finds.

    minidl train --model lenet5 --output-dir runs/readme
    python docs/pictures.py runs/readme

The second needs Linux and g++. Without a run folder it is drawn alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path

from minidl import plot
from minidl.tools import cli
from minidl.tools.plot.svg import HEIGHT, WIDTH

HERE = Path(__file__).parent
SHOWN = "Loss", "Error"                    # sections of the report
GAP, TITLE = 24, 24                        # pixels between two charts, and above each
RULES = re.compile(r"^(?:svg text|path\.mark|\.(?:grid|axis|raw|line|dots|train|test)).*$", re.MULTILINE)
KERNEL = """\
__global__ void total(const float* x, float* y) {
    __shared__ float part[64];
    part[threadIdx.x] = x[threadIdx.x];
    for (int half = 32; half > 0; half /= 2)
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    if (threadIdx.x == 0) y[0] = part[0];
}
"""
COMMAND = "minidl emulate total.cu --block 64 --args x=64:arange y=1"
LETTER, LINE, COLUMNS = 7.8, 19, 96        # pixels of a letter of 13 pixels, and of a line; letters in a line


def svg(width: float, height: float, style: str, parts: str) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}">\n<style>\n{style}\n</style>\n{parts}\n</svg>\n')


def of_run(report: str) -> str:
    """The charts of a report beside each other, in its light colours."""
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", report.partition("@media")[0]))
    style = "\n".join(["text { font: 12px system-ui, sans-serif }", *RULES.findall(report),
                       "text.title { font-size: 16px; font-weight: 600 }"])
    style = re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], style)
    parts = [f'<rect width="100%" height="100%" fill="{colours["paper"]}"/>']
    for i, name in enumerate(SHOWN):
        figure = re.search(rf"<h2>{name}</h2>\n.*?<svg[^>]*>(.*?)</svg>(?:<figcaption>(.*?)</figcaption>)?", report,
                           re.DOTALL)
        if figure is None:
            sys.exit(f"pictures.py: error: the report has no section {name!r}; name the run of a classifier")
        drawn = re.sub(r'<g class="at">.*?</g></g>', "", figure[1])      # what the pointer shows
        left = i * (WIDTH + GAP) + GAP
        parts.append(f'<text class="title" x="{left}" y="{GAP}">{name}</text>'
                     f'<svg x="{left}" y="{GAP + TITLE}" width="{WIDTH}" height="{HEIGHT}">{drawn}</svg>')
        at = left + 4.0
        for kind, text in re.findall(r'<span class="([^"]*)"><i></i>(.*?)</span>', figure[2] or ""):
            y = GAP + TITLE + HEIGHT + 14
            parts.append(f'<path class="line {kind}" d="M{at:.0f} {y}h14"/>'
                         f'<text x="{at + 20:.0f}" y="{y + 4}">{text}</text>')
            at += 30 + 5.9 * len(text)
    width, height = len(SHOWN) * (WIDTH + GAP) + GAP, GAP + TITLE + HEIGHT + 14 + GAP
    return svg(width, height, style, "\n".join(parts))


def emulated() -> str:
    """What the command prints of the kernel."""
    before, told = Path.cwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("total.cu").write_text(KERNEL, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
                cli.main(COMMAND.split()[1:])
        finally:
            os.chdir(before)
    return told.getvalue()


def of_race(told: str) -> str:
    """The source, with the lines that a fault names marked, the command, and the faults."""
    named = {int(line) for line in re.findall(r"total\.cu:(\d+)", told)}
    lines = [("fault" if i in named else "code", f"{i:2}  {text}") for i, text in enumerate(KERNEL.splitlines(), 1)]
    lines += [("code", ""), ("command", f"$ {COMMAND}")]
    for fault in told.splitlines():
        lines += [("told", text) for text in textwrap.wrap(fault, COLUMNS, subsequent_indent="    ")]
    width = LETTER * COLUMNS + 40
    parts = ['<rect width="100%" height="100%" rx="8" fill="#f6f8fa"/>']
    for i, (kind, text) in enumerate(lines):
        y = 28 + i * LINE
        if kind == "fault":
            parts.append(f'<rect class="mark" x="10" y="{y - 14}" width="{width - 20:.0f}" height="{LINE}"/>')
        parts.append(f'<text x="20" y="{y}" class="{kind}" xml:space="preserve">{escape(text)}</text>')
    style = ("text { font: 13px ui-monospace, monospace; fill: #1f2328 } text.command { font-weight: 600 }\n"
             "text.told { fill: #a83600 } .mark { fill: #ffe3d0 }")
    return svg(width, 28 + len(lines) * LINE, style, "\n".join(parts))


def main(folders: list[str]) -> None:
    for folder in folders[:1]:
        page = plot.report(folder)
        (HERE / "run.svg").write_text(of_run(page.read_text(encoding="utf-8")), encoding="utf-8")
    (HERE / "race.svg").write_text(of_race(emulated()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
