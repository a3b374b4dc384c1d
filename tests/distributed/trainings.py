"""Trainings that several ranks do, as a script for mpiexec: `python trainings.py WHAT,... OUTPUT [ARGUMENT]`.

In the name of the output, WHAT stands for the name of each. Imported by the tests, the same functions run in one
process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import minidl
from minidl import Tensor, data, distributed, nn, ops, optim, training, zoo

STEPS = 50
DEVICE = os.environ.get("RANKS_DEVICE", "cpu")


def net(name: str) -> nn.Module:
    minidl.manual_seed(3 + distributed.current().rank)             # rank 0's parameters are those of all
    made: nn.Module = nn.Sequential(nn.Conv2d(1, 3, 5, stride=2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(108, 16), nn.Tanh(), nn.Linear(16, 10))
    if name != "normalised":
        made = zoo.build(name)
    for _, t in made.named_tensors():
        t.data = t.data.astype(np.float64)
    return made.to(DEVICE)


def loaders(name: str, steps: int, batch: int = 7, last: int = 1) -> tuple[data.DataLoader, data.DataLoader]:
    """Of odd sizes; the last step of an epoch has one image."""
    c, side = {"lenet5": (1, 32), "krizhevsky2009": (3, 32), "normalised": (1, 16)}[name]
    random = np.random.default_rng(1)

    def loader(split: str, count: int, size: int) -> data.DataLoader:
        images, labels = random.integers(0, 256, (count, c, side, side), np.uint8), random.integers(0, 10, count)
        return data.DataLoader(data.Dataset("noise", split, images, labels), size, shuffle=split == "train", seed=5,
                               mean=[0.5] * c, std=[0.25] * c, dtype="float64", device=DEVICE,
                               augment=data.Augment(crop=2, flip=True) if split == "train" else None)
    return loader("train", (steps - 1) * batch + last, batch), loader("test", 23, 10)


def trained(name: str, compiled: bool, epochs: int = 5, images: tuple[int, int] = (7, 1),
            **options: Any) -> dict[str, np.ndarray]:
    """Weights and metrics after 50 steps, in epochs of 10. images: of a step, and of the last one."""
    model = net(name)
    train, test = loaders(name, STEPS // 5, *images)
    rate = {"lenet5": 0.02, "krizhevsky2009": 0.001, "normalised": 0.05}[name]
    history = training.fit(
        model, optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=1e-3), train, test, epochs=epochs,
        compiled=compiled, progress=False, say=None, schedule=optim.cosine(STEPS),
        metrics={"top3": training.top_k_accuracy(3)}, **options)
    assert train.part == (0, 1)
    clocks = ("seconds", "images_per_second")
    return {**{f"weights {key}": t.numpy() for key, t in model.named_tensors()},
            "metrics": np.array([[value for key, value in line.items() if key not in clocks] for line in history])}


KINDS = [(name, compiled) for name in ("lenet5", "krizhevsky2009", "normalised") for compiled in (False, True)]


def all_kinds(kinds: Any = KINDS) -> dict[str, np.ndarray]:
    return {f"{name} {'compiled' if compiled else 'eager'} {key}": value for name, compiled in kinds
            for key, value in trained(name, compiled).items()}


def one_kind() -> dict[str, np.ndarray]:
    """The smallest, which has all that ranks sum; `ignoring` trains another."""
    return all_kinds([("normalised", False), ("normalised", True)])


def alike() -> dict[str, np.ndarray]:
    """Each rank of two or three has as many images as the others, in all steps."""
    return {f"{name} {key}": value for name in ("lenet5", "krizhevsky2009", "normalised")
            for key, value in trained(name, True, images=(6, 6)).items()}


def ignoring() -> dict[str, np.ndarray]:
    """Labels of 0 are ignored, those of the second step all, and others have weights: ranks count unlike shares."""
    found = {}
    for compiled in (False, True):
        model = net("lenet5")
        train, test = loaders("lenet5", 6, last=1)
        train.shuffle = False
        for loader in (train, test):
            loader.stored.labels[7:14] = 0
            loader.stored.labels[::3] = 0
        factors = Tensor(np.arange(0.5, 5.5, 0.5), device=DEVICE)
        history = training.fit(
            model, optim.SGD(model.parameters(), 0.02, momentum=0.9), train, test, epochs=2, compiled=compiled,
            loss=lambda o, t, by=factors: ops.cross_entropy(o, t, by, ignore_index=0), progress=False, say=None)
        found |= {f"{compiled} {key}": t.numpy() for key, t in model.named_tensors()}
        found[f"{compiled} metrics"] = np.array([[line[f"{split}_{name}"] for split in ("train", "test")
                                                  for name in ("loss", "accuracy")] for line in history])
    return found


class Two(nn.Module):
    """A net of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        minidl.manual_seed(3)
        self.rows, self.ids, self.last = nn.Linear(6, 4), nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, rows: Tensor, ids: Tensor) -> Tensor:
        return self.last((self.rows(rows) + self.ids(ids)).tanh())


