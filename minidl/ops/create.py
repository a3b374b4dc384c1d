"""Tensors of zeros, ones, numbers in a row and random numbers, by the names that PyTorch has for them.

Shapes are ints or one tuple: `zeros(2, 3)`, `zeros((2, 3))`. Random numbers come from minidl's counter-based generator:
each call takes its next key, which alone decides them, on all devices and in compiled steps, where each replay takes
the next one, too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core import rng
from ..core.device import DType, is_array, lends_memory, no_flags, to_device
from ..core.mode import mode
from ..core.tensor import Tensor
from .common.backend import primitives_of
from .common.geometry import is_int


def _sizes(name: str, *shape: Any) -> tuple[int, ...]:
    """Sizes that are given one by one, or as a tuple. Raises ValueError for what is not a size."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    for size in sizes:
        _int(name, "a size", size, 0)
    return sizes


def _int(name: str, what: str, value: object, least: float) -> None:
    if not is_int(value, least):
        must = "an int" if least == -math.inf else f"an int of at least {least}"
        raise ValueError(f"{name}: {what} is {value!r} but must be {must}")


def _constant(array: np.ndarray, device: str | None, requires_grad: bool = False) -> Tensor:
    there = array if device is None else to_device(array, device)
    return Tensor(there if requires_grad else mode.recorder.constant(there), requires_grad)


