"""`minidl doctor`: what this machine has and lacks, and the command that cures each lack."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import itertools
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...core.host import install, requirements
from .common import Parser, add_json, run, say, say_json

SECONDS = 5.0                              # that an answer of the network, or of nvidia-smi, is waited for
EXTRAS = {                                 # import name -> what it is for, and the extra that brings it
    "matplotlib": ("minidl plot", "plot"), "PIL": ("minidl predict", "image"),
    "tensorboardX": ("minidl train --tensorboard", "tensorboard"),
    "safetensors": ("weights as .safetensors", "safetensors"), "sklearn": ("training.f1_score", "metrics"),
    "onnx": ("minidl.onnx.export", "onnx"), "onnxruntime": ("running exported nets", "onnx"),
    "pytest": ("the tests", "test")}

WARM = "fp32", "tf32", "bf16"              # precisions in which nets are warmed

AVX512 = {"AVX512_SKX", "X86_V4"}          # NumPy's names for what OpenBLAS's SkylakeX kernels need: before 2.4, since
NARROW = {"prescott", "nehalem", "sandybridge", "haswell", "zen"}  # OpenBLAS's kernels that do without


class Finding(NamedTuple):
    """One line of the report. state: "ok", "lacks" (something optional) or "FAILS" (minidl cannot work)."""

    state: str
    text: str
    cure: str = ""


def main(argv: list[str] | None = None, prog: str = "minidl doctor") -> int:
    """Run with these arguments; returns the exit status, 1 if minidl itself cannot work."""
    parser = Parser(prog=prog, description="Say what this machine has and lacks for minidl, and what cures it.")
    parser.add_argument("--offline", action="store_true", help="do not try the network")
    parser.add_argument("--test", action="store_true", help="run small tests instead, in about five seconds, and say "
                        "what works: gradients, training, eager, compiled and resumed, a CUDA kernel emulated on the "
                        "CPU, and the GPU if there is one; the exit status is 1 if a test fails")
    parser.add_argument("--warm", action="store_true", help="train each net of the zoo for three steps on the GPU "
                        "instead, in each precision, so that the kernels that are compiled and the algorithms that are "
                        "chosen are there for later runs; it takes minutes")
    add_json(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> int:
    """Look at everything, or run the tests, and print a line each."""
    if args.test:
        from .selftest import report

        return report(args.debug)
    fails, listed = 0, []
    for title, look in {"first steps": warm}.items() if args.warm else LOOKS.items():
        if args.offline and look is network:
            continue
        if not args.json:
            say(title)
        for finding in guarded(look):
            listed.append({"of": title, **finding._asdict()})
            if not args.json:
                tell(finding)
            fails += finding.state == "FAILS"
    if args.json:
        say_json(listed)
    if args.warm or args.json:
        return int(fails > 0 and not args.warm)
    say(f"minidl cannot work here: {fails} of the above must be cured" if fails else "minidl works here")
    return 1 if fails else 0


def tell(finding: Finding) -> None:
    """Print a finding's line, and the one of its cure."""
    say(f"  {finding.state:6}{finding.text}")
    if finding.cure:
        say(f"  {'':6}-> {finding.cure}")


