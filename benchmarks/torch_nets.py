"""The zoo's nets in PyTorch, under the same parameter names: the benchmarks' peer and the tests' third opinion."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn


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


NETS = {"lenet5": lenet5, "krizhevsky2009": krizhevsky2009}


def build(name: str, state: dict | None = None, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A net of NETS, with the parameters of a minidl `state_dict()` where one is given."""
    net = NETS[name]().to(dtype)
    if state is not None:
        net.load_state_dict({path: torch.tensor(values) for path, values in state.items()})
    return net


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
