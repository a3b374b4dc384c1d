"""What the benchmarks measure: the zoo's nets, one of them also deeper, and a net in the style of others' that has no
recipe.

vgg6: six convolutions of 3x3 in the style of Simonyan and Zisserman, "Very Deep Convolutional Networks" (2015): 64, 64,
128, 128, 256 and 256 filters, ReLU, and after each pair maxima of 2x2; full connections of 256 and 10 units.
2,196,810 parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from minidl import nn, zoo


def vgg6() -> nn.Module:
    layers: list[nn.Module] = []
    for c, m in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(c, m, 3, padding=1), nn.ReLU(), nn.Conv2d(m, m, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 10))


NETS: dict[str, Callable[[], nn.Module]] = {"resnet-56": functools.partial(zoo.build, "resnet", depth=56), "vgg6": vgg6}


def build(name: str) -> nn.Module:
    return NETS[name]() if name in NETS else zoo.build(name)


def item_shape(name: str) -> tuple[int, ...]:
    """(c,h,w) of the images that it reads, or (columns,) of a table's rows."""
    return (3, 32, 32) if name in NETS else zoo.MODELS[name].shape
