"""`minidl lab`: the list of the labs, and their start, check and grade. minidl/tools/cli/lab.py calls it.

A folder of labs holds NN-name/, each with README.md, check.py and a starting file, and labkit/ beside them: course/ of
a checkout, or a folder in which `minidl lab start` has put some.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from minidl.tools.cli.common import Parser, complain, run, say

from .judge import hide

HERE = Path(__file__).resolve().parent
SECONDS, GRACE = 60.0, 30.0                # for a student's file; beyond them, for the judge itself


def main(argv: list[str] | None, prog: str, course: Path) -> int:
    """Run with these arguments on a folder of labs; returns the exit status, 1 if a lab is not passed."""
    parser = Parser(prog=prog, description="The labs of the course: their list, and how far the files here are.")
    commands = parser.add_subparsers(dest="command", metavar="start, check or grade")
    start = commands.add_parser("start", help="copy a lab's page, starting file and checks into a folder")
    check = commands.add_parser("check", help="run a lab's checks on a file: points, and the first fault")
    grade = commands.add_parser("grade", help="run a lab's checks on each submission of a class")
    for each in (start, check, grade):
        each.add_argument("number", type=int, metavar="N", help="which lab")
    start.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where the lab's folder is made "
                       "(default: here)")
    check.add_argument("file", nargs="?", metavar="FILE", help="the file (default: the one in the lab's folder)")
    check.add_argument("--seed", type=int, default=0, help="of the random cases (default: %(default)s)")
    grade.add_argument("folder", metavar="SUBMISSIONS", help="a folder of files, or of folders with a file each")
    grade.add_argument("--json", metavar="FILE", help="where a line per submission goes (default: the terminal)")
    grade.add_argument("--seed", type=int, help="of the random cases (default: a new one, which the lines hold)")
    grade.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="submissions at once (default: the "
                       "processors)")
    for each in (check, grade):
        each.add_argument("--seconds", type=float, default=SECONDS, help="for a file (default: %(default)g)")
    hide()
    return run(parser, argv, lambda args: globals()[args.command or "listed"](args, course))


# ---------------------------------------------------------------- labs
def labs(course: Path) -> dict[int, Path]:
    """The folders of the labs, by number."""
    return {int(folder.name[:2]): folder for folder in sorted(course.glob("[0-9][0-9]-*"))
            if (folder / "check.py").is_file()}


def lab_of(course: Path, number: int) -> Path:
    """A lab's folder. Raises ValueError for a number that there is not."""
    found = labs(course)
    if number not in found:
        raise ValueError(f"lab: there is no lab {number} in {course}; it has {', '.join(map(str, found)) or 'none'}; "
                         "minidl lab start copies others, in a checkout of minidl")
    return found[number]


def student_file(folder: Path) -> Path:
    """The file of a lab that a student writes."""
    found = [file for file in (folder / "lab.py", folder / "lab.cu") if file.is_file()]
    if not found:
        raise FileNotFoundError(f"lab: {folder} has neither lab.py nor lab.cu; minidl lab start copies one")
    return found[0]


def title(folder: Path) -> str:
    """The heading of its page."""
    return (folder / "README.md").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


# ---------------------------------------------------------------- commands
def listed(args: argparse.Namespace, course: Path) -> int:
    """Each lab, with the gaps that its file has."""
    for number, folder in labs(course).items():
        file = student_file(folder)
        text = "".join(each.read_text(encoding="utf-8", errors="replace") for each in sorted(folder.glob("lab.*")))
        gaps = len(re.findall(r"(?:#|//) *TODO", text))
        left = f"{gaps} gap{'s' * (gaps != 1)} to fill" if gaps else f"no gap left: minidl lab check {number}"
        say(f"{title(folder):58}{file.name}: {left}")
    say("minidl lab start N copies a lab, minidl lab check N checks it")
    return 0


def start(args: argparse.Namespace, course: Path) -> int:
    """Copy a lab, and what checks it."""
    source = lab_of(course, args.number)
    target = Path(args.folder) / source.name
    if target.exists():
        raise ValueError(f"lab: {target} is there already, and nothing is overwritten; name another folder")
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, target, ignore=without)
    page = target / "README.md"
    page.write_text(_moved(page.read_text(encoding="utf-8"), source, target), encoding="utf-8")
    if not (target.parent / HERE.name).exists():
        shutil.copytree(HERE, target.parent / HERE.name, ignore=without)
    files = " and ".join(sorted(each.name for each in target.glob("lab.*")))
    say(f"{target} is there: read README.md, fill the gaps of {files}, then: minidl lab check {args.number}"
        + (f", in {target.parent}" if args.folder != "." else ""))
    return 0


