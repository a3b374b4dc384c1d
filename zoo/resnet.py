"""The residual nets of He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition" (2015): for CIFAR,
section 4.2, and for images of 224x224, section 3.3 and Table 1.

`resnet`, for CIFAR: a convolution 3x3 of 16 filters, then three stages of blocks with 16, 32 and 64 filters on maps of
32x32, 16x16 and 8x8; a block is two convolutions 3x3, each with batch normalisation, and what it was given is added
before its last relu. The first block of the second and third stage halves the maps; its shortcut takes every second
pixel and has zeros in the new maps, so that it has no parameters (the paper's option A). The mean of each map, and one
full connection. With n blocks per stage there are 6n+2 layers: depth=20 has 269,722 parameters, 32 has 464,154, 44
658,586, 56 853,018 and 110 1,727,962. width is the first stage's number of filters; the others have twice and four
times as many.

Weights start with variance 2 / fan_in (He et al. 2015, "Delving Deep into Rectifiers"), those of the full connection
with a half of it. Batches of 128, momentum 0.9 and decay 0.0001 are the paper's, as is the rate of 0.1, which it
divides by 10 after 32,000 and 48,000 of 64,000 steps, that is after a half and three quarters of 182 epochs of 45,000
images; here it follows a cosine. The paper pads each image by 4 pixels, crops 32x32 at random and flips one half
(`--augment crop=4,flip`), as here, and warms the net of depth 110 up at a rate of 0.01. Its errors on CIFAR-10's test
images are 8.75 % at depth 20, 7.51 at 32, 7.17 at 44, 6.97 at 56 and 6.43 at 110. Here 20 layers reach 8.06 % (mean of
3 seeds, on an H100); deeper nets have not been measured.

`resnet-224`: a convolution 7x7 of 64 filters with stride 2 and a maximum over 3x3 with stride 2 leave maps of 56x56;
then four stages with 64, 128, 256 and 512 filters, of 2, 2, 2 and 2 blocks at depth 18, or 3, 4, 6 and 3 at 34. The
blocks are those above, with option A, as the paper's nets of 18 and 34 layers in Table 2. With 1,000 classes there are
11,515,688 and 21,623,848 parameters, and 1.8 and 3.6 billion multiply-adds, the paper's numbers; the projections of
option B, which other libraries have, are 173,824 parameters more. The paper trains it on ImageNet, which is not among
the data sets here. At a quarter of its width (`width=16`) the recipe with 3 epochs comes to 76.00 % of the 400
generated test images (seed 0); at full width it has not been trained.
"""

from __future__ import annotations

from minidl import Tensor, init, nn, ops

from .recipe import Model, Recipe


class Block(nn.Module):
    """Two convolutions of 3x3, and what they were given: x (n,c,h,w) -> (n,m,h/stride,w/stride)."""

    def __init__(self, c: int, m: int, stride: int):
        super().__init__()
        self.stride, self.more = stride, m - c
        self.conv1, self.norm1 = nn.Conv2d(c, m, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.norm2 = nn.Conv2d(m, m, 3, padding=1, bias=False), nn.BatchNorm2d(m)

    def forward(self, x: Tensor) -> Tensor:
        y = ops.relu(self.norm1(self.conv1(x)))
        return ops.relu(self.norm2(self.conv2(y)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Every stride-th pixel, and zeros as further maps."""
        if self.stride > 1:
            x = x[:, :, ::self.stride, ::self.stride]
        return ops.pad(x, widths=(0, 0, 0, 0, 0, self.more)) if self.more else x


def stage(c: int, m: int, blocks: int) -> nn.Sequential:
    """Blocks of m filters; the first halves the maps if it makes more of them."""
    return nn.Sequential(Block(c, m, 1 if c == m else 2), *(Block(m, m, 1) for _ in range(blocks - 1)))


def layers(in_channels: int = 3, classes: int = 10, depth: int = 20, width: int = 16) -> nn.Sequential:
    if not isinstance(depth, int) or depth < 8 or depth % 6 != 2:
        raise ValueError(f"zoo: depth of model 'resnet' is {depth!r} but must be 6n + 2 with n blocks per stage, from "
                         "8 on: 20, 32, 44, 56 or 110")
    blocks = depth // 6
    net = nn.Sequential(
        conv=nn.Conv2d(in_channels, width, 3, padding=1, bias=False), norm=nn.BatchNorm2d(width), act=nn.ReLU(),
        stage1=stage(width, width, blocks), stage2=stage(width, 2 * width, blocks),            # (n, 32, 16, 16)
        stage3=stage(2 * width, 4 * width, blocks),                                            # (n, 64, 8, 8)
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(),                                    # (n, 64)
        output=nn.Linear(4 * width, classes))
    return started(net)


BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}              # of each stage


def layers_224(in_channels: int = 3, classes: int = 10, depth: int = 18, width: int = 64) -> nn.Sequential:
    if depth not in BLOCKS:
        raise ValueError(f"zoo: depth of model 'resnet-224' is {depth!r} but must be {' or '.join(map(str, BLOCKS))}")
    one, two, three, four = BLOCKS[depth]
    return started(nn.Sequential(
        conv=nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False),                # (n, 64, 112, 112)
        norm=nn.BatchNorm2d(width), act=nn.ReLU(), first=nn.MaxPool2d(3, 2, 1),                # (n, 64, 56, 56)
        stage1=stage(width, width, one), stage2=stage(width, 2 * width, two),                  # (n, 128, 28, 28)
        stage3=stage(2 * width, 4 * width, three), stage4=stage(4 * width, 8 * width, four),   # (n, 512, 7, 7)
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(),
        output=nn.Linear(8 * width, classes)))


def started(net: nn.Sequential) -> nn.Sequential:
    """With the first weights of the file's head."""
    for name, parameter in net.named_parameters():
        if parameter.ndim == 4:
            init.kaiming_normal_(parameter)
        elif name == "output.weight":
            init.kaiming_normal_(parameter, gain=1.0)
        elif name == "output.bias":
            init.zeros_(parameter)
    return net


MODEL = Model("resnet", "residual net for CIFAR (He et al. 2015), 269,722 parameters at depth 20", layers,
              Recipe(data="cifar10", epochs=182, batch_size=128, lr=0.1, momentum=0.9, weight_decay=1e-4,
                     lr_schedule="cosine", augment="crop=4,flip"))

LARGE = Model("resnet-224", "residual net for 224x224 (He et al. 2015), 11,007,818 parameters at depth 18", layers_224,
              Recipe(data="synthetic-shapes-224", epochs=20, batch_size=64, lr=0.05, momentum=0.9, weight_decay=1e-4,
                     lr_schedule="cosine", augment="flip"), image_size=224)
