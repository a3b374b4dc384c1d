"""Initialisers, in place, under the field's names. Each draws from minidl's counter-based generator.

Fans of a weight (out, in) or (m, c, kh, kw): fan_in = in or c*kh*kw, fan_out = out or m*kh*kw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ..core import rng
from ..core.device import to_device
from ..core.mode import mode
from ..core.tensor import Tensor

MODES = "fan_in", "fan_out"
GAINS = {"relu": math.sqrt(2.0), "linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3}         # by what follows
_left: ContextVar[int | None] = ContextVar("left", default=None)       # bytes that new parameters may still take


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Within this, all new parameters of layers take at most `limit` bytes together, for a stranger's file.

    >>> with at_most(11):
    ...     parameter((3,))
    Traceback (most recent call last):
    ValueError: init: a parameter of shape (3,) takes 12 bytes but only 11 are left; build a smaller model
    """
    before = _left.set(limit)
    try:
        yield
    finally:
        _left.reset(before)


def parameter(shape: tuple[int, ...]) -> Tensor:
    """A new float32 parameter of zeros, for a layer to fill. Raises ValueError for more bytes than `at_most` leaves."""
    left, bytes_ = _left.get(), 4 * math.prod(shape)
    if left is not None:
        if bytes_ > left:
            raise ValueError(f"init: a parameter of shape {shape} takes {bytes_} bytes but only {left} are left; "
                             "build a smaller model")
        _left.set(left - bytes_)
    return Tensor(np.zeros(shape, np.float32), requires_grad=True)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight's shape. Raises ValueError for fewer than 2 axes and for a size of 0.

    >>> fans((6, 1, 5, 5))
    (25, 150)
    """
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"init: a Tensor of shape {shape} has no fan; weights have at least 2 axes and no size "
                         "of 0, use zeros_, constant_, uniform_ or normal_")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _fill(tensor: Tensor, values: object) -> Tensor:
    mode.recorder.refuse("initialises a Tensor")
    tensor.mark_changed()
    tensor.data[...] = values if isinstance(values, float) else to_device(values, tensor.device)
    return tensor


def constant_(tensor: Tensor, value: float) -> Tensor:
    """Every element one value."""
    return _fill(tensor, float(value))


def zeros_(tensor: Tensor) -> Tensor:
    """Every element 0."""
    return constant_(tensor, 0.0)


def uniform_(tensor: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform in [low, high). Raises ValueError if low is above high."""
    if not low <= high:
        raise ValueError(f"uniform_: low is {low!r} and high is {high!r} but low must not be above high")
    return _fill(tensor, rng.generator().uniform(low, high, tensor.shape))


def dirac_(tensor: Tensor) -> Tensor:
    """Filters (m,c,kh,kw) that pass the first min(m, c) maps unchanged; further maps are zeros. Raises ValueError for
    fewer axes than 3.

    >>> dirac_(Tensor([[[[5.0] * 3] * 3]])).tolist()
    [[[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]]
    """
    if tensor.ndim < 3:
        raise ValueError(f"dirac_: the Tensor has shape {tensor.shape} but must be filters, of at least 3 axes; for a "
                         "matrix assign an identity")
    values, middle = np.zeros(tensor.shape), tuple(size // 2 for size in tensor.shape[2:])
    for channel in range(min(tensor.shape[:2])):
        at = channel, channel, *middle
        values[at] = 1
    return _fill(tensor, values)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal with the given mean and standard deviation. Raises ValueError for a negative deviation."""
    if not std >= 0:
        raise ValueError(f"normal_: std is {std!r} but must be at least 0")
    return _fill(tensor, rng.generator().normal(mean, std, tensor.shape))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform with variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010, eq. 16).

    >>> w = xavier_uniform_(Tensor([[0.0] * 3] * 3)); bool(abs(w.numpy()).max() <= 1)
    True
    """
    bound = gain * math.sqrt(6.0 / sum(fans(tensor.shape)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor.shape))))


def kaiming_uniform_(tensor: Tensor, *, gain: float = math.sqrt(2.0), mode: str = "fan_in",
                     nonlinearity: str | None = None) -> Tensor:
    """Uniform, with the variance of `kaiming_normal_`."""
    bound = math.sqrt(3.0) * _kaiming(tensor, gain, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, *, gain: float = math.sqrt(2.0), mode: str = "fan_in",
                    nonlinearity: str | None = None) -> Tensor:
    """Normal with variance gain^2 / fan_in, or with mode="fan_out" gain^2 / fan_out (He et al. 2015, section 2.2).

    The gain sqrt(2) is relu's; nonlinearity names one of GAINS by what follows, as in PyTorch. Raises ValueError for
    other names; of another activation, give the gain.

    >>> w = kaiming_normal_(Tensor(np.zeros((8, 2, 3, 3), "f")), mode="fan_out", nonlinearity="relu"); w.shape
    (8, 2, 3, 3)
    """
    return normal_(tensor, 0.0, _kaiming(tensor, gain, mode, nonlinearity))


def _kaiming(tensor: Tensor, gain: float, mode: str, nonlinearity: str | None) -> float:
    """The standard deviation."""
    if mode not in MODES:
        raise ValueError(f"kaiming: mode is {mode!r} but must be {' or '.join(MODES)}")
    if nonlinearity is not None and nonlinearity not in tuple(GAINS):
        raise ValueError(f"kaiming: nonlinearity is {nonlinearity!r} but must be {' or '.join(GAINS)}; of another, "
                         "give gain=")
    return (gain if nonlinearity is None else GAINS[nonlinearity]) / math.sqrt(fans(tensor.shape)[MODES.index(mode)])


def lecun_uniform_(tensor: Tensor) -> Tensor:
    """Uniform with variance 1 / fan_in (LeCun et al., Efficient BackProp, 1998, section 4.6)."""
    return kaiming_uniform_(tensor, gain=1.0)


def lecun_normal_(tensor: Tensor) -> Tensor:
    """Normal with variance 1 / fan_in (LeCun et al., Efficient BackProp, 1998, section 4.6)."""
    return kaiming_normal_(tensor, gain=1.0)
