"""Nets that nobody tuned minidl for, as users write them: a whole compiled step, beside PyTorch's as a CUDA graph.

    python benchmarks/untuned.py --device cuda --precision bf16,tf32 [--models mobile,gpt]

Each net is one text for both: minidl.nn has PyTorch's names. torch is PyTorch's eager step, torch-graph a CUDA graph of
it, torch-compile the same of a step whose forward and backward torch.compile made. On tensor cores images and filters
lie channels last, and in bf16 PyTorch runs under autocast. A step is zero_grad, forward, loss, backward and SGD with
momentum, on a batch that is on the device. First calls: seconds from when a net is built to the end of the first call
that replays a graph, with all that is compiled, chosen and recorded until then, in an empty cache: PyTorch's first call
and minidl's third, since it records two. Each peer has a process of its own: what torch.compile loads does not live
beside CuPy. The median of all counted runs, in rounds in which the peers take turns.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import numpy as np
import results
from machine import finish
from results import Result, digits
from train_step import add_precision, names, parser, publish

LR, MOMENTUM = 0.01, 0.9
IN_A_ROW, ROUNDS, TURNS, WARM = 20, 5, 3, 4
FIRST = {"minidl": 3, "torch": 1, "torch-graph": 1, "torch-compile": 1}    # the call of each that replays a graph


# ---------------------------------------------------------------- nets, for nn of either
def mobile(nn: Any) -> Any:
    """Depthwise 3x3 and 1x1 convolutions (Howard et al. 2017), 32 to 256 channels."""
    layers = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    for c, m, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += [nn.Conv2d(c, c, 3, stride=stride, padding=1, groups=c, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
                   nn.Conv2d(c, m, 1, bias=False), nn.BatchNorm2d(m), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def unet(nn: Any) -> Any:
    """32, 64 and 128 channels, transposed convolutions, concatenation (Ronneberger et al. 2015)."""
    cat = nn._cat

    def two(c: int, m: int) -> Any:
        return nn.Sequential(nn.Conv2d(c, m, 3, padding=1, bias=False), nn.BatchNorm2d(m), nn.ReLU(),
                             nn.Conv2d(m, m, 3, padding=1, bias=False), nn.BatchNorm2d(m), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2, self.bottom = two(3, 32), two(32, 64), two(64, 128)
            self.pool = nn.MaxPool2d(2)
            self.up2, self.join2 = nn.ConvTranspose2d(128, 64, 2, stride=2), two(128, 64)
            self.up1, self.join1 = nn.ConvTranspose2d(64, 32, 2, stride=2), two(64, 32)
            self.head = nn.Conv2d(32, 4, 1)

        def forward(self, x: Any) -> Any:
            a = self.down1(x)
            b = self.down2(self.pool(a))
            c = self.bottom(self.pool(b))
            d = self.join2(cat([self.up2(c), b], 1))
            y = self.head(self.join1(cat([self.up1(d), a], 1)))
            return y.permute(0, 2, 3, 1).reshape(-1, 4)
    return UNet()


def gpt(nn: Any) -> Any:
    """Four blocks of width 192 with 6 heads on 128 places (Radford et al. 2018)."""
    width, heads, places, words = 192, 6, 128, 256
    attention = nn._attention

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            n = x.shape[0]
            qkv = self.qkv(self.norm1(x)).reshape(n, places, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = attention(qkv[0], qkv[1], qkv[2]).permute(0, 2, 1, 3).reshape(n, places, width)
            x = x + self.out(y)
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(4)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.blocks(self.words(x) + self.places.weight))).reshape(-1, words)
    return GPT()


def convnext(nn: Any) -> Any:
    """Two stages of three blocks, 96 and 192 channels (Liu et al. 2022)."""
    class Block(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.depthwise, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
            self.mlp = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

        def forward(self, x: Any) -> Any:
            y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
            return x + y.permute(0, 3, 1, 2)
    return nn.Sequential(nn.Conv2d(3, 96, 4, stride=4), *(Block(96) for _ in range(3)),
                         nn.Conv2d(96, 192, 2, stride=2), *(Block(192) for _ in range(3)),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10))


def autoencoder(nn: Any) -> Any:
    """Convolutions of stride 2 down, transposed ones up."""
    down = [layer for c, m in ((3, 32), (32, 64), (64, 128)) for layer in (nn.Conv2d(c, m, 3, stride=2, padding=1),
                                                                           nn.ReLU())]
    up = [layer for c, m in ((128, 64), (64, 32)) for layer in (nn.ConvTranspose2d(c, m, 4, stride=2, padding=1),
                                                                nn.ReLU())]
    return nn.Sequential(*down, *up, nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1))


def resnet18(nn: Any) -> Any:
    """He et al. 2016, at 224x224."""
    class Block(nn.Module):
        def __init__(self, c: int, m: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(c, m, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(m),
                                      nn.ReLU(), nn.Conv2d(m, m, 3, padding=1, bias=False), nn.BatchNorm2d(m))
            self.same = stride == 1 and c == m
            if not self.same:
                self.short = nn.Sequential(nn.Conv2d(c, m, 1, stride=stride, bias=False), nn.BatchNorm2d(m))
            self.act = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.act(self.body(x) + (x if self.same else self.short(x)))
    blocks = [Block(c, m, stride) for c, m, stride in ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1),
                                                       (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))]
    return nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                         nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def critic(nn: Any) -> Any:
    """The critic of what a generator makes, for images of 32x32 (WGAN-GP; Gulrajani et al. 2017)."""
    layers = [layer for c, m in ((3, 64), (64, 128), (128, 256)) for layer in (nn.Conv2d(c, m, 4, 2, 1),
                                                                              nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 1))


def penalized(nn: Any, critic: Callable[[Any], Any], images: Any, made: Any) -> Any:
    """The critic's loss, with the norms of its gradients between the images: algorithm 1 there."""
    between = made + nn._rand(images.shape[0], 1, 1, 1, device=images.device) * (images - made)
    norms = nn._gradient(critic, between).flatten(1).norm(2, dim=1)
    return 10 * ((norms - 1) ** 2).mean() + critic(made).mean() - critic(images).mean()


