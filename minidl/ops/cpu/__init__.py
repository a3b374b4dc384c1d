"""The primitives on NumPy arrays: pure functions of arrays and geometries.

Only `sgd`, `setitem`, `advance` and `update_metrics` change what they are given.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..shared import *  # noqa: F403  every function there is a primitive
from .activation import (
    dropout,
    dropout_grad_x,
    log_softmax,
    log_softmax_grad_x,
    relu,
    relu_grad_x,
    sigmoid,
    sigmoid_grad_x,
    softmax,
    softmax_grad_x,
    tanh,
    tanh_grad_x,
)
from .conv import ALGORITHMS as CONV_ALGORITHMS
from .conv import (
    conv2d,
    conv2d_act,
    conv2d_act_pool,
    conv2d_act_pool_grad_wb,
    conv2d_grad_b,
    conv2d_grad_w,
    conv2d_grad_x,
)
from .data import advance, gather, next_batch
from .linear import (
    linear,
    linear_act,
    linear_grad_act,
    linear_grad_b,
    linear_grad_w,
    linear_grad_x,
    matmul,
    matmul_grad_x,
    matmul_grad_y,
)
from .loss import check_labels, cross_entropy, cross_entropy_grad_x, cross_entropy_with_grad, update_metrics
from .optim import sgd
from .pool import avg_pool2d, avg_pool2d_grad_act, avg_pool2d_grad_x, max_pool2d, max_pool2d_grad_x
from .reduce import mean, sum, sum_to
from .region import can_region_step, region_step

__all__ = [
    "CONV_ALGORITHMS",
    "advance",
    "avg_pool2d",
    "avg_pool2d_grad_act",
    "avg_pool2d_grad_x",
    "can_region_step",
    "check_labels",
    "conv2d",
    "conv2d_act",
    "conv2d_act_pool",
    "conv2d_act_pool_grad_wb",
    "conv2d_grad_b",
    "conv2d_grad_w",
    "conv2d_grad_x",
    "cross_entropy",
    "cross_entropy_grad_x",
    "cross_entropy_with_grad",
    "dropout",
    "dropout_grad_x",
    "gather",
    "linear",
    "linear_act",
    "linear_grad_act",
    "linear_grad_b",
    "linear_grad_w",
    "linear_grad_x",
    "log_softmax",
    "log_softmax_grad_x",
    "matmul",
    "matmul_grad_x",
    "matmul_grad_y",
    "max_pool2d",
    "max_pool2d_grad_x",
    "mean",
    "next_batch",
    "region_step",
    "relu",
    "relu_grad_x",
    "sgd",
    "sigmoid",
    "sigmoid_grad_x",
    "softmax",
    "softmax_grad_x",
    "sum",
    "sum_to",
    "tanh",
    "tanh_grad_x",
    "update_metrics",
]


def _quiet(primitive: Callable[..., Any]) -> Callable[..., Any]:
    """A result too small for a number is 0, or nearly: that is right, and no error whatever np.seterr says.

    What NumPy does by itself is looked at and not set: to set it while a callback of the garbage collector does too has
    CPython (3.11 at least) crash in its context variables.
    """
    @functools.wraps(primitive)
    def call(*arguments: Any, **options: Any) -> Any:
        if np.geterr()["under"] == "ignore":
            return primitive(*arguments, **options)
        with np.errstate(under="ignore"):
            return primitive(*arguments, **options)
    return call


for _name in {*__all__, "div", "exp", "max_grad_x", "mul", "pow", "pow_grad_p", "pow_grad_x"} - {"CONV_ALGORITHMS"}:
    globals()[_name] = _quiet(globals()[_name])
