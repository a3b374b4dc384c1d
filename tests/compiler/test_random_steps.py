"""Random steps (tests/random_steps.py): compiled equals plain, or is refused; and planted faults are found.

More of both: python tests/random_steps.py --programs 10000 --processes 2, and --plant all --programs 1500.
"""

from __future__ import annotations

import re

import planted
import pytest
import random_steps
from tiers import tiered
from twins import Verdict


@pytest.fixture(scope="module", autouse=True)
def _begun() -> None:
    """What the first program imports and prepares is no test's own."""
    random_steps.run_many(0, range(1), "cpu", frozenset())


def differences(tally: random_steps.Tally, device: str = "cpu", without: frozenset[str] = frozenset()) -> str:
    """Those that differ, and the first of them shrunk, to be read in a test's output."""
    if not tally.different:
        return ""
    number, why = tally.different[0]
    small = random_steps.shrunk(random_steps.program(0, number, without), device)
    return f"{tally}\nprogram {number}: {why}\n{small.source()}"


@pytest.mark.parametrize("first", tiered(range(0, 300, 2), fast=3, slow=12))
def test_random_steps_are_equal_or_refused(first: int) -> None:
    tally = random_steps.run_many(0, range(first, first + 2), "cpu", frozenset())
    assert not tally.different, differences(tally)


@pytest.mark.deep
def test_random_steps_are_replayed() -> None:
    """Few fail or are refused; and a comparison of recordings with recordings shows nothing."""
    tally = random_steps.run_many(1, range(40), "cpu", frozenset())
    assert tally.replays > 0.4 * tally.calls, str(tally)
    assert tally.errors <= 2, str(tally)
    assert tally.refused <= 5, str(tally)


@pytest.mark.usefixtures("handed_out_again")
@pytest.mark.parametrize("first", tiered(range(0, 60, 4), slow=3))
def test_random_steps_whose_results_lie_where_others_lay(first: int) -> None:
    tally = random_steps.run_many(2, range(first, first + 4), "cpu", frozenset())
    assert not tally.different, differences(tally)


@pytest.mark.gpu
def test_gpu_random_steps_are_near_or_refused() -> None:
    tally = random_steps.run_many(0, range(500), "cuda", random_steps.NOT_ON_CUDA)
    assert not tally.different, differences(tally, "cuda", random_steps.NOT_ON_CUDA)
    assert tally.refused <= 25, str(tally)
    assert tally.replays > 0.4 * tally.calls, str(tally)


# Where to look first for faults that few programs show: which did when this was written. Programs may change since all
# are tried.
BEGIN = {
    "an argument's requires_grad ignored": 21, "arguments that were the same may change": 64, "cells not guarded": 75,
    "cse of two gradients": 38, "fusion across an effect": 93, "globals and attributes not guarded": 15,
    "one argument twice ignored": 15, "rebound data not guarded": 52, "requires_grad not guarded": 54,
    "what the step itself changes is trusted": 62}


@pytest.mark.parametrize("name", tiered(sorted(planted.PLANTS.keys() - planted.LATE), slow=2))
def test_a_planted_fault_is_found(name: str) -> None:
    """By a program that is equal or refused without it."""
    assert random_steps.found_by(name, 150, begin=BEGIN.get(name, 0)) is not None


def test_a_search_that_begins_late_goes_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(random_steps, "program", lambda seed, number, without: tried.append(number))
    assert random_steps.found_by("cells not guarded", 5, begin=3) is None
    assert tried == [3, 4, 0, 1, 2]


@pytest.mark.parametrize("name", sorted(planted.LATE))
def test_a_plant_that_is_found_late_fits(name: str) -> None:
    """What finds it is --plant all."""
    with planted.planted(name):
        pass


def test_a_plant_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = planted.Plant("minidl.compiler.replay:arrays_of", "no such words", "pass")
    monkeypatch.setitem(planted.PLANTS, "mine", plant)
    with pytest.raises(LookupError, match=r"planted: minidl\.compiler\.replay:arrays_of has 0 times 'no such words' "
                                          r"but must have it once; adapt PLANTS\['mine'\] to the source$"), \
            planted.planted("mine"):
        pass


def test_a_program_is_shrunk() -> None:
    """To the lines that a difference needs: here, a line that reads the batch's labels."""
    p = random_steps.program(0, 3)

    def differs(candidate: random_steps.Program) -> bool:
        return "cross_entropy" in candidate.source() and bool(candidate.calls)
    if not differs(p):
        p.body.insert(0, random_steps.Line("ops.cross_entropy(x, labels)"))
    small = random_steps.shrunk(p, "cpu", differs)
    assert (len(small.body), len(small.world), len(small.calls)) == (1, 0, 1)


def test_the_same_seed_gives_the_same_program() -> None:
    assert random_steps.program(5, 17).source() == random_steps.program(5, 17).source()
    assert random_steps.program(5, 17).source() != random_steps.program(5, 18).source()


def test_a_tally_counts() -> None:
    tally, p = random_steps.Tally(), random_steps.program(0, 3)
    tally.add(3, p, Verdict("different", "why", 9, 5, [False] * 4 + [True] * 5))
    tally += tally.__class__()
    assert (tally.programs, tally.calls, tally.replays, tally.different) == (1, 9, 5, [(3, "why")])
    assert str(tally).startswith("programs 1, calls 9, replays 5 (55.6 %), refused 0, different 1, not run 0\n")


def _ran(*options: str) -> int:
    return random_steps.main([*options, "--shrink", "0"])


def test_a_long_run_says_how_far_it_is_and_what_differs(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def many(seed: int, numbers: range, *_: object) -> random_steps.Tally:
        return random_steps.Tally(len(numbers), different=[(n, "as told") for n in numbers if n == 25])

    monkeypatch.setattr(random_steps, "run_many", many)
    monkeypatch.setattr(random_steps, "REPORT", 0)
    assert _ran("--programs", "50", "--seed", "7") == 1
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"20 of 50 programs, \d+ s, 0 different", lines[0])
    assert lines[1] == "different: --seed 7 --program 25: as told"
    assert re.fullmatch(r"50 of 50 programs, \d+ s, 1 different", lines[3])
    assert lines[4].startswith("programs 50, ")


def test_a_long_run_ends_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert _ran("--programs", "50", "--seconds", "0") == 0
    assert capsys.readouterr().out.startswith("programs 0, ")


@pytest.mark.parametrize("name", planted.PLANTS)
def test_a_fault_can_be_planted(name: str) -> None:
    """Its words are in the function that it names, once: a search with one that is not there would find nothing."""
    assert planted._faulty(name) is not planted._found(planted.PLANTS[name].where)
