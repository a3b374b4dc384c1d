"""Compiled steps are recorded anew when they must be, refuse what they cannot do, and what passes make of programs."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.steps import (
    Maker,
    Training,
    assert_same_bits,
    batch,
    bits,
    dense,
    half,
    names,
    numbers,
    placed,
    vectors,
)

import minidl
from minidl import Tensor, init, nn, ops, optim
from minidl.compiler import passes
from minidl.compiler import record as recording
from minidl.compiler.agree import Difference, compare
from minidl.compiler.program import Dynamic, Program, Slot, leaves
from minidl.compiler.reads import names as reading
from minidl.compiler.record import CompileError
from minidl.compiler.replay import ByCalls
from minidl.core.mode import mode
from minidl.core.tensor import wrap
from minidl.ops import cpu
from minidl.ops.common.op import OPS, op
from minidl.ops.common.primitives import PRIMITIVES


# ---------------------------------------------------------------- recorded anew
def test_train_and_eval() -> None:
    """Each is recorded once; going back finds the program again."""
    pair, losses = [Training(dense(half), compiled) for compiled in (False, True)], []
    for each in pair:
        minidl.manual_seed(4)
        for i in range(12):
            each.net.train(i % 4 < 2)
            losses.append(bits(each.step(*vectors())))
            assert each is pair[0] or ("dropout" in names(each.step.program)) == (i % 4 < 2)
    assert losses[:12] == losses[12:]
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4


@pytest.mark.usefixtures("fp32")
def test_precision() -> None:
    each = Training(dense(), True)
    for i, precision in enumerate(["fp32", "fp32", "tf32", "tf32", "fp32", "tf32"]):
        minidl.set_precision(precision)
        each.step(*vectors())
        assert each.step.recordings == (1, 2, 3, 4, 4, 4)[i]


@pytest.mark.parametrize(("setting", "value"), [("momentum", 0.5), ("weight_decay", 0.3), ("nesterov", True)])
def test_an_optimizers_setting(setting: str, value: Any) -> None:
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    for i in range(9):
        for each in pair:
            if i == 3:
                each.sgd.groups[0][setting] = value
            each.step(*vectors(seed=i))
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4


def test_a_model_that_is_converted() -> None:
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    for i, dtype in enumerate(["float32", "float32", "float64", "float64", "float64", "float32", "float32"]):
        x, labels = vectors(seed=i)
        for each in pair:
            if each.net[0].weight.dtype != dtype:
                each.net.to(dtype=dtype)
            each.step(x.to(dtype=dtype), labels)
        assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 6


def test_a_converted_constant() -> None:
    """A Tensor from outside whose array is another now: nothing reads the old one."""
    scale = numbers(2)
    step = minidl.compile(lambda x: x * scale)
    assert [step(numbers(3)).item(), step(numbers(4)).item()] == [6, 8]
    scale.data = np.array([5], np.float32)
    assert [step(numbers(3)).item(), step(numbers(4)).item()] == [15, 20]


def test_a_state_that_is_loaded_is_used_and_not_recorded_anew() -> None:
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    state = pair[0].net.state_dict()
    for i in range(9):
        for each in pair:
            if i % 3 == 2:
                each.net.load_state_dict(state)
            each.step(*vectors(seed=i))
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 2


@pytest.mark.parametrize("other", [
    lambda x: Tensor(np.ones((2, 2), np.float32)), lambda x: x.to(dtype="float64"),
    lambda x: Tensor(x.data, requires_grad=True)], ids=["shape", "dtype", "requires_grad"])
def test_signatures(other: Callable[[Tensor], Tensor]) -> None:
    step = minidl.compile(lambda x: x * 2)
    x = numbers(1, 2)
    for _ in range(4):
        step(x)
    assert step.recordings == 2
    y = other(x)
    for _ in range(4):
        assert step(y).tolist() == (y.data * 2).tolist()
    assert step.recordings == 4


# ---------------------------------------------------------------- recordings that agree
GROUP = {"lr": 0.1}


@pytest.mark.parametrize("index", [[2, 0], ([1, 1], [0, 2]), np.array([True, False, True])], ids=str)
def test_an_index_that_is_made_in_the_step_may_be_another_array_of_the_same_values(index: Any) -> None:
    step = minidl.compile(lambda x: x[copy.deepcopy(index)] * 2)
    for i in range(4):
        x = Tensor(np.arange(9.0).reshape(3, 3) + i)
        np.testing.assert_array_equal(step(x).numpy(), x.numpy()[index] * 2)
    assert step.recordings == 2


def test_two_recordings_that_agree_are_one_program_which_nobody_changes() -> None:
    step = minidl.compile(lambda x: x * 2)
    for _ in range(3):
        step(numbers(1))
        assert [len(entries) for entries in step._programs.values()] == [1]
    with pytest.raises(AttributeError, match="name"):
        step.program.calls[0].name = "add"


@pytest.mark.parametrize(("reads", "same"), [
    ((GROUP.get, GROUP.get), True), ((GROUP.get, dict(GROUP).get), False), ((GROUP.keys, GROUP.get), False),
    ((len, len), True), ((len, functools.partial(len)), False),
    ((functools.partial(len, "lr"), functools.partial(len, "lr")), True),
    ((functools.partial(len, "lr"), functools.partial(len, "rl")), False)])
def test_a_number_that_is_read_elsewhere_is_another(reads: Any, same: bool) -> None:
    programs = []
    for read in reads:
        make = Maker()
        x = make.slot("input")
        programs.append(make.program([x], make.call("mul", x, Dynamic(0, read))))
    with contextlib.nullcontext() if same else pytest.raises(Difference, match=r"^it gave mul at"):
        compare(*programs)


def test_memory_that_a_thread_still_refers_to_makes_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large gradient: one that has done its part of an array may have a view of it a moment longer."""
    monkeypatch.setattr(cpu.parallel, "owns", lambda array: step.recordings > 0)
    w, x = Tensor(np.ones((256, 256), np.float32), requires_grad=True), Tensor(np.ones((2, 256), np.float32))

    @minidl.compile
    def step(x: Tensor) -> None:
        w.grad = None
        ops.linear(x, w).sum().backward()
    for _ in range(3):
        step(x)
    assert step.recordings == 2
    assert "copy" in names(step.recorded)
    assert "copy" not in names(step.program)


