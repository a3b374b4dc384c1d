"""Activations beyond those of the papers: their values and gradients, in NumPy and in CUDA C++, one row each.

`MORE` are rows of ACTIVATIONS (primitives.py): their gradient is a function of the result y, so that kernels which
compute y fuse them. `OF_X` have a gradient that needs x; fewer kernels fuse these. `LOSSES` are losses of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Array = np.ndarray


class Activation(NamedTuple):
    """An activation y of x, elementwise, and its gradient, as NumPy and as CUDA C++ compute them."""

    value: Callable[[Array, Array], Any]               # (y, x): fills y
    grad: Callable[[Array, Array, Array], Any]         # (gx, gy, y): fills gx with gy * dy/dx; of OF_X it is given x
    cuda_value: str                                    # of REAL x
    cuda_grad: str                                     # of REAL gy, y; of OF_X of gy, x
    # dy/dx of a Tensor y, of OF_X of x, by operators of Tensors: for second derivatives, which None refuses. "step": it
    # is constant in pieces, so that the second is 0
    derivative: Callable[..., Any] | Literal["step"] | None = None


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Memory for temporary results. ops/cpu puts a function for its threads' memory here, since new pages cost more
    than filling them."""
    return np.empty(shape, dtype)


def choose(mask: Array, x: Array | float, y: Array | float, out: Array | None = None) -> Array:
    """x where the mask holds, y elsewhere; arrays of one dtype and of the mask's shape, or numbers.

    By bits: np.where and np.copyto branch at each element, and take ten times as long if a mask changes often.
    """
    dtype = np.result_type(x, y)
    bits = np.dtype(f"i{dtype.itemsize}")
    first, second = (np.asarray(each, dtype).view(bits) for each in (x, y))
    taken, result = scratch("taken", mask.shape, bits), None if out is None else out.view(bits)
    np.copyto(taken, np.negative(mask.view(np.int8)))                    # all bits, or none
    if second.ndim == 0 and second == 0:
        return np.bitwise_and(taken, first, out=result).view(dtype)
    taken &= np.bitwise_xor(first, second, out=scratch("differ", mask.shape, bits))
    return np.bitwise_xor(taken, second, out=result).view(dtype)


def keep(x: Array, mask: Array, out: Array) -> Array:
    """x where the mask holds, else 0: times 0 or 1, as ints, since infinity times 0 would be NaN."""
    bits = f"i{x.itemsize}"
    return np.multiply(x.view(bits), mask, out=out.view(bits))


MIN_CLIPPED = 1 << 12                      # elements: with fewer, a call of clip costs more than it saves


def above(x: Array, low: float, out: Array) -> Array:
    """The larger of x and a number. With a number, clip takes a third of the time of NumPy's maximum."""
    return np.clip(x, low, np.inf, out=out) if x.size >= MIN_CLIPPED else np.maximum(x, low, out=out)


def below(x: Array, high: float, out: Array) -> Array:
    """The smaller of x and a number."""
    return np.clip(x, -np.inf, high, out=out) if x.size >= MIN_CLIPPED else np.minimum(x, high, out=out)


EXP_LIMIT = {np.dtype(each): float(np.log(np.finfo(each).max)) for each in (np.float32, np.float64)}


def over_exp(y: Array, x: Array, above: Array | float) -> None:
    """y = above / (1 + e^-x), without a warning if e^-x is infinite: then y is `above` over infinity."""
    np.negative(x, out=y)
    if np.max(y, initial=0) < EXP_LIMIT[y.dtype]:
        np.exp(y, out=y)
    else:                                  # inf, or NaN
        with np.errstate(over="ignore"):
            np.exp(y, out=y)
    y += 1
    np.divide(above, y, out=y)             # np.reciprocal takes longer


# ---------------------------------------------------------------- the gradient from y
SLOPE = 0.01                               # of leaky_relu below 0, as a row of MORE
LINEAR_FROM = 20.0                            # from here on softplus is x, as PyTorch has it


def _leaky_relu(y: Array, x: Array) -> None:
    np.multiply(x, SLOPE, out=y)
    np.maximum(y, x, out=y)


