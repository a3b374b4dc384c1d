"""Attention on CuPy arrays: launches attention.cu, which stores no scores, on tensor cores; what that does not compute
is written out as products.

q (...,L,d), k (...,S,d), v (...,S,d) of float32 in the precisions tf32 and bf16, or of uint16, which holds bfloat16; a
mask of float32. They are read wherever they lie, as rows of an array that has q, k and v of all heads. Results of four
axes lie as (n,L,heads,d), so that the heads' results side by side are a view.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import cupy
import numpy as np

from .....core.device import precision
from ....common.geometry.attention import Attention
from ....common.geometry.nhwc import C_TYPES
from ....common.primitives import Array
from ... import launch
from ..linear.matmul import matmul, matmul_grad_x, matmul_grad_y
from ..linear.tile import MODES

__all__ = ["attention", "attention_grad", "attention_grad_mask"]

WRITTEN = Attention(matmul, matmul_grad_x, matmul_grad_y)
FILE = "layers/attention/attention.cu"
THREADS_PER_BLOCK, OWN = 128, 64           # rows of a block, as in attention.cuh
MAX_WIDTH, ALIGNMENT = 128, 16             # of a head; bytes that are read at once
FLOAT, BF16 = np.dtype(np.float32), np.dtype(np.uint16)
Strides = tuple[int, ...]


# ---------------------------------------------------------------- what a kernel is compiled for
def _constants(width: int, dtype: np.dtype, how: str, masked: bool) -> tuple[launch.Constant, ...]:
    return ("PRECISION", how), ("STORE", C_TYPES[dtype]), ("D", width), ("MASKED", int(masked))


def _row_bytes(width: int, how: str) -> int:
    """Of a row in shared memory."""
    step = 16 if how == "BF16" else 8
    return (launch.blocks(width, step) * 8 + 4) * 4


def _tile(width: int, how: str) -> int:
    """Rows of what a block walks over."""
    return 32 if width > (64 if how == "BF16" else 64) else 64


def _shared(width: int, how: str, own: int, tiles: int) -> int:
    """Bytes: matrices of a block's own rows, and of the tiles it walks over."""
    return (own * OWN + tiles * _tile(width, how)) * _row_bytes(width, how)


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, _constants(width, dtype, how, masked)) for width in (8, 32, 64, 128)
    for dtype, how in ((FLOAT, "TF32"), (FLOAT, "BF16"), (BF16, "BF16")) for masked in (False, True)]


def _how(q: Array, k: Array, v: Array, mask: Array | None) -> str | None:
    """PRECISION of the kernels, or None where they do not compute this."""
    how = "BF16" if q.dtype == BF16 else MODES[precision()] if q.dtype == FLOAT else "FP32"
    width = q.shape[-1]
    if (how not in ("TF32", "BF16") or width % 8 or not 0 < width <= MAX_WIDTH or v.shape[-1] != width
            or not (q.size and k.size) or (mask is not None and mask.dtype != FLOAT)
            or launch.compute_capability() < 80):
        return None
    return how if _shared(width, how, 2, 2) <= launch.most_shared() else None


# ---------------------------------------------------------------- where matrices lie
def _flat(x: Array) -> Array:
    """All memory from an array's first number to its last, which may have gaps."""
    extent = 1 + sum((n - 1) * stride // x.itemsize for n, stride in zip(x.shape, x.strides, strict=True))
    return cupy.lib.stride_tricks.as_strided(x, (extent,), (x.itemsize,))


def _heads(x: Array, lead: tuple[int, ...], rows: int) -> Array:
    """As (n,heads,rows,columns), each matrix of its own or one for all"""
    x = np.broadcast_to(x, (*lead, rows, x.shape[-1]))
    return x.reshape(-1, *lead[-1:], *x.shape[-2:]) if len(lead) > 2 else x[(None,) * (2 - len(lead))]


def _matrices(x: Array, lead: tuple[int, ...]) -> tuple[Array, Strides]:
    """The memory of matrices, and how far apart matrices and rows lie; a copy if rows do not begin at 16 bytes."""
    x = _heads(x, lead, x.shape[-2])
    steps = [stride for n, stride in zip(x.shape, x.strides, strict=True) if n > 1]
    if x.strides[-1] != x.itemsize or any(step % ALIGNMENT or step < 0 for step in (x.data.ptr, *steps[:-1])):
        x = cupy.ascontiguousarray(x)
    return _flat(x), tuple(stride // x.itemsize for stride in x.strides[:-1])


def _masked(mask: Array | None, lead: tuple[int, ...], rows: int, columns: int) -> tuple[Array | None, Strides]:
    if mask is None:
        return None, (0, 0, 0, 0)
    mask = _heads(np.broadcast_to(mask, (*mask.shape[:-2], rows, columns)), lead, rows)
    if min(mask.strides) < 0:
        mask = cupy.ascontiguousarray(mask)
    return _flat(mask), tuple(stride // mask.itemsize for stride in mask.strides)


def _empty(lead: tuple[int, ...], rows: int, width: int, dtype: np.dtype) -> tuple[Array, Array]:
    """(memory of (n,rows,heads,d), it as (...,rows,d))"""
    heads = lead[-1] if lead else 1
    memory = launch.empty((math.prod(lead[:-1]), rows, heads, width), dtype)
    return memory, memory.transpose(0, 2, 1, 3).reshape(*lead, rows, width)


# ---------------------------------------------------------------- launches
@functools.lru_cache(maxsize=4096)
def _plan(count: int, queries: int, width: int, dtype: np.dtype, how: str, masked: bool) -> Callable[..., None]:
    return launch.kernel(FILE, "attention", *_constants(width, dtype, how, masked)).sized(
        (count * launch.blocks(queries, OWN),), (THREADS_PER_BLOCK,), _shared(width, how, 1, 2))


def attention(q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float) -> tuple[Array, Array]:
    """(o (...,L,dv), the logarithm of each query's sum (...,L)); see common/geometry/attention.py"""
    how = _how(q, k, v, mask)
    if how is None:
        return WRITTEN.forward(q, k, v, mask, causal, scale)
    lead, (queries, width), keys = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]), q.shape[-2:], len(k)
    keys = k.shape[-2]
    (q, of_q), (k, of_k), (v, of_v) = (_matrices(x, lead) for x in (q, k, v))
    masked, of_mask = _masked(mask, lead, queries, keys)
    memory, o = _empty(lead, queries, width, q.dtype)
    sums = launch.empty((*lead, queries), FLOAT)
    _plan(math.prod(lead), queries, width, q.dtype, how, mask is not None)(
        q, k, v, masked, memory, sums,
        launch.by_value("Heads", heads=lead[-1] if lead else 1, queries=queries, keys=keys, causal=int(causal), q=of_q,
                        k=of_k, v=of_v, go=(0, 0, 0), mask=of_mask, scale=scale))
    return o, sums


def attention_grad(go: Array, q: Array, k: Array, v: Array, mask: Array | None, o: Array, sums: Array, causal: bool,
                   scale: float) -> tuple[Array, Array, Array]:
    """(gq, gk, gv), each of as many heads as o"""
    return WRITTEN.grad(go, q, k, v, mask, o, sums, causal, scale)


attention_grad_mask = WRITTEN.grad_mask
