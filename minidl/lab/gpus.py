"""How many blocks of a kernel a multiprocessor holds, by the generation of GPUs; what a kernel takes of it, compiled
without a GPU; and how fast arithmetic and memory are, of one GPU of each.

>>> held(90, threads=256, registers=40, shared=0)
{'blocks': 32, 'warps': 8, 'registers': 6, 'shared memory': 228}
>>> occupancy(90, threads=256, blocks=6)
0.75
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..core.host import install
from ..ops.common.sources import HOPPER, Constant, options
from .emulator.counts import Table

WARP = 32


class Gpu(NamedTuple):
    """A GPU of a compute capability. The capability decides the first numbers: the most warps and blocks of a
    multiprocessor; its registers, of which a warp gets multiples of a unit in one of the parts; bytes of its shared
    memory, of which a block gets multiples of a unit and the system some more. Then this GPU's FLOP/s in fp32, and
    bytes/s of its memory."""

    name: str
    warps: int
    blocks: int
    registers: tuple[int, int, int]
    shared: tuple[int, int, int]
    flop: float
    bytes: float


R, K = (65536, 256, 4), 1024
# By compute capability: "CUDA C++ Programming Guide", "Technical Specifications per Compute Capability"; for 1.3 its
# edition 2.3 and the occupancy calculator of 2009, which rounds the registers of a block to 512: those of each of eight
# warps to 64. FLOP/s and bytes/s: NVIDIA's data sheets and architecture white papers; two FLOP per multiply-add.
GPUS = {
    13: Gpu("GeForce GTX 280", 32, 8, (16384, 64, 1), (16 * K, 512, 0), 622e9, 142e9),
    75: Gpu("Tesla T4", 32, 16, R, (64 * K, 256, 0), 8.1e12, 320e9),
    80: Gpu("A100 SXM 40 GB", 64, 32, R, (164 * K, 128, K), 19.5e12, 1555e9),
    86: Gpu("GeForce RTX 3080", 48, 16, R, (100 * K, 128, K), 29.8e12, 760e9),
    89: Gpu("GeForce RTX 4090", 48, 24, R, (100 * K, 128, K), 82.6e12, 1008e9),
    90: Gpu("H100 SXM", 64, 32, R, (228 * K, 128, K), 66.9e12, 3.35e12),
    120: Gpu("GeForce RTX 5090", 48, 24, R, (100 * K, 128, K), 104.8e12, 1792e9)}


def held(arch: int, threads: int, registers: int, shared: int) -> dict[str, int]:
    """How many blocks of `threads` threads a multiprocessor holds at once, by each limit: the least counts.

    registers: of a thread, 0 if they are not known; shared: bytes of a block.
    """
    gpu, warps = GPUS[arch], -(-threads // WARP)
    (all_registers, unit, parts), (all_shared, shared_unit, reserved) = gpu.registers, gpu.shared
    found = {"blocks": gpu.blocks, "warps": gpu.warps // warps}
    if registers:
        found["registers"] = all_registers // parts // -(-registers * WARP // unit * unit) * parts // warps
    of_block = -(-shared // shared_unit) * shared_unit + reserved
    return found | ({"shared memory": all_shared // of_block} if of_block else {})


def occupancy(arch: int, threads: int, blocks: int) -> float:
    """The warps of these blocks, as a share of the most that a multiprocessor has."""
    return blocks * -(-threads // WARP) / GPUS[arch].warps


class Taken(NamedTuple):
    """What a compiled kernel takes: registers and bytes of spills of a thread, bytes of shared memory of a block, not
    counting what its launch requests."""

    registers: int
    spills: int
    shared: int


def taken(text: str, kernel: str, constants: tuple[Constant, ...], arch: int) -> Taken:
    """By NVRTC, which needs no GPU. text: the source, includes pasted in.

    Raises RuntimeError if there is no NVRTC, if it does not know the GPU, or if the source does not compile.
    """
    try:
        from cupy.cuda import nvrtc

        known = nvrtc.getSupportedArchs()
    except (ImportError, RuntimeError) as error:
        raise RuntimeError("registers: there is no NVRTC, CUDA's compiler, which comes with CuPy; "
                           f"{install('cuda13')}") from error
    if arch not in known:
        raise RuntimeError(f"registers: NVRTC {'.'.join(map(str, nvrtc.getVersion()))} compiles for compute capability "
                           f"{min(known) / 10} and newer, not for {arch / 10}")
    if HOPPER in constants and arch != 90:
        raise RuntimeError(f"registers: {kernel} is for compute capability 9.0 alone, not for {arch / 10}")
    program, given = nvrtc.createProgram(text, f"{kernel}.cu", (), ()), options(constants)
    if not any(option.startswith("-arch=") for option in given):
        given = (*given, f"-arch=sm_{arch}")
    try:
        nvrtc.compileProgram(program, [*given, "--ptxas-options=-v"])
        log = nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError:
        lines = [line for line in nvrtc.getProgramLog(program).splitlines() if "error" in line]
        raise RuntimeError(f"registers: NVRTC does not compile {kernel}: {'; '.join(lines[:4])}") from None
    finally:
        nvrtc.destroyProgram(program)
    name = rf"(?:{kernel}|_Z{len(kernel)}{kernel}\w*)"        # as C, or as C++
    found = re.search(rf"Function properties for {name}\s(.*?)(?:Compiling|\Z)", log, re.DOTALL)
    if found is None:
        raise RuntimeError(f"registers: NVRTC's log says nothing of {kernel}")

    def number(before: str, behind: str = "") -> int:
        return sum(map(int, re.findall(rf"{before}(\d+){behind}", found[1])))
    return Taken(number("Used ", " registers"), number("", " bytes spill"), number("", " bytes smem"))


def report(table: Table, arch: int) -> list[str]:
    """Lines about a kernel that was counted: what of a multiprocessor it takes, what limits its blocks, and whether its
    arithmetic or its bytes take longer on the GPU."""
    gpu, launch, lines = GPUS[arch], table.launch, list[str]()
    needs = Taken(0, 0, 0)
    try:
        needs = taken(launch.source, table.kernel, launch.constants, arch)
        lines.append(f"{needs.registers} registers per thread, {needs.spills} bytes of spills")
    except RuntimeError as error:
        lines.append(str(error))
    shared = max(needs.shared, launch.static) + launch.dynamic
    fit = held(arch, launch.threads, needs.registers, shared)
    blocks = min(fit.values())
    limit = " and ".join(name for name, each in fit.items() if each == blocks)
    fits = f"{blocks} block{'s' * (blocks != 1)} per multiprocessor" if blocks else "no block fits a multiprocessor"
    lines.append(f"{shared:,} bytes of shared memory per block of {launch.threads} threads: {fits}, limited by "
                 f"{limit}, occupancy {occupancy(arch, launch.threads, blocks):.0%}")
    total, ridge = table.total, gpu.flop / gpu.bytes
    if total.flop and total.moved:
        intensity = total.flop / total.moved
        lines.append(f"{intensity:.2f} FLOP per byte; memory limits below {ridge:.1f}: at most "
                     f"{min(gpu.flop, intensity * gpu.bytes) / 1e12:.3g} of {gpu.flop / 1e12:.3g} TFLOP/s in fp32, if "
                     "no cache helps")
    return [f"{gpu.name}, compute capability {arch / 10}", *(f"  {line}" for line in lines)]
