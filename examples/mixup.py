"""Mixup (Zhang et al. 2018, section 3.4): a net that sees blends of two images does not learn wrong labels by heart.

Nearly all blends are halves of two images (a large alpha), as the paper has it for wrong labels. Nets differ by their
first weights, so the mean of some is told.

    python examples/mixup.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import Tensor, data, nn, ops, optim, training

EPOCHS, WRONG, ALPHA = 30, 0.6, 32.0


def accuracy(few, test, seed, alpha):
    """Of a net trained on few images; alpha: of the beta distribution that shares come from, or 0 for none."""
    train = data.DataLoader(few, 50, seed=1, mean=[0.5], std=[0.5])
    minidl.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))
    sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    @minidl.compile                                    # what is drawn anew for each step is its argument
    def step(blends, targets):
        loss = -(targets * ops.log_softmax(net(blends))).sum(axis=1).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    for _ in range(EPOCHS):
        for images, labels in train:
            blends, targets = data.mixup(images, labels, len(test.classes), alpha)
            step(Tensor(blends), Tensor(targets))
    return training.evaluate(net, data.DataLoader(test, 500, shuffle=False, mean=[0.5], std=[0.5]))[1]


def main(small):
    train, test = (data.load("synthetic-digits", split) for split in ("train", "test"))
    few, nets, random = train.first(500), 3 if small else 10, np.random.default_rng(0)
    wrong = random.random(len(few)) < WRONG
    labels = np.where(wrong, random.integers(0, 10, len(few)), few.labels)
    few = data.Dataset(f"digits, {100 * WRONG:.0f} % of their labels drawn at random", "train", few.images, labels)
    plain, mixed = (np.mean([accuracy(few, test, seed, alpha) for seed in range(nets)]) for alpha in (0.0, ALPHA))
    print(f"{len(few)} {few.name}, {EPOCHS} epochs, {nets} nets: test accuracy {plain:.3f}, with mixup {mixed:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
