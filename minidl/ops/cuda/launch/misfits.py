"""Arrays that a kernel cannot read as they are: copied, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import cupy
import numpy as np

copied: Callable[[cupy.ndarray], cupy.ndarray] = cupy.ascontiguousarray        # indexing/copies.py sets its own
MAX_ELEMENTS = 2**31 - 1                   # of an array: kernels index with 32-bit integers


def fitted(what: str, dtype: np.dtype, kind: str, x: object) -> cupy.ndarray:
    """An array as a kernel takes it: a dense copy, if that is all it lacks. Itself, if its dtype is the kernel's in
    another object, as that of an unpickled array is."""
    if not isinstance(x, cupy.ndarray):
        raise TypeError(f"{what} is a {type(x).__name__} but must be a CuPy array; move it with .to('cuda')")
    if x.dtype != dtype:
        raise TypeError(f"{what} has dtype {x.dtype} but the kernel reads {dtype}; convert it first")
    if x.size > MAX_ELEMENTS:
        raise ValueError(f"{what} has {x.size} elements but kernels count to {MAX_ELEMENTS}; use smaller batches")
    if kind == "out" and not x.flags.c_contiguous:
        raise ValueError(f"{what} has shape {x.shape} and strides {x.strides} but is written, in C order without gaps; "
                         "pass memory from empty()")
    return dense(x)


def dense(x: cupy.ndarray) -> cupy.ndarray:
    """x in C order without gaps: x itself if it is so."""
    return x if x._c_contiguous else copied(x)


def refuse(name: str, what: str, i: int, x: cupy.ndarray, p: cupy.ndarray) -> NoReturn:
    """Raise ValueError for an array that an update is given with parameter p and that is not like p."""
    words = [f"shape {a.shape} and dtype {a.dtype} on device {a.data.device_id}" for a in (x, p)]
    raise ValueError(f"{name}: {what} {i} has {words[0]} and strides {x.strides} but must have no gaps and be on the "
                     f"current device, like its parameter of {words[1]}; make it anew")
