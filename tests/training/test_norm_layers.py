"""Layers of normalisation: their running values as state, in files, on the tape, and far from 0."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops, optim


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), norm=nn.BatchNorm2d(4), act=nn.ReLU(),
                         groups=nn.GroupNorm(2, 4), pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(),
                         output=nn.Linear(4, 3), vectors=nn.BatchNorm1d(3), rows=nn.LayerNorm(3))


def trained() -> nn.Sequential:
    """After a few steps."""
    minidl.manual_seed(0)
    model = net()
    sgd = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(3):
        sgd.zero_grad()
        ops.cross_entropy(model(Tensor(normal(6, 2, 5, 5, seed=i))), np.arange(6) % 3).backward()
        sgd.step()
    return model


def results(model: Any) -> np.ndarray:
    return model.eval()(Tensor(normal(5, 2, 6, 7))).numpy()


# ---------------------------------------------------------------- state
def test_running_values_are_buffers() -> None:
    model = net()
    buffers = ["norm.running_mean", "norm.running_var", "vectors.running_mean", "vectors.running_var"]
    assert [name for name, _ in model.named_buffers()] == buffers
    assert not {name for name, _ in model.named_parameters()} & set(buffers)
    state = model.state_dict()
    assert [state[name].tolist() for name in buffers] == [[0] * 4, [1] * 4, [0] * 3, [1] * 3]
    assert all(state[name].dtype == np.float32 for name in buffers)
    model.requires_grad_(False).requires_grad_(True)
    assert [name for name, _ in model.named_buffers()] == buffers


def test_training_moves_them_and_evaluation_does_not() -> None:
    layer, x = nn.BatchNorm2d(3, momentum=0.25), normal(4, 3, 5, 2) * 2 + 7
    layer(Tensor(x))
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.75 + 0.25 * var, rtol=1e-5)
    before = layer.state_dict()
    y = layer.eval()(Tensor(x)).numpy()
    expected = (x - before["running_mean"][:, None, None]) / np.sqrt(before["running_var"][:, None, None] + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    for name, values in layer.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


def test_no_images_leave_them() -> None:
    layer = nn.BatchNorm2d(3)
    x = Tensor(np.zeros((0, 3, 2, 2), np.float32), requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 3, 2, 2)
    assert layer.weight.grad.tolist() == layer.bias.grad.tolist() == layer.running_mean.tolist() == [0, 0, 0]
    assert layer.running_var.tolist() == [1, 1, 1]


@pytest.mark.parametrize("suffix", ["h5", "npz", "safetensors"])
def test_files_hold_them(suffix: str, tmp_path: Path) -> None:
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    model = trained()
    minidl.save(model, tmp_path / f"net.{suffix}")
    other = minidl.load(net(), tmp_path / f"net.{suffix}")
    assert np.abs(other.norm.running_mean.numpy()).max() > 0
    np.testing.assert_array_equal(results(other), results(model))


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_their_own(twin: Callable[[Any], Any]) -> None:
    model = trained()
    other = twin(model)
    np.testing.assert_array_equal(results(other), results(model))
    before = model.state_dict()
    other.train()(Tensor(normal(4, 2, 5, 5)))
    assert not np.array_equal(other.norm.running_mean.numpy(), before["norm.running_mean"])
    np.testing.assert_array_equal(model.norm.running_mean.numpy(), before["norm.running_mean"])


def test_a_model_is_converted_with_them() -> None:
    model = trained()
    before = model.norm.running_mean.numpy()
    model.to(dtype="float64")
    assert {t.dtype.name for t in model.buffers()} == {"float64"}
    np.testing.assert_array_equal(model.norm.running_mean.numpy(), before)
    model.train()(Tensor(normal(4, 2, 5, 5, dtype=np.float64)))
    with pytest.raises(TypeError, match=r"^batch_norm: running_mean is float64 on cpu but x is float32 on cpu"):
        model.norm(Tensor(normal(4, 4, 5, 5)))


def test_counts_of_pytorch_are_passed_over() -> None:
    model = net()
    state = model.state_dict()
    model.load_state_dict(state | {"norm.num_batches_tracked": np.array(7), "vectors.num_batches_tracked": np.array(7)})
    with pytest.raises(ValueError, match=r"output\.num_batches_tracked is not in the model"):
        model.load_state_dict(state | {"output.num_batches_tracked": np.array(7)})


# ---------------------------------------------------------------- on the tape
def test_a_layer_may_be_used_twice_in_a_step() -> None:
    """What the second use does to the running values is nothing to the first one's gradient."""
    layer = nn.BatchNorm1d(3).to(dtype="float64")
    x = Tensor(normal(5, 3, dtype=np.float64), requires_grad=True)
    minidl.gradcheck(lambda x, w, b: layer(ops.tanh(layer(x))), [x, layer.weight, layer.bias])


