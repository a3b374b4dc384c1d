"""Gradients of gradients: what each primitive that a closure calls is, on Tensors.

`backward(create_graph=True)` runs an op's closure once more, with Tensors in the place of arrays: the closure touches
arrays through `k` alone, so a `Taped` in the place of `k` is all that it takes. A row of RULES computes a primitive's
result by ops, which are on the tape and have closures themselves: so gradients of any order come from the same rows.

There are three kinds of arrays that a closure kept. One is an input of the op, or its result, and is on the tape. One
holds labels, places or a mask, and has no gradient. One is in MADE, which says how it came from the first input. Any
other one, and a primitive without a row, is an error: what it depends on is not known.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

from ..core.mode import no_grad
from ..core.tensor import Array, Backward, Node, Tensor, flow, wrap
from .arrays import arrange, basic, functions, select, statistics
from .arrays.basic import eq, exp, gt, log, lt, matmul, mul
from .arrays.basic import max as max_of
from .arrays.basic import mean as mean_of
from .arrays.basic import sum as sum_of
from .arrays.indexing import getitem
from .arrays.select import clip, where
from .arrays.shapes import reshape, transpose
from .common.backend import backend_of
from .common.conv.parts import as_one, in_parts
from .common.geometry import ConvGeometry, PoolGeometry
from .common.geometry.sets import NormGeometry
from .common.op import op
from .common.primitives import ALL, Index
from .create import arange, zeros
from .layers import activation, linear, units
from .layers.activation import softmax
from .layers.recurrent import STEPS
from .losses.nll import nll

Axes = tuple[int, ...]
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
KEPT: dict[str, tuple[int, ...]] = {}      # of a rule: which arguments may be what a closure made of inputs and kept
# And which are taken as arrays: places, and what needs no gradient
RAW: dict[str, tuple[int, ...]] = {
    "getitem": (1,), "getitem_grad_x": (1,), "take_along": (1,), "take_along_grad_x": (1,), "embedding_grad_w": (1,),
    "add_parts": (1,), "nll": (1, 2), "nll_grad_x": (2, 3, 4)}


class Kept(Tensor):
    """An array of numbers that a closure kept; it is not known how it came from the op's inputs."""

    __slots__ = ()


# ---------------------------------------------------------------- a closure on Tensors
# (op, variable of its closure) -> the gradient of the first input by that of the variable; given k, gy, the variable
# and all variables
MADE: dict[tuple[str, str], Rule] = {
    ("cross_entropy", "log_p"): lambda k, gy, log_p, _: k.log_softmax_grad_x(gy, log_p, 1),
    ("dropout2d", "mask"): lambda *_: None,            # it depends on the key alone
    ("elu", "y"): lambda k, gy, y, _: k.elu_grad_x(gy, y),
    ("linear", "x"): lambda k, gy, _, of: k.reshape(gy, of["xs"]),
}


