"""Where arrays live, and what holds for all computing there: precision and the memory that kernels may borrow.

CuPy is imported when the first array goes to a CUDA device, or is wanted there: the import takes a third of a second.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from .host import install

Array = Any                                # of a backend: numpy.ndarray or cupy.ndarray
DType = np.dtype | type | str | None       # what names a dtype

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("fp32", "3xtf32", "tf32", "bf16")

_precision = "fp32"
_workspace_limit = 256 * 2**20
_leaves_room = False


def set_precision(precision: str) -> None:
    """How CUDA devices compute products of float32 arrays, in convolutions, attention and linear layers. "fp32": fused
    multiply-adds in float32 (the default). "tf32": tensor cores on operands of 10 bits of mantissa. "3xtf32": each
    operand as the sum of two tf32 numbers, three products: nearly float32's accuracy. "bf16": operands rounded to 7
    bits, or as for "tf32"; compiled steps also store images between convolutions in bfloat16. Sums are always float32.
    It has no effect on the CPU, nor on float64.

    Raises ValueError for another name.

    >>> set_precision("fp32")
    """
    global _precision
    if precision not in PRECISIONS:
        raise ValueError(f"set_precision: precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    _precision = precision


def precision() -> str:
    """What `set_precision` last said.

    >>> precision()
    'fp32'
    """
    return _precision


def leave_room(on: bool) -> None:
    """Whether what is compiled from here on leaves room on the multiprocessors of a CUDA device for what other
    processes compute at the same time. Alone it is slower; results are the same."""
    global _leaves_room
    _leaves_room = on


def leaves_room() -> bool:
    """What `leave_room` last said."""
    return _leaves_room


def set_workspace_limit(limit: int) -> None:
    """The most bytes that a CUDA convolution may borrow for unrolled images and partial sums; 256 MiB at first.

    An algorithm that needs more works through the images in parts. Raises ValueError for less than 1 MiB.

    >>> set_workspace_limit(256 * 2**20)
    """
    global _workspace_limit
    if not isinstance(limit, int) or limit < 2**20:
        raise ValueError(f"set_workspace_limit: limit is {limit!r} but must be an int of at least {2**20} (bytes)")
    _workspace_limit = limit


def workspace_limit() -> int:
    """What `set_workspace_limit` last said, in bytes."""
    return _workspace_limit


# ---------------------------------------------------------------- which device
def resolve(device: str) -> str:
    """Turn what a user asked for ("auto", "cpu", "cuda") into the device that is used.

    "auto" is "cuda" if there are a GPU and CuPy, else "cpu". Raises ValueError for an unknown name, and for
    "cuda" if it cannot be used: the message says what is missing. "cuda:0" is "cuda".

    >>> resolve("cpu")
    'cpu'
    """
    if device == "cpu":
        return "cpu"
    if device == "auto":
        return "cpu" if _missing() else "cuda"
    if device not in ("cuda", "cuda:0"):
        raise ValueError(f"device: {device!r} is not one of {', '.join(DEVICES)}")
    missing = _missing()
    if missing:
        raise ValueError(f"device: 'cuda' was asked for but {missing}, or use device 'cpu'")
    return "cuda"


@functools.cache
def _missing() -> str:
    """What keeps this machine from computing with CUDA and the way out; empty if nothing does."""
    gpu = has_nvidia_gpu()
    if importlib.util.find_spec("cupy") is None:
        return (f"CuPy is not installed; run {install('cuda13')} (or {install('cuda12')} for a driver older than 580)"
                if gpu else "there is no NVIDIA GPU here (and no CuPy); use a machine that has one")
    try:
        import cupy
    except ImportError as error:           # CuPy's own message has rulers of "=" around its text
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")] or ["no reason given"]
        reason = lines[-1] if "Original error:" in lines else lines[0]
        return f"CuPy cannot be imported ({reason}); install it anew: {install('cuda13')}"
    runtime = cupy.cuda.runtime
    try:
        if runtime.getDeviceCount():
            return ""
    except runtime.CUDARuntimeError as error:
        if "InsufficientDriver" in str(error) and gpu:
            return (f"the NVIDIA driver is too old for CUDA {_version(runtime.runtimeGetVersion())}, which CuPy was "
                    f"built for (the driver knows {_version(runtime.driverGetVersion())}); update the driver, or "
                    f"run pip uninstall cupy-cuda13x, then {install('cuda12')}")
    return "there is no NVIDIA GPU that CUDA can use here; use a machine that has one"


def has_nvidia_gpu() -> bool:
    """Whether the NVIDIA driver runs on this machine, as far as can be seen without CuPy."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists()


