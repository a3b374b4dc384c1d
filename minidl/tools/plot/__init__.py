"""Pictures of a training run: curves, filters, confusion matrix, and a report of one file. Extra `plot`: matplotlib.

matplotlib is imported when something is drawn. It is used through its objects and writes pixels by Agg: neither
pyplot's figures nor its settings are touched.
"""

from .figures import confusion, curves, filters
from .run import pictures, report
from .tensorboard import TensorBoard

__all__ = ["TensorBoard", "confusion", "curves", "filters", "pictures", "report"]
