"""The 2009 report's kernels, beside what all algorithms are tested for: its variants, and kernels without loads.

Counts are the emulator's, and need g++; random shapes need a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.compiler import needs_compiler  # noqa: E402
from checks.convolutions import krizhevsky_variants, loads_left_out, variants_of_krizhevskys  # noqa: E402
from checks.problems import drawn  # noqa: E402
from checks.sources import Constants, compiled  # noqa: E402
from tiers import tiered  # noqa: E402

from minidl.lab.check import random_shapes  # noqa: E402
from minidl.lab.emulator.counts import Counts  # noqa: E402
from minidl.ops.common.geometry import conv_geometry  # noqa: E402
from minidl.ops.cuda import launch  # noqa: E402
from minidl.ops.cuda.conv.papers import krizhevsky  # noqa: E402

ABLATIONS, VARIANTS = krizhevsky_variants.ABLATIONS, krizhevsky_variants.VARIANTS

pytestmark = pytest.mark.usefixtures("fp32")

WINDOWS = [(8, 8, 1, 1), (5, 5, 1, 1), (3, 3, 2, 2), (1, 7, 1, 2)]
IMAGES, FILTERS, BOTH = ABLATIONS


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_variants_have_the_bits_of_the_kernel(dtype: type, canaries: Any) -> None:
    shapes = list(random_shapes(2009, 60, WINDOWS))
    compared = sum(variants_of_krizhevskys(g, seed, dtype, canaries) for seed, g in enumerate(shapes))
    print(f"compared {compared} cases of {len(VARIANTS)} variants")
    assert compared == 60 * len(VARIANTS)


@pytest.mark.gpu
def test_the_reports_layer_by_its_variants_and_without_loads(canaries: Any) -> None:
    g = conv_geometry((128, 3, 32, 32), (64, 3, 8, 8), None, 1, ((4, 3), (4, 3)), "gemm")
    variants_of_krizhevskys(g, 1, np.float32, canaries)
    loads_left_out(g, np.float32, canaries)


@pytest.mark.parametrize("configuration", tiered(krizhevsky_variants.CONFIGURATIONS, slow=1))
def test_each_compiles_without_a_gpu(configuration: tuple[str, Constants]) -> None:
    file, constants = configuration
    assert compiled(launch.source(file), constants, 90)


# ---------------------------------------------------------------- what is left out, counted
G = conv_geometry((2, 2, 16, 16), (20, 2, 8, 8), None, 1, ((4, 3), (4, 3)), "gemm")


def counted(direction: str, left_out: str | None) -> Counts:
    """Of a kernel on G, which has no bias, with some loads left out."""
    from minidl.lab.emulator import own

    launcher, constants = {"y": krizhevsky.y, "dw": krizhevsky.dw}[direction], ABLATIONS[left_out] if left_out else ()
    with own.counting() as tables:
        arrays = [None if a is None else own.cupy.asarray(a) for a in drawn(G, 2, np.float32).inputs(direction)]
        launcher(*arrays, G, left_out=constants)
    table = tables[f"conv2d_krizhevsky_{direction}"]
    assert table.complete
    return table.total


def pixels(rows: int) -> int:
    """Of a channel that a block loads, over all its windows of so many rows of outputs."""
    windows = (range(i - G.top, i - G.top + rows + G.kh - 1) for i in range(0, G.oh, rows))
    return G.w * sum(len(set(window) & set(range(G.h))) for window in windows)


@needs_compiler
@pytest.mark.parametrize("direction", tiered(["y", "dw"], slow=1))
def test_what_is_left_out_is_not_loaded(direction: str) -> None:
    """To the byte; and the rest of the kernel does what it did."""
    if direction == "y":
        images, filters = 4 * G.n * G.m * G.c * pixels(8), 4 * G.n * G.m * G.c * G.kh * G.kw
    else:
        groups = 2                         # of 16 filters; each loads the image anew, and gy once a channel
        images, filters = 4 * G.n * groups * G.c * pixels(4), 4 * G.n * G.m * G.c * G.oh * G.ow
    whole = counted(direction, None)
    without = {name: counted(direction, name) for name in ABLATIONS}
    assert whole.loads.asked == images + filters
    assert {name: whole.loads.asked - counts.loads.asked for name, counts in without.items()} == {
        IMAGES: images, FILTERS: filters, BOTH: images + filters}
    for counts in without.values():
        assert counts.loads.sectors < whole.loads.sectors
        assert (counts.stores, counts.shared_loads, counts.barriers) == (
            whole.stores, whole.shared_loads, whole.barriers)
    print(f"{direction}: {len(without)} kernels compared; of {whole.loads.asked} bytes {images} are of images")
