"""Every op in a compiled step: values and gradients are those of the plain function, and it is replayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import CASES, some_gy

import minidl
from minidl import Tensor, ops

CASES_PER_OP = 4
CALLS = 4                                  # two are recorded, the others replayed; on CUDA the last as a graph


# What is given integers: (the op, of x, integers and weights; the integers)
WITH_INDICES: dict[str, tuple[Any, Any]] = {
    "cross_entropy": (lambda x, i, w: ops.cross_entropy(x, i, reduction="none"), [1, 0, 3, 2]),
    "cross_entropy of weights": (lambda x, i, w: ops.cross_entropy(x, i, w, label_smoothing=0.1), [1, 0, 3, 2]),
    "cross_entropy of ignored labels": (lambda x, i, w: ops.cross_entropy(x, i, ignore_index=-100), [1, -100, 3, -100]),
    "cross_entropy of pixels": (lambda x, i, w: ops.cross_entropy(x.reshape(1, 4, 2, 2), i.reshape(1, 2, 2), w),
                                [1, 0, 3, 2]),
    "nll_loss": (lambda x, i, w: ops.nll_loss(x, i, w, ignore_index=2, reduction="sum"), [1, 2, 3, 0]),
    "embedding": (lambda x, i, w: ops.embedding(i, x), [[1, 3, 3], [0, 3, 1]]),
    "embedding of padding": (lambda x, i, w: ops.embedding(i, x, padding_idx=3), [[1, 3, 3], [0, 3, 1]]),
    "one_hot": (lambda x, i, w: x * ops.one_hot(i, 4).float(), [1, 3, 3, 0]),
    "where": (lambda x, i, w: ops.where(i, x, 0.5), [[True, False, True, True]]),
}
IN_CASES = sorted(CASES.keys() - {"dropout", "dropout2d", "cross_entropy", "nll_loss", "embedding", "one_hot", "unique",
                                  "where"})


def compared(call_of: Any, arrays: list[np.ndarray], differentiable: bool, device: str) -> tuple[
        list[np.ndarray], list[list[np.ndarray]], int]:
    """(the result and the gradients of the plain function, those of each compiled call, how many were recorded)."""
    leaves = [Tensor(x.astype(np.float32), requires_grad=differentiable, device=device) for x in arrays]
    shape = call_of(*leaves).shape
    gy = Tensor(some_gy(shape).astype(np.float32), device=device)

    def step(*leaves: Tensor) -> list[Tensor]:
        for x in leaves:
            x.grad = None
        y = call_of(*leaves)
        if differentiable:
            (y * gy).sum().backward()
        return [y, *(x.grad for x in leaves if x.grad is not None)]

    def found(call: Any) -> list[np.ndarray]:
        return [t.numpy().copy() for t in call(*leaves)]
    compiled = minidl.compile(step)
    return found(step), [found(compiled) for _ in range(CALLS)], compiled.recordings


def check(call_of: Any, arrays: list[np.ndarray], differentiable: bool, device: str, what: object) -> None:
    """Bit for bit on the CPU; within rounding on CUDA, where other kernels may compute it."""
    plain, compiled, recorded = compared(call_of, arrays, differentiable, device)
    assert recorded == 2, what
    for each in compiled:
        for got, want in zip(each, plain, strict=True):
            most = 0 if device == "cpu" else 1e-5 * max(1.0, float(np.max(np.abs(want), initial=0)))
            np.testing.assert_allclose(got, want, rtol=0, atol=most, strict=True, err_msg=str(what))


def check_cases(op: str, device: str) -> None:
    for case in CASES[op][::-(-len(CASES[op]) // CASES_PER_OP)]:
        check(lambda *xs, case=case: case.call(*xs, **case.options), case.arrays(), case.differentiable, device, case)


def check_with_indices(name: str, device: str) -> None:
    call, indices = WITH_INDICES[name]
    given = Tensor(np.array(indices), device=device)
    weights = Tensor([1.0, 0.5, 2.0, 3.0], device=device)
    check(lambda x: call(x, given, weights), [np.random.default_rng(0).standard_normal((4, 4))], True, device, name)


@pytest.mark.parametrize("op", IN_CASES)
def test_compiled_as_plain(op: str) -> None:
    """Not dropout, which has other masks in each call; nor unique, which is refused."""
    check_cases(op, "cpu")


@pytest.mark.parametrize("name", WITH_INDICES)
def test_compiled_as_plain_with_indices(name: str) -> None:
    check_with_indices(name, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("op", IN_CASES)
def test_compiled_as_plain_on_cuda(op: str) -> None:
    check_cases(op, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_INDICES)
def test_compiled_as_plain_with_indices_on_cuda(name: str) -> None:
    check_with_indices(name, "cuda")
