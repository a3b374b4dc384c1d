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

# Operations and bytes per second, dense, of NVIDIA's H100 white paper. The clock at which tensor cores reach theirs is
# lower than the highest one, so `peaks` would give them 535. The H200 is the same chip with faster memory.
PUBLISHED: dict[str, dict[str, float]] = {
    "NVIDIA H200": {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12, "bytes": 4.8e12},
    "NVIDIA H100 80GB HBM3": {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12, "bytes": 3.35e12}}

# Multiply-adds per clock of one multiprocessor, by compute capability. fp32: its number of lanes, 128 where no other is
# named. tf32: dense, where all chips of a capability have the same (NVIDIA's papers on the A100 and the H100).
FP32_LANES = {"70": 64, "75": 64, "80": 64}
TF32_PRODUCTS = {"80": 512, "90": 1024}

INSTALL = {"torch": "pip install torch", "jax": "pip install 'jax[cuda13]' (or jax, for the CPU)"}


def let_openblas_choose() -> str:
    """Which kernels fit the processor, as the peers' libraries choose: OPENBLAS_CORETYPE names those of NumPy's
    products alone. OpenBLAS reads it when NumPy is imported; afterwards nothing is changed. Returned is what to tell
    whoever set it."""
    name = "" if "numpy" in sys.modules else os.environ.pop("OPENBLAS_CORETYPE", "")
    return f"OPENBLAS_CORETYPE={name} is left out, since it binds NumPy's products and no peer's\n" if name else ""


def processor() -> str:
    """The CPU's model name, as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    found = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines()
             if line.startswith("model name")] if cpuinfo.exists() else []
    return found[0] if found else platform.processor() or platform.machine()


def facts(device: str, threads: int) -> dict[str, Any]:
    """Device, driver, CPU, and how busy it was."""
    found: dict[str, Any] = {"device": device}
    if device == "cuda":
        import cupy

        runtime = cupy.cuda.runtime
        found |= {"gpu": gpu_name(), "driver": dotted(runtime.driverGetVersion())}
    return {**found, "cpu": processor(), "cores": os.cpu_count(), "threads": threads,
            "load": round(os.getloadavg()[0], 1)}


def gpu_name() -> str:
    import cupy

    runtime = cupy.cuda.runtime
    name: bytes = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return name.decode()


def dotted(version: int) -> str:
    """CUDA's 13020 is 13.2."""
    return f"{version // 1000}.{version % 1000 // 10}"


def versions(peers: Sequence[str], device: str) -> dict[str, str]:
    """Of each peer's module, of Python and of what minidl itself stands on."""
    import numpy as np

    from minidl.tools.cli.doctor import blas_kernels

    found = {module: importlib.import_module(module).__version__ for module in modules(peers)}
    if device == "cuda":
        import cupy

        found |= {"CuPy": cupy.__version__, "CUDA": dotted(cupy.cuda.runtime.runtimeGetVersion())}
        if "torch" in found:
            import torch

            found["cuDNN"] = str(torch.backends.cudnn.version())
    blas, kernels = np.show_config(mode="dicts")["Build Dependencies"]["blas"], blas_kernels()
    return {**found, "NumPy": np.__version__,
            blas["name"]: f"{blas['version']} (kernels for {kernels})" if kernels else blas["version"],
            "Python": platform.python_version()}


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
    from minidl.core.device import resolve

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
    """Operations per second, two per multiply-add: fp32, and tf32 where it is known; capability 9.0 is "90"."""
    clocks = multiprocessors * kilohertz * 1e3
    products = TF32_PRODUCTS.get(capability)
    return {"fp32": 2 * clocks * FP32_LANES.get(capability, 128), "tf32": products and 2 * clocks * products}


def limits(device: str) -> dict[str, Any] | None:
    """Operations and bytes per second of the current GPU: those published, or for another one what its clocks give."""
    if device == "cpu":
        return None
    import cupy

    if gpu_name() in PUBLISHED:
        return published(gpu_name())
    gpu = cupy.cuda.Device()
    of = gpu.attributes
    return {**peaks(of["MultiProcessorCount"], of["ClockRate"], gpu.compute_capability), "bf16": None,
            "bytes": 2 * of["MemoryClockRate"] * 1e3 * of["GlobalMemoryBusWidth"] / 8,
            "source": "what the multiprocessors do at the highest clock, and twice the memory's clock x its width"}


def published(gpu: str) -> dict[str, Any]:
    return {**PUBLISHED[gpu], "source": "published by NVIDIA, dense"}


def share(limits: dict[str, Any] | None, precision: str, flop: float, moved: float, seconds: float) -> float | None:
    """Of the limit: the least time for the arithmetic and the bytes, over the time it took; None if it is not known."""
    unit = limits and limits.get(precision.removeprefix("3x"))
    if not limits or not unit:
        return None
    products = 3 if precision == "3xtf32" else 1               # tensor cores multiply three times for one product
    return max(flop * products / unit, moved / limits["bytes"]) / seconds


def limits_line(limits: dict[str, Any] | None) -> list[str]:
    """What the shares are shares of: nothing on a CPU."""
    if not limits:
        return []
    units = ", ".join(f"{unit} {limits[unit] / 1e12:.1f} TFLOP/s" for unit in ("fp32", "tf32", "bf16")
                      if limits.get(unit))
    return [f"Limits ({limits['source']}): {units}, {limits['bytes'] / 1e12:.2f} TB/s.", ""]


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
        from minidl.ops.cuda.launch import memory as results

        results._kept.forget()             # what was kept to be handed out again would be, and would not count
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