def lstm(nn: Any) -> Any:
    """The rows of an image as 28 steps, 128 units (Hochreiter and Schmidhuber 1997)."""
    class LSTM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x.squeeze(1))[0][:, -1])
    return LSTM()


def gru(nn: Any) -> Any:
    """64 units behind an embedding (Cho et al. 2014)."""
    class GRU(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.gru, self.head = nn.Embedding(1000, 64), nn.GRU(64, 64, batch_first=True), nn.Linear(64, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.gru(self.words(x))[0][:, -1])
    return GRU()


# name -> (net, what a batch holds, target: classes of so many, 0 for another batch, or None for the batch itself)
NETS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], tuple[tuple[int, ...], int] | None]] = {
    "mobile": (mobile, (256, 3, 32, 32), ((256,), 10)),
    "unet": (unet, (64, 3, 64, 64), ((64 * 64 * 64,), 4)),
    "gpt": (gpt, (64, 128), ((64 * 128,), 256)),
    "resnet18": (resnet18, (64, 3, 224, 224), ((64,), 1000)),
    "convnext": (convnext, (128, 3, 64, 64), ((128,), 10)),
    "autoencoder": (autoencoder, (128, 3, 64, 64), None),
    "lstm": (lstm, (64, 1, 28, 28), ((64,), 10)),
    "gru": (gru, (64, 50), ((64,), 5)),
    "critic": (critic, (64, 3, 32, 32), ((64, 3, 32, 32), 0))}


def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng, (_, shape, target) = np.random.default_rng(0), NETS[name]
    x = rng.integers(0, 256, shape) if len(shape) == 2 else rng.standard_normal(shape, np.float32)
    if target is None:
        return x, x
    return x, rng.integers(0, target[1], target[0]) if target[1] else rng.standard_normal(target[0], np.float32)


def loss_of(name: str, nn: Any) -> Callable[[Callable[[Any], Any], Any, Any], Any]:
    """The loss of a net's call, a batch and its target."""
    if name == "critic":
        return functools.partial(penalized, nn)
    loss = nn._mse_loss if NETS[name][2] is None else nn._cross_entropy
    return lambda call, x, target: loss(call(x), target)


