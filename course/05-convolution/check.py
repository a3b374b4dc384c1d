"""The steps of lab 5: one tile, several maps, several tiles, any size; then which pixels a warp reads."""

from __future__ import annotations

import re

import numpy as np
from labkit import Lab, Launch, Wrong, step
from labkit.convs import Case, case, convolved, drawn

TILE = 16


def convolve(lab: Lab, given: Case, orders: int = 4) -> Launch:
    """A launch of the kernel; Wrong where y is not right."""
    (x, filters), place = given, lab.where(r"blockIdx\.z", behind="conv")
    try:
        done = lab.launch(given.grid(TILE), (TILE, TILE), {"x": x, "filters": filters, "y": given.shape, **given.sizes},
                          kernel="conv", orders=orders)
    except Wrong as error:
        blocks = re.findall(r"block \((\d+), (\d+), \d+\)", str(error))
        if "between blocks" in str(error) and blocks[0] == blocks[1]:
            raise Wrong(f"{place}: two blocks compute the same outputs; the number of the tile's row, and that of "
                        "its column, must be multiplied by TILE_WIDTH, which the 3rd edition's figure leaves out"
                        ) from None
        if "between blocks" in str(error):
            raise Wrong(f"{error}: h or w is beyond its map; compare them with H_out and W_out") from None
        raise
    got, right = done.arrays["y"], given.right
    if np.isnan(got).any() and not np.isnan(got).all():
        missing = np.argwhere(np.isnan(got))[0].tolist()
        raise Wrong(f"{place}: {given}: no thread computes y{missing}; the tiles from left to right are W_out / "
                    "TILE_WIDTH, rounded up, and a tile's number is row * W_grid + column")
    lab.known(got, right, [
        (convolved(x, filters[:, :, ::-1, ::-1]), "conv", r"filters\s*\[", "the filter is turned by 180 degrees; the "
         "book's convolution takes filters[m][c][p][q] for the pixel h + p, w + q"),
        (convolved(x, filters.swapaxes(2, 3)), "conv", r"filters\s*\[", "p and q are exchanged in the filter; its row "
         "p has K elements: (... * K + p) * K + q"),
        (convolved(x[:, -1:], filters[:, -1:]), "conv", r"for\s*\(int c", "only the last channel is in the sum; set it "
         "to 0 before the loop over c, and write y behind it")])
    lab.same("conv", got, right, f"{given}: y", todo="write the index of each array as one number, row by row",
             atol=1e-4)
    return done


@step("one tile of one map", points=15)
def one_tile(lab: Lab) -> None:
    for k in (1, 2, 3):
        convolve(lab, case(lab, 1, 1, 1, TILE, TILE, k))


@step("several images, maps and channels", points=20)
def several_maps(lab: Lab) -> None:
    for n, m, c in ((2, 1, 1), (1, 3, 1), (1, 1, 3), (2, 3, 2)):
        convolve(lab, case(lab, n, m, c, TILE, TILE, 2))


@step("several tiles", points=20)
def several_tiles(lab: Lab) -> None:
    for down, across in ((1, 2), (2, 1), (2, 3)):
        convolve(lab, case(lab, 1, 1, 1, down * TILE, across * TILE, 2))


@step("200 random sizes", points=30)
def any_size(lab: Lab) -> None:
    for _ in range(200):
        convolve(lab, drawn(lab, 20, 5), orders=1)


@step("a thread's column is its x", points=15)
def coalesces(lab: Lab) -> None:
    done = convolve(lab, case(lab, 1, 2, 2, 2 * TILE, 2 * TILE, 1))
    for way in ("loads", "stores"):
        lab.sectors(done, 4, way=way, todo="let threadIdx.x count the columns w and threadIdx.y the rows h, so that "
                    "neighbouring threads have neighbouring pixels")
