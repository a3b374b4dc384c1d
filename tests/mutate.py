"""Mutation: seeded faults, each in a copy of the tree, and which of them the tests notice.

    python tests/mutate.py --count 200 --seed 1 [--processes 2] [--files 'minidl/nn/*.py'] [--json FILE] [--map FILE]
    python tests/mutate.py --marks "not deep and not gpu"                      # what CI's tests notice
    python tests/mutate.py --again FILE

A fault is one small change: another operator, a constant one off, a condition turned round, a statement dropped,
arguments swapped, None returned. First the tests run once, and it is noted which of them reaches which line; then each
fault is tried on the tests that reach it, the fastest first, up to the first failure; one in what an import defines, on
those that reach a line with its name. A test that takes ten times as long as it did counts as a failure ("timeout").

Where what is drawn cannot be noticed, another fault is drawn in its place: code that runs on a GPU alone, on a machine
without one; and the few kinds of fault that are known to change nothing. How many they were is printed.

Other faults that no test can notice, or should, stand in mutation_survivors.md with their reasons, by their text and
not by their line; any other that survives makes the exit status 1. `--again` tries those once more that survived in an
earlier run's JSON file. `--map` keeps the notes in a file, which serves as long as the code and the marks are the same.
`--marks` is pytest's -m: which tests there are.

It needs a system that forks, git, and coverage (it comes with pytest-cov). CUDA kernels (.cu) are not changed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import fnmatch
import functools
import gc
import hashlib
import json
import multiprocessing
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KNOWN = Path(__file__).with_name("mutation_survivors.md")
FILES = ("minidl/ops/arrays/*.py", "minidl/ops/layers/*.py", "minidl/ops/losses/*.py", "minidl/ops/cpu/*.py",
         "minidl/ops/cpu/*/*.py", "minidl/compiler/*.py", "minidl/compiler/passes/*.py", "minidl/optim/*.py",
         "minidl/optim/rates.py", "minidl/training/*.py", "minidl/data/loader.py",
         "minidl/nn/weights/*.py", "minidl/core/tensor.py", "minidl/nn/*.py", "minidl/nn/layers/*.py")
NOT_RUN = ("tests/house/*",                # of texts and scripts
           "tests/cuda/test_cuda_*.py", "tests/cuda/test_emulated.py",                  # of CUDA kernels, slowly
           "tests/training/test_interrupt.py", "tests/training/test_checkpoint.py::test_a_killed",      # of instants
           "tests/*/test_hostile_*.py", "tests/ops/test_interchange.py",                # of limits; JAX has its own
           "tests/cli/test_packages.py",                                                # of wheels
           "tests/compiler/test_replay.py::test_memory_of_replays_is_flat")             # a minute each time
WHOLE = "not gpu"                          # the suite, by its marks
NEEDS_GPU = (("minidl/compiler/graph.py", r"AsGraph\b|_pool\b"),)              # a file, and functions in it
GPU = (any(Path(place).exists() for place in ("/dev/nvidia0", "/dev/dxg"))
       and os.environ.get("CUDA_VISIBLE_DEVICES") != "")
EQUIVALENT = (("minidl/ops/cpu/*.py", r"(reshape\([^()]*)-2\b", r"\1-1"),)              # any negative number, to NumPy
PRELOADED = ["pytest", "hypothesis", "numpy", "h5py", "tqdm", "torch", "coverage"]      # by all runs, once
MEMORY = 8 << 30                           # bytes that a fault may take
TEST = "MINIDL_MUTATED_TEST"               # the environment's name for the test that runs


# ---------------------------------------------------------------- faults
@dataclass(frozen=True)
class Fault:
    """One change: what stands in bytes begin to end of a file becomes `text`."""

    file: str
    line: int
    function: str                          # "Class.method", or "" where an import runs it
    before: str                            # the statement, without its body
    after: str
    begin: int
    end: int
    text: str
    lines: tuple[int, int]                 # first and last of those whose tests count
    names: tuple[str, ...]                 # what an import defines there: lines that name it count too

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is, wherever its line has moved to."""
        return f"{self.file} {self.function}".strip(), self.before, self.after

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.before}  ->  {self.after}"


COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,)}
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitXor: ast.BitAnd}

EITHER_WAY = {"add", "max", "maximum", "min", "minimum", "mul", "multiply", "isinstance"}    # or refused at once


