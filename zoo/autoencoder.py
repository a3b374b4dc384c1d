"""A convolutional autoencoder: 32x32 pixels through 30 numbers and back, after Hinton and Salakhutdinov, "Reducing the
Dimensionality of Data with Neural Networks" (Science 313, 2006), whose code for MNIST has 30 numbers.

Theirs is fully connected, 784-1000-500-250-30 and back, and its layers are trained one by one first. Here three
convolutions of 3x3 with stride 2 halve the maps, of 16, 32 and 64 filters, a full connection makes the code, and
transposed convolutions of 4x4 double the maps again; batch normalisation replaces the training layer by layer. With one
channel there are 127,215 parameters. Its target is the image itself, as the loader normalises it, and its loss is the
mean squared error.

After 10 epochs of MNIST by this recipe (seed 0, 2 CPU cores, 776 s with other work running) the test loss is 0.0703: a
squared error of 6.83 per image with pixels from 0 to 1. With 30 principal components it is 13.87, here as in the paper,
whose net comes to 3.00.
"""

from __future__ import annotations

from minidl import Tensor, nn, ops

from .recipe import Model, Recipe, activation_layer


class Autoencoder(nn.Sequential):
    """encoder: images (n,c,32,32) -> codes (n,code); decoder: codes -> images."""

    encoder: nn.Sequential
    decoder: nn.Sequential

    def loss(self, outputs: Tensor, images: Tensor) -> Tensor:
        """The mean squared error."""
        return ops.mse_loss(outputs, images)


class Maps(nn.Module):
    """Vectors (n, m*h*w) as maps (n,m,h,w)."""

    def __init__(self, m: int, h: int, w: int):
        super().__init__()
        self.shape = m, h, w

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.shape)


def layers(in_channels: int = 1, code: int = 30, width: int = 16, activation: str = "relu") -> Autoencoder:
    act, most = activation_layer(activation), 4 * width
    return Autoencoder(
        encoder=nn.Sequential(
            conv1=nn.Conv2d(in_channels, width, 3, stride=2, padding=1, bias=False),           # (n, 16, 16, 16)
            norm1=nn.BatchNorm2d(width), act1=act(),
            conv2=nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),             # -> (n, 32, 8, 8)
            norm2=nn.BatchNorm2d(2 * width), act2=act(),
            conv3=nn.Conv2d(2 * width, most, 3, stride=2, padding=1, bias=False),              # -> (n, 64, 4, 4)
            norm3=nn.BatchNorm2d(most), act3=act(),
            flatten=nn.Flatten(), output=nn.Linear(16 * most, code)),                          # -> (n, 30)
        decoder=nn.Sequential(
            fc=nn.Linear(code, 16 * most), act3=act(),
            maps=Maps(most, 4, 4),
            conv3=nn.ConvTranspose2d(most, 2 * width, 4, stride=2, padding=1, bias=False),     # -> (n, 32, 8, 8)
            norm2=nn.BatchNorm2d(2 * width), act2=act(),
            conv2=nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),    # -> (n, 16, 16, 16)
            norm1=nn.BatchNorm2d(width), act1=act(),
            conv1=nn.ConvTranspose2d(width, in_channels, 4, stride=2, padding=1)))             # -> (n, 1, 32, 32)


MODEL = Model("autoencoder", "convolutional autoencoder with a code of 30 numbers, 127,215 parameters", layers,
              Recipe(data="mnist", epochs=10, batch_size=128, lr=0.5, momentum=0.9, lr_schedule="cosine"),
              target="image")
