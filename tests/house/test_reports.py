"""Public bug reports of other projects, tried here: docs/notebook/reports.md names them. Each row is the right value,
or the words of a refusal."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.reports import ROWS

import minidl
from minidl import Tensor, data, nn, ops, optim, training

RNG = np.random.default_rng(0)


def leaf(values: Any) -> Tensor:
    return Tensor(np.array(values, float), requires_grad=True)


def gradient(f: Callable[[Tensor], Tensor], values: Any) -> list[Any]:
    x = leaf(values)
    f(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def assigned(x: np.ndarray, index: Any, values: Any) -> np.ndarray:
    t = Tensor(x.copy())
    t[index] = Tensor(np.array(values, float))
    return t.numpy()


def of_groups() -> list[Any]:
    w = leaf(np.ones((24, 1, 3, 3)))
    ops.conv2d(Tensor(np.ones((1, 24, 6, 6))), w, stride=2, padding=1, groups=24).sum().backward()
    assert w.grad is not None
    return w.grad.tolist()[0][0]


def of_dilation() -> list[Any]:
    w = leaf([[[3, 6]], [[4, 2]]])
    y = ops.conv1d(Tensor(np.array([[[7.0, 3]], [[3, 2]]])), w, None, 2, 1, 2)
    y.sum().backward()
    assert w.grad is not None
    return [y.tolist(), w.grad.tolist()]


def of_a_transposed_convolution() -> list[Any]:
    x, w = leaf(RNG.standard_normal((1, 2, 14, 14))), leaf(RNG.standard_normal((2, 2, 7, 7)))
    ops.conv_transpose2d(x, w, stride=16).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [x.grad.shape, w.grad.shape]


def added_in_part() -> list[float]:
    t, delta = Tensor(np.ones((32, 32))), np.zeros((16, 16))
    delta[8, 8] = -0.25
    with minidl.no_grad():
        t[0:16, 0:16] += Tensor(delta)
    return [t.numpy()[8, 8], t.sum().item()]


def of_a_compiled_step() -> bool:
    x, w = leaf(RNG.standard_normal((1, 2, 8, 8))), leaf(RNG.standard_normal((2, 2, 3, 3)))

    def step() -> Tensor:
        x.grad = w.grad = None
        y = ops.conv2d(x, w, padding=1)
        loss = ops.where(y > 0, y, ops.max_pool2d(y, 3, 1, 1)).sum()
        loss.backward()
        return loss
    step()
    assert x.grad is not None
    assert w.grad is not None
    plain, compiled = [x.grad.tolist(), w.grad.tolist()], minidl.compile(step)
    for _ in range(3):
        compiled()
    return plain == [x.grad.tolist(), w.grad.tolist()]


def of_batches(count: int, weights: Any = None) -> float:
    """The loss of a test set of three, less that of all at once."""
    x, y = RNG.standard_normal((3, 2), np.float32), np.array([0, 1, 0])
    net, kept = nn.Linear(2, 2), None if weights is None else Tensor(np.array(weights, np.float32))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(outputs, targets, kept)
    return training.evaluate(net, data.DataLoader((x, y), count, shuffle=False), loss=loss)[0] - loss(
        net(Tensor(x)), Tensor(y)).item()


def running() -> list[Any]:
    norm, x = nn.BatchNorm1d(2, momentum=0.25), RNG.standard_normal((8, 2))
    norm.to(dtype="float64")(Tensor(x))
    return [norm.running_mean.numpy() - 0.25 * x.mean(0), norm.running_var.numpy() - 0.75 - 0.25 * x.var(0, ddof=1)]


def in_another_order() -> bool:
    named = [(f"{at}.{name}", p) for at, net in (("a", nn.Linear(2, 3)), ("b", nn.Linear(3, 2)))
             for name, p in net.named_parameters()]
    first, second = (optim.SGD(each, 0.1, 0.9) for each in (named, named[::-1]))
    sum((p * p).sum() for _, p in named).backward()
    first.step()
    second.load_state_dict(first.state_dict())
    kept = dict(zip((name for name, _ in named), first.state_dict()["groups"][0]["velocities"], strict=True))
    return all((kept[name] == v).all() for (name, _), v in zip(
        named[::-1], second.state_dict()["groups"][0]["velocities"], strict=True))


# ---------------------------------------------------------------- what the reports of the second search need
def gradients(f: Callable[..., Tensor], *values: Any) -> list[Any]:
    inputs = [leaf(v) for v in values]
    f(*inputs).sum().backward()
    return [x.grad.tolist() for x in inputs if x.grad is not None]


def plain(values: Any) -> Tensor:
    return Tensor(np.array(values, float))


def changed(x: list[Any], change: Callable[[Tensor], object]) -> list[Any]:
    t = plain(x)
    change(t)
    return t.tolist()


def set_at(index: Any, values: Any) -> Callable[[Tensor], None]:
    return lambda t: t.__setitem__(index, values if np.ndim(values) == 0 else plain(values))


def added_to_its_transpose(t: Tensor) -> None:
    t += t.T


def of_a_small_convolution() -> list[Any]:
    x, w = np.array([[0.0, 2, 2], [0, 0, 1], [2, 0, 0]]), np.array([[1.0, 1, 0], [1, 0, 3], [0, 3, 1]])
    return ops.conv2d(plain(x[None, None])[..., 2:], plain(w[None, None])[..., 2:]).tolist()


def of_wide_padding() -> np.ndarray:
    """A convolution along the width of a permuted input, with padding of the filter's size less 1."""
    x, w = RNG.standard_normal((2, 9, 3)), RNG.standard_normal((4, 3, 1, 7))
    y = ops.conv2d(Tensor(x).permute(0, 2, 1).unsqueeze(2), Tensor(w), padding=(0, 6)).numpy()[:, :, 0]
    padded = np.pad(x.transpose(0, 2, 1), ((0, 0), (0, 0), (6, 6)))
    return y - np.stack([np.einsum("nck,mck->nm", padded[:, :, i:i + 7], w[:, :, 0]) for i in range(15)], 2)


