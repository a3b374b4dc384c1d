"""The one engine of the checks: what a call gives on a backend agrees with what it must give.

`what` is a function (k, *given) of a backend's primitives, or the name of one. Of what is given, arrays go to the
backend; all else stays. Each call runs twice and must give the same bits, shapes and dtypes.

on: "cpu" or "cuda", which is emulated where an emulator runs: that has one order of threads, so there each call runs
once.

against: "cpu", the same call on NumPy arrays; "float64", that of the values in float64; "pattern", what the lines give
that a fused primitive stands for (ops/common/fused.py), on the same backend; or a formula, a function of the arrays.

`step_agrees` is the same of a step: its program, fused and optimised, replayed on the device where the Tensors lie, and
the program as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minidl.compiler.passes import optimised
from minidl.compiler.passes.fusion import fuse
from minidl.compiler.program import Program
from minidl.compiler.replay import ByCalls
from minidl.core import device
from minidl.core.tensor import Tensor, wrap
from minidl.lab.check import product_bound
from minidl.lab.emulator import Memory
from minidl.ops import cpu
from minidl.ops.common.fused import FUSED
from minidl.ops.common.patterns import in_turn

What = Callable[..., Any] | str
ARRAYS = (np.ndarray, np.floating)        # what a draw of no axes gives is one too


def backend(on: str) -> tuple[Any, Callable[[np.ndarray], Any]]:
    """Its primitives, and what moves an array there."""
    if on == "cpu":
        return cpu, np.array
    import cupy

    from minidl.ops import cuda

    return cuda, cupy.asarray


def names_of(k: Any) -> set[str]:
    """Of a backend's primitives."""
    assert hasattr(k, "to_nhwc")                       # the CPU's by pattern are made when one is named
    others = {"ahead", "can_region_step", "stores_half", "takes_nhwc"}     # which a pass asks
    return {name for name, value in vars(k).items() if callable(value) and name[0].islower()} - others


def numpy_of(a: Any) -> np.ndarray:
    return np.asarray(a.get() if hasattr(a, "get") else a)


def called(what: What, k: Any, move: Callable[[np.ndarray], Any], given: Sequence[Any]) -> list[np.ndarray]:
    """The results, as NumPy arrays."""
    moved = [move(np.asarray(a)) if isinstance(a, ARRAYS) else a for a in given]
    found = getattr(k, what)(*moved) if isinstance(what, str) else what(k, *moved)
    return [numpy_of(a) for a in (found if isinstance(found, (tuple, list)) else (found,))]


def by_pattern(name: str) -> Callable[..., Any]:
    """A fused primitive as the lines that it stands for, on any backend."""
    return lambda k, *given: in_turn(FUSED[name], vars(k))(*given)


def agrees(what: What, *given: Any, on: str = "cuda", against: str | Callable[..., Any] = "cpu", rtol: float = 0,
           atol: float = 0, scaled: bool = False, length: int = 0, most: Sequence[Any] = ()) -> None:
    """rtol, atol: in roundings of a result's dtype; scaled: atol is relative to the largest value, from 1 on. Without
    both, results are equal.

    length: of the sums of products that the results are, which decides how near they must be in the current precision;
    most: how near, result by result.
    """
    k, move = backend(on)
    got = called(what, k, move, given)
    again = got if isinstance(move(np.empty(0)), Memory) else called(what, k, move, given)
    dtype = None
    if callable(against):
        want = called(lambda _, *of: against(*of), cpu, np.array, given)
    elif against == "cpu":
        want = called(what, cpu, np.array, given)
    elif against == "pattern":
        assert isinstance(what, str), "patterns are those of primitives by name"
        want = called(by_pattern(what), k, move, given)
    else:
        assert against == "float64", against
        wide = [a.astype(float) if isinstance(a, ARRAYS) and a.dtype.kind == "f" else a for a in given]
        want, dtype = called(what, cpu, np.array, wide), given[0].dtype
        if length:
            squares = called(what, cpu, np.array, [a * a if isinstance(a, ARRAYS) else a for a in wide])
            most = [product_bound(device.precision(), length, *pair, dtype.type)
                    for pair in zip(squares, want, strict=True)]
    compare(got, want, again, rtol, atol, scaled, most, dtype)


def compare(got: Sequence[np.ndarray], want: Sequence[np.ndarray], again: Sequence[np.ndarray], rtol: float = 0,
            atol: float = 0, scaled: bool = False, most: Sequence[Any] = (), dtype: Any = None) -> None:
    for i, (mine, its, same) in enumerate(zip(got, want, again, strict=True)):
        assert (mine.shape, mine.dtype) == (its.shape, dtype or its.dtype), f"result {i}"
        assert mine.tobytes() == same.tobytes(), f"result {i}: two runs differ"
        if len(most):
            share = np.abs(mine - its) / np.maximum(most[i], np.finfo(np.float32).tiny)
            assert (share <= 1).all(), f"result {i}: used {np.max(share):.3g} of its tolerance"
        elif rtol or atol:
            rounding = np.finfo(mine.dtype).eps if mine.dtype.kind == "f" else 0.0
            size = np.max(np.abs(its), initial=1) if scaled else 1
            np.testing.assert_allclose(mine, its, rtol=rtol * rounding, atol=atol * rounding * size,
                                       err_msg=f"result {i}")
        else:
            np.testing.assert_array_equal(mine, its, err_msg=f"result {i}")


# ---------------------------------------------------------------- compiled steps
def replay_results(found: Program, leaf: Tensor, given: list[Tensor]) -> list[np.ndarray]:
    """What a replay returns, the leaf's gradient, and what it made of copies of the other inputs."""
    others = [wrap(t.data.copy()) for t in given[1:]]
    value = ByCalls(found).run([leaf, *others])
    assert leaf.grad is not None
    return [value.numpy(), leaf.grad.numpy(), *(t.numpy() for t in others)]


def step_agrees(found: Program, leaf: Tensor, given: list[Tensor], fused: str, atol: float = 0) -> None:
    """A program, fused by a primitive, and optimised, beside itself as it was recorded. atol: in roundings."""
    want = replay_results(found, leaf, given)
    by = fuse(found)
    assert fused in {call.name for call in by.calls}
    for each in (by, optimised(found))[:1 if atol else 2]:
        got, again = (replay_results(each, leaf, given) for _ in range(2))
        compare(got, want, again, atol=atol, scaled=True)
