"""Random nets of what a generated kernel, a fused call or a form in NHWC can take: compiled beside eager, on a GPU.

    python tests/random_fusions.py --nets 2000 --processes 16 [--precision bf16] [--seconds 500]
    python tests/random_fusions.py --nets 500 --first 1500 ...               # the last quarter of them, on a fourth GPU
    python tests/random_fusions.py --faults --nets 500 --processes 20 [--fault NAME]    # which planted faults are found

Sizes leave rows and columns over, strides are unlike windows, channels odd, batches from 1 to 513. Four steps from
the same parameters run eagerly and compiled, of which two are replays: loss, gradients, buffers and parameters are
compared.
How far rounding may move a result differs from net to net, so that a compiled step may be as far from the eager one as
that is from itself if parameters, images and what each layer returns, forward and backward, change by their precision's
rounding: by the larger of two such changes, and where the step is further away, of sixteen, since few of them carry a
value across the kink of a ReLU or from one winner of a window to another. Parameters and images alone would not do: the
gradient of a bias before normalisation is zero whatever they are, and rounding is all that it has. Under
MINIDL_POISON=1 what a kernel reads before it was written is NaN (docs/kernels.md).

A planted fault (FAULTS) is a change of a kernel's source, in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":                 # the package beside this folder, not an installed one
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from checks.regions import with_backend
from random_nets import timed

import minidl
from minidl import Tensor, nn, ops, optim
from minidl.compiler.passes import optimised
from minidl.compiler.record import record
from minidl.core.device import to_device
from minidl.ops.common.backend import primitives_of

ROUNDING = {"fp32": 2.0 ** -19, "3xtf32": 2.0 ** -18, "tf32": 2.0 ** -10, "bf16": 2.0 ** -7}
TIMES = 4                                  # of what such a change does to a result, which is what is allowed
CHANGES = (2, 16)                          # so many are tried, and where the step is further away, so many
BATCHES = (1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 64, 96, 100, 128, 131, 132, 133, 200, 256, 257, 264, 265, 400, 512, 513)
SIZE = 3_000_000                           # elements of a batch between layers, at most
OF_REGIONS = ("nn.ReLU()", "nn.Tanh()", "nn.Sigmoid()", "nn.ScaledTanh()")
ACTIVATIONS = (*OF_REGIONS, "nn.ReLU()", "nn.GELU()", "nn.SiLU()", "nn.LeakyReLU(0.2)", "nn.ELU()", "nn.Softplus()",
               "nn.Hardsigmoid()")
# The algorithms of convolutions that go on with what follows them.
GO_ON = "whole_image", "winograd", "tensor_core_image", "few_channels"
STEPS = 4
TRIED = 20                                 # nets that one process tries against a planted fault
Notes = list[dict[str, np.ndarray]]


class Residual(nn.Module):
    """act(x + body(x))."""

    def __init__(self, body: nn.Module, act: nn.Module):
        super().__init__()
        self.body, self.act = body, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.body(x) + x)


NAMES = {"nn": nn, "Residual": Residual}


@dataclass(frozen=True)
class Net:
    number: int
    layers: tuple[str, ...]
    shape: tuple[int, ...]
    n: int
    classes: int
    smoothing: float
    reduction: str
    spread: float                          # of the last bias: where logits are far apart, a softmax's maximum matters
    algorithm: str                         # of convolutions, where it can do them; "": the fastest

    def __str__(self) -> str:
        return "\n".join((f"# net {self.number}: {self.n} images of {self.shape}, {self.classes} classes, "
                          f"label_smoothing={self.smoothing}, {self.reduction}, last bias * {self.spread}, "
                          f"{self.algorithm or 'auto'}",
                          "nn.Sequential(", *(f"    {layer}," for layer in self.layers), ")"))


# ---------------------------------------------------------------- drawing
class Drawer:
    def __init__(self, rng: random.Random):
        self.rng, self.layers = rng, list[str]()
        self.kind = self.one("region", "region", "nhwc", "nhwc", "mixed")
        self.n = rng.choice(BATCHES)

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def activation(self) -> str:
        return self.rng.choice(OF_REGIONS if self.kind == "region" else ACTIVATIONS)

    def maps(self) -> int:
        return self.rng.choice({"region": (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 30),
                                "nhwc": (8, 16, 16, 24, 32, 36, 40, 64, 20, 6),
                                "mixed": (3, 8, 10, 16, 17, 33)}[self.kind])

    def convolution(self, c: int, h: int, w: int) -> tuple[int, int, int] | None:
        """Often with what is behind it: normalisation, an activation, and pooling."""
        region = self.kind == "region"
        kh, kw = (self.rng.randint(1, 6), self.rng.randint(1, 6)) if region else (self.one(1, 2, 3, 3, 3, 5),) * 2
        if region and self.rng.random() < 0.5:
            kw = kh
        if self.rng.random() < 0.08 and h * w <= 36:
            kh, kw = h, w                  # the whole image: a linear layer
        stride = 1 if region and self.rng.random() < 0.9 else self.one(1, 1, 1, 2, (1, 2), 3)
        top, left = self.rng.choice((0, 0, kh // 2)), self.rng.choice((0, 0, kw // 2))
        padding = kh // 2 * self.one(0, 1, 1)
        if region:
            padding = self.one(((top, min(top + 1, kh - 1)), (left, 0)), (top, left))
        (pt, pb), (pl, pr) = ((p, p) if isinstance(p, int) else p for p in (
            padding if isinstance(padding, tuple) else (padding, padding)))
        sh, sw = stride if isinstance(stride, tuple) else (stride, stride)
        m, oh, ow = self.maps(), (h + pt + pb - kh) // sh + 1, (w + pl + pr - kw) // sw + 1
        if min(h + pt + pb - kh, w + pl + pr - kw) < 0 or self.n * m * oh * ow > SIZE:
            return None
        norm = not region and self.rng.random() < 0.5 and self.n * oh * ow > 1     # one value has no variance
        bias = ", bias=False" if norm or self.rng.random() < 0.2 else ""
        self.layers.append(f"nn.Conv2d({c}, {m}, {(kh, kw)}, stride={stride}, padding={padding}{bias})")
        if norm:
            self.layers.append(f"nn.BatchNorm2d({m}, eps=0.05{self.one('', ', affine=False')})")
        if self.rng.random() < 0.8:
            self.layers.append(self.activation())
        return self.pooling(m, oh, ow) if self.rng.random() < 0.6 else (m, oh, ow)

    def pooling(self, c: int, h: int, w: int) -> tuple[int, int, int]:
        kh, kw = self.one((2, 2), (3, 3), (2, 3), (4, 4), (3, 1))
        kind = "Avg" if self.kind == "region" and self.rng.random() < 0.85 else self.one("Max", "Max", "Avg")
        stride = (kh, kw) if self.rng.random() < 0.7 else self.one((1, 1), (2, 2), (1, 2), (3, 3))
        padding = 0 if kind == "Avg" or self.rng.random() < 0.7 else min(kh, kw) // 2
        oh, ow = (h + 2 * padding - kh) // stride[0] + 1, (w + 2 * padding - kw) // stride[1] + 1
        if min(h + 2 * padding - kh, w + 2 * padding - kw) < 0:
            return c, h, w
        self.layers.append(f"nn.{kind}Pool2d({(kh, kw)}, {stride}, {padding})")
        self.layers += [self.activation()] * (self.rng.random() < (0.3 if self.kind == "region" else 0.1))
        return c, oh, ow

    def residual(self, c: int, h: int, w: int) -> tuple[int, int, int] | None:
        if self.n * h * w < 2:
            return None
        norm = f"nn.BatchNorm2d({c}, eps=0.05)"
        self.layers.append(f"Residual(nn.Sequential(nn.Conv2d({c}, {c}, 3, padding=1, bias=False), {norm}, nn.ReLU(), "
                           f"nn.Conv2d({c}, {c}, 3, padding=1, bias=False), {norm}), {self.activation()})")
        return c, h, w

    def net(self, number: int) -> Net:
        rng, small = self.rng, self.kind == "region"
        given = shape = (self.one(1, 2, 3, 3, 4, 5) if small else self.one(3, 3, 8, 16, 1),
                         rng.randint(5, 24 if small else 33), rng.randint(5, 24 if small else 33))
        if rng.random() < 0.1:
            given = shape = (rng.randint(3, 300), 1, 1)                # linear layers alone
        else:
            for _ in range(rng.randint(1, 3)):
                makes = [self.convolution] * 3 + [self.residual] * (
                    self.kind == "nhwc" and shape[0] >= 8 and self.n * shape[1] * shape[2] > 1)
                shape = rng.choice(makes)(*shape) or shape
            shape = self.pooling(*shape) if rng.random() < 0.1 else shape
            if not small and rng.random() < 0.4:
                self.layers.append("nn.AdaptiveAvgPool2d(1)")
                shape = (shape[0], 1, 1)
        self.layers.append("nn.Flatten()")
        size, classes = math.prod(shape), self.one(2, 3, 7, 10, 10, 33)
        for _ in range(rng.randint(0, 2)):
            units = self.one(5, 12, 30, 33, 66, 84, 100, 128)
            self.layers += [f"nn.Linear({size}, {units}{self.one('', '', ', bias=False')})"]
            self.layers += [self.activation()] * (rng.random() < 0.8)
            size = units
        self.layers.append(f"nn.Linear({size}, {classes})")
        return Net(number, tuple(self.layers), given, self.n, classes, self.one(0.0, 0.0, 0.1),
                   self.one("mean", "mean", "sum"), self.one(1.0, 1.0, 1.0, 1.0, 300.0),
                   self.one(*[""] * 16, *GO_ON))


def net(number: int) -> Net:
    """The net of that number."""
    return Drawer(random.Random(f"fusions {number}")).net(number)


# ---------------------------------------------------------------- running
def run(net: Net, compiled: bool, device: str, precision: str, moved: float = 0.0, seed: int = 0) -> tuple[Notes, Any]:
    """What there is after each step, and the step. moved: the share of itself by which each number changes, which the
    step is given and which a layer hands on."""
    minidl.manual_seed(net.number)
    model: nn.Module = eval(f"nn.Sequential({', '.join(net.layers)})", dict(NAMES))
    rng, other = np.random.default_rng(net.number), np.random.default_rng([seed, net.number])

    def near(a: np.ndarray) -> np.ndarray:
        return (a * (1 + moved * (2.0 * other.integers(2, size=a.shape) - 1))).astype(np.float32)
    for p in model.parameters():
        p.data[...] = near(p.data)
    model[-1].bias.data[...] *= net.spread
    model.to(device)
    sgd = optim.SGD(model.parameters(), lr=1e-3 if net.reduction == "mean" else 1e-3 / net.n, momentum=0.9)

    def moved_forward(x: Tensor) -> Tensor:
        for layer in model:
            x = layer(x)
            x = x * Tensor(near(np.ones(x.shape, np.float32)), device=device)
        return x
    forward = moved_forward if moved else model        # what a compiled step knows does not change: it is replayed

    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(forward(x), labels, label_smoothing=net.smoothing, reduction=net.reduction)
        loss.backward()
        sgd.step()
        return loss
    call, notes = minidl.compile(step) if compiled else step, []
    minidl.set_precision(precision)
    for _ in range(STEPS):
        x = near(rng.standard_normal((net.n, *net.shape)))
        loss = call(Tensor(x, device=device), Tensor(rng.integers(0, net.classes, net.n), device=device))
        found = {"loss": loss.numpy().copy()}
        found |= {f"{name}.grad": p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
        found |= {name: np.array(a, copy=True) for name, a in model.state_dict().items()}
        notes.append(found)
    if compiled and call.recordings != 2:
        raise AssertionError(f"{net}\nwas recorded {call.recordings} times: of {STEPS} steps {STEPS - 2} are replays")
    return notes, call


@contextmanager
def preferred(algorithm: str) -> Iterator[None]:
    """Convolutions on a GPU are by that algorithm where it can do them, and not by the fastest."""
    from minidl.ops.cuda import conv
    fastest = conv.chosen

    def chosen(direction: str, g: Any, arguments: Any) -> str:
        refused = conv.refusal(algorithm, direction, g, arguments[0].dtype)
        return fastest(direction, g, arguments) if refused else algorithm
    conv.chosen = conv.fused.chosen = chosen
    try:
        yield
    finally:
        conv.chosen = conv.fused.chosen = fastest


def gaps(mine: Notes, other: Notes) -> dict[tuple[int, str], float]:
    """The largest difference of each array, by step and name; infinite for what is not finite in one alone."""
    found = {}
    for i, (a, b) in enumerate(zip(mine, other, strict=True)):
        assert a.keys() == b.keys(), a.keys() ^ b.keys()
        for name, x in a.items():
            same = np.isfinite(x) == np.isfinite(b[name])
            gap = np.where(np.isfinite(x), np.abs(x - b[name].astype(float)), 0.0)
            found[i, name] = float(np.max(gap, initial=0)) if same.all() else math.inf
    return found


def compare(net: Net, device: str, precision: str) -> tuple[float, str, list[str]]:
    """(the largest share of its limit by which an array of the compiled net is off, which, the program's calls)"""
    with preferred(net.algorithm) if net.algorithm and device == "cuda" else nullcontext():
        return _compare(net, device, precision)


def _compare(net: Net, device: str, precision: str) -> tuple[float, str, list[str]]:
    eager, _ = run(net, False, device, precision)
    compiled, call = run(net, True, device, precision)
    shares, rounding = gaps(compiled, eager), ROUNDING[precision]
    moved, worst = dict.fromkeys(shares, 0.0), (0.0, "")
    for seed in range(1, CHANGES[1] + 1):
        changed, _ = run(net, False, device, precision, rounding, seed)
        moved = {at: max(gap, moved[at]) for at, gap in gaps(eager, changed).items()}
        if seed < CHANGES[0]:
            continue
        worst = max((0.0 if moved[at] == math.inf else gap / limit(eager[at[0]], at[1], moved[at], rounding),
                     f"step {at[0]}: {at[1]}") for at, gap in shares.items())
        if not 1 < worst[0] < math.inf:
            break
    return *worst, sorted({each.name for each in call.program.calls}) if call.program else []


def calls_of(net: Net, device: str, precision: str) -> list[str]:
    """The calls of the compiled net, which is recorded on the CPU, without its kernels."""
    model: nn.Module = eval(f"nn.Sequential({', '.join(net.layers)})", dict(NAMES))

    def step(x: Tensor, labels: Tensor) -> Tensor:
        loss = ops.cross_entropy(model(x), labels, label_smoothing=net.smoothing, reduction=net.reduction)
        loss.backward()
        return loss
    minidl.set_precision(precision)
    program, _ = record(step, (minidl.zeros(net.n, *net.shape), minidl.zeros(net.n, dtype=np.int64)), {})
    backend = primitives_of(to_device(np.empty(0), device))
    return [call.name for call in optimised(with_backend(program, backend)).calls]


def limit(notes: dict[str, np.ndarray], name: str, moved: float, rounding: float) -> float:
    """How far an array may be off which such a change moves by so much."""
    kind = [np.max(np.abs(a), initial=0) for other, a in notes.items()
            if other.endswith(".grad") == name.endswith(".grad") and other != "loss"]
    own = float(np.max(np.abs(notes[name]), initial=0))
    return TIMES * moved + rounding * (own + 0.02 * float(max(kind, default=0))) + 1e-12


# ---------------------------------------------------------------- planted faults
# name -> (precision, old, new), and for a kernel that few nets have a call of it, without which a net is not run
FAULTS: dict[str, tuple[str, ...]] = {
    # region.cuh
    "clear": ("fp32", "*(Pack<4>*)&memory[i] = Pack<4>();", ";"),
    "load_filters": (
        "fp32", "&w[m * TAPS + t], true", "&w[m * TAPS + t], m + t > 0"),
    "load_images": ("fp32", "X::SIZE + k], image < count);", "X::SIZE + k], image < count && k + 1 < X::SIZE);"),
    "store_images": ("fp32", "if (image < count) to[", "if (image < count && k + 1 < X::SIZE) to["),
    "the second image": ("fp32", "{start + image * IMAGE_STRIDE}", "{start}"),
    "copy": ("fp32", "{ y.of(image)[k] = x.of(image)[k]", "{ if (k + 1 < X::SIZE) y.of(image)[k] = x.of(image)[k]",
             "region_step"),
    "conv, a row too few": (
        "fp32", "r < KH + TH - 1; ++r) {\n                if (BEYOND",
        "r < KH + TH - 2; ++r) {\n                if (BEYOND"),
    "conv, the image's last row": (
        "fp32", "(i + r - TOP) >= (unsigned)X::H)", "(i + r - TOP) >= (unsigned)X::H - 1)"),
    "conv, the second map": ("fp32", "imin(m + f, Y::C - 1)", "m"),
    "conv, the last column": (
        "fp32", "i + e / TW < Y::H && j + e % TW < Y::W)", "i + e / TW < Y::H && j + e % TW < Y::W - 1)"),
    "conv, teams": (
        "fp32", "team < TEAMS; ++team)\n            total += scratch[image * IMAGE_STRIDE + ((team",
        "team < TEAMS - 1; ++team)\n            total += scratch[image * IMAGE_STRIDE + ((team"),
    "conv, whole rows' filters": (
        "fp32", "MIRROR ? KH * KW - 1 - r * KW - q : r * KW + q;", "MIRROR ? KH * KW - 1 - r * KW - q : r * KW;"),
    "conv, columns beyond whole rows": ("fp32", "column >= 0 && column < X::W)", "column >= 0 && column < X::W - 1)"),
    "conv, mirrored": ("fp32", "weight[f][MIRROR ? KH * KW - 1 - t : t] * pixel", "weight[f][t] * pixel"),
    "conv_grad_w, a line": (
        "fp32", "for (int i = team; i < G::H; i += TEAMS) {",
        "for (int i = team; i < G::H - 1; i += TEAMS) {"),
    "conv_grad_w, later images": ("fp32", "REAL total = first ? (REAL)0 : part[image * SIZE + k];", "REAL total = 0;",
                                  "region_step"),
    "conv_grad_b": (
        "fp32", "for (int i = team * ROWS + down; i < G::H; i", "for (int i = team * ROWS + down; i < G::H - 1; i"),
    "avg_pool": (
        "fp32", "e < KH * KW; ++e) sum += *x.of(image).at(c, i", "e < KH * KW - 1; ++e) sum += *x.of(image).at(c, i",
        "region_step"),
    "avg_pool_grad, columns": (
        "fp32", "REAL g = gy.of(image)[k] *", "if (j == 0) return;\n        REAL g = gy.of(image)[k] *"),
    "activate": (
        "fp32", "{ y.of(image)[k] = ACTIVATE::value(x", "{ if (k + 1 < X::SIZE) y.of(image)[k] = ACTIVATE::value(x",
        "region_step"),
    "activate_grad": (
        "fp32", "gx.of(image)[k] = ACTIVATE::grad(gy", "if (k + 1 < G::SIZE) gx.of(image)[k] = ACTIVATE::grad(gy"),
    "load_rows": (
        "fp32", "SIZE = STAGED * IN;", "SIZE = STAGED * IN - 4;"),
    "linear": (
        "fp32", "bias = team ? (REAL)0 : b[begin + imin(o + r, COUNT - 1)];",
        "bias = b[begin + imin(o + r, COUNT - 1)];"),
    "linear, the last outputs": ("fp32", "o + r < first) continue;", "o + r <= first) continue;"),
    "linear_grad_x": (
        "fp32", "for (; o < OUT; o += TEAMS) add(o, row(w.far", "for (; o < OUT - 1; o += TEAMS) add(o, row(w.far"),
    "linear_grad_x, rows that come early": (
        "fp32", "if (o < OUT) add(o, early[e]);", "if (o < OUT - 1) add(o, early[e]);"),
    "warp_sums": ("fp32", "upper ? x[r] : x[r + half], half * LANES);", "x[r + half], half * LANES);"),
    "cross_entropy, smoothing": ("fp32", "- smoothing / (REAL)K - target", "- target"),
    "warp_most": ("fp32", "x = other > x || other != other ? other : x;", "x += other;", "region_step"),
    # sums.cuh
    "sums, product": (
        "fp32", "STEPS = (N + STEP - 1) / STEP,", "STEPS = N > STEP ? (N - 1) / STEP : 1,"),
    "sums, sum": (
        "fp32", "for (int k = team; k < N; k += SUM_THREADS / WIDE) total",
        "for (int k = team; k < N - 1; k += SUM_THREADS / WIDE) total"),
    # nhwc/conv
    "nhwc conv, the last slab": ("tf32", "slabs = g.sum / DEPTH, group", "slabs = imax(1, g.sum / DEPTH - 1), group"),
    "nhwc conv, divided, the last column": (
        "bf16", "left < g.w && up * g.divided_h", "left < g.w - 1 && up * g.divided_h", "conv2d_grad_x_nhwc"),
    "nhwc conv_tma, the last tap": (
        "tf32", "i < AT_ONCE && tap + i < last; ++i", "i < AT_ONCE && tap + i < last - (last > 1); ++i"),
    "nhwc conv_tma, pooled, the winner": (
        "tf32", "column = right ? ~lost : lost;", "column = lost;", "conv2d_max_pool_nhwc"),
    "nhwc conv_tma, gradient, the last warp": (
        "tf32", "warp < MULTIPLYING / 32; ++warp", "warp < MULTIPLYING / 32 - 1; ++warp"),
    "nhwc conv_tma, gradient, what is added": (
        "tf32", "place_of(t, step * NEIGHBOURS / 2, e)] += widened(more.v[e]);",
        "place_of(t, step * NEIGHBOURS / 2, e)] += widened(more.v[0]);"),
    "nhwc conv_tma, gradient, the mean": ("tf32", "* (widened(values.v[e]) - center[e]);", "* widened(values.v[e]);"),
    "nhwc conv_images, the last column": ("tf32", "0 <= at_w && at_w < g.w ?", "0 <= at_w && at_w < g.w - 1 ?"),
    "nhwc conv_few, the last tap": ("bf16", "there = tap < taps && c < g.c", "there = tap < taps - 1 && c < g.c"),
    "nhwc conv_few, the last row": (
        "tf32", "(unsigned)row < (unsigned)g.h && (FOLD > 1", "(unsigned)row < (unsigned)g.h - 1 && (FOLD > 1"),
    "nhwc conv_pack, the last filter": (
        "tf32", "there = filter < g.m && c < channels;", "there = filter < g.m - 1 && c < channels;"),
    "nhwc conv_pad, the last channel": ("bf16", "first + e < channels ? x[pixel", "first + e < channels - 1 ? x[pixel"),
    "nhwc conv_join, phases": ("bf16", "r * right.number + s) * pieces", "s * right.number + r) * pieces"),
    "nhwc conv_spread, columns": ("bf16", "if (up * down == row && left * right == column)", "if (up * down == row)"),
    # nhwc/grad_w
    "nhwc grad_w, a chunk's last pixel": (
        "bf16", "valid = pixel < live && filter + f < p.m;", "valid = pixel < live - 1 && filter + f < p.m;"),
    "nhwc grad_w_tma, bf16, the last pixels": (
        "bf16", "(patch.w / 8); left > 0; left -= 2", "(patch.w / 8); left > 2; left -= 2"),
    "nhwc grad_w_tma, tf32, the first line": (
        "tf32", "for (int i = 0; i < LINES - 1; ++i) load_line(b[(t + 1",
        "for (int i = 1; i < LINES - 1; ++i) load_line(b[(t + 1"),
    "nhwc few_grad_w, shares": ("tf32", "*to = turn ? *to + sums[i][t][e] : sums[i][t][e];", "*to = sums[i][t][e];"),
    "nhwc grad_w_sum, the last part": ("tf32", "split < own; split += share", "split < own - 1; split += share"),
    # layers/pool/pool.cu, in NHWC alone: an eager step has the same kernels in NCHW
    "nhwc max_pool, the winner": (
        "tf32", "where.v[e] = p * g.kw + q;", "where.v[e] = p * g.kh + q;", "max_pool2d"),
    "nhwc max_pool_grad, padding": ("tf32", "q = column + g.left - b * g.sw;",
                                    "q = column + (LAYOUT == NCHW ? g.left : 0) - b * g.sw;"),
    "nhwc max_pool_grad, apart, the last column": (
        "bf16", "at.row < g.oh && at.column < g.ow) {", "at.row < g.oh && at.column < g.ow - (LAYOUT == NHWC)) {",
        "max_pool2d_grad_x"),
    "nhwc max_pool_grad, relu": (
        "tf32", "y && known.v[e] <= 0 ? (REAL)0 : run.v[e] + (REAL)0;", "run.v[e] + (REAL)0;",
        "max_pool2d_grad_relu_b"),
    "nhwc max_pool_grad, bias": (
        "tf32", "Run run = given(at);\n#pragma unroll\n        for (int i = 0; i",
        "Run run = given(at);\n#pragma unroll\n        for (int i = 1; i", "max_pool2d_grad_relu_b"),
    "nhwc avg_pool, the last column": (
        "tf32", "#pragma unroll 4\n            for (int q = imax(0, -s); q < imin(g.kw, g.w - s); q++) {",
        "#pragma unroll 4\n            for (int q = imax(0, -s); q < imin(g.kw, g.w - s - 1); q++) {"),
    "nhwc pool's gradients, the last window": (
        "bf16", "imin((r + more + before) / stride + 1, count)) {}",
        "imin((r + more + before) / stride + 1, count - 1)) {}"),
    "nhwc avg_pool_grad_act": (
        "tf32", "before(sum.v[e] * share, known.v[e]);", "before(sum.v[e] * share, known.v[0]);",
        "avg_pool2d_grad_act"),
    # layers/activation/activation.cu and nhwc/elementwise.cu, and the sums of image.cuh
    "nhwc act, the first channel": (
        "tf32", "for (int i = 0; i < WIDE; ++i) run.v[i] = ACT_VALUE(",
        "for (int i = 1; i < WIDE; ++i) run.v[i] = ACT_VALUE("),
    "nhwc act_grad, a neighbour's": (
        "tf32", "i < WIDE; ++i) run.v[i] = ACT_GRAD(run.v[i], known.v[i]);",
        "i < WIDE; ++i) run.v[i] = ACT_GRAD(run.v[i], known.v[0]);", "act_grad_nhwc"),
    "nhwc add, a neighbour's": ("tf32", "after(run.v[i] + other.v[i]);", "after(run.v[i] + other.v[0]);"),
    "nhwc grad_b, the first channel": (
        "tf32", "Run run = load(gy + at);\n#pragma unroll\n        for (int i = 0; i < WIDE; ++i) sum",
        "Run run = load(gy + at);\n#pragma unroll\n        for (int i = 1; i < WIDE; ++i) sum"),
    "nhwc act_grad_b, the order": (
        "tf32", "run.v[i] = ACT_GRAD(run.v[i], known.v[i]);\n            sum[0][i] += run.v[i];",
        "sum[0][i] += run.v[i];\n            run.v[i] = ACT_GRAD(run.v[i], known.v[i]);"),
    "nhwc sums, the last rows": ("tf32", "own < walk.step; ++own) total", "own < walk.step - 1; ++own) total"),
    # nhwc/norm/batch.cu
    "nhwc moments": ("tf32", "sum[0][i] += d;", "sum[0][i] += run.v[i];"),
    "nhwc norm, variance": (
        "tf32", "sums[g.channels + channel] - off * sums[channel], 0.0f", "sums[g.channels + channel], 0.0f"),
    "nhwc norm, residual": ("tf32", "bias.v[i]) + more.v[i]);", "bias.v[i])) + more.v[i];"),
    "nhwc norm's products, the mean": ("bf16", "(values.v[i] - mean.v[i]) * rstd.v[i];", "values.v[i] * rstd.v[i];"),
    "nhwc norm's products again, the first channel": (
        "tf32", "for (int i = 0; i < WIDE; ++i) scale.v[i] *= deviation.v[i];",
        "for (int i = 1; i < WIDE; ++i) scale.v[i] *= deviation.v[i];"),
    "nhwc norm's gradient": ("tf32", "product.v[i] *= share * scale.v[i];", "product.v[i] *= share;"),
    # nhwc/convert.cu
    "to_nhwc, the last pixel": (
        "tf32", "= x[(first.image * channels + channel) * pixels + pixel];",
        "= pixel < pixels - 1 ? x[(first.image * channels + channel) * pixels + pixel] : 0.0f;"),
    "to_nchw, the last channel": ("bf16", "+ channel).v[0];", "+ channel).v[0] * (channel < channels - 1);"),
    # layers/norm, layers/activation and layers/pool: what is fused in NCHW
    "norm_act, residual": (
        "fp32", "ACT_VALUE(other ? value + others.v[j] : value);", "ACT_VALUE(value) + (other ? others.v[j] : 0);"),
    "norm_act's products, the mean": (
        "fp32", "run.v[j] * ((xs.v[j] - center) * scale);", "run.v[j] * (xs.v[j] * scale);"),
    "add_grad_act": (
        "fp32", "run.v[i] += more.v[i];", "run.v[i] += run.v[i];",
        "add_grad_act"),
    "avg_pool_grad_act, tiled, a window's first row": (
        "fp32", "ACT_GRAD(share, y[top + p * w])", "ACT_GRAD(share, y[top])"),
    "avg_pool_grad_act, a neighbour's": (
        "fp32", "if (AFTER) known = load(y + i);", "if (AFTER) known = load(y + i / 2 * 2);"),
    # layers/linear/gemm.cu
    "linear_act, the last column's bias": (
        "fp32", "if (bias) out.v[j] += bias[row",
        "if (bias\n#if FUSED == VALUE\n && column + j < p.cols - 1\n#endif\n) out.v[j] += bias[row"),
    "linear_grad_act, a neighbour's": (
        "fp32", "finished(out.v[j], y + at + j);",
        "finished(out.v[j], y + at + j\n#if FUSED == GRAD\n - (column > 0)\n#endif\n);"),
    "linear_and_act": ("fp32", "    *y = ACT_VALUE(value);\n#endif\n", "    *y = value = ACT_VALUE(value);\n#endif\n"),
    "gemm_finish, the last column's bias": (
        "fp32", "if (bias) sum += bias[at",
        "if (bias\n#if FUSED == VALUE\n && at % p.cols < p.cols - 1\n#endif\n) sum += bias[at"),
    # layers/loss/cross_entropy.cu
    "cross_entropy_with_grad, the last class": (
        "fp32", "for (int k = lane; k < classes; k += lanes)\n                mine[k]",
        "for (int k = lane; k < classes - 1; k += lanes)\n                mine[k]"),
    # conv: which of these kernels a layer has is measured, so that a fault may be found on one GPU and not on another,
    # unless an algorithm is named behind the call
    "conv2d_grad_b, the last pixel": ("tf32", "value[k] = i < count ?", "value[k] = i < count - 1 ?"),
    **{f"resident, activation, {precision}": (
        precision, "sum[i][j] = ACT_VALUE(sum[i][j]);", "if (j0 + j < p.ow - 1) sum[i][j] = ACT_VALUE(sum[i][j]);")
       for precision in ("fp32", "tf32", "bf16")},
    **{f"resident, averages, {precision}": (
        precision, "for (int e = 0; e < POOL * POOL; ++e) total", "for (int e = 1; e < POOL * POOL; ++e) total",
        "conv2d_act_pool")
       for precision in ("fp32", "tf32", "bf16")},
    "winograd, activation": (
        "fp32", "out[j] = ACT_VALUE(out[j]);", "if (2 * j0 + j < p.ow - 1) out[j] = ACT_VALUE(out[j]);", "conv2d_act",
        "winograd"),
    "winograd's gradients, shares": (
        "fp32", "share[s] *= (REAL)(1.0 / (POOL * POOL));", "share[s] *= (REAL)(1.0 / POOL);",
        "conv2d_act_pool_grad_wb", "winograd"),
    "whole_image's gradients, a neighbour's": (
        "fp32", "valid ? mean[e / RUN] *", "valid ? mean[e / RUN / 2] *", "conv2d_act_pool_grad_wb",
        "whole_image"),
    "tensor_core_image's gradients, rows": (
        "tf32", "ACT_GRAD(mean[i / POOL][f] *", "ACT_GRAD(mean[0][f] *", "conv2d_act_pool_grad_wb",
        "tensor_core_image"),
    "few_channels's gradients, a neighbour's": (
        "bf16", "ACT_GRAD(mean[map][e / POOL], widened", "ACT_GRAD(mean[map][0], widened", "conv2d_act_pool_grad_wb",
        "few_channels"),
}


def plant(name: str) -> str:
    """Change the sources of this process, which has compiled nothing yet; returns the precision that has the kernel."""
    from minidl.ops.common import sources
    from minidl.ops.cuda import launch

    precision, old, new, *_ = FAULTS[name]
    right = sources.pasted
    if not any(old in file.read_text(encoding="utf-8") for file in sources.FOLDER.rglob("*.cu*")):
        raise ValueError(f"random_fusions: no source holds {old!r}, which the fault {name!r} changes; correct it")

    def pasted(file: str, text: str, seen: set[str]) -> str:
        return right(file, text, seen).replace(old, new)
    sources.pasted = launch.pasted = pasted
    return precision


def find(task: tuple[str, range, str, Any, float]) -> tuple[str, str, int]:
    """(fault, the first of these nets that finds it, or "", nets tried until a time, or another task found it)"""
    name, numbers, device, found, until = task
    if name in found or time.time() > until:
        return name, "", 0
    precision, call, algorithm = plant(name), *(*FAULTS[name][3:], "", "")[:2]
    for tried, number in enumerate(numbers):
        if name in found or time.time() > until:
            return name, "", tried
        drawn = net(number)
        if call and call not in calls_of(drawn, device, precision):
            continue
        drawn = replace(drawn, algorithm=algorithm or drawn.algorithm)
        share, where, _ = compare(drawn, device, precision)
        if share > 1:
            return name, f"net {number}, {where}: {share:.3g} of its limit", tried + 1
    return name, "", len(numbers)


def find_all(given: argparse.Namespace, numbers: range) -> int:
    """Nets in runs of TRIED, each of a process of its own: the first run for all faults, then the next."""
    context = multiprocessing.get_context("spawn")
    tried = dict.fromkeys((name for name in FAULTS if not given.fault or name in given.fault), 0)
    with context.Manager() as manager, context.Pool(given.processes, maxtasksperchild=1) as pool:
        found, until = manager.dict(), time.time() + given.seconds
        tasks = [(name, numbers[first:first + TRIED], given.device, found, until)
                 for first in range(0, len(numbers), TRIED) for name in tried]
        for name, where, nets in pool.imap_unordered(find, tasks, 1):
            tried[name] += nets
            if where and name not in found:
                found[name] = where
                print(f"{name:40} {where}; {tried[name]} nets tried", flush=True)
        left = [name for name in tried if name not in found]
    print(*(f"{name:40} NOT FOUND by {tried[name]} nets" for name in left), sep="\n")
    print(f"{len(tried) - len(left)} of {len(tried)} planted faults are found by {len(numbers)} nets")
    return 0


def differs(task: tuple[int, str, str]) -> tuple[int, str, float, str, list[str]]:
    number, device, precision = task
    return number, precision, *compare(net(number), device, precision)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first net")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--precision", choices=list(ROUNDING), action="append", help="several: each net in each (all)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long")
    parser.add_argument("--net", type=int, help="run and print this one alone")
    parser.add_argument("--faults", action="store_true", help="which planted faults so many nets find")
    parser.add_argument("--fault", action="append", metavar="NAME", choices=list(FAULTS), help="of these alone")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    numbers = range(given.first, given.first + given.nets) if given.net is None else range(given.net, given.net + 1)
    if given.faults or given.fault:
        return find_all(given, numbers)
    tasks = [(number, given.device, precision) for number in numbers for precision in given.precision or ROUNDING]
    shares: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    with context.Pool(min(given.processes, len(tasks))) as pool:
        for number, precision, share, where, names in timed(pool.imap_unordered(differs, tasks, 4), len(tasks),
                                                         given.seconds):
            shares.setdefault(precision, []).append(share)
            for name in names:
                calls[name] = calls.get(name, 0) + 1
            if share > 1 or given.net is not None:
                print(f"{net(number)}\n# {precision}: {share:.3g} of its limit at {where}\n# {' '.join(names)}",
                      flush=True)
    wrong = 0
    for precision, each in shares.items():
        wrong += sum(share > 1 for share in each)
        print(f"{precision}: {len(each)} nets, {sum(share > 1 for share in each)} beyond their limit; shares of it: "
              f"median {np.median(each):.2g}, 99 of 100 {np.quantile(each, 0.99):.2g}, largest {max(each):.2g}")
    print("programs with", ", ".join(f"{name} {count}" for name, count in sorted(calls.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
