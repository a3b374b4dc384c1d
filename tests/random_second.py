"""Random programs and the gradients of their gradients: minidl's, plain and compiled, beside PyTorch's, in float64.

    python tests/random_second.py --programs 2000 --seed 0

A program is a few lines of Python that both libraries run: v0 and v1 (3,4), w (4,4), u and p images and filters. Its
loss is differentiated, the gradients are weighed and summed, and this sum is differentiated again; every third program
once more, but for those with normalisations, whose third derivatives differ from differences in PyTorch 2.13, and not
here (tests/ops/test_second.py). Equal is within 1e-10 of an array's largest value, or within what inputs that
are moved by their own rounding make of it: they may decide, as where a sign is taken of what is zero but for rounding.
--program N prints and runs one.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":                 # the package beside this folder, not an installed one
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import minidl
from minidl import Tensor, ops

TOLERANCE, REPLAYS = 1e-10, 2
MOVES, MOVE, SLACK = 8, 1e-15, 10          # how often inputs are moved, by how much; how often what follows is allowed
SHAPES = {"v0": (3, 4), "v1": (3, 4), "w": (4, 4), "u": (2, 4, 4, 4), "p": (4, 4, 3, 3)}

# Lines for a matrix (3,4), {a} and {b} two of them; F holds what both libraries name alike.
MATRICES = (
    "{a} + {b}", "{a} - {b} * 0.5", "{a} * {b}", "{a} / (1 + {b} * {b})", "({a} * 0.3).exp()", "({a} * {a} + 1).log()",
    "({a} * {a} + 1).sqrt()", "({a} * {a} + 0.5) ** 1.5", "2.0 ** {a}", "{a}.tanh()", "{a}.sigmoid()", "F.relu({a})",
    "F.leaky_relu({a}, 0.1)", "F.elu({a})", "F.elu({a}, 1.5)", "F.softplus({a})", "F.silu({a})", "F.gelu({a})",
    "F.gelu({a}, approximate='tanh')", "{a}.abs()", "F.maximum({a}, {b})", "F.minimum({a}, {b})",
    "F.where({a} > {b}, {a} * {b}, {b})", "F.softmax({a}, dim=1)", "F.log_softmax({a}, dim=0)", "{a} @ w",
    "F.linear({a}, w)", "F.linear({a}.reshape(1, 3, 4), w)[0]", "{a}.cumsum(1)", "F.cat([{a}[1:], {b}[:1]], 0)",
    "{a}[[2, 0, 2]]", "{a}.clamp(-0.7, 0.9)", "{a} - {a}.mean(1, keepdim=True)", "{a} * {b}.sum(0)",
    "{a} * {b}.var(1, keepdim=True)", "{a} / ({b}.std(1, keepdim=True) + 0.1)", "F.layer_norm({a}, (4,))",
    "{a} * F.norm({b}, 1)", "{a} * {b}.prod(1, keepdim=True)", "{a} * F.amax({b}, 1)", "({a}.T @ {b}).T[:3]",
    "F.attention({a}.reshape(1, 3, 4), {b}.reshape(1, 3, 4), {a}.reshape(1, 3, 4))[0]",
    "({a}.reshape(3, 4, 1) * {b}.reshape(3, 1, 4)).sum(1)", "{a}.sin() * {b}.cos()", "{a}.erf()", "{a}.expm1() * 0.2",
    "({a} * {a}).log1p()", "{a}.tril() + {b}.triu(1)", "{a} - {b}.logsumexp(1, keepdim=True)",
    "{a} % ({b} * {b} + 0.5)", "{a} * ({b} > 0)", "({a} - 0.3).sign() * {b} + ({a} + 0.3).floor()",
    "{a}.transpose(0, 1).mT @ w")
# Lines for an image (2,4,4,4), {a} one of them.
IMAGES = (
    "F.conv2d({a}, p, padding=1)", "F.conv2d({a}, p, padding=2, dilation=2)", "F.conv_transpose2d({a}, p, padding=1)",
    "F.conv2d({a}, p[:, :2], padding=1, groups=2)", "F.conv2d({a}, p[:, :1], padding=1, groups=4)",
    "F.pixel_shuffle(F.conv2d({a}, p.reshape(16, 1, 3, 3), stride=2, padding=1, groups=4), 2)",
    "F.max_pool2d({a}, 3, 1, 1)", "F.up(F.avg_pool2d({a}, 2))",
    "F.adaptive_avg_pool2d({a}, 3)[:, :, [0, 1, 1, 2]][..., [0, 0, 1, 2]]",
    "F.batch_norm({a}, None, None, training=True)", "F.group_norm({a}, 2)", "F.silu({a})", "{a} * {a} * 0.5 + u",
    "F.pad({a}, (1, 0, 0, 1))[:, :, 1:, :4]", "{a}.tanh() * F.softmax({a}, dim=1)",
    "F.conv2d({a}, p, padding='same')", "F.conv3d({a}[:, :, None], p[:, :, None], padding=(0, 1, 1))[:, :, 0]")
LOSSES = (
    "({v} * {v}).sum()", "F.mse_loss({v}, v1)", "F.cross_entropy({v}, LABELS)",
    "F.cross_entropy({v}, LABELS, label_smoothing=0.1)", "F.cross_entropy({v}, LABELS, weight=WEIGHT)",
    "F.huber_loss({v}, v1, delta=0.5)", "F.binary_cross_entropy_with_logits({v}, {v}.detach().sigmoid())",
    "F.nll_loss(F.log_softmax({v}, dim=1), LABELS)", "F.l1_loss({v} * {v}, v1)",
    "F.cross_entropy({v}[:, :3].reshape(1, 3, 3), LABELS[None] % 3)",
    "F.kl_div(F.log_softmax({v}, dim=1), F.softmax(v1, dim=1), reduction='batchmean')")


def program(number: int) -> list[str]:
    """Its lines, the last of which is the loss."""
    rng = random.Random(number)
    lines, known, images = [], ["v0", "v1"], ["u"]

    def line(form: str, among: list[str]) -> None:
        a, b = among[-1], rng.choice(among)
        lines.append(f"t{len(lines)} = {form.format(a=a, b=b)}")
        among.append(f"t{len(lines) - 1}")

    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            line(rng.choice(IMAGES), images)
        lines.append(f"t{len(lines)} = {images[-1]}.mean((0, 2, 3)) * v0")
        known.append(f"t{len(lines) - 1}")
    for _ in range(rng.randint(1, 4)):
        line(rng.choice(MATRICES), known)
    return [*lines, f"loss = {rng.choice(LOSSES).format(v=known[-1])}"]


# ---------------------------------------------------------------- two libraries
class Ours:
    """What PyTorch has in two places, or by another name."""

    cat, attention = staticmethod(ops.concatenate), staticmethod(ops.scaled_dot_product_attention)

    def __getattr__(self, name: str) -> Any:
        return getattr(ops, name)

    @staticmethod
    def norm(x: Tensor, axis: int) -> Tensor:
        return ops.norm(x, axis=axis, keepdims=True)

    @staticmethod
    def amax(x: Tensor, axis: int) -> Tensor:
        return ops.max(x, axis=axis, keepdims=True)

    @staticmethod
    def layer_norm(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return ops.layer_norm(x, shape)

    @staticmethod
    def up(x: Tensor) -> Tensor:
        return ops.interpolate(x, scale_factor=2)


def theirs() -> Any:
    import torch

    class Theirs:
        cat, attention = staticmethod(torch.cat), staticmethod(torch.nn.functional.scaled_dot_product_attention)

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.nn.functional, name, None) or getattr(torch, name)

        @staticmethod
        def norm(x: Any, dim: int) -> Any:
            return torch.linalg.vector_norm(x, dim=dim, keepdim=True)

        @staticmethod
        def amax(x: Any, dim: int) -> Any:
            return torch.amax(x, dim, keepdim=True)

        @staticmethod
        def up(x: Any) -> Any:
            return torch.nn.functional.interpolate(x, scale_factor=2)
    return torch, Theirs()


def gradients(lines: list[str], order: int, given: dict[str, Any], weights: dict[str, Any], library: Any,
              grad: Callable[..., Any], **constants: Any) -> list[Any]:
    """The loss, and its gradients of each order up to the given one, by all inputs."""
    names = {**given, "F": library, **constants}
    exec("\n".join(lines), names)
    y, xs = names["loss"], list(given.values())
    found = [y]
    for at in range(order):
        gradient = grad(y, xs, create_graph=at < order - 1, allow_unused=True)
        found += gradient
        y = sum((g * weights[name]).sum() for name, g in zip(given, gradient, strict=True) if g is not None)
        if at < order - 1 and not getattr(y, "requires_grad", False):
            break                          # linear: nothing further
    return found


def arrays(number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    draw = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    weights = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    return draw, weights, rng.integers(0, 4, 3), rng.uniform(0.5, 2, 4)


def apart(a: Any, b: Any) -> float:
    """The largest difference of two arrays, by the second's largest value; None stands for zeros."""
    a, b = (None if x is None else np.asarray(x) for x in (a, b))
    if a is None and b is None:
        return 0.0
    a, b = (np.zeros_like(b) if a is None else a), (np.zeros_like(a) if b is None else b)
    if a.shape != b.shape:
        return np.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))      # also of what overflowed
    return float(np.abs(np.where(same, 0, a - b)).max(initial=0) / max(1.0, np.abs(b).max(initial=0)))


