"""The machine that a run ran on, as its config.json tells it."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any


def machine() -> dict[str, Any]:
    """{"system", "processor", "cores"}, with CUDA in use also {"gpu", "cupy", "cuda", "driver"}: for a run's record.

    cores: those that this process may use. Nothing is imported that is not in use.

    >>> sorted(machine())[:3]
    ['cores', 'processor', 'system']
    """
    processor = platform.processor()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        processor = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), processor)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"system": platform.platform(), "processor": processor or platform.machine(), "cores": cores}
    if (cupy := sys.modules.get("cupy")) is not None:
        runtime = cupy.cuda.runtime
        with suppress(runtime.CUDARuntimeError):       # CuPy is there, but no GPU
            found |= {"gpu": runtime.getDeviceProperties(runtime.getDevice())["name"].decode(),
                      "cupy": cupy.__version__, "cuda": runtime.runtimeGetVersion(),
                      "driver": runtime.driverGetVersion()}
    return found


def origin() -> dict[str, str]:
    """{"started", "command", "commit"}: when this process began to train, by which command line, and the commit of the
    user's git repository, with "changed" if files differ from it: for a run's record.

    What is not known is left out: a notebook has no command, and not each folder is in a repository.
    """
    found = {"started": time.strftime("%Y-%m-%d %H:%M:%S %z"), "command": shlex.join(sys.orig_argv)}
    with suppress(OSError, subprocess.SubprocessError):
        script = sys.argv[0].endswith(".py") and "__main__" not in sys.argv[0]
        place = os.path.dirname(os.path.abspath(sys.argv[0])) if script else os.getcwd()
        asked = ("git", "-C", place, "describe", "--always", "--dirty= (changed)", "--abbrev=12", "--exclude=*")
        told = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
        found["commit"] = told.stdout.strip()
    return found
