"""Seconds of training until a net's test accuracy first reaches a mark.

    python benchmarks/time_to_accuracy.py --device cuda --peers torch-graph --data-dir <folder>
    python benchmarks/time_to_accuracy.py --device cpu --seeds 1 --data-dir <folder>
    python benchmarks/time_to_accuracy.py --device cuda --models airbench --precision bf16 --peers torch-graph

The clock runs while steps run, until the device has finished them. It stands still while the test set is evaluated,
twice per epoch and at the end; what counts is the first of these points at which the accuracy is at the mark or above.
Before it starts, the images are on the device, as bytes for minidl and as normalised floats for PyTorch, kernels are
compiled, algorithms are chosen and the graph is captured, by steps on parameters that are thrown away afterwards. Both
peers train the zoo's net from the same first parameters, by the recipe below, on images as they are, in an order that
the seed decides, drawn anew each epoch within the counted time. minidl's step is `minidl.compile`'s, on batches of
`data.DataLoader`; torch-graph replays one CUDA graph of the step and of gathering its batch; torch, for machines
without a GPU, calls the same function. The peers take turns, seed by seed.

airbench is trained to the end by the contract of the public speed runs instead (speed_run.py): seconds of all training,
with whitening and one evaluation of six views, and the accuracy then; with --precision bf16, which the other nets do
not have here, PyTorch's net is in half precision.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import machine
import results
import speed_run
from results import Result
from train_step import PRECISIONS, names, parser, positive, publish, set_precision


class Recipe(NamedTuple):
    """How a net is trained to its mark: SGD with Nesterov momentum; the rate rises to `lr` in a straight line over the
    first `warmup` of all steps, and falls to 0 at the end. Steps have whole batches: an epoch's rest is left out."""

    data: str
    mark: float                                                # share of the test images that must be right
    batch: int
    lr: float
    warmup: float
    momentum: float
    weight_decay: float
    epochs: float


RECIPES = {
    "lenet5": Recipe("mnist", 0.99, batch=256, lr=0.4, warmup=0.2, momentum=0.9, weight_decay=5e-4, epochs=6),
    "krizhevsky2009": Recipe("cifar10", 0.58, batch=128, lr=0.1, warmup=0.2, momentum=0.9, weight_decay=1e-4,
                             epochs=2),
}
IMAGES = {"mnist": 60_000, "cifar10": 50_000}                  # to train on
POINTS = 2                                                     # evaluations per epoch
IMAGE_SIZE = 32                                                # smaller images get zeros around them


class Data(NamedTuple):
    """Both splits, and what pixels are normalised by."""

    train: Any
    test: Any
    mean: Any
    std: Any
    padding: int


class Peer(Protocol):
    """A net that can be trained from the start again and again, with what is compiled for it."""

    def start(self, state: dict[str, Any], seed: int) -> None:
        """These parameters (arrays by name), no velocity, and the order of the images that the seed decides."""

    def train(self, rates: Sequence[float]) -> None:
        """The next steps, one per rate; they may still be under way on return."""

    def accuracy(self) -> float:
        """Of the test set, in [0, 1]."""


# ---------------------------------------------------------------- minidl
class Ours:
    def __init__(self, model: str, recipe: Recipe, data: Data, device: str):
        import minidl
        from minidl import ops, optim, zoo
        from minidl.data import DataLoader, DeviceBatches

        self.net = zoo.build(model).to(device)
        self.sgd = optim.SGD(self.net.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay,
                             nesterov=True)
        options: dict[str, Any] = {"mean": data.mean, "std": data.std, "padding": data.padding, "device": device}
        self.loader = DataLoader(data.train, recipe.batch, drop_last=True, **options)
        self.test = DataLoader(data.test, 500, shuffle=False, **options)

        batches = self.batches = DeviceBatches(self.loader)

        def step(size: int) -> None:
            images, labels = batches.next(size)
            self.sgd.zero_grad()
            ops.cross_entropy(self.net(images), labels).backward()
            self.sgd.step()
        self.step = minidl.compile(step)

    def start(self, state: dict[str, Any], seed: int) -> None:
        self.net.load_state_dict(state)
        self.sgd.forget()
        self.loader.seed = seed
        self.loader.set_epoch(0)
        self.sizes = itertools.chain.from_iterable(itertools.repeat(self.batches))

    def train(self, rates: Sequence[float]) -> None:
        for rate, size in zip(rates, self.sizes, strict=False):
            self.sgd.lr = rate
            self.step(size)
        self.loader.draw_ahead()                               # as `fit` does at an epoch's end

    def accuracy(self) -> float:
        from minidl.training import evaluate

        try:
            return evaluate(self.net, self.test)[1]
        except FloatingPointError:                             # the parameters have left the numbers
            return 0.0


