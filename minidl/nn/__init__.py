"""Modules: Tensors and other Modules held as attributes, and a `forward` that uses them."""

from .. import ops as functional  # noqa: F401  by PyTorch's name
from . import init as init
from . import utils as utils
from .containers import Identity, ModuleDict, ModuleList
from .layers.attention import MultiheadAttention
from .layers.basic import AvgPool2d, Conv2d, Embedding, Flatten, Linear, MaxPool2d, ReLU, Sequential, Sigmoid, Tanh
from .layers.lecun1998 import RBF, LocallyConnected2d, ScaledTanh, Subsample2d, TableConv2d
from .layers.norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, LocalResponseNorm
from .layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .layers.resample import AdaptiveAvgPool2d, Conv1d, Conv3d, ConvTranspose2d, PixelShuffle, Upsample
from .layers.units import ELU, GELU, Dropout, Dropout2d, Hardsigmoid, LeakyReLU, SiLU, Softmax, Softplus
from .losses import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, MSELoss, NLLLoss
from .module import Module, Parameter
from .table import Summary, summary

__all__ = [
    "ELU", "GELU", "GRU", "LSTM", "RBF", "RNN", "AdaptiveAvgPool2d", "AvgPool2d", "BCEWithLogitsLoss", "BatchNorm1d",
    "BatchNorm2d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "CrossEntropyLoss", "Dropout", "Dropout2d",
    "Embedding", "Flatten", "GRUCell", "GroupNorm", "Hardsigmoid", "HuberLoss", "Identity", "L1Loss", "LSTMCell",
    "LayerNorm", "LeakyReLU", "Linear", "LocalResponseNorm", "LocallyConnected2d", "MSELoss", "MaxPool2d", "Module",
    "ModuleDict", "ModuleList", "MultiheadAttention", "NLLLoss", "Parameter", "PixelShuffle", "RNNCell", "ReLU",
    "ScaledTanh", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Subsample2d", "Summary", "TableConv2d",
    "Tanh", "Upsample", "init", "summary",
]
