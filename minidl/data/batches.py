"""Batches that the device picks by itself, so that a step that is replayed needs nothing from the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.device import to_device
from ..core.mode import mode
from ..core.tensor import Tensor, wrap
from ..ops.common.backend import backend_of
from .images import Stored
from .loader import DataLoader, part_of
from .sources import leaves, mapped


def own_batches(loader: object) -> str | None:
    """The name of what makes a loader's batches in a way that no device can follow: a method of its own, "transform",
    or "__getitem__" for data that is not an array. None if it makes them as a DataLoader of images or arrays does."""
    for name in ("__iter__", "_batch", "next_order"):
        if getattr(type(loader), name, None) is not getattr(DataLoader, name) or name in vars(loader):
            return name
    assert isinstance(loader, DataLoader)
    return None if loader.stored is not None else "transform" if loader.transform else "__getitem__"


class DeviceBatches:
    """A DataLoader's batches, the same items in the same order, for steps that take them themselves.

    Iterating starts the loader's next epoch and gives the size of each batch; `next(size)`, in the step, gives the
    batch. The epoch's order and the position in it are kept on the loader's device, and each batch is picked there. A
    compiled step is recorded for each batch size, and then replayed in all epochs. `loader.skip` and `loader.set_epoch`
    apply to the next iteration here too.

    >>> import minidl
    >>> from minidl import data
    >>> batches = DeviceBatches(data.DataLoader(data.load("synthetic-digits", "test").first(300), 128))
    >>> @minidl.compile
    ... def step(size):
    ...     images, labels = batches.next(size)
    ...     return images.mean()
    >>> [step(size).shape for size in batches], list(batches)
    ([(), (), ()], [128, 128, 44])

    Raises TypeError for a loader that makes its batches in a way of its own: a subclass with another `__iter__`, a
    transform, or data that is neither images nor arrays.
    """

    def __init__(self, loader: DataLoader):
        own = own_batches(loader)
        if own is not None:
            raise TypeError(f"DeviceBatches: {type(loader).__name__} makes its batches by a {own} of its own, which is "
                            "not run where a device picks them; iterate over the loader")
        self.loader = loader
        self.sizes = [end - begin for begin, end in (part_of(size, *loader.part) for size in loader.sizes)]
        self._order = to_device(np.zeros(sum(self.sizes), np.int64), loader.device)
        self._key = to_device(np.zeros(2, np.uint64), loader.device)           # of the epoch's augmentation
        # The number of the batch that was last taken, from 0. Before the first epoch it is that of the last batch.
        self.position = Tensor(to_device(np.array([len(self.sizes) - 1]), loader.device))

    def __iter__(self) -> Iterator[int]:
        if self.loader.augment is not None:
            self._key[...] = to_device(self.loader.next_key(), self.loader.device)
        own = np.concatenate(self.loader.parts(self.loader.next_order()))
        self._order[...] = to_device(own, self.loader.device)
        start = self.loader.next_start()
        self.position.data[...] = start - 1
        return self._epoch(start)

    def _epoch(self, start: int) -> Iterator[int]:
        yield from self.sizes[start:]
        self.loader.draw_ahead()                       # the device is still busy with the last steps

    def next(self, size: int) -> Any:
        """The epoch's next batch, of a size that iterating gave: the same as the loader's, but of Tensors.

        Of a Dataset: images (size,c,h,w), labels int64 (size,). After the epoch's end there is no batch. The CPU then
        raises ValueError. CUDA is not waited for, and gives images of NaN and labels of -1, and so a loss of NaN (of
        arrays each byte is 0xFF, which is the same). Raises ValueError for a size that the loader does not have.
        """
        if size not in self.sizes:
            raise ValueError(f"DeviceBatches: size is {size!r} but must be {self.sizes[0]}, or "
                             f"{self.sizes[-1]} for the last batch; pass what iterating over the batches gives")
        loader, order, position = self.loader, self._order, self.position._data
        stored: object = loader.stored
        mode.recorder.reads(loader)
        if isinstance(stored, Stored):
            how = () if loader.augment is None else (loader.augment, self._key)
            k = backend_of(self.position, stored.images, stored.labels, order, *how)
            picked = k.next_batch(stored.images, stored.labels, order, position, self.sizes[0], size, stored.scale,
                                  stored.shift, loader.padding, loader.dtype, *how)
        else:
            k = backend_of(self.position, *leaves(stored), order)
            picked = mapped(lambda rows: k.next_rows(rows, order, position, self.sizes[0], size), stored)
        k.advance(position)
        return mapped(wrap, picked)
