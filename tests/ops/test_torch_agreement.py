"""PyTorch as a third opinion: every op's result and gradients, and ten training steps of both nets, float64.

TRIALS draws 1,400 random convolutions and poolings and 90 random problems of most other ops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import ALGORITHMS, edges

import minidl
from minidl import Tensor, init, nn, ops, optim, zoo

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
F = torch.nn.functional
torch.set_num_threads(1)                   # its threads would wait for each other on tiny arrays
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import torch_nets  # noqa: E402  # PyTorch and the folder first

Shape = tuple[int, ...]
Rng = np.random.Generator


@dataclass(frozen=True)
class Trial:
    """One problem: ours(*inputs) must equal theirs(*inputs), and so must all gradients."""

    inputs: tuple[np.ndarray, ...]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]
    note: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{', '.join(str(x.shape) for x in self.inputs)} {self.note}"


# ---------------------------------------------------------------- drawing
def size(rng: Rng, most: int, least: int = 1) -> int:
    return int(rng.integers(least, most + 1))


def shape(rng: Rng, least_axes: int = 0, most_axes: int = 4, most: int = 5) -> Shape:
    return tuple(size(rng, most) for _ in range(size(rng, most_axes, least_axes)))


def pick(rng: Rng, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def normal(rng: Rng, sizes: Shape) -> np.ndarray:
    return np.array(rng.standard_normal(sizes))


def positive(rng: Rng, sizes: Shape) -> np.ndarray:
    return np.array(rng.uniform(0.5, 2.0, sizes))


def large(rng: Rng, sizes: Shape) -> np.ndarray:
    """For functions that saturate; half of the time."""
    return np.array(pick(rng, (1, 100)) * rng.standard_normal(sizes))


def some_axes(rng: Rng, ndim: int) -> tuple[int, ...]:
    """At least one axis, counted from the front or the back."""
    axes = rng.permutation(ndim)[:size(rng, ndim)]
    return tuple(int(a) - ndim if rng.random() < 0.3 else int(a) for a in axes)


def hardsigmoid(x: Any) -> Any:
    """PyTorch's own has a gradient of 1/6 rounded to float32, of float64 values too."""
    return F.relu6(x + 3) / 6


# ---------------------------------------------------------------- problems, one function an op or a family
def elementwise(ours: Callable[..., Tensor], theirs: Callable[..., Any],
                draw: Callable[[Rng, Shape], np.ndarray] = normal) -> Callable[[Rng], Trial]:
    return lambda rng: Trial((draw(rng, shape(rng)),), ours, theirs)


def arithmetic(ours: Callable[..., Tensor], theirs: Callable[..., Any],
               draw: Callable[[Rng, Shape], np.ndarray] = normal) -> Callable[[Rng], Trial]:
    """Two inputs that broadcast; of two in five pairs, one is a plain number."""
    def trial(rng: Rng) -> Trial:
        full = shape(rng)
        x, y = (draw(rng, tuple(1 if rng.random() < 0.3 else n for n in full[size(rng, len(full), 0):]))
                if rng.random() < 0.6 else draw(rng, full) for _ in range(2))
        number, kind = float(draw(rng, ())), pick(rng, ("both", "both", "both", "left", "right"))
        scalar = torch.tensor(number, dtype=torch.float64)
        if kind == "left":
            return Trial((y,), lambda y: ours(number, y), lambda y: theirs(scalar, y), {"x": number})
        if kind == "right":
            return Trial((x,), lambda x: ours(x, number), lambda x: theirs(x, scalar), {"y": number})
        return Trial((x, y), ours, theirs)
    return trial


def reduction(ours: Callable[..., Tensor], theirs: Callable[..., Any]) -> Callable[[Rng], Trial]:
    def trial(rng: Rng) -> Trial:
        sizes = shape(rng, 1)
        axis, keepdims = some_axes(rng, len(sizes)), bool(rng.integers(2))
        if len(axis) == 1 and rng.random() < 0.5:
            axis = axis[0]
        if rng.random() < 0.2:                                   # values that are equal share max's gradient
            x = np.array(rng.integers(0, 3, sizes), float)
        else:
            x = normal(rng, sizes)
        return Trial((x,), lambda x: ours(x, axis=axis, keepdims=keepdims),
                     lambda x: theirs(x, dim=axis, keepdim=keepdims), {"axis": axis, "keepdims": keepdims})
    return trial


def whole(rng: Rng) -> Trial:
    """The reductions to one number."""
    ours, theirs = pick(rng, [(Tensor.sum, torch.sum), (Tensor.mean, torch.mean), (Tensor.max, torch.amax)])
    return Trial((normal(rng, shape(rng)),), ours, theirs)


