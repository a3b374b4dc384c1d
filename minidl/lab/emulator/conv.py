"""Launchers of one's own without a GPU: each kernel is run, and looked at, by watch.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.common.conv.own import STRUCTS, Launch, OwnConv
from ...ops.common.sources import real, struct
from .watch import Kernel


class Kernels:
    """The kernels of an algorithm, each compiled once; a context, whose end removes them."""

    def __init__(self, own: OwnConv):
        self.own = own
        self._folder = tempfile.TemporaryDirectory(prefix="minidl-emulator-")
        self._file = Path(self._folder.name, own.file)
        self._file.write_text(own.text, encoding="utf-8")
        self._compiled: dict[tuple[Any, ...], Kernel] = {}

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def compiled(self, name: str, dtype: np.dtype, constants: dict[str, Any]) -> Kernel:
        """A kernel of the file. Raises ValueError and RuntimeError with the file's name, as watch.Kernel does."""
        key = name, dtype, *constants.items()
        if key not in self._compiled:
            try:
                self._compiled[key] = Kernel(self._file, name, {**dict([real(dtype)]), **constants})
            except (ValueError, RuntimeError) as error:
                raise type(error)(str(error).replace(str(self._file), self.own.file)) from None
        return self._compiled[key]


class Emulated(Launch):
    """For one call of a launcher; `faults` are those of all its launches."""

    def __init__(self, kernels: Kernels, dtype: np.dtype):
        super().__init__(kernels.own, dtype)
        self.faults: list[str] = []
        self.notes: list[str] = []
        self._kernels = kernels
        self._unset: list[np.ndarray] = []

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        self._unset.append(np.full(shape, np.nan, self.dtype))
        return self._unset[-1]

    def _start(self, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...],
               shared: int, constants: dict[str, Any]) -> None:
        compiled = self._kernels.compiled(kernel, self.dtype, constants)
        names = [each.name for each in compiled.parameters]
        if len(arguments) != len(names):
            raise TypeError(f"{kernel}: got {len(arguments)} arguments but takes {len(names)}, {', '.join(names)}; "
                            "pass each")
        given = dict(zip(names, arguments))
        given |= {symbol: np.asarray(array) for symbol, array in self.symbols.items()}
        done = compiled.run(grid, block, {name: self._value(each) for name, each in given.items()}, shared=shared)
        self.faults += done.faults
        self.notes += done.notes
        for each in compiled.parameters:
            if each.written and given[each.name] is not None:
                given[each.name][...] = done.arrays[each.name]
                self._unset = [array for array in self._unset if array is not given[each.name]]

    def _value(self, given: Any) -> Any:
        """As watch.Kernel takes it: the shape of an array that is not set, a struct as NumPy's."""
        if type(given) in STRUCTS:
            dtype = struct(STRUCTS[type(given)])
            return np.array(tuple(getattr(given, field) for field in dtype.names or ()), dtype)
        return given.shape if any(given is array for array in self._unset) else given
