"""What a DataLoader knows of images: their statistics, how they are stored on a device, and how they are augmented; and
blends of a batch's images, with targets to match."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core import rng
from ..core.device import Array, is_cuda, to_device
from ..core.tensor import Tensor, wrap
from ..ops.common.backend import primitives_of
from ..ops.common.geometry import whole

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


def mixup(images: Tensor | Array, labels: Tensor | Array | list[int], classes: int, alpha: float = 0.2, *,
          key: rng.Key | None = None) -> tuple[Any, Any]:
    """share * images + (1 - share) * others, and their targets blended in the same way (Zhang et al. 2018): images
    (n,...) floating and labels, n integers in [0, classes) -> (blends (n,...), targets (n,classes)).

    The others are the batch itself in another order; the share is one number per batch, drawn from Beta(alpha, alpha).
    An alpha of 0.1 to 0.4 blends little, 1 blends evenly, and 0 does not blend. Order and share come from minidl's
    counter-based generator, by `minidl.manual_seed`, or by a key. They are the same on the CPU and on a GPU. Arrays
    give arrays, in the images' dtype and on their device; Tensors give Tensors, through which gradients flow. The loss
    of logits is `-(targets * ops.log_softmax(logits)).sum(axis=1).mean()`. Call it outside of a compiled step, and pass
    its results to the step as arguments.

    Raises TypeError for images that are not floating and labels that are not integers; ValueError for labels of another
    shape than (n,), for labels on the CPU beyond the classes, for an alpha that is not a finite number of at least 0,
    and for classes below 1.

    >>> blends, targets = mixup(np.array([[0.0], [1.0]]), [0, 2], 3, 1.0, key=(0, 1))
    >>> blends.round(2).tolist(), targets.round(2).tolist()
    ([[0.28], [0.72]], [[0.72, 0.0, 0.28], [0.28, 0.0, 0.72]])
    """
    x: Array
    x, given = (each._data if isinstance(each, Tensor) else each for each in (images, labels))
    y: Array = given if is_cuda(given) else np.asarray(given)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.floating)) or not 0 <= alpha < math.inf:
        raise ValueError(f"mixup: alpha is {alpha!r} but must be a finite number of at least 0")
    whole("mixup", "classes", classes, 1)
    if x.dtype.kind != "f" or y.dtype.kind not in "iu":
        raise TypeError(f"mixup: images have dtype {x.dtype} and labels {y.dtype} but must be floating numbers and "
                        "integers; pass what a data.DataLoader gives")
    if y.shape != x.shape[:1]:
        raise ValueError(f"mixup: images have shape {x.shape} and labels {y.shape} but must be (n,...) and (n,)")
    if not is_cuda(y) and y.size and not 0 <= y.min() <= y.max() < classes:
        raise ValueError(f"mixup: labels go from {y.min()} to {y.max()} but must be in [0, {classes}); name all "
                         "classes")
    where, draw, k = "cuda" if is_cuda(x) else "cpu", rng.generator(key), primitives_of(x)
    share = float(draw.beta(alpha, alpha)) if alpha else 1.0
    others = to_device(draw.permutation(len(x)), where)
    targets = k.getitem(to_device(np.eye(classes, dtype=x.dtype), where), to_device(y, where))

    def blend(each: Array) -> Array:
        return k.add(k.mul(each, share), k.mul(k.getitem(each, others), 1 - share))
    if not isinstance(images, Tensor):
        return blend(x), blend(targets)
    return images * share + images[wrap(others)] * (1 - share), wrap(blend(targets))       # by ops: for the tape
