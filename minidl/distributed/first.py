"""What only the first rank does, with a result that all ranks get."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .failure import OtherRank
from .world import World, current

T = TypeVar("T")


def by_first(work: Callable[[], T], world: World | None = None, help_: Callable[[], object] | None = None) -> T:
    """work(), which rank 0 does; all ranks are given its result, an object that can be pickled.

    help_: what the others do, with rank 0, whenever `ask(world)` is called within work.

    Raises what work raises, on rank 0, and OtherRank on the others.

    >>> by_first(lambda: 6 * 7)
    42
    """
    world = current() if world is None else world
    if world.rank == 0:
        try:
            result = work()
        except BaseException:
            world.tell(("failed", None))
            raise
        return world.tell(("done", result))[1]
    while True:
        what, told = world.tell(("", None))
        if what == "done":
            return told  # type: ignore[return-value]  # rank 0's result
        if what == "failed" or help_ is None:
            raise OtherRank("distributed: rank 0 has failed, and says why")
        help_()


def ask(world: World) -> None:
    """Within the work of `by_first`: the other ranks are to help."""
    world.tell(("help", None))
