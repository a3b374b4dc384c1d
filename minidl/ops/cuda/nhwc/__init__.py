"""Images in NHWC on CuPy arrays, (n,h,w,c) of float32 or of bfloat16 in uint16: see ops/common/nhwc.py."""

from .convolution import *
from .elementwise import *
from .norm import *
from .pool import *
