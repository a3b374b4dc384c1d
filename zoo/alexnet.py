"""AlexNet (Krizhevsky, Sutskever, Hinton 2012, "ImageNet Classification with Deep Convolutional Neural Networks").

Five convolutions and three full connections, as in section 3.5 and Fig. 2: the second, fourth and fifth convolution in
two groups (there one per GPU), local response normalisation behind the first two (section 3.3: k = 2, n = 5,
alpha = 1e-4, beta = 0.75), maxima of 3x3 windows with stride 2, which overlap (3.4), dropout of one half behind the
first two full connections (4.2). With 1,000 classes it has 60,965,224 parameters. The paper says images of 224x224,
but its sizes follow from 227x227: here the first convolution pads 2 pixels.

Batches of 128, rate 0.01, momentum 0.9 and decay 0.0005 are the paper's (section 5), which divides the rate by 10 when
the validation error stops falling; here it follows a cosine. Weights start with variance 2 / fan_in (He et al. 2015),
those of the output at 0. The paper's own start, paper_start=True, has deviation 0.01, and biases of 1 in the second,
fourth and fifth convolution and in the hidden full connections: it is for a million images. width and hidden make the
net smaller: the first layer's filters, to which those of the others are in proportion, and the units of the hidden full
connections.
"""

from __future__ import annotations

import math

from minidl import init, nn

from .recipe import Model, Recipe, activation_layer, start


def layers(in_channels: int = 3, classes: int = 10, width: int = 96, hidden: int = 4096,
           activation: str = "relu", paper_start: bool = False) -> nn.Sequential:
    if not isinstance(width, int) or width % 6:
        raise ValueError(f"zoo: width of model 'alexnet' is {width!r} but must be a multiple of 6, so that two groups "
                         "of 8/3 as many filters are whole")
    act = activation_layer(activation)
    more, most = width * 8 // 3, width * 4
    output = nn.Linear(hidden, classes)
    net = nn.Sequential(
        conv1=nn.Conv2d(in_channels, width, 11, stride=4, padding=2), act1=act(),              # (n, 96, 55, 55)
        norm1=_normalization(), pool1=nn.MaxPool2d(3, stride=2),                               # (n, 96, 27, 27)
        conv2=nn.Conv2d(width, more, 5, padding=2, groups=2), act2=act(),                      # (n, 256, 27, 27)
        norm2=_normalization(), pool2=nn.MaxPool2d(3, stride=2),                               # (n, 256, 13, 13)
        conv3=nn.Conv2d(more, most, 3, padding=1), act3=act(),                                 # (n, 384, 13, 13)
        conv4=nn.Conv2d(most, most, 3, padding=1, groups=2), act4=act(),                       # (n, 384, 13, 13)
        conv5=nn.Conv2d(most, more, 3, padding=1, groups=2), act5=act(),                       # (n, 256, 13, 13)
        pool5=nn.MaxPool2d(3, stride=2), flatten=nn.Flatten(),                                 # (n, 256 * 6 * 6)
        fc6=nn.Linear(more * 6 * 6, hidden), act6=act(), dropout6=nn.Dropout(0.5),
        fc7=nn.Linear(hidden, hidden), act7=act(), dropout7=nn.Dropout(0.5),
        output=output)
    if not paper_start:
        start(net, gain=math.sqrt(2))
        init.zeros_(output.weight)         # else the first hundred steps go nowhere
        return net
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            init.normal_(parameter, std=0.01)
        else:
            init.constant_(parameter, float(name.startswith(("conv2", "conv4", "conv5", "fc"))))
    return net


def _normalization() -> nn.LocalResponseNorm:
    return nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2.0)       # a mean over 5 maps here, there the sum


MODEL = Model("alexnet", "AlexNet (Krizhevsky et al. 2012), 56,909,194 parameters for 10 classes", layers,
              Recipe(data="synthetic-shapes-224", epochs=20, batch_size=128, lr=0.01, momentum=0.9, weight_decay=5e-4,
                     lr_schedule="cosine"), image_size=224)
