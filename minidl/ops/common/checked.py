"""Gradients of ops of one's own are checked: those of another shape would be added up wherever they broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from ...core.tensor import Array, Backward


def checks_of(name: str, inputs: Sequence[object]) -> Callable[[Backward], Backward]:
    """Makes of an op's closure one that checks its gradients, which must be like the inputs.

    The closure that it makes raises TypeError for another number of gradients, and ValueError for one of another shape
    or dtype. Its attribute `checks` does the same for the closure that computes on Tensors.
    """
    given = [_kind(each) for each in inputs]

    def checks(closure: Backward) -> Backward:
        @wraps(closure)
        def checked(gy: Array, need: tuple[bool, ...]) -> tuple[Array | None, ...]:
            gradients = closure(gy, need)
            if not isinstance(gradients, (tuple, list)) or len(gradients) != len(given):
                count = f"{len(gradients)} values" if isinstance(gradients, (tuple, list)) else "one value"
                raise TypeError(f"{name}: its backward returns {count} ({type(gradients).__name__}) but must return a "
                                f"tuple of {len(given)}: a gradient for each input, or None where there is none")
            for i, (g, kind) in enumerate(zip(gradients, given, strict=True)):
                if need[i] and g is not None and _kind(g) != kind:
                    raise ValueError(f"{name}: its backward returns {_kind(g)} for input {i}, which is {kind}; sum "
                                     "over what was broadcast (k.sum), or convert (k.cast)")
            return gradients
        checked.checks = checks            # type: ignore[attr-defined]
        return checked
    return checks


def _kind(array: object) -> str:
    if hasattr(array, "shape") and hasattr(array, "dtype"):
        return f"{array.dtype} of shape {tuple(array.shape)}"
    return f"of {type(array).__name__}"
