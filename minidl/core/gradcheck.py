"""Check gradients against central differences, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .mode import no_grad
from .rng import checked_seed
from .tensor import Tensor

Element = tuple[int, ...]

_WAY_OUT = "correct the backward of fn, or move the input away from a kink of fn"


class GradcheckError(ValueError):
    """A gradient that differences do not confirm, or a function that cannot be checked."""


@dataclass(frozen=True)
class GradcheckReport:
    """What a passed check saw.

    mode: "jacobian" (every element) or "direction" (random directions). checked: how many derivatives were
    compared. tolerance_used: the largest difference as a share of its tolerance, at most 1. worst: where that was,
    (index of the input, element or None in a direction); None if nothing was compared.
    """

    mode: str
    checked: int
    tolerance_used: float
    worst: tuple[int, Element | None] | None


def gradcheck(fn: Callable[..., Tensor], inputs: Sequence[Tensor], *, eps: float = 1e-6, atol: float = 1e-7,
              rtol: float = 1e-6, max_jacobian: int = 2048, directions: int = 8,
              seed: int = 0) -> GradcheckReport:
    """Compare the gradients of `fn(*inputs)`, a Tensor of any shape, with central differences.

    Every float64 input with requires_grad is checked; the others are passed on as they are. A derivative passes
    if |analytic - numeric| <= atol + rtol * |numeric|. An element x is moved by eps * max(1, |x|).

    If inputs times outputs are at most `max_jacobian` elements, every entry of the Jacobian is compared. Above
    that the derivative of a random combination of the outputs (of length 1) is compared along `directions` random
    directions per input, decided by `seed`; a direction that fails is halved until one element is found.

    The inputs and their `.grad` stay as they are. At a kink of fn (relu at 0, equal maxima) there is no
    derivative to compare: keep the inputs away from it.

    Raises GradcheckError (a ValueError) naming input, element, both values and the tolerance; also for a missing
    gradient, one of a wrong shape or dtype, and an fn that is not deterministic or not finite. Raises TypeError
    for an input or result that is not a float64 Tensor, and ValueError if no input requires a gradient.

    >>> x = Tensor([[1.0, 2.0]], dtype="float64", requires_grad=True)
    >>> gradcheck(lambda x: (x * x).sum(), [x]).mode
    'jacobian'
    """
    check = _Check(fn, inputs, eps, atol, rtol)
    if check.outputs * sum(check.start[i].size for i in check.checked) <= max_jacobian:
        return check.jacobian()
    return check.along(directions, seed)


class _Check:
    """One fn at one point: its values nearby and its gradients there."""

    def __init__(self, fn: Callable[..., Tensor], inputs: Sequence[Tensor], eps: float, atol: float, rtol: float):
        _refuse(inputs)
        self.fn, self.eps, self.atol, self.rtol = fn, eps, atol, rtol
        self.device = inputs[0].device
        self.start = [np.array(t.numpy()) for t in inputs]
        self.checked = [i for i, t in enumerate(inputs) if t.requires_grad]
        self.leaves = [Tensor(t.numpy(), requires_grad=t.requires_grad, device=t.device) for t in inputs]
        self.y = _float64(fn(*self.leaves))
        self.outputs = self.y.size
        self.arrived: set[int] = set()                 # inputs that got a gradient in any backward
        first, second = self.y.numpy(), self.value(self.start)
        if not np.array_equal(first, second, equal_nan=True):
            raise GradcheckError("gradcheck: fn is not deterministic: two calls with the same inputs differ; fix "
                                 "its randomness, as by dropout(x, p, key=(0, 0))")
        if not np.isfinite(first).all():
            raise GradcheckError(f"gradcheck: fn gives {np.count_nonzero(~np.isfinite(first))} values of "
                                 f"{self.outputs} that are NaN or infinite; choose inputs where fn is finite")

    # ------------------------------------------------------------------ fn and its gradients
    def value(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """fn at other inputs, as an array of its own."""
        with no_grad():
            return np.array(_float64(self.fn(*[Tensor(a, device=self.device) for a in arrays])).numpy())

    def gradients(self, cotangent: np.ndarray) -> list[np.ndarray]:
        """What backward gives each checked input for one gradient of the output, flat; zeros if none came."""
        for leaf in self.leaves:
            leaf.grad = None
        if self.y.requires_grad:
            self.y.backward(Tensor(cotangent, device=self.device), retain_graph=True)
        return [self._flat(i, self.leaves[i].grad) for i in self.checked]

    def _flat(self, i: int, grad: Tensor | None) -> np.ndarray:
        x = self.leaves[i]
        if grad is None:
            return np.zeros(x.size)
        for what in ("shape", "dtype"):
            if getattr(grad, what) != getattr(x, what):
                raise GradcheckError(f"gradcheck: input {i} has {what} {getattr(x, what)} but its gradient has "
                                     f"{what} {getattr(grad, what)}; correct the backward of fn")
        self.arrived.add(i)
        return grad.numpy().reshape(-1)

    def derivative(self, i: int, flat: int | slice | np.ndarray, v: float | np.ndarray) -> np.ndarray:
        """Central difference of fn, flat, when the elements `flat` of input i move along v."""
        x = self.start[i].reshape(-1)[flat]
        h = self.eps * max(1.0, float(np.max(np.abs(x), initial=0.0)))
        values = []
        for end in (x + h * v, x - h * v):
            moved = list(self.start)
            moved[i] = moved[i].copy()
            moved[i].reshape(-1)[flat] = end
            values.append(self.value(moved).reshape(-1))
        return (values[0] - values[1]) / (2 * h)

    def tolerance(self, numeric: np.ndarray | float) -> np.ndarray | float:
        return self.atol + self.rtol * np.abs(numeric)

    def given(self, i: int, analytic: float) -> str:
        return f"backward gives {analytic + 0.0:.9g}" if i in self.arrived else "backward gives no gradient"

    # ------------------------------------------------------------------ every entry
    def jacobian(self) -> GradcheckReport:
        self.gradients(np.ones(self.y.shape))          # for its own checks: there may be no output element at all
        rows = [self.gradients(basis.reshape(self.y.shape)) for basis in np.eye(self.outputs)]
        worst, used, count = None, 0.0, 0
        for position, i in enumerate(self.checked):
            for j in range(self.start[i].size):
                numeric = self.derivative(i, j, 1.0)
                analytic = np.array([row[position][j] for row in rows])
                share = _share(analytic - numeric, self.tolerance(numeric))
                count += share.size
                if not share.size or (worst is not None and share.max() <= used):
                    continue
                o = int(share.argmax())
                worst, used = (i, _at(self.start[i], j)), float(share[o])
                if used > 1:
                    a, n = float(analytic[o]), float(numeric[o])
                    raise GradcheckError(
                        f"gradcheck: input {i}, element {worst[1]}, output element {_at(self.y, o)}: "
                        f"{self.given(i, a)} but differences give {n:.9g}, off by {abs(a - n):.3g} with tolerance "
                        f"{self.tolerance(n):.3g}; {_WAY_OUT}")
        return GradcheckReport("jacobian", count, used, worst)

    # ------------------------------------------------------------------ random directions
    def along(self, directions: int, seed: int) -> GradcheckReport:
        draw = np.random.default_rng(checked_seed("gradcheck", seed)).standard_normal
        worst, used = None, 0.0
        for _ in range(directions):
            u = draw(self.outputs)
            u /= np.linalg.norm(u)
            for i, g in zip(self.checked, self.gradients(u.reshape(self.y.shape)), strict=True):
                v = draw(g.size)
                analytic, numeric = float(g @ v), float(u @ self.derivative(i, slice(None), v))
                share = float(_share(analytic - numeric, self.tolerance(numeric)))
                if share > 1:
                    j, a, n = self.worst_element(i, u, g, v)
                    raise GradcheckError(
                        f"gradcheck: input {i}, element {_at(self.start[i], j)}: {self.given(i, a)} but "
                        f"differences give {n:.9g}, off by {abs(a - n):.3g}; along a random direction "
                        f"{analytic:.9g} and {numeric:.9g} are off by {abs(analytic - numeric):.3g} with "
                        f"tolerance {self.tolerance(numeric):.3g}; {_WAY_OUT}")
                if worst is None or share > used:
                    worst, used = (i, None), share
        return GradcheckReport("direction", directions * len(self.checked), used, worst)

    def worst_element(self, i: int, u: np.ndarray, g: np.ndarray, v: np.ndarray) -> tuple[int, float, float]:
        """Halve a direction that failed, keeping the half that is further off, down to one element: it, and both
        its derivatives."""
        begin, end = 0, v.size
        while end - begin > 1:
            middle = (begin + end) // 2
            halves = slice(begin, middle), slice(middle, end)
            off = [_share(g[half] @ v[half] - u @ self.derivative(i, half, v[half]), 1.0) for half in halves]
            begin, end = (begin, middle) if off[0] >= off[1] else (middle, end)
        return begin, float(g[begin]), float(u @ self.derivative(i, begin, 1.0))


def _refuse(inputs: Sequence[Tensor]) -> None:
    for i, t in enumerate(inputs):
        if not isinstance(t, Tensor):
            raise TypeError(f"gradcheck: input {i} is a {type(t).__name__} but must be a Tensor; wrap it in "
                            "minidl.Tensor(..., dtype='float64')")
        if t.requires_grad and t.dtype != np.float64:
            raise TypeError(f"gradcheck: input {i} has dtype {t.dtype}, too coarse for differences; convert it "
                            "with .to(dtype='float64')")
    if not any(t.requires_grad for t in inputs):
        raise ValueError(f"gradcheck: none of the {len(inputs)} inputs requires a gradient; set "
                         "requires_grad=True on those to check")


def _float64(y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor) or y.dtype != np.float64:
        what = f"a {y.dtype} Tensor" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise TypeError(f"gradcheck: fn returned {what} but must return a float64 Tensor; compute it from the "
                        "inputs in their dtype")
    return y


def _share(difference: np.ndarray | float, tolerance: np.ndarray | float) -> Any:
    """A difference in units of its tolerance; NaN, which no tolerance covers, as infinity."""
    return np.nan_to_num(np.abs(difference) / tolerance, nan=math.inf, posinf=math.inf)


def _at(x: Tensor | np.ndarray, flat: int) -> Element:
    return tuple(int(n) for n in np.unravel_index(flat, x.shape))