class Taped:
    """The primitives as rules: of Tensors, and of arrays that a Node's closure kept."""

    def __init__(self, node: Node):
        self.node = node
        known: dict[int, tuple[Tensor | Node, bool]] = {}
        self.twice: set[int] = set()       # arrays of two inputs, of which one wants a gradient
        for source, need in ((node, False), *zip(node.inputs, node.need, strict=True)):
            if source is not None:
                made = source.made if isinstance(source, Node) else id(source._data)
                for key in map(id, made) if isinstance(made, tuple) else (made,):
                    other, needed = known.get(key, (source, need))
                    if other is not source and other is not node and (need or needed):
                        self.twice.add(key)
                    known[key] = source, need
        self.known = {key: source for key, (source, _) in known.items()}

    def __getattr__(self, name: str) -> Rule:
        rule = RULES.get(name)
        if rule is None:
            raise ValueError(f"backward: create_graph=True: the gradient of {self.node.name!r} calls {name!r}, whose "
                             "own gradient is not known (minidl/ops/second.py has no rule for it); use "
                             "create_graph=False")

        def call(*arguments: object) -> Any:
            raw = RAW.get(name, ())
            given = [_bare(value) if i in raw else self.tensor(value) for i, value in enumerate(arguments)]
            for i, value in enumerate(given):
                if isinstance(value, Kept) and i not in KEPT.get(name, ()):
                    raise ValueError(f"backward: create_graph=True: the closure of {self.node.name!r} kept an array of "
                                     f"shape {value.shape}, of which it is not known how it came from the inputs; "
                                     "compute it in the closure, from inputs and result, or use create_graph=False")
            return rule(*given)
        return call

    def tensor(self, value: object) -> Any:
        """A Tensor of an array, on the tape if it is known; anything else as it is."""
        if isinstance(value, Tensor):
            return value
        if value.__class__ is tuple or value.__class__ is list:        # and no geometry
            return value.__class__(map(self.tensor, value))
        array = _bare(value)
        if not hasattr(array, "dtype"):
            return value
        if not self.twice.isdisjoint((id(value), id(array))):
            raise ValueError(f"backward: create_graph=True: two inputs of {self.node.name!r} are Tensors of one array "
                             f"(shape {array.shape}), and it is not known which one its gradient depends on; pass one "
                             "of them as t.clone(), or use create_graph=False")
        source = self.known.get(id(value), self.known.get(id(array)))
        if isinstance(source, Tensor):
            return source
        if source is not None:
            return wrap(source.made[1] if isinstance(source.made, tuple) else array, source)
        made = wrap(array)
        if array.dtype.kind == "f":
            made.__class__ = Kept
        return made


def _bare(value: object) -> Any:
    """An array, of a Tensor or of what a recorded body sees in its place; in a tuple too. Anything else as it is."""
    if value.__class__ is tuple:
        return tuple(map(_bare, value))
    if isinstance(value, Tensor):
        return value._data
    return value._array if hasattr(type(value), "_array") else value       # type: ignore[attr-defined]  # just seen


def again(node: Node) -> tuple[Taped, Backward]:
    """The primitives and the closure of a Node, on Tensors."""
    k, given = Taped(node), node.backward
    closure = _with(inspect.unwrap(given), k)          # type: ignore[arg-type]  # not None: it runs now
    return k, getattr(given, "checks", lambda same: same)(closure)


