"""Which side of a split an item is on. The item itself decides it: what was trained on is never tested with later."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

from ..core import rng

FOR_THE_TEST = 0.2
SEEDS = 100                                # seeds that are tried, to find one that splits a small set


def chances(names: Iterable[str], seed: int) -> np.ndarray:
    """For each name a number from 0 to 1, drawn by the seed and the name alone.

    >>> chances(["a", "b", "a"], seed=0).round(3).tolist()
    [0.664, 0.486, 0.664]
    """
    seed = rng.checked_seed("split", seed)
    texts = (f"{seed} {name}".encode("utf-8", "surrogateescape") for name in names)        # a file's name may be bytes
    return np.array([int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / 2**64 for text in texts])


def for_the_test(chance: np.ndarray) -> np.ndarray:
    """Which items are for the test: about one in five. Each number decides for its own item, whatever the others are.

    >>> for_the_test(np.array([0.9, 0.1, 0.3])).tolist()
    [False, True, False]
    """
    return chance <= FOR_THE_TEST


def require_two(who: str, classes: Sequence[str], found_by: str, way_out: str) -> None:
    """Refuse data of a single class to train on: any net is right on it, with a loss of 0."""
    if len(classes) < 2:
        raise ValueError(f"{who} has only the class {classes[0]!r}, by {found_by}, but needs two; {way_out}")


def require_both(what: str, names: Iterable[str], seed: int, chosen: np.ndarray) -> None:
    """Refuse a split with an empty side: a ValueError that begins with `what` and names a seed that fills both.

    >>> require_both("mine: two", ["a", "b"], 0, np.array([False, False]))
    Traceback (most recent call last):
    ValueError: mine: two, of which the seed 0 puts none into the test; use seed=5 (--seed 5), or add some
    """
    if 0 < np.count_nonzero(chosen) < len(chosen):
        return
    different = sorted({*names})
    seeds = range(SEEDS if len(different) > 1 else 0)
    other = next((s for s in seeds if 0 < for_the_test(chances(different, s)).sum() < len(different)), None)
    if other is None:
        raise ValueError(f"{what}, too few different ones for two splits; add some")
    raise ValueError(f"{what}, of which the seed {seed} puts {'all' if chosen.all() else 'none'} into the test; use "
                     f"seed={other} (--seed {other}), or add some")


def warn_of_untrained(who: str, labels: np.ndarray, chosen: np.ndarray, classes: Sequence[str], seed: int) -> None:
    """Say which classes have items in the test alone: no net can be right on them."""
    if left := sorted({*labels[chosen].tolist()} - {*labels[~chosen].tolist()}):
        names = dict(enumerate(classes))   # a label without a name is its number
        shown = ", ".join(repr(names.get(label, label)) for label in left[:5]) + ", ..." * (len(left) > 5)
        warnings.warn(f"{who} has nothing to train with of {len(left)} of its classes, {shown}: the seed {seed} puts "
                      "all of them into the test; add some, or use another seed", UserWarning, stacklevel=3)
