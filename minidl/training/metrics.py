"""What is measured of training: summed on the device, shown as it goes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ops._backend import backend_of
from ..tensor import Tensor

Metrics = dict[str, Any]


class RunningMetrics:
    """The loss and the right answers of many steps, summed where they are computed: no step makes the host wait.

    Call `update` in a step, compiled or not, and `read` when the numbers are wanted. device: "cpu" or "cuda".
    """

    def __init__(self, device: str):
        self.sums = Tensor(np.zeros(2), device=device)

    def update(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count a batch in: its mean loss (one number), logits (n,classes), labels (n,).

        Raises ValueError for shapes that do not fit.
        """
        if loss.size != 1 or logits.ndim != 2 or labels.shape != logits.shape[:1]:
            raise ValueError(f"RunningMetrics: loss, logits and labels have shapes {loss.shape}, {logits.shape} and "
                             f"{labels.shape} but must be (), (n, classes) and (n,); pass a batch's mean loss")
        k = backend_of(logits, self.sums, loss, labels)
        k.update_metrics(self.sums._data, loss._data, logits._data, labels._data)

    def read(self) -> tuple[float, int]:
        """(loss summed over images, count right) since the last look."""
        loss, right = self.sums.tolist()
        self.sums.data[...] = 0
        return loss, int(right)


def right_answers(logits: Tensor, labels: Tensor | np.ndarray | list[int]) -> int:
    """How many of logits (n,classes) are largest at their label (n,)."""
    return int(np.sum(logits.argmax(axis=1).numpy() == Tensor(labels).numpy()))


class Progress:
    """A tqdm bar an epoch on stderr with loss, accuracy, images/s and time left; silent off a terminal."""

    def __init__(self, title: str, images: int, enabled: bool):
        from tqdm import tqdm

        self.bar = tqdm(total=images, desc=title, unit="image", unit_scale=True, leave=False,
                        disable=None if enabled else True)

    def update(self, images: int, loss: float, accuracy: float) -> None:
        """Count images in, and show loss and accuracy so far, where the loss is known (no NaN)."""
        if not math.isnan(loss):
            self.bar.set_postfix(loss=f"{loss:.4f}", accuracy=f"{100 * accuracy:.2f} %", refresh=False)
        self.bar.update(images)

    def close(self) -> None:
        self.bar.close()
