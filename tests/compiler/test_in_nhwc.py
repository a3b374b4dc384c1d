"""Values of a compiled program in NHWC: the forms, the pass, and what bfloat16 costs.

On the CPU, where no program is in NHWC by itself, `pass_on_cpu` has the pass at work by the reference primitives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import random_nets
from checks.steps import Training, assert_same_bits, names
from tiers import tiered

import minidl
from minidl import Tensor, data, nn, ops, optim, zoo
from minidl.compiler import passes
from minidl.compiler.passes import layouts
from minidl.compiler.program import Program
from minidl.core import device
from minidl.ops import cpu
from minidl.ops.common.geometry import pool_geometry, rows
from minidl.ops.common.geometry.nhwc import BACK, FORMS, STORES, bf16, widened
from minidl.ops.layers.norm import layer_geometry

CONVERSIONS = ("to_nhwc", "to_nchw")
# Relative error of a gradient in bf16, by net, see docs/compiler.md: of smooth layers a few roundings; relu and maxima
# of what is rounded decide otherwise near 0, and near a draw
MOST = {"smooth": 4 * 2 ** -8, "vgg": 3 * 2 ** -4, "resnet": 3 * 2 ** -4, "odd": 3 * 2 ** -4}


@pytest.fixture
def pass_on_cpu(monkeypatch: pytest.MonkeyPatch, fp32: None) -> None:
    monkeypatch.setattr(cpu, "takes_nhwc", lambda precision: precision != "fp32")
    for name, there in cpu.IN_NHWC.items():
        monkeypatch.setattr(cpu, name, functools.wraps(there)(functools.partial(by_layout, getattr(cpu, name), there)))


def by_layout(plain: Callable[..., Any], there: Callable[..., Any], *given: Any) -> Any:
    """A primitive that takes images in the layout of its geometry."""
    return (there if any(getattr(a, "layout", "") == "NHWC" for a in given) else plain)(*given)


# ---------------------------------------------------------------- forms
@pytest.mark.parametrize(("channels", "index", "stays"), [
    (18, np.s_[1:, :, :, :], False), (18, np.s_[:, :, :, -2:], False), (16, np.s_[:, 1:9, :, :], False),
    (18, np.s_[:4, :, ::2, :], True), (16, np.s_[1:, 8:, -2:, 1:], True), (18, np.s_[0:, :, :, :], True),
    (18, np.s_[::-1, :, :, :], False), (18, np.s_[:, :, ::-9, :], False), (16, np.s_[:, :, :, ::-1], True),
    (18, np.s_[:, :16, :, :], False), (18, np.s_[:, :18, :, :], True), (16, np.s_[:, 8:], True),
    (16, np.s_[:, 4:], False), (16, np.s_[0], False)])
def test_which_slices_stay_in_nhwc(channels: int, index: tuple[slice, ...], stays: bool) -> None:
    """A slice is a view, and kernels read images 16 bytes at a time."""
    found = FORMS["getitem"].arguments((np.zeros((5, channels, 3, 3), np.float32), index), "tf32")
    assert (found is not None) == stays


@pytest.mark.parametrize("count", tiered([500, 5_000], fast=1, slow=0))
@pytest.mark.parametrize("dtype", STORES.values())
def test_no_slice_of_a_slice_begins_between_16_bytes(dtype: np.dtype, count: int) -> None:
    rng, stayed = np.random.default_rng(0), 0
    parts = [np.array(each, object) for each in (
        [None, None, None, None, 1, 8, -1], [None, None, None, 16, -1], [None, None, None, 2, -1])]
    for _ in range(count):
        whole = image = np.zeros((*rng.integers(1, 5, 3), rng.choice([6, 8, 16, 18, 20, 24])), dtype)
        for _ in range(3):
            index = tuple(slice(*map(rng.choice, parts)) for _ in range(4))
            found = FORMS["getitem"].arguments((image.transpose(BACK), index), "tf32")
            if found and image[found[1]].size:
                image, stayed = image[found[1]], stayed + 1
                assert (image.ctypes.data - whole.ctypes.data) % 16 == 0, (whole.shape, index)
    assert stayed > count // 5


def test_bfloat16_is_the_nearest_with_8_bits() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(2000) * 10.0 ** rng.integers(-30, 30, 2000)).astype(np.float32)
    found = widened(bf16(x))
    assert (np.abs(found - x) <= np.abs(x) * 2.0 ** -8).all()
    down, up = ((bf16(x).astype(np.int64) + step).astype(np.uint16) for step in (-1, 1))
    for other in (down, up):
        assert (np.abs(found - x) <= np.abs(widened(other) - x)).all()
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.4e38], np.float32)
    np.testing.assert_array_equal(widened(bf16(special))[:5], special[:5])
    assert widened(bf16(special))[6] == np.inf         # rounds to 2^128


# ---------------------------------------------------------------- nets
def vgg(c: int = 3, m: int = 16) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((c, m), (m, 2 * m)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * m * 4, 10))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(16, 16, 3, padding=1),
                         nn.BatchNorm2d(16), nn.Tanh(), nn.Conv2d(16, 24, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
                         nn.Linear(24, 10))


class Odd(nn.Module):
    """Channels that nothing divides, a sum of two ways, averages, windows that overlap, and a value read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 17, 3, padding=1), nn.Conv2d(17, 17, 3, padding=1)
        self.third, self.norm = nn.Conv2d(17, 19, 3, stride=2), nn.BatchNorm2d(19)
        self.output = nn.Linear(19, 10)

    def forward(self, x: Tensor) -> Tensor:
        a = ops.tanh(self.first(x))
        b = ops.relu(self.second(a) + a)
        b = ops.max_pool2d(b, size=3, stride=1, padding=1)
        c = ops.gelu(self.norm(self.third(b)))
        return self.output(ops.avg_pool2d(c, size=c.shape[2:]).flatten(1)) + (b * b).mean()


