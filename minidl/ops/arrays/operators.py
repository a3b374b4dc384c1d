"""The operators and methods of Tensor, NumPy's functions on it, and changes in place."""

# A method's self is a Tensor, which inherits it for type checkers; mypy wants a supertype.
# mypy: disable-error-code="misc"

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.mode import mode
from ...core.tensor import Tensor, mark_changed, shares
from ..common.backend import backend_of, in_order_of
from ..common.op import _check_same, _number, by_name_alone, renamed
from ..common.primitives import Array, Index
from ..layers.activation import tanh
from . import basic
from .basic import (
    Axis,
    Number,
    _shape,
    add,
    div,
    eq,
    exp,
    ge,
    gt,
    le,
    log,
    lt,
    matmul,
    mul,
    ne,
    neg,
    pow,
    sqrt,
    sub,
)
from .indexing import getitem, plain_index
from .shapes import flatten, reshape, transpose

Sizes = int | tuple[int, ...] | list[int]


# ---------------------------------------------------------------- in place
def setitem(x: Tensor, index: Index, value: Number) -> None:
    """x[index] = value, in x's memory. value: a Tensor that broadcasts to the place, or a number. Index as in getitem.

    It is not recorded: raises ValueError if the tape records x or the value, for a shape that does not fit, and for a
    value on another device; TypeError for another dtype. Graphs that used x before can no longer be run backward.

    >>> x = Tensor([1.0, 2.0, 3.0])
    >>> setitem(x, slice(1, None), 0.0); x.tolist()
    [1.0, 0.0, 0.0]
    """
    given = [t for t in (x, value) if isinstance(t, Tensor)]
    if mode.grad and any(t.requires_grad for t in given):
        raise ValueError(f"setitem: the tape records a Tensor of shape {x.shape}, and cannot record a change in place; "
                         "do it under minidl.no_grad()")
    if isinstance(value, Tensor) and (value._data.__class__, value.dtype) != (x._data.__class__, x.dtype):
        _check_same("setitem", (x, value), frozenset())
    array = value._data if isinstance(value, Tensor) else _number("setitem", value, True)
    place = plain_index(index)
    k = backend_of(*given)
    mark_changed((x,))
    try:
        k.setitem(x._data, place, array)
    except (IndexError, ValueError, OverflowError) as error:
        raise type(error)(f"setitem: {error} (x {x.shape}, index {index!r}, value {_shape(array)}); the value must "
                          "fit the place") from None


def write_over(x: Tensor, primitive: str, *others: object) -> bool:
    """Whether the result of a primitive of x and others was written into x's memory, without an array in between.

    For floating numbers only. If the result may not fit, or calls are recorded, nothing is done: then the op says what
    is wrong, or is recorded.
    """
    array = x._data
    if array.dtype.char not in "fd" or not all(_fits(y, array) for y in others) or mode.recorder.recording or (
            not getattr(array.flags, "writeable", True)):              # CuPy's are always
        return False
    k = backend_of(x, *(y for y in others if isinstance(y, Tensor)))
    mark_changed((x,))
    getattr(k, primitive)(array, *(in_order_of(y._data, array) if isinstance(y, Tensor) else y for y in others),
                          out=array)
    return True


def _fits(y: object, array: Array) -> bool:
    """Whether what is computed from an array and y has the array's shape and dtype."""
    if isinstance(y, Tensor):
        other = y._data
        return other.__class__ is array.__class__ and other.dtype == array.dtype and other.ndim <= array.ndim and all(
            m in (1, n) for n, m in zip(array.shape[::-1], other.shape[::-1]))
    return type(y) is float or (type(y) is int and abs(y) < 1 << 53)


def _in_place(name: str, function: Callable[[Any, Any], Tensor]) -> Callable[[Tensor, Number], Tensor]:
    """x op= y: in x's memory if no tape records it; else x becomes the result, on the tape."""
    def method(x: Tensor, y: Number) -> Tensor:
        recorded = mode.grad and (x.requires_grad or (isinstance(y, Tensor) and y.requires_grad))
        if recorded and x.requires_grad and x.node is None:
            raise ValueError(f"{name}: the Tensor (shape {x.shape}) requires a gradient and the tape records, which a "
                             "change in place would falsify; do it under minidl.no_grad(), or write x = x op y")
        if recorded and shares(x):
            raise ValueError(f"{name}: the Tensor (shape {x.shape}) shares its memory with another, by an index, a "
                             "reshape or detach(), and the tape would change it alone; write x = x op y")
        if not recorded and function is not _matmul and write_over(x, function.__name__, y):
            return x
        z = function(x, y)
        if z.shape != x.shape or z.dtype != x.dtype:
            raise ValueError(f"{name}: the result is {z.shape} {z.dtype} but must fit in place of {x.shape} {x.dtype}; "
                             "write x = x op y")
        if not recorded:
            setitem(x, ..., z)
        else:
            mode.recorder.change(x, on_tape=True)
            if x.node is not None and z.node is not None:
                z.node.keeps = x.node.keeps
            x._data, x.node, x._requires_grad, x.changed = z._data, z.node, True, z.changed
        return x
    return method