# ---------------------------------------------------------------- what is refused
W = numbers(1, 2, requires_grad=True)
X = numbers(3, 4)
HELD = numbers(1)
Pair = namedtuple("Pair", "a b")

REPEAT = r", which a replay could not repeat; "
READS = rf"<lambda> reads a Tensor's values at PLACE{REPEAT}return the Tensor and read it outside the step$"
MAKES = (rf"<lambda> makes a Tensor from data at PLACE{REPEAT}make it outside and use it here, or pass it as an "
         "argument$")
TAKES = rf"<lambda> takes a Tensor's array \(\.data\) at PLACE{REPEAT}compute with the Tensor$"
MOVES = (r"<lambda> moves a Tensor, or converts one that requires a gradient, with \.to\(\) at "
         rf"PLACE{REPEAT}do it outside the step$")

REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x.sum().item(), READS),
    "float": (lambda x: float((x * x).sum()), READS),
    "int": (lambda x: int(x.sum()), READS),
    "control flow": (lambda x: x * 2 if x.sum() > 0 else x, READS),
    "a loop's bound": (lambda x: [x * 2 for _ in range(int(x.sum()))], READS),
    "numpy": (lambda x: x * x.numpy().max(), READS),
    "np.asarray": (lambda x: np.asarray(x), READS),
    "tolist": (lambda x: x.tolist(), READS),
    "print": (lambda x: print(x), READS),
    "repr": (lambda x: repr(x * 2), READS),
    "an f-string": (lambda x: f"{x}", READS),
    "a weight": (lambda x: x * W.detach().numpy()[0].item(), READS),
    "a Tensor of an array": (lambda x: x * Tensor(np.ones(2, np.float32)), MAKES),
    "a Tensor of .data": (lambda x: x * Tensor(x.data + 1), TAKES),
    "a leaf of numbers": (lambda x: x * Tensor([1.0, 2.0], requires_grad=True), MAKES),
    "a leaf of random numbers": (lambda x: x * minidl.rand(2, requires_grad=True), MAKES),
    "a parameter's dtype": (lambda x: W.to(dtype="float64"), MOVES),
    "an array of no primitive": (lambda x: np.ones(2), r"<lambda> returns an array of shape \(2,\) that no primitive "
                                 r"made; return Tensors that it computed \(PLACE\)$"),
    "a tuple with one": (lambda x: (x * 2, [np.ones(2)]), r"<lambda> returns an array of shape \(2,\) that no"),
    "a named tuple": (lambda x: Pair(x * 2, x * 3), "<lambda> returns a Pair, which a replay could not make anew; "
                      r"return Tensors and plain values, in tuples, lists and dicts \(PLACE\)$"),
    "an object": (lambda x: [nn.ReLU()], "<lambda> returns a ReLU, which a replay could not make anew"),
    "a Tensor's .data set": (lambda x: setattr(W, "data", HELD),
                             rf"<lambda> sets a Tensor's array \(\.data\) at PLACE{REPEAT}"
                             r"write t\[\.\.\.\] = value under minidl\.no_grad\(\)$"),
    "an initialiser": (lambda x: init.zeros_(X),
                       rf"<lambda> initialises a Tensor at PLACE{REPEAT}do it outside the step$"),
    "velocities": (lambda x: SGD.forget(),
                   rf"<lambda> forgets an optimizer's velocities at PLACE{REPEAT}do it outside the step$"),
    "a rate": (lambda x: setattr(SGD, "lr", 0.5),
               rf"<lambda> sets an optimizer's lr at PLACE{REPEAT}set it outside the step$"),
    **{f"a Module's {name}": (change, rf"<lambda> {does} at PLACE{REPEAT}do it outside the step$")
       for name, change, does in (
           ("dtype", lambda x: NET.to(dtype="float64"), r"moves or converts a Module with \.to\(\)"),
           ("flags", lambda x: NET.requires_grad_(False),
            r"freezes or unfreezes parameters with \.requires_grad_\(\)"),
           ("state", lambda x: NET.load_state_dict({}), r"loads a state with \.load_state_dict\(\)"))},
    "a Tensor around an array of its own": (
        lambda x: wrap(np.ones(2, np.float32), (x * W).node) * 2, r"<lambda> gives an op a Tensor of shape \(2,\) "
        rf"whose array it made itself at PLACE{REPEAT}compute it with minidl's ops$"),
    "a copy of a Tensor": (lambda x: copy.deepcopy(W) * x, r"<lambda> gives an op a Tensor of shape \(2,\) whose array "
                           rf"it made itself at PLACE{REPEAT}compute it with minidl's ops$"),
    "a copy that is kept": (lambda x: KEPT.append(copy.deepcopy(W)), r"<lambda> makes a Tensor \(shape \(2,\)\) at "
                            "PLACE that is kept after the step"),
    "an array in place": (lambda x: np.add(ARRAY, x, out=ARRAY), "<lambda> changes an array in place at PLACE"),
    "a sum on the tape": (lambda x: X.__iadd__(W), r"<lambda> adds in place, on the tape, to a Tensor from outside "
                          rf"\(shape \(2,\)\) at PLACE{REPEAT}write t = t \+ x, with another name$"),
    "an iterator": (lambda x: next(ITERATOR), r"<lambda> reads the iterator 'ITERATOR', which a replay could not "
                    r"advance; take from it outside, and pass what it gave as an argument \(PLACE\)$"),
    "a Tensor that is kept": (lambda x: KEPT.append(x * 2), r"<lambda> makes a Tensor \(shape \(2,\)\) at PLACE that "
                              "is kept after the step, where a replay would leave the old one; return it, or write "),
}
NET = nn.Linear(2, 2)
ARRAY, ITERATOR, KEPT = np.zeros(2, np.float32), (i for i in range(3)), list[Any]()
SGD = optim.SGD([numbers(1, requires_grad=True)], lr=0.1)


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    """With the line that did it; nothing is left being recorded."""
    function, message = REFUSED[what]
    step = minidl.compile(function)
    for _ in range(2):
        with pytest.raises(CompileError, match=f"^compile: {placed(message, function)}"):
            step(X)
        assert not mode.recorder.recording
        KEPT.clear()
    assert step.program is None
    assert W.grad is None
    assert X.tolist() == [3, 4]
    assert isinstance(CompileError("of ValueError"), ValueError)


