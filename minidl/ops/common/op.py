"""@op: from a body that knows arrays to a function that knows Tensors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from types import ModuleType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, overload

import numpy as np

from ...core.device import flags, no_flags
from ...core.mode import mode
from ...core.tensor import Array, Backward, Node, Tensor, counted, share, wrap
from .backend import BACKENDS, primitives_of
from .checked import checks_of

P = ParamSpec("P")
R = TypeVar("R")
OPS: dict[str, Callable[..., Tensor]] = {}     # every op of minidl by name; the tests demand a Case for each
ALSO = {"dim": "axis", "keepdim": "keepdims", "kernel_size": "size", "unbiased": "correction", "ddof": "correction",
        "start_dim": "start", "min": "low", "max": "high"}             # what others call an option, and its name here
FAMILIES = "minidl.ops.arrays.", "minidl.ops.layers.", "minidl.ops.losses."       # where those of minidl are
FLAG = bool, "bool"                        # how an option is annotated that is True or False
NUMBER = "float", "float | None"           # and one that is not
NOT_COMPUTED = "eg"                        # float16 and longdouble, by their characters: Tensors only hold them


@overload
def op(body: Callable[Concatenate[Any, P], Any]) -> Callable[P, Tensor]: ...
@overload
def op(*, index: tuple[str, ...] = (), numbers: bool = False, floating: bool = False, view: bool = False,
       by_place: int | None = None) -> Callable[[Callable[Concatenate[Any, P], Any]], Callable[P, Tensor]]: ...
def op(body: Callable[..., Any] | None = None, *, index: tuple[str, ...] = (), numbers: bool = False,
       floating: bool = False, view: bool = False, by_place: int | None = None) -> Any:
    """Make a function of Tensors from a body: an op, on every device, on the tape and in compiled steps.

    A body reads `def name(k, x: Tensor, w: Tensor, b: Tensor | None = None, *, option: int = 1)`. `k` holds the
    primitives of the device; positional parameters are given as arrays (or None, or plain numbers), keyword-only ones
    are options. It returns `(y, backward)`: `backward(gy, need)` returns one gradient (or None) per input, and `need`
    says which are wanted; backward is None if there is no gradient. Bodies and closures touch arrays only through
    `k.<primitive>(...)` and look only at shapes and dtypes: so the same text can be run, recorded and replayed.

    index: names of the inputs that hold integers (labels); they take no part in the dtype comparison.
    numbers: whether plain numbers may replace Tensors; they leave the dtype of floating Tensors alone.
    floating: whether the first input must hold floating numbers, because integers would wrap or not fit.
    view: whether the result usually shares the first input's memory; a change in place of one changes both.
    by_place: how many options may follow the inputs by position (all by default): those that PyTorch has there too.

    Raises TypeError and ValueError, when it is called, for inputs that are not Tensors, for Tensors whose dtypes or
    devices differ, and for those of float16 and longdouble: sums would overflow, or there is no kernel. Options may
    follow the inputs by position too. Floating results of integers are float32.

    >>> @op
    ... def cube(k, x: Tensor):
    ...     return k.pow(x, 3), lambda gy, need: (k.mul(gy, k.mul(k.mul(x, x), 3)),)
    >>> x = Tensor([2.0], requires_grad=True); cube(x).backward(); x.grad.tolist()
    [12.0]
    """
    if body is None:
        return partial(op, index=index, numbers=numbers, floating=floating, view=view, by_place=by_place)
    name = body.__name__.strip("_")
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())[1:]
    inputs_of = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inputs_of)
    arity = len(inputs_of)
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    optional = frozenset(i for i, p in enumerate(inputs_of) if p.default is None)
    integer = frozenset(i for i, p in enumerate(inputs_of) if p.name in index)
    plain = frozenset(range(arity)) - integer if numbers else frozenset()      # inputs that may be plain numbers
    ours = body.__module__.startswith("minidl.")
    asked = [(p.name, flags if p.annotation in FLAG else no_flags) for p in named.values()
             if p.annotation in FLAG or p.annotation in NUMBER]

    @wraps(body)
    def call(*inputs: Any, **options: Any) -> Tensor:
        if (len(inputs) != arity and not variadic) or (options and not options.keys() <= named.keys()):
            inputs, options = _bind(name, inputs_of, inputs, options, [*named], by_place)
        if options:
            _require_kinds(name, asked, options)
        arrays: list[Any] = []
        sources: list[Node | Tensor | None] = []
        need: list[bool] = []
        first = None
        for t in inputs:
            if t.__class__ is Tensor or isinstance(t, Tensor):
                array = t._data
                if first is None:
                    first, dtype = array, array.dtype
                elif (array.__class__ is not first.__class__ or (array.dtype is not dtype and (
                        len(arrays) not in integer or array.dtype.char in NOT_COMPUTED))) and (
                        numbered := _masks_as_numbers(name, inputs, integer)) is not None:
                    return call(*numbered, **options)
                arrays.append(array)
                sources.append(t.node or t)
                need.append(t._requires_grad)
            else:
                arrays.append(None if t is None and len(arrays) in optional else _number(name, t, len(arrays) in plain))
                sources.append(None)
                need.append(False)
        if first is None or dtype.char in NOT_COMPUTED or (floating and dtype.kind != "f"):
            _refuse(name, first)
        try:
            if not mode.recorder.recording:
                k = BACKENDS.get(first.__class__) or primitives_of(first)
                made = body(k, *arrays, **options)
                y, backward = made if made.__class__ is tuple and len(made) == 2 else _no_pair(name, made)
            else:
                mode.recorder.given(*inputs)
                k = primitives_of(first)
                y, backward = mode.recorder.run(name, body, k, arrays, options)
            if dtype.kind != "f" and y.dtype.kind == "f":
                y, backward = _of_integers(y, backward, name, body, k, arrays, options)
        except (TypeError, ValueError, OverflowError) as error:
            raise _named(name, error, inputs) from error
        node = None
        if backward is not None and mode.grad and True in need:
            node = Node(name, k, tuple(sources), tuple(need), backward if ours else checks_of(name, arrays)(backward),
                        id(y))
        result = wrap(y, node)
        if view:
            share(result, next(t for t in inputs if isinstance(t, Tensor)))
        if not y.ndim or WEIGHTED:
            _weigh(result, inputs)
        return result

    call.__signature__ = signature.replace(parameters=parameters, return_annotation="Tensor")  # type: ignore[attr-defined]
    call.__annotations__["return"] = "Tensor"
    call.by_place = [*named][:by_place]    # type: ignore[attr-defined]  # options that may come by position
    if body.__module__.startswith(FAMILIES):
        OPS[name] = call
    return call


WEIGHTED: list[bool] = []                  # not empty once there was a loss with weights


def _weigh(result: Tensor, inputs: tuple[Any, ...]) -> None:
    """What is computed from a weighted mean gets that mean's weights; of several such means, if they are of the same
    labels. So does what is computed from losses of each label, if it has their shape."""
    given = [t for t in inputs if isinstance(t, Tensor) and (t.weights is not None or t._counted == ())]
    if not given:
        return
    shape = result._data.shape
    given = [t for t in given if t._data.shape == shape or t.weights is None or t._data.shape != t.weights._data.shape]
    held = {counted(t.weights): t.weights for t in given if t.weights is not None}
    if len(held) > 1 or any(t._counted == () for t in given):
        result._counted = ()               # and so is what is computed from it
    elif held:
        result.weights, = held.values()


def _require_kinds(name: str, asked: list[tuple[str, Callable[..., None]]], options: dict[str, Any]) -> None:
    """Refuse what is not a flag, or not a number, where an op takes one."""
    for option, check in asked:
        if option in options:
            check(name, **{option: options[option]})


def _refuse(name: str, first: Array | None) -> NoReturn:
    """Raise TypeError for inputs that an op does not take. first: the first array, or the one at fault."""
    if first is None:
        raise TypeError(f"{name}: got no Tensor but needs at least one; wrap an input in minidl.Tensor(...)")
    if first.dtype.char in NOT_COMPUTED:
        raise TypeError(f"{name}: an input has dtype {first.dtype}, in which nothing is computed; convert it with "
                        ".to(dtype='float32') or .to(dtype='float64')")
    raise TypeError(f"{name}: the input has dtype {first.dtype} but must be float32 or float64; convert it with "
                    ".to(dtype='float32')")


def _no_pair(name: str, made: object) -> NoReturn:
    """Raise TypeError for what a body returns: an array alone could be taken for a pair, by its first two rows."""
    raise TypeError(f"{name}: its body returns {f'{len(made)} things' if isinstance(made, tuple) else 'one value'} "
                    f"({type(made).__name__}) but must return (y, backward): the result, and a function of (gy, need) "
                    "that gives one gradient per input, or None where there are none")


def _of_integers(y: Array, backward: Backward | None, name: str, body: Callable[..., Any], k: ModuleType,
                 arrays: list[Any], options: dict[str, Any]) -> tuple[Array, Backward | None]:
    """A floating result, in float32 if all inputs are integers, as PyTorch has it: float64 would fit no layer."""
    if any(array.dtype.kind == "f" for array in arrays if hasattr(array, "dtype")):
        return y, backward
    if y.dtype.itemsize == 2:              # what NumPy makes of small integers would round them
        arrays = [k.cast(array, "float32") if hasattr(array, "dtype") else array for array in arrays]
        y, backward = mode.recorder.run(name, body, k, arrays, options)
    return k.cast(y, "float32"), backward


def renamed(name: str, options: dict[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
    """Options by the names that they have here. Raises TypeError for one that is given by two names."""
    found: dict[str, Any] = {}
    for option, value in options.items():
        if option == "dim" and name in ("max", "min"):
            raise TypeError(f"{name}: gives the values alone, and PyTorch's {name}(dim) gives (values, indices); write "
                            f"{name}(axis=...), and arg{name}(axis=...) for the indices")
        here = option if option in own else ALSO.get(option, option)
        if here in found:
            raise TypeError(f"{name}: {here} is given twice, as {found[here]!r} and {value!r}; give it once")
        found[here] = value
    return found


def also(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose options are also known by the names that others have for them, and are flags and numbers where
    they are annotated so."""
    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        if not options.keys() <= takes.keys():
            options = renamed(function.__name__, options, takes)  # type: ignore[assignment]
        for place, option, check, kind in asked:
            given = arguments[place] if place < len(arguments) else options.get(option, kind())
            if given.__class__ is not kind:
                check(function.__name__, **{option: given})
        return function(*arguments, **options)
    takes = inspect.signature(function).parameters
    asked = [(place, p.name, *((flags, bool) if p.annotation in FLAG else (no_flags, float)))
             for place, p in enumerate(takes.values()) if p.annotation in (*FLAG, *NUMBER)]
    return call


