"""Layers that normalise: over the batch, of each row or group of channels, and across maps as in KSH 2012."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...core.tensor import Tensor
from ...distributed.world import current
from ...ops.common.geometry import plain
from .. import init
from ..module import Module
from .basic import OfOp, _positive

__all__ = ["BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "LocalResponseNorm"]


def _weight(shape: tuple[int, ...], wanted: bool) -> Tensor | None:
    return init.constant_(init.parameter(shape), 1.0) if wanted else None


def _bias(shape: tuple[int, ...], wanted: bool) -> Tensor | None:
    return init.parameter(shape) if wanted else None


def _small(name: str, eps: float) -> float:
    eps = plain(eps)
    if not isinstance(eps, (int, float)) or not eps >= 0:
        raise ValueError(f"{name}: eps is {eps!r} but must be a number of at least 0")
    return eps


class _BatchNorm(Module):
    """What both batch normalisations share."""

    axes: tuple[int, ...]
    shape: str

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, across_ranks: bool = True):
        super().__init__()
        name = type(self).__name__
        (num_features,) = _positive(name, num_features=num_features)
        eps, momentum = _small(name, eps), plain(momentum)
        if not isinstance(momentum, (int, float)) or not 0 <= momentum <= 1:
            raise ValueError(f"{name}: momentum is {momentum!r} but must be a number from 0 to 1, the share of a "
                             "batch's moments in the running ones")
        self.num_features, self.eps, self.momentum, self.across_ranks = num_features, eps, momentum, across_ranks
        self.weight, self.bias = _weight((num_features,), affine), _bias((num_features,), affine)
        tracked = bool(track_running_stats)
        self.running_mean = Tensor(np.zeros(num_features, np.float32)) if tracked else None
        self.running_var = Tensor(np.ones(num_features, np.float32)) if tracked else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ValueError(f"{type(self).__name__}: x has shape {x.shape} but must be {self.shape} with "
                             f"{self.num_features} channels; see .reshape()")
        world = current() if self.training and self.across_ranks and current().size > 1 else None
        return ops.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias,
                              self.training or self.running_mean is None, self.momentum, self.eps, world=world)

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"
                + ", affine=False" * (self.weight is None)
                + ", track_running_stats=False" * (self.running_mean is None)
                + ", across_ranks=False" * (not self.across_ranks))


class BatchNorm2d(_BatchNorm):
    """`ops.batch_norm` of images (n,c,h,w), with weight, bias, running_mean and running_var (num_features,).

    In training it uses the batch's moments, and the running ones move towards them by the share `momentum`. In
    evaluation it uses the running ones. These are buffers: saved and moved, but not trained. affine=False leaves out
    weight and bias, track_running_stats=False the running values: evaluation then uses the batch's moments too. On
    several ranks, training uses the batch of all ranks, as in one process. With across_ranks=False each rank uses its
    own batch, which saves three sums between them.

    Raises ValueError for num_features below 1, a negative eps, and a momentum outside of [0, 1]; and for images of
    another number of channels.

    >>> sorted(BatchNorm2d(3).state_dict())
    ['bias', 'running_mean', 'running_var', 'weight']
    """

    axes, shape = (4,), "(n,c,h,w)"


class BatchNorm1d(_BatchNorm):
    """As `BatchNorm2d`, of vectors (n,c) or series (n,c,l).

    >>> BatchNorm1d(2).eval()(Tensor([[1.0, 2.0]])).shape
    (1, 2)
    """

    axes, shape = (2, 3), "(n,c) or (n,c,l)"


class LayerNorm(Module):
    """`ops.layer_norm` with weight and bias of shape normalized_shape, the sizes of the last axes.

    elementwise_affine=False leaves both out, bias=False the bias. Raises ValueError for sizes below 1, and a negative
    eps.

    >>> LayerNorm(4)
    LayerNorm((4,), eps=1e-05)
    """

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True):
        super().__init__()
        shape = normalized_shape if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
        if not shape:
            raise ValueError("LayerNorm: normalized_shape is () but must name the sizes of at least one axis")
        self.normalized_shape = tuple(size for each in shape for size in _positive("LayerNorm", normalized_shape=each))
        self.eps = _small("LayerNorm", eps)
        self.weight = _weight(self.normalized_shape, elementwise_affine)
        self.bias = _bias(self.normalized_shape, elementwise_affine and bias)

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (f"{self.normalized_shape}, eps={self.eps}" + ", elementwise_affine=False" * (self.weight is None)
                + ", bias=False" * (self.weight is not None and self.bias is None))


class GroupNorm(Module):
    """`ops.group_norm` with weight and bias (num_channels,). affine=False leaves both out.

    Raises ValueError for sizes below 1, groups that do not divide the channels, and a negative eps.

    >>> GroupNorm(2, 4)
    GroupNorm(2, 4, eps=1e-05)
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True):
        super().__init__()
        num_groups, num_channels = _positive("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: num_groups is {num_groups} but must divide num_channels {num_channels}")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, _small("GroupNorm", eps)
        self.weight, self.bias = _weight((num_channels,), affine), _bias((num_channels,), affine)

    def forward(self, x: Tensor) -> Tensor:
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}" + ", affine=False" * (self.weight is None)


class LocalResponseNorm(OfOp, op=ops.local_response_norm, options=("size", "alpha", "beta", "k")):
    """`ops.local_response_norm` as a layer. Raises ValueError for a size below 1."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        super().__init__()
        (size,) = _positive("LocalResponseNorm", size=size)
        self.size: int = size
        self.alpha, self.beta, self.k = plain((alpha, beta, k))

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
