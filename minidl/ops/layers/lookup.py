"""Rows of a table by their numbers: what stands for characters and words."""

from __future__ import annotations

import numpy as np

from ...core.tensor import Tensor
from ..arrays.arrange import unsqueeze
from ..arrays.basic import eq
from ..arrays.select import where
from ..common.backend import backend_of
from ..common.op import op

__all__ = ["embedding"]


@op(index=("ids",))
def _embedding(k, ids: Tensor, w: Tensor):
    rows = w.shape[0]
    return k.getitem(w, ids), lambda gy, need: (None, k.embedding_grad_w(gy, ids, rows))


def embedding(ids: Tensor | np.ndarray | list[int], w: Tensor, *, padding_idx: int | None = None) -> Tensor:
    """w[ids]: whole numbers ids (...), a table w (rows,d) -> (...,d). Rows that are named often sum their gradients.

    padding_idx: a row that gets no gradient. Raises TypeError for ids that are no integers; ValueError for a w that
    has not 2 axes, and for an id that is not a row, with its position. Ids that are on a CUDA device are not looked at.

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
    flat = ids if ids.ndim == 1 else ids.reshape(ids.size)
    backend_of(flat).check_labels(flat._data, w.shape[0], "embedding: id", "rows")
    ids = ids if ids is given else ids.to(w.device)
    y = _embedding(ids, w)
    return y if padding_idx is None else where(unsqueeze(eq(ids, padding_idx), -1), y.detach(), y)