def _leaky_relu_grad(gx: Array, gy: Array, y: Array) -> None:
    np.copyto(gx, y > 0)
    gx *= 1 - SLOPE
    gx += SLOPE                            # 1 where y is above 0
    gx *= gy


def _elu(y: Array, x: Array) -> None:
    np.expm1(below(x, 0, y), out=y)
    y += above(x, 0, scratch("above", x.shape, x.dtype))


def _elu_grad(gx: Array, gy: Array, y: Array) -> None:
    np.fmin(y, 0, out=gx)                  # where y is NaN it passes gy on, as PyTorch's does
    gx += 1
    gx *= gy


def _softplus(y: Array, x: Array) -> None:
    below(x, LINEAR_FROM, y)
    np.exp(y, out=y)
    np.log1p(y, out=y)
    choose(x > LINEAR_FROM, x, y, y)


def _softplus_grad(gx: Array, gy: Array, y: Array) -> None:
    np.negative(y, out=gx)
    np.expm1(gx, out=gx)
    np.negative(gx, out=gx)
    if gx.itemsize > 4:                    # in float32 it is 1 there
        choose(y > LINEAR_FROM, 1, gx, gx)
    gx *= gy


def _hardsigmoid(y: Array, x: Array) -> None:
    np.add(x, 3, out=y)
    y *= 1 / 6
    np.clip(y, 0, 1, out=y)


def _hardsigmoid_grad(gx: Array, gy: Array, y: Array) -> None:
    np.multiply(gy, 1 / 6, out=gx)
    keep(gx, (y > 0) & (y < 1), gx)


MORE = {
    "leaky_relu": Activation(_leaky_relu, _leaky_relu_grad, f"x > (REAL)0 ? x : x * (REAL){SLOPE}",
                             f"y > (REAL)0 ? gy : gy * (REAL){SLOPE}", "step"),
    "elu": Activation(_elu, _elu_grad, "x > (REAL)0 ? x : expm1(x)", "y <= (REAL)0 ? (y + (REAL)1) * gy : gy",
                      lambda y: (y + 1).where(y <= 0, 1)),
    "softplus": Activation(_softplus, _softplus_grad, f"x > (REAL){LINEAR_FROM} ? x : log1p(exp(x))",
                           f"y > (REAL){LINEAR_FROM} ? gy : -expm1(-y) * gy",
                           lambda y: (1 - (-y).exp()).where(y <= LINEAR_FROM, 1)),
    "hardsigmoid": Activation(
        _hardsigmoid, _hardsigmoid_grad, "x <= (REAL)-3 ? (REAL)0 : x >= (REAL)3 ? (REAL)1 : (x + (REAL)3) / (REAL)6",
        "y > (REAL)0 && y < (REAL)1 ? gy / (REAL)6 : (REAL)0", "step"),
}


# ---------------------------------------------------------------- the gradient from x
def _silu(y: Array, x: Array) -> None:
    over_exp(y, x, x)


def _silu_grad(gx: Array, gy: Array, x: Array) -> None:
    s = scratch("sigmoid", x.shape, x.dtype)
    over_exp(s, x, 1)
    np.subtract(1, s, out=gx)
    gx *= x
    gx += 1
    gx *= s
    gx *= gy


# erf(z) = z T(z^2) / U(z^2) below 1, and erfc(z) = exp(-z^2) P(z) / Q(z) beyond, both within 2^-52 (the coefficients of
# S. L. Moshier's Cephes, ndtr.c); the highest power first
_T = (9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
      5.55923013010394962768e4)
_U = (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
      4.92673942608635921086e4)
_P = (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
      1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
      5.57535335369399327526e2)
