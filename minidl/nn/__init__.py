"""Modules: Tensors and other Modules held as attributes, and a `forward` that uses them."""

from .containers import ModuleDict, ModuleList
from .layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    Sigmoid,
    Softmax,
    Tanh,
)
from .lecun1998 import RBF, ScaledTanh, Subsample2d, TableConv2d
from .module import Module
from .parameter import Parameter
from .regularization import Dropout, LocalResponseNorm
from .table import Summary, summary
from .units import ELU, GELU, Hardsigmoid, Identity, LeakyReLU, SiLU, Softplus

__all__ = [
    "ELU",
    "GELU",
    "RBF",
    "AvgPool2d",
    "Conv2d",
    "Dropout",
    "Flatten",
    "Hardsigmoid",
    "Identity",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "ReLU",
    "ScaledTanh",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Subsample2d",
    "Summary",
    "TableConv2d",
    "Tanh",
    "summary",
]
