"""The fully connected layer on CUDA, and the matrix product that convolution by unrolling shares with it.

x (n,in), w (out,in), b (out,), y (n,out).
"""

from __future__ import annotations

import functools

import cupy
import numpy as np

from .....core.device import precision
from ....common.primitives import Array
from ... import launch
from ...reduce import sum_first
from .dots import dot_products
from .tile import BK, BN, MIN_SLABS_PER_SPLIT, MODES, TILES, rows_per_block

__all__ = ["linear", "linear_grad_b", "linear_grad_w", "linear_grad_x"]

FILE = "layers/linear/gemm.cu"
TILE, DEPTH = 16, 64                       # of gemm_tiled
MAX_TILED = 1 << 18                        # elements of C up to which blocks of 16x16 keep more multiprocessors busy,
MAX_TILED_WORK = 1 << 26                   # if there are no more multiplications than this
SLABS_PER_BLOCK, SLABS_PER_FINISH = 3, 4   # what it costs to begin and end a block; to add up splits, a launch more
MAX_TURNS = 6                              # of the multiprocessors for split tiles, which take memory
MAX_TINY = 256                             # elements of a matrix that dot products read anew for each result;
MIN_SIDE, MANY = 8, 1 << 18                # with no side below MIN_SIDE, of fewer than MANY results: beyond, tiles pay
MIN_CUBLAS = 1 << 28                       # multiplications from which cuBLAS's better kernel beats its slower call


def _mode(dtype: np.dtype, precision: str) -> str:
    """How products are computed: PRECISION in include/tile.cuh. float64 is always float64."""
    return MODES[precision] if dtype == np.float32 else "FP32"


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(np.dtype(dtype)), ("BM", bm), ("PRECISION", how), ("TA", ta), ("TB", tb), *wide))
    for dtype, how, bm in TILES for ta, tb, *wide in ((0, 0), (0, 1), (1, 0), (0, 1, ("WIDE", 1)), (1, 0, ("WIDE", 1)))]


def gemm(a: Array, b: Array, out: Array, *, transpose_a: bool = False, transpose_b: bool = False,
         bias: Array | None = None, accumulate: bool = False, tiled: bool | None = None) -> Array:
    """out (batch,r,s) = a (batch,r,k) @ b (batch,k,s), plus bias (r,), plus what is in out if it accumulates.

    transpose_a: a is stored (batch,k,r); transpose_b: b is stored (batch,s,k). A batch of 1 serves all. An out of batch
    1 for several a or b is the sum over the batch, in a fixed order. tiled: one output per thread instead of a register
    tile; by default if out is small. All arrays in C order.
    """
    depth = a.shape[1] if transpose_a else a.shape[2]
    batches, rows, cols = out.shape
    if tiled is None and _pays(out.dtype, rows * cols * depth * batches) and not accumulate \
            and len(a) in (1, batches) and len(b) in (1, batches):
        cupy.matmul(a.swapaxes(1, 2) if transpose_a else a, b.swapaxes(1, 2) if transpose_b else b, out=out)
        return out if bias is None else cupy.add(out, bias[:, None], out)
    return product_of(a, b, bias, out, (batches, rows, cols, depth, len(a), len(b), accumulate, 0), transpose_a,
                    transpose_b, tiled)


def _pays(dtype: np.dtype, multiplications: int) -> bool:
    """Whether cuBLAS computes the same and is faster; it cannot be captured in a graph.

    The number is checked first: small products are many, and each check costs the host time.
    """
    return (multiplications >= MIN_CUBLAS and _mode(dtype, precision()) == "FP32"
            and not launch.is_captured())


@functools.lru_cache(maxsize=4096)
def is_thin(rows: int, cols: int, depth: int) -> bool:
    """Whether the product of (rows,depth) and (depth,cols) is one of a vector, outer, or with a tiny matrix."""
    narrow = min(rows, cols, depth)
    return narrow <= 1 or (depth * min(rows, cols) <= MAX_TINY and (narrow < MIN_SIDE or rows * cols < MANY))


