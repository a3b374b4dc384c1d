"""minidl's own CUDA kernels without a GPU, launched by the backend's launchers on NumPy arrays; and what they cost.

`count("conv2d_tiled_y", [(4, 6, 28, 28), (16, 6, 5, 5)])` gives the counts of a kernel, `counting()` those of all that
are launched within it. `Emulator(folder).running()` is a context in which `minidl.ops.cuda` computes on `Memory`.
`cupy.asarray` makes it there, and it has the few things of a CuPy array that launchers and tests use. launch.Kernel is
the real one, except for the driver's launch call: here that runs the grid (scheduler.cpp), and raises AssertionError
for what a GPU would not survive and for bytes that are written outside of an array. CuPy need not be installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import pkgutil
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import DTypeLike

from . import KERNELS, Compiler, Guarded, Memory, loaded, translated, watched, watcher
from .counts import LaunchConfiguration, Table, counted, rules

try:
    import cupy
except ImportError:                        # the launchers import it, but what they call of it is replaced below
    cupy = sys.modules["cupy"] = types.ModuleType("cupy")
    vars(cupy).update(ndarray=Memory, matmul=np.matmul, add=np.add, ascontiguousarray=np.ascontiguousarray,
                      cuda=mock.MagicMock())
    from ...ops import cuda

    for found in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}."):
        importlib.import_module(found.name)
    del sys.modules["cupy"]

from ... import ops
from ...core import device
from ...core.tensor import Tensor, wrap
from ...ops import cuda
from ...ops.common.backend import BACKENDS
from ...ops.common.geometry import conv_geometry
from ...ops.common.geometry.layouts import FILTERS, IMAGES, known
from ...ops.cuda import launch
from ...ops.cuda.conv import ALGORITHMS, layouts, refusal
from ...ops.cuda.launch import poison, tensor_maps

# What a GPU has and a CPU has not: the values of an H200.
FACTS = {"multiprocessors": 132, "compute_capability": 90, "most_shared": 232448, "cache_bytes": 50 << 20}


def boxes(address: int, shape: tuple[int, ...], dtype: np.dtype, box: tuple[int, ...], rounded: bool) -> bytes:
    """In place of what the driver encodes, as emulator.h reads it."""
    words = np.zeros(16, np.uint64)
    words[:3] = address, dtype.itemsize, len(shape)
    words[3:3 + len(shape)], words[8:8 + len(box)], words[13] = shape[::-1], box[::-1], rounded
    return words.tobytes()


class Function:
    """A kernel as CuPy's RawModule gives it: with an attribute, and a handle, here itself. file, text, constants: its
    source."""

    def __init__(self, name: str, library: ctypes.CDLL, file: str, text: str, constants: tuple[launch.Constant, ...]):
        self.name, self.library, self.run, self.file, self.text = name, library, library.run, file, text
        self.constants = constants
        self.max_dynamic_shared_size_bytes = 48 * 1024
        self.kernel = types.SimpleNamespace(ptr=self)


class Module:
    """In place of CuPy's RawModule; each of its kernels is compiled alone, when it is needed."""

    def __init__(self, emulator: Emulator, file: str, text: str, constants: tuple[launch.Constant, ...]):
        self._emulator, self._file, self._text, self._constants = emulator, file, text, constants
        self._libraries: list[ctypes.CDLL] = []
        self._held: dict[str, bytes] = {}              # by name, what constant memory was filled with

    def get_function(self, name: str) -> Function:
        self._libraries.append(self._emulator.compiled(translated(self._text, name), self._constants))
        for each, held in self._held.items():
            self._fill(self._libraries[-1], each, held)
        return Function(name, self._libraries[-1], self._file, self._text, self._constants)

    def get_global(self, name: str) -> Any:
        """Constant memory: each kernel has its own here, and all of them are filled, also those that come later."""
        def fill(source: types.SimpleNamespace, size: int) -> None:
            self._held[name] = ctypes.string_at(source.ptr, size)
            for library in self._libraries:
                self._fill(library, name, self._held[name])
        return types.SimpleNamespace(copy_from_device_async=fill)

    def _fill(self, library: ctypes.CDLL, name: str, held: bytes) -> None:
        ctypes.memmove(ctypes.addressof(ctypes.c_char.in_dll(library, name)), held, len(held))


