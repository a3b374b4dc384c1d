"""`minidl emulate`: a CUDA kernel, one's own or minidl's, run on the CPU; its results, its faults, what it costs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...lab.emulator.counts import Table
from ...lab.emulator.watch import STEPS, Kernel, Parameter, fitting
from ...lab.gpus import GPUS, report
from ...ops.common.geometry.layouts import IMAGES
from .common import Parser, complain, run, say

OPTIONS = {"stride": 1, "padding": 0, "window": 2}           # of launches of minidl's own kernels
EXAMPLE = """\
An argument is NAME=VALUE, with a parameter's name. Of a number the value: n=64, a=0.5. Of an array its
sizes and what fills it: x=64:arange, x=8x8:random, y=64:zeros, y=64:2.5; without that it is not set, as
memory fresh from cudaMalloc: y=64. Or its numbers, x=[1,2,3], or a file: x=x.npy. __constant__ and
__device__ memory of the file is filled by its name, too: F=9:ones. Host code is left out.

  minidl emulate saxpy.cu --grid 2 --block 32 --args x=64:arange y=64:ones a=2 n=64

Found are accesses outside of arrays, values that were not set, races (no barrier, no atomic), and
barriers that some threads do not reach, and threads that do not end. A kernel runs four times, each
with another order of its threads; what it prints is that of the first. The memory model, textures,
tensor cores (mma.h), cooperative launches and dynamic parallelism are not emulated.

With --count the source is printed with what each line costs: requests of warps to memory, sectors of
32 bytes that they touch, bank conflicts of shared memory, barriers. So it is for one of minidl's own
kernels, by its name and the shapes of its inputs, launched on random numbers by its own launcher:

  minidl emulate conv2d_tiled_y --shape 4x6x28x28,16x6x5x5
  minidl emulate conv2d_tiled_y --shape 16x6x28x28,16x6x5x5 --layout CHWN"""


def main(argv: list[str] | None = None, prog: str = "minidl emulate") -> int:
    """Run with these arguments; returns the exit status, 1 if the kernel has a fault."""
    parser = Parser(prog=prog, description="Compile a CUDA kernel for the CPU (g++, Linux), run it, print the arrays "
                    "that it may write, and say what is wrong with it.", epilog=EXAMPLE,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE.cu", help="its source, with a __global__ void name(...); or the "
                        "name of one of minidl's kernels")
    parser.add_argument("--kernel", metavar="NAME", help="which one, if the file has several")
    parser.add_argument("--grid", type=sizes, default=(1,), metavar="X[,Y[,Z]]", help="blocks (default: 1)")
    parser.add_argument("--block", type=sizes, default=(32,), metavar="X[,Y[,Z]]", help="threads per block "
                        "(default: 32)")
    parser.add_argument("--args", nargs="*", default=[], metavar="NAME=VALUE", help="the kernel's arguments, see below")
    parser.add_argument("--shared", type=int, default=0, metavar="BYTES", help="of dynamic shared memory (default: 0)")
    parser.add_argument("--define", nargs="*", default=[], metavar="NAME=VALUE", help="constants, as nvcc's -D")
    parser.add_argument("--steps", type=int, default=STEPS, help="of one thread, in basic blocks, after which it "
                        "is said not to end (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of random values and orders (default: %(default)s)")
    parser.add_argument("--count", action="store_true", help="print the source with what each line costs")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that needs no network: the source with "
                        "its counts in colour, faults at their lines, and pictures of what the lanes of a warp ask for")
    parser.add_argument("--arch", type=int, choices=sorted(GPUS), default=0, metavar="N", help="a GPU's compute "
                        f"capability, {', '.join(f'{n} ({gpu.name})' for n, gpu in GPUS.items())}: what of its "
                        "multiprocessors the kernel takes, and whether its arithmetic or its memory limits; 13 counts "
                        "as GPUs of 2009 do, in halves of warps and 16 banks. Implies --count")
    own = parser.add_argument_group("of minidl's own kernels")
    own.add_argument("--shape", type=shapes, default=[], metavar="AxB,CxD", help="of each input: x and w of a "
                     "convolution, 4x6x28x28,16x6x5x5")
    own.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    for name, of in (("stride", "a convolution or pooling"), ("padding", "the same"), ("window", "a pooling")):
        own.add_argument(f"--{name}", type=int, default=OPTIONS[name], metavar="N", help=f"of {of} (default: "
                         "%(default)s)")
    own.add_argument("--layout", choices=tuple(IMAGES), default="NCHW", help="of a convolution's arrays; "
                     "--shape is in NCHW all the same (default: %(default)s)")
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> int:
    """Run it and print."""
    if args.html and (args.html.is_dir() or not args.html.parent.is_dir()):
        raise ValueError(f"--html is {args.html}, which is not a file in a folder that is there; name one, kernel.html")
    if not args.file.endswith(".cu") and not Path(args.file).exists():
        return own_kernel(args)
    if args.shape:
        raise ValueError(f"--shape is for minidl's own kernels, but {args.file} is a file; give --args and --grid")
    if not Path(args.file).is_file():
        raise FileNotFoundError(f"{args.file} is not a file; name a .cu file that holds a kernel")
    if args.shared < 0:
        raise ValueError(f"--shared is {args.shared} but must be at least 0")
    kernel = Kernel(args.file, args.kernel, dict(pair(each) for each in args.define))
    symbols = [Parameter(each.name, each.dtype, True, not each.constant) for each in kernel.symbols.values()]
    parameters = {each.name: each for each in (*kernel.parameters, *symbols)}
    arguments = {}
    for name, text in map(pair, args.args):
        if name in arguments:
            raise ValueError(f"--args gives {name} twice, the second time as {text}; leave one out")
        arguments[name] = value(parameters[name], text, args.seed) if name in parameters else text
    done = kernel.run(args.grid, args.block, arguments, shared=args.shared, seed=args.seed, steps=args.steps,
                      arch=args.arch)
    for name, array in done.arrays.items():
        held = kernel.symbols.get(name)
        if parameters[name].written and not (held and held.start == array.tobytes()):
            with np.printoptions(threshold=64, edgeitems=4, linewidth=100, precision=6, suppress=True):
                say(f"{name} {array.dtype} {array.shape}\n{array}")
    if args.count or args.arch:
        tell(done.counts, args.arch)
    draw(args, done.counts, done.faults)
    for fault in (*done.notes, *done.faults):
        complain(fault)
    if not done.faults:
        say(f"{kernel.name}: no fault was found")
    return 1 if done.faults else 0


def own_kernel(args: argparse.Namespace) -> int:
    """Print what one of minidl's kernels costs."""
    if args.args or args.define or args.shared or args.kernel:
        raise ValueError(f"{args.file} is not a file, and one of minidl's own kernels takes --shape, from which its "
                         "launcher makes the rest; leave out --args, --define, --shared and --kernel")
    from ...lab.emulator.own import count

    table = count(args.file, args.shape, args.dtype, layout=args.layout, arch=args.arch,
                  **{name: getattr(args, name) for name in OPTIONS})
    tell(table, args.arch)
    draw(args, table, ())
    return 0


