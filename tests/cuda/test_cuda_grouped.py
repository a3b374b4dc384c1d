"""Convolution in thin groups, and with dilation: on given and on random shapes, emulated and on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.compiler import skip_without_compiler
from checks.grouped import CASES, KINDS, drawn, is_right
from emulator import Emulator
from tiers import tiered

from minidl.ops import cuda
from minidl.ops.common.geometry import conv_geometry
from minidl.ops.cuda import conv, launch
from minidl.ops.cuda.conv import grouped

MANY = 300


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    skip_without_compiler()
    with Emulator(tmp_path_factory.mktemp("emulated")).running() as running:
        yield running


@pytest.mark.parametrize(("case", "kind"), tiered(itertools.product(CASES, KINDS), slow=4, several=True))
def test_emulated(case: tuple[Any, ...], kind: str, emulated: Emulator) -> None:
    is_right(kind, *case)


@pytest.mark.parametrize("seed", tiered(range(60), slow=1))
def test_random_shapes_emulated(seed: int, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """On four multiprocessors, and on one."""
    if seed % 2:
        monkeypatch.setattr(launch, "multiprocessors", lambda: 1)
    grouped._plan.cache_clear()
    grouped._grad_w_plan.cache_clear()
    is_right(list(KINDS)[seed % 4], *drawn(seed, 9))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_random_shapes(kind: str, part: int) -> None:
    for seed in range(part, MANY, 4):
        is_right(kind, *drawn(seed))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind: str, case: tuple[Any, ...]) -> None:
    is_right(kind, *case)
    is_right(kind, *case, directions=("y",), act="relu")


# ---------------------------------------------------------------- which algorithm
THIN = conv_geometry((2, 8, 9, 9), (8, 1, 3, 3), None, 1, 1, "auto", 8)


def test_others_refuse_groups_and_dilation() -> None:
    for direction in ("y", "dx", "dw"):
        for name, row in conv.ALGORITHMS.items():
            said = conv.refusal(name, direction, THIN, np.dtype(np.float32))
            assert (said is None) == (name == "grouped"), (name, said)
            assert said != "it has neither groups nor dilation" or getattr(row, direction)
    dense = conv_geometry((2, 8, 9, 9), (8, 8, 3, 3), None, 1, 1, "auto")
    tried = conv.ALGORITHMS["grouped"].tried
    assert callable(tried)
    assert not tried("y", dense)


def test_filters_of_many_rows_are_refused() -> None:
    long = conv_geometry((2, 8, 40, 9), (8, 1, 33, 3), None, 1, 1, "grouped", 8)
    assert conv.refusal("grouped", "y", long, np.dtype(np.float32)) == "filters have more than 32 rows"


def test_a_group_is_never_part_of_a_region() -> None:
    from minidl.ops.cuda.region import lines
    for g in (THIN, conv_geometry((2, 8, 3, 3), (8, 1, 3, 3), None, 1, 0, "auto", 8)):
        with pytest.raises(lines.Refused):
            lines._whole(g)
    assert cuda.CONV_ALGORITHMS[-2:] == ("few_channels", "auto")
