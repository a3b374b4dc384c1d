"""Modules: Tensors and other Modules held as attributes, and a `forward` that uses them."""

from .containers import ModuleDict, ModuleList
from .layers import (
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    Sigmoid,
    Softmax,
    Tanh,
)
from .module import Module
from .parameter import Parameter
from .table import Summary, summary

__all__ = [
    "AvgPool2d", "Conv2d", "Dropout", "Flatten", "Linear", "MaxPool2d", "Module", "ModuleDict", "ModuleList",
    "Parameter", "ReLU", "Sequential", "Sigmoid", "Softmax", "Summary", "Tanh", "summary",
]