def resnet() -> nn.Module:
    return zoo.build("resnet", depth=8)


NETS: dict[str, Callable[[], nn.Module]] = {"vgg": vgg, "smooth": smooth, "resnet": resnet, "odd": Odd}


def batch(n: int = 6, size: int = 8) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(5)
    return Tensor(rng.standard_normal((n, 3, size, size), dtype=np.float32)), Tensor(rng.integers(0, 10, n))


def trained(name: str, precision: str, steps: int = 4, compiled: bool = True) -> Training:
    device.set_precision(precision)
    training = Training(NETS[name], compiled, momentum=0.9)
    for _ in range(steps):
        training.step(*batch())
    return training


def conversions(program: Program) -> list[str]:
    return [name for name in names(program) if name in CONVERSIONS]


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize("name", NETS)
def test_in_float32_the_bits_are_the_plain_steps(name: str) -> None:
    plain, compiled = (trained(name, "tf32", compiled=how) for how in (False, True))
    assert "conv2d_nhwc" in names(compiled.step.program)
    assert not any(each in ("conv2d", "conv2d_act", "conv2d_grad_x") for each in names(compiled.step.program))
    assert_same_bits(compiled.arrays(), plain.arrays())


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize(("name", "count"), [("vgg", 3), ("smooth", 3), ("resnet", 3), ("odd", 5)])
def test_conversions_stand_at_the_borders_alone(name: str, count: int) -> None:
    """Of a net's images, of what its linear layer reads, and of that one's gradient. `odd` multiplies an image by
    itself, which has no form."""
    program = trained(name, "bf16", 3).step.program
    assert len(conversions(program)) == count
    made = {call.results[0]: call.arguments[0] for call in program.calls if call.name in CONVERSIONS}
    assert not made.keys() & set(made.values()), "there and back"
    assert any(f"as bfloat16, {count} conversions" in note for note in program.notes)


