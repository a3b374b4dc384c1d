"""The primitives on NumPy arrays: pure functions of arrays and geometries.

Only `setitem`, `advance`, `batch_norm(_act)`, `update_metrics` and updates of parameters change what they are given.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..common import choice, shared
from ..common.choice import *
from ..common.shared import *
from .choice import *
from .conv import *
from .data import *
from .draws import *
from .layers.activation import *
from .layers.adaptive import *
from .layers.attention import *
from .layers.criteria import *
from .layers.linear import *
from .layers.lookup import *
from .layers.loss import *
from .layers.matmul import *
from .layers.max_pool import *
from .layers.norm import *
from .layers.pool import *
from .layers.recurrent import *
from .optim import *
from .optim.updates import *
from .reduce import *
from .reduce.ranks import *
from .reduce.running import *
from .reduce.squares import *
from .region import *


def _quiet(primitive: Callable[..., Any]) -> Callable[..., Any]:
    """A result too small for a number is 0, or nearly: that is right, and no error whatever np.seterr says.

    If NumPy ignores it already, nothing is set: to set it while a callback of the garbage collector sets it too makes
    CPython (3.11 at least) crash in its context variables.
    """
    @functools.wraps(primitive)
    def call(*arguments: object, **options: object) -> Any:
        if np.geterr()["under"] == "ignore":
            return primitive(*arguments, **options)
        with np.errstate(under="ignore"):
            return primitive(*arguments, **options)
    return call


_OWN = {name for name, _found in globals().items() if name[0].islower() and callable(_found)
        and _found not in (getattr(shared, name, 0), getattr(choice, name, 0))}
for _name in _OWN - {"getitem", "reshape"} | {"div", "exp", "max_grad_x", "mul", "pow", "pow_grad_p", "pow_grad_x"}:
    globals()[_name] = _quiet(globals()[_name])


def __getattr__(name: str) -> Any:
    """What is fused on CUDA, and images in NHWC: made when the first of them is named, so that a program that compiles
    no step starts sooner."""
    if name[0] != "_" and "IN_NHWC" not in globals():
        from .by_pattern import made

        globals().update(made(globals(), _quiet))
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
