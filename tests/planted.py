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
    "cse across an update": Plant("minidl.compiler.passes:common_subexpressions", "seen.clear()", "pass"),
    "cse of two gradients": Plant("minidl.compiler.passes:common_subexpressions", "kept = program.kept()",
                                  "own, kept = program.written(), set()"),
    "cse of what is written": Plant("minidl.compiler.passes:common_subexpressions", "program.written() | ", ""),
    "fusion across an effect": Plant("minidl.compiler.passes.fusion:View.place",
                                     "any(call.effect for call in between)", "False"),
    "a needed copy left out": Plant("minidl.compiler.passes:copy_elision",
                                    "slot.kind == \"result\" and makers[slot] == uses[slot] == 1",
                                    "slot.kind == \"result\""),
    "an effect taken for dead": Plant("minidl.compiler.passes:dead_code", "call.effect or", "call.name == 'sgd' or"),
    # the plan: on the CPU a value that ended is None
    "values end too early": Plant("minidl.compiler.plan:_ends", "ends[i].append(slot)",
                                  "ends[max(0, i - 1)].append(slot)"),
    # facts
    "attributes of Modules not guarded": Plant("minidl.compiler.reads.facts:_Noted.changed",
                                               "in self.watched.values()", "in ()"),
    "requires_grad not guarded": Plant("minidl.compiler.reads.facts:Facts.tensor",
                                       "self._note(\"$0.requires_grad\", (t,), t.requires_grad, what)", "pass"),
    "rebound data not guarded": Plant("minidl.compiler.reads.facts:Facts.tensor",
                                      "self._note(\"$0._data\", (t,), t._data, what)", "pass"),
    "presence of a gradient not guarded": Plant("minidl.compiler.reads.facts:Facts.gradient",
                                                "self.gradients.append", "bool"),
    "globals and attributes not guarded": Plant("minidl.compiler.reads.facts:Facts.entry", "if self._first",
                                                "if False and self._first"),
    "cells not guarded": Plant("minidl.compiler.reads.facts:Facts.cell", "self._note(\"$0.cell_contents\", (cell,), "
                               "cell.cell_contents, what, told=True)", "pass"),
    "what containers hold not guarded": Plant("minidl.compiler.reads.facts:Facts.container", "if self._first",
                                              "if False and self._first"),
    "an optimizer's numbers not guarded": Plant("minidl.compiler.reads.facts:_Noted.changed",
                                                "first_change(self.settings)", "None"),
    "all facts not looked at": Plant("minidl.compiler.reads.looks:Look.function", ", *self._tests]", "]"),
    # when a program is trusted, and for which arguments
    "two recordings not compared": Plant("minidl.compiler.step:_Entry.agrees", "compare(self.recorded, recorded)",
                                         "pass"),
    "what the step itself changes is trusted": Plant("minidl.compiler.step:CompiledStep._keep",
                                                     "first_change(recorded.facts.others)", "None"),
    "arguments that were the same may change": Plant("minidl.compiler.step:_Entry._facts_of_arguments",
                                                     "in enumerate(self.signature.arrays):", "in ():"),
    "an argument by another name ignored": Plant("minidl.compiler.step:_Entry._facts_of_arguments",
                                                 "(self.outside.ids, owner)", "((), owner)"),
    "one argument twice ignored": Plant("minidl.compiler.signature:_read", "len(arrays) > 1", "False"),
    "no_grad() ignored": Plant("minidl.compiler.signature:_read", "\"$1.grad\", ", ""),
    "an argument's requires_grad ignored": Plant("minidl.compiler.signature:_read",
                                                 "values[{i}]._requires_grad, values[{i}].node is None, ", ""),
    "an argument's shape ignored": Plant("minidl.compiler.signature:_read", "array{i}.shape", "array{i}.ndim"),
    "a plain argument's value ignored": Plant("minidl.compiler.signature:_plain",
                                              "return type(value), repr(value)", "return type(value), None"),
    # replay
    "rate frozen": Plant("minidl.optim.optimizer:Optimizer.step",
                         "mode.recorder.dynamic(functools.partial(dict.__getitem__, group, \"lr\"))",
                         "dict.__getitem__(group, \"lr\")"),
    "random key frozen": Plant("minidl.compiler.replay:_Numbers.read", "dynamic.read()",
                               "dynamic.first if \"next_key\" in repr(dynamic.read) else dynamic.read()"),
    "outside arrays as they were": Plant("minidl.compiler.replay:ByCalls.__init__", "(slot.number, slot.array)",
                                         "(slot.number, slot.array.copy())"),
    "gradients not written": Plant("minidl.compiler.replay:ByCalls.run",
                                   "(_, slot) in zip(self.leaves.of(given), program.grads, strict=True)",
                                   "(_, slot) in ()"),
    "gradients from before as they were": Plant(
        "minidl.compiler.replay:arrays_of", "[leaf._grad._data for leaf in leaves]",
        "vars(program).setdefault(\"then\", [leaf._grad._data for leaf in leaves])"),
    "changes not marked": Plant("minidl.compiler.replay:ByCalls.run", "mark_changed(self.changed.of(given))", "pass"),
}

# Found by no program before the sixtieth or so: too late for the suite.
LATE = frozenset({
    "a needed copy left out", "presence of a gradient not guarded", "what containers hold not guarded",
    "two recordings not compared", "an argument by another name ignored", "a plain argument's value ignored"})


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this lasts, the fault is in."""
    found, code = _found(PLANTS[name].where), _faulty(name)
    function, forget = inspect.unwrap(found), getattr(found, "cache_clear", bool)      # what it gave before
    before = function.__code__
    function.__code__ = code
    forget()
    try:
        yield
    finally:
        function.__code__ = before
        forget()


def _found(where: str) -> Any:
    module, path = where.split(":")
    found: Any = importlib.import_module(module)
    for word in path.split("."):
        found = getattr(found, word)
    return found


@functools.cache
def _faulty(name: str) -> Any:
    """The code of the function with the fault."""
    where, words, fault = PLANTS[name]
    function: FunctionType = inspect.unwrap(_found(where))
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
