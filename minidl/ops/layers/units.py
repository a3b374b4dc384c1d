"""Activations beyond those of the papers: leaky, exponential, smooth and gated units."""

from __future__ import annotations

from ...core.tensor import Tensor
from ..common.curves import SLOPE
from ..common.op import op

__all__ = ["elu", "gelu", "hardsigmoid", "leaky_relu", "silu", "softplus"]


@op(floating=True)
def leaky_relu(k, x: Tensor, *, negative_slope: float = SLOPE):
    """x where it is above 0, and `negative_slope` times x elsewhere (Maas, Hannun and Ng 2013).

    >>> leaky_relu(Tensor([-2.0, 3.0]), 0.5).tolist()
    [-1.0, 3.0]
    """
    if negative_slope == SLOPE:
        y = k.leaky_relu(x)
        return y, lambda gy, need: (k.leaky_relu_grad_x(gy, y),)
    above = k.gt(x, 0)
    return (k.where(above, x, k.mul(x, negative_slope)),
            lambda gy, need: (k.where(above, gy, k.mul(gy, negative_slope)),))


@op(floating=True)
def elu(k, x: Tensor, *, alpha: float = 1.0):
    """x where it is above 0, and alpha (e^x - 1) elsewhere (Clevert, Unterthiner and Hochreiter 2016).

    >>> elu(Tensor([-1000.0, 3.0])).tolist()
    [-1.0, 3.0]
    """
    y = k.elu(x)
    if alpha == 1:
        return y, lambda gy, need: (k.elu_grad_x(gy, y),)
    above = k.gt(x, 0)
    return (k.where(above, x, k.mul(y, alpha)),
            lambda gy, need: (k.where(above, gy, k.mul(k.elu_grad_x(gy, y), alpha)),))


@op(floating=True)
def softplus(k, x: Tensor):
    """log(1 + e^x), elementwise; above 20 it is x. A sharper one is softplus(x * beta) / beta.

    >>> softplus(Tensor([1000.0])).tolist()
    [1000.0]
    """
    y = k.softplus(x)
    return y, lambda gy, need: (k.softplus_grad_x(gy, y),)


@op(floating=True)
def hardsigmoid(k, x: Tensor):
    """(x + 3) / 6, but at least 0 and at most 1; where it is one of these its gradient is 0.

    >>> hardsigmoid(Tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    y = k.hardsigmoid(x)
    return y, lambda gy, need: (k.hardsigmoid_grad_x(gy, y),)


@op(floating=True)
def silu(k, x: Tensor):
    """x times its sigmoid (Hendrycks and Gimpel 2016, section 2).

    >>> silu(Tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return k.silu(x), lambda gy, need: (k.silu_grad_x(gy, x),)


@op(floating=True)
def gelu(k, x: Tensor, *, approximate: str = "none"):
    """x times the probability that a standard normal number is below x (Hendrycks and Gimpel 2016).

    approximate: "none", by the error function; or "tanh", the paper's x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    Raises ValueError for another one.

    >>> gelu(Tensor([-100.0, 0.0, 100.0])).tolist()
    [0.0, 0.0, 100.0]
    """
    if approximate == "none":
        return k.gelu(x), lambda gy, need: (k.gelu_grad_x(gy, x),)
    if approximate != "tanh":
        raise ValueError(f"gelu: approximate is {approximate!r} but must be 'none' or 'tanh'")
    return k.gelu_tanh(x), lambda gy, need: (k.gelu_tanh_grad_x(gy, x),)
