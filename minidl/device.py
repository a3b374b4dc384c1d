"""Where arrays live. This version computes on the CPU; every other device is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np

DEVICES = ("auto", "cpu", "cuda")


def resolve(device: str) -> str:
    """Turn what a user asked for ("auto", "cpu", "cuda") into the device that serves.

    Raises ValueError for an unknown name and for a device that this version cannot compute on.

    >>> resolve("auto")
    'cpu'
    """
    if device in ("auto", "cpu"):
        return "cpu"
    if device == "cuda":
        raise ValueError("device: 'cuda' was asked for but this version of minidl computes on 'cpu' only; "
                         "use device 'cpu' or 'auto'")
    raise ValueError(f"device: {device!r} is not one of {', '.join(DEVICES)}")


def device_of(array: Any) -> str:
    """Name the device that holds an array.

    >>> device_of(np.zeros(3))
    'cpu'
    """
    if isinstance(array, (np.ndarray, np.generic)):
        return "cpu"
    raise TypeError(f"device: a {type(array).__name__} is no array of a known device; pass a numpy.ndarray")


def to_device(array: Any, device: str) -> Any:
    """Move an array to a device; the same array comes back when it is there already.

    >>> a = np.ones(2)
    >>> to_device(a, "cpu") is a
    True
    """
    resolve(device)
    return array


def to_numpy(array: Any) -> np.ndarray:
    """The array in host memory: on the CPU it is the array itself, not a copy.

    >>> to_numpy(np.ones(2))
    array([1., 1.])
    """
    return np.asarray(array)
