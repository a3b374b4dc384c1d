"""The computed image sets: their bits, their balance, and that they are neither trivial nor noise."""

import hashlib

import numpy as np
import pytest

from minidl.data.sets.synthetic import (
    SHAPE_CLASSES,
    TABLE_CLASSES,
    TABLE_COLUMNS,
    random_words,
    rotation,
    synthetic_digits,
    synthetic_shapes,
    synthetic_table,
)

GENERATORS = {"digits": (synthetic_digits, (1, 28, 28)), "shapes": (synthetic_shapes, (3, 32, 32))}
both = pytest.mark.parametrize(("generate", "shape"), GENERATORS.values(), ids=GENERATORS)


def digest(images, labels):
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()[:16]


@both
@pytest.mark.parametrize("count", [0, 1, 33, 64])
def test_format(generate, shape, count):
    images, labels = generate("train", count)
    assert images.shape == (count, *shape)
    assert labels.shape == (count,)
    assert images.dtype == labels.dtype == np.uint8
    assert images.flags.c_contiguous


@pytest.mark.parametrize(
    ("generate", "expected"),
    [(synthetic_digits, "67b030b4bb08400f"), (synthetic_shapes, "a7f0c24dcc4459de")],
)
def test_bits_are_pinned(generate, expected):
    # Only arithmetic that IEEE 754 defines exactly is used; a change here changes everyone's results.
    assert digest(*generate("train", 200, seed=1)) == expected


def test_more_pixels_of_the_same_scenes():
    """Averages over blocks of 7x7 pixels are the small images, but for noise and edges."""
    (small, labels), (large, same) = (synthetic_shapes("train", 20, size=size) for size in (32, 224))
    np.testing.assert_array_equal(labels, same)
    means = large.reshape(20, 3, 32, 7, 32, 7).mean((3, 5))
    assert np.abs(means - small).mean() < 16
    assert synthetic_shapes("test", 3, size=5)[0].shape == (3, 3, 5, 5)


@both
def test_the_same_request_gives_the_same_bits(generate, shape):
    assert digest(*generate("test", 50, seed=3)) == digest(*generate("test", 50, seed=np.int64(3)))


@both
@pytest.mark.parametrize("count", [1, 10, 31, 32, 45])
def test_a_longer_request_starts_with_the_shorter(generate, shape, count):
    images, labels = generate("train", 100)
    first_images, first_labels = generate("train", count)
    np.testing.assert_array_equal(first_images, images[:count])
    np.testing.assert_array_equal(first_labels, labels[:count])


@both
def test_no_image_occurs_twice_in_or_between_splits_and_seeds(generate, shape):
    parts = [generate(split, 150, seed)[0] for split in ("train", "test") for seed in (0, 1, -1)]
    assert len({image.tobytes() for images in parts for image in images}) == 6 * 150


@both
def test_labels_are_balanced_in_changing_order(generate, shape):
    _, labels = generate("train", 1000)
    runs = labels.reshape(-1, 10)
    assert (np.sort(runs, axis=1) == np.arange(10)).all()
    assert len(np.unique(runs, axis=0)) > 90
    assert (generate("test", 1000)[1] != labels).any()
    assert (generate("train", 1000, seed=1)[1] != labels).any()


def test_the_table():
    rows, labels = synthetic_table("train", 200, seed=1)
    assert (rows.shape, rows.dtype, labels.dtype) == ((200, len(TABLE_COLUMNS)), np.float64, np.uint8)
    assert digest(rows.astype("<f8"), labels) == "7d767c75a59e5f31"
    for count in (0, 1, 7, 200):
        first, first_labels = synthetic_table("train", count, seed=1)
        np.testing.assert_array_equal(first, rows[:count])
        np.testing.assert_array_equal(first_labels, labels[:count])
    assert (np.sort(labels.reshape(-1, 4), axis=1) == np.arange(len(TABLE_CLASSES))).all()
    parts = [synthetic_table(split, 150, seed)[0] for split in ("train", "test") for seed in (0, 1, -1)]
    assert len({row.tobytes() for part in parts for row in part}) == 6 * 150


