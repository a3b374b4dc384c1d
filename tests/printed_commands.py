"""Every command and every Python block of README, guides and examples, as printed, by a newcomer with nothing there.

    python tests/printed_commands.py --python python3.10 --python python3.13 [--from checkout] [--seconds 20]
        [--page docs/start.md] [--outputs FOLDER]

For each Python there is a clean clone of HEAD, or an empty folder and the wheel of HEAD, and a new virtual environment
that the pages' own commands make and fill. README and CONTRIBUTING begin with nothing; the guides follow docs/start.md
in the folder and the environment that it leaves. Sessions must print what the page says.

With the wheel, `minidl train` stands for `python train.py` and the wheel for `-e .`; what needs a file of the checkout
is left out. A command that trains, tests or measures for longer than --seconds gets a Ctrl-C, as `stopped` says: a
training must have begun, and must name the command that goes on. Where a later command needs the weights of such a run,
those of a short one are put in. What needs a GPU or another framework is right if it is refused in one line, which is
printed. Of the test suite the tests are collected, and not run.

It needs bash, git, the extra `test`, Pillow, and a package index or pip's cache. Data sets are found as always:
MINIDL_DATA names a folder, otherwise they are downloaded. Exit status: 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "house")]
from test_guides import BLOCK, MODULE, PAGES, PROGRAMS, WORDS, bring, page_name, printed  # type: ignore[import-not-found]  # noqa: E402

NOT_TYPED = {"CHANGELOG.md"}
ALONE = {"README.md", "CONTRIBUTING.md"}               # pages that begin with nothing
SPAN = re.compile(rf"(?<!`)`((?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)}) [^`]+)`")
NAME_OF_A_COMMAND = re.compile(r"minidl (?:train|emulate|plot|predict|summary)")
STOPPED = re.compile(r"\btrain(?:\.py)?\b|benchmarks/")               # others take the time that they take
LEFT_OUT = {
    r"\.ci/run": "all of the page again, with PyTorch",
    r"(?:mutate|random_\w+|printed_commands)\.py|MINIDL_(?:INTERRUPTS|RESUMES)": "a test that runs long, by hand",
    r"pytest -m gpu": "needs a GPU; without one it skips all",
    r"/accuracy\.py": "runs train.py many times",
    r"-hosts": "needs other machines",
    r"\btwine\b|-m build|http\.server|index-url": "a step of a release",
}
OF_THE_CHECKOUT = re.compile(r"examples/|benchmarks/|tests/|docs/|pytest|ruff|mypy|mkdocs|pre-commit|\.ci/|\[dev|\[test"
                             r"|\[docs|cuda13,dev")
MAY_BE_REFUSED = re.compile(r"cuda|gpu|benchmarks/")
REASON = re.compile(r"GPU|CUDA|CuPy|torch|jax")
TRAINING = re.compile(r"\btrain(?:\.py)?\b")
DONE = re.compile(r"test accuracy [\d.]+ % after \d+ epochs? in ")
BEGUN = re.compile(r"epoch +\d+/\d+: |, run folder ")
RUN_FOLDER = re.compile(r"the run is in (\S+), go on with: ")

SESSIONS = """
import doctest, json, linecache, sys
sys.path[0] = ""                           # as of a prompt
page, *blocks = json.load(open(sys.argv[1], encoding="utf-8"))
here, failed = {"__name__": "__main__", "__file__": "page.py"}, 0
for number, block in enumerate(blocks, 1):
    name = f"{page}, block {number}"
    if ">>> " in block:
        test = doctest.DocTestParser().get_doctest(block, {}, name, page, 0)
        test.globs = here
        failed += doctest.DocTestRunner().run(test, clear_globs=False).failed
    else:
        linecache.cache[name] = len(block), None, block.splitlines(True), name
        exec(compile(block, name, "exec"), here)
