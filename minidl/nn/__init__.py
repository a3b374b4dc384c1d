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
    Tanh,
)
from .lecun1998 import RBF, ScaledTanh, Subsample2d, TableConv2d
from .lookup import Embedding
from .losses import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, MSELoss, NLLLoss
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, LocalResponseNorm
from .parameter import Parameter
from .regularization import Dropout
from .resample import AdaptiveAvgPool2d, Conv1d, ConvTranspose2d, PixelShuffle, Upsample
from .table import Summary, summary
from .units import ELU, GELU, Hardsigmoid, LeakyReLU, SiLU, Softmax, Softplus

__all__ = [
    "ELU", "GELU", "RBF", "AdaptiveAvgPool2d", "AvgPool2d", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d",
    "Conv1d", "Conv2d", "ConvTranspose2d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GroupNorm",
    "Hardsigmoid", "HuberLoss", "Identity", "L1Loss", "LayerNorm", "LeakyReLU", "Linear", "LocalResponseNorm",
    "MSELoss", "MaxPool2d", "Module", "ModuleDict", "ModuleList", "NLLLoss", "Parameter", "PixelShuffle", "ReLU",
    "ScaledTanh", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Subsample2d", "Summary", "TableConv2d",
    "Tanh", "Upsample", "summary",
]
