"""Modules: what they hold, their state, their modes, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops


class Block(nn.Module):
    """A convolution with a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.scale = Tensor([1.5], requires_grad=True)
        self.offset = Tensor([0.5])                            # no gradient: no parameter

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.conv(x) * self.scale + self.offset
        return self.last


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Block(), nn.ReLU(), nn.Dropout(0.5))
        self.output = nn.Linear(3, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.features(x).mean(axis=(2, 3)))


NAMES = ["features.0.scale", "features.0.conv.weight", "features.0.conv.bias", "output.weight"]


def images(*shape: int, dtype: Any = np.float32) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


# ---------------------------------------------------------------- what a Module holds
def test_names_are_paths_of_attributes() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [id(p) for p in net.parameters()] == [id(p) for _, p in net.named_parameters()]
    assert [name for name, _ in net.named_modules()] == [
        "", "features", "features.0", "features.0.conv", "features.1", "features.2", "output"]
    assert [name for name, _ in net.named_children()] == ["features", "output"]


def test_what_an_operation_made_is_no_parameter() -> None:
    """Block keeps its last result, which requires a gradient too."""
    net = Net()
    net(images(1, 2, 4, 4)).sum().backward()
    assert net.features[0].last.requires_grad
    assert [name for name, _ in net.named_parameters()] == NAMES


def test_a_parameter_held_twice_is_named_once() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    twice = nn.Sequential(net[0], net[0])
    assert len(list(twice.parameters())) == 2


def test_every_parameter_gets_a_gradient() -> None:
    net = Net()
    net(images(5, 2, 4, 4)).sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.shape == parameter.shape


def test_forward_must_be_defined() -> None:
    class Empty(nn.Module):
        pass

    with pytest.raises(TypeError, match=r"^Empty: forward is not defined; a Module defines forward\(self"):
        Empty()(1)


def test_call_hands_on_all_arguments() -> None:
    class Scale(nn.Module):
        def forward(self, x: Tensor, by: float = 1.0) -> Tensor:
            return x * by

    assert Scale()(Tensor([2.0]), by=3.0).tolist() == [6.0]


# ---------------------------------------------------------------- state
def test_state_goes_round() -> None:
    minidl.manual_seed(1)
    one, other = Net(), Net()
    x = images(2, 2, 4, 4)
    assert not np.array_equal(one.eval()(x).numpy(), other.eval()(x).numpy())
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one(x).numpy(), other(x).numpy())
    assert list(one.state_dict()) == NAMES


def test_state_is_a_copy_both_ways() -> None:
    net = nn.Linear(2, 2)
    state = net.state_dict()
    before = net.weight.numpy().copy()
    state["weight"][...] = 7
    np.testing.assert_array_equal(net.weight.numpy(), before)
    net.load_state_dict(state)
    state["weight"][...] = 9
    np.testing.assert_array_equal(net.weight.numpy(), 7)


def test_loading_keeps_the_parameters_that_an_optimizer_holds() -> None:
    net = nn.Linear(2, 2)
    weight = net.weight
    net.load_state_dict({"weight": np.ones((2, 2), np.float32), "bias": Tensor([1.0, 2.0])})
    assert net.weight is weight
    assert weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert net.bias.tolist() == [1.0, 2.0]


def test_loading_makes_recorded_graphs_stale() -> None:
    net = nn.Linear(2, 2)
    loss = (net(Tensor([[1.0, 2.0]])) ** 2).sum()
    net.load_state_dict(net.state_dict())
    with pytest.raises(ValueError, match="was changed in place after the operation was recorded"):
        loss.backward()


def test_all_mismatches_are_listed_and_nothing_has_changed() -> None:
    net = Net()
    before = net.state_dict()
    state = {name: values + 1 for name, values in before.items()}
    del state["output.weight"]
    state["extra"] = np.zeros(1)
    state["features.0.conv.bias"] = np.zeros(4, np.float32)
    state["features.0.scale"] = state["features.0.scale"].astype(np.float64)
    message = ("load_state_dict: 4 of 5 entries do not fit: extra is not in the model; "
               "features.0.conv.bias is (3,) float32 in the model but (4,) float32 in the state; "
               "features.0.scale is (1,) float32 in the model but (1,) float64 in the state; "
               "output.weight is missing; build the model that the state was saved from")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        net.load_state_dict(state)
    for name, values in net.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


# ---------------------------------------------------------------- modes, dtype, device
def test_train_and_eval_reach_every_module() -> None:
    net = Net()
    assert all(module.training for _, module in net.named_modules())
    assert net.eval() is net
    assert not any(module.training for _, module in net.named_modules())
    assert net.train() is net
    assert all(module.training for _, module in net.named_modules())


