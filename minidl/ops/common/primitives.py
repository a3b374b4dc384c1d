"""What is known of primitives and of activations.

A primitive is a function of the same name and signature in both backends, ops/cpu and ops/cuda. From the rows of
PRIMITIVES the compiler knows what a call does in addition to its result, and which calls can be one region. What is
known of an activation serves both backends, the fused primitives that name it by their `act`, and the zoo.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from .curves import MORE, OF_X, Activation, above, keep, over_exp

Array = np.ndarray                         # or a cupy.ndarray, which has its methods
Index = Any                                # ints, slices, None, Ellipsis, masks and integer arrays, as NumPy indexes
Flag = Literal[False, True]                # a bool: keepdims, for whose two values NumPy has separate types
Augment = tuple[int, bool | str, int, float, float, float, bool]      # of gather, as data.Augment has them
Rate = float | Array | tuple[Array, Array]             # of sgd: a number, an array of one, or (rates, position)


# ---------------------------------------------------------------- activations whose gradient is a function of y
def _sigmoid_grad(gx: Array, gy: Array, y: Array) -> None:
    np.subtract(1, y, out=gx)
    gx *= y
    gx *= gy


def _tanh_grad(gx: Array, gy: Array, y: Array) -> None:
    np.multiply(y, y, out=gx)
    np.subtract(1, gx, out=gx)
    gx *= gy


def _relu_grad(gx: Array, gy: Array, y: Array) -> None:
    keep(gy, ~(y <= 0), gx)                # storing by a mask takes ten times as long


# relu passes NaN on, and where y is NaN it passes gy on, as PyTorch's does.
ACTIVATIONS = {
    "tanh": Activation(lambda y, x: np.tanh(x, out=y), _tanh_grad, "tanh(x)", "((REAL)1 - y * y) * gy",
                       lambda y: 1 - y * y),
    "sigmoid": Activation(lambda y, x: over_exp(y, x, 1), _sigmoid_grad, "reciprocal(exp(-x) + (REAL)1)",
                          "((REAL)1 - y) * y * gy", lambda y: y * (1 - y)),
    "relu": Activation(lambda y, x: above(x, 0, y), _relu_grad, "x <= (REAL)0 ? (REAL)0 : x",
                       "y <= (REAL)0 ? (REAL)0 : gy", "step"),
    **MORE,
}


ALL = ChainMap(ACTIVATIONS, OF_X)          # and what users add to ACTIVATIONS
Primitives = dict[str, Callable[..., Array]]


def of_activations(value: Callable[[str, Array], Array],
                   grad_x: Callable[[str, Array, Array], Array]) -> tuple[Primitives, Primitives]:
    """A backend's primitives <act>(x), and <act>_grad_x(gy, y) or (gy, x), of all; given functions take act first."""
    def forward(act: str) -> Callable[[Array], Array]:
        def primitive(x: Array) -> Array:
            return value(act, x)
        primitive.__name__ = act
        return primitive

    def backward(act: str) -> Callable[[Array, Array], Array]:
        def primitive(gy: Array, y: Array) -> Array:
            return grad_x(act, gy, y)
        primitive.__name__ = f"{act}_grad_x"
        return primitive
    return {act: forward(act) for act in ALL}, {act: backward(act) for act in ALL}


# ---------------------------------------------------------------- primitives
class Primitive(NamedTuple):
    """What a call of a primitive does in addition to its result, and what it is in a region."""

    takes: str = ""                        # a letter for each argument: i: a value of each image; p: a parameter;
    gives: str = ""                        # l: labels; c: a constant; and for each result: i, or s: a sum over images
    line: str = ""                         # the function of ops/cuda/region/lines.py that writes it; "": in no region
    changes: tuple[int, ...] = ()          # the arguments that it changes
    effect: bool = False                   # it is called for more than its result
    update: bool = False                   # it changes what other calls read: parameters
    counter: bool = False                  # it only adds to its first argument, and may do so late
    shares: bool = False                   # its result may share its first argument's memory, or a constant's
    captured: bool = False                 # in a CUDA graph too, it reads numbers anew that change from step to step
    indexed: bool = False                  # it may be given arrays of the host: an index