_Q = (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
      1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y *= x
        y += c
    return y


# In the kernels' float32 the lower tail is t R(t) exp(-x^2 / 2) / 2 with t = 1 / (1 + _NEAR |x|), but for rounding
# within 3.3e-8 of itself: R is fitted to exp(z^2) erfc(z) / t, z = |x| / sqrt 2, by least squares, repeated with
# weights that make the relative error even; the highest power first
_NEAR = 0.45 * math.sqrt(0.5)
_R = (-0.0414001171, 0.190727073, -0.300653714, 0.142471203, -0.0223987082, 0.119964581, 0.175249278, 0.228271948,
      0.253883148, 0.253885321)


# In NumPy's float32 it is exp(-x^2 / 2) P(|x|) / Q(|x|), the lowest power first, but for rounding within
# 2.5e-9 (1 + x^2 / 4) of itself: fitted as R is. One product of matrices gives both, in half the time of R's passes
_P_Q = np.array([(0.50000000, 0.43427162, 0.18001176, 0.039484339, 0.0039307903, 0),
                 (1, 1.6664280, 1.1896382, 0.46092245, 0.098978662, 0.0098529342)], np.float32)
_LARGEST = 40.0                            # where exp(-x^2 / 2) is 0


def _erf(z: Array) -> tuple[Array, Array]:
    """(erf(min(z, 1)), 1 - erf(max(z, 1))) for z from 0 to _LARGEST."""
    inner, far = np.minimum(z, 1), np.maximum(z, 1)
    square = inner * inner
    return (inner * (_polynomial(square, _T) / _polynomial(square, _U)),
            np.exp(-far * far) * (_polynomial(far, _P) / _polynomial(far, _Q)))


# In float32 erf(x) is x A(x^2) / B(x^2) for |x| up to 4, where it is 1, as Eigen has it; the lowest power first
_ERF = np.array([(-1.60960333262415e-02, -2.95459980854025e-03, -7.34990630326855e-04, -5.69250639462346e-05,
                  -2.10102402082508e-06, 2.77068142495902e-08, -2.72614225801306e-10),
                 (-1.42647390514189e-02, -7.37332916720468e-03, -1.68282697438203e-03, -2.13374055278905e-04,
                  -1.45660718464996e-05, 0, 0)], np.float32)


def erf(y: Array, x: Array) -> None:
    """The error function, elementwise."""
    if x.dtype == np.float32:
        powers, both = (scratch(name, (rows, x.size), x.dtype)
                        for name, rows in (("powers", _ERF.shape[1]), ("both", 2)))
        near = np.clip(x.reshape(-1), -4, 4)
        powers[0] = 1
        np.multiply(near, near, out=powers[1])
        for i in range(2, len(powers)):
            np.multiply(powers[i - 1], powers[1], out=powers[i])
        np.matmul(_ERF, powers, out=both)
        both[0] /= both[1]
        np.multiply(both[0].reshape(x.shape), near.reshape(x.shape), out=y)
        np.clip(y, -1, 1, out=y)
        return
    z = np.minimum(np.abs(x), _LARGEST)
    inner, rest = _erf(z)
    np.copysign(choose(z > 1, 1 - rest, inner), x, out=y)


def _tail(x: Array) -> tuple[Array, Array, Array]:
    """(|x|, exp(-x^2 / 2), the probability that a standard normal number is above |x|), with |x| cut to 40."""
    if x.dtype != np.float32:
        near = np.minimum(np.abs(x), _LARGEST)
        z = near * math.sqrt(0.5)
        inner, rest = _erf(z)
        return near, np.exp(near * near * -0.5), choose(z > 1, 0.5 * rest, 0.5 - 0.5 * inner)
    powers, both = (scratch(name, (rows, x.size), x.dtype) for name, rows in (("powers", _P_Q.shape[1]), ("both", 2)))
    both[0], powers[0] = _LARGEST, 1
    near = np.abs(x.reshape(-1), out=powers[1])
    np.minimum(near, both[0], out=near)
    for i in range(2, len(powers)):
        np.multiply(powers[i - 1], near, out=powers[i])
    np.matmul(_P_Q, powers, out=both)
    gaussian = np.multiply(powers[2], -0.5, out=powers[2])
    np.exp(gaussian, out=gaussian)
    tail = np.divide(both[0], both[1], out=both[0])
    tail *= gaussian
    return near.reshape(x.shape), gaussian.reshape(x.shape), tail.reshape(x.shape)


def normal_cdf(x: Array) -> Array:
    """The probability that a standard normal number is below x: (1 + erf(x / sqrt 2)) / 2, exact in its lower tail."""
    tail = _tail(x)[2]
    return choose(x > 0, 1 - tail, tail)


def _gelu(y: Array, x: Array) -> None:
    """max(x, 0) - |x| * the tail: x times normal_cdf(x), on either side of 0"""
    near, _, tail = _tail(x)
    zeros = scratch("zeros", x.shape, x.dtype)
    zeros.fill(0)
    np.maximum(x, zeros, out=y)            # NumPy takes twice as long by a plain 0
    tail *= near
    y -= tail


def _gelu_grad(gx: Array, gy: Array, x: Array) -> None:
    """gy * s for x below 0, gy * (1 - s) above, with s = tail - |x| exp(-x^2 / 2) / root of 2 pi"""
    near, gaussian, share = _tail(x)
    gaussian *= near
    gaussian *= math.sqrt(0.5 / math.pi)
    share -= gaussian
    choose(x > 0, np.subtract(1, share, out=gx), share, gx)
    gx *= gy


CUBIC, RATE = 0.044715, math.sqrt(2 / math.pi)         # Hendrycks and Gimpel 2016, section 2


def _tanh(near: Array, out: Array) -> Array:
    """tanh(RATE (x + CUBIC x^3)), of an x that is cut where its tanh is +-1."""
    np.multiply(near, near, out=out)
    out *= RATE * CUBIC
    out += RATE
    out *= near
    return np.tanh(out, out=out)


def _gelu_tanh(y: Array, x: Array) -> None:
    _tanh(np.clip(x, -100, 100, out=scratch("near", x.shape, x.dtype)), y)
    y += 1
    y *= 0.5                               # before x, which may be near the largest number
    y *= x


def _gelu_tanh_grad(gx: Array, gy: Array, x: Array) -> None:
    """gy * ((1 + t) / 2 + x / 2 * (1 - t^2) * RATE (1 + 3 CUBIC x^2))"""
    near = np.clip(x, -100, 100, out=scratch("near", x.shape, x.dtype))
    t = _tanh(near, scratch("tanh", x.shape, x.dtype))
    near *= near
    near *= 3 * RATE * CUBIC
    near += RATE
    np.multiply(t, t, out=gx)
    np.subtract(1, gx, out=gx)
    gx *= x
    gx *= near
    gx += t
    gx += 1
    gx *= 0.5
    gx *= gy


# What the kernels' C++ calls; `reciprocal` is act.cuh's
CUDA_FUNCTIONS = f"""
__device__ __forceinline__ float gaussian(float x) {{ return exp2f(x * x * {-0.5 / math.log(2)!r}f); }}
__device__ __forceinline__ double gaussian(double x) {{ return exp(-0.5 * x * x); }}

__device__ __forceinline__ float normal_cdf(float x) {{
    const float t = reciprocal(1.0f + {_NEAR!r}f * fabsf(x));
    float r = {_R[0]!r}f;
    {" ".join(f"r = r * t + {c!r}f;" for c in _R[1:])}
    const float tail = 0.5f * t * r * gaussian(x);
    return x > 0.0f ? 1.0f - tail : tail;
}}
__device__ __forceinline__ double normal_cdf(double x) {{ return 0.5 * erfc(x * {-math.sqrt(0.5)!r}); }}

"""
_TANH = f"tanh((REAL){RATE!r} * (x + (REAL){CUBIC} * x * x * x))"
_SIGMOID = "(x < (REAL)0 ? exp(x) * reciprocal(exp(x) + (REAL)1) : reciprocal(exp(-x) + (REAL)1))"
# Beyond _LARGEST the tail is 0: times an infinite x it would be NaN
_WITHIN = f"fmin(fmax(x, (REAL){-_LARGEST}), (REAL){_LARGEST})"
OF_X = {
    "silu": Activation(_silu, _silu_grad, f"x * {_SIGMOID}",
                       f"gy * {_SIGMOID} * ((REAL)1 + x * ((REAL)1 - {_SIGMOID}))",
                       lambda x: (s := x.sigmoid()) * (1 + x * (1 - s))),
    "gelu": Activation(_gelu, _gelu_grad, f"fmax(x, (REAL){-_LARGEST}) * normal_cdf(x)",
                       f"gy * (normal_cdf(x) + {_WITHIN} * (gaussian(x) * (REAL){math.sqrt(0.5 / math.pi)!r}))"),
    "gelu_tanh": Activation(
        _gelu_tanh, _gelu_tanh_grad, f"(REAL)0.5 * x * ((REAL)1 + {_TANH})",
        f"gy * ((REAL)0.5 * ((REAL)1 + {_TANH}) + (REAL)0.5 * x * ((REAL)1 - {_TANH} * {_TANH}) * "
        f"((REAL){RATE!r} * ((REAL)1 + (REAL){3 * CUBIC!r} * fmin(x * x, (REAL)10000))))",
        lambda x: (((t := ((x + x * x * x * CUBIC) * RATE).tanh()) + 1)
                   + x * (1 - t * t) * ((x * x * (3 * CUBIC) + 1) * RATE)) * 0.5),
}


# ---------------------------------------------------------------- losses of pairs
class Loss(NamedTuple):
    """A loss of each pair (x, t), by a number p, in NumPy and in CUDA C++, and its derivatives by x and by t."""

    value: Callable[[Array, Array, Array, float], Any]             # (y, x, t, p): fills y
    derivative_x: Callable[[Array, Array, Array, float], Any]           # (gx, x, t, p): fills gx
    derivative_target: Callable[[Array, Array, Array, float], Any]      # (gt, x, t, p): fills gt
    cuda_value: str                                                # of REAL x, t, p, and d = x - t
    cuda_derivative_x: str
    cuda_derivative_target: str


def _of_difference(value: Callable[[Array, float], Any], derivative: Callable[[Array, float], Any], cuda_value: str,
                   cuda_derivative: str) -> Loss:
    """The row of a loss of d = x - t alone; value(d, p) and derivative(d, p) change d."""
    def fill(y: Array, x: Array, t: Array, p: float) -> None:
        value(np.subtract(x, t, out=y), p)

    def fill_derivative(gx: Array, x: Array, t: Array, p: float) -> None:
        derivative(np.subtract(x, t, out=gx), p)

    def fill_derivative_target(gt: Array, x: Array, t: Array, p: float) -> None:
        fill_derivative(gt, x, t, p)
        np.negative(gt, out=gt)
    return Loss(fill, fill_derivative, fill_derivative_target, cuda_value, cuda_derivative, f"-({cuda_derivative})")


def _huber(d: Array, p: float) -> None:
    size = np.abs(d, out=scratch("size", d.shape, d.dtype))
    below(size, min(p, np.finfo(d.dtype).max), d)      # a finite number: inf - inf is NaN
    size -= np.multiply(d, 0.5, out=scratch("half", d.shape, d.dtype))
    d *= size                              # min(|d|, p) (|d| - min(|d|, p) / 2)


def _bce(y: Array, x: Array, t: Array, p: float) -> None:
    """(max(x, 0) - x t) + log(1 + e^-|x|): the first is 0 where x is sure, and the second less than its rounding"""
    np.abs(x, out=y)
    np.negative(y, out=y)
    np.exp(y, out=y)
    np.log1p(y, out=y)
    product, line = (scratch(name, x.shape, x.dtype) for name in ("product", "line"))
    above(x, 0, line)
    line -= np.multiply(x, t, out=product)
    y += line


def _bce_derivative(gx: Array, x: Array, t: Array, p: float) -> None:
    over_exp(gx, x, 1)
    gx -= t


LOSSES = {
    "mse": _of_difference(lambda d, p: np.multiply(d, d, out=d), lambda d, p: np.multiply(d, 2, out=d), "d * d",
                          "(REAL)2 * d"),
    # NumPy takes ten times as long for signs in place
    "l1": _of_difference(lambda d, p: np.abs(d, out=d), lambda d, p: np.copyto(d, np.sign(d)), "fabs(d)",
                         "d > (REAL)0 ? (REAL)1 : d < (REAL)0 ? (REAL)-1 : d"),
    "huber": _of_difference(_huber, lambda d, p: np.clip(d, -p, p, out=d),
                            "fabs(d) <= p ? d * d * (REAL)0.5 : (fabs(d) - p * (REAL)0.5) * p",
                            "d > p ? p : d < -p ? -p : d"),
    "bce": Loss(_bce, _bce_derivative, lambda gt, x, t, p: np.negative(x, out=gt),
                "(x < (REAL)0 ? (REAL)0 : x) - x * t + log1p(exp(-fabs(x)))", f"{_SIGMOID} - t", "-x"),
}
