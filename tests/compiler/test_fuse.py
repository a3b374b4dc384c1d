"""Fusion: rules find their calls and nothing else, fused programs give the same, and so do the fused primitives."""

from __future__ import annotations

import functools
import inspect
import random
from collections import Counter
from dataclasses import replace as with_
from typing import Any

import numpy as np
import pytest
from checks.agrees import replay_results, step_agrees
from checks.fused import STEPS, recorded
from tiers import tiered

from minidl import Tensor, ops
from minidl.compiler.passes import fusion
from minidl.compiler.passes.fusion import RULES, Rule, fuse
from minidl.compiler.program import Call, Program, Slot
from minidl.compiler.reads.facts import Facts
from minidl.compiler.reads.looks import Look
from minidl.core import device
from minidl.ops import cpu
from minidl.ops.common.patterns import Line, Name, line, rule
from minidl.ops.common.primitives import known

DTYPES = (np.float32, np.float64)


# ---------------------------------------------------------------- programs and rules of made-up calls
def program(text: str, kept: str = "") -> Program:
    """A program from lines as in rules: a name that no line makes is an input."""
    lines = [line(each.strip()) for each in text.strip().split(";")]
    made = {name for each in lines for name in each.results}
    slots: dict[str, Slot] = {}

    def slot(word: Any) -> Any:
        if not isinstance(word, Name):
            return word
        kind = "result" if word in made else "input"
        return slots.setdefault(word, Slot(len(slots), kind, (word.count("_"),), np.dtype(float)))

    calls = [Call(cpu, each.primitive, tuple(map(slot, each.arguments)), {}, tuple(map(slot, each.results)),
                  len(each.results) > 1) for each in lines]
    result = Program([s for s in slots.values() if s.kind == "input"], [], calls,
                     [slots[name] for name in kept.split()], [], [], [], Facts())
    names.update({s: name for name, s in slots.items()})
    return result


names: dict[Slot, str] = {}


def text_of(found: Program) -> str:
    def word(value: Any) -> str:
        return names[value] if isinstance(value, Slot) else repr(value)
    return "; ".join(f"{', '.join(map(word, call.results))} = {call.name}({', '.join(map(word, call.arguments))})"
                     for call in found.calls)


HIDDEN = rule("a = f(x)\nb = g(a, 'k')", "b = fg(x)")
VISIBLE = rule("a = f(x)\nb = g(a, 'k')", "a, b = fg(x)")
BESIDE = rule("a = f(x, y)\nb = g(x, z)", "a, b = fg(x, y, z)")
THREE = rule("a = f(x)\nb = g(a, 'k')\nc = h(b)", "a, c = fgh(x)")
TWICE = rule("a = f(x, x)", "a = square(x)")
SUM = rule("a = f(x)\nb = g(a, y)", "b = fg(x, y)")
NORM = rule("a, m, s = batch_norm(x, r, v)\nc = h(a)", "c, m, s = batch_norm_act(x, r, v)")
AGAIN = rule("b = fg(x)\nc = h(b)", "c = fgh(x)")
NORMED, NORMED_H = "n, m, s = batch_norm(q, r, v)", "c, m, s = batch_norm_act(q, r, v)"

