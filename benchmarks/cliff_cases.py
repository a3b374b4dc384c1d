"""What cliffs.py measures, as data: for each op its code and a grid of shapes.

An op's code is one text, in which F is minidl.ops for us and PyTorch's functions for PyTorch, as users of either type
it; where PyTorch's text is another, the row says so. A grid is a function of `many`: 1 on a CPU, and on a GPU by how
much larger arrays and batches have to be to fill it. A public op is in SWEEPS, by the first word of a row's name, or in
EXCEPT with the reason; tests/house/test_benchmarks.py holds that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Spec(NamedTuple):
    """An input: its shape and how its values are drawn, by the names of DRAWS in cliffs.py."""

    shape: Shape
    kind: str = "normal"
    below: int = 0                         # of "ints": these are from 0 to below - 1

    @property
    def learns(self) -> bool:
        """Whether its gradient is asked for."""
        return self.kind in ("normal", "positive", "near one")


@dataclass(frozen=True)
class Case:
    """A problem: inputs and options by their names in the code."""

    label: str
    inputs: dict[str, Spec]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = (f"{name} {'x'.join(map(str, spec.shape)) or '()'}" for name, spec in self.inputs.items())
        return ", ".join([*shapes, *(f"{name} {value}" for name, value in self.options.items())])

    @property
    def layout(self) -> str:
        """How x lies in memory."""
        return self.label if self.label in IN_MEMORY else "contiguous"

    @property
    def bytes(self) -> int:
        """Of the inputs."""
        return sum(math.prod(spec.shape) * SIZES.get(spec.kind, 4) for spec in self.inputs.values())


SIZES = {"ints": 8, "bools": 1}            # bytes of a value; of the others 4
Grid = Callable[[int], Iterator[Case]]


@dataclass(frozen=True)
class Sweep:
    code: str
    grid: Grid
    theirs: str = ""                       # PyTorch's text; "" if it is the same
    parts: tuple[str, ...] = ("forward", "gradients")
    checked: bool = True                   # whether both results must be equal


FORWARD, GRADIENTS = ("forward",), ("gradients",)              # comparisons have no gradient; a view moves nothing


# ---------------------------------------------------------------- grids of arrays
def sizes(many: int) -> dict[str, Shape]:
    return {"small": (16, 16), "usual": (32, 64, 16, 16), "large": (2048, 2048 * many), "odd": (1021, 997),
            "long rows": (4, 262_144 * many), "long columns": (262_144 * many, 4)}


MATRIX, IMAGES = (1024, 1024), (32, 64, 16, 16)
IN_MEMORY = {"transposed": MATRIX, "sliced": MATRIX, "channels last": IMAGES}      # layouts of x


def plain(*kinds: str) -> Grid:
    """Inputs x, y, z of these kinds, all of one shape."""
    def grid(many: int) -> Iterator[Case]:
        for label, shape in (sizes(many) | IN_MEMORY).items():
            yield Case(label, {name: Spec(shape, kind) for name, kind in zip("xyz", kinds or ("normal",))})
    return grid


BROADCAST: dict[str, tuple[Shape, Shape]] = {
    "a row": (MATRIX, (1024,)), "a column": (MATRIX, (1024, 1)), "one value": (MATRIX, (1,)),
    "row by column": ((1, 1024), (1024, 1)), "channels": (IMAGES, (64, 1, 1)), "an image": (IMAGES, (64, 16, 16))}


def pairs(kind: str = "normal") -> Grid:
    """x and y of one shape, and of shapes that broadcast."""
    def grid(many: int) -> Iterator[Case]:
        yield from plain(kind, kind)(many)
        for label, (x, y) in BROADCAST.items():
            yield Case(label, {"x": Spec(x, kind), "y": Spec(y, kind)})
    return grid


def along(kind: str = "normal", several: bool = False, most: int = 1 << 62) -> Grid:
    """x and the axis `dim`; several: also tuples of axes. most: of elements, for what takes long."""
    def grid(many: int) -> Iterator[Case]:
        by = sizes(many)
        rows: list[tuple[str, Shape, Any]] = [
            ("small", by["small"], 1), ("usual", (128, 1000), 1), ("usual, columns", (128, 1000), 0),
            ("large", by["large"], 1), ("large, columns", by["large"], 0), ("middle axis", (64, 256, 64), 1),
            ("odd", by["odd"], 1), ("odd, columns", by["odd"], 0), ("long rows", by["long rows"], 1),
            ("long rows, columns", by["long rows"], 0), ("long columns", by["long columns"], 0),
            ("long columns, rows", by["long columns"], 1), ("transposed", MATRIX, 1), ("sliced", MATRIX, 1)]
        if several:
            rows += [("all axes", by["large"], (0, 1)), ("channels", IMAGES, (0, 2, 3)),
                     ("1 channel", (128, 1, 28, 28), (0, 2, 3)), ("1024 channels", (32, 1024, 8, 8), (0, 2, 3)),
                     ("pixels", IMAGES, (2, 3)), ("channels last", IMAGES, (0, 2, 3))]
        for label, shape, dim in rows:
            if math.prod(shape) <= most:
                yield Case(label, {"x": Spec(shape, kind)}, {"dim": dim})
    return grid


def in_full(**rows: Any) -> Grid:
    """Cases in full: label -> (inputs, options), words of the label joined by _; many is not asked."""
    return lambda many: (Case(label.replace("_", " "), inputs, options) for label, (inputs, options) in rows.items())


def with_mask(many: int) -> Iterator[Case]:
    for label, shape in (sizes(many) | IN_MEMORY).items():
        yield Case(label, {"x": Spec(shape), "m": Spec(shape, "bools")})


def chosen(many: int) -> Iterator[Case]:
    """Rows of a table by their indices i: few, many, all the same few."""
    for label, rows, width, count in (
            ("small", 16, 16, 16), ("usual", 1000, 64, 128), ("large", 50_000, 256, 8192 * many),
            ("odd", 1021, 997, 1023), ("of few rows", 4, 256, 16_384 * many),
            ("long columns", 65_536 * many, 1, 65_536 * many),
            ("long rows", 16, 262_144, 8), ("few of many", 500_000, 64, 64)):
        yield Case(label, {"x": Spec((rows, width)), "i": Spec((count,), "ints", rows)})
    for layout in ("transposed", "sliced"):
        yield Case(layout, {"x": Spec(MATRIX), "i": Spec((1024,), "ints", 1024)})


def gathered(many: int) -> Iterator[Case]:
    by = sizes(many)
    for label, shape, dim in (
            ("small", by["small"], 1), ("usual", (128, 1000), 1), ("usual, columns", (128, 1000), 0),
            ("large", by["large"], 1), ("odd", by["odd"], 0), ("long rows", by["long rows"], 1),
            ("long columns", by["long columns"], 0), ("transposed", MATRIX, 1), ("sliced", MATRIX, 1)):
        yield Case(label, {"x": Spec(shape), "i": Spec(shape, "ints", shape[dim])}, {"dim": dim})


# ---------------------------------------------------------------- grids of products
def products(many: int) -> Iterator[Case]:
    rows: list[tuple[str, Shape, Shape]] = [
        ("small", (16, 16), (16, 16)), ("usual", (128, 1024), (1024, 256)), ("large", (1024, 1024), (1024, 1024)),
        ("odd", (509, 997), (997, 251)), ("one row", (1, 1024), (1024, 1024)), ("one column", (1024, 1024), (1024, 1)),
        ("long sums", (16, 65_536), (65_536, 16)), ("long columns", (65_536, 16), (16, 16)),
        ("long rows", (16, 16), (16, 65_536)), ("outer", (1024, 1), (1, 1024)), ("vector", (1024, 1024), (1024,)),
        ("two vectors", (262_144,), (262_144,)), ("batch", (64, 64, 64), (64, 64, 64)),
        ("batch of tiny", (4096, 4, 4), (4096, 4, 4)), ("batch of vectors", (1024, 1, 64), (1024, 64, 1)),
        ("batch, one y", (64, 64, 64), (64, 64)), ("batch, one x", (64, 64), (64, 64, 64)),
        ("heads", (8, 8, 128, 64), (8, 8, 64, 128)), ("transposed", (512, 512), (512, 512)),
        ("sliced", (512, 512), (512, 512))]
    if many > 1:
        rows += [("larger", (4096, 4096), (4096, 4096))]
    for label, x, y in rows:
        yield Case(label, {"x": Spec(x), "y": Spec(y)})


def layers(many: int) -> Iterator[Case]:
    for label, lead, i, o in (
            ("small", (16,), 16, 16), ("usual", (128,), 1024, 256), ("classes", (128,), 784, 10),
            ("large", (256 * many,), 2048, 1024), ("odd", (127,), 997, 509), ("one image", (1,), 1024, 1024),
            ("one feature", (1024,), 1, 1024), ("one output", (1024,), 1024, 1), ("long columns", (65_536,), 16, 16),
            ("long rows", (16,), 65_536, 16), ("wide output", (16,), 16, 65_536), ("two axes", (32, 64), 256, 256),
            ("transposed", (512,), 512, 512), ("sliced", (512,), 512, 512)):
        yield Case(label, {"x": Spec((*lead, i)), "w": Spec((o, i)), "b": Spec((o,))})


def heads(many: int) -> Iterator[Case]:
    for label, lead, length, keys, d in (
            ("small", (2,), 8, 8, 8), ("usual", (16, 6), 128, 128, 32), ("large", (2 * many, 8), 1024, 1024, 64),
            ("odd", (5, 3), 97, 101, 24), ("one query", (16, 8), 1, 1024, 64), ("long columns", (4, 2), 1024, 16, 64),
            ("sliced", (16, 6), 128, 128, 32)):
        q, k = Spec((*lead, length, d)), Spec((*lead, keys, d))
        for causal in (False, True)[:1 + (length == keys)]:
            yield Case(label, {"x": q, "k": k, "v": k}, {"causal": causal})


def recurrences(gates: int, states: int) -> Grid:
    """Sequences x, weights v of the inputs and w of the state, and the first state z. w is scaled: with values of about
    1 a recurrence makes much of rounding."""
    def grid(many: int) -> Iterator[Case]:
        for label, length, n, i, h in (
                ("small", 8, 4, 16, 16), ("usual", 28, 64, 28, 128), ("large", 32, 64 * many, 256, 256),
                ("odd", 27, 61, 29, 67), ("one sequence", 100, 1, 64, 128), ("one unit", 28, 64, 16, 1),
                ("one step", 1, 256, 256, 256), ("long", 500, 16, 64, 64)):
            yield Case(label, {"x": Spec((length, n, i)), "v": Spec((gates * h, i)), "w": Spec((gates * h, h)),
                               "z": Spec((states, n, h))})
    return grid


EQUATIONS: list[tuple[str, str, Shape, Shape]] = [
    ("small", "ij,jk->ik", (16, 16), (16, 16)), ("product", "ij,jk->ik", (512, 512), (512, 512)),
    ("transposed result", "ij,jk->ki", (512, 512), (512, 512)),
    ("both transposed", "ji,kj->ik", (512, 512), (512, 512)), ("batch", "bij,bjk->bik", (64, 64, 64), (64, 64, 64)),
    ("heads", "bqhd,bkhd->bhqk", (8, 128, 8, 64), (8, 128, 8, 64)),
    ("row sums of products", "ij,ij->i", MATRIX, MATRIX), ("all products", "ij,ij->", MATRIX, MATRIX),
    ("rows scaled", "ij,i->ij", MATRIX, (1024,)), ("outer", "i,j->ij", (1024,), (1024,)),
    ("odd", "ij,jk->ik", (509, 997), (997, 251)), ("two axes summed", "ijk,jkl->il", (64, 32, 32), (32, 32, 64))]


def equations(many: int) -> Iterator[Case]:
    for label, equation, x, y in EQUATIONS:
        yield Case(label, {"x": Spec(x), "y": Spec(y)}, {"equation": equation})


# ---------------------------------------------------------------- grids of images
Pair = int | tuple[int, int]


def both(value: Pair) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def filters(label: str, c: int, m: int, size: Pair, k: Pair = 3, stride: int = 1, dilation: int = 1, groups: int = 1,
            images: int = 4) -> tuple[Any, ...]:
    return label, c, m, size, k, stride, dilation, groups, images


CONVOLUTIONS = [
    filters("small", 1, 1, 8), filters("usual", 64, 64, 32), filters("first layer", 3, 64, 32, 5),
    filters("1 channel", 1, 32, 28, 5), filters("1 map", 32, 1, 28), filters("4 channels", 4, 4, 64),
    filters("16 channels", 16, 16, 32), filters("256 channels", 256, 256, 16), filters("1024 channels", 1024, 1024, 8),
    filters("large images", 16, 16, 224, images=1), filters("odd", 17, 19, (31, 29), (3, 5)),
    filters("one image", 64, 64, 32, images=1), filters("many images", 16, 16, 8, images=64),
    *(filters(f"1x1, {c} to {m}", c, m, size, 1) for c, m, size in ((64, 256, 16), (256, 64, 16), (1024, 1024, 8))),
    filters("7x7", 16, 16, 32, 7), filters("11x11", 3, 64, 64, 11), filters("15x15", 8, 8, 32, 15),
    *(filters(f"8 groups of {c // 8}", c, c, size, groups=8) for c, size in ((8, 32), (64, 32), (256, 16), (1024, 8))),
    *(filters(f"depthwise, {c} channels", c, c, size, groups=c) for c, size in (
        (8, 32), (64, 32), (256, 16), (1024, 8))),
    filters("depthwise, 2 maps each", 64, 128, 32, groups=64), filters("depthwise, 5x5", 64, 64, 32, 5, groups=64),
    filters("depthwise, stride 2", 64, 64, 32, stride=2, groups=64),
    filters("depthwise, dilation 2", 64, 64, 32, dilation=2, groups=64),
    filters("stride 2", 64, 128, 32, stride=2), filters("stride 2, 7x7", 3, 64, 64, 7, stride=2),
    filters("stride 4, 11x11", 3, 64, 128, 11, stride=4, images=1), filters("stride 2, 1x1", 64, 128, 32, 1, stride=2),
    filters("stride 2, 8 groups", 64, 64, 32, stride=2, groups=8), filters("dilation 2", 64, 64, 32, dilation=2),
    filters("dilation 4", 64, 64, 32, dilation=4), filters("dilation 2, 8 groups", 64, 64, 32, dilation=2, groups=8),
    filters("dilation and stride 2", 64, 64, 32, stride=2, dilation=2),
    filters("long rows", 16, 16, (1, 8192), (1, 9)), filters("long columns", 16, 16, (8192, 1), (9, 1)),
    *(filters(layout, 64, 64, 32) for layout in ("transposed", "sliced", "channels last"))]


def convolutions(many: int) -> Iterator[Case]:
    for label, c, m, size, k, stride, dilation, groups, images in CONVOLUTIONS:
        k, shape = both(k), (images * many, c, *both(size))
        yield Case(label, {"x": Spec(shape), "w": Spec((m, c // groups, *k)), "b": Spec((m,))},
                   {"stride": stride, "padding": tuple(dilation * (n // 2) for n in k), "dilation": dilation,
                    "groups": groups})


SEQUENCES = [
    filters("small", 1, 1, 16), filters("usual", 64, 64, 256), filters("1 channel", 1, 64, 1024, 9),
    filters("256 channels", 256, 256, 128), filters("1024 channels", 1024, 1024, 32), filters("odd", 17, 19, 1021, 5),
    filters("long rows", 16, 16, 65_536, images=1), filters("8 groups", 64, 64, 256, groups=8),
    filters("depthwise", 256, 256, 256, groups=256), filters("stride 4", 64, 64, 1024, 9, stride=4),
    filters("dilation 8", 64, 64, 256, dilation=8), filters("sliced", 64, 64, 256),
    filters("transposed", 64, 64, 256)]


def sequences(many: int) -> Iterator[Case]:
    for label, c, m, size, k, stride, dilation, groups, images in SEQUENCES:
        yield Case(label, {"x": Spec((images * many, c, size)), "w": Spec((m, c // groups, k)), "b": Spec((m,))},
                   {"stride": stride, "padding": dilation * (k // 2), "dilation": dilation, "groups": groups})


def transposed_convolutions(many: int) -> Iterator[Case]:
    for label, c, m, size, k, stride, padding, more in (
            ("small", 1, 1, 8, 3, 1, 1, 0), ("usual", 64, 32, 16, 4, 2, 1, 0),
            ("stride 1", 64, 64, 16, 3, 1, 1, 0), ("2x2", 64, 32, 32, 2, 2, 0, 0),
            ("1 map", 64, 1, 32, 4, 2, 1, 0), ("1 channel", 1, 64, 32, 4, 2, 1, 0),
            ("256 channels", 256, 128, 16, 4, 2, 1, 0),
            ("1024 channels", 1024, 512, 4, 4, 2, 1, 0),
            ("odd", 17, 19, 15, 5, 3, 2, 1), ("stride 4", 16, 16, 32, 8, 4, 2, 0),
            ("sliced", 64, 32, 16, 4, 2, 1, 0), ("channels last", 64, 32, 16, 4, 2, 1, 0)):
        yield Case(label, {"x": Spec((4 * many, c, size, size)), "w": Spec((c, m, k, k)), "b": Spec((m,))},
                   {"stride": stride, "padding": padding, "output_padding": more})


def poolings(many: int) -> Iterator[Case]:
    for label, shape, k, stride, padding in (
            ("small", (1, 1, 8, 8), 2, 2, 0), ("usual", (32, 64, 32, 32), 2, 2, 0), ("3x3, stride 2", IMAGES, 3, 2, 1),
            ("3x3, stride 1", IMAGES, 3, 1, 1), ("1 channel", (128, 1, 28, 28), 2, 2, 0),
            ("1024 channels", (8, 1024, 8, 8), 2, 2, 0), ("large", (4 * many, 64, 112, 112), 3, 2, 1),
            ("odd", (7, 17, 31, 29), (3, 5), (2, 3), (1, 2)), ("whole images", IMAGES, 16, 16, 0),
            ("9x9, stride 1", (8, 16, 32, 32), 9, 1, 4), ("gaps", (32, 64, 32, 32), 2, 4, 0),
            ("long rows", (1, 16, 1, 65_536), (1, 2), (1, 2), 0),
            ("long columns", (1, 16, 65_536, 1), (2, 1), (2, 1), 0),
            *((layout, IMAGES, 2, 2, 0) for layout in ("transposed", "sliced", "channels last"))):
        yield Case(label, {"x": Spec(shape)}, {"k": k, "stride": stride, "padding": padding})


def images(**options: tuple[Any, ...]) -> Grid:
    """x, and one option that takes turns through its values."""
    (name, values), = options.items()

    def grid(many: int) -> Iterator[Case]:
        for label, shape in {
                "small": (1, 16, 4, 4), "usual": IMAGES, "large": (4 * many, 64, 112, 112), "odd": (7, 16, 31, 29),
                "1024 channels": (8, 1024, 8, 8), "long rows": (1, 16, 1, 65_536), "long columns": (1, 16, 65_536, 1),
                "transposed": IMAGES, "sliced": IMAGES, "channels last": IMAGES}.items():
            for value in values:
                yield Case(label, {"x": Spec(shape)}, {name: value})
    return grid


CHANNELS: dict[str, Shape] = {
    "small": (4, 8, 4, 4), "usual": (32, 64, 16, 16), "1 channel": (128, 1, 28, 28), "8 channels": (32, 8, 32, 32),
    "256 channels": (32, 256, 8, 8), "1024 channels": (32, 1024, 8, 8), "large images": (2, 64, 128, 128),
    "odd": (7, 24, 31, 29), "columns of a table": (4096, 64), "long columns": (262_144, 8),
    "one pixel": (256, 1024, 1, 1), "long rows": (1, 8, 1, 262_144),
    "transposed": IMAGES, "sliced": IMAGES, "channels last": IMAGES}


def by_channel(fixed: bool = False) -> Grid:
    """x, and of each channel a weight and a bias; fixed: and a mean and a variance, without gradients."""
    def grid(many: int) -> Iterator[Case]:
        for label, (n, *rest) in (CHANNELS | {"large": (4 * many, 64, 112, 112)}).items():
            c = rest[:1]
            running = {"m": Spec((*c,), "fixed"), "v": Spec((*c,), "fixed")} if fixed else {}
            yield Case(label, {"x": Spec((n, *rest)), "w": Spec((*c,)), "b": Spec((*c,)), **running})
    return grid


def in_groups(many: int) -> Iterator[Case]:
    """In 1 group, 8 and one per channel."""
    for case in by_channel()(many):
        c = case.inputs["w"].shape[0]
        for groups in dict.fromkeys((1, 8, c) if case.label in ("small", "usual", "1024 channels") else (min(8, c),)):
            if math.prod(case.inputs["x"].shape[1:]) > groups:
                yield Case(case.label, case.inputs, {"groups": groups})


def in_rows(many: int) -> Iterator[Case]:
    for label, lead, last in (
            ("small", (16,), (16,)), ("usual", (32, 128), (256,)), ("large", (1024 * many,), (4096,)),
            ("odd", (1021,), (997,)), ("long rows", (4,), (262_144 * many,)), ("long columns", (262_144 * many,), (4,)),
            ("1024 features", (1024,), (1024,)), ("two axes", (64,), (64, 64)), ("images", (32,), (64, 16, 16)),
            ("transposed", (1024,), (1024,)), ("sliced", (1024,), (1024,))):
        yield Case(label, {"x": Spec((*lead, *last)), "w": Spec(last), "b": Spec(last)}, {"last": last})


def labelled(many: int) -> Iterator[Case]:
    for label, n, classes in (
            ("small", 16, 10), ("usual", 128, 10), ("1000 classes", 128, 1000), ("large", 4096, 1024 * many),
            ("odd", 1021, 997), ("long rows", 4, 262_144), ("long columns", 262_144, 4), ("transposed", *MATRIX),
            ("sliced", *MATRIX)):
        yield Case(label, {"x": Spec((n, classes)), "i": Spec((n,), "ints", classes)})


# ---------------------------------------------------------------- the table
def functions(grid: Grid, *names: str) -> dict[str, Sweep]:
    return {name: Sweep(f"F.{name}(x)", grid) for name in names}


def arguments(grid: Grid, code: str, *names: str, **more: Any) -> dict[str, Sweep]:
    """Rows whose code differs in the name alone."""
    return {name: Sweep(code.format(name), grid, **more) for name in names}


PARTS = in_full(small=({"x": Spec((16, 16))}, {"dim": 1}), usual=({"x": Spec(IMAGES)}, {"dim": 1}),
           large=({"x": Spec((2048, 2048))}, {"dim": 0}), large_columns=({"x": Spec((2048, 2048))}, {"dim": 1}),
           odd=({"x": Spec((1021, 997))}, {"dim": 1}))
EXPANDED = in_full(
    small=({"x": Spec((16, 1))}, {"to": (16, 16)}), rows=({"x": Spec((1024,))}, {"to": MATRIX}),
    columns=({"x": Spec((1024, 1))}, {"to": MATRIX}), channels=({"x": Spec((64, 1, 1))}, {"to": IMAGES}),
    one_value=({"x": Spec((1,))}, {"to": (1 << 20,)}), long_columns=({"x": Spec((4,))}, {"to": (262_144, 4)}))
INDEX = in_full(**{label: ({"x": Spec(x), "i": Spec((count,), "ints", x[0]), "j": Spec((count,), "ints", x[1])}, {})
              for label, x, count in (("small", (16, 16), 16), ("usual", (128, 1000), 128), ("large", MATRIX, 1 << 18),
                                      ("odd", (1021, 997), 1023), ("of_few", (4, 4), 1 << 18))})

SWEEPS: dict[str, Sweep] = {
    **functions(plain(), "neg", "exp", "tanh", "sigmoid", "relu", "leaky_relu", "elu", "softplus", "hardsigmoid",
                "silu", "gelu", "abs", "clone"),
    "gelu by tanh": Sweep("F.gelu(x, approximate='tanh')", plain()),
    **functions(plain("positive"), "log", "sqrt", "log1p"),
    **functions(plain(), "sin", "cos", "expm1", "erf", "sign", "round", "floor", "ceil", "tril", "triu"),
    "remainder": Sweep("F.remainder(x, y)", pairs("positive")),
    "floor_divide": Sweep("F.floor_divide(x, y)", pairs("positive"), parts=FORWARD),
    **arguments(plain("positive"), "x.{}()", "square", "reciprocal", "rsqrt"),
    "clip": Sweep("F.clip(x, -0.5, 0.5)", plain()),
    "dropout": Sweep("F.dropout(x, 0.5)", plain(), checked=False),
    **arguments(pairs(), "F.{}(x, y)", "add", "sub", "mul", "maximum", "minimum"),
    **arguments(pairs("positive"), "F.{}(x, y)", "div", "pow"),
    "pow by a number": Sweep("x ** 3", plain("positive")),
    **arguments(pairs(), "F.{}(x, y)", "gt", "ge", "lt", "le", "eq", "ne", parts=FORWARD),
    "where": Sweep("F.where(m, x, 0.5)", with_mask),
    "masked_fill": Sweep("x.masked_fill(m, 0.5)", with_mask),
    "masked_select": Sweep("x.masked_select(m)", with_mask),
    **arguments(plain(), "x.{}()", "double", "int", "long", "bool", parts=FORWARD),
    **arguments(plain("normal", "normal"), "x.{}(y)", "add_", "sub_", "copy_", parts=FORWARD, checked=False),
    **arguments(plain(), "x.{}(1.0)", "mul_", "div_", "fill_", parts=FORWARD, checked=False),
    "zero_": Sweep("x.zero_()", plain(), parts=FORWARD, checked=False),
    "clamp_": Sweep("x.clamp_(-0.5, 0.5)", plain(), parts=FORWARD, checked=False),
    **arguments(along(several=True), "F.{}(x, dim=dim)", "sum", "mean", "var", "std"),
    **{name: Sweep(f"F.{name}(x, axis=dim)", along(several=True), f"F.a{name}(x, dim)") for name in ("max", "min")},
    "norm": Sweep("F.norm(x, dim=dim)", along(several=True), "F.linalg.vector_norm(x, dim=dim)"),
    "logsumexp": Sweep("x.logsumexp(dim)", along(several=True)),
    "one_hot": Sweep("F.one_hot(i, x.shape[1])", labelled, parts=FORWARD),
    "dropout2d": Sweep("F.dropout2d(x, 0.5)", images(f=(1,)), checked=False),
    "unique": Sweep("F.unique(x.bool().long())", plain(), parts=FORWARD),
    **arguments(along(), "F.{}(x, dim=dim)", "softmax", "log_softmax", "cumsum"),
    "prod": Sweep("F.prod(x, dim=dim)", along("near one")),
    **arguments(along(), "F.{}(x, dim=dim)", "argmax", "argmin", parts=FORWARD),
    **arguments(along("bools"), "x.{}(dim)", "any", "all", parts=FORWARD),
    "argsort": Sweep("x.argsort(dim)", along(), parts=FORWARD, checked=False),       # equal values in any order
    "sort": Sweep("x.sort(dim)[0]", along(), checked=False),
    "topk": Sweep("x.topk(4, dim)[0]", along(), checked=False),
    "gather": Sweep("x.gather(dim, i)", gathered),
    "index_select": Sweep("x.index_select(0, i)", chosen),
    "embedding": Sweep("F.embedding(i, x)", chosen),
    "getitem rows": Sweep("x[i]", chosen),
    "getitem columns": Sweep("x[:, i]", in_full(
        small=({"x": Spec((16, 16)), "i": Spec((16,), "ints", 16)}, {}),
        usual=({"x": Spec((128, 1000)), "i": Spec((128,), "ints", 1000)}, {}),
        large=({"x": Spec((2048, 2048)), "i": Spec((2048,), "ints", 2048)}, {}),
        of_few_columns=({"x": Spec((4096, 4)), "i": Spec((256,), "ints", 4)}, {}))),
    "getitem pairs": Sweep("x[i, j]", INDEX),
    "getitem mask": Sweep("x[m]", with_mask),
    "getitem slices": Sweep("x[1:-1, ::2]", plain(), parts=GRADIENTS),
    "setitem mask": Sweep("x.__setitem__(m, 0.5)", with_mask, parts=FORWARD, checked=False),
    "setitem rows": Sweep("x.__setitem__(i, 0.5)", chosen, parts=FORWARD, checked=False),
    "setitem slices": Sweep("x.__setitem__((slice(1, -1), slice(None, None, 2)), 0.5)", plain(), parts=FORWARD,
                            checked=False),
    "select": Sweep("x.select(dim, 1)", PARTS, parts=GRADIENTS),
    "narrow": Sweep("x.narrow(dim, 1, 8)", PARTS, parts=GRADIENTS),
    "split": Sweep("F.split(x, 5, dim)[1]", PARTS, parts=GRADIENTS),
    "chunk": Sweep("x.chunk(3, dim)[1]", PARTS, parts=GRADIENTS),
    "unbind": Sweep("x.unbind(dim)[1]", PARTS, parts=GRADIENTS),
    "split and join": Sweep("F.concatenate(F.split(x, 8, dim)[::-1], dim)", PARTS),
    "expand": Sweep("x.expand(to)", EXPANDED, parts=GRADIENTS),
    "repeat": Sweep("x.repeat(to)", in_full(
        small=({"x": Spec((16, 16))}, {"to": (2, 2)}), rows=({"x": Spec((64, 1024))}, {"to": (16, 1)}),
        columns=({"x": Spec((1024, 64))}, {"to": (1, 16)}), odd=({"x": Spec((127, 253))}, {"to": (3, 5)}),
        a_vector=({"x": Spec((1024,))}, {"to": (1024, 1)}), one_value=({"x": Spec((1, 1))}, {"to": (1024, 1024)}))),
    "flip": Sweep("F.flip(x, (0, 1))", plain()),
    "flip of columns": Sweep("F.flip(x, (1,))", plain()),
    "pad": Sweep("F.pad(x, (1, 2, 3, 4))", plain()),
    "concatenate": Sweep("F.concatenate((x, y), 0)", plain("normal", "normal")),
    "concatenate columns": Sweep("F.concatenate((x, y, x), 1)", plain("normal", "normal")),
    "stack": Sweep("F.stack((x, y), 0)", plain("normal", "normal")),
    "stack last": Sweep("F.stack((x, y), -1)", plain("normal", "normal")),
    "transpose and copy": Sweep("F.clone(x.mT) + 1.0", plain()),
    "reshape of a transposed": Sweep("x.mT.reshape(-1) * 2.0", plain()),
    "cross_entropy": Sweep("F.cross_entropy(x, i)", labelled),
    "cross_entropy smoothed": Sweep("F.cross_entropy(x, i, label_smoothing=0.1)", labelled),
    "nll_loss": Sweep("F.nll_loss(x, i)", labelled),
    "kl_div": Sweep("F.kl_div(x, y)", plain("normal", "positive")),
    **arguments(plain("normal", "normal"), "F.{}(x, y)", "mse_loss", "l1_loss", "huber_loss",
                "binary_cross_entropy_with_logits"),
    "interpolate": Sweep("F.interpolate(x, scale_factor=f)", images(f=(2, 3))),
    "pixel_shuffle": Sweep("F.pixel_shuffle(x, f)", images(f=(2, 4))),
    "adaptive_avg_pool2d": Sweep("F.adaptive_avg_pool2d(x, to)", images(to=(1, 7))),
    "avg_pool2d": Sweep("F.avg_pool2d(x, k, stride, padding)", poolings),
    "max_pool2d": Sweep("F.max_pool2d(x, k, stride, padding)", poolings),
    "local_response_norm": Sweep("F.local_response_norm(x, size)", images(size=(3, 5))),
    "batch_norm": Sweep("F.batch_norm(x, None, None, w, b, training=True)", by_channel()),
    "batch_norm in evaluation": Sweep("F.batch_norm(x, m, v, w, b)", by_channel(fixed=True)),
    "layer_norm": Sweep("F.layer_norm(x, last, w, b)", in_rows),
    "group_norm": Sweep("F.group_norm(x, groups, w, b)", in_groups),
    "outer": Sweep("F.outer(x, y)", in_full(**{label: ({"x": Spec((n,)), "y": Spec((m,))}, {}) for label, n, m in (
        ("small", 16, 16), ("usual", 1024, 1024), ("odd", 1021, 997), ("long_rows", 4, 262_144),
        ("long_columns", 262_144, 4))})),
    "matmul": Sweep("x @ y", products),
    "einsum": Sweep("F.einsum(equation, x, y)", equations),
    "linear": Sweep("F.linear(x, w, b)", layers),
    "recurrence of an LSTM": Sweep("F.recurrence(F.linear(x, v), w * 0.05, z, kind='lstm')[0]", recurrences(4, 2),
                              "F.lstm(x, (z[:1], z[1:]), (v, w * 0.05), False, 1, 0.0, False, False, False)[0]"),
    "recurrence with tanh": Sweep("F.recurrence(F.linear(x, v), w * 0.05, z, kind='tanh')[0]", recurrences(1, 1),
                             "F.rnn_tanh(x, z, (v, w * 0.05), False, 1, 0.0, False, False, False)[0]"),
    "recurrence of a GRU": Sweep("F.recurrence(F.linear(x, v), w * 0.05, z, kind='gru')[0]", recurrences(3, 1),
                             "F.gru(x, z, (v, w * 0.05), False, 1, 0.0, False, False, False)[0]"),
    "scaled_dot_product_attention": Sweep("F.scaled_dot_product_attention(x, k, v, is_causal=causal)", heads),
    "conv1d": Sweep("F.conv1d(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups)",
                    sequences),
    "conv3d": Sweep("F.conv3d(x, w, None, 1, 1)", in_full(
        small=({"x": Spec((2, 3, 4, 8, 8)), "w": Spec((4, 3, 3, 3, 3))}, {}),
        usual=({"x": Spec((8, 16, 8, 16, 16)), "w": Spec((32, 16, 3, 3, 3))}, {}),
        one_channel=({"x": Spec((8, 1, 16, 32, 32)), "w": Spec((8, 1, 3, 3, 3))}, {}),
        odd=({"x": Spec((3, 5, 7, 13, 11)), "w": Spec((7, 5, 3, 5, 1))}, {}))),
    "conv_transpose2d": Sweep("F.conv_transpose2d(x, w, b, stride=stride, padding=padding, "
                              "output_padding=output_padding)", transposed_convolutions),
    "conv2d": Sweep("F.conv2d(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups)",
                    convolutions),
}

# ---------------------------------------------------------------- what is not measured, by the reason
EXCEPT: Mapping[str, str] = {name: reason for reason, names in {
    "another name of `max`": "amax", "another name of `min`": "amin", "another name of `abs`": "absolute",
    "another name of `clip`": "clamp", "another name of `clamp_`": "clip_", "another name of `repeat`": "tile",
    "another name of `matmul`": "mm bmm mv dot", "another name of `expand`": "expand_as broadcast_to",
    "a conversion, as `double`": "float byte type type_as",
    "a copy between devices, or none": "to cpu cuda numpy tolist item",
    "a view, whose gradient is a view": "flatten squeeze unsqueeze view view_as reshape_as ravel "
                                        "permute swapaxes swapdims movedim moveaxis t T mT detach contiguous",
    "a fact, or a setting": "shape size ndim dim dtype device numel nelement nbytes element_size is_cuda is_leaf "
                            "is_floating_point requires_grad requires_grad_ retain_grad grad data node changed "
                            "mark_changed weights",
    "measured as the gradients of every op": "backward",
}.items() for name in names.split()}


def public() -> set[str]:
    """Names of minidl.ops's functions and of all that a Tensor has."""
    from minidl import Tensor, ops

    return {name for name, value in vars(ops).items() if callable(value) and name[0] != "_"} | {
        name for name in dir(Tensor) if name[0] != "_"}
