"""Images to train on: data sets by name, and batches of them."""

from .batches import DeviceBatches, own_batches
from .datasets import DATASETS, Dataset, load, resolve
from .loader import DataLoader, channel_statistics

__all__ = ["DATASETS", "DataLoader", "Dataset", "DeviceBatches", "channel_statistics", "load",
           "own_batches", "resolve"]
