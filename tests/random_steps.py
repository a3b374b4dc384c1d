"""Random steps in random worlds: what is compiled equals the plain function bit for bit, or is refused.

    python tests/random_steps.py --programs 10000 --seed 0 [--device cuda] [--processes 2] [--seconds 1200]

A program is a little Python source: a world (nets, parameters, constants, optimizers), a step, and calls with changes
between them. It is run in two worlds (tests/twins.py). What differs is shrunk and printed as source. On CUDA, where
fused kernels round otherwise, "equal" is within CUDA_TOLERANCE of an array's largest value.

--program N runs one; --plant NAME plants a fault (tests/planted.py) and stops at the first program that shows it;
--without KIND,KIND leaves kinds of changes and instructions out.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import queue
import random
import re
import sys
import textwrap
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":                 # the package beside this folder, not an installed one
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from twins import Verdict, World, compare, notes_of

import minidl
from minidl import Tensor, init, nn, no_grad, ops, optim
from minidl.training import RunningMetrics

PART, REPORT = 20, 10                      # programs that a process runs as one piece; seconds between two reports
CUDA_TOLERANCE = 2e-3                      # of an array's largest value: twelve steps whose sums round otherwise
# There, what a step returns is a copy, also of a parameter, and tf32 rounds by algorithm.
NOT_ON_CUDA = frozenset({"output written", "precision"})
# Of each family one is drawn, and which one the seeds decide that were given out: so more of them change no draw.
ACTIVATIONS = (("nn.Tanh()", "nn.GELU()", "nn.SiLU()"), ("nn.ReLU()", "nn.ELU()", "nn.LeakyReLU()"),
               ("nn.Sigmoid()", "nn.Softplus()", "nn.Hardsigmoid()"))
UNITS = (("tanh", "gelu", "silu"), ("relu", "leaky_relu", "elu"), ("sigmoid", "softplus", "hardsigmoid"))
# Layers within a net, of two channels or five features: drawn by a generator of their own, for MORE of the programs, so
# that all others stay what they were. Where eps is small, a batch of two images would make rounding large.
MORE = 0.35
NORMS = ("nn.BatchNorm{}d({}, eps=0.1)", "nn.BatchNorm{}d({}, eps=0.1, momentum=0.5)", "nn.BatchNorm{}d({}, eps=0.1)",
         "nn.BatchNorm{}d({}, eps=0.1, affine=False)", "nn.BatchNorm{}d({}, eps=0.1, track_running_stats=False)",
         "nn.GroupNorm(1, {1}, eps=0.1)")
OF_VECTORS = ("nn.LayerNorm(5, eps=0.1)", "nn.LayerNorm(5, eps=0.1, elementwise_affine=False)", "nn.Identity()",
              "Series(nn.Conv1d(1, 1, 3, padding=1))", "Series(nn.Conv1d(1, 1, 2, padding=2, dilation=4))")
OF_IMAGES = ("nn.GroupNorm(2, 2, eps=0.1)", "nn.LocalResponseNorm(2, 0.5)", "nn.Conv2d(2, 2, 3, padding=1, groups=2)")
OF_ANY_SIZE = ("nn.ConvTranspose2d(2, 2, 2, stride=2)", "nn.ConvTranspose2d(2, 2, 3, padding=1, bias=False)",
               "nn.Upsample(scale_factor=2)", "nn.AdaptiveAvgPool2d((2, 3))", "nn.AdaptiveAvgPool2d(1)",
               "nn.Conv2d(2, 2, 2, padding=1, dilation=2)", "nn.Conv2d(2, 8, 1); nn.PixelShuffle(2)")
DRAWS = r"dropout|\brand"                  # what is another value each time
NOISE = ("{0} + 0.1 * minidl.randn_like({0})", "{0} * (minidl.rand({0}.shape, device={0}.device) < 0.7).float()",
         "{0} * minidl.rand(1, device={0}.device)", "{0}[minidl.randperm({0}.shape[0], device={0}.device)]",
         "{0} * minidl.randint(-1, 3, {0}.shape, device={0}.device).float()", "{0} - minidl.rand_like({0})")
LOSSES = ("mse_loss", "l1_loss", "huber_loss")
OPTIONS_OF_LOSS = (("",), ("",), (", reduction='sum'", ", ignore_index=1"),
                   (", label_smoothing=0.1", ", label_smoothing=0.1, ignore_index=2"))
CALLS = 12
Shape = tuple[Any, ...]                    # "n" stands for the images of a batch


# ---------------------------------------------------------------- what programs are written with
class Means(nn.Module):
    """(n, c, h, w) -> (n, c), whatever h and w."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(axis=(2, 3))


class Series(nn.Module):
    """A layer of series, of vectors: (n, f) -> (n, f)."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(x.shape[0], 1, x.shape[1])).flatten(1)


class Mod(nn.Module):
    """Numbers, flags, Tensors and a layer of its own."""

    def __init__(self, features: int):
        super().__init__()
        self.by, self.flag, self.extra, self.inner = 1.0, False, None, nn.Tanh()
        self.gain = Tensor(np.linspace(0.5, 1.5, features).astype(np.float32), requires_grad=True)
        self.shift = Tensor(np.linspace(-0.5, 0.5, features).astype(np.float32))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.gain * self.by + self.shift
        if self.flag:
            x = x + 1
        if self.extra is not None:
            x = x * self.extra
        return self.inner(x)


def helpers(w: World) -> dict[str, Any]:
    """The names that a program may use beside its own."""
    def made(seed: int, shape: tuple[int, ...], gradient: bool) -> Tensor:
        values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        return Tensor(values, requires_grad=gradient, device=w.device)

    def index(*values: int) -> Any:
        return np.array(values) if w.device == "cpu" else Tensor(np.array(values), device=w.device)

    def put(array: Any, *values: int) -> None:
        (array.data if isinstance(array, Tensor) else array)[...] = getattr(index(*values), "data", None) \
            if isinstance(array, Tensor) else values

    def write(value: Any) -> None:
        """Write into all floating arrays of what a step returned."""
        for t in value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else [value]:
            if isinstance(t, Tensor) and t.dtype.kind == "f":
                t.data[...] = 0.25

    def there(module: nn.Module) -> nn.Module:
        """On the world's device, constants included."""
        for _, each in module.to(w.device).named_modules():
            for name, value in vars(each).items():
                if isinstance(value, Tensor):
                    setattr(each, name, value.to(w.device))
        return module

    def filled(count: int) -> queue.SimpleQueue[float]:
        """Numbers, each another, from where no fact can see how many are left."""
        numbers: queue.SimpleQueue[float] = queue.SimpleQueue()
        for i in range(count):
            numbers.put(1.0 + i / 8)
        return numbers

    def attempt(what: Callable[[], Any]) -> None:
        try:
            what()
            w.log.append(("attempt", {"is": "done"}))
        except ValueError as error:
            w.log.append(("attempt", {"is": str(error)}))

    return {
        "minidl": minidl, "nn": nn, "ops": ops, "optim": optim, "init": init, "no_grad": no_grad, "np": np, "w": w,
        "Tensor": Tensor, "Means": Means, "Mod": Mod, "Series": Series, "SimpleNamespace": types.SimpleNamespace,
        "R": lambda seed, *shape: made(seed, shape, False), "RG": lambda seed, *shape: made(seed, shape, True),
        "L": lambda seed, n: Tensor(np.random.default_rng(seed).integers(0, 3, n), device=w.device),
        "N": there, "I": index, "put": put, "write": write, "attempt": attempt,
        "Numbers": filled, "notes_of": notes_of, "Metrics": lambda: RunningMetrics(w.device)}