def test_lines_of_an_installed_package_count_once_it_holds_a_step(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    file, installed = tmp_path / "package" / "steps.py", f"{tmp_path}{os.sep}"
    for name, value in (("_PACKAGES", (installed,)), ("_OTHERS", (*reading._OTHERS, installed)), ("_CLAIMED", set())):
        monkeypatch.setattr(reading, name, value)
    package: dict[str, Any] = {}
    exec(compile("\ndef look(x):\n    return x.item()\n", file, "exec"), package)
    look = package["look"]
    for step, line in ((lambda x: look(x), "PLACE"), (look, re.escape(f"{file}:3"))):
        with pytest.raises(CompileError, match=placed(f"reads a Tensor's values at {line}, which", step)):
            minidl.compile(step)(numbers(1))


OUTSIDE_K = ("calls the op body{}, whose result did not come from a primitive of k",
             "compute it with the primitives of k")
LOOKS = ("reads {} of an array in the body of the op 'body'",
         "compute with the primitives of k, and look at shapes and dtypes alone")


@pytest.mark.parametrize(("compute", "gradient", "said", "way_out"), [
    (lambda k, x: k.mul(x, x.sum()), None, LOOKS[0].format("sum"), LOOKS[1]),
    (lambda k, x: k.mul(x, float(x)), None, LOOKS[0].format("__float__"), LOOKS[1]),
    (lambda k, x: np.ones(2, np.float32), None, OUTSIDE_K[0].format(""), OUTSIDE_K[1]),
    (lambda k, x: k.exp(x), lambda gy: np.ones(2, np.float32), OUTSIDE_K[0].format("'s gradient"), OUTSIDE_K[1]),
    (lambda k, x: k.add(x, np.ones(2, np.float32)), None, "gives add an array of shape (2,) that it made itself",
     "make it outside, as a Tensor")])
def test_an_op_of_ones_own_is_refused_where_it_leaves_the_primitives(compute: Any, gradient: Any, said: str,
                                                                     way_out: str) -> None:
    def body(k, x):
        return compute(k, x), lambda gy, need: (gradient(gy),)
    function, w = op(body), numbers(1, 2, requires_grad=True)
    OPS.pop("body", None)
    step = minidl.compile(lambda x: function(x * w).sum().backward())
    with pytest.raises(CompileError, match=rf"^compile: .*<lambda> {re.escape(said)} at {re.escape(__file__)}:\d+"
                                           rf"{REPEAT}{re.escape(way_out)}$"):
        step(X)


@pytest.mark.parametrize("convert", [
    lambda x: Tensor(x, dtype="float64") * 2, lambda x: Tensor(x, requires_grad=True) * 2], ids=["dtype", "copied"])
def test_an_input_converted_in_the_step_is_refused_or_right(convert: Callable[[Any], Tensor]) -> None:
    """A new Tensor of an input must not be the first call's: today each call is refused."""
    step = minidl.compile(convert)
    for i in range(3):
        with pytest.raises(CompileError, match=placed("at PLACE", convert)):
            step(np.full(2, i, np.float32))


def test_gradients_add_up_across_steps() -> None:
    """Where there is one from before the step it is added to, as in the plain function."""
    w = numbers(1, requires_grad=True)

    @minidl.compile
    def accumulate(x: Tensor) -> None:
        (w * x).sum().backward()

    for start in range(3):
        w.grad = None
        for i in range(6):
            accumulate(numbers(3 + start))
            assert w.grad.tolist() == [(3 + start) * (i + 1)]
    assert accumulate.recordings == 4                                    # two with a gradient before, two without


def test_an_update_before_the_gradient() -> None:
    """step(); zero_grad(); backward(): each update takes the gradients of the call before."""
    found = []
    for compiled in (False, True):
        w = numbers(1, 2, requires_grad=True)
        sgd = optim.SGD([w], lr=0.1, momentum=0.9)

        def step(x: Tensor, w: Tensor = w, sgd: optim.SGD = sgd) -> None:
            sgd.step()
            sgd.zero_grad()
            (w * w * x).sum().backward()

        run: Any = minidl.compile(step) if compiled else step
        for i in range(7):
            run(numbers(i, 1))
        found.append((w.tolist(), w.grad.tolist()))
        assert not compiled or run.recordings == 3
    assert found[0] == found[1]


def test_a_graph_from_before_the_step_is_refused() -> None:
    w, v = numbers(2, requires_grad=True), numbers(3, requires_grad=True)

    def through(h: Tensor) -> None:
        (h * v).sum().backward()

    step = minidl.compile(through)
    for graph in (lambda: w * 1, lambda: w + 1):
        w.grad = v.grad = None
        with pytest.raises(CompileError, match=r"through goes backward through what was computed before the step"
                                               rf".* at .*:\d+{REPEAT}compute it in the step, or pass x\.detach\(\)$"):
            step(graph())
    w.grad = v.grad = None
    for _ in range(2):
        v.grad = None
        step((w * 1).detach())
        assert v.grad.tolist() == [2]
        assert w.grad is None


@pytest.mark.parametrize("argument", [[X], {"x": X}, {1, 2}, bytearray(1)], ids=lambda value: type(value).__name__)
def test_unhashable_arguments_are_refused(argument: Any) -> None:
    step = minidl.compile(lambda x, option=None: X * 2)
    message = (rf"^compile: an argument is a {type(argument).__name__}, which cannot be told from another; pass "
               "Tensors, arrays and plain values, and use other objects from outside the step$")
    with pytest.raises(TypeError, match=message):
        step(argument)
    with pytest.raises(TypeError, match=message):
        step(X, option=argument)


def test_outside_a_step_nothing_is_refused() -> None:
    step = minidl.compile(lambda x: x * 2)
    y = step(X)
    assert (y.sum().item(), float(y[0]), y.to(dtype="float64").dtype) == (14, 6, np.float64)


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_label_out_of_range(wrong: int) -> None:
    """The plain function's error, also from a replay; parameters are as they were, and the next step works."""
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    for each in pair:
        for i in range(3):
            each.step(*vectors(seed=i))
    x, _ = vectors()
    bad = Tensor(np.array([0, 1, wrong, 2]))
    messages = []
    before = [{name: array for name, array in each.arrays().items() if "grad" not in name} for each in pair]
    for each in pair:
        with pytest.raises(ValueError, match="label") as caught:
            each.step(x, bad)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
    for each, held in zip(pair, before, strict=True):
        assert_same_bits({name: array for name, array in each.arrays().items() if "grad" not in name}, held)
        each.step(*vectors(seed=9))
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 2


def test_an_error_of_the_function_passes_and_nothing_is_kept() -> None:
    each = Training(dense(), True)
    with pytest.raises(ValueError, match="label"):
        each.step(vectors()[0], Tensor(np.array([0, 1, 7, 2])))
    assert not mode.recorder.recording
    assert each.step.program is None
    plain = Training(dense(), False)
    assert bits(each.step(*vectors())) == bits(plain.step(*vectors()))


def test_a_refusal_that_the_step_catches_is_raised_all_the_same() -> None:
    """The plain function meets no error there, and goes another way."""
    def step(x: Tensor) -> Tensor:
        try:
            factor = float(x.sum())
        except Exception:
            factor = 100.0
        return x * factor
    compiled = minidl.compile(step)
    for _ in range(3):
        with pytest.raises(CompileError, match="reads a Tensor's values at"):
            compiled(numbers(2))


def test_an_error_that_was_caught_and_kept_holds_no_tensors() -> None:
    """Its frames do, of functions that have ended: no step sees these again. h is a variable that a lambda reads."""
    errors = []

    def fails(h: Tensor) -> None:
        k = h * 2
        raise ZeroDivisionError(f"{k.shape}")

    def step(x: Tensor) -> Tensor:
        h = x * 3
        try:
            fails(h)
        except ZeroDivisionError as error:
            if not errors:
                errors.append(error)
        return (lambda: h + 1)()
    compiled = minidl.compile(step)
    for i in range(5):
        assert compiled(numbers(i)).item() == 3 * i + 1


# ---------------------------------------------------------------- passes
def test_dead_code() -> None:
    make = Maker()
    x = make.slot("input")
    y = make.call("mul", x, x)
    make.call("add", make.call("neg", x), x)                             # neither of the two is read
    z = make.call("exp", y)
    g = make.call("tanh", x)
    make.call("sgd", (x,), (y,), None, 0.1, 0.0, 0.0, False, results=0)
    program = make.program([x], {"z": [z]}, [(W, g)])
    small = passes.dead_code(program)
    assert names(small) == ["mul", "exp", "tanh", "sgd"]
    assert small.notes == ["dead code: 2 calls fewer"]
    assert names(program) == ["mul", "neg", "add", "exp", "tanh", "sgd"]  # as it was
    assert names(passes.dead_code(small)) == names(small)


def test_dead_code_keeps_a_call_for_one_of_its_results() -> None:
    make = Maker()
    x = make.slot("input")
    _, second = make.call("cross_entropy", x, x, results=2)
    make.call("check_labels", x, 10, results=0)
    assert names(passes.dead_code(make.program([x], second))) == ["cross_entropy", "check_labels"]


def test_common_subexpressions() -> None:
    make = Maker()
    x, y = make.slot("input"), make.slot("input")
    first, second = make.call("mul", x, x), make.call("mul", x, x)
    other, deep = make.call("mul", x, y), [make.call("exp", first), make.call("exp", second)]
    last = make.call("add", deep[1], other)
    small = passes.common_subexpressions(make.program([x, y], (first, [last]), [(W, last), (X, None)]))
    assert names(small) == ["mul", "mul", "exp", "add"]
    assert small.outputs == (first, [last])
    assert small.grads == [(W, last), (X, None)]
    assert small.calls[-1].arguments == (deep[0], other)
    assert small.notes == ["common subexpressions: 2 calls fewer"]


def test_equal_gradients_are_computed_twice() -> None:
    """Each leaf's gradient is an array of its own; so is each result of the step."""
    make = Maker()
    x = make.slot("input")
    g, h, y, z = (make.call("exp", x) for _ in range(4))
    make.call("tanh", make.call("exp", x))
    small = passes.common_subexpressions(make.program([x], (y, z), [(W, g), (X, h)]))
    assert names(small) == ["exp"] * 4 + ["tanh"]
    assert (small.grads, small.outputs) == ([(W, g), (X, h)], (y, z))
    assert small.calls[-1].arguments == (y,)


# ---------------------------------------------------------------- copies
def test_copy_elision() -> None:
    """A copy of what has memory of its own, and which nobody else looks at: a gradient, and the update's."""
    make = Maker()
    x, w = make.slot("input"), make.slot("outside")
    g, both = make.call("exp", x), make.call("cross_entropy", x, x, results=2)
    copies = [make.call("copy", value) for value in (g, *both)]
    again = make.call("copy", copies[1])
    make.call("sgd", (w, w), (copies[0], again), None, 0.1, 0.0, 0.0, False, results=0)
    program = make.program([x], {"y": [copies[2]]}, [(W, copies[0]), (X, again)])
    small = passes.copy_elision(program)
    assert names(small) == ["exp", "cross_entropy", "sgd"]
    assert small.calls[-1].arguments[:2] == ((w, w), (g, both[0]))
    assert small.outputs == {"y": [both[1]]}
    assert small.grads == [(W, g), (X, both[0])]
    assert small.notes == ["copy elision: 4 calls fewer"]
    assert names(program).count("copy") == 4                             # as it was


def a_view(make: Maker, x: Slot, name: str) -> Program:
    """What others hold, of memory that others read."""
    g = make.call("exp", x)
    return make.program([x], make.call("neg", g), [(W, make.call("copy", make.call(name, g, (2,))))])


def a_view_alone(make: Maker, x: Slot) -> Program:
    """Of memory that nobody else reads: it could have gaps, or the same element in two places."""
    return make.program([x], None, [(W, make.call("copy", make.call("spread", make.call("exp", x), (2,), (), False)))])


def read_before(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], make.call("reshape", g, (2, 1)), [(W, make.call("copy", g))])


