"""Images to train on: data sets by name, and batches of them."""

from .datasets import DATASETS, Dataset, load, resolve
from .batches import DeviceBatches
from .loader import DataLoader, channel_statistics

__all__ = ["DATASETS", "DataLoader", "Dataset", "channel_statistics", "load", "resolve"]
