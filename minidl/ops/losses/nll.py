"""The negative log likelihood of labels: with weights of the classes, ignored labels and smoothed targets."""

from __future__ import annotations

import math

from ...core.mode import no_grad
from ...core.tensor import Tensor
from ..arrays.arrange import gather
from ..arrays.basic import eq
from ..arrays.select import clip, where
from ..arrays.shapes import reshape, transpose
from ..common.geometry import is_int
from ..common.op import WEIGHTED, op


@op(index=("labels",), floating=True)
def _nll_loss(k, log_p: Tensor, labels: Tensor, weight: Tensor | None = None, *, reduction: str, smoothing: float = 0.0,
              ignored: int | None = None):
    """-(sum over classes of target * log_p) of each row, reduced: log_p (n,classes), labels (n,), weight (classes,)."""
    loss, total = k.nll(log_p, labels, weight, reduction, smoothing, ignored)
    classes = log_p.shape[1]

    def backward(gy, need):
        return k.nll_grad_x(gy, classes, labels, weight, total, reduction, smoothing, ignored), None, None
    return loss, backward


def nll(log_p: Tensor, labels: Tensor, weight: Tensor | None, reduction: str, ignored: int | None,
        smoothing: float = 0.0) -> Tensor:
    """The loss. Of a weighted mean, or losses of each row, `loss.weights` (n,) says how much each label counts.

    log_p may be (n,classes,...); labels are (n,), for all pixels."""
    if log_p.ndim > 2:
        pixels = transpose(log_p, axes=(0, *range(2, log_p.ndim), 1))
        loss = nll(reshape(pixels, shape=(labels.size, log_p.shape[1])), labels, weight, reduction, ignored, smoothing)
        return reshape(loss, shape=pixels.shape[:-1]) if reduction == "none" else loss
    loss = _nll_loss(log_p, labels, weight, reduction=reduction, smoothing=smoothing, ignored=ignored)
    if reduction != "sum":
        with no_grad():
            # A label that is not a class makes the loss NaN, whatever its weight.
            counts = None if weight is None else gather(weight, 0, clip(labels, low=0, high=log_p.shape[1] - 1))
            if ignored is not None:
                counts = where(eq(labels, ignored), 0.0, 1.0 if counts is None else counts)
        if counts is not None:
            loss.weights, counts._counted = counts, (labels, weight, ignored)
            if not WEIGHTED:
                WEIGHTED.append(True)
    return loss


def counting(name: str, logits: Tensor, labels: Tensor, weight: Tensor | None, ignored: int | None) -> Tensor:
    """The labels, with 0 for those that are ignored. Raises ValueError if there is not one weight for each class, and
    for an ignored label that is not an int; TypeError for weights that are no Tensor of the logits' dtype."""
    if ignored is not None and not is_int(ignored, -math.inf):
        raise ValueError(f"{name}: ignore_index is {ignored!r} but must be an int, a label")
    if weight is not None and not isinstance(weight, Tensor):
        raise TypeError(f"{name}: weight is a {type(weight).__name__} but must be a Tensor, one floating number for "
                        "each class; wrap it in minidl.Tensor(...)")
    if weight is not None and weight.requires_grad:
        raise ValueError(f"{name}: weight (shape {weight.shape}) requires a gradient, and the loss has none by it; "
                         "pass weight.detach()")
    if weight is not None and weight.dtype != logits.dtype:
        raise TypeError(f"{name}: weight has dtype {weight.dtype} but logits {logits.dtype}; convert it with "
                        f".to(dtype='{logits.dtype}')")
    if weight is not None and weight.shape != logits.shape[1:2]:
        raise ValueError(f"{name}: weight has shape {weight.shape} but logits {logits.shape} have {logits.shape[1]} "
                         "classes; give one weight for each")
    return labels if ignored is None else where(eq(labels, ignored), 0, labels)
