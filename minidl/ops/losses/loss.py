"""Losses. Training minimises the negative mean log probability (Krizhevsky 2009, section 5)."""

from __future__ import annotations

import numpy as np

from ...core.device import no_flags
from ...core.tensor import Tensor, as_tensor
from ..arrays.shapes import reshape
from ..common.backend import backend_of
from ..common.op import op
from ..layers.activation import log_softmax
from .nll import counting, nll

__all__ = ["cross_entropy"]

REDUCTIONS = ("mean", "sum", "none")


@op(index=("labels",), floating=True)
def _cross_entropy(k, x: Tensor, labels: Tensor, *, reduction: str, smoothing: float):
    loss, log_p = k.cross_entropy(x, labels, reduction, smoothing)

    def backward(gy, need):
        return k.cross_entropy_grad_x(gy, log_p, labels, reduction, smoothing), None
    return loss, backward


def cross_entropy(logits: Tensor, labels: Tensor | np.ndarray | list[int], weight: Tensor | None = None, *,
                  reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int | None = None) -> Tensor:
    """-log softmax(logits)[label]: logits (n,classes), labels n integers in [0, classes) -> one number.

    Logits (n,classes,...) have labels (n,...), one for each pixel, as segmentation has them.
    reduction: "mean" over the labels, "sum", or "none" for one loss per label, in the labels' shape.
    label_smoothing: s in [0, 1]: the target is 1 - s on the label plus s / classes everywhere (Szegedy et
    al. 2016, section 7). weight: (classes,), a factor of each class's losses; "mean" is then over weight[label].
    ignore_index: images with this label have no loss, and do not count in a mean; PyTorch's default is -100. If all
    labels are ignored, the mean is NaN and its gradient is 0.

    Raises TypeError for labels that are no integers; ValueError for shapes that do not fit, a label out of range
    (named with its position in their order), an unknown reduction or smoothing. Labels that are on a CUDA device
    already are not looked at beforehand: one out of range makes its loss NaN.

    >>> cross_entropy(Tensor([[0.0, 0.0]]), [1]).item()  # doctest: +ELLIPSIS
    0.6931...
    """
    labels = _labels(logits, labels, weight, ignore_index)
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
    no_flags("cross_entropy", label_smoothing=label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing!r} but must be in [0, 1]")
    if weight is not None or ignore_index is not None or logits.ndim > 2:
        return nll(log_softmax(logits, axis=1), labels, weight, reduction, ignore_index, float(label_smoothing))
    return _cross_entropy(logits, labels, reduction=reduction, smoothing=float(label_smoothing))


def _labels(logits: Tensor, labels: Tensor | np.ndarray | list[int], weight: Tensor | None, ignored: int | None,
            name: str = "cross_entropy") -> Tensor:
    """Labels as an integer Tensor (n,) that was checked against the logits."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"{name}: logits is a {type(logits).__name__} but must be a Tensor (n, classes); of a "
                        "net with several outputs pass one")
    given, labels = labels, as_tensor(labels)
    if logits.ndim < 2 or labels.shape != (logits.shape[0], *logits.shape[2:]):
        raise ValueError(f"{name}: logits have shape {logits.shape} and labels {labels.shape} but must be "
                         "(n, classes) and (n,), or (n, classes, ...) and (n, ...); see .movedim()")
    if labels.dtype.kind not in "iu":
        raise TypeError(f"{name}: labels have dtype {labels.dtype} but must be integers; convert them "
                        "with .to(dtype='int64')")
    labels = labels if labels.ndim == 1 else reshape(labels, shape=(labels.size,))
    counted = labels if weight is ignored is None else counting(name, logits, labels, weight, ignored)
    words = () if name == "cross_entropy" else (f"{name}: label",)
    backend_of(counted).check_labels(counted._data, logits.shape[1], *words)
    return labels if labels is given else labels.to(logits.device)
