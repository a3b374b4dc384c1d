"""`algorithm="auto"`: the fastest that can do a case, measured once per shape, direction, precision and device.

What was measured is kept in a JSON file per device in the user's cache folder, so that other processes, and later runs,
need not measure again and choose the same. An entry names all algorithms that took part, the fastest first. If others
can do the case now, it is measured again. Anything else in the file is ignored, and measured again.

While a compiled step records, nothing is measured, or looked up, so that its bits depend on neither: most of what it
calls is replaced before its first replay. What is left is measured then, by `measuring.ahead`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import cupy
import numpy as np

from .....core.device import precision
from .....core.host import cache_folder
from .....core.mode import mode
from .....core.pools import capturing
from .....core.version import __version__
from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch
from .measuring import Launcher, measure, wait

Key = tuple[str, ConvGeometry, np.dtype, str]          # direction, g, dtype, precision
Able = Callable[[str, ConvGeometry, np.dtype], Mapping[str, Launcher]]

MAX_BYTES = 1 << 20                       # of a file that is read: some 7,000 cases

choices: dict[Key, str] = {}   # what this process has looked up, or measured
_files: dict[Path, dict[str, list[str]]] = {}      # files as read


def fastest(direction: str, g: ConvGeometry, dtype: np.dtype, arguments: tuple[Array | None, ...],
            able: Able) -> str | None:
    """The name of the fastest algorithm; `able` gives the launchers that can do a case, by name. None while a step
    records, and for a dry call if it is not known."""
    if mode.recorder.recording:
        return None
    key = direction, g, dtype, precision()
    if key not in choices:
        with capturing:                    # another thread may be measuring the same case
            _choose(key, arguments, able)
    return choices.get(key)


def _choose(key: Key, arguments: tuple[Array | None, ...], able: Able) -> None:
    """Look up, or measure, what is the fastest for a case that is not in `choices`; a dry call only says that it is
    wanted."""
    if key in choices:
        return
    direction, g, dtype, computed = key
    file, entry = cache_file(), f"{direction} {dtype} {computed} {' '.join(map(str, g[:-1]))}"
    names = _entries(file).get(entry, [])
    launchers = able(direction, g, dtype)
    if sorted(names) != sorted(launchers):
        if launch.is_dry():
            return wait(key, arguments, launchers, lambda arrays: fastest(direction, g, dtype, arrays, able))
        names = sorted(times := measure(launchers, arguments, g), key=times.__getitem__)
        _files[file] = {**_read(file), **_files[file], entry: names}
        _write(file, _files[file])
    choices[key] = names[0]


def cache_file() -> Path:
    """Where choices for the current device are kept."""
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"].decode()
    return cache_folder() / f"convolutions-{'-'.join(device.split())}-{__version__}.json"


def _entries(file: Path) -> dict[str, list[str]]:
    if file not in _files:
        _files[file] = _read(file)
    return _files[file]


def _read(file: Path) -> dict[str, list[str]]:
    """The entries of a file that are lists of names; none if there is no file, or not one of ours."""
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
