"""Which tests run when: the marks `slow` and `deep`, by position in a list. CONTRIBUTING.md says what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

PARAMETERS = type(pytest.param())          # of what pytest.param gives

# Whose deep tests run on the newest Python alone -> why no other Python and no other NumPy can show another fault.
# Their fast and slow tests run on each.
ONCE = {
    "test_replay.py::test_many_steps_of_a_zoo_model":
        "what 1,000 steps show and 20 do not is memory that is used again, which the program lays out",
    "test_labs.py::test_a_wrong_solution_gets_the_sentence_of_its_fault":
        "kernels are compiled by the same g++, and each lab's check runs on the other Python with its solution",
    "test_second.py::test_wrong_rules_are_found":
        "the faults are in rules whose text is the same, and what finds them runs there too",
    "test_hostile_weights.py::test_hostile_files_are_refused_or_load_right_within_bounds":
        "HDF5's library reads the files, of one version in h5py for each Python",
    "test_hostile_formats.py::test_hostile_files_of_keras": "the same",
}


def tiers(count: int, *, fast: int = 0, slow: int | None = None) -> list[str]:
    """The tier of each of so many tests: `fast` of them have "", `slow` of them "slow", and the rest "deep".

    Each group is spread evenly over what the groups before it left. slow=None takes all that is left.

    >>> tiers(6, fast=1, slow=2)
    ['', 'slow', 'deep', 'slow', 'deep', 'deep']
    """
    found = ["deep"] * count
    for size, tier in ((fast, ""), (count if slow is None else slow, "slow")):
        left = [i for i, given in enumerate(found) if given == "deep"]
        size = min(size, len(left))
        for i in range(size):
            found[left[i * len(left) // size]] = tier
    return found


def marks(tier: str) -> tuple[pytest.MarkDecorator, ...]:
    return (getattr(pytest.mark, tier),) if tier else ()


def tiered(values: Iterable[Any], *, fast: int = 0, slow: int | None = None, several: bool = False) -> list[Any]:
    """The values as parameters of a test with the marks of their tiers. several: each value is a tuple with one for
    each of the test's parameters. What is a pytest.param already keeps its id and its marks."""
    found = []
    values = list(values)
    for value, tier in zip(values, tiers(len(values), fast=fast, slow=slow), strict=True):
        known = value if isinstance(value, PARAMETERS) else pytest.param(*(value if several else (value,)))
        found.append(pytest.param(*known.values, id=known.id, marks=(*known.marks, *marks(tier))))
    return found


def of_files(files: Iterable[Path], name: Callable[[Path], str] = lambda file: file.stem, deep: Iterable[str] = ()
             ) -> list[Any]:
    """Files as slow parameters of a test, by their names; those that take longest, which `deep` names, are deep."""
    return [pytest.param(file, id=name(file), marks=marks("deep" if name(file) in deep else "slow")) for file in files]
