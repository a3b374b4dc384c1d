"""Every op's test cases, as data: which op, which shapes and options, how to draw values, and the plain truth.

A row of TABLE is one op; it yields a Case for each of its problems. From each Case come the gradient check
(ops/test_gradients.py) and the tests against the reference, of float32, of memory layouts and of the convolution
algorithms (ops/test_reference.py). A reference is a formula in NumPy or the paper's loops, obvious and slow.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minidl import Tensor, ops
from minidl.ops.common.geometry.recurrent import SIZES
from minidl.ops.cpu import conv

Shape = tuple[int, ...]
Problem = tuple[tuple[Shape, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One call of one op: `call(*tensors, **options)` must equal `reference(*arrays, **options)`."""

    op: str
    call: Callable[..., Tensor]
    reference: Callable[..., Any]
    shapes: tuple[Shape, ...]
    options: dict[str, Any]
    draw: Callable[[np.random.Generator, Shape], np.ndarray]
    differentiable: bool = True

    def __str__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return " ".join(f"{self.op}({', '.join([*map(str, self.shapes), *options])})".split())

    def arrays(self) -> list[np.ndarray]:
        """The inputs, float64: the same values at each call."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        return [np.array(self.draw(rng, shape)) for shape in self.shapes]


# ---------------------------------------------------------------- values
def normal(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """For logarithms, roots, powers and divisors."""
    return rng.uniform(0.5, 2.0, shape)


def apart(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """All values and zero at least 0.01 from each other: no kink of relu or max is within a difference's step."""
    count = math.prod(shape)
    return (rng.permutation(count).reshape(shape) - count // 2 + 0.5) * 0.02


# ---------------------------------------------------------------- layouts: the same values, otherwise in memory
def strided(x: np.ndarray) -> np.ndarray:
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), 0.123) if x.ndim else x
    if x.ndim:
        wide[..., ::2] = x
    return wide


# name -> (how to store an array, the view of the stored array, or Tensor, that has its values)
LAYOUTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[Any], Any]]] = {
    "contiguous": (np.copy, lambda x: x),
    "transposed": (lambda x: x.T.copy(), lambda x: x.T),
    "strided": (strided, lambda x: x[..., ::2] if x.ndim else x),
    "reversed": (lambda x: x[..., ::-1].copy() if x.ndim else x, lambda x: x[..., ::-1] if x.ndim else x),
}


# ---------------------------------------------------------------- shapes
def shapes(seed: int, count: int, most_axes: int = 4, most: int = 4) -> list[Shape]:
    """Random shapes, sizes 0 and 1 among them."""
    rng = np.random.default_rng(seed)
    return [tuple(int(n) for n in rng.integers(0, most + 1, rng.integers(0, most_axes + 1))) for _ in range(count)]


SHAPES: list[Shape] = [
    (), *((n,) for n in (0, 1, 2, 3, 7, 13)), *itertools.product((0, 1, 2, 5), (0, 1, 3, 4)),
    *itertools.product((1, 2), (0, 1, 3), (2, 5)), *itertools.product((1, 2), (1, 3), (2,), (1, 4)), (70, 60)]

UNARY: list[Problem] = [((shape,), {}) for shape in SHAPES]


def broadcasts() -> Iterable[Problem]:
    """Pairs of shapes that broadcast: axes dropped on the left, axes of size 1, or all equal."""
    rng = np.random.default_rng(1)
    for full in [*shapes(2, 50, 4, 3), (2, 3), (3, 1, 2), (70, 60)]:
        pair = [tuple(1 if rng.random() < 0.3 else n for n in full[rng.integers(0, len(full) + 1):])
                if rng.random() < 0.7 else full for _ in range(2)]
        yield tuple(pair), {}