def of_a_dilated_convolution() -> np.ndarray:
    x, w = RNG.standard_normal((2, 2, 6, 5)), RNG.standard_normal((3, 2, 3, 3))
    y = ops.conv2d(Tensor(x), Tensor(w), padding=(4, 4), dilation=(2, 2)).numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (4, 4), (4, 4)))
    return y - sum(np.einsum("nchw,mc->nmhw", padded[:, :, 2 * i:2 * i + 10, 2 * j:2 * j + 9], w[:, :, i, j])
                   for i in range(3) for j in range(3))


def of_a_strided_transposed_convolution() -> list[Any]:
    x, w = leaf([[[[-1, -0.5]]]]), leaf([[[[2]]]])
    y = ops.conv_transpose2d(x, w, stride=2)
    y.backward(plain([[[[1.5, 0, 0.7]]]]))
    assert x.grad is not None
    assert w.grad is not None
    return [y.tolist(), x.grad.tolist(), w.grad.tolist()]


def numerical(f: Callable[[Tensor], Tensor], x: np.ndarray) -> np.ndarray:
    """The gradient less that by differences."""
    found = np.array(gradient(f, x))
    for i in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[i] = 1e-4
        found[i] -= (f(Tensor(x + step)).sum() - f(Tensor(x - step)).sum()).item() / 2e-4
    return found


def of_a_compiled_loss() -> bool:
    """Gradients of a norm beside those of logsumexp, plain and compiled."""
    loc, scale, at, apart = leaf([0, 0]), leaf([1, 1]), plain([-1.5, 0]), plain([-2, 2])

    def step() -> Tensor:
        loc.grad = scale.grad = None
        x = loc + scale * at
        loss = ((x.norm() - 2) / 0.4) ** 2 * 0.5 - ((((x[:1] + apart) / 0.6) ** 2) * -0.5).logsumexp(0)
        loss.backward()
        return loss
    step()
    assert loc.grad is not None
    assert scale.grad is not None
    first, compiled = [loc.grad.tolist(), scale.grad.tolist()], minidl.compile(step)
    for _ in range(3):
        compiled()
    return bool(np.isfinite(first).all()) and first == [loc.grad.tolist(), scale.grad.tolist()]


def of_a_replaced_attribute() -> list[float]:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = plain([0])

        def forward(self, x: Tensor) -> Tensor:
            return self.cache + x
    net = Cached()
    step = minidl.compile(lambda x: net(x))
    found = [step(plain([1])).item() for _ in range(3)]
    net.cache = plain([5])
    return [*found, step(plain([1])).item()]


def of_a_replaced_function() -> list[float]:
    total: Callable[..., Tensor] = lambda x, y: x + y            # noqa: E731  # it is replaced below
    step = minidl.compile(lambda x, y: total(x, y))
    found = [step(plain([1]), plain([2])).item() for _ in range(3)]
    total = lambda x, y: x * 7                                   # noqa: E731
    return [*found, step(plain([1]), plain([2])).item()]


def of_an_identity() -> list[float]:
    """Which of two equal lists it is decides."""
    one, other = [1], [1]
    now = [one]
    step = minidl.compile(lambda x: x * 2 if now[0] is one else x * 3)
    found = [step(plain([1])).item() for _ in range(3)]
    now[0] = other
    return [*found, step(plain([1])).item()]


def stepped(make: Callable[..., Any], slope: float, steps: int = 1) -> float:
    w = leaf([1.0])
    optimizer = make([w], 0.1, weight_decay=0.5)
    for _ in range(steps):
        w.grad = plain([slope])
        optimizer.step()
    return w.item()


def clipped(slopes: list[float], limit: float) -> list[float]:
    w = Tensor(np.zeros(len(slopes), np.float32), requires_grad=True)
    w.grad = Tensor(np.array(slopes, np.float32))
    norm = optim.clip_grad_norm([w], limit)
    return [norm.item(), w.grad.tolist()[0]]


def of_a_shared_weight() -> float:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    (first(Tensor([[1.0, 1.0]])) + second(Tensor([[1.0, 1.0]]))).sum().backward()
    return optim.clip_grad_norm([*first.parameters(), *second.parameters()], 1e9).item()


def shares(alpha: float) -> list[float]:
    return [data.mixup(np.array([[0.0], [1.0]]), [0, 1], 2, alpha, key=(0, i))[0][0, 0] for i in range(100)]