def changed(node: Any, **fields: Any) -> Any:
    node = copy.copy(node)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def same(a: ast.AST, b: ast.AST) -> bool:
    return ast.dump(a) == ast.dump(b)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def variants(node: Any) -> Iterator[tuple[Any, Any]]:
    """(what to replace, by what): the node itself, or a part of it."""
    one = ast.Constant(1)
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Compare(ops=[op]):
            for other in COMPARISONS[type(op)]:
                yield node, changed(node, ops=[other()])
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not (is_text(node.left) or is_text(node.right)):
            yield node, changed(node, op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield node, changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, operand
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield from ((node, ast.Constant(value + d)) for d in (1, -1))
        case ast.Call(args=[ast.Starred(), *_] | [_, ast.Starred(), *_]):
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in EITHER_WAY:
            return
        case ast.Call(args=[first, second, *others]):
            if not same(first, second):
                yield node, changed(node, args=[second, first, *others])
            if others and not same(second, others[0]):
                yield node, changed(node, args=[first, others[0], second, *others[1:]])
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield from ((bound, ast.BinOp(bound, op, one)) for op in (ast.Add(), ast.Sub()))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):   # that is turned round above
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[test]):
            yield test, ast.Constant(True)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield value, ast.Constant(None)
        case ast.Break():
            yield node, ast.Continue()
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Delete():
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, ast.Pass()


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Where faults may be: not in types, texts, what is raised, `__all__`, nor in how something looks."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.arg() | ast.FunctionDef(name="__repr__" | "extra_repr"):
            return
        case ast.keyword(arg="strict"):                        # of zip: a check of ourselves
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return
        case ast.AnnAssign(value=value):
            yield from [value] if value else []
        case ast.FunctionDef(args=args, body=body, decorator_list=decorators):
            yield from (args, *body, *decorators)
        case _:
            yield from ast.iter_child_nodes(node)


def header(statement: ast.AST) -> str:
    """A statement on one line, without what stands below it."""
    bare = copy.copy(statement)
    for block in ("body", "orelse", "handlers", "finalbody"):
        if isinstance(getattr(bare, block, None), list):
            setattr(bare, block, [])
    text = " ".join(ast.unparse(bare).split())
    return text.removesuffix(":") if text.endswith(":") and not isinstance(statement, ast.Expr) else text


def faults(file: str, source: str) -> Iterator[Fault]:
    """All faults of a file, in the order of its text."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def walk(node: Any, statement: Any, path: tuple[str, ...], inside: bool) -> Iterator[Fault]:
        if isinstance(node, ast.stmt):
            statement = node
        type_alias = not inside and isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        for old, new in () if type_alias else variants(node):
            begin, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            text, gap = ast.unparse(new), "\n" * (old.end_lineno - old.lineno)         # lines below stay where they are
            yield Fault(file, old.lineno, ".".join(path) if inside else "", header(statement),
                        header(substituted(statement, old, new)), begin, end,
                        f"({text}{gap})" if isinstance(old, ast.expr) else text + gap, lines(statement),
                        () if inside else names(statement))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            path = (*path, node.name)
        for child in children(node):
            body = isinstance(node, ast.FunctionDef) and child in node.body
            yield from walk(child, statement, path, inside or body)

    yield from walk(ast.parse(source), None, (), False)


def lines(statement: Any) -> tuple[int, int]:
    """The first and last line of what a fault in a statement's header changes."""
    body = getattr(statement, "body", None)
    if body and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return statement.lineno, max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, statement.end_lineno