def reshape(rng: Rng) -> Trial:
    sizes = shape(rng)
    count = int(np.prod(sizes))
    divisor = pick(rng, [d for d in range(1, count + 1) if count % d == 0])
    to = pick(rng, [(count,), (-1,), (divisor, count // divisor), (divisor, -1), (1, *sizes[::-1], 1)])
    return Trial((normal(rng, sizes),), lambda x: x.reshape(*to), lambda x: x.reshape(to), {"to": to})


def flatten(rng: Rng) -> Trial:
    sizes = shape(rng, 1)
    start = size(rng, len(sizes) - 1, -len(sizes))
    return Trial((normal(rng, sizes),), lambda x: x.flatten(start), lambda x: torch.flatten(x, start),
                 {"start": start})


def transpose(rng: Rng) -> Trial:
    sizes = shape(rng, 1)
    order = tuple(int(a) for a in rng.permutation(len(sizes)))
    return Trial((normal(rng, sizes),), lambda x: x.transpose(order), lambda x: x.permute(order),
                 {"order": order})


def getitem(rng: Rng) -> Trial:
    """An int, a slice, a new axis, one ellipsis, one list of positions or a mask an axis."""
    sizes = shape(rng, 1)
    index: list[Any] = []
    array = False
    for n in sizes[:size(rng, len(sizes))]:
        kind = pick(rng, ("int", "slice", "slice", "new", "array"))
        if kind == "new":
            index.append(None)
        if kind == "int":
            index.append(size(rng, n - 1, -n))
        elif kind == "array" and not array:                      # of several, NumPy and PyTorch move the axes
            array = True
            index.append(rng.integers(-n, n, size(rng, 4)))
        else:
            begin = size(rng, n - 1, 0)
            index.append(slice(begin, size(rng, n, begin), size(rng, 2)))
    if array and any(isinstance(i, int) for i in index):
        index = [slice(i, None) if isinstance(i, int) else i for i in index]
    if rng.random() < 0.3:
        index.append(Ellipsis)
    if rng.random() < 0.15:
        index = [rng.random(sizes) < 0.5]
    theirs = tuple(torch.tensor(i) if isinstance(i, np.ndarray) else i for i in index)
    return Trial((normal(rng, sizes),), lambda x: x[tuple(index)], lambda x: x[theirs], {"index": index})


def concatenate(rng: Rng) -> Trial:
    sizes = shape(rng, 1)
    axis = size(rng, len(sizes) - 1, -len(sizes))
    parts = tuple(normal(rng, tuple(size(rng, 4) if a == axis % len(sizes) else n for a, n in enumerate(sizes)))
                  for _ in range(size(rng, 4)))
    return Trial(parts, lambda *xs: ops.concatenate(xs, axis), lambda *xs: torch.cat(xs, axis), {"axis": axis})


def matmul(rng: Rng) -> Trial:
    """Matrices, batches of them that broadcast, and vectors on either side."""
    i, j, k = (size(rng, 6) for _ in range(3))
    batch = shape(rng, 0, 2, 3)
    left, right = (tuple(1 if rng.random() < 0.3 else n for n in batch[size(rng, len(batch), 0):])
                   for _ in range(2))
    x, y = pick(rng, [((i, j), (j, k)), ((*left, i, j), (*right, j, k)), ((*left, i, j), (*right, j, k)),
                      ((j,), (*right, j, k)), ((*left, i, j), (j,)), ((j,), (j,))])
    return Trial((normal(rng, x), normal(rng, y)), lambda x, y: x @ y, lambda x, y: x @ y)


def linear(rng: Rng) -> Trial:
    i, o = (size(rng, 9) for _ in range(2))
    lead = pick(rng, [(size(rng, 9),), (size(rng, 9),), shape(rng, 0, 3)])
    bias = [normal(rng, (o,))] * size(rng, 1, 0)
    return Trial((normal(rng, (*lead, i)), normal(rng, (o, i)), *bias), ops.linear, F.linear)


def embedding(rng: Rng) -> Trial:
    rows = size(rng, 7)
    ids, padding = rng.integers(0, rows, shape(rng, 0, 3)), pick(rng, [None, size(rng, rows) - 1])
    return Trial((normal(rng, (rows, size(rng, 9))),), lambda w: ops.embedding(ids, w, padding_idx=padding),
                 lambda w: F.embedding(torch.tensor(ids), w, padding), {"ids": ids, "padding": padding})


def einsum(rng: Rng) -> Trial:
    """One to three Tensors of some of four letters, in any order."""
    sizes = {letter: size(rng, 4) for letter in "abcd"}
    terms = ["".join(rng.permutation(list("abcd"))[:size(rng, 3, 0)]) for _ in range(size(rng, 3))]
    known = sorted(set("".join(terms)))
    result = "".join(rng.permutation(known)[:size(rng, len(known), 0)]) if known else ""
    equation = ",".join(terms) + "->" + result
    return Trial(tuple(normal(rng, tuple(sizes[letter] for letter in term)) for term in terms),
                 lambda *xs: ops.einsum(equation, *xs), lambda *xs: torch.einsum(equation, *xs), {"equation": equation})


def outer(rng: Rng) -> Trial:
    return Trial((normal(rng, (size(rng, 9),)), normal(rng, (size(rng, 9),))), ops.outer, torch.outer)


def prod(rng: Rng) -> Trial:
    """Over one axis, with none, one or two zeros among the values, or over all."""
    sizes = shape(rng, 1)
    x, axis, keepdims = normal(rng, sizes), size(rng, len(sizes) - 1, -len(sizes)), bool(rng.integers(2))
    x.reshape(-1)[rng.integers(0, x.size, size(rng, 3, 0))] = 0
    if rng.random() < 0.3:
        return Trial((x,), ops.prod, torch.prod)
    return Trial((x,), lambda x: ops.prod(x, axis, keepdims), lambda x: torch.prod(x, axis, keepdims), {"axis": axis})


def along_axis(ours: Callable[..., Tensor], theirs: Callable[..., Any]) -> Callable[[Rng], Trial]:
    def trial(rng: Rng) -> Trial:
        sizes = shape(rng, 1)
        axis = size(rng, len(sizes) - 1, -len(sizes))
        scale = pick(rng, (1, 30, 1000))                         # e^1000 overflows
        return Trial((scale * normal(rng, sizes),), lambda x: ours(x, axis=axis), lambda x: theirs(x, dim=axis),
                     {"axis": axis, "scale": scale})
    return trial


def cross_entropy(rng: Rng) -> Trial:
    n, classes = size(rng, 9), size(rng, 12)
    labels = rng.integers(0, classes, n)
    options = {"reduction": pick(rng, ("mean", "sum", "none")),
               "label_smoothing": pick(rng, (0.0, 0.0, 0.1, 0.5, 1.0))}
    scale = pick(rng, (1, 10, 100))
    return Trial((scale * normal(rng, (n, classes)),), lambda x: ops.cross_entropy(x, labels, **options),
                 lambda x: F.cross_entropy(x, torch.tensor(labels), **options), {"scale": scale, **options})


def mse_loss(rng: Rng) -> Trial:
    sizes, reduction = shape(rng), pick(rng, ("mean", "sum", "none"))
    return Trial((normal(rng, sizes), normal(rng, sizes)), lambda x, y: ops.mse_loss(x, y, reduction=reduction),
                 lambda x, y: F.mse_loss(x, y, reduction=reduction), {"reduction": reduction})


def weighed(rng: Rng) -> tuple[np.ndarray, dict[str, Any], dict[str, Any]]:
    """Logits, and for both the labels, at times with weights, and one of them ignored."""
    n, classes = size(rng, 9), size(rng, 12)
    labels, ignored = rng.integers(0, classes, n), pick(rng, [None, -100, 0, 1])
    weight = rng.uniform(0.1, 3, classes) if rng.random() < 0.7 or ignored is None else None
    if ignored is not None:
        labels[rng.random(n) < 0.3] = ignored
        labels[0] = min(2, classes - 1)                          # the mean of none is NaN
    reduction, pixels = pick(rng, ("mean", "sum", "none")), pick(rng, ((), (), (3,), (2, 4), (1, 2, 3)))
    labels = np.array(np.broadcast_to(labels.reshape(n, *(1 for _ in pixels)), (n, *pixels)))
    labels.reshape(-1)[1:] = rng.permutation(labels.reshape(-1)[1:])
    if (labels == ignored).all():
        reduction = "sum"
    ours = {"labels": labels, "weight": None if weight is None else Tensor(weight), "ignore_index": ignored}
    theirs = {"target": torch.tensor(labels), "weight": None if weight is None else torch.tensor(weight),
              "ignore_index": -100 if ignored is None else ignored}
    return pick(rng, (1, 10, 100)) * normal(rng, (n, classes, *pixels)), ours | {"reduction": reduction}, theirs | {
        "reduction": reduction}


def weighed_cross_entropy(rng: Rng) -> Trial:
    x, ours, theirs = weighed(rng)
    smoothing = pick(rng, (0.0, 0.0, 0.1, 1.0))
    return Trial((x,), lambda x: ops.cross_entropy(x, label_smoothing=smoothing, **ours),
                 lambda x: F.cross_entropy(x, label_smoothing=smoothing, **theirs), {**ours, "smoothing": smoothing})


def nll_loss(rng: Rng) -> Trial:
    x, ours, theirs = weighed(rng)
    return Trial((x,), lambda x: ops.nll_loss(x, **ours), lambda x: F.nll_loss(x, **theirs), ours)


def of_two(name: str, **options: Any) -> Callable[[Rng], Trial]:
    """A loss of x and a target, with a gradient by either."""
    def trial(rng: Rng) -> Trial:
        sizes, how = shape(rng), {"reduction": pick(rng, ("mean", "sum", "none")), **options}
        return Trial((pick(rng, (1, 1, 100)) * normal(rng, sizes), normal(rng, sizes)),
                     lambda x, y: getattr(ops, name)(x, y, **how), lambda x, y: getattr(F, name)(x, y, **how), how)
    return trial


def divergence(rng: Rng) -> Trial:
    """Of log probabilities and a target that has zeros, where PyTorch's gradient by it is NaN, or logarithms too."""
    sizes, how = shape(rng, 1), {"reduction": pick(rng, ("mean", "sum", "none", "batchmean")),
                                 "log_target": pick(rng, (False, True))}
    target = normal(rng, sizes) if how["log_target"] else np.maximum(rng.uniform(-0.5, 1, sizes), 0)
    return Trial((normal(rng, sizes),), lambda x: ops.kl_div(x, Tensor(target), **how),
                 lambda x: F.kl_div(x, torch.tensor(target), **how), how)


def yes_or_no(rng: Rng) -> Trial:
    sizes, how = shape(rng, 1), {"reduction": pick(rng, ("mean", "sum", "none"))}
    factor, target = rng.uniform(0.5, 3, sizes[-1]), rng.uniform(0, 1, sizes)
    return Trial((pick(rng, (1, 1, 100)) * normal(rng, sizes), target),
                 lambda x, y: ops.binary_cross_entropy_with_logits(x, y, pos_weight=Tensor(factor), **how),
                 lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(factor), **how), how)


def few(rng: Rng, sizes: Shape) -> np.ndarray:
    """Values of which some are equal."""
    return np.array(rng.integers(0, 3, sizes), float)


def halves(rng: Rng, sizes: Shape) -> np.ndarray:
    """Values of which some are as far from one integer as from the next."""
    return np.array(rng.integers(-6, 7, sizes) / 2 + pick(rng, (0, 0, 0.1)))


def beside_the_diagonal(ours: Callable[..., Tensor], theirs: Callable[..., Any]) -> Callable[[Rng], Trial]:
    def trial(rng: Rng) -> Trial:
        diagonal = size(rng, 4, -4)
        return Trial((normal(rng, shape(rng, 2)),), lambda x: ours(x, diagonal), lambda x: theirs(x, diagonal),
                     {"diagonal": diagonal})
    return trial


def choice(rng: Rng) -> Trial:
    x, y = normal(rng, (size(rng, 9), size(rng, 9))), normal(rng, (1, 1))
    condition = rng.random(x.shape) < 0.5
    return Trial((x, y), lambda x, y: ops.where(Tensor(condition), x, y),
                 lambda x, y: torch.where(torch.tensor(condition), x, y))


def clip(rng: Rng) -> Trial:
    """Bounds that are values too: they are included."""
    low, high = pick(rng, [(-1.0, 1.0), (None, 1.0), (0.0, None), (1.0, -1.0)])
    return Trial((rng.integers(-2, 3, shape(rng)).astype(float),), lambda x: ops.clip(x, low, high),
                 lambda x: torch.clamp(x, low, high), {"low": low, "high": high})


def variance(ours: Callable[..., Tensor], theirs: Callable[..., Any]) -> Callable[[Rng], Trial]:
    def trial(rng: Rng) -> Trial:
        sizes = shape(rng, 1)
        axis, keepdims, correction = some_axes(rng, len(sizes)), bool(rng.integers(2)), int(rng.integers(2))
        x = normal(rng, tuple(n + 1 for n in sizes))
        if rng.random() < 0.2:
            x[...] = 1.5                                         # no variance: the root has no slope
        return Trial((x,), lambda x: ours(x, axis=axis, keepdims=keepdims, correction=correction),
                     lambda x: theirs(x, dim=axis, keepdim=keepdims, correction=correction), {"axis": axis})
    return trial


def pad(rng: Rng) -> Trial:
    sizes = shape(rng, 1)
    widths = tuple(size(rng, 3, 0) for _ in range(2 * size(rng, len(sizes))))
    return Trial((normal(rng, sizes),), lambda x: ops.pad(x, widths, 0.5), lambda x: F.pad(x, widths, value=0.5),
                 {"widths": widths})


def expand(rng: Rng) -> Trial:
    full = shape(rng, 1)
    sizes = tuple(1 if rng.random() < 0.5 else n for n in full)[size(rng, len(full) - 1, 0):]
    return Trial((normal(rng, sizes),), lambda x: x.expand(*full), lambda x: x.expand(*full), {"to": full})


def gather(rng: Rng) -> Trial:
    sizes = shape(rng, 1)
    axis = size(rng, len(sizes) - 1, 0)
    index = rng.integers(0, sizes[axis], tuple(size(rng, 4) if a == axis else n for a, n in enumerate(sizes)))
    return Trial((normal(rng, sizes),), lambda x: x.gather(axis, Tensor(index)),
                 lambda x: x.gather(axis, torch.tensor(index)), {"axis": axis})


def order(rng: Rng) -> Trial:
    sizes = shape(rng, 1)
    axis, down = size(rng, len(sizes) - 1, 0), bool(rng.integers(2))
    return Trial((normal(rng, sizes),), lambda x: x.sort(axis, down)[0], lambda x: x.sort(axis, down)[0])


def parts(rng: Rng) -> Trial:
    sizes = shape(rng, 1)
    axis, part = size(rng, len(sizes) - 1, 0), size(rng, 3)
    return Trial((normal(rng, sizes),), lambda x: ops.split(x, part, axis)[-1], lambda x: x.split(part, axis)[-1])


def methods(rng: Rng) -> Trial:
    """What is composed of ops."""
    x = normal(rng, (size(rng, 4), size(rng, 4), size(rng, 3)))
    call = pick(rng, [
        lambda x: x.repeat(2, 1, 2, 1), lambda x: x.flip(0, 2), lambda x: x.swapaxes(0, 2), lambda x: x.movedim(0, -1),
        lambda x: x.permute(2, 0, 1), lambda x: x.squeeze(1), lambda x: x.unsqueeze(-2), lambda x: x.logsumexp((0, 2)),
        lambda x: x.topk(1, 2)[0], lambda x: x.narrow(1, 0, 1), lambda x: x.select(0, -1), lambda x: x.unbind(1)[0],
        lambda x: x.chunk(2, 2)[0], lambda x: x.mT, lambda x: x.clone(), lambda x: x.flatten(1), lambda x: x.square()])
    return Trial((x,), call, call)


# ---------------------------------------------------------------- sliding windows
def window(rng: Rng, most_padding: Callable[[int], int]) -> tuple[tuple[int, int], Shape, dict[str, Any]]:
    """A window, images that it fits into, and its stride and padding in one of the ways to write them."""
    kh, kw = size(rng, 5), size(rng, 5)
    if rng.random() < 0.3:
        kw = kh
    top, bottom, left, right = (size(rng, most_padding(k), 0) for k in (kh, kh, kw, kw))
    padding = pick(rng, [((top, bottom), (left, right)), ((top, bottom), (left, right)), (top, left),
                         min(top, left), 0])
    top, bottom, left, right = edges(padding)
    h = size(rng, 11, max(1, kh - top - bottom))
    w = size(rng, 11, max(1, kw - left - right))
    stride = pick(rng, [1, 2, size(rng, 4), (size(rng, 4), size(rng, 4))])
    return (kh, kw), (size(rng, 4), size(rng, 4), h, w), {"stride": stride, "padding": padding}


def padded(x: Any, padding: Any, fill: float = 0.0) -> Any:
    """PyTorch's ops pad all sides of an axis alike, and poolings at most half a window; its `pad` has no limit."""
    top, bottom, left, right = edges(padding)
    return F.pad(x, (left, right, top, bottom), value=fill)


def conv2d(algorithm: str) -> Callable[[Rng], Trial]:
    def trial(rng: Rng) -> Trial:
        kernel, images, options = window(rng, lambda k: 3)
        m = size(rng, 5)
        bias = [normal(rng, (m,))] * size(rng, 1, 0)
        return Trial((normal(rng, images), normal(rng, (m, images[1], *kernel)), *bias),
                     lambda *xwb: ops.conv2d(*xwb, algorithm=algorithm, **options),
                     lambda x, *wb: F.conv2d(padded(x, options["padding"]), *wb, stride=options["stride"]),
                     options)
    return trial


def groups(rng: Rng) -> Trial:
    """As many groups as channels at times: then each filter reads one."""
    kernel, (n, c, h, w), options = window(rng, lambda k: 3)
    count, own = int(rng.integers(2, 5)), pick(rng, [1, c])
    maps = size(rng, 3) * count
    return Trial((normal(rng, (n, own * count, h, w)), normal(rng, (maps, own, *kernel)), normal(rng, (maps,))),
                 lambda *xwb: ops.conv2d(*xwb, groups=count, **options),
                 lambda x, *wb: F.conv2d(padded(x, options["padding"]), *wb, stride=options["stride"], groups=count),
                 {"groups": count, **options})


def dilated(rng: Rng) -> Trial:
    kernel, (n, c, h, w), options = window(rng, lambda k: 3)
    dh, dw, count = size(rng, 4), size(rng, 3), pick(rng, [1, 1, 2])
    images = n, c * count, h + (kernel[0] - 1) * (dh - 1), w + (kernel[1] - 1) * (dw - 1)
    maps, options["groups"] = size(rng, 3) * count, count
    dilation = pick(rng, [(dh, dw), dh]) if dh == dw else (dh, dw)
    return Trial((normal(rng, images), normal(rng, (maps, c, *kernel)), normal(rng, (maps,))),
                 lambda *xwb: ops.conv2d(*xwb, dilation=dilation, **options),
                 lambda x, *wb: F.conv2d(padded(x, options["padding"]), *wb, stride=options["stride"], groups=count,
                                         dilation=dilation), {"dilation": dilation, **options})


def sequences(rng: Rng) -> Trial:
    window_size, dilation, groups = size(rng, 5), size(rng, 3), pick(rng, [1, 1, 2])
    options = {"stride": size(rng, 3), "padding": size(rng, 3, 0), "dilation": dilation, "groups": groups}
    length, c, maps = (window_size - 1) * dilation + size(rng, 9), size(rng, 3), size(rng, 3) * groups
    return Trial((normal(rng, (size(rng, 4), c * groups, length)), normal(rng, (maps, c, window_size)),
                  *[normal(rng, (maps,))] * size(rng, 1, 0)),
                 lambda *xwb: ops.conv1d(*xwb, **options), lambda *xwb: F.conv1d(*xwb, **options), options)


def volumes(rng: Rng) -> Trial:
    """In groups, with dilation; where the stride is 1 with padding by PyTorch's words too."""
    groups, n, c, m = pick(rng, (1, 1, 2)), size(rng, 3), size(rng, 2), size(rng, 2)
    window, dilation = shape(rng, 3, 3, 3), shape(rng, 3, 3, 2)
    stride = pick(rng, [1, shape(rng, 3, 3, 2)])
    padding = pick(rng, ["same", "valid"] if stride == 1 else [0, 1, (1, 0, 2)])
    volume = tuple(d * (k - 1) + size(rng, 3) for k, d in zip(window, dilation, strict=True))
    bias = [normal(rng, (m * groups,))] * size(rng, 1, 0)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return Trial((normal(rng, (n, c * groups, *volume)), normal(rng, (m * groups, c, *window)), *bias),
                 lambda *xs: ops.conv3d(*xs, **options), lambda *xs: F.conv3d(*xs, **options), options)


def transposed(rng: Rng) -> Trial:
    c, m, kh, kw, h, w = (size(rng, 5) for _ in range(6))
    stride, padding = (size(rng, 4), size(rng, 4)), (size(rng, kh, 1) - 1, size(rng, kw, 1) - 1)
    h, w = h + 2 * padding[0], w + 2 * padding[1]
    options = {"stride": stride, "padding": padding, "output_padding": tuple(size(rng, s) - 1 for s in stride)}
    return Trial((normal(rng, (size(rng, 4), c, h, w)), normal(rng, (c, m, kh, kw)),
                  *[normal(rng, (m,))] * size(rng, 1, 0)),
                 lambda *xwb: ops.conv_transpose2d(*xwb, **options),
                 lambda *xwb: F.conv_transpose2d(*xwb, **options), options)


def images(rng: Rng) -> np.ndarray:
    return normal(rng, tuple(size(rng, 6) for _ in range(4)))


def larger(rng: Rng) -> Trial:
    x, f = images(rng), (size(rng, 3), size(rng, 3))
    how: dict[str, Any] = pick(rng, [{"scale_factor": f}, {"size": (x.shape[2] * f[0], x.shape[3] * f[1])},
                                     {"scale_factor": f[0]}])
    return Trial((x,), lambda x: ops.interpolate(x, **how), lambda x: F.interpolate(x, **how), how)


def shuffled(rng: Rng) -> Trial:
    r, (n, c, h, w) = size(rng, 3), (size(rng, 4) for _ in range(4))
    return Trial((normal(rng, (n, c * r * r, h, w)),), lambda x: ops.pixel_shuffle(x, r),
                 lambda x: F.pixel_shuffle(x, r), {"factor": r})


def responses(rng: Rng) -> Trial:
    shape = tuple(size(rng, 5) for _ in range(int(rng.integers(3, 6))))
    numbers = size(rng, 7), *(float(v) for v in rng.uniform(0.2, 2, 3))
    return Trial((normal(rng, shape),), lambda x: ops.local_response_norm(x, *numbers),
                 lambda x: F.local_response_norm(x, *numbers), {"numbers": numbers})


def weights(rng: Rng, sizes: Shape) -> list[np.ndarray]:
    """Weight and bias, or none."""
    return [normal(rng, sizes) for _ in range(pick(rng, (0, 2, 2)))]


def batch_norm(rng: Rng) -> Trial:
    """In training and in evaluation; means far from 0 at times."""
    x = pick(rng, (1, 1, 1000)) + normal(rng, (size(rng, 6, 2), *shape(rng, 1, 4, 6)))
    c, eps, training = x.shape[1], pick(rng, (1e-5, 0.1)), bool(rng.integers(2))
    moments = normal(rng, (c,)), positive(rng, (c,))
    def running(make: Callable[..., Any]) -> list[Any]:
        return [make(m) for m in moments]
    return Trial((x, *weights(rng, (c,))),
                 lambda x, *wb: ops.batch_norm(x, *running(Tensor), *wb or (None, None), training, eps=eps),
                 lambda x, *wb: F.batch_norm(x, *running(torch.tensor), *wb or (None, None), training, eps=eps),
                 {"training": training, "eps": eps})


def layer_norm(rng: Rng) -> Trial:
    sizes = (*shape(rng, 0, 3), size(rng, 40, 2))
    last, eps = sizes[-size(rng, len(sizes)):], pick(rng, (1e-5, 0.1))
    return Trial((normal(rng, sizes), *weights(rng, last)), lambda x, *wb: ops.layer_norm(x, last, *wb, eps=eps),
                 lambda x, *wb: F.layer_norm(x, last, *wb, eps=eps), {"last": last})


def group_norm(rng: Rng) -> Trial:
    count, eps = size(rng, 4), pick(rng, (1e-5, 0.1))
    sizes = (size(rng, 4), count * size(rng, 3), *(n + 1 for n in shape(rng, 1, 3)))
    return Trial((normal(rng, sizes), *weights(rng, sizes[1:2])), lambda x, *wb: ops.group_norm(x, count, *wb, eps=eps),
                 lambda x, *wb: F.group_norm(x, count, *wb, eps=eps), {"groups": count})


def adaptive_pooling(rng: Rng) -> Trial:
    to = pick(rng, [1, size(rng, 7), (size(rng, 7), size(rng, 7)), (None, size(rng, 7))])
    return Trial((normal(rng, shape(rng, 4, 4, 9)),), lambda x: ops.adaptive_avg_pool2d(x, to),
                 lambda x: F.adaptive_avg_pool2d(x, to), {"to": to})


def native_padding(padding: Any, kernel: tuple[int, int]) -> tuple[int, int] | None:
    """The padding as PyTorch's poolings take it, where they do."""
    top, bottom, left, right = edges(padding)
    fits = top == bottom <= kernel[0] // 2 and left == right <= kernel[1] // 2
    return (top, left) if fits else None


def pooling(ours: Callable[..., Tensor], theirs: Callable[..., Any], fill: float) -> Callable[[Rng], Trial]:
    """Padding is PyTorch's own where it takes it, else `pad`."""
    def trial(rng: Rng) -> Trial:
        kernel, images, options = window(rng, lambda k: k - 1)
        if rng.random() < 0.3:
            options["stride"] = None
        padding = native_padding(options["padding"], kernel)

        def reference(x: Any) -> Any:
            if padding is None:
                return theirs(padded(x, options["padding"], fill), kernel, options["stride"])
            return theirs(x, kernel, options["stride"], padding)
        return Trial((normal(rng, images),), lambda x: ours(x, size=kernel, **options), reference,
                     {"size": kernel, **options})
    return trial


def attention(rng: Rng) -> Trial:
    """Every kind of mask, among them such as leave a query nothing to attend to."""
    lead = shape(rng, 0, 2, 3)
    length, keys, d, dv = (size(rng, 6) for _ in range(4))
    query, key, value = (normal(rng, (*lead, *own)) for own in ((length, d), (keys, d), (keys, dv)))
    kind, options = pick(rng, ("none", "causal", "bool", "floating", "broadcast")), {}
    if rng.random() < 0.3:
        options["scale"] = 0.7
    if kind in ("none", "causal"):
        options["is_causal"] = kind == "causal"
    whole = (*lead, length, keys)
    if kind == "bool":
        mask = rng.random(whole[-2:]) < 0.5
        return Trial((query, key, value),
                     lambda *xs: ops.scaled_dot_product_attention(*xs, Tensor(mask), **options),
                     lambda *xs: F.scaled_dot_product_attention(*xs, torch.tensor(mask), **options),
                     {"kind": kind, **options})
    masks = (normal(rng, whole if kind == "floating" else whole[-1:]),) if kind in ("floating", "broadcast") else ()
    return Trial((query, key, value, *masks), lambda *xs: ops.scaled_dot_product_attention(*xs, **options),
                 lambda *xs: F.scaled_dot_product_attention(*xs, **options), {"kind": kind, **options})


# ---------------------------------------------------------------- the table: name -> (how many, how to draw one)
TRIALS: dict[str, tuple[int, Callable[[Rng], Trial]]] = {
    "add": (90, arithmetic(ops.add, torch.add)),
    "sub": (90, arithmetic(ops.sub, torch.sub)),
    "mul": (90, arithmetic(ops.mul, torch.mul)),
    "div": (90, arithmetic(ops.div, torch.div, positive)),
    "pow": (90, arithmetic(ops.pow, torch.pow, positive)),
    "neg": (90, elementwise(ops.neg, torch.neg)),
    "exp": (90, elementwise(ops.exp, torch.exp)),
    "log": (90, elementwise(ops.log, torch.log, positive)),
    "sqrt": (90, elementwise(ops.sqrt, torch.sqrt, positive)),
    "rsqrt": (90, elementwise(ops.rsqrt, torch.rsqrt, positive)),
    **{act: (90, elementwise(getattr(ops, act), hardsigmoid if act == "hardsigmoid" else getattr(F, act), large))
       for act in (*ops.ACTIVATIONS, "silu")},
    "leaky_relu of a slope": (90, elementwise(lambda x: ops.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2), large)),
    "elu of an alpha": (90, elementwise(lambda x: ops.elu(x, 1.7), lambda x: F.elu(x, 1.7), large)),
    **{f"gelu {how}": (90, elementwise(lambda x, how=how: ops.gelu(x, approximate=how),
                                       lambda x, how=how: F.gelu(x, approximate=how), large))
       for how in ("none", "tanh")},
    "sum": (90, reduction(ops.sum, torch.sum)),
    "mean": (90, reduction(ops.mean, torch.mean)),
    "max": (90, reduction(ops.max, torch.amax)),
    "min": (90, reduction(ops.min, torch.amin)),
    "var": (90, variance(ops.var, torch.var)),
    "std": (90, variance(ops.std, torch.std)),
    "norm": (90, reduction(ops.norm, torch.linalg.vector_norm)),
    "cumsum": (90, along_axis(ops.cumsum, torch.cumsum)),
    "abs": (90, elementwise(ops.abs, torch.abs)),
    **{name: (90, elementwise(getattr(ops, name), getattr(torch, name), draw)) for name, draw in (
        ("sin", large), ("cos", large), ("log1p", positive), ("expm1", normal), ("erf", normal), ("sign", few),
        ("round", halves), ("floor", halves), ("ceil", halves))},
    "remainder": (90, arithmetic(ops.remainder, torch.remainder)),
    **{name: (90, beside_the_diagonal(getattr(ops, name), getattr(torch, name))) for name in ("tril", "triu")},
    "logsumexp": (90, reduction(ops.logsumexp, torch.logsumexp)),
    "clone": (90, elementwise(ops.clone, torch.clone)),
    "maximum": (90, arithmetic(ops.maximum, torch.maximum, few)),
    "minimum": (90, arithmetic(ops.minimum, torch.minimum, few)),
    "where": (90, choice),
    "clip": (90, clip),
    "pad": (90, pad),
    "expand": (150, expand),
    "gather": (90, gather),
    "sort": (90, order),
    "split": (90, parts),
    "methods": (120, methods),
    "all axes": (90, whole),
    "reshape": (90, reshape),
    "flatten": (90, flatten),
    "transpose": (90, transpose),
    "getitem": (90, getitem),
    "concatenate": (90, concatenate),
    "matmul": (90, matmul),
    "linear": (90, linear),
    "scaled_dot_product_attention": (150, attention),
    "embedding": (90, embedding),
    "einsum": (200, einsum),
    "outer": (90, outer),
    "prod": (90, prod),
    "softmax": (90, along_axis(ops.softmax, torch.softmax)),
    "log_softmax": (90, along_axis(ops.log_softmax, torch.log_softmax)),
    "cross_entropy": (90, cross_entropy),
    "mse_loss": (90, mse_loss),
    "cross_entropy with weights": (120, weighed_cross_entropy),
    "nll_loss": (90, nll_loss),
    "l1_loss": (90, of_two("l1_loss")),
    "kl_div": (90, divergence),
    "huber_loss": (90, of_two("huber_loss")),
    "huber_loss of a delta": (90, of_two("huber_loss", delta=0.3)),
    "binary_cross_entropy_with_logits": (90, of_two("binary_cross_entropy_with_logits")),
    "binary_cross_entropy_with_logits weighed": (90, yes_or_no),
    **{f"conv2d {algorithm}": (200, conv2d(algorithm)) for algorithm in ALGORITHMS},
    "conv2d groups": (200, groups),
    "conv2d dilation": (200, dilated),
    "conv1d": (100, sequences),
    "conv3d": (100, volumes),
    "conv_transpose2d": (200, transposed),
    "interpolate": (90, larger),
    "pixel_shuffle": (90, shuffled),
    "local_response_norm": (100, responses),
    "batch_norm": (100, batch_norm),
    "layer_norm": (90, layer_norm),
    "group_norm": (90, group_norm),
    "adaptive_avg_pool2d": (100, adaptive_pooling),
    "avg_pool2d": (300, pooling(ops.avg_pool2d, F.avg_pool2d, 0.0)),
    "max_pool2d": (300, pooling(ops.max_pool2d, F.max_pool2d, -np.inf)),
}

RANDOM_BY_DESIGN = {"dropout", "dropout2d"}            # its mask is minidl's own
NO_GRADIENT = {"gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin", "argsort", "floor_divide", "one_hot"}


def assert_close(ours: np.ndarray, theirs: np.ndarray, bound: float = 1e-10) -> None:
    """Equal to `bound` relative to max(1, |PyTorch's|)."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    error = np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))
    worst = np.max(error, initial=0.0)
    assert worst <= bound, f"off by {worst:.3g}, {worst / bound:.3g} times the bound"


def check(trial: Trial, rng: Rng) -> None:
    ours = [Tensor(x, requires_grad=True) for x in trial.inputs]
    theirs = [torch.tensor(x, requires_grad=True) for x in trial.inputs]
    y, expected = trial.ours(*ours), trial.theirs(*theirs)
    assert_close(y.numpy(), expected.detach().numpy())
    gy = normal(rng, y.shape)
    y.backward(Tensor(gy))
    expected.backward(torch.tensor(gy))
    for x, z in zip(ours, theirs, strict=True):
        assert_close(x.grad.numpy(), z.grad.numpy())


@pytest.mark.parametrize("name", TRIALS)
def test_op(name: str) -> None:
    count, draw = TRIALS[name]
    failures = []
    for i in range(count):
        rng = np.random.default_rng([i, *name.encode()])
        trial = draw(rng)
        try:
            check(trial, rng)
        except Exception as error:
            failures.append(f"{i}: {trial}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    assert not failures, f"{len(failures)} of {count} failed:\n" + "\n".join(failures)


def test_every_differentiable_op_is_compared() -> None:
    assert {name.split()[0] for name in TRIALS} >= ops.OPS.keys() - NO_GRADIENT - RANDOM_BY_DESIGN
    assert sum(count for name, (count, _) in TRIALS.items() if "2d" in name) == 2500


def test_at_least_40_shapes_an_op() -> None:
    for name, (count, draw) in TRIALS.items():
        trials = [draw(np.random.default_rng([i, *name.encode()])) for i in range(count)]
        shapes = {tuple(x.shape for x in trial.inputs) for trial in trials}
        assert len(shapes) >= 40, f"{name}: {len(shapes)} shapes"


def test_equal_values_in_a_pooling_window_send_the_gradient_to_the_first() -> None:
    rng = np.random.default_rng(0)
    for i in range(20):
        x = rng.integers(0, 2, (2, 2, 6, 7)).astype(float)
        options = {"stride": size(rng, 3), "padding": i % 2}
        check(Trial((x,), lambda x, o=options: ops.max_pool2d(x, size=3, **o),
                    lambda x, o=options: F.max_pool2d(x, 3, **o)), rng)


# ---------------------------------------------------------------- running values
@pytest.mark.parametrize(("ours", "theirs", "sizes"), [
    ("BatchNorm2d", torch.nn.BatchNorm2d, (4, 3)), ("BatchNorm2d", torch.nn.BatchNorm2d, (1, 1)),
    ("BatchNorm1d", torch.nn.BatchNorm1d, ()), ("BatchNorm1d", torch.nn.BatchNorm1d, (5,))])
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0])
def test_running_values(ours: str, theirs: Any, sizes: Shape, momentum: float) -> None:
    """After each of five steps, on batches of any size, and what evaluation makes of them."""
    rng = np.random.default_rng(5)
    layer = getattr(nn, ours)(3, momentum=momentum).to(dtype="float64")
    twin = theirs(3, momentum=momentum, dtype=torch.float64)
    layer.load_state_dict(twin.state_dict())
    twin.load_state_dict({name: torch.tensor(values) for name, values in layer.state_dict().items()})
    for n in (4, 2, 7, 3, 16):
        x = 5 + 3 * normal(rng, (n, 3, *sizes))
        assert_close(layer.train()(Tensor(x)).numpy(), twin.train()(torch.tensor(x)).detach().numpy())
        for name in ("running_mean", "running_var"):
            assert_close(getattr(layer, name).numpy(), getattr(twin, name).numpy())
        assert_close(layer.eval()(Tensor(x)).numpy(), twin.eval()(torch.tensor(x)).detach().numpy())


@pytest.mark.parametrize("make", [
    lambda nn: nn.BatchNorm2d(4, affine=False), lambda nn: nn.BatchNorm2d(4, track_running_stats=False).eval(),
    lambda nn: nn.GroupNorm(2, 4, affine=False), lambda nn: nn.LayerNorm((3, 5), elementwise_affine=False),
    lambda nn: nn.LayerNorm(5, bias=False), lambda nn: nn.AdaptiveAvgPool2d((2, None)), lambda nn: nn.Identity(7)])
def test_layers_of_either_library(make: Callable[[Any], Any]) -> None:
    x, layer, twin = normal(np.random.default_rng(6), (2, 4, 3, 5)), make(nn), make(torch.nn)
    state = {name: values for name, values in twin.state_dict().items() if not name.endswith(COUNTS)}
    assert {name: values.shape for name, values in layer.state_dict().items()} == {
        name: tuple(values.shape) for name, values in state.items()}
    assert_close(layer.double()(Tensor(x)).numpy(), twin.double()(torch.tensor(x)).detach().numpy())


# ---------------------------------------------------------------- training
SETTINGS = {
    "momentum, weight decay": {"momentum": 0.9, "weight_decay": 5e-4},
    "nesterov": {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True},
    "plain": {},
}
NETS: dict[str, dict[str, int]] = {"lenet5": {}, "krizhevsky2009": {}, "cifar10-quick": {}, "cifar10-18": {},
                                   "alexnet": {"width": 6, "hidden": 20}, "resnet": {"depth": 14, "width": 4},
                                   "resnet-224": {"width": 4}, "autoencoder": {"width": 4, "code": 8},
                                   "table-mlp": {"classes": 10}, "airbench": {"width": 4}}
COUNTS = "num_batches_tracked"             # which PyTorch keeps beside running values


def without_dropout(net: Any) -> Any:
    """Its masks are minidl's own. What normalises by the batch goes on doing so."""
    for each in net.modules():
        if type(each).__name__ == "Dropout":
            each.eval()
    return net


def items_of(model: str, count: int, rng: Rng) -> np.ndarray:
    return normal(rng, (count, *zoo.MODELS[model].shape))


def test_weights_of_pytorch_load_as_they_are() -> None:
    """In evaluation: without dropout, whose masks are minidl's own, and by running values."""
    for model, options in NETS.items():
        net, twin = zoo.build(model, **options).eval(), torch_nets.build(model, **options).eval()
        net.load_state_dict(twin.state_dict())
        items = items_of(model, 4, np.random.default_rng(3)).astype(np.float32)
        np.testing.assert_allclose(net(Tensor(items)).numpy(), twin(torch.tensor(items)).detach().numpy(),
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", NETS)
def test_ten_training_steps(model: str, setting: str) -> None:
    minidl.manual_seed(1)
    net = zoo.build(model, **NETS[model])
    to_itself = zoo.MODELS[model].target == "image"
    if not to_itself:
        init.kaiming_uniform_(net.output.weight)           # at 0, as one starts, the first layers would hardly move
    without_dropout(net.to(dtype="float64"))
    twin = without_dropout(torch_nets.build(model, net.state_dict(), torch.float64, **NETS[model]))
    assert list(net.state_dict()) == [name for name in twin.state_dict() if not name.endswith(COUNTS)]
    before = net.state_dict()
    lr, count = (0.002, 2) if model == "alexnet" else (0.05, 3) if model == "resnet-224" else (0.1, 16)
    learning = {name for name, _ in net.named_parameters()} | {name for name in before if "running" in name}
    assert learning == {name for name, p in twin.named_parameters() if p.requires_grad} | {
        name for name in before if "running" in name}
    sgd = optim.SGD(net.parameters(), lr=lr, **SETTINGS[setting])
    twin_sgd = torch.optim.SGD(twin.parameters(), lr=lr, **SETTINGS[setting])
    rng = np.random.default_rng(2)
    losses = []
    for _ in range(10):
        items, labels = items_of(model, count, rng), rng.integers(0, 10, count)
        sgd.zero_grad()
        x, twin_x = Tensor(items), torch.tensor(items)
        loss = net.loss(net(x), x) if to_itself else ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        twin_sgd.zero_grad()
        twin_loss = (F.mse_loss(twin(twin_x), twin_x) if to_itself else
                     F.cross_entropy(twin(twin_x), torch.tensor(labels)))
        twin_loss.backward()
        twin_sgd.step()
        losses.append((loss.item(), twin_loss.item()))
    np.testing.assert_allclose(*np.array(losses).T, rtol=1e-8)
    for name, ours in net.state_dict().items():
        assert_close(ours, twin.state_dict()[name].numpy(), 1e-8)
        moved = np.abs(ours - before[name]).max()
        assert moved > 1e-4 if name in learning else moved == 0, f"{name} moved by {moved}"
