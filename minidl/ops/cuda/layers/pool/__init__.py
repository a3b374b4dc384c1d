"""Pooling on CuPy arrays: x (n,c,h,w), y (n,c,oh,ow); g is an ops.common.geometry.PoolGeometry."""

from .adaptive import *
from .average import *
from .nearest import *
from .windows import *
