"""Batches of a data set, in an order that seed and epoch decide."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from .. import rng
from ..device import Array, DType, resolve, to_device
from ..mode import Watched
from ..ops._backend import primitives_of
from .datasets import Dataset

Batch = tuple[Any, Any]                    # arrays on the loader's device


def channel_statistics(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviation) of each channel's pixels / 255, over all images: two arrays (c,).

    >>> import numpy as np
    >>> two = Dataset("mine", "train", np.array([0, 255], np.uint8).reshape(2, 1, 1, 1), np.array([0, 1]))
    >>> [float(v[0]) for v in channel_statistics(two)]
    [0.5, 0.5]
    """
    images, block = dataset.images, 1024
    total = squares = np.zeros(images.shape[1], np.uint64)
    for i in range(0, len(images), block):             # integers: the sums are exact
        part = images[i:i + block]
        total = total + part.sum(axis=(0, 2, 3), dtype=np.uint64)
        squares = squares + np.square(part, dtype=np.uint16).sum(axis=(0, 2, 3), dtype=np.uint64)
    count = max(1, images[:, 0].size)
    mean = total / (255 * count)
    return mean, np.sqrt(np.maximum(squares / (255**2 * count) - mean**2, 0))


class Stored(NamedTuple):
    """A whole data set on a device: images uint8 (n,c,h,w), labels int64 (n,), and what makes pixels of bytes: byte *
    scale + shift, one number per channel."""

    images: Array
    labels: Array
    scale: tuple[float, ...]
    shift: tuple[float, ...]


