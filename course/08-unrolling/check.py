"""The steps of lab 8: the unrolled matrix, the product, then both together for images of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
from labkit import WHAT_TO_DO, Lab, Launch, Wrong, step
from labkit.convs import Case, by_kernels, case, drawn

TILE, THREADS = 16, 64
EXAMPLE = np.array([[[1, 2, 0], [1, 1, 3], [0, 2, 2]], [[0, 2, 1], [0, 3, 2], [1, 1, 0]],
                    [[1, 2, 1], [0, 1, 3], [3, 3, 2]]], np.float32)        # the book's figure


def unrolled(lab: Lab, x: np.ndarray, k: int, orders: int = 4) -> Launch:
    """A launch of unroll on one image; Wrong where u is not right."""
    c, h, w = x.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(1, 2))     # c h w p q
    right = windows.transpose(0, 3, 4, 1, 2).reshape(c * k * k, -1)
    done = lab.launch(-(-c * right.shape[1] // THREADS), THREADS, {"x": x, "u": right.shape, "C": c, "H": h, "W": w,
                                                                   "K": k}, kernel="unroll", orders=orders)
    got = done.arrays["u"]
    if right.shape != right.T.shape or (right != right.T).any():
        lab.known(got, right, [
            (right.T.reshape(right.shape), "unroll", r"\bu\s*\[", "u has a row per output, as in the 3rd edition, but "
             "must have a column per output: u[row * outputs + column]"),
            (windows.transpose(0, 4, 3, 1, 2).reshape(right.shape), "unroll", r"\bu\s*\[|row\s*=", "p and q are "
             "exchanged; row (c,p,q) is (c * K + p) * K + q")])
    todo, far = "", np.argwhere(~(got == right))
    if len(far):
        row, column = (int(n) for n in far[0])
        (ci, p, q), (i, j) = np.unravel_index(row, (c, k, k)), np.unravel_index(column, (h - k + 1, w - k + 1))
        todo = (f"row {row} is that of c = {ci}, p = {p}, q = {q}, column {column} that of h = {i}, w = {j}, so this "
                f"element is x[{ci}][{i + p}][{j + q}]")
    lab.same("unroll", got, right, f"an image {x.shape}, K = {k}: u", todo=todo)
    return done


@step("the book's example, unrolled", points=15)
def example(lab: Lab) -> None:
    unrolled(lab, EXAMPLE, 2)


@step("any image, unrolled", points=15)
def any_image(lab: Lab) -> None:
    for _ in range(40):
        given = drawn(lab, 14, 4)
        unrolled(lab, given.x[0], given.filters.shape[2], orders=1)


@step("u is written row by row", points=10)
def coalesces(lab: Lab) -> None:
    done = unrolled(lab, case(lab, 1, 1, 3, 8, 8, 3).x[0], 3)
    lab.sectors(done, 4, way="stores", todo="let neighbouring threads write neighbouring columns of u")


@step("the product", points=10)
def multiplies(lab: Lab) -> None:
    for _ in range(20):
        rows, inner, columns = (int(n) for n in lab.rng.integers(1, 30, 3))
        a, b = (lab.rng.standard_normal(shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
        done = lab.launch((-(-columns // TILE), -(-rows // TILE)), (TILE, TILE),
                          {"a": a, "b": b, "c": (rows, columns), "rows": rows, "inner": inner, "columns": columns},
                          kernel="tiled_product", orders=1)
        lab.same("tiled_product", done.arrays["c"], a.astype(np.float64) @ b, f"a {a.shape} times b {b.shape}: c",
                 atol=1e-4, todo="use your kernel of lab 4")


def launched(lab: Lab, made: Any) -> Launch:
    """A launch of convolve; where it has a fault, the sentence says where it was launched."""
    try:
        return lab.launched(made)
    except Wrong as error:
        told = str(error)
        for todo in WHAT_TO_DO.values():
            told = told.removesuffix(f"; {todo}")
        place = lab.where(rf"launch\(\s*[\"']{made['kernel']}", behind="convolve")
        raise Wrong(f"{told}; if the steps before are passed, the kernel is right and its launch in {place} is not: "
                    "compare grid, block and the order of the arguments with the kernel's head, and see whether all "
                    "that it reads was written before") from None


def convolve(lab: Lab, given: Case, orders: int = 1) -> Any:
    """The launches of convolve; Wrong where y is not right."""
    made = lab.call("convolve", given.x, given.filters, orders)
    launches = [launched(lab, each) for each in made["launches"]]
    got, right = np.asarray(made["y"]), given.right
    n = len(right)
    unrolls, products = (rf"launch\(\s*[\"']{name}" for name in ("unroll", "tiled_product"))
    lab.known(got, right, [
        (np.concatenate([right[:1], np.full_like(right[1:], np.nan)]), "convolve", unrolls, "only the first image is "
         "computed; launch both kernels for each of g.n"),
        (np.concatenate([right[-1:], np.full_like(right[1:], np.nan)]), "convolve", products, "all images are "
         "written to the first one's place; pass y[n]"),
        (np.repeat(right[:1], n, 0), "convolve", unrolls, "all maps are those of the first image; unroll x[n]")])
    todo = ("is there a thread of unroll for each channel and output, and a tile of tiled_product for each part of y, "
            "its columns along x and its rows along y?" if np.isnan(got).any() else
            "the filters are a matrix of g.m rows and g.c * g.kh * g.kw columns")
    lab.same("convolve", got, right, f"{given}: y", atol=1e-4, todo=todo)
    by_kernels(lab, "convolve", [done for done in launches if done.table.kernel == "tiled_product"], got)
    return made


@step("blocks: rounded up", points=5)
def rounds_up(lab: Lab) -> None:
    for count, threads in ((1, 16), (16, 16), (17, 16), (1000, 256)):
        got, what = lab.call("blocks", count, threads), f"blocks({count}, {threads})"
        if not isinstance(got, int):
            raise lab.wrong("blocks", f"{what} is {got!r} but must be {-(-count // threads)}, an int; divide by //, "
                            "and round up")
        lab.same("blocks", got, -(-count // threads), what, todo="round up: the last block may be partly idle")


@step("the convolution of one image", points=15)
def one_image(lab: Lab) -> None:
    for m, c, k in ((1, 1, 2), (3, 3, 3), (18, 2, 1)):         # 3 channels of 99 outputs: more than one block of unroll
        made = convolve(lab, case(lab, 1, m, c, 9, 11, k), orders=4)
        grid = sum(each["blocks"] for each in made["launches"] if each["kernel"] == "tiled_product")
        if grid > 4 * (needed := 7 * -(-m // TILE)):
            place = lab.where("launch.*tiled_product", behind="convolve")
            raise Wrong(f"{place}: {grid:,} blocks of tiled_product are launched for {m} x 99 outputs, but {needed:,} "
                        "are enough; the grid counts tiles, not elements")


@step("one unrolled matrix for all images", points=10)
def memory(lab: Lab) -> None:
    given = case(lab, 3, 2, 2, 6, 5, 3)
    made, most = convolve(lab, given), 2 * 3 * 3 * 6 * 5
    if not made["between"]:
        raise Wrong(f"{lab.at('convolve')}: launch.empty is not called, so the unrolled matrix is no array on the GPU; "
                    "make it by launch.empty, not by NumPy")
    if made["between"] > most:
        place = lab.where(r"=\s*launch\.empty", behind="convolve")
        raise Wrong(f"{place}: the arrays in between have {made['between']:,} elements for 3 images, but {most:,} are "
                    "enough; call launch.empty once, before the loop, for the matrix of one image")


@step("200 random sizes", points=20)
def any_size(lab: Lab) -> None:
    for _ in range(200):
        convolve(lab, drawn(lab, 9, 4))
