"""The optimizer's update on CuPy arrays, in place: up to 64 parameters of a dtype per launch."""

from __future__ import annotations

import cupy

from ...common.primitives import Rate
from .. import launch
from .clip import scaled, square_sum
from .tables import THREADS, launches, rate
from .updates import adam, ema, rmsprop

__all__ = ["adam", "ema", "rmsprop", "scaled", "sgd", "square_sum"]

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (f"optim/{name}.cu", (launch.real(dtype),)) for name in ("sgd", "updates", "clip") for dtype in launch.C_NAME]


def sgd(params: list[cupy.ndarray], grads: list[cupy.ndarray], velocities: list[cupy.ndarray] | None, lr: Rate,
        momentum: float, weight_decay: float, nesterov: bool) -> None:
    """As in ops.cpu.optim. lr may be an array of one float64, too; arrays are read when the kernel runs."""
    for constant, blocks, table in launches("sgd", params, grads, velocity=velocities):
        launch.kernel("optim/sgd.cu", "sgd", constant)(
            (blocks,), (THREADS,), table, *rate(lr), momentum, weight_decay, nesterov)
