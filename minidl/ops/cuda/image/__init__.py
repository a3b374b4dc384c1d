"""A region of a program as two launches: one kernel that is generated for it, a block to an image, and sums.cu."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any, NamedTuple

import numpy as np

from ...image import Region, by_steps
from .. import launch
from .emit import Emitted, Job, emit

Array = Any

THREADS = 640                              # of a block that has a multiprocessor to itself
IMAGES = 8                                 # of a block, up to which this is faster than kernels that share them all out
JOBS, SUM_THREADS = 64, 256                # as in sums.cu
PRODUCT, SUM = (16, 64), (1, 32)           # rows and columns that a block there owns

TABLE = launch.TYPES["Jobs"] = np.dtype([(name, np.uint64, (JOBS,)) for name in ("a", "b", "out")]
                                        + [(name, np.int32, (JOBS,)) for name in ("n", "rows", "columns", "first")]
                                        + [("scale", np.float64, (JOBS,))])

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("image/sums.cu", (launch.real(np.dtype("float32")),))]


def constants() -> tuple[launch.Constant, ...]:
    """Of a generated kernel."""
    return launch.real(np.dtype("float32")), ("THREADS_A_BLOCK", THREADS)


class Plan(NamedTuple):
    """What is the same in every call for a region."""

    emitted: Emitted
    kernel: Any
    blocks: int
    first: tuple[int, ...]                 # block of sums.cu at which each job starts, and the number of all


@functools.lru_cache(maxsize=64)
def _plan(region: Region) -> Plan | None:
    if region.n > IMAGES * launch.multiprocessors():
        return None
    emitted = emit(region, THREADS, launch.most_shared() // 4)
    if emitted is None or len(emitted.jobs) > JOBS:
        return None
    kernel = launch.generated("image_step.cu", launch.pasted("image_step.cu", emitted.text, set()), "image_step",
                              *constants())
    first = [0]
    for job in emitted.jobs:
        rows, columns = _extent(region, job)
        tall, wide = PRODUCT if job.a else SUM
        first.append(first[-1] + launch.blocks(rows, tall) * launch.blocks(columns, wide))
    return Plan(emitted, kernel, min(region.n, launch.multiprocessors()), tuple(first))


def _extent(region: Region, job: Job) -> tuple[int, int]:
    """Rows and columns of a job's result: a gradient of weights (outputs, ...), or a sum."""
    rows, *columns = region.shapes[job.out.number] if job.a else (1, *region.shapes[job.out.number])
    return rows, math.prod(columns)


def can_image_step(region: Region) -> bool:
    """Whether there is a kernel for a region."""
    return _plan(region) is not None


def image_step(region: Region, *arrays: Array) -> tuple[Array, ...]:
    """The outputs of a region, for its inputs."""
    plan = _plan(region)
    if plan is None or not all(array.flags.c_contiguous and _address(array) % 16 == 0 for array in arrays):
        return by_steps(region, sys.modules[__package__.rpartition(".")[0]], arrays)
    emitted = plan.emitted
    given = [arrays[i] for i in emitted.inputs]
    names = {f"a{value.number}": array for value, array in zip(region.inputs, arrays)}
    for name, (rows, columns) in emitted.outputs:
        names[name] = launch.empty((plan.blocks if rows < 0 else rows, columns), np.dtype("float32"))
    plan.kernel((plan.blocks,), (THREADS,), *given, *(names[name] for name, _ in emitted.outputs),
                shared=emitted.shared * 4)
    results = _sums(region, plan, names)
    return tuple(results[output] if output in results else names[emitted.stored[output]].reshape(
        region.shapes[output.number]) for output in region.outputs)


def _sums(region: Region, plan: Plan, names: dict[str, Array]) -> dict[Any, Array]:
    """The jobs' results, all in one launch."""
    table, results = np.zeros((), TABLE), {}
    table["first"] = np.iinfo(np.int32).max
    for i, job in enumerate(plan.emitted.jobs):
        out = results[job.out] = launch.empty(region.shapes[job.out.number], np.dtype("float32"))
        table["a"][i], table["b"][i] = _address(names[job.a]) if job.a else 0, _address(names[job.b])
        table["out"][i], table["scale"][i], table["first"][i] = _address(out), job.scale, plan.first[i]
        table["n"][i], (table["rows"][i], table["columns"][i]) = len(names[job.b]), _extent(region, job)
    launch.kernel("image/sums.cu", "sums", launch.real(np.dtype("float32")))(
        (plan.first[-1],), (SUM_THREADS,), table.tobytes())
    return results


def _address(array: Array) -> int:
    return array.data.ptr
