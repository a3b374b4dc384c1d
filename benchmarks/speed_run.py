"""The runs of `time_to_accuracy.py --models airbench`: a whole training of the net of the public speed runs.

The contract is that of airbench94_muon. The clock runs while the first filters are made from the first 5,000 training
images, while the epochs of training run, with all that is done to images, and while the test images are evaluated at
the end, six views of each. Images and labels are on the device before it starts, as bytes, and everything has been
compiled, chosen and captured by a whole run on labels at random, whose parameters are thrown away. Nothing is evaluated
in between.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import machine

MODEL, IMAGES = "airbench", 5000                               # the net; as many images make its first filters
PEER_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "3xtf32": "fp32", "bf16": "fp16"}       # as in airbench94_muon
MOMENTUM, ITERATIONS, COEFFICIENTS = 0.6, 3, (3.4445, -4.7750, 2.0315)         # of Muon, as in minidl.optim


class Data(NamedTuple):
    """Both splits, and what pixels are normalised by."""

    train: Any
    test: Any
    mean: Any
    std: Any


class Settings(NamedTuple):
    """What is trained, and for how long."""

    batch: int = 2000
    epochs: int = 8
    width: int = 64


class Peer(Protocol):
    """A net that can be trained from the start again and again, with what is compiled for it."""

    def start(self, state: dict[str, Any], seed: int, random_labels: bool = False) -> None:
        """These parameters (arrays by name), no velocity, and a seed for all choices of the training."""

    def run(self) -> float:
        """All that the clock counts: the accuracy in the end."""


class Outcome(NamedTuple):
    """Of one seed."""

    seconds: float
    accuracy: float


# ---------------------------------------------------------------- minidl
class Ours:
    def __init__(self, settings: Settings, data: Data, device: str, precision: str = "fp32"):
        import numpy as np

        import minidl
        from minidl import Tensor, ops, optim, training, zoo
        from minidl.data import DataLoader, DeviceBatches
        from minidl.tools.cli.train import augmentation

        model = zoo.MODELS[MODEL]
        recipe = model.recipe
        self.epochs, self.device = settings.epochs, device
        self.net: Any = zoo.build(MODEL, width=settings.width).to(device)
        how: dict[str, Any] = {"mean": data.mean, "std": data.std, "device": device}
        self.loader = DataLoader(data.train, settings.batch, drop_last=True, augment=augmentation(recipe.augment),
                                 **how)
        few = data.train.first(IMAGES)
        self.few = DataLoader(few, len(few), shuffle=False, **how)
        self.labels = self.loader.stored.labels.copy()
        batches = self.batches = DeviceBatches(self.loader)
        tests = self.tests = DeviceBatches(DataLoader(data.test, min(settings.batch, len(data.test)), shuffle=False,
                                                      **how))
        steps = settings.epochs * len(self.loader)
        assert model.optimizer is not None
        optimizer, schedules = model.optimizer(self.net, recipe.lr_schedule, steps, settings.batch, recipe.lr,
                                               recipe.momentum, recipe.weight_decay)
        rates = [[group["lr"] * schedule(step) for step in range(steps)]
                 for group, schedule in zip(optimizer.groups, schedules, strict=True)]
        self.optimizer = optimizer
        self.all_rates = Tensor(np.array(rates).reshape(len(rates), settings.epochs, -1), device=device)
        self.rates = optim.Rates(Tensor(np.zeros((len(rates), len(self.loader))), device=device), batches.position)
        self.views, self.metrics = training.Views(self.net, shift=1), training.RunningMetrics(device)
        self.count = len(data.test)

        self.whitening = math.ceil(zoo.airbench.WHITENING * steps)

        def step(size: int, whitening: bool) -> None:
            images, labels = batches.next(size)
            optimizer.zero_grad()
            ops.cross_entropy(self.net(images, whitening), labels, label_smoothing=recipe.label_smoothing).backward()
            optimizer.step(self.rates)

        def look(size: int) -> None:
            images, labels = tests.next(size)
            logits = self.views(images)
            self.metrics.update(ops.cross_entropy(logits, labels), logits, labels)
        self.step, self.look = minidl.compile(step), minidl.compile(look)

    def start(self, state: dict[str, Any], seed: int, random_labels: bool = False) -> None:
        import numpy as np

        import minidl

        with minidl.no_grad():
            for name, t in self.net.named_tensors():           # in place: what was compiled stays good
                t[...] = minidl.Tensor(state[name], device=self.device)
        order = np.random.default_rng(seed).permutation(len(self.labels)) if random_labels else np.arange(
            len(self.labels))
        self.loader.stored.labels[...] = self.labels[minidl.Tensor(order, device=self.device).data]
        self.optimizer.forget()
        self.loader.seed = seed
        self.loader.set_epoch(0)

    def run(self) -> float:
        import minidl

        ((images, _),) = self.few
        self.net.start_from(minidl.Tensor(images))
        self.views.train()
        for epoch in range(self.epochs):
            self.rates.table.data[...] = self.all_rates.data[:, epoch]
            for step, size in enumerate(self.batches, epoch * len(self.loader)):
                self.step(size, step < self.whitening)
        self.views.eval()
        self.metrics.reset()
        with minidl.no_grad():
            for size in self.tests:
                self.look(size)
        return float(self.metrics.totals()[1] / self.count)


# ---------------------------------------------------------------- PyTorch
class Torch:
    """Channels last, and where ours is bf16 in half precision, as airbench94_muon; normalisation has parameters in
    single precision."""

    def __init__(self, settings: Settings, data: Data, device: str, precision: str = "fp32", graph: bool = False):
        import torch
        import torch_nets

        from minidl import zoo

        self.torch, self.settings, self.device = torch, settings, device
        torch.backends.cudnn.benchmark = True
        self.dtype = torch.float16 if PEER_PRECISIONS[precision] == "fp16" and device == "cuda" else torch.float32
        self.net: Any = torch_nets.build(MODEL, width=settings.width).to(device)
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]  # its stub lacks it
        for each in self.net.modules():
            if not isinstance(each, torch.nn.BatchNorm2d) and not list(each.children()):
                each.to(self.dtype)
        self.mean, self.std = (torch.tensor(v, dtype=torch.float32, device=device)[:, None, None]
                               for v in (data.mean, data.std))
        self.train, self.test = (
            (torch.tensor(split.images, device=device), torch.tensor(split.labels, device=device).long())
            for split in (data.train, data.test))
        self.labels = self.train[1].clone()
        recipe, airbench = zoo.MODELS[MODEL].recipe, zoo.airbench
        self.smoothing, decay = recipe.label_smoothing, recipe.weight_decay * settings.batch
        named = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        self.filters: list[Any] = [p for p in named.values() if p.ndim == 4]
        self.means = [torch.zeros_like(p) for p in self.filters]
        self.muon_lr = torch.zeros((), device=device)
        of = ((airbench.BIASES, [named["whiten.bias"]]), (airbench.BIASES, [p for name, p in named.items()
                                                                           if "norm" in name]),
              (airbench.HEAD, [named["output.weight"]]))
        self.sgd = torch.optim.SGD(
            [{"params": params, "lr": torch.zeros((), device=device), "weight_decay": decay / lr} for lr, params in of],
            momentum=airbench.MOMENTUM, nesterov=True, fused=True)
        self.steps = settings.epochs * (len(self.labels) // settings.batch)
        self.whitening = math.ceil(airbench.WHITENING * self.steps)
        self.rates = [(self.muon_lr, recipe.lr, self.steps), *(
            (group["lr"], lr, self.whitening if i == 0 else self.steps)
            for i, (group, (lr, _)) in enumerate(zip(self.sgd.param_groups, of, strict=True)))]
        shape = settings.batch, *self.train[0].shape[1:]
        self.x = torch.zeros(shape, dtype=self.dtype, device=device).contiguous(memory_format=torch.channels_last)
        self.y = torch.zeros(settings.batch, dtype=torch.long, device=device)
        ways = [functools.partial(self._step, whitening) for whitening in (False, True)]
        self.ways: list[Callable[[], None]] = [*ways]
        if graph:
            self.ways = [torch_nets.captured(step, self.sgd) for step in ways]

    def _step(self, whitening: bool) -> None:
        self.net.zero_grad(set_to_none=True)
        self.torch.nn.functional.cross_entropy(self.net(self.x, whitening).float(), self.y, reduction="sum",
                                               label_smoothing=self.smoothing).backward()
        self.sgd.step()
        with self.torch.no_grad():
            self._muon()

    def _muon(self) -> None:
        """Filters of one shape together."""
        torch = self.torch
        alike: dict[Any, list[int]] = {}
        for i, p in enumerate(self.filters):
            self.means[i].mul_(MOMENTUM).add_(p.grad)
            alike.setdefault(p.shape, []).append(i)
        for places in alike.values():
            u = torch.stack([self.filters[i].grad + MOMENTUM * self.means[i] for i in places]).flatten(2)
            u = u.to(torch.bfloat16 if self.dtype == torch.float16 else torch.float32)
            u = u / (u.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
            for _ in range(ITERATIONS):
                a, b, c = COEFFICIENTS
                gram = u @ u.mT
                u = a * u + (b * gram + c * gram @ gram) @ u
            for i, update in zip(places, u, strict=True):
                p = self.filters[i]
                p.mul_(len(p)**0.5 / p.float().norm())
                p.sub_(self.muon_lr * update.view(p.shape))

    def start(self, state: dict[str, Any], seed: int, random_labels: bool = False) -> None:
        torch = self.torch
        self.net.load_state_dict({name: torch.tensor(values) for name, values in state.items()}, strict=False)
        for held in self.sgd.state.values():
            held["momentum_buffer"].zero_()
        for mean in self.means:
            mean.zero_()
        self.random = torch.Generator(self.device).manual_seed(seed)
        order = self._order() if random_labels else slice(None)
        self.train[1].copy_(self.labels[order])

    def _order(self) -> Any:
        return self.torch.randperm(len(self.labels), generator=self.random, device=self.device)

    def run(self) -> float:
        torch = self.torch
        with torch.no_grad():
            self._whiten(self._normalized(self.train[0][:IMAGES]))
        self.net.train()
        for step, (x, y) in enumerate(self._batches()):
            for rate, lr, steps in self.rates:
                rate.fill_(lr * max(0.0, 1 - step / steps))
            self.x.copy_(x)
            self.y.copy_(y)
            self.ways[step < self.whitening]()
        self.net.eval()
        with torch.no_grad():
            right = sum((self._views(self._normalized(x)).argmax(1) == y).sum()
                        for x, y in zip(*(part.split(self.settings.batch) for part in self.test), strict=True))
        return int(right) / len(self.test[1])

    def _normalized(self, images: Any) -> Any:
        x = (images.float() / 255 - self.mean) / self.std
        return x.to(self.dtype).contiguous(memory_format=self.torch.channels_last)

    def _whiten(self, images: Any) -> None:
        from minidl import zoo

        torch, (c, h, w) = self.torch, images.shape[1:]
        patches = torch.stack([images[:, :, i:h - 1 + i, j:w - 1 + j].float() for i in (0, 1) for j in (0, 1)], 2)
        patches = patches.permute(1, 2, 0, 3, 4).reshape(4 * c, -1)
        values, vectors = torch.linalg.eigh(patches @ patches.T / patches.shape[1])
        filters = (vectors / (values + zoo.airbench.EPS).sqrt()).T.flip(0).reshape(-1, c, 2, 2)
        self.net.whiten.weight.copy_(torch.cat([filters, -filters]))

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        """Moved by up to 2 pixels with reflection, and mirrored in every other epoch."""
        torch, size, (images, labels) = self.torch, self.settings.batch, self.train
        count, _, h, w = images.shape
        padded = torch.nn.functional.pad(self._normalized(images), [2] * 4, "reflect")
        mirrored = torch.rand(count, generator=self.random, device=self.device) < 0.5
        for epoch in range(self.settings.epochs):
            down, right = torch.randint(5, (2, count), generator=self.random, device=self.device)
            for at in self._order().split(size)[:count // size]:
                rows = down[at, None] + torch.arange(h, device=self.device)
                columns = torch.arange(w, device=self.device)
                columns = torch.where((mirrored[at] ^ bool(epoch % 2))[:, None], columns.flip(0), columns)
                columns = columns + right[at, None]
                x = padded[at[:, None, None], :, rows[:, :, None], columns[:, None, :]]        # (n,h,w,c)
                yield x.permute(0, 3, 1, 2), labels[at]

    def _views(self, x: Any) -> Any:
        h, w = x.shape[2:]
        padded = self.torch.nn.functional.pad(x, [1] * 4, "reflect")
        moved = padded[:, :, :h, :w], padded[:, :, 2:, 2:]
        return sum(share * self.net(view) for each, share in ((x, 0.25), (moved[0], 0.125), (moved[1], 0.125))
                   for view in (each, each.flip(3)))


PEERS: dict[str, Callable[..., Peer]] = {
    "minidl": Ours, "torch": Torch,
    "torch-graph": lambda settings, data, device, precision: Torch(settings, data, device, precision, graph=True)}


# ---------------------------------------------------------------- measuring
def load(folder: str | None, generated: bool = False) -> Data:
    """CIFAR-10, or as many generated images, for times alone."""
    import numpy as np

    from minidl import data

    if generated:
        shapes = [data.load("synthetic-shapes", split) for split in ("train", "test")]
        train, test = (data.Dataset(of.name, of.split, np.resize(of.images, (count, *of.images.shape[1:])),
                                    np.resize(of.labels, count)) for of, count in zip(shapes, (50_000, 10_000)))
    else:
        train, test = (data.load("cifar10", split, folder) for split in ("train", "test"))
    return Data(train, test, *data.channel_statistics(train))


def first_parameters(settings: Settings, seed: int) -> dict[str, Any]:
    import minidl
    from minidl import zoo

    minidl.manual_seed(seed)
    return zoo.build(MODEL, width=settings.width).state_dict()


def outcomes(data: Data, asked: Sequence[str], seeds: int, device: str, precision: str,
             settings: Settings = Settings()) -> dict[str, list[Outcome]]:  # noqa: B008  # a NamedTuple
    """Of each peer, seed by seed, after a run on labels at random that does not count."""
    peers = {name: PEERS[name](settings, data, device, precision) for name in asked}
    for peer in peers.values():
        peer.start(first_parameters(settings, 0), 0, random_labels=True)
        peer.run()
    found: dict[str, list[Outcome]] = {name: [] for name in peers}
    for seed in range(seeds):
        state = first_parameters(settings, seed)
        for name in list(peers)[::-1 if seed % 2 else 1]:
            peers[name].start(state, seed)
            machine.finish(device)
            begin = time.perf_counter()
            accuracy = peers[name].run()
            machine.finish(device)
            found[name].append(Outcome(time.perf_counter() - begin, accuracy))
    return found
