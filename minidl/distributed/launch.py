"""What a launcher (mpiexec, mpirun, srun) says in the environment of the processes that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


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
