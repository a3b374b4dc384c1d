"""@op: from a body that knows arrays to a function that knows Tensors.

A body reads `def name(k, x: Tensor, w: Tensor, b: Tensor | None = None, *, option: int = 1)`: `k` is the backend, the
positional parameters are given as arrays (or None, or plain numbers), the keyword-only ones are options. Its types are
those of the function that a user calls: mypy and editors see that. It returns `(y, backward)`, and
`backward(gy, need)` returns one gradient (or None) per input. Bodies and closures touch arrays only
through `k` and look only at shapes and dtypes, so that the same text can be run, recorded and replayed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, overload

import numpy as np

from ..mode import mode
from ..tensor import Node, Tensor, wrap
from ._backend import BACKENDS, primitives_of

P = ParamSpec("P")
OPS: dict[str, Callable[..., Tensor]] = {}     # every op by name; the tests demand a Case for each


@overload
def op(body: Callable[Concatenate[Any, P], Any]) -> Callable[P, Tensor]: ...
@overload
def op(*, index: tuple[str, ...] = (), numbers: bool = False, floating: bool = False,
       view: bool = False) -> Callable[[Callable[Concatenate[Any, P], Any]], Callable[P, Tensor]]: ...
def op(body: Callable[..., Any] | None = None, *, index: tuple[str, ...] = (), numbers: bool = False,
       floating: bool = False, view: bool = False) -> Any:
    """Make a public function of Tensors from a body, and enter it in OPS.

    index: names of the inputs that hold integers (labels); they take no part in the dtype comparison.
    numbers: whether plain numbers may stand for Tensors; they leave the result's dtype alone.
    floating: whether the first input must hold floating numbers, because integers would wrap or not fit.

    view: whether the result lies, as a rule, in the first input's memory; a change of either in place is one of both.

    The function refuses inputs that are no Tensors, and Tensors whose dtypes or devices differ. It records
    a Node when an input requires a gradient and the tape is on.
    """
    if body is None:
        return partial(op, index=index, numbers=numbers, floating=floating, view=view)
    name = body.__name__.strip("_")
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())[1:]
    inputs_of = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inputs_of)
    arity = len(inputs_of)
    named = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    optional = frozenset(i for i, p in enumerate(inputs_of) if p.default is None)
    integer = frozenset(i for i, p in enumerate(inputs_of) if p.name in index)

    @wraps(body)
    def call(*inputs: Any, **options: Any) -> Tensor:
        if len(inputs) != arity and not variadic:
            inputs = _bind(name, inputs_of, inputs, options)
        arrays: list[Any] = []
        sources: list[Node | Tensor | None] = []
        need: list[bool] = []
        first = None
        for t in inputs:
            if t.__class__ is Tensor or isinstance(t, Tensor):
                array = t._data
                if first is None:
                    first = array
                elif array.__class__ is not first.__class__ or (
                        array.dtype is not first.dtype and len(arrays) not in integer):
                    _check_same(name, inputs, integer)
                arrays.append(array)
                sources.append(t.node or t)
                need.append(t.requires_grad)
            else:
                arrays.append(None if t is None and len(arrays) in optional else _number(name, t, numbers))
                sources.append(None)
                need.append(False)
        if options and not options.keys() <= named:
            raise TypeError(f"{name}: does not take {', '.join(sorted(options.keys() - named))}; it takes "
                            f"{', '.join(p.name for p in parameters)}")
        if first is None:
            raise TypeError(f"{name}: got no Tensor but needs at least one; wrap an input in minidl.Tensor(...)")
        if floating and first.dtype.kind != "f":
            raise TypeError(f"{name}: the input has dtype {first.dtype} but must be float32 or float64; "
                            "convert it with .to(dtype='float32')")
        recorder = mode.recorder
        if not recorder.recording:
            k = BACKENDS.get(first.__class__) or primitives_of(first)
            y, backward = body(k, *arrays, **options)
        else:
            recorder.seen(inputs)
            k = primitives_of(first)
            y, backward = recorder.run(name, body, k, arrays, options)
        node = None
        if backward is not None and mode.grad and True in need:
            node = Node(name, k, tuple(sources), tuple(need), backward)
        result = wrap(y, node)
        if view:
            result.changed = next(t for t in inputs if isinstance(t, Tensor)).changed
            if node is not None:
                node.changed = result.changed
        recorder.made(result)
        return result

    call.__signature__ = signature.replace(parameters=parameters, return_annotation="Tensor")  # type: ignore[attr-defined]
    call.__annotations__["return"] = "Tensor"
    OPS[name] = call
    return call


def _bind(name: str, inputs_of: list[inspect.Parameter], inputs: tuple[Any, ...],
          options: dict[str, Any]) -> tuple[Any, ...]:
    """Fill the inputs that were given by name or left to their default."""
    if len(inputs) > len(inputs_of):
        raise TypeError(f"{name}: got {len(inputs)} positional inputs but takes "
                        f"{len(inputs_of)} ({', '.join(p.name for p in inputs_of)}); pass options by name")
    filled = list(inputs)
    for p in inputs_of[len(inputs):]:
        value = options.pop(p.name, p.default)
        if value is p.empty:
            raise TypeError(f"{name}: got {len(inputs)} inputs but {p.name!r} is missing; it takes "
                            f"{', '.join(q.name for q in inputs_of)}")
        filled.append(value)
    return tuple(filled)


def _number(name: str, value: object, numbers: bool) -> int | float | bool:
    """A Python number; NumPy's scalars become one, since theirs would decide the result's dtype."""
    if numbers and isinstance(value, (int, float, np.integer, np.floating, np.bool)):
        return value.item() if isinstance(value, np.generic) else value
    raise TypeError(f"{name}: an input is a {type(value).__module__}.{type(value).__name__} but must be a Tensor"
                    f"{' or a plain number' if numbers else ''}; wrap it in minidl.Tensor(...)")


def _check_same(name: str, inputs: tuple[Any, ...], integer: frozenset[int]) -> None:
    """Refuse Tensors of different devices, or of different dtypes where both take part in arithmetic."""
    tensors = [t for t in inputs if isinstance(t, Tensor)]
    devices = [t.device for t in tensors]
    if len(set(devices)) > 1:
        raise ValueError(f"{name}: inputs are on devices {' and '.join(devices)}; move them to one with .to()")
    dtypes = [str(t.dtype) for i, t in enumerate(inputs) if isinstance(t, Tensor) and i not in integer]
    if len(set(dtypes)) > 1:
        raise TypeError(f"{name}: inputs have dtypes {' and '.join(dtypes)}; convert them to one with "
                        ".to(dtype=...)")
