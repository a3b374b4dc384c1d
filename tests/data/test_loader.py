"""Batches: every image once, in an order that seed and epoch decide, with the values that the formula says."""

from __future__ import annotations

import gc
import json
import re
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim
from minidl.core import device, rng
from minidl.data import DataLoader, Dataset, DeviceBatches, Table, channel_statistics, random_split
from minidl.data.sources import leaves
from minidl.ops import cpu
from minidl.training import evaluate, fit


def dataset(count: int = 10, c: int = 1, h: int = 4, w: int = 5) -> Dataset:
    """Random images; image i has label i."""
    images = np.random.default_rng(count).integers(0, 256, (count, c, h, w), np.uint8)
    return Dataset("mine", "train", images, np.arange(count, dtype=np.uint8))


def labels(loader: DataLoader) -> list[int]:
    return [int(label) for _, batch in loader for label in batch]


def prefetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("minidl-prefetch")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    if prefetchers():                      # an iteration that was given up ends when it is collected
        gc.collect()
    assert prefetchers() == []


# ---------------------------------------------------------------- order
def of_its_own(order: Any) -> DataLoader:
    return type("Own", (DataLoader,), {"order": lambda self, epoch: order})(dataset(4), 2)


@pytest.mark.parametrize("order", [[3, 0, 0, 1], np.array([3, 0, 0, 1], np.uint8), np.array([3, 0, 0, 1], ">i4"),
                                   Tensor([3, 0, 0, 1])], ids=["list", "uint8", "big-endian", "Tensor"])
def test_an_order_of_ones_own(order: Any) -> None:
    loader = of_its_own(order)
    of = dataset(4).labels
    assert labels(loader) == [of[3], of[0], of[0], of[1]]
    batches = DeviceBatches(loader)
    found = [batches.next(size)[1].numpy() for size in batches]
    assert np.concatenate(found).tolist() == [of[3], of[0], of[0], of[1]]


@pytest.mark.parametrize(("order", "said"), [
    ([True, False, True, True], "order gives dtype bool and shape (4,) but must give integers in one axis; of a mask"),
    ([0.0, 1.0, 2.5, 3.0], "order gives dtype float64 and shape (4,) but must"),
    ([[0, 1], [2, 3]], "order gives dtype int64 and shape (2, 2) but must"), ([], "order gives dtype float64"),
    ([1], "order gives 1 places but the data has 4 items; give as many, or a loader of a data.Subset"),
    ([0, 1, 2, 4], "order gives place 4 but the data has 4 items; give 0 to 3"),
    ([0, 1, 2, -1], "order gives place -1 but the data has 4 items")])
def test_an_order_that_names_no_items_is_refused(order: Any, said: str) -> None:
    """A mask would name items 0 and 1, one place would be that of all items where a device picks them."""
    for look in (list, lambda loader: list(DeviceBatches(loader))):
        with pytest.raises((TypeError, ValueError), match=f"^Own: {re.escape(said)}"):
            look(of_its_own(order))