def _splits(tiles: int, slabs: int, min_slabs: int) -> int:
    """Splits of the depth: those with which all tiles take the least time, in slabs, with two blocks per
    multiprocessor."""
    at_a_time = 2 * launch.multiprocessors()

    def time(splits: int) -> int:
        turns = -(-tiles * splits // at_a_time)
        return turns * (-(-slabs // splits) + SLABS_PER_BLOCK) + (SLABS_PER_FINISH if splits > 1 else 0)
    return min(range(1, max(1, min(slabs // min_slabs, MAX_TURNS * at_a_time // max(1, tiles))) + 1), key=time)


@functools.lru_cache(maxsize=4096)
def _plan(sizes: tuple[int, ...], dtype: np.dtype, precision: str, transpose_a: bool, transpose_b: bool,
          tiled: bool | None, fused: tuple[launch.Constant, ...],
          aligned: bool) -> tuple[launch.Plan, launch.Plan | None]:
    """The product's launch, and, if the depth is split, the one which sums the splits' products. If tiles are few even
    though the depth is split as often as pays, they are made lower."""
    batches, rows, cols, depth, a_batches, b_batches, accumulate, bias_axis = sizes
    how, size = _mode(dtype, precision), batches * rows * cols
    if tiled is None:
        scale = 1 if how == "FP32" else 8  # tensor cores pay earlier; if they do not, exact products do no harm
        tiled = scale * size <= MAX_TILED and scale * size * depth * max(a_batches, b_batches) <= MAX_TILED_WORK
    sum_batches = max(a_batches, b_batches) if batches == 1 else 1
    bm, bn, bk, min_slabs = (TILE, TILE, DEPTH, 2) if tiled else (rows_per_block(rows), BN, BK, MIN_SLABS_PER_SPLIT)
    slabs = sum_batches * -(-depth // bk)
    most = max(1, slabs // min_slabs)
    while bm > 16 and most * launch.blocks(rows, bm) * launch.blocks(cols, bn) * batches < launch.multiprocessors():
        bm //= 2
    tiles_m, tiles_n = launch.blocks(rows, bm), launch.blocks(cols, bn)
    splits = _splits(tiles_m * tiles_n * batches, slabs, min_slabs)
    matrices = launch.by_value(
        "Matrices", rows=rows, cols=cols, depth=depth, a_batch=rows * depth if a_batches > 1 else 0,
        b_batch=depth * cols if b_batches > 1 else 0, sum_batches=sum_batches, splits=splits,
        bias_rows=int(bias_axis == 0), bias_cols=int(bias_axis == 1), accumulate=int(accumulate))
    wide = aligned and not tiled and cols % 4 == 0 and not (transpose_a and rows % 4)
    constants = (launch.real(dtype), ("BM", 16 if tiled else bm), ("PRECISION", how), ("TA", int(transpose_a)),
                 ("TB", int(transpose_b)), *fused, *((("WIDE", 1),) if wide else ()))
    product = launch.Plan(FILE, "gemm_tiled" if tiled else "gemm_registers", constants,
                          (tiles_n, tiles_m, batches * splits), 256, 0, matrices)
    finish = launch.Plan(FILE, "gemm_finish", constants, (launch.blocks(size, 256),), 256) if splits > 1 else None
    launch.prepare(product, finish)
    return product, finish


def product_of(a: cupy.ndarray, b: cupy.ndarray, bias: Array | None, out: cupy.ndarray, sizes: tuple[int, ...],
             transpose_a: bool, transpose_b: bool, tiled: bool | None = None, fused: tuple[launch.Constant, ...] = (),
             y: Array | None = None) -> Array:
    """Our own kernels; sizes (batches, rows, cols, depth, batches of a, batches of b, accumulate, axis of the bias)."""
    if not out.size:
        return out
    product, finish = _plan(sizes, out.dtype, precision(), transpose_a, transpose_b, tiled, fused,
                            (a.data.ptr | b.data.ptr | out.data.ptr) % 16 == 0)
    if finish is None:
        product.start(a, b, bias, y, out, product.struct)
        return out
    batches, rows, cols, *_ = sizes
    parts = launch.empty((product.grid[2], rows, cols), out.dtype)
    product.start(a, b, None, None, parts, product.struct)
    finish.start(parts, bias, y, out, batches, product.struct)
    return out


# ---------------------------------------------------------------- the primitives
def _two(a: Array, b: Array, bias: Array | None, rows: int, cols: int, depth: int, transpose_a: bool,
         transpose_b: bool) -> Array:
    """One product of matrices in any memory order, with a bias for each column."""
    if is_thin(rows, cols, depth):
        return dot_products(a.T if transpose_a else a, b.T if transpose_b else b, bias)
    if _pays(a.dtype, rows * cols * depth):
        out = cupy.matmul(a.T if transpose_a else a, b.T if transpose_b else b)
        return out if bias is None else cupy.add(out, bias, out)
    out = launch.empty((rows, cols), a.dtype)
    return product_of(a, b, bias, out, (1, rows, cols, depth, 1, 1, False, 1), transpose_a, transpose_b)


def linear(x: Array, w: Array, b: Array | None) -> Array:
    return _two(x, w, b, len(x), len(w), x.shape[1], False, True)


def linear_grad_x(gy: Array, w: Array) -> Array:
    return _two(gy, w, None, len(gy), w.shape[1], len(w), False, False)


def linear_grad_w(gy: Array, x: Array) -> Array:
    return _two(gy, x, None, gy.shape[1], x.shape[1], len(x), True, False)


def linear_grad_b(gy: Array) -> Array:
    return sum_first(gy)
