"""`train.py` on several ranks, of which one comes to a bad end: a script for mpiexec, `python endings.py HOW [FLAGS]`.

The rank that it happens to is told from the launcher's environment, before minidl is imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def main(how: str, flags: list[str]) -> int:
    rank = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
    if how == "no mpi4py" and rank == 1:
        sys.modules["mpi4py"] = None  # type: ignore[assignment]  # as if it were not installed

    from minidl.tools.cli import train
    from minidl.training import run_folder

    append = run_folder.RunFolder.append_metrics

    def full(folder: Any, metrics: Any) -> None:
        """From the second epoch on no file of this process may grow beyond 16 bytes, as on a full disk."""
        import resource

        if metrics["epoch"] == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
        append(folder, metrics)

    if how == "full disk" and rank == 0:
        run_folder.RunFolder.append_metrics = full  # type: ignore[method-assign]
    if how == "no data" and rank == 1:
        flags += ["--data", "mnist", "--data-dir", "not-there"]
    if how == "other data" and rank == 1:
        flags += ["--limit-train", "100"]
    if how == "error" and rank == 1:
        train.build = lambda *_: 1 // 0  # type: ignore[assignment]  # an error that nobody expects
    sys.argv[1:] = flags
    return train.main(prog="endings.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
