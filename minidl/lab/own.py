"""Primitives, activations and CUDA kernels of your own, in files of your own; docs/own-op.md leads through them.

`minidl.op` makes an op of primitives. `primitive` adds one to `k`, `activation` adds an elementwise function that the
compiler fuses as it does tanh, and `kernel` compiles a function of a .cu file. `register_conv` and its like make
kernels algorithms of minidl's ops; docs/your-own-kernel.md leads through one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from ..compiler.passes import fusion, regions
from ..core.device import Array, DType
from ..core.tensor import Tensor
from ..ops import cpu
from ..ops.common.conv.own import KINDS, REGISTERED, Direction, Launcher, OwnConv, Refuses, by_users
from ..ops.common.op import op
from ..ops.common.primitives import ACTIVATIONS, OWN, PRIMITIVES, Activation, Primitive
from ..ops.common.sources import FOLDER
from ..ops.cpu import conv as cpu_conv
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
    if hasattr(cpu, name) and _makers.get(name) != module:
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


# ---------------------------------------------------------------- algorithms of ops
def register_conv(name: str, source: str | Path, *, y: Launcher | None = None, dx: Launcher | None = None,
                  dw: Launcher | None = None, refuses: Refuses | None = None, bias: bool = True) -> None:
    """Make CUDA kernels of your own an algorithm of convolutions: `ops.conv2d(x, w, algorithm=name)`.

    source: a .cu file, or its text; host code in it is left out. The three launchers start its kernels; `out` has its
    shape and is not set:

        y(launch, x, w, b, out, g)         x (n,c,h,w), w (m,c,kh,kw), b (m,) or None -> out (n,m,oh,ow)
        dx(launch, gy, w, out, g)          gy (n,m,oh,ow), w -> out (n,c,h,w)
        dw(launch, gy, x, out, g)          gy, x -> out (m,c,kh,kw)

    by `launch(kernel, grid, block, *arguments)`, as often as needed; grid and block are ints or up to three of them,
    shared= is bytes of dynamic shared memory, and other keywords become -D. `launch.empty(shape)` is an array for
    results in between, and `launch.copy_to_symbol("F", w)` fills a `__constant__` F of the file for the launches that
    follow. g has the sizes: n c h w m kh kw oh ow sh sw top bottom left right. A kernel takes it as a `Geometry`, of
    `#include "include/common.cuh"`, or takes what it needs of it as ints. A launcher decides by sizes alone, since a
    compiled step is captured as a graph. Kernels of REAL are for float32 and float64, others for float32.

    bias: False if y takes no b, y(launch, x, w, out, g): minidl adds it behind the kernel. refuses(direction, g, dtype)
    says why a case cannot be computed, or None. Such a case is left to "auto", and so are directions without a launcher
    and everything on the CPU; this is said once. `minidl.check_conv` compares the kernels with the formula, on the CPU
    or on a GPU. A program that registers a name again replaces what it has registered.

    Raises ValueError for a name that is taken or not a word, for a source that is neither a file nor a text or whose
    include is missing, without a launcher, and for a launcher of other parameters.

        minidl.register_conv("mine", "mine.cu", y=lambda launch, x, w, b, y, g: launch(
            "mine_y", -(-y.size // 256), 256, x, w, b, y, g))
    """
    own = _own("conv2d", name, source, {"y": y, "dx": dx, "dw": dw}, refuses, bias)
    cpu_conv.ALGORITHMS[name] = _left_to_auto(name)
    if there := sys.modules.get("minidl.ops.cuda.conv"):
        there.ALGORITHMS[name] = there.Algorithm(*there.own.row(own))
        there._asked.cache_clear()
        there._warn.cache_clear()
        there.own.left_to_auto.cache_clear()


def register_linear(name: str, source: str | Path, *, y: Launcher | None = None, dx: Launcher | None = None,
                    dw: Launcher | None = None, refuses: Refuses | None = None, bias: bool = True) -> None:
    """Make CUDA kernels of your own an algorithm of fully connected layers: `nn.Linear(..., algorithm=name)`.

    As `register_conv`, without g: y(launch, x, w, b, out), x (n,in), w (outputs,in), b (outputs,) or None; dx(launch,
    gy, w, out); dw(launch, gy, x, out). refuses(direction, None, dtype).
    """
    _make_primitives(_own("linear", name, source, {"y": y, "dx": dx, "dw": dw}, refuses, bias))


def register_pool(name: str, source: str | Path, *, of: str, y: Launcher | None = None, dx: Launcher | None = None,
                  refuses: Refuses | None = None) -> None:
    """Make CUDA kernels of your own an algorithm of poolings: `nn.MaxPool2d(2, algorithm=name)`.

    As `register_conv`. of: "max" or "avg". y(launch, x, out, g), x (n,c,h,w) -> out (n,c,oh,ow); dx(launch, gy, x, y,
    out, g) of max, dx(launch, gy, out, g) of avg. A kernel takes g as a `Window` of common.cuh.
    """
    if of not in ("max", "avg"):
        raise ValueError(f"register_pool: of is {of!r} but must be 'max' or 'avg'")
    _make_primitives(_own(f"{of}_pool2d", name, source, {"y": y, "dx": dx}, refuses))


def register_activation(name: str, source: str | Path, *, of: str, y: Launcher | None = None,
                        dx: Launcher | None = None, refuses: Refuses | None = None) -> None:
    """Make CUDA kernels of your own an algorithm of an activation: `ops.relu(x, algorithm=name)`, and its layer.

    As `register_conv`, without g. of: one of minidl's activations, "relu", "sigmoid", "tanh". y(launch, x, out);
    dx(launch, gy, y, out). A new function is `minidl.activation`.
    """
    if of not in ("relu", "sigmoid", "tanh"):
        raise ValueError(f"register_activation: of is {of!r} but must be 'relu', 'sigmoid' or 'tanh'; a function that "
                         "minidl does not have is minidl.activation")
    _make_primitives(_own(of, name, source, {"y": y, "dx": dx}, refuses))


def _own(kind: str, name: str, source: str | Path, launchers: dict[str, Launcher | None], refuses: Refuses | None,
         bias: bool = True) -> OwnConv:
    """Register it, if all fits. Messages name the function that a user's program called."""
    caller, module = sys._getframe(1).f_code.co_name, sys._getframe(2).f_globals.get("__name__", "__main__")
    known = REGISTERED[kind]
    try:
        if not name.isidentifier():
            raise ValueError(f"the name {name!r} is not a word; give one of letters, digits and _")
        if name == "auto" or (kind == "conv2d" and name in taken()) or (name in known and known[name].module != module):
            by = f"by {known[name].module}" if name in known else "by one of minidl's own"
            raise ValueError(f"the name {name!r} is taken {by}; give yours another name")
        file, text, read = _source(name, source)
        given = {direction: each for direction, each in launchers.items() if each is not None}
        own = OwnConv(name, file, read.text, "REAL" in text, given, refuses, module, kind, bias)
        if not read.kernels:
            raise ValueError(f"{file} has no kernel, __global__ void name(...); correct the path")
        if not given:
            raise ValueError(f"{name!r} has no launcher; give {', '.join(f'{each}=' for each in launchers)}")
        for direction, launcher in given.items():
            _require_parameters(f"{direction} of {name!r}", launcher, own.takes(direction))
        if refuses is not None:
            _require_parameters(f"refuses of {name!r}", refuses, ("direction", "g", "dtype"))
    except ValueError as error:
        raise ValueError(f"{caller}: {error}") from None
    known[name] = own
    return own


def _make_primitives(own: OwnConv) -> None:
    """One for each direction; op bodies call it if the algorithm is chosen."""
    say = _said_once(own.kind, own.name)

    def make(direction: str, row: Direction) -> None:
        def on_cpu(*arguments: Array) -> Any:
            say()
            return row.auto(cpu, *arguments)

        def on_cuda(*arguments: Array) -> Any:
            from ..ops import cuda
            from ..ops.cuda.conv import own as launching

            if launching.able(own, direction, arguments):
                return launching.run(own, direction, *arguments)
            return row.auto(cuda, *arguments)

        on_cpu.__name__, on_cpu.__module__ = by_users(own.kind, own.name, direction), own.module
        primitive(on_cpu, cuda=on_cuda)
    for direction, row in KINDS[own.kind].items():
        make(direction, row)


@functools.cache
def taken() -> frozenset[str]:
    """The names of the backends' algorithms. CUDA's are read in the text of its table: CuPy need not be installed."""
    table = next(node.value for node in ast.parse((FOLDER / "conv/__init__.py").read_text(encoding="utf-8")).body
                 if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ALGORITHMS")
    assert isinstance(table, ast.Dict)
    return frozenset([*cpu_conv.CONV_ALGORITHMS, *(ast.literal_eval(key) for key in table.keys if key)])


def _source(name: str, given: str | Path) -> tuple[str, str, source.Source]:
    """The name and the text of a .cu file, and its kernels."""
    if "__global__" in str(given):
        file, text = f"{name}.cu", str(given).removeprefix("\ufeff")
        read = source.written(file, text)
    elif Path(given).is_file():
        read = source.read(Path(given))
        file, text = Path(given).name, source.text_in(Path(given))
    else:
        raise ValueError(f"the source of {name!r}, {str(given)!r}, is not a file, and not the text of one, which has a "
                         "__global__ function; correct the path")
    return file, text, read


def _require_parameters(what: str, function: Callable[..., Any], parameters: tuple[str, ...]) -> None:
    """Refuse a function that cannot be called with these parameters."""
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        given = [*inspect.signature(function).parameters]
        hint = "; for one without b register it with bias=False" * ([*parameters] == [*given[:3], "b", *given[3:]])
        raise ValueError(f"{what} takes ({', '.join(given)}) but is called with ({', '.join(parameters)}); give it "
                         f"these parameters{hint}") from None


def _left_to_auto(name: str) -> tuple[Callable[..., Any], ...]:
    """y, dx and dw on the CPU."""
    say = _said_once("conv2d", name)

    def left(auto: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: object) -> Any:
            say()
            return auto(*arguments)
        return run
    y, dx, dw = map(left, cpu_conv.ALGORITHMS["auto"])
    return y, dx, dw


def _said_once(kind: str, name: str) -> Callable[[], None]:
    """A function that warns, when it is first called, of an algorithm that the CPU does not have."""
    @functools.cache
    def say() -> None:
        warnings.warn(f"{kind}: algorithm {name!r} has no kernel for the cpu; 'auto' is used there", stacklevel=2)
    return say
