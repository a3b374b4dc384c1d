"""The metrics of a run as an event file for TensorBoard. Extra `tensorboard`: tensorboardX."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from ...core.host import install
from .figures import is_number


class TensorBoard:
    """Write each epoch's metrics to a folder that `tensorboard --logdir` reads.

    It is a callback of `training.fit`: fit(..., callbacks=TensorBoard(folder)).

    `train_loss` and `test_loss` become loss/train and loss/test, at the number of the step; what is not a number is
    left out. When a call returns, its epoch is in the file. The folder is made. Raises ImportError without
    tensorboardX, OSError if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ImportError as error:
            raise ImportError(f"TensorBoard: tensorboardX cannot be imported ({error}); run "
                              f"{install('tensorboard')}") from None
        os.makedirs(folder, exist_ok=True)
        # Its SummaryWriter writes later, on a thread. A file's name has the second: without more, a second run that
        # begins in the same would replace the first.
        self.writer = EventsWriter(os.path.join(folder, "events"), f".{time.time_ns()}")

    def __call__(self, metrics: Mapping[str, Any]) -> None:
        """Write an epoch's metrics."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in metrics.items():
            if is_number(value) and name not in ("epoch", "step"):
                which, _, what = name.partition("_")
                tag = f"{what}/{which}" if which in ("train", "test") and what else name
                self.writer.write_event(Event(wall_time=time.time(), summary=scalar(tag, value),
                                              step=metrics.get("step", metrics.get("epoch"))))
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
