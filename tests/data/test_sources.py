"""Data of one's own: arrays of any kind, objects with len and [], a transform, and parts."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import minidl
from minidl import Tensor, data
from minidl.data import DataLoader, Dataset, DeviceBatches, Subset, load, own_batches, random_split, sources
from minidl.data.chance import chances

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((10, 7)), RNG.standard_normal(10).astype(np.float32)
ARRAYS: dict[str, Any] = {
    "one": X, "a table": (X, Y), "by name": {"x": X, "y": np.arange(10)}, "numbers": np.arange(10),
    "sequences": (RNG.integers(0, 50, (10, 6, 2), np.int32), RNG.integers(0, 2, (10, 6)).astype(bool)),
    "bytes": (RNG.integers(0, 256, (10, 3, 4, 4), np.uint8), np.arange(10, dtype=np.uint8)),
    "three": (X, Y, RNG.standard_normal((10, 2, 2)).astype(np.float16)),
    "not in order": (np.asfortranarray(X), X.T.copy().T[:, ::2]),
    "nothing each": np.zeros((10, 0, 3))}


parts = sources.leaves


def images(count: int = 10) -> Dataset:
    """Image i has label i."""
    return Dataset("mine", "train", RNG.integers(0, 256, (count, 3, 4, 5), np.uint8), np.arange(count))


class Rows:
    """An object with len and [], and nothing else: items as a function of their number."""

    def __init__(self, item: Any, count: int = 10):
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        assert type(index) is int
        return self.item(index)


class Series:
    """As pandas has it, a DataFrame too: [i] is the item that the index calls i, here the one at the other end."""

    def __init__(self, values: np.ndarray):
        self.values, self.dtype, self.shape, self.iloc = values, values.dtype, values.shape, values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, label: Any) -> Any:
        return self.values[::-1][label]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype, copy=copy)


# ---------------------------------------------------------------- arrays
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_are_picked_as_they_are(case: str, prefetch: int) -> None:
    given = ARRAYS[case]
    loader = DataLoader(given, 4, seed=1, prefetch=prefetch)
    assert (len(loader), loader.images_per_epoch, loader.preprocessing) == (3, 10, None)
    for epoch in range(2):
        order, batches = loader.order(epoch), list(loader)
        assert [type(batch) for batch in batches] == [type(given)] * 3
        if isinstance(given, dict):
            assert list(batches[0]) == list(given)
        for at, whole in enumerate(parts(given)):
            got = np.concatenate([parts(batch)[at] for batch in batches])
            assert got.dtype == whole.dtype
            np.testing.assert_array_equal(got, whole[order])


def test_tensors_are_arrays_and_lists_beside_them_too() -> None:
    x, y = next(iter(DataLoader((Tensor(X), list(range(10))), 10, shuffle=False)))
    assert x.tolist() == X.tolist()
    assert y.tolist() == list(range(10))


def test_arrays_on_the_cpu_are_not_copied() -> None:
    x, y = DataLoader((X, Y), 4).stored
    assert x is X
    assert y is Y


@pytest.mark.torch
def test_what_numpy_makes_an_array_of_is_one() -> None:
    """As tables of pandas and tensors of PyTorch."""
    class Table:
        def __len__(self) -> int:
            return len(X)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.array(X, dtype)
    for given in (Table(), (Table(), np.arange(10))):
        np.testing.assert_array_equal(parts(next(iter(DataLoader(given, 10, shuffle=False))))[0], X)
    torch = pytest.importorskip("torch")
    x, i = next(iter(DataLoader((torch.asarray(X), torch.arange(10)), 4)))
    np.testing.assert_array_equal(x, X[i])


def test_arrays_may_be_nested() -> None:
    given = {"x": X, "more": ({"y": Y}, np.arange(10))}
    loader = DataLoader(given, 4)
    batch = next(iter(loader))
    same(batch, sources.mapped(lambda array: array[loader.order(0)[:4]], given))


def test_floating_arrays_become_a_dtype_that_is_asked_for() -> None:
    for loader in (DataLoader((X, np.arange(10)), 4, dtype="float32"),
                   DataLoader(Rows(lambda i: (X[i], i)), 4, dtype=np.float32),
                   DataLoader((X, np.arange(10)), 4, dtype=np.float32, transform=lambda x, i: (x, i))):
        x, i = next(iter(loader))
        assert (x.dtype, i.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize(("given", "said"), [
    ((X, Y[:9]), "the arrays have shapes (10, 7), (9,) but their first axes must count the same items; reshape or cut"),
    ((X, np.float32(3)), "the arrays have shapes (10, 7), () but their first axes must count"),
    (np.array(3), "the arrays have shapes () but their first axes must count"),
    ((X[:0], Y[:0]), "tuple has 0 items but a batch needs 1; use more items or a smaller batch"),
    (np.zeros((0, 3)), "ndarray has 0 items but a batch needs 1"),
    (Rows(None, 0), "Rows has 0 items but a batch needs 1"),
    ((np.ma.masked_less(X, -1.0), Y), f"data is masked at {(X < -1.0).sum()} of 70 places, and a Tensor has no mask"),
    ((X, np.ma.masked_less(Y, 0.0)), f"data is masked at {(Y < 0.0).sum()} of 10 places, and a Tensor has no mask"),
    ({"x": np.ma.masked_less(X, -1.0)}, "data is masked at"), (np.ma.masked_less(X, -1.0), "data is masked at")])
def test_arrays_that_make_no_batches_are_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^DataLoader: {re.escape(said)}"):
        DataLoader(given, 4)


def test_a_masked_item_is_refused_when_its_batch_is_made_and_what_has_nothing_masked_is_data() -> None:
    with pytest.raises(ValueError, match=r"data is masked at 1 of 7 places"):
        next(iter(DataLoader(Rows(lambda i: np.ma.masked_array(X[i], mask=np.arange(7) == i)), 4)))
    x, y = next(iter(DataLoader((np.ma.masked_array(X), np.ma.masked_array(Y, mask=False)), 10, shuffle=False)))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    with pytest.raises(ValueError, match=r"^Table: mine: data is masked at 1 of 4 places, and a Tensor has no mask"):
        data.Table("mine", "train", np.ma.masked_equal([[1.0, 2.0], [3.0, 4.0]], 4.0), np.arange(2))


@pytest.mark.parametrize(("given", "said"), [
    ((X, np.array(["a"] * 10)), "a ndarray of the data has dtype <U1 but must hold numbers; convert it, in a"),
    ((X, ["a"] * 10), "a list of the data has dtype <U1 but must hold numbers"),
    (iter([1, 2]), "a list_iterator lacks len() or [i], by which batches are made; pass arrays, or an object that has"),
    (3, "a int lacks len() or [i]"), (None, "a NoneType lacks len() or [i]"), ({1, 2}, "a set lacks len() or [i]")])
def test_what_is_no_data_is_refused(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^DataLoader: {re.escape(said)}"):
        DataLoader(given, 4)


@pytest.mark.parametrize("option", [{"mean": [0.1]}, {"std": [0.1]}, {"padding": 2}, {"augment": data.Augment(4)}])
def test_what_is_for_images_is_refused_for_other_data(option: dict[str, Any]) -> None:
    (name, value), = option.items()
    said = f"{name} is {value!r} but is for a data.Dataset of images, and this is a tuple; change the data itself, or"
    with pytest.raises(ValueError, match=f"^DataLoader: {re.escape(said)}"):
        DataLoader((X, Y), 4, **option)


# ---------------------------------------------------------------- objects
ITEMS: dict[str, tuple[Any, Any]] = {      # an item, and what is a batch of all
    "numbers": (lambda i: i, np.arange(10)),
    "floats": (lambda i: i / 2, np.arange(10) / 2),
    "lists": (lambda i: [i, -i], np.stack([np.arange(10), -np.arange(10)], 1)),
    "pairs": (lambda i: (X[i], i), (X, np.arange(10))),
    "by name": (lambda i: {"x": X[i], "y": bool(i % 2)}, {"x": X, "y": np.arange(10) % 2 == 1}),
    "nested": (lambda i: ({"x": X[i]}, (i, Tensor([i]))), ({"x": X}, (np.arange(10), np.arange(10)[:, None])))}


def same(got: Any, want: Any) -> None:
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = tuple(got.values()), tuple(want.values())
    if isinstance(want, tuple):
        assert isinstance(got, tuple)
        for one, other in zip(got, want, strict=True):
            same(one, other)
    else:
        np.testing.assert_array_equal(got, want)
        assert got.dtype.kind == want.dtype.kind


@pytest.mark.parametrize("case", ITEMS)
def test_items_are_stacked(case: str) -> None:
    item, whole = ITEMS[case]
    (batch,) = DataLoader(Rows(item), 10, shuffle=False)
    same(batch, whole)
    assert [len(parts(batch)[0]) for batch in DataLoader(Rows(item), 4)] == [4, 4, 2]


def test_a_list_and_a_tuple_of_items_are_objects() -> None:
    for source in ([(X[i], i) for i in range(10)], tuple((list(X[i]), i) for i in range(10))):
        loader = DataLoader(source, 4)
        (x, i), *_ = loader
        np.testing.assert_array_equal(x, X[i])


TAKERS: dict[str, Any] = {
    "DataLoader": lambda given: DataLoader(given, 1), "Subset": lambda given: Subset(given, [0]),
    "random_split": lambda given: random_split(given, [0.5, 0.5])}
ROWS_OR_COLUMNS: dict[str, Any] = {
    "lists": ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), "rows and labels": ([[1.0, 2.0], [3.0, 4.0]], [0, 1]),
    "arrays in lists": ([X[0], X[1]], [0, 1]), "ranges": (range(3), [0, 1, 2]), "of unequal length": ([1, 2], [3]),
    "of zip": tuple(zip([1.0, 4], [2.0, 5], [3.0, 6], strict=True))}


@pytest.mark.parametrize("case", ROWS_OR_COLUMNS)
def test_a_tuple_of_lists_is_not_two_items(case: str) -> None:
    """The training got all of x, and the test all of y."""
    given = ROWS_OR_COLUMNS[case]
    said = (f"a tuple of {len(given)} lists or tuples of numbers may be {len(given)} items, or {len(given)} arrays; "
            "make each an array, np.array(part), or pass the items in a list")
    for who, use in TAKERS.items():
        with pytest.raises(TypeError, match=f"^{who}: {re.escape(said)}$"):
            use(given)
    assert len(DataLoader(list(given), 1)) == len(given)


def test_a_dict_without_arrays_is_refused() -> None:
    """It was a KeyError of 0."""
    said = "a dict of 'x', 'y' holds no array; make each value one, np.array(value)"
    for who, use in TAKERS.items():
        with pytest.raises(TypeError, match=f"^{who}: {re.escape(said)}$"):
            use({"x": [1.0, 2.0], "y": [3.0, 4.0]})


@pytest.mark.parametrize(("item", "error", "said"), [
    (lambda i: np.zeros(i), ValueError,
     r"items have shape \(0,\) and shape \(1,\) but a batch stacks equal ones; make them equal"),
    (lambda i: (0,) * (i + 1), ValueError, "items have 1 parts and 2 parts but a batch"),
    (lambda i: {"x": 0} if i else {"y": 0}, ValueError, "items have keys y and keys x but a batch"),
    (lambda i: (0, 0) if i else 0, ValueError, r"items have shape \(\) and shape \(2,\) but"),
    (lambda i: "cat", TypeError, "a str of the data has dtype <U3 but must hold numbers"),
    (lambda i: [np.zeros((2, 2)), 1], ValueError, "a list of the data holds things of several shapes .* tuple")])
def test_items_that_do_not_stack_are_refused(item: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^DataLoader: {said}"):
        next(iter(DataLoader(Rows(item), 4, shuffle=False)))


# ---------------------------------------------------------------- transform
def test_a_transform_is_given_an_items_parts() -> None:
    wanted = X * 2, np.arange(10) + 1
    for source in ((X, np.arange(10)), Rows(lambda i: (X[i], i))):
        (batch,) = DataLoader(source, 10, shuffle=False, transform=lambda x, i: (2 * x, i + 1))
        same(batch, wanted)
    (batch,) = DataLoader({"x": X}, 10, shuffle=False, transform=lambda item: item["x"][:2])
    same(batch, X[:, :2])
    (batch,) = DataLoader(X, 10, shuffle=False, transform=np.sum)
    np.testing.assert_allclose(batch, X.sum(1))


def test_a_transform_of_images_comes_before_scaling() -> None:
    source, how = images(), {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "padding": 1, "seed": 4}
    mirrored = Dataset("mine", "train", source.images[:, :, :, ::-1], source.labels + 1)
    loader = DataLoader(source, 4, transform=lambda image, label: (image[:, :, ::-1], label + 1), **how)
    plain = DataLoader(mirrored, 4, **how)
    assert loader.preprocessing == plain.preprocessing
    for got, want in zip(loader, plain, strict=True):
        for one, other in zip(got, want, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("transform", "gives"), [
    (lambda image, label: (image / 255, label), "float64 (3, 4, 5) and int64 ()"),
    (lambda image, label: image, "uint8 (3, 4, 5)"),
    (lambda image, label: (image[0], label), "uint8 (4, 5) and int64 ()"),
    (lambda image, label: (image.transpose(1, 2, 0), label), "uint8 (4, 5, 3) and int64 ()"),
    (lambda image, label: (image[:1], label), "uint8 (1, 4, 5) and int64 ()"),
    (lambda image, label: (image, 0.5), "uint8 (3, 4, 5) and float64 ()")])
def test_a_transform_of_images_that_gives_others_is_refused(transform: Any, gives: str) -> None:
    said = f"the transform of mine gives {gives} but must give uint8 (c,h,w) and an integer, as it is given; pixels are"
    with pytest.raises(TypeError, match=f"^DataLoader: {re.escape(said)}"):
        next(iter(DataLoader(images(), 4, transform=transform)))


def test_a_transform_that_turns_grey_images_is_refused() -> None:
    """(h,w,c) was taken for images of one column."""
    grey = Dataset("mine", "train", np.zeros((6, 1, 4, 5), np.uint8), np.arange(6))
    with pytest.raises(TypeError, match=r"^DataLoader: the transform of mine gives uint8 \(4, 5, 1\) and int64 \(\)"):
        next(iter(DataLoader(grey, 4, transform=lambda image, label: (image.transpose(1, 2, 0), label))))


def test_the_shape_of_an_item_is_that_of_the_batches() -> None:
    """What a transform draws to find it changes neither the batches nor what else is drawn."""
    def cut(image: Any, label: Any) -> Any:
        minidl.rand(1)
        return image[:, 1:], label

    loader = DataLoader(images(), 4, transform=cut, padding=1)
    minidl.manual_seed(3)
    assert loader.item_shape == (3, 3, 5)
    drawn = minidl.rand(1).item()
    minidl.manual_seed(3)
    assert minidl.rand(1).item() == drawn
    assert next(iter(loader))[0].shape == (4, 3, 5, 7)
    assert DataLoader(images(), 4, padding=1).item_shape == (3, 4, 5)
    assert [DataLoader(given, 4).item_shape for given in (X, (X, Y), {"y": Y}, Rows(ITEMS["nested"][0]))] == [
        (7,), (7,), (), (7,)]


# ---------------------------------------------------------------- a device's batches
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_batches_are_the_loaders(case: str, compiled: bool) -> None:
    assert_batches_are_the_loaders("cpu", case, compiled)


def assert_batches_are_the_loaders(device: str, case: str, compiled: bool) -> None:
    """Recorded twice for each size; beyond the end there is nothing."""
    source, loader = (DataLoader(ARRAYS[case], 4, device=device) for _ in range(2))
    batches = DeviceBatches(source)

    def step(size: int) -> Any:
        return batches.next(size)
    run: Any = minidl.compile(step) if compiled else step
    for epoch in range(3):
        loader.set_epoch(epoch)
        taken, expected = [run(size) for size in batches], list(loader)
        for got, want in zip(taken, expected, strict=True):
            assert type(got) in (type(ARRAYS[case]), Tensor)
            for one, other in zip(parts(got), parts(want), strict=True):
                assert (one.device, one.dtype) == (device, other.dtype)
                assert one.numpy().tobytes() == Tensor(other).numpy().tobytes()
    if compiled:
        assert run.recordings == 4
    if device == "cpu":
        with pytest.raises(ValueError, match=r"^next_rows: 4 rows were asked for but the epoch has 0 left; "):
            run(4)
    else:
        assert set(b"".join(one.numpy().tobytes() for one in parts(run(4)))) <= {0xFF}


@pytest.mark.parametrize(("loader", "own"), [
    (DataLoader(Rows(lambda i: i), 4), "__getitem__"), (DataLoader(X, 4, transform=np.sum), "transform"),
    (DataLoader(images(), 4, transform=lambda image, label: (image, label)), "transform")])
def test_batches_that_no_device_can_pick_are_refused(loader: DataLoader, own: str) -> None:
    assert own_batches(loader) == own
    with pytest.raises(TypeError, match=f"^DeviceBatches: DataLoader makes its batches by a {own} of its own, which is "
                                        "not run where a device picks them; iterate over the loader$"):
        DeviceBatches(loader)


# ---------------------------------------------------------------- parts of data
def test_an_image_of_a_dataset_and_a_part_of_it() -> None:
    source = images()
    image, label = source[3]
    np.testing.assert_array_equal(image, source.images[3])
    assert (label, type(label)) == (3, int)
    assert [label for _, label in source] == list(range(10))   # type: ignore[attr-defined]
    for index in (slice(2, 9, 3), np.array([2, 5, 8]), source.labels % 3 == 2):
        part = source[index]
        assert (type(part), part.name, part.labels.tolist()) == (Dataset, "mine", [2, 5, 8])
        np.testing.assert_array_equal(part.images, source.images[[2, 5, 8]])
    with pytest.raises(IndexError):
        source[10]


@pytest.mark.parametrize("sizes", [[7, 3], [0.7, 0.3], [1.0, 0], [0, 10, 0], [0.25] * 4])
def test_each_item_is_in_one_part(sizes: list[float]) -> None:
    kinds: list[tuple[Any, Any]] = [
        (images(), lambda part: part.labels), ((X, np.arange(10)), lambda part: part[1]), (np.arange(10), np.asarray),
        ({"y": np.arange(10)}, lambda part: part["y"]), (range(10), lambda part: [part[i] for i in range(len(part))])]
    orders = []
    for source, numbers in kinds:
        found = [list(map(int, numbers(part))) for part in random_split(source, sizes, seed=3)]
        wanted = [size if isinstance(size, int) and size > 1 else round(10 * size) for size in sizes]
        assert [len(part) for part in found] == wanted or sizes == [0.25] * 4
        assert sorted(number for part in found for number in part) == list(range(10))
        orders.append(found)
    assert all(order == orders[0] for order in orders)
    (one,), (other,) = (random_split(range(10), [10], seed=seed) for seed in (3, 4))
    assert one.indices.tolist() != other.indices.tolist()


def test_a_subset_of_arrays_has_an_item_of_each() -> None:
    """Of (X, Y), item 0 was X and item 1 was Y."""
    part: Any = Subset((X, Tensor(Y)), [3, -1])
    same(next(iter(DataLoader(part, 2, shuffle=False))), (X[[3, 9]], Y[[3, 9]]))
    assert len(part) == 2
    named: Any = Subset({"x": X, "more": (Y, list(range(10)))}, [3, -1])
    same(next(iter(DataLoader(named, 2, shuffle=False))), {"x": X[[3, 9]], "more": (Y[[3, 9]], np.array([3, 9]))})
    with pytest.raises(ValueError, match=r"^Subset: index 10 is out of range for 10 items; use -10 to 9$"):
        Subset((X, Y), [10])
    with pytest.raises(ValueError, match=r"^Subset: the arrays have shapes \(10, 7\), \(9,\) but their first axes "):
        Subset((X, Y[:9]), [0])


@pytest.mark.parametrize("name", ["synthetic-shapes", "synthetic-table"])
def test_a_subset_of_a_data_set_is_one(name: str) -> None:
    """Its images were bytes that no layer takes. With a transform, items are what that makes of them."""
    whole: Any = load(name, "test", count=30)
    part: Any = Subset(Subset(whole, range(20)), [7, 2, 2])
    own = {"shuffle": False, "mean": 0.25, "std": 0.5}
    loader = DataLoader(part, 3, **own)
    same(next(iter(loader)), next(iter(DataLoader(whole[[7, 2, 2]], 3, **own))))
    assert loader.dataset.classes == whole.classes
    item, label = next(iter(DataLoader(part, 3, shuffle=False, transform=lambda item, label: (item / 2.0, label))))
    np.testing.assert_array_equal(item * 2, getattr(whole, whole.items)[[7, 2, 2]])
    np.testing.assert_array_equal(label, whole.labels[[7, 2, 2]])


def test_a_part_of_an_object_is_batched() -> None:
    train, _ = random_split(Rows(lambda i: (X[i], i)), [8, 2])
    assert isinstance(train, Subset)
    x, i = next(iter(DataLoader(train, 8)))
    assert sorted(i) == sorted(train.indices)
    np.testing.assert_array_equal(x, X[i])


@pytest.mark.parametrize(("sizes", "total"), [
    ([7, 4], 10), ([0.7, 0.4], 1), ([11, -1], 10), ([], 10), ([1.5, -0.5], 1), ([np.nan, 0.5], 1)])
def test_parts_that_do_not_add_up_are_refused(sizes: list[float], total: int) -> None:
    said = re.escape(f"random_split: sizes are {sizes} but must add up to {total}; give shares, or numbers of items")
    with pytest.raises(ValueError, match=f"^{said}$"):
        random_split(range(10), sizes)


MASK = np.array([True, False, True])


@pytest.mark.parametrize(("indices", "said"), [
    (MASK, "dtype bool and shape (3,) but must be integers in one axis; of a mask, pass np.flatnonzero(mask)"),
    (MASK.tolist(), "dtype bool and shape (3,)"), (Tensor(MASK), "dtype bool and shape (3,)"),
    ([0.0, 1.7], "dtype float64 and shape (2,)"), ([[0, 1]], "dtype int64 and shape (1, 2)"), (1, "shape ()"),
    ([0, 3], "index 3 is out of range for 3 items; use -3 to 2"), ([-4], "index -4 is out of range for 3 items"),
    (np.array([2**63], np.uint64), "index 9223372036854775808 is out of range"), (range(2, 4), "index 3 is out")])
def test_indices_that_name_no_items_are_refused(indices: Any, said: str) -> None:
    """Booleans were taken for the items 0 and 1, and an index out of range ended a `for` without a word."""
    with pytest.raises((TypeError, ValueError), match=f"^Subset: .*{re.escape(said)}"):
        Subset("abc", indices)


@pytest.mark.parametrize(("indices", "found"), [
    ([2, 0, 0], "caa"), (np.flatnonzero(MASK), "ac"), ([-1], "c"), ([], ""), (range(3), "abc"), (Tensor([1, 2]), "bc"),
    (np.array([2, 1], np.uint8), "cb"), (np.array([1], ">i4"), "b")])
def test_a_subset_is_those_items(indices: Any, found: str) -> None:
    assert "".join(Subset("abc", indices)) == found
    assert "".join(Subset(Subset("xabc", [1, 2, 3]), indices)) == found


@pytest.mark.parametrize("index", [True, np.True_, 1.0, slice(0, 1), [0], np.array([0]), None, "0"])
def test_one_item_is_named_by_an_integer(index: Any) -> None:
    """NumPy made an item of a mask or of an array of one."""
    one = Dataset("mine", "train", np.zeros((1, 1, 2, 2), np.uint8), np.array([0]))
    with pytest.raises(TypeError, match=r"^Subset: index .* is a \w+ but must be an int$"):
        Subset("abc", [2])[index]
    if isinstance(index, (bool, np.bool)):
        with pytest.raises(TypeError, match=r"^Dataset: index (np.)?True_? is a bool_? but must be an int$"):
            one[index]
        with pytest.raises(TypeError, match=r"^first: index (np.)?True_? is a bool_? but must be an int$"):
            one.first(index)  # type: ignore[arg-type]


def test_a_number_of_first_items_is_not_below_0() -> None:
    with pytest.raises(ValueError, match=r"^first: count is -1 but must be at least 0$"):
        Dataset("mine", "train", np.zeros((1, 1, 2, 2), np.uint8), np.array([0])).first(-1)


@pytest.mark.parametrize("seed", [1.5, True, -1, None])
def test_a_seed_is_an_integer(seed: Any) -> None:
    """1.5 was 1."""
    for who, split in (("random_split", lambda: random_split(range(10), [10], seed=seed)),
                       ("split", lambda: chances(["a"], seed)), ("manual_seed", lambda: minidl.manual_seed(seed)),
                       ("gradcheck", lambda: minidl.gradcheck(
                           minidl.ops.exp, [Tensor(np.ones(2), requires_grad=True)], max_jacobian=0, seed=seed))):
        with pytest.raises(ValueError, match=rf"^{who}: seed is {seed} but must be an int in \[0, 2\*\*64\)$"):
            split()


def test_a_subset_does_not_change_with_the_list_of_its_indices() -> None:
    indices = np.array([0, 1])
    part = Subset("abc", indices)
    indices[:] = 99
    assert "".join(part) == "ab"


# ---------------------------------------------------------------- on a GPU
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", ARRAYS)
def test_gpu_arrays_batches_are_the_loaders(case: str, compiled: bool) -> None:
    assert_batches_are_the_loaders("cuda", case, compiled)


@pytest.mark.gpu
def test_gpu_batches_are_the_cpus() -> None:
    """Also of objects, and with a transform, whose batches are made on the host and moved."""
    cases: list[tuple[Any, dict[str, Any]]] = [
        (ARRAYS["by name"], {}), (Rows(ITEMS["nested"][0]), {}), ((X, Y), {"transform": lambda x, y: x * y}),
        (images(), {"transform": lambda x, y: (x, y)})]
    for source, how in cases:
        for got, want in zip(*(DataLoader(source, 4, device=device, **how) for device in ("cuda", "cpu")), strict=True):
            for one, other in zip(parts(got), parts(want), strict=True):
                assert Tensor(one).device == "cuda"
                assert Tensor(one).numpy().tobytes() == other.tobytes()


# ---------------------------------------------------------------- arrays of other libraries
LENT: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "a Series": lambda array, place: Series(array), "a list": lambda array, place: array.tolist(),
    "a Tensor": lambda array, place: Tensor(array), "a file": lambda array, place: stored(array, place)}


def stored(array: np.ndarray, place: Path) -> Any:
    with h5py.File(place / f"{array.ndim}.h5", "w") as file:
        file["values"] = array
    return h5py.File(place / f"{array.ndim}.h5")["values"]


@pytest.mark.parametrize("kind", LENT)
def test_items_and_labels_stay_pairs_whatever_holds_them(kind: str, tmp_path: Path) -> None:
    """Item i is i in all its values, and so is its label."""
    labels = np.arange(20)
    rows, pixels = np.repeat(labels, 3).reshape(20, 3).astype(np.float64), np.zeros((20, 1, 2, 2), np.uint8)
    pixels += labels.astype(np.uint8)[:, None, None, None]
    held = [LENT[kind](array, tmp_path) for array in (rows, labels, pixels)]
    table = data.Table("t", "train", held[0], held[1])
    if kind != "a list":                               # of which no image is uint8
        mine = Dataset("mine", "train", held[2], held[1])
        assert all(type(array) is np.ndarray for array in (mine.images, mine.labels, table.rows, table.labels))
        x, y = next(iter(DataLoader(mine, 20, mean=0, std=1 / 255, transform=lambda image, label: (image, label))))
        assert x[:, 0, 0, 0].round().tolist() == y.tolist()
        for image, label in map(mine.__getitem__, range(20)):
            assert (image == label).all()
    for part in (*random_split(table, [0.5, 0.5]), *table.train_and_test(), table[3:7]):
        assert part.rows[:, 0].tolist() == part.labels.tolist()
    assert [table[i][1] for i in range(20)] == labels.tolist()


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_a_part_of_a_series_is_by_place(shape: tuple[int, ...]) -> None:
    values = RNG.standard_normal(shape)
    part = Subset(Series(values), [3, -1, 0])
    assert np.array_equal([part[i] for i in range(3)], values[[3, -1, 0]])
    assert np.array_equal(next(iter(DataLoader(part, 3, shuffle=False))), values[[3, -1, 0]])


def test_a_file_of_images_stays_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 1, 2, 2), np.uint8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    mine = Dataset("mine", "train", mapped, np.arange(5))
    assert np.shares_memory(mapped, mine.images)
    assert np.shares_memory(mapped, DataLoader(mine, 2).stored.images)


@pytest.mark.parametrize(("rows", "labels", "kinds"), [
    (X, Series(np.array([*"abcdefghij"])), "float64 and labels <U1"),
    (Series(X.astype(object)), [*range(10)], "object and labels int64")])
def test_what_is_no_array_of_numbers_is_refused(rows: Any, labels: Any, kinds: str) -> None:
    with pytest.raises(TypeError, match=f"^Table: t has rows {kinds} but needs floating numbers and integers; convert"):
        data.Table("t", "train", rows, labels)


def test_what_has_names_is_a_dict(tmp_path: Path) -> None:
    """A UserDict, an .npz file, a file of HDF5."""
    np.savez(tmp_path / "xy.npz", x=X, y=Y)
    with h5py.File(tmp_path / "xy.h5", "w") as file, np.load(tmp_path / "xy.npz") as arrays:
        file["x"], file["y"] = X, Y
        for held in (UserDict(x=X, y=Y), arrays, file):
            batch = next(iter(DataLoader(held, 10, shuffle=False)))
            assert [*batch] == ["x", "y"]
            np.testing.assert_array_equal(batch["x"], X)
            assert Subset(held, [3])[0]["y"] == random_split(held, [10])[0]["y"][
                random_split(np.arange(10), [10])[0].tolist().index(3)]
