"""Second and third derivatives beside PyTorch's: of every op on 20 shapes, and of random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiers import tiered

torch = pytest.importorskip("torch")
import random_second  # noqa: E402  # PyTorch first
from cases import Case, normal  # noqa: E402
from test_torch_agreement import COMPARED, assert_close, cases_of, each_case, theirs  # noqa: E402

import minidl  # noqa: E402
from minidl import Tensor  # noqa: E402

pytestmark = pytest.mark.torch
SHAPES = 20
# PyTorch 2.13's are not what differences say; test_second.py has ours.
NO_THIRD = {"batch_norm", "layer_norm", "group_norm"}
NAN = {"norm", "gelu"}                     # where PyTorch's are NaN: at a row of zeros, and far from 0


def orders(y: Any, xs: Any, weights: Any, order: int, grad: Any) -> list[Any]:
    """The gradients of each order of y, weighed and summed, by xs: None from where it does not depend on them."""
    found: list[Any] = []
    for at in range(order):
        if not getattr(y, "requires_grad", False):
            return found
        gradients = grad(y, xs, create_graph=at < order - 1, allow_unused=True)
        found += gradients
        y = sum((g * w).sum() for g, w in zip(gradients, weights, strict=True) if g is not None)
    return found


def compare(case: Case) -> None:
    rng, arrays, order = np.random.default_rng(0), case.arrays(), 2 if case.op in NO_THIRD else 3
    weights = [normal(rng, x.shape) for x in arrays]
    xs = [Tensor(x, requires_grad=True) for x in arrays]
    zs = [torch.tensor(x, requires_grad=True) for x in arrays]
    y = case.call(*xs, **case.options)
    gy = normal(rng, y.shape)
    ours = orders((y * Tensor(gy)).sum(), xs, [*map(Tensor, weights)], order, minidl.grad)
    twins = orders((theirs(case)(*zs) * torch.tensor(gy)).sum(), zs, [*map(torch.tensor, weights)], order,
                   torch.autograd.grad)
    for i in range(max(len(ours), len(twins))):
        zero = np.zeros_like(arrays[i % len(xs)])
        a, b = (zero if i >= len(side) or side[i] is None else side[i] for side in (ours, twins))
        a = a.detach().numpy() if isinstance(a, Tensor) else a
        b = b.numpy(force=True) if isinstance(b, torch.Tensor) else b
        assert_close(a, np.where(np.isnan(b) & np.isfinite(a), a, b) if case.op in NAN else b, 1e-9)


@pytest.mark.parametrize("op", tiered(COMPARED, fast=0, slow=20))
def test_op(op: str) -> None:
    cases = [case for case in cases_of(op) if op != "prod" or case.arrays()[0].size < 4000]       # refused
    each_case(cases[::max(1, len(cases) // SHAPES)], compare)


@pytest.mark.parametrize("first", tiered(range(0, 300, 20), fast=0, slow=1))
def test_random_programs(first: int) -> None:
    wrong = {number: found for number in range(first, first + 20) if (found := random_second.problem(number))}
    assert not wrong