def unchanged_by_mixup() -> list[Any]:
    x, y = np.eye(4), np.arange(4)
    data.mixup(x, y, 4, 1.0, key=(0, 1))
    return [x, y]


def statistics(*values: int) -> list[Any]:
    images = np.array(values, np.uint8).repeat(2500).reshape(-1, 1, 50, 50)
    return [v.tolist() for v in data.channel_statistics(data.Dataset("d", "train", images, np.arange(len(values))))]


def of_a_far_column() -> float:
    rows = (151 + 0.001 * RNG.standard_normal((1000, 1))).astype(np.float32)
    how = data.Table("t", "train", rows, np.arange(1000) % 2).preprocessing()
    return how["std"][0] / rows.astype(float).std()


def left_out(epochs: int) -> int:
    """How many different items the epochs leave out, of 9 in batches of 2."""
    loader = data.DataLoader(np.arange(9), 2, drop_last=True)
    return len({i for _ in range(epochs) for i in {*range(9)} - {*np.concatenate(list(loader)).tolist()}})


def of_no_images() -> list[Any]:
    norm = nn.BatchNorm2d(2)
    y = norm(Tensor(np.zeros((0, 2, 3, 3), np.float32)))
    return [y.shape, norm.running_mean.tolist(), norm.running_var.tolist()]