def tensor(data: Any, *, dtype: DType = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A Tensor with a copy of the data; `Tensor(array)` shares an array's memory.

    >>> tensor([1.0, 2.0]).shape
    (2,)
    """
    if is_array(data):
        data = data.copy()
    elif lends_memory(data) and not isinstance(data, Tensor):
        data = np.asarray(data).copy()
    return Tensor(data, requires_grad, device, dtype)


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor that shares an array's memory, as `Tensor(array)`.

    Raises TypeError for other things, and for another byte order than the machine's: they would be copied.

    >>> from_numpy(np.ones(2)).dtype
    dtype('float64')
    """
    held = np.asarray(array) if hasattr(array, "__array__") and not is_array(array) else array
    if not is_array(held) or not held.dtype.isnative:
        what = f"an array of {held.dtype}" if is_array(held) else f"a {type(array).__name__}"
        raise TypeError(f"from_numpy: got {what} but takes an array in the machine's byte order, whose memory it "
                        "shares; Tensor(data) copies")
    return Tensor(held)


def full(shape: int | tuple[int, ...], value: float, *, dtype: DType = None, device: str | None = None,
         requires_grad: bool = False) -> Tensor:
    """One value everywhere; float32 for a floating number, int64 for an int, bool for a bool.

    >>> full((2, 2), 0.5).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    chosen = dtype or (np.float32 if isinstance(value, float) else None)
    return _constant(np.full(_sizes("full", shape), value, chosen), device, requires_grad)


def zeros(*shape: int | tuple[int, ...], dtype: DType = np.float32, device: str | None = None,
          requires_grad: bool = False) -> Tensor:
    """Zeros of a shape.

    >>> zeros(2, 3).shape
    (2, 3)
    """
    return _constant(np.zeros(_sizes("zeros", *shape), dtype), device, requires_grad)


def ones(*shape: int | tuple[int, ...], dtype: DType = np.float32, device: str | None = None,
         requires_grad: bool = False) -> Tensor:
    """Ones of a shape."""
    return _constant(np.ones(_sizes("ones", *shape), dtype), device, requires_grad)


def eye(rows: int, columns: int | None = None, *, dtype: DType = np.float32, device: str | None = None) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    for size in (rows, rows if columns is None else columns):
        _int("eye", "a size", size, 0)
    return _constant(np.eye(rows, columns, dtype=dtype), device)


def arange(start: float, end: float | None = None, step: float = 1, *, dtype: DType = None,
           device: str | None = None) -> Tensor:
    """start, start + step, ... up to, and without, end; arange(n) counts from 0. int64, or float32 for floats.

    >>> arange(3).tolist(), arange(1, 2, 0.5).tolist()
    ([0, 1, 2], [1.0, 1.5])
    """
    no_flags("arange", start=start, end=end, step=step)
    if step == 0:
        raise ValueError(f"arange: step is {step!r} but must be a number above or below 0")
    values = np.arange(0, start, step) if end is None else np.arange(start, end, step)
    return _constant(values.astype(dtype or (np.float32 if values.dtype.kind == "f" else np.int64)), device)


def linspace(start: float, end: float, steps: int, *, dtype: DType = np.float32, device: str | None = None) -> Tensor:
    """`steps` values from start to end, both included, at equal distances."""
    no_flags("linspace", start=start, end=end)
    _int("linspace", "steps", steps, 0)
    return _constant(np.linspace(start, end, steps, dtype=dtype), device)


def _primitives(device: str | None) -> Any:
    """The primitives of a device, on which there is no array yet."""
    return primitives_of(to_device(np.empty(0), device or "cpu"))


def _key() -> Any:
    """What decides a call's random numbers: the next key, or in a compiled step each replay's."""
    return mode.recorder.dynamic(rng.next_shared_key)


def _drawn(name: str, primitive: str, shape: tuple[Any, ...], dtype: DType, device: str | None,
           requires_grad: bool) -> Tensor:
    """Floating random numbers of a primitive."""
    sizes, dtype = _sizes(name, *shape), np.dtype(dtype)
    if dtype.char not in "fd":
        raise TypeError(f"{name}: dtype is {dtype} but must be float32 or float64; convert with .to(dtype=...)")
    return Tensor(getattr(_primitives(device), primitive)(sizes, dtype.name, _key()), requires_grad)


def rand(*shape: int | tuple[int, ...], dtype: DType = np.float32, device: str | None = None,
         requires_grad: bool = False) -> Tensor:
    """Uniform in [0, 1).

    >>> bool((rand(100) < 1).all())
    True
    """
    return _drawn("rand", "uniform", shape, dtype, device, requires_grad)


def randn(*shape: int | tuple[int, ...], dtype: DType = np.float32, device: str | None = None,
          requires_grad: bool = False) -> Tensor:
    """Normal with mean 0 and variance 1.

    >>> randn(2, 3, requires_grad=True).shape
    (2, 3)
    """
    return _drawn("randn", "normal", shape, dtype, device, requires_grad)


def randint(low: int, high: int, shape: int | tuple[int, ...], *, device: str | None = None) -> Tensor:
    """Integers (int64) from low up to, and without, high. Raises ValueError for other numbers: 2.5 would be 2."""
    _int("randint", "low", low, -math.inf)
    _int("randint", "high", high, low + 1)
    if low < -2**63 or high >= 2**63:
        raise ValueError(f"randint: low and high are {low} and {high} but must be from -2**63 to 2**63 - 1")
    return Tensor(_primitives(device).integers(_sizes("randint", shape), int(low), int(high), _key()))


def randperm(n: int, *, device: str | None = None) -> Tensor:
    """0 to n - 1 (int64) in random order."""
    _int("randperm", "n", n, 0)
    k = _primitives(device)
    return Tensor(k.argsort(k.uniform((int(n),), "float64", _key()), 0))


def zeros_like(t: Tensor) -> Tensor:
    """Zeros of a Tensor's shape, dtype and device.

    >>> zeros_like(Tensor([1.0, 2.0])).tolist()
    [0.0, 0.0]
    """
    return zeros(t.shape, dtype=t.dtype, device=t.device)


def ones_like(t: Tensor) -> Tensor:
    """Ones of a Tensor's shape, dtype and device."""
    return ones(t.shape, dtype=t.dtype, device=t.device)


def full_like(t: Tensor, value: float) -> Tensor:
    """One value everywhere, in a Tensor's shape, dtype and device."""
    return full(t.shape, value, dtype=t.dtype, device=t.device)


def rand_like(t: Tensor) -> Tensor:
    """Uniform in [0, 1), in a Tensor's shape, dtype and device."""
    return rand(t.shape, dtype=t.dtype, device=t.device)


def randn_like(t: Tensor) -> Tensor:
    """Normal with mean 0 and variance 1, in a Tensor's shape, dtype and device."""
    return randn(t.shape, dtype=t.dtype, device=t.device)
