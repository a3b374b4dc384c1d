"""minidl: a minimal deep-learning framework. A tensor with tape-based autograd.

The framework can be read in an afternoon, its compiler and its kernels in one more each (docs/reading.md).

>>> import minidl
>>> x = minidl.Tensor([[1.0, 2.0]], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad.tolist()
[[2.0, 4.0]]
"""

from . import data, init, nn, onnx, ops, optim
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
    "manual_seed", "nn", "no_grad", "onnx", "ops", "optim", "save", "set_precision", "set_workspace_limit",
]
