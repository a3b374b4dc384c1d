"""The loop behind train.py, usable from Python: fit, evaluate, and the folder that a run leaves behind."""

from ..habits import shown as _shown
from .callbacks import SaveBest, Step
from .checkpoint import Interrupted
from .gradients import check_gradients
from .loop import compiled_step, evaluate, fit, train_step
from .machine import machine, origin
from .metrics import Metrics, Progress, RunningMetrics, top_k_accuracy
from .run_folder import RunFolder, read_config, read_metrics, read_statistics
from .views import Views

__all__ = [
    "Interrupted", "Metrics", "Progress", "RunFolder", "RunningMetrics", "SaveBest", "Step", "Views",
    "check_gradients", "compiled_step", "evaluate", "fit", "machine", "origin", "read_config", "read_metrics",
    "read_statistics", "top_k_accuracy", "train_step",
]
_shown(__name__)
