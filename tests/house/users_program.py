"""What a user may write in a day, with types: test_types.py gives it to type checkers, and plants mistakes in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import minidl
from minidl import Tensor, data, nn, ops, optim, training


# ---------------------------------------------------------------- an op of one's own
@minidl.op
def swish(k: Any, x: Tensor, *, beta: float = 1.0) -> Any:
    """x * sigmoid(beta * x), elementwise."""
    s = k.sigmoid(k.mul(x, beta))
    y = k.mul(x, s)
    return y, lambda gy, need: (k.mul(gy, k.add(s, k.mul(k.mul(y, beta), k.sub(1, s)))),)


# ---------------------------------------------------------------- layers and a net
class Block(nn.Module):
    def __init__(self, channels: int, beta: float = 1.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return x + swish(self.norm(self.conv(x)), beta=self.beta)


class Net(nn.Module):
    def __init__(self, classes: int = 10, width: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Block(width), Block(width, beta=2.0)])
        self.drop = nn.Dropout(dropout) if dropout else None
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
        self.scale = nn.Parameter([1.0])

    def features(self, x: Tensor) -> Tensor:
        x = ops.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        if self.drop is not None:
            x = self.drop(x)
        return self.head(x) * self.scale


class Both(nn.Module):
    """Two results, as an autoencoder has."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.net.features(x)


def smooth_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return ops.cross_entropy(logits, labels, label_smoothing=0.1) + 1e-4 * (logits * logits).mean()


def error(logits: Tensor, labels: Tensor) -> Tensor:
    return ops.where(logits.argmax(axis=1) == labels, 0.0, 1.0).mean()


# ---------------------------------------------------------------- a loop of one's own, plain and compiled
net, digits = Net(), data.load("synthetic-digits", "train").first(200)
adam = optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
loader = data.DataLoader(digits, 50, mean=[0.5], std=[0.5], seed=1)


@minidl.compile
def step(images: Tensor, labels: Tensor, rate: float = 1e-3) -> tuple[Tensor, Tensor]:
    adam.zero_grad()
    logits = net(images)
    loss = smooth_loss(logits, labels)
    loss.backward()
    adam.step()
    return loss, logits


def losses(epochs: int) -> Iterator[float]:
    for _ in range(epochs):
        for images, labels in loader:
            loss, logits = step(Tensor(images), Tensor(labels), rate=1e-3)
            assert logits.shape == (len(images), 10)
            yield loss.item()


class Trainer:
    """A step that is a method."""

    def __init__(self) -> None:
        self.steps = 0

    @minidl.compile
    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return smooth_loss(net(images), labels)


def mean_loss(trainer: Trainer) -> float:
    values: list[float] = [trainer.loss(Tensor(images), Tensor(labels)).item() for images, labels in loader]
    return sum(values) / len(values)


# ---------------------------------------------------------------- fit, callbacks, weights
class StopEarly:
    def __init__(self, patience: int) -> None:
        self.best, self.left, self.patience = 1.0, patience, patience

    def on_epoch_end(self, metrics: training.Metrics) -> bool:
        self.left = self.patience if metrics["test_error"] < self.best else self.left - 1
        self.best = min(self.best, metrics["test_error"])
        return self.left == 0


def fitted(folder: Path) -> list[training.Metrics]:
    history = training.fit(net, adam, loader, loader, epochs=2, loss=smooth_loss, metrics={"error": error},
                           schedule=optim.cosine(8), callbacks=[StopEarly(2), lambda metrics: print(metrics["epoch"])])
    minidl.save(net, folder / "net.h5", classes=[str(digit) for digit in range(10)])
    return history


def predicted(path: Path, images: np.ndarray) -> np.ndarray:
    twin = Net()
    minidl.load(twin, path)
    with minidl.no_grad():
        logits, features = Both(twin).eval()(Tensor(images))
    assert features.ndim == 4
    return logits.argmax(axis=1).numpy()


if __name__ == "__main__":
    print(sum(losses(1)), mean_loss(Trainer()), fitted(Path("."))[-1]["test_error"])
    print(predicted(Path("net.h5"), next(iter(loader))[0]))