def _with(function: Callable[..., Any], k: Taped, around: dict[str, Any] | None = None) -> Callable[..., Any]:
    """A closure with other primitives, and the functions in it likewise. around: the variables of the one around it."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    held = dict(zip(names, (cell.cell_contents for cell in cells), strict=True))
    known = {**(around or {}), **held}

    def of(name: str, value: object) -> object:
        own = k.node.k
        if value is own or (type(value) is type(own) and not isinstance(own, ModuleType)):    # or recorded primitives
            return k
        if isinstance(value, FunctionType):
            return _with(value, k, known)
        link = MADE.get((k.node.name, name))
        if link is not None and isinstance(k.tensor(value), Kept):
            return _linked(link, k, value, known)
        return value
    other = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                         tuple(CellType(of(name, value)) for name, value in held.items()))
    other.__kwdefaults__ = function.__kwdefaults__
    return other


def _linked(link: Rule, taped: Taped, value: object, held: dict[str, Any]) -> Tensor:
    """A variable that MADE has, on the tape."""
    node, kept = taped.node, taped.tensor(value)._data
    if not node.need[0]:
        return wrap(kept)
    k = node.k
    return wrap(kept, Node(node.name, k, node.inputs[:1], node.need[:1],
                           lambda gy, need: (link(k, gy, kept, held),), id(kept)))


# ---------------------------------------------------------------- ops by primitives
@op
def _linear_map(k, x: Tensor, *, there: Rule, back: Rule):
    """there(k, x), which is linear in x; back(k, gy) is its transpose."""
    return there(k, x), lambda gy, need: (back(k, gy),)


@op
def _product(k, x: Tensor, y: Tensor, *, there: Rule, back_x: Rule, back_y: Rule):
    """there(k, x, y), linear in each; the gradients are back_x(k, gy, y) and back_y(k, gy, x)."""
    def backward(gy, need):
        return back_x(k, gy, y) if need[0] else None, back_y(k, gy, x) if need[1] else None
    return there(k, x, y), backward


@op
def _gelu_grad_x(k, gy: Tensor, x: Tensor):
    """The second derivative of x Phi(x) is (2 - x^2) phi(x)."""
    def backward(v, need):
        square = k.mul(x, x)
        curve = k.mul(k.sub(2, square), k.mul(k.exp(k.mul(square, -0.5)), 1 / math.sqrt(2 * math.pi)))
        return (k.gelu_grad_x(v, x) if need[0] else None,
                k.mul(k.mul(v, gy), curve) if need[1] else None)
    return k.gelu_grad_x(gy, x), backward


def rule(function: Rule | None = None, *, kept: tuple[int, ...] = ()) -> Rule:
    """The rule of the primitive of this name. kept: which arguments it can do without."""
    if function is None:
        return functools.partial(rule, kept=kept)
    name = function.__name__.strip("_")
    RULES[name], KEPT[name] = function, kept
    return function


def _constant(name: str) -> Rule:
    """A primitive without a gradient."""
    def compute(*given: object) -> Tensor:
        k = backend_of(*[t for t in given if isinstance(t, Tensor)])
        return wrap(getattr(k, name)(*map(_bare, given)))
    return compute


# ---------------------------------------------------------------- element by element
RULES |= {name: getattr(room, name) for room, names in (
    (basic, "add sub mul div neg exp log sqrt rsqrt pow matmul gt ge lt le eq ne"),
    (functions, "sin cos log1p expm1 erf sign round floor ceil floor_divide remainder"),
    (select, "abs maximum minimum where")) for name in names.split()}
RULES |= {name: _constant(name) for name in ("ones_like", "zeros_like", "argmax", "argmin", "one_hot")}
RULES |= {"tril": lambda x, diagonal=0: functions.tril(x, diagonal=diagonal),
          "triu": lambda x, diagonal=0: functions.triu(x, diagonal=diagonal)}
RULES |= {"copy": arrange.clone, "gelu_tanh": lambda x: units.gelu(x, approximate="tanh"), "gelu_grad_x": _gelu_grad_x,
          "clip": lambda x, low, high: clip(x, low=low, high=high)}

@op
def _gated(k, gy: Tensor, *deciding: Tensor, gate: Rule):
    """gate(k, gy, *deciding): gy, a multiple of it, or 0, as the others decide; these get no gradient by it."""
    return gate(k, gy, *deciding), lambda v, need: (gate(k, v, *deciding), *(None,) * len(deciding))


def _gate(name: str) -> Rule:
    """A primitive of gy and a result or input, then of numbers."""
    def of(gy: Tensor, *given: object) -> Tensor:
        deciding = [t for t in given if isinstance(t, Tensor)]
        numbers = given[len(deciding):]
        return _gated(gy, *deciding, gate=lambda k, *ts: getattr(k, name)(*ts, *numbers))
    return of


def _times(derivative: Rule) -> Rule:
    return lambda gy, y: gy * derivative(y)


RULES |= {name: _gate(name) for name in ("clip_grad_x", "dropout", "dropout_grad_x")}
RULES["rsqrt_grad_x"] = _times(lambda y: y * y * y * -0.5)
for _name, _row in ALL.items():
    if _op := getattr(activation, _name, None) or getattr(units, _name, None):
        RULES[_name] = _op
    if _row.derivative:
        _rule = f"{_name}_grad_x"
        RULES[_rule] = _gate(_rule) if _row.derivative == "step" else _times(_row.derivative)


@rule
def _pow_grad_x(gy: Tensor, x: Tensor, p: Tensor | float) -> Tensor:
    if not isinstance(p, Tensor):
        return gy * (x ** (p - 1 if p else 0) * p)
    return gy * (x ** where(eq(p, 0), 0.0, p - 1) * p)


@rule
def _pow_grad_p(gy: Tensor, x: Tensor | float, y: Tensor) -> Tensor:
    if not isinstance(x, Tensor):
        return gy * (y * (math.log(x) if x > 0 else math.nan if x else 0.0))
    flat = mul(eq(x, 0), select.where(lt(y, 1), True, eq(y, 1)))
    return gy * where(flat, 0.0, y * log(where(flat, 1.0, x)))


# ---------------------------------------------------------------- shapes, places
@rule
def _sum_to(gy: Tensor, shape: Axes) -> Tensor:
    extra = gy.ndim - len(shape)
    grown = (*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1 != gy.shape[i + extra]))
    return gy if gy.shape == shape else reshape(sum_of(gy, axis=grown), shape=shape)


def _opened(t: Tensor, shape: Axes, axes: Axes) -> Tensor:
    """The result of a reduction over axes of a shape, with size 1 for these axes."""
    return reshape(t, shape=tuple(1 if a in axes else n for a, n in enumerate(shape)))


@rule
def _spread(gy: Tensor, shape: Axes, axes: Axes, keepdims: bool) -> Tensor:
    return arrange.expand(gy if keepdims else _opened(gy, shape, axes), shape=shape)


@rule
def _cumsum(x: Tensor, axis: int, reverse: bool = False) -> Tensor:
    turned = arrange.flip(x, axis) if reverse else x
    y = statistics.cumsum(turned, axis=axis)
    return arrange.flip(y, axis) if reverse else y


@rule
def _getitem_grad_x(gy: Tensor, index: Index, shape: Axes, once: bool) -> Tensor:
    return _linear_map(gy, there=lambda k, gy: k.getitem_grad_x(gy, index, shape, once),
                       back=lambda k, v: k.getitem(v, index))


@rule
def _take_along_grad_x(gy: Tensor, index: Index, shape: Axes, axis: int, once: bool) -> Tensor:
    return _linear_map(gy, there=lambda k, gy: k.take_along_grad_x(gy, index, shape, axis, once),
                       back=lambda k, v: k.take_along(v, index, axis))


@rule
def _embedding_grad_w(gy: Tensor, ids: Array, rows: int) -> Tensor:
    return _linear_map(gy, there=lambda k, gy: k.embedding_grad_w(gy, ids, rows), back=lambda k, v: k.getitem(v, ids))


RULES |= {
    "reshape": lambda x, shape: reshape(x, shape=shape), "transpose": lambda x, axes: transpose(x, axes=axes),
    "concatenate": arrange.concatenate, "getitem": getitem,
    "take_along": lambda x, index, axis: arrange.pick(x, axis, index, once=False),
    "pad": lambda x, pairs, value: arrange.pad(x, widths=tuple(n for pair in pairs[::-1] for n in pair), value=value),
    "add_parts": lambda gs, at, shape: functools.reduce(basic.add, (
        _getitem_grad_x(g, i, shape, True) for g, i in zip(gs, at, strict=True))),
    "sum": lambda x, axes, keepdims=False: sum_of(x, axis=axes, keepdims=keepdims),
    "mean": lambda x, axes, keepdims=False: mean_of(x, axis=axes, keepdims=keepdims),
}


# ---------------------------------------------------------------- reductions
@rule
def _max_grad_x(gy: Tensor, x: Tensor, y: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    """Which elements are largest, and their shares, do not depend on x."""
    share = _constant("max_grad_x")(_constant("ones_like")(y), x, y, axes, keepdims)
    return where(eq(share, 0), 0.0, _spread(gy, x.shape, axes, keepdims) * share)


@rule(kept=(3,))
def _variance_grad_x(gy: Tensor, x: Tensor, y: Tensor, center: Tensor, axes: Axes, root: bool,
                     degrees: float) -> Tensor:
    gy, y = _opened(gy, x.shape, axes), _opened(y, x.shape, axes)
    offset = x - mean_of(x, axis=axes, keepdims=True)
    if not root:
        return offset * (gy * (2 / degrees))
    return offset * where(eq(y, 0), 0.0, gy / (where(eq(y, 0), 1.0, y) * degrees))


@rule
def _norm_grad_x(gy: Tensor, x: Tensor, y: Tensor, axes: Axes) -> Tensor:
    gy, y = _opened(gy, x.shape, axes), _opened(y, x.shape, axes)
    return x * where(eq(y, 0), 0.0, gy / where(eq(y, 0), 1.0, y))


MAX_OTHERS = 1 << 24                       # elements


@rule
def _prod_grad_x(gy: Tensor, x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    """gy times the product of the others: each row, with 1 in the place of one element after the other."""
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    count = math.prod(x.shape[a] for a in axes)
    if x.size * count > MAX_OTHERS:
        raise ValueError(f"backward: create_graph=True: the gradient of a product of {count} values, {x.size // count} "
                         f"times, takes {x.size * count} numbers; multiply fewer, or use exp(sum(log(x)))")
    rows = reshape(transpose(x, axes=kept + axes), shape=(x.size // max(1, count), 1, count))
    places = arange(count, device=x.device)
    own = eq(reshape(places, shape=(count, 1)), places)
    others = statistics.prod(where(own, 1.0, rows), axis=2)
    others = reshape(others, shape=tuple(x.shape[a] for a in kept + axes))
    back = tuple((kept + axes).index(a) for a in range(x.ndim))
    return _spread(gy, x.shape, axes, keepdims) * transpose(others, axes=back)


@rule
def _softmax_grad_x(gy: Tensor, y: Tensor, axis: int) -> Tensor:
    return y * (gy - sum_of(gy * y, axis=axis, keepdims=True))


@rule
def _log_softmax_grad_x(gy: Tensor, y: Tensor, axis: int) -> Tensor:
    return gy - exp(y) * sum_of(gy, axis=axis, keepdims=True)


RULES |= {"softmax": lambda x, axis: softmax(x, axis=axis),
          "log_softmax": lambda x, axis: activation.log_softmax(x, axis=axis)}


# ---------------------------------------------------------------- products
@rule
def _matmul_grad_x(gy: Tensor, y: Tensor) -> Tensor:
    return matmul(gy, y.swapaxes(-1, -2))


@rule
def _matmul_grad_y(gy: Tensor, x: Tensor) -> Tensor:
    return matmul(x.swapaxes(-1, -2), gy)


RULES |= {"linear": linear.linear, "linear_grad_x": matmul, "linear_grad_w": lambda gy, x: matmul(gy.T, x),
          "linear_grad_b": lambda gy: sum_of(gy, axis=0), "conv2d_grad_b": lambda gy: sum_of(gy, axis=(0, 2, 3))}


def _parts(x: Tensor, w: Tensor, g: ConvGeometry) -> Tensor | None:
    """A convolution that the primitives can do only in parts, by these parts; None for any other one."""
    if g.dense or as_one(g):
        return None
    node = Node("conv2d", backend_of(x), (), (), lambda gy, need: ())
    return in_parts(Taped(node), x, w, None, g=g)[0]   # type: ignore[arg-type]  # which takes the place of a module


def _back(of: Tensor, by: Tensor, gy: Tensor) -> Tensor:
    """The gradient of a linear function by its input, at gy."""
    (_, gradient), = flow([(of, gy)], True, inputs=[by])
    return gradient


def _zeros(like: Tensor, *shape: int) -> Tensor:
    found = zeros(*shape, dtype=like.dtype, device=like.device)
    found._requires_grad = True
    return found


@rule
def _conv2d(x: Tensor, w: Tensor, b: Tensor | None, g: ConvGeometry) -> Tensor:
    y = _parts(x, w, g)
    if y is None:
        y = _product(x, w, there=lambda k, x, w: k.conv2d(x, w, None, g),
                     back_x=lambda k, gy, w: k.conv2d_grad_x(gy, w, g),
                     back_y=lambda k, gy, x: k.conv2d_grad_w(gy, x, g))
    return y if b is None else y + reshape(b, shape=(1, g.m, 1, 1))


@rule
def _conv2d_grad_x(gy: Tensor, w: Tensor, g: ConvGeometry) -> Tensor:
    x = _zeros(gy, g.n, g.c, g.h, g.w) if not (g.dense or as_one(g)) else gy
    y = _parts(x, w, g)
    if y is not None:
        return _back(y, x, gy)
    return _product(gy, w, there=lambda k, gy, w: k.conv2d_grad_x(gy, w, g),
                    back_x=lambda k, v, w: k.conv2d(v, w, None, g), back_y=lambda k, v, gy: k.conv2d_grad_w(gy, v, g))


@rule
def _conv2d_grad_w(gy: Tensor, x: Tensor, g: ConvGeometry) -> Tensor:
    w = _zeros(gy, g.m, g.c // g.groups, g.kh, g.kw) if not (g.dense or as_one(g)) else gy
    y = _parts(x, w, g)
    if y is not None:
        return _back(y, w, gy)
    return _product(gy, x, there=lambda k, gy, x: k.conv2d_grad_w(gy, x, g),
                    back_x=lambda k, v, x: k.conv2d(x, v, None, g), back_y=lambda k, v, gy: k.conv2d_grad_x(gy, v, g))


# ---------------------------------------------------------------- pooling and other sizes
def _pair(name: str, there: str, back: str) -> None:
    """Two linear primitives of x and a geometry or size, each the transpose of the other."""
    RULES[name] = lambda x, own: _linear_map(
        x, there=lambda k, x: getattr(k, there)(x, own), back=lambda k, gy: getattr(k, back)(gy, own))


for _name in ("avg_pool2d", "interpolate"):
    _pair(_name, _name, f"{_name}_grad_x")
    _pair(f"{_name}_grad_x", f"{_name}_grad_x", _name)


@rule
def _adaptive_avg_pool2d(x: Tensor, size: Axes) -> Tensor:
    before = x.shape[2:]
    return _linear_map(x, there=lambda k, x: k.adaptive_avg_pool2d(x, size),
                       back=lambda k, gy: k.adaptive_avg_pool2d_grad_x(gy, before))


@rule
def _adaptive_avg_pool2d_grad_x(gy: Tensor, before: Axes) -> Tensor:
    size = gy.shape[2:]
    return _linear_map(gy, there=lambda k, gy: k.adaptive_avg_pool2d_grad_x(gy, before),
                       back=lambda k, v: k.adaptive_avg_pool2d(v, size))


@rule
def _max_pool2d_grad_x(gy: Tensor, index: Tensor, g: PoolGeometry) -> Tensor:
    """Back: the value at the place of each window's largest element."""
    at = index._data
    below, right = ((count - 1) * step + size - before - n for count, step, size, before, n in (
        (g.oh, g.sh, g.kh, g.top, g.h), (g.ow, g.sw, g.kw, g.left, g.w)))
    edges = ((0, 0), (0, 0), (g.top, max(0, below)), (g.left, max(0, right)))

    def back(k, v):
        framed, total = k.pad(v, edges, 0), 0
        for p in range(g.kh):
            for q in range(g.kw):
                seen = k.getitem(framed, (..., slice(p, p + (g.oh - 1) * g.sh + 1, g.sh),
                                          slice(q, q + (g.ow - 1) * g.sw + 1, g.sw)))
                total = k.add(total, k.where(k.eq(at, p * g.kw + q), seen, 0))
        return total
    return _linear_map(gy, there=lambda k, gy: k.max_pool2d_grad_x(gy, at, g), back=back)


