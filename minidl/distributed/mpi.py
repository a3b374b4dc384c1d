"""The ranks by MPI (mpi4py): it starts them, agrees between them, and moves what is in the host's memory. What is on
GPUs goes from rank to rank by NCCL, through CuPy: one GPU per rank."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..core import pools, rng
from ..core.device import Array, is_cuda, resolve
from ..core.host import install
from ..ops.common.ranks import weight
from ..ops.cpu import parallel
from . import witness
from .failure import STAGGER, Ends
from .world import Launched, World

if TYPE_CHECKING:
    from mpi4py import MPI

STDERR = 2
# Multicast needs rights that containers lack. Sums in graphs and other sums come one after the other here; NCCL would
# add nodes to each graph to make sure of that.
SETTINGS = "NCCL_NVLS_ENABLE", "NCCL_GRAPH_MIXING_SUPPORT"
CLOSING = 5.0                              # s that NCCL has for letting go
T = TypeVar("T")


def together(found: Launched) -> MPI.Comm:
    """MPI's communicator of all processes that a launcher has started.

    Raises ImportError without mpi4py, and ValueError if MPI finds other processes than the launcher says.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError(f"distributed: {found.by} has started {found.size} processes but mpi4py cannot be imported "
                          f"({error}); run {install('mpi')}, or start one process without it") from None
    comm = MPI.COMM_WORLD.Dup()
    if (comm.rank, comm.size) != (found.rank, found.size):
        raise ValueError(f"distributed: {found.by} says that this is rank {found.rank} of {found.size} but MPI "
                         f"({' '.join(MPI.Get_library_version().split()[:3])}) finds rank {comm.rank} of {comm.size}; "
                         f"start with the mpiexec of that MPI, which {install('mpi')} brings, or build mpi4py with "
                         "yours")
    return comm


class Mpi(World):
    """The world of ranks that MPI joins; between GPUs NCCL moves the arrays."""

    def __init__(self, comm: MPI.Comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.words = comm.Dup()            # on which nothing else waits
        self.apart = True                  # nothing joins the GPUs, or nothing any more
        host = os.uname().nodename if hasattr(os, "uname") else ""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        others: list[Any] = self.gather((host, cores))
        self.host, self.place = host, sum(there == host for there, _ in others[:self.rank])    # among those of the host
        self.here = sum(there == host for there, _ in others)
        choose(self.place, self.here)
        if "MINIDL_NUM_THREADS" not in os.environ:     # ranks that may use the same cores share them out
            os.environ["MINIDL_NUM_THREADS"] = str(max(1, parallel.threads() // others.count((host, cores))))
            parallel.threads.cache_clear()

    # ------------------------------------------------------------------ arrays
    def sum(self, flat: Array) -> None:
        """As World.sum. The order in which MPI adds depends only on the number of ranks and of numbers."""
        if is_cuda(flat):
            return self.gpus.sum(flat)
        from mpi4py import MPI

        self.comm.Allreduce(MPI.IN_PLACE, flat)

    def mean(self, flat: Array, share: float | None = None) -> None:
        """As World.mean."""
        share = 1 / self.size if share is None else share
        gpus = is_cuda(flat)               # there NCCL divides by the number of ranks
        by = weight(share, self.size) if gpus else share
        if not by:
            flat.fill(0)
        elif by != 1:
            flat *= flat.dtype.type(by)
        (self.gpus.mean if gpus else self.sum)(flat)

    def broadcast(self, flat: Array) -> None:
        """As World.broadcast."""
        if is_cuda(flat):
            return self.gpus.broadcast(flat)
        self.comm.Bcast(flat)

    # ------------------------------------------------------------------ objects
    def tell(self, value: T) -> T:
        """As World.tell."""
        return self.comm.bcast(value)

    def gather(self, value: T) -> list[T]:
        """As World.gather."""
        return self.comm.allgather(value)

    def barrier(self) -> None:
        """As World.barrier."""
        self.comm.Barrier()

    # ------------------------------------------------------------------ devices
    def prepare(self, device: str) -> None:
        """As World.prepare."""
        asked = self.gather(device)
        if len(set(asked)) > 1:
            raise ValueError(f"distributed: the ranks compute on {', '.join(asked)} but must all compute on one "
                             "kind of device; say --device cpu or --device cuda")
        if device == "cuda":
            self.gpus  # noqa: B018  # joins them, or says why not

    @functools.cached_property
    def gpus(self) -> Nccl:
        """What moves arrays on GPUs, made for the first one; all ranks make it together."""
        return Nccl(self)

    # ------------------------------------------------------------------ the end
    def end(self, error: str = "", status: int = 2, tell: Callable[[str], Any] = print) -> int:
        """As World.end."""
        return self.ends.end(error, status, tell)

    def watch(self) -> None:
        """Be seen by the witness of this machine, and end with the others."""
        path = witness.begin(self.here) if self.place == 0 else ""
        paths = self.gather((self.host, path))
        path = next(there for host, there in paths if there and host == self.host)
        self.connection = witness.connect(path, self.rank, self.size)
        self.barrier()
        if self.place == 0:
            witness.remove(path)
        self.ends = Ends(self)
        rng.set_rank(self.rank)

    def meet(self, word: str, patience: float | None) -> list[str] | None:
        """Each rank's word, cut to 1,000 bytes, once all have come here; None if they do not within `patience`
        seconds."""
        mine, all_ = bytearray(1000), bytearray(1000 * self.size)
        cut = word.encode()[:1000]
        mine[:len(cut)] = cut
        request, begin = self.words.Iallgather(mine, all_), time.monotonic()
        while not request.Test():
            if patience is not None and time.monotonic() > begin + patience:
                return None
            time.sleep(0.01)
        return [all_[i:i + 1000].rstrip(b"\0").decode(errors="replace") for i in range(0, len(all_), 1000)]

    def abort(self, status: int) -> None:
        """End all ranks at once, with an exit status. What MPI says of it is not shown."""
        time.sleep(STAGGER)                  # for the launcher to pass on what was said
        self.connection.sendall(witness.END)
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)
        self.comm.Abort(status)

    def close(self) -> None:
        """Let go of all that keeps the process from ending."""
        from mpi4py import MPI

        if "gpus" in vars(self):
            self.apart = self.gpus.close()
        self.connection.sendall(witness.GOODBYE)
        MPI.Finalize()


# ---------------------------------------------------------------------- between GPUs
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
