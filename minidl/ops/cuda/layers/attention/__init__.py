"""Attention on CuPy arrays: launches attention.cu and attention_grad.cu, which store no scores; what they do not
compute is written out as products.

q (...,L,d), k (...,S,d), v (...,S,d) of float32, on tensor cores in the precisions tf32 and bf16, and by multiply-adds
in fp32 and 3xtf32; or of uint16, which holds bfloat16; a mask of float32. They are read in place, as parts of an array
that has q, k and v of all heads. Results of four axes are stored as (n,L,heads,d), so that the heads' results next to
each other are a view.
"""

from __future__ import annotations

import functools
import math

import cupy
import numpy as np

from .....core.device import precision
from ....common.geometry.attention import Attention
from ....common.geometry.nhwc import C_TYPES
from ....common.primitives import Array
from ... import launch
from ..linear.matmul import matmul, matmul_grad_x, matmul_grad_y
from ..linear.tile import MODES

__all__ = ["attention", "attention_grad", "attention_grad_mask", "attention_grad_stored", "attention_stored"]

WRITTEN = Attention(matmul, matmul_grad_x, matmul_grad_y)
FILE, GRAD = "layers/attention/attention.cu", "layers/attention/attention_grad.cu"
THREADS_PER_BLOCK, OWN = 128, 64           # rows of a block, as in attention.cuh
DOT_LANES = 8                              # threads for a query's dot
MAX_WIDTH, ALIGNMENT = 128, 16             # of a head; bytes that are read at once
FLOAT, BF16 = np.dtype(np.float32), np.dtype(np.uint16)
Ints = tuple[int, ...]


# ---------------------------------------------------------------- what kernels compute
def _constants(width: int, dtype: np.dtype, how: str, masked: bool) -> tuple[launch.Constant, ...]:
    return ("PRECISION", how), ("STORE", C_TYPES[dtype]), ("D", width), ("MASKED", int(masked))


def _shared(width: int, how: str, own: int) -> int:
    """Bytes of a block with `own` matrices of its own rows, two tiles, the sums and dots of a tile's queries, and, for
    multiply-adds, weights that go to another product."""
    step, tile = 16 if how == "BF16" else 8, 32 if width > 64 else 64
    words = (own * OWN + 2 * tile) * (launch.blocks(width, step) * 8 + 4) + (2 * tile if own > 1 else 0)
    return 4 * (words + (OWN * (tile + 8) if how == "FP32" else 0))


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (file, _constants(width, dtype, how, masked)) for file in (FILE, GRAD) for width in (8, 32, 64, 128)
    for dtype, how in ((FLOAT, "FP32"), (FLOAT, "TF32"), (FLOAT, "BF16"), (BF16, "BF16")) for masked in (False, True)]


def _how(q: Array, k: Array, v: Array, mask: Array | None) -> str | None:
    """PRECISION of the kernels, or None if they do not compute this."""
    if q.dtype not in (FLOAT, BF16):
        return None
    how, width = "BF16" if q.dtype == BF16 else MODES[precision()], q.shape[-1]
    if how == "TF32X3":                    # three products on tensor cores take as long as one by multiply-adds
        how = "FP32"
    if (width % 8 or not 0 < width <= MAX_WIDTH or v.shape[-1] != width
            or not (q.size and k.size and v.size) or (mask is not None and mask.dtype != FLOAT)
            or (how != "FP32" and launch.compute_capability() < 80)
            or _shared(width, how, 2) > launch.most_shared()):
        return None
    return how


# ---------------------------------------------------------------- how matrices are stored
def _heads(x: Array, lead: Ints) -> cupy.ndarray:
    """(...,rows,columns) as (n,heads,rows,columns)"""
    x = np.broadcast_to(x, (*lead, *x.shape[-2:]))
    return x.reshape(-1, lead[-1], *x.shape[-2:]) if len(lead) > 2 else x[(None,) * (2 - len(lead))]


def _rows(x: cupy.ndarray, lead: Ints) -> tuple[Array, Ints]:
    """The memory of matrices, and the strides of the matrices and of their rows; a copy if rows do not begin at
    multiples of 16 bytes."""
    x = _heads(x, lead)
    apart = [stride for n, stride in zip(x.shape[:-1], x.strides, strict=False) if n > 1]
    if x.strides[-1] != x.itemsize or any(step % ALIGNMENT or step < 0 for step in (x.data.ptr, *apart)):
        x = launch.dense(x)
    memory, steps = launch.flat(x)
    return memory, steps[:-1]


