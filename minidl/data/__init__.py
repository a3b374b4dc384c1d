"""Data to train on: data sets by name, data of one's own, and batches of either."""

from .batches import DeviceBatches, own_batches
from .datasets import DATASETS, Dataset, load, resolve
from .folder import from_folder, train_and_test
from .images import Augment, channel_statistics
from .loader import DataLoader
from .mixing import mixup
from .sources import Subset, random_split

__all__ = ["DATASETS", "Augment", "DataLoader", "Dataset", "DeviceBatches", "Subset", "channel_statistics",
           "from_folder", "load", "mixup", "own_batches", "random_split", "resolve", "train_and_test"]