def errors_of_gradients(wide: Training, short: Training) -> dict[str, float]:
    """Of one more step in bf16, from where the one in fp32 is; by the gradients' norms."""
    short.follow(wide)
    device.set_precision("fp32")
    wide.step(*batch())
    device.set_precision("bf16")
    short.step(*batch())
    mine, its = short.arrays(), wide.arrays()
    return {key: float(np.linalg.norm(mine[key] - its[key]) / np.linalg.norm(its[key]))
            for key in its if key.endswith("grad") and np.linalg.norm(its[key]) > 1e-6}


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize("name", NETS)
def test_gradients_in_bfloat16(name: str) -> None:
    """Of one step, beside those in fp32: as docs/compiler.md says."""
    wide, short = (trained(name, precision, 1, compiled=False) for precision in ("fp32", "bf16"))
    for training in (wide, short):
        training.step = minidl.compile(training.step)
        training.step(*batch())
        training.step(*batch())
    errors = errors_of_gradients(wide, short)
    assert "bf16" in repr(short.step.program)
    assert len(errors) > 5
    assert max(errors.values()) <= MOST[name]


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_what_a_step_returns_is_in_nchw(precision: str) -> None:
    """Also what lies between convolutions, and the gradient of the images."""
    device.set_precision(precision)
    minidl.manual_seed(0)
    first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3)
    x, _ = batch()
    x.requires_grad = True

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        x.grad = None
        y = first(x)
        z = ops.tanh(second(ops.tanh(y)))
        (z * z).sum().backward()
        return y, z
    want = [t.numpy().copy() for t in (*step(x), x.grad)]          # type: ignore[misc]
    compiled = minidl.compile(step)
    for _ in range(3):
        got = [t.numpy() for t in (*compiled(x), x.grad)]
    assert {"to_nchw", "conv2d_nhwc"} <= set(names(compiled.program))
    for mine, its in zip(got, want, strict=True):
        assert (mine.shape, mine.dtype) == (its.shape, np.float32)
        rounding = 0 if precision == "tf32" else 2 ** -8 * 4 * np.abs(its).max()
        np.testing.assert_allclose(mine, its, rtol=0, atol=rounding)


class Up(nn.Module):
    """Two ways that are concatenated, parts of them, and transposed convolutions, one with an activation behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 2, stride=2)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(32, 8, 3, padding=1)
        self.output = nn.Linear(8 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        a = ops.relu(self.first(x))
        b = ops.concatenate([self.up(ops.tanh(self.down(a))), a], 1)
        left, right = b.chunk(2, 1)
        return self.output(ops.relu(self.last(ops.concatenate([right + left, left], 1))).flatten(1))


@pytest.mark.usefixtures("pass_on_cpu")
def test_transposed_convolutions_and_concatenations_stay_in_nhwc() -> None:
    plain, compiled = both_ways(Up)
    made = names(compiled.step.program)
    assert len(conversions(compiled.step.program)) == 3
    assert [made.count(name) for name in ("conv2d_transposed_nhwc", "add_bias_nhwc", "concatenate")] == [2, 0, 3]
    mine, its = compiled.arrays(), plain.arrays()
    for key in its:                        # sums for the biases are in another order
        np.testing.assert_allclose(mine[key], its[key], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- rows
class Mixer(nn.Module):
    """Rows as blocks of a transformer have them: normalisation, a layer of three parts that are multiplied, sums with
    what was before; 24 places of 16 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.three = nn.LayerNorm(48), nn.LayerNorm(48), nn.Linear(48, 144)
        self.mlp = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.output = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 4, 48)                   # of 3 x 8 x 8
        q, k, v = self.three(self.norm1(x)).reshape(len(x), 4, 3, 2, 24).permute(2, 0, 3, 1, 4)
        x = x + (ops.tanh(q) * k + v).permute(0, 2, 1, 3).reshape(len(x), 4, 48)
        x = x + self.mlp(self.norm2(x))
        return self.output(x).mean(axis=1)


