"""The steps of lab 1: each operation alone, the order, then whole expressions beside finite differences."""

from __future__ import annotations

import math

import numpy as np
from labkit import Lab, Wrong, step

Program = list[tuple[str, list[int]]]      # an operation, and which of the numbers before it are its inputs
METHOD = {"+": "__add__", "*": "__mul__", "tanh": "tanh"}
EPS = 1e-5


def computed(numbers: list[float], program: Program) -> float:
    """The last number of a program."""
    values = list(numbers)
    for op, places in program:
        x, y = values[places[0]], values[places[-1]]
        values.append(x + y if op == "+" else x * y if op == "*" else math.tanh(x))
    return values[-1]


def differences(numbers: list[float], program: Program) -> list[float]:
    """Central differences of a program's last number by each of its inputs."""
    found = []
    for at in range(len(numbers)):
        ends = [computed([each + sign * EPS * (at == i) for i, each in enumerate(numbers)], program)
                for sign in (1, -1)]
        found.append((ends[0] - ends[1]) / (2 * EPS))
    return found


def alone(lab: Lab, op: str) -> None:
    """An operation's value, and its derivatives, which are added to what is there."""
    for _ in range(5):
        numbers = [float(n) for n in lab.rng.uniform(-2, 2, 1 if op == "tanh" else 2)]
        gradient, before = (float(n) for n in lab.rng.uniform(0.5, 2, 2))
        program = [(op, [0, len(numbers) - 1])]
        value, grads = lab.call("one", op, numbers, gradient, before)
        shown = f"tanh({numbers[0]:.3g})" if op == "tanh" else f"{numbers[0]:.3g} {op} {numbers[1]:.3g}"
        lab.same(METHOD[op], value, computed(numbers, program), shown)
        by = differences(numbers, program)
        if np.allclose(grads, np.multiply(gradient, by), 1e-6, 1e-8):
            raise lab.wrong(METHOD[op], f"the gradient of {shown} replaces the one that was there; add to it with +=, "
                            "since a value may be used more than once")
        if np.allclose(grads, np.add(before, by), 1e-6, 1e-8):
            raise lab.wrong(METHOD[op], f"the gradient of {shown} leaves out result.grad; multiply by it (chain rule)")
        lab.same(METHOD[op], grads, np.add(before, np.multiply(gradient, by)), f"the gradient of {shown} by its inputs",
                 todo=f"its derivatives are {', '.join(f'{each:.4g}' for each in by)}; times result.grad = "
                 f"{gradient:.4g}, added to {before:.4g}")


@step("a sum and its gradient", points=10)
def adds(lab: Lab) -> None:
    alone(lab, "+")


@step("a product and its gradient", points=15)
def multiplies(lab: Lab) -> None:
    alone(lab, "*")


@step("tanh and its gradient", points=15)
def squashes(lab: Lab) -> None:
    alone(lab, "tanh")


def drawn(rng: np.random.Generator, inputs: int, lines: int) -> Program:
    """A program in which values are used more than once, and all lead to the last."""
    program: Program = []
    for line in range(lines):
        there, op = inputs + line, str(rng.choice(["+", "*", "tanh"]))
        first = there - 1 if line else 0
        program.append((op, [first] if op == "tanh" else [first, int(rng.integers(there))]))
    return program


@step("the order: inputs before results, each once", points=15)
def orders(lab: Lab) -> None:
    for lines in (1, 3, 8, 20):
        program = drawn(lab.rng, 2, lines)
        got, reached = lab.call("ordered", [0.5, -0.3], program), {lines + 1}
        for at in range(lines + 1, 1, -1):
            reached |= {*program[at - 2][1]} if at in reached else set()
        if sorted(set(got)) != sorted(reached):
            raise lab.wrong("order", f"it gives {len(set(got))} of the {len(reached)} values of an expression; follow "
                            "the inputs of each value, and end with the value itself")
        if len(got) != len(reached):
            raise lab.wrong("order", f"it gives {len(got)} values for {len(reached)}: one that is used twice comes "
                            "twice; keep a set of those that were seen")
        place = {value: at for at, value in enumerate(got)}
        for at, (op, inputs) in enumerate(program, 2):
            if at in place and any(place[each] > place[at] for each in inputs):
                raise lab.wrong("order", f"the result of {op} comes before one of its inputs; append a value after all "
                                "its inputs")


def shown(program: Program, inputs: int) -> str:
    """A short program in words."""
    lines = []
    for at, (op, places) in enumerate(program, inputs):
        names = [f"x[{place}]" for place in places]
        lines.append(f"x[{at}] = " + (f"tanh({names[0]})" if op == "tanh" else f" {op} ".join(names)))
    return ", ".join(lines) if len(lines) < 4 else f"{len(lines)} operations"


@step("expressions, beside finite differences", points=25)
def agrees(lab: Lab) -> None:
    for lines in (1, 2, 4, 8, 12, 16):
        numbers = [float(n) for n in lab.rng.uniform(-1, 1, 3)]
        program = drawn(lab.rng, 3, lines)
        value, grads = lab.call("gradients", numbers, program, 1)
        text = shown(program, len(numbers))
        lab.same("backward", value, computed(numbers, program), f"the value of {text}")
        lab.same("backward", grads, differences(numbers, program), f"the gradient of {text} by x",
                 todo="start from a grad of 1, and call each _backward once, after those of all that use the value",
                 atol=1e-7)


@step("backward twice gives the same gradient", points=10)
def repeats(lab: Lab) -> None:
    numbers, program = [0.4, -0.7], [("*", [0, 1]), ("tanh", [2]), ("+", [3, 0])]
    grads = [lab.call("gradients", numbers, program, times)[1] for times in (1, 2)]
    lab.same("backward", grads[1], grads[0], "the gradient after a second backward, by input ",
             todo="set all grads to 0 first")


@step("a chain of 5,000 operations", points=10)
def goes_deep(lab: Lab) -> None:
    program: Program = [("+", [0, 0]), *(("+", [at, 1]) for at in range(2, 5001))]
    try:
        _, grads = lab.call("gradients", [0.0, 0.1], program, 1)
    except Wrong as error:
        if "RecursionError" in str(error):
            raise lab.wrong("order", "it calls itself for each input, and Python allows about 1,000 such calls; keep "
                            "the values to visit in a list") from None
        raise
    lab.same("backward", grads, [2.0, 4999.0], "the gradient of a chain of 5,000 sums by input ")
