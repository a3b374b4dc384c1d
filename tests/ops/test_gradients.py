"""gradcheck finds wrong gradients, and finds none in any op."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import CASES, LAYOUTS, PARTS, cases_of

from minidl import Tensor, gradcheck, ops
from minidl.core.gradcheck import GradcheckError
from minidl.core.mode import mode
from minidl.core.tensor import Node, wrap
from minidl.ops.common.backend import primitives_of

DIFFERENTIABLE = [name for name, cases in CASES.items() if cases[0].differentiable]


# ---------------------------------------------------------------- every op
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_op(op: str, part: str) -> None:
    """Each case, its inputs in one memory layout after the other, its output (and so gy) in reversed axes. Of some
    cases each derivative, of the others in two random directions: one alone shows any wrong element."""
    failures, most = [], 2048 if part == "some cases" else 0
    for case, (name, (store, view)) in zip(cases_of(op, part), itertools.cycle(LAYOUTS.items())):
        def fn(*stored: Tensor, case=case, view=view) -> Tensor:
            return case.call(*map(view, stored), **case.options).T

        try:
            gradcheck(fn, [Tensor(store(x), requires_grad=True) for x in case.arrays()], max_jacobian=most,
                      directions=2)
        except Exception as error:
            failures.append(f"{case} {name}: {error!r}")
    assert not failures, f"{len(failures)} of {len(cases_of(op, part))} failed:\n" + "\n".join(failures)


# ---------------------------------------------------------------- wrong gradients
def square(gradient: Callable[[np.ndarray, np.ndarray], np.ndarray | None]) -> Callable[[Tensor], Tensor]:
    """x^2 with the given gradient: (gy, x) -> gx."""
    def fn(x: Tensor) -> Tensor:
        y, a = x.data ** 2, x.data
        if not (mode.grad and x.requires_grad):
            return wrap(y)
        return wrap(y, Node("square", primitives_of(y), (x,), (True,), lambda gy, need: (gradient(gy, a),)))
    return fn


def one_element(at: tuple[int, int], factor: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def gradient(gy: np.ndarray, x: np.ndarray) -> np.ndarray:
        gx = 2 * gy * x
        gx[at] *= factor
        return gx
    return gradient


def leaf(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    values = np.random.default_rng(seed).uniform(0.5, 2, shape)
    return Tensor(values, requires_grad=True)


SMALL, LARGE = (3, 4), (40, 30)

WRONG = {
    "right but for 1 %": (lambda gy, x: 2.02 * gy * x, r"off by .* with tolerance"),
    "sign": (lambda gy, x: -2 * gy * x, r"backward gives -.*but differences give \d"),
    "one element off by 1 %": (one_element((1, 2), 1.01), r"element \(1, 2\)"),
    "one element zero": (one_element((2, 3), 0), r"element \(2, 3\).*backward gives 0 but"),
    "one element NaN": (one_element((2, 0), np.nan), r"element \(2, 0\).*backward gives nan but"),
    "none at all": (lambda gy, x: None, r"backward gives no gradient but differences give"),
    "elements exchanged": (lambda gy, x: np.roll(2 * gy * x, 1), "off by"),
    "not summed to the shape": (lambda gy, x: np.stack([2 * gy * x] * 2),
                                r"has shape \((3, 4|40, 30)\) but its gradient has shape \(2, "),
    "transposed": (lambda gy, x: (2 * gy * x).T,
                   r"has shape \((3, 4|40, 30)\) but .* shape \((4, 3|30, 40)\)"),
    "float32": (lambda gy, x: (2 * gy * x).astype(np.float32), "dtype float64 but its gradient has dtype float32"),
}


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_gradient_is_found(wrong: str, shape: tuple[int, int]) -> None:
    gradient, message = WRONG[wrong]
    with pytest.raises(GradcheckError, match=f"gradcheck: input 0.*{message}"):
        gradcheck(square(gradient), [leaf(shape)])


@pytest.mark.parametrize(("shape", "at"),
                         [(SMALL, (0, 3)), (LARGE, (0, 0)), (LARGE, (27, 29)), (LARGE, (39, 0))])
def test_the_wrong_element_is_named(shape: tuple[int, int], at: tuple[int, int]) -> None:
    with pytest.raises(GradcheckError, match=re.escape(f"element {at}")):
        gradcheck(square(one_element(at, 1.01)), [leaf(shape)])


@pytest.mark.parametrize("size", [3, 90])
def test_the_wrong_input_is_named(size: int) -> None:
    wrong = square(WRONG["right but for 1 %"][0])
    with pytest.raises(GradcheckError, match="gradcheck: input 1, element"):
        gradcheck(lambda x, y: ops.matmul(x, wrong(y)), [leaf((size, size)), leaf((size, size), 1)])


def test_transposed_gradient_of_a_square_matrix() -> None:
    with pytest.raises(GradcheckError, match=r"element \(0, 1\).*output element \((0, 1|1, 0)\)"):
        gradcheck(square(lambda gy, x: (2 * gy * x).T), [leaf((2, 2))])


def test_a_right_gradient_passes_and_the_report_says_how() -> None:
    right = square(lambda gy, x: 2 * gy * x)
    small, large = gradcheck(right, [leaf(SMALL)]), gradcheck(right, [leaf(LARGE)], directions=5)
    assert (small.mode, small.checked) == ("jacobian", 12 * 12)
    assert (large.mode, large.checked) == ("direction", 5)
    for report in (small, large):
        assert 0 < report.tolerance_used < 0.1
    assert re.fullmatch(r"\(0, \(\d, \d\)\)", str(small.worst))
    assert large.worst == (0, None)


def test_tolerance_used_grows_with_the_error() -> None:
    nearly = square(lambda gy, x: 2 * (1 + 5e-7) * gy * x)
    assert 0.3 < gradcheck(nearly, [leaf(SMALL)]).tolerance_used < 1
    with pytest.raises(GradcheckError, match="off by"):
        gradcheck(nearly, [leaf(SMALL)], atol=1e-8, rtol=1e-8)


def test_an_unused_input_has_gradient_zero() -> None:
    report = gradcheck(lambda x, y: x * 2, [leaf(SMALL), leaf(SMALL, 1)])
    assert report.checked == 2 * 12 * 12


def test_a_result_off_the_tape_misses_its_gradient() -> None:
    with pytest.raises(GradcheckError, match="backward gives no gradient"):
        gradcheck(lambda x: (x * x).detach(), [leaf(SMALL)])


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_an_empty_input_passes_if_the_shape_of_its_gradient_fits(shape: tuple[int, ...]) -> None:
    assert gradcheck(lambda x: x * 2, [leaf(shape)]).worst is None
    with pytest.raises(GradcheckError, match="but its gradient has shape"):
        gradcheck(square(lambda gy, x: np.zeros((7,))), [leaf(shape)])


def test_inputs_and_their_gradients_stay() -> None:
    x, labels = leaf((3, 4)), Tensor(np.array([0, 3, 1]))
    x.grad = held = Tensor(np.ones((3, 4)))
    before = x.numpy().copy()
    gradcheck(lambda x, labels: ops.cross_entropy(x, labels), [x, labels])
    assert x.grad is held
    np.testing.assert_array_equal(held.numpy(), 1)
    np.testing.assert_array_equal(x.numpy(), before)


def test_the_same_seed_draws_the_same_directions() -> None:
    right = square(lambda gy, x: 2 * gy * x)
    used = [gradcheck(right, [leaf(LARGE)], seed=seed).tolerance_used for seed in (1, 1, 2)]
    assert used[0] == used[1] != used[2]


# ---------------------------------------------------------------- what cannot be checked
def infinite(x: Tensor) -> Tensor:
    with np.errstate(divide="ignore"):
        return x * Tensor(np.array([1.0, np.inf, np.nan]))


REFUSED: dict[str, tuple[Callable[..., Any], list[Any], type[Exception], str]] = {
    "float32": (lambda x: x, [Tensor([1.0], requires_grad=True)], TypeError,
                r"gradcheck: input 0 has dtype float32, too coarse .* convert it with \.to\(dtype='float64'\)"),
    "no Tensor": (lambda x, y: x, [leaf((1,)), np.ones(2)], TypeError,
                  r"gradcheck: input 1 is a ndarray but must be"),
    "nothing to check": (lambda x: x, [Tensor(np.ones(2))], ValueError,
                         "gradcheck: none of the 1 inputs requires a gradient; set requires_grad=True"),
    "no inputs": (lambda: None, [], ValueError, "gradcheck: none of the 0 inputs requires a gradient"),
    "result no Tensor": (lambda x: x.numpy(), [leaf((2,))], TypeError,
                         "gradcheck: fn returned a ndarray but must return a float64 Tensor"),
    "result bool": (lambda x: x > 1, [leaf((2,))], TypeError,
                    "gradcheck: fn returned a bool Tensor but must return a float64 Tensor"),
    "random": (lambda x: ops.dropout(x, 0.5), [leaf((40,))], GradcheckError,
               "gradcheck: fn is not deterministic: two calls"),
    "not finite": (infinite, [leaf((3,))], GradcheckError,
                   "gradcheck: fn gives 2 values of 3 that are NaN or inf"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    fn, inputs, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        gradcheck(fn, inputs)


def test_messages_are_one_line() -> None:
    for shape in (SMALL, LARGE):
        with pytest.raises(GradcheckError) as caught:
            gradcheck(square(WRONG["sign"][0]), [leaf(shape)])
        assert "\n" not in str(caught.value)
