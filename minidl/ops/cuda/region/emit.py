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
ARRIVED = 4                                # numbers, where it is counted which rows of weights have arrived
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


def emit(region: Region, blocks: int, shares: int, images: int, most: int) -> Emitted | None:
    """The kernels for `blocks` blocks, which take `images` images at once, with at most `most` numbers in shared memory
    each; None if there are none. An image's sums are divided as among `shares` threads."""
    source = Source(region, shares, images)
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
    text = f'#include "region/sums.cuh"\n\n{first}\n{second}'
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


def _lives(s: Source) -> dict[Value, range]:
    """The lines from a value's first to its last, if others may be in its memory before and after those."""
    lives: dict[Value, range] = {}
    for i, line in enumerate(s.lines):
        for value in map(s.root, (*line.reads, *line.writes)):
            lives[value] = range(lives[value].start if value in lives else i, i + 1)
    return {value: life if s.fleeting(value) else range(len(s.lines)) for value, life in lives.items()}


def placed(s: Source) -> dict[Value, range]:
    """Where values are in shared memory. Those that no line needs at one time may be in one place."""
    s.alias = {y: x for y, x in s.reshaped.items() if s.layouts[y].tight and s.layouts[x].tight}
    lives = _lives(s)
    for y, x in s.over.items():
        alike = s.layouts[y].planes == s.layouts[s.root(x)].planes
        if s.fleeting(y) and alike and lives[s.root(x)].stop == lives[y].start + 1:
            s.alias[y] = s.root(x)
    lives = _lives(s)
    places: dict[Value, range] = {}
    for value in sorted(lives, key=s.memory, reverse=True):
        at = 0
        for place in sorted((places[v] for v in places if _meet(lives[v], lives[value])), key=lambda r: r.start):
            if at + s.memory(value) <= place.start:
                break
            at = max(at, place.stop)
        places[value] = range(at, at + s.memory(value))
    return places


def _meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _image_stride(places: dict[Value, range]) -> int:
    """Numbers of shared memory from one image's values to the next image's."""
    return max((place.stop for place in places.values()), default=0)


