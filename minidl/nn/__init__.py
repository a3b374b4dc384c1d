"""Modules: Tensors and other Modules held as attributes, and a `forward` that uses them."""

from .containers import Identity, ModuleDict, ModuleList
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
from .norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, LocalResponseNorm
from .parameter import Parameter
from .pooling import AdaptiveAvgPool2d
from .regularization import Dropout
from .table import Summary, summary

__all__ = [
    "RBF", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "Conv2d", "Dropout", "Flatten", "GroupNorm",
    "Identity", "LayerNorm", "Linear", "LocalResponseNorm", "MaxPool2d", "Module", "ModuleDict", "ModuleList",
    "Parameter", "ReLU", "ScaledTanh", "Sequential", "Sigmoid", "Softmax", "Subsample2d", "Summary", "TableConv2d",
    "Tanh", "summary",
]
