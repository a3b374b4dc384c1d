"""Check convolution algorithms against the formula in float64, on random shapes: y, dx and dw.

`check_conv` does so for an algorithm of one's own, on the emulated GPU or on a real one. The tests of minidl's own
algorithms draw their shapes here, and take from here what is right and how nearly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ..core import device as devices
from ..ops import cpu
from ..ops.common.conv.own import OWN, OwnConv
from ..ops.common.geometry import ConvGeometry, conv_geometry

DIRECTIONS = ("y", "dx", "dw")
FEW_MULTIPLICATIONS, MULTIPLICATIONS = 2e4, 3e8    # of a random shape at most: for the emulator, and for a GPU
MAX_FAILURES = 4                           # after which a check ends
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

# Relative error of a rounded operand; of 3xtf32 the products and remainders that it leaves away.
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
        """How far each element of a result may be from the exact one. spread: where errors are not of an element's own
        products alone, see `spread_bound`."""
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
    """A Problem of normal numbers, where the seed is odd with a bias."""
    rng = np.random.default_rng(seed)
    x, w, b, gy = (rng.standard_normal(shape, dtype) for shape in
                   ((g.n, g.c, g.h, g.w), (g.m, g.c, g.kh, g.kw), (g.m,), (g.n, g.m, g.oh, g.ow)))
    return solved(g, x, w, b if seed % 2 else None, gy)


def product_bound(precision: str, length: int, squares: np.ndarray, exact: np.ndarray,
                  dtype: type = np.float32) -> np.ndarray:
    """How far a sum of K = `length` products of operands of random signs may be from the exact one.

    Q is the root of the sum of the products' squares. A sum of k of the products is about Q sqrt(k/K) + |exact| k/K,
    and rounding it errs by at most eps/2 of that, with random sign: all K roundings, in whatever order, by about
    eps/4 sqrt(K) (Q + |exact|). Eight times that is not chance; and it still shows a single product that is missing or
    doubled, about Q/sqrt(K), for any K below a million. Where no product goes, nothing may err.

    Rounding operands to u changes a product by at most 2 u of it, with random sign: the sum by about u Q, and again
    the bound is eight times that. Tensor cores round toward zero after every 8 products, in 3xtf32 thrice: such errors
    have one sign, at most eps (Q + |exact|) each.
    """
    eps, spread = float(np.finfo(dtype).eps), np.sqrt(squares)
    steps = 0.0 if precision == "fp32" else 3 / 8 * length
    return 8 * ROUNDING[precision] * spread + eps * (2 * length ** 0.5 + steps) * (spread + np.abs(exact))


def spread_bound(direction: str, x: np.ndarray, w: np.ndarray, gy: np.ndarray) -> np.ndarray:
    """How far an element may be from the exact one because of its neighbours, where they are transformed together.

    A transform's error has the norm of what is transformed, and is spread over it evenly, about eps/2 of it for each of
    the three on the way (their sizes count by the root of a logarithm). So an element errs by a share of
    S = root of the sum, over channels (of dw: images), of |x|^2 |w|^2, whole maps and filters. Of 5,400 results of
    random shapes the largest share was 10 eps; 16 are allowed. S is some ten thousands at most where a product is
    about 1: one that is missing still shows.
    """
    of_x, of_w, of_gy = (np.square(a.astype(float)).sum((2, 3)) for a in (x, w, gy))        # (n,c), (m,c), (n,m)
    squares = {"y": lambda: of_x @ of_w.T, "dx": lambda: of_gy @ of_w, "dw": lambda: of_gy.T @ of_x}[direction]()
    return 16 * float(np.finfo(x.dtype).eps) * np.sqrt(squares)[:, :, None, None]


def used(got: np.ndarray, exact: np.ndarray, most: np.ndarray) -> float:
    """The largest error as a share of its tolerance; infinite for a NaN and for an error where none may be."""
    if not exact.size:
        return 0.0
    error = np.abs(got - exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / most)
    return float(np.nan_to_num(share, nan=np.inf).max())


# ---------------------------------------------------------------- shapes
def random_shape(rng: np.random.Generator, windows: Sequence[tuple[int, ...]] = WINDOWS,
                 multiplications: float = MULTIPLICATIONS) -> ConvGeometry | None:
    """Odd sizes, few and many channels and filters, asymmetric padding; None where it is too large or nothing fits."""
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
    """So many that fit."""
    rng = np.random.default_rng(seed)
    while count:
        g = random_shape(rng, windows, multiplications)
        if g is not None:
            yield g
            count -= 1


# ---------------------------------------------------------------- an algorithm of one's own
class Seen(NamedTuple):
    """What a check saw of a direction: cases compared, cases refused, the largest error as a share of its tolerance."""

    compared: int
    refused: int
    tolerance_used: float


Compute = Callable[[str, ConvGeometry, tuple[Any, ...]], np.ndarray]       # of direction, g and the arrays before g


def check_conv(name: str, *, shapes: int = 20, seed: int = 0, device: str = "emulated") -> dict[str, Seen]:
    """Compare an algorithm that `register_conv` made with the formula in float64; returns what was seen by direction.

    device: "emulated", on the CPU (Linux, g++), where every access to memory is looked at, or "cuda". shapes: random
    ones, decided by `seed`, beside a few that are easily forgotten; float32, and where the kernels are of REAL each
    fourth in float64, too. Threads in another order, and on a GPU a second run, must give the same bits.

    Raises AssertionError with the first failures, each with its direction and sizes, and where a direction was refused
    all cases; ValueError for a name that is not registered, and another device.
    """
    if name not in OWN:
        raise ValueError(f"check_conv: {name!r} is not registered ({', '.join(OWN) or 'nothing is'}); see "
                         "minidl.register_conv")
    if device not in ("emulated", "cuda"):
        raise ValueError(f"check_conv: device is {device!r} but must be 'emulated' or 'cuda'")
    own, failures = OWN[name], list[str]()
    most = FEW_MULTIPLICATIONS if device == "emulated" else MULTIPLICATIONS
    geometries = [conv_geometry(x, w, None, stride, padding, "gemm") for x, w, stride, padding in ALWAYS]
    geometries += random_shapes(seed, shapes, multiplications=most)
    geometries.sort(key=lambda g: g.n * g.m * g.c * g.oh * g.ow * g.kh * g.kw)       # a failure is of a small shape
    seen = dict.fromkeys(own.launchers, Seen(0, 0, 0.0))
    with ExitStack() as stack:
        compute = _emulated(own, stack) if device == "emulated" else _on_cuda(own)
        cases = ((at, g, dtype) for at, g in enumerate(geometries)
                 for dtype in (np.float32, np.float64)[:2 if own.real and at % 4 == 0 else 1])
        for at, g, dtype in cases:
            problem = drawn(g, seed + at, dtype)
            for direction in seen:
                seen[direction] = _compared(own, direction, problem, compute, seen[direction], failures)
            if len(failures) >= MAX_FAILURES:
                raise AssertionError("\n".join(["check_conv: the first failures are", *failures]))
    failures += [f"{name} {direction}: it refused all {each.refused} cases; nothing was compared"
                 for direction, each in seen.items() if not each.compared]
    if failures:
        raise AssertionError("\n".join(["check_conv: the failures are", *failures]))
    return seen


def _compared(own: OwnConv, direction: str, problem: Problem, compute: Compute, seen: Seen,
              failures: list[str]) -> Seen:
    """What was seen of a direction, with one more case."""
    g, dtype = problem.g._replace(algorithm=own.name), problem.x.dtype
    if own.refuses(direction, g, dtype):
        return seen._replace(refused=seen.refused + 1)
    padding = (g.top, g.bottom), (g.left, g.right)
    what = (f"{own.name} {direction} {dtype} x {g[:4]} w {(g.m, g.c, g.kh, g.kw)} stride {(g.sh, g.sw)} padding "
            f"{padding}{' with a bias' * (direction == 'y' and problem.b is not None)}")
    inputs = problem.inputs(direction)
    share = 0.0
    try:
        got = compute(direction, g, inputs)
        share = used(got, problem.exact[direction], problem.bound(direction))
        if unset := int(np.isnan(got).sum()):
            raise AssertionError(f"{unset} of {got.size} elements are not written, or NaN")
        if share > 1:
            raise AssertionError(f"an error is {share:.3g} times its tolerance")
    except AssertionError as error:
        failures.append(f"{what}: {error}")
    return Seen(seen.compared + 1, seen.refused, max(seen.tolerance_used, share))


def _emulated(own: OwnConv, stack: ExitStack) -> Compute:
    from .emulator.conv import Emulated, Kernels

    kernels = stack.enter_context(Kernels(own))

    def compute(direction: str, g: ConvGeometry, inputs: tuple[Any, ...]) -> np.ndarray:
        launch = Emulated(kernels, inputs[0].dtype)
        copies = [None if a is None else a.copy() for a in inputs]
        result = own.run(direction, launch, *copies, g)
        changed = any(a is not None and a.tobytes() != b.tobytes() for a, b in zip(copies, inputs) if b is not None)
        if launch.faults or changed:
            raise AssertionError("; ".join(launch.faults[:2]) or "it writes into its inputs")
        return np.asarray(result)
    return compute


def _on_cuda(own: OwnConv) -> Compute:
    devices.resolve("cuda")                # says what is missing
    import cupy

    from ..ops.cuda.conv.own import OnCuda

    class Unset(OnCuda):
        """What a kernel leaves unwritten is NaN."""

        def empty(self, shape: tuple[int, ...]) -> Any:
            return cupy.full(shape, np.nan, self.dtype)

    def compute(direction: str, g: ConvGeometry, inputs: tuple[Any, ...]) -> np.ndarray:
        arrays = [None if a is None else cupy.asarray(a) for a in inputs]
        results: list[np.ndarray] = [own.run(direction, Unset(own, inputs[0].dtype), *arrays, g).get()
                                     for _ in range(2)]
        if results[0].tobytes() != results[1].tobytes():
            raise AssertionError("two runs differ")
        return results[0]
    return compute
