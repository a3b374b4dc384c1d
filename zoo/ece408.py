"""The net of the project of ECE 408, a course of the University of Illinois on PMPP's book, for Fashion-MNIST at 86x86.

Two convolutions of 7x7 with maxima behind them, of 2x2 and of 4x4, and two full connections; 45,186 parameters. The
course grades the time of the two convolutions on 10,000 images: `minidl profile ece408` shows that of each call. There
images are enlarged to 86x86, here padded. The last windows of 4x4 reach over the edge, as there. Weights start with
variance 2 / fan_in (He et al. 2015); the rates are this zoo's own, since the course hands out trained weights.
"""

from __future__ import annotations

import math

from minidl import nn

from .recipe import Model, Recipe, activation_layer, start


def layers(in_channels: int = 1, classes: int = 10, activation: str = "relu") -> nn.Sequential:
    act = activation_layer(activation)
    return start(nn.Sequential(
        conv1=nn.Conv2d(in_channels, 4, 7), act1=act(), pool1=nn.MaxPool2d(2),         # (n, 4, 40, 40)
        conv2=nn.Conv2d(4, 16, 7), act2=act(),                                         # (n, 16, 34, 34)
        pool2=nn.MaxPool2d(4, padding=((0, 2), (0, 2))),                               # (n, 16, 9, 9)
        flatten=nn.Flatten(), fc3=nn.Linear(16 * 9 * 9, 32), act3=act(),
        fc4=nn.Linear(32, classes)), gain=math.sqrt(2))


MODEL = Model("ece408", "the net of ECE 408's project (Fashion-MNIST at 86x86), 45,186 parameters", layers,
              Recipe(data="fashion-mnist", epochs=10, batch_size=128, lr=0.02, momentum=0.9, weight_decay=5e-4,
                     lr_schedule="warmup-cosine"), image_size=86)
