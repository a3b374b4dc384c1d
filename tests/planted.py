"""Faults planted in minidl.compile, one for each mechanism: a generator that finds none of them proves nothing.

A plant is a few words of one function's source, and what stands there instead. The function's code is replaced while
the plant is in, so that it does not matter who imported it. Where the source was rewritten, adapt the table: a plant
whose words are not there exactly once says so.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple


class Plant(NamedTuple):
    """In `where` (module:path of a function), `words` are replaced by `fault`."""

    where: str
    words: str
    fault: str


PLANTS: dict[str, Plant] = {
    # passes
    "cse across an update": Plant("minidl.compile.passes:common_subexpressions", "seen.clear()", "pass"),
    "cse of two gradients": Plant("minidl.compile.passes:common_subexpressions",
                                  " or not gradients.isdisjoint(call.results)", ""),
    "fusion across an effect": Plant("minidl.compile.fuse:_View.place",
                                     "any(call.effect for call in self.calls[first:last + 1])", "False"),
    "a needed copy left out": Plant("minidl.compile.passes:copy_elision",
                                    "slot.kind == \"result\" and makers[slot] == uses[slot] == 1",
                                    "slot.kind == \"result\""),
    "an effect taken for dead": Plant("minidl.compile.passes:dead_code", "call.effect or", "call.name == 'sgd' or"),
    # the plan: on the CPU a value that ended is None
    "values end too early": Plant("minidl.compile.plan:_ends", "ends[i].append(slot)",
                                  "ends[max(0, i - 1)].append(slot)"),
    # guards and signatures
    "a Module's flag not guarded": Plant("minidl.nn:Module.training.fget", "lambda: self._training", "lambda: None"),
    "an optimizer's numbers not guarded": Plant(
        "minidl.optim:SGD._tell", "(group[\"momentum\"], group[\"weight_decay\"], group[\"nesterov\"])", "()"),
    "presence of a gradient not guarded": Plant("minidl.compile.record:Recorder.grad_of",
                                                "lambda: leaf.grad is None", "lambda: True"),
    "rebound data not guarded": Plant("minidl.compile.record:_still", "t.data is array", "True"),
    "identity of arguments ignored": Plant("minidl.compile.step:_signature", "tuple(map(ids.index, ids))", "()"),
    "an argument's gradient ignored": Plant("minidl.compile.step:_part", "value.device, value.requires_grad, itself",
                                            "value.device"),
    "an argument's shape ignored": Plant("minidl.compile.step:_part", "return \"Tensor\", value.shape",
                                         "return \"Tensor\", value.ndim"),
    "a plain argument's value ignored": Plant("minidl.compile.step:_part", "return type(value), value",
                                              "return type(value), None"),
    # replay
    "rate frozen": Plant("minidl.optim:SGD.step", "mode.dynamic(functools.partial(group.__getitem__, \"lr\"))",
                         "group[\"lr\"]"),
    "random key frozen": Plant("minidl.ops.activation:dropout", "mode.dynamic(rng.next_key)", "rng.next_key()"),
    "outside arrays as they were": Plant("minidl.compile.replay:ByCalls.__init__", "(slot.number, slot.array)",
                                         "(slot.number, slot.array.copy())"),
    "gradients not written": Plant("minidl.compile.replay:ByCalls.run", "in program.grads:", "in ():"),
    "changes not marked": Plant("minidl.compile.replay:finish", "mark_changed(program.changed)", "pass"),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this lasts, the fault is in."""
    function, code = _function(PLANTS[name].where), _faulty(name)
    before = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


def _function(where: str) -> FunctionType:
    module, path = where.split(":")
    found: Any = importlib.import_module(module)
    for word in path.split("."):
        found = getattr(found, word)
    return inspect.unwrap(found)


@functools.cache
def _faulty(name: str) -> Any:
    """The code of the function with the fault."""
    where, words, fault = PLANTS[name]
    function = _function(where)
    lines, first = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines))
    if source.count(words) != 1:
        raise LookupError(f"planted: {where} has {source.count(words)} times {words!r} but must have it once; adapt "
                          f"PLANTS[{name!r}] to the source")
    space: dict[str, Any] = {}
    text = "\n" * (first - 1) + source.replace(words, fault)
    text = "from __future__ import annotations\n" + text[1:]                    # lines keep their numbers
    exec(compile(text, function.__code__.co_filename, "exec"), dict(function.__globals__), space)
    made = space[function.__name__]
    return (made.fget if isinstance(made, property) else inspect.unwrap(made)).__code__
