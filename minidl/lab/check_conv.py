"""What is right for a convolution, and how nearly, on random shapes: y, dx and dw, by the formula in float64.

The tests of minidl's own algorithms, and `check.py` for those of users, draw their shapes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ops import cpu
from ..ops.common.geometry import ConvGeometry, conv_geometry

DIRECTIONS = ("y", "dx", "dw")
FEW_MULTIPLICATIONS, MULTIPLICATIONS = 2e4, 3e8    # of a random shape at most: for the emulator, and for a GPU
ELEMENTS = 4_000_000                       # of an array of a random shape at most

# (kh, kw, sh, sw): few, because some algorithms compile a kernel for each
WINDOWS = [(1, 1, 1, 1), (1, 1, 2, 2), (2, 3, 1, 1), (3, 3, 1, 1), (3, 3, 2, 2), (4, 2, 3, 1), (3, 5, 1, 2),
           (5, 5, 1, 1), (5, 5, 2, 3), (7, 7, 3, 3), (8, 8, 1, 1), (8, 8, 2, 2), (1, 6, 1, 1)]
# The papers' layers, (c, h, w), m, (kh, kw), padding: LeNet-5's C1, C3 and C5, and the 2009 report's
LAYERS = [((1, 32, 32), 6, (5, 5), 0), ((6, 14, 14), 16, (5, 5), 0), ((16, 5, 5), 120, (5, 5), 0),
          ((3, 32, 32), 64, (8, 8), ((4, 3), (4, 3)))]
# Shapes that are easily forgotten, x, w, stride, padding: odd ones, one window, padding that differs, no images
ALWAYS: list[tuple[Any, ...]] = [
    ((2, 3, 9, 8), (4, 3, 3, 3), 1, 0), ((3, 2, 11, 9), (5, 2, 3, 5), (2, 1), ((1, 2), (4, 0))),
    ((5, 2, 6, 6), (3, 2, 6, 6), 1, 0), ((1, 1, 1, 1), (1, 1, 1, 1), 1, 0), ((2, 5, 20, 19), (3, 5, 2, 2), 1, 1),
    ((0, 2, 5, 5), (3, 2, 3, 3), 1, 1)]

# Relative error of a rounded operand; for 3xtf32 that of the products and remainders that it leaves out.
ROUNDING = {"fp32": 0.0, "3xtf32": 2.0**-22, "tf32": 2.0**-11, "bf16": 2.0**-8}


# ---------------------------------------------------------------- what is right, and how nearly
class Problem(NamedTuple):
    """A shape's arrays; the exact result of each direction, and the sum of the squares of its products."""

    g: ConvGeometry
    x: np.ndarray
    w: np.ndarray
    b: np.ndarray | None
    gy: np.ndarray
    exact: dict[str, np.ndarray]
    squares: dict[str, np.ndarray]

    def length(self, direction: str) -> int:
        """The number of products in one sum."""
        g = self.g
        return {"y": g.c * g.kh * g.kw + 1, "dx": g.m * g.kh * g.kw, "dw": g.n * g.oh * g.ow}[direction]

    def inputs(self, direction: str) -> tuple[np.ndarray | None, ...]:
        """What a direction takes before g."""
        return {"y": (self.x, self.w, self.b), "dx": (self.gy, self.w), "dw": (self.gy, self.x)}[direction]

    def on_cuda(self, direction: str) -> list[Any]:
        """The same on the GPU."""
        import cupy

        return [None if a is None else cupy.asarray(a) for a in self.inputs(direction)]

    def bound(self, direction: str, precision: str = "fp32", spread: bool = False) -> np.ndarray:
        """How far each element of a result may be from the exact one. spread: if errors do not come from an element's
        own products alone, see `spread_bound`."""
        most = product_bound(precision, self.length(direction), self.squares[direction], self.exact[direction],
                             self.x.dtype.type)
        return most + spread_bound(direction, self.x, self.w, self.gy) if spread else most


def solved(g: ConvGeometry, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, gy: np.ndarray) -> Problem:
    """The Problem of these arrays; g names an algorithm of the CPU."""
    problem = Problem(g, x, w, b, gy, {}, {})
    calls: dict[str, Callable[..., np.ndarray]] = {"y": cpu.conv2d, "dx": cpu.conv2d_grad_x, "dw": cpu.conv2d_grad_w}
    for direction, call in calls.items():
        inputs = [None if a is None else a.astype(float) for a in problem.inputs(direction)]
        problem.exact[direction] = call(*inputs, g)
        problem.squares[direction] = call(*[None if a is None else a * a for a in inputs], g)
    return problem


def drawn(g: ConvGeometry, seed: int, dtype: type[np.float32 | np.float64]) -> Problem:
    """A Problem of normal numbers, with a bias if the seed is odd."""
    rng = np.random.default_rng(seed)
    x, w, b, gy = (rng.standard_normal(shape, dtype) for shape in
                   ((g.n, g.c, g.h, g.w), (g.m, g.c, g.kh, g.kw), (g.m,), (g.n, g.m, g.oh, g.ow)))
    return solved(g, x, w, b if seed % 2 else None, gy)


