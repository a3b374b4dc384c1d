"""What the labs about convolutions compare with: NumPy's sums of x (n,c,h,w) and filters (m,c,k,k), no padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import Lab, Launch


def convolved(x: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """y (n,m,oh,ow), in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (1, 1, *filters.shape[2:]))
    return np.einsum("nchwpq,mcpq->nmhw", windows[:, :, :, :, 0, 0], filters, optimize=True)


class Case(NamedTuple):
    """Images and filters."""

    x: np.ndarray
    filters: np.ndarray

    @property
    def sizes(self) -> dict[str, int]:
        """As the kernels of the labs take them."""
        _, c, h, w = self.x.shape
        return {"C": c, "H": h, "W": w, "M": len(self.filters), "K": self.filters.shape[2]}

    @property
    def right(self) -> np.ndarray:
        return convolved(self.x, self.filters)

    def grid(self, tile: int) -> tuple[int, int, int]:
        """The book's: images, maps, tiles of an output."""
        n, m, oh, ow = self.shape
        return n, m, -(-oh // tile) * -(-ow // tile)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of y."""
        (n, _, h, w), (m, _, k, _) = self.x.shape, self.filters.shape
        return n, m, h - k + 1, w - k + 1

    def __str__(self) -> str:
        n, m, oh, ow = self.shape
        return f"N = {n}, M = {m}, C = {self.x.shape[1]}, K = {self.filters.shape[2]}, outputs of {oh} x {ow}"


def case(lab: Lab, n: int, m: int, c: int, oh: int, ow: int, k: int) -> Case:
    """One of these sizes, of random values."""
    x, filters = (lab.rng.standard_normal(shape).astype(np.float32)
                  for shape in ((n, c, oh + k - 1, ow + k - 1), (m, c, k, k)))
    return Case(x, filters)


def drawn(lab: Lab, out: int, k: int) -> Case:
    """Random sizes: outputs of at most out x out, filters of at most k x k."""
    n, m, c = (int(n) for n in lab.rng.integers(1, (3, 3, 4)))
    oh, ow = (int(n) for n in lab.rng.integers(1, out + 1, 2))
    return case(lab, n, m, c, oh, ow, int(lab.rng.integers(1, k + 1)))


def by_kernels(lab: Lab, name: str, launches: list[Launch], y: np.ndarray) -> None:
    """Raise Wrong where a launcher's kernels write fewer numbers than y has."""
    stored = sum(each.stores.asked // 4 for done in launches for each in done.table.lines.values())
    if stored < y.size:
        raise lab.wrong(name, f"its kernels write {stored:,} numbers, but y has {y.size:,}; launch one for each part")