def _moved(page: str, source: Path, target: Path) -> str:
    """A page whose links lead from another folder to what they led to."""
    def link(found: re.Match[str]) -> str:
        there = (source / found[1]).resolve()
        return f"]({Path(os.path.relpath(there, target.resolve())).as_posix()}" if there.exists() else found[0]

    return re.sub(r"\]\((\.\./[^)#\s]*)", link, page)


def check(args: argparse.Namespace, course: Path) -> int:
    """Print the steps, and the first fault."""
    folder = lab_of(course, args.number)
    file = Path(args.file) if args.file else student_file(folder)
    if not file.is_file():
        raise FileNotFoundError(f"lab: {file} is not a file; name the one that you have written")
    result = judged(folder, file, args.seed, args.seconds)
    if result["printed"].strip():
        say("\n".join(f"| {line}" for line in result["printed"].strip().splitlines()))
    say(f"{title(folder)}: {file}")
    for row in result["steps"]:
        say(f"  {row['points']:3} of {row['of']:3}  {row['step']}")
    say(f"  {result['points']:3} of {result['of']:3}  in {result['seconds']:.1f} s")
    wrong = next((row["wrong"] for row in result["steps"] if row["wrong"]), result.get("wrong"))
    if wrong:
        complain(wrong)
    return int(not result["passed"])


def grade(args: argparse.Namespace, course: Path) -> int:
    """Write a line for each submission, in the order of their names."""
    folder = lab_of(course, args.number)
    seed = secrets.randbelow(1 << 31) if args.seed is None else args.seed
    walls: set[str] = set()
    found = list(submissions(Path(args.folder), student_file(folder).suffix))
    if not found:
        raise ValueError(f"grade: {args.folder} has neither {student_file(folder).suffix} files nor folders with one")
    with ThreadPoolExecutor(args.jobs) as pool, \
            open(args.json, "w", encoding="utf-8") if args.json else open(1, "w", closefd=False) as out:
        results = pool.map(lambda pair: judged(folder, pair[1], seed, args.seconds), found)
        for (name, _), result in zip(found, results):
            del result["printed"]
            out.write(json.dumps({"submission": name, "lab": args.number, **result, "seed": seed}) + "\n")
            out.flush()
            walls |= {*result.get("walls", walls)}
            if args.json:
                say(f"{ascii(name)[1:-1]:30} {result['points']:3} of {result['of']:3}")
    if "user" not in walls and os.getuid() == 0:
        complain("warning: other users cannot read root's Python, so the files ran as root; see teachers.md")
    if "network" not in walls:
        complain("warning: there are no namespaces here, so the files could reach the network" +
                 " and this user's processes" * ("user" not in walls) + "; see teachers.md")
    return 0


def submissions(folder: Path, suffix: str) -> Iterator[tuple[str, Path]]:
    """Name and file of each: NAME.py, or NAME/ with one file of that kind, or with a lab.py among others."""
    if not folder.is_dir():
        raise NotADirectoryError(f"grade: {folder} is not a folder; name one with the files of a class")
    for each in sorted(folder.iterdir()):
        if each.suffix == suffix:
            yield each.stem, each
        elif each.is_dir() and (files := sorted(each.glob(f"*{suffix}"))):
            yield each.name, next((file for file in files if file.stem == "lab"), files[0])


# ---------------------------------------------------------------- a judge for a file
def judged(folder: Path, file: Path, seed: int, seconds: float) -> dict[str, Any]:
    """What a judge says of a file, in a process of its own; no points where that was ended. Raises RuntimeError on
    Windows."""
    if os.name != "posix":
        raise RuntimeError("lab: files are run within limits that Windows does not have; use Linux, as WSL")
    process = subprocess.Popen([sys.executable, HERE / "judge.py", folder, file, str(seed), str(seconds)],
                               stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, start_new_session=True,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    token = secrets.token_hex()
    try:
        text, _ = process.communicate(token, timeout=seconds + GRACE)
        return dict(json.loads(text.removeprefix(token) if text.startswith(token) else ""))
    except (subprocess.TimeoutExpired, ValueError) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return {"points": 0, "of": 0, "passed": False, "steps": [], "seconds": seconds, "printed": "",
                "wrong": f"{file.name}: its judge ended without a result (status {process.returncode}); see what it "
                         "said on stderr, if anything"}
