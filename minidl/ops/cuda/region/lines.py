"""What a region's kernels hold: a line of region_step for each step, from the functions of region.cuh, and a job of
sums for each sum over images."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...common.geometry import ConvGeometry
from ...common.region import Region, Step, Value

MAPS = 2                                   # of a thread, in convolutions of several planes and in gradients of filters
AT_ONCE = 2                                # warps that a scheduler takes in the time of one
WHOLE_ROW = 16                             # as many outputs as a thread computes of one row
MAX_TAPS = 36                              # of a filter: a thread may keep all of them in registers
NULL, NONE = "(REAL*)0", "Zeros()"         # no memory, and no bias


class Refused(Exception):
    """This region has no kernel."""


class Job(NamedTuple):
    """out = scale * a^T b, summed over the first axis; if a is None, scale * the sum of b."""

    out: Value
    a: str | None                          # the name of an array, or None
    b: str
    scale: float


class Line(NamedTuple):
    """A call of one of region.cuh's functions, and what of shared memory it reads and writes."""

    function: str
    given: str                             # template and other arguments, as they are written
    reads: tuple[Any, ...] = ()
    writes: tuple[Any, ...] = ()
    threads: int = 0                       # that have something to do, from the thread FIRST on; 0: all

    def text(self, first: int = 0) -> str:
        return f"{self.function}{self.given};".replace("FIRST", str(first))


Place = tuple[int, int, int]               # of a value: plane, row and column


@dataclass
class Layout:
    """How a value is stored in shared memory: c planes of h x w, with room beside them for reads beyond them."""

    c: int
    h: int
    w: int
    dense: bool = False                    # a function reads it as one row
    partly: bool = False                   # the function that writes it leaves zeros as they are
    left: int = 0
    right: int = 0                         # columns that are read and used, counted from the first value
    fours: bool = False                    # whole rows are read by fours: rows are equally far apart, if not dense
    reads: list[list[Place]] = field(default_factory=list)     # where a warp's lanes read four numbers each

    @property
    def tight(self) -> bool:
        """Whether there is nothing between the values."""
        return self.planes[-1] == self.h * self.w

    @property
    def room(self) -> bool:
        """Whether columns are read that have no value: zeros."""
        return self.left > 0 or self.right > self.w

    @functools.cached_property             # all that reads the value is known by then
    def planes(self) -> tuple[int, ...]:
        """Template arguments of Planes; rows and planes are as far apart as lets lanes read from different banks."""
        width = self.left + max(self.w, self.right)
        if self.room and self.dense:
            raise Refused
        found = width, 0, self.h * width
        if self.reads and not self.dense and (width % 4 == 0 or self.room or self.fours):
            found = min(_spacings(self.h, width + -width % 4, (0,) if self.fours else range(0, 32, 4)),
                        key=lambda s: (_transactions(self.reads, *s), s[-1]))
        return self.c, self.h, self.w, self.left, *found


