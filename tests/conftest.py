"""What every test shares: randomness that starts anew from one seed, and without a GPU, no tests that need one."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import inspect
import math
import os
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import ONCE

import minidl
from minidl.core import device

# ---------------------------------------------------------------- tiers: CONTRIBUTING.md says which there are
HOW = {                                    # a mark -> the command that runs what has it
    "slow": "python -m pytest -m 'not deep and not gpu'", "deep": "bash .ci/deep", "gpu": "python -m pytest -m gpu",
    "once": "bash .ci/deep on the newest Python"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--passed-to", type=Path, metavar="FILE", help="write there which tests passed")
    group.addoption("--passed-before", type=Path, metavar="FILE",
                    help="leave out what passed in the run that wrote the file")
    group.addoption("--probe", type=float, default=0.0, metavar="SHARE",
                    help="run this share of the deep tests, and of what passed before, too, drawn by the digest of the "
                    "commit")
    group.addoption("--again", action="store_true",
                    help="all ran on another Python: leave out the deep tests of ONCE, in tests/tiers.py")
    group.addoption("--shard", default="1/1", metavar="I/N", help="only the I-th of N parts of the tests")
    group.addoption("--fast-limit", type=float, default=math.inf, metavar="SECONDS",
                    help="processor time that a test without a mark may take (default: any)")


def pytest_configure(config: pytest.Config) -> None:
    """On a GPU, memory that a kernel reads before anybody wrote it is NaN (docs/kernels.md)."""
    if re.search(r"(?<!not )\bgpu\b", config.option.markexpr or ""):
        os.environ.setdefault("MINIDL_POISON", "1")            # before anything of minidl.ops.cuda is imported


def number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() or "no commit"


def tier_of(item: pytest.Item) -> str:
    """The first of its marks that -m decides by; "" for a fast test."""
    return next((mark for mark in ("gpu", "deep", "slow") if item.get_closest_marker(mark)), "")


def once(item: pytest.Item) -> bool:
    """Whether it is a deep test of ONCE."""
    return tier_of(item) == "deep" and re.sub(r".*/|\[.*", "", item.nodeid, flags=re.DOTALL) in ONCE


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Skip what is marked gpu where CUDA cannot serve, saying what is missing. Leave out what is in another shard, and
    what passed before or is once. Of that and of the deep tests that -m leaves out, take the probe in again."""
    part, parts = map(int, config.getoption("shard").split("/"))
    items[:] = [item for item in items if number_of(item.nodeid) % parts == part - 1]
    collected, share = items.copy(), config.getoption("probe")
    before = config.getoption("passed_before")
    passed = set(before.read_text(encoding="utf-8").splitlines()) if before else set()
    yield
    again = {item for item in items if item.nodeid in passed}
    left_out = set(collected).difference(items) | again
    limit, head = share * 2**32, commit() if share else ""
    left_out -= {item for item in left_out if (item in again or tier_of(item) == "deep")
                 and number_of(f"{head} {item.nodeid}") < limit}
    elsewhere = {item for item in collected if config.getoption("again") and once(item)}
    items[:] = [item for item in collected if item not in left_out | elsewhere]
    config.stash[LEFT_OUT] = Counter(map(tier_of, left_out - elsewhere)) + Counter(once=len(elsewhere))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    missing = device._missing() if marked else ""
    if missing:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=missing))


LEFT_OUT = pytest.StashKey[Counter]()      # tests that were collected but not run, by tier
PASSED: list[str] = []                     # the ids of tests


def pytest_collection_finish() -> None:
    """What collection made lives as long as the run: no collection of garbage need walk it again."""
    gc.collect()
    gc.freeze()


