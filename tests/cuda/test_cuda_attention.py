"""Attention in one kernel each way: on given and on random shapes, emulated and on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.attention import CASES, KERNELS, KINDS, WRITTEN_OUT, Case, drawn, is_right
from checks.compiler import skip_without_compiler
from checks.sources import counted
from emulator import Emulator, cupy
from tiers import tiered

import minidl
from minidl import Tensor, ops
from minidl.core import device
from minidl.core.tensor import wrap
from minidl.ops.cuda import launch

MANY = 200


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    skip_without_compiler()
    with Emulator(tmp_path_factory.mktemp("emulated")).running() as running:
        yield running


@pytest.mark.parametrize(("case", "kind"), tiered(itertools.product(CASES, KINDS), slow=6, several=True))
def test_emulated(case: Case, kind: str, emulated: Emulator) -> None:
    is_right(kind, case)


@pytest.mark.parametrize("seed", tiered(range(30), slow=1))
def test_random_shapes_emulated(seed: int, emulated: Emulator) -> None:
    is_right(list(KINDS)[seed % len(KINDS)], drawn(seed, 140))


@pytest.mark.parametrize("kind", tiered(WRITTEN_OUT, slow=1))
def test_written_out_emulated(kind: str, emulated: Emulator) -> None:
    for case in CASES[:4]:
        is_right(kind, case)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*KINDS, *WRITTEN_OUT])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes(kind: str, case: Case) -> None:
    is_right(kind, case)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_random_shapes(kind: str, part: int) -> None:
    for seed in range(part, MANY, 4):
        is_right(kind, drawn(seed, 400))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [Case((64, 6), 128, 128, 32, "causal"), Case((4, 8), 1024, 1024, 64, "causal"),
                                  Case((2, 3), 2049, 1000, 96), Case((300, 300), 3, 5, 8)], ids=str)
def test_large(kind: str, case: Case) -> None:
    is_right(kind, case)


# ---------------------------------------------------------------- the op, as nets call it
def heads_of(qkv: Tensor, mask: Tensor | None) -> Tensor:
    """Of (n,L,3 heads d): the results of all heads side by side."""
    n, rows, width = qkv.shape
    q, k, v = (qkv.reshape(n, rows, 3, 2, width // 6).permute(2, 0, 3, 1, 4)[i] for i in range(3))
    o = ops.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
    return o.permute(0, 2, 1, 3).reshape(n, rows, width // 3)


def agrees(moved: Any, masked: bool) -> None:
    """The result and the gradient, in tf32, beside the CPU."""
    rng = np.random.default_rng(0)
    values, gy = rng.standard_normal((2, 70, 48)).astype(np.float32), rng.standard_normal((2, 70, 16), np.float32)
    attends, results = np.tril(np.ones((70, 70), bool)), []
    for place in (np.asarray, moved):
        qkv = wrap(place(values))
        qkv.requires_grad = True
        y = heads_of(qkv, wrap(place(attends)) if masked else None)
        y.backward(wrap(place(gy)))
        assert qkv.grad is not None
        results.append((y.detach().numpy(), qkv.grad.numpy()))
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=0.01 * abs(want).max())


@pytest.fixture
def tf32() -> Iterator[None]:
    device.set_precision("tf32")
    yield
    device.set_precision("fp32")


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_parts_of_one_array_are_not_copied(masked: bool, emulated: Emulator, tf32: None,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of bool goes to the kernel too, and the heads' results side by side are a view."""
    copies: list[Any] = []
    copy = launch.misfits.copied
    monkeypatch.setattr(launch.misfits, "copied", lambda x: copies.append(x) or copy(x))
    with counted() as launches:
        agrees(cupy.asarray, masked)
    assert launches.keys() >= KERNELS
    assert copies == []


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True])
def test_in_a_step(masked: bool, tf32: None) -> None:
    agrees(cupy.asarray, masked)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_in_a_compiled_step(precision: str) -> None:
    """Replayed, with new numbers, it gives what it gives call by call."""
    device.set_precision(precision)
    try:
        rng, results = np.random.default_rng(0), []
        drawn = [rng.standard_normal((2, 70, 48)).astype(np.float32) for _ in range(4)]

        def step(qkv: Tensor) -> tuple[Tensor, Tensor]:
            loss = (heads_of(qkv, None) ** 2).sum()
            loss.backward()
            assert qkv.grad is not None
            return loss, qkv.grad
        for run in (step, minidl.compile(step)):
            for values in drawn:
                qkv = Tensor(values, device="cuda", requires_grad=True)
                results.append([t.numpy() for t in run(qkv)])
        for want, got in zip(results[:4], results[4:], strict=True):
            np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
            np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-3 * abs(want[1]).max())
    finally:
        device.set_precision("fp32")