def read_after(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    c = make.call("copy", g)
    return make.program([x], make.call("reshape", g, (2, 1)), [(W, c)])


def copied_twice(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], None, [(W, make.call("copy", g)), (X, make.call("copy", g))])


def returned(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], [g], [(W, make.call("copy", g))])


def anothers_gradient(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], None, [(W, g), (X, make.call("copy", g))])


def an_input(make: Maker, x: Slot) -> Program:
    return make.program([x], None, [(W, make.call("copy", x))])


def an_array_from_outside(make: Maker, x: Slot) -> Program:
    return make.program([x], None, [(W, make.call("copy", make.slot("outside")))])


def an_input_given_back(make: Maker, x: Slot) -> Program:
    make.call("sum_to", x, (2,))
    make.calls[-1] = with_(make.calls[-1], results=(x,))
    return make.program([], None, [(W, make.call("copy", x))])


def given_back(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    make.call("sum_to", g, (2,))
    make.calls[-1] = with_(make.calls[-1], results=(g,))
    return make.program([x], None, [(W, make.call("copy", g))])


@pytest.mark.parametrize("build", [
    *(functools.partial(a_view, name=name) for name, known in PRIMITIVES.items() if known.shares),
    a_view_alone, read_before, read_after, copied_twice, returned, anothers_gradient, an_input, an_array_from_outside,
    an_input_given_back, given_back],
    ids=lambda build: build.keywords["name"] if isinstance(build, functools.partial) else build.__name__)
def test_copies_that_are_needed(build: Callable[..., Program]) -> None:
    make = Maker()
    program = build(make, make.slot("input"))
    small = passes.copy_elision(program)
    assert small.calls == program.calls
    assert (small.outputs, small.grads) == (program.outputs, program.grads)


def test_recorded_copies_go_and_the_bits_stay() -> None:
    """Of the gradient of filters as large as their images, which is a product's, reshaped."""
    each = Training(lambda: nn.Sequential(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 8, 14),
                                          nn.Flatten(), nn.Linear(8, 10)), True, momentum=0.9)
    x, labels = batch("lenet5", 3, 0)
    state = each.net.state_dict()
    each.step(x, labels)
    recorded, found = each.step.recorded, []
    small = passes.copy_elision(recorded)
    assert "copy" in names(recorded)
    assert "copy" not in names(small)
    for program in (recorded, small):
        each.net.load_state_dict(state)
        for p in each.net.parameters():
            each.sgd._array("velocities", p)[...] = 0
        loss = ByCalls(program).run([x.data, labels.data])
        found.append({"loss": loss.data, **each.arrays()})
    assert_same_bits(*found)


