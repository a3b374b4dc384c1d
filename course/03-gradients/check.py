"""The steps of lab 3: the values beside NumPy's, the gradients beside differences, and a classifier that learns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from labkit import Lab, Wrong, step

OWN = r"\bk\.(linear|softmax|log_softmax|cross_entropy|nll|normalize|spread|sum_to)\w*\("
EPS = 1e-5
Function = Callable[..., np.ndarray]


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ni,oi->no", x, w) + b


def loss(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    largest = x.max(1, keepdims=True)
    return -(t * (x - largest - np.log(np.exp(x - largest).sum(1, keepdims=True)))).sum() / len(x)


def by_hand(lab: Lab) -> None:
    """The file computes with the primitives of the page."""
    found = re.search(OWN, lab.text)
    if found:
        raise Wrong(f"{lab.where(OWN)}: {found[0]}...) is what you are to write; use the primitives that README.md "
                    "names")


def differences(function: Function, arrays: Sequence[np.ndarray], at: int, gy: np.ndarray) -> np.ndarray:
    """Central differences of sum(gy function(*arrays)) by the elements of one input."""
    gradient = np.zeros_like(arrays[at])
    for index in np.ndindex(*gradient.shape):
        ends = []
        for sign in (1, -1):
            moved = [each.copy() for each in arrays]
            moved[at][index] += sign * EPS
            ends.append((gy * function(*moved)).sum())
        gradient[index] = (ends[0] - ends[1]) / (2 * EPS)
    return gradient


def agrees(lab: Lab, name: str, function: Function, arrays: list[np.ndarray], names: str, todo: dict[str, str]) -> None:
    """The gradients of an op's inputs are those of the formula; names: a letter for each that needs one."""
    gy = lab.rng.standard_normal(function(*arrays).shape)
    needed = [at < len(names) for at in range(len(arrays))]
    got = lab.call("gradients", name, arrays, needed, gy)
    for at, letter in enumerate(names):
        if got[at] is None:
            raise lab.wrong(name, f"{letter} gets no gradient; return one for it from backward, in the order of the "
                            "inputs")
        letters = "xwb" if name == "linear" else "xt"
        shown = " and ".join(f"{each} {array.shape}" for each, array in zip(letters, arrays))
        lab.same(name, got[at], differences(function, arrays, at, gy), f"the gradient of {letter} (of {shown})",
                 todo=todo[letter], atol=1e-7)


def classes(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """Rows that have a 1 at their class."""
    return np.eye(count)[rng.integers(0, count, n)]


@step("a gradient by central differences", points=20)
def differentiates(lab: Lab) -> None:
    for shape in ((5,), (2, 3), ()):
        waves, x = lab.rng.uniform(1, 3, shape), lab.rng.uniform(-1, 1, shape)
        got, after = lab.call("differentiated", waves, x)
        lab.same("numerical_gradient", after, x, "x after the call", todo="move a copy, or move each element back")
        exact = waves * np.cos(waves * x) + 3 * x ** 2
        lab.same("numerical_gradient", got, exact, f"the gradient of a sum at x {shape}", atol=1e-7,
                 todo="move one element at a time, by eps up and down, and divide by 2 eps")


@step("linear: its value", points=10)
def multiplies(lab: Lab) -> None:
    by_hand(lab)
    for n, inputs, outputs in ((2, 3, 4), (1, 5, 1), (7, 2, 3)):
        arrays = [lab.rng.standard_normal(shape) for shape in ((n, inputs), (outputs, inputs), (outputs,))]
        lab.same("linear", lab.call("value", "linear", arrays), linear(*arrays),
                 f"y of x {(n, inputs)} and w {(outputs, inputs)}", todo="y = x w^T + b")


@step("linear: its gradients", points=25)
def multiplies_back(lab: Lab) -> None:
    by_hand(lab)
    for n, inputs, outputs in ((2, 3, 4), (1, 5, 1), (4, 2, 2)):
        arrays = [lab.rng.standard_normal(shape) for shape in ((n, inputs), (outputs, inputs), (outputs,))]
        agrees(lab, "linear", linear, arrays, "xwb", {
            "x": "gx = gy w: each input is in all outputs", "w": "gw = gy^T x: w is used for all n rows",
            "b": "b is added to all n rows, so its gradient is a sum over them"})


@step("the loss: its value", points=10)
def loses(lab: Lab) -> None:
    by_hand(lab)
    for n, count in ((1, 2), (3, 4), (6, 10)):
        arrays = [lab.rng.standard_normal((n, count)), classes(lab.rng, n, count)]
        lab.same("softmax_cross_entropy", lab.call("value", "softmax_cross_entropy", arrays), loss(*arrays),
                 f"the loss of {n} rows of {count} classes", todo="the mean over the rows of -log softmax(x)[class]")


@step("the loss of large numbers", points=10)
def is_stable(lab: Lab) -> None:
    for shift in (1000.0, -1000.0):
        arrays = [lab.rng.standard_normal((3, 4)) + shift, classes(lab.rng, 3, 4)]
        lab.same("softmax_cross_entropy", lab.call("value", "softmax_cross_entropy", arrays), loss(*arrays),
                 f"the loss of numbers near {shift:g}", todo="subtract each row's maximum from x before the powers; "
                 "softmax stays the same")


@step("the loss: its gradient", points=15)
def loses_back(lab: Lab) -> None:
    by_hand(lab)
    for n, count in ((1, 3), (4, 3), (5, 10)):
        mixed = lab.rng.dirichlet(np.ones(count), n)
        for t in (classes(lab.rng, n, count), mixed):
            agrees(lab, "softmax_cross_entropy", loss, [lab.rng.standard_normal((n, count)), t], "x", {
                "x": "gx = gy (softmax(x) - t) / n"})


@step("a classifier of both learns", points=10)
def learns(lab: Lab) -> None:
    t = classes(lab.rng, 60, 3)
    x = 2 * t @ lab.rng.standard_normal((3, 5)) + lab.rng.standard_normal((60, 5)) * 0.3
    w, b = np.zeros((3, 5)), np.zeros(3)
    losses = lab.call("trained", x, t, w, b, 0.5, 60)
    lab.same("softmax_cross_entropy", losses[0], np.log(3), "the first loss, of three classes alike,")
    for _ in range(60):
        y = linear(x, w, b)
        p = np.exp(y - y.max(1, keepdims=True))
        gy = (p / p.sum(1, keepdims=True) - t) / len(x)
        w, b = w - 0.5 * np.einsum("no,ni->oi", gy, x), b - 0.5 * gy.sum(0)
        last = loss(y, t)
    lab.same("softmax_cross_entropy", losses[-1], last, "the loss after 60 steps", atol=1e-6, rtol=1e-4,
             todo="the steps before this one say which gradient is wrong")