print(f"{len(blocks)} blocks of Python, {failed} examples print something else")
sys.exit(failed > 0)
"""


class Step(NamedTuple):
    """A printed command, or the Python blocks of a page."""

    text: str
    blocks: tuple[str, ...] = ()


class Result(NamedTuple):
    page: str
    command: str
    column: str
    outcome: str                           # ok, stopped, refused, left out or WRONG
    note: str
    seconds: float = 0.0
    output: str = ""


def steps(page: Path) -> Iterator[Step]:
    """In the order of the page; its Python, which is one program, where the first block stands."""
    text = page.read_text(encoding="utf-8")
    found = printed(text)
    fences = [(match.start(), match.end()) for match in BLOCK.finditer(text)]
    found += [(match.start(), " ".join(match[1].split())) for match in SPAN.finditer(text)
              if not any(begin <= match.start() < end for begin, end in fences)
              and not NAME_OF_A_COMMAND.fullmatch(match[1])]
    python = [(match.start(), match[3]) for match in BLOCK.finditer(text)
              if match[2] in ("python", "pycon") and not MODULE.match(match[3])]
    if python and page.name != "CONTRIBUTING.md":      # its blocks are parts of files to be added
        found.append((python[0][0], ""))
    seen = set()
    for _, line in sorted(found, key=lambda item: item[0]):
        for command in line.split(" && ") if line else [""]:
            command = re.sub(r"\s+#.*$", "", command)
            if line and (command not in seen or "install" in command or "venv" in command):
                seen.add(command)
                yield Step(command)
        if not line:
            yield Step(f"{len(python)} blocks of Python", tuple(block for _, block in python))


class Newcomer:
    """One Python, one way, one folder: runs the pages' steps."""

    def __init__(self, python: str, column: str, base: Path, wheel: Path | None, seconds: float) -> None:
        self.column, self.wheel, self.seconds = column, wheel, seconds
        self.place, self.active = base / "minidl", False
        self.base, self.extras = base, set[str]()
        dropped = ("PYTHON", "VIRTUAL_ENV", "MINIDL_", "COVERAGE")
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(dropped) or name in ("MINIDL_DATA", "MINIDL_OFFLINE")}
        self.environment["PATH"] = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment["PYTHONUNBUFFERED"] = "1"     # as in a terminal
        self.environment["MINIDL_CACHE"] = str(base / "cache")
        if wheel:
            self.place.mkdir(parents=True)
        else:
            clone(self.place)

    def shell(self, command: str, limit: float) -> tuple[int, str, bool]:
        """(exit status, output, whether it was stopped by Ctrl-C, which reaches all processes as in a terminal)"""
        line = f". .venv/bin/activate && {command}" if self.active else command
        said = self.base / "said"
        with open(said, "wb") as file:
            process = subprocess.Popen(["bash", "-c", line], cwd=self.place, env=self.environment,
                                       stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       start_new_session=True)

        def output() -> str:
            return said.read_text(encoding="utf-8", errors="replace")

        def ends_within(seconds: float) -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            return process.returncode is not None

        begun = time.monotonic()
        ended = ends_within(limit)
        while TRAINING.search(command) and not (ended or BEGUN.search(output()) or time.monotonic() - begun > 300):
            ended = ends_within(1)
        if ended:
            return process.returncode, output(), False
        os.killpg(process.pid, signal.SIGINT)
        if not ends_within(60):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return process.returncode, f"{output()}\nit did not end within 60 s of a Ctrl-C", True
        return process.returncode, output(), True

    def typed(self, command: str) -> str:
        """What stands for a printed command: names for <name>, the newest run for `...`, the wheel for the checkout."""
        for name, value in {**WORDS, "<folder>": os.environ.get("MINIDL_DATA", "data")}.items():
            command = command.replace(name, value)
        if "..." in command or command.endswith(" RUN"):
            made = sorted(self.place.glob("runs/*/config.json"), key=lambda file: file.stat().st_mtime)
            newest = f"runs/{made[-1].parent.name}" if made else "runs/none"
            command = re.sub(r"runs/[\w-]*\.\.\.|RUN$", newest, command)
        command = re.sub(r"-m pytest$", "-m pytest --collect-only -q", command)
        if self.wheel:
            command = re.sub(r"install( -q)? -e '?\.(\[[\w,]+\])?'?", rf"install\1 '{self.wheel}\2'", command)
            command = re.sub(r"python train\.py", "minidl train", command)
        return command

    def do(self, page: Path, step: Step) -> Result:
        def result(outcome: str, note: str, seconds: float = 0.0, output: str = "") -> Result:
            return Result(page_name(page), step.text, self.column, outcome, note, seconds, output)

        for pattern, why in LEFT_OUT.items():
            if re.search(pattern, step.text):
                return result("left out", why)
        if self.wheel and OF_THE_CHECKOUT.search(step.text):
            return result("left out", "needs a file of the checkout")
        program = step.text.split()[0]
        if program == "compute-sanitizer" and not shutil.which(program):
            return result("left out", f"{program} is not on this machine")
        start = time.monotonic()
        command = self.python(page, step.blocks) if step.blocks else self.typed(step.text)
        status, output, stopped = self.shell(command, self.seconds if STOPPED.search(step.text) else 900)
        if command.endswith("bin/activate"):
            self.active = True
        outcome, note = judged(command, status, output, stopped)
        if outcome == "stopped" and TRAINING.search(command):
            note += self.put_weights(output)
        return result(outcome, note, time.monotonic() - start, f"$ {command}\n{output}")

    def python(self, page: Path, blocks: tuple[str, ...]) -> str:
        """The command that runs them. Extras that the page names come first, as it says."""
        named = set(re.findall(r"extra `(\w+)`", page.read_text(encoding="utf-8"))) - self.extras
        self.extras |= named
        bin_ = "" if self.active else ".venv/bin/"
        (self.base / "blocks.json").write_text(json.dumps([page_name(page), *blocks]), encoding="utf-8")
        (self.base / "sessions.py").write_text(SESSIONS, encoding="utf-8")
        install = self.typed(f"{bin_}pip install -q -e '.[{','.join(sorted(named))}]' && ") if named else ""
        return f"{install}{bin_}python {self.base / 'sessions.py'} {self.base / 'blocks.json'}"

    def put_weights(self, output: str) -> str:
        """Into a run that was stopped, for the commands that follow; what was done, in words."""
        found = RUN_FOLDER.search(output)
        run = self.place / found[1] if found else None
        if run is None or (run / "weights.h5").exists():
            return ""
        settings = json.loads((run / "config.json").read_text(encoding="utf-8"))
        short, bin_ = self.base / "short", "" if self.active else ".venv/bin/"
        shutil.rmtree(short, ignore_errors=True)
        self.shell(f"{bin_}minidl train --model {settings['model']} --data {settings['data']} --limit-train 500 "
                   f"--limit-test 500 --epochs 1 --output-dir {shlex.quote(str(short))}", 600)
        shutil.copy(short / "weights.h5", run)
        return "; weights of a short run are put in"