# ---------------------------------------------------------------- programs
@dataclass(frozen=True, eq=False)
class Line:
    """A statement, and what kind of thing it does."""

    text: str
    kind: str = ""


@dataclass
class CallOf:
    before: list[Line]                     # changes
    arguments: str
    after: list[Line] = field(default_factory=list)
    kinds: tuple[str, ...] = ()            # of its arguments
    frame: str = ""                        # "with no_grad():"


@dataclass
class Program:
    world: list[Line]
    parameters: str                        # of the step
    body: list[Line]
    calls: list[CallOf]
    closure: bool                          # names are cells of a function, not globals

    def source(self) -> str:
        lines = [line.text for line in self.world]
        lines += [f"def step({self.parameters}):", *(textwrap.indent(line.text, "    ") for line in self.body)]
        lines += ["" if self.body else "    pass", "call = w.compile(step)"]
        for i, call in enumerate(self.calls):
            lines.append(f"# call {i + 1}")
            lines += [line.text for line in call.before]
            lines += [f"w.look('changed before call {i + 1}')"] if call.before else []
            text = f"y = call({call.arguments})"
            lines += [f"{call.frame}\n    {text}" if call.frame else text]
            lines += [line.text for line in call.after]
        text = "\n".join(line for line in lines if line)
        return f"def scenario(w):\n{textwrap.indent(text, '    ')}\nscenario(w)\n" if self.closure else text + "\n"

    def __call__(self, w: World) -> None:
        minidl.set_precision("fp32")
        exec(compile(self.source(), "<random step>", "exec"), helpers(w))

    def run(self, device: str) -> Verdict:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return compare(self, device, None if device == "cpu" else CUDA_TOLERANCE)
            finally:
                minidl.set_precision("fp32")


