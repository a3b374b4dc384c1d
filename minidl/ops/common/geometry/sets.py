"""Which values a normalisation takes together, and which weight each has: sizes, from shapes."""

from __future__ import annotations

from typing import NamedTuple


class NormGeometry(NamedTuple):
    """Sizes of a normalisation of n images, each of `groups` times `inner` values, or `channels` times `spread`.

    A set is the values of one group: in one image, or `across` all images. Each has its own mean and deviation, and
    each channel its own weight; if sets go across, groups are channels. affine: the weight's shape.
    """

    n: int
    groups: int
    inner: int
    channels: int
    spread: int
    across: bool
    affine: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many values a set has."""
        return self.inner * (self.n if self.across else 1)

    @property
    def sets(self) -> tuple[int, ...]:
        """The shape of what there is once per set."""
        return (self.groups,) if self.across else (self.n, self.groups)
