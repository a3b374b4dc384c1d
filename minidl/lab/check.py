"""Check kernels of one's own against the op that they compute, in float64, on random shapes and in each direction.

On the emulated GPU or on a real one. What is right comes from the primitives of the CPU. The tests of minidl's own
kernels take their shapes and bounds from here.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ..core import device as devices
from ..ops import cpu
from ..ops.common.conv.own import KINDS, REGISTERED, OwnConv, Sizes
from ..ops.common.geometry import ConvGeometry, conv_geometry, pool_geometry

MAX_FAILURES = 4                           # after which a check ends
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
# The same of others: x and outputs of a linear layer; x, window, stride and padding of a pooling; x
LINEAR = [((1, 1), 1), ((2, 3), 4), ((5, 1), 7), ((33, 65), 17), ((0, 3), 2), ((1, 120), 84)]
POOLINGS = [((2, 3, 8, 8), 2, None, 0), ((1, 1, 1, 1), 1, None, 0), ((3, 2, 11, 9), (3, 2), (2, 1), 0),
            ((2, 1, 7, 7), 3, 2, 1), ((0, 2, 4, 4), 2, None, 0), ((1, 5, 6, 9), (2, 3), None, ((1, 0), (0, 2)))]
ELEMENTWISE = [(257,), (1,), (3, 5, 7), (0, 4)]

# Relative error of a rounded operand; for 3xtf32 that of the products and remainders that it leaves out.
ROUNDING = {"fp32": 0.0, "3xtf32": 2.0**-22, "tf32": 2.0**-11, "bf16": 2.0**-8}


class Seen(NamedTuple):
    """What a check saw of a direction: cases compared, cases refused, the largest error as a share of its tolerance,
    and cases whose bits differ from run to run, within the tolerance, as sums by atomics do."""

    compared: int
    refused: int
    tolerance_used: float
    differing: int = 0


class Case(NamedTuple):
    """Sizes, or None if the arrays have them; what a message calls the case; by direction the arrays that a launcher
    takes, the exact result, and how far each element may be from it."""

    g: Sizes
    what: str
    dtype: np.dtype
    inputs: dict[str, tuple[Any, ...]]
    exact: dict[str, np.ndarray]
    bound: dict[str, np.ndarray]


Compute = Callable[[str, Sizes, tuple[Any, ...]], tuple[np.ndarray, bool]]     # of direction, g and the arrays before g


def check_conv(name: str, *, shapes: int = 20, seed: int = 0, device: str = "emulated") -> dict[str, Seen]:
    """Compare an algorithm that `register_conv` made with the formula in float64; returns what was seen by direction.

    device: "emulated", on the CPU (Linux, g++), where every access to memory is checked, or "cuda". shapes: the number
    of random ones, decided by `seed`; a few that are easily forgotten are added. float32, and if the kernels use REAL,
    every fourth case also in float64. Threads in another order, and on a GPU a second run, must give the same bits, or
    with atomics results as near. Kernels without bias get cases without one.

    Raises AssertionError with the first failures, each with its direction and sizes, and if a direction refused all
    cases; ValueError for a name that is not registered, and another device.
    """
    return check(name, "conv2d", shapes=shapes, seed=seed, device=device, caller="check_conv")


def check(name: str, kind: str, *, shapes: int = 20, seed: int = 0, device: str = "emulated",
          caller: str = "check") -> dict[str, Seen]:
    """The same of kernels of any kind: "conv2d", "linear", "max_pool2d", "avg_pool2d", "relu", "sigmoid", "tanh"."""
    if kind not in KINDS:
        raise ValueError(f"{caller}: {kind!r} is not one of {', '.join(KINDS)}")
    if name not in REGISTERED[kind]:
        raise ValueError(f"{caller}: {name!r} is not registered ({', '.join(REGISTERED[kind]) or 'nothing is'}); see "
                         "minidl.register_conv")
    if device not in ("emulated", "cuda"):
        raise ValueError(f"{caller}: device is {device!r} but must be 'emulated' or 'cuda'")
    own, failures = REGISTERED[kind][name], list[str]()
    most = FEW_MULTIPLICATIONS if device == "emulated" else MULTIPLICATIONS
    seen = dict.fromkeys(own.launchers, Seen(0, 0, 0.0))
    with ExitStack() as stack:
        compute = _emulated(own, stack) if device == "emulated" else _on_cuda(own)
        for case in _cases(own, shapes, seed, most):
            for direction in seen:
                seen[direction] = _compared(own, direction, case, compute, seen[direction], failures)
            if len(failures) >= MAX_FAILURES:
                raise AssertionError("\n".join([f"{caller}: the first failures are", *failures]))
    failures += [f"{name} {direction}: it refused all {each.refused} cases; nothing was compared"
                 for direction, each in seen.items() if not each.compared]
    if failures:
        raise AssertionError("\n".join([f"{caller}: the failures are", *failures]))
    return seen


# ---------------------------------------------------------------- cases
def _cases(own: OwnConv, shapes: int, seed: int, most: float) -> Iterator[Case]:
    rng, rows, sums = np.random.default_rng(seed), KINDS[own.kind], own.kind in ("conv2d", "linear")
    for at, (g, sizes, what) in enumerate(_sizes(own.kind, shapes, rng, most)):
        for dtype in (np.float32, np.float64)[:2 if own.real and at % 4 == 0 else 1]:
            values: dict[str, Any] = {name: _values(own.kind, rng.standard_normal(shape), at).astype(dtype)
                                      for name, shape in sizes.items()}
            if not own.bias or at % 2 == 0:
                values["b"] = None
            rest, exact, bound, inputs = _given(g), {}, {}, {}
            for direction, row in rows.items():
                names = [name for name in row.takes.split() if name != "g"]
                inputs[direction] = arrays = tuple(values[name] for name in names)
                exact[direction] = row.auto(cpu, *(None if a is None else a.astype(float) for a in arrays), *rest)
                # x itself decides where a maximum is read
                squares = row.auto(cpu, *(None if a is None else a.astype(float) ** (
                    1 if name in "xy" and own.kind == "max_pool2d" else 2) for name, a in zip(names, arrays)), *rest)
                factor = values["gy" if direction == "dw" else "w"] if sums else None
                length = 16 if factor is None else factor.size // factor.shape[direction != "y"] + 1
                bound[direction] = product_bound("fp32", length, np.abs(squares), exact[direction], dtype)
                bound[direction] = bound[direction] + np.finfo(dtype).tiny       # below it floats have fewer digits
                if direction == "y":
                    values["y"] = exact["y"].astype(dtype)
                    values["gy"] = rng.standard_normal(exact["y"].shape).astype(dtype)
            yield Case(g._replace(algorithm=own.name) if isinstance(g, ConvGeometry) else g,
                       f"{np.dtype(dtype)} {what}{' with a bias' * (values.get('b') is not None)}", np.dtype(dtype),
                       inputs, exact, bound)


def _values(kind: str, normal: np.ndarray, at: int) -> np.ndarray:
    """What case number `at` has in place of standard normal numbers. Of poolings and activations each third case has
    large ones, beyond where exp overflows, and each third many zeros and equal numbers, as after a ReLU."""
    if kind in ("conv2d", "linear"):
        return normal
    return (100 * normal, normal, np.maximum(np.rint(normal), 0))[at % 3]


def _sizes(kind: str, shapes: int, rng: np.random.Generator, most: float) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """Sizes for a launcher, or None; the shapes of the arrays by name; and what a message says of them."""
    def below(limit: int) -> int:
        return int((limit + 1) ** rng.random())

    if kind == "conv2d":
        geometries = [conv_geometry(x, w, None, stride, padding, "gemm") for x, w, stride, padding in ALWAYS]
        geometries += random_shapes(rng, shapes, multiplications=most)
        for g in sorted(geometries, key=lambda g: g.n * g.m * g.c * g.oh * g.ow * g.kh * g.kw):    # small ones first
            sizes = {"x": (g.n, g.c, g.h, g.w), "w": (g.m, g.c, g.kh, g.kw), "b": (g.m,)}
            yield g, sizes, (f"x {sizes['x']} w {sizes['w']} stride {(g.sh, g.sw)} padding "
                             f"{((g.top, g.bottom), (g.left, g.right))}")
    elif kind == "linear":
        drawn = [((below(130), below(130)), below(130)) for _ in range(shapes)]
        for (n, inputs), outputs in LINEAR + [each for each in drawn if each[0][0] * each[0][1] * each[1] <= most]:
            sizes = {"x": (n, inputs), "w": (outputs, inputs), "b": (outputs,)}
            yield None, sizes, f"x {sizes['x']} w {sizes['w']}"
    elif kind.endswith("pool2d"):
        windows = [(below(4), below(4)) for _ in range(shapes)]
        poolings: list[tuple[Any, ...]] = POOLINGS + [
            ((below(4), below(5), kh + below(14), kw + below(14)), (kh, kw), (below(3), below(3)),
             (below(kh) - 1, below(kw) - 1)) for kh, kw in windows]
        for x, size, stride, padding in poolings:
            pool = pool_geometry("check", x, size, stride, padding)
            yield pool, {"x": x}, f"x {x} window {(pool.kh, pool.kw)} stride {(pool.sh, pool.sw)} padding {padding}"
    else:
        for shape in ELEMENTWISE + [(below(20), below(300)) for _ in range(shapes)]:
            yield None, {"x": shape}, f"x {shape}"


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


def random_shapes(seed: int | np.random.Generator, count: int, windows: Sequence[tuple[int, ...]] = WINDOWS,
                  multiplications: float = MULTIPLICATIONS) -> Iterator[ConvGeometry]:
    """`count` shapes that fit."""
    rng = np.random.default_rng(seed)
    drawn = (random_shape(rng, windows, multiplications) for _ in itertools.count())
    return itertools.islice((g for g in drawn if g is not None), count)


# ---------------------------------------------------------------- how nearly
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


def used(got: np.ndarray, exact: np.ndarray, most: np.ndarray) -> float:
    """The largest error as a share of its tolerance; infinite for a NaN, and for an error if the tolerance is 0."""
    if not exact.size:
        return 0.0
    error = np.abs(got - exact)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(error == 0, 0.0, error / most)
    return float(np.nan_to_num(share, nan=np.inf).max())


# ---------------------------------------------------------------- comparing
def _compared(own: OwnConv, direction: str, case: Case, compute: Compute, seen: Seen,
              failures: list[str]) -> Seen:
    """What was seen of a direction, with one more case."""
    if own.refuses(direction, case.g, case.dtype):
        return seen._replace(refused=seen.refused + 1)
    share, differs = 0.0, False
    try:
        got, differs = compute(direction, case.g, case.inputs[direction])
        share = used(got, case.exact[direction], case.bound[direction])
        if unset := int(np.isnan(got).sum()):
            raise AssertionError(f"{unset} of {got.size} elements are not written, or NaN")
        if share > 1:
            raise AssertionError(f"an error is {share:.3g} times its tolerance")
    except AssertionError as error:
        failures.append(f"{own.name} {direction} {case.what}: {error if str(error) else _asserted(error)}")
    return Seen(seen.compared + 1, seen.refused, max(seen.tolerance_used, share), seen.differing + differs)


def _asserted(error: AssertionError) -> str:
    """The line of an assertion that gives no reason."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (f"{where.filename.rpartition('/')[2]}:{where.lineno}: {where.line}; if it cannot be computed, say so by "
            "refuses=, a function of (direction, g, dtype) that returns the reason")


