"""Convolutions of images in NHWC by those of NCHW, between two conversions."""

from __future__ import annotations

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..activation.elementwise import VALUES
from ..conv import conv2d, conv2d_grad_x
from .elementwise import to_nchw, to_nhwc


def _store(x: Array) -> str:
    return "float32" if x.dtype == "float32" else "bf16"


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None = None, *, precision: str) -> Array:
    """act(conv2d(x)), or conv2d(x) where act is None"""
    made = conv2d(to_nchw(x), w, b, g)
    return to_nhwc(VALUES[act](made) if act else made, _store(x))


def grad_x(dy: Array, w: Array, g: ConvGeometry, *, precision: str) -> Array:
    return to_nhwc(conv2d_grad_x(to_nchw(dy), w, g), _store(dy))
