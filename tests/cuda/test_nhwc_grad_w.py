"""The gradient of the filters of images in NHWC: emulated on the CPU, and on a device, on random shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks import grad_w
from checks.sources import compiled, spilled
from emulator import COMPILER, Emulator, cupy

from minidl.ops.common.geometry import ConvGeometry, conv_geometry
from minidl.ops.cuda import launch
from minidl.ops.cuda.nhwc import conv_grad_w

EMULATED, ON_DEVICE = 60, 2000             # random shapes; on a device for each of KINDS
# Shapes of their own: no images; one pixel; rows in parts; rows of few channels whole; more channels than a slab has
OWN = [((0, 3, 5, 5), (4, 3, 3, 3), 1, 1), ((1, 1, 1, 1), (1, 1, 1, 1), 1, 0), ((1, 8, 2, 150), (9, 8, 2, 3), 1, 1),
       ((3, 3, 16, 16), (64, 3, 3, 3), 1, 1), ((2, 200, 5, 6), (12, 200, 3, 3), 1, 1),
       ((2, 5, 4, 300), (8, 5, 2, 5), (1, 3), 2), ((5, 136, 7, 7), (136, 136, 3, 3), 1, 1)]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    if COMPILER is None:
        pytest.skip("the emulator needs Linux and a C++ compiler, g++ or c++")
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def emulated(compiler: Emulator) -> Iterator[Emulator]:
    with compiler.running() as running:
        yield running


def geometry(x: Any, w: Any, stride: Any, padding: Any) -> ConvGeometry:
    return conv_geometry(x, w, None, stride, padding, "auto")


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("number", range(EMULATED))
def test_random_shapes(number: int) -> None:
    assert grad_w.failure(grad_w.random_geometry(number, 300_000), *grad_w.KINDS[number % 4], number) is None


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("row", OWN, ids=str)
@pytest.mark.parametrize("kind", [("float32", "tf32"), ("bf16", "bf16")], ids=str)
def test_shapes_of_their_own(row: tuple[Any, ...], kind: tuple[str, str]) -> None:
    assert grad_w.failure(geometry(*row), *kind, 1) is None


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", grad_w.KINDS, ids=str)
def test_by_mma(kind: tuple[str, str]) -> None:
    """As on a GPU that has no wgmma."""
    with mock.patch.object(launch, "compute_capability", return_value=80):
        conv_grad_w.plan.cache_clear()
        try:
            for row in OWN[2:5]:
                assert grad_w.failure(geometry(*row), *kind, 2) is None
        finally:
            conv_grad_w.plan.cache_clear()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("mode", conv_grad_w.FORMS)
def test_every_form(mode: str) -> None:
    kind = ("bf16", "bf16") if mode == "BF16" else ("float32", {"TF32": "tf32", "TF32X3": "3xtf32"}[mode])
    for form in conv_grad_w.FORMS[mode]:
        for splits in (1, 3):
            failure = grad_w.failure(geometry((3, 72, 4, 6), (80, 72, 2, 3), 1, 1), *kind, 3, form=form, splits=splits)
            assert failure is None, form


def test_the_check_sees_errors() -> None:
    """A gradient with one pixel left out is outside of the bound."""
    problem = grad_w.drawn(geometry(*OWN[-1]), "bf16", 1)
    dy, x = problem.wide
    less = dy.copy()
    less[0, 0, 0] = 0
    errors = np.abs(grad_w.gradient(problem.g, less, x) - grad_w.gradient(problem.g, dy, x))
    assert (errors > 10 * grad_w.bound(problem, "bf16", "bf16")).mean() > 0.1


REFUSED: dict[str, tuple[Callable[[Any, Any, ConvGeometry], Any], type[Exception], str]] = {
    "another dtype": (lambda dy, x, g: conv_grad_w.grad_w(dy.astype(float), x, g, precision="tf32"), TypeError,
                      "conv2d_nhwc_dw: dy is float64 and x is float32 but both must be float32, or bf16 as uint16"),
    "another shape": (lambda dy, x, g: conv_grad_w.grad_w(dy, x[1:], g, precision="tf32"), ValueError,
                      r"conv2d_nhwc_dw: x has shape \(2, 5, 6, 8\) and dy .*; pass images in NHWC"),
    "fp32": (lambda dy, x, g: conv_grad_w.grad_w(dy, x, g, precision="fp32"), ValueError,
             "conv2d_nhwc_dw: the precision is 'fp32' but it must be tf32, 3xtf32 or bf16"),
    "bf16 in tf32": (lambda dy, x, g: conv_grad_w.grad_w(*(a.astype("u2") for a in (dy, x)), g, precision="tf32"),
                     ValueError, ".*precision is 'tf32' but .*, and bf16 for those of bf16; set another"),
}


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("what", REFUSED)
def test_arguments_are_refused(what: str) -> None:
    call, error, message = REFUSED[what]
    g = geometry((3, 8, 5, 6), (4, 8, 3, 3), 1, 1)
    dy, x = cupy.asarray(np.zeros((3, 5, 6, 4), np.float32)), cupy.asarray(np.zeros((3, 5, 6, 8), np.float32))
    with pytest.raises(error, match=message):
        call(dy, x, g)


@pytest.mark.usefixtures("emulated")
def test_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "compute_capability", lambda: 75)
    with pytest.raises(ValueError, match=r"the GPU's compute capability is 7.5 but tf32 and bf16 need 8.0; use"):
        conv_grad_w.grad_w(
            cupy.asarray(np.zeros((1, 1, 1, 1), np.float32)), cupy.asarray(np.zeros((1, 1, 1, 1), np.float32)),
            geometry((1, 1, 1, 1), (1, 1, 1, 1), 1, 0), precision="tf32")


@pytest.mark.usefixtures("emulated")
def test_filters_too_large_for_shared_memory_are_refused() -> None:
    g = geometry((1, 120, 64, 2000), (4, 120, 64, 2000), 1, 0)
    with pytest.raises(ValueError, match=r"filters of 64x2000 take \d+ bytes of shared memory but a block has 232448"):
        conv_grad_w.plan(g, "TF32", (16, 16))


def test_products_are_not_serialized() -> None:
    """Nor do kernels for Hopper spill registers."""
    pytest.importorskip("cuda.core", reason="cuda.core is not installed: nothing compiles CUDA without a GPU")
    text = launch.source(conv_grad_w.FILE)

    def check(constants: tuple[launch.Constant, ...]) -> str | None:
        log = compiled(text, constants, 90)
        found = [line for line in log.splitlines() if "serialized" in line]
        spills = sum(spilled(log).values())
        return f"{dict(constants)}: {found[:1]}, {spills} bytes spilled" if found or spills else None

    rows = [constants for _, constants in conv_grad_w.CONFIGURATIONS if launch.HOPPER in constants]
    with ThreadPoolExecutor(2) as pool:
        failures = list(filter(None, pool.map(check, rows)))
    assert len(rows) > 15
    assert not failures, "\n".join(failures)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", grad_w.KINDS, ids=str)
def test_random_shapes_on_a_device(kind: tuple[str, str]) -> None:
    failures = [grad_w.failure(grad_w.random_geometry(number, 4_000_000), *kind, number) for number in range(ON_DEVICE)]
    found = [failure for failure in failures if failure]
    assert not found, f"{len(found)} of {ON_DEVICE} failed:\n" + "\n".join(found[:10])