def test_what_the_columns_of_the_table_say():
    rows, labels = synthetic_table("train", 4000)
    column = dict(zip(TABLE_COLUMNS, rows.T, strict=True))
    same = column["left"] * column["right"] > 0
    far = np.hypot(column["x"], column["y"]) > 0.95
    assert np.mean(same == (labels < 2)) > 0.95
    assert np.mean(far == (labels % 2 == 1)) > 0.9
    means = np.array([rows[labels == label].mean(axis=0) for label in range(4)])
    gap = np.ptp(means, axis=0) / (rows.std(axis=0) / np.sqrt(1000))
    assert (gap > 10).tolist() == [name == "trend" for name in TABLE_COLUMNS]
    idle = [TABLE_COLUMNS.index(name) for name in ("large", "small", "whole", "idle")]
    assert (gap[idle] < 6).all()
    assert rows.std(axis=0).max() / rows.std(axis=0).min() > 1e6


def test_a_linear_classifier_of_the_table_learns_something_but_not_much():
    """Least squares."""
    (rows, labels), (other, wanted) = synthetic_table("train", 4000), synthetic_table("test", 2000)
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    x, y = (np.c_[(part - mean) / std, np.ones(len(part))] for part in (rows, other))
    weights = np.linalg.lstsq(x, np.eye(4)[labels], rcond=None)[0]
    assert 0.35 < np.mean((y @ weights).argmax(axis=1) == wanted) < 0.45


def test_random_words_depend_on_the_place_alone():
    table = random_words("a", 0, 10, 6)
    np.testing.assert_array_equal(random_words("a", 7, 3, 6), table[7:])
    assert len(np.unique(np.concatenate([table, random_words("b", 0, 10, 6)]))) == 120


def test_rotation():
    angle = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(rotation(np.tan(angle / 2)), (np.cos(angle), np.sin(angle)), atol=1e-15)


def test_digits_are_light_on_dark():
    images, _ = synthetic_digits("train", 500)
    assert 20 < images.mean() < 40
    assert images[:, :, :2, :2].mean() < 10
    assert (images.max(axis=(1, 2, 3)) > 120).all()


def test_colour_says_nothing_about_the_shape():
    images, labels = synthetic_shapes("train", 3000)
    corner = images[:, :, :3, :3].mean(axis=(2, 3))  # (n, 3): the ground
    means = np.array([corner[labels == label].mean(axis=0) for label in range(10)])
    error = corner.std() / np.sqrt(300)
    assert (np.abs(means - corner.mean(axis=0)) < 4 * error).all()
    assert corner.std(axis=0).min() > 30


def test_shape_classes():
    assert len(set(SHAPE_CLASSES)) == 10


def ridge_accuracy(generate, train, test, strength):
    """Test accuracy of the linear classifier that ridge regression finds, from the kernel of the images."""
    (x, y), (x_test, y_test) = generate("train", train), generate("test", test)
    mean = x.mean(axis=0, keepdims=True)
    x, x_test = (((part - mean) / 255).reshape(len(part), -1).astype(np.float32) for part in (x, x_test))
    dual = np.linalg.solve(x @ x.T + strength * np.eye(train, dtype=np.float32), np.eye(10, dtype=np.float32)[y])
    return np.mean((x_test @ (x.T @ dual)).argmax(axis=1) == y_test)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generate", "low", "high"), [(synthetic_digits, 0.4, 0.75), (synthetic_shapes, 0.15, 0.4)]
)
def test_a_linear_classifier_learns_something_but_not_much(generate, low, high):
    accuracy = ridge_accuracy(generate, 1500, 1000, strength=100.0)
    assert low < accuracy < high
