"""Random nets of all layers, trained for a few steps by a random loss and optimizer.

    python tests/random_nets.py --nets 500 [--device cuda] [--seconds 1200] [--processes 16]

What differs is printed as the net that it is.

A net is drawn as the text of its layers, which minidl.nn and torch.nn build alike (layers that PyTorch lacks are in
ops/test_random_nets.py). It is run in worlds (tests/twins.py): on the CPU or on CUDA, plain or compiled, in float32 or
float64. Compiled on the CPU, the bits are the plain world's. Elsewhere sums round otherwise, and how far that may move
a result differs from net to net: so a float32 run may be as far from float64 as float64 is from itself if all
parameters, and all that layers hand on, change by PERTURBATION of their size.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":                 # the package beside this folder, not an installed one
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from twins import Notes, Refused, World

import minidl
from minidl import Tensor, nn, no_grad, ops, optim

REPORT = 10                                # seconds between two lines that say how far a run is
CLASSES = 3
PERTURBATION = 2.0 ** -17                  # 64 times float32's rounding
CHANGES = (1, 16)                          # so many are tried, and where a run is beyond its limit, so many, since few
                                           # carry a value across the kink of a ReLU
FLOOR = 2.0 ** -13                         # of the largest value of its kind in the net: what is 0 but for rounding
EPS = 0.05                                 # of normalisations that stand anywhere: of equal values, rounding would grow
SIZE = 400                                 # elements of an image between layers, at most
BATCHES = (6, 6, 6, 5, 5, 6)               # with an odd one; the third of a size is replayed
ACTIVATIONS = ("nn.ReLU()", "nn.ReLU()", "nn.Tanh()", "nn.Sigmoid()", "nn.GELU()", "nn.GELU('tanh')", "nn.SiLU()",
               "nn.ELU()", "nn.ELU(1.5)", "nn.LeakyReLU()", "nn.LeakyReLU(0.2)", "nn.Softplus()", "nn.Hardsigmoid()",
               "nn.ScaledTanh()")
LOSSES = ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(label_smoothing=0.1)", "nn.CrossEntropyLoss(ignore_index=1)",
          "nn.NLLLoss()", "nn.NLLLoss(reduction='sum')", "nn.BCEWithLogitsLoss()", "nn.MSELoss()",
          "nn.MSELoss(reduction='sum')", "nn.L1Loss()", "nn.HuberLoss()", "nn.HuberLoss(delta=0.3)")
# Where a gradient is 0 but for rounding, Adam with its usual eps would make whole steps of that.
OPTIMIZERS = ("optim.SGD(net.parameters(), lr=0.01)", "optim.SGD(net.parameters(), lr=0.004, momentum=0.9)",
              "optim.SGD(net.parameters(), lr=0.004, momentum=0.9, weight_decay=0.01, nesterov=True)",
              "optim.Adam(net.parameters(), lr=0.01, eps=0.01)",
              "optim.AdamW(net.parameters(), lr=0.01, eps=0.01, weight_decay=0.1)",
              "optim.RMSprop(net.parameters(), lr=0.01, eps=0.1)",
              "optim.RMSprop(net.parameters(), lr=0.01, eps=0.1, momentum=0.5, centered=True)")


# ---------------------------------------------------------------- layers of several
class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + x


class Beside(nn.Module):
    """What several layers make of x, joined along axis 1; they are a ModuleList or a ModuleDict."""

    def __init__(self, parts: Any):
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts.values() if hasattr(self.parts, "values") else self.parts
        return ops.concatenate([part(x) for part in parts], axis=1)


class First(nn.Module):
    """The first of what a layer of one or of several inputs, here all x, gives: an output, and not the state."""

    def __init__(self, body: nn.Module, inputs: int = 1):
        super().__init__()
        self.body, self.inputs = body, inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.body(*[x] * self.inputs)[0]


class Deep(nn.Module):
    """The channels as the depth of one volume."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.unsqueeze(1)).squeeze(1)


