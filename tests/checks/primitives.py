"""Checks of the CUDA backend's primitives against the CPU's, or against simpler primitives.

The tests for a GPU run them (tests/cuda), and so do the emulator and compute-sanitizer (launches.py).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cases import Case, some_gy

from checks.agrees import agrees, backend, called
from checks.fused import normal
from minidl import ops
from minidl.core.tensor import wrap
from minidl.data import Augment
from minidl.lab.check import product_bound
from minidl.ops.common.curves import OF_X
from minidl.ops.common.geometry import conv_geometry, pool_geometry
from minidl.ops.common.geometry import recurrent as recurrences
from minidl.ops.common.geometry.sets import NormGeometry
from minidl.ops.layers.norm import batch_geometry
from minidl.optim.muon import orthogonal

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops import cpu, cuda  # noqa: E402
from minidl.ops.cuda import conv  # noqa: E402
from minidl.ops.cuda.indexing import order, take  # noqa: E402
from minidl.ops.cuda.layers import recurrent  # noqa: E402
from minidl.ops.cuda.layers.linear import gemm  # noqa: E402


# ---------------------------------------------------------------- how near is near
def bound(expected: np.ndarray, arrays: list[np.ndarray], dtype: type) -> float:
    """What rounding may do: it grows with the root of the number of terms, at most all values of the largest array."""
    terms = max([1, expected.size, *[x.size for x in arrays]])
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    factor = 8 if dtype is np.float32 else 64      # in float64 the expected values are rounded as well
    return factor * float(np.finfo(dtype).eps) * scale * terms ** 0.5


# ---------------------------------------------------------------- ops
def computed(case: Case, moved: Callable[[np.ndarray], Any]) -> list[np.ndarray]:
    """In float32 the result, and the gradient by each input."""
    inputs = [wrap(moved(x.astype(np.float32))) for x in case.arrays()]
    for t in inputs:
        t.requires_grad = case.differentiable
    y = case.call(*inputs, **case.options)
    if case.differentiable:
        y.backward(wrap(moved(some_gy(y.shape).astype(np.float32))))
    return [y.detach().numpy(), *(t.grad.numpy() for t in inputs if t.grad is not None)]


# ---------------------------------------------------------------- primitives
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1e4, -1e4, 88.8, -88.8, 710, -710, 20, -20,
                    1, -1, 1e30, -1e30])


def activations_of_special_values(name: str, dtype: type) -> None:
    """What float32 cannot tell from 0 may differ, and CuPy compiles with -ftz=true, by which denormals are 0."""
    least = np.finfo(np.float32).tiny

    def flushed(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < np.finfo(dtype).tiny, np.zeros_like(x), x)

    def compare(got: np.ndarray, want: np.ndarray, size: np.ndarray) -> None:
        most = np.where(np.isfinite(size), least * (1 + np.abs(size)), 0)
        close = np.isclose(got, want, rtol=8 * np.finfo(dtype).eps, atol=most, equal_nan=True)
        assert close.all(), f"{name}: {got[~close]} where {want[~close]} is right"

    slope = np.exp(-np.abs(SPECIAL))                   # about a curve's far out: a denormal times infinity is no number
    denormal = (slope > 0) & (slope < np.finfo(dtype).tiny)
    x = flushed(SPECIAL[~denormal | (dtype is np.float64 and name not in OF_X)].astype(dtype))
    y = x if name in OF_X else flushed(getattr(cpu, name)(x))       # what its gradient reads
    for call, given, size in [(name, (x,), x), *[
            (f"{name}_grad_x", (gy, y), x * np.where(np.isfinite(gy), gy, 1))
            for gy in (x[::-1], np.full_like(x, np.inf))]]:
        (got,), (want,) = (called(call, *backend(on), given) for on in ("cuda", "cpu"))
        compare(got, want, size)


def cross_entropy_of_any_size(n: int, classes: int) -> None:
    rng = np.random.default_rng(n * classes)
    x, labels = 5 * rng.standard_normal((n, classes)), rng.integers(0, classes, n)

    def losses(k: Any, x: Any, labels: Any, *how: Any) -> Any:
        loss, log_p = k.cross_entropy(x, labels, *how)
        return loss, k.cross_entropy_grad_x(k.ones_like(loss), log_p, labels, *how)
    for how in (("mean", 0.0), ("sum", 0.1), ("none", 0.3)):
        agrees(losses, x, labels, *how, rtol=4096, atol=512)


def uneven_windows(shape: tuple[int, ...], size: tuple[int, int], dtype: type) -> None:
    """Means over a grid of windows, and their gradient; of images that lie in memory as they are, transposed, with
    channels last, sliced and mirrored."""
    n, c, h, w = shape
    for axes, sizes, seen in (((0, 1, 2, 3), shape, np.s_[:]), ((0, 1, 3, 2), (n, c, w, h), np.s_[:]),
                              ((0, 3, 1, 2), (n, h, w, c), np.s_[:]), ((0, 1, 2, 3), (n, c, h, 2 * w), np.s_[..., ::2]),
                              ((0, 1, 2, 3), shape, np.s_[..., ::-1])):
        agrees(lambda k, x, axes=axes, seen=seen: k.adaptive_avg_pool2d(x.transpose(axes)[seen], size),
               normal(*sizes, dtype=dtype), rtol=8, atol=8)
    agrees("adaptive_avg_pool2d_grad_x", normal(*shape[:2], *size, dtype=dtype), shape[2:], rtol=8, atol=32)


def pooling(shape: tuple[int, ...], size: Any, stride: Any, padding: Any, dtype: type) -> None:
    g = pool_geometry("avg_pool2d", shape, size, stride, padding)
    x, gy = normal(*shape, dtype=dtype), normal(g.n, g.c, g.oh, g.ow, dtype=dtype, seed=1)
    agrees("avg_pool2d", x, g, rtol=8, atol=8)
    agrees("avg_pool2d_grad_x", gy, g, rtol=8, atol=32)
    agrees("max_pool2d", x, g)
    agrees("max_pool2d_grad_x", gy, cpu.max_pool2d(x, g)[1], g, rtol=8, atol=32)


def linear(sizes: tuple[int, int, int], dtype: type) -> None:
    n, i, o = sizes
    x, w, b, gy = (normal(*shape, dtype=dtype, seed=at) for at, shape in enumerate(((n, i), (o, i), (o,), (n, o))))
    for name, length, given in (("linear", i + 1, (x, w, b)), ("linear", i, (x, w, None)),
                                ("linear_grad_x", o, (gy, w)), ("linear_grad_w", n, (gy, x)),
                                ("linear_grad_b", n, (gy,))):
        agrees(name, *given, against="float64", length=length)


def sgd(count: int, momentum: float, weight_decay: float, nesterov: bool, dtype: type) -> None:
    rng = np.random.default_rng(count)
    params, grads, velocities = (
        [rng.standard_normal(SIZES[i % 8] if count < 100 else (1 + i,)).astype(dtype) for i in range(count)]
        for _ in range(3))
    there = [[cupy.asarray(a) for a in arrays] for arrays in (params, grads, velocities)]
    for _ in range(3):
        cpu.sgd(params, grads, velocities if momentum else None, 0.1, momentum, weight_decay, nesterov)
        cuda.sgd(there[0], there[1], there[2] if momentum else None, 0.1, momentum, weight_decay, nesterov)
    for mine, theirs in zip((params, grads, velocities), there, strict=True):
        for want, got in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(got.get(), want, rtol=0, atol=64 * np.finfo(dtype).eps)


SIZES = [(), (0,), (1,), (3, 5), (1025,), (64, 3, 8, 8), (100_003,), (10, 4096)]


def updates(name: str, count: int, kept: tuple[str | None, ...], numbers: tuple[Any, ...], dtype: type) -> None:
    """Three updates of so many parameters: adam, rmsprop or ema. kept: kinds of arrays, "steps" or None."""
    rng = np.random.default_rng(count)
    shapes = [SIZES[i % 8] if count < 100 else (1 + i,) for i in range(count)]
    first = {None: None, "steps": [np.array([i % 7]) for i in range(count)]}
    of = {"signed": np.positive, "positive": np.abs, "large": lambda x: np.abs(x) + 30}     # than any square of signed
    lists = [first[kind] if kind in first else [np.array(of[kind](rng.standard_normal(shape)), dtype)
                                                for shape in shapes] for kind in ("signed", "signed", *kept)]
    there = [None if arrays is None else [cupy.asarray(a) for a in arrays] for arrays in lists]
    for _ in range(3):
        getattr(cpu, name)(*lists, *numbers)
        getattr(cuda, name)(*there, *numbers)
    for mine, theirs in zip(lists, there, strict=True):
        for want, got in zip(mine or (), theirs or (), strict=True):
            np.testing.assert_allclose(got.get(), want, rtol=0 if mine is first["steps"] else 256 * np.finfo(dtype).eps,
                                       atol=64 * np.finfo(dtype).eps)


ADAM, RMSPROP = ("signed", "positive", "steps"), (("positive", None, None), ("large", "signed", "signed"))
UPDATES: list[tuple[Any, ...]] = [         # a primitive, what it is given beside parameters and gradients, its numbers
    ("adam", ADAM, (0.1, (0.9, 0.999), 1e-8, 0.0, False)), ("adam", ADAM, (0.1, (0.5, 0.9), 1e-3, 0.1, False)),
    ("adam", ADAM, (0.1, (0.9, 0.999), 1e-8, 0.1, True)), ("adam", ADAM, (0.1, (0.0, 0.0), 1e-3, 0.0, True)),
    *(("rmsprop", kept, (0.1, 0.9, 1e-3, decay, momentum))
      for kept, momentum in zip(RMSPROP, (0.0, 0.9)) for decay in (0.0, 0.1)),
    ("ema", (), (0.9,)), ("ema", (), (0.0,))]


def orthogonalized(n: int, rows: int, columns: int, dtype: type) -> None:
    """Muon's iterations."""
    x = np.random.default_rng(0).standard_normal((n, rows, columns)).astype(dtype)
    got, want = (orthogonal(k, a) for k, a in ((cuda, cupy.asarray(x)), (cpu, x)))
    np.testing.assert_allclose(got.get(), want, rtol=0, atol=1e4 * np.finfo(dtype).eps)


