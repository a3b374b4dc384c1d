"""Normalisation: of a channel over the batch, of each image or row over itself, and across maps as in KSH 2012."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from ...core.tensor import Tensor, mark_changed
from ..arrays.shapes import reshape
from ..common.geometry import cached, is_int
from ..common.geometry.sets import NormGeometry
from ..common.op import also, op
from .pool import avg_pool2d

__all__ = ["batch_norm", "group_norm", "layer_norm", "local_response_norm"]

if TYPE_CHECKING:
    from ...distributed.world import World

Shape = tuple[int, ...]


# ---------------------------------------------------------------- geometry
def _affine(name: str, x: Shape, wanted: Shape, **given: Shape | None) -> None:
    """Refuse weights that do not have the wanted shape."""
    for what, shape in given.items():
        if shape is not None and shape != wanted:
            raise ValueError(f"{name}: {what} has shape {shape} but x {x} wants {wanted}; make it so")


def _by_channel(name: str, x: Shape) -> tuple[int, int, int]:
    """n, c, and the number of values in a channel of an image. Refuses an x that is not (n,c,...)."""
    if len(x) < 2 or 0 in x[1:]:
        raise ValueError(f"{name}: x has shape {x} but must be (n,c,...), with at least one channel and one value in "
                         "each; see .reshape()")
    return x[0], x[1], math.prod(x[2:])


@cached
def batch_geometry(x: Shape, weight: Shape | None, bias: Shape | None, mean: Shape | None, var: Shape | None,
                   training: bool) -> NormGeometry:
    """The geometry of batch_norm from shapes."""
    n, c, inner = _by_channel("batch_norm", x)
    _affine("batch_norm", x, (c,), weight=weight, bias=bias, running_mean=mean, running_var=var)
    if training and n * inner == 1:
        raise ValueError(f"batch_norm: x {x} has 1 value per channel, which is its own mean and has no variance; train "
                         "with more images per batch, or call .eval()")
    return NormGeometry(n, c, inner, c, inner, True, (c,))


@cached
def layer_geometry(x: Shape, normalized: int | Shape, weight: Shape | None, bias: Shape | None) -> NormGeometry:
    """The geometry of layer_norm from shapes."""
    last = tuple(normalized) if isinstance(normalized, (tuple, list)) else (normalized,)
    if not last or not all(is_int(n, 1) for n in last) or x[-len(last):] != last:
        raise ValueError(f"layer_norm: normalized_shape is {normalized!r} but the last axes of x are {x}; name the "
                         "sizes of its last axes, at least one and none of them 0")
    _affine("layer_norm", x, last, weight=weight, bias=bias)
    count = math.prod(last)
    return NormGeometry(math.prod(x[:-len(last)]), 1, count, count, 1, False, last)


@cached
def group_geometry(x: Shape, groups: int, weight: Shape | None, bias: Shape | None) -> NormGeometry:
    """The geometry of group_norm from shapes."""
    n, c, inner = _by_channel("group_norm", x)
    if not is_int(groups, 1) or c % groups:
        raise ValueError(f"group_norm: num_groups is {groups!r} but x {x} has {c} channels; num_groups must divide "
                         "them")
    _affine("group_norm", x, (c,), weight=weight, bias=bias)
    return NormGeometry(n, groups, c // groups * inner, c, inner, False, (c,))


def _shape(t: object) -> Shape | None:
    return getattr(t, "shape", None)


# ---------------------------------------------------------------- over the batch
@op(floating=True)
def _batch_norm(k, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, mean: Tensor | None = None,
                var: Tensor | None = None, *, running: tuple = (), momentum: float = 0.1, eps: float = 1e-5,
                world: World | None = None):
    g = batch_geometry(x.shape, _shape(weight), _shape(bias), _shape(mean), _shape(var), mean is world is None)
    if mean is not None and var is not None:
        return by_given(k, x, weight, bias, mean, var, eps=eps, g=g)
    if world is not None:
        return over_ranks(k, x, weight, bias, running=running, momentum=momentum, eps=eps, world=world, g=g)
    return over_batch(k, x, weight, bias, running=running, momentum=momentum, eps=eps, g=g)


def by_given(k, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, *, eps: float,
             g: NormGeometry):
    """In evaluation: x times a number per channel, plus another."""
    def backward(gy, need):
        if not (need[1] or need[2]):
            return k.normalize_by_grad_x(gy, var, weight, eps, g), None, None, None, None
        gx, gw, gb = k.normalize_by_grad(gy, x, mean, var, weight, eps, g)
        return gx if need[0] else None, gw if need[1] else None, gb if need[2] else None, None, None
    return k.normalize_by(x, mean, var, weight, bias, eps, g), backward


def over_ranks(k, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, running: tuple, momentum: float, eps: float,
               world: World, g: NormGeometry):
    """By the moments of the images of all ranks."""
    column, axes = (-1, *(1,) * (len(x.shape) - 2)), (0, *range(2, len(x.shape)))
    if world.images:
        world.require_several(world.images * math.prod(x.shape[2:]))
    total = k.sum(x, axes)
    total, count = k.rank_mean([total, k.mul(k.ones_like(total), g.size)], None, world.counted)
    mean = k.div(total, count)
    offset = k.sub(x, k.reshape(mean, column))
    squares, = k.rank_mean([k.sum(k.mul(offset, offset), axes)], None, world)
    var = k.div(squares, count)
    if running:
        unbiased = k.div(squares, k.maximum(k.sub(count, 1), 1))
        for held, now in zip(running, (mean, unbiased), strict=True):
            k.setitem(held, ..., k.add(held, k.mul(k.sub(now, held), momentum)))

    def backward(gy, need):
        """The loss is the mean over all images, and gy is the gradient of this rank's mean. So the sums of each
        rank are weighted by its number of values, and the total is divided by this rank's number. Parts of a loss are
        weighted already."""
        z, own = k.normalize_by(x, mean, var, None, None, eps, g), 1
        if not world.of_parts:
            own, world.by_images = max(1, g.size), True
        gw, gb = k.sum(k.mul(gy, z), axes), k.sum(gy, axes)
        gws, gbs = k.rank_mean([k.mul(gw, own), k.mul(gb, own)], None, world)
        gws, gbs = (k.reshape(k.div(each, k.mul(count, own)), column) for each in (gws, gbs))
        scale = k.div(1 if weight is None else weight, k.sqrt(k.add(var, eps)))
        gx = k.mul(k.sub(k.sub(gy, gbs), k.mul(z, gws)), k.reshape(scale, column))
        return gx, gw if need[1] else None, gb if need[2] else None, None, None
    return k.normalize_by(x, mean, var, weight, bias, eps, g), backward


def over_batch(k, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, running: tuple, momentum: float, eps: float,
               g: NormGeometry):
    """By the moments of this batch, which move the running ones."""
    if running:
        y, mean, rstd = k.batch_norm(x, weight, bias, *running, momentum, eps, g)
    else:
        y, mean, rstd = k.normalize(x, weight, bias, eps, g)

    def backward(gy, need):
        gx, gw, gb = k.normalize_grad(gy, x, weight, mean, rstd, g)        # from the same sums
        return gx, gw if need[1] else None, gb if need[2] else None, None, None
    return y, backward


@also
def batch_norm(x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
               weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
               momentum: float = 0.1, eps: float = 1e-5, *, world: object = None) -> Tensor:
    """Each channel minus its mean, divided by its deviation: x (n,c,...) -> the same shape (Ioffe and Szegedy 2015).

    y = (x - mean) / sqrt(var + eps) * weight + bias, with weight and bias (c,). In training mean and variance are those
    of the batch, over all axes but c (the variance divides by the number of values). The running ones (c,), if they are
    given, change in place: they move by the share `momentum` towards the batch's mean and its unbiased variance. In
    evaluation the running ones are used instead. A batch without images leaves the running values as they are. world:
    a distributed.World, for training: mean and variance are then those of the images of all its ranks, which exchange
    sums.

    Raises ValueError for shapes that do not fit, 1 value per channel in training, only one of the two running
    values, running values that require a gradient or are missing in evaluation, and a momentum outside 0 to 1;
    TypeError for running values of another dtype or on another device.

    >>> x = Tensor([[1.0, 10.0], [3.0, 30.0]])
    >>> batch_norm(x, training=True, eps=0.0).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """
    running, ranks = (running_mean, running_var), cast("World | None", world)
    if (running_mean is None) != (running_var is None):
        raise ValueError(f"batch_norm: running_mean is {running_mean if running_mean is None else 'given'} and "
                         f"running_var is {running_var if running_var is None else 'given'}; give both or none")
    for name, t in zip(("running_mean", "running_var"), running, strict=True):
        if t is not None and (not isinstance(t, Tensor) or t.requires_grad):
            what = "requires a gradient" if isinstance(t, Tensor) else f"is a {type(t).__name__}"
            raise ValueError(f"batch_norm: {name} {what} but must be a Tensor that requires none; pass a buffer, see "
                             ".detach()")
    if not training:
        if running_mean is None:
            raise ValueError("batch_norm: running_mean and running_var are None but evaluation needs both; pass them, "
                             "or training=True to take the batch's own")
        return _batch_norm(x, weight, bias, *running, eps=eps)
    if running_mean is None or running_var is None:
        return _batch_norm(x, weight, bias, None, None, eps=eps, world=ranks)
    if not isinstance(momentum, (int, float)) or not 0 <= momentum <= 1:
        raise ValueError(f"batch_norm: momentum is {momentum!r} but must be a number from 0 to 1, the share of the "
                         "batch's values in the running ones")
    batch_geometry(x.shape, _shape(weight), _shape(bias), running_mean.shape, running_var.shape, world is None)
    for name, t in zip(("running_mean", "running_var"), (running_mean, running_var), strict=True):
        if (t.dtype, t.device) != (x.dtype, x.device):
            raise TypeError(f"batch_norm: {name} is {t.dtype} on {t.device} but x is {x.dtype} on {x.device}; move "
                            "both to one with .to()")
    mark_changed((running_mean, running_var))          # they are no inputs: no gradient depends on what they were
    return _batch_norm(x, weight, bias, None, None, running=(running_mean._data, running_var._data),
                       momentum=float(momentum), eps=eps, world=ranks)


# ---------------------------------------------------------------- of each image
def over_itself(k, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float, g: NormGeometry):
    """By the moments of each row or group."""
    y, mean, rstd = k.normalize(x, weight, bias, eps, g)

    def backward(gy, need):
        if not (need[1] or need[2]):
            return k.normalize_grad_x(gy, x, weight, mean, rstd, g), None, None
        gx, gw, gb = k.normalize_grad(gy, x, weight, mean, rstd, g)
        return gx, gw if need[1] else None, gb if need[2] else None
    return y, backward


@op(floating=True)
def _layer_norm(k, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *,
                normalized_shape: int | Shape, eps: float = 1e-5):
    g = layer_geometry(x.shape, normalized_shape, _shape(weight), _shape(bias))
    return over_itself(k, x, weight, bias, eps=eps, g=g)


def layer_norm(x: Tensor, normalized_shape: int | Shape, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """Each row minus its mean, divided by its deviation: x (..., *normalized_shape) -> the same shape (Ba et al. 2016).

    y = (x - mean) / sqrt(var + eps) * weight + bias over the last axes, whose sizes normalized_shape names; weight and
    bias have that shape. Raises ValueError for shapes that do not fit.

    >>> layer_norm(Tensor([[1.0, 3.0], [10.0, 30.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    return _layer_norm(x, weight, bias, normalized_shape=normalized_shape, eps=eps)


@op(floating=True)
def _group_norm(k, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, num_groups: int,
                eps: float = 1e-5):
    g = group_geometry(x.shape, num_groups, _shape(weight), _shape(bias))
    return over_itself(k, x, weight, bias, eps=eps, g=g)


def group_norm(x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """Groups of channels of each image minus their mean, divided by their deviation: x (n,c,...) -> the same shape.

    y = (x - mean) / sqrt(var + eps) * weight + bias, with weight and bias (c,); num_groups divides c (Wu and He 2018).
    One channel per group is instance normalisation. Raises ValueError for shapes that do not fit.

    >>> x = Tensor([[[1.0, 3.0], [10.0, 30.0]]])
    >>> group_norm(x, 2, eps=0.0).tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """
    return _group_norm(x, weight, bias, num_groups=num_groups, eps=eps)


# ---------------------------------------------------------------- across maps
@also
def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Each value divided by a term of its neighbours in other maps: x (n,c,...) -> the same shape.

    y[n,c] = x[n,c] / (k + alpha * s)^beta, s the mean of x[n,i]^2 over `size` maps i around c; maps beyond the first
    and the last count as 0. KSH 2012, section 3.3, has the sum instead of the mean: its 1e-4 for 5 maps is 5e-4 here,
    and in PyTorch.

    Raises ValueError for an x of fewer than 3 axes and a size below 1.

    >>> local_response_norm(Tensor([[[1.0], [2.0]]]), 1, alpha=1.0, beta=1.0).tolist()
    [[[0.5], [0.4000000059604645]]]
    """
    if x.ndim < 3:
        raise ValueError(f"local_response_norm: x has shape {x.shape} but must be (n,c,...), 3 axes or more; see "
                         ".reshape()")
    if not is_int(size, 1):
        raise ValueError(f"local_response_norm: size is {size!r} but must be an int of at least 1, a number of maps")
    n, c = x.shape[:2]
    squares = reshape(x * x, shape=(n, 1, c, math.prod(x.shape[2:])))
    means = avg_pool2d(squares, size=(size, 1), stride=1, padding=((size // 2, (size - 1) // 2), (0, 0)))
    return x / (reshape(means, shape=x.shape) * alpha + k) ** beta
