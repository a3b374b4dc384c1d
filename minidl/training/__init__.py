"""The loop behind train.py, usable from Python: fit, evaluate, predict, and the folder that a run leaves behind."""

from ..habits import shown as _shown
from .callbacks import EarlyStop, SaveBest, Step
from .checkpoint import Interrupted
from .gradients import check_gradients
from .loop import Diverged, compiled_step, evaluate, fit, predict, train_step
from .metrics import Metrics, Progress, RunningMetrics, WholeSet, f1_score, roc_auc_score, top_k_accuracy
from .record import machine, origin
from .resume import Checkpoint
from .run_folder import RunFolder, read_config, read_metrics, read_statistics
from .search import RateSearch, find_rate
from .views import Views

__all__ = [
    "Checkpoint", "Diverged", "EarlyStop", "Interrupted", "Metrics", "Progress", "RateSearch", "RunFolder",
    "RunningMetrics", "SaveBest", "Step", "Views", "WholeSet", "check_gradients", "compiled_step", "evaluate",
    "f1_score", "find_rate", "fit", "machine", "origin", "predict", "read_config", "read_metrics", "read_statistics",
    "roc_auc_score", "top_k_accuracy", "train_step",
]
_shown(__name__)
