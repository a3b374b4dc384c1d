"""The net of the public speed runs for 94 % of CIFAR-10: Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU"
(2024, arXiv 2404.00498), in the form that is trained by Muon, airbench94_muon.

A convolution 2x2 without padding of 24 filters that do not learn: `start_from` sets them to the eigenvectors of the
covariance of 2x2 patches, each over the root of its eigenvalue, and to their negatives, which whitens the images
(section 3.2). Then three blocks with 64, 256 and 256 filters; a block is a convolution 3x3, maxima of 2x2, batch
normalisation, GELU, and once more a convolution, batch normalisation and GELU. Normalisation has biases and no scales.
The first filters of each convolution start as the identity (section 3.3). Maxima of 3x3 and a full connection without
bias; logits are divided by its inputs' number, and its weights start with deviation 1. 1,971,352 parameters that
learn, and 144 and 1,152 numbers that do not. width is the first block's number of filters; the others have four times
as many.

Muon trains the filters, at a rate of 0.24, with Nesterov momentum 0.6, 3 iterations, and lengths that stay; SGD with
Nesterov momentum 0.85 the rest, at 0.053 (biases) and 0.67 (full connection) of the loss's sum over the batch. All
rates fall to 0 in a straight line, that of the first convolution's bias within the first 3 of 8 epochs. Batches of
2,000; 200 steps. Images are moved by up to 2 pixels, with reflection, and mirrored in every other epoch; labels are
smoothed by 0.2; six views of each test image are averaged. The paper's kind of net reaches 94.0 %, mean of many seeds.

Measured in bf16 (benchmarks/time_to_accuracy.py), means of 40 seeds: 94.01 % after 8 epochs, which take 0.98 s on one
H200; 94.14 % after 9 (docs/benchmarks.md).
"""

from __future__ import annotations

import math

import numpy as np

from minidl import Tensor, init, nn, no_grad, ops, optim

from .recipe import Model, Recipe

EPS = 5e-4                                 # added to the eigenvalues
BIASES, HEAD, MUON = 0.053, 0.67, 0.24     # rates; those of SGD are for the loss's sum
MOMENTUM = 0.85                            # of SGD
WHITENING = 3 / 8                          # of all steps in which the first bias learns


class Block(nn.Module):
    """x (n,c,h,w) -> (n,m,h//2,w//2)"""

    def __init__(self, c: int, m: int):
        super().__init__()
        self.conv1, self.norm1 = convolution(c, m), normalisation(m)
        self.conv2, self.norm2 = convolution(m, m), normalisation(m)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.gelu(self.norm1(ops.max_pool2d(self.conv1(x), size=2)))
        return ops.gelu(self.norm2(self.conv2(x)))


def convolution(c: int, m: int) -> nn.Conv2d:
    """Whose first filters give the maps as they are."""
    conv = nn.Conv2d(c, m, 3, padding=1, bias=False)
    first = min(c, m)
    conv.weight.data[:first] = init.dirac_(Tensor(np.zeros((first, c, 3, 3)))).data
    return conv


def normalisation(m: int) -> nn.BatchNorm2d:
    """Whose scale does not learn."""
    norm = nn.BatchNorm2d(m, eps=1e-12, momentum=0.4)
    for name, parameter in norm.named_parameters():
        parameter.requires_grad = name == "bias"
    return norm


