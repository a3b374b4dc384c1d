"""Kernel: one function of a .cu file, compiled as soon as it is named and launched with arguments that are checked."""

from __future__ import annotations

import ctypes
import functools
import struct as struct_module
import threading
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from ...common.sources import TYPES, Constant, parameters, source, struct
from . import poison
from .compiling import compiling as _module
from .compiling import thread
from .misfits import MAX_ELEMENTS, fitted

CODES = {np.dtype(name): code for name, code in (     # of numbers, in the standard module struct
    ("bool", "?"), ("int8", "b"), ("uint8", "B"), ("int16", "h"), ("uint16", "H"), ("int32", "i"), ("uint32", "I"),
    ("int64", "q"), ("uint64", "Q"), ("float16", "e"), ("float32", "f"), ("float64", "d"))}


@functools.lru_cache(maxsize=4096)
def by_value(name: str, like: tuple[Any, ...] = (), **fields: int) -> bytes:
    """A struct as kernels take it: each of its fields by name, from those given or else from `like`, a geometry."""
    dtype = struct(name)
    names = dtype.names or ()
    missing = [field for field in names if field not in fields and not hasattr(like, field)]
    if missing or not fields.keys() <= set(names):
        raise TypeError(f"by_value: struct {name} has the fields {', '.join(names)} but got {', '.join(fields)} and "
                        f"lacks {', '.join(missing) or 'none'}; give those that it has")
    return np.array(tuple(fields[f] if f in fields else getattr(like, f) for f in names), dtype).tobytes()


SHARED = 48 * 1024                         # bytes of shared memory that a kernel need not ask for

_current_device = cupy.cuda.runtime.getDevice
_current_stream = cupy.cuda.get_current_stream


@functools.cache
def kernel(file: str, name: str, *constants: Constant) -> Kernel:
    """The kernel `name` of a file under ops/cuda, compiled with the constants. Always the same object."""
    return generated(file, source(file), name, *constants)


@functools.cache
def generated(file: str, text: str, name: str, *constants: Constant) -> Kernel:
    """The kernel `name` of a source, includes pasted in. Messages call it `file`. Always the same object."""
    declared = parameters(text, name)
    return Kernel(_module(file, text, constants, name), name, declared, dict(constants))


class Kernel:
    """A compiled kernel: `self(grid, block, *arguments, shared=bytes)` launches it on the current stream.

    Arguments are CuPy arrays (or None, a null pointer), numbers, and structs from `by_value`. An array that is only
    read may have any strides: it is copied if it is not in C order without gaps. Raises TypeError and ValueError,
    naming kernel and parameter, for what the kernel would misread. The first launch waits until the
    kernel is compiled, and raises RuntimeError, with the compiler's message, if it does not compile.

    A launch holds no lock: it takes packed arguments out of a list, in one step of the interpreter. It makes new ones
    if another thread, a signal handler or an interrupt has them.
    """

    def __init__(self, module: Callable[[], cupy.RawModule], name: str, declared: list[tuple[str, str, str]],
                 constants: dict[str, Any]):
        self.name = name
        self._module = module              # waits for it
        self._handle: Any = None           # of the function, once it is loaded
        self._loading = threading.Lock()
        self._arguments = functools.partial(Arguments, name, declared, constants)
        self._free = [self._arguments()]
        self._shared = SHARED

    @functools.cached_property
    def module(self) -> cupy.RawModule:
        """It waits until it is compiled."""
        return self._module()

    @functools.cached_property
    def function(self) -> Any:
        """As CuPy has it. It waits until it is compiled."""
        return self.module.get_function(self.name)

    def _loaded(self) -> Any:
        """The function's handle. It waits until it is compiled."""
        with self._loading:
            if self._shared > SHARED:
                self.function.max_dynamic_shared_size_bytes = self._shared
            self._handle = self.function.kernel.ptr
        return self._handle

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any, shared: int = 0) -> None:
        self._start(*self._sizes(grid, block, shared), *arguments)

    def sized(self, grid: tuple[int, ...], block: tuple[int, ...], shared: int = 0) -> Callable[..., None]:
        """A function that launches this kernel on a grid. Launchers keep one per shape, so a call looks up but once."""
        return functools.partial(self._start, *self._sizes(grid, block, shared))

    def _sizes(self, grid: tuple[int, ...], block: tuple[int, ...], shared: int) -> tuple[int, ...]:
        """What _start takes first. More shared memory is asked for if `shared` is above what was asked for before."""
        if shared > self._shared:
            with self._loading:
                self._shared = max(shared, self._shared)
                if self._handle:           # else when it is loaded
                    self.function.max_dynamic_shared_size_bytes = self._shared
        return *grid, *_ONES[len(grid)], *block, *_ONES[len(block)], shared

    @poison.behind_a_fill
    def _start(self, grid_x: int, grid_y: int, grid_z: int, block_x: int, block_y: int, block_z: int, shared: int,
               *arguments: Any) -> None:
        device = _current_device()
        if device not in thread.devices:   # there are none in a dry call
            if thread.dry:
                return
            _make_ready(device)
        stream = _current_stream().ptr
        try:
            packed = self._free.pop()
        except IndexError:
            packed = self._arguments()
        copies = packed.pack(arguments, device)
        handle = self._handle or self._loaded()
        start = thread.launch or _launch
        start(handle, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, packed.at, 0)
        self._free.append(packed)
        del copies                         # they had to live until the launch was queued


