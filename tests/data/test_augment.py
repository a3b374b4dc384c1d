"""Augmentation: what it does to an image, that seed, epoch and image alone decide, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidl
from minidl import data
from minidl.data import Augment, DataLoader, Dataset, DeviceBatches
from minidl.ops import cpu

HOW = Augment(crop=2, flip=True, cutout=3)
EVERYTHING = Augment(crop=1, flip="alternate", cutout=2, brightness=0.4, contrast=0.3, color=0.2)
SINGLE = [Augment(crop=2), Augment(flip=True), Augment(cutout=3), HOW, Augment(crop=3, cutout=8), Augment(),
          Augment(flip="alternate"), Augment(brightness=0.5), Augment(contrast=0.5), Augment(color=0.5), EVERYTHING,
          Augment(crop=3, reflect=True), EVERYTHING._replace(reflect=True)]


def dataset(count: int = 30, c: int = 3, h: int = 5, w: int = 4) -> Dataset:
    """Image i has label i, and no pixel is 0."""
    images = np.random.default_rng(0).integers(1, 256, (count, c, h, w), np.uint8)
    return Dataset("mine", "train", images, np.arange(count))


def loader(augment: Augment | None = HOW, **options: Any) -> DataLoader:
    return DataLoader(dataset(), **{"batch_size": 8, "seed": 3, "padding": 1, "mean": [0.1, 0.2, 0.3],
                                    "std": [0.5, 0.6, 0.7], "augment": augment, **options})


def seen(image: np.ndarray, index: int, augment: Augment, padding: int, key: tuple[int, int]) -> tuple[Any, Any]:
    """(pixels, where they are cut out) by the definition, with one generator for the image: block `index` of Philox."""
    block = np.random.Philox(key=np.array(key, np.uint64), counter=[index, 0, 0, 0]).random_raw(4)
    words = [(int(word) & 0xFFFFFFFF, int(word) >> 32) for word in block]
    c, h, w = image.shape[0], image.shape[1] + 2 * padding, image.shape[2] + 2 * padding
    down, right = (number * (2 * augment.crop + 1) // 2**32 - augment.crop - padding for number in words[0])
    top, left = (number * size // 2**32 - augment.cutout // 2 for number, size in zip(words[2], (h, w), strict=True))
    mirrored = augment.flip and words[1][0] % 2
    if augment.flip == "alternate":
        first = np.random.Philox(key=np.array((key[0], 3 << 62), np.uint64), counter=[index, 0, 0, 0]).random_raw(4)
        mirrored = (int(first[1]) + key[1]) % 2
    y, cut = np.zeros((c, h, w), np.uint8), np.zeros((h, w), bool)
    for row in range(h):
        for column in range(w):
            r, s = row + down, column + right
            if augment.reflect:
                r, s = (abs(at + padding) if at + padding < size else 2 * (size - 1) - at - padding
                        for at, size in ((r, h), (s, w)))
                r, s = r - padding, s - padding
            if 0 <= r < image.shape[1] and 0 <= s < image.shape[2]:
                at = w - 1 - column if mirrored else column
                y[:, row, at] = image[:, r, s]
            cut[row, column] = top <= row < top + augment.cutout and left <= column < left + augment.cutout
    return y, cut


def jitter(index: int, augment: Augment, key: tuple[int, int], c: int) -> tuple[float, list[float]]:
    """(gain, the offset of each channel)"""
    def number(row: int, word: int, half: int) -> float:
        block = np.random.Philox(key=np.array(key, np.uint64), counter=[index, row, 0, 0]).random_raw(4)
        return (int(block[word]) >> 32 * half & 0xFFFFFFFF) / 2**31 - 1
    return (1 + augment.contrast * number(0, 3, 0),
            [augment.brightness * number(0, 3, 1) + augment.color * number(1 + i, 0, 0) for i in range(c)])


def batches_by_label(batches: Any) -> dict[int, bytes]:
    """Of each label its image's bits."""
    def on_host(part: Any) -> np.ndarray:
        return (part if isinstance(part, minidl.Tensor) else minidl.Tensor(part)).numpy()
    return {int(label): image.tobytes() for images, labels in batches
            for image, label in zip(on_host(images), on_host(labels), strict=True)}


# ---------------------------------------------------------------- what it does
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("augment", SINGLE)
def test_an_image_is_seen_as_its_block_decides(augment: Augment, padding: int) -> None:
    source, epochs = dataset(), 3
    mean, std = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.6, 0.7])
    batches = loader(augment, padding=padding, dtype=np.float64)
    for epoch in range(epochs):
        for images, labels in batches:
            for x, label in zip(images, labels, strict=True):
                pixels, cut = seen(source.images[label], int(label), augment, padding, (3, (3 << 62) + epoch))
                gain, offset = jitter(int(label), augment, (3, (3 << 62) + epoch), 3)
                wanted = (pixels / 255 - mean[:, None, None]) / std[:, None, None]
                wanted = wanted * gain + np.array(offset)[:, None, None]
                np.testing.assert_allclose(x, np.where(cut, 0, wanted), rtol=0, atol=1e-12)