# rules, program, what is kept of it, and what it becomes
REWRITTEN: dict[str, tuple[tuple[Rule, ...], str, str, str]] = {
    "a pair": ((HIDDEN,), "p = f(q); r = g(p, 'k')", "r", "r = fg(q)"),
    "a pair with others around": ((HIDDEN,), "o = e(q); p = f(o); n = e(q); r = g(p, 'k'); s = e(r)", "s",
                                  "o = e(q); n = e(q); r = fg(o); s = e(r)"),
    "two pairs": ((HIDDEN,), "p = f(q); r = g(p, 'k'); s = f(r); t = g(s, 'k')", "t", "r = fg(q); t = fg(r)"),
    "another literal": ((HIDDEN,), "p = f(q); r = g(p, 'l')", "r", ""),
    "another number of arguments": ((HIDDEN,), "p = f(q, q); r = g(p, 'k')", "r", ""),
    "another number of results": ((HIDDEN,), "p, o = f(q); r = g(p, 'k')", "r", ""),
    "another value": ((HIDDEN,), "p = f(q); r = g(q, 'k')", "r", ""),
    "read elsewhere": ((HIDDEN,), "p = f(q); r = g(p, 'k'); s = e(p)", "r s", ""),
    "read elsewhere before": ((HIDDEN,), "p = f(q); s = e(p); r = g(p, 'k')", "r s", ""),
    "kept": ((HIDDEN,), "p = f(q); r = g(p, 'k')", "p r", ""),
    "an effect between": ((HIDDEN,), "p = f(q); o = sgd(q); r = g(p, 'k')", "r", ""),
    "an effect before and behind": ((HIDDEN,), "o = sgd(q); p = f(q); r = g(p, 'k'); n = sgd(q)", "r",
                                    "o = sgd(q); r = fg(q); n = sgd(q)"),
    "a call that gives back what it was given": ((HIDDEN,), "p = f(q); p = e(p); r = g(p, 'k')", "r", ""),
    "a visible value read behind": ((VISIBLE,), "p = f(q); r = g(p, 'k'); s = e(p)", "r s", "p, r = fg(q); s = e(p)"),
    "a visible value read between": ((VISIBLE,), "p = f(q); s = e(p); r = g(p, 'k')", "r s", "p, r = fg(q); s = e(p)"),
    "a visible value kept": ((VISIBLE,), "p = f(q); r = g(p, 'k')", "p r", "p, r = fg(q)"),
    "calls beside each other": ((BESIDE,), "p = f(q, o); r = g(q, n)", "p r", "p, r = fg(q, o, n)"),
    "calls beside each other, turned": ((BESIDE,), "r = g(q, n); p = f(q, o)", "p r", "p, r = fg(q, o, n)"),
    "calls beside each other, one behind the other": ((BESIDE,), "p = f(q, o); n = e(p); r = g(q, n)", "r", ""),
    "calls beside each other of other values": ((BESIDE,), "p = f(q, o); r = g(o, n)", "p r", ""),
    "three": ((THREE, VISIBLE), "p = f(q); r = g(p, 'k'); s = h(r); t = e(p)", "s t", "p, s = fgh(q); t = e(p)"),
    "three, or two of them": ((THREE, VISIBLE), "p = f(q); r = g(p, 'k'); s = h(r); t = e(r)", "s t",
                              "p, r = fg(q); s = h(r); t = e(r)"),
    "one value for two names": ((TWICE,), "p = f(q, q); r = f(p, q)", "r", "p = square(q); r = f(p, q)"),
    "an argument that the pattern makes": ((SUM,), "p = f(q); r = g(p, p)", "r", ""),
    "an effect of the pattern": ((NORM,), f"{NORMED}; c = h(n)", "c", f"{NORMED_H}"),
    "an effect, and what reads results between": (
        (NORM,), f"p = f(q); {NORMED}; o = f(p); c = h(n)", "c o", f"p = f(q); o = f(p); {NORMED_H}"),
    "an effect, and what reads its other results": (
        (NORM,), f"{NORMED}; o = f(m); c = h(n)", "c o", f"{NORMED_H}; o = f(m)"),
    "an effect, and what may read what it changes": ((NORM,), f"{NORMED}; o = f(r); c = h(n)", "c o", ""),
    "an effect, and what may read that by another name": ((NORM,), f"{NORMED}; o = f(t); c = h(n)", "c o", ""),
    "an effect, and a view of that": ((NORM,), f"t = reshape(r, 6); {NORMED}; o = f(t); c = h(n)", "c o", ""),
    "an effect, and another": ((NORM,), f"{NORMED}; o = sgd(q); c = h(n)", "c o", ""),
    "an effect between, which a later rule moves": (
        (HIDDEN, NORM), f"p = f(q); {NORMED}; o = g(p, 'k'); c = h(n)", "c o", f"o = fg(q); {NORMED_H}"),
    "a fused call, by an earlier rule": ((AGAIN, HIDDEN), "p = f(q); r = g(p, 'k'); s = h(r)", "s", "s = fgh(q)"),
    "equal numbers": ((TWICE,), "p = f(1.5, 1.5); r = f(1, 1.0)", "p r", "p = square(1.5); r = f(1, 1.0)"),
}


