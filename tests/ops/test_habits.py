"""Names that users of PyTorch look for: methods, advice, messages, reprs, and docs/from-pytorch.md."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks.references import ROOT

import minidl
from minidl import Tensor, data, nn, ops, optim
from minidl.habits import ADVICE
from minidl.ops.arrays import methods

PLACES: dict[str, Any] = {"Tensor": Tensor([1.0]), "Module": nn.ReLU(),
                          "Optimizer": optim.SGD([nn.Parameter([1.0])], 0.1),
                          "DataLoader": data.DataLoader(data.load("synthetic-digits", "test").first(10), 4)}


def render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_docs", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- advice
@pytest.mark.parametrize("place", ADVICE)
def test_each_name_that_is_not_there_says_what_is(place: str) -> None:
    owner = PLACES.get(place) or sys.modules[place]
    for name, instead in ADVICE[place].items():
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        assert str(caught.value) == f"{place}.{name}: is not here; in its place: {instead}"


FORMULAS = {                               # what the advice computes: values, and slopes
    "logsigmoid": (lambda x: -np.logaddexp(0, -x), lambda x: 1 / (1 + np.exp(x))),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.filterwarnings("ignore:overflow encountered")             # of the expected values
def test_formulas_of_the_advice_hold_for_large_numbers_and_at_0(name: str) -> None:
    value, slope = FORMULAS[name]
    text = ADVICE["minidl.ops"][name]
    for number in (-1000.0, -1.0, 0.0, 1.0, 1000.0):
        x = Tensor([number], dtype="float64", requires_grad=True)
        with np.errstate(over="raise"):
            y = eval(text, {"x": x, "y": 0.25, "ops": ops})
            y.sum().backward()
        assert y.item() == pytest.approx(float(value(np.float64(number))), abs=1e-12)
        assert x.grad.item() == pytest.approx(float(slope(np.float64(number))), abs=1e-12)


def test_any_other_name_is_pythons() -> None:
    for owner, words in ((minidl, "module 'minidl' has no"), (nn, "module 'minidl.nn' has no"),
                         (Tensor([1.0]), "'Tensor' object has no"), (nn.ReLU(), "'ReLU' object has no"),
                         (PLACES["Optimizer"], "'SGD' object has no")):
        with pytest.raises(AttributeError, match=f"^{words} attribute 'nothing'$"):
            _ = owner.nothing
        assert not hasattr(owner, "nothing")
    with pytest.raises(AttributeError, match=r"^minidl\.conv2d: is not here; in its place: minidl\.ops\.conv2d$"):
        _ = minidl.conv2d
    with pytest.raises(AttributeError, match=r"^minidl\.ops\.topk: is not here; in its place: t\.topk\(\.\.\.\)$"):
        _ = ops.topk


def test_what_copies_and_pickles_asks_for_names_that_are_not_there() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=1))
    for twin in (copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(twin[0].weight.numpy(), net[0].weight.numpy())
    t = Tensor([1.0, 2.0])
    assert pickle.loads(pickle.dumps(t)).tolist() == copy.copy(t).tolist() == [1.0, 2.0]


def test_modules_that_are_called() -> None:
    values = np.ones(2)
    t = minidl.tensor(values)
    values[0] = 5
    assert t.tolist() == [1.0, 1.0]
    assert minidl.from_numpy(values).tolist() == [5.0, 1.0]
    assert minidl.device("cpu") == "cpu"
    with pytest.raises(ValueError, match=r"^device: 'gpu' is not one of"):
        minidl.device("gpu")


# ---------------------------------------------------------------- the page
def test_the_page_is_as_the_code_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert render().main(["--check"]) == 0
    assert capsys.readouterr().out == "from-pytorch.md: is as the code has it\n"


def test_a_page_that_differs_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = render()
    script.PAGE = tmp_path / "page.md"
    script.PAGE.write_text("<!-- habits: Module -->\nold\n<!-- /habits -->\n")
    assert script.main(["--check"]) == 1
    assert capsys.readouterr().out == "page.md: differs; run python docs/render.py\n"
    assert script.main([]) == 0
    assert "| `zero_grad` | Set all parameters' gradients to None. |" in script.PAGE.read_text()
    with pytest.raises(ValueError, match=r"^page\.md: there is no block 'x'; there are Tensor, Module, create, "):
        script.rendered("<!-- habits: x -->\n<!-- /habits -->")


def test_traps_of_the_page() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 3.0]], requires_grad=True)
    assert x.transpose((0, 1)).tolist() == x.tolist() != x.transpose(0, 1).tolist() == x.permute(1, 0).tolist()
    assert x.max(axis=1).tolist() == np.max(x, 1).tolist() == [2.0, 3.0]
    for pairs in (lambda: x.max(1), lambda: x.min(dim=1), lambda: ops.max(x, 1)):
        with pytest.raises(TypeError, match=r"^(max|min): "):
            pairs()
    assert isinstance(x.numpy(), np.ndarray)
    with pytest.raises(TypeError, match=r"^numpy: a Tensor that requires a gradient"):
        np.concatenate([x, x])
    with minidl.no_grad():
        assert isinstance(np.concatenate([x, x]), np.ndarray)
    for on_tape in (np.exp(x), np.sum(x), np.mean(x, axis=1), np.maximum(x, 2), np.abs(x), np.clip(x, 0, 1), np.var(x)):
        assert isinstance(on_tape, Tensor)
        assert on_tape.requires_grad
    assert (x.size, x.size(0), x.size()) == (4, 2, (2, 2))
    with pytest.raises(TypeError, match=r"^eq: an input is a builtins\.NoneType but must be a Tensor"):
        _ = x == None  # noqa: E711
    with pytest.raises(ValueError, match=r"^to: the Tensor was made by 'mul'"):
        (x * 2).double()
    with pytest.raises(ValueError, match=r"^setitem: .*read-only"):
        Tensor([1.0]).expand(3)[0] = 2.0
    assert [t.dtype for t in (Tensor(np.ones(1, np.uint8)) / 255, Tensor([1]) + 1.5, Tensor([1, 2]).mean())] == [
        np.float32] * 3
    assert (Tensor(np.ones(1)) * 2.5).dtype == np.float64
    assert (Tensor([1]) + 1).dtype == np.int64


# ---------------------------------------------------------------- messages
def wrongly(call: Callable[..., Any]) -> str:
    """What a call says that no function takes."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*[object()] * 12, nonsense=1)
    return str(caught.value)


