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

from . import data, init, nn, ops, optim
from .compiler import CompileError, compile
from .device import set_precision, set_workspace_limit
from .gradcheck import gradcheck
from .interchange import from_dlpack
from .mode import no_grad
from .rng import manual_seed
from .tensor import Tensor
from .version import __version__
from .weights import load, save

__all__ = [
    "CompileError", "Tensor", "__version__", "compile", "data", "from_dlpack", "gradcheck", "init", "load",
    "manual_seed", "nn", "no_grad", "ops", "optim", "save", "set_precision", "set_workspace_limit",
]

if TYPE_CHECKING:
    from . import onnx as onnx
    from . import zoo as zoo


def __getattr__(name: str) -> Any:
    """minidl.onnx and minidl.zoo, imported when they are named: a program that needs neither starts sooner."""
    if name not in ("onnx", "zoo"):
        raise AttributeError(f"minidl has no {name!r}; it has {', '.join(__all__)}, onnx and zoo")
    return importlib.import_module(f".{name}", __name__)
