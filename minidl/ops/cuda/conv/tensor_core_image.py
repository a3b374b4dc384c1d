"""Launchers of tensor_core_image.cu, and the choice of its tiles from the shape."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ....device import precision
from .. import launch
from ..linear import MODES
from ..pool import in_squares
from ..reduce import sum_first
from .implicit_gemm import tensor_core_refuses

Array = Any

launch.struct("Picture", "n", "c", "h", "w", "m", "oh", "ow", "top", "left", "ph", "pw", "images", "pitch", "bias")

FILE = "conv/tensor_core_image.cu"
PARTS = {"TF32": 1, "TF32X3": 2}           # numbers that an operand is split into, by PRECISION
ROWS, SETS = 4, (1, 2, 4)                  # output rows of a warp at a time; of y tiles of 16 filters, to choose from
THREADS = 256                              # a block: a thread needs up to 240 registers
TAPS = 24                                  # rows of taps that a warp of dw sums for
ALIGN = 64                                 # floats that the bias's gradient starts on a multiple of: 256 bytes


class Plan(NamedTuple):
    """One launch."""

    grid: tuple[int, int, int]
    threads: int
    shared: int
    constants: tuple[launch.Constant, ...]
    picture: bytes
    pitch: int = 0                                     # dw: floats that a block leaves
    bias: int = 0                                      # and where the bias's gradient is among them


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _constants(kh: int, kw: int, mode: str, rows: int, threads: int, aligned: bool, **more: int) -> tuple[Any, ...]:
    return (launch.real(np.dtype(np.float32)), ("KH", kh), ("KW", kw), ("PRECISION", mode), ("ROWS", rows),
            ("THREADS_A_BLOCK", threads), ("ALIGNED", int(aligned)), *more.items())


def _picture(g: Any, ph: int, pw: int, pitch: int = 0, bias: int = 0) -> bytes:
    return launch.by_value("Picture", (g.n, g.c, g.h, g.w, g.m, g.oh, g.ow, g.top, g.left, ph, pw, 1, pitch, bias))


# ---------------------------------------------------------------- y
@functools.lru_cache(maxsize=1024)
def _plan(g: Any, mode: str) -> Plan | None:
    """The launch, or None where image and filters do not fit shared memory."""
    return _tiled(g, mode, next((sets for sets in SETS if g.m <= 16 * sets), SETS[-1]), ROWS, THREADS)


def _tiled(g: Any, mode: str, sets: int, rows: int, threads: int) -> Plan | None:
    ph, pw = _up(g.oh, rows) + g.kh - 1, _up(g.ow, 16) + 8
    shared = PARTS[mode] * (g.c * g.kh * _up(g.m, 16 * sets) * 8 + g.c * ph * pw) * 4
    if shared > launch.most_shared():
        return None
    blocks = max(1, min(g.n, 2 * launch.multiprocessors()))
    return Plan((blocks, 1, 1), threads, shared, _constants(g.kh, g.kw, mode, rows, threads, g.ow % 4 == 0, SETS=sets),
                _picture(g, ph, pw))


def _run(x: Array, w: Array, b: Array | None, g: Any, fused: tuple[launch.Constant, ...] = (),
         pooled: Array | None = None) -> Array:
    out, plan = launch.empty((g.n, g.m, g.oh, g.ow), x.dtype), _plan(g, MODES[precision()])
    assert plan is not None, "refuses() was not asked"
    if out.size:
        launch.kernel(FILE, "conv2d_tensor_core_image", *plan.constants, *fused)(
            plan.grid, (plan.threads,), x, w, b, out, pooled, plan.picture, shared=plan.shared)
    return out


def y(x: Array, w: Array, b: Array | None, g: Any) -> Array:
    return _run(x, w, b, g)


def y_act(x: Array, w: Array, b: Array | None, g: Any, act: str) -> Array:
    """act(y), in the same launch."""
    return _run(x, w, b, g, (("FUSED", 1), ("ACT", act)))


def can_pool(g: Any, pooling: Any, dtype: np.dtype) -> bool:
    """Whether y's launch can also average windows."""
    return in_squares(pooling) and refuses("y", g, dtype) is None


def y_act_pool(x: Array, w: Array, b: Array | None, g: Any, act: str, pooling: Any) -> tuple[Array, Array]:
    """(act(y), its averages over windows), in the same launch."""
    pooled = launch.empty((g.n, g.m, pooling.oh, pooling.ow), x.dtype)
    return _run(x, w, b, g, (("FUSED", 1), ("ACT", act), ("POOL", pooling.kh)), pooled), pooled


