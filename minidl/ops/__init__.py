"""All operations on Tensors. Each is one function: its forward and, next to it, its gradient."""

from ..core import tensor as _tensor
from .arrays import methods, operators  # noqa: F401  attach Tensor's operators and methods
from .arrays.arrange import *
from .arrays.basic import *
from .arrays.contraction import *
from .arrays.functions import *
from .arrays.indexing import *
from .arrays.select import *
from .arrays.shapes import *
from .arrays.statistics import *
from .common.backend import CONV_ALGORITHMS as CONV_ALGORITHMS
from .common.op import OPS as OPS
from .common.primitives import ACTIVATIONS as ACTIVATIONS
from .layers.activation import *
from .layers.attention import *
from .layers.conv import *
from .layers.linear import *
from .layers.lookup import *
from .layers.norm import *
from .layers.pool import *
from .layers.recurrent import *
from .layers.resample import *
from .layers.units import *
from .losses.criteria import *
from .losses.loss import *


def _again(node: _tensor.Node) -> object:
    """A Node's closure on Tensors; imported for the first second derivative."""
    from .second import again

    return again(node)


_tensor.again = _again