def processor_time() -> float:
    """Seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Where there is a limit, a test without a mark that takes longer fails: it would slow down who only asks whether
    all is well."""
    start = processor_time()
    yield
    took, limit = processor_time() - start, item.config.getoption("fast_limit")
    if took > limit and not tier_of(item):
        pytest.fail(f"this test took {took:.1f} s of processor time, and a fast one may take {limit:g}: mark it slow",
                    pytrace=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        PASSED.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of a worker of xdist: tell the process that started it what was left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(LEFT_OUT, Counter()))
    elif file := session.config.getoption("passed_to"):
        file.write_text("".join(f"{name}\n" for name in PASSED), encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All workers collect the same."""
    if output := getattr(node, "workeroutput", None):
        node.config.stash[LEFT_OUT] = Counter(output["left_out"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, Counter())
    for mark, how in HOW.items():
        if left_out[mark]:
            terminalreporter.write_line(f"left out: {left_out[mark]:,} {mark} tests, which run by {how}")
    if config.getoption("passed_before"):
        terminalreporter.write_line(f"left out: {left_out['']:,} tests that passed before")
    if config.getoption("probe"):
        terminalreporter.write_line(f"probe: {config.getoption('probe'):.0%} of what is left out, drawn by {commit()}")


@pytest.fixture(autouse=True)
def seeded() -> None:
    minidl.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _choices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which convolution is fastest is measured anew, and nothing is written to the user's cache folder."""
    folder: Path = tmp_path_factory.mktemp("choices")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIDL_CACHE", str(folder))
        yield


@pytest.fixture
def fp32() -> Iterator[None]:
    """Whatever precision a test sets, it is "fp32" before and after."""
    device.set_precision("fp32")
    yield
    device.set_precision("fp32")


@pytest.fixture
def handed_out_again(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The CPU's primitives give results in arrays that held one before and that nobody refers to, as CUDA's do."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from checks.agrees import names_of

    from minidl.compiler.program import leaves
    from minidl.ops import cpu
    from minidl.ops.cuda.launch import memory

    for name, value in {"_current_stream": lambda: types.SimpleNamespace(ptr=0), "_current_device": lambda: 0,
                        "_new": np.empty, "_kept": memory._Kept(), "alone": lambda array: True}.items():
        monkeypatch.setattr(memory, name, value)

    def again(result: Any, given: set[int]) -> Any:
        if isinstance(result, tuple):
            return tuple(again(each, given) for each in result)
        if not isinstance(result, np.ndarray) or result.base is not None or id(result) in given:
            return result                  # a number, a view, or an argument
        array = inspect.unwrap(memory.empty)(result.shape, result.dtype)       # poison is for a GPU's arrays
        array[...] = result
        return array

    def wrapped(primitive: Any) -> Any:
        return lambda *arguments, **options: again(primitive(*arguments, **options),
                                                   {id(value) for value in leaves((arguments, options))})

    for name in names_of(cpu):
        monkeypatch.setattr(cpu, name, wrapped(getattr(cpu, name)))
    return memory._kept


class Canaries:
    """In place of `launch.empty`: memory full of a pattern, in the middle of a buffer full of it.

    As a float32 and as a float64 the pattern is NaN, as an int32 it is 2,147,016,365: what a kernel leaves unwritten,
    or reads before it was written, shows in a result; what it writes outside shows at the edges.
    """

    PATTERN = np.frombuffer(np.uint32(0x7FF8DEAD).tobytes(), np.uint8)
    EDGE = 4096                            # bytes on either side, a multiple of every alignment

    def __init__(self) -> None:
        self.buffers: list[tuple[Any, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        import cupy

        size = math.prod(shape) * np.dtype(dtype).itemsize
        words = -(-size // 4) + 2 * self.EDGE // 4
        whole = cupy.full(words, self.PATTERN.view(np.uint32)[0], np.uint32)
        self.buffers.append((whole, size))
        return cupy.ndarray(shape, dtype, whole.data + self.EDGE)

    def check(self) -> None:
        """The edges of all buffers since the last check are as they were; raises AssertionError that says which not."""
        buffers, self.buffers = self.buffers, []
        for at, (whole, size) in enumerate(buffers):
            before = whole[:self.EDGE // 4].get().view(np.uint8)
            after = whole[(self.EDGE + size) // 4:].get().view(np.uint8)[size % 4:]
            for where, edge, phase in (("before", before, 0), ("after", after, size % 4)):
                wrong = np.flatnonzero(edge != np.resize(np.roll(self.PATTERN, -phase), edge.size))
                assert not wrong.size, (f"{wrong.size} bytes were written {where} buffer {at} of {size} bytes, from "
                                        f"its byte {wrong[0] + (size if where == 'after' else -self.EDGE)} on")


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canaries]:
    """Every CUDA launcher's memory is full of NaN, with edges that are seen to stay whole when the test ends."""
    from minidl.ops.cuda import launch

    found = Canaries()
    monkeypatch.setattr(launch, "empty", found.empty)
    yield found
    found.check()


# ---------------------------------------------------------------- of commands
@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with an empty cache and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "cache" / "minidl"))
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.delenv("MINIDL_DATA", raising=False)


@pytest.fixture
def drawing() -> None:
    """A training command draws its pictures at the end."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: nothing can be drawn")


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it does not: they take longer than most trainings here."""
    if "drawing" not in request.fixturenames:
        monkeypatch.setattr("minidl.tools.cli.train._pictures", lambda *_: None)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """without(*names): as if packages were not installed."""
    found = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec",
                            lambda name, *rest: None if name in names else found(name, *rest))
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)   # an import of it is a ModuleNotFoundError
    return hide
