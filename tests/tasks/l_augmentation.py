"""Augmentation through DataLoader: the built-in one in compiled steps, and a transform of one's own."""

import numpy as np

import minidl
from minidl import data, nn, optim, training

train, test = data.load("synthetic-digits", "train", count=200), data.load("synthetic-digits", "test", count=500)
mean, std = data.channel_statistics(train)
tests = data.DataLoader(test, 500, shuffle=False, mean=mean, std=std)


def accuracy(compiled, **how):
    batches = data.DataLoader(train, 50, seed=1, mean=mean, std=std, **how)
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1152, 10))
    sgd = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return training.fit(net, sgd, batches, tests, epochs=20, compiled=compiled, say=None)[-1]["test_accuracy"]


random = np.random.default_rng(1)


def moved(image, label):
    """uint8 (1,28,28), by -3 to 3 pixels in each direction."""
    y, x = random.integers(0, 7, 2)
    return np.pad(image, ((0, 0), (3, 3), (3, 3)))[:, y:y + 28, x:x + 28], label


plain, compiled = accuracy(True), accuracy(True, augment=data.Augment(crop=3))
assert compiled == accuracy(False, augment=data.Augment(crop=3)) > plain + 0.08, (plain, compiled)
assert accuracy(False, transform=moved) > plain + 0.08
try:
    accuracy(True, transform=moved)                        # not run in silence without it
except minidl.CompileError as error:
    assert "compiled=False" in str(error), error
else:
    raise AssertionError("a compiled step took a transform")
