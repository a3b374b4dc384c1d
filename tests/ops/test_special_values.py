"""NaN, infinities, zeros of both signs and denormals through the ops, forward and backward, as in PyTorch.

Documented differences: where a filter's NaN or infinity meets zeros around an image (conv2d: PyTorch's own choice
depends on sizes), and max over some axes (of equal values, NaN among them, each gets its share, as in PyTorch's over
all axes). Normalisation: which of NaN and the infinities it is, where it is one (PyTorch computes x * scale + shift,
and so makes NaN of infinities of both signs). Not compared: an infinite gradient of cross_entropy, with which PyTorch
subtracts infinities; here it stays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minidl import Tensor, ops
from minidl.ops.common.curves import normal_cdf

Array = np.ndarray
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.5]
AT_ONCE = 3                                # special values among the inputs at most


def special(shape: tuple[int, ...], trial: int) -> Array:
    """Numbers of which up to AT_ONCE are special ones, at places that the trial decides."""
    rng = np.random.default_rng(trial)
    x = rng.standard_normal(shape).astype(np.float32)
    count = 1 + trial % AT_ONCE
    x.reshape(-1)[rng.choice(x.size, min(count, x.size), replace=False)] = rng.choice(SPECIAL, min(count, x.size))
    return x


LABELS = np.array([1, 0, 3])
# name -> (shapes, in minidl, in PyTorch); each input in turn, and then the gradient, has the special values
OPS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any], Callable[..., Any]]] = {
    **{act: (((3, 4),), getattr(ops, act), lambda F, x, act=act: getattr(F, act)(x))
       for act in (*ops.ACTIVATIONS, "silu")},
    "gelu tanh": (((3, 4),), lambda x: ops.gelu(x, "tanh"), lambda F, x: F.gelu(x, approximate="tanh")),
    "linear": (((3, 4), (2, 4), (2,)), ops.linear, lambda F, x, w, b: F.linear(x, w, b)),
    "conv2d": (((2, 2, 5, 5), (3, 2, 3, 3), (3,)), ops.conv2d, lambda F, x, w, b: F.conv2d(x, w, b)),
    "conv2d stride": (((2, 2, 6, 5), (3, 2, 2, 3), (3,)), lambda x, w, b: ops.conv2d(x, w, b, stride=2),
                      lambda F, x, w, b: F.conv2d(x, w, b, stride=2)),
    "max_pool2d": (((2, 2, 6, 6),), lambda x: ops.max_pool2d(x, size=3, stride=2, padding=1),
                   lambda F, x: F.max_pool2d(x, 3, 2, 1)),
    "max_pool2d tiled": (((2, 2, 4, 4),), lambda x: ops.max_pool2d(x, size=2), lambda F, x: F.max_pool2d(x, 2)),
    "avg_pool2d": (((2, 2, 6, 6),), lambda x: ops.avg_pool2d(x, size=3, stride=2, padding=1),
                   lambda F, x: F.avg_pool2d(x, 3, 2, 1)),
    "max": (((3, 4),), ops.max, lambda F, x: x.max()),
    "sum": (((3, 4),), lambda x: ops.sum(x, axis=0), lambda F, x: x.sum(0)),
    "sum long": (((300, 4),), lambda x: ops.sum(x, axis=0), lambda F, x: x.sum(0)),
    "mean": (((3, 4),), lambda x: ops.mean(x, axis=1), lambda F, x: x.mean(1)),
    "softmax": (((3, 4),), ops.softmax, lambda F, x: F.softmax(x, -1)),
    "log_softmax": (((3, 4),), ops.log_softmax, lambda F, x: F.log_softmax(x, -1)),
    "batch_norm": (((4, 2, 3), (2,), (2,)), lambda x, w, b: ops.batch_norm(x, None, None, w, b, True),
                   lambda F, x, w, b: F.batch_norm(x, None, None, w, b, True)),
    "batch_norm in evaluation": (
        ((4, 2, 3), (2,), (2,)), lambda x, w, b: ops.batch_norm(x, *_moments(Tensor, x.device), w, b),
        lambda F, x, w, b: F.batch_norm(x, *_moments(_torch().tensor, x.device), w, b)),
    "layer_norm": (((4, 5), (5,), (5,)), lambda x, w, b: ops.layer_norm(x, 5, w, b),
                   lambda F, x, w, b: F.layer_norm(x, (5,), w, b)),
    "group_norm": (((3, 4, 3), (4,), (4,)), lambda x, w, b: ops.group_norm(x, 2, w, b),
                   lambda F, x, w, b: F.group_norm(x, 2, w, b)),
    "cross_entropy": (((3, 4),), lambda x: ops.cross_entropy(x, Tensor(LABELS, device=x.device)),
                      lambda F, x: F.cross_entropy(x, _labels())),
}
TRIALS = 60


def _torch() -> Any:
    import torch

    return torch


def _labels() -> Any:
    return _torch().from_numpy(LABELS)


def _moments(make: Callable[..., Any], device: Any) -> list[Any]:
    return [make(np.array(m, np.float32), device=device) for m in ([0.5, -1.0], [2.0, 0.5])]


def minidls(function: Callable[..., Any], arrays: list[Array], gy: Array, device: str = "cpu") -> list[Array]:
    """The result, and the gradients by each input."""
    tensors = [Tensor(a, requires_grad=True, device=device) for a in arrays]
    y = function(*tensors)
    y.backward(Tensor(gy, device=device))
    return [y.numpy(), *(t.grad.numpy() for t in tensors if t.grad is not None)]


def trials(name: str) -> Any:
    """(inputs, gradient) of each trial: what has special values takes turns."""
    shapes, function, _ = OPS[name]
    result = function(*(Tensor(np.ones(shape, np.float32)) for shape in shapes)).shape
    for trial in range(TRIALS):
        arrays = [np.random.default_rng(i).standard_normal(shape).astype(np.float32)
                  for i, shape in enumerate((*shapes, result))]
        which = trial % (len(shapes) if name == "cross_entropy" else len(arrays))
        arrays[which] = special(arrays[which].shape, trial)
        yield arrays[:-1], arrays[-1]


def compare(name: str, arrays: list[Array], gy: Array, found: list[Array], wanted: list[Array],
            device: str = "cpu") -> None:
    """But for a gradient of a convolution where zeros may be met or left out: x's from special filters, and on CUDA the
    filters' from special images."""
    if "_norm" in name:
        for i, (got, want) in enumerate(zip(found, wanted, strict=True)):
            neither = ~(np.isfinite(got) | np.isfinite(want))
            found[i], wanted[i] = np.where(neither, 0, got), np.where(neither, 0, want)
    for special_one, gradient in ((1, 1), (0, 2)) if device == "cuda" else ((1, 1),):
        if "conv2d" in name and not np.isfinite(arrays[special_one]).all():
            finite = np.isfinite(found[gradient]) & np.isfinite(wanted[gradient])
            found[gradient], wanted[gradient] = (np.where(finite, a, 0) for a in (found[gradient], wanted[gradient]))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{name} of {arrays}, gradient {gy}")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OPS)