def of_one_gradient_for_two() -> list[float]:
    """One of two gradients that are the same numbers is changed in place."""
    a, b = leaf([1]), leaf([1])
    (a + b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    a.grad += 1
    return [a.grad.item(), b.grad.item()]


def run_compiled(step: Callable[[Any], Callable[[Tensor], Tensor]], kept: Any) -> None:
    compiled = minidl.compile(step(kept))
    for _ in range(3):
        compiled(plain([1]))


def counted(kept: dict[str, int]) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        class Helper:
            def touch(self) -> None:
                kept["calls"] += 1
        Helper().touch()
        return x * 2
    return step


def appended(kept: list[int]) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        kept.append(1)
        return x * 2
    return step


def held(kept: list[Any]) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        for _ in range(2):
            kept[0] = x
            x = kept[0] + 1
        return x
    return step


class Scaled(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.scale = leaf(value)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


NAN = math.nan
RIGHT: dict[str, tuple[Callable[[], Any], Any]] = {
    "tracel-ai/burn#5141": (lambda: gradient(lambda x: x.prod(), [2, 0, 3, 4]), [0, 24, 0, 0]),
    "pytorch/pytorch#31515": (lambda: gradient(lambda x: x.cumsum(1), np.zeros((2, 0))), [[], []]),
    "JuliaLang/julia#11080": (lambda: Tensor(np.full(1000, 0.9)).cumsum(0).numpy()[-1], 900),
    "openvinotoolkit/openvino#33626": (lambda: Tensor(np.full(58, NAN)).argmax().item(), 0),
    "ml-explore/mlx#4274": (lambda: [f.item() for a in ([3, NAN, 1, 5], [1, 2, NAN], [math.inf, NAN, -math.inf])
                                     for f in (Tensor(np.array(a)).argmax(), Tensor(np.array(a)).argmin())],
                            [1, 1, 2, 2, 1, 1]),
    "tinygrad/tinygrad#2194": (lambda: ops.pad(Tensor([5.0, 6.0]), (0, 1), value=2.0)[2].item(), 2),
    "tinygrad/tinygrad#2177": (lambda: ops.pad(Tensor([5.0, 6.0]), (1, 0))[0].item(), 0),
    "ml-explore/mlx#4444": (lambda: [
        gradient(lambda x: (x[0::2] * Tensor(np.array([[1.0, 2, 3]]))) + x[1::2] * 100, np.zeros((2, 3))),
        gradient(lambda x: x[::-3], np.zeros(3))], [[[1, 2, 3], [100, 100, 100]], [0, 0, 1]]),
    "jax-ml/jax#4599": (lambda: gradient(lambda x: x[2:2:2], np.ones(4)), [0, 0, 0, 0]),
    "ml-explore/mlx#3477": (added_in_part, [0.75, 1023.75]),
    "ml-explore/mlx#1050": (lambda: assigned(np.zeros((3, 4, 4, 4)), (0, slice(0, 4), 3, slice(0, 4)),
                                             np.ones((4, 4))).sum(), 16),
    "ml-explore/mlx#176": (lambda: assigned(np.zeros((4, 4)), (slice(1, -1), slice(1, -1)), [[1, 2], [3, 4]]).tolist(),
                           [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0], [0, 0, 0, 0]]),
    "ml-explore/mlx#1826": (of_a_transposed_convolution, [(1, 2, 14, 14), (2, 2, 7, 7)]),
    "pytorch/pytorch#50042, #51430": (of_groups, [[4, 6, 6], [6, 9, 9], [6, 9, 9]]),
    "pytorch/pytorch#15501, #13008, #16012": (of_dilation, [[[[18], [6]], [[12], [4]]], [[[0, 5]], [[0, 5]]]]),
    "pytorch/pytorch#188344": (lambda: gradient(lambda x: ops.avg_pool2d(x, 2, 1, 1), np.zeros((1, 1, 4, 4))),
                               np.ones((1, 1, 4, 4)).tolist()),
    "FluxML/NNlib.jl#133": (lambda: gradient(lambda x: ops.max_pool2d(x, 2, 2, 1), np.arange(9.0).reshape(1, 1, 3, 3)),
                            [[[[1, 0, 1], [0, 0, 0], [1, 0, 1]]]]),
    "pytorch/pytorch#185509": (of_a_compiled_step, True),
    "keras-team/keras#19740": (lambda: ops.cross_entropy(Tensor([[1.0, 2.0], [3.0, 1.0]]), [0, 1],
                                                         Tensor([0.0, 1.0])).item(), math.log1p(math.exp(2))),
    "keras-team/keras#13641, #10305, #5549": (lambda: [of_batches(n, [0.7, 0.1]) for n in (1, 2, 3)], [0, 0, 0]),
    "keras-team/keras#19363": (lambda: [of_batches(n) for n in (1, 2, 3)], [0, 0, 0]),
    "scikit-learn/scikit-learn#21568": (lambda: training.top_k_accuracy(2)(
        Tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.2]]), Tensor(np.array([2, 2]))).item(), 0.5),
    "paiml/aprender#2166, pytorch/pytorch#15298, #19916, #3122": (running, [0, 0]),
    "facebookresearch/fairscale#380": (in_another_order, True),
    "apache/mxnet#18102": (lambda: gradients(lambda a, b: ops.einsum("bnij,bnjc->bnic", a, b) * plain([[1], [2]]),
                                             np.ones((1, 1, 2, 2)), [[[[1], [3]]]]),
                           [[[[[1, 3], [2, 6]]]], [[[[3], [3]]]]]),
    "pytorch/pytorch#1787": (lambda: gradients(lambda a, b: a * b, [[1], [2]], [[3, 4, 5]]),
                             [[[12], [12]], [[3, 3, 3]]]),
    "deeplearning4j/nd4j#2424": (lambda: gradients(lambda a, b: (a + b) ** 2, np.ones((3, 2)), [[1, 1]])[1],
                                 [[12, 12]]),
    "tracel-ai/burn#181": (lambda: gradients(lambda w, b: (plain(np.ones((2, 3))) @ w + b - plain([[1], [1]])) ** 2,
                                             np.ones((3, 1)), np.ones((1, 3))), [[[36]] * 3, [[12] * 3]]),
    "raskr/rust-autograd#38": (lambda: gradient(lambda v: v * plain([1, 1]), 3), 2),
    "pytorch/pytorch#107007": (lambda: gradient(lambda x: x - x.mean(), [1, 2, 3, 4]), [0] * 4),
    "facebookresearch/shumai#74": (lambda: gradient(lambda x: x.mean(0, keepdims=True) @ plain([[10], [20]]),
                                                    np.ones((2, 2))), [[5, 10]] * 2),
    "aesara-devs/aesara#1089": (lambda: [f(plain(np.ones(s)), plain(np.ones((2, 3)))).sum().item() for f in (
        minidl.compile(lambda x, y: x + y),) for s in ((1, 3), (2, 3), (1, 3), (2, 1))], [12] * 4),
    "numpy/numpy#1683": (lambda: changed([[1, 2], [3, 4]], added_to_its_transpose), [[2, 5], [5, 8]]),
    "numpy/numpy#15597": (lambda: plain([1, 2, 3, 4])[::-1].cumsum(0)[::-1].tolist(), [10, 9, 7, 4]),
    "pytorch/pytorch#18948": (of_a_small_convolution, [[[[3]]]]),
    "modular/modular#6461, #6712": (of_wide_padding, 0),
    "dotnet/TorchSharp#496": (lambda: [ops.conv2d(plain(np.ones((1, 1, 5, 8))), plain(np.ones((1, 1, 1, 7))),
                                                  padding=(0, 3)).shape], [(1, 1, 5, 8)]),
    "pytorch/pytorch#53178": (of_a_dilated_convolution, 0),
    "pytorch/pytorch#63314": (of_a_strided_transposed_convolution,
                              [[[[[-2, 0, -1]]]], [[[[3, 1.4]]]], [[[[-1.85]]]]]),
    "mila-iqia/myia#338": (lambda: ops.conv_transpose2d(
        plain(np.ones((1, 1, 2, 2))), plain(np.ones((1, 1, 3, 3))), stride=2, padding=1,
        output_padding=(1, 0)).tolist(), [[[[1, 2, 1], [2, 4, 2], [1, 2, 1], [1, 2, 1]]]]),
    "flagos-ai/FlagGems#1576": (lambda: numerical(lambda x: ops.conv2d(
        x, plain(np.arange(18.0).reshape(1, 2, 3, 3) / 9), stride=(3, 2), padding=1) ** 2,
        RNG.standard_normal((1, 2, 8, 7))), 0),
    "pytorch/pytorch#158413": (lambda: changed([[1, 2], [3, 4]], set_at((np.array([True, False]), None), 0)),
                               [[0, 0], [3, 4]]),
    "jax-ml/jax#9061": (lambda: plain(np.arange(6).reshape(1, 2, 3))[..., np.array([True, False, True])].tolist(),
                        [[[0, 2], [3, 5]]]),
    "pymc-devs/pytensor#2402": (lambda: changed([[0, 0, 0]] * 2, set_at((slice(None), [0, 2]), [[1, 2], [3, 4]])),
                                [[1, 0, 2], [3, 0, 4]]),
    "QData/TextAttack#68": (lambda: [plain([1, 2, 3])[np.array([1, 0, 1])].tolist(),
                                     plain([1, 2, 3])[np.array([1, 0, 1]) == 1].tolist()], [[2, 1, 2], [1, 3]]),
    "jax-ml/jax#39025": (lambda: gradient(lambda x: x[:, np.array([1, 0, 1])] * plain([[1], [2], [3]]),
                                          np.zeros((2, 2, 1))), [[[2], [4]]] * 2),
    "PaddlePaddle/Paddle#74077": (lambda: np.sum(gradient(lambda x: ops.adaptive_avg_pool2d(x, (3, 2)),
                                                          np.zeros((1, 1, 5, 5)))), 6),
    "riccardomusmeci/mlx-image#16": (lambda: ops.adaptive_avg_pool2d(
        plain(np.arange(16).reshape(1, 1, 4, 4)), 2).tolist(), [[[[2.5, 4.5], [10.5, 12.5]]]]),
    "pytorch/pytorch#85726": (lambda: ops.adaptive_avg_pool2d(plain([[[[0, 1], [2, 3]]]]), 3).tolist(),
                              [[[[0, 0.5, 1], [1, 1.5, 2], [2, 2.5, 3]]]]),
    "ml-explore/mlx#628": (lambda: gradients(lambda a, b: (a - b) ** b, [1], [1]), [[1], [-1]]),
    "ml-explore/mlx#504": (lambda: gradients(lambda a, b: (a - b) ** 2, [0], [0]), [[0], [0]]),
    "jax-ml/jax#764": (lambda: gradient(lambda x: x.tanh(), [20, -800, 0, 1e-9]), [0, 0, 1, 1]),
    "ml-explore/mlx#3668": (lambda: gradient(lambda x: ops.maximum(x.norm(), plain(1e-10)), [0, 0]), [0, 0]),
    "ml-explore/mlx#3627": (lambda: [gradient(lambda x: ops.where(x > 9, NAN, x * 2), [1, 2]),
                                     gradient(lambda x: ops.where(x < 9, x * 2, math.inf), [1, 2])], [[2, 2], [2, 2]]),
    "jax-ml/jax#939": (of_a_compiled_loss, True),
    "ml-explore/mlx#1428": (lambda: gradient(lambda x: x.topk(2)[0], [[1, 2, 6, 4, 5], [9, 5, 6, 7, 8]]),
                            [[0, 0, 1, 0, 1], [1, 0, 0, 0, 1]]),
    "ooples/AiDotNet.Tensors#894": (lambda: gradient(lambda x: x.gather(0, Tensor(np.array([[1, 1], [1, 0]]))),
                                                     np.zeros((3, 2))), [[0, 1], [2, 1], [0, 0]]),
    "pytorch/pytorch#188843": (lambda: gradient(lambda x: x.gather(1, Tensor(np.array([[2]]))), np.zeros((2, 3))),
                               [[0, 0, 1], [0, 0, 0]]),
    "pytorch/pytorch#94336": (lambda: gradient(lambda x: x.gather(1, Tensor(np.zeros((2, 0), int))), np.zeros((2, 3))),
                              np.zeros((2, 3)).tolist()),
    "pytorch/pytorch#54843": (lambda: [
        ops.cross_entropy(Tensor([[0.3, 0.7], [0.6, 0.4], [0.6, 0.4]]), [1, 0, 0], Tensor([1.0, 3.0])).item(),
        ops.binary_cross_entropy_with_logits(Tensor([0.4, -0.2, -0.2]), Tensor([1.0, 0.0, 0.0]),
                                             pos_weight=Tensor([3.0])).item()],
        [(3 * math.log1p(math.exp(-0.4)) + 2 * math.log1p(math.exp(-0.2))) / 5,
         (3 * math.log1p(math.exp(-0.4)) + 2 * math.log1p(math.exp(-0.2))) / 3]),
    "pytorch/pytorch#115774": (of_a_replaced_attribute, [1, 1, 1, 6]),
    "pytorch/pytorch#93782": (of_a_replaced_function, [3, 3, 3, 7]),
    "pytorch/pytorch#196173": (of_an_identity, [2, 2, 2, 3]),
    "flagos-ai/FlagGems#4989": (lambda: [stepped(optim.Adam, 0), stepped(optim.AdamW, 0)], [0.9, 0.95]),
    "aiqm/torchani#261": (lambda: stepped(optim.AdamW, 1, 2), (0.95 - 0.1) * 0.95 - 0.1),
    "deepmodeling/deepmd-kit#5519": (lambda: [value / unit for value, unit in zip(
        clipped([1e19] * 128, 2), (1e19, 1), strict=True)], [128 ** 0.5, 2 / 128 ** 0.5]),
    "deepspeedai/DeepSpeed#7171": (lambda: clipped([1, math.inf], 1), [math.inf, 0]),
    "NVIDIA/Megatron-LM#7227": (of_a_shared_weight, 20 ** 0.5),
    "xudonmao/VMT#1": (lambda: np.subtract(*data.mixup(np.eye(6), np.arange(6), 6, 1.0, key=(3, 1))), 0),
    "hongyi-zhang/Fixup#5": (lambda: sum(0.01 < share < 0.99 for share in shares(0.2)) > 20, True),
    "Megvii-BaseDetection/YOLOX#275": (unchanged_by_mixup, [np.eye(4), np.arange(4)]),
    "huggingface/lerobot#3682": (lambda: statistics(100, 200), [[150 / 255], [50 / 255]]),
    "pytorch/vision#3657": (lambda: statistics(0, 255), [[0.5], [0.5]]),
    "cellarium-ai/cellarium-ml#113": (of_a_far_column, 1),
    "NVIDIA-Merlin/models#617": (lambda: [training.top_k_accuracy(2)(Tensor(np.full((5, 5), value)), Tensor(np.arange(
        5))).item() <= 0.4 for value in (7.0, NAN)], [True, True]),
    "deepseek-ai/DeepSpec#32": (lambda: max(optim.warmup(5, optim.cosine(10))(i) for i in range(20)), 1),
    "Tencent-Hunyuan/UniRL#223": (lambda: [make(4)(i) for make in (optim.cosine, optim.linear) for i in (4, 5, 8)],
                                  [0] * 6),
    "lightly-ai/lightly#1842": (lambda: [optim.warmup(4, optim.cosine(4))(i) for i in (3, 4, 8, 9)], [1, 1, 0, 0]),
    "ildoonet/pytorch-gradual-warmup-lr#11": (lambda: [optim.warmup(5, optim.step(1))(i) for i in (0, 4, 5, 6, 7)],
                                              [0.2, 1, 1, 0.1, 0.01]),
    "NVlabs/VILA#123": (lambda: left_out(12) > 3, True),
    "modelscope/ms-swift#9907": (lambda: sorted(i for part in range(3) for batch in data.DataLoader(
        np.arange(10), 4, part=(part, 3)) for i in batch.tolist()), list(range(10))),
    "pytorch/pytorch#12013, google-deepmind/sonnet#125": (of_no_images, [(0, 2, 3, 3), [0, 0], [1, 1]]),
    "pytorch/pytorch#46168": (of_one_gradient_for_two, [2, 1])}


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "ml-explore/mlx#610": (lambda: (leaf(np.ones((3, 3))) * 1).__iadd__(Tensor(np.ones((3, 3, 3)))), "iadd: the res"),
    "pytorch/pytorch#51036": (lambda: ops.interpolate(Tensor(np.ones((1, 2, 11, 13))), (7, 5)), "interpolate: size 7"),
    "torch/nn#1271, pytorch/pytorch#77014": (lambda: nn.BatchNorm1d(2)(Tensor([[1.0, 2.0]])), "batch_norm: .* no var"),
    "pytorch/pytorch#156051": (lambda: nn.BatchNorm1d(2, track_running_stats=False).eval()(Tensor([[1.0, 2.0]])),
                               "batch_norm: .* no variance"),
    "pytorch/pytorch#6031": (lambda: optim.SGD({*nn.Linear(2, 2).parameters()}, 0.1), "SGD: params is a set, whose"),
    "pytorch/pytorch#6031, of a group": (lambda: optim.Adam([{"params": {*nn.Linear(2, 2).parameters()}}], 0.1),
                                         "Adam: params is a set"),
    "pytorch/pytorch#6031, of averages": (lambda: optim.EMA({*nn.Linear(2, 2).parameters()}), "EMA: params is a set"),
    "tinygrad/tinygrad#18229": (lambda: ops.einsum("iij->ij", plain(np.ones((2, 2, 3)))), "einsum: 'iij' names a let"),
    "numpy/numpy#5667": (lambda: ops.einsum("tiijj->ij", plain(np.ones((2, 3, 3, 4, 4)))), "einsum: 'tiijj' names"),
    "numpy/numpy#2705": (lambda: plain([1, 2]).__iadd__(plain([[1, 2], [3, 4]])), r"iadd: the result is \(2, 2\)"),
    "pytorch/pytorch#9640": (lambda: ops.conv2d(plain(np.ones((1, 1, 4, 4))), plain(np.ones((1, 1, 3, 3))), dilation=2,
                                                stride=2), "conv2d: the window of 3 with dilation 2 is 5 wide, larger"),
    "pytorch/pytorch#5112": (lambda: ops.conv_transpose2d(plain(np.ones((1, 4, 1, 1))), plain(np.ones((4, 1, 3, 3))),
                                                          output_padding=1), "conv_transpose2d: output_padding 1 is"),
    "numpy/numpy#23079": (lambda: Tensor(np.array([1], np.int8)) / Tensor([2.0]), "div: inputs have dtypes int8 and"),
    "pytorch/pytorch#61166": (lambda: ops.interpolate(plain([[[[1, 2], [3, 4]]]]),
                                                      scale_factor=0.5),  # type: ignore[arg-type]
                              "interpolate: scale_factor is 0.5 but must be an int"),
    "pytorch/pytorch#27936": (lambda: ops.binary_cross_entropy_with_logits(
        plain(np.zeros((4, 3))), plain(np.ones((4, 3))), pos_weight=plain([1, 1])),
        "binary_cross_entropy_with_logits: pos_weight has shape"),
    "pytorch/pytorch#191821": (lambda: run_compiled(held, [None]), "compile: .* that is kept after the step"),
    "pytorch/pytorch#169253": (lambda: run_compiled(appended, []), "compile: .* changes what"),
    "pytorch/pytorch#197896": (lambda: run_compiled(counted, {"calls": 0}), "compile: .* changes what"),
    "pytorch/pytorch#165873": (lambda: Scaled(0.0).load_state_dict({"scale": np.arange(5.0)}),
                               "load_state_dict: 1 of 1 entries do not fit"),
    "pytorch/pytorch#8282": (lambda: nn.Conv2d(4, 8, 3).load_state_dict(nn.Conv2d(4, 1, 3).state_dict()),
                             "load_state_dict: 2 of 2 entries do not fit"),
    "PyTables/PyTables#371": (lambda: minidl.save(nn.Linear(2, 2), "no.h5", classes=["a\0b", "a"]), "save: classes is"),
    "PyTables/PyTables#64": (lambda: minidl.save(nn.Linear(2, 2), "no.h5", classes=["", "a"]), "save: classes is"),
    "scikit-learn/scikit-learn#16625": (lambda: training.top_k_accuracy(5)(Tensor(np.ones((5, 3))), Tensor(np.zeros(
        5, int))), "top_k_accuracy: k is 5 but must be an int from 1 to 2"),
    "pytorch/torchtitan#1010": (lambda: optim.linear(0), "linear: total is 0 but must be an int of at least 1"),
    "jax-ml/jax#7329": (lambda: plain([0, 1, 2, 3])[np.array([True, False])], "getitem: boolean index did not match"),
    "libdynd/dynd-python#363": (lambda: plain([1, 2, 3]).sum(1), "sum: axis 1 is out of range"),
    "nv-legate/cupynumeric#436": (lambda: plain([1, 2, 3]).gather(0, Tensor([True, False, True])), "gather: index has"),
    "chainer/chainercv#638": (lambda: data.Subset(range(3), [True, False, True]), "Subset: indices have dtype bool"),
    "pytorch/pytorch#82732": (lambda: list(data.Subset(range(3), [0, 3])), "Subset: index 3 is out of range")}


