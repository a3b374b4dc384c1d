"""What check.py asks of a student's file, in numbers: Values do not leave their process."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def applied(value: type, op: str, inputs: list[Any]) -> Any:
    """An operation on Values."""
    return inputs[0] + inputs[1] if op == "+" else inputs[0] * inputs[1] if op == "*" else inputs[0].tanh()


def one(lab: ModuleType, op: str, numbers: list[float], gradient: float, before: float) -> tuple[float, list[float]]:
    """An operation's value, and what it makes of the inputs' gradients, which were `before`."""
    inputs = [lab.Value(each) for each in numbers]
    result = applied(lab.Value, op, inputs)
    for each in inputs:
        each.grad = before
    result.grad = gradient
    result._backward()
    return result.data, [each.grad for each in inputs]


def built(lab: ModuleType, numbers: list[float], program: list[tuple[str, list[int]]]) -> list[Any]:
    """The Values of a program: its inputs, then the result of each line, an operation and the places of its inputs."""
    values = [lab.Value(each) for each in numbers]
    for op, places in program:
        values.append(applied(lab.Value, op, [values[place] for place in places]))
    return values


def ordered(lab: ModuleType, numbers: list[float], program: list[tuple[str, list[int]]]) -> list[int]:
    """The order of the last Value: places in the program, -1 for what is not in it."""
    values = built(lab, numbers, program)
    places = {id(each): place for place, each in enumerate(values)}
    return [places.get(id(each), -1) for each in values[-1].order()]


def gradients(lab: ModuleType, numbers: list[float], program: list[tuple[str, list[int]]], times: int
              ) -> tuple[float, list[float]]:
    """The last Value's number, and the grad of each input after so many calls of backward."""
    values = built(lab, numbers, program)
    for _ in range(times):
        values[-1].backward()
    return values[-1].data, [each.grad for each in values[:len(numbers)]]
