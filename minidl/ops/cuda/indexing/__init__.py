"""Indexing, order and concatenation on CuPy arrays."""

from .join import *
from .order import *
from .places import *
from .take import *
