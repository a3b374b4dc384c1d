"""Convolutions in NHWC and CHWN. On a GPU: random shapes; without one: what is refused (test_emulated.py runs them)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidl
from minidl import layouts
from minidl.core import device
from minidl.ops.common.geometry import conv_geometry
from minidl.ops.common.geometry import layouts as orders

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.layouts import agree  # noqa: E402

from minidl.ops.cuda import launch  # noqa: E402
from minidl.ops.cuda.conv import layouts as launchers  # noqa: E402


@pytest.mark.gpu
@pytest.mark.usefixtures("fp32")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", launchers.LAUNCHERS)
def test_random_shapes(name: str, dtype: type, canaries: Any) -> None:
    agree(name, dtype, 60, canaries, multiplications=3e6)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_conv2d(layout: str) -> None:
    """The public function, beside the backend's own in NCHW."""
    rng = np.random.default_rng(3)
    x, w, b = (cupy.asarray(rng.standard_normal(shape, np.float32)) for shape in ((20, 3, 9, 8), (6, 3, 3, 3), (6,)))
    y = layouts.conv2d(layouts.turned(x, layout), layouts.turned(w, layout, filters=True), b, layout=layout,
                       algorithm="tiled", stride=2, padding=1)
    want = layouts.conv2d(x, w, b, layout="NCHW", algorithm="direct", stride=2, padding=1)
    got = layouts.turned(y, "NCHW", of=layout)
    np.testing.assert_allclose(got.get(), want.get(), rtol=0, atol=1e-5, strict=True)


# ---------------------------------------------------------------- without a GPU
@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("to", layouts.LAYOUTS)
@pytest.mark.parametrize("of", layouts.LAYOUTS)
def test_turned_there_and_back(of: str, to: str, filters: bool) -> None:
    x = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    there = layouts.turned(x, to, of=of, filters=filters)
    assert there.flags.c_contiguous
    np.testing.assert_array_equal(layouts.turned(there, of, of=to, filters=filters), x)


def test_shapes_are_restored() -> None:
    sizes = (7, 3, 5, 4)
    for axes in (*orders.IMAGES.values(), *orders.FILTERS.values()):
        assert orders.restored(axes, orders.ordered(axes, sizes)) == sizes


X, W = np.zeros((1, 2, 3, 3), np.float32), np.zeros((1, 2, 2, 2), np.float32)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"layout": "HWCN"}, "conv2d: layout is 'HWCN' but must be one of NCHW, NHWC, CHWN; write it so"),
    "sizes in another layout": ({"layout": "NHWC"}, r"conv2d: x has 3 channels but w expects 2 \(x \(1, 3, 2, 3\)"),
    "too few axes": ({"layout": "CHWN", "x": X[0]}, r"conv2d: x has shape \(2, 3, 3\) and w has shape .* 4 axes")}


@pytest.mark.parametrize("what", REFUSED)
def test_what_conv2d_refuses(what: str) -> None:
    options, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        layouts.conv2d(**{"x": X, "w": W, **options})


@pytest.mark.skipif(device.resolve("auto") == "cuda", reason="there is a GPU")
def test_without_a_gpu_conv2d_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match="device: 'cuda' was asked for but "):
        layouts.conv2d(X, W, layout="NCHW")


def test_another_algorithm_takes_no_layout() -> None:
    g = conv_geometry(X.shape, W.shape, None, 1, 0, "winograd")
    with pytest.raises(ValueError, match=(
            r"conv2d: algorithm 'winograd' cannot compute y of x \(1, 2, 3, 3\) and w \(1, 2, 2, 2\) in NHWC: only "
            "direct, tiled, krizhevsky, implicit_gemm take a layout; use another algorithm")):
        launchers.run("winograd", "y", "NHWC", g, X, W, None)


def test_turned_refuses() -> None:
    with pytest.raises(ValueError, match="turned: layout is 'NCWH' but must be one of NCHW, NHWC, CHWN; write it so"):
        layouts.turned(X, "NCWH")
    with pytest.raises(ValueError, match=r"turned: the array has shape \(2, 3, 3\) but must have 4 axes, those of NC"):
        layouts.turned(X[0], "NHWC")


@pytest.mark.parametrize(("given", "name"), [(minidl.Tensor(X), "Tensor"), ([[1.0]], "list")])
def test_what_is_not_an_array_is_refused(given: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^turned: got a {name} but it must be a NumPy or CuPy array; of a Te"):
        layouts.turned(given, "NHWC")
    for arrays in ((given, W), (X, given), (X, W, given)):
        with pytest.raises(TypeError, match=f"^conv2d: got a {name} but it must be a NumPy or CuPy array"):
            layouts.conv2d(*arrays, layout="NHWC")


def test_directions_without_a_kernel_and_tiles_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "most_shared", lambda: 232448)
    g, dtype = conv_geometry((2, 3, 9, 9), (4, 3, 3, 3), None, 1, 0, "tiled"), np.dtype(np.float32)
    for name in ("tiled", "krizhevsky"):
        with pytest.raises(ValueError, match=f"'{name}' cannot compute dw .* in CHWN: its kernel for dw takes NCHW"):
            launchers.run(name, "dw", "CHWN", g, X, X)
    wide = conv_geometry((16, 8, 60, 60), (4, 8, 50, 50), None, 1, 0, "tiled")
    assert launchers.refusal("tiled", "y", wide, dtype, "NCHW") is None
    for name in ("tiled", "krizhevsky"):
        reason = launchers.refusal(name, "y", wide._replace(kh=30, kw=30), dtype, "NHWC") or ""
        assert "bytes of shared memory but a block has 232448" in reason