def options() -> dict[str, np.ndarray]:
    """Steps of several batches, clipped, of two inputs, whose images and labels have weights; and a metric of the whole
    set. The last step of an epoch has one image."""
    random, found = np.random.default_rng(1), {}
    rows, ids, labels = random.standard_normal((50, 6)), random.integers(0, 9, 50), random.integers(0, 3, 50)
    weights = random.integers(0, 3, 50) * 0.5
    weights[7:14] = 0
    for compiled in (False, True):
        model = Two().to(DEVICE, dtype="float64")
        train, test = (data.DataLoader(((rows, ids), labels, weights), size, shuffle=False, device=DEVICE)
                       for size in (7, 20))
        history = training.fit(
            model, optim.Adam(model.parameters(), 0.05), train, test, epochs=3, compiled=compiled, accumulate=3,
            clip=0.1, loss=lambda o, t: ops.cross_entropy(o, t, ignore_index=0, reduction="none"), progress=False,
            metrics={"median": training.WholeSet(lambda o, t: float(np.median(o[:, 0]) + t[3]))}, say=None)
        found |= {f"{compiled} {key}": t.numpy() for key, t in model.named_tensors()}
        found[f"{compiled} metrics"] = np.array([[line[name] for name in (
            "train_loss", "test_loss", "train_accuracy", "test_accuracy", "test_median")] for line in history])
    return found


def normalised(loss: Any, weights: bool = False, callbacks: Any = (), optimizer: Any = None,
               **options: Any) -> dict[str, np.ndarray]:
    """A net with batch normalisation, trained and seen by a test set; parts of batches have unlike numbers of rows."""
    minidl.manual_seed(3 + distributed.current().rank)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, **options.pop("norm", {})), nn.Tanh(), nn.Linear(8, 3))
    model = model.to(DEVICE, dtype="float64")
    random = np.random.default_rng(1)
    rows, labels = random.standard_normal((44, 6)), random.integers(0, 3, 44)
    given = (rows, labels, random.integers(0, 3, 44) * 0.5) if weights else (rows, labels)
    train, test = (data.DataLoader(given, size, shuffle=size == 11, seed=2, device=DEVICE) for size in (11, 15))
    trained = [*model.parameters(), *(loss.parameters() if isinstance(loss, nn.Module) else ())]
    sgd, log = optim.SGD(trained, 0.1, momentum=0.9), []
    made = [callback(model, sgd, train, test, log) for callback in callbacks]
    history = training.fit(model, sgd, train, test, epochs=3, loss=loss, callbacks=made, progress=False, say=None,
                           metrics={"top2": training.top_k_accuracy(2)}, **options)
    states = distributed.current().gather(model.state_dict())
    assert all(np.array_equal(states[0][name], other[name]) for other in states for name in states[0])
    histories = distributed.current().gather(history)
    assert all(each == histories[0] for each in histories)
    return {**states[0], "log": np.array(log, np.float64), "seen": np.array(training.evaluate(model, test, loss=loss)),
            "metrics": np.array([[line[name] for name in ("train_loss", "train_accuracy", "train_top2", "test_loss",
                                                          "test_accuracy", "test_top2")] for line in history])}