class Attending(nn.Module):
    """Attention by parts of one layer, as a transformer's blocks have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(48), nn.Linear(48, 144), nn.Linear(48, 48)
        self.output = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 4, 48)
        q, k, v = self.qkv(self.norm(x)).reshape(len(x), 4, 3, 2, 24).permute(2, 0, 3, 1, 4)
        y = ops.scaled_dot_product_attention(q, k, v, is_causal=True).permute(0, 2, 1, 3).reshape(len(x), 4, 48)
        return self.output(x + self.out(y)).mean(axis=1)


class Blocks(nn.Module):
    """Images as rows and back, as ConvNeXt has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 32, 2, stride=2), nn.Conv2d(
            32, 32, 3, padding=1, groups=32, bias=False)                 # whose gradient is a sum in another order
        self.norm, self.output = nn.LayerNorm(32), nn.Linear(32, 10)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.output(ops.avg_pool2d(x, size=4).flatten(1))


NETS_OF_ROWS: dict[str, Callable[[], nn.Module]] = {
    "mixer": Mixer, "attending": Attending, "blocks": Blocks,
    "relus": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 40, bias=False),
                                   nn.Tanh(), nn.Linear(40, 10))}


@pytest.fixture
def few_rows(pass_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MIN_ROWS", 4)
    monkeypatch.setattr(rows, "FULL", 2)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", NETS_OF_ROWS)
def test_rows_in_float32_have_the_bits_of_the_plain_step(name: str) -> None:
    plain, compiled = both_ways(NETS_OF_ROWS[name])
    made = names(compiled.step.program)
    assert [made.count(each) for each in ("linear", "linear_act", "linear_grad_w", "normalize", "normalize_grad")] == [
        1, 0, 1, 0, 0], "of ten logits alone"
    for slot in (slot for call in compiled.step.program.calls for slot in call.results):
        assert isinstance(slot.dtype, np.dtype)
        assert all(isinstance(size, int) for size in slot.shape)
    assert_same_bits(compiled.arrays(), plain.arrays())


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(("name", "count"), [("mixer", 10), ("attending", 3), ("blocks", 3), ("relus", 3)])
def test_rows_in_bfloat16(name: str, count: int) -> None:
    """The border is where values come from or go to: images, logits, products of parts, which have no form."""
    device.set_precision("bf16")
    wide, short = Training(NETS_OF_ROWS[name], False), Training(NETS_OF_ROWS[name], True)
    for training in (wide, short):
        training.step(*batch())
    short.step(*batch())
    errors = errors_of_gradients(wide, short)
    assert len(conversions(short.step.program)) == count
    assert len(errors) > 4
    assert max(errors.values()) <= 8 * 2 ** -8


@pytest.mark.usefixtures("few_rows")
def test_gradients_of_rows_are_joined() -> None:
    """That of GELU to the product before it, the sum with what was before to that of the normalisation."""
    _, compiled = both_ways(Mixer)
    made = names(compiled.step.program)
    assert [made.count(name) for name in ("conv2d_grad_x_act_b_nhwc", "layer_norm_grad_nhwc", "add_nhwc")] == [1, 2, 2]
    assert "concatenate" in made


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize(("count", "width", "precision"), [(6, 64, "bf16"), (2048, 10, "bf16"), (2048, 64, "3xtf32")])
def test_few_or_narrow_rows_stay_as_they_are(count: int, width: int, precision: str) -> None:
    device.set_precision(precision)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Linear(width, 10))
    step = minidl.compile(lambda x: net(x))
    x = Tensor(np.zeros((count, 3, 8, 8), np.float32))
    for _ in range(3):
        step(x)
    assert step.program is not None
    assert not any("nhwc" in name for name in names(step.program))