def problem(number: int, compiled: bool = True) -> str | None:
    """What is wrong with a program."""
    lines = program(number)
    order = 3 if number % 3 == 0 and not any("_norm(" in line for line in lines) else 2
    given, weights, labels, weight = arrays(number)
    torch, library = theirs()

    def expected(move: float = 0.0) -> list[Any]:
        by = {name: 1 + move * np.random.standard_normal(x.shape) for name, x in given.items()}
        found = gradients(
            lines, order, {name: torch.tensor(x * by[name], requires_grad=True) for name, x in given.items()},
            {name: torch.tensor(x) for name, x in weights.items()}, library, torch.autograd.grad,
            LABELS=torch.tensor(labels), WEIGHT=torch.tensor(weight))
        return [None if t is None else t.detach().numpy() for t in found]
    want = expected()
    constants = {"LABELS": Tensor(labels), "WEIGHT": Tensor(weight)}
    by = {name: Tensor(x) for name, x in weights.items()}

    def step(*xs: Tensor) -> tuple[Tensor, ...]:
        found = gradients(lines, order, dict(zip(SHAPES, xs, strict=True)), by, Ours(), minidl.grad, **constants)
        return tuple(x * 0 if g is None else g for g, x in zip(found, (xs[0].sum(), *xs * order), strict=False))

    leaves = [Tensor(x, requires_grad=True) for x in given.values()]
    runs = [("plain", step(*leaves))]
    if compiled:
        replay = minidl.compile(step)
        runs += [(f"compiled, call {i}", replay(*leaves)) for i in range(2 + REPLAYS)]
    for how, found in runs:
        for i, (ours, right) in enumerate(itertools.zip_longest(found, want)):         # what ends early is 0 from there
            far = apart(None if ours is None else ours.detach().numpy(), right)
            if far > TOLERANCE and far > SLACK * max(
                    apart(each, right) for _ in range(MOVES) for each in expected(MOVE)[i:i + 1] or [right]):
                place = "the loss" if i == 0 else f"order {(i - 1) // len(SHAPES) + 1} of {[*SHAPES][(i - 1) % 5]}"
                return f"{how}, {place}: {far:.3g} apart"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first program's number")
    parser.add_argument("--program", type=int, help="this one alone, printed")
    options = parser.parse_args()
    numbers = range(options.seed, options.seed + options.programs) if options.program is None else [options.program]
    wrong = 0
    for number in numbers:
        if options.program is not None:
            print("\n".join(program(number)))
        try:
            found = problem(number)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            wrong += 1
            print(f"program {number}: {found}", flush=True)
    print(f"{len(numbers)} programs, {wrong} different")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