def _spacings(height: int, width: int, skews: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Numbers in a row, behind every second one, and in a plane."""
    for row, skew, more in itertools.product(range(width, width + 16, 4), skews, range(0, 32, 4)):
        yield row, skew, height * row + height // 2 * skew + more


def _transactions(reads: list[list[Place]], row: int, skew: int, plane: int) -> int:
    """How often shared memory is read for a warp's loads of fours: a quarter of it at once, each bank once, and two
    quarters at once if few numbers are wanted."""
    total = 0
    for places in reads:
        fours = [(c * plane + i * row + i // 2 * skew + j) // 4 for c, i, j in places]
        quarters = [set(fours)] * 2 if len(set(fours)) <= 4 else [set(fours[i:i + 8]) for i in range(0, 32, 8)]
        total += sum(max(Counter(four % 8 for four in quarter).values()) for quarter in quarters)
    return total


@dataclass
class Source:
    """What is known of a kernel while it is written."""

    region: Region
    shares: int                            # threads among which an image's sums are divided
    images: int = 1                        # of a block at once
    lines: list[Line] = field(default_factory=list)
    layouts: dict[Value, Layout] = field(default_factory=dict)
    reshaped: dict[Value, Value] = field(default_factory=dict)              # values and those they have the numbers of
    over: dict[Value, Value] = field(default_factory=dict)                  # results, and what they may be written over
    alias: dict[Value, Value] = field(default_factory=dict)                 # values, and those in whose places they are
    filters: dict[Value, tuple[int, int]] = field(default_factory=dict)     # (filters, taps) in shared memory
    biases: dict[Value, int] = field(default_factory=dict)                  # of convolutions: their sizes
    stored: list[Value] = field(default_factory=list)                       # values of images that others read
    parts: dict[Value, int] = field(default_factory=dict)                   # sums over a block's images: their sizes
    jobs: list[Job] = field(default_factory=list)
    rows: dict[Value, tuple[int, int]] = field(default_factory=dict)        # of linear layers: outputs and inputs

    def layout(self, value: Value) -> Layout:
        """The layout of a value; an input is loaded into shared memory at its first use."""
        if value not in self.layouts:
            _, *shape = self.region.shapes[value.number]
            if self.region.dtypes[value.number] != "float32":
                raise Refused
            c, h, w = shape if len(shape) == 3 else (math.prod(shape), 1, 1)
            self.layouts[value] = Layout(c, h, w)
            if value in self.region.inputs:
                self.call("load_images", "", value, f"a{value.number} + image * {self.size(value)}", "count",
                          out=value)
        return self.layouts[value]

    def new(self, c: int, h: int = 1, w: int = 1) -> Value:
        """A value that no step gives."""
        value = Value(len(self.region.shapes) + len(self.layouts))
        self.layouts[value] = Layout(c, h, w)
        return value

    def size(self, value: Value) -> int:
        layout = self.layout(value)
        return layout.c * layout.h * layout.w

    def memory(self, value: Value) -> int:
        """Numbers of shared memory that a value takes, in fours."""
        c, *_, plane = self.layouts[value].planes
        return -(-c * plane // 4) * 4

    def fleeting(self, value: Value) -> bool:
        """Whether all that is read of a value's memory is written for each image."""
        layout = self.layouts[value]
        return not layout.room and not layout.partly

    def root(self, value: Value) -> Value:
        """The value whose memory this one uses."""
        while value in self.alias:
            value = self.alias[value]
        return value

    def call(self, function: str, template: str, *arguments: Value | str, out: Value | None = None,
             scratch: int | None = None) -> None:
        """A line that reads the Values among its arguments and writes `out`; its last argument, if `scratch` is given,
        is memory for as many numbers as that, or null for 0."""
        values = [a for a in arguments if isinstance(a, Value)]
        for value in values:
            self.layout(value)
        work = (self.new(scratch),) if scratch else ()
        memory = [] if scratch is None else [f"v{work[0].number}.start" if work else NULL]
        self.lines.append(Line(
            function, f"{f'<{template}>' if template else ''}({', '.join([*map(_word, arguments), *memory])})",
            (*(value for value in values if value != out), *work), (*((out,) if out else ()), *work)))

    def shared_out(self, function: str, template: str, given: tuple[Value | str, ...], out: Value | None,
                   items: int, teams: int, scratch: int, total: str, rest: str) -> None:
        """A line whose `teams` share out each of `items` sums and, if they are several, one of the function `total`
        that adds up what they left in `scratch` numbers; {} in its arguments, `rest`, is that memory."""
        work = self.new(scratch) if teams > 1 else None
        memory, written = (NULL, out) if work is None else (f"v{work.number}.start", work)
        self.lines.append(Line(
            function, f"<FIRST, {template}>({', '.join([*map(_word, given), memory])})",
            tuple(a for a in given if isinstance(a, Value) and a != out), (written,) if written else (),
            items * teams * self.images))
        if work is not None:
            self.lines.append(Line(total, rest.format(memory), (work,), (out,) if out else ()))

    def store(self, value: Value) -> str:
        """The array that holds a value for all images."""
        if value in self.region.inputs:
            return f"a{value.number}"
        if value not in self.stored:
            self.stored.append(value)
        return f"o{value.number}"

    def part(self, value: Value, size: int) -> str:
        """Where a block leaves its share of a sum, for each of its images at once."""
        self.parts[value] = size
        self.jobs.append(Job(value, None, f"o{value.number}", 1.0))
        return f"o{value.number} + blockIdx.x * {self.images * size}"

    def bias(self, b: Value | None) -> str:
        """A convolution's bias, in shared memory."""
        if b is None:
            return NONE
        self.biases[b] = self.region.shapes[b.number][0]
        return f"b{b.number}"

    def teams(self, items: int, most: int) -> int:
        """How many teams of threads share out sums: `items` sums in all, each of `most` terms. The fewest that leave
        the busiest of a multiprocessor's four schedulers as little to do."""
        return min(range(1, max(1, min(self.shares // items, most)) + 1),
                   key=lambda teams: max(-(-items * teams // 128), AT_ONCE) * -(-most // teams))


def _word(a: Value | str) -> str:
    return f"v{a.number}" if isinstance(a, Value) else a


def _act(name: str | None) -> str:
    return f"act_{name}" if name else "identity"


def _array(value: Value | None) -> str:
    return NONE if value is None else f"a{value.number}"


# ---------------------------------------------------------------- convolution
def _whole(g: ConvGeometry) -> bool:
    """Whether the filters cover the whole image: a linear layer. With padding a stride may leave one output, too."""
    if not g.dense:
        raise Refused
    return (g.oh, g.ow) == (1, 1) and (g.kh, g.kw) == (g.h, g.w) and g.top == g.left == 0


def _convolved(s: Source, x: Value, w: Value, b: Value | None, y: Value, act: str | None, g: ConvGeometry,
               mirror: bool) -> None:
    """y of x, or with mirror dx of gy: the same lines with the other padding."""
    if (g.sh, g.sw) != (1, 1) or g.kh * g.kw > MAX_TAPS or g.algorithm != "auto":
        raise Refused
    top, left = (g.kh - 1 - g.top, g.kw - 1 - g.left) if mirror else (g.top, g.left)
    if min(top, left) < 0:
        raise Refused
    source, out = s.layout(x), s.layout(y)
    s.filters[w] = g.m * g.c, g.kh * g.kw
    rows = out.w <= WHOLE_ROW
    tall, wide = (1, out.w) if rows else (2, 4)
    across, down = -(-out.w // wide), -(-out.h // tall)
    if rows:
        source.fours = True
    else:
        _reads_windows(source, out.w, g.kw, left)
    tiles = [divmod(lane % (down * across), across) for lane in range(32)]
    source.reads.append([(0, tall * i, wide * j) for i, j in tiles])
    maps = min(MAPS, out.c) if source.c > 1 else 1
    items = down * across * -(-out.c // maps)
    teams, bias = s.teams(items, source.c), s.bias(b)
    stride = items | 1 if rows else items + -items % 32 + 4    # so that conv_total reads from different banks
    tile = f"{tall}, {wide}, {maps}, {teams}, {stride}"
    s.shared_out("conv", f"{_act(act)}, {g.kh}, {g.kw}, {top}, {left}, {str(mirror).lower()}, {tile}",
                 (x, f"f{w.number}", bias, y), y, items, teams, tall * wide * maps * stride * teams,
                 "conv_total", f"<{_act(act)}, {tile}>({{}}, {bias}, {_word(y)})")


def _reads_windows(layout: Layout, ow: int, kw: int, left: int) -> None:
    """Windows kw wide under ow outputs, in tiles of 4, are read from a value, four columns at a time."""
    layout.left = max(layout.left, left)
    layout.right = max(layout.right, ow + -ow % 4 - 4 + kw + 3 + -(kw + 3) % 4 - left)


def _linear(s: Source, x: Value, w: Value, b: Value | None, y: Value, act: str | None) -> None:
    s.layout(x).dense = True
    inputs, outputs = s.size(x), s.size(y)
    s.rows[w] = outputs, inputs
    teams = s.teams(32 * outputs, -(-inputs // 128))
    s.call("linear", f"{_act(act)}, {teams}", x, f"w{w.number}", _array(b), y, out=y,
           scratch=outputs * teams if teams > 1 else 0)


def _linear_back(s: Source, gy: Value, w: Value, gx: Value, y: Value | None, act: str | None) -> None:
    size = s.size(gx)
    s.rows[w] = s.size(gy), size
    teams = s.teams(size // 4 if size % 4 == 0 else size, s.size(gy))
    s.call("linear_grad_x", f"{_act(act)}, {teams}", gy, f"w{w.number}", y or gx, gx, out=gx,
           scratch=size * teams)


def conv2d(s: Source, step: Step) -> None:
    x, w, b, g, *more = step.arguments
    act = more[0] if more else None
    if _whole(g):
        _linear(s, x, w, b, step.results[0], act)
    else:
        _convolved(s, x, w, b, step.results[0], act, g, mirror=False)
    if len(more) == 2:
        _pooled(s, step.results[0], more[1], step.results[1])


def conv2d_grad_x(s: Source, step: Step) -> None:
    gy, w, g = step.arguments
    if _whole(g):
        _linear_back(s, gy, w, step.results[0], None, None)
    else:
        _convolved(s, gy, w, None, step.results[0], None, g, mirror=True)


def conv2d_grad_w(s: Source, step: Step) -> None:
    _grad_w(s, *step.arguments, *step.results)


def _grad_w(s: Source, gy: Value, x: Value, g: ConvGeometry, out: Value) -> None:
    if _whole(g):
        return _product(s, gy, x, out)
    source, gradients = s.layout(x), s.layout(gy)
    _reads_windows(source, g.ow, g.kw, g.left)
    gradients.right = max(gradients.right, g.ow + -g.ow % 4)
    each = g.c * g.kh
    lines = [(lane // each, *divmod(lane % each, g.kh)) for lane in range(32)]
    source.reads += [[(c, i + p, 0) for _, c, p in lines] for i in range(2)]
    gradients.reads.append([(min(group * MAPS, g.m - 1), 0, 0) for group, *_ in lines])
    size = g.m * g.c * g.kh * g.kw
    items = g.c * g.kh * -(-g.m // MAPS)
    teams = s.teams(items, g.oh)
    part = s.part(out, size)
    s.shared_out("conv_grad_w", f"{g.kh}, {g.kw}, {g.top}, {g.left}, {MAPS}, {teams}",
                 (gy, x, part, "first", "count"), None, items, teams, size * teams, "part_total",
                 f"<{size}, {teams}>({{}}, {part}, first, count)")


def conv2d_grad_b(s: Source, step: Step) -> None:
    _grad_b(s, *step.arguments, *step.results)


def _grad_b(s: Source, gy: Value, out: Value) -> None:
    layout = s.layout(gy)
    if (layout.h, layout.w) == (1, 1):
        s.jobs.append(Job(out, None, s.store(gy), 1.0))
        return
    teams, part = s.teams(32 * layout.c, -(-layout.h // max(1, 32 // layout.w))), s.part(out, layout.c)
    s.shared_out("conv_grad_b", f"{teams}", (gy, part, "first", "count"), None, 32 * layout.c, teams, layout.c * teams,
                 "part_total", f"<{layout.c}, {teams}>({{}}, {part}, first, count)")


def conv2d_act_pool_grad_wb(s: Source, step: Step) -> None:
    gp, y, x, g, act, pooling = step.arguments
    layout = s.layout(y)
    gz = s.new(layout.c, layout.h, layout.w)
    _unpooled(s, gp, y, pooling, act, gz)
    _grad_w(s, gz, x, g, step.results[0])
    _grad_b(s, gz, step.results[1])


# ---------------------------------------------------------------- linear
def linear(s: Source, step: Step) -> None:
    x, w, b, *act = step.arguments
    _linear(s, x, w, b, step.results[0], act[0] if act else None)


def linear_grad_x(s: Source, step: Step) -> None:
    gy, w, *more = step.arguments
    y, act = more or (None, None)
    _linear_back(s, gy, w, step.results[0], y, act)


def _product(s: Source, gy: Value, x: Value, out: Value) -> None:
    s.jobs.append(Job(out, s.store(gy), s.store(x), 1.0))


def linear_grad_w(s: Source, step: Step) -> None:
    _product(s, *step.arguments, *step.results)


def linear_grad_b(s: Source, step: Step) -> None:
    _grad_b(s, *step.arguments, *step.results)


# ---------------------------------------------------------------- pooling, activation, shape, loss
def _pooled(s: Source, x: Value, g: ConvGeometry, y: Value) -> None:
    if g.top or g.bottom or g.left or g.right:
        raise Refused
    s.call("avg_pool", f"{g.kh}, {g.kw}, {g.sh}, {g.sw}", x, y, out=y)


def avg_pool2d(s: Source, step: Step) -> None:
    _pooled(s, *step.arguments, *step.results)


def avg_pool2d_grad_x(s: Source, step: Step) -> None:
    gy, *y, g, act = step.arguments if len(step.arguments) == 4 else (*step.arguments, None)
    _unpooled(s, gy, y[0] if y else None, g, act, step.results[0])


def _unpooled(s: Source, gy: Value, y: Value | None, g: ConvGeometry, act: str | None, out: Value) -> None:
    if (g.sh, g.sw) != (g.kh, g.kw) or g.top or g.bottom or g.left or g.right:
        raise Refused
    s.layout(out).partly = (g.oh * g.kh, g.ow * g.kw) != (g.h, g.w)
    s.call("avg_pool_grad", f"{_act(act)}, {g.kh}, {g.kw}", gy, y or out, out, out=out)
    if y is not None:
        s.over[out] = y
        s.layout(out).reads = s.layout(y).reads    # so that their rows are as far apart


def activation(s: Source, step: Step) -> None:
    s.call("activate", _act(step.primitive), *step.arguments, *step.results, out=step.results[0])


def activation_grad_x(s: Source, step: Step) -> None:
    act = step.primitive.removesuffix("_grad_x")
    s.call("activate_grad", _act(act), *step.arguments, *step.results, out=step.results[0])


def reshape(s: Source, step: Step) -> None:
    """The same numbers: in the same place, if neither value needs room around it."""
    (x, _), (y,) = step.arguments, step.results
    s.call("copy", "", x, y, out=y)
    s.reshaped[y] = x


def cross_entropy(s: Source, step: Step) -> None:
    x, labels, reduction, smoothing = step.arguments
    loss, gx = step.results
    if reduction not in ("mean", "sum") or s.region.dtypes[labels.number] != "int64":
        raise Refused
    scale = 1 / s.region.n if reduction == "mean" else 1.0
    s.parts[loss] = 0                      # one number an image
    s.jobs.append(Job(loss, None, f"o{loss.number}", scale))
    s.call("cross_entropy", "", x, f"l{labels.number}", f"o{loss.number} + image", gx, f"(REAL){smoothing!r}",
           f"(REAL){scale!r}", "count", out=gx)
