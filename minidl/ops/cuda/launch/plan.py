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
    """One launch of a kernel of a file under ops/cuda. struct: the one that the kernel takes of this plan, with its
    arrays and numbers; cost: what it will take, estimated in a unit of its planner's own; splits: how many parts of
    each result it leaves, which are added up then."""

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
        """What launches it, given all that the kernel takes. Whoever asks for it has the kernel compiled: a candidate
        is not asked."""
        return kernel(self.file, self.kernel, *self.constants).sized(self.grid, (self.threads,), self.shared)

    def of(self, *constants: Constant) -> Plan:
        """The same with further constants, behind its own."""
        return replace(self, constants=(*self.constants, *constants))


def best(candidates: Iterable[Candidate | None],
         cost: Callable[[Candidate], Any] = attrgetter("cost")) -> Candidate | None:
    """Of what fits, which is not None, that which costs least, and of several such the first; None if nothing fits."""
    return min((each for each in candidates if each is not None), key=cost, default=None)


def prepare(*plans: Plan | None) -> None:
    """Have the kernels of launches that follow each other compiled, all at once. None: there is no such launch."""
    for plan in filter(None, plans):
        _ = plan.start
