"""Modules: what they hold, their state, their modes, and what they refuse."""

from __future__ import annotations

import array
import copy
import pickle
import re
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops
from minidl.core.mode import changes
from minidl.nn.module import switched
from minidl.zoo.recipe import LAYERS as ACTIVATIONS


class Block(nn.Module):
    """A convolution with a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.scale = Tensor([1.5], requires_grad=True)
        self.offset = Tensor([0.5])                            # no gradient: a buffer

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * self.scale + self.offset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Block(), nn.ReLU(), nn.Dropout(0.5))
        self.output = nn.Linear(3, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.features(x).mean(axis=(2, 3)))


NAMES = ["features.0.scale", "features.0.conv.weight", "features.0.conv.bias", "output.weight"]
STATE = ["features.0.scale", "features.0.offset", *NAMES[1:]]


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


def test_all_tensors_are_state_and_those_without_a_gradient_buffers() -> None:
    net = Net()
    assert [name for name, _ in net.named_tensors()] == STATE
    assert [name for name, _ in net.named_buffers()] == ["features.0.offset"]
    assert list(net.buffers()) == [net.features[0].offset]
    assert list(net.state_dict()) == STATE


@pytest.mark.parametrize("ask", [
    lambda net: net.state_dict(), lambda net: net.load_state_dict({}), lambda net: net.to(dtype="float64"),
    lambda net: list(net.parameters()), lambda net: list(net.buffers()), lambda net: net.requires_grad_(False)])
def test_what_is_on_the_tape_is_no_state(ask: Any) -> None:
    net = Net()
    net.features[0].last = net(images(1, 2, 4, 4))
    message = ("Net: features.0.last was made by 'linear' and is still on the tape, so it is neither a parameter nor a "
               "buffer; assign its .detach() to keep it as a buffer, or its .numpy() to look at it")
    before = net.output.weight.numpy().copy()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ask(net)
    assert net.output.weight.requires_grad
    np.testing.assert_array_equal(net.output.weight.numpy(), before)
    net.features[0].last = net.features[0].last.numpy()
    assert list(net.state_dict()) == STATE
    assert "(output): Linear" in repr(net)


def test_a_parameter_held_twice_is_named_once() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    twice = nn.Sequential(net[0], net[0])
    assert len(list(twice.parameters())) == 2
    assert [name for name, _ in twice.named_modules()] == ["", "0"]
    assert [name for name, _ in twice.named_children()] == ["0", "1"]
    x = images(3, 2)
    np.testing.assert_array_equal(twice(x).numpy(), net[0](net[0](x)).numpy())


class Nest(nn.Module):
    """Tensors and Modules in lists, tuples and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(2, 2, bias=False), (nn.ReLU(), nn.Linear(2, 3, bias=False))]
        self.heads = {"a": nn.Linear(3, 1, bias=False), "more": {"b": [Tensor([1.0], requires_grad=True)]}}
        self.steps = (Tensor([0]), 3, "text")
        self.config = {1: "one", 2.5: [1, 2]}                  # holds nothing: its keys may be anything


def test_lists_tuples_and_dicts_are_looked_into() -> None:
    net = Nest()
    assert [name for name, _ in net.named_parameters()] == [
        "heads.more.b.0", "layers.0.weight", "layers.1.1.weight", "heads.a.weight"]
    assert [name for name, _ in net.named_buffers()] == ["steps.0"]
    assert [name for name, _ in net.named_children()] == ["layers.0", "layers.1.0", "layers.1.1", "heads.a"]
    assert not any(module.training for _, module in net.eval().named_modules())
    assert net.to(dtype="float64").steps[0].dtype == np.int64
    assert net.heads["a"].weight.dtype == np.float64
    other = Nest().to(dtype="float64")
    other.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(other.layers[1][1].weight.numpy(), net.layers[1][1].weight.numpy())
    assert "(layers.1.1): Linear(2, 3, bias=False)" in repr(net)


@pytest.mark.parametrize(("place", "warned"), [
    (lambda layer: SimpleNamespace(layer=layer), True), (lambda layer: [SimpleNamespace(weight=layer.weight)], True),
    (lambda layer: {layer}, True), (lambda layer: {"a": SimpleNamespace(layer=layer)}, True),
    (lambda layer: [({layer},)], True), (lambda layer: SimpleNamespace(layers=[layer]), True),
    (lambda layer: SimpleNamespace(by={3: (layer,)}), True), (lambda layer: [{"a": layer}], False),
    (lambda layer: SimpleNamespace(layer=layer.requires_grad_(False)), False),
    (lambda layer: lambda x: layer(x), False)])
