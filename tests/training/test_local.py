"""Local connections without shared weights: beside the plain formula, a convolution, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops

CASES: list[dict[str, Any]] = [
    {"size": (6, 7), "kernel_size": 3}, {"size": 8, "kernel_size": (2, 3), "stride": (2, 1)},
    {"size": 5, "kernel_size": 3, "padding": ((1, 0), (2, 1)), "bias": False}, {"size": 4, "kernel_size": 4}]


def layer_of(**options: Any) -> nn.LocallyConnected2d:
    minidl.manual_seed(1)
    return nn.LocallyConnected2d(2, 3, **options)


def images(layer: nn.LocallyConnected2d, n: int = 2) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, *layer.shape)).astype(np.float32)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_each_output_has_its_own_filter(options: dict[str, Any]) -> None:
    layer = layer_of(**options)
    padding = options.get("padding", ((0, 0), (0, 0)))
    (kh, kw), (sh, sw) = layer.kernel_size, np.broadcast_to(options.get("stride", 1), 2)
    x = np.pad(images(layer), ((0, 0), (0, 0), *padding))
    y, w = layer(Tensor(images(layer))).numpy(), layer.weight.numpy()
    for i, j in np.ndindex(y.shape[2:]):
        window = x[:, :, i * sh:i * sh + kh, j * sw:j * sw + kw].reshape(len(x), -1)
        want = window @ w[:, :, i, j].T + (0 if layer.bias is None else layer.bias.numpy()[:, i, j])
        np.testing.assert_allclose(y[:, :, i, j], want, rtol=1e-4, atol=1e-5)


def test_with_shared_weights_it_is_a_convolution() -> None:
    layer, conv = layer_of(size=(6, 7), kernel_size=3, stride=2, padding=1), nn.Conv2d(2, 3, 3, stride=2, padding=1)
    layer.weight.data[...] = conv.weight.numpy().reshape(3, 18, 1, 1)
    layer.bias.data[...] = conv.bias.numpy().reshape(3, 1, 1)                      # type: ignore[union-attr]
    x = Tensor(images(layer))
    np.testing.assert_allclose(layer(x).numpy(), conv(x).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", CASES[1:3], ids=str)
def test_its_gradients(options: dict[str, Any]) -> None:
    layer = layer_of(**options)
    inputs = [Tensor(images(layer).astype(float), requires_grad=True)]
    inputs += [Tensor(p.numpy().astype(float), requires_grad=True) for p in layer.parameters()]

    def run(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        layer.weight, layer.bias = weight, (*bias, None)[0]
        return layer(x)

    assert minidl.gradcheck(run, inputs)


def test_a_compiled_step_trains_it() -> None:
    net = nn.Sequential(nn.LocallyConnected2d(1, 2, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    sgd = minidl.optim.SGD(net.parameters(), lr=0.5)
    x, labels = Tensor(np.random.default_rng(0).standard_normal((6, 1, 6, 6), np.float32)), np.arange(6) % 3

    @minidl.compile
    def step(x: Tensor, labels: Any) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        return loss
    losses = [step(x, labels).item() for _ in range(30)]
    assert losses[-1] < losses[0] / 5


def test_it_is_saved_and_shown(tmp_path: Any) -> None:
    layer = layer_of(size=5, kernel_size=3)
    assert repr(layer) == ("LocallyConnected2d(2, 3, size=(5, 5), kernel_size=(3, 3), stride=1, padding=0, "
                           "outputs=(3, 3))")
    minidl.save(layer, tmp_path / "layer.h5")
    other = nn.LocallyConnected2d(2, 3, 5, 3)
    minidl.load(other, tmp_path / "layer.h5")
    assert other.weight.numpy().tobytes() == layer.weight.numpy().tobytes()
    assert sum(p.size for p in layer.parameters()) == 3 * 9 * (18 + 1)


@pytest.mark.torch
def test_it_agrees_with_unfold_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    layer = layer_of(size=(6, 7), kernel_size=3, stride=2, padding=1)
    x = Tensor(images(layer), requires_grad=True)
    y = layer(x)
    (y * y).sum().backward()
    theirs, weight = torch.tensor(x.numpy(), requires_grad=True), torch.tensor(layer.weight.numpy(), requires_grad=True)
    windows = torch.nn.functional.unfold(theirs, 3, padding=1, stride=2).reshape(2, 18, *y.shape[2:])
    z = torch.einsum("nkij,mkij->nmij", windows, weight) + torch.tensor(layer.bias.numpy())    # type: ignore[union-attr]
    (z * z).sum().backward()
    for mine, its in ((y, z.detach()), (x.grad, theirs.grad), (layer.weight.grad, weight.grad)):
        assert mine is not None
        np.testing.assert_allclose(mine.numpy(), its.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: nn.LocallyConnected2d(0, 3, 5, 3), "LocallyConnected2d: in_channels is 0 but must be an int of at least"),
    (lambda: nn.LocallyConnected2d(2, 3, 0, 3), "LocallyConnected2d: size is 0 but must be"),
    (lambda: nn.LocallyConnected2d(2, 3, 5, 6), "conv2d: the window"),
    (lambda: layer_of(size=5, kernel_size=3)(Tensor(np.zeros((1, 2, 5, 6), np.float32))),
     r"LocallyConnected2d: x has shape \(1, 2, 5, 6\) but must be \(n,2,5,5\); build the layer with x's channels and")])
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
