"""Faults that users of other frameworks reported, as rows for house/test_reports.py: what is right, or the words of a
refusal.

A row is a report: the project's repository and the report's number, an input of our own that shows its kind, and the
value. docs/notebook/reports.md has the kinds in words.
"""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, training

NAN, INF = math.nan, math.inf
Report = tuple[str, Callable[..., Any], Any]


def t(values: Any, dtype: Any = np.float32) -> Tensor:
    return Tensor(np.array(values, dtype))


def grad(function: Callable[..., Tensor], *values: Any) -> Any:
    """The gradients of the result's sum: one, or a list of them."""
    inputs = [Tensor(np.array(v, np.float32), requires_grad=True) for v in values]
    function(*inputs).sum().backward()
    found = [None if x.grad is None else x.grad.tolist() for x in inputs]
    return found[0] if len(found) == 1 else found


def refused(words: str) -> re.Pattern[str]:
    return re.compile(words)


# ---------------------------------------------------------------- integers
INTEGERS: list[Report] = [
    ("numpy/numpy#7708", lambda: t([2**31 - 1, 2**31 - 1], "i4").cumsum(0), [2**31 - 1, 2**32 - 2]),
    ("numpy/numpy#10134", lambda: t([100, 100, 100], "i1").cumsum(0), [100, 200, 300]),
    ("numpy/numpy#21878", lambda: t([636610453, 587165042, 815680932, 10**9], "i4").cumsum(0),
     [636610453, 1223775495, 2039456427, 3039456427]),
    ("numpy/numpy#8548", lambda: t([65536, 65535], "i4").prod(), refused("^prod: the input has dtype int32")),
    ("pandas-dev/pandas#10155", lambda: t([20150515061816532] * 500, "i8").mean(), 20150515061816532.0),
    ("scipp/scipp#3965", lambda: t([2**31 - 1] * 3, "i4").sum(), 3 * (2**31 - 1)),
    ("pytorch/pytorch#1164", lambda: t([-2, -1, 0, 1], "i8") % 3, [1, 2, 0, 1]),
    ("pytorch/pytorch#44858", lambda: t([1, -1], "i4") // t([2, 2], "i4"), [0, -1]),
    ("tinygrad/tinygrad#3133", lambda: t([1], "i4") / t([2], "i4"), [0.5]),
    ("tinygrad/tinygrad#5005", lambda: t([1, -1, 0], "i8") / t([0, 0, 0], "i8"), [INF, -INF, NAN]),
    ("pytorch/pytorch#327", lambda: t([1], "i1") / t([0], "i1"), [INF]),
    ("pytorch/pytorch#25829", lambda: t(540, "i8") / 0.30365729331970215, 1778.320533969415),
    ("tenstorrent/tt-metal#55680", lambda: [(t([7, 6], "i4") * 2.5).tolist(), (t([7, 6], "i4") / 0.5).tolist(),
                                            (t([7, 6], "i4") + 2.5).tolist()], [[17.5, 15], [14, 12], [9.5, 8.5]]),
    ("ml-explore/mlx#1066", lambda: t([1, 2], "i8") * np.array([2, 3]), refused("^mul: an input is a numpy.ndarray")),
    ("ml-explore/mlx#939", lambda: Tensor([[0, 1], 0]), refused("inhomogeneous|same length|Tensor")),
    ("ml-explore/mlx#4075", lambda: [t([0.0, -0.0]).any().item(), t([-0.0, 0.0, -0.0]).any().item()], [False, False]),
    ("ml-explore/mlx#124", lambda: t([[True, False]] * 3, bool) * t([True, True], bool), [[True, False]] * 3),
]

# ---------------------------------------------------------------- nothing to reduce, NaN, equal values
REDUCTIONS: list[Report] = [
    ("pytorch/pytorch#52565", lambda: ops.max(t(np.ones((0, 3)))), refused("max")),
    ("pytorch/pytorch#19612", lambda: t(np.ones(0), "i4").max(), refused("max")),
    ("pytorch/pytorch#35062", lambda: ops.max(t(np.ones((0, 4))), axis=1), []),
    ("tensorflow/tensorflow#3510", lambda: ops.min(t(np.ones((0, 10))), axis=0), refused("min")),
    ("pytorch/pytorch#117222", lambda: ops.sum(t(np.ones((2, 2, 0, 3))), axis=2, keepdims=True),
     np.zeros((2, 2, 1, 3)).tolist()),
    ("pytorch/pytorch#176379", lambda: t(np.ones((2, 0, 4))).mean(), NAN),
    ("microsoft/onnxruntime#28353", lambda: t(np.ones((1, 0))).sum(1), [0]),
    ("pytorch/pytorch#111757", lambda: [ops.einsum("ab,a->b", t(np.ones((1, 0))), t([1.0])).shape,
                                        ops.einsum("abc,a->c", t(np.ones((1, 1, 0))), t([1.0])).shape], [(0,), (0,)]),
    ("pytorch/pytorch#113037", lambda: (t(np.ones((8, 0))) / t(np.ones((0, 8, 0)))).shape, (0, 8, 0)),
    ("pytorch/pytorch#25016", lambda: [ops.maximum(t([1.0]), t([NAN])).tolist(),
                                       ops.maximum(t([NAN]), t([1.0])).tolist()], [[NAN], [NAN]]),
    ("apache/mxnet#16216", lambda: [t([[1, 5, 3], [NAN, 2, 6]]).argmax(0).tolist(),
                                    t([[1, 5, 3], [NAN, 2, 6]]).argmax(1).tolist()], [[1, 0, 1], [1, 0]]),
    ("pytorch/pytorch#118266", lambda: t([NAN, 4.6151]).argmax(), 0),
    ("jax-ml/jax#6762", lambda: t([0.0, NAN, 1.0]).argmax(), 1),
    ("Oneflow-Inc/oneflow#7606", lambda: [t([NAN, NAN]).argmax().item(), t([NAN, NAN]).argmin().item()], [0, 0]),
    ("triton-lang/triton#10291", lambda: t([NAN, 6, 8]).max(), NAN),
    ("numpy/numpy#12490", lambda: t([NAN] * 40).argsort(), list(range(40))),
    ("numpy/numpy#20778", lambda: t([0, 1, 0], "i8").argsort(descending=True), [1, 0, 2]),
    ("numpy/numpy#24165", lambda: t([68, 69, *[70] * 30]).argsort(), list(range(32))),
    ("numpy/numpy#17561", lambda: t([-993.68, -985.9, -0.0, -993.67]).argsort(), [0, 3, 1, 2]),
    ("IntelPython/dpnp#3066", lambda: t([3, NAN, 1]).sort()[0], [1, 3, NAN]),
    ("pytorch/pytorch#94546", lambda: grad(lambda x: x.var(), [2.0]), refused("^var: 1 values")),
    ("JuliaStats/StatsBase.jl#889", lambda: t([1.0]).var(correction=0), 0),
    ("pytorch/pytorch#4320", lambda: grad(lambda x: x.std(), [3.0, 3.0, 3.0]), [0, 0, 0]),
    ("ml-explore/mlx#1302", lambda: t([-0.8212978, -0.8214609]).std(correction=0), 8.155e-5),
    ("pytorch/pytorch#56734", lambda: grad(ops.maximum, [1.0, 2, 3], [1.0, 3, 2]), [[0.5, 0, 1], [0.5, 1, 0]]),
    ("tensorflow/tensorflow#109337", lambda: grad(lambda x: ops.max(x, axis=1), [[2.0, 2, 1]]), [[0.5, 0.5, 0]]),
    ("sahandsafizadeh/qeep#101", lambda: grad(ops.min, [1.0, 1, 2, 3]), [0.5, 0.5, 0, 0]),
    ("pytorch/pytorch#773", lambda: grad(ops.prod, [0.0, 2, 3]), [6, 0, 0]),
    ("tinygrad/tinygrad#17404", lambda: grad(ops.prod, [0.0, 0, 3]), [0, 0, 0]),
    ("apache/mxnet#17864", lambda: grad(lambda x: ops.prod(x, axis=1), [[4.0, 0], [2, 3]]), [[0, 4], [3, 2]]),
]



# ---------------------------------------------------------------- rounding of long sums and near a large mean
def running_sums(values: Any, axis: int = 0) -> float:
    """The largest error of sums up to each value, beside rounding their exact values once."""
    exact = np.cumsum(np.asarray(values, np.float32), axis, np.float64)
    return float((np.abs(t(values).cumsum(axis).numpy() - exact) / np.maximum(np.abs(exact), 1)).max())


def running_sums_gradient() -> float:
    """The same of the gradient, which sums from the other end."""
    x = Tensor(np.zeros(300_000, np.float32), requires_grad=True)
    x.cumsum(0).backward(t(np.full(300_000, 0.1)))
    assert x.grad is not None
    return abs(float(x.grad[0].item()) / (300_000 * float(np.float32(0.1))) - 1)


def of_equal(value: float, count: int, **options: Any) -> Any:
    """Variance, deviation and its largest gradient of equal values."""
    x = Tensor(np.full((count, 3), value, np.float32), requires_grad=True)
    x.std(0).sum().backward()
    assert x.grad is not None
    return [x.var(**options).item(), *x.std(0).tolist(), np.abs(x.grad.numpy()).max()]


ROUNDING: list[Report] = [
    ("pola-rs/polars#27662", lambda: running_sums(np.full(1_000_000, 0.0005)) < 1e-7, True),
    ("pandas-dev/pandas#47488", lambda: running_sums(np.random.default_rng(1).integers(0, 10_000, 10**6) / 1e4) < 1e-7,
     True),
    ("tensorflow/tensorflow#23312", lambda: running_sums(np.arange(5794)) < 1e-7, True),
    ("numpy/numpy#14909", lambda: running_sums(np.full((2, 300_000), 0.1), axis=1) < 1e-7, True),
    ("numpy/numpy#24443", running_sums_gradient, 0),
    ("pandas-dev/pandas#57505", lambda: of_equal(271.46, 15_000), [0] * 5),
    ("numpy/numpy#32445", lambda: of_equal(1.81, 1448), [0] * 5),
    ("numpy/numpy#20381", lambda: of_equal(0.1, 10), [0] * 5),
    ("numpy/numpy#9631", lambda: of_equal(6715266981.538051, 10), [0] * 5),
    ("arrayfire/arrayfire#2934", lambda: of_equal(5.6, 9, correction=0), [0] * 5),
    ("numpy/numpy#27782", lambda: of_equal(45.0 ** 10, 7), [0] * 5),
    ("solvcon/solvcon#1522", lambda: [t([1e8, 1e8 + 8, 1e8 + 16]).var().item(), t([1e8, 1e8 + 8]).var().item(),
                                      *grad(lambda x: x.var(), [1e8, 1e8 + 8, 1e8 + 16])], [64, 32, -8, 0, 8]),
    ("pandas-dev/pandas#67022", lambda: grad(lambda x: x.std(0), np.full((1448, 1), 0.576)), [[0]] * 1448),
    ("pytorch/pytorch#193006", lambda: [t([1e20, 1, 1]).norm().item() / 1e20, *grad(lambda x: x.norm(), [1e20, 1, 1])],
     [1, 1, 0, 0]),
    ("numpy/numpy#8775", lambda: (Tensor(np.array([[3e200, 4e200], [3e-200, 4e-200]])).norm(axis=1).numpy()
                                  / np.array([1e200, 1e-200])), [5, 5]),
    ("tenstorrent/tt-metal#56404", lambda: [t([s, s]).norm().item() / s for s in (1e20, 1e-25)],
     [2 ** 0.5, 2 ** 0.5]),
    ("tensorflow/tfjs#2236", lambda: grad(lambda x: x.norm(), [3e-30, 4e-30]), [0.6, 0.8]),
    ("microsoft/onnxruntime#32573", lambda: [(lambda x: x / x.norm())(t([s, -s])).tolist() for s in (1e30, 1e-30)],
     [[0.5 ** 0.5, -0.5 ** 0.5]] * 2),
]

# ---------------------------------------------------------------- exponentials, powers, bounds
CURVES: list[Report] = [
    ("rmcgibbo/logsumexp#2", lambda: t([-INF, -INF]).logsumexp(0), -INF),
    ("pytorch/pytorch#31829", lambda: grad(lambda x: x.logsumexp(0), [-INF, 0.0]), [0, 1]),
    ("pytorch/pytorch#49724", lambda: t([INF, 1.0]).logsumexp(0), INF),
    ("jax-ml/jax#23842", lambda: grad(lambda x: ops.where(t([True, False], bool), x, -INF).logsumexp(0), [0.0, 100.0]),
     [1, 0]),
    ("pytorch/pytorch#27134", lambda: grad(lambda a, b: a ** b, [0.0, 2.0], [1.0, 1.0]),
     [[1, 1], [0, 2 * math.log(2)]]),
    ("tenstorrent/tt-metal#5082", lambda: grad(lambda x: x ** 0, [0.0, 2.0]), [0, 0]),
    ("seantalts/stanli#150", lambda: grad(lambda a, b: a ** b, [0.0], [2.0]), [[0], [0]]),
    ("tensorflow/tfjs#346", lambda: grad(lambda a: a ** 2, [-2.0, 0.0]), [-4, 0]),
    ("HIPS/autograd#581", lambda: grad(lambda x: x ** 1.5, [0.0, 4.0]), [0, 3]),
    ("tensorflow/tensorflow#2295", lambda: grad(lambda x: ops.clip(x, low=0, high=1) ** 0.5, [-1, 0.25, 4]), [0, 1, 0]),
    ("ml-explore/mlx#465", lambda: t([-2.5, -0.5, 0.0, 4.0]).sqrt(), [NAN, NAN, 0, 2]),
    ("tracel-ai/burn#5373", lambda: [ops.softplus(t([20, 50, 100, 1000])).tolist(),
                                     grad(ops.softplus, [100.0, -200.0])], [[20, 50, 100, 1000], [1, 0]]),
    ("tinygrad/tinygrad#17852", lambda: grad(ops.elu, [300.0, 400.0, -1.0]), [1, 1, math.exp(-1)]),
    ("huggingface/candle#2328", lambda: grad(lambda x: ops.elu(x, alpha=2.0), [1000.0, -1000.0]), [1, 0]),
    ("trymirai/lalamo#328", lambda: grad(ops.silu, [1e4, -1e4]), [1, 0]),
    ("jeshraghian/snntorch#433", lambda: grad(ops.sigmoid, [-125.0, 125.0]), [0, 0]),
    ("pytorch/pytorch#2211", lambda: -ops.softplus(-t([-300.0, 300.0])), [-300, 0]),
    ("g-truc/glm#18", lambda: ops.clip(t([NAN, -3, 3]), low=0, high=1), [NAN, 0, 1]),
    ("chainer/chainer#7385", lambda: ops.clip(t([0.0, 5.0]), low=3, high=1), [1, 1]),
    ("pytorch/pytorch#7049", lambda: grad(lambda x: ops.clip(x, low=1, high=4), [0.0, 1, 2, 4, 5]), [0, 1, 1, 1, 0]),
    ("elixir-nx/nx#1779", lambda: grad(lambda x: ops.clip(x, low=0, high=9) * -3, [1.0, 10.0]), [-3, 0]),
]

# ---------------------------------------------------------------- places and views


def written(x: Tensor, place: Any, value: Any) -> Tensor:
    x[place] = value
    return x


def scaled_part() -> Tensor:
    x = t([1, 2, 3, 4, 5])
    x[:3] *= 10
    return x


def reversed_often() -> bool:
    x = y = t(np.arange(51).reshape(17, 3))
    for _ in range(4):
        y = y[::-1]
    return bool((x == y).all())


def used_then_changed() -> None:
    """What a matmul keeps for its gradient is changed before that runs."""
    x, w = t(np.ones((2, 2))), Tensor(np.ones((2, 2), np.float32), requires_grad=True)
    y = x @ w
    x += 1
    y.sum().backward()


def view_changed(twice: bool = False) -> Any:
    """A view of a recorded result is changed in place."""
    root = Tensor(np.arange(9.0, dtype=np.float32).reshape(3, 3), requires_grad=True)
    row = (root * 1).unbind(0)[0]
    row = row[:2] if twice else row
    row *= 2
    row.sum().backward()
    return None if root.grad is None else root.grad.tolist()


def zeroed_part() -> None:
    linear = nn.Linear(2, 4)
    y = linear(t(np.ones((3, 2))))
    y[:, :3] = 0.0


PLACES: list[Report] = [
    ("tinygrad/tinygrad#9940", scaled_part, [10, 20, 30, 4, 5]),
    ("ml-explore/mlx#1198", lambda: written(t(np.zeros((3, 4))), (slice(1, 3), slice(2, 4)), t([[1, 2], [3, 4]])),
     [[0, 0, 0, 0], [0, 0, 1, 2], [0, 0, 3, 4]]),
    ("tinygrad/tinygrad#12193", lambda: written(t(np.zeros(4)), np.array([[0, 1], [2, 3]]), t([[1, 2], [3, 4]])),
     [1, 2, 3, 4]),
    ("ml-explore/mlx#2755", reversed_often, True),
    ("ml-explore/mlx#583", lambda: (t(np.ones((1, 1, 2, 1, 1, 6))) + t(np.ones((1, 6, 1)))).tolist(),
     np.full((1, 1, 2, 1, 6, 6), 2).tolist()),
    ("rsokl/MyGrad#93", lambda: grad(lambda x: x * x * x, [2.0]), [12]),
    ("pytorch/pytorch#36608", view_changed, [[2, 2, 2], [0, 0, 0], [0, 0, 0]]),
    ("pytorch/pytorch#49824", lambda: view_changed(True), [[2, 2, 0], [0, 0, 0], [0, 0, 0]]),
    ("pytorch/pytorch#197887", used_then_changed, refused("changed")),
    ("pytorch/xla#1718", zeroed_part, refused("tape records")),
    ("pytorch/pytorch#183608", lambda: ops.embedding([2, -2, 4], t(np.ones((5, 2)))), refused("-2")),
    ("pytorch/FBGEMM#6215", lambda: ops.embedding([0, 5], t(np.ones((5, 2)))), refused("5")),
    ("tenstorrent/tt-metal#55894", lambda: grad(lambda x: x.repeat(1, 2, 3), np.ones((1, 3, 2))),
     np.full((1, 3, 2), 6).tolist()),
    ("tensorflow/tensorflow#15091", lambda: t([[1, 2]]).gather(1, t([[-1]], "i8")), [[2]]),
]

# ---------------------------------------------------------------- losses
LOGITS = np.log([[0.2, 0.3, 0.5], [0.5, 0.2, 0.3]])


def smoothed(eps: float, weight: Any = None) -> float:
    """(1 - eps) of the label's, eps spread over all classes; each class's part has its weight."""
    logits, labels, w = LOGITS, [2, 1], np.ones(3) if weight is None else np.array(weight)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    rows = [-(1 - eps) * w[y] * row[y] - eps / 3 * (w * row).sum() for row, y in zip(log_p, labels, strict=True)]
    return float(sum(rows) / w[labels].sum())


LOSSES: list[Report] = [
    ("pytorch/pytorch#25571", lambda: ops.cross_entropy(t([[0.2, 0.3, 0.5], [0.5, 0.2, 0.3]]), [2, 1], t([2, 4, 6])),
     1.05983),
    ("pytorch/pytorch#14184", lambda: ops.cross_entropy(t(LOGITS), [2, 1], t([0, 0, 5])), math.log(2)),
    ("pytorch/pytorch#104776", lambda: ops.cross_entropy(t(LOGITS), [2, 1], t([1, 4, 2]), label_smoothing=0.1),
     smoothed(0.1, [1, 4, 2])),
    ("fastai/fastai#1814", lambda: ops.cross_entropy(t(LOGITS), [2, 1], label_smoothing=0.3), smoothed(0.3)),
    ("rsokl/MyGrad#122", lambda: ops.cross_entropy(t(LOGITS), np.array([2, 1], "u1")), -math.log(0.5 * 0.2) / 2),
    ("onnx/onnx#2667", lambda: ops.cross_entropy(t(LOGITS), np.array([2, 1], "i4")), -math.log(0.5 * 0.2) / 2),
    ("rsokl/MyGrad#193", lambda: ops.softmax(t([[1, 2]], "i8")), refused("float")),
    ("tensorflow/tensorflow#21271", lambda: grad(lambda x: ops.cross_entropy(x, [0]), [[-4885.4614, 4878.027]]),
     [[-1, 1]]),
    ("tensorflow/tensorflow#2327", lambda: ops.cross_entropy(t([[1.0, 2.0], [3.0, 1.0]]), t([[0.0, 0], [1, 0]])),
     refused("^cross_entropy: logits have shape")),
    ("pytorch/pytorch#97022", lambda: ops.huber_loss(t([1.0]), t([1.0]), delta=0.0), refused("delta")),
    ("PAIR-code/tiny-transformers#67", lambda: ops.cross_entropy(t([[1e4, 0, -1e4]]), [1]), 1e4),
    ("HealthML/active-segmentation#78", lambda: grad(lambda x: ops.cross_entropy(x, [1]), [[200.0, -200.0]]),
     [[1, -1]]),
]

# ---------------------------------------------------------------- layers
CONSTANT = np.random.default_rng(0).uniform(-1, 1, (1, 5, 1, 1)).astype(np.float32)


def convolved(c: int, **options: Any) -> bool:
    """conv2d beside the sum by its definition."""
    rng = np.random.default_rng(c)
    x, w = rng.standard_normal((2, c, 7, 6)), rng.standard_normal((4, c, 3, 2))
    y = ops.conv2d(Tensor(x), Tensor(w), **options).numpy()
    (sh, sw), (dh, dw) = options.get("stride", (1, 1)), options.get("dilation", (1, 1))
    ph, pw = options.get("padding", (0, 0))
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    want = np.zeros_like(y)
    for i, j in np.ndindex(y.shape[2:]):
        part = padded[:, :, i * sh:i * sh + 2 * dh + 1:dh, j * sw:j * sw + dw + 1:dw]
        want[:, :, i, j] = np.einsum("nchw,mchw->nm", part, w)
    return bool(np.allclose(y, want))


def running(x: Any, momentum: float = 0.1) -> Any:
    bn = nn.BatchNorm1d(1, momentum=momentum)
    bn(t(x))
    return [bn.running_mean.item(), bn.running_var.item()]


def dropped(p: float) -> Any:
    minidl.manual_seed(0)
    y = ops.dropout(t(np.ones(1000)), p)
    return sorted(set(y.tolist()))


LAYERS: list[Report] = [
    ("tinygrad/tinygrad#14115", lambda: ops.conv2d(t(np.ones((1, 1, 5, 5))), t(np.ones((1, 1, 3, 3))), dilation=0),
     refused("dilation")),
    ("modular/modular#6248", lambda: [convolved(c) for c in (2, 8, 64)], [True] * 3),
    ("mlpack/mlpack#3146", lambda: convolved(2, stride=(1, 2), dilation=(2, 3)), True),
    ("tenstorrent/tt-metal#13170", lambda: convolved(3, dilation=(3, 1), padding=(2, 1), stride=(2, 1)), True),
    ("pytorch/pytorch#106366", lambda: running([[1.0], [2], [3], [4]]), [0.25, 0.9 + 0.1 * 5 / 3]),
    ("chainer/chainer#332", lambda: running([[1.0], [3]], 0.5), [1, 0.5 + 0.5 * 2]),
    ("pytorch/pytorch#19902", lambda: ops.batch_norm(t([[1.0], [3]]), training=True, eps=0.0), [[-1], [1]]),
    ("pytorch/pytorch#31498", lambda: nn.BatchNorm1d(1, momentum=None), refused("momentum")),  # type: ignore[arg-type]
    ("pytorch/pytorch#5410", lambda: ops.batch_norm(t(np.tile(CONSTANT * 1e10, (1, 1, 10, 10))), training=True),
     np.zeros((1, 5, 10, 10)).tolist()),
    ("tenstorrent/tt-metal#45968", lambda: ops.batch_norm(t([[5.0], [5.25]]) + 4096, training=True, eps=0.0),
     [[-1], [1]]),
    ("pytorch/pytorch#40302", lambda: ops.layer_norm(t([[4096.0, 4096.25] * 512]), 1024, eps=0.0), [[-1, 1] * 512]),
    ("microsoft/onnxruntime#28463", lambda: ops.layer_norm(t([[40000, 40001, 40002, 40003]]), 4, eps=0.0),
     [(np.array([-1.5, -0.5, 0.5, 1.5]) / 1.25 ** 0.5).tolist()]),
    ("microsoft/onnxruntime#21935", lambda: ops.layer_norm(t(np.full((1, 256), 1234.0)), 256), [[0] * 256]),
    ("pyg-team/pytorch_geometric#2917", lambda: grad(lambda x: ops.layer_norm(x, 4) * t([1, 2, 3, 4]), np.ones((1, 4))),
     [(np.array([-1.5, -0.5, 0.5, 1.5]) / 1e-5 ** 0.5).tolist()]),
    ("PaddlePaddle/Paddle#16654", lambda: ops.group_norm(t(np.ones((1, 4, 3, 3))), 4), np.zeros((1, 4, 3, 3)).tolist()),
    ("flagos-ai/FlagGems#4915", lambda: ops.adaptive_avg_pool2d(t(np.arange(8).reshape(1, 1, 1, 8)), (1, 3)),
     [[[[1, 3.5, 6]]]]),
    ("lmjohns3/theanets#123", lambda: dropped(0.1), [0, 1 / 0.9]),
    ("rasbt/LLMs-from-scratch#431", lambda: dropped(0.2), [0, 1.25]),
    ("pytorch/pytorch#75288", lambda: dropped(1.0), refused("^dropout: p is 1.0")),
]


# ---------------------------------------------------------------- optimizers, averages, schedules


def stepped(make: Callable[..., Any], *params: Any, gradient: float | None = 1.0, **options: Any) -> Any:
    """The parameters after a step of one gradient."""
    tensors = [Tensor(np.array(p, np.float32), requires_grad=True) for p in params]
    optimizer = make(tensors, **options)
    for p in tensors:
        p.grad = None if gradient is None else t(np.full(p.shape, gradient))
    optimizer.step()
    return [p.tolist() for p in tensors]


def exhausted() -> None:
    w = Tensor([3.0, 4.0], requires_grad=True)
    (w * w).sum().backward()
    parameters = (p for p in [w])
    list(parameters)
    optim.clip_grad_norm(parameters, 1.0)


def clipped(limit: float) -> list[float]:
    w = Tensor([3.0, 4.0], requires_grad=True)
    (w * w).sum().backward()
    optim.clip_grad_norm((p for p in [w]), limit)
    assert w.grad is not None
    return w.grad.tolist()


def twice_given(*groups: Any) -> Any:
    w = Tensor([0.0], requires_grad=True)
    sgd = optim.SGD([w, w] if not groups else [{"params": [w]} for _ in groups], lr=0.1)
    w.grad = t([1.0])
    sgd.step()
    return w.tolist()


def averaged() -> list[float]:
    """Weights of an EMA are averages; a batch norm's moments stay those of the training."""
    bn = nn.BatchNorm1d(1)
    ema = optim.EMA(bn, decay=0.5)
    bn(t([[1.0], [3]]))
    bn.weight.data[...] = 3.0
    ema.update()
    with ema.applied():
        return [bn.weight.item(), bn.running_mean.item(), bn.running_var.item()]


def resumed(make: Callable[..., Any], folder: Path, epochs: int = 4) -> Any:
    """The rates of a run, and those of one that stopped after half of it and went on."""
    def rates(*stops: int) -> list[float]:
        minidl.manual_seed(0)
        net, seen = nn.Linear(2, 2), []
        loader = data.DataLoader((np.ones((6, 2), np.float32), np.array([0, 1] * 3)), 2)
        for at, stop in enumerate(stops):
            sgd = optim.SGD(net.parameters(), 0.5)
            got = training.fit(net, sgd, loader, loader, epochs=stop, schedule=make(3 * epochs), progress=False,
                               say=None, checkpoints=folder / str(len(stops)), resume=at > 0)
            seen = [m["lr"] for m in got]
        return seen
    return rates(epochs)[-2:] == rates(epochs // 2, epochs)[-2:]


def added_group() -> list[float]:
    """A schedule and a group that is given later by building the optimizer anew: each group has its own rate."""
    groups = [{"params": [Tensor([1.0], requires_grad=True)], "lr": lr} for lr in (0.1, 0.01)]
    sgd = optim.SGD(groups, lr=1.0)
    plateau = optim.Plateau(sgd, factor=0.5, patience=0)
    for loss in (1.0, 1.0):
        plateau.observe(loss)
    return [g["lr"] for g in sgd.groups]


def accumulated(parts: int) -> bool:
    """Gradients of a batch in parts, the last of them smaller, are those of the whole batch."""
    minidl.manual_seed(0)
    net, x = nn.Linear(3, 2), t(np.random.default_rng(0).standard_normal((10, 3)))
    labels = np.arange(10) % 2
    ops.cross_entropy(net(x), labels).backward()
    whole = net.weight.grad.numpy().copy()
    net.zero_grad()
    size = -(-10 // parts)
    for i in range(0, 10, size):
        (ops.cross_entropy(net(x[i:i + size]), labels[i:i + size], reduction="sum") / 10).backward()
    return bool(np.allclose(whole, net.weight.grad.numpy(), atol=1e-6))


def kept_best(folder: Path) -> Any:
    """A best value lasts over a resumed run: a worse epoch after it writes nothing."""
    best = training.SaveBest(nn.Linear(1, 1), folder / "best.npz", "test_loss")
    best.on_epoch_end({"test_loss": 1.0})
    again = training.SaveBest(nn.Linear(1, 1), folder / "again.npz", "test_loss")
    again.load_state_dict(best.state_dict())
    for loss in (2.0, NAN):
        again.on_epoch_end({"test_loss": loss})
    written = (folder / "again.npz").exists()
    again.on_epoch_end({"test_loss": 0.5})
    return [written, (folder / "again.npz").exists()]


FACTOR = 10.0


def other_names() -> list[float]:
    """A compiled step beside a global, a closure and a default that change."""
    global FACTOR
    inner = 1.0
    step = minidl.compile(lambda x: x * FACTOR + inner)
    found = [step(t([1.0])).item(), step(t([1.0])).item()]
    FACTOR, inner = 20.0, 2.0
    found += [step(t([1.0])).item(), step(t([1.0])).item()]
    FACTOR = 10.0
    return found


OPTIMIZERS: list[Report] = [
    ("facebookresearch/fairchem#349", kept_best, [False, True]),
    ("keras-team/keras#18798", lambda: training.SaveBest(nn.Linear(1, 1), "best.h5", "test_ndcg"), refused("mode")),
    ("keras-team/keras#10863", lambda: training.SaveBest(nn.Linear(1, 1), "x.h5", "test_precision"), refused("mode")),
    ("tensorflow/tensorflow#40604", lambda: training.SaveBest(nn.Linear(1, 1), "best.h5", "test_auc"), refused("mode")),
    ("tensorflow/tensorflow#59036", lambda: optim.Plateau(optim.SGD([Tensor([1.0], requires_grad=True)], 0.1),
                                                          metric="test_recall"), refused("mode")),
    ("Lightning-AI/pytorch-lightning#4668", lambda: training.SaveBest(nn.Linear(1, 1), "best.h5", "test_pck_0.15"),
     refused("mode")),
    ("jax-ml/jax#1426", other_names, [11, 11, 22, 22]),
    ("ml-explore/mlx#440", lambda: stepped(optim.SGD, [1.0], lr=0.1, weight_decay=0.5), [[1 - 0.1 * 1.5]]),
    ("KellerJordan/Muon#54", lambda: stepped(optim.Muon, [[1.0, 0]], gradient=None, lr=0.1), [[[1, 0]]]),
    ("facebookresearch/moco#14", lambda: stepped(optim.SGD, [1.0], gradient=None, lr=0.1, weight_decay=0.5), [[1]]),
    ("HomebrewML/HeavyBall#71", lambda: stepped(optim.AdamW, [1.0], gradient=0.0, lr=0.1), [[1 - 0.1 * 0.01]]),
    ("pytorch/pytorch#148259", exhausted, refused("^clip_grad_norm: none of 0 parameters")),
    ("pytorch/torchtitan#1258", lambda: clipped(1.0), [0.6, 0.8]),
    ("OpenNMT/OpenNMT-py#1140", lambda: clipped(0.0), refused("^clip_grad_norm: max_norm is 0.0")),
    ("pytorch/pytorch#40967", twice_given, refused("^SGD: 2 parameters were given but only 1")),
    ("pytorch/pytorch#48518", lambda: twice_given(1, 2), refused("^SGD: 2 parameters were given but only 1")),
    ("fadel/pytorch_ema#13", averaged, [2, 0.2, 1.1]),
    ("pytorch/pytorch#60265", lambda folder: resumed(optim.cosine, folder), True),
    ("pytorch/pytorch#29697", lambda folder: resumed(lambda total: optim.step(5), folder), True),
    ("torch-points3d/torch-points3d#630", lambda folder: resumed(optim.one_cycle, folder), True),
    ("pytorch/pytorch#20997", added_group, [0.05, 0.005]),
    ("timoschick/pet#36", lambda: accumulated(3), True),
    ("Lightning-AI/pytorch-lightning#19987", lambda: accumulated(4), True),
]


# ---------------------------------------------------------------- modules and files of weights
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def tied(net: Any) -> list[Any]:
    return [net.first.weight is net.second.weight, len(list(net.parameters())), len(net.state_dict())]


def reloaded(folder: Path) -> list[Any]:
    net, other = Tied(), Tied()
    minidl.save(net, folder / "net.h5")
    minidl.load(other, folder / "net.h5")
    return [*tied(other), other(t([[1.0, 2]])).tolist() == net(t([[1.0, 2]])).tolist()]


def untied_values() -> None:
    net = Tied()
    state = net.state_dict()
    net.load_state_dict({**state, "second.weight": state["second.weight"] + 1})


def copied_and_trained() -> list[bool]:
    net = nn.Linear(2, 1)
    other = copy.deepcopy(net)
    before = net.weight.tolist()
    sgd = optim.SGD(other.parameters(), 0.1)
    other(t([[1.0, 2.0]])).sum().backward()
    sgd.step()
    return [net.weight.tolist() == before, other.weight.tolist() != before, net.weight.grad is None]


def bounds(groups: int) -> bool:
    """The largest of many weights is near the bound that the layer's own fan gives."""
    minidl.manual_seed(0)
    w = np.abs(nn.Conv2d(64, 64, 3, groups=groups).weight.numpy())
    return bool(0.97 < w.max() * math.sqrt(64 // groups * 9) <= 1.0001)


def kept_texts(folder: Path) -> Any:
    net = nn.Linear(2, 2)
    minidl.save(net, folder / "net.h5", classes=["große Katze", "犬"])
    found = minidl.nn.weights.read_metadata(folder / "net.h5")
    return [list(found["classes"]), {type(name).__name__ for name in found["classes"]}]


class Held(nn.Module):
    """A parameter in whatever layout its array has."""

    def __init__(self, array: np.ndarray):
        super().__init__()
        self.weight = Tensor(array, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def kept_layouts(ending: str) -> Callable[[Path], Any]:
    """Weights that lie transposed, reversed or with gaps in memory, through a file."""
    def through(folder: Path) -> list[bool]:
        if ending == ".safetensors":
            pytest.importorskip("safetensors")
        found, a = [], np.arange(24, dtype=np.float32).reshape(4, 6)
        for i, array in enumerate((a.T, np.asfortranarray(a), a[::2, ::3], a[::-1])):
            other = Held(np.zeros(array.shape, np.float32))
            held = Held(a[:1])
            held.weight.data = array
            minidl.save(held, folder / f"{i}{ending}")
            minidl.load(other, folder / f"{i}{ending}")
            found.append(other.weight.tolist() == array.tolist())
        return found
    return through


MODULES: list[Report] = [
    ("PaddlePaddle/PaddleX#5208", kept_layouts(".safetensors"), [True] * 4),
    ("MinishLab/model2vec#341", kept_layouts(".npz"), [True] * 4),
    ("pytorch/pytorch#79788", lambda: tied(copy.deepcopy(Tied())), [True, 1, 2]),
    ("pytorch/pytorch#12886", lambda: tied(pickle.loads(pickle.dumps(Tied()))), [True, 1, 2]),
    ("pytorch/pytorch#20546", reloaded, [True, 1, 2, True]),
    ("pytorch/pytorch#188346", untied_values, refused("are one Tensor in the model but differ in the state")),
    ("skorch-dev/skorch#317", copied_and_trained, [True, True, True]),
    ("ml-explore/mlx#4536", lambda: [bounds(1), bounds(4), bounds(64)], [True] * 3),
    ("h5py/h5py#1801", kept_texts, [["große Katze", "犬"], {"str"}]),
]


# ---------------------------------------------------------------- data
class Numbers:
    """Items that draw from NumPy."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return np.array([index, np.random.randint(2**31)])


def drawn(**options: Any) -> list[int]:
    """How many different numbers two epochs of 64 items draw, and how many different items each has."""
    np.random.seed(0)
    loader = data.DataLoader(Numbers(), 8, **options)
    epochs = [np.concatenate(list(loader)) for _ in range(2)]
    return [len(set(np.concatenate(epochs)[:, 1].tolist())), *(len(set(e[:, 0].tolist())) for e in epochs)]


def orders() -> list[bool]:
    """Epochs have other orders, and an epoch the same one whenever it is read."""
    loader = data.DataLoader(np.arange(50), 7)
    first, second = (np.concatenate(list(loader)).tolist() for _ in range(2))
    again = data.DataLoader(np.arange(50), 7)
    again.set_epoch(1)
    again.skip(3)
    return [first != second, np.concatenate(list(again)).tolist() == second[21:], sorted(first) == list(range(50))]


def table(text: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        path = folder / "t.csv"
        path.write_bytes(text.encode())
        found = data.from_csv(path)
        return [list(found.columns), found.rows.tolist(), [found.classes[i] for i in found.labels]]
    return read


def picture(make: Callable[[Any], Any], channels: int = 3) -> Callable[[Path], Any]:
    """The pixels that from_folder reads of a picture of 2x1."""
    def read(folder: Path) -> Any:
        image = pytest.importorskip("PIL.Image")
        for name in "ab":
            (folder / "pictures" / name).mkdir(parents=True)
            made, options = make(image)
            made.save(folder / "pictures" / name / "x.png", **options)
        return data.from_folder(folder / "pictures", (1, 2), channels=channels).images[0].transpose(1, 2, 0).tolist()
    return read


def palette(image: Any) -> Any:
    """Red and green by a palette; the green is transparent."""
    made = image.new("P", (2, 1))
    made.putpalette([255, 0, 0, 0, 255, 0])
    made.putpixel((1, 0), 1)
    return made, {"transparency": 1}


def gray(image: Any) -> Any:
    made = image.new("LA", (2, 1), (100, 255))
    made.putpixel((1, 0), (100, 0))
    return made, {}


def last_batch() -> list[float]:
    """Means of an evaluation are of all items, not of the last batch or of batches."""
    x = np.array([[1.0], [2], [3], [10], [20]], np.float32)
    loader = data.DataLoader((x, x * 0), 2, shuffle=False)
    found = training.evaluate(nn.Identity(), loader, loss=lambda y, target: (y - target).mean(),
                              metrics={"own": lambda y, target: y.mean()})
    return [float(found[0])]


def flipped() -> list[bool]:
    """Of many images some are flipped and some not, each by itself, and labels stay with their images."""
    images = np.zeros((400, 1, 1, 2), np.uint8)
    images[:, 0, 0, 0] = 255
    labels = np.arange(400)
    loader = data.DataLoader(data.Dataset("d", "train", images, labels), 100, augment=data.Augment(flip=True))
    first = [(x[:, 0, 0, 0] == 0).mean() for x, _ in loader]
    plain = data.DataLoader(data.Dataset("d", "train", images, labels), 400)
    return [all(0.3 < share < 0.7 for share in first), bool((next(iter(plain))[0][:, 0, 0, 0] == 1).all())]


def own_statistics() -> Any:
    """What columns are normalised by is the training's mean and std, which the test set is given."""
    rows = np.array([[1.0], [3]])
    train = data.Table("t", "train", rows, np.array([0, 1]))
    test = data.Table("t", "test", rows + 10, np.array([0, 1]))
    how = train.preprocessing()
    loader = data.DataLoader(test, 2, shuffle=False, mean=how["mean"], std=how["std"])
    return next(iter(loader))[0].tolist()


DATA: list[Report] = [
    ("lucidrains/stylegan2-pytorch#273", flipped, [True, True]),
    ("ikhlestov/vision_networks#27", own_statistics, [[9], [11]]),
    ("python-pillow/Pillow#434", picture(lambda image: (palette(image)[0].convert("RGB").convert("P"), {})),
     [[[255, 0, 0], [0, 255, 0]]]),
    ("pytorch/pytorch#5059", drawn, [128, 64, 64]),
    ("pytorch/pytorch#3880", lambda: drawn(prefetch=8), [128, 64, 64]),
    ("facebookresearch/fairseq#1383", lambda: drawn(prefetch=0, shuffle=False), [128, 64, 64]),
    ("huggingface/accelerate#2823", orders, [True, True, True]),
    ("pytorch/pytorch#128116", lambda: sum(len(p) for p in data.random_split(np.arange(1000), [0.05] * 20)), 1000),
    ("apple/turicreate#347", lambda: [len(p) for p in data.random_split(np.arange(1000), [0.5, 0.5])], [500, 500]),
    ("Ghadjeres/DeepBach#26", lambda: [len(p) for p in data.random_split(np.arange(7), [0.85, 0.1, 0.05])], [6, 1, 0]),
    ("pytorch/pytorch#78877", lambda: data.random_split(np.arange(9), [0.3, 0.3]), refused("^random_split: sizes")),
    ("pandas-dev/pandas#13497", table("\ufeffa,kind\n1,x\n2,y\n"), [["a"], [[1], [2]], ["x", "y"]]),
    ("thephpleague/csv#586", table("\ufeff\"a,b\",kind\n1,x\n2,y\n"), [["a,b"], [[1], [2]], ["x", "y"]]),
    ("pandas-dev/pandas#59299", table("a;kind\n1,20;x\n22,3;y\n"), refused("^from_csv: .*(column|values)")),
    ("pandas-dev/pandas#25218", table("a,kind\n\"53,2\",x\n\"4,1\",y\n"), refused("'a' is '53,2' but must be")),
    ("pandas-dev/pandas#4598", table("a,kind\n\"2,334.01\",x\n\"13\",y\n"), refused("'a' is '2,334.01' but must be")),
    ("pandas-dev/pandas#65397", table("a,kind\n\"1 ,\",x\n2,y\n"), refused("'a' is '1 ,' but must be a number")),
    ("pyexcel/pyexcel#138", table("a,kind\n1234_5678,x\n2,y\n"), refused("'a' is '1234_5678' but must be a number")),
    ("python-pillow/Pillow#6496", picture(lambda image: (palette(image)[0], {})), [[[255, 0, 0], [0, 255, 0]]]),
    ("python-pillow/Pillow#5593", picture(palette), [[[255, 0, 0], [255, 255, 255]]]),
    ("python-pillow/Pillow#5606", picture(gray, 1), [[[100], [255]]]),
    ("Lightning-AI/pytorch-lightning#4141", last_batch, [7.2]),
    ("tensorflow/tensorflow#13005", lambda: training.top_k_accuracy(2)(t(np.zeros((4, 5))), t([0, 1, 2, 4], "i8")), 0),
    ("numpy/numpy#4676", lambda: minidl.manual_seed(1 + 2**64), refused("^manual_seed: seed is")),
]


ROWS = [*INTEGERS, *REDUCTIONS, *ROUNDING, *CURVES, *PLACES, *LOSSES, *LAYERS, *OPTIMIZERS, *MODULES, *DATA]
