"""Batches: every image once, in an order that seed and epoch decide, with the values that the formula says."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from minidl.core import device
from minidl.data import DataLoader, Dataset, channel_statistics
from minidl.ops import cpu


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
    gc.collect()
    assert prefetchers() == []


# ---------------------------------------------------------------- order
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


@pytest.mark.parametrize(("count", "batch_size", "batches"), [(10, 3, 3), (10, 5, 2), (10, 10, 1), (10, 6, 1)])
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


def test_black_is_0_and_white_is_1() -> None:
    source = Dataset("mine", "train", np.array([0, 255], np.uint8).reshape(2, 1, 1, 1), np.array([0, 1]))
    (x, _), = DataLoader(source, 2, shuffle=False)
    np.testing.assert_allclose(x.ravel(), [0, 1], atol=1e-7)


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
    loader = DataLoader(source, 6, shuffle=False, mean=mean, std=std, padding=np.int64(1), dtype=np.float64)
    said = json.loads(json.dumps(loader.preprocessing))
    assert said == {"mean": mean.tolist(), "std": std.tolist(), "padding": 1}
    padded = np.pad(source.images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    (x, _), = loader
    np.testing.assert_allclose(x, (padded / 255 - mean[:, None, None]) / std[:, None, None], rtol=0, atol=1e-12)
    assert DataLoader(source, 6).preprocessing == {"mean": [0.0] * 3, "std": [1.0] * 3, "padding": 0}


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


def test_without_prefetch_no_thread_is_made() -> None:
    loader = watched(0)
    for used, _ in enumerate(loader, 1):
        assert len(loader.made) == used
    assert set(loader.made) == {threading.current_thread().name}


def test_on_a_gpu_nothing_is_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ahead of the host by itself. Its arrays are NumPy's here."""
    monkeypatch.setattr("minidl.data.loader.to_device", lambda array, name: array)
    loader = watched(2)
    loader.device = "cuda"
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
    ({"seed": -1}, "seed is -1 but must be an int of at least 0"),
    ({"seed": 2**64}, "seed is 18446744073709551616 but must be an int of at least 0, below 2..64"),
    ({"batch_size": 11, "drop_last": True},
     "mine has 10 images but a batch needs 11; use more images or a smaller batch"),
    ({"mean": [0.1]}, r"mean has shape \(1,\) but mine has 3 channels; give one number a channel"),
    ({"mean": 0.1}, r"mean has shape \(\) but mine has 3 channels"),
    ({"std": [[1, 1, 1]]}, r"std has shape \(1, 3\) but mine has 3 channels; give one number a channel"),
    ({"std": [1, 0, 1]}, r"std is \[1.0, 0.0, 1.0\] but every channel's must be above 0"),
    ({"std": [1, float("nan"), 1]}, r"std is \[1.0, nan, 1.0\] but every channel's must be above 0"),
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


@pytest.mark.parametrize(("count", "batches"), [(9, 3), (10, 3), (11, 3), (12, 4)])
def test_drop_last_leaves_out_whatever_does_not_fill_a_batch(count: int, batches: int) -> None:
    loader = DataLoader(dataset(count), 3, drop_last=True)
    assert [len(y) for _, y in loader] == [3] * batches
    assert (len(loader), loader.images_per_epoch) == (batches, 3 * batches)
