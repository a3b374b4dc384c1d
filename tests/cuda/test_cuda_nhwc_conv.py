"""Convolution of images in NHWC on wgmma, and the gradient of its image: on random shapes, emulated and on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.compiler import skip_without_compiler
from checks.nhwc_conv import DIRECTIONS, KINDS, drawn_gradients_are_right, drawn_is_right, drawn_maxima_are_right
from emulator import Emulator, cupy
from tiers import tiered

from minidl.ops.common.geometry import conv_geometry
from minidl.ops.cuda import launch
from minidl.ops.cuda.launch import tensor_maps
from minidl.ops.cuda.nhwc.conv import conv, conv_few, conv_images, conv_tma

MANY = 2000
IN_PATCHES = "conv_nhwc_tma", "conv_nhwc_few", "conv_nhwc_images"
encoded = tensor_maps._encoded.__wrapped__  # while kernels are emulated, another stands in its place


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    skip_without_compiler()
    with Emulator(tmp_path_factory.mktemp("emulated")).running() as running:
        yield running


@pytest.mark.parametrize("seed", tiered(range(10), slow=1))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_emulated(direction: str, kind: str, seed: int, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """By wgmma, and some by mma."""
    monkeypatch.setattr(launch, "compute_capability", lambda: 90 if seed % 3 else 80)
    drawn_is_right(direction, kind, seed, 200, 40)
    conv._plan.cache_clear()


@pytest.mark.parametrize(("kernel", "direction", "kind", "seed"), tiered(
    itertools.product(IN_PATCHES, DIRECTIONS, ["tf32", "bf16"], range(8)), slow=2, several=True))
def test_in_patches_emulated(kernel: str, direction: str, kind: str, seed: int, emulated: Emulator,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """On four multiprocessors, and on one, whose blocks take all patches in turn."""
    if seed >= 4:
        monkeypatch.setattr(launch, "multiprocessors", lambda: 1)
    drawn_is_right(direction, kind, seed, 200, 80, kernel)
    conv._plan.cache_clear()


@pytest.mark.parametrize("seed", tiered(range(12), slow=1))
@pytest.mark.parametrize("kind", ["tf32", "bf16"])
@pytest.mark.parametrize("drawn_are_right", [drawn_maxima_are_right, drawn_gradients_are_right])
def test_joined_emulated(drawn_are_right: Callable[..., None], kind: str, seed: int, emulated: Emulator) -> None:
    drawn_are_right(kind, seed, 200, 80)
    conv._plan.cache_clear()


@pytest.mark.parametrize(("sizes", "patch"), [
    ((512, 16, 16, 128, 3, 3), conv_tma.Patch(1, 16, 16, 18, 18, False)),
    ((2000, 7, 7, 256, 3, 3), conv_tma.Patch(16, 1, 8, 3, 10, True)),        # 7 of 8 rows of a square are not missing
    ((2, 9, 200, 64, 1, 1), conv_tma.Patch(2, 16, 8, 16, 8, False)),
    ((4, 250, 250, 64, 250, 250), None)])                                    # a filter that is as large as the image
def test_patches(sizes: tuple[int, ...], patch: conv_tma.Patch | None, emulated: Emulator) -> None:
    """The fewest hold all pixels."""
    found = [found for tile in conv_tma.TILES if (found := conv_tma.tiles(tile, *sizes))]
    assert (min(found, key=lambda each: each.cost).patch if found else None) == patch


def test_maxima_are_worth_more_patches(emulated: Emulator) -> None:
    """Squares of eight rows, which hold windows, have more pixels outside of images; but y need not be stored."""
    g = conv_geometry((2000, 64, 15, 15), (256, 64, 3, 3), None, 1, 1, "gemm")
    sizes = conv._sizes(False, g)
    plain, pooled = conv._copied(None, sizes, 64), conv._copied(None, sizes, 64, "maxima", 1.6)
    assert plain
    assert plain.patch
    assert pooled
    assert pooled.patch
    assert (plain.patch.images, pooled.patch.images) == (True, False)
    assert plain.cost < pooled.cost < 1.6 * plain.cost
    small = conv._sizes(False, conv_geometry((2000, 256, 3, 3), (256, 256, 3, 3), None, 1, 1, "gemm"))
    found = conv._copied(None, small, 64, "maxima", 1.15)
    assert found
    assert found.tile in conv_images.TILES


def test_small_images_take_only_taps_that_meet_them(emulated: Emulator) -> None:
    """Within a 3x3 image 9 of 3x3 taps, at its border 6, in its corners 4. For the gradient of a stride of 2, those
    whose place has no remainder."""
    g = conv_geometry((256, 64, 3, 3), (64, 64, 3, 3), None, 1, 1, "gemm")
    found = conv._copied(None, conv._sizes(False, g), 32)
    assert found
    assert found.tile in conv_images.TILES
    assert found.order == (4, 1, 3, 5, 7, 0, 2, 6, 8)
    assert found.blocks == 9 * -(-256 // (128 * found.tile.tall))
    g = conv_geometry((256, 64, 4, 4), (64, 64, 3, 3), None, 2, 1, "gemm")
    found = conv_images.tiles(conv_images.TILES[0], conv._sizes(True, g), 32)
    assert found
    assert found.order == (5, 1, 4, 6, 7, 9, 13, 0, 2, 3, 8, 10, 11, 12, 14, 15)
    large = conv_geometry((256, 64, 17, 16), (64, 64, 3, 3), None, 1, 1, "gemm")
    assert conv_images.tiles(conv_images.TILES[0], conv._sizes(False, large), 32) is None


@pytest.mark.parametrize(("sizes", "patch"), [
    ((512, 32, 32, 3, 3), conv_tma.Patch(1, 8, 16, 10, 18, False)),
    ((2000, 7, 7, 3, 3), conv_tma.Patch(16, 1, 8, 3, 10, True)),
    ((5, 13, 6, 8, 8), conv_tma.Patch(1, 16, 8, 23, 15, False)),      # two blocks fit, not three
    ((64, 112, 112, 7, 4, 2), conv_tma.Patch(1, 8, 16, 21, 19, False)),
    ((64, 112, 112, 7, 7, 2, 2), conv_tma.Patch(1, 8, 16, 21, 38, False)),      # an even line, in halves
    ((9, 40, 40, 40, 40), None),                      # filters that do not fit beside another block's
    ((64, 14, 14, 8, 8, 8, 8), None)])                # pixels that do not fit a thread's registers
def test_patches_of_few_channels(sizes: tuple[int, ...], patch: conv_tma.Patch | None, emulated: Emulator) -> None:
    assert conv_few.patch_of(*sizes) == patch


def test_the_hardware_copies_no_image_that_starts_elsewhere(emulated: Emulator) -> None:
    """Than on a multiple of 16 bytes."""
    conv._plan.cache_clear()
    g, emulated.launched = conv_geometry((2, 64, 5, 5), (64, 64, 3, 3), None, 1, 1, "gemm"), set()
    for first, kernel in ((0, "conv_nhwc_tma"), (1, "conv_nhwc")):
        x = cupy.asarray(np.zeros(2 * 5 * 5 * 64 + 1, np.uint16))[first:][:3200].reshape(2, 5, 5, 64)
        emulated.launched.clear()
        conv.y(x, cupy.zeros((64, 64, 3, 3), np.float32), None, g, precision="bf16")
        assert kernel in emulated.launched


def test_images_of_few_channels_start_anywhere(emulated: Emulator) -> None:
    """Pixels of 16 bytes that do not begin on a multiple of that are read number by number."""
    g = conv_geometry((2, 8, 5, 5), (16, 8, 3, 3), None, 1, 1, "gemm")
    given = (np.arange(401, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    found = []
    for x in (cupy.asarray(given)[1:], cupy.asarray(given[1:])):
        emulated.launched = set()
        w = cupy.ones((16, 8, 3, 3), np.float32)
        found.append(conv.y(x.reshape(2, 5, 5, 8), w, None, g, precision="bf16").get())
        assert emulated.launched == {"conv_nhwc_few"}
    assert found[0].any()
    assert found[0].tobytes() == found[1].tobytes()


def test_what_the_driver_is_told_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last axis first, and the steps in bytes of all others; what the driver refuses is an error."""
    told = []

    def encode(to: Any, kind: int, axes: int, address: Any, sizes: Any, strides: Any, box: Any, steps: Any,
               *modes: int) -> int:
        told.append((to.value % 64, kind, axes, address.value, *map(list, (sizes, strides, box, steps)), modes))
        return len(told) - 1
    monkeypatch.setattr(tensor_maps, "driver", lambda: SimpleNamespace(cuTensorMapEncodeTiled=encode))
    assert len(encoded(4096, (5, 6, 7, 64), np.dtype(np.float32), (1, 8, 9, 32), True)) == 128
    with pytest.raises(RuntimeError, match=r"boxes of \(2, 64\) of an array of \(3, 32\) in uint16 at 0x10 "
                                           "with error 1; set another precision, or images in NCHW"):
        encoded(16, (3, 32), np.dtype(np.uint16), (2, 64), True)
    with pytest.raises(RuntimeError, match="with error 2"):
        encoded(16, (3, 32), np.dtype(np.float32), (2, 32), False)
    assert told == [(0, 11, 4, 4096, [64, 7, 6, 5], [256, 1792, 10752], [32, 9, 8, 1], [1] * 4, (0, 3, 3, 0)),
                    (0, 1, 2, 16, [32, 3], [64], [64, 2], [1] * 2, (0, 3, 3, 0)),
                    (0, 7, 2, 16, [32, 3], [128], [32, 2], [1] * 2, (0, 3, 3, 0))]


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


