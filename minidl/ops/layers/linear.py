"""The fully connected layer: Krizhevsky 2009 section 4, PMPP section 16.1."""

from __future__ import annotations

import math

from ...core.tensor import Tensor
from ..common.conv.own import users
from ..common.op import op

__all__ = ["linear"]


@op(floating=True, by_place=0)
def linear(k, x: Tensor, w: Tensor, b: Tensor | None = None, *, algorithm: str = "auto"):
    """x w^T + b: x (...,in), w (out,in), b (out,) -> (...,out).

    algorithm: "auto", or one of your own (`minidl.register_linear`). Raises ValueError if the shapes do not fit (it
    names both) and for an algorithm that is not known.

    >>> from minidl import Tensor
    >>> linear(Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]]), Tensor([0.5])).item()
    11.5
    """
    xs, ws = x.shape, w.shape
    if not xs or len(ws) != 2:
        raise ValueError(f"linear: x has shape {xs} and w has shape {ws} but they must be x (...,in) and w (out,in)")
    if xs[-1] != ws[1]:
        raise ValueError(f"linear: x has {xs[-1]} features but w expects {ws[1]} (x {xs}, w {ws}); "
                         "make them equal, see .flatten(1)")
    if b is not None and b.shape != ws[:1]:
        raise ValueError(f"linear: b has shape {b.shape} but w has {ws[0]} outputs; b must have shape ({ws[0]},)")
    flat, rows = len(xs) == 2, math.prod(xs[:-1])
    x = x if flat else k.reshape(x, (rows, ws[1]))

    def gradients(gy, need):
        return (k.linear_grad_x(gy, w) if need[0] else None,
                k.linear_grad_w(gy, x) if need[1] else None,
                k.linear_grad_b(gy) if need[2] else None)

    if algorithm == "auto":
        y = k.linear(x, w, b)
    else:
        y, gradients = users(k, kind="linear", algorithm=algorithm, x=x, w=w, b=b)

    def backward(gy, need):
        gx, *rest = gradients(gy if flat else k.reshape(gy, (rows, ws[0])), need)
        return gx if flat or gx is None else k.reshape(gx, xs), *rest
    return y if flat else k.reshape(y, (*xs[:-1], ws[0])), backward
