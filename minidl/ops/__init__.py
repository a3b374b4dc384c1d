"""All operations on Tensors. Each is one function: its forward and, beside it, its gradient."""

from . import methods, operators  # noqa: F401  attach Tensor's operators and methods
from ._backend import CONV_ALGORITHMS as CONV_ALGORITHMS
from ._op import OPS as OPS
from .activation import *
from .arrange import *
from .basic import *
from .contraction import *
from .conv import *
from .criteria import *
from .linear import *
from .lookup import *
from .loss import *
from .norm import *
from .pool import *
from .primitives import ACTIVATIONS as ACTIVATIONS
from .resample import *
from .select import *
from .shapes import *
from .statistics import *
from .units import *
