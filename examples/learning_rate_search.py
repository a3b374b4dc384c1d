"""Search for a learning rate: short trainings from the same start, at rates evenly spaced on a logarithmic scale.

    python examples/learning_rate_search.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import data, nn, optim, training


def main(small):
    train, test = (data.load("synthetic-digits", split) for split in ("train", "test"))
    batches = data.DataLoader(train.first(1000 if small else 5000), 50, seed=1)
    tests = data.DataLoader(test, 500, shuffle=False)
    losses = {}
    for rate in np.geomspace(0.003, 30, 5 if small else 9):
        minidl.manual_seed(1)                              # the same parameters
        batches.set_epoch(0)                               # and the same order
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        sgd = optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        last = training.fit(net, sgd, batches, tests, epochs=2, say=None)[-1]
        losses[rate] = last["test_loss"]
        print(f"rate {rate:8.4f}: test loss {last['test_loss']:.3f}, test accuracy {last['test_accuracy']:.3f}")
    print(f"best rate {min(losses, key=losses.get):.4f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