# ---------------------------------------------------------------- peers
def with_helpers(nn: ModuleType, **helpers: Any) -> ModuleType:
    """nn, and what a net takes from it that is called otherwise by each."""
    made = ModuleType(nn.__name__)
    made.__dict__.update({name: getattr(nn, name) for name in dir(nn) if not name.startswith("__")}, **helpers)
    return made


def minidl_nn() -> ModuleType:
    import minidl
    from minidl import nn, ops

    def gradient(function: Callable[[Any], Any], x: Any) -> Any:
        x = x.detach()
        x.requires_grad = True
        return minidl.grad(function(x).sum(), x, create_graph=True)[0]

    return with_helpers(nn, _cat=ops.concatenate, _mse_loss=ops.mse_loss, _cross_entropy=ops.cross_entropy,
                        _rand=minidl.rand, _gradient=gradient,
                        _attention=functools.partial(ops.scaled_dot_product_attention, is_causal=True))


def torch_nn(functional: bool = False) -> ModuleType:
    """functional: take gradients in a form that torch.compile takes."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    def gradient(function: Callable[[Any], Any], x: Any) -> Any:
        if functional:
            return torch.func.grad(lambda x: function(x).sum())(x)
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]

    return with_helpers(nn, _cat=torch.cat, _mse_loss=F.mse_loss, _cross_entropy=F.cross_entropy, _rand=torch.rand,
                        _gradient=gradient,
                        _attention=functools.partial(F.scaled_dot_product_attention, is_causal=True))


def minidl_step(name: str, precision: str, device: str) -> Callable[[], Any]:
    import minidl
    from minidl import Tensor, optim

    minidl.set_precision(precision)
    nn = minidl_nn()
    net, loss = NETS[name][0](nn).to(device), loss_of(name, nn)
    sgd = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    x, target = (Tensor(a, device=device) for a in batch(name))

    def step(x: Tensor, target: Tensor) -> Tensor:
        sgd.zero_grad()
        value = loss(net, x, target)
        value.backward()
        sgd.step()
        return value
    run = minidl.compile(step)
    return lambda: run(x, target)


def torch_step(name: str, precision: str, device: str, compiled: bool = False, graph: bool = True,
               ) -> Callable[[], Any]:
    import torch
    import torch_nets

    torch_nets.precision = precision
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    nn = torch_nn(functional=compiled)
    net, loss = NETS[name][0](nn).to(device), loss_of(name, nn)
    whole = compiled and name == "critic"              # a gradient's gradient is taken only of what is compiled whole
    forward = torch_nets.forward(torch.compile(net) if compiled and not whole else net)
    loss = torch.compile(loss) if whole else loss
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    x, target = (torch.tensor(a, device=device) for a in batch(name))

    def call(x: torch.Tensor) -> torch.Tensor:
        return forward(x).float()

    def step() -> Any:
        sgd.zero_grad()
        value = loss(call, x, target)
        value.backward()
        sgd.step()
        return value
    return torch_nets.captured(step, sgd) if graph and device == "cuda" else step


MAKERS: dict[str, Callable[[str, str, str], Callable[[], Any]]] = {
    "minidl": minidl_step, "torch": functools.partial(torch_step, graph=False), "torch-graph": torch_step,
    "torch-compile": functools.partial(torch_step, compiled=True)}


# ---------------------------------------------------------------- measuring
def inside(peer: str, name: str, precision: str, device: str) -> None:
    """In the process of a peer: prints how long its FIRST calls took, and then the mean of IN_A_ROW steps for each line
    that it reads."""
    wait(peer, device)
    begin = time.perf_counter()
    run = MAKERS[peer](name, precision, device)
    for _ in range(FIRST[peer]):
        run()
    wait(peer, device)
    print(time.perf_counter() - begin, flush=True)
    for _ in range(WARM):
        run()
    for _ in sys.stdin:
        wait(peer, device)
        begin = time.perf_counter()
        for _ in range(IN_A_ROW):
            run()
        wait(peer, device)
        print((time.perf_counter() - begin) / IN_A_ROW, flush=True)


def wait(peer: str, device: str) -> None:
    """Until the device has done all, by the peer's own package, which is imported then."""
    if peer == "minidl":
        import minidl  # noqa: F401

        finish(device)
        return
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def rows(name: str, precision: str, peers: Sequence[str], device: str) -> list[Result]:
    """A row for each peer, of one net in one precision."""
    with tempfile.TemporaryDirectory() as folder:
        caches = dict.fromkeys(("CUPY_CACHE_DIR", "MINIDL_CACHE", "CUDA_CACHE_PATH"), folder)
        started: dict[str, subprocess.Popen[str]] = {}
        first: dict[str, float] = {}
        for peer in peers:                 # one after the other: each has the processor to itself
            started[peer] = subprocess.Popen(
                [sys.executable, __file__, "--inside", peer, "--models", name, "--precision", precision,
                 "--device", device], env={**os.environ, **caches}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True)
            first[peer] = answer(started[peer])
        times: dict[str, list[float]] = {peer: [] for peer in peers}
        for turn in range(ROUNDS):
            for peer in peers[::-1 if turn % 2 else 1]:
                for part in range(TURNS + 1):
                    taken = answer(started[peer], "again")
                    if part:               # the peer before left its own data in the caches
                        times[peer].append(taken)
        for process in started.values():
            process.communicate()
        return [{"net": name, "batch": NETS[name][1][0], "precision": precision, "peer": peer,
                 "first_s": first[peer], "median_s": statistics.median(each), "least_s": min(each),
                 "largest_s": max(each)} for peer, each in times.items()]


