"""Results files: what a benchmark measured, where and how. render.py writes every table of the documents from them.

A file of results/ is one run of one script, a JSON object:

    benchmark   the script
    command     the command line
    date        of the run
    commit      that was measured; null where nobody noted it
    note        what a reader has to know besides; may be left out
    machine     device, gpu, driver, cpu, cores, threads, load (average before the run)
    versions    of Python and of each library
    limits      operations and bytes per second that the machine could do at most, and who says so; null on a CPU,
                but where the script measures them
    method      what is counted: warm-up, rounds, repeats
    ratio       how a ratio is made; render.py makes it, from the times in this file
    rows        one object per line of the tables: medians and spreads, in the unit that the field's name ends with

checks.json and sources.json have rows of their own kind: each check has its own date and machine, each figure of a
paper its section.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine

FOLDER = Path(__file__).resolve().parent / "results"
RATIO = "a speed relative to a peer is the peer's median time over this row's, both of this file"

Result = dict[str, Any]


# ---------------------------------------------------------------- files
def about(benchmark: str, peers: Sequence[str], device: str, threads: int, **method: Any) -> Result:
    """All of a result but its rows, taken before the run."""
    return {"benchmark": benchmark, "command": command(sys.argv), "date": time.strftime("%Y-%m-%d"),
            "commit": commit(), "machine": machine.facts(device, threads),
            "versions": machine.versions(peers, device), "limits": machine.limits(device), "method": method,
            "ratio": RATIO}


def command(argv: Sequence[str]) -> str:
    """The command line without what is the machine's own business: where data lie and results go."""
    kept, words = [f"python benchmarks/{Path(argv[0]).name}"], list(argv[1:])
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name in ("--json", "--data-dir"):
            if not equals:
                words[:1] = []
            kept += ["--data-dir <folder>"] if name == "--data-dir" else []
        else:
            kept.append(shlex.quote(word))
    return " ".join(kept)


def commit() -> str | None:
    """HEAD, marked where files differ from it; None outside a repository."""
    try:
        return subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=FOLDER.parent, check=True,
                              capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def save(result: Result, file: Path) -> None:
    """One field per line, and one row per line, so that a diff shows which figures changed."""
    fields = []
    for name, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
            fields.append(f' "{name}": [\n{rows}\n ]')
        else:
            fields.append(f' "{name}": {json.dumps(value, ensure_ascii=False)}')
    file.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")


def load(name: str) -> Result:
    """A file of the folder."""
    result: Result = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return result


def source(name: str) -> str:
    """What a paper says: a figure of sources.json."""
    return sources()[name]


def sources() -> dict[str, str]:
    return {row["name"]: row["figure"] for row in load("sources")["rows"]}


# ---------------------------------------------------------------- text
def table(head: str, body: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table; the first columns are words, the others numbers."""
    columns = head.split(", ")
    return [f"| {' | '.join(columns)} |", "|" + "---|" * left + "---:|" * (len(columns) - left),
            *(f"| {' | '.join(line)} |" for line in body), ""]


def digits(value: float) -> str:
    """Four significant digits, or all of a larger number's: a ratio of two such numbers has three right ones."""
    rounded = float(f"{value:.4g}")
    return f"{value:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.10f}".rstrip("0").rstrip(".")


def span(least: float, largest: float) -> str:
    return "-".join(dict.fromkeys((digits(least), digits(largest))))


def time_of(seconds: float) -> str:
    """With its unit: us, ms or s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(seconds * 1e6)} us"


def commands(several: Sequence[Result]) -> list[str]:
    return [*(f"    {line}" for line in dict.fromkeys(result["command"] for result in several)), ""]


def facts(several: Sequence[Result]) -> list[str]:
    """Machine, versions, date and notes of one or more runs, a paragraph; what they share is said once."""
    lines = [line for result in several for line in (machine_line(result), result.get("note")) if line]
    return [" ".join(dict.fromkeys(lines)), ""]


def machine_line(result: Result) -> str:
    of = result["machine"]
    where = ", ".join(filter(None, (
        of.get("gpu"), of["cpu"], f"{of['cores']} cores" if of.get("cores") else "",
        f"{of['threads']} thread{'s' * (of['threads'] > 1)}" if of.get("threads") else "",
        f"load average before the run {of['load']:.1f}" if of.get("load") is not None else "")))
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    driver = f", driver for CUDA {of['driver']}" if of.get("driver") else ""
    commit = f", commit {result['commit']}" if result["commit"] else ""
    return f"{where}. {versions}{driver}. {result['date']}{commit}."