# ---------------------------------------------------------------- dw
@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: Any, mode: str, with_bias: bool = False) -> Plan | None:
    """The launch, or None where image and sums do not fit shared memory."""
    tiles = -(-g.m // 16)
    tiles = -(-tiles // -(-tiles // 4))                # at most 4 side by side, and the same in each block
    return _gradient_tiled(g, mode, with_bias, tiles, THREADS // 32 // tiles, ROWS)


def _gradient_tiled(g: Any, mode: str, with_bias: bool, tiles: int, shares: int, rows: int) -> Plan | None:
    groups = -(-g.c // (TAPS // g.kh))
    channels = -(-g.c // groups)
    ph, pw, threads = _up(g.oh, rows) + g.kh - 1, _up(g.ow, 8) + 8, 32 * tiles * shares
    sums = (4 * channels * g.kh + 2) * 32 * tiles if shares > 1 else 0
    shared = max(PARTS[mode] * groups * channels * ph * pw, sums) * 4
    if shared > launch.most_shared():
        return None
    packs = launch.blocks(g.m, 16 * tiles)
    blocks = max(1, min(g.n, launch.multiprocessors() // (groups * packs)))
    size = g.m * g.c * g.kh * g.kw
    bias = _up(size, ALIGN) if with_bias else 0
    pitch = bias + g.m if with_bias else size
    constants = _constants(g.kh, g.kw, mode, rows, threads, g.ow % 2 == 0, GRADIENT=1, CHANNELS=channels, PH=ph,
                           PW=pw, TILES=tiles, SHARES=shares)
    return Plan((blocks, groups, packs), threads, shared, constants, _picture(g, ph, pw, pitch, bias), pitch, bias)


def _gradient(gy: Array, y: Array | None, x: Array, plan: Plan | None, fused: tuple[launch.Constant, ...],
              out: Array | None = None) -> Array:
    assert plan is not None, "refuses() was not asked"
    parts = launch.empty((plan.grid[0], plan.pitch), x.dtype)
    launch.kernel(FILE, "conv2d_tensor_core_image_dw", *plan.constants, *fused)(
        plan.grid, (plan.threads,), gy, y, x, parts, plan.picture, shared=plan.shared)
    return sum_first(parts, out) if len(parts) > 1 or out is not None else parts[0]


def dw(gy: Array, x: Array, g: Any) -> Array:
    out = launch.empty((g.m, g.c, g.kh, g.kw), x.dtype)      # no view: the tape takes it for a leaf's gradient as it is
    return _gradient(gy, None, x, _gradient_plan(g, MODES[precision()]), (), out)


def grad_wb(gp: Array, y: Array, x: Array, g: Any, act: str, pooling: Any) -> tuple[Array, Array]:
    """(dw, db) from gp, the gradient by the averages of y = act(conv2d(x)), in the same launch."""
    plan = _gradient_plan(g, MODES[precision()], True)
    both = _gradient(gp, y, x, plan, (("ACT", act), ("POOL", pooling.kh)))
    shape = g.m, g.c, g.kh, g.kw
    return both[:g.m * g.c * g.kh * g.kw].reshape(shape), both[-g.m:]


# ---------------------------------------------------------------- what it cannot do
def refuses(direction: str, g: Any, dtype: np.dtype) -> str | None:
    reason = tensor_core_refuses(direction, g, dtype)
    if reason:
        return reason
    mode = MODES[precision()]
    if mode not in PARTS:
        return f"the precision is {precision()} but it computes in tf32 or 3xtf32 (minidl.set_precision)"
    if (g.sh, g.sw) != (1, 1):
        return f"it needs stride 1 but it is {g.sh}x{g.sw}"
    if g.kw > 8:
        return f"a filter row of {g.kw} taps does not fit one step of a product, 8"
    if direction == "dw" and g.kh > TAPS:
        return f"{g.kh} rows of taps do not fit the sums of a warp ({TAPS} do)"
    if (_gradient_plan if direction == "dw" else _plan)(g, mode) is None:
        return f"an image and the filters do not fit a block's {launch.most_shared() // 1024} KB of shared memory"
    return None


CONFIGURATIONS = [
    (FILE, (*_constants(kh, kw, mode, ROWS, THREADS, aligned, SETS=sets), *fused))
    for mode in PARTS for kh, kw, aligned, sets, fused in (
        (8, 8, True, 4, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (5, 5, True, 1, (("FUSED", 1), ("ACT", "tanh"))),
        (5, 5, False, 2, (("FUSED", 1), ("ACT", "tanh"), ("POOL", 2))), (11, 3, False, 4, ()))
] + [
    (FILE, (*_constants(kh, kw, mode, ROWS, 32 * tiles * shares, aligned, GRADIENT=1, CHANNELS=channels, PH=ph, PW=pw,
                        TILES=tiles, SHARES=shares), *fused))
    for mode in PARTS for kh, kw, aligned, channels, ph, pw, tiles, shares, fused in (
        (8, 8, True, 3, 39, 40, 4, 2, (("ACT", "sigmoid"), ("POOL", 4))), (8, 8, True, 3, 39, 40, 4, 2, ()),
        (5, 5, True, 1, 32, 36, 1, 8, (("ACT", "tanh"), ("POOL", 2))), (5, 5, True, 3, 20, 24, 1, 8, ()),
        (11, 3, False, 2, 18, 16, 3, 2, ()))]
