"""Launch every CUDA kernel at least once, on small arrays: what compute-sanitizer is run over.

    compute-sanitizer --tool memcheck python benchmarks/launch_all.py          (racecheck, initcheck, synccheck too)

Every op by its cases and every fused step (tests/cases.py, tests/fused_steps.py), every convolution algorithm in every
direction and dtype, tensor cores in every precision, and sizes that ask for other kernels. It prints each kernel's name
and how often it was launched, and ends with status 1 where one in any .cu file was not, but for what is not made for
this GPU.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]                # minidl as it lies here, installed or not

import cupy  # noqa: E402
import numpy as np  # noqa: E402
from cases import CASES  # noqa: E402
from fused_steps import STEPS  # noqa: E402

import minidl  # noqa: E402
import zoo  # noqa: E402
from minidl import Tensor, device, ops, optim  # noqa: E402
from minidl.ops import ACTIVATIONS  # noqa: E402
from minidl.ops import cuda as k  # noqa: E402
from minidl.ops.cuda import conv, launch  # noqa: E402
from minidl.ops.cuda.conv.resident import wgmma  # noqa: E402
from minidl.ops.cuda.linear import gemm  # noqa: E402
from minidl.ops.geometry import conv_geometry, pool_geometry  # noqa: E402

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
LAUNCHED: Counter[str] = Counter()

# x, w, stride, padding: the last row and column of tiles not full, strides, asymmetric padding, one image, many maps
CONVOLUTIONS: list[tuple[Any, Any, Any, Any]] = [
    ((3, 2, 12, 11), (5, 2, 5, 5), 1, 0), ((2, 3, 9, 20), (17, 3, 3, 2), (2, 1), ((1, 0), (0, 1))),
    ((1, 3, 32, 32), (16, 3, 8, 8), 1, ((4, 3), (4, 3))), ((33, 1, 6, 6), (2, 1, 6, 6), 1, 0),
    ((2, 2, 5, 5), (3, 2, 1, 1), 2, 0), ((0, 2, 5, 5), (3, 2, 3, 3), 1, 1)]

# x, window, stride, padding
POOLINGS: list[tuple[Any, Any, Any, Any]] = [
    ((3, 2, 12, 8), 4, None, 0), ((2, 3, 28, 28), 2, None, 0), ((2, 3, 9, 7), 3, 2, 1),
    ((1, 1, 5, 6), (2, 3), 1, ((1, 0), (0, 2))), ((0, 2, 4, 4), 2, None, 0)]


def normal(dtype: np.dtype, *shape: int) -> Any:
    return cupy.asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype))


# ---------------------------------------------------------------- the families
def cases(dtype: np.dtype) -> None:
    """Every op, forward and backward."""
    for case in (case for found in CASES.values() for case in found[::len(found) // 8]):
        y = case.call(*(Tensor(x.astype(dtype), device="cuda", requires_grad=case.differentiable)
                        for x in case.arrays()), **case.options)
        if case.differentiable:
            y.backward(Tensor(np.ones(y.shape, dtype), device="cuda"))


def steps(dtype: np.dtype) -> None:
    """Every fused primitive: by programs, which on CUDA are replayed as graphs from their third run on."""
    for _, step, given in STEPS.values():
        tensors = [Tensor(a.astype(dtype) if a.dtype.kind == "f" else a, device="cuda") for a in given()]
        tensors[0].requires_grad = True
        compiled = minidl.compile(step)
        for _ in range(3):
            compiled(*tensors)


def convolutions(dtype: np.dtype, names: list[str]) -> None:
    for x_shape, w_shape, stride, padding in CONVOLUTIONS:
        for name in names:
            g = conv_geometry(x_shape, w_shape, None, stride, padding, name)
            x, w, b = normal(dtype, *x_shape), normal(dtype, *w_shape), normal(dtype, g.m)
            gy = normal(dtype, g.n, g.m, g.oh, g.ow)
            for direction, calls in (("y", ((x, w, b), (x, w, None))), ("dx", ((gy, w),)), ("dw", ((gy, x),))):
                if conv.refusal(name, direction, g, dtype) is None:
                    for arguments in calls:
                        getattr(conv.ALGORITHMS[name], direction)(*arguments, g)
            k.conv2d_grad_b(gy)


def splitting_convolutions(dtype: np.dtype) -> None:
    """Few results of many products each: these sums are done in parts, and with little workspace in pieces."""
    limit = device.workspace_limit()
    for x_shape, w_shape in (((64, 1, 20, 20), (2, 1, 3, 3)), ((2, 300, 3, 3), (4, 300, 3, 3))):
        for name in conv.ALGORITHMS:
            g = conv_geometry(x_shape, w_shape, None, 1, 0, name)
            x, w, gy = normal(dtype, *x_shape), normal(dtype, *w_shape), normal(dtype, g.n, g.m, g.oh, g.ow)
            device.set_workspace_limit(2**20)
            for direction, arguments in (("y", (x, w, None)), ("dx", (gy, w)), ("dw", (gy, x))):
                if conv.refusal(name, direction, g, dtype) is None:
                    getattr(conv.ALGORITHMS[name], direction)(*arguments, g)
            device.set_workspace_limit(limit)


def products(dtype: np.dtype) -> None:
    for n, i, o in ((3, 5, 2), (33, 70, 130), (2, 3000, 3), (600, 9, 600), (0, 3, 2), (4, 0, 3)):
        x, w, b, gy = normal(dtype, n, i), normal(dtype, o, i), normal(dtype, o), normal(dtype, n, o)
        k.linear(x, w, b)
        k.linear(x, w, None)
        k.linear_grad_x(gy, w)
        k.linear_grad_w(gy, x)
        k.linear_grad_b(gy)
    for r, depth, s in ((5, 7, 3), (40, 33, 130), (3, 900, 5)):
        for ta, tb, tiled in ((a, b, t) for a, b in ((0, 0), (0, 1), (1, 0)) for t in (False, True)):
            a = normal(dtype, 2, *((depth, r) if ta else (r, depth)))
            b = normal(dtype, 2, *((s, depth) if tb else (depth, s)))
            for batches in (2, 1):                             # two products, and their sum
                gemm(a, b, cupy.zeros((batches, r, s), dtype), transpose_a=bool(ta), transpose_b=bool(tb),
                     bias=normal(dtype, r), tiled=tiled)


def activations(dtype: np.dtype) -> None:
    x = normal(dtype, 3, 1001)
    for name in ACTIVATIONS:
        getattr(k, f"{name}_grad_x")(x, getattr(k, name)(x))
    k.dropout_grad_x(k.dropout(x, 0.5, (7, 1)), 0.5, (7, 1))
    for shape, axis in (((3, 10), 1), ((2, 3, 4), 1), ((5, 33), 0), ((2, 1500), 1), ((130, 1), 1), ((0, 4), 1)):
        x = normal(dtype, *shape)
        for name in ("softmax", "log_softmax"):
            getattr(k, f"{name}_grad_x")(x, getattr(k, name)(x, axis), axis)


def losses(dtype: np.dtype) -> None:
    for n, classes in ((1, 1), (5, 10), (130, 10), (3, 1500), (1100, 20), (0, 3)):
        x, labels = normal(dtype, n, classes), cupy.asarray(np.arange(n) % classes)
        for reduction in ("mean", "sum", "none"):
            loss, log_p = k.cross_entropy(x, labels, reduction, 0.1)
            k.cross_entropy_grad_x(cupy.ones_like(loss), log_p, labels, reduction, 0.1)
            k.cross_entropy_with_grad(x, labels, reduction, 0.1)
        k.update_metrics(cupy.zeros(2), cupy.ones((), dtype), x, labels)


def poolings(dtype: np.dtype) -> None:
    for shape, size, stride, padding in POOLINGS:
        g = pool_geometry("avg_pool2d", shape, size, stride, padding)
        x, gy = normal(dtype, *shape), normal(dtype, g.n, g.c, g.oh, g.ow)
        k.avg_pool2d(x, g)
        k.avg_pool2d_grad_x(gy, g)
        for act in ACTIVATIONS:
            k.avg_pool2d_grad_act(gy, x, g, act)
        k.max_pool2d_grad_x(gy, k.max_pool2d(x, g)[1], g)


def training(dtype: np.dtype) -> None:
    params, grads, velocities = ([normal(dtype, i * 37 % 1500) for i in range(70)] for _ in range(3))
    for momentum, weight_decay, nesterov in ((0.0, 0.0, False), (0.9, 0.1, False), (0.9, 0.1, True)):
        k.sgd(params, grads, velocities if momentum else None, 0.1, momentum, weight_decay, nesterov)
    images = cupy.asarray(np.arange(4 * 3 * 5 * 7).reshape(4, 3, 5, 7).astype(np.uint8))
    for padding in (0, 2):
        for indices in (np.array([3, 0, 0, 2, 1]), np.zeros(0, np.int64)):
            k.gather(images, indices, np.array([0.1, 0.2, 0.3]), np.zeros(3), padding, dtype)
        labels, order, position = cupy.arange(4), cupy.arange(4)[::-1].copy(), cupy.zeros(1, np.int64)
        for size in (3, 1, 3):                                 # all, and more than the order has
            k.next_batch(images, labels, order, position, 3, size, (0.1, 0.2, 0.3), (0.0,) * 3, padding, dtype)
            k.advance(position)
        k.sgd(params, grads, None, (cupy.ones(2), position), 0.0, 0.0, False)


def fused(dtype: np.dtype) -> None:
    """Convolutions and products with what follows them in the same launch."""
    for shape, m, kernel, size in (((3, 2, 12, 12), 5, 5, 2), ((5, 3, 11, 11), 9, 8, 4), ((5, 1, 7, 9), 3, 3, 0)):
        x, w, b = normal(dtype, *shape), normal(dtype, m, shape[1], kernel, kernel), normal(dtype, m)
        for name, row in conv.ALGORITHMS.items():
            g = conv_geometry(shape, w.shape, (m,), 1, 0, name)
            if not row.y_act or conv.refusal(name, "y", g, dtype):
                continue
            for act in ACTIVATIONS:
                k.conv2d_act(x, w, b, g, act)
                if size:
                    pooling = pool_geometry("avg_pool2d", (g.n, g.m, g.oh, g.ow), size, None, 0)
                    y, p = k.conv2d_act_pool(x, w, b, g, act, pooling)
                    if conv.refusal(name, "dw", g, dtype) is None:
                        k.conv2d_act_pool_grad_wb(p, y, x, g, act, pooling)
    for n, i, o in ((3, 5, 2), (33, 70, 130), (2, 3000, 3), (600, 9, 600)):
        for act in ACTIVATIONS:
            y = k.linear_act(normal(dtype, n, i), normal(dtype, o, i), normal(dtype, o), act)
            k.linear_grad_act(normal(dtype, n, o), normal(dtype, o, i), normal(dtype, n, i), act)
            assert y.shape == (n, o)


def fused_on_tensor_cores(dtype: np.dtype) -> None:
    """Whole images with activation, pooling and the gradients through both, where the precision allows it."""
    for shape, m, kernel, size in (((3, 2, 12, 12), 5, 5, 2), ((2, 3, 11, 11), 70, 8, 4)):
        x, w, b = normal(dtype, *shape), normal(dtype, m, shape[1], kernel, kernel), normal(dtype, m)
        for name in ("wgmma", "tensor_core_image"):
            g = conv_geometry(shape, w.shape, (m,), 1, 0, name)
            pooling = pool_geometry("avg_pool2d", (g.n, g.m, g.oh, g.ow), size, None, 0)
            if conv.refusal(name, "y", g, dtype) is None:
                y, p = k.conv2d_act_pool(x, w, b, g, "tanh", pooling)
            if conv.refusal(name, "dw", g, dtype) is None:
                k.conv2d_act_pool_grad_wb(p, y, x, g, "tanh", pooling)


def captured(dtype: np.dtype) -> None:
    """Compiled steps of both nets, replayed as graphs."""
    for model, channels in (("lenet5", 1), ("krizhevsky2009", 3)):
        net = zoo.build(model).to("cuda", dtype)
        sgd = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

        @minidl.compile
        def step(x: Tensor, labels: Tensor, net: Any = net, sgd: optim.SGD = sgd) -> Tensor:
            sgd.zero_grad()
            loss = ops.cross_entropy(net(x), labels)
            loss.backward()
            sgd.step()
            return loss
        x, labels = Tensor(normal(dtype, 3, channels, 32, 32)), Tensor(cupy.asarray(np.array([1, 0, 9])))
        for _ in range(3):
            step(x, labels)


FAMILIES = {family.__name__: family for family in (
    cases, steps, activations, losses, poolings, products, training, splitting_convolutions, fused, captured)}


# ---------------------------------------------------------------- what was launched
def kernels() -> Iterator[tuple[str, str]]:
    """(file, name) of every kernel in the sources."""
    for path in sorted(launch.FOLDER.rglob("*.cu")):
        for name in re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^{;]*?\)\s*)?(\w+)\s*\(",
                               path.read_text(encoding="utf-8")):
            yield path.relative_to(launch.FOLDER).as_posix(), name


def record() -> None:
    """Count every launch by the kernel's name."""
    start = launch.Kernel._start

    def counted(self: launch.Kernel, *arguments: Any) -> None:
        start(self, *arguments)
        LAUNCHED[self.name] += 1

    launch.Kernel._start = counted  # type: ignore[assignment, method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"only these, of {', '.join(FAMILIES)}")
    chosen = parser.parse_args().families
    device.resolve("cuda")
    record()
    for dtype in DTYPES:
        for name in chosen or FAMILIES:
            FAMILIES[name](dtype)
    if chosen:
        cupy.cuda.Device().synchronize()
        print(f"{sum(LAUNCHED.values())} launches of {len(LAUNCHED)} kernels")
        return 0
    for dtype in DTYPES:
        convolutions(dtype, list(conv.ALGORITHMS))
    for precision in device.PRECISIONS[1:]:
        device.set_precision(precision)
        products(DTYPES[0])
        fused_on_tensor_cores(DTYPES[0])
        convolutions(DTYPES[0], ["gemm", "tensor_core", "tensor_core_image", "wgmma"])
    cupy.cuda.Device().synchronize()
    missing = 0
    for file, name in kernels():
        print(f"{LAUNCHED[name]:6} {file}: {name}")
        missing += not LAUNCHED[name] and (file != wgmma.FILE or launch.compute_capability() == 90)
    print(f"{sum(LAUNCHED.values())} launches, {missing} kernels not launched")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
