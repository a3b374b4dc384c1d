"""The steps of lab 2. What is right is NumPy's, or a sum over all indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from labkit import Lab, shapes, step

Shape = tuple[int, ...]


def repeated(rng: np.random.Generator) -> tuple[Shape, Shape]:
    """A shape, and one that is broadcast to it."""
    to = shapes(rng, 1, (2, 3, 4), 4)[0]
    kept = to[int(rng.integers(len(to))):]
    return to, tuple(1 if rng.random() < 0.5 else n for n in kept)


def sizes(lab: Lab, name: str, got: Any, expected: Shape, what: str, todo: str) -> None:
    """A tuple of ints is what it must be."""
    if list(got) != list(expected):
        raise lab.wrong(name, f"{what} is {tuple(got)} but must be {tuple(expected)}; {todo}")


@step("strides of a shape", points=10)
def steps(lab: Lab) -> None:
    for shape in [(2, 3, 4), (5,), (), *shapes(lab.rng, 10, (2, 3, 4))]:
        sizes(lab, "strides", lab.call("strides", shape), np.zeros(shape, np.int8).strides, f"strides({shape})",
              "the last axis has stride 1, and each other one the product of the sizes behind it")


@step("the place of an index, also in a transposed view", points=15)
def places(lab: Lab) -> None:
    for shape in [(2, 3), *shapes(lab.rng, 5, (1, 2, 3))]:
        along = np.zeros(shape, np.int8).strides
        index = tuple(int(lab.rng.integers(n)) for n in shape)
        lab.same("place", lab.call("place", index, along), np.ravel_multi_index(index, shape),
                 f"place({index}, {along})")
        view = np.zeros(shape, np.int8).T
        turned, strides = lab.call("transposed", shape, along)
        sizes(lab, "transposed", turned, view.shape, f"the shape of the transposed {shape}", "turn the axes round")
        sizes(lab, "transposed", strides, view.strides, f"the strides of the transposed {shape}",
              "no number moves, so each axis keeps its stride")


@step("the shape of two that fit", points=15)
def fits(lab: Lab) -> None:
    pairs = [((5, 1, 3), (4, 1)), ((), (2, 3)), ((1,), (1, 1)), ((0, 2), (1,)), ((2, 1), (3,))]
    pairs += [repeated(lab.rng)[::int(lab.rng.choice([1, -1]))] for _ in range(10)]
    for x, y in pairs:
        sizes(lab, "broadcast_shape", lab.call("broadcast_shape", x, y), np.broadcast_shapes(x, y),
              f"the shape of {x} and {y}", "align them at their last axes; an axis of size 1 takes the other's size")


@step("two that do not fit raise ValueError", points=10)
def refuses(lab: Lab) -> None:
    for x, y in (((2, 3), (2,)), ((3,), (4,)), ((2, 1, 5), (3, 4)), ((0,), (2,))):
        kind, text = lab.call("refused", x, y)
        if kind != "ValueError":
            raise lab.wrong("broadcast_shape", f"{x} and {y} give {kind or 'a shape'} but must raise ValueError; sizes "
                            "that differ fit only if one of them is 1")
        if str(x) not in text or str(y) not in text:
            raise lab.wrong("broadcast_shape", f"the error of {x} and {y} says {text!r}; name both shapes in it")


@step("strides that repeat numbers", points=15)
def repeats(lab: Lab) -> None:
    for to, shape in [((5, 4, 3), (4, 1)), *(repeated(lab.rng) for _ in range(10))]:
        array = np.zeros(shape, np.int8)
        got = list(lab.call("broadcast_strides", shape, array.strides, to))
        expected = np.broadcast_to(array, to).strides
        if len(got) != len(to) or any(there != right for there, right, n in zip(got, expected, to) if n > 1):
            raise lab.wrong("broadcast_strides", f"of {shape} read as {to} it gives {tuple(got)} but must give "
                            f"{expected}; an axis that is new, or of size 1, repeats its numbers: stride 0")


@step("a product of two that are broadcast", points=15)
def multiplies(lab: Lab) -> None:
    for x_shape, y_shape in [((2, 3), (2, 3)), ((2, 1), (3,)), *(repeated(lab.rng) for _ in range(6))]:
        x, y = (lab.rng.standard_normal(shape) for shape in (x_shape, y_shape))
        numbers, shape = lab.call("multiply", x.ravel().tolist(), x_shape, y.ravel().tolist(), y_shape)
        sizes(lab, "multiply", shape, (x * y).shape, f"the shape of {x_shape} * {y_shape}", "use broadcast_shape")
        lab.same("multiply", numbers, (x * y).ravel(), f"{x_shape} * {y_shape} in memory",
                 todo="read both by their broadcast strides")


@step("a gradient in its input's shape", points=20)
def sums(lab: Lab) -> None:
    for to, shape in [((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 3), ()), ((2, 3), (2, 3)), ((4, 2, 3), (1, 3)),
                      *(repeated(lab.rng) for _ in range(8))]:
        gradient, expected = lab.rng.standard_normal(to), np.zeros(shape)
        for index in np.ndindex(*to):
            kept = index[len(to) - len(shape):]
            expected[tuple(i if n > 1 else 0 for i, n in zip(kept, shape))] += gradient[index]
        got = lab.call("unbroadcast", gradient, shape)
        lab.same("unbroadcast", got, expected, f"the gradient of {shape}, broadcast to {to},",
                 todo="sum over the new axes, and over those of size 1 with keepdims=True")
