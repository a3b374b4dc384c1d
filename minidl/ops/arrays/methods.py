"""Tensor's methods by PyTorch's names. Each is an op of minidl.ops, or a few of them: so it works on the tape, on every
device, and in compiled steps.

`Methods` is what type checkers take for a base class of Tensor; at run time its functions are attached to Tensor. If a
method has `axis` or `keepdims`, PyTorch's `dim` and `keepdim` work too. docs/from-pytorch.md is rendered from it.
"""

# A method's self is a Tensor, which inherits it here; mypy wants a supertype.
# mypy: disable-error-code="misc"

from __future__ import annotations

import builtins
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.device import holds
from ...core.mode import mode
from ...core.tensor import Tensor, as_tensor
from ..common.geometry import is_int
from ..common.op import also
from ..create import full
from ..layers.activation import log_softmax, one_axis, relu, sigmoid, softmax
from . import arrange, basic, contraction, functions, statistics
from . import select as selection
from .basic import Axis, Number, _axes
from .indexing import getitem
from .operators import (
    UFUNCS,
    Operators,
    Sizes,
    _matmul,
    _reduction,
    _reflected,
    _sizes,
    attach,
    setitem,
    write_over,
)
from .shapes import reshape, transpose

if TYPE_CHECKING:
    from ...core.device import DType