def test_which_values_have_a_form_as_rows() -> None:
    x, w = np.zeros((2048, 64), np.float32), np.zeros((32, 64), np.float32)

    def fits(name: str, *given: Any) -> list[bool]:
        return [form.arguments(given, "bf16") is not None for form in rows.ROWS[name]]
    assert fits("linear", x, w, None) == fits("linear_grad_w", x, x) == fits("linear_grad_x", x[:, :32], w) == [True]
    assert fits("linear", x[:9], w, None) == fits("linear", x, w[:30], None) == fits("linear_grad_w", x, x[:, :4]) == [
        False]
    for index, fit in ((0, True), ((0, ..., slice(3)), True), (None, True), (True, False), (np.arange(3), False),
                       ((slice(2), [0, 1]), False)):
        assert fits("getitem", x, index) == [fit], index
    assert fits("reshape", x, (64, 32, 64)) == [True, True]
    assert fits("reshape", x, (-1,)) == fits("reshape", x, (64, 2048)) == [False, True]
    assert fits("transpose", np.zeros((2, 3, 4, 5), np.float32), (0, 2, 3, 1)) == [True, False, True]
    norm = layer_geometry((2048, 64), 64, None, None)
    assert fits("normalize", x, None, None, 1e-5, norm) == [True]
    assert fits("normalize", x.reshape(1024, 2, 64), None, None, 1e-5, layer_geometry(
        (1024, 2, 64), (2, 64), None, None)) == [False]
    assert fits("normalize", np.zeros((9, 2000)), None, None, 1e-5, layer_geometry((9, 2000), 2000, None, None)) == [
        False]


# ---------------------------------------------------------------- what is joined
def both_ways(net: Callable[[], nn.Module]) -> tuple[Training, Training]:
    """Three steps in tf32, plain and compiled."""
    device.set_precision("tf32")
    both = Training(net, False), Training(net, True)
    for each in both:
        for _ in range(3):
            each.step(*batch())
    return both


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize(("act", "stored"), [(nn.ReLU, 0), (nn.Tanh, 2)])
def test_what_only_maxima_are_read_of_is_not_stored(act: Callable[[], nn.Module], stored: int) -> None:
    """The gradient of relu looks at the maxima, that of tanh at what the convolution gave."""
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), act(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1),
                             act(), nn.MaxPool2d(3, padding=1), nn.Flatten(), nn.Linear(64, 10))
    plain, compiled = both_ways(net)
    made = names(compiled.step.program)
    assert (made.count("max_pool2d"), made.count("conv2d_max_pool_nhwc")) == (stored, 2 - stored)
    assert_same_bits(compiled.arrays(), plain.arrays())


class Twice(nn.Module):
    """Two convolutions that read the same activations: the gradients of both are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + ops.tanh(self.other(x))


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU])
def test_gradients_of_activations_are_joined_to_the_convolution_before(act: Callable[[], nn.Module]) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), act(), nn.Conv2d(16, 16, 3, padding=1), act(), Twice(),
                             nn.Flatten(), nn.Linear(1024, 10))
    plain, compiled = both_ways(net)
    made = names(compiled.step.program)
    # the second gradient of Twice is an addend, and tanh's does not follow one of a convolution
    assert [made.count(name) for name in ("conv2d_grad_x_act_b_nhwc", "conv2d_grad_x_nhwc", "act_grad_b_nhwc")] == [
        2, 1, 1]
    assert_same_bits(compiled.arrays(), plain.arrays())


class Normalized(nn.Module):
    """Convolutions, each with normalisation and GELU behind it; scaled: what is normalised is read once more."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.scaled, self.output = scaled, nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm1(self.first(x))
        y = ops.gelu(self.norm2(self.second(ops.gelu(z))))
        return self.output((y + z if self.scaled else y).flatten(1))


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize(("scaled", "stored"), [(False, 0), (True, 1)])
def test_what_gelu_is_given_is_normalised_again(scaled: bool, stored: int) -> None:
    """It is not stored, unless somebody else reads it."""
    plain, compiled = both_ways(lambda: Normalized(scaled))
    made = names(compiled.step.program)
    assert (made.count("act_nhwc"), made.count("normalize_again_act_grad_nhwc")) == (stored, 2 - stored)
    assert_same_bits(compiled.arrays(), plain.arrays())


