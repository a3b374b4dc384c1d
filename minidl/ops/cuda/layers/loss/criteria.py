"""Losses of pairs and of log probabilities on CuPy arrays: a launch, or two if a sum has several blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ....common.curves import LOSSES
from ....common.primitives import Array
from ... import launch
from . import MOST_THREADS, _wide

__all__ = ["nll", "nll_grad_x", "pair_loss", "pair_loss_grad_target", "pair_loss_grad_x"]

PAIRS, NLL = "layers/loss/pairs.cu", "layers/loss/nll.cu"
ELEMENTS_PER_THREAD = 8                    # of a sum, which is shared by no more blocks
MAX_BLOCKS = 1024                          # than a block can add up, a thread each

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((PAIRS, (launch.real(dtype), ("LOSS", loss))) for loss in LOSSES for dtype in launch.C_NAME),
    *((NLL, (launch.real(dtype),)) for dtype in launch.C_NAME)]

# What pairs.cu includes: the losses as C++
FUNCTION = """    static __device__ __forceinline__ REAL {}(REAL x, REAL t, REAL p) {{
        const REAL d = x - t;
        return {};
    }}
"""
launch.GENERATED["include/losses.cuh"] = "".join(
    f"struct loss_{loss} {{\n" + "".join(FUNCTION.format(name.removeprefix("cuda_"), getattr(row, name)) for name in (
        "cuda_value", "cuda_derivative_x", "cuda_derivative_target")) + "};\n" for loss, row in LOSSES.items())


# ---------------------------------------------------------------- of pairs
@functools.lru_cache(maxsize=4096)
def _start(name: str, loss: str, dtype: np.dtype, blocks: int) -> Callable[..., None]:
    return launch.kernel(PAIRS, name, launch.real(dtype), ("LOSS", loss)).sized((blocks,), (launch.THREADS,))


def pair_loss(x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    """A row of LOSSES of x and target, of one shape: reduced, or of that shape for "none"."""
    size, dtype = x.size, x.dtype
    if reduction == "none":
        y = launch.empty(x.shape, dtype)
        _start("pair_loss", loss, dtype, launch.spread(size))(x, target, y, size, number)
        return y
    blocks = min(MAX_BLOCKS, launch.blocks(size, launch.THREADS * ELEMENTS_PER_THREAD))        # by sizes alone
    divisor, total = size if reduction == "mean" else 1, launch.empty((), dtype)
    sums = total if blocks == 1 else launch.empty((blocks,), dtype)
    _start("pair_loss_sum", loss, dtype, blocks)(x, target, sums, size, number, divisor if blocks == 1 else 1)
    if blocks > 1:
        launch.kernel("layers/loss/cross_entropy.cu", "cross_entropy_sum", launch.real(dtype))(
            (1,), (MOST_THREADS,), sums, total, blocks, divisor)
    return total


def _derivative(name: str, gy: Array, x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    gx = launch.empty(x.shape, x.dtype)
    _start(name, loss, x.dtype, launch.spread(x.size))(
        gy, x, target, gx, x.size, 1 if reduction == "none" else 0, number, x.size if reduction == "mean" else 1)
    return gx


def pair_loss_grad_x(gy: Array, x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    """gy of x's shape for "none", else one number."""
    return _derivative("pair_loss_grad_x", gy, x, target, loss, number, reduction)


def pair_loss_grad_target(gy: Array, x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    return _derivative("pair_loss_grad_target", gy, x, target, loss, number, reduction)


# ---------------------------------------------------------------- of log probabilities
def _numbers(classes: int, reduction: str, smoothing: float, ignored: int | None) -> tuple[float, float, int, int, int]:
    """keep, share, mean, ignores and ignored of nll.cu; a label beyond int64 ignores none."""
    ignores = ignored is not None and -2 ** 63 <= ignored < 2 ** 63
    return (1 - smoothing, smoothing / max(1, classes), int(reduction == "mean"), int(ignores),
            ignored if ignored is not None and ignores else 0)


def nll(log_p: Array, labels: Array, weight: Array | None, reduction: str, smoothing: float,
        ignored: int | None) -> tuple[Array, Array]:
    """(loss, total): -(sum over classes of target * log_p) of each row, reduced; log_p (n,classes), labels (n,), weight
    (classes,).

    A row's target is (1 - s) weight[label] on its label plus s / classes times each class's weight; 0 everywhere if the
    label is ignored, and NaN if it is not a class. "mean" divides by total, the sum of weight[label]; if that is 0, the
    mean is NaN.
    """
    n, classes = log_p.shape
    real, numbers = launch.real(log_p.dtype), _numbers(classes, reduction, smoothing, ignored)
    loss, total = launch.empty((), log_p.dtype), launch.empty((), log_p.dtype)
    losses = launch.empty((n,), log_p.dtype) if reduction == "none" else None
    lanes = min(32, launch.lanes_per_row(classes)) if smoothing else 1
    one = n * lanes <= MOST_THREADS
    threads = 32 * launch.blocks(n * lanes, 32) if one else launch.THREADS
    blocks = min(MAX_BLOCKS, launch.blocks(n * lanes, threads))
    parts = None if one else launch.empty((2, blocks), log_p.dtype)
    launch.kernel(NLL, "nll", real)((blocks,), (threads,), log_p, _wide(labels), weight, losses, parts, loss, total, n,
                                    classes, lanes, *numbers)
    if parts is not None:
        launch.kernel(NLL, "nll_total", real)((1,), (MOST_THREADS,), parts, loss, total, blocks, numbers[2])
    return loss if losses is None else losses, total


def nll_grad_x(gy: Array, classes: int, labels: Array, weight: Array | None, total: Array, reduction: str,
               smoothing: float, ignored: int | None) -> Array:
    """-target * gy; a mean of nothing has no gradient. gy (n,) for "none", else one number."""
    gx = launch.empty((len(labels), classes), gy.dtype)
    launch.kernel(NLL, "nll_grad_x", launch.real(gy.dtype))(
        (launch.spread(gx.size),), (launch.THREADS,), gy, _wide(labels), weight, total, gx, gx.size, classes,
        1 if reduction == "none" else 0, *_numbers(classes, reduction, smoothing, ignored))
    return gx
