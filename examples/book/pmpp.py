"""The convolutions of PMPP's chapter 16 as algorithms of minidl. As in the book: square filters, stride 1, no padding.

    minidl check-conv examples/book/pmpp.py
    minidl train --model lenet5 --plugin examples/book/pmpp.py --conv-algorithm fig16_13 --device cuda
"""

from pathlib import Path

import minidl

TILE_WIDTH, THREADS = 16, 256              # the first as in the .cu files


def ceil_div(count, size):
    return -(-count // size)


def refuses(direction, g, dtype):
    if g.kh != g.kw or (g.sh, g.sw) != (1, 1) or (g.top, g.bottom, g.left, g.right) != (0, 0, 0, 0):
        return "the book's layers have square filters, stride 1 and no padding"
    return None


def add_bias(launch, b, y, g):
    if b is not None:
        launch("add_bias", ceil_div(y.size, THREADS), THREADS, b, y, g.m, g.oh * g.ow, y.size)


def by_tiles(edition, shared=False):
    """y with a block per tile of a map: the grid is (N, M, tiles) in the 3rd edition, (M, tiles, N) in the 4th."""
    def y(launch, x, w, b, y, g):
        W_grid = ceil_div(g.ow, TILE_WIDTH)
        tiles = W_grid * ceil_div(g.oh, TILE_WIDTH)
        floats = (TILE_WIDTH + g.kh - 1) ** 2 + g.kh**2 if shared else 0
        launch("ConvLayerForward_Kernel", (g.n, g.m, tiles) if edition == 3 else (g.m, tiles, g.n),
               (TILE_WIDTH, TILE_WIDTH), g.c, g.m, g.h, g.w, g.kh, W_grid, x, w, y, shared=4 * floats)
        add_bias(launch, b, y, g)
    return y


def by_product(gemm):
    """y as Fig. 16.15 computes it: image by image through one unrolled matrix."""
    def y(launch, x, w, b, y, g):
        outputs, products = g.oh * g.ow, g.c * g.kh * g.kw
        unrolled = launch.empty((outputs * products,))
        for n in range(g.n):
            launch("unroll_Kernel", ceil_div(g.c * outputs, THREADS), THREADS, g.c, g.h, g.w, g.kh, x[n], unrolled)
            launch(gemm, (ceil_div(outputs, 16), ceil_div(g.m, 16)), (16, 16), g.m, outputs, products, w, unrolled, y,
                   n)
        add_bias(launch, b, y, g)
    return y


HELPERS = Path(__file__).with_name("helpers.cu").read_text(encoding="utf-8")
ALGORITHMS = {"fig16_12": by_tiles(3), "fig16_13": by_tiles(3, shared=True), "fig16_15_4th": by_tiles(4),
              "fig16_18": by_product("gemm_transposed"), "fig16_18_4th": by_product("gemm")}
for name, y in ALGORITHMS.items():
    text = Path(__file__).with_name(f"{name}.cu").read_text(encoding="utf-8")
    minidl.register_conv(name, text + HELPERS, y=y, refuses=refuses)
