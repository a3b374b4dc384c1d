"""All operations on Tensors. Each is one function: its forward and, beside it, its gradient."""

from . import operators  # noqa: F401  attaches Tensor's operators and methods
from ._backend import CONV_ALGORITHMS
from ._op import OPS
from .activation import dropout, log_softmax, relu, sigmoid, softmax, tanh
from .basic import (
    add,
    argmax,
    concatenate,
    div,
    eq,
    exp,
    flatten,
    ge,
    getitem,
    gt,
    le,
    log,
    lt,
    matmul,
    max,
    mean,
    mul,
    ne,
    neg,
    pow,
    reshape,
    sqrt,
    sub,
    sum,
    transpose,
)
from .conv import conv2d
from .linear import linear
from .loss import cross_entropy, mse_loss
from .pool import avg_pool2d, max_pool2d

__all__ = [
    "CONV_ALGORITHMS", "OPS", "add", "argmax", "avg_pool2d", "concatenate", "conv2d", "cross_entropy", "div",
    "dropout", "eq", "exp", "flatten", "ge", "getitem", "gt", "le", "linear", "log", "log_softmax", "lt", "matmul",
    "max", "max_pool2d", "mean", "mse_loss", "mul", "ne", "neg", "pow", "relu", "reshape", "sigmoid", "softmax",
    "sqrt", "sub", "sum", "tanh", "transpose",
]