def test_evaluation_by_values_that_changed_is_no_longer_differentiated() -> None:
    layer, x = nn.BatchNorm1d(3), Tensor(normal(5, 3))
    y = layer.eval()(x)
    layer.train()(x)
    with pytest.raises(ValueError, match=r"an input of 'batch_norm' .* was changed in place"):
        y.sum().backward()


def test_weights_may_be_frozen() -> None:
    for layer in (nn.BatchNorm1d(3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.BatchNorm1d(3).eval()):
        layer = layer.to(dtype="float64")
        layer.weight.requires_grad = False
        x = Tensor(normal(5, 3, dtype=np.float64), requires_grad=True)
        minidl.gradcheck(lambda x, b, layer=layer: layer(x), [x, layer.bias])
        assert layer.weight.grad is None


# ---------------------------------------------------------------- numbers far from 0
@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.GroupNorm(3, 3), nn.LayerNorm((40, 33))])
@pytest.mark.parametrize("center", [1e3, -1e5])
def test_a_small_variance_far_from_0(layer: Any, center: float) -> None:
    """In float32 the mean of the squares less the square of the mean is 0 or below here."""
    x = (center + normal(6, 3, 40, 33, dtype=np.float64)).astype(np.float32)
    exact = copy.deepcopy(layer).to(dtype="float64")(Tensor(x.astype(np.float64))).numpy()
    assert np.abs(layer(Tensor(x)).numpy() - exact).max() < 8 * abs(center) * np.finfo(np.float32).eps


@pytest.mark.parametrize("value", [0.0, 0.1, -3e5])
def test_no_variance_gives_the_bias(value: float) -> None:
    x = Tensor(np.full((7, 2, 9, 11), value, np.float32))
    for layer in (nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.LayerNorm(11)):
        layer.bias.data[...] = 0.5
        assert set(layer(x).numpy().ravel().tolist()) == {0.5}


class Ranks:
    """A world in which every sum over the ranks is an error."""

    size = 2

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the ranks are asked for {name}")


@pytest.mark.parametrize("across_ranks", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2), (5, 3, 2, 2)])
def test_evaluation_without_running_values_is_by_the_ranks_own_images(
        monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], across_ranks: bool) -> None:
    """In training the other ranks are asked, unless across_ranks=False."""
    kind, x = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)], normal(*shape)
    layer = kind(3, affine=False, track_running_stats=False, across_ranks=across_ranks)
    alone = layer(Tensor(x)).numpy()
    monkeypatch.setattr("minidl.nn.layers.norm.current", Ranks)
    np.testing.assert_array_equal(layer.eval()(Tensor(x)).numpy(), alone)
    if across_ranks:
        with pytest.raises(AssertionError, match="the ranks are asked for"):
            layer.train()(Tensor(x))
    else:
        np.testing.assert_array_equal(layer.train()(Tensor(x)).numpy(), alone)


