"""Counter-based randomness: a seed and a counter decide every draw (Philox; Salmon et al., SC 2011).

Each consumer (an initialiser, a dropout layer's call) takes one key. The same seed and the same order of
consumers give the same bits, whatever number of values each of them draws.
"""

from __future__ import annotations

import itertools

import numpy as np

Key = tuple[int, int]

_seed = 0
_counter = itertools.count()


def manual_seed(seed: int) -> None:
    """Restart all of minidl's randomness (initialisers, dropout) from a seed, an int in [0, 2**64).

    >>> manual_seed(7); a = generator().random()
    >>> manual_seed(7); a == generator().random()
    True
    """
    global _seed, _counter
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ValueError(f"manual_seed: seed is {seed!r} but must be an int in [0, 2**64)")
    _seed, _counter = seed, itertools.count()


def next_key() -> Key:
    """The next (seed, counter) pair; no two calls after one `manual_seed` give the same."""
    return _seed, next(_counter)


def generator(key: Key | None = None) -> np.random.Generator:
    """A NumPy generator on the given key, or on the next one.

    >>> bool(generator((1, 2)).random() == generator((1, 2)).random())
    True
    """
    return np.random.Generator(np.random.Philox(key=np.array(next_key() if key is None else key, np.uint64)))