def test_special_values_as_in_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    _, function, theirs = OPS[name]
    for arrays, gy in trials(name):
        tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
        y = theirs(torch.nn.functional, *tensors)
        y.backward(torch.tensor(gy))
        wanted = [y.detach().numpy(), *(t.grad.numpy() for t in tensors)]
        compare(name, arrays, gy, minidls(function, arrays, gy), wanted)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OPS)
def test_special_values_on_cuda_as_on_the_cpu(name: str) -> None:
    """Denormals are 0 there, where kernels are compiled with -ftz=true: which differs by less than the tolerance."""
    for arrays, gy in trials(name):
        arrays, gy = ([np.where(np.abs(a) < 1e-38, 0, a) for a in (*given,)] for given in (arrays, (gy,)))
        wanted = minidls(OPS[name][1], arrays, gy[0])
        compare(name, arrays, gy[0], minidls(OPS[name][1], arrays, gy[0], "cuda"), wanted, "cuda")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("algorithm", ["direct", "unroll", "gemm"])
def test_a_padded_convolution_passes_special_values_on(value: float, algorithm: str) -> None:
    """Every output whose window meets one, inside the image, is not finite; x's spread no further."""
    x, w = np.ones((2, 1, 5, 5), np.float32), np.ones((2, 1, 3, 3), np.float32)
    for p, q in itertools.product(range(5), range(5)):
        bad = x.copy()
        bad[0, 0, p, q] = value
        y = ops.conv2d(Tensor(bad), Tensor(w), padding=1, algorithm=algorithm).numpy()
        expected = np.zeros((5, 5), bool)
        expected[max(0, p - 1):p + 2, max(0, q - 1):q + 2] = True
        np.testing.assert_array_equal(~np.isfinite(y[0]), [expected, expected])
        assert np.isfinite(y[1]).all()
    w[1, 0, 1, 1] = value                  # the middle: it meets no padding
    y = ops.conv2d(Tensor(x), Tensor(w), padding=1, algorithm=algorithm).numpy()
    assert np.isfinite(y[:, 0]).all()
    np.testing.assert_array_equal(y[:, 1], np.full((2, 5, 5), value))


