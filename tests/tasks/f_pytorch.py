"""Weights from PyTorch and back, and memory shared with it by DLPack."""

import numpy as np
import torch

import minidl
from minidl import Tensor, nn

theirs = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Tanh(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
                             torch.nn.Linear(36, 10))
ours = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))
images = torch.randn(5, 1, 8, 8)


def difference():
    with minidl.no_grad(), torch.no_grad():
        return np.abs(ours(minidl.from_dlpack(images)).numpy() - theirs(images).numpy()).max()


assert difference() > 0.01
ours.load_state_dict(theirs.state_dict())                  # PyTorch's tensors as they are
assert difference() < 1e-5

with minidl.no_grad():
    for p in ours.parameters():
        p *= 1.5
assert difference() > 0.01
theirs.load_state_dict({name: torch.from_numpy(array) for name, array in ours.state_dict().items()})
assert difference() < 1e-5

minidl.save(ours, "ours.npz")                              # and by a file that NumPy reads
with np.load("ours.npz") as file:
    theirs.load_state_dict({name: torch.from_numpy(file[name]) for name in theirs.state_dict()})
assert difference() < 1e-5

t = Tensor([1.0, 2.0, 3.0])
shared = torch.from_dlpack(t)
shared += 1                                                # one memory
back = minidl.from_dlpack(shared)
back *= 10.0
assert t.tolist() == shared.tolist() == [20.0, 30.0, 40.0]
