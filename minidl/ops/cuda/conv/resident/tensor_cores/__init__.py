"""Shared by the launchers whose kernels hold whole images and multiply them on tensor cores."""

from __future__ import annotations

import numpy as np

from ......core.device import precision
from .....common.geometry import ConvGeometry
from .... import launch
from ....layers.linear.tile import tensor_cores_refuse

PARTS = {"TF32": 1, "TF32X3": 2}           # numbers that an operand is split into, by PRECISION


def mode() -> str:
    """PRECISION of a kernel under the precision that is set. If bf16 will do, so will tf32, which is more exact."""
    return "TF32X3" if precision() == "3xtf32" else "TF32"


def constants_of(kh: int, kw: int, mode: str, rows: int, threads: int, aligned: bool, wide: int,
                 **more: int) -> tuple[launch.Constant, ...]:
    return (launch.real(np.dtype(np.float32)), ("KH", kh), ("KW", kw), ("PRECISION", mode), ("ROWS", rows),
            ("THREADS_PER_BLOCK", threads), ("ALIGNED", int(aligned)), ("WIDE", wide), *more.items())


def pixels_per_copy(g: ConvGeometry) -> int:
    """WIDE in the sources: 4 if each four of a padded row are all inside the image or all outside."""
    return 1 if g.w % 4 or g.left % 4 else 4


def refuses_on_tensor_cores(g: ConvGeometry, dtype: np.dtype) -> str | None:
    """Why no kernel that takes taps from whole images in shared memory can do a case, or None."""
    reason = tensor_cores_refuse(dtype)
    if reason:
        return reason
    if (g.sh, g.sw) != (1, 1):
        return f"it needs stride 1 but it is {g.sh}x{g.sw}"
    return None


def refuses_width(g: ConvGeometry) -> str | None:
    if g.kw > 8:
        return f"a filter row of {g.kw} taps does not fit one step of a product, 8"
    return None


def refuses_size(plan: launch.Plan | None) -> str | None:
    if plan is None:
        return f"an image and the filters do not fit a block's {launch.most_shared() // 1024} KB of shared memory"
    return None
