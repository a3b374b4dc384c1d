"""Random nets of what a generated kernel, a fused call or a form in NHWC can take: compiled beside eager, on a GPU.

    python tests/random_fusions.py --nets 2000 --processes 16 [--precision bf16] [--device cpu]
    python tests/random_fusions.py --nets 500 --first 1500 ...               # the last quarter of them, on a fourth GPU
    python tests/random_fusions.py --faults --nets 60 --processes 16         # which planted faults are found

Sizes leave rows and columns over, strides are unlike windows, channels odd, batches from 1 to 513. Four steps from
the same parameters run eagerly and compiled, of which two are replays: loss, gradients, buffers and parameters are
compared.
How far rounding may move a result differs from net to net, so that a compiled step may be as far from the eager one as
that is from itself if parameters and images change by their precision's rounding. Under MINIDL_POISON=1 what a kernel
reads before it was written is NaN (docs/kernels.md).

A planted fault (FAULTS) is a change of a kernel's source, in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":                 # the package beside this folder, not an installed one
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim

ROUNDING = {"fp32": 2.0 ** -19, "3xtf32": 2.0 ** -18, "tf32": 2.0 ** -10, "bf16": 2.0 ** -7}
TIMES = 4                                  # of what such a change does to a result, which is what is allowed
BATCHES = (1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 64, 96, 100, 128, 131, 132, 133, 200, 256, 257, 264, 265, 400, 512, 513)
SIZE = 3_000_000                           # elements of a batch between layers, at most
OF_REGIONS = ("nn.ReLU()", "nn.Tanh()", "nn.Sigmoid()", "nn.ScaledTanh()")
ACTIVATIONS = (*OF_REGIONS, "nn.ReLU()", "nn.GELU()", "nn.SiLU()", "nn.LeakyReLU(0.2)", "nn.ELU()", "nn.Softplus()",
               "nn.Hardsigmoid()")
STEPS = 4
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

    def __str__(self) -> str:
        return "\n".join((f"# net {self.number}: {self.n} images of {self.shape}, {self.classes} classes, "
                          f"label_smoothing={self.smoothing}, {self.reduction}",
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
        return c, oh, ow

    def residual(self, c: int, h: int, w: int) -> tuple[int, int, int]:
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
                   self.one("mean", "mean", "sum"))


def net(number: int) -> Net:
    """The net of that number."""
    return Drawer(random.Random(f"fusions {number}")).net(number)


# ---------------------------------------------------------------- running
def run(net: Net, compiled: bool, device: str, precision: str, moved: float = 0.0, seed: int = 0) -> tuple[Notes, Any]:
    """What there is after each step, and the step. moved: the share of itself by which each number changes first."""
    minidl.manual_seed(net.number)
    model: nn.Module = eval(f"nn.Sequential({', '.join(net.layers)})", dict(NAMES))
    rng, other = np.random.default_rng(net.number), np.random.default_rng([seed, net.number])

    def near(a: np.ndarray) -> np.ndarray:
        return (a * (1 + moved * other.choice((-1.0, 1.0), a.shape))).astype(np.float32)
    for p in model.parameters():
        p.data[...] = near(p.data)
    model.to(device)
    sgd = optim.SGD(model.parameters(), lr=1e-3 if net.reduction == "mean" else 1e-3 / net.n, momentum=0.9)

    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(model(x), labels, label_smoothing=net.smoothing, reduction=net.reduction)
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
    return notes, call


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
    eager, _ = run(net, False, device, precision)
    rounding = ROUNDING[precision]
    moved = [gaps(eager, run(net, False, device, precision, rounding, seed)[0]) for seed in (1, 2)]
    compiled, call = run(net, True, device, precision)
    shares, worst = gaps(compiled, eager), (0.0, "")
    for at, gap in shares.items():
        kind = [np.max(np.abs(a), initial=0) for name, a in eager[at[0]].items()
                if name.endswith(".grad") == at[1].endswith(".grad") and name != "loss"]
        own = float(np.max(np.abs(eager[at[0]][at[1]]), initial=0))
        limit = TIMES * max(each[at] for each in moved) + rounding * (own + 0.02 * float(max(kind, default=0))) + 1e-12
        worst = max(worst, (gap / limit, f"step {at[0]}: {at[1]}"))
    return *worst, sorted({each.name for each in call.program.calls}) if call.program else []


# ---------------------------------------------------------------- planted faults: name -> (precision, old, new)
FAULTS: dict[str, tuple[str, str, str]] = {
    # region.cuh
    "clear": ("fp32", "*(Pack<4>*)&memory[i] = Pack<4>();", ";"),
    "load_filters": (
        "fp32", "i / TAPS * up(TAPS, 4) + i % TAPS], &w[i], true",
        "i / TAPS * up(TAPS, 4) + i % TAPS], &w[i], i > 0"),
    "load_image": ("fp32", "for (int k = threadIdx.x; k < X::SIZE; k += T) x[k] = from[k];",
                   "for (int k = threadIdx.x; k < X::SIZE - 1; k += T) x[k] = from[k];"),
    "store_image": ("fp32", "for (int k = threadIdx.x; k < X::SIZE; k += T) to[k] = x[k];",
                    "for (int k = threadIdx.x; k < X::SIZE - 1; k += T) to[k] = x[k];"),
    "copy": ("fp32", "k < X::SIZE; k += T) y[k] = x[k];", "k < X::SIZE - 1; k += T) y[k] = x[k];"),
    "conv, a row too few": (
        "fp32", "r <= KH; ++r) {\n                REAL pixel[N];",
        "r < KH; ++r) {\n                REAL pixel[N];"),
    "conv, the last column": (
        "fp32", "else if (i + e / 4 < Y::H && j + e % 4 < Y::W)",
        "else if (i + e / 4 < Y::H && j + e % 4 < Y::W - 1)"),
    "conv, teams": (
        "fp32", "team < TEAMS; ++team) total += sums[team * 8 * ITEMS];",
        "team < TEAMS - 1; ++team) total += sums[team * 8 * ITEMS];"),
    "conv, mirrored": ("fp32", "MIRROR ? KH * KW - 1 - t : t", "t"),
    "conv_grad_w, a line": (
        "fp32", "for (int i = team; i < G::H; i += TEAMS) {",
        "for (int i = team; i < G::H - 1; i += TEAMS) {"),
    "conv_grad_w, later images": ("fp32", "part[k] = first ? sum[f][q] : part[k] + sum[f][q];", "part[k] = sum[f][q];"),
    "conv_grad_b": (
        "fp32", "k < G::H * G::W; k += TEAMS * 32) sum += gy",
        "k < G::H * G::W - 1; k += TEAMS * 32) sum += gy"),
    "avg_pool": ("fp32", "k % Y::W * SW);", "k % Y::W * KW);"),
    "avg_pool_grad, columns": (
        "fp32", "REAL g = gy[k] * (REAL)(1.0 / (KH * KW));",
        "if (j == 0) continue;\n        REAL g = gy[k] * (REAL)(1.0 / (KH * KW));"),
    "activate": (
        "fp32", "k < X::SIZE; k += T) y[k] = ACTIVATE::value(x[k]);",
        "k < X::SIZE - 1; k += T) y[k] = ACTIVATE::value(x[k]);"),
    "activate_grad": (
        "fp32", "k < G::SIZE; k += T) gx[k] = ACTIVATE::grad(gy[k], y[k]);",
        "k < G::SIZE - 1; k += T) gx[k] = ACTIVATE::grad(gy[k], y[k]);"),
    "load_rows": (
        "fp32", "for (int i = threadIdx.x * V; i < NEAR * IN; i += T * V)",
        "for (int i = threadIdx.x * V; i < NEAR * IN - 4; i += T * V)"),
    "linear": (
        "fp32", "mine = b && !team ? b[imin(o + lane, OUT - 1)] : (REAL)0;",
        "mine = b ? b[imin(o + lane, OUT - 1)] : (REAL)0;"),
    "linear_grad_x": (
        "fp32", "for (int o = team; o < OUT; o += TEAMS) {\n            Pack<V> weight",
        "for (int o = team; o < OUT - 1; o += TEAMS) {\n            Pack<V> weight"),
    "cross_entropy, smoothing": ("fp32", "- smoothing / (REAL)K - target", "- target"),
    "warp_most": (
        "fp32", "x = other > x || other != other ? other : x;",
        "x = other < x || other != other ? other : x;"),
    # sums.cuh
    "sums, product": (
        "fp32", "for (int k = 0; k < N; k += STEP) {",
        "for (int k = 0; k < (N > STEP ? N - STEP : N); k += STEP) {"),
    "sums, sum": (
        "fp32", "for (int k = team; k < N; k += SUM_THREADS / WIDE) total",
        "for (int k = team; k < N - 1; k += SUM_THREADS / WIDE) total"),
}


def plant(name: str) -> str:
    """Change the sources of this process, which has compiled nothing yet; returns the precision that has the kernel."""
    from minidl.ops.common import sources
    from minidl.ops.cuda import launch

    precision, old, new = FAULTS[name]
    right = sources.pasted
    if not any(old in file.read_text(encoding="utf-8") for file in sources.FOLDER.rglob("*.cu*")):
        raise ValueError(f"random_fusions: no source holds {old!r}, which the fault {name!r} changes; correct it")

    def pasted(file: str, text: str, seen: set[str]) -> str:
        return right(file, text, seen).replace(old, new)
    sources.pasted = launch.pasted = pasted
    return precision


def find(task: tuple[str, range, str]) -> tuple[str, str]:
    """(fault, the first net that finds it, or "")"""
    name, numbers, device = task
    precision = plant(name)
    for number in numbers:
        share, where, _ = compare(net(number), device, precision)
        if share > 1:
            return name, f"net {number}, {where}: {share:.3g} of its limit"
    return name, ""


def tried(task: tuple[int, str, str]) -> tuple[int, str, float, str, list[str]]:
    number, device, precision = task
    return number, precision, *compare(net(number), device, precision)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first net")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--precision", choices=list(ROUNDING), action="append", help="several: each net in each (all)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--net", type=int, help="run and print this one alone")
    parser.add_argument("--faults", action="store_true", help="which planted faults so many nets find")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    numbers = range(given.first, given.first + given.nets) if given.net is None else range(given.net, given.net + 1)
    if given.faults:
        with context.Pool(given.processes, maxtasksperchild=1) as pool:
            found = dict(pool.imap_unordered(find, [(name, numbers, given.device) for name in FAULTS], 1))
        for name in FAULTS:
            print(f"{name:28} {found[name] or 'NOT FOUND'}")
        print(f"{sum(map(bool, found.values()))} of {len(FAULTS)} planted faults are found by {len(numbers)} nets")
        return 0
    tasks = [(number, given.device, precision) for number in numbers for precision in given.precision or ROUNDING]
    shares: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    with context.Pool(min(given.processes, len(tasks))) as pool:
        for number, precision, share, where, names in pool.imap_unordered(tried, tasks, 4):
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
