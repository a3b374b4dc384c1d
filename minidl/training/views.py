"""Several views of each image, whose logits are averaged: test-time augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import nn, ops
from ..core.tensor import Tensor
from ..ops.common.geometry import whole

TTA: dict[str, dict[str, Any]] = {"none": {}, "flip": {"shift": 0}, "flip-shift": {"shift": 1}}    # what --tta names


class Views(nn.Module):
    """A net that in evaluation gives the mean of its logits for several views of each image. In training it is the net
    alone, so that `fit` and `evaluate` take it as it is.

    The views of images (n,c,h,w): each image as it is and, with flip, mirrored from left to right. With shift, images
    are also moved by this many pixels up and to the left, and down and to the right; a mirror at the outermost pixels
    fills in. These two count half together, the image that is not moved counts the other half (Jordan 2024,
    airbench94_muon: six views, shift 1).

    Raises TypeError for what is not a Module; ValueError for a shift that is not an int of at least 0, and for images
    that are not larger than it.

    >>> import numpy as np
    >>> net = Views(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), shift=1).eval()
    >>> net(Tensor(np.zeros((5, 3, 2, 2), np.float32))).shape
    (5, 2)
    """

    def __init__(self, net: nn.Module, flip: bool = True, shift: int = 0):
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"Views: net is a {type(net).__name__} but must be an nn.Module")
        self.net, self.flip, self.shift = net, flip, whole("Views", "shift", shift, 0)
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.net(x)
        logits = self._both_ways(x)
        if not self.shift:
            return logits
        if min(x.shape[2:]) <= self.shift:
            raise ValueError(f"Views: images are {x.shape[2]}x{x.shape[3]} but must be larger than shift {self.shift}")
        moved = [self._both_ways(_moved(_moved(x, 2, step), 3, step)) for step in (self.shift, -self.shift)]
        return logits * 0.5 + (moved[0] + moved[1]) * 0.25

    def _both_ways(self, x: Tensor) -> Tensor:
        return self.net(x) * 0.5 + self.net(ops.flip(x, 3)) * 0.5 if self.flip else self.net(x)


def are_shares(outputs: Tensor) -> bool:
    """Whether a net ends in a softmax of its own: its answers are probabilities, and no logits."""
    rows = outputs.numpy()
    return bool((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, rtol=0, atol=1e-4))


def _moved(x: Tensor, axis: int, step: int) -> Tensor:
    """Moved along an axis by a number of places, forwards or backwards; a mirror at the outermost fills in."""
    def part(begin: int, end: int) -> Tensor:
        return x[(slice(None),) * axis + (slice(begin, end),)]
    size = x.shape[axis]
    if step > 0:
        return ops.concatenate([ops.flip(part(1, 1 + step), axis), part(0, size - step)], axis)
    return ops.concatenate([part(-step, size), ops.flip(part(size - 1 + step, size - 1), axis)], axis)
