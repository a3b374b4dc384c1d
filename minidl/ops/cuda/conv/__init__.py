"""Convolution on CUDA: the papers' algorithms as rows of one table, and the choice among them.

x (n,c,h,w), w (m,c,kh,kw), y (n,m,oh,ow); g is an ops.geometry.ConvGeometry. README.md tells the ladder's story.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ....device import precision
from ..activation import VALUES
from ..pool import avg_pool2d, avg_pool2d_grad_act, in_squares
from .auto import fastest
from .bias import sum_maps
from .papers import direct, krizhevsky, tiled, unroll
from .product import implicit_gemm
from .resident import tensor_core_image, wgmma, whole_image, winograd, winograd_dw
from .resident.planned import Gradients, Outputs

__all__ = [
    "CONV_ALGORITHMS", "conv2d", "conv2d_act", "conv2d_act_pool", "conv2d_act_pool_grad_wb", "conv2d_grad_b",
    "conv2d_grad_w", "conv2d_grad_x",
]

Array = Any


class Algorithm(NamedTuple):
    """y(x, w, b, g), dx(gy, w, g), dw(gy, x, g), each None where there is none; refuses(direction, g, dtype), which
    says why a case cannot be done, or None; and whether `auto` tries it.

    What computes y may go on in the same launch: y_act(x, w, b, g, act), and y_act_pool(x, w, b, g, act, pooling) where
    can_pool(g, pooling, dtype). Before dw may go grad_wb(gp, y, x, g, act, pooling), the fused form of
    conv2d_act_pool_grad_wb for windows that `in_squares` says.
    """

    y: Callable[..., Array] | None
    dx: Callable[..., Array] | None
    dw: Callable[..., Array] | None
    refuses: Callable[[str, Any, Any], str | None]
    tried: bool
    y_act: Callable[..., Array] | None = None
    y_act_pool: Callable[..., tuple[Array, Array]] | None = None
    can_pool: Callable[[Any, Any, Any], bool] | None = None
    grad_wb: Callable[..., tuple[Array, Array]] | None = None


def _one_launch(outputs: Outputs, dx: Callable[..., Array] | None, gradients: Gradients | None,
                refuses: Callable[[str, Any, Any], str | None]) -> Algorithm:
    dw, grad_wb = (gradients.dw, gradients.grad_wb) if gradients else (None, None)
    return Algorithm(outputs.y, dx, dw, refuses, True, outputs.y_act, outputs.y_act_pool, outputs.can_pool, grad_wb)


ALGORITHMS: dict[str, Algorithm] = {
    "direct": Algorithm(direct.y, direct.dx, direct.dw, direct.refuses, False),
    "tiled": Algorithm(tiled.y, tiled.dx, tiled.dw, tiled.refuses, False),
    "tiled_constant": Algorithm(tiled.constant_y, tiled.constant_dx, None, tiled.constant_refuses, False),
    "krizhevsky": Algorithm(krizhevsky.y, None, krizhevsky.dw, krizhevsky.refuses, False),
    "unroll": Algorithm(unroll.unroll_y, unroll.unroll_dx, unroll.unroll_dw, unroll.refuses, False),
    "gemm": Algorithm(unroll.gemm_y, unroll.gemm_dx, unroll.gemm_dw, unroll.refuses, True),
    "implicit_gemm": Algorithm(implicit_gemm.y, implicit_gemm.dx, implicit_gemm.dw, implicit_gemm.refuses, True),
    "tensor_core": Algorithm(implicit_gemm.tensor_core_y, implicit_gemm.tensor_core_dx, implicit_gemm.tensor_core_dw,
                             implicit_gemm.tensor_core_refuses, True),
    "whole_image": _one_launch(whole_image.OUTPUTS, whole_image.dx, whole_image.GRADIENTS, whole_image.refuses),
    "winograd": _one_launch(winograd.OUTPUTS, None, winograd_dw.GRADIENTS, winograd.refuses),
    "tensor_core_image": _one_launch(tensor_core_image.OUTPUTS, None, tensor_core_image.GRADIENTS,
                                     tensor_core_image.refuses),
    "wgmma": _one_launch(wgmma.OUTPUTS, None, None, wgmma.refuses),
}
CONV_ALGORITHMS = (*ALGORITHMS, "auto")


def refusal(name: str, direction: str, g: Any, dtype: Any) -> str | None:
    """Why an algorithm cannot do a case, or None."""
    algorithm = ALGORITHMS[name]
    if getattr(algorithm, direction) is None:
        return f"it has no kernel for {direction}"
    return algorithm.refuses(direction, g, dtype)


def _run(direction: str, g: Any, *arguments: Any) -> Array:
    """Call the algorithm that was asked for, or the fastest."""
    return getattr(ALGORITHMS[_name(direction, g, *arguments)], direction)(*arguments, g)


def _name(direction: str, g: Any, *arguments: Any) -> str:
    dtype = arguments[0].dtype
    if g.algorithm == "auto":
        return fastest(direction, g, dtype, arguments, _able)
    _refuse(g.algorithm, direction, g, dtype, precision())
    return g.algorithm


def _able(direction: str, g: Any, dtype: Any) -> dict[str, Callable[..., Array]]:
    """The launchers that `auto` may try for a case."""
    return {name: getattr(row, direction) for name, row in ALGORITHMS.items()
            if row.tried and refusal(name, direction, g, dtype) is None}


@functools.lru_cache(maxsize=4096)
def _refuse(name: str, direction: str, g: Any, dtype: Any, precision: str) -> None:
    if name not in ALGORITHMS:
        raise ValueError(f"conv2d: algorithm {name!r} is not one of {', '.join(CONV_ALGORITHMS)} on cuda")
    reason = refusal(name, direction, g, dtype)
    if reason:
        raise ValueError(f"conv2d: algorithm {name!r} cannot compute {direction} of x {g[:4]} and w "
                         f"{(g.m, g.c, g.kh, g.kw)}: {reason}; use algorithm 'auto'")


def conv2d(x: Array, w: Array, b: Array | None, g: Any) -> Array:
    return _run("y", g, x, w, b)


def conv2d_grad_x(gy: Array, w: Array, g: Any) -> Array:
    return _run("dx", g, gy, w)


def conv2d_grad_w(gy: Array, x: Array, g: Any) -> Array:
    return _run("dw", g, gy, x)


def conv2d_grad_b(gy: Array) -> Array:
    """The sum over images and pixels of each map."""
    return sum_maps(gy)


# ---------------------------------------------------------------- fused with what follows
def conv2d_act(x: Array, w: Array, b: Array | None, g: Any, act: str) -> Array:
    """act(conv2d(x))"""
    y_act = ALGORITHMS[_name("y", g, x, w, b)].y_act
    return y_act(x, w, b, g, act) if y_act else VALUES[act](conv2d(x, w, b, g))


def conv2d_act_pool(x: Array, w: Array, b: Array | None, g: Any, act: str, pooling: Any) -> tuple[Array, Array]:
    """(y, its averages) of y = act(conv2d(x))"""
    row = ALGORITHMS[_name("y", g, x, w, b)]
    if row.y_act_pool and row.can_pool and row.can_pool(g, pooling, x.dtype):
        return row.y_act_pool(x, w, b, g, act, pooling)
    y = conv2d_act(x, w, b, g, act)
    return y, avg_pool2d(y, pooling)


def conv2d_act_pool_grad_wb(gp: Array, y: Array, x: Array, g: Any, act: str, pooling: Any) -> tuple[Array, Array]:
    """(dw, db) of avg_pool2d(y), y = act(conv2d(x)), from the averages' gradient gp; nobody is to want x's"""
    fused = ALGORITHMS[_name("dw", g, y, x)].grad_wb      # y has the gradient's shape: `auto` may measure on it
    if fused and in_squares(pooling):
        return fused(gp, y, x, g, act, pooling)
    gz = avg_pool2d_grad_act(gp, y, pooling, act)
    return conv2d_grad_w(gz, x, g), conv2d_grad_b(gz)
