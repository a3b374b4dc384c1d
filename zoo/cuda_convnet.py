"""The two small CIFAR-10 nets that came with Krizhevsky's cuda-convnet (2011), in its style: `cifar10-quick`, of
"layers-80sec" (26 % error there), and `cifar10-18`, of "layers-18pct" (18 % error).

Three convolutions 5x5 of 32, 32 and 64 filters; behind each, windows of 3x3 with stride 2: first maxima before the
ReLU, in the others averages behind it. `cifar10-quick` has a hidden full connection of 64 units, 145,578 parameters in
all. `cifar10-18` has none, but response normalisation behind the first two; 89,578 parameters. There it is over
neighbouring pixels of a map, here over neighbouring maps; and there windows are cut at the border, here padded.

The rates are this zoo's own: there a rate is lowered by hand when the validation error stops changing. Weights start
with variance 2 / fan_in (He et al. 2015). On an H100 `cifar10-quick` reached an error of 21.8 % (mean of 2 seeds) and
`cifar10-18` 16.6 % (one seed; 15.4 % with `--lr 0.02`).
"""

from __future__ import annotations

import math

from minidl import nn

from .recipe import Model, Recipe, activation_layer, start


def quick(in_channels: int = 3, classes: int = 10, hidden: int = 64, activation: str = "relu") -> nn.Sequential:
    act = activation_layer(activation)
    return start(nn.Sequential(
        conv1=nn.Conv2d(in_channels, 32, 5, padding=2), pool1=nn.MaxPool2d(3, stride=2, padding=1), act1=act(),
        conv2=nn.Conv2d(32, 32, 5, padding=2), act2=act(), pool2=nn.AvgPool2d(3, stride=2, padding=1),
        conv3=nn.Conv2d(32, 64, 5, padding=2), act3=act(), pool3=nn.AvgPool2d(3, stride=2, padding=1),
        flatten=nn.Flatten(), fc=nn.Linear(64 * 4 * 4, hidden), act4=act(),
        output=nn.Linear(hidden, classes)), gain=math.sqrt(2))


def normalized(in_channels: int = 3, classes: int = 10, activation: str = "relu") -> nn.Sequential:
    act = activation_layer(activation)
    return start(nn.Sequential(
        conv1=nn.Conv2d(in_channels, 32, 5, padding=2), pool1=nn.MaxPool2d(3, stride=2, padding=1), act1=act(),
        norm1=nn.LocalResponseNorm(3, alpha=0.1),                                              # (n, 32, 16, 16)
        conv2=nn.Conv2d(32, 32, 5, padding=2), act2=act(), pool2=nn.AvgPool2d(3, stride=2, padding=1),
        norm2=nn.LocalResponseNorm(3, alpha=0.1),                                              # (n, 32, 8, 8)
        conv3=nn.Conv2d(32, 64, 5, padding=2), act3=act(), pool3=nn.AvgPool2d(3, stride=2, padding=1),
        flatten=nn.Flatten(), output=nn.Linear(64 * 4 * 4, classes)), gain=math.sqrt(2))


QUICK = Model("cifar10-quick", "cuda-convnet's quick CIFAR-10 net (Krizhevsky 2011), 145,578 parameters", quick,
              Recipe(data="cifar10", epochs=20, batch_size=128, lr=0.01, momentum=0.9, weight_decay=1e-3,
                     lr_schedule="warmup-cosine"))
NORMALIZED = Model("cifar10-18", "cuda-convnet's 18 % CIFAR-10 net (Krizhevsky 2011), 89,578 parameters", normalized,
                   Recipe(data="cifar10", epochs=100, batch_size=128, lr=0.01, momentum=0.9, weight_decay=1e-3,
                          lr_schedule="warmup-cosine", augment="crop=4,flip"))
