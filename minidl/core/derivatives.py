"""Gradients as Tensors: of chosen inputs, and of gradients. Named and shaped as in PyTorch's torch.autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .device import owner
from .gradcheck import GradcheckReport, gradcheck
from .mode import mode, recorded
from .tensor import Tensor, flow, owns, start_of, wrap

Tensors = Tensor | Iterable[Tensor]


def _several(name: str, what: str, given: object) -> tuple[Tensor, ...]:
    """One Tensor or several, as a tuple; those of `net.parameters()` too."""
    found = tuple(given) if isinstance(given, Iterable) and not hasattr(given, "dtype") else (given,)
    for i, t in enumerate(found):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: {what} {i} is a {type(t).__name__} but must be a Tensor; wrap it in "
                            "minidl.Tensor(...)")
    return found


def grad(outputs: Tensors, inputs: Tensors, grad_outputs: Tensor | Sequence[Tensor | None] | None = None, *,
         retain_graph: bool | None = None, create_graph: bool = False,
         allow_unused: bool = False) -> tuple[Tensor | None, ...]:
    """The gradients of outputs by inputs, which may be leaves or not: a tuple, whose Tensors have the inputs' shapes.

    Nothing is added to `.grad`, and closures that lead to no input do not run. grad_outputs: a gradient for each
    output, None for one of a single value. create_graph: the gradients can be differentiated in turn; the graph is
    then kept. retain_graph: keep it in any case. allow_unused: None for an input that the outputs do not depend on,
    which is otherwise an error.

    Raises ValueError for inputs and outputs that require no gradient, and as `Tensor.backward`.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> gx, = grad(x ** 3, x, create_graph=True)
    >>> gx.tolist(), grad(gx, x)[0].tolist()
    ([27.0], [18.0])
    """
    ys, xs = _several("grad", "output", outputs), _several("grad", "input", inputs)
    given = (grad_outputs,) if grad_outputs is None or isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
    given = given if grad_outputs is not None else (None,) * len(ys)
    if len(given) != len(ys):
        raise ValueError(f"grad: got {len(given)} grad_outputs for {len(ys)} outputs; give one for each, or None")
    for what, ts in (("output", ys), ("input", xs)):
        for i, t in enumerate(ts):
            if not t.requires_grad:
                raise ValueError(f"grad: {what} {i} (shape {t.shape}) does not require a gradient; "
                                 + ("compute it from a Tensor with requires_grad=True, outside no_grad()"
                                    if what == "output" else "set requires_grad=True before it is used"))
    starts = [(y, start_of(y, g, "grad")) for y, g in zip(ys, given, strict=True)]
    found = {id(of): g for of, g in flow(starts, create_graph, retain_graph, xs)}
    gradients = [found.get(id(x if x.node is None else x.node)) for x in xs]
    for i, (x, g) in enumerate(zip(xs, gradients, strict=True)):
        if g is None and not allow_unused:
            raise ValueError(f"grad: input {i} (shape {x.shape}) was not used for the outputs; leave it out, or pass "
                             "allow_unused=True for None in its place")
    held = {id(owner(start._data)) for _, start in starts}
    for i, g in enumerate(gradients):      # each has its memory alone: it may be changed in place
        if g is not None:
            if id(owner(g._data)) in held or not owns(g._data):
                gradients[i] = g = g.clone()
            held.add(id(owner(g._data)))
    return tuple(gradients)


def _leaves(name: str, inputs: Tensors, create_graph: bool) -> tuple[Tensor, ...]:
    """What a function is called with: inputs that it is differentiated by, and nothing else."""
    found = tuple(t.reshape(t.shape) if create_graph and t.requires_grad else t.detach()
                  for t in _several(name, "input", inputs))
    for i, t in enumerate(found):
        if t.dtype.kind != "f":
            raise TypeError(f"{name}: input {i} has dtype {t.dtype} but must be float32 or float64, which has "
                            "derivatives; convert it with .to(dtype='float32')")
        t._requires_grad = True
    return found


def _one(name: str, y: object) -> Tensor:
    if not isinstance(y, Tensor) or y.size != 1:
        what = f"a Tensor of shape {y.shape}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ValueError(f"{name}: func returned {what} but must return one number; call .sum() or .mean()")
    return y


def _gradients(ys: Tensor, xs: Sequence[Tensor], v: Tensor | None, create_graph: bool) -> tuple[Tensor, ...]:
    """Zeros for what was not used; the graph is kept."""
    if not ys.requires_grad:
        return tuple(map(_zeros, xs))
    found = grad(ys, xs, v, retain_graph=True, create_graph=create_graph, allow_unused=True)
    return tuple(_zeros(x) if g is None else g for g, x in zip(found, xs, strict=True))


def _zeros(x: Tensor) -> Tensor:
    """Whatever x is, NaN and infinity too."""
    from ..ops.create import zeros_like

    return zeros_like(x)


def _like(given: Tensors, found: tuple[Any, ...]) -> Any:
    """One Tensor if one was given, else a tuple."""
    return found[0] if isinstance(given, Tensor) else found


def _rows(y: Tensor, xs: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """For each input the gradients of all elements of y: (*y.shape, *x.shape)."""
    from ..ops import stack

    if not y.size:
        return tuple(wrap(x._data[:0].reshape(y.shape + x.shape)) for x in xs)
    flat = y.reshape(y.size)
    columns = zip(*(_gradients(flat[i], xs, None, create_graph) for i in range(y.size)), strict=True)
    return tuple(stack(column).reshape(*y.shape, *x.shape) for column, x in zip(columns, xs, strict=True))


@recorded()
def jacobian(func: Callable[..., Any], inputs: Tensors, create_graph: bool = False) -> Any:
    """All derivatives of func(*inputs) by its inputs: (*output.shape, *input.shape), one backward pass per element.

    A Tensor for one input, a tuple for a tuple of inputs; a tuple of outputs gives a tuple of these. Derivatives are 0
    for outputs that do not depend on an input, and for those that func computes from other Tensors than its arguments.
    create_graph: the result can be differentiated, by the inputs too. func is recorded within `no_grad` too.

    >>> jacobian(lambda x: x * x, Tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    xs = _leaves("jacobian", inputs, create_graph)
    outputs: Tensors = func(*xs)
    ys = _several("jacobian", "output", outputs)
    return _like(outputs, tuple(_like(inputs, _rows(y, xs, create_graph)) for y in ys))


def hessian(func: Callable[..., Tensor], inputs: Tensors, create_graph: bool = False) -> Any:
    """All second derivatives of a func of one number: (*input.shape, *input.shape); a tuple of tuples for a tuple.

    >>> hessian(lambda x: (x ** 3).sum(), Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    def first(*xs: Tensor) -> Any:
        return _like(inputs, _gradients(_one("hessian", func(*xs)), xs, None, True))
    return jacobian(first, inputs, create_graph)


@recorded()
def hvp(func: Callable[..., Tensor], inputs: Tensors, v: Tensors | None = None,
        create_graph: bool = False) -> tuple[Tensor, Any]:
    """(func(*inputs), its Hessian times v) of a func that gives one number, by two backward passes; v is like inputs.

    v may be left out for one input of one element.

    >>> hvp(lambda x: (x ** 3).sum(), Tensor([1.0, 2.0]), Tensor([1.0, 10.0]))[1].tolist()
    [6.0, 120.0]
    """
    xs = _leaves("hvp", inputs, create_graph)
    if v is None and not (len(xs) == 1 and xs[0].size == 1):
        raise ValueError(f"hvp: v is None but inputs have {sum(x.size for x in xs)} elements; give a Tensor like each "
                         "input")
    vs = (None,) if v is None else _several("hvp", "v", v)
    if len(vs) != len(xs):
        raise ValueError(f"hvp: got {len(vs)} Tensors as v for {len(xs)} inputs; give one for each")
    y = _one("hvp", func(*xs))
    first = _gradients(y, xs, None, True)
    vs = tuple(start_of(g, each, "hvp") for g, each in zip(first, vs, strict=True))
    ys = [(g, each) for g, each in zip(first, vs, strict=True) if g.requires_grad]
    found = grad([g for g, _ in ys], xs, [each for _, each in ys], retain_graph=True, create_graph=create_graph,
                 allow_unused=True) if ys else (None,) * len(xs)
    products = tuple(_zeros(x) if g is None else g for g, x in zip(found, xs, strict=True))
    return (y if create_graph else y.detach()), _like(inputs, products)


def gradgradcheck(fn: Callable[..., Tensor], inputs: Sequence[Tensor], *, seed: int = 0,
                  **options: float) -> GradcheckReport:
    """`gradcheck` of the gradients of `fn(*inputs)`: as functions of the inputs, and of the gradient of the output.

    options: those of gradcheck. Each element of the gradients is compared, in a sum with random weights that `seed`
    decides.

    >>> x = Tensor([[1.0, 2.0]], dtype="float64", requires_grad=True)
    >>> gradgradcheck(lambda x: (x ** 3).sum(), [x]).mode
    'jacobian'
    """
    from ..ops import concatenate

    draw = np.random.default_rng(seed)
    with_grad = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and t.requires_grad]
    y = fn(*inputs)
    v = Tensor(draw.standard_normal(y.shape), requires_grad=True, device=y.device)

    def first(*given: Tensor) -> Tensor:
        """The gradients, in one row: of inputs that are on the tape, or, for a difference, of leaves."""
        *xs, gy = given
        xs = xs if mode.grad else [x.detach() for x in xs]
        for i in with_grad:
            xs[i]._requires_grad = True
        with recorded():
            found = _gradients(fn(*xs), [xs[i] for i in with_grad], gy, True)
        return concatenate([g.reshape(g.size) for g in found])
    return gradcheck(first, [*inputs, v], seed=seed, **options)  # type: ignore[arg-type]  # ints too