# ---------------------------------------------------------------- normalisation
@rule(kept=(3, 4))
def _normalize_grad(gy: Tensor, x: Tensor, w: Tensor | None, mean: Tensor, rstd: Tensor,
                   g: NormGeometry) -> tuple[Tensor, Tensor, Tensor]:
    """By the formula, with mean and variance as functions of x. eps, added to the variance, follows from rstd."""
    sets, channels = (g.n, g.groups, g.inner), (g.n, g.channels, g.spread)
    axes, column = ((0, 2), (1, g.groups, 1)) if g.across else ((2,), (g.n, g.groups, 1))

    def mean_over(t: Tensor) -> Tensor:
        return sum_of(t, axis=axes, keepdims=True) / max(1, g.size)
    values = reshape(x, shape=sets)
    offset = values - mean_over(values)
    var = mean_over(offset * offset)
    with no_grad():
        known = reshape(rstd, shape=column)
        eps = 1 / (known * known) - var
    by = basic.rsqrt(var + eps)
    z, gc = offset * by, reshape(gy, shape=channels)
    gw = reshape(sum_of(gc * reshape(z, shape=channels), axis=(0, 2)), shape=g.affine)
    gb = reshape(sum_of(gc, axis=(0, 2)), shape=g.affine)
    gz = reshape(gc if w is None else gc * reshape(w, shape=(1, g.channels, 1)), shape=sets)
    inner = gz - mean_over(gz) - z * mean_over(gz * z)
    return reshape(inner * by, shape=x.shape), gw, gb