def test_choices_are_spread_evenly() -> None:
    """Of one white pixel: where it comes to lie, and how often; and of a flip."""
    count = 20_000
    image = np.zeros((1, 1, 7, 7), np.uint8)
    image[..., 3, 3] = 255
    places = cpu.gather(image.repeat(count, 0), np.arange(count), [1 / 255], [0.0], 0, np.float32, Augment(crop=2),
                        np.array([1, 2], np.uint64)).mean(0)[0]
    assert places.sum() == pytest.approx(1)
    np.testing.assert_allclose(places[1:6, 1:6], 1 / 25, atol=6 * np.sqrt(0.04 / count))
    side = np.zeros((count, 1, 1, 2), np.uint8)
    side[..., 0] = 255
    flipped = cpu.gather(side, np.arange(count), [1 / 255], [0.0], 0, np.float32, Augment(flip=True),
                         np.array([1, 2], np.uint64)).mean(0).ravel()
    np.testing.assert_allclose(flipped, 0.5, atol=6 * np.sqrt(0.25 / count))
    white = np.full((count, 1, 4, 5), 255, np.uint8)
    holes = 1 - cpu.gather(white, np.arange(count), [1 / 255], [0.0], 0, np.float32, Augment(cutout=1),
                           np.array([1, 2], np.uint64)).mean(0)[0]
    np.testing.assert_allclose(holes, 1 / 20, atol=6 * np.sqrt(0.05 / count))


# ---------------------------------------------------------------- who decides
def test_seed_epoch_and_image_alone_decide() -> None:
    first, second = (batches_by_label(batches) for batches in [loader()] for _ in range(2))
    assert first.keys() == second.keys() == set(range(30))
    assert sum(first[label] == second[label] for label in first) <= 3
    for other in (loader(batch_size=7, prefetch=0), loader(shuffle=False), loader(batch_size=30)):
        assert [batches_by_label(other), batches_by_label(other)] == [first, second]
    again = loader()
    again.set_epoch(1)
    again.skip(2)
    rest = batches_by_label(again)
    assert len(rest) == 14
    assert rest.items() <= second.items()
    assert batches_by_label(loader(seed=4)) != first


def test_alternating_flips_show_each_image_both_ways_in_two_epochs() -> None:
    """And in the third as in the first."""
    batches, plain = loader(Augment(flip="alternate")), batches_by_label(loader(None))
    epochs = []
    for _ in range(3):
        epochs.append({label: image != plain[label] for label, image in batches_by_label(batches).items()})
    assert epochs[0] == {i: not mirrored for i, mirrored in epochs[1].items()} == epochs[2]
    assert 5 < sum(epochs[0].values()) < 25


def test_two_iterations_at_once_keep_their_epochs() -> None:
    batches, both = loader(), loader()
    wanted = [batches_by_label(batches), batches_by_label(batches)]
    pairs = list(zip(both, both, strict=True))
    assert [batches_by_label(pair[i] for pair in pairs) for i in range(2)] == wanted


def test_labels_and_order_are_those_without() -> None:
    for (_, labels), (_, plain) in zip(loader(), loader(None), strict=True):
        np.testing.assert_array_equal(labels, plain)


def test_without_augmentation_primitives_are_called_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    for name in ("gather", "next_batch"):
        primitive = getattr(cpu, name)
        monkeypatch.setattr(cpu, name, lambda *given, name=name, primitive=primitive: (
            calls.append((name, len(given))), primitive(*given))[1])
    for augment in (None, HOW):
        next(iter(loader(augment, prefetch=0)))
        batches = DeviceBatches(loader(augment))
        batches.next(next(iter(batches)))
    assert calls == [("gather", 6), ("next_batch", 10), ("gather", 8), ("next_batch", 12)]


# ---------------------------------------------------------------- a device's batches
def assert_batches_are_the_loaders(device: str, compiled: bool) -> None:
    """And a program takes each epoch's choices from a key that lies on the device."""
    batches, plain = DeviceBatches(loader(device=device)), loader()

    def step(size: int) -> Any:
        return batches.next(size)
    run: Any = minidl.compile(step) if compiled else step
    for _ in range(4):
        assert batches_by_label(run(size) for size in batches) == batches_by_label(plain)
    if compiled:
        assert run.recordings == 4
        assert [call.name for call in run.program.calls] == ["next_batch", "advance"]
        assert run.program.inputs == []


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_batches_are_the_loaders(compiled: bool) -> None:
    assert_batches_are_the_loaders("cpu", compiled)


