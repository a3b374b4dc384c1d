"""Batches of any data, in an order that seed and epoch decide; also such as the device picks by itself, so that a step
that is replayed needs nothing from the host."""

from __future__ import annotations

import contextvars
import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from ..core import rng
from ..core.device import Array, DType, as_array, resolve, to_device, to_numpy
from ..core.mode import Watched, mode
from ..core.tensor import Tensor, wrap
from ..ops.common.backend import backend_of, primitives_of
from .images import Augment, Stored
from .once import once
from .sets.datasets import Dataset
from .sets.table import Table
from .sources import arrays_of, as_set, checked_order, collated, item_of, leaves, mapped

if TYPE_CHECKING:                          # a TypeVar's default: Python's own has it from 3.13 on
    import typing_extensions

    D = typing_extensions.TypeVar("D", covariant=True, default=object)
else:
    D = TypeVar("D", covariant=True)
Numbers = Sequence[float] | np.ndarray | float | None
Batch = Any                                # arrays on the loader's device: one, or a tuple or dict of them


class DataLoader(Watched, Generic[D]):
    """Iterate over data in batches: arrays of the device.

    dataset: a `data.Dataset` of images: a batch is (images float (n,c,h,w), labels int64 (n,)). Or a `data.Table`: a
    batch is (rows float (n,columns), labels int64 (n,)). Or arrays, one or a tuple or a dict of them, of any shape and
    dtype, whose first axis counts items: a batch has the same form with n items, and values stay as they are (bytes are
    not scaled). Or any object with len() and [i]: its items (numbers, arrays, tuples and dicts of them) are stacked. A
    Subset of a Dataset or a Table is one, too, unless a transform makes its items.
    batch_size: items per batch; the last batch may be smaller, or is dropped with drop_last.
    shuffle: a new order in each epoch, the permutation of Philox(seed, epoch); False keeps the stored order. Each
    iteration is the next epoch, from 0; `set_epoch` says which epoch is next. What is set during one, such as augment,
    holds from the next one on.
    mean, std, padding, augment: for a Dataset. mean and std: one number per channel, or one for all: pixels become
    (pixel / 255 - mean) / std. padding: zero pixels around each image, added before that. augment: an `Augment`. For a
    Table: mean and std, one number per column.
    transform: a function of one item, whose results are stacked. A tuple is passed part by part, `transform(x, y)`,
    another item as a whole. It may change its arguments in place: they are copies. What it draws with minidl is decided
    by seed, epoch and item. For a Dataset it takes (image, label), uint8 (c,h,w) and an integer. It gives the same
    types; images may have any size, but all have the same.
    dtype: float32 or float64. By default images and Tables are float32, and other floating numbers keep their dtype.
    prefetch: batches made ahead on a separate thread; 0 makes each batch when it is needed. device: "cpu" or "cuda".
    With "cuda", a Dataset's bytes, and arrays, are kept on the device, and batches are made there when they are needed.
    Batches of items that are stacked on the host are moved there.
    part: (rank, size): each batch is divided into `size` parts, which differ by one item at most, and this process has
    the rank-th. `training.fit` sets it for the ranks of a run.

    Raises ValueError if dataset, mean, std, transform or dtype are set on a loader that is made: make a new one.

    Raises ValueError for no data, numbers out of their range, arrays of several lengths, a number of means that is not
    the number of channels or columns, a mean of images above 1, a std of 0 or less, another dtype, or
    drop_last if no batch would be left; TypeError for data of another kind. An item that raises StopIteration gives a
    RuntimeError when its batch is made.

    >>> import numpy as np
    >>> from minidl import data
    >>> loader = DataLoader(data.load("synthetic-digits", "test"), 128, seed=1)
    >>> images, labels = next(iter(loader))
    >>> images.shape, labels.shape, len(loader)
    ((128, 1, 28, 28), (128,), 16)
    >>> x, y = next(iter(DataLoader((np.ones((100, 7)), np.arange(100.0)), 32)))
    >>> x.shape, y.shape
    ((32, 7), (32,))
    """

    # These decide the order, or which part of it is read. No step reads them.
    restless = frozenset({"_ahead", "_epoch", "_skip", "part", "seed", "shuffle"})
    # What is kept when a loader is made depends on these.
    fixed = frozenset({"dataset", "dtype", "mean", "std", "transform"})

    def __init__(self, dataset: D, batch_size: int, *, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False, mean: Numbers = None,
                 std: Numbers = None, padding: int = 0, augment: Augment | None = None,
                 transform: Callable[..., Any] | None = None, prefetch: int = 2, dtype: DType = None,
                 device: str = "cpu", part: tuple[int, int] = (0, 1)):
        for what, value, least in (("batch_size", batch_size, 1), ("padding", padding, 0),
                                   ("prefetch", prefetch, 0), ("seed", seed, 0)):
            _check_int(what, value, least)
        if dtype is not None and np.dtype(dtype) not in (np.float32, np.float64):
            raise ValueError(f"DataLoader: dtype is {np.dtype(dtype)} but must be float32 or float64")
        self.dataset: Any = as_set(dataset) if transform is None else dataset
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.drop_last, self.padding, self.prefetch, self.transform = drop_last, padding, prefetch, transform
        self.augment, self.device, self.part = augment, resolve(device), part
        if not (isinstance(part, tuple) and list(map(type, part)) == [int, int] and 0 <= part[0] < part[1]):
            raise ValueError(f"DataLoader: part is {part!r} but must be (rank, size), ints from 0 to below size")
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.mean: tuple[float, ...] | None = None
        self.std: tuple[float, ...] | None = None
        self._item: Callable[[int], Any]
        self.stored: Any = None            # data on the device, to pick from; None: items are stacked on the host
        if isinstance(self.dataset, Dataset):
            self._store_images(self.dataset, mean, std)
        elif isinstance(self.dataset, Table):
            self._store_arrays(self._normalised(self.dataset, mean, std), padding=padding or None, augment=augment)
        else:
            self._store_arrays(dataset, mean=mean, std=std, padding=padding or None, augment=augment)
        if self.count < (batch_size if drop_last else 1):
            name, what = ((self.dataset.name, self.dataset.items) if isinstance(self.dataset, (Dataset, Table)) else
                          (type(dataset).__name__, "items"))
            raise ValueError(f"DataLoader: {name} has {self.count} {what} but a batch needs "
                             f"{batch_size if drop_last else 1}; use more {what} or a smaller batch")
        self._epoch = self._skip = 0
        self._ahead: tuple[Any, np.ndarray] = None, np.zeros(0, np.int64)      # what decided an order, and the order

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.fixed and "_ahead" in vars(self):
            raise ValueError(f"DataLoader: {name} is set to {value!r:.80} but a loader that is made keeps what it was "
                             f"made with; make a new one, DataLoader(..., {name}=...)")
        super().__setattr__(name, value)

    def _store_images(self, dataset: Dataset, mean: Numbers, std: Numbers) -> None:
        """Images and labels on the device, shared if they are there; with a transform they are read one by one."""
        self.count, self._item, self.dtype = len(dataset), dataset.__getitem__, self.dtype or np.dtype(np.float32)
        self.mean, self.std = self._statistics("mean", mean, 0.0), self._statistics("std", std, 1.0)
        self._scale = tuple((1 / (255 * np.array(self.std))).tolist())         # (byte / 255 - mean) / std as
        self._shift = tuple((-np.array(self.mean) / self.std).tolist())        # byte * scale + shift
        if self.augment is not None:
            check_augment(self.augment)
            height, width = dataset.images.shape[2:]
            # A larger crop moves an image out of its padded frame, or beyond its mirror image. A larger cutout covers
            # the image from any pixel of the frame.
            limits = {"crop": min(height, width) + self.padding * (2 if self.augment.reflect else 1),
                      "cutout": 2 * (max(height, width) + self.padding) - 1}
            for what, limit in limits.items():
                if (given := getattr(self.augment, what)) and given >= limit:
                    raise ValueError(f"DataLoader: augment's {what} is {given} but must be below {limit} for images of "
                                     f"{height}x{width} with padding {self.padding}; use a smaller {what}")
            if self.transform is not None:
                raise ValueError("DataLoader: augment and transform are both given but images are augmented where they "
                                 "are picked from memory; do all of it in the transform")
        if self.transform is None:
            there = once(dataset, lambda: (to_device(dataset.images, self.device),
                                           to_device(dataset.labels.astype(np.int64), self.device)))
            images, labels = (to_device(array, self.device) for array in there)
            self.stored = Stored(images, labels, self._scale, self._shift)

    def _normalised(self, table: Table, mean: Numbers, std: Numbers) -> tuple[np.ndarray, np.ndarray]:
        self.mean, self.std = self._statistics("mean", mean, 0.0), self._statistics("std", std, 1.0)
        self.dtype = self.dtype or np.dtype(np.float32)
        rows = (table.rows - np.array(self.mean)) / np.array(self.std)         # in float64: means may be large
        return rows, table.labels.astype(np.int64)

    def _store_arrays(self, source: object, **of_images: object) -> None:
        for what, given in of_images.items():
            if given is not None:
                raise ValueError(f"DataLoader: {what} is {given!r} but is for a data.Dataset of images, and this is a "
                                 f"{type(self.dataset).__name__}; change the data itself, or in a transform")
        arrays = arrays_of(source, "DataLoader")
        if arrays is not None:
            self.count = len(leaves(arrays)[0])
            if self.transform is None:
                self.stored = mapped(self._kept, arrays)
            else:
                self._item = partial(item_of, mapped(to_numpy, arrays))
        elif hasattr(self.dataset, "__len__") and hasattr(self.dataset, "__getitem__"):
            self.count, self._item = len(self.dataset), self.dataset.__getitem__
        else:
            raise TypeError(f"DataLoader: a {type(self.dataset).__name__} lacks len() or [i], by which batches are "
                            "made; pass arrays, or an object that has both")

    def _kept(self, array: Array) -> Array:
        array = to_device(self._cast(array), self.device)
        return array if self.device == "cpu" or array.flags.c_contiguous else array.copy()

    def _cast(self, array: Array) -> Array:
        """Floating numbers in the requested dtype; others as they are, in the machine's byte order."""
        return as_array(array, None if array.dtype.kind != "f" else self.dtype)

    def _statistics(self, what: str, given: Numbers, default: float) -> tuple[float, ...]:
        """One number for each channel, or column of a table; a single number is used for all of them."""
        channels, kind = self.dataset.shape[0], "column" if isinstance(self.dataset, Table) else "channel"
        values = np.asarray(default if given is None else given, np.float64)
        values = np.full(channels, values) if not values.shape else values
        if values.shape != (channels,):
            raise ValueError(f"DataLoader: {what} has shape {values.shape} but {self.dataset.name} has "
                             f"{channels} {kind}s; give one number per {kind}")
        if not np.isfinite(values).all():
            raise ValueError(f"DataLoader: {what} is {values.tolist()} but must be finite; compute it anew")
        if what == "std" and not np.all(values > 0):
            raise ValueError(f"DataLoader: std is {values.tolist()} but every {kind}'s must be above 0")
        if kind == "channel" and what == "mean" and np.any(values > 1):
            raise ValueError(f"DataLoader: mean is {values.tolist()} but pixels are byte / 255, at most 1; divide mean "
                             "and std by 255, or take those of channel_statistics")
        return tuple(values.tolist())

    @property
    def preprocessing(self) -> dict[str, Any] | None:
        """How pixels / 255, or the columns of a table, are normalised, for a weights file: mean and std per channel or
        column, and the zero pixels added around before. None if the data is not a `data.Dataset` or `data.Table`.

        >>> from minidl import data
        >>> DataLoader(data.load("synthetic-digits", "test"), 128, mean=[0.1], std=[0.3], padding=2).preprocessing
        {'mean': [0.1], 'std': [0.3], 'padding': 2}
        """
        if self.mean is None or self.std is None:
            return None
        return {"mean": list(self.mean), "std": list(self.std), "padding": int(self.padding)}

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of an item as batches have it, after the transform: of its first part, if it has several. An image
        is not padded yet.

        >>> from minidl import data
        >>> shapes = data.load("synthetic-shapes", "test")
        >>> DataLoader(shapes, 128, transform=lambda image, label: (image[:, 2:-2, 2:-2], label)).item_shape
        (3, 28, 28)
        """
        if self.stored is not None:
            shape: tuple[int, ...] = leaves(self.stored)[0].shape[1:]
            return shape
        return np.shape(leaves(self._changed(0, (self.seed, self._epoch)))[0])

    @property
    def images_per_epoch(self) -> int:
        """How many images, or items of other data, one iteration yields."""
        return len(self) * self.batch_size if self.drop_last else self.count

    def __len__(self) -> int:
        """Batches per epoch."""
        return (self.count + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    @property
    def sizes(self) -> list[int]:
        """How many items each whole batch has, before it is divided into parts."""
        return [min(self.batch_size, self.images_per_epoch - i)
                for i in range(0, self.images_per_epoch, self.batch_size)]

    def parts(self, order: Array) -> list[Array]:
        """This process's part of each batch of an epoch's order."""
        whole = [order[i:i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        return whole if self.part == (0, 1) else [batch[slice(*part_of(len(batch), *self.part))] for batch in whole]

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, from 0."""
        _check_int("epoch", epoch, 0)
        self._epoch = epoch

    def skip(self, batches: int) -> None:
        """Leave out the first `batches` batches of the next iteration: for a training that was stopped after them.

        The other batches are those of a whole iteration of that epoch. Later iterations are whole again. Raises
        ValueError for more batches than an epoch has.

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
        """The number of the batch that the next iteration starts at. Each call sets it back to 0."""
        start, self._skip = self._skip, 0
        return start

    def order(self, epoch: int) -> np.ndarray:
        """The indices of all images or items in the order of an epoch: (count,), integers from 0. A subclass may give
        another order, in which items may come more than once."""
        if not self.shuffle:
            return np.arange(self.count)
        return rng.generator((self.seed, ORDER | epoch)).permutation(self.count)

    def next_order(self) -> np.ndarray:
        """The indices of the next epoch's items in its order. The call counts as an iteration."""
        self._draw()
        _, order = self._ahead
        self._epoch += 1
        return order[:self.images_per_epoch]

    def draw_ahead(self) -> None:
        """Draw the next epoch's order, if that was not done yet: a good moment is while a device is busy. That of a
        subclass waits, since what decides it may change until then."""
        if self._seed_decides():
            self._draw()

    def _seed_decides(self) -> bool:
        """Whether an epoch's order depends on seed and epoch alone."""
        return type(self).order is DataLoader.order and "order" not in vars(self)

    def _draw(self) -> None:
        decides = self.seed, self.shuffle, self._epoch
        if self._ahead[0] != decides or not self._seed_decides():
            self._ahead = decides, checked_order(self.order(self._epoch), self.count, type(self).__name__)

    def next_key(self) -> np.ndarray:
        """What decides how the next epoch's images are augmented: a key of Philox, uint64 (2,)."""
        return np.array([self.seed, VIEWS | self._epoch], np.uint64)

    @overload
    def __iter__(self: DataLoader[Dataset] | DataLoader[Table]) -> Iterator[tuple[np.ndarray, np.ndarray]]: ...
    @overload
    def __iter__(self) -> Iterator[Batch]: ...
    def __iter__(self) -> Iterator[Batch]:
        make: Callable[[Array], Batch] = self._batch
        if self.augment is not None:
            make = partial(self._batch, key=(self.padding, self.augment, to_device(self.next_key(), self.device)))
        elif own_batches(self) is None:    # one of a user's may take the indices alone
            make = partial(self._batch, key=(self.padding, None, None))
        make = partial(self._numbered, make, self._epoch)
        order, ahead = self.next_order(), self.prefetch
        if self.device != "cpu" and self.stored is not None:           # the GPU's queue of launches is ahead enough
            order, ahead = to_device(order, self.device), 0
        parts = list(enumerate(self.parts(order)))[self.next_start():]
        # Generators, not map: a StopIteration from the code that makes a batch is an error, not the end.
        batches = _ahead(make, parts, ahead) if ahead else (make(part) for part in parts)
        if self.device == "cpu" or self.stored is not None:
            return batches
        return (mapped(lambda array: to_device(array, self.device), each) for each in batches)

    def _numbered(self, make: Callable[[Array], Batch], epoch: int, part: Part) -> Batch:
        """A batch. Its number in the epoch decides what the code that makes it draws."""
        number, indices = part
        with rng.stream_of(self.seed, epoch, number):
            return make(indices)

    def _batch(self, indices: Array, key: tuple[int, Augment | None, Array | None] | None = None) -> Batch:
        """Items. key: padding, augmentation, and what decides it, as they were when the iteration began."""
        stored = self.stored
        if stored is None:
            return self._stacked(indices)
        if not isinstance(stored, Stored):
            return mapped(lambda array: primitives_of(array).getitem(array, indices), stored)
        k = primitives_of(stored.images)
        padding, augment, drawn = key or (self.padding, None, None)
        views = () if augment is None else (augment, drawn)
        images = k.gather(stored.images, indices, stored.scale, stored.shift, padding, self.dtype, *views)
        return images, k.getitem(stored.labels, indices)

    def _stacked(self, indices: Array) -> Batch:
        """A batch of items that are taken one by one, on the host."""
        of_epoch = rng.numbers_within()[:2]            # seed and epoch, without the batch's number
        items = [self._changed(index, of_epoch) for index in indices.tolist() or [0]]  # empty part: item 0, cut below
        batch = mapped(lambda array: array[:len(indices)], collated(items, "DataLoader"))
        if not isinstance(self.dataset, Dataset):
            return mapped(self._cast, batch)
        found = [(part.dtype.kind, part.itemsize, part.ndim) for part in leaves(batch)]
        fits = len(found) == 2 and found[0] == ("u", 1, 4) and found[1][0] in "iu" and found[1][2] == 1
        if not fits or leaves(batch)[0].shape[1] != self.dataset.shape[0]:     # (h,w,c) of one channel would broadcast
            gives = " and ".join(f"{part.dtype} {part.shape[1:]}" for part in leaves(batch))
            raise TypeError(f"DataLoader: the transform of {self.dataset.name} gives {gives} but must give uint8 "
                            "(c,h,w) and an integer, as it is given; pixels are scaled and normalised afterwards")
        (images, labels), k = batch, primitives_of(batch[0])
        return (k.gather(images, np.arange(len(images)), self._scale, self._shift, self.padding, self.dtype),
                labels.astype(np.int64))

    def _changed(self, index: int, of_epoch: tuple[int, ...]) -> Any:
        """An item after the transform. The transform gets copies, so it may change its arguments in place. What the
        item and the transform draw depends on seed, epoch and item alone."""
        try:
            with rng.stream_of(*of_epoch, 0, index):   # four numbers: separate from a batch's three
                item = self._item(index)
                if self.transform is None:
                    return item
                item = mapped(_copied, item)
                return self.transform(*item) if isinstance(item, tuple) else self.transform(item)
        except StopIteration as error:     # it would end the iteration that needs the item
            raise RuntimeError(f"DataLoader: item {index} of {self.count} raised StopIteration; give each item that "
                               "len() counts, or make len() smaller") from error

    def __repr__(self) -> str:
        """What is batched, and how.

        >>> import numpy as np
        >>> DataLoader((np.ones((100, 7)), np.arange(100)), 32)
        DataLoader(tuple of 100, 4 batches of 32, shuffled from seed 0, device='cpu')
        """
        what = self.dataset.name if self.mean is not None else type(self.dataset).__name__
        order = f"shuffled from seed {self.seed}" if self.shuffle else "in order"
        return (f"DataLoader({what} of {self.count}, {len(self)} batches of {self.batch_size}, {order}, "
                f"device={self.device!r})")


