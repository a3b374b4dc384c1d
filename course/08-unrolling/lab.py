"""Lab 8: the launches that make a convolution of the kernels of lab.cu."""

THREADS, TILE = 256, 16                    # TILE: as in lab.cu


def blocks(count: int, threads: int) -> int:
    """How many blocks have at least `count` threads."""
    # TODO 3: round up
    raise NotImplementedError("return count / threads, rounded up, in whole numbers")


def convolve(launch, x, w, y, g):
    """y (n,m,oh,ow) of images x (n,c,h,w) and filters w (m,c,kh,kw), without padding; y is there, but not set.

    launch("kernel", grid, block, argument, ...) launches a kernel of lab.cu on arrays and ints. Grid and block are an
    int each, or a tuple (x, y, z). launch.empty(shape) is an array on the GPU, not set, which kernels alone write.
    x[0] is the first image, y[0] its outputs. g has the sizes: g.n g.c g.h g.w g.m g.kh g.kw g.oh g.ow.
    """
    # TODO 4: for each image unroll it, then multiply the filters (m rows) by it; one unrolled matrix is enough for all
    raise NotImplementedError("launch unroll and tiled_product for each image")
