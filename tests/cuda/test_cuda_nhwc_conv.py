"""Convolution of images in NHWC on wgmma, and the gradient of its image: on random shapes, emulated and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.nhwc_conv import DIRECTIONS, KINDS, drawn_is_right
from checks.sources import compiled
from emulator import COMPILER, Emulator, cupy

from minidl.ops.common.geometry import conv_geometry
from minidl.ops.cuda import launch
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
    """By wgmma, and some by mma."""
    conv._plan.cache_clear()
    monkeypatch.setattr(launch, "compute_capability", lambda: 90 if seed % 3 else 80)
    drawn_is_right(direction, kind, seed, 200, 40)
    assert "conv_nhwc" in emulated.launched
    conv._plan.cache_clear()


@pytest.mark.parametrize("constants", [
    constants for _, constants in conv.CONFIGURATIONS if launch.HOPPER in constants],
    ids=lambda constants: " ".join(str(value) for _, value in constants))
def test_products_are_not_in_turn(constants: tuple[launch.Constant, ...]) -> None:
    """The compiler warns where each wgmma has to wait for the one before."""
    pytest.importorskip("cuda.core", reason="cuda.core is not installed: nothing compiles CUDA without a GPU")
    log = compiled(launch.source(conv.FILE), constants, 90)
    assert "registers" in log
    assert "C75" not in log


G = conv_geometry((2, 3, 4, 4), (5, 3, 3, 3), None, 1, 1, "gemm")


def y(dtype: Any = np.float32, channels: int = 3, precision: str = "tf32") -> Any:
    return conv.y(cupy.zeros((2, 4, 4, channels), dtype), cupy.zeros((5, 3, 3, 3), np.float32), None, G,
                  precision=precision)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "float64": (lambda: y(np.float64), TypeError,
                "conv2d_nhwc: the image is of float64 but must be of float32, or bf16 as uint16; convert it"),
    "another shape": (lambda: y(channels=4), ValueError,
                      r"conv2d_nhwc: the image has shape \(2, 4, 4, 4\) but the geometry says \(2, 4, 4, 3\)"),
    "fp32": (lambda: y(precision="fp32"), ValueError,
             "conv2d_nhwc: the precision is 'fp32' but must be tf32, 3xtf32 or bf16; set another")}


@pytest.mark.parametrize("what", WRONG)
def test_errors(what: str, emulated: Emulator) -> None:
    call, kind, message = WRONG[what]
    with pytest.raises(kind, match=message):
        call()


def test_devices_without_the_means(emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "most_shared", lambda: 40 << 10)
    conv._plan.cache_clear()
    with pytest.raises(ValueError, match=r"conv2d_nhwc: sums of 27 terms in TF32X3 take 49152 bytes of shared memory"):
        y(precision="3xtf32")
    monkeypatch.setattr(launch, "compute_capability", lambda: 75)
    with pytest.raises(ValueError, match=r"conv2d_nhwc: the GPU's compute capability is 7.5 but tf32 and .* 8.0"):
        y()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_random_shapes(direction: str, kind: str) -> None:
    for seed in range(MANY):
        drawn_is_right(direction, kind, seed)
