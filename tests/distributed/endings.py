"""`train.py` on several ranks, of which one comes to a bad end: a script for mpiexec, `python endings.py HOW [FLAGS]`.

The rank that it happens to is told from the launcher's environment, before minidl is imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

RANK = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
how, *flags = sys.argv[1:]

if how == "no mpi4py" and RANK == 1:
    sys.modules["mpi4py"] = None  # type: ignore[assignment]  # as if it were not installed

from minidl.cli import train  # noqa: E402
from minidl.training import run_folder  # noqa: E402


def full(folder: Any, metrics: Any) -> None:
    """From the second epoch on no file of this process may grow beyond 16 bytes, as on a full disk."""
    import resource

    if metrics["epoch"] == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
    append(folder, metrics)


append = run_folder.RunFolder.append_metrics
if how == "full disk" and RANK == 0:
    run_folder.RunFolder.append_metrics = full  # type: ignore[method-assign]
if how == "no data" and RANK == 1:
    flags += ["--data", "mnist", "--data-dir", "not-there"]
if how == "other data" and RANK == 1:
    flags += ["--limit-train", "100"]
if how == "error" and RANK == 1:
    train.build = lambda *_: 1 // 0  # type: ignore[assignment]  # an error that nobody expects
sys.argv[1:] = flags
sys.exit(train.main(prog="endings.py"))
