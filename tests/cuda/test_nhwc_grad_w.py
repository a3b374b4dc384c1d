"""The gradient of the filters of images in NHWC against float64, on a GPU and in the emulator; and what is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

import cupy
from checks import nhwc_grad_w as checks
from checks.compiler import skip_without_compiler
from checks.nhwc import drawn
from tiers import tiered

from minidl.lab.emulator.own import FACTS, Emulator
from minidl.ops.common.geometry import ConvGeometry, conv_geometry
from minidl.ops.cuda import launch
from minidl.ops.cuda.nhwc.grad_w import conv_grad_w, conv_grad_w_tma, rows_grad_w

SHAPES, PARTS = 2000, 8                    # of a kind, on a GPU, and among how many tests they are shared out
# Kinds that have kernels of their own
OWN = [("tf32", checks.BY_HARDWARE), ("bf16 images", checks.BY_HARDWARE), ("tf32", checks.OF_FEW),
       ("tf32", checks.OF_ROWS), ("bf16 images", checks.OF_ROWS)]


def forget() -> None:
    """Plans for other multiprocessors."""
    for own in conv_grad_w.OWN:
        own.product.cache_clear()


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    skip_without_compiler()
    return Emulator(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def emulated(compiler: Emulator) -> Iterator[Emulator]:
    with compiler.running() as running:
        yield running


@pytest.mark.parametrize("seed", tiered(range(15), slow=2))
@pytest.mark.parametrize("kind", checks.KINDS)
def test_random_shapes_emulated(kind: str, seed: int, emulated: Emulator) -> None:
    """Each is given a tile in turn: tiles differ in what they compute, and few are compiled."""
    tiles = conv_grad_w.TILES[conv_grad_w.tiles_of(*checks.arguments_of(kind))]
    g = drawn(seed, 150, 40, wide=True)
    found = checks.error(kind, g, seed, tile=tiles[seed % len(tiles)], splits=seed % 3 or None)
    assert found < 1, f"{kind} {g}: the error is {found:.3g} of its bound"


@pytest.mark.parametrize("seed", tiered(range(6), slow=2))
@pytest.mark.parametrize(("kind", "kernel"), OWN)
def test_copied_by_hardware_emulated(kind: str, kernel: str, seed: int, emulated: Emulator) -> None:
    """On four multiprocessors, among which some shapes are split; and in more parts, some of which may be empty."""
    forget()
    checks.drawn_is_right(kind, seed, 150, 70, splits=7 if seed % 3 == 2 else None, kernel=kernel)
    forget()


@pytest.mark.parametrize("seed", tiered(range(3), slow=1))
@pytest.mark.parametrize("kind", checks.KINDS)
def test_mma_in_place_of_wgmma_emulated(kind: str, seed: int, emulated: Emulator,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU of compute capability 8.0."""
    monkeypatch.setattr(launch, "compute_capability", lambda: 80)
    g = drawn(seed, 150, 40, wide=True)
    found = checks.error(kind, g, seed)
    assert found < 1, f"{kind} {g}: the error is {found:.3g} of its bound"


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", checks.KINDS)
def test_random_shapes(kind: str, part: int) -> None:
    worst = 0.0
    for seed in range(part, SHAPES, PARTS):
        g = drawn(seed, 3000, 280, wide=True)
        found = checks.error(kind, g, seed)
        assert found < 1, f"{kind}, seed {seed}, {g}: the error is {found:.3g} of its bound"
        worst = max(worst, found)
    assert worst > 0


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS // 2))
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(("kind", "kernel"), OWN)
def test_random_shapes_copied_by_hardware(kind: str, kernel: str, few: bool, part: int,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """On all multiprocessors, and on three, where a block takes many patches in turn."""
    if launch.compute_capability() != 90 and kernel != checks.OF_FEW:
        pytest.skip("the hardware's copies are for compute capability 9.0")
    forget()
    if few:
        monkeypatch.setattr(launch, "multiprocessors", lambda: 3)
    seeds = range(part, SHAPES // 4, PARTS // 2)
    assert max(checks.drawn_is_right(kind, seed, 3000, 280, kernel=kernel) for seed in seeds) > 0
    forget()


# x, w, stride, padding, kind, and the kernel: the first of checks.PRODUCTS where the hardware does not copy
PLAIN, TAPS, _, ROWS = checks.PRODUCTS
TAKEN: list[tuple[Any, Any, Any, Any, str, str]] = [
    ((2, 8, 5, 5), (16, 8, 3, 3), 1, 1, "bf16 images", TAPS), ((2, 12, 5, 5), (12, 12, 1, 2), 1, 1, "tf32", TAPS),
    ((2, 8, 5, 5), (16, 8, 1, 1), 1, 0, "bf16 images", ROWS), ((2, 12, 5, 5), (20, 12, 1, 1), 1, 0, "tf32", ROWS),
    ((2, 8, 5, 5), (16, 8, 1, 1), 1, 1, "bf16 images", PLAIN), ((2, 8, 5, 5), (16, 8, 1, 1), 2, 0, "tf32", PLAIN),
    ((2, 8, 5, 5), (16, 8, 1, 1), 1, ((0, 1), 0), "tf32", PLAIN),
    ((2, 8, 5, 5), (16, 8, 3, 3), (1, 2), 1, "tf32", PLAIN),
    ((2, 4, 5, 5), (16, 4, 3, 3), 1, 1, "bf16 images", PLAIN), ((2, 8, 5, 5), (6, 8, 3, 3), 1, 1, "tf32", PLAIN),
    ((2, 12, 5, 5), (16, 12, 1, 1), 1, 0, "bf16 images", PLAIN), ((2, 8, 5, 5), (6, 8, 1, 1), 1, 0, "tf32", PLAIN),
    ((2, 8, 5, 5), (16, 8, 3, 3), 1, 1, "3xtf32", PLAIN), ((2, 8, 5, 5), (16, 8, 3, 3), 1, 1, "bf16", PLAIN),
    ((0, 8, 5, 5), (16, 8, 3, 3), 1, 1, "tf32", PLAIN), ((0, 8, 5, 5), (16, 8, 1, 1), 1, 0, "tf32", PLAIN)]


@pytest.mark.parametrize(("x", "w", "stride", "padding", "kind", "kernel"), TAKEN, ids=str)
@pytest.mark.usefixtures("emulated")
def test_which_shapes_the_hardware_copies(x: Any, w: Any, stride: Any, padding: Any, kind: str, kernel: str) -> None:
    """Steps of 1, pixels of whole 16 bytes, products in the images' own numbers; of one tap, without padding."""
    g = conv_geometry(x, w, None, stride, padding, "gemm")
    assert checks.error(kind, g, 1, kernel) < 1


@pytest.mark.usefixtures("emulated")
def test_the_hardware_copies_no_image_that_starts_elsewhere() -> None:
    """Than on a multiple of 16 bytes, nor a filter that meets more pixels than shared memory holds."""
    g = conv_geometry((1, 4, 3, 3), (4, 4, 2, 2), None, 1, 0, "gemm")
    of_dy, of_x = (cupy.asarray(np.zeros(size + 1, np.float32)) for size in (16, 36))
    aligned = [a[:-1].reshape(shape) for a, shape in ((of_dy, (1, 2, 2, 4)), (of_x, (1, 3, 3, 4)))]
    moved = [a[1:].reshape(shape) for a, shape in ((of_dy, (1, 2, 2, 4)), (of_x, (1, 3, 3, 4)))]
    assert [conv_grad_w_tma.can(g, dy, x, "TF32") for dy in (aligned[0], moved[0]) for x in (aligned[1], moved[1])] == [
        True, False, False, False]
    assert conv_grad_w_tma.product(conv_geometry((4, 64, 99, 99), (64, 64, 99, 99), None, 1, 0, "gemm"), "TF32") is None


@pytest.mark.usefixtures("emulated")
def test_compilers_without_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    conv_grad_w.product.cache_clear()
    monkeypatch.setattr(launch, "compiler_version", lambda: (12, 6))
    g = conv_geometry((2, 8, 5, 5), (16, 8, 3, 3), None, 1, 1, "gemm")
    assert checks.error("bf16 images", g, 1, "conv2d_nhwc_dw") < 1
    conv_grad_w.product.cache_clear()


@pytest.mark.parametrize("mode", conv_grad_w_tma.SIZES)
def test_plans_of_copies_by_hardware(mode: str, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an H100's multiprocessors: shared memory holds the stages, blocks are at work at once, each has a patch, and
    patches hold all outputs, taps all taps."""
    monkeypatch.setattr(launch, "multiprocessors", lambda: 132)
    conv_grad_w_tma.product.cache_clear()
    for seed in range(200):
        g = drawn(seed, 3000, 280, wide=True)._replace(sh=1, sw=1)
        product = conv_grad_w_tma.product(g, mode)
        assert product is not None
        found, constants = product[0], dict(product[0].constants)
        patch = np.frombuffer(found.struct, launch.struct("Patch"))[0]
        (blocks, of_patches), sides = found.grid, int(constants["CHANNELS"]) * int(constants["FILTERS"])
        number = -(-g.n // int(patch["n"])) * int(patch["high"]) * int(patch["wide"])
        assert found.shared <= launch.most_shared()
        assert of_patches == 1 or blocks * of_patches <= 132
        assert 1 <= of_patches <= number
        assert patch["high"] * patch["h"] >= g.oh
        assert patch["wide"] * patch["w"] >= g.ow
        assert blocks * int(constants["TAPS"]) * sides >= g.kh * g.kw * g.c * g.m
        assert mode == "TF32" or patch["n" if patch["images"] else "h"] % 2 == 0     # wgmma takes eights in pairs
    conv_grad_w_tma.product.cache_clear()


def rows_plan(g: ConvGeometry, mode: str) -> launch.Plan:
    found = rows_grad_w.product(g, mode)
    assert found
    return found[0]


@pytest.mark.parametrize(("mode", "kind"), [("BF16", "bf16 images"), ("TF32", "tf32")])
@pytest.mark.parametrize("tile", tiered(rows_grad_w.TILES, slow=2), ids=str)
def test_tiles_of_rows(tile: rows_grad_w.Tile, mode: str, kind: str, emulated: Emulator,
                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Each, in two blocks along both sides, the last of which is nearly empty; and more chunks than buffers."""
    forget()
    monkeypatch.setattr(rows_grad_w, "TILES", (tile,))
    x, w = (1, tile.channels + 8, 24, 23), (tile.filters + 8, tile.channels + 8, 1, 1)
    g = conv_geometry(x, w, None, 1, 0, "gemm")
    assert {("CHANNELS", tile.channels), ("FILTERS", tile.filters)} <= set(rows_plan(g, mode).constants)
    assert checks.error(kind, g, 1, checks.OF_ROWS) < 1
    forget()


@pytest.mark.parametrize("mode", conv_grad_w_tma.SIZES)
def test_plans_of_rows(mode: str, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an H100's multiprocessors: shared memory holds the stages, tiles hold all channels and filters, splits all
    chunks and none is without one; in one turn where one is enough."""
    monkeypatch.setattr(launch, "multiprocessors", lambda: 132)
    forget()
    for seed in range(100):
        g = drawn(seed, 3000, 2800, wide=True)
        g = conv_geometry((g.n, g.c, g.h, g.w), (g.m, g.c, 1, 1), None, 1, 0, "gemm")
        found = rows_plan(g, mode)
        sizes, constants = np.frombuffer(found.struct, launch.struct("RowsGradW"))[0], dict(found.constants)
        tiles = -(-g.c // int(constants["CHANNELS"])) * -(-g.m // int(constants["FILTERS"]))
        assert (found.grid, sizes["c"], sizes["m"]) == ((tiles, found.splits), g.c, g.m)
        assert sizes["each"] >= 1
        assert sizes["each"] * found.splits + sizes["more"] == -(-g.n * g.h * g.w // {"BF16": 64, "TF32": 32}[mode])
        assert int(constants["STAGES"]) >= 4
        assert found.shared <= launch.most_shared()
        assert found.splits == 1 or tiles > 66 or tiles * found.splits <= 132
    forget()


G = conv_geometry((2, 3, 5, 5), (4, 3, 3, 3), None, 1, 1, "gemm")


def images(dtype: Any = np.float32, channels: int = 3, of_dy: Any = None) -> tuple[Any, Any]:
    return (cupy.asarray(np.zeros((2, 5, 5, 4), of_dy or dtype)), cupy.asarray(np.zeros((2, 5, 5, channels), dtype)))


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "float64": (lambda: conv_grad_w.grad_w(*images(np.float64), G, precision="tf32"), TypeError,
                "conv2d_nhwc_dw: dy is float64 and x is float64 but both must be float32, or bf16 as uint16; convert"),
    "two dtypes": (lambda: conv_grad_w.grad_w(*images(of_dy=np.uint16), G, precision="bf16"), TypeError,
                   "conv2d_nhwc_dw: dy is uint16 and x is float32 but both must be"),
    "another shape": (lambda: conv_grad_w.grad_w(*images(channels=4), G, precision="tf32"), ValueError,
                      r"conv2d_nhwc_dw: x has shape \(2, 5, 5, 4\) and dy \(2, 5, 5, 4\) but the geometry says "),
    "fp32": (lambda: conv_grad_w.grad_w(*images(), G, precision="fp32"), ValueError,
             "conv2d_nhwc_dw: the precision is 'fp32' but it must be tf32, 3xtf32 or bf16 for images of float32"),
    "tf32 of bf16": (lambda: conv_grad_w.grad_w(*images(np.uint16), G, precision="tf32"), ValueError,
                     "conv2d_nhwc_dw: the precision is 'tf32' but it must be .*, and bf16 for those of bf16; set"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.usefixtures("emulated")
def test_refused(what: str) -> None:
    call, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.usefixtures("emulated")
def test_refused_before_8_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "compute_capability", lambda: 75)
    with pytest.raises(ValueError, match=r"conv2d_nhwc_dw: the GPU's compute capability is 7\.5 but .* need 8\.0; use"):
        conv_grad_w.grad_w(*images(), G, precision="tf32")


@pytest.mark.usefixtures("emulated")
def test_refused_beyond_shared_memory() -> None:
    g = conv_geometry((1, 2, 1, 20000), (2, 2, 1, 20000), None, 1, 0, "gemm")
    message = r"conv2d_nhwc_dw: images of 2 channels and filters of 1x20000 take \d+ bytes of shared memory but a block"
    with pytest.raises(ValueError, match=message):
        conv_grad_w.product(g, np.dtype(np.float32), "TF32", conv_grad_w.Copies(8, 8, 16))


SHARED = {80: 163 << 10, 86: 99 << 10, 90: FACTS["most_shared"]}         # bytes, by compute capability


@pytest.mark.parametrize("capability", SHARED)
def test_plans_fit_a_multiprocessor(capability: int, emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the shared memory of each, splits that leave no block without a chunk, and slabs that hold all channels."""
    monkeypatch.setattr(launch, "compute_capability", lambda: capability)
    monkeypatch.setattr(launch, "most_shared", lambda: SHARED[capability])
    for seed in range(200):
        g = drawn(seed, 3000, 280, wide=True)
        for kind in checks.KINDS:
            dtype, precision = checks.arguments_of(kind)
            copies = [next(b for b in (16, 8, 4, 2) if elements * dtype.itemsize % b == 0)
                      for elements in (g.m, g.c, g.w * g.c)]
            found, _ = conv_grad_w.product(g, dtype, conv_grad_w.MODES[precision], conv_grad_w.Copies(*copies))
            p = np.frombuffer(found.struct, launch.struct("GradW"))[0]
            constants = dict(found.constants)
            assert found.shared <= launch.most_shared()
            assert 1 <= p["splits"] <= p["chunks"]
            assert p["slab"] * p["slabs"] >= g.c
            assert p["taps"] * p["runs"] >= g.kh * g.kw
            assert p["slab"] * p["taps"] <= constants["GROUPS"] * constants["TILES"] * 64
            assert p["rows"] * p["across"] <= constants["PIXELS"]
            assert p["across"] * p["segments"] >= g.ow
