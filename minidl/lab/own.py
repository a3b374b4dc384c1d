"""Primitives, activations and CUDA kernels of your own, in files of your own; docs/own-op.md leads through them.

`minidl.op` makes an op of primitives. `primitive` adds one to `k`, `activation` adds an elementwise function that the
compiler fuses as it does tanh, and `kernel` compiles a function of a .cu file.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from ..compiler.passes import fusion, regions
from ..core.device import Array, DType
from ..core.tensor import Tensor
from ..ops import cpu
from ..ops.common.op import op
from ..ops.common.primitives import ACTIVATIONS, OWN, PRIMITIVES, Activation, Primitive
from ..ops.cpu.layers import activation as cpu_activation
from ..ops.cpu.parallel import elementwise
from . import source

F = TypeVar("F", bound=Callable[..., Any])
Elementwise = Callable[[Array], Array]

_makers: dict[str, str] = {}               # a primitive's name: the module that registered it


def _take(what: str, name: str, module: str) -> None:
    """Refuse a name that another module has."""
    if not name.isidentifier() or name.startswith("_"):
        raise ValueError(f"{what}: {name!r} cannot be written as k.{name}; give the function a name of letters")
    if (name in PRIMITIVES or hasattr(cpu, name)) and _makers.get(name) != module:
        raise ValueError(f"{what}: {name!r} is {'a primitive of ' + _makers[name] if name in _makers else 'taken'} "
                         "already; give yours another name")
    _makers[name] = module


def _cuda() -> ModuleType | None:
    """The CUDA primitives, if they were imported already."""
    return sys.modules.get("minidl.ops.cuda")


def primitive(function: F | None = None, *, cuda: Callable[..., Any] | None = None, changes: tuple[int, ...] = (),
              shares: bool = False) -> Any:
    """Make a function of NumPy arrays a primitive: op bodies call it as `k.<its name>`, in compiled steps too.

    It takes arrays and plain values, and returns an array, or a tuple of them; it decides by shapes and dtypes alone.
    cuda: a function of the same parameters that does so on CuPy arrays; without it the primitive is refused there. It
    must not read values on the host, since a compiled step is captured as a graph.
    changes: the numbers of the arguments that it writes into. shares: whether its result may share the memory of its
    first argument, as a view does.

    Raises ValueError for a name that is taken and for a cuda of other parameters.

        @minidl.primitive
        def doubled(x):
            return x + x

        @minidl.op
        def double(k, x: Tensor):
            return k.doubled(x), lambda gy, need: (k.doubled(gy),)
    """
    if function is None:
        return functools.partial(primitive, cuda=cuda, changes=changes, shares=shares)
    name = function.__name__
    if cuda is not None and not isinstance(function, np.ufunc):
        mine, theirs = (list(inspect.signature(each).parameters) for each in (function, cuda))
        if mine != theirs:
            raise ValueError(f"primitive: {name} takes ({', '.join(mine)}) but its cuda takes ({', '.join(theirs)}); "
                             "give both the same parameters")
    _take("primitive", name, getattr(function, "__module__", None) or "numpy")
    setattr(cpu, name, function)
    OWN[name] = cuda or _only_on_the_cpu(name)
    PRIMITIVES[name] = Primitive(changes=changes, effect=bool(changes), update=bool(changes), shares=shares)
    if there := _cuda():
        setattr(there, name, OWN[name])
    return function


def _only_on_the_cpu(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise TypeError(f"{name}: is a primitive of NumPy arrays alone; register it with minidl.primitive(cuda=...)")
    return refuse


def activation(name: str, value: Elementwise, grad: Callable[[Array, Array], Array], cuda_value: str,
               cuda_grad: str) -> Callable[[Tensor], Tensor]:
    """An elementwise op y of x whose gradient is given by y, on the CPU and on CUDA.

    value: y of x, and grad: gx of (gy, y), in NumPy. cuda_value: y as an expression of C++ in `x`, and cuda_grad: gx in
    `gy` and `y`, all of type REAL. In a compiled step it is fused as minidl's activations are: into
    convolutions, linear layers, poolings, and a region's kernel. Raises ValueError for a name that is taken.

        squareplus = minidl.activation("squareplus", lambda x: (x + np.sqrt(x * x + 4)) / 2,
                                       lambda gy, y: gy * y * y / (y * y + 1),
                                       "(x + sqrt(x * x + (REAL)4)) / (REAL)2", "gy * y * y / (y * y + (REAL)1)")
    """
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    for each in (name, f"{name}_grad_x"):
        _take("activation", each, module)
    ACTIVATIONS[name] = row = Activation(lambda y, x: np.copyto(y, value(x)),
                                         lambda gx, gy, y: np.copyto(gx, grad(gy, y)), cuda_value, cuda_grad)
    PRIMITIVES[name], PRIMITIVES[f"{name}_grad_x"] = PRIMITIVES["tanh"], PRIMITIVES["tanh_grad_x"]
    _enter(cpu, cpu_activation, name, cpu._quiet(lambda x: elementwise(row.value, x)),
           cpu._quiet(lambda gy, y: elementwise(row.grad, gy, y)))
    if there := _cuda():
        room = sys.modules["minidl.ops.cuda.layers.activation.elementwise"]
        room.launch.GENERATED["include/activations.cuh"] += room.STRUCT.format(name, cuda_value, "y", cuda_grad)
        _enter(there, room, name, functools.partial(room.value, name), functools.partial(room.gradient, name))
    fusion.RULES = (*fusion.RULES, *(_with_name(name, rule) for rule in fusion.RULES if "tanh" in str(rule)))
    regions.CHOICES = (regions.CHOICES[0] | {name, f"{name}_grad_x"}, *regions.CHOICES[1:])

    def body(k: ModuleType, x: Tensor) -> Any:
        y = getattr(k, name)(x)
        return y, lambda gy, need: (getattr(k, f"{name}_grad_x")(gy, y),)

    body.__name__ = body.__qualname__ = name
    body.__module__, body.__doc__ = module, f"y = {cuda_value}, elementwise."
    return op(floating=True)(body)


def _enter(room: ModuleType, activations: ModuleType, name: str, value: Callable[..., Any],
           grad: Callable[..., Any]) -> None:
    """Give a backend an activation's two primitives."""
    activations.VALUES[name], activations.GRADIENTS[name] = value, grad
    setattr(room, name, value)
    setattr(room, f"{name}_grad_x", grad)


