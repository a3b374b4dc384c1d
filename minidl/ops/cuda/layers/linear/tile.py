"""What launchers of tile.cuh and mma.cuh in include/ share: tiles, how they multiply, and what cannot be multiplied."""

from __future__ import annotations

import numpy as np

from .....core.device import precision
from ... import launch

BN, BK = 128, 16                           # columns of a block; depth of a slab (of float64 it may be half of that)
MIN_SLABS_PER_SPLIT = 8                    # of the depth; fewer are not worth another block
MODES = {"fp32": "FP32", "tf32": "TF32", "3xtf32": "TF32X3", "bf16": "BF16"}       # PRECISION in mma.cuh, by ours

# (dtype, PRECISION, BM) that are compiled without a GPU: all of fp32's, and the outermost of the others
TILES = [("float32", "FP32", bm) for bm in (16, 32, 64, 128)] + [("float64", "FP32", bm) for bm in (16, 32, 64, 128)] \
    + [("float32", how, bm) for how in ("TF32", "TF32X3", "BF16") for bm in (16, 128)]


def rows_per_block(rows: int) -> int:
    """BM: the smallest tile that covers the rows, at most 128."""
    return next((bm for bm in (16, 32, 64) if rows <= bm), 128)


def tensor_cores_refuse(dtype: np.dtype) -> str | None:
    """Why tensor cores cannot multiply arrays of a dtype in the current precision, or None."""
    if precision() == "fp32":
        return "the precision is fp32 but tensor cores compute in 3xtf32, tf32 or bf16 (minidl.set_precision)"
    if dtype != np.float32:
        return f"the dtype is {dtype} but tensor cores take float32"
    if launch.compute_capability() < 80:
        return f"the GPU's compute capability is {launch.compute_capability() / 10} but tf32 and bf16 need 8.0"
    return None