def product_bound(precision: str, length: int, squares: np.ndarray, exact: np.ndarray,
                  dtype: type = np.float32) -> np.ndarray:
    """How far a sum of K = `length` products of operands of random signs may be from the exact one.

    Q is the root of the sum of the products' squares. A sum of k of the products is about Q sqrt(k/K) + |exact| k/K.
    Rounding it errs by at most eps/2 of that, with random sign. So all K roundings, in whatever order, err by about
    eps/4 sqrt(K) (Q + |exact|). An error of eight times that is not chance. This bound
    still shows a single product that is missing or doubled, about Q/sqrt(K), for any K below a million. An element
    without products must be exact.

    Rounding operands to u changes a product by at most 2 u of it, with random sign, and the sum by about u Q. Again the
    bound is eight times that. Tensor cores round toward zero after every 8 products, in 3xtf32 three times. Such errors
    have one sign, and each is at most eps (Q + |exact|).
    """
    eps, spread = float(np.finfo(dtype).eps), np.sqrt(squares)
    steps = 0.0 if precision == "fp32" else 3 / 8 * length
    return 8 * ROUNDING[precision] * spread + eps * (2 * length ** 0.5 + steps) * (spread + np.abs(exact))


def spread_bound(direction: str, x: np.ndarray, w: np.ndarray, gy: np.ndarray) -> np.ndarray:
    """How far an element may be from the exact one because of its neighbours, if they are transformed together.

    Each of the three transforms has an error of about eps/2 of the norm of what it transforms, spread evenly (their
    sizes count by the root of a logarithm). So an element errs by a share of S = root of the sum, over channels (for
    dw: images), of |x|^2 |w|^2, whole maps and filters. Of 5,400 results of random shapes the largest share was 10 eps;
    16 are allowed. S is some ten thousands at most if a product is about 1: a missing product still shows.
    """
    of_x, of_w, of_gy = (np.square(a.astype(float)).sum((2, 3)) for a in (x, w, gy))        # (n,c), (m,c), (n,m)
    squares = {"y": lambda: of_x @ of_w.T, "dx": lambda: of_gy @ of_w, "dw": lambda: of_gy.T @ of_x}[direction]()
    return 16 * float(np.finfo(x.dtype).eps) * np.sqrt(squares)[:, :, None, None]


def used(got: np.ndarray, exact: np.ndarray, most: np.ndarray) -> float:
    """The largest error as a share of its tolerance; infinite for a NaN, and for an error if the tolerance is 0."""
    if not exact.size:
        return 0.0
    error = np.abs(got - exact)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(error == 0, 0.0, error / most)
    return float(np.nan_to_num(share, nan=np.inf).max())


# ---------------------------------------------------------------- shapes
def random_shape(rng: np.random.Generator, windows: Sequence[tuple[int, ...]] = WINDOWS,
                 multiplications: float = MULTIPLICATIONS) -> ConvGeometry | None:
    """Odd sizes, few and many channels and filters, asymmetric padding; None if it is too large or nothing fits."""
    def log_uniform(least: int, most: int) -> int:
        return int(least * ((most + 1) / least) ** rng.random())

    n = int(rng.choice([1, 2, 127, 129, log_uniform(3, 70)]))
    padding: object
    if rng.random() < 0.12:
        (c, h, w), m, (kh, kw), padding = LAYERS[rng.integers(len(LAYERS))]
        n, m = log_uniform(1, 130), log_uniform(1, m)
        sh = sw = 1
    else:
        kh, kw, sh, sw = windows[int(rng.integers(len(windows)))]
        c, m, h, w = log_uniform(1, 70), log_uniform(1, 130), log_uniform(1, 48), log_uniform(1, 48)
        top, left = int(rng.integers(0, kh)), int(rng.integers(0, kw))
        padding = [0, ((top, int(rng.integers(0, kh))), (left, int(rng.integers(0, kw)))), (top, left)][rng.integers(3)]
    try:
        g = conv_geometry((n, c, h, w), (m, c, kh, kw), None, (sh, sw), padding, "gemm")
    except ValueError:                     # the window is larger than the padded image
        return None
    largest = max(n * c * h * w, m * c * kh * kw, n * m * g.oh * g.ow)
    return g if n * m * c * g.oh * g.ow * kh * kw <= multiplications and largest <= ELEMENTS else None


def random_shapes(seed: int, count: int, windows: Sequence[tuple[int, ...]] = WINDOWS,
                  multiplications: float = MULTIPLICATIONS) -> Iterator[ConvGeometry]:
    """`count` shapes that fit."""
    rng = np.random.default_rng(seed)
    while count:
        g = random_shape(rng, windows, multiplications)
        if g is not None:
            yield g
            count -= 1
