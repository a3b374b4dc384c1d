"""What is on GPUs goes from rank to rank by NCCL, through CuPy: one GPU per rank."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import pools
from ..core.device import Array, resolve
from ..core.host import install

if TYPE_CHECKING:
    from .mpi import Mpi

# Multicast needs rights that containers lack. Sums in graphs and other sums come one after the other here; NCCL would
# add nodes to each graph to make sure of that.
SETTINGS = "NCCL_NVLS_ENABLE", "NCCL_GRAPH_MIXING_SUPPORT"
CLOSING = 5.0                              # s that NCCL has for letting go


def choose(place: int, here: int) -> None:
    """Of the GPUs that CUDA may use, leave this process one: that of its place among the ranks of its machine.

    It has no effect once CUDA has begun in this process. If a launcher has given each rank its own, or fewer than
    one each, nothing is changed.
    """
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = [str(i) for i in range(here)] if told is None else [one for one in told.split(",") if one]
    if len(visible) >= here > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[place]


class Nccl:
    """The ranks' GPUs, joined.

    Raises ValueError, on all ranks, if a rank has no GPU to itself, or NCCL is missing.
    """

    def __init__(self, world: Mpi):
        gpus = [name or error for name, error in world.gather(_gpu())]
        for rank, gpu in enumerate(gpus):
            if not gpu.startswith("GPU "):
                raise ValueError(f"distributed: rank {rank} of {world.size} cannot compute on a GPU: {gpu}")
            if gpu in gpus[:rank]:
                raise ValueError(f"distributed: ranks {gpus.index(gpu)} and {rank} would both use {gpu} but each needs "
                                 "its own; start as many ranks as there are GPUs, and call distributed.start() before "
                                 "anything uses CUDA")
        for name in SETTINGS:
            os.environ.setdefault(name, "0")
        import cupy
        from cupy.cuda import nccl

        self.types = {np.dtype(np.float32): nccl.NCCL_FLOAT32, np.dtype(np.float64): nccl.NCCL_FLOAT64,
                      np.dtype(np.int64): nccl.NCCL_INT64}
        self.add, self.average, self.bytes = nccl.NCCL_SUM, nccl.NCCL_AVG, nccl.NCCL_UINT8
        number = world.tell(nccl.get_unique_id() if world.rank == 0 else None)
        self.device = cupy.cuda.Device()
        self.communicator = nccl.NcclCommunicator(world.size, number, world.rank)

    def sum(self, flat: Array) -> None:
        """As World.sum, on the current stream, which a graph may be capturing."""
        self._reduce(flat, self.add)

    def mean(self, flat: Array) -> None:
        """As World.mean, of ranks whose shares are alike."""
        self._reduce(flat, self.average)

    def _reduce(self, flat: Array, operation: int) -> None:
        if flat.dtype not in self.types:
            raise TypeError(f"distributed: the sum over ranks on GPUs takes float32, float64 and int64 but got "
                            f"{flat.dtype}; convert it")
        at, kind = flat.data.ptr, self.types[flat.dtype]
        self.communicator.allReduce(at, at, flat.size, kind, operation, _stream())

    def broadcast(self, flat: Array) -> None:
        """As World.broadcast."""
        self.communicator.bcast(flat.data.ptr, flat.nbytes, self.bytes, 0, _stream())

    def close(self) -> bool:
        """Release the other GPUs, once this one has done its work. Returns whether that came to an end: a sum waits for
        all ranks, and NCCL waits for graphs that hold it."""
        def work() -> None:
            with self.device:
                self.device.synchronize()
                for let_go in pools.at_end:
                    let_go()
                self.communicator.destroy()
        closing = threading.Thread(target=work, daemon=True)
        closing.start()
        closing.join(CLOSING)
        return not closing.is_alive()


def _gpu() -> tuple[str, str]:
    """("GPU ... of host", ""), or ("", what is missing)."""
    try:
        resolve("cuda")
        import cupy
        from cupy.cuda import nccl

        if not nccl.available:
            raise ValueError(f"CuPy finds no NCCL; run {install('nccl13')} (or {install('nccl12')})")
    except (ValueError, ImportError) as error:
        return "", str(error)
    device = cupy.cuda.Device()
    device.use()
    return f"GPU {device.pci_bus_id} of {os.uname().nodename}", ""


def _stream() -> Any:
    import cupy

    return cupy.cuda.get_current_stream().ptr
