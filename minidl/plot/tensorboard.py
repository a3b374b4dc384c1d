"""The metrics of a run as event files for TensorBoard. Extra `tensorboard`: tensorboardX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .figures import is_number


class TensorBoard:
    """Write each epoch's metrics to a folder that `tensorboard --logdir` reads: fit(..., on_epoch=TensorBoard(folder)).

    `train_loss` and `test_loss` become loss/train and loss/test, by the number of the step. Each epoch is on disk when
    the call returns. Raises ImportError where tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(f"TensorBoard: tensorboardX cannot be imported ({error}); run: "
                              "pip install 'minidl[tensorboard]'") from None
        self.writer = SummaryWriter(os.fspath(folder))

    def __call__(self, metrics: Mapping[str, Any]) -> None:
        """Write an epoch's metrics; what is not a number is left out."""
        for name, value in metrics.items():
            if is_number(value) and name not in ("epoch", "step"):
                which, _, what = name.partition("_")
                self.writer.add_scalar(f"{what}/{which}" if which in ("train", "test") and what else name, value,
                                       metrics.get("step", metrics.get("epoch")))
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
