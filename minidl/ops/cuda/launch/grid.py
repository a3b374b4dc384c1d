"""How the work of a launch is shared among blocks and threads."""

from .device import multiprocessors

THREADS = 256                              # per block, unless a kernel needs another number
LONG_ROW = 1024                            # elements of a row from which a whole block shares it
MAX_BLOCKS_AT_ONCE = 512                   # which a large GPU runs at the same time


def blocks(count: int, threads: int) -> int:
    """How many blocks of some threads cover a count; at least one, since a grid is never empty."""
    return max(1, -(-count // threads))


def spread(count: int) -> int:
    """How many blocks of a kernel whose threads stride over a count: at most 16 per multiprocessor."""
    return min(blocks(count, THREADS), 16 * multiprocessors())


def lanes_per_row(size: int, inner: int = 1, rows: int = 0) -> int:
    """How many threads share a row: one if elements are apart, so that neighbours read neighbours. rows: how many
    there are; if a warp for each would leave a GPU idle, they have a block each."""
    if inner > 1:
        return 1
    long = THREADS if 0 < rows <= MAX_BLOCKS_AT_ONCE else LONG_ROW
    return THREADS if size >= long else min(32, 1 << max(0, size - 1).bit_length())
