"""Five folds: each fifth of the data tests the net that the others train.
Figure: the mean accuracy."""

import numpy as np

import minidl
from minidl import data, nn, optim, training


def main(device="cpu", compiled=False):
    digits = data.load("synthetic-digits", "train", count=500)
    folds = np.array_split(np.random.default_rng(0).permutation(len(digits)), 5)
    scores = []
    for i, fold in enumerate(folds):
        rest = np.concatenate(folds[:i] + folds[i + 1:])
        train = data.DataLoader(digits[rest], batch_size=50, device=device)
        test = data.DataLoader(digits[fold], batch_size=100, shuffle=False, device=device)
        minidl.manual_seed(i)
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
        history = training.fit(net, optim.Adam(net.parameters(), lr=0.01), train, test, epochs=6, compiled=compiled,
                               say=None, progress=False)
        scores.append(history[-1]["test_accuracy"])
    return float(np.mean(scores))
