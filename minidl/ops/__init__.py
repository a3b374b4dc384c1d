"""All operations on Tensors. Each is one function: its forward and, beside it, its gradient."""

from . import methods, operators  # noqa: F401  attach Tensor's operators and methods
from .activation import *
from .arrange import *
from .basic import *
from .common.backend import CONV_ALGORITHMS as CONV_ALGORITHMS
from .common.op import OPS as OPS
from .common.primitives import ACTIVATIONS as ACTIVATIONS
from .contraction import *
from .conv import *
from .criteria import *
from .linear import *
from .lookup import *
from .loss import *
from .norm import *
from .pool import *
from .resample import *
from .select import *
from .shapes import *
from .statistics import *
from .units import *
