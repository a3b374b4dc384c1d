"""Convolution by Fourier transforms: its tiles, its three directions against the formula, and what is special in it.

That it is right on a GPU, on thousands of shapes, is seen in cuda/test_cuda_conv.py with all algorithms.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
from checks.problems import DIRECTIONS, Problem, drawn
from tiers import tiered

import minidl
from minidl import Tensor, ops
from minidl.core import device
from minidl.core.host import install
from minidl.lab.check import ALWAYS, random_shapes, used
from minidl.ops.common.conv import fft
from minidl.ops.common.geometry import ConvGeometry, conv_geometry
from minidl.ops.cpu import conv, parallel


def geometry(x: Any, w: Any, stride: Any = 1, padding: Any = 0) -> ConvGeometry:
    return conv_geometry(x, w, None, stride, padding, "gemm")


# Tiles of both sizes and the whole image; filters wider than a tile; padding wider than filters; strides
SHAPES = [geometry((2, 3, 50, 41), (4, 3, 3, 5), 1, ((1, 2), (0, 1))), geometry((2, 2, 40, 37), (3, 2, 11, 17), 1, 5),
          geometry((2, 2, 70, 12), (2, 2, 33, 4), 1, 3), geometry((3, 2, 5, 4), (2, 2, 2, 3), 1, ((4, 3), (5, 6))),
          geometry((2, 2, 39, 43), (4, 2, 4, 3), (3, 2), 1), geometry((5, 1, 12, 12), (1, 1, 5, 5)),
          geometry((3, 2, 7, 6), (5, 2, 7, 6), (7, 5)), geometry((1, 1, 1, 1), (1, 1, 1, 1), 1, 9)]


def results(problem: Problem) -> list[np.ndarray]:
    return [call(*problem.inputs(direction), problem.g)
            for direction, call in zip(DIRECTIONS, conv.ALGORITHMS["fft"], strict=True)]


def compared(problem: Problem) -> int:
    """How many directions agree with the formula: all, or it fails."""
    for direction, got in zip(DIRECTIONS, results(problem), strict=True):
        exact = problem.exact[direction]
        assert (got.shape, got.dtype) == (exact.shape, problem.x.dtype)
        share = used(got, exact, problem.bound(direction, spread=True))
        assert share <= 1, f"{direction} {problem.g}: used {share:.3g} of its tolerance"
        if problem.x.dtype == np.float64:
            np.testing.assert_allclose(got, exact, rtol=0, atol=1e-10)
    return len(DIRECTIONS)


# ---------------------------------------------------------------- right
@pytest.mark.parametrize(("dtype", "drawings"), tiered(
    [(np.float64, 50), (np.float64, 150), (np.float32, 150)], slow=1, several=True))
def test_random_shapes(dtype: type, drawings: int) -> None:
    """As the formula: in float64 to 1e-10, in float32 to a bound that still shows one product that is missing."""
    shapes = [geometry(*row) for row in ALWAYS] + [*random_shapes(15, drawings, multiplications=3e6)] + SHAPES
    count = sum(compared(drawn(g._replace(algorithm="direct"), at, dtype)) for at, g in enumerate(shapes))
    print(f"{count} results compared")
    assert count == 3 * (len(ALWAYS) + drawings + len(SHAPES))


def test_every_tiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that have more multiplications than another one."""
    count, sizes = 0, set()
    for at, g in enumerate(SHAPES):
        problem = drawn(g, at, np.float64)
        for number in range(9):
            def nth(direction: str, g: ConvGeometry, number: int = number) -> fft.Tiling:
                possible = fft.tilings(direction, g)
                sizes.update(possible[number % len(possible)].size)
                return possible[number % len(possible)]
            monkeypatch.setattr(fft, "tiling", nth)
            count += compared(problem)
    print(f"{count} results compared, tiles of {sorted(sizes)}")
    assert sizes >= {16, 32}


def test_the_bound_shows_a_product_that_is_missing() -> None:
    """In float32, of 25 channels of 7x7: the smallest share that one has of the tolerance."""
    problem = drawn(geometry((2, 25, 30, 30), (4, 25, 7, 7)), 0, np.float32)
    for direction, got in zip(DIRECTIONS, results(problem), strict=True):
        most = problem.bound(direction, spread=True)
        assert used(got, problem.exact[direction], most) <= 1
        assert most.max() < 0.05           # of a product, which is about 1


