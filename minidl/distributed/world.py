"""The ranks of a run, seen from one of them: one class, whatever moves the numbers between them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..core import rng
from ..core.device import Array, is_cuda
from ..core.mode import Watched, mode

T = TypeVar("T")


# ---------------------------------------------------------------- what a launcher says
class Launched(NamedTuple):
    """This process is one of `size` that `by` has started together; its number among them is `rank`."""

    rank: int
    size: int
    by: str


Launch = Launched                          # its name up to 0.2
# By launcher: the variables of rank and size. If several are set, the first counts: srun sets its own in addition to
# those of the MPI that it starts.
LAUNCHERS = {
    "mpiexec of MPICH": ("PMI_RANK", "PMI_SIZE"),
    "mpirun of Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun of MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),              # not SLURM_NTASKS: sbatch sets it for the script
}


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """How this process was started, if a launcher has started several together; else None.

    Raises ValueError for a rank or size that is not valid.

    >>> launched({"PMI_RANK": "1", "PMI_SIZE": "4"})
    Launched(rank=1, size=4, by='mpiexec of MPICH')
    >>> launched({}) is None, launched({"PMI_RANK": "0", "PMI_SIZE": "1"}) is None
    (True, True)
    """
    environment = os.environ if environment is None else environment
    for by, (rank, size) in LAUNCHERS.items():
        if rank in environment and size in environment:
            told = environment[rank], environment[size]
            if not all(number.isdigit() for number in told) or not int(told[0]) < max(1, int(told[1])):
                raise ValueError(f"distributed: {by} sets {rank}={told[0]} and {size}={told[1]} but they must be a "
                                 f"rank, from 0, and how many there are; unset both to run as one process")
            return Launched(int(told[0]), int(told[1]), by) if int(told[1]) > 1 else None
    return None


# ---------------------------------------------------------------- the ranks
class OtherRank(RuntimeError):
    """Another rank could not do what this one needs; that one says why."""


class World:
    """All processes of a run. What is called here is called by every rank, in one order. This is the world of a process
    that is alone; several are joined by its subclass `Mpi`.

    rank: the number of this process, from 0. size: how many there are.
    """

    rank: int = 0
    size: int = 1
    by_images: bool = False                # a backward pass since the last `average` has weighted gradients by images
    images: int = 0                        # of the batch of all ranks, where that is known
    of_parts: bool = False                 # each rank's loss is its part of a sum over the ranks, not its images' mean

    def sum(self, flat: Array) -> None:
        """A flat array (n,), in place, becomes its sum over the ranks: the same bits on each rank, and in each run on
        as many ranks."""

    def mean(self, flat: Array, share: float | None = None) -> None:
        """A flat array (n,) of floating numbers, in place, becomes its mean over the ranks.

        share: this rank's weight; all weights add up to 1. If it is 0, the array is not looked at. None: the same on
        all ranks.
        """

    def broadcast(self, flat: Array) -> None:
        """A flat array (n,), in place, becomes that of rank 0."""

    def tell(self, value: T) -> T:
        """Rank 0's value, an object that can be pickled."""
        return value

    def gather(self, value: T) -> list[T]:
        """Each rank's value, by rank."""
        return [value]

    def barrier(self) -> None:
        """Wait for all ranks."""

    @functools.cached_property
    def counted(self) -> Counted:
        """This world, for sums that are to be of several values."""
        return Counted(self)

    def require_several(self, values: float) -> None:
        """Refuse a batch of all ranks with 1 value per channel."""
        if values == 1:
            raise ValueError("batch_norm: the batch of all ranks has 1 value per channel, which is its own mean and "
                             "has no variance; train with more images per batch, or call .eval()")

    def prepare(self, device: str) -> None:
        """Be ready for arrays of a device, "cpu" or "cuda". Raises ValueError if several ranks cannot compute on
        it."""

    def end(self, error: str = "", status: int = 2, tell: Callable[[str], Any] = print) -> int:
        """This rank is done, by an error if there is one. Returns the exit status of all: 0 if no rank had an error.

        tell: prints an error, on one rank alone, with the rank's name before it if not all ranks have that error. Ranks
        that cannot come here because they wait for this one elsewhere are ended.
        """
        if error:
            tell(error)
        return status if error else 0

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.size}"


@dataclass(frozen=True)
class Counted:
    """A world that refuses a sum whose last number, of values per channel, is 1; a GPU would have to be waited for."""

    world: World

    def sum(self, flat: Array) -> None:
        """As World.sum."""
        self.world.sum(flat)
        if not is_cuda(flat):
            self.world.require_several(flat[-1])


One = World                                # of a process that is alone
ALONE = World()


class _Joined(Watched):
    """Holds the current world: a compiled step depends on which one that is."""

    world: World


_joined = _Joined()
_joined.world = ALONE


def current() -> World:
    """The world that `start` has joined; before that, the world of one process.

    >>> current()
    rank 0 of 1
    """
    mode.recorder.reads(_joined)
    return _joined.world


def start() -> World:
    """Join the processes that a launcher has started together with this one; without a launcher, that is one.

    Every rank calls it, at its start; a second call gives the same world. From then on a rank that ends by an error
    ends all of them.

    If mpi4py is missing (extra mpi), or MPI does not find the processes that the launcher names, a message says so
    and all of them end, with status 2.

    >>> start()
    rank 0 of 1
    """
    found = launched()
    if found is not None and _joined.world.size == 1:
        from .failure import ends_all
        from .mpi import Mpi, together

        with ends_all(found):
            world = Mpi(together(found))
            world.watch()
            _joined.world = world
    return current()


@contextmanager
def joined_as(world: World) -> Iterator[None]:
    """Within this, `world` is the current one."""
    if (before := _joined.world) is world:             # nothing that compiled steps would have to look at
        yield
        return
    _joined.world = world
    rng.set_rank(world.rank)
    try:
        yield
    finally:
        _joined.world = before
        rng.set_rank(before.rank)


@contextmanager
def alone() -> Iterator[None]:
    """Within this, the process is a world of its own, as are those that it starts: for work that the ranks share out as
    a whole, or that one of them does. Other ranks are not to wait for it meanwhile."""
    told = {name: os.environ.pop(name) for pair in LAUNCHERS.values() for name in pair if name in os.environ}
    try:
        with joined_as(ALONE):
            yield
    finally:
        os.environ.update(told)


def by_first(work: Callable[[], T], world: World | None = None, help_: Callable[[], object] | None = None) -> T:
    """work(), which rank 0 does; all ranks are given its result, an object that can be pickled.

    help_: what the others do, with rank 0, whenever `ask(world)` is called within work.

    Raises what work raises, on rank 0, and OtherRank on the others.

    >>> by_first(lambda: 6 * 7)
    42
    """
    world = current() if world is None else world
    if world.rank == 0:
        try:
            result = work()
        except BaseException:
            world.tell(("failed", None))
            raise
        return world.tell(("done", result))[1]
    while True:
        what, told = world.tell(("", None))
        if what == "done":
            return told  # type: ignore[return-value]  # rank 0's result
        if what == "failed" or help_ is None:
            raise OtherRank("distributed: rank 0 has failed, and says why")
        help_()


def ask(world: World) -> None:
    """Within the work of `by_first`: the other ranks are to help."""
    world.tell(("help", None))
