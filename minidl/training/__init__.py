"""The loop behind train.py, usable from Python: fit, evaluate, and the folder that a run leaves behind."""

from .loop import compiled_step, evaluate, fit, train_step
from .machine import machine
from .metrics import Metrics, Progress, RunningMetrics
from .run_folder import RunFolder, read_metrics

__all__ = [
    "Metrics", "Progress", "RunFolder", "RunningMetrics", "compiled_step", "evaluate", "fit", "machine",
    "read_metrics", "train_step",
]
