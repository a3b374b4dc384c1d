"""Lab 8: the launches that make a convolution of the kernels of lab.cu."""

THREADS, TILE = 256, 16                    # TILE: as in lab.cu


def blocks(count: int, threads: int) -> int:
    """How many blocks have at least `count` threads."""
    return -(-count // threads)


def convolve(launch, x, w, y, g):
    """y (n,m,oh,ow) of images x (n,c,h,w) and filters w (m,c,kh,kw), without padding; y is there, but not set.

    launch("kernel", grid, block, argument, ...) launches a kernel of lab.cu on arrays and ints. Grid and block are an
    int each, or a tuple (x, y, z). launch.empty(shape) is an array on the GPU, not set, which kernels alone write.
    x[0] is the first image, y[0] its outputs. g has the sizes: g.n g.c g.h g.w g.m g.kh g.kw g.oh g.ow.
    """
    rows, columns = g.c * g.kh * g.kw, g.oh * g.ow
    u = launch.empty((rows, columns))
    for n in range(g.n):
        launch("unroll", blocks(g.c * columns, THREADS), THREADS, x[n], u, g.c, g.h, g.w, g.kh)
        grid = blocks(columns, TILE), blocks(g.m, TILE)
        launch("tiled_product", grid, (TILE, TILE), w, u, y[n], g.m, rows, columns)
