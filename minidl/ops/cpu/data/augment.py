"""Images seen at random: what an epoch's key decides for each of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...common.primitives import Array, Augment

EPOCH_0 = 3 << 62                          # key[1] of an epoch is this and its number
LOW = np.uint64(0xffffffff)


class Views:
    """How images[indices] of `count` are seen.

    augment: (crop, flip, cutout, brightness, contrast, color, reflect). Block i of Philox(key), four words, decides for
    image i. It is moved by up to `crop` pixels in each direction; zero bytes come in, or, if reflect, what a mirror at
    the outermost pixels shows. If flip, it is mirrored from left to right with probability 1/2. If flip is "alternate",
    the block of epoch 0 decides whether it is mirrored in even epochs or in odd ones; key[1] counts epochs. It is
    multiplied by a number in 1 +- contrast; one in +- brightness is added, and for each channel one in +- color, from
    the first word of block {i + 1, 1 + channel, 0, 0}. It is 0, which is the mean of what is normalised, in a square of
    `cutout` pixels a side around one of the pixels.
    """

    def __init__(self, augment: Augment, key: tuple[int, int], count: int, indices: Array):
        self.crop, self.flip, self.cutout, self.brightness, self.contrast, self.color, self.reflect = augment
        self.key, self.count, self.indices = key, count, indices
        self.words = self._words(*key)

    def _words(self, seed: int, counter: int, row: int = 0) -> Array:
        return _blocks(seed, counter, self.count, row)[self.indices]

    def moved(self, images: Array) -> Array:
        """Images (n,c,h,w) bytes with a border of `crop` pixels, cropped and mirrored; their memory is used."""
        crop, (height, width) = self.crop, (size - 2 * self.crop for size in images.shape[2:])
        if crop:
            down, right = (_below(2 * crop + 1, bits) for bits in _low_and_high(self.words[:, 0]))
            axes: Any = 2, 3               # NumPy 2.2 and 2.3 allow more than one, and have types for one only
            windows = np.lib.stride_tricks.sliding_window_view(images, (height, width), axis=axes)
            images = windows[np.arange(len(images)), :, down, right]
        if self.flip:
            words, (seed, counter) = self.words, self.key
            if self.flip == "alternate":
                words = self._words(seed, counter & EPOCH_0) ^ np.uint64(counter)
            mirrored = words[:, 1] % np.uint64(2) == 1
            images[mirrored] = images[mirrored, :, :, ::-1]
        return images

    def finish(self, y: Array) -> None:
        """What is done with pixels (n,c,h,w) that are normalised."""
        if self.brightness or self.contrast or self.color:
            contrast, brightness = _low_and_high(self.words[:, 3])
            offset = _spread(self.brightness, brightness)[:, None] + np.stack(
                [_spread(self.color, self._words(*self.key, 1 + channel)[:, 0]) for channel in range(y.shape[1])], 1)
            y *= (1 + _spread(self.contrast, contrast)).astype(y.dtype)[:, None, None, None]
            y += offset.astype(y.dtype)[:, :, None, None]
        if self.cutout:
            firsts = (_below(size, bits) - self.cutout // 2
                      for size, bits in zip(y.shape[2:], _low_and_high(self.words[:, 2]), strict=True))
            rows, columns = ((np.arange(size) - first[:, None]).astype(np.uint64) < self.cutout    # not below 0 either
                             for size, first in zip(y.shape[2:], firsts, strict=True))
            np.copyto(y, 0, where=rows[:, None, :, None] & columns[:, None, None, :])


@functools.lru_cache(maxsize=8)
def _blocks(seed: int, counter: int, count: int, row: int) -> Array:
    """Blocks {1..count, row, 0, 0} of Philox(seed, counter): drawn once for an epoch, as one by one takes long."""
    philox = np.random.Philox(key=np.array([seed, counter], np.uint64), counter=[0, row, 0, 0])
    return philox.random_raw(4 * count).reshape(count, 4)


def _low_and_high(word: Array) -> tuple[Array, Array]:
    return word & LOW, word >> np.uint64(32)


def _below(size: int, bits: Array) -> Array:
    """A number in [0, size) from 32 random bits."""
    return (bits * np.uint64(size) >> np.uint64(32)).astype(np.int64)


def _spread(most: float, bits: Array) -> Array:
    """A number in [-most, most) from the low 32 of random bits."""
    return most * ((bits & LOW).astype(np.float64) * 2.0**-31 - 1)
