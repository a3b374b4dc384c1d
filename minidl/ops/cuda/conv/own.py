"""Kernels of users on CUDA arrays: those of convolutions are rows of the same table as those of minidl."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import cupy

from ....core.device import Array
from ...common.conv.own import STRUCTS, Launch, OwnConv, Refuses
from .. import launch
from .auto.measuring import Launcher


class OnCuda(Launch):
    """On the current stream."""

    def empty(self, shape: tuple[int, ...]) -> Array:
        return launch.empty(shape, self.dtype)

    def _start(self, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...],
               shared: int, constants: dict[str, Any]) -> None:
        start = launch.generated(self.own.file, self.own.text, kernel, launch.real(self.dtype), *constants.items())
        for symbol, array in self.symbols.items():     # on this stream: the next launch may refill it
            try:
                memory = start.module.get_global(symbol)
            except cupy.cuda.driver.CUDADriverError:   # the compiler leaves out what this kernel does not use
                continue
            filling = launch.dense(array)
            memory.copy_from_device_async(filling.data, filling.nbytes)
        start(grid, block, *(launch.by_value(STRUCTS[type(each)], each) if type(each) in STRUCTS else each
                             for each in arguments), shared=shared)


def row(own: OwnConv) -> tuple[Launcher | None, Launcher | None, Launcher | None, Refuses]:
    """y, dx, dw and refuses of an Algorithm."""
    def launcher(direction: str) -> Launcher | None:
        return functools.partial(run, own, direction) if direction in own.launchers else None
    return launcher("y"), launcher("dx"), launcher("dw"), own.refuses


@functools.cache
def left_to_auto(kind: str, name: str, reason: str) -> None:
    """Say it, once: a net of many layers is trained with what an algorithm can do of it."""
    warnings.warn(f"{kind}: algorithm {name!r}: {reason}; 'auto' is used there", stacklevel=2)


def able(own: OwnConv, direction: str, arguments: tuple[Any, ...]) -> bool:
    """Whether it computes a case of another op than a convolution."""
    if direction not in own.launchers:
        return False
    g = arguments[-1] if type(arguments[-1]) in STRUCTS else None
    if reason := own.refuses(direction, g, arguments[0].dtype):
        left_to_auto(own.kind, own.name, reason)
    return reason is None


def run(own: OwnConv, direction: str, *arguments: Any) -> Array:
    return own.run(direction, OnCuda(own, arguments[0].dtype), *arguments)
