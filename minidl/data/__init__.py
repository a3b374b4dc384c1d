"""Data to train on: data sets by name, data of one's own, and batches of either."""

from .images import Augment, channel_statistics, mixup
from .loader import DataLoader, DeviceBatches, own_batches
from .sets.datasets import DATASETS, Data, Dataset, load, resolve
from .sets.folder import from_folder, own_splits, train_and_test
from .sets.table import Table, from_csv
from .sources import Subset, random_split

__all__ = ["DATASETS", "Augment", "Data", "DataLoader", "Dataset", "DeviceBatches", "Subset", "Table",
           "channel_statistics", "from_csv", "from_folder", "load", "mixup", "own_batches", "own_splits",
           "random_split", "resolve", "train_and_test"]