class Emulator(Compiler):
    """Compiled libraries are kept in a folder, once for all contexts."""

    multiprocessors = 4                    # few, so that blocks take several turns

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.memory, self._launches = Guarded(), 0
        self.launched: set[str] = set()    # names of kernels

    def compiled(self, text: str, constants: tuple[launch.Constant, ...]) -> ctypes.CDLL:
        """A translated source, compiled with its launcher's constants."""
        return self.kernel(text, *(option for option in launch.options(constants) if option.startswith("-D")))

    def _launch(self, function: Function, *numbers: int) -> None:
        """cupy.cuda.driver.launchKernel: grid (3), block (3), shared memory, stream, arguments, extra. AssertionError
        if the kernel reports a fault, takes shared memory not asked for, or wrote outside an array."""
        *sizes, _, arguments, _ = numbers
        self.launched.add(function.name)
        asked = function.max_dynamic_shared_size_bytes
        assert sizes[6] <= asked, f"{function.name}: {sizes[6]} bytes of shared memory, but {asked} were asked for"
        self._launches += 1                # threads take turns in another order each time
        message = function.run((ctypes.c_int * 8)(*map(int, sizes), self._launches), ctypes.c_void_p(arguments))
        assert not message, f"{function.name}: {message.decode()}"
        try:
            self.memory.check()
        except AssertionError as error:
            raise AssertionError(f"{function.name}: {error}") from None

    @contextlib.contextmanager
    def running(self) -> Iterator[Emulator]:
        """Within this, the backend for CUDA computes on Memory."""
        def module(file: str, text: str, constants: tuple[launch.Constant, ...], name: str) -> Callable[[], Module]:
            return functools.partial(Module, self, file, text, constants)

        stream = types.SimpleNamespace(ptr=0, is_capturing=lambda: False, synchronize=lambda: None)
        self.memory, self._launches = (memory := Guarded()), 0
        plan = types.SimpleNamespace(work_area=types.SimpleNamespace(mem=types.SimpleNamespace(size=0)))
        transforms = types.SimpleNamespace(            # cuFFT's are not emulated
            get_fft_plan=lambda *sizes: plan, rfftn=lambda a, axes, plan: memory.made(np.fft.rfftn, a, axes=axes),
            irfftn=lambda a, size, axes, norm, overwrite_x, plan: memory.made(np.fft.irfftn, a, size, axes, norm))
        with contextlib.ExitStack() as replaced:
            def replace(where: object, name: str, value: object) -> None:
                replaced.enter_context(mock.patch.object(where, name, value, create=where is cupy))

            for name in ("arange", "argsort", "asfortranarray", "full", "ones", "ones_like", "zeros"):
                replace(cupy, name, functools.partial(memory.made, getattr(np, name)))
            for name in ("asarray", "ascontiguousarray"):
                replace(cupy, name, getattr(memory, name))
            replace(cupy, "ndarray", Memory)
            replace(device, "_missing", lambda: "")
            replace(cupy, "lib", types.SimpleNamespace(stride_tricks=types.SimpleNamespace(
                as_strided=functools.partial(np.lib.stride_tricks.as_strided, subok=True))))
            replace(cuda.conv.product.fft, "_library", lambda: transforms)
            replace(cuda.conv.product.fft, "_plans", {})
            replace(tensor_maps, "_encoded", boxes)
            replace(poison, "ON", False)               # each block begins with poison here
            replace(np, "broadcast_to", functools.partial(np.broadcast_to, subok=True))     # as CuPy's
            replace(cupy.cuda, "get_current_stream", lambda: stream)
            replace(cupy.cuda, "Device", lambda *number: contextlib.nullcontext())
            replace(cupy.cuda.runtime, "getDevice", lambda: 0)
            facts = {name: functools.partial(int, fact)
                     for name, fact in {**FACTS, "multiprocessors": self.multiprocessors}.items()}
            for name, value in {"_module": module, "_launch": self._launch, "_ndarray": Memory, "empty": memory.empty,
                                "_current_device": lambda: 0, "_current_stream": lambda: stream,
                                "_make_ready": lambda device: None, **facts}.items():
                for room in (launch, launch.device, launch.grid, launch.kernels, launch.memory):
                    if hasattr(room, name):
                        replace(room, name, value)
            replaced.enter_context(mock.patch.dict(BACKENDS, {Memory: cuda}))
            forget()
            try:
                yield self
            finally:
                forget()


def forget() -> None:
    """Clear what launchers remember, plans and kernels: it is of one device alone."""
    for found in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}."):
        for value in vars(importlib.import_module(found.name)).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


