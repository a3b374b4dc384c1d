"""Initialisers: variance, bounds, and the seed that decides them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, init, ops

CONV, LINEAR = (40, 10, 5, 6), (150, 80)                       # fans (300, 1200) and (80, 150); 12,000 values each
FANS = {CONV: (300, 1200), LINEAR: (80, 150)}


def weight(shape: tuple[int, ...], dtype: Any = np.float32) -> Tensor:
    return Tensor(np.full(shape, np.nan, dtype), requires_grad=True)


#        name: (initialiser, variance from the fans, is it uniform)
SCALED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int, int], float], bool]] = {
    "xavier_uniform_": (init.xavier_uniform_, lambda i, o: 2 / (i + o), True),
    "xavier_uniform_, gain": (lambda w: init.xavier_uniform_(w, gain=3), lambda i, o: 18 / (i + o), True),
    "xavier_normal_": (init.xavier_normal_, lambda i, o: 2 / (i + o), False),
    "xavier_normal_, gain": (lambda w: init.xavier_normal_(w, gain=3), lambda i, o: 18 / (i + o), False),
    "kaiming_uniform_": (init.kaiming_uniform_, lambda i, o: 2 / i, True),
    "kaiming_uniform_, gain": (lambda w: init.kaiming_uniform_(w, gain=1), lambda i, o: 1 / i, True),
    "kaiming_normal_": (init.kaiming_normal_, lambda i, o: 2 / i, False),
    "kaiming_normal_, fan_out": (lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
                                 lambda i, o: 2 / o, False),
    "kaiming_uniform_, linear": (lambda w: init.kaiming_uniform_(w, nonlinearity="linear"), lambda i, o: 1 / i, True),
    "kaiming_normal_, gain": (lambda w: init.kaiming_normal_(w, gain=1), lambda i, o: 1 / i, False),
    "lecun_uniform_": (init.lecun_uniform_, lambda i, o: 1 / i, True),
    "lecun_normal_": (init.lecun_normal_, lambda i, o: 1 / i, False),
    "uniform_": (lambda w: init.uniform_(w, -2, 2), lambda i, o: 16 / 12, True),
    "normal_": (lambda w: init.normal_(w, 0, 3), lambda i, o: 9, False),
}


@pytest.mark.parametrize("shape", FANS)
@pytest.mark.parametrize("name", SCALED)
def test_variance_and_shape_of_the_distribution(name: str, shape: tuple[int, ...]) -> None:
    """12,000 values: a variance within 6 %, which is 4.6 standard errors of a normal's and more of a uniform's."""
    initialise, variance, uniform = SCALED[name]
    w = weight(shape)
    assert initialise(w) is w
    values, expected = w.numpy().astype(np.float64), variance(*FANS[shape])
    assert abs(values.var() / expected - 1) < 0.06
    assert abs(values.mean()) < 5 * math.sqrt(expected / values.size)
    largest = np.abs(values).max() / math.sqrt(expected)
    if uniform:
        assert 0.99 * math.sqrt(3) < largest <= math.sqrt(3) * (1 + 1e-6)
    else:                                                      # a normal's tails: P(|x| > 3 sigma) is 0.27 %
        assert 3.3 < largest < 6
        assert abs(np.mean(np.abs(values) < math.sqrt(expected)) - 0.6827) < 0.02


def test_uniform_and_normal_are_where_they_were_asked_for() -> None:
    low = init.uniform_(weight(LINEAR), 2, 5).numpy()
    assert 2 <= low.min() < 2.01
    assert 4.99 < low.max() <= 5
    assert abs(init.normal_(weight(LINEAR), mean=7, std=0.5).numpy().mean() - 7) < 0.03
    plain = init.uniform_(weight(LINEAR)).numpy()
    assert 0 <= plain.min() < plain.max() <= 1
    assert abs(init.normal_(weight(LINEAR)).numpy().std() - 1) < 0.03
    assert (init.uniform_(weight((3,)), 2, 2).numpy() == 2).all()
    assert (init.normal_(weight((3,)), 2, 0).numpy() == 2).all()


def test_constants() -> None:
    assert (init.constant_(weight((2, 3)), 4).numpy() == 4).all()
    assert (init.zeros_(weight((3,))).numpy() == 0).all()
    assert init.constant_(weight(()), 2).item() == 2


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(4, 2, 3, 3), (2, 4, 3, 5), (3, 3, 4), (2, 2, 1, 2, 3)])
def test_dirac_is_pytorchs(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(init.dirac_(weight(shape)).numpy(), torch.nn.init.dirac_(torch.empty(shape)).numpy())


def test_dirac_gives_the_maps_as_they_are() -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32))
    y = ops.conv2d(x, init.dirac_(weight((4, 3, 3, 3))), padding=1).numpy()
    np.testing.assert_array_equal(y, np.pad(x.numpy(), ((0, 0), (0, 1), (0, 0), (0, 0))))


@pytest.mark.parametrize("name", SCALED)
def test_the_seed_decides(name: str) -> None:
    initialise = SCALED[name][0]

    def draw(seed: int) -> list[np.ndarray]:
        minidl.manual_seed(seed)
        return [initialise(weight(LINEAR)).numpy() for _ in range(2)]

    first, again, other = draw(1), draw(1), draw(2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])              # each call takes the next key
    assert not np.array_equal(first[0], other[0])


def test_a_call_draws_the_same_whatever_was_drawn_before_it() -> None:
    minidl.manual_seed(1)
    init.normal_(weight((3,)))
    after_few = init.normal_(weight((4, 4))).numpy()
    minidl.manual_seed(1)
    init.normal_(weight((300,)))
    np.testing.assert_array_equal(after_few, init.normal_(weight((4, 4))).numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fills_in_place_and_keeps_the_dtype(dtype: Any) -> None:
    w = weight(LINEAR, dtype)
    array = w.data
    for initialise, _, _ in SCALED.values():
        initialise(w)
    assert w.data is array
    assert w.dtype == dtype


def test_makes_recorded_graphs_stale() -> None:
    w = Tensor([[1.0]], requires_grad=True)
    loss = (w * w).sum()
    init.zeros_(w)
    with pytest.raises(ValueError, match="was changed in place after the operation was recorded"):
        loss.backward()


def test_fans() -> None:
    assert {shape: init.fans(shape) for shape in FANS} == FANS


@pytest.mark.parametrize("initialise", [init.xavier_uniform_, init.xavier_normal_, init.kaiming_uniform_,
                                        init.kaiming_normal_, init.lecun_uniform_, init.lecun_normal_])
@pytest.mark.parametrize("shape", [(), (3,), (3, 0), (0, 3), (4, 3, 0, 5)])
def test_no_fan(initialise: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    message = (f"init: a Tensor of shape {shape} has no fan; weights have at least 2 axes and no size of 0, use "
               "zeros_, constant_, uniform_ or normal_")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        initialise(weight(shape))


@pytest.mark.parametrize(("initialise", "message"), [
    (lambda w: init.uniform_(w, 2, 1), "uniform_: low is 2 and high is 1 but low must not be above high$"),
    (lambda w: init.uniform_(w, math.nan, 1), "uniform_: low is nan and high is 1 but low must not be above"),
    (init.dirac_, r"dirac_: the Tensor has shape \(2,\) but must be filters, of at least 3 axes; for a matrix assign"),
    (lambda w: init.normal_(w, 0, -1), "normal_: std is -1 but must be at least 0$"),
    (lambda w: init.normal_(w, 0, math.nan), "normal_: std is nan but must be at least 0$"),
])
def test_refuses_and_changes_nothing(initialise: Callable[[Tensor], Tensor], message: str) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ValueError, match=f"^{message}"):
        initialise(w)
    assert w.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None])
def test_seed_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"^manual_seed: seed is .* but must be an int in \[0, 2\*\*64\)$"):
        minidl.manual_seed(seed)


def test_large_seeds_differ() -> None:
    """Also where they would be one number as floats."""
    draws = []
    for seed in (2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1):
        minidl.manual_seed(seed)
        draws.append(tuple(init.normal_(weight((3,))).tolist()))
    assert len(set(draws)) == 4


@pytest.mark.parametrize("options", [{"mode": "fan"}, {"nonlinearity": "leaky_relu"}])
def test_kaimings_names(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=rf"^kaiming: {next(iter(options))} is '\w+' but must be \w+ or \w+"):
        init.kaiming_normal_(Tensor([[1.0]]), **options)  # type: ignore[arg-type]  # of one kind
