"""Arrays of GPUs between the ranks by NCCL, through CuPy's bindings; MPI tells the ranks of each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import cupy

from ..compiler import graph
from ..device import Array

if TYPE_CHECKING:
    from .mpi import Mpi


class Nccl:
    """NCCL's communicator of all ranks of a world, each on a GPU of its own.

    Its sums go to the current stream, and can be captured in a graph. `close` has to be called before the process
    ends: with a communicator left, it may not end.

    Raises ValueError, on all ranks, where two of them are on one GPU; ImportError where CuPy finds no NCCL.
    """

    def __init__(self, world: Mpi):
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")           # NVLink multicast: some hosts hang in it
        bus = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.Device().id)
        places = world.gather((world.host, bus))
        for rank, place in enumerate(places):
            if (first := places.index(place)) < rank:
                gpus = len({gpu for host, gpu in places if host == place[0]})
                raise ValueError(f"distributed: ranks {first} and {rank} are both on GPU {place[1]} of {place[0]}, but "
                                 f"NCCL takes one rank per GPU, and the ranks there use {gpus}; start no more ranks "
                                 "than a machine has GPUs, call distributed.start() before an array goes to one, or "
                                 "train on the CPU")
        nccl = _nccl()
        self.types = {"f": nccl.NCCL_FLOAT32, "d": nccl.NCCL_FLOAT64, "l": nccl.NCCL_INT64, "b": nccl.NCCL_INT8,
                      "B": nccl.NCCL_UINT8, "?": nccl.NCCL_UINT8, "i": nccl.NCCL_INT32, "L": nccl.NCCL_UINT64}
        self.add = nccl.NCCL_SUM
        unique = world.tell(nccl.get_unique_id() if world.rank == 0 else None)
        self.comm = nccl.NcclCommunicator(world.size, unique, world.rank)
        self.sum(cupy.zeros(1, cupy.float32))          # connects the ranks, which cannot be done in a capture
        cupy.cuda.Device().synchronize()

    def sum(self, flat: Array) -> None:
        """As World.sum."""
        at = flat.data.ptr
        self.comm.allReduce(at, at, flat.size, self.types[flat.dtype.char], self.add, _stream())

    def broadcast(self, flat: Array) -> None:
        """As World.broadcast."""
        at = flat.data.ptr
        self.comm.broadcast(at, at, flat.size, self.types[flat.dtype.char], 0, _stream())

    def close(self) -> None:
        """Let go of the communicator, once the device has done all that it was given, and of the graphs that use it."""
        cupy.cuda.Device().synchronize()
        graph.let_go()
        self.comm.destroy()


def _stream() -> int:
    return cupy.cuda.get_current_stream().ptr


def _nccl() -> Any:
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise ImportError(f"distributed: CuPy finds no NCCL ({error}); run pip install 'minidl[nccl13]', or "
                          "'minidl[nccl12]' beside CUDA 12") from None
    if not getattr(nccl, "available", True):
        raise ImportError("distributed: CuPy finds no NCCL; run pip install 'minidl[nccl13]', or 'minidl[nccl12]' "
                          "beside CUDA 12")
    return nccl
