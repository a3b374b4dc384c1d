"""Indexing, order and concatenation on CuPy arrays."""

from .join import *
from .order import *
from .take import *
