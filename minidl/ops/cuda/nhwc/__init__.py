"""Images in NHWC on CuPy arrays, (n,h,w,c) of float32 or of bfloat16 in uint16: see ops/common/geometry/nhwc.py."""

from .. import launch
from . import convolution, elementwise, norm
from .convolution import *
from .elementwise import *
from .norm import *

MIN_SHARED = 160 << 10                     # bytes of a block

# Without this folder's modules: other folders of the backend have modules of the same names
__all__ = ["takes_nhwc", *convolution.__all__, *elementwise.__all__, *norm.__all__]


def takes_nhwc(precision: str) -> bool:
    """Whether programs in a precision gain from images in NHWC: on tensor cores, and not in fp32. In 3xtf32, whose
    slabs are large, they need the shared memory that compute capabilities 8.0, 9.0 and 10.0 have."""
    return precision != "fp32" and launch.compute_capability() >= 80 and (
        precision != "3xtf32" or launch.most_shared() >= MIN_SHARED)