def agree(found: Any, right: Any) -> None:
    """Numbers to rounding, in lists of any depth; all else exactly."""
    found, right = (each.tolist() if isinstance(each, (Tensor, np.ndarray)) else each for each in (found, right))
    if isinstance(right, (list, tuple)):
        assert len(found) == len(right)
        for mine, theirs in zip(found, right, strict=True):
            agree(mine, theirs)
    elif isinstance(right, (int, float, np.number)) and not isinstance(right, bool):
        np.testing.assert_allclose(np.array(found, float), right, rtol=1e-5, atol=1e-6)
    else:
        assert found == right


REPORTS = [*ROWS, *((name, *row) for name, row in RIGHT.items()),
           *((name, call, re.compile(f"^{words}")) for name, (call, words) in REFUSED.items())]


@pytest.mark.parametrize(("call", "want"), [pytest.param(call, want, id=name) for name, call, want in REPORTS])
def test_a_report(tmp_path: Path, call: Callable[..., Any], want: Any) -> None:
    given = [tmp_path for p in inspect.signature(call).parameters.values() if p.default is p.empty
             and p.kind is p.POSITIONAL_OR_KEYWORD]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if not isinstance(want, re.Pattern):
            agree(call(*given), want)
            return
        with pytest.raises((ValueError, TypeError, IndexError), match=want):
            call(*given)