# ---------------------------------------------------------------- PyTorch
class Torch:
    def __init__(self, model: str, recipe: Recipe, data: Data, device: str, graph: bool = False):
        import torch
        import torch_nets

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        torch.backends.cudnn.benchmark = True
        self.torch, self.batch = torch, recipe.batch
        self.net = torch_nets.build(model).to(device)
        forward = torch_nets.forward(self.net)
        self.lr = torch.zeros((), device=device)               # the graph reads it anew
        self.sgd = torch.optim.SGD(self.net.parameters(), self.lr, recipe.momentum, weight_decay=recipe.weight_decay,
                                   nesterov=True, fused=True)
        self.images, self.labels = self._on_device(data.train, data, device)
        self.test = self._on_device(data.test, data, device)
        self.where = torch.arange(recipe.batch, device=device)

        def step() -> None:
            self.sgd.zero_grad()
            logits = forward(self.images[self.where])
            torch.nn.functional.cross_entropy(logits, self.labels[self.where]).backward()
            self.sgd.step()
        self.step = torch_nets.captured(step, self.sgd) if graph else step

    def _on_device(self, dataset: Any, data: Data, device: str) -> tuple[Any, Any]:
        """All images normalised (n,c,h,w), and their labels."""
        torch = self.torch
        mean, std = (torch.tensor(v, dtype=torch.float32, device=device)[:, None, None] for v in (data.mean, data.std))
        padded = torch.nn.functional.pad(torch.tensor(dataset.images, device=device), [data.padding] * 4)
        return (padded.float() / 255 - mean) / std, torch.tensor(dataset.labels, device=device).long()

    def start(self, state: dict[str, Any], seed: int) -> None:
        torch = self.torch
        self.net.load_state_dict({name: torch.tensor(values) for name, values in state.items()})
        for held in self.sgd.state.values():
            held["momentum_buffer"].zero_()
        self.order = self._order(torch.Generator(self.lr.device).manual_seed(seed))

    def _order(self, generator: Any) -> Iterator[Any]:
        """Each step's images."""
        while True:
            order = self.torch.randperm(len(self.labels), generator=generator, device=self.lr.device)
            yield from (part for part in order.split(self.batch) if len(part) == self.batch)

    def train(self, rates: Sequence[float]) -> None:
        for rate, where in zip(rates, self.order, strict=False):
            self.lr.fill_(rate)
            self.where.copy_(where)
            self.step()

    def accuracy(self) -> float:
        with self.torch.no_grad():
            right = sum(int((self.net(images).argmax(1) == labels).sum())
                        for images, labels in zip(*(part.split(500) for part in self.test), strict=True))
        return right / len(self.test[1])


PEERS: dict[str, Callable[[str, Recipe, Data, str], Peer]] = {
    "minidl": Ours, "torch": Torch,
    "torch-graph": lambda model, recipe, data, device: Torch(model, recipe, data, device, graph=True)}


# ---------------------------------------------------------------- measuring
class Outcome(NamedTuple):
    """Of one seed: the clock when the mark was reached, or None; the step and the accuracy at which it stopped."""

    seconds: float | None
    step: int
    accuracy: float