def test_gelu_of_infinity_is_infinite() -> None:
    """PyTorch's own is that or NaN, depending on sizes."""
    x = np.array([np.inf, 0.0, 1e38, -1e38], np.float32)
    for how in ("none", "tanh"):
        assert ops.gelu(Tensor(x), how).tolist() == [np.inf, 0, x[2], 0]
    for dtype in (np.float32, np.float64):                               # beyond the tail it is the limit
        ends = Tensor(np.array([-np.inf, np.inf], dtype), requires_grad=True)
        y = ops.gelu(ends)
        y.sum().backward()
        assert y.tolist() == [0, np.inf]
        assert ends.grad is not None
        assert ends.grad.tolist() == [0, 1]


NAN = math.nan
ENDS = [-np.inf], [-np.inf, -np.inf], [-np.inf, 1.0], [np.inf, 1.0], [np.inf, -np.inf], [NAN, 1.0]
# name -> for each of ENDS the value and the gradient of y by 1, 2, ...: PyTorch 2.13's
OF_ENDS: dict[str, tuple[Callable[[Tensor], Tensor], list[tuple[Any, list[float]]]]] = {
    "logsumexp": (lambda x: x.logsumexp(0), [(-np.inf, [NAN]), (-np.inf, [NAN, NAN]), (1.0, [0, 1]), (np.inf, [NAN, 0]),
                                             (np.inf, [NAN, 0]), (NAN, [NAN, NAN])]),
    "softmax": (lambda x: ops.softmax(x, axis=0), [
        ([NAN], [NAN]), ([NAN] * 2, [NAN] * 2), ([0, 1], [0, 0]), ([NAN] * 2, [NAN] * 2), ([NAN] * 2, [NAN] * 2),
        ([NAN] * 2, [NAN] * 2)]),
    "log_softmax": (lambda x: ops.log_softmax(x, axis=0), [
        ([NAN], [NAN]), ([NAN] * 2, [NAN] * 2), ([-np.inf, 0], [1, -1]), ([NAN] * 2, [NAN] * 2), ([NAN] * 2, [NAN] * 2),
        ([NAN] * 2, [NAN] * 2)])}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OF_ENDS)
def test_of_infinities_alone(name: str) -> None:
    """A row that is masked out as a whole has the values that PyTorch gives it, and its gradient NaN."""
    function, wanted = OF_ENDS[name]
    for values, (value, gradient) in zip(ENDS, wanted, strict=True):
        x = Tensor(np.array(values), requires_grad=True)
        y = function(x)
        y.backward(Tensor(np.arange(1.0, 1 + y.size).reshape(y.shape)))
        assert x.grad is not None
        np.testing.assert_array_equal(y.numpy(), value, err_msg=f"{name} of {values}")
        np.testing.assert_array_equal(x.grad.numpy(), gradient, err_msg=f"gradient of {name} of {values}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_approximated_gelu_of_the_largest_numbers_is_finite(dtype: type) -> None:
    x = Tensor(np.array([0.9, -0.9], dtype) * np.finfo(dtype).max, requires_grad=True)
    y = ops.gelu(x, approximate="tanh")
    y.backward(Tensor(x.numpy()))
    np.testing.assert_allclose(y.numpy(), [x.numpy()[0], 0])
    np.testing.assert_allclose(x.grad.numpy(), [x.numpy()[0], 0])


def test_the_normal_cdf_in_float32_keeps_its_lower_tail() -> None:
    """Beside erfc in float64: within two units in the last place of 1, and down to -4 within five of itself."""
    x = np.linspace(-14, 14, 20_001).astype(np.float32)
    want = np.array([0.5 * math.erfc(-float(each) / math.sqrt(2)) for each in x])
    error = np.abs(normal_cdf(x) - want)
    assert error.max() <= 2 * 2.0 ** -23
    assert (error <= 6e-7 * want)[x > -4].all()
    assert normal_cdf(np.array([-np.inf, np.inf, -1e30], np.float32)).tolist() == [0, 1, 0]


def test_relus_gradient_at_nan_is_passed_on_and_at_zero_is_none() -> None:
    x = Tensor([np.nan, 0.0, -0.0, -np.inf, np.inf, 2.0], requires_grad=True)
    ops.relu(x).backward(Tensor([1.0, np.inf, np.inf, np.inf, 5.0, 6.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [1, 0, 0, 0, 5, 6]


def test_of_several_nans_in_a_window_the_last_gets_the_gradient() -> None:
    x = Tensor(np.array([[[[np.nan, 1.0], [np.nan, 2.0]]]]), requires_grad=True)
    ops.max_pool2d(x, size=2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[[[0, 0], [1, 0]]]]
