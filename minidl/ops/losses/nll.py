"""The negative log likelihood of labels: with weights of the classes, ignored labels and smoothed targets."""

from __future__ import annotations

import math

from ...core.mode import no_grad
from ...core.tensor import Tensor
from ..arrays.arrange import gather
from ..arrays.basic import eq
from ..arrays.select import clip, where
from ..common.geometry import is_int
from ..common.op import op


@op(index=("labels",), floating=True)
def _nll_loss(k, log_p: Tensor, labels: Tensor, weight: Tensor | None = None, *, reduction: str, smoothing: float = 0.0,
              ignored: int | None = None):
    """-(sum over classes of target * log_p) of each row, reduced: log_p (n,classes), labels (n,), weight (classes,).

    A row's target is (1 - s) weight[label] on its label plus s / classes times each class's weight; 0 everywhere where
    the label is ignored, and NaN where it is no class. "mean" divides by the sum of weight[label], as PyTorch does.
    Written with comparisons in place of indices: no sum depends on an order, and nothing waits for the device.
    """
    n, classes = log_p.shape
    label = k.reshape(labels, (n, 1))
    ones = k.ones_like(log_p)
    on_label = k.where(k.eq(k.sub(k.cumsum(ones, 1), 1), label), ones, 0)              # is this the label's column?
    known = k.where(k.eq(k.sum(on_label, (1,), True), 0), math.nan, 1)
    counts = known if ignored is None else k.where(k.eq(label, ignored), 0, known)
    weights = ones if weight is None else k.mul(ones, weight)
    of_label = k.mul(k.mul(on_label, weights), counts)
    target = of_label
    if smoothing:
        everywhere = k.mul(k.mul(weights, counts), smoothing / max(1, classes))
        target = k.add(k.mul(of_label, 1 - smoothing), everywhere)
    losses = k.neg(k.sum(k.where(k.eq(target, 0), 0, k.mul(target, log_p)), (1,)))     # log_p may be infinite there
    if reduction == "mean":
        total = k.sum(of_label, (0, 1))
        nothing = k.eq(total, 0)           # counts: its mean is NaN, and its gradient 0
        share = k.where(nothing, 0, k.div(1, k.where(nothing, 1, total)))
        loss = k.mul(k.sum(losses, (0,)), k.where(nothing, math.nan, share))
    else:
        loss = losses if reduction == "none" else k.sum(losses, (0,))

    def backward(gy, need):
        each = k.reshape(gy, (n, 1)) if reduction == "none" else k.mul(gy, share) if reduction == "mean" else gy
        return k.neg(k.where(k.eq(target, 0), 0, k.mul(target, each))), None, None
    return loss, backward


def nll(log_p: Tensor, labels: Tensor, weight: Tensor | None, reduction: str, ignored: int | None,
        smoothing: float = 0.0) -> Tensor:
    """The loss; a weighted mean knows how much each label counts in it: `loss.weights`, (n,)."""
    loss = _nll_loss(log_p, labels, weight, reduction=reduction, smoothing=smoothing, ignored=ignored)
    if reduction == "mean":
        with no_grad():
            # A label that is no class makes the loss NaN, whatever its weight.
            counts = None if weight is None else gather(weight, 0, clip(labels, low=0, high=log_p.shape[1] - 1))
            if ignored is not None:
                counts = where(eq(labels, ignored), 0.0, 1.0 if counts is None else counts)
        if counts is not None:
            loss.weights = counts
    return loss


def counting(name: str, logits: Tensor, labels: Tensor, weight: Tensor | None, ignored: int | None) -> Tensor:
    """The labels, with 0 for those that are ignored. Raises ValueError for weights that are not one for each class, and
    for an ignored label that is no int."""
    if ignored is not None and not is_int(ignored, -math.inf):
        raise ValueError(f"{name}: ignore_index is {ignored!r} but must be an int, a label")
    if weight is not None and weight.shape != logits.shape[1:]:
        raise ValueError(f"{name}: weight has shape {weight.shape} but logits {logits.shape} have {logits.shape[1]} "
                         "classes; give one weight for each")
    return labels if ignored is None else where(eq(labels, ignored), 0, labels)