def guarded(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a look finds; an error of it is a finding, too."""
    try:
        yield from look()
    except Exception as error:             # whatever is broken here, the rest of the report is wanted
        yield Finding("lacks", f"this cannot be looked at: {type(error).__name__}: {' '.join(str(error).split())}")


# ---------------------------------------------------------------- what minidl needs
def interpreter() -> Iterator[Finding]:
    """Python, the machine, and minidl."""
    from ...core.version import __version__

    new = sys.version_info >= (3, 10)
    yield Finding("ok" if new else "FAILS", f"Python {platform.python_version()} ({sys.executable})",
                  "" if new else "use Python 3.10 or newer")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("ok", f"{platform.system()} {platform.machine()}, {cores} cores{_memory()}")
    yield Finding("ok", f"minidl {__version__} in {Path(__file__).parents[2]}")


def core() -> Iterator[Finding]:
    """The packages that minidl needs, in the versions that its metadata require."""
    for name, least in required().items():
        cure = f"pip install '{name}>={least}'"
        try:
            version = str(importlib.import_module(name).__version__)
        except Exception as error:         # a package that is broken may raise anything
            told = "is not installed" if isinstance(error, ModuleNotFoundError) and error.name == name else \
                f"cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            yield Finding("FAILS", f"{name} {told}", f"pip install --force-reinstall '{name}>={least}'"
                          if "imported" in told else cure)
            continue
        old = _numbers(version) < _numbers(least)
        yield Finding("FAILS" if old else "ok", f"{name} {version}" + (f", but minidl needs {least}" if old else ""),
                      cure if old else "")


def required() -> dict[str, str]:
    """The core packages with their oldest versions, as the metadata of the installed minidl say."""
    found = [re.match(r"([\w-]+)>=([\d.]+)$", line) for line in requirements()]
    return {each[1]: each[2] for each in found if each} or {"numpy": "2", "h5py": "3.10", "tqdm": "4.60"}


def products() -> Iterator[Finding]:
    """NumPy's BLAS, the threads that share the work, and one product."""
    import numpy as np

    from ...ops.cpu.parallel import threads

    config = np.show_config(mode="dicts")
    blas, kernels = config.get("Build Dependencies", {}).get("blas", {}), blas_kernels()
    count = threads()                      # refuses a MINIDL_NUM_THREADS that is not a number
    yield Finding("ok", f"BLAS {blas.get('name', 'unknown')} {blas.get('version', '')}"
                        f"{f', kernels for {kernels}' if kernels else ''}, {count} threads "
                        f"(MINIDL_NUM_THREADS={os.environ.get('MINIDL_NUM_THREADS', 'unset')})")
    yield from narrow(kernels, config.get("SIMD Extensions", {}).get("found", ()),
                      os.environ.get("OPENBLAS_CORETYPE"))
    right = np.ones((64, 64), np.float32) @ np.ones((64, 64), np.float32) == 64
    if not right.all():
        yield Finding("FAILS", "NumPy's matrix product is wrong", "pip install --force-reinstall numpy")


def blas_kernels() -> str | None:
    """For which processor the kernels are that OpenBLAS runs, in its words ("Haswell"); None for another BLAS."""
    from ...ops.cpu.parallel import _openblas

    found = _openblas(("get_corename",))
    if found is None:
        return None
    (name,) = found
    name.restype = ctypes.c_char_p
    return str(name().decode())


def narrow(kernels: str | None, simd: Collection[str], wanted: str | None) -> Iterator[Finding]:
    """Whether OpenBLAS multiplies by instructions half as wide as the processor's.

    simd: what NumPy found there. wanted: OPENBLAS_CORETYPE, which OpenBLAS reads when NumPy loads it. Unset, OpenBLAS
    uses AVX-512 on any processor that has it, also one unknown by name (since 0.3.19: driver/others/dynamic.c).
    """
    if kernels and kernels.lower() in NARROW and not AVX512.isdisjoint(simd):
        yield Finding("lacks", "OpenBLAS does not use this processor's AVX-512 (OPENBLAS_CORETYPE="
                      f"{wanted or 'unset'}): nets may take 1.4 times as long",
                      "unset OPENBLAS_CORETYPE" if wanted else "pip install --upgrade numpy")


# ---------------------------------------------------------------- the GPU
def gpu() -> Iterator[Finding]:
    """The driver, the GPUs, CuPy and NVRTC."""
    for line in _nvidia_smi():
        yield Finding("ok", f"GPU {line}")
    if lack := lacking_gpu():
        yield lack._replace(text=f"{lack.text}: nets run on the CPU")
        return
    import cupy

    properties, driver = cupy.cuda.runtime.getDeviceProperties(0), cupy.cuda.runtime.driverGetVersion()
    yield Finding("ok", f"CuPy {cupy.__version__}, {properties['name'].decode()}, compute capability "
                        f"{properties['major']}.{properties['minor']}, {properties['totalGlobalMem'] / 2**30:.0f} GiB, "
                        f"driver for CUDA {driver // 1000}.{driver % 1000 // 10}")
    yield Finding("ok", described(properties))
    if (properties["major"], properties["minor"]) < (7, 5):
        yield Finding("lacks", "the kernels are compiled for compute capability 7.5 and newer", "use another GPU")
    yield Finding("ok", "NVRTC {}.{}".format(*cupy.cuda.nvrtc.getVersion()))
    from ... import Tensor, ops

    x = Tensor([[1.0, 2.0]], device="cuda")
    right = abs(ops.softmax(x, axis=1).sum().item() - 1) < 1e-5        # compiles a kernel and runs it
    yield Finding("ok", "a kernel is compiled and runs") if right else Finding(
        "lacks", "a kernel gives a wrong result", "update the driver and CuPy")


def described(properties: Mapping[str, Any]) -> str:
    """What a GPU's multiprocessors have, by CuPy's getDeviceProperties."""
    each, threads = properties["multiProcessorCount"], properties["maxThreadsPerMultiProcessor"]
    shared, of_block = (properties[name] / 1024 for name in ("sharedMemPerMultiprocessor", "sharedMemPerBlockOptin"))
    return (f"{each} multiprocessors, each of {threads:,} threads ({each * threads:,} in all), "
            f"{properties['regsPerMultiprocessor']:,} registers and {shared:.0f} KiB of shared memory, of which a "
            f"block has at most {properties['maxThreadsPerBlock']:,} threads, {properties['regsPerBlock']:,} registers "
            f"and {of_block:.0f} KiB; {properties['l2CacheSize'] / 2**20:.0f} MiB of second-level cache")


def lacking_gpu() -> Finding | None:
    """What keeps nets from running on a GPU; None if nothing does."""
    from ...core import device

    try:
        device.resolve("cuda")
    except ValueError as error:
        told = str(error).removeprefix("device: 'cuda' was asked for but ").removesuffix(", or use device 'cpu'")
        lack, _, cure = told.rpartition("; ")
        return Finding("lacks", lack, cure.removeprefix("run "))
    return None


def ranks() -> Iterator[Finding]:
    """MPI, by which several processes train together, and NCCL between GPUs."""
    from ...core import device

    mpi = install("mpi")
    try:
        import mpi4py

        mpi4py.rc.initialize = False       # only to be asked what it is
        from mpi4py import MPI

        library = " ".join(MPI.Get_library_version().replace("Version:", "").split()[:2])
        yield Finding("ok", f"mpi4py {mpi4py.__version__} on {library}")
    except (ImportError, RuntimeError) as error:
        yield Finding("lacks", f"mpi4py: one process trains ({' '.join(str(error).split())})", mpi)
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    yield Finding("ok", f"{found}, which starts them") if found else Finding("lacks", "no mpiexec, which starts them",
                                                                            mpi)
    if device.resolve("auto") == "cuda":
        from cupy.cuda import nccl

        version = nccl.get_version() if nccl.available else 0
        yield (Finding("ok", f"NCCL {version // 10000}.{version // 100 % 100}, between GPUs") if version else
               Finding("lacks", "CuPy finds no NCCL: several ranks cannot use GPUs", install("nccl13")))


def compiler() -> Iterator[Finding]:
    """The C++ compiler by which kernels are emulated."""
    found = shutil.which("g++") or shutil.which("c++")
    linux = sys.platform == "linux"
    yield Finding("ok", f"{found}, for minidl emulate") if found and linux else Finding(
        "lacks", "no C++ compiler, which minidl emulate needs" if linux else "minidl emulate needs Linux",
        "apt install g++, or your system's command for it" if linux else "")


# ---------------------------------------------------------------- what is compiled
def warm() -> Iterator[Finding]:
    """How long the first steps of each net take, which leave behind what later runs find."""
    from ... import zoo
    from ...core import device

    if lack := lacking_gpu():
        yield lack
        return
    before = device.precision()
    try:
        for name, precision in itertools.product(zoo.MODELS, WARM):
            device.set_precision(precision)
            begin = time.monotonic()
            first_steps(name, "cuda", zoo.MODELS[name].recipe.batch_size)
            yield Finding("ok", f"{name} in {precision}: {time.monotonic() - begin:.1f} s")
    finally:
        device.set_precision(before)


def first_steps(name: str, on: str, size: int) -> None:
    """Two recordings of a compiled step of a net of the zoo, on random items, and a replay."""
    from ... import Tensor, compile, ops, optim, randn, zoo

    model = zoo.MODELS[name]
    net: Any = model.build().to(on)        # that of images has a loss of its own
    sgd, labels = optim.SGD(net.parameters(), lr=0.0, momentum=0.9), Tensor([0] * size, device=on)

    def step(x: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = net.loss(net(x), x) if model.target == "image" else ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        return loss
    run, x = compile(step), randn(size, *model.shape, device=on)
    for _ in range(3):
        last = run(x)
    last.item()                            # which waits for the device


# ---------------------------------------------------------------- what is on the disk
def extras() -> Iterator[Finding]:
    """The optional packages."""
    for name, (what, extra) in EXTRAS.items():
        try:
            there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):  # the module is hidden
            there = False
        yield Finding("ok" if there else "lacks", f"{name}, for {what}",
                      "" if there else install(extra))


def caches() -> Iterator[Finding]:
    """The folders that minidl and CuPy keep things in, with their sizes."""
    from ...core.host import cache_folder

    kept = {cache_folder(): "data sets and choices of algorithms",
            Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache"): "CuPy's kernels"}
    for folder, what in kept.items():
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
        told = f"{folder}, {what}: {size / 1e6:.1f} MB, {shutil.disk_usage(there).free / 1e9:.1f} GB are free"
        if os.access(there, os.W_OK):
            yield Finding("ok", told)
        else:
            yield Finding("lacks", f"{told}; {there} is not writable", f"chmod u+w {there}, or name another folder by "
                          "XDG_CACHE_HOME, MINIDL_CACHE or CUPY_CACHE_DIR")


def datasets() -> Iterator[Finding]:
    """Which data sets are here, with the official checksums."""
    from ...data import DATASETS
    from .data import state

    for name in DATASETS:
        found, told = state(name)
        lack, _, cure = told.partition("; ")
        yield Finding("ok", f"{name}: {told}") if found else Finding("lacks", f"{name}: {lack}", cure)


def network() -> Iterator[Finding]:
    """Whether the mirrors of the data sets answer."""
    from ...data.sets.catalog import SPECS

    if os.environ.get("MINIDL_OFFLINE", "0") not in ("", "0"):
        yield Finding("lacks", "MINIDL_OFFLINE is set: nothing is downloaded", "unset MINIDL_OFFLINE")
        return
    hosts = sorted({mirror.split("/")[2] for spec in SPECS.values() for each in spec.downloads
                    for mirror in each.mirrors})
    answers: dict[str, str] = {}

    def connect(host: str) -> None:
        try:
            socket.create_connection((host, 443), timeout=SECONDS).close()
            answers[host] = ""
        except OSError as error:
            answers[host] = str(error)

    threads = [threading.Thread(target=connect, args=(host,), daemon=True) for host in hosts]
    for thread in threads:                 # a look-up of a name has no time limit of its own: it is left behind
        thread.start()
    end = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    faults = {host: answers.get(host, f"silent for {SECONDS:.0f} s") for host in hosts}
    for host in (host for host, fault in faults.items() if not fault):
        yield Finding("ok", f"{host} answers")
    if silent := [host for host, fault in faults.items() if fault]:
        yield Finding("lacks", f"no answer from {', '.join(silent)} ({faults[silent[0]]})",
                      "none is needed for data sets in a folder that --data-dir or MINIDL_DATA names")


LOOKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "machine": interpreter, "packages": core, "CPU": products, "GPU": gpu, "ranks": ranks, "emulator": compiler,
    "extras": extras, "caches": caches, "data sets": datasets, "network": network}


# ---------------------------------------------------------------- helpers
def _memory() -> str:
    try:
        return f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory"
    except (AttributeError, OSError, ValueError):
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """"2.3.0rc1" as (2, 3, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version)[0]))


def _nvidia_smi() -> list[str]:
    """A line per GPU: name, driver, compute capability, memory; none if the tool is not there."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = "--query-gpu=name,driver_version,compute_cap,memory.total"
    done = subprocess.run([tool, asked, "--format=csv,noheader"], capture_output=True, text=True, timeout=SECONDS,
                          check=False)
    return [f"{name}, driver {driver}, compute capability {capability}, {memory}" for name, driver, capability, memory
            in (line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 3)]
