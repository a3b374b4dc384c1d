"""Eight trainings, of four rates and two widths, from the same seed; each writes a run of its own.
Figure: the best test accuracy."""

import itertools
import tempfile

import minidl
from minidl import data, nn, optim, training


def main(device="cpu", compiled=False):
    train = data.DataLoader(data.load("synthetic-digits", "train", count=600), 50, device=device)
    test = data.DataLoader(data.load("synthetic-digits", "test", count=200), 100, shuffle=False, device=device)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for lr, width in itertools.product([0.001, 0.01, 0.1, 1.0], [8, 32]):
            minidl.manual_seed(0)
            net = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
            sgd = optim.SGD(net.parameters(), lr=lr, momentum=0.9)
            run = training.RunFolder(f"{folder}/lr={lr},width={width}", net)
            try:
                history = training.fit(net, sgd, train, test, epochs=4, callbacks=run, compiled=compiled, say=None,
                                       progress=False)
                results[lr, width] = history[-1]["test_accuracy"]
            except training.Diverged:
                results[lr, width] = 0.0
    return max(results.values())
