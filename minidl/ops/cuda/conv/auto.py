"""`algorithm="auto"`: the fastest that can do a case, measured once per shape, direction, precision and device.

What was measured is kept in a JSON file per device in the user's cache folder, so that other processes, and later
runs, need not measure again and choose the same. An entry names all that took part, the fastest first: where others can
do the case now, it is measured anew. Whatever in the file is not exactly that is passed over, and measured anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import cupy
import numpy as np

from ....core.device import precision
from ....core.host import cache_folder
from ....core.pools import GraphMemory, free_all_blocks
from ....core.version import __version__
from ...common.geometry import ConvGeometry
from ...common.primitives import Array

Launcher = Callable[..., Array]
Key = tuple[str, ConvGeometry, np.dtype, str]          # direction, g, dtype, precision

MAX_BYTES = 1 << 20                       # of a file that is read: some 7,000 cases
REPEATS, IN_A_ROW = 5, 4                   # timed runs, after one that compiles and warms up; calls in each

choices: dict[Key, str] = {}   # what this process has looked up, or measured
_files: dict[Path, dict[str, list[str]]] = {}      # files as read


def fastest(direction: str, g: ConvGeometry, dtype: np.dtype, arguments: tuple[Array | None, ...],
            able: Callable[[str, ConvGeometry, np.dtype], Mapping[str, Launcher]]) -> str:
    """The name of the fastest algorithm; `able` gives the launchers that can do a case, by name."""
    key = direction, g, dtype, precision()
    name = choices.get(key)
    if name is None:
        name = choices[key] = _remembered(key, arguments, able(direction, g, dtype))
    return name


def cache_file() -> Path:
    """Where choices for the current device are kept."""
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"].decode()
    return cache_folder() / f"convolutions-{'-'.join(device.split())}-{__version__}.json"


def _remembered(key: Key, arguments: tuple[Array | None, ...], able: Mapping[str, Launcher]) -> str:
    direction, g, dtype, precision = key
    file, entry = cache_file(), f"{direction} {dtype} {precision} {' '.join(map(str, g[:-1]))}"
    if file not in _files:
        _files[file] = _read(file)
    names = _files[file].get(entry, [])
    if sorted(names) != sorted(able):
        names = sorted(times := _measure(able, arguments, g), key=times.__getitem__)
        _files[file] = {**_read(file), **_files[file], entry: names}
        _write(file, _files[file])
    return names[0]


def _measure(able: Mapping[str, Launcher], arguments: tuple[Array | None, ...], g: ConvGeometry) -> dict[str, float]:
    """Median milliseconds of each launcher on these very arrays; what a graph or memory cannot hold takes for ever."""
    if len(able) == 1 or g.n == 0:
        return {next(iter(able)): 0.0}
    times = {}
    for name, launcher in able.items():
        try:
            times[name] = _time(launcher, arguments, g)
        except (MemoryError, NotImplementedError):     # the latter by CuPy, for what cannot be captured
            times[name] = float("inf")
    free_all_blocks()
    return times


def _time(launcher: Launcher, arguments: tuple[Array | None, ...], g: ConvGeometry) -> float:
    """Median milliseconds of a few calls in a row, replayed as a graph: the host's time for a call must not count."""
    launcher(*arguments, g)
    memory = GraphMemory()
    with memory.as_allocator(), cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            results = [launcher(*arguments, g) for _ in range(IN_A_ROW)]
        finally:
            graph = stream.end_capture()
        times = []
        for _ in range(REPEATS):
            begin = stream.record()
            graph.launch()
            end = stream.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end))
        del results                        # the graph wrote there
    return statistics.median(times)


def _read(file: Path) -> dict[str, list[str]]:
    """The entries of a file that are lists of names; none where there is no file, or not one of ours."""
    try:
        if not file.is_file():             # opening a pipe would wait for a writer
            return {}
        with open(file, "rb") as opened:
            held = opened.read(MAX_BYTES + 1)
        entries = json.loads(held) if len(held) <= MAX_BYTES else {}
    except (OSError, ValueError, RecursionError, MemoryError):
        return {}
    return {key: names for key, names in (entries.items() if isinstance(entries, dict) else ())
            if isinstance(names, list) and all(isinstance(name, str) for name in names)}


def _write(file: Path, entries: dict[str, list[str]]) -> None:
    """Replace the file whole; a folder that cannot be written only means measuring again."""
    part = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "x", encoding="utf-8") as opened:
            json.dump(entries, opened, indent=0, sort_keys=True)
        os.replace(part, file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
