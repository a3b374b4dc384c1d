"""Weights of a PyTorch net, batch normalisation included, go on here with another head, the rest of it frozen.
Figure: the accuracy with the new head."""

import numpy as np

import minidl
from minidl import data, nn, optim, training


def main(device="cpu", compiled=False):
    import torch

    torch.manual_seed(0)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, stride=2, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(16 * 7 * 7, 100))
    theirs(torch.randn(64, 1, 28, 28))                 # running statistics that are not 0 and 1
    theirs.eval()
    minidl.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
                        nn.Linear(16 * 7 * 7, 100))
    net.load_state_dict(theirs.state_dict())
    net.eval()
    x = np.random.default_rng(0).normal(size=(8, 1, 28, 28)).astype(np.float32)
    with torch.no_grad(), minidl.no_grad():
        np.testing.assert_allclose(net(minidl.Tensor(x)).numpy(), theirs(torch.from_numpy(x)).numpy(), atol=1e-5)

    for p in net.parameters():
        p.requires_grad = False
    net[7] = nn.Linear(16 * 7 * 7, 10)
    net.to(device)
    train = data.DataLoader(data.load("synthetic-digits", "train", count=600), 50, mean=0.5, std=0.5, device=device)
    history = training.fit(net, optim.Adam(net[7].parameters(), lr=0.01), train, train, epochs=3, compiled=compiled,
                           say=None, progress=False)
    return history[-1]["test_accuracy"]
