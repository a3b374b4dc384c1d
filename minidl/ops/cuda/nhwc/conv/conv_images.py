"""Launcher of conv_images.cu: convolution of small images in NHWC. A tile's rows are one pixel of many images."""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from ....common.geometry.nhwc import C_TYPES
from ... import launch
from ...launch.tensor_maps import tensor_map
from .conv_tma import ROW, THREADS_PER_BLOCK, Tile, Tiles

FILE = "nhwc/conv/conv_images.cu"
MAX_PIXELS = 256                           # of y, for which struct Order has room
STORE = 3                                  # time of a tile in addition to its products, in slabs
TILES = (Tile(FILE, 1, 256, 4, 1, 0.8), Tile(FILE, 2, 128, 4, 1, 0.8), Tile(FILE, 1, 128, 6, 1, 0.88),
         Tile(FILE, 2, 64, 5, 1, 1.3))


def _met(sizes: dict[str, int], of: str, side: str, taps: str, step: str, before: str) -> np.ndarray:
    """For each place of y along an axis, how many taps meet an image there."""
    at = np.arange(sizes["o" + side])[:, None] * sizes[step] - sizes[before] + np.arange(sizes[taps])
    divided = sizes["divided_" + side]
    return ((at >= 0) & (at % divided == 0) & (at // divided < sizes[of])).sum(axis=1)


def _shared(tile: Tile) -> int:
    """Bytes: slabs of images and filters, and two barriers for each stage."""
    return tile.stages * (128 * tile.tall * ROW + tile.stage + 16)


def tiles(tile: Tile, sizes: dict[str, int], depth: int) -> Tiles | None:
    """sizes: fields of struct ConvNhwc. depth: channels of a slab. None if y has too many pixels, or no room."""
    if sizes["oh"] * sizes["ow"] > MAX_PIXELS or _shared(tile) > launch.most_shared():
        return None
    met = np.outer(_met(sizes, "h", "h", "kh", "sh", "top"), _met(sizes, "w", "w", "kw", "sw", "left")).ravel()
    order = np.argsort(-met, kind="stable")
    beside = launch.blocks(sizes["n"], 128 * tile.tall) * launch.blocks(sizes["m"], tile.filters)
    slabs = np.repeat(met[order] * (sizes["c"] // depth) + STORE, beside)
    side = launch.multiprocessors()
    turns = np.zeros((launch.blocks(slabs.size, side), side))
    turns.ravel()[:slabs.size] = slabs
    turns[-1] = turns[-1, ::-1]            # the first that is done takes the next
    whole = sizes["kh"] * sizes["kw"] * (sizes["c"] // depth)
    return Tiles(tile, None, tuple(map(int, order)), slabs.size, tile.stages,
                 float(turns.sum(axis=0).max()) / whole * tile.tall * tile.filters * tile.cost)


def constants(tile: Tile, dtype: np.dtype, mode: str, wide_y: bool, act: str | None) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", tile.filters),
            ("TALL", tile.tall), ("STAGES", tile.stages), ("WIDE_Y", int(wide_y)),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


def product(of: Tiles, dtype: np.dtype, mode: str, wide_y: bool,
            act: str | None) -> tuple[launch.Plan, Callable[..., None]]:
    """The launch, and what starts it on images, packed filters, biases, y and the struct of sizes."""
    tile, depth = of.tile, ROW // dtype.itemsize
    plan = launch.Plan(FILE, "conv_nhwc_images", constants(tile, dtype, mode, wide_y, act), (of.blocks,),
                       THREADS_PER_BLOCK, _shared(tile),
                       launch.by_value("Order", pixels=of.order + (0,) * (MAX_PIXELS - len(of.order))))

    def run(x: cupy.ndarray, packed: cupy.ndarray, b: cupy.ndarray | None, y: cupy.ndarray, struct: bytes) -> None:
        plan.start(tensor_map(x.reshape(x.shape[0], -1), (128 * tile.tall, depth)),
                   tensor_map(packed[0], (tile.filters, depth)), b, y, struct, plan.struct)
    return plan, run


CONFIGURATIONS = [
    (FILE, constants(tile, dtype, mode, wide_y, act))
    for dtype, mode in ((np.dtype(np.uint16), "BF16"), (np.dtype(np.float32), "TF32")) for tile in TILES
    for wide_y, act in ((True, "relu"), (True, None), (False, None))]