@rule(kept=(3, 4))
def _normalize_grad_x(gy: Tensor, x: Tensor, w: Tensor | None, mean: Tensor, rstd: Tensor, g: NormGeometry) -> Tensor:
    return _normalize_grad(gy, x, w, mean, rstd, g)[0]


@rule
def _normalize_by_grad_x(gy: Tensor, var: Tensor, w: Tensor | None, eps: float, g: NormGeometry) -> Tensor:
    scale = basic.rsqrt(var + eps) if w is None else w * basic.rsqrt(var + eps)
    return gy * reshape(scale, shape=(-1, *(1,) * (gy.ndim - 2)))


@rule
def _normalize_by_grad(gy: Tensor, x: Tensor, mean: Tensor, var: Tensor, w: Tensor | None, eps: float,
                      g: NormGeometry) -> tuple[Tensor, Tensor, Tensor]:
    column, axes = (-1, *(1,) * (gy.ndim - 2)), (0, *range(2, gy.ndim))
    z = (x - reshape(mean, shape=column)) * reshape(basic.rsqrt(var + eps), shape=column)
    return _normalize_by_grad_x(gy, var, w, eps, g), sum_of(gy * z, axis=axes), sum_of(gy, axis=axes)


# ---------------------------------------------------------------- losses
def _share(gy: Tensor, reduction: str, count: int) -> Tensor:
    return gy / max(1, count) if reduction == "mean" else gy