@minidl.op
def halving(k: Any, y: Tensor, b: Tensor) -> Any:
    """y; b, which no gradient is asked for, is half of what it was."""
    k.setitem(b, ..., k.mul(b, 0.5))
    return k.mul(y, 1.0), lambda gy, need: (gy, None)


class Halving(nn.Module):
    """A bias of batch normalisation changes between forward and backward, by an op of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(c, 16, 3, padding=1) for c in (3, 16))
        self.norm, self.output = nn.BatchNorm2d(16), nn.Linear(1024, 10)
        self.norm.bias.requires_grad = False
        with minidl.no_grad():
            self.norm.bias[...] = 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = ops.gelu(self.norm(self.second(ops.tanh(self.first(x)))))
        return self.output(halving(y, self.norm.bias).flatten(1))


@pytest.mark.usefixtures("pass_on_cpu")
def test_nothing_is_normalised_again_by_a_bias_that_has_changed() -> None:
    plain, compiled = both_ways(Halving)
    made = names(compiled.step.program)
    assert {"batch_norm_nhwc", "act_nhwc"} <= set(made)
    assert "normalize_again_act_grad_nhwc" not in made
    assert_same_bits(compiled.arrays(), plain.arrays())


@pytest.mark.usefixtures("pass_on_cpu")
def test_what_gelu_is_given_may_be_its_gradient() -> None:
    device.set_precision("tf32")
    conv, norm, found = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), []
    images = Tensor(np.random.default_rng(5).standard_normal((2, 8, 6, 6), dtype=np.float32))

    def step(x: Tensor) -> Tensor:
        conv.weight.grad = None
        z = norm(conv(x))
        y = ops.gelu(z)
        y.backward(z.detach())
        return y.sum()

    for run in (step, minidl.compile(step)):
        for _ in range(3):
            run(images)
        found.append(conv.weight.grad.numpy())
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.usefixtures("pass_on_cpu")
def test_windows_whose_winners_somebody_else_reads_keep_to_nchw() -> None:
    """An op of a user's own adds their numbers to the maxima."""
    @minidl.op
    def numbered(k, x):  # type: ignore[no-untyped-def]
        g = pool_geometry("numbered", x.shape, 2, None, 0)
        y, index = k.max_pool2d(x, g)

        def backward(gy, need):  # type: ignore[no-untyped-def]
            return (k.max_pool2d_grad_x(gy, index, g),)
        return k.add(y, k.cast(index, "float32")), backward

    device.set_precision("tf32")
    minidl.manual_seed(0)
    first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def step(x: Tensor) -> Tensor:
        first.weight.grad = None
        y = second(numbered(second(ops.tanh(first(x)))))
        (y * y).sum().backward()
        return y
    x, _ = batch()
    plain, weight = step(x).numpy().copy(), first.weight.grad.numpy().copy()
    compiled = minidl.compile(step)
    for _ in range(3):
        got = compiled(x)
    assert {"conv2d_nhwc", "max_pool2d", "max_pool2d_grad_x"} <= set(names(compiled.program))
    np.testing.assert_array_equal(got.numpy(), plain)
    np.testing.assert_array_equal(first.weight.grad.numpy(), weight)