def names(statement: Any) -> tuple[str, ...]:
    """What an assignment gives a value to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return tuple(node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name))


def substituted(tree: Any, old: ast.AST, new: ast.AST) -> Any:
    """The tree with one node replaced; the tree itself stays."""
    if tree is old:
        return new
    if isinstance(tree, list):
        return [substituted(item, old, new) for item in tree]
    if not isinstance(tree, ast.AST):
        return tree
    return changed(tree, **{name: substituted(value, old, new) for name, value in ast.iter_fields(tree)})


def can_be_noticed(fault: Fault) -> bool:
    """Whether it changes something, in code that runs on this machine."""
    for file, functions in NEEDS_GPU:
        if not GPU and fault.file == file and re.match(functions, fault.function):
            return False
    return not any(fnmatch.fnmatch(fault.file, file) and re.sub(pattern, same, fault.after) == fault.before
                   for file, pattern, same in EQUIVALENT)


def known() -> dict[tuple[str, str, str], str]:
    """Faults that need not be noticed, and why: lines "- `file function`: `before` -> `after`: reason"."""
    entry = re.compile(r"- `(.+?)`: `(.+?)` -> `(.+?)`: (.+)")
    found = map(entry.fullmatch, KNOWN.read_text(encoding="utf-8").splitlines() if KNOWN.exists() else ())
    return {(m[1], m[2], m[3]): m[4] for m in found if m}


# ---------------------------------------------------------------- runs, each in a process of its own
class Notes:
    """A pytest plugin: which test reaches which line, how long each takes, and which fail; of one part of the files."""

    def __init__(self, part: tuple[int, int]) -> None:
        import coverage

        self.part = part                   # its number, from 0, and that of all parts
        self.children = Path("children").absolute()            # what the processes that tests start reach
        self.children.mkdir()
        settings = self.children / "settings"
        settings.write_text(f"[run]\nsource = {Path('minidl').absolute()}\nparallel = true\n"
                            f"data_file = {self.children}/reach\ncontext = ${{{TEST}}}\n")
        os.environ["COVERAGE_PROCESS_START"] = str(settings)   # coverage starts in each Python then
        self.coverage = coverage.Coverage(data_file=None, config_file=False, source=["minidl"])
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []
        self.coverage.start()

    def pytest_collectstart(self, collector: Any) -> None:
        self.coverage.switch_context(collector.nodeid.partition("::")[0])      # a test file's own import reaches lines

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        number, parts = self.part          # file by file, the many of one folder to different parts
        own = set(sorted({item.nodeid.partition("::")[0] for item in items})[number::parts])
        items[:] = [item for item in items if item.nodeid.partition("::")[0] in own]

    def pytest_collection_finish(self) -> None:
        ours = (c for c in gc.get_objects() if isinstance(c, functools._lru_cache_wrapper))
        self.caches = [c for c in ours if re.match(r"minidl\.(?!.*(parallel|cuda))", getattr(c, "__module__", ""))]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        for cache in self.caches:          # or only the first test that asks for it would reach what is kept
            cache.cache_clear()
        self.coverage.switch_context(nodeid)
        os.environ[TEST] = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def write(self, file: str) -> None:
        import coverage

        self.coverage.stop()
        reach: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        children = [coverage.CoverageData(str(path)) for path in self.children.glob("reach.*")]
        for data in (self.coverage.get_data(), *children):
            with suppress(coverage.CoverageException):         # of a process that was ended while it wrote
                data.read()
                for path in data.measured_files():
                    for line, contexts in data.contexts_by_lineno(path).items():
                        reach[os.path.relpath(path)][line] += contexts
        Path(file).write_text(json.dumps({"seconds": self.seconds, "failed": self.failed, "reach": reach}))


class Only:
    """A pytest plugin: these tests alone, in this order, each within its time."""

    def __init__(self, limits: dict[str, float], failed: Path) -> None:
        self.limits, self.rank, self.failed = limits, {test: i for i, test in enumerate(limits)}, failed

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.limits[nodeid])              # SIGALRM ends the process

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.write_text(report.nodeid)


def in_copy(folder: str, limits: dict[str, float] | None, notes: str | None, part: tuple[int, int], marks: str) -> None:
    """Run tests in a copy of the tree and exit as pytest does: those with limits, or a part of all and take notes."""
    os.setsid()                            # whatever the tests start ends with this process
    os.chdir(folder)
    sys.path[:] = [folder, *(path for path in sys.path if not path.startswith(str(ROOT)))]
    os.environ.update(HOME=f"{folder}/home", TMPDIR=f"{folder}/tmp")
    for name in ("PYTHONPATH", "PYTHONWARNINGS"):
        os.environ.pop(name, None)
    tempfile.tempdir = None
    silence = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    import pytest

    common = ["-q", "-p", "no:cacheprovider", "-p", "no:cov", "--tb=short", "-m", marks,
              *(f"--{'deselect' if '::' in name else 'ignore-glob'}={name}" for name in NOT_RUN)]
    if limits is None:
        noted = Notes(part)
        code = pytest.main(common, plugins=[noted])
        noted.write(str(notes))
    else:
        files = dict.fromkeys(test.partition("::")[0] for test in limits)
        code = pytest.main([*common, "-x", *files], plugins=[Only(limits, Path(folder, "failed"))])
    sys.stdout.flush()
    os._exit(int(code))


class Copy:
    """The tree in a temporary folder, in which one process at a time runs tests."""

    context = multiprocessing.get_context("forkserver")

    def __init__(self, folder: Path, names: list[str], marks: str) -> None:
        self.folder, self.marks, self.stamp = folder, marks, 0
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        for name in ("home", "tmp"):
            (folder / name).mkdir()

    def run(self, limits: dict[str, float] | None = None, notes: Path | None = None,
            part: tuple[int, int] = (0, 1)) -> int:
        """The exit status; below 0 the signal that ended it."""
        process = self.context.Process(target=in_copy,
                                       args=(str(self.folder), limits, notes and str(notes), part, self.marks))
        process.start()
        process.join()
        assert process.pid
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)             # its group bears its id
        assert process.exitcode is not None
        return process.exitcode

    def attempt(self, fault: Fault, limits: dict[str, float]) -> tuple[str, str]:
        """("killed", "timeout" or "survived", and the test that noticed, if it is known)."""
        path, failed = self.folder / fault.file, self.folder / "failed"
        source = path.read_bytes()
        failed.unlink(missing_ok=True)
        self.stamp += 1
        try:
            path.write_bytes(source[:fault.begin] + fault.text.encode() + source[fault.end:])
            os.utime(path, (self.stamp, self.stamp))           # a time of its own: no compiled file fits
            code = self.run(limits) if limits else 5
        finally:
            path.write_bytes(source)
        if code == -signal.SIGALRM:
            return "timeout", ""
        return "survived" if code in (0, 5) else "killed", failed.read_text() if failed.exists() else ""


# ---------------------------------------------------------------- which tests a fault is tried on
class Reach:
    """What one run of the whole suite noted."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self.failed = sorted(set(notes["failed"]))
        self.seconds = {test: t for test, t in notes["seconds"].items() if test not in set(self.failed)}
        self.reach = notes["reach"]

    def tests(self, fault: Fault) -> dict[str, float]:
        """The tests to try, the fastest first, and the time that each may take."""
        reached = self._reach(fault.file, range(fault.lines[0], fault.lines[1] + 1))
        if fault.names:
            word = re.compile(rf"\b({'|'.join(fault.names)})\b")
            for file in self.reach:
                text = (ROOT / file).read_text(encoding="utf-8").splitlines()
                reached |= self._reach(file, (n for n, line in enumerate(text, 1) if word.search(line)))
        chosen = [test for test in self.seconds if test in reached or test.partition("::")[0] in reached]
        if not chosen and reached:         # only what every run imports
            chosen = list(self.seconds)
        return {test: 20 + 10 * self.seconds[test] for test in sorted(chosen, key=self.seconds.__getitem__)}

    def _reach(self, file: str, lines: Iterable[int]) -> set[str]:
        """The tests, and the test files in being imported, that run one of the lines."""
        return {context for n in lines for context in self.reach.get(file, {}).get(str(n), ())}