def _added(mask: Array | None, lead: Ints, queries: int, keys: int) -> tuple[Array | None, Ints]:
    if mask is None:
        return None, (0, 0, 0, 0)
    mask = _heads(np.broadcast_to(mask, (*mask.shape[:-2], queries, keys)), lead)
    return launch.flat(mask)


def _empty(lead: Ints, rows: int, width: int, dtype: np.dtype) -> tuple[Array, Array]:
    """(memory of (n,rows,heads,width), it as (...,rows,width))"""
    *others, heads = lead or (1,)
    memory = launch.empty((math.prod(others), rows, heads, width), dtype)
    return memory, memory.transpose(0, 2, 1, 3).reshape(*lead, rows, width)


# ---------------------------------------------------------------- launches
@functools.lru_cache(maxsize=4096)
def _plan(name: str, count: int, queries: int, keys: int, width: int, dtype: np.dtype, how: str,
          masked: bool) -> launch.Plan:
    """Of a kernel for `count` heads."""
    of_queries, of_keys = (count * launch.blocks(rows, OWN) for rows in (queries, keys))
    file, blocks, threads, shared = {
        "attention": (FILE, of_queries, THREADS_PER_BLOCK, _shared(width, how, 1)),
        "attention_dots": (GRAD, launch.blocks(count * queries * DOT_LANES, launch.THREADS), launch.THREADS, 0),
        "attention_grad": (GRAD, of_keys + of_queries, THREADS_PER_BLOCK, _shared(width, how, 2))}[name]
    return launch.Plan(file, name, _constants(width, dtype, how, masked), (blocks,), threads, shared)


def attention(q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float) -> tuple[Array, Array]:
    """(o (...,L,dv), the logarithm of each query's sum (...,L)); see common/geometry/attention.py"""
    how = _how(q, k, v, mask)
    if how is None:
        return WRITTEN.forward(q, k, v, mask, causal, scale)
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    (queries, width), keys = q.shape[-2:], k.shape[-2]
    (of_q, q_steps), (of_k, k_steps), (of_v, v_steps) = (_rows(x, lead) for x in (q, k, v))
    added, mask_steps = _added(mask, lead, queries, keys)
    memory, o = _empty(lead, queries, width, q.dtype)
    sums = launch.empty((*lead, queries), FLOAT)
    heads = launch.by_value("Heads", heads=lead[-1] if lead else 1, queries=queries, keys=keys, causal=int(causal),
                            q=q_steps, k=k_steps, v=v_steps, go=(0, 0, 0), mask=mask_steps, scale=scale)
    _plan("attention", math.prod(lead), queries, keys, width, q.dtype, how, mask is not None).start(
        of_q, of_k, of_v, added, memory, sums, heads)
    return o, sums


def attention_grad(go: Array, q: Array, k: Array, v: Array, mask: Array | None, o: Array, sums: Array, causal: bool,
                   scale: float) -> tuple[Array, Array, Array]:
    """(gq, gk, gv), each of as many heads as o"""
    how = _how(q, k, v, mask)
    if how is None:
        return WRITTEN.grad(go, q, k, v, mask, o, sums, causal, scale)
    lead, (queries, width), keys, dtype = o.shape[:-2], q.shape[-2:], k.shape[-2], q.dtype
    sizes = math.prod(lead), queries, keys, width, dtype, how, mask is not None
    (of_q, q_steps), (of_k, k_steps), (of_v, v_steps), (of_go, go_steps) = (_rows(x, lead) for x in (q, k, v, go))
    added, mask_steps = _added(mask, lead, queries, keys)
    heads = launch.by_value("Heads", heads=lead[-1] if lead else 1, queries=queries, keys=keys, causal=int(causal),
                            q=q_steps, k=k_steps, v=v_steps, go=go_steps, mask=mask_steps, scale=scale)
    # both in the order in which the forward kernel leaves them; a launch copies what has another order
    o, sums = _heads(o, lead).transpose(0, 2, 1, 3), np.broadcast_to(sums, (*lead, queries))
    dots = launch.empty(sums.shape, FLOAT)
    _plan("attention_dots", *sizes).start(of_go, o, dots, dots.size, heads)
    (of_gq, gq), (of_gk, gk), (of_gv, gv) = (_empty(lead, rows, width, dtype) for rows in (queries, keys, keys))
    _plan("attention_grad", *sizes).start(of_q, of_k, of_v, of_go, added, sums, dots, of_gq, of_gk, of_gv, heads)
    return gq, gk, gv


attention_grad_mask = WRITTEN.grad_mask
attention_stored, attention_grad_stored = attention, attention_grad          # of either type
