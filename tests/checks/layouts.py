"""Checks of the CUDA convolutions that take a layout: NHWC and CHWN against the CPU's float64, which is NCHW."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from checks.agrees import compare
from checks.problems import Problem, drawn
from minidl.lab.check import FEW_MULTIPLICATIONS, random_shapes
from minidl.lab.layouts import turned
from minidl.ops.common.geometry import ConvGeometry, conv_geometry

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops.cuda.conv import layouts  # noqa: E402

OTHERS = ("NHWC", "CHWN")
# (kh, kw, sh, sw): few, because some kernels are compiled for each, and in NHWC for the number of channels, too
WINDOWS = [(3, 3, 1, 1), (2, 3, 2, 1), (5, 4, 1, 2), (1, 1, 1, 1)]
# x, w, stride, padding: fewer and more than 16 images and maps, and of 4 a multiple; channels in one round and in two
ALWAYS: list[tuple[Any, ...]] = [
    ((3, 2, 9, 10), (5, 2, 3, 3), 1, 1), ((18, 3, 12, 11), (20, 3, 5, 4), (1, 2), ((1, 2), (0, 3))),
    ((4, 9, 8, 8), (8, 9, 3, 3), 1, 1), ((17, 1, 6, 6), (2, 1, 6, 6), 1, 0), ((20, 11, 5, 7), (33, 11, 2, 3), 2, 1),
    ((0, 2, 5, 5), (3, 2, 3, 3), 1, 1)]


def geometries(seed: int, random: int, multiplications: float = FEW_MULTIPLICATIONS) -> Iterator[ConvGeometry]:
    """Those that are easily forgotten, and so many random ones."""
    yield from (conv_geometry(x, w, None, stride, padding, "gemm") for x, w, stride, padding in ALWAYS)
    yield from random_shapes(seed, random, WINDOWS, multiplications)


def arrays_of(problem: Problem, direction: str, layout: str) -> list[Any]:
    """On the GPU, in a layout: images, filters if they are the second, a bias as it is."""
    filters = [False, direction != "dw", False]
    return [None if a is None else cupy.asarray(turned(a, layout, filters=of) if a.ndim == 4 else a)
            for a, of in zip(problem.inputs(direction), filters)]


def agree(name: str, dtype: type, random: int, canaries: Any, multiplications: float = FEW_MULTIPLICATIONS) -> None:
    """An algorithm's directions in both layouts, on the shapes that are easily forgotten and so many random ones;
    prints how many were compared."""
    seen: Counter[str] = Counter()
    for at, g in enumerate(geometries(8, random, multiplications)):
        problem = drawn(g, at, dtype)
        for direction, layout in itertools.product(layouts.LAUNCHERS[name], OTHERS):
            if layouts.refusal(name, direction, g, np.dtype(dtype), layout):
                continue
            given = arrays_of(problem, direction, layout)
            got, again = (turned(layouts.run(name, direction, layout, g, *given).get(), "NCHW", of=layout,
                                 filters=direction == "dw") for _ in range(2))
            canaries.check()
            compare([got], [problem.exact[direction]], [again], most=[problem.bound(direction)], dtype=np.dtype(dtype))
            seen[f"{direction} {layout}"] += 1
    print(f"{name} {np.dtype(dtype)}: compared", ", ".join(f"{count} of {what}" for what, count in seen.items()))
    assert len(seen) == len(OTHERS) * len(layouts.LAUNCHERS[name])
    assert min(seen.values()) >= len(ALWAYS) + 0.9 * random, f"{name}: too few were compared: {seen}"