# ---------------------------------------------------------------- operators and methods of Tensor
def _matmul(x: Tensor, y: Tensor) -> Tensor:
    """`@`: a vector on the left is a row, one on the right is a column; the result does not have its axis."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or (x.ndim > 1 and y.ndim > 1):
        return matmul(x, y)
    if 0 in (x.ndim, y.ndim):
        raise ValueError(f"matmul: shapes {x.shape} and {y.shape}: a single number has no columns; use *")
    z = matmul(x if x.ndim > 1 else reshape(x, shape=(1, -1)), y if y.ndim > 1 else reshape(y, shape=(-1, 1)))
    rows = z.shape[:-2] + (z.shape[-2:-1] if x.ndim > 1 else ())
    return reshape(z, shape=rows + (z.shape[-1:] if y.ndim > 1 else ()))


def _reflected(function: Callable[[Any, Any], Tensor]) -> Callable[[Tensor, Number], Tensor]:
    """`y op x`, for a y that is not a Tensor."""
    return lambda x, y: function(y, x)


def _sizes(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Both x.reshape(2, 3) and x.reshape((2, 3))."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _reduction(name: str, function: Callable[..., Tensor], *names: str, by_place: int | None = None
               ) -> Callable[..., Tensor]:
    """The method of a reduction, also as NumPy's functions call it: np.sum(t) is t.sum(axis=None, out=None). by_place:
    as `op` has it."""
    @functools.wraps(function)
    def method(x: Tensor, *positional: object, **options: object) -> Tensor:
        if by_place is not None and len(positional) > by_place:
            raise by_name_alone(name, ("axis", *names)[by_place:])
        given = [pair for pair in zip(("axis", *names), positional, strict=False) if pair != ("axis", None)]
        options = renamed(name, {k: v for k, v in options.items() if not (k in ("dtype", "out") and v is None)})
        for option, value in given:
            if option in options:
                raise TypeError(f"{name}: {option} is given twice, as {value!r} and {options[option]!r}; give it once")
            options[option] = value
        axis = options.pop("axis", None)
        wrong = [k for k in options if k not in names] + list(map(repr, positional[len(names) + 1:]))
        if wrong:
            raise TypeError(f"{name}: does not take {', '.join(wrong)}; it takes {', '.join(('axis', *names))}, as in "
                            f"t.{name}(axis=1)")
        return function(x, axis=axis, **options)
    return method


# NumPy's functions, by name: the operators and ops that compute the same
UFUNCS: dict[str, Callable[..., Any]] = {
    "add": add, "subtract": sub, "multiply": mul, "divide": div, "true_divide": div, "power": pow,
    "matmul": _matmul, "negative": neg, "exp": exp, "log": log, "sqrt": sqrt, "tanh": tanh,
    "greater": gt, "greater_equal": ge, "less": lt, "less_equal": le, "equal": eq, "not_equal": ne,
}


def _array_ufunc(x: Tensor, ufunc: np.ufunc, method: str, *inputs: object, out: tuple[object, ...] | None = None,
                 **options: object) -> Any:
    """What NumPy's functions do with Tensors: those in UFUNCS call these ops; `array -= tensor` changes the array."""
    if out is not None and method == "__call__" and all(isinstance(a, np.ndarray) for a in out):
        mode.recorder.refuse("changes an array in place", "use Tensors, and write t[...] = value under no_grad()")
        if mode.grad and any(isinstance(a, Tensor) and a.requires_grad for a in inputs):
            raise TypeError(f"np.{ufunc.__name__}: an array would take the values of a Tensor that requires a "
                            "gradient, which the tape would not see; add Tensors, total = total + t, or pass "
                            "t.detach()")
        return getattr(ufunc, method)(*(a._data if isinstance(a, Tensor) else a for a in inputs), out=out, **options)
    function = UFUNCS.get(ufunc.__name__)
    if function is None or method != "__call__" or out is not None or options:
        raise TypeError(f"np.{ufunc.__name__}{'' if method == '__call__' else f'.{method}'}: is not computed on "
                        "Tensors; use an op of minidl.ops, or t.numpy()")
    return function(*inputs)