def judged(command: str, status: int, output: str, stopped: bool) -> tuple[str, str]:
    """(outcome, why)"""
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()]
    last = lines[-1] if lines else ""
    if stopped and TRAINING.search(command) and DONE.search(last):
        return "ok", last                  # the Ctrl-C came too late
    if stopped and TRAINING.search(command):
        right = status == 130 and bool(BEGUN.search(output) and RUN_FOLDER.search(last))
        return ("stopped", last) if right else ("WRONG", f"status {status} after a Ctrl-C: {last}")
    if stopped:
        right = "benchmarks/" in command and "Error" not in output
        return ("stopped", "a benchmark") if right else ("WRONG", f"it still ran: {last}")
    if status == 0 and "--collect-only" in command:
        return "stopped", f"the suite does not run here: {last}"
    traceback = "Traceback (most recent call last)" in output
    if status == 0 and not traceback:
        warned = next((line for line in lines if re.search(r"\w+Warning: ", line)), "")
        return "ok", f"{last}   [{warned}]" if warned else last
    if not traceback and MAY_BE_REFUSED.search(command) and REASON.search(last):
        return "refused", last
    return "WRONG", f"status {status}: {last}"


# ---------------------------------------------------------------- the command line
def clone(place: Path) -> None:
    subprocess.run(["git", "clone", "-q", str(ROOT), str(place)], check=True)


def built_wheel(python: str, base: Path) -> Path:
    """The wheel of HEAD."""
    clone(base / "source")
    subprocess.run([python, "-m", "venv", str(base / "venv")], check=True)
    subprocess.run([str(base / "venv/bin/pip"), "wheel", "-q", "--no-deps", "-w", str(base), str(base / "source")],
                   check=True)
    return next(base.glob("*.whl"))