# ---------------------------------------------------------------- what their accesses cost
class Counter(Emulator):
    """An Emulator whose kernels are counted: `tables` has the counts of all launches, by kernel."""

    def __init__(self, folder: Path, multiprocessors: int, arch: int):
        super().__init__(folder)
        self.multiprocessors, self._rules = multiprocessors, rules(arch)
        self.tables: dict[str, Table] = {}
        self._paths: dict[int, Path] = {}

    def compiled(self, text: str, constants: tuple[launch.Constant, ...]) -> ctypes.CDLL:
        path = watched(self._folder, text, *(option for option in launch.options(constants) if option[:2] == "-D"))
        self._paths[id(library := loaded(path))] = path
        return library

    def _launch(self, function: Function, *numbers: int) -> None:
        watch = ctypes.CDLL(str(watcher()))
        watch.watch_start(0, self._rules)
        super()._launch(function, *numbers)
        counts = counted(watch, self._paths[id(function.library)], Path(function.file).name)
        watch.watch_end()
        source = launch.FOLDER / function.file
        text = source.read_text(encoding="utf-8") if source.is_file() else function.text.partition("\n")[2]
        table = Table(function.name, function.file, text, math.prod(map(int, numbers[:3])), *counts,
                      LaunchConfiguration(math.prod(map(int, numbers[3:6])), int(numbers[6]), 0, function.text,
                                          function.constants))
        self.tables[function.name] = self.tables[function.name] + table if function.name in self.tables else table


@contextlib.contextmanager
def counting(multiprocessors: int = FACTS["multiprocessors"], arch: int = 0) -> Iterator[dict[str, Table]]:
    """The counts of minidl's kernels that are launched within, by kernel. Arrays are moved there by `there`.

    multiprocessors: of the GPU; some launchers share work by it. arch: as `Kernel.run` takes it. Raises RuntimeError
    without a C++ compiler.

        with counting() as tables:
            ops.max_pool2d(there(np.ones((1, 1, 8, 8), "float32")), 2)
        print(tables["max_pool2d"])
    """
    with tempfile.TemporaryDirectory(prefix="minidl-emulator-") as folder, \
            (counter := Counter(Path(folder), multiprocessors, arch)).running():
        yield counter.tables


def there(array: np.ndarray, requires_grad: bool = False) -> Tensor:
    """A Tensor on the emulated GPU, within `counting`."""
    tensor = wrap(cupy.asarray(array))
    tensor._requires_grad = requires_grad
    return tensor


# ---------------------------------------------------------------- one kernel, by its name and the shapes of its inputs
class Options(NamedTuple):
    """What launches take in addition to arrays."""

    stride: int = 1
    padding: int = 0
    window: int = 2
    layout: str = "NCHW"


def _convolve(kernel: str, options: Options, x: np.ndarray, w: np.ndarray) -> None:
    """The direction of the kernel's algorithm by which it is launched."""
    named = [name for name in ALGORITHMS if kernel.startswith(f"conv2d_{name}")]
    name = max(named, key=len) if named else "unroll"
    g = conv_geometry(x.shape, w.shape, None, options.stride, options.padding, name)
    x, gy, w = (cupy.asarray(np.ascontiguousarray(array.transpose(axes[options.layout]))) for array, axes in (
        (x, IMAGES), (np.ones((g.n, g.m, g.oh, g.ow), x.dtype), IMAGES), (w, FILTERS)))
    arguments = {"y": (x, w, None), "dx": (gy, w), "dw": (gy, x)}
    direction = "dx" if kernel == "col2im" else kernel[-2:] if kernel[-3:] in ("_dx", "_dw") else "y"
    if options.layout != "NCHW":
        layouts.run(name, direction, options.layout, g, *arguments[direction])
        return
    before = device.precision()
    device.set_precision((*ALGORITHMS[name].tensor_cores, before)[0])
    try:
        reason = refusal(name, direction, g, x.dtype)
        if reason:
            raise ValueError(f"emulator: {kernel} cannot take x {x.shape} and w {w.shape}: {reason}; use others")
        getattr(ALGORITHMS[name], direction)(*arguments[direction], g)
    finally:
        device.set_precision(before)


def _op(call: Callable[..., Tensor]) -> Callable[..., None]:
    """An op, and its gradients if the kernel is one of a gradient."""
    def run(kernel: str, options: Options, *arrays: np.ndarray) -> None:
        y = call(options, *(there(array, requires_grad=True) for array in arrays))
        if "_grad" in kernel:
            y.backward(there(np.ones(y.shape, arrays[0].dtype)))
    return run