def _copied(part: object) -> object:
    """A copy of a part of an item; the part itself if Python cannot copy it, such as an open file."""
    if isinstance(part, list):
        return [mapped(_copied, each) for each in part]
    own = getattr(part, "clone", getattr(part, "copy", None)) if hasattr(part, "__array__") else None
    try:
        return own() if own else copy.deepcopy(part)   # copy() of other types may share contents, or copy a path's file
    except (TypeError, copy.Error):
        return part


ORDER = 1 << 63                            # separate from the counters of `rng.next_key`, which start at 0
VIEWS = 3 << 62                            # and separate from orders


def part_of(count: int, rank: int, size: int) -> tuple[int, int]:
    """(begin, end) of the rank-th of `size` parts of `count` items: the first count % size parts have one more.

    >>> [part_of(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    each, more = divmod(count, size)
    begin = rank * each + min(rank, more)
    return begin, begin + each + (rank < more)


def check_augment(augment: Augment) -> None:
    """Raises TypeError or ValueError for what is not an Augment with numbers in their ranges."""
    if not isinstance(augment, Augment):
        raise TypeError(f"DataLoader: augment is a {type(augment).__name__} but must be a data.Augment(crop=, flip=, "
                        "cutout=, ...)")
    for what in ("crop", "cutout"):
        _check_int(f"augment's {what}", getattr(augment, what), 0)
    if augment.flip not in (False, True, "alternate"):
        raise ValueError(f"DataLoader: augment's flip is {augment.flip!r} but must be True, False or 'alternate'")
    if augment.reflect not in (False, True):
        raise ValueError(f"DataLoader: augment's reflect is {augment.reflect!r} but must be True or False")
    for what in ("brightness", "contrast", "color"):
        value = getattr(augment, what)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value < math.inf:
            raise ValueError(f"DataLoader: augment's {what} is {value!r} but must be a finite number of at least 0")


def _check_int(what: str, value: object, least: int) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= value < 2**64:
        raise ValueError(f"DataLoader: {what} is {value!r} but must be an int of at least {least}, below 2**64")


def drawn_apart(loader: Any, epoch: int, start: int = 0) -> Iterator[Batch]:
    """A loader's batches from the start-th on. The loader's seed, the epoch and the batch's number decide what each
    batch draws, for example by mixup in an `__iter__` of its own. So skipping some batches does not change the rest."""
    seed = getattr(loader, "seed", 0)
    with rng.stream_of(seed, epoch):
        batches = iter(loader)
    while True:
        with rng.stream_of(seed, epoch, start):
            try:
                batch = next(batches)
            except StopIteration:
                return
        start += 1
        yield batch


Part = tuple[int, Array]                   # a batch's number, and its indices


def _ahead(make: Callable[[Part], Batch], parts: list[Part], depth: int) -> Iterator[Batch]:
    """make(part) of each part in turn, up to `depth` parts ahead, on a thread that ends with the consumer, and works in
    its context."""
    pool, context = ThreadPoolExecutor(1, thread_name_prefix="minidl-prefetch"), contextvars.copy_context()
    try:
        ready = deque(pool.submit(context.run, make, part) for part in parts[:depth])
        for part in parts[depth:]:
            batch = ready.popleft().result()
            ready.append(pool.submit(context.run, make, part))
            yield batch
        while ready:
            yield ready.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# ---------------------------------------------------------------- picked by the device
def own_batches(loader: object) -> str | None:
    """The name of what makes a loader's batches in a way that no device can follow: a method of its own, "transform",
    or "__getitem__" for data that is not an array. None if it makes them as a DataLoader of images or arrays does."""
    for name in ("__iter__", "_batch", "next_order"):
        if getattr(type(loader), name, None) is not getattr(DataLoader, name) or name in vars(loader):
            return name
    assert isinstance(loader, DataLoader)
    return None if loader.stored is not None else "transform" if loader.transform else "__getitem__"


class DeviceBatches(Watched):
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
        self._how = loader.padding, loader.augment

    def __iter__(self) -> Iterator[int]:
        if self._how != (how := (self.loader.padding, self.loader.augment)):
            self._how = how
        if self.loader.augment is not None:
            self._key[...] = to_device(self.loader.next_key(), self.loader.device)
        parts = self.loader.parts(self.loader.next_order())
        if list(map(len, parts)) != self.sizes:
            raise ValueError(f"DeviceBatches: the {type(self.loader).__name__} gives batches of other sizes than when "
                             "this was made, as with another batch_size or part; make a new one, or call fit anew")
        self._order[...] = to_device(np.concatenate(parts), self.loader.device)
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
        mode.recorder.reads(loader, self)
        if isinstance(stored, Stored):
            padding, augment = self._how
            views = () if augment is None else (augment, self._key)
            k = backend_of(self.position, stored.images, stored.labels, order, *views)
            picked = k.next_batch(stored.images, stored.labels, order, position, self.sizes[0], size, stored.scale,
                                  stored.shift, padding, loader.dtype, *views)
        else:
            k = backend_of(self.position, *leaves(stored), order)
            picked = mapped(lambda rows: k.next_rows(rows, order, position, self.sizes[0], size), stored)
        k.advance(position)
        return mapped(wrap, picked)
