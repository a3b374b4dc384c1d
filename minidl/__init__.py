"""minidl: a minimal deep-learning framework. A tensor with tape-based autograd.

The framework can be read in an afternoon, its compiler and its kernels in one more each (docs/reading.md).

>>> import minidl
>>> x = minidl.Tensor([[1.0, 2.0]], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad.tolist()
[[2.0, 4.0]]
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import data, distributed, init, nn, ops, optim
from .check_conv import check_conv
from .compiler import CompileError, compile
from .device import set_precision, set_workspace_limit
from .frontend import display, habits
from .frontend.create import (
    arange,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    zeros,
    zeros_like,
)
from .frontend.interchange import from_dlpack
from .frontend.own import activation, kernel, primitive
from .frontend.own_conv import register_conv
from .gradcheck import gradcheck
from .mode import no_grad
from .ops.common.op import op
from .rng import manual_seed
from .tensor import Tensor
from .version import __version__
from .weights import load, save

__all__ = [
    "CompileError", "Tensor", "__version__", "activation", "arange", "check_conv", "compile", "data", "distributed",
    "eye", "from_dlpack", "from_numpy", "full", "full_like", "gradcheck", "init", "kernel", "linspace", "load",
    "manual_seed", "nn", "no_grad", "ones", "ones_like", "op", "ops", "optim", "primitive", "rand", "rand_like",
    "randint", "randn", "randn_like", "randperm", "register_conv", "save", "set_precision", "set_workspace_limit",
    "zeros", "zeros_like",
]

if TYPE_CHECKING:
    from . import onnx as onnx
    from . import plot as plot
    from . import training as training
    from . import zoo as zoo


def __getattr__(name: str) -> Any:
    """What is imported when it is named: a program that needs none of these starts sooner."""
    if name in ("onnx", "plot", "training", "zoo"):
        return importlib.import_module(f".{name}", __name__)
    habits.missing("minidl", name)


habits.attach()
display.attach()
