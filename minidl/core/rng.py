"""Counter-based randomness: a seed and a counter decide every draw (Philox; Salmon et al., SC 2011).

Each consumer (an initialiser, a call of `rand` or dropout) takes one key. The same seed and the same order of
consumers give the same bits, whatever number of values each of them draws.

Code that makes an item or a batch of data draws from its own stream (`stream_of`): threads make items ahead, and a
training that is resumed skips them. Otherwise there is one stream of keys for the process, so what several threads draw
from it depends on which comes first. A thread that calls `manual_seed` has its own stream from then on: several
trainings in one process are reproducible if each seeds its own thread.
"""

from __future__ import annotations

import threading
from hashlib import blake2b

import numpy as np

from .mode import mode

Key = tuple[int, int]


class _Stream:
    """A seed, and the counter of its next key."""

    __slots__ = "counter", "lock", "seed"

    def __init__(self, seed: int, counter: int = 0):
        self.seed, self.counter, self.lock = seed, counter, threading.Lock()

    def draw(self) -> int:
        with self.lock:
            self.counter += 1
            return self.counter - 1


_shared = _Stream(0)                       # of the process
_apart = 0                                 # what `set_rank` adds to the seeds of draws


class _Own(threading.local):
    stream: _Stream | None = None          # this thread's
    within: tuple[int, ...] = ()           # the numbers of the `stream_of` that it is in


_own = _Own()


def manual_seed(seed: int) -> None:
    """Restart minidl's randomness (initialisers, dropout) from a seed, an int in [0, 2**64).

    On the main thread: for the process, except threads that have called this. On another thread: for that thread alone.
    From then on it draws what the main thread of another process would draw from the same seed, whatever others draw.

    >>> manual_seed(7); a = generator().random()
    >>> manual_seed(7); a == generator().random()
    True
    """
    set_state((checked_seed("manual_seed", seed), 0))


def checked_seed(who: str, seed: object) -> int:
    """A seed as an int. Raises ValueError in the name of `who` for anything else: 1.5 would be 1, and so would True."""
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise ValueError(f"{who}: seed is {seed!r} but must be an int in [0, 2**64)")
    return int(seed)


def get_state() -> Key:
    """(seed, counter) of the key that this thread draws next; it draws none.

    >>> manual_seed(7); a = generator().random(); state = get_state(); b = generator().random()
    >>> set_state(state); b == generator().random()
    True
    """
    mode.recorder.refuse("looks at the state of the random numbers")
    stream = _own.stream or _shared
    return stream.seed, stream.counter


def set_state(state: Key) -> None:
    """Go on from where `get_state` was called: for the process or for this thread alone, as in `manual_seed`.

    Raises ValueError for anything but two ints in [0, 2**64) and [0, 2**63).
    """
    global _shared
    require_state(state)
    mode.recorder.refuse("seeds the random numbers")
    stream = _Stream(*state)
    if not _own.within and threading.current_thread() is threading.main_thread():
        _shared = stream
    else:
        _own.stream = stream


def require_state(state: Key) -> None:
    """Raises ValueError for what is not a state."""
    if not (isinstance(state, (tuple, list)) and list(map(type, state)) == [int, int]
            and 0 <= state[0] < 2**64 and 0 <= state[1] < 2**63):
        raise ValueError(f"set_state: state is {state!r} but must be (seed, counter), ints in [0, 2**64) and "
                         "[0, 2**63); pass what get_state gave")


class stream_of:
    """Within this, what this thread draws is decided by these numbers alone, on all ranks; a `manual_seed` within it
    ends with it.

    >>> manual_seed(7)
    >>> with stream_of(1, 2): a = generator().random()
    >>> b = generator().random()
    >>> with stream_of(1, 2): a == generator().random() != b
    True
    """

    __slots__ = "before", "numbers"        # a class takes half the time: it is entered for each item of data

    def __init__(self, *numbers: int):
        self.numbers = numbers

    def __enter__(self) -> None:
        mode.recorder.refuse("seeds the random numbers")
        self.before = _own.stream, _own.within
        digest = blake2b(repr(self.numbers).encode(), digest_size=8).digest()
        _own.stream, _own.within = _Stream(int.from_bytes(digest, "little")), self.numbers

    def __exit__(self, *_: object) -> None:
        _own.stream, _own.within = self.before


def numbers_within() -> tuple[int, ...]:
    """The numbers of the `stream_of` that this thread is in; none outside."""
    return _own.within


def set_rank(rank: int) -> None:
    """Make the keys of `next_key` different from those of other processes that have the same seed: dropout leaves out
    different values on each, while initialisers and `rand` draw the same."""
    global _apart
    _apart = rank * 0x9E3779B97F4A7C15


def next_key() -> Key:
    """This thread's next (seed, counter) pair; no two calls after one `manual_seed` give the same."""
    stream = _own.stream or _shared
    return (stream.seed + (0 if _own.within else _apart)) % 2**64, stream.draw()


def next_shared_key() -> Key:
    """As `next_key`, but the same on all ranks."""
    stream = _own.stream or _shared
    return stream.seed, stream.draw()


def generator(key: Key | None = None) -> np.random.Generator:
    """A NumPy generator on the given key, or on the next one, which all ranks share.

    >>> bool(generator((1, 2)).random() == generator((1, 2)).random())
    True
    """
    key = next_shared_key() if key is None else key
    return np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))