def test_dropout_only_in_training() -> None:
    dropout, x = nn.Dropout(0.25), Tensor(np.ones(10_000, np.float32))
    y = dropout(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(np.mean(y == 0) - 0.25) < 0.02                  # 4.6 standard deviations
    assert not np.array_equal(y, dropout(x).numpy())           # each call draws anew
    assert dropout.eval()(x) is x
    assert not np.array_equal(dropout.train()(x).numpy(), x.numpy())


def test_dropout_repeats_from_a_seed() -> None:
    dropout, x = nn.Dropout(), Tensor(np.ones(1000, np.float32))
    minidl.manual_seed(3)
    first = [dropout(x).numpy() for _ in range(2)]
    minidl.manual_seed(3)
    np.testing.assert_array_equal(first, [dropout(x).numpy() for _ in range(2)])


def test_to_converts_in_place_and_forgets_gradients() -> None:
    net = Net()
    held = list(net.parameters())
    net(images(1, 2, 4, 4)).sum().backward()
    assert net.to(dtype="float64") is net
    assert [id(p) for p in net.parameters()] == [id(p) for p in held]
    assert {p.dtype for p in held} == {np.dtype("float64")}
    assert [p.grad for p in held] == [None] * len(held)
    x = images(1, 2, 4, 4, dtype=np.float64)
    net.features[0].offset = net.features[0].offset.to(dtype="float64")
    net.eval()(x).sum().backward()
    assert net.output.weight.grad.dtype == np.float64
    assert net.to("cpu") is net


@pytest.mark.parametrize(("move", "error", "message"), [
    ({"dtype": "int64"}, TypeError, "dtype int64 cannot require a gradient"),
    ({"device": "tpu"}, ValueError, "device: 'tpu' is not one of auto, cpu, cuda"),
])
def test_a_refused_move_changes_nothing(move: dict[str, Any], error: type[Exception], message: str) -> None:
    net = Net()
    with pytest.raises(error, match=message):
        net.to(**move)
    assert {p.dtype for p in net.parameters()} == {np.dtype("float32")}


# ---------------------------------------------------------------- layers against their ops
X = images(2, 2, 6, 7)
LAYERS = {
    "Conv2d": (lambda: nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=((1, 0), (2, 1)), algorithm="direct"), X,
               lambda x, net: ops.conv2d(x, net.weight, net.bias, stride=(2, 1), padding=((1, 0), (2, 1)))),
    "Conv2d without bias": (lambda: nn.Conv2d(2, 4, 3, bias=False), X,
                            lambda x, net: ops.conv2d(x, net.weight)),
    "Linear": (lambda: nn.Linear(7, 3), X[0, 0], lambda x, net: ops.linear(x, net.weight, net.bias)),
    "Linear without bias": (lambda: nn.Linear(7, 3, bias=False), X[0, 0],
                            lambda x, net: ops.linear(x, net.weight)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), X, lambda x, net: ops.avg_pool2d(x, size=2)),
    "AvgPool2d with options": (lambda: nn.AvgPool2d((3, 2), stride=1, padding=(1, 0)), X,
                               lambda x, net: ops.avg_pool2d(x, size=(3, 2), stride=1, padding=(1, 0))),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), X, lambda x, net: ops.max_pool2d(x, size=2)),
    "MaxPool2d with options": (lambda: nn.MaxPool2d(3, stride=(2, 1), padding=((1, 0), (0, 2))), X,
                               lambda x, net: ops.max_pool2d(x, size=3, stride=(2, 1), padding=((1, 0), (0, 2)))),
    "Sigmoid": (nn.Sigmoid, X, lambda x, net: ops.sigmoid(x)),
    "Tanh": (nn.Tanh, X, lambda x, net: ops.tanh(x)),
    "ReLU": (nn.ReLU, X, lambda x, net: ops.relu(x)),
    "Softmax": (nn.Softmax, X, lambda x, net: ops.softmax(x)),
    "Softmax along an axis": (lambda: nn.Softmax(1), X, lambda x, net: ops.softmax(x, axis=1)),
    "Flatten": (nn.Flatten, X, lambda x, net: x.reshape(2, 84)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_its_op(name: str) -> None:
    build, x, expected = LAYERS[name]
    net = build()
    y = net(x)
    np.testing.assert_allclose(y.numpy(), expected(x, net).numpy(), rtol=1e-5, atol=1e-6)
    assert y.requires_grad == bool(list(net.parameters()))


def test_layers_start_within_one_over_the_root_of_their_fan() -> None:
    for layer, fan_in in ((nn.Conv2d(3, 40, (5, 4)), 60), (nn.Linear(50, 40), 50)):
        for parameter in layer.parameters():
            largest = np.abs(parameter.numpy()).max()
            assert 0.8 / fan_in ** 0.5 < largest <= np.float32(1 / fan_in ** 0.5)
            assert parameter.dtype == np.float32


def test_the_seed_decides_all_parameters() -> None:
    def state(seed: int) -> dict[str, np.ndarray]:
        minidl.manual_seed(seed)
        return Net().state_dict()

    for name in NAMES[1:]:
        np.testing.assert_array_equal(state(5)[name], state(5)[name])
        assert not np.array_equal(state(5)[name], state(6)[name])


# ---------------------------------------------------------------- Sequential
def test_sequential_runs_its_layers_in_order() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), act=nn.ReLU(), output=nn.Linear(3, 2))
    assert list(net.state_dict()) == ["1.weight", "1.bias", "output.weight", "output.bias"]
    assert [type(layer).__name__ for layer in net] == ["Flatten", "Linear", "ReLU", "Linear"]
    assert len(net) == 4
    assert net[0] is next(iter(net))
    assert net[-1] is net.output
    x = images(2, 1, 2, 2)
    expected = net.output(ops.relu(net[1](x.reshape(2, 4))))
    np.testing.assert_array_equal(net(x).numpy(), expected.numpy())
    assert nn.Sequential()(x) is x