# ---------------------------------------------------------------- writing one
class Writer:
    """Writes a program, by a random generator. Kinds in `without` are left out."""

    def __init__(self, rng: random.Random, more: random.Random, without: frozenset[str]):
        self.rng, self.more, self.without = rng, more, without
        self.world: list[Line] = []
        self.values: list[tuple[str, Shape]] = []
        self.body: list[Line] = []
        self.names = Counter[str]()
        self.changes: list[tuple[str, Callable[[], str]]] = []
        self.leaves: list[str] = []        # parameters by expression
        self.trained: list[str] = []
        self.expressions: list[tuple[str, Shape]] = []
        self.live: set[str] = set()        # values that a gradient flows through
        self.watched: list[str] = []
        self.must: list[str] = []          # to be returned
        self.split: tuple[str, str, Any] | None = None       # a layer, what it is given before an update, and its rows
        self.seeds = 0

    # ------------------------------------------------------------------ names and numbers
    def name(self, stem: str) -> str:
        self.names[stem] += 1
        return f"{stem}{self.names[stem] - 1}"

    def seed(self) -> int:
        self.seeds += 1
        return self.seeds

    def one(self, families: tuple[tuple[str, ...], ...]) -> str:
        family = self.rng.choice(families)
        return family[self.seeds % len(family)]

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def define(self, stem: str, text: str, kind: str = "") -> str:
        name = self.name(stem)
        self.world.append(Line(f"{name} = {text}", kind))
        return name

    def may(self, kind: str, *texts: Callable[[], str] | str) -> None:
        """Changes that become possible."""
        for text in texts:
            self.changes.append((kind, text if callable(text) else (lambda text=text: text)))

    def number(self) -> str:
        return self.rng.choice(["0.5", "-0.5", "1.5", "0.25", "2.0", "0.75"])

    # ------------------------------------------------------------------ the world
    def parameter(self, *shape: int) -> str:
        sizes = ", ".join(map(str, shape))
        name = self.define("p", f"RG({self.seed()}, {sizes})")
        self.leaf(name)
        self.may("Tensor rebound", lambda: f"{name} = RG({self.seed()}, {sizes})")
        self.watched.append(name)
        self.trained.append(name)
        return name

    def leaf(self, p: str) -> None:
        self.leaves.append(p)
        self.may("freezing", f"{p}.requires_grad = not {p}.requires_grad")
        self.may("gradient set to None", f"{p}.grad = None")
        self.may("gradient replaced", f"if {p}.grad is not None: {p}.grad = {p}.grad * 0.5")
        self.may("gradient from outside", f"if {p}.requires_grad: ({p} * {p}).sum().backward()")
        self.may("data rebound", f"{p}.data = {p}.data * 0.5")
        self.may("data written", f"{p}.data[...] *= -0.5; {p}.mark_changed()", f"init.uniform_({p}, -1.0, 1.0)")

    def constant(self, *shape: int) -> str:
        sizes = ", ".join(map(str, shape))
        name = self.define("c", f"R({self.seed()}, {sizes})")
        self.may("constant written", f"{name}.data[...] += 0.5")
        self.may("data rebound", f"{name}.data = {name}.data + 0.5")
        self.may("Tensor rebound", lambda: f"{name} = R({self.seed()}, {sizes})")
        self.watched.append(name)
        return name

    def activation(self) -> str:
        return self.one(ACTIVATIONS)

    def linear(self, stem: str, f: int, g: int) -> str:
        bias = "" if self.chance(0.8) else ", bias=False"
        name = self.define(stem, f"N(nn.Linear({f}, {g}{bias}))")
        self.layer_of(name, f, g, bool(bias))
        self.may("Module rebound", lambda: f"{name} = N(nn.Linear({f}, {g}))")
        self.watched.append(name)
        self.trained.append(f"*{name}.parameters()")
        return name

    def layer_of(self, path: str, f: int, g: int, no_bias: bool) -> None:
        """What may be done to a linear layer."""
        self.leaf(f"{path}.weight")
        if not no_bias:
            self.leaf(f"{path}.bias")
            self.changes = [(kind, text) for kind, text in self.changes if f"{path}.bias" not in text()]
            self.may("freezing", f"if {path}.bias is not None: "
                                 f"{path}.bias.requires_grad = not {path}.bias.requires_grad")
            self.leaves.remove(f"{path}.bias")
        self.may("bias", f"{path}.bias = None", lambda: f"{path}.bias = RG({self.seed()}, {g})")
        self.may("weight replaced", lambda: f"{path}.weight = RG({self.seed()}, {g}, {f})")

    def dropout(self, path: str) -> None:
        self.may("p of dropout", lambda: f"{path}.p = {self.rng.choice([0.1, 0.3, 0.6, 0.0])}")
        self.may("train and eval", f"{path}.eval()", f"{path}.train()")

    def net(self, images: bool) -> str:
        """A Sequential from the input to three features."""
        rng, layers, name = self.rng, [], "net"
        if not images:
            layers = ["nn.Linear(4, 5)", self.activation()]
            layers += [f"nn.Dropout({rng.choice([0.2, 0.5])})"] if self.chance(0.3) else []
            layers += ["nn.Softmax()"] if self.chance(0.15) else []
            layers += ["Mod(5)"] if self.chance(0.35) else []
            layers.append("nn.Linear(5, 3)")
        elif self.chance(0.6):
            layers = [f"nn.Conv2d(1, 2, {rng.choice([2, 3])})", self.activation()]
            layers += [rng.choice(["nn.MaxPool2d(2)", "nn.AvgPool2d(2)"])] if self.chance(0.7) else []
            layers += ["nn.Conv2d(2, 2, 1)"] if self.chance(0.2) else []
            layers += ["Means()", "nn.Linear(2, 3)"]
        else:
            layers = [f"nn.Conv2d(1, 2, 2{rng.choice(['', ', bias=False'])})", self.activation(),
                      rng.choice(["nn.MaxPool2d(2)", "nn.AvgPool2d(2)"]), "nn.Flatten()", "nn.Linear(8, 3)"]
        layers = self.with_more(layers, images)
        self.world.append(Line(f"{name} = N(nn.Sequential({', '.join(layers)}))"))
        self.watched.append(name)
        self.trained.append(f"*{name}.parameters()")
        for i, layer in enumerate(layers):
            at = f"{name}[{i}]"
            if layer.startswith("nn.Linear"):
                f, g = (int(n) for n in layer[10:-1].split(", "))
                self.layer_of(at, f, g, False)
                self.may("layer replaced", f"setattr({name}, '{i}', N({layer}))")
            elif layer.startswith("nn.Conv2d(1"):
                self.leaf(f"{at}.weight")
                self.may("algorithm", *(f"{at}.algorithm = {how!r}" for how in ("direct", "gemm", "unroll")))
                self.may("bias", f"{at}.bias = None", lambda at=at: f"{at}.bias = RG({self.seed()}, 2)")
                self.may("layer replaced", f"setattr({name}, '{i}', N({layer}))")
                if "Means()" in layers:
                    self.may("geometry", f"{at}.stride = 2", f"{at}.stride = 1", f"{at}.padding = 1",
                             f"{at}.padding = ((1, 0), (0, 1))")
            elif "Pool2d" in layer:
                if "Means()" in layers:
                    self.may("geometry", f"{at}.stride = 1", f"{at}.kernel_size = 1", f"{at}.padding = 1")
                self.may("layer replaced", f"setattr({name}, '{i}', nn.AvgPool2d(2))")
            elif layer.startswith("nn.Dropout"):
                self.dropout(at)
            elif "Norm" in layer:
                self.norm(at, layer)
            elif layer.startswith(("Series", "nn.ConvTranspose")):
                self.leaf(f"{at}{'.layer' if layer[0] == 'S' else ''}.weight")
            elif layer == "nn.Softmax()":
                self.may("axis", f"{at}.axis = 0", f"{at}.axis = -1")
            elif layer == "Mod(5)":
                self.module(at, 5)
            elif any(layer in family for family in ACTIVATIONS):
                self.may("activation replaced", lambda i=i: f"setattr({name}, '{i}', {self.activation()})")
        self.may("train and eval", f"{name}.eval()", f"{name}.train()")
        self.may("state loaded", f"{name}.load_state_dict({{k: v * 0.5 for k, v in {name}.state_dict().items()}})")
        return name

    def with_more(self, layers: list[str], images: bool) -> list[str]:
        """Some programs' layers with one or two more behind the first."""
        if self.more.random() >= MORE:
            return layers
        norms = [text.format(2 if images else 1, 2 if images else 5) for text in NORMS]
        fit = [norms, OF_VECTORS] if not images else [norms, OF_IMAGES, *[OF_ANY_SIZE] * ("Means()" in layers)]
        added = [self.more.choice(self.more.choice(fit)) for _ in range(self.more.choice((1, 1, 2)))]
        return [layers[0], *"; ".join(added).split("; "), *layers[1:]]

    def norm(self, at: str, layer: str) -> None:
        """What may be done to a layer that normalises."""
        if not any(word in layer for word in ("affine=False", "Local")):
            self.leaf(f"{at}.weight")
            self.leaf(f"{at}.bias")
        self.may("number of a Module", f"{at}.eps = 0.2")
        if "Batch" in layer:
            self.may("number of a Module", f"{at}.momentum = 0.25", f"{at}.momentum = 0.0")
            self.may("train and eval", f"{at}.eval()", f"{at}.train()")
            if "track" not in layer:
                self.may("constant written", f"{at}.running_mean.data[...] += 0.5",
                         f"{at}.running_var.data[...] *= 0.5")
                self.may("Tensor of a Module", lambda: f"{at}.running_mean = {at}.running_mean * 0.5")

    def module(self, path: str, f: int) -> None:
        self.leaf(f"{path}.gain")
        self.may("number of a Module", lambda: f"{path}.by = {self.number()}")
        self.may("flag of a Module", f"{path}.flag = not {path}.flag")
        self.may("Tensor of a Module", lambda: f"{path}.extra = R({self.seed()}, {f})", f"{path}.extra = None",
                 lambda: f"{path}.shift = R({self.seed()}, {f})", f"{path}.shift.data[...] += 0.5")
        self.may("activation replaced", lambda: f"{path}.inner = {self.activation()}")

    # ------------------------------------------------------------------ instructions
    def pick(self, fits: Callable[[Shape], bool]) -> tuple[str, Shape] | None:
        found = [entry for entry in self.values if fits(entry[1])]
        return self.rng.choice(found[-6:]) if found else None

    def add(self, expression: str, shape: Shape, kind: str = "", frame: str = "") -> str:
        name = self.name("h")
        text = f"{name} = {expression}"
        self.body.append(Line(f"{frame}\n    {text}" if frame else text, kind))
        self.values.append((name, shape))
        self.expressions.append((expression, shape))
        words = set(re.findall(r"\w+", expression))
        if not frame and ".detach()" not in expression and (
                words & self.live or any(re.fullmatch(r"p\d+|a\d+|mod\d+|net", word) for word in words)):
            self.live.add(name)
        return name

    def instruction(self) -> None:
        """One more value."""
        if self.expressions and self.chance(0.12):
            expression, shape = self.rng.choice(self.expressions)
            names = {name for name, _ in self.values}
            if not re.search(DRAWS, expression) and names.issuperset(re.findall(r"\bh\d+\b", expression)):
                self.add(expression, shape, "repeated")
                return
        found = self.pick(lambda s: len(s) == 2)
        if found is None:
            return
        v, shape = found
        rows, f = shape
        frame = "with no_grad():" if self.chance(0.05) else ""
        expression, made = self.rng.choices(self.table(v, rows, f), self.weights)[0]()
        if expression:
            self.add(expression, made, frame=frame)

    weights = (14, 8, 14, 4, 6, 12, 8, 6, 6, 5, 6, 4, 6, 8, 5, 3, 3, 3)

    def table(self, v: str, rows: Any, f: int) -> list[Callable[[], tuple[str, Shape]]]:
        rng, same = self.rng, (rows, f)

        def linear() -> tuple[str, Shape]:
            if not isinstance(f, int):
                return "", ()
            g = rng.choice([2, 3, 4])
            if self.chance(0.15):          # equal gradients, each of which is its own
                return f"{self.linear('a', f, g)}({v}) + {self.linear('a', f, g)}({v})", (rows, g)
            return f"{self.linear('a', f, g)}({v})", (rows, g)

        def raw_linear() -> tuple[str, Shape]:
            if not isinstance(f, int):
                return "", ()
            g = rng.choice([2, 3])
            bias = f", {self.parameter(g)}" if self.chance(0.7) else ""
            return f"ops.linear({v}, {self.parameter(g, f)}{bias})", (rows, g)

        def activate() -> tuple[str, Shape]:
            if self.chance(0.3):
                name = self.define("act", self.activation())
                self.may("Module rebound", lambda: f"{name} = {self.activation()}")
                return f"{name}({v})", same
            return f"ops.{self.one(UNITS)}({v})", same

        def softmax() -> tuple[str, Shape]:
            return f"ops.{rng.choice(['softmax', 'log_softmax'])}({v}, axis={rng.choice([-1, 0, 1])})", same

        def dropout() -> tuple[str, Shape]:
            how = rng.random()
            if how < 0.6:
                name = self.define("drop", f"nn.Dropout({rng.choice([0.2, 0.5])})")
                self.dropout(name)
                return f"{name}({v})", same
            return f"ops.dropout({v}, 0.4{', key=(1, 2)' if how < 0.7 else ''})", same

        def binary() -> tuple[str, Shape]:
            other = self.pick(lambda s: s == same)
            sign = rng.choice(["+", "-", "*"])
            return (f"{v} {sign} {other[0]}" if other else f"{v} {sign} {self.number()}"), same

        def scaled() -> tuple[str, Shape]:
            by = rng.choice(["number", "global", "namespace", "list", "argument", "argument"])
            if by == "global" and "number of a name" not in self.without:
                name = self.define("k", self.number())
                self.may("number of a name", lambda: f"{name} = {self.number()}")
                return f"{v} * {name}", same
            if by == "namespace" and "number of an object" not in self.without:
                name = self.define("cfg", f"SimpleNamespace(a={self.number()})")
                self.may("number of an object", lambda: f"{name}.a = {self.number()}")
                return f"{v} * {name}.a", same
            if by == "list" and "number of a list" not in self.without:
                name = self.define("ks", f"[{self.number()}, 1.5]")
                self.may("number of a list", lambda: f"{name}[0] = {self.number()}", f"{name}.reverse()")
                return f"{v} * {name}[0]", same
            return f"{v} * {'s' if by == 'argument' else self.number()}", same

        def vector() -> tuple[str, Shape]:
            if not isinstance(f, int):
                return "", ()
            if self.chance(0.4):           # two leaves of one gradient
                one, other = self.parameter(f), self.parameter(f)
                return rng.choice([f"{v} + {one} + {other}", *[f"{v} + ({one} + {other})"] * 2]), same
            other = self.parameter(f) if self.chance(0.6) else self.constant(f)
            return f"{v} {rng.choice(['+', '*', '-'])} {other}", same

        def smooth() -> tuple[str, Shape]:
            return rng.choice([f"ops.exp({v} * 0.1)", f"ops.sqrt({v} * {v} + 0.5)", f"ops.log({v} * {v} + 1.0)",
                               f"{v} / ({v} * {v} + 1.0)", f"({v} * {v} + 0.5) ** 1.5", f"-{v}"]), same

        def center() -> tuple[str, Shape]:
            axis = rng.choice([0, 1])
            return f"{v} - {v}.{rng.choice(['mean', 'max', 'sum'])}(axis={axis}, keepdims=True)", same

        def reduced() -> tuple[str, Shape]:
            return f"{v}.{rng.choice(['sum', 'mean', 'max'])}(axis=1, keepdims=True)", (rows, 1)

        def joined() -> tuple[str, Shape]:
            other = self.pick(lambda s: len(s) == 2 and s[0] == rows)
            if other is None or not isinstance(f, int) or not isinstance(other[1][1], int):
                return "", ()
            return f"ops.concatenate([{v}, {other[0]}], axis=1)", (rows, f + other[1][1])

        def sliced() -> tuple[str, Shape]:
            if not isinstance(f, int) or f < 2:
                return f"{v}[::-1]", same
            return rng.choice([(f"{v}[:, 1:]", (rows, f - 1)), (f"{v}[:, ::2]", (rows, (f + 1) // 2)),
                               (f"{v}[::-1]", same), (f"{v}[:2]", (2, f)), (f"{v}[:, :1]", (rows, 1))])

        def indexed() -> tuple[str, Shape]:
            if not isinstance(f, int):
                return "", ()
            name = self.define("i", f"I({rng.randrange(2)}, {rng.randrange(2)}, 1)")
            self.may("index array written", lambda: f"put({name}, {rng.randrange(2)}, {rng.randrange(2)}, 0)")
            self.may("index array rebound", lambda: f"{name} = I({rng.randrange(2)}, {rng.randrange(2)}, 0)")
            columns = f > 1 and self.chance(0.5)
            return (f"{v}[:, {name}]", (rows, 3)) if columns else (f"{v}[{name}]", (3, f))

        def product() -> tuple[str, Shape]:
            if not isinstance(f, int):
                return "", ()
            if self.chance(0.4):
                return f"{v}.T @ {v}", (f, f)
            return f"{v} @ {self.parameter(f, 2)}", (rows, 2)

        def turned() -> tuple[str, Shape]:
            return f"{v}.T", (f, rows)

        def detached() -> tuple[str, Shape]:
            return f"{v}.detach()", same

        def module() -> tuple[str, Shape]:
            if not isinstance(f, int):
                return "", ()
            name = self.define("mod", f"N(Mod({f}))")
            self.module(name, f)
            self.watched.append(name)
            self.trained.append(f"*{name}.parameters()")
            return f"{name}({v})", same

        return [linear, raw_linear, activate, softmax, dropout, binary, scaled, vector, smooth, center, reduced, joined,
                sliced, indexed, product, turned, detached, module]

    # ------------------------------------------------------------------ the step
    def loss(self) -> str:
        """A number that some of the values go into."""
        rng, name = self.rng, self.name("loss")
        terms = []
        logits = self.pick(lambda s: s == ("n", 3))
        if logits and self.chance(0.6):
            terms.append(f"ops.cross_entropy({logits[0]}, labels{self.one(OPTIONS_OF_LOSS)})")
        for v, _ in rng.sample(self.values, min(len(self.values), rng.choice([1, 1, 2, 3]))):
            terms.append(rng.choice([f"({v} * {v}).mean()", f"ops.tanh({v}).sum()", f"{v}.mean()",
                                     f"({v} - {self.number()}).max()"]))
        if not self.live.intersection(re.findall(r"\w+", " ".join(terms))):
            terms.append("(net(x) * net(x)).mean()")
        same = self.pick(lambda s: s == ("n", 3))
        if same and self.chance(0.3):
            terms.append(f"ops.{LOSSES[self.seeds % len(LOSSES)]}({same[0]}, target)")
        self.body.append(Line(f"{name} = {' + '.join(terms)}"))
        return name

    def optimizer(self, name: str, parameters: list[str]) -> None:
        rng = self.rng
        settings = [f"lr={rng.choice(['0.1', '0.05', '0.02'])}"]
        momentum = self.chance(0.5)
        settings += ["momentum=0.9"] if momentum else []
        settings += ["nesterov=True"] if momentum and self.chance(0.3) else []
        settings += ["weight_decay=0.05"] if self.chance(0.3) else []
        self.world.append(Line(f"{name} = optim.SGD([{', '.join(parameters)}], {', '.join(settings)})"))
        self.watched.append(name)
        group = f"{name}.groups[0]"
        for _ in range(3):                 # what a training changes most
            self.may("rate", lambda: f"{name}.lr = {rng.choice([0.01, 0.03, 0.2])}", lambda: f"{group}['lr'] *= 0.5")
        self.may("momentum", lambda: f"{group}['momentum'] = {rng.choice([0.0, 0.5, 0.8])}")
        self.may("decay", lambda: f"{group}['weight_decay'] = {rng.choice([0.0, 0.1])}")
        self.may("nesterov", f"{group}['nesterov'] = not {group}['nesterov']")
        self.may("optimizer's list", f"if len({group}['params']) > 1: {group}['params'].pop()",
                 f"{group}['params'].reverse()", f"if len({group}['params']) > 1: del {group}['params'][0]")
        for p in self.leaves:
            self.may("optimizer's list", f"if all({p} is not q for q in {group}['params']): "
                                         f"{group}['params'].append({p})")
        self.may("velocities forgotten", f"{name}.forget()")
        self.may("gradients cleared", f"{name}.zero_grad()")

    def hand(self) -> list[Line]:
        """What steps do to gradients and parameters themselves, after backward."""
        if not self.leaves or not self.chance(0.25):
            return []
        p = self.rng.choice(self.leaves)
        choices = [f"if {p}.grad is not None: {p}.grad = {p}.grad * 0.5", f"{p}.grad = None"]
        if hasattr(Tensor, "__isub__"):
            choices += [f"if {p}.grad is not None:\n    with no_grad(): {p} -= {p}.grad * 0.1"] * 2
        if hasattr(Tensor, "__setitem__"):
            choices += [f"with no_grad(): {p}[0] = 0.5"]
        text = self.rng.choice(choices)
        if " -= " in text and p.isidentifier():        # a name that the step would bind
            text = text.replace(f"{p} -=", f"q = {p}; q -=")
        return [Line(text, "by hand")]

    def train(self) -> None:
        """Backward and updates, in one of the orders that people write."""
        rng, patterns = self.rng, {
            "usual": 40, "late": 8, "added up": 4, "no update": 6, "two losses": 8, "two optimizers": 10, "twice": 8,
            "two phases": 8, "none": 8}
        pattern = rng.choices(list(patterns), list(patterns.values()))[0]
        first = self.loss()
        if pattern == "none":
            return
        found = self.pick(lambda s: len(s) == 2 and isinstance(s[1], int))
        if found is not None and pattern == "usual" and self.chance(0.25):
            layer = self.linear("a", found[1][1], 3)
            self.body.insert(-1, Line(f"sum{layer} = {layer}({found[0]}).sum()"))
            self.body[-1] = Line(f"{self.body[-1].text} + sum{layer}")
            self.split = layer, found[0], found[1][0]
        some = list(dict.fromkeys(self.trained))
        if pattern in ("two optimizers", "two phases") and len(some) > 1:
            cut = rng.randrange(1, len(some))
            self.optimizer("sgd", some[:cut])
            self.optimizer("sgd2", some[cut:])
        else:
            pattern = "usual" if pattern in ("two optimizers", "two phases") else pattern
            self.optimizer("sgd", some)
        zero, step, back = Line("sgd.zero_grad()"), Line("sgd.step()"), Line(f"{first}.backward()")
        if pattern == "usual":
            self.body += [zero, back, *self.hand(), *self.between()]
            self.around(step)
        elif pattern == "late":
            self.body.insert(rng.randrange(len(self.body) + 1) if self.chance(0.1) else 0, step)
            self.body += [zero, back, *self.hand()]
        elif pattern == "added up":
            self.body += [back, *([step] if self.chance(0.7) else [])]
            for _ in range(8):
                self.may("gradients cleared", "sgd.zero_grad()")
        elif pattern == "no update":
            self.body += [zero, back, *self.hand()]
        elif pattern == "two losses":
            self.body += [zero, Line(f"{first}.backward(retain_graph=True)")]
            self.body += [Line(f"{self.loss()}.backward()"), *self.hand(), step]
        elif pattern == "two optimizers":
            self.body += [zero, Line("sgd2.zero_grad()"), back, *self.hand(), step]
            self.body += [*self.between(), Line("sgd2.step()")]
        elif pattern == "twice":
            self.body += [zero, back, step]
            self.instructions(rng.randrange(2, 5), fresh=True)
            self.body += [zero, Line(f"{self.loss()}.backward()"), step]
        else:
            self.body += [zero, back, step]
            self.instructions(rng.randrange(2, 5), fresh=True)
            self.body += [Line("sgd2.zero_grad()"), Line(f"{self.loss()}.backward()"), Line("sgd2.step()")]
        if self.chance(0.45):
            self.instructions(rng.randrange(1, 5))

    def between(self) -> list[Line]:
        """Instructions right before an update: what they read may change under them."""
        if not self.chance(0.35):
            return []
        before = len(self.body)
        self.instructions(self.rng.randrange(1, 4))
        lines = self.body[before:]
        del self.body[before:]
        return lines

    def around(self, update: Line) -> None:
        """An update, at times between a layer and its activation, or between two equal calls of a layer."""
        if self.split is None:
            self.body.append(update)
            return
        layer, v, rows = self.split
        again = self.chance(0.4)
        self.add(f"{layer}({v})", (rows, 3))
        self.body.append(update)
        late, _ = self.values[-1] if again else self.values.pop()
        self.must.append(self.add(f"{layer}({v})" if again else f"ops.{self.rng.choice(['tanh', 'relu'])}({late})",
                                  (rows, 3)))

    def instructions(self, count: int, fresh: bool = False) -> None:
        """fresh: only on the inputs, whose graphs no backward has used up."""
        if fresh:
            self.values = [entry for entry in self.values if entry[0] in ("x0", "x1")]
            if self.chance(0.7) and self.expressions:
                for expression, shape in self.expressions:      # the first one again, on changed parameters
                    if not re.search(rf"\bh\d|{DRAWS}", expression):
                        self.add(expression, shape, "repeated")
                        break
        for _ in range(count):
            self.instruction()

    # ------------------------------------------------------------------ calls
    def write(self) -> Program:
        rng = self.rng
        images = self.chance(0.3)
        gradient = self.chance(0.12)       # of the input
        self.net(images)
        if images:
            self.body.append(Line("x0 = x.mean(axis=(2, 3))"))
            self.values.append(("x0", ("n", 1)))
            self.add("net(x)", ("n", 3))
        else:
            self.body.append(Line("x0 = x * 1.0" if self.chance(0.2) else "x0 = x"))
            self.values.append(("x0", ("n", 4)))
            if self.chance(0.75):
                self.add("net(x)", ("n", 3))
        if self.chance(0.25):
            self.world.append(Line(f"held = R(500, 3, {'1, 5, 5' if images else '4'})"))
            self.add("net(held)", (3, 3))
            if self.chance(0.5):
                self.may("constant written", "held.data[...] += 0.5")
        if self.chance(0.3):
            self.body.append(Line("x1 = x2.flatten(1)"))
            self.values.append(("x1", ("n", 25 if images else 4)))
            if not images and self.chance(0.5):
                self.add("x0 * x1", ("n", 4))
        if self.more.random() < MORE / 2:
            name = self.define("table", f"N(nn.Embedding(3, 4{self.more.choice(('', ', padding_idx=1'))}))")
            self.leaf(f"{name}.weight")
            self.watched.append(name)
            self.trained.append(f"*{name}.parameters()")
            self.add(f"{name}(labels)", ("n", 4))
            self.live.add(self.values[-1][0])
        self.instructions(rng.randrange(2, 8))
        if self.more.random() < MORE:
            v, shape = self.more.choice(self.values)
            self.add(self.more.choice(NOISE).format(v), shape)
        self.train()
        if self.chance(0.15) and self.pick(lambda s: s == ("n", 3)):
            self.world.append(Line("metrics = Metrics()"))
            self.watched.append("metrics.sums")
            logits = self.pick(lambda s: s == ("n", 3))
            self.body.append(Line(f"metrics.update({logits[0]}.mean(), {logits[0]}, labels)"))
            self.may("metrics read", "w.log.append(('metrics', {'are': metrics.read()}))")
        self.rarely()
        self.returned()
        self.may("seed", "minidl.manual_seed(5)", "ops.dropout(R(7, 3), 0.5)")
        self.may("precision", "minidl.set_precision('tf32')", "minidl.set_precision('fp32')")
        self.may("output written", "write(y)")
        leaves = "[" + ", ".join(self.leaves) + "]"
        write = f"for i, p in enumerate({leaves}):\n    if p.grad is not None: p.grad.data[...] += i + 1"
        self.may("gradients written", write)
        kinds = sorted({kind for kind, _ in self.changes} - self.without)
        often = ["rate", "rate", "freezing"]
        often += ["train and eval"] * 3 if "Dropout" in " ".join(line.text for line in self.world) else []
        kinds += [kind for kind in often if kind in kinds]
        calls = self.calls(images, gradient, kinds)
        calls[-1].after += [Line(write), Line("w.look('gradients written')")]            # each leaf's is its own
        self.world.append(Line(f"w.watch({', '.join(f'lambda: {name}' for name in dict.fromkeys(self.watched))})"))
        return Program(self.world, "x, x2, labels, target, s=1.0", self.body, calls, self.chance(0.4))

    def rarely(self) -> None:
        """What few steps do."""
        found = self.pick(lambda s: len(s) == 2)
        if found is None:
            return
        v, shape = found
        if self.chance(0.02):              # refused, where two runs are compared
            name = self.define("numbers", "Numbers(100)")
            self.must.append(self.add(f"{v} * {name}.get()", shape))
        if self.chance(0.04):              # what the step sets is as it was, but for a change
            name = self.define("own", "SimpleNamespace(a=1.5)")
            self.watched.append(f"{name}.a")
            self.must.append(self.add(f"{v} * {name}.a", shape))
            self.body.append(Line(f"{name}.a = 0.5"))
            for _ in range(3):
                self.may("number that the step sets", f"{name}.a = 1.5")
        if self.chance(0.06):              # of two equal values, one is written into
            expression = self.rng.choice([f"{v} * 2.0", f"{v} + 1.0", f"ops.tanh({v})"])
            written, other = self.add(expression, shape), self.add(expression, shape)
            self.values = [entry for entry in self.values if entry[0] != other]
            self.body.append(Line(f"with no_grad(): {written}[0] = 0.5"))
            self.must.append(self.add(f"{other} - 0.25", shape))

    def returned(self) -> None:
        rng = self.rng
        some = [name for name, _ in rng.sample(self.values, min(len(self.values), rng.choice([1, 2, 3])))]
        some += self.must
        some += [f"{v}.argmax(axis=0)" for v in some[:1] if self.chance(0.15)]
        some += ["3"] if self.chance(0.1) else []
        some += [f"{rng.choice(self.leaves)}.grad"] if self.leaves and self.chance(0.15) else []
        some += [rng.choice(self.leaves)] if self.leaves and self.chance(0.05) else []
        some += ["x"] if self.chance(0.05) else []
        some += [f"{some[0]}.sum()"] if self.chance(0.3) and not some[0].endswith(".grad") else []
        how = rng.random()
        text = (f"({', '.join(some)},)" if how < 0.6 else f"[{', '.join(some)}]" if how < 0.8 else
                "{" + ", ".join(f"'{i}': {name}" for i, name in enumerate(some)) + "}")
        self.body.append(Line(f"return {text}"))

    def streak(self, p: float) -> set[int]:
        """With that chance, the numbers of two to four calls in a row: of one alone, nothing would be replayed."""
        first = self.rng.randrange(CALLS - 1)
        return set(range(first, first + self.rng.randrange(2, 5))) if self.chance(p) else set()

    def calls(self, images: bool, gradient: bool, kinds: list[str]) -> list[CallOf]:
        rng, size = self.rng, "1, 5, 5" if images else "4"
        fixed = self.chance(0.3)           # two batches that come again and again
        if fixed:
            self.world += [Line(f"b{i} = R({600 + i}, 3, {size})") for i in range(2)]
        rows = rng.choice([2, 3, 4])
        inside, used = set[int](), ""      # calls that are given what the step uses by another name too, and that
        if any(line.text.startswith("held = ") for line in self.world):
            inside, used = self.streak(0.4), "held"
            rows = 3 if inside else rows
        elif gradient and not images:
            inside, used = self.streak(0.7), "net[0].weight"
            rows = 5 if inside else rows
        inside -= set(range(CALLS) if fixed else ())
        own = any(line.text.startswith("own0 = ") for line in self.world)
        reset = self.streak(0.4) if own else set()     # refused: the step sets it each time
        changing = rng.choices([0, 1, 2, 3, 4], [1, 2, 4, 4, 3])[0]
        places = Counter(rng.choices(range(1, CALLS), k=changing))
        odd = {rng.randrange(1, CALLS) for _ in range(rng.choice([0, 0, 1, 2]))}
        passed = self.chance(0.4)          # whether calls say what s is
        halved, twice = self.streak(0.6) if passed else set(), self.streak(0.3)
        pool: dict[str, list[Callable[[], str]]] = {}
        for kind, text in self.changes:
            pool.setdefault(kind, []).append(text)
        calls = []
        for i in range(CALLS):
            before = []
            for _ in range(places[i]):
                if kinds:
                    kind = rng.choice(kinds)
                    before.append(Line(rng.choice(pool[kind])(), kind))
            if i in reset:
                before.append(Line("own0.a = 1.5", "number that the step sets"))
            n, special = rows, ()
            if i in odd and not fixed and self.chance(0.5):
                n, special = rng.choice([2, 3, 5]), ("batch size",)
            x = f"R({100 + i}, {n}, {size})"
            if i in inside:
                x, n, special = used, rows, ("argument used inside",)
                if used != "held":         # as the other arguments, of which none has a gradient
                    before.append(Line(f"{used}.grad = None"))
            elif fixed:
                x, n = f"b{rng.randrange(2)}", 3
            elif gradient and self.chance(0.75):
                x = f"RG({100 + i}, {n}, {size})"
            elif i in odd and not special:
                x, n, special = self.odd_argument(images, x, n, rows, size)
            after = []
            if gradient and not fixed:
                before.append(Line(f"xx = {x}", "" if x.startswith("R(") else "input with a gradient"))
                after.append(Line("w.log.append(('x.grad', notes_of(xx)))"))
                x = "xx"
            target = f"R({200 + i}, {n}, 3)"
            s = ("0.5" if i in halved else "1.0") if passed else ""
            special += ("plain argument",) if i in halved else ()
            frame = "with no_grad():" if self.chance(0.015) and "no_grad" not in self.without else ""
            if i and self.leaves and self.chance(0.02) and "stale graph" not in self.without:
                p = rng.choice(self.leaves)
                before.append(Line(f"g = ({p} * {p}).sum()", "stale graph"))
                after.append(Line("attempt(g.backward)"))
            x2 = f"R({400 + i}, {n}, {size})"
            if i in twice:
                x2, before = "same", [*before, Line(f"same = {x}")]
                x, special = "same", (*special, "one argument twice")
            calls.append(CallOf(before, f"{x}, {x2}, L({300 + i}, {n}), {target}" + (f", s={s}" if s else ""), after,
                                special, frame))
        return calls

    def odd_argument(self, images: bool, x: str, n: int, rows: int, size: str) -> tuple[str, int, tuple[str, ...]]:
        """A parameter, what is used inside, a view, or the same again."""
        choices: list[tuple[str, int, str]] = [
            (f"Tensor(R({self.seed()}, {2 * n}, {size}).data[::2])", n, "view as argument"),
            (f"Tensor(R({self.seed()}, {n}, {size}).data[::-1])", n, "view as argument")]
        if not images:
            choices += [("net[0].weight.detach()", 5, "parameter as argument"),
                        ("net[0].weight", 5, "parameter as argument"),
                        ("Tensor(net[0].weight.data[:2])", 2, "view as argument")]
        if any(line.text.startswith("held = ") for line in self.world):
            choices += [("held", 3, "argument used inside")] * 4
        x, n, kind = self.rng.choice([c for c in choices if c[2] not in self.without] or [(x, n, "view as argument")])
        return x, n, (kind,)


def program(seed: int, number: int, without: frozenset[str] = frozenset()) -> Program:
    """The program of that number."""
    return Writer(random.Random(f"{seed}/{number}"), random.Random(f"{seed}/{number}/more"), without).write()


# ---------------------------------------------------------------- shrinking
def shrunk(found: Program, device: str, differs: Callable[[Program], bool] | None = None) -> Program:
    """The program without what is not needed for its difference, or for what `differs` says of it."""
    sort = "" if differs else found.run(device).why.split()[0]           # call, after, changed, raised, ...

    def still(candidate: Program) -> bool:
        try:
            if differs is not None:
                return differs(candidate)
            verdict = candidate.run(device)
            return verdict.kind == "different" and verdict.why.split()[0] == sort
        except Exception:                  # of the plain world: a name is missing
            return False

    def lists(p: Program) -> list[list[Any]]:
        return [p.calls, *(call.before for call in p.calls), *(call.after for call in p.calls), p.body, p.world]

    def without_some(p: Program, which: int, at: int, count: int) -> Program:
        copy = Program(list(p.world), p.parameters, list(p.body), [CallOf(
            list(c.before), c.arguments, list(c.after), c.kinds, c.frame) for c in p.calls], p.closure)
        del lists(copy)[which][at:at + count]
        return copy

    progress = True
    while progress:
        progress = False
        for count in (4, 2, 1):
            which = 0
            while which < len(lists(found)):
                at = 0
                while at < len(lists(found)[which]):
                    candidate = without_some(found, which, at, count)
                    if still(candidate):
                        found, progress = candidate, True
                    else:
                        at += 1
                which += 1
    return found


# ---------------------------------------------------------------- many
@dataclass
class Tally:
    """What many programs came to."""

    programs: int = 0
    calls: int = 0
    replays: int = 0
    refused: int = 0
    errors: int = 0                        # the plain world raised outside its calls: the generator's mistake
    different: list[tuple[int, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)         # programs with such a change
    replayed: Counter[str] = field(default_factory=Counter)      # and with a replay in or after the call it came before
    reasons: Counter[str] = field(default_factory=Counter)       # of refusals
    blamed: Counter[str] = field(default_factory=Counter)        # kinds of changes in programs that differ

    def add(self, number: int, p: Program, verdict: Verdict) -> None:
        self.programs += 1
        self.calls += verdict.calls
        self.replays += verdict.replays
        kinds: dict[str, int] = {}
        for i, call in enumerate(p.calls):
            for kind in filter(None, (*(line.kind for line in call.before), *call.kinds)):
                kinds.setdefault(kind, i)
        self.kinds.update(kinds.keys())
        self.replayed.update(kind for kind, i in kinds.items() if any(verdict.replayed[i:]))
        if verdict.kind == "refused":
            self.refused += 1
            self.reasons[" ".join(word for word in verdict.why.split() if not any(c.isdigit() for c in word))[:90]] += 1
        if verdict.kind == "different":
            self.different.append((number, verdict.why))
            self.blamed.update(kinds.keys())

    def __iadd__(self, other: Tally) -> Tally:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def __str__(self) -> str:
        share = f"{100 * self.replays / max(1, self.calls):.1f} %"
        lines = [f"programs {self.programs}, calls {self.calls}, replays {self.replays} ({share}), refused "
                 f"{self.refused}, different {len(self.different)}, not run {self.errors}"]
        lines.append("changes: in so many programs; of them before a replay; in programs that differ")
        lines += [f"  {kind:26} {count:6} {100 * self.replayed[kind] / count:5.0f} % {self.blamed[kind]:6}"
                  for kind, count in sorted(self.kinds.items())]
        lines += [f"  refused {count:6}: {reason}" for reason, count in self.reasons.most_common(8)]
        return "\n".join(lines)


def run_many(seed: int, numbers: range, device: str, without: frozenset[str]) -> Tally:
    tally = Tally()
    for number in numbers:
        p = program(seed, number, without)
        try:
            tally.add(number, p, p.run(device))
        except Exception:
            tally.errors += 1
    return tally


def _part(given: tuple[float, tuple[int, range, str, frozenset[str]]]) -> Tally:
    """Some programs, none after a time (of time.time)."""
    until, what = given
    return run_many(*what) if time.time() < until else Tally()


def _watched(given: argparse.Namespace, without: frozenset[str]) -> Tally:
    """All programs, with a line for each difference once it is found, and one every ten seconds or so."""
    start, last, tally = time.time(), 0.0, Tally()
    parts = ((start + given.seconds, (given.seed, range(i, min(i + PART, given.programs)), given.device, without))
             for i in range(0, given.programs, PART))
    with contextlib.ExitStack() as stack:
        run: Callable[..., Iterator[Tally]] = map
        if given.processes > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(given.processes))
            run = pool.imap_unordered
        for part in run(_part, parts):
            tally += part
            for number, why in part.different:
                print(f"different: --seed {given.seed} --program {number}: {why}", flush=True)
            now = time.time() - start
            if now - last >= REPORT:
                last = now
                print(f"{tally.programs + tally.errors} of {given.programs} programs, {now:.0f} s, "
                      f"{len(tally.different)} different", flush=True)
    return tally


def found_by(plant: str, programs: int, seed: int = 0, device: str = "cpu",
             without: frozenset[str] = frozenset(), begin: int = 0) -> tuple[int, str] | None:
    """(number, difference) of a program that differs with a planted fault, and does not without it: of so many
    programs the first from `begin` on, or before it."""
    import planted

    for number in (*range(begin, programs), *range(begin)):
        p = program(seed, number, without)
        with contextlib.suppress(Exception):
            with planted.planted(plant):
                verdict = p.run(device)
            if verdict.kind == "different" and p.run(device).kind != "different":
                return number, verdict.why
    return None


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no more programs after so long")
    parser.add_argument("--program", type=int, help="run and print this one alone")
    parser.add_argument("--plant", help="a fault of tests/planted.py, or all")
    parser.add_argument("--without", default="", help="kinds of changes to leave out, with commas")
    parser.add_argument("--shrink", type=int, default=1, help="how many differences to shrink")
    given = parser.parse_args(words)
    without = frozenset(filter(None, given.without.split(",")))
    without |= NOT_ON_CUDA if given.device == "cuda" else frozenset()
    if given.plant:
        return _plants(given, without)
    start, tally = time.perf_counter(), Tally()
    if given.program is not None:
        p = program(given.seed, given.program, without)
        verdict = p.run(given.device)
        print(p.source(), f"# {verdict}", sep="\n")
        tally.add(given.program, p, verdict)
    else:
        tally = _watched(given, without)
    print(tally)
    print(f"{time.perf_counter() - start:.1f} s")
    for number, why in sorted(tally.different)[:given.shrink]:
        small = shrunk(program(given.seed, number, without), given.device)
        print(f"\n# --seed {given.seed} --program {number}: {why}\n# shrunk:\n{small.source()}"
              f"# {small.run(given.device).why}")
    return 1 if tally.different else 0


def _plants(given: argparse.Namespace, without: frozenset[str]) -> int:
    import planted

    names = list(planted.PLANTS) if given.plant == "all" else [given.plant]
    missed = 0
    for name in names:
        start = time.perf_counter()
        found = found_by(name, given.programs, given.seed, given.device, without)
        missed += found is None
        print(f"{name:32} {f'found by program {found[0]}' if found else 'MISSED'} "
              f"({time.perf_counter() - start:.1f} s){f': {found[1][:120]}' if found else ''}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
