"""Convolution by cuFFT: ops/common/conv/fft.py on CuPy arrays, with our own matrix product at each frequency.

Products of complex matrices are products of real ones: an array of complex numbers is one of pairs, so that
(Re A + i Im A) @ B is two products with the pairs of B as columns. `gemm` takes cuBLAS if that pays.

A compiled step is captured as a CUDA graph, in which cuFFT runs but makes no plan. So plans are kept. Those that an
eager run made serve the capture after it. Those that a graph was captured with are never freed, since its kernels read
a plan's tables. A plan with memory of its own is not captured: two of a graph's branches might run it at once.

`auto` tries it if its count of multiplications is far below the formula's. `auto` measures in a graph, after an eager
call that makes the plans, so what it chooses runs in both: a step that is compiled runs eagerly before it is captured.

cuFFT is a library of its own, which CuPy does not bring, but the extra cuda13 does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

from .....core import device
from .....core.host import install
from ....common.conv import fft
from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch
from ...layers.linear import gemm

MIN_SAVED = 8                              # multiplications of the formula for one of it: filters of 7x7 on 32 channels
MAX_PLANS = 256                            # kept, not counting those of graphs; all their memory is within the limit
ALIGNMENT = 16                             # bytes, of what cuFFT transforms

_plans: dict[tuple[Any, ...], Any] = {}    # the one used last at the end
_captured: dict[int, Any] = {}             # plans of graphs, by their id


def _library() -> Any:
    """CuPy's transforms that take plans. Raises ImportError if cuFFT is missing."""
    import cupyx.scipy.fft
    from cupy.cuda import cufft  # noqa: F401  # the import above does without

    return cupyx.scipy.fft


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    try:
        _library()
    except ImportError:
        return f"cuFFT is not installed; run {install('cuda13')}, or {install('cuda12')} if CuPy is for CUDA 12"
    if device.precision() != "fp32" and dtype == np.float32:
        return f"the precision is {device.precision()} but it computes in fp32 (minidl.set_precision)"
    t = fft.tiling(direction, g)
    if t.frequencies > fft.MAX_FREQUENCIES:
        return f"a tile has {t.frequencies} frequencies but a product has at most {fft.MAX_FREQUENCIES} matrices"
    size = 2 * t.frequencies * t.per_image * max(2, g.m if direction == "dx" else g.c)
    if size > launch.MAX_ELEMENTS:
        return f"one transformed image has {size} elements but kernels count to {launch.MAX_ELEMENTS}"
    return None


def pays(direction: str, g: ConvGeometry) -> bool:
    """Whether it may be the fastest. Loading cuFFT, making plans and measuring take too long to be tried everywhere."""
    formula = g.n * g.m * g.c * g.oh * g.ow * g.kh * g.kw
    return formula >= MIN_SAVED * fft.multiplications(g, fft.tiling(direction, g))


# ---------------------------------------------------------------- transforms
def _held(*plans: Any) -> int:
    """Bytes of memory of plans."""
    return sum(plan.work_area.mem.size for plan in plans)


def _plan(library: Any, kind: str, a: Array, size: tuple[int, int]) -> Any:
    # A plan has one stream and one workspace: each thread has its own
    key = kind, len(a), size, a.dtype, cupy.cuda.runtime.getDevice(), threading.get_ident()
    capturing = cupy.cuda.get_current_stream().is_capturing()
    plan = _plans.pop(key, None)
    if plan is None:
        if capturing:
            raise NotImplementedError(f"fft: cuFFT makes no plan while a stream is captured, and has none for {len(a)} "
                                      f"tiles of {size[0]}x{size[1]}; run it before")
        try:
            plan = library.get_fft_plan(a, size, (1, 2), kind)
        except RuntimeError as error:      # CuFFTError, for want of memory too: `auto` passes over it
            raise MemoryError(f"fft: cuFFT makes no plan for {len(a)} tiles of {size[0]}x{size[1]}: {error}; use "
                              "another algorithm, or a smaller minidl.set_workspace_limit") from None
        while len(_plans) >= MAX_PLANS or (_plans and _held(plan, *_plans.values()) > device.workspace_limit()):
            del _plans[next(iter(_plans))]
    _plans[key] = plan
    if capturing:
        if _held(plan):
            raise NotImplementedError(f"fft: cuFFT takes {_held(plan)} bytes of memory for {len(a)} tiles of {size[0]}x"
                                      f"{size[1]}, which branches of a graph would share; run it eagerly")
        _captured[id(plan)] = plan
    return plan


def _forward(x: Array, size: tuple[int, int]) -> Array:
    if x.shape[-2:] == size:
        tiles = launch.dense(x)
        if tiles.data.ptr % ALIGNMENT:     # a view that starts in between
            tiles = tiles.copy()
    else:
        tiles = cupy.zeros((*x.shape[:-2], *size), x.dtype)
        tiles[..., :x.shape[-2], :x.shape[-1]] = x
    flat, library = tiles.reshape(-1, *size), _library()
    return library.rfftn(flat, axes=(1, 2), plan=_plan(library, "R2C", flat, size)).reshape(
        *x.shape[:-2], size[0], -1)


def _inverse(x: Array, size: tuple[int, int]) -> Array:
    """norm="forward": this way CuPy does not divide, which would be a pass more over all tiles."""
    flat, library = x.reshape(-1, *x.shape[-2:]), _library()
    return library.irfftn(flat, size, (1, 2), "forward", overwrite_x=True,
                          plan=_plan(library, "C2R", flat, size)).reshape(*x.shape[:-2], *size)


# ---------------------------------------------------------------- products of complex matrices
def _product(a: Array, b: Array) -> Array:
    """(f,o,a) @ (f,a,l): both products in one, as rows side by side."""
    pairs, (f, o, inputs) = a.real.dtype, a.shape
    parts = launch.empty((f, 2 * o, inputs), pairs)
    parts[:, :o], parts[:, o:] = a.real, a.imag
    sums = gemm(parts, b.view(pairs), launch.empty((f, 2 * o, 2 * b.shape[2]), pairs)).view(b.dtype)
    return sums[:, :o] + 1j * sums[:, o:]


def _correlation(a: Array, b: Array) -> Array:
    """conj (f,m,l) @ (f,c,l)^T: the real part is the product of the pairs, the imaginary one that with -i b."""
    pairs = a.real.dtype
    real, imaginary = (gemm(a.view(pairs), each.view(pairs), launch.empty((len(a), a.shape[1], b.shape[1]), pairs),
                            transpose_b=True) for each in (b, -1j * b))
    return real + 1j * imaginary


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    return launch.empty(shape, dtype)      # looked up at each call: tests put memory with edges in its place


def _each(count: int, chunk: int, work: fft.Work) -> Iterator[Any]:
    """One after the other, so that the memory of one serves the next."""
    for i in range(0, count, chunk):
        yield work(i, min(i + chunk, count))


def _bytes() -> int:
    """Half of the workspace for filters, and half for images; no array of them is larger than kernels can count."""
    return min(device.workspace_limit() // 2, 4 * launch.MAX_ELEMENTS)


BACKEND = fft.Backend(cupy, _empty, _forward, _inverse, lambda points: 1 / points, _product, _correlation, _each,
                      _bytes, _bytes)

y = functools.partial(fft.y, BACKEND)
dx = functools.partial(fft.dx, BACKEND)
dw = functools.partial(fft.dw, BACKEND)
