"""How threads share rows whose sums they need: as a thread each, some of a warp, a block, or several blocks."""

from __future__ import annotations

from collections.abc import Iterable

from .. import launch

ELEMENTS_PER_THREAD = 16                   # up to which a row has more teams,
MAX_THREADS = 1 << 19                      # and so many threads in all
NEIGHBOURS = 32                            # rows beside each other in memory, which a thread each reads as a warp


def shared_out(rows: int, size: int, neighbours: int, most: int) -> tuple[int, int, int]:
    """(lanes, splits, chunk): a row of `size` elements has so many teams, at most `most`, of so many threads, and each
    team so many elements. neighbours: rows whose elements lie beside each other. Sizes alone decide."""
    lanes = 1 if neighbours >= NEIGHBOURS else launch.lanes_per_row(size, rows=rows)
    wanted = min(most, launch.blocks(size, ELEMENTS_PER_THREAD * lanes),
                 launch.blocks(MAX_THREADS, max(1, rows) * lanes))
    chunk = launch.blocks(size, wanted if lanes in (1, launch.THREADS) else 1)
    return lanes, launch.blocks(size, chunk), chunk


def runs(axes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Axes, each (size, steps from an element to the next in some arrays), from the last: those that are one axis in
    all of the arrays as one."""
    found: list[tuple[int, ...]] = []
    for size, *steps in axes:
        if found and steps == [found[-1][0] * step for step in found[-1][1:]]:
            found[-1] = found[-1][0] * size, *found[-1][1:]
        elif size != 1:
            found.append((size, *steps))
    return found
