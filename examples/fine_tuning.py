"""Fine-tuning with frozen layers: what was learned on the digits 0 to 4 helps with few images of 5 to 9.

    python examples/fine_tuning.py [--small]
"""

import sys
from dataclasses import replace

import numpy as np

import minidl
from minidl import data, nn, optim, training


def body():
    """Images (n,1,28,28) -> 64 numbers each."""
    return nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(256, 64), nn.ReLU())


def some(digits, lowest, limit=None):
    """The images of five digits, labelled 0 to 4."""
    which = np.flatnonzero((digits.labels >= lowest) & (digits.labels < lowest + 5))[:limit]
    return replace(digits, images=digits.images[which], labels=digits.labels[which] - lowest)


def fit(net, train, test, epochs):
    """Trains what is not frozen; returns the test accuracy."""
    sgd = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)      # a frozen layer has no parameters
    batches = data.DataLoader(train, 25, seed=1), data.DataLoader(test, 500, shuffle=False)
    return training.fit(net, sgd, *batches, epochs=epochs, say=None)[-1]["test_accuracy"]


def main(small):
    train, test = (data.load("synthetic-digits", split) for split in ("train", "test"))
    few, fives = some(train, 5, 50), some(test, 5)

    minidl.manual_seed(1)
    fresh = nn.Sequential(body=body(), head=nn.Linear(64, 5))
    print(f"50 images, from scratch: test accuracy {fit(fresh, few, fives, 20):.3f}")

    net = nn.Sequential(body=body(), head=nn.Linear(64, 5))
    fit(net, some(train, 0, 1000 if small else None), some(test, 0), 2)
    net.body.requires_grad_(False)                         # frozen: no gradient is computed, and no update done
    net.head = nn.Linear(64, 5)                            # a new head for the new digits
    frozen = net.body.state_dict()
    tuned = fit(net, few, fives, 20)
    assert all(np.array_equal(before, net.body.state_dict()[name]) for name, before in frozen.items())
    print(f"50 images, body trained on 0 to 4 and frozen: test accuracy {tuned:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