def _bind(name: str, inputs_of: list[inspect.Parameter], inputs: tuple[Any, ...], options: dict[str, Any],
          named: list[str], by_place: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All inputs, and all options by their own names. Raises TypeError for options that an op does not take."""
    options = renamed(name, options, named)
    if not any(p.kind is p.VAR_POSITIONAL for p in inputs_of):
        inputs = _filled(name, inputs_of, inputs, options, named, by_place)
    if unknown := sorted(options.keys() - {*named}):
        raise TypeError(f"{name}: does not take {', '.join(unknown)}; it takes "
                        f"{', '.join([*(p.name for p in inputs_of), *named])}")
    return inputs, options


def _filled(name: str, inputs_of: list[inspect.Parameter], inputs: tuple[Any, ...], options: dict[str, Any],
            named: list[str], by_place: int | None) -> tuple[Any, ...]:
    """Fill the inputs that were given by name or left to their default; what follows the inputs are options."""
    more = inputs[len(inputs_of):]
    if by_place is not None and len(more) > by_place:
        raise by_name_alone(name, named[by_place:])
    if len(more) > len(named) or options.keys() & set(named[:len(more)]):
        raise TypeError(f"{name}: got {len(inputs)} positional arguments and {', '.join(options) or 'none'} by name, "
                        f"but takes {', '.join([p.name for p in inputs_of] + named)}; give each once")
    options.update(zip(named, more, strict=False))
    filled = list(inputs[:len(inputs_of)])
    for p in inputs_of[len(filled):]:
        value = options.pop(p.name, p.default)
        if value is p.empty:
            raise TypeError(f"{name}: got {len(inputs)} inputs but {p.name!r} is missing; it takes "
                            f"{', '.join(q.name for q in inputs_of)}")
        filled.append(value)
    return tuple(filled)


def _named(name: str, error: Exception, inputs: tuple[object, ...]) -> Exception:
    """An error that begins with the name of an op, as bodies' own do; NumPy's know only the array's dtype."""
    if str(error).partition(": ")[0].replace("_", "").isalnum():
        return error
    if missing := re.search(r"missing \d+ required keyword-only arguments?: (.*)", str(error)):
        return TypeError(f"{name}: lacks {missing[1]}; give it by name")
    if found := re.search(r"unhashable type: '(\w+)'", str(error)):
        return TypeError(f"{name}: an option is a {found[1]} but must be a text, a number or a tuple of them")
    dtypes = " and ".join(str(getattr(t, "dtype", type(t).__name__)) for t in inputs)
    kind = next(kind for kind in (TypeError, ValueError, OverflowError) if isinstance(error, kind))
    return kind(f"{name}: of {dtypes}: {error}; convert with .to(dtype=...)")      # NumPy's own kinds take no text


def by_name_alone(name: str, options: Sequence[str]) -> TypeError:
    """The error for options that were given by position."""
    return TypeError(f"{name}: takes {' and '.join(options)} by name alone, since PyTorch's {name} has something else "
                     f"there; write {options[0]}=...")


def _number(name: str, value: object, numbers: bool) -> int | float | bool:
    """A Python number; NumPy's scalars become one, and those of a subclass (x.size), which would decide the result's
    dtype."""
    if numbers and isinstance(value, (int, float, np.integer, np.floating, np.bool)):
        number = value.item() if isinstance(value, np.generic) else value
        return number if isinstance(number, bool) else int(number) if isinstance(number, int) else float(number)
    raise TypeError(f"{name}: an input is a {type(value).__module__}.{type(value).__name__} but must be a Tensor"
                    f"{' or a plain number' if numbers else ''}; wrap it in minidl.Tensor(...)")


def tensor(name: str, x: object) -> Tensor:
    """x itself; raises TypeError if it is not a Tensor, as an op does."""
    if not isinstance(x, Tensor):
        _number(name, x, False)
    return x  # type: ignore[return-value]  # _number has raised


def _masks_as_numbers(name: str, inputs: tuple[Any, ...], integer: frozenset[int]) -> tuple[Any, ...] | None:
    """Inputs of an op whose masks became numbers of the others' dtype; None if there is nothing to change. Raises
    TypeError and ValueError for inputs of which together nothing is computed."""
    places = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and i not in integer]
    others = {inputs[i].dtype for i in places} - {np.dtype(bool)}
    if len(others) == 1 and any(inputs[i].dtype == np.bool_ for i in places):
        return tuple(t.to(dtype=next(iter(others))) if i in places and t.dtype == np.bool_ else t
                     for i, t in enumerate(inputs))
    for t in inputs:
        if isinstance(t, Tensor) and t.dtype.char in NOT_COMPUTED:
            _refuse(name, t._data)
    _check_same(name, inputs, integer)
    return None


def _check_same(name: str, inputs: tuple[Any, ...], integer: frozenset[int]) -> None:
    """Refuse Tensors of different devices, or of different dtypes if both take part in arithmetic."""
    tensors = [t for t in inputs if isinstance(t, Tensor)]
    devices = [t.device for t in tensors]
    if len(set(devices)) > 1:
        raise ValueError(f"{name}: inputs are on devices {' and '.join(devices)}; move them to one with .to()")
    dtypes = [str(t.dtype) for i, t in enumerate(inputs) if isinstance(t, Tensor) and i not in integer]
    if len(set(dtypes)) > 1:
        raise TypeError(f"{name}: inputs have dtypes {' and '.join(dtypes)}; convert them to one with .to(dtype=...)")
