"""Copies of CuPy arrays with any strides: the one way in which values are moved unchanged. CuPy's own copy of arrays
with gaps reaches two fifths of the memory bandwidth, and needs one launch for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import cupy
import numpy as np

from ...common.primitives import Index
from .. import launch

FILE = "indexing/copies.cu"
UNITS = {16: "int4", 8: "unsigned long long", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}  # by bytes
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [(FILE, (("UNIT", unit),)) for unit in UNITS.values()]
PARTS, KINDS, AXES = 128, 8, 6             # per launch, as in the kernel's table
TILE, TILE_SIDE = 1024, 32                 # values of a tile, and of its side if the array has that many


class _Box(NamedTuple):
    """What is copied, without its address. Its axes, the innermost of the target first: size and strides in bytes."""

    axes: tuple[tuple[int, int, int], ...]
    from_offset: int                       # bytes from an array's first element to the first that is copied
    to_offset: int
    bits: int                              # the lowest bit that is set is the largest possible unit
    tiled: bool


def copy_into(pairs: Iterable[tuple[cupy.ndarray, cupy.ndarray | None]], value: float | np.ndarray = 0) -> None:
    """to[...] = x for each pair (to, x) of arrays of one shape and dtype; if x is None, to[...] = value.

    Up to 128 copies are one launch. Targets and sources must not overlap. Raises ValueError for an array that is not on
    the current device.
    """
    boxes: list[tuple[_Box, int, int]] = []
    held: list[cupy.ndarray | None] = []
    item, device = 1, launch.kernels._current_device()
    for to, x in pairs:
        if not to.size:
            continue
        for array in (to,) if x is None else (to, x):
            if array.data.device_id != device:
                raise ValueError(f"copy: an array of shape {array.shape} is on device {array.data.device_id} but the "
                                 f"current device is {device}; use one device")
        item = to.itemsize
        box = _box(to.shape, None if x is None else x.strides, to.strides, item)
        if box is None or item not in UNITS or to.size > launch.MAX_ELEMENTS or (x is None and item > 8):
            to[...] = value if x is None else x
            continue
        held.append(x)                     # they live until the launch
        boxes.append((box, 0 if x is None else x.data.ptr + box.from_offset, to.data.ptr + box.to_offset))
    repeated = 0
    if any(x is None for x in held):
        repeated = int.from_bytes(np.asarray(value).astype(to.dtype).tobytes() * (8 // item), "little")
    for tiled in (False, True):
        those = [each for each in boxes if each[0].tiled == tiled]
        bits = functools.reduce(lambda bits, each: bits | each[0].bits | each[1] | each[2], those, 16)
        for some in _launches(those):
            start, tail = _table(tuple(box for box, _, _ in some), item if tiled else bits & -bits, item)
            addresses = np.zeros(2 * PARTS + 1, np.uint64)
            addresses[:len(some)] = [source for _, source, _ in some]
            addresses[PARTS:PARTS + len(some)] = [target for _, _, target in some]
            addresses[-1] = repeated
            start(addresses.tobytes() + tail)


def view_of(x: cupy.ndarray, index: Index) -> cupy.ndarray:
    """x[index] for an index that gives a view; it is an array even if it has one element."""
    parts = index if isinstance(index, tuple) else (index,)
    return x[parts if Ellipsis in parts else (*parts, Ellipsis)]


def dense_copy(x: cupy.ndarray) -> cupy.ndarray:
    """A copy in C order."""
    y = launch.empty(x.shape, x.dtype)
    copy_into([(y, x)])
    return y


launch.misfits.copied = dense_copy


def _launches(boxes: Sequence[tuple[_Box, int, int]]) -> Iterator[list[tuple[_Box, int, int]]]:
    """Copies in their order, as many at a time as a table holds."""
    some: list[tuple[_Box, int, int]] = []
    kinds: set[_Box] = set()
    for each in boxes:
        if len(some) == PARTS or len(kinds | {each[0]}) > KINDS:
            yield some
            some, kinds = [], set()
        some.append(each)
        kinds.add(each[0])
    if some:
        yield some


@functools.lru_cache(maxsize=4096)
def _box(shape: tuple[int, ...], from_strides: tuple[int, ...] | None, to_strides: tuple[int, ...],
         item: int) -> _Box | None:
    """The copy of an array, its axes joined if they can be; None if it does not fit into a table."""
    given = [axis for axis in zip(shape, from_strides or [0] * len(shape), to_strides, strict=True) if axis[0] > 1]
    from_offset = sum((n - 1) * source for n, source, target in given if target < 0)
    to_offset = sum((n - 1) * target for n, _, target in given if target < 0)
    given = [(n, source if target > 0 else -source, abs(target)) for n, source, target in given]
    axes: list[tuple[int, int, int]] = []
    for n, source, target in sorted(given, key=lambda axis: axis[2]):
        if axes and (source, target) == (axes[-1][0] * axes[-1][1], axes[-1][0] * axes[-1][2]):
            axes[-1] = n * axes[-1][0], *axes[-1][1:]
        else:
            axes.append((n, source, target))
    axes = axes or [(1, item if from_strides is not None else 0, item)]
    if len(axes) > AXES or max(abs(stride) for axis in axes for stride in axis[1:]) // item > launch.MAX_ELEMENTS:
        return None
    n, source, target = axes[0]
    lying = min(range(len(axes)), key=lambda a: abs(axes[a][1]) or math.inf)       # the source's innermost axis
    tiled = lying > 0 and 0 < abs(axes[lying][1]) < abs(source) and 1 << sum(_tile(axes[lying][0], n)) == TILE
    if tiled:
        axes.insert(1, axes.pop(lying))
    bits = item
    if target == item and (source == item or from_strides is None):
        bits = n * item
        for _, source, target in axes[1:]:
            bits |= abs(source) | target
    return _Box(tuple(axes), from_offset, to_offset, bits, tiled)


@functools.lru_cache(maxsize=4096)
def _table(boxes: tuple[_Box, ...], unit: int, item: int) -> tuple[Callable[..., None], bytes]:
    """The launch of some copies, and the end of its table: all but addresses and the value."""
    table = np.zeros((), launch.struct("Boxes"))
    kinds = list(dict.fromkeys(boxes))
    most = 1
    for kind, box in enumerate(kinds):
        for axis, (n, source, target) in enumerate(box.axes):
            at = kind * AXES + axis
            table["size"][at] = n
            if unit != item and not axis:  # it is contiguous on both sides
                table["size"][at], source, target = n * item // unit, source and unit, unit
            table["from_stride"][at], table["to_stride"][at] = source // unit, target // unit
        sizes = table["size"][kind * AXES:kind * AXES + len(box.axes)].tolist()
        blocks = launch.spread(math.prod(sizes))
        if box.tiled:
            low, high = _tile(sizes[1], sizes[0])
            table["low"][kind], table["high"][kind] = low, high
            sizes[:2] = [launch.blocks(sizes[1], 1 << low),
                         launch.blocks(sizes[0], 1 << high)]
            blocks = min(math.prod(sizes), launch.spread(launch.MAX_ELEMENTS))
        for at, size in enumerate(sizes, kind * AXES):         # see the kernel's divided()
            shift = table["shift"][at] = (size - 1).bit_length()
            table["magic"][at] = -(-(1 << 31 + shift) // size)
        table["axes"][kind], table["count"][kind] = len(box.axes), math.prod(sizes)
        most = max(most, blocks)
    table["kind"][:len(boxes)] = [kinds.index(box) for box in boxes]
    kernel = launch.kernel(FILE, "copy_tiles" if boxes[0].tiled else "copy_boxes", ("UNIT", UNITS[unit]))
    return (kernel.sized((most, len(boxes)), (launch.THREADS,)), table.tobytes()[(2 * PARTS + 1) * 8:])


def _tile(across: int, down: int) -> tuple[int, int]:
    """Binary logarithms of a tile's sides. A tile has TILE values, or fewer if the array has fewer along both axes."""
    low, high = ((n - 1).bit_length() for n in (across, down))
    side, all_of_it = TILE_SIDE.bit_length() - 1, TILE.bit_length() - 1
    low, high = min(low, max(side, all_of_it - high)), min(high, max(side, all_of_it - low))
    return low, high
