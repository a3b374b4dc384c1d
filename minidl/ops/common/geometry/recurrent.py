"""Kinds of recurrences, by what their steps have."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """Of a kind: the gates, the Tensors of the state, and for each element of h the values that a step keeps for its
    gradient, in addition to the state."""

    gates: int
    states: int
    kept: int


SIZES = {"lstm": Sizes(4, 2, 4), "gru": Sizes(3, 1, 4), "tanh": Sizes(1, 1, 0), "relu": Sizes(1, 1, 0)}