class Means(nn.Module):
    """Over axis 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(axis=1)


# ---------------------------------------------------------------- drawing
@dataclass(frozen=True)
class Net:
    """The text of its layers, of its loss and of its optimizer, and the shape of what it is given: of an image, a
    series or a vector, and (t,) of numbers below TOKENS."""

    number: int
    layers: tuple[str, ...]
    loss: str
    optimizer: str
    shape: tuple[int, ...]
    tokens: bool

    def __str__(self) -> str:
        return "\n".join((f"# net {self.number}, of {'tokens ' * self.tokens}{self.shape}", "nn.Sequential(",
                          *(f"    {layer}," for layer in self.layers), ")", self.loss, self.optimizer))

    def batches(self) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(x, labels, target) for each call, float64."""
        for i, n in enumerate(BATCHES):
            rng = np.random.default_rng([self.number, i])
            x = rng.integers(0, TOKENS, (n, *self.shape)) if self.tokens else rng.standard_normal((n, *self.shape))
            labels = rng.integers(0, CLASSES, n)
            labels[0] = 2                  # never all of them ignored
            yield x, labels, rng.uniform(0, 1, (n, CLASSES))


TOKENS = 11


class Drawer:
    """Draws layers, each of what fits the shape that there is."""

    def __init__(self, rng: random.Random):
        self.rng, self.layers = rng, list[str]()

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def activation(self) -> str:
        return self.rng.choice(ACTIVATIONS)

    def bias(self) -> str:
        return self.one("", "", ", bias=False")

    def norm(self, shape: tuple[int, ...]) -> str:
        """Any that normalises an array (n, *shape)."""
        c, rank = shape[0], len(shape)
        groups = self.one(*([g for g in (1, 2, 3, c) if c % g == 0 and c // g * math.prod(shape[1:]) > 2] or [1]))
        last = self.one(shape, shape[-1:])
        batch = f"nn.BatchNorm{2 if rank == 3 else 1}d({c}"
        kinds = [f"{batch}, eps={EPS})", f"{batch}, eps={EPS}, momentum=0.3)", f"{batch}, eps={EPS}, affine=False)",
                 f"{batch}, eps={EPS}, track_running_stats=False)"]
        affine = self.one("", ", elementwise_affine=False")
        kinds += [f"nn.LayerNorm({last if len(last) > 1 else last[0]}, eps={EPS}{affine})"] * (math.prod(last) > 2)
        kinds += [f"nn.GroupNorm({groups}, {c}, eps={EPS})"] if c // groups * math.prod(shape[1:]) > 2 else []
        kinds += [f"nn.LocalResponseNorm({self.one(1, 2, 3)}, 0.5, 0.75, 1.5)"] * 2 if rank == 3 else []
        return self.rng.choice(kinds)

    # ------------------------------------------------------------------ images (c,h,w)
    def image(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        c, h, w = shape
        makes: list[Callable[..., tuple[int, ...] | None]] = [
            self.convolution, self.convolution, self.block, self.block, self.pooling, self.pooling, self.larger,
            self.residual, self.beside, self.as_it_was, self.as_it_was, self.lecun, self.volume]
        made = self.rng.choice(makes)(c, h, w)
        return made if made is not None else shape

    def size_of(self, n: int, k: int, stride: int, padding: int, dilation: int = 1) -> int:
        return (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1

    def convolution(self, c: int, h: int, w: int, bias: str | None = None) -> tuple[int, ...] | None:
        k, stride, padding, dilation = self.one(1, 2, 3, 3), self.one(1, 1, 2), self.one(0, 1), self.one(1, 1, 2)
        groups = self.one(1, 1, *(g for g in (2, c) if c % g == 0))
        m = groups * self.one(*(n for n in (1, 2, 3, 4, 6) if n * groups <= 8))
        oh, ow = (self.size_of(n, k, stride, padding, dilation) for n in (h, w))
        if min(oh, ow) < 1 or m * oh * ow > SIZE:
            return None
        self.layers.append(f"nn.Conv2d({c}, {m}, {k}, stride={stride}, padding={padding}, groups={groups}, "
                           f"dilation={dilation}{self.bias() if bias is None else bias})")
        return m, oh, ow

    def block(self, c: int, h: int, w: int) -> tuple[int, ...] | None:
        """Convolution, batch normalisation, activation."""
        made = self.convolution(c, h, w, ", bias=False")
        if made is not None:
            self.layers += [f"nn.BatchNorm2d({made[0]})", self.activation()]
        return made

    def pooling(self, c: int, h: int, w: int) -> tuple[int, ...] | None:
        if self.rng.random() < 0.2:
            to = self.one(2, (2, 3), (None, 2))
            self.layers.append(f"nn.AdaptiveAvgPool2d({to})")
            return (c, *(n if o is None else o for n, o in zip((h, w), to if isinstance(to, tuple) else (to, to))))
        k, stride = self.one(2, 3), self.one(None, None, 1, 2)
        padding = self.one(0, 0, 1)
        oh, ow = (self.size_of(n, k, stride or k, padding) for n in (h, w))
        if min(oh, ow) < 1:
            return None
        self.layers.append(f"nn.{self.one('Max', 'Avg')}Pool2d({k}, {stride}, {padding})")
        return c, oh, ow

    def larger(self, c: int, h: int, w: int) -> tuple[int, ...] | None:
        if self.rng.random() < 0.3 and 4 * c * h * w <= SIZE:
            m = c if c % 4 == 0 else 4
            self.layers += [f"nn.Conv2d({c}, {m}, 1)"] * (m != c) + ["nn.PixelShuffle(2)"]
            return m // 4, 2 * h, 2 * w
        if self.rng.random() < 0.4 and 4 * c * h * w <= SIZE:
            self.layers.append("nn.Upsample(scale_factor=2)")
            return c, 2 * h, 2 * w
        k, stride, padding, m = self.one(2, 3), self.one(1, 2), self.one(0, 1), self.one(2, 4)
        more = self.one(0, stride - 1)
        oh, ow = ((n - 1) * stride - 2 * padding + k + more for n in (h, w))
        if min(oh, ow) < 1 or m * oh * ow > SIZE:
            return None
        self.layers.append(f"nn.ConvTranspose2d({c}, {m}, {k}, stride={stride}, padding={padding}, "
                           f"output_padding={more}{self.bias()})")
        return m, oh, ow

    def residual(self, c: int, h: int, w: int) -> tuple[int, ...]:
        self.layers += [f"Residual(nn.Sequential(nn.Conv2d({c}, {c}, 3, padding=1, bias=False), nn.BatchNorm2d({c}), "
                        f"{self.activation()}, nn.Conv2d({c}, {c}, 3, padding=1), nn.BatchNorm2d({c})))",
                        self.activation()]
        return c, h, w

    def beside(self, c: int, h: int, w: int) -> tuple[int, ...] | None:
        if 5 * h * w > SIZE:
            return None
        one, other = f"nn.Conv2d({c}, 2, 1)", f"nn.Conv2d({c}, 3, 3, padding=1)"
        self.layers.append(f"Beside(nn.ModuleList([{one}, {other}]))" if self.rng.random() < 0.5 else
                           f"Beside(nn.ModuleDict({{'one': {one}, 'other': {other}}}))")
        return 5, h, w

    def volume(self, c: int, h: int, w: int) -> tuple[int, ...] | None:
        k, padding = self.one((1, 0), (2, 0), (3, 0), (3, 1))
        made = tuple(self.size_of(n, k, 1, padding) for n in (c, h, w))
        if min(made) < 1 or math.prod(made) > SIZE:
            return None
        self.layers.append(f"Deep(nn.Conv3d(1, 1, {k}, padding={padding}{self.bias()}))")
        return made

    def as_it_was(self, *shape: int) -> tuple[int, ...]:
        self.layers.append(self.one(
            self.activation(), self.activation(), self.norm(shape), self.norm(shape), "nn.Identity()",
            "nn.Dropout2d(0.3)" if len(shape) == 3 else "nn.Dropout(0.3)", f"nn.Softmax(dim={self.one(1, -1)})"))
        return shape

    def lecun(self, c: int, h: int, w: int) -> tuple[int, ...] | None:
        """Layers of 1998, and one that has their sizes."""
        if self.rng.random() < 0.5 and min(h, w) > 1:
            self.layers.append(f"nn.Subsample2d({c})")
            return c, h // 2, w // 2
        if c < 2 or min(h, w) < 3:
            return None
        self.layers.append(f"nn.LocallyConnected2d({c}, 3, ({h}, {w}), 3)" if (h + w) % 2 else
                           f"nn.TableConv2d({c}, [(0, 1), (1,), (0,)], 3)")
        return 3, h - 2, w - 2

    # ------------------------------------------------------------------ series (c,l), rows (t,d) and vectors (f,)
    def series(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        c, length = shape
        k, stride, padding, dilation = self.one(1, 2, 3), self.one(1, 2), self.one(0, 1), self.one(1, 2)
        groups = self.one(1, *(g for g in (2, c) if c % g == 0))
        made = self.size_of(length, k, stride, padding, dilation)
        if made < 1 or self.rng.random() < 0.5:
            return self.as_it_was(*shape)
        m = groups * self.one(1, 2)
        self.layers.append(f"nn.Conv1d({c}, {m}, {k}, stride={stride}, padding={padding}, dilation={dilation}, "
                           f"groups={groups}{self.bias()})")
        return m, made

    def rows(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        t, d = shape
        kind = self.one("linear", "norm", "as it was", "residual", "recurrent", "attention")
        if kind == "recurrent":
            both, made = self.one(True, False), self.one(3, 4)
            self.layers.append(f"First(nn.{self.one('RNN', 'LSTM', 'GRU')}({d}, {made}, {self.one(1, 2)}, "
                               f"batch_first=True, bidirectional={both}{self.bias()}))")
            return t, made * (1 + both)
        if kind == "attention":
            heads = self.one(*(n for n in (1, 2, 3) if d % n == 0))
            self.layers.append(f"First(nn.MultiheadAttention({d}, {heads}, batch_first=True{self.bias()}), 3)")
            return shape
        if kind == "linear":
            self.layers.append(f"nn.Linear({d}, {self.one(4, 5)}{self.bias()})")
            return t, int(self.layers[-1].split(", ")[1].rstrip(")"))
        if kind == "residual":
            self.layers.append(f"Residual(nn.Sequential(nn.LayerNorm({d}), nn.Linear({d}, 8), nn.GELU(), "
                               f"nn.Linear(8, {d})))")
            return shape
        if kind == "norm":
            self.layers.append(f"nn.LayerNorm({d})")
            return shape
        return self.as_it_was(*shape)

    def vector(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.rng.random() < 0.5:
            return self.as_it_was(*shape)
        made, kind = self.one(4, 6, 9), self.one("Linear", "Linear", "Linear", "RNNCell", "GRUCell", "LSTMCell")
        layer = f"nn.{kind}({shape[0]}, {made}{self.bias()})"
        self.layers.append(f"First({layer})" if kind == "LSTMCell" else layer)
        return (made,)

    # ------------------------------------------------------------------ all of it
    def net(self, number: int) -> Net:
        rng, tokens = self.rng, False
        kind = rng.choices(["image", "vector", "series", "tokens"], [6, 2, 2, 2])[0]
        shape: tuple[int, ...]
        if kind == "image":
            given = shape = (self.one(1, 2, 3, 4), self.one(5, 6, 7, 8), self.one(5, 6, 8))
            for _ in range(rng.randrange(2, 7)):
                shape = self.image(shape)
            self.layers += ["nn.AdaptiveAvgPool2d(1)"] * self.one(0, 1)
            self.layers += ["nn.Flatten()"]
            shape = (shape[0] if self.layers[-2:-1] == ["nn.AdaptiveAvgPool2d(1)"] else math.prod(shape),)
        elif kind == "vector":
            given = shape = (self.one(3, 5, 8),)
        else:
            tokens = kind == "tokens"
            given = shape = (self.one(2, 4), self.one(6, 9))
            if tokens:
                given, shape = (shape[1],), (shape[1], 4)
                self.layers.append(f"nn.Embedding({TOKENS}, 4{self.one('', ', padding_idx=0')})")
            for _ in range(rng.randrange(1, 5)):
                shape = (self.rows if tokens else self.series)(shape)
            flat = self.one(True, False)
            self.layers.append("nn.Flatten()" if flat else "Means()")
            shape = (math.prod(shape),) if flat else shape[1:]
        for _ in range(rng.randrange(0, 4)):
            shape = self.vector(shape)
        rbf = rng.random() < 0.1
        self.layers.append(f"nn.Linear({shape[0]}, {4 if rbf else CLASSES})")
        self.layers += ["nn.Tanh()", "nn.RBF([[1.0] * 4, [-0.5] * 4, [0.25] * 4], 2.0)"] * rbf
        return Net(number, tuple(self.layers), rng.choice(LOSSES), rng.choice(OPTIMIZERS), given, tokens)


def net(number: int) -> Net:
    """The net of that number."""
    return Drawer(random.Random(f"net {number}")).net(number)


# ---------------------------------------------------------------- running
NAMES = {"nn": nn, "optim": optim, "Residual": Residual, "Beside": Beside, "First": First, "Deep": Deep,
         "Means": Means}


def built(net: Net, dtype: str) -> nn.Module:
    """Its layers, on the CPU, as a world's seed draws them."""
    model: nn.Module = eval(f"nn.Sequential({', '.join(net.layers)})", dict(NAMES)).to(dtype=dtype)
    return model


def scenario(net: Net, dtype: str = "float32", perturbed: float = 0.0, seed: int = 0) -> Callable[[World], None]:
    """Steps of training, then of evaluation. perturbed: the share of itself that each parameter is changed by, and each
    number that a layer hands on, as its own backward knows it: where a tanh is nearly 1, its gradient is rounding."""
    def run(w: World) -> None:
        minidl.set_precision("fp32")
        minidl.manual_seed(net.number)
        model = built(net, dtype)
        rng = np.random.default_rng([seed, net.number])

        def perturb(t: Any) -> Any:
            if isinstance(t, tuple):
                return tuple(map(perturb, t))
            by = 1 + perturbed * rng.choice((-1.0, 1.0), t.shape)
            if not t.data.flags.writeable:             # one value in several places
                return t * Tensor(by)
            t.data[...] *= by
            return t
        if perturbed:
            for p in model.parameters():
                perturb(p)
            # By its class: attributes are noted
            for layer in [each for each in model.modules() if not [*each.children()]]:
                kind = type(layer)
                layer.__class__ = type(kind.__name__, (kind,), {
                    "forward": lambda self, x, kind=kind: perturb(kind.forward(self, x))})
        model.to(w.device)
        criterion = eval(net.loss, dict(NAMES))
        optimizer = eval(net.optimizer, {**NAMES, "net": model})
        w.watch(model=model, optimizer=optimizer)

        def train(x: Tensor, labels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            y = model(x)
            if isinstance(criterion, nn.CrossEntropyLoss):
                loss = criterion(y, labels)
            elif isinstance(criterion, nn.NLLLoss):
                loss = criterion(ops.log_softmax(y), labels)
            else:
                loss = criterion(y, target)
            loss.backward()
            optimizer.step()
            return loss, y

        def infer(x: Tensor) -> Tensor:
            with no_grad():
                return model(x)

        trained, inferred = w.compile(train), w.compile(infer)
        batches = [[Tensor(a if a.dtype.kind == "i" else a.astype(dtype), device=w.device) for a in batch]
                   for batch in net.batches()]
        for batch in batches:
            trained(*batch)
        model.eval()
        for x, *_ in batches[:3]:
            inferred(x)
        w.log.append(("at the end", {f"state {name}": values for name, values in model.state_dict().items()}))
    return run


def notes(net: Net, device: str = "cpu", dtype: str = "float64", compiled: bool = False,
          perturbed: float = 0.0, seed: int = 0) -> list[tuple[str, Notes]]:
    """What there is to see after each step, by a run of one world."""
    w = World(compiled, device)
    scenario(net, dtype, perturbed, seed)(w)
    return w.log


def apart(mine: list[tuple[str, Notes]], other: list[tuple[str, Notes]]) -> dict[tuple[str, str], float]:
    """How far the arrays of two runs are from each other, by when and path."""
    found = {}
    for (when, a), (when_too, b) in zip(mine, other, strict=True):
        assert (when, a.keys()) == (when_too, b.keys()), f"{when}: {b.get('raised', a.keys() ^ b.keys())}"
        for path, x in a.items():
            if isinstance(x, np.ndarray) and x.dtype.kind == "f":
                gap = np.abs(x - np.asarray(0.0 if b[path] is None else b[path], float))       # None: zeros
                found[when, path] = float(np.max(gap, initial=0)) if np.isfinite(x).all() else math.inf
    return found


def allowed(net: Net, reference: list[tuple[str, Notes]], changes: int = 1) -> dict[tuple[str, str], float]:
    """How far a float32 run may be from float64, by when and path: as far as one of so many changes moves it."""
    several = [apart(reference, notes(net, perturbed=PERTURBATION, seed=seed)) for seed in range(changes)]
    moved = {at: max(each[at] for each in several) for at in several[0]}
    found = {}
    for when, arrays in reference:
        largest: dict[bool, float] = {}    # of gradients, of all else
        for path, x in arrays.items():
            if (when, path) in moved:
                kind = path.endswith(".grad")
                largest[kind] = max(largest.get(kind, 0.0), float(np.max(np.abs(x), initial=0)))
        for path in arrays:
            if (when, path) in moved:
                found[when, path] = 2 * moved[when, path] + FLOOR * max(largest[path.endswith(".grad")], 1e-3)
    return found


def worst(net: Net, device: str, compiled: bool, reference: list[tuple[str, Notes]],
          limits: dict[tuple[str, str], float]) -> tuple[float, str]:
    """The largest share of its limit that an array of a float32 run is from float64, and which; 0 for a refusal."""
    try:
        gaps = apart(reference, notes(net, device, "float32", compiled))
    except Refused as refusal:
        return 0.0, f"refused: {refusal}"
    return max((gaps[at] / limits[at], f"{at[0]}: {at[1]}") for at in gaps)


def tried(device: str, number: int) -> tuple[int, list[tuple[float, str]]]:
    """Of one net, its number and `worst` of the plain and of the compiled run."""
    drawn = net(number)
    reference = notes(drawn)
    for changes in CHANGES:
        limits = allowed(drawn, reference, changes)
        found = [worst(drawn, device, compiled, reference, limits) for compiled in (False, True)]
        if max(found)[0] <= 1:
            break
    return number, found


def timed(found: Iterable[Any], count: int, seconds: float = math.inf) -> Iterator[Any]:
    """What a run of so many finds, until its seconds are over, with a line every ten seconds or so."""
    start, last = time.perf_counter(), 0.0
    for i, each in enumerate(found, 1):
        yield each
        now = time.perf_counter() - start
        if now > seconds:
            return
        if now - last >= REPORT:
            last = now
            print(f"{i} of {count}, {now:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=500)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--net", type=int, help="run and print this one alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    shares, wrong, start = [], 0, time.perf_counter()
    numbers = range(given.nets) if given.net is None else [given.net]
    with contextlib.ExitStack() as stack:
        run: Callable[..., Iterable[tuple[int, list[tuple[float, str]]]]] = map
        if given.processes > 1:
            run = stack.enter_context(multiprocessing.get_context("spawn").Pool(given.processes)).imap_unordered
        for number, found in timed(run(functools.partial(tried, given.device), numbers), given.nets, given.seconds):
            shares.append(max(found)[0])
            if shares[-1] > 1 or given.net is not None:
                wrong += shares[-1] > 1
                print(f"{net(number)}\n# plain {found[0]}, compiled {found[1]}", flush=True)
    print(f"{len(shares)} nets in {time.perf_counter() - start:.0f} s, {wrong} beyond their limit; shares of it: "
          f"median {np.median(shares):.2g}, 99 of 100 {np.quantile(shares, 0.99):.2g}, largest {max(shares):.2g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