def _signed(gy: Tensor, d: Tensor) -> Tensor:
    return gy * functions.sign(d)


PAIRS: dict[str, Callable[..., Tensor]] = {            # gy, x - target, x, target, number -> the gradient by x
    "mse": lambda gy, d, x, t, p: gy * (d * 2),
    "l1": lambda gy, d, x, t, p: _signed(gy, d),
    "huber": lambda gy, d, x, t, p: gy * clip(d, low=-p, high=p),
    "bce": lambda gy, d, x, t, p: gy * (activation.sigmoid(x) - t),
}


@rule
def _pair_loss_grad_x(gy: Tensor, x: Tensor, target: Tensor, loss: str, number: float, reduction: str) -> Tensor:
    return PAIRS[loss](_share(gy, reduction, x.size), x - target, x, target, number)


@rule
def _pair_loss_grad_target(gy: Tensor, x: Tensor, target: Tensor, loss: str, number: float, reduction: str) -> Tensor:
    if loss == "bce":
        return _share(gy, reduction, x.size) * -x
    return -_pair_loss_grad_x(gy, x, target, loss, number, reduction)


@rule
def _cross_entropy_grad_x(gy: Tensor, log_p: Tensor, labels: Tensor, reduction: str, smoothing: float) -> Tensor:
    n, classes = log_p.shape
    each = _share(gy, reduction, n)
    each = reshape(each, shape=(n, 1)) if reduction == "none" else arrange.expand(each, shape=(n, 1))
    spread_out = exp(log_p) - smoothing / max(1, classes) if smoothing else exp(log_p)
    at = reshape(labels, shape=(n, 1))._data
    return spread_out * each - _take_along_grad_x(each * (1 - smoothing), at, (n, classes), 1, True)


