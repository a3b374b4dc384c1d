"""The steps of lab 4: each kernel on random sizes, then what it reads."""

from __future__ import annotations

import numpy as np
from labkit import Lab, Launch, Wrong, step

TILE, BLOCK = 16, 64


def matrix(lab: Lab, rows: int, columns: int) -> np.ndarray:
    return lab.rng.standard_normal((rows, columns)).astype(np.float32)


def multiplied(lab: Lab, kernel: str, a: np.ndarray, b: np.ndarray, orders: int = 4) -> Launch:
    """A kernel's product of two matrices; Wrong where it is not that."""
    (rows, inner), columns = a.shape, b.shape[1]
    done = lab.launch((-(-columns // TILE), -(-rows // TILE)), (TILE, TILE),
                      {"a": a, "b": b, "c": (rows, columns), "rows": rows, "inner": inner, "columns": columns},
                      kernel=kernel, orders=orders)
    whole = inner // TILE * TILE
    a64, b64, got = a.astype(np.float64), b.astype(np.float64), done.arrays["c"]
    right = a64 @ b64
    lab.known(got, right, [
        (a64[:, :whole] @ b64[:whole], kernel, r"for\s*\(int first", f"the last tile is left out: it has "
         f"{inner - whole} columns of a, not {TILE}; go on while first < inner, and set to 0 what a and b do not have"),
        (a64[:, :-1] @ b64[:-1], kernel, r"for\s*\(int k", "the last product of each sum is left out; let k run from 0 "
         "to the last column of a")])
    todo = ("blockIdx.x counts the tiles of c from left to right, blockIdx.y from top to bottom; is a thread's column "
            "of x, and its row of y?" if (np.isnan(got) & ~np.isnan(right)).any() else
            "c[row][column] is the sum over k of a[row * inner + k] * b[k * columns + column]")
    lab.same(kernel, got, right, f"a {a.shape} times b {b.shape}: c", todo=todo, atol=1e-4)
    return done


@step("the sum of two vectors", points=15)
def adds(lab: Lab) -> None:
    for n in (1, 64, 65, *lab.rng.integers(2, 500, 17)):
        x, y = (lab.rng.standard_normal(n).astype(np.float32) for _ in range(2))
        done = lab.launch(-(-int(n) // BLOCK), BLOCK, {"x": x, "y": y, "z": (int(n),), "n": int(n)}, kernel="add")
        lab.same("add", done.arrays["z"], x + y, f"n = {n}: z", todo="is i the thread's number in the grid?")


@step("neighbouring threads add neighbouring elements", points=5)
def adds_neighbours(lab: Lab) -> None:
    x = lab.rng.standard_normal(256).astype(np.float32)
    done = lab.launch(4, BLOCK, {"x": x, "y": x, "z": (256,), "n": 256}, kernel="add")
    lab.same("add", done.arrays["z"], x + x, "n = 256: z")
    for way in ("loads", "stores"):
        lab.sectors(done, 4, way=way, todo="let i be blockIdx.x * blockDim.x + threadIdx.x")


@step("the product, a thread per element", points=15)
def multiplies(lab: Lab) -> None:
    for _ in range(30):
        rows, inner, columns = (int(n) for n in lab.rng.integers(1, 30, 3))
        multiplied(lab, "product", matrix(lab, rows, inner), matrix(lab, inner, columns), orders=1)


@step("a thread's column is its x", points=10)
def multiplies_neighbours(lab: Lab) -> None:
    done = multiplied(lab, "product", matrix(lab, 32, 16), matrix(lab, 16, 32))
    for way in ("loads", "stores"):
        lab.sectors(done, 4, way=way, todo="let neighbouring threads have neighbouring columns: threadIdx.x is the "
                    "column, threadIdx.y the row")


@step("the tiled product of whole tiles", points=15)
def multiplies_tiles(lab: Lab) -> None:
    for rows, inner, columns in ((1, 1, 1), (1, 2, 1), (2, 1, 3)):
        multiplied(lab, "tiled_product", matrix(lab, rows * TILE, inner * TILE), matrix(lab, inner * TILE,
                                                                                      columns * TILE))


@step("the tiled product of 200 random sizes", points=20)
def multiplies_any(lab: Lab) -> None:
    for _ in range(200):
        rows, inner, columns = (int(n) for n in lab.rng.integers(1, 30, 3))
        multiplied(lab, "tiled_product", matrix(lab, rows, inner), matrix(lab, inner, columns), orders=1)
    a, b = matrix(lab, 2, 5), matrix(lab, 5, 3)
    a[1] = np.inf                          # times the zeros of a tile of b it is NaN, in a row of c without part in it
    with np.errstate(invalid="ignore"):
        try:
            multiplied(lab, "tiled_product", a, b, orders=1)
        except Wrong as error:
            if "c[0, " in str(error):
                place = lab.where(r"tile_a\b.*[^=!<>]=[^=]", behind="tiled_product")
                raise Wrong(f"{place}: the last tile of a row of a goes on in the next row of a; an element that a "
                            "does not have is 0 in the tile: compare its column with inner") from None
            raise


@step("each element is read once per tile", points=10)
def reads_once(lab: Lab) -> None:
    done = multiplied(lab, "tiled_product", matrix(lab, 32, 48), matrix(lab, 48, 32))
    lab.reads(done, 2 * 32 * 48 * 2, todo="read global memory only to fill the tiles, and take the factors from there")


@step("accesses: coalesced, without bank conflicts, two barriers per tile", points=10)
def accesses(lab: Lab) -> None:
    done = multiplied(lab, "tiled_product", matrix(lab, 32, 48), matrix(lab, 48, 32))
    for way in ("loads", "stores"):
        lab.sectors(done, 4, way=way, todo="let threadIdx.x be the column of what a thread loads and stores")
    lab.conflicts(done, todo="let the threads of a warp read a row of tile_b and one element of tile_a: "
                  "tile_a[ty][k] * tile_b[k][tx]")
    lab.barriers(done, 2 * 3 * 4, todo="two for each pair of tiles are enough: when it is loaded, and when it is used")
