"""How much each image counts, through fit: wrong labels are known to be doubtful, and count little.
Figure: how much better the test accuracy is for it."""

import numpy as np

import minidl
from minidl import data, nn, optim, training


def main(device="cpu", compiled=False):
    rng = np.random.default_rng(0)
    digits = data.load("synthetic-digits", "train", count=900)
    images, labels = digits.images.astype(np.float32) / 255, digits.labels.astype(np.int64)
    doubtful = rng.random(700) < 0.6
    given = np.where(doubtful, (labels[:700] + 1) % 10, labels[:700])
    weights = np.where(doubtful, 0.05, 1.0).astype(np.float32)
    test = data.DataLoader((images[700:], labels[700:]), 200, shuffle=False, device=device)

    def accuracy(*arrays):
        minidl.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
        train = data.DataLoader((images[:700], *arrays), 50, device=device)
        loss = nn.CrossEntropyLoss(reduction="none" if len(arrays) == 2 else "mean")
        adam = optim.Adam(net.parameters(), lr=0.005)
        return training.fit(net, adam, train, test, epochs=4, loss=loss, compiled=compiled, say=None,
                            progress=False)[-1]["test_accuracy"]

    return accuracy(given, weights) - accuracy(given)
