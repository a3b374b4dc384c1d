"""A region: primitive calls that treat each image of a batch by itself, and the sums over images that gradients are."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple


class Value(NamedTuple):
    """An array among a region's: given, or made by one of its steps."""

    number: int


class Step(NamedTuple):
    """results = primitive(arguments), with Values in the place of arrays."""

    primitive: str
    arguments: tuple[Any, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Region:
    """Steps on batches of n images: all that `region_step` computes. Equal regions are one kernel."""

    n: int
    steps: tuple[Step, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    shapes: tuple[tuple[int, ...], ...]                # of Values, by their numbers
    dtypes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Region({', '.join(step.primitive for step in self.steps)})"


def by_steps(region: Region, backend: ModuleType, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """A region's outputs, by a backend's own primitives: the reference for its region_step."""
    values: dict[Value, Any] = dict(zip(region.inputs, arrays, strict=True))
    for primitive, arguments, results in region.steps:
        made = getattr(backend, primitive)(*(values[a] if isinstance(a, Value) else a for a in arguments))
        values.update(zip(results, made if isinstance(made, tuple) else (made,), strict=True))
    return tuple(values[output] for output in region.outputs)