@pytest.mark.usefixtures("pass_on_cpu")
def test_images_that_are_written_in_place_keep_to_nchw() -> None:
    device.set_precision("tf32")
    minidl.manual_seed(0)
    conv = nn.Conv2d(16, 16, 3, padding=1)
    x = Tensor(np.random.default_rng(0).standard_normal((2, 16, 5, 5), dtype=np.float32))

    @minidl.compile
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        with minidl.no_grad():
            first = conv(x)
            x[0] = 1.0
            return first, conv(ops.relu(conv(x)))
    start = x.numpy().copy()
    found = []
    for _ in range(3):
        x.data[...] = start
        found.append([t.numpy().copy() for t in step(x)])
    assert "conv2d_nhwc" in names(step.program)
    for a, b in zip(found[0], found[2], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize("name", ["lenet5", "krizhevsky2009"])
def test_nets_with_kernels_of_their_own_keep_to_nchw(name: str) -> None:
    device.set_precision("tf32")
    training = Training(lambda: zoo.build(name), True)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((2, *zoo.MODELS[name].shape), dtype=np.float32))
    for _ in range(3):
        training.step(x, Tensor(np.array([0, 1])))
    assert not [each for each in names(training.step.program) if each.endswith("_nhwc")]


def test_on_the_cpu_programs_keep_to_nchw(fp32: None) -> None:
    assert not conversions(trained("vgg", "tf32", 3).step.program)


@pytest.mark.usefixtures("pass_on_cpu")
def test_in_fp32_programs_keep_to_nchw() -> None:
    assert not conversions(trained("vgg", "fp32", 3).step.program)


@pytest.mark.usefixtures("pass_on_cpu")
def test_a_program_keeps_the_precision_that_it_was_recorded_in() -> None:
    """However late the passes are asked for."""
    training = trained("vgg", "bf16", 2)
    device.set_precision("fp32")
    assert "conv2d_nhwc" in names(training.step.program)
    assert training.step.recorded.precision == "bf16"


@pytest.mark.usefixtures("pass_on_cpu")
@pytest.mark.parametrize("first", tiered(range(0, 60, 10), slow=1))
def test_random_nets(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All convolutions in NHWC, whatever their channels."""
    monkeypatch.setattr(layouts, "pays", lambda call: call.name.startswith("conv2d"))
    monkeypatch.setattr(cpu, "takes_nhwc", lambda precision: True)
    seen: list[Program] = []

    def noted(program: Program) -> Program:
        seen.append(layouts.in_nhwc(program))
        return seen[-1]
    monkeypatch.setattr(passes, "in_nhwc", noted)
    for number in range(first, first + 10):
        net = random_nets.net(number)
        plain, compiled = (random_nets.notes(net, dtype="float32", compiled=how) for how in (False, True))
        apart = random_nets.apart(plain, compiled)
        assert max(apart.values(), default=0) <= 1e-6, net     # some sums are made in the order of memory
    assert any(map(conversions, seen))


@pytest.mark.deep
@pytest.mark.usefixtures("pass_on_cpu")
def test_a_net_learns_as_well_in_bfloat16() -> None:
    """Generated digits, by a net of two convolutions."""
    found = {}
    for precision in ("fp32", "bf16"):
        device.set_precision(precision)
        minidl.manual_seed(1)
        net = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16),
                            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 25, 10))
        sgd = optim.SGD(net.parameters(), lr=0.03, momentum=0.9)

        @minidl.compile
        def step(x: Tensor, labels: Tensor, net: nn.Module = net, sgd: optim.SGD = sgd) -> Tensor:
            sgd.zero_grad()
            loss = ops.cross_entropy(net(x), labels)
            loss.backward()
            sgd.step()
            return loss
        digits, test = (data.load("synthetic-digits", split) for split in ("train", "test"))
        for _ in range(3):
            for x, labels in data.DataLoader(digits.first(2000), batch_size=50):
                step(Tensor(x), Tensor(labels))
        assert ("conv2d_nhwc" in names(step.program)) == (precision == "bf16")
        net.eval()
        right = total = 0
        for x, labels in data.DataLoader(test.first(500), batch_size=100):
            right += int((net(Tensor(x)).numpy().argmax(1) == labels).sum())
            total += len(labels)
        found[precision] = right / total
    assert found["fp32"] > 0.8
    assert abs(found["fp32"] - found["bf16"]) < 0.03, found
