"""Convolution of images in NHWC on wgmma, and the gradient of its image: on random shapes, emulated and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.nhwc_conv import DIRECTIONS, KINDS, drawn_is_right
from emulator import COMPILER, Emulator

from minidl.ops.cuda.nhwc import conv

MANY = 2000


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    if COMPILER is None:
        pytest.skip("the emulator needs Linux and a C++ compiler, g++ or c++")
    with Emulator(tmp_path_factory.mktemp("emulated")).running() as running:
        yield running


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_emulated(direction: str, kind: str, seed: int, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "takes", lambda g: True)
    drawn_is_right(direction, kind, seed, 200, 40)
    assert "conv_nhwc" in emulated.launched


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_random_shapes(direction: str, kind: str) -> None:
    for seed in range(MANY):
        drawn_is_right(direction, kind, seed)
