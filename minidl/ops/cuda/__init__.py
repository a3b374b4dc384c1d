"""The primitives on CuPy arrays: the names and signatures of ops.cpu, by our own kernels.

Elementwise arithmetic, reductions, shapes and products of ops.shared are CuPy's own. Only `sgd`, `advance` and
`update_metrics` change an input.
"""

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
from .conv import (
    CONV_ALGORITHMS,
    conv2d,
    conv2d_act,
    conv2d_act_pool,
    conv2d_act_pool_grad_wb,
    conv2d_grad_b,
    conv2d_grad_w,
    conv2d_grad_x,
)
from .data import advance, gather, next_batch
from .indexing import getitem_grad_x
from .launch import ones_like
from .linear import linear, linear_act, linear_grad_act, linear_grad_b, linear_grad_w, linear_grad_x
from .loss import check_labels, cross_entropy, cross_entropy_grad_x, cross_entropy_with_grad, update_metrics
from .optim import sgd
from .pool import avg_pool2d, avg_pool2d_grad_act, avg_pool2d_grad_x, max_pool2d, max_pool2d_grad_x
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
    "getitem_grad_x",
    "linear",
    "linear_act",
    "linear_grad_act",
    "linear_grad_b",
    "linear_grad_w",
    "linear_grad_x",
    "log_softmax",
    "log_softmax_grad_x",
    "max_pool2d",
    "max_pool2d_grad_x",
    "next_batch",
    "ones_like",
    "region_step",
    "relu",
    "relu_grad_x",
    "sgd",
    "sigmoid",
    "sigmoid_grad_x",
    "softmax",
    "softmax_grad_x",
    "tanh",
    "tanh_grad_x",
    "update_metrics",
]