COMPARISONS = "allclose", "array_equal", "array_equiv", "isclose"         # of NumPy; no gradient goes through them


def _array_function(x: Tensor, function: Callable[..., Any], types: object, arguments: tuple[object, ...],
                    options: dict[str, object]) -> Any:
    """What NumPy's other functions do with Tensors: their own code runs, with methods of the Tensor if it has these,
    else with its array (`Tensor.__array__`)."""
    if function.__name__ in COMPARISONS:
        arguments = tuple(a.numpy() if isinstance(a, Tensor) else a for a in arguments)
    return function._implementation(*arguments, **options)  # type: ignore[attr-defined]  # NumPy's, without dispatch


class Operators:
    """Tensor's operators, and the ops that are its methods unchanged. `attach` adds them to Tensor; type checkers take
    this class for one that Tensor inherits."""

    __add__, __radd__ = add, _reflected(add)
    __sub__, __rsub__ = sub, _reflected(sub)
    __mul__, __rmul__ = mul, _reflected(mul)
    __truediv__, __rtruediv__ = div, _reflected(div)
    __pow__, __rpow__ = pow, _reflected(pow)
    __matmul__, __rmatmul__ = _matmul, _reflected(_matmul)
    __neg__ = neg
    __gt__, __ge__, __lt__, __le__ = gt, ge, lt, le
    __hash__ = object.__hash__             # __eq__ removes it
    __getitem__, __setitem__ = getitem, setitem
    __iadd__, __isub__, __imul__ = _in_place("iadd", add), _in_place("isub", sub), _in_place("imul", mul)
    __itruediv__, __ipow__ = _in_place("itruediv", div), _in_place("ipow", pow)
    __imatmul__ = _in_place("imatmul", _matmul)
    exp, log, sqrt, tanh, flatten = exp, log, sqrt, tanh, flatten

    def __iter__(self: Tensor) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def reshape(self: Tensor, *shape: Sizes, order: str = "C") -> Tensor:
        if order != "C":
            raise ValueError(f"reshape: order {order!r} is not 'C', in which values are read here; transpose first")
        return reshape(self, shape=_sizes(shape))

    def transpose(self: Tensor, *axes: Sizes | None) -> Tensor:
        """Two axes change places, as in PyTorch; a tuple, or more of them, is the new order of all, as in NumPy."""
        if len(axes) == 2:
            return self.swapaxes(*axes)            # type: ignore[arg-type]  # it refuses what is not an axis
        return transpose(self, axes=None if axes in ((), (None,)) else _sizes(axes))

    @property
    def T(self: Tensor) -> Tensor:
        return transpose(self)

    if TYPE_CHECKING:                      # the axis of these may come by position; that of the ops may not
        def __eq__(self, y: Number) -> Tensor: ...  # type: ignore[override]  # of object they give a bool
        def __ne__(self, y: Number) -> Tensor: ...  # type: ignore[override]
        def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor: ...
        def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor: ...
        def max(self, *, axis: Axis = None, keepdims: bool = False) -> Tensor: ...
        def argmax(self, axis: int | None = None) -> Tensor: ...
    else:
        __eq__, __ne__ = eq, ne
        sum, mean = _reduction("sum", basic.sum, "keepdims"), _reduction("mean", basic.mean, "keepdims")
        max, argmax = _reduction("max", basic.max, "keepdims", by_place=0), _reduction("argmax", basic.argmax)


def attach(methods: dict[str, Any]) -> None:
    """Make functions the methods of Tensor. Those that are not ops get the method's name, for Python's own messages."""
    for name, method in methods.items():
        each: Any
        for each in (method, getattr(method, "__wrapped__", None)):
            if getattr(each, "__module__", "").endswith((".operators", ".methods")):
                each.__name__, each.__qualname__ = name, f"Tensor.{name}"
        setattr(Tensor, name, method)


attach({name: value for name, value in vars(Operators).items() if callable(value) or isinstance(value, property)})
attach({"__array_ufunc__": _array_ufunc, "__array_function__": _array_function})
