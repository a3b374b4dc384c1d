"""The source of a region's two kernels, region_step and sums."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...common.primitives import PRIMITIVES
from ...common.region import Region, Value
from . import lines
from .lines import Line, Refused, Source

TALL, WIDE = 16, 32                        # rows and columns of a block's tile, as in sums.cuh
READS_ROWS = ("linear", "linear_grad_x")   # functions that read weights
MAX_WEIGHTS = 80_000                       # numbers of all linear layers: each block reads them all
SHARED = ("extern __shared__ __align__(16) unsigned char bytes[];", "REAL* shared = (REAL*)bytes;")
MAX_ARRAYS = 400                           # that a kernel takes, 8 bytes each of 4 KiB


class Emitted(NamedTuple):
    """A region's two kernels: `region_step`, which takes `inputs`, then `outputs`, and `sums`, which takes `terms`,
    some of both, then `sums`."""

    text: str
    shared: int                            # numbers in shared memory of region_step
    blocks: int                            # of sums
    inputs: tuple[str, ...]                # names of arrays: a for inputs, o for outputs, s for sums
    outputs: dict[str, tuple[int, ...]]    # names and shapes
    terms: tuple[str, ...]
    sums: dict[str, tuple[int, ...]]
    results: tuple[str, ...]               # of the region, in order


def emit(region: Region, blocks: int, threads: int, most: int) -> Emitted | None:
    """The kernels for `blocks` blocks of `threads` threads, with at most `most` numbers in shared memory; None if there
    are none."""
    source = Source(region, threads)
    try:
        for step in region.steps:
            getattr(lines, PRIMITIVES[step.primitive].line)(source, step)
        summed = {job.out for job in source.jobs}
        results = tuple(f"s{v.number}" if v in summed else source.store(v) for v in region.outputs)
        if sum(outputs * inputs for outputs, inputs in source.rows.values()) > MAX_WEIGHTS:
            return None
        first, shared, inputs, outputs = _step(source, blocks, most)
        second, last, terms = _sums(source, outputs)
    except Refused:
        return None
    text = f'#include "region/region.cuh"\n#include "region/sums.cuh"\n\n{first}\n{second}'
    made = {f"s{job.out.number}": region.shapes[job.out.number] for job in source.jobs}
    emitted = Emitted(text, shared, last, inputs, outputs, terms, made, results)
    arrays = max(len(inputs) + len(outputs), len(terms) + len(made))
    return emitted if shared <= most and arrays <= MAX_ARRAYS else None


def _sums(s: Source, outputs: dict[str, tuple[int, ...]]) -> tuple[str, int, tuple[str, ...]]:
    """(the kernel `sums`, its blocks, the names of the arrays that it reads)"""
    lines, first, terms = [], 0, dict[str, None]()
    for job in s.jobs:
        rows, *columns = s.region.shapes[job.out.number] if job.a else (1, *s.region.shapes[job.out.number])
        across, terms = math.prod(columns), {**terms, **dict.fromkeys(filter(None, (job.a, job.b)))}
        blocks = (-(-rows // TALL) if job.a else 1) * -(-across // WIDE)
        n = outputs[job.b][0] if job.b in outputs else s.region.n
        call = f"product<{n}, {rows}, {across}>" if job.a else f"sum<{n}, {across}>"
        given = ", ".join(filter(None, (job.a, job.b, f"s{job.out.number}", f"(REAL){job.scale!r}")))
        lines.append(f"if (block < {first + blocks}) return {call}(shared, block - {first}, {given});")
        first += blocks
    text = _kernel("SUM_THREADS", "sums", [*(f"const REAL* {name}" for name in terms),
                                           *(f"REAL* s{job.out.number}" for job in s.jobs)],
                   [*SHARED, "int block = blockIdx.x;", *lines])
    return text, first, tuple(terms)


def _kernel(bounds: str, name: str, parameters: list[str], lines: list[str]) -> str:
    indent = "\n    "
    return f'''extern "C" __global__ void __launch_bounds__({bounds}) {name}({", ".join(parameters)}) {{
    {indent.join(lines)}
}}
'''


def _memory(s: Source, most: int) -> tuple[list[str], list[str], list[str], int]:
    """(lines that divide up shared memory and load filters, lines that load rows of weights, the values that are
    written whole for each image, numbers in shared memory)"""
    head, at = [*SHARED], 0
    zeros, fresh = list[str](), list[str]()            # values with memory that is to stay zero; the others
    for value, layout in s.layouts.items():
        c, *_, height, width = planes = layout.planes()
        place = f"shared + {at}" if s.root(value) == value else f"v{s.root(value).number}.start"
        head.append(f"Planes<{', '.join(map(str, planes))}> v{value.number} = {{{place}}};")
        if s.root(value) == value:
            size = -(-c * height * width // 4) * 4
            zeros += [f"clear(v{value.number}.start, {size});"] if layout.partly or not layout.tight else []
            fresh += [] if layout.partly else [f"v{value.number}"]
            at += size
    for value, (count, taps) in s.filters.items():
        head.append(f"REAL* f{value.number} = shared + {at};")
        at += count * (-(-taps // 4) * 4)
    for value, count in s.biases.items():
        head.append(f"REAL* b{value.number} = shared + {at};")
        at += -(-count // 4) * 4
    head.append(f"REAL* scratch = shared + {at};")
    at += s.scratch
    rows = []
    for value, (tall, wide) in s.rows.items():
        near = max(0, min(tall, (most - at) // wide)) if s.filters and wide % 4 == 0 else 0
        head.append(f"Rows<{wide}, {near}> w{value.number} = {{shared + {at}, a{value.number}}};")
        rows += [f"load_rows(w{value.number});"] if near else []
        at += near * wide
    head += zeros
    head += [f"load_filters<{count}, {taps}>(f{value.number}, a{value.number});"
             for value, (count, taps) in s.filters.items()]
    head += [f"load_filters<1, {count}>(b{value.number}, a{value.number});" for value, count in s.biases.items()]
    head += ["end_copies();"] if s.filters else []
    return head, rows, fresh, at


def _step(s: Source, blocks: int, most: int) -> tuple[str, int, tuple[str, ...], dict[str, tuple[int, ...]]]:
    """(the kernel `region_step`, its numbers in shared memory, the arrays that it takes and those that it writes)"""
    region = s.region
    s.alias = {y: x for y, x in s.reshaped.items() if s.layouts[y].tight and s.layouts[x].tight}
    head, rows, fresh, at = _memory(s, most)
    body, read, written, waited = list[str](), set[Value](), set[Value](), not rows
    for i, line in enumerate(s.lines):
        if not waited and line.function in READS_ROWS:         # the first that reads weights
            waited = True
            body += ["await_copies<0>();", "__syncthreads();"]
            read.clear()
            written.clear()
        if not (line.function == "copy" and line.writes[0] in s.alias):
            body += _with_barrier(s, line, read, written)
        if i == 0 and s.filters:                       # after the image, which is needed first, as filters are
            body += ["if (first) {", *(f"    {text}" for text in (*rows, "end_copies();", "await_copies<1>();")), "}"]
        for value in (v for v in line.writes if v in s.stored):
            store = Line("store_image", f"(o{value.number} + image * {s.size(value)}, v{value.number})", (value,))
            body += _with_barrier(s, store, read, written)
    labels = [value for value in region.inputs if region.dtypes[value.number] == "int64"]
    body = ["bool first = image == blockIdx.x;", *(f"int l{v.number} = as_int(a{v.number}[image]);" for v in labels),
            "__syncthreads();", f"unwritten({', '.join(('scratch', str(s.scratch), *fresh))});", *body]
    words = set().union(*map(_words, (*head, *body)))
    inputs = [v for v in region.inputs if f"a{v.number}" in words]
    outputs: dict[str, tuple[int, ...]] = {f"o{v.number}": (region.n, s.size(v)) for v in s.stored}
    outputs |= {f"o{v.number}": (blocks, size) if size else (region.n, 1) for v, size in s.parts.items()}
    ctype = {"float32": "REAL", "int64": "long long"}
    loop = [f"for (int image = blockIdx.x; image < {region.n}; image += gridDim.x) {{",
            *(f"    {line}" for line in body), "}"]
    text = _kernel("THREADS_PER_BLOCK, 1", "region_step", [
        *(f"const {ctype[region.dtypes[v.number]]}* a{v.number}" for v in inputs),
        *(f"REAL* {name}" for name in outputs)], [*head, *loop])
    return text, at, tuple(f"a{v.number}" for v in inputs), outputs


def _with_barrier(s: Source, line: Line, read: set[Value], written: set[Value]) -> list[str]:
    """A line's text, after a barrier if it reads what was written since the last one, or writes what was read."""
    reads, writes = (set(map(s.root, values)) for values in (line.reads, line.writes))
    meets = written & (reads | writes) or read & writes
    if meets:
        read.clear()
        written.clear()
    read |= reads
    written |= writes
    return ["__syncthreads();", line.text] if meets else [line.text]


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in text).split())