class Airbench(nn.Module):
    """Images (n,c,32,32) -> logits (n,classes). whitening=False: the first convolution's bias gets no gradient, which
    spares the way back to it once it has stopped to learn."""

    def __init__(self, in_channels: int, classes: int, width: int):
        super().__init__()
        self.whiten = nn.Conv2d(in_channels, 8 * in_channels, 2)                               # (n, 24, 31, 31)
        self.whiten.weight.requires_grad = False
        self.block1 = Block(8 * in_channels, width)                                            # (n, 64, 15, 15)
        self.block2, self.block3 = Block(width, 4 * width), Block(4 * width, 4 * width)        # (n, 256, 3, 3)
        self.output = nn.Linear(4 * width, classes, bias=False)
        self.output.weight.data /= self.output.weight.numpy().std(ddof=1)

    def forward(self, x: Tensor, whitening: bool = True) -> Tensor:
        x = self.whiten(x) if whitening else self.whiten(x).detach()
        x = self.block3(self.block2(self.block1(ops.gelu(x))))
        x = ops.max_pool2d(x, size=3).flatten(1)
        return self.output(x) * (1 / x.shape[1])

    def start_from(self, images: Tensor) -> None:
        """Set the first filters by images (n,c,h,w) as they are trained on; 5,000 are enough."""
        weight = self.whiten.weight
        weight.data[...] = Tensor(whitening(images).astype(np.float32), device=weight.device).data
        weight.mark_changed()


def whitening(images: Tensor) -> np.ndarray:
    """Filters (8c,c,2,2) from images (n,c,h,w), computed in float64: the largest eigenvalue's first."""
    c, h, w = images.shape[1:]
    with no_grad():
        x = images.to(dtype="float64")
        patches = ops.stack([x[:, :, i:h - 1 + i, j:w - 1 + j] for i in (0, 1) for j in (0, 1)], axis=2)
        patches = patches.reshape(len(x), 4 * c, -1)
        covariance = (patches @ patches.swapaxes(1, 2)).mean(axis=0) * (1 / patches.shape[2])
    values, vectors = np.linalg.eigh(covariance.numpy())
    filters = (vectors / np.sqrt(values + EPS)).T[::-1].reshape(-1, c, 2, 2)
    return np.concatenate([filters, -filters])


def optimizer(net: nn.Module, schedule: str, steps: int, batch_size: int, lr: float = MUON, momentum: float = 0.6,
              weight_decay: float = 2e-6) -> tuple[optim.Together, list[optim.Schedule]]:
    """The optimizer for `steps` steps of the mean loss, and a schedule for each group. lr is the filters' rate; the
    rates of the others are in proportion to it. weight_decay is that of one image, for the others."""
    named = dict(net.named_parameters())
    filters = [p for p in named.values() if p.ndim == 4]
    norms = [p for name, p in named.items() if "norm" in name]
    sum_of = batch_size * lr / MUON
    groups = [{"params": params, "name": name, "lr": rate * sum_of,
               "weight_decay": decay(weight_decay, rate * lr / MUON)}
              for name, params, rate in (("whitening", [named["whiten.bias"]], BIASES), ("norms", norms, BIASES),
                                         ("output", [named["output.weight"]], HEAD))]
    both = optim.Together(optim.Muon([{"params": filters, "name": "filters"}], lr, 0.0, momentum, ns_steps=3,
                                     normalized=True),
                          optim.SGD(groups, BIASES * sum_of, MOMENTUM, nesterov=True))
    first, rest = optim.schedule(schedule, math.ceil(WHITENING * steps)), optim.schedule(schedule, steps)
    return both, [rest, first, rest, rest]


def decay(weight_decay: float, rate: float) -> float:
    """The decay that takes an image's weight_decay off a parameter in each step, whatever the rate."""
    return weight_decay / rate if rate else 0.0


def layers(in_channels: int = 3, classes: int = 10, width: int = 64) -> Airbench:
    return Airbench(in_channels, classes, width)


MODEL = Model("airbench", "net of the CIFAR-10 speed runs (Jordan 2024), 1,971,352 parameters", layers,
              Recipe(data="cifar10", epochs=8, batch_size=2000, lr=MUON, momentum=0.6, weight_decay=2e-6,
                     lr_schedule="linear", augment="crop=2,reflect,flip=alternate", optimizer="own",
                     label_smoothing=0.2, tta="flip-shift"), optimizer=optimizer)