def test_seed_and_epoch_alone_decide_the_order() -> None:
    one, two = DataLoader(dataset(100), 7, seed=3), DataLoader(dataset(100), 50, seed=3, prefetch=0, drop_last=True)
    first, second = labels(one), labels(one)
    assert [labels(two), labels(two)] == [first, second]
    one.set_epoch(0)
    assert labels(one) == first
    two.set_epoch(1)
    assert labels(two) == second
    orders = {tuple(DataLoader(dataset(100), 7, seed=seed).order(epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    wanted = np.random.Generator(np.random.Philox(key=np.array([3, (1 << 63) + 1], np.uint64))).permutation(100)
    assert second == wanted.tolist()


@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
@pytest.mark.parametrize("batch_size", [1, 3, 5, 10, 11, 1000])
def test_every_image_once_an_epoch_with_its_label(batch_size: int, prefetch: int) -> None:
    source = dataset(10)
    loader = DataLoader(source, batch_size, prefetch=prefetch)
    for _ in range(3):
        batches = list(loader)
        assert len(batches) == len(loader) == -(-10 // batch_size)
        assert [len(y) for _, y in batches[:-1]] == [batch_size] * (len(batches) - 1)
        seen = np.concatenate([y for _, y in batches])
        assert sorted(seen) == list(range(10))
        np.testing.assert_array_equal(np.rint(np.concatenate([x for x, _ in batches]) * 255), source.images[seen])
    assert loader.images_per_epoch == 10


@pytest.mark.parametrize(("count", "batch_size", "batches"), [
    (9, 3, 3), (10, 3, 3), (11, 3, 3), (12, 3, 4), (10, 5, 2), (10, 10, 1), (10, 6, 1)])
def test_drop_last(count: int, batch_size: int, batches: int) -> None:
    loader = DataLoader(dataset(count), batch_size, drop_last=True)
    assert [len(y) for _, y in loader] == [batch_size] * batches
    assert (len(loader), loader.images_per_epoch) == (batches, batches * batch_size)


def test_without_shuffle_the_order_is_the_stored_one() -> None:
    loader = DataLoader(dataset(10), 3, shuffle=False)
    assert labels(loader) == labels(loader) == list(range(10))


def test_an_iteration_that_is_given_up_was_an_epoch_too() -> None:
    loader, reference = DataLoader(dataset(50), 5), DataLoader(dataset(50), 5)
    next(iter(loader))
    assert labels(loader) == reference.order(1).tolist()


def test_two_iterations_at_once_do_not_meet() -> None:
    loader = DataLoader(dataset(50), 5)
    pairs = [(a, b) for (_, a), (_, b) in zip(loader, loader)]
    for epoch, seen in enumerate(zip(*pairs)):
        np.testing.assert_array_equal(np.concatenate(seen), loader.order(epoch))


# ---------------------------------------------------------------- from the middle
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("skipped", [0, 1, 3, 4])
def test_an_iteration_may_start_in_the_middle(skipped: int, prefetch: int) -> None:
    loader, reference = (DataLoader(dataset(10), 3, seed=1, prefetch=prefetch) for _ in range(2))
    loader.skip(skipped)
    loader.set_epoch(5)                        # in any order
    reference.set_epoch(5)
    rest, whole = list(loader), list(reference)
    assert len(rest) == len(whole) - skipped
    for one, other in zip(rest, whole[skipped:], strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert labels(loader) == labels(reference) == loader.order(6).tolist()         # whole again


def test_skipping_is_the_next_iterations_alone() -> None:
    """One that was given up was one."""
    loader = DataLoader(dataset(10), 3)
    loader.skip(2)
    next(iter(loader))
    assert len(list(loader)) == 4


@pytest.mark.parametrize(("batches", "said"), [
    (5, "batches to skip are 5 but an epoch has 4; for a later epoch, call set_epoch"),
    (-1, "batches is -1 but must be an int of at least 0"), (1.0, "batches is 1.0 but must be an int of at least 0")])
def test_batches_that_cannot_be_skipped_are_refused(batches: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^DataLoader: {said}"):
        DataLoader(dataset(10), 3).skip(batches)


# ---------------------------------------------------------------- values
def test_plain_arrays_of_the_asked_types() -> None:
    for dtype in (np.float32, np.float64, "float32"):
        x, y = next(iter(DataLoader(dataset(10), 4, dtype=dtype)))
        assert (type(x), type(y)) == (np.ndarray, np.ndarray)
        assert (x.dtype, y.dtype, x.shape, y.shape) == (np.dtype(dtype), np.int64, (4, 1, 4, 5), (4,))
        assert x.flags.c_contiguous
        assert x.flags.writeable


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("c", [1, 3])
def test_normalised_after_padding(c: int, padding: int) -> None:
    source = dataset(6, c)
    mean, std = np.linspace(0.2, 0.5, c), np.linspace(0.3, 0.1, c)
    (x, _), = DataLoader(source, 6, shuffle=False, mean=mean, std=std.tolist(), padding=padding, dtype=np.float64)
    padded = np.pad(source.images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    wanted = (padded / 255 - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-12)


def test_statistics_normalise() -> None:
    source = dataset(200, 3)
    mean, std = channel_statistics(source)
    np.testing.assert_allclose(mean, source.images.mean(axis=(0, 2, 3)) / 255, atol=1e-14)
    np.testing.assert_allclose(std, source.images.std(axis=(0, 2, 3)) / 255, atol=1e-12)
    (x, _), = DataLoader(source, 200, mean=mean, std=std)
    np.testing.assert_allclose(x.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=(0, 2, 3)), 1, atol=1e-5)


def test_preprocessing_says_what_was_done_and_json_holds_it() -> None:
    source = dataset(6, 3)
    mean, std = channel_statistics(source)
    loader = DataLoader(source, 6, mean=mean, std=std, padding=np.int64(1))
    assert json.loads(json.dumps(loader.preprocessing)) == {"mean": mean.tolist(), "std": std.tolist(), "padding": 1}
    assert DataLoader(source, 6).preprocessing == {"mean": [0.0] * 3, "std": [1.0] * 3, "padding": 0}
    assert DataLoader(source, 6, mean=0.5, std=2).preprocessing == {"mean": [0.5] * 3, "std": [2.0] * 3, "padding": 0}


def test_statistics_of_many_white_images_are_exact() -> None:
    white = Dataset("mine", "train", np.full((3000, 2, 32, 32), 255, np.uint8), np.zeros(3000, np.uint8))
    assert [value.tolist() for value in channel_statistics(white)] == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 2049])
def test_statistics_count_each_image_once(count: int) -> None:
    """A single pixel too, and what lies at the end of a block."""
    images = np.random.default_rng(1).integers(0, 256, (count, 2, 1, 1), np.uint8)
    mean, std = channel_statistics(Dataset("mine", "train", images, np.zeros(count, np.uint8)))
    np.testing.assert_allclose(mean, images.mean(axis=(0, 2, 3)) / 255, rtol=1e-13)
    np.testing.assert_allclose(std, images.std(axis=(0, 2, 3)) / 255, rtol=1e-9)


def test_statistics_of_nothing_are_zeros() -> None:
    with np.errstate(all="raise"):
        assert [value.tolist() for value in channel_statistics(dataset(4, 2).first(0))] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("shape", [(7, 1, 28, 28), (7, 3, 32, 32), (7, 2, 1, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("picked", [[0], [], [6, 0, 6, 3]])
def test_gather_is_its_formula(shape: tuple[int, ...], picked: list[int]) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, shape, np.uint8)
    before = images.copy()
    indices = np.array(picked, np.int64) % shape[0]
    scale, shift = rng.normal(size=(2, shape[1]))
    for padding in (0, 2):
        y = cpu.gather(images, indices, scale, shift, padding, np.float64)
        wanted = np.empty((len(picked), shape[1], shape[2] + 2 * padding, shape[3] + 2 * padding))
        wanted[...] = shift[:, None, None]
        for i, index in enumerate(indices):
            for channel in range(shape[1]):
                wanted[i, channel, padding:padding + shape[2], padding:padding + shape[3]] += (
                    images[index, channel] * scale[channel])
        np.testing.assert_allclose(y, wanted, rtol=1e-14)
    np.testing.assert_array_equal(images, before)


# ---------------------------------------------------------------- ahead
class Watched(DataLoader):
    """Notes on which thread each batch is made, and fails at one."""

    made: list[str]
    fail_at: int | None = None

    def _batch(self, indices: np.ndarray) -> Any:
        self.made.append(threading.current_thread().name)
        if len(self.made) - 1 == self.fail_at:
            raise RuntimeError(f"batch {self.fail_at} is cursed")
        return super()._batch(indices)


def watched(prefetch: int, fail_at: int | None = None) -> Watched:
    loader = Watched(dataset(100), 5, prefetch=prefetch)
    loader.made, loader.fail_at = [], fail_at
    return loader


HANG = 100                                 # seconds: more is a deadlock


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_prefetch_stays_that_far_ahead(prefetch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[ThreadPoolExecutor] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            pools.append(self)

    monkeypatch.setattr("minidl.data.loader.ThreadPoolExecutor", Pool)
    loader = watched(prefetch)
    batches = iter(loader)
    assert loader.made == []                   # nothing starts before the first batch is asked for
    for used in range(1, 6):
        next(batches)
        pools[0].submit(int).result(HANG)      # comes after all batches that the thread was asked for
        assert len(loader.made) == used + prefetch
    assert len(prefetchers()) == 1
    assert all(name.startswith("minidl-prefetch") for name in loader.made)
    assert len(list(batches)) == 15
    assert len(loader.made) == 20
    assert prefetchers() == []


@pytest.mark.parametrize(("prefetch", "where"), [(0, "cpu"), (2, "cuda")])
def test_without_prefetch_or_on_a_gpu_nothing_is_made_ahead(prefetch: int, where: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is ahead of the host by itself. Its arrays are NumPy's here."""
    monkeypatch.setattr("minidl.data.loader.to_device", lambda array, name: array)
    loader = watched(prefetch)
    loader.device = where
    for used, _ in enumerate(loader, 1):
        assert len(loader.made) == used
    assert set(loader.made) == {threading.current_thread().name}


@pytest.mark.parametrize("how", ["forget", "close", "break", "raise"])
def test_the_thread_ends_when_the_consumer_stops_early(how: str) -> None:
    loader = watched(3)

    def consume() -> None:
        batches = iter(loader)
        next(batches)
        assert len(prefetchers()) == 1
        if how == "close":
            batches.close()                    # type: ignore[attr-defined]
        for _ in batches if how in ("break", "raise") else ():
            if how == "raise":
                raise ZeroDivisionError
            break

    with pytest.raises(ZeroDivisionError) if how == "raise" else nullcontext():
        consume()
    gc.collect()
    assert prefetchers() == []
    assert len(loader.made) <= 5               # the two that were used, and three ahead


def test_a_consumer_that_stops_waits_for_one_batch_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that is made when it stops ends only while it waits."""
    loader, begun, stops = watched(5), threading.Event(), threading.Event()
    make = loader._batch

    def slow(indices: np.ndarray) -> Any:
        batch = make(indices)
        if len(loader.made) > 1:
            begun.set()
            assert stops.wait(HANG)
        return batch

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            stops.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr("minidl.data.loader.ThreadPoolExecutor", Pool)
    loader._batch = slow                       # type: ignore[method-assign]
    batches = iter(loader)
    next(batches)
    assert begun.wait(HANG)
    batches.close()                            # type: ignore[attr-defined]
    assert prefetchers() == []
    assert len(loader.made) == 2


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("fail_at", [0, 3, 19])
def test_an_error_reaches_the_consumer_at_its_batch(prefetch: int, fail_at: int) -> None:
    loader = watched(prefetch, fail_at)
    seen: list[int] = []
    with pytest.raises(RuntimeError, match=f"batch {fail_at} is cursed"):
        seen.extend(label for _, batch in loader for label in batch)
    assert seen == loader.order(0)[:5 * fail_at].tolist()
    assert prefetchers() == []


# ---------------------------------------------------------------- device
@pytest.mark.parametrize("name", ["cpu", "auto"])
def test_on_the_cpu_the_set_is_not_copied_and_batches_are_numpys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_missing", lambda: "there is no GPU")
    source = dataset(10)
    loader = DataLoader(source, 4, seed=1, device=name)
    assert loader.device == "cpu"
    assert loader.stored.images is source.images
    wanted = list(DataLoader(source, 4, seed=1))
    assert len(wanted) == 3
    for batch, default in zip(loader, wanted):
        for array, expected in zip(batch, default):
            assert isinstance(array, np.ndarray)
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(("arguments", "said"), [
    ({"batch_size": 0}, "batch_size is 0 but must be an int of at least 1"),
    ({"batch_size": -3}, "batch_size is -3 but must be an int of at least 1"),
    ({"batch_size": 2.5}, "batch_size is 2.5 but must be an int of at least 1"),
    ({"batch_size": True}, "batch_size is True but must be an int of at least 1"),
    ({"batch_size": "4"}, "batch_size is '4' but must be an int of at least 1"),
    ({"padding": -1}, "padding is -1 but must be an int of at least 0"),
    ({"prefetch": -1}, "prefetch is -1 but must be an int of at least 0"),
    ({"shuffle": "no"}, "shuffle is 'no' but must be True or False"),
    ({"drop_last": 3}, "drop_last is 3 but must be True or False"),
    ({"seed": -1}, "seed is -1 but must be an int of at least 0"),
    ({"seed": 2**64}, "seed is 18446744073709551616 but must be an int of at least 0, below 2..64"),
    ({"batch_size": 11, "drop_last": True},
     "mine has 10 images but a batch needs 11; use more images or a smaller batch"),
    ({"mean": [0.1]}, r"mean has shape \(1,\) but mine has 3 channels; give one number per channel"),
    ({"std": [[1, 1, 1]]}, r"std has shape \(1, 3\) but mine has 3 channels; give one number per channel"),
    ({"std": [1, 0, 1]}, r"std is \[1.0, 0.0, 1.0\] but every channel's must be above 0"),
    ({"std": [1, float("nan"), 1]}, r"std is \[1.0, nan, 1.0\] but must be finite; compute it anew"),
    ({"std": float("inf")}, r"std is \[inf, inf, inf\] but must be finite"),
    ({"mean": [0.5, float("nan"), 0.5]}, r"mean is \[0.5, nan, 0.5\] but must be finite"),
    ({"mean": 127.5, "std": 127.5}, r"mean is \[127.5, 127.5, 127.5\] but pixels are byte / 255, at most 1; divide "
                                    r"mean and std by 255, or take those of channel_statistics$"),
    ({"mean": [0.5, 0.5, 123.7]}, r"mean is \[0.5, 0.5, 123.7\] but pixels are byte / 255"),
    ({"dtype": np.int32}, "dtype is int32 but must be float32 or float64"),
    ({"dtype": np.float16}, "dtype is float16 but must be float32 or float64"),
])
def test_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^DataLoader: {said}"):
        DataLoader(dataset(10, 3), **{"batch_size": 4, **arguments})


def test_the_largest_seed_and_epoch_are_taken() -> None:
    loader = DataLoader(dataset(4), 4, seed=2**64 - 1)
    loader.set_epoch(2**63 - 1)
    assert sorted(labels(loader)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"^DataLoader: epoch is 18446744073709551616 but must be an int of at least"):
        loader.set_epoch(2**64)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="DataLoader: mine has 0 images but a batch needs 1; use more images or a sma"):
        DataLoader(dataset(10).first(0), 4)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^device: 'gpu' is not one of auto, cpu, cuda$"):
        DataLoader(dataset(10), 4, device="gpu")


def test_cuda_is_refused_where_it_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_missing", lambda: "there is no GPU")
    with pytest.raises(ValueError, match=r"^device: 'cuda' was asked for but there is no GPU, or use device 'cpu'$"):
        DataLoader(dataset(10), 4, device="cuda")


def test_epochs_are_counted_from_0() -> None:
    loader = DataLoader(dataset(10), 4)
    for epoch in (-1, 1.0, None):
        with pytest.raises(ValueError, match=f"DataLoader: epoch is {epoch} but must be an int of at least 0"):
            loader.set_epoch(epoch)            # type: ignore[arg-type]
    loader.set_epoch(2**40)
    assert sorted(labels(loader)) == list(range(10))


# ---------------------------------------------------------------- what a transform may do, and what an item may not
class Held:
    """Items of an object that keeps them: `[i]` gives the very thing."""

    def __init__(self, items: list[Any]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def in_place(*parts: Any) -> Any:
    """Add 1 to each array in them."""
    for part in parts:
        if isinstance(part, (tuple, list, dict)):
            in_place(*(part.values() if isinstance(part, dict) else part))
        elif getattr(part, "ndim", 0):
            part += 1
    return parts if len(parts) > 1 else parts[0]


def flipped(x: np.ndarray, y: Any) -> Any:
    x[:] = x[..., ::-1].copy()
    return x, y


def cut_out(x: np.ndarray, y: Any) -> Any:
    x[..., 1:3] = 0
    return x, y


def ones(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


IN_PLACE: dict[str, tuple[Any, Any]] = {
    "a Dataset": (dataset, in_place), "a Dataset, flipped": (dataset, flipped),
    "a Dataset, cut out": (dataset, cut_out),
    "a part of a Dataset": (lambda: dataset()[2:9], in_place),
    "a Table": (lambda: Table("mine", "train", ones(10, 3).astype(np.float64), np.arange(10) % 2), in_place),
    "an array": (lambda: ones(10, 3), in_place), "arrays": (lambda: (ones(10, 3), ones(10, 2)), in_place),
    "arrays by name": (lambda: {"x": ones(10, 3), "y": ones(10, 2)}, in_place),
    "nested arrays": (lambda: (ones(10, 3), {"y": (ones(10, 2), ones(10, 2, 2))}), in_place),
    "a Tensor": (lambda: Tensor(ones(10, 3)), in_place),
    "array views": (lambda: (ones(3, 10).T, ones(10, 2)), in_place),
    "objects": (lambda: Held(list(ones(10, 3))), in_place),
    "objects of Tensors": (lambda: Held([Tensor(ones(3)) for _ in range(10)]), in_place),
    "objects, nested": (lambda: Held([(ones(3), {"y": ones(2)}) for _ in range(10)]), in_place),
    "objects of lists": (lambda: Held([{"x": [ones(3), ones(3)]} for _ in range(10)]), lambda item: in_place(
        *item["x"])[0]),
    "a Subset": (lambda: random_split(Held(list(ones(10, 3))), [6, 4])[0], in_place),
    "arrays of only reading": (lambda: (np.broadcast_to(ones(3), (10, 3)), ones(10)), in_place)}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_transform_in_place_changes_no_data(name: str, prefetch: int) -> None:
    """Each epoch gives the same, and so does data that was made anew."""
    make, transform = IN_PLACE[name]
    epochs = [[leaf.tolist() for batch in loader for leaf in leaves(batch)]
              for source in (make(),) for loader in [DataLoader(source, 4, shuffle=False, transform=transform,
                                                                prefetch=prefetch)] * 3]
    fresh = [leaf.tolist() for batch in DataLoader(make(), 4, shuffle=False, transform=transform)
             for leaf in leaves(batch)]
    assert epochs == [fresh] * 3


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"shuffle": False, "prefetch": 0}, {"dtype": np.float64}])
@pytest.mark.parametrize("name", ["a Dataset", "a Table", "an array", "arrays", "nested arrays", "objects"])
def test_batches_have_memory_of_their_own(name: str, options: dict[str, Any]) -> None:
    """What is done to a batch in place, as by a blend of images, is done to that batch alone."""
    make, _ = IN_PLACE[name]
    loader, fresh = DataLoader(make(), 4, **options), DataLoader(make(), 4, **options)
    for batch in loader:
        in_place(batch)
    list(fresh)
    assert repr(list(loader)) == repr(list(fresh))


def test_a_transform_may_take_what_is_on_the_tape() -> None:
    """A copy of it is made by an op."""
    weight = Tensor([2.0, 3.0], requires_grad=True)
    batches = list(DataLoader(Held([weight * i for i in range(4)]), 2, shuffle=False, transform=lambda x: x + 1))
    assert np.concatenate(batches).tolist() == [[1, 1], [3, 4], [5, 7], [7, 10]]


def ends_at(index: int, **how: Any) -> Any:
    """A loader of six items in which one raises StopIteration where `how` says so."""
    def there(i: int) -> Any:
        return next(iter(())) if i == index else np.array([float(i)])

    class Source(Held):
        def __getitem__(self, i: int) -> Any:
            return there(i) if how["where"] == "item" else np.array([i])
    change = (lambda x: there(int(x[0]))) if how["where"] == "transform" else None
    return DataLoader(Source([0] * 6), how["batch"], shuffle=False, prefetch=how["prefetch"], transform=change)


@pytest.mark.parametrize("index", [0, 2, 4, 5])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("where", ["item", "transform"])
def test_an_item_that_ends_is_an_error_and_no_short_batch(where: str, batch: int, prefetch: int, index: int) -> None:
    found = []
    said = rf"^DataLoader: item {index} of 6 raised StopIteration; give each item that len\(\) counts, or make len\(\)"
    with pytest.raises(RuntimeError, match=said):
        found.extend(len(each) for each in ends_at(index, where=where, batch=batch, prefetch=prefetch))
    assert found == [batch] * (index // batch)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("method", ["_batch", "order", "parts"])
def test_an_end_in_a_method_of_ones_own_is_an_error(method: str, prefetch: int) -> None:
    """Also if one batch was made before it."""
    class Own(DataLoader):
        calls = 0

    def ending(self: Any, *args: Any) -> Any:
        self.calls += 1
        return next(iter(())) if self.calls > 1 or method != "_batch" else getattr(DataLoader, method)(self, *args)
    setattr(Own, method, ending)
    with pytest.raises((RuntimeError, StopIteration)):
        list(Own(dataset(), 4, prefetch=prefetch))


@pytest.mark.parametrize("compiled", [False, None])
def test_an_item_that_ends_ends_a_training(compiled: bool | None) -> None:
    class Pairs(Held):
        def __getitem__(self, i: int) -> Any:
            return np.zeros(3, np.float32), i % 2 if i < 4 else next(iter(()))
    pairs, net = DataLoader(Pairs([0] * 6), 3, shuffle=False), nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match=r"^DataLoader: item 4 of 6 raised StopIteration"):
        fit(net, optim.SGD(net.parameters(), 0.1), pairs, pairs, epochs=1, compiled=compiled, say=None)
    with pytest.raises(RuntimeError, match=r"^DataLoader: item 4 of 6 raised StopIteration"):
        evaluate(net, pairs)


# ---------------------------------------------------------------- what draws while batches are made
class Noise:
    """Items that draw when they are read."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> Any:
        return np.float64(i), rng.generator().random(2)


def noisy(x: Any) -> Any:
    return x, rng.generator().random(), minidl.rand(2).numpy()


def dropped(x: Any) -> Any:
    """By a key of `next_key`, which differs on the ranks of a run elsewhere."""
    return ops.dropout(Tensor(np.full(8, float(x))), 0.5).numpy()


def seeded(x: Any) -> Any:
    minidl.manual_seed(int(x) // 5)
    return x, rng.generator().random()


def redrawn(x: Any) -> Any:
    state = rng.get_state()
    first = rng.generator().random()
    rng.set_state(state)
    assert rng.generator().random() == first
    return np.float64(first)


DRAWING: dict[str, Any] = {
    "items": lambda **how: DataLoader(Noise(), 5, **how),
    "items and transform": lambda **how: DataLoader(Noise(), 5, transform=lambda i, x: (i, x, noisy(i)[1]), **how),
    "transform": lambda **how: DataLoader(np.arange(23.0), 5, transform=noisy, **how),
    "dropout": lambda **how: DataLoader(np.arange(23.0), 5, transform=dropped, **how),
    "seeded": lambda **how: DataLoader(np.arange(23.0), 5, transform=seeded, **how),
    "state": lambda **how: DataLoader(np.arange(23.0), 5, transform=redrawn, **how),
    "mixup": lambda **how: DataLoader(np.ones((23, 4, 3), np.float32), 5, transform=lambda x: data.mixup(
        x * np.arange(4.0, dtype=np.float32)[:, None], [0, 1, 2, 3], 4, 1.0), **how)}


def as_bytes(batches: Any) -> list[list[bytes]]:
    return [[leaf.tobytes() for leaf in leaves(batch)] for batch in batches]


@pytest.mark.parametrize("case", DRAWING)
def test_what_makes_an_item_draws_by_seed_epoch_and_item(case: str) -> None:
    """Not by threads, by what others draw, by what was passed over, or by which part of a batch this process has."""
    make = DRAWING[case]
    minidl.manual_seed(3)
    before, whole = rng.get_state(), as_bytes(make(seed=4, prefetch=0))
    assert rng.get_state() == before
    for prefetch in (1, 2, 9):
        batches = []
        for batch in make(seed=4, prefetch=prefetch):
            batches.append(batch)
            rng.generator()
            minidl.manual_seed(prefetch)
        assert as_bytes(batches) == whole
    passed = make(seed=4)
    passed.skip(3)
    assert as_bytes(passed) == whole[3:]
    parts = [list(make(seed=4, part=(rank, 3))) for rank in range(3)]
    joined = [[np.concatenate(pieces).tobytes() for pieces in zip(*map(leaves, each), strict=True)]
              for each in zip(*parts, strict=True)]
    assert joined == whole
    again = make(seed=4)
    assert as_bytes(again) == whole
    assert as_bytes(again) != whole                    # the next epoch
    assert as_bytes(make(seed=5)) != whole


@pytest.mark.parametrize("case", ["items", "transform", "dropout", "mixup"])
def test_items_and_epochs_draw_apart(case: str) -> None:
    loader = DRAWING[case](seed=4, shuffle=False)
    drawn = [tuple(leaf[i].tobytes() for leaf in leaves(batch)[-1:]) for _ in range(3) for batch in loader
             for i in range(len(leaves(batch)[0]))]
    rare = case in ("dropout", "mixup")                # equal masks, and blends with the image itself, come by chance
    assert len(set(drawn)) > 0.8 * len(drawn) if rare else len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("case", ["items", "transform", "dropout"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_items_draws_do_not_depend_on_its_batch(case: str, shuffle: bool) -> None:
    """They depended on the batch's number, and so on the batch's size."""
    of_items = []
    for size in (1, 5, 23):
        loader = DRAWING[case](seed=4, shuffle=shuffle)
        loader.batch_size = size
        of_items.append([leaf[i].tobytes() for batch in loader for i in range(len(leaves(batch)[0]))
                         for leaf in leaves(batch)])
    assert of_items[0] == of_items[1] == of_items[2]


def test_ranks_that_draw_otherwise_make_the_same_items(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = as_bytes(DRAWING["dropout"](seed=4))
    monkeypatch.setattr(rng, "_apart", 12345)
    assert as_bytes(DRAWING["dropout"](seed=4)) == whole


def test_an_item_that_fails_leaves_the_stream_as_it_was() -> None:
    minidl.manual_seed(3)
    before = rng.get_state()

    def failing(x: Any) -> Any:
        rng.generator()
        raise OSError("torn")
    with pytest.raises(OSError, match="torn"):
        list(DataLoader(np.arange(9.0), 2, transform=failing, prefetch=0))
    assert rng.get_state() == before


def test_a_transform_in_place_changes_no_object() -> None:
    """Pictures, bytes and objects of one's own are copied as arrays are; what Python cannot copy is passed as it is."""
    class Own:
        def __init__(self) -> None:
            self.value, self.lock = 7, None

    def change(it: Any, label: int) -> tuple[np.ndarray, int]:
        if isinstance(it, Own):
            it.value += 1
            return np.array([it.value]), label
        if isinstance(it, (bytearray, deque)):
            it[0] += 1
            return np.array([it[0]]).reshape(1), label
        it.putpixel((0, 0), it.getpixel((0, 0)) + 1)
        return np.array(it).max(keepdims=True)[0], label
    pillow = pytest.importorskip("PIL.Image")
    for make in (Own, lambda: bytearray([7]), lambda: deque([np.array(7)]), lambda: pillow.new("L", (2, 2), 7)):
        loader = data.DataLoader([(make(), i) for i in range(4)], 2, transform=change, shuffle=False)
        assert [int(next(iter(loader))[0].max()) for _ in range(3)] == [8, 8, 8]
    kept = threading.Lock()
    batches = data.DataLoader([(kept, 1)], 1, transform=lambda it, label: (int(it is kept), label))
    assert next(iter(batches))[0].tolist() == [1]


@pytest.mark.parametrize("name", ["dataset", "dtype", "mean", "std", "transform"])
def test_what_a_loader_has_kept_cannot_be_set(name: str) -> None:
    """It had no effect, and was written into weights files. What is read at each batch may be set."""
    loader = DataLoader(np.arange(9.0), 2, transform=np.negative, shuffle=False)
    with pytest.raises(ValueError, match=rf"^DataLoader: {name} is set to None but a loader that is made keeps what it "
                                         rf"was made with; make a new one, DataLoader\(\.\.\., {name}=\.\.\.\)$"):
        setattr(loader, name, None)
    loader.batch_size, loader.seed, loader.drop_last = 4, 3, True
    assert [batch.tolist() for batch in loader] == [[0, -1, -2, -3], [-4, -5, -6, -7]]
