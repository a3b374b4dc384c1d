"""Launcher of conv_images.cu: convolution of small images in NHWC, where a tile's rows are one pixel of many images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import cupy
import numpy as np

from ... import launch
from ...launch.tensor_maps import tensor_map
from ..pixels import C_TYPES
from .conv_tma import ROW, THREADS_PER_BLOCK

FILE = "nhwc/conv/conv_images.cu"
MAX_PIXELS = 256                           # of y, for which struct Order has room
STORE = 3                                  # slabs that a tile takes longer than its products


class Form(NamedTuple):
    """A block's tile, tall * 128 images by so many filters; its stages; and what a product costs, relative to the best
    form's of conv.py."""

    tall: int
    filters: int
    stages: int
    cost: float

    @property
    def shared(self) -> int:
        """Bytes of shared memory: slabs of images and filters, and two barriers for each stage."""
        return self.stages * ((128 * self.tall + self.filters) * ROW + 16)


FORMS = Form(1, 256, 4, 0.8), Form(2, 128, 4, 0.8), Form(1, 128, 6, 0.88), Form(2, 64, 5, 1.3)


class Tiles(NamedTuple):
    """How a form takes images. order: y's pixels, those first that most taps meet; blocks: how many there are."""

    form: Form
    order: tuple[int, ...]
    blocks: int
    cost: float


def _met(sizes: dict[str, int], of: str, side: str, taps: str, step: str, before: str) -> np.ndarray:
    """For each place of y along an axis, how many taps meet an image there."""
    at = np.arange(sizes["o" + side])[:, None] * sizes[step] - sizes[before] + np.arange(sizes[taps])
    divided = sizes["divided_" + side]
    return ((at >= 0) & (at % divided == 0) & (at // divided < sizes[of])).sum(axis=1)


def tiles(form: Form, sizes: dict[str, int], depth: int) -> Tiles | None:
    """sizes: fields of struct ConvNhwc. depth: channels of a slab. None where y has too many pixels, or no room."""
    if sizes["oh"] * sizes["ow"] > MAX_PIXELS or form.shared > launch.most_shared():
        return None
    met = np.outer(_met(sizes, "h", "h", "kh", "sh", "top"), _met(sizes, "w", "w", "kw", "sw", "left")).ravel()
    order = np.argsort(-met, kind="stable")
    beside = launch.blocks(sizes["n"], 128 * form.tall) * launch.blocks(sizes["m"], form.filters)
    slabs = np.repeat(met[order] * (sizes["c"] // depth) + STORE, beside)
    side = launch.multiprocessors()
    turns = np.zeros((launch.blocks(slabs.size, side), side))
    turns.ravel()[:slabs.size] = slabs
    turns[-1] = turns[-1, ::-1]            # whoever is done first goes on
    whole = sizes["kh"] * sizes["kw"] * (sizes["c"] // depth)
    return Tiles(form, tuple(map(int, order)), slabs.size,
                 float(turns.sum(axis=0).max()) / whole * form.tall * form.filters * form.cost)


def constants(form: Form, dtype: np.dtype, mode: str, wide_y: bool, act: str | None) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", form.filters),
            ("TALL", form.tall), ("STAGES", form.stages), ("WIDE_Y", int(wide_y)),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


def product(of: Tiles, dtype: np.dtype, mode: str, wide_y: bool, act: str | None) -> Callable[..., None]:
    """What launches the kernel on images, packed filters, biases, y and the struct of sizes."""
    form, depth = of.form, ROW // dtype.itemsize
    launched = launch.kernel(FILE, "conv_nhwc_images", *constants(form, dtype, mode, wide_y, act)).sized(
        (of.blocks,), (THREADS_PER_BLOCK,), form.shared)
    order = launch.by_value("Order", pixels=of.order + (0,) * (MAX_PIXELS - len(of.order)))

    def run(x: cupy.ndarray, packed: cupy.ndarray, b: cupy.ndarray | None, y: cupy.ndarray, struct: bytes) -> None:
        launched(tensor_map(x.reshape(x.shape[0], -1), (128 * form.tall, depth)),
                 tensor_map(packed[0], (form.filters, depth)), b, y, struct, order)
    return run


CONFIGURATIONS = [
    (FILE, constants(form, dtype, mode, wide_y, act))
    for dtype, mode in ((np.dtype(np.uint16), "BF16"), (np.dtype(np.float32), "TF32")) for form in FORMS
    for wide_y, act in ((True, "relu"), (True, None), (False, None))]
