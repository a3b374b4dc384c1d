"""Updates by running averages, on CuPy arrays, in place: as in ops.cpu.updates."""

from __future__ import annotations

import cupy
import numpy as np

from ...common.primitives import Rate
from .. import launch
from .tables import THREADS, Arrays, launches, rate

FILE = "optim/updates.cu"
SCALES = launch.struct("Parameters")["p"].shape[0], 3      # of a table's parameters, see updates.cu


def adam(params: list[cupy.ndarray], grads: list[cupy.ndarray], means: list[cupy.ndarray],
         squares: list[cupy.ndarray], steps: list[cupy.ndarray], lr: Rate, betas: tuple[float, float], eps: float,
         weight_decay: float, decoupled: bool) -> None:
    scales = launch.empty(SCALES, np.dtype(np.float64))
    for constant, blocks, table in launches("adam", params, grads, mean=means, square=squares, step=steps):
        launch.kernel(FILE, "adam_begin", constant)(
            (1,), (len(scales),), table, *rate(lr), *betas, weight_decay if decoupled else 0.0, scales)
        launch.kernel(FILE, "adam", constant)(
            (blocks,), (THREADS,), table, scales, *betas, eps, 0.0 if decoupled else weight_decay)


def rmsprop(params: list[cupy.ndarray], grads: list[cupy.ndarray], squares: list[cupy.ndarray], means: Arrays,
            velocities: Arrays, lr: Rate, alpha: float, eps: float, weight_decay: float, momentum: float) -> None:
    for constant, blocks, table in launches("rmsprop", params, grads, velocity=velocities, square=squares, mean=means):
        launch.kernel(FILE, "rmsprop", constant)(
            (blocks,), (THREADS,), table, *rate(lr), alpha, eps, weight_decay, momentum)


def ema(averages: list[cupy.ndarray], values: list[cupy.ndarray], decay: float) -> None:
    for constant, blocks, table in launches("ema", averages, values):
        launch.kernel(FILE, "ema", constant)((blocks,), (THREADS,), table, decay)