def test_another_augmentation_is_recorded_anew() -> None:
    batches = DeviceBatches(loader())
    step = minidl.compile(batches.next)
    for _ in range(3):
        batches_by_label(step(size) for size in batches)
    batches.loader.augment = None
    batches.loader.set_epoch(0)
    assert batches_by_label(step(size) for size in batches) == batches_by_label(loader(None))


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(("augment", "error", "said"), [
    (4, TypeError, r"augment is a int but must be a data.Augment\(crop=, flip=, cutout=, ...\)$"),
    (True, TypeError, "augment is a bool but must be a data.Augment"),
    (Augment(crop=-1), ValueError, "augment's crop is -1 but must be an int of at least 0"),
    (Augment(crop=1.5), ValueError, "augment's crop is 1.5 but must be an int of at least 0"),  # type: ignore[arg-type]
    (Augment(cutout=-2), ValueError, "augment's cutout is -2 but must be an int of at least 0"),
    (Augment(flip="never"), ValueError, "augment's flip is 'never' but must be True, False or 'alternate'"),
    (Augment(reflect="yes"), ValueError,  # type: ignore[arg-type]
     "augment's reflect is 'yes' but must be True or False$"),
    (Augment(crop=6, reflect=True), ValueError,
     "augment's crop is 6 but must be below 6 for images of 5x4 with padding 1; use a smaller crop$"),
    (Augment(crop=5), ValueError,
     "augment's crop is 5 but must be below 5 for images of 5x4 with padding 1; use a smaller crop$"),
    (Augment(crop=99), ValueError, "augment's crop is 99 but must be below 5 for images of 5x4 with padding 1; use a "),
    (Augment(cutout=11), ValueError,
     "augment's cutout is 11 but must be below 11 for images of 5x4 with padding 1; use a smaller cutout$"),
    (Augment(brightness=-1), ValueError, "augment's brightness is -1 but must be a finite number of at least 0"),
    (Augment(color=np.inf), ValueError, "augment's color is inf but must be a finite number of at least 0"),
    (Augment(contrast="x"), ValueError,  # type: ignore[arg-type]
     "augment's contrast is 'x' but must be a finite number of at least 0")])
def test_refused(augment: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^DataLoader: {said}"):
        loader(augment)


@pytest.mark.parametrize("padding", [0, 2])
def test_the_largest_crop_and_cutout_leave_something(padding: int) -> None:
    """A crop of 99 and a cutout of 99 made each pixel 0."""
    white = Dataset("white", "train", np.full((2000, 1, 3, 4), 255, np.uint8), np.zeros(2000, np.int64))
    crop, cutout = 2 + padding, 2 * (4 + padding) - 2
    for augment, some in ((Augment(crop=crop), np.all), (Augment(cutout=cutout), np.any)):
        ((images, _),) = DataLoader(white, 2000, padding=padding, augment=augment)
        assert some(images.any((1, 2, 3)))
        larger = Augment(*(value + 1 if value else 0 for value in augment[:3]))        # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"must be below {max(larger)} for images of 3x4 with padding {padding}"):
            DataLoader(white, 2000, padding=padding, augment=larger)
        stored = DataLoader(white, 2000, padding=padding).stored
        images = cpu.gather(white.images, np.arange(2000), stored.scale, stored.shift, padding, np.float32, larger,
                            np.array([1, 2], np.uint64))
        assert not some(images.any((1, 2, 3)))


def test_beside_a_transform_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^DataLoader: augment and transform are both given but images are augmented "
                                         r"where they are picked from memory; do all of it in the transform$"):
        loader(transform=lambda image, label: (image, label))


# ---------------------------------------------------------------- on a GPU
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_gpu_batches_are_the_cpus(compiled: bool) -> None:
    assert_batches_are_the_loaders("cuda", compiled)


@pytest.mark.gpu
@pytest.mark.parametrize("augment", SINGLE)
def test_gpu_images_are_the_cpus(augment: Augment) -> None:
    on_cpu, on_cuda = loader(augment), loader(augment, device="cuda")
    for _ in range(2):
        assert batches_by_label(on_cuda) == batches_by_label(on_cpu)


@pytest.mark.gpu
def test_gpu_beyond_the_epochs_end_is_nan() -> None:
    """Nothing is cut out of what is not there."""
    batches = data.DeviceBatches(loader(Augment(cutout=10), device="cuda"))
    for size in batches:
        batches.next(size)
    images, labels = batches.next(8)
    assert np.isnan(images.numpy()).all()
    assert (labels.numpy() == -1).all()
