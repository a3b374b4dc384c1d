"""Which side of a split something is on, decided by what it is: what was trained on is never tested with later."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

FOR_THE_TEST = 0.2


def chances(names: Iterable[str], seed: int) -> np.ndarray:
    """For each name a number from 0 to 1, drawn by the seed and the name alone.

    >>> chances(["a", "b", "a"], seed=0).round(3).tolist()
    [0.664, 0.486, 0.664]
    """
    return np.array([int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "big") / 2**64
                     for name in names])


def for_the_test(chance: np.ndarray) -> np.ndarray:
    """Which are for the test: about one of five and at least one, but none of two.

    Each number decides for itself, but where all are above 0.2: then the least is for the test, until there is a lower
    one. So more numbers may move that one to the training, and nothing from there to the test.

    >>> for_the_test(np.array([0.9, 0.1, 0.3])).tolist(), for_the_test(np.array([0.9, 0.3])).tolist()
    ([False, True, False], [False, False])
    """
    return chance <= (max(FOR_THE_TEST, chance.min()) if len(chance) > 2 else -1)
