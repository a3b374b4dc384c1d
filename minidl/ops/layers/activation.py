"""Activations, softmax and dropout."""

from __future__ import annotations

from ...core import rng
from ...core.mode import mode
from ...core.tensor import Tensor
from ..common.conv.own import users
from ..common.geometry import is_int
from ..common.op import also, op, tensor

__all__ = ["dropout", "dropout2d", "log_softmax", "relu", "sigmoid", "softmax", "tanh"]


@op(floating=True, by_place=0)
def sigmoid(k, x: Tensor, *, algorithm: str = "auto"):
    """The logistic function 1 / (1 + e^-x), elementwise (Krizhevsky 2009, section 3).

    >>> sigmoid(Tensor([0.0])).tolist()
    [0.5]
    """
    if algorithm != "auto":                # of your own, minidl.register_activation
        return users(k, kind="sigmoid", algorithm=algorithm, x=x)
    y = k.sigmoid(x)
    return y, lambda gy, need: (k.sigmoid_grad_x(gy, y),)


@op(floating=True, by_place=0)
def tanh(k, x: Tensor, *, algorithm: str = "auto"):
    """The hyperbolic tangent, elementwise."""
    if algorithm != "auto":                # of your own, minidl.register_activation
        return users(k, kind="tanh", algorithm=algorithm, x=x)
    y = k.tanh(x)
    return y, lambda gy, need: (k.tanh_grad_x(gy, y),)


@op(floating=True, by_place=0)
def relu(k, x: Tensor, *, algorithm: str = "auto"):
    """max(x, 0), elementwise; the gradient at 0 is 0; NaN is passed on, and at NaN so is the gradient.

    >>> relu(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if algorithm != "auto":                # of your own, minidl.register_activation
        return users(k, kind="relu", algorithm=algorithm, x=x)
    y = k.relu(x)
    return y, lambda gy, need: (k.relu_grad_x(gy, y),)


def one_axis(name: str, shape: tuple[int, ...], axis: int) -> int:
    """An axis of a shape, counted from the front. True and False are refused: they are meant for another option."""
    if isinstance(axis, Tensor):
        raise TypeError(f"{name}: the axis is a Tensor of shape {axis.shape} but must be an int; several Tensors are "
                        f"given as a list, {name}([x, y])")
    if not is_int(axis, -len(shape)) or axis >= len(shape):
        raise ValueError(f"{name}: axis {axis!r} is out of range for a Tensor of shape {shape}; use an int from "
                         f"{-len(shape)} to {len(shape) - 1}")
    return int(axis) % len(shape)


@op(floating=True)
def softmax(k, x: Tensor, *, axis: int = -1):
    """e^x over its sum along an axis, without overflow (Krizhevsky 2009, section 5).

    >>> softmax(Tensor([1000.0, 1000.0])).tolist()
    [0.5, 0.5]
    """
    axis = one_axis("softmax", x.shape, axis)
    y = k.softmax(x, axis)
    return y, lambda gy, need: (k.softmax_grad_x(gy, y, axis),)


@op(floating=True)
def log_softmax(k, x: Tensor, *, axis: int = -1):
    """The logarithm of softmax along an axis, computed without forming it."""
    axis = one_axis("log_softmax", x.shape, axis)
    y = k.log_softmax(x, axis)
    return y, lambda gy, need: (k.log_softmax_grad_x(gy, y, axis),)


@op(floating=True)
def _dropout(k, x: Tensor, *, p: float, key: rng.Key):
    return k.dropout(x, p, key), lambda gy, need: (k.dropout_grad_x(gy, p, key),)


@op(floating=True)
def _dropout2d(k, x: Tensor, *, p: float, key: rng.Key):
    mask = k.dropout(k.ones_like(k.getitem(x, (..., slice(1), slice(1)))), p, key)
    return k.mul(x, mask), lambda gy, need: (k.mul(gy, mask),)


@also
def dropout(x: Tensor, p: float = 0.5, training: bool = True, *, key: rng.Key | None = None) -> Tensor:
    """Set each value to 0 with probability p and divide the others by 1 - p.

    training: if False, x is returned as it is. key: the (seed, counter) that decides the mask; by default this
    thread's next one since `minidl.manual_seed`. Raises ValueError if p is not in [0, 1).

    >>> dropout(Tensor([1.0, 2.0]), p=0.0).tolist()
    [1.0, 2.0]
    """
    p = _probability("dropout", p)
    return _dropout(x, p=p, key=_key(key)) if training else tensor("dropout", x)


@also
def dropout2d(x: Tensor, p: float = 0.5, training: bool = True, *, key: rng.Key | None = None) -> Tensor:
    """As `dropout`, but for whole channels: each map of each image of x (n,c,h,w) stays or becomes 0 (Tompson et al.
    2015). Raises ValueError for another number of axes too.

    >>> dropout2d(Tensor([[[[1.0, 2.0]]]]), p=0.0).tolist()
    [[[[1.0, 2.0]]]]
    """
    if tensor("dropout2d", x).ndim != 4:
        raise ValueError(f"dropout2d: x has shape {x.shape} but must have 4 axes (n,c,h,w); see .reshape(), or use "
                         "ops.dropout")
    p = _probability("dropout2d", p)
    return _dropout2d(x, p=p, key=_key(key)) if training else tensor("dropout2d", x)


def _key(given: rng.Key | None) -> rng.Key:
    key: rng.Key = mode.recorder.dynamic(rng.next_key) if given is None else given
    return key


def _probability(name: str, p: float) -> float:
    if not 0 <= p < 1:
        raise ValueError(f"{name}: p is {p!r} but must be in [0, 1)")
    return float(p)