class Scaled(nn.Module):
    """A loss with a parameter: one number, of shape (1,), as that of one image has."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(np.array([0.3]))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(logits, labels) * (-self.scale).exp() + self.scale


def counted() -> dict[str, np.ndarray]:
    """Batch normalisation over all ranks, of losses that do not count by the images that each rank has."""
    by, found = Tensor(np.array([0.5, 1.0, 2.5]), device=DEVICE), {}
    each = partial(ops.cross_entropy, reduction="none")
    for name, made in (
            ("weight", partial(normalised, lambda o, t: ops.cross_entropy(o, t, by))),
            ("ignored", partial(normalised, lambda o, t: ops.cross_entropy(o, t, ignore_index=0))),
            ("rows", partial(normalised, each, weights=True)),
            ("several", partial(normalised, ops.cross_entropy, accumulate=3)),
            ("several rows", partial(normalised, each, weights=True, accumulate=2, clip=0.3))):
        for compiled in (False, True):
            found |= {f"{name} {compiled} {key}": value for key, value in made(compiled=compiled).items()}
    rows = np.random.default_rng(2).standard_normal((11, 6))
    batches = data.DataLoader((rows, np.arange(11) % 3), 5, device=DEVICE)             # the last of one row
    minidl.manual_seed(3)
    model, loss = nn.Linear(6, 3).to(DEVICE, dtype="float64"), Scaled().to(DEVICE, dtype="float64")
    for accumulate in (1, 3):
        training.fit(model, optim.SGD([*model.parameters(), loss.scale], 0.1), batches, batches, epochs=2, loss=loss,
                     accumulate=accumulate, progress=False, say=None)
    return found | model.state_dict() | loss.state_dict()


def changed() -> dict[str, np.ndarray]:
    """What callbacks change in the net, the optimizer and the loaders holds for all ranks; they see the whole data."""
    class At:
        def __init__(self, model: Any, sgd: Any, train: Any, test: Any, log: list[Any]):
            self.given = model, sgd, train, test, log

    class Begins(At):
        def on_train_begin(self) -> None:
            with minidl.no_grad():
                self.given[0][3].bias[...] = 0.5
            self.given[0][0].weight.requires_grad = False

    class Sees(At):
        def on_epoch_end(self, metrics: dict[str, Any]) -> None:
            model, _, _, test, log = self.given
            log += [*training.evaluate(model, test), float(training.predict(model, test).sum()),
                    len(training.predict(model, test)), minidl.rand(1).item()]

    class Changes(At):
        def on_epoch_end(self, metrics: dict[str, Any]) -> None:
            model, sgd, train, _, _ = self.given
            metrics["train_top2"] = metrics["epoch"]
            sgd.groups[0]["lr"] = np.float32(0.03125)
            train.seed = 7
            model[0].weight.requires_grad = True
            model[1].eval()

    class Steps(At):
        """Within steps, too: weights, what the optimizer keeps, numbers of layers, and which are frozen."""
        def on_step_end(self, step: training.Step) -> None:
            model, sgd, *_ = self.given
            model[3].weight.data[...] = model[3].weight.data.clip(-0.25, 0.25)
            model[1].eps, model[0].bias.requires_grad = 0.01 * step.step, step.step % 3 > 0
            if step.step % 4 == 0:
                sgd.forget()

    class Trains(At):
        """A training of rank 0 alone."""
        def on_epoch_end(self, metrics: dict[str, Any]) -> None:
            model, sgd, train, _, log = self.given
            log += [training.find_rate(model, sgd, train, steps=10).losses[-1]]
            log += [distributed.by_first(lambda: metrics["epoch"])]

    def average(model: Any, *_: object) -> optim.EMA:
        return averages.setdefault(0, optim.EMA(model, 0.5))
    averages: dict[int, optim.EMA] = {}
    found = normalised(ops.cross_entropy, callbacks=(Begins, Sees, Changes, Steps, Trains, average))
    *_, last = distributed.current().gather(averages[0].state_dict()["averages"])
    return found | {f"average {i}": array for i, array in enumerate(last)}


def refused() -> dict[str, np.ndarray]:
    """One value per channel on all ranks together; weighted losses in a loop of one's own; data, and callbacks."""
    world, said, rows = distributed.start(), list[str](), np.random.default_rng(1).standard_normal((13, 6))
    each, by = data.DataLoader((rows, np.arange(13) % 3), 4, device=DEVICE), Tensor(np.arange(1.0, 4.0), device=DEVICE)
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).to(DEVICE, dtype="float64")
    own, fit = data.DataLoader((rows + world.rank, np.arange(13) % 3), 4, device=DEVICE), training.fit
    x, labels = Tensor(rows[world.rank:], device=DEVICE), Tensor(np.arange(13)[world.rank:] % 3, device=DEVICE)

    def weighted() -> None:
        loss = ops.cross_entropy(net(x), labels, by)
        loss.backward()
        distributed.average(net.parameters(), share=loss.weights.sum() if loss.weights is not None else None)
    for work in (lambda: fit(net, optim.SGD(net.parameters(), 0.1), each, each, epochs=1, compiled=False, say=None),
                 lambda: fit(net, optim.SGD(net.parameters(), 0.1), each, each, epochs=1, compiled=True, say=None),
                 weighted, minidl.compile(weighted),
                 lambda: fit(net, optim.SGD(net.parameters(), 0.1), own, own, epochs=1, say=None)):
        try:
            work()
        except ValueError as error:
            said.append(str(error))
    return {"said": np.array(world.gather(said))}


