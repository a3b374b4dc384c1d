"""The machine that a run ran on, as its config.json tells it."""

from __future__ import annotations

import os
import platform
import sys
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
        with suppress(runtime.CUDARuntimeError):       # CuPy is there, and no GPU
            found |= {"gpu": runtime.getDeviceProperties(runtime.getDevice())["name"].decode(),
                      "cupy": cupy.__version__, "cuda": runtime.runtimeGetVersion(),
                      "driver": runtime.driverGetVersion()}
    return found