def test_another_image_changes_nothing_of_rows_and_groups() -> None:
    x = normal(4, 6, 5, 3)
    for layer in (nn.GroupNorm(2, 6), nn.LayerNorm((5, 3))):
        np.testing.assert_array_equal(layer(Tensor(x)).numpy()[:2], layer(Tensor(x[:2].copy())).numpy())


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(("call", "message"), [
    (lambda: nn.BatchNorm2d(0), "BatchNorm2d: num_features is 0 but must be an int of at least 1"),
    (lambda: nn.BatchNorm1d(3, eps=-1e-5), "BatchNorm1d: eps is -1e-05 but must be a number of at least 0"),
    (lambda: nn.BatchNorm2d(3, momentum=None), "BatchNorm2d: momentum is None but must be a number from 0 to 1"),  # type: ignore[arg-type]
    (lambda: nn.BatchNorm2d(3)(Tensor(normal(2, 3, 4))),
     r"BatchNorm2d: x has shape \(2, 3, 4\) but must be \(n,c,h,w\) with 3 channels; see .reshape\(\)"),
    (lambda: nn.BatchNorm1d(3)(Tensor(normal(2, 4))),
     r"BatchNorm1d: x has shape \(2, 4\) but must be \(n,c\) or \(n,c,l\) with 3 channels"),
    (lambda: nn.BatchNorm1d(3)(Tensor(normal(1, 3))), r"batch_norm: x \(1, 3\) has 1 value per channel"),
    (lambda: nn.LayerNorm(()), r"LayerNorm: normalized_shape is \(\) but must name the sizes of at least one axis"),
    (lambda: nn.LayerNorm((3, 0)), "LayerNorm: normalized_shape is 0 but must be an int of at least 1"),
    (lambda: nn.LayerNorm(3, eps="a"), "LayerNorm: eps is 'a' but must be a number of at least 0"),  # type: ignore[arg-type]
    (lambda: nn.GroupNorm(2, 3), "GroupNorm: num_groups is 2 but must divide num_channels 3"),
    (lambda: nn.GroupNorm(0, 3), "GroupNorm: num_groups is 0 but must be an int of at least 1"),
])
def test_refuses(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_how_layers_look() -> None:
    assert repr(nn.BatchNorm2d(3, affine=False, track_running_stats=False)) == (
        "BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=False, track_running_stats=False)")
    assert repr(nn.LayerNorm((2, 3), bias=False)) == "LayerNorm((2, 3), eps=1e-05, bias=False)"
    assert repr(nn.LayerNorm(2, elementwise_affine=False)) == "LayerNorm((2,), eps=1e-05, elementwise_affine=False)"
    assert repr(nn.GroupNorm(1, 2, affine=False)) == "GroupNorm(1, 2, eps=1e-05, affine=False)"
    assert repr(nn.Identity()) == "Identity()"


def test_an_infinite_bias_is_infinite_in_its_place_alone() -> None:
    norm = nn.LayerNorm(64)
    norm.bias.data[3] = np.inf
    y = norm(Tensor(np.random.default_rng(0).standard_normal((20, 64), np.float32))).numpy()
    assert np.isinf(y[:, 3]).all()
    assert np.isfinite(np.delete(y, 3, 1)).all()


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm((4, 5, 5))],
                         ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_frozen_weight_or_bias_changes_no_other_gradient(layer: nn.Module, training: bool) -> None:
    layer = copy.deepcopy(layer).train(training)
    given, wanted = normal(3, 4, 5, 5), Tensor(normal(3, 4, 5, 5, seed=1))

    def gradients(*frozen: str) -> dict[str, np.ndarray]:
        x = Tensor(given, requires_grad="x" not in frozen)
        of = {"x": x, "weight": layer.weight, "bias": layer.bias}
        for name, t in of.items():
            t.grad = None
            t.requires_grad = name not in frozen
        (layer(x) * wanted).sum().backward()
        assert {name for name, t in of.items() if t.grad is None} == {*frozen}
        return {name: t.grad.numpy() for name, t in of.items() if t.grad is not None}
    want = gradients()
    for frozen in ("x", "weight", "bias", ("weight", "bias"), ("x", "weight"), ("x", "bias")):
        for name, gradient in gradients(*([frozen] if isinstance(frozen, str) else frozen)).items():
            np.testing.assert_allclose(gradient, want[name], rtol=1e-5, atol=1e-6)