@pytest.mark.parametrize("what", REWRITTEN)
def test_programs_are_rewritten(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last column is empty where nothing may change."""
    rules, text, kept, expected = REWRITTEN[what]
    monkeypatch.setattr(fusion, "RULES", rules)
    before = program(text, kept)
    after = fuse(before)
    assert text_of(after) == (expected or text)
    assert text_of(before) == text
    assert after.notes[0].startswith(f"fusion: {len(before.calls) - len(after.calls)} calls fewer")


@pytest.mark.parametrize("seed", tiered(range(20), fast=2, slow=2))
def test_a_search_that_goes_on_finds_what_one_from_the_start_finds(seed: int) -> None:
    """After each fusion a new search would look at all rules and places again."""
    rng = random.Random(seed)
    for _ in range(100):
        rules = rng.sample([HIDDEN, VISIBLE, BESIDE, THREE, TWICE, SUM, NORM, AGAIN], rng.randint(1, 8))
        made, lines = ["q", "r"], []
        for number in range(rng.randint(3, 20)):
            x, y, name = rng.choice(made[-rng.choice((1, 1, 4)):]), rng.choice(made), f"v{number}"
            norm = f"{name}, m{number}, s{number} = batch_norm({x}, r, v)"
            lines.append(rng.choice([norm, *(f"{name} = {call}" for call in (
                f"f({x})", f"g({x}, 'k')", f"h({x})", f"f({x}, {y})", f"g({x}, {y})", f"e({x})", f"sgd({x})"))]))
            made.append(name)
        before = program("; ".join(lines), " ".join(rng.sample(made[2:], rng.randint(1, 3))))
        after = before
        while found := fusion._Search(view := fusion.View(after), rules).first():
            view.fuse(found)
            after = with_(after, calls=view.in_order())
        assert text_of(fuse(before, rules)) == text_of(after)


def test_a_search_takes_time_in_proportion_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs that are fused, pairs that others read, and calls without a partner."""
    tried: Counter[int] = Counter()

    def counted(*arguments: Any, bind: Any = fusion._bind) -> Any:
        tried[size] += 1
        return bind(*arguments)
    monkeypatch.setattr(fusion, "_bind", counted)
    for size in (20, 80):
        lines = [f"a{i} = f(q); b{i} = g(a{i}, 'k'); c{i} = f(q); d{i} = g(c{i}, 'k'); e{i} = g(q, 'k')"
                 for i in range(size)]
        found = program("; ".join(lines), " ".join(f"b{i} c{i} d{i} e{i}" for i in range(size)))
        assert len(fuse(found, [HIDDEN]).calls) == 4 * size
    assert tried[80] == 4 * tried[20]


def test_calls_with_options_or_on_another_backend_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "RULES", (HIDDEN,))
    found = program("p = f(q); r = g(p, 'k')", "r")
    for change in ({"options": {"n": 1}}, {"backend": ops}):
        assert len(fuse(with_(found, calls=[with_(found.calls[0], **change), found.calls[1]])).calls) == 2


def test_a_line_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fuse: 'f\(x\)' is not a line of a rule; write it as"):
        line("f(x)")


# ---------------------------------------------------------------- the table
@pytest.mark.parametrize("each", RULES, ids=lambda each: " ".join(call.primitive for call in each.pattern))
def test_rules_are_whole(each: Rule) -> None:
    """The primitives exist and take what the rule gives them; the fused call asks for nothing that is never made."""
    made = {name for call in each.pattern for name in call.results}
    read = {name for call in each.pattern for name in call.arguments if isinstance(name, Name)}
    assert set(each.fused.results) <= made
    assert {name for name in each.fused.arguments if isinstance(name, Name)} <= read - made
    assert known(each.fused.primitive).effect == any(known(call.primitive).effect for call in each.pattern)
    for call in (*each.pattern, each.fused):
        primitive = getattr(cpu, call.primitive)
        assert isinstance(primitive, np.ufunc) or inspect.signature(primitive).bind(*call.arguments)