def test_each_report_is_there_once() -> None:
    names = [name for name, *_ in REPORTS]
    assert sorted(set(names)) == sorted(names)


# ---------------------------------------------------------------- tables: the text, and its columns and classes
TABLES: dict[str, tuple[str, Any]] = {
    "pandas-dev/pandas#19592": ("a,a,k\n1,2,x\n3,4,y\n", "names its column 2 'a', but each needs a name of its own"),
    "pandas-dev/pandas#5697, #48170": ("a,k\n1,1111111111111111111\n2,1111111111111111112\n",
                                       (("a",), ("1111111111111111111", "1111111111111111112"))),
    "pandas-dev/pandas#4793": ('\ufeff"Name","b","kind"\n1,2,x\n3,4,y\n', (("Name", "b"), ("x", "y"))),
    "pandas-dev/pandas#26634": ('\ufeff"a"\t"b"\t"k"\n1\t2\tx\n3\t4\ty\n', "has one column|names its column"),
    "pandas-dev/pandas#10018": ('a,b\n1,one\n2,"two\rowt"\n', "the label 'b' is 'two.*owt' but must be a text"),
    "pandas-dev/pandas#10911": ('a,b\n1,"x\ny"\n2,z\n', "the label 'b' is 'x.ny' but must be a text"),
    "pandas-dev/pandas#14459": ('a,k\n1,x"\n2,y\n', (("a",), ('x"', "y"))),
    "NVIDIA/cudf#873": ('a,k\n1,"say ""hi"""\n2,y\n', (("a",), ('say "hi"', "y"))),
    "adaltas/node-csv-parse#300": ('a,k\n1,x "q" z\n2,y\n', (("a",), ('x "q" z', "y"))),
    "whylabs/whylogs#1373": ("a,k\n1,0.0\n2,1.0\n3,nan\n", "line 4: the label 'k' is 'nan' but must be a class"),
    "mlpack/mlpack#2565": ("a,k\nnan,x\n2,y\n", "line 2: 'a' is 'nan' but must be a number")}