def _pool(op: Callable[..., Tensor]) -> Callable[..., None]:
    return _op(lambda options, x: op(x, options.window, stride=options.window if options.stride == 1 else
                                     options.stride, padding=options.padding))


X4, X2 = "x (n,c,h,w)", "x (n,classes)"
# Kernels (a regular expression) -> the shapes that they are given, and a function that has them launched
LAUNCHES: dict[str, tuple[str, Callable[..., Any]]] = {
    "conv2d_grad_b": ("gy (n,m,oh,ow)", lambda kernel, options, gy: cuda.conv2d_grad_b(cupy.asarray(gy))),
    "conv2d_(?!krizhevsky_variant).*|unroll|col2im": (f"{X4}, w (m,c,kh,kw)", _convolve),
    "avg_pool2d(_tiled)?(_grad_x)?": (X4, _pool(ops.avg_pool2d)),
    "max_pool2d(_grad_x(_apart)?)?": (X4, _pool(ops.max_pool2d)),
    "activation(_grad_x)?": ("x (...)", _op(lambda options, x: ops.tanh(x))),
    "map_sets": (X2, _op(lambda options, x: ops.softmax(x))),
    "gemm_.*": ("x (n,inputs), w (outputs,inputs)", _op(lambda options, x, w: ops.linear(x, w))),
    "fold_sets": ("parts (k,...)", lambda kernel, options, parts: cuda.reduce.sum_first(cupy.asarray(parts))),
}


def _launch(kernel: str) -> tuple[str, Callable[..., Any]] | None:
    return next((each for names, each in LAUNCHES.items() if re.fullmatch(names, kernel)), None)


def start(kernel: str, shapes: Sequence[tuple[int, ...]], dtype: DTypeLike = "float32", stride: int = 1,
          padding: int = 0, window: int = 2, layout: str = "NCHW") -> str:
    """Launch one of minidl's kernels by its own launcher, on random numbers; within `counting` on the emulated GPU.

    Shapes are those in NCHW in every layout. Returns what shapes it takes. Raises ValueError for a kernel that is not
    known, for shapes that are not its, and for a layout that it does not take.
    """
    kernels = {name: _launch(name) for file in sorted(launch.FOLDER.rglob("*.cu"))
               for name in re.findall(KERNELS, file.read_text(encoding="utf-8"))}
    found = kernels.get(kernel)
    if found is None:
        raise ValueError(f"emulator: {kernel} is neither a file nor one of minidl's kernels that shapes alone launch: "
                         f"{', '.join(name for name, each in kernels.items() if each)}; others are counted in Python, "
                         "by minidl.lab.emulator.own.counting()")
    takes, run = found
    if len(shapes) != takes.count("("):
        raise ValueError(f"emulator: {kernel} takes {takes} but got the shapes {list(shapes)}; give one of each")
    if known(f"emulator: {kernel}", layout) != "NCHW" and run is not _convolve:
        raise ValueError(f"emulator: {kernel} takes NCHW alone but got the layout {layout}; leave it out")
    rng, options = np.random.default_rng(1), Options(stride, padding, window, layout)
    run(kernel, options, *(rng.standard_normal(shape).astype(dtype) for shape in shapes))
    return takes


def count(kernel: str, shapes: Sequence[tuple[int, ...]], dtype: DTypeLike = "float32", stride: int = 1,
          padding: int = 0, window: int = 2, layout: str = "NCHW", arch: int = 0) -> Table:
    """What the accesses of one of minidl's kernels cost, launched by its own launcher on random numbers.

    shapes: of its inputs, such as x (n,c,h,w) and w (m,c,kh,kw) of a convolution. stride, padding: of the kernel.
    window: of a pooling; its stride is the window's size unless it is given. layout: of a convolution's arrays, NCHW,
    NHWC or CHWN, whose shapes are given as for NCHW. arch: as `Kernel.run` takes it.

    Raises ValueError for a kernel that is not known, or that these shapes do not launch, and RuntimeError without a
    C++ compiler.
    """
    with counting(arch=arch) as tables:
        takes = start(kernel, shapes, dtype, stride, padding, window, layout)
    if kernel not in tables:
        raise ValueError(f"emulator: {kernel} is not launched for {takes} of the shapes {list(shapes)}, but "
                         f"{', '.join(tables) or 'none'}; give other shapes")
    return tables[kernel]
