"""minidl: a minimal deep-learning framework. A tensor with tape-based autograd.

The framework can be read in an afternoon, its compiler and its kernels in one more each (docs/reading.md).

>>> import minidl
>>> x = minidl.Tensor([[1.0, 2.0]], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad.tolist()
[[2.0, 4.0]]
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import data, display, distributed, habits, nn, ops, optim
from .core import device as device
from .core import tensor as tensor
from .core.derivatives import grad, gradgradcheck, hessian, hvp, jacobian
from .core.device import set_precision, set_workspace_limit
from .core.gradcheck import gradcheck
from .core.interchange import from_dlpack
from .core.mode import no_grad
from .core.rng import manual_seed
from .core.tensor import Tensor
from .core.version import __version__
from .nn import init
from .nn import weights as weights
from .nn.weights import load, save
from .ops import concatenate as cat
from .ops.arrays.arrange import *
from .ops.arrays.basic import *
from .ops.arrays.contraction import *
from .ops.arrays.functions import *
from .ops.arrays.select import *
from .ops.arrays.shapes import *
from .ops.arrays.statistics import *
from .ops.common.op import op
from .ops.create import (
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
from .ops.layers.activation import *

__all__ = [
    "CompileError", "Tensor", "__version__", "abs", "activation", "add", "arange", "argmax", "argmin", "argsort", "cat",
    "ceil", "check_conv", "clip", "clone", "compile", "concatenate", "cos", "cumsum", "data", "distributed", "div",
    "dropout", "einsum", "eq", "erf", "exp", "expand", "expm1", "eye", "flatten", "flip", "floor", "floor_divide",
    "from_dlpack", "from_numpy", "full", "full_like", "gather", "ge", "grad", "gradcheck", "gradgradcheck", "gt",
    "hessian", "hvp", "init", "jacobian", "kernel", "le", "linspace", "load", "log", "log1p", "log_softmax",
    "logsumexp", "lt", "manual_seed", "matmul", "max", "maximum", "mean", "min", "minimum", "mul", "ne", "neg", "nn",
    "no_grad", "norm", "ones", "ones_like", "op", "ops", "optim", "outer", "pad", "pow", "primitive", "prod", "rand",
    "rand_like", "randint", "randn", "randn_like", "randperm", "register_activation", "register_conv",
    "register_linear", "register_pool", "relu", "remainder", "reshape", "round", "rsqrt", "save", "set_precision",
    "set_workspace_limit", "sigmoid", "sign", "sin", "softmax", "split", "sqrt", "squeeze", "stack", "std", "sub",
    "sum", "tanh", "transpose", "tril", "triu", "unique", "unsqueeze", "var", "where", "zeros", "zeros_like",
]

if TYPE_CHECKING:
    from . import training as training
    from . import zoo as zoo
    from .compiler import CompileError as CompileError
    from .compiler import compile as compile
    from .lab import emulator as emulator
    from .lab import layouts as layouts
    from .lab.check import check_conv as check_conv
    from .lab.own import activation as activation
    from .lab.own import kernel as kernel
    from .lab.own import primitive as primitive
    from .lab.own import register_activation as register_activation
    from .lab.own import register_conv as register_conv
    from .lab.own import register_linear as register_linear
    from .lab.own import register_pool as register_pool
    from .tools import cli as cli
    from .tools import onnx as onnx
    from .tools import plot as plot
    from .tools.sweep import sweep as sweep


# What is imported when it is named, modules and what others hold: a program that needs none of these starts sooner
_LATE = {"cli": ".tools.cli", "compiler": ".compiler", "emulator": ".lab.emulator", "lab": ".lab",
         "layouts": ".lab.layouts", "onnx": ".tools.onnx", "plot": ".tools.plot", "training": ".training",
         "zoo": ".zoo"}
_WITHIN = {name: module for module, names in {
    ".compiler": ("CompileError", "compile"), ".lab.check": ("check_conv",),
    ".lab.own": ("activation", "kernel", "primitive", "register_activation", "register_conv", "register_linear",
                 "register_pool"), ".tools.sweep": ("sweep",)}.items()
           for name in names}


def __getattr__(name: str) -> Any:
    if name in _WITHIN:
        found = globals()[name] = getattr(importlib.import_module(_WITHIN[name], __name__), name)
        return found
    if name in _LATE:
        return importlib.import_module(_LATE[name], __name__)
    habits.missing("minidl", name)


def __dir__() -> list[str]:
    return sorted({*habits.public(sys.modules[__name__]), *_LATE, "device", "tensor", "weights"})


habits.attach()
display.attach()
