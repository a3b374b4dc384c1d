"""LeNet-5 as its paper has it (LeCun, Bottou, Bengio, Haffner 1998, section II.B), 60,000 parameters: what
`zoo.build("lenet5", original=True)` builds.

Each layer up to F6 squashes by 1.7159 tanh(2x/3). S2 and S4 add up 2x2 windows and have a coefficient and a bias per
map. C3's maps read 3, 4 or 6 of S2's, by Table I. An output is minus the squared distance of F6 to the fixed code of
its class, a stylised picture of 7x12 pixels, and `loss` is equation 9. The paper prints its codes as pictures alone
(Fig. 3); those below were drawn for minidl. The paper trains by single images and second derivatives, from weights
within 2.4 / fan_in; here it is batches with momentum, from the layers' own first weights, in as many passes: 20.
"""

from __future__ import annotations

import numpy as np

from minidl import Tensor, nn

from .recipe import Recipe

J = 10.0                                   # the squared distance to all codes from which on an image is none of them
RECIPE = Recipe(data="mnist", epochs=20, batch_size=64, lr=0.003, momentum=0.9, weight_decay=1e-3,
                lr_schedule="warmup-cosine")

# Table I: the maps of S2 that each of C3's maps reads.
TABLE = [(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 0), (5, 0, 1),
         (0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 0), (4, 5, 0, 1), (5, 0, 1, 2),
         (0, 1, 3, 4), (1, 2, 4, 5), (0, 2, 3, 5), (0, 1, 2, 3, 4, 5)]

DIGITS = """
.#####. ...##.. .#####. .#####. ....##. ####### ..####. ####### .#####. .#####.
##...## ..###.. ##...## ##...## ...###. ##..... .##.... ####### ##...## ##...##
##...## .####.. ##...## .....## ..####. ##..... ##..... .....## ##...## ##...##
##...## ...##.. .....## .....## .##.##. ##..... ##..... .....## ##...## ##...##
##...## ...##.. .....## .....## ##..##. ######. ##..... ....##. ##...## ##...##
##...## ...##.. ....##. ..####. ##..##. .....## ######. ....##. .#####. .######
##...## ...##.. ...##.. ..####. ####### .....## ##...## ...##.. .#####. .....##
##...## ...##.. ..##... .....## ####### .....## ##...## ...##.. ##...## .....##
##...## ...##.. .##.... .....## ....##. .....## ##...## ..##... ##...## .....##
##...## ...##.. ##..... .....## ....##. .....## ##...## ..##... ##...## .....##
##...## ...##.. ##..... ##...## ....##. ##...## ##...## .##.... ##...## ....##.
.#####. .###### ####### .#####. ....##. .#####. .#####. .##.... .#####. .####..
"""


def codes(classes: int = 10) -> np.ndarray:
    """The code of each digit: (classes,84) of +1, ink, and -1.

    >>> codes().shape, int(codes()[1].sum())
    ((10, 84), -22)
    """
    if not isinstance(classes, int) or not 1 <= classes <= 10:
        raise ValueError(f"lenet5: classes is {classes!r} but original=True has codes for 1 to 10 classes, the digits; "
                         "leave one of them out")
    pictures = np.array([[list(digit) for digit in line.split()] for line in DIGITS.split("\n")[1:-1]])
    return np.where(pictures == "#", 1.0, -1.0).transpose(1, 0, 2).reshape(10, 84).astype(np.float32)[:classes]


class LeNet5(nn.Sequential):
    """The net. Its outputs are minus the squared distances to the codes: the largest wins."""

    output: nn.RBF

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """As `nn.RBF.loss`: pass it to `training.fit`."""
        return self.output.loss(outputs, labels)

    def or_none(self, outputs: Tensor) -> Tensor:
        """As `nn.RBF.or_none`: logits (n,classes+1); the last is for none of the classes."""
        return self.output.or_none(outputs)


def layers(in_channels: int, classes: int) -> LeNet5:
    act = nn.ScaledTanh
    return LeNet5(
        c1=nn.Conv2d(in_channels, 6, 5), act1=act(), s2=nn.Subsample2d(6), act2=act(),     # -> (n, 6, 14, 14)
        c3=nn.TableConv2d(6, TABLE, 5), act3=act(), s4=nn.Subsample2d(16), act4=act(),     # -> (n, 16, 5, 5)
        c5=nn.Conv2d(16, 120, 5), act5=act(), flatten=nn.Flatten(),                        # -> (n, 120)
        f6=nn.Linear(120, 84), act6=act(),
        output=nn.RBF(codes(classes), J))
