"""Kernels of your own as algorithms of ops: `register_conv` and its like; docs/your-own-kernel.md leads through one."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.device import Array
from ..ops import cpu
from ..ops.common.conv.own import KINDS, REGISTERED, Direction, Launcher, OwnConv, Refuses, by_users
from ..ops.common.sources import FOLDER
from ..ops.cpu import conv as on_the_cpu
from . import source
from .own import primitive


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
    on_the_cpu.ALGORITHMS[name] = _left_to_auto(name)
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
            _takes(f"{direction} of {name!r}", launcher, own.takes(direction))
        if refuses is not None:
            _takes(f"refuses of {name!r}", refuses, ("direction", "g", "dtype"))
    except ValueError as error:
        raise ValueError(f"{caller}: {error}") from None
    known[name] = own
    return own


def _make_primitives(own: OwnConv) -> None:
    """One for each direction; op bodies call it if the algorithm is chosen."""
    @functools.cache
    def say() -> None:
        warnings.warn(f"{own.kind}: algorithm {own.name!r} has no kernel for the cpu; 'auto' is used there",
                      stacklevel=2)

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
    return frozenset([*on_the_cpu.CONV_ALGORITHMS, *(ast.literal_eval(key) for key in table.keys if key)])


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


def _takes(what: str, function: Callable[..., Any], parameters: tuple[str, ...]) -> None:
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
    @functools.cache
    def say() -> None:
        warnings.warn(f"conv2d: algorithm {name!r} has no kernel for the cpu; 'auto' is used there", stacklevel=2)

    def left(auto: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: object) -> Any:
            say()
            return auto(*arguments)
        return run
    y, dx, dw = map(left, on_the_cpu.ALGORITHMS["auto"])
    return y, dx, dw
