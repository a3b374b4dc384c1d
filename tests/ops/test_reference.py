"""Every op against its reference, in float32 and float64, in any memory layout, by any algorithm."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from cases import ALGORITHMS, CASES, LAYOUTS, PARTS, Case, each_case, some_gy

import minidl
from minidl import Tensor, gradcheck, ops

pytestmark = pytest.mark.filterwarnings("error")


def on_tape(x: np.ndarray, case: Case) -> Tensor:
    """A leaf on this very array, however it lies in memory (Tensor(..., requires_grad=True) would copy it)."""
    t = Tensor(x)
    t.requires_grad = case.differentiable
    return t


def run(case: Case, arrays: list[np.ndarray], gy: np.ndarray | None = None, **options: object) -> list[np.ndarray]:
    """The result and, for a gradient gy of it (by default fixed random numbers), the gradient of each input."""
    inputs = [on_tape(x, case) for x in arrays]
    y = case.call(*inputs, **{**case.options, **options})
    if not case.differentiable:
        return [y.numpy()]
    gy = some_gy(y.shape).astype(y.dtype) if gy is None else gy
    y.backward(Tensor(gy))
    return [y.numpy(), *[t.grad.numpy() if t.grad is not None else np.zeros_like(x)
                         for t, x in zip(inputs, arrays, strict=True)]]


@pytest.mark.parametrize("op", CASES)
def test_equals_its_reference(op: str) -> None:
    def check(case: Case) -> None:
        arrays = case.arrays()
        y, expected = run(case, arrays)[0], np.asarray(case.reference(*arrays, **case.options))
        assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    each_case(op, check)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("op", CASES)
def test_float32_stays_float32_and_agrees_with_float64(op: str, part: str) -> None:
    """Rounding may grow with the root of the number of terms summed, at most all values of the largest array."""
    def check(case: Case) -> None:
        single = [x.astype(np.float32) for x in case.arrays()]
        wanted = run(case, [x.astype(float) for x in single])
        terms = max(x.size for x in (*single, *wanted))
        for got, expected in zip(run(case, single), wanted, strict=True):
            if not case.differentiable:
                assert got.dtype == (np.float32 if expected.dtype == float else expected.dtype)
                np.testing.assert_array_equal(got, expected)
                continue
            assert got.dtype == np.float32
            scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
            bound = 8 * np.finfo(np.float32).eps * scale * terms ** 0.5
            np.testing.assert_allclose(got, expected, rtol=0, atol=bound)
    each_case(op, check, part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("op", CASES)
def test_changes_no_input_and_minds_no_layout(op: str, part: str) -> None:
    """Also on arrays of other memory layouts, and on ones that cannot be written at all. Of more cases, in one
    layout after the other."""
    turns = itertools.cycle(LAYOUTS.items())

    def check(case: Case) -> None:
        arrays = case.arrays()
        expected = run(case, arrays)
        for name, (store, view) in [next(turns)] if part == "more cases" else LAYOUTS.items():
            stored, gy = [store(x) for x in arrays], store(some_gy(expected[0].shape))
            before = [x.copy() for x in (*stored, gy)]
            for x in (*stored, gy):
                x.flags.writeable = False
            for got, want in zip(run(case, [view(x) for x in stored], view(gy)), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12, err_msg=name)
            for x, was in zip((*stored, gy), before, strict=True):
                np.testing.assert_array_equal(x, was, err_msg=name)
    each_case(op, check, part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_conv2d_algorithms_agree(algorithm: str, part: str) -> None:
    def check(case: Case) -> None:
        expected = run(case, case.arrays(), algorithm="direct")
        for got, want in zip(run(case, case.arrays(), algorithm=algorithm), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)
    each_case("conv2d", check, part)


# ---------------------------------------------------------------- corners that the docstrings define
def images(*rows: list[float]) -> Tensor:
    """One image of one channel."""
    return Tensor(np.array([[rows]], float), requires_grad=True)


def test_max_pool2d_of_equal_values_takes_the_first() -> None:
    x = images([1, 3, 3], [3, 3, 0])
    ops.max_pool2d(x, size=2, stride=1).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[[[0, 2, 0], [0, 0, 0]]]]


def test_max_pool2d_passes_nan_on() -> None:
    x = images([5, np.nan, 7, 1])
    y = ops.max_pool2d(x, size=(1, 2))
    y.backward(Tensor(np.array([[[[1.0, 10.0]]]])))
    np.testing.assert_array_equal(y.numpy(), [[[[np.nan, 7]]]])
    assert x.grad is not None
    assert x.grad.tolist() == [[[[0, 1, 10, 0]]]]


def test_max_pool2d_padding_never_wins() -> None:
    x = images([-5.0, -np.inf])
    y = ops.max_pool2d(x, size=(1, 2), stride=1, padding=(0, 1))
    y.sum().backward()
    assert y.tolist() == [[[[-5, -5, -np.inf]]]]
    assert x.grad is not None
    assert x.grad.tolist() == [[[[2, 1]]]]


def test_avg_pool2d_counts_padding_as_zeros() -> None:
    assert ops.avg_pool2d(images([6, 6]), size=(1, 3), stride=2, padding=(0, 1)).tolist() == [[[[4]]]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_overflow_at_large_values(dtype: type) -> None:
    x = Tensor(np.array([[1e4, -1e4, 0.0]], dtype), requires_grad=True)
    assert ops.softmax(x).tolist() == [[1, 0, 0]]
    assert ops.log_softmax(x).tolist() == [[0, -2e4, -1e4]]
    loss = ops.cross_entropy(x, [1])
    loss.backward()
    assert loss.item() == 2e4
    assert x.grad is not None
    assert x.grad.tolist() == [[1, -1, 0]]
    assert ops.sigmoid(x).tolist() == [[1, 0, 0.5]]
    assert ops.tanh(x).tolist() == [[1, -1, 0]]


def test_the_mean_loss_of_no_images_is_nan() -> None:
    x = Tensor(np.zeros((0, 3)), requires_grad=True)
    loss = ops.cross_entropy(x, np.zeros(0, int))
    loss.backward()
    assert np.isnan(loss.item())
    assert x.grad is not None
    assert x.grad.shape == (0, 3)


@pytest.mark.parametrize("labels", [[2, 0], np.array([2, 0], np.uint8), Tensor(np.array([2, 0]))])
def test_labels_as_list_array_and_tensor(labels: Any) -> None:
    logits = Tensor(np.log([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]]))
    np.testing.assert_allclose(ops.cross_entropy(logits, labels, reduction="none").numpy(), -np.log([0.5, 0.7]))


def test_dropout_keeps_the_mean_and_draws_anew() -> None:
    x = Tensor(np.ones(10_000))
    first, second = ops.dropout(x, 0.25), ops.dropout(x, 0.25)
    assert set(first.tolist()) == {0, 1 / 0.75}
    assert abs(first.mean().item() - 1) < 0.03
    assert 0.3 < np.mean(first.numpy() != second.numpy()) < 0.45         # 2 * 0.25 * 0.75 of them differ
    minidl.manual_seed(0)
    np.testing.assert_array_equal(ops.dropout(x, 0.25).numpy(), first.numpy())
    assert ops.dropout(x, 0.0).tolist() == x.tolist()


def test_dropout_gradient_has_the_mask_of_its_forward() -> None:
    gradcheck(lambda x: ops.dropout(x, 0.5, key=(3, 4)), [Tensor(np.ones((20, 30)), requires_grad=True)])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mask", [np.array([[True, False], [False, False]]), np.array([[0, -np.inf], [-np.inf] * 2])],
                         ids=["bool", "floating"])
def test_attention_to_nothing_is_zero_and_has_no_gradient(mask: np.ndarray, compiled: bool) -> None:
    """In float64, as a floating mask is; the gradients of the other query are as if it were alone."""
    rng = np.random.default_rng(0)
    q, k, v = (Tensor(rng.standard_normal((2, 3)), requires_grad=True) for _ in range(3))

    def step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        o = ops.scaled_dot_product_attention(q, k, v, mask)
        o.sum().backward()
        assert q.grad is not None
        assert v.grad is not None
        return o, q.grad, v.grad
    run = minidl.compile(step) if compiled else step
    for _ in range(3):
        for t in (q, k, v):
            t.grad = None
        o, gq, gv = run(q, k, v, Tensor(mask))
        np.testing.assert_allclose(o.numpy(), [v.numpy()[0], np.zeros(3)])
        assert not gq.numpy()[1].any()
        np.testing.assert_allclose(gv.numpy(), [np.ones(3), np.zeros(3)])


# ---------------------------------------------------------------- dtypes
DTYPES = ["bool", *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")), "float16", "float32",
          "float64", "longdouble"]
# Arithmetic of integers keeps their dtype and wraps (docs/from-pytorch.md); a sum of two masks is whether one is True.
WRAPS = {("neg", "u"), ("pow", "i"), ("pow", "u"), ("add", "b")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", CASES)
def test_each_dtype_is_right_or_refused(op: str) -> None:
    for case in CASES[op][:4]:
        drawn = [np.asarray(x) for x in case.arrays()]
        for dtype in map(np.dtype, DTYPES):
            whole = [np.round(np.abs(x) * 3) if dtype.kind != "f" else x for x in drawn]
            values = [x.astype(dtype) if x.dtype.kind == "f" else x for x in whole]
            try:
                y = case.call(*map(Tensor, values), **case.options)
            except (TypeError, ValueError, IndexError, OverflowError) as error:
                assert str(error).partition(":")[0].isidentifier(), f"{case} of {dtype}: {error}"   # noqa: PT017
                continue
            assert dtype.char not in "eg" or op == "einsum", f"{case} of {dtype}"      # "i->i" is no computation
            if (op, dtype.kind) in WRAPS:
                continue
            exact = [x.astype(float) if x.dtype == dtype else x for x in values]
            for found, expected in zip(*(each if isinstance(each, (tuple, list)) else [each] for each in (
                    y, case.reference(*exact, **case.options))), strict=True):
                np.testing.assert_allclose(found.numpy().astype(float), np.asarray(expected, float), rtol=1e-4,
                                           atol=1e-4, err_msg=f"{case} of {dtype}")


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "sigmoid", "softmax"])
def test_small_integers_are_computed_in_float32(name: str) -> None:
    values = np.arange(1, 9)
    for dtype in ("bool", "int8", "uint8", "int16"):
        x = Tensor(values.astype(dtype))
        try:
            found = getattr(x, name)()
        except TypeError:
            continue
        assert found.dtype == np.float32
        exact = getattr(Tensor(values.astype(dtype).astype(np.float32)), name)()
        np.testing.assert_array_equal(found.numpy(), exact.numpy())
        compiled = minidl.compile(lambda x: getattr(x, name)())
        assert [compiled(x).tolist() for _ in range(3)] == [found.tolist()] * 3