@pytest.mark.parametrize("name", STEPS)
def test_fused_steps_give_the_same_bits(name: str) -> None:
    """What a fused primitive computes is generated from its pattern: that the right values go where it takes them."""
    step_agrees(*recorded(name), STEPS[name][0])
    assert f"by {STEPS[name][0]}" in fuse(recorded(name)[0]).notes[-1]


@pytest.mark.parametrize("each", RULES, ids=lambda each: " ".join(call.primitive for call in each.pattern))
def test_every_rule_has_a_step(each: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "RULES", (each,))
    assert any(len(fuse(found).calls) < len(found.calls) for found in programs())


@functools.cache
def programs() -> list[Program]:
    return [recorded(name)[0] for name in STEPS]


def test_functions_that_are_written_for_a_pattern_or_a_program_have_a_module() -> None:
    """Tracers read it of every frame."""
    look = Look().function([])
    assert [inspect.unwrap(cpu.conv2d_act).__module__, look.__module__, look.__globals__["__name__"]] == [
        "minidl.ops.common.patterns", *["minidl.compiler.reads.looks"] * 2]


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_left_where_a_value_between_is_wanted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept as a result, read by another call, or with an effect between."""
    monkeypatch.setattr(fusion, "RULES", [each for each in RULES if each.fused.primitive == STEPS[name][0]])
    found, *_ = recorded(name)
    fused = fuse(found)
    hidden = {s for call in found.calls for s in call.results} - {s for call in fused.calls for s in call.results}
    new = next(call for call in fused.calls if call.name == STEPS[name][0])
    for slot in hidden or new.results[:1]:             # where all are visible, an effect alone may stand between
        reader = Call(cpu, "copy", (slot,), {}, (Slot(1000, "result", slot.shape, slot.dtype),), False)
        at = 1 + next(i for i, call in enumerate(found.calls) if slot in call.results)
        effect = Call(cpu, "sgd", ((), (), None, 0.1, 0.0, 0.0, False), {}, (), False)
        for change in ({"calls": [*found.calls[:at], effect, *found.calls[at:]]},
                       {"outputs": [found.outputs, slot]}, {"calls": [*found.calls, reader]},
                       {"calls": [*found.calls[:at], reader, *found.calls[at:]]})[:None if hidden else 1]:
            changed = fuse(with_(found, **change))
            assert new not in changed.calls


def test_the_loss_may_be_read_before_its_gradient() -> None:
    found, *run = recorded("classified mean 0.0")
    at, call = next((i, call) for i, call in enumerate(found.calls) if call.name == "cross_entropy")
    twice = Slot(1000, "result", (), np.dtype(float))
    add = Call(cpu, "add", (call.results[0], call.results[0]), {}, (twice,), False)
    changed = with_(found, calls=[*found.calls[:at + 1], add, *found.calls[at + 1:]], outputs=twice)
    fused = fuse(changed)
    order = [call.name for call in fused.calls]
    assert order.index("cross_entropy_with_grad") < order.index("add")
    for got, want in zip(replay_results(fused, *run), replay_results(changed, *run), strict=True):
        np.testing.assert_array_equal(got, want)


def test_printed_rules_read_back() -> None:
    assert line("y = f(x, 'k', 2, None)") == Line((Name("y"),), "f", (Name("x"), "k", 2, None))
    assert [isinstance(a, Name) for a in line("y = f(x, 'k')").arguments] == [True, False]


# ---------------------------------------------------------------- the fused primitives on CUDA
@pytest.mark.gpu
@pytest.mark.usefixtures("fp32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STEPS)
def test_fused_steps_on_cuda(name: str, dtype: type) -> None:
    device.resolve("cuda")
    step_agrees(*recorded(name, dtype, lambda a: Tensor(a, device="cuda")), STEPS[name][0], atol=64)
