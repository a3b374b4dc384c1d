"""The machine that a benchmark runs on: its names and versions, its limits, and the memory that a peer takes of it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Multiply-adds a clock of one multiprocessor, by compute capability. fp32: its number of lanes, 128 where no other is
# named. tf32: dense, where all chips of a capability have the same (NVIDIA's papers on the A100 and the H100).
FP32_LANES = {"70": 64, "75": 64, "80": 64}
TF32_PRODUCTS = {"80": 512, "90": 1024}

INSTALL = {"torch": "pip install torch", "jax": "pip install 'jax[cuda13]' (or jax, for the CPU)"}


def processor() -> str:
    """The CPU's model name, as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    found = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines()
             if line.startswith("model name")] if cpuinfo.exists() else []
    return found[0] if found else platform.processor() or platform.machine()


def gpu(device: str) -> str:
    """" (NVIDIA ...)", or nothing for the CPU."""
    if device == "cpu":
        return ""
    import cupy

    return f" ({cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}, CuPy {cupy.__version__})"


def about(peers: Sequence[str], device: str, threads: int) -> list[str]:
    """Device and versions, two lines; a peer's name starts with its module's."""
    import numpy as np

    versions = [f"{module} {importlib.import_module(module).__version__}" for module in modules(peers)]
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return [
        f"Device: {device}{gpu(device)}, {processor()}, {os.cpu_count()} cores, {platform.system()}; "
        f"{threads} threads for every peer; load average before the run {os.getloadavg()[0]:.1f}.",
        f"Versions: {', '.join(versions)}, NumPy {np.__version__} with {blas['name']} {blas['version']}, "
        f"Python {platform.python_version()}."]


def finish(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        import cupy

        cupy.cuda.runtime.deviceSynchronize()


# ---------------------------------------------------------------- what a run needs
def modules(peers: Sequence[str]) -> list[str]:
    """The packages of these peers, each once."""
    return list(dict.fromkeys(peer.split("-")[0] for peer in peers))


def require(peers: Sequence[str], device: str) -> None:
    """End the program with one line where a peer's package, or the device, is missing."""
    from minidl.device import resolve

    script = Path(sys.argv[0]).name
    try:
        resolve(device)
    except ValueError as error:
        sys.exit(f"{script}: error: {error}")
    for peer in peers:
        (module,) = modules([peer])
        if device == "cpu" and peer.endswith("-graph"):
            sys.exit(f"{script}: error: peer {peer!r} is a CUDA graph and needs --device cuda")
        if importlib.util.find_spec(module) is None:
            sys.exit(f"{script}: error: peer {peer!r} needs the package {module}, which is not installed; "
                     f"{INSTALL[module]}, or leave it out of --peers")


def set_threads(threads: int) -> None:
    """For every peer; called before they are imported, since that is when they read it.

    And none may keep most of a GPU's memory for itself, as JAX would: the peers share it.
    """
    for library in ("MINIDL", "OPENBLAS", "OMP", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = str(threads)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


# ---------------------------------------------------------------- limits
def peaks(multiprocessors: int, kilohertz: int, capability: str) -> dict[str, float | None]:
    """Operations a second, two a multiply-add: fp32, and tf32 where it is known; capability 9.0 is "90"."""
    clocks = multiprocessors * kilohertz * 1e3
    products = TF32_PRODUCTS.get(capability)
    return {"fp32": 2 * clocks * FP32_LANES.get(capability, 128), "tf32": products and 2 * clocks * products}


def peaks_of(device: str) -> dict[str, float | None]:
    """`peaks` of the current GPU; nothing is known of a CPU."""
    if device == "cpu":
        return {"fp32": None, "tf32": None}
    import cupy

    gpu = cupy.cuda.Device()
    return peaks(gpu.attributes["MultiProcessorCount"], gpu.attributes["ClockRate"], gpu.compute_capability)


# ---------------------------------------------------------------- memory
class Held:
    """Most bytes of device memory that were held at once, so far; None where that cannot be told."""

    bytes: int | None = None


@contextlib.contextmanager
def memory(module: str, device: str) -> Iterator[Held]:
    """What a peer's arrays take beyond what was held before: values, gradients, workspaces, graphs' own memory.

    Not counted is what libraries and the driver take for themselves. JAX's peak cannot be set back: unless this peer
    raised it, it is not known.
    """
    held = Held()
    if device == "cpu":
        yield held
    elif module == "minidl":
        with allocations() as hook:
            yield held
        held.bytes = hook.most
    elif module == "torch":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield held
        held.bytes = torch.cuda.max_memory_allocated() - before
    else:
        import jax

        def stats() -> dict[str, int]:
            return jax.local_devices()[0].memory_stats() or {}
        before, peak = stats().get("bytes_in_use", 0), stats().get("peak_bytes_in_use", 0)
        yield held
        after = stats().get("peak_bytes_in_use", 0)
        held.bytes = after - before if after > peak else None


def allocations() -> Any:
    """A context in which CuPy's allocations, from whichever pool, are added up: `most` is the most held at once."""
    from cupy.cuda import MemoryHook

    class Allocations(MemoryHook):
        name = "Allocations"

        def __init__(self) -> None:
            self.sizes: dict[int, int] = {}
            self.now = self.most = 0

        def malloc_postprocess(self, **of: int) -> None:
            self.sizes[of["pmem_id"]] = of["mem_size"]
            self.now += of["mem_size"]
            self.most = max(self.most, self.now)

        def free_postprocess(self, **of: int) -> None:
            self.now -= self.sizes.pop(of["pmem_id"], 0)       # what was held before does not count
    return Allocations()
