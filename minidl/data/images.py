"""What a DataLoader knows of images: their statistics, how they are stored on a device, and how they are augmented."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..core.device import Array

if TYPE_CHECKING:
    from .sets.datasets import Dataset


def channel_statistics(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviation) of each channel's pixels / 255, over all images: two arrays (c,).

    >>> from minidl import data
    >>> two = data.Dataset("mine", "train", np.array([0, 255], np.uint8).reshape(2, 1, 1, 1), np.array([0, 1]))
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
    """A whole data set on a device: images uint8 (n,c,h,w), labels int64 (n,), and how bytes become pixels: byte *
    scale + shift, one number of each per channel."""

    images: Array
    labels: Array
    scale: tuple[float, ...]
    shift: tuple[float, ...]


class Augment(NamedTuple):
    """How a DataLoader changes the images of a Dataset when it picks them, in a new way in each epoch.

    crop: each image is moved by up to this many pixels in each direction. Zero pixels come in, or with reflect=True the
    mirror image at the outermost pixels. flip: it is mirrored from left to right with probability 1/2, or with
    flip="alternate" in every other epoch: half of the images in even epochs, the others in odd ones (Jordan 2024, "94%
    on CIFAR-10 in 3.29 seconds", section 3.6). contrast: after normalising, pixels are multiplied by a number in 1 +-
    contrast. brightness, color: then a number in +- brightness is added, and another number in +- color for each
    channel; their unit is the standard deviation of normalised pixels. cutout: in the end, a square with this many
    pixels per side, around a random pixel, is set to 0, which is the mean. Only seed, epoch and the image's index in
    the data set decide all this. A DataLoader refuses a crop that could leave nothing of an image, and a cutout that
    leaves nothing of any.

    >>> from minidl import data
    >>> shapes = data.load("synthetic-shapes", "test")
    >>> images, labels = next(iter(data.DataLoader(shapes, 128, augment=Augment(crop=4, flip=True, cutout=8))))
    >>> images.shape
    (128, 3, 32, 32)
    """

    crop: int = 0
    flip: bool | str = False
    cutout: int = 0
    brightness: float = 0.0
    contrast: float = 0.0
    color: float = 0.0
    reflect: bool = False