def _version(number: int) -> str:
    """CUDA's version number, 13010, as "13.1"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def flags(who: str, **given: object) -> None:
    """Refuse what is not True or False: a name in the place of a flag, as of a dtype or an activation, counts as True.

    >>> flags("sort", descending="stable")
    Traceback (most recent call last):
    ValueError: sort: descending is 'stable' but must be True or False
    """
    for what, flag in given.items():
        if not isinstance(flag, bool) and (np.ndim(flag) or flag not in (False, True)):    # type: ignore[arg-type]
            raise ValueError(f"{who}: {what} is {flag!r} but must be True or False")


def no_flags(who: str, **given: object) -> None:
    """Refuse True and False in the place of a number, where they count as 1 and 0.

    >>> no_flags("elu", alpha=True)
    Traceback (most recent call last):
    ValueError: elu: alpha is True but must be a number; a flag goes by its name
    """
    for what, number in given.items():
        if isinstance(number, (bool, np.bool_)):
            raise ValueError(f"{who}: {what} is {number!r} but must be a number; a flag goes by its name")


def unmasked(who: str, data: object) -> None:
    """Raise ValueError if data is a NumPy masked array with masked values, or nested lists with one: an ordinary array
    would have some number in each of these places, and no mask.

    >>> unmasked("Tensor", np.ma.masked_array([1.0, -999.0], mask=[False, True]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: Tensor: data is masked at 1 of 2 places, and a Tensor has no mask; pass data.filled(number), or ...
    """
    for array in data if isinstance(data, (list, tuple)) else (data,):
        if isinstance(array, (list, tuple)):
            unmasked(who, array)
        elif isinstance(array, np.ndarray) and array.__class__ is not np.ndarray:
            count = np.count_nonzero(getattr(array, "mask", False))
            if count:
                raise ValueError(f"{who}: data is masked at {count} of {array.size} places, and a Tensor has no mask; "
                                 "pass data.filled(number), or leave these items out")


def as_array(data: object, dtype: DType = None) -> Array:
    """Data as an array of a dtype: itself if it is one, a CuPy array if it is on a GPU, else a NumPy array in the
    machine's byte order."""
    if type(data) is not np.ndarray and not is_cuda(data) and hasattr(data, "__cuda_array_interface__"):
        import cupy

        data = cupy.asarray(data)
    if is_cuda(data):
        return data.astype(dtype or data.dtype, copy=False)
    array = np.asarray(data, dtype=dtype)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def lends_memory(data: object) -> bool:
    """Whether data is an array of anybody's: NumPy takes its numbers as they are, and as a rule shares their memory.

    >>> lends_memory(memoryview(b"ab")), lends_memory([1.0])
    (True, False)
    """
    if hasattr(data, "__array__"):
        return True
    try:
        memoryview(data)                   # type: ignore[arg-type]  # which tells by an error
    except TypeError:
        return False
    return True


def holds_float64(data: object) -> bool:
    """Whether nested lists hold arrays or NumPy's numbers of float64; Python's floats have no dtype.

    >>> holds_float64([[1.0, 2], (np.float64(3),)]), holds_float64([1.0, np.float32(2)])
    (True, False)
    """
    if isinstance(data, (list, tuple)):
        kinds = set(map(type, data)) - {float, int, bool}
        return any(holds_float64(item) for item in data if type(item) in kinds) if kinds else False
    return lends_memory(data) and np.asarray(data).dtype == np.float64


def holds(dtype: np.dtype, number: float | np.number) -> bool:
    """Whether a number is one of a dtype's; floating dtypes round it."""
    if dtype.kind == "f":
        return True
    low, high = (0, 1) if dtype == np.bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(low <= number <= high and number == int(number))


def device_of(array: object) -> str:
    """Name the device that holds an array.

    >>> device_of(np.zeros(3))
    'cpu'
    """
    if is_cuda(array):                     # first: the emulator's arrays, which replace CuPy's, are NumPy's too
        return "cuda"
    if isinstance(array, (np.ndarray, np.generic)):
        return "cpu"
    raise TypeError(f"device: a {type(array).__name__} is not an array of a known device; pass a numpy.ndarray")


def destination(device: DType, dtype: DType) -> tuple[str | None, DType]:
    """(device, dtype) of `to`, whose first argument may be either.

    >>> destination("cpu", None), destination("float64", None)
    (('cpu', None), (None, 'float64'))
    """
    if dtype is None and device is not None and not (isinstance(device, str) and device.split(":")[0] in DEVICES):
        try:
            np.dtype(device)
            return None, device
        except TypeError:                  # neither: resolve says what it may be
            pass
    return device, dtype  # type: ignore[return-value]  # a device is a text, or is refused


def is_array(value: object) -> TypeGuard[Array]:
    """Whether something is an array of a known device.

    >>> is_array(np.zeros(3)), is_array([0, 0])
    (True, False)
    """
    return isinstance(value, np.ndarray) or is_cuda(value)


def is_cuda(array: object) -> TypeGuard[Array]:
    """Whether something is a CuPy array; if there is one, CuPy was imported before."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def address(array: Array) -> int:
    """Where an array begins in its device's memory."""
    start: int = array.data.ptr if is_cuda(array) else array.__array_interface__["data"][0]
    return start


def owner(array: object) -> object:
    """The array that owns the memory of a view, or of a view's view; anything else as it is.

    >>> a = np.ones((2, 3))
    >>> owner(a) is a, owner(a[0].T) is a
    (True, True)
    """
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array


def span(array: Array) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one behind its last.

    >>> a = np.ones((2, 3), np.float32)
    >>> [at - address(a) for at in span(a[:, ::-2])]
    [0, 24]
    """
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)] if array.size else []
    start = address(array)
    return start + sum(step for step in reach if step < 0), \
        start + (array.itemsize if array.size else 0) + sum(step for step in reach if step > 0)


def to_device(array: Array, device: str) -> Array:
    """Move an array to a device; the same array comes back when it is there already.

    >>> a = np.ones(2)
    >>> to_device(a, "cpu") is a
    True
    """
    if resolve(device) == device_of(array):
        return array
    if is_cuda(array):
        return to_numpy(array)
    import cupy

    # In NumPy's own dtype, by which launches are faster, and in C order, in which updates find parameters.
    return cupy.asarray(np.asarray(array.view(np.dtype(array.dtype.str)), order="C"))


def to_numpy(array: Array) -> np.ndarray:
    """The array in host memory: on the CPU it is the array itself, not a copy.

    >>> to_numpy(np.ones(2))
    array([1., 1.])
    """
    return array.get() if is_cuda(array) else np.asarray(array)
