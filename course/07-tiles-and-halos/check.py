"""The steps of lab 7: a tile alone, its halo, filters of any size, any images; then what is read, and how."""

from __future__ import annotations

from labkit import Lab, Launch, Wrong, step
from labkit.convs import Case, case, convolved, drawn

TILE = 16


def convolve(lab: Lab, given: Case, orders: int = 4) -> Launch:
    """A launch of the kernel; Wrong where y is not right."""
    x, filters = given
    k = filters.shape[2]
    side = TILE + k - 1
    try:
        done = lab.launch(given.grid(TILE), (TILE, TILE), {"x": x, "filters": filters, "y": given.shape, **given.sizes},
                          kernel="conv_tiled", shared=4 * (side * side + k * k), orders=orders)
    except Wrong as error:
        if "shared memory before anything wrote it" in str(error):
            raise Wrong(f"{error}. A tile has side x side pixels, TILE_WIDTH + K - 1 each way, and a filter K * K "
                        f"elements: here {side} x {side} and {k * k}, loaded by {TILE} x {TILE} threads") from None
        raise
    lab.known(done.arrays["y"], given.right, [
        (convolved(x[:, -1:], filters[:, -1:]), "conv_tiled", r"for\s*\(int c", "only the last channel is in the sum; "
         "set it to 0 before the loop over c, and write y behind it"),
        (convolved(x, filters.swapaxes(2, 3)), "conv_tiled", r"filter\s*\[p", "p and q are exchanged in the filter; "
         "its element is p * K + q")])
    lab.same("conv_tiled", done.arrays["y"], given.right, f"{given}: y", atol=1e-4,
             todo="index the tile with the thread's own h0 + p, w0 + q, and x with h_base + i, w_base + j")
    return done


@step("a tile without a halo: K = 1", points=10)
def no_halo(lab: Lab) -> None:
    convolve(lab, case(lab, 1, 1, 1, TILE, TILE, 1))
    convolve(lab, case(lab, 2, 2, 3, TILE, 2 * TILE, 1))


@step("halos", points=20)
def halos(lab: Lab) -> None:
    for k in (2, 3, 5):
        convolve(lab, case(lab, 1, 2, 2, TILE, 2 * TILE, k))


@step("200 random sizes", points=30)
def any_size(lab: Lab) -> None:
    for _ in range(200):
        convolve(lab, drawn(lab, 20, 5), orders=1)


@step("filters wider than a tile", points=10)
def wide_filters(lab: Lab) -> None:
    for k in (TILE + 1, TILE + 3):
        convolve(lab, case(lab, 1, 1, 1, 3, 5, k), orders=2)


@step("each pixel is read once per tile", points=15)
def reads_once(lab: Lab) -> None:
    c, k = 2, 5
    given = case(lab, 1, 1, c, 2 * TILE, TILE, k)
    lab.reads(convolve(lab, given), 2 * c * ((TILE + k - 1) ** 2 + k * k), todo="a tile loads each of its pixels once "
              "per channel; the products take them from shared memory")


@step("accesses: rows of pixels, two barriers per channel", points=15)
def accesses(lab: Lab) -> None:
    given = case(lab, 1, 1, 2, 2 * TILE, TILE, 5)
    done = convolve(lab, given)
    for way in ("loads", "stores"):
        lab.sectors(done, 6, way=way, todo="let threadIdx.x count the columns: the 3rd edition's figure has it count "
                    "rows, so that a warp reads a column")
    lab.barriers(done, 2 * 2 * 2, todo="two per channel are enough: when the tile is loaded, and when it is used")
