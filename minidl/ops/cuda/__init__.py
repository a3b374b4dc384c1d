"""The primitives on CuPy arrays: the names and signatures of ops.cpu, by our own kernels.

Arithmetic of integers and of arrays of several shapes, and changes of shape, are CuPy's own. Only `setitem`, `advance`,
`batch_norm(_act)`, `update_metrics` and the updates of parameters change an input.
"""

from ..common.choice import *
from ..common.primitives import OWN as _OWN
from ..common.shared import *
from .conv import *
from .conv.auto.measuring import ahead as ahead
from .conv.fused import *
from .conv.fused.half import *
from .data import *
from .data.draws import *
from .indexing import *
from .launch import ones_like as ones_like
from .layers.activation import *
from .layers.attention import *
from .layers.linear import *
from .layers.linear.fused import *
from .layers.linear.matmul import *
from .layers.loss import *
from .layers.loss.criteria import *
from .layers.norm import *
from .layers.norm.fused import *
from .layers.pool import *
from .layers.recurrent import *
from .nhwc import *
from .optim import *
from .reduce.folds import *
from .reduce.ranks import *
from .reduce.running import *
from .reduce.squares import *
from .region import *

from .layers.linear.by_pixels import *  # isort: skip  # in the place of linear's: it passes on what it does not do

globals().update(_OWN)
