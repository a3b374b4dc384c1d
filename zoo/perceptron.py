"""The perceptron as PMPP section 16.1 introduces it: one linear layer, under softmax."""

from __future__ import annotations

from minidl import nn

from .recipe import Model, Recipe


def layers(in_channels: int = 1, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(flatten=nn.Flatten(), output=nn.Linear(in_channels * 32 * 32, classes))


MODEL = Model("perceptron", "one linear layer (PMPP section 16.1)", layers,
              Recipe(data="mnist", epochs=5, batch_size=128, lr=0.02))