def known(name: str) -> Primitive:
    """The row of a primitive; a plain one if it has none, as for a user's own."""
    return PRIMITIVES.get(name, PLAIN)


OWN: dict[str, Callable[..., Any]] = {}    # primitives of users for CUDA arrays, see minidl.primitive
PLAIN = Primitive()
# All whose calls do more than give a result, or are part of a region; the others have no row
PRIMITIVES: dict[str, Primitive] = {
    # elementwise
    **dict.fromkeys(ACTIVATIONS, Primitive("i", "i", "activation")),
    **dict.fromkeys((f"{act}_grad_x" for act in ACTIVATIONS), Primitive("ii", "i", "activation_grad_x")),
    **dict.fromkeys(("dropout", "dropout_grad_x"), Primitive(captured=True)),
    # along axes
    **dict.fromkeys(("spread", "ones_like"), Primitive(shares=True)),
    "batch_norm": Primitive(changes=(3, 4), effect=True, update=True),
    "batch_norm_act": Primitive(changes=(4, 5), effect=True, update=True),
    # shapes and indices
    "reshape": Primitive("ic", "i", "reshape", shares=True),
    "transpose": Primitive(shares=True),
    "getitem": Primitive(shares=True, indexed=True),
    **dict.fromkeys(("getitem_grad_x", "take_along", "take_along_grad_x"), Primitive(indexed=True)),
    "setitem": Primitive(changes=(0,), effect=True, update=True, indexed=True),
    # products
    "linear": Primitive("ipp", "i", "linear"),
    "linear_act": Primitive("ippc", "i", "linear"),
    "linear_grad_x": Primitive("ip", "i", "linear_grad_x"),
    "linear_grad_act": Primitive("ipic", "i", "linear_grad_x"),
    "linear_grad_w": Primitive("ii", "s", "linear_grad_w"),
    "linear_grad_b": Primitive("i", "s", "linear_grad_b"),
    # convolution and pooling
    "conv2d": Primitive("ippc", "i", "conv2d"),
    "conv2d_act": Primitive("ippcc", "i", "conv2d"),
    "conv2d_act_pool": Primitive("ippccc", "ii", "conv2d"),
    "conv2d_act_pool_grad_wb": Primitive("iiiccc", "ss", "conv2d_act_pool_grad_wb"),
    "conv2d_grad_x": Primitive("ipc", "i", "conv2d_grad_x"),
    "conv2d_grad_w": Primitive("iic", "s", "conv2d_grad_w"),
    "conv2d_grad_b": Primitive("i", "s", "conv2d_grad_b"),
    "avg_pool2d": Primitive("ic", "i", "avg_pool2d"),
    "avg_pool2d_grad_x": Primitive("ic", "i", "avg_pool2d_grad_x"),
    "avg_pool2d_grad_act": Primitive("iicc", "i", "avg_pool2d_grad_x"),
    # loss
    "check_labels": Primitive(effect=True),
    "cross_entropy_with_grad": Primitive("ilcc", "si", "cross_entropy"),
    "update_metrics": Primitive(changes=(0,), effect=True, counter=True),
    # batches and random numbers, the update, and regions
    **dict.fromkeys(("uniform", "normal", "integers"), Primitive(captured=True)),
    "advance": Primitive(changes=(0,), effect=True),
    "sgd": Primitive(changes=(0, 2), effect=True, update=True, captured=True),
    **dict.fromkeys(("adam", "rmsprop"), Primitive(changes=(0, 2, 3, 4), effect=True, update=True, captured=True)),
    "ema": Primitive(changes=(0,), effect=True, update=True), "rank_mean": Primitive(effect=True, update=True),
}
