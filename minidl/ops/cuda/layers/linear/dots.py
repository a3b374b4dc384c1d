"""Products of thin or tiny matrices on CUDA, which leave most of a tile of gemm.cu empty: dot products of lines."""

from __future__ import annotations

import functools
import math

import numpy as np

from ....common.primitives import Array
from ... import launch
from ...reduce.teams import runs, teams_of

FILE, THREADS = "layers/linear/dots.cu", launch.THREADS
MAX_SPLITS = 1 << 10
ROWS, MIN_RESULTS = 4, 1 << 18             # results of a thread, if there are at least MIN_RESULTS and sums are short

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(np.dtype(dtype)), ("ROWS", rows))) for dtype in ("float32", "float64") for rows in (1, ROWS)]


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], cols: int, x_steps: tuple[int, ...], y_steps: tuple[int, ...],
          dtype: np.dtype, bias_row: bool) -> tuple[launch.Plan, launch.Plan | None, int] | None:
    """(the product's launch, the one that adds up its splits if there are several, the lanes of that). None if the
    batch has more than two axes. shape: (..., rows, depth). bias_row: whether the bias has a value for each row, not
    for each column. Sizes and steps alone decide."""
    *lead, rows, depth = shape
    batch = runs(zip(reversed(lead), reversed(x_steps[:-2]), reversed(y_steps[:-2]), strict=True))
    if len(batch) > 2:
        return None
    (near, x_near, y_near), (_, x_far, y_far) = (*batch, (1, 0, 0), (1, 0, 0))[:2]
    x_row, x_depth, y_depth, y_col = *x_steps[-2:], *y_steps[-2:]
    batches = math.prod(lead)
    results = batches * rows * cols
    lanes, splits, chunk = 1, 1, depth
    if cols == 1:
        beside, of_x, of_y = (rows, x_row, 0) if rows > 1 else (near, x_near, y_near)
        across = of_x == 1 != x_depth or of_y == 1 != y_depth
        lanes, _, splits, chunk = teams_of(results, depth, beside if across else 1, MAX_SPLITS)
    each = ROWS if lanes == splits == 1 and rows >= ROWS and results >= MIN_RESULTS else 1
    struct = launch.by_value(
        "Dots", batches=batches, near=near, rows=rows, cols=cols, depth=depth, x_far=x_far, x_near=x_near, x_row=x_row,
        x_depth=x_depth, y_far=y_far, y_near=y_near, y_col=y_col, y_depth=y_depth, bias_row=int(bias_row),
        bias_col=int(not bias_row), lanes=lanes, splits=splits, chunk=chunk)
    constants = launch.real(dtype), ("ROWS", each)
    teams = batches * -(-rows // each) * cols * splits
    of_parts = launch.lanes_per_row(splits, rows=results)
    product = launch.Plan(FILE, "dots", constants, (launch.blocks(teams * lanes, THREADS),), THREADS, 0, struct,
                          splits=splits)
    finish = None if splits == 1 else launch.Plan(
        FILE, "dots_finish", constants, (launch.blocks(results * of_parts, THREADS),), THREADS)
    launch.prepare(product, finish)
    return product, finish, of_parts


def dot_products(x: Array, y: Array, bias: Array | None = None) -> Array:
    """(..., i, j) @ (..., j, k), plus a bias (k,); of any sizes and in any order of memory, exact in all precisions."""
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (a if a.shape[:-2] == lead else np.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (x, y))
    out = launch.empty((*lead, x.shape[-2], y.shape[-1]), x.dtype)
    if not out.size:
        return out
    turned = x.shape[-2] == 1              # so that the vector is always on the right
    left, right = (y.swapaxes(-1, -2), x.swapaxes(-1, -2)) if turned else (x, y)
    (x_memory, x_steps), (y_memory, y_steps) = launch.flat(left), launch.flat(right)
    plan = _plan(left.shape, right.shape[-1], x_steps, y_steps, x.dtype, turned)
    if plan is None:
        return dot_products(launch.dense(x), launch.dense(y), bias)
    product, finish, lanes = plan
    if finish is None:
        product.start(x_memory, y_memory, bias, out, product.struct)
        return out
    parts = launch.empty((out.size, product.splits), x.dtype)
    product.start(x_memory, y_memory, None, parts, product.struct)
    finish.start(parts, bias, out, lanes, product.struct)
    return out
