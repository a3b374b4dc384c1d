"""How kernels walk images in NHWC: constants, and the struct PixelRuns, by which a thread keeps to its channels."""

from __future__ import annotations

import functools
import math

import cupy
import numpy as np

from ..common.geometry.nhwc import C_TYPES
from ..common.primitives import Array
from . import launch

MAX_BLOCKS = 396                           # that leave partial sums: 3 for each multiprocessor of an H100
MIN_ROWS = 8                               # pixels that a thread takes at least, if there are that many
MAX_LANES = 32
MIN_COMPILER = 12, 9                       # NVRTC: older ones refuse the architecture that has wgmma


def has_wgmma() -> bool:
    """Whether the GPU has wgmma, and the compiler knows sm_90a."""
    return launch.compute_capability() == 90 and launch.compiler_version() >= MIN_COMPILER


def constants(dtype: np.dtype, channels: int, act: str | None = None,
              after: bool = False) -> tuple[launch.Constant, ...]:
    """What kernels are compiled with for images of a type. after: whether act follows their own work."""
    wide = 16 // dtype.itemsize
    common = ("STORE", C_TYPES[dtype]), ("WIDE", 1 if channels % wide else wide)
    return (*common, *((("ACT", act),) if act else ()), *((("AFTER", 1),) if act and after else ()))


def configurations(file: str, *acts: str | None,
                   after: bool = False) -> list[tuple[str, tuple[launch.Constant, ...]]]:
    """What a file is compiled with, for the tests."""
    return [(file, constants(dtype, channels, act, after)) for dtype in C_TYPES for channels in (8, 1) for act in acts]


@functools.lru_cache(maxsize=4096)
def walk(file: str, name: str, rows: int, channels: int, dtype: np.dtype, act: str | None = None,
         after: bool = False, more: tuple[launch.Constant, ...] = ()) -> launch.Plan:
    """The plan of a kernel that walks PixelRuns. Its blocks along the rows are the splits. Sizes alone decide."""
    given = (*more, *constants(dtype, channels, act, after))
    runs = channels // dict(given)["WIDE"]
    lanes = min(runs, MAX_LANES)
    side = launch.THREADS // lanes
    beside = launch.blocks(runs, lanes)
    chunk = side * max(MIN_ROWS, launch.blocks(rows, side * max(1, MAX_BLOCKS // beside)))
    grid = launch.blocks(rows, chunk)
    struct = launch.by_value("PixelRuns", rows=rows, channels=channels, lanes=lanes, chunk=chunk)
    return launch.Plan(file, name, given, (grid, beside), launch.THREADS, 0, struct, splits=grid)


def sums(count: int, blocks: int, channels: int) -> cupy.ndarray:
    """The array to which blocks write `count` sums for each channel."""
    return launch.empty((blocks, count, channels) if count > 1 else (blocks, channels), np.dtype(np.float32))


def rows_of(x: Array) -> int:
    return math.prod(x.shape[:-1])

