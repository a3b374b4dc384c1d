"""LeNet-5 as PMPP's chapter 16 has it (section 16.2, Figs. 16.2 to 16.5), 60,856 parameters: what
`zoo.build("lenet5", original="pmpp")` builds.

C3 reads all maps of S2. A subsampling layer is a mean, a bias per map and a sigmoid, and nothing is between it and the
convolution before it: the 4th edition says that a convolution has the activation only if no subsampling follows, so C5
has it. F6 is sigmoid(W X + b). The book leaves the codes of its Gaussian output open; they are those of lenet5_1998.py
with 0 for -1, since a sigmoid is at least 0, and `loss` is that net's. The book has no recipe either: that below is
minidl's (docs/notebook/sources.md).
"""

from __future__ import annotations

import numpy as np

from minidl import Tensor, init, nn, ops

from .lenet5_1998 import J, LeNet5, codes
from .recipe import Recipe

GAIN = 4.0                                 # of the first weights: a sigmoid's derivative is at most a quarter
RECIPE = Recipe(data="mnist", epochs=20, batch_size=64, lr=0.1, momentum=0.9, lr_schedule="warmup-cosine")


class MeanPool2d(nn.Module):
    """Fig. 16.5: sigmoid of the mean of each 2x2 window plus a bias per map."""

    def __init__(self, channels: int):
        super().__init__()
        self.bias = Tensor(np.zeros((channels, 1, 1), np.float32), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(ops.avg_pool2d(x, size=2) + self.bias)


def layers(in_channels: int, classes: int) -> LeNet5:
    net = LeNet5(
        c1=nn.Conv2d(in_channels, 6, 5, bias=False), s2=MeanPool2d(6),         # (n, c, 32, 32) -> (n, 6, 14, 14)
        c3=nn.Conv2d(6, 16, 5, bias=False), s4=MeanPool2d(16),                 # -> (n, 16, 5, 5)
        c5=nn.Conv2d(16, 120, 5), act5=nn.Sigmoid(), flatten=nn.Flatten(),     # -> (n, 120)
        f6=nn.Linear(120, 84), act6=nn.Sigmoid(),
        output=nn.RBF((codes(classes) + 1) / 2, J / 4))                     # distances are a quarter of those of +-1
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            init.kaiming_uniform_(parameter, gain=GAIN)
    return net