def own_statistics() -> dict[str, np.ndarray]:
    """Each rank has its own running statistics until its epoch ends; the last metrics are those of the net that is
    left."""
    found = normalised(ops.cross_entropy, norm={"across_ranks": False})
    return {"told": found["metrics"][-1, 3:5], "seen": found["seen"]}


def diverging() -> dict[str, np.ndarray]:
    """An image that is not finite, on one rank alone, in the fifth step."""
    rows, said = np.ones((40, 6)), []
    rows[4 * 8 + 7] = np.nan
    for compiled in (False, True):
        minidl.manual_seed(1)
        model = nn.Linear(6, 3).to(DEVICE, dtype="float64")
        batches = data.DataLoader((rows, np.arange(40) % 3), 8, shuffle=False, device=DEVICE)
        try:
            training.fit(model, optim.SGD(model.parameters(), 0.1), batches, batches, epochs=2, compiled=compiled,
                         progress=False, say=None)
        except training.Diverged as error:
            said.append(str(error))
    return {"said": np.array(distributed.current().gather(said))}


def first_part(folder: str) -> dict[str, np.ndarray]:
    """Stopped by a callback in the middle of the second epoch, after a checkpoint of step 14."""
    class Stop:
        def on_step_end(self, step: training.Step) -> bool:
            return step.step == 15
    return trained("normalised", True, checkpoints=folder, callbacks=Stop(), save_every=7)


def second_part(file: str) -> dict[str, np.ndarray]:
    return trained("normalised", True, resume=file)


def by_hand() -> dict[str, np.ndarray]:
    """A loop of one's own, by train_step, as docs/distributed.md has it."""
    world = distributed.start()
    model = net("lenet5")
    train, _ = loaders("lenet5", 10)
    train.part = world.rank, world.size
    for _, t in model.named_tensors():
        world.broadcast(t.data.reshape(-1))
    optimizer = optim.SGD(model.parameters(), 0.02)
    told = [training.train_step(model, optimizer, Tensor(images), labels) for images, labels in train]
    images, labels = next(iter(train))
    optimizer.zero_grad()
    ops.cross_entropy(model(Tensor(images)), labels).backward()
    distributed.average(model.parameters(), len(labels) / 7)
    return {"told": np.array(told), **{f"gradient {i}": p.grad.numpy() for i, p in enumerate(model.parameters())
                                       if p.grad is not None}}


def called() -> dict[str, np.ndarray]:
    """Callbacks are called on rank 0 alone; the means that they ask for are of all images, and their rates hold."""
    class Watch:
        def __init__(self) -> None:
            self.means: list[float] = []

        def on_step_end(self, step: training.Step) -> bool:
            self.means.append(step.means()["loss"])
            optimizer.groups[0]["lr"] = 0.02 / step.step
            return step.step == 13

        def on_epoch_end(self, metrics: dict[str, Any]) -> None:
            with minidl.no_grad():
                model[6].bias[...] = 0.25

    watch, model = Watch(), net("normalised")
    optimizer = optim.SGD(model.parameters(), 0.02)
    train, test = loaders("normalised", 10)
    found = training.find_rate(model, optimizer, train, steps=10)          # of rank 0's net, too
    history = training.fit(model, optimizer, train, test, epochs=5, callbacks=watch, progress=False, say=None)
    calls = distributed.start().gather(len(watch.means))
    weights = distributed.start().gather(model.state_dict())
    assert all(np.array_equal(weights[0][name], other[name]) for other in weights for name in weights[0])
    return {"calls": np.array(calls), "means": np.array(watch.means), "found": np.array(found.losses),
            "epochs": np.array(len(history)),
            "rate": np.array(optimizer.lr), **weights[0]}


