"""Convolution algorithms of users on CUDA arrays: rows of the table beside those of minidl."""

from __future__ import annotations

import functools
from typing import Any

from ...common.conv.own import Launch, OwnConv, Refuses
from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from .. import launch
from .auto.measuring import Launcher


class OnCuda(Launch):
    """On the current stream."""

    def empty(self, shape: tuple[int, ...]) -> Array:
        return launch.empty(shape, self.dtype)

    def _start(self, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...],
               shared: int, constants: dict[str, Any]) -> None:
        if self.symbols:
            raise ValueError(f"launch: {', '.join(self.symbols)} of {self.own.file} cannot be filled on a GPU; pass "
                             "the array to the kernel, or compute on the CPU, where minidl check and emulate fill it")
        start = launch.generated(self.own.file, self.own.text, kernel, launch.real(self.dtype), *constants.items())
        start(grid, block, *(launch.by_value("Geometry", each) if isinstance(each, ConvGeometry) else each
                             for each in arguments), shared=shared)


def row(own: OwnConv) -> tuple[Launcher | None, Launcher | None, Launcher | None, Refuses]:
    """y, dx, dw and refuses of an Algorithm."""
    def launcher(direction: str) -> Launcher | None:
        return functools.partial(_run, own, direction) if direction in own.launchers else None
    return launcher("y"), launcher("dx"), launcher("dw"), own.refuses


def _run(own: OwnConv, direction: str, *arguments: Any) -> Array:
    return own.run(direction, OnCuda(own, arguments[0].dtype), *arguments)
