"""How threads share rows whose sums they need: as a thread each, some of a warp, a block, or several blocks."""

from __future__ import annotations

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