def broken(folder: str) -> dict[str, np.ndarray]:
    """An image that rank 1 cannot read, in the second epoch."""
    epoch = [0]

    def transform(image: np.ndarray, label: int) -> tuple[np.ndarray, int]:
        if epoch[0] and distributed.current().rank == 1:
            Path(folder, "failed").touch()
            raise ValueError("image 3 is no image")
        return image, label

    def count(metrics: dict[str, Any]) -> None:
        epoch[0] += 1

    class Test(data.DataLoader):
        def set_epoch(self, number: int) -> None:      # on every rank, after each epoch
            epoch[0] += 1
    train, test = loaders("lenet5", 10)
    train = data.DataLoader(train.dataset, 7, transform=transform, device=DEVICE)
    test = Test(test.dataset, 7, device=DEVICE)
    model = zoo.build("lenet5").to(DEVICE)
    training.fit(model, optim.SGD(model.parameters(), 0.01), train, test, epochs=3, progress=False, checkpoints=folder)
    return {}


def only_statistics() -> dict[str, np.ndarray]:
    """One layer, of own statistics on each rank."""
    world = distributed.start()
    layer = nn.BatchNorm1d(2, across_ranks=False)
    y = layer(Tensor(np.float32([[0, 1], [2, 4]]) + 10 * world.rank))
    return {"y": y.numpy(), "mean": layer.running_mean.numpy() if layer.running_mean is not None else y.numpy()}


def draws() -> dict[str, np.ndarray]:
    """What each rank draws from one seed: for parameters, and in dropout."""
    minidl.manual_seed(1)
    weight, kept = minidl.randn(5).numpy(), ops.dropout(minidl.ones(1000)).numpy()
    return {"weights": np.array(distributed.current().gather(weight)),
            "kept": np.array(distributed.current().gather(kept)), "state": np.array(minidl.core.rng.get_state())}


def leaves(file: str) -> dict[str, np.ndarray]:
    """Rank 1 fails between two steps; rank 0 has given its GPU the next one, and comes to its end."""
    world = distributed.start()
    world.prepare(DEVICE)
    w = Tensor(np.ones(1000, np.float32), requires_grad=True, device=DEVICE)
    for step in range(2):
        if step and world.rank:
            Path(file).touch()
            raise ValueError("a step that cannot be")
        w.grad = None
        (w * w).sum().backward()
        distributed.average([w])
    return {}


def replays(steps: str, name: str = "lenet5") -> dict[str, np.ndarray]:
    """Captured steps in float32; all ranks end with the same bits."""
    minidl.manual_seed(1)
    random, model = np.random.default_rng(1), zoo.build(name).to(DEVICE)
    c = zoo.MODELS[name].shape[0]
    images, labels = random.integers(0, 256, (2560, c, 32, 32), np.uint8), random.integers(0, 10, 2560)
    train = data.DataLoader(data.Dataset("noise", "train", images, labels), 256, mean=[0.5] * c, std=[0.25] * c,
                            device=DEVICE)
    test = data.DataLoader(data.Dataset("noise", "test", images, labels), 500, shuffle=False, device=DEVICE)
    history = training.fit(model, optim.SGD(model.parameters(), 0.01, momentum=0.9), train, test, compiled=True,
                           epochs=int(steps) // 10, progress=False, say=None)
    weights = distributed.current().gather(model.state_dict())
    assert all(np.array_equal(weights[0][name], other[name]) for other in weights for name in weights[0])
    return {**weights[0], "loss": np.array(history[-1]["train_loss"])}


def in_place(name: str) -> dict[str, np.ndarray]:
    """Replays whose gradients are made where NCCL reads them; without that; and where a launcher has another use for
    memory of a gradient's size. `copies`: the launches in each graph that lay gradients one behind the other."""
    import cupy

    from minidl.compiler import buckets
    from minidl.ops.cuda.reduce import ranks

    multiply, averaged, handing_out = ranks.multiply, buckets.averaged, buckets._handing_out
    copies: list[int] = []

    def counted(*given: Any) -> None:
        copies[-1] += cupy.cuda.get_current_stream().is_capturing()
        multiply(*given)

    def with_workspace(parts: list[Any], others: Callable[[int], Any]) -> Callable[[int], Any]:
        take = handing_out(parts, others)
        take(parts[0].nbytes)
        return take

    runs = []
    ranks.multiply = counted
    for find, hand_out in ((averaged, handing_out), (lambda program: {}, handing_out), (averaged, with_workspace)):
        buckets.averaged, buckets._handing_out = find, hand_out
        copies.append(0)
        runs.append(replays("20", name))
    return {**{f"{i} {key}": value for i, run in enumerate(runs) for key, value in run.items()},
            "copies": np.array(copies)}


BUILT: list[int] = []                      # the widths of the nets of `swept`, on this rank


def small(width: int) -> nn.Module:
    BUILT.append(width)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, width), nn.Dropout(0.5), nn.Linear(width, 10))