def full_path(python: str) -> tuple[str, str]:
    """(executable, "3.12") of a Python's name or path."""
    code = "import sys; print(sys.executable, *sys.version_info[:2])"
    path, major, minor = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True,
                                        check=True).stdout.rsplit(maxsplit=2)
    return path, f"{major}.{minor}"


def newcomers(python: str, column: str, wheel: Path | None, base: Path, options: argparse.Namespace
              ) -> Iterator[Result]:
    """All pages, with one Python and in one way."""
    pages = [page for page in PAGES if page.name not in NOT_TYPED and any(steps(page))]
    pages.sort(key=lambda page: (page_name(page) not in ALONE, page_name(page) != "docs/start.md"))
    wanted = {*options.page, "docs/start.md"} if set(options.page) - ALONE else set(options.page)
    guides: Newcomer | None = None
    for page in pages:
        if options.page and page_name(page) not in wanted:
            continue
        if page_name(page) in ALONE:
            who = Newcomer(python, column, base / page.stem, wheel, options.seconds)
        else:
            who = guides = guides or Newcomer(python, column, base / "guides", wheel, options.seconds)
        bring(page, who.place)
        for step in steps(page):
            yield who.do(page, step)
        if page_name(page) in ALONE:       # a virtual environment with CuPy is a gigabyte
            shutil.rmtree(who.base)
    if guides:
        shutil.rmtree(guides.base)


def table(results: list[Result]) -> str:
    """A row for each command of a page, a column for each Python and way."""
    columns = list(dict.fromkeys(r.column for r in results))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for r in results:
        cells = rows.setdefault((r.page, r.command), {})
        if cells.get(r.column) != "WRONG":
            cells[r.column] = r.outcome
    lines = ["| page | command | " + " | ".join(columns) + " |", "|---" * (2 + len(columns)) + "|"]
    lines += [f"| {page} | `{command}` | " + " | ".join(cells.get(column, "") for column in columns) + " |"
              for (page, command), cells in rows.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PATH", help="may be repeated (default: this one)")
    parser.add_argument("--from", dest="source", choices=["checkout", "wheel", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=60, help="until a Ctrl-C (default: %(default)s)")
    parser.add_argument("--page", action="append", default=[], help="these alone, and docs/start.md before guides")
    parser.add_argument("--outputs", type=Path, metavar="FOLDER", help="keep what each command printed")
    options = parser.parse_args()
    if importlib.util.find_spec("PIL") is None:
        parser.error("Pillow is not installed, so the pages' pictures cannot be made; run pip install -e '.[image]'")
    signal.signal(signal.SIGINT, signal.default_int_handler)      # else what a shell ignores in the background stays so
    results = []
    for python, version in map(full_path, options.python or [sys.executable]):
        for source in ("checkout", "wheel") if options.source == "both" else (options.source,):
            with tempfile.TemporaryDirectory(prefix="printed-") as base:
                wheel = built_wheel(python, Path(base, "wheel")) if source == "wheel" else None
                for r in newcomers(python, f"{version} {source}", wheel, Path(base), options):
                    results.append(r)
                    print(f"{r.column:13} {r.page:20} {r.outcome:8} {r.seconds:6.1f} s  {r.command}\n"
                          f"{'':52} {r.note[:300]}", flush=True)
                    if options.outputs:
                        options.outputs.mkdir(parents=True, exist_ok=True)
                        with open(options.outputs / f"{r.column} {r.page.replace('/', '-')}.txt", "a",
                                  encoding="utf-8") as file:
                            file.write(f"==== {r.command}: {r.outcome}\n{r.output}\n")
    print("", table(results), "", sep="\n")
    for r in results:
        if r.outcome == "WRONG":
            print(f"WRONG {r.column}: {r.page}: {r.command}\n  {r.note}\n" + "\n".join(
                f"    {line}" for line in r.output.splitlines()[-15:]) + "\n")
    for column in dict.fromkeys(r.column for r in results):
        counts = Counter(r.outcome for r in results if r.column == column)
        print(f"{column}: {', '.join(f'{counts[o]} {o}' for o in ('ok', 'stopped', 'refused', 'left out', 'WRONG'))}")
    return 1 if any(r.outcome == "WRONG" for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