def _emulated(own: OwnConv, stack: ExitStack) -> Compute:
    from .emulator.conv import Emulated, Kernels

    kernels = stack.enter_context(Kernels(own))

    def compute(direction: str, g: Sizes, inputs: tuple[Any, ...]) -> tuple[np.ndarray, bool]:
        launch = Emulated(kernels, inputs[0].dtype)
        copies = [None if a is None else a.copy() for a in inputs]
        result = own.run(direction, launch, *copies, *_given(g))
        changed = any(a is not None and a.tobytes() != b.tobytes() for a, b in zip(copies, inputs) if b is not None)
        if launch.faults or changed:
            raise AssertionError("; ".join(launch.faults[:2]) or "it writes into its inputs")
        return np.asarray(result), bool(launch.notes)
    return compute


def _given(g: Sizes) -> tuple[Any, ...]:
    return () if g is None else (g,)


def _on_cuda(own: OwnConv) -> Compute:
    devices.resolve("cuda")                # says what is missing
    import cupy

    from ..ops.cuda.conv.own import OnCuda

    class Unset(OnCuda):
        """What a kernel leaves unwritten is NaN."""

        def empty(self, shape: tuple[int, ...]) -> Any:
            return cupy.full(shape, np.nan, self.dtype)

    def compute(direction: str, g: Sizes, inputs: tuple[Any, ...]) -> tuple[np.ndarray, bool]:
        arrays = [None if a is None else cupy.asarray(a) for a in inputs]
        results: list[np.ndarray] = [own.run(direction, Unset(own, inputs[0].dtype), *arrays, *_given(g)).get()
                                     for _ in range(2)]
        differs = results[0].tobytes() != results[1].tobytes()
        if differs and "atomic" not in own.text:
            raise AssertionError("two runs differ")
        return results[0], differs
    return compute
