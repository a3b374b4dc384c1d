"""Values of a compiled program that are stored in bfloat16: the pass, by the reference primitives, and who has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks.steps import names

import minidl
from minidl import Tensor, ops
from minidl.core import device
from minidl.ops import cpu
from minidl.ops.common.geometry import conv_geometry, pool_geometry

HALVES = ["conv2d_act_pool_half", "conv2d_act_pool_half_grad_wb"]


@pytest.fixture
def halves_on_cpu(monkeypatch: pytest.MonkeyPatch, fp32: None) -> None:
    monkeypatch.setattr(cpu, "stores_half", lambda g, pooling: pooling.kh == 2)
    device.set_precision("bf16")


def gradients(step: Any, size: int, compiled: bool) -> tuple[list[str], list[np.ndarray]]:
    """The names of the primitives that were called; what the step gives, and leaves as gradients."""
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((3, 2, 8, 8)).astype(np.float32))
    w, b = (Tensor(rng.standard_normal(shape).astype(np.float32), requires_grad=True) for shape in ((4, 2, 3, 3), (4,)))
    run = minidl.compile(step) if compiled else step
    for _ in range(4):
        w.grad = b.grad = None
        found = run(x, w, b, size)
    results = [t.numpy() for t in (*found, *(t.grad for t in (w, b) if t.grad is not None))]
    return (names(run.program) if compiled else []), results


def pooled(x: Tensor, w: Tensor, b: Tensor, size: int) -> tuple[Tensor, Tensor]:
    y = ops.sigmoid(ops.conv2d(x, w, b, padding=1))
    loss = (ops.avg_pool2d(y, size=size) ** 2).sum()
    loss.backward()
    return loss, y


def loss_alone(*given: Any) -> tuple[Tensor]:
    return pooled(*given)[:1]


def without_gradient(x: Tensor, w: Tensor, b: Tensor, size: int) -> tuple[Tensor]:
    with minidl.no_grad():
        return (ops.avg_pool2d(ops.tanh(ops.conv2d(x, w, b)), size=size),)


@pytest.mark.usefixtures("halves_on_cpu")
@pytest.mark.parametrize(("step", "size", "halves"), [(loss_alone, 2, HALVES), (without_gradient, 2, HALVES[:1]),
                                                      (loss_alone, 4, []), (pooled, 2, [])])
def test_what_only_its_gradient_reads_is_stored_in_half(step: Any, size: int, halves: list[str]) -> None:
    """Not what the step returns, nor what the backend has no kernel for."""
    called, found = gradients(step, size, compiled=True)
    assert [name for name in called if "half" in name] == halves
    for mine, its in zip(found, gradients(step, size, compiled=False)[1], strict=True):
        assert np.linalg.norm(mine - its) <= 2.0 ** -7 * np.linalg.norm(its)


def test_nothing_is_stored_in_half_in_another_precision(halves_on_cpu: None) -> None:
    device.set_precision("tf32")
    assert not [name for name in gradients(loss_alone, 2, compiled=True)[0] if "half" in name]


def test_kernels_that_were_found_to_be_the_fastest_store_in_half(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from minidl.ops.cuda.conv.fused import half

    g = conv_geometry((3, 2, 8, 8), (4, 2, 3, 3), None, 1, 1, "auto")
    pooling = pool_geometry("avg_pool2d", (3, 4, 8, 8), 2, None, 0)
    chosen = {(direction, g, np.dtype(np.float32), "bf16"): "few_channels" for direction in ("y", "dw")}
    measured: list[Any] = []
    monkeypatch.setattr(half, "choices", chosen)
    monkeypatch.setattr(half, "ahead", measured.append)
    assert half.stores_half(g, pooling)
    assert not half.stores_half(g, pool_geometry("avg_pool2d", (3, 4, 8, 8), 2, 1, 0))
    chosen["dw", g, np.dtype(np.float32), "bf16"] = "gemm"
    assert not half.stores_half(g, pooling)
    assert not measured
    del chosen["dw", g, np.dtype(np.float32), "bf16"]
    assert not half.stores_half(g, pooling)
    assert len(measured) == 1
    assert half.stores_half(g._replace(algorithm="few_channels"), pooling)
