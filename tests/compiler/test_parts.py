"""Gradients of a value's parts: one concatenation in the compiled step, in place of whole arrays that are added."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops
from minidl.ops import cpu

Read = Callable[[Tensor], Tensor]


def product(*parts: Tensor) -> Tensor:
    """Each has a gradient of its own."""
    y = parts[0]
    for i, part in enumerate(parts[1:], 1):
        y = y * ops.exp(part * (0.1 * i))
    return y


READS: dict[str, tuple[Read, tuple[int, ...], int]] = {    # what is read of x, its shape, and whether sums remain
    "by numbers": (lambda x: product(x[0], x[1], x[2]), (3, 4, 5), 0),
    "in another order": (lambda x: product(x[2], x[-3], x[1]), (3, 4, 5), 0),
    "slices": (lambda x: product(*x.chunk(3, 1)), (2, 6, 5), 0),
    "slices of two lengths": (lambda x: product(x[:, :2].sum(1), x[:, 2:].sum(1)), (2, 6, 5), 0),
    "from the last axis": (lambda x: product(x[..., 0], x[..., 1:].sum(-1)), (3, 4, 5), 0),
    "of turned axes": (lambda x: product(*(x.permute(2, 0, 3, 1)[i] for i in range(3))), (4, 7, 3, 5), 0),
    "of a qkv layer": (lambda x: product(*x.reshape(4, 7, 3, 5).permute(2, 0, 3, 1)), (4, 7, 15), 0),
    "turned, and read as it is too": (lambda x: (lambda y: product(y[0], y[1]) + y.sum(0))(x.permute(1, 0, 2)),
                                      (4, 2, 5), 1),
    "turned each time": (lambda x: product(x.T[0], x.T[1], x.T[2]), (4, 3), 0),
    "turned in two ways": (lambda x: product(x.permute(1, 0, 2)[0], x.permute(1, 2, 0)[1].T), (4, 2, 3), 1),
    "one part twice": (lambda x: product(x[0], x[1], x[1]), (2, 4), 1),
    "not all": (lambda x: product(x[0], x[1]), (3, 4), 1),
    "parts that meet twice": (lambda x: product(x[:2].sum(0), x[1:].sum(0)), (3, 4), 1),
    "along two axes": (lambda x: product(x[0].sum(), x[1].sum(), x[:, 0].sum()), (2, 4), 1),
    "a step of two": (lambda x: product(x[::2], x[1::2]), (4, 3), 1),
    "backwards": (lambda x: product(x[::-1][:2], x[2:]), (4, 3), 1),
    "by an array": (lambda x: product(x[np.array([0, 1])], x[2:]), (4, 3), 1),
}


@pytest.mark.parametrize("parts", [
    lambda y: y.chunk(2, 1), lambda y: (y[:, :3], y[:, 1:]), lambda y: (y[:, :1], y[:, :1], y[:, 2:]),
    lambda y: (y[:, 1:],), lambda y: (y, y[:, 1:])])
def test_gradients_of_parts_are_in_one_order_of_memory(parts: Callable[[Tensor], list[Tensor]]) -> None:
    """Else sums of them, as for a bias, are rounded otherwise in a compiled step than in a plain one."""
    rng = np.random.default_rng(1)
    layer = nn.Conv2d(3, 4, 3, padding=1)
    x, t = (Tensor(rng.standard_normal(shape, np.float32)) for shape in ((5, 3, 8, 6), (8, 6, 5, 4)))

    def step(x: Tensor) -> Tensor:
        layer.zero_grad()
        losses = [(part.permute(2, 3, 0, 1) ** 2 * t[..., :part.shape[1]]).sum() for part in parts(layer(x))]
        sum(losses[1:], losses[0]).backward()
        return losses[0]

    def gradients() -> list[bytes]:
        return [p.grad.numpy().tobytes() for p in layer.parameters() if p.grad is not None]
    step(x)
    want, compiled = gradients(), minidl.compile(step)
    assert len(want) == 2
    for _ in range(3):
        compiled(x)
        assert gradients() == want


@pytest.mark.parametrize("name", READS)
def test_gradients_of_parts(name: str) -> None:
    read, shape, sums = READS[name]
    x = Tensor(np.random.default_rng(0).standard_normal(shape, np.float32), requires_grad=True)

    def step(x: Tensor) -> Tensor:
        x.grad = None
        loss = read(x).sum()
        loss.backward()
        return loss
    step(x)
    assert x.grad is not None
    want, compiled = x.grad.numpy().copy(), minidl.compile(step)
    for _ in range(3):
        compiled(x)
        np.testing.assert_array_equal(x.grad.numpy(), want)
    assert compiled.program is not None
    made = [call.name for call in compiled.program.calls]
    assert ("concatenate" in made, "getitem_grad_x" in made) == (not sums, bool(sums))


@pytest.mark.parametrize(("name", "together", "alone"), [
    ("slices", 1, 0), ("by numbers", 1, 0), ("along two axes", 1, 0), ("turned each time", 0, 3),
    ("by an array", 0, 2)])
def test_plain_steps_put_them_together_once(name: str, together: int, alone: int,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of whole arrays that are added: those of an array that is turned anew for each part are."""
    made = {each: Mock(side_effect=getattr(cpu, each)) for each in ("add_parts", "getitem_grad_x")}
    for each, mock in made.items():
        monkeypatch.setattr(cpu, each, mock)
    read, shape, _ = READS[name]
    read(Tensor(np.ones(shape, np.float32), requires_grad=True)).sum().backward()
    assert [mock.call_count for mock in made.values()] == [together, alone]


def test_a_gradient_that_is_changed_in_between_is_added() -> None:
    """By an op of a user's own, after the first part's gradient was spread, and before the second's was added."""
    @minidl.op
    def doubling(k, x: Tensor, other: Tensor):
        def backward(gy, need):
            k.setitem(other, ..., k.mul(other, 2.0))
            return gy, None
        return k.mul(x, 1.0), backward
    x, seen = Tensor(np.ones((2, 3), np.float32), requires_grad=True), Tensor(np.ones(3, np.float32))

    def step(x: Tensor) -> Tensor:
        x.grad, seen[...] = None, 1.0
        loss = (x[1] * seen + doubling(x[0], seen)).sum()
        loss.backward()
        return x.grad
    want, compiled = step(x).numpy().copy(), minidl.compile(step)
    for _ in range(3):
        np.testing.assert_array_equal(compiled(x).numpy(), want)