@pytest.mark.parametrize(("one", "two"), [
    (((2,),), ((3,),)), ((1,), (True,)), ((1,), (1.0,)), ((((1,), 2),), (((1, 2),),)), (((1,), (2, 3)), ((1, 2), (3,))),
    ((Dynamic(0, int),), (Dynamic(1, int),)), ((np.zeros(2),), (np.zeros(2),)), ((slice(1),), (slice(2),))], ids=repr)
def test_calls_that_differ_are_two(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    make = Maker()
    x = make.slot("input")
    a, b, c = make.call("reshape", x, *one), make.call("reshape", x, *two), make.call("reshape", x, *one)
    small = passes.common_subexpressions(make.program([x], make.call("concatenate", (a, b, c), 0)))
    assert small.calls[-1].arguments[0] == (a, b, a)


def test_options_and_names_count() -> None:
    make = Maker()
    x = make.slot("input")
    made = (make.call("sum", x, axis=0), make.call("sum", x, axis=1), make.call("max", x, axis=0),
            make.call("sum", x, axis=0), make.call("sum", x, keepdims=0))
    last = make.call("concatenate", made, 0)
    small = passes.common_subexpressions(make.program([x], last))
    assert small.calls[-1].arguments[0] == (made[0], made[1], made[2], made[0], made[4])


def test_not_across_an_update() -> None:
    make = Maker()
    x = make.slot("input")
    before = make.call("mul", x, x)
    for _ in range(2):
        make.call("sgd", (x,), (before,), None, 0.1, 0.0, 0.0, False, results=0)
    after, again = make.call("mul", x, x), make.call("mul", x, x)
    last = make.call("add", after, again)
    small = passes.common_subexpressions(make.program([x], (before, last)))
    assert names(small) == ["mul", "sgd", "sgd", "mul", "add"]
    assert small.calls[-1].arguments == (after, after)


def test_what_is_changed_in_place_is_computed_by_itself() -> None:
    """Two equal values of which one, or a view of one, is changed later are two."""
    make = Maker()
    x = make.slot("input")
    first, second, third = (make.call("mul", x, x) for _ in range(3))
    view = make.call("reshape", second, (2, 1))
    make.call("setitem", view, ..., 0.0, results=0)
    last = make.call("add", make.call("add", first, third), second)
    small = passes.common_subexpressions(make.program([x], last))
    assert names(small) == ["mul", "mul", "reshape", "setitem", "add", "add"]
    assert small.calls[-1].arguments[1] is second


def test_equal_results_of_a_step_are_two_arrays() -> None:
    step = minidl.compile(lambda x: (x + 1, x + 1))
    for _ in range(4):
        a, b = step(numbers(1))
        a.data[...] = 7
        assert b.tolist() == [2]


def test_a_recorded_square_is_computed_once() -> None:
    step = minidl.compile(lambda x: (x * x, (x * x).exp(), (x + 1).sum() * 0 + x.sum()))
    for i in range(3):
        a, b, c = step(numbers(i, 2))
        assert (a.tolist(), b.tolist(), c.item()) == ([i * i, 4], np.exp(np.float32([i * i, 4])).tolist(), i + 2)
    assert names(step.recorded).count("mul") == 3
    assert names(step.program).count("mul") == 2
    assert names(passes.common_subexpressions(step.recorded)).count("mul") == 2


def test_a_recorded_result_that_nobody_reads_is_dropped() -> None:
    @minidl.compile
    def step(x: Tensor) -> Tensor:
        x.exp().log().tanh()
        return x * 2

    assert [step(numbers(i)).item() for i in range(3)] == [0, 2, 4]
    assert names(step.recorded) == ["exp", "log", "tanh", "mul"]
    assert names(step.program) == ["mul"]


def test_the_gradient_of_what_needs_none_is_not_computed() -> None:
    """And what was computed before an update is computed again after it."""
    w = numbers(1, 2, requires_grad=True)
    sgd = optim.SGD([w], lr=0.5)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        sgd.zero_grad()
        before = (w * x).sum()
        before.backward()
        sgd.step()
        return before, (w * x).sum()

    compiled = minidl.compile(step)
    for _ in range(3):
        state = w.numpy().copy()
        expected = [t.item() for t in step(numbers(1, 3))]
        w.data[...] = state
        assert [t.item() for t in compiled(numbers(1, 3))] == expected
    assert expected[0] != expected[1]
    assert names(compiled.program).count("sgd") == 1


# ---------------------------------------------------------------- how programs look
def test_a_printed_program_shows_each_call() -> None:
    each = Training(dense(half), True, momentum=0.9)
    each.step(*vectors())
    for program in (each.step.program, each.step.recorded):
        lines = repr(program).splitlines()
        assert lines[0] == f"program of {len(program.calls)} calls; inputs $0 float32[4, 8], $1 int64[4]"
        for call, line in zip(program.calls, lines[1:], strict=False):
            assert re.fullmatch(rf"  ((%\d+ \w+\[[\d, ]*\](, )?)+ = )?{call.name}\(.*\)", line), line
        assert lines[1 + len(program.calls)].startswith("  return %")
    assert re.search(r"sgd\(.*, \?\d+, 0\.9, 0\.0, False\)", repr(each.step.program))       # its rate is read anew
    assert "dead code" in repr(each.step.program)
    assert "dead code" not in repr(each.step.recorded)


def test_an_array_that_is_handed_out_again_is_another_value(handed_out_again: Any) -> None:
    each = Training(dense(half), True)
    for _ in range(3):
        each.step(*vectors())
    assert handed_out_again.bytes > 0
    assert each.step.recorded is not None
    results = [slot for call in each.step.recorded.calls for slot in call.results]
    assert len(results) == len({slot.number for slot in results})


@pytest.mark.parametrize("factors", range(1, 5))
def test_a_gradient_is_its_leafs_own(factors: int) -> None:
    """What the backward pass starts from is kept to its end: a gradient that came to lie there would be copied."""
    @minidl.compile
    def step(x: Tensor) -> None:
        y, w.grad = x * w, None
        for _ in range(factors):
            y = y * x
        y.backward()

    w, x = Tensor(1.0, requires_grad=True), Tensor(2.0)
    for _ in range(3):
        step(x)
    assert step.recorded is not None
    assert "copy" not in names(step.recorded)


def test_a_drawn_program_names_each_call() -> None:
    each = Training(dense(half), True, momentum=0.9)
    each.step(*vectors())
    program = each.step.program
    lines = program.to_dot().splitlines()
    assert (lines[0], lines[-1]) == ("digraph program {", "}")
    labels = [re.fullmatch(r'  (\w+) \[label="([^"]*)"(, shape=ellipse)?\];', line) for line in lines]
    nodes = {found[1]: found[2] for found in labels if found}
    assert [nodes[f"c{i}"] for i in range(len(program.calls))] == names(program)
    edges = [re.fullmatch(r'  (\w+) -> (\w+) \[label="\[[\d, ]*\]"\];', line) for line in lines]
    assert all(found[1] in nodes and found[2] in nodes for found in edges if found)
    assert sum(map(bool, edges)) == sum(len(list(call.reads)) for call in program.calls)
    assert sum(map(bool, [*labels, *edges])) == len(lines) - 3


def test_each_backward_is_called_ahead_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, where its kernels are compiled meanwhile: nothing is noted of it, and no error stops the step."""
    errors: list[Exception | None] = []

    def ahead(run: Callable[[], object]) -> None:
        assert mode.recorder.recording
        errors.append(None)
        try:
            run()
        except CompileError as error:
            errors[-1] = error
            raise

    @op
    def reads(k: Any, x: Tensor) -> Any:
        return k.mul(x, x), lambda gy, need: (k.mul(gy, float(gy.sum())),)     # refused, if anyone goes back
    plain = Training(dense(half), True)
    plain.step(*vectors())
    monkeypatch.setattr(recording, "is_cuda", lambda array: isinstance(array, np.ndarray))
    monkeypatch.setattr(cpu, "ahead", ahead, raising=False)
    each = Training(dense(half), True)
    each.step(*vectors())
    assert_same_bits(plain.arrays(), each.arrays())
    assert names(each.step.recorded) == names(plain.step.recorded)
    assert len(errors) > 3
    assert not any(errors)
    errors.clear()
    step = minidl.compile(lambda x: reads(x).detach())
    for _ in range(3):
        assert step(Tensor(3.0, requires_grad=True)).item() == 9
    assert len(errors) == 2                # once in each recording
    assert all(errors)


# ---------------------------------------------------------------- constants
FACTOR, ROW, TABLE = 3.0, [1.0, 2.0], {"rows": [[1.0, 2.0], [3.0, 4.0]]}
CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: x + minidl.zeros(x.shape),
    "ones, full, eye": lambda x: x * minidl.ones(2) @ minidl.eye(2) + minidl.full((2,), 0.5),
    "a row of numbers": lambda x: x * minidl.arange(x.shape[1], dtype="float32") + minidl.linspace(0, 1, 2),
    "like another": lambda x: minidl.zeros_like(x) + minidl.full_like(x, 2.0) * x,
    "a list": lambda x: x * Tensor([1.0, -2.0]),
    "a number": lambda x: x * Tensor(2.5),
    "what a name holds": lambda x: x * Tensor([FACTOR, 1.0]) + Tensor(ROW) + Tensor(TABLE["rows"]),
    "labels": lambda x: ops.cross_entropy(x, [0, 1]),
    "a mask": lambda x: (x > 0).float() * x,
    "a dtype": lambda x: x.detach().to(dtype="float64").sum(),
    "classes": lambda x: (Tensor([0, 1]).reshape(2, 1) == minidl.arange(2)).float() * x,
    "changed in place": lambda x: changed_in_place(minidl.zeros(2, 2), x),
    "a part of one, changed": lambda x: changed_in_place(minidl.ones(3, 2, 2)[1], x),
    "returned": lambda x: minidl.ones(2, 2),
    "a view, returned": lambda x: minidl.zeros(4).reshape(2, 2)}


def changed_in_place(t: Tensor, x: Tensor) -> Tensor:
    with minidl.no_grad():
        t += x
        t[0] = 7.0
    return t * x


@pytest.mark.parametrize("what", CONSTANTS)
def test_constants_are_made_anew(what: str) -> None:
    """Whatever was done to those that an earlier call made, or returned."""
    step, rng = CONSTANTS[what], np.random.default_rng(0)
    compiled = minidl.compile(step)
    for _ in range(5):
        x = Tensor(rng.standard_normal((2, 2), np.float32))
        want, got = step(x), compiled(x)
        np.testing.assert_array_equal(got.numpy(), want.numpy())
        assert got.dtype == want.dtype
        with minidl.no_grad():
            got[...] = 99
    assert compiled.recordings == 2
    assert compiled.program is not None
    copied = "copy" in names(compiled.program)
    assert copied == (what in ("changed in place", "a part of one, changed", "returned", "a view, returned"))


# ---------------------------------------------------------------- random numbers
RANDOM: dict[str, Callable[[Tensor], Any]] = {
    "rand": lambda x: x * minidl.rand(8, 2),
    "rand of float64": lambda x: minidl.rand((2, 3), dtype="float64"),
    "randn": lambda x: minidl.randn(2, 3),
    "like another": lambda x: x * minidl.rand_like(x) + minidl.randn_like(x),
    "randint": lambda x: minidl.randint(-1000, 10**12, (3,)),
    "labels": lambda x: ops.cross_entropy(x @ minidl.rand(2, 9), minidl.randint(0, 9, x.shape[0])),
    "randperm": lambda x: minidl.randperm(20),
    "a batch in random order": lambda x: x[minidl.randperm(x.shape[0])],
    "Bernoulli": lambda x: x * (minidl.rand(x.shape) < 0.5).float(),
    "a class by its probability": lambda x: (x.log_softmax(1) - (-minidl.rand_like(x).log()).log()).argmax(1).sum(),
    "between two numbers": lambda x: minidl.rand(3) * 4 - 2,
    "of mean and deviation": lambda x: x.mean() + x.exp() * minidl.randn_like(x),
    "beside dropout": lambda x: (minidl.randn(1), ops.dropout(x, 0.5), minidl.rand(1), minidl.randint(0, 99, 3)),
    "not read": lambda x: (minidl.rand(2), minidl.randn(2))[1],
    "written into": lambda x: changed_in_place(minidl.randn(8, 2), x)}


@pytest.mark.parametrize("what", RANDOM)
def test_random_numbers_are_those_of_the_plain_step(what: str) -> None:
    """Other ones in each step; and the next that are drawn after it."""
    step, x, found = RANDOM[what], Tensor(np.random.default_rng(0).standard_normal((8, 2), np.float32)), []
    compiled = minidl.compile(step)
    for run in (step, compiled):
        minidl.manual_seed(5)
        results = [returned if isinstance(returned := run(x), tuple) else (returned,) for _ in range(6)]
        found.append([tuple(map(bits, each)) for each in results] + [(bits(minidl.rand(3)),)])
    assert found[0] == found[1]
    assert len({*found[0]}) > 3            # a class of eight may be the same again
    assert compiled.recordings == 2


# ---------------------------------------------------------------- what people write in a training step
class Own:
    """A net of two parts, each with its optimizer."""

    def __init__(self) -> None:
        minidl.manual_seed(3)
        self.net = dense(half)()
        self.layers = [self.net[0], self.net[3]]
        self.adam = optim.Adam(self.layers[0].parameters(), lr=0.01)
        self.sgd = optim.SGD(self.layers[1].parameters(), lr=0.1, momentum=0.9)

    def update(self, loss: Tensor, between: Callable[[], object] = lambda: None) -> Tensor:
        self.adam.zero_grad()
        self.sgd.zero_grad()
        loss.backward()
        between()
        self.adam.step()
        self.sgd.step()
        return loss


def accumulated(x: Tensor, labels: Tensor, own: Own) -> None:
    for half_ in (slice(4), slice(4, 8)):
        (ops.cross_entropy(own.net(x[half_]), labels[half_]) / 2).backward()
    own.sgd.step()
    own.sgd.zero_grad()


def clipped_by_hand(x: Tensor, labels: Tensor, own: Own) -> Tensor:
    def clip() -> None:
        norm = sum((p.grad * p.grad).sum() for p in own.net.parameters()).sqrt()
        for p in own.net.parameters():
            p.grad = p.grad * (0.1 / (norm + 1e-6)).clip(max=1.0)
    return own.update(ops.cross_entropy(own.net(x), labels), clip)


def weighted(x: Tensor, labels: Tensor, own: Own) -> Tensor:
    weights = Tensor([1.0, 2.0, 0.5])[labels] * (1 + (x[:, 0] > 0).float())
    losses = ops.cross_entropy(own.net(x), labels, reduction="none")
    return own.update((losses * weights).sum() / weights.sum())


def noisy(x: Tensor, labels: Tensor, own: Own) -> Tensor:
    """Images, labels and gradients."""
    some = (minidl.rand(labels.shape) < 0.2).long()
    labels = labels * (1 - some) + minidl.randint(0, 3, labels.shape) * some

    def noise() -> None:
        for p in own.net.parameters():
            p.grad = p.grad + 0.01 * minidl.randn_like(p)
    return own.update(ops.cross_entropy(own.net(x + 0.1 * minidl.randn_like(x)), labels), noise)


def blended(x: Tensor, labels: Tensor, own: Own) -> Tensor:
    other, share = minidl.randperm(len(x)), minidl.rand(1)
    y = own.net(x * share + x[other] * (1 - share))
    return own.update((ops.cross_entropy(y, labels) * share + ops.cross_entropy(y, labels[other]) * (1 - share)).sum())


def adversaries(x: Tensor, labels: Tensor, own: Own) -> tuple[Tensor, Tensor]:
    """Two networks in turns, each with its optimizer."""
    generator, judge = own.layers

    def loss(images: Tensor, real: bool) -> Tensor:
        return ops.binary_cross_entropy_with_logits(judge(images), minidl.full((len(x), 3), float(real)))
    own.sgd.zero_grad()
    of_judge = loss(generator(x), True) + loss(generator(minidl.randn(x.shape)).detach(), False)
    of_judge.backward()
    own.sgd.step()
    own.adam.zero_grad()
    of_generator = loss(generator(minidl.randn(x.shape)), True)
    of_generator.backward()
    own.adam.step()
    return of_judge, of_generator


TRAININGS: dict[str, Callable[[Tensor, Tensor, Own], Any]] = {
    "gradients added up": accumulated, "clipped by hand": clipped_by_hand, "a weight for each image": weighted,
    "noise": noisy, "blended images": blended, "two nets against each other": adversaries,
    "clipped by their norm": lambda x, labels, own: own.update(
        ops.cross_entropy(own.net(x), labels), lambda: optim.clip_grad_norm(own.net.parameters(), 0.1)),
    "clipped by value": lambda x, labels, own: own.update(
        ops.cross_entropy(own.net(x), labels), lambda: optim.clip_grad_value(own.net.parameters(), 0.01))}


@pytest.mark.parametrize("what", TRAININGS)
def test_a_training_step_of_ones_own(what: str) -> None:
    """Losses, parameters and random numbers are those of the plain step, which runs before."""
    losses, trained = [], []
    for compiled in (False, True):
        own = Own()
        step = functools.partial(TRAININGS[what], own=own)
        run: Any = minidl.compile(step) if compiled else step
        losses.append([[bits(loss) for loss in leaves(run(*vectors(8, i))) if loss is not None] for i in range(7)])
        trained.append({**own.net.state_dict(), "next": minidl.rand(3).numpy()})
    assert losses[0] == losses[1]
    assert_same_bits(*trained)
    assert run.recordings <= 3             # a gradient that no optimizer cleared was none before the first


@pytest.mark.parametrize("change", [
    lambda: globals().update(FACTOR=10.0), lambda: ROW.append(ROW.pop() + 1), lambda: TABLE["rows"][1].reverse()],
    ids=["a name", "a list", "a list in a dict"])
def test_constants_follow_what_they_are_made_of(change: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FACTOR", "ROW", "TABLE"):
        monkeypatch.setitem(globals(), name, copy.deepcopy(globals()[name]))
    step, x = CONSTANTS["what a name holds"], numbers(2, 2)
    compiled = minidl.compile(step)
    for _ in range(3):
        compiled(x)
    change()
    np.testing.assert_array_equal(compiled(x).numpy(), step(x).numpy())


def test_constants_that_differ_are_refused() -> None:
    rng = np.random.default_rng(0)
    compiled = minidl.compile(lambda x: x * Tensor([rng.random(), 1.0]))
    compiled(numbers(2))
    with pytest.raises(CompileError, match=r"it gave copy at \S+ \[0\.\d+ 1\. ?\] in one run and \[0\.\d+ 1\. ?\] in"):
        compiled(numbers(2))