def _with_name(name: str, rule: fusion.Rule) -> fusion.Rule:
    """A rule for tanh as one for another activation."""
    def line(each: fusion.Line) -> fusion.Line:
        arguments = tuple(name if a == "tanh" and not isinstance(a, fusion.Name) else a for a in each.arguments)
        return fusion.Line(each.results, each.primitive.replace("tanh", name), arguments)
    return fusion.Rule(tuple(map(line, rule.pattern)), line(rule.fused))


@functools.cache
def kernel(file: str | Path, name: str, dtype: DType = None, **constants: object) -> Any:
    """The CUDA kernel `name` of a .cu file of your own, to be launched as kernel(...)(grid, block, *arguments).

    dtype: float32 or float64, the type that REAL means. constants: more that become -D. The file may include others of
    its folder, and what minidl/ops/cuda/include holds, as `#include "include/common.cuh"`; host code is left out.
    Arguments are checked against the parameter list: CuPy arrays of the dtypes that it names, and numbers.

    Raises ValueError for a kernel that the file does not have, RuntimeError with the compiler's message.
    """
    from ..ops.cuda import launch

    if dtype is not None and np.dtype(dtype) not in launch.C_NAME:
        raise ValueError(f"kernel: dtype {np.dtype(dtype)} is not float32 or float64, what REAL may be")
    real = () if dtype is None else (launch.real(np.dtype(dtype)),)
    made = launch.generated(Path(file).name, source.read(Path(file)).text, name, *real, *constants.items())
    made.function  # noqa: B018  # waits, so that what the compiler says is said here
    return made