def matmuls() -> Iterable[Problem]:
    batches = [((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((0,), (1,)), ((2, 3), (2, 3))]
    for (left, right), (i, j, k) in itertools.product(
            batches, [(1, 1, 1), (2, 3, 4), (3, 1, 2), (0, 2, 3), (2, 0, 3), (5, 2, 1), (1, 7, 2)]):
        yield ((*left, i, j), (*right, j, k)), {}
    yield ((30, 40), (40, 20)), {}
    for b, j in itertools.product((1, 3, 4), (1, 4)):
        yield ((b, 2, j), (b, j, 3)), {}


def reductions(empty: bool) -> Iterable[Problem]:
    """Each shape over a few choices of axes, negative ones too; keepdims alternates."""
    keep = itertools.cycle((False, True, True, False, False))
    for at, shape in enumerate(SHAPES):
        ndim = len(shape)
        choices: list[Any] = [None, *range(-ndim, ndim), *itertools.combinations(range(ndim), 2), (*range(ndim),)]
        for axis in dict.fromkeys((None, choices[at % len(choices)], choices[-1 - at % len(choices)])):
            reduced_axes: Any = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
            if empty or math.prod(shape[a] for a in reduced_axes):
                yield (shape,), {"axis": axis, "keepdims": next(keep)}
    if not empty:                                                # shapes in place of the empty ones
        for shape in itertools.product((3, 4), (1, 2, 5), (1, 3)):
            yield (shape,), {"axis": (-1, 0), "keepdims": next(keep)}


def reshapes() -> Iterable[Problem]:
    """To one axis, to one more axis, reversed sizes, and with an unknown size."""
    for shape in SHAPES:
        for after in {(math.prod(shape),), (1, *shape), shape[::-1], (*shape, 1, 1)}:
            yield (shape,), {"shape": after}
        if math.prod(shape):
            yield (shape,), {"shape": (-1, *shape[1:])}


def transposes() -> Iterable[Problem]:
    """The default, and a permutation of each shape's axes counted from either end."""
    for at, shape in enumerate(SHAPES):
        yield (shape,), {}
        orders = list(itertools.permutations(range(len(shape))))
        order = orders[at % len(orders)]
        yield (shape,), {"axes": tuple(a - len(shape) for a in order) if at % 2 else order}


EVERY, A = slice(None), np.array
INDICES: dict[Shape, list[Any]] = {                # where an array takes an element twice, gradients add up
    (5,): [0, -1, slice(1, 4), slice(None, None, 2), slice(None, None, -1), slice(4, 0, -2), slice(2, 2), None,
           Ellipsis, (), A([0, 2, 2]), A([-1, 0]), A([], int), A([[0, 1], [1, 1]]), [4, 4, 4],
           A([True, False, True, False, True])],
    (3, 4): [1, (1, 2), (EVERY, -1), (slice(0, 2), slice(1, None, 2)), (Ellipsis, 0), (None, 0), (EVERY, None, 1),
             (A([0, 2]), A([1, 1])), (A([0, 0]), EVERY), (EVERY, A([3, 3, 0])), (slice(1, None), A([0, 0])),
             (A([[0], [2]]), A([0, 3])), (1, A([2, 2])), np.arange(12).reshape(3, 4) % 3 == 0,
             A([True, False, True])],
    (2, 3, 4): [(1, EVERY, 2), (Ellipsis, slice(None, None, -1)), (0, 0, 0), (EVERY, A([0, 0]), EVERY),
                (A([1, 1]), EVERY, A([0, 3])), (None, Ellipsis, None)],
    (0, 3): [EVERY, (EVERY, 1), slice(0, 0), A([], int), (Ellipsis, None)],
    (): [(), Ellipsis, None],
    (80, 50): [(slice(3, 70), A([5, 5, 7]))],
}


def indexing() -> Iterable[Problem]:
    """The indices above; and for each shape reversed steps, its last element or row, and one taken thrice."""
    for shape, found in INDICES.items():
        for index in found:
            yield (shape,), {"index": index}
    for at, shape in enumerate(SHAPES):
        kinds: list[Any] = [tuple(slice(None, None, -1 - a % 2) for a, _ in enumerate(shape))]
        if shape and shape[0]:
            kinds += [-1, A([0, -1, 0])]
        yield (shape,), {"index": kinds[at % len(kinds)]}


def joins() -> Iterable[Problem]:
    rng = np.random.default_rng(3)
    for shape, count in itertools.product([(2,), (0,), (2, 3), (1, 0, 2), (3, 1, 2), (2, 2, 1, 2)], (1, 2, 3, 4)):
        for axis in {0, len(shape) - 1, -1}:
            sizes = rng.integers(0, 4, count)
            yield tuple(tuple(int(n) if a == axis % len(shape) else m for a, m in enumerate(shape))
                        for n in sizes), {"axis": axis}
    for shapes, axis in ((((2, 4), (3, 4)), 0), (((2, 4), (2, 8)), 1), (((2, 1, 4), (2, 3, 4), (2, 2, 4)), 1)):
        yield shapes, {"axis": axis}       # of rows that 16 bytes divide


def axes(empty_axis: bool = True) -> Iterable[Problem]:
    """Two axes of each shape, from either end."""
    for at, shape in enumerate([*SHAPES, (6,), (9,), *itertools.product((1, 4), (2, 3, 7), (3, 2))]):
        for axis in {at % len(shape), -1 - at % len(shape), -1} if shape else ():
            if shape[axis] or empty_axis:
                yield (shape,), {"axis": axis}


def frames() -> Iterable[Problem]:
    """Widths for none to all of the axes, from the last on."""
    rng = np.random.default_rng(8)
    for shape in SHAPES:
        axes = int(rng.integers(0, len(shape) + 1))
        yield (shape,), {"widths": tuple(int(n) for n in rng.integers(0, 3, 2 * axes)), "value": float(axes)}


def expansions() -> Iterable[Problem]:
    """Axes of size 1 repeated, new axes in front, sizes left as they are by -1."""
    rng = np.random.default_rng(9)
    for at, full in enumerate(SHAPES * 6):
        shape = tuple(1 if rng.random() < 0.4 else n for n in full[int(rng.integers(0, len(full) + 1)):])
        kept = tuple(-1 if at % 3 == 0 and n == m else m for n, m in zip(shape, full[len(full) - len(shape):]))
        yield (shape,), {"shape": full[:len(full) - len(shape)] + kept}


def conditions() -> Iterable[Problem]:
    """Two values that broadcast, and a condition of the whole shape, of one row, or of one element."""
    rng = np.random.default_rng(10)
    for at, (shapes_of, _) in enumerate(BROADCASTS):
        whole = np.broadcast_shapes(*shapes_of)
        yield shapes_of, {"condition": rng.random((whole, whole[-1:], ())[at % 3]) < 0.5}


def picks() -> Iterable[Problem]:
    """Along an axis as many, fewer, more or no values, some of them twice."""
    rng = np.random.default_rng(11)
    for at, ((shape,), options) in enumerate(axes(empty_axis=False)):
        axis = options["axis"]
        wanted = [n if a != axis % len(shape) else (n, 1, n + 2, 0)[at % 4] for a, n in enumerate(shape)]
        yield (shape,), {"axis": axis, "index": rng.integers(0, shape[axis], wanted)}


def stacks() -> Iterable[Problem]:
    for shape, count in itertools.product([*SHAPES[:14], (2, 1, 3), (3, 0, 2)], (1, 2, 3)):
        for axis in {0, -1, len(shape)}:
            yield (shape,) * count, {"axis": axis}


def parts() -> Iterable[Problem]:
    """Of one size, and of sizes that add up."""
    for at, ((shape,), options) in enumerate(axes()):
        n, axis = shape[options["axis"]], options["axis"]
        yield (shape,), {"sizes": (1 + at % 3) if at % 2 else (n // 2, 0, n - n // 2), "axis": axis}


def variances() -> Iterable[Problem]:
    for shape_and_options in reductions(empty=False):
        (shape,), options = shape_and_options
        kept = np.zeros(shape)
        count = kept.size // max(1, kept.sum(axis=options["axis"]).size)
        for correction in (0, 1):
            if count > correction and kept.size:
                yield (shape,), {**options, "correction": correction}
    for n in range(2, 20):
        yield ((n, 0, 2), ), {"axis": 0, "keepdims": bool(n % 2)}


def with_labels() -> Iterable[Problem]:
    """Logits with every way of reducing; no images have no mean."""
    rng = np.random.default_rng(4)
    reductions = itertools.cycle([(r, s) for s in (0.0, 0.1) for r in ("mean", "sum", "none")])
    for n, classes in itertools.product((0, 1, 2, 3, 5, 8), (1, 2, 3, 4, 5, 7, 10, 11)):
        for reduction, smoothing in itertools.islice(reductions, 2):
            if n or reduction != "mean":
                yield ((n, classes),), {"labels": rng.integers(0, classes, n), "reduction": reduction,
                                        "label_smoothing": smoothing}
    yield ((3, 4),), {"labels": np.array([3, 0, 3]), "label_smoothing": 1.0}
    yield ((100, 30),), {"labels": rng.integers(0, 30, 100)}


def pairs_of_one_shape() -> Iterable[Problem]:
    for shape, reduction in zip(SHAPES * 3, itertools.cycle(("mean", "sum", "none"))):
        if math.prod(shape) or reduction != "mean":
            yield (shape, shape), {"reduction": reduction}


def layers() -> Iterable[Problem]:
    for n, i, o, bias in itertools.product((0, 1, 2, 5), (1, 3, 4), (1, 2, 7), (False, True)):
        yield ((n, i), (o, i), *[(o,)] * bias), {}
    yield ((3, 0), (2, 0), (2,)), {}
    yield ((3, 2), (0, 2), (0,)), {}
    for lead, bias in itertools.product([(), (2, 3), (1, 2, 1), (0, 3)], (False, True)):
        yield ((*lead, 4), (3, 4), *[(3,)] * bias), {}
    yield ((40, 50), (30, 50), (30,)), {}
    for lead, i, bias in itertools.product([(), (1, 1), (3, 2), (2, 0), (2, 1, 3)], (1, 2, 5, 6), (False, True)):
        yield ((*lead, i), (2, i), *[(2,)] * bias), {}


PADDINGS = [0, 1, (1, 0), (0, 2), ((1, 0), (0, 1)), ((0, 2), (1, 0)), ((2, 1), (0, 0)), 2]
STRIDES = [1, 1, 2, (1, 2), (2, 1), 3, (3, 2)]


def windows(seed: int, count: int, pooling: bool) -> Iterable[tuple[Shape, tuple[int, int], dict[str, Any]]]:
    """Images, a window, its stride and padding: odd sizes, overlap, gaps, asymmetric padding, no images."""
    rng = np.random.default_rng(seed)
    while count:
        n, c, h, w = (int(v) for v in (rng.choice([0, 1, 1, 2, 3]), rng.integers(1, 4), *rng.integers(1, 8, 2)))
        kh, kw = (int(v) for v in rng.integers(1, 5, 2))
        padding = PADDINGS[rng.integers(len(PADDINGS))]
        top, bottom, left, right = edges(padding)
        if kh > h + top + bottom or kw > w + left + right:
            continue
        if pooling and (max(top, bottom) >= kh or max(left, right) >= kw):
            continue
        yield (n, c, h, w), (kh, kw), {"stride": STRIDES[rng.integers(len(STRIDES))], "padding": padding}
        count -= 1


def convolutions() -> Iterable[Problem]:
    rng = np.random.default_rng(6)
    algorithm = itertools.cycle(ALGORITHMS)
    for x, window, options in windows(5, 64, pooling=False):
        m = int(rng.integers(1, 5))
        yield (x, (m, x[1], *window), *[(m,)] * int(rng.integers(2))), {**options, "algorithm": next(algorithm)}
    for m, x, k, options in [                                    # the papers' layers, at few channels and images
            (2, (1, 1, 32, 32), (5, 5), {}), (3, (2, 2, 14, 14), (5, 5), {}), (4, (2, 3, 5, 5), (5, 5), {}),
            (2, (1, 3, 12, 12), (8, 8), {"padding": ((4, 3), (4, 3))})]:
        yield (x, (m, x[1], *k), (m,)), {**options, "algorithm": next(algorithm)}
    for (n, c, *size), window, options in windows(9, 40, pooling=False):
        groups, m = int(rng.integers(2, 4)), int(rng.integers(1, 3))
        yield (((n, c * groups, *size), (m * groups, c, *window), *[(m * groups,)] * int(rng.integers(2))),
               {**options, "algorithm": next(algorithm), "groups": groups})
    for (n, c, h, w), (kh, kw), options in windows(15, 40, pooling=False):
        dh, dw, groups = (int(v) for v in (*rng.integers(1, 4, 2), rng.choice([1, 1, 2])))
        size = h + (kh - 1) * (dh - 1), w + (kw - 1) * (dw - 1)
        yield (((n, c * groups, *size), (2 * groups, c, kh, kw), *[(2 * groups,)] * int(rng.integers(2))),
               {**options, "algorithm": next(algorithm), "groups": groups, "dilation": dh if dh == dw else (dh, dw)})
    for (n, c, *size), window, options in windows(19, 40, pooling=False):            # each filter reads one channel
        maps = (c + 1) * int(rng.integers(1, 3))
        yield (((n, c + 1, *size), (maps, 1, *window), *[(maps,)] * int(rng.integers(2))),
               {**options, "algorithm": next(algorithm), "groups": c + 1})
    for (n, c, h, w), (kh, kw), options in windows(20, 20, pooling=False):
        yield (((n, c, h + 2 * (kh - 1), w + kw - 1), (3, c, kh, kw)),
               {**options, "algorithm": next(algorithm), "dilation": (3, 2)})


def sequences() -> Iterable[Problem]:
    rng, algorithm = np.random.default_rng(16), itertools.cycle([name for name in ALGORITHMS if name != "auto"])
    for (n, c, _, length), (_, window), options in windows(17, 50, pooling=False):
        groups, dilation, m = (int(v) for v in (rng.choice([1, 1, 2]), rng.integers(1, 3), rng.integers(1, 4)))
        sides = edges(options["padding"])[2:]
        yield (((n, c * groups, length + (window - 1) * (dilation - 1)), (m * groups, c, window),
                *[(m * groups,)] * int(rng.integers(2))),
               {"stride": int(rng.integers(1, 4)), "padding": sides if sides[0] != sides[1] else sides[0],
                "dilation": dilation, "groups": groups, "algorithm": next(algorithm)})


def transposed_convolutions() -> Iterable[Problem]:
    """Those of which something is left by the padding."""
    rng = np.random.default_rng(18)
    algorithm, count = itertools.cycle(ALGORITHMS), 0
    while count < 50:
        n, c, h, w, m, kh, kw, sh, sw = (int(v) for v in rng.integers(1, 5, 9))
        top, bottom, left, right = edges(padding := PADDINGS[rng.integers(len(PADDINGS))])
        more = int(rng.integers(0, sh)), int(rng.integers(0, sw))
        if (h - 1) * sh + kh + more[0] > top + bottom and (w - 1) * sw + kw + more[1] > left + right:
            yield ((n * (count % 7 > 0), c, h, w), (c, m, kh, kw), *[(m,)] * int(rng.integers(2))), {
                "stride": (sh, sw), "padding": padding, "output_padding": more, "algorithm": next(algorithm)}
            count += 1


def image_shapes() -> Iterable[Shape]:
    return itertools.product((0, 1, 2), (1, 3), (1, 2, 5), (1, 4, 7))


def factors() -> Iterable[Problem]:
    for at, shape in enumerate(image_shapes()):
        fh, fw = 1 + at % 3, 1 + at // 3 % 2
        ways = {"size": (shape[2] * fh, shape[3] * fw)}, {"scale_factor": (fh, fw)}, {"scale_factor": fh}
        yield (shape,), ways[at % 3]


def shuffles() -> Iterable[Problem]:
    for at, (n, c, h, w) in enumerate(image_shapes()):
        r = 1 + at % 3
        yield ((n, c * r * r, h, w),), {"upscale_factor": r}


def poolings() -> Iterable[Problem]:
    for x, (kh, kw), options in windows(7, 64, pooling=True):
        yield (x,), {"size": (kh, kw), **options}
    for x, options in [((2, 3, 8, 8), {"size": 2}), ((1, 2, 9, 9), {"size": 3, "stride": 2}),
                       ((2, 1, 5, 7), {"size": 3, "stride": 1, "padding": 1}), ((0, 2, 4, 4), {"size": 2}),
                       ((1, 1, 33, 33), {"size": 4})]:
        yield (x,), options


def keys() -> Iterable[Problem]:
    p = itertools.cycle((0.5, 0.0, 0.1, 0.9))
    return ((shape, {"p": next(p), "key": (7, i)}) for i, (shape, _) in enumerate(UNARY))


def starts() -> Iterable[Problem]:
    for shape in SHAPES:
        for start in {0, len(shape) - 1, -1} if shape else {0}:
            yield (shape,), {"start": start}


# ---------------------------------------------------------------- references
ALGORITHMS = tuple(conv.ALGORITHMS)


def edges(padding: Any) -> tuple[int, int, int, int]:
    """(top, bottom, left, right)."""
    ph, pw = padding if isinstance(padding, tuple) else (padding, padding)
    (top, bottom), (left, right) = (p if isinstance(p, tuple) else (p, p) for p in (ph, pw))
    return top, bottom, left, right


def each_window(x: np.ndarray, size: tuple[int, int], stride: Any, padding: Any, fill: float) -> Iterable[Any]:
    """(i, j, the window of output pixel i, j in all images and channels), from padded images."""
    (kh, kw), (sh, sw) = (v if isinstance(v, tuple) else (v, v) for v in (size, stride))
    top, bottom, left, right = edges(padding)
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    for i, row in enumerate(range(0, padded.shape[2] - kh + 1, sh)):
        for j, column in enumerate(range(0, padded.shape[3] - kw + 1, sw)):
            yield i, j, padded[:, :, row:row + kh, column:column + kw]                # (n, c, kh, kw)


def collect(pixels: Iterable[tuple[int, int, np.ndarray]]) -> np.ndarray:
    """(i, j, values of all images and maps) -> (n, m, oh, ow)."""
    pixels = list(pixels)
    y = np.empty((*pixels[0][2].shape, pixels[-1][0] + 1, pixels[-1][1] + 1))
    for i, j, value in pixels:
        y[:, :, i, j] = value
    return y


def conv2d(x, w, b=None, *, stride=1, padding=0, algorithm="auto", groups=1, dilation=1):
    """PMPP Fig. 16.4: y[n,m,i,j] = b[m] + sum over c,p,q of x[n, c, i*sh+p, j*sw+q] * w[m,c,p,q]; of several groups,
    with zeros where a filter reads no channel; with dilation, with zeros between its elements."""
    dh, dw = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    wide = np.zeros((*w.shape[:2], (w.shape[2] - 1) * dh + 1, (w.shape[3] - 1) * dw + 1))
    wide[:, :, ::dh, ::dw] = w
    w = wide
    if groups > 1:
        own = np.kron(np.eye(groups), np.ones((len(w) // groups, w.shape[1])))
        w = np.concatenate([w] * groups, axis=1) * own[:, :, None, None]
    def maps(window):
        return np.array([[np.sum(image * filter_) for filter_ in w] for image in window]).reshape(len(x), len(w))
    y = collect((i, j, maps(window)) for i, j, window in each_window(x, w.shape[2:], stride, padding, 0.0))
    return y if b is None else y + b.reshape(1, -1, 1, 1)


def conv1d(x, w, b=None, *, stride, padding, dilation, groups, algorithm):
    sides = padding if isinstance(padding, tuple) else (padding, padding)
    return conv2d(x[:, :, None], w[:, :, None], b, stride=(1, stride), padding=((0, 0), sides), dilation=(1, dilation),
                  groups=groups)[:, :, 0]


def conv_transpose2d(x, w, b=None, *, stride, padding, output_padding, algorithm):
    """Each pixel adds its multiple of the filter to a window of the result, of which the padding is cut off."""
    (sh, sw), (n, _, h, wide), (_, m, kh, kw) = stride, x.shape, w.shape
    top, bottom, left, right = edges(padding)
    y = np.zeros((n, m, (h - 1) * sh + kh + output_padding[0], (wide - 1) * sw + kw + output_padding[1]))
    for i, j in itertools.product(range(h), range(wide)):
        y[:, :, i * sh:i * sh + kh, j * sw:j * sw + kw] += np.tensordot(x[:, :, i, j], w, 1)
    y = y[:, :, top:y.shape[2] - bottom, left:y.shape[3] - right]
    return y if b is None else y + b.reshape(1, -1, 1, 1)


def interpolate(x, size=None, scale_factor=None):
    fh, fw = (size[0] // x.shape[2], size[1] // x.shape[3]) if size else np.broadcast_to(scale_factor, 2)
    return x.repeat(fh, axis=2).repeat(fw, axis=3)


def pixel_shuffle(x, upscale_factor):
    r, (n, c, h, w) = upscale_factor, x.shape
    y = np.empty((n, c // (r * r), h * r, w * r))
    for channel, i, j in np.ndindex(y.shape[1:]):
        y[:, channel, i, j] = x[:, channel * r * r + i % r * r + j % r, i // r, j // r]
    return y


def pool(x, size, stride, padding, fill, reduce):
    size = size if isinstance(size, tuple) else (size, size)
    return collect((i, j, reduce(window, (2, 3)))
                   for i, j, window in each_window(x, size, size if stride is None else stride, padding, fill))


def avg_pool2d(x, *, size, stride=None, padding=0):
    return pool(x, size, stride, padding, 0.0, np.mean)


def max_pool2d(x, *, size, stride=None, padding=0):
    return pool(x, size, stride, padding, -np.inf, np.max)


def linear(x, w, b=0.0):
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return np.array([[np.sum(row * out) for out in w] for row in rows]).reshape(*x.shape[:-1], len(w)) + b


def softmax(x, *, axis):
    return np.exp(x) / np.sum(np.exp(x), axis=axis, keepdims=True)


def cross_entropy(x, *, labels, reduction="mean", label_smoothing=0.0, weight=1.0, ignore_index=None):
    """Each image's sum over classes of -weight target log p, target (1-s) on the label plus s/classes everywhere; the
    mean is over the weights of the labels."""
    classes, counted = x.shape[1], labels != ignore_index
    labels, weight = np.where(counted, labels, 0), weight * np.ones(classes)
    target = (1 - label_smoothing) * np.eye(classes)[labels] + label_smoothing / classes
    losses = counted * np.sum(-weight * target * np.log(softmax(x, axis=1)), axis=1)
    return np.sum(losses) / np.sum(weight[labels] * counted) if reduction == "mean" else reduced(losses, reduction)


def conv3d(x, w, b=0.0, *, stride, padding, dilation, groups, algorithm):
    """Window by window."""
    steps, pads, apart = (v if isinstance(v, tuple) else (v,) * 3 for v in (stride, padding, dilation))
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in pads)))
    reach = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], apart, strict=True)]
    out = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, steps, strict=True)]
    y = np.zeros((len(x), len(w), *out))
    for at in itertools.product(*map(range, out)):
        within = (slice(i * s, i * s + r, d) for i, s, r, d in zip(at, steps, reach, apart, strict=True))
        window = x[(slice(None), slice(None), *within)]
        for g, (part, filters) in enumerate(zip(np.split(window, groups, 1), np.split(w, groups), strict=True)):
            maps = slice(g * len(filters), (g + 1) * len(filters))
            y[(slice(None), maps, *at)] = np.einsum("ncdhw,mcdhw->nm", part, filters)
    return y + np.reshape(b, (-1, 1, 1, 1))


def volumes() -> Iterable[Problem]:
    rng, count = np.random.default_rng(23), 0
    algorithm = itertools.cycle([name for name in ALGORITHMS if name != "auto"])
    while count < 45:
        groups, n, c, m = (int(v) for v in (rng.choice([1, 1, 2]), rng.choice([0, 1, 2]), *rng.integers(1, 3, 2)))
        window, size = rng.integers(1, 4, 3).tolist(), rng.integers(1, 6, 3).tolist()
        stride, padding, dilation = (tuple(rng.integers(*ends, 3).tolist()) for ends in ((1, 3), (0, 2), (1, 3)))
        if count % 3 == 0:
            stride, padding, dilation = stride[0], padding[0], dilation[0]
        pads, apart = (v if isinstance(v, tuple) else (v,) * 3 for v in (padding, dilation))
        if all(k_size * d - d + 1 <= length + 2 * p for k_size, d, length, p in zip(
                window, apart, size, pads, strict=True)):
            yield ((n, c * groups, *size), (m * groups, c, *window), *[(m * groups,)] * int(rng.integers(2))), {
                "stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
                "algorithm": next(algorithm)}
            count += 1


def by_pixel(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of rows, of each pixel's."""
    def of_pixels(x, *, labels, **options):
        if x.ndim == 2:
            return reference(x, labels=labels, **options)
        loss = reference(np.moveaxis(x, 1, -1).reshape(labels.size, x.shape[1]), labels=labels.reshape(-1), **options)
        return loss.reshape(labels.shape) if options["reduction"] == "none" else loss
    return of_pixels


def with_pixels(problems: Iterable[Problem], count: int) -> list[Problem]:
    """Some of the problems of rows with a label for each pixel too, of no image and of several."""
    rng, found = np.random.default_rng(22), list(problems)
    some = [each for each in found if each[0][0][0]][:: max(1, len(found) // count)]
    for at, (((n, classes),), options) in enumerate(some):
        size = ((3,), (2, 5), (1, 1), (2, 1, 3))[at % 4]
        labels = rng.choice(options["labels"], (n, *size))
        labels.reshape(-1)[0] = options["labels"][0]             # which is not an ignored one
        found.append((((n, classes, *size),), {"reduction": "mean", **options, "labels": labels}))
    return found


def tables() -> Iterable[Problem]:
    """Rows that are named several times, once, and never."""
    rng = np.random.default_rng(14)
    for rows, d, ids in itertools.product((1, 2, 3, 5, 9), (0, 1, 2, 3, 4, 6, 9, 33, 130), ((), (0,), (4,), (11, 5))):
        yield ((rows, d),), {"ids": rng.integers(0, rows, ids)}


def rows_of(w: Tensor, *, ids: np.ndarray) -> Tensor:
    return ops.embedding(Tensor(ids, device=w.device), w)


LETTERS = {"i": 2, "j": 3, "k": 4, "b": 2, "m": 1, "z": 0}, {"i": 5, "j": 1, "k": 2, "b": 3, "m": 4, "z": 2}
EQUATIONS = [
    "i->i", "ij->ji", "ij->i", "ij->", "ij", "ji", "bij->jb", "i,i->", "i,j->ij", "i,j", "ij,jk->ik", "ij,jk",
    "ij,kj->ik",
    "ji,jk->ki", "ij,ij->", "ij,ij->ij", "ij,ij->j", "ij,j->i", "ij,k->ijk", "ij,k->j", "bij,bjk->bik", "bij,jk->bik",
    "bij,bkj->bki", "bi,bj->bij", "bij,bij->b", "bij,kj->bik", "bijk,bij->bk", "ijk,kjb->bi", "im,mj->ij",
    "mij,mjk->ik",
    "iz,zj->ij", "ij,jz->iz", "zij,zjk->zik", "ij,,j->i", ",->", "ij,jk,kb->ib", "ij,jk,kb", "i,j,k->kji",
    "bi,ij,bj->b",
    "ij,jk,ik->", "bij,bj,b->i", "i,i,i->i"]


def equations() -> Iterable[Problem]:
    for equation in EQUATIONS:
        terms = equation.split("->")[0].split(",")
        for sizes in LETTERS:
            yield tuple(tuple(sizes[letter] for letter in term) for term in terms), {"equation": equation}


def vectors() -> Iterable[Problem]:
    return (((n,), (m,)) for n, m in itertools.product((0, 1, 2, 3, 5, 8, 13), repeat=2))


def weighed_labels() -> Iterable[Problem]:
    """Log probabilities and a weight for each class; every third label may be ignored, but not all of them."""
    rng = np.random.default_rng(13)
    ways = itertools.cycle([(r, i) for i in (None, 0, -100) for r in ("mean", "sum", "none")])
    for n, classes in itertools.product((0, 1, 2, 3, 5, 8, 9), (1, 2, 3, 4, 5, 7, 10, 11)):
        reduction, ignored = next(ways)
        labels = rng.integers(0, classes, n)
        if ignored is not None:
            labels[1::3] = ignored
        if (labels != (0 if ignored == 0 else -100)).any() or reduction != "mean":
            yield (((n, classes),), {"labels": labels, "weight": rng.uniform(0.5, 2, classes), "reduction": reduction,
                                     "ignore_index": ignored})


def nll_loss(log_p, *, labels, weight, reduction, ignore_index):
    """Image by image; the mean is over the weights."""
    losses = np.array([0.0 if label == ignore_index else -weight[label] * row[label]
                       for row, label in zip(log_p, labels, strict=True)])
    total = sum(weight[label] for label in labels if label != ignore_index)
    return np.sum(losses) / total if reduction == "mean" else reduced(losses, reduction)


def weighed(x: Tensor, *, labels: np.ndarray, weight: np.ndarray, **options: Any) -> Tensor:
    return ops.nll_loss(x, labels, Tensor(weight.astype(x.dtype), device=x.device), **options)


def huber_loss(x, y, reduction, delta=0.7):
    d = np.abs(x - y)
    return reduced(np.where(d <= delta, d * d / 2, delta * (d - delta / 2)), reduction)


def of_classes(first: float, shape: tuple[int, ...]) -> np.ndarray:
    """A factor for each class, each another one."""
    return first + np.arange(math.prod(shape[-1:])).reshape(shape[-1:]) / 4


def yes_or_no(x: Tensor, y: Tensor, *, reduction: str, positive: float | None) -> Tensor:
    factor = None if positive is None else Tensor(of_classes(positive, x.shape).astype(x.dtype), device=x.device)
    return ops.binary_cross_entropy_with_logits(x, y, reduction=reduction, pos_weight=factor)


def binary_cross_entropy(x, y, reduction, positive):
    p = 1 / (1 + np.exp(-x))
    factor = 1 if positive is None else of_classes(positive, x.shape)
    return reduced(-factor * y * np.log(p) - (1 - y) * np.log(1 - p), reduction)


def pairs_with(name: str, *values: Any) -> list[Problem]:
    """The pairs of one shape, with an option that takes turns."""
    choices = itertools.cycle(values)
    return [(both, {**options, name: next(choices)}) for both, options in pairs_of_one_shape()]


def reduced(losses, reduction):
    return losses if reduction == "none" else getattr(np, reduction)(losses)


def dropout(x, *, p, key):
    """The mask is the op's own, read from ones; its values are 0 and 1 / (1 - p)."""
    mask = ops.dropout(Tensor(np.ones(x.shape)), p, key=key).numpy()
    assert np.isin(mask, (0, 1 / (1 - p))).all()
    return x * mask


def sometimes(**options: Any) -> list[Problem]:
    """The plain problems, every second one with options."""
    return [(shape, options if at % 2 else {}) for at, (shape, _) in enumerate(UNARY)]


def each_way(**options: tuple[Any, ...]) -> list[Problem]:
    """The plain problems, with each value of an option."""
    return [(shape, {name: value}) for name, values in options.items() for value in values for shape, _ in UNARY]


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def integer_labels(x: Tensor, *, labels: np.ndarray, weight: np.ndarray | None = None, **options: Any) -> Tensor:
    factors = None if weight is None else Tensor(weight.astype(x.dtype), device=x.device)
    return ops.cross_entropy(x, labels, factors, **options)


def smoothed_and_weighed() -> Iterable[Problem]:
    smoothing = itertools.cycle((0.1, 0.0, 0.2))
    return ((shape, {**options, "label_smoothing": next(smoothing)}) for shape, options in weighed_labels())


def parts_joined(x: Tensor, *, sizes: Any, axis: int) -> Tensor:
    """The parts in reverse order, so that each counts."""
    return ops.concatenate(ops.split(x, sizes, axis)[::-1], axis)


def split_reference(x, *, sizes, axis):
    ends = range(sizes, x.shape[axis], sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    return np.concatenate(np.split(x, ends, axis)[::-1], axis)


def pad_reference(x, *, widths, value):
    pairs = [(0, 0)] * (x.ndim - len(widths) // 2) + list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    return np.pad(x, pairs, constant_values=value) if pairs else x


def expand_reference(x, *, shape):
    more = len(shape) - x.ndim
    return np.broadcast_to(x, [x.shape[i - more] if n == -1 else n for i, n in enumerate(shape)])


def recurrence(gx, w, state, b=0.0, *, kind, reverse=False):
    """Sequence by sequence and step by step, as the papers have it."""
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))
    y = np.zeros((len(state), *gx.shape[:2], w.shape[1]))
    for s in range(gx.shape[1]):
        now = state[:, s]
        for t in range(len(gx))[::-1] if reverse else range(len(gx)):
            if kind == "lstm":
                i, f, g, o = np.split(gx[t, s] + w @ now[0] + b, 4)
                c = sigmoid(f) * now[1] + sigmoid(i) * np.tanh(g)
                now = np.stack([sigmoid(o) * np.tanh(c), c])
            elif kind == "tanh":
                now = np.tanh(gx[t, s] + w @ now[0] + b)[None]
            else:
                (xr, xz, xn), (hr, hz, hn) = np.split(gx[t, s], 3), np.split(w @ now[0] + b, 3)
                z = sigmoid(xz + hz)
                now = ((1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * now[0])[None]
            y[:, t, s] = now
    return y


def sequences_of_states() -> Iterable[Problem]:
    """Of one step and several, no sequence, one and several, in both directions, with a bias and without."""
    for at, (steps, n, size, kind) in enumerate(itertools.product(
            (1, 2, 5), (0, 1, 3), (1, 2, 5), ("lstm", "gru", "tanh"))):
        gates, states, _ = SIZES[kind]
        yield ((steps, n, gates * size), (gates * size, size), (states, n, size), *[(gates * size,)] * (at % 3 > 0)), {
            "kind": kind, "reverse": bool(at // 2 % 2)}
    yield ((3, 70, 28), (28, 7), (2, 70, 7), (28,)), {"kind": "lstm"}
    yield ((3, 70, 21), (21, 7), (1, 70, 7), (21,)), {"kind": "gru"}


def local_response_norm(x, size, alpha, beta, k):
    """KSH 2012, section 3.3, with the mean of the squares in place of their sum."""
    y = np.zeros_like(x)
    for c in range(x.shape[1]):
        around = x[:, max(0, c - size // 2):c + (size + 1) // 2]
        y[:, c] = x[:, c] / (k + alpha / size * np.sum(around ** 2, axis=1)) ** beta
    return y


def neighbourhoods() -> Iterable[Problem]:
    rng = np.random.default_rng(12)
    for shape in [(0, 3, 2, 2), (1, 1, 1), (2, 7, 3), *(tuple(rng.integers(1, 6, 3 + i % 3)) for i in range(40))]:
        yield (tuple(map(int, shape)),), {"size": int(rng.integers(1, 7)), "alpha": float(rng.uniform(0.1, 2)),
                                          "beta": float(rng.uniform(0.25, 1)), "k": float(rng.uniform(0.5, 2))}


@functools.cache
def constant(values: tuple[Any, ...], dtype: Any, device: str) -> Tensor:
    """The same Tensor in every call: a compiled step takes no Tensor that it makes itself from an array."""
    return Tensor(values, dtype=dtype, device=device)


def attended(*xs: Tensor, mask: Any = None, **options: Any) -> Tensor:
    """With a floating mask as the fourth Tensor, or with one of bool."""
    masked = () if mask is None else (constant(mask, bool, xs[0].device),)
    return ops.scaled_dot_product_attention(*xs, *masked, **options)


def attention(q, k, v, mask=None, *, is_causal=False, scale=None):
    """Query by query: the mean of the values, each weighed by e^score."""
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mask = np.zeros(()) if mask is None else np.asarray(mask)
    added = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
    added = np.broadcast_to(added, (*lead, q.shape[-2], k.shape[-2]))
    q, k, v = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v))
    o = np.zeros((*lead, q.shape[-2], v.shape[-1]))
    for *head, i in np.ndindex(o.shape[:-1]):
        at = tuple(head)
        keys = range(min(i + 1, k.shape[-2]) if is_causal else k.shape[-2])
        counts = [math.exp(np.sum(q[at][i] * k[at][j]) * scale + added[at][i, j]) for j in keys]
        if sum(counts):
            o[at][i] = sum(c * v[at][j] for j, c in zip(keys, counts)) / sum(counts)
    return o


def heads() -> Iterable[Problem]:
    """Leading axes that broadcast, all of one shape or none; every kind of mask; as many keys as queries, more, fewer,
    one and none."""
    rng = np.random.default_rng(21)
    leads = [((), (), ()), ((2,), (2,), (2,)), ((2, 3), (2, 3), (2, 3)), ((2, 1), (3,), (1, 3)), ((), (), (2,)),
             ((0,), (0,), (1,)), ((2, 1, 2),) * 3]
    for at in range(72):
        lead, length, keys, d, dv = leads[at % 7], *(int(n) for n in rng.integers(1, 6, 4))
        keys = (length, keys, keys, 1, keys + 2, 0)[at % 6]
        length = length if at % 11 else 0
        shapes = tuple((*more, *own) for more, own in zip(lead, ((length, d), (keys, d), (keys, dv))))
        option: dict[str, Any] = {}
        whole = (*np.broadcast_shapes(*lead), length, keys)
        if at % 4 == 1:
            option["is_causal"] = True
        elif at % 4 == 2 and 0 not in whole:
            mask = rng.random(whole[-2:]) < 0.6            # a query that attends to nothing is among them
            option["mask"] = tuple(map(tuple, mask.tolist()))
        elif at % 4 == 3:
            shapes = (*shapes, (whole, whole[-2:], whole[-1:], (*whole[:-2], 1, whole[-1]))[at // 4 % 4])
        if at % 5 == 0:
            option["scale"] = 0.3
        yield shapes, option


def batch_normalized(x: Tensor, *affine: Tensor, eps: float = 1e-5, moments: Any = None) -> Tensor:
    """By the batch's own moments, or by those that are given."""
    if moments is None:
        return ops.batch_norm(x, None, None, *affine, training=True, eps=eps)
    mean, var = (constant(m, x.dtype, x.device) for m in moments)
    return ops.batch_norm(x, mean, var, *affine, eps=eps)


def normalized(x, axes, eps, moments=None):
    mean, var = moments or (np.mean(x, axes, keepdims=True), np.var(x, axes, keepdims=True))
    return (x - mean) / np.sqrt(var + eps)


def batch_norm(x, w=1.0, b=0.0, eps=1e-5, moments=None):
    """Ioffe and Szegedy 2015, algorithm 1."""
    if x.size == 0:
        return x                           # which has no mean
    w, b, *moments = (np.reshape(a, (-1, *(1 for _ in x.shape[2:]))) for a in (w, b, *(moments or ())))
    return normalized(x, (0, *range(2, x.ndim)), eps, moments) * w + b


def layer_norm(x, w=1.0, b=0.0, *, normalized_shape, eps):
    last = normalized_shape if isinstance(normalized_shape, tuple) else (normalized_shape,)
    return normalized(x, tuple(range(x.ndim - len(last), x.ndim)), eps) * w + b


def group_norm(x, w=1.0, b=0.0, *, num_groups, eps):
    w, b = (np.reshape(a, (-1, *(1 for _ in x.shape[2:]))) for a in (w, b))
    groups = [normalized(part, tuple(range(1, x.ndim)), eps) for part in np.split(x, num_groups, 1)]
    return np.concatenate(groups, 1) * w + b


def batches(training: bool) -> Iterable[Problem]:
    """With weights and without, odd sizes; no images too."""
    rng = np.random.default_rng(13)
    for i in range(60):
        x = tuple(int(v) for v in (rng.integers(1, 6), rng.integers(1, 5), *rng.integers(1, 6, i % 4)))
        if training and x[0] * math.prod(x[2:]) < 3:             # of two values one is 1 and the other -1, nearly
            x = (x[0] + 2, *x[1:])
        moments = {} if training else {"moments": (tuple(rng.standard_normal(x[1])), tuple(rng.uniform(0.5, 2, x[1])))}
        x = x if i % 10 else (0, *x[1:])
        yield (x, *[(x[1],)] * (2 * (i % 3 > 0))), {"eps": (1e-5, 0.1)[i // 2 % 2], **moments}
    if training:
        for x in ((2, 3, 31, 33), (70, 2, 9), (300, 5), (3, 2, 1, 1100)):
            yield (x, x[1:2], x[1:2]), {}


def rows_of_layers() -> Iterable[Problem]:
    rng = np.random.default_rng(14)
    for i in range(50):
        last = tuple(int(v) for v in rng.integers(2, 6, 1 + i % 2))
        x = (*(int(v) if i % 10 else 0 for v in rng.integers(1, 5, i % 3)), *last)
        yield (x, *[last] * (i % 3)), {"normalized_shape": last if i % 2 else last[0], "eps": (1e-5, 0.1)[i // 2 % 2]}
    for x, last in (((2, 1300), 1300), ((3, 5, 17, 31), (17, 31)), ((90, 7), 7)):
        yield (x, *[last if isinstance(last, tuple) else (last,)] * 2), {"normalized_shape": last, "eps": 1e-5}
    # One value: the gradient is 0, as a difference of numbers that grow with 1 / eps.
    for x, last in (((5, 1), (1,)), ((3, 2, 1, 1), (1, 1))):
        yield (x, last, last), {"normalized_shape": last, "eps": 0.1}


def groups_of_channels() -> Iterable[Problem]:
    rng = np.random.default_rng(15)
    for i in range(50):
        groups, own = (int(v) for v in rng.integers(1, 4, 2))
        x = (int(rng.integers(1, 4)) if i % 10 else 0, groups * own, *(int(v) for v in rng.integers(2, 5, 1 + i % 3)))
        yield (x, *[(x[1],)] * (i % 3)), {"num_groups": groups, "eps": (1e-5, 0.1)[i % 2]}
    for x, groups in (((2, 6, 30, 31), 2), ((40, 4, 3), 4)):
        yield (x, (x[1],), (x[1],)), {"num_groups": groups, "eps": 1e-5}


def layer_normalized(x: Tensor, *affine: Tensor, normalized_shape: Any, eps: float) -> Tensor:
    return ops.layer_norm(x, normalized_shape, *affine, eps=eps)


def group_normalized(x: Tensor, *affine: Tensor, num_groups: int, eps: float) -> Tensor:
    return ops.group_norm(x, num_groups, *affine, eps=eps)


def adaptive_avg_pool2d(x, output_size):
    """Each mean of the rows and columns that its share of the image touches."""
    oh, ow = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    oh, ow = x.shape[2] if oh is None else oh, x.shape[3] if ow is None else ow
    def span(i, size, count):
        return slice(math.floor(i * size / count), math.ceil((i + 1) * size / count))
    return collect((i, j, np.mean(x[:, :, span(i, x.shape[2], oh), span(j, x.shape[3], ow)], (2, 3)))
                   for i in range(oh) for j in range(ow))


def grids() -> Iterable[Problem]:
    rng = np.random.default_rng(16)
    for i in range(50):
        n, c, h, w, oh, ow = (int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 9, 4)))
        yield ((n if i % 7 else 0, c, h, w),), {"output_size": (1, oh, (oh, ow), (None, ow), (oh, None))[i % 5]}
    for n, c, h, w in itertools.product((1, 2), (1, 3), (1, 4, 5), (2, 3, 9)):
        yield ((n, c, h, w),), {"output_size": 1}


def beside_the_diagonal() -> list[Problem]:
    """Each shape of two axes and more, with diagonals within and beyond it."""
    found = [*SHAPES, *itertools.product((2, 3), (1, 4), (1, 2, 3))]
    return [((shape,), {"diagonal": at % 5 - 2}) for at, shape in enumerate(found) if len(shape) > 1]


def uneven(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """No value whose rounding is within a difference's step."""
    return rng.integers(-5, 5, shape) + rng.uniform(0.05, 0.45, shape)


def divisors(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Of both signs; a quotient of two is as far from an integer as it comes, but for that of x and x."""
    return np.asarray(rng.uniform(0.5, 2.0, shape) * rng.choice([-1.0, 1.0], shape))


def classes_of(x: Tensor, *, labels: np.ndarray, num_classes: int) -> Tensor:
    """One row for each label; x is there since a Case has Tensors."""
    return ops.mul(x, ops.one_hot(Tensor(labels, device=x.device), num_classes).to(dtype=x.dtype))


def hot_labels() -> Iterable[Problem]:
    rng = np.random.default_rng(21)
    for shape in SHAPES:
        classes = 1 + len(shape) * 2
        yield ((*shape, classes),), {"labels": rng.integers(0, classes, shape), "num_classes": classes}


def whole_maps() -> list[Problem]:
    p = itertools.cycle((0.5, 0.0, 0.1, 0.9))
    return [((shape,), {"p": next(p), "key": (7, i)}) for i, shape in enumerate(image_shapes())]


def dropout2d(x, *, p, key):
    """A mask of one number for each map."""
    return x * np.reshape(dropout(np.ones((*x.shape[:2], 1, 1)), p=p, key=key), (*x.shape[:2], 1, 1))


def unique_by_all(x: Tensor) -> Tensor:
    """The values, the places and the counts as one row."""
    found = ops.unique(x, return_inverse=True, return_counts=True)
    return ops.concatenate([t.reshape(-1).to(dtype=x.dtype) for t in found])


def unique_reference(x):
    values = sorted(set(x.reshape(-1).tolist()))
    return np.array([*values, *map(values.index, x.reshape(-1).tolist()),
                     *(int((x == value).sum()) for value in values)], x.dtype)


def choice(x: Tensor, y: Tensor, *, condition: np.ndarray) -> Tensor:
    return ops.where(Tensor(condition, device=x.device), x, y)


def bounds() -> Iterable[Problem]:
    options = itertools.cycle([{"low": -0.3, "high": 0.5}, {"low": 0.1}, {"high": 0.1}, {"low": 0.31, "high": 0.1}])
    return ((shape, next(options)) for shape, _ in UNARY)


# ---------------------------------------------------------------- the table
BROADCASTS = list(broadcasts())

#        op: (what a user calls, reference, problems, how to draw)
TABLE: dict[str, tuple[Callable[..., Tensor], Callable[..., Any], Iterable[Problem], Any]] = {
    "add": (ops.add, np.add, BROADCASTS, normal),
    "sub": (ops.sub, np.subtract, BROADCASTS, normal),
    "mul": (ops.mul, np.multiply, BROADCASTS, normal),
    "div": (ops.div, np.true_divide, BROADCASTS, positive),
    "pow": (ops.pow, np.power, BROADCASTS, positive),
    "neg": (ops.neg, np.negative, UNARY, normal),
    "exp": (ops.exp, np.exp, UNARY, normal),
    "log": (ops.log, np.log, UNARY, positive),
    "sqrt": (ops.sqrt, np.sqrt, UNARY, positive),
    "rsqrt": (ops.rsqrt, lambda x: 1 / np.sqrt(x), UNARY, positive),
    "matmul": (ops.matmul, lambda x, y: np.sum(x[..., :, :, None] * y[..., None, :, :], axis=-2), matmuls(),
               normal),
    "sum": (ops.sum, np.sum, reductions(empty=True), normal),
    "mean": (ops.mean, np.mean, reductions(empty=False), normal),
    "max": (ops.max, np.max, reductions(empty=False), apart),
    "reshape": (ops.reshape, lambda x, shape: x.reshape(shape), reshapes(), normal),
    "transpose": (ops.transpose, np.transpose, transposes(), normal),
    "getitem": (ops.getitem, lambda x, index: x[index], indexing(), normal),
    "concatenate": (lambda *xs, axis: ops.concatenate(xs, axis), lambda *xs, axis: np.concatenate(xs, axis),
                    joins(), normal),
    "flatten": (ops.flatten, lambda x, start: x.reshape(*x.shape[:start % x.ndim] if x.ndim else (), -1)
                if x.size else np.zeros((*x.shape[:start % x.ndim], math.prod(x.shape[start % x.ndim:]))),
                starts(), normal),
    "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x)), UNARY, normal),
    "tanh": (ops.tanh, np.tanh, UNARY, normal),
    "relu": (ops.relu, lambda x: np.where(x > 0, x, 0), UNARY, apart),
    "leaky_relu": (ops.leaky_relu, lambda x, negative_slope=0.01: np.where(x > 0, x, negative_slope * x),
                   sometimes(negative_slope=0.3), apart),
    "elu": (ops.elu, lambda x, alpha=1.0: np.where(x > 0, x, alpha * (np.exp(x) - 1)), sometimes(alpha=1.5), apart),
    "softplus": (ops.softplus, lambda x: np.log(1 + np.exp(x)), UNARY, normal),
    "hardsigmoid": (ops.hardsigmoid, lambda x: np.clip((x + 3) / 6, 0, 1), UNARY, apart),
    "silu": (ops.silu, lambda x: x / (1 + np.exp(-x)), UNARY, normal),
    "gelu": (ops.gelu, gelu, each_way(approximate=("none", "tanh")), normal),
    "softmax": (ops.softmax, softmax, axes(), normal),
    "log_softmax": (ops.log_softmax, lambda x, axis: np.log(softmax(x, axis=axis)), axes(), normal),
    "abs": (ops.abs, np.abs, UNARY, apart),
    "sin": (ops.sin, np.sin, UNARY, normal),
    "cos": (ops.cos, np.cos, UNARY, normal),
    "log1p": (ops.log1p, np.log1p, UNARY, positive),
    "expm1": (ops.expm1, np.expm1, UNARY, normal),
    "erf": (ops.erf, np.vectorize(math.erf, otypes=[float]), UNARY, normal),
    "sign": (ops.sign, np.sign, UNARY, apart),
    "round": (ops.round, np.rint, UNARY, uneven),
    "floor": (ops.floor, np.floor, UNARY, uneven),
    "ceil": (ops.ceil, np.ceil, UNARY, uneven),
    "remainder": (ops.remainder, lambda x, y: x - y * np.floor(x / y), BROADCASTS, divisors),
    "tril": (ops.tril, lambda x, diagonal: np.tril(x, diagonal), beside_the_diagonal(), normal),
    "triu": (ops.triu, lambda x, diagonal: np.triu(x, diagonal), beside_the_diagonal(), normal),
    "logsumexp": (ops.logsumexp, lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis, keepdims=keepdims)),
                  reductions(empty=False), normal),
    "one_hot": (classes_of, lambda x, labels, num_classes: x * np.eye(num_classes)[labels], hot_labels(), normal),
    "dropout2d": (ops.dropout2d, dropout2d, whole_maps(), normal),
    "maximum": (ops.maximum, np.maximum, BROADCASTS, normal),
    "minimum": (ops.minimum, np.minimum, BROADCASTS, normal),
    "where": (choice, lambda x, y, condition: np.where(condition, x, y), conditions(), normal),
    "clip": (ops.clip, lambda x, low=None, high=None: np.clip(x, low, high), bounds(), apart),
    "min": (ops.min, np.min, reductions(empty=False), apart),
    "var": (ops.var, lambda x, correction=1, **options: np.var(x, ddof=correction, **options), variances(), normal),
    "std": (ops.std, lambda x, correction=1, **options: np.std(x, ddof=correction, **options), variances(), normal),
    "norm": (ops.norm, lambda x, **options: np.sqrt(np.sum(x * x, **options)), reductions(empty=True), normal),
    "cumsum": (ops.cumsum, np.cumsum, axes(), normal),
    "clone": (ops.clone, np.copy, UNARY, normal),
    "expand": (ops.expand, expand_reference, expansions(), normal),
    "flip": (ops.flip, np.flip, [(shape, {"axis": options["axis"]}) for shape, options in reductions(empty=True)],
             normal),
    "gather": (ops.gather, lambda x, axis, index: np.take_along_axis(x, index, axis), picks(), normal),
    "pad": (ops.pad, pad_reference, frames(), normal),
    "split": (parts_joined, split_reference, parts(), normal),
    "squeeze": (ops.squeeze, lambda x, axis=None: np.squeeze(x, axis), [
        *UNARY, *((shape, options) for shape, options in axes() if shape[0][options["axis"]] == 1)], normal),
    "unsqueeze": (ops.unsqueeze, np.expand_dims, [
        ((shape,), {"axis": axis}) for shape in SHAPES for axis in {0, -1, len(shape)}], normal),
    "stack": (lambda *xs, axis: ops.stack(xs, axis), lambda *xs, axis: np.stack(xs, axis), stacks(), normal),
    "prod": (ops.prod, np.prod, reductions(empty=True), normal),
    "outer": (ops.outer, np.outer, [(both, {}) for both in vectors()], normal),
    "einsum": (lambda *xs, equation: ops.einsum(equation, *xs), lambda *xs, equation: np.einsum(equation, *xs),
               equations(), normal),
    "embedding": (rows_of, lambda w, ids: w[ids], tables(), normal),
    "dropout": (ops.dropout, dropout, keys(), normal),
    "linear": (ops.linear, linear, layers(), normal),
    "scaled_dot_product_attention": (attended, attention, heads(), normal),
    "recurrence": (ops.recurrence, recurrence, sequences_of_states(), normal),
    "conv2d": (ops.conv2d, conv2d, convolutions(), normal),
    "conv1d": (ops.conv1d, conv1d, sequences(), normal),
    "conv3d": (ops.conv3d, conv3d, volumes(), normal),
    "conv_transpose2d": (ops.conv_transpose2d, conv_transpose2d, transposed_convolutions(), normal),
    "interpolate": (ops.interpolate, interpolate, factors(), normal),
    "pixel_shuffle": (ops.pixel_shuffle, pixel_shuffle, shuffles(), normal),
    "avg_pool2d": (ops.avg_pool2d, avg_pool2d, poolings(), normal),
    "max_pool2d": (ops.max_pool2d, max_pool2d, poolings(), apart),
    "local_response_norm": (ops.local_response_norm, local_response_norm, neighbourhoods(), normal),
    "batch_norm": (batch_normalized, batch_norm, [*batches(training=True), *batches(training=False)], normal),
    "layer_norm": (layer_normalized, layer_norm, rows_of_layers(), normal),
    "group_norm": (group_normalized, group_norm, groups_of_channels(), normal),
    "adaptive_avg_pool2d": (ops.adaptive_avg_pool2d, adaptive_avg_pool2d, grids(), normal),
    "cross_entropy": (integer_labels, by_pixel(cross_entropy),
                      with_pixels([*with_labels(), *smoothed_and_weighed()], 16), normal),
    "nll_loss": (weighed, by_pixel(nll_loss), with_pixels(weighed_labels(), 8), normal),
    "l1_loss": (ops.l1_loss, lambda x, y, reduction: reduced(np.abs(x - y), reduction), pairs_of_one_shape(), normal),
    "huber_loss": (ops.huber_loss, huber_loss, pairs_with("delta", 0.7, 1.0), normal),
    "binary_cross_entropy_with_logits": (yes_or_no, binary_cross_entropy, pairs_with("positive", None, 1.5), normal),
    "kl_div": (ops.kl_div, lambda x, y, reduction: reduced(y * (np.log(y) - x), reduction), pairs_of_one_shape(),
               positive),
    "mse_loss": (ops.mse_loss, lambda x, y, reduction: reduced((x - y) ** 2, reduction), pairs_of_one_shape(),
                 normal),
}

#        op: (what a user calls, reference): the same problems, no gradient
DISCRETE: dict[str, tuple[Callable[..., Tensor], Callable[..., Any]]] = {
    "gt": (ops.gt, np.greater), "ge": (ops.ge, np.greater_equal), "lt": (ops.lt, np.less),
    "le": (ops.le, np.less_equal), "eq": (ops.eq, np.equal), "ne": (ops.ne, np.not_equal),
}

#        what takes a plain number in place of either Tensor
NUMBERS = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")


def with_a_number(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(x: Any, *, first: float | None = None, second: float | None = None) -> Any:
        return call(x, second) if first is None else call(first, x)
    return called


def few_values(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """So that comparisons meet equal values."""
    return rng.integers(0, 3, shape).astype(float)


def _cases() -> Iterable[Case]:
    for name, (call, reference, problems, draw) in TABLE.items():
        for problem in problems:
            yield Case(name, call, reference, *problem, draw)
    for name, place, number in itertools.product(NUMBERS, ("first", "second"), (0, 1, 2, 0.75, -1.5)):
        if (name, place, number) != ("div", "second", 0) and (name != "pow" or place == "second" or number > 0):
            call, reference, *_ = TABLE[name]
            yield Case(name, with_a_number(call), with_a_number(reference), ((3, 4),), {place: number}, positive)
    for name, (call, reference) in DISCRETE.items():
        for problem in BROADCASTS:
            yield Case(name, call, reference, *problem, few_values, differentiable=False)
    for problem in axes(empty_axis=False):
        yield Case("argmax", ops.argmax, np.argmax, *problem, apart, differentiable=False)
        yield Case("argmin", ops.argmin, np.argmin, *problem, apart, differentiable=False)
    for problem in BROADCASTS:
        yield Case("floor_divide", ops.floor_divide, np.floor_divide, *problem, divisors, differentiable=False)
    for problem in UNARY:
        yield Case("unique", unique_by_all, unique_reference, *problem, few_values, differentiable=False)
    for problem in axes():
        yield Case("argsort", ops.argsort, np.argsort, *problem, apart, differentiable=False)


CASES: dict[str, list[Case]] = {}
for _case in {str(case): case for case in _cases()}.values():                      # each problem once
    CASES.setdefault(_case.op, []).append(_case)


# ---------------------------------------------------------------- for tests over cases
# Which of an op's cases a test takes: about ten of them are fast, the others slow.
PARTS = ["some cases", pytest.param("more cases", marks=pytest.mark.slow),
         pytest.param("the other cases", marks=pytest.mark.deep)]


def cases_of(op: str, part: str) -> list[Case]:
    """The cases of a part: "all cases", or at equal distances "some cases", and of the rest a third, drawn, as "more
    cases", and "the other cases"."""
    cases = CASES[op]
    some = range(0, len(cases), max(4, len(cases) // 10))
    rest = [i for i in range(len(cases)) if i not in some]
    more = random.Random(op).sample(rest, min(len(rest), max(8, len(rest) // 3)))
    chosen: dict[str, Sequence[int]] = {"all cases": range(len(cases)), "some cases": some, "more cases": more,
              "the other cases": sorted({*rest} - {*more})}
    return [cases[i] for i in chosen[part]]


def each_case(op: str, check: Callable[[Case], None], part: str = "all cases") -> None:
    """Run a check over an op's cases and say which ones failed."""
    failures, cases = [], cases_of(op, part)
    for case in cases:
        try:
            check(case)
        except Exception as error:
            failures.append(f"{case}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    assert not failures, f"{len(failures)} of {len(cases)} failed:\n" + "\n".join(failures)


def some_gy(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(8).standard_normal(shape)
