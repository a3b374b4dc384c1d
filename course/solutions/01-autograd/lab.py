"""Lab 1: automatic differentiation of scalars, solved."""

from __future__ import annotations

import math
from collections.abc import Callable


class Value:
    """A number that knows from which others it was computed, and the derivative of a result by it, `grad`."""

    def __init__(self, data: float, inputs: tuple[Value, ...] = ()):
        self.data, self.grad, self.inputs = float(data), 0.0, inputs
        self._backward: Callable[[], None] = lambda: None      # adds to the inputs' grad, from this one's

    def __add__(self, other: Value) -> Value:
        result = Value(self.data + other.data, (self, other))

        def chain_rule() -> None:
            self.grad += result.grad
            other.grad += result.grad
        result._backward = chain_rule
        return result

    def __mul__(self, other: Value) -> Value:
        result = Value(self.data * other.data, (self, other))

        def chain_rule() -> None:
            self.grad += other.data * result.grad
            other.grad += self.data * result.grad
        result._backward = chain_rule
        return result

    def tanh(self) -> Value:
        """(e^x - e^-x) / (e^x + e^-x)."""
        result = Value(math.tanh(self.data), (self,))

        def chain_rule() -> None:
            self.grad += (1 - result.data ** 2) * result.grad
        result._backward = chain_rule
        return result

    def order(self) -> list[Value]:
        """All values that this one was computed from, and itself: inputs before results, each once."""
        found, seen, open_ = [], set(), [(self, False)]
        while open_:
            value, inputs_done = open_.pop()
            if inputs_done:
                found.append(value)
            elif value not in seen:
                seen.add(value)
                open_ += [(value, True), *((each, False) for each in value.inputs)]
        return found

    def backward(self) -> None:
        """Set the grad of each value that this one was computed from to the derivative of this one by it."""
        for value in self.order():
            value.grad = 0.0
        self.grad = 1.0
        for value in reversed(self.order()):
            value._backward()
