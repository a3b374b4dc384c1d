"""The single-convolution net of Krizhevsky's report "Convolutional Neural Networks for Object Classification
in CUDA" (2009), sections 5 and 6.

64 filters 8x8 over 3 channels; 4 pixels of zeros at the top and left and 3 at the bottom and right keep 32x32
outputs; logistic; 4x4 averages; 4096 -> 10 under softmax; batches of 128. The report reaches about 58 %. It names no
rate and no first weights; here they are the best that were tried: weights four times LeCun's gave 2 to 3 points more
accuracy than LeCun's at the same rate, and bear a larger rate.
"""

from __future__ import annotations

from minidl import nn

from .recipe import Model, Recipe, activation_layer, start


def layers(in_channels: int = 3, classes: int = 10, filters: int = 64,
           activation: str = "sigmoid") -> nn.Sequential:
    return start(nn.Sequential(
        conv=nn.Conv2d(in_channels, filters, 8, padding=((4, 3), (4, 3))),     # (n, c, 32, 32) -> (n, m, 32, 32)
        act=activation_layer(activation)(),
        pool=nn.AvgPool2d(4), flatten=nn.Flatten(),                            # -> (n, m * 8 * 8)
        output=nn.Linear(filters * 8 * 8, classes)), gain=4.0)


MODEL = Model("krizhevsky2009", "single-convolution CIFAR net (Krizhevsky 2009), 53,322 parameters", layers,
              Recipe(data="cifar10", epochs=20, batch_size=128, lr=0.1, momentum=0.9, weight_decay=1e-4,
                     lr_schedule="warmup-cosine"))