def test_gradients() -> None:
    rng = np.random.default_rng(3)
    shapes = (2, 2, 9, 8), (3, 2, 4, 3), (3,)
    for stride, padding in ((1, 0), (2, ((1, 2), (0, 1)))):
        inputs = [Tensor(rng.standard_normal(shape), requires_grad=True) for shape in shapes]
        assert minidl.gradcheck(lambda x, w, b, stride=stride, padding=padding: ops.conv2d(
            x, w, b, stride=stride, padding=padding, algorithm="fft"), inputs)


def test_arrays_in_any_layout() -> None:
    for g in SHAPES[:5]:
        problem = drawn(g, 1, np.float64)
        turned = problem._replace(**{name: np.ascontiguousarray(a.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)
                                     for name in ("x", "w", "gy") for a in [getattr(problem, name)]})
        assert not turned.x.flags.c_contiguous
        assert compared(turned)


# ---------------------------------------------------------------- in parts
def test_bits_depend_neither_on_the_threads_nor_on_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [drawn(g._replace(n=g.n), 1, np.float32) for g in SHAPES]
    monkeypatch.setattr(conv.fft, "BACKEND", small_chunks(1 << 14, 1 << 14))
    found = []
    for count in (1, 2, 5, 2):
        monkeypatch.setattr(parallel, "threads", lambda count=count: count)
        found.append([result.tobytes() for problem in problems for result in by_the_backend(problem)])
    assert found[0] == found[1] == found[2] == found[3]


def small_chunks(filter_bytes: int, image_bytes: int) -> fft.Backend:
    return conv.fft.BACKEND._replace(filter_bytes=lambda: filter_bytes, image_bytes=lambda: image_bytes)