@pytest.mark.parametrize("report", TABLES)
def test_a_table_is_read_right_or_refused(report: str, tmp_path: Path) -> None:
    text, expected = TABLES[report]
    (tmp_path / "t.csv").write_bytes(text.encode())
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            data.from_csv(tmp_path / "t.csv")
    else:
        table = data.from_csv(tmp_path / "t.csv")
        assert (table.columns, table.classes) == expected


# ---------------------------------------------------------------- pictures: how one is saved, and two of its pixels
PICTURES: dict[str, tuple[dict[str, Any], Any]] = {
    "python-pillow/Pillow#7288, bigcat88/pillow_heif#238": ({"transparency": 0}, ([255, 255, 255], [200, 100, 50])),
    "bigcat88/pillow_heif#21, AUTOMATIC1111/stable-diffusion-webui#14958": (
        {"transparency": bytes([255, 0])}, ([10, 20, 30], [255, 255, 255])),
    "python-pillow/Pillow#6123": ({"exif": b"Exif\x00\x00"}, ([10, 20, 30], [200, 100, 50])),
    "python-pillow/Pillow#5528": ({"exif": b"Exif\x00\x00\x00\x08\x00\x02\x01\x12\x00\x03"}, "x.png cannot be read")}


@pytest.mark.parametrize("report", PICTURES)
def test_a_picture_is_read_right(report: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    options, expected = PICTURES[report]
    picture = image.new("P", (4, 4))
    picture.putpalette([10, 20, 30, 200, 100, 50] + [0] * 762)
    picture.putpixel((1, 1), 1)
    for name in "ab":
        (tmp_path / name).mkdir()
        picture.save(tmp_path / name / "x.png", **options)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            data.from_folder(tmp_path, 4)
        return
    pixels = data.from_folder(tmp_path, 4).images[0]
    assert (pixels[:, 0, 0].tolist(), pixels[:, 1, 1].tolist()) == expected


# a picture's mode, its pixel, the format, and the pixel of one or three channels
MODES: dict[str, tuple[str, Any, str, list[int]]] = {
    "python-pillow/Pillow#7478": ("1", 1, "png", [255]),
    "python-pillow/Pillow#8357": ("CMYK", (0, 255, 255, 0), "tif", [255, 0, 0]),
    "python-pillow/Pillow#3800": ("RGB", (200, 100, 50), "png", [round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)])}