def answer(process: subprocess.Popen[str], asked: str = "") -> float:
    """The next number that a peer prints. Raises RuntimeError if it ended instead."""
    assert process.stdin
    assert process.stdout
    if asked:
        process.stdin.write(f"{asked}\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"untuned: a peer ended with status {process.wait()}; its messages are above")
    return float(line)


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    found = [row for name, precision in itertools.product(args.models, args.precision)
             for row in rows(name, precision, peers, args.device)]
    return {**results.about("untuned", peers, args.device, args.threads, warmup=WARM, rounds=ROUNDS, turns=TURNS,
                            in_a_row=IN_A_ROW, first=FIRST), "rows": found}


def report(several: Sequence[Result]) -> list[str]:
    """A line for each net and precision."""
    lines, measured = [], {row["peer"] for result in several for row in result["rows"]}
    shown = [peer for peer in MAKERS if peer in measured]
    for result in several:
        by: dict[tuple[Any, ...], dict[str, Result]] = {}
        for row in result["rows"]:
            by.setdefault((row["net"], row["batch"], row["precision"]), {})[row["peer"]] = row
        for (net, size, precision), peers in by.items():
            theirs = [row["median_s"] for peer, row in peers.items() if peer != "minidl"]
            lines.append([net, str(size), precision, *(
                f"{digits(peers[peer]['median_s'] * 1e3)}" if peer in peers else "" for peer in shown),
                f"{min(theirs) / peers['minidl']['median_s']:.2f}" if theirs else "",
                *(f"{peers[peer]['first_s']:.1f}" if peer in peers else "" for peer in shown)])
    of = several[0]["method"]
    calls = of.get("first", dict.fromkeys(MAKERS, 1))          # of older results one of each
    columns = ["net", "batch", "precision", *(f"{peer} ms" for peer in shown), "speed / the faster peer",
               *(f"{peer} first {'call' if calls[peer] == 1 else f'{calls[peer]} calls'} s" for peer in shown)]
    return [*results.table(", ".join(columns), lines, 3),
            f"{of['rounds']} rounds of {of['turns']} times {of['in_a_row']} steps between two readings of the clock.",
            "",
            *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    flags = parser(__doc__, dict(NETS))
    add_precision(flags)
    flags.set_defaults(models=",".join(NETS), precision="tf32")
    flags.add_argument("--peers", type=names(MAKERS), default="", help="beside minidl, separated by commas")
    flags.add_argument("--inside", choices=list(MAKERS), help=argparse.SUPPRESS)
    args = flags.parse_args(argv)
    if args.inside:
        inside(args.inside, args.models[0], args.precision[0], args.device)
    else:
        publish(measure, report, args)


if __name__ == "__main__":
    main()
