"""A region of a program as two launches of kernels that are generated for it: one with a block per image, or per two of
them, one for the sums."""

from __future__ import annotations

import functools
import sys
from typing import NamedTuple

import cupy
import numpy as np

from ....core.device import leaves_room
from ...common.primitives import Array
from ...common.region import Region, by_steps
from .. import launch
from .emit import Emitted, emit

__all__ = ["can_region_step", "region_step"]

SUM_THREADS, SUM_TILES = 256, 12288        # of sums, and numbers in shared memory: as in sums.cuh


class Size(NamedTuple):
    """Of the blocks, which have a multiprocessor each."""

    threads: int
    shares: int                            # an image's sums are divided as among this many threads: their order
    images: int                            # that a block takes at once
    rounds: int                            # one after the other, up to which other kernels are not faster


ONE, TWO = Size(640, 640, 1, 8), Size(768, 512, 2, 16)
SHARING = Size(768, 640, 2, 8)             # other processes have other multiprocessors: the same sums as of ONE


def constants(threads: int) -> tuple[launch.Constant, ...]:
    """Of a generated source."""
    return launch.real(np.dtype("float32")), ("THREADS_PER_BLOCK", threads), *launch.POISON


class Generated(NamedTuple):
    """A region's two kernels, and what is the same in every call of them."""

    emitted: Emitted
    step: launch.Kernel
    sums: launch.Kernel
    blocks: int
    threads: int


@functools.lru_cache(maxsize=64)
def _generated(region: Region, beside: bool) -> Generated | None:
    first = TWO if region.n > launch.multiprocessors() else SHARING if beside else ONE
    for size in dict.fromkeys((first, ONE)):
        blocks = min(-(-region.n // size.images), launch.multiprocessors())
        if region.n > size.rounds * size.images * blocks:
            continue
        emitted = emit(region, blocks, size.shares, size.images, launch.most_shared() // 4)
        if emitted is not None:
            text = launch.pasted("region_step.cu", emitted.text, set())
            step, sums = (launch.generated("region_step.cu", text, name, *constants(size.threads))
                          for name in ("region_step", "sums"))
            return Generated(emitted, step, sums, blocks, size.threads)
    return None


def can_region_step(region: Region) -> bool:
    """Whether there is a kernel for a region."""
    return _generated(region, leaves_room()) is not None


def region_step(region: Region, *arrays: cupy.ndarray) -> tuple[Array, ...]:
    """The outputs of a region, for its inputs."""
    kernels = _generated(region, leaves_room())
    if kernels is None or not all(array.flags.c_contiguous and array.data.ptr % 16 == 0 for array in arrays):
        return by_steps(region, sys.modules[__package__.rpartition(".")[0]], arrays)
    emitted = kernels.emitted
    found = {f"a{value.number}": array for value, array in zip(region.inputs, arrays)}
    for made in emitted.sums, emitted.outputs:       # gradients first: an output of their size may not take their place
        found |= {name: launch.empty(shape, np.dtype("float32")) for name, shape in made.items()}
    kernels.step((kernels.blocks,), (kernels.threads,), *map(found.__getitem__, (*emitted.inputs, *emitted.outputs)),
              shared=emitted.shared * 4)
    kernels.sums((emitted.blocks,), (SUM_THREADS,), *map(found.__getitem__, (*emitted.terms, *emitted.sums)),
              shared=SUM_TILES * 4)
    return tuple(found[name].reshape(region.shapes[output.number])
                 for name, output in zip(emitted.results, region.outputs))