def _dtype(c_type: str) -> np.dtype:
    return TYPES[c_type] if c_type in TYPES else struct(c_type)


class Arguments:
    """A kernel's parameters as the driver's launch call takes them: packed into one buffer, with a pointer to each.

    From pack until the launch, in which the driver copies them, they belong to one caller. This takes half the time of
    CuPy's general call, which looks at each argument anew.
    """

    def __init__(self, name: str, declared: list[tuple[str, str, str]], constants: dict[str, Any]):
        self.name = name
        self._takes = [(f"{name}: {parameter}", _dtype(constants.get(c_type, c_type)), kind)
                       for parameter, c_type, kind in declared]
        formats, places, size = ["="], [], 0
        for _, dtype, kind in self._takes:
            code = "Q" if kind != "value" else f"{dtype.itemsize}s" if dtype.names else CODES[dtype]
            used = struct_module.calcsize(f"={code}")
            formats.append(f"{code}{-used % 16}x")     # each starts at a multiple of 16
            places.append(size)
            size += used + -used % 16
        self._pack = struct_module.Struct("".join(formats)).pack_into
        self._arrays = [(place, dtype) for place, (_, dtype, kind) in enumerate(self._takes) if kind != "value"]
        self._structs = [(place, dtype.itemsize) for place, (_, dtype, kind) in enumerate(self._takes)
                         if kind == "value" and dtype.names]
        self._buffer = ctypes.create_string_buffer(size + 16)
        start = ctypes.addressof(self._buffer)
        self._offset = -start % 16
        self._pointers = (ctypes.c_void_p * len(places))(*(start + self._offset + place for place in places))
        self.at = ctypes.addressof(self._pointers)

    def pack(self, arguments: tuple[Any, ...], device: int) -> list[cupy.ndarray]:
        """Write arguments into the buffer, once all are checked; returns the copies that were made."""
        if len(arguments) != len(self._takes):
            raise TypeError(f"{self.name}: got {len(arguments)} arguments but takes {len(self._takes)}; pass each")
        values, copies = list(arguments), []
        for place, size in self._structs:
            a = values[place]
            if a.__class__ is not bytes or len(a) != size:
                raise TypeError(f"{self._takes[place][0]} is a {type(a).__name__} but must be {size} bytes from "
                                "by_value(); pass the struct")
        for place, dtype in self._arrays:
            a = values[place]
            if a is None:
                values[place] = 0
                continue
            # a.flags says the same as _c_contiguous, but makes an object at each access: a third of the time here
            if a.__class__ is not _ndarray or a.dtype is not dtype or not a._c_contiguous or a.size > MAX_ELEMENTS:
                a = fitted(*self._takes[place], a)
                copies.append(a)
            memory = a.data
            if memory.device_id != device:
                raise ValueError(f"{self._takes[place][0]} is on device {memory.device_id} but the current device is "
                                 f"{device}; use one device")
            values[place] = memory.ptr
        try:
            self._pack(self._buffer, self._offset, *values)
        except (struct_module.error, OverflowError) as error:
            takes = ", ".join(f"{what} ({dtype})" for what, dtype, _ in self._takes)
            raise TypeError(f"{self.name}: an argument is not a number of its parameter's type ({error}); the "
                            f"parameters are {takes}") from None
        return copies


_ndarray = cupy.ndarray
_ONES = {1: (1, 1), 2: (1,), 3: ()}        # what a grid or block lacks of three axes
_launch = cupy.cuda.driver.launchKernel


def _make_ready(device: int) -> None:
    cupy.cuda.runtime.setDevice(device)
    thread.devices.add(device)
