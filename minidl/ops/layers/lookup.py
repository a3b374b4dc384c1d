"""Rows of a table by their numbers, such as vectors of characters and words; and labels as rows of 0 and 1."""

from __future__ import annotations

import numpy as np

from ...core.mode import mode
from ...core.tensor import Tensor
from ..arrays.arrange import unsqueeze
from ..arrays.basic import eq
from ..arrays.select import where
from ..common.backend import backend_of
from ..common.geometry import is_int
from ..common.op import op

__all__ = ["embedding", "one_hot"]


@op(index=("ids",))
def _embedding(k, ids: Tensor, w: Tensor):
    rows = w.shape[0]
    return k.getitem(w, ids), lambda gy, need: (None, k.embedding_grad_w(gy, ids, rows))


def embedding(ids: Tensor | np.ndarray | list[int], w: Tensor, *, padding_idx: int | None = None) -> Tensor:
    """w[ids]: whole numbers ids (...), a table w (rows,d) -> (...,d). A row that is named twice sums its gradients.

    padding_idx: a row that gets no gradient. Raises TypeError for ids that are no integers; ValueError for a w that
    does not have 2 axes, and for an id that is not a row, with its position. Ids on a CUDA device are not looked at.

    >>> embedding([2, 0], Tensor([[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]])).tolist()
    [[3.0, 3.5], [1.0, 1.5]]
    """
    given, ids = ids, ids if isinstance(ids, Tensor) else Tensor(ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"embedding: ids have dtype {ids.dtype} but must be integers; the table comes second")
    if w.ndim != 2:
        raise ValueError(f"embedding: w has shape {w.shape} but must be (rows, d)")
    if padding_idx is not None and not 0 <= padding_idx < w.shape[0]:
        raise ValueError(f"embedding: padding_idx is {padding_idx!r} but must be a row of w, 0 to {w.shape[0] - 1}")
    _in_range(ids, w.shape[0], "embedding: id", "rows")
    ids = ids if ids is given else ids.to(w.device)
    y = _embedding(ids, w)
    return y if padding_idx is None else where(unsqueeze(eq(ids, padding_idx), -1), y.detach(), y)


def _in_range(ids: Tensor, count: int, *words: str) -> None:
    flat = ids if ids.ndim == 1 else ids.reshape(ids.size)
    backend_of(flat).check_labels(flat._data, count, *words)


@op(index=("labels",))
def _one_hot(k, labels: Tensor, *, classes: int):
    return k.one_hot(labels, classes), None


def one_hot(labels: Tensor | np.ndarray | list[int], num_classes: int = -1) -> Tensor:
    """1 at each label along a new last axis, and 0 elsewhere: integers (...) -> int64 (...,num_classes).

    num_classes: -1 for the largest label plus 1; a compiled step refuses -1, since it would look at the values.
    Raises TypeError for labels that are no integers; ValueError for a number of classes below 1, and for a label out of
    range. Labels that are on a CUDA device are not looked at: one out of range has no 1.

    >>> one_hot([1, 0], 3).tolist()
    [[0, 1, 0], [1, 0, 0]]
    """
    labels = labels if isinstance(labels, Tensor) else Tensor(labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"one_hot: labels have dtype {labels.dtype} but must be integers; convert them with "
                        ".to(dtype='int64')")
    if num_classes == -1:
        mode.recorder.refuse("calls one_hot without a number of classes", "pass num_classes")
        num_classes = int(labels._data.max()) + 1 if labels.size else 0
    if not is_int(num_classes, 1):
        raise ValueError(f"one_hot: num_classes is {num_classes!r} but must be an int of at least 1, or -1 for labels "
                         f"that are not empty and at least 0 (labels {labels.shape})")
    _in_range(labels, num_classes, "one_hot: label")
    return _one_hot(labels, classes=int(num_classes))
