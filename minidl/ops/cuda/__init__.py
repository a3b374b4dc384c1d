"""The primitives on CuPy arrays: the names and signatures of ops.cpu, by our own kernels.

Elementwise arithmetic, reductions, shapes and products of ops.shared are CuPy's own. Only `setitem`, `advance`,
`batch_norm(_act)`, `update_metrics` and the updates of parameters change an input.
"""

from ..common.choice import *
from ..common.primitives import OWN as _OWN
from ..common.shared import *
from .activation import *
from .conv import *
from .conv.fused import *
from .conv.half import *
from .data import *
from .indexing import *
from .launch import ones_like as ones_like
from .linear import *
from .linear.fused import *
from .linear.matmul import *
from .loss import *
from .nhwc import *
from .norm import *
from .norm.fused import *
from .optim import *
from .pool import *
from .ranks import *
from .region import *

globals().update(_OWN)