def test_parameters_that_are_not_found_are_said(place: Any, warned: bool) -> None:
    """As those of a block that is not a Module, which nothing trains. What is held elsewhere too is found."""
    net, layer = nn.Module(), nn.Linear(2, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net.block = place(layer)
        net.layer, net.again = layer, place(layer)
    assert [str(each.message).partition(" is a ")[0] for each in caught] == ["Module: block"] * warned


@pytest.mark.parametrize(("value", "message"), [
    ({3: Tensor([1.0])}, "heads: the key 3 names a Tensor or Module but must be a text without dots; rename it"),
    ({"a.b": nn.ReLU()}, r"heads: the key 'a\.b' names a Tensor"),
    ([{"": nn.ReLU()}], r"heads\.0: the key '' names a Tensor"),
])
def test_keys_are_texts_without_dots(value: Any, message: str) -> None:
    net = nn.Module()
    with pytest.raises(ValueError, match=f"^{message}"):
        net.heads = value
    assert not hasattr(net, "heads")
    net.heads = {}
    net.heads.update(value if isinstance(value, dict) else value[0])
    with pytest.raises(ValueError, match="names a Tensor or Module but must be a text"):
        net.state_dict()


def test_attributes_that_hold_something_have_no_dots() -> None:
    with pytest.raises(ValueError, match=r"^Module: the attribute 'a\.b' names a Tensor or Module but must be"):
        setattr(nn.Module(), "a.b", Tensor([1.0]))


def test_two_tensors_of_one_name_are_refused() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2)])
    setattr(layers, "0", nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^ModuleList: two Tensors are named 0\.weight; rename one$"):
        layers.state_dict()


def test_a_module_may_hold_itself() -> None:
    net = Net()
    net.features[0].top = net.me = net
    net.pair = [net.features]
    net.pair.append(net.pair)
    assert [name for name, _ in net.named_modules()][:3] == ["", "features", "features.0"]
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert "(me): ..." in repr(net)
    twin = copy.deepcopy(net)
    assert twin.me is twin
    assert list(twin.state_dict()) == list(net.state_dict())
    twin.load_state_dict(net.state_dict())
    assert net.eval().features[1].training is False


class Frozen(nn.Module):
    """Its normalisation stays in evaluation."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(2), inner

    def train(self, training: bool = True) -> Any:
        super().train(training)
        self.norm.eval()
        return self


class Stays(nn.Sequential):
    """All of it stays in evaluation, what is within too."""

    def train(self, training: bool = True) -> Any:
        return super().train(False)


def test_a_part_switches_as_its_class_says() -> None:
    net = nn.Sequential(Frozen(Frozen(nn.Dropout())), nn.Linear(2, 2), Stays(Frozen(), nn.Dropout()))
    for training in (True, False, True):
        net.train(training)
        on = {path for path, module in net.named_modules() if module.training}
        assert on == ({"", "0", "0.inner.0", "0.inner.0.inner.0", "1"} if training else set())
    norm = nn.BatchNorm1d(2)
    part = Frozen()
    part.norm = norm                       # it is there twice, and the last one switches it
    assert nn.Sequential(part, norm).train()[1].training
    one = nn.Sequential(nn.Dropout())
    one[0].train = lambda training=True: one[0]
    assert one.eval()[0].training
    net.eval()
    with switched([net], True):
        assert (net[1].training, net[0].norm.training) == (True, False)


def test_a_copy_is_made_as_its_class_says() -> None:
    class Handle(nn.Linear):
        def __getstate__(self) -> Any:
            return {name: value for name, value in vars(self).items() if name != "file"}

        def __setstate__(self, state: Any) -> None:
            vars(self).update(state, file="opened again")

    class Blocks(nn.Module, list):  # type: ignore[misc, type-arg]
        """Holds its parts as items."""

    class Slots(nn.Module):
        __slots__ = ("alpha",)

    class Anew(nn.Module):
        def __reduce__(self) -> Any:
            return Anew, ()

    net, blocks, slots = Handle(2, 2), Blocks(), Slots()
    blocks.append(nn.Tanh())
    net.file = iter([])                    # cannot be copied
    slots.alpha = 3
    assert copy.deepcopy(nn.Sequential(net))[0].file == "opened again"
    assert (len(copy.deepcopy(blocks)), copy.deepcopy(slots).alpha) == (1, 3)
    assert isinstance(copy.deepcopy(Anew()), Anew)


def test_a_long_chain_of_modules_is_walked() -> None:
    first = last = nn.Linear(1, 1)
    for _ in range(2000):
        last.after = last = nn.ReLU()
    assert len(list(first.named_modules())) == 2001
    assert list(first.state_dict()) == ["weight", "bias"]


def test_a_subclass_of_tensor_is_held() -> None:
    class Parameter(Tensor):
        pass

    net = nn.Module()
    net.weight = Parameter([1.0], requires_grad=True)
    assert list(net.state_dict()) == ["weight"]
    net.load_state_dict({"weight": np.array([2.0], np.float32)})
    assert isinstance(net.weight, Parameter)
    assert net.to(dtype="float64").weight.tolist() == [2.0]


def test_changes_are_counted() -> None:
    net = nn.Sequential(nn.Dropout(), nn.ModuleList([nn.ReLU()]), nn.ModuleDict({"a": nn.ReLU()}))
    seen = [changes[0]]
    for change in (lambda: setattr(net[0], "p", 0.25), lambda: delattr(net[0], "p"), lambda: net.eval(),
                   lambda: setattr(net, "0", nn.ReLU()), lambda: net[1].append(nn.ReLU()), lambda: net[1].pop(),
                   lambda: net[2].update(b=nn.ReLU()), lambda: net[2].clear(), lambda: net.requires_grad_(False)):
        change()
        seen.append(changes[0])
    assert len(set(seen)) == len(seen)
    net[0].p = 0.5
    seen.append(changes[0])
    net.state_dict(), list(net.parameters()), net[0](Tensor([1.0]))
    assert changes[0] == seen[-1]                           # looking is no change


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
    message = ("load_state_dict: 4 of 6 entries do not fit: extra is not in the model; "
               "features.0.conv.bias is (3,) float32 in the model but (4,) float32 in the state; "
               "features.0.scale is (1,) float32 in the model but (1,) float64 in the state; "
               "output.weight is missing; build the model that the state was saved from")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        net.load_state_dict(state)
    for name, values in net.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


def test_few_of_many_mismatches_are_told() -> None:
    net = nn.ModuleList(nn.Linear(1, 1) for _ in range(100))
    with pytest.raises(ValueError, match=r"^load_state_dict: 200 of 200 entries .* 180 more; build the") as caught:
        net.load_state_dict({})
    assert str(caught.value).count("is missing") == 20


def test_a_state_is_a_mapping() -> None:
    with pytest.raises(TypeError, match=r"^load_state_dict: the state is a str but must map names to arrays; a file"):
        nn.Linear(1, 1).load_state_dict("weights.h5")


def test_buffers_go_round_and_get_arrays_of_their_own() -> None:
    class Counted(nn.Module):
        def __init__(self, mean: np.ndarray) -> None:
            super().__init__()
            self.weight = Tensor([1.0], requires_grad=True)
            self.mean, self.count, self.seen = Tensor(mean), Tensor([7]), Tensor([True])

    constant = np.array([0.5], np.float32)
    constant.flags.writeable = False
    one, other = Counted(np.array([2.5], np.float32)), Counted(constant)
    one.count.data[...] = 9
    weight, mean = other.weight.data, other.mean
    y = other.weight * other.mean                              # recorded with the old mean
    state = one.state_dict()
    other.load_state_dict({name: Tensor(values) for name, values in state.items()})
    assert other.weight.data is weight                         # in place
    assert other.mean is mean
    assert (mean.tolist(), other.count.tolist(), other.seen.tolist()) == ([2.5], [9], [True])
    assert constant.tolist() == [0.5]                          # whoever made the buffer from it still has it
    state["mean"][...] = 8
    assert mean.tolist() == [2.5]
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


# ---------------------------------------------------------------- frozen
def test_frozen_parameters_are_still_state() -> None:
    net, other = Net(), Net()
    for parameter in net.features.parameters():
        parameter.requires_grad = False
    assert [name for name, _ in net.named_parameters()] == ["output.weight"]
    assert list(net.state_dict()) == STATE
    other.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(other.features[0].conv.weight.numpy(), net.features[0].conv.weight.numpy())
    assert {t.dtype for _, t in net.to(dtype="float64").named_tensors()} == {np.dtype("float64")}


def test_unfreezing_finds_parameters_and_no_buffers() -> None:
    net = Net()
    net.ws = [Tensor([1.0], requires_grad=True)]
    net.features[0].conv.weight.requires_grad = False          # one by hand, before anybody asked for parameters
    net.ws[0].requires_grad = False
    for parameter in net.features.parameters():
        parameter.requires_grad = False
    net = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    assert net.requires_grad_(True) is net
    assert [name for name, _ in net.named_parameters()] == ["ws.0", *NAMES]
    assert not net.features[0].offset.requires_grad
    net(images(1, 2, 4, 4)).sum().backward()
    net.output.requires_grad_(False)
    assert net.output.weight.grad is None                      # no step with what is left of it
    assert net.features[0].scale.grad is not None
    assert [name for name, _ in net.named_parameters()] == ["ws.0", *NAMES[:-1]]


def test_a_frozen_tensor_of_another_dtype_stays_frozen() -> None:
    net = nn.Linear(2, 2).requires_grad_(False)
    net.weight.data = net.weight.data.astype(np.float16)
    with pytest.raises(TypeError, match=r"^requires_grad_: weight is float16 and cannot require a gradient, only"):
        net.requires_grad_()
    assert not net.bias.requires_grad


def test_frozen_parameters_show() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).requires_grad_(False)
    net.scale = Tensor([1.0], requires_grad=True)
    assert repr(net) == "Sequential(\n  (0): Linear(2, 3, frozen: weight bias)\n  (1): ReLU()\n)"
    net.scale.requires_grad = False
    assert repr(net).startswith("Sequential(\n  frozen: scale\n  (0): Linear")


# ---------------------------------------------------------------- ties
def tied() -> nn.Module:
    net = nn.Sequential(a=nn.Linear(2, 2), b=nn.Linear(2, 2))
    net.b.weight = net.a.weight
    return net


ALL = ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_a_tied_state_has_all_names_and_one_array() -> None:
    state = tied().state_dict()
    assert list(state) == ALL
    assert state["a.weight"] is state["b.weight"]


@pytest.mark.parametrize("names", [ALL, ALL[:2] + ALL[3:], ALL[1:]])
def test_one_name_of_a_tied_tensor_is_enough(names: list[str]) -> None:
    one, other = tied(), tied()
    other.load_state_dict({name: one.state_dict()[name] for name in names})
    np.testing.assert_array_equal(other.b.weight.numpy(), one.a.weight.numpy())
    assert other.b.weight is other.a.weight


def test_tied_and_untied_load_each_other_or_say_why_not() -> None:
    one, untied = tied(), nn.Sequential(a=nn.Linear(2, 2), b=nn.Linear(2, 2))
    message = "load_state_dict: 1 of 4 entries do not fit: b.weight and a.weight are one Tensor in the model but differ"
    before = one.state_dict()
    with pytest.raises(ValueError, match=f"^{message} in the state; build the model"):
        one.load_state_dict(untied.state_dict())
    np.testing.assert_array_equal(one.state_dict()["a.bias"], before["a.bias"])
    untied.load_state_dict(before)
    for name, values in untied.state_dict().items():
        np.testing.assert_array_equal(values, before[name])
    assert untied.b.weight is not untied.a.weight
    one.load_state_dict(untied.state_dict())                   # now that they are equal


def test_a_shared_module_is_a_tie() -> None:
    inner = nn.Linear(2, 2)
    one = nn.Sequential(nn.Sequential(inner, inner), inner, nn.ModuleList([nn.Sequential(inner)]))
    assert list(one.state_dict()) == [f"{path}.{name}" for path in ("0.0", "0.1", "1", "2.0.0")
                                      for name in ("weight", "bias")]
    other = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2),
                          nn.ModuleList([nn.Sequential(nn.Linear(2, 2))]))
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(other[2][0][0].weight.numpy(), inner.weight.numpy())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_keep_ties(again: Any) -> None:
    net = again(tied())
    assert net.a.weight is net.b.weight
    assert list(net.state_dict()) == ALL
    assert len(list(net.parameters())) == 3


# ---------------------------------------------------------------- while a step is recorded
@pytest.mark.parametrize(("act", "what"), [
    (lambda net: net.to("cpu"), r"moves or converts a Module with \.to\(\)"),
    (lambda net: net.load_state_dict({}), r"loads a state with \.load_state_dict\(\)"),
    (lambda net: net.requires_grad_(False), r"freezes or unfreezes parameters with \.requires_grad_\(\)"),
])
def test_a_recorded_step_refuses_to_change_state(act: Any, what: str) -> None:
    net = nn.Linear(2, 2)

    @minidl.compile
    def step(x: Tensor) -> Tensor:
        act(net)
        return net(x)

    with pytest.raises(ValueError, match=f"{what} at .*, which a replay could not repeat; do it outside the step$"):
        step(images(1, 2))
    assert net.weight.requires_grad


def test_a_recorder_is_told_of_every_module_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(minidl.compile.__globals__["record"].__globals__["Recorder"], "reads",
                        lambda self, module: called.append(module), raising=False)
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    minidl.compile(lambda x: net(x))(images(1, 2))
    assert called == [net, net[0], net[1]]
    net(images(1, 2))
    assert len(called) == 3


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
    net.count = Tensor([3])
    assert net.to(dtype="float64") is net
    assert [id(p) for p in net.parameters()] == [id(p) for p in held]
    assert {p.dtype for p in held} == {np.dtype("float64")}
    assert [p.grad for p in held] == [None] * len(held)
    x = images(1, 2, 4, 4, dtype=np.float64)
    assert (net.features[0].offset.dtype, net.count.dtype) == (np.float64, np.int64)
    net.eval()(x).sum().backward()
    assert net.output.weight.grad.dtype == np.float64
    assert net.to("cpu") is net


@pytest.mark.parametrize(("move", "error", "message"), [
    ({"dtype": "int64"}, TypeError, "to: dtype int64 cannot require a gradient, only float32 and float64 can; choose"),
    ({"dtype": "float16"}, TypeError, "to: dtype float16 cannot require a gradient"),
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
    **{layer.__name__: (layer, X, lambda x, net, act=act: getattr(ops, act)(x)) for act, layer in ACTIVATIONS.items()},
    "Conv2d with dilation": (lambda: nn.Conv2d(2, 4, 2, dilation=(2, 3)), X,
                             lambda x, net: ops.conv2d(x, net.weight, net.bias, dilation=(2, 3))),
    "Conv1d": (lambda: nn.Conv1d(2, 4, 3, 2, 1, 2, 2), X[:, :, 0], lambda x, net: ops.conv1d(
        x, net.weight, net.bias, stride=2, padding=1, dilation=2, groups=2)),
    "Conv1d without bias": (lambda: nn.Conv1d(2, 4, 3, bias=False), X[:, :, 0],
                            lambda x, net: ops.conv1d(x, net.weight)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, (2, 3), 2, 1, 1), X, lambda x, net: ops.conv_transpose2d(
        x, net.weight, net.bias, stride=2, padding=1, output_padding=1)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), X, lambda x, net: ops.interpolate(x, scale_factor=2)),
    "Upsample to a size": (lambda: nn.Upsample((12, 14)), X, lambda x, net: ops.interpolate(x, size=(12, 14))),
    "PixelShuffle": (lambda: nn.PixelShuffle(1), X, lambda x, net: x),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((1, 3)), X, lambda x, net: ops.adaptive_avg_pool2d(x, (1, 3))),
    "SiLU": (nn.SiLU, X, lambda x, net: ops.silu(x)),
    "GELU": (nn.GELU, X, lambda x, net: ops.gelu(x)),
    "GELU by tanh": (lambda: nn.GELU("tanh"), X, lambda x, net: ops.gelu(x, "tanh")),
    "LeakyReLU of a slope": (lambda: nn.LeakyReLU(0.2), X, lambda x, net: ops.leaky_relu(x, 0.2)),
    "ELU of an alpha": (lambda: nn.ELU(0.5), X, lambda x, net: ops.elu(x, 0.5)),
    "Identity": (lambda: nn.Identity(3), X, lambda x, net: x),
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


def test_sequential_changes_as_a_list() -> None:
    """What is named by its number gets its new one; other names stay."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), last=nn.Linear(3, 1))
    first, act, last = net
    assert list(net.insert(0, nn.Tanh()).state_dict()) == ["1.weight", "1.bias", "last.weight", "last.bias"]
    net[1] = nn.Linear(2, 3, bias=False)
    assert list(net.append(nn.Linear(1, 1)).state_dict()) == [
        "1.weight", "last.weight", "last.bias", "4.weight", "4.bias"]
    assert net.pop(0).extra_repr() == ""
    del net[0]
    assert list(net.extend([first])) == [act, last, net[2], first]
    assert list(net.state_dict()) == ["last.weight", "last.bias", "2.weight", "2.bias", "3.weight", "3.bias"]
    assert list(net[1:3].state_dict()) == ["last.weight", "last.bias", "2.weight", "2.bias"]
    assert net[1:3][0] is last
    before = list(net)
    for change in (lambda: net.append(ops.relu), lambda: net.insert(0, 3), lambda: net.extend([nn.ReLU(), None]),
                   lambda: net.__setitem__(0, "relu"),
                   lambda: nn.Sequential(**{"1": nn.ReLU(), "0": nn.Tanh()}).insert(0, nn.ReLU())):
        with pytest.raises((TypeError, ValueError), match=r"^Sequential: "):
            change()
    assert list(net) == before
    for change in (lambda: net[9], lambda: net.__setitem__(9, act), lambda: net.pop(9)):
        with pytest.raises(IndexError):
            change()


def test_a_changed_sequential_is_seen_by_a_compiled_step() -> None:
    net, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), images(4, 2)
    step = minidl.compile(lambda x: net(x))
    for change in (lambda: net.append(nn.Tanh()), lambda: net.__setitem__(1, nn.Sigmoid()), lambda: net.pop(0)):
        for _ in range(3):
            np.testing.assert_array_equal(step(x).numpy(), net(x).numpy())
        change()
    np.testing.assert_array_equal(step(x).numpy(), net(x).numpy())