def by_the_backend(problem: Problem) -> list[np.ndarray]:
    """With whatever conv.fft.BACKEND is now."""
    k, g = conv.fft.BACKEND, problem.g
    return [fft.y(k, problem.x, problem.w, problem.b, g), fft.dx(k, problem.gy, problem.w, g),
            fft.dw(k, problem.gy, problem.x, g)]


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1 << 16), (1 << 16, 1)])
def test_few_images_and_filters_at_a_time(sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The least is one of each."""
    monkeypatch.setattr(conv.fft, "BACKEND", small_chunks(*sizes))
    for at, g in enumerate(SHAPES):
        problem = drawn(g, at, np.float64)
        for got, direction in zip(by_the_backend(problem), DIRECTIONS, strict=True):
            np.testing.assert_allclose(got, problem.exact[direction], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("size", "k", "padding"), [(40, 3, 1), (40, 7, 0), (40, 11, 5), (40, 31, 15), (33, 31, 0)])
def test_auto_on_the_cpu_is_never_fft(size: int, k: int, padding: int) -> None:
    """Nor where it is the fastest: `auto` has the bits of `gemm`."""
    def bits(algorithm: str) -> list[bytes]:
        rng = np.random.default_rng(k)
        x, w = (Tensor(rng.standard_normal(shape, np.float32), requires_grad=True)
                for shape in ((2, 3, size, size), (4, 3, k, k)))
        y = ops.conv2d(x, w, padding=padding, algorithm=algorithm)
        (y * y).sum().backward()
        return [t.numpy().tobytes() for t in (y, x.grad, w.grad) if t is not None]

    assert bits("auto") == bits("gemm")
    assert not set(bits("auto")) & set(bits("fft"))


# ---------------------------------------------------------------- which tiles
def test_the_tiling_with_the_fewest_multiplications_is_taken() -> None:
    g = geometry((1, 64, 64, 64), (64, 64, 5, 5), 1, 2)
    t = fft.tiling("y", g)
    assert t == (16, 16, 12, 12, 6, 6)
    # 36 tiles of 64 channels, as many of 64 maps, 64 * 64 filters: 256 log2(256) each. 16 * 9 frequencies.
    assert fft.multiplications(g, t) == (36 * 128 + 64 * 64) * 256 * 8 + 4 * 144 * 64 * 64 * 36
    assert min(fft.multiplications(g, each) for each in fft.tilings("y", g)) == fft.multiplications(g, t)
    assert fft.tiling("y", g._replace(kh=15, kw=15, top=7, bottom=7, left=7, right=7)).size == (32, 32)
    many = g._replace(n=128)               # filters are transformed once for all images
    assert fft.tiling("y", many).size == (72, 72)
    assert fft.tiling("y", geometry((1, 1, 9, 9), (1, 1, 3, 3))).size == (9, 9)       # a tile would be larger
    assert fft.tiling("y", geometry((1, 1, 1, 1), (1, 1, 1, 1))).size == (2, 2)


def test_whole_images_of_too_many_frequencies_are_not_taken() -> None:
    g = geometry((64, 1, 500, 700), (1, 1, 3, 3))
    assert all(t.frequencies <= fft.MAX_FREQUENCIES for t in [fft.tiling("y", g)])
    assert max(t.frequencies for t in fft.tilings("y", g)) > fft.MAX_FREQUENCIES


# ---------------------------------------------------------------- special values
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_spread_over_tiles_and_no_further(value: float) -> None:
    x, w = np.ones((2, 2, 70, 70), np.float32), np.ones((3, 2, 5, 5), np.float32)
    g = geometry(x.shape, w.shape)
    t = fft.tiling("y", g)
    assert t.rows > 1
    bad = x.copy()
    bad[0, 1, 40, 1] = value
    y = ops.conv2d(Tensor(bad), Tensor(w), algorithm="fft").numpy()
    assert np.isfinite(y[1]).all()         # another image
    hit = [i for i in range(t.rows) if i * t.down <= 40 < i * t.down + t.th]
    rows = [i for i in range(66) if i // t.down in hit]
    assert np.isnan(y[0][:, rows, :1]).all()
    assert np.isfinite(np.delete(y[0], rows, axis=1)).all()
    w[1, 0, 2, 2] = value
    y = ops.conv2d(Tensor(x), Tensor(w), algorithm="fft").numpy()
    assert np.isnan(y[:, 1]).all()
    assert np.isfinite(y[:, [0, 2]]).all()


# ---------------------------------------------------------------- on CUDA
@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launchers' module, with a library of transforms that only makes plans."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from minidl.ops.cuda.conv.product import fft as launchers

    library = types.SimpleNamespace(made=[], size=0)

    def get_fft_plan(*sizes: Any) -> Any:
        memory = types.SimpleNamespace(mem=types.SimpleNamespace(size=library.size))
        library.made.append(types.SimpleNamespace(work_area=memory))
        return library.made[-1]

    library.get_fft_plan = get_fft_plan
    monkeypatch.setattr(launchers, "_library", lambda: library)
    monkeypatch.setattr(launchers, "_plans", {})
    monkeypatch.setattr(launchers, "_captured", {})
    monkeypatch.setattr(launchers.cupy.cuda.runtime, "getDevice", lambda: 0)
    return launchers


def capturing(on_cuda: Any, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(on_cuda.cupy.cuda, "get_current_stream",
                        lambda: types.SimpleNamespace(is_capturing=lambda: answer))


def test_what_is_refused_on_cuda(on_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    g, single = geometry((2, 3, 20, 20), (4, 3, 5, 5)), np.dtype(np.float32)
    assert on_cuda.refuses("y", g, single) is None
    device.set_precision("tf32")
    try:
        assert "the precision is tf32 but it computes in fp32" in on_cuda.refuses("y", g, single)
        assert on_cuda.refuses("y", g, np.dtype(np.float64)) is None
    finally:
        device.set_precision("fp32")
    wide = geometry((1, 1, 500, 700), (1, 1, 40, 40))
    assert on_cuda.refuses("y", wide, single) == (
        "a tile has 180500 frequencies but a product has at most 65535 matrices")
    assert "one transformed image has" in on_cuda.refuses("y", geometry((1, 30000, 300, 300), (1, 30000, 3, 3)), single)

    def missing() -> None:
        raise ImportError("libcufft.so.12")
    monkeypatch.setattr(on_cuda, "_library", missing)
    assert on_cuda.refuses("dw", g, single) .startswith(
        f"cuFFT is not installed; run {install('cuda13')}, or")


def test_a_graph_takes_the_plans_of_an_eager_run_and_keeps_them(on_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library, tiles = on_cuda._library(), np.zeros((7, 16, 16), np.float32)
    capturing(on_cuda, monkeypatch, True)
    with pytest.raises(NotImplementedError, match=r"fft: cuFFT makes no plan while .* none for 7 tiles of 16x16; run"):
        on_cuda._plan(library, "R2C", tiles, (16, 16))
    capturing(on_cuda, monkeypatch, False)
    on_cuda._plan(library, "R2C", tiles, (16, 16))
    assert on_cuda._captured == {}
    capturing(on_cuda, monkeypatch, True)
    assert on_cuda._plan(library, "R2C", tiles, (16, 16)) is library.made[0]
    assert [*on_cuda._captured.values()] == library.made
    library.made[0].work_area.mem.size = 4096
    with pytest.raises(NotImplementedError, match=r"fft: cuFFT takes 4096 bytes .* for 7 tiles of 16x16, which br"):
        on_cuda._plan(library, "R2C", tiles, (16, 16))


def test_a_plan_that_cannot_be_made_is_want_of_memory(on_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which `auto` passes over."""
    def refuse(*sizes: Any) -> None:
        raise RuntimeError("CUFFT_ALLOC_FAILED")
    capturing(on_cuda, monkeypatch, False)
    monkeypatch.setattr(on_cuda._library(), "get_fft_plan", refuse)
    with pytest.raises(MemoryError, match=r"^fft: cuFFT makes no plan for 7 tiles of 16x16: CUFFT_ALLOC_FAILED; use"):
        on_cuda._plan(on_cuda._library(), "R2C", np.zeros((7, 16, 16), np.float32), (16, 16))
    assert not on_cuda._plans


def test_plans_are_let_go_of_in_turn(on_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing(on_cuda, monkeypatch, False)
    monkeypatch.setattr(on_cuda, "MAX_PLANS", 2)
    for count in (1, 2, 1, 3):             # 2 is the one that was not asked for again
        on_cuda._plan(on_cuda._library(), "R2C", np.zeros((count, 16, 16), np.float32), (16, 16))
    assert [key[1] for key in on_cuda._plans] == [1, 3]
    on_cuda._library().size = device.workspace_limit() // 2 + 1    # which two of have too much
    for count in (4, 5):
        on_cuda._plan(on_cuda._library(), "R2C", np.zeros((count, 16, 16), np.float32), (16, 16))
    assert [key[1] for key in on_cuda._plans] == [5]


@pytest.mark.gpu
@pytest.mark.parametrize(("algorithm", "images", "channels", "k"), [
    ("fft", 20, 4, 5), ("auto", 16, 32, 7), ("auto", 16, 64, 3)])
def test_a_compiled_step_computes_what_an_eager_one_does(algorithm: str, images: int, channels: int, k: int) -> None:
    """Two layers of one shape: their gradients by w are branches of a graph, if there is one. Of what `auto` chooses
    there is one, also of transforms."""
    rng = np.random.default_rng(7)
    w_shape, scale = (channels, channels, k, k), np.float32(1 / channels**0.5 / k)
    x, *filters = (rng.standard_normal(shape, np.float32) * by
                   for shape, by in (((images, channels, 24, 24), 1), (w_shape, scale), (w_shape, scale)))

    def step(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = ops.conv2d(ops.conv2d(x, w, padding=k // 2, algorithm=algorithm), v, padding=k // 2, algorithm=algorithm)
        loss = (y * y).sum()
        loss.backward()
        return loss

    compiled, compared = minidl.compile(step), 0
    want = [Tensor(w, device="cuda", requires_grad=True) for w in filters]
    have = [Tensor(w, device="cuda", requires_grad=True) for w in filters]
    for _ in range(5):
        batch = Tensor(x, device="cuda")
        for leaf in (*want, *have):
            leaf.grad = None
        losses = step(batch, *want).item(), compiled(batch, *have).item()
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        for one, other in zip(want, have, strict=True):
            assert one.grad is not None
            assert other.grad is not None
            most = 1e-5 * float(np.abs(one.grad.numpy()).max())
            np.testing.assert_allclose(other.grad.numpy(), one.grad.numpy(), rtol=0, atol=most)
            compared += 1
        x = x[::-1].copy()
    notes = compiled.program.notes
    print(f"{compared} gradients compared; notes: {notes or 'captured as a graph'}")
    assert algorithm != "auto" or not any(note.startswith("call by call") for note in notes)


@pytest.mark.gpu
def test_the_memory_of_plans() -> None:
    """Which transforms could not be captured: those whose plans have memory of their own."""
    from minidl.ops.cuda.conv.product import fft as launchers

    library, cupy = launchers._library(), launchers.cupy
    for size in ((16, 16), (32, 32), (16, 32), (72, 72), (96, 96), (240, 240), (15, 49)):
        for dtype in (np.float32, np.float64):
            tiles = cupy.zeros((64, *size), dtype)
            spectra = launchers._forward(tiles, size)
            assert spectra.shape == (64, size[0], size[1] // 2 + 1)
            assert not launchers._inverse(spectra, size).any()
            held = [plan.work_area.mem.size for plan in (
                launchers._plan(library, "R2C", tiles, size), launchers._plan(library, "C2R", spectra, size))]
            print(f"{size} {np.dtype(dtype)}: forward {held[0]} bytes, back {held[1]} bytes")
