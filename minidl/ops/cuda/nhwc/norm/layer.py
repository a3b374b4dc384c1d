"""Layer normalisation of rows, stored as images in NHWC: one launch, and two for the gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ....common.geometry.nhwc import C_TYPES
from ....common.geometry.sets import NormGeometry
from ....common.primitives import Array
from ... import launch
from ...pixels import rows_of, sums
from ...reduce import sum_first

__all__ = ["layer_norm_grad_nhwc", "layer_norm_nhwc"]

FILE, FLOAT = "nhwc/norm/layer.cu", np.dtype(np.float32)
MAX_BLOCKS = 396                           # that leave partial sums: 3 for each multiprocessor of an H100
MIN_TURNS = 2                              # rows that a team takes at least, if there are that many


class Team(NamedTuple):
    """The threads of a row, and how many runs of 16 bytes each holds."""

    lanes: int
    runs: int

    def constants(self, dtype: np.dtype) -> tuple[launch.Constant, ...]:
        return (("STORE", C_TYPES[dtype]), ("WIDE", 16 // dtype.itemsize), ("LANES", self.lanes), ("RUNS", self.runs))


def team_of(channels: int, dtype: np.dtype) -> Team:
    """As many lanes as there are runs, but at most a warp, and at least 4."""
    runs = channels * dtype.itemsize // 16
    lanes = min(32, max(4, _power_of_two(runs)))
    return Team(lanes, _power_of_two(launch.blocks(runs, lanes)))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


CONFIGURATIONS = [(FILE, Team(lanes, runs).constants(dtype)) for dtype in C_TYPES
                  for lanes, runs in ((4, 1), (16, 1), *((32, 1 << k) for k in range(3 + (dtype == FLOAT))))]


@functools.lru_cache(maxsize=4096)
def _launch(name: str, rows: int, channels: int, dtype: np.dtype) -> tuple[Callable[..., None], int]:
    """A function that launches a kernel on its arrays, and the number of its blocks."""
    team = team_of(channels, dtype)
    teams = launch.THREADS // team.lanes
    chunk = teams * max(MIN_TURNS, launch.blocks(rows, teams * MAX_BLOCKS))
    blocks = launch.blocks(rows, chunk)
    start = launch.kernel(FILE, name, *team.constants(dtype)).sized((blocks,), (launch.THREADS,))
    return lambda *arguments: start(*arguments, rows, channels, chunk), blocks


def layer_norm_nhwc(x: Array, w: Array | None, b: Array | None, eps: float,
                    g: NormGeometry) -> tuple[Array, Array, Array]:
    """normalize of each row: (y, mean, rstd); statistics are in float32."""
    y, mean, rstd = launch.empty(x.shape, x.dtype), launch.empty(g.sets, FLOAT), launch.empty(g.sets, FLOAT)
    start, _ = _launch("layer_norm_nhwc", rows_of(x), g.channels, x.dtype)
    start(x, w, b, y, mean, rstd, eps)
    return y, mean, rstd


def layer_norm_grad_nhwc(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry,
                         other: Array | None) -> tuple[Array, Array, Array]:
    """normalize_grad of each row, and other added to gx if it is given: (gx, gw, gb)"""
    start, blocks = _launch("layer_norm_grad_nhwc", rows_of(x), g.channels, x.dtype)
    gx, parts = launch.empty(x.shape, x.dtype), sums(2, blocks, g.channels)
    start(gy, x, w, mean, rstd, other, gx, parts)
    gb, gw = sum_first(parts)
    return gx, gw, gb