class DataLoader(Watched):
    """Iterate over a data set in batches: (images float (n,c,h,w), labels int64 (n,)), arrays of the device.

    batch_size: images a batch; the last may be smaller, or is dropped with drop_last.
    shuffle: in a new order each epoch, the permutation of Philox(seed, epoch); else as stored. Each
    iteration is the next epoch, from 0; `set_epoch` names one.
    mean, std: one number a channel: pixels become (pixel / 255 - mean) / std. padding: zero pixels around
    each image, before that. dtype: float32 or float64.
    prefetch: batches made ahead on a thread of their own; 0 makes each when it is asked for. device: "cpu", or
    "cuda": then the whole set is kept on the device, as bytes, and batches are made there when they are asked for.

    Raises ValueError for an empty data set, numbers out of their range, a number of means that is not the
    number of channels, a std of 0, another dtype, or drop_last where nothing would be left.

    >>> from minidl import data
    >>> loader = DataLoader(data.load("synthetic-digits", "test"), 128, seed=1)
    >>> images, labels = next(iter(loader))
    >>> images.shape, labels.shape, len(loader)
    ((128, 1, 28, 28), (128,), 16)
    """

    restless = frozenset({"_ahead", "_epoch", "_skip", "seed", "shuffle"})       # decide the order: no step reads them

    def __init__(self, dataset: Dataset, batch_size: int, *, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False, mean: Sequence[float] | np.ndarray | None = None,
                 std: Sequence[float] | np.ndarray | None = None, padding: int = 0, prefetch: int = 2,
                 dtype: DType = np.float32, device: str = "cpu"):
        for what, value, least in (("batch_size", batch_size, 1), ("padding", padding, 0),
                                   ("prefetch", prefetch, 0), ("seed", seed, 0)):
            _check_int(what, value, least)
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise ValueError(f"DataLoader: dtype is {np.dtype(dtype)} but must be float32 or float64")
        if len(dataset) < (batch_size if drop_last else 1):
            raise ValueError(f"DataLoader: {dataset.name} has {len(dataset)} images but a batch needs "
                             f"{batch_size if drop_last else 1}; use more images or a smaller batch")
        self.dataset, self.batch_size, self.shuffle, self.seed = dataset, batch_size, shuffle, seed
        self.drop_last, self.padding, self.prefetch, self.dtype = drop_last, padding, prefetch, dtype
        self.device = resolve(device)
        self.mean, self.std = self._statistics("mean", mean, 0.0), self._statistics("std", std, 1.0)
        self.stored = Stored(to_device(dataset.images, self.device),
                             to_device(dataset.labels.astype(np.int64), self.device),
                             tuple((1 / (255 * np.array(self.std))).tolist()),     # (byte / 255 - mean) / std
                             tuple((-np.array(self.mean) / self.std).tolist()))    # as byte * scale + shift
        self._epoch = self._skip = 0
        self._ahead: tuple[Any, np.ndarray] = None, np.zeros(0, np.int64)      # an order, and what decided it

    def _statistics(self, what: str, given: Sequence[float] | np.ndarray | None, default: float) -> tuple[float, ...]:
        """One number for each channel."""
        channels = self.dataset.images.shape[1]
        values = np.full(channels, default) if given is None else np.asarray(given, np.float64)
        if values.shape != (channels,):
            raise ValueError(f"DataLoader: {what} has shape {values.shape} but {self.dataset.name} has "
                             f"{channels} channels; give one number a channel")
        if what == "std" and not np.all(values > 0):
            raise ValueError(f"DataLoader: std is {values.tolist()} but every channel's must be above 0")
        return tuple(values.tolist())

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What pixels / 255 become, for a weights file: mean and std per channel, and zero pixels around, before that.

        >>> from minidl import data
        >>> DataLoader(data.load("synthetic-digits", "test"), 128, mean=[0.1], std=[0.3], padding=2).preprocessing
        {'mean': [0.1], 'std': [0.3], 'padding': 2}
        """
        return {"mean": list(self.mean), "std": list(self.std), "padding": int(self.padding)}

    @property
    def images_per_epoch(self) -> int:
        """How many images one iteration yields."""
        return len(self) * self.batch_size if self.drop_last else len(self.dataset)

    def __len__(self) -> int:
        """Batches an epoch."""
        return (len(self.dataset) + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, from 0."""
        _check_int("epoch", epoch, 0)
        self._epoch = epoch

    def skip(self, batches: int) -> None:
        """Leave out the first `batches` batches of the next iteration, as a training that was stopped after them does.

        The rest is what a whole iteration of that epoch gives; iterations after it are whole again. Raises ValueError
        for more batches than an epoch has.

        >>> from minidl import data
        >>> loader = DataLoader(data.load("synthetic-digits", "test"), 500)
        >>> loader.set_epoch(3)
        >>> loader.skip(1)
        >>> len(list(loader)), len(list(loader))
        (3, 4)
        """
        _check_int("batches", batches, 0)
        if batches > len(self):
            raise ValueError(f"DataLoader: batches to skip are {batches} but an epoch has {len(self)}; for a later "
                             "epoch, call set_epoch")
        self._skip = int(batches)

    def next_start(self) -> int:
        """The number of the batch that the next iteration starts at: 0 again once it has been asked for."""
        start, self._skip = self._skip, 0
        return start

    def order(self, epoch: int) -> np.ndarray:
        """The indices of all images in the order of an epoch."""
        if not self.shuffle:
            return np.arange(len(self.dataset))
        return rng.generator((self.seed, ORDER | epoch)).permutation(len(self.dataset))

    def next_order(self) -> np.ndarray:
        """The indices of the next epoch's images in its order, which counts as an iteration."""
        self.draw_ahead()
        _, order = self._ahead
        self._epoch += 1
        return order[:self.images_per_epoch]

    def draw_ahead(self) -> None:
        """Draw the next epoch's order, if that was not done yet: a good moment is while a device is busy."""
        decides = self.seed, self.shuffle, self._epoch
        if self._ahead[0] != decides:
            self._ahead = decides, self.order(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        order = to_device(self.next_order(), self.device)
        start = self.next_start() * self.batch_size
        parts = [order[i:i + self.batch_size] for i in range(start, len(order), self.batch_size)]
        ahead = self.prefetch if self.device == "cpu" else 0           # a GPU is ahead of the host by itself
        return _ahead(self._batch, parts, ahead) if ahead else map(self._batch, parts)

    def _batch(self, indices: Array) -> Batch:
        stored = self.stored
        k = primitives_of(stored.images)
        images = k.gather(stored.images, indices, stored.scale, stored.shift, self.padding, self.dtype)
        return images, k.getitem(stored.labels, indices)


ORDER = 1 << 63                            # apart from the counters of `rng.next_key`, which start at 0


def _check_int(what: str, value: object, least: int) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= value < 2**64:
        raise ValueError(f"DataLoader: {what} is {value!r} but must be an int of at least {least}, below 2**64")


def _ahead(make: Callable[[np.ndarray], Batch], parts: list[np.ndarray], depth: int) -> Iterator[Batch]:
    """make(part) of each part in turn, up to `depth` ahead on a thread that ends with the consumer."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="minidl-prefetch")
    try:
        ready = deque(pool.submit(make, part) for part in parts[:depth])
        for part in parts[depth:]:
            batch = ready.popleft().result()
            ready.append(pool.submit(make, part))
            yield batch
        while ready:
            yield ready.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