def test_dropout2d_drops_whole_channels() -> None:
    layer, x = nn.Dropout2d(0.4), Tensor(np.ones((50, 20, 3, 2), np.float32), requires_grad=True)
    minidl.manual_seed(3)
    y = layer(x)
    maps = y.numpy().reshape(1000, 6)
    assert (maps == maps[:, :1]).all()
    assert set(maps[:, 0].tolist()) == {0.0, np.float32(1 / 0.6).item()}
    assert 0.3 < (maps[:, 0] == 0).mean() < 0.5
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    assert layer.eval()(x) is x
    assert repr(layer) == "Dropout2d(p=0.4)"
    net = layer.train()
    step = minidl.compile(lambda x: net(x))
    masks = [step(x.detach()).numpy().tobytes() for _ in range(4)]
    assert len(set(masks)) == 4


@pytest.mark.parametrize(("layers", "named", "error", "message"), [
    ((nn.ReLU(), ops.relu), {}, TypeError,
     "Sequential: layer 1 is a function but must be a Module; put functions into a Module's forward"),
    ((), {"act": 3}, TypeError, "Sequential: layer act is a int but must be a Module; put functions into"),
    ((), {"a.b": nn.ReLU()}, ValueError, r"Sequential: the layer name 'a\.b' has a dot or is taken; choose"),
    ((), {"training": nn.ReLU()}, ValueError, "Sequential: the layer name 'training' has a dot or is taken"),
    ((), {"forward": nn.ReLU()}, ValueError, "Sequential: the layer name 'forward' has a dot or is taken"),
    ((nn.ReLU(),), {"0": nn.ReLU()}, ValueError, "Sequential: the layer name '0' has a dot or is taken; choose "
     r"another, or make nn.Sequential\(\*layers\) of part of a net, which numbers them anew"),
])
def test_sequential_refuses(layers: Any, named: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        nn.Sequential(*layers, **named)


# ---------------------------------------------------------------- ModuleList, ModuleDict
def test_module_list_is_a_list() -> None:
    a, b, c, d = (nn.Linear(1, 1) for _ in range(4))
    layers = nn.ModuleList([a])
    layers.append(b)
    layers.extend([d])
    layers.insert(2, c)
    assert list(layers) == [a, b, c, d]
    assert (len(layers), layers[-1], c in layers) == (4, d, True)
    assert list(layers[1:3]) == [b, c]
    assert isinstance(layers[1:3], nn.ModuleList)
    layers[0] = d
    del layers[1:3]
    assert list(layers) == [d, d]
    assert list(layers.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    net = nn.Module()
    net.layers = layers
    layers.scale = Tensor([1.0], requires_grad=True)
    assert [name for name, _ in net.named_parameters()] == ["layers.scale", "layers.0.weight", "layers.0.bias"]
    assert repr(nn.ModuleList([nn.ReLU()])) == "ModuleList(\n  (0): ReLU()\n)"
    with pytest.raises(TypeError, match=r"^ModuleList: forward is not defined"):
        layers(1)
    with pytest.raises(TypeError, match=r"^ModuleList: layer 2 is a function but must be a Module; put functions"):
        layers.append(ops.relu)
    assert len(layers) == 2


def test_module_dict_is_a_dict() -> None:
    a, b = nn.Linear(1, 1, bias=False), nn.ReLU()
    heads = nn.ModuleDict({"forward": a})                      # no attribute: any name will do
    heads["b"] = b
    assert (list(heads.keys()), list(heads.values()), list(heads.items())) == (
        ["forward", "b"], [a, b], [("forward", a), ("b", b)])
    assert list(heads.state_dict()) == ["forward.weight"]
    assert heads != nn.ModuleDict(heads)
    assert hash(heads) != hash(nn.ModuleDict(heads))
    del heads["forward"]
    assert ("b" in heads, len(heads), heads.get("forward")) == (True, 1, None)
    assert repr(heads) == "ModuleDict(\n  (b): ReLU()\n)"
    with pytest.raises(TypeError, match=r"^ModuleDict: layer c is a int but must be a Module"):
        heads["c"] = 3
    for key in (3, "a.b", ""):
        with pytest.raises(ValueError, match=f"^ModuleDict: the key {key!r} names a Tensor or Module but must be"):
            heads[key] = b
    assert list(heads) == ["b"]


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
  (output): Linear(3, 4, bias=False)
)"""
    assert repr(nn.Conv2d(1, 2, 3, bias=False)) == "Conv2d(1, 2, kernel_size=(3, 3), stride=1, padding=0, bias=False)"
    assert repr(nn.MaxPool2d(3, 2, 1)) == "MaxPool2d(kernel_size=3, stride=2, padding=1)"
    assert repr(nn.AvgPool2d(2)) == "AvgPool2d(kernel_size=2, stride=None, padding=0)"
    assert repr(nn.Sequential()) == "Sequential()"


# ---------------------------------------------------------------- what layers refuse, as they are built
W, F = np.int64, np.float32
NUMPYS: dict[str, tuple[Any, Any]] = {         # layers of NumPy's numbers, and the same of Python's
    "Linear": (lambda: nn.Linear(np.uint8(200), W(2)), lambda: nn.Linear(200, 2)),
    "Conv2d": (lambda: nn.Conv2d(np.uint8(4), W(6), W(3), W(2), (W(1), 0), groups=W(2), dilation=np.int32(2)),
               lambda: nn.Conv2d(4, 6, 3, 2, (1, 0), groups=2, dilation=2)),
    "Conv2d whose sizes' product is more than 255": (lambda: nn.Conv2d(np.uint8(200), 1, np.uint8(3)),
                                                     lambda: nn.Conv2d(200, 1, 3)),
    "padding by edge": (lambda: nn.Conv2d(1, 1, (W(3), 3), padding=((W(1), W(0)), (2, W(1)))),
                        lambda: nn.Conv2d(1, 1, (3, 3), padding=((1, 0), (2, 1)))),
    "Conv1d": (lambda: nn.Conv1d(W(2), W(4), W(3), W(2), (W(1), W(0)), W(1), W(2)),
               lambda: nn.Conv1d(2, 4, 3, 2, (1, 0), 1, 2)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(W(2), W(3), W(3), W(2), W(1), W(1)),
                        lambda: nn.ConvTranspose2d(2, 3, 3, 2, 1, 1)),
    "MaxPool2d": (lambda: nn.MaxPool2d(W(3), W(2), W(1)), lambda: nn.MaxPool2d(3, 2, 1)),
    "AvgPool2d": (lambda: nn.AvgPool2d((W(3), 2)), lambda: nn.AvgPool2d((3, 2))),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(W(3), F(0.5), F(0.25)), lambda: nn.BatchNorm2d(3, 0.5, 0.25)),
    "LayerNorm": (lambda: nn.LayerNorm((W(3), 4), F(0.5)), lambda: nn.LayerNorm((3, 4), 0.5)),
    "GroupNorm": (lambda: nn.GroupNorm(W(2), W(4), F(0.5)), lambda: nn.GroupNorm(2, 4, 0.5)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(W(5), F(0.5)), lambda: nn.LocalResponseNorm(5, 0.5)),
    "Embedding": (lambda: nn.Embedding(W(5), np.uint8(3), W(1)), lambda: nn.Embedding(5, 3, 1)),
    "Upsample": (lambda: nn.Upsample(scale_factor=W(2)), lambda: nn.Upsample(scale_factor=2)),
    "PixelShuffle": (lambda: nn.PixelShuffle(np.uint8(2)), lambda: nn.PixelShuffle(2)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((W(2), None)), lambda: nn.AdaptiveAvgPool2d((2, None))),
    "Subsample2d": (lambda: nn.Subsample2d(W(3), W(2)), lambda: nn.Subsample2d(3, 2)),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_numbers_are_numbers(name: str) -> None:
    made = []
    for build in NUMPYS[name]:
        minidl.manual_seed(W(3))
        made.append(build())
    mine, wanted = made
    assert repr(mine) == repr(wanted)
    assert all(np.array_equal(array, wanted.state_dict()[key]) for key, array in mine.state_dict().items())
    facts = [value for value in vars(mine).values() if not isinstance(value, Tensor)]
    assert not any(isinstance(each, np.generic) for value in facts
                   for each in (value if isinstance(value, tuple) else (value,)))


def test_a_compiled_step_of_layers_with_numpys_numbers() -> None:
    net = nn.Sequential(nn.Conv2d(W(1), W(2), W(3), W(2), W(1)), nn.BatchNorm2d(W(2), F(0.5)), nn.MaxPool2d(W(2)))
    x = Tensor(np.arange(128, dtype=np.float32).reshape(2, 1, 8, 8))
    step = minidl.compile(lambda x: net(x))
    net.eval()
    assert all(np.array_equal(step(x).numpy(), net(x).numpy()) for _ in range(3))
    windows = ops.conv2d(x, net[0].weight, net[0].bias, stride=(W(2), W(2)), padding=W(1))
    assert np.array_equal(windows.numpy(), net[0](x).numpy())


class Refuses:
    """As a Tensor of PyTorch on a GPU, one that requires a gradient, or of bfloat16."""

    def __init__(self, error: Exception):
        self.error = error

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise self.error


@pytest.mark.parametrize("error", [TypeError("Got unsupported ScalarType BFloat16"), TypeError("can't convert cuda:0"),
                                   RuntimeError("Can't call numpy() on Tensor that requires grad.")])
def test_an_entry_that_gives_no_array_is_named(error: Exception) -> None:
    model = nn.Linear(3, 2)
    before = model.state_dict()
    with pytest.raises(TypeError, match=r"^load_state_dict: bias is a test_nn\.Refuses that gives no array \("
                                        + re.escape(str(error)) + r"\); convert it before, of PyTorch by \.detach"):
        model.load_state_dict({"weight": np.ones((2, 3), "f4"), "bias": Refuses(error)})
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


WINDOW = r"must be an int or a pair of ints \(height, width\), each at least 1$"
EDGES = r"must be p, \(ph, pw\) or \(\(top, bottom\), \(left, right\)\), ints of at least 0$"


@pytest.mark.parametrize(("build", "message"), [
    (lambda: nn.Conv2d(0, 4, 3), "Conv2d: in_channels is 0 but must be an int of at least 1$"),
    (lambda: nn.Conv2d(1, 4.0, 3), r"Conv2d: out_channels is 4\.0 but must be an int of at least 1$"),
    (lambda: nn.Conv2d(1, 4, 0), f"Conv2d: kernel_size is 0 but {WINDOW}"),
    (lambda: nn.Conv2d(1, 4, (3, 3, 3)), rf"Conv2d: kernel_size is \(3, 3, 3\) but {WINDOW}"),
    (lambda: nn.Conv2d(1, 4, 3, stride=0), f"Conv2d: stride is 0 but {WINDOW}"),
    (lambda: nn.Conv2d(1, 4, 3, padding=-1), f"Conv2d: padding is -1 but {EDGES}"),
    (lambda: nn.Conv2d(1, 4, 3, padding="full"), "Conv2d: padding 'full' is not 'same' or 'valid'; write"),
    (lambda: nn.Linear(0, 4), "Linear: in_features is 0 but must be an int of at least 1$"),
    (lambda: nn.Linear(4, "ten"), "Linear: out_features is 'ten' but must be an int of at least 1$"),
    (lambda: nn.AvgPool2d(0), f"AvgPool2d: kernel_size is 0 but {WINDOW}"),
    (lambda: nn.AvgPool2d(2, stride=(1, 0)), rf"AvgPool2d: stride is \(1, 0\) but {WINDOW}"),
    (lambda: nn.MaxPool2d(2.5), rf"MaxPool2d: kernel_size is 2\.5 but {WINDOW}"),
    (lambda: nn.MaxPool2d(2, padding=(1, -1)), rf"MaxPool2d: padding is \(1, -1\) but {EDGES}"),
    (lambda: nn.Dropout(1.0), r"Dropout: p is 1\.0 but must be in \[0, 1\)$"),
    (lambda: nn.Dropout(-0.1), r"Dropout: p is -0\.1 but must be in \[0, 1\)$"),
    (lambda: nn.Dropout2d(1), r"Dropout2d: p is 1 but must be in \[0, 1\)$"),
    (lambda: nn.Conv3d(1, 4, (3, 3)), r"Conv3d: kernel_size is \(3, 3\) but must be an int or a triple of ints"),
    (lambda: nn.Conv3d(1, 4, 3, padding="same", stride=2), r"Conv3d: padding is 'same' but stride is \(2, 2, 2\), by"),
    (lambda: nn.Conv1d(1, 4, (3,)), r"Conv1d: kernel_size is \(3,\) but must be an int of at least 1$"),
    (lambda: nn.Conv1d(3, 4, 3, groups=2), "Conv1d: groups is 2 but must divide in_channels 3 and out_channels 4$"),
    (lambda: nn.Dropout(float("nan")), r"Dropout: p is nan but must be in \[0, 1\)$"),
    (lambda: nn.MSELoss(reduction="avg"), "MSELoss: reduction 'avg' is not one of mean, sum, none"),
    (lambda: nn.Embedding(0, 3), "Embedding: num_embeddings is 0 but must be an int of at least 1"),
    (lambda: nn.Embedding(2, 3, False), "Embedding: padding_idx is False but must be a row, 0 to 1"),
    (lambda: nn.Embedding(2, 3, padding_idx=2), "Embedding: padding_idx is 2 but must be a row, 0 to 1"),
    (lambda: nn.Conv2d(3, 4, 3, dilation=0), "Conv2d: dilation is 0 but must be an int or a pair"),
    (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), "Upsample: mode 'bilinear' is not 'nearest', the only one"),
    (lambda: nn.HuberLoss(delta=0), "HuberLoss: delta is 0 but must be above 0"),
    (lambda: nn.GELU("sigmoid"), "GELU: approximate is 'sigmoid' but must be 'none' or 'tanh'"),
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


# ---------------------------------------------------------------- losses
LOGITS, LABELS = images(4, 3), np.array([0, 2, 1, 0])
TARGET = images(4, 3) * 0.5
LOSSES = {
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), LABELS, lambda x, y: ops.cross_entropy(x, y)),
    "CrossEntropyLoss with options": (
        nn.CrossEntropyLoss(Tensor([1.0, 2.0, 3.0]), ignore_index=1, reduction="sum", label_smoothing=0.1), LABELS,
        lambda x, y: ops.cross_entropy(x, y, Tensor([1.0, 2.0, 3.0]), ignore_index=1, reduction="sum",
                                       label_smoothing=0.1)),
    "NLLLoss": (nn.NLLLoss(ignore_index=2, reduction="none"), LABELS,
                lambda x, y: ops.nll_loss(x, y, ignore_index=2, reduction="none")),
    "MSELoss": (nn.MSELoss(reduction="sum"), TARGET, lambda x, y: ops.mse_loss(x, y, reduction="sum")),
    "L1Loss": (nn.L1Loss(), TARGET, lambda x, y: ops.l1_loss(x, y)),
    "HuberLoss": (nn.HuberLoss(delta=0.1), TARGET, lambda x, y: ops.huber_loss(x, y, delta=0.1)),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(pos_weight=Tensor([2.0, 1.0, 3.0])), TARGET,
                          lambda x, y: ops.binary_cross_entropy_with_logits(x, y, pos_weight=Tensor([2.0, 1.0, 3.0]))),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_op(name: str) -> None:
    layer, y, expected = LOSSES[name]
    np.testing.assert_array_equal(layer(LOGITS, y).numpy(), expected(LOGITS, y).numpy())
    assert f"reduction={layer.reduction!r}" in repr(layer)


def test_weights_of_a_loss_are_buffers() -> None:
    assert list(nn.CrossEntropyLoss(Tensor([1.0, 2.0])).state_dict()) == ["weight"]
    assert list(nn.BCEWithLogitsLoss(pos_weight=Tensor([1.0])).state_dict()) == ["pos_weight"]


@pytest.mark.parametrize("weight", [None, 1.0, 3.0])
def test_binary_cross_entropy_of_what_is_sure(weight: float | None) -> None:
    """Small losses are not rounded away beside 1, nor beside the logit."""
    x, target = np.array([20.0, -20.0, 60.0, -60.0, 100.0, -3.0, 0.0, 20.0]), np.array([1.0, 0, 1, 0, 1, 0, 1, 0])
    exact = np.logaddexp(0, -x) * target * (weight or 1) + np.logaddexp(0, x) * (1 - target)
    for dtype in ("float32", "float64"):
        found = ops.binary_cross_entropy_with_logits(
            Tensor(x, dtype=dtype), Tensor(target, dtype=dtype), reduction="none",
            pos_weight=None if weight is None else Tensor(np.full(8, weight), dtype=dtype))
        np.testing.assert_allclose(found.numpy(), exact, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-44)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_the_mean_over_no_image_is_nan_and_an_ignored_label_has_no_gradient() -> None:
    x = Tensor([[3.0, 1.0], [2.0, -np.inf]], requires_grad=True)           # which counts for nothing in its image
    assert np.isnan(ops.cross_entropy(x, [1, 1], ignore_index=1).item())
    loss = ops.cross_entropy(x, [1, 0], ignore_index=1)
    loss.backward()
    assert loss.item() == 0
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 0], [0, 0]]


def test_apply_goes_from_the_first_to_the_last_and_to_each_once() -> None:
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared, nn.Tanh()), nn.Sigmoid())
    seen: list[str] = []
    net.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "ReLU", "Tanh", "Sequential", "Sigmoid", "Sequential"]


class Lends:
    """As a tensor of PyTorch, or a column of pandas: it shows its memory as an array."""

    def __init__(self, held: np.ndarray):
        self.held = held

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.held if dtype is None else self.held.astype(dtype)


def test_what_others_lend_keeps_its_dtype_and_is_copied_where_a_copy_is_promised() -> None:
    """float64 became float32, as Python's floats do, and a frozen Parameter shared its memory."""
    held = np.array([16777217.0])
    for made in (Tensor(Lends(held)), minidl.from_numpy(Lends(held)), minidl.tensor(Lends(held))):  # type: ignore[arg-type]
        assert (made.dtype, made.item()) == (np.float64, 16777217.0)
    assert Tensor(array.array("d", held)).item() == minidl.tensor(memoryview(held)).item() == 16777217.0
    assert minidl.from_numpy(Lends(held)).data is held  # type: ignore[arg-type]
    values = np.zeros(3, np.float32)
    for own in (nn.Parameter(values, False), nn.Parameter(values), minidl.tensor(values),
                minidl.tensor(Lends(values)), nn.Parameter(Tensor(values), False)):
        with minidl.no_grad():
            own.add_(1.0)
        assert (values == 0).all()
    lent = array.array("f", [0.0, 0.0])
    minidl.tensor(lent).add_(1.0)
    assert lent.tolist() == [0.0, 0.0]
