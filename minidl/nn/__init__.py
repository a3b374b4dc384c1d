"""Modules: Tensors and other Modules held as attributes, and a `forward` that uses them."""

from .. import ops as functional  # noqa: F401  by PyTorch's name
from . import init as init
from . import utils as utils
from .containers import *
from .layers.attention import *
from .layers.basic import *
from .layers.lecun1998 import *
from .layers.norm import *
from .layers.recurrent import *
from .layers.resample import *
from .layers.units import *
from .losses import *
from .module import Module as Module
from .module import Parameter as Parameter
from .table import Summary as Summary
from .table import summary as summary

__all__ = sorted({"init", "summary", *(name for name in globals() if name[0].isupper())})
