"""The steps of lab 6: filters in constant memory, what is still read from global memory, and a part of the maps."""

from __future__ import annotations

import re

import numpy as np
from labkit import Lab, Launch, Wrong, step
from labkit.convs import Case, case, convolved, drawn

TILE, FLOATS = 16, 16384


def convolve(lab: Lab, given: Case, first: int = 0, maps: int = 0, orders: int = 4) -> Launch:
    """A launch for some maps from the first on; Wrong where they are not right."""
    x, filters = given
    declared = lab.where(r"__constant__[^;]*\bFILTERS")
    if not re.search(r"__constant__\s+(?:const\s+)?float\s+FILTERS\s*\[", lab.text):
        raise Wrong(f"{declared}: there is no __constant__ float FILTERS[...], which the launch fills; declare it "
                    "before the kernel")
    maps = maps or len(filters)
    n, _, tiles = given.grid(TILE)
    try:
        done = lab.launch((n, maps, tiles), (TILE, TILE), {
            "x": x, "FILTERS": filters[first:first + maps].ravel(), "y": given.shape, **given.sizes,
            "first_map": first}, kernel="conv_constant", orders=orders)
    except Wrong as error:
        if "FILTERS holds" in str(error):
            left = "; the TODO above it is not done yet" * ("TODO" in lab.text.partition("FILTERS")[0])
            raise Wrong(f"{declared}: {str(error).rpartition(': ')[2].partition(';')[0]}; make it CONSTANT_FLOATS long"
                        f"{left}") from None
        if "in constant memory" in str(error):
            told = str(error).partition("declares ")[2].partition(";")[0]
            raise Wrong(f"{declared}: {told}; make it CONSTANT_FLOATS long: a float has 4 bytes") from None
        raise
    got, right = done.arrays["y"][:, first:first + maps], given.right[:, first:first + maps]
    where, elsewhere = r"FILTERS\s*\[", not np.isnan(done.arrays["y"]).all()
    own, name = filters[first:first + maps], "conv_constant"
    lab.known(got, right, [
        (convolved(x, own.swapaxes(2, 3)), name, where, "p and q are exchanged in the filter; its row p has K "
         "elements: (... * K + p) * K + q"),
        (convolved(x, own[:1].repeat(maps, 0)), name, where, "every block takes the first filter; a filter has C * "
         "K * K elements, and this block's is number blockIdx.y"),
        (np.zeros_like(right), name, where, "it reads FILTERS behind its last filter; the first one is that of map "
         "first_map, so a block's own is number blockIdx.y"),
        (np.full_like(right, np.nan if elsewhere else np.inf), name, r"\by\s*\[", f"the maps {first} to "
         f"{first + maps - 1} are not written; blockIdx.y counts from 0, a map from first_map")])
    todo = ("blockIdx.x counts the images, blockIdx.z the tiles of a map, from left to right and from top to bottom: "
            "as in lab 5" if np.isnan(got).any() else
            "the sum is that of lab 5, with FILTERS in the order [map][c][p][q]")
    lab.same("conv_constant", got, right, f"{given}: y", todo=todo, atol=1e-4)
    return done


@step("one tile, filters in constant memory", points=20)
def one_tile(lab: Lab) -> None:
    for m, c, k in ((1, 1, 3), (3, 1, 2), (2, 3, 2)):
        convolve(lab, case(lab, 1, m, c, TILE, TILE, k))


@step("200 random sizes", points=30)
def any_size(lab: Lab) -> None:
    for _ in range(200):
        convolve(lab, drawn(lab, 20, 5), orders=1)


@step("global memory is read for pixels alone", points=20)
def reads(lab: Lab) -> None:
    given = case(lab, 1, 2, 2, 2 * TILE, TILE, 3)
    done = convolve(lab, given)
    lab.reads(done, int(np.prod(given.shape)) * 2 * 3 * 3, todo="one pixel per product; the other factor is in FILTERS")


@step("a part of the maps", points=20)
def from_a_map_on(lab: Lab) -> None:
    given = case(lab, 2, 5, 2, 7, 9, 3)
    for first, maps in ((0, 2), (2, 2), (4, 1)):
        convolve(lab, given, first, maps)


@step("as many filters as fit", points=10)
def all_of_it(lab: Lab) -> None:
    convolve(lab, case(lab, 1, 64, 4, 2, 2, 8), orders=1)
