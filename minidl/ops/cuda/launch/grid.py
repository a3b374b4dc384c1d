"""How the work of a launch is shared among blocks and threads."""

from .device import multiprocessors

THREADS = 256                              # per block, where nothing asks for another number
LONG_ROW = 1024                            # elements of a row from which a whole block shares it


def blocks(count: int, threads: int) -> int:
    """How many blocks of some threads cover a count; at least one, since a grid is never empty."""
    return max(1, -(-count // threads))


def spread(count: int) -> int:
    """How many blocks of a kernel whose threads stride over a count: at most 16 per multiprocessor."""
    return min(blocks(count, THREADS), 16 * multiprocessors())


def lanes_per_row(size: int, inner: int = 1) -> int:
    """How many threads share a row: one where elements are apart, so that neighbours read neighbours."""
    if inner > 1:
        return 1
    return THREADS if size >= LONG_ROW else min(32, 1 << max(0, size - 1).bit_length())