MATRICES = [(3, 17, 33), (1, 40, 2), (4, 1, 1)]


def mean_of_ranks(count: int, dtype: type) -> None:
    """What each rank of a world of equals is given: so many arrays, one of them of another dtype."""
    class Twice:
        size = 2

        def sum(self, flat: Any) -> None:
            flat += flat

        def mean(self, flat: Any) -> None:
            """It is its mean already."""
    rng, other = np.random.default_rng(count), np.float64 if dtype == np.float32 else np.float32
    arrays = [rng.standard_normal((i % 5, 1 + i), np.float32).astype(other if i == 1 else dtype) for i in range(count)]
    for share in (0.25, 0.5, 0.0, None):
        got = cuda.rank_mean([cupy.asarray(a) for a in arrays], share, Twice())
        for mine, a, want in zip(got, arrays, cpu.rank_mean(arrays, share, Twice()), strict=True):
            assert mine.dtype == a.dtype
            np.testing.assert_array_equal(mine.get(), want)


def clipped(count: int, dtype: type) -> None:
    """Many arrays as one vector; some of another dtype among them."""
    rng = np.random.default_rng(count)
    arrays = [np.array(rng.standard_normal(SIZES[i % 6] if count < 100 else (1 + i,)),
                       np.float64 if i % 9 == 5 else dtype) for i in range(count)]
    there = [cupy.asarray(a) for a in arrays]
    there[-1], arrays[-1] = there[-1][::-2], arrays[-1][::-2]            # a gradient with gaps
    got, want = cuda.square_sum(there), cpu.square_sum(arrays)
    assert (got.shape, got.dtype, np.shape(want)) == ((), np.float64, ())
    np.testing.assert_allclose(got.get(), want, rtol=1e-12)
    for mine, other in zip(cuda.scaled(there, cupy.asarray(np.array(0.3))), cpu.scaled(arrays, np.array(0.3)),
                           strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(mine.get(), other)


def refused_updates() -> None:
    """What does not fit is refused by name, before anything is launched."""
    p, g = cupy.ones(4, np.float32), cupy.ones(4, np.float32)
    steps = cupy.asarray(np.array([0]))
    for call, message in (
            (lambda: cuda.sgd([p], [], None, 0.1, 0.0, 0.0, False), "sgd: got 1 parameters but 0 gradients; give one"),
            (lambda: cuda.sgd([p], [cupy.ones(3, np.float32)], None, 0.1, 0.0, 0.0, False),
             r"sgd: gradient 0 has shape \(3,\) and dtype float32 on device 0 and strides .* but must have no gaps"),
            (lambda: cuda.adam([p], [g], [p], [cupy.ones(4, np.float64)], [steps], 0.1, (0.9, 0.9), 0.0, 0.0, False),
             r"adam: square 0 has shape \(4,\) and dtype float64 .* like its parameter of shape \(4,\) and dtype"),
            (lambda: cuda.adam([p], [g], [p], [g], [g], 0.1, (0.9, 0.9), 0.0, 0.0, False),
             r"adam: step 0 has shape \(4,\) and dtype float32"),
            (lambda: cuda.ema([cupy.ones((4, 4), np.float32)[:, 1]], [g], 0.5),
             r"ema: parameter 0 has shape \(4,\) .* strides \(16,\) but must have no gaps and be on the current")):
        with pytest.raises(ValueError, match=f"^{message}"):
            call()


def rates_of_updates(dtype: type) -> None:
    """A rate from a table by a position, and from an array of one, is that number."""
    for name, numbers in (("adam", ((0.9, 0.99), 1e-8, 0.1, True)), ("rmsprop", (0.9, 1e-8, 0.0, 0.9))):
        found = []
        table, position = cupy.asarray(np.array([7.0, 0.25, 9.0])), cupy.asarray(np.array([1]))
        for lr in (0.25, (table, position), cupy.asarray(np.array([0.25])), (table[:2], cupy.asarray(np.array([5])))):
            arrays = [[cupy.asarray(np.full(3, value, dtype))] for value in (1, 2, 0, 0, 0)]
            if name == "adam":
                arrays[4] = [cupy.asarray(np.array([4]))]
            getattr(cuda, name)(*arrays, lr, *numbers)
            found.append(arrays[0][0].get().tobytes())
        assert len(set(found)) == 1
        assert found[0] != np.full(3, 1, dtype).tobytes()


def sgd_changes_only_what_it_was_given() -> None:
    """A parameter in the middle of a larger buffer: what lies around it stays."""
    whole = cupy.full(3000, 7, np.float32)
    p, g = whole[1001:2006], cupy.ones(1005, np.float32)
    cuda.sgd([p], [g], None, 1.0, 0.0, 0.0, False)
    expected = np.full(3000, 7, np.float32)
    expected[1001:2006] = 6
    np.testing.assert_array_equal(whole.get(), expected)


def gather(shape: tuple[int, ...], picked: int, padding: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    images, indices = rng.integers(0, 256, shape).astype(np.uint8), rng.integers(0, shape[0], picked)
    scale, shift = rng.uniform(0.001, 0.1, shape[1]), rng.standard_normal(shape[1])
    agrees(lambda k, images: k.gather(images, indices, scale, shift, padding, np.dtype(dtype)), images, atol=32)


def key_of(seed: int) -> np.ndarray:
    return np.array([seed, 2**64 - 3], np.uint64)


def augmented_gather(shape: tuple[int, ...], augment: Augment, padding: int, dtype: type) -> None:
    """The same choices and the same bits, of any epoch; of indices from the end too."""
    rng = np.random.default_rng(0)
    images, indices = rng.integers(0, 256, shape).astype(np.uint8), rng.integers(-shape[0], shape[0], 9)
    scale, shift = rng.uniform(0.001, 0.1, shape[1]), rng.standard_normal(shape[1])
    for seed in (0, 7):
        agrees(lambda k, images, key: k.gather(images, indices, scale, shift, padding, np.dtype(dtype), augment, key),
               images, key_of(seed))


def activation(name: str, shape: tuple[int, ...], dtype: type) -> None:
    def both_ways(k: Any, x: Any, gy: Any) -> Any:
        y = getattr(k, name)(x)
        return y, getattr(k, f"{name}_grad_x")(gy, y)
    agrees(both_ways, normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1), rtol=8, atol=8)


def softmax(shape: tuple[int, ...], axis: int, dtype: type) -> None:
    """Also where all of a row lies far below the largest, or is -inf."""
    x, gy = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    far = x.copy()
    np.moveaxis(far, axis, 0)[1:-1] -= dtype(200)
    np.moveaxis(far, axis, 0)[:shape[axis] // 2] = -np.inf
    for name in ("softmax", "log_softmax"):
        def both_ways(k: Any, x: Any, gy: Any, name: str = name) -> Any:
            y = getattr(k, name)(x, axis)
            return y, getattr(k, f"{name}_grad_x")(gy, y, axis)
        for values in (x, far):
            agrees(both_ways, values, gy, rtol=4096, atol=410)


def dropout(shape: tuple[int, ...], dtype: type, p: float = 0.3, key: tuple[int, int] = (7, 2**63)) -> None:
    """The CPU's mask, and that of the gradient."""
    agrees(lambda k, x: [k.dropout(x, p, key) == 0, k.dropout_grad_x(x, p, key) == 0], np.ones(shape, dtype))
    agrees(lambda k, x: [k.dropout(x, p, key), k.dropout_grad_x(x, p, key)], np.ones(shape, dtype), rtol=2)


def draws(shape: tuple[int, ...], key: tuple[int, int]) -> None:
    """The CPU's: equal but for the last bits of normal numbers, of which one in a million differs as float32. The CPU's
    angle 2 pi v is rounded, by 3.5 units in the last place of 1, and r is 8.6 at most; a GPU's is not."""
    for dtype, rtol, atol in (("float32", 1, 0), ("float64", 8, 32)):
        agrees(lambda k, x, dtype=dtype: k.uniform(shape, dtype, key), np.ones(1))
        agrees(lambda k, x, dtype=dtype: k.normal(shape, dtype, key), np.ones(1), rtol=rtol, atol=atol)
    for low, high in ((0, 1), (-7, 5), (-2**63, 2**63 - 1), (2**62, 2**62 + 3)):
        agrees(lambda k, x, low=low, high=high: k.integers(shape, low, high, key), np.ones(1))


def normalization(g: NormGeometry, shape: tuple[int, ...], affine: bool, dtype: type) -> None:
    """All of its primitives, near 1000 too; nothing else than the running values changes."""
    w, b = (normal(*g.affine, dtype=dtype, seed=seed) if affine else None for seed in (2, 3))

    def all_of_them(k: Any, x: Any, gy: Any, w: Any, b: Any, *running: Any) -> list[Any]:
        y, mean, rstd = k.normalize(x, w, b, 1e-5, g)
        found = [y, mean, rstd, k.normalize_by(x, mean, rstd, w, b, 1e-5, g),
                 k.normalize_grad_x(gy, x, w, mean, rstd, g), *k.normalize_grad(gy, x, w, mean, rstd, g)]
        if not g.across:
            return found
        return [*found, *k.normalize_by_grad(gy, x, mean, rstd, w, 1e-5, g),
                k.normalize_by_grad_x(gy, rstd, w, 1e-5, g), *k.batch_norm(x, w, b, *running, 0.25, 1e-5, g), *running]
    for center in (0, 1000):
        x, gy = normal(*shape, dtype=dtype) + dtype(center), normal(*shape, dtype=dtype, seed=1)
        agrees(all_of_them, x, gy, w, b, np.full(g.groups, 3, dtype), np.ones(g.groups, dtype),
               atol=16 * (1 + center), scaled=True)


def normalization_with_an_activation(g: NormGeometry, shape: tuple[int, ...], act: str, dtype: type) -> None:
    """With a residual, without one, and with one that is broadcast; of images that start anywhere in memory."""
    full = normal(*shape, dtype=dtype, seed=2)
    x, gy = (normal(*shape, dtype=dtype, seed=seed) for seed in range(2))
    parameters = [normal(*g.affine, dtype=dtype, seed=seed) for seed in range(3, 7)]
    given = getattr(cpu, act)(normal(*shape, dtype=dtype, seed=7))     # y, with the same zeros for both

    def all_of_them(k: Any, x: Any, gy: Any, other: Any, y: Any, w: Any, b: Any, *running: Any) -> list[Any]:
        found = k.batch_norm_act(x, other, w, b, *running, 0.25, 1e-5, g, act)
        return [*found, *running, *k.normalize_act_grad(gy, other, y, x, w, *found[1:], g, act)]

    def elsewhere(k: Any, x: Any, *others: Any) -> list[Any]:
        return all_of_them(k, k.concatenate((x.reshape(-1)[:1], x.reshape(-1)), 0)[1:].reshape(shape), *others)
    for other, call in itertools.product((None, full, full[:1]), (all_of_them, elsewhere)):
        if x.size:
            agrees(call, x, gy, other, given, *parameters, atol=64, scaled=True)


def convolution_with_normalization(act: str, affine: bool, dtype: type) -> None:
    """Folded into its filters."""
    g = conv_geometry((3, 4, 7, 9), (5, 4, 3, 3), None, 1, 1, "direct")
    sets = batch_geometry((g.n, g.m, g.oh, g.ow), None, None, None, None, False)
    x, w, b, mean, var = (normal(*shape, dtype=dtype, seed=seed)
                          for seed, shape in enumerate(((3, 4, 7, 9), (5, 4, 3, 3), (5,), (5,), (5,))))
    given = (x, w, b if affine else None, g, mean, var * var, *((mean, var) if affine else (None, None)), 1e-5, sets)
    agrees("conv2d_norm", *given, atol=256, scaled=True)
    agrees("conv2d_norm_act", *given, act, atol=256, scaled=True)


def sum_with_an_activation(act: str, shape: tuple[int, ...], dtype: type) -> None:
    """And its gradient; of what is broadcast, too."""
    x, gy, y, full = (normal(*shape, dtype=dtype, seed=seed) for seed in range(4))
    for other in (full, full[:1]):
        agrees("add_act", x, other, act, rtol=16, atol=16)
        agrees("add_grad_act", gy, other, y, act, rtol=16, atol=16)


def next_batch(stored: tuple[int, ...], batch: int, padding: int, dtype: type,
               augment: Augment | None = None) -> None:
    """Two epochs; beyond the end the pixels are NaN."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, stored).astype(np.uint8), rng.integers(0, 10, stored[0])
    affine = tuple(rng.uniform(0.001, 0.1, stored[1])), tuple(rng.standard_normal(stored[1]))
    for epoch in range(2):
        kept = [images, labels, rng.permutation(stored[0]), np.zeros(1, np.int64)]
        there = [cupy.asarray(array) for array in kept]
        for taken, first in enumerate(range(0, stored[0], batch)):
            kept[3][0], there[3] = taken - 1, cupy.asarray(np.array([taken - 1]))
            n = min(batch, stored[0] - first)
            how = batch, n, *affine, padding, np.dtype(dtype), augment
            here = cpu.next_batch(*kept, *how, key_of(epoch))
            for got, want in zip(cuda.next_batch(*there, *how, cupy.asarray(key_of(epoch))), here, strict=True):
                np.testing.assert_array_equal(got.get(), want, strict=True)
        there[3] = cupy.asarray(np.array([taken]))
        pixels, picked = cuda.next_batch(*there, batch, 3, *affine, padding, np.dtype(dtype), augment,
                                         cupy.asarray(key_of(epoch)))
        assert np.isnan(pixels).all()
        assert (picked == -1).all()


def next_rows(shape: tuple[int, ...], batch: int, dtype: Any) -> None:
    """Any bits; beyond the end all of them are set."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]
    order = rng.permutation(shape[0])

    def taken(rows: Any, order: Any, position: Any, batch: int, n: int) -> np.ndarray:
        return np.ascontiguousarray(cpu.next_rows(rows, order, position, batch, n))
    batches = range(0, shape[0], batch)
    for at, first in enumerate(batches):
        how = rows, order, np.array([at - 1]), batch, min(batch, shape[0] - first)
        got, want = (np.frombuffer(called(of, k, move, how)[0].tobytes(), np.uint8)
                     for of, (k, move) in (("next_rows", backend("cuda")), ("next_rows", backend("cpu"))))
        np.testing.assert_array_equal(got, want)
    beyond = called("next_rows", *backend("cuda"), (rows, order, np.array([len(batches) - 1]), batch, 3))[0]
    assert set(beyond.tobytes()) <= {0xFF}


def metrics(n: int, classes: int, dtype: type) -> None:
    """Also of equal logits, and of those that are not finite."""
    rng = np.random.default_rng(0)
    labels, loss = rng.integers(0, classes, n), np.asarray(1.25, dtype)
    for change in (lambda x: x, np.round, lambda x: np.where(x > 1, np.nan, np.where(x < -1, np.inf, x))):
        x = change(rng.standard_normal((n, classes)).astype(dtype)).astype(dtype)
        found, want = cupy.asarray(np.array([1.5, 3.0, 1.0])), np.array([1.5, 3.0, 1.0])
        for value in (loss, loss, np.asarray(np.inf, dtype), loss):
            cuda.update_metrics(found, cupy.asarray(value), cupy.asarray(x), cupy.asarray(labels))
            cpu.update_metrics(want, value, x, labels)
        np.testing.assert_array_equal(found.get(), want)


def metrics_count_beyond_what_a_float_counts() -> None:
    n, found = 2**24 + 3, cupy.asarray(np.zeros(3))
    cuda.update_metrics(found, cupy.asarray(np.asarray(0, np.float32)), cupy.asarray(np.zeros((n, 1), np.float32)),
                        cupy.asarray(np.zeros(n, np.int64)))
    assert found.tolist() == [0, n, 1]


def linear_with_an_activation(act: str, sizes: tuple[int, int, int], dtype: type) -> None:
    n, i, o = sizes
    x, w, b, gy = (normal(*shape, dtype=dtype, seed=at) for at, shape in enumerate(((n, i), (o, i), (o,), (n, o))))
    y = getattr(cpu, act)(normal(n, i, dtype=dtype, seed=4))
    for name, given in (("linear_act", (x, w, b)), ("linear_and_act", (x, w, b)), ("linear_grad_act", (gy, w, y))):
        agrees(name, *given, act, against="pattern", rtol=8, atol=8)


def recurrence(kind: str, sizes: tuple[int, int, int], reverse: bool, dtype: type, held: int | None = None,
               processors: int = 132) -> None:
    """Beside float64, with gates of any size; of longer sequences the last steps too, since what is lost is multiplied
    by a gate at each step. held: registers of a thread that hold other things than weights; processors: of the GPU."""
    steps, n, size = sizes
    gates, states, _ = recurrences.SIZES[kind]
    shapes = ((steps, n, gates * size), (gates * size, size), (gates * size,), (states, n, size))
    gx, w, b, state = (normal(*shape, dtype=dtype, seed=at) for at, shape in enumerate(shapes))
    w *= dtype(size ** -0.5)
    gy = normal(states, steps, n, size, dtype=dtype, seed=4)
    with mock.patch.multiple(recurrent, OTHERS=held or recurrent.OTHERS), \
            mock.patch.object(recurrent.launch, "multiprocessors", return_value=processors):
        for bias in (b, None):
            recurrent._plan.cache_clear()
            agrees("recurrence", gx, w, bias, state, kind, reverse, against="float64", atol=64, rtol=64)
            there, kept = (each.astype(dtype) for each in cpu.recurrence(gx, w, bias, state, kind, reverse))
            agrees("recurrence_grad", gy, gx, w, bias, state, there, kept, kind, reverse, against="float64", atol=128,
                   rtol=64, scaled=True)
    recurrent._plan.cache_clear()


SORTED = {"MAX_COMPARED": 0, "MAX_FIRSTS": 0, "MAX_IN_TURN": 0, "SHARE": 4, "MAX_ALONE": 4}


def gradient_of_indexing(index: Any, shape: tuple[int, ...], dtype: type) -> None:
    """Elements that are taken twice get both gradients, in either of the ways that add them up."""
    parts = index if isinstance(index, tuple) else (index,)

    def gradient(k: Any, gy: Any, *parts: Any) -> Any:
        return k.getitem_grad_x(gy, parts if isinstance(index, tuple) else parts[0], shape, False)
    gy = normal(*np.empty(shape)[index].shape, dtype=dtype)
    for limits in ({"MAX_COMPARED": take.MAX_COMPARED}, {"MAX_COMPARED": 0}, SORTED):
        with mock.patch.multiple(take, **limits):
            agrees(gradient, gy, *parts, atol=4 * max(1, gy.size) ** 0.5)


def joined(sizes: tuple[int, ...], axis: int, dtype: Any) -> None:
    """Arrays, slices of larger ones, and turned ones, one beside the other."""
    rng, shape = np.random.default_rng(6), (3, 4, 5)
    arrays = [rng.integers(0, 2 if dtype == np.bool_ else 100, [n + 2 if a == axis else size for a, size in enumerate(
        shape)]).astype(dtype) for n in sizes]

    def views(arrays: Any) -> Any:
        for i, (x, n) in enumerate(zip(arrays, sizes, strict=True)):
            part = x[(slice(None),) * axis + (slice(1, n + 1),)]
            yield (part, part.copy(), part.T.copy().T)[i % 3]
    agrees(lambda k, *xs: k.concatenate(tuple(views(xs)), axis), *arrays)


def parts_added(indices: tuple[Any, ...], shape: tuple[int, ...], dtype: type) -> None:
    """The gradient of an array's parts, next to each other or not."""
    gys = [normal(*np.empty(shape)[index].shape, dtype=dtype, seed=i) for i, index in enumerate(indices)]
    agrees(lambda k, *gys: k.add_parts(gys, indices, shape), *gys)


def copied(shape: tuple[int, ...], axes: tuple[int, ...], source: tuple[Any, ...], target: tuple[Any, ...],
           dtype: Any) -> None:
    """A view of an array into a view of another, each as an index takes it, the source turned; and one value there.
    Nothing else is written."""
    place = np.zeros(shape)[source].transpose(axes)
    larger = tuple(3 * n + 2 for n in place.shape)
    values = np.random.default_rng(3).integers(0, 2 if dtype == np.bool_ else 100, (*shape, *larger)[:len(shape)])
    full = np.random.default_rng(4).integers(0, 2 if dtype == np.bool_ else 100, larger)

    def call(k: Any, x: Any, y: Any) -> Any:
        ends = tuple(slice(part.start, part.start + n * part.step, part.step) if part.step > 0 else
                     slice(part.start + n - 1, part.start - 1 if part.start else None, -1)
                     for part, n in zip(target, place.shape, strict=True))
        k.setitem(y, ends, x[source].transpose(axes))
        filled = y.copy()
        k.setitem(filled, ends, 1)
        return y, filled, k.reshape(x[source].transpose(axes), (-1,)), k.copy(x[source].transpose(axes))
    agrees(call, values.astype(dtype), full.astype(dtype))


def framed(shape: tuple[int, ...], axes: tuple[int, ...], widths: tuple[tuple[int, int], ...], value: float,
           dtype: Any) -> None:
    x = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    agrees(lambda k, x: k.pad(x.transpose(axes), widths, value), x)


def put_back(index: tuple[Any, ...], shape: tuple[int, ...], dtype: type) -> None:
    """The gradient of a view: of a part, and of all in another order."""
    agrees("getitem_grad_x", normal(*np.empty(shape)[index].shape, dtype=dtype), index, shape, True)


def by_pairs(shape: tuple[int, ...], count: tuple[int, ...], dtype: Any) -> None:
    """x[i], x[:, j] and x[i, j], from either end."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2 if dtype == np.bool_ else 100, shape).astype(dtype)
    i, j = (rng.integers(-n, n, count) for n in shape[:2])
    agrees(lambda k, x, i, j: [k.getitem(x, of) for of in (i, (slice(None), j), (i, j))], x, i, j)


def by_place(shape: tuple[int, ...], dtype: Any) -> None:
    """Triangles on both sides of diagonals, also beyond the matrix and of a turned one; and the 1 of each label."""
    x = np.random.default_rng(1).integers(0, 2 if dtype == np.bool_ else 100, shape).astype(dtype)
    for diagonal in (-2, 0, 1, 10**12, -10**12):
        agrees(lambda k, x, at=diagonal: [k.tril(x, at), k.triu(x, at), k.tril(x.swapaxes(-1, -2), at)], x)
    for of in (np.int64, np.int32, np.uint8):
        agrees(lambda k, labels: k.one_hot(labels, 100), x.astype(of))


def along_an_axis(shape: tuple[int, ...], taken: int, axis: int, once: bool, dtype: type) -> None:
    """Values by their numbers, from either end, and their gradients; of an index that is smaller along other axes, or
    names no place twice."""
    rng, n = np.random.default_rng(2), shape[axis]
    if once:
        index = np.take(np.argsort(rng.random(shape), axis), range(taken), axis)
    else:
        index = rng.integers(-n, n, [taken if a == axis else size - size // 3 for a, size in enumerate(shape)])
    agrees("take_along", normal(*shape, dtype=dtype), index, axis)
    gy = normal(*index.shape, dtype=dtype)
    for limits in ({"MAX_READ": take.MAX_READ}, {"MAX_READ": 0}, {"MAX_READ": 0, **SORTED}):
        with mock.patch.multiple(take, **limits):
            agrees("take_along_grad_x", gy, index, shape, axis, once, atol=4 * max(1, taken) ** 0.5)


def in_order(shape: tuple[int, ...], axis: int, dtype: type, limits: dict[str, int] | None = None) -> None:
    """All of a line, and its first few: equal values stay in their order, NaN counts as largest, and -0 is 0."""
    rng = np.random.default_rng(3)
    x = rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, *range(-9, 9)], dtype), shape)
    with mock.patch.multiple(order, **limits or {"MAX_SORTED": order.MAX_SORTED}):
        for descending in (False, True):
            for first in (None, 1, min(5, shape[axis]), shape[axis] // 2):
                agrees("argsort", x, axis, descending, first)


def of_a_mask(shape: tuple[int, ...], axes: int, dtype: type) -> None:
    """What a mask of the first axes takes, its gradient, and a number that is set where it holds."""
    mask = np.array(np.random.default_rng(4).random(shape[:axes]) < 0.4)
    x = normal(*shape, dtype=dtype)
    gy = normal(*x[mask].shape, dtype=dtype)
    agrees("getitem_grad_x", gy, mask, shape, True)
    agrees("getitem", x, mask)
    for value in (0.5, 2, np.inf):
        agrees(lambda k, x, mask, value=value: k.setitem(x, mask, value) or x, x, mask)


ONE, TWO = ("exp", "log", "sqrt", "neg", "abs", "sign", "rsqrt", "sin", "cos", "log1p", "expm1", "erf", "round",
            "floor", "ceil"), (
    "add", "sub", "mul", "div", "maximum", "minimum", "gt", "ge", "lt", "le", "eq", "ne")


def formulas(shape: tuple[int, ...], dtype: type) -> None:
    """Arithmetic, comparisons and functions as NumPy has them: of arrays in C order, in another, with gaps, and that
    begin between 16 bytes; beside numbers; of values that are not finite; gradients of powers."""
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0, 3.0], dtype)
    whole, other = (np.resize(np.concatenate([special[::step], normal(131, dtype=dtype, seed=1 + (step < 0))]),
                              (shape[0] + 1, *shape[1:])) for step in (1, -1))
    lying: tuple[Callable[[Any], Any], ...] = (
        lambda a: a[:-1], lambda a: a[1:], lambda a: a[:-1].T, lambda a: a[:-1, ..., ::2])
    rounding = 4 * np.finfo(dtype).eps

    def compare(name: str, *given: Any) -> None:
        with np.errstate(all="ignore"):
            found, want = getattr(cuda, name)(*given), getattr(cpu, name)(
                *(a.get() if isinstance(a, cupy.ndarray) else a for a in given))
        assert (found.shape, found.dtype) == (want.shape, want.dtype), name
        np.testing.assert_allclose(found.get(), want, rtol=rounding, atol=0, err_msg=f"{name} {given[1:]}")

    for at in lying:
        x, z = at(cupy.asarray(whole)), at(cupy.asarray(other))
        for name in ONE:
            compare(name, x)
        for name in TWO:
            for pair in ((x, z), (x, 2), (0.5, x), (x, z[:1])):
                compare(name, *pair)
        positive = cupy.asarray(np.abs(normal(*x.shape, dtype=dtype)) + dtype(0.25))
        for p in (2, 3, 0, -1.5, cupy.asarray(normal(*x.shape, dtype=dtype, seed=3))):
            compare("pow_grad_x", z, positive, p)
            compare("pow_grad_p", z, positive, cupy.asarray(normal(*x.shape, dtype=dtype, seed=4)))
        y = cuda.exp(x)
        assert y.strides == (x.strides if x.flags.f_contiguous else cupy.empty(x.shape, dtype).strides)


def written_in_place(dtype: type) -> None:
    """Changes in place are the ops' results, in the Tensor's memory: beside numbers, and beside what lies there too."""
    values = np.random.default_rng(5).uniform(0.5, 1.5, (70, 70)).astype(dtype)
    names = ("add", "sub", "mul", "div", "pow")
    for turned in (False, True):
        def given(turned: bool = turned) -> Any:
            array = cupy.asarray(values)
            return array.T if turned else array
        for name, other in itertools.product(names, (1.5, 2, 3, lambda x: x, lambda x: x[::-1, ::-1], lambda x: x[:1])):
            memory, update = given(), getattr(operator, f"i{'truediv' if name == 'div' else name}")
            want = getattr(ops, name)(wrap(given()), wrap(other(given())) if callable(other) else other)
            x = wrap(memory)
            assert update(x, wrap(other(memory)) if callable(other) else other) is x
            assert x._data is memory
            np.testing.assert_array_equal(memory.get(), want._data.get(), err_msg=f"{name} {turned}")
        for shape, sliced in (((4, 5, 5), False), ((4, 5, 6), False), ((4, 5, 6), True)):
            memory = cupy.asarray(values.ravel()[:math.prod(shape)].reshape(shape)).transpose(0, 2, 1)
            memory = memory[:, ::2] if sliced else memory
            want = memory.get()
            want[1:] += want[:-1].copy()
            part = wrap(memory[1:])
            part += wrap(memory[:-1])
            np.testing.assert_array_equal(memory.get(), want)
        for low, high in ((0.75, 1.25), (None, 1), (0.7, None), (1.25, 0.75)):
            for sliced in (False, True):
                whole = given()
                memory = whole[:, ::2] if sliced else whole
                memory[1, 1] = np.nan
                want = whole.get()
                within = want[:, ::2] if sliced else want
                np.clip(within, low, high, out=within)
                wrap(memory).clamp_(low, high)
                np.testing.assert_array_equal(whole.get(), want)


def gradient_of_embedding(rows: int, d: int, ids: tuple[int, ...], dtype: type) -> None:
    """Rows that are named often and never; the same bits each time, and of int32 ids."""
    named = np.random.default_rng(rows).integers(0, max(1, rows // 2), ids)
    gy = cupy.asarray(normal(*ids, d, dtype=dtype))
    got = cuda.embedding_grad_w(gy, cupy.asarray(named), rows)
    want = cpu.embedding_grad_w(gy.get().astype(float), named, rows)
    assert (got.shape, got.dtype) == (want.shape, dtype)
    np.testing.assert_allclose(got.get(), want, rtol=0, atol=np.finfo(dtype).eps * max(1, named.size))
    assert got.tobytes() == cuda.embedding_grad_w(gy, cupy.asarray(named.astype(np.int32)), rows).tobytes()


def squares(shape: tuple[int, ...], axis: tuple[int, ...], dtype: type) -> None:
    """Variances and norms, their roots and gradients, twice the same bits; of doubles whose squares leave the range."""
    degrees = max(1, int(np.prod([shape[a] for a in axis])) - 1)
    values, gys = normal(*shape, dtype=dtype) + 3, normal(*np.sum(np.zeros(shape), axis).shape, dtype=dtype, seed=1)

    def all_of_them(k: Any, x: Any, gy: Any) -> list[Any]:
        found = []
        for root in (False, True):
            y, center = k.variance(x, axis, False, root, degrees)
            found += [y, center, k.variance_grad_x(gy, x, y, center, axis, root, degrees)]
        y = k.norm(x, axis, True)
        return [*found, y, k.norm_grad_x(gy, x, y, axis)]
    for unit in (1,) if dtype is np.float32 else (1, 1e200, 1e-200):
        x = np.asarray(values * unit, dtype)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            got, again, wanted = (called(all_of_them, *backend(on), (x, gys)) for on in ("cuda", "cuda", "cpu"))
        assert [a.tobytes() for a in got] == [a.tobytes() for a in again]
        for i, (mine, want) in enumerate(zip(got, wanted, strict=True)):
            size = np.max(np.abs(want), initial=0)
            if np.isfinite(size):          # no variance of 1e200 is
                np.testing.assert_allclose(mine, want, rtol=0, atol=64 * np.finfo(dtype).eps * size, err_msg=str(i))
    for got, want in zip(all_of_them(cuda, cupy.asarray(x.T.copy()).T, cupy.asarray(gys)),
                         all_of_them(cuda, cupy.asarray(x), cupy.asarray(gys)), strict=True):
        size = np.max(np.abs(want.get()), initial=0, where=np.isfinite(want.get()))
        np.testing.assert_allclose(got.get(), want.get(), rtol=0, atol=64 * np.finfo(dtype).eps * size)
    equal = cupy.asarray(np.full(shape, 1e8 / 3, dtype))
    y, center = cuda.variance(equal, axis, False, True, degrees)
    assert not y.get().any()
    assert not cuda.variance_grad_x(cupy.asarray(gys), equal, y, center, axis, True, degrees).get().any()


def seen(x: np.ndarray) -> list[Any]:
    """An array on the device as it is, transposed in memory, with gaps in each row, and repeated along a new axis."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype) if x.ndim else np.zeros(3, x.dtype)
    places = (..., slice(1, None, 2)) if x.ndim else (1, ...)
    wide[places] = x
    return [cupy.asarray(x), cupy.asarray(x.T.copy()).T, cupy.asarray(wide)[places]]


def reductions(shape: tuple[int, ...], axis: tuple[int, ...], dtype: type) -> None:
    """Of every layout twice the same bits; with equal values, of which the first has the place, NaN and infinities."""
    values = np.round(4 * normal(*shape, dtype=dtype)) / dtype(4)
    count = max(1, int(np.prod([shape[a] for a in axis])))
    some = [values]
    for at, special in enumerate((np.nan, np.inf, -np.inf)):
        some.append(values.copy())
        some[-1].reshape(-1)[at::3] = special
    for n, x in enumerate(some):
        for name in ("sum", "mean", "max", "min", "prod"):
            if not (x.size or name == "sum"):
                continue
            a = np.exp2(x % 1 if n else x / count) if name == "prod" and np.isfinite(x).all() else x
            with np.errstate(all="ignore"):
                want = getattr(np, name)(a.astype(float), axis=axis, keepdims=True)
                size = np.max(np.abs(a), initial=0, where=np.isfinite(a)) * (count if name == "sum" else 1)
            for there in seen(a):
                got = getattr(cuda, name)(there, axis, True)
                assert got.get().tobytes() == getattr(cuda, name)(there, axis).get().tobytes()
                assert (got.dtype, got.shape) == (dtype, want.shape)
                np.testing.assert_allclose(got.get(), want, rtol=64 * np.finfo(dtype).eps * np.sqrt(count),
                                           atol=64 * np.finfo(dtype).eps * size / np.sqrt(count), err_msg=name)
        if x.size:
            for at in (*axis, None):
                for name in ("argmax", "argmin"):
                    for there in seen(x):
                        got = getattr(cuda, name)(there, at).get()
                        np.testing.assert_array_equal(got, getattr(np, name)(x, at))
                        assert got.dtype == np.int64
    for of in (values > 0, values > 9, values < 9):
        for there in seen(of):
            for name in ("max", "min") if of.size else ():
                got = getattr(cuda, name)(there, axis).get()
                np.testing.assert_array_equal(got, getattr(np, name)(of, axis=axis))
                assert got.dtype == np.bool_
    if shape and shape[0] and values.size:
        one = cupy.asarray(values[:1])
        repeated = np.broadcast_to(one, values.shape)          # as gradients are: steps of 0
        np.testing.assert_allclose(cuda.sum_to(repeated, one.shape).get(), values[:1] * shape[0],
                                   rtol=64 * np.finfo(dtype).eps)


def gradients_of_reductions(shape: tuple[int, ...], axis: tuple[int, ...], dtype: type) -> None:
    """Of largest and smallest values, with equals and NaN; and of products, with one zero or more of them in a set."""
    x = np.round(4 * normal(*shape, dtype=dtype)) / dtype(4)
    gy = normal(*np.sum(x, axis).shape, dtype=dtype, seed=1)
    with_nan = x.copy()
    with_nan.reshape(-1)[::700] = np.nan
    for values, name in itertools.product((x, with_nan) if x.size else (), ("max", "min")):
        with np.errstate(invalid="ignore"):
            agrees(lambda k, x, gy, name=name: k.max_grad_x(gy, x, getattr(k, name)(x, axis), axis, False), values, gy,
                   rtol=4)
    count = max(1, int(np.prod([shape[a] for a in axis])))
    near_one = np.exp2(normal(*shape, dtype=dtype) / dtype(count)).astype(dtype)
    for zeros in (0, 1, 2):
        factors = near_one.copy()
        np.moveaxis(factors, axis, range(len(axis))).reshape(count, -1)[:zeros] = 0      # a copy where that is no view
        if axis == (0,):
            factors[:zeros] = 0
        agrees(lambda k, x, gy: k.prod_grad_x(gy, x, axis, False), factors, gy, against="float64",
               rtol=64 if dtype == np.float32 else 64 * np.sqrt(count))


def running_sums(shape: tuple[int, ...], axis: int, dtype: type) -> None:
    """From either end, of integers too; twice the same bits."""
    x = normal(*shape, dtype=dtype)
    for reverse in (False, True):
        found = [cuda.cumsum(cupy.asarray(x), axis, reverse).get() for _ in range(2)]
        assert found[0].tobytes() == found[1].tobytes()
        # With more digits: one running sum of four million doubles is itself 600 roundings off.
        along = np.flip(x, axis) if reverse else x
        want = np.cumsum(along, axis, dtype=np.longdouble)
        want = np.flip(want, axis) if reverse else want
        assert (found[0].shape, found[0].dtype) == (shape, dtype)
        size = np.max(np.abs(want), initial=1)
        np.testing.assert_allclose(found[0], want, rtol=0, atol=(1 if dtype is np.float32 else 64) * size * np.finfo(
            dtype).eps)
        numbers = np.ones(shape, np.int64)
        np.testing.assert_array_equal(cuda.cumsum(cupy.asarray(numbers), axis, reverse).get(),
                                      cpu.cumsum(numbers, axis, reverse), strict=True)


def pair_loss(loss: str, shape: tuple[int, ...], dtype: type) -> None:
    """Each, their sum and mean, and the gradients; of values that are not finite too."""
    x, t = 2 * normal(*shape, dtype=dtype), np.abs(normal(*shape, dtype=dtype, seed=1))
    special = np.resize(np.array([np.nan, np.inf, -np.inf, 0, -1000, 0.3, 30], dtype), shape)
    for reduction, values in (("none", x), ("none", special), ("sum", x), ("mean", x)):
        gy, how = normal(*(shape if reduction == "none" else ()), dtype=dtype, seed=2), (loss, 0.7, reduction)
        with np.errstate(all="ignore"):
            agrees("pair_loss", values, t, *how, rtol=256, atol=16)
            for name in ("pair_loss_grad_x", "pair_loss_grad_target"):
                agrees(name, gy, values, t, *how, rtol=256, atol=16)


def binary_cross_entropy_of_what_is_sure(dtype: type) -> None:
    """It is not rounded away beside 1, nor beside the logit."""
    x, t = (cupy.asarray(np.array(values, dtype)) for values in ([20, -20, 3], [1, 0, 1]))
    np.testing.assert_allclose(cuda.pair_loss(x, t, "bce", 0.0, "none").get(), np.log1p(np.exp([-20.0, -20, -3])),
                               rtol=32 * np.finfo(dtype).eps)


def negative_log_likelihood(n: int, classes: int, dtype: type) -> None:
    """With all options; a probability of 0 counts where its target does, and a label out of range makes NaN of its row
    and of the sums."""
    rng = np.random.default_rng(n * classes)
    log_p, gys = -np.abs(normal(n, classes, dtype=dtype)), normal(n, dtype=dtype, seed=1)
    labels, weights = rng.integers(0, classes, n), rng.uniform(0.5, 2, classes).astype(dtype)
    for ignored, smoothing, weight, reduction in itertools.product(
            (None, 0, -100, 1 << 70), (0.0, 0.1), (weights, None), ("mean", "sum", "none")):
        given, how = labels.copy(), (reduction, smoothing, ignored)
        given[1::3] = ignored if ignored in (0, -100) else 0
        x = np.where((np.arange(classes) == given[:, None]) | bool(smoothing), log_p, dtype(-np.inf))
        gy = gys if reduction == "none" else np.asarray(1.5, dtype)

        def all_of_them(k: Any, x: Any, labels: Any, gy: Any, weight: Any, how: Any = how) -> list[Any]:
            loss, total = k.nll(x, labels, weight, *how)
            return [loss, total, k.nll_grad_x(gy, classes, labels, weight, total, *how)]
        for of in (given, given.astype(np.int32)):
            agrees(all_of_them, x, of, gy, weight, rtol=64, atol=4)
        if n > 1:
            given[-1] = classes
            loss, total, gx = called(all_of_them, *backend("cuda"), (x, given, gy, weight))
            assert np.isnan(loss[-1] if reduction == "none" else loss)
            assert np.isnan(gx[-1]).all()
            assert np.isnan(total)
            assert np.isnan(gx[:-1]).any() == (reduction == "mean")


def batched_product(x: tuple[int, ...], y: tuple[int, ...], dtype: type) -> None:
    """And its gradients; of matrices in any order of memory too."""
    gy = normal(*np.broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1], dtype=dtype, seed=2)
    a, b = normal(*x, dtype=dtype), normal(*y, dtype=dtype, seed=1)
    for name, length, given in (("matmul", x[-1], (a, b)), ("matmul_grad_x", y[-1], (gy, b)),
                                ("matmul_grad_y", x[-2], (gy, a))):
        agrees(name, *given, against="float64", length=length)
        agrees(lambda k, *of, name=name: getattr(k, name)(*(v.swapaxes(-1, -2).copy().swapaxes(-1, -2) for v in of)),
               *given, against="float64", length=length)


def product(rows: int, cols: int, depth: int, transposed: tuple[bool, bool], dtype: type, tiled: bool = False,
            batches: int = 1, summed: bool = False) -> None:
    """One of register tiles, which launchers choose for larger ones, or tiled; also split along the depth.

    batches: so many products, which are summed where that is asked for.
    """
    def call(k: Any, a: Any, b: Any, bias: Any) -> Any:
        if k is cpu:
            y = np.matmul(a, b)
            return (y.sum(0, keepdims=True) if summed else y) + bias[:, None]
        stored = [cupy.ascontiguousarray(x.swapaxes(1, 2)) if t else x for x, t in zip((a, b), transposed)]
        return gemm(*stored, cupy.zeros((1 if summed else batches, rows, cols), dtype), transpose_a=transposed[0],
                    transpose_b=transposed[1], bias=bias, tiled=tiled)
    agrees(call, normal(batches, rows, depth, dtype=dtype), normal(batches, depth, cols, dtype=dtype, seed=1),
           normal(rows, dtype=dtype, seed=2), against="float64", length=depth * (batches if summed else 1) + 1)


def product_sum(sizes: tuple[int, int, int, int], dtype: type) -> None:
    """With tiles of either kind; where the depth is split, the last launch adds."""
    n, rows, cols, depth = sizes
    agrees(lambda k, a, b, z: k.matmul_sum(a, b, z, 1.5, 2.0), normal(n, rows, depth, dtype=dtype),
           normal(n, depth, cols, dtype=dtype, seed=1), normal(n, rows, cols, dtype=dtype, seed=2), against="float64",
           length=depth + 1)


# ---------------------------------------------------------------- fused primitives
def avg_pool2d_grad_act(shape: tuple[int, ...], size: Any, stride: Any, padding: Any, act: str, dtype: type) -> None:
    """Tiled windows and others; relu at 0, and at an infinite gradient; of what lies with gaps too."""
    g = pool_geometry("avg_pool2d", shape, size, stride, padding)
    gy = normal(g.n, g.c, g.oh, g.ow, dtype=dtype)
    if act == "relu" and gy.size:
        gy.ravel()[0] = np.inf
    y = getattr(cpu, act)(normal(*shape, dtype=dtype, seed=1))
    agrees("avg_pool2d_grad_act", gy, y, g, act, against="pattern", rtol=8, atol=8)
    agrees(lambda k, *of: k.avg_pool2d_grad_act(*(a if k is cpu else cupy.asfortranarray(a) for a in of), g, act), gy,
           y, atol=64)


def conv2d_act_pool_grad_wb(x_shape: tuple[int, ...], w_shape: tuple[int, ...], padding: Any, size: int, act: str,
                            dtype: type) -> None:
    """By each algorithm that has a form of its own, and by the plain primitives."""
    g = conv_geometry(x_shape, w_shape, None, 1, padding, "gemm")
    pooling = pool_geometry("avg_pool2d", (g.n, g.m, g.oh, g.ow), size, None, 0)
    arrays = [normal(pooling.n, pooling.c, pooling.oh, pooling.ow, dtype=dtype),
              getattr(cpu, act)(normal(g.n, g.m, g.oh, g.ow, dtype=dtype, seed=1)),
              normal(*x_shape, dtype=dtype, seed=2)]
    gp, y, x = (a.astype(float) for a in arrays)
    gz = cpu.avg_pool2d_grad_act(gp, y, pooling, act)
    exact = cpu.conv2d_grad_w(gz, x, g), cpu.conv2d_grad_b(gz)
    squares = cpu.conv2d_grad_w(gz * gz, x * x, g), cpu.conv2d_grad_b(gz * gz)
    most = [product_bound("fp32", g.n * g.oh * g.ow, *each, dtype) for each in zip(squares, exact, strict=True)]
    for name, row in conv.ALGORITHMS.items():
        if name == "gemm" or (row.grad_wb and conv.refusal(name, "dw", g, np.dtype(dtype)) is None):
            def call(k: Any, *of: Any, name: str = name) -> Any:
                return k.conv2d_act_pool_grad_wb(*of, g._replace(algorithm="gemm" if k is cpu else name), act, pooling)
            agrees(call, *arrays, against="float64", most=most)


def cross_entropy_with_grad(n: int, classes: int, reduction: str, dtype: type) -> None:
    """In one launch and in several; a label out of range makes NaN of its image alone, and of the loss."""
    x, labels = 5 * normal(n, classes, dtype=dtype), np.random.default_rng(n).integers(0, classes, n)
    wrong = np.concatenate([[classes], labels[1:]])[:n]
    for smoothing, of in itertools.product((0.0, 0.1), (labels, labels.astype(np.int32), wrong)[:2 + (n > 1)]):
        agrees("cross_entropy_with_grad", x, of, reduction, smoothing, against="pattern", rtol=8, atol=8)