@pytest.mark.parametrize(("layers", "named", "error", "message"), [
    ((nn.ReLU(), ops.relu), {}, TypeError,
     "Sequential: layer 1 is a function but must be a Module; put functions into a Module's forward"),
    ((), {"act": 3}, TypeError, "Sequential: layer act is a int but must be a Module; put functions into"),
    ((), {"a.b": nn.ReLU()}, ValueError, r"Sequential: the layer name 'a\.b' has a dot or is taken; choose"),
    ((), {"training": nn.ReLU()}, ValueError, "Sequential: the layer name 'training' has a dot or is taken"),
    ((), {"forward": nn.ReLU()}, ValueError, "Sequential: the layer name 'forward' has a dot or is taken"),
    ((nn.ReLU(),), {"0": nn.ReLU()}, ValueError, "Sequential: the layer name '0' has a dot or is taken"),
])
def test_sequential_refuses(layers: Any, named: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        nn.Sequential(*layers, **named)


# ---------------------------------------------------------------- how it looks
def test_repr() -> None:
    assert repr(Net()) == """\
Net(
  (features): Sequential(
    (0): Block(
      (conv): Conv2d(2, 3, kernel_size=(3, 3), stride=1, padding=0)
    )
    (1): ReLU()
    (2): Dropout(p=0.5)
  )
  (output): Linear(3, 4)
)"""
    assert repr(nn.MaxPool2d(3, 2, 1)) == "MaxPool2d(kernel_size=3, stride=2, padding=1)"
    assert repr(nn.AvgPool2d(2)) == "AvgPool2d(kernel_size=2, stride=None, padding=0)"
    assert repr(nn.Sequential()) == "Sequential()"


# ---------------------------------------------------------------- what layers refuse, as they are built
WINDOW = r"must be an int or a pair of ints \(height, width\), each at least 1$"
EDGES = r"must be p, \(ph, pw\) or \(\(top, bottom\), \(left, right\)\), ints of at least 0$"


@pytest.mark.parametrize(("build", "message"), [
    (lambda: nn.Conv2d(0, 4, 3), "Conv2d: in_channels is 0 but must be an int of at least 1$"),
    (lambda: nn.Conv2d(1, 4.0, 3), r"Conv2d: out_channels is 4\.0 but must be an int of at least 1$"),
    (lambda: nn.Conv2d(1, 4, 0), f"Conv2d: kernel_size is 0 but {WINDOW}"),
    (lambda: nn.Conv2d(1, 4, (3, 3, 3)), rf"Conv2d: kernel_size is \(3, 3, 3\) but {WINDOW}"),
    (lambda: nn.Conv2d(1, 4, 3, stride=0), f"Conv2d: stride is 0 but {WINDOW}"),
    (lambda: nn.Conv2d(1, 4, 3, padding=-1), f"Conv2d: padding is -1 but {EDGES}"),
    (lambda: nn.Conv2d(1, 4, 3, padding="same"), f"Conv2d: padding is 'same' but {EDGES}"),
    (lambda: nn.Linear(0, 4), "Linear: in_features is 0 but must be an int of at least 1$"),
    (lambda: nn.Linear(4, "ten"), "Linear: out_features is 'ten' but must be an int of at least 1$"),
    (lambda: nn.AvgPool2d(0), f"AvgPool2d: kernel_size is 0 but {WINDOW}"),
    (lambda: nn.AvgPool2d(2, stride=(1, 0)), rf"AvgPool2d: stride is \(1, 0\) but {WINDOW}"),
    (lambda: nn.MaxPool2d(2.5), rf"MaxPool2d: kernel_size is 2\.5 but {WINDOW}"),
    (lambda: nn.MaxPool2d(2, padding=(1, -1)), rf"MaxPool2d: padding is \(1, -1\) but {EDGES}"),
    (lambda: nn.Dropout(1.0), r"Dropout: p is 1\.0 but must be in \[0, 1\)$"),
    (lambda: nn.Dropout(-0.1), r"Dropout: p is -0\.1 but must be in \[0, 1\)$"),
    (lambda: nn.Dropout(float("nan")), r"Dropout: p is nan but must be in \[0, 1\)$"),
])
def test_layers_refuse(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        build()


def test_moving_makes_recorded_graphs_stale() -> None:
    """Their closures hold the arrays from before."""
    net = nn.Linear(2, 2)
    loss = net(Tensor([[1.0, 2.0]])).sum()
    net.to(dtype="float64")
    with pytest.raises(ValueError, match="was changed in place after the operation was recorded"):
        loss.backward()
    assert [p.grad for p in net.parameters()] == [None, None]
