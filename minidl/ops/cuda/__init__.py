"""The primitives on CuPy arrays: the names and signatures of ops.cpu, by our own kernels.

Elementwise arithmetic, reductions, shapes and products of ops.shared are CuPy's own. Only `sgd`, `advance` and
`update_metrics` change an input.
"""

from ..choice import *
from ..primitives import OWN as _OWN
from ..shared import *
from .activation import *
from .conv import *
from .conv.fused import *
from .data import *
from .indexing import *
from .launch import ones_like as ones_like
from .linear import *
from .linear.matmul import *
from .loss import *
from .optim import *
from .pool import *
from .region import *

globals().update(_OWN)
