"""Training steps whose images one by one are a region, and the check of a region's generated kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim, zoo
from minidl.compiler.passes import common_subexpressions, dead_code
from minidl.compiler.passes.fusion import fuse
from minidl.compiler.passes.regions import join_regions
from minidl.compiler.program import Program
from minidl.compiler.record import record
from minidl.core.device import leave_room
from minidl.ops import cpu
from minidl.ops.common.region import by_steps
from minidl.zoo.recipe import LAYERS


def recorded(net: nn.Module, n: int, shape: tuple[int, ...], classes: int = 10, dtype: str = "float32",
             smoothing: float = 0.0) -> tuple[Program, list[Any]]:
    """(a training step of a net, fused, and the arrays it is given)"""
    rng = np.random.default_rng(n)
    net = net.to(None, dtype)
    sgd = optim.SGD(net.parameters(), lr=0.1)
    x, labels = Tensor(rng.standard_normal((n, *shape)).astype(dtype)), Tensor(rng.integers(0, classes, n))

    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels, label_smoothing=smoothing)
        loss.backward()
        sgd.step()
        return loss
    program, _ = record(step, (x, labels), {})
    return fuse(dead_code(common_subexpressions(program))), [x.data, labels.data]


def small(*layers: nn.Module) -> nn.Sequential:
    minidl.manual_seed(0)
    return nn.Sequential(*layers)


def lenet(**options: Any) -> nn.Module:
    minidl.manual_seed(0)
    return zoo.build("lenet5", **options)


def krizhevsky() -> nn.Module:
    minidl.manual_seed(0)
    return zoo.build("krizhevsky2009")


NETS: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {       # layers, an image, options of `recorded`
    "lenet5": (lenet, (1, 32, 32), {}),
    "lenet5 of colours, relu": (lambda: lenet(in_channels=3, activation="relu"), (3, 32, 32), {}),
    "lenet5, sigmoid, smoothed labels": (lambda: lenet(activation="sigmoid"), (1, 32, 32), {"smoothing": 0.1}),
    "padded, odd sizes": (lambda: small(nn.Conv2d(2, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 3, (2, 4)), nn.Flatten(),
                                        nn.Linear(3 * 8 * 8, 10)), (2, 9, 11), {}),
    "asymmetric padding, no bias": (lambda: small(nn.Conv2d(1, 3, (4, 5), padding=((2, 1), (0, 3)), bias=False),
                                                  nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(3 * 9, 7)),
                                    (1, 11, 10), {"classes": 7}),
    "one by one filters": (lambda: small(nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.Conv2d(4, 2, 6), nn.Flatten(),
                                         nn.Linear(2 * 2 * 4, 10)), (3, 7, 9), {}),
    "windows that do not tile": (lambda: small(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
                                               nn.Linear(2 * 3 * 4, 10)), (1, 9, 11), {}),
    "pooling and activations by themselves": (lambda: small(
        nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.AvgPool2d(2), *(layer() for layer in (*LAYERS.values(),) * 2),
        nn.Flatten(), nn.Linear(2 * 2 * 2, 10)), (1, 10, 10), {}),
    # 15 of 16 columns, in rows without room around them: a gradient of which a part is never written
    "windows that leave a column": (lambda: small(nn.Conv2d(3, 11, 4), nn.ReLU(), nn.AvgPool2d(3), nn.Conv2d(11, 30, 5),
                                                  nn.Flatten(), nn.Linear(30, 66), nn.Sigmoid(), nn.Linear(66, 7)),
                                    (3, 19, 19), {"classes": 7}),
    "linear": (lambda: small(nn.Flatten(), nn.Linear(35, 50), nn.ReLU(), nn.Linear(50, 33)), (5, 7), {"classes": 33}),
    "linear, gelu": (lambda: small(nn.Flatten(), nn.Linear(35, 50), nn.GELU(), nn.Linear(50, 10)), (5, 7), {}),
    "krizhevsky2009's end": (krizhevsky, (3, 32, 32), {}),
}


def with_backend(program: Program, backend: Any) -> Program:
    """The program with its calls on another backend."""
    return replace(program, calls=[replace(call, backend=backend) for call in program.calls])


def outputs_are_those_of_the_steps(name: str, n: int, beside: bool = False) -> None:
    """In float32, against the steps in float64 on the CPU; the sums over more images than blocks, too; the same bits
    twice, and every number written. beside: the second time with the kernels that leave other processes room."""
    import cupy

    from minidl.ops import cuda
    from minidl.ops.cuda import launch

    net, shape, options = NETS[name]
    program, arrays = recorded(net(), n, shape, **options)
    moved = with_backend(program, cuda)
    call, = (call for call in join_regions(moved).calls if call.name == "region_step")
    region, *slots = call.arguments
    rng = np.random.default_rng(0)
    inputs = dict(zip(program.inputs, arrays, strict=True))
    given = [slot.array if slot.array is not None else inputs.get(slot, rng.standard_normal(slot.shape).astype("f"))
             for slot in slots]
    expected = by_steps(region, cpu, tuple(a.astype("d") if a.dtype == np.float32 else a for a in given))
    on_device = [cupy.asarray(a) for a in given]
    results = []
    for poison, room in ((np.nan, False), (1e30, beside)):
        launch.memory._kept.forget()
        leave_room(room)
        try:
            found = cuda.region_step(region, *on_device)
            for array in found:
                array.fill(poison)                                         # the memory that the next call gets
            del found
            results.append([array.get() for array in cuda.region_step(region, *on_device)])
        finally:
            leave_room(False)
    for one, again, exact in zip(*results, expected, strict=True):
        np.testing.assert_array_equal(one, again)
        assert one.shape == exact.shape
        np.testing.assert_allclose(one, exact, rtol=0, atol=1e-5 * max(np.abs(exact).max(), 1e-30))