class Size(int):
    """How many values a Tensor holds: a number, as in NumPy. A call of it gives the sizes, as in PyTorch.

    >>> t = Tensor([[1.0, 2.0, 3.0]])
    >>> t.size, t.size(), t.size(1)
    (3, (1, 3), 3)
    """

    shape: tuple[int, ...]

    def __call__(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[one_axis("size", self.shape, axis)]


def _size(t: Tensor) -> Size:
    size = Size(t._data.size)
    size.shape = t._data.shape
    return size


def _mask(t: Tensor) -> Tensor:
    """Which values are not 0."""
    return t if t.dtype == np.bool_ else basic.ne(t, 0)


def _decided(function: Callable[..., Tensor], name: str, x: Tensor, axis: Axis, keepdims: bool,
             of_none: bool) -> Tensor:
    """The largest or smallest mask along axes; along an empty one there is none."""
    axes = _axes(name, x.shape, axis)
    if all(x.shape[a] for a in axes):
        return function(_mask(x), axis=axes, keepdims=keepdims)
    nothing = x.sum(axis=axes, keepdims=keepdims)
    return basic.eq(nothing, 0) if of_none else basic.ne(nothing, 0)


def _unary(function: Callable[[Any], Tensor], says: str) -> Callable[[Tensor], Tensor]:
    """The method that is a function of the Tensor alone."""
    def method(self: Tensor) -> Tensor:
        return function(self)
    method.__doc__ = says
    return method


def _binary(function: Callable[[Any, Any], Tensor], says: str) -> Callable[[Tensor, Number], Tensor]:
    """The method that is a function of the Tensor and another operand."""
    def method(self: Tensor, other: Number) -> Tensor:
        return function(self, other)
    method.__doc__ = says
    return method


def _to(dtype: DType, says: str) -> Callable[[Tensor], Tensor]:
    """The method that converts to one dtype."""
    return _unary(lambda t: t.to(dtype=dtype), says)


class Conversions:
    """Methods whose names are those of Python's types."""

    float = _to(np.float32, "As float32.")
    double = _to(np.float64, "As float64.")
    int = _to(np.int32, "As int32.")
    long = _to(np.int64, "As int64.")
    bool = _to(np.bool, "As bool.")
    byte = _to(np.uint8, "As uint8.")

    def type(self: Tensor, dtype: DType) -> Tensor:
        """In another dtype."""
        return self.to(dtype=dtype)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        """In another Tensor's dtype."""
        return self.to(dtype=other.dtype)

    def cpu(self: Tensor) -> Tensor:
        """On the CPU."""
        return self.to("cpu")

    def cuda(self: Tensor) -> Tensor:
        """On the GPU."""
        return self.to("cuda")

    @property
    def is_cuda(self: Tensor) -> builtins.bool:
        """Whether it is on a GPU."""
        return self.device == "cuda"

    def is_floating_point(self: Tensor) -> builtins.bool:
        """Whether its dtype is a floating one."""
        return self.dtype.kind == "f"

    def numel(self: Tensor) -> builtins.int:
        """How many values it holds: `size`."""
        return builtins.int(self._data.size)

    nelement = numel

    def dim(self: Tensor) -> builtins.int:
        """How many axes it has: `ndim`."""
        return self._data.ndim

    def element_size(self: Tensor) -> builtins.int:
        """Bytes of one value."""
        return self.dtype.itemsize

    @property
    def nbytes(self: Tensor) -> builtins.int:
        """Bytes of all values."""
        return self._data.nbytes


class Methods(Conversions, Operators):
    """What a Tensor does in addition to its operators."""

    # ------------------------------------------------------------------ shape
    def view(self: Tensor, *shape: Sizes) -> Tensor:
        """`reshape`: the same values in another shape, in the same memory if that is possible."""
        return reshape(self, shape=_sizes(shape))

    def view_as(self: Tensor, other: Tensor) -> Tensor:
        """The same values in another Tensor's shape."""
        return reshape(self, shape=other.shape)

    reshape_as = view_as

    def ravel(self: Tensor) -> Tensor:
        """All values along one axis."""
        return reshape(self, shape=(-1,)) if self._data.size else reshape(self, shape=(0,))

    def squeeze(self: Tensor, axis: Axis = None) -> Tensor:
        """Without the axes of size 1, or without those given, if they have size 1."""
        return arrange.squeeze(self, axis)

    def unsqueeze(self: Tensor, axis: int) -> Tensor:
        """A new axis of size 1."""
        return arrange.unsqueeze(self, axis)

    def expand(self: Tensor, *shape: Sizes) -> Tensor:
        """Repeated along axes of size 1, without a copy; -1 leaves a size as it is."""
        return arrange.expand(self, shape=_sizes(shape))

    def expand_as(self: Tensor, other: Tensor) -> Tensor:
        """Expanded to another Tensor's shape."""
        return arrange.expand(self, shape=other.shape)

    broadcast_to = expand

    def repeat(self: Tensor, *times: Sizes) -> Tensor:
        """The whole Tensor repeated `times` along each axis (NumPy's tile)."""
        counts = _sizes(times)
        shape = (1,) * (len(counts) - self.ndim) + self.shape
        if not all(is_int(count, 0) for count in counts):
            raise ValueError(f"repeat: counts are {counts} but must be ints of at least 0")
        if len(counts) < self.ndim:
            raise ValueError(f"repeat: got {len(counts)} counts for the {self.ndim} axes of shape {self.shape}; give "
                             "one for each axis")
        apart = reshape(self, shape=tuple(n for size in shape for n in (1, size)))
        wide = arrange.expand(apart, shape=tuple(n for pair in zip(counts, shape, strict=True) for n in pair))
        return arrange.own(reshape(wide, shape=tuple(n * count for n, count in zip(shape, counts, strict=True))), self)

    tile = repeat

    def permute(self: Tensor, *axes: Sizes) -> Tensor:
        """The axes in another order, as `transpose` with all of them."""
        return transpose(self, axes=_sizes(axes))

    def swapaxes(self: Tensor, first: int, second: int) -> Tensor:
        """Two axes change places: PyTorch's `transpose(first, second)`."""
        order = list(range(self.ndim))
        first, second = (one_axis("swapaxes", self.shape, axis) for axis in (first, second))
        order[first], order[second] = second, first
        return transpose(self, axes=tuple(order))

    swapdims = swapaxes

    def movedim(self: Tensor, source: int, destination: int) -> Tensor:
        """One axis goes to another place."""
        source, destination = (one_axis("movedim", self.shape, axis) for axis in (source, destination))
        order = [a for a in range(self.ndim) if a != source]
        order.insert(destination, source)
        return transpose(self, axes=tuple(order))

    moveaxis = movedim

    def t(self: Tensor) -> Tensor:
        """A matrix with its axes swapped; a vector as it is."""
        if self.ndim > 2:
            raise ValueError(f"t: the Tensor has {self.ndim} axes (shape {self.shape}) but must have at most 2; see "
                             ".swapaxes() and .permute()")
        return transpose(self)

    @property
    def mT(self: Tensor) -> Tensor:
        """The last two axes swapped."""
        return self.swapaxes(-1, -2)

    def flip(self: Tensor, *axis: Sizes) -> Tensor:
        """Reversed along the given axes, or all: .flip(). Along none: .flip(())."""
        return arrange.flip(self, _sizes(axis) if axis else None)

    def contiguous(self: Tensor) -> Tensor:
        """The Tensor itself, which every op accepts in any memory layout."""
        return self

    clone = _unary(arrange.clone, "A copy, through which the gradient flows.")

    def split(self: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
        """Parts of a size, or of the given sizes."""
        return arrange.split(self, sizes, axis)

    def chunk(self: Tensor, count: int, axis: int = 0) -> tuple[Tensor, ...]:
        """At most `count` parts of equal size; the last may be smaller."""
        if count < 1:
            raise ValueError(f"chunk: count is {count!r} but must be at least 1, a number of parts")
        size = self.shape[one_axis("chunk", self.shape, axis)]
        return arrange.split(self, max(1, -(-size // count)), axis)

    def unbind(self: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
        """The slices along an axis, one by one."""
        axis = one_axis("unbind", self.shape, axis)
        return tuple(self.select(axis, i) for i in range(self.shape[axis]))

    def select(self: Tensor, axis: int, index: int) -> Tensor:
        """One index of an axis: x[:, index] for axis 1. Raises TypeError for an index that is not an int."""
        if np.dtype(getattr(index, "dtype", type(index))).kind not in "iu":        # True would make a new axis
            raise TypeError(f"select: index is {index!r} but must be an int; for several, see .index_select()")
        return getitem(self, (*(slice(None),) * one_axis("select", self.shape, axis), index))

    def narrow(self: Tensor, axis: int, start: int, length: int) -> Tensor:
        """A range of an axis: x[:, start:start + length] for axis 1; a start below 0 counts from the end.

        Raises ValueError for a range that is not all in the axis.
        """
        axis = one_axis("narrow", self.shape, axis)
        size = self.shape[axis]
        begin = start + size if start < 0 else start
        if not 0 <= begin <= begin + length <= size:
            raise ValueError(f"narrow: start {start} and length {length} leave axis {axis} of shape {self.shape}; use "
                             f"a range within its {size} values")
        return getitem(self, (*(slice(None),) * axis, slice(begin, begin + length)))

    # ------------------------------------------------------------------ arithmetic
    add = _binary(basic.add, "x + other.")
    sub = _binary(basic.sub, "x - other.")
    mul = _binary(basic.mul, "x * other.")
    div = _binary(basic.div, "x / other.")

    def pow(self: Tensor, exponent: Number) -> Tensor:
        """x ** exponent."""
        return basic.pow(self, exponent)

    neg = _unary(basic.neg, "-x.")
    abs = _unary(selection.abs, "The absolute value.")
    absolute = abs

    def square(self: Tensor) -> Tensor:
        """x * x."""
        return basic.pow(self, 2)

    def reciprocal(self: Tensor) -> Tensor:
        """1 / x."""
        return basic.div(1, self)

    rsqrt = _unary(basic.rsqrt, "1 / sqrt(x).")

    sin, cos = _unary(functions.sin, "The sine."), _unary(functions.cos, "The cosine.")
    sign = _unary(functions.sign, "1, -1, or of 0 itself.")
    round = _unary(functions.round, "The nearest integer, and of two the even one.")
    floor = _unary(functions.floor, "The largest integer that is not above x.")
    ceil = _unary(functions.ceil, "The smallest integer that is not below x.")
    erf = _unary(functions.erf, "The error function.")
    log1p = _unary(functions.log1p, "log(1 + x), exact for a small x too.")
    expm1 = _unary(functions.expm1, "exp(x) - 1, exact for a small x too.")
    floor_divide = _binary(functions.floor_divide, "x // other.")
    remainder = _binary(functions.remainder, "x % other.")

    def tril(self: Tensor, diagonal: int = 0) -> Tensor:
        """The values on a diagonal of the last two axes and below it."""
        return functions.tril(self, diagonal=diagonal)

    def triu(self: Tensor, diagonal: int = 0) -> Tensor:
        """The values on a diagonal of the last two axes and above it."""
        return functions.triu(self, diagonal=diagonal)

    def clip(self: Tensor, min: float | None = None, max: float | None = None, out: None = None) -> Tensor:
        """At least min and at most max."""
        return selection.clip(self, low=min, high=max)

    clamp = clip

    maximum = _binary(selection.maximum, "The larger of two.")
    minimum = _binary(selection.minimum, "The smaller of two.")

    def matmul(self: Tensor, other: Tensor) -> Tensor:
        """x @ other."""
        return _matmul(self, other)

    mm = bmm = mv = dot = matmul

    def outer(self: Tensor, other: Tensor) -> Tensor:
        """All products of two vectors' values."""
        return contraction.outer(self, other)

    __abs__ = abs
    __mod__, __rmod__ = _binary(functions.remainder, "x % other."), _reflected(functions.remainder)
    __floordiv__ = _binary(functions.floor_divide, "x // other.")
    __rfloordiv__ = _reflected(functions.floor_divide)

    # ------------------------------------------------------------------ activations
    sigmoid = _unary(sigmoid, "`ops.sigmoid`.")
    relu = _unary(relu, "`ops.relu`.")

    def softmax(self: Tensor, axis: int = -1) -> Tensor:
        """`ops.softmax` along an axis."""
        return softmax(self, axis=axis)

    def log_softmax(self: Tensor, axis: int = -1) -> Tensor:
        """`ops.log_softmax` along an axis."""
        return log_softmax(self, axis=axis)

    # ------------------------------------------------------------------ reductions
    def min(self: Tensor, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Smallest value; its place is `argmin`."""
        return statistics.min(self, axis=axis, keepdims=keepdims)

    def argmin(self: Tensor, axis: int | None = None) -> Tensor:
        """Index of the smallest value."""
        return statistics.argmin(self, axis=axis)

    def amax(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """`max`."""
        return basic.max(self, axis=_axes("amax", self.shape, axis), keepdims=keepdims)

    def amin(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """`min`."""
        return statistics.min(self, axis=_axes("amin", self.shape, axis), keepdims=keepdims)

    def var(self: Tensor, axis: Axis = None, *, keepdims: bool = False, correction: float | bool = 1) -> Tensor:
        """Variance, over n - correction."""
        return statistics.var(self, axis=axis, keepdims=keepdims, correction=correction)

    def std(self: Tensor, axis: Axis = None, *, keepdims: bool = False, correction: float | bool = 1) -> Tensor:
        """Standard deviation, over n - correction."""
        return statistics.std(self, axis=axis, keepdims=keepdims, correction=correction)

    def norm(self: Tensor, p: float = 2, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Euclidean norm."""
        return statistics.norm(self, p=p, axis=axis, keepdims=keepdims)

    def logsumexp(self: Tensor, axis: Axis, keepdims: bool = False) -> Tensor:
        """log(sum(exp(x))), without overflow."""
        return statistics.logsumexp(self, axis, keepdims)

    def any(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether one of the values is not 0: of none, no."""
        return _decided(basic.max, "any", self, axis, keepdims, False)

    def all(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether no value is 0: of none, yes."""
        return _decided(statistics.min, "all", self, axis, keepdims, True)

    def prod(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The product."""
        return statistics.prod(self, axis=axis, keepdims=keepdims)

    def cumsum(self: Tensor, axis: int) -> Tensor:
        """Sums up to each value along an axis."""
        return statistics.cumsum(self, axis=axis)

    # ------------------------------------------------------------------ masks, indices, order
    def where(self: Tensor, condition: Tensor, other: Number) -> Tensor:
        """x where the condition holds, other elsewhere."""
        return selection.where(condition, self, other)

    def masked_fill(self: Tensor, mask: Tensor, value: Number) -> Tensor:
        """The value where the mask holds, x elsewhere. Raises TypeError for a number that is none of x's dtype."""
        condition, = _masks("masked_fill", mask)
        if self.dtype.kind != "f" and isinstance(value, (int, float, np.number, np.bool)):
            if not holds(self.dtype, value):
                raise TypeError(f"masked_fill: value is {value!r} but must be a number of {self.dtype}, the dtype of "
                                "x; convert x first, x.to(dtype='float32')")
            value = full((), int(value), dtype=self.dtype, device=self.device)
        return selection.where(condition, value, self)

    def masked_select(self: Tensor, mask: Tensor) -> Tensor:
        """The values where the mask holds, in one row; x and mask are broadcast."""
        _masks("masked_select", mask)
        basic._broadcast("masked_select", self.shape, mask.shape)
        shape = np.broadcast_shapes(self.shape, mask.shape)
        return getitem(self.expand(shape), mask.expand(shape))

    def index_select(self: Tensor, axis: int, index: Tensor) -> Tensor:
        """x[:, index] for axis 1; index: integers, in one row."""
        index = as_tensor(index)
        if index.dtype.kind not in "iu" or index.ndim != 1:
            raise TypeError(f"index_select: index has dtype {index.dtype} and shape {index.shape} but must be one row "
                            "of integers; with a mask, use x[:, mask]")
        return getitem(self, (*(slice(None),) * one_axis("index_select", self.shape, axis), index))

    def gather(self: Tensor, axis: int, index: Tensor) -> Tensor:
        """Values by their indices along one axis."""
        return arrange.gather(self, axis, index)

    def argsort(self: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
        """The indices that sort an axis; equal values stay in their order, and NaN counts as largest."""
        return arrange.argsort(self, axis=axis, descending=descending)

    def sort(self: Tensor, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
        """(the values in order along an axis, their indices); equal values stay in their order."""
        axis = one_axis("sort", self.shape, axis)
        order = self.argsort(axis, descending)
        return arrange.pick(self, axis, order, once=True), order

    def topk(self: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
        """(the k largest values of an axis in falling order, their indices); largest=False: the smallest, rising.

        Of equal values the first comes first, as in argmax; in PyTorch any of them may. NaN counts as largest. Raises
        ValueError for a k below 0 or above the axis's size.
        """
        axis = one_axis("topk", self.shape, axis)
        if not is_int(k, 0) or k > self.shape[axis]:
            raise ValueError(f"topk: k is {k!r} but axis {axis} of shape {self.shape} has {self.shape[axis]} values; "
                             "use an int from 0 to that")
        order = arrange.first_of(self, int(k), axis, largest)
        return arrange.pick(self, axis, order, once=True), order

    def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The values in rising order, each once; also where each element is among them, and how often each is there."""
        return arrange.unique(self, sorted, return_inverse, return_counts)

    eq = _binary(basic.eq, "x == other.")
    ne = _binary(basic.ne, "x != other.")
    gt = _binary(basic.gt, "x > other.")
    ge = _binary(basic.ge, "x >= other.")
    lt = _binary(basic.lt, "x < other.")
    le = _binary(basic.le, "x <= other.")

    def __and__(self: Tensor, other: Tensor) -> Tensor:
        return selection.minimum(*_masks("and", self, other))

    def __or__(self: Tensor, other: Tensor) -> Tensor:
        return selection.maximum(*_masks("or", self, other))

    def __xor__(self: Tensor, other: Tensor) -> Tensor:
        return basic.ne(*_masks("xor", self, other))

    def __invert__(self: Tensor) -> Tensor:
        return basic.eq(_masks("invert", self)[0], False)

    # ------------------------------------------------------------------ in place, as t[...] = value
    def fill_(self: Tensor, value: float) -> Tensor:
        """Every element one value."""
        setitem(self, ..., value)
        return self

    def zero_(self: Tensor) -> Tensor:
        """Every element 0."""
        setitem(self, ..., 0)
        return self

    def copy_(self: Tensor, other: Tensor) -> Tensor:
        """Another Tensor's values."""
        setitem(self, ..., other)
        return self

    add_ = _binary(Operators.__iadd__, "x += other.")
    sub_ = _binary(Operators.__isub__, "x -= other.")
    mul_ = _binary(Operators.__imul__, "x *= other.")
    div_ = _binary(Operators.__itruediv__, "x /= other.")

    def clamp_(self: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
        """At least min and at most max, in place."""
        ends = (-np.inf if min is None else min, np.inf if max is None else max)
        plain = all(isinstance(end, (int, float)) for end in ends) and not (min is max is None)
        if plain and not (self.requires_grad and mode.grad) and write_over(self, "clip", *ends):
            return self
        setitem(self, ..., selection.clip(self.detach(), low=min, high=max))
        return self

    clip_ = clamp_

    def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
        """Set whether backward() accumulates a gradient in this leaf."""
        self.requires_grad = requires_grad
        return self

    def retain_grad(self: Tensor) -> None:
        """Let backward() accumulate a gradient in this Tensor, though an op made it."""
        if not self.requires_grad:
            raise ValueError("retain_grad: the Tensor does not require a gradient; make what it is computed of require "
                             "one, with .requires_grad_()")
        if self.node is not None:
            self.node.keeps = weakref.ref(self)


def _masks(name: str, *tensors: object) -> tuple[Any, ...]:
    """The operands of & | ^ ~, if all of them are bool."""
    for t in tensors:
        if not (isinstance(t, bool) or (isinstance(t, Tensor) and t.dtype == np.bool)):
            what = f"of dtype {t.dtype}" if isinstance(t, Tensor) else f"a {type(t).__name__}"
            raise TypeError(f"{name}: an input is {what} but must be a bool Tensor; compare first, (x > 0) & (y > 0)")
    return tensors


_REDUCTIONS = {"min", "argmin", "amax", "amin", "var", "std", "any", "all", "prod", "cumsum"}


def _method(name: str, method: Any) -> Any:
    """A method that also takes what PyTorch and NumPy call axis and keepdims."""
    parameters = [*inspect.signature(method).parameters.values()][1:] if inspect.isfunction(method) else []
    if not any(p.name == "axis" and p.kind is not p.VAR_POSITIONAL for p in parameters):
        return method
    if name in _REDUCTIONS:
        named = sum(p.kind is p.KEYWORD_ONLY for p in parameters)
        return functools.wraps(method)(_reduction(name, method, *(p.name for p in parameters[1:]),
                                                  by_place=len(parameters) - named if named else None))
    return also(method)


attach({name: _method(name, value) for room in (Conversions, Methods) for name, value in vars(room).items()
        if callable(value) or isinstance(value, property)})
attach({"__rand__": Methods.__and__, "__ror__": Methods.__or__, "__rxor__": Methods.__xor__, "size": property(_size)})
UFUNCS.update(absolute=selection.abs, maximum=selection.maximum, minimum=selection.minimum, square=Methods.square,
              reciprocal=Methods.reciprocal, rint=functions.round,
              **{name: getattr(functions, name) for name in ("sin", "cos", "sign", "floor", "ceil", "log1p", "expm1",
                                                             "floor_divide", "remainder")})
