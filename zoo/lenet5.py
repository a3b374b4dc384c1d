"""LeNet-5 (LeCun, Bottou, Bengio, Haffner 1998; PMPP section 16.2, Fig. 16.2).

C1 6@5x5 -> average 2x2 -> C3 16@5x5 -> average 2x2 -> C5 120@5x5 -> F6 84 -> 10. As in PMPP, C3 reads all maps of its
input. Unlike there, the average pools have no bias and no sigmoid, and the output is linear under softmax.
original="pmpp" is PMPP's net as its figures have it, in lenet5_pmpp.py; original=True that of the 1998 paper, in
lenet5_1998.py. Weights start as the paper's authors advise
(variance 1 / fan_in). The recipe is tanh's; of the other activations, relu wants a rate of 0.05, and sigmoid a rate of
0.5 without weight decay.
"""

from __future__ import annotations

from minidl import nn

from . import lenet5_1998, lenet5_pmpp
from .recipe import Model, Recipe, activation_layer, start


def layers(in_channels: int = 1, classes: int = 10, activation: str = "tanh",
           original: bool | str = False) -> nn.Sequential:
    if str(original) not in ("True", "False", "pmpp"):
        raise ValueError(f"lenet5: original is {original!r} but must be True, False or 'pmpp'")
    if original:
        squashes = "sigmoid" if original == "pmpp" else "the paper's scaled tanh"
        if activation != "tanh":
            raise ValueError(f"lenet5: activation is {activation!r} but original={original} squashes by {squashes}; "
                             "leave one of them out")
        return (lenet5_pmpp if original == "pmpp" else lenet5_1998).layers(in_channels, classes)
    act = activation_layer(activation)
    return start(nn.Sequential(
        c1=nn.Conv2d(in_channels, 6, 5), act1=act(), s2=nn.AvgPool2d(2),       # (n, c, 32, 32) -> (n, 6, 14, 14)
        c3=nn.Conv2d(6, 16, 5), act3=act(), s4=nn.AvgPool2d(2),                # -> (n, 16, 5, 5)
        c5=nn.Conv2d(16, 120, 5), act5=act(), flatten=nn.Flatten(),            # -> (n, 120)
        f6=nn.Linear(120, 84), act6=act(),
        output=nn.Linear(84, classes)))


MODEL = Model("lenet5", "LeNet-5 (LeCun et al. 1998), 61,706 parameters", layers,
              Recipe(data="mnist", epochs=10, batch_size=128, lr=0.1, momentum=0.9, weight_decay=5e-4,
                     lr_schedule="warmup-cosine"),
              {"original=true": lenet5_1998.RECIPE, "original=pmpp": lenet5_pmpp.RECIPE})