def load(recipe: Recipe, folder: str | None) -> Data:
    from minidl import data

    train, test = (data.load(recipe.data, split, folder) for split in ("train", "test"))
    return Data(train, test, *data.channel_statistics(train), (IMAGE_SIZE - train.images.shape[2]) // 2)


def first_parameters(model: str, seed: int) -> dict[str, Any]:
    import minidl
    from minidl import zoo

    minidl.manual_seed(seed)
    return zoo.build(model).state_dict()


def plan(recipe: Recipe, images: int) -> tuple[list[float], list[int]]:
    """The rate of each step, and the steps after which the test set is looked at."""
    from minidl import optim

    epoch = images // recipe.batch
    total = round(recipe.epochs * epoch)
    rise = max(1, round(recipe.warmup * total))
    factor = optim.warmup(rise, optim.linear(max(1, total - rise)))
    points = sorted({*range(epoch // POINTS, total, max(1, epoch // POINTS)), total})
    return [recipe.lr * factor(i) for i in range(total)], points


def reach(peer: Peer, rates: Sequence[float], points: Sequence[int], mark: float, device: str) -> Outcome:
    """Train a started peer until the mark, or to the end."""
    seconds, done, accuracy = 0.0, 0, 0.0
    for point in points:
        machine.finish(device)
        begin = time.perf_counter()
        peer.train(rates[done:point])
        machine.finish(device)
        seconds += time.perf_counter() - begin
        done, accuracy = point, peer.accuracy()
        if accuracy >= mark:
            return Outcome(seconds, done, accuracy)
    return Outcome(None, done, accuracy)


def outcomes(model: str, recipe: Recipe, data: Data, asked: Sequence[str], seeds: int,
             device: str) -> dict[str, list[Outcome]]:
    """Of each peer, seed by seed, after steps and an evaluation that do not count."""
    rates, points = plan(recipe, len(data.train))
    peers = {name: PEERS[name](model, recipe, data, device) for name in asked}
    for peer in peers.values():
        peer.start(first_parameters(model, 0), 0)
        peer.train(rates[:3])
        peer.accuracy()
    reached: dict[str, list[Outcome]] = {name: [] for name in peers}
    for seed in range(seeds):
        state = first_parameters(model, seed)
        for name in list(peers)[::-1 if seed % 2 else 1]:
            peers[name].start(state, seed)
            reached[name].append(reach(peers[name], rates, points, recipe.mark, device))
    return reached


# ---------------------------------------------------------------- the report
def row(model: str, precision: str, peer: str, found: Sequence[Outcome]) -> Result:
    """Means are over the seeds that reached the mark; none is given where no seed did."""
    seconds = [outcome.seconds for outcome in found if outcome.seconds is not None]
    steps = [outcome.step for outcome in found if outcome.seconds is not None]
    times = {"mean_s": statistics.mean(seconds), "deviation_s": statistics.pstdev(seconds), "least_s": min(seconds),
             "largest_s": max(seconds), "mean_steps": statistics.mean(steps), "seconds_s": seconds} if seconds else {}
    return {"net": model, "precision": precision if peer == "minidl" else PRECISIONS[precision], "peer": peer,
            "reached": len(seconds), "seeds": len(found), **times,
            "mean_accuracy": statistics.mean(outcome.accuracy for outcome in found)}


def speed_row(precision: str, peer: str, found: Sequence[speed_run.Outcome], epochs: int) -> Result:
    seconds, right = ([outcome[i] for outcome in found] for i in (0, 1))
    theirs = speed_run.PEER_PRECISIONS[precision]
    return {"net": speed_run.MODEL, "precision": precision if peer == "minidl" else theirs, "peer": peer,
            "epochs": epochs, "seeds": len(found), "mean_s": statistics.mean(seconds),
            "deviation_s": statistics.pstdev(seconds), "least_s": min(seconds), "largest_s": max(seconds),
            "seconds_s": seconds,
            "mean_accuracy": statistics.mean(right),
            "deviation_accuracy": statistics.pstdev(right), "accuracies": right}


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    rows = []
    result = results.about("time_to_accuracy", peers, args.device, args.threads, seeds=args.seeds)
    for model in args.models:
        if model == speed_run.MODEL:
            images = speed_run.load(args.data_dir, args.generated)
            for precision in args.precision:
                use(precision, peers)
                runs = speed_run.outcomes(images, peers, args.seeds, args.device, precision,
                                          speed_run.Settings(epochs=args.epochs))
                rows += [speed_row(precision, peer, runs[peer], args.epochs) for peer in peers]
            continue
        data = load(RECIPES[model], args.data_dir)
        for precision in args.precision:
            use(precision, peers)
            found = outcomes(model, RECIPES[model], data, peers, args.seeds, args.device)
            rows += [row(model, precision, peer, found[peer]) for peer in peers]
    return {**result, "rows": rows}


def use(precision: str, peers: Sequence[str]) -> None:
    """A precision of minidl, and what its peers have beside it."""
    set_precision("tf32" if precision == "bf16" else precision, peers)
    if precision == "bf16":
        import minidl

        minidl.set_precision("bf16")


def recipes(models: Sequence[str]) -> list[str]:
    """The recipes as a table."""
    body = []
    for model in models:
        of = RECIPES[model]
        steps = len(plan(of, IMAGES[of.data])[0])
        body.append([model, of.data, f"{100 * of.mark:g} %", str(of.batch), f"{of.lr:g}", f"{100 * of.warmup:g} %",
                     f"{of.momentum:g}", f"{of.weight_decay:g}", f"{of.epochs:g}", str(steps)])
    return results.table("net, data, mark, batch, highest rate, rises over, Nesterov momentum, weight decay, epochs, "
                         "steps", body, 2)


def report(several: Sequence[Result]) -> list[str]:
    body, runs = [], []
    for of in (row for result in several for row in result["rows"]):
        if of["net"] == speed_run.MODEL:
            runs.append([of["net"], of["precision"], of["peer"], str(of["epochs"]), str(of["seeds"]),
                         f"{100 * of['mean_accuracy']:.2f} %", f"{100 * of['deviation_accuracy']:.2f} %",
                         f"{of['mean_s']:.3f}", f"{of['deviation_s']:.3f}",
                         f"{of['least_s']:.3f}-{of['largest_s']:.3f}"])
            continue
        times = [f"{of['mean_s']:.3f}", f"{of['deviation_s']:.3f}", f"{of['least_s']:.3f}-{of['largest_s']:.3f}",
                 f"{of['mean_steps']:.0f}"] if of["reached"] else [""] * 4
        body.append([of["net"], of["precision"], of["peer"], f"{of['reached']} of {of['seeds']}", *times,
                     f"{100 * of['mean_accuracy']:.2f} %"])
    tables = (("net, precision, peer, reached, mean s, deviation, least to largest, steps, accuracy then", body),
              ("net, precision, peer, epochs, seeds, mean accuracy, deviation, mean s, deviation of s, least to "
               "largest",
               runs))
    return [*(line for head, lines in tables if lines for line in results.table(head, lines, 3)),
            *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    flags = parser(__doc__, {**RECIPES, speed_run.MODEL: None})
    flags.add_argument("--precision", type=names(speed_run.PEER_PRECISIONS), default="fp32",
                       help=f"on a GPU: one or more of {', '.join(PRECISIONS)}, and bf16 for {speed_run.MODEL}")
    flags.add_argument("--generated", action="store_true", help=f"generated images in place of {speed_run.MODEL}'s")
    flags.add_argument("--peers", type=names(PEERS), default="", help="beside minidl, separated by commas")
    flags.add_argument("--seeds", type=positive, default=10, help="how many, from 0 on")
    flags.add_argument("--epochs", type=positive, default=speed_run.Settings().epochs,
                       help=f"of {speed_run.MODEL}, in all peers (default: %(default)s)")
    flags.add_argument("--data-dir", metavar="DIR", help="where the data sets lie, as train.py has it")
    args = flags.parse_args(argv)
    if "bf16" in args.precision and any(model in RECIPES for model in args.models):
        flags.error(f"--precision bf16 is for --models {speed_run.MODEL} alone")
    publish(measure, report, args)


if __name__ == "__main__":
    main()
