"""Images in NHWC on NumPy arrays, by the plain primitives: the reference for the CUDA kernels of the same names.

A compiled step on the CPU keeps to NCHW. A form is its row's plain call between two conversions. A call that joins
forms calls these in turn. If images are stored in bfloat16, filters are rounded to it too if a
kernel multiplies them on tensor cores (`g.dense`), and each result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..common.geometry import ConvGeometry, PoolGeometry
from ..common.geometry.nhwc import AXES, BACK, STORES, bf16, widened
from ..common.patterns import Rule, Stored, in_turn
from ..common.primitives import Array

# Whether programs in a precision gain by images in NHWC: never here
takes_nhwc: Callable[[str], bool] | None = None
# Whether there are kernels that store y of a convolution in bf16 if averages follow it: never here either
stores_half: Callable[[ConvGeometry, PoolGeometry], bool] | None = None


def to_nhwc(x: Array, store: str) -> Array:
    """(n,c,h,w) of float32 -> (n,h,w,c) of STORES[store]"""
    return _as(np.array(x.transpose(AXES), order="C"), STORES[store])


def to_nchw(x: Array) -> Array:
    """(n,h,w,c) of either type -> (n,c,h,w) of float32"""
    return np.array(widened(x).transpose(BACK), order="C")


def _as(y: Array, dtype: np.dtype) -> Array:
    return bf16(y) if dtype == np.uint16 else y


def _filters(w: Array, given: dict[str, Any]) -> Array:
    return widened(bf16(w)) if given["precision"] == "bf16" and given["g"].dense else w


def _or_none(function: Callable[[Array], Array]) -> Callable[[Array | None, Any], Array | None]:
    return lambda x, _: None if x is None else function(x)


# By the letters of geometry/nhwc.py and rows.py
STORED = Stored(
    read={"i": _or_none(to_nchw), "r": _or_none(widened), "v": _or_none(widened), "h": _or_none(widened),
          "f": _filters, "x": lambda index, _: index.transpose(BACK)},
    write={"i": lambda y, like: _as(np.array(y.transpose(AXES), order="C"), like.dtype),
           "r": lambda y, like: _as(y, like.dtype), "v": lambda y, like: _as(y, like.dtype),
           "x": lambda index, _: np.ascontiguousarray(index.transpose(AXES)).astype(np.uint8),
           "h": lambda y, _: bf16(y)})


def by_plain(plain: Callable[..., Array], rules: list[Rule]) -> Callable[..., Array]:
    """What a primitive computes with the layout NHWC in its geometry, by the plain one with NCHW."""
    at = rules[0].fused.arguments.index("g")
    return in_turn(rules, {plain.__name__: lambda *given: plain(
        *given[:at], given[at]._replace(layout="NCHW"), *given[at + 1:])}, STORED)
