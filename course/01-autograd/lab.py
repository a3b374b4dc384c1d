"""Lab 1: automatic differentiation of scalars. Fill the gaps that are marked TODO; README.md says how."""

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
            # TODO: add to self.grad and other.grad, from result.grad
            raise NotImplementedError("add to self.grad and other.grad what the chain rule says, from result.grad")
        result._backward = chain_rule
        return result

    def __mul__(self, other: Value) -> Value:
        # TODO: as __add__
        raise NotImplementedError("return a Value of the product, with its _backward, as __add__ does")

    def tanh(self) -> Value:
        """(e^x - e^-x) / (e^x + e^-x)."""
        # TODO: math.tanh gives the number
        raise NotImplementedError(f"return a Value of {math.tanh(self.data):g}, with its _backward")

    def order(self) -> list[Value]:
        """All values that this one was computed from, and itself: inputs before results, each once."""
        # TODO: a depth-first search, without recursion
        raise NotImplementedError("return the values in topological order: inputs before results, each once")

    def backward(self) -> None:
        """Set the grad of each value that this one was computed from to the derivative of this one by it."""
        # TODO: grads of 0, this one's of 1, then each _backward, results before inputs
        raise NotImplementedError("set all grads to 0 and this one's to 1, then call each _backward, in which order?")
