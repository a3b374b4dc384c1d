"""For drive.py of the labs with a launcher: it runs on the emulator, and what it launches is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidl.lab.emulator.conv import Emulated, Kernels
from minidl.ops.common.conv.own import OwnConv

from .wire import plain


class OnDevice(np.ndarray):
    """An array that only kernels write, as on a GPU."""

    kernels_write = False

    def __setitem__(self, place: Any, values: Any) -> None:
        if not OnDevice.kernels_write:
            raise TypeError("an array lies on the GPU, where only a kernel writes it; launch one that does")
        super().__setitem__(place, values)


class Recorded(Kernels):
    """An algorithm's kernels, as launchers start them; `runs` has what each launch did, in plain values."""

    def __init__(self, own: OwnConv):
        super().__init__(own)
        self.runs: list[dict[str, Any]] = []
        self._orders = 1

    def compiled(self, name: str, dtype: np.dtype, constants: dict[str, Any]) -> Any:
        return _Kernel(super().compiled(name, dtype, constants), self.runs, self._orders)

    def convolve(self, g: Any, *inputs: Any, orders: int = 1) -> dict[str, Any]:
        """y of inputs x, w, b; with its launches without their arrays, and the elements of launch.empty in between."""
        self.runs.clear()
        self._orders = orders
        launch = Sized(self, np.dtype(np.float32))
        y = self.own.run("y", launch, *inputs, g)
        return {"y": np.array(y), "launches": [{**run, "arrays": {}} for run in self.runs],
                "between": sum(launch.sizes) - y.size}


class Sized(Emulated):
    """Keeps the sizes of what it allocates, which the launcher itself cannot write."""

    def __init__(self, kernels: Kernels, dtype: np.dtype):
        super().__init__(kernels, dtype)
        self.sizes: list[int] = []

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        made = super().empty(shape).view(OnDevice)
        self._unset[-1] = made
        self.sizes.append(made.size)
        return made

    def _start(self, *launched: Any) -> None:
        OnDevice.kernels_write = True
        try:
            super()._start(*launched)
        finally:
            OnDevice.kernels_write = False


class _Kernel:
    def __init__(self, kernel: Any, runs: list[dict[str, Any]], orders: int):
        self.parameters, self._kernel, self._runs, self._orders = kernel.parameters, kernel, runs, orders

    def run(self, *arguments: Any, **options: Any) -> Any:
        done = self._kernel.run(*arguments, orders=self._orders, seed=1 + len(self._runs), **options)
        self._runs.append(plain(done))
        return done
