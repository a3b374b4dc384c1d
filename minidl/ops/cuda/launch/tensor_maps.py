"""Maps of arrays, for the hardware's copies of boxes (include/tensor_cores/tma.cuh), as the driver encodes them."""

from __future__ import annotations

import ctypes
import functools
import math

import cupy
import numpy as np

from .. import launch
from .device import driver

# Numbers that cuda.h has names for. TYPES (CUtensorMapDataType): 16 bits as they are; float32 as it is, and rounded to
# tf32 by the copy. MODES: not interleaved; rows of 128 bytes, swizzled; 256 bytes at once into the second-level cache;
# zeros outside the array
TYPES: dict[np.dtype, tuple[int, int]] = {np.dtype(np.uint16): (1, 1), np.dtype(np.float32): (7, 11)}
MODES = 0, 3, 3, 0
BYTES, ALIGNMENT = 128, 64                 # of what is encoded
MAX_BOX = 256                              # of a box's numbers along an axis


@functools.lru_cache(maxsize=4096)
def _encoded(address: int, shape: tuple[int, ...], dtype: np.dtype, box: tuple[int, ...], rounded: bool) -> bytes:
    buffer = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    offset = -ctypes.addressof(buffer) % ALIGNMENT
    axes, sizes = len(shape), shape[::-1]
    strides = [dtype.itemsize * math.prod(sizes[:axis]) for axis in range(1, axes)]
    error = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(buffer) + offset), TYPES[dtype][rounded], axes, ctypes.c_void_p(address),
        (ctypes.c_uint64 * axes)(*sizes), (ctypes.c_uint64 * (axes - 1))(*strides),
        (ctypes.c_uint32 * axes)(*box[::-1]), (ctypes.c_uint32 * axes)(*[1] * axes), *MODES)
    if error:
        raise RuntimeError(f"tensor_map: the driver refuses boxes of {box} of an array of {shape} in {dtype} at "
                           f"{address:#x} with error {error}; set another precision, or images in NCHW")
    return buffer.raw[offset:offset + BYTES]


def tensor_map(array: cupy.ndarray, box: tuple[int, ...], rounded: bool = True) -> bytes:
    """The map of a C-contiguous array, for copies of boxes of this shape.

    A box has at most 256 numbers along an axis, and 128 bytes along the last one. The array starts at a multiple of 16
    bytes, and so does each row along its last axis. rounded: float32 becomes tf32 in the copy.

    Raises ValueError for an array on another device than the current one.
    """
    current = launch.kernels._current_device()
    if array.data.device_id != current:
        raise ValueError(f"tensor_map: the array is on device {array.data.device_id} but the current device is "
                         f"{current}; use one device")
    return _encoded(array.data.ptr, array.shape, array.dtype, box, rounded)