def take_notes(copies: list[Copy], names: list[str], file: Path | None) -> Reach:
    """Read them from the file where they are of this tree; else run the suite, a part in each copy."""
    code = b"".join(name.encode() + (ROOT / name).read_bytes() for name in names
                    if name.endswith(".py") and ROOT / name != Path(__file__).resolve())
    digest = hashlib.sha256(code + copies[0].marks.encode()).hexdigest()
    if file and file.exists():
        notes = json.loads(file.read_text())
        if notes["digest"] == digest:
            return Reach(notes)

    def part(number: int) -> dict[str, Any]:
        made = copies[number].folder / "notes.json"
        status = copies[number].run(notes=made, part=(number, len(copies)))
        if status not in (0, 1, 5) or not made.exists():       # or what notes was ended
            said = (copies[number].folder / "output").read_text(errors="replace")
            fatal = said.find("Fatal Python error")
            sys.exit(f"mutate: the suite itself ended with {status}: "
                     f"{said[fatal:][:2000] if fatal >= 0 else said[-2000:]}")
        return json.loads(made.read_text())

    with ThreadPoolExecutor(len(copies)) as pool:
        parts = list(pool.map(part, range(len(copies))))
    notes = {"digest": digest, "seconds": {}, "failed": [], "reach": defaultdict(lambda: defaultdict(list))}
    for each in parts:
        notes["seconds"] |= each["seconds"]
        notes["failed"] += each["failed"]
        for path, lines in each["reach"].items():
            for line, contexts in lines.items():
                notes["reach"][path][line] += contexts
    if file:
        file.write_text(json.dumps(notes))
    return Reach(notes)