def test_no_message_says_lambda() -> None:
    t = Tensor([[1.0, 2.0]])
    calls = {f"ops.{name}": value for name, value in vars(ops).items() if callable(value) and name[0] != "_"}
    calls |= {f"t.{name}": getattr(t, name) for name in (*vars(methods.Methods), *vars(methods.Conversions))
              if name[0] != "_" and callable(getattr(t, name)) and name != "size"}
    calls |= {f"t.{name}": getattr(t, name) for name in ("sum", "mean", "max", "argmax", "reshape", "transpose",
                                                        "flatten", "exp", "log", "sqrt", "tanh", "__add__", "__rsub__")}
    calls |= {f"minidl.{name}": getattr(minidl, name) for name in ("zeros", "arange", "compile", "randn", "primitive")}
    said = {name: wrongly(call) for name, call in calls.items()}
    assert len(said) > 120
    assert {name: text for name, text in said.items() if "lambda" in text or "<locals>" in text} == {}


# ---------------------------------------------------------------- compiled steps
RECORDED: list[Callable[[Tensor], Any]] = [
    lambda x: x.view(3, 2).sigmoid(), lambda x: x.squeeze().unsqueeze(0).expand(4, -1, -1), lambda x: x.repeat(2, 1),
    lambda x: x.clip(-0.5, 0.5), lambda x: ops.where(x > 0, x, 0.0), lambda x: x.masked_fill(x > 0, 1.0),
    lambda x: x.sort(1)[0], lambda x: x.topk(1)[1], lambda x: x.gather(1, x.argsort(1)), lambda x: x.std(1),
    lambda x: x.norm(), lambda x: x.cumsum(1), lambda x: x.logsumexp(1), lambda x: (x > 0).any(1),
    lambda x: x.chunk(3, 1), lambda x: ops.pad(x, (1, 1)), lambda x: x.flip(0), lambda x: ops.stack([x, x]),
    lambda x: x.clone(), lambda x: x.mT,
    lambda x: (x > 0) & ~(x > 1), lambda x: ops.maximum(x, x * x), lambda x: abs(x), lambda x: x.min(axis=1),
    lambda x: x.var(unbiased=False)]


