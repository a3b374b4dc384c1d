"""Convolution on CUDA: the papers' algorithms as rows of one table, and the choice among them.

x (n,c,h,w), w (m,c,kh,kw), y (n,m,oh,ow); g is an ops.common.geometry.ConvGeometry. README.md tells the ladder's story.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ....core.device import precision
from ...common.conv.own import OWN, Refuses
from ...common.geometry import ConvGeometry, PoolGeometry
from ...common.primitives import Array
from . import grouped, own
from .auto import fastest
from .auto.measuring import Launcher
from .bias import sum_maps
from .papers import direct, gemm, gemm_tiled, krizhevsky, tiled, unroll
from .product import fft, implicit_gemm
from .product.winograd_tiles import F2, F4
from .resident import few_channels, whole_image, winograd
from .resident.planned import Gradients, Outputs
from .resident.tensor_cores import tensor_core_image, wgmma

__all__ = ["CONV_ALGORITHMS", "conv2d", "conv2d_grad_b", "conv2d_grad_w", "conv2d_grad_x"]


class Algorithm(NamedTuple):
    """y(x, w, b, g), dx(gy, w, g), dw(gy, x, g), each None if there is none; refuses(direction, g, dtype), which says
    why a case cannot be done, or None; whether `auto` tries it, or tried(direction, g); the precisions in which it
    multiplies on tensor cores; by how much more than the plain sum it may round: infinitely, if it spreads what others
    sum up.

    The launch of y may also compute what follows y: y_act(x, w, b, g, act), and y_act_pool(x, w, b, g, act, pooling) if
    can_pool(g, pooling, dtype). The launch of dw may also compute what comes before it: grad_wb(gp, y, x, g, act,
    pooling) is the fused form of conv2d_act_pool_grad_wb, for windows that `in_squares` accepts.
    """

    y: Launcher | None
    dx: Launcher | None
    dw: Launcher | None
    refuses: Refuses
    tried: bool | Callable[[str, ConvGeometry], bool] = False
    tensor_cores: tuple[str, ...] = ()
    rounding: float = 1.0
    y_act: Launcher | None = None
    y_act_pool: Callable[..., tuple[Array, Array]] | None = None
    can_pool: Callable[[ConvGeometry, PoolGeometry, np.dtype], bool] | None = None
    grad_wb: Callable[..., tuple[Array, Array]] | None = None


def _one_launch(outputs: Outputs, dx: Launcher | None, gradients: Gradients | None, refuses: Refuses,
                tensor_cores: tuple[str, ...] = ()) -> Algorithm:
    dw, grad_wb = (gradients.dw, gradients.grad_wb) if gradients else (None, None)
    return Algorithm(outputs.y, dx, dw, refuses, True, tensor_cores, y_act=outputs.y_act,
                     y_act_pool=outputs.y_act_pool, can_pool=outputs.can_pool, grad_wb=grad_wb)


REDUCED = "tf32", "3xtf32", "bf16"
UNMEASURED = "gemm_tiled", "grouped"       # what `auto` is before it measures: few kernels, which serve all shapes

# In the order of the ladder
ALGORITHMS: dict[str, Algorithm] = {
    "direct": Algorithm(direct.y, direct.dx, direct.dw, direct.refuses),
    "tiled": Algorithm(tiled.y, tiled.dx, tiled.dw, tiled.refuses),
    "tiled_constant": Algorithm(tiled.constant_y, tiled.constant_dx, tiled.dw, tiled.constant_refuses),
    "krizhevsky": Algorithm(krizhevsky.y, None, krizhevsky.dw, krizhevsky.refuses),
    "unroll": Algorithm(unroll.y, unroll.dx, unroll.dw, unroll.refuses),
    "gemm_tiled": Algorithm(gemm_tiled.y, gemm_tiled.dx, gemm_tiled.dw, unroll.refuses),
    "gemm": Algorithm(gemm.y, gemm.dx, gemm.dw, gemm.refuses, tried=True),
    "implicit_gemm": Algorithm(implicit_gemm.y, implicit_gemm.dx, implicit_gemm.dw, implicit_gemm.refuses, tried=True),
    "whole_image": _one_launch(whole_image.OUTPUTS, whole_image.dx, whole_image.GRADIENTS, whole_image.refuses),
    "winograd": _one_launch(winograd.OUTPUTS, None, winograd.GRADIENTS, winograd.refuses),
    "winograd_2x2": Algorithm(F2.y, F2.dx, F2.dw, F2.refuses, tried=True),
    "winograd_4x4": Algorithm(F4.y, F4.dx, F4.dw, F4.refuses, tried=True, rounding=8.0),
    "fft": Algorithm(fft.y, fft.dx, fft.dw, fft.refuses, tried=fft.pays, rounding=float("inf")),
    "tensor_core": Algorithm(implicit_gemm.tensor_core_y, implicit_gemm.tensor_core_dx, implicit_gemm.tensor_core_dw,
                             implicit_gemm.tensor_core_refuses, tried=True, tensor_cores=REDUCED),
    "tensor_core_image": _one_launch(tensor_core_image.OUTPUTS, None, tensor_core_image.GRADIENTS,
                                     tensor_core_image.refuses, REDUCED),
    "wgmma": _one_launch(wgmma.OUTPUTS, None, None, wgmma.refuses, REDUCED),
    "grouped": Algorithm(grouped.y, grouped.dx, grouped.dw, grouped.refuses, tried=lambda _, g: not g.dense,
                         y_act=grouped.y_act),
    "few_channels": _one_launch(few_channels.OUTPUTS, None, few_channels.GRADIENTS, few_channels.refuses,
                                ("bf16",)),
}
CONV_ALGORITHMS = (*ALGORITHMS, "auto")
ALGORITHMS |= {name: Algorithm(*own.row(each)) for name, each in OWN.items()}        # of users, minidl.register_conv


def refusal(name: str, direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    """Why an algorithm cannot do a case, or None."""
    algorithm = ALGORITHMS[name]
    if getattr(algorithm, direction) is None:
        return f"it has no kernel for {direction}"
    if not g.dense and name != "grouped":
        return "it has neither groups nor dilation"
    return algorithm.refuses(direction, g, dtype)


def _run(direction: str, g: ConvGeometry, *arguments: Array | None) -> Array:
    return getattr(ALGORITHMS[chosen(direction, g, arguments)], direction)(*arguments, g)


def chosen(direction: str, g: ConvGeometry, arguments: tuple[Array | None, ...]) -> str:
    """The requested algorithm, or the fastest; while a step records, one that is compiled soon."""
    dtype = arguments[0].dtype             # type: ignore[union-attr]
    name = g.algorithm if g.algorithm == "auto" else _asked(direction, g, dtype, precision())
    return (fastest(direction, g, dtype, arguments, _able) or _unmeasured(direction, g, dtype)) if name == "auto" \
        else name


def _unmeasured(direction: str, g: ConvGeometry, dtype: np.dtype) -> str:
    return next(name for name in (*UNMEASURED, *ALGORITHMS) if refusal(name, direction, g, dtype) is None)


def _able(direction: str, g: ConvGeometry, dtype: np.dtype) -> dict[str, Launcher]:
    """The launchers that `auto` may try for a case."""
    return {name: getattr(row, direction) for name, row in ALGORITHMS.items()
            if (row.tried(direction, g) if callable(row.tried) else row.tried)
            and refusal(name, direction, g, dtype) is None}


@functools.lru_cache(maxsize=4096)
def _asked(direction: str, g: ConvGeometry, dtype: np.dtype, precision: str) -> str:
    """The requested algorithm; 'auto' in directions for which it has no kernel, and if a user's algorithm refuses. A
    warning says so once."""
    name = g.algorithm
    if name not in ALGORITHMS:
        raise ValueError(f"conv2d: algorithm {name!r} is not one of {', '.join((*ALGORITHMS, 'auto'))} on cuda")
    if getattr(ALGORITHMS[name], direction) is None:
        _warn(name)
        return "auto"
    if reason := refusal(name, direction, g, dtype):
        if name in OWN:
            own.left_to_auto("conv2d", name, reason)
            return "auto"
        raise ValueError(f"conv2d: algorithm {name!r} cannot compute {direction} of x {g[:4]} and w "
                         f"{(g.m, g.c, g.kh, g.kw)}: {reason}; use algorithm 'auto'")
    return name


@functools.cache
def _warn(name: str) -> None:
    missing = [direction for direction in ("y", "dx", "dw") if getattr(ALGORITHMS[name], direction) is None]
    warnings.warn(f"conv2d: algorithm {name!r} has no kernel for {' and '.join(missing)}; 'auto' is used there",
                  stacklevel=2)


def conv2d(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    return _run("y", g, x, w, b)


def conv2d_grad_x(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return _run("dx", g, gy, w)


def conv2d_grad_w(gy: Array, x: Array, g: ConvGeometry) -> Array:
    return _run("dw", g, gy, x)


def conv2d_grad_b(gy: Array) -> Array:
    return sum_maps(gy)
