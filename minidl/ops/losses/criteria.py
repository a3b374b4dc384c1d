"""Losses beyond those of the papers: of log probabilities, of yes-or-no logits, and of differences."""

from __future__ import annotations

import math

import numpy as np

from ...core.tensor import Tensor
from ..arrays.basic import exp, log
from ..arrays.select import where
from ..common.op import also, op
from .loss import REDUCTIONS, _labels
from .nll import nll

__all__ = ["binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss", "mse_loss", "nll_loss"]


def nll_loss(log_p: Tensor, labels: Tensor | np.ndarray | list[int], weight: Tensor | None = None, *,
             reduction: str = "mean", ignore_index: int | None = None) -> Tensor:
    """-log_p[label], of log probabilities (n,classes), as `log_softmax` gives them; the rest as `cross_entropy`.

    >>> nll_loss(Tensor([[-0.5, -2.0], [-3.0, -1.0]]), [0, 1]).item()
    0.75
    """
    labels = _labels(log_p, labels, weight, ignore_index, "nll_loss")
    if reduction not in REDUCTIONS:
        raise ValueError(f"nll_loss: reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
    return nll(log_p, labels, weight, reduction, ignore_index)


# ---------------------------------------------------------------- x and target of one shape
def _alike(name: str, x: Tensor, target: Tensor, reduction: str) -> None:
    if not (isinstance(x, Tensor) and isinstance(target, Tensor)):
        raise TypeError(f"{name}: got a {type(x).__name__} and a {type(target).__name__} but both must be Tensors; "
                        "wrap them in minidl.Tensor(...)")
    if x.shape != target.shape:
        raise ValueError(f"{name}: x has shape {x.shape} but target has shape {target.shape}; make them equal")
    if x.dtype.kind != "f":
        raise TypeError(f"{name}: the input has dtype {x.dtype} but must be float32 or float64; convert it with "
                        ".to(dtype='float32')")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")


def of_pairs(k, x, target, loss: str, reduction: str, number: float = 0.0):
    """The body of a loss of pairs: a row of LOSSES, reduced."""
    def backward(gy, need):
        return (k.pair_loss_grad_x(gy, x, target, loss, number, reduction) if need[0] else None,
                k.pair_loss_grad_target(gy, x, target, loss, number, reduction) if need[1] else None)
    return k.pair_loss(x, target, loss, number, reduction), backward


@op(floating=True)
def _mse_loss(k, x: Tensor, target: Tensor, *, reduction: str):
    return of_pairs(k, x, target, "mse", reduction)


def mse_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(x - target)^2, elementwise: two Tensors of one shape -> one number, or their shape with "none".

    Raises ValueError if the shapes differ (they are not broadcast) or for an unknown reduction.

    >>> mse_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    2.0
    """
    _alike("mse_loss", x, target, reduction)
    return _mse_loss(x, target, reduction=reduction)


@op(floating=True)
def _l1_loss(k, x: Tensor, target: Tensor, *, reduction: str):
    return of_pairs(k, x, target, "l1", reduction)


def l1_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|x - target|, elementwise: two Tensors of one shape -> one number, or their shape with "none".

    Raises ValueError if the shapes differ (they are not broadcast) or for an unknown reduction.

    >>> l1_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    1.0
    """
    _alike("l1_loss", x, target, reduction)
    return _l1_loss(x, target, reduction=reduction)


@op(floating=True)
def _huber_loss(k, x: Tensor, target: Tensor, *, delta: float, reduction: str):
    return of_pairs(k, x, target, "huber", reduction, delta)


def huber_loss(x: Tensor, target: Tensor, *, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """d^2 / 2 for differences d = x - target of at most delta, and delta (|d| - delta / 2) beyond (Huber 1964).

    Arguments and errors as `l1_loss`; ValueError for a delta that is not above 0.

    >>> huber_loss(Tensor([0.0, 0.0]), Tensor([1.0, 4.0]), reduction="none").tolist()
    [0.5, 3.5]
    """
    _alike("huber_loss", x, target, reduction)
    if not delta > 0:
        raise ValueError(f"huber_loss: delta is {delta!r} but must be above 0")
    return _huber_loss(x, target, delta=float(delta), reduction=reduction)


@op(floating=True)
def _binary_cross_entropy_with_logits(k, x: Tensor, target: Tensor, pos_weight: Tensor | None = None, *,
                                      reduction: str):
    if pos_weight is None:
        y, of_pairs_backward = of_pairs(k, x, target, "bce", reduction)
        return y, lambda gy, need: (*of_pairs_backward(gy, need), None)
    axes = tuple(range(len(x.shape)))
    count = max(1, math.prod(x.shape))

    def losses():
        """For target 0 and 1."""
        small = k.softplus(k.neg(k.abs(x)))            # log(1 + e^-|x|), also where that is less than 1's rounding
        return k.add(small, k.maximum(x, 0)), k.add(small, k.maximum(k.neg(x), 0))

    def backward(gy, need):
        gy = k.div(gy, count) if reduction == "mean" else gy
        gx = k.sub(k.mul(k.sub(1, target), k.sigmoid(x)), k.mul(k.mul(target, pos_weight), k.sigmoid(k.neg(x))))
        gt = gw = None
        if need[1] or need[2]:
            no, yes = losses()
            gt = k.mul(gy, k.sub(k.mul(yes, pos_weight), no))
            gw = k.sum_to(k.mul(gy, k.mul(target, yes)), pos_weight.shape)
        return k.mul(gy, gx), gt, gw
    no, yes = losses()
    y = k.add(k.mul(k.sub(1, target), no), k.mul(k.mul(target, pos_weight), yes))
    if reduction != "none":
        y = k.sum(y, axes) if reduction == "sum" else k.mean(y, axes)
    return y, backward


def binary_cross_entropy_with_logits(x: Tensor, target: Tensor, *, reduction: str = "mean",
                                     pos_weight: Tensor | None = None) -> Tensor:
    """-target log(sigmoid(x)) - (1 - target) log(1 - sigmoid(x)), elementwise, without overflow.

    target: of x's shape, from 0 to 1. pos_weight: a factor of the first term, of a shape that broadcasts to x's.
    Arguments and errors as `l1_loss`.

    >>> binary_cross_entropy_with_logits(Tensor([-1000.0, 0.0]), Tensor([1.0, 1.0]), reduction="none").tolist()
    [1000.0, 0.6931471824645996]
    """
    name = "binary_cross_entropy_with_logits"
    _alike(name, x, target, reduction)
    ends = () if pos_weight is None else pos_weight.shape
    if len(ends) > x.ndim or any(n not in (1, m) for n, m in zip(ends[::-1], x.shape[::-1], strict=False)):
        raise ValueError(f"{name}: pos_weight has shape {ends}, which does not broadcast to x's {x.shape}; "
                         "give one value for each class, the last axis")
    return _binary_cross_entropy_with_logits(x, target, pos_weight, reduction=reduction)


@also
def kl_div(x: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (log(target) - x), elementwise, and 0 where target is 0: how far the probabilities whose logarithms
    are x are from the target (Kullback and Leibler 1951). log_target: the target has logarithms, too. reduction: as in
    `l1_loss`, or "batchmean": the sum divided by the size of the first axis, which is the mean divergence.

    >>> kl_div(Tensor([[0.5, 0.5]]).log(), Tensor([[1.0, 0.0]]), reduction="batchmean").item()
    0.693...
    """
    _alike("kl_div", x, target, "sum" if reduction == "batchmean" else reduction)
    p, log_p = (exp(target), target) if log_target else (target, log(where(target > 0, target, 1.0)))
    each = p * (log_p - x)
    if reduction == "none":
        return each
    return each.mean() if reduction == "mean" else each.sum() / (len(x) if reduction == "batchmean" else 1)
