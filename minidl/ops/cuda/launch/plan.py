"""Plan: a launch as a planner finds it from sizes alone, before anything is compiled; and the choice among several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from ...common.sources import Constant
from .kernels import kernel

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Plan:
    """One launch of a kernel of a file under ops/cuda. struct: the one that the kernel takes from this plan, with its
    arrays and numbers; cost: an estimate of what it will take, in a unit of its planner; splits: how many parts of each
    result it leaves, to be added up then."""

    file: str
    kernel: str
    constants: tuple[Constant, ...]
    grid: tuple[int, ...]
    threads: int
    shared: int = 0                        # bytes
    struct: bytes = b""
    cost: float = 0.0
    splits: int = 1

    @functools.cached_property
    def start(self) -> Callable[..., None]:
        """A function that launches it, given all that the kernel takes. Reading it has the kernel compiled, so it is
        not read for candidates."""
        return kernel(self.file, self.kernel, *self.constants).sized(self.grid, (self.threads,), self.shared)

    def of(self, *constants: Constant) -> Plan:
        """The same with further constants, behind its own."""
        return replace(self, constants=(*self.constants, *constants))


def best(candidates: Iterable[Candidate | None],
         cost: Callable[[Candidate], Any] = attrgetter("cost")) -> Candidate | None:
    """The candidate that costs least, the first of several such; None if nothing fits. What does not fit is None."""
    return min((each for each in candidates if each is not None), key=cost, default=None)


def prepare(*plans: Plan | None) -> None:
    """Have the kernels of launches that follow each other compiled, all at once. None: there is no such launch."""
    for plan in filter(None, plans):
        _ = plan.start
