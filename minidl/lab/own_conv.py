"""Convolution algorithms of your own: `register_conv`; docs/your-own-kernel.md leads through one."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..ops.common.conv.own import OWN, TAKES, Launcher, OwnConv, Refuses
from ..ops.common.sources import FOLDER, pasted
from ..ops.cpu import conv as on_the_cpu


def register_conv(name: str, source: str | Path, *, y: Launcher | None = None, dx: Launcher | None = None,
                  dw: Launcher | None = None, refuses: Refuses | None = None) -> None:
    """Make CUDA kernels of your own an algorithm of convolutions: `ops.conv2d(x, w, algorithm=name)`.

    source: a .cu file, or its text. The three launchers start its kernels; `out` has its shape and is not set:

        y(launch, x, w, b, out, g)         x (n,c,h,w), w (m,c,kh,kw), b (m,) or None -> out (n,m,oh,ow)
        dx(launch, gy, w, out, g)          gy (n,m,oh,ow), w -> out (n,c,h,w)
        dw(launch, gy, x, out, g)          gy, x -> out (m,c,kh,kw)

    by `launch(kernel, grid, block, *arguments)`, as often as needed; grid and block are ints or up to three of them,
    shared= is bytes of dynamic shared memory, and other keywords become -D. `launch.empty(shape)` is an array for
    results in between. g has the sizes: n c h w m kh kw oh ow sh sw top bottom left right. A kernel takes it as a
    `Geometry`, of `#include "include/common.cuh"`. A launcher decides by sizes alone, since a compiled step is captured
    as a graph. Kernels of REAL are for float32 and float64, others for float32.

    refuses(direction, g, dtype) says why a case cannot be computed, or None. Directions without a launcher are left to
    "auto"; so are all on the CPU, which is said once. `minidl.check_conv` compares the kernels with the formula, on
    the CPU or on a GPU. A program that registers a name again replaces what it has registered.

    Raises ValueError for a name that is taken or not a word, a source that is neither or has no extern "C", no
    launcher, and one of other parameters.

        minidl.register_conv("mine", "mine.cu", y=lambda launch, x, w, b, y, g: launch(
            "mine_y", -(-y.size // 256), 256, x, w, b, y, g))
    """
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    if not name.isidentifier():
        raise ValueError(f"register_conv: the name {name!r} is not a word; give one of letters, digits and _")
    if name in taken() or (name in OWN and OWN[name].module != module):
        by = f"by {OWN[name].module}" if name in OWN else "by one of minidl's own"
        raise ValueError(f"register_conv: the name {name!r} is taken {by}; give yours another name")
    file, text = _source(name, source)
    if 'extern "C"' not in text:
        raise ValueError(f"register_conv: {file} has no extern \"C\", without which CUDA changes a kernel's name; "
                         "write extern \"C\" __global__ void ...")
    given = {direction: each for direction, each in (("y", y), ("dx", dx), ("dw", dw)) if each is not None}
    if not given:
        raise ValueError(f"register_conv: {name!r} has no launcher; give y=, dx= or dw=")
    for direction, launcher in given.items():
        _takes(f"{direction} of {name!r}", launcher, TAKES[direction])
    if refuses is not None:
        _takes(f"refuses of {name!r}", refuses, ("direction", "g", "dtype"))
    OWN[name] = own = OwnConv(name, file, _pasted(file, text), "REAL" in text, given, refuses, module)
    on_the_cpu.ALGORITHMS[name] = _left_to_auto(name)
    if there := sys.modules.get("minidl.ops.cuda.conv"):
        there.ALGORITHMS[name] = there.Algorithm(*there.own.row(own))
        there._asked.cache_clear()
        there._warn.cache_clear()


@functools.cache
def taken() -> frozenset[str]:
    """The names of the backends' algorithms. CUDA's are read in the text of its table: CuPy need not be installed."""
    table = next(node.value for node in ast.parse((FOLDER / "conv/__init__.py").read_text(encoding="utf-8")).body
                 if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ALGORITHMS")
    assert isinstance(table, ast.Dict)
    return frozenset([*on_the_cpu.CONV_ALGORITHMS, *(ast.literal_eval(key) for key in table.keys if key)])


def _source(name: str, source: str | Path) -> tuple[str, str]:
    """The name and the text of a .cu file."""
    if "__global__" in str(source):
        return f"{name}.cu", str(source)
    if not Path(source).is_file():
        raise ValueError(f"register_conv: the source of {name!r}, {str(source)!r}, is not a file, and not the text of "
                         "one, which has a __global__ function; correct the path")
    return Path(source).name, Path(source).read_text(encoding="utf-8")


def _pasted(file: str, text: str) -> str:
    """A source with its includes."""
    try:
        return pasted(file, text, set())
    except FileNotFoundError as error:
        raise ValueError(f"register_conv: {file} includes {error.filename}, which is not there; include what "
                         "minidl/ops/cuda holds, as \"include/common.cuh\", and paste in the rest") from None


def _takes(what: str, function: Callable[..., Any], parameters: tuple[str, ...]) -> None:
    """Refuse a function that cannot be called so."""
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        raise ValueError(f"register_conv: {what} takes ({', '.join(inspect.signature(function).parameters)}) but is "
                         f"called with ({', '.join(parameters)}); give it these parameters") from None


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