def swept(folder: str) -> dict[str, np.ndarray]:
    """Nets that the ranks share out. `built`: by which rank."""
    found = minidl.sweep(small, tuple(loader.dataset for loader in loaders("normalised", 4)), epochs=2, width=[2, 3],
                         lr=[0.01, 0.1], seed=1, folder=folder, workers=0, progress=False, device=DEVICE)
    world = distributed.start()
    built, rows = world.gather(BUILT.copy()), world.gather([row["net"] for row in found.rows])
    assert all(each == rows[0] for each in rows)
    assert world.size == 1 or len(set(world.gather(minidl.randn(3).tolist()[0]))) == 1
    nets = {row["net"]: minidl.load(Path(row["folder"]) / "weights.h5", code=small) for row in found.rows}
    return {"built": np.array([len(each) for each in built]), "best": np.array(found.best["best"]),
            **{f"{net} {name}": array for net, model in nets.items() for name, array in model.state_dict().items()}}


def ways() -> dict[str, np.ndarray]:
    """Ranks that take different ways, in each of which all of them say so, and go on; and some that may differ."""
    world = distributed.start()
    first = world.rank == 0
    found = []

    class Ways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            minidl.manual_seed(1)
            self.a, self.b, self.c = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.c((self.a if self.first else self.b)(x))

    def tried(name: str, work: Callable[[], object]) -> None:
        try:
            work()
            found.append(f"{name}: ok")
        except ValueError as error:
            found.append(f"{name}: {error}")

    def update(model: nn.Module, compiled: bool = False, backward: bool = True) -> Callable[[], object]:
        def step(x: Tensor) -> Tensor:
            model.zero_grad()
            loss = model(x).mean()
            if backward:
                loss.backward()
            distributed.average(model.parameters())
            return loss
        run = minidl.compile(step) if compiled else step
        return lambda: [run(Tensor(np.ones((2, 4), np.float32))) for _ in range(4)]

    def trained(compiled: bool) -> Callable[[], object]:
        def work() -> object:
            model = Ways()
            model.first = first
            source = np.ones((12, 4), np.float32), np.arange(12) % 3
            batches = data.DataLoader(source, 6)
            return training.fit(model, optim.SGD(model.parameters(), 0.1), batches, data.DataLoader(source, 6),
                                epochs=1, compiled=compiled, progress=False, say=None)
        return work

    for compiled in (False, True):
        model = Ways()
        model.first = first
        tried(f"ways {compiled}", update(model, compiled))
        tried(f"fit {compiled}", trained(compiled))
        model.first = True
        tried(f"same {compiled}", update(model, compiled))
        tried(f"none on one {compiled}", update(model, compiled, backward=first))
        tried(f"none {compiled}", update(model, compiled, backward=False))
        model.c.requires_grad_(not first)
        tried(f"frozen on one {compiled}", update(model, compiled))
    params = list(model.parameters())
    tried("other order", lambda: distributed.average(params if first else params[::-1]))
    return {"told": np.array(world.gather(found))}


WHAT: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    each.__name__: each for each in (all_kinds, one_kind, alike, ignoring, options, counted, changed, refused,
                                     own_statistics, diverging, first_part,
                                     second_part, by_hand, called, broken, only_statistics, draws, leaves, replays,
                                     in_place, ways, swept)}

if __name__ == "__main__":
    distributed.start()
    names, output, *given = sys.argv[1:]
    for what in names.split(","):
        result = WHAT[what](*given)
        if distributed.current().rank == 0:
            np.savez(Path(output.replace("WHAT", what)),
                     **result)  # type: ignore[arg-type]  # its stub takes one of them for allow_pickle
