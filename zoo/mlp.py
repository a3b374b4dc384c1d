"""A fully connected net with one hidden layer: with 10,000 hidden units the non-convolutional baseline of
Krizhevsky's 2009 report (section 7.2), which gets about 50 % of CIFAR-10's test cases right."""

from __future__ import annotations

from minidl import init, nn

from .recipe import Model, Recipe, activation_layer, start


def layers(in_channels: int = 3, classes: int = 10, hidden: int = 10_000,
           activation: str = "sigmoid") -> nn.Sequential:
    output = nn.Linear(hidden, classes)
    net = start(nn.Sequential(
        flatten=nn.Flatten(),
        hidden=nn.Linear(in_channels * 32 * 32, hidden), act=activation_layer(activation)(),
        output=output), gain=4.0)
    init.zeros_(output.weight)             # or 10,000 units that say about 1/2 each push the first steps too far
    return net


MODEL = Model("mlp", "one hidden layer of 10,000 units (the 2009 report's baseline)", layers,
              Recipe(data="cifar10", epochs=10, batch_size=128, lr=0.02, momentum=0.9, weight_decay=1e-4,
                     lr_schedule="cosine"))