@pytest.mark.parametrize("at", range(len(RECORDED)))
def test_methods_are_recorded(at: int) -> None:
    rng = np.random.default_rng(at)
    plain, compiled = RECORDED[at], minidl.compile(RECORDED[at])
    for _ in range(4):
        x = Tensor(rng.standard_normal((2, 3), np.float32))
        wanted, found = plain(x), compiled(x)
        several = isinstance(wanted, tuple)
        for a, b in zip(wanted if several else [wanted], found if several else [found], strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
    assert compiled.recordings == 2


def test_gradients_of_methods_are_recorded() -> None:
    def step(w: Tensor) -> Any:
        w.grad = None
        (w.sort(1)[0] * w.std(1, keepdim=True) + w.clip(-1, 1).cumsum(1)).norm().backward()
        return w.grad

    w = Tensor(np.random.default_rng(0).standard_normal((3, 4)), requires_grad=True)
    compiled = minidl.compile(lambda: step(w))
    for _ in range(3):
        assert step(w).numpy().tobytes() == compiled().numpy().tobytes()


@pytest.mark.parametrize(("step", "words"), [
    (lambda x: x + Tensor(np.zeros(2)), "makes a Tensor from data"),
    (lambda x: x * x.sum().item(), "reads a Tensor's"),
    (lambda x: x.requires_grad_(), "changes whether a Tensor requires a gradient")])
def test_what_cannot_be_recorded_is_refused(step: Callable[[Tensor], Any], words: str) -> None:
    with pytest.raises(minidl.CompileError, match=words):
        minidl.compile(step)(Tensor([1.0, 2.0]))


# ---------------------------------------------------------------- Modules
def test_methods_of_a_module_that_refuse() -> None:
    net = nn.Sequential(features=nn.Sequential(nn.Linear(2, 2)), end=nn.ReLU())
    assert net.get_submodule("features.0") is net.features[0]
    with pytest.raises(ValueError, match=r"^get_submodule: there is no 'x'; there are features, features\.0, end$"):
        net.get_submodule("x")
    with pytest.raises(ValueError, match=r"^register_buffer: mean requires a gradient, so it would be a parameter; "):
        net.register_buffer("mean", nn.Parameter([1.0]))
    with pytest.raises(ValueError, match=r"^register_parameter: scale requires no gradient, so it would be a buffer; "):
        net.register_parameter("scale", Tensor([1.0]))
    with pytest.raises(TypeError, match=r"^load_state_dict: strict=False would leave names out unseen; name what is"):
        net.load_state_dict({}, strict=False)
    net.register_parameter("scale", nn.Parameter([1.0]))
    net.register_buffer("mean", Tensor([1.0]))
    net.add_module("more", nn.Tanh())
    assert list(net.state_dict()) == ["scale", "mean", "features.0.weight", "features.0.bias"]
    assert net.to(np.float64).scale.dtype == np.float64
    assert [type(m).__name__ for m in net.children()] == ["Sequential", "ReLU", "Tanh"]


def test_a_parameter_owns_its_memory() -> None:
    t = Tensor([1.0])
    p = nn.Parameter(t)
    with minidl.no_grad():
        p -= 1.0
    assert (t.item(), p.item(), nn.Parameter(t, requires_grad=False).requires_grad) == (1.0, 0.0, False)


# ---------------------------------------------------------------- how things look
def test_reprs() -> None:
    w, b = nn.Parameter([1.0, 2.0]), nn.Parameter([1.0])
    sgd = optim.SGD([{"params": [w]}, {"params": [b], "lr": 0.5}], 0.1, momentum=0.9)
    assert repr(optim.SGD([w, b], 0.1)) == ("SGD(lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False: 2 parameters, "
                                            "3 values)")
    assert [line.split("=")[0] for line in repr(sgd).splitlines()] == ["SGD(", "  lr", "  lr", ")"]

    @minidl.compile
    def double(x: Tensor) -> Tensor:
        return x * 2
    name = double.name
    assert repr(double) == f"compiled({name}: 0 recordings, 0 programs; not called yet)"
    double(Tensor([1.0]))
    assert repr(double) == f"compiled({name}: 1 recordings, 1 programs; the last of 1 calls)"


def test_html_is_escaped() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = {"<b>": nn.Linear(2, 3)}

        def extra_repr(self) -> str:
            return "a < b & c"
    text = Net()._repr_html_()
    assert "a &lt; b &amp; c" in text
    assert "<td>layers.&lt;b&gt;</td><td>Linear(2, 3)</td><td>(3, 2), (3,)</td>" in text
    assert "Net: 9 parameters" in text
    assert "<tr><td>1</td><td>2.5</td></tr></table>" in Tensor([[1.0, 2.5]])._repr_html_()
    assert Tensor(np.zeros((2, 2, 2)))._repr_html_().startswith("<pre>Tensor([[[0., 0.],")
    assert Tensor(3)._repr_html_() == "<pre>Tensor(3, shape=(), dtype=int64, device=cpu)</pre>"
    step = minidl.compile(lambda x: (x * 2).sum())
    step(Tensor([1.0]))
    assert "<td>mul($0, 2)</td>" in step.program._repr_html_()


def test_methods_have_docstrings() -> None:
    rooms = (methods.Methods, methods.Conversions, nn.habits.Habits)
    assert [name for room in rooms for name, value in vars(room).items()
            if name[0] != "_" and not inspect.getdoc(value)] == []


def test_what_requires_a_gradient_is_set_of_leaves_of_floating_numbers() -> None:
    """Of what an op made it was a silent detach(), and of integers a gradient that no optimizer can use."""
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    y.requires_grad = True                 # as it is
    with pytest.raises(ValueError, match=r"^requires_grad: the Tensor was made by 'mul'; set it on a leaf"):
        y.requires_grad = False
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    x.requires_grad = False
    assert not (x * 2).requires_grad
    i = Tensor([1, 2])
    with pytest.raises(TypeError, match=r"^requires_grad: dtype int64 cannot require a gradient, only float32 and"):
        i.requires_grad = True
    with pytest.raises(ValueError, match=r"^requires_grad: requires_grad is 'no' but must be True or False$"):
        i.requires_grad = "no"             # type: ignore[assignment]


def test_axes_may_be_a_list() -> None:
    x = Tensor(np.arange(24.0).reshape(2, 3, 4))
    for name in ("sum", "mean", "amax", "amin"):
        np.testing.assert_array_equal(getattr(x, name)([0, -1]).numpy(), getattr(x, name)((0, -1)).numpy())
    step = minidl.compile(lambda x: x.sum([0, 1]))
    for _ in range(3):
        assert step(x).tolist() == x.sum((0, 1)).tolist()
