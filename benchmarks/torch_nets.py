"""The zoo's nets in PyTorch, under the same parameter names: the benchmarks' peer and the tests' third opinion."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def lenet5() -> nn.Module:
    return nn.Sequential(OrderedDict(
        c1=nn.Conv2d(1, 6, 5), act1=nn.Tanh(), s2=nn.AvgPool2d(2),
        c3=nn.Conv2d(6, 16, 5), act3=nn.Tanh(), s4=nn.AvgPool2d(2),
        c5=nn.Conv2d(16, 120, 5), act5=nn.Tanh(), flatten=nn.Flatten(),
        f6=nn.Linear(120, 84), act6=nn.Tanh(),
        output=nn.Linear(84, 10)))


def krizhevsky2009() -> nn.Module:
    """The zeros are a layer of their own: PyTorch's convolution pads all sides of an axis alike. (Padding by 4
    everywhere and cutting the 33rd row and column off is a fifth slower on the CPU.)"""
    return nn.Sequential(OrderedDict(
        pad=nn.ZeroPad2d((4, 3, 4, 3)), conv=nn.Conv2d(3, 64, 8), act=nn.Sigmoid(),
        pool=nn.AvgPool2d(4), flatten=nn.Flatten(),
        output=nn.Linear(64 * 8 * 8, 10)))


def cifar10_quick() -> nn.Module:
    return nn.Sequential(OrderedDict(
        conv1=nn.Conv2d(3, 32, 5, padding=2), pool1=nn.MaxPool2d(3, 2, 1), act1=nn.ReLU(),
        conv2=nn.Conv2d(32, 32, 5, padding=2), act2=nn.ReLU(), pool2=nn.AvgPool2d(3, 2, 1),
        conv3=nn.Conv2d(32, 64, 5, padding=2), act3=nn.ReLU(), pool3=nn.AvgPool2d(3, 2, 1),
        flatten=nn.Flatten(), fc=nn.Linear(1024, 64), act4=nn.ReLU(), output=nn.Linear(64, 10)))


def cifar10_18() -> nn.Module:
    return nn.Sequential(OrderedDict(
        conv1=nn.Conv2d(3, 32, 5, padding=2), pool1=nn.MaxPool2d(3, 2, 1), act1=nn.ReLU(),
        norm1=nn.LocalResponseNorm(3, alpha=0.1),
        conv2=nn.Conv2d(32, 32, 5, padding=2), act2=nn.ReLU(), pool2=nn.AvgPool2d(3, 2, 1),
        norm2=nn.LocalResponseNorm(3, alpha=0.1),
        conv3=nn.Conv2d(32, 64, 5, padding=2), act3=nn.ReLU(), pool3=nn.AvgPool2d(3, 2, 1),
        flatten=nn.Flatten(), output=nn.Linear(1024, 10)))


def alexnet(width: int = 96, hidden: int = 4096) -> nn.Module:
    more, most = width * 8 // 3, width * 4
    norm1, norm2 = (nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2.0) for _ in range(2))
    return nn.Sequential(OrderedDict(
        conv1=nn.Conv2d(3, width, 11, stride=4, padding=2), act1=nn.ReLU(), norm1=norm1, pool1=nn.MaxPool2d(3, 2),
        conv2=nn.Conv2d(width, more, 5, padding=2, groups=2), act2=nn.ReLU(), norm2=norm2, pool2=nn.MaxPool2d(3, 2),
        conv3=nn.Conv2d(more, most, 3, padding=1), act3=nn.ReLU(),
        conv4=nn.Conv2d(most, most, 3, padding=1, groups=2), act4=nn.ReLU(),
        conv5=nn.Conv2d(most, more, 3, padding=1, groups=2), act5=nn.ReLU(), pool5=nn.MaxPool2d(3, 2),
        flatten=nn.Flatten(), fc6=nn.Linear(more * 36, hidden), act6=nn.ReLU(), dropout6=nn.Dropout(),
        fc7=nn.Linear(hidden, hidden), act7=nn.ReLU(), dropout7=nn.Dropout(),
        output=nn.Linear(hidden, 10)))


class Block(nn.Module):
    """Two convolutions with batch normalisation, and what they were given: every second pixel of it, and zeros as
    further maps, where that is needed."""

    def __init__(self, c: int, m: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, m - c
        self.conv1, self.norm1 = nn.Conv2d(c, m, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.norm2 = nn.Conv2d(m, m, 3, padding=1, bias=False), nn.BatchNorm2d(m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.more:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(y + x)


def resnet(depth: int = 20, width: int = 16) -> nn.Module:
    def stage(c: int, m: int) -> nn.Module:
        return nn.Sequential(Block(c, m, 1 if c == m else 2), *(Block(m, m, 1) for _ in range(depth // 6 - 1)))

    return nn.Sequential(OrderedDict(
        conv=nn.Conv2d(3, width, 3, padding=1, bias=False), norm=nn.BatchNorm2d(width), act=nn.ReLU(),
        stage1=stage(width, width), stage2=stage(width, 2 * width), stage3=stage(2 * width, 4 * width),
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), output=nn.Linear(4 * width, 10)))


def resnet_224(depth: int = 18, width: int = 64) -> nn.Module:
    blocks = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}[depth]
    maps = width, width, 2 * width, 4 * width, 8 * width
    stages = {f"stage{i + 1}": nn.Sequential(Block(maps[i], maps[i + 1], 2 if i else 1),
                                             *(Block(maps[i + 1], maps[i + 1], 1) for _ in range(blocks[i] - 1)))
              for i in range(4)}
    return nn.Sequential(OrderedDict(
        conv=nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), norm=nn.BatchNorm2d(width), act=nn.ReLU(),
        first=nn.MaxPool2d(3, 2, 1), **stages,
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), output=nn.Linear(8 * width, 10)))


def autoencoder(width: int = 16, code: int = 30) -> nn.Module:
    most = 4 * width
    return nn.Sequential(OrderedDict(
        encoder=nn.Sequential(OrderedDict(
            conv1=nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False), norm1=nn.BatchNorm2d(width), act1=nn.ReLU(),
            conv2=nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), norm2=nn.BatchNorm2d(2 * width),
            act2=nn.ReLU(),
            conv3=nn.Conv2d(2 * width, most, 3, stride=2, padding=1, bias=False), norm3=nn.BatchNorm2d(most),
            act3=nn.ReLU(), flatten=nn.Flatten(), output=nn.Linear(16 * most, code))),
        decoder=nn.Sequential(OrderedDict(
            fc=nn.Linear(code, 16 * most), act3=nn.ReLU(),
            maps=nn.Unflatten(1, (most, 4, 4)),
            conv3=nn.ConvTranspose2d(most, 2 * width, 4, stride=2, padding=1, bias=False),
            norm2=nn.BatchNorm2d(2 * width), act2=nn.ReLU(),
            conv2=nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
            norm1=nn.BatchNorm2d(width), act1=nn.ReLU(),
            conv1=nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)))))


def table_mlp(in_features: int = 10, classes: int = 4, hidden: int = 64, depth: int = 2,
              dropout: float = 0.1) -> nn.Module:
    blocks = OrderedDict[str, nn.Module]()
    for i in range(1, depth + 1):
        blocks |= {f"hidden{i}": nn.Linear(in_features if i == 1 else hidden, hidden), f"act{i}": nn.ReLU(),
                   f"dropout{i}": nn.Dropout(dropout)}
    return nn.Sequential(OrderedDict(blocks, output=nn.Linear(hidden if depth else in_features, classes)))


class SpeedBlock(nn.Module):
    def __init__(self, c: int, m: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, m, 3, padding=1, bias=False), unscaled(m)
        self.conv2, self.norm2 = nn.Conv2d(m, m, 3, padding=1, bias=False), unscaled(m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.norm2(self.conv2(F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2))))))


def unscaled(m: int) -> nn.Module:
    norm = nn.BatchNorm2d(m, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad = False
    return norm


class Airbench(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad = False
        self.block1, self.block2 = SpeedBlock(24, width), SpeedBlock(width, 4 * width)
        self.block3, self.output = SpeedBlock(4 * width, 4 * width), nn.Linear(4 * width, 10, bias=False)

    def forward(self, x: torch.Tensor, whitening: bool = True) -> torch.Tensor:
        x = self.whiten(x) if whitening else self.whiten(x).detach()
        x = F.max_pool2d(self.block3(self.block2(self.block1(F.gelu(x)))), 3).flatten(1)
        return self.output(x) / x.shape[1]


def vgg6() -> nn.Module:
    layers: list[nn.Module] = []
    for c, m in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(c, m, 3, padding=1), nn.ReLU(), nn.Conv2d(m, m, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 10))


NETS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": lenet5, "krizhevsky2009": krizhevsky2009, "cifar10-quick": cifar10_quick, "cifar10-18": cifar10_18,
    "alexnet": alexnet, "resnet": resnet, "resnet-56": functools.partial(resnet, 56), "resnet-224": resnet_224,
    "autoencoder": autoencoder, "table-mlp": table_mlp,
    "airbench": Airbench, "vgg6": vgg6}


def build(name: str, state: dict | None = None, dtype: torch.dtype = torch.float32, **options: int) -> nn.Module:
    """A net of NETS, with the parameters of a minidl `state_dict()` where one is given."""
    net = NETS[name](**options).to(dtype)
    if state is not None:
        net.load_state_dict({path: torch.tensor(values) for path, values in state.items()})
    return net


precision = "fp32"                         # how nets compute: train_step.set_precision sets it


def forward(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """A net's call on a GPU as PyTorch's guides have it for tensor cores: images and filters channels last, and in bf16
    under autocast. On the CPU, and in fp32, as it is."""
    if precision == "fp32" or not next(net.parameters()).is_cuda:
        return net
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]  # its stub lacks it

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return net(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x)
    return call


def captured(step: Callable[[], None], sgd: torch.optim.SGD) -> Callable[[], None]:
    """A step's replay as a CUDA graph, made as PyTorch's guide has it: three steps before, on a stream aside."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    sgd.zero_grad()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
