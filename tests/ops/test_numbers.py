"""Rounding errors of long sums, bits that no number of threads changes, and what np.seterr finds in minidl's work."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops, optim
from minidl.core import rng
from minidl.ops import cpu
from minidl.ops.cpu import parallel

EPS = 2.0**-23                             # of float32


# ---------------------------------------------------------------- sums
@pytest.mark.slow
def test_the_mean_of_20_million_ones_is_one() -> None:
    assert ops.mean(Tensor(np.ones((20_000_000, 2), np.float32)), axis=0).tolist() == [1, 1]


LAYOUTS: list[Any] = [
    ((300_000,), (0,)), ((300_000, 3), (0,)), ((3, 100_000), (1,)), ((2, 100_000, 3), (1,)), ((40_000, 2, 5), (0, 2)),
    ((2, 300, 2, 400), (1, 3)), ((700, 3, 300), (0, 2)), ((129, 2), (0,)), ((128 * 128 + 1, 2), (0,)),
    ((70, 60, 50), (0, 1, 2)),
]


@pytest.mark.parametrize("order", ["C", "F", "every other"])
@pytest.mark.parametrize(("shape", "axis"), LAYOUTS, ids=str)
def test_errors_of_sums_do_not_grow_with_their_length(shape: Any, axis: Any, order: str) -> None:
    x = np.random.default_rng(0).random(shape, dtype=np.float32) + np.float32(0.1)
    x = np.asfortranarray(x) if order == "F" else x[::2] if order == "every other" else x
    exact = x.astype(np.float64)
    for name in ("sum", "mean"):
        for keepdims in (False, True):
            got, want = (getattr(k, name)(a, axis=axis, keepdims=keepdims) for k, a in ((cpu, x), (np, exact)))
            assert (got.shape, got.dtype) == (want.shape, np.float32)
            np.testing.assert_allclose(got, want, rtol=16 * EPS)


def test_sums_of_other_types_and_of_nothing_are_numpys() -> None:
    for x in (np.ones((300, 2), bool), np.full((300, 2), 2**62), np.ones((300, 0), np.float32),
              np.ones((0, 2), np.float32)):
        np.testing.assert_array_equal(cpu.sum(x, (0,)), np.sum(x, 0))


@pytest.mark.parametrize("what", ["sum_to", "linear_grad_b", "conv2d_grad_b", "conv2d_grad_b of long maps"])
def test_gradients_that_are_long_sums(what: str) -> None:
    n = 200_000
    if what == "sum_to":
        got = cpu.sum_to(np.full((n, 2, 3), 0.1, np.float32), (2, 1))
        n *= 3
    elif what == "linear_grad_b":
        got = cpu.linear_grad_b(np.full((n, 3), 0.1, np.float32))
    else:
        shape = (n, 2, 1, 3) if what == "conv2d_grad_b" else (2, 2, 301, 1000)
        got = cpu.conv2d_grad_b(np.full(shape, 0.1, np.float32))
        n = shape[0] * shape[2] * shape[3]
    np.testing.assert_allclose(got, n * float(np.float32(0.1)), rtol=16 * EPS)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_many_classes_that_lie_apart(name: str) -> None:
    x = np.zeros((200_000, 2), np.float32)
    y = getattr(ops, name)(Tensor(x), axis=0).numpy()
    np.testing.assert_allclose(y, np.full_like(x, 5e-6 if name == "softmax" else np.log(5e-6)), rtol=16 * EPS)


# ---------------------------------------------------------------- products
SHAPES: list[Any] = [
    ((300, 200), (200, 150)), ((1, 4000), (4000, 300)), ((7, 64, 700), (700, 400)), ((3, 400, 300), (3, 300, 250)),
    ((50, 30, 20), (50, 20, 40)), ((2, 1, 300, 40), (3, 40, 500)), ((2, 0, 3), (2, 3, 4)), ((4, 3), (0, 3, 2)),
]


@pytest.mark.parametrize(("x", "y"), SHAPES, ids=str)
def test_a_product_has_the_same_bits_on_any_number_of_threads(x: Any, y: Any,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    blas = parallel._openblas()
    if blas is None:
        pytest.skip("NumPy uses another BLAS than OpenBLAS here")
    generator = np.random.default_rng(0)
    given = [generator.standard_normal(shape, dtype=np.float32) for shape in (x, y)]
    before, results = blas[1](), []
    try:
        for threads in (1, 2, 3):
            blas[0](threads)
            monkeypatch.setattr(parallel, "threads", lambda threads=threads: threads)
            tensors = [Tensor(a, requires_grad=True) for a in given]
            z = tensors[0] @ tensors[1]
            z.sum().backward()
            results.append([z.numpy(), *(t.grad.numpy() for t in tensors if t.grad is not None)])
    finally:
        blas[0](before)
    for one, two, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
    np.testing.assert_allclose(results[0][0], np.matmul(*(a.astype(np.float64) for a in given)), rtol=1e-4, atol=1e-3)


# ---------------------------------------------------------------- dropout on several threads
def draws(seed: int | None, results: dict[Any, Any], key: Any, barrier: threading.Barrier) -> None:
    if seed is not None:
        minidl.manual_seed(seed)
    barrier.wait(100)                      # more is a deadlock
    results[key] = [rng.next_key() for _ in range(2000)]


def test_threads_that_are_seeded_draw_from_streams_of_their_own() -> None:
    minidl.manual_seed(3)
    results: dict[Any, Any] = {}
    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=draws, args=(seed, results, seed, barrier)) for seed in (3, 4, 5)]
    for thread in threads:
        thread.start()
    mine = [rng.next_key() for _ in range(2000)]
    for thread in threads:
        thread.join()
    for seed, keys in {**results, 3: mine, "3 on a thread": results[3]}.items():
        assert keys == [(3 if isinstance(seed, str) else seed, i) for i in range(2000)]


def test_a_thread_that_is_not_seeded_draws_from_the_process() -> None:
    minidl.manual_seed(9)
    results: dict[Any, Any] = {}
    thread = threading.Thread(target=draws, args=(None, results, 0, threading.Barrier(1)))
    thread.start()
    thread.join()
    assert results[0] == [(9, i) for i in range(2000)]
    assert rng.next_key() == (9, 2000)


def test_two_trainings_with_dropout_end_as_each_alone() -> None:
    def train(seed: int, results: dict[Any, Any], compiled: bool) -> None:
        minidl.manual_seed(seed)
        model = nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.Linear(30, 4))
        sgd = optim.SGD(model.parameters(), lr=0.1)
        x, labels = Tensor(np.ones((16, 20), np.float32)), Tensor(np.arange(16) % 4)

        def step() -> None:
            sgd.zero_grad()
            ops.cross_entropy(model(x), labels).backward()
            sgd.step()
        run = minidl.compile(step) if compiled else step
        for _ in range(30):
            run()
        results[seed] = [p.numpy().copy() for p in model.parameters()]

    for compiled in (False, True):
        alone: dict[Any, Any] = {}
        together: dict[Any, Any] = {}
        for seed in (1, 2):
            train(seed, alone, compiled)
        threads = [threading.Thread(target=train, args=(seed, together, compiled)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed in (1, 2):
            for one, other in zip(alone[seed], together[seed], strict=True):
                np.testing.assert_array_equal(one, other)


# ---------------------------------------------------------------- np.seterr
def test_a_result_too_small_for_a_number_is_no_error() -> None:
    """Denormal results, and zeros for smaller ones, of every layer, in training and in its update."""
    with np.errstate(all="raise"):
        x = Tensor(np.array([[-90.0, 0.0, 88.0, 10.0]], np.float32), requires_grad=True)
        for op in (*(getattr(ops, act) for act in ops.ACTIVATIONS), ops.softmax, ops.log_softmax):
            x.grad = None
            op(x).backward(Tensor(np.full((1, 4), 1e-38, np.float32)))
        ops.exp(Tensor([-100.0]))
        for gy in (1.0, 1e-30):
            x.grad = None
            (ops.cross_entropy(x, Tensor([2])) * gy).backward()
        tiny = Tensor(np.full((3, 2, 6, 6), 1e-30, np.float32), requires_grad=True)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4),
                              nn.Dropout(0.5))
        for p in model.parameters():
            p.data[...] = 1e-30
        y = model(tiny)
        (y * y / 3).mean().backward()
        sgd = optim.SGD(model.parameters(), lr=1e-30, momentum=0.9, weight_decay=1e-4)
        for _ in range(3):
            sgd.step()
        w = Tensor(np.full((4, 3), 1e-30, np.float32), requires_grad=True)
        (ops.max(w @ ops.reshape(w, shape=(3, 4)), axis=0) ** 2.0).sum().backward()


def test_what_is_an_error_stays_one() -> None:
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="divide"):
        Tensor([1.0]) / Tensor([0.0])
