"""The steps of lab 9: the product of any sizes; then its loads from global and from shared memory."""

from __future__ import annotations

import numpy as np
from labkit import Lab, Launch, step

TILE, SIDE, EACH = 32, 8, 4


def multiplied(lab: Lab, rows: int, inner: int, columns: int, orders: int = 4) -> Launch:
    """A launch on random matrices; Wrong where c is not their product."""
    a, b = (lab.rng.standard_normal(shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
    done = lab.launch((-(-columns // TILE), -(-rows // TILE)), (SIDE, SIDE),
                      {"a": a, "b": b, "c": (rows, columns), "rows": rows, "inner": inner, "columns": columns},
                      kernel="product", orders=orders)
    wide_a, wide_b, got = a.astype(np.float64), b.astype(np.float64), done.arrays["c"]
    whole, right = inner // TILE * TILE, wide_a @ wide_b
    lab.known(got, right, [
        (wide_a[:, :whole] @ wide_b[:whole], "product", r"for\s*\(int first", f"the last tile is left out: it has "
         f"{inner - whole} columns of a, not {TILE}; go on while first < inner, and set to 0 what a and b do not have"),
        (wide_a[:, whole:] @ wide_b[whole:], "product", r"sums\s*\[", "the sums hold the last tile alone; set them to "
         "0 once, before the loop over first")])
    some = np.isnan(got).any() and not np.isnan(got).all()
    lab.same("product", got, right, f"a {a.shape} times b {b.shape}: c", atol=1e-4,
             todo=f"a thread writes {EACH} x {EACH} elements" if some else "")
    return done


@step("one tile", points=15)
def one_tile(lab: Lab) -> None:
    multiplied(lab, TILE, TILE, TILE)


@step("several tiles", points=10)
def several_tiles(lab: Lab) -> None:
    multiplied(lab, 2 * TILE, TILE, TILE)
    multiplied(lab, TILE, 2 * TILE, 2 * TILE)


@step("200 random sizes", points=25)
def any_size(lab: Lab) -> None:
    for _ in range(200):
        rows, inner, columns = (int(n) for n in lab.rng.integers(1, 50, 3))
        multiplied(lab, rows, inner, columns, orders=1)


@step("each element is read once per tile", points=10)
def reads_once(lab: Lab) -> None:
    done = multiplied(lab, 2 * TILE, TILE, TILE)
    lab.reads(done, 2 * 2 * TILE * TILE, todo="read global memory only to fill the tiles")


@step("4 sectors per access", points=10)
def coalesces(lab: Lab) -> None:
    done = multiplied(lab, 2 * TILE, TILE, TILE)
    lab.sectors(done, 4, todo="let neighbouring threads load neighbouring columns: at / TILE is the row, at % TILE the "
                "column")
    lab.sectors(done, 4, way="stores", todo="let neighbouring threads have neighbouring columns: tx + j * SIDE, not "
                "tx * EACH + j")


@step("half a load from shared memory per multiply-add", points=20)
def registers(lab: Lab) -> None:
    done = multiplied(lab, TILE, TILE, TILE)
    lab.shared_reads(done, TILE ** 3 // 32 * 2 * EACH // EACH ** 2, todo=f"load {EACH} numbers of tile_a and {EACH} of "
                     f"tile_b into registers, and use each of them {EACH} times")


@step("no bank conflicts, two barriers per tile", points=10)
def banks(lab: Lab) -> None:
    done = multiplied(lab, TILE, 2 * TILE, TILE)
    lab.conflicts(done, todo="the four rows of tile_a that a warp reads lie in one bank if a row has 32 words: declare "
                  "a row of one word more")
    lab.barriers(done, 2 * 2, todo="two per tile are enough: when it is loaded, and when it is used")
