"""The public face: a decorated step, its programs by signature, and when to record anew."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..device import device_of, precision
from ..tensor import Tensor, mode
from .passes import optimised
from .plan import can_be_captured
from .program import Program
from .record import is_array, record
from .replay import AsGraph, ByCalls


def compile(step: Callable[..., Any]) -> CompiledStep:
    """Make a step (any function of Tensors that may run forward, backward() and optimizer.step()) run without the tape.

    The first call with a new signature (shapes, dtypes and devices of its Tensors, other arguments by value, precision)
    runs the function as it is and keeps the primitive calls that it made, its program. Later calls replay the program:
    parameters, gradients and optimizer state change in place as in the plain function, a learning rate is read anew,
    and dropout draws anew. Whatever else the step looked at (a module's training flag, an optimizer's momentum, where a
    parameter lives) is looked at again, and recorded anew when it is different. On a CUDA device the program is one
    captured graph.

    Returned Tensors are off the tape. Raises CompileError (a ValueError), naming the line, for what could not be
    replayed: reading a Tensor's values in the step, making a Tensor from data, moving one between devices, adding to
    gradients from before the step.

    >>> import minidl
    >>> w = minidl.Tensor([1.0, 2.0], requires_grad=True)
    >>> sgd = minidl.optim.SGD([w], lr=0.1)
    >>> @minidl.compile
    ... def step(x):
    ...     sgd.zero_grad()
    ...     loss = ((w * x) * (w * x)).sum()
    ...     loss.backward()
    ...     sgd.step()
    ...     return loss
    >>> x = minidl.Tensor([1.0, 0.5])
    >>> step(x).item(), step(x).item(), w.tolist()  # doctest: +ELLIPSIS
    (2.0, 1.542..., [0.639..., 1.804...])
    """
    return CompiledStep(step)


class CompiledStep:
    """What `compile` returns: call it as the function. `program` is the last one that ran; print it to read it."""

    def __init__(self, step: Callable[..., Any]):
        functools.update_wrapper(self, step)
        self.step = step
        self.program: Program | None = None
        self.recorded: Program | None = None           # the last program as it was before the passes
        self._entries: dict[Any, list[_Entry]] = {}

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if mode.recorder is not None:                  # within another compiled step: part of that one's program
            return self.step(*arguments, **options)
        signature, arrays = _signature(arguments, options)
        entries = self._entries.setdefault(signature, [])
        for entry in entries:
            if entry.program.holds():
                self.program, self.recorded = entry.program, entry.recorded
                return entry.run(arrays)
        recorded, returned = record(self.step, arguments, options)
        entries.insert(0, _Entry(recorded))
        del entries[MOST:]
        self.program, self.recorded = entries[0].program, recorded
        return returned


MOST = 8                                   # programs that are kept for a signature


class _Entry:
    """A program, and its replay once it is called again."""

    def __init__(self, recorded: Program):
        self.recorded, self.program = recorded, optimised(recorded)
        self.replay: ByCalls | AsGraph | None = None

    def run(self, arrays: list[Any]) -> Any:
        if self.replay is None:
            self.replay = AsGraph(self.program, arrays) if can_be_captured(self.program) else ByCalls(self.program)
        return self.replay.run(arrays)


def _signature(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """(what is equal for calls that the same program may serve, the arrays among the arguments, in order)."""
    names = tuple(sorted(options))
    values = [*arguments, *map(options.__getitem__, names)]
    parts = tuple(map(_part, values))
    arrays = [value if part[0] == "array" else value.data
              for value, part in zip(values, parts) if part[0] in ("Tensor", "array")]
    ids = list(map(id, arrays))
    return (precision(), mode.grad, names, tuple(map(ids.index, ids)), parts), arrays


def _part(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Tensor):                      # a leaf's gradient goes to itself: no other will do
        itself = value if value.requires_grad and value.is_leaf else None
        return "Tensor", value.shape, value.dtype, value.device, value.requires_grad, itself
    if is_array(value):
        return "array", value.shape, value.dtype, device_of(value)
    try:
        hash(value)
    except TypeError:
        raise TypeError(f"compile: an argument is a {type(value).__name__}, which cannot be told from another; pass "
                        "Tensors, arrays and plain values, and use other objects from outside the step") from None
    return type(value), value