@pytest.mark.parametrize("report", MODES)
def test_a_picture_of_another_mode_is_read_right(report: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    mode, pixel, ending, expected = MODES[report]
    for name in "ab":
        (tmp_path / name).mkdir()
        image.new(mode, (2, 2), pixel).save(tmp_path / name / f"x.{ending}")
    assert data.from_folder(tmp_path, 2, channels=len(expected)).images[0, :, 0, 0].tolist() == expected


def test_not_a_number_is_not_the_best_epoch(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#1008, #2636"""
    net = nn.Linear(1, 1)
    best = training.SaveBest(net, tmp_path / "best.npz", "f1", "max")
    for epoch, value in enumerate((NAN, 0.3, NAN, 0.2, 0.5, NAN)):
        net.weight.data[...] = epoch
        best.on_epoch_end({"f1": value})
    assert best.best == 0.5
    minidl.load(net, tmp_path / "best.npz")
    assert net.weight.item() == 4


# ---------------------------------------------------------------- rates after a resume: Lightning-AI/pytorch-lightning
SCHEDULES: dict[str, Callable[[], optim.Schedule]] = {
    "#1772, #4655": lambda: optim.step(7), "#5486": lambda: lambda i: 0.9 ** i, "#15462": lambda: optim.one_cycle(16),
    "#17296": lambda: optim.step(3, 0.5), "#18588": lambda: optim.warmup(5, optim.linear(16)),
    "#20495": lambda: optim.cosine(16)}


@pytest.mark.parametrize("report", SCHEDULES)
def test_a_resumed_training_has_the_rates_of_one_that_was_not_stopped(report: str, tmp_path: Path) -> None:
    def rates(epochs: int, **options: Any) -> list[float]:
        minidl.manual_seed(0)
        net, (x, y) = nn.Linear(2, 2), (np.ones((8, 2), np.float32), np.arange(8) % 2)
        train, test = (data.DataLoader((x, y), 2, shuffle=shuffle) for shuffle in (True, False))
        history = training.fit(net, optim.SGD(net.parameters(), 0.1), train, test, epochs=epochs, say=None,
                               schedule=SCHEDULES[report](), **options)
        return [metrics["lr"] for metrics in history]
    rates(2, checkpoints=tmp_path)
    assert rates(4, checkpoints=tmp_path, resume=True) == rates(4)