def test_arrays_of_another_device(emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    array = cupy.zeros((4, 64), np.uint16)
    monkeypatch.setattr(launch.kernels, "_current_device", lambda: 1)
    with pytest.raises(ValueError, match="tensor_map: the array is on device 0 but the current device is 1; use one"):
        tensor_maps.tensor_map(array, (2, 64))


def test_images_are_padded_where_that_is_little(emulated: Emulator) -> None:
    """By channels; not where sums grow much longer, nor beyond what a kernel takes."""
    assert [conv._channels(*each) for each in ((3, 100, 9, 8), (64, 100, 9, 8), (1, 100, 25, 8), (3, 1, 9, 4),
                                               (3, launch.MAX_ELEMENTS // 8 + 1, 9, 8))] == [8, 64, 1, 4, 3]


def test_devices_without_the_means(emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "most_shared", lambda: 40 << 10)
    conv._plan.cache_clear()
    with pytest.raises(ValueError, match=r"conv2d_nhwc: sums of 36 terms in TF32X3 take 98304 bytes of shared memory"):
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


@pytest.mark.gpu
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("kind", ["tf32", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kernel", IN_PATCHES)
def test_random_shapes_in_patches(kernel: str, direction: str, kind: str, few: bool,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """By a block for each patch, as far as there are multiprocessors, and on three of these, where blocks take them in
    turn; there y is also taken for one that the second-level cache does not hold."""
    if launch.compute_capability() != 90:
        pytest.skip("these kernels are for compute capability 9.0")
    if few:
        monkeypatch.setattr(launch, "multiprocessors", lambda: 3)
        monkeypatch.setattr(launch, "cache_bytes", lambda: 0)
    for seed in range(MANY // 4):
        drawn_is_right(direction, kind, seed, kernel=kernel)
    conv._plan.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tf32", "bf16"])
@pytest.mark.parametrize("drawn_are_right", [drawn_maxima_are_right, drawn_gradients_are_right])
def test_joined_of_random_shapes(drawn_are_right: Callable[..., None], kind: str) -> None:
    for seed in range(MANY // 4):
        drawn_are_right(kind, seed)