def tell(table: Table, arch: int) -> None:
    """Print what a kernel costs, and what it takes of a GPU."""
    say("\n".join([f"{table}", *(report(table, arch) if arch else ()), ""]))


def draw(args: argparse.Namespace, table: Table, faults: Sequence[str]) -> None:
    """Write the page that was asked for."""
    if args.html:
        from ..plot.figures import write
        from ..plot.kernel import kernel_page

        say(str(write(args.html, kernel_page(table, faults, args.arch).encode())))


def shapes(text: str) -> list[tuple[int, ...]]:
    """An argparse type: the shapes of some arrays.

    >>> shapes("4x6x28x28,16x6x5x5")
    [(4, 6, 28, 28), (16, 6, 5, 5)]
    """
    found = [tuple(int(n) if n.isdigit() else 0 for n in each.split("x")) for each in text.split(",")]
    if min(map(min, found)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shapes, such as 4x6x28x28,16x6x5x5")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """An argparse type: "2" or "2,3" or "2x3".

    >>> sizes("2"), sizes("8x8")
    ((2,), (8, 8))
    """
    found = tuple(int(n) if n.isdigit() else 0 for n in text.replace("x", ",").split(","))
    if min(found) < 1 or len(found) > 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 to 3 ints of at least 1, such as 2 or 8,8")
    return found


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE. Raises ValueError for another text."""
    name, equals, rest = text.partition("=")
    if not equals or not name.isidentifier() or not rest:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as n=64 or x=64:arange")
    return name, rest


def value(parameter: Parameter, text: str, seed: int) -> Any:
    """What an argument's text means to a parameter: a number, an array, or the shape of one that is not set.

    >>> value(Parameter("x", np.dtype("float32"), True, False), "2x2:arange", 1)
    array([[0., 1.],
           [2., 3.]], dtype=float32)
    """
    try:
        if not parameter.array:
            return number(text, parameter.dtype)
        if text.endswith(".npy"):
            return np.load(text, allow_pickle=False)
        if text.startswith("["):
            return fitting([number(n, parameter.dtype) for n in text.strip("[]").split(",")], parameter.dtype)
        shape_text, _, filling = text.partition(":")
        shape = tuple(int(n) if n.isdigit() else 0 for n in shape_text.replace(",", "x").split("x"))
        if min(shape) < 1:
            raise ValueError("sizes are ints of at least 1")
        return filled(shape, filling, parameter.dtype, seed) if filling else shape
    except ValueError as error:
        form = ("sizes and a filling, 64:arange, numbers, [1,2,3], or a file, x.npy" if parameter.array else
                "such as n=64")
        raise ValueError(f"{parameter.name}={text} is not {'an array' if parameter.array else 'a number'} "
                         f"({parameter.dtype}): {form}; {error}") from None


def number(text: str, dtype: np.dtype) -> int | float:
    """What a text means to a dtype; whole numbers are not rounded to a float on the way."""
    try:
        return int(text, 0) if dtype.kind in "iub" else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a {'whole ' * (dtype.kind in 'iub')}number") from None


def filled(shape: tuple[int, ...], filling: str, dtype: np.dtype, seed: int) -> np.ndarray:
    """An array of a shape by the name of its filling, or a number. Raises ValueError for another text, and for numbers
    that the dtype does not have."""
    if filling == "arange":
        fitting([math.prod(shape) - 1], dtype)               # the largest
        return np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    if filling == "random":                # integers from 0 to 99, floats standard normal
        rng = np.random.default_rng(seed)
        return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype) if dtype.kind in "iub" else \
            rng.standard_normal(shape).astype(dtype)
    return np.full(shape, fitting([number({"zeros": "0", "ones": "1"}.get(filling, filling), dtype)], dtype)[0], dtype)
