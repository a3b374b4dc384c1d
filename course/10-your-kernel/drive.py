"""Runs beside lab.py: its launcher on the emulated GPU, alone and within a training."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim

MAPS, KERNEL, BATCH, STEPS = 4, 5, 8, 12


def losses(algorithm: str, seed: int) -> list[float]:
    """Of a small net that learns where a bar is in a picture of 16 x 16 pixels, after each step."""
    rng = np.random.default_rng(seed)
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, MAPS, KERNEL, stride=2, algorithm=algorithm), nn.Tanh(), nn.Flatten(),
                        nn.Linear(MAPS * 36, 4))
    sgd, found = optim.SGD(net.parameters(), lr=0.2, momentum=0.5), []
    for _ in range(STEPS):
        labels = rng.integers(0, 4, BATCH)
        images = 0.3 * rng.standard_normal((BATCH, 1, 16, 16))
        for image, label in zip(images, labels):
            image[0, 4 * label:4 * label + 3] += 1
        loss = ops.cross_entropy(net(Tensor(images.astype(np.float32))), Tensor(labels))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        found.append(loss.item())
    return found


# ---------------------------------------------------------------- what the student's process runs
@functools.cache
def kernels() -> Any:
    from labkit.launches import Recorded

    return Recorded(_own())


def _own() -> Any:
    from minidl.ops.common.conv.own import OWN

    if "mine" not in OWN or "y" not in OWN["mine"].launchers:
        raise NameError("no algorithm 'mine' with y= is registered; call minidl.register_conv(\"mine\", ..., y=y)")
    return OWN["mine"]


def registered(lab: ModuleType) -> list[str]:
    """The directions of "mine"."""
    return sorted(_own().launchers)


def convolve(lab: ModuleType, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, stride: Any, padding: Any,
             orders: int) -> dict[str, Any]:
    """What the launcher leaves in y, and its launches."""
    from minidl.ops.common.geometry import conv_geometry

    g = conv_geometry(x.shape, w.shape, None if b is None else b.shape, stride, padding, "direct")
    return dict(kernels().convolve(g, x, w, b, orders=orders))


def trained(lab: ModuleType, seed: int) -> dict[str, Any]:
    """The losses of a training whose convolutions' y the kernel computes, on the emulated GPU; its launches' faults."""
    from minidl.ops.cpu import conv

    calls: list[dict[str, Any]] = []

    def y(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, g: Any) -> Any:
        calls.append(kernels().convolve(g, x, w, b))
        return calls[-1]["y"]
    conv.ALGORITHMS["mine"] = (y, *conv.ALGORITHMS["auto"][1:])
    found = losses("mine", seed)
    return {"losses": found, "launches": [each for call in calls for each in call["launches"]], "calls": len(calls)}


def row(lab: ModuleType) -> dict[str, int]:
    """The student's."""
    return dict(lab.ROW)