# ---------------------------------------------------------------- the command line
def sample(patterns: list[str], names: list[str], count: int, seed: int) -> tuple[list[Fault], list[Fault], int]:
    """(so many faults, those drawn first that some of them took the place of, how many there are to draw from)

    A fault's text and the seed decide its place in the draw: where code changes, the others stay.
    """
    chosen = sorted(name for name in names if any(fnmatch.fnmatch(name, p) and name.count("/") == p.count("/")
                                                  for p in FILES))
    chosen = [name for name in chosen if any(fnmatch.fnmatch(name, p) for p in patterns)]
    every = [fault for name in chosen for fault in faults(name, (ROOT / name).read_text(encoding="utf-8"))]
    def place(fault: Fault) -> bytes:
        return hashlib.sha256(" ".join((str(seed), *fault.key)).encode()).digest()

    count, drawn = min(count, len(every)), sorted(every, key=place)
    chosen = [fault for fault in drawn if can_be_noticed(fault)][:count]
    return chosen, [fault for fault in drawn[:count] if not can_be_noticed(fault)], len(every)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--files", action="append", metavar="GLOB", help="of the files that have faults, these alone")
    parser.add_argument("--marks", default=WHOLE, help="which tests run (default: %(default)s)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="what survived in an earlier run's JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every fault with its outcome")
    parser.add_argument("--map", type=Path, metavar="FILE", help="keep which test reaches which line")
    options = parser.parse_args()

    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.split("\n")
    names = sorted(name for name in listed if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()))
    count = 10**9 if options.again else options.count
    chosen, replaced, total = sample(options.files or ["*"], names, count, options.seed)
    if options.again:
        earlier = [r for r in json.loads(options.again.read_text()) if r["outcome"] == "survived"]
        keys = {(f"{r['file']} {r['function']}".strip(), r["before"], r["after"]) for r in earlier}
        chosen = [fault for fault in chosen if fault.key in keys]

    explained, results, start = known(), [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        made = [Copy(Path(folder, str(i)), names, options.marks) for i in range(options.processes)]
        Copy.context.set_forkserver_preload(PRELOADED)
        os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"       # who is ended cleans up nothing
        reach = take_notes(made, names, options.map)
        print(f"{len(chosen)} of {total:,} faults; {len(reach.seconds):,} tests, {sum(reach.seconds.values()):.0f} s; "
              f"{time.monotonic() - start:.0f} s to see which reach what", flush=True)
        if replaced and not options.again:
            print(f"{len(replaced)} of them in the place of others, which nothing here could notice")
        for test in reach.failed:
            print(f"left out, it fails without any fault: {test}")
        for copy_ in made:
            copies.put(copy_)

        def attempt(fault: Fault) -> dict[str, Any]:
            began, tests, place = time.monotonic(), reach.tests(fault), copies.get()
            try:
                outcome, by = place.attempt(fault, tests)
            finally:
                copies.put(place)
            return {**asdict(fault), "outcome": outcome, "by": by, "tests": len(tests),
                    "seconds": round(time.monotonic() - began, 1), "why": explained.get(fault.key, "")}

        pool = ThreadPoolExecutor(options.processes)
        try:
            waiting = {pool.submit(attempt, fault): fault for fault in chosen}
            for done in as_completed(waiting):
                result = done.result()
                results.append(result)
                print(f"{len(results):4} {result['outcome']:8} {result['seconds']:6.1f} s  {waiting[done]}", flush=True)
                if options.json:
                    options.json.write_text(json.dumps(results, indent=1))
        finally:
            pool.shutdown(cancel_futures=True)
    return report(results)


def report(results: list[dict[str, Any]]) -> int:
    """Print the table and the survivors; 1 where one of them has no reason."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for result in results:
        rooms[str(Path(result["file"]).parent) if result["file"].count("/") > 1 else result["file"]].append(
            result["outcome"])
    print(f"\n{'':24} {'faults':>8} {'killed':>8} {'timeout':>8} {'survived':>8}")
    for room, outcomes in [*sorted(rooms.items()), ("all", [r["outcome"] for r in results])]:
        counts = [outcomes.count(outcome) for outcome in ("killed", "timeout", "survived")]
        print(f"{room:24} {len(outcomes):8} {counts[0]:8} {counts[1]:8} {counts[2]:8}"
              f"   {100 * (counts[0] + counts[1]) / max(1, len(outcomes)):.1f} %")
    left = [result for result in results if result["outcome"] == "survived"]
    left.sort(key=lambda result: (bool(result["why"]), result["file"], result["line"]))
    for result in left:
        place = f"{result['file']} {result['function']}".strip()
        print(f"\n- `{place}`: `{result['before']}` -> `{result['after']}`: {result['why'] or '?'}\n"
              f"  line {result['line']}, {result['tests']} tests")
    strangers = sum(not result["why"] for result in left)
    print(f"\n{len(results) - len(left)} of {len(results)} are noticed; {len(left)} survive, {strangers} unexplained")
    return 1 if strangers else 0


if __name__ == "__main__":
    sys.exit(main())