def _memory(s: Source, places: dict[Value, range], most: int) -> tuple[list[str], list[str], int]:
    """(lines that divide up shared memory and load filters, lines that load rows of weights, numbers in shared
    memory)"""
    head, at = [*SHARED], s.images * _image_stride(places)
    for value, layout in s.layouts.items():
        head.append(f"Planes<{', '.join(map(str, layout.planes))}> v{value.number} = "
                    f"{{shared + {places[s.root(value)].start}}};")
    zeros = [f"clear(v{value.number}.of({image}).start, {len(place)});"
             for value, place in places.items() if not s.fleeting(value) for image in range(s.images)]
    for value, (count, taps) in s.filters.items():
        head.append(f"REAL* f{value.number} = shared + {at};")
        at += count * (-(-taps // 4) * 4)
    for value, count in s.biases.items():
        head.append(f"REAL* b{value.number} = shared + {at};")
        at += -(-count // 4) * 4
    rows = []
    for value, (tall, wide) in s.rows.items():
        near = max(0, min(tall, (most - ARRIVED - at) // wide)) if s.filters and wide % 4 == 0 else 0
        head.append(f"Rows<{wide}, {near}> w{value.number} = {{shared + {at}, a{value.number}}};")
        rows += [f"load_rows(w{value.number}, arrived);"] if near else []
        at += near * wide
    if rows:
        head += [f"unsigned long long* arrived = (unsigned long long*)(shared + {at});",
                 f"start_rows<{len(rows)}>(arrived);"]
        at += ARRIVED
    head += zeros
    head += [f"load_filters<{count}, {taps}>(f{value.number}, a{value.number});"
             for value, (count, taps) in s.filters.items()]
    head += [f"load_filters<1, {count}>(b{value.number}, a{value.number});" for value, count in s.biases.items()]
    return head, rows, at


def with_stores(s: Source) -> list[Line]:
    """The lines, and behind those that write a value that others read, lines that store it."""
    found = list[Line]()
    for line in s.lines:
        found += [line, *(Line("store_images", f"(o{v.number} + image * {s.size(v)}, v{v.number}, count)", (v,))
                          for v in line.writes if v in s.stored)]
    return found


def ordered(waiting: list[Line]) -> list[Line]:
    """Lines in an order with few barriers: behind each all those whose inputs are there. A value is written by one line
    alone, before all that read it."""
    found = list[Line]()
    while waiting:
        written, later = set[Value](), list[Line]()    # since the last barrier, or by lines that were put off
        for line in waiting:
            (found if written.isdisjoint(line.reads) else later).append(line)
            written |= {*line.writes}
        waiting = later
    return found


class Barriers:
    """Puts one before a line that reads what was written since the last one, or writes where something was used."""

    def __init__(self, s: Source, places: dict[Value, range]):
        self.s, self.places = s, places
        self.read, self.written = set[Value](), set[Value]()
        self.threads = 0                   # that lines since the last one have something for

    def before(self, line: Line, needed: bool = False) -> list[str]:
        """A line's text, after a barrier if it needs one, or for another reason."""
        reads, writes = (set(map(self.s.root, values)) for values in (line.reads, line.writes))
        needed = needed or self._meet(self.written, reads | writes) or self._meet(self.read, writes)
        if needed:
            self.read, self.written, self.threads = set(), set(), 0
        self.read |= reads
        self.written |= writes
        text = line.text(self.threads)
        self.threads += line.threads + -line.threads % 32
        return ["__syncthreads();", text] if needed else [text]

    def _meet(self, some: set[Value], others: set[Value]) -> bool:
        return any(_meet(self.places[a], self.places[b]) for a in some for b in others)


def _arrived(rows: list[str]) -> list[str]:
    """Lines that wait for images and filters; what loads rows of weights begins before, and may arrive later."""
    if not rows:
        return ["end_copies();", "await_copies<0>();"]
    return ["end_copies();", "if (first) {", *(f"    {text}" for text in (*rows, "end_copies();")), "}",
            "first ? await_copies<1>() : await_copies<0>();"]


def _step(s: Source, blocks: int, most: int) -> tuple[str, int, tuple[str, ...], dict[str, tuple[int, ...]]]:
    """(the kernel `region_step`, its numbers in shared memory, the arrays that it takes and those that it writes)"""
    region = s.region
    own = with_stores(s)
    for s.lines in (ordered(own), own):                # in the steps' own order fewer values may be needed at one time
        places = placed(s)
        head, rows, at = _memory(s, places, most)
        if at <= most:
            break
    barriers, made = Barriers(s, places), set[Value]()
    body, waited, loaded = list[str](), not rows, False
    for line in s.lines:
        if line.function != "load_images" and not loaded:
            loaded, body = True, [*body, *_arrived(rows)]
        if not (line.function == "copy" and line.writes[0] in s.alias):
            fresh = [v for v in line.writes if s.root(v) not in made and not s.layouts[v].partly]
            body += [f"unwritten({', '.join(f'v{v.number}' for v in fresh)});"] if fresh else []
            reads_first = not waited and line.function in READS_ROWS
            body += ["await_rows(arrived);"] if reads_first else []
            body += barriers.before(line, reads_first)
            waited |= reads_first
        made |= set(map(s.root, line.writes))
    labels = [value for value in region.inputs if region.dtypes[value.number] == "int64"]
    body = ["bool first = image == blockIdx.x * IMAGES;",
            f"int count = {f'imin(IMAGES, {region.n} - image)' if region.n % s.images else 'IMAGES'};",
            *(f"int l{v.number} = label_of(a{v.number} + image, count);" for v in labels), "__syncthreads();", *body]
    words = set().union(*map(_words, (*head, *body)))
    inputs = [v for v in region.inputs if f"a{v.number}" in words]
    outputs: dict[str, tuple[int, ...]] = {f"o{v.number}": (region.n, s.size(v)) for v in s.stored}
    parts = min(region.n, blocks * s.images)
    outputs |= {f"o{v.number}": (parts, size) if size else (region.n, 1) for v, size in s.parts.items()}
    ctype = {"float32": "REAL", "int64": "long long"}
    loop = [f"for (int image = blockIdx.x * IMAGES; image < {region.n}; image += gridDim.x * IMAGES) {{",
            *(f"    {line}" for line in body), "}"]
    text = _kernel("THREADS_PER_BLOCK, 1", "region_step", [
        *(f"const {ctype[region.dtypes[v.number]]}* a{v.number}" for v in inputs),
        *(f"REAL* {name}" for name in outputs)], [*head, *loop])
    sizes = f"constexpr int IMAGES = {s.images}, IMAGE_STRIDE = {_image_stride(places)};"
    return f'{sizes}\n#include "region/region.cuh"\n\n{text}', at, tuple(f"a{v.number}" for v in inputs), outputs


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in text).split())