@rule
def _nll_grad_x(gy: Tensor, classes: int, labels: Array, weight: Array | None, total: Array, reduction: str,
                smoothing: float, ignored: int | None) -> Tensor:
    return _linear_map(
        gy, there=lambda k, gy: k.nll_grad_x(gy, classes, labels, weight, total, reduction, smoothing, ignored),
        back=lambda k, v: k.nll(v, labels, weight, reduction, smoothing, ignored)[0])


RULES["nll"] = lambda log_p, labels, weight, reduction, smoothing, ignored: (
    nll(log_p, wrap(labels), None if weight is None else wrap(weight), reduction, ignored, smoothing), None)


# ---------------------------------------------------------------- attention
def _attended(gy: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool,
              scale: float) -> tuple[Tensor, Tensor]:
    """The weights, and the gradient of the scores. A query that attends to no key has weights 0."""
    scores = matmul(q, k.swapaxes(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        rows, columns = (arange(n, device=q.device) for n in scores.shape[-2:])
        scores = where(lt(reshape(rows, shape=(-1, 1)), columns), -math.inf, scores)
    with no_grad():
        most = max_of(scores, axis=-1, keepdims=True) if scores.size else scores
        most = where(gt(most, -math.inf), most, 0.0)
    weights = exp(scores - most)
    total = sum_of(weights, axis=-1, keepdims=True)
    weights = weights / where(eq(total, 0), 1.0, total)
    by_weight = matmul(gy, v.swapaxes(-1, -2))
    return weights, weights * (by_weight - sum_of(by_weight * weights, axis=-1, keepdims=True))


@rule(kept=(4, 6))
def _attention_grad(gy: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, o: Tensor, sums: Tensor,
                    causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    weights, by_score = _attended(gy, q, k, v, mask, causal, scale)
    return (matmul(by_score, k) * scale, matmul(by_score.swapaxes(-1, -2), q) * scale,
            matmul(weights.swapaxes(-1, -2), gy))


@rule(kept=(6,))
def _attention_grad_mask(gy: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, o: Tensor, sums: Tensor,
                        scale: float) -> Tensor:
    return _attended(gy, q, k, v, mask, False, scale)[1]


# ---------------------------------------------------------------- recurrences
@rule(kept=(6,))
def _recurrence_grad(gy: Tensor, gx: Tensor, w: Tensor, b: Tensor | None, state: Tensor, states: Tensor, kept: Tensor,
                     kind: str, reverse: bool) -> tuple[Tensor, ...]:
    """Step by step, with zeros added to gx, to W h + b and to the state: the gradients are those by the zeros."""
    steps, n, rows = gx.shape
    by_x, by_h = ([_zeros(gx, n, rows) for _ in range(steps)] for _ in range(2))
    by_state = _zeros(state, *state.shape)
    now, after = tuple((state + by_state).unbind(0)), [gx] * steps
    for t in range(steps)[::-1] if reverse else range(steps):
        now = STEPS[kind](gx[t] + by_x[t], linear.linear(now[0], w, b) + by_h[t], *now)
        after[t] = arrange.stack(now, 0)
    found = {id(of): g for of, g in flow([(arrange.stack(after, 1), gy)], True, inputs=[*by_x, *by_h, by_state])}
    ga, gq = (arrange.stack([found[id(each)] for each in zeros], 0) for zeros in (by_x, by_h))
    return (ga, found[id(by_state)], gq) if kind == "gru" else (ga, found[id(by_state)])
