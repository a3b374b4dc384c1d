"""What every test shares: randomness that starts anew from one seed, and without a GPU, no tests that need one."""

from __future__ import annotations

import gc
import importlib.util
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl.core import device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked gpu where CUDA cannot serve, saying what is missing."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    missing = device._missing() if marked else ""
    if missing:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=missing))


def pytest_collection_finish() -> None:
    """What collection made lives as long as the run: no collection of garbage need walk it again."""
    gc.collect()
    gc.freeze()


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
    from minidl.compiler.program import leaves
    from minidl.ops import cpu
    from minidl.ops.common.primitives import PRIMITIVES
    from minidl.ops.cuda.launch import memory

    for name, value in {"_current_stream": lambda: types.SimpleNamespace(ptr=0), "_current_device": lambda: 0,
                        "_new": np.empty, "_kept": memory._Kept()}.items():
        monkeypatch.setattr(memory, name, value)

    def again(result: Any, given: set[int]) -> Any:
        if isinstance(result, tuple):
            return tuple(again(each, given) for each in result)
        if not isinstance(result, np.ndarray) or result.base is not None or id(result) in given:
            return result                  # a number, a view, or an argument
        array = memory.empty(result.shape, result.dtype)
        array[...] = result
        return array

    def wrapped(primitive: Any) -> Any:
        return lambda *arguments, **options: again(primitive(*arguments, **options),
                                                   {id(value) for value in leaves((arguments, options))})

    for name in PRIMITIVES:
        if hasattr(cpu, name):
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
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """without(*names): as if packages were not installed."""
    found = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec",
                            lambda name, *rest: None if name in names else found(name, *rest))
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)   # an import of it is a ModuleNotFoundError
    return hide
